"""States of a lattice one after another, by counting up: the quick way to a table of neighbouring ones."""

from __future__ import annotations

from typing import Any

import numba


@numba.njit(cache=True, nogil=True)
def count_on(state: Any, limits: Any, firsts: Any, total: int, columns: Any) -> None:
    """Write a state and those that follow it in lexicographic order, one a column; `state` is used up.

    Parameters
    ----------
    state : ndarray of int64, shape (dimension,)
    limits : ndarray of int64, shape (dimension,)
    firsts : ndarray of int64, shape (dimension,)
        First coordinate of the ordered class of each, itself where there is none: after it no value is larger than the one before.
    total : int
        Largest sum.
    columns : ndarray of int64, shape (dimension, m)
    """
    filled = state.sum()
    for place in range(columns.shape[1]):
        for i in range(state.size):
            columns[i, place] = state[i]
        i = state.size - 1
        while i >= 0:
            largest = limits[i] if firsts[i] == i else state[i - 1]
            if state[i] < largest and filled < total:
                state[i] += 1
                filled += 1
                break
            filled -= state[i]
            state[i] = 0
            i -= 1
