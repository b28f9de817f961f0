"""What a run has found, as plain data: the rows of its table, convergence histories, and all together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.errors import CTMCError, printable
from ctmc.solution import Status, flat_measures
from ctmc.solve import failure_message
from ctmc.solver import Solver
from ctmc.storage.question import solver_text
from ctmc.study.answers import Found
from ctmc.study.content import Solve, Study
from ctmc.study.measures import at_time, evaluate_measure
from ctmc.study.models import Supplied
from ctmc.study.numbers import keeps_numbers, numbers_of
from ctmc.study.warm import Saving

Place = tuple[int, str, int]
"""Where rows belong: the number of the question, the name of the model, the number of the solver."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    model, problem, solver : str
    status : str
        The name of a `Status`; NOT_BUILT, ERROR or NOT_RUN where there is no answer, PLANNED in a dry run.
    message : str
        One sentence on what failed, '' otherwise.
    time : float or None
        Of a transient answer.
    defect, seconds : float or None
    iterations, products : int or None
    measures : mapping of str to a number, or to a list of them
        Empty where the answer is not certified.
    point : mapping of str to a value
        Parameters that a sweep has chosen, and the one that a search has found.
    searched : str or None
        Name of the latter.
    done, why : str
        What was done for the answer, ``reused``, ``solved: tolerance changed``, ``failed before``, and the reason in full.
    model_done, model_why : str
        The same of the model: ``reused``, ``built: parameter arrival_rate changed``.
    model_file, solution_file : str or None
        Where they stand in the store.  What was reused keeps the `seconds` and `products` that it took then.
    """

    model: str
    problem: str
    solver: str
    status: str
    message: str = ""
    time: float | None = None
    defect: float | None = None
    iterations: int | None = None
    products: int | None = None
    seconds: float | None = None
    measures: Mapping[str, Any] = field(default_factory=dict)
    point: Mapping[str, Any] = field(default_factory=dict)
    searched: str | None = None
    done: str = ""
    why: str = ""
    model_done: str = ""
    model_why: str = ""
    model_file: str | None = None
    solution_file: str | None = None


@dataclass(frozen=True)
class History:
    """The convergence history of one solve: which model, by which solver, how far it had to go, and if it is one of a sweep."""

    model: str
    problem: str
    solver: str
    tolerance: float
    records: np.ndarray
    swept: bool = False


@dataclass(frozen=True)
class StudyResult:
    """What a run has found.

    Attributes
    ----------
    rows : tuple of Row
    histories : tuple of History
    output : Path
        The result file.
    stopped : bool
        Whether it was interrupted.
    models : mapping of str to Supplied
        What was done for each model that there is.
    dry : bool
        Whether it is a plan only, and nothing was done.
    savings : tuple of Saving
        What warm starts have saved.
    """

    rows: tuple[Row, ...]
    histories: tuple[History, ...]
    output: Path
    stopped: bool = False
    models: Mapping[str, Supplied] = field(default_factory=dict)
    dry: bool = False
    savings: tuple[Saving, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether a row has no certified answer."""
        return not self.dry and any(row.status != Status.CONVERGED.name for row in self.rows)


def places(study: Study) -> Iterator[tuple[Place, Solve, Solver | str | None]]:
    """Yield where rows belong, in the order of the study, with the question and the solver."""
    for number, step in enumerate(study.solves):
        for name in step.models:
            for k, solver in enumerate(step.solvers):
                yield (number, name, k), step, solver


def row_without_answer(study: Study, place: Place, status: str, message: str = "", **facts: Any) -> Row:
    """Return the row of a step that has no answer."""
    step = study.solves[place[0]]
    solver = step.solvers[place[2]]
    model = study.models[place[1]]
    shown = solver or "" if solver is None or isinstance(solver, str) else solver_text(solver)
    return Row(model.group, step.problem, shown, status, message, point=model.point, **facts)


def dressed(
    study: Study,
    answers: Mapping[Place, list[Row]],
    supplied: Mapping[str, Supplied],
    searched: Mapping[str, Mapping[str, Any]],
) -> tuple[Row, ...]:
    """Return all rows in the order of the study, with what was done for their models and what searches have found."""
    rows: list[Row] = []
    for place, _, _ in places(study):
        name = place[1]
        found = searched.get(name, {})
        facts: dict[str, Any] = {
            "point": {**study.models[name].point, **found},
            "searched": next(iter(found), None),
        }
        if name in supplied:
            path = supplied[name].path
            facts |= {"model_done": supplied[name].done, "model_why": supplied[name].why}
            facts["model_file"] = None if path is None else path.name
        rows += [replace(row, **facts) for row in answers[place]]
    return tuple(rows)


def rows_of(study: Study, place: Place, shown: str, found: Found, searched: Mapping[str, Any]) -> list[Row]:
    """Return the rows of an answer, one for each of its times; `shown` is the solver.  `dressed` fills in the rest."""
    step, name = study.solves[place[0]], place[1]
    group = study.models[name].group
    plotted = plotted_measures(study, name, step.problem, searched)
    solution = found.solution
    assert solution is not None
    measures: dict[str, Any] = {}
    message = ""
    status = solution.status.name
    if not solution.converged:
        message = failure_message(solution)
    elif keeps_numbers(solution.problem):
        measures = {number.name: number.values for number in numbers_of(solution)}
    elif step.measures is None:
        measures = dict(solution.measures())
        for text in plotted:
            if text not in flat_measures(measures):
                measures[text] = evaluate_measure(solution, text)
    else:
        wanted = dict.fromkeys([*step.measures, *plotted])
        measures = {text: evaluate_measure(solution, text) for text in wanted}
    facts: dict[str, Any] = {
        "done": found.done,
        "why": found.why,
        "solution_file": None if found.path is None else f"{found.path.parent.name}/{found.path.name}",
        "defect": float(solution.defect),
        "iterations": solution.iterations,
        "products": solution.products,
        "seconds": solution.seconds,
    }
    if not hasattr(solution.problem, "times"):
        return [Row(group, step.problem, shown, status, message, measures=measures, **facts)]
    return [
        Row(group, step.problem, shown, status, message, time=float(time), measures=at_time(measures, k), **facts)
        for k, time in enumerate(solution.problem.times)
    ]


def plotted_measures(study: Study, name: str, problem: str, searched: Mapping[str, Any]) -> list[str]:
    """Return what the plots need of a model's answers beside its parameters."""
    model = study.models[name]
    chosen = {*model.parameters, *searched, "time"}
    drawn = [plot for plot in study.plots if model.group in plot.models and plot.problem in (None, problem)]
    # variances are numbers of other questions
    texts = [text for plot in drawn for text in (plot.x, plot.y) if not text.strip().startswith("variance(")]
    return [text for text in texts if text.partition("[")[0].strip() not in chosen]


def sentence(error: BaseException) -> str:
    """Return what an error says, in one sentence."""
    if isinstance(error, CTMCError):
        return str(error)
    return f"{type(error).__name__}: {printable(error)}."
