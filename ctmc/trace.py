"""The one stopping rule of all iterative methods, with the history of the defect."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import numpy as np

from ctmc.errors import ModelError
from ctmc.model.generator import ProductCounter
from ctmc.solution import HISTORY, Status

Monitor = Callable[[int, float], object]

_log = logging.getLogger("ctmc.trace")
_PATIENCE = 1000
_PROGRESS = 0.999


class Trace:
    """Watches an iterative solver; `finished` is its only stopping rule.

    It ends when the defect is within the tolerance, at the iteration or time limit, at a defect that is not a finite
    number, when the monitor returns true, or by stagnation: the smallest defect has not fallen by a thousandth in the
    last half of the iterations (and in at least 1000 of them).

    Parameters
    ----------
    tolerance : float
        Of the problem.
    start : ndarray, optional
        First iterate, in place of the solver's own.
    time_limit : float, optional
        Seconds.
    monitor : callable, optional
        ``monitor(iteration, defect)``; returning true stops the solve.
    counter : ProductCounter, optional
        Of the model's view.
    """

    def __init__(
        self,
        tolerance: float,
        *,
        start: np.ndarray | None = None,
        time_limit: float | None = None,
        monitor: Monitor | None = None,
        counter: ProductCounter | None = None,
    ) -> None:
        if time_limit is not None and not time_limit > 0:
            raise ModelError(f"time_limit is {time_limit!r}; allowed is a positive number of seconds.")
        self.tolerance = tolerance
        self.time_limit = time_limit
        self.monitor = monitor
        self.status = Status.BREAKDOWN  # until something was seen
        self._start = start
        self._counter = counter or ProductCounter()
        self._begin = time.perf_counter()
        self._records: list[tuple[int, float, int, float]] = []
        self._iteration = -1
        self._best = math.inf
        self._best_iteration = 0

    def start(self, default: np.ndarray) -> np.ndarray:
        """Return the first iterate: the user's (a copy), or the default."""
        if self._start is None:
            return default
        if self._start.shape != default.shape or not np.isfinite(self._start).all() or (self._start < 0).any():
            raise ModelError(
                f"start has shape {self._start.shape}; allowed is a vector of {default.shape[0]} finite numbers >= 0."
            )
        total = self._start.sum()
        if not total > 0:
            raise ModelError("start is zero everywhere; allowed is a vector with a positive sum.")
        return np.asarray(self._start / total * default.sum())

    @property
    def elapsed(self) -> float:
        """Seconds since the solve began."""
        return time.perf_counter() - self._begin

    @property
    def remaining(self) -> float | None:
        """Seconds left, or None without a limit."""
        return None if self.time_limit is None else max(self.time_limit - self.elapsed, 1e-3)

    @property
    def iteration(self) -> int:
        """Number of the last recorded iteration."""
        return max(self._iteration, 0)

    def finished(
        self,
        defect: float,
        *,
        iterate: np.ndarray | None = None,
        limit: int,
        iterations: int = 1,
        stagnates: bool = True,
    ) -> bool:
        """Record the defect of the current iterate, and return whether to stop.

        Parameters
        ----------
        defect : float
            In the measure of the problem's certificate; the first call is for the start (iteration 0).
        iterate : ndarray, optional
            The current iterate.
        limit : int
            Iteration limit of the solver.
        iterations : int
            How many iterations were made since the last call.
        stagnates : bool
            False for a method whose defect stays put for a long while before it falls.
        """
        self._iteration = 0 if self._iteration < 0 else self._iteration + iterations
        iteration, defect = self._iteration, float(defect)
        self._records.append((iteration, self.elapsed, self._counter.products, defect))
        if defect < _PROGRESS * self._best:
            self._best, self._best_iteration = defect, iteration
        stop = self.monitor is not None and bool(self.monitor(iteration, defect))
        if not math.isfinite(defect):
            self.status = Status.NOT_FINITE
        elif defect <= self.tolerance:
            self.status = Status.CONVERGED
        elif stop:
            self.status = Status.STOPPED
        elif iteration >= limit:
            self.status = Status.ITERATION_LIMIT
        elif self.time_limit is not None and self.elapsed > self.time_limit:
            self.status = Status.TIME_LIMIT
        elif stagnates and iteration - self._best_iteration >= max(_PATIENCE, iteration // 2):
            self.status = Status.STAGNATED
        else:
            return False
        _log.debug("%s after %d iterations, defect %.3g", self.status.name, iteration, defect)
        return True

    @property
    def history(self) -> np.ndarray:
        """The record so far: iteration, seconds, products, defect."""
        return np.array(self._records, dtype=HISTORY)
