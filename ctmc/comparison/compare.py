"""Run a comparison: every model with every solver, each attempt in a process of its own, and nothing of it twice."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.comparison.endings import answer_in, meaning
from ctmc.comparison.files import load_comparison, save_comparison
from ctmc.comparison.isolation import Ending, Warden, WardenError
from ctmc.comparison.machine import manifest
from ctmc.comparison.references import References
from ctmc.comparison.runs import ComparedModel, Comparison, Run
from ctmc.comparison.settings import Entry, Settings
from ctmc.errors import CTMCError, StorageError, StudyError, printable
from ctmc.model.memory import memory_limit as free_memory
from ctmc.model.memory import parse_size
from ctmc.problem import PROBLEMS
from ctmc.solution import HISTORY
from ctmc.storage import read_info
from ctmc.storage.question import project_version, question_hash
from ctmc.study.locks import only_run
from ctmc.study.solver_grid import ALL, solvers_of

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
        Repeat what the output file has.
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
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     queue = registry.build("birth_death", births=[1.0] * 30, deaths=[2.0] * 30)
    ...     from ctmc.storage import save
    ...     _ = save(f"{folder}/queue.h5", queue)
    ...     found = compare([f"{folder}/queue.h5"], "gth,gmres")
    >>> [(run.solver, run.status, run.distance < 1e-10) for run in found.runs]
    [('gth', 'CONVERGED', True), ('gmres', 'CONVERGED', True)]
    """
    problem = how.get("problem", "stationary")
    limit = None if memory_limit is None else parse_size(memory_limit)
    every = solvers == ALL or list(solvers) == [ALL]
    settings = Settings(tuple(solvers_of(solvers, problem)), every, memory_limit=limit, **how)
    entries = [
        model if isinstance(model, Entry) else Entry(Path(model).stem, Path(model).resolve()) for model in models
    ]
    if not entries:
        raise StudyError("a comparison needs one or more models.")
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise StudyError(f"two models have the name {printable(name)!r}; allowed is one of each name.")
    watcher = watcher or Watcher()
    if output is None:
        return _Comparing(title, entries, settings, None, watcher).run(None)
    path = Path(output)
    with only_run(path):
        known = _known(path)
        return _Comparing(title, entries, settings, path, watcher).run(None if again else known)


def _known(path: Path) -> Comparison | None:
    """Return the comparison that a file has; what is no comparison is never replaced."""
    if not os.path.lexists(path):
        if not path.parent.is_dir():
            raise StudyError(f"Cannot write {printable(path)}: there is no folder {printable(path.parent)}.")
        return None
    try:
        return load_comparison(path)
    except StorageError as error:
        reason = str(error).partition(": ")[2] or str(error)
        raise StudyError(
            f"{printable(path)} exists and is not a comparison that could be gone on with ({reason.rstrip('.')}); it is never replaced."
        ) from None


@dataclass
class _Task:
    """One run that is to be made: its place in the table, and the request."""

    place: int
    request: dict[str, Any]


class _Comparing:
    """The state of a comparison under way."""

    def __init__(
        self, title: str, entries: Sequence[Entry], settings: Settings, output: Path | None, watcher: Watcher
    ) -> None:
        self.title, self.settings, self.output, self.watcher = title or "Solvers compared", settings, output, watcher
        self.models: dict[str, ComparedModel] = {}
        self.files: dict[str, Path | None] = {}
        for entry in entries:
            self.add(entry)
        self.runs: list[Run] = []
        self.others: list[Run] = []
        self.other_models: dict[str, ComparedModel] = {}
        self.sessions: list[Mapping[str, Any]] = []
        self.references: References = References(self.models, Path(), lambda name, more: None, {})
        self._saved, self._cost, self._unsaved, self.unsaved = time.monotonic(), 0.0, False, ""

    def add(self, entry: Entry) -> None:
        """Take up a model, a QBD with its truncations."""
        info: Mapping[str, Any] = {}
        if entry.path is not None:
            try:
                info = read_info(entry.path)
            except CTMCError as error:
                entry = replace(entry, path=None, message=str(error))
        model = ComparedModel(
            entry.name, "" if entry.path is None else str(entry.path), str(info.get("content_hash", "")),
            entry.family or entry.name, recipe=entry.recipe, message=entry.message, point=dict(entry.point),
            kind=_kind(info),
        )  # fmt: skip
        self.models[entry.name], self.files[entry.name] = model, entry.path
        for levels in self.settings.levels if model.kind == "QBD" else ():
            name = f"{entry.name} ({levels} levels)"
            self.models[name] = replace(model, name=name, levels=levels, kind="Generator")
            self.files[name] = entry.path

    def run(self, known: Comparison | None) -> Comparison:
        settings, watcher = self.settings, self.watcher
        earlier = () if known is None else known.sessions
        before: dict[str, Run] = {}
        if known is not None:
            before = {run.key: run for run in known.runs if run.key and run.status not in ("NOT_RUN", "NO_MODEL")}
            self.recall(known)
        plan = list(self.planned())
        if known is not None:
            self.keep_others(known, plan)
        kept = [before.get(run.key) for run in plan]
        self.sessions = list(earlier)
        self.sessions.append(
            manifest(
                time_limit=settings.time_limit, memory_limit=settings.memory_limit, threads=settings.threads,
                jobs=settings.jobs, repeats=settings.repeats,
            )
        )  # fmt: skip
        session = len(self.sessions) - 1
        self.runs = [replace(run, session=session) if old is None else old for run, old in zip(plan, kept, strict=True)]
        missing = [place for place, old in enumerate(kept) if old is None]
        watcher.planned(len(plan), len(plan) - len(missing))
        with tempfile.TemporaryDirectory(prefix="ctmc-") as folder, contextlib.ExitStack() as stack:
            wardens = [stack.enter_context(Warden(ATTEMPT, settings.threads)) for _ in range(settings.jobs)]
            self.attempt_all(missing, Path(folder), wardens)
        if not missing:  # nothing was measured in this session
            self.sessions.pop()
        self.save(watcher.stopped())
        return self.result(watcher.stopped())

    def recall(self, known: Comparison) -> None:
        """Take over what was found out about the same models before."""
        for name, model in self.models.items():
            old = known.models.get(name)
            if old is not None and (old.content_hash, old.levels) == (model.content_hash, model.levels):
                self.models[name] = replace(
                    model,
                    states=old.states,
                    entries=old.entries,
                    reference=old.reference,
                    reference_defect=old.reference_defect,
                )

    def keep_others(self, known: Comparison, plan: Sequence[Run]) -> None:
        """Keep runs that were made before and are not asked for now, unless they are about a model that has changed since."""
        asked = {(run.model, run.label, run.tolerance) for run in plan}
        for run in known.runs:
            old, now = known.models[run.model], self.models.get(run.model)
            same = now is None or (old.content_hash, old.levels) == (now.content_hash, now.levels)
            if (
                same
                and (run.model, run.label, run.tolerance) not in asked
                and run.status not in ("NOT_RUN", "NO_MODEL")
            ):
                self.others.append(run)
                self.other_models.setdefault(run.model, old)

    def planned(self) -> Iterator[Run]:
        """Yield every run, before it is made."""
        settings = self.settings
        previous: ComparedModel | None = None
        for name, model in self.models.items():
            starts = ["cold"]
            if settings.warm and previous is not None and previous.levels == model.levels:
                starts.append("warm")
            for tolerance in settings.tolerances:
                for solver in settings.solvers:
                    if settings.every and not self.applies(solver, model):
                        continue
                    for start in starts:
                        asked = self.question(model, solver, tolerance)
                        asked |= {"start": start if start == "cold" else previous.content_hash if previous else ""}
                        yield Run(
                            name, solver, self.tolerance(tolerance), start, key=question_hash(asked),
                            command=self.command(model, solver, tolerance, start),
                            status="NO_MODEL" if self.files[name] is None else "NOT_RUN",
                            message=model.message,
                        )  # fmt: skip
            previous = model

    def applies(self, solver: str, model: ComparedModel) -> bool:
        """Return whether a solver takes models of this kind, and has its library; not all that there are shall be a row everywhere."""
        kind = registry.make_solver(solver)
        needs = kind.needs if isinstance(kind.needs, tuple) else (kind.needs,)
        fits = not model.kind or any(one.__name__ == model.kind for one in needs)
        return fits and not registry.missing_library(kind)

    def tolerance(self, given: float | None) -> float:
        if given is not None:
            return given
        kind = PROBLEMS[self.settings.problem]
        return float(inspect.signature(kind).parameters["tolerance"].default)

    def question(self, model: ComparedModel, solver: str, tolerance: float | None) -> dict[str, Any]:
        """Return everything that two runs must have in common to stand for each other."""
        settings = self.settings
        return {
            "model": model.content_hash, "levels": model.levels, "problem": settings.problem, "question": self.question_asked(),
            "solver": solver, "tolerance": self.tolerance(tolerance), "repeats": settings.repeats, "threads": settings.threads,
            "time_limit": settings.time_limit, "memory_limit": settings.memory_limit, "version": project_version(),
        }  # fmt: skip

    def command(self, model: ComparedModel, solver: str, tolerance: float | None, start: str) -> str:
        """Return what to type to do one run again."""
        settings = self.settings
        parts = ["ctmc compare", quote(model.path), "--solvers", quote(solver)]
        parts += [] if tolerance is None else ["--tolerances", f"{tolerance:g}"]
        parts += [] if model.levels is None else ["--levels", str(model.levels)]
        parts += ["--time-limit", f"{settings.time_limit:g}"]
        parts += [] if settings.memory_limit is None else ["--memory-limit", str(settings.memory_limit)]
        parts += [] if settings.threads is None else ["--threads", str(settings.threads)]
        parts += [] if settings.repeats == 1 else ["--repeats", str(settings.repeats)]
        parts += [] if settings.problem == "stationary" else ["--problem", settings.problem]
        for name, value in settings.question.items():
            values = [value] if isinstance(value, str | int | float) else list(value)
            many = [str(one) for one in values] if name == "reward" else [",".join(map(str, values))]
            parts += [text for one in many for text in (f"--{name}", quote(one))]
        return " ".join(parts) + ("  # from the answer of the model before it" if start == "warm" else "")

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

        self.references = References(self.models, folder, one_of, self.question_asked())
        for name, places in by_model.items():
            if self.files[name] is None:
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
            "settings": self.question_asked(), "solver": solver,
            "time_limit": settings.time_limit, "memory_limit": limit, "threads": settings.threads,
            "allow_code": settings.allow_code, "answer": str(answer), "loading_limit": max(_LOADING, settings.time_limit),
        }  # fmt: skip

    def question_asked(self) -> dict[str, Any]:
        """Return what the problem asks beside the tolerance, as JSON takes it."""
        return {name: _json(value) for name, value in self.settings.question.items()}

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
        runs, models = (*self.runs, *self.others), {**self.other_models, **self.models}
        return Comparison(self.title, self.settings.problem, models, runs, tuple(self.sessions), stopped, self.unsaved)

    def save_now_and_then(self) -> None:
        now = time.monotonic()
        if self._unsaved and self._cost <= _SAVE_SHARE * (now - self._saved):
            self.save(True)

    def save(self, stopped: bool) -> None:
        if self.output is None:
            return
        begin = time.monotonic()
        try:
            save_comparison(self.output, self.result(stopped))
            self.unsaved = ""
        except StorageError as error:  # what was measured is not lost for it: the next try may have room
            if not self.unsaved:
                self.watcher.news(f"What was found so far is not stored: {error}")
            self.unsaved = str(error)
        self._unsaved = False
        self._saved = time.monotonic()
        self._cost = self._saved - begin


def _kind(info: Mapping[str, Any]) -> str:
    """Return the class of the model that a file holds, '' where there is none."""
    kind = info.get("kind", "")
    if kind == "variant":
        kind = info["model"]["kind"]
    return {"qbd": "QBD", "generator": "Generator"}.get(kind, "")


def _json(value: Any) -> Any:
    """Return a value as JSON gives it back; states that are keys become text such as ``0,1,0``."""
    if isinstance(value, Mapping):
        value = {",".join(map(str, key)) if isinstance(key, tuple) else str(key): one for key, one in value.items()}
    return json.loads(json.dumps(value, default=list))
