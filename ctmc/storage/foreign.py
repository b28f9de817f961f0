"""HDF5 files of other programs: their variables under limits of their own, and files that those programs open.

As in our own files only structure is read through the HDF5 library, hard links are followed alone, and chunks are decoded
here, with deflate, shuffle and Fletcher32 as the only filters and no chunk above 64 MiB.
"""

from __future__ import annotations

import contextlib
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.errors import StorageError
from ctmc.model.memory import require_memory
from ctmc.storage.checksum import fletcher32
from ctmc.storage.gate import MAX_DIMENSIONS, MAX_OBJECTS, read_only, shown, written

MAX_CHUNK_BYTES = 64 * 1024**2
_DTYPES = tuple(np.dtype(f"<{code}") for code in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"))
_CHUNK_ELEMENTS = 1 << 17


class ForeignFile:
    """What an HDF5 file of another program holds; made by `foreign`."""

    def __init__(self, file: Any, size: int) -> None:
        self._root = file["/"].id
        self._size = size

    def names(self) -> list[str]:
        """Return the names at the top of the file."""
        found: list[bytes] = []

        def collect(name: bytes) -> bool | None:
            found.append(name)
            return len(found) > MAX_OBJECTS or None

        self._root.links.iterate(collect)
        if len(found) > MAX_OBJECTS:
            raise StorageError(f"it has more than {MAX_OBJECTS:,} objects")
        return [name.decode("utf-8", "backslashreplace") for name in found]

    def members(self, name: str) -> dict[str, Any] | None:
        """Return the data sets of a group by name, None if `name` is a data set itself."""
        from h5py import h5d, h5g

        found = self._child(self._root, name)
        if isinstance(found, h5d.DatasetID):
            return None
        members = {}
        for part in ("data", "ir", "jc"):
            if isinstance(found, h5g.GroupID) and part.encode() in found:
                member = self._child(found, part)
                if isinstance(member, h5d.DatasetID):
                    members[part] = member
        return members

    def attribute(self, name: str, attribute: str) -> bytes | int | None:
        """Return a short text or a whole number that a variable carries, None where there is none."""
        from h5py import h5a, h5s, h5t

        found = self._child(self._root, name)
        if not h5a.exists(found, attribute.encode()):
            return None
        opened = h5a.open(found, attribute.encode())
        kind = opened.get_type()
        if (
            opened.get_space().get_simple_extent_npoints() != 1
            or opened.get_space().get_simple_extent_type() == h5s.NULL
        ):
            return None
        if kind.get_class() == h5t.STRING and not kind.is_variable_str() and kind.get_size() <= 256:
            text = np.empty(opened.shape, dtype=f"S{kind.get_size()}")
            opened.read(text)
            return bytes(text.item())
        if kind.get_class() == h5t.INTEGER and kind.get_size() <= 8:
            number = np.empty(opened.shape, dtype=np.int64)
            opened.read(number)
            return int(number.item())
        return None

    def array(self, name: str, dataset: Any = None) -> np.ndarray:
        """Return the values of a data set of plain numbers, in the order of the file.

        Raises
        ------
        StorageError
            Anything but numbers stored in this file through the filters known here.
        ModelError
            It does not fit the memory limit.
        """
        from h5py import h5d, h5s, h5t

        dataset = self._child(self._root, name) if dataset is None else dataset
        if not isinstance(dataset, h5d.DatasetID):
            raise StorageError(f"{shown(name)} is no array of numbers")
        properties = dataset.get_create_plist()
        if properties.get_external_count() or properties.get_layout() == h5d.VIRTUAL:
            raise StorageError(f"the values of {shown(name)} are stored in another file")
        kind = dataset.get_type()
        dtype = next((dtype for dtype in _DTYPES if kind == h5t.py_create(dtype)), None)
        if dtype is None:
            raise StorageError(
                f"the type of {shown(name)} is none of {', '.join(one.name for one in _DTYPES)}, little-endian"
            )
        space = dataset.get_space()
        if space.get_simple_extent_type() != h5s.SIMPLE or not 1 <= space.get_simple_extent_ndims() <= MAX_DIMENSIONS:
            raise StorageError(f"{shown(name)} has no dimensions, or more than {MAX_DIMENSIONS}")
        shape = tuple(space.get_simple_extent_dims())
        require_memory(f"the array {shown(name)}", 2 * math.prod(shape) * dtype.itemsize)
        if properties.get_layout() == h5d.CHUNKED:
            return self._chunked(name, dataset, shape, dtype)
        if properties.get_nfilters() or math.prod(shape) * dtype.itemsize > self._size:
            raise StorageError(f"{shown(name)} claims more bytes than the file has")
        values = np.empty(shape, dtype=dtype)
        if values.size:
            dataset.read(h5s.ALL, h5s.ALL, values)
        return values

    def _child(self, group: Any, name: str) -> Any:
        from h5py import h5l, h5o

        link = name.encode()
        if link not in group:
            raise StorageError(f"it has no {shown(name)}")
        if group.links.get_info(link).type != h5l.TYPE_HARD:
            raise StorageError(f"{shown(name)} is a soft or external link, which may lead anywhere")
        return h5o.open(group, link)

    def _chunked(self, name: str, dataset: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        from h5py import h5z

        properties = dataset.get_create_plist()
        filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
        known = [h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE, h5z.FILTER_FLETCHER32]
        if filters != [one for one in known if one in filters]:
            raise StorageError(
                f"{shown(name)} went through the filters {filters}; allowed are shuffle, deflate, Fletcher32, in this order"
            )
        chunk = properties.get_chunk()
        size = math.prod(chunk) * dtype.itemsize
        if size > MAX_CHUNK_BYTES:
            raise StorageError(f"a chunk of {shown(name)} has {size:,} bytes; allowed are {MAX_CHUNK_BYTES:,}")
        count = math.prod(-(-length // step) for length, step in zip(shape, chunk, strict=True))
        if count != dataset.get_num_chunks():
            raise StorageError(f"{dataset.get_num_chunks():,} of {count:,} chunks of {shown(name)} are stored")
        values = np.empty(shape, dtype=dtype)
        for index in range(count):
            offset = dataset.get_chunk_info(index).chunk_offset
            mask, stored = dataset.read_direct_chunk(offset)
            if mask or any(start >= length for start, length in zip(offset, shape, strict=True)):
                raise StorageError(f"the chunk at {offset} of {shown(name)} is not stored as the others")
            part = _decoded(name, stored, filters, size, dtype).reshape(chunk)
            place = tuple(
                slice(start, min(start + step, length))
                for start, step, length in zip(offset, chunk, shape, strict=True)
            )
            values[place] = part[tuple(slice(0, one.stop - one.start) for one in place)]
        return values


@contextlib.contextmanager
def foreign(path: Path, user_block: int) -> Iterator[ForeignFile]:
    """Open an HDF5 file of another program, which begins after `user_block` bytes, in a ``with`` block."""
    with read_only(path, user_block) as (file, stream):
        yield ForeignFile(file, os.fstat(stream.descriptor).st_size)


def write_foreign(
    path: Path, user_block: bytes, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write arrays, and attributes of arrays and groups, over an existing, empty, temporary file.

    Parameters
    ----------
    path : Path
    user_block : bytes
        What stands before the HDF5 file: 512 bytes, or a larger power of two.
    arrays : mapping of str to ndarray
    attributes : mapping of str to mapping
        For each name: text, written as fixed-length ASCII, and unsigned integers.
    """
    with written(path, user_block) as file:
        for name, values in arrays.items():
            settings = {"compression": "gzip", "compression_opts": 3} if values.size > _CHUNK_ELEMENTS else {}
            if settings:
                settings["chunks"] = _chunk(values.shape)
            file.create_dataset(name, data=values, **settings)
        for name, known in attributes.items():
            for attribute, value in known.items():
                file[name].attrs[attribute] = np.bytes_(value) if isinstance(value, str) else np.uint64(value)


def _chunk(shape: Sequence[int]) -> tuple[int, ...]:
    room, chunk = _CHUNK_ELEMENTS, []
    for length in reversed(shape):
        chunk.append(max(1, min(length, room)))
        room = max(1, room // chunk[-1])
    return tuple(reversed(chunk))


def _decoded(name: str, stored: bytes, filters: Sequence[int], size: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Undo the filters of a chunk; never more than its declared bytes."""
    from h5py import h5z

    data = stored
    if h5z.FILTER_FLETCHER32 in filters:
        body, data = np.frombuffer(data[:-4], dtype=np.uint8), data[:-4]
        if int(fletcher32(body)) != int.from_bytes(stored[-4:], "little"):
            raise StorageError(f"a checksum of {shown(name)} does not match")
    if h5z.FILTER_DEFLATE in filters:
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(data, size + 1)
        except zlib.error as error:
            raise StorageError(f"{shown(name)} is damaged ({error})") from None
    if len(data) != size:
        raise StorageError(f"a chunk of {shown(name)} has {len(data):,} bytes or more; it must have {size:,}")
    raw = np.frombuffer(data, dtype=np.uint8)
    if h5z.FILTER_SHUFFLE in filters:
        raw = np.ascontiguousarray(raw.reshape(dtype.itemsize, -1).T).reshape(-1)
    return raw.view(dtype)
