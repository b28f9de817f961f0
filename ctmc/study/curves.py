"""What the cost does around the best point of a search: ties, jumps beside it, and curves along each design.

Between two points where no decision differs the cost is a smooth function of the design (a constant where the design acts through
decisions alone); where selection values cross, decisions change and the cost jumps.  The places are found by bisection on the
decisions, which costs no solve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ctmc.study.continuous import EXACT, Cube, Ordering, Tie, ties_of
from ctmc.study.design import Point, SearchSpace

CLOSE = 1e-3
"""Selection values closer than this, relatively, are listed as close to a tie."""
REACH = 0.02
"""So far from the best point, in the cube, a jump is looked for."""
_PAST = 1e-6
_INWARD = 1e-4
_SCANNED = 240
_THIN = 1e-6
"""A stretch thinner than this is one point: values tie although they differ by some 1e-9."""


class Search(Protocol):
    """What is needed of a search."""

    space: SearchSpace

    def ordering(self, point: Point, cube: Cube) -> Ordering | None:
        """Return the decisions of a candidate."""

    def cost_at(self, point: Point, cube: Cube) -> float:
        """Return the cost of a candidate, NaN without an answer."""

    def improves(self, cost: float, other: float) -> bool:
        """Return whether a cost is better than another, by more than the error of an answer."""

    def best_costs(self, position: int) -> dict[int, float]:
        """Return the best cost for each value of one component of the points."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """The nearest place where decisions change, in one direction from the best point.

    Attributes
    ----------
    parameter : str
        With the component that moves, such as ``weights[0]``; the components behind it keep their proportions.
    direction : int
        1 where it grows, -1 where it falls.
    at : float
        Value of the component there.
    on_tie, beyond : float
        The cost at that place, where jobs share what ties, and right behind it; they are the same if the best point is
        on the tie itself.
    attained : bool
        False if the cost improves all the way to this place and is worse on it: an infimum that no design has.
    better : bool
        Whether one of both is better than the best point was.
    """

    parameter: str
    direction: int
    at: float
    on_tie: float
    beyond: float
    attained: bool
    better: bool


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The cost along one component of a design through the best point.

    Attributes
    ----------
    parameter : str
    segments : tuple of (ndarray, ndarray)
        Values of the component and costs; from one segment to the next decisions change.  One point alone is a tie.
    names : tuple of str
        Of values that are listed; empty for numbers.
    best : (float, float)
        The best point.
    """

    parameter: str
    segments: tuple[tuple[np.ndarray, np.ndarray], ...]
    names: tuple[str, ...] = ()
    best: tuple[float, float]


def ties_at(search: Search, point: Point, cube: Cube) -> tuple[Tie, ...]:
    """Return the exact and close ties of a candidate, but not those that hold whatever the design."""
    found = search.ordering(point, cube)
    assert found is not None
    generator = np.random.default_rng(20263)
    others = []
    for _ in range(2):
        moved = tuple(generator.uniform(0.05, 0.95, len(cube)).tolist())
        other = search.ordering(point, moved)
        others.append({} if other is None else {(t.first, t.second) for t in ties_of(other.values, EXACT)})
    return tuple(
        tie
        for tie in ties_of(found.values, CLOSE)
        if not all((tie.first, tie.second) in persistent for persistent in others)
    )


def sides_of(search: Search, point: Point, cube: Cube) -> tuple[Side, ...]:
    """Return the nearest jumps around a candidate; those farther than `REACH` in the cube are passed over."""
    best = search.cost_at(point, cube)
    found = []
    for k in range(len(cube)):
        for direction in (1, -1):
            edges = _crossing(search, point, cube, k, direction)
            if edges is None:
                continue
            here, there = edges
            near, on = search.cost_at(point, here), search.cost_at(point, there)
            behind = search.cost_at(point, _moved(there, k, direction * _PAST))
            inward = _moved(cube, k, -direction * _INWARD)
            same = _key(search, point, inward) == _key(search, point, cube)
            falls = same and search.improves(best, search.cost_at(point, inward))
            # the place is next to the best point, which is as near to it as numbers are
            close = abs(here[k] - cube[k]) <= 1e-9
            found.append(
                Side(
                    parameter=_label(search, k), direction=direction, at=_component(search, point, there, k), on_tie=on,
                    beyond=behind, attained=not (falls and close and search.improves(best, on)),
                    better=any(search.improves(cost, best) for cost in (near, on, behind)),
                )
            )  # fmt: skip
    return tuple(found)


def curves_of(search: Search, point: Point, cube: Cube, points: int) -> tuple[Curve, ...]:
    """Return the curves along each component of the designs, discrete ones first."""
    best = search.cost_at(point, cube)
    found = []
    position = 0
    for design in search.space.discrete:
        for k, here in enumerate(point[position : position + len(design.lower)]):
            costs = search.best_costs(position + k)
            values = np.array(sorted(costs), dtype=np.float64)
            ones = tuple((values[j : j + 1], np.array([costs[int(values[j])]])) for j in range(len(values)))
            found.append(
                Curve(
                    parameter=design.parameter if len(design.lower) == 1 else f"{design.parameter}[{k}]",
                    segments=ones, names=() if design.values is None else tuple(map(str, design.values)), best=(here, best),
                )
            )  # fmt: skip
        position += len(design.lower)
    for k in range(len(cube)):
        segments = []
        for run in _runs_of_one_kind(search, point, cube, k, points):
            x = [_component(search, point, _at(cube, k, u), k) for u in run]
            segments.append((np.array(x), np.array([search.cost_at(point, _at(cube, k, u)) for u in run])))
        x_best = _component(search, point, cube, k)
        found.append(Curve(parameter=_label(search, k), segments=tuple(segments), best=(x_best, best)))
    return tuple(found)


def _runs_of_one_kind(search: Search, point: Point, cube: Cube, k: int, points: int) -> Iterator[list[float]]:
    """Yield coordinates between which no decision changes, both ends of each stretch included."""
    grid = np.linspace(0, 1, _SCANNED + 1).tolist()
    keys = [_key(search, point, _at(cube, k, u)) for u in grid]
    step = max(_SCANNED // points, 1)
    run = [grid[0]]
    for index in range(1, len(grid)):
        if keys[index] == keys[index - 1]:
            if index % step == 0 or index == len(grid) - 1:
                run.append(grid[index])
            continue
        low, high = grid[index - 1], grid[index]
        while keys[index] != keys[index - 1]:
            last, first = _bisect(search, point, cube, k, low, high)
            yield [run[0]] if last - run[0] < _THIN else sorted({*run, last})
            run, low = [first], first
            if _key(search, point, _at(cube, k, first)) == keys[index]:
                break
        run.append(high)
    yield sorted(set(run))


def _bisect(search: Search, point: Point, cube: Cube, k: int, low: float, high: float) -> tuple[float, float]:
    """Return the last coordinate with the decisions at `low` and the first with others, to 1e-12."""
    key = _key(search, point, _at(cube, k, low))
    while True:
        middle = low + (high - low) / 2
        if middle in (low, high) or abs(high - low) < 1e-12:
            return low, high
        if _key(search, point, _at(cube, k, middle)) == key:
            low = middle
        else:
            high = middle


def _crossing(search: Search, point: Point, cube: Cube, k: int, direction: int) -> tuple[Cube, Cube] | None:
    """Return the two points beside the nearest change of decisions in one direction."""
    key, last = _key(search, point, cube), cube[k]
    for distance in np.geomspace(1e-9, REACH, 40):
        u = cube[k] + direction * float(distance)
        if not 0 <= u <= 1:
            return None
        if _key(search, point, _at(cube, k, u)) != key:
            low, high = _bisect(search, point, cube, k, last, u)
            return _at(cube, k, low), _at(cube, k, high)
        last = u
    return None


def _key(search: Search, point: Point, cube: Cube) -> bytes | None:
    ordering = search.ordering(point, cube)
    return None if ordering is None else ordering.key


def _at(cube: Cube, k: int, u: float) -> Cube:
    return (*cube[:k], u, *cube[k + 1 :])


def _moved(cube: Cube, k: int, step: float) -> Cube:
    return _at(cube, k, min(max(cube[k] + step, 0.0), 1.0))


def _label(search: Search, k: int) -> str:
    name, component = search.space.coordinates[k]
    return f"{name}[{component}]"


def _component(search: Search, point: Point, cube: Cube, k: int) -> float:
    name, component = search.space.coordinates[k]
    value: Any = search.space.values(point, cube)[name]
    return float(value[component])
