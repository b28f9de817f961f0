"""Run a study: build each structure once, answer each question, and keep everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.errors import CTMCError, StudyError, printable
from ctmc.interchange.formats import OWN, format_of
from ctmc.model.recipe import Prepared
from ctmc.problem import PROBLEMS
from ctmc.solution import Solution, Status, flat_measures
from ctmc.solve import default_solver, failure_message, solve
from ctmc.solver import Solver
from ctmc.storage import can_be_saved, load_fitting, save_solution
from ctmc.storage.locks import BusyError
from ctmc.storage.question import question_hash, question_of, solver_text
from ctmc.storage.store import Store
from ctmc.study import results
from ctmc.study.answers import Found, answer_name, find, is_certified, questions_of
from ctmc.study.content import Solve, Study, StudyModel
from ctmc.study.locks import only_run
from ctmc.study.measures import at_time, evaluate_measure
from ctmc.study.models import Supplied, Supply
from ctmc.study.numbers import keeps_numbers, numbers_of
from ctmc.study.optimize import Candidate, optimize
from ctmc.study.searches import found_before, remember, search_of
from ctmc.study.tables import line_data, table

Monitor = Callable[[int, float], object]


class Watcher:
    """Is told what a run does; this one keeps it to itself."""

    def step(self, number: int, total: int, label: str, tolerance: float | None) -> Monitor | None:
        """Take note that a step begins; the monitor, if any, goes to `ctmc.solve`."""
        return None

    def news(self, text: str) -> None:
        """Take note of one line of news."""

    def stopped(self) -> bool:
        """Return whether the run is to end."""
        return False


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
    """

    rows: tuple[Row, ...]
    histories: tuple[History, ...]
    output: Path
    stopped: bool = False
    models: Mapping[str, Supplied] = field(default_factory=dict)
    dry: bool = False

    @property
    def failed(self) -> bool:
        """Whether a row has no certified answer."""
        return not self.dry and any(row.status != Status.CONVERGED.name for row in self.rows)


def run_study(
    study: Study,
    output: str | Path | None = None,
    *,
    watcher: Watcher | None = None,
    store: str | Path | None = None,
    rebuild: bool = False,
    fail_fast: bool = False,
    dry_run: bool = False,
) -> StudyResult:
    """Run a study and write its result file, with the models and solutions in a store; what is there is not done again.

    Parameters
    ----------
    study : Study
    output : path-like, optional
        In place of the study's own; it may lie anywhere, while a study's own must lie below the current folder.
    watcher : Watcher, optional
    store : path-like, optional
        Folder of the models and solutions; default the environment variable CTMC_STORE, or a folder beside the output.  One
        that cannot be written is read only, and what is new goes into the folder beside the output.
    rebuild : bool
        Whether to build and solve everything anew.
    fail_fast : bool
        Whether to end with the first step that fails.
    dry_run : bool
        Whether to tell only what would be done; rows have the status PLANNED.  Stored models are loaded for it, and what a
        parameter leaves open (``capacity="auto"``) is found out.

    Returns
    -------
    StudyResult

    Raises
    ------
    StudyError
        If the output is not allowed, or another run is writing it.
    StorageError
        If the result cannot be written.
    """
    watcher = watcher or Watcher()
    path = results.output_path(study, output)
    if dry_run:
        plan = _Run(study, results.planned_store(path, store), watcher, rebuild=rebuild)
        plan.plan()
        return StudyResult(tuple(plan.rows), (), path, stopped=watcher.stopped(), models=plan.supplied, dry=True)
    with only_run(path):
        results.prepare(path, trusted=output is not None)
        run = _Run(
            study, results.open_store_of(path, store, watcher.news), watcher, rebuild=rebuild, fail_fast=fail_fast
        )
        run.build()
        run.solve()
        result = StudyResult(
            tuple(run.rows), tuple(run.histories), path, stopped=watcher.stopped(), models=run.supplied
        )
        results.write(study, result)
    return result


class _Run:
    """The state of a run: what is built, what is answered."""

    def __init__(
        self, study: Study, store: Store, watcher: Watcher, *, rebuild: bool = False, fail_fast: bool = False
    ) -> None:
        self.study, self.store, self.watcher = study, store, watcher
        self.rebuild, self.fail_fast = rebuild, fail_fast
        self.rows: list[Row] = []
        self.histories: list[History] = []
        self.unbuilt: dict[str, str] = {}
        self.found: dict[str, dict[str, Any]] = {}
        self.total = len(study.models) + sum(len(step.models) * len(step.solvers) for step in study.solves)
        self.number = 0
        self.supply = Supply(store, rebuild=rebuild, news=watcher.news, stopped=watcher.stopped)
        self.prepared: dict[str, Prepared] = {}
        self.supplied: dict[str, Supplied] = {}
        self._loaded: tuple[str, Any] | None = None
        self._known: dict[str, list[dict[str, Any]]] = {}

    def begin(self, label: str, tolerance: float | None = None) -> Monitor | None:
        self.number += 1
        return self.watcher.step(self.number, self.total, label, tolerance)

    def halted(self) -> str:
        """Return why no further step begins, '' while they do."""
        if self.watcher.stopped():
            return "the run was interrupted"
        failed = self.unbuilt or any(row.status != Status.CONVERGED.name for row in self.rows)
        return "--fail-fast ended the run at a step that failed" if self.fail_fast and failed else ""

    def build(self) -> None:
        for name, model in self.study.models.items():
            reason = self.halted()
            if reason:
                self.unbuilt[name] = f"{reason} before it was built."
                continue
            self.begin(f"model {name}")
            try:
                if model.file is not None:
                    self.supplied[name] = self.supply.given(self.beside(model.file))
                    continue
                self.prepared[name] = registry.prepare(model.builder, **model.parameters, **self.searched(model))
                self.supplied[name] = self.supply.get(name, model.builder, self.prepared[name])
            except Exception as error:
                self.unbuilt[name] = _sentence(error)

    def beside(self, file: str) -> Path:
        """Return the path of a model file that the study names, relative to its own folder."""
        source = Path(self.study.source)
        return (source.parent if source.is_file() else Path()) / file

    def plan(self) -> None:
        """Fill the rows with what a run would do."""
        for name, model in self.study.models.items():
            try:
                if model.file is not None:
                    path = self.beside(model.file)
                    own = format_of(path).name == OWN
                    self.supplied[name] = Supplied(
                        path if own else None, "given" if own else "to read", f"{printable(path)}"
                    )
                    continue
                best: Mapping[str, Any] | None = {}
                if model.optimize is not None:
                    asked = search_of(model)
                    best = None if asked is None or self.rebuild else found_before(self.store, asked)
                if best is None:
                    self.supplied[name] = Supplied(None, "to build: best parameter", "the search for it solves.")
                    continue
                self.found[name] = dict(best)
                self.prepared[name] = registry.prepare(model.builder, **model.parameters, **best)
                planned = self.supply.plan(self.prepared[name])
                self.supplied[name] = replace(planned, done=planned.done.replace("built:", "to build:"))
            except Exception as error:
                self.unbuilt[name] = _sentence(error)
        for step, name, solver in self.steps():
            self.rows.append(self.planned(step, name, solver))

    def planned(self, step: Solve, name: str, solver: Solver | None) -> Row:
        shown = "" if solver is None else solver_text(solver)
        if name in self.unbuilt:
            return self.row(name, step.problem, shown, "NOT_BUILT", self.unbuilt[name])
        supplied = self.supplied[name]
        if supplied.path is None:
            return self.row(name, step.problem, shown, "PLANNED", done="to solve: new", why="its model is to be built.")
        try:
            if self._loaded is None or self._loaded[0] != name:
                self._loaded = (name, load_fitting(supplied.path))  # `model` would build one that cannot be read
            problem, chosen, question = self.question(step, name, solver)
            found = self.look(name, problem, question)
        except Exception as error:
            return self.row(name, step.problem, shown, "PLANNED", done="to solve: unknown", why=_sentence(error))
        done = found.done if found.solution is not None else f"to solve: {found.done}"
        return self.row(name, step.problem, solver_text(chosen), "PLANNED", done=done, why=found.why)

    def searched(self, model: StudyModel) -> dict[str, Any]:
        """Return the parameter that ``[optimize]`` asks for, with its best value; a search is not repeated."""
        if model.optimize is None:
            return {}
        asked = search_of(model)
        if asked is None:
            self.found[model.name] = self.search(model)
            return self.found[model.name]

        def told(who: str) -> None:
            self.watcher.news(f"{model.name}: waiting for {who}, which searches the same.")

        with self.locked(question_hash(asked)[:32], told, missing=self.rebuild or not found_before(self.store, asked)):
            best = None if self.rebuild else found_before(self.store, asked)
            if best is None:
                best = self.search(model)
                try:
                    remember(self.store, asked, best)
                except (CTMCError, OSError) as error:
                    self.watcher.news(f"{model.name}: what the search found is not stored: {error}")
            else:
                self.watcher.news(f"{model.name}: the best {', '.join(best)} is known from an earlier search.")
        self.found[model.name] = best
        return best

    @contextmanager
    def locked(self, name: str, told: Callable[[str], object], *, missing: bool = True) -> Iterator[bool]:
        """Hold a lock of the store inside a ``with`` block, where something is missing; tells whether it was waited for."""
        with ExitStack() as stack:
            waited = False
            if missing:
                try:
                    waited = stack.enter_context(self.store.locked(name, waiting=told, stopped=self.watcher.stopped))
                except BusyError as who:
                    raise StudyError(f"waiting for what {who} is at was given up.") from None
            yield waited

    def search(self, model: StudyModel) -> dict[str, Any]:
        """Search for the best value."""
        task = model.optimize
        assert task is not None

        def watch(done: int, points: int, best: Candidate | None) -> bool:
            return self.watcher.stopped()

        found = optimize(
            model.builder,
            model.parameters,
            task.over,
            task.minimize,
            maximum=task.maximum,
            method=task.method,
            watch=watch,
        )
        if found.stopped:
            raise StudyError("the search for the best parameter was interrupted.")
        for candidate in found.failed[:1]:
            self.watcher.news(
                f"{model.name}: {len(found.failed)} candidates have no certified answer, such as {candidate.point}: "
                f"{candidate.message}"
            )
        return dict(found.best.values)

    def row(self, name: str, problem: str, solver: str, status: str, message: str = "", **more: Any) -> Row:
        model = self.study.models[name]
        found = self.found.get(name, {})
        point, searched = {**model.point, **found}, next(iter(found), None)
        supplied = self.supplied.get(name)
        if supplied is not None:
            more |= {"model_done": supplied.done, "model_why": supplied.why}
            more["model_file"] = None if supplied.path is None else supplied.path.name
        return Row(model.group, problem, solver, status, message, point=point, searched=searched, **more)

    def steps(self) -> Iterator[tuple[Solve, str, Solver | None]]:
        for step in self.study.solves:
            for name in step.models:
                for solver in step.solvers:
                    yield step, name, solver

    def solve(self) -> None:
        for step, name, solver in self.steps():
            self.rows += self.answer(step, name, solver)

    def model(self, name: str) -> Any:
        # One model in memory at a time, read back from its file: what is solved is what is stored.
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None
            builder = self.study.models[name].builder
            model, self.supplied[name] = self.supply.read(name, builder, self.prepared.get(name), self.supplied[name])
            self._loaded = (name, model)
        return self._loaded[1]

    def path(self, name: str) -> Path:
        found = self.supplied[name].path
        assert found is not None
        return found

    def question(self, step: Solve, name: str, solver: Solver | None) -> tuple[Any, Solver, dict[str, Any]]:
        """Return the problem, the solver that answers it, and both as the store knows them."""
        problem = _problem(step, self.model(name))
        chosen = registry.make_solver(default_solver(problem) if solver is None else solver)
        return problem, chosen, question_of(problem, chosen)

    def look(self, name: str, problem: Any, question: Mapping[str, Any]) -> Found:
        """Return the stored answer, or why there is none."""
        if self.rebuild:
            return Found(None, "--rebuild", "--rebuild asks for it.")
        return find(self.store, self.path(name), problem, question, lambda: self.known(name))

    def known(self, name: str) -> list[dict[str, Any]]:
        """Return the questions about a model that had answers before this run gave any."""
        if name not in self._known:
            self._known[name] = questions_of(self.store, self.path(name))
        return self._known[name]

    def answer(self, step: Solve, name: str, solver: Solver | None) -> list[Row]:
        shown = "" if solver is None else solver_text(solver)
        if name in self.unbuilt:
            self.number += 1
            return [self.row(name, step.problem, shown, "NOT_BUILT", self.unbuilt[name])]
        reason = self.halted()
        if reason:
            return [self.row(name, step.problem, shown, "NOT_RUN", f"{reason} before this step.")]
        try:
            problem, chosen, question = self.question(step, name, solver)
            shown = solver_text(chosen)
            monitor = self.begin(f"{name}, {shown}", problem.tolerance)
            found = self.look(name, problem, question)
            if found.solution is None:
                found = self.solved(name, problem, chosen, question, monitor, found)
            assert found.solution is not None
            rows = self.rows_of(step, name, shown, found)
        except Exception as error:
            return [self.row(name, step.problem, shown, "ERROR", _sentence(error))]
        solution = found.solution
        if len(solution.history):
            swept = bool(self.study.models[name].point)
            self.histories.append(History(name, step.problem, shown, problem.tolerance, solution.history, swept))
        return rows

    def solved(
        self,
        name: str,
        problem: Any,
        chosen: Solver,
        question: dict[str, Any],
        monitor: Monitor | None,
        missing: Found,
    ) -> Found:
        """Solve and store the answer, unless another process is at it: then wait for its answer."""
        shown = solver_text(chosen)
        lock = question_hash({**question, "model": problem.model.content_hash})[:32]

        def told(who: str) -> None:
            self.watcher.news(f"{name}, {shown}: waiting for {who}, which solves the same.")

        with self.locked(lock, told) as waited:
            again = self.look(name, problem, question) if waited else missing
            if again.solution is not None:
                return again
            solution = solve(problem, chosen, monitor=monitor, check=False)
            path = None
            try:
                path = self.keep(name, solution, question)
            except (CTMCError, OSError) as error:
                self.watcher.news(f"{name}, {shown}: the solution is not stored: {error}")
        return Found(solution, f"solved: {missing.done}", missing.why, path)

    def rows_of(self, step: Solve, name: str, shown: str, found: Found) -> list[Row]:
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
            for text in self.plotted(name, step.problem):
                if text not in flat_measures(measures):
                    measures[text] = evaluate_measure(solution, text)
        else:
            wanted = dict.fromkeys([*step.measures, *self.plotted(name, step.problem)])
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
            return [self.row(name, step.problem, shown, status, message, measures=measures, **facts)]
        return [
            self.row(
                name, step.problem, shown, status, message, time=float(time), measures=at_time(measures, k), **facts
            )
            for k, time in enumerate(solution.problem.times)
        ]

    def plotted(self, name: str, problem: str) -> list[str]:
        """Return what the plots need of a model's answers beside its parameters."""
        model = self.study.models[name]
        chosen = {*model.parameters, *self.found.get(name, {}), "time"}
        drawn = [plot for plot in self.study.plots if model.group in plot.models and plot.problem in (None, problem)]
        # variances are numbers of other questions
        texts = [text for plot in drawn for text in (plot.x, plot.y) if not text.strip().startswith("variance(")]
        return [text for text in texts if text.partition("[")[0].strip() not in chosen]

    def keep(self, name: str, solution: Solution, question: Mapping[str, Any]) -> Path | None:
        """Store an answer beside its model; where that lies in a folder that is only read, in the one that is written."""
        if not can_be_saved(solution):
            return None
        folder = self.store.solution_folder(self.path(name))
        if not solution.converged and is_certified(folder / f"{answer_name(question)}.h5"):
            return None  # it never replaces one that is
        return save_solution(self.path(name), solution, answer_name(question), question=question, folder=folder)


def _problem(step: Solve, model: Any) -> Any:
    settings: dict[str, Any] = {}
    if step.tolerance is not None:
        settings["tolerance"] = step.tolerance
    if step.initial is not None:
        settings["initial"] = step.initial
    for name in ("times", "reward", "moments", "discount", "target", "avoid"):
        if getattr(step, name):
            settings[name] = getattr(step, name)
    return PROBLEMS[step.problem](model, **settings)


def _sentence(error: Exception) -> str:
    if isinstance(error, CTMCError):
        return str(error)
    return f"{type(error).__name__}: {printable(error)}."


__all__ = ["History", "Row", "StudyResult", "Watcher", "line_data", "run_study", "table"]
