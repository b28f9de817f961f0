"""Data on standard output, news on standard error: JSON documents, tables, CSV, and the one line of an error."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from ctmc.cells import csv_cell
from ctmc.cli.ranks import Speaker
from ctmc.errors import printable

if TYPE_CHECKING:
    from ctmc.cli.interrupts import Interrupts
    from ctmc.cli.live import LiveTable
    from ctmc.cli.progress import Progress


@dataclass
class Output:
    """Where and how one run of the command line writes.

    Attributes
    ----------
    json, csv, quiet, debug : bool
    verbose : int
    interrupts : Interrupts
        Whether to stop.
    progress : Progress, LiveTable or None
        What is on the terminal's last line now.
    arguments : list of str
        What the command line was given.
    speaker : Speaker
        Which of the ranks that run the command this one is.
    """

    json: bool = False
    csv: bool = False
    quiet: bool = False
    debug: bool = False
    verbose: int = 0
    interrupts: Interrupts = None  # type: ignore[assignment]  # set by `run`
    progress: Progress | LiveTable | None = None
    arguments: list[str] = field(default_factory=list)
    speaker: Speaker = field(default_factory=Speaker)
    _documents: int = 0

    def line(self, text: str) -> None:
        """Write a line to standard error."""
        if self.progress is not None:
            self.progress.clear()
        try:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        except OSError:  # nobody reads news: the work goes on
            write_nowhere(sys.stderr)

    def news(self, text: str) -> None:
        """Write a line of news to standard error unless --quiet was given; control characters are escaped."""
        if not self.quiet and self.speaker.leads:
            self.line(printable(text))

    def failure(self, kind: str, message: str, code: int, error: BaseException | None = None) -> int:
        """Write an error that ends the command, on all ranks that run it; return the exit code."""
        return self.speaker.failed(lambda rank: self.problem(kind, rank + message, code, error, alone=True))

    def problem(
        self, kind: str, message: str, code: int, error: BaseException | None = None, *, alone: bool = False
    ) -> int:
        """Write an error as one line, and as the JSON document if there is none yet; return the exit code.

        Of several ranks the first one writes what all have met, and any what it has met `alone`.
        """
        if not (self.speaker.leads or alone):
            return code
        message = _LONG.sub(lambda word: f"{word[0][:300]}..", printable(message))
        if self.debug and error is not None:
            self.line("".join(traceback.format_exception(error)).rstrip())
        self.line(f"ctmc: {message}")
        if self.json and not self._documents:
            self.document({"error": error_object(kind, message, code)})
        return code

    def document(self, content: Mapping[str, Any]) -> None:
        """Write the JSON document of this run to standard output."""
        self._documents += 1
        sys.stdout.write(json.dumps(plain_json(content), allow_nan=False, indent=2) + "\n")
        sys.stdout.flush()

    def write(self, text: str = "") -> None:
        """Write a line of data to standard output; control characters are escaped."""
        sys.stdout.write(printable(text) + "\n")

    def facts(self, rows: Sequence[tuple[str, Any]]) -> None:
        """Write names and values in two aligned columns."""
        width = max((len(printable(name)) for name, _ in rows), default=0)
        for name, value in rows:
            sys.stdout.write(f"{printable(name):<{width}}  {printable(display(value))}".rstrip() + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, aligned: bool = False) -> None:
        """Write a table, as CSV if --csv was given; `aligned`: the numbers of a column have the same number of decimals.

        On a terminal that is too narrow the columns go into several tables below each other, each with the number of the
        row; elsewhere lines are as long as they must be.
        """
        if self.csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerows([list(map(csv_cell, row)) for row in (columns, *rows)])
            return
        print_table(columns, rows, aligned=aligned)


def write_nowhere(stream: TextIO) -> None:
    """Let a stream that cannot be written take anything from now on, so that Python does not fail over it at its exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def error_object(kind: str, message: str, code: int) -> dict[str, Any]:
    """Return the form that errors have in JSON."""
    return {"type": kind, "message": message, "exit_code": code}


def plain_json(value: Any) -> Any:
    """Return a value that JSON can hold: arrays as lists, numbers that are not finite as null, any text as Unicode.

    Examples
    --------
    >>> plain_json({"defect": math.nan, "times": (0.5, 2)})
    {'defect': None, 'times': [0.5, 2]}
    """
    if isinstance(value, Mapping):
        return {plain_json(str(key)): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if hasattr(value, "tolist"):
        return plain_json(value.tolist())
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return printable(text)
    return text


def display(value: Any) -> str:
    """Return a value as tables show it: numbers with ten significant digits.

    Examples
    --------
    >>> display(1 / 3), display(12345), display(None)
    ('0.3333333333', '12,345', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(display, value))
    return str(value)


_LONG = re.compile(r"\S{400,}")
"""Words of a sentence that nobody reads to their end: numbers with thousands of digits, paths with hundreds of folders."""

_SHORT = {
    "defect": ".2e", "seconds": ".3f", "width": ".2e", "+-": ".1e", "distance": ".1e", "measure_difference": ".1e",
    "truncated_mass": ".1e", "tolerance": ".0e", "spread": ".0%", "memory_MiB": ",.1f",
}  # fmt: skip
"""Columns that need fewer digits."""


def _cell(column: str, value: Any) -> str:
    if isinstance(value, float) and column in _SHORT and value:
        return format(value, _SHORT[column])
    return printable(display(value))


def aligned_numbers(values: Sequence[float]) -> list[str]:
    """Return numbers with the same number of decimals, ten significant digits for the largest, less common zeros at the end.

    Examples
    --------
    >>> aligned_numbers([0.5, 12.25]), aligned_numbers([1 / 3, math.inf])
    (['0.50', '12.25'], ['0.3333333333', 'inf'])
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    decimals = max(9 - math.floor(math.log10(largest)), 0) if largest else 0
    if decimals > 12:  # a column of tiny numbers is read by its powers of ten
        return [f"{value:.10g}" for value in values]
    while decimals and all(float(f"{value:.{decimals - 1}f}") == float(f"{value:.{decimals}f}") for value in values):
        decimals -= 1
    return [f"{value:.{decimals}f}" for value in values]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, aligned: bool = False) -> None:
    """Write a table with rich; nothing in it is taken for markup."""
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[_cell(column, value) for column, value in zip(columns, row, strict=True)] for row in rows]
    for k, column in enumerate(columns) if aligned else ():
        numbers = [row[k] for row in rows]
        if column not in (*_SHORT, "value") and all(isinstance(number, float) for number in numbers):
            for row, text in zip(cells, aligned_numbers(numbers), strict=True):
                row[k] = text
    numeric = [
        any(isinstance(row[k], int | float) for row in rows) and not any(isinstance(row[k], str) for row in rows)
        for k in range(len(columns))
    ]
    heads = [printable(column) for column in columns]
    widths = [3 + max(cell_len(text) for text in (head, *(row[k] for row in cells))) for k, head in enumerate(heads)]
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    room = console.width if console.is_terminal else sum(widths) + 8
    for chunk in _chunks(widths, room - 2):
        if chunk[0]:
            console.print()
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        numbered = len(chunk) < len(columns)
        if numbered:
            table.add_column("row", justify="right", no_wrap=True)
        for k in chunk:
            table.add_column(Text(heads[k]), justify="right" if numeric[k] else "left", no_wrap=True)
        for number, row in enumerate(cells):
            shown = [Text(row[k], style=_style(columns[k], row[k])) for k in chunk]
            table.add_row(*([Text(str(number))] if numbered else []), *shown)
        # wider than the terminal only where a single column is
        console.width = max(room, max(widths, default=0) + 10)
        console.print(table, soft_wrap=False, crop=False)


def _style(column: str, text: str) -> str:
    return "" if column != "status" or not text else "green" if text == "CONVERGED" else "red"


def _chunks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return the columns of each table; where there are several, each also has a column of row numbers."""
    if sum(widths) <= room:
        return [list(range(len(widths)))]
    chunks: list[list[int]] = []
    left = 0
    for k, width in enumerate(widths):
        if not chunks or width > left:
            chunks.append([])
            left = room - 6
        chunks[-1].append(k)
        left -= width
    return chunks
