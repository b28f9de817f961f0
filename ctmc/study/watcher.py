"""Who is told what a run does, and may end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Monitor = Callable[[int, float], object]


class Watcher:
    """Is told what a run does; this one keeps it to itself."""

    def step(self, number: int, total: int, label: str, tolerance: float | None) -> Monitor | None:
        """Take note that a step begins; the monitor, if any, goes to `ctmc.solve`."""
        return None

    def news(self, text: str) -> None:
        """Take note of one line of news."""

    def stopped(self) -> bool:
        """Return whether the run is to end."""
        return False

    def tasks(self, running: Sequence[str], finished: int, failed: int, total: int) -> None:
        """Take note of where a run in parallel is; called a few times a second."""

    def finished(self, label: str, seconds: float, failed: bool) -> None:
        """Take note that a task of a run in parallel has ended, after `seconds` of work."""
