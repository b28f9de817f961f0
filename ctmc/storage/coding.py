"""Arrays with few different values as a small code per element and a table of the values.

Generators of queues have a few dozen different rates, exit rates and numbers of transitions per state.  One byte in place of
eight is less to hash, to compress and to read; it is what makes a file with checksums nearly as fast as a bare one.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ctmc.errors import StorageError
from ctmc.model.products import compiled, compiled_parallel

LEAST = 4096
"""Shorter arrays are stored as they are."""
MOST = 1 << 16
"""Most different values."""
WRAPS_AROUND = np.errstate(over="ignore")
"""For what multiplies hashes modulo 2^64: without compilation NumPy would warn of it."""
_SLOTS = 1 << 18
_CHUNK = 1 << 16
_WORKERS = 8

Coded = tuple[np.ndarray, np.ndarray]


class Distinct:
    """The different values of an array that comes piece by piece, as long as they are few.

    Parameters
    ----------
    most : int
        More of them are not looked for.

    Examples
    --------
    >>> found = Distinct(10)
    >>> found.add(np.array([2, 3])), found.add(np.array([3, 5]))
    (None, None)
    >>> found.values(np.dtype(np.int64)).tolist()
    [2, 3, 5]
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._tables = np.zeros((_WORKERS, _SLOTS), dtype=np.uint64)
        self._used = np.zeros((_WORKERS, _SLOTS), dtype=np.bool_)
        self._counts = np.zeros(_WORKERS, dtype=np.int64)

    @property
    def full(self) -> bool:
        """Whether there are too many."""
        return bool(self._counts.max() > self.most)

    @WRAPS_AROUND
    def add(self, values: np.ndarray) -> None:
        """Take note of the values of 8 bytes each."""
        if not self.full:
            _gather(values.view(np.uint64), self._tables, self._used, self._counts, self.most)

    def values(self, dtype: np.dtype[Any]) -> np.ndarray | None:
        """Return the different values, ascending by bit pattern, or None where there are too many."""
        if self.full:
            return None
        found = np.unique(self._tables[self._used])
        return found.view(dtype) if len(found) <= self.most else None


class Coder:
    """Turns values into codes, with a table of all of them.

    Parameters
    ----------
    values : ndarray of 8-byte numbers
        At most 65,536 different ones.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.dtype = np.dtype(_narrow(len(values)))
        self._table, self._codes = _lookup(values.view(np.uint64))

    @WRAPS_AROUND
    def codes(self, values: np.ndarray) -> np.ndarray:
        """Return the code of each value."""
        codes = np.empty(values.size, dtype=self.dtype)
        _encode(values.view(np.uint64), self._table, self._codes, codes)
        return codes


def coded(array: np.ndarray) -> Coded | None:
    """Return (codes, values) with ``values[codes]`` equal to the array bit by bit, or None where that does not pay.

    Parameters
    ----------
    array : ndarray of float64 or int64, shape (m,)

    Returns
    -------
    codes : ndarray of uint8 or uint16, shape (m,)
    values : ndarray of the array's type
        Ascending by bit pattern.

    Examples
    --------
    >>> codes, values = coded(np.tile([0.5, 2.0], 4096))
    >>> codes[:3].tolist(), values.tolist()
    ([0, 1, 0], [0.5, 2.0])
    """
    if array.size < LEAST:
        return None
    found = Distinct(MOST)
    found.add(array)
    values = found.values(array.dtype)
    return None if values is None else (Coder(values).codes(array), values)


def decoded(codes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return ``values[codes]``.

    Raises
    ------
    StorageError
        If a code has no value.
    """
    _check(codes, values)
    array = np.empty(codes.size, dtype=values.dtype)
    _decode(codes, values, array)
    return array


def _check(codes: np.ndarray, values: np.ndarray) -> None:
    if codes.ndim != 1 or values.ndim != 1 or codes.dtype not in (np.uint8, np.uint16):
        raise StorageError("its codes are not vectors of one or two bytes with a vector of values")
    if codes.size and int(codes.max()) >= len(values):
        raise StorageError(f"a code is {int(codes.max())}, but there are {len(values)} values")


def _narrow(count: int) -> type[np.uint8] | type[np.uint16]:
    return np.uint8 if count <= 256 else np.uint16


@WRAPS_AROUND
def _lookup(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a hash table of the values and the code that belongs to each slot."""
    table, used = np.zeros(_SLOTS, dtype=np.uint64), np.zeros(_SLOTS, dtype=np.bool_)
    codes = np.zeros(_SLOTS, dtype=np.uint16)
    _fill(values, table, used, codes)
    return table, codes


@compiled
def _slot(value: Any, table: Any, used: Any) -> Any:
    """Return the slot of a value in a hash table with open addressing, or the free one where it belongs."""
    place = (value * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(46)  # the upper 18 bits: 2^18 slots
    while used[place] and table[place] != value:
        place = (place + np.uint64(1)) & np.uint64(_SLOTS - 1)
    return place


@compiled_parallel
def _gather(bits: Any, tables: Any, used: Any, counts: Any, most: int) -> None:
    share = (bits.size + _WORKERS - 1) // _WORKERS
    for worker in numba.prange(_WORKERS):
        table, taken, count = tables[worker], used[worker], counts[worker]
        for k in range(np.uint64(min(worker * share, bits.size)), np.uint64(min((worker + 1) * share, bits.size))):
            place = _slot(bits[k], table, taken)
            if not taken[place]:
                table[place], taken[place] = bits[k], True
                count += 1
                if count > most:
                    break
        counts[worker] = count


@compiled
def _fill(values: Any, table: Any, used: Any, codes: Any) -> None:
    for code in range(values.size):
        place = _slot(values[code], table, used)
        table[place], used[place], codes[place] = values[code], True, code


@compiled
def _code(value: Any, table: Any, codes: Any) -> Any:
    """Return the code of a value that is known to be in the table."""
    place = (value * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(46)
    while table[place] != value:
        place = (place + np.uint64(1)) & np.uint64(_SLOTS - 1)
    return codes[place]


@compiled_parallel
def _encode(bits: Any, table: Any, codes_of: Any, codes: Any) -> None:
    """Write the code of each element.  Reads 8 bytes an element and writes 1 or 2."""
    for chunk in numba.prange((bits.size + _CHUNK - 1) // _CHUNK):
        for k in range(np.uint64(chunk * _CHUNK), np.uint64(min((chunk + 1) * _CHUNK, bits.size))):
            codes[k] = _code(bits[k], table, codes_of)


@compiled_parallel
def _decode(codes: Any, values: Any, array: Any) -> None:
    for chunk in numba.prange((codes.size + _CHUNK - 1) // _CHUNK):
        for k in range(np.uint64(chunk * _CHUNK), np.uint64(min((chunk + 1) * _CHUNK, codes.size))):
            array[k] = values[codes[k]]
