"""Periods of the recurrent classes: the greatest common divisor of the lengths of all closed walks of jumps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctmc.model.communication import Classes
from ctmc.model.products import compiled
from ctmc.model.transitions import unsigned


def periods(indptr: np.ndarray, sources: np.ndarray, found: Classes) -> np.ndarray:
    """Return the period of the jump chain in each recurrent class.

    A chain in continuous time has no period; its jump chain has one, and methods that follow the jumps do not settle where
    it is above 1.  In a class with breadth-first levels, counted against the transitions from any of its states, the period
    is the greatest common divisor of level(j) + 1 - level(i) over the transitions i -> j.  Each entry is looked at once;
    one level and one place in the queue a state are kept.  A class of one state has period 1: its chain stays where it is.

    Source: E. V. Denardo, *Periods of connected networks and powers of nonnegative matrices*, Mathematics of Operations
    Research 2 (1977) 20-24.

    Parameters
    ----------
    indptr : ndarray of int64, shape (n + 1,)
    sources : ndarray of int32 or int64, shape (entries,)
        Entries by destination, as in `Generator`.
    found : Classes
        The communicating classes of the same entries.

    Returns
    -------
    ndarray of int64, shape (recurrent classes,)
        In the order of ``found.recurrent``.

    Examples
    --------
    >>> from ctmc.model.communication import classes
    >>> from ctmc.model.generator import Generator
    >>> ring = Generator.from_matrix([[0, 1.0, 0], [0, 0, 1.0], [1.0, 0, 0]])
    >>> periods(ring.indptr, ring.sources, classes(ring)).tolist()
    [3]
    """
    n = len(indptr) - 1
    narrow = np.uint32 if n <= np.iinfo(np.int32).max else np.uint64
    roots = np.full(found.count, n, dtype=np.uint64)
    _first_states(found.class_of, roots)
    result = np.zeros(len(found.recurrent), dtype=np.int64)
    unseen = narrow(np.iinfo(narrow).max)
    level, queue = np.full(n, unseen), np.empty(n, dtype=narrow)
    _periods(
        unsigned(indptr), unsigned(sources), unsigned(found.class_of),
        roots[found.recurrent], level, queue, unseen, result,
    )  # fmt: skip
    return result


@compiled
def _first_states(class_of: Any, first: Any) -> None:
    for i in range(np.uint64(class_of.size)):
        number = np.uint64(class_of[i])
        if i < first[number]:
            first[number] = i


@compiled
def _periods(
    indptr: Any, sources: Any, class_of: Any, roots: Any, level: Any, queue: Any, unseen: Any, result: Any
) -> None:
    """Search from each root against the transitions, inside its class.  Moves 4 bytes an entry, at random places."""
    one = np.uint64(1)
    for number in range(roots.size):
        root = roots[number]
        level[root] = 0
        queue[0] = root
        begin, end = np.uint64(0), one
        common = np.int64(0)
        while begin < end:
            j = np.uint64(queue[begin])
            begin += one
            for k in range(indptr[j], indptr[j + one]):
                i = np.uint64(sources[k])
                if class_of[i] != class_of[root]:
                    continue
                if level[i] == unseen:
                    level[i] = level[j] + one
                    queue[end] = i
                    end += one
                elif common != 1:
                    common = _greatest_common_divisor(common, np.int64(level[j]) + 1 - np.int64(level[i]))
        result[number] = max(common, 1)


@compiled
def _greatest_common_divisor(a: Any, b: Any) -> Any:
    a, b = abs(a), abs(b)
    while b:
        a, b = b, a % b
    return a
