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
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctmc.errors import StorageError
from ctmc.storage.gate import DTYPES, MAX_DEPTH, MAX_DIMENSIONS, RESERVED, StoredArray, shown
from ctmc.storage.manifest import canonical_json
from ctmc.storage.pool import in_order

SCHEMA_VERSION = 1
DIGEST_BYTES = 32

Slab = tuple[str, tuple[int, ...]]  # the array's name and the index of the slab's first element


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


def slabs(arrays: Mapping[str, StoredArray]) -> Iterator[Slab]:
    """Yield all slabs of all arrays."""
    for name, array in arrays.items():
        for offset in array.offsets():
            yield name, offset


def slab_values(table: NDArray[Any], array: StoredArray, offset: tuple[int, ...]) -> NDArray[Any]:
    """Return the elements of a slab, flat, contiguous and little-endian; copies only where they are not."""
    return np.ascontiguousarray(table[array.slab(offset)], dtype=array.dtype).reshape(-1)


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


def tree_digest(kind: str, manifest: Mapping[str, object], tables: Mapping[str, NDArray[Any]]) -> str:
    """Return the content hash of arrays in memory."""
    arrays = {name: described(table) for name, table in tables.items()}
    leaves: dict[str, bytes | bytearray] = {name: bytearray() for name in tables}

    def leaf(slab: Slab) -> tuple[str, bytes]:
        name, offset = slab
        return name, slab_digest(slab_values(tables[name], arrays[name], offset))

    with contextlib.closing(in_order(leaf, slabs(arrays))) as results:
        for name, digest in results:
            leaves[name] += digest
    return top_digest(kind, manifest, arrays, leaves)
