"""Run a study: build each structure once, answer each question, and keep everything."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

from ctmc.errors import StudyError
from ctmc.study import results
from ctmc.study.content import Study
from ctmc.study.executors import Crew, Given, Processes
from ctmc.study.locks import only_run
from ctmc.study.parallel import ParallelWork
from ctmc.study.plan import Plan
from ctmc.study.rows import History, Row, StudyResult, places
from ctmc.study.tables import line_data, table
from ctmc.study.warm import savings
from ctmc.study.watcher import Watcher
from ctmc.study.work import Work

MOST_JOBS = 1024


def run_study(
    study: Study,
    output: str | Path | None = None,
    *,
    watcher: Watcher | None = None,
    store: str | Path | None = None,
    rebuild: bool = False,
    fail_fast: bool = False,
    dry_run: bool = False,
    jobs: int = 1,
    executor: Executor | None = None,
    threads: int | None = None,
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
    jobs : int
        How many processes work at a time; a script that asks for several needs the usual ``if __name__ == "__main__"``.
    executor : concurrent.futures.Executor, optional
        Works instead of them, and is not shut down.  Its workers must see the store under the same path.
    threads : int, optional
        Of each worker; by default `jobs` processes share those of this one, and other workers have what they have.

    Returns
    -------
    StudyResult

    Raises
    ------
    StudyError
        If the output is not allowed, or another run is writing it; if `jobs` is no number of processes.
    StorageError
        If the result cannot be written.
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= MOST_JOBS:
        raise StudyError(f"jobs is {jobs!r}; allowed is a whole number from 1 to {MOST_JOBS}.")
    if executor is not None and jobs > 1:
        raise StudyError(
            f"jobs is {jobs}, but an executor is given, which has its own workers; allowed is one of both."
        )
    watcher = watcher or Watcher()
    path = results.output_path(study, output)
    if dry_run:
        plan = Plan(study, results.planned_store(path, store), watcher, rebuild=rebuild)
        plan.plan()
        return StudyResult(plan.rows, (), path, stopped=watcher.stopped(), models=plan.supplied, dry=True)
    with only_run(path):
        results.prepare(path, trusted=output is not None)
        found = results.open_store_of(path, store, watcher.news)
        work: Work | ParallelWork
        if executor is None and jobs == 1:
            work = Work(study, found, watcher, rebuild=rebuild, fail_fast=fail_fast)
            work.build()
            work.solve()
        else:
            crew: Crew = Processes(jobs, threads) if executor is None else Given(executor, threads)
            work = ParallelWork(study, found, watcher, crew, rebuild=rebuild, fail_fast=fail_fast)
            work.work()
        histories = work.histories
        result = StudyResult(
            work.rows,
            tuple(histories[place] for place, _, _ in places(study) if place in histories),
            path,
            stopped=watcher.stopped(),
            models=work.supplied,
            savings=savings(work.counts),
        )
        results.write(study, result)
    return result


__all__ = ["History", "Row", "StudyResult", "Watcher", "line_data", "run_study", "table"]
