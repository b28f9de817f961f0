"""The progress line on the terminal: iteration, defect, and how long it may still take."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from ctmc.cli.output import Output
from ctmc.errors import printable

_INTERVAL = 0.1
_BAR = 20
_SHORTEST_BAR = 5
_WORTH_COUNTING = 0.05
"""Part of the steps from which on the time left is told."""
_WORTH_TELLING = 2.0
"""Seconds of compiling from which on it is said where they went."""


class Forecast:
    """Estimates the seconds that are left, by drawing the logarithm of the defect on against time.

    Examples
    --------
    >>> forecast = Forecast(1e-8)
    >>> for second in range(5):
    ...     forecast.add(float(second), 10.0 ** -second)
    >>> round(forecast.seconds_left(), 6)
    4.0
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self._first: float | None = None
        self._points: deque[tuple[float, float]] = deque(maxlen=200)

    def add(self, seconds: float, defect: float) -> None:
        """Add a measurement."""
        if defect > 0 and math.isfinite(defect):
            level = math.log10(defect)
            self._first = level if self._first is None else max(self._first, level)
            self._points.append((seconds, level))

    def fraction(self) -> float:
        """Return which part of the way from the first defect to the tolerance is done, 0 to 1."""
        if not self._points or self._first is None:
            return 0.0
        way = self._first - math.log10(self.tolerance)
        return min(max((self._first - self._points[-1][1]) / way, 0.0), 1.0) if way > 0 else 1.0

    def seconds_left(self) -> float | None:
        """Return the estimate, or None where the defect does not fall."""
        count = len(self._points)
        if count < 3:
            return None
        mean_time = sum(point[0] for point in self._points) / count
        mean_level = sum(point[1] for point in self._points) / count
        spread = sum((point[0] - mean_time) ** 2 for point in self._points)
        slope = sum((point[0] - mean_time) * (point[1] - mean_level) for point in self._points)
        if spread == 0 or slope >= 0:
            return None
        return max(self._points[-1][1] - math.log10(self.tolerance), 0.0) / (-slope / spread)


class Progress:
    """One line that is written over and over; it exists only on a terminal.  The cursor is never hidden.

    Parameters
    ----------
    output : Output
    label : str
        What is being done.
    tolerance : float
        Where the defect is to come.
    """

    def __init__(self, output: Output, label: str, tolerance: float) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.active = (
            self.console.is_terminal and not self.console.is_dumb_terminal and not output.quiet and output.speaker.leads
        )
        self.label = printable(label)
        self.forecast = Forecast(tolerance)
        self._begin = time.perf_counter()
        self._shown = -math.inf
        self._output = output
        self._watching = ExitStack()
        self._compiling = None
        if self.active:
            from ctmc.comparison.compiling import compiling

            output.progress = self
            self._show("")
            self._compiling = self._watching.enter_context(
                compiling(lambda: self._show("  compiling loops, once on this machine"), lambda: self._show(""))
            )

    def __call__(self, iteration: int, defect: float) -> None:
        """Show the state of an iterative method; most calls only look at the clock."""
        now = time.perf_counter() - self._begin
        if not self.active or now - self._shown < _INTERVAL:
            return
        self._shown = now
        self.forecast.add(now, defect)
        left = self.forecast.seconds_left()
        filled = round(_BAR * self.forecast.fraction())
        bar = ("━" if self.console.encoding.startswith("utf") else "=") * filled
        about = f"  about {duration(left)} left" if left is not None else ""
        self._show(f"  iteration {iteration:,}  defect {defect:.1e}{about}", bar)

    def count(self, done: int, total: int, news: str) -> None:
        """Show how many of so many steps are done; the time left is drawn on from those."""
        now = time.perf_counter() - self._begin
        if not self.active or now - self._shown < _INTERVAL:
            return
        self._shown = now
        # the first steps compile, open files and so on
        about = f"  about {duration(now * (total - done) / done)} left" if done >= _WORTH_COUNTING * total > 0 else ""
        filled = ("━" if self.console.encoding.startswith("utf") else "=") * round(_BAR * done / max(total, 1))
        self._show(f"  {done:,} of {total:,}{about}  {news}", filled)

    def _show(self, text: str, bar: str | None = None) -> None:
        """Write the line; where it is too long the bar becomes shorter, and then the end is left out."""
        from rich.cells import cell_len
        from rich.text import Text

        room = self.console.width - 1 - cell_len(self.label)
        if bar is not None:
            length = min(_BAR, room - cell_len(text) - 2)
            if length >= _SHORTEST_BAR:
                text = f"  {bar[: round(len(bar) * length / _BAR)]:<{length}}{text}"
        line = Text.assemble((self.label, "bold"), text)
        line.truncate(max(self.console.width - 1, 1))
        self.clear()
        self.console.print(line, end="", soft_wrap=True)
        self.console.file.flush()

    def clear(self) -> None:
        """Remove the line, so that something else can be written."""
        if self.active:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def close(self) -> None:
        """Remove the line for good."""
        self.clear()
        self.active = False
        self._output.progress = None
        self._watching.close()
        if self._compiling is not None and self._compiling.seconds >= _WORTH_TELLING:
            self._output.news(
                f"Note: of this time {duration(self._compiling.seconds)} went into compiling loops, which are kept: "
                "the next run takes less."
            )


def duration(seconds: float) -> str:
    """Return a duration as people say it.

    Examples
    --------
    >>> duration(7.2), duration(200), duration(9000)
    ('8 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class ProgressMonitor:
    """A monitor for `ctmc.solve` that shows progress and ends the solve when a signal has come.

    Where the method knows how many iterations it may need, these are counted against it: the defect of a series stays put
    until its last terms.
    """

    def __init__(
        self, progress: Progress, stopped: Callable[[], bool], wants_checkpoint: Callable[[], bool] | None = None
    ) -> None:
        self._progress, self._stopped = progress, stopped
        self.wants_checkpoint = wants_checkpoint
        self._expected: int | None = None

    def expect(self, iterations: int) -> None:
        """Take the largest number of iterations there may be."""
        self._expected = iterations

    def __call__(self, iteration: int, defect: float) -> bool:
        """Show the state of the method; return whether to stop."""
        if self._expected is None:
            self._progress(iteration, defect)
        else:
            self._progress.count(iteration, max(self._expected, iteration), f"iterations  defect {defect:.1e}")
        return self._stopped()


def monitor_for(
    progress: Progress, stopped: Callable[[], bool], wants_checkpoint: Callable[[], bool] | None = None
) -> ProgressMonitor:
    """Return a monitor for `ctmc.solve`."""
    return ProgressMonitor(progress, stopped, wants_checkpoint)
