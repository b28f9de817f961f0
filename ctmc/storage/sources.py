"""Where transitions come from, in about one byte an entry.

In an ordered space the predecessors of a state are those of the state before, moved by one, but where a coordinate begins anew.
So of each source the difference from this guess is stored: one of up to 255 frequent values by its code, any other by itself.
States go in blocks, in which decoding begins afresh.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ctmc.errors import StorageError
from ctmc.model.products import compiled, compiled_parallel
from ctmc.storage.coding import WRAPS_AROUND

BLOCK = 4096
"""States per block."""
OTHER = 255
"""The code of what is not among the frequent differences."""
_MOST_COUNTED = 1 << 17
_SLOTS = 1 << 18
_FEW_SLOTS = 1 << 11


class Differences:
    """Counts the differences of sources that come slab by slab; slabs begin at multiples of `BLOCK`.

    The first 131,072 different ones are counted, in the order of the states.

    Examples
    --------
    >>> found = Differences()
    >>> found.add(0, np.array([0, 1, 2, 3], np.uint64), np.array([1, 2, 0], np.uint32))        # 1 -> 0, 2 -> 1, 0 -> 2
    >>> found.frequent().tolist(), found.uncovered(found.frequent()[:1])
    ([-3, 0, 1], 2)
    """

    def __init__(self) -> None:
        self._table, self._counts = np.zeros(_SLOTS, dtype=np.int64), np.zeros(_SLOTS, dtype=np.int64)
        self._totals = np.zeros(2, dtype=np.int64)

    @WRAPS_AROUND
    def add(self, begin: int, indptr: np.ndarray, sources: np.ndarray) -> None:
        """Count the differences of a slab; index arrays unsigned."""
        _count(begin, indptr, sources, self._table, self._counts, self._totals)

    def frequent(self) -> np.ndarray:
        """Return the most frequent differences, at most 255, from the most frequent on, the smaller first among equals."""
        used = self._counts > 0
        values, counts = self._table[used], self._counts[used]
        return np.asarray(values[np.lexsort((values, -counts))[:OTHER]])

    def uncovered(self, values: np.ndarray) -> int:
        """Return how many entries have another difference."""
        inside = np.isin(self._table, values) & (self._counts > 0)
        return int(self._totals[0] - self._counts[inside].sum())


class Encoder:
    """Turns sources into codes and other differences.

    Parameters
    ----------
    values : ndarray of int64
        The differences that have codes, at most 255.
    """

    @WRAPS_AROUND
    def __init__(self, values: np.ndarray) -> None:
        self._table, self._codes = np.zeros(_FEW_SLOTS, dtype=np.int64), np.full(_FEW_SLOTS, OTHER, dtype=np.uint8)
        _fill(values, self._table, self._codes)

    @WRAPS_AROUND
    def encode(self, begin: int, indptr: np.ndarray, sources: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return codes, other differences, and how many of these there are in each block; index arrays unsigned."""
        entries, rows = int(indptr[-1]), len(indptr) - 1
        codes, others = np.empty(entries, dtype=np.uint8), np.empty(entries, dtype=np.int64)
        numbers = np.zeros(-(-rows // BLOCK), dtype=np.int64)
        count = _encode(begin, indptr, sources, self._table, self._codes, codes, others, numbers)
        return codes, others[:count].copy(), numbers


def decode(
    begin: int, indptr: np.ndarray, codes: np.ndarray, values: np.ndarray, others: np.ndarray, starts: np.ndarray, sources: np.ndarray,
    *, states: int, parallel: bool,
) -> None:  # fmt: skip
    """Set the sources of a slab.

    Parameters
    ----------
    begin : int
        First state, a multiple of `BLOCK`.
    indptr : ndarray of uint64
    codes : ndarray of uint8
    values : ndarray of int64
    others : ndarray of int64
        Of this slab.
    starts : ndarray of int64
        Where the others of each block begin, and the number of all in this slab.
    sources : ndarray of uint32 or uint64
        What is set; whether they lie in the space is for who verifies to look at.
    states : int
        Number of states in the space.
    parallel : bool
        Whether on several threads; not from within a thread of a pool.

    Raises
    ------
    StorageError
        If the arrays do not fit each other.
    """
    if codes.dtype != np.uint8 or values.dtype != np.int64 or values.ndim != 1 or len(values) > OTHER:
        raise StorageError("its steps are not codes of one byte with at most 255 whole numbers")
    if others.dtype != np.int64 or others.ndim != 1 or starts.dtype != np.int64 or codes.ndim != 1:
        raise StorageError("its other steps and their starts are not vectors of int64")
    if starts[0] != 0 or starts[-1] != len(others) or (np.diff(starts) < 0).any():
        raise StorageError("the starts of its other steps do not fit them")
    for steps in (values, others):
        if steps.size and max(-int(steps.min()), int(steps.max())) > states:
            raise StorageError("a step leads further than there are states")
    table = np.zeros(256, dtype=np.int64)
    table[: len(values)] = values
    found = np.zeros(len(starts) - 1, dtype=np.int64)
    (_decode_blocks if parallel else _decode)(begin, indptr, codes, table, others, starts, sources, found)
    unknown = codes.size and len(values) < OTHER and ((codes >= len(values)) & (codes != OTHER)).any()
    if unknown or not np.array_equal(found, np.diff(starts)):
        raise StorageError("its codes of steps do not fit its other steps")


@compiled
def _difference(j: Any, row: Any, k: Any, indptr: Any, sources: Any) -> int:
    """Return the difference of the source of entry k in a row from its guess; j is the state of the row."""
    if row % np.uint64(BLOCK) > np.uint64(0):
        before = indptr[row - np.uint64(1)] + (k - indptr[row])
        if before < indptr[row]:
            return np.int64(sources[k]) - np.int64(sources[before]) - 1  # type: ignore[return-value]  # compiled: one number
    return np.int64(sources[k]) - np.int64(j)  # type: ignore[return-value]  # compiled: one number


@compiled
def _count(begin: int, indptr: Any, sources: Any, table: Any, counts: Any, totals: Any) -> None:
    """Count differences in a hash table; totals are the entries and the different values so far."""
    different = np.uint64(totals[1])
    for row in range(np.uint64(indptr.size - 1)):
        j = np.uint64(begin) + row
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            value = _difference(j, row, k, indptr, sources)
            place = (np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(46)
            count = counts[place]
            while count > 0 and table[place] != value:
                place = (place + np.uint64(1)) & np.uint64(_SLOTS - 1)
                count = counts[place]
            if count > 0:
                counts[place] = count + 1
            elif different < np.uint64(_MOST_COUNTED):
                table[place], counts[place] = value, 1
                different += np.uint64(1)
    totals[0] += np.int64(indptr[indptr.size - 1])
    totals[1] = np.int64(different)


@compiled
def _slot(value: int, table: Any, codes: Any) -> Any:
    place = (np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(53)
    while codes[place] != OTHER and table[place] != value:
        place = (place + np.uint64(1)) & np.uint64(_FEW_SLOTS - 1)
    return place


@compiled
def _fill(values: Any, table: Any, codes: Any) -> None:
    for code in range(values.size):
        place = _slot(values[code], table, codes)
        table[place], codes[place] = values[code], code


@compiled
def _encode(
    begin: int, indptr: Any, sources: Any, table: Any, codes_of: Any, codes: Any, others: Any, numbers: Any
) -> Any:
    """Write codes and other differences.  Reads 4 bytes an entry and writes 1."""
    count, rows = np.uint64(0), np.uint64(indptr.size - 1)
    for block in range(np.uint64(numbers.size)):
        before = count
        for row in range(block * np.uint64(BLOCK), min((block + np.uint64(1)) * np.uint64(BLOCK), rows)):
            j = np.uint64(begin) + row
            for k in range(indptr[row], indptr[row + np.uint64(1)]):
                value = _difference(j, row, k, indptr, sources)
                code = codes_of[_slot(value, table, codes_of)]
                codes[k] = code
                if code == OTHER:
                    others[count] = value
                    count += np.uint64(1)
        numbers[block] = np.int64(count - before)
    return count


@compiled
def _decode_block(
    block: Any, begin: int, indptr: Any, codes: Any, table: Any, others: Any, starts: Any, sources: Any, found: Any
) -> None:
    place, end = starts[block], starts[block + 1]
    low = np.uint64(block) * np.uint64(BLOCK)
    count = 0
    for row in range(low, min(low + np.uint64(BLOCK), np.uint64(indptr.size - 1))):
        j = np.int64(begin) + np.int64(row)
        first = indptr[row]
        before = indptr[row - np.uint64(1)] if row > low else first
        for k in range(first, indptr[row + np.uint64(1)]):
            code = codes[k]
            value = table[code]
            if code == OTHER:
                if place + count < end:
                    value = others[place + count]
                count += 1
            guess = j
            if before < first:
                guess = np.int64(sources[before]) + 1
                before += np.uint64(1)
            sources[k] = guess + value
    found[block] = count


@compiled
def _decode(
    begin: int, indptr: Any, codes: Any, table: Any, others: Any, starts: Any, sources: Any, found: Any
) -> None:
    """Set the sources on one thread.  Moves 5 bytes an entry."""
    for block in range(found.size):
        _decode_block(block, begin, indptr, codes, table, others, starts, sources, found)


@compiled_parallel
def _decode_blocks(
    begin: int, indptr: Any, codes: Any, table: Any, others: Any, starts: Any, sources: Any, found: Any
) -> None:
    """Do the same, a block on each thread."""
    for block in numba.prange(found.size):
        _decode_block(block, begin, indptr, codes, table, others, starts, sources, found)
