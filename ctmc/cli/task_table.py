"""The live table of a run in parallel: what is running, how much has ended, and how long the rest may take."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from ctmc.cli.output import Output
from ctmc.cli.progress import duration
from ctmc.errors import printable

_INTERVAL = 0.2
_SHOWN = 8
"""Most running tasks that are named."""


class TaskTable:
    """A table that is written over and over; it exists only on a terminal.

    Parameters
    ----------
    output : Output
    """

    def __init__(self, output: Output) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.active = console.is_terminal and not console.is_dumb_terminal and not output.quiet
        self._begin = time.perf_counter()
        self._shown = -math.inf
        self._output = output
        self._live = Live(console=console, auto_refresh=False, transient=True)
        if self.active:
            output.progress = self

    def show(self, running: Sequence[str], finished: int, failed: int, total: int) -> None:
        """Show where the run is; most calls only look at the clock."""
        now = time.perf_counter() - self._begin
        if not self.active or now - self._shown < _INTERVAL:
            return
        self._shown = now
        if not self._live.is_started:
            self._live.start()
        self._live.update(task_table(running, finished, failed, total, now), refresh=True)

    def clear(self) -> None:
        """Remove the table, so that something else can be written; `show` brings it back."""
        self._shown = -math.inf
        if self._live.is_started:
            self._live.stop()

    def close(self) -> None:
        """Remove the table for good."""
        self.clear()
        if self.active:
            self.active = False
            self._output.progress = None


def task_table(running: Sequence[str], finished: int, failed: int, total: int, seconds: float) -> Any:
    """Return the table: how many tasks have ended so far, drawn on to the time that is left, and the names of those running."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for head in ("running", "finished", "failed", "time left"):
        table.add_column(head, no_wrap=True, justify="left" if head == "running" else "right")
    left = duration(seconds * (total - finished) / finished) if finished else "?"
    names = [*running[:_SHOWN], *([f"and {len(running) - _SHOWN:,} more"] if len(running) > _SHOWN else [])] or [""]
    facts = [f"{finished:,} of {total:,}", f"{failed:,}", left]
    for k, name in enumerate(names):
        table.add_row(Text(printable(name)), *([] if k else map(Text, facts)))
    return table
