"""Tables on a terminal: text is broken into lines, and columns that find no room go below, under the names of their rows."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from ctmc.cli.output import display
from ctmc.errors import printable

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


_NARROWEST = 24
"""Text that is broken into lines keeps this width."""

_LONGEST = 32
"""Words that are longer are broken, too."""

_COMPONENTS = 30
"""Vectors of more are shown by their least and largest component."""


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
    texts = [[head, *(row[k] for row in cells)] for k, head in enumerate(heads)]
    widths = [3 + max(map(cell_len, column)) for column in texts]
    least = [
        min(width, 3 + max(map(cell_len, (column[0], "x" * _NARROWEST, *_words(column[1:])))))
        if any(" " in text for text in column[1:]) and not number
        else width
        for width, column, number in zip(widths, texts, numeric, strict=True)
    ]
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    room = console.width if console.is_terminal else sum(widths) + 8
    names = [row[0] for row in cells]
    named = bool(names) and len(set(names)) == len(names) and 2 * least[0] < room
    keys, first = ([], 6) if not named else ([0], least[0])
    for chunk in _chunks(least, room - 2, first, named):
        if chunk[0]:
            console.print()
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        numbered = len(chunk) < len(columns) and not named
        shown = [*(k for k in keys if k not in chunk), *chunk]
        taken = _broken([widths[k] for k in shown], [least[k] for k in shown], room - 2 - (6 if numbered else 0))
        if numbered:
            table.add_column("row", justify="right", no_wrap=True)
        for k, width in zip(shown, taken, strict=True):
            table.add_column(
                Text(heads[k]),
                justify="right" if numeric[k] else "left",
                no_wrap=width >= widths[k],
                overflow="fold",
                width=None if width >= widths[k] else width - 3,
            )
        for number, row in enumerate(cells):
            if chunk[0] and not any(row[k] for k in chunk):
                continue  # nothing that the tables above do not say
            texts_shown = [Text(row[k], style=_style(columns[k], row[k])) for k in shown]
            table.add_row(*([Text(str(number))] if numbered else []), *texts_shown)
        # wider than the terminal only where a single word is
        console.width = max(room, sum(taken) + 10)
        if console.is_terminal:
            console.print(table, soft_wrap=False, crop=False)
            continue
        with console.capture() as written:  # without the spaces that fill the last column
            console.print(table, soft_wrap=False, crop=False)
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in written.get().splitlines())


def _words(texts: Sequence[str]) -> list[str]:
    return [word[:_LONGEST] for text in texts for word in text.split()]


def print_facts(rows: Sequence[tuple[str, Any]]) -> None:
    """Write names and values in two aligned columns; on a terminal long values go on under their beginning."""
    import shutil
    import textwrap

    width = max((len(printable(name)) for name, _ in rows), default=0)
    room = shutil.get_terminal_size().columns - width - 2
    for name, value in rows:
        text = printable(display(value))
        lines = [text]
        if sys.stdout.isatty() and room >= _NARROWEST:
            lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
        for k, line in enumerate(lines):
            sys.stdout.write(f"{'' if k else printable(name):<{width}}  {line}".rstrip() + "\n")


def extremes(rows: Sequence[Sequence[Any]], column: int) -> tuple[list[Sequence[Any]], list[str]]:
    """Keep of each long vector the rows with the least and the largest number in a column; return also the names of those.

    Examples
    --------
    >>> extremes([["jobs", 2.5], *([f"queue_length[{k}]", (k - 15) ** 2] for k in range(31))], 1)
    ([['jobs', 2.5], ['queue_length[15]', 0], ['queue_length[0]', 225]], ['queue_length'])
    """
    groups: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        groups.setdefault(str(row[0]).partition("[")[0], []).append(row)
    kept: list[Sequence[Any]] = []
    long = [name for name, group in groups.items() if len(group) > _COMPONENTS]
    for name, group in groups.items():
        numbers = [row[column] for row in group]
        ends = [group[numbers.index(min(numbers))], group[numbers.index(max(numbers))]]
        kept += ends if name in long else group
    return kept, long


def _style(column: str, text: str) -> str:
    return "" if column != "status" or not text else "green" if text == "CONVERGED" else "red"


def _chunks(widths: Sequence[int], room: int, first: int, named: bool) -> list[list[int]]:
    """Return the columns of each table; where there are several, each has one of width `first` before them.

    It has the names of the rows, which are column 0, or their numbers.
    """
    if sum(widths) <= room:
        return [list(range(len(widths)))]
    chunks: list[list[int]] = []
    left = 0
    for k, width in enumerate(widths):
        if not chunks or width > left:
            chunks.append([])
            left = room - (first if k or not named else 0)
        chunks[-1].append(k)
        left -= width
    return chunks


def _broken(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths of columns that fit: those of text that can be broken share what is left, the narrowest first served.

    Examples
    --------
    >>> _broken([10, 100, 40], [10, 27, 27], 77)
    [10, 27, 40]
    """
    taken = [min(pair) for pair in zip(widths, least, strict=True)]
    left = room - sum(taken)
    for k in sorted(range(len(taken)), key=lambda k: widths[k]):
        more = max(min(widths[k] - taken[k], left), 0)
        taken[k] += more
        left -= more
    return taken
