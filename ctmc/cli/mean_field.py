"""``ctmc mean-field``: one sub-command for each builder with a limit of infinitely many servers, with a flag for each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.build import function_flags
from ctmc.cli.docstring import read_docstring
from ctmc.cli.groups import SomeBuilders
from ctmc.cli.options import code_option, file_type, given_values, limits, memory_option, threads_option
from ctmc.errors import ModelError, printable, shown

_EXACT = "2,4"
_SIMULATED = "10,100,1000,100000"


def _mean_field(
    builder: str,
    times: str | None,
    plot: str | None,
    exact: str,
    simulated: str,
    seed: int,
    threads: int | None,
    memory_limit: str | None,
    allow_code: bool,
    **values: Any,
) -> int:
    from ctmc import registry
    from ctmc.cli.question import parse_times

    out = output_of(click.get_current_context())
    if plot is not None and times is None:
        raise ModelError(
            "--plot draws the course over time, but --times is missing; give for instance --times 0:20:0.5."
        )
    counts = [_servers("--exact", exact), _servers("--simulated", simulated)]
    chosen = {} if times is None else {"times": parse_times(times)}
    with limits(threads, memory_limit, allow_code):
        if plot is not None:
            _check_plot(Path(plot))
        found = registry.mean_field(builder)(**given_values(values), **chosen)
        curves, notes = found.finite_curves(*counts, seed) if plot is not None else ([], [])
    tables = {"classes": found.table(), "tails": found.tails_table()}
    if times is not None:
        tables["course"] = found.course_table()
    if plot is not None:
        _draw(builder, found, curves, Path(plot))
    if out.json:
        records = {
            name: [dict(zip(columns, row, strict=True)) for row in rows] for name, (columns, rows) in tables.items()
        }
        drawn = {"plot": plot, "curves": [curve.record() for curve in curves]} if plot is not None else {}
        out.document({"builder": builder, **found.facts(), **records, **drawn, "notes": notes})
    elif out.csv:
        out.table(*tables["course" if times is not None else "classes"])
    else:
        out.write(f"Mean field of {builder}")
        out.facts([(name.replace("_", " "), value) for name, value in found.facts().items()])
        for name, title in (("classes", "Fixed point"), ("tails", "Part of the servers with at least so many jobs")):
            _table(out, title, *tables[name])
        if times is not None:
            _table(out, "Mean queue length over time", *tables["course"])
    for note in notes:
        out.news(f"Note: {note}")
    if plot is not None:
        out.news(f"Drawn: {printable(plot)}")
    if not found.facts()["certified"]:
        out.news("The fixed point or the course is not certified: a residual is too large.")
    return 0 if found.facts()["certified"] else 1


_ROWS = 200
"""Of a table; --csv and --json give all."""


def _table(out: Any, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    out.write()
    out.write(title)
    out.table(columns, rows[:_ROWS])
    if len(rows) > _ROWS:
        out.news(f"{len(rows) - _ROWS} rows more: --json shows them.")


def _servers(flag: str, text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")] if text.strip() not in ("", "none") else []
    except ValueError:
        counts = [0]
    if any(count < 1 for count in counts):
        raise ModelError(f"{flag} is {shown(text)}; allowed are whole numbers >= 1 such as 2,4, or none.")
    return counts


def _check_plot(path: Path) -> None:
    """Refuse before the work what could not be drawn afterwards."""
    from ctmc.cli.build import check_place
    from ctmc.study.plots import is_ours

    if path.suffix.lower() != ".png":
        raise ModelError(f"--plot is {printable(path)}; allowed is a file that ends in .png.")
    check_place(path)
    if path.exists() and not is_ours(path):
        raise ModelError(f"--plot is {printable(path)}, which exists and was not drawn here; allowed is a new file.")


def _draw(builder: str, found: Any, curves: Sequence[Any], path: Path) -> None:
    from ctmc.study.plots import draw_courses

    limit = (r"infinitely many servers", found.times, found.queue_length_at, None)
    lines = [limit, *((curve.label, curve.times, curve.queue_length, curve.half_width) for curve in curves)]
    draw_courses(lines, found.queue_length, "mean queue length", f"{builder}: more and more servers", path)


def mean_field_command(name: str) -> Command:
    """Return the command of a builder's limit, made from the signature and docstring of its function."""
    from ctmc import registry

    function = registry.mean_field(name)
    parts = read_docstring(function)
    own: list[click.Parameter] = [
        click.Option(["--times"], metavar="TIMES", help="Of the course: 0.5,2 or begin:end:step such as 0:20:1."),
        click.Option(
            ["--plot"], type=file_type(), metavar="FILE.png",
            help="Draw the course beside exact and simulated ones with finitely many servers.",
        ),
        click.Option(
            ["--exact"], default=_EXACT, show_default=True, metavar="M,..",
            help="Numbers of servers of the exact curves in the plot; 'none' for none.",
        ),
        click.Option(
            ["--simulated"], default=_SIMULATED, show_default=True, metavar="M,..",
            help="Numbers of servers of the simulated curves in the plot; 'none' for none.",
        ),
        click.Option(["--seed"], type=click.IntRange(0), default=2024, show_default=True, metavar="N", help="Of the simulations."),
        memory_option(),
        threads_option(),
        code_option(),
    ]  # fmt: skip
    text = f"{parts.summary}\n\nExample:\n\n" + "\n\n".join(f"  {example}" for example in parts.examples)
    command = Command(name, callback=partial(_mean_field, name), params=own, help=text, csv=True)
    taken = [flag for parameter in command.params for flag in parameter.opts]
    # times are read by our own flag, which takes begin:end:step as well
    flags = [flag for flag in function_flags(function, taken) if not str(flag.name).endswith("_times")]
    command.params = [*flags, *command.params]
    return command


def _names() -> list[str]:
    from ctmc import registry

    return registry.mean_field_names()


command = SomeBuilders(
    "mean-field",
    _names,
    mean_field_command,
    "a limit of infinitely many servers",
    help="Find the limit of infinitely many servers: its fixed point, its course over time, and their certificates.",
)
