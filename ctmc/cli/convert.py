"""``ctmc convert``: a model from one file format to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.models import model_facts
from ctmc.cli.options import file_type, limits, memory_option, names_starting


def _format_names() -> list[str]:
    from ctmc.interchange.formats import FORMATS

    return list(FORMATS)


def _convert(
    source: str,
    target: str,
    source_format: str | None,
    target_format: str | None,
    overwrite: bool,
    memory_limit: str | None,
) -> int:
    from ctmc.cli.progress import Progress
    from ctmc.interchange.formats import check_target, format_of, named, read, write
    from ctmc.model.memory import format_size

    output = output_of(click.get_current_context())
    with limits(None, memory_limit):
        begins = format_of(source) if source_format is None else named(source_format)
        ends = check_target(target, target_format)
        progress = Progress(output, f"converting {Path(source).name}", 0.5)
        try:
            model: Any = read(source, begins.name)
            lost = write(target, model, ends.name, overwrite=overwrite)
        finally:
            progress.close()
        facts = model_facts(model)
    document = {
        "source": source,
        "source_format": begins.name,
        "file": target,
        "format": ends.name,
        **facts,
        "not_carried": lost,
        "file_bytes": Path(target).stat().st_size,
    }
    if output.json:
        output.document(document)
    else:
        output.write(f"Converted {begins.name} to {ends.name}: {target}")
        carried = [
            (name.replace("_", " "), facts[name]) for name in facts if name not in ("bytes", "notes") and facts[name]
        ]
        output.facts([*carried, ("file size", format_size(document["file_bytes"]))])
    for note in facts["notes"]:
        output.news(f"Note: {note}")
    for sentence in lost:
        output.news(f"Warning: {sentence}")
    return 0


command = Command(
    "convert",
    callback=_convert,
    params=[
        click.Argument(["source"], type=file_type(), metavar="FILE"),
        click.Argument(["target"], type=file_type(), metavar="NEW_FILE"),
        click.Option(
            ["--from", "source_format"],
            metavar="FORMAT",
            shell_complete=names_starting(_format_names),
            help="Format of FILE; default: what its ending or its first bytes tell.",
        ),
        click.Option(
            ["--to", "target_format"],
            metavar="FORMAT",
            shell_complete=names_starting(_format_names),
            help="Format of NEW_FILE; default: what its ending tells.",
        ),
        click.Option(["--overwrite"], is_flag=True, help="Replace an existing file."),
        memory_option(),
    ],
    help="Convert a model file to another format; 'ctmc list formats' shows them.\n\nWhat the new format cannot carry is named "
    "on standard error, one line for each thing.\n\n\b\nExamples\n  ctmc convert model.h5 model.umb\n"
    "  ctmc convert model.mat model.h5",
)
