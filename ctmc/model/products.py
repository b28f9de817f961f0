"""Compiled loops over a generator's transitions, which are stored by destination.

Each loop is written once, over a `Slab` given as its five fields, and serves every stored form.  Bytes are per stored
entry of the float64 form with 32-bit sources and ignore the vectors, which mostly stay in cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numba
import numpy as np

from ctmc.model.transitions import Slab, rate_at

compiled = numba.njit(cache=True, nogil=True)
compiled_parallel = numba.njit(cache=True, nogil=True, parallel=True)


FEW_ENTRIES = 20_000
"""Up to here, some ten microseconds of work, a loop stays on one thread."""
_CHUNK = 1 << 12
_BLOCK = 1 << 14


@compiled
def _add(mix: Any, before: float, after: float, first: Any, second: Any, j: Any) -> None:
    first[j] += mix[0] * before + mix[1] * after
    if mix.size > 2:
        second[j] += mix[2] * before + mix[3] * after


@compiled_parallel
def forward(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, exit_rates: Any, p: Any, previous: Any, factor: float,
    keep: float, weight: float, mix: Any, first: Any, second: Any, out: Any,
) -> None:  # fmt: skip
    """Set out = factor p Q + keep p + weight previous by gathering, and add to sums as `Generator.recurrence` says.

    Done for the states of a slab.  Moves 12 bytes an entry; the same bits for any number of threads and any slabs.
    """
    for row in numba.prange(indptr.size - 1):
        j = np.uint64(begin) + np.uint64(row)
        total = 0.0
        for k in range(indptr[row], indptr[row + 1]):
            total += p[sources[k]] * rate_at(codes, rates, k)
        out[j] = factor * (total - p[j] * exit_rates[j]) + (keep * p[j] + weight * previous[j])
        if mix.size > 0:
            _add(mix, p[j], out[j], first, second, j)


@compiled
def forward_on_one_thread(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, exit_rates: Any, p: Any, previous: Any, factor: float,
    keep: float, weight: float, mix: Any, first: Any, second: Any, out: Any,
) -> None:  # fmt: skip
    """Do the same with the same bits as `forward`, which for small chains would mostly wait for its threads."""
    for row in range(np.uint64(indptr.size - 1)):
        j = np.uint64(begin) + row
        total = 0.0
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            total += p[sources[k]] * rate_at(codes, rates, k)
        out[j] = factor * (total - p[j] * exit_rates[j]) + (keep * p[j] + weight * previous[j])
        if mix.size > 0:
            _add(mix, p[j], out[j], first, second, j)


def backward(slabs: Iterable[Slab], exit_rates: Any, v: Any, *others: Any) -> None:
    """Set out = factor Q v + keep v + weight previous by scattering, and add to sums; the arguments are those of `forward`.

    On one thread.  Moves 12 bytes an entry and updates `out` at random places.
    """
    out = others[-1]
    begin_backward(exit_rates, v, out)
    for slab in slabs:
        scatter(*slab, v, out)
    end_backward(v, *others)


@compiled
def begin_backward(exit_rates: Any, v: Any, out: Any) -> None:
    """Begin `backward`: what leads out of each state."""
    for i in range(np.uint64(v.size)):
        out[i] = -exit_rates[i] * v[i]


@compiled
def scatter(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, v: Any, out: Any) -> None:
    """Go on with `backward`: what leads into the states of a slab."""
    for row in range(np.uint64(indptr.size - 1)):
        value = v[np.uint64(begin) + row]
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            out[sources[k]] += rate_at(codes, rates, k) * value


@compiled
def end_backward(
    v: Any, previous: Any, factor: float, keep: float, weight: float, mix: Any, first: Any, second: Any, out: Any
) -> None:
    """End `backward`."""
    for i in range(np.uint64(v.size)):
        out[i] = factor * out[i] + (keep * v[i] + weight * previous[i])
        if mix.size > 0:
            _add(mix, v[i], out[i], first, second, i)


@compiled
def count_sources(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, counts: Any) -> None:
    """Add to counts[i] the number of transitions from state i into those of a slab."""
    for k in range(indptr[indptr.size - 1]):
        counts[sources[k]] += 1


@compiled
def exit_sums(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, out: Any) -> None:
    """Add to out[i] the total rate out of each state i into those of a slab.  Moves 12 bytes an entry."""
    for k in range(indptr[indptr.size - 1]):
        out[sources[k]] += rate_at(codes, rates, k)


def weigh(flow: np.ndarray, pi: np.ndarray, exit_rates: np.ndarray) -> tuple[float, float]:
    """Return sum |flow| and sum |pi| q in one pass, with the same bits for any number of threads."""
    sums = np.empty(((len(pi) + _CHUNK - 1) // _CHUNK, 2))
    (weigh_on_one_thread if len(pi) <= FEW_ENTRIES else weigh_chunks)(flow, pi, exit_rates, sums)
    imbalances, through = sums.sum(axis=0).tolist()
    return imbalances, through


@compiled_parallel
def weigh_chunks(flow: Any, pi: Any, exit_rates: Any, sums: Any) -> None:
    """Do the work of `weigh` chunk by chunk.  Moves 24 bytes a state."""
    for chunk in numba.prange(sums.shape[0]):
        a = np.int64(chunk) * _CHUNK
        b = min(a + _CHUNK, pi.size)
        _weigh_chunk(flow[a:b], pi[a:b], exit_rates[a:b], sums[chunk])


@compiled
def weigh_on_one_thread(flow: Any, pi: Any, exit_rates: Any, sums: Any) -> None:
    """Do the same without waiting for threads."""
    for chunk in range(sums.shape[0]):
        a = chunk * _CHUNK
        b = min(a + _CHUNK, pi.size)
        _weigh_chunk(flow[a:b], pi[a:b], exit_rates[a:b], sums[chunk])


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def _weigh_chunk(flow: Any, pi: Any, exit_rates: Any, sums: Any) -> None:
    """Sum in vector lanes, in an order that depends on the length of the chunk only."""
    imbalances, through = 0.0, 0.0
    for j in range(pi.size):
        imbalances += abs(flow[j])
        through += abs(pi[j]) * exit_rates[j]
    sums[0], sums[1] = imbalances, through


@compiled
def add_squared_differences(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, x: Any, out: Any) -> None:
    """Add rate(i, j) (x_j - x_i)^2 to out[i], for each transition into a state j of a slab.  Moves 12 bytes an entry."""
    for row in range(np.uint64(indptr.size - 1)):
        value = x[np.uint64(begin) + row]
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            i = sources[k]
            out[i] += rate_at(codes, rates, k) * (value - x[i]) ** 2


def first_fault(
    indptr: np.ndarray, sources: np.ndarray, rates: np.ndarray, begin: int = 0, size: int | None = None
) -> tuple[int, int]:
    """Return (kind, entry or row) of the first broken law of compressed rows, kind 0 if there is none.

    The rows are those of the states begin, begin + 1, .. of so many; by default of all.

    1: row pointer decreases; 2: source out of range; 3: sources not strictly increasing; 4: self-loop;
    5: rate not positive and finite.  Index arrays are signed here; `indptr` is known to begin with 0 and to end with the length.
    """
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        return 1, int(np.argmax(falls))
    size = len(indptr) - 1 if size is None else size
    blocks = (len(indptr) - 2) // _BLOCK + 1
    if blocks == 1:  # without waiting for threads
        kind, place = _fault(indptr, sources, rates, 0, begin, size)
        return int(kind), int(place)
    kinds, places = np.zeros(blocks, dtype=np.int64), np.zeros(blocks, dtype=np.int64)
    _first_faults(indptr, sources, rates, begin, size, kinds, places)
    first = int(np.argmax(kinds > 0))
    return int(kinds[first]), int(places[first])


@compiled_parallel
def _first_faults(indptr: Any, sources: Any, rates: Any, begin: int, size: int, kinds: Any, places: Any) -> None:
    """Look for the first fault in each block of states.  Moves 12 bytes an entry."""
    for block in numba.prange(kinds.size):
        kinds[block], places[block] = _fault(indptr, sources, rates, block * _BLOCK, begin, size)


@compiled
def _fault(indptr: Any, sources: Any, rates: Any, first: int, begin: int, size: int) -> tuple[int, int]:
    for j in range(first, min(first + _BLOCK, indptr.size - 1)):
        before = -1
        for k in range(indptr[j], indptr[j + 1]):
            i = sources[k]
            if i < 0 or i >= size:
                return 2, k
            if i <= before:
                return 3, k
            if i == begin + j:
                return 4, k
            if not (rates[k] > 0.0 and rates[k] < np.inf):
                return 5, k
            before = i
    return 0, 0


@compiled
def decode(codes: Any, values: Any, out: Any) -> None:
    """Set out to the values of the codes."""
    for k in range(np.uint64(codes.size)):
        out[k] = values[codes[k]]


@compiled
def entered_from_before(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, left: Any) -> bool:
    """Return whether every state of a slab but state 0 is entered from one before it; mark who is left to one before it.

    If all states are entered from one before and left to one before, all reach the first and are reached from it: the chain is
    irreducible.  Most queues pass this test, which is much quicker than looking for strongly connected classes.
    """
    for row in range(np.uint64(indptr.size - 1)):
        j = np.uint64(begin) + row
        entered = j == np.uint64(0)
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            i = sources[k]
            if i < j:
                entered = True
            else:
                left[i] = 1
        if not entered:
            return False
    return True


@compiled
def spread(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, reverse: bool, seen: Any) -> None:
    """Mark the states of a slab that a marked state leads to, in this order of the states."""
    n = np.uint64(indptr.size - 1)
    for step in range(n):
        row = n - np.uint64(1) - step if reverse else step
        j = np.uint64(begin) + row
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            if seen[j]:
                break
            seen[j] = seen[sources[k]]


@compiled
def spread_within(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, reverse: bool, within: Any, seen: Any
) -> None:
    """Mark the states of a slab, of those within some, that a marked state leads to, in this order of the states."""
    n = np.uint64(indptr.size - 1)
    for step in range(n):
        row = n - np.uint64(1) - step if reverse else step
        j = np.uint64(begin) + row
        if within[j]:
            for k in range(indptr[row], indptr[row + np.uint64(1)]):
                if seen[j]:
                    break
                seen[j] = seen[sources[k]]


@compiled
def spread_back_within(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, reverse: bool, within: Any, seen: Any
) -> None:
    """Mark the states, of those within some, that lead to a marked state of a slab."""
    n = np.uint64(indptr.size - 1)
    for step in range(n):
        row = n - np.uint64(1) - step if reverse else step
        if seen[np.uint64(begin) + row]:
            for k in range(indptr[row], indptr[row + np.uint64(1)]):
                seen[sources[k]] |= within[sources[k]]


@compiled
def spread_back(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, reverse: bool, seen: Any) -> None:
    """Mark the states that lead to a marked state of a slab."""
    n = np.uint64(indptr.size - 1)
    for step in range(n):
        row = n - np.uint64(1) - step if reverse else step
        if seen[np.uint64(begin) + row]:
            for k in range(indptr[row], indptr[row + np.uint64(1)]):
                seen[sources[k]] = True


@compiled
def color_from_before(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, colors: Any) -> bool:
    """Color the states of a slab but state 0 differently from the first that leads to them; False where none before does."""
    for row in range(np.uint64(indptr.size - 1)):
        j = np.uint64(begin) + row
        if j > np.uint64(0):
            k = indptr[row]
            if k == indptr[row + np.uint64(1)] or sources[k] >= j:
                return False
            colors[j] = colors[sources[k]] ^ np.uint8(1)
    return True


@compiled_parallel
def count_same_color(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, colors: Any) -> int:
    """Count the transitions into states of a slab that do not change the color."""
    wrong = 0
    for row in numba.prange(indptr.size - 1):
        color = colors[np.uint64(begin) + row]
        for k in range(indptr[row], indptr[row + 1]):
            wrong += colors[sources[k]] == color
    return wrong


@compiled
def two_coloring(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, parent: Any, parity: Any) -> bool:
    """Join the colors along the transitions of a slab; False if some cannot change the color.

    Union-find with parities relative to the parent, so neither connectedness nor the transpose is needed.
    """
    for row in range(np.uint64(indptr.size - 1)):
        j = np.uint64(begin) + row
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            a, color_a = root_and_color(parent, parity, np.uint64(sources[k]))
            b, color_b = root_and_color(parent, parity, j)
            if a == b:
                if color_a == color_b:
                    return False
            elif a < b:
                parent[b] = a
                parity[b] = np.uint8(1) ^ color_a ^ color_b
            else:
                parent[a] = b
                parity[a] = np.uint8(1) ^ color_a ^ color_b
    return True


@compiled
def colors_of(parent: Any, parity: Any, colors: Any) -> None:
    """Read the colors off the forest of `two_coloring`."""
    for i in range(np.uint64(colors.size)):
        colors[i] = root_and_color(parent, parity, i)[1]


@compiled
def root_and_color(parent: Any, parity: Any, i: Any) -> tuple[Any, Any]:
    """Return the root of a state, and its color relative to it."""
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
