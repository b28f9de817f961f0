"""Answers: what a solver claims (`Outcome`), and what the framework has verified (`Solution`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctmc.errors import ModelError, shown, unknown_name
from ctmc.model import predicate
from ctmc.model.entries import checked_positions
from ctmc.model.generator import Generator
from ctmc.model.impulses import impulse_rates
from ctmc.model.level_dependent import LevelDistribution
from ctmc.model.parameters import LARGEST_COUNT, whole_number
from ctmc.model.phase_type import PhaseType
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.model.reward import Reward
from ctmc.model.summary import Rows, Summarised
from ctmc.problem import Problem, Stationary, Transient, column_lengths, is_single

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
        Stationary: shape (n,).  An `Equation`: its x, shape (n,).  An `Evolution`: None, as `Trace.reached` has seen all.
    status : Status
    history : ndarray of `HISTORY`, optional
        From `Trace`; direct methods have none.
    solver : str, optional
        The solver with its options as it ran, where an option is chosen by the model.
    """

    value: Any
    status: Status = Status.CONVERGED
    history: np.ndarray | None = None
    solver: str | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """The numbers that were asked for, put together by the framework from what solvers returned.

    Attributes
    ----------
    value : ndarray
        As in `Solution`.
    error_bound : float or ndarray, optional
        As in `Solution`.
    variance, variance_bound : ndarray, optional
        Variances, in the shape of `value` without the axis of moments, and bounds on their errors.
    """

    value: Any
    error_bound: Any = None
    variance: np.ndarray | None = None
    variance_bound: np.ndarray | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Summarised):
    """A verified answer; arrays are read-only.

    Attributes
    ----------
    problem : Stationary, Transient, AccumulatedReward, DiscountedReward or FirstPassage
    value : ndarray, MatrixGeometric or LevelDistribution
        Stationary: pi, shape (n,), in the order of the state space.  Transient: shape (times, n), or expected rewards, shape
        (times,) for one and (columns, times) for several.  Reward processes and passage times: moments, see the problem.
        QBD: MatrixGeometric; LevelDependentQBD: LevelDistribution.
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
    error_bound : float, ndarray or None
        Where an error is proven: a bound on the L1 error of any distribution; of rewards and moments, on the absolute error of
        each number, in the shape of `value` without the axis of states.  Never below the rounding floor.
    variances, variance_bounds : ndarray or None
        Where two or more moments were asked for: in the shape of `value` without the axis of moments.
    intervals : mapping of str to Interval
        Of ``certify="strict"``: proven intervals of rewards and measures, by names as in `flat_measures`.
    notes : tuple of str
        Of checkpoints: what could not be written, or that the method has none; that a start was given, but not used.
    checkpoint : Path or None
        Where a solve that has not converged can go on.
    warm : bool
        Whether the solver began from a start that was given.
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
    error_bound: Any = None
    variances: np.ndarray | None = None
    variance_bounds: np.ndarray | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    checkpoint: Path | None = None
    warm: bool = False
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
            if not isinstance(name, str):
                raise ModelError(
                    f"reward is {shown(name)}; allowed is a name: {', '.join(known)}, or one that "
                    "model.with_reward(name, values) gives to a model before it is solved."
                )
            if name not in known:
                raise unknown_name("reward", name, known)
        return [known[name] for name in names]

    def expectations(self, names: Sequence[str]) -> dict[str, Any]:
        """Return several expected rewards in one pass over the states; see `expected`."""
        if isinstance(names, str) or not isinstance(names, list | tuple):
            raise ModelError(f"names is {shown(names)}; allowed are names of rewards, such as ['jobs'].")
        if getattr(self.problem, "reward", None) is not None:
            return {name: self._of_column(self._mean, name) for name in names}
        self._needs_distribution("expectations")
        rewards = self._rewards(names)
        sums: list[Any] = [0.0] * len(rewards)
        model = self.problem.model
        earning = [k for k, reward in enumerate(rewards) if reward.has_impulses]
        if earning and not isinstance(model, Generator):
            raise ModelError(f"reward {names[earning[0]]!r} is earned at events; only a Generator has such rewards.")
        impulses = {k: impulse_rates(model, rewards[k]) for k in earning}  # type: ignore[arg-type]  # a generator where any is earned
        for positions, states, weights in model.weighted_slabs(self.value):
            for k, reward in enumerate(rewards):
                values = reward.evaluate(states, positions)
                sums[k] = sums[k] + weights @ (values + impulses[k][positions] if k in impulses else values)
        totals = [sum(parts) for parts in zip(*self._gathered(sums), strict=True)]
        return {
            name: float(total) if np.ndim(total) == 0 else np.asarray(total)
            for name, total in zip(names, totals, strict=True)
        }

    def _gathered(self, value: Any) -> list[Any]:
        """Return what each rank that shares the model has found; of others the value alone."""
        model = self.problem.model
        return model.ranks.gathered(value) if isinstance(model, Generator) else [value]

    def expected(self, reward: str) -> Any:
        """Return the expectation of a named reward: its rate, with what is earned at events per unit of time.

        Of a reward process it is the mean of what was asked for, by the names that were asked for.

        Parameters
        ----------
        reward : str
            A reward of the model, or a variable of its states.

        Returns
        -------
        float, or ndarray
            Shape () or (length,) for a stationary distribution, (times,) or (times, length) for transient ones; for every
            state as the start a last axis (n,) is added.

        Raises
        ------
        UnknownNameError
            If there is no such reward; close names are listed.
        """
        return self.expectations([reward])[reward]

    def variance(self, reward: str) -> Any:
        """Return the variance of what was earned, in the shape of `expected`; the problem has two moments or more.

        Raises
        ------
        ModelError
            If the problem has none.
        """
        if self.variances is None:
            raise ModelError(
                f"there are no variances of a {type(self.problem).__name__} with these options; ask for moments=2."
            )
        return self._of_column(self.variances, reward)

    @property
    def _mean(self) -> np.ndarray:
        """The first moments, without their axis; shape ([columns,] times[, n])."""
        if not hasattr(self.problem, "moments"):
            return np.asarray(self.value)
        axis = 0 if is_single(self.problem) else 1
        return np.asarray(np.take(self.value, 0, axis=axis))

    def _of_column(self, values: np.ndarray, name: str) -> Any:
        """Return the part of ([columns,] ..) that belongs to a reward: (..), or (times, length[, n]) for a vector."""
        problem: Any = self.problem
        names, lengths = problem.reward, column_lengths(problem)
        if name not in names:
            raise unknown_name("reward that was asked for", name, names)
        if lengths == [None]:
            found = values
        else:
            position = names.index(name)
            begin = sum(length or 1 for length in lengths[:position])
            length = lengths[position]
            found = values[begin] if length is None else values[begin : begin + length]
            if length is not None and found.ndim > 1 and hasattr(problem, "times"):
                found = np.moveaxis(found, 0, 1)
        return float(found) if np.ndim(found) == 0 else found

    def _needs_distribution(self, what: str) -> None:
        if getattr(self.problem, "reward", None) is not None or not isinstance(self.problem, Stationary | Transient):
            raise ModelError(f"{what} need a distribution, but a {type(self.problem).__name__} problem keeps none.")

    def probability(self, condition: str) -> Any:
        """Return the probability of a condition such as ``"jobs >= 10 and queue_length[0] < 3"``.

        Returns
        -------
        float, or ndarray of shape (times,)
        """
        self._needs_distribution("probabilities of conditions")
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
        total = sum(self._gathered(total))
        return float(total) if np.ndim(total) == 0 else total

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Return the probabilities of single states, by their positions in the state space; of several ranks all get them.

        Parameters
        ----------
        positions : array of int, shape (k,)

        Returns
        -------
        ndarray, shape (k,) or (times, k)

        Examples
        --------
        >>> import ctmc
        >>> queue = ctmc.build("birth_death", births=[1.0], deaths=[2.0])
        >>> ctmc.solve(ctmc.Stationary(queue), "gth").at(np.array([0])).round(12).tolist()
        [0.666666666667]
        """
        self._needs_distribution("probabilities of states")
        model, value = self.problem.model, np.asarray(self.value)
        if not isinstance(model, Generator):
            raise ModelError(f"positions are given, but a {type(model).__name__} has levels; allowed is a Generator.")
        positions = checked_positions("positions", positions, model.states)
        own = positions.astype(np.int64) - model.begin
        here = (own >= 0) & (own < model.size)
        found = np.zeros((*value.shape[:-1], len(positions)))
        found[..., here] = value[..., own[here]]
        return np.asarray(model.ranks.total(found))

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
        self._needs_distribution("marginals")
        if index is not None:
            whole_number("index", index, 0, LARGEST_COUNT)
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
        parts = self._gathered(result)
        whole = np.zeros((*lead, max(part.shape[-1] for part in parts)))
        for part in parts:
            whole[..., : part.shape[-1]] += part
        return whole

    def measures(self) -> dict[str, Any]:
        """Return the model's measures by name: a number, or an array with one number per server (or time).

        Stationary answers have the measures that the builder defines; transient ones, and models without a builder, the
        expectations of all rewards; reward processes the means, and ``variance(NAME)`` where there are two moments.
        """
        if "measures" not in self._cache:
            model = self.problem.model
            asked = getattr(self.problem, "reward", None)
            if asked is not None:
                found = self.expectations(asked)
                if self.variances is not None:
                    found |= {f"variance({name})": self.variance(name) for name in asked}
            elif model.measures is not None and isinstance(self.problem, Stationary):
                found = dict(model.measures(self))
                self._check_agreement(found)
            else:
                names = [name for name, reward in model.all_rewards.items() if not reward.has_impulses]
                found = self.expectations(names)
            self._cache["measures"] = found
        return dict(self._cache["measures"])

    def _check_agreement(self, found: Mapping[str, Any]) -> None:
        """Raise `ModelError` where ranks that share the model have found different measures, each from its own states."""
        flat = flat_measures(found)
        for other in self._gathered(flat):
            for name, value in flat.items():
                if other.get(name) != value and not (np.isnan(value) and np.isnan(other.get(name, 0.0))):
                    raise ModelError(
                        f"measure {name!r} is {value!r} on one rank and {other.get(name)!r} on another: it reads single states; "
                        "allowed on several ranks are expectations, probabilities and marginals."
                    )

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
        if not isinstance(name, str) or name not in known:
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
            rows.insert(2, ("error bound", f"{np.max(self.error_bound):.3g}"))
        keeps = isinstance(self.problem, Transient) and self.problem.reward is None
        if self.converged and not keeps:
            rows += [(name, format_measure(value)) for name, value in self.measures().items()]
            rows += [
                (f"proven {name}", f"{interval.low:.10g} to {interval.high:.10g} (width {interval.width:.2g})")
                for name, interval in self.intervals.items()
            ]
        return f"Solution of {type(self.problem).__name__}", rows


def joined_histories(histories: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return histories one after another, as one; None for none."""
    found: list[np.ndarray] = []
    for one in histories:
        history = one.copy()
        if found:
            history["iteration"] += found[-1]["iteration"][-1] + 1
            history["seconds"] += found[-1]["seconds"][-1]
        found.append(history)
    return np.concatenate(found) if found else None


def _refuse_averages(rewards: Mapping[str, Reward]) -> None:
    for name, reward in rewards.items():
        if reward.has_impulses:
            raise ModelError(
                f"reward {name!r} is earned at events; allowed in conditions and marginals are values of states."
            )
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
    return [] if value is None else [value]


__all__ = ["HISTORY", "QBD", "Outcome", "Solution", "Status", "flat_measures", "format_measure", "value_arrays"]
