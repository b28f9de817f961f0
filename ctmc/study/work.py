"""The work of a run, or of one part of it: models are built or found, questions answered, and everything is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.advise import chosen_solver
from ctmc.errors import CTMCError, StorageError, StudyError
from ctmc.model.generator import Generator
from ctmc.model.memory import holding
from ctmc.model.recipe import Prepared
from ctmc.problem import PROBLEMS
from ctmc.solution import Solution, Status
from ctmc.solve import solve
from ctmc.solver import Solver
from ctmc.storage import can_be_saved, read_info, save_solution
from ctmc.storage.locks import BusyError
from ctmc.storage.question import question_hash, question_of, solver_text
from ctmc.storage.solutions import solution_folder
from ctmc.storage.store import Store
from ctmc.study.answers import Found, answer_name, find, is_certified, questions_of
from ctmc.study.content import Solve, Study, StudyModel
from ctmc.study.models import Supplied, Supply
from ctmc.study.optimize import Candidate, optimize
from ctmc.study.rows import History, Place, Row, dressed, row_without_answer, rows_of, sentence
from ctmc.study.searches import found_before, remember, search_of
from ctmc.study.warm import Count, paths
from ctmc.study.watcher import Monitor, Watcher


@dataclass(frozen=True)
class Neighbour:
    """The last answer on a path: of which model, and the distribution."""

    path: str
    name: str
    value: np.ndarray


class Work:
    """What is built, what is answered.

    Parameters
    ----------
    study : Study
        Questions without models are passed over.
    store : Store
    watcher : Watcher
    rebuild, fail_fast : bool
        As of `ctmc.study.run_study`.
    reasons : bool
        As of `Supply`.
    """

    def __init__(
        self,
        study: Study,
        store: Store,
        watcher: Watcher,
        *,
        rebuild: bool = False,
        fail_fast: bool = False,
        reasons: bool = True,
    ) -> None:
        self.study, self.store, self.watcher = study, store, watcher
        self.rebuild, self.fail_fast = rebuild, fail_fast
        self.answers: dict[Place, list[Row]] = {}
        self.histories: dict[Place, History] = {}
        self.counts: list[Count] = []
        self.unbuilt: dict[str, str] = {}
        self.found: dict[str, dict[str, Any]] = {}
        self.total = len(study.models) + sum(len(step.models) * len(step.solvers) for step in study.solves)
        self.number = 0
        self.supply = Supply(store, rebuild=rebuild, news=watcher.news, stopped=watcher.stopped, reasons=reasons)
        self.prepared: dict[str, Prepared] = {}
        self.supplied: dict[str, Supplied] = {}
        self._failed = False
        self._loaded: tuple[str, Any] | None = None
        self._known: dict[str, list[dict[str, Any]]] = {}
        self._path_of: dict[str, str] = {}
        self._neighbours: dict[int, Neighbour] = {}

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, in the order of the study."""
        return dressed(self.study, self.answers, self.supplied, self.found)

    def begin(self, label: str, tolerance: float | None = None) -> Monitor | None:
        """Tell the watcher that a step begins."""
        self.number += 1
        return self.watcher.step(self.number, self.total, label, tolerance)

    def halted(self) -> str:
        """Return why no further step begins, '' while they do."""
        if self.watcher.stopped():
            return "the run was interrupted"
        return (
            "--fail-fast ended the run at a step that failed"
            if self.fail_fast and (self.unbuilt or self._failed)
            else ""
        )

    def build(self) -> None:
        """Find or build all models, each once."""
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
                self.unbuilt[name] = sentence(error)

    def beside(self, file: str) -> Path:
        """Return the path of a model file that the study names, relative to its own folder."""
        source = Path(self.study.source)
        return (source.parent if source.is_file() else Path()) / file

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

    def solve(self) -> None:
        """Answer all questions; those of a warm sweep along its paths."""
        for number, step in enumerate(self.study.solves):
            names: tuple[str, ...] | list[str] = step.models
            self._neighbours.clear()
            if step.warm:
                ways = paths(self.study.models, step.models)
                self._path_of = {name: way[0] for way in ways for name in way}
                names = [name for way in ways for name in way]
            for name in names:
                for k, solver in enumerate(step.solvers):
                    rows = self.answer((number, name, k), step, solver)
                    self._failed |= any(row.status != Status.CONVERGED.name for row in rows)
                    self.answers[number, name, k] = rows

    def model(self, name: str) -> Any:
        """Return a model; one is in memory at a time, read back from its file: what is solved is what is stored."""
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None
            builder = self.study.models[name].builder
            model, self.supplied[name] = self.supply.read(name, builder, self.prepared.get(name), self.supplied[name])
            self._loaded = (name, model)
        return self._loaded[1]

    def path(self, name: str) -> Path:
        """Return the file of a model."""
        found = self.supplied[name].path
        assert found is not None
        return found

    def question(self, step: Solve, name: str, solver: Solver | str | None) -> tuple[Any, Solver, dict[str, Any]]:
        """Return the problem, the solver that answers it, and both as the store knows them."""
        problem = _problem(step, self.model(name))
        chosen, advised = chosen_solver(problem, solver)
        if advised:
            self.watcher.news(f"{name}: {advised}")
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

    def answer(self, place: Place, step: Solve, solver: Solver | str | None) -> list[Row]:
        """Return the rows of one step: one model, one question, one solver."""
        name = place[1]
        if name in self.unbuilt:
            self.number += 1
            return [row_without_answer(self.study, place, "NOT_BUILT", self.unbuilt[name])]
        reason = self.halted()
        if reason:
            return [row_without_answer(self.study, place, "NOT_RUN", f"{reason} before this step.")]
        shown = ""
        try:
            problem, chosen, question = self.question(step, name, solver)
            shown = solver_text(chosen)
            monitor = self.begin(f"{name}, {shown}", problem.tolerance)
            found = self.look(name, problem, question)
            if found.solution is None:
                found = self.solved(place, problem, chosen, question, monitor, found)
            assert found.solution is not None
            rows = rows_of(self.study, place, shown, found, self.found.get(name, {}))
        except Exception as error:
            row = row_without_answer(self.study, place, "ERROR", sentence(error))
            return [replace(row, solver=shown or row.solver)]
        solution = found.solution
        if step.warm and solution.converged and isinstance(problem.model, Generator):
            self._neighbours[place[2]] = Neighbour(self._path_of[name], name, solution.value)
            if found.done == "reused" and not solution.warm:
                self.count(place, solution, False, None)
        if len(solution.history):
            swept = bool(self.study.models[name].point)
            self.histories[place] = History(name, step.problem, shown, problem.tolerance, solution.history, swept)
        return rows

    def solved(
        self,
        place: Place,
        problem: Any,
        chosen: Solver,
        question: dict[str, Any],
        monitor: Monitor | None,
        missing: Found,
    ) -> Found:
        """Solve and store the answer, unless another process is at it: then wait for its answer."""
        name, shown = place[1], solver_text(chosen)
        lock = question_hash({**question, "model": problem.model.content_hash})[:32]

        def told(who: str) -> None:
            self.watcher.news(f"{name}, {shown}: waiting for {who}, which solves the same.")

        with self.locked(lock, told) as waited:
            again = self.look(name, problem, question) if waited else missing
            if again.solution is not None:
                return again
            solution, done, why = self.solution(place, problem, chosen, question, monitor)
            path = None
            try:
                path = self.keep(name, solution, question)
            except (CTMCError, OSError) as error:
                self.watcher.news(f"{name}, {shown}: the solution is not stored: {error}")
        return Found(solution, f"{done}: {missing.done}", f"{why}{missing.why}", path)

    def solution(
        self, place: Place, problem: Any, chosen: Solver, question: Mapping[str, Any], monitor: Monitor | None
    ) -> tuple[Solution, str, str]:
        """Solve, from the answer to a neighbour where the step asks for it; tell how, in a few words and in full."""
        if not self.study.solves[place[0]].warm:
            return solve(problem, chosen, monitor=monitor, check=False), "solved", ""
        near = self._neighbours.get(place[2])
        if near is not None and near.path != self._path_of.get(place[1]):
            near = None
        before = self.cost_before(place[1], question)
        first = near is not None and isinstance(problem.model, Generator) and len(near.value) == problem.model.size
        if near is None or not first:
            why = "no neighbour with the same states was solved before; "
            solution, done = solve(problem, chosen, monitor=monitor, check=False), "solved"
        else:
            with holding(near.value.nbytes):
                solution = solve(problem, chosen, start=near.value, monitor=monitor, check=False)
            done, why = "solved from the neighbour", f"it began from the answer of {near.name}; "
            if not solution.warm:
                done, why = "solved", f"{registry.solver_name(chosen)} begins from no first guess; "
            elif not (solution.converged or solution.status in (Status.STOPPED, Status.TIME_LIMIT)):
                # a start that does not help must not cost the answer
                failed = solution
                solution = solve(problem, chosen, monitor=monitor, check=False)
                solution = replace(
                    solution, products=solution.products + failed.products, seconds=solution.seconds + failed.seconds
                )
                done = "solved"
                why = f"from the answer of {near.name} it was {failed.status.name}, and begun again from scratch; "
                self.count(place, solution, True, before)
                return solution, done, why
        if solution.converged:
            self.count(place, solution, solution.warm, before if solution.warm else None)
        return solution, done, why

    def count(self, place: Place, solution: Solution, warm: bool, before: int | None) -> None:
        """Note what an answer on a path has cost."""
        name, step = place[1], self.study.solves[place[0]]
        solver = solution.solver.partition("(")[0].rpartition(".")[2]
        count = Count(
            self._path_of.get(name, name), (place[0], place[2]), self.study.models[name].group, step.problem,
            registry.snake_case(solver), warm, solution.products, before,
        )  # fmt: skip
        self.counts.append(count)

    def cost_before(self, name: str, question: Mapping[str, Any]) -> int | None:
        """Return the products that the same answer took from scratch in an earlier run, None where that is not known."""
        for folder in self.store.folders:
            path = solution_folder(folder / self.path(name).name) / f"{answer_name(question)}.h5"
            try:
                info = read_info(path) if path.is_file() else {}
            except StorageError:
                continue
            same = info.get("question") == dict(question) and info.get("status") == Status.CONVERGED.name
            if same and not info.get("warm") and isinstance(info.get("products"), int):
                return int(info["products"])
        return None

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
