"""Answers: what a solver claims (`Outcome`), and what the framework has verified (`Solution`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from ctmc.errors import ModelError, unknown_name
from ctmc.model import predicate
from ctmc.model.level_dependent import LevelDistribution
from ctmc.model.phase_type import PhaseType
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.model.reward import Reward
from ctmc.model.summary import Rows, Summarised
from ctmc.problem import Problem, Transient

if TYPE_CHECKING:
    from ctmc.interval import Interval

HISTORY = np.dtype([("iteration", np.int64), ("seconds", np.float64), ("products", np.int64), ("defect", np.float64)])
"""One record per check of convergence."""

_LARGEST_MARGINAL = 1_000_000


class Status(Enum):
    """How a solve ended; `advice` is one sentence."""

    CONVERGED = "The defect, recomputed from the definition, is within the tolerance."
    ITERATION_LIMIT = "The iteration limit came first: raise it, start from this answer, or take another method."
    TIME_LIMIT = "The time limit came first: raise it, or start from this answer."
    STAGNATED = "The defect stopped falling: take another method or preconditioner, or a larger tolerance."
    BREAKDOWN = "The method broke down on this model: take another method."
    NOT_FINITE = "The answer has entries that are not finite numbers: take another method."
    STOPPED = "The user stopped it: start from this answer to go on."
    INACCURATE = "The answer does not stand up to the check: take a method without cancellation, such as gth."

    @property
    def advice(self) -> str:
        """What to do next, as a sentence."""
        return str(self.value)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a solver returns: a claim, to be verified.

    Attributes
    ----------
    value : ndarray, MatrixGeometric or LevelDistribution
        Stationary: shape (n,).  Transient: shape (times, n).
    status : Status
    history : ndarray of `HISTORY`, optional
        From `Trace`; direct methods have none.
    integrals : ndarray, shape (times, n), optional
        Transient: L(t_k), the integral of p over [0, t_k]; the certificate needs it.
    error_bound : float, optional
        A bound that the method proves before it starts, for the L1 error of any distribution.
    solver : str, optional
        The solver with its options as it ran, where an option is chosen by the model.
    """

    value: Any
    status: Status = Status.CONVERGED
    history: np.ndarray | None = None
    integrals: np.ndarray | None = None
    error_bound: float | None = None
    solver: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Summarised):
    """A verified answer; arrays are read-only.

    Attributes
    ----------
    problem : Stationary or Transient
    value : ndarray, MatrixGeometric or LevelDistribution
        Stationary: pi, shape (n,), in the order of the state space.  Transient: shape (times, n).  QBD: MatrixGeometric;
        LevelDependentQBD: LevelDistribution.
    status : Status
    reason : str
        One sentence on the status, with the numbers behind it.
    defect : float
        Recomputed by the framework from the definition of the problem.
    history : ndarray of records (iteration, seconds, products, defect)
    seconds : float
        Wall time of the solver and the certificate.
    iterations, products : int
        Steps, and products with the generator (a sweep counts as one), the certificate's included.
    solver : str
        The solver with its options.
    error_bound : float or None
        Bound on the L1 error where one is proven: a-priori bound or rounding floor, whichever is larger.
    intervals : mapping of str to Interval
        Of ``certify="strict"``: proven intervals of rewards and measures, by names as in `flat_measures`.
    """

    problem: Problem
    value: Any
    status: Status
    reason: str
    defect: float
    history: np.ndarray
    seconds: float
    products: int
    solver: str
    error_bound: float | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    _cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def iterations(self) -> int:
        """Number of steps of an iterative method, 0 for a direct one."""
        return int(self.history["iteration"][-1]) if len(self.history) else 0

    @property
    def converged(self) -> bool:
        """Whether the status is CONVERGED."""
        return self.status is Status.CONVERGED

    @property
    def model_hash(self) -> str | None:
        """Content hash of the model, where it was loaded from or saved to a file."""
        return self.problem.model.content_hash

    def _rewards(self, names: Sequence[str]) -> list[Reward]:
        known = self.problem.model.all_rewards
        for name in names:
            if name not in known:
                raise unknown_name("reward", name, known)
        return [known[name] for name in names]

    def expectations(self, names: Sequence[str]) -> dict[str, Any]:
        """Return several expected rewards in one pass over the states; see `expected`."""
        rewards = self._rewards(names)
        sums: list[Any] = [0.0] * len(rewards)
        for positions, states, weights in self.problem.model.weighted_slabs(self.value):
            for k, reward in enumerate(rewards):
                sums[k] = sums[k] + weights @ reward.evaluate(states, positions)
        return {
            name: float(total) if np.ndim(total) == 0 else np.asarray(total)
            for name, total in zip(names, sums, strict=True)
        }

    def expected(self, reward: str) -> Any:
        """Return the expectation of a named reward.

        Parameters
        ----------
        reward : str
            A reward of the model, or a variable of its states.

        Returns
        -------
        float, or ndarray
            Shape () or (length,) for a stationary distribution, (times,) or (times, length) for transient ones.

        Raises
        ------
        UnknownNameError
            If there is no such reward; close names are listed.
        """
        return self.expectations([reward])[reward]

    def probability(self, condition: str) -> Any:
        """Return the probability of a condition such as ``"jobs >= 10 and queue_length[0] < 3"``.

        Returns
        -------
        float, or ndarray of shape (times,)
        """
        parsed = predicate.parse(condition)
        model = self.problem.model
        known = {name for name in parsed.names if name not in model.labels}
        rewards = dict(zip(sorted(known), self._rewards(sorted(known)), strict=True))
        _refuse_averages(rewards)
        total: Any = 0.0
        for positions, states, weights in model.weighted_slabs(self.value):
            values = {name: reward.evaluate(states, positions) for name, reward in rewards.items()}
            values |= {name: member[positions] for name, member in model.labels.items()}
            # a condition without names still needs to know how many states there are
            holds = np.broadcast_to(parsed.evaluate(values or {"": np.zeros(len(states))}), len(states))
            total = total + weights @ holds
        return float(total) if np.ndim(total) == 0 else total

    def marginal(self, reward: str, index: int | None = None) -> np.ndarray:
        """Return the distribution of a reward that takes whole, non-negative values.

        Parameters
        ----------
        reward : str
        index : int, optional
            Component of a vector-valued reward.

        Returns
        -------
        ndarray, shape (largest value + 1,) or (times, largest value + 1)
            Entry k is the probability of the value k.  For a QBD, up to where the mass beyond is below 1e-20.
        """
        (chosen,) = self._rewards([reward])
        _refuse_averages({reward: chosen})
        lead = self.value.shape[:-1] if isinstance(self.value, np.ndarray) else ()
        result = np.zeros((*lead, 1))
        for positions, states, weights in self.problem.model.weighted_slabs(self.value):
            values = chosen.evaluate(states, positions)
            if values.ndim == 2 and index is None and values.shape[1] > 1:
                raise ModelError(
                    f"reward {reward!r} has {values.shape[1]} components; give index=0 to {values.shape[1] - 1}."
                )
            if index is not None and (values.ndim == 1 or not 0 <= index < values.shape[1]):
                allowed = "none" if values.ndim == 1 else f"0 to {values.shape[1] - 1}"
                raise ModelError(f"index {index} of reward {reward!r} is out of range; allowed is {allowed}.")
            column = values if values.ndim == 1 else values[:, index or 0]
            bad = (column != np.floor(column)) | (column < 0) | (column >= _LARGEST_MARGINAL)
            if bad.any():
                raise ModelError(
                    f"reward {reward!r} takes the value {float(column[np.argmax(bad)])!r}; a marginal needs whole values from "
                    f"0 to {_LARGEST_MARGINAL - 1:,}."
                )
            counts = column.astype(np.int64)
            more = int(counts.max()) + 1 - result.shape[-1]
            if more > 0:
                result = np.concatenate([result, np.zeros((*lead, more))], axis=-1)
            for row, weight in zip(result.reshape(-1, result.shape[-1]), np.atleast_2d(weights), strict=True):
                row += np.bincount(counts, weights=weight, minlength=len(row))
        return result

    def measures(self) -> dict[str, Any]:
        """Return the model's measures by name: a number, or an array with one number per server (or time).

        Stationary answers have the measures that the builder defines; others, and models without a builder, the
        expectations of all rewards.
        """
        if "measures" not in self._cache:
            model = self.problem.model
            if model.measures is not None and not isinstance(self.problem, Transient):
                found = dict(model.measures(self))
            else:
                found = self.expectations(list(model.all_rewards))
            self._cache["measures"] = found
        return dict(self._cache["measures"])

    def distribution(self, name: str) -> PhaseType:
        """Return the distribution of a random time that the model knows, such as ``"response_time"``.

        Returns
        -------
        PhaseType
            With mean, variance, cdf, density, quantiles and samples.

        Raises
        ------
        UnknownNameError
            If the model knows no such distribution; close names are listed.
        """
        known = getattr(self.problem.model, "distributions", {})
        if name not in known:
            raise unknown_name("distribution", name, known)
        if ("distribution", name) not in self._cache:
            self._cache["distribution", name] = known[name](self)
        found: PhaseType = self._cache["distribution", name]
        return found

    def _summary(self) -> tuple[str, Rows]:
        rows: list[tuple[str, object]] = [
            ("status", f"{self.status.name}: {self.reason}"),
            ("defect", f"{self.defect:.3g} (tolerance {self.problem.tolerance:g})"),
            ("solver", self.solver),
            ("iterations", self.iterations),
            ("products", self.products),
            ("seconds", f"{self.seconds:.3f}"),
        ]
        if self.error_bound is not None:
            rows.insert(2, ("error bound", f"{self.error_bound:.3g}"))
        if self.converged and not isinstance(self.problem, Transient):
            rows += [(name, format_measure(value)) for name, value in self.measures().items()]
            rows += [
                (f"proven {name}", f"{interval.low:.10g} to {interval.high:.10g} (width {interval.width:.2g})")
                for name, interval in self.intervals.items()
            ]
        return f"Solution of {type(self.problem).__name__}", rows


def _refuse_averages(rewards: Mapping[str, Reward]) -> None:
    for name, reward in rewards.items():
        if reward.averaged:
            raise ModelError(
                f"reward {name!r} of a lumped model is a mean over states that one state stands for; allowed in conditions and "
                "marginals are the variables of its states, or any reward of the lifted answer."
            )


def flat_measures(measures: Mapping[str, Any]) -> dict[str, float]:
    """Return measures with one number per name: arrays become ``utilization[0]``, ``utilization[1]``, ...

    Examples
    --------
    >>> flat_measures({"jobs": 2.5, "utilization": np.array([.5, .25])})
    {'jobs': 2.5, 'utilization[0]': 0.5, 'utilization[1]': 0.25}
    """
    flat = {}
    for name, value in measures.items():
        if np.ndim(value) == 0:
            flat[name] = float(value)
        else:
            array = np.asarray(value)
            for place in np.ndindex(array.shape):
                flat[f"{name}[{','.join(map(str, place))}]"] = float(array[place])
    return flat


def format_measure(value: Any) -> str:
    """Return a number, or a few of them, with ten significant digits."""
    if np.ndim(value) == 0:
        return f"{float(value):.10g}"
    flat = np.asarray(value).ravel()
    return ", ".join(f"{number:.10g}" for number in flat[:12]) + (", .." if flat.size > 12 else "")


def value_arrays(value: Any) -> list[np.ndarray]:
    """Return the arrays of an answer."""
    if isinstance(value, MatrixGeometric):
        return [*value.boundary, value.r, *(array for array in (value.g, value.u) if array is not None)]
    if isinstance(value, LevelDistribution):
        return list(value.levels)
    return [value]


__all__ = ["HISTORY", "QBD", "Outcome", "Solution", "Status", "flat_measures", "format_measure", "value_arrays"]
