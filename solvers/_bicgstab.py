"""The vector work of BiCGSTAB, in as few passes as there can be."""

from __future__ import annotations

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


def room_for_sums(size: int) -> np.ndarray:
    """Return room for what `advance` writes about vectors of this length."""
    return np.empty((size + _CHUNK - 1) // _CHUNK)


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
