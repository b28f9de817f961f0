"""What a model would take on the nodes of a cluster, on paper: memory, messages and time, from a sample of its rows.

States, transitions and what ranks exchange come from the model (`ctmc.model.volume`), bytes of the solver from its `memory`, and the
time of a product from rows of this model on this machine.  Bandwidths and latency of the cluster are assumptions, and are told.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.costs import krylov_products
from ctmc.errors import ModelError
from ctmc.model import products
from ctmc.model.generator import Generator
from ctmc.model.parameters import real_number, whole_number
from ctmc.model.shared import own_rows
from ctmc.model.state_space import Lattice
from ctmc.model.streamed import SLAB_STATES
from ctmc.model.transitions import CodedTransitions
from ctmc.model.volume import Volume, volume

SOLVERS = ("petsc_krylov(form='shell', preconditioner='none', coarse='none', method='bcgs')", "petsc_krylov")
"""The least memory, and the fewest products."""
PROCESS = 230 << 20
"""Bytes of an interpreter with its libraries, as measured."""
GHOST = 48
"""Bytes that a ghost takes in lists, vectors and buffers."""
SLAB_ENTRY = 24
"""Bytes of an entry while its slab is made and renumbered; the allocator keeps them afterwards."""
_TIMED = 1 << 16
"""Rows whose product is timed."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes, and what is assumed of them.

    Attributes
    ----------
    nodes : int
    memory : int
        Bytes of a node.
    ranks : int
        Ranks of a node.
    memory_bandwidth : float
        Bytes a second between the memory of a node and all its cores.
    network_bandwidth : float
        Bytes a second that leave a node.
    latency : float
        Seconds of a message.
    """

    nodes: int
    memory: int
    ranks: int = 32
    memory_bandwidth: float = 150e9
    network_bandwidth: float = 10e9
    latency: float = 5e-6

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks"):
            whole_number(name, getattr(self, name), 1)
        for name in ("memory", "memory_bandwidth", "network_bandwidth"):
            real_number(name, getattr(self, name), lambda value: 0 < value < math.inf, "a number above 0")
        real_number("latency", self.latency, lambda value: 0 <= value < math.inf, "a number of seconds, 0 or more")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a model would take on a cluster with one solver; maxima over the ranks, or nodes.

    Attributes
    ----------
    solver : str
    nodes, ranks : int
    states, entries : int
        Of the model.
    exact : bool
        Whether all rows were looked at.
    states_of_rank, entries_of_rank, ghosts : int
    partners, messages : int
        Of a rank: whom it exchanges with, and messages that it sends for a product.
    bytes_sent, bytes_leaving : int
        For a product: that a rank sends, and that leave a node.
    model_bytes, solver_bytes, memory_of_rank, memory_of_node : int
    fits : bool
    least_nodes : int or None
        About how many nodes of this kind are enough, None where no number is.
    seconds_of_rows, seconds_of_network : float
        Of a product.
    products : tuple of int
        Least and most that are forecast.
    hours : tuple of float
    """

    solver: str
    nodes: int
    ranks: int
    states: int
    entries: int
    exact: bool
    states_of_rank: int
    entries_of_rank: int
    ghosts: int
    partners: int
    messages: int
    bytes_sent: int
    bytes_leaving: int
    model_bytes: int
    solver_bytes: int
    memory_of_rank: int
    memory_of_node: int
    fits: bool
    least_nodes: int | None
    seconds_of_rows: float
    seconds_of_network: float
    products: tuple[int, int]
    hours: tuple[float, float]


@dataclass(frozen=True)
class _Rows:
    """What an entry takes: bytes that are kept, and seconds of a product on one core of this machine."""

    bytes: int
    seconds: float


def scale(model: Generator, cluster: Cluster, solvers: tuple[str, ...] = SOLVERS) -> list[Scale]:
    """Return what a model would take on a cluster, for each of some solvers.

    Parameters
    ----------
    model : Generator
        Best built inside `ctmc.model.streamed.streaming`, or opened with `ctmc.storage.stored.open_model`, so that only the rows
        that are looked at are made.
    cluster : Cluster
    solvers : tuple of str

    Raises
    ------
    ModelError
        If the model is no chain with a generator.

    Examples
    --------
    >>> from ctmc.model.streamed import streaming
    >>> with streaming():
    ...     queues = registry.build("supermarket", service_rates=[2, 1, 1], arrival_rate=3, choices=2, capacity=9)
    >>> lean, _ = scale(queues, Cluster(nodes=2, memory=1 << 30, ranks=2))
    >>> lean.ranks, lean.ghosts, lean.messages, lean.bytes_sent, lean.fits
    (4, 199, 2, 1584, True)
    """
    if not isinstance(model, Generator):
        raise ModelError(
            f"model is a {type(model).__name__}; allowed is a chain with finitely many states, a Generator."
        )
    rows = _look(model)
    found = volume(model, cluster.nodes * cluster.ranks)
    return [_scale(model, cluster, solver, found, rows) for solver in solvers]


def _scale(model: Generator, cluster: Cluster, name: str, found: Volume, rows: _Rows) -> Scale:
    solver: Any = registry.make_solver(name)
    states, entries, ghosts = int(np.diff(found.begins).max()), int(found.entries.max()), int(found.ghosts.max())
    per_node = min(cluster.ranks, len(found.ghosts))
    leaving, _ = found.between_groups(cluster.ranks)
    kept, beside = _memory(rows, solver, model.size, states, entries, ghosts)
    of_rank = PROCESS + kept + beside
    # a product moves the rows and three vectors; all ranks of a node share its memory
    moved = per_node * (rows.bytes * entries + 8 * 3 * states)
    made = krylov_products(_levels(model), getattr(solver, "form", ""))
    seconds = max(rows.seconds * entries, moved / cluster.memory_bandwidth)
    network = 2 * cluster.latency * int(found.messages.max())
    network += int(leaving.max()) / cluster.network_bandwidth if cluster.nodes > 1 else 0.0
    return Scale(
        solver=name, nodes=cluster.nodes, ranks=len(found.ghosts), states=model.size, entries=int(found.entries.sum()),
        exact=found.exact, states_of_rank=states, entries_of_rank=entries, ghosts=ghosts,
        partners=int(found.partners.max()), messages=int(found.messages.max()), bytes_sent=int(found.bytes.max()),
        bytes_leaving=int(leaving.max()), model_bytes=kept, solver_bytes=beside, memory_of_rank=of_rank,
        memory_of_node=per_node * of_rank, fits=per_node * of_rank <= cluster.memory,
        least_nodes=_least_nodes(model, cluster, solver, found, rows), seconds_of_rows=seconds, seconds_of_network=network,
        products=made, hours=(made[0] * (seconds + network) / 3600, made[1] * (seconds + network) / 3600),
    )  # fmt: skip


def _memory(rows: _Rows, solver: Any, size: int, states: int, entries: int, ghosts: int) -> tuple[int, int]:
    """Return the bytes of a rank's part of the model, and those that are needed beside it."""
    kept = rows.bytes * entries + 16 * states + GHOST * ghosts
    making = SLAB_ENTRY * min(size, SLAB_STATES) * entries // max(states, 1)  # slabs are made whole
    return kept, int(solver.memory(states, entries)) + making


def _least_nodes(model: Generator, cluster: Cluster, solver: Any, found: Volume, rows: _Rows) -> int | None:
    """Return a number of nodes that is enough: ghosts are taken to stay as many, or to become more with the states of a rank."""
    now, states, entries = len(found.ghosts), model.size, int(found.entries.sum())
    most, uneven = int(found.ghosts.max()), float(np.diff(found.begins).max()) * now / states

    def fits(nodes: int) -> bool:
        ranks = nodes * cluster.ranks
        ghosts = min(most * max(1.0, now / ranks), states) if ranks > 1 else 0
        own = min(math.ceil(uneven * states / ranks), states)
        each = _memory(rows, solver, states, own, -(-entries // ranks), int(ghosts))
        return cluster.ranks * (PROCESS + sum(each)) <= cluster.memory

    low, high = 0, 1
    while not fits(high):
        low, high = high, 2 * high
        if high > 1 << 30:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _levels(model: Generator) -> int:
    """Return the side that information must cross, by the ranges of the coordinates."""
    if isinstance(model.space, Lattice):
        return 1 + max(model.space.limits)
    return 1 + max(int(states.max()) for _, states in model.space.slabs(0, model.size))


def _look(model: Generator) -> _Rows:
    """Return what entries of the rows in the middle take."""
    begin = max((model.size - _TIMED) // 2, 0)
    end = min(begin + _TIMED, model.size)
    rows, outside = own_rows(model, begin, end)
    entries = max(len(rows.sources), 1)
    rates = rows.codes if isinstance(rows, CodedTransitions) else rows.rates
    x, out = np.ones(end - begin + len(outside)), np.empty(end - begin)
    exits, nothing = np.ones(end - begin), np.empty(0)
    (slab,) = rows.slabs()
    times = []
    for _ in range(6):  # the first of which loads what is compiled
        started = time.perf_counter()
        products.forward_on_one_thread(*slab, exits, x, x, 1.0, 0.0, 0.0, nothing, out, out, out)
        times.append(time.perf_counter() - started)
    return _Rows(rows.sources.itemsize + rates.itemsize, min(times) / entries)
