"""``ctmc run``: a study from its file to one table, a result file and a picture."""

from __future__ import annotations

from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.options import code_option, file_type, limits, memory_option, names_starting, threads_option
from ctmc.cli.output import Output


def _study_names() -> list[str]:
    from ctmc.study.shipped import shipped_studies

    return shipped_studies()


def _run(study: str, output: str | None, threads: int | None, memory_limit: str | None, allow_code: bool) -> int:
    out = output_of(click.get_current_context())
    with limits(threads, memory_limit, allow_code):
        return _run_study(study, output, out)


def _watcher(out: Output) -> Any:
    from ctmc.cli.progress import Progress, monitor_for
    from ctmc.study.run import Watcher

    class Terminal(Watcher):
        """Shows the current step in the progress line."""

        def __init__(self) -> None:
            self.progress: Progress | None = None

        def step(self, number: int, total: int, label: str, tolerance: float | None) -> Any:
            self.close()
            self.progress = Progress(out, f"step {number} of {total}: {label}", tolerance or 0.5)
            return None if tolerance is None else monitor_for(self.progress, out.interrupts.stopped)

        def news(self, text: str) -> None:
            out.news(text)

        def stopped(self) -> bool:
            return out.interrupts.stopped()

        def close(self) -> None:
            if self.progress is not None:
                self.progress.close()

    return Terminal()


def _run_study(given: str, output: str | None, out: Output) -> int:
    from ctmc.study.results import plain_row
    from ctmc.study.run import run_study, table
    from ctmc.study.shipped import find_study
    from ctmc.study.study import read_study

    study = read_study(find_study(given))
    watcher = _watcher(out)

    def announce() -> None:
        if watcher.progress is not None:
            watcher.progress.clear()
        out.news("Stopping at the next step, what is done will be stored; Ctrl-C again leaves at once.")

    with out.interrupts.gentle(announce):
        try:
            result = run_study(study, output, watcher=watcher)
        finally:
            watcher.close()
        picture = _picture(study, result, out)
        plots = _plots(study, result, out)
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
                "failed": sum(row.status != "CONVERGED" for row in result.rows),
                "rows": [plain_row(row) for row in result.rows],
            }
        )
    else:
        out.table(*table(result.rows))
    told = set()
    for row in result.rows:
        key = (row.model, row.problem, row.solver, row.message)
        if row.message and key not in told:
            told.add(key)
            out.line(f"ctmc: {_line(row)}")
    out.news(f"Results: {result.output}")
    return code


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
        click.Argument(["study"], type=file_type(), metavar="STUDY", shell_complete=names_starting(_study_names)),
        click.Option(
            ["-o", "--output"],
            type=file_type(),
            metavar="FILE",
            help="Result file; default: what the study names.  Models, solutions and the picture go beside it.",
        ),
        memory_option(),
        threads_option(),
        code_option(),
    ],
    help="Run a study: a TOML file, or the name of one that comes with the package, such as 'quickstart'.\n\n"
    "Each model is built once and stored, each question is answered by each solver, each answer is certified.  A step that "
    "fails is a row of the table; the others still run, and the exit code is 1.",
)
