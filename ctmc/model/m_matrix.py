"""Inverses of M-matrices without a subtraction, by elimination of blocks with matrix products.

A nonsingular M-matrix is given by its off-diagonal entries -N and its row sums s; its diagonal is what these make it, N 1 + s.
All of N, s, the inverse and every number on the way are non-negative, so each entry of the inverse has a relative error of
some n eps, whatever the condition of the matrix.  Entries below 1e-120 of the largest count as zero: products of smaller ones
fall under the normal numbers, where processors are a hundred times slower.

Source: A. S. Alfa, J. Xue, Q. Ye, *Accurate computation of the smallest eigenvalue of a diagonally dominant M-matrix*,
Mathematics of Computation 71 (2002) 217-236, doi:10.1090/S0025-5718-01-01325-4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ctmc.errors import ModelError
from ctmc.model.products import compiled

NEGLIGIBLE = 1e-120
_LEAF = 40


def inverse(stay: np.ndarray, leave: np.ndarray) -> np.ndarray:
    """Return the inverse of the M-matrix diag(N 1 + s) - N.

    The second half of the rows is eliminated first, and so on in each half; some 2 n^3 multiplications, nearly all of them in
    matrix products.

    Parameters
    ----------
    stay : ndarray, shape (n, n)
        N >= 0; the diagonal is not looked at.
    leave : ndarray, shape (n,)
        s >= 0.

    Returns
    -------
    ndarray, shape (n, n)

    Raises
    ------
    ModelError
        If the matrix is singular: some rows reach no row with s > 0.

    Examples
    --------
    >>> inverse(np.array([[0, 1.0], [1e20, 0]]), np.array([1e-20, 0])).tolist()
    [[1e+20, 1.0], [1e+20, 1.0]]
    """
    answer = np.empty_like(stay)
    _invert(stay, leave, answer, 0)
    return answer


def solve_m_matrix(stay: np.ndarray, leave: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve (diag(N 1 + s) - N) X = B for B >= 0; parameters as of `inverse`, and B of shape (n, q).

    Examples
    --------
    >>> solve_m_matrix(np.array([[0, 1.0], [1e20, 0]]), np.array([1e-20, 0]), np.array([[1.0], [0]])).ravel().tolist()
    [1e+20, 1e+20]
    """
    return np.asarray(inverse(stay, leave) @ right)


@compiled
def drop_negligible(matrix: Any, scale: float = 1.0) -> None:
    """Set entries below 1e-120 times the scale to zero, in place."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            matrix[i, j] = matrix[i, j] if matrix[i, j] > NEGLIGIBLE * scale else 0.0


def _invert(stay: np.ndarray, leave: np.ndarray, answer: np.ndarray, first: int) -> None:
    n = len(stay)
    if n <= _LEAF:
        stuck = _invert_leaf(np.ascontiguousarray(stay), leave, answer)
        if stuck >= 0:
            raise ModelError(
                f"phase {first + stuck} and those that it leads to are never left: the level cannot fall from there."
            )
        return
    half = n // 2
    # with M = [[A, -B], [-C, D]]: D is eliminated, and A becomes S = A - B D^-1 C
    b, c = stay[:half, half:], stay[half:, :half]
    low = np.empty((n - half, n - half), stay.dtype)
    _invert(stay[half:, half:], leave[half:] + c.sum(axis=1), low, first + half)
    out = b @ low
    high = np.empty((half, half), stay.dtype)
    _invert(stay[:half, :half] + out @ c, leave[:half] + out @ leave[half:], high, first)
    back = low @ c
    answer[:half, :half] = high
    np.matmul(high, out, out=answer[:half, half:])
    np.matmul(back, high, out=answer[half:, :half])
    np.matmul(answer[half:, :half], out, out=answer[half:, half:])
    answer[half:, half:] += low


@compiled
def _invert_leaf(stay: Any, leave: Any, answer: Any) -> int:
    """Invert a small matrix row by row; return -1, or the row with a pivot of zero.  Some 2 n^3 multiplications."""
    n = stay.shape[0]
    work = stay.copy()
    sums = leave.copy()
    pivots = np.empty_like(leave)
    for step in range(n):
        k = n - 1 - step
        pivot = sums[k]
        for j in range(k):
            pivot += work[k, j]
        if not pivot > 0:
            return int(k)
        pivots[k] = pivot
        for i in range(k):
            factor = work[i, k] / pivot
            work[i, k] = factor
            if factor != 0.0:
                for j in range(k):
                    work[i, j] += factor * work[k, j]
                sums[i] += factor * sums[k]
    # M = (I - upper) (diag - lower): the columns above the diagonal hold multipliers; first the inverse of I - upper
    for step in range(n):
        i = n - 1 - step
        for j in range(n):
            answer[i, j] = 0.0
        answer[i, i] = 1.0
        for k in range(i + 1, n):
            factor = work[i, k]
            if factor != 0.0:
                for j in range(k, n):
                    answer[i, j] += factor * answer[k, j]
    for i in range(n):
        for k in range(i):
            factor = work[i, k]
            if factor != 0.0:
                for j in range(n):
                    answer[i, j] += factor * answer[k, j]
        for j in range(n):
            answer[i, j] /= pivots[i]
    return -1
