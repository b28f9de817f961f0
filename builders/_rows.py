"""Compressed rows of neighbouring states from tables of the transitions that may lead into each, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ctmc.model.transitions import FloatTransitions

_CHUNK = 1 << 18
"""Entries of the tables that are in memory at once."""


def compressed_rows(
    begin: int, end: int, size: int, tables: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], width: int
) -> FloatTransitions:
    """Return the transitions into the states begin .. end - 1, row pointers from 0.

    Parameters
    ----------
    begin, end : int
    size : int
        Number of all states; it decides how wide sources are.
    tables : callable
        Maps positions, shape (m,), to sources and rates of what may lead there, both of shape (m, k).  A rate of 0 means that
        nothing does; the other sources ascend along each row.
    width : int
        Number of columns k.

    Examples
    --------
    >>> def tables(positions):                                             # a walk on 0 .. 3, up at rate 1, down at rate 2
    ...     up, down = positions > 0, np.where(positions < 3, 2.0, 0.0)
    ...     return np.column_stack([positions - 1, positions + 1]), np.column_stack([up, down])
    >>> rows = compressed_rows(1, 4, 4, tables, 2)
    >>> rows.indptr.tolist(), rows.sources.tolist(), rows.rates.tolist()
    ([0, 2, 4, 5], [0, 2, 1, 3, 2], [1.0, 2.0, 1.0, 2.0, 1.0])
    """
    narrow = np.int32 if size <= np.iinfo(np.int32).max else np.int64
    counts, sources, rates = [], [], []
    step = max(1, _CHUNK // width)
    for first in range(begin, end, step):
        source, rate = tables(np.arange(first, min(first + step, end)))
        leads = rate > 0
        counts.append(leads.sum(axis=1))
        sources.append(source[leads].astype(narrow))
        rates.append(rate[leads].astype(np.float64, copy=False))
    indptr = np.zeros(end - begin + 1, dtype=np.int64)
    np.cumsum(np.concatenate(counts), out=indptr[1:])
    return FloatTransitions(indptr, np.concatenate(sources), np.concatenate(rates))


def bytes_of_rows(size: int, entries: int) -> int:
    """Return the bytes that rows take while they are put together, exit rates and their check included.

    Examples
    --------
    >>> bytes_of_rows(size=1000, entries=2000)
    80000
    """
    wide = 4 if size <= np.iinfo(np.int32).max else 8
    return 2 * (8 + wide) * entries + 32 * size
