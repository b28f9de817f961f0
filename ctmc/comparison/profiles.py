"""The numbers behind the figures of a comparison: profiles, quantiles, targets reached, and who wins where.

A *problem* is a model at a tolerance; warm starts are solvers of their own (`Run.label`).  Only certified answers count as solved:
every other end, also that a solver does not take the model, costs infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctmc.comparison.runs import NOT_ATTEMPTED, Comparison, Run
from ctmc.errors import StudyError, shown

MEASURES = ("products", "seconds", "memory")
"""What a run may cost: products with the generator, median seconds of the solve, bytes allocated at most."""
TARGETS = tuple(10.0**-exponent for exponent in range(4, 13))
"""Defects 1e-4 .. 1e-12."""
NO_ANSWER = ("INACCURATE", "NOT_FINITE")
"""Ends after which even a small defect proves nothing."""


@dataclass(frozen=True, eq=False)
class Costs:
    """What every solver has paid on every problem.

    Attributes
    ----------
    measure : str
    problems : tuple of (str, float)
        Models and tolerances.
    labels : tuple of str
        The solvers that are counted.
    left_out : tuple of str
        Solvers whose work the measure does not see: by products those that solve without an iteration, or without products.
    values : ndarray, shape (problems, labels)
        Infinite where there is no certified answer.
    """

    measure: str
    problems: tuple[tuple[str, float], ...]
    labels: tuple[str, ...]
    left_out: tuple[str, ...]
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Steps:
    """How many of some cases have come true up to x: a step function.

    Attributes
    ----------
    label : str
    values : ndarray
        Where it steps, sorted; as many as cases that ever come true.
    total : int
        Number of all cases.
    """

    label: str
    values: np.ndarray
    total: int

    def share(self, x: float) -> float:
        """Return the share of cases that have come true at x.

        Examples
        --------
        >>> Steps("gmres", np.array([1.0, 2.0, 2.0]), 4).share(2.0)
        0.75
        """
        return float(np.searchsorted(self.values, x, side="right")) / self.total if self.total else 0.0


def check_measure(measure: str, allowed: Sequence[str] = MEASURES) -> None:
    """Complain about a measure that does not exist.

    Raises
    ------
    StudyError

    Examples
    --------
    >>> check_measure("hours")
    Traceback (most recent call last):
    ctmc.errors.StudyError: measure is 'hours'; allowed are products, seconds, memory.
    """
    if measure not in allowed:
        raise StudyError(f"measure is {shown(measure)}; allowed are {', '.join(allowed)}.")


def cost(run: Run, measure: str) -> float:
    """Return what a certified answer has cost, infinity where there is none or where it is not known.

    Parameters
    ----------
    run : Run
    measure : str
        One of `MEASURES`.

    Examples
    --------
    >>> cost(Run("queue", "gmres", 1e-12, status="CONVERGED", seconds=(3.0, 1.0, 2.0)), "seconds")
    2.0
    >>> cost(Run("queue", "gmres", 1e-12, status="TIME_LIMIT", seconds=(60.0,)), "seconds")
    inf
    """
    check_measure(measure)
    known = {"products": run.products, "seconds": run.median_seconds, "memory": run.allocated_bytes}[measure]
    return float(known) if run.converged and known is not None else math.inf


def problems(comparison: Comparison) -> tuple[tuple[str, float], ...]:
    """Return the models and tolerances that every solver asked for was tried on, in order.

    Without those that a comparison stopped early did not come to, and models that could not be read.

    Examples
    --------
    >>> runs = (Run("queue", "gth", 1e-8, status="CONVERGED"), Run("net", "gth", 1e-8, status="NOT_RUN"))
    >>> problems(Comparison("", "stationary", {}, runs))
    (('queue', 1e-08),)
    """
    missing = {(run.model, run.tolerance) for run in comparison.runs if run.status in (*NOT_ATTEMPTED, "NO_MODEL")}
    found = dict.fromkeys((run.model, run.tolerance) for run in comparison.runs)
    return tuple(problem for problem in found if problem not in missing)


def costs(comparison: Comparison, measure: str = "products") -> Costs:
    """Return the table of costs; solvers whose library is missing are not in it.

    Parameters
    ----------
    comparison : Comparison
    measure : str
        One of `MEASURES`.  Products say nothing about direct methods, and methods for QBDs work on blocks: a solver none of whose
        answers took an iteration and a product is left out.

    Raises
    ------
    StudyError
        There is no such measure.

    Examples
    --------
    >>> solved = dict(tolerance=1e-12, status="CONVERGED", iterations=10)
    >>> runs = (Run("queue", "gmres", products=40, **solved), Run("queue", "power_iteration", products=900, **solved))
    >>> costs(Comparison("", "stationary", {}, runs)).values
    array([[ 40., 900.]])
    """
    check_measure(measure)
    asked = problems(comparison)
    place = {problem: row for row, problem in enumerate(asked)}
    runs = [run for run in comparison.runs if (run.model, run.tolerance) in place and run.status != "NOT_INSTALLED"]
    labels = tuple(dict.fromkeys(run.label for run in runs))
    left_out: tuple[str, ...] = ()
    if measure == "products":
        answered = {run.label for run in runs if run.converged}
        working = {run.label for run in runs if run.converged and run.iterations and run.products}
        left_out = tuple(label for label in labels if label in answered - working)
        labels = tuple(label for label in labels if label not in left_out)
    column = {label: k for k, label in enumerate(labels)}
    values = np.full((len(asked), len(labels)), np.inf)
    for run in runs:
        if run.label in column:
            values[place[run.model, run.tolerance], column[run.label]] = cost(run, measure)
    return Costs(measure, asked, labels, left_out, values)


def performance_profile(comparison: Comparison, measure: str = "products") -> tuple[Steps, ...]:
    """Return for each solver the ratios of its costs to the least cost on the same problem.

    Its share at x is the part of all problems that it solves within x times the least cost (E. D. Dolan, J. J. Moré, Benchmarking
    optimization software with performance profiles, Math. Program. 91, 2002).

    Parameters
    ----------
    comparison : Comparison
    measure : str
        One of `MEASURES`.

    Examples
    --------
    >>> solved = dict(tolerance=1e-12, status="CONVERGED")
    >>> runs = (Run("queue", "gth", seconds=(1.0,), **solved), Run("queue", "gmres", seconds=(3.0,), **solved))
    >>> [(steps.label, steps.values.tolist()) for steps in performance_profile(Comparison("", "stationary", {}, runs), "seconds")]
    [('gth', [1.0]), ('gmres', [3.0])]
    """
    table = costs(comparison, measure)
    found = []
    least = table.values.min(axis=1, initial=np.inf)
    for label, paid in zip(table.labels, table.values.T, strict=True):
        solved = np.isfinite(paid)
        # a cost of nothing, such as no bytes beside the interpreter's, is as good as any other: the ratio of 0 to 0 is 1
        ratios = np.ones(int(solved.sum()))
        with np.errstate(divide="ignore"):
            np.divide(paid[solved], least[solved], out=ratios, where=paid[solved] > least[solved])
        found.append(Steps(label, np.sort(ratios[np.isfinite(ratios)]), len(table.problems)))
    return tuple(found)


def quantiles(comparison: Comparison, measure: str = "seconds") -> tuple[Steps, ...]:
    """Return for each solver its costs on the problems that it solves, the n-th least at position n - 1.

    Parameters
    ----------
    comparison : Comparison
    measure : str
        One of `MEASURES`.

    Examples
    --------
    >>> runs = tuple(Run(name, "gth", 1e-12, status="CONVERGED", seconds=(time,)) for name, time in (("a", 2.0), ("b", 1.0)))
    >>> quantiles(Comparison("", "stationary", {}, runs))[0].values
    array([1., 2.])
    """
    table = costs(comparison, measure)
    columns = zip(table.labels, table.values.T, strict=True)
    return tuple(Steps(label, np.sort(paid[np.isfinite(paid)]), len(table.problems)) for label, paid in columns)


def targets_reached(
    comparison: Comparison, measure: str = "products", targets: Sequence[float] = TARGETS
) -> tuple[Steps, ...]:
    """Return for each solver the work after which it has reached each target on each model.

    A model counts at its smallest tolerance, with the targets that are not below it.  The history of a run says when a target was
    reached, the certified defect at the end counts where it converged.  Histories of answers that did not stand up to the check
    count for nothing.

    Parameters
    ----------
    comparison : Comparison
    measure : {"products", "seconds"}
    targets : sequence of float
        Defects.

    Examples
    --------
    >>> from ctmc.solution import HISTORY
    >>> history = np.array([(1, 0.1, 10, 1e-3), (2, 0.2, 20, 1e-5), (3, 0.3, 30, 1e-9)], HISTORY)
    >>> run = Run("queue", "gmres", 1e-8, status="CONVERGED", defect=1e-9, products=31, iterations=3, history=history)
    >>> targets_reached(Comparison("", "stationary", {}, (run,)), targets=(1e-4, 1e-8, 1e-12))[0].values
    array([20., 30.])
    """
    check_measure(measure, MEASURES[:2])
    table = costs(comparison, measure)
    tightest: dict[str, float] = {}
    for model, tolerance in table.problems:
        tightest[model] = min(tolerance, tightest.get(model, math.inf))
    # a target of 1e-12 is that of a tolerance 1e-12 however either was computed
    asked = {model: [one for one in targets if one >= least * (1 - 1e-9)] for model, least in tightest.items()}
    total = sum(map(len, asked.values()))
    found: dict[str, list[float]] = {label: [] for label in table.labels}
    for run in comparison.runs:
        if run.label in found and tightest.get(run.model) == run.tolerance:
            found[run.label] += [
                work for one in asked[run.model] if math.isfinite(work := work_until(run, one, measure))
            ]
    return tuple(Steps(label, np.sort(works), total) for label, works in found.items())


def work_until(run: Run, target: float, measure: str = "products") -> float:
    """Return the work after which a run has reached a defect, infinity where it has not.

    Parameters
    ----------
    run : Run
    target : float
    measure : {"products", "seconds"}

    Examples
    --------
    >>> work_until(Run("queue", "gth", 1e-12, status="CONVERGED", defect=1e-16, seconds=(0.5,)), 1e-10, "seconds")
    0.5
    """
    if run.status in NO_ANSWER:
        return math.inf
    history = run.history
    reached = np.flatnonzero(history["defect"] <= target)  # what is not finite is not reached
    works = [float(history[measure][reached[0]])] if reached.size else []
    if run.defect is not None and run.defect <= target * (1 + 1e-9):
        works.append(cost(run, measure))
    return min(works, default=math.inf)
