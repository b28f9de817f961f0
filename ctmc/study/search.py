"""The candidates of a search: solved once, certified, compared, and where to look next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.errors import ModelError, SolveError
from ctmc.model.generator import Generator
from ctmc.problem import Stationary
from ctmc.solution import Solution
from ctmc.solve import failure_message, solve
from ctmc.study.continuous import Cube, Ordering, Tie, Yardstick
from ctmc.study.cost import Cost
from ctmc.study.criteria import Criterion
from ctmc.study.curves import Curve, Side, curves_of, sides_of, ties_at
from ctmc.study.design import Design, Point, SearchSpace

_FINEST = 1e-6
"""Last step of the pattern search, as part of the cube."""
_KEPT = 32
"""So many answers are kept to begin others with."""
_KEPT_ORDERINGS = 20_000
_ROUNDS = 8
_LARGEST_ELIMINATION = 300
"""Up to this many states elimination is as fast as an iteration that begins with the answer of a neighbour."""
_IMPROVES = 1e-12
"""A cost is lower where it is by more than this part of itself; answers are not more accurate."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A point that was tried.

    Attributes
    ----------
    point : tuple of int
        Of the discrete designs.
    cube : tuple of float
        Of those of real numbers, as a point of the unit cube.
    values : mapping
        What the parameters are, by name.
    cost : float
        Of the certified answer; NaN without one.
    measures : mapping
        All measures of the model; empty without a certified answer.
    defect : float
    message : str
        Why there is no answer; '' otherwise.
    """

    point: Point
    cube: Cube = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    cost: float
    measures: Mapping[str, Any]
    defect: float
    message: str = ""


Watch = Callable[[int, int, Candidate | None], bool]
"""``watch(done, points, best)`` before each candidate; true ends the search."""


class _StoppedError(Exception):
    """Leaves SciPy's search."""


class Searcher:
    """The candidates solved so far."""

    def __init__(
        self,
        *,
        builder: str,
        parameters: dict[str, Any],
        space: SearchSpace,
        cost: Cost,
        sign: float,
        criterion: Criterion,
        rates_of_candidate: bool,
        evaluations: int,
        warm: bool,
        solver: str | None,
        tolerance: float | None,
        watch: Watch | None,
    ) -> None:
        self.builder, self.parameters, self.space, self.cost, self.sign = builder, parameters, space, cost, sign
        self.criterion, self.warm, self.watch = criterion, warm, watch
        self.solver = None if solver is None else registry.make_solver(solver)
        self.settings = {} if tolerance is None else {"tolerance": tolerance}
        self.evaluations = evaluations if space.continuous else 1
        self.tried: dict[tuple[Point, Cube], Candidate] = {}
        self.solved: dict[Any, Candidate] = {}
        self.find_ordering = ordering_of(builder)
        self.orderings: dict[tuple[Point, Cube], Ordering | None] = {}
        self.vectors: list[tuple[Point, Cube, Any, np.ndarray]] = []
        self.best: Candidate | None = None
        self.ruled_out, self.done, self.stopped = 0, 0, False
        self.points = space.count * self.evaluations
        self.yardstick = _yardstick(builder, parameters, space, cost, rates_of_candidate)
        self.rates_of_candidate = rates_of_candidate
        self.reference: Any = None
        self._check_values()

    @property
    def design(self) -> Design:
        """The one discrete design there is."""
        return self.space.discrete[0]

    def _check_values(self) -> None:
        """Refuse now, not in the midst of the search, what the builder does not take."""
        if self.find_ordering is None:
            return
        first = [list(design.lower) for design in self.space.discrete]
        cube = self.space.starts()[0]
        for k, design in enumerate(self.space.discrete):
            for value in range(design.lower[0], design.upper[0] + 1) if design.values else (design.lower, design.upper):
                chosen = [*first[:k], [value] if isinstance(value, int) else list(value), *first[k + 1 :]]
                self.ordering(tuple(number for part in chosen for number in part), cube)

    def given(self, point: Point, cube: Cube) -> dict[str, Any]:
        """Return all parameters of a candidate."""
        values = self.space.values(point, cube)
        implied = {name: value for name, value in values.items() if name not in self.space.parameters}
        return {**implied, **self.parameters, **{name: values[name] for name in self.space.parameters}}

    def ordering(self, point: Point, cube: Cube) -> Ordering | None:
        """Return what the builder knows of a candidate's decisions."""
        if self.find_ordering is None:
            return None
        if (point, cube) not in self.orderings:
            if len(self.orderings) >= _KEPT_ORDERINGS:
                self.orderings.clear()
            self.orderings[point, cube] = self.find_ordering(**self.given(point, cube))
        return self.orderings[point, cube]

    def look(self, point: Point, cube: Cube = ()) -> Candidate | None:
        """Solve a candidate, unless it is known; None where the search is to end."""
        if (point, cube) in self.tried:
            return self.tried[point, cube]
        if self.stopped or (self.watch is not None and self.watch(self.done + self.ruled_out, self.points, self.best)):
            self.stopped = True
            return None
        self.done += 1
        ordering = self.ordering(point, cube) if cube else None
        key = None
        if ordering is not None:
            varied = {k: v for k, v in self.space.values(point, cube).items() if k not in ordering.covers}
            key = (ordering.key, repr(sorted(varied.items())))
        found = self.solved.get(key) if key is not None else None
        if found is None:
            found = self._solve(point, cube)
            if key is not None:
                self.solved[key] = found
        self.tried[point, cube] = found
        if not found.message and (self.best is None or self.better(found, self.best)):
            self.best = found
        return found

    def better(self, one: Candidate, other: Candidate) -> bool:
        """Return whether one candidate is better, by more than the error of an answer; one without an answer never is."""
        if one.message or other.message:
            return not one.message
        if not self.space.continuous:
            return self.sign * one.cost < self.sign * other.cost
        return self.sign * (one.cost - other.cost) < -_IMPROVES * abs(other.cost)

    def _solve(self, point: Point, cube: Cube) -> Candidate:
        values = self.given(point, cube)
        model = self._judged(registry.build(self.builder, **values), values)
        problem = self.criterion.problem(model, self.cost, **self.settings)
        start = self._start(point, cube, model)
        solution = self._answer(problem, start)
        shown = {name: values[name] for name in self.space.parameters}
        if not solution.converged:
            message = failure_message(solution)
            if not self.tried:
                # the first candidate decides whether the question makes sense at all
                raise SolveError(message, solution)
            return Candidate(
                point=point,
                cube=cube,
                values=shown,
                cost=math.nan,
                measures={},
                defect=float(solution.defect),
                message=message,
            )
        cost, measures = self.criterion.read(solution, self.cost)
        if self.yardstick is not None and self.yardstick.parameter not in self.parameters:
            # the model's own yardstick moves from candidate to candidate: such numbers say nothing
            measures = {name: value for name, value in measures.items() if name not in self.yardstick.rewards}
        if self.warm and isinstance(problem, Stationary) and isinstance(model, Generator):
            self.vectors = [*self.vectors[1 - _KEPT :], (point, cube, model.space, solution.value)]
        return Candidate(
            point=point, cube=cube, values=shown, cost=cost, measures=measures, defect=float(solution.defect)
        )

    def _answer(self, problem: Any, start: np.ndarray | None) -> Solution:
        """Solve by the solver that was named; else by an iteration that can use the start, and the default where it fails."""
        if self.solver is None and start is not None and problem.model.size > _LARGEST_ELIMINATION:
            solution = solve(problem, "bicgstab", check=False, start=start)
            if solution.converged:
                return solution
        return solve(problem, self.solver, check=False, start=start)

    def _judged(self, model: Any, values: dict[str, Any]) -> Any:
        """Return a model with the rewards of the yardstick that does not move."""
        if self.yardstick is None or self.yardstick.parameter not in self.parameters:
            return model
        if self.reference is None or self.rates_of_candidate:
            first = {k: v for k, v in values.items() if k not in self.yardstick.moved_by}
            fixed = {name: value for name, value in self.parameters.items() if name in self.yardstick.moved_by}
            if self.rates_of_candidate:
                fixed[self.yardstick.rates] = values[self.yardstick.rates]
            self.reference = registry.build(self.builder, **first, **fixed)
        if self.reference.space != model.space:
            raise ModelError(
                f"{' and '.join(self.yardstick.rewards)} are measured on the states of the model as given, but the candidates have "
                "others; allowed are a fixed capacity and lump false."
            )
        measured = {name: self.reference.rewards[name] for name in self.yardstick.rewards}
        return model.replace(rewards={**model.rewards, **measured})

    def _start(self, point: Point, cube: Cube, model: Any) -> np.ndarray | None:
        """Return the answer of the nearest candidate that has the same states."""

        def distance(place: tuple[Point, Cube, Any, np.ndarray]) -> float:
            steps = sum(abs(a - b) for a, b in zip(place[0], point, strict=True))
            return steps + sum(abs(a - b) for a, b in zip(place[1], cube, strict=True))

        same = [place for place in self.vectors if place[2] == model.space]
        return min(same, key=distance)[3] if same else None

    def everywhere(self, locally_biased: bool) -> None:
        """Search the cube for every combination of the discrete designs."""
        for point in self.space.points():
            begin = self.done
            best = self._by_rectangles(point, locally_biased)
            if self.stopped:
                return
            if best is not None:
                self._refine(best, begin + self.evaluations)

    def _by_rectangles(self, point: Point, locally_biased: bool) -> Candidate | None:
        """Look at the starts, then by DIRECT, which divides the cube; return the best candidate."""
        from scipy.optimize import direct

        begin, worst = self.done, 0.0
        best: Candidate | None = None

        def objective(u: Any) -> float:
            nonlocal worst, best
            found = self.look(point, tuple(float(part) for part in u))
            if found is None or self.done - begin > self.evaluations:
                raise _StoppedError
            if found.message:
                return worst
            if best is None or self.better(found, best):
                best = found
            worst = max(worst, self.sign * found.cost)
            return self.sign * found.cost

        try:
            for start in self.space.starts():
                objective(start)
            left = 3 * (self.evaluations - (self.done - begin)) // 4
            if left > 0:
                direct(
                    objective, [(0.0, 1.0)] * self.space.dimension, maxfun=left, maxiter=left, vol_tol=0.0, len_tol=0.0,
                    locally_biased=locally_biased,
                )  # fmt: skip
        except _StoppedError:
            pass
        return best

    def _refine(self, here: Candidate, last: int) -> None:
        """Move by halved steps along the axes and the diagonals of the cube, as long as the cost improves."""
        point, step = here.point, 0.125
        axes = np.eye(self.space.dimension)
        diagonals = [a + s * b for k, a in enumerate(axes) for b in axes[:k] for s in (1, -1)]
        while step > _FINEST:
            for direction in (*axes, *-axes, *diagonals, *(-one for one in diagonals)):
                cube = tuple(np.clip(np.array(here.cube) + step * direction, 0, 1).tolist())
                there = here if self.done >= last else self.look(point, cube)
                if there is None or self.done >= last:
                    return
                if self.better(there, here):
                    here = there
                    break
            else:
                step /= 2

    def cost_at(self, point: Point, cube: Cube) -> float:
        """Return the cost of a candidate, NaN without an answer; leaves the search where it is to end."""
        found = self.look(point, cube)
        if found is None:
            raise _StoppedError
        return found.cost

    def improves(self, cost: float, other: float) -> bool:
        """Return whether a cost is better than another, by more than the error of an answer."""
        return self.sign * (cost - other) < -_IMPROVES * abs(other)

    def best_costs(self, position: int) -> dict[int, float]:
        """Return the best cost that was found for each value of one component of the points."""
        found: dict[int, float] = {}
        for (point, _), candidate in self.tried.items():
            value = point[position]
            if not candidate.message and (value not in found or self.sign * candidate.cost < self.sign * found[value]):
                found[value] = candidate.cost
        return found

    def around_best(self, curve_points: int) -> tuple[tuple[Tie, ...], tuple[Side, ...], tuple[Curve, ...]]:
        """Return the ties of the best candidate, what is beside it, and the curves through it."""
        ties: tuple[Tie, ...] = ()
        sides: tuple[Side, ...] = ()
        curves: tuple[Curve, ...] = ()
        try:
            for _ in range(_ROUNDS):  # what is beside it may be better still, where several ties meet for instance
                best = self.best
                if best is None or self.stopped:
                    break
                place = best.point, best.cube
                if self.space.continuous and self.ordering(*place) is not None:
                    sides = sides_of(self, *place)
                    ties = ties_at(self, *place)
                    if self.best is best and self._decides_alone(*place):
                        curves_of(self, *place, 1)  # both ends of every stretch of the lines through it: a line search
                if self.best is best:
                    break
            if curve_points and self.best is not None and not self.stopped:
                best = self.best
                curves = curves_of(self, best.point, best.cube, curve_points)
                if self.best is not best:  # a curve has met a better point: once more, through that
                    ties, sides, _ = self.around_best(0)
                    curves = curves_of(self, self.best.point, self.best.cube, curve_points)
        except _StoppedError:
            pass
        return ties, sides, curves

    def _decides_alone(self, point: Point, cube: Cube) -> bool:
        """Return whether the designs of real numbers act through decisions alone, so that few solves cover a line."""
        ordering = self.ordering(point, cube)
        return ordering is not None and all(one.parameter in ordering.covers for one in self.space.continuous)

    def exhaustive(self) -> None:
        """Solve all points that no bound rules out; a short coordinate search first, so that bounds have something to beat."""
        # bounds belong to one design by itself
        bounded = len(self.space.discrete) == 1 and self.design.bounds is not None and self.sign > 0
        bounded = bounded and self.criterion.name == "long-run"
        if bounded and self.points > 1:
            self.coordinate(runs=False)
        for point in self.space.points():
            if (point, ()) in self.tried:
                continue
            # bounds are right to rounding only
            if (
                bounded
                and self.best is not None
                and self.cost.bound(self.design, point) > self.best.cost + 1e-9 * abs(self.best.cost)
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
                if self.better(there, here):
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


def ordering_of(builder: str) -> Callable[..., Ordering | None] | None:
    """Return the function of a builder that tells the decisions of its models, None where it has none."""
    return getattr(registry.builder(builder), "ordering", None)


def _yardstick(
    builder: str, parameters: Mapping[str, Any], space: SearchSpace, cost: Cost, rates_of_candidate: bool
) -> Yardstick | None:
    """Return the builder's yardstick where the design moves it; refuse a cost that would be measured by what it changes."""
    found: Yardstick | None = getattr(registry.builder(builder), "yardstick", None)
    moved = [] if found is None else [name for name in found.moved_by if name in space.parameters]
    judging = found is not None and bool(cost.names & set(found.rewards))
    if rates_of_candidate and (found is None or found.rates not in moved or not judging):
        raise ModelError(
            "measured_rates is 'candidate', but no yardstick is used that the searched rates would move; allowed is 'given'."
        )
    if found is None or not moved:
        return None
    if judging and found.parameter not in parameters:
        name = found.parameter
        raise ModelError(
            f"{' and '.join(sorted(cost.names & set(found.rewards)))} of each candidate would be measured by its own selection "
            f"values, which {' and '.join(moved)} change{'s' if len(moved) == 1 else ''}, so that the yardstick would move with the "
            f"design; allowed is a fixed one, {name}=RULE (--{name.replace('_', '-')} RULE)."
        )
    return found


def _runs(size: int, length: int) -> list[tuple[int, int]]:
    """Return begin and end of all runs of so many neighbours.

    Examples
    --------
    >>> _runs(3, 2)
    [(0, 2), (1, 3)]
    """
    return [(begin, begin + length) for begin in range(size - length + 1)]
