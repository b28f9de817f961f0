"""A study in parts that other processes can work off: what each of them is told, and what it gives back, as plain data.

A task is one model with its questions, or one path of a warm sweep.  Where several tasks have models of the same structure, one
more comes first, which builds the first model: the others then take it at other rates, as they do one after another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ctmc.errors import StudyError, printable
from ctmc.model.memory import limited_memory
from ctmc.model.recipe import Recipe, allowed_code
from ctmc.storage.question import project_version
from ctmc.storage.store import Store
from ctmc.study.content import Study
from ctmc.study.models import Supplied
from ctmc.study.parameters import names_code
from ctmc.study.rows import History, Place, Row, sentence
from ctmc.study.warm import Count, paths, structure_of
from ctmc.study.watcher import Monitor, Watcher
from ctmc.study.work import Work
from ctmc.threads import limited_threads

_LOOK_SECONDS = 0.2
"""How often a worker looks whether the run is to end."""


@dataclass(frozen=True)
class Task:
    """One part of a study.

    Attributes
    ----------
    number : int
        In the order of the study.
    study : Study
        The models of this part, and the questions about them; questions keep their numbers.
    after : int or None
        The task that builds a model of which this one takes others at other rates.
    """

    number: int
    study: Study
    after: int | None = None

    @property
    def label(self) -> str:
        """The first model, and how many there are."""
        first, *others = self.study.models
        return f"{first} and {len(others)} more" if others else first

    @property
    def only_builds(self) -> bool:
        """Whether it asks no question."""
        return not any(step.models for step in self.study.solves)


@dataclass(frozen=True)
class Orders:
    """What all tasks of a run have in common, for a process that may stand on another host.

    Attributes
    ----------
    folder : str
        Of the store, absolute.
    others : tuple of str
        Folders that are only read.
    stop : str
        A file: once it is there, the run is to end.
    version : str
        Of the project; a worker with another one does nothing.
    rebuild, fail_fast, allow_code : bool
    threads, memory : int or None
        Of each worker; None leaves all as it is.
    """

    folder: str
    others: tuple[str, ...]
    stop: str
    version: str
    rebuild: bool = False
    fail_fast: bool = False
    allow_code: bool = False
    threads: int | None = None
    memory: int | None = None


@dataclass(frozen=True)
class Report:
    """What a task has found, as the attributes of `Work`; `error` says why it could not begin."""

    error: str = ""
    seconds: float = 0.0
    supplied: dict[str, Supplied] = field(default_factory=dict)
    recipes: dict[str, Recipe] = field(default_factory=dict)
    found: dict[str, dict[str, object]] = field(default_factory=dict)
    unbuilt: dict[str, str] = field(default_factory=dict)
    answers: dict[Place, list[Row]] = field(default_factory=dict)
    histories: dict[Place, History] = field(default_factory=dict)
    counts: list[Count] = field(default_factory=list)
    news: list[str] = field(default_factory=list)


def tasks_of(study: Study, *, rebuild: bool = False) -> list[Task]:
    r"""Return the parts of a study, in its order.

    Examples
    --------
    >>> from ctmc.study import parse_study
    >>> text = '[models.q]\nbuilder = "birth_death"\ndeaths = [2.0]\nsweep = {births = [[1.0], [1.5]]}\n[[solve]]\n'
    >>> [(task.label, task.after) for task in tasks_of(parse_study(text))]
    [('q (births=1)', None), ('q (births=1)', 0), ('q (births=1.5)', 0)]
    >>> [task.label for task in tasks_of(parse_study(text + "warm = true\n"))]
    ['q (births=1) and 1 more']
    """
    way_of: dict[str, tuple[str, ...]] = {name: (name,) for name in study.models}
    for step in study.solves:
        for way in paths(study.models, step.models) if step.warm else ():
            way_of |= dict.fromkeys(way, tuple(way))
    parts = list(dict.fromkeys(way_of[name] for name in study.models))
    structures = {part: None if rebuild else _shared_structure(study, part[0]) for part in parts}
    first_of: dict[str | None, str] = {}
    for name in study.models:
        first_of.setdefault(structures.get(way_of[name]), name)
    several = [one for one in structures.values() if one is not None]
    leaders: dict[str, int] = {}
    tasks: list[Task] = []
    for part in parts:
        shared = structures[part]
        if shared is not None and shared not in leaders and several.count(shared) > 1:
            leaders[shared] = len(tasks)
            tasks.append(Task(len(tasks), _restricted(study, [first_of[shared]], asks=False)))
        tasks.append(Task(len(tasks), _restricted(study, part), None if shared is None else leaders.get(shared)))
    return tasks


def _shared_structure(study: Study, name: str) -> str | None:
    model = study.models[name]
    # models with code in their parameters are never taken at other rates
    return None if any(map(names_code, model.parameters.values())) else structure_of(model)


def _restricted(study: Study, names: Iterable[str], asks: bool = True) -> Study:
    """Return a study of some models, without its text; the questions keep their places, and their order of models."""
    chosen = set(names)
    return replace(
        study,
        text="",
        models={name: model for name, model in study.models.items() if name in chosen},
        solves=tuple(
            replace(step, models=tuple(name for name in step.models if asks and name in chosen))
            for step in study.solves
        ),
    )


class _Worker(Watcher):
    """Keeps the news, and looks from time to time whether the run is to end."""

    def __init__(self, stop: str) -> None:
        self.lines: list[str] = []
        self._stop, self._looked, self._stopped = Path(stop), -math.inf, False

    def step(self, number: int, total: int, label: str, tolerance: float | None) -> Monitor | None:
        return lambda iteration, defect: self.stopped()

    def news(self, text: str) -> None:
        self.lines.append(text)

    def stopped(self) -> bool:
        now = time.monotonic()
        if not self._stopped and now - self._looked > _LOOK_SECONDS:
            self._looked, self._stopped = now, self._stop.exists()
        return self._stopped


def work_off(study: Study, orders: Orders) -> Report:
    """Work off one task, in whatever process this is; errors come back as sentences.

    Parameters
    ----------
    study : Study
        Of the task.
    orders : Orders
    """
    begin = time.perf_counter()
    try:
        return _report(study, orders, begin)
    except Exception as error:  # an exception of any type need not survive the way back
        return Report(error=sentence(error), seconds=time.perf_counter() - begin)


def _report(study: Study, orders: Orders, begin: float) -> Report:
    if project_version() != orders.version:
        raise StudyError(
            f"the worker has version {project_version()} of ctmc-lab; allowed is that of the run, {orders.version}."
        )
    folder = Path(orders.folder)
    if not folder.is_dir():
        raise StudyError(
            f"the worker sees no folder {printable(folder)}; allowed is a store that all workers share (--store)."
        )
    watcher = _Worker(orders.stop)
    store = Store(folder, tuple(map(Path, orders.others)))
    with (
        limited_memory(orders.memory),
        limited_threads(_threads(orders.threads)),
        allowed_code(orders.allow_code),
    ):
        work = Work(study, store, watcher, rebuild=orders.rebuild, fail_fast=orders.fail_fast, reasons=False)
        work.build()
        work.solve()
    recipes = {
        name: replace(prepared.recipe, made_by=None)
        for name, prepared in work.prepared.items()
        if prepared.recipe is not None
    }
    return Report(
        "", time.perf_counter() - begin, work.supplied, recipes, work.found, work.unbuilt, work.answers,
        work.histories, work.counts, watcher.lines,
    )  # fmt: skip


def _threads(number: int | None) -> int | None:
    """Return a number of threads that this process can have."""
    if number is None:
        return None
    import numba

    return min(number, int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]  # set when numba starts
