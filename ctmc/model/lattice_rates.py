"""Sums over the states of a lattice, each from its own coordinates: rates out, weights of arrivals, parities."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ctmc.model.transitions import begin_digits, count_up

compiled = numba.njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
compiled_parallel = numba.njit(cache=True, nogil=True, parallel=True)

_BLOCK = 1 << 12
"""States per block of work."""


@compiled_parallel
def count_not_entered(weights: Any) -> int:
    """Count the states that no arrival leads to."""
    n = weights.shape[1]
    count = 0
    for block in numba.prange((n + _BLOCK - 1) // _BLOCK):
        count += _count_not_entered(weights, np.int64(block) * _BLOCK, min((np.int64(block) + 1) * _BLOCK, n))
    return count


@compiled
def _count_not_entered(weights: Any, begin: Any, end: Any) -> Any:
    entered = np.zeros(end - begin, dtype=np.bool_)
    for i in range(weights.shape[0]):
        row = weights[i, begin:end]
        for r in range(row.size):
            entered[r] |= row[r] > 0
    return entered.size - np.count_nonzero(entered)


@compiled_parallel
def parity(sides: Any, strides: Any, colors: Any) -> None:
    """Set colors to the parity of the sum of the coordinates."""
    n = colors.size
    for block in numba.prange((n + _BLOCK - 1) // _BLOCK):
        low = np.int64(block) * _BLOCK
        digits = begin_digits(low, sides, strides)
        for j in range(low, min(low + _BLOCK, n)):
            colors[j] = digits.sum() & 1
            count_up(digits, sides)


@compiled_parallel
def accepted_weights(weights: Any, sides: Any, strides: Any, accepted: Any) -> None:
    """Set accepted to the weight of all arrivals out of each state."""
    for block in numba.prange((accepted.size + _BLOCK - 1) // _BLOCK):
        low = np.int64(block) * _BLOCK
        digits = begin_digits(low, sides, strides)
        for j in range(low, min(low + _BLOCK, accepted.size)):
            total = 0
            for i in range(sides.size):
                if digits[i] + 1 < sides[i]:
                    total += weights[i, j + strides[i]]
            accepted[j] = total
            count_up(digits, sides)


@compiled_parallel
def finish_rates(accepted: Any, unit: Any, departures: Any, sides: Any, strides: Any, sums: Any) -> None:
    """Set sums to the total rate out of each state from the weight of its arrivals, with the bits of `sum_rates`."""
    for block in numba.prange((sums.size + _BLOCK - 1) // _BLOCK):
        low = np.int64(block) * _BLOCK
        digits = begin_digits(low, sides, strides)
        for j in range(low, min(low + _BLOCK, sums.size)):
            leaving = 0.0
            for i in range(sides.size):
                if digits[i] > 0:
                    leaving += departures[i, digits[i]]
            sums[j] = unit[0] * accepted[j] + leaving
            count_up(digits, sides)


@compiled_parallel
def sum_rates(weights: Any, unit: Any, departures: Any, sides: Any, strides: Any, sums: Any) -> None:
    """Set sums to the total rate out of each state."""
    for block in numba.prange((sums.size + _BLOCK - 1) // _BLOCK):
        low = np.int64(block) * _BLOCK
        digits = begin_digits(low, sides, strides)
        for j in range(low, min(low + _BLOCK, sums.size)):
            accepted, leaving = 0, 0.0
            for i in range(sides.size):
                if digits[i] + 1 < sides[i]:
                    accepted += weights[i, j + strides[i]]
                if digits[i] > 0:
                    leaving += departures[i, digits[i]]
            sums[j] = unit[0] * accepted + leaving
            count_up(digits, sides)
