"""Stations in series: product form under a cap on the total number of jobs, blocking under caps on the stations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np

import ctmc
from ctmc.errors import ModelError
from ctmc.model.distribution import distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import each, positive_rate, positive_rates, whole_number
from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.rerating import on_the_structure_of, rates_by_event
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import is_streaming, made
from ctmc.model.transitions import FloatTransitions

_MOST_STATIONS = 1000  # where one job has more places than that, counting the transitions takes longer than it is worth

_CHUNK = 1 << 14
"""States that one thread enumerates from one start."""


def _dress(
    model: Generator,
    service_rates: Sequence[float],
    arrival_rate: float,
    capacity: int | Sequence[int] | None = None,
    total_capacity: int | None = None,
) -> Generator:
    speeds = positive_rates("service_rates", service_rates)
    limits = np.array(_limits(len(speeds), capacity, total_capacity))
    most = int(limits.sum()) if total_capacity is None else total_capacity

    def busy(states: np.ndarray) -> np.ndarray:
        serving = states > 0
        serving[:, :-1] &= states[:, 1:] < limits[1:]
        return serving

    def lost(states: np.ndarray) -> np.ndarray:
        return (states[:, 0] == limits[0]) | (states.sum(axis=1) == most)

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        found = solution.expectations(["queue_length", "jobs", "busy", "lost"])
        throughput = float(speeds[-1] * found["busy"][-1])
        return {
            "throughput": throughput,
            "utilization": found["busy"],
            "queue_length": found["queue_length"],
            "jobs": found["jobs"],
            "response_time": found["jobs"] / throughput,
            "blocking_probability": found["lost"],
        }

    return model.replace(
        rewards={
            "jobs": Reward(lambda states: states.sum(axis=1), "number of jobs in the network"),
            "busy": Reward(busy, "per station, 1 while it serves (neither empty nor suspended)"),
            "lost": Reward(lost, "1 while an arriving job would be lost"),
        },
        measures=measures,
    )


@ctmc.builder(version=1, dress=_dress)
def tandem_network(
    service_rates: Sequence[float],
    arrival_rate: float,
    capacity: int | Sequence[int] | None = None,
    total_capacity: int | None = None,
) -> Generator:
    """Stations in series with one exponential server each; jobs arrive at the first and leave after the last.

    Capacities count the job in service.  An arrival is lost while the first station is full or the network holds
    `total_capacity` jobs.  A station's service is suspended while the next station is full (blocking before service: the
    server starts, or goes on, once there is room), so no job ever waits for room with its service done.  Under a cap on
    the total alone nothing is suspended, and the stationary distribution is the product of geometric terms
    (arrival_rate / service_rates[i])^queue_length[i], scaled to sum 1 (F. P. Kelly, *Reversibility and Stochastic
    Networks*, Wiley 1979, section 3.4).  With M stations an arrival, M - 1
    moves and a departure close a cycle of M + 1 transitions, so with an even M there is no 2-coloring.

    Parameters
    ----------
    service_rates : sequence of float, length M
        Rate of each station's server per unit of time; positive.
    arrival_rate : float
        Rate of the Poisson arrivals per unit of time; positive.
    capacity : int or sequence of int, length M, optional
        Most jobs at each station, one number for all or one each.
    total_capacity : int, optional
        Most jobs in the whole network.  At least one of the two capacities is needed.

    Returns
    -------
    Generator
        States ``queue_length``, shape (M,), last station fastest.  Rewards: queue_length, jobs, busy, lost.  Measures:
        throughput, utilization (share of time that each server works), queue_length, jobs, response_time (of jobs that
        are let in), blocking_probability (fraction of arrivals that are lost).

    Raises
    ------
    ModelError
        If a rate is not positive and finite, a capacity is not a positive whole number, both capacities are missing, or
        the model needs more than the memory limit.

    Examples
    --------
    >>> network = tandem_network(service_rates=[2.0, 1.0], arrival_rate=1.0, total_capacity=2)
    >>> ctmc.solve(ctmc.Stationary(network), "gth").value.round(6).tolist()     # weights 1, 1, 1, 1/2, 1/2, 1/4
    [0.235294, 0.235294, 0.235294, 0.117647, 0.117647, 0.058824]

    On the command line: ``ctmc build tandem_network --service-rates 3,2,1 --arrival-rate 0.8 --total-capacity 60 -o tandem.h5``
    """
    speeds = positive_rates("service_rates", service_rates)
    arrivals = positive_rate("arrival_rate", arrival_rate)
    limits = _limits(len(speeds), capacity, total_capacity)
    space = Lattice(limits, total=total_capacity, variables=(Variable("queue_length", len(speeds)),))
    size, entries = space.size, _entries(limits, total_capacity)
    # finished arrays, exit rates and their check sum, and the coordinates where each chunk begins
    wide = 4 if size <= np.iinfo(np.int32).max else 8
    if not is_streaming():
        require_memory(
            "the tandem network",
            (8 + wide) * entries + 24 * size + 8 * len(speeds) * (size // _CHUNK + 1),
            states=size,
            entries=entries,
        )
    most = space.counts.shape[1] - 2  # the total, or the sum of the limits of a box
    tops = np.array(limits)

    def rows(begin: int, end: int) -> FloatTransitions:
        starts = space.states(np.arange(begin, end, _CHUNK))
        indptr = np.zeros(end - begin + 1, dtype=np.int64)
        _count(starts, tops, most, indptr)
        np.cumsum(indptr, out=indptr)
        sources = np.empty(indptr[-1], dtype=np.int32 if wide == 4 else np.int64)
        rates = np.empty(indptr[-1])
        _fill(begin, starts, tops, most, space.counts, space.below, speeds, arrivals, indptr, sources, rates)
        return FloatTransitions(indptr, sources, rates)

    return Generator(
        space, made(size, rows, lambda: entries, block=_CHUNK), initial=distribution(space, [0] * len(limits))
    )


def _rerate(model: Generator, old: Mapping[str, Any], new: Mapping[str, Any]) -> Generator:
    """Return the network at other rates: where those of all events differ, a rate tells its event."""
    before, after = (
        np.append(positive_rates("service_rates", given["service_rates"]), positive_rate("arrival_rate", given["arrival_rate"]))
        for given in (old, new)
    )  # fmt: skip
    if len(before) != len(after):
        raise ModelError(
            f"service_rates has {len(after) - 1} numbers; at other rates the network keeps its {len(before) - 1} stations."
        )
    rows = model.transitions
    rates = rates_by_event(rows.rates, before, after) if isinstance(rows, FloatTransitions) else None
    if rates is None:
        return on_the_structure_of(model, inspect.unwrap(tandem_network)(**new))
    return model.with_transition_rates(rows._replace(rates=rates))


tandem_network.rates_that_may_change = ("service_rates", "arrival_rate")
tandem_network.rerate = _rerate  # what `with_rates` does in place of a build
tandem_network.event_rates = ("arrival_rate", "service_rates")  # what `ctmc.sensitivity` differentiates by


@compiled
def _advance(state: Any, limits: Any, left: Any) -> Any:
    """Step to the next state in lexicographic order; `left` is the room under the total, returned for the new state."""
    for i in range(state.size - 1, -1, -1):
        if state[i] < limits[i] and left > 0:
            state[i] += 1
            return left - 1
        left += state[i]
        state[i] = 0
    return left


@compiled_parallel
def _count(starts: Any, limits: Any, most: Any, indptr: Any) -> None:
    """Set indptr[j + 1] to the number of transitions into state j, counted from the first chunk.  Moves 8 bytes a state."""
    stations = limits.size
    size = indptr.size - 1
    for chunk in numba.prange(len(starts)):
        state = starts[chunk].copy()
        left = most - state.sum()
        begin = np.int64(chunk) * _CHUNK
        for j in range(begin, min(begin + _CHUNK, size)):
            number = 1 if state[0] > 0 else 0
            for i in range(stations - 1):
                if state[i] < limits[i] and state[i + 1] > 0:
                    number += 1
            if state[stations - 1] < limits[stations - 1] and left > 0:
                number += 1
            indptr[j + 1] = number
            left = _advance(state, limits, left)


@compiled_parallel
def _fill(
    first: int,
    starts: Any,
    limits: Any,
    most: Any,
    counts: Any,
    below: Any,
    speeds: Any,
    arrival_rate: Any,
    indptr: Any,
    sources: Any,
    rates: Any,
) -> None:
    """Write the transitions into each state from the first on, sources ascending.  Moves 12 bytes an entry.

    A state's position is the sum over i of below[i, room + 1] - below[i, room + 1 - state[i]], with `room` what the total
    leaves before coordinate i and below the running sums of counts[1:].  Of a job that moves from i to i + 1 two terms
    are left: counts[i + 1, room + 1] and counts[i + 2, room + 1], with the room before coordinate i + 1.
    """
    stations = limits.size
    last = stations - 1
    size = indptr.size - 1
    for chunk in numba.prange(len(starts)):
        state = starts[chunk].copy()
        left = most - state.sum()
        begin = np.int64(chunk) * _CHUNK
        for j in range(begin, min(begin + _CHUNK, size)):
            k = indptr[j]
            if state[0] > 0:  # an arrival, from one job fewer at the first station
                source = 0
                room = most
                for i in range(stations):
                    jobs = state[i] - 1 if i == 0 else state[i]
                    source += below[i, room + 1] - below[i, room + 1 - jobs]
                    room -= jobs
                sources[k] = source
                rates[k] = arrival_rate
                k += 1
            if state[last] < limits[last] and left > 0:  # a departure, from one job more at the last station
                sources[k] = first + j + 1
                rates[k] = speeds[last]
                k += 1
            room = left
            for i in range(last - 1, -1, -1):  # a move from i to i + 1; the smaller i, the later the source
                room += state[i + 1]
                if state[i] < limits[i] and state[i + 1] > 0:
                    sources[k] = first + j + counts[i + 1, room + 1] - counts[i + 2, room + 1]
                    rates[k] = speeds[i]
                    k += 1
            left = _advance(state, limits, left)


def _entries(limits: Sequence[int], total: int | None) -> int:
    """Return the number of transitions: for each event, the states in which it can happen."""

    @functools.cache
    def count(tops: tuple[int, ...]) -> int:
        return Lattice(tops, total=None if total is None else total - 1).size

    def states(*one_less: int) -> int:
        # how many states there are does not depend on the order of the stations
        return count(tuple(sorted(limit - (i in one_less) for i, limit in enumerate(limits))))

    moves = sum(states(i, i + 1) for i in range(len(limits) - 1))
    return states(0) + moves + states(len(limits) - 1)


def _limits(stations: int, capacity: int | Sequence[int] | None, total_capacity: int | None) -> tuple[int, ...]:
    """Return the most jobs at each station."""
    if stations > _MOST_STATIONS:
        raise ModelError(f"service_rates has {stations:,} numbers; allowed are up to {_MOST_STATIONS:,}.")
    if capacity is None and total_capacity is None:
        raise ModelError("capacity and total_capacity are both missing; give one of them, or both.")
    if total_capacity is not None:
        whole_number("total_capacity", total_capacity, 1)
    if capacity is None:
        chosen: list[Any] = [total_capacity] * stations
    else:
        chosen = each("capacity", capacity, stations, f"{stations} stations")
    for limit in chosen:
        whole_number("capacity", limit, 1)
    return tuple(int(limit) if total_capacity is None else min(int(limit), total_capacity) for limit in chosen)
