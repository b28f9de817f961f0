"""What the ranks that share a model will exchange: ghosts, partners, messages and bytes, without sharing it.

Each rank reads, before a product, the elements of others that transitions into its own states come from.  Where rows of all
states can be gone through, these are counted exactly; of large models the rows near the borders of some ranks are made, and
the others lie between them.  On a box of queues the closed form bounds both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ctmc.model.generator import Generator
from ctmc.model.parameters import whole_number
from ctmc.model.shared import border, slab_begins, slabs_of, transitions_before
from ctmc.model.streamed import SLAB_STATES, StreamedTransitions
from ctmc.ranks import ALONE

COUNTED = 1 << 22
"""Up to so many states every row is looked at."""
_RANKS = 5
"""Ranks of a large model whose rows are looked at; the others are taken to lie between them."""
_SLABS = 24
"""Slabs in which the transitions of a large model are counted, to place the borders."""
ELEMENT = 8
"""Bytes of an element."""
Reads = tuple[np.ndarray, np.ndarray]
"""Numbers of ranks, ascending, and how many elements are read of each."""


@dataclass(frozen=True, eq=False)
class Volume:
    """What ranks exchange before a product p Q, by rank.

    For Q v the same goes the other way: each rank sends as many elements as it has ghosts.

    Attributes
    ----------
    begins : ndarray of int64, shape (ranks + 1,)
        First state of each rank, and the number of states.
    entries : ndarray of int64, shape (ranks,)
        Transitions into the states of each rank.
    ghosts : ndarray of int64, shape (ranks,)
        Elements that each rank reads of others.
    sent : ndarray of int64, shape (ranks,)
        Elements that each rank sends.
    partners : ndarray of int64, shape (ranks,)
        Ranks that each rank sends to, or receives from.
    messages : ndarray of int64, shape (ranks,)
        Messages that each rank sends.
    reads : tuple of (ndarray, ndarray)
        For each rank the numbers of those whose elements it reads, ascending, and how many of each.
    exact : bool
        Whether every row was looked at.
    """

    begins: np.ndarray
    entries: np.ndarray
    ghosts: np.ndarray
    sent: np.ndarray
    partners: np.ndarray
    messages: np.ndarray
    reads: tuple[Reads, ...]
    exact: bool

    @property
    def bytes(self) -> np.ndarray:
        """Bytes that each rank sends for a product, shape (ranks,)."""
        return ELEMENT * self.sent

    def between_groups(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes and messages for a product that leave each group of `size` ranks, such as those of a node."""
        groups = -(-len(self.reads) // size)
        sent, messages = np.zeros((2, groups), dtype=np.int64)
        for rank, (owners, counts) in enumerate(self.reads):
            other = owners // size != rank // size
            np.add.at(sent, owners[other] // size, ELEMENT * counts[other])
            np.add.at(messages, owners[other] // size, 1)
        return sent, messages


def volume(model: Generator, count: int, counted: int = COUNTED) -> Volume:
    """Return what so many ranks would exchange if they shared a model as `ctmc.model.shared.share` does.

    Parameters
    ----------
    model : Generator
        Best built inside `ctmc.model.streamed.streaming`, so that only the rows that are looked at are made.
    count : int
        Number of ranks.
    counted : int
        Up to so many states all rows are looked at, and all numbers are exact.

    Raises
    ------
    ModelError
        If count is not a whole number from 1 on.

    Examples
    --------
    >>> from ctmc.model.streamed import streaming
    >>> from ctmc.registry import build
    >>> with streaming():
    ...     queues = build("supermarket", service_rates=[2, 1, 1], arrival_rate=3, choices=2, capacity=9)
    >>> found = volume(queues, 4)
    >>> found.ghosts.tolist(), found.messages.tolist()
    ([100, 199, 198, 86], [1, 2, 2, 1])
    """
    whole_number("the number of ranks", count, 1)
    if model.size <= counted:
        begins, entries = _counted_borders(model, int(count))
        reads = [_read(model, begins, rank) for rank in range(count)]
        return _volume(begins, entries, reads, exact=True)
    begins, entries = _estimated_borders(model, int(count))
    chosen = sorted({round(k * (count - 1) / (_RANKS - 1)) for k in range(_RANKS)})
    found = [_estimated(model, begins, rank) for rank in chosen]
    nearest = [int(np.argmin(np.abs(np.array(chosen) - rank))) for rank in range(count)]
    reads = []
    for rank, number in enumerate(nearest):  # what lies as many ranks away as from the one that was looked at
        owners, counts = found[number]
        owners = owners + rank - chosen[number]
        inside = (owners >= 0) & (owners < count)
        reads.append((owners[inside], counts[inside]))
    return _volume(begins, entries, reads, exact=False)


def _volume(begins: np.ndarray, entries: np.ndarray, reads: list[Reads], exact: bool) -> Volume:
    """Put together what each rank reads: whom of, and how many elements."""
    count = len(reads)
    ghosts, sent, messages = np.zeros((3, count), dtype=np.int64)
    pairs: set[tuple[int, int]] = set()
    for rank, (owners, counts) in enumerate(reads):
        ghosts[rank] = counts.sum()
        sent[owners] += counts
        messages[owners] += 1
        pairs |= {(min(rank, owner), max(rank, owner)) for owner in owners.tolist()}
    partners = np.bincount(np.array([rank for pair in pairs for rank in pair], dtype=np.int64), minlength=count)
    return Volume(begins, entries, ghosts, sent, partners, messages, tuple(reads), exact)


def box_reads(strides: Sequence[int], begins: np.ndarray, rank: int) -> np.ndarray:
    """Return how many elements of each rank one rank of a box of queues reads at most: a closed form.

    Into a state lead only those whose number differs by a stride, so ghosts are the own interval shifted by every stride,
    either way, less the own.  It is exact where every step of a coordinate has a rate and slabs are wider than the largest
    stride but one.

    Parameters
    ----------
    strides : sequence of int
    begins : ndarray of int64, shape (ranks + 1,)
    rank : int

    Returns
    -------
    ndarray of int64, shape (ranks,)

    Examples
    --------
    >>> box_reads([100, 10, 1], np.array([0, 250, 500, 750, 1000]), 1).tolist()
    [100, 0, 100, 0]
    """
    begin, end, size = int(begins[rank]), int(begins[rank + 1]), int(begins[-1])
    pieces: list[tuple[int, int]] = []
    if begin < end:
        for shift in (sign * int(stride) for stride in strides for sign in (-1, 1)):
            low, high = max(begin + shift, 0), min(end + shift, size)
            pieces += [(low, min(high, begin)), (max(low, end), high)]
    found = np.zeros(len(begins) - 1, dtype=np.int64)
    done = 0
    for low, high in sorted(piece for piece in pieces if piece[0] < piece[1]):
        low = max(low, done)
        if low < high:
            found += np.diff(np.clip(begins, low, high))
            done = high
    return found


# ---- where the borders are --------------------------------------------------------------------------------------------


def _counted_borders(model: Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    before = transitions_before(model, ALONE)
    borders = [border(model, before, rank / count) for rank in range(count)]
    begins = np.array([*borders, model.size], dtype=np.int64)
    entries = np.zeros(count, dtype=np.int64)
    for rank in range(count):
        for slab in slabs_of(model, *begins[rank : rank + 2].tolist()):
            first, last = np.clip(begins[rank : rank + 2] - int(slab.begin), 0, len(slab.indptr) - 1)
            entries[rank] += int(slab.indptr[last]) - int(slab.indptr[first])
    return begins, entries


def _estimated_borders(model: Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return about the borders and entries of each rank, from the transitions of some slabs."""
    firsts = slab_begins(model)
    numbers = sorted({round(k * (len(firsts) - 2) / (_SLABS - 1)) for k in range(_SLABS)})
    places, density = [], []
    for number in numbers:
        (slab,) = slabs_of(model, int(firsts[number]), int(firsts[number + 1]))
        places.append((firsts[number] + firsts[number + 1]) / 2)
        density.append(int(slab.indptr[-1]) / (firsts[number + 1] - firsts[number]))
    # transitions up to a state, the density between the middles of the slabs being linear
    places, density = [0.0, *places, float(model.size)], [density[0], *density, density[-1]]
    steps = np.diff(places) * (np.array(density[:-1]) + np.array(density[1:])) / 2
    before = np.concatenate([[0.0], np.cumsum(steps)])
    wanted = before[-1] * np.arange(count + 1) / count
    begins = np.interp(wanted, before, places).astype(np.int64)
    begins[0], begins[-1] = 0, model.size
    return begins, np.full(count, round(before[-1] / count), dtype=np.int64)


# ---- what a rank reads ------------------------------------------------------------------------------------------------


def _outside(model: Generator, begin: int, end: int, low: int, high: int) -> np.ndarray:
    """Return, ascending, the states outside begin .. end - 1 that transitions into low .. high - 1 come from."""
    found = np.empty(0, dtype=np.int64)
    for slab in slabs_of(model, low, high):
        first, last = max(low - int(slab.begin), 0), min(high - int(slab.begin), len(slab.indptr) - 1)
        sources = slab.sources[int(slab.indptr[first]) : int(slab.indptr[last])]
        found = np.union1d(found, sources[(sources < begin) | (sources >= end)].astype(np.int64))
    return found


def _by_owner(begins: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.diff(np.searchsorted(positions, begins))


def _nonzero(counts: np.ndarray) -> Reads:
    owners = np.flatnonzero(counts)
    return owners, counts[owners]


def _read(model: Generator, begins: np.ndarray, rank: int) -> Reads:
    """Return how many elements of which ranks one rank reads."""
    begin, end = int(begins[rank]), int(begins[rank + 1])
    return _nonzero(_by_owner(begins, _outside(model, begin, end, begin, end)))


def _estimated(model: Generator, begins: np.ndarray, rank: int) -> Reads:
    """Return about how many elements of which ranks one rank reads.

    From the borders inwards stretches of rows become twice as wide; of each, one slab is looked at.
    """
    begin, end = int(begins[rank]), int(begins[rank + 1])
    found = np.zeros(len(begins) - 1)
    firsts = slab_begins(model)
    least, most = begin, end - 1
    for low, high in _stretches(begin, end, SLAB_STATES):
        first, last = low, high
        if high - low > SLAB_STATES and len(firsts) > 2:  # the slab in the middle
            number = int(np.searchsorted(firsts, (low + high) // 2, side="right")) - 1
            first, last = max(low, int(firsts[number])), min(high, int(firsts[number + 1]))
        outside = _outside(model, begin, end, first, last)
        if len(outside):
            least, most = min(least, int(outside[0])), max(most, int(outside[-1]))
        found += _by_owner(begins, outside) * ((high - low) / (last - first))
    # what several rows read counts once: no more than lies between the border and the furthest, nor than the box has
    bound = np.diff(np.clip(begins, least, most + 1))
    strides = _strides(model)
    if strides is not None:
        bound = np.minimum(bound, box_reads(strides, begins, rank))
    bound[rank] = 0
    return _nonzero(np.minimum(np.round(found).astype(np.int64), bound))


def _stretches(begin: int, end: int, width: int) -> list[tuple[int, int]]:
    """Return stretches of rows that become wider away from both borders.

    Examples
    --------
    >>> _stretches(0, 100, 10)
    [(0, 10), (10, 20), (20, 40), (40, 50), (90, 100), (80, 90), (60, 80), (50, 60)]
    """
    middle = (begin + end) // 2
    cuts = [0]
    while cuts[-1] < max(middle - begin, end - middle):
        cuts.append(max(2 * cuts[-1], width))
    below = [(begin + one, min(begin + other, middle)) for one, other in pairwise(cuts)]
    above = [(max(end - other, middle), end - one) for one, other in pairwise(cuts)]
    return [(low, high) for low, high in below + above if low < high]


def _strides(model: Generator) -> list[int] | None:
    rows = model.transitions
    lattice: Any = rows.lattice if isinstance(rows, StreamedTransitions) else rows
    return lattice.strides.tolist() if hasattr(lattice, "strides") else None
