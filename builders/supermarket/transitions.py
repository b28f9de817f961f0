"""Compiled loops that write the supermarket's transitions by destination.

The predecessors of a state y, in ascending order: y - e_i for i = 0 .. M - 1 (an arrival that joined server i), then y + e_i
for i = M - 1 .. 0 (a service completion).  The rate of an arrival is found at the destination: in y - e_i only the queue of
server i differs from y.  States are visited in blocks, each by counting up from its first state; positions of neighbours
come from the lattice's ranking table, with the box being the case in which the total never binds.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.state_space import Lattice
from ctmc.model.transitions import CodedTransitions

BLOCK = 4096
"""States per block of work."""


def transitions(
    space: Lattice, keys: np.ndarray, shares: np.ndarray, service_rates: np.ndarray, begin: int, end: int
) -> CodedTransitions:
    """Return the transitions into some states, coded: a supermarket of any size has a few dozen different rates.

    Parameters
    ----------
    space : Lattice
    keys : ndarray of int64, shape (M, largest limit + 1)
        Preference key of each server at each queue length.
    shares : ndarray, shape (M + 1, M + 1)
        Arrival rate at a server, by the number of better and of tied servers.
    service_rates : ndarray, shape (M,)
    begin, end : int
        The states are begin .. end - 1.
    """
    firsts = space.states(np.arange(begin, end, BLOCK))
    limits = np.array(space.limits, dtype=np.int64)
    total = int(limits.sum()) if space.total is None else space.total
    indptr = np.zeros(end - begin + 1, dtype=np.int64)
    _count(firsts, limits, total, keys, shares, indptr)
    np.cumsum(indptr, out=indptr)
    narrow = np.int32 if space.size <= np.iinfo(np.int32).max else np.int64
    sources = np.empty(indptr[-1], dtype=narrow)
    values = coded_values(shares, service_rates)
    codes = np.empty(indptr[-1], dtype=np.min_scalar_type(len(values) - 1))
    _fill(firsts, limits, total, space.below, keys, shares, indptr, sources, codes)
    return CodedTransitions(indptr, sources, codes, values)


def coded_values(shares: np.ndarray, service_rates: np.ndarray) -> np.ndarray:
    """Return the rate of each code: of an arrival by the number of better and of tied servers, then of each server."""
    return np.concatenate([shares.ravel(), service_rates])


@compiled
def _share(keys: Any, shares: Any, state: Any, i: int, length: int) -> int:
    """Code of the arrival rate at server i when its queue has this length and the others are as in the state."""
    own = keys[i, length]
    better, tied = 0, 1
    for j in range(state.size):
        if j != i:
            other = keys[j, state[j]]
            better += other < own
            tied += other == own
    return better * shares.shape[1] + tied


@compiled
def _advance(state: Any, limits: Any, total: int, filled: int) -> int:
    """Count up to the next state of the lattice; takes and returns the sum of the coordinates."""
    i = state.size - 1
    while i >= 0:
        if state[i] < limits[i] and filled < total:
            state[i] += 1
            return filled + 1
        filled -= state[i]
        state[i] = 0
        i -= 1
    return filled


@compiled_parallel
def _count(firsts: Any, limits: Any, total: int, keys: Any, shares: Any, counts: Any) -> None:
    """Set counts[y + 1] to the number of transitions into each state y, counted from the first block."""
    n, flat = counts.size - 1, shares.ravel()
    for block in numba.prange(firsts.shape[0]):
        state = firsts[block].copy()
        filled = state.sum()
        for y in range(block * BLOCK, min((block + 1) * BLOCK, n)):
            count = 0
            for i in range(state.size):
                if state[i] > 0 and flat[_share(keys, shares, state, i, state[i] - 1)] > 0.0:
                    count += 1
                if state[i] < limits[i] and filled < total:
                    count += 1
            counts[y + 1] = count
            filled = _advance(state, limits, total, filled)


@compiled_parallel
def _fill(
    firsts: Any, limits: Any, total: int, below: Any, keys: Any, shares: Any, indptr: Any, sources: Any, codes: Any,
) -> None:  # fmt: skip
    """Write sources and codes.  Moves 5 bytes an entry."""
    n, m, flat = indptr.size - 1, limits.size, shares.ravel()
    for block in numba.prange(firsts.shape[0]):
        state = firsts[block].copy()
        filled = state.sum()
        less = np.empty(m, dtype=np.int64)  # position of y - e_i
        more = np.empty(m, dtype=np.int64)  # position of y + e_i
        for y in range(block * BLOCK, min((block + 1) * BLOCK, n)):
            # Going down from the last coordinate: the rank contributed by the coordinates after i if one more, or one
            # less, job stands before them; `room` is what is left for coordinate i and those after it.
            after_less, after_more, room = 0, 0, total - filled
            for i in range(m - 1, -1, -1):
                x = state[i]
                room += x
                less[i] = after_less + below[i, room + 1] - below[i, min(room + 2 - x, total + 1)]
                more[i] = after_more + below[i, room + 1] - below[i, max(room - x, 0)]
                after_less += below[i, min(room + 2, total + 1)] - below[i, min(room + 2 - x, total + 1)]
                after_more += below[i, room] - below[i, max(room - x, 0)]
            before, room = 0, total
            for i in range(m):
                less[i] += before
                more[i] += before
                before += below[i, room + 1] - below[i, room + 1 - state[i]]
                room -= state[i]
            k = indptr[y]
            for i in range(m):
                if state[i] > 0:
                    code = _share(keys, shares, state, i, state[i] - 1)
                    if flat[code] > 0.0:
                        sources[k] = less[i]
                        codes[k] = code
                        k += 1
            if filled < total:
                for i in range(m - 1, -1, -1):
                    if state[i] < limits[i]:
                        sources[k] = more[i]
                        codes[k] = shares.size + i
                        k += 1
            filled = _advance(state, limits, total, filled)
