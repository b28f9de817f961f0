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
from ctmc.errors import StudyError, shown

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
class Rank:
    """How a solver has done on the problems of a family, by one of `COSTS`.

    Attributes
    ----------
    label : str
    solved : int
        Problems with an answer that counts.
    wins : int
    ratio : float
        Median over them of its cost to the best one.
    """

    label: str
    solved: int
    wins: int
    ratio: float


@dataclass(frozen=True)
class Family:
    """Which solvers to take for the problems of a family, and which not.

    Attributes
    ----------
    name : str
        Truncations of a QBD are a family of their own, as other solvers take them.
    problems, solved : int
        All, and those with a certified answer.
    models : tuple of str
    ranks : tuple of tuple of Rank
        By each of `COSTS`: those that solve most problems first, then those with the smallest ratio.
    unsolved : tuple of (str, int)
        Solvers that were tried and did not answer: on how many problems, the most first.
    """

    name: str
    problems: int
    solved: int
    models: tuple[str, ...]
    ranks: tuple[tuple[Rank, ...], ...]
    unsolved: tuple[tuple[str, int], ...]


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
        raise StudyError(f"measure is {shown(measure)}; allowed are {' and '.join(COSTS)}.")
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
    """Return how the solvers rank in every family of models, in order.

    Examples
    --------
    >>> fast, slow = (Run("queue", s, 1e-8, status="CONVERGED", seconds=(t,)) for s, t in (("gth", 2.0), ("gmres", 5.0)))
    >>> (family,) = families(Comparison("", "stationary", {}, (slow, fast)))
    >>> [(rank.label, rank.wins, rank.ratio) for rank in family.ranks[0]]
    [('gth', 1, 1.0), ('gmres', 0, 2.5)]
    """
    found: dict[str, list[list[Run]]] = {}
    for (model, _), runs in by_problem(comparison).items():
        found.setdefault(_family(comparison, model), []).append(runs)
    return tuple(_of_family(name, several) for name, several in found.items())


def _of_family(name: str, problems: Sequence[Sequence[Run]]) -> Family:
    ranks = []
    for measure in COSTS:
        ratios: dict[str, list[float]] = {}
        wins: Counter[str] = Counter()
        for runs in problems:
            paid = {run.label: own for run in runs if (own := cost(run, measure)) < math.inf}
            least = min(paid.values(), default=0.0)
            wins.update([label for label, own in paid.items() if own == least][:1])
            for label, own in paid.items():
                ratios.setdefault(label, []).append(own / least if least else 1.0)
        every = [Rank(label, len(own), wins[label], statistics.median(own)) for label, own in ratios.items()]
        ranks.append(tuple(sorted(every, key=lambda one: (-one.solved, one.ratio, -one.wins))))
    answered = [{run.label for run in runs if run.converged and not run.disagrees} for runs in problems]
    unsolved = Counter(
        run.label
        for runs, good in zip(problems, answered, strict=True)
        for run in runs
        if run.label not in good and run.status not in (*NOT_APPLICABLE, *NOT_ATTEMPTED, "NO_MODEL")
    )
    models = dict.fromkeys(run.model for runs in problems for run in runs)
    return Family(
        name, len(problems), sum(map(bool, answered)), tuple(models), tuple(ranks), tuple(unsolved.most_common())
    )


def _family(comparison: Comparison, model: str) -> str:
    known = comparison.models.get(model)
    if known is None:
        return model
    name = known.family or model
    return name if known.levels is None else f"{name} ({known.levels} levels)"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
