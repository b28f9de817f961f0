"""Parts of a shared chain that hardly exchange anything: what `ctmc.model.exchange` does, on all ranks together.

Only what belongs to the parts, of which there are few, is ever known to all ranks.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array, csgraph

from ctmc.model import exchange
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.shared import SharedGenerator
from ctmc.model.state_space import Lattice
from ctmc.model.transitions import Slab, slab_rates

_ROWS = 1 << 16
"""Rows that are looked at together."""


def gathered(chain: SharedGenerator) -> Generator:
    """Return the whole of a small shared chain on each rank, without rewards and labels."""
    (slab,) = chain.row_slabs()
    entries = slice(int(slab.indptr[-1]))
    targets = chain.begin + np.repeat(np.arange(chain.size), np.diff(slab.indptr.view(np.int64)))
    own = (chain.positions_of(slab.sources[entries].astype(np.int64)), targets, slab_rates(slab, entries))
    sources, targets, rates = (np.concatenate(parts) for parts in zip(*chain.ranks.gathered(own), strict=True))
    return Generator.from_transitions(sources, targets, rates, Lattice((chain.states - 1,)))


def between_parts(chain: SharedGenerator, pi: np.ndarray, threshold: float) -> tuple[Generator, np.ndarray]:
    """Return the chain between the parts of a shared one, and their masses, the same on all ranks.

    Parameters
    ----------
    chain : SharedGenerator
        Of more than one rank's, with one recurrent class.
    pi : ndarray, shape (n,)
    threshold : float
        Share of a part's flow, see `ctmc.model.exchange.parts`.
    """
    ranks, ghosts = chain.ranks, chain.ghosts
    (slab,) = chain.row_slabs()
    everywhere = ghosts.extended(pi).copy()
    part_of, tops, heights = _uphill(chain, slab, everywhere, threshold)
    while len(tops) > 1:
        count = len(tops)
        through = ranks.total(exchange.throughputs(chain.exit_rates, pi, part_of[: chain.size], count))
        best, target = np.full(count, -1.0), np.arange(count)
        exchange.strongest_of_parts(*slab, everywhere, part_of, best, target)
        best, target = _strongest(ranks.gathered((best, target)))
        begin = np.flatnonzero((best >= threshold * through) & (target != np.arange(count)))
        if not len(begin):
            break
        links = coo_array((np.ones(len(begin), dtype=np.int8), (begin, target[begin])), shape=(count, count))
        number = csgraph.connected_components(links, directed=False)[1]
        part_of = number[part_of]
        order = np.lexsort((tops, -heights))  # of the tops of a joined part the likeliest stays
        kept = order[np.unique(number[order], return_index=True)[1]]
        tops, heights = tops[kept], heights[kept]
    count = len(tops)
    masses = ranks.total(np.bincount(part_of[: chain.size], weights=pi, minlength=count))
    if count == 1:
        return Generator.from_matrix([[0.0]]), masses
    sizes = ranks.total(np.bincount(part_of[: chain.size], minlength=count).astype(np.float64))
    flows = _flows(slab, chain.size, everywhere, part_of, masses, sizes)
    begins, ends, rates = (np.concatenate(part) for part in zip(*ranks.gathered(flows), strict=True))
    return Generator.from_transitions(begins, ends, rates, Lattice((count - 1,))), masses


def _uphill(
    chain: SharedGenerator, slab: Slab, everywhere: np.ndarray, threshold: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the part of each own state and ghost, whose top it is led to uphill, and the tops with their probabilities."""
    ranks, ghosts, n = chain.ranks, chain.ghosts, chain.size
    likeliest = int(np.argmax(everywhere[:n])) if n else 0
    link = np.empty(n, dtype=np.int64)
    exchange.strongest_uphill(*slab, chain.exit_rates, everywhere, threshold, likeliest, link)
    link[everywhere[:n] == 0] = n + ghosts.count  # states without probability go with the likeliest of all, at the end
    own = np.flatnonzero(link == np.arange(n))
    require_memory("the peaks of the distribution", 200 * len(own), states=len(own))
    found = ranks.gathered((own + chain.begin, everywhere[own]))
    tops, heights = (np.concatenate(part) for part in zip(*found, strict=True))
    label = np.full(n + ghosts.count + 1, -1, dtype=np.int64)
    label[own] = np.searchsorted(tops, own + chain.begin)
    label[-1] = int(np.argmax(heights))
    missing = -1.0
    while True:  # a way uphill may lead through the states of several ranks
        exchange.follow_known_links(link, label)
        before, missing = missing, ranks.total(float(np.count_nonzero(label[:n] < 0)))
        label[n:-1] = ghosts.extended(label[:n].astype(np.float64))[n:]
        if missing in (0, before):
            return label[:-1], tops, heights


def _strongest(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest flow into each part, and where from, of what the ranks have found."""
    best, target = found[0][0].copy(), found[0][1].copy()
    for other, source in found[1:]:
        larger = other > best
        best[larger], target[larger] = other[larger], source[larger]
    return best, target


def _flows(
    slab: Slab, n: int, everywhere: np.ndarray, part_of: np.ndarray, masses: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rates between parts that the transitions into own states give, one for each pair."""
    pointers = slab.indptr.view(np.int64)
    found: list[tuple[np.ndarray, ...]] = []
    for row in range(0, n, _ROWS):  # so that no more than some rows are written out
        part = pointers[row : min(row + _ROWS, n) + 1]
        sources = slab.sources[part[0] : part[-1]]
        ends = np.repeat(part_of[row : row + len(part) - 1], np.diff(part))
        across = np.flatnonzero(part_of[sources] != ends)
        rates = slab_rates(slab, slice(int(part[0]), int(part[-1])))
        found.append((sources[across].astype(np.int64), ends[across], rates[across]))
    sources, ends, rates = (np.concatenate(parts) for parts in zip(*found, strict=True)) if found else np.empty((3, 0))
    begins = part_of[sources.astype(np.int64)]
    mass = masses[begins]
    shares = np.divide(everywhere[sources.astype(np.int64)], mass, out=1.0 / sizes[begins], where=mass > 0)
    summed = coo_array((shares * rates, (begins, ends.astype(np.int64))), shape=(len(masses),) * 2)
    summed.sum_duplicates()
    return *(numbers.astype(np.int64) for numbers in summed.coords), summed.data
