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
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctmc.errors import StorageError, printable
from ctmc.storage.atomic import failure_reason, replace_file
from ctmc.storage.gate import RESERVED, Chunk, StoredArray, StoredFile, created, opened, shown
from ctmc.storage.hash_tree import (
    DIGEST_BYTES,
    SCHEMA_VERSION,
    Slab,
    checked_arrays,
    described,
    slab_digest,
    slab_values,
    slabs,
    top_digest,
    tree_digest,
)
from ctmc.storage.manifest import MAX_MANIFEST_BYTES, decode_manifest, encode_manifest
from ctmc.storage.pool import in_order

__all__ = ["SCHEMA_VERSION", "Container", "content_hash", "read_container", "write_container"]

Progress = Callable[[int, int], None]

_FAILURES = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError, zlib.error)


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


def content_hash(kind: str, manifest: Mapping[str, object], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the hash that `write_container` would return, without writing.

    Parameters
    ----------
    kind, manifest, arrays
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
    with _one_sentence("hash", kind):
        _checked_kind(kind)
        encode_manifest(manifest)
        return tree_digest(kind, manifest, checked_arrays(arrays))


def write_container(
    path: str | os.PathLike[str],
    kind: str,
    manifest: Mapping[str, object],
    arrays: Mapping[str, NDArray[Any]],
    *,
    overwrite: bool = False,
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
    path = Path(path)
    with _one_sentence("write", path):
        _checked_kind(kind)
        text = encode_manifest(manifest)
        tables = checked_arrays(arrays)
        replace = overwrite
        if os.path.lexists(path):
            existing = _existing_hash(path)
            if not overwrite:
                digest = tree_digest(kind, manifest, tables)
                if existing != digest:
                    raise StorageError(
                        "it exists already and holds another model; overwrite=True or --overwrite replaces it"
                    )
                if _is_whole(path):
                    return digest
                replace = True  # the same content, but damaged

    def write(temporary: Path) -> None:
        nonlocal digest
        with _one_sentence("write", path):
            digest = _write_file(temporary, kind, manifest, text, tables, group_attributes or {}, progress)

    digest = ""
    try:
        replace_file(path, write, overwrite=replace)
    except StorageError as error:
        # Another process may have been faster with the same content.
        if not isinstance(error.__cause__, FileExistsError) or not digest or _existing_hash(path) != digest:
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
    path = Path(path)
    with _one_sentence("read", path), opened(path) as file:
        kind, stored = _header(file)
        if kind not in kinds:
            raise StorageError(f"it holds a {shown(kind)}; wanted is {' or '.join(map(repr, kinds))}")
        manifest, digest, leaves = _verified_top(file, kind, stored)
        arrays = {name: array for name, array in stored.items() if name not in RESERVED}
        if only is not None:
            for name in only:
                if name not in arrays:
                    raise StorageError(f"it has no array {shown(name)}")
            arrays = {name: array for name, array in arrays.items() if name in only}
        if memory_limit is None:
            from ctmc.model.memory import memory_limit as default_limit

            memory_limit = default_limit()
        size = sum(array.size for array in arrays.values())
        if size > memory_limit:
            raise StorageError(
                f"its arrays need {size:,} bytes, more than the memory limit of {memory_limit:,}; raise --memory-limit"
            )
        chunks = {name: file.chunks(name, array) for name, array in arrays.items()}
        tables = {name: np.empty(array.shape, dtype=array.dtype) for name, array in arrays.items()}
        _read_slabs(file, arrays, chunks, leaves, tables, progress)
        for table in tables.values():
            table.flags.writeable = False
        return Container(path, kind, manifest, tables, digest)


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
    group_attributes: Mapping[str, Mapping[str, object]],
    progress: Progress | None,
) -> str:
    from ctmc.storage.checksum import pack

    arrays = {name: described(table) for name, table in tables.items()}
    leaves: dict[str, bytes | bytearray] = {name: bytearray() for name in tables}
    done, total = 0, sum(array.size for array in arrays.values())

    def packed(slab: Slab) -> tuple[Slab, int, bytes, bytes]:
        name, offset = slab
        values = slab_values(tables[name], arrays[name], offset)
        return slab, values.nbytes, slab_digest(values), pack(values, math.prod(arrays[name].chunk))

    with created(path) as file:
        datasets = {name: file.add(name, array) for name, array in arrays.items()}
        with contextlib.closing(in_order(packed, slabs(arrays))) as results:
            for (name, offset), size, leaf, stored in results:
                file.write(datasets[name], offset, stored)
                leaves[name] += leaf
                done += size
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
            if not any(name.startswith(f"{group}/") for name in tables):
                raise StorageError(f"there is no group {shown(group)} to give attributes to")
            file.annotate(group, attributes)
    return digest


def _existing_hash(path: Path) -> str:
    """Return the content hash of the file that stands at `path`, or raise the error that says why it stays there."""
    try:
        with opened(path) as file:
            kind, stored = _header(file)
            return _verified_top(file, kind, stored)[1]
    except _FAILURES as error:
        raise StorageError(
            f"what stands there is not a readable file of ctmc ({failure_reason(error)}) and is never replaced; "
            "remove it yourself or choose another name"
        ) from error


def _is_whole(path: Path) -> bool:
    """Return whether all slabs of a file match their digests, without keeping them."""
    try:
        with opened(path) as file:
            kind, stored = _header(file)
            leaves = _verified_top(file, kind, stored)[2]
            arrays = {name: array for name, array in stored.items() if name not in RESERVED}
            chunks = {name: file.chunks(name, array) for name, array in arrays.items()}
            _read_slabs(file, arrays, chunks, leaves, None, None)
    except _FAILURES:
        return False
    return True


# Reading


def _header(file: StoredFile) -> tuple[str, dict[str, StoredArray]]:
    """Return kind and data sets of a file of ours, after checking that it is one and of this schema."""
    if file.attribute("format") != b"ctmc":
        raise StorageError("its attribute 'format' is not 'ctmc'")
    version = file.attribute("schema_version")
    if version != SCHEMA_VERSION:
        advice = "; update ctmc" if isinstance(version, int) and version > SCHEMA_VERSION else ""
        raise StorageError(f"it has schema version {version!r} and this ctmc reads version {SCHEMA_VERSION}{advice}")
    kind = file.attribute("kind")
    if not isinstance(kind, bytes):
        raise StorageError("its attribute 'kind' is not text")
    stored = file.arrays()
    for name in RESERVED:
        if name not in stored:
            raise StorageError(f"it has no data set {name!r}")
        if stored[name].dtype != np.uint8 or len(stored[name].shape) != 1:
            raise StorageError(f"its data set {name!r} does not consist of bytes")
    return kind.decode("ascii"), stored


def _verified_top(
    file: StoredFile, kind: str, stored: Mapping[str, StoredArray]
) -> tuple[dict[str, Any], str, dict[str, bytes]]:
    """Return manifest, content hash and the leaves of each array, after checking that they belong together."""
    if stored["manifest"].size > MAX_MANIFEST_BYTES:
        raise StorageError(f"its manifest has {stored['manifest'].size:,} bytes; allowed are {MAX_MANIFEST_BYTES:,}")
    text = _read_bytes(file, "manifest", stored["manifest"])
    if file.attribute("manifest_digest") != hashlib.sha256(text).hexdigest().encode():
        raise StorageError("its manifest was damaged or edited: it does not match its digest")
    manifest = decode_manifest(text)
    arrays = {name: array for name, array in stored.items() if name not in RESERVED}
    # An array that is declared larger than it is shows here already: each of its slabs must have a digest.
    if stored["digests"].size != DIGEST_BYTES * sum(array.chunk_count for array in arrays.values()):
        raise StorageError("its digests do not fit its arrays")
    digests = _read_bytes(file, "digests", stored["digests"])
    leaves: dict[str, bytes] = {}
    start = 0
    for name, array in sorted(arrays.items()):
        stop = start + DIGEST_BYTES * array.chunk_count
        leaves[name], start = digests[start:stop], stop
    digest = top_digest(kind, manifest, arrays, leaves)
    if file.attribute("content_hash") != digest.encode():
        raise StorageError("it was damaged or edited: its manifest and digests do not match its content hash")
    return manifest, digest, leaves


def _read_bytes(file: StoredFile, name: str, array: StoredArray) -> bytes:
    from ctmc.storage.checksum import unpack

    chunks = file.chunks(name, array)
    content = np.empty(array.shape, dtype=np.uint8)
    for chunk, offset in zip(chunks, array.offsets(), strict=True):
        try:
            unpack(file.read(chunk), content[array.slab(offset)], array.chunk[0])
        except (ValueError, zlib.error) as error:
            raise StorageError(f"its data set {name!r} is damaged ({failure_reason(error)})") from error
    return content.tobytes()


def _read_slabs(
    file: StoredFile,
    arrays: Mapping[str, StoredArray],
    chunks: Mapping[str, Sequence[Chunk]],
    leaves: Mapping[str, bytes],
    tables: Mapping[str, NDArray[Any]] | None,
    progress: Progress | None,
) -> None:
    """Read and verify the slabs of arrays, into `tables` or, without them, into nothing."""
    from ctmc.storage.checksum import unpack

    done, total = 0, sum(array.size for array in arrays.values())

    def read(item: tuple[str, tuple[int, ...], int]) -> int:
        name, offset, number = item
        array = arrays[name]
        if tables is None:
            values = np.empty(array.slab_size(offset), dtype=array.dtype)
        else:
            values = tables[name][array.slab(offset)].reshape(-1)
        try:
            unpack(file.read(chunks[name][number]), values, math.prod(array.chunk))
        except (ValueError, zlib.error) as error:
            reason = failure_reason(error)
            raise StorageError(f"slab {number} of the array {shown(name)} is damaged ({reason})") from error
        if slab_digest(values) != leaves[name][DIGEST_BYTES * number : DIGEST_BYTES * (number + 1)]:
            raise StorageError(f"slab {number} of the array {shown(name)} was changed: it does not match its digest")
        return values.nbytes

    items = ((name, offset, number) for name, array in arrays.items() for number, offset in enumerate(array.offsets()))
    with contextlib.closing(in_order(read, items)) as results:
        for size in results:
            done += size
            if progress is not None:
                progress(done, total)


@contextlib.contextmanager
def _one_sentence(action: str, subject: object) -> Iterator[None]:
    """Turn whatever HDF5, zlib, JSON and the operating system raise into one sentence that names the file."""
    try:
        yield
    except _FAILURES as error:
        raise StorageError(f"Cannot {action} {printable(subject)}: {failure_reason(error)}.") from error
