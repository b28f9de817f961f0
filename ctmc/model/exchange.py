"""Parts of a chain that hardly exchange anything, seen through a distribution over its states.

Two parts between which little flows keep whatever masses they have: no small defect proves those masses.  Slow transitions
make such parts, but so do chains without any: a distribution with two peaks and a deep valley between them.
"""

from __future__ import annotations

import heapq
from typing import Any

import numba
import numpy as np
from scipy.sparse import coo_array, csgraph

from ctmc.model.generator import Generator
from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.state_space import Lattice
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import LatticeTransitions, begin_digits, count_up, rate_at
from ctmc.ranks import ALONE, Ranks

_BLOCK = 1 << 12
_CHUNK = 1 << 16
_FEW = 64
"""Up to so many parts the transitions between them are looked for by short searches."""
_LONGEST_SEARCH = 5000
_ZERO = 310
_DECADES = 620


def parts(chain: Generator, pi: np.ndarray, threshold: float) -> np.ndarray:
    """Put states together that exchange much, and return the part of each state.

    Again and again each part goes with the state outside from which most flows in, as long as that single transition
    carries at least `threshold` of all the flow through the part.  The first round goes uphill, to likelier states only, and so
    takes every state to the top of a peak; what is left in the end are parts that are nearly separate.  A round costs about
    four products; there are few, and only one where the distribution has one peak.

    Parameters
    ----------
    chain : Generator
        Irreducible.
    pi : ndarray, shape (n,)
        Non-negative.
    threshold : float
        Share of a part's flow.

    Returns
    -------
    ndarray of int32, shape (n,)

    Examples
    --------
    >>> rates = np.zeros((6, 6))
    >>> rates[:3, :3] = rates[3:, 3:] = 1.0
    >>> rates[2, 3] = rates[3, 2] = 1e-9
    >>> parts(Generator.from_matrix(rates * (1 - np.eye(6))), np.full(6, 1 / 6), 1e-6).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    n = chain.size
    narrow = np.int32 if n <= np.iinfo(np.int32).max else np.int64
    link = np.empty(n, dtype=narrow)
    likeliest = int(np.argmax(pi))
    if isinstance(chain.transitions, LatticeTransitions):
        strongest_uphill_on_lattice(*chain.transitions, chain.exit_rates, pi, threshold, likeliest, link)
    else:
        for slab in chain.row_slabs():
            strongest_uphill(*slab, chain.exit_rates, pi, threshold, likeliest, link)
    part_of = np.full(n, -1, dtype=narrow)
    tops = tops_of(link)
    count = len(tops)
    if count == 1:
        part_of[:] = 0
        return part_of
    part_of[tops] = np.arange(count)
    follow_links(link, part_of)
    del link
    begin: Any
    end: Any
    while count > 1:
        throughput = throughputs(chain.exit_rates, pi, part_of, count)
        if count <= _FEW and not isinstance(chain.transitions, StreamedTransitions):  # whose single rows are dear
            begin, end = _along_ridges(chain, pi, part_of, tops, threshold * throughput)
        else:
            best, target = np.full(count, -1.0), np.arange(count)
            for slab in chain.row_slabs():
                strongest_of_parts(*slab, pi, part_of, best, target)
            begin = np.flatnonzero((best >= threshold * throughput) & (target != np.arange(count)))
            end = target[begin]
        if not len(begin):
            break
        links = coo_array((np.ones(len(begin), dtype=np.int8), (begin, end)), shape=(count, count))
        joined, number = csgraph.connected_components(links, directed=False)
        renumber(number.astype(part_of.dtype), part_of)
        order = np.lexsort((tops, -pi[tops]))  # of the tops of a joined part the likeliest stays
        tops = tops[order[np.unique(number[order], return_index=True)[1]]]
        count = int(joined)
    return part_of


def _along_ridges(
    chain: Generator, pi: np.ndarray, part_of: np.ndarray, tops: np.ndarray, least: np.ndarray
) -> tuple[list[int], list[int]]:
    """Return pairs of parts that one transition joins, found by short searches against the flow, from the top of each part.

    A search goes to the likeliest states first, along the ridge, until it is in another part.
    """
    begin, end = [], []
    for part, top in enumerate(tops.tolist()):
        seen, waiting = {top}, [(0.0, top)]
        while waiting and len(seen) < _LONGEST_SEARCH:
            sources, rates = chain.transitions.into(heapq.heappop(waiting)[1])
            strong = sources[pi[sources] * rates >= least[part]]
            other = part_of[strong]
            if (other != part).any():
                begin.append(part)
                end.append(int(other[np.argmax(other != part)]))
                break
            for i in strong.tolist():
                if i not in seen:
                    seen.add(i)
                    heapq.heappush(waiting, (-float(pi[i]), i))
    return begin, end


def between_parts(chain: Generator, pi: np.ndarray, part_of: np.ndarray) -> tuple[Generator, np.ndarray]:
    """Return the chain between the parts, and their masses, shape (parts,).

    Its rates are the flow from one part to the other over the mass of the first.  They are summed over the shares that
    states have in their part, so that nothing underflows where a part is very light; in one without mass all states have
    the same share.

    Examples
    --------
    >>> chain = Generator.from_matrix([[0, 1.0, 0], [2.0, 0, 1.0], [0, 2.0, 0]])
    >>> whole, masses = between_parts(chain, np.array([4, 2, 1]) / 7, np.array([0, 0, 1]))
    >>> whole.to_scipy().toarray().round(12).tolist()                 # a third of the first part's mass leaves at rate 1
    [[-0.333333333333, 0.333333333333], [2.0, -2.0]]
    """
    count = int(part_of.max()) + 1
    if count == 1:
        return Generator.from_matrix([[0.0]]), np.array([pi.sum()])
    masses = np.bincount(part_of, weights=pi, minlength=count)
    sizes = np.bincount(part_of, minlength=count)
    found = []
    for slab in chain.row_slabs():
        sources = slab.sources[: int(slab.indptr[-1])].astype(np.int64)
        ends = np.repeat(part_of[slab.begin : slab.begin + len(slab.indptr) - 1], np.diff(slab.indptr).astype(np.int64))
        across = np.flatnonzero(part_of[sources] != ends)
        begins = part_of[sources[across]]
        mass = masses[begins]
        shares = np.divide(pi[sources[across]], mass, out=1.0 / sizes[begins], where=mass > 0)
        rates = slab.rates[slab.codes[across]] if len(slab.codes) else slab.rates[across]
        found.append((begins, ends[across], shares * rates))
    begins, ends, rates = (np.concatenate(part) for part in zip(*found, strict=True))
    return Generator.from_transitions(begins, ends, rates, Lattice((count - 1,))), masses


@compiled_parallel
def strongest_uphill(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, exit_rates: Any, pi: Any, threshold: float, likeliest: int,
    link: Any,
) -> None:  # fmt: skip
    """Set link[j] to the likelier state from which most flows into state j of a slab, or to j itself.

    That flow must be at least the threshold times all the flow through the state; of equally likely states the first counts as
    the likelier one.  States without probability, which have no flow, are linked to the likeliest.  Moves 12 bytes an entry.
    """
    for row in numba.prange(indptr.size - 1):
        j = np.uint64(begin) + row
        best, where = threshold * (pi[j] * exit_rates[j]), np.int64(j)
        for k in range(indptr[row], indptr[row + 1]):
            i = sources[k]
            if pi[i] > pi[j] or (pi[i] == pi[j] and i < j):
                carried = pi[i] * rate_at(codes, rates, k)
                if carried >= best:
                    best, where = carried, np.int64(i)
        link[j] = where if pi[j] > 0.0 else likeliest


@compiled_parallel
def strongest_uphill_on_lattice(
    weights: Any, unit: Any, departures: Any, sides: Any, strides: Any, exit_rates: Any, pi: Any, threshold: float,
    likeliest: int, link: Any,
) -> None:  # fmt: skip
    """Do the same on a lattice, without writing slabs out."""
    for block in numba.prange((pi.size + _BLOCK - 1) // _BLOCK):
        low = np.int64(block) * _BLOCK
        digits = begin_digits(low, sides, strides)
        for j in range(low, min(low + _BLOCK, pi.size)):
            own = pi[j]
            best, where = threshold * (own * exit_rates[j]), j
            for i in range(sides.size):
                if weights[i, j] > 0:
                    other = pi[j - strides[i]]
                    carried = other * (weights[i, j] * unit[0])
                    if other >= own and carried >= best:
                        best, where = carried, j - strides[i]
                if digits[i] + 1 < sides[i]:
                    other = pi[j + strides[i]]
                    carried = other * departures[i, digits[i] + 1]
                    if other > own and carried >= best:
                        best, where = carried, j + strides[i]
            link[j] = where if own > 0.0 else likeliest
            count_up(digits, sides)


def tops_of(link: np.ndarray) -> np.ndarray:
    """Return the states that are linked to themselves."""
    found = [
        begin + np.flatnonzero(link[begin : begin + _CHUNK] == np.arange(begin, min(begin + _CHUNK, len(link))))
        for begin in range(0, len(link), _CHUNK)
    ]
    return np.concatenate(found)


@compiled_parallel
def follow_links(link: Any, part_of: Any) -> None:
    """Give every state the part of the top that its links lead to; tops come with theirs, all others with -1.

    Threads may walk the same way at the same time: what they write there is the same.
    """
    for block in numba.prange((link.size + _BLOCK - 1) // _BLOCK):
        low = np.int64(block) * _BLOCK
        for j in range(low, min(low + _BLOCK, link.size)):
            i: Any = j
            while part_of[i] < 0:
                i = np.int64(link[i])
            part = part_of[i]
            i = j
            while part_of[i] < 0:
                part_of[i] = part
                i = np.int64(link[i])


@compiled
def follow_known_links(link: Any, part_of: Any) -> None:
    """Give every state the part that its links lead to, as far as one is known; the others keep -1."""
    for j in range(link.size):
        i = np.int64(j)
        while part_of[i] < 0 and i < link.size and link[i] != i:
            i = np.int64(link[i])
        part = part_of[i]
        i = np.int64(j)
        while part >= 0 and part_of[i] < 0:
            part_of[i] = part
            i = np.int64(link[i])


@compiled
def strongest_of_parts(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, pi: Any, part_of: Any, best: Any, target: Any
) -> None:
    """Find for each part the transition from another part that carries most, among those into the states of a slab."""
    for row in range(np.uint64(indptr.size - 1)):
        part = part_of[np.uint64(begin) + row]
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            i = sources[k]
            if part_of[i] != part:
                carried = pi[i] * rate_at(codes, rates, k)
                if carried > best[part]:
                    best[part] = carried
                    target[part] = part_of[i]


@compiled
def throughputs(exit_rates: Any, pi: Any, part_of: Any, count: int) -> Any:
    """Return the flow through each part."""
    sums = np.zeros(count)
    for j in range(np.uint64(pi.size)):
        sums[part_of[j]] += pi[j] * exit_rates[j]
    return sums


@compiled_parallel
def renumber(number: Any, part_of: Any) -> None:
    """Replace every part by its new number."""
    for j in numba.prange(part_of.size):
        part_of[j] = number[part_of[j]]


def balance_by_decade(exit_rates: np.ndarray, pi: np.ndarray, flow: np.ndarray, ranks: Ranks = ALONE) -> np.ndarray:
    """Return (decade, mass, flow through, imbalance) of the states by the magnitude of their exit rates, shape (decades, 4).

    Decades are told by binary exponents, so their borders are powers of two near those of ten.

    Examples
    --------
    >>> balance_by_decade(np.array([2.0, 3.0, 5000.0]), np.ones(3) / 4, np.array([0.5, 0, 0])).tolist()
    [[0.0, 0.5, 1.25, 0.5], [3.0, 0.25, 1250.0, 0.0]]
    """
    sums = np.zeros(((len(pi) + _CHUNK - 1) // _CHUNK, _DECADES, 3))
    sum_by_decade(exit_rates.view(np.int64), exit_rates, pi, flow, sums)
    total = ranks.total(sums.sum(axis=0))
    found = np.flatnonzero(total.any(axis=1))
    return np.column_stack([found - _ZERO, total[found]])


@compiled_parallel
def sum_by_decade(bits: Any, exit_rates: Any, pi: Any, flow: Any, sums: Any) -> None:
    """Write mass, flow through and imbalance of each decade, chunk by chunk."""
    for chunk in numba.prange(sums.shape[0]):
        a = np.int64(chunk) * _CHUNK
        sum_chunk(bits, exit_rates, pi, flow, sums[chunk], a, min(a + _CHUNK, pi.size))


@compiled
def sum_chunk(bits: Any, exit_rates: Any, pi: Any, flow: Any, sums: Any, begin: Any, end: Any) -> None:
    """Do the work of `sum_by_decade` on one chunk."""
    for j in range(begin, end):
        exponent = (bits[j] >> 52) - 1023
        decade = np.int64(np.floor(exponent * 0.30102999566398)) + _ZERO
        sums[decade, 0] += pi[j]
        sums[decade, 1] += pi[j] * exit_rates[j]
        sums[decade, 2] += abs(flow[j])
