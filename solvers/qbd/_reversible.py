"""Cyclic reduction where `up` and `down` are diagonal and the phases reversible: symmetric matrices, half the work."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from ctmc.errors import ModelError
from ctmc.model.products import compiled
from ctmc.model.qbd import QBD
from ctmc.trace import Trace
from solvers.qbd._m_matrix import NEGLIGIBLE, drop_negligible, inverse
from solvers.qbd._matrix_analytic import Blocks, off_diagonal

_LEAF = 32
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

    With X = diag(weights), all of X up, X stay and X down are symmetric and stay so.  With W^T W = (-X local)^-1 and
    Y = W [up, down], one product Y^T Y has the next up and down on its diagonal and what home gains beside it.

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
    rises, falls = weights * blocks.leave_up, weights * blocks.leave_down
    both = np.hstack([np.diag(rises), np.diag(falls)])
    stay = weights[:, None] * blocks.stay
    stay = (stay + stay.T) / 2
    home, sums, leave = stay.copy(), rises + falls, falls
    scale = float(blocks.leave_down.max())
    factor, moved, gram = np.zeros((m, m)), np.empty((m, 2 * m)), np.zeros((2 * m, 2 * m), order="F")
    quarter = max(1, -(-m // 4))
    while not trace.finished(float((rises / weights).max()) / scale, limit=limit):
        _inverse_factor(stay, sums, factor, 0)
        drop_negligible(factor)
        for low in range(0, m, quarter):  # above its diagonal the factor is zero
            high = min(low + quarter, m)
            np.matmul(factor[low:high, :high], both[:high], out=moved[low:high])
        rises = moved[:, :m].T @ moved[:, :m].sum(axis=1)
        if float((rises / weights).max()) <= trace.tolerance * scale:
            home += moved[:, :m].T @ moved[:, m:]
            continue  # the last iteration: only home is needed
        gram = dsyrk(1.0, moved.T, c=gram, overwrite_c=1, lower=0)
        _unfold(gram.T, both, stay, home, sums)
    visits = inverse(home, leave) * weights
    return visits * blocks.leave_down, blocks.leave_up[:, None] * visits


def _inverse_factor(stay: np.ndarray, leave: np.ndarray, answer: np.ndarray, first: int) -> None:
    """Fill in W, lower triangular, with W^T W the inverse of the symmetric M-matrix diag(N 1 + s) - N."""
    n = len(stay)
    if n <= _LEAF:
        stuck = _inverse_factor_leaf(stay, leave, answer)
        if stuck >= 0:
            raise ModelError(
                f"phase {first + stuck} and those that it leads to are never left: the level cannot fall from there."
            )
        return
    half = n // 2
    b = stay[:half, half:]
    high, low = answer[:half, :half], answer[half:, half:]
    _inverse_factor(stay[:half, :half], leave[:half] + b.sum(axis=1), high, first)
    across = high @ b
    below = leave[half:] + across.T @ (high @ leave[:half])
    _inverse_factor(stay[half:, half:] + across.T @ across, below, low, first + half)
    np.matmul(low @ across.T, high, out=answer[half:, :half])


@compiled
def _inverse_factor_leaf(stay: Any, leave: Any, answer: Any) -> int:
    """Do the same for a small matrix, row by row; return -1, or the row with a pivot of zero."""
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
            if k == 0:
                answer[i, 0] = 0.0
            if factor != 0.0:
                for j in range(i, n):
                    work[i, j] += factor * work[k, j]
                sums[i] += factor * sums[k]
            below = work[k, i] * root
            for j in range(k):
                answer[i, j] += below * answer[k, j]
            answer[i, k] = below * root
    return -1


@compiled
def _unfold(gram: Any, both: Any, stay: Any, home: Any, sums: Any) -> None:
    """Take [up, down], what stay and home gain, and the row sums of up + down from the lower half of Y^T Y."""
    n = stay.shape[0]
    for i in range(n):
        for j in range(i + 1):
            value = gram[i, j]
            value = value if value > NEGLIGIBLE else 0.0
            both[i, j] = value
            both[j, i] = value
            value = gram[n + i, n + j]
            value = value if value > NEGLIGIBLE else 0.0
            both[i, n + j] = value
            both[j, n + i] = value
        for j in range(n):
            value = gram[n + i, j]
            value = value if value > NEGLIGIBLE else 0.0
            home[j, i] += value
            stay[i, j] += value
            stay[j, i] += value
    for i in range(n):
        total = 0.0
        for j in range(2 * n):
            total += both[i, j]
        sums[i] = total
