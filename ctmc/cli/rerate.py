"""``ctmc rerate``: a stored model at other rates, with a flag for each rate of its builder that may change."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.build import check_place
from ctmc.cli.options import code_option, file_type, given_values, limits, memory_option, threads_option, value_option
from ctmc.errors import CTMCError, ModelError

_FLAGS = "ctmc.rates"
"""Where the flags of this run stand in the context: they come from the builder of the file."""


def _rerate(
    parent: str,
    output: str,
    overwrite: bool,
    threads: int | None,
    memory_limit: str | None,
    allow_code: bool,
    **values: Any,
) -> int:
    from ctmc.cli.models import model_facts
    from ctmc.model.memory import format_size
    from ctmc.storage import rerate
    from ctmc.study.sweep import shown

    context = click.get_current_context()
    out, changes = output_of(context), given_values(values)
    if not changes:
        if _FLAGS not in context.meta:  # no file among the arguments; what is there instead is refused by the reader
            rate_flags(parent, [])
        flags = ", ".join(flag.opts[0] for flag in context.meta.get(_FLAGS, ()))
        raise ModelError(f"nothing is to change; the rates of this model have the flags {flags or 'none'}.")
    with limits(threads, memory_limit, allow_code):
        check_place(Path(output))
        begin = time.perf_counter()
        model = rerate(parent, output, changes, overwrite=overwrite)
        seconds = time.perf_counter() - begin
    facts = model_facts(model)
    document = {
        "file": output,
        "parent": parent,
        "changes": changes,
        **facts,
        "seconds": seconds,
        "file_bytes": Path(output).stat().st_size,
        "content_hash": model.content_hash,
    }
    if out.json:
        out.document(document)
    else:
        out.write(f"Re-rated {parent}: {output}")
        out.facts(
            [
                *((name, shown(value)) for name, value in changes.items()),
                *((name.replace("_", " "), value) for name, value in facts.items() if name not in ("bytes", "notes")),
                ("memory", format_size(facts["bytes"])),
                ("seconds", f"{seconds:.3f}"),
                ("file size", format_size(document["file_bytes"])),
                ("content hash", model.content_hash),
            ]
        )
    for note in facts["notes"]:
        out.news(f"Note: {note}")
    return 0


def _parent_among(arguments: list[str]) -> str | None:
    """Return the file among the arguments of a command line that is not read yet: its flags depend on it."""
    before = [None, *arguments]
    plain = [
        argument
        for last, argument in zip(before, arguments, strict=False)
        if not argument.startswith("-") and last not in ("-o", "--output", "--threads", "--memory-limit")
    ]
    there = [argument for argument in plain if Path(argument).is_file()]
    named = [argument for argument in plain if argument.endswith((".h5", ".hdf5"))]
    return next(iter([*there, *named]), None)


def rate_flags(path: str, taken: list[str]) -> list[click.Option]:
    """Return a flag for each rate that may change in the model of a file.

    Raises
    ------
    StorageError
        If the file cannot be read.
    PluginError, UnknownNameError
        If its builder is not there.
    """
    from ctmc import registry
    from ctmc.cli.docstring import read_docstring
    from ctmc.model.rerating import rates_that_may_change
    from ctmc.storage import read_info

    entry = read_info(path).get("builder") or {}
    if "name" not in entry:
        return []
    function = registry.builder(entry["name"])
    parts, options = read_docstring(function), inspect.signature(inspect.unwrap(function), eval_str=True).parameters
    return [
        value_option(
            name,
            options[name].annotation,
            parts.parameters.get(name, ("", "")),
            default=None,
            required=False,
            taken=taken,
            kind="builder",
        )
        for name, reason in rates_that_may_change(function, entry.get("parameters", {})).items()
        if reason is None
    ]


def _parameters(path: str) -> list[str]:
    """Return the names of all parameters of the builder of a file."""
    from ctmc import registry
    from ctmc.storage import read_info

    entry = read_info(path).get("builder") or {}
    return list(registry.builder_parameters(entry["name"]).parameters) if "name" in entry else []


class _Rerate(Command):
    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Look at the file first, for the flags of its builder."""
        path = _parent_among(arguments)
        if path is not None:
            try:
                context.meta[_FLAGS] = rate_flags(path, [flag for option in self.params for flag in option.opts])
            except CTMCError:
                if not context.resilient_parsing and not {"-h", "--help"} & set(arguments):
                    raise
        try:
            return super().parse_args(context, arguments)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if path is None or name not in _parameters(path):
                raise
            allowed = ", ".join(flag.opts[0] for flag in context.meta.get(_FLAGS, ())) or "none"
            raise click.UsageError(
                f"{error.option_name} cannot change without a rebuild; rates that may: {allowed}.", context
            ) from None

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        """Return the flags of the builder's rates and those of the command."""
        return [*context.meta.get(_FLAGS, ()), *super().get_params(context)]


command = _Rerate(
    "rerate",
    callback=_rerate,
    params=[
        click.Argument(["parent"], type=file_type(), metavar="FILE"),
        click.Option(
            ["-o", "--output"], required=True, type=file_type(), metavar="FILE", help="Where to store the variant."
        ),
        click.Option(["--overwrite"], is_flag=True, help="Replace another model in this file."),
        memory_option(),
        threads_option(),
        code_option(),
    ],
    help="Take a stored model at other rates, without building it again.  What is stored is a variant: a few kilobytes that "
    "point to FILE, by its relative path and the hash of its content; keep both together.  Every command takes it as a model."
    "\n\nThe flags are the rates of the model's builder: 'ctmc rerate FILE --help' shows them."
    "\n\nExamples:"
    "\n\n  ctmc build supermarket --service-rates 3,2,1 --arrival-rate 3 --choices 2 --capacity 9 -o model.h5"
    "\n\n  ctmc rerate model.h5 --arrival-rate 2.5 -o calm.h5"
    "\n\n  ctmc rerate model.h5 --service-rates 6,4,2 --arrival-rate 5 -o fast.h5"
    "\n\n  ctmc solve calm.h5",
)
