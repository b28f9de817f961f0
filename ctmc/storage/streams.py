"""A generator whose rows are streamed, as the arrays of a file that come piece by piece.

One pass over the slabs counts the different values of each array, so that the file is the same, bit for bit, as that of the
same model in memory; a second one writes.  What is held is a vector of exit rates and a few slabs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ctmc.errors import ModelError
from ctmc.model import products
from ctmc.model.generator import Generator
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import NO_CODES, Slab
from ctmc.storage.coding import LEAST, MOST, Coder, Distinct, most_steps
from ctmc.storage.gate import StoredArray
from ctmc.storage.hash_tree import Stream

Arrays = dict[str, np.ndarray]
Part = tuple[str, int, np.ndarray]
Maker = Callable[[Slab], np.ndarray]


def stream_of(chain: Generator) -> tuple[Arrays, Stream]:
    """Return the small arrays of a generator's streamed transitions, and the stream of the large ones.

    The rows are looked at on the way: the first broken law of a generator is a `ModelError`.
    """
    rows = chain.transitions
    assert isinstance(rows, StreamedTransitions)
    if rows.lattice is not None:
        return _lattice(chain, rows)
    return _rows(chain, rows)


def _lattice(chain: Generator, rows: StreamedTransitions) -> tuple[Arrays, Stream]:
    parts = rows.lattice
    assert parts is not None
    array = StoredArray((len(parts.sides), chain.size), parts.dtype.newbyteorder("<"))

    def windows() -> Iterator[Part]:
        for _, weights in parts.windows(range(len(rows.begins) - 1)):
            for i, row in enumerate(weights):
                yield "rates/weights", i, row

    return {"rates/unit": parts.unit, "rates/departures": parts.departures}, Stream({"rates/weights": array}, windows)


class _Values:
    """An array of 8-byte numbers that comes slab by slab, coded where that pays."""

    def __init__(self, name: str, size: int, dtype: str, most: int = MOST) -> None:
        self.name, self.size, self.dtype = name, size, np.dtype(dtype)
        self.distinct = Distinct(most if size >= LEAST else -1)

    def coder(self, arrays: Arrays) -> Coder | None:
        """Return what codes the array, after putting the table of its values among the arrays; None to store it as it is."""
        values = self.distinct.values(self.dtype)
        if values is None:
            return None
        arrays[f"{self.name}.values"] = values
        return Coder(values)


def _rows(chain: Generator, rows: StreamedTransitions) -> tuple[Arrays, Stream]:
    n, entries = chain.size, rows.entries
    counts = _Values("rates/counts", n, "<i8")
    steps = _Values("rates/steps", entries, "<i8", most_steps(entries))
    rates = _Values("rates/data", entries, "<f8")
    exit_rates = np.zeros(n)
    first: Slab | None = None
    done = 0
    for slab in rows.slabs():
        check_slab(chain, slab)
        first = first or slab
        products.exit_sums(*slab, exit_rates)
        done += int(slab.indptr[-1])
        counts.distinct.add(_counts(slab))
        steps.distinct.add_steps(slab.begin, slab.indptr, slab.sources)
        if slab.codes is NO_CODES:
            rates.distinct.add(slab.rates[: int(slab.indptr[-1])])
    if done != entries:
        raise ModelError(f"the rows have {done:,} transitions; announced were {entries:,}.")
    assert first is not None
    chain.once("exit_rates", lambda: exit_rates)
    arrays: Arrays = {}
    stored: dict[str, StoredArray] = {}
    makers: dict[str, Maker] = {}

    def put(name: str, size: int, dtype: Any, make: Maker) -> None:
        stored[name], makers[name] = StoredArray((size,), np.dtype(dtype).newbyteorder("<")), make

    coder = steps.coder(arrays)
    if coder is None:
        put("rates/indices", entries, "<i4" if first.sources.dtype == np.uint32 else "<i8", _sources)
        stored["rates/indptr"] = StoredArray((n + 1,), np.dtype("<i8"))
    else:
        step_coder = coder
        put("rates/steps.codes", entries, coder.dtype, lambda slab: step_coder.step_codes(*slab[:3]))
        count_coder = counts.coder(arrays)
        if count_coder is None:
            put("rates/counts", n, "<i8", _counts)
        else:
            count_codes = count_coder.codes
            put("rates/counts.codes", n, count_coder.dtype, lambda slab: count_codes(_counts(slab)))
    if first.codes is not NO_CODES:
        arrays["rates/values"] = np.array(first.rates)
        put("rates/codes", entries, first.codes.dtype, lambda slab: slab.codes[: int(slab.indptr[-1])])
    elif (rate_coder := rates.coder(arrays)) is not None:
        put("rates/data.codes", entries, rate_coder.dtype, lambda slab: rate_coder.codes(_rates(slab)))
    else:
        put("rates/data", entries, "<f8", lambda slab: _rates(slab).copy())

    def parts() -> Iterator[Part]:
        before = 0
        if "rates/indptr" in stored:
            yield "rates/indptr", 0, np.zeros(1, dtype=np.int64)
        for slab in rows.slabs():
            if "rates/indptr" in stored:
                yield "rates/indptr", 0, slab.indptr[1:].astype(np.int64) + before
                before += int(slab.indptr[-1])
            for name, make in makers.items():
                yield name, 0, make(slab)

    return arrays, Stream(stored, parts)


def check_slab(chain: Generator, slab: Slab) -> None:
    """Raise `ModelError` at the first broken law of the rows of a slab."""
    indptr, used = slab.indptr.view(np.int64), int(slab.indptr[-1])
    sources = slab.sources[:used].view(np.int32 if slab.sources.dtype == np.uint32 else np.int64)
    coded = slab.codes is not NO_CODES
    rates = np.broadcast_to(1.0, used) if coded else slab.rates[:used]
    kind, where = products.first_fault(indptr, sources, rates, slab.begin, chain.size)
    if kind:
        chain.refuse_slab(slab, kind, where)
    if coded and used:
        codes = slab.codes[:used]
        bad = ~((slab.rates > 0) & np.isfinite(slab.rates))
        if int(codes.max()) >= len(slab.rates):
            raise ModelError(f"a code is {int(codes.max())}; allowed is 0 to {len(slab.rates) - 1}.")
        if bad.any() and bad[codes].any():
            value = float(slab.rates[codes[np.argmax(bad[codes])]])
            raise ModelError(f"a rate is {value!r}; allowed are positive, finite rates.")


def _counts(slab: Slab) -> np.ndarray:
    return np.asarray(np.diff(slab.indptr.view(np.int64)))


def _sources(slab: Slab) -> np.ndarray:
    return np.array(
        slab.sources[: int(slab.indptr[-1])].view(np.int32 if slab.sources.dtype == np.uint32 else np.int64)
    )


def _rates(slab: Slab) -> np.ndarray:
    return np.asarray(slab.rates[: int(slab.indptr[-1])])
