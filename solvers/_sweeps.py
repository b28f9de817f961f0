"""Gauss-Seidel sweeps over a generator's entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctmc.model.generator import Generator
from ctmc.model.products import compiled
from ctmc.model.transitions import rate_at


@compiled
def gauss_seidel_sweep(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, exit_rates: Any, x: Any, relaxation: float,
    reverse: bool,
) -> None:  # fmt: skip
    """Set x_j to (1 - w) x_j + w (sum_i x_i rate_ij) / q_j for each j in turn.  Moves 12 bytes an entry, one thread."""
    n = np.uint64(indptr.size - 1)
    for step in range(n):
        row = n - np.uint64(1) - step if reverse else step
        total = 0.0
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            total += x[sources[k]] * rate_at(codes, rates, k)
        j = np.uint64(begin) + row
        x[j] += relaxation * (total / exit_rates[j] - x[j])


def sweep(chain: Generator, x: np.ndarray, *, relaxation: float = 1.0, reverse: bool = False) -> None:
    """Do one Gauss-Seidel sweep in place on a row vector x, shape (n,); counts as one product."""
    chain.count_products()
    for slab in chain.row_slabs(reverse=reverse):
        gauss_seidel_sweep(*slab, chain.exit_rates, x, relaxation, reverse)


def cleared(chain: Generator, pi: np.ndarray) -> np.ndarray:
    """Return a non-negative, normalised vector near pi.

    Where pi has negative entries (rounding of a method that subtracts), they are set to zero and one symmetric sweep, which
    only adds, multiplies and divides, gives every state a value again that fits those of its neighbours.
    """
    if pi.min() < 0:
        pi = np.maximum(pi, 0)
        sweep(chain, pi)
        sweep(chain, pi, reverse=True)
    return pi / pi.sum()
