"""Components that fail and are repaired by a limited crew: failures may be ten decades rarer than repairs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctmc
from builders._rows import bytes_of_rows, compressed_rows
from ctmc.errors import ModelError
from ctmc.model.distribution import distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import choice, each, positive_rates, whole_number
from ctmc.model.rerating import on_the_structure_of
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import is_streaming, made

ORDERS = ("shared", "priority")


@dataclass(frozen=True, eq=False)
class _Design:
    """Checked parameters, one entry for each of M types, and the crew."""

    failures: np.ndarray
    repairs: np.ndarray
    counts: np.ndarray
    needed: np.ndarray
    crew: int
    order: str

    def at_work(self, failed: np.ndarray) -> np.ndarray:
        """Return how many repairmen are at work on each type, shape (m, M) float64, for failed components (m, M)."""
        if self.order == "shared":
            total = failed.sum(axis=1, keepdims=True)
            return np.asarray(failed * (np.minimum(total, self.crew) / np.maximum(total, 1)))
        before = np.cumsum(failed, axis=1) - failed
        return np.clip(self.crew - before, 0, failed).astype(np.float64)


def _dress(
    model: Generator,
    failure_rates: Sequence[float],
    repair_rates: Sequence[float],
    components: int | Sequence[int] = 1,
    needed: int | Sequence[int] = 1,
    repairmen: int | None = None,
    order: str = "shared",
) -> Generator:
    design = _design(failure_rates, repair_rates, components, needed, repairmen, order)

    def works(states: np.ndarray) -> np.ndarray:
        return np.asarray((design.counts - states >= design.needed).all(axis=1))

    def critical(states: np.ndarray) -> np.ndarray:
        working = design.counts - states
        return works(states) * ((working == design.needed) * working @ design.failures)

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        names = ["available", "unavailable", "failed", "failed_components", "repairing", "system_failure_rate"]
        found = solution.expectations(names)
        often = found["system_failure_rate"]
        return {
            "availability": found["available"],
            "unavailability": found["unavailable"],
            "failed": found["failed"],
            "failed_components": found["failed_components"],
            "repairing": found["repairing"],
            "busy_repairmen": found["repairing"].sum(),
            "system_failure_rate": often,
            "mean_up_time": found["available"] / often,
            "mean_down_time": found["unavailable"] / often,
        }

    return model.replace(
        rewards={
            "available": Reward(works, "1 while the system works"),
            "unavailable": Reward(lambda states: ~works(states), "1 while the system has failed"),
            "failed_components": Reward(lambda states: states.sum(axis=1), "number of failed components"),
            "repairing": Reward(design.at_work, "per type, number of repairmen at work on it"),
            "system_failure_rate": Reward(critical, "rate at which a system that works fails"),
        },
        measures=measures,
    )


@ctmc.builder(version=1, dress=_dress)
def repairable_system(
    failure_rates: Sequence[float],
    repair_rates: Sequence[float],
    components: int | Sequence[int] = 1,
    needed: int | Sequence[int] = 1,
    repairmen: int | None = None,
    order: str = "shared",
) -> Generator:
    """Types of components that fail and are repaired by a limited crew; the system works while enough of every type do.

    Each working component of type i fails at rate failure_rates[i], also while the system is down; a repairman completes its
    repair at rate repair_rates[i].

    Parameters
    ----------
    failure_rates : sequence of float, length M
        Failures of a component per unit of time; positive, for instance 1e-9.
    repair_rates : sequence of float, length M
        Repairs by one repairman per unit of time; positive, for instance 1e2.
    components : int or sequence of int, length M
        Number of components, one number for every type or one each.
    needed : int or sequence of int, length M
        Least number of working components, from 1 to all of the type, with which the system works.
    repairmen : int, optional
        Size of the crew; by default as many as components, so that each is repaired by itself.
    order : str
        'shared': where more components have failed than there are repairmen, the crew is shared evenly among them.
        'priority': types are repaired in the order in which they stand, and a repair is interrupted for an earlier type.

    Returns
    -------
    Generator
        States ``failed``, shape (M,), the failed components of each type, last type fastest; it begins with none.  Rewards:
        available, unavailable, failed_components, repairing, system_failure_rate.  Measures: availability, unavailability,
        failed, failed_components, repairing, busy_repairmen, system_failure_rate, mean_up_time, mean_down_time.

    Raises
    ------
    ModelError
        If a rate is not positive and finite, a number of components, needed ones or repairmen is out of range, the order is
        unknown, or the model needs more than the memory limit.

    Notes
    -----
    The time to the first failure of the system is ``ctmc.FirstPassage(model, "available == 0", initial=model.initial)``.  With
    as many repairmen as components every component is a chain of its own, so the answer is a product of binomial
    distributions with failure_rates[i] / (failure_rates[i] + repair_rates[i]).  Unavailability is summed by itself: 1 less the
    availability has no digit left of it where failures are rare.

    Examples
    --------
    >>> pair = repairable_system(failure_rates=[1e-9], repair_rates=[100], components=2, repairmen=1)
    >>> print(f"{ctmc.solve(ctmc.Stationary(pair), 'gth').measures()['unavailability']:.9e}")
    2.000000000e-22
    >>> first = ctmc.FirstPassage(pair, "available == 0", initial=pair.initial)        # (3 failure + repair) / (2 failure^2)
    >>> print(f"{ctmc.solve(first, 'absorption_elimination').mean:.9e}")
    5.000000000e+19

    On the command line: ``ctmc build repairable_system --failure-rates 1e-9,1e-4 --repair-rates 100,0.5 --components 3,2
    --needed 2,1 --repairmen 1 --order priority -o system.h5``
    """
    design = _design(failure_rates, repair_rates, components, needed, repairmen, order)
    counts = design.counts
    space = Lattice(tuple(counts.tolist()), variables=(Variable("failed", len(counts)),))
    size = space.size
    entries = _entries(design, size)
    if not is_streaming():
        require_memory("the repairable system", bytes_of_rows(size, entries), states=size, entries=entries)

    def tables(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        failed = space.states(positions)
        failures = np.where(failed > 0, counts - failed + 1, 0) * design.failures
        repairs = np.empty_like(failures)
        for i, rate in enumerate(design.repairs):
            before = failed.copy()
            before[:, i] += 1  # beyond the last one there is no state
            repairs[:, i] = np.where(failed[:, i] < counts[i], design.at_work(before)[:, i] * rate, 0.0)
        places = positions[:, None]
        return (
            np.hstack([places - space.strides, places + space.strides[::-1]]),  # ascending: the first type is furthest
            np.hstack([failures, repairs[:, ::-1]]),
        )

    def rows(begin: int, end: int) -> Any:
        return compressed_rows(begin, end, size, tables, 2 * len(counts))

    return Generator(space, made(size, rows), initial=distribution(space, [0] * len(counts)))


def _rerate(model: Generator, old: Mapping[str, Any], new: Mapping[str, Any]) -> Generator:
    """Return the system at other rates."""
    for name in ("failure_rates", "repair_rates"):
        if np.size(new[name]) != np.size(old[name]):
            raise ModelError(
                f"{name} has {np.size(new[name])} numbers; at other rates the system keeps its {np.size(old[name])} types."
            )
    return on_the_structure_of(model, inspect.unwrap(repairable_system)(**new))


repairable_system.rates_that_may_change = ("failure_rates", "repair_rates")
repairable_system.rerate = _rerate  # what `with_rates` does in place of a build
repairable_system.event_rates = ("failure_rates", "repair_rates")  # what `ctmc.sensitivity` differentiates by


def _design(failure_rates: Any, repair_rates: Any, components: Any, needed: Any, repairmen: Any, order: Any) -> _Design:
    failures, repairs = positive_rates("failure_rates", failure_rates), positive_rates("repair_rates", repair_rates)
    types = len(failures)
    if len(repairs) != types:
        raise ModelError(
            f"failure_rates has {types} rates and repair_rates {len(repairs)}; allowed are as many of both."
        )
    counts = [whole_number("components", given, 1) for given in each("components", components, types, f"{types} types")]
    least = [
        whole_number("needed", given, 1, count, f"of {count} components")
        for given, count in zip(each("needed", needed, types, f"{types} types"), counts, strict=True)
    ]
    crew = sum(counts) if repairmen is None else whole_number("repairmen", repairmen, 1)
    return _Design(failures, repairs, np.array(counts), np.array(least), crew, choice("order", order, ORDERS))


def _entries(design: _Design, size: int) -> int:
    """Return the most transitions there are: a failure and a repair for each pair of neighbours."""
    return sum(2 * (size // (count + 1) * count) for count in design.counts.tolist())
