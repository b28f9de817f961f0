"""Compiled loops over a generator's entries, which are stored by destination.

`indptr` (n + 1), `sources` and `rates` list for each state j the states i with a rate into j.  All index arrays come in
as unsigned views: Numba's test for negative indices would cost a factor of two.  Bytes are per stored entry with 32-bit
sources and ignore the vectors, which mostly stay in cache.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

compiled = numba.njit(cache=True, nogil=True)
compiled_parallel = numba.njit(cache=True, nogil=True, parallel=True)


FEW_ENTRIES = 20_000
"""Up to here, some ten microseconds of work, a loop stays on one thread."""
_BLOCK = 1 << 14
"""States per block of work, whatever the number of threads."""


def unsigned(array: np.ndarray) -> np.ndarray:
    """Return the array's memory seen as unsigned integers of the same width."""
    return array.view(np.uint32 if array.dtype.itemsize == 4 else np.uint64)


@compiled_parallel
def forward(indptr: Any, sources: Any, rates: Any, exit_rates: Any, p: Any, out: Any) -> None:
    """Set out = p Q by gathering.  Moves 12 bytes an entry; the same bits for any number of threads."""
    for j in numba.prange(exit_rates.size):
        total = 0.0
        for k in range(indptr[j], indptr[j + 1]):
            total += p[sources[k]] * rates[k]
        out[j] = total - p[j] * exit_rates[j]


@compiled
def forward_on_one_thread(indptr: Any, sources: Any, rates: Any, exit_rates: Any, p: Any, out: Any) -> None:
    """Set out = p Q, with the same bits as `forward`, which for small chains would mostly wait for its threads."""
    for j in range(np.uint64(exit_rates.size)):
        total = 0.0
        for k in range(indptr[j], indptr[j + np.uint64(1)]):
            total += p[sources[k]] * rates[k]
        out[j] = total - p[j] * exit_rates[j]


@compiled
def backward(indptr: Any, sources: Any, rates: Any, exit_rates: Any, v: Any, out: Any) -> None:
    """Set out = Q v by scattering, on one thread.  Moves 12 bytes an entry and updates `out` at random places."""
    n = np.uint64(exit_rates.size)
    for i in range(n):
        out[i] = -exit_rates[i] * v[i]
    for j in range(n):
        value = v[j]
        for k in range(indptr[j], indptr[j + np.uint64(1)]):
            out[sources[k]] += rates[k] * value


@compiled
def exit_sums(indptr: Any, sources: Any, rates: Any, out: Any) -> None:
    """Add to out[i] the total rate out of each state i.  Moves 12 bytes an entry."""
    for k in range(indptr[indptr.size - 1]):
        out[sources[k]] += rates[k]


def first_fault(indptr: np.ndarray, sources: np.ndarray, rates: np.ndarray) -> tuple[int, int]:
    """Return (kind, entry or state) of the first broken law of the arrays, kind 0 if there is none.

    1: row pointer decreases; 2: source out of range; 3: sources not strictly increasing; 4: self-loop;
    5: rate not positive and finite.  `indptr` is signed here, and is known to begin with 0 and to end with the length.
    """
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        return 1, int(np.argmax(falls))
    blocks = (len(indptr) - 2) // _BLOCK + 1
    if blocks == 1:  # without waiting for threads
        kind, place = _fault(indptr, sources, rates, 0)
        return int(kind), int(place)
    kinds, places = np.zeros(blocks, dtype=np.int64), np.zeros(blocks, dtype=np.int64)
    _first_faults(indptr, sources, rates, kinds, places)
    first = int(np.argmax(kinds > 0))
    return int(kinds[first]), int(places[first])


@compiled_parallel
def _first_faults(indptr: Any, sources: Any, rates: Any, kinds: Any, places: Any) -> None:
    """Look for the first fault in each block of states.  Moves 12 bytes an entry."""
    for block in numba.prange(kinds.size):
        kinds[block], places[block] = _fault(indptr, sources, rates, block * _BLOCK)


@compiled
def _fault(indptr: Any, sources: Any, rates: Any, begin: int) -> tuple[int, int]:
    n = indptr.size - 1
    for j in range(begin, min(begin + _BLOCK, n)):
        before = -1
        for k in range(indptr[j], indptr[j + 1]):
            i = sources[k]
            if i < 0 or i >= n:
                return 2, k
            if i <= before:
                return 3, k
            if i == j:
                return 4, k
            if not (rates[k] > 0.0 and rates[k] < np.inf):
                return 5, k
            before = i
    return 0, 0


@compiled
def two_coloring(indptr: Any, sources: Any, colors: Any) -> bool:
    """Give `colors` (uint8) 0 and 1 so that every transition changes the color; False if that is impossible.

    Union-find with parities over the transitions, so neither connectedness nor the transpose is needed.
    """
    n = np.uint64(colors.size)
    parent = np.empty(n, dtype=np.uint64)
    parity = np.zeros(n, dtype=np.uint8)  # relative to the parent
    for i in range(n):
        parent[i] = i
    for j in range(n):
        for k in range(indptr[j], indptr[j + np.uint64(1)]):
            a, color_a = _root(parent, parity, np.uint64(sources[k]))
            b, color_b = _root(parent, parity, np.uint64(j))
            if a == b:
                if color_a == color_b:
                    return False
            elif a < b:
                parent[b] = a
                parity[b] = np.uint8(1) ^ color_a ^ color_b
            else:
                parent[a] = b
                parity[a] = np.uint8(1) ^ color_a ^ color_b
    for i in range(n):
        colors[i] = _root(parent, parity, np.uint64(i))[1]
    return True


@compiled
def _root(parent: Any, parity: Any, i: Any) -> tuple[Any, Any]:
    color = np.uint8(0)
    while parent[i] != i:
        up = parent[i]
        parity[i] ^= parity[up]  # halve the path; where `up` is a root its parity is 0
        parent[i] = parent[up]
        color ^= parity[i]
        i = parent[i]
    return i, color


@compiled
def substitute(indptr: Any, targets: Any, rates: Any, exits: Any, order: Any, x: Any) -> None:
    """Replace x[i] by (x[i] + sum_j rate(i, j) x[j]) / exits[i] for the states in this order; entries are by source."""
    for i in order:
        total = x[i]
        for k in range(indptr[i], indptr[i + 1]):
            total += rates[k] * x[targets[k]]
        x[i] = total / exits[i]
