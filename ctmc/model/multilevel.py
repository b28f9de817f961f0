"""Multilevel aggregation: the chain between parts, the chain between parts of parts, and so on, with sweeps in between.

Only sums, products and quotients of non-negative numbers occur.  Source: J. R. Koury, D. F. McAllister, W. J. Stewart, *Iterative
methods for computing stationary distributions of nearly completely decomposable Markov chains*, SIAM J. Algebraic Discrete
Methods 5 (1984), doi:10.1137/0605019, for one level; G. Horton, S. T. Leutenegger, *A multi-level solution algorithm for
steady-state Markov chains*, ACM SIGMETRICS 1994, for more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ctmc.model.banded import may_be_written_out
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.products import compiled, exit_sums
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.sweeps import sweep
from ctmc.model.transitions import NO_CODES, LatticeTransitions, Slab, rate_at

LARGEST_ELIMINATED = 2000
"""Parts up to which a given partition is solved by elimination."""
MOST_STATES, MOST_ON_LATTICE = 500_000, 100_000
"""Up to so many the error is estimated; products with a lattice are so quick that cycles would take longer than a solve."""
_MOST = 10
"""Times the first change that an error is estimated to be at most."""
LEAST_RATE = 1e-300
"""What a flow that underflows counts as, so that no part is ever cut off."""


class Rows:
    """A chain in compressed rows, with what `sweep` needs of a generator; its checks are left out, and products are not counted."""

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self.size = len(slab.indptr) - 1
        self.exit_rates = np.zeros(self.size)
        exit_sums(*slab, self.exit_rates)

    def row_slabs(self, *, reverse: bool = False) -> Iterator[Slab]:
        """Yield all rows as one slab."""
        yield self.slab

    def count_products(self, number: int = 1) -> None:
        """Count nothing: these are not products with the generator."""

    def dense(self) -> np.ndarray:
        """Return the rates as a dense matrix, from row to column."""
        matrix = np.zeros((self.size, self.size))
        targets = np.repeat(np.arange(self.size), np.diff(self.slab.indptr).astype(np.int64))
        matrix[self.slab.sources, targets] = self.slab.rates
        return matrix


def shares_and_masses(pi: np.ndarray, part_of: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of each state in its part, the same for all where the part has no mass, and the masses of the parts."""
    masses = np.bincount(part_of, weights=pi, minlength=count)
    if masses.min() > 0:
        return pi / masses[part_of], masses
    sizes = np.bincount(part_of, minlength=count)[part_of]
    mass = masses[part_of]
    return np.divide(pi, mass, out=1.0 / sizes, where=mass > 0), masses


def between(chain: Any, shares: np.ndarray, part_of: np.ndarray, count: int) -> Rows:
    """Return the chain between the parts; one pass over the entries in the order of the parts.

    Parameters
    ----------
    chain : Generator or Rows
        Stored as one slab.
    shares : ndarray, shape (n,)
    part_of : ndarray of int, shape (n,)
    count : int

    Examples
    --------
    >>> chain = Generator.from_matrix([[0, 1.0, 0], [2.0, 0, 1.0], [0, 2.0, 0]])
    >>> between(chain, np.array([2 / 3, 1 / 3, 1]), np.array([0, 0, 1], dtype=np.int32), 2).dense().round(9).tolist()
    [[0.0, 0.333333333], [2.0, 0.0]]
    """
    chain.count_products()
    slab: Slab
    (slab,) = chain.row_slabs()
    members = np.argsort(part_of, kind="stable").astype(np.uint64)
    begin = np.concatenate([[0], np.cumsum(np.bincount(part_of, minlength=count))]).astype(np.uint64)
    indptr = np.zeros(count + 1, dtype=np.uint64)
    narrow = np.uint32 if count <= np.iinfo(np.int32).max else np.uint64
    sources, rates = np.empty(len(slab.sources), dtype=narrow), np.empty(len(slab.sources))
    place = np.full(count, -1, dtype=np.int64)
    rates_of_parts(*slab, shares, part_of, members, begin, place, indptr, sources, rates)
    used = int(indptr[-1])
    return Rows(Slab(0, indptr, sources[:used].copy(), NO_CODES, rates[:used].copy()))


def matched(chain: Any, pi: np.ndarray) -> tuple[np.ndarray, int]:
    """Put states together in pairs, each with the free state from which most flows in, and return parts and their number.

    A state that no free one feeds by at least a quarter of its strongest inflow goes with the part that feeds it most.

    Examples
    --------
    >>> rates = np.zeros((4, 4))
    >>> rates[0, 1] = rates[1, 0] = rates[2, 3] = rates[3, 2] = 1.0
    >>> rates[1, 2] = rates[3, 0] = 1e-9
    >>> matched(Generator.from_matrix(rates), np.full(4, 0.25))[0].tolist()
    [0, 0, 1, 1]
    """
    chain.count_products()
    slab: Slab
    (slab,) = chain.row_slabs()
    part_of = np.full(chain.size, -1, dtype=np.int32 if chain.size <= np.iinfo(np.int32).max else np.int64)
    count = pair_up(*slab, pi, part_of)
    return part_of, int(count)


class Multilevel:
    """Cycles over parts of parts: two sweeps, the chain between the parts, and so on down to a few hundred parts.

    The pairs are chosen by the flow in the cycles 1, 2, 4, 8, .., while the distribution settles, and kept in between.

    Parameters
    ----------
    chain : Generator or Rows
        A lattice, or what is streamed, is written out as coded rows.
    part_of : ndarray of int, shape (n,), optional
        First parts; by default pairs.
    eliminated : int
        Parts that are solved by elimination.
    depth : int
        Largest number of chains on top of each other; in the last, pairs are formed without sweeps in between.
    """

    def __init__(
        self, chain: Any, part_of: np.ndarray | None = None, *, eliminated: int = 300, depth: int = 40
    ) -> None:
        slabwise = isinstance(chain, Generator) and isinstance(
            chain.transitions, LatticeTransitions | StreamedTransitions
        )
        self.chain = chain.once("coded", chain.coded) if slabwise else chain
        self.given = part_of
        self.eliminated, self.depth = eliminated, depth
        self._kept: list[tuple[np.ndarray, int]] = []
        self._cycles = 0

    def rescale(self, pi: np.ndarray) -> None:
        """Do one cycle in place; the sum becomes 1."""
        self._cycles += 1
        if self._cycles & (self._cycles - 1) == 0:
            self._kept = []
        self._cycle(self.chain, pi, 0)
        pi /= pi.sum()

    def _parts(self, chain: Any, pi: np.ndarray, depth: int) -> tuple[np.ndarray, int]:
        if depth == len(self._kept):
            if depth == 0 and self.given is not None:
                found = self.given, int(self.given.max()) + 1
            else:
                found = matched(chain, pi)
                while depth == self.depth - 1 and found[1] > self.eliminated:
                    shares, masses = shares_and_masses(pi, *found)
                    pairs, count = matched(between(chain, shares, *found), masses)
                    found = pairs[found[0]], count
            self._kept.append(found)
        return self._kept[depth]

    def _cycle(self, chain: Any, pi: np.ndarray, depth: int) -> None:
        part_of, count = self._parts(chain, pi, depth)
        if count == 1:
            return
        shares, masses = shares_and_masses(pi, part_of, count)
        whole = between(chain, shares, part_of, count)
        limit = LARGEST_ELIMINATED if depth == 0 and self.given is not None else self.eliminated
        if count <= limit:
            masses = gth(whole.dense())
        else:
            for _ in range(2):
                sweep(whole, masses)
                sweep(whole, masses, reverse=True)
                if _ == 0:
                    self._cycle(whole, masses, depth + 1)
        np.multiply(masses[part_of], shares, out=pi)


def estimated_error(chain: Generator, pi: np.ndarray, enough: float = 0.0) -> float | None:
    """Return about how far, in L1, pi is from the stationary distribution, by what cycles change; None where the chain is too large.

    A symmetric sweep and a cycle take away most of an error, whether it is one between neighbours, of slow states beside fast
    ones, or of parts that hardly exchange anything.  The first two changes d1 and d2 make a geometric series: d1 / (1 - d2 / d1),
    at most 10 d1.  On slow modes, sweeps stopped early and wrong masses it is mostly within a factor of 2 of the error; a part
    that is missing altogether may need more cycles to come back.  A cycle is a handful of passes over the transitions, on one
    thread, and over those of pairs, pairs of pairs, and so on.

    Parameters
    ----------
    chain : Generator
        Irreducible; a lattice is written out for the time being.
    pi : ndarray, shape (n,)
        Non-negative.
    enough : float
        An error up to which it may be overestimated, up to tenfold, by one cycle only.

    Returns
    -------
    float or None
        NaN where pi is not finite, or masses of parts overflow.

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.build("birth_death", births=[1.0] * 999, deaths=[1.0] * 999)
    >>> wave = np.cos(np.pi * (np.arange(1000) + 0.5) / 1000) / 1e7  # the slowest mode; its defect is 5e-10
    >>> round(float(np.abs(wave).sum()), 6), round(estimated_error(queue, np.full(1000, 1e-3) + wave), 6)
    (6.4e-05, 5.7e-05)
    """
    on_lattice = isinstance(chain.transitions, LatticeTransitions)
    if not may_be_written_out(chain, MOST_ON_LATTICE if on_lattice else MOST_STATES):
        return None
    written_out = chain.coded() if on_lattice else chain
    rows = Rows(*written_out.row_slabs())
    cycles = Multilevel(rows)
    changes: list[float] = []
    for _ in range(2):
        before, pi = pi, pi.copy()
        sweep(rows, pi)
        sweep(rows, pi, reverse=True)
        try:
            cycles.rescale(pi)
        except ValueError:  # what is not finite goes with no part
            return math.nan
        changes.append(float(np.abs(pi - before).sum()))
        if _MOST * changes[0] <= enough:
            return _MOST * changes[0]
    first, second = changes
    return first / max(1 - second / first, 1 / _MOST)


@compiled
def rates_of_parts(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, shares: Any, part_of: Any, members: Any, first: Any,
    place: Any, new_indptr: Any, new_sources: Any, new_rates: Any,
) -> None:  # fmt: skip
    """Write the rates into each part, one entry per part that leads there.  Moves 12 bytes an entry, and as many out."""
    done = 0
    for part in range(np.uint64(first.size - 1)):
        row = done
        for m in range(first[part], first[part + np.uint64(1)]):
            j = members[m]
            for k in range(indptr[j], indptr[j + np.uint64(1)]):
                i = sources[k]
                source = np.uint64(part_of[i])
                if source != part:
                    if place[source] < row:
                        place[source] = done
                        new_sources[done] = source
                        new_rates[done] = 0.0
                        done += 1
                    new_rates[place[source]] += shares[i] * rate_at(codes, rates, k)
        for k in range(row, done):
            new_rates[k] = max(new_rates[k], LEAST_RATE)
        new_indptr[part + np.uint64(1)] = done


@compiled
def pair_up(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, pi: Any, part_of: Any) -> int:
    """Number the parts of `matched`, and return how many there are.  Moves 12 bytes an entry."""
    count = 0
    for j in range(np.uint64(part_of.size)):
        if part_of[j] >= 0:
            continue
        free, strongest = -1.0, -1.0
        mate: Any = j
        feeder: Any = j
        for k in range(indptr[j], indptr[j + np.uint64(1)]):
            i = np.uint64(sources[k])
            flow = pi[i] * rate_at(codes, rates, k)
            if flow > strongest:
                strongest, feeder = flow, i
            if part_of[i] < 0 and flow > free:
                free, mate = flow, i
        if free >= 0.0 and free >= 0.25 * strongest:
            part_of[j] = part_of[mate] = count
            count += 1
        else:
            part_of[j] = part_of[feeder]
    return count
