"""Elimination without a subtraction on chains whose states can be put in a row so that transitions lead to near ones only."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse.csgraph import reverse_cuthill_mckee

from ctmc.model.generator import Generator
from ctmc.model.memory import memory_limit
from ctmc.model.products import compiled
from ctmc.model.streamed import StreamedTransitions

MOST_STATES = 100_000
MOST_MULTIPLICATIONS = 1e8
"""Of an elimination that is cheap beside a solve."""
_LARGE, _STEEP = 1e200, 1e100


def may_be_written_out(chain: Generator, most: int) -> bool:
    """Return whether a chain in memory has at most so many states, and there is room for rows of it with some vectors."""
    streamed = isinstance(chain.transitions, StreamedTransitions)
    return not streamed and chain.size <= most and 64 * (chain.entries + chain.size) <= memory_limit()


def may_be_eliminated(chain: Generator) -> bool:
    """Return whether a chain is small enough, and in memory, to look for an elimination that is cheap."""
    return may_be_written_out(chain, MOST_STATES)


def banded_stationary(chain: Generator) -> np.ndarray | None:
    """Return the stationary distribution of an irreducible chain to full relative accuracy, or None where that is not cheap.

    The states are put in the order of Cuthill and McKee; where transitions then lead at most b places away, the method of
    Grassmann, Taksar and Heyman takes n b^2 multiplications and 16 n b bytes: long queues, narrow networks, lattices of some
    thousand states.  A state that is left at rates which vanish beside others makes the answer NaN.

    Examples
    --------
    >>> import numpy as np
    >>> rates = np.diag(np.full(699, 1.0), 1) + np.diag(np.full(699, 2.0), -1)
    >>> pi = banded_stationary(Generator.from_matrix(rates))
    >>> bool(abs(pi[30] / 2.0**-31 - 1) < 1e-12)
    True
    """
    n = chain.size
    if not may_be_eliminated(chain):
        return None
    matrix = chain.to_scipy().tocsr()
    order = reverse_cuthill_mckee(matrix, symmetric_mode=False)
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    entries = matrix.tocoo()
    begin, end = place[entries.row], place[entries.col]
    width = int(np.abs(begin - end).max(initial=0))
    if n * float(width) ** 2 > MOST_MULTIPLICATIONS or 16 * n * (width + 1) > memory_limit():
        return None
    band = np.zeros((n, 2 * width + 1))
    moved = begin != end
    band[begin[moved], (end - begin + width)[moved]] = entries.data[moved]
    weights = np.zeros(n)
    _eliminate(band, width, weights)
    pi = np.empty(n)
    pi[order] = weights / weights.sum()
    return pi


@compiled
def _eliminate(band: Any, width: int, weights: Any) -> None:
    """Eliminate from the last state to the first, and go back; row i of the band holds the rates to i - width .. i + width."""
    n = band.shape[0]
    for step in range(n - 1):
        k = n - 1 - step
        low = max(0, k - width)
        total = 0.0
        for j in range(low, k):
            total += band[k, j - k + width]
        for i in range(low, k):
            share = band[i, k - i + width] / total if total > 0.0 else np.nan
            band[i, k - i + width] = share
            if share != 0.0:
                for j in range(low, k):
                    band[i, j - i + width] += share * band[k, j - k + width]
    weights[0] = 1.0
    for k in range(1, n):
        total, steepest = 0.0, 0.0
        for i in range(max(0, k - width), k):
            steepest = max(steepest, band[i, k - i + width])
        if steepest > _STEEP:  # so that the sum does not overflow
            for i in range(k):
                weights[i] /= steepest
        for i in range(max(0, k - width), k):
            total += weights[i] * band[i, k - i + width]
        weights[k] = total
        if total > _LARGE:  # likelier by far than all before it, which may fall to zero
            for i in range(k + 1):
                weights[i] /= _LARGE
