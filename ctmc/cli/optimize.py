"""``ctmc optimize``: one sub-command for each builder, with its parameters as flags."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.build import Builders, function_flags
from ctmc.cli.docstring import read_docstring
from ctmc.cli.options import code_option, given_values, limits, memory_option, threads_option

_SHOWN = 5


def _optimize(
    builder: str,
    over: str,
    minimize: str,
    maximum: int | None,
    method: str,
    solver: str | None,
    tolerance: float | None,
    show: int,
    threads: int | None,
    memory_limit: str | None,
    allow_code: bool,
    **values: Any,
) -> int:
    from ctmc.cli.progress import Progress
    from ctmc.study.optimize import optimize

    out = output_of(click.get_current_context())
    with limits(threads, memory_limit, allow_code):
        progress = Progress(out, f"optimizing {over}", 0.5)
        begin = time.perf_counter()

        def announce() -> None:
            progress.clear()
            out.news("Stopping after this candidate; Ctrl-C again leaves at once.")

        def watch(done: int, points: int, best: Any) -> bool:
            progress.count(done, points, "" if best is None else f"best {best.cost:.8g} at {_point(best)}")
            return out.interrupts.stopped()

        try:
            with out.interrupts.gentle(announce):
                found = optimize(
                    builder, given_values(values), over, minimize, maximum=maximum, method=method, solver=solver,
                    tolerance=tolerance, watch=watch,
                )  # fmt: skip
        finally:
            progress.close()
        seconds = time.perf_counter() - begin
    return _report(builder, found, seconds, show, out)


def _point(candidate: Any) -> str:
    return ",".join(map(str, candidate.point))


def _report(builder: str, found: Any, seconds: float, show: int, out: Any) -> int:
    from ctmc.solution import flat_measures

    best = [candidate for candidate in found.candidates if not candidate.message][:show]
    code = out.interrupts.exit_code if found.stopped else 1 if found.failed or not best else 0
    if out.json:
        out.document(
            {
                "builder": builder,
                "parameter": found.parameter,
                "minimize": found.minimize,
                "method": found.method,
                "points": found.points,
                "solved": len(found.candidates),
                "ruled_out": found.ruled_out,
                "failed": len(found.failed),
                "stopped": found.stopped,
                "seconds": seconds,
                "best": [
                    {
                        found.parameter: list(one.point),
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
        names = [name for name in (flat[0] if flat else ()) if name != found.minimize]
        out.table(
            [found.parameter, found.minimize, "defect", *names],
            [
                [_point(one), one.cost, one.defect, *(measures[name] for name in names)]
                for one, measures in zip(best, flat, strict=True)
            ],
        )
    for candidate in found.failed[:3]:
        out.line(f"ctmc: {found.parameter} {_point(candidate)}: {candidate.message}")
    what = "the best of those solved until the interrupt" if found.stopped else (
        "the least of all points" if found.method == "exhaustive" else "a local optimum"
    )  # fmt: skip
    out.news(
        f"{found.method}: {len(found.candidates):,} of {found.points:,} points solved, {found.ruled_out:,} ruled out by "
        f"bounds, {seconds:.1f} s; the first row is {what}."
    )
    return int(code)


def optimize_command(name: str) -> Command:
    """Return the command of a builder; the parameter that is optimised need not be given, so no flag is required."""
    from ctmc import registry

    designs = sorted(registry.builder_designs(name))
    over = " or ".join([*designs, "PARAMETER=BEGIN:END"])
    own: list[click.Parameter] = [
        click.Option(["--over"], required=True, metavar="DESIGN", help=f"What may change: {over}."),
        click.Option(["--minimize"], required=True, metavar="COST",
                     help="A measure, or arithmetic over measures: 'response_time + 0.1*busy_servers'."),
        click.Option(["--maximum"], type=int, metavar="N", help="Largest number of the design."),
        click.Option(["--method"], type=click.Choice(["exhaustive", "coordinate"]), default="exhaustive", show_default=True,
                     help="All points, except those that proved bounds rule out; or a local search."),
        click.Option(["--solver"], metavar="NAME", help="A solver of stationary problems, also with options."),
        click.Option(["--tolerance"], type=float, metavar="FLOAT", help="Largest accepted defect of each candidate."),
        click.Option(["--show"], type=click.IntRange(1), default=_SHOWN, show_default=True, help="Rows of the table."),
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
        help=f"Minimise a cost over the parameters of {name}.  {summary}\n\nThe answer for each candidate is certified.",
    )
    taken = [flag for parameter in command.params for flag in parameter.opts]
    flags = function_flags(registry.builder(name), taken)
    for flag in flags:
        flag.required = False
    command.params = [*flags, *command.params]
    return command


def _without_builder(context: click.Context) -> int:
    if context.invoked_subcommand is None:
        raise click.UsageError("Missing the name of a builder; 'ctmc list builders' shows them.", context)
    return 0


command = Builders(
    "optimize",
    callback=click.pass_context(_without_builder),
    invoke_without_command=True,
    params=[],
    help="Find the values of a model's parameters that make a measure least.\n\nExample:\n\n"
    "  ctmc optimize fork_join --service-rates 5,2,1 --arrival-rate 1 --tasks 3 --over thresholds --maximum 12 "
    "--minimize response_time",
    subcommand_metavar="BUILDER [PARAMETERS]... --over DESIGN --minimize COST",
)
command.make = optimize_command
