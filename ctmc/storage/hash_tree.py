"""The content hash: a tree of SHA-256 digests over slabs, arrays and the manifest.

The leaves are the digests of the slabs of each array: consecutive elements in C order, as many as one chunk of the file
holds (`StoredArray.chunk`), as little-endian bytes.  Above them stands for each array the digest of
``[name, dtype, shape]`` as canonical JSON, a newline, and its leaves; at the top the digest of the canonical JSON of
``{"arrays": {name: digest}, "kind": ..., "manifest": ..., "schema_version": ...}``, where the manifest goes without its
part "about".  So the top can be checked without the arrays, and each slab without the others.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctmc.errors import StorageError
from ctmc.storage.gate import DTYPES, MAX_DEPTH, MAX_DIMENSIONS, RESERVED, StoredArray, shown
from ctmc.storage.manifest import canonical_json
from ctmc.storage.pool import in_order

SCHEMA_VERSION = 1
DIGEST_BYTES = 32


class Piece(NamedTuple):
    """A slab of an array: its name, the slab's number and first element, and its values, flat and little-endian."""

    name: str
    number: int
    offset: tuple[int, ...]
    values: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Stream:
    """Arrays that come piece by piece, so that they are never all in memory.

    Attributes
    ----------
    arrays : mapping of str to StoredArray
    parts : callable
        Makes an iterator over (name, row, values): the next elements of an array, or of one row of a matrix whose rows are
        longer than a chunk.
    """

    arrays: Mapping[str, StoredArray] = field(default_factory=dict)
    parts: Callable[[], Iterable[tuple[str, int, NDArray[Any]]]] = tuple


def checked_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays, sorted by name, after checking names, types and dimensions."""
    tables = {name: np.asarray(array) for name, array in sorted(arrays.items())}
    taken = {*tables, *RESERVED}
    for name, table in tables.items():
        parts = name.split("/")
        if (
            not name.isprintable()
            or any(part in ("", ".", "..") for part in parts)
            or len(parts) > MAX_DEPTH
            or name in RESERVED
            or any("/".join(parts[:depth]) in taken for depth in range(1, len(parts)))
        ):
            raise StorageError(
                f"an array has the name {shown(name)}; allowed are printable parts between slashes, "
                f"at most {MAX_DEPTH}, that name neither another array nor {' or '.join(RESERVED)}"
            )
        if table.dtype.newbyteorder("<") not in DTYPES or not 1 <= table.ndim <= MAX_DIMENSIONS:
            raise StorageError(
                f"the array {shown(name)} has the type {table.dtype} and {table.ndim} dimensions; "
                f"allowed are {', '.join(dtype.name for dtype in DTYPES)} and 1 to {MAX_DIMENSIONS} dimensions"
            )
    return tables


def described(table: NDArray[Any]) -> StoredArray:
    """Return shape and type of an array as it is stored."""
    return StoredArray(table.shape, table.dtype.newbyteorder("<"))


def checked_stream(stream: Stream | None, tables: Mapping[str, NDArray[Any]]) -> Stream:
    """Return the stream, or one of nothing, after checking that it can be cut into the slabs of its arrays."""
    stream = stream or Stream()
    for name, array in stream.arrays.items():
        if name in tables or not (len(array.shape) == 1 or (len(array.shape) == 2 and array.chunk[0] == 1)):
            raise StorageError(f"the array {shown(name)} cannot come in pieces, or comes twice")
    return stream


def pieces(tables: Mapping[str, NDArray[Any]], stream: Stream) -> Iterator[Piece]:
    """Yield all slabs of all arrays; those of one row of an array in order."""
    for name, table in tables.items():
        array = described(table)
        for number, offset in enumerate(array.offsets()):
            # copies only where the elements are not contiguous and little-endian
            values = np.ascontiguousarray(table[array.slab(offset)], dtype=array.dtype).reshape(-1)
            yield Piece(name, number, offset, values)
    yield from _cut(stream)


def _cut(stream: Stream) -> Iterator[Piece]:
    """Put the parts of each array together to its slabs."""
    waiting: dict[tuple[str, int], list[NDArray[Any]]] = {}
    placed: dict[tuple[str, int], int] = {}
    for name, row, values in stream.parts():
        array = stream.arrays[name]
        if values.dtype != array.dtype or values.ndim != 1:
            raise StorageError(f"a part of the array {shown(name)} has the type {values.dtype}, not {array.dtype}")
        parts = waiting.setdefault((name, row), [])
        parts.append(values)
        length, step = array.shape[-1], array.chunk[-1]
        begin = placed.get((name, row), 0)
        here = sum(map(len, parts))
        while begin < length and here >= min(step, length - begin):
            joined = np.concatenate(parts) if len(parts) > 1 else parts[0]
            size = min(step, length - begin)
            offset = (begin,) if len(array.shape) == 1 else (row, begin)
            yield Piece(name, row * -(-length // step) + begin // step, offset, np.ascontiguousarray(joined[:size]))
            parts[:] = [joined[size:]]
            begin, here = begin + size, here - size
        placed[name, row] = begin
        if begin == length and here:
            raise StorageError(f"the array {shown(name)} has more than {length:,} elements")
    for name, array in stream.arrays.items():
        for row in range(1 if len(array.shape) == 1 else array.shape[0]):
            if placed.get((name, row), 0) != array.shape[-1]:
                raise StorageError(f"the array {shown(name)} ends before its {array.shape[-1]:,} elements")


def slab_digest(values: NDArray[Any]) -> bytes:
    """Return a leaf of the tree."""
    return hashlib.sha256(values.data).digest()


def top_digest(
    kind: str,
    manifest: Mapping[str, object],
    arrays: Mapping[str, StoredArray],
    leaves: Mapping[str, bytes | bytearray],
) -> str:
    """Return the content hash from the manifest and the leaves of each array."""
    digests = {}
    for name, array in arrays.items():
        head = canonical_json([name, array.dtype.str, array.shape])
        digests[name] = hashlib.sha256(head + b"\n" + leaves[name]).hexdigest()
    hashed = {key: value for key, value in manifest.items() if key != "about"}
    top = {"arrays": digests, "kind": kind, "manifest": hashed, "schema_version": SCHEMA_VERSION}
    return hashlib.sha256(canonical_json(top)).hexdigest()


def tree_digest(
    kind: str, manifest: Mapping[str, object], tables: Mapping[str, NDArray[Any]], stream: Stream | None = None
) -> str:
    """Return the content hash of arrays."""
    stream = stream or Stream()
    arrays = {name: described(table) for name, table in tables.items()} | dict(stream.arrays)
    leaves = {name: bytearray(DIGEST_BYTES * array.chunk_count) for name, array in arrays.items()}

    def leaf(piece: Piece) -> tuple[str, int, bytes]:
        return piece.name, piece.number, slab_digest(piece.values)

    with contextlib.closing(in_order(leaf, pieces(tables, stream))) as results:
        for name, number, digest in results:
            leaves[name][DIGEST_BYTES * number : DIGEST_BYTES * (number + 1)] = digest
    return top_digest(kind, manifest, arrays, leaves)
