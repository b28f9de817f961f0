"""A file that proves its own content: a JSON manifest and named arrays in HDF5, under one hash.

Layout, schema version 1: root attributes `format` ("ctmc"), `kind`, `schema_version`, `content_hash` (see
`ctmc.storage.hash_tree`) and `manifest_digest`; the data sets `manifest` (canonical JSON as bytes), `digests` (the
leaves of the hash tree, ordered by the arrays' names) and one for each array, at its name.  The content hash covers
the manifest but for its part "about" (versions, dates); `manifest_digest`, SHA-256 as well, covers all of it, so that
damage to "about" is noticed too.

Every data set is compressed and checksummed, and any HDF5 program can read it.  No text has variable length: HDF5 does
not notice damage to such text, and can loop on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctmc.errors import StorageError
from ctmc.model.parameters import check_function, check_truth
from ctmc.storage.atomic import checked_path, failure_reason, replace_file
from ctmc.storage.gate import RESERVED, Chunk, ChunkReader, StoredArray, created, opened, shown
from ctmc.storage.hash_tree import (
    DIGEST_BYTES,
    SCHEMA_VERSION,
    Piece,
    Stream,
    checked_arrays,
    checked_stream,
    described,
    pieces,
    slab_digest,
    top_digest,
    tree_digest,
)
from ctmc.storage.manifest import encode_manifest
from ctmc.storage.pool import in_order
from ctmc.storage.verified import (
    FAILURES,
    Progress,
    header,
    one_sentence,
    read_slabs,
    unpack_slab,
    verified_top,
    verify_slab,
)

__all__ = [
    "SCHEMA_VERSION",
    "Container",
    "OpenContainer",
    "content_hash",
    "open_container",
    "read_container",
    "write_container",
]


@dataclass(frozen=True, eq=False)
class Container:
    """What a file holds.

    Attributes
    ----------
    path : Path
    kind : str
        What the file is, such as "generator".
    manifest : dict
    arrays : dict of str to ndarray
        Read-only.
    content_hash : str
        64 hexadecimal digits.
    """

    path: Path
    kind: str
    manifest: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    content_hash: str


def content_hash(
    kind: str, manifest: Mapping[str, object], arrays: Mapping[str, NDArray[Any]], stream: Stream | None = None
) -> str:
    """Return the hash that `write_container` would return, without writing.

    Parameters
    ----------
    kind, manifest, arrays, stream
        As for `write_container`.

    Returns
    -------
    str
        64 hexadecimal digits; the same for arrays of either byte order and for any "about".

    Examples
    --------
    >>> content_hash("example", {"about": {"date": "today"}, "rate": 0.5}, {"numbers": np.arange(3)})[:8]
    'dd65f480'
    """
    with one_sentence("hash", kind):
        _checked_kind(kind)
        encode_manifest(manifest)
        tables = checked_arrays(arrays)
        return tree_digest(kind, manifest, tables, checked_stream(stream, tables))


def write_container(
    path: str | os.PathLike[str],
    kind: str,
    manifest: Mapping[str, object],
    arrays: Mapping[str, NDArray[Any]],
    *,
    overwrite: bool = False,
    stream: Stream | None = None,
    group_attributes: Mapping[str, Mapping[str, object]] | None = None,
    progress: Progress | None = None,
) -> str:
    """Write a file; it appears under its name only when it is whole and on the disk.

    A file that holds the same content already, undamaged, is left as it is unless `overwrite` is set.

    Parameters
    ----------
    path : path-like
    kind : str
        What the file is; ASCII.
    manifest : mapping
        JSON values with text as keys, of at most 16 MiB; no NaN or infinity.  What stands under "about" (versions,
        dates) is not part of the content hash.
    arrays : mapping of str to ndarray
        By '/'-separated names.  Integers of 8 to 64 bits and float64, of 1 to 8 dimensions; stored little-endian.
    overwrite : bool
        Whether a file of ours with other content may be replaced.  Anything else is never replaced.
    stream : Stream, optional
        More arrays, which come piece by piece and are never all in memory; gone through twice where the file exists.
    group_attributes : mapping, optional
        HDF5 attributes of groups, such as ``{"rates": {"encoding-type": "csc_matrix", "encoding-version": "0.1.0",
        "shape": (9, 9)}}``: integers, tuples of integers, and text, which becomes a fixed-length string.  They let
        other programs find their way, are not hashed, and are not looked at by `read_container`.
    progress : callable, optional
        Called with the number of bytes done and to do.

    Returns
    -------
    str
        The content hash, 64 hexadecimal digits.

    Raises
    ------
    StorageError
        Bad manifest or array, a file that may not be replaced, missing folder, full disk; the old file is whole then.
    """
    path = checked_path(path)
    check_truth("overwrite", overwrite)
    check_function("progress", progress, "a function of the bytes done and to do")
    with one_sentence("write", path):
        _checked_kind(kind)
        text = encode_manifest(manifest)
        tables = checked_arrays(arrays)
        stream = checked_stream(stream, tables)
        replace = overwrite
        if os.path.lexists(path):
            existing = _existing_hash(path)
            if not overwrite:
                digest = tree_digest(kind, manifest, tables, stream)
                if existing != digest:
                    raise StorageError(
                        "it exists already and holds another model; overwrite=True or --overwrite replaces it"
                    )
                if _is_whole(path):
                    return digest
                replace = True  # the same content, but damaged

    def write(temporary: Path) -> None:
        nonlocal digest
        with one_sentence("write", path):
            digest = _write_file(temporary, kind, manifest, text, tables, stream, group_attributes or {}, progress)

    digest = ""
    try:
        replace_file(path, write, overwrite=replace)
    except StorageError as error:
        if not isinstance(error.__cause__, FileExistsError):
            raise
        # Another process may have been faster with the same content, even before anything was written here.
        digest = digest or tree_digest(kind, manifest, tables, stream)
        if _existing_hash(path) != digest:
            raise
    return digest


def read_container(
    path: str | os.PathLike[str],
    kinds: Sequence[str],
    *,
    only: Collection[str] | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> Container:
    """Read a file and verify everything that is read.

    Parameters
    ----------
    path : path-like
    kinds : sequence of str
        The kinds that are wanted.
    only : collection of str, optional
        Names of the arrays to read; ``()`` reads the manifest alone.  Each of them is verified against its digests, and
        these, the manifest and the names and shapes of all arrays against the content hash.
    memory_limit : int, optional
        Bytes that the arrays may take, by default what `ctmc.model.memory.memory_limit` says.
    progress : callable, optional
        Called with the number of bytes done and to do.

    Returns
    -------
    Container

    Raises
    ------
    StorageError
        Not a file of ours, of another kind, of a newer schema, damaged, hostile, or larger than the memory limit.
    """
    opened_file = open_container(path, kinds)
    names = opened_file.stored if only is None else only
    tables = opened_file.read(names, memory_limit=memory_limit, progress=progress)
    return Container(opened_file.path, opened_file.kind, opened_file.manifest, tables, opened_file.content_hash)


@dataclass(frozen=True, eq=False)
class OpenContainer:
    """A file of which manifest, names, shapes and digests are verified, and the arrays are still on the disk.

    Attributes
    ----------
    path : Path
    kind : str
    manifest : dict
    content_hash : str
    stored : dict of str to StoredArray
    """

    path: Path
    kind: str
    manifest: dict[str, Any]
    content_hash: str
    stored: dict[str, StoredArray]
    _chunks: Callable[[str], list[Chunk]]
    _leaves: Mapping[str, bytes]
    _reader: ChunkReader

    def chunks(self, name: str) -> list[Chunk]:
        """Return where the chunks of an array stand, in C order."""
        with one_sentence("read", self.path):
            return self._chunks(name)

    def read(
        self, names: Collection[str], *, memory_limit: int | None = None, progress: Progress | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return arrays, read-only, every slab verified against its digest."""
        with one_sentence("read", self.path):
            for name in names:
                if name not in self.stored:
                    raise StorageError(f"it has no array {shown(name)}")
            arrays = {name: array for name, array in self.stored.items() if name in names}
            if memory_limit is None:
                from ctmc.model.memory import memory_limit as default_limit

                memory_limit = default_limit()
            size = sum(array.size for array in arrays.values())
            if size > memory_limit:
                raise StorageError(
                    f"its arrays need {size:,} bytes, more than the memory limit of {memory_limit:,}; raise --memory-limit"
                )
            chunks = {name: self._chunks(name) for name in arrays}
            tables = {name: np.empty(array.shape, dtype=array.dtype) for name, array in arrays.items()}
            read_slabs(self._reader, arrays, chunks, self._leaves, tables, progress)
        for table in tables.values():
            table.flags.writeable = False
        return tables

    def verify(self, progress: Progress | None = None) -> int:
        """Read all arrays, every slab verified against its digest, keep none, and return how many bytes they have."""
        with one_sentence("read", self.path):
            chunks = {name: self._chunks(name) for name in self.stored}
            read_slabs(self._reader, self.stored, chunks, self._leaves, None, progress)
        return sum(array.size for array in self.stored.values())

    def slab(self, name: str, number: int, chunk: Chunk, known: bytes | None = None) -> tuple[NDArray[Any], bytes]:
        """Return the elements of a slab, flat, and the checksum of its chunk; safe in several threads.

        Parameters
        ----------
        name : str
        number : int
        chunk : Chunk
        known : bytes, optional
            The checksum, of a slab that was verified before; without it the slab is verified against its digest.
        """
        array = self.stored[name]
        with one_sentence("read", self.path):
            values = np.empty(array.slab_size(array.offset(number)), dtype=array.dtype)
            checksum = unpack_slab(self._reader, name, number, chunk, values, math.prod(array.chunk))
            if known is None:
                verify_slab(name, number, values, self._leaves[name])
            elif known != checksum:
                raise StorageError(f"slab {number} of the array {shown(name)} was changed since it was verified")
        return values, checksum


def open_container(path: str | os.PathLike[str], kinds: Sequence[str]) -> OpenContainer:
    """Open a file: verify everything but the arrays, which stay on the disk.

    Parameters
    ----------
    path, kinds
        As for `read_container`.
    """
    path = checked_path(path)
    with one_sentence("read", path), opened(path) as file:
        kind, stored = header(file)
        if kind not in kinds:
            raise StorageError(f"it holds a {shown(kind)}; wanted is {' or '.join(map(repr, kinds))}")
        manifest, digest, leaves = verified_top(file, kind, stored)
        arrays = {name: array for name, array in stored.items() if name not in RESERVED}
        found: dict[str, list[Chunk]] = {}
        failures: dict[str, StorageError] = {}
        for name, array in arrays.items():
            try:
                found[name] = file.chunks(name, array)
            except StorageError as error:  # of an array that is perhaps not asked for
                failures[name] = error

        def chunks(name: str) -> list[Chunk]:
            if name in failures:
                raise failures[name]
            return found[name]

        return OpenContainer(path, kind, manifest, digest, arrays, chunks, leaves, file.reader())


# Writing


def _checked_kind(kind: str) -> None:
    if not (kind and kind.isascii() and kind.isprintable() and len(kind) <= 64):
        raise StorageError(f"the kind is {kind!r}; allowed are 1 to 64 printable ASCII characters")


def _write_file(
    path: Path,
    kind: str,
    manifest: Mapping[str, object],
    text: bytes,
    tables: Mapping[str, NDArray[Any]],
    stream: Stream,
    group_attributes: Mapping[str, Mapping[str, object]],
    progress: Progress | None,
) -> str:
    from ctmc.storage.checksum import pack

    arrays = {name: described(table) for name, table in tables.items()} | dict(stream.arrays)
    arrays = dict(sorted(arrays.items()))
    leaves: dict[str, bytearray] = {name: bytearray(DIGEST_BYTES * array.chunk_count) for name, array in arrays.items()}
    done, total = 0, sum(array.size for array in arrays.values())

    def packed(piece: Piece) -> tuple[Piece, bytes, bytes]:
        return piece, slab_digest(piece.values), pack(piece.values, math.prod(arrays[piece.name].chunk))

    with created(path) as file:
        datasets = {name: file.add(name, array) for name, array in arrays.items()}
        with contextlib.closing(in_order(packed, pieces(tables, stream))) as results:
            for piece, leaf, stored in results:
                file.write(datasets[piece.name], piece.offset, stored)
                leaves[piece.name][DIGEST_BYTES * piece.number : DIGEST_BYTES * (piece.number + 1)] = leaf
                done += piece.values.nbytes
                if progress is not None:
                    progress(done, total)
        for name, content in (("manifest", text), ("digests", b"".join(leaves.values()))):
            values = np.frombuffer(content, dtype=np.uint8)
            array = described(values)
            dataset = file.add(name, array)
            for offset in array.offsets():
                file.write(dataset, offset, pack(values[array.slab(offset)], array.chunk[0]))
        digest = top_digest(kind, manifest, arrays, leaves)
        own = {"format": "ctmc", "kind": kind, "schema_version": SCHEMA_VERSION, "content_hash": digest}
        file.annotate("/", own | {"manifest_digest": hashlib.sha256(text).hexdigest()})
        for group, attributes in group_attributes.items():
            if not any(name.startswith(f"{group}/") for name in arrays):
                raise StorageError(f"there is no group {shown(group)} to give attributes to")
            file.annotate(group, attributes)
    return digest


def _existing_hash(path: Path) -> str:
    """Return the content hash of the file that stands at `path`, or raise the error that says why it stays there."""
    try:
        with opened(path) as file:
            kind, stored = header(file)
            return verified_top(file, kind, stored)[1]
    except FAILURES as error:
        raise StorageError(
            f"what stands there is not a readable file of ctmc ({failure_reason(error)}) and is never replaced; "
            "remove it yourself or choose another name"
        ) from error


def _is_whole(path: Path) -> bool:
    """Return whether all slabs of a file match their digests, without keeping them."""
    try:
        with opened(path) as file:
            kind, stored = header(file)
            leaves = verified_top(file, kind, stored)[2]
            arrays = {name: array for name, array in stored.items() if name not in RESERVED}
            chunks = {name: file.chunks(name, array) for name, array in arrays.items()}
            read_slabs(file.reader(), arrays, chunks, leaves, None, None)
    except FAILURES:
        return False
    return True
