"""The questions that can be asked of a model.  A tolerance belongs to the question, whichever solver answers it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ctmc.errors import ModelError
from ctmc.model.absorption import class_weights
from ctmc.model.distribution import Distribution, distribution
from ctmc.model.generator import Generator
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.qbd import QBD
from ctmc.model.summary import Rows, Summarised


@dataclass(frozen=True, eq=False, repr=False)
class Stationary(Summarised):
    """The long-run distribution: pi Q = 0, pi 1 = 1, pi >= 0.

    Parameters
    ----------
    model : Generator, QBD or LevelDependentQBD
    tolerance : float
        Largest accepted defect ||pi Q||_1 / sum_i pi_i q_i, relative to the probability flow; default 1e-12.
    initial : state, mapping, vector or Distribution, optional
        Where the chain starts; only needed where it has several recurrent classes.  Default: the model's own.
    """

    model: Generator | QBD | LevelDependentQBD
    tolerance: float = 1e-12
    initial: Any = None

    def __post_init__(self) -> None:
        _check_model(self.model, (Generator, QBD, LevelDependentQBD))
        _check_tolerance(self.tolerance)
        if isinstance(self.model, Generator):
            _set_initial(self)
        elif self.initial is not None:
            raise ModelError(
                "initial is given for a QBD; allowed is none: its stationary distribution does not depend on it."
            )

    @cached_property
    def class_weights(self) -> tuple[np.ndarray, float]:
        """Probability to end in each recurrent class of a Generator, and a bound on the L1 error of these; found once."""
        assert isinstance(self.model, Generator)
        return class_weights(self.model, self.initial.dense(self.model.size))

    def _summary(self) -> tuple[str, Rows]:
        return "Stationary", [("tolerance", self.tolerance), *_model_rows(self.model)]


@dataclass(frozen=True, eq=False, repr=False)
class Transient(Summarised):
    """The distributions at given times: p(t) = p(0) exp(Q t).

    Parameters
    ----------
    model : Generator
    initial : state, mapping, vector or Distribution
        Where the chain starts; default: the model's own initial distribution.
    times : sequence of float
        Ascending, >= 0, in the model's unit of time.
    tolerance : float
        Largest accepted defect max_k ||p(t_k) - p(0) - L(t_k) Q||_1, with L the integral of p; default 1e-10.
    """

    model: Generator
    initial: Any = None
    times: Any = ()
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        _check_model(self.model, (Generator,))
        _check_tolerance(self.tolerance)
        _set_initial(self)
        if self.initial is None:
            raise ModelError("initial is missing and the model has none; give a state, e.g. initial=(0, 0, 0).")
        try:
            times = np.atleast_1d(np.array(self.times, dtype=np.float64))
        except (TypeError, ValueError):
            times = np.empty(0)
        if (
            times.ndim != 1
            or not times.size
            or not np.isfinite(times).all()
            or times[0] < 0
            or (np.diff(times) <= 0).any()
        ):
            raise ModelError(f"times is {self.times!r}; allowed are one or more finite times >= 0, ascending.")
        times.flags.writeable = False
        object.__setattr__(self, "times", times)

    def _summary(self) -> tuple[str, Rows]:
        times = ", ".join(f"{time:g}" for time in self.times[:8]) + (", .." if len(self.times) > 8 else "")
        return "Transient", [("times", times), ("tolerance", self.tolerance), *_model_rows(self.model)]


Problem = Stationary | Transient
PROBLEMS: dict[str, type[Stationary] | type[Transient]] = {"stationary": Stationary, "transient": Transient}
"""The problems by the names that studies and the command line use."""


def _model_rows(model: Generator | QBD | LevelDependentQBD) -> Rows:
    title, rows = model._summary()
    return [("model", title), *rows]


def _check_model(model: Any, allowed: tuple[type, ...]) -> None:
    if not isinstance(model, allowed):
        names = " or ".join(kind.__name__ for kind in allowed)
        hint = "; queue.truncate(levels=..) makes one of a QBD" if isinstance(model, QBD | LevelDependentQBD) else ""
        raise ModelError(f"model is a {type(model).__name__}; allowed is a {names}{hint}.")


def _check_tolerance(tolerance: Any) -> None:
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float | np.number) or not 0 < tolerance < 1:
        raise ModelError(f"tolerance is {tolerance!r}; allowed is a number between 0 and 1.")


def _set_initial(problem: Any) -> None:
    given = problem.model.initial if problem.initial is None else problem.initial
    chosen: Distribution | None = None if given is None else distribution(problem.model.space, given)
    object.__setattr__(problem, "initial", chosen)
