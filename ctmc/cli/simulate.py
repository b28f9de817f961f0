"""``ctmc simulate``: a builder's system by its own simulator, or a stored model; a flag for each option."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.build import function_flags
from ctmc.cli.docstring import read_docstring
from ctmc.cli.groups import needs_name
from ctmc.cli.models import load_model
from ctmc.cli.options import code_option, file_type, given_values, limits, memory_option, threads_option
from ctmc.cli.output import Output
from ctmc.cli.tables import extremes
from ctmc.errors import ModelError, shown

_LINES = 8
"""Trajectories drawn unless --plot-of names them."""
_HELD = ("monitor", "chain")
"""Parameters of simulators that are no flags."""


class Times(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Times such as 0.5,2 or 0:50:1."""

    name = "TIMES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the times as a list; text that does not fit is an error of one sentence."""
        from ctmc.cli.question import parse_times

        return parse_times(value) if isinstance(value, str) else value


def _simulate(
    what: str,
    stored: bool,
    plot: str | None,
    plot_of: tuple[str, ...],
    threads: int | None,
    memory_limit: str | None,
    allow_code: bool = False,
    **values: Any,
) -> int:
    from ctmc.cli.progress import Progress
    from ctmc.simulation import simulate

    out = output_of(click.get_current_context())
    options = given_values(values)
    if plot is not None and options.get("times") is None:
        raise click.UsageError("--plot draws trajectories; give --times, such as --times 0:50:1")
    if plot is not None and Path(plot).suffix.lower() != ".png":
        raise ModelError(f"--plot is {shown(plot)}; allowed is a file that ends in .png.")
    with limits(threads, memory_limit, allow_code):
        model = load_model(what) if stored else what
        progress = Progress(out, f"simulating {Path(what).name}", 0.5)

        def monitor(done: int, total: int) -> bool:
            progress.count(done, total, "replications")
            return out.interrupts.stopped()

        def announce() -> None:
            progress.clear()
            out.news("Stopping after these replications, what is done will be shown; Ctrl-C again leaves at once.")

        with out.interrupts.gentle(announce):
            try:
                found = simulate(model, **options, monitor=monitor)
            finally:
                progress.close()
    picture = None if plot is None else _draw(found, plot_of, what, plot, out)
    _show(found, what, picture, out)
    return out.interrupts.exit_code


def _rows(found: Any) -> list[list[Any]]:
    """Return name, time, mean, half width and interval of everything that was estimated; no time for averages."""
    rows = []
    tables: list[tuple[float | None, Mapping[str, Any], Mapping[str, Any]]] = [(None, found.means, found.half_widths)]
    for name, path in found.trajectories.items():
        tables += [
            (float(time), {name: mean}, {name: reach})
            for time, mean, reach in zip(path.times, path.means, path.half_widths, strict=True)
        ]
    for time, means, half_widths in tables:
        for name, mean in _flat(means).items():
            reach = _flat(half_widths)[name]
            rows.append([name, time, mean, reach, mean - reach, mean + reach])
    return rows


def _flat(values: Mapping[str, Any]) -> dict[str, float]:
    from ctmc.solution import flat_measures

    return flat_measures(values)


def _show(found: Any, what: str, picture: str | None, out: Output) -> None:
    facts = {
        "replications": found.replications,
        "each": found.run,
        "warm_up": found.warm_up,
        "confidence": found.confidence,
        "seed": found.seed,
        "events": found.events or None,
    }
    columns = ["measure", "time", "mean", "half_width", "low", "high"]
    rows = _rows(found)
    if out.json:
        records = [dict(zip(columns, row, strict=True)) for row in rows]
        averages = [record for record in records if record["time"] is None]
        for record in averages:
            del record["time"]
        out.document(
            {
                "simulated": what,
                **facts,
                "stopped": out.interrupts.stopped(),
                "estimates": averages,
                "trajectories": [record for record in records if "time" in record],
                "picture": picture,
                "notes": list(found.notes),
            }
        )
    else:
        if not out.csv:
            out.write(found.title)
            shown = [(name.replace("_", " "), value) for name, value in facts.items() if name != "events" or value]
            out.facts(shown)
            out.write()
        timed = bool(found.trajectories)
        shown_rows, long = (rows, []) if timed or out.csv else extremes(rows, 2)
        out.table(
            columns if timed else [columns[0], *columns[2:]],
            shown_rows if timed else [[row[0], *row[2:]] for row in shown_rows],
        )
        if long:
            out.news(f"Note: the least and the largest of {', '.join(long)} are shown; --csv and --json have all.")
    for note in found.notes:
        out.news(f"Note: {note}")


def _draw(found: Any, wanted: Sequence[str], what: str, path: str, out: Output) -> str | None:
    """Draw trajectories with their bands; an estimate without its picture is still one."""
    from ctmc.errors import CTMCError, unknown_name
    from ctmc.study.plots import draw_lines

    lines: dict[str, list[tuple[float, float]]] = {}
    bands: dict[str, list[tuple[float, float]]] = {}
    for name, trajectory in found.trajectories.items():
        low, high = trajectory.band
        for k in range(trajectory.means.shape[1]) if trajectory.means.ndim == 2 else [...]:
            own = name if k is ... else f"{name}[{k}]"
            lines[own] = list(zip(trajectory.times.tolist(), trajectory.means[:, k].tolist(), strict=True))
            bands[own] = list(zip(low[:, k].tolist(), high[:, k].tolist(), strict=True))
    for name in wanted:
        if name not in lines and name not in found.trajectories:
            raise unknown_name("trajectory", name, [*lines, *found.trajectories])
    plain = [name for name in lines if not name.startswith("accumulated_")]
    vectors = [name for name in plain if name.endswith("]")]
    default = vectors if 0 < len(vectors) <= _LINES else [name for name in plain if name not in vectors][:_LINES]
    chosen = [name for name in lines if name in wanted or name.partition("[")[0] in wanted] or default
    families = {name.partition("[")[0] for name in chosen}
    title = f"{Path(what).name}: {found.replications} replications, {found.confidence:.0%} bands"
    try:
        draw_lines(
            {name: lines[name] for name in chosen},
            "time",
            families.pop() if len(families) == 1 else "mean",
            title,
            Path(path),
            bands,
        )
    except ImportError:
        out.news("No picture: it needs matplotlib, python -m pip install 'ctmc-lab[plots]'.")
        return None
    except CTMCError as error:
        out.news(f"No picture: {error}")
        return None
    out.news(f"Picture: {path}")
    return path


def _own_options(stored: bool) -> list[click.Parameter]:
    options: list[click.Parameter] = [
        click.Option(["--plot"], type=file_type(), metavar="FILE.png", help="Draw the trajectories with their bands."),
        click.Option(
            ["--plot-of"],
            multiple=True,
            metavar="NAME",
            help="Trajectory to draw, such as jobs or queue_length[0]; may be repeated.",
        ),
        memory_option(),
        threads_option(),
    ]
    return [*options, code_option()] if stored else options


def simulator_command(name: str, function: Callable[..., Any], *, stored: bool) -> Command:
    """Return the command of a simulator, made from its signature and docstring."""
    parts = read_docstring(function)
    text = f"{parts.summary}\n\nExample:\n\n" + "\n\n".join(f"  {example}" for example in parts.examples)
    command = Command(name, callback=partial(_simulate, name, stored), params=_own_options(stored), help=text, csv=True)
    taken = [flag for parameter in command.params for flag in parameter.opts]
    flags = []
    names = list(inspect.signature(function).parameters)
    for parameter, flag in zip(names, function_flags(function, taken), strict=True):
        if parameter == "times":
            flag.type, flag.metavar = Times(), "TIMES"
            flag.help = f"{flag.help}; 0.5,2 or begin:end:step such as 0:50:1"
        if parameter not in _HELD:
            flags.append(flag)
    command.params = [*flags, *command.params]
    return command


class Simulators(click.Group):
    """The group ``ctmc simulate``: a command for each builder with a simulator, and one for any stored model."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of the builders that have a simulator."""
        from ctmc import registry

        return registry.simulator_names()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete builders and options, and else files."""
        from click.shell_completion import CompletionItem

        found = super().shell_complete(ctx, incomplete)
        return found or [CompletionItem(incomplete, type="file")]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command of a builder, or that of a file; a name that is neither is an error with those that fit."""
        from ctmc import registry
        from ctmc.errors import CTMCError

        if name not in registry.builder_names() and (Path(name).suffix or Path(name).exists()):
            from ctmc.simulation import simulate_generator

            return simulator_command(name, simulate_generator, stored=True)
        try:
            return simulator_command(name, registry.simulator(name), stored=False)
        except CTMCError:
            if context.resilient_parsing or name.startswith("-"):
                return None
            raise


command = Simulators(
    "simulate",
    callback=needs_name(
        "Missing the name of a builder or a file; 'ctmc simulate --help' shows the builders that have a simulator."
    ),
    invoke_without_command=True,
    params=[],
    help="Simulate a builder's system, not truncated, or any stored model: means with confidence intervals.\n\n"
    "Example:\n\n  ctmc simulate supermarket --service-rates 1 --servers 1000 --arrival-rate 800 --choices 2 --horizon 500 "
    "--seed 7\n\n  ctmc simulate model.h5 --times 0:50:1 --replications 1000 --seed 7 --plot trajectories.png\n\n"
    "'ctmc simulate BUILDER --help' and 'ctmc simulate FILE --help' list the options.  Ctrl-C shows the replications "
    "done so far.",
    subcommand_metavar="BUILDER|FILE [OPTIONS]...",
)
