"""What of a file is proved while it is read: its head, the manifest and digests under the content hash, and each slab by its digest."""

from __future__ import annotations

import contextlib
import hashlib
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctmc.errors import StorageError, printable
from ctmc.storage.atomic import failure_reason
from ctmc.storage.gate import RESERVED, Chunk, ChunkReader, StoredArray, StoredFile, shown
from ctmc.storage.hash_tree import DIGEST_BYTES, SCHEMA_VERSION, slab_digest, top_digest
from ctmc.storage.manifest import MAX_MANIFEST_BYTES, decode_manifest
from ctmc.storage.pool import in_order

Progress = Callable[[int, int], None]
FAILURES = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError, zlib.error)
"""What HDF5, zlib, JSON and the operating system raise over a file that cannot be read or written."""


def header(file: StoredFile) -> tuple[str, dict[str, StoredArray]]:
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


def verified_top(
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

    chunks, reader = file.chunks(name, array), file.reader()
    content = np.empty(array.shape, dtype=np.uint8)
    for chunk, offset in zip(chunks, array.offsets(), strict=True):
        try:
            unpack(reader.read(chunk), content[array.slab(offset)], array.chunk[0])
        except (ValueError, zlib.error) as error:
            raise StorageError(f"its data set {name!r} is damaged ({failure_reason(error)})") from error
    return content.tobytes()


def read_slabs(
    reader: ChunkReader,
    arrays: Mapping[str, StoredArray],
    chunks: Mapping[str, Sequence[Chunk]],
    leaves: Mapping[str, bytes],
    tables: Mapping[str, NDArray[Any]] | None,
    progress: Progress | None,
) -> None:
    """Read and verify the slabs of arrays, into `tables` or, without them, into nothing."""
    done, total = 0, sum(array.size for array in arrays.values())

    def read(item: tuple[str, tuple[int, ...], int]) -> int:
        name, offset, number = item
        array = arrays[name]
        if tables is None:
            values = np.empty(array.slab_size(offset), dtype=array.dtype)
        else:
            values = tables[name][array.slab(offset)].reshape(-1)
        unpack_slab(reader, name, number, chunks[name][number], values, math.prod(array.chunk))
        verify_slab(name, number, values, leaves[name])
        return values.nbytes

    items = ((name, offset, number) for name, array in arrays.items() for number, offset in enumerate(array.offsets()))
    with contextlib.closing(in_order(read, items)) as results:
        for size in results:
            done += size
            if progress is not None:
                progress(done, total)


def unpack_slab(reader: ChunkReader, name: str, number: int, chunk: Chunk, values: NDArray[Any], length: int) -> bytes:
    """Fill the elements of a slab, and return the checksum of its chunk."""
    from ctmc.storage.checksum import unpack

    data = reader.read(chunk)
    try:
        unpack(data, values, length)
    except (ValueError, zlib.error) as error:
        raise StorageError(f"slab {number} of the array {shown(name)} is damaged ({failure_reason(error)})") from error
    return data[-4:]


def verify_slab(name: str, number: int, values: NDArray[Any], leaves: bytes) -> None:
    """Raise `StorageError` unless the elements of a slab have its digest."""
    if slab_digest(values) != leaves[DIGEST_BYTES * number : DIGEST_BYTES * (number + 1)]:
        raise StorageError(f"slab {number} of the array {shown(name)} was changed: it does not match its digest")


@contextlib.contextmanager
def one_sentence(action: str, subject: object) -> Iterator[None]:
    """Turn whatever HDF5, zlib, JSON and the operating system raise into one sentence that names the file."""
    try:
        yield
    except FAILURES as error:
        raise StorageError(f"Cannot {action} {printable(subject)}: {failure_reason(error)}.") from error
