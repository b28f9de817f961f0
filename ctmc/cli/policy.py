"""``ctmc policy``: one sub-command for each builder whose model has decisions, with a flag for each parameter."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.cli.build import function_flags
from ctmc.cli.docstring import read_docstring
from ctmc.cli.groups import SomeBuilders
from ctmc.cli.options import given_values, limits, memory_option, threads_option

_ROWS = 40
"""Shown of a table, unless more are asked for."""


def _policy(builder: str, rows: int, threads: int | None, memory_limit: str | None, **values: Any) -> int:
    from ctmc import registry

    out = output_of(click.get_current_context())
    with limits(threads, memory_limit):
        found = registry.optimal_policy(builder)(**given_values(values))
    facts, (columns, table) = found.facts(), found.table()
    if out.json:
        records = [dict(zip(columns, row, strict=True)) for row in table]
        out.document({"builder": builder, **facts, "policy": records})
    elif out.csv:
        out.table(columns, table)
    else:
        out.write(f"Optimal policy of {builder}")
        out.facts([(name.replace("_", " "), value) for name, value in facts.items()])
        out.write()
        out.table(columns, table[:rows])
        if len(table) > rows:
            out.news(f"{len(table) - rows} rows more: --rows {len(table)}, --csv or --json shows them.")
    if not facts["certified"]:
        out.news("The policy is not certified: the bounds are apart, or the cut is too low.")
    return 0 if facts["certified"] else 1


def policy_command(name: str) -> Command:
    """Return the command of a builder's optimal policy, made from the signature and docstring of its function."""
    from ctmc import registry

    function = registry.optimal_policy(name)
    parts = read_docstring(function)
    own: list[click.Parameter] = [
        click.Option(
            ["--rows"],
            type=click.IntRange(min=1),
            default=_ROWS,
            show_default=True,
            metavar="N",
            help="Rows of the table to show.",
        ),
        memory_option(),
        threads_option(),
    ]
    text = f"{parts.summary}\n\nExample:\n\n" + "\n\n".join(f"  {example}" for example in parts.examples)
    command = Command(name, callback=partial(_policy, name), params=own, help=text, csv=True)
    taken = [flag for parameter in command.params for flag in parameter.opts]
    command.params = [*function_flags(function, taken), *command.params]
    return command


def _names() -> list[str]:
    from ctmc import registry

    return registry.policy_names()


command = SomeBuilders(
    "policy",
    _names,
    policy_command,
    "decisions",
    help="Find the optimal policy of a model with decisions, its value with bounds, and show it as a table.",
)
