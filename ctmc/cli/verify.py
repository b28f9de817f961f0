"""``ctmc verify``: whether files can be trusted, with a table of what was looked at."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.options import file_type, limits, memory_option, threads_option
from ctmc.cli.output import Output


@contextlib.contextmanager
def verifying(out: Output) -> Iterator[Callable[[Path], Callable[[int, int], None]]]:
    """Show a progress line inside a ``with`` block; yields what makes the callback for a file."""
    from ctmc.cli.progress import Progress

    lines = Progress(out, "Verifying", 1.0)

    def of(path: Path) -> Callable[[int, int], None]:
        return lambda done, total: lines.count(done, total, path.name)

    try:
        yield of
    finally:
        lines.close()


def _verify(files: tuple[str, ...], threads: int | None, memory_limit: str | None) -> int:
    from ctmc.verify import Verifier

    context = click.get_current_context()
    out, look = output_of(context), Verifier()
    for file in files:
        if not os.path.lexists(file):
            raise click.UsageError(f"There is no file {file!r}.", context)
    with limits(threads, memory_limit), verifying(out) as shown:
        reports = [look(file, progress=shown(Path(file))) for file in files]
    wrong = sum(not report.trusted for report in reports)
    if out.json:
        out.document(
            {
                "files": [
                    {
                        "file": file,
                        "kind": report.kind,
                        "trusted": report.trusted,
                        "problem": report.problem,
                        "rows": [vars(row) for row in report.rows],
                    }
                    for file, report in zip(files, reports, strict=True)
                ],
                "wrong": wrong,
            }
        )
        return 1 if wrong else 0
    cells = [
        [file, row.part, row.result, row.detail]
        for file, report in zip(files, reports, strict=True)
        for row in report.rows
    ]
    if out.csv:
        out.table(["file", "part", "result", "detail"], cells)
        return 1 if wrong else 0
    # a file is named once, and a sentence of what is wrong stands below the table, in full
    names = [cell[0] if cells[number - 1][0] != cell[0] or not number else "" for number, cell in enumerate(cells)]
    rows = [
        [name, *cell[1:3], "see below" if cell[2] == "wrong" else cell[3]]
        for name, cell in zip(names, cells, strict=True)
    ]
    out.table(["file", "part", "result", "detail"], rows)
    out.write()
    for report in reports:
        if not report.trusted:
            out.write(report.problem)
    out.write(f"{len(reports)} {'file' if len(reports) == 1 else 'files'} verified, {wrong} wrong.")
    return 1 if wrong else 0


command = Command(
    "verify",
    csv=True,
    callback=_verify,
    params=[
        click.Argument(["files"], type=file_type(), metavar="FILE...", nargs=-1, required=True),
        memory_option(),
        threads_option(),
    ],
    help="Read files with all their hashes and prove again what they say: that a model is a generator or QBD, that a variant "
    "is its parent at other rates, and that an answer satisfies its equations, as far as that follows from what is stored.  "
    "Models larger than memory are read slab by slab.  Exit code 1 if anything is wrong."
    "\n\nExamples:"
    "\n\n  ctmc verify model.h5 model.solutions/*.h5"
    "\n\n  ctmc verify --json quickstart.h5",
)
