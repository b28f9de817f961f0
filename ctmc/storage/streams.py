"""The transitions of a generator as the arrays of a file that come piece by piece.

One pass over the rows counts the different values of each array, a second one writes.  Where rows are streamed, a vector of
exit rates and a few slabs are held, and the file has the same content as that of the same model in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ctmc.errors import ModelError
from ctmc.model import products
from ctmc.model.generator import Generator
from ctmc.model.laws import refuse_slab
from ctmc.model.memory import require_memory
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import NO_CODES, CodedTransitions, FloatTransitions, LatticeTransitions, Slab, unsigned
from ctmc.storage.coding import LEAST, MOST, Coder, Distinct
from ctmc.storage.gate import StoredArray
from ctmc.storage.hash_tree import Stream
from ctmc.storage.sources import BLOCK, Differences, Encoder

_STATES = 64 * BLOCK

Arrays = dict[str, np.ndarray]
Part = tuple[str, int, np.ndarray]
Maker = Callable[[Slab], np.ndarray]


def stream_of(chain: Generator, sample: Sequence[int] | None = None) -> tuple[Arrays, Stream]:
    """Return the small arrays of a generator's transitions, and the stream of the large ones.

    Streamed rows are looked at on the way: the first broken law of a generator is a `ModelError`.

    Parameters
    ----------
    chain : Generator
    sample : sequence of int, optional
        Numbers of slabs, of streamed rows, to look at alone, for a forecast; the stream then ends early.
    """
    rows = chain.transitions
    if isinstance(rows, LatticeTransitions):
        small = {"rates/unit": rows.unit, "rates/departures": rows.departures, "rates/weights": rows.weights}
        return small, Stream()
    if not isinstance(rows, StreamedTransitions):
        return _rows(chain, lambda: _slices(rows), whole=True, checked=True)
    if sample is None:
        require_memory("the model, stored slab by slab,", 16 * chain.size, states=chain.size)
    numbers = range(len(rows.begins) - 1) if sample is None else sample
    if rows.lattice is not None:
        return _lattice(chain, rows, numbers)
    return _rows(chain, lambda: rows.stream(numbers), whole=sample is None, checked=False)


def _lattice(chain: Generator, rows: StreamedTransitions, numbers: Sequence[int]) -> tuple[Arrays, Stream]:
    parts = rows.lattice
    assert parts is not None
    array = StoredArray((len(parts.sides), chain.size), parts.dtype.newbyteorder("<"))

    def windows() -> Iterator[Part]:
        for _, weights in parts.windows(numbers):
            for i, row in enumerate(weights):
                yield "rates/weights", i, row

    return {"rates/unit": parts.unit, "rates/departures": parts.departures}, Stream({"rates/weights": array}, windows)


class _Values:
    """An array of 8-byte numbers that comes slab by slab, coded where that pays."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name, self.dtype = name, np.dtype(dtype)
        self.distinct = Distinct(MOST)

    def coder(self, arrays: Arrays, size: int) -> Coder | None:
        """Return what codes the array, after putting the table of its values among the arrays; None to store it as it is."""
        values = self.distinct.values(self.dtype)
        if values is None or size < LEAST:
            return None
        arrays[f"{self.name}.values"] = values
        return Coder(values)


def _rows(chain: Generator, slabs: Callable[[], Iterator[Slab]], whole: bool, checked: bool) -> tuple[Arrays, Stream]:
    n = chain.size
    counts, rates, differences = _Values("rates/counts", "<i8"), _Values("rates/data", "<f8"), Differences()
    exit_rates = np.zeros(0 if checked else n)
    first: Slab | None = None
    entries = 0
    for slab in slabs():
        if not checked:
            check_slab(chain, slab)
            products.exit_sums(*slab, exit_rates)
        first = first or slab
        entries += int(slab.indptr[-1])
        counts.distinct.add(_counts(slab))
        differences.add(slab.begin, slab.indptr, slab.sources)
        if slab.codes is NO_CODES:
            rates.distinct.add(slab.rates[: int(slab.indptr[-1])])
    assert first is not None
    if whole and not checked:
        chain.once("entries", lambda: entries)
        chain.once("exit_rates", lambda: exit_rates)
    arrays: Arrays = {}
    stored: dict[str, StoredArray] = {}
    makers: list[Callable[[Slab], Iterator[Part]]] = []

    def put(name: str, size: int, dtype: Any, make: Maker) -> None:
        stored[name] = StoredArray((size,), np.dtype(dtype).newbyteorder("<"))
        # what a maker of slabs writes into the same memory again must not be waiting for the disk
        makers.append(lambda slab: iter([(name, 0, make(slab) if checked else make(slab).copy())]))

    frequent = differences.frequent()
    others = differences.uncovered(frequent)
    if entries < LEAST or 4 * others > entries:
        put("rates/indices", entries, "<i4" if first.sources.dtype == np.uint32 else "<i8", _sources)
        stored["rates/indptr"] = StoredArray((n + 1,), np.dtype("<i8"))
    else:
        arrays["rates/steps.values"] = frequent
        stored["rates/steps.codes"] = StoredArray((entries,), np.dtype("u1"))
        stored["rates/steps.others"] = StoredArray((others,), np.dtype("<i8"))
        stored["rates/steps.starts"] = StoredArray((-(-n // BLOCK) + 1,), np.dtype("<i8"))
        encoder = Encoder(frequent)
        makers.append(lambda slab: _steps(encoder, slab))
        if (coder := counts.coder(arrays, n)) is None:
            put("rates/counts", n, "<i8", _counts)
        else:
            put("rates/counts.codes", n, coder.dtype, lambda slab: coder.codes(_counts(slab)))
    if first.codes is not NO_CODES:
        arrays["rates/values"] = np.array(first.rates)
        put("rates/codes", entries, first.codes.dtype, lambda slab: slab.codes[: int(slab.indptr[-1])])
    elif (rate_coder := rates.coder(arrays, entries)) is not None:
        put("rates/data.codes", entries, rate_coder.dtype, lambda slab: rate_coder.codes(_rates(slab)))
    else:
        put("rates/data", entries, "<f8", _rates)

    def parts() -> Iterator[Part]:
        before = {"rates/indptr": 0, "rates/steps.starts": 0}
        for name in before.keys() & stored.keys():
            yield name, 0, np.zeros(1, dtype=np.int64)
        for slab in slabs():
            if "rates/indptr" in stored:
                yield "rates/indptr", 0, slab.indptr[1:].astype(np.int64) + before["rates/indptr"]
                before["rates/indptr"] += int(slab.indptr[-1])
            for make in makers:
                for name, row, values in make(slab):
                    if name == "rates/steps.starts":
                        values = before[name] + np.cumsum(values)
                        before[name] = int(values[-1])
                    yield name, row, values

    return arrays, Stream(stored, parts)


def _steps(encoder: Encoder, slab: Slab) -> Iterator[Part]:
    codes, others, numbers = encoder.encode(slab.begin, slab.indptr, slab.sources)
    yield "rates/steps.codes", 0, codes
    yield "rates/steps.others", 0, others
    yield "rates/steps.starts", 0, numbers


def _slices(rows: FloatTransitions | CodedTransitions) -> Iterator[Slab]:
    """Yield rows in memory as slabs of some blocks."""
    n = len(rows.indptr) - 1
    sources, codes, rates = unsigned(rows.sources), NO_CODES, rows[2]
    for begin in range(0, n, _STATES):
        end = min(begin + _STATES, n)
        entries = slice(int(rows.indptr[begin]), int(rows.indptr[end]))
        indptr = (rows.indptr[begin : end + 1] - rows.indptr[begin]).view(np.uint64)
        if isinstance(rows, CodedTransitions):
            codes, rates = rows.codes[entries], rows.values
        else:
            rates = rows.rates[entries]
        yield Slab(begin, indptr, sources[entries], codes, rates)


def check_slab(chain: Generator, slab: Slab) -> None:
    """Raise `ModelError` at the first broken law of the rows of a slab."""
    indptr, used = slab.indptr.view(np.int64), int(slab.indptr[-1])
    sources = slab.sources[:used].view(np.int32 if slab.sources.dtype == np.uint32 else np.int64)
    coded = slab.codes is not NO_CODES
    rates = np.broadcast_to(1.0, used) if coded else slab.rates[:used]
    kind, where = products.first_fault(indptr, sources, rates, slab.begin, chain.size)
    if kind:
        refuse_slab(chain, slab, kind, where)
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
