"""Transitions that are never all in memory: compressed rows, made slab by slab as they are asked for.

A slab comes from a file (`ctmc.storage.stored`) or from a builder (`made`).  All loops over `Generator.row_slabs` take it as
they take the slabs of the other forms, so products, sweeps and checks give the same bits as in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctmc.errors import ModelError
from ctmc.model import lattice_rates
from ctmc.model.transitions import (
    NO_CODES,
    CodedTransitions,
    FloatTransitions,
    LatticeTransitions,
    Slab,
    lattice_slabs,
    slab_rates,
    unsigned,
)

SLAB_STATES = 1 << 18
"""States per slab that a builder makes."""
LEAST_STREAMED = 1 << 22
"""Up to so many states a lattice is kept in memory; rows of its weights are then shorter than a chunk of a file."""
_streaming: ContextVar[bool] = ContextVar("streaming", default=False)


@dataclass(frozen=True, eq=False)
class LatticeParts:
    """A lattice whose weights come window by window; see `ctmc.model.transitions.LatticeTransitions`.

    Attributes
    ----------
    dtype : dtype
        Of the weights.
    unit, departures, sides, strides : ndarray
    windows : callable
        Maps numbers of slabs to an iterator over first state and weights, shape (M, states), of these.
    """

    dtype: np.dtype[Any]
    unit: np.ndarray
    departures: np.ndarray
    sides: np.ndarray
    strides: np.ndarray
    windows: Callable[[Iterable[int]], Iterator[tuple[int, np.ndarray]]]


@dataclass(frozen=True, eq=False)
class StreamedTransitions:
    """Compressed rows by destination, slab by slab.

    Attributes
    ----------
    name : str
        Where they come from: 'stored rows' or 'rows made as they are asked for'.
    begins : ndarray of int64, shape (slabs + 1,)
        First state of each slab, and the number of states.
    count : callable
        Returns the number of transitions.
    stream : callable
        Maps numbers of slabs to an iterator over these slabs, in this order; each is valid until the next one.
    lattice : LatticeParts, optional
        What the rows are written out from.
    each : callable, optional
        Calls a function with every slab, several at once in threads: it must not start threads itself, and write only what
        belongs to the states of its slab.
    nbytes : int
        Bytes that are held all the time at most.
    """

    name: str
    begins: np.ndarray
    count: Callable[[], int]
    stream: Callable[[Iterable[int]], Iterator[Slab]]
    lattice: LatticeParts | None = None
    each: Callable[[Callable[[Slab], None]], None] | None = None
    nbytes: int = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the arrays that belong to the model: none."""
        return iter(())

    def slabs(self, *, reverse: bool = False) -> Iterator[Slab]:
        """Yield all slabs, from the last to the first if `reverse`."""
        numbers = range(len(self.begins) - 1)
        return self.stream(reversed(numbers) if reverse else numbers)

    def gather(self, work: Callable[[Slab], None], whole: Callable[[Slab], None]) -> None:
        """Do a loop that writes only what belongs to the states of a slab: `work` on one thread, `whole` on all of them."""
        if self.each is not None:
            self.each(work)
        else:
            for slab in self.slabs():
                whole(slab)

    def into(self, j: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources and rates of the transitions into state j; makes a slab."""
        (slab,) = self.stream([int(np.searchsorted(self.begins, j, side="right")) - 1])
        entries = slice(int(slab.indptr[j - slab.begin]), int(slab.indptr[j - slab.begin + 1]))
        return slab.sources[entries].astype(np.int64), slab_rates(slab, entries)

    def values(self) -> np.ndarray | None:
        """Return the table of rates that all slabs share, or None where rates are not coded."""
        slab = next(self.stream([0]))
        return None if slab.codes is NO_CODES or self.lattice is not None else np.asarray(slab.rates)

    def rerated(self, *tables: np.ndarray) -> StreamedTransitions:
        """Return the same transitions at other rates: (values,), or (unit, departures) of a lattice.

        Raises
        ------
        ModelError
            If a transition would appear, vanish, or have no finite rate.
        """
        parts = self.lattice
        values = self.values() if parts is None else None
        before = (values,) if parts is None else (parts.unit, parts.departures)
        for one, other in zip(before, tables, strict=True):
            if one is None or one.shape != other.shape or not np.array_equal(one > 0, (other > 0) & np.isfinite(other)):
                raise ModelError("at these rates a transition would appear, vanish, or have no finite, positive rate.")
        if parts is not None:
            unit, departures = tables
            return replace(
                streamed_lattice(self.name, self.begins, replace(parts, unit=unit, departures=departures)),
                nbytes=self.nbytes,
            )

        def stream(numbers: Iterable[int]) -> Iterator[Slab]:
            return (slab._replace(rates=tables[0]) for slab in self.stream(numbers))

        def each(work: Callable[[Slab], None]) -> None:
            assert self.each is not None
            self.each(lambda slab: work(slab._replace(rates=tables[0])))

        return replace(self, stream=stream, each=None if self.each is None else each)

    def check(self, size: int) -> None:
        """Raise `ModelError` unless the slabs are those of so many states; what is in them is their maker's business."""
        if self.begins[0] != 0 or self.begins[-1] != size or not (np.diff(self.begins) > 0).all():
            raise ModelError(f"the slabs run from {self.begins[0]} to {self.begins[-1]}; allowed is 0 to {size}.")


@contextlib.contextmanager
def streaming(on: bool = True) -> Iterator[None]:
    """Have builders return rows that are made as they are asked for, inside a ``with`` block, or not any more."""
    token = _streaming.set(on)
    try:
        yield
    finally:
        _streaming.reset(token)


def is_streaming() -> bool:
    """Return whether builders are to return streamed rows."""
    return _streaming.get()


def made(
    size: int,
    rows: Callable[[int, int], FloatTransitions | CodedTransitions],
    count: Callable[[], int] | None = None,
    *,
    block: int = 4096,
    slab_states: int | None = None,
) -> Any:
    """Return the rows of all states at once, or, inside `streaming`, as they are asked for.

    Parameters
    ----------
    size : int
        Number of states.
    rows : callable
        ``rows(begin, end)`` returns the transitions into the states begin .. end - 1, row pointers from 0.
    count : callable, optional
        Returns the number of all transitions, if that is quicker than making them.
    block : int
        Slabs begin at multiples of it; itself a multiple of 4096, the blocks in which files are decoded.
    slab_states : int, optional
        States per slab.

    Examples
    --------
    >>> def rows(begin, end):                                     # a ring of ten thousand states
    ...     states = np.arange(begin, end)
    ...     return FloatTransitions(np.arange(end - begin + 1), ((states - 1) % 10000).astype(np.int32), np.ones(end - begin))
    >>> with streaming():
    ...     ring = made(10000, rows, slab_states=5000)
    >>> ring.count(), ring.begins.tolist(), ring.into(0)[0].tolist()
    (10000, [0, 4096, 8192, 10000], [9999])
    """
    if not is_streaming():
        return rows(0, size)
    step = max(1, (slab_states or SLAB_STATES) // block) * block
    begins = np.append(np.arange(0, size, step), size)

    def stream(numbers: Iterable[int]) -> Iterator[Slab]:
        for number in numbers:
            begin = int(begins[number])
            yield as_slab(begin, rows(begin, int(begins[number + 1])))

    def counted() -> int:
        return sum(int(slab.indptr[-1]) for slab in stream(range(len(begins) - 1)))

    return StreamedTransitions("rows made as they are asked for", begins, count or counted, stream)


def made_lattice(
    size: int,
    weights: Callable[[int, int], np.ndarray],
    unit: np.ndarray,
    departures: np.ndarray,
    sides: np.ndarray,
    strides: np.ndarray,
) -> LatticeTransitions | StreamedTransitions:
    """Return a lattice, or, inside `streaming` and where states are many, rows that are written out as they are asked for.

    Parameters
    ----------
    size : int
        Number of states.
    weights : callable
        ``weights(begin, end)`` returns those of the states begin .. end - 1, shape (M, end - begin), begin being a multiple
        of the last side.
    unit, departures, sides, strides : ndarray
        As of `LatticeTransitions`.
    """
    if not is_streaming() or size <= LEAST_STREAMED:
        return LatticeTransitions(weights(0, size), unit, departures, sides, strides)
    begins = lattice_begins(size, int(sides[-1]))

    def windows(numbers: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
        for number in numbers:
            begin = int(begins[number])
            yield begin, weights(begin, int(begins[number + 1]))

    parts = LatticeParts(weights(0, int(sides[-1])).dtype, unit, departures, sides, strides, windows)
    return streamed_lattice("rows made as they are asked for", begins, parts)


def lattice_begins(size: int, side: int) -> np.ndarray:
    """Return where the slabs of a lattice begin: at multiples of the last side."""
    return np.append(np.arange(0, size, max(1, SLAB_STATES // side) * side), size)


def streamed_lattice(name: str, begins: np.ndarray, parts: LatticeParts) -> StreamedTransitions:
    """Return rows that are written out from the windows of a lattice."""
    size = int(begins[-1])

    def stream(numbers: Iterable[int]) -> Iterator[Slab]:
        return lattice_slabs(
            parts.windows(numbers), size, int(begins[1]), parts.unit, parts.departures, parts.sides, parts.strides
        )

    def count() -> int:
        windows = parts.windows(range(len(begins) - 1))
        arrivals = sum(int(np.count_nonzero(weights)) for _, weights in windows)
        departures: int = sum(size // side * (side - 1) for side in parts.sides.tolist())
        return arrivals + departures

    return StreamedTransitions(name, begins, count, stream, parts)


def as_slab(begin: int, rows: FloatTransitions | CodedTransitions) -> Slab:
    """Return rows of neighbouring states as a slab."""
    if isinstance(rows, CodedTransitions):
        return Slab(begin, unsigned(rows.indptr), unsigned(rows.sources), rows.codes, rows.values)
    return Slab(begin, unsigned(rows.indptr), unsigned(rows.sources), NO_CODES, rows.rates)


def sum_streamed_lattice(rows: StreamedTransitions, sums: np.ndarray) -> None:
    """Set sums to the total rate out of each state, window by window, with the same bits as in memory."""
    parts = rows.lattice
    assert parts is not None
    accepted = np.zeros(len(sums), dtype=np.uint32)
    for begin, weights in parts.windows(range(len(rows.begins) - 1)):
        for row, stride in zip(weights, parts.strides.tolist(), strict=True):
            first, end = max(begin, stride), begin + len(row)  # before the first the coordinate is 0
            if first < end:
                accepted[first - stride : end - stride] += row[first - begin :]
    lattice_rates.finish_rates(accepted, parts.unit, parts.departures, parts.sides, parts.strides, sums)
