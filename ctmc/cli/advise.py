"""``ctmc advise``: which solver to take for a stored model, why, and what it will take."""

from __future__ import annotations

import dataclasses
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.cluster import cluster_options
from ctmc.cli.options import PROBLEM_NAMES, code_option, file_type, limits, memory_option, names_starting

if TYPE_CHECKING:
    from ctmc.advise import Advice
    from ctmc.cli.output import Output

_COMPARED = 4
"""Most solvers that the last line offers to compare."""

_LABELS = {
    "elimination": "multiplications of an elimination",
    "elimination_bytes": "memory of an elimination",
    "stiffness": "largest exit rate to least",
    "coupling": "weak links are below",
    "parts": "parts without weak links",
    "rows_read": "weak links looked for",
}
"""Facts whose names say too little in a table."""


def _advise(
    file: str,
    problem: str,
    tolerance: float | None,
    initial: str | None,
    times: str | None,
    reward: tuple[str, ...],
    moments: int | None,
    discount: float | None,
    target: str | None,
    avoid: str | None,
    memory_limit: str | None,
    allow_code: bool,
    nodes: str | None,
    **cluster: Any,
) -> int:
    from ctmc import registry
    from ctmc.advise import advise
    from ctmc.cli.cluster import forecast_on_clusters
    from ctmc.cli.models import load_model
    from ctmc.cli.question import Question, settings_of

    output = output_of(click.get_current_context())
    if nodes is not None:
        with limits(None, memory_limit, allow_code):
            return forecast_on_clusters(file, nodes, cluster, output)
    given = [name for name, value in cluster.items() if value is not None]
    if given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} describes a cluster, and needs --nodes.")
    question = Question(
        file, None, {}, tolerance, problem, initial, times, None, None, (), reward, None,
        moments=moments, discount=discount, target=target, avoid=avoid,
    )  # fmt: skip
    with limits(None, memory_limit, allow_code):
        kind = registry.problem_class(problem)
        settings = settings_of(question)
        found = advise(kind(load_model(file), **settings))
    check = _check(file, problem, found)
    if output.json:
        output.document({"file": file, **dataclasses.asdict(found), "check": check})
        return 0
    _show(found, check, output)
    return 0


def _check(file: str, problem: str, found: Advice) -> str | None:
    """Return the command that tries the advice out, None where there is nothing to compare or the question has more parts."""
    names = [candidate.solver for candidate in found.candidates][:_COMPARED]
    if problem != "stationary" or len(names) < 2:
        return None
    return f"ctmc compare {quote(file)} --solvers {quote(','.join(names))}"


def _show(found: Advice, check: str | None, output: Output) -> None:
    from ctmc.advise import range_text
    from ctmc.model.memory import format_size

    shown = {name: value for name, value in found.facts.items() if value is not None}
    for name, value in shown.items():
        if name == "memory_limit" or name.endswith("_bytes"):
            shown[name] = format_size(int(value))
        elif isinstance(value, float):
            shown[name] = f"{value:.3g}"
    output.facts([(_LABELS.get(name, name.replace("_", " ")), value) for name, value in shown.items()])
    output.write()
    output.write(f"Recommended: {found.solver}")
    for reason in found.reasons:
        output.write(f"  {reason}")
    for warning in found.warnings:
        output.write(f"  Warning: {warning}")
    output.write()
    columns = ("solver", "products", "products' worth of time", "seconds", "memory")
    rows: list[list[Any]] = [
        [
            row.solver,
            "none" if row.products is None else range_text(row.products),
            range_text(row.work) if found.recommended.work else "",
            "" if row.seconds is None else range_text(row.seconds),
            format_size(row.bytes),
        ]
        for row in found.candidates
    ]
    output.table(columns, rows)
    output.write("Forecasts are ranges, and no promises.")
    if found.fewest_products and found.fewest_products != found.solver:
        output.write(f"Fewest products with the generator: {found.fewest_products}.")
    if check is not None:
        output.write(f"To check: {check}")


command = Command(
    "advise",
    callback=_advise,
    params=[
        click.Argument(["file"], type=file_type(), metavar="FILE"),
        click.Option(["--problem"], default="stationary", metavar="|".join(PROBLEM_NAMES), show_default=True,
                     shell_complete=names_starting(lambda: PROBLEM_NAMES), help="The question."),
        click.Option(["--tolerance"], type=float, metavar="FLOAT", help="As in 'ctmc solve'."),
        click.Option(["--initial"], metavar="STATE", help="As in 'ctmc solve'."),
        click.Option(["--times"], metavar="TIMES", help="Of transient and accumulated-reward: 0.5,2 or begin:end:step."),
        click.Option(["--reward"], multiple=True, metavar="NAME", help="As in 'ctmc solve'."),
        click.Option(["--moments"], type=int, metavar="INT", help="As in 'ctmc solve'."),
        click.Option(["--discount"], type=float, metavar="RATE", help="Of discounted-reward: rate of discounting, > 0."),
        click.Option(["--target"], metavar="CONDITION", help="Of first-passage: what is waited for."),
        click.Option(["--avoid"], metavar="CONDITION", help="Of first-passage: what must not happen before."),
        *cluster_options(),
        memory_option(),
        code_option(),
    ],
    help="Tell which solver to take for a stored model, why, and what it will take.\n\n"
    "A few passes over the transitions are made, and nothing is solved.  'ctmc solve FILE --solver auto' takes the advice.  Cost is "
    "products' worth of time: seconds over the seconds of one product with the generator, so that elimination is compared, too.\n\n\b\n"
    "Examples\n"
    "  ctmc advise model.h5\n"
    "  ctmc advise model.h5 --memory-limit 500MiB --json\n"
    "  ctmc advise model.h5 --problem transient --initial 0,0,0 --times 0:50:1\n"
    "  ctmc advise model.h5 --nodes 10,100 --memory-per-node 256GiB",
)  # fmt: skip
