"""Small chains as networkx graphs, and as GraphML files.

Nodes are the states in their order, edges carry ``rate``.  In a file nodes are numbered and carry ``state.NAME`` for each
coordinate, ``label.NAME``, ``reward.NAME`` and ``initial``; edges carry ``impulse.NAME``.
"""

from __future__ import annotations

import os
import xml.parsers.expat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctmc.errors import ModelError, StorageError, printable
from ctmc.interchange.parts import (
    coordinate_names,
    earned,
    finite_chain,
    left_out,
    no_descriptions,
    numbered,
    shown,
    space_of,
)
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.reward import Reward
from ctmc.model.state_space import StateSpace
from ctmc.storage.atomic import failure_reason, replace_file
from ctmc.storage.gate import open_regular

if TYPE_CHECKING:
    import networkx

LIMIT = 50_000
"""Most states of a graph; more would take minutes and gigabytes."""
_EDGES = 40 * LIMIT
_PIECE = 1 << 20


def read(path: str | os.PathLike[str]) -> Generator:
    """Read a chain from a GraphML file: edges carry ``rate`` (or ``weight``).

    Parameters
    ----------
    path : path-like

    Raises
    ------
    StorageError
        The file cannot be read, or is no GraphML; one with a document type, which can define entities, is refused.
    ModelError
        More than 50,000 states, or no chain.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(f"{folder}/queue.graphml", Generator.from_matrix([[-1, 1], [2, -2]]))
    ...     read(f"{folder}/queue.graphml").uniformization_rate
    2.0
    """
    import networkx

    try:
        descriptor = open_regular(Path(path))
        with os.fdopen(descriptor, "rb") as file:
            require_memory(f"the graph in {shown(path)}", 20 * os.fstat(file.fileno()).st_size)
            _check(path, file)
            file.seek(0)
            graph = networkx.read_graphml(file, force_multigraph=True)
    except (ModelError, MemoryError):
        raise
    except OSError as error:
        raise StorageError(f"{shown(path)} cannot be read: {failure_reason(error)}.") from None
    except Exception as error:  # of a damaged file networkx raises whatever its conversions do
        raise StorageError(f"{shown(path)} is no GraphML file: {failure_reason(error)}.") from None
    return from_networkx(graph)


def write(path: str | os.PathLike[str], model: Any, *, overwrite: bool = False) -> list[str]:
    """Write a chain of up to 50,000 states as GraphML.

    Parameters
    ----------
    path : path-like
        Ending in ``.graphml`` by custom.
    model : Generator
    overwrite : bool
        Whether an existing file may be replaced.

    Returns
    -------
    list of str
        A sentence for each thing that is not carried.

    Raises
    ------
    ModelError
        The model is not a chain, or too large.
    StorageError
        The file exists, or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/queue.graphml", Generator.from_matrix([[-1, 1], [2, -2]]))
    []
    """
    import networkx

    chain = finite_chain(model, "GraphML")
    if chain.size > LIMIT:
        raise ModelError(
            f"a graph of {chain.size:,} states is too large for GraphML; allowed are {LIMIT:,}: write UMB."
        )
    graph, lost = _attributed(chain)

    def put(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            networkx.write_graphml_xml(graph, file)

    replace_file(path, put, overwrite=overwrite)
    return lost + left_out(chain)


def from_networkx(graph: networkx.DiGraph) -> Generator:
    """Return the chain that a directed graph describes: edges carry `rate`, or `weight`.

    Nodes that are tuples of whole numbers, all of one length, are the states, as `to_networkx` makes them; of other nodes
    the states are the numbers ``state.NAME`` that they carry, else 0, 1, .. in their order.  Parallel edges add up.

    Parameters
    ----------
    graph : networkx.DiGraph or networkx.MultiDiGraph

    Raises
    ------
    ModelError
        The graph is undirected, empty or too large, or an edge has no rate.

    Examples
    --------
    >>> import networkx
    >>> graph = networkx.DiGraph()
    >>> graph.add_edge("up", "down", rate=0.1)
    >>> graph.add_edge("down", "up", rate=2.0)
    >>> from_networkx(graph).exit_rates.tolist()
    [0.1, 2.0]
    """
    if not hasattr(graph, "is_directed"):
        raise ModelError(f"graph is a {type(graph).__name__}; allowed is a directed graph of networkx.")
    if not graph.is_directed():
        raise ModelError("the graph is undirected; allowed are directed graphs, whose edges carry rates.")
    if not 1 <= len(graph) <= LIMIT:
        raise ModelError(f"the graph has {len(graph):,} nodes; allowed are 1 to {LIMIT:,}.")
    nodes = dict(graph.nodes(data=True))
    place = {node: k for k, node in enumerate(nodes)}
    sources, targets, rates, names = [], [], [], set()
    earning: list[dict[str, Any]] = []
    for source, target, known in graph.edges(data=True):
        rate = known.get("rate", known.get("weight"))
        if not isinstance(rate, int | float) or isinstance(rate, bool):
            raise ModelError(
                f"the edge from {printable(source)[:80]!r} to {printable(target)[:80]!r} has the rate {printable(rate)[:80]!r}; "
                "allowed are numbers."
            )
        sources.append(place[source])
        targets.append(place[target])
        rates.append(float(rate))
        earning.append(known)
        names |= {name for name in known if str(name).startswith("impulse.")}
    space = _space(list(nodes), list(nodes.values()))
    labels, rewards, initial = _node_values(list(nodes.values()), len(nodes))
    ends = np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)
    chain = Generator.from_transitions(*ends, np.array(rates), space, labels=labels, rewards=rewards, initial=initial)
    if not names:
        return chain
    keys = np.repeat(np.arange(chain.size), np.diff(chain.indptr)) * chain.size + chain.sources
    wanted = ends[1] * chain.size + ends[0]
    if chain.entries != len(rates) or not np.array_equal(np.sort(wanted), keys):
        raise ModelError(
            "the graph has impulses on parallel edges, loops or edges of rate 0; allowed are edges that are transitions."
        )
    order = np.argsort(wanted)
    for name in sorted(names):
        impulse = np.array([_number(name, known.get(name, 0.0)) for known in earning])[order]
        plain = name.removeprefix("impulse.")
        old = rewards.get(plain)
        rewards[plain] = Reward(None if old is None else old.rate, impulse=impulse)
    return chain.replace(rewards=rewards)


def _attributed(chain: Generator) -> tuple[networkx.DiGraph, list[str]]:
    """Return the graph with all that is known of the chain, and a sentence for each thing that is not carried."""
    import networkx

    rewards, lost = earned(chain)
    lost += no_descriptions(rewards)
    columns: dict[str, list[Any]] = {}
    table = chain.space.states(np.arange(chain.size))
    for name, values in zip(coordinate_names(chain.space), table.T, strict=True):
        columns[f"state.{name}"] = values.tolist()
    columns |= {f"label.{name}": member.tolist() for name, member in chain.labels.items()}
    columns |= {f"reward.{reward.name}": reward.rate.tolist() for reward in rewards if reward.rate is not None}
    if chain.initial is not None:
        columns["initial"] = chain.initial.dense(chain.size).tolist()
    impulses = {f"impulse.{reward.name}": reward.impulse.tolist() for reward in rewards if reward.impulse is not None}
    escaped = [name for name in (*columns, *impulses) if printable(name) != name]
    lost += [f"The name {printable(name)} is written with its control characters escaped." for name in escaped]
    graph = networkx.DiGraph()
    for k in range(chain.size):
        graph.add_node(str(k), **{printable(name): values[k] for name, values in columns.items()})
    targets = np.repeat(np.arange(chain.size), np.diff(chain.indptr)).tolist()
    for k, (source, target, rate) in enumerate(zip(chain.sources.tolist(), targets, chain.rates.tolist(), strict=True)):
        earning = {printable(name): values[k] for name, values in impulses.items()}
        graph.add_edge(str(source), str(target), rate=rate, **earning)
    return graph, lost


def _space(nodes: list[Any], known: list[dict[str, Any]]) -> StateSpace:
    names = [name for name in known[0] if str(name).startswith("state.")]
    if names:
        rows = [[attributes.get(name) for name in names] for attributes in known]
        plain = [name.removeprefix("state.") for name in names]
    elif all(isinstance(node, tuple) and len(node) == len(nodes[0]) and node for node in nodes):
        rows, plain = [list(node) for node in nodes], [f"x[{k}]" for k in range(len(nodes[0]))]
    else:
        return numbered(len(nodes))
    for k, row in enumerate(rows):
        if not all(type(value) is int and -(2**63) <= value < 2**63 for value in row):
            raise ModelError(f"node {k} has the state {printable(row)[:80]}; allowed are whole numbers of 64 bits.")
    return space_of(np.array(rows, dtype=np.int64), plain)


def _node_values(
    known: list[dict[str, Any]], size: int
) -> tuple[dict[str, np.ndarray], dict[str, Reward], np.ndarray | None]:
    names = list(dict.fromkeys(str(name) for attributes in known for name in attributes))
    labels, rewards, initial = {}, {}, None
    for name in names:
        if not (name.startswith(("label.", "reward.")) or name == "initial"):
            continue
        values = np.array([_number(name, attributes.get(name, 0.0)) for attributes in known])
        if name == "initial":
            initial = values
        elif name.startswith("label."):
            labels[name.removeprefix("label.")] = values != 0
        else:
            rewards[name.removeprefix("reward.")] = Reward(values)
    return labels, rewards, initial


def _number(name: str, value: Any) -> float:
    if not isinstance(value, bool | int | float):
        raise ModelError(f"{shown(name)} is {printable(value)[:80]!r}; allowed are numbers.")
    return float(value)


def _check(path: str | os.PathLike[str], file: Any) -> None:
    """Refuse document types, which can define entities that grow, and graphs that are too large, before anything is built."""
    counts = {"node": 0, "edge": 0}
    parser = xml.parsers.expat.ParserCreate()

    def refuse(*_: Any) -> None:
        raise StorageError("it has a document type, which can define entities; allowed is GraphML without one")

    def start(name: str, _: dict[str, str]) -> None:
        kind = name.rpartition(":")[2]
        if kind in counts:
            counts[kind] += 1
            if counts["node"] > LIMIT or counts["edge"] > _EDGES:
                raise ModelError(
                    f"{shown(path)} has more than {LIMIT:,} nodes or {_EDGES:,} edges, too many for GraphML."
                )

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = start
    while piece := file.read(_PIECE):
        parser.Parse(piece, False)
    parser.Parse(b"", True)
