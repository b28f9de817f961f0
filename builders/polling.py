"""One server that visits stations in a cycle: the benchmark model `polling` of PRISM and Storm."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctmc
from builders._factors import BLOCK, Event, product_rows
from ctmc.model.distribution import distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import positive_rate, whole_number
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import is_streaming, made

_MOST_STATIONS = 40
"""Beyond, the tables of events alone take more than a petabyte."""
EMPTY, FULL, SERVING = range(3)
"""Values of ``server``: it polls an empty station, polls a full one, or serves."""


def _dress(
    model: Generator,
    stations: int,
    service_rate: float = 1.0,
    polling_rate: float = 200.0,
    arrival_rate: float | None = None,
) -> Generator:
    def occupied(states: np.ndarray) -> np.ndarray:
        around = np.column_stack([states[:, 1] != EMPTY, states[:, 2:]])
        return np.take_along_axis(around, (np.arange(stations) - states[:, :1]) % stations, axis=1)

    def waiting(states: np.ndarray) -> np.ndarray:
        found = occupied(states)
        found[np.arange(len(states)), states[:, 0]] &= states[:, 1] != SERVING
        return found

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        found = solution.expectations(["customers", "serving", "occupied", "waiting"])
        throughput = service_rate * found["serving"]
        return {
            "throughput": throughput,
            "utilization": found["serving"],
            "customers": found["customers"],
            "occupied": found["occupied"],
            "waiting": found["waiting"],
            "response_time": found["customers"] / throughput,
            "waiting_time": float(found["waiting"].sum()) / throughput,
        }

    return model.replace(
        rewards={
            "occupied": Reward(occupied, "per station, 1 while it holds a customer"),
            "waiting": Reward(waiting, "per station, 1 while its customer waits to be served"),
            "customers": Reward(
                lambda states: (states[:, 1] != EMPTY) + states[:, 2:].sum(axis=1), "number of customers"
            ),
            "serving": Reward(lambda states: states[:, 1] == SERVING, "1 while the server serves"),
        },
        measures=measures,
    )


@ctmc.builder(version=1, dress=_dress)
def polling(
    stations: int,
    service_rate: float = 1.0,
    polling_rate: float = 200.0,
    arrival_rate: float | None = None,
) -> Generator:
    """One server walks round stations with a place for one customer each, and serves those that it finds.

    The cyclic server polling system of O. C. Ibe and K. S. Trivedi, "Stochastic Petri net models of polling systems", IEEE
    Journal on Selected Areas in Communications 8 (1990), pp. 1649-1657, with single buffers, known as `polling` among the
    benchmarks of PRISM and Storm, whose rates are the defaults.  To look at a station takes an exponential time of rate
    `polling_rate`; then the server goes on to the next station if this one is empty, or else begins to serve.  A
    customer leaves when served, and the server polls the next station.  An empty station gets a customer at
    `arrival_rate`, even while it is being looked at.

    Parameters
    ----------
    stations : int
        Number of stations, 2 or more.
    service_rate : float
        Rate of service.
    polling_rate : float
        Rate of looking at a station and of going on from it.
    arrival_rate : float, optional
        Rate of arrivals at each empty station; default ``service_rate / stations``.

    Returns
    -------
    Generator
        3 stations 2^(stations - 1) states: ``station``, where the server is, from 0; ``server``, which polls an empty
        station (0), polls a full one (1) or serves (2); and ``ahead``, for each other station in the order in which the
        server will come to them whether it holds a customer.  No transition leads back to its state, so the numbers are
        those that PRISM counts: 7,077,888 states and 69,599,232 transitions for 18 stations.  Rewards: occupied, waiting (per
        station, numbered as they are), customers, serving.  Measures: throughput, utilization, customers, occupied,
        waiting, response_time, waiting_time.

    Raises
    ------
    ModelError
        If the number of stations is not a whole number from 2 on, a rate is not positive and finite, or the model needs
        more than the memory limit.

    Examples
    --------
    >>> cycle = polling(stations=4)
    >>> cycle.size, cycle.entries
    (96, 272)
    >>> round(ctmc.solve(ctmc.Stationary(cycle), "gth").measures()["utilization"], 9)
    0.687047709

    On the command line: ``ctmc build polling --stations 16 -o polling.h5``
    """
    count = whole_number("stations", stations, 2, _MOST_STATIONS)
    service, walk = positive_rate("service_rate", service_rate), positive_rate("polling_rate", polling_rate)
    arrivals = service / count if arrival_rate is None else positive_rate("arrival_rate", arrival_rate)
    space = Lattice(
        (count - 1, SERVING, *[1] * (count - 1)),
        variables=(Variable("station"), Variable("server"), Variable("ahead", count - 1)),
    )
    half = 1 << (count - 1)
    # out of each state one step of the server and an arrival at each empty station, half of those that are not served
    entries = count * (half * (count + 2) + half // 2 * (count + 1))
    wide = 4 if space.size <= np.iinfo(np.int32).max else 8
    held = 72 * (count + 3) * half  # the tables of the events
    whole = 0 if is_streaming() else (8 + wide) * entries + 24 * space.size
    require_memory("the polling system", held + whole, states=space.size, entries=entries)

    server, ahead = np.divmod(np.arange(3 * half), half)
    last = ahead & 1
    came = (server << (count - 2)) | (ahead >> 1)  # who stood ahead before the server came here
    came[(server == SERVING) | (last == 1)] = -1
    served = np.where(came < 0, -1, came + SERVING * half)
    following = (np.arange(count) - 1) % count
    events = [
        Event(walk, {0: following, 1: came}),
        Event(service, {0: following, 1: served}),
        Event(walk, {1: np.where(server == SERVING, FULL * half + ahead, -1)}),
        Event(arrivals, {1: np.where(server == FULL, EMPTY * half + ahead, -1)}),
    ]
    for place in range(count - 1):
        bit = 1 << place
        events.append(Event(arrivals, {1: np.where(ahead & bit, np.arange(3 * half) - bit, -1)}))
    rows, _ = product_rows([count, 3 * half], events)
    return Generator(
        space,
        made(space.size, rows, lambda: entries, block=BLOCK),
        initial=distribution(space, [0] * (count + 1)),
    )


polling.rates_that_may_change = ("service_rate", "polling_rate", "arrival_rate")
polling.event_rates = ("service_rate", "polling_rate")  # what `ctmc.sensitivity` differentiates by
