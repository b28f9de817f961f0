"""The gate: the only module of the project that opens HDF5 files, and the limits that hold for every one of them.

HDF5 files can name other files (external links, external storage, virtual data sets), ask for code (filter plug-ins)
and describe loops, bombs and nonsense.  So only the *structure* of a file is read through the HDF5 library, and only
what has passed the checks here: hard links, groups and data sets, plain numbers, chunks that went through shuffle,
deflate and Fletcher32.  The chunks themselves are read from the file directly; HDF5's filter pipeline, the only part of
it that loads plug-ins, never runs.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import stat
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctmc.errors import StorageError, printable
from ctmc.storage.atomic import failure_reason

if TYPE_CHECKING:
    import h5py

SLAB_BYTES = 4 * 1024**2  # bytes of one chunk: enough for the pool to work on, few enough to stay in the cache
MAX_DEPTH = 16
MAX_OBJECTS = 10_000
MAX_DIMENSIONS = 8
MAX_ATTRIBUTE_BYTES = 256
RESERVED = ("manifest", "digests")  # data sets beside the arrays
DTYPES = tuple(np.dtype(f"<{code}") for code in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f8"))

# The file format of HDF5 1.10: the first in which all metadata carry checksums.  "latest" would be that of the
# library at hand, and files of HDF5 2.0 in its own latest format cannot be opened with 1.14.
_FORMAT = ("v110", "v110")
_MAX_INFLATION = 1040  # deflate stores 1032 equal bytes in one at best
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class StoredArray:
    """Shape and type of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of the array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunk(self) -> tuple[int, ...]:
        """Shape of the chunks: consecutive elements in C order, at most `SLAB_BYTES`."""
        room, chunk = SLAB_BYTES // self.dtype.itemsize, []
        for length in reversed(self.shape):
            chunk.append(max(1, min(length, room)))
            room = room // chunk[-1] if chunk[-1] == length else 1
        return tuple(reversed(chunk))

    @property
    def chunk_count(self) -> int:
        """Number of chunks; none when the array is empty."""
        return math.prod(-(-length // step) for length, step in zip(self.shape, self.chunk, strict=True))

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """Return the index of the first element of each chunk, in C order."""
        return itertools.product(*(range(0, length, step) for length, step in zip(self.shape, self.chunk, strict=True)))

    def offset(self, number: int) -> tuple[int, ...]:
        """Return the index of the first element of a chunk."""
        offset = []
        for length, step in zip(reversed(self.shape), reversed(self.chunk), strict=True):
            number, place = divmod(number, -(-length // step))
            offset.append(place * step)
        return tuple(reversed(offset))

    def slab(self, offset: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the part of the array that the chunk at this offset holds."""
        steps = zip(offset, self.chunk, self.shape, strict=True)
        return tuple(slice(start, min(start + step, length)) for start, step, length in steps)

    def slab_size(self, offset: tuple[int, ...]) -> int:
        """Return the number of elements of that part."""
        return math.prod(part.stop - part.start for part in self.slab(offset))


@dataclass(frozen=True)
class Chunk:
    """Where the bytes of a chunk stand in the file."""

    address: int
    size: int


class _Stream(io.RawIOBase):
    """The file as HDF5 sees it.

    HDF5 that is told of a failed write can no longer close its file, and tries again when the process ends.  So a
    failure is kept here, to be raised by `created` and `opened`, and whatever is written after it is dropped.  Nor does
    it give a file up that it could not read the superblock of, and dies over it when the process ends: so the beginning
    of a file is read before HDF5 sees it, and stands here as `head`.
    """

    def __init__(self, descriptor: int, head: bytes = b"") -> None:
        self.descriptor = descriptor
        self.head = head
        self.position = 0
        self.failure: BaseException | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.position}.get(whence)
        self.position = (os.fstat(self.descriptor).st_size if start is None else start) + offset
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        try:
            data = self.head[self.position : self.position + len(view)]
            if len(data) < len(view):
                data = read_at(self.descriptor, self.position, len(view))
        except BaseException as failure:
            self.failure = self.failure or failure
            data = b""
        view[: len(data)] = data
        view[len(data) :] = bytes(len(view) - len(data))  # HDF5 does not look at the count that we return
        return len(view)

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        try:
            if self.failure is None:
                write_at(self.descriptor, self.position, view)
        except BaseException as failure:
            self.failure = failure
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        size = self.position if size is None else size
        try:
            if self.failure is None:
                os.ftruncate(self.descriptor, size)
        except BaseException as failure:
            self.failure = failure
        return size


def read_at(descriptor: int, address: int, size: int) -> bytes:
    """Return `size` bytes from an address of the file, fewer at its end; safe in several threads."""
    data = os.pread(descriptor, size, address)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), address + len(data))):
        data += more
    return data


def write_at(descriptor: int, address: int, data: memoryview) -> None:
    """Write all of `data` at an address of the file."""
    while data:
        count = os.pwrite(descriptor, data, address)
        data, address = data[count:], address + count


class StoredFile:
    """An HDF5 file that is open for reading; made by `opened`."""

    def __init__(self, file: h5py.File, stream: _Stream) -> None:
        self._file = file
        self._stream = stream
        self._size = os.fstat(stream.descriptor).st_size
        self._datasets: dict[str, h5py.h5d.DatasetID] = {}

    def attribute(self, name: str) -> bytes | int:
        """Return a root attribute: a fixed-length string or an integer; anything else is an error."""
        from h5py import h5a, h5s, h5t

        root = self._file["/"].id
        if not h5a.exists(root, name.encode()):
            raise StorageError(f"it is an HDF5 file without the attribute {name!r}, so not one that ctmc wrote")
        attribute = h5a.open(root, name.encode())
        kind = attribute.get_type()
        text = kind.get_class() == h5t.STRING and not kind.is_variable_str() and kind.get_size() <= MAX_ATTRIBUTE_BYTES
        if attribute.get_space().get_simple_extent_type() != h5s.SCALAR or not (text or kind == h5t.STD_I64LE):
            raise StorageError(f"its attribute {name!r} is neither a short fixed-length string nor an integer")
        value = np.empty((), dtype=f"S{kind.get_size()}" if text else "<i8")
        attribute.read(value)
        return bytes(value[()]) if text else int(value)

    def arrays(self) -> dict[str, StoredArray]:
        """Walk through the file, check every object against the limits, and return what its data sets hold."""
        self._datasets = _walk(self._file["/"].id)
        return {name: _describe(name, dataset) for name, dataset in sorted(self._datasets.items())}

    def chunks(self, name: str, array: StoredArray) -> list[Chunk]:
        """Return where the chunks of an array stand, in C order; all of them must be there."""
        dataset = self._datasets[name]
        if array.size > _MAX_INFLATION * self._size:  # also bounds the time that HDF5 takes to count
            raise StorageError(f"{shown(name)} claims {array.size:,} bytes, more than the file can hold")
        count = dataset.get_num_chunks() if array.size else 0
        if count != array.chunk_count:
            raise StorageError(f"{count:,} of {array.chunk_count:,} chunks of {shown(name)} are stored")
        found: dict[tuple[int, ...], Any] = {}
        if count:
            dataset.chunk_iter(lambda info: found.__setitem__(info.chunk_offset, info))
        chunks = []
        for offset in array.offsets():
            info = found.get(offset)
            # Data that do not shrink grow a little; one part in eight is more than any deflate encoder needs.
            if info is None or info.filter_mask or not 0 < info.size <= 4096 + SLAB_BYTES + SLAB_BYTES // 8:
                raise StorageError(f"the chunk at {offset} of {shown(name)} is missing or not stored as ctmc does")
            if not 0 <= info.byte_offset <= self._size - info.size:
                raise StorageError(f"the chunk at {offset} of {shown(name)} stands beyond the end of the file")
            chunks.append(Chunk(info.byte_offset, info.size))
        return chunks

    def reader(self) -> ChunkReader:
        """Return what reads chunks, also after this file was closed."""
        return ChunkReader(self._stream.descriptor)


class ChunkReader:
    """Reads chunks through a descriptor of its own, which it closes when it is no longer needed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, chunk: Chunk) -> bytes:
        """Return the bytes of a chunk as they are stored; safe in several threads."""
        data = read_at(self._descriptor, chunk.address, chunk.size)
        if len(data) != chunk.size:
            raise StorageError("it became shorter while it was read")
        return data


class NewFile:
    """An HDF5 file that is being written; made by `created`."""

    def __init__(self, file: h5py.File, stream: _Stream) -> None:
        self._file = file
        self._stream = stream

    def add(self, name: str, array: StoredArray) -> h5py.h5d.DatasetID:
        """Make a data set, and the groups that lead to it; returns what `write` wants."""
        return self._file.create_dataset(
            name,
            shape=array.shape,
            dtype=array.dtype,
            chunks=array.chunk,
            maxshape=array.shape if array.size else (None,) * len(array.shape),  # chunks may not exceed a fixed shape
            shuffle=array.dtype.itemsize > 1,
            compression="gzip",
            compression_opts=1,
            fletcher32=True,
        ).id

    def write(self, dataset: h5py.h5d.DatasetID, offset: tuple[int, ...], stored: bytes) -> None:
        """Write a chunk that is compressed and checksummed already."""
        dataset.write_direct_chunk(offset, stored)
        if self._stream.failure is not None:
            raise self._stream.failure

    def annotate(self, group: str, attributes: Mapping[str, object]) -> None:
        """Give a group attributes: integers, tuples of integers, and ASCII text as fixed-length strings."""
        for name, value in attributes.items():
            if isinstance(value, str) and value and value.isascii() and len(value) <= MAX_ATTRIBUTE_BYTES:
                self._file[group].attrs[name] = np.bytes_(value.encode())
            elif isinstance(value, int) or (isinstance(value, tuple) and value and all(type(i) is int for i in value)):
                self._file[group].attrs[name] = np.array(value, dtype=np.int64)
            else:
                raise StorageError(
                    f"the attribute {shown(name)} of the group {shown(group)} is {value!r}; "
                    f"allowed are integers, tuples of integers and ASCII text of 1 to {MAX_ATTRIBUTE_BYTES} characters"
                )


@contextlib.contextmanager
def opened(path: Path) -> Iterator[StoredFile]:
    """Open an HDF5 file for reading, if it is a regular file with the right signature.

    The file is opened once, never waited for and never looked up by name again, and no lock is taken.
    """
    with read_only(path) as (file, stream):
        yield StoredFile(file, stream)


@contextlib.contextmanager
def read_only(path: Path, user_block: int = 0) -> Iterator[tuple[h5py.File, _Stream]]:
    """Open an HDF5 file that begins after `user_block` bytes; only for this module and the one of foreign files."""
    descriptor = open_regular(path)
    try:
        head = read_at(descriptor, 0, _HEAD_BYTES)
        if not head:
            raise StorageError("it is empty")
        if not head.startswith(_SIGNATURE, user_block):
            raise StorageError("it is not an HDF5 file")
        stream = _Stream(descriptor, head)
        with _hdf5(stream, "r") as file:
            yield file, stream
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def created(path: Path) -> Iterator[NewFile]:
    """Write an HDF5 file over an existing, empty, temporary one."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        stream = _Stream(descriptor)
        with _hdf5(stream, "w", libver=_FORMAT) as file:
            yield NewFile(file, stream)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def written(path: Path, user_block: bytes) -> Iterator[h5py.File]:
    """Write an HDF5 file of the oldest format after some bytes that are not HDF5; for foreign readers."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        stream = _Stream(descriptor)
        with _hdf5(stream, "w", libver=("earliest", "v108"), userblock_size=len(user_block)) as file:
            yield file
        write_at(descriptor, 0, memoryview(user_block))
    finally:
        os.close(descriptor)


def shown(name: str) -> str:
    """Return a name that came from a file, escaped, in quotes, and of bearable length."""
    return repr(name if len(name) <= 80 else name[:77] + "...") if name.isprintable() else f"'{printable(name[:80])}'"


@contextlib.contextmanager
def _hdf5(stream: _Stream, mode: str, **settings: Any) -> Iterator[h5py.File]:
    import h5py  # slow to import, and not needed by most commands

    try:
        with h5py.File(stream, mode, **settings) as file:
            yield file
    except (OSError, RuntimeError, LookupError) as error:
        if isinstance(error, StorageError) or getattr(error, "errno", None):
            raise
        raise StorageError(f"it is damaged, or HDF5 failed ({failure_reason(error)})") from error
    finally:
        if stream.failure is not None:
            raise stream.failure


def open_regular(path: Path) -> int:
    """Open a regular file for reading, without waiting for one that is none; returns the descriptor."""
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    kinds |= {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    # Looked at before it is opened, since opening a device can have effects, and again afterwards, since it may have
    # been exchanged in between; without O_NONBLOCK a pipe would then wait for its writer.
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return descriptor
        os.close(descriptor)
    raise StorageError(f"it is {kinds.get(stat.S_IFMT(mode), 'something else')}, not a regular file")


def _walk(root: h5py.h5g.GroupID) -> dict[str, h5py.h5d.DatasetID]:
    """Return all data sets by their path; follows hard links to new objects only, and not too many of them."""
    from h5py import h5, h5d, h5g, h5l, h5o

    datasets: dict[str, h5py.h5d.DatasetID] = {}
    seen = {h5o.get_info(root).addr}
    pending = [("", root)]
    while pending:
        prefix, group = pending.pop()
        names: list[bytes] = []

        def collect(name: bytes, names: list[bytes] = names) -> bool | None:
            names.append(name)
            return len(names) + len(seen) > MAX_OBJECTS or None  # anything but None ends the iteration

        group.links.iterate(collect, idx_type=h5.INDEX_NAME, order=h5.ITER_NATIVE)
        if len(names) + len(seen) > MAX_OBJECTS:
            raise StorageError(f"it has more than {MAX_OBJECTS:,} objects")
        for link in names:
            name = prefix + link.decode()
            if group.links.get_info(link).type != h5l.TYPE_HARD:
                raise StorageError(f"{shown(name)} is a soft or external link, which may lead anywhere")
            if name.count("/") >= MAX_DEPTH:
                raise StorageError(f"it has groups more than {MAX_DEPTH} deep")
            child = h5o.open(group, link)
            address = h5o.get_info(child).addr
            if address in seen:
                raise StorageError(f"{shown(name)} is the second link to an object")
            seen.add(address)
            if isinstance(child, h5g.GroupID):
                pending.append((name + "/", child))
            elif isinstance(child, h5d.DatasetID):
                datasets[name] = child
            else:
                raise StorageError(f"{shown(name)} is neither a group nor a data set")
    return datasets


def _describe(name: str, dataset: h5py.h5d.DatasetID) -> StoredArray:
    """Return shape and type of a data set that is stored in the way `NewFile.add` does."""
    from h5py import h5d, h5s, h5t, h5z

    properties = dataset.get_create_plist()
    layout = properties.get_layout()
    if properties.get_external_count():
        raise StorageError(f"the values of {shown(name)} are stored in another file")
    if layout == h5d.VIRTUAL:
        raise StorageError(f"{shown(name)} is a virtual data set, which reads other ones")
    kind = dataset.get_type()
    dtype = next((dtype for dtype in DTYPES if kind == h5t.py_create(dtype)), None)
    if dtype is None:
        allowed = ", ".join(dtype.name for dtype in DTYPES)
        raise StorageError(f"the type of {shown(name)} is none of {allowed}, little-endian")
    filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
    usual = [h5z.FILTER_DEFLATE, h5z.FILTER_FLETCHER32]
    if dtype.itemsize > 1:
        usual.insert(0, h5z.FILTER_SHUFFLE)
    if layout != h5d.CHUNKED or filters != usual:
        raise StorageError(
            f"{shown(name)} went through the filters {filters}, not through {usual} "
            "(shuffle, deflate, Fletcher32), or not in chunks"
        )
    space = dataset.get_space()
    if space.get_simple_extent_type() != h5s.SIMPLE or not 1 <= space.get_simple_extent_ndims() <= MAX_DIMENSIONS:
        raise StorageError(f"{shown(name)} has no dimensions, or more than {MAX_DIMENSIONS}")
    array = StoredArray(tuple(space.get_simple_extent_dims()), dtype)
    if array.chunk != properties.get_chunk():
        raise StorageError(f"{shown(name)} is stored in chunks of {properties.get_chunk()}, not of {array.chunk}")
    return array
