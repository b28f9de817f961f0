"""Loss networks: calls hold circuits on all links of their route, and are lost where one link has too few left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctmc
from builders._rows import bytes_of_rows, compressed_rows
from ctmc.errors import ModelError, shown
from ctmc.model.distribution import distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import positive_rates, whole_number
from ctmc.model.reward import Reward
from ctmc.model.state_space import Listed, Variable
from ctmc.model.streamed import is_streaming, made


@dataclass(frozen=True, eq=False)
class _Design:
    """Checked parameters of R routes over L links: rates (R,), capacities (L,), circuits (R, L)."""

    arrivals: np.ndarray
    services: np.ndarray
    capacities: np.ndarray
    circuits: np.ndarray

    def blocked(self, calls: np.ndarray) -> np.ndarray:
        """Return for calls (m, R) whether a further call of each route is lost, shape (m, R)."""
        left = self.capacities - calls @ self.circuits
        return np.column_stack([(left < needed).any(axis=1) for needed in self.circuits])


def _dress(
    model: Generator,
    capacities: Sequence[int],
    circuits: Sequence[Sequence[int]],
    arrival_rates: Sequence[float],
    service_rates: float | Sequence[float] = 1.0,
) -> Generator:
    design = _design(capacities, circuits, arrival_rates, service_rates)

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        found = solution.expectations(["calls", "used", "blocked"])
        lost = found["blocked"] * design.arrivals
        return {
            "calls": found["calls"],
            "utilization": found["used"] / design.capacities,
            "blocking_probability": found["blocked"],
            "throughput": found["calls"] * design.services,
            "loss_rate": lost,
            "lost_fraction": lost.sum() / design.arrivals.sum(),
        }

    return model.replace(
        rewards={
            "used": Reward(lambda states: states @ design.circuits, "per link, circuits in use"),
            "blocked": Reward(design.blocked, "per route, 1 while an arriving call would be lost"),
        },
        measures=measures,
    )


@ctmc.builder(version=1, dress=_dress)
def loss_network(
    capacities: Sequence[int],
    circuits: Sequence[Sequence[int]],
    arrival_rates: Sequence[float],
    service_rates: float | Sequence[float] = 1.0,
) -> Generator:
    """Loss network: a call on a route needs circuits on some links at once, holds them all, and is lost if one has too few.

    Parameters
    ----------
    capacities : sequence of int, length L
        Circuits of each link.
    circuits : sequence of sequence of int, shape (R, L)
        How many circuits of each link a call on each route holds; no route holds none, or more than a link has.  A single route
        may stand without its table: 1,1.
    arrival_rates : sequence of float, length R
        Calls per unit of time that are offered to each route; positive.
    service_rates : float or sequence of float, length R
        1 / mean holding time, one number for all routes or one each; positive.

    Returns
    -------
    Generator
        States ``calls``, shape (R,), the calls on each route that fit, in lexicographic order, the last route fastest; it
        begins empty.  Rewards: used, blocked.  Measures: per route calls, blocking_probability, throughput and loss_rate, per
        link utilization, and lost_fraction of all calls.

    Raises
    ------
    ModelError
        If a rate is not positive and finite, a capacity is not a positive whole number, numbers of circuits are negative or
        more than a link has, shapes differ, or the model needs more than the memory limit.

    Notes
    -----
    The chain is reversible, and its stationary distribution is the product of (arrival_rates[r] / service_rates[r])^calls[r] /
    calls[r]!, scaled to sum 1 over the states.  With one link the probabilities of the circuits in use satisfy the recursion of
    J. S. Kaufman and J. W. Roberts (1981), and with one route besides it is Erlang's formula.  Source: F. P. Kelly, Loss
    networks, Annals of Applied Probability 1 (1991), 319-378.

    Examples
    --------
    >>> network = loss_network(capacities=[3, 2], circuits=[[1, 0], [0, 1], [1, 1]], arrival_rates=[1, 0.5, 0.8])
    >>> network.size
    20
    >>> ctmc.solve(ctmc.Stationary(network), "gth").measures()["blocking_probability"].round(9).tolist()
    [0.149352007, 0.247491639, 0.329013378]

    On the command line: ``ctmc build loss_network --capacities 3,2 --circuits "1,0;0,1;1,1" --arrival-rates 1,0.5,0.8 -o
    network.h5``
    """
    design = _design(capacities, circuits, arrival_rates, service_rates)
    routes = len(design.arrivals)
    space = Listed(_states(design), (Variable("calls", routes),))
    size, most = space.size, 2 * routes * space.size
    if not is_streaming():
        require_memory("the loss network", bytes_of_rows(size, most), states=size, entries=most)
    steps = np.eye(routes, dtype=np.int64)

    def tables(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        calls = space.states(positions)
        fewer = np.column_stack([space.find(calls - step) for step in steps])  # -1 where there is no such state
        more = np.column_stack([space.find(calls + step) for step in steps])
        ended = np.where(more >= 0, (calls + 1) * design.services, 0.0)
        return (
            np.hstack([fewer, more[:, ::-1]]),  # ascending: a call on the first route is furthest
            np.hstack([np.where(fewer >= 0, design.arrivals, 0.0), ended[:, ::-1]]),
        )

    def rows(begin: int, end: int) -> Any:
        return compressed_rows(begin, end, size, tables, 2 * routes)

    return Generator(space, made(size, rows), initial=distribution(space, [0] * routes))


loss_network.rates_that_may_change = ("arrival_rates", "service_rates")
loss_network.event_rates = ("arrival_rates", "service_rates")  # what `ctmc.sensitivity` differentiates by


def _states(design: _Design) -> np.ndarray:
    """Return all states in lexicographic order, shape (states, R): route by route, each as often as it still fits."""
    routes = len(design.arrivals)
    fewest, taken = 1, np.zeros(len(design.capacities), dtype=bool)
    for needed in design.circuits:  # routes that share no link are independent, so their numbers of calls multiply
        links = np.flatnonzero(needed)
        if not taken[links].any():
            taken[links] = True
            fewest *= int((design.capacities[links] // needed[links]).min()) + 1
    _require(fewest, routes, len(design.capacities))
    table, left = np.zeros((1, 0), dtype=np.int64), design.capacities[None]
    for needed in design.circuits:
        links = np.flatnonzero(needed)
        choices = (left[:, links] // needed[links]).min(axis=1) + 1
        size = int(choices.sum())
        _require(size, routes, left.shape[1])
        first = np.repeat(np.cumsum(choices) - choices, choices)
        calls = np.arange(size) - first
        table = np.column_stack([np.repeat(table, choices, axis=0), calls])
        left = np.repeat(left, choices, axis=0) - calls[:, None] * needed
    return table


def _require(states: int, routes: int, links: int) -> None:
    """Ask for the memory of the list: the table before and after, what is left, and the copy and keys of it."""
    require_memory("the list of states of the loss network", 8 * states * (3 * routes + 2 * links + 4), states=states)


def _design(capacities: Any, circuits: Any, arrival_rates: Any, service_rates: Any) -> _Design:
    given = list(capacities) if isinstance(capacities, list | tuple | np.ndarray) else [capacities]
    sizes = np.array([whole_number("capacities", size, 1) for size in given], dtype=np.int64)
    if not sizes.size:
        raise ModelError("capacities is empty; allowed is a whole number >= 1 for each link.")
    arrivals = positive_rates("arrival_rates", arrival_rates)
    services = positive_rates("service_rates", service_rates)
    if len(services) not in (1, len(arrivals)):
        raise ModelError(
            f"service_rates has {len(services)} numbers; allowed is one, or one for each of {len(arrivals)} routes."
        )
    table = _circuits(circuits, len(arrivals), sizes)
    return _Design(arrivals, np.broadcast_to(services, arrivals.shape), sizes, table)


def _circuits(given: Any, routes: int, capacities: np.ndarray) -> np.ndarray:
    allowed = f"allowed is a table of whole numbers >= 0, a row for each of {routes} routes, a column for each of {len(capacities)} links"
    try:
        table = np.array(given)
    except ValueError:
        table = np.empty(0)
    # the only row by itself, which the command line gives as a column
    if routes == 1 and table.size == len(capacities):
        table = table.reshape(1, -1)
    if table.dtype.kind not in "iu" or table.shape != (routes, len(capacities)):
        raise ModelError(f"circuits is {shown(given)}; {allowed}.")
    bad = (table < 0) | (table > capacities)
    if bad.any():
        route, link = np.argwhere(bad)[0]
        raise ModelError(
            f"circuits has {table[route, link]} for route {route} on link {link}; allowed are 0 to the link's {capacities[link]}."
        )
    idle = ~table.any(axis=1)
    if idle.any():
        raise ModelError(
            f"circuits has none for route {int(np.argmax(idle))}; allowed are routes that hold one or more."
        )
    return table.astype(np.int64)
