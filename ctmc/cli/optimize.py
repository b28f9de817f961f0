"""``ctmc optimize``: one sub-command for each builder, with its parameters as flags."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.build import Builders, function_flags
from ctmc.cli.docstring import read_docstring
from ctmc.cli.groups import needs_name
from ctmc.cli.options import (
    code_option,
    file_type,
    given_values,
    limits,
    memory_option,
    names_starting,
    solver_names,
    threads_option,
)
from ctmc.errors import printable

_SHOWN = 5
_TIES_SHOWN = 8
_CURVE_POINTS = 60
CRITERION_NAMES = ("long-run", "finite-time", "discounted")
"""As in `ctmc.study.criteria.CRITERIA`, which is too slow to import for --help; a test compares them."""


def _optimize(
    builder: str,
    over: tuple[str, ...],
    minimize: str | None,
    maximize: str | None,
    criterion: str,
    horizon: float | None,
    discount: float | None,
    initial: str | None,
    maximum: int | None,
    total_rate: float | None,
    measured_rates: str,
    method: str,
    evaluations: int,
    locally_biased: bool,
    solver: str | None,
    tolerance: float | None,
    show: int,
    plot: str | None,
    threads: int | None,
    memory_limit: str | None,
    allow_code: bool,
    **values: Any,
) -> int:
    from ctmc.cli.progress import Progress
    from ctmc.cli.question import parse_initial
    from ctmc.study.optimize import optimize

    out = output_of(click.get_current_context())
    if (minimize is None) == (maximize is None):
        raise click.UsageError(
            "Missing option '--minimize' or '--maximize'; allowed is exactly one of both."
            if minimize is None
            else "--minimize is given with --maximize; allowed is one of both."
        )
    if plot is not None:
        _check_plot(Path(plot))
    with limits(threads, memory_limit, allow_code):
        progress = Progress(out, f"optimizing {', '.join(over)}", 0.5)
        begin = time.perf_counter()

        def announce() -> None:
            progress.clear()
            out.news("Stopping after this candidate; Ctrl-C again leaves at once.")

        def watch(done: int, points: int, best: Any) -> bool:
            progress.count(min(done, points), points, "" if best is None else f"best {best.cost:.8g} at {_point(best)}")
            return out.interrupts.stopped()

        try:
            with out.interrupts.gentle(announce):
                found = optimize(
                    builder, given_values(values), over, minimize, maximize=maximize, criterion=criterion, horizon=horizon,
                    discount=discount, initial=None if initial is None else parse_initial(initial), maximum=maximum,
                    total_rate=total_rate, measured_rates=measured_rates, method=method, evaluations=evaluations,
                    locally_biased=locally_biased, curve_points=0 if plot is None else _CURVE_POINTS, solver=solver,
                    tolerance=tolerance, watch=watch,
                )  # fmt: skip
        finally:
            progress.close()
        seconds = time.perf_counter() - begin
    if plot is not None:
        _draw(found, Path(plot), out)
    return _report(builder, found, seconds, show, plot, out)


def _check_plot(path: Path) -> None:
    """Refuse before the search what could not be drawn after it."""
    from ctmc.errors import StorageError

    if path.suffix.lower() != ".png":
        raise StorageError(f"Cannot draw {printable(path)}: allowed is a name that ends with .png.")
    if not path.parent.is_dir():
        raise StorageError(f"Cannot write {printable(path)}: there is no folder {printable(path.parent)}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise StorageError("--plot needs matplotlib, python -m pip install 'ctmc-lab[plots]'.")


def _draw(found: Any, path: Path, out: Any) -> None:
    from ctmc.study.curve_plot import draw_curves

    if not found.curves:
        out.news("No plot: the search was interrupted before its curves.")
        return
    draw_curves(found.curves, cost_name(found), path)
    out.news(f"Plot: {path}")


def cost_name(found: Any) -> str:
    """Return how the cost of an optimum is called in tables and plots."""
    criterion = found.criterion
    if criterion.name == "finite-time":
        return f"accumulated({found.objective})"
    return f"discounted({found.objective})" if criterion.name == "discounted" else str(found.objective)


def _point(candidate: Any) -> str:
    return " ".join(map(_value, candidate.values.values()))


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_value, value))
    return f"{value:.9g}" if isinstance(value, float) else printable(value)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | list) else printable(repr(value))


def _report(builder: str, found: Any, seconds: float, show: int, plot: str | None, out: Any) -> int:
    from ctmc.solution import flat_measures

    best = [candidate for candidate in found.candidates if not candidate.message][:show]
    code = out.interrupts.exit_code if found.stopped else 1 if found.failed or not best else 0
    names = found.parameters
    one_list = len(names) == 1 and found.scalar
    if out.json:
        over_time = {
            name: value
            for name, value in (("horizon", found.criterion.horizon), ("discount", found.criterion.discount))
            if value is not None
        }
        out.document(
            {
                "builder": builder,
                "parameter": found.parameter,
                "maximize" if found.maximize else "minimize": found.objective,
                "criterion": found.criterion.name,
                **over_time,
                "method": found.method,
                "points": found.points,
                "evaluations": found.evaluations,
                "solved": len(found.candidates),
                "ruled_out": found.ruled_out,
                "failed": len(found.failed),
                "stopped": found.stopped,
                "seconds": seconds,
                "plot": plot,
                "attained": found.attained,
                "ties": [
                    {"first": tie.first, "second": tie.second, "difference": tie.difference, "exact": tie.exact}
                    for tie in found.ties
                ],
                "sides": [dataclasses.asdict(side) for side in found.sides],
                "best": [
                    {
                        **({names[0]: list(one.point)} if one_list else {k: _plain(v) for k, v in one.values.items()}),
                        "cost": one.cost,
                        "status": "CONVERGED",
                        "defect": one.defect,
                        "measures": one.measures,
                    }
                    for one in best
                ],
            }
        )
    else:
        flat = [flat_measures(one.measures) for one in best]
        title = cost_name(found)
        measures = [name for name in (flat[0] if flat else ()) if name != title]
        out.table(
            [*names, title, "defect", *measures],
            [
                [*map(_value, one.values.values()), one.cost, one.defect, *(numbers[name] for name in measures)]
                for one, numbers in zip(best, flat, strict=True)
            ],
        )
    for candidate in found.failed[:3]:
        out.line(f"ctmc: {found.parameter} {_point(candidate)}: {candidate.message}")
    _say_ties(found, out)
    if found.stopped:
        what = "the best of those solved until the interrupt"
    elif any(candidate.cube for candidate in found.candidates):
        what = "the best that was found"
    elif found.method == "exhaustive":
        what = f"the {'greatest' if found.maximize else 'least'} of all points"
    else:
        what = "a local optimum"
    solved = f"{len(found.candidates):,} of {found.points:,} points solved, {found.ruled_out:,} ruled out by bounds"
    if any(candidate.cube for candidate in found.candidates):  # where routing is the same nothing is solved again
        solved = f"{found.evaluations:,} points looked at, {len(found.candidates):,} solved"
    out.news(f"{found.method}: {solved}, {seconds:.1f} s; the first row is {what}.")
    return int(code)


def _say_ties(found: Any, out: Any) -> None:
    """Say where the cost jumps around the first row."""
    if found.ties:
        more = f", and {len(found.ties) - _TIES_SHOWN} more" if len(found.ties) > _TIES_SHOWN else ""
        exact = sum(tie.exact for tie in found.ties)
        out.news(
            f"Ties of the first row, (server, jobs) ~ (server, jobs), {exact} exact and {len(found.ties) - exact} close: "
            f"{', '.join(map(str, found.ties[:_TIES_SHOWN]))}{more}."
        )
    for side in found.sides:
        word = "above" if side.direction > 0 else "below"
        here = f"Jump {word} it at {side.parameter} {side.at:.9g}: {side.on_tie:.9g} there, {side.beyond:.9g} beyond"
        end = "." if side.attained else "; the cost improves up to there and is not attained: an infimum."
        out.news(here + end)


_EXAMPLES = {
    "supermarket": "\n\nExamples:\n\n"
    "  ctmc optimize supermarket --service-rates 3,2,1 --arrival-rate 3 --capacity 9 --over choices=1:3 --over weights "
    "--minimize imbalance --measured-by tandem\n\n"
    "  ctmc optimize supermarket --service-rates 3,2,1 --arrival-rate 3 --capacity 9 --choices 2 --over split "
    "--total-rate 6 --minimize response_time --plot split.png\n\n"
    "  ctmc optimize supermarket --service-rates 3,2,1 --arrival-rate 3 --capacity 9 --choices 2 "
    "--over selection=tandem,weighted,shortest_queue --maximize balance --measured-by tandem --criterion finite-time "
    "--horizon 10 --initial 0,0,0",
}


def optimize_command(name: str) -> Command:
    """Return the command of a builder; the parameter that is optimised need not be given, so no flag is required."""
    from ctmc import registry

    designs = sorted(registry.builder_designs(name))
    over = " or ".join([*designs, "PARAMETER=BEGIN:END", "PARAMETER=VALUE,VALUE"])
    own: list[click.Parameter] = [
        click.Option(["--over"], required=True, multiple=True, metavar="DESIGN",
                     help=f"What may change: {over}; given several times, all combinations."),
        click.Option(["--minimize"], metavar="COST",
                     help="A measure, or arithmetic over measures: 'response_time + 0.1*busy_servers'."),
        click.Option(["--maximize"], metavar="COST", help="The same, to be greatest."),
        click.Option(["--criterion"], type=click.Choice(CRITERION_NAMES), default=CRITERION_NAMES[0], show_default=True,
                     help="The measure in the long run; the reward accumulated until the horizon, E[Phi(t)]; or discounted."),
        click.Option(["--horizon"], type=float, metavar="TIME", help="Of the criterion finite-time."),
        click.Option(["--discount"], type=float, metavar="RATE", help="Of the criterion discounted."),
        click.Option(["--initial"], metavar="STATE", help="State at the start, such as 0,0,0; default: the model's own."),
        click.Option(["--maximum"], type=int, metavar="N", help="Largest number of a design of whole numbers."),
        click.Option(["--total-rate"], type=float, metavar="RATE",
                     help="What --over split splits; default the sum of the service rates that are given."),
        click.Option(["--measured-rates"], type=click.Choice(["given", "candidate"]), default="given", show_default=True,
                     help="Which service rates judge the states where the design changes them."),
        click.Option(["--method"], type=click.Choice(["exhaustive", "coordinate"]), default="exhaustive", show_default=True,
                     help="All points, except those that proved bounds rule out; or a local search."),
        click.Option(["--evaluations"], type=click.IntRange(1, 1_000_000), default=500, show_default=True,
                     help="Of real numbers: points looked at for each combination of the other designs."),
        click.Option(["--locally-biased/--no-locally-biased"], default=True, show_default=True,
                     help="Of real numbers: look more around the best points, or more evenly."),
        click.Option(["--solver"], metavar="NAME", shell_complete=names_starting(solver_names),
                     help="A solver of the criterion's problem, also with options."),
        click.Option(["--tolerance"], type=float, metavar="FLOAT", help="Largest accepted defect of each candidate."),
        click.Option(["--show"], type=click.IntRange(1), default=_SHOWN, show_default=True, help="Rows of the table."),
        click.Option(["--plot"], type=file_type(), metavar="FILE.png",
                     help="Draw the cost along each design through the best point."),
        memory_option(),
        threads_option(),
        code_option(),
    ]  # fmt: skip
    summary = read_docstring(registry.builder(name)).summary
    command = Command(
        name,
        csv=True,
        callback=partial(_optimize, name),
        params=own,
        help=f"Minimise or maximise a cost over parameters of {name}.  {summary}\n\nThe answer for each candidate is "
        f"certified.{_EXAMPLES.get(name, '')}",
    )
    taken = [flag for parameter in command.params for flag in parameter.opts]
    flags = function_flags(registry.builder(name), taken)
    for flag in flags:
        flag.required = False
    command.params = [*flags, *command.params]
    return command


command = Builders(
    "optimize",
    callback=needs_name("Missing the name of a builder; 'ctmc list builders' shows them."),
    invoke_without_command=True,
    params=[],
    help="Find the values of a model's parameters that make a measure least or greatest.\n\nExample:\n\n"
    "  ctmc optimize fork_join --service-rates 5,2,1 --arrival-rate 1 --tasks 3 --over thresholds --maximum 12 "
    "--minimize response_time",
    subcommand_metavar="BUILDER [PARAMETERS]... --over DESIGN --minimize COST",
)
command.make = optimize_command
