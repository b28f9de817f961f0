"""The one stopping rule of all iterative methods, with the history of the defect."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ctmc.checkpoint import Keeper, Run
from ctmc.errors import ModelError, shown
from ctmc.model.generator import ProductCounter
from ctmc.model.parameters import check_tolerance, real_number
from ctmc.ranks import ALONE, Ranks
from ctmc.solution import HISTORY, Status

Monitor = Callable[[int, float], object]

_log = logging.getLogger("ctmc.trace")
_SMALL = 1e-9
"""Below this a defect that stays put has met rounding; above, probability may still be on its way through a long chain."""
_PATIENCE = {True: 1000, False: 10_000}
_PROGRESS = 0.999


def check_time_limit(time_limit: Any) -> None:
    """Raise `ModelError` unless the limit is None or a positive number of seconds."""
    if time_limit is None:
        return
    real_number("time_limit", time_limit, lambda value: value > 0, "a positive number of seconds")


def checked_start(given: Any, size: int, ranks: Ranks = ALONE) -> np.ndarray:
    """Return a first iterate, or the own part of one, as a float64 vector of this size.

    Raises
    ------
    ModelError
        If it is anything but `size` finite numbers >= 0 with a positive, finite sum.
    """
    try:
        start = np.asarray(None if np.ma.is_masked(given) else given)
    except ValueError:
        start = np.asarray(None)
    if start.dtype.kind not in "iuf":
        raise ModelError(f"start is {shown(given)}; allowed are {size} real numbers >= 0.")
    start = start.astype(np.float64, copy=False)
    if start.shape != (size,):
        raise ModelError(f"start has shape {start.shape}; allowed is ({size},).")
    bad = ~((start >= 0) & np.isfinite(start))
    if bad.any():
        i = int(np.argmax(bad))
        raise ModelError(f"start[{i}] is {start[i]}; allowed are finite numbers >= 0.")
    with np.errstate(over="ignore"):
        total = ranks.total(start.sum())
    if not 0 < total < np.inf:
        raise ModelError(f"start sums to {total}; allowed is a positive, finite sum.")
    return start


class Trace:
    """Watches an iterative solver; `finished` is its only stopping rule.

    It ends when the defect is within the tolerance, at the iteration or time limit, at a defect that is not a finite
    number, when the monitor returns true, or by stagnation: the smallest defect has not fallen by a thousandth in the
    last half of the iterations, and in at least 1000 of them, 10,000 while it is above 1e-9.

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
    support : ndarray of bool, optional
        The states that may have probability; a default first iterate is 0 elsewhere.
    reached : callable, optional
        Of questions about time: ``reached(k, y, integral, error)`` takes the answer for the k-th time, see `Witness.reached`.
    keeper : Keeper, optional
        Writes checkpoints of what `finished` shows.
    interrupted : Run, optional
        What an earlier solve has left; a solver takes it through `start` or `resumed`.
    ranks : Ranks
        The processes that share the model, which must stop at the same step.

    Attributes
    ----------
    warm : bool
        Whether the solver has taken the user's first iterate.
    """

    def __init__(
        self,
        tolerance: float,
        *,
        start: np.ndarray | None = None,
        time_limit: float | None = None,
        monitor: Monitor | None = None,
        counter: ProductCounter | None = None,
        support: np.ndarray | None = None,
        reached: Callable[..., None] | None = None,
        keeper: Keeper | None = None,
        interrupted: Run | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        check_tolerance(tolerance)
        check_time_limit(time_limit)
        self.tolerance = tolerance
        self.time_limit = time_limit
        self.monitor = monitor
        self.status = Status.BREAKDOWN  # until something was seen
        self._start = start
        self._support = support
        self.reached = reached or _nobody
        self._counter = counter or ProductCounter()
        self._begin = time.perf_counter()
        self._records: list[tuple[int, float, int, float]] = []
        self._iteration = -1
        self._best = math.inf
        self._best_iteration = 0
        self._keeper = keeper
        self._interrupted = interrupted
        self._goes_on = False
        self._seconds_before = 0.0
        self.warm = False
        self.ranks = ranks

    def start(self, default: np.ndarray) -> np.ndarray:
        """Return the first iterate: that of an interrupted solve, the user's (a copy), or the default."""
        if self._left_behind(default) is not None:
            return self.resumed(default)
        if self._support is not None:
            default = np.where(self._support, default, 0)
            default /= self.ranks.total(float(default.sum()))
        if self._start is None:
            return default
        first = checked_start(self._start, len(default), self.ranks)
        self.warm = True
        return np.asarray(first / self.ranks.total(first.sum()) * self.ranks.total(default.sum()))

    def resumed(self, first: np.ndarray) -> np.ndarray:
        """Return the iterate that an interrupted solve has left (a copy), or `first` where there is none of its shape.

        For methods whose unknowns are not the probabilities of all states; their history goes on.
        """
        left = self._left_behind(first)
        if left is None:
            return first
        self.go_on()
        return left.copy()

    def _left_behind(self, like: np.ndarray) -> np.ndarray | None:
        left: Any = None if self._interrupted is None else self._interrupted.arrays.get("iterate")
        if left is not None and self.ranks.count > 1:
            sizes = self.ranks.gathered(len(like))
            begin = sum(sizes[: self.ranks.rank])
            found: np.ndarray | None = left.part(begin, begin + len(like)) if left.shape == (sum(sizes),) else None
            return found
        return left if left is not None and left.shape == like.shape else None

    def go_on(self) -> None:
        """Continue the history of an interrupted solve; the next record replaces its last one, which is of the same iterate."""
        if self._interrupted is None or not len(self._interrupted.history):
            return
        history = self._interrupted.history
        self._goes_on, self._iteration = True, int(history["iteration"][-1])
        self._seconds_before = float(history["seconds"][-1])
        self._records = [(int(i), float(s), int(p), float(d)) for i, s, p, d in history[:-1]]
        for iteration, _, _, defect in self._records:
            self._note(iteration, defect)

    def _note(self, iteration: int, defect: float) -> None:
        if defect < _PROGRESS * self._best:
            self._best, self._best_iteration = defect, iteration

    @property
    def whole(self) -> bool:
        """Whether all states may have probability."""
        return self._support is None

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
        iterate: np.ndarray | Callable[[], np.ndarray] | None = None,
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
            The current iterate, or a function that gives it; what a checkpoint holds, and `start` or `resumed` give back.
        limit : int
            Iteration limit of the solver.
        iterations : int
            How many iterations were made since the last call.
        stagnates : bool
            False for a method whose defect stays put for a long while before it falls.
        """
        if self._goes_on:
            self._goes_on = False
            self._interrupted = None
        else:
            self._iteration = 0 if self._iteration < 0 else self._iteration + iterations
        iteration, defect = self._iteration, float(defect)
        self._records.append((iteration, self._seconds_before + self.elapsed, self._counter.products, defect))
        self._note(iteration, defect)
        stopped = self._ended(defect, iteration, limit, stagnates)
        if self._keeper is not None:
            ended = stopped and self.status in (Status.STOPPED, Status.TIME_LIMIT)
            self._keeper.look(iterate, lambda: self.history, self._counter.products, ended)
        return stopped

    def _ended(self, defect: float, iteration: int, limit: int, stagnates: bool) -> bool:
        stop = self.monitor is not None and bool(self.monitor(iteration, defect))
        late = self.time_limit is not None and self.elapsed > self.time_limit
        if self.ranks.count > 1:  # clocks and signals differ
            stop, late = self.ranks.largest(np.array([stop, late])) > 0
        if not math.isfinite(defect):
            self.status = Status.NOT_FINITE
        elif defect <= self.tolerance:
            self.status = Status.CONVERGED
        elif stop:
            self.status = Status.STOPPED
        elif iteration >= limit:
            self.status = Status.ITERATION_LIMIT
        elif late:
            self.status = Status.TIME_LIMIT
        elif stagnates and iteration - self._best_iteration >= max(_PATIENCE[self._best < _SMALL], iteration // 2):
            self.status = Status.STAGNATED
        else:
            return False
        _log.debug("%s after %d iterations, defect %.3g", self.status.name, iteration, defect)
        return True

    def expect(self, iterations: int) -> None:
        """Tell the monitor how many more iterations there may be at most, where a method knows it beforehand."""
        tell = getattr(self.monitor, "expect", None)
        if tell is not None:
            tell(self.iteration + iterations)

    @property
    def history(self) -> np.ndarray:
        """The record so far: iteration, seconds, products, defect."""
        return np.array(self._records, dtype=HISTORY)


def _nobody(position: int, y: np.ndarray, integral: np.ndarray, error: float | None = None) -> None:
    """Take an answer where nobody has asked for one."""
