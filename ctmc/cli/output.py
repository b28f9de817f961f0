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
        from ctmc.cli.tables import print_facts

        print_facts(rows)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, aligned: bool = False) -> None:
        """Write a table, as CSV if --csv was given; `aligned`: the numbers of a column have the same number of decimals.

        On a terminal that is too narrow text is broken into lines, and columns go into several tables below each other, each
        with the name of the row, or its number; elsewhere lines are as long as they must be.
        """
        if self.csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerows([list(map(csv_cell, row)) for row in (columns, *rows)])
            return
        from ctmc.cli.tables import print_table

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
