"""``ctmc build``: one sub-command for each builder, with a flag for each of its parameters."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.docstring import read_docstring
from ctmc.cli.groups import needs_name
from ctmc.cli.models import model_facts
from ctmc.cli.options import code_option, file_type, given_values, limits, memory_option, threads_option, value_option
from ctmc.errors import PluginError, StorageError, printable, unknown_name


def _build(
    builder: str,
    output: str | None,
    overwrite: bool,
    threads: int | None,
    memory_limit: str | None,
    allow_code: bool,
    dry_run: bool,
    **values: Any,
) -> int:
    from ctmc import registry
    from ctmc.cli.progress import Progress
    from ctmc.model.memory import format_size
    from ctmc.model.streamed import streaming
    from ctmc.storage import save
    from ctmc.storage.gate import opened
    from ctmc.storage.relay import save_together
    from ctmc.storage.stored import loaded_bytes

    out = output_of(click.get_current_context())
    with limits(threads, memory_limit, allow_code), streaming():
        if output is None and not dry_run:
            raise click.UsageError("Missing option '-o' / '--output'.", click.get_current_context())
        if output is not None:
            check_place(Path(output))
        progress = Progress(out, f"building {builder}", 0.5)
        try:
            begin = time.perf_counter()
            model = registry.build(builder, **given_values(values))
            if dry_run or output is None:
                return _show_forecast(builder, model, out) if out.speaker.leads else 0
            write = partial(save, output, overwrite=overwrite, progress=partial(_show_bytes, progress))
            digest = save_together(model, write, out.speaker.ranks)
            seconds = time.perf_counter() - begin
        finally:
            progress.close()
    if not out.speaker.leads:
        return 0
    with opened(Path(output)) as file:
        facts = {**model_facts(model), "bytes": loaded_bytes(file.arrays())}
    states = facts.get("states") or facts.get("boundary_states") or 0
    document = {
        "file": output,
        "builder": builder,
        **facts,
        "seconds": seconds,
        "states_per_second": states / seconds if seconds > 0 else None,
        "file_bytes": Path(output).stat().st_size,
        "content_hash": digest,
    }
    if out.json:
        out.document(document)
    else:
        out.write(f"Built {builder}: {output}")
        rate = document["states_per_second"] or 0.0
        shown = [(name.replace("_", " "), value) for name, value in facts.items() if name not in ("bytes", "notes")]
        out.facts(
            [
                *shown,
                ("memory", format_size(facts["bytes"])),
                ("seconds", f"{seconds:.3f} ({rate:,.0f} states per second)"),
                ("file size", format_size(document["file_bytes"])),
                ("content hash", digest),
            ]
        )
    for note in facts["notes"]:
        out.news(f"Note: {note}")
    return 0


def _show_bytes(progress: Any, done: int, total: int) -> None:
    progress.count(done >> 10, total >> 10, "KiB of arrays written")


def _show_forecast(builder: str, model: Any, out: Any) -> int:
    from ctmc.cli.progress import duration
    from ctmc.forecast import forecast
    from ctmc.model.generator import Generator
    from ctmc.model.memory import format_size, memory_limit

    if not isinstance(model, Generator):
        facts = model_facts(model)
        if out.json:
            out.document({"builder": builder, **facts})
        else:
            out.write(
                f"{builder} would have {facts.get('boundary_states', 0):,} boundary states: small, nothing to forecast"
            )
        return 0
    found = forecast(model)
    if out.json:
        out.document({"builder": builder, **dataclasses.asdict(found), "memory_limit": memory_limit()})
        return 0
    about = "" if found.exact else "about "
    out.write(f"{builder} would take (nothing was written):")
    out.facts(
        [
            ("states", f"{found.states:,}"),
            ("transitions", f"{about}{found.entries:,}"),
            (
                "file size",
                f"about {format_size(found.file_bytes)}, {found.file_bytes / max(found.raw_bytes, 1):.1%} of raw rows",
            ),
            ("build", f"about {duration(found.seconds)} in {format_size(found.build_bytes)}"),
            ("in memory", f"{format_size(found.model_bytes)} (raw rows {format_size(found.raw_bytes)})"),
            ("memory limit", format_size(memory_limit())),
        ]
    )
    out.table(
        ["solver", "in memory", "streamed"],
        [[name, format_size(whole), format_size(part)] for name, (whole, part) in found.solvers.items()],
    )
    return 0


def check_place(path: Path) -> None:
    """Refuse before the model is built what could not be written afterwards."""
    if not path.parent.is_dir():
        raise StorageError(f"Cannot write {printable(path)}: there is no folder {printable(path.parent)}.")
    if path.exists() and not path.is_file():
        raise StorageError(f"Cannot write {printable(path)}: it is not a regular file, and is never replaced.")


def _own_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["-o", "--output"],
            type=file_type(),
            metavar="FILE",
            help="Where to store the model; needed unless --dry-run.",
        ),
        click.Option(
            ["--dry-run"],
            is_flag=True,
            help="Tell states, transitions, bytes, memory for each solver and time, and build nothing.",
        ),
        click.Option(["--overwrite"], is_flag=True, help="Replace another model in this file."),
        memory_option(),
        threads_option(),
        code_option(),
    ]


def builder_command(name: str) -> Command:
    """Return the command of a builder, made from its signature and docstring."""
    from ctmc import registry

    parts = read_docstring(registry.builder(name))
    own = _own_options()
    command = Command(name, callback=partial(_build, name), params=own, help=_help(name, parts.summary, parts.examples))
    taken = [flag for parameter in command.params for flag in parameter.opts]
    command.params = [*function_flags(registry.builder(name), taken), *command.params]
    return command


def function_flags(function: Callable[..., Any], taken: Sequence[str]) -> list[click.Option]:
    """Return a flag for each parameter of a builder, or of a function like one."""
    parts = read_docstring(function)
    return [
        value_option(
            parameter.name,
            parameter.annotation,
            parts.parameters.get(parameter.name, ("", "")),
            default=parameter.default,
            required=parameter.default is inspect.Parameter.empty,
            taken=taken,
            kind="builder",
        )
        for parameter in inspect.signature(inspect.unwrap(function), eval_str=True).parameters.values()
    ]


def _help(name: str, summary: str, examples: tuple[str, ...]) -> str:
    shown = examples or (f"ctmc build {name} ... -o model.h5",)
    return (
        f"{summary}\n\nExample:\n\n" + "\n\n".join(f"  {example}" for example in shown) + f"\n\nMore: ctmc list {name}"
    )


class Builders(click.Group):
    """A group with a command for each builder: ``ctmc build``, ``ctmc optimize``."""

    make: Callable[[str], click.Command] = staticmethod(builder_command)

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the builders' names."""
        from ctmc import registry

        return registry.builder_names()

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command of a builder; an unknown one is an error with close names."""
        names = self.list_commands(context)
        if name not in names:
            if context.resilient_parsing or name.startswith("-"):
                return None
            raise unknown_name("builder", name, names)
        return self.make(name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the builders with their first sentence; one that cannot be imported says so."""
        from ctmc import registry

        rows = []
        for name in self.list_commands(context):
            try:
                rows.append((name, read_docstring(registry.builder(name)).summary))
            except PluginError as error:
                rows.append((name, f"cannot be used: {error}"))
        with formatter.section("Builders"):
            formatter.write_dl(rows)


command = Builders(
    "build",
    callback=needs_name("Missing the name of a builder; 'ctmc list builders' shows them."),
    invoke_without_command=True,
    params=[],
    help="Build a model and store it.  'ctmc build BUILDER --help' lists the builder's parameters.",
    subcommand_metavar="BUILDER [PARAMETERS]... -o FILE",
)
