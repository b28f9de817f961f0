"""Numbers of a comparison that need two axes: what a run costs against what it needs or reaches, and how cost grows with states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctmc.comparison.profiles import MEASURES, NO_ANSWER, check_measure, cost, costs
from ctmc.comparison.runs import Comparison, Run
from ctmc.errors import StudyError, printable


@dataclass(frozen=True)
class Point:
    """One run between two things that shall both be small.

    Attributes
    ----------
    run : Run
    x, y : float
    best : bool
        No other point of the model is as small in both and smaller in one.
    """

    run: Run
    x: float
    y: float
    best: bool


@dataclass(frozen=True, eq=False)
class Growth:
    """How the cost of a solver grows: cost = factor * states ** exponent, fitted by least squares of the logarithms.

    Every family of models has a factor of its own, as a state of one costs more than a state of another; the exponent is common.

    Attributes
    ----------
    label : str
    states, values : ndarray
        Sorted by states.
    exponent : float or None
        None where there are fewer than two different numbers of states.
    lines : tuple of ((float, float), (float, float))
        For each family of several sizes its fewest and most states, and the fitted costs there.
    standard_error : float or None
        Of the exponent; None where there is no more than a point for each number that is fitted, so that any points may be met.
    """

    label: str
    states: np.ndarray
    values: np.ndarray
    exponent: float | None
    lines: tuple[tuple[tuple[float, float], tuple[float, float]], ...]
    standard_error: float | None


def trade_off(
    comparison: Comparison, model: str, measure: str = "seconds", against: str = "memory"
) -> tuple[Point, ...]:
    """Return the runs of a model between cost and defect or memory, sorted by cost; all tolerances together.

    Parameters
    ----------
    comparison : Comparison
    model : str
    measure : str
        One of `MEASURES`.
    against : {"defect", "memory", "products", "seconds"}
        Against the defect runs that ended early count, too.

    Raises
    ------
    StudyError
        There is no such measure, or no such model.

    Examples
    --------
    >>> solved = dict(tolerance=1e-12, status="CONVERGED")
    >>> runs = [Run("queue", name, seconds=(time,), allocated_bytes=size, **solved) for name, time, size in
    ...         (("gth", 1.0, 900), ("gmres", 2.0, 100), ("power_iteration", 3.0, 200))]
    >>> [point.best for point in trade_off(Comparison("", "stationary", {}, tuple(runs)), "queue")]
    [True, True, False]
    """
    check_measure(measure)
    check_measure(against, ("defect", *MEASURES))
    if all(run.model != model for run in comparison.runs):
        raise StudyError(f"there is no run on the model {printable(model)!r} in the comparison.")
    shown = set(costs(comparison, "products").labels) if "products" in (measure, against) else set(comparison.labels)
    found = []
    for run in comparison.runs:
        if run.model != model or run.label not in shown or run.status in NO_ANSWER:
            continue
        if against == "defect":
            known = {"products": run.products, "seconds": run.median_seconds, "memory": run.allocated_bytes}[measure]
            x, y = known, run.defect
        else:
            x, y = cost(run, measure), cost(run, against)
        if x is not None and y is not None and math.isfinite(x) and math.isfinite(y):
            found.append((run, float(x), float(y)))
    found.sort(key=lambda entry: entry[1:])
    points: list[Point] = []
    least = math.inf
    for run, x, y in found:
        # in this order a point is beaten by one before it that is as small in y, unless it is the same point
        best = y < least or bool(points and points[-1].best and (points[-1].x, points[-1].y) == (x, y))
        least = min(least, y)
        points.append(Point(run, x, y, best))
    return tuple(points)


def growth(comparison: Comparison, measure: str = "seconds", tolerance: float | None = None) -> tuple[Growth, ...]:
    """Return for each solver how its cost grows with the number of states.

    Where no family has models of two sizes, all models count as one.

    Parameters
    ----------
    comparison : Comparison
    measure : str
        One of `MEASURES`.
    tolerance : float, optional
        By default the smallest.

    Raises
    ------
    StudyError
        There is no such measure, or no such tolerance.

    Examples
    --------
    >>> from ctmc.comparison.runs import ComparedModel
    >>> sizes = {"small": 10, "middle": 100, "large": 1000}
    >>> runs = tuple(Run(name, "gth", 1e-12, status="CONVERGED", seconds=(1e-9 * n**3,)) for name, n in sizes.items())
    >>> models = {name: ComparedModel(name, states=n) for name, n in sizes.items()}
    >>> round(growth(Comparison("", "stationary", models, runs))[0].exponent, 10)
    3.0
    """
    table = costs(comparison, measure)
    tolerances = sorted({run.tolerance for run in comparison.runs})
    if tolerance is None:
        tolerance = tolerances[0] if tolerances else 0.0
    elif tolerance not in tolerances:
        raise StudyError(f"tolerance is {tolerance!r}; in the comparison are {', '.join(map(repr, tolerances))}.")
    together = not several_sizes(comparison)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {label: {} for label in table.labels}
    for run in comparison.runs:
        model = comparison.models.get(run.model)
        paid = cost(run, measure)
        if (
            run.label in found
            and run.tolerance == tolerance
            and model is not None
            and model.states
            and 0 < paid < math.inf
        ):
            family = "" if together else model.family or model.name
            found[run.label].setdefault(family, []).append((float(model.states), paid))
    return tuple(_fitted(label, list(families.values())) for label, families in found.items() if families)


def several_sizes(comparison: Comparison) -> bool:
    """Return whether there is a family with models of different sizes, which growth is then fitted within.

    Examples
    --------
    >>> from ctmc.comparison.runs import ComparedModel
    >>> models = {name: ComparedModel(name, family="queue", states=n) for name, n in (("small", 10), ("large", 90))}
    >>> several_sizes(Comparison("", "stationary", models, ()))
    True
    """
    sizes: dict[str, set[int]] = {}
    for model in comparison.models.values():
        if model.states:
            sizes.setdefault(model.family or model.name, set()).add(model.states)
    return any(len(found) > 1 for found in sizes.values())


def _fitted(label: str, families: Sequence[Sequence[tuple[float, float]]]) -> Growth:
    states, values = np.array(sorted(point for points in families for point in points)).T
    fitted = [np.array(points).T for points in families if len({size for size, _ in points}) > 1]
    if not fitted:
        return Growth(label, states, values, None, (), None)
    logarithms = [np.log(points) for points in fitted]
    x, y = np.hstack([one - one.mean(axis=1, keepdims=True) for one in logarithms])
    squares = float(x @ x)
    exponent = float(x @ y) / squares
    free = len(x) - len(fitted) - 1
    left = y - exponent * x
    error = math.sqrt(float(left @ left) / free / squares) if free > 0 else None
    lines = []
    for sizes, paid in logarithms:
        ends = float(sizes.min()), float(sizes.max())
        low, high = (math.exp(float(paid.mean()) + exponent * (end - float(sizes.mean()))) for end in ends)
        lines.append(((math.exp(ends[0]), math.exp(ends[1])), (low, high)))
    return Growth(label, states, values, exponent, tuple(lines), error)
