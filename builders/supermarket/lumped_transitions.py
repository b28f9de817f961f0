"""Compiled loops that write the transitions of a supermarket of exchangeable servers by destination.

The predecessors of a state y whose queue lengths are non-increasing inside each class, in ascending order: inside a class
equal queue lengths form a run.  One job less in the last server of a run with a positive length is an arrival; one more in
the first server of a run below the limit is a service completion.  Several servers of the predecessor may make the step: as
many as have there the length from which it is made, so the rate of one is taken that many times.  Positions of neighbours
come from the lattice's table of ranks, in which one coordinate changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba
import numpy as np

from builders.supermarket.rate_table import rate_table
from builders.supermarket.transitions import BLOCK
from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.state_space import Lattice
from ctmc.model.streamed import SLAB_STATES, is_streaming
from ctmc.model.transitions import CodedTransitions, FloatTransitions, unsigned


def largest_entries(space: Lattice) -> int:
    """Return an upper bound of the number of transitions of a lumped model; without a total cap it is the number itself,
    unless some servers never get a job.

    In a class of m servers with limit K a given length stands in the share m / (m + K) of the states, and each positive
    length makes a predecessor by an arrival, each below K one by a service.  A total cap takes transitions away, and
    keeps d different positive lengths only where d (d + 1) / 2 jobs are allowed.
    """
    kinds = [(length, space.limits[first]) for first, length in zip(space.firsts, space.classes, strict=True)]
    whole = replace(space, total=None).size
    arrivals = sum(whole * length * limit // (length + limit) for length, limit in kinds)
    if space.total is None:
        return 2 * arrivals
    different = int((np.sqrt(8 * space.total + 1) - 1) / 2)
    return 2 * min(arrivals, space.size * sum(min(length, limit, different) for length, limit in kinds))


def lumped_rows(
    space: Lattice, keys: np.ndarray, shares: np.ndarray, service_rates: np.ndarray, arrival_rate: float
) -> tuple[Callable[[int, int], FloatTransitions | CodedTransitions], Callable[[], int]]:
    """Return a function that makes the transitions into the states begin .. end - 1, and one that returns the number of all.

    Rates are coded, all ranges with the values of `builders.supermarket.rate_table`, unless there are more than 65,536 different ones.

    Parameters
    ----------
    space : Lattice
        With an ordered class for each class of servers.
    keys : ndarray of int64, shape (M, largest limit + 1)
        Preference key of each server at each queue length.
    shares : ndarray, shape (M + 1, M + 1)
        Share of the arrivals that a server gets, by the number of better and of tied servers.
    service_rates : ndarray, shape (M,)
    arrival_rate : float
    """
    limits = np.array(space.limits, dtype=np.uint64)
    firsts = np.repeat(space.firsts, space.classes).astype(np.uint64)
    total = np.uint64(sum(space.limits) if space.total is None else space.total)
    used = np.zeros((*shares.shape, max(space.classes) + 1), dtype=np.uint8)

    def starts(begin: int, end: int) -> np.ndarray:
        return np.asarray(space.states(np.arange(begin, end, BLOCK)).view(np.uint64))

    def counted(begin: int, end: int) -> np.ndarray:
        indptr = np.zeros(end - begin + 1, dtype=np.int64)
        _count(starts(begin, end), limits, firsts, total, keys, shares, indptr, used)
        return np.cumsum(indptr, out=indptr)

    size = space.size
    whole = None if is_streaming() else counted(0, size)
    if whole is None:
        entries = sum(int(counted(a, min(a + SLAB_STATES, size))[-1]) for a in range(0, size, SLAB_STATES))
    else:
        entries = int(whole[-1])
    of_arrivals, of_services, values = rate_table(used, shares, arrival_rate, service_rates, space.classes)
    narrow = of_arrivals.dtype

    @np.errstate(over="ignore")  # positions wrap around, which NumPy's numbers warn of where loops are not compiled
    def rows(begin: int, end: int) -> FloatTransitions | CodedTransitions:
        indptr = counted(begin, end) if whole is None else whole
        sources = np.empty(indptr[-1], dtype=np.int32 if size <= np.iinfo(np.int32).max else np.int64)
        codes = np.empty(indptr[-1], dtype=narrow)
        _fill(
            begin, starts(begin, end), limits, firsts, total, space.total is not None, space.ranks.view(np.uint64), keys,
            shares, of_arrivals, of_services, unsigned(indptr), unsigned(sources), codes,
        )  # fmt: skip
        if narrow.itemsize > 2:
            return FloatTransitions(indptr, sources, values[codes])
        return CodedTransitions(indptr, sources, codes, values)

    return rows, lambda: entries


# Everything below counts in unsigned numbers: Numba's test for negative indices would cost a factor of two.
_NONE, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)


@compiled
def _find_runs(state: Any, firsts: Any, keys: Any, begins: Any, members: Any, run_keys: Any) -> Any:
    """Describe the runs of equal values in a class: first coordinate, number of servers, preference key; return how many.

    ``begins`` also holds the end of the last run.
    """
    runs, begin, length = _NONE, _NONE, state[0]
    for i in range(_ONE, np.uint64(state.size)):
        if i == firsts[i] or state[i] != length:
            begins[runs], members[runs], run_keys[runs] = begin, i - begin, keys[begin, length]
            runs += _ONE
            begin, length = i, state[i]
    begins[runs], members[runs], run_keys[runs] = begin, np.uint64(state.size) - begin, keys[begin, length]
    runs += _ONE
    begins[runs] = np.uint64(state.size)
    return runs


@compiled
def _ranking(own: int, members: Any, run_keys: Any, runs: Any, r: Any) -> Any:
    """Numbers of better and of tied servers for one of run r, its key being `own` with one job less."""
    better, tied = 0, 1
    for s in range(runs):
        better += members[s] * (run_keys[s] < own)
        tied += members[s] * (run_keys[s] == own)
    # it was counted with the job that it has more
    return np.uint64(better - (run_keys[r] < own)), np.uint64(tied - (run_keys[r] == own))


@compiled
def _with_one_less(state: Any, firsts: Any, begins: Any, runs: Any, r: Any) -> Any:
    """Number of servers with the length of run r less one, once a server of that run has it too."""
    after = begins[r + _ONE]
    same = r + _ONE < runs and firsts[after] == firsts[begins[r]]
    if same and state[after] + _ONE == state[begins[r]]:
        return begins[r + _TWO] - after + _ONE
    return _ONE


@compiled
def _with_one_more(state: Any, firsts: Any, begins: Any, r: Any) -> Any:
    """Number of servers with the length of run r and one more, once a server of that run has it too."""
    if r > _NONE:
        before = begins[r - _ONE]
        if firsts[before] == firsts[begins[r]] and state[before] == state[begins[r]] + _ONE:
            return begins[r] - before + _ONE
    return _ONE


@compiled
def _advance(state: Any, limits: Any, firsts: Any, total: Any, filled: Any) -> Any:
    """Count up to the next state of the lattice; takes and returns the sum of the coordinates."""
    i = np.uint64(state.size)
    while i > _NONE:
        i -= _ONE
        largest = limits[i] if i == firsts[i] else state[i - _ONE]
        if state[i] < largest and filled < total:
            state[i] += _ONE
            return filled + _ONE
        filled -= state[i]
        state[i] = _NONE
    return filled


@compiled_parallel
def _count(
    starts: Any, limits: Any, firsts: Any, total: Any, keys: Any, shares: Any, counts: Any, used: Any
) -> None:  # fmt: skip
    """Set counts[y + 1] to the number of transitions into each state y, counted from the first block, and mark which
    arrival rates occur.
    """
    n = np.uint64(counts.size - 1)
    for block in numba.prange(starts.shape[0]):
        state = starts[block].copy()
        begins = np.empty(state.size + 1, dtype=np.uint64)
        members, run_keys = np.empty(state.size, dtype=np.int64), np.empty(state.size, dtype=np.int64)
        filled = state.sum()
        first = np.uint64(block * BLOCK)
        for y in range(first, min(first + np.uint64(BLOCK), n)):
            runs = _find_runs(state, firsts, keys, begins, members, run_keys)
            count = 0
            for r in range(runs):
                length = state[begins[r]]
                if length > _NONE:
                    better, tied = _ranking(keys[begins[r], length - _ONE], members, run_keys, runs, r)
                    if shares[better, tied] > 0.0:
                        times = _with_one_less(state, firsts, begins, runs, r)
                        if used[better, tied, times] == 0:  # written once each, so that threads do not wait
                            used[better, tied, times] = 1
                        count += 1
                if length < limits[begins[r]] and filled < total:
                    count += 1
            counts[y + _ONE] = count
            filled = _advance(state, limits, firsts, total, filled)


@compiled_parallel
def _fill(
    begin: Any, starts: Any, limits: Any, firsts: Any, total: Any, capped: bool, ranks: Any, keys: Any, shares: Any,
    of_arrivals: Any, of_services: Any, indptr: Any, sources: Any, codes: Any,
) -> None:  # fmt: skip
    """Write sources and codes.  Moves 5 bytes an entry."""
    n, m = np.uint64(indptr.size - 1), np.uint64(limits.size)
    for block in numba.prange(starts.shape[0]):
        state = starts[block].copy()
        begins = np.empty(m + _ONE, dtype=np.uint64)
        members, run_keys = np.empty(m, dtype=np.int64), np.empty(m, dtype=np.int64)
        rooms = np.zeros(m, dtype=np.uint64)
        # What the coordinates after i add to the position if one job less, or one more, stands before them; positions
        # wrap around below zero and back.
        after_less, after_more = np.zeros(m, dtype=np.uint64), np.zeros(m, dtype=np.uint64)
        filled = state.sum()
        first = np.uint64(block * BLOCK)
        for place in range(first, min(first + np.uint64(BLOCK), n)):
            y = np.uint64(begin) + place
            if capped:
                room, less, more = total - filled, _NONE, _NONE
                for step in range(m):
                    i = m - _ONE - step
                    x = state[i]
                    room += x
                    rooms[i], after_less[i], after_more[i] = room, less, more
                    less += ranks[i, min(room + _ONE, total), x] - ranks[i, room, x]
                    more += ranks[i, max(room, _ONE) - _ONE, x] - ranks[i, room, x]
            runs = _find_runs(state, firsts, keys, begins, members, run_keys)
            k = indptr[place]
            for r in range(runs):
                length = state[begins[r]]
                if length > _NONE:
                    better, tied = _ranking(keys[begins[r], length - _ONE], members, run_keys, runs, r)
                    if shares[better, tied] > 0.0:
                        i = begins[r + _ONE] - _ONE
                        fewer = ranks[i, rooms[i], length] - ranks[i, rooms[i], length - _ONE]
                        sources[k] = y + after_less[i] - fewer
                        codes[k] = of_arrivals[better, tied, _with_one_less(state, firsts, begins, runs, r)]
                        k += _ONE
            if filled < total:
                for step in range(runs):
                    r = runs - _ONE - step
                    i = begins[r]
                    if state[i] < limits[i]:
                        further = ranks[i, rooms[i], state[i] + _ONE] - ranks[i, rooms[i], state[i]]
                        sources[k] = y + after_more[i] + further
                        codes[k] = of_services[i, _with_one_more(state, firsts, begins, r)]
                        k += _ONE
            filled = _advance(state, limits, firsts, total, filled)
