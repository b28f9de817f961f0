"""Parts of a chain that hardly exchange anything, seen through a distribution over its states.

Two parts between which little flows keep whatever masses they have: no small defect proves those masses.  Slow transitions
make such parts, but so do chains without any: a distribution with two peaks and a deep valley between them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from scipy.sparse import coo_array, csgraph

from ctmc.model.generator import Generator
from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.state_space import Lattice
from ctmc.model.transitions import rate_at


def parts(chain: Generator, pi: np.ndarray, threshold: float) -> np.ndarray:
    """Put states together that exchange much, and return the part of each state.

    Again and again each part goes with the state outside from which most flows in, as long as that single transition
    carries at least `threshold` of all the flow through the part.  On the slopes of a peak most flows in from above, so one
    round takes a state to the top; what is left in the end are parts that are nearly separate.  Costs about four products
    and some vectors of length n per round, of which there are few.

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
    part_of, count = np.arange(n, dtype=np.int32), n
    through = pi * chain.exit_rates
    flow, source, closed = np.empty(n), np.empty(n, dtype=np.int64), np.zeros(n, dtype=np.bool_)
    while count > 1:
        for slab in chain.row_slabs():
            strongest_inflow(*slab, pi, part_of, flow, source, closed)
        best, target = np.full(count, -1.0), np.arange(count)
        strongest_of_parts(part_of, flow, source, closed, best, target)
        throughput = np.bincount(part_of, weights=through, minlength=count)
        begin = np.flatnonzero((best >= threshold * throughput) & (target != np.arange(count)))
        if not begin.size:
            break
        links = coo_array((np.ones(len(begin), dtype=np.int8), (begin, target[begin])), shape=(count, count))
        joined, number = csgraph.connected_components(links, directed=False)
        part_of, count = number.astype(np.int32)[part_of], int(joined)
    return part_of


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
    mass = masses[part_of]
    shares = np.divide(pi, mass, out=1.0 / np.bincount(part_of, minlength=count)[part_of], where=mass > 0)
    begin, end = part_of[chain.sources], np.repeat(part_of, np.diff(chain.indptr))
    across = np.flatnonzero(begin != end)
    rates = shares[chain.sources[across]] * chain.rates[across]
    whole = Generator.from_transitions(begin[across], end[across], rates, Lattice((count - 1,)))
    return whole, masses


@compiled_parallel
def strongest_inflow(
    begin: Any,
    indptr: Any,
    sources: Any,
    codes: Any,
    rates: Any,
    pi: Any,
    part_of: Any,
    flow: Any,
    source: Any,
    closed: Any,
) -> None:
    """Find for each state the transition from another part that carries most; states without any are closed for good.

    Moves 12 bytes an entry and reads `part_of` at random places.
    """
    for row in numba.prange(indptr.size - 1):
        j = np.uint64(begin) + row
        if closed[j]:
            continue
        best, where, outside = -1.0, np.int64(j), False
        for k in range(indptr[row], indptr[row + 1]):
            i = sources[k]
            if part_of[i] != part_of[j]:
                outside = True
                carried = pi[i] * rate_at(codes, rates, k)
                if carried > best:
                    best, where = carried, np.int64(i)
        flow[j], source[j], closed[j] = best, where, not outside


@compiled
def strongest_of_parts(part_of: Any, flow: Any, source: Any, closed: Any, best: Any, target: Any) -> None:
    """Set for each part the strongest inflow of its states, and the part that it comes from."""
    for j in range(np.uint64(part_of.size)):
        part = np.uint64(part_of[j])
        if not closed[j] and flow[j] > best[part]:
            best[part] = flow[j]
            target[part] = part_of[np.uint64(source[j])]
