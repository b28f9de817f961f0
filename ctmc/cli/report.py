"""``ctmc report``: a comparison as one page of HTML, and its runs as a table for other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.options import file_type
from ctmc.errors import shown

if TYPE_CHECKING:
    from ctmc.cli.output import Output
    from ctmc.comparison.report import Figure
    from ctmc.comparison.runs import Comparison

_MANY = 400
"""Runs above which figures are drawn only if they are asked for: they take seconds and megabytes."""


def _report(
    file: str,
    page: str | None,
    csv_file: str | None,
    latex_file: str | None,
    parquet_file: str | None,
    overwrite: bool,
    figures: bool | None,
) -> int:
    from ctmc.comparison import tables
    from ctmc.comparison.files import load_comparison
    from ctmc.comparison.report import write_report

    output: Output = output_of(click.get_current_context())
    writers = {"csv": tables.write_csv, "latex": tables.write_latex, "parquet": tables.write_parquet}
    asked = {"csv": csv_file, "latex": latex_file, "parquet": parquet_file}
    targets = {name: path for name, path in asked.items() if path is not None}
    if page is not None or not targets:
        targets = {"page": str(Path(file).with_suffix(".html")) if page is None else page, **targets}
    _check(file, targets, overwrite)
    if parquet_file is not None:
        tables.require("pandas", "pyarrow")
    comparison = load_comparison(file)
    for name, path in targets.items():
        if name == "page":
            write_report(path, comparison, _figures(comparison, figures, output), overwrite=overwrite)
        else:
            writers[name](path, comparison, overwrite=overwrite)
    certified = sum(run.converged for run in comparison.runs)
    facts = {
        "title": comparison.title,
        "runs": len(comparison.runs),
        "certified": certified,
        "failures": len(comparison.failures),
        "disagreements": len(comparison.disagreements),
    }
    if output.json:
        output.document({"file": file, **facts, "written": targets})
    else:
        output.facts([*facts.items(), *targets.items()])
    return 0


def _figures(comparison: Comparison, asked: bool | None, output: Output) -> list[Figure]:
    """Return the figures of the page, as far as they were asked for and can be drawn."""
    from ctmc.comparison.report import Figure

    if asked is False:
        return []
    if asked is None and len(comparison.runs) > _MANY:
        output.news(f"No figures but the two charts, as there are more than {_MANY:,} runs; --figures draws them.")
        return []
    try:
        from ctmc.comparison.figures import draw_all, svg_text

        return [Figure(name, about, svg_text(figure)) for name, about, figure in draw_all(comparison)]
    except ImportError:
        output.news(
            "No figures but the two charts: the others need matplotlib, python -m pip install 'ctmc-lab[plots]'."
        )
        return []


def _check(file: str, targets: dict[str, str], overwrite: bool) -> None:
    """Complain about targets before anything is written."""
    from ctmc.errors import StorageError, StudyError, printable

    seen: dict[str, str] = {}
    for name, path in targets.items():
        option = "-o" if name == "page" else f"--{name}"
        if path == "-":
            raise StudyError(f"{option} is '-'; allowed is the name of a file.")
        real = os.path.realpath(path)
        if real == os.path.realpath(file):
            raise StudyError(f"{option} is {shown(path)}, the comparison itself; allowed is another file.")
        if real in seen:
            raise StudyError(f"{seen[real]} and {option} are both {shown(path)}; allowed are different files.")
        seen[real] = option
        if not overwrite and os.path.lexists(path):
            raise StorageError(f"Cannot write {printable(path)}: it exists already; --overwrite replaces it.")


command = Command(
    "report",
    callback=_report,
    params=[
        click.Argument(["file"], type=file_type(), metavar="FILE"),
        click.Option(
            ["-o", "--output", "page"],
            type=file_type(),
            metavar="PAGE",
            help="The page; default: beside FILE, with the ending .html, unless only a table is asked for.",
        ),
        click.Option(["--csv", "csv_file"], type=file_type(), metavar="TABLE", help="Write every run as a row of CSV."),
        click.Option(
            ["--latex", "latex_file"], type=file_type(), metavar="TABLE", help="Write a table for LaTeX (booktabs)."
        ),
        click.Option(
            ["--parquet", "parquet_file"],
            type=file_type(),
            metavar="TABLE",
            help="Write every run as a row of Parquet; needs the extra dataframe.",
        ),
        click.Option(
            ["--figures/--no-figures"],
            default=None,
            help=f"Put all figures of 'ctmc plot' into the page; default: up to {_MANY} runs.",
        ),
        click.Option(["--overwrite"], is_flag=True, help="Replace existing files."),
    ],
    help="Show a comparison as one page of HTML, which needs no network.\n\nFailures and disagreements come first, then which solver "
    "wins where, figures, and a table to sort and filter, whose state stands in the address.\n\n\b\nExamples\n"
    "  ctmc report compared.h5\n  ctmc report compared.h5 -o report.html --csv runs.csv --latex runs.tex",
)
