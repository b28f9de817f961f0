"""A run in parallel: tasks are handed to workers, and their reports put together in the order of the study."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import replace
from pathlib import Path

from ctmc.model.recipe import code_is_allowed
from ctmc.solution import Status
from ctmc.storage.question import project_version
from ctmc.storage.store import LOCKS, Store
from ctmc.study.content import Study
from ctmc.study.executors import Crew
from ctmc.study.models import REUSED, Supplied, Supply
from ctmc.study.rows import History, Place, Row, dressed, places, row_without_answer, sentence
from ctmc.study.tasks import Orders, Report, Task, tasks_of, work_off
from ctmc.study.warm import Count
from ctmc.study.watcher import Watcher

_LOOK_SECONDS = 0.2
"""How often it is looked whether the run is to end."""
_DIED = "the process that worked on it ended without an answer: it was killed, or crashed."


class ParallelWork:
    """What `Work` is for a run in one process; its attributes are filled from the reports.

    Parameters
    ----------
    study : Study
    store : Store
    watcher : Watcher
    crew : Crew
    rebuild, fail_fast : bool
        As of `ctmc.study.run_study`.
    """

    def __init__(
        self, study: Study, store: Store, watcher: Watcher, crew: Crew, *, rebuild: bool, fail_fast: bool
    ) -> None:
        self.study, self.watcher, self.crew, self.fail_fast = study, watcher, crew, fail_fast
        self.folder = store.folder.resolve()
        self.stop = self.folder / LOCKS / f"{uuid.uuid4().hex}.stop"
        self.orders = Orders(
            str(self.folder), tuple(str(folder.resolve()) for folder in store.others), str(self.stop), project_version(),
            rebuild, fail_fast, code_is_allowed(), crew.threads, crew.memory,
        )  # fmt: skip
        self.supply = Supply(store, rebuild=rebuild, news=watcher.news, stopped=watcher.stopped)
        self.tasks = tasks_of(study, rebuild=rebuild)
        self.reports: dict[int, Report] = {}
        self.running: dict[Future[Report], Task] = {}
        self.ready = deque(task for task in self.tasks if task.after is None)
        self.alone: deque[Task] = deque()
        self.failed = 0
        self.isolated = False

    def work(self) -> None:
        """Let all tasks be worked off, until the watcher stops it or one fails that must not."""
        self.supply.learn({model.builder for model in self.study.models.values() if model.builder})
        try:
            while self.ready or self.alone or self.running:
                halted = bool(self.halted())
                if halted:
                    self.call_off(self.watcher.stopped())
                else:
                    self.hand_over()
                if not self.running:
                    break
                done, _ = wait(self.running, _LOOK_SECONDS, FIRST_COMPLETED)
                self.collect(done)
                self.tell()
        except BaseException:
            self.call_off(True)
            raise
        finally:
            self.crew.close()
            with contextlib.suppress(OSError):
                self.stop.unlink()

    def halted(self) -> str:
        """Return why no further task begins, '' while they do."""
        if self.watcher.stopped():
            return "the run was interrupted"
        return "--fail-fast ended the run at a step that failed" if self.fail_fast and self.failed else ""

    def call_off(self, everything: bool) -> None:
        """Take back what has not begun; with `everything`, let what has begun end at its next look.

        Executors of others may take back what has begun, too, and nobody would wait for its end: with `everything` all that
        they have is left to end by itself.
        """
        if not everything or self.crew.window is not None:
            for future in self.running:
                future.cancel()
        if everything and not self.stop.exists():
            with contextlib.suppress(OSError):
                self.stop.parent.mkdir(exist_ok=True)
                self.stop.touch()

    def hand_over(self) -> None:
        """Give the crew as much as it takes; after a worker has died, one task at a time until it is known which it was."""
        if (self.isolated or self.alone) and self.running:
            return
        self.isolated = bool(self.alone)
        waiting, window = (self.alone, 1) if self.alone else (self.ready, self.crew.window)
        while waiting and (window is None or len(self.running) < window):
            task = waiting.popleft()
            for again in (False, True):
                try:
                    self.running[self.crew.submit(work_off, self.placed(task.study), self.orders)] = task
                    break
                except BrokenExecutor:  # a worker has died since the last look
                    if self.running:
                        waiting.appendleft(task)
                        return
                    if again or not self.crew.renew():
                        self.report(task, Report(error=_DIED))
                        break

    def placed(self, study: Study) -> Study:
        """Return a task's study; other hosts, which have other current folders, are told where its files are."""
        source = Path(study.source)
        if self.crew.window is not None or not source.is_file():
            return study
        return replace(study, source=os.fspath(source.resolve()))

    def collect(self, done: set[Future[Report]]) -> None:
        """Take the reports of tasks that have ended."""
        broken = any(not future.cancelled() and isinstance(future.exception(), BrokenExecutor) for future in done)
        if broken:  # all that was handed over has gone with the worker that died
            done = wait(self.running).done
        suspects = []
        for future in sorted(done, key=lambda future: self.running[future].number):
            task = self.running.pop(future)
            try:
                self.report(task, future.result())
            except CancelledError:
                continue
            except BrokenExecutor:
                suspects.append(task)
            except Exception as error:
                self.report(task, Report(error=sentence(error)))
        if not broken:
            return
        renewed = self.crew.renew()
        if self.watcher.stopped():
            return
        if renewed and len(suspects) > 1:
            self.alone.extend(suspects)
            return
        for task in suspects:
            self.report(task, Report(error=_DIED))

    def report(self, task: Task, report: Report) -> None:
        """Keep a report, and let begin what waited for it."""
        self.reports[task.number] = report
        self.ready.extend(other for other in self.tasks if other.after == task.number)
        for line in report.news:
            self.watcher.news(line)
        if task.only_builds:
            return  # its model comes again, with its questions, and so does what went wrong
        rows = [row for rows in report.answers.values() for row in rows]
        failed = bool(report.error) or any(row.status != Status.CONVERGED.name for row in rows)
        self.failed += failed
        self.watcher.finished(task.label, report.seconds, failed)

    def tell(self) -> None:
        """Tell the watcher where the run is."""
        ended = sum(not self.tasks[number].only_builds for number in self.reports)
        total = sum(not task.only_builds for task in self.tasks)
        self.watcher.tasks([task.label for task in self.running.values()], ended, self.failed, total)

    def _in_order(self) -> Iterator[tuple[Task, Report]]:
        for number in sorted(self.reports):
            yield self.tasks[number], self.reports[number]

    @property
    def supplied(self) -> dict[str, Supplied]:
        """What was done for each model, by the first task that had it unless a later one had to build it again."""
        found: dict[str, Supplied] = {}
        for _, report in self._in_order():
            for name, supplied in report.supplied.items():
                if name not in found or supplied.done != REUSED:
                    found[name] = self.supply.reasoned(supplied, report.recipes.get(name))
        return {name: found[name] for name in self.study.models if name in found}

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, in the order of the study."""
        answers: dict[Place, list[Row]] = {}
        searched: dict[str, dict[str, object]] = {}
        errors: dict[str, str] = {}
        for task, report in self._in_order():
            answers |= report.answers
            searched |= report.found
            if report.error and not task.only_builds:
                errors |= dict.fromkeys(task.study.models, report.error)
        reason = self.halted()
        for place, _, _ in places(self.study):
            if place not in answers:
                error = errors.get(place[1])
                status, message = ("ERROR", error) if error else ("NOT_RUN", f"{reason} before this step.")
                answers[place] = [row_without_answer(self.study, place, status, message)]
        return dressed(self.study, answers, self.supplied, searched)

    @property
    def histories(self) -> dict[Place, History]:
        """Histories by their places."""
        return {place: history for _, report in self._in_order() for place, history in report.histories.items()}

    @property
    def counts(self) -> list[Count]:
        """What answers on the paths of warm sweeps have cost."""
        return [count for _, report in self._in_order() for count in report.counts]
