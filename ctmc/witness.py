"""The certificate of answers over time: each is checked as a solver gets there, read, and let go.

y(t) - y(0) - Y(t) A = 0, with Y the integral of y, is the equation itself, once integrated; both vectors come from the solver and
the product is recomputed.  So distributions need not be kept to be certified.
"""

from __future__ import annotations

import math

import numpy as np

from ctmc.certificate import (
    MASS_TOLERANCE,
    Certificate,
    agreed,
    negative,
    verdict,
    wrong_distribution,
    wrong_vector,
)
from ctmc.checkpoint import Run
from ctmc.errors import StorageError
from ctmc.evolution import Evolution, rounding_floor
from ctmc.solution import Status


class Witness:
    """Sees y and its integral at each time of an `Evolution`, and keeps what was asked for.

    Parameters
    ----------
    evolution : Evolution

    Attributes
    ----------
    values : list of ndarray
        What `Reading.read` made of each time.
    errors : list of float
        Bounds that the solver has proven, in the norm of the evolution; infinite where it gave none.
    """

    def __init__(self, evolution: Evolution) -> None:
        self.evolution = evolution
        self.values: list[np.ndarray] = []
        self.errors: list[float] = []
        rate = evolution.model.uniformization_rate
        self.floor = rounding_floor(rate, float(evolution.times[-1]))
        self.accepted = evolution.accepted
        self.defect = 0.0
        self._wrong: Certificate | None = None
        self._room = np.empty_like(evolution.start)
        self._before: np.ndarray | None = None

    def reached(self, position: int, y: np.ndarray, integral: np.ndarray, error: float | None = None) -> None:
        """Check and read the answer at one time; positions come in order.

        Parameters
        ----------
        position : int
            Of the time.
        y, integral : ndarray, shape (blocks, n)
            y(t), and its integral over [0, t]; not kept.
        error : float, optional
            A proven bound on the error of y at all times up to this one, in the norm of the evolution.
        """
        evolution = self.evolution
        if position != len(self.values):
            raise ValueError(f"the solver answers for time {position}, where {len(self.values)} is next")
        time = float(evolution.times[position])
        for array in (y, integral):
            wrong = agreed(evolution.model.ranks, wrong_vector(array, evolution.start.shape))
            if wrong:
                self._wrong = self._wrong or wrong
                raise UselessAnswerError
        residual = evolution.change(integral, out=self._room)
        residual -= y
        residual += evolution.start
        self.defect = max(self.defect, evolution.norm(residual))
        if not evolution.backward and self._wrong is None:
            self._wrong = self._check_distribution(y[0], integral[0], time)
        bound = math.inf if error is None else float(error)
        if error is not None and not bound <= self.accepted and self._wrong is None:
            reason = f"the method's own error bound {bound:.2g} is not within {self.accepted:.2g}."
            self._wrong = Certificate(self.defect, Status.INACCURATE, reason, max(bound, self.floor))
        # what is proven leaves rounding out, which is on top of it, where that is not more than is asked for
        self.errors.append(max(bound, min(bound + self.floor, self.accepted)))
        self.values.append(np.array(evolution.reading.read(y, integral, time, evolution.backward)))

    def _check_distribution(self, p: np.ndarray, integral: np.ndarray, time: float) -> Certificate | None:
        ranks = self.evolution.model.ranks
        accepted = self.accepted * max(time, 1 / self.evolution.model.uniformization_rate)
        mass = ranks.total(float(integral.sum()))
        if abs(mass - time) > accepted:
            reason = f"the integral up to t = {time:g} has mass {mass!r}, not t."
            return Certificate(self.defect, Status.INACCURATE, reason)
        wrong = wrong_distribution(p, self.defect, max(MASS_TOLERANCE, self.accepted), ranks) or negative(
            integral, self.defect, ranks
        )
        if wrong:
            return wrong
        if len(self.evolution.times) == 1:
            return None
        # what is spent in a state never becomes less; rounding of the sums behind it is relative to the time
        if self._before is not None and ranks.largest(float((self._before - integral).max(initial=0.0))) > accepted:
            reason = f"the integral up to t = {time:g} is smaller than an earlier one in some state."
            return Certificate(self.defect, Status.INACCURATE, reason)
        self._before = integral.copy()
        return None

    @property
    def fine(self) -> bool:
        """Whether nothing was wrong so far."""
        return self._wrong is None

    def seen(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Return what a checkpoint needs of the times so far, as arrays and numbers."""
        arrays = {"errors": np.array(self.errors)}
        if self.values:
            arrays["values"] = np.array(self.values)
        return arrays, {"defect": self.defect}

    def restore(self, run: Run) -> None:
        """Take over what another witness has seen of the same evolution.

        Raises
        ------
        StorageError
            If it does not fit the times and numbers that are asked for.
        """
        errors, values = run.arrays.get("errors"), run.arrays.get("values", np.empty(0))
        if errors is None or errors.shape != values.shape[:1] or len(errors) > len(self.evolution.times):
            raise StorageError("the checkpoint does not have an answer and a bound for each time; allowed are both.")
        for name in ("y", "integral"):
            if run.status is None and run.arrays.get(name, errors).shape != self.evolution.start.shape:
                raise StorageError(
                    f"the {name} of the checkpoint does not fit the model; allowed is one for each state."
                )
        self.values, self.errors = list(values), errors.tolist()
        self.defect = float(run.numbers.get("defect", math.nan))
        if "integral" in run.arrays and not self.evolution.backward and len(self.evolution.times) > 1:
            self._before = run.arrays["integral"][0]

    def certificate(self) -> Certificate:
        """Return the verdict on what was seen."""
        if self._wrong is not None:
            return self._wrong
        missing = len(self.evolution.times) - len(self.values)
        if missing:
            time = self.evolution.times[len(self.values)]
            return Certificate(math.nan, Status.BREAKDOWN, f"the solver gave no answer for t = {time:g}.")
        bound = max(self.errors)
        limit = (
            f"the rounding floor {self.floor:.2g}"
            if self.floor > self.evolution.tolerance
            else f"{self.evolution.tolerance:g}"
        )
        return verdict(self.accepted, self.defect) or Certificate(
            self.defect,
            Status.CONVERGED,
            f"the defect {self.defect:.2g} is within {limit}.",
            bound if math.isfinite(bound) else None,
        )


class UselessAnswerError(Exception):
    """What the solver gave are no vectors of finite numbers; the witness has the verdict."""
