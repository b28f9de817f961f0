"""Levels of a chain: sets of states in a row, with transitions inside a level and between neighbours only."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array, csr_array

from ctmc.model.generator import Generator
from ctmc.model.products import compiled
from ctmc.model.structure import breadth_first
from ctmc.model.transitions import unsigned

MUCH_LESS = 0.1
"""So much of the work of an elimination is left, where other levels are taken than the first ones."""


def levels(chain: Generator) -> np.ndarray:
    """Return the level of each state, 0, 1, .., shape (n,).

    They are the values of the first coordinate of the states where no transition skips one, else breadth-first levels from state 0,
    transitions taken in both directions; or the values of another coordinate, where these make levels so much narrower that elimination
    level by level takes a tenth or less.  A pass over the transitions for each coordinate.

    Examples
    --------
    >>> from ctmc.registry import build
    >>> tandem = build("tandem_network", service_rates=[2.0, 1.8], arrival_rate=1.6, capacity=[2, 9])
    >>> np.bincount(levels(tandem)).tolist()                              # the second station: ten levels of three states
    [3, 3, 3, 3, 3, 3, 3, 3, 3, 3]
    """
    indptr, sources = unsigned(chain.indptr), unsigned(chain.sources)
    best, least = None, np.inf
    for coordinate in range(chain.space.dimension):
        found = _positions(chain, coordinate)
        if found.any() and largest_step(indptr, sources, found) <= 1:
            best, least = _narrower(best, least, found)
        if best is None:
            best, least = _narrower(best, least, _breadth_first(chain, indptr, sources))
    assert best is not None  # a state has one coordinate at least
    return best


def _narrower(best: np.ndarray | None, least: float, other: np.ndarray) -> tuple[np.ndarray, float]:
    work = elimination(np.bincount(other))[0]
    return (other, work) if best is None or work <= MUCH_LESS * least else (best, least)


def _positions(chain: Generator, coordinate: int) -> np.ndarray:
    """Return the position of a coordinate of each state among its values, shape (n,)."""
    found = np.concatenate([states[:, coordinate] for _, states in chain.space.slabs()])
    found = found - found.min()
    if found.max() < 4 * chain.size:  # counting is faster than sorting
        places = np.cumsum(np.bincount(found) > 0) - 1
        return np.asarray(places[found])
    return np.asarray(np.unique(found, return_inverse=True)[1])


def elimination(sizes: np.ndarray) -> tuple[float, float]:
    """Return multiplications and bytes of a dense elimination, level by level, of levels of these sizes."""
    widths = sizes.astype(float)
    kept = 8 * float((widths[1:] * widths[:-1]).sum()) + 48 * float(widths.max()) ** 2
    return 3 * float((widths**3).sum()), kept


@compiled
def largest_step(indptr: Any, sources: Any, level_of: Any) -> Any:
    """Return by how many levels a transition changes them at most; looks no further than the first that skips one."""
    largest = np.int64(0)
    for j in range(np.uint64(level_of.size)):
        for k in range(indptr[j], indptr[j + np.uint64(1)]):
            largest = max(largest, abs(level_of[sources[k]] - level_of[j]))
        if largest > 1:
            break
    return largest


def _breadth_first(chain: Generator, indptr: np.ndarray, sources: np.ndarray) -> np.ndarray:
    n = chain.size
    leaving = csr_array(csc_array((np.ones(chain.entries, dtype=np.int8), chain.sources, chain.indptr), shape=(n, n)))
    level = np.full(n, -1, dtype=np.int64)
    breadth_first(
        indptr, sources, unsigned(leaving.indptr), unsigned(leaving.indices), level, np.empty(n, dtype=np.uint64)
    )
    return level
