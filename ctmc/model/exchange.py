"""Parts of a chain that hardly exchange anything, seen through a distribution over its states.

Two parts between which little flows keep whatever masses they have: no small defect proves those masses.  Slow transitions
make such parts, but so do chains without any: a distribution with two peaks and a deep valley between them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numba
import numpy as np
from scipy.sparse import coo_array, csgraph

from ctmc.model.generator import Generator
from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.state_space import Lattice
from ctmc.model.transitions import LatticeTransitions, begin_digits, count_up, rate_at

_BLOCK = 1 << 12
_CHUNK = 1 << 16
_MOST_TOPS = 64
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
    part_of = np.empty(n, dtype=np.int32 if n <= np.iinfo(np.int32).max else np.int64)
    for slab in chain.row_slabs():
        strongest_uphill(*slab, chain.exit_rates, pi, threshold, part_of)
    count = int(number_trees(part_of))
    while count > 1:
        best, target = np.full(count, -1.0), np.arange(count)
        for slab in chain.row_slabs():
            strongest_of_parts(*slab, pi, part_of, best, target)
        throughput = throughputs(chain.exit_rates, pi, part_of, count)
        begin = np.flatnonzero((best >= threshold * throughput) & (target != np.arange(count)))
        if not begin.size:
            break
        links = coo_array((np.ones(len(begin), dtype=np.int8), (begin, target[begin])), shape=(count, count))
        joined, number = csgraph.connected_components(links, directed=False)
        renumber(number.astype(part_of.dtype), part_of)
        count = int(joined)
    return part_of


def one_peak(chain: Generator, pi: np.ndarray, threshold: float) -> bool:
    """Tell in one pass whether `parts` would put all states together; false where that is not clear.

    The tops are the states into which no likelier one sends as much as `parts` wants; states without probability are none.  From
    every top but the likeliest a short search against the flow, over transitions that carry at least `threshold` of *all* flow,
    must come to a likelier state.

    Examples
    --------
    >>> queue = Generator.from_matrix(np.diag(np.ones(9), 1) + np.diag(np.full(9, 2.0), -1))
    >>> one_peak(queue, 0.5 ** np.arange(1, 11), 1e-6), one_peak(queue, np.abs(np.arange(10) - 4.5) ** 20, 1e-6)
    (True, False)
    """
    n = chain.size
    blocks = (n + _BLOCK - 1) // _BLOCK
    counts, found = np.zeros(blocks, dtype=np.int64), np.zeros((blocks, _MOST_TOPS), dtype=np.int64)
    if isinstance(chain.transitions, LatticeTransitions):
        tops_of_lattice(*chain.transitions, chain.exit_rates, pi, threshold, counts, found)
    else:
        for slab in chain.row_slabs():
            tops_of_rows(*slab, chain.exit_rates, pi, threshold, counts, found)
    if counts.sum() > _MOST_TOPS:
        return False
    tops = np.concatenate([places[:count] for places, count in zip(found, counts, strict=True)])
    likeliest = int(tops[np.lexsort((tops, -pi[tops]))[0]])
    least = threshold * float(pi @ chain.exit_rates)
    return all(top == likeliest or _leads_higher(chain, pi, int(top), least) for top in tops)


def _leads_higher(chain: Generator, pi: np.ndarray, top: int, least: float) -> bool:
    seen, waiting = {top}, deque([top])
    while waiting and len(seen) < _LONGEST_SEARCH:
        sources, rates = chain.transitions.into(waiting.popleft())
        for i in sources[pi[sources] * rates >= least].tolist():
            if pi[i] > pi[top] or (pi[i] == pi[top] and i < top):
                return True
            if i not in seen:
                seen.add(i)
                waiting.append(i)
    return False


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
def tops_of_rows(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, exit_rates: Any, pi: Any, threshold: float, counts: Any,
    found: Any,
) -> None:  # fmt: skip
    """Note the tops of each block of states.  Moves 12 bytes an entry."""
    for block in numba.prange(counts.size):
        for j in range(np.uint64(block * _BLOCK), np.uint64(min((block + 1) * _BLOCK, pi.size))):
            least, top = threshold * (pi[j] * exit_rates[j]), pi[j] > 0.0
            for k in range(indptr[j], indptr[j + np.uint64(1)]):
                i = sources[k]
                uphill = pi[i] > pi[j] or (pi[i] == pi[j] and i < j)
                if uphill and pi[i] * rate_at(codes, rates, k) >= least:
                    top = False
                    break
            if top:
                if counts[block] < _MOST_TOPS:
                    found[block, counts[block]] = j
                counts[block] += 1


@compiled_parallel
def tops_of_lattice(
    weights: Any, unit: Any, departures: Any, sides: Any, strides: Any, exit_rates: Any, pi: Any, threshold: float, counts: Any,
    found: Any,
) -> None:  # fmt: skip
    """Note the tops of each block of states."""
    for block in numba.prange(counts.size):
        low = np.int64(block) * _BLOCK
        digits = begin_digits(low, sides, strides)
        for j in range(low, min(low + _BLOCK, pi.size)):
            own = pi[j]
            least, top = threshold * (own * exit_rates[j]), own > 0.0
            for i in range(sides.size):
                if weights[i, j] > 0:
                    other = pi[j - strides[i]]
                    if other >= own and other * (weights[i, j] * unit[0]) >= least:
                        top = False
                        break
                if digits[i] + 1 < sides[i]:
                    other = pi[j + strides[i]]
                    if other > own and other * departures[i, digits[i] + 1] >= least:
                        top = False
                        break
            if top:
                if counts[block] < _MOST_TOPS:
                    found[block, counts[block]] = j
                counts[block] += 1
            count_up(digits, sides)


@compiled_parallel
def strongest_uphill(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, exit_rates: Any, pi: Any, threshold: float, link: Any
) -> None:
    """Set link[j] to the likelier state from which most flows into state j of a slab, or to j itself.

    That flow must be at least the threshold times all the flow through the state; of equally likely states the first counts as
    the likelier one.  Moves 12 bytes an entry.
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
        link[j] = where


@compiled
def number_trees(link: Any) -> int:
    """Replace the link of every state, which leads to one state, by the number of the tree that it stands in; count them."""
    # numbers are written as -1 - number until all are known
    n = link.size
    count = 0
    path = np.empty(64, dtype=np.int64)
    for j in range(n):
        length, i = 0, np.int64(j)
        while link[i] >= 0:
            if length == path.size:
                longer = np.empty(2 * length, dtype=np.int64)
                longer[:length] = path
                path = longer
            path[length] = i
            length += 1
            following = np.int64(link[i])
            link[i] = -(n + 1) if n < 2147483647 else -9223372036854775807  # on the path
            i = following
        if length == 0:
            continue
        number = link[i]
        if number == (-(n + 1) if n < 2147483647 else -9223372036854775807):
            count += 1
            number = -count
        for k in range(length):
            link[path[k]] = number
    for j in range(n):
        link[j] = -1 - link[j]
    return count


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


def balance_by_decade(exit_rates: np.ndarray, pi: np.ndarray, flow: np.ndarray) -> np.ndarray:
    """Return (decade, mass, flow through, imbalance) of the states by the magnitude of their exit rates, shape (decades, 4).

    Decades are told by binary exponents, so their borders are powers of two near those of ten.

    Examples
    --------
    >>> balance_by_decade(np.array([2.0, 3.0, 5000.0]), np.ones(3) / 4, np.array([0.5, 0, 0])).tolist()
    [[0.0, 0.5, 1.25, 0.5], [3.0, 0.25, 1250.0, 0.0]]
    """
    sums = np.zeros(((len(pi) + _CHUNK - 1) // _CHUNK, _DECADES, 3))
    sum_by_decade(exit_rates.view(np.int64), exit_rates, pi, flow, sums)
    total = sums.sum(axis=0)
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
