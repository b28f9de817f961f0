"""The time that making compiled loops takes: once on a machine, and no part of a solve."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event


class Compiling(event.Listener):
    """Adds up the time from the beginning to the end of each compilation, those within another with it.

    Parameters
    ----------
    began, ended : callable
        Called at the beginning and at the end.

    Attributes
    ----------
    seconds : float
    """

    def __init__(self, began: Callable[[], object], ended: Callable[[], object]) -> None:
        self.began, self.ended = began, ended
        self.seconds = 0.0
        self._depth, self._since = 0, 0.0

    def on_start(self, event: Any) -> None:
        """Take note of a beginning."""
        if self._depth == 0:
            self._since = time.perf_counter()
            self.began()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Take note of an end."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._since
            self.ended()


@contextmanager
def compiling(began: Callable[[], object], ended: Callable[[], object]) -> Iterator[Compiling]:
    """Watch for loops that are compiled, in this process and in this context; those that come out of the cache are none.

    Parameters
    ----------
    began, ended : callable
        Called at the beginning and at the end of each.

    Examples
    --------
    >>> import numba
    >>> told = []
    >>> with compiling(lambda: told.append("began"), lambda: told.append("ended")) as watch:
    ...     _ = numba.njit(lambda x: x + 1)(1.0)
    >>> told, watch.seconds > 0
    (['began', 'ended'], True)
    """
    watch = Compiling(began, ended)
    with event.install_listener("numba:compile", watch):
        yield watch
