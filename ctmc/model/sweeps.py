"""Gauss-Seidel sweeps over a generator's entries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from ctmc.model.generator import Generator
from ctmc.model.products import compiled
from ctmc.model.transitions import Slab, rate_at


class HasRows(Protocol):
    """A generator, or another matrix of rates that is read row by row."""

    @property
    def exit_rates(self) -> np.ndarray:
        """The sum of the rates out of each state, shape (n,)."""

    def row_slabs(self, *, reverse: bool = False) -> Iterable[Slab]:
        """Yield all rows, in parts."""

    def count_products(self, number: int = 1) -> None:
        """Count products with it."""


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


def sweep(chain: HasRows, x: np.ndarray, *, relaxation: float = 1.0, reverse: bool = False) -> None:
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
    return np.asarray(pi / pi.sum())
