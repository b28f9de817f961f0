"""Capacities that suffice for an accuracy: truncations that grow until nothing changes any more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ctmc
from builders.supermarket.rank import best_within
from ctmc.defaults import SMALL
from ctmc.errors import ModelError, SolveError, shown
from ctmc.model.generator import Generator
from ctmc.model.parameters import positive_rate, positive_rates, real_number, whole_number
from ctmc.solution import Solution, flat_measures

LEAST_ERROR, MOST_ERROR = 1e-10, 0.1
"""Limits of a truncation error: below the first, the solves themselves are not accurate enough to tell."""
LARGEST_CAPACITY = 1000
FOUND = "was found for a truncation error of"
"""Part of the note on capacities that were found, by which it is known again."""

_REPORTS = ("boundary", "boundary_mass", "boundary_flow", "loss_flow")
"""Measures of the truncation itself: they fall with every step, and say nothing of the others."""
_WIDER = 2
_FEW_SERVERS, _FEW_STATES = 3, 50_000
"""So few make sparse elimination cheap, which no load makes slow."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One truncation on the way.

    Attributes
    ----------
    capacity : tuple of int
    states : int
    boundary_flow : tuple of float
        Per server, the rate at which jobs prefer it while it is full, as a part of the arrival rate.
    loss : float
        Blocking probability.
    change : float or None
        Largest change of a measure when all capacities are two larger, relative to the measure, absolute for measures below
        the root of the truncation error; None where the boundary flow was too large to look.
    estimate : float or None
        The change and all that is still to come, estimated by the decay of the queue lengths.
    """

    capacity: tuple[int, ...]
    states: int
    boundary_flow: tuple[float, ...]
    loss: float
    change: float | None = None
    estimate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """Capacities, the estimated truncation error of the measures, and the path to them.

    Attributes
    ----------
    capacity : tuple of int
    truncation_error : float
        What was asked for.
    estimate : float
        What is left; an estimate, not a bound.
    steps : tuple of Step
    """

    capacity: tuple[int, ...]
    truncation_error: float
    estimate: float
    steps: tuple[Step, ...] = field(repr=False)

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return columns and rows: capacities, states, largest boundary flow, loss, change and estimate of each step."""
        columns = ["capacity", "states", "boundary flow", "loss", "largest change", "estimate"]
        rows = [
            [
                ", ".join(map(str, step.capacity)),
                step.states,
                max(step.boundary_flow),
                step.loss,
                step.change,
                step.estimate,
            ]
            for step in self.steps
        ]
        return columns, rows

    @property
    def note(self) -> str:
        """One sentence with the path."""
        path = " -> ".join(
            f"{_shown(step.capacity)} {max(step.boundary_flow):.1e}"
            + ("" if step.estimate is None else f" (change {step.change:.1e}, estimate {step.estimate:.1e})")
            for step in self.steps
        )
        return (
            f"Capacity {_shown(self.capacity)} {FOUND} {self.truncation_error:g}: the measures are off "
            f"by {self.estimate:.1e} of themselves, as an estimate; path of capacities with their boundary flow: {path}."
        )


def find_capacity(
    service_rates: Sequence[float],
    arrival_rate: float,
    choices: int,
    *,
    truncation_error: float = 1e-8,
    largest_capacity: int = LARGEST_CAPACITY,
    **parameters: Any,
) -> Truncation:
    """Return capacities for which the truncated supermarket model is close to the one without limits.

    Begins with capacities of the mean-field tail, in which queues of k and more jobs have the probability
    load^((d^k - 1)/(d - 1)); then only servers whose own boundary flow is too large grow, by as much as the decay of their
    queue length asks for.  When all flows are small, the model with all capacities two larger is solved as well.  The
    largest relative change c of a measure, with all that later steps would add, c / (1 - decay^2), is the estimate; where it
    is above the truncation error the flows must fall by as much.  Each solve starts from the one before.  Source of the tail:
    N. D. Vvedenskaya, R. L. Dobrushin, F. I. Karpelevich, *Queueing system with selection of the shortest of two queues: an
    asymptotic approach*, Probl. Inf. Transm. 32 (1996).

    Parameters
    ----------
    service_rates, arrival_rate, choices
        As of `supermarket`.
    truncation_error : float
        From 1e-10 to 0.1; relative to each measure, absolute for measures below its root.
    largest_capacity : int
        No server's capacity grows beyond it.
    **parameters
        The other parameters of `supermarket`, apart from the capacity.  A total capacity is refused: it is a truncation that
        larger queues do not take away.

    Returns
    -------
    Truncation

    Raises
    ------
    ModelError
        If the model without limits is not stable, or the accuracy is out of reach of the largest capacity or the memory
        limit; the message says how far it got.

    Examples
    --------
    >>> found = find_capacity([3, 2, 1], 3, 2, truncation_error=1e-6)
    >>> found.capacity, found.estimate < 1e-6
    ((13, 11, 6), True)
    """
    error = _checked_error(truncation_error)
    largest = whole_number("largest_capacity", largest_capacity, 1)
    if parameters.get("total_capacity") is not None:
        raise ModelError(
            f"total_capacity is {shown(parameters['total_capacity'])}, but capacity is 'auto'; allowed is no total capacity, which "
            "is a limit of its own."
        )
    growth = _Growth(
        {"service_rates": service_rates, "arrival_rate": arrival_rate, "choices": choices, **parameters}, error, largest
    )
    return growth.run(_first_capacity(service_rates, arrival_rate, choices, parameters, error, largest))


def _checked_error(given: Any) -> float:
    allowed = f"a number from {LEAST_ERROR:g} to {MOST_ERROR:g}"
    return real_number("truncation_error", given, lambda error: LEAST_ERROR <= error <= MOST_ERROR, allowed)


def _first_capacity(
    service_rates: Sequence[float],
    arrival_rate: float,
    choices: int,
    parameters: dict[str, Any],
    error: float,
    largest: int,
) -> tuple[int, ...]:
    """Return the first capacities, after the model has been found stable."""
    given = {"service_rates": service_rates, "arrival_rate": arrival_rate, "choices": choices}
    smallest = ctmc.build("supermarket", **given, capacity=1, **parameters)  # checks all parameters
    unstable = next((note for note in smallest.notes if note.startswith("Unstable")), None)
    if unstable is not None:
        raise ModelError(f"capacity is 'auto', but no capacity suffices: {unstable[0].lower()}{unstable[1:]}")
    rates = positive_rates("service_rates", service_rates)
    servers, total = len(rates), positive_rate("arrival_rate", arrival_rate)
    if choices == 1:  # single queues with their own loads
        loads = [total / (servers * rate) for rate in rates]
        return tuple(min(largest, max(2, math.ceil(math.log(error) / math.log(load)))) for load in loads)
    within = best_within(servers, choices, parameters.get("sampling", "without_replacement"))
    slowest = np.cumsum(np.sort(rates))
    load = max(total * float(1 - within[servers - count]) / slowest[count - 1] for count in range(1, servers + 1))
    exponent = math.log(error) / math.log(load)
    jobs = math.ceil(math.log(1 + exponent * (choices - 1)) / math.log(choices))
    return (min(largest, max(2, jobs)),) * servers


class _Growth:
    """The course of `find_capacity`."""

    def __init__(self, parameters: dict[str, Any], error: float, largest: int) -> None:
        self.parameters, self.error, self.largest = parameters, error, largest
        self.arrival_rate = float(parameters["arrival_rate"])
        self.steps: list[Step] = []
        self.last: Solution | None = None
        rates = np.atleast_1d(parameters["service_rates"]).tolist()
        shown = parameters.get("preferences")
        kinds = list(zip(rates, [0] * len(rates) if shown is None else list(shown), strict=True))
        groups: dict[Any, list[int]] = {}
        for server, kind in enumerate(kinds):
            groups.setdefault(kind, []).append(server)
        self.alike = [groups[kind] for kind in kinds]
        """Servers that are exchangeable keep equal capacities."""

    def run(self, capacity: tuple[int, ...]) -> Truncation:
        """Grow until the estimate is below the truncation error."""
        target = self.error
        solution = self.solved(capacity)
        while True:
            flows, loss = self.flows(solution)
            if flows.max() <= target and loss <= self.error:
                step = self.compared(capacity, solution, flows, loss)
                self.steps.append(step)
                assert step.estimate is not None
                if step.estimate <= self.error:
                    return Truncation(
                        capacity=capacity, truncation_error=self.error, estimate=step.estimate, steps=tuple(self.steps)
                    )
                # the estimate falls with the flows; half of what is allowed, so that the next one passes
                target = 0.5 * float(flows.max()) * self.error / step.estimate
            else:
                self.steps.append(self.step(capacity, solution, flows, loss))
            capacity, solution = self.grown(capacity, solution, flows, target)

    def step(
        self, capacity: tuple[int, ...], solution: Solution, flows: np.ndarray, loss: float, **found: float
    ) -> Step:
        """Return what is known of a truncation."""
        return Step(
            capacity=capacity, states=len(solution.value), boundary_flow=tuple(flows.tolist()), loss=loss, **found
        )

    def flows(self, solution: Solution) -> tuple[np.ndarray, float]:
        """Return the boundary flow of each server as a part of the arrival rate, and the blocking probability."""
        found = solution.expectations(["boundary_flow", "loss_rate"])
        flows = np.atleast_1d(found["boundary_flow"]) / self.arrival_rate
        alike = np.array([flows[members].max() for members in self.alike])
        return alike, found["loss_rate"] / self.arrival_rate

    def compared(self, capacity: tuple[int, ...], solution: Solution, flows: np.ndarray, loss: float) -> Step:
        """Solve the model whose capacities are two larger, and tell how much the measures change."""
        wider = self.solved(tuple(limit + _WIDER for limit in capacity))
        change = largest_change(solution.measures(), wider.measures(), self.error)
        decay = max((self.decay(wider, server) for server in np.flatnonzero(flows > 0)), default=0.0)
        self.last = solution
        return self.step(capacity, solution, flows, loss, change=change, estimate=change / (1 - decay**_WIDER))

    def decay(self, solution: Solution, server: int) -> float:
        """Return the factor by which the probability of a queue length falls with each job, near the boundary."""
        masses = solution.marginal("queue_length", int(server))
        high = len(masses) - 2
        low = max(high - 2, 0)
        if high <= low or not (masses[low] > 0 and masses[high] > 0):
            return 0.5
        return float(np.clip((masses[high] / masses[low]) ** (1 / (high - low)), 0.02, 0.99))

    def grown(
        self, capacity: tuple[int, ...], solution: Solution, flows: np.ndarray, target: float
    ) -> tuple[tuple[int, ...], Solution]:
        """Return larger capacities for the servers whose flow is above the target, and the answer there."""
        more = np.zeros(len(capacity), dtype=int)
        for server in np.flatnonzero(flows > target):
            jobs = math.log(flows[server] / target) / -math.log(self.decay(solution, server))
            # a step pays only if it is worth a solve; and far from the end the decay is not yet that of the tail
            more[server] = min(max(1 + capacity[server] // 12, math.ceil(jobs)), max(2, capacity[server]))
        if not more.any():  # the loss alone is too large
            more[:] = 1
        more = np.array([more[members].max() for members in self.alike])
        if any(limit >= self.largest for limit, jobs in zip(capacity, more.tolist(), strict=True) if jobs):
            raise ModelError(
                f"capacity is 'auto', but {self.reached()}; allowed is a capacity of up to {self.largest} (largest_capacity)."
            )
        while True:
            larger = tuple(min(limit + jobs, self.largest) for limit, jobs in zip(capacity, more.tolist(), strict=True))
            try:
                return larger, self.solved(larger)
            except _DoesNotFitError as error:
                if more.max() <= 1:
                    raise ModelError(str(error)) from error
                more = (more + 1) // 2

    def solved(self, capacity: tuple[int, ...]) -> Solution:
        """Return the answer for these capacities, started from the last one."""
        try:
            model = ctmc.build("supermarket", **self.parameters, capacity=list(capacity))
            assert isinstance(model, Generator)
            start = None if self.last is None else carried(self.last, model)
            self.last = self.answered(model, start)
        except SolveError as error:
            raise ModelError(f"capacity is 'auto', but {self.reached()}; with {_shown(capacity)}: {error}") from error
        except ModelError as error:
            if not self.steps:
                raise
            raise _DoesNotFitError(
                f"capacity is 'auto', but {self.reached()}; with {_shown(capacity)}: {error}"
            ) from error
        return self.last

    def answered(self, model: Generator, start: np.ndarray | None) -> Solution:
        """Solve by sparse elimination where it is cheap, else by a method that starts from the last answer.

        Where that one fails, by one that is slow but sure; dense elimination would be wasted on so many solves.
        """
        problem = ctmc.Stationary(model)
        if len(self.alike) <= _FEW_SERVERS and model.size <= _FEW_STATES:
            return ctmc.solve(problem, "sparse_lu")
        try:
            return ctmc.solve(problem, "bicgstab" if model.size <= SMALL else None, start=start)
        except SolveError:
            return ctmc.solve(problem, "gauss_seidel", start=start)

    def reached(self) -> str:
        """Return how far it got, as the middle of a sentence."""
        if not self.steps:
            return "the first truncation was not solved"
        last = self.steps[-1]
        left = "" if last.estimate is None else f" and the estimated error {last.estimate:.2g}"
        return (
            f"at {_shown(last.capacity)} ({last.states:,} states) the boundary flow is {max(last.boundary_flow):.2g} of the "
            f"arrival rate{left}, with {self.error:g} asked for"
        )


class _DoesNotFitError(ModelError):
    """A truncation that could not be built or solved within the memory limit."""


def carried(solution: Solution, model: Generator) -> np.ndarray:
    """Return an answer in the order of a model with larger capacities, 0 in the new states; shape (n,)."""
    start = np.zeros(model.size)
    small = solution.problem.model
    assert isinstance(small, Generator)
    for positions, states in small.space.slabs():
        start[model.space.index(states)] = solution.value[positions]
    return start


def largest_change(before: dict[str, Any], after: dict[str, Any], truncation_error: float) -> float:
    """Return the largest change of a measure, relative to the measure, absolute below the root of the truncation error.

    Measures of the truncation itself (boundary masses and flows) do not count; the blocking probability does.

    Examples
    --------
    >>> round(largest_change({"jobs": 2.0, "boundary": 0.1}, {"jobs": 2.5, "boundary": 0.0}, 1e-8), 12)
    0.2
    """
    kept = [flat_measures({n: v for n, v in found.items() if n not in _REPORTS}) for found in (before, after)]
    floor = math.sqrt(truncation_error)
    changes = [
        abs(value - kept[0][name]) / (abs(value) if abs(value) > floor else 1.0) for name, value in kept[1].items()
    ]
    return max(changes, default=0.0)


def _shown(capacity: Sequence[int]) -> str:
    return f"({', '.join(map(str, capacity))})"
