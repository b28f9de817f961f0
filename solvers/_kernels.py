"""Compiled sweeps over a generator's entries, and the vector updates around them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ctmc.model.generator import Generator
from ctmc.model.products import FEW_ENTRIES, compiled, compiled_parallel
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


@compiled
def _step_one(i: Any, power: Any, change: Any, factor: float, total: Any, lost: Any) -> None:
    term = power[i] - lost[i]
    summed = total[i] + term
    lost[i] = (summed - total[i]) - term
    total[i] = summed
    power[i] += change[i] * factor


@compiled
def _step_on_one_thread(power: Any, change: Any, factor: float, total: Any, lost: Any) -> None:
    for i in range(np.uint64(power.size)):
        _step_one(i, power, change, factor, total, lost)


@compiled_parallel
def _step(power: Any, change: Any, factor: float, total: Any, lost: Any) -> None:
    for i in numba.prange(power.size):
        _step_one(i, power, change, factor, total, lost)


def step_and_sum(power: np.ndarray, change: np.ndarray, factor: float, total: np.ndarray, lost: np.ndarray) -> None:
    """Add power to total with Kahan's compensation in `lost`, then change x factor to power.  Moves 56 bytes a state."""
    kernel = _step_on_one_thread if power.size <= FEW_ENTRIES else _step
    kernel(power, change, factor, total, lost)


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
