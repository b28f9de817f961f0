"""What a comparison is going to run: every model with every solver, tolerance and start; and what is known from before."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from ctmc import registry
from ctmc.comparison.attempt import WARM_UP
from ctmc.comparison.files import load_comparison
from ctmc.comparison.runs import ComparedModel, Comparison, Run
from ctmc.comparison.settings import Entry, Settings
from ctmc.comparison.warden import patience
from ctmc.errors import CTMCError, StorageError, StudyError, printable, shown
from ctmc.model.memory import parse_size
from ctmc.problem import PROBLEMS
from ctmc.storage import read_info
from ctmc.storage.question import project_version, question_hash
from ctmc.study.solver_grid import ALL, solvers_of


def plan(
    models: Sequence[str | os.PathLike[str] | Entry],
    solvers: str | Sequence[str] = "all",
    output: str | os.PathLike[str] | None = None,
    *,
    again: bool = False,
    memory_limit: int | str | None = None,
    **how: Any,
) -> Plan:
    """Return what `compare` is going to run; nothing is run, built or written.

    Parameters
    ----------
    models, solvers, again, memory_limit, **how
        As in `ctmc.comparison.compare.compare`, which see for what is raised.
    output : path-like, optional
        A comparison; what it has already is not run again unless `again` says so.

    Examples
    --------
    >>> found = plan([Entry("queue", None, kind="Generator", unbuilt=True)], "gth,gmres", time_limit=30.0)
    >>> [run.solver for run in found.runs], found.missing, found.longest_seconds
    (['gth', 'gmres'], [0, 1], 88.0)
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
            raise StudyError(f"two models have the name {shown(name)}; allowed is one of each name.")
    found = Plan(entries, settings)
    if output is not None:
        found.recall(known_comparison(Path(output)), again)
    return found


def known_comparison(path: Path) -> Comparison | None:
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


class Plan:
    """The runs of a comparison, before any is made.

    Parameters
    ----------
    entries : sequence of Entry
    settings : Settings

    Attributes
    ----------
    models : dict of str to ComparedModel
    files : dict of str to (Path or None)
    runs : list of Run
        In order; those that are known from before as they ended.
    missing : list of int
        Places of those that are to be made.
    earlier : dict of str to Run
        Runs that are known from before, by their keys.
    others : list of Run
        Known runs that are not asked for now and stay in the file, of the models `other_models`.
    """

    def __init__(self, entries: Sequence[Entry], settings: Settings) -> None:
        self.settings = settings
        self.models: dict[str, ComparedModel] = {}
        self.files: dict[str, Path | None] = {}
        self.unbuilt: set[str] = set()
        for entry in entries:
            self.add(entry)
        self.runs = list(self.planned())
        self.missing = list(range(len(self.runs)))
        self.earlier: dict[str, Run] = {}
        self.others: list[Run] = []
        self.other_models: dict[str, ComparedModel] = {}

    @property
    def longest_seconds(self) -> float:
        """What the solves of the missing runs take at most; loading, compiling, building and references come on top.

        That is until each of them is ended from outside; one that takes less than `WARM_UP` seconds is made once more.
        """
        settings = self.settings
        runs = sum(map(self.to_make, self.missing))
        longest = patience({"time_limit": settings.time_limit}, "solve")
        each = settings.repeats * longest + min(longest, WARM_UP)
        return each * math.ceil(runs / settings.jobs)

    def to_make(self, place: int) -> bool:
        """Return whether a missing run will be tried; of a model that cannot be had it will not."""
        name = self.runs[place].model
        return self.files[name] is not None or name in self.unbuilt

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
            kind=_kind(info) or entry.kind,
        )  # fmt: skip
        self.models[entry.name], self.files[entry.name] = model, entry.path
        names = [entry.name]
        for levels in self.settings.levels if model.kind == "QBD" else ():
            name = f"{entry.name} ({levels} levels)"
            self.models[name] = replace(model, name=name, levels=levels, kind="Generator")
            self.files[name] = entry.path
            names.append(name)
        self.unbuilt |= set(names if entry.unbuilt else ())

    def recall(self, known: Comparison | None, again: bool = False) -> None:
        """Take over runs that were made before, and what was found out about the same models.

        Those that are to be made again are not taken over.  Raises `StudyError` if the runs answer another question.
        """
        if known is None:
            return
        mine = Comparison("", self.settings.problem, {}, (), question=self.question_asked())
        if (mine.problem, mine.question) != (known.problem, known.question):
            raise StudyError(
                f"the question is {shown(mine.asked)}, and that of the output so far is {shown(known.asked)}; allowed is the same, or "
                "another output."
            )
        for name, model in self.models.items():
            old = known.models.get(name)
            if old is not None and _same(old, model):
                self.models[name] = replace(
                    model,
                    states=old.states,
                    entries=old.entries,
                    reference=old.reference,
                    reference_defect=old.reference_defect,
                )
        made = [run for run in known.runs if run.status not in ("NOT_RUN", "NO_MODEL")]
        self.earlier = {run.key: run for run in made if run.key}
        before = {} if again else self.earlier
        asked = {(run.model, run.label, run.tolerance) for run in self.runs}
        self.missing = [place for place, run in enumerate(self.runs) if run.key not in before]
        self.runs = [before.get(run.key, run) for run in self.runs]
        for run in made:  # those not asked for now stay, unless they are about a model that has changed since
            old, now = known.models[run.model], self.models.get(run.model)
            if (now is None or _same(old, now)) and (run.model, run.label, run.tolerance) not in asked:
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
                            command=self.command(model, solver, tolerance, previous if start == "warm" else None),
                            status="NO_MODEL" if self.files[name] is None and name not in self.unbuilt else "NOT_RUN",
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
        """Return a tolerance, where none is given that of the problem."""
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

    def command(
        self, model: ComparedModel, solver: str, tolerance: float | None, previous: ComparedModel | None
    ) -> str:
        """Return what to type to do one run again; of a warm one with those that it needs, itself the last."""
        settings = self.settings
        parts = ["ctmc compare", *(quote(one.path) for one in (previous, model) if one), "--solvers", quote(solver)]
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
        return " ".join(parts + (["--warm"] if previous is not None else []))

    def question_asked(self) -> dict[str, Any]:
        """Return what the problem asks beside the tolerance, as JSON takes it."""
        return {name: _json(value) for name, value in self.settings.question.items()}


def _same(one: ComparedModel, other: ComparedModel) -> bool:
    return (one.content_hash, one.levels) == (other.content_hash, other.levels)


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
