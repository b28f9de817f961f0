"""Generators whose transitions stay on the disk, for models larger than memory.

The chunks of the large arrays are read ahead, inflated and decoded by a pool of threads, while the slab before is at work.
Everything is verified once, in the pass that `open_model` makes: digests, the laws of a generator, exit rates.  Later passes
compare the checksum of each chunk with the one that it had then.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ctmc.errors import StorageError, printable
from ctmc.model import products
from ctmc.model.generator import Generator
from ctmc.model.laws import check_exit_rates
from ctmc.model.memory import format_size, memory_limit
from ctmc.model.parameters import whole_number
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
from ctmc.storage import variants
from ctmc.storage.container import Container, OpenContainer, open_container
from ctmc.storage.gate import StoredArray
from ctmc.storage.model_parts import STEPS, restored_lattice
from ctmc.storage.models import KINDS, MODEL_KINDS, Progress, about_file, describe, load, restore
from ctmc.storage.pool import worker_count
from ctmc.storage.sources import BLOCK, decode
from ctmc.storage.streams import check_slab

SLAB_ENTRIES = 1 << 20
"""Transitions per slab, unless one state has more."""
_AHEAD = 2
_VECTORS = 56
"""Bytes a state that a solve takes, certificate included."""
_WORKING = 96 * 1024**2
"""Bytes of the slabs that are at work."""

Made = TypeVar("Made")
Key = tuple[str, int]  # an array, and the number of one of its chunks
Chunks = dict[Key, Future[np.ndarray]]


def open_model(path: str | os.PathLike[str], *, keep: int = 0, progress: Progress | None = None) -> Generator | QBD:
    """Open a model whose transitions stay on the disk; every byte of it is verified in one pass.

    Parameters
    ----------
    path : path-like
        A file that `save` wrote.  It must stay where it is as long as the model is used.
    keep : int
        Bytes of inflated chunks that may stay in memory, two to three an entry in all: passes then only decode those.
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
    whole_number("keep", keep, 0)
    file = open_container(path, KINDS)
    rows = {name for name in file.stored if name.startswith("rates/")}
    weights = file.stored.get("rates/weights")
    if file.kind == "qbd" or not rows or (weights is not None and weights.shape[-1] <= LEAST_STREAMED):
        with about_file(path):
            return restore(file.manifest, file.read(file.stored), file.kind, file.content_hash)
    arrays = file.read([name for name in file.stored if name not in rows])

    def transitions(arrays: dict[str, np.ndarray], space: StateSpace) -> Transitions | StreamedTransitions:
        return stored_transitions(file, space, keep)

    with about_file(path):
        model = restore(file.manifest, arrays, file.kind, file.content_hash, transitions)
        assert isinstance(model, Generator)
        _verify(model, progress)
    return model


def stored_transitions(file: OpenContainer, space: StateSpace, keep: int = 0) -> StreamedTransitions:
    """Return the transitions of a file, slab by slab; `keep` as in `open_model`."""
    make = _stored_lattice if "rates/weights" in file.stored else _stored_rows
    return make(_Reader(file, keep), space)


def load_fitting(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Generator | QBD:
    """Load a model if it fits the memory limit together with the vectors of a solve, else open it; a note then says so.

    Parameters
    ----------
    path : path-like
    progress : callable, optional
        Called with what is done and what is to do, in bytes or transitions.
    """
    model = load_or_open(path, progress)
    if isinstance(model.transitions if isinstance(model, Generator) else None, StreamedTransitions):
        needed = memory_to_load(open_container(variants.whole_file(path), KINDS).stored)
        note = (
            f"Streamed from its file: in memory it would need {format_size(needed)} with the vectors of a solve, and the memory "
            f"limit is {format_size(memory_limit())}."
        )
        model = model.replace(notes=(*model.notes, note))
    return model


def load_or_open(path: str | os.PathLike[str], progress: Progress | None = None) -> Generator | QBD:
    """Do the same without a note, so that the model has the content of its file."""
    file = open_container(path, MODEL_KINDS)
    if file.kind == variants.KIND:
        container = Container(file.path, file.kind, file.manifest, file.read(file.stored), file.content_hash)
        model: Generator | QBD = variants.restored_variant(container, _parent, describe, progress)
        return model
    if memory_to_load(file.stored) <= memory_limit():
        return load(path, progress=progress)
    left = memory_limit() - _VECTORS * _states(file.stored) - _WORKING
    return open_model(path, keep=max(0, left), progress=progress)


def _parent(path: Path, progress: Progress | None) -> Generator | QBD:
    open_container(path, KINDS)  # a variant has no variants
    return load_or_open(path, progress)


def loaded_bytes(stored: Mapping[str, StoredArray]) -> int:
    """Return the bytes of a model's arrays once loaded, in the form in which the file holds them."""
    rates = next((stored[name] for name in ("rates/codes", "rates/data", "rates/data.codes") if name in stored), None)
    states = _states(stored)
    if rates is None or not states:
        return sum(array.size for array in stored.values())
    per_entry = 4 if states <= np.iinfo(np.int32).max else 8
    per_entry += rates.dtype.itemsize if "rates/codes" in stored else 8
    return int(per_entry * rates.shape[0] + 16 * states)


def memory_to_load(stored: Mapping[str, StoredArray]) -> int:
    """Return the bytes that a model takes in memory, loaded and solved: twice its arrays, and 56 a state."""
    states = _states(stored)
    # most methods copy the rows, sorted by color
    return 2 * loaded_bytes(stored) + _VECTORS * states if states else loaded_bytes(stored)


def _states(stored: Mapping[str, StoredArray]) -> int:
    """Return the number of states of a generator, 0 of another model."""
    exits = stored.get("exit_rates") or stored.get("exit_rates.codes")
    return 0 if exits is None else exits.shape[0]


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
            progress(done, model.entries)
    check_exit_rates(model, sums)


class _Reader:
    """Reads chunks, verified against their digests the first time and against their checksums afterwards."""

    def __init__(self, file: OpenContainer, keep: int) -> None:
        self.file = file
        self._keep, self._kept = keep, dict[Key, np.ndarray]()
        self.held = min(keep, sum(array.size for name, array in file.stored.items() if name.startswith("rates/")))
        self._chunks = {name: file.chunks(name) for name in file.stored if name.startswith("rates/")}
        self._checksums: dict[Key, bytes] = {}

    def table(self, name: str) -> np.ndarray:
        """Return a small array as a whole."""
        return self.file.read([name])[name]

    def chunk(self, key: Key) -> np.ndarray:
        """Return the elements of a chunk; safe in several threads."""
        name, number = key
        if key in self._kept:
            return self._kept[key]
        values, self._checksums[key] = self.file.slab(
            name, number, self._chunks[name][number], self._checksums.get(key)
        )
        if values.nbytes <= self._keep:  # two threads at once may keep one chunk too much
            self._keep -= values.nbytes
            self._kept[key] = values
        return values

    def keys(self, name: str, begin: int, end: int, row: int = 0) -> list[Key]:
        """Return the chunks that hold the elements begin .. end - 1 of an array, or of a row of it."""
        array = self.file.stored[name]
        step, per_row = array.chunk[-1], -(-array.shape[-1] // array.chunk[-1])
        return [(name, row * per_row + k) for k in range(begin // step, -(-end // step))]

    def take(self, chunks: Chunks, name: str, begin: int, end: int, row: int = 0) -> np.ndarray:
        """Return the elements begin .. end - 1 from chunks that are being read."""
        array = self.file.stored[name]
        step, first = array.chunk[-1], begin // array.chunk[-1]
        parts = []
        for k, key in enumerate(self.keys(name, begin, end, row), first):
            parts.append(chunks[key].result()[max(begin - k * step, 0) : end - k * step])
        return parts[0] if len(parts) == 1 else (np.concatenate(parts) if parts else np.empty(0, array.dtype))

    def ahead(
        self,
        numbers: Iterable[int],
        keys: Callable[[int], list[Key]],
        make: Callable[[int, Chunks], Made],
    ) -> Iterator[Made]:
        """Yield what is made of each slab, while the chunks of the next ones are read and decoded."""
        reading: Chunks = {}
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

    def decoded(self, raw: np.ndarray) -> np.ndarray:
        """Return what the elements stand for; raise `StorageError` if a code has no value."""
        if self.values is None:
            return raw
        if raw.size and int(raw.max()) >= len(self.values):
            raise StorageError(f"a code of {self.name} is {int(raw.max())}, but there are {len(self.values)} values")
        return np.asarray(self.values[raw])


def _part(reader: _Reader, name: str) -> _Part | None:
    stored = reader.file.stored
    if name in stored:
        return _Part(name, None)
    if f"{name}.codes" in stored and f"{name}.values" in stored:
        return _Part(f"{name}.codes", reader.table(f"{name}.values"))
    return None


def _stored_rows(reader: _Reader, space: StateSpace) -> StreamedTransitions:
    """Return compressed rows of a file, cut into slabs of about equally many transitions."""
    rows = _Rows(reader, space.size)
    begins, places = _cut(rows.counts(), rows.entries)

    def keys(number: int) -> list[Key]:
        return rows.keys(int(begins[number]), int(begins[number + 1]), int(places[number]), int(places[number + 1]))

    def make(number: int, chunks: Chunks) -> Slab:
        a, b = int(begins[number]), int(begins[number + 1])
        return rows.slab(chunks, a, b, int(places[number]), int(places[number + 1]))

    def stream(numbers: Iterable[int]) -> Iterator[Slab]:
        return reader.ahead(numbers, keys, make)

    def each(work: Callable[[Slab], None]) -> None:
        for _ in reader.ahead(range(len(begins) - 1), keys, lambda number, chunks: work(make(number, chunks))):
            pass

    return StreamedTransitions("stored rows", begins, lambda: rows.entries, stream, each=each, nbytes=reader.held)


class _Rows:
    """The arrays of compressed rows in a file: where they stand, and how a slab is made of them."""

    def __init__(self, reader: _Reader, n: int) -> None:
        stored = reader.file.stored
        self.reader, self.n = reader, n
        self.wide = np.uint32 if n <= np.iinfo(np.int32).max else np.uint64
        self.plain = "rates/indices" in stored
        pointers = _part(reader, "rates/indptr" if self.plain else "rates/counts")
        rates = _part(reader, "rates/data")
        if "rates/codes" in stored:
            rates = _Part("rates/codes", reader.table("rates/values"))
        self.ends = "rates/indices" if self.plain else "rates/steps.codes"
        wanted = [] if self.plain else [f"rates/steps.{part}" for part in STEPS]
        missing = next((name for name in wanted if name not in stored), None)
        if missing is not None or pointers is None or rates is None:
            also = "rates/data" if pointers else "rates/indptr" if self.plain else "rates/counts"
            raise StorageError(f"it has no array {missing or also!r}")
        self.pointers, self.rates = pointers, rates
        shape = stored[self.ends].shape
        self.entries = shape[0]
        fits = stored[pointers.name].shape == (n + self.plain,) and stored[rates.name].shape == shape
        if len(shape) != 1 or not fits:
            raise StorageError(f"its arrays of transitions do not fit {n:,} states and {self.entries:,} transitions")
        kinds = {self.ends: ("<i4", "<i8") if self.plain else ("|u1",)}
        kinds[pointers.name] = ("<i8",) if pointers.values is None else ("|u1", "<u2")
        kinds[rates.name] = ("<f8",) if rates.values is None else ("|u1", "<u2")
        for name, allowed in kinds.items():
            if stored[name].dtype.str not in allowed:
                raise StorageError(f"its array {name} has the type {stored[name].dtype}")
        for part, kind in ((pointers, np.int64), (rates, np.float64)):
            if part.values is not None and (part.values.dtype != kind or part.values.ndim != 1):
                raise StorageError(f"the values of {part.name} are no vector of {np.dtype(kind)}")
        if not self.plain:
            self.steps, self.starts = reader.table("rates/steps.values"), reader.table("rates/steps.starts")
            others = stored["rates/steps.others"]
            shape = (-(-n // BLOCK) + 1,)
            if self.starts.shape != shape or self.starts.dtype != np.int64 or (np.diff(self.starts) < 0).any():
                raise StorageError("the starts of its other steps do not ascend, one for each block of states")
            if others.dtype != np.int64 or (self.starts[0], *others.shape) != (0, self.starts[-1]):
                raise StorageError("its other steps do not fit their starts")
        coded = [part.name.removesuffix("codes") + "values" for part in (pointers, rates) if part.values is not None]
        _refuse_others(stored, {self.ends, pointers.name, rates.name, *coded, *wanted})

    def counts(self) -> Iterator[np.ndarray]:
        """Yield the numbers of transitions into each state, a multiple of `BLOCK` of states at a time but for the last."""
        left = np.empty(0, dtype=np.int64)
        before: int | None = None
        for key in self.reader.keys(self.pointers.name, 0, self.n + self.plain):
            part = self.pointers.decoded(self.reader.chunk(key)).astype(np.int64, copy=False)
            if self.plain:
                if before is None and part[0] != 0:
                    raise StorageError("its row pointers do not begin with 0")
                steps = np.diff(part) if before is None else np.diff(part, prepend=before)
                before, part = int(part[-1]), steps
            left = np.concatenate([left, part])
            whole = len(left) // BLOCK * BLOCK
            yield left[:whole]
            left = left[whole:]
        yield left

    def keys(self, a: int, b: int, first: int, last: int) -> list[Key]:
        """Return the chunks that the rows a .. b - 1, with the entries first .. last - 1, are in."""
        found = self.reader.keys(self.pointers.name, a, b + self.plain)
        found += self.reader.keys(self.ends, first, last) + self.reader.keys(self.rates.name, first, last)
        if not self.plain:
            found += self.reader.keys("rates/steps.others", *self._others(a, b))
        return found

    def _others(self, a: int, b: int) -> tuple[int, int]:
        return int(self.starts[a // BLOCK]), int(self.starts[-(-b // BLOCK)])

    def slab(self, chunks: Chunks, a: int, b: int, first: int, last: int) -> Slab:
        """Return the rows a .. b - 1, a being a multiple of `BLOCK`, from chunks that are being read."""
        take = self.reader.take
        # pointers and codes were looked at when the rows were cut, and each pass compares the checksums of their chunks
        if self.plain:
            local = take(chunks, self.pointers.name, a, b + 1) - first
        else:
            local = np.empty(b - a + 1, dtype=np.int64)
            raw = take(chunks, self.pointers.name, a, b)
            if self.pointers.values is None:
                _sum_up(raw, local)
            else:
                _sum_up_coded(raw, self.pointers.values, local)
        indptr = local.view(np.uint64)
        raw = np.ascontiguousarray(take(chunks, self.ends, first, last))
        if self.plain:
            sources = raw.view(f"u{raw.dtype.itemsize}")  # as wide as stored, so that no wrong bit is cut off
        else:
            sources = np.empty(raw.size, dtype=self.wide)
            others = np.ascontiguousarray(take(chunks, "rates/steps.others", *self._others(a, b)))
            starts = self.starts[a // BLOCK : -(-b // BLOCK) + 1]
            decode(a, indptr, raw, self.steps, others, starts - starts[0], sources, states=self.n, parallel=False)
        numbers = np.ascontiguousarray(take(chunks, self.rates.name, first, last))
        if self.rates.values is None:
            return Slab(a, indptr, sources, NO_CODES, numbers)
        return Slab(a, indptr, sources, numbers, self.rates.values)


def _refuse_others(stored: Mapping[str, StoredArray], used: set[str]) -> None:
    """Raise `StorageError` if there are arrays of transitions that are not read: loading a model refuses them, too."""
    other = next((name for name in stored if name.startswith("rates/") and name not in used), None)
    if other is not None:
        raise StorageError(f"it has the array {printable(other)!r}, which no model of this kind has")


def _cut(counts: Iterator[np.ndarray], entries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first state and the first transition of each slab of whole blocks, and the ends."""
    begins, places = [0], [0]
    states = done = 0
    for part in counts:
        if part.size and (int(part.min()) < 0 or int(part.max()) > entries):
            raise StorageError("its numbers of transitions per state are not whole numbers >= 0 that fit")
        sums = done + np.cumsum(part)
        for k in range(BLOCK - 1, len(part), BLOCK):
            if sums[k] >= places[-1] + SLAB_ENTRIES:
                begins.append(states + k + 1)
                places.append(int(sums[k]))
        states, done = states + len(part), int(sums[-1]) if sums.size else done
        if done > entries:
            break
    if done != entries:
        raise StorageError("its row pointers do not fit its transitions")
    if begins[-1] < states:
        begins.append(states)
        places.append(done)
    return np.array(begins), np.array(places)


def _stored_lattice(reader: _Reader, space: StateSpace) -> StreamedTransitions:
    """Return the rows of a lattice of a file, written out window by window."""
    small = {name: reader.table(name) for name in ("rates/unit", "rates/departures")}
    _refuse_others(reader.file.stored, {*small, "rates/weights"})
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

    def make(number: int, chunks: Chunks) -> tuple[int, np.ndarray]:
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
    return replace(streamed_lattice("stored rows", begins, parts), nbytes=reader.held)


@compiled
def _sum_up(counts: Any, sums: Any) -> None:
    """Set sums to the running sums of counts."""
    total = 0
    sums[0] = 0
    for k in range(np.uint64(counts.size)):
        total += counts[k]
        sums[k + np.uint64(1)] = total


@compiled
def _sum_up_coded(codes: Any, values: Any, sums: Any) -> None:
    """Do the same for counts that are coded."""
    total = 0
    sums[0] = 0
    for k in range(np.uint64(codes.size)):
        total += values[codes[k]]
        sums[k + np.uint64(1)] = total
