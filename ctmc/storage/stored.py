"""Generators whose transitions stay on the disk, for models larger than memory.

The chunks of the large arrays are read ahead, inflated and decoded by a pool of threads, while the slab before is at work.
Everything is verified once, in the pass that `open_model` makes: digests, the laws of a generator, exit rates.  Later passes
compare the checksum of each chunk with the one that it had then.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ctmc.errors import StorageError
from ctmc.model import products
from ctmc.model.generator import Generator
from ctmc.model.products import compiled
from ctmc.model.qbd import QBD
from ctmc.model.state_space import Lattice, StateSpace
from ctmc.model.streamed import (
    LEAST_STREAMED,
    LatticeParts,
    StreamedTransitions,
    lattice_begins,
    streamed_lattice,
)
from ctmc.model.transitions import NO_CODES, Slab, Transitions
from ctmc.storage.container import OpenContainer, open_container
from ctmc.storage.models import KINDS, Progress, about_file, restore, restored_lattice
from ctmc.storage.pool import worker_count
from ctmc.storage.streams import check_slab

SLAB_ENTRIES = 1 << 20
"""Transitions per slab, unless one state has more."""
_AHEAD = 2

Made = TypeVar("Made")
Key = tuple[str, int]  # an array, and the number of one of its chunks


def open_model(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Generator | QBD:
    """Open a model whose transitions stay on the disk; every byte of it is verified in one pass.

    Parameters
    ----------
    path : path-like
        A file that `save` wrote.  It must stay where it is as long as the model is used.
    progress : callable, optional
        Called with the number of transitions done and to do.

    Returns
    -------
    Generator or QBD
        `forward`, `backward`, sweeps and checks read the transitions slab by slab; exit rates, labels and rewards are in memory.
        A QBD, and a lattice of up to four million states, are small and loaded.

    Raises
    ------
    StorageError
        Foreign, newer, truncated or damaged file, or arrays that are not a generator.

    Examples
    --------
    >>> import tempfile
    >>> from ctmc.storage.models import save
    >>> queue = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     digest = save(f"{folder}/queue.h5", queue)
    ...     stored = open_model(f"{folder}/queue.h5")
    ...     stored.forward(np.array([0.5, 0.5])).tolist(), stored.representation
    ([0.5, -0.5], 'stored rows')
    """
    file = open_container(path, KINDS)
    rows = {name for name in file.stored if name.startswith("rates/")}
    weights = file.stored.get("rates/weights")
    if file.kind == "qbd" or not rows or (weights is not None and weights.shape[-1] <= LEAST_STREAMED):
        with about_file(path):
            return restore(file.manifest, file.read(file.stored), file.kind, file.content_hash)
    arrays = file.read([name for name in file.stored if name not in rows])

    def transitions(arrays: dict[str, np.ndarray], space: StateSpace) -> Transitions | StreamedTransitions:
        make = _stored_rows if weights is None else _stored_lattice
        return make(_Reader(file), space)

    with about_file(path):
        model = restore(file.manifest, arrays, file.kind, file.content_hash, transitions)
        assert isinstance(model, Generator)
        _verify(model, progress)
    return model


def _verify(model: Generator, progress: Progress | None) -> None:
    """Check the laws of a generator, slab by slab; reading verifies the digests."""
    rows = model.transitions
    assert isinstance(rows, StreamedTransitions)
    sums, done = np.zeros(model.size), 0
    for slab in rows.slabs():
        check_slab(model, slab)
        products.exit_sums(*slab, sums)
        done += int(slab.indptr[-1])
        if progress is not None:
            progress(done, rows.entries)
    model.check_exit_rates(sums)


class _Reader:
    """Reads chunks, verified against their digests the first time and against their checksums afterwards."""

    def __init__(self, file: OpenContainer) -> None:
        self.file = file
        self._chunks = {name: file.chunks(name) for name in file.stored if name.startswith("rates/")}
        self._checksums: dict[Key, bytes] = {}

    def table(self, name: str) -> np.ndarray:
        """Return a small array as a whole."""
        return self.file.read([name])[name]

    def chunk(self, key: Key) -> np.ndarray:
        """Return the elements of a chunk; safe in several threads."""
        name, number = key
        values, self._checksums[key] = self.file.slab(
            name, number, self._chunks[name][number], self._checksums.get(key)
        )
        return values

    def keys(self, name: str, begin: int, end: int, row: int = 0) -> list[Key]:
        """Return the chunks that hold the elements begin .. end - 1 of an array, or of a row of it."""
        array = self.file.stored[name]
        step, per_row = array.chunk[-1], -(-array.shape[-1] // array.chunk[-1])
        return [(name, row * per_row + k) for k in range(begin // step, -(-end // step))]

    def take(self, chunks: dict[Key, Future[np.ndarray]], name: str, begin: int, end: int, row: int = 0) -> np.ndarray:
        """Return the elements begin .. end - 1 from chunks that are being read."""
        step, keys = self.file.stored[name].chunk[-1], self.keys(name, begin, end, row)
        first = begin // step * step
        found = [chunks[key].result() for key in keys]
        whole = found[0] if len(found) == 1 else (np.concatenate(found) if found else np.empty(0, np.int64))
        return whole[begin - first : end - first]

    def ahead(
        self,
        numbers: Iterable[int],
        keys: Callable[[int], list[Key]],
        make: Callable[[int, dict[Key, Future[np.ndarray]]], Made],
    ) -> Iterator[Made]:
        """Yield what is made of each slab, while the chunks of the next ones are read and decoded."""
        reading: dict[Key, Future[np.ndarray]] = {}
        pending: deque[tuple[list[Key], Future[Made]]] = deque()
        with ThreadPoolExecutor(worker_count(), thread_name_prefix="ctmc-storage") as pool:
            try:
                for number in numbers:
                    wanted = keys(number)
                    for key in wanted:
                        if key not in reading:
                            reading[key] = pool.submit(self.chunk, key)
                    # its chunks were submitted before it, so a thread that waits for them keeps none of them waiting
                    pending.append((wanted, pool.submit(make, number, {key: reading[key] for key in wanted})))
                    if len(pending) > _AHEAD:
                        yield pending.popleft()[1].result()
                        needed = {key for kept, _ in pending for key in kept}
                        reading = {key: future for key, future in reading.items() if key in needed}
                while pending:
                    yield pending.popleft()[1].result()
            finally:
                for chunk in reading.values():
                    chunk.cancel()
                for _, made in pending:
                    made.cancel()


class _Part(NamedTuple):
    """An array of a file, and the table of its values where it is coded."""

    name: str
    values: np.ndarray | None


def _part(reader: _Reader, name: str) -> _Part | None:
    stored = reader.file.stored
    if name in stored:
        return _Part(name, None)
    if f"{name}.codes" in stored:
        return _Part(f"{name}.codes", reader.table(f"{name}.values"))
    return None


def _decoded(part: _Part, raw: np.ndarray) -> np.ndarray:
    if part.values is None:
        return raw
    if raw.dtype not in (np.uint8, np.uint16) or (raw.size and int(raw.max()) >= len(part.values)):
        raise StorageError(f"a code of {part.name} has no value")
    return np.asarray(part.values[raw])


def _stored_rows(reader: _Reader, space: StateSpace) -> StreamedTransitions:
    """Return compressed rows of a file, cut into slabs of about equally many transitions."""
    stored, n = reader.file.stored, space.size
    indptr = "rates/indptr" if "rates/indptr" in stored else None
    counts = None if indptr else _part(reader, "rates/counts")
    steps, indices = _part(reader, "rates/steps"), _part(reader, "rates/indices")
    rates = (
        _Part("rates/codes", reader.table("rates/values")) if "rates/codes" in stored else _part(reader, "rates/data")
    )
    ends = indices if indptr else steps
    if (indptr is None and counts is None) or ends is None or rates is None:
        raise StorageError(
            "it does not have the arrays of transitions: counts and steps or indptr and indices, and rates"
        )
    pointers = indptr or counts.name  # type: ignore[union-attr]
    entries = stored[ends.name].shape[0]
    if stored[pointers].shape != (n + (indptr is not None),) or stored[rates.name].shape != (entries,):
        raise StorageError(f"its arrays of transitions do not fit {n:,} states and {entries:,} transitions")
    if (rates.values is None and stored[rates.name].dtype != np.float64) or (
        rates.values is not None and (rates.values.dtype != np.float64 or rates.values.ndim != 1)
    ):
        raise StorageError("its rates are not float64")
    if ends is indices and (indices.values is not None or stored[indices.name].dtype not in (np.int32, np.int64)):
        raise StorageError("its sources are not int32 or int64")
    if ends is steps and (steps.values is None or steps.values.dtype != np.int64 or steps.values.ndim != 1):
        raise StorageError("its steps are not coded whole numbers")
    begins, places = _cut(reader, _counts_of(reader, indptr, counts, n), entries)
    wide = np.uint32 if n <= np.iinfo(np.int32).max else np.uint64

    def keys(number: int) -> list[Key]:
        a, b = int(begins[number]), int(begins[number + 1])
        found = reader.keys(pointers, a, b + (indptr is not None))
        for name in (ends.name, rates.name):
            found += reader.keys(name, int(places[number]), int(places[number + 1]))
        return found

    def make(number: int, chunks: dict[Key, Future[np.ndarray]]) -> Slab:
        a, b = int(begins[number]), int(begins[number + 1])
        first, last = int(places[number]), int(places[number + 1])
        if indptr:
            local = reader.take(chunks, pointers, a, b + 1).astype(np.int64) - first
        else:
            assert counts is not None
            local = np.zeros(b - a + 1, dtype=np.int64)
            np.cumsum(_decoded(counts, reader.take(chunks, pointers, a, b)), out=local[1:])
        if local[0] != 0 or local[-1] != last - first or (np.diff(local) < 0).any():
            raise StorageError("its row pointers do not fit its transitions")
        raw = reader.take(chunks, ends.name, first, last)
        if ends.values is None:
            sources = np.ascontiguousarray(raw).view(f"u{raw.dtype.itemsize}").astype(wide, copy=False)
        else:
            if raw.dtype not in (np.uint8, np.uint16) or (raw.size and int(raw.max()) >= len(ends.values)):
                raise StorageError("a step has no value")
            sources = np.empty(raw.size, dtype=wide)
            _add_steps(a, local.view(np.uint64), raw, ends.values, sources)
        numbers = np.ascontiguousarray(reader.take(chunks, rates.name, first, last))
        if rates.values is None:
            return Slab(a, local.view(np.uint64), sources, NO_CODES, numbers)
        if numbers.dtype not in (np.uint8, np.uint16) or (numbers.size and int(numbers.max()) >= len(rates.values)):
            raise StorageError("a code has no rate")
        return Slab(a, local.view(np.uint64), sources, numbers, rates.values)

    def stream(numbers: Iterable[int]) -> Iterator[Slab]:
        return reader.ahead(numbers, keys, make)

    return StreamedTransitions("stored rows", begins, entries, stream)


def _counts_of(reader: _Reader, indptr: str | None, counts: _Part | None, n: int) -> Iterator[np.ndarray]:
    """Yield the numbers of transitions into each state, chunk by chunk."""
    if indptr is None:
        assert counts is not None
        for key in reader.keys(counts.name, 0, n):
            yield _decoded(counts, reader.chunk(key)).astype(np.int64, copy=False)
        return
    before = 0
    for k, key in enumerate(reader.keys(indptr, 0, n + 1)):
        pointers = reader.chunk(key)
        if k == 0 and pointers[0] != 0:
            raise StorageError("its row pointers do not begin with 0")
        yield np.diff(pointers, prepend=before) if k else np.diff(pointers)
        before = int(pointers[-1])


def _cut(reader: _Reader, counts: Iterator[np.ndarray], entries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first state and the first transition of each slab, and the ends."""
    begins, places = [0], [0]
    states = done = 0
    for part in counts:
        if part.size and (int(part.min()) < 0 or int(part.max()) > entries):
            raise StorageError("its numbers of transitions per state are not whole numbers >= 0 that fit")
        sums = done + np.cumsum(part)
        while sums.size and sums[-1] >= places[-1] + SLAB_ENTRIES:
            k = int(np.searchsorted(sums, places[-1] + SLAB_ENTRIES))
            begins.append(states + k + 1)
            places.append(int(sums[k]))
        states, done = states + len(part), int(sums[-1]) if sums.size else done
    if done != entries:
        raise StorageError("its row pointers do not fit its transitions")
    if begins[-1] < states:
        begins.append(states)
        places.append(done)
    return np.array(begins), np.array(places)


def _stored_lattice(reader: _Reader, space: StateSpace) -> StreamedTransitions:
    """Return the rows of a lattice of a file, written out window by window."""
    small = {name: reader.table(name) for name in ("rates/unit", "rates/departures")}
    array = reader.file.stored["rates/weights"]
    # an empty matrix of weights, so that all but these is checked as in memory
    lattice = restored_lattice({**small, "rates/weights": np.empty((*array.shape[:-1], 0), array.dtype)}, space)
    assert isinstance(space, Lattice)
    lattice.check_parts(space.limits, array.shape, array.dtype, space.size)
    begins = lattice_begins(space.size, int(lattice.sides[-1]))
    servers = range(len(lattice.sides))

    def keys(number: int) -> list[Key]:
        a, b = int(begins[number]), int(begins[number + 1])
        return [key for i in servers for key in reader.keys("rates/weights", a, b, i)]

    def make(number: int, chunks: dict[Key, Future[np.ndarray]]) -> tuple[int, np.ndarray]:
        a, b = int(begins[number]), int(begins[number + 1])
        weights = np.stack([reader.take(chunks, "rates/weights", a, b, i) for i in servers])
        states = np.arange(a, b)
        for i, (row, side, stride) in enumerate(zip(weights, lattice.sides, lattice.strides, strict=True)):
            if row[states // stride % side == 0].any():
                raise StorageError(f"an arrival leads into a state in which coordinate {i} is 0")
        return a, weights

    def windows(numbers: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
        return reader.ahead(numbers, keys, make)

    parts = LatticeParts(array.dtype, lattice.unit, lattice.departures, lattice.sides, lattice.strides, windows)
    return streamed_lattice("stored rows", begins, parts)


@compiled
def _add_steps(begin: int, indptr: Any, codes: Any, steps: Any, sources: Any) -> None:
    """Set each source to its state and the step of its code; what lies outside of the space is found by who verifies."""
    for row in range(np.uint64(indptr.size - 1)):
        j = np.int64(begin) + np.int64(row)
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            sources[k] = j + steps[codes[k]]
