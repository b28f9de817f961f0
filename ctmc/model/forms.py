"""From one stored form of transitions to another."""

from __future__ import annotations

import numpy as np

from ctmc.model import products
from ctmc.model.memory import require_memory
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import CodedTransitions, FloatTransitions, Transitions, slab_rates

_SAMPLE = 1 << 20
"""So many rates are looked at first: most models with too many different ones show it there."""
_MOST_VALUES = 1 << 16


def written_out(stored: Transitions | StreamedTransitions, states: int, entries: int) -> FloatTransitions:
    """Return transitions as float64 compressed rows, read-only.

    Raises
    ------
    ModelError
        If they do not fit the memory limit.
    """
    if isinstance(stored, FloatTransitions):
        return stored
    size = 4 if states <= np.iinfo(np.int32).max else 8
    needed = entries * (8 if isinstance(stored, CodedTransitions) else 8 + size) + 8 * states
    require_memory("the model with its rates written out", needed, states=states, entries=entries)
    rates = np.empty(entries)
    if isinstance(stored, CodedTransitions):
        products.decode(stored.codes, stored.values, rates)
        rows = FloatTransitions(stored.indptr, stored.sources, rates)
    else:
        indptr = np.zeros(states + 1, dtype=np.int64)
        sources = np.empty(entries, dtype=np.int32 if size == 4 else np.int64)
        done = 0
        for slab in stored.slabs():
            count = int(slab.indptr[-1])
            indptr[slab.begin + 1 : slab.begin + len(slab.indptr)] = slab.indptr[1:] + np.uint64(done)
            sources[done : done + count] = slab.sources[:count]
            rates[done : done + count] = slab_rates(slab, slice(count))
            done += count
        rows = FloatTransitions(indptr, sources, rates)
    for array in rows:
        array.flags.writeable = False
    return rows


def coded(rows: FloatTransitions) -> CodedTransitions | None:
    """Return the rows with a code of one or two bytes in place of each rate; None where there are too many different rates."""
    values = np.unique(rows.rates[:_SAMPLE])
    if len(values) <= _MOST_VALUES and len(rows.rates) > _SAMPLE:
        values = np.unique(rows.rates)
    if len(values) > _MOST_VALUES:
        return None
    codes = np.searchsorted(values, rows.rates).astype(np.uint8 if len(values) <= 256 else np.uint16)
    return CodedTransitions(rows.indptr, rows.sources, codes, values)
