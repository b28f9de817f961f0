"""PETSc's binary matrices: the generator Q, rows by source, diagonal included, as ``MatLoad`` reads it.

A stream of big-endian numbers: class id, rows, columns, entries; the length of each row; all columns, ascending in each row; all
values.  Indices have the width that PETSc was configured with, 32 or 64 bits, and a PETSc reads its own width only.  Every row
has its diagonal, of absorbing states as well: incomplete factorizations want it there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np

from ctmc.errors import ModelError, StorageError
from ctmc.interchange.parts import finite_chain, numbered, shown
from ctmc.interchange.rows import in_two_passes
from ctmc.interchange.scipy_npz import matrix_only
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.transitions import NO_CODES, Slab, rate_at
from ctmc.storage.atomic import failure_reason, replace_file
from ctmc.storage.gate import open_regular, read_at, write_at

MATRIX = 1211216
"""Class id of a matrix; other objects have ids beside it."""
WIDTHS = (32, 64)
_OTHERS = {1211214: "a vector", 1211218: "an index set"}
_BLOCK = 1 << 20
"""Entries that are read at once."""
_STATES = 1 << 16
"""States that are written at once."""


def read(path: str | os.PathLike[str]) -> Generator:
    """Read a generator from a binary matrix of PETSc, with indices of either width.

    What follows the matrix in the file, such as a vector, is not read, and a note says so.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    Generator
        With the states 0 .. n - 1.

    Raises
    ------
    StorageError
        The file cannot be read, or is no sparse matrix of doubles whose columns ascend in each row.
    ModelError
        The matrix is no generator, or does not fit the memory limit.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(f"{folder}/queue.petsc", Generator.from_matrix([[-1, 1], [2, -2]]))
    ...     read(f"{folder}/queue.petsc").uniformization_rate
    2.0
    """
    try:
        descriptor = open_regular(Path(path))
        try:
            return _Matrix(path, descriptor).chain()
        finally:
            os.close(descriptor)
    except ModelError:
        raise
    except (StorageError, OSError) as error:
        raise StorageError(f"{shown(path)} cannot be read as a matrix of PETSc: {failure_reason(error)}.") from None


def write(
    path: str | os.PathLike[str], model: Any, *, overwrite: bool = False, indices: int | None = None
) -> list[str]:
    """Write the generator Q, diagonal included, as a binary matrix of PETSc.

    Transitions are taken slab by slab and put into the file, which is mapped into memory; besides there is one number for each
    state.  So a model that is larger than memory is written, too.

    Parameters
    ----------
    path : path-like
    model : Generator
    overwrite : bool
        Whether an existing file may be replaced.
    indices : int, optional
        32 or 64, the bits of an index in the PETSc that shall read the file; by default 32 where they suffice.

    Returns
    -------
    list of str
        A sentence for each thing that is not carried.

    Raises
    ------
    ModelError
        The model is not a finite chain, or too large for the indices asked for.
    StorageError
        The file exists, or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(f"{folder}/queue.petsc", Generator.from_matrix([[-1, 1], [2, -2]]))
    ...     os.path.getsize(f"{folder}/queue.petsc")  # 4 + 2 + 4 indices of 4 bytes, 4 values of 8 bytes
    72
    """
    chain = finite_chain(model, "a matrix of PETSc")
    entries = chain.entries + chain.size
    fitting = 32 if entries <= np.iinfo(np.int32).max else 64
    if indices is None:
        indices = fitting
    elif indices not in WIDTHS:
        raise StorageError(f"indices is {indices!r}; allowed are 32 and 64.")
    elif indices < fitting:
        raise ModelError(f"indices is 32, which counts up to 2,147,483,647; with {entries:,} entries allowed is 64.")
    require_memory("writing", 8 * chain.size + (32 << 20), states=chain.size, entries=chain.entries)
    replace_file(path, lambda temporary: _write(temporary, chain, entries, indices), overwrite=overwrite)
    lost = matrix_only(chain)
    if fitting == 64:
        lost.append(
            "The entries are too many for indices of 32 bits: a PETSc that is configured with these refuses the file."
        )
    return lost


class _Matrix:
    """A file that is open: its sizes, which are looked at before anything is allocated, and its entries."""

    def __init__(self, path: str | os.PathLike[str], descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        size = os.fstat(descriptor).st_size
        head = read_at(descriptor, 0, 32)
        self.index = np.dtype(">i8" if head[:4] == bytes(4) else ">i4")
        width = self.index.itemsize
        kind, rows, columns, self.entries = np.frombuffer(head.ljust(32, b"\0"), self.index)[:4].tolist()
        if len(head) < 4 * width or kind != MATRIX:
            what = f", {_OTHERS[kind]}" if kind in _OTHERS else ""
            raise StorageError(f"it has {size:,} bytes and the class id {kind}{what}; allowed is {MATRIX}, a matrix")
        if rows < 1 or rows != columns:
            raise ModelError(
                f"{shown(path)} holds a matrix of {rows:,} x {columns:,}; allowed is a square, non-empty one."
            )
        if self.entries < 0:
            dense = ", a dense matrix" if self.entries == -1 else ""
            raise StorageError(f"the number of entries is {self.entries:,}{dense}; allowed is a sparse one")
        self.size = rows
        self.columns_at = (4 + rows) * width
        self.values_at = self.columns_at + self.entries * width
        self.more = size - self.values_at - 8 * self.entries
        if self.more < 0:
            raise StorageError(
                f"{rows:,} rows and {self.entries:,} doubles with indices of {8 * width} bits are announced, which take "
                f"{size - self.more:,} bytes, but the file has {size:,}"
            )
        require_memory(f"the model in {shown(path)}", 64 * rows + 12 * self.entries, states=rows, entries=self.entries)

    def chain(self) -> Generator:
        """Return the chain, after looking at every number."""
        lengths = self._numbers(4 * self.index.itemsize, self.size, self.index)
        bad = (lengths < 0) | (lengths > self.size)
        if bad.any():
            i = int(np.argmax(bad))
            raise StorageError(f"row {i} has {lengths[i]:,} entries; allowed are 0 to {self.size:,}")
        self.indptr = np.zeros(self.size + 1, dtype=np.int64)
        np.cumsum(lengths, out=self.indptr[1:])
        if self.indptr[-1] != self.entries:
            raise StorageError(
                f"the rows have {self.indptr[-1]:,} entries together, but {self.entries:,} are announced"
            )
        self.diagonal = np.zeros(self.size)
        moves = in_two_passes(self.blocks, self.size)
        notes = (
            () if not self.more else (f"The file goes on for {self.more:,} bytes after the matrix; they are not read.",)
        )
        chain = Generator(numbered(self.size), moves.rows, notes=notes)
        wrong = ~(np.abs(self.diagonal + chain.exit_rates) <= 1e-9 * chain.exit_rates)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise ModelError(
                f"row {i} of {shown(self.path)} sums to {self.diagonal[i] + chain.exit_rates[i]:.6g}, its diagonal being "
                f"{self.diagonal[i]:.6g}; rows of a generator sum to zero (those of its transpose need not)."
            )
        return chain

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield sources, targets and rates of the transitions, and put the diagonal in its place."""
        before = (-1, -1)
        for begin in range(0, self.entries, _BLOCK):
            end = min(begin + _BLOCK, self.entries)
            columns = self._numbers(self.columns_at + begin * self.index.itemsize, end - begin, self.index)
            values = self._numbers(self.values_at + begin * 8, end - begin, np.dtype(">f8"))
            first, last = np.searchsorted(self.indptr, [begin, end - 1], side="right") - 1
            counts = np.diff(np.clip(self.indptr[first : last + 2], begin, end))
            rows = np.repeat(np.arange(first, last + 1), counts)
            self._check(rows, columns, values, before)
            before = int(rows[-1]), int(columns[-1])
            own = rows == columns
            self.diagonal[rows[own]] = values[own]
            kept = ~own & (values > 0)
            yield rows[kept], columns[kept], values[kept]

    def _check(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, before: tuple[int, int]) -> None:
        bad = (columns < 0) | (columns >= self.size)
        if bad.any():
            k = int(np.argmax(bad))
            raise StorageError(f"row {rows[k]} has an entry in column {columns[k]}; allowed is 0 to {self.size - 1}")
        previous = np.concatenate([[before[1]], columns[:-1]])
        bad = (np.diff(rows, prepend=before[0]) == 0) & (columns <= previous)
        if bad.any():
            k = int(np.argmax(bad))
            raise StorageError(
                f"row {rows[k]} has column {columns[k]} after column {previous[k]}; allowed are ascending columns, each once"
            )
        bad = ~np.isfinite(values) | ((values < 0) & (rows != columns))
        if bad.any():
            k = int(np.argmax(bad))
            raise ModelError(
                f"{shown(self.path)} has {float(values[k])!r} in row {rows[k]}, column {columns[k]}; allowed are finite numbers, "
                "not negative off the diagonal."
            )

    def _numbers(self, address: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
        data = read_at(self.descriptor, address, count * dtype.itemsize)
        if len(data) < count * dtype.itemsize:
            raise StorageError("it has become shorter while it was read")
        return np.frombuffer(data, dtype).astype(dtype.newbyteorder("=") if dtype.kind == "f" else np.int64)


def _write(path: Path, chain: Generator, entries: int, indices: int) -> None:
    """Write an existing, empty file: first all of its bytes, so that a full disk is told, then each number in its place."""
    index = np.dtype(f">i{indices // 8}")
    size = (4 + chain.size + entries) * index.itemsize + 8 * entries
    nothing = memoryview(bytes(1 << 22))
    with open(path, "r+b") as file:
        for begin in range(0, size, len(nothing)):
            write_at(file.fileno(), begin, nothing[: min(len(nothing), size - begin)])
    words = np.memmap(path, dtype=np.uint32, mode="r+")
    _fill(words, chain, entries, index)
    words.flush()


def _fill(words: np.ndarray, chain: Generator, entries: int, index: np.dtype[Any]) -> None:
    """Put a chain into the words, shape (bytes / 4,), of a file: all addresses are multiples of four bytes."""
    n, width = chain.size, index.itemsize // 4
    following = np.zeros(n, dtype=np.int64)
    for slab in chain.row_slabs():
        entries_of = slice(int(slab.indptr[0]), int(slab.indptr[-1]))  # there may be room behind them
        _count(slab.sources[entries_of], following)
    following += 1  # the diagonal
    words[: 4 * width].view(index)[:] = MATRIX, n, n, entries
    words[4 * width : (4 + n) * width].view(index)[:] = following
    total = 0
    for begin in range(0, n, _STATES):  # from lengths of rows to where their next entry stands
        part = following[begin : begin + _STATES]
        ends = total + np.cumsum(part)
        part[:] = ends - part
        total = int(ends[-1])
    columns = words[(4 + n) * width : (4 + n + entries) * width].reshape(entries, width)
    values = words[(4 + n + entries) * width :].reshape(entries, 2)
    for piece in _pieces(chain):
        states = slice(piece.begin, piece.begin + len(piece.indptr) - 1)
        numbers = np.arange(states.start, states.stop).astype(index)
        diagonal = _swapped(0.0 - chain.exit_rates[states])  # without negative zeros
        _put(*piece, numbers.view(np.uint32).reshape(-1, width), diagonal, following, columns, values)


def _pieces(chain: Generator) -> Iterator[Slab]:
    """Yield the transitions in pieces of some states, with rates in the words of the file, shape (rates, 2)."""
    for slab in chain.row_slabs():
        table = None if slab.codes is NO_CODES else _swapped(slab.rates)
        for first in range(0, len(slab.indptr) - 1, _STATES):
            indptr = slab.indptr[first : first + _STATES + 1]
            part = slice(int(indptr[0]), int(indptr[-1]))
            yield Slab(
                int(slab.begin) + first,
                indptr - indptr[0],
                slab.sources[part],
                NO_CODES if table is None else slab.codes[part],
                _swapped(slab.rates[part]) if table is None else table,
            )


def _swapped(values: np.ndarray) -> np.ndarray:
    return values.astype(">f8").view(np.uint32).reshape(-1, 2)


@numba.njit(cache=True, nogil=True)
def _count(sources: Any, lengths: Any) -> None:
    for k in range(len(sources)):
        lengths[sources[k]] += 1


@numba.njit(cache=True, nogil=True)
def _put(  # type: ignore[no-untyped-def]  # compiled for what it is given
    begin, indptr, sources, codes, rates, numbers, diagonal, following, columns, values
):
    """Put the entries of some columns, of which words are given, behind those that their rows have already."""
    for j in range(len(indptr) - 1):
        at = following[begin + j]
        following[begin + j] = at + 1
        columns[at] = numbers[j]
        values[at] = diagonal[j]
        for k in range(indptr[j], indptr[j + 1]):
            at = following[sources[k]]
            following[sources[k]] = at + 1
            columns[at] = numbers[j]
            values[at] = rate_at(codes, rates, k)
