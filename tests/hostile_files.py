"""Foreign and hostile files: each row of HOSTILE changes or replaces a good file, each row of PATHS makes something else than a file."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import socket
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
from container_examples import KIND, foreign_hdf5

from ctmc.storage import checksum, container, gate
from ctmc.storage.hash_tree import Stream


def edit(path: Path) -> h5py.File:
    return h5py.File(path, "r+", libver=("v110", "v110"))


def as_stored(file: h5py.File, name: str, array: np.ndarray, **changes: object) -> h5py.Dataset:
    """Make a data set in the way we do, but for some changes."""
    options = {"chunks": array.shape, "shuffle": array.dtype.itemsize > 1, "compression": "gzip", "fletcher32": True}
    return file.create_dataset(name, data=array, **(options | changes))


def dcpl_with(*filters: tuple[int, tuple[int, ...]], chunk: int = 900) -> h5py.h5p.PropDCID:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((chunk,))
    for code, values in filters:
        properties.set_filter(code, h5py.h5z.FLAG_OPTIONAL, values)
    return properties


def low_level(
    file: h5py.File, name: str, length: int, properties: h5py.h5p.PropDCID, dtype: str = "<f8"
) -> h5py.h5d.DatasetID:
    kind = h5py.h5t.py_create(np.dtype(dtype))
    return h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((length,)), properties)


SHUFFLE, DEFLATE, FLETCHER = (
    (h5py.h5z.FILTER_SHUFFLE, (8,)),
    (h5py.h5z.FILTER_DEFLATE, (1,)),
    (h5py.h5z.FILTER_FLETCHER32, ()),
)


def foreign(path: Path) -> None:
    path.unlink()
    foreign_hdf5(path)


def set_attribute(name: str, value: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with edit(path) as file:
            del file.attrs[name]
            if value is not None:
                file.attrs[name] = value

    return change


def without(name: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with edit(path) as file:
            del file[name]

    return change


def replaced(array: object, **changes: object) -> Callable[[Path], None]:
    """Replace rates/data by another array of the same name."""

    def change(path: Path) -> None:
        with edit(path) as file:
            del file["rates/data"]
            if isinstance(array, np.ndarray) and array.ndim:
                as_stored(file, "rates/data", array, **changes)
            else:
                file.create_dataset("rates/data", data=array, **changes)

    return change


def with_file(action: Callable[[h5py.File, Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with edit(path) as file:
            action(file, path)

    return change


def decoy(path: Path) -> Path:
    """Return a good HDF5 file beside the hostile one, which must not be opened."""
    other = path.with_name("decoy.h5")
    if not other.exists():
        foreign_hdf5(other)
    return other


def external_storage(file: h5py.File, path: Path) -> None:
    del file["rates/data"]
    file.create_dataset("rates/data", shape=(3,), dtype="<f8", external=[(str(decoy(path)), 0, 24)])


def virtual(source: str) -> Callable[[h5py.File, Path], None]:
    def action(file: h5py.File, path: Path) -> None:
        del file["rates/data"]
        layout = h5py.VirtualLayout(shape=(3,), dtype="<i8", maxshape=(None,))
        where = str(decoy(path)) if source == "other" else "."
        layout[: h5py.h5s.UNLIMITED] = h5py.VirtualSource(where, "data", shape=(3,), maxshape=(None,))[
            : h5py.h5s.UNLIMITED
        ]
        file.create_virtual_dataset("rates/data", layout)

    return action


def deep_groups(file: h5py.File, _: Path) -> None:
    group = file.id
    for _ in range(10_000):
        group = h5py.h5g.create(group, b"g")


LINKS = int(os.environ.get("CTMC_LINKS", "20000"))  # a million before a release


def many_links(file: h5py.File, _: Path) -> None:
    for number in range(LINKS):
        file.id.links.create_hard(b"%d" % number, file.id, b"states")


def huge(length: int, name: str = "rates/data") -> Callable[[h5py.File, Path], None]:
    def action(file: h5py.File, _: Path) -> None:
        dtype = file[name].dtype
        del file[name]
        filters = (SHUFFLE, DEFLATE, FLETCHER) if dtype.itemsize > 1 else (DEFLATE, FLETCHER)
        low_level(file, name, length, dcpl_with(*filters, chunk=gate.SLAB_BYTES // dtype.itemsize), dtype.str)

    return action


def nothing_stored(file: h5py.File, _: Path) -> None:
    del file["rates/data"]
    low_level(file, "rates/data", 900, dcpl_with(SHUFFLE, DEFLATE, FLETCHER))


def bomb(file: h5py.File, _: Path) -> None:
    """Two gigabytes of zeros in two megabytes, with the right checksum, as the only chunk of rates/data."""
    del file["rates/data"]
    data = low_level(file, "rates/data", 900, dcpl_with(SHUFFLE, DEFLATE, FLETCHER))
    deflater = zlib.compressobj(1, wbits=-15)
    megabyte = deflater.compress(bytes(2**20)) + deflater.flush(zlib.Z_FULL_FLUSH)
    body = b"\x78\x01" + megabyte * 2048 + b"\x03\x00" + b"\0\0\0\0"
    data.write_direct_chunk((0,), body + checksum.fletcher32(np.frombuffer(body, np.uint8)).to_bytes(4, "little"))


def forged_chunk(body: bytes, mask: int = 0) -> Callable[[h5py.File, Path], None]:
    def action(file: h5py.File, _: Path) -> None:
        stored = body + int(checksum.fletcher32(np.frombuffer(body, np.uint8))).to_bytes(4, "little")
        file["rates/data"].id.write_direct_chunk((0,), stored, mask)

    return action


def other_values(file: h5py.File, _: Path) -> None:
    file["rates/data"][5] += 1.0


def edited_manifest(*also: str) -> Callable[[h5py.File, Path], None]:
    def action(file: h5py.File, _: Path) -> None:
        text = file["manifest"][()].tobytes().replace(b"0.95", b"0.97")
        file["manifest"][()] = np.frombuffer(text, dtype=np.uint8)
        if "digest" in also:
            file.attrs["manifest_digest"] = np.bytes_(hashlib.sha256(text).hexdigest())

    return action


def forged_manifest(text: bytes) -> Callable[[Path], None]:
    """Write a file with a right digest over any bytes as the manifest."""

    def change(path: Path) -> None:
        path.write_bytes(b"")
        container._write_file(path, KIND, {}, text, {}, Stream(), {}, None)

    return change


def swap(file: h5py.File, _: Path) -> None:
    file.move("rates/data", "x")
    file.move("rates/indptr", "rates/data")
    file.move("x", "rates/indptr")


GOOD = np.arange(900.0)
HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    # 1, 2: not ours, or newer
    "foreign": (foreign, "without the attribute 'format'"),
    "not HDF5": (lambda path: path.write_text("hello"), "it is not an HDF5 file"),
    "signature alone": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"), ""),
    "user block": (lambda path: path.write_bytes(bytes(512) + path.read_bytes()), "it is not an HDF5 file"),
    "format missing": (set_attribute("format", None), "without the attribute 'format'"),
    "format other": (set_attribute("format", np.bytes_(b"anndata")), "'format' is not 'ctmc'"),
    "format of variable length": (set_attribute("format", "ctmc"), "neither a short fixed-length string"),
    "format as an array": (
        set_attribute("format", np.array([b"ctmc", b"ctmc"])),
        "neither a short fixed-length string",
    ),
    "format a number": (set_attribute("format", np.int64(1)), "'format' is not 'ctmc'"),
    "kind long": (set_attribute("kind", np.bytes_(b"x" * 300)), "neither a short fixed-length string"),
    "kind not ASCII": (set_attribute("kind", np.bytes_(b"\xff")), "ascii"),
    "kind a number": (set_attribute("kind", np.int64(3)), "'kind' is not text"),
    "kind a float": (set_attribute("kind", 0.5), "neither a short fixed-length string nor an integer"),
    "kind changed": (set_attribute("kind", np.bytes_(b"generator")), "it holds a 'generator'"),
    "schema version missing": (set_attribute("schema_version", None), "without the attribute 'schema_version'"),
    "schema version newer": (
        set_attribute("schema_version", np.int64(2)),
        "schema version 2 and this ctmc reads version 1; update",
    ),
    "schema version zero": (
        set_attribute("schema_version", np.int64(0)),
        "schema version 0 and this ctmc reads version 1",
    ),
    "schema version text": (set_attribute("schema_version", np.bytes_(b"1")), "schema version b'1'"),
    "content hash missing": (set_attribute("content_hash", None), "without the attribute 'content_hash'"),
    "content hash other": (set_attribute("content_hash", np.bytes_(b"0" * 64)), "do not match its content hash"),
    "manifest missing": (without("manifest"), "no data set 'manifest'"),
    "digests missing": (without("digests"), "no data set 'digests'"),
    "array missing": (without("states"), "its digests do not fit its arrays"),
    "empty array missing": (without("empty"), "do not match its content hash"),
    # 6 to 9: links and other files
    "external storage": (with_file(external_storage), "'rates/data' are stored in another file"),
    "external link": (
        with_file(lambda file, path: file.__setitem__("other", h5py.ExternalLink(str(decoy(path)), "/data"))),
        "'other' is a soft or external link",
    ),
    "external link to a group": (
        with_file(lambda file, path: file.__setitem__("rates/g", h5py.ExternalLink(str(decoy(path)), "/"))),
        "'rates/g' is a soft or external link",
    ),
    "virtual": (with_file(virtual("other")), "is a virtual data set"),
    "virtual from itself": (with_file(virtual(".")), "is a virtual data set"),
    "soft link": (with_file(lambda file, _: file.__setitem__("x", h5py.SoftLink("/states"))), "soft or external link"),
    "soft link cycle": (with_file(lambda file, _: file.__setitem__("x", h5py.SoftLink("/x"))), "soft or external link"),
    "group within itself": (
        with_file(lambda file, _: file["rates"].__setitem__("again", file["rates"])),
        "second link",
    ),
    "root within itself": (with_file(lambda file, _: file.__setitem__("again", file["/"])), "second link"),
    "array twice": (with_file(lambda file, _: file.__setitem__("again", file["states"])), "second link"),
    "deep groups": (with_file(deep_groups), "more than 16 deep"),
    "many links": (with_file(many_links), "more than 10,000 objects"),
    "committed type": (
        with_file(lambda file, _: file.__setitem__("x", np.dtype("f8"))),
        "neither a group nor a data set",
    ),
    # 10, 11: sizes
    "2^40 elements": (with_file(huge(2**40)), "its digests do not fit its arrays"),
    "2^60 elements": (with_file(huge(2**60)), "its digests do not fit its arrays"),
    "2^40 digests": (with_file(huge(2**40, "digests")), "its digests do not fit its arrays"),
    "manifest of 500 MB": (with_file(huge(500_000_000, "manifest")), "its manifest has 500,000,000 bytes"),
    "nothing stored": (with_file(nothing_stored), "0 of 1 chunks of 'rates/data' are stored"),
    "bomb": (with_file(bomb), "the chunk at"),
    "small bomb": (with_file(forged_chunk(zlib.compress(bytes(4_000_000)))), "does not inflate to the size of a chunk"),
    "too short": (with_file(forged_chunk(zlib.compress(bytes(7_199)))), "does not inflate to the size of a chunk"),
    "no deflate stream": (with_file(forged_chunk(bytes(100))), "not a deflate stream"),
    "unfinished stream": (with_file(forged_chunk(zlib.compress(GOOD.tobytes())[:-9])), "does not inflate"),
    "broken stream": (with_file(forged_chunk(b"\x78\x01" + b"\xff" * 60)), "is damaged"),
    "tiny chunk": (with_file(forged_chunk(b"")), "is damaged"),
    "filter skipped": (with_file(forged_chunk(GOOD.tobytes(), mask=2)), "not stored as ctmc does"),
    # 13, 15: types, filters, layout
    "unknown filter": (
        with_file(lambda file, _: (file.__delitem__("states"), low_level(file, "states", 900, dcpl_with((32099, ()))))),
        "filters [32099]",
    ),
    "no filter": (replaced(GOOD, shuffle=False, compression=None, fletcher32=False), "filters []"),
    "no checksum": (replaced(GOOD, fletcher32=False), "filters [2, 1]"),
    "lzf": (replaced(GOOD, compression="lzf"), "filters [2, 32000, 3]"),
    "no shuffle": (replaced(GOOD, shuffle=False), "filters [1, 3]"),
    "filters doubled": (
        with_file(lambda file, _: low_level(file, "x", 900, dcpl_with(SHUFFLE, DEFLATE, DEFLATE, FLETCHER))),
        "filters [2, 1, 1, 3]",
    ),
    "contiguous": (replaced(GOOD, chunks=None, shuffle=False, compression=None, fletcher32=False), "or not in chunks"),
    "other chunks": (replaced(GOOD, chunks=(100,)), "stored in chunks of (100,), not of (900,)"),
    "scalar": (replaced(1.0), "filters []"),
    "null space": (replaced(h5py.Empty("f8")), "filters []"),
    "big-endian": (replaced(GOOD.astype(">f8")), "the type of 'rates/data'"),
    "half precision": (replaced(GOOD.astype("f2")), "the type of 'rates/data'"),
    "complex": (replaced(GOOD.astype("c16")), "the type of 'rates/data'"),
    "booleans": (replaced(GOOD > 3), "the type of 'rates/data'"),
    "text": (replaced(np.array([b"a", b"b"])), "the type of 'rates/data'"),
    "objects": (
        replaced(np.array(["a", "b"], dtype=object), dtype=h5py.string_dtype(), fletcher32=False),
        "the type of",
    ),
    "lists": (
        with_file(lambda file, _: file.create_dataset("x", (3,), dtype=h5py.vlen_dtype(np.int64))),
        "the type of 'x'",
    ),
    "references": (with_file(lambda file, _: file.create_dataset("x", (3,), dtype=h5py.ref_dtype)), "the type of 'x'"),
    "records": (replaced(np.zeros(9, dtype="i4,f8")), "the type of 'rates/data'"),
    "subarrays": (
        with_file(lambda file, _: file.create_dataset("x", (3,), dtype=np.dtype(("f8", (2,))))),
        "the type of 'x'",
    ),
    "other dtype": (replaced(GOOD.astype("i8")), "do not match its content hash"),
    "other shape": (replaced(GOOD.reshape(30, 30)), "do not match its content hash"),
    "manifest of integers": (
        with_file(lambda file, _: (file.__delitem__("manifest"), as_stored(file, "manifest", np.arange(9)))),
        "'manifest' does not consist of bytes",
    ),
    # 18: edited
    "manifest edited": (with_file(edited_manifest()), "manifest was damaged or edited"),
    "manifest and digest edited": (with_file(edited_manifest("digest")), "do not match its content hash"),
    "about edited": (
        with_file(lambda file, _: file["manifest"].__setitem__(20, file["manifest"][20] ^ 1)),
        "manifest was damaged or edited",
    ),
    "array edited": (with_file(other_values), "was changed: it does not match its digest"),
    "arrays exchanged": (with_file(swap), "do not match its content hash"),
    "array added": (with_file(lambda file, _: as_stored(file, "more", GOOD)), "its digests do not fit its arrays"),
    "empty array added": (
        with_file(lambda file, _: as_stored(file, "more", GOOD[:0], chunks=(1,), maxshape=(None,))),
        "do not match its content hash",
    ),
    "digests edited": (
        with_file(lambda file, _: file["digests"].__setitem__(20, file["digests"][20] ^ 1)),
        "do not match its content hash",
    ),
    # 20: manifests
    "brackets": (forged_manifest(b"[" * 10**6), "not the JSON that ctmc writes"),
    "nested objects": (forged_manifest(b'{"a":' * 10**5 + b"1" + b"}" * 10**5), "not the JSON that ctmc writes"),
    "doubled keys": (forged_manifest(b'{"a":1,"a":2}'), "not in canonical form"),
    "not a number": (forged_manifest(b'{"a":NaN}'), "not the JSON that ctmc writes"),
    "infinity": (forged_manifest(b'{"a":-Infinity}'), "not the JSON that ctmc writes"),
    "1e400": (forged_manifest(b'{"a":1e400}'), "not the JSON that ctmc writes"),
    "lone surrogate": (forged_manifest(b'{"a":"\\ud800"}'), "not the JSON that ctmc writes"),
    "encoded surrogate": (forged_manifest(b'{"a":"\xed\xa0\x80"}'), "not the JSON that ctmc writes"),
    "spaces": (forged_manifest(b'{"a": 1}'), "not in canonical form"),
    "order": (forged_manifest(b'{"b":1,"a":1}'), "not in canonical form"),
    "list": (forged_manifest(b"[1]"), "not in canonical form"),
    "no JSON": (forged_manifest(b"\x80\x04K\x01."), "not the JSON that ctmc writes"),
    "nothing": (forged_manifest(b""), "not the JSON that ctmc writes"),
    "long integer": (forged_manifest(b'{"a":' + b"9" * 5_000 + b"}"), "not the JSON that ctmc writes"),
    "escaped name": (
        with_file(lambda file, _: file.__setitem__("a\x1b[31m\n<b>", h5py.SoftLink("/x"))),
        "'a\\x1b[31m\\x0a<b>' is a soft",
    ),
    "name not UTF-8": (with_file(lambda file, _: file.id.links.create_soft(b"\xff", b"/x")), "utf-8"),
}
assert len(HOSTILE) >= 90


@contextlib.contextmanager
def watched(path: Path) -> Iterator[Callable[[], bool]]:
    """Tell whether a file was opened by anybody, where the system can."""
    if not (sys.platform == "linux" and path.exists()):
        yield lambda: False
        return
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    assert descriptor >= 0
    assert libc.inotify_add_watch(descriptor, os.fsencode(path), 0x20) >= 0

    def opened() -> bool:
        try:
            return bool(os.read(descriptor, 4096))
        except BlockingIOError:
            return False

    try:
        yield opened
    finally:
        os.close(descriptor)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


PATHS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "No such file"),
    "folder": (Path.mkdir, "it is a folder, not a regular file"),
    "pipe": (os.mkfifo, "it is a pipe, not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
    "socket": (bound_socket, "it is a socket, not a regular file"),
    "link to itself": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    "empty": (Path.touch, "it is empty"),
}
assert len(PATHS) >= 7
