"""``ctmc advise MODEL --nodes ..``: what a model would take on a cluster."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ctmc.cli.output import Output
    from ctmc.model.generator import Generator
    from ctmc.model.qbd import QBD
    from ctmc.scale import Cluster, Scale


def cluster_options() -> list[click.Parameter]:
    """Return the flags that describe a cluster; the first one asks for the forecast."""
    return [
        click.Option(["--nodes"], metavar="NUMBERS", help="Forecast for so many nodes, such as 10 or 10,100,1000; MODEL may be a recipe."),
        click.Option(["--memory-per-node"], metavar="SIZE", help="Of a node, such as 256GiB; needed with --nodes."),
        click.Option(["--ranks-per-node"], type=int, metavar="INT", help="Ranks of a node.  [default: 32]"),
        click.Option(["--memory-bandwidth"], metavar="SIZE", help="Assumed of a node, a second.  [default: 150GB]"),
        click.Option(["--network-bandwidth"], metavar="SIZE", help="Assumed to leave a node, a second.  [default: 10GB]"),
        click.Option(["--latency"], type=float, metavar="SECONDS", help="Assumed of a message.  [default: 5e-06]"),
    ]  # fmt: skip


def clusters(nodes: str, values: dict[str, Any]) -> list[Cluster]:
    """Return a cluster for each number of nodes that is asked for.

    Examples
    --------
    >>> [found.nodes for found in clusters("10,100", {"memory_per_node": "256GiB", "ranks_per_node": 4})]
    [10, 100]
    """
    from ctmc.errors import ModelError, shown
    from ctmc.model.memory import parse_size
    from ctmc.scale import Cluster

    if values.get("memory_per_node") is None:
        raise ModelError("--memory-per-node is missing; with --nodes, the memory of a node is needed, such as 256GiB.")
    words = nodes.split(",")
    if not all(word.strip().isdecimal() and len(word.strip()) < 10 for word in words):
        raise ModelError(f"--nodes is {shown(nodes)}; allowed are whole numbers from 1 on, such as 10 or 10,100,1000.")
    given: dict[str, Any] = {}
    for name, field in (("memory_per_node", "memory"), ("memory_bandwidth", ""), ("network_bandwidth", "")):
        if values.get(name) is not None:
            try:
                given[field or name] = parse_size(values[name])
            except ModelError:
                flag = "--" + name.replace("_", "-")
                raise ModelError(
                    f"{flag} is {shown(values[name])}; allowed is a positive size such as 400MiB, 2GiB or 1.5GB."
                ) from None
    for name, field in (("ranks_per_node", "ranks"), ("latency", "latency")):
        if values.get(name) is not None:
            given[field] = values[name]
    return [Cluster(nodes=int(word), **given) for word in words]


def unread_model(given: str) -> Generator | QBD:
    """Return a model whose rows are read, or made, as they are asked for, where that can be."""
    from ctmc import registry
    from ctmc.cli.models import is_own, load_model, recipe_in
    from ctmc.model.streamed import streaming
    from ctmc.storage.stored import open_model

    if (recipe := recipe_in(given)) is not None:
        with streaming():
            model: Generator | QBD = registry.build(recipe[0], **recipe[1])
            return model
    return open_model(given) if is_own(given) else load_model(given)


def forecast_on_clusters(given: str, nodes: str, values: dict[str, Any], output: Output) -> int:
    """Show what a model would take on clusters of so many nodes."""
    from ctmc.scale import scale

    described = clusters(nodes, values)
    model = unread_model(given)
    found = [row for cluster in described for row in scale(model, cluster)]  # type: ignore[arg-type]  # has what a forecast reads
    if output.json:
        facts = {name: value for name, value in dataclasses.asdict(described[0]).items() if name != "nodes"}
        output.document({"model": given, "assumed": facts, "forecasts": [dataclasses.asdict(row) for row in found]})
        return 0
    _show(described[0], found, output)
    return 0


def _show(cluster: Cluster, found: list[Scale], output: Output) -> None:
    from ctmc.advise import range_text
    from ctmc.model.memory import format_size

    first = found[0]
    output.facts(
        [
            ("states", f"{first.states:,}"),
            ("transitions", f"{'' if first.exact else 'about '}{first.entries:,}"),
            ("a node", f"{cluster.ranks} ranks, {format_size(cluster.memory)}"),
            (
                "assumed",
                f"{cluster.memory_bandwidth:.3g} bytes a second to the memory of a node, {cluster.network_bandwidth:.3g} leave it, "
                f"{cluster.latency:.3g} s a message; rows are gone through as fast as on this machine",
            ),
        ]
    )
    output.write()
    for solver in dict.fromkeys(row.solver for row in found):
        output.write(solver)
        columns = ("nodes", "ghosts", "messages", "sent", "leaves a node", "a rank", "a node", "fits", "enough", "a product", "products",
                   "hours")  # fmt: skip
        rows = [
            [
                f"{row.nodes:,}",
                f"{row.ghosts:,}",
                row.messages,
                format_size(row.bytes_sent),
                format_size(row.bytes_leaving),
                format_size(row.memory_of_rank),
                format_size(row.memory_of_node),
                "yes" if row.fits else "no",
                "none" if row.least_nodes is None else f"{row.least_nodes:,}",
                f"{row.seconds_of_rows + row.seconds_of_network:.2g} s",
                range_text(row.products),
                range_text(row.hours),
            ]
            for row in found
            if row.solver == solver
        ]
        output.table(columns, rows)
    output.write(
        "Ghosts, messages and bytes are the most of a rank, for a product; 'enough' is about the least number of such nodes that holds it."
    )
    output.write(
        f"{'Every row was looked at' if first.exact else 'Rows of some ranks were looked at'}; times are no promises."
    )
