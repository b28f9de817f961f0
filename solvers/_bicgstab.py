"""BiCGSTAB on a map that gives its image and the inner products with it in one pass.

Source: H. A. van der Vorst, SIAM J. Sci. Stat. Comput. 13 (1992), doi:10.1137/0913035.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np

from ctmc.model.lattice_products import summing
from ctmc.model.products import compiled_parallel

_CHUNK = 1 << 12
LOOK = 5
"""Steps between two looks at the defect."""
BREAKDOWN = 1e-16
"""Least cosine between an image and the shadow residual: below, the recursion begins again."""


def corrections(
    difference: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], x: np.ndarray, r: np.ndarray, square: float
) -> Iterator[float]:
    """Correct x step by step, r being what is left of the right side; yield the square of r after each step.

    Ends where the recursion breaks down: go on from the true residual then.

    Parameters
    ----------
    difference : callable
        ``difference(p, shadow, out)`` sets out to the image of p and returns shadow.out, p.out, out.out and shadow.p.
    x, r : ndarray, shape (n,)
        Changed in place.
    square : float
        r.r, positive.

    Examples
    --------
    >>> matrix = np.array([[2.0, 1.0], [0.0, 3.0]])
    >>> def difference(p, shadow, out):
    ...     out[:] = matrix @ p
    ...     return np.array([shadow @ out, p @ out, out @ out, shadow @ p])
    >>> x, r = np.zeros(2), np.array([4.0, 3.0])
    >>> left = corrections(difference, x, r, float(r @ r))
    >>> next(left) < 1e-3, next(left) < 1e-20, (matrix @ x).round(12).tolist()
    (False, True, [4.0, 3.0])
    """
    shadow, p, v, t = r.copy(), r.copy(), np.empty(len(r)), np.empty(len(r))
    sums = np.empty((len(r) + _CHUNK - 1) // _CHUNK)
    rho = square
    while True:
        with_shadow, _, v_square, _ = difference(p, shadow, v)
        if not abs(with_shadow) > BREAKDOWN * (v_square * square) ** 0.5:
            return
        alpha = rho / with_shadow
        step_back(r, alpha, v)
        with_shadow, with_r, t_square, shadow_with_r = difference(r, shadow, t)
        omega = with_r / t_square if t_square > 0 else 0.0
        next_rho = shadow_with_r - omega * with_shadow
        beta = next_rho / rho * (alpha / omega) if omega else 0.0
        advance(x, p, r, t, v, alpha, omega, beta, sums)
        rho, square = next_rho, float(sums.sum())
        if not (omega and rho and np.isfinite(square)):
            return
        yield square


@compiled_parallel
def step_back(r: Any, alpha: float, v: Any) -> None:
    """Set r to r - alpha v.  Moves 24 bytes an element."""
    for j in numba.prange(r.size):
        r[j] -= alpha * v[j]


@compiled_parallel
def advance(x: Any, p: Any, r: Any, t: Any, v: Any, alpha: float, omega: float, beta: float, sums: Any) -> None:
    """Set x to x + alpha p + omega r, r to r - omega t, then p to r + beta (p - omega v); write the square of r of each chunk.

    Moves 64 bytes an element.
    """
    for chunk in numba.prange(sums.size):
        a = np.int64(chunk) * _CHUNK
        b = min(a + _CHUNK, x.size)
        sums[chunk] = advance_chunk(x[a:b], p[a:b], r[a:b], t[a:b], v[a:b], alpha, omega, beta)


@summing
def advance_chunk(x: Any, p: Any, r: Any, t: Any, v: Any, alpha: float, omega: float, beta: float) -> float:
    """Do the work of `advance` on one chunk, and return the square of r."""
    square = 0.0
    for j in range(x.size):
        direction, before = p[j], r[j]
        x[j] += alpha * direction + omega * before
        after = before - omega * t[j]
        r[j] = after
        p[j] = after + beta * (direction - omega * v[j])
        square += after * after
    return square
