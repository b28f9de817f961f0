"""What a long solve leaves behind, so that it can go on: where it is written, how often, and what belongs to it.

A solve is a sequence of runs of a solver: one for each recurrent class, each moment, or each reward.  Of a finished run the
claim is kept, and looked at by the certificate again when the solve goes on; of the one under way the iterate, or for questions
about time what was reached last.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ctmc.errors import CTMCError, ModelError, shown
from ctmc.model.parameters import real_number
from ctmc.ranks import ALONE, Ranks
from ctmc.solution import HISTORY, Outcome, Status

_log = logging.getLogger("ctmc.checkpoint")


@dataclass(frozen=True)
class Checkpoint:
    """Where a solve writes what it has reached, how often, and whether it goes on from there.

    The file is written when the interval is over, when the solve is stopped or meets its time limit, and when the monitor
    asks for it (``monitor.wants_checkpoint()``); it is removed when the solve ends converged.  A file that cannot be written
    does not end the solve: it is noted, and tried again after the next interval.

    Parameters
    ----------
    path : path-like
        Only a checkpoint is ever replaced.
    minutes : float
        Between two checkpoints; 0 writes one at every step.
    resume : bool
        Go on from the file, which must belong to the same question, solver, options and version.

    Raises
    ------
    ModelError
        Names the field.

    Examples
    --------
    >>> Checkpoint("solve.checkpoint.h5", minutes=5).minutes
    5
    """

    path: str | os.PathLike[str]
    minutes: float = 10.0
    resume: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise ModelError(f"path is {shown(self.path)}; allowed is the path of a file.")
        real_number("minutes", self.minutes, lambda value: 0 <= value < math.inf, "a finite number of minutes >= 0")
        if not isinstance(self.resume, bool):
            raise ModelError(f"resume is {shown(self.resume)}; allowed are true and false.")


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a solver.

    Attributes
    ----------
    arrays : mapping of str to ndarray
        Finished: ``value``.  Under way: ``iterate``.  Over time: ``values``, ``errors``, ``y``, ``integral``.
    numbers : mapping of str to float
    history : ndarray of `HISTORY`
    status : Status or None
        None where it is under way.
    solver : str or None
    states : str
        Digest of the states that the equation is about; '' for all.
    """

    arrays: Mapping[str, np.ndarray]
    numbers: Mapping[str, float] = field(default_factory=dict)
    history: np.ndarray = field(default_factory=lambda: np.empty(0, HISTORY))
    status: Status | None = None
    solver: str | None = None
    states: str = ""


@dataclass(frozen=True, eq=False)
class Progress:
    """All that was reached: the runs so far, with seconds and products in all."""

    runs: tuple[Run, ...] = ()
    seconds: float = 0.0
    products: int = 0


class Keeper:
    """Keeps the runs of a solve, and writes them when it is time.

    Parameters
    ----------
    write : callable
        ``write(progress)`` puts all into the file.
    minutes : float
    before : Progress
        Where the solve goes on.
    wanted : callable, optional
        Tells whether a checkpoint is wanted now; asked at every step.
    ranks : Ranks
        The processes that share the model, which write together.
    """

    def __init__(
        self,
        write: Callable[[Progress], None],
        minutes: float,
        before: Progress | None = None,
        wanted: Callable[[], bool] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._write = write
        self._ranks = ranks
        self._interval = 60 * minutes
        self._wanted = wanted or (lambda: False)
        self._before = before or Progress()
        self._begin = self._last = time.monotonic()
        self._runs: list[Run] = []
        self._point: Callable[[], Run] | None = None
        self._useless = False
        self._states = ""
        self._reached = False
        self.written = 0
        self.failures = 0
        self.reason = ""
        self.kept = before is not None
        """Whether a method has shown anything that can be kept."""

    @property
    def seconds(self) -> float:
        """Seconds in all, those before included."""
        return self._before.seconds + time.monotonic() - self._begin

    def begin(self, states: str = "") -> Run | None:
        """Begin the next run; return what is known of it."""
        self._point, self._states, self._reached = None, states, False
        number = len(self._runs)
        if number >= len(self._before.runs):
            return None
        saved = self._before.runs[number]
        if saved.states != states:
            raise ModelError(
                "the checkpoint belongs to another target or other states to avoid; allowed is the question that was interrupted."
            )
        if saved.status is None:
            self._point = lambda: saved  # until there is something newer
        return saved

    def finish(self, outcome: Outcome, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]) -> None:
        """Keep the claim of a run that has ended."""
        history = np.empty(0, HISTORY) if outcome.history is None else outcome.history
        self._runs.append(Run(arrays, numbers, history, outcome.status, outcome.solver, self._states))
        self._point = None

    def give_up(self) -> None:
        """Write nothing more: a run has ended with what cannot be kept."""
        self._useless = True

    def reached(self, point: Callable[[], Run]) -> None:
        """Take the newest time of a run over time, from which it can go on."""
        self.kept = self._reached = True
        self._point = point

    def look(
        self,
        iterate: np.ndarray | Callable[[], np.ndarray] | None,
        history: Callable[[], np.ndarray],
        products: int,
        ended: bool,
    ) -> None:
        """Write a checkpoint if it is time, or the run has been ended from outside.

        Parameters
        ----------
        iterate : ndarray or None
            As for `Trace.finished`; not copied; or a function that gives it.
        history : callable
            Gives the record so far.
        products : int
            In all.
        ended : bool
        """
        self.kept = self.kept or iterate is not None
        wanted = self._wanted()
        due = self._ranks.any(ended or wanted or time.monotonic() - self._last >= self._interval)
        if not due or self._useless:
            return
        point = None if self._point is None else self._point()
        if iterate is not None and not self._reached:
            array = iterate() if callable(iterate) else iterate
            point = Run({"iterate": array}, history=history(), states=self._states)
        if point is None and not self._runs:
            return
        runs = (*self._runs, *([] if point is None else [point]))
        try:
            self._write(Progress(runs, self.seconds, products))
            self.written += 1
        except CTMCError as error:  # hours of work are worth more than a file
            self.failures, self.reason = self.failures + 1, str(error)
            _log.warning("The checkpoint was not written, the solve goes on: %s", error)
        self._last = time.monotonic()
