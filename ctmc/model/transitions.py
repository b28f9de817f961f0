"""The stored forms of a generator's transitions.

All list for each state j the transitions into j.  *Float* and *coded* ones are compressed rows with a source per entry; a coded
entry has a small code in place of its rate.  The *lattice* form is for queues side by side in a box: every neighbour stands at
a fixed distance, so no source is stored at all, departures are a table, and an arrival is a whole number of one or two bytes.

Loops over entries are written once, for a `Slab`: compressed rows of neighbouring states.  Compressed forms are one slab as
they stand; a lattice writes its slabs out one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import overload

from ctmc.errors import ModelError, shown

_SLAB = 1 << 18
"""States per slab of a lattice."""
_BLOCK = 1 << 10
NO_CODES = np.empty(0)
"""What stands for the codes where rates are stored as they are."""


class Slab(NamedTuple):
    """The transitions into the states begin, begin + 1, ..; index arrays unsigned, as compiled loops want them.

    Attributes
    ----------
    begin : int
    indptr : ndarray of uint64, shape (states + 1,)
    sources : ndarray of uint32 or uint64
    codes : ndarray of uint8 or uint16, or `NO_CODES`
    rates : ndarray of float64
        Rate of each entry, or of each code: read it with `rate_at`.
    """

    begin: Any
    indptr: Any
    sources: Any
    codes: Any
    rates: Any


def slab_rates(slab: Slab, entries: slice) -> np.ndarray:
    """Return the rates of some entries of a slab."""
    return np.asarray(slab.rates[entries] if slab.codes is NO_CODES else slab.rates[slab.codes[entries]])


def rate_at(codes: Any, rates: Any, k: Any) -> Any:
    """Return the rate of entry k; compiled code gets one of the two branches."""
    return rates[k] if codes.dtype.kind == "f" else rates[codes[k]]


@overload(rate_at, strict=False)
def _rate_at(codes: Any, rates: Any, k: Any) -> Any:
    if isinstance(codes.dtype, types.Float):
        return lambda codes, rates, k: rates[k]
    return lambda codes, rates, k: rates[codes[k]]


class FloatTransitions(NamedTuple):
    """Compressed rows by destination with float64 rates: 12 bytes an entry, 16 with 64-bit sources.

    Attributes
    ----------
    indptr : ndarray of int64, shape (n + 1,)
        Entries ``indptr[j]:indptr[j + 1]`` lead into state j.
    sources : ndarray of int32 or int64, shape (entries,)
        Where each entry comes from; ascending for each j.
    rates : ndarray of float64, shape (entries,)
    """

    indptr: Any
    sources: Any
    rates: Any

    @property
    def name(self) -> str:
        """Name of the form."""
        return "float64 CSR"

    def slabs(self, *, reverse: bool = False) -> Iterator[Slab]:
        """Yield all rows as one slab."""
        yield Slab(0, unsigned(self.indptr), unsigned(self.sources), NO_CODES, self.rates)

    def into(self, j: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources and rates of the transitions into state j."""
        entries = slice(int(self.indptr[j]), int(self.indptr[j + 1]))
        return self.sources[entries].astype(np.int64), self.rates[entries]


class CodedTransitions(NamedTuple):
    """Compressed rows by destination with a code per rate: 5 bytes an entry, 6 with more than 256 different rates.

    Attributes
    ----------
    indptr : ndarray of int64, shape (n + 1,)
    sources : ndarray of int32 or int64, shape (entries,)
    codes : ndarray of uint8 or uint16, shape (entries,)
        The rate of entry k is ``values[codes[k]]``.
    values : ndarray of float64
    """

    indptr: Any
    sources: Any
    codes: Any
    values: Any

    @property
    def name(self) -> str:
        """Name of the form."""
        return "value-coded CSR"

    def slabs(self, *, reverse: bool = False) -> Iterator[Slab]:
        """Yield all rows as one slab."""
        yield Slab(0, unsigned(self.indptr), unsigned(self.sources), self.codes, self.values)

    def into(self, j: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources and rates of the transitions into state j."""
        entries = slice(int(self.indptr[j]), int(self.indptr[j + 1]))
        return self.sources[entries].astype(np.int64), self.values[self.codes[entries]]


class LatticeTransitions(NamedTuple):
    """Queues side by side in a box of states: M bytes a state (two for each weight above 255), and no source at all.

    The state y = (y_0, .., y_{M-1}) is entered from y - e_i at the rate ``unit * weights[i, j]``, j being the position of y, and
    from y + e_i at the rate ``departures[i, y_i + 1]``.

    Attributes
    ----------
    weights : ndarray of uint8 or uint16, shape (M, n)
        Zero where y_i = 0.
    unit : ndarray of float64, shape (1,)
    departures : ndarray of float64, shape (M, largest side)
        Departure rate of each queue at each length; column 0 is not read.
    sides : ndarray of int64, shape (M,)
        Number of values of each coordinate; states are in lexicographic order, the last coordinate fastest.
    strides : ndarray of int64, shape (M,)
        Distance between neighbours along each coordinate.
    """

    weights: Any
    unit: Any
    departures: Any
    sides: Any
    strides: Any

    @property
    def name(self) -> str:
        """Name of the form."""
        return "lattice"

    def slabs(self, *, reverse: bool = False) -> Iterator[Slab]:
        """Yield slabs written out one after another, into the same memory, from the last to the first if `reverse`."""
        n = self.weights.shape[1]
        begins = range(0, n, _SLAB)
        windows = (
            (begin, self.weights[:, begin : begin + _SLAB]) for begin in (reversed(begins) if reverse else begins)
        )
        return lattice_slabs(windows, n, _SLAB, *self[1:])

    def into(self, j: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources and rates of the transitions into state j."""
        lengths = j // self.strides % self.sides
        entered, ahead = self.weights[:, j] > 0, lengths + 1 < self.sides
        sources = np.concatenate([j - self.strides[entered], j + self.strides[ahead]])
        departing = self.departures[np.flatnonzero(ahead), lengths[ahead] + 1]
        return sources, np.concatenate([self.weights[entered, j] * self.unit[0], departing])

    def check(self, limits: tuple[int, ...], size: int) -> None:
        """Raise `ModelError` unless the arrays fit a box with these limits and hold rates of a generator."""
        self.check_parts(limits, self.weights.shape, self.weights.dtype, size)
        for i, side in enumerate(self.sides):
            if self.weights[i].reshape(-1, side, int(self.strides[i]))[:, 0].any():
                raise ModelError(
                    f"an arrival leads into a state in which coordinate {i} is 0; allowed is the weight 0 there."
                )

    def check_parts(self, limits: tuple[int, ...], shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> None:
        """Do the same but for the weights, of which shape and type are given."""
        sides = np.array(limits, dtype=np.int64) + 1
        strides = np.cumprod([1, *sides[:0:-1]])[::-1]
        if shape != (len(sides), size) or dtype not in (np.uint8, np.uint16):
            raise ModelError(f"weights have shape {shape}; allowed is {(len(sides), size)} of uint8 or uint16.")
        if not (np.array_equal(self.sides, sides) and np.array_equal(self.strides, strides)):
            raise ModelError(f"sides are {self.sides.tolist()}; allowed are those of the space, {sides.tolist()}.")
        if self.departures.shape != (len(sides), int(sides.max())) or self.departures.dtype != np.float64:
            raise ModelError(
                f"departures have shape {self.departures.shape}; allowed is {(len(sides), int(sides.max()))}."
            )
        if self.unit.shape != (1,) or self.unit.dtype != np.float64 or not 0 < float(self.unit[0]) < np.inf:
            raise ModelError(f"unit is {shown(self.unit)}; allowed is one positive, finite rate.")
        for i, side in enumerate(sides):
            given = self.departures[i, 1:side]
            if not ((given > 0) & np.isfinite(given)).all():
                raise ModelError(
                    f"departures of coordinate {i} are {given.tolist()}; allowed are positive, finite rates."
                )


def lattice_slabs(
    windows: Iterable[tuple[int, np.ndarray]],
    size: int,
    states: int,
    unit: np.ndarray,
    departures: np.ndarray,
    sides: np.ndarray,
    strides: np.ndarray,
) -> Iterator[Slab]:
    """Yield rows of a lattice, written out window by window into the same memory.

    Parameters
    ----------
    windows : iterable of (int, ndarray)
        First state and weights, shape (M, m), of neighbouring states, at most `states` of them.
    size : int
        Number of all states.
    """
    room = min(size, states)
    indptr = np.zeros(room + 1, dtype=np.uint64)
    sources = np.empty(2 * len(sides) * room, dtype=np.uint32 if size <= np.iinfo(np.int32).max else np.uint64)
    rates = np.empty(2 * len(sides) * room)
    for begin, weights in windows:
        pointers = indptr[: weights.shape[1] + 1]
        _count_slab(begin, weights, sides, strides, pointers)
        np.cumsum(pointers, out=pointers)
        _write_slab(begin, weights, unit, departures, sides, strides, pointers, sources, rates)
        yield Slab(begin, pointers, sources, NO_CODES, rates)


Transitions = FloatTransitions | CodedTransitions | LatticeTransitions


def unsigned(array: np.ndarray) -> np.ndarray:
    """Return the array's memory seen as unsigned integers of the same width."""
    return array.view(np.uint32 if array.dtype.itemsize == 4 else np.uint64)


def nbytes(transitions: Iterable[Any]) -> int:
    """Return the bytes of the arrays that are held."""
    return sum(int(array.nbytes) for array in transitions)


_compiled = numba.njit(cache=True, nogil=True)
_compiled_parallel = numba.njit(cache=True, nogil=True, parallel=True)


@_compiled_parallel
def _count_slab(begin: int, weights: Any, sides: Any, strides: Any, counts: Any) -> None:
    """Set counts[j + 1] to the number of transitions into each state of a slab."""
    states = counts.size - 1
    for block in numba.prange((states + _BLOCK - 1) // _BLOCK):
        low, high = np.int64(block) * _BLOCK, min((np.int64(block) + 1) * _BLOCK, states)
        digits = begin_digits(begin + low, sides, strides)
        for j in range(low, high):
            count = 0
            for i in range(sides.size):
                # one by one: the sum of two of NumPy's truth values is another one where loops are not compiled
                count += weights[i, j] > 0
                count += digits[i] + 1 < sides[i]
            counts[j + 1] = count
            count_up(digits, sides)
    counts[0] = 0


@_compiled_parallel
def _write_slab(
    begin: int,
    weights: Any,
    unit: Any,
    departures: Any,
    sides: Any,
    strides: Any,
    indptr: Any,
    sources: Any,
    rates: Any,
) -> None:
    """Write the transitions into each state of a slab."""
    states = indptr.size - 1
    for block in numba.prange((states + _BLOCK - 1) // _BLOCK):
        low, high = np.int64(block) * _BLOCK, min((np.int64(block) + 1) * _BLOCK, states)
        digits = begin_digits(begin + low, sides, strides)
        for j in range(low, high):
            k = np.int64(indptr[j])
            for i in range(sides.size):
                weight = weights[i, j]
                if weight > 0:
                    sources[k] = begin + j - strides[i]
                    rates[k] = weight * unit[0]
                    k += 1
            for i in range(sides.size - 1, -1, -1):
                if digits[i] + 1 < sides[i]:
                    sources[k] = begin + j + strides[i]
                    rates[k] = departures[i, digits[i] + 1]
                    k += 1
            count_up(digits, sides)


@_compiled
def begin_digits(position: Any, sides: Any, strides: Any) -> Any:
    """Return the coordinates of a position in a box."""
    digits = np.empty(sides.size, dtype=np.int64)
    for i in range(sides.size):
        digits[i] = position // strides[i] % sides[i]
    return digits


@_compiled
def count_up(digits: Any, sides: Any) -> None:
    """Move coordinates on to those of the next position."""
    i = sides.size - 1
    while i >= 0:
        digits[i] += 1
        if digits[i] < sides[i]:
            return
        digits[i] = 0
        i -= 1
