"""``ctmc run``: a study from its file to one table, a result file and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.options import (
    code_option,
    file_type,
    folder_type,
    limits,
    memory_option,
    names_starting,
    study_names,
    threads_option,
)
from ctmc.cli.output import Output

_SHOWN = 20
"""Most models that are named one by one without --why."""


def _run(
    study: str,
    output: str | None,
    changes: tuple[str, ...],
    why: bool,
    threads: int | None,
    memory_limit: str | None,
    allow_code: bool,
    executor: str,
    scheduler: str | None,
    allow_insecure_scheduler: bool,
    **how: Any,
) -> int:
    from ctmc.study.executors import opened

    out = output_of(click.get_current_context())
    with (
        limits(threads if executor == "processes" else None, memory_limit, allow_code),
        opened(executor, scheduler, allow_insecure=allow_insecure_scheduler) as others,
    ):
        how |= {"executor": others, "threads": None if executor == "processes" else threads}
        return _run_study(study, output, out, changes, why, how)


def _watcher(out: Output) -> Any:
    from ctmc.cli.live import LiveTable
    from ctmc.cli.progress import Progress, monitor_for
    from ctmc.study.run import Watcher

    class Terminal(Watcher):
        """Shows the current step in the progress line."""

        def __init__(self) -> None:
            self.progress: Progress | None = None
            self.tasks_table: LiveTable | None = None

        def step(self, number: int, total: int, label: str, tolerance: float | None) -> Any:
            self.close()
            self.progress = Progress(out, f"step {number} of {total}: {label}", tolerance or 0.5)
            return None if tolerance is None else monitor_for(self.progress, out.interrupts.stopped)

        def tasks(self, running: Sequence[str], finished: int, failed: int, total: int) -> None:
            if self.tasks_table is None:
                self.tasks_table = LiveTable(out, "tasks")
            self.tasks_table.show(running, finished, failed, total)

        def finished(self, label: str, seconds: float, failed: bool) -> None:
            if self.tasks_table is None or not self.tasks_table.active:
                out.news(f"{label}: {'failed' if failed else 'done'} after {seconds:.1f} s")

        def news(self, text: str) -> None:
            out.news(text)

        def stopped(self) -> bool:
            return out.interrupts.stopped()

        def close(self) -> None:
            if self.progress is not None:
                self.progress.close()
            if self.tasks_table is not None:
                self.tasks_table.close()

    return Terminal()


def _run_study(
    given: str, output: str | None, out: Output, changes: tuple[str, ...], why: bool, how: dict[str, Any]
) -> int:
    from ctmc.errors import StudyError, printable
    from ctmc.study.results import plain_row
    from ctmc.study.run import run_study, table
    from ctmc.study.shipped import find_study
    from ctmc.study.study import read_study

    study = read_study(find_study(given), changes)
    if study.compare is not None:
        compare = f"ctmc compare {given}"
        if not study.solves:
            raise StudyError(f"{printable(study.source)} has no [[solve]] but a table [compare]: '{compare}' runs it.")
        out.news(f"The study also has a table [compare]: '{compare}' runs that.")
    watcher = _watcher(out)

    def announce() -> None:
        for shown in (watcher.progress, watcher.tasks_table):
            if shown is not None:
                shown.clear()
        out.news("Stopping at the next step, what is done will be stored; Ctrl-C again leaves at once.")

    with out.interrupts.gentle(announce):
        try:
            result = run_study(study, output, watcher=watcher, **how)
        finally:
            watcher.close()
        picture = None if result.dry else _picture(study, result, out)
        plots = [] if result.dry else _plots(study, result, out)
    code = 1 if result.failed else 0
    if result.stopped:
        code = out.interrupts.exit_code
    if out.json:
        out.document(
            {
                "study": study.title,
                "output": str(result.output),
                "picture": picture,
                "plots": plots,
                "failed": 0 if result.dry else sum(row.status != "CONVERGED" for row in result.rows),
                "dry_run": result.dry,
                "models": [_model(name, supplied) for name, supplied in result.models.items()],
                "savings": [{**asdict(saving), "estimate": saving.estimate} for saving in result.savings],
                "rows": [plain_row(row) for row in result.rows],
            }
        )
    else:
        out.table(*(_plan(result) if result.dry else table(result.rows)))
    _tell(result, out, why)
    told = set()
    for row in result.rows:
        key = (row.model, row.problem, row.solver, row.message)
        if row.message and key not in told:
            told.add(key)
            out.line(f"ctmc: {_line(row)}")
    if not result.dry:
        out.news(f"Results: {result.output}")
    return code


def _model(name: str, supplied: Any) -> dict[str, Any]:
    file = None if supplied.path is None else str(supplied.path)
    return {"name": name, "done": supplied.done, "why": supplied.why, "file": file}


def _plan(result: Any) -> tuple[list[str], list[list[Any]]]:
    """Return the table of a dry run."""
    columns = ["model", "problem", "solver", "model_done", "done"]
    return columns, [[getattr(row, column) for column in columns] for row in result.rows]


def _tell(result: Any, out: Output, why: bool) -> None:
    """Say what was done again and what was not, one by one where the reasons are asked for."""
    # the rows of one answer at several times are one solve
    answers = {
        (row.model_file, row.problem, row.solver, row.solution_file or row.why): row for row in result.rows if row.done
    }
    if why:
        for name, supplied in result.models.items():
            out.news(f"{name}: {supplied.done} ({supplied.why.rstrip('.')})")
        for row in answers.values():
            out.news(f"{row.model}, {row.problem}, {row.solver}: {row.done} ({row.why.rstrip('.')})")
    else:
        for name, supplied in list(result.models.items())[:_SHOWN]:
            if supplied.done not in ("reused", "built: new"):
                out.news(f"{name}: {supplied.done}")
    for saving in result.savings:
        out.news(str(saving))
    models = [supplied.done for supplied in result.models.values()]
    done = [row.done for row in answers.values()]
    out.news(f"Models: {_counted(models)}.  Answers: {_counted(done)}." + ("" if why else "  --why tells the reasons."))


def _counted(done: list[str]) -> str:
    words = Counter(text.partition(":")[0] for text in done)
    return ", ".join(f"{count} {word}" for word, count in sorted(words.items())) or "none"


def _line(row: Any) -> str:
    from ctmc.errors import printable

    return printable(f"{row.model}, {row.problem}{', ' + row.solver if row.solver else ''}: {row.message}")


def _picture(study: Any, result: Any, out: Output) -> str | None:
    """Draw the convergence histories; a run without its picture is still a run."""
    from ctmc.errors import CTMCError
    from ctmc.study.plots import draw_convergence
    from ctmc.study.results import picture_path

    histories = [history for history in result.histories if not history.swept]
    if not histories:
        return None
    path = picture_path(result.output)
    try:
        draw_convergence(histories, study.title, path)
    except ImportError:
        out.news("No picture of the convergence: it needs matplotlib, python -m pip install 'ctmc-lab[plots]'.")
        return None
    except CTMCError as error:
        out.news(f"No picture of the convergence: {error}")
        return None
    out.news(f"Picture: {path}")
    return str(path)


def _plots(study: Any, result: Any, out: Output) -> list[str | None]:
    """Draw the ``[[plot]]``s; None stands for one that could not be drawn."""
    from ctmc.errors import CTMCError
    from ctmc.study.plots import draw_panels
    from ctmc.study.results import plot_path
    from ctmc.study.run import line_data

    paths: list[str | None] = []
    for number, plot in enumerate(study.plots):
        path = plot_path(result.output, number)
        lines = line_data(plot, result.rows)
        why = "" if lines else f"no certified answer has numbers for {plot.x!r} and {plot.y!r}."
        try:
            if lines:
                draw_panels(lines, _axis(plot.x), plot.y, plot.title, path)
        except ImportError:
            why = "it needs matplotlib, python -m pip install 'ctmc-lab[plots]'."
        except CTMCError as error:
            why = str(error)
        out.news(f"No plot {number + 1}: {why}" if why else f"Plot: {path}")
        paths.append(None if why else str(path))
    return paths


def _axis(x: str) -> str:
    return "time (in the model's unit)" if x == "time" else x


command = Command(
    "run",
    csv=True,
    callback=_run,
    params=[
        click.Argument(
            ["study"], type=file_type(), metavar="STUDY", shell_complete=names_starting(study_names, files=True)
        ),
        click.Option(
            ["-o", "--output"],
            type=file_type(),
            metavar="FILE",
            help="Result file; default: what the study names.  Models, solutions and the picture go beside it.",
        ),
        click.Option(
            ["--store"],
            type=folder_type(),
            metavar="FOLDER",
            help="Where models and solutions are kept and found; default CTMC_STORE, or a folder beside the result.",
        ),
        click.Option(
            ["--set", "changes"],
            multiple=True,
            metavar="KEY=VALUE",
            help="Change a parameter (MODEL.KEY of one model only) or the tolerance; arrival_rate=1,2,3 and choices=1:5 sweep.",
        ),
        click.Option(["--dry-run"], is_flag=True, help="Show what would be reused, built and solved, and do nothing."),
        click.Option(["--why"], is_flag=True, help="Tell the reason of every step in full."),
        click.Option(["--fail-fast"], is_flag=True, help="End with the first step that fails."),
        click.Option(
            ["--jobs"],
            type=int,
            default=1,
            metavar="N",
            help="Processes that work at a time, and share threads and memory; default 1.",
        ),
        click.Option(
            ["--executor"],
            type=click.Choice(["processes", "dask", "mpi"]),
            default="processes",
            help="Who works: processes of this machine, a Dask cluster (--scheduler), or ranks of mpiexec.  "
            "All must see the store, and --threads is for each worker.",
        ),
        click.Option(["--scheduler"], metavar="ADDRESS", help="Of Dask: localhost:8786, or tls://HOST:PORT."),
        click.Option(
            ["--allow-insecure-scheduler"],
            is_flag=True,
            help="Speak to a scheduler on another machine without TLS: whoever can do so, too, can run code here.",
        ),
        click.Option(["--rebuild", "--no-cache"], is_flag=True, help="Build and solve everything anew."),
        memory_option(),
        threads_option(),
        code_option(),
    ],
    help="Run a study: a TOML file, or the name of one that comes with the package, such as 'quickstart'.\n\n"
    "Each model is built once and stored, each question is answered by each solver, each answer is certified.  What the store "
    "has already is verified and not done again.  A step that fails is a row of the table; the others still run, and the exit "
    "code is 1.",
)
