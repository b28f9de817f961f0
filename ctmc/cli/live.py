"""A few lines on the terminal that are written over and over: what runs, what has ended, and how long it may still take."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence

from ctmc.cli.output import Output
from ctmc.cli.progress import duration
from ctmc.errors import printable

_INTERVAL = 0.25
_NAMED = 8
"""Most running steps that are named."""


class LiveTable:
    """Counts steps that may run several at once; on a terminal as lines in place, elsewhere as one line for each that ends.

    Parameters
    ----------
    output : Output
    what : str
        The plural of what is counted, such as "runs".
    shown : int
        How many of those that have ended stay in sight.
    """

    def __init__(self, output: Output, what: str, shown: int = 8) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.active = self.console.is_terminal and not self.console.is_dumb_terminal and not output.quiet
        self.output, self.what = output, what
        self.total = self.known = self.done = self.failed = 0
        self.running: dict[object, tuple[str, float]] = {}
        self.ended_lines: deque[str] = deque(maxlen=shown)
        self._begin = time.monotonic()
        self._shown = -1e9
        self._height = 0
        output.progress = self

    def planned(self, total: int, known: int) -> None:
        """Take note of the number of steps, and of how many of them are known from before."""
        self.total, self.known = total, known
        self._begin = time.monotonic()

    def began(self, key: object, label: str) -> None:
        """Take note that a step begins."""
        self.running[key] = (printable(label), time.monotonic())
        self.look(at_once=True)

    def ended(self, key: object, good: bool, line: str) -> None:
        """Take note that a step has ended, with what came of it."""
        self.running.pop(key, None)
        self.done += 1
        self.failed += not good
        if self.active:
            self.ended_lines.append(printable(line))
            self.look(at_once=True)
        else:
            self.output.news(f"{self.known + self.done}/{self.total}  {line}")

    def show(self, running: Sequence[str], finished: int, failed: int, total: int) -> None:
        """Show where steps are that somebody else counts; most calls only look at the clock."""
        now = time.monotonic()
        self.running = {label: self.running.get(label, (printable(label), now)) for label in running}
        self.done, self.failed, self.total = finished, failed, total
        self.look()

    def left(self) -> float | None:
        """Return the seconds that are left, as the steps so far have taken."""
        missing = self.total - self.known - self.done
        return (time.monotonic() - self._begin) * missing / self.done if self.done else None

    def look(self, *, at_once: bool = False) -> None:
        """Write the lines anew, not too often."""
        now = time.monotonic()
        if not self.active or (not at_once and now - self._shown < _INTERVAL):
            return
        self._shown = now
        left = self.left()
        head = f"{self.known + self.done} of {self.total} {self.what}"
        head += f", {self.known} known from before" if self.known else ""
        head += f", {self.failed} without an answer" if self.failed else ""
        head += f", about {duration(left)} left" if left else ""
        lines = [f"  {line}" for line in self.ended_lines]
        several = list(self.running.values())
        lines += [f"> {label}  {duration(now - since)}" for label, since in several[:_NAMED]]
        lines += [f"> and {len(several) - _NAMED:,} more"] if len(several) > _NAMED else []
        lines.append(head)
        width = max(self.console.width - 1, 1)
        text = "\n".join(line[:width] for line in lines)
        self.clear()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
        self._height = len(lines)

    def clear(self) -> None:
        """Remove the lines, so that something else can be written."""
        if self.active and self._height:
            sys.stderr.write(f"\x1b[{self._height}A\x1b[J")
            sys.stderr.flush()
            self._height = 0

    def close(self) -> None:
        """Remove the lines for good."""
        self.clear()
        self.active = False
        self.output.progress = None
