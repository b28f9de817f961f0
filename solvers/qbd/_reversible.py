"""Cyclic reduction where `up` and `down` are diagonal and the phases reversible: symmetric matrices, half the work."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from ctmc.errors import ModelError
from ctmc.model.m_matrix import NEGLIGIBLE, drop_negligible, inverse
from ctmc.model.products import compiled
from ctmc.model.qbd import QBD
from ctmc.trace import Trace
from solvers.qbd._matrix_analytic import Blocks, off_diagonal

_PANEL = 32
_TILE = 32
_SPREAD = 1e60
_SAME = 1e-13


def phase_weights(queue: QBD) -> np.ndarray | None:
    """Return x > 0 with x_i local_ij = x_j local_ji, largest 1, where `up` and `down` are diagonal; None elsewhere.

    Found along a spanning tree of the phases, as products of ratios of rates, and checked on every pair.
    """
    m = queue.phase_count
    for block in (queue.up, queue.down):
        entries = block.tocoo()
        if block.nnz > m or (entries.coords[0] != entries.coords[1]).any():
            return None
    rates = off_diagonal(queue.local.toarray())
    there = rates > 0
    if (there != there.T).any():
        return None
    order, before = breadth_first_order(csr_array(rates), 0)
    if len(order) < m:
        return None
    weights = np.ones(m)
    for j in order[1:]:
        i = before[j]
        weights[j] = weights[i] * rates[i, j] / rates[j, i]
        if not 1 / _SPREAD < weights[j] < _SPREAD:
            return None  # products of such uneven flows would underflow
    weights /= weights.max()
    flows = weights[:, None] * rates
    return weights if (np.abs(flows - flows.T) <= _SAME * flows).all() else None


def halve_reversible(blocks: Blocks, weights: np.ndarray, trace: Trace, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return G and R by cyclic reduction on symmetric blocks, without a subtraction.

    With X = diag(weights), all of X up, X stay and X down are symmetric and stay so.  With C C^T = -X local and
    Y = C^-1 [up, down], one product Y^T Y has the next up and down on its diagonal and what home gains beside it.

    Parameters
    ----------
    blocks : Blocks
        With diagonal up and down.
    weights : ndarray, shape (m,)
        From `phase_weights`.
    trace : Trace
    limit : int
        Most iterations.
    """
    m = len(weights)
    rises, leave = weights * blocks.leave_up, weights * blocks.leave_down
    half = weights[:, None] * blocks.stay / 2
    half = (half + half.T) / 2  # half of X stay; what home gains is added to its transpose, and stay is the sum of both
    gained = half.copy()
    scale = float(blocks.leave_down.max())
    work, moved, gram = np.empty((m, 3 * m)), np.empty((m, 3 * m)), np.zeros((2 * m, 2 * m), order="F")
    work[:, m:] = np.hstack([np.diag(rises), np.diag(leave)])
    while not trace.finished(float((rises / weights).max()) / scale, limit=limit):
        np.add(gained, gained.T, out=work[:, :m])
        _eliminate(work, work[:, m:].sum(axis=1), moved)
        rising, falling = moved[:, m : 2 * m], moved[:, 2 * m :]
        rises = rising.T @ rising.sum(axis=1)
        if float((rises / weights).max()) <= trace.tolerance * scale:
            gained += falling.T @ rising
            continue  # the last iteration: only home is needed
        gram = dsyrk(1.0, moved[:, m:].T, c=gram, overwrite_c=1, lower=0)
        _unfold(gram.T, work, gained)
    visits = inverse(gained.T + half, weights * blocks.leave_down) * weights
    return visits * blocks.leave_down, blocks.leave_up[:, None] * visits


def _eliminate(work: np.ndarray, sums: np.ndarray, moved: np.ndarray) -> None:
    """Set moved to C^-1 [N, B] above the diagonal for work = [N, B] and diag(N 1 + s) - N = C C^T.

    Rows are eliminated in panels from the first to the last; each is brought up to date by one product with all before it.
    """
    n = len(work)
    leaving = np.empty(n)
    for low in range(0, n, _PANEL):
        high = min(low + _PANEL, n)
        before = moved[:low, low:high].T
        panel = work[low:high, low:] + before @ moved[:low, low:]
        leaving[low:high] = sums[low:high] + before @ leaving[:low]
        size = high - low
        factor = np.zeros((size, size))
        stuck = _inverse_factor(panel[:, :size], leaving[low:high] + panel[:, size : n - low].sum(axis=1), factor)
        if stuck >= 0:
            raise ModelError(
                f"phase {low + stuck} and those that it leads to are never left: the level cannot fall from there."
            )
        np.matmul(factor, panel[:, size:], out=moved[low:high, high:])
        drop_negligible(moved[low:high, high:])
        leaving[low:high] = factor @ leaving[low:high]


@compiled
def _inverse_factor(stay: Any, leave: Any, answer: Any) -> int:
    """Fill in W = C^-1, lower triangular, for a small symmetric M-matrix; return -1, or the row with a pivot of zero."""
    n = stay.shape[0]
    work = stay.copy()
    sums = leave.copy()
    for k in range(n):
        pivot = sums[k]
        for j in range(k + 1, n):
            pivot += work[k, j]
        if not pivot > 0:
            return k
        root = 1 / np.sqrt(pivot)
        for j in range(k):
            answer[k, j] *= root
        answer[k, k] = root
        for i in range(k + 1, n):
            factor = work[k, i] / pivot
            if factor != 0.0:
                for j in range(i, n):
                    work[i, j] += factor * work[k, j]
                sums[i] += factor * sums[k]
            below = work[k, i] * root
            for j in range(k + 1):
                answer[i, j] += below * answer[k, j]
    return -1


@compiled
def _unfold(gram: Any, work: Any, gained: Any) -> None:
    """Take up, down and what home gains from the lower half of Y^T Y; up and down are mirrored tile by tile."""
    n = gained.shape[0]
    for i in range(n):
        for j in range(n):
            gained[i, j] += gram[n + i, j]
        for j in range(i + 1):
            value = gram[i, j]
            work[i, n + j] = value if value > NEGLIGIBLE else 0.0
        for j in range(i + 1):
            value = gram[n + i, n + j]
            work[i, 2 * n + j] = value if value > NEGLIGIBLE else 0.0
    for offset in (n, 2 * n):
        for top in range(0, n, _TILE):
            for first in range(0, top + 1, _TILE):
                for i in range(top, min(top + _TILE, n)):
                    for j in range(first, min(first + _TILE, i)):
                        work[j, offset + i] = work[i, offset + j]
