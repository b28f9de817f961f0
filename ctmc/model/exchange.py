"""Parts of a chain that hardly exchange anything, seen through a distribution over its states.

Two parts between which little flows keep whatever masses they have: no small defect proves those masses.  Slow transitions
make such parts, but so do chains without any: a distribution with two peaks and a deep valley between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from scipy.sparse import coo_array, csgraph

from ctmc.model.products import compiled, compiled_parallel

if TYPE_CHECKING:
    from ctmc.model.generator import Generator

MOST_PARTS = 300
"""Chains of up to so many states are not put together at all, and larger ones into no more parts than this."""


def parts(chain: Generator, pi: np.ndarray, threshold: float) -> np.ndarray:
    """Put states together that exchange much, and return the part of each state.

    Again and again each part goes with the state outside from which most flows in, as long as that single transition
    carries at least `threshold` of all the flow through the part.  On the slopes of a peak most flows in from above, so one
    round takes a state to the top; what is left in the end are parts that are nearly separate.  If these are more than 300,
    those with the strongest links go together all the same.  Costs one product and a few vectors of length n per round.

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
    >>> from ctmc.model.generator import Generator
    >>> chain = Generator.from_matrix(np.diag(np.ones(399), 1) + np.diag(np.ones(399), -1))
    >>> np.unique(parts(chain, np.full(400, 1 / 400), 1e-6)).tolist()       # one walk, one part
    [0]
    """
    n = chain.size
    part_of = np.arange(n, dtype=np.int32)
    if n <= MOST_PARTS:
        return part_of
    through = pi * chain.exit_rates
    flow, source, closed = np.empty(n), np.empty(n, dtype=np.int64), np.zeros(n, dtype=np.bool_)
    count = n
    while count > 1:
        strongest_inflow(*chain.inflow, pi, part_of, flow, source, closed)
        best, target = np.full(count, -1.0), np.arange(count)
        strongest_of_parts(part_of, flow, source, closed, best, target)
        throughput = np.bincount(part_of, weights=through, minlength=count)
        joins = (best >= threshold * throughput) & (target != np.arange(count))
        if not joins.any():
            if count <= MOST_PARTS:
                break
            with np.errstate(divide="ignore", invalid="ignore"):
                strength = np.where(throughput > 0, best / throughput, np.inf)
            joins[np.argsort(-strength, kind="stable")[: count - MOST_PARTS]] = True
            joins &= target != np.arange(count)
            if not joins.any():
                break
        begin = np.flatnonzero(joins)
        links = coo_array((np.ones(len(begin), dtype=np.int8), (begin, target[begin])), shape=(count, count))
        joined, number = csgraph.connected_components(links, directed=False)
        count = int(joined)
        part_of = number.astype(np.int32)[part_of]
    return part_of


def flows_between(chain: Generator, pi: np.ndarray, part_of: np.ndarray) -> np.ndarray:
    """Return the probability flow from part to part, shape (parts, parts), and what stays inside on the diagonal."""
    count = int(part_of.max()) + 1
    flows = np.zeros((count, count))
    add_flows(*chain.inflow, pi, part_of, flows)
    return flows


@compiled_parallel
def strongest_inflow(
    indptr: Any, sources: Any, rates: Any, pi: Any, part_of: Any, flow: Any, source: Any, closed: Any
) -> None:
    """Find for each state the transition from another part that carries most; states without any are closed for good.

    Moves 12 bytes an entry and reads `part_of` at random places.
    """
    for j in numba.prange(part_of.size):
        if closed[j]:
            continue
        best, where, outside = -1.0, np.int64(j), False
        for k in range(indptr[j], indptr[j + 1]):
            i = sources[k]
            if part_of[i] != part_of[j]:
                outside = True
                carried = pi[i] * rates[k]
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


@compiled
def add_flows(indptr: Any, sources: Any, rates: Any, pi: Any, part_of: Any, flows: Any) -> None:
    """Add the flow of every transition to the entry of its parts.  Moves 12 bytes an entry."""
    for j in range(np.uint64(part_of.size)):
        end = np.uint64(part_of[j])
        for k in range(indptr[j], indptr[j + np.uint64(1)]):
            i = sources[k]
            flows[np.uint64(part_of[i]), end] += pi[i] * rates[k]
