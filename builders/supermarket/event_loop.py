"""The event loop of the supermarket's simulation, compiled; what it costs an event does not depend on the number of servers.

Arrivals and potential services are two Poisson streams.  An arriving job samples its servers, and only these are looked at.  A
potential service picks a server in proportion to its rate (an alias table) and does nothing where that server is idle: a null
event.  Time integrals of a server are brought up to date when it changes, and when they are read.

The samples are exchangeable, so the first one among equally good ones is a uniform choice: random ties cost nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from builders.supermarket.selection import TIE_TOLERANCE
from ctmc.model.products import compiled
from ctmc.model.random_streams import REFUSED, exponential, half_of, index_of_half, next_word, refused_below

STREAMS = 3
"""Of a replication: arrival epochs, sampled servers, services."""
ARRIVALS, LOST, SERVED, EVENTS, JOBS, BUSY, IMBALANCE = range(7)
JOBS_AREA, BUSY_AREA, IMBALANCE_AREA, JOBS_DISCOUNTED, IMBALANCE_DISCOUNTED, TIMES_SUM, TIMES_COUNT = range(7, 14)
COLUMNS = 14
"""Counts and present values, then integrals over time since 0, then the response times of jobs that left."""
BINS = 64 * 512
"""Response times from 2^-32 to 2^32 in bins of a 512th of their power of two."""
_LEAST_EXPONENT = 1023 - 32
_FASTEST, _PREFERRED, _SHORTEST = 0, 1, 2
TIE_CODES = {"fastest": _FASTEST, "preferred": _PREFERRED, "shortest": _SHORTEST}
_ROOM = 1024
_ONE, _HALF, _LOW = np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)


class Servers(NamedTuple):
    """What the loop knows of the system; everything is checked before.

    The selection value of a server with queue length x is slope * x + offset; the imbalance is measured by measured_slope * x +
    measured_offset.  `plain`: all servers are alike, so the queue length decides.  `tie_ranks` has a row for each of 'fastest'
    and 'preferred', smaller being better; a negative `total` is none.
    """

    arrival_rate: float
    service_rate: float
    choices: int
    replaced: bool
    rerouted: bool
    plain: bool
    slopes: np.ndarray
    offsets: np.ndarray
    tie_codes: np.ndarray
    tie_ranks: np.ndarray
    limits: np.ndarray
    total: int
    accepted: np.ndarray
    aliases: np.ndarray
    measured_slopes: np.ndarray
    measured_offsets: np.ndarray


def alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return acceptance probabilities and aliases; empty where all weights are equal, and any index will do.

    Source: A. J. Walker, ACM Transactions on Mathematical Software 3 (1977); M. D. Vose, IEEE Transactions on Software
    Engineering 17 (1991).

    Examples
    --------
    >>> accepted, aliases = alias_table(np.array([3.0, 2.0, 1.0]))
    >>> [round(float(sum(accepted[i] * (i == k) + (1 - accepted[i]) * (aliases[i] == k) for i in range(3))), 12) for k in range(3)]
    [1.5, 1.0, 0.5]
    """
    size = len(weights)
    if (weights == weights[0]).all():
        return np.empty(0), np.empty(0, dtype=np.uint64)
    accepted, aliases = size * weights / weights.sum(), np.arange(size).astype(np.uint64)
    small = [k for k in range(size) if accepted[k] < 1]
    large = [k for k in range(size) if accepted[k] >= 1]
    while small and large:
        less, more = small.pop(), large[-1]
        aliases[less] = more
        accepted[more] += accepted[less] - 1
        if accepted[more] < 1:
            small.append(large.pop())
    accepted[small + large] = 1  # what rounding has left over
    return accepted, aliases


@compiled
def _sample(key: Any, choices: Any, replaced: bool, size: Any, threshold: Any, chosen: Any, order: Any) -> None:
    """Put the sampled servers into `chosen`; `order` holds 0 .. size - 1 where many distinct ones are shuffled, and again after."""
    number, found = np.uint64(0), np.uint64(0)
    if order.size == 0:
        while found < choices:
            server = index_of_half(half_of(key, number), size, threshold)
            number += _ONE
            again = server == REFUSED
            if not replaced:
                for k in range(found):
                    again |= chosen[k] == server
            if not again:
                chosen[found] = server
                found += _ONE
        return
    while found < choices:
        left = size - found
        step = index_of_half(half_of(key, number), left, refused_below(left))
        number += _ONE
        if step != REFUSED:
            order[found], order[found + step] = order[found + step], order[found]
            chosen[found] = step
            found += _ONE
    while found > 0:  # undo: the next sample must not depend on this one
        found -= _ONE
        step = chosen[found]
        chosen[found] = order[found]
        order[found], order[found + step] = order[found + step], order[found]


@compiled
def _wins(one: Any, other: Any, lengths: Any, slopes: Any, offsets: Any, tie_codes: Any, ranks: Any) -> bool:
    """Return whether server `one` is strictly better than `other`: by value, values that tie by the tie rules."""
    mine = slopes[one] * lengths[one] + offsets[one]
    its = slopes[other] * lengths[other] + offsets[other]
    if abs(mine - its) > TIE_TOLERANCE * max(abs(mine), abs(its)):
        return mine < its
    for code in tie_codes:
        if code == _SHORTEST:
            a, b = np.int64(lengths[one]), np.int64(lengths[other])
        else:
            a, b = ranks[code, one], ranks[code, other]
        if a != b:
            return a < b
    return False


@compiled
def _update_trees(least: Any, most: Any, leaf: int, value: float) -> None:
    """Put a value into a leaf of both tournament trees; an ancestor that keeps its value ends the way up."""
    least[leaf] = value
    most[leaf] = value
    k = leaf >> 1
    while k >= 1:
        low, high = min(least[2 * k], least[2 * k + 1]), max(most[2 * k], most[2 * k + 1])
        if low == least[k] and high == most[k]:
            return
        least[k], most[k] = low, high
        k >>= 1


@compiled
def _bin_of(duration: float) -> int:
    """Return the histogram's bin of a response time, from the bits of the number."""
    place = (np.float64(duration).view(np.int64) >> 43) - (_LEAST_EXPONENT << 9)
    return min(max(place, 0), BINS - 1)


@compiled
def run(
    servers: Any,
    begin: Any,
    streams: Any,
    times: Any,
    by_server: bool,
    with_imbalance: bool,
    follow: bool,
    discount: float,
    sums: Any,
    lengths_at: Any,
    areas_at: Any,
    busy_at: Any,
    histograms: Any,
) -> None:
    """Run replications, each from `begin`, and record all counts and integrals at each of the ascending times.

    Parameters
    ----------
    servers : Servers
    begin : ndarray of int64, shape (M,)
    streams : ndarray of uint64, shape (replications, 3, 4)
    times : ndarray of float64, shape (times,)
    by_server, with_imbalance, follow : bool
        Whether to keep integrals of every server, the imbalance, and the arrival time of every job.
    discount : float
        Of the discounted integrals; 0 leaves them out.
    sums : ndarray of float64, shape (replications, times, COLUMNS)
    lengths_at, areas_at, busy_at : ndarray of float64, shape (replications, times, M), or one of no servers
        Queue lengths, their integrals, busy time.
    histograms : ndarray of int64, shape (replications, times, BINS), or empty
        Response times of the jobs that left since the time before.
    """
    # fields of a tuple that are read in the loop would be counted as references at every turn
    arrival_scale, service_scale, choices = (
        1 / servers.arrival_rate,
        1 / servers.service_rate,
        np.uint64(servers.choices),
    )
    replaced, rerouted, total = servers.replaced, servers.rerouted, servers.total
    slopes, offsets, tie_codes, tie_ranks = servers.slopes, servers.offsets, servers.tie_codes, servers.tie_ranks
    limits, accepted, aliases = servers.limits, servers.accepted, servers.aliases
    measured_slopes, measured_offsets = servers.measured_slopes, servers.measured_offsets
    plain = servers.plain and not rerouted
    equal = accepted.size == 0
    many = begin.size
    size, threshold = np.uint64(many), refused_below(many)
    shuffled = not replaced and choices > 8 and choices * choices > size
    order = np.arange(many if shuffled else 0).astype(np.uint64)
    chosen = np.zeros(choices, np.uint64)
    leaves = 1
    while leaves < many:
        leaves *= 2
    least, most = (
        np.full(2 * leaves if with_imbalance else 2, np.inf),
        np.full(2 * leaves if with_imbalance else 2, -np.inf),
    )
    kept = many if by_server else 0
    limited = total >= 0 or (limits < np.iinfo(np.int32).max).any()
    for replication in range(streams.shape[0]):
        own = streams[replication]
        lengths = begin.astype(np.int32)
        area, occupied, since = np.zeros(kept), np.zeros(kept), np.zeros(kept)
        # jobs of a server stand in a list of places: arrival epoch and the place behind; free places in a list of their own
        room = _ROOM + begin.sum() if follow else 1
        arrived, behind = np.full(room, -1.0), np.arange(1, room + 1)
        heads, tails = np.zeros(many if follow else 0, np.int64), np.zeros(many if follow else 0, np.int64)
        free = 0
        if follow:
            for server in range(many):
                for k in range(begin[server]):
                    place = free
                    free = behind[place]
                    arrived[place] = -1.0
                    if k == 0:
                        heads[server] = place
                    else:
                        behind[tails[server]] = place
                    tails[server] = place
        jobs, busy = 0, 0
        for server in range(many):
            jobs += lengths[server]
            busy += lengths[server] > 0
        imbalance = 0.0
        if with_imbalance:
            least[:] = np.inf
            most[:] = -np.inf
            for server in range(many):
                value = measured_slopes[server] * begin[server] + measured_offsets[server]
                _update_trees(least, most, leaves + server, value)
            imbalance = (most[1] - least[1]) / most[1] if most[1] > 0 else 0.0
        arrivals, lost, served, events = 0, 0, 0, 0
        jobs_area, busy_area, imbalance_area, jobs_discounted, imbalance_discounted = 0.0, 0.0, 0.0, 0.0, 0.0
        times_sum, times_count = 0.0, 0
        clock, settled = 0.0, 0.0  # the integrals of the whole system are right up to `settled`
        next_arrival = exponential(own, 0) * arrival_scale
        next_service = exponential(own, 2) * service_scale
        position = 0
        goal = times[0]
        while True:
            arriving = next_arrival <= next_service
            clock = next_arrival if arriving else next_service
            changed = REFUSED
            if clock <= goal:
                events += 1
                if arriving:
                    next_arrival = clock + exponential(own, 0) * arrival_scale
                    arrivals += 1
                    _sample(next_word(own, 1), choices, replaced, size, threshold, chosen, order)
                    changed = chosen[0]
                    if plain:
                        for k in range(_ONE, choices):
                            if lengths[chosen[k]] < lengths[changed]:
                                changed = chosen[k]
                    else:
                        for k in range(_ONE, choices):
                            # rerouted: one that is full is worse than any other
                            if rerouted and lengths[chosen[k]] >= limits[chosen[k]]:
                                continue
                            if (rerouted and lengths[changed] >= limits[changed]) or _wins(
                                chosen[k], changed, lengths, slopes, offsets, tie_codes, tie_ranks
                            ):
                                changed = chosen[k]
                    if limited and (lengths[changed] >= limits[changed] or jobs == total):
                        lost += 1
                        continue
                else:
                    next_service = clock + exponential(own, 2) * service_scale
                    changed = REFUSED
                    while changed == REFUSED:
                        word = next_word(own, 2)
                        changed = index_of_half(word & _LOW, size, threshold)
                    if not equal and np.float64(word >> _HALF) * 2.0**-32 >= accepted[changed]:
                        changed = aliases[changed]
                    if lengths[changed] == 0:
                        continue
            until = min(clock, goal)
            step = until - settled
            jobs_area += jobs * step
            busy_area += busy * step
            if with_imbalance:
                imbalance_area += imbalance * step
            if discount > 0:
                weight = math.exp(-discount * settled) * -math.expm1(-discount * step) / discount
                jobs_discounted += jobs * weight
                imbalance_discounted += imbalance * weight
            settled = until
            if changed == REFUSED:  # the next time has come
                row = sums[replication, position]
                row[ARRIVALS], row[LOST], row[SERVED], row[EVENTS] = arrivals, lost, served, events
                row[JOBS], row[BUSY], row[IMBALANCE] = jobs, busy, imbalance
                row[JOBS_AREA], row[BUSY_AREA], row[IMBALANCE_AREA] = jobs_area, busy_area, imbalance_area
                row[JOBS_DISCOUNTED], row[IMBALANCE_DISCOUNTED] = jobs_discounted, imbalance_discounted
                row[TIMES_SUM], row[TIMES_COUNT] = times_sum, times_count
                for server in range(kept):
                    left = goal - since[server]
                    lengths_at[replication, position, server] = lengths[server]
                    areas_at[replication, position, server] = area[server] + lengths[server] * left
                    busy_at[replication, position, server] = occupied[server] + (left if lengths[server] > 0 else 0.0)
                position += 1
                if position == times.size:
                    break
                goal = times[position]
                continue
            if by_server:
                left = clock - since[changed]
                area[changed] += lengths[changed] * left
                occupied[changed] += left if lengths[changed] > 0 else 0.0
                since[changed] = clock
            if arriving:
                if follow:
                    if free == room:
                        more_arrived, more_behind = np.full(2 * room, -1.0), np.arange(1, 2 * room + 1)
                        more_arrived[:room], more_behind[:room] = arrived, behind
                        arrived, behind, room = more_arrived, more_behind, 2 * room
                    place = free
                    free = behind[place]
                    arrived[place] = clock
                    if lengths[changed] == 0:
                        heads[changed] = place
                    else:
                        behind[tails[changed]] = place
                    tails[changed] = place
                busy += lengths[changed] == 0
                lengths[changed] += 1
                jobs += 1
            else:
                if follow:
                    place = heads[changed]
                    heads[changed] = behind[place]
                    behind[place] = free
                    free = place
                    if arrived[place] >= 0:  # not of those that were there at the start
                        duration = clock - arrived[place]
                        times_sum += duration
                        times_count += 1
                        histograms[replication, position, _bin_of(duration)] += 1
                lengths[changed] -= 1
                busy -= lengths[changed] == 0
                jobs -= 1
                served += 1
            if with_imbalance:
                value = measured_slopes[changed] * lengths[changed] + measured_offsets[changed]
                _update_trees(least, most, leaves + np.int64(changed), value)
                imbalance = (most[1] - least[1]) / most[1] if most[1] > 0 else 0.0


def percentile(counts: np.ndarray, levels: tuple[int, ...]) -> list[float]:
    """Return percentiles from a histogram, linear inside a bin: off by at most a 512th of themselves.

    Examples
    --------
    >>> counts = np.zeros(BINS, dtype=np.int64)
    >>> counts[_bin_of(1.0)] = 10
    >>> percentile(counts, (50,))
    [1.0009765625]
    """
    edges = np.concatenate([2.0**k * (1 + np.arange(512) / 512) for k in range(-32, 32)] + [[2.0**32]])
    reached = np.concatenate([[0], np.cumsum(counts)])
    if not reached[-1]:
        return [float("nan")] * len(levels)
    found = []
    for level in levels:
        wanted = reached[-1] * level / 100
        k = int(np.searchsorted(reached, wanted, side="left")) - 1
        part = (wanted - reached[k]) / (reached[k + 1] - reached[k])
        found.append(float(edges[k] + part * (edges[k + 1] - edges[k])))
    return found
