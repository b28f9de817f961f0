"""Run a comparison: every model with every solver, each attempt in a process of its own, and nothing of it twice."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.comparison.endings import answer_in, meaning
from ctmc.comparison.files import save_comparison
from ctmc.comparison.isolation import Ending, Warden, WardenError
from ctmc.comparison.machine import manifest
from ctmc.comparison.plan import Plan, known_comparison, plan
from ctmc.comparison.references import References
from ctmc.comparison.runs import Comparison, Run
from ctmc.comparison.settings import Entry
from ctmc.errors import StorageError, StudyError
from ctmc.model.memory import memory_limit as free_memory
from ctmc.solution import HISTORY
from ctmc.study.locks import only_run

ATTEMPT = "ctmc.comparison.attempt"
_SAVE_SHARE = 0.05
"""Of the time may go into writing what is done so far."""
_LOADING = 600.0
"""Seconds that loading a model may take, where a solve may take less."""


class Watcher:
    """Is told how a comparison goes; this one keeps it to itself."""

    def planned(self, total: int, known: int) -> None:
        """Take note of the number of runs, and of how many are known from before."""

    def began(self, number: int, label: str) -> None:
        """Take note that a run begins."""

    def ended(self, number: int, run: Run) -> None:
        """Take note of how it ended."""

    def referenced(self, name: str) -> None:
        """Take note that the attempt to get a reference has ended; it began as number -1."""

    def news(self, text: str) -> None:
        """Take note of one line of news."""

    def look(self) -> None:
        """Be called several times a second."""

    def stopped(self) -> bool:
        """Return whether the comparison is to end."""
        return False


def compare(
    models: Sequence[str | os.PathLike[str] | Entry],
    solvers: str | Sequence[str] = "all",
    output: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    watcher: Watcher | None = None,
    again: bool = False,
    memory_limit: int | str | None = None,
    **how: Any,
) -> Comparison:
    """Compare solvers on models.

    Each run has a process of its own, so that a crash, too much memory and too much time are rows of the table like any other.  Runs
    that the output file has already, of the same model, question, solver, limits and version, are not repeated; those of other models,
    solvers and tolerances stay in it.

    Parameters
    ----------
    models : sequence of path-like
        Model files of our own format.
    solvers : str or sequence of str
        See `ctmc.study.solver_grid.solvers_of`.
    output : path-like, optional
        The comparison's file, written while it goes on.
    title : str
    watcher : Watcher, optional
    again : bool
        Repeat what is asked for and the output file has.
    memory_limit : int or str, optional
        Such as ``"2GiB"``.
    **how
        Fields of `Settings`.

    Returns
    -------
    Comparison
        Where the output could not be written `unsaved` says why, so that nothing is lost.

    Raises
    ------
    StudyError, ModelError, UnknownNameError
        What was asked for does not exist or is not allowed.

    Examples
    --------
    >>> from ctmc import registry
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     queue = registry.build("birth_death", births=[1.0] * 30, deaths=[2.0] * 30)
    ...     from ctmc.storage import save
    ...     _ = save(f"{folder}/queue.h5", queue)
    ...     found = compare([f"{folder}/queue.h5"], "gth,gmres")
    >>> [(run.solver, run.status, run.distance < 1e-10) for run in found.runs]
    [('gth', 'CONVERGED', True), ('gmres', 'CONVERGED', True)]
    """
    watcher = watcher or Watcher()
    prepared = plan(models, solvers, memory_limit=memory_limit, **how)
    if output is None:
        return _Comparing(title, prepared, None, watcher).run(None)
    path = Path(output)
    with only_run(path):
        known = known_comparison(path)
        prepared.recall(known, again)
        return _Comparing(title, prepared, path, watcher).run(known)


@dataclass
class _Task:
    """One run that is to be made: its place in the table, and the request."""

    place: int
    request: dict[str, Any]


class _Comparing:
    """The state of a comparison under way."""

    def __init__(self, title: str, prepared: Plan, output: Path | None, watcher: Watcher) -> None:
        self.title, self.plan, self.output, self.watcher = title or "Solvers compared", prepared, output, watcher
        self.settings, self.models, self.files = prepared.settings, prepared.models, prepared.files
        self.runs: list[Run] = []
        self.sessions: list[Mapping[str, Any]] = []
        self.references: References = References(self.models, Path(), lambda name, more: None, {})
        self._saved, self._cost, self._unsaved, self.unsaved = time.monotonic(), 0.0, False, ""

    def run(self, known: Comparison | None) -> Comparison:
        settings, watcher = self.settings, self.watcher
        earlier = () if known is None else known.sessions
        self.sessions = list(earlier)
        self.sessions.append(
            manifest(
                time_limit=settings.time_limit, memory_limit=settings.memory_limit, threads=settings.threads,
                jobs=settings.jobs, repeats=settings.repeats,
            )
        )  # fmt: skip
        session = len(self.sessions) - 1
        missing = self.plan.missing
        self.runs = list(self.plan.runs)
        for place in missing:
            self.runs[place] = replace(self.runs[place], session=session)
        watcher.planned(len(self.runs), len(self.runs) - len(missing))
        with tempfile.TemporaryDirectory(prefix="ctmc-") as folder, contextlib.ExitStack() as stack:
            wardens = [stack.enter_context(Warden(ATTEMPT, settings.threads)) for _ in range(settings.jobs)]
            self.attempt_all(missing, Path(folder), wardens)
        if not missing:  # nothing was measured in this session
            self.sessions.pop()
        self.save(watcher.stopped())
        return self.result(watcher.stopped())

    # ---- attempts

    def attempt_all(self, missing: Sequence[int], folder: Path, wardens: Sequence[Warden]) -> None:
        """Make the missing runs: model by model, the reference of each before them."""
        by_model: dict[str, list[int]] = {}
        for place in missing:
            by_model.setdefault(self.runs[place].model, []).append(place)

        def one(request: Mapping[str, Any]) -> dict[str, Any] | None:
            """Make an attempt that is no row."""
            wardens[0].begin(request)
            while not self.watcher.stopped():
                ending = self.look(wardens[0], 0.1)
                self.watcher.look()
                if ending is not None:
                    return answer_in(Path(request["answer"]))
            wardens[0].end()
            return None

        def one_of(name: str, more: Mapping[str, Any]) -> dict[str, Any] | None:
            self.watcher.began(-1, f"{name}, reference")
            return one(self.base(name, None, folder / "reference.json") | dict(more))

        self.references = References(self.models, folder, one_of, self.plan.question_asked())
        refused = self.refused([name for name in by_model if self.files[name] is not None], folder, one)
        for name, places in by_model.items():
            if self.files[name] is None:
                continue
            if name in refused:
                for place in places:
                    self.runs[place] = replace(self.runs[place], status="ERROR", message=refused[name])
                    self.watcher.ended(place, self.runs[place])
                continue
            if any(self.runs[place].start == "warm" for place in places):  # the model before may have no run to make
                names = list(self.models)
                self.references.make(names[names.index(name) - 1])
            self.references.make(name)
            self.watcher.referenced(name)
            if self.watcher.stopped():
                return
            tasks = [_Task(place, self.request(place, folder)) for place in places]
            self.attempt_some(tasks, wardens)

    def refused(
        self, names: Sequence[str], folder: Path, one: Callable[[Mapping[str, Any]], dict[str, Any] | None]
    ) -> dict[str, str]:
        """Return which models cannot be asked the question, and why; raise `StudyError` if none can, before anything is stored."""
        found: dict[str, str] = {}
        if not self.plan.question_asked():
            return found
        for name in names:
            self.watcher.began(-1, f"{name}, question")
            answer = one(self.base(name, None, folder / "question.json") | {"only_question": True}) or {}
            self.watcher.referenced(name)
            if answer.get("kind") and answer.get("status") == "ERROR" and not answer.get("asked"):
                found[name] = answer["message"]
        if found and len(found) == sum(path is not None for path in self.files.values()):
            name, message = next(iter(found.items()))
            raise StudyError(message if len(found) == 1 else f"No model can be asked this; of {name}: {message}")
        return found

    def request(self, place: int, folder: Path) -> dict[str, Any]:
        run, references = self.runs[place], self.references
        base = self.base(run.model, run.solver, folder / f"{place}.json")
        base["settings"]["tolerance"] = run.tolerance
        base |= {
            "repeats": self.settings.repeats,
            "reference": references.vector(run.model),
            "reference_measures": references.measures(run.model),
        }
        if run.start == "warm":
            names = list(self.models)
            base |= {"warm": True, "start": references.vector(names[names.index(run.model) - 1])}
        return base

    def base(self, name: str, solver: str | None, answer: Path) -> dict[str, Any]:
        settings = self.settings
        limit = settings.memory_limit
        if limit is None:
            limit = free_memory() // settings.jobs
        return {
            "model": str(self.files[name]), "levels": self.models[name].levels, "problem": settings.problem,
            "settings": self.plan.question_asked(), "solver": solver,
            "time_limit": settings.time_limit, "memory_limit": limit, "threads": settings.threads,
            "allow_code": settings.allow_code, "answer": str(answer), "loading_limit": max(_LOADING, settings.time_limit),
        }  # fmt: skip

    def attempt_some(self, tasks: Sequence[_Task], wardens: Sequence[Warden]) -> None:
        """Run tasks, as many at once as there are wardens."""
        waiting = list(reversed(tasks))
        busy: dict[Warden, _Task] = {}
        while waiting or busy:
            if self.watcher.stopped():
                for warden in busy:
                    warden.end()
                return
            for warden in wardens:
                if warden not in busy and waiting:
                    busy[warden] = waiting.pop()
                    run = self.runs[busy[warden].place]
                    self.watcher.began(busy[warden].place, f"{run.model}, {run.label}, {run.tolerance:.0e}")
                    warden.begin(busy[warden].request)
            for warden, task in list(busy.items()):
                ending = self.look(warden, 0.1 / len(busy))
                if ending is None:
                    continue
                del busy[warden]
                self.runs[task.place] = self.ended(self.runs[task.place], task.request, ending)
                self.watcher.ended(task.place, self.runs[task.place])
                self._unsaved = True
            self.save_now_and_then()
            self.watcher.look()

    def look(self, warden: Warden, seconds: float) -> Ending | None:
        try:
            found = warden.poll(seconds)
        except WardenError as error:
            return Ending(-9, "", "", 0.0, 0.0, 0, 0, str(error))
        return found if isinstance(found, Ending) else None

    def ended(self, run: Run, request: Mapping[str, Any], ending: Ending) -> Run:
        """Return the run with what came of it."""
        facts: dict[str, Any] = {
            "isolation": ending.isolation, "wall_seconds": ending.wall_seconds, "cpu_seconds": ending.cpu_seconds,
            "allocated_bytes": ending.allocated_bytes, "peak_bytes": ending.peak_bytes,
        }  # fmt: skip
        answer = answer_in(Path(request["answer"]))
        if answer is None or ending.reason:
            status, reason, message = meaning(ending, request)
            return replace(run, status=status, reason=reason, message=message, **facts)
        model = self.models[run.model]
        if model.states is None and answer.get("kind"):
            self.models[run.model] = replace(model, states=answer.get("states"), entries=answer.get("entries"))
        history = answer.get("history")
        if history:
            records = np.empty(len(history["iteration"]), HISTORY)
            for name in HISTORY.names or ():
                records[name] = [np.nan if value is None else value for value in history[name]]
            facts["history"] = records
        names = ("status", "reason", "message", "defect", "distance", "measure_difference", "iterations", "products",
                 "first_seconds", "ran", "measures")  # fmt: skip
        facts |= {name: answer[name] for name in names if name in answer}
        facts["seconds"] = tuple(answer.get("seconds", ()))
        return replace(run, truncated_mass=self.references.mass_beyond(run.model), **facts)

    # ---- keeping

    def result(self, stopped: bool) -> Comparison:
        runs, models = (*self.runs, *self.plan.others), {**self.plan.other_models, **self.models}
        return Comparison(
            self.title, self.settings.problem, models, runs, tuple(self.sessions), stopped, self.unsaved, self.plan.question_asked()
        )  # fmt: skip

    def save_now_and_then(self) -> None:
        now = time.monotonic()
        if self._unsaved and self._cost <= _SAVE_SHARE * (now - self._saved):
            self.save(True)

    def save(self, stopped: bool) -> None:
        if self.output is None:
            return
        begin = time.monotonic()
        try:
            found = self.result(stopped)
            earlier = self.plan.earlier  # what is to be made again stays until it has been
            kept = (earlier.get(run.key, run) if run.status == "NOT_RUN" else run for run in found.runs)
            save_comparison(self.output, replace(found, runs=tuple(kept)))
            self.unsaved = ""
        except StorageError as error:  # what was measured is not lost for it: the next try may have room
            if not self.unsaved:
                self.watcher.news(f"What was found so far is not stored: {error}")
            self.unsaved = str(error)
        self._unsaved = False
        self._saved = time.monotonic()
        self._cost = self._saved - begin
