"""Which solver wins where, and by how much.

A *problem* is a model at a tolerance, a *solver* a label, so that warm starts stand by themselves.  An answer counts where it is
certified and agrees with the reference.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ctmc.comparison.runs import NOT_APPLICABLE, NOT_ATTEMPTED, Comparison, Run
from ctmc.errors import StudyError, printable

COSTS = ("seconds", "products")
"""What a run may cost: median seconds, products with the generator."""


@dataclass(frozen=True)
class Place:
    """The best solver of one problem.

    Attributes
    ----------
    model : str
    tolerance : float
    best, second : str
        Labels; '' where there is none.
    cost : float
        Of the best; infinite where there is none.
    ratio : float
        Of the second's cost to the best's; infinite where there is no second.
    """

    model: str
    tolerance: float
    best: str
    cost: float
    second: str
    ratio: float


@dataclass(frozen=True)
class Record:
    """How a solver has done on several problems.

    Attributes
    ----------
    label : str
    certified, tried : int
        Problems; tried are those where it applies and was run.
    wins : tuple of int
        By each of `COSTS`.
    ratios : tuple of (float or None)
        Median over its certified answers of its cost to the best one, by each of `COSTS`.
    """

    label: str
    certified: int
    tried: int
    wins: tuple[int, ...]
    ratios: tuple[float | None, ...]


@dataclass(frozen=True)
class Family:
    """How often which solver has won on the problems of a family.

    Attributes
    ----------
    name : str
    problems, solved : int
        All, and those with a certified answer.
    leaders : tuple of (str, int, int)
        By each of `COSTS`: the solver with most wins ('' where nobody won), its wins, and the number of problems that have a winner.
    """

    name: str
    problems: int
    solved: int
    leaders: tuple[tuple[str, int, int], ...]


def cost(run: Run, measure: str) -> float:
    """Return what an answer has cost, infinity where it does not count.

    Products say nothing about methods that do not iterate: those have none.

    Raises
    ------
    StudyError
        The measure is none of `COSTS`.

    Examples
    --------
    >>> cost(Run("queue", "gmres", 1e-12, status="CONVERGED", seconds=(3.0, 1.0, 2.0)), "seconds")
    2.0
    """
    if measure not in COSTS:
        raise StudyError(f"measure is {printable(measure)!r}; allowed are {' and '.join(COSTS)}.")
    value: float | None = run.median_seconds
    if measure == "products":
        value = run.products if run.iterations and run.products else None
    return math.inf if value is None or not run.converged or run.disagrees else float(value)


def by_problem(comparison: Comparison) -> dict[tuple[str, float], list[Run]]:
    """Return the runs of each problem, in order.

    Examples
    --------
    >>> runs = (Run("queue", "gth", 1e-8), Run("queue", "gmres", 1e-8))
    >>> len(by_problem(Comparison("", "stationary", {}, runs))["queue", 1e-8])
    2
    """
    found: dict[tuple[str, float], list[Run]] = {}
    for run in comparison.runs:
        found.setdefault((run.model, run.tolerance), []).append(run)
    return found


def places(comparison: Comparison, measure: str) -> tuple[Place, ...]:
    """Return the best solver of every problem.

    Parameters
    ----------
    comparison : Comparison
    measure : str
        One of `COSTS`.

    Examples
    --------
    >>> fast, slow = (Run("queue", s, 1e-8, status="CONVERGED", seconds=(t,)) for s, t in (("gth", 2.0), ("gmres", 5.0)))
    >>> [(one.best, one.second, one.ratio) for one in places(Comparison("", "stationary", {}, (slow, fast)), "seconds")]
    [('gth', 'gmres', 2.5)]
    """
    found = []
    for (model, tolerance), runs in by_problem(comparison).items():
        ranked = sorted((cost(run, measure), k) for k, run in enumerate(runs))
        ranked = [pair for pair in ranked if pair[0] < math.inf]
        best, second = (runs[ranked[k][1]].label if len(ranked) > k else "" for k in (0, 1))
        least = ranked[0][0] if ranked else math.inf
        ratio = ranked[1][0] / least if len(ranked) > 1 and least else math.inf
        found.append(Place(model, tolerance, best, least, second, ratio))
    return tuple(found)


def records(comparison: Comparison) -> tuple[Record, ...]:
    """Return how every solver has done, those with most certified answers first, then those with most wins.

    Examples
    --------
    >>> fast, slow = (Run("queue", s, 1e-8, status="CONVERGED", seconds=(t,)) for s, t in (("gth", 2.0), ("gmres", 5.0)))
    >>> [(one.label, one.wins, one.ratios) for one in records(Comparison("", "stationary", {}, (slow, fast)))]
    [('gth', (1, 0), (1.0, None)), ('gmres', (0, 0), (2.5, None))]
    """
    best = {measure: {(one.model, one.tolerance): one for one in places(comparison, measure)} for measure in COSTS}
    by_label: dict[str, list[Run]] = {}
    for run in comparison.runs:
        by_label.setdefault(run.label, []).append(run)
    found = []
    for label, runs in by_label.items():
        tried = [run for run in runs if run.status not in (*NOT_APPLICABLE, *NOT_ATTEMPTED, "NO_MODEL")]
        wins, ratios = [], []
        for measure in COSTS:
            won = [best[measure][run.model, run.tolerance] for run in runs]
            wins.append(sum(place.best == label for place in won))
            paid = [(cost(run, measure), place.cost) for run, place in zip(runs, won, strict=True)]
            ratios.append(_median([own / least for own, least in paid if own < math.inf and least > 0]))
        certified = sum(run.converged and not run.disagrees for run in runs)
        found.append(Record(label, certified, len(tried), tuple(wins), tuple(ratios)))
    return tuple(sorted(found, key=lambda one: (-one.certified, *(-number for number in one.wins))))


def families(comparison: Comparison) -> tuple[Family, ...]:
    """Return who leads in every family of models, in order.

    Examples
    --------
    >>> run = Run("queue", "gth", 1e-8, status="CONVERGED", seconds=(2.0,))
    >>> [one.leaders for one in families(Comparison("", "stationary", {}, (run,)))]
    [(('gth', 1, 1), ('', 0, 0))]
    """
    solved: dict[str, list[bool]] = {}
    for (model, _), runs in by_problem(comparison).items():
        answered = any(run.converged and not run.disagrees for run in runs)
        solved.setdefault(_family(comparison, model), []).append(answered)
    wins: dict[tuple[str, str], Counter[str]] = {}
    for measure in COSTS:
        for place in places(comparison, measure):
            wins.setdefault((_family(comparison, place.model), measure), Counter()).update([place.best])
    return tuple(
        Family(name, len(answers), sum(answers), tuple(_leader(wins[name, measure]) for measure in COSTS))
        for name, answers in solved.items()
    )


def _family(comparison: Comparison, model: str) -> str:
    known = comparison.models.get(model)
    return known.family or model if known else model


def _leader(wins: Counter[str]) -> tuple[str, int, int]:
    won = Counter({label: number for label, number in wins.items() if label})
    leader, number = won.most_common(1)[0] if won else ("", 0)
    return leader, number, won.total()


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
