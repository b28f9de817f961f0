"""Search for the values of a parameter that make a measure least; every candidate's answer is certified."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ctmc import registry
from ctmc.errors import ModelError, SolveError, printable
from ctmc.model.predicate import parse_formula
from ctmc.problem import Stationary
from ctmc.solution import Solution
from ctmc.solve import failure_message, solve
from ctmc.study.design import Design, Point, design_for
from ctmc.study.measures import check_measure, evaluate_measure

METHODS = ("exhaustive", "coordinate")
MAXIMUM_POINTS = 1_000_000
"""Most points of an exhaustive search; at some hundredths of a second each this is a night."""

_TERM = re.compile(r"\s*(?:([\d.]+(?:[eE][+-]?\d+)?)\s*\*\s*)?([^\W\d]\w*)\s*(?:\*\s*([\d.]+(?:[eE][+-]?\d+)?))?\s*")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A point that was tried.

    Attributes
    ----------
    point : tuple of int
    cost : float
        Of the certified answer; NaN without one.
    measures : mapping
        All measures of the model; empty without a certified answer.
    defect : float
    message : str
        Why there is no answer; '' otherwise.
    """

    point: Point
    cost: float
    measures: Mapping[str, Any]
    defect: float
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """What a search has found.

    Attributes
    ----------
    parameter, minimize, method : str
    points : int
        In the design.
    ruled_out : int
        Points not solved because a proved bound is above the least cost found.
    candidates : tuple of Candidate
        All that were solved, least cost first, those without an answer last.
    stopped : bool
        Whether the search was interrupted.
    scalar : bool
        Whether the parameter is the one component of a point.
    """

    parameter: str
    minimize: str
    method: str
    points: int
    ruled_out: int
    candidates: tuple[Candidate, ...]
    stopped: bool = False
    scalar: bool = False

    @property
    def best(self) -> Candidate:
        """The candidate of least cost; the first in the order of points among equals."""
        found = self.candidates[0] if self.candidates else None
        if found is None or found.message:
            raise ModelError(f"no candidate has a certified answer: {found.message if found else 'none was tried.'}")
        return found

    @property
    def failed(self) -> tuple[Candidate, ...]:
        """Candidates without a certified answer."""
        return tuple(candidate for candidate in self.candidates if candidate.message)


Watch = Callable[[int, int, Candidate | None], bool]
"""``watch(solved, points, best)`` before each candidate; true ends the search."""


class Cost:
    """What is to be least: a measure, ``utilization[2]``, ``p95(response_time)``, or arithmetic over names of measures.

    Examples
    --------
    >>> Cost("response_time + 0.1 * busy_servers").weights
    {'response_time': 1.0, 'busy_servers': 0.1}
    >>> Cost("response_time +")
    Traceback (most recent call last):
    ctmc.errors.ModelError: formula 'response_time +': expected a name or a number at position 15, found the end.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._formula = None
        if re.search(r"[<>=!]|\b(?:and|or|not|true|false)\b", text):
            raise ModelError(
                f"what is minimised is {printable(text)!r}; allowed is a measure, or arithmetic over measures."
            )
        if re.fullmatch(r"\s*(?:\w+\s*\[\s*\d+\s*\]|p[\d.]+\s*\(.*\)|[^\W\d]\w*)\s*", text):
            check_measure(text)
        else:
            self._formula = parse_formula(text)
            if not self._formula.names:
                raise ModelError(f"what is minimised is {printable(text)!r}, which names no measure.")

    @property
    def weights(self) -> dict[str, float] | None:
        """Weights >= 0 of the measures where the cost is such a sum of them; else None."""
        weights: dict[str, float] = {}
        for term in self.text.split("+"):
            match = _TERM.fullmatch(term)
            if match is None:
                return None
            try:
                weight = float(match[1] or 1) * float(match[3] or 1)
            except ValueError:
                return None
            weights[match[2]] = weights.get(match[2], 0.0) + weight
        return weights

    def of(self, solution: Solution, measures: Mapping[str, Any]) -> float:
        """Return the cost of a certified answer."""
        if self._formula is None:
            value = evaluate_measure(solution, self.text)
        else:
            found = {name: measures.get(name) for name in self._formula.names}
            for name in self._formula.names:
                if found[name] is None:
                    found[name] = evaluate_measure(solution, name)
            value = self._formula.evaluate(found)
        try:
            number = float(value)
        except TypeError:
            raise ModelError(
                f"{self.text!r} has {len(value)} components; write {self.text}[0], for instance."
            ) from None
        if not math.isfinite(number):
            raise ModelError(f"the cost {printable(self.text)!r} is {number}; allowed is a finite number.")
        return number

    def bound(self, design: Design, point: Point) -> float:
        """Return what the cost cannot be below, minus infinity where nothing is known."""
        weights = self.weights
        if design.bounds is None or weights is None:
            return -math.inf
        known = design.bounds(point)
        if any(name not in known for name in weights):
            return -math.inf
        return sum(weight * known[name] for name, weight in weights.items())


def optimize(
    builder: str,
    parameters: Mapping[str, Any],
    over: str,
    minimize: str,
    *,
    maximum: int | None = None,
    method: str = "exhaustive",
    solver: str | None = None,
    tolerance: float | None = None,
    watch: Watch | None = None,
) -> Optimum:
    """Find the values of a parameter that make a cost of the stationary distribution least.

    Parameters
    ----------
    builder : str
    parameters : mapping
        Of the builder, without the one that is optimised.
    over : str
        A design of the builder, such as ``thresholds``, or a range of whole numbers, such as ``choices=1:3``.
    minimize : str
        See `Cost`.
    maximum : int, optional
        Largest number of the design.
    method : str
        ``exhaustive`` solves all points, except those that a proved bound of the design rules out.  ``coordinate`` moves
        single components and runs of neighbours, by steps that are halved down to 1, as long as the cost falls: far fewer
        points, and a local optimum.
    solver : str, optional
    tolerance : float, optional
    watch : callable, optional
        Told before each candidate; returning true ends the search.

    Returns
    -------
    Optimum

    Raises
    ------
    ModelError
        If the cost, the method or the design is not one, or an exhaustive search has more than a million points.

    Examples
    --------
    >>> queue = {"service_rates": [3, 1], "arrival_rate": 1, "tasks": 2}
    >>> found = optimize("fork_join", queue, "thresholds", "response_time", maximum=4)
    >>> found.best.point, f"{found.best.cost:.9f}"
    ((1, 2), '1.152747166')
    """
    cost = Cost(minimize)
    if method not in METHODS:
        raise ModelError(f"method is {printable(method)!r}; allowed is {' or '.join(METHODS)}.")
    design = design_for(builder, parameters, over, maximum)
    search = _Search(builder, dict(parameters), design, cost, solver, tolerance, watch)
    if method == "exhaustive":
        if design.count > MAXIMUM_POINTS:
            raise ModelError(
                f"an exhaustive search has {design.count:,} points; allowed are {MAXIMUM_POINTS:,}: lower the maximum, or take "
                "the method coordinate."
            )
        search.exhaustive()
    else:
        search.coordinate()
    tried = sorted(search.tried.values(), key=lambda one: (math.isnan(one.cost), one.cost, one.point))
    return Optimum(
        parameter=design.parameter, minimize=minimize, method=method, points=design.count, ruled_out=search.ruled_out,
        candidates=tuple(tried), stopped=search.stopped, scalar=design.scalar,
    )  # fmt: skip


class _Search:
    """The candidates solved so far."""

    def __init__(
        self,
        builder: str,
        parameters: dict[str, Any],
        design: Design,
        cost: Cost,
        solver: str | None,
        tolerance: float | None,
        watch: Watch | None,
    ) -> None:
        self.builder, self.parameters, self.design, self.cost = builder, parameters, design, cost
        self.solver = None if solver is None else registry.make_solver(solver)
        self.settings = {} if tolerance is None else {"tolerance": tolerance}
        self.watch = watch
        self.tried: dict[Point, Candidate] = {}
        self.best: Candidate | None = None
        self.ruled_out, self.points, self.stopped = 0, design.count, False

    def look(self, point: Point) -> Candidate | None:
        """Solve a candidate, unless it is known; None where the search is to end."""
        if point in self.tried:
            return self.tried[point]
        if self.stopped or (
            self.watch is not None and self.watch(len(self.tried) + self.ruled_out, self.points, self.best)
        ):
            self.stopped = True
            return None
        model = registry.build(self.builder, **self.parameters, **{self.design.parameter: self.design.value(point)})
        solution = solve(Stationary(model, **self.settings), self.solver, check=False)
        if solution.converged:
            measures = dict(solution.measures())
            found = Candidate(
                point=point, cost=self.cost.of(solution, measures), measures=measures, defect=float(solution.defect)
            )
        else:
            found = Candidate(
                point=point,
                cost=math.nan,
                measures={},
                defect=float(solution.defect),
                message=failure_message(solution),
            )
            if not self.tried:
                # the first candidate decides whether the question makes sense at all
                raise SolveError(found.message, solution)
        self.tried[point] = found
        if not found.message and (self.best is None or found.cost < self.best.cost):
            self.best = found
        return found

    def exhaustive(self) -> None:
        """Solve all points that no bound rules out; a short coordinate search first, so that bounds have something to beat."""
        if self.design.bounds is not None and self.points > 1:
            self.coordinate(runs=False)
        for point in self.design.points():
            if point in self.tried:
                continue
            # bounds are right to rounding only
            if self.best is not None and self.cost.bound(self.design, point) > self.best.cost + 1e-9 * abs(
                self.best.cost
            ):
                self.ruled_out += 1
            elif self.look(point) is None:
                return

    def coordinate(self, *, runs: bool = True) -> None:
        """Move components by halved steps, from the least point on, while the cost falls."""
        design, here = self.design, self.look(self.design.lower)
        if here is None:
            return
        width = max(high - low for low, high in zip(design.lower, design.upper, strict=True))
        step = 1 << max(width // 2, 1).bit_length() - 1
        while step:
            better = None
            for point in self._around(here.point, step, runs=runs and step == 1):
                there = self.look(point)
                if there is None:
                    return
                # NaN, a candidate without an answer, never wins; where the start has none, any answer does
                if there.cost < here.cost or (here.message and not there.message):
                    better = there
                    break
            if better is None:
                step //= 2
            else:
                here = better

    def _around(self, point: Point, step: int, *, runs: bool) -> Iterator[Point]:
        size = len(point)
        lengths = range(1, size + 1) if runs else (1,)
        for length in lengths:
            for begin, end in _runs(size, length):
                for signed in (step, -step):
                    moved = self.design.moved(point, begin, end, signed)
                    if moved != point:
                        yield moved


def _runs(size: int, length: int) -> list[tuple[int, int]]:
    """Return begin and end of all runs of so many neighbours.

    Examples
    --------
    >>> _runs(3, 2)
    [(0, 2), (1, 3)]
    """
    return [(begin, begin + length) for begin in range(size - length + 1)]


__all__ = ["METHODS", "Candidate", "Cost", "Optimum", "optimize"]
