"""Rows of models whose states are a product of small factors: an event changes some of them by tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.transitions import FloatTransitions

BLOCK = 1 << 14
"""States that one thread looks at in one go; slabs begin at multiples of it."""
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Event:
    """What happens at a rate, seen from the state after it.

    Attributes
    ----------
    rate : float
        Not negative; at rate 0 the event is left out.
    before : mapping of int to ndarray of int
        For each factor that the event changes, or whose value allows it, the value before it by the value after it, and -1
        where the event does not lead to that value.
    """

    rate: float
    before: Mapping[int, np.ndarray]


def product_rows(sizes: Sequence[int], events: Sequence[Event]) -> tuple[Callable[[int, int], FloatTransitions], int]:
    """Return what makes the rows of any range of states of a product, and the number of all transitions.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of values of the factors; the last factor is the fastest.
    events : sequence of Event
        No two of them may lead from one state to the same other one, and none to the state itself.

    Returns
    -------
    rows : callable
        ``rows(begin, end)`` returns the transitions into the states begin .. end - 1, as `ctmc.model.streamed.made` asks.
    entries : int
        Number of all transitions.

    Examples
    --------
    >>> grow = Event(2.0, {1: np.array([-1, 0, 1])})               # a queue of two places, and a switch
    >>> flip = Event(0.5, {0: np.array([1, 0])})
    >>> rows, entries = product_rows([2, 3], [grow, flip])
    >>> entries, rows(1, 3).indptr.tolist(), rows(1, 3).sources.tolist()
    (10, [0, 2, 4], [0, 4, 1, 5])
    """
    events = [event for event in events if event.rate > 0]
    shape = np.array(sizes, dtype=np.int64)
    strides = np.append(np.cumprod(shape[::-1])[::-1][1:], 1)
    places = np.full((len(events), len(shape)), -1, dtype=np.int64)
    tables, used = [], 0
    for number, event in enumerate(events):
        for factor, before in event.before.items():
            moves = (before - np.arange(len(before))) * strides[factor]
            tables.append(np.where(before < 0, _NEVER, moves))
            places[number, factor] = used
            used += len(before)
    flat = np.concatenate(tables).astype(np.int64)
    rates = np.array([event.rate for event in events])
    size = int(np.prod(shape))
    entries = sum(
        size // int(np.prod(shape[list(event.before)])) * int(np.prod([np.sum(b >= 0) for b in event.before.values()]))
        for event in events
    )
    narrow = np.int32 if size <= np.iinfo(np.int32).max else np.int64

    def rows(begin: int, end: int) -> FloatTransitions:
        indptr = np.zeros(end - begin + 1, dtype=np.int64)
        _count(begin, shape, places, flat, indptr)
        np.cumsum(indptr, out=indptr)
        sources, found = np.empty(indptr[-1], dtype=narrow), np.empty(indptr[-1])
        _fill(begin, shape, places, flat, rates, indptr, sources, found)
        return FloatTransitions(indptr, sources, found)

    return rows, entries


@compiled
def _source(state: Any, values: Any, places: Any, tables: Any) -> Any:
    """Return where an event came from, or -1 where it does not lead to this state."""
    source = state
    for factor in range(values.size):
        if places[factor] >= 0:
            move = tables[places[factor] + values[factor]]
            if move == _NEVER:
                return np.int64(-1)
            source += move
    return source


@compiled
def _split(state: Any, shape: Any, values: Any) -> None:
    """Set values to those of the factors in a state."""
    for factor in range(shape.size - 1, -1, -1):
        values[factor] = state % shape[factor]
        state //= shape[factor]


@compiled_parallel
def _count(begin: Any, shape: Any, places: Any, tables: Any, indptr: Any) -> None:
    """Set indptr[k + 1] to the number of transitions into the state begin + k."""
    size = indptr.size - 1
    for chunk in numba.prange((size + BLOCK - 1) // BLOCK):
        values = np.empty(shape.size, dtype=np.int64)
        for k in range(np.int64(chunk) * BLOCK, min((np.int64(chunk) + 1) * BLOCK, size)):
            _split(begin + k, shape, values)
            number = 0
            for event in range(len(places)):
                if _source(begin + k, values, places[event], tables) >= 0:
                    number += 1
            indptr[k + 1] = number


@compiled_parallel
def _fill(
    begin: Any, shape: Any, places: Any, tables: Any, rates: Any, indptr: Any, sources: Any, found: Any
) -> None:  # fmt: skip
    """Write sources, ascending, and rates of the transitions into the states from begin on."""
    size = indptr.size - 1
    for chunk in numba.prange((size + BLOCK - 1) // BLOCK):
        values = np.empty(shape.size, dtype=np.int64)
        for k in range(np.int64(chunk) * BLOCK, min((np.int64(chunk) + 1) * BLOCK, size)):
            _split(begin + k, shape, values)
            end = first = indptr[k]
            for event in range(len(places)):
                source = _source(begin + k, values, places[event], tables)
                if source < 0:
                    continue
                place = end  # insertion: rows are short, and events mostly come in order
                while place > first and sources[place - 1] > source:
                    sources[place] = sources[place - 1]
                    found[place] = found[place - 1]
                    place -= 1
                sources[place] = source
                found[place] = rates[event]
                end += 1
