"""Products on one color of the states where rows come slab by slab: in the order of the states, without renumbering any source."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.transitions import rate_at

_CHUNK = 1 << 12


def counts_before(colors: np.ndarray) -> np.ndarray:
    """Return how many states of color 1 there are before each chunk of 4096 states.

    Examples
    --------
    >>> counts_before(np.arange(10_000, dtype=np.uint8) % 2).tolist()
    [0, 2048, 4096]
    """
    ones = np.add.reduceat(colors, np.arange(0, len(colors), _CHUNK), dtype=np.int64)
    return np.concatenate([[0], np.cumsum(ones)[:-1]])


@compiled
def gather_color_on_one_thread(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, colors: Any, color: Any, exit_rates: Any, x: Any
) -> None:
    """Set x_j = sum_i x_i rate(i, j) / q_j for the states j of a slab that have this color.

    Every transition changes the color, so what is read is not what is written.  Moves 12 bytes for each entry of half the rows.
    """
    for row in range(np.uint64(indptr.size - 1)):
        j = np.uint64(begin) + row
        if colors[j] == color:
            total = 0.0
            for k in range(indptr[row], indptr[row + np.uint64(1)]):
                total += x[sources[k]] * rate_at(codes, rates, k)
            x[j] = total / exit_rates[j]


@compiled_parallel
def gather_color(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, colors: Any, color: Any, exit_rates: Any, x: Any
) -> None:
    """Do the same on all threads."""
    for row in numba.prange(indptr.size - 1):
        j = np.uint64(begin) + np.uint64(row)
        if colors[j] == color:
            total = 0.0
            for k in range(indptr[row], indptr[row + 1]):
                total += x[sources[k]] * rate_at(codes, rates, k)
            x[j] = total / exit_rates[j]


@compiled_parallel
def take_color(colors: Any, before: Any, color: Any, x: Any, half: Any) -> None:
    """Copy the elements of one color from the order of the states."""
    for chunk in numba.prange(before.size):
        low = np.uint64(chunk * _CHUNK)
        place = np.uint64(before[chunk]) if color == 1 else low - np.uint64(before[chunk])
        for i in range(low, min(low + np.uint64(_CHUNK), np.uint64(x.size))):
            if colors[i] == color:
                half[place] = x[i]
                place += np.uint64(1)


@compiled_parallel
def put_color(colors: Any, before: Any, color: Any, half: Any, x: Any) -> None:
    """Copy the elements of one color back into the order of the states."""
    for chunk in numba.prange(before.size):
        low = np.uint64(chunk * _CHUNK)
        place = np.uint64(before[chunk]) if color == 1 else low - np.uint64(before[chunk])
        for i in range(low, min(low + np.uint64(_CHUNK), np.uint64(x.size))):
            if colors[i] == color:
                x[i] = half[place]
                place += np.uint64(1)
