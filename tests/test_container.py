"""The file layer: what is written is read back, and nothing else is ever taken for it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from ctmc.errors import StorageError
from ctmc.storage import atomic, checksum, container, gate, pool
from ctmc.storage.atomic import replace_file
from ctmc.storage.container import SCHEMA_VERSION, content_hash, read_container, write_container
from ctmc.storage.hash_tree import Stream

pytestmark = pytest.mark.timeout(180)  # damaged files have made HDF5 loop

ROOT = Path(__file__).resolve().parent.parent
KIND = "example"
MANIFEST = {
    "about": {"ctmc": "0.1.0", "date": "2026-11-29"},
    "parameters": {"arrival_rate": 0.9500000000000001, "capacity": 2**70 + 1, "name": 'Müller ☃ 😀 </script>\x1b"\\'},
    "list": [1, 1.0, -0.0, 5e-324, 1.7976931348623157e308, None, True, []],
}


def small_arrays(seed: int = 20261129) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        "rates/data": generator.choice(generator.random(40), size=900),
        "rates/indices": np.sort(generator.integers(0, 300, size=900)).astype(np.int32),
        "rates/indptr": np.arange(0, 903, 3, dtype=np.int64),
        "labels/full": np.array([7, 299], dtype=np.int64),
        "states": generator.integers(0, 9, size=(300, 4), dtype=np.uint8),
    }


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.h5"
    write_container(path, KIND, MANIFEST, small_arrays())
    return path


def same(first: container.Container, second: container.Container) -> bool:
    return (
        (first.kind, first.content_hash) == (second.kind, second.content_hash)
        and json.dumps(first.manifest) == json.dumps(second.manifest)
        and list(first.arrays) == list(second.arrays)
        and all(
            table.dtype == other.dtype and table.shape == other.shape and table.tobytes() == other.tobytes()
            for table, other in zip(first.arrays.values(), second.arrays.values(), strict=True)
        )
    )


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".part")]


# What is written is read back


ARRAYS: dict[str, Callable[[], np.ndarray]] = {
    **{
        dtype: lambda dtype=dtype: np.arange(1_000).astype(dtype)
        for dtype in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f8", ">i2", ">u4", ">i8", ">f8")
    },
    "extreme integers": lambda: np.array([-(2**63), 2**63 - 1, 0, -1]),
    "special floats": lambda: np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1.7976931348623157e308]),
    "one element": lambda: np.array([3], dtype=np.int16),
    "empty": lambda: np.empty(0),
    "empty bytes": lambda: np.empty(0, dtype=np.uint8),
    "no rows": lambda: np.empty((0, 3), dtype=np.int32),
    "no columns": lambda: np.empty((3, 0), dtype=np.int32),
    "strided": lambda: np.arange(3_000)[::-3],
    "transposed": lambda: np.arange(60).reshape(5, 12).T,
    "read-only": lambda: np.frombuffer(bytes(range(200)), dtype=np.int32),
    "four dimensions": lambda: np.arange(360.0).reshape(3, 4, 5, 6),
    "exactly one slab": lambda: np.arange(2**19, dtype=np.float64),
    "one more than a slab": lambda: np.arange(2**19 + 1, dtype=np.float64),
    "slabs of bytes": lambda: np.arange(9_000_000, dtype=np.uint32).astype(np.uint8),
    "rows of uneven slabs": lambda: np.arange(3 * 600_000, dtype=np.float64).reshape(3, 600_000),
    "columns of slabs": lambda: np.arange(3 * 600_000, dtype=np.int16).reshape(600_000, 3),
    "noise": lambda: np.random.default_rng(7).random(700_000),
    "noise, then zeros": lambda: np.random.default_rng(8).random(700_000) * (np.arange(700_000) < 90_000),
    "noise in bytes": lambda: np.random.default_rng(9).integers(0, 256, 200_000).astype(np.uint8),
}
assert len(ARRAYS) >= 30


@pytest.mark.parametrize("name", ARRAYS)
def test_array_survives(tmp_path: Path, name: str) -> None:
    array = ARRAYS[name]()
    path = tmp_path / "file.h5"
    digest = write_container(path, KIND, {}, {"group/array": array})
    found = read_container(path, [KIND])
    table = found.arrays["group/array"]
    assert table.dtype == array.dtype.newbyteorder("<")
    assert table.tobytes() == np.ascontiguousarray(array, dtype=table.dtype).tobytes()
    assert table.shape == array.shape
    assert not table.flags.writeable
    assert found.content_hash == digest == content_hash(KIND, {}, {"group/array": array})
    with h5py.File(path) as file:  # HDF5's own reader checks the checksums that we computed
        np.testing.assert_array_equal(file["group/array"][()], array)
        assert file["group/array"].fletcher32
        assert file["group/array"].compression == "gzip"
        assert file["group/array"].shuffle == (array.dtype.itemsize > 1)


def test_manifest_survives(small: Path) -> None:
    found = read_container(small, ["other", KIND])
    assert found.manifest == MANIFEST
    assert repr(found.manifest["list"]) == repr(MANIFEST["list"])
    assert found.path == small
    assert found.kind == KIND


def test_content_and_chunks_do_not_depend_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"b": np.random.default_rng(3).random(1_200_000), "a": np.arange(2_000_000)}
    results = []
    for workers in (1, 2, 5):
        path = tmp_path / f"{workers}.h5"
        monkeypatch.setattr(pool, "worker_count", lambda workers=workers: workers)
        digest = write_container(path, KIND, MANIFEST, arrays)
        with h5py.File(path) as file:
            chunks = [file[name].id.read_direct_chunk((start,))[1] for name in arrays for start in (0, 2**19, 2**20)]
        results.append((digest, chunks))
        assert same(read_container(path, [KIND]), read_container(tmp_path / "1.h5", [KIND]))
    assert results[0] == results[1] == results[2]


def test_file_has_no_text_of_variable_length_and_an_old_format(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    attributes = {"encoding-type": "csc_matrix", "encoding-version": "0.1.0", "shape": (300, 300)}
    write_container(path, KIND, MANIFEST, small_arrays(), group_attributes={"rates": attributes, "labels": {"n": 5}})
    assert path.read_bytes()[8] == 3  # the superblock of HDF5 1.10, with checksums
    checked = 0
    with h5py.File(path) as file:
        assert file.attrs["format"] == b"ctmc"
        assert file.attrs["schema_version"] == SCHEMA_VERSION
        assert file["rates"].attrs["encoding-type"] == b"csc_matrix"
        assert file["rates"].attrs["shape"].tolist() == [300, 300]
        assert file["labels"].attrs["n"] == 5
        objects = [file]
        file.visititems(lambda _, found: objects.append(found))
        for found in objects:
            for name in found.attrs:
                assert not found.attrs.get_id(name).get_type().detect_class(h5py.h5t.VLEN)
                assert not getattr(found.attrs.get_id(name).get_type(), "is_variable_str", lambda: False)()
                checked += 1
    assert checked >= 9
    assert read_container(path, [KIND]).manifest == MANIFEST


@pytest.mark.parametrize(
    ("group", "attributes"),
    [
        ("rates", {"text": "µ"}),
        ("rates", {"text": ""}),
        ("rates", {"number": 0.5}),
        ("rates", {"numbers": (1, 2.5)}),
        ("rates", {"numbers": ()}),
        ("rates", {"number": 2**64}),
        ("nowhere", {"number": 1}),
        ("states", {"number": 1}),
    ],
)
def test_group_attribute_is_refused(tmp_path: Path, group: str, attributes: dict[str, object]) -> None:
    with pytest.raises(StorageError, match=r"Cannot write .*file\.h5"):
        write_container(tmp_path / "file.h5", KIND, {}, small_arrays(), group_attributes={group: attributes})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1, 2, 3, 719, 720, 721, 8191, 8192, 32767, 32768, 32769, 65536, 100_001])
@pytest.mark.parametrize("fill", ["noise", "ones", "zeros", "last"])
def test_checksum_is_that_of_hdf5(size: int, fill: str) -> None:
    data = {"noise": np.random.default_rng(size + 2).bytes(size), "ones": b"\xff" * size}.get(fill, bytes(size))
    data += b"\x01" if fill == "last" else b""
    sums = [0, 0]  # as HDF5 defines it, word by word
    for word in np.frombuffer(data + bytes(len(data) % 2), dtype=">u2").tolist():
        sums[0] += word
        sums[1] += sums[0]
        sums = [(part & 0xFFFF) + (part >> 16) for part in sums]
    sums = [(part & 0xFFFF) + (part >> 16) for part in sums]
    assert checksum.fletcher32(np.frombuffer(data, dtype=np.uint8)) == sums[1] << 16 | sums[0]


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "f8"])
def test_chunks_that_hdf5_filtered_can_be_unpacked(dtype: str) -> None:
    values = np.random.default_rng(5).integers(0, 200, 1_001).astype(dtype)
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        data = file.create_dataset("x", data=values, chunks=(600,), shuffle=True, compression="gzip", fletcher32=True)
        file.flush()
        for start in (0, 600):
            found = np.empty(min(600, 1_001 - start), dtype=dtype)
            checksum.unpack(data.id.read_direct_chunk((start,))[1], found, 600)
            assert found.tobytes() == values[start : start + 600].tobytes()


# The hash


def independent_hash(path: Path) -> str:
    """Return the content hash as the documentation defines it, with nothing of ours."""

    def canonical(value: object) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    with h5py.File(path) as file:
        manifest = json.loads(file["manifest"][()].tobytes())
        manifest.pop("about", None)
        arrays: dict[str, h5py.Dataset] = {}
        file.visititems(lambda name, item: arrays.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        digests = {}
        for name in sorted(set(arrays) - {"manifest", "digests"}):
            data = arrays[name]
            step = int(np.prod(data.chunks))
            flat = data[()].reshape(-1)
            slabs = [flat[start : start + step].tobytes() for start in range(0, flat.size, step)]
            head = canonical([name, data.dtype.str, list(data.shape)]) + b"\n"
            digests[name] = hashlib.sha256(head + b"".join(hashlib.sha256(slab).digest() for slab in slabs)).hexdigest()
        top = {
            "arrays": digests,
            "kind": file.attrs["kind"].decode(),
            "manifest": manifest,
            "schema_version": int(file.attrs["schema_version"]),
        }
    return hashlib.sha256(canonical(top)).hexdigest()


def test_hash_is_the_documented_one(small: Path, tmp_path: Path) -> None:
    assert independent_hash(small) == read_container(small, [KIND]).content_hash
    large = tmp_path / "large.h5"
    digest = write_container(large, KIND, MANIFEST, {"a/b": np.arange(1_500_000), "c": np.empty((0, 2))})
    assert independent_hash(large) == digest


CHANGES: dict[str, tuple[str, dict[str, object], dict[str, np.ndarray]]] = {
    "kind": ("other", MANIFEST, small_arrays()),
    "manifest value": (KIND, {**MANIFEST, "list": []}, small_arrays()),
    "integer, not float": (KIND, {**MANIFEST, "list": [1, 1, *MANIFEST["list"][2:]]}, small_arrays()),
    "new key": (KIND, {**MANIFEST, "more": None}, small_arrays()),
    "array value": (KIND, MANIFEST, small_arrays() | {"labels/full": np.array([7, 298])}),
    "dtype": (KIND, MANIFEST, small_arrays() | {"labels/full": np.array([7, 299], dtype=np.uint64)}),
    "shape": (KIND, MANIFEST, small_arrays() | {"labels/full": np.array([[7, 299]])}),
    "array missing": (KIND, MANIFEST, {name: array for name, array in small_arrays().items() if name != "states"}),
    "array renamed": (KIND, MANIFEST, {f"x/{name}": array for name, array in small_arrays().items()}),
    "array added": (KIND, MANIFEST, small_arrays() | {"empty": np.empty(0)}),
}
assert len(CHANGES) >= 10


@pytest.mark.parametrize("change", CHANGES)
def test_hash_covers_content(change: str) -> None:
    assert content_hash(*CHANGES[change]) != content_hash(KIND, MANIFEST, small_arrays())


def test_hash_does_not_cover_what_is_not_content() -> None:
    expected = content_hash(KIND, MANIFEST, small_arrays())
    assert content_hash(KIND, MANIFEST | {"about": {}}, small_arrays()) == expected
    assert content_hash(KIND, dict(reversed(MANIFEST.items())), dict(reversed(small_arrays().items()))) == expected
    assert (
        content_hash(KIND, MANIFEST, {k: v.astype(v.dtype.newbyteorder(">")) for k, v in small_arrays().items()})
        == expected
    )
    assert content_hash(KIND, MANIFEST, {k: np.asfortranarray(v) for k, v in small_arrays().items()}) == expected


# What cannot be written


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


BAD_MANIFESTS: dict[str, Callable[[], object]] = {
    "not a number": lambda: {"x": float("nan")},
    "infinity": lambda: {"x": [float("inf")]},
    "integer key": lambda: {"x": {1: 2}},
    "keys that become equal": lambda: {"x": {1: 2, "1": 3}},
    "array": lambda: {"x": np.arange(3)},
    "set": lambda: {"x": {1}},
    "bytes": lambda: {"x": b"y"},
    "lone surrogate": lambda: {"x": "\udcff"},
    "lone surrogate in a key": lambda: {"\ud800": 1},
    "deep": lambda: {"x": nested(100_000)},
    "large": lambda: {"x": "y" * 17_000_000},
}
BAD_ARRAYS: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "scalar": lambda: {"x": np.array(1.0)},
    "text": lambda: {"x": np.array(["a"])},
    "objects": lambda: {"x": np.array([None])},
    "booleans": lambda: {"x": np.array([True])},
    "complex": lambda: {"x": np.array([1j])},
    "half precision": lambda: {"x": np.array([1], dtype=np.float16)},
    "long double": lambda: {"x": np.array([1], dtype=np.longdouble)},
    "dates": lambda: {"x": np.array(["2026-11-29"], dtype="M8[s]")},
    "records": lambda: {"x": np.zeros(3, dtype="i4,f8")},
    "nine dimensions": lambda: {"x": np.zeros((1,) * 9)},
    **{
        f"name {name!r}": lambda name=name: {name: np.zeros(3)}
        for name in (
            "",
            "/x",
            "x/",
            "x//y",
            ".",
            "../x",
            "x/./y",
            "manifest",
            "digests",
            "manifest/x",
            "x\ny",
            "\udcff",
        )
    },
    "name within another": lambda: {"x": np.zeros(3), "x/y": np.zeros(3)},
    "deep name": lambda: {"/".join("abcdefghijklmnopq"): np.zeros(3)},
}
assert len(BAD_MANIFESTS) >= 11
assert len(BAD_ARRAYS) >= 24


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_manifest_is_refused(tmp_path: Path, name: str) -> None:
    manifest = BAD_MANIFESTS[name]()
    with pytest.raises(StorageError, match=r"^Cannot write .*file\.h5: the manifest "):
        write_container(tmp_path / "file.h5", KIND, manifest, {})
    with pytest.raises(StorageError, match=r"^Cannot hash example: the manifest "):
        content_hash(KIND, manifest, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_array_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match=r"^Cannot write .*file\.h5: (an|the) array "):
        write_container(tmp_path / "file.h5", KIND, {}, BAD_ARRAYS[name]())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["", "µ", "a\nb", "x" * 65])
def test_kind_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(StorageError, match="the kind is"):
        write_container(tmp_path / "file.h5", kind, {}, {})


# What stands there already


def test_same_content_is_left_as_it_is(small: Path) -> None:
    before = small.stat()
    digest = write_container(small, KIND, MANIFEST | {"about": {"ctmc": "0.2.0"}}, small_arrays())
    assert digest == read_container(small, [KIND]).content_hash
    assert (small.stat().st_ino, small.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    write_container(small, KIND, MANIFEST | {"about": {"ctmc": "0.2.0"}}, small_arrays(), overwrite=True)
    assert read_container(small, [KIND]).manifest["about"] == {"ctmc": "0.2.0"}


def test_same_content_but_damaged_is_replaced(small: Path) -> None:
    original = small.read_bytes()
    damage_array(small)
    with pytest.raises(StorageError, match="damaged"):
        read_container(small, [KIND])
    write_container(small, KIND, MANIFEST, small_arrays())
    assert small.read_bytes() == original


def test_other_content_is_replaced_only_when_asked(small: Path) -> None:
    before = small.read_bytes()
    with pytest.raises(StorageError, match=r"small\.h5: it exists already and holds another model.*--overwrite"):
        write_container(small, KIND, {}, {})
    assert small.read_bytes() == before
    digest = write_container(small, KIND, {}, {}, overwrite=True)
    assert read_container(small, [KIND]).content_hash == digest
    assert leftovers(small.parent) == []


def text_file(path: Path) -> None:
    path.write_text("my thesis")


def foreign_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.arange(3)


def damaged_head(path: Path) -> None:
    write_container(path, KIND, MANIFEST, small_arrays())
    path.write_bytes(path.read_bytes()[:-1])


FOREIGN: dict[str, Callable[[Path], object]] = {
    "text": text_file,
    "empty": Path.touch,
    "other HDF5": foreign_hdf5,
    "truncated": damaged_head,
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path),
}
assert len(FOREIGN) >= 8


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_file_is_never_replaced(tmp_path: Path, name: str, overwrite: bool) -> None:
    path = tmp_path / "precious"
    FOREIGN[name](path)
    before = os.lstat(path)
    with pytest.raises(
        StorageError, match=r"precious: what stands there is not a readable file of ctmc .* never replaced"
    ):
        write_container(path, KIND, {}, {}, overwrite=overwrite)
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)
    assert os.listdir(tmp_path) == ["precious"]


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/file\.h5: there is no folder .*nowhere"):
        write_container(tmp_path / "nowhere" / "file.h5", KIND, {}, {})


def test_many_writers_of_one_path(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    digests: list[str | StorageError] = []

    def write() -> None:
        try:
            digests.append(write_container(path, KIND, MANIFEST, small_arrays()))
        except StorageError as error:
            digests.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digests == [content_hash(KIND, MANIFEST, small_arrays())] * 8
    assert os.listdir(tmp_path) == ["file.h5"]


# Reading in part


def array_span(path: Path, name: str) -> tuple[int, int]:
    """Return where the first chunk of an array stands in the file."""
    with h5py.File(path) as file:
        info = file[name].id.get_chunk_info(0)
    return info.byte_offset, info.size


def damage_array(path: Path, name: str = "rates/data") -> None:
    address, size = array_span(path, name)
    data = bytearray(path.read_bytes())
    data[address + size // 2] ^= 4
    path.write_bytes(data)


def test_only_some_arrays(small: Path) -> None:
    damage_array(small)
    assert read_container(small, [KIND], only=()).arrays == {}
    assert read_container(small, [KIND], only=()).manifest == MANIFEST
    found = read_container(small, [KIND], only=["states", "rates/indptr", "states"])
    assert list(found.arrays) == ["rates/indptr", "states"]
    with pytest.raises(StorageError, match=r"small\.h5: slab 0 of the array 'rates/data' is damaged \(its checksum"):
        read_container(small, [KIND], only=["rates/data"])
    for name in ("nothing", "manifest", "rates"):
        with pytest.raises(StorageError, match=f"it has no array '{name}'"):
            read_container(small, [KIND], only=[name])


def test_memory_limit_comes_before_any_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.h5"
    write_container(path, KIND, {}, {"zeros": np.zeros(2_000_000)})
    with pytest.raises(StorageError, match="need 16,000,000 bytes, more than the memory limit of 15,999,999"):
        read_container(path, [KIND], memory_limit=15_999_999)
    assert read_container(path, [KIND], memory_limit=16_000_000).arrays["zeros"].size == 2_000_000
    monkeypatch.setattr("ctmc.model.memory.memory_limit", lambda: 10)
    with pytest.raises(StorageError, match="memory limit of 10;"):
        read_container(path, [KIND])
    assert read_container(path, [KIND], only=()).arrays == {}


def test_failing_allocation_is_a_sentence(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    arrays = small_arrays()
    monkeypatch.setattr(np, "empty", fail)
    with pytest.raises(StorageError, match="there is not enough memory"):
        read_container(small, [KIND])
    with pytest.raises(StorageError, match="there is not enough memory"):
        write_container(small, KIND, {}, arrays, overwrite=True)
    assert os.listdir(small.parent) == ["small.h5"]


def test_progress(tmp_path: Path) -> None:
    arrays = {"a": np.zeros(2_000_000), "b": np.zeros(7, dtype=np.uint8), "c": np.empty(0)}
    written: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []
    write_container(tmp_path / "file.h5", KIND, {}, arrays, progress=lambda *news: written.append(news))
    read_container(tmp_path / "file.h5", [KIND], progress=lambda *news: read.append(news))
    assert written == read
    assert [done for done, _ in read] == sorted({done for done, _ in read})
    assert read[-1] == (16_000_007, 16_000_007)
    assert len(read) == 5


def test_little_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "worker_count", lambda: 3)
    begun = []
    results = pool.in_order(lambda item: begun.append(item) or item, iter(range(1_000)))
    assert [next(results) for _ in range(10)] == list(range(10))
    time.sleep(0.05)
    assert len(begun) <= 10 + 2 * 3 + 1
    results.close()


def test_threads_follow_the_limit() -> None:
    from ctmc.threads import limited_threads

    with limited_threads(1):
        assert pool.worker_count() == 1
    assert 1 <= pool.worker_count() <= 8


def test_kinds(small: Path) -> None:
    with pytest.raises(StorageError, match=r"small\.h5: it holds a 'example'; wanted is 'generator' or 'qbd'"):
        read_container(small, ["generator", "qbd"])


# Damage


MUTATIONS: dict[str, Callable[[np.random.Generator, bytearray], object]] = {}


def mutation(function: Callable[[np.random.Generator, bytearray], object]) -> Callable[..., object]:
    MUTATIONS[function.__name__] = function
    return function


@mutation
def one_bit(generator: np.random.Generator, data: bytearray) -> None:
    data[generator.integers(len(data))] ^= 1 << generator.integers(8)


@mutation
def some_bytes(generator: np.random.Generator, data: bytearray) -> None:
    size = int(generator.integers(1, 9))
    start = int(generator.integers(len(data) - size))
    data[start : start + size] = generator.bytes(size)


@mutation
def zeroed_sector(generator: np.random.Generator, data: bytearray) -> None:
    start = int(generator.integers(len(data)))
    data[start : start + 512] = bytes(len(data[start : start + 512]))


@mutation
def truncation(generator: np.random.Generator, data: bytearray) -> None:
    del data[int(generator.integers(len(data))) :]


def refusal(path: Path) -> str | None:
    try:
        read_container(path, [KIND])
    except StorageError as error:
        return str(error)
    return None


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", MUTATIONS)
def test_damage_is_noticed(tmp_path: Path, name: str, part: int) -> None:
    assert len(MUTATIONS) >= 4
    generator = np.random.default_rng([20261129, part])
    path = tmp_path / "file.h5"
    write_container(path, KIND, MANIFEST, small_arrays(part + 2), group_attributes={"rates": {"shape": (300, 300)}})
    original, expected = path.read_bytes(), read_container(path, [KIND])
    refused = 0
    for _ in range(130):
        data = bytearray(original)
        MUTATIONS[name](generator, data)
        path.write_bytes(data)
        sentence = refusal(path)
        if sentence is None:
            assert same(read_container(path, [KIND]), expected)
        else:
            assert sentence.startswith(f"Cannot read {path}: ")
            assert sentence.isprintable()
            refused += 1
    assert refused >= 80


def test_truncation_at_each_of_200_offsets(small: Path) -> None:
    data = small.read_bytes()
    superblock = 48
    offsets = {0, 1, 7, 8, superblock - 1, superblock, len(data) - 1} | set(range(2, len(data) - 2, len(data) // 194))
    assert len(offsets) >= 200
    for offset in offsets:
        small.write_bytes(data[:offset])
        with pytest.raises(StorageError, match=r"^Cannot read .*small\.h5: .*\.$"):
            read_container(small, [KIND])
        with pytest.raises(StorageError):
            read_container(small, [KIND], only=())


# Foreign and hostile files.  Each row changes or replaces a good file and says what the sentence must contain.


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


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.h5"
    write_container(path, KIND, MANIFEST, small_arrays() | {"empty": np.empty(0)})
    change, phrase = HOSTILE[name]
    change(path)
    with watched(path.with_name("decoy.h5")) as opened:
        start = time.process_time()
        with pytest.raises(StorageError) as caught:
            read_container(path, [KIND])
        assert time.process_time() - start < 2
        assert not opened()
    sentence = str(caught.value)
    assert sentence.startswith(f"Cannot read {path}: ")
    assert sentence.isprintable()
    assert len(sentence) < 600
    assert phrase in sentence


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


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_the_watch_would_notice(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    write_container(path, KIND, MANIFEST, small_arrays())
    with_file(virtual("other"))(path)
    with watched(path.with_name("decoy.h5")) as opened:
        with h5py.File(path) as file:
            assert file["rates/data"][()].tolist() == [0, 1, 2]
        assert opened()


def test_honest_file_that_shrinks_a_lot(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    zeros = np.zeros(50_000_000, dtype=np.uint8)
    write_container(path, KIND, {}, {"zeros": zeros, "more": np.zeros(5_000_000)})
    assert path.stat().st_size < 90_000_000 / 150
    assert not read_container(path, [KIND]).arrays["zeros"].any()


PLUGIN = """
#include <stdio.h>
#include <stdlib.h>
typedef struct { int version; int id; unsigned encoder, decoder; const char *name;
                 void *can, *set; size_t (*filter)(); } h5z;
static size_t run() { return 0; }
static h5z entry = {1, 32099, 1, 1, "marker", 0, 0, run};
__attribute__((constructor)) static void mark() {
    FILE *file = fopen(getenv("MARKER"), "w"); if (file) fclose(file); }
int H5PLget_plugin_type(void) { return 0; }
const void *H5PLget_plugin_info(void) { return &entry; }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a compiler")
def test_filter_plugin_is_not_loaded(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (tmp_path / "plugin.c").write_text(PLUGIN)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", plugins / "libmarker.so", tmp_path / "plugin.c"], check=True)
    path = tmp_path / "file.h5"
    write_container(path, KIND, MANIFEST, small_arrays())
    with edit(path) as file:
        del file["rates/data"]
        low_level(file, "rates/data", 900, dcpl_with((32099, ()))).write_direct_chunk((0,), b"x" * 100)
    environment = os.environ | {
        "HDF5_PLUGIN_PATH": str(plugins),
        "MARKER": str(tmp_path / "marker"),
        "PYTHONPATH": str(ROOT),
    }
    ours = f"from ctmc.storage.container import read_container; read_container({str(path)!r}, ['example'])"
    theirs = f"import h5py; h5py.File({str(path)!r})['rates/data'][()]"
    for script, loaded, message in ((ours, False, "filters [32099]"), (theirs, True, "")):
        result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert result.returncode == 1
        assert message in result.stderr
        assert (tmp_path / "marker").exists() == loaded


# Paths


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


@pytest.mark.parametrize("name", PATHS)
def test_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = Path("file.h5")
    make, phrase = PATHS[name]
    make(path)
    with pytest.raises(StorageError, match=f"^Cannot read file.h5: .*{phrase}"):
        read_container(path, [KIND])


def test_unreadable_file(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=r"small\.h5: Permission denied\.$"):
        read_container(small, [KIND])


def test_pipe_that_takes_the_place_of_a_file(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regular = os.stat(small)
    small.unlink()
    os.mkfifo(small)
    monkeypatch.setattr(os, "stat", lambda *_, **__: regular)
    with pytest.raises(StorageError, match="it is a pipe"):
        read_container(small, [KIND])


def test_nul_in_path() -> None:
    with pytest.raises(StorageError, match=r"a\\x00b"):
        read_container("a\0b", [KIND])
    with pytest.raises(StorageError, match=r"a\\x00b"):
        write_container("a\0b", KIND, {}, {})
    with pytest.raises(StorageError, match=r"a\\x00b"):
        replace_file("a\0b", Path.touch, overwrite=True)


NAMES = {
    "new line": b"a\nb.h5",
    "escape": b"a\x1b[31m.h5",
    "markup": b"<script>.h5",
    "255 bytes": b"x" * 255,
    "255 bytes of UTF-8": ("µ" * 127).encode() + b"x",
    "not UTF-8": b"a\xff\xfe.h5",
    "leading hyphen": b"-o.h5",
    "spaces": b" a b ",
    "quotes": b"'\"`$(x).h5",
}
assert len(NAMES) >= 9


@pytest.mark.parametrize("name", NAMES)
def test_file_name_works_and_is_shown_escaped(tmp_path: Path, name: str) -> None:
    path = tmp_path / os.fsdecode(NAMES[name])
    digest = write_container(path, KIND, MANIFEST, small_arrays())
    assert write_container(path, KIND, {}, {}, overwrite=True) != digest
    assert os.listdir(os.fsencode(tmp_path)) == [NAMES[name]]
    assert read_container(path, [KIND]).manifest == {}
    path.write_bytes(b"spoilt")
    with pytest.raises(StorageError) as caught:
        read_container(path, [KIND])
    assert str(caught.value).isprintable()
    assert str(caught.value).encode()  # no lone surrogates either


# Failures while writing


class Countdown:
    """Let the k-th call of a function fail."""

    def __init__(self, function: Callable[..., object], moment: int, failure: BaseException) -> None:
        self.function, self.moment, self.failure, self.fired = function, moment, failure, False

    def __call__(self, *arguments: object, **options: object) -> object:
        self.moment -= 1
        if self.moment == 0:
            self.fired = True
            raise self.failure
        return self.function(*arguments, **options)


FAILURES = {
    "no room": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "quota": OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    "disk error": OSError(errno.EIO, os.strerror(errno.EIO)),
    "interrupt": KeyboardInterrupt(),
}
STEPS = {"pwrite": 8, "ftruncate": 1, "fsync": 2, "replace": 1, "open": 3, "link": 1}  # and how often at least
assert len(FAILURES) * len(STEPS) >= 24


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("step", STEPS)
def test_failure_of_each_step_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: str
) -> None:
    path = tmp_path / "file.h5"
    overwrite = step != "link"
    fired = 0
    for moment in range(1, 200):
        path.unlink(missing_ok=True)
        if overwrite:
            write_container(path, KIND, MANIFEST, small_arrays())
        before = path.read_bytes() if overwrite else None
        countdown = Countdown(getattr(os, step), moment, FAILURES[failure])
        with monkeypatch.context() as patch:
            patch.setattr(os, step, countdown)
            raised, digest = None, ""
            try:
                digest = write_container(path, KIND, {"x": 1}, small_arrays(), overwrite=overwrite)
            except (StorageError, KeyboardInterrupt) as error:
                raised = error
        assert countdown.fired == (raised is not None)
        if failure == "interrupt":
            assert not isinstance(raised, StorageError)
        elif raised is not None:
            assert str(raised).startswith(f"Cannot write {path}: ")
            assert FAILURES[failure].strerror in str(raised)
        assert leftovers(tmp_path) == []
        if not countdown.fired:
            assert read_container(path, [KIND]).content_hash == digest
            break
        fired += 1
        if path.exists() and path.read_bytes() != before:
            # Only when the last step failed, flushing the folder, does the new file stand there, whole.
            assert step in ("fsync", "open")
            assert moment >= 2
            assert read_container(path, [KIND]).manifest == {"x": 1}
    assert fired >= STEPS[step]
    assert threading.active_count() < 20


def test_interrupt_in_progress(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"

    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_container(path, KIND, {}, {"x": np.arange(3_000_000)}, progress=interrupt)
    assert os.listdir(tmp_path) == []
    write_container(path, KIND, {}, {"x": np.arange(3_000_000)})
    with pytest.raises(KeyboardInterrupt):
        read_container(path, [KIND], progress=interrupt)


def test_write_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:100], offset))
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: pread(descriptor, min(size, 100), offset))
    write_container(tmp_path / "file.h5", KIND, MANIFEST, small_arrays())
    assert read_container(tmp_path / "file.h5", [KIND]).manifest == MANIFEST


def test_read_error_is_a_sentence(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment in range(1, 200):
        countdown = Countdown(os.pread, moment, OSError(errno.EIO, os.strerror(errno.EIO)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", countdown)
            sentence = refusal(small)
        if not countdown.fired:
            break
        assert sentence == f"Cannot read {small}: Input/output error."
    assert moment >= 10
    assert sentence is None


@pytest.mark.parametrize("moment", range(1, 8))
def test_process_ends_well_after_a_read_error(small: Path, moment: int) -> None:
    """HDF5 gives up a file whose beginning it cannot read only at the end of the process, and dies over it."""
    script = f"""
    import errno, os
    from ctmc.errors import StorageError
    from ctmc.storage.container import read_container
    real, count = os.pread, 0
    def fail(*arguments):
        global count
        count += 1
        if count == {moment}:
            raise OSError(errno.EIO, "broken")
        return real(*arguments)
    os.pread = fail
    try:
        read_container({str(small)!r}, {[KIND]!r})
    except StorageError:
        print("refused")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "refused\n")


def test_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    write_container(path, KIND, {}, small_arrays())
    script = f"""
    import numpy as np
    from ctmc.storage.container import write_container
    print("ready", flush=True)
    while True:
        for version in (1, 2):
            write_container({str(path)!r}, "example", {{"x": version}}, {{"x": np.arange(2_000_000)}}, overwrite=True)
    """
    for delay in (0.0, 0.03, 0.11, 0.23, 0.31):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert read_container(path, [KIND]).manifest in ({}, {"x": 1}, {"x": 2})
    write_container(path, KIND, {"x": 3}, small_arrays(), overwrite=True)
    assert os.listdir(tmp_path) == ["file.h5"]


# Other files


def test_replace_file(tmp_path: Path) -> None:
    path = tmp_path / "answer.csv"
    replace_file(path, lambda temporary: temporary.write_text("old") and None, overwrite=False)
    with pytest.raises(StorageError, match=r"answer\.csv: it exists already; overwrite=True or --overwrite"):
        replace_file(path, Path.touch, overwrite=False)
    with pytest.raises(ZeroDivisionError):
        replace_file(path, lambda _: 1 // 0 and None, overwrite=True)
    assert path.read_text() == "old"
    replace_file(path, lambda temporary: temporary.write_text("new") and None, overwrite=True)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["answer.csv"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_replace_file_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to("target")
    replace_file(tmp_path / "link", lambda temporary: temporary.write_text("new") and None, overwrite=True)
    assert (tmp_path / "target").read_text() == "mine"
    assert (tmp_path / "link").read_text() == "new"


@pytest.mark.parametrize("path", ["/dev/null", "/", "..", "."])
def test_replace_file_refuses(path: str) -> None:
    with pytest.raises(StorageError, match="Cannot write"):
        replace_file(path, Path.touch, overwrite=True)


def test_leftovers_are_removed_but_not_the_work_of_a_living_writer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for name in (".file.0123abcd.part", ".file.x.part", ".other.0123abcd.part", "file.part"):
        (tmp_path / name).touch()

    def slow(temporary: Path) -> None:
        replace_file(path, Path.touch, overwrite=True)
        assert temporary.exists()

    replace_file(path, slow, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == [".file.x.part", ".other.0123abcd.part", "file", "file.part"]


def test_file_system_without_hard_links_and_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(atomic.fcntl, "flock", refuse)
    path = tmp_path / "file.h5"
    digest = write_container(path, KIND, MANIFEST, small_arrays())
    assert read_container(path, [KIND]).content_hash == digest
    assert os.listdir(tmp_path) == ["file.h5"]


def test_file_that_appears_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(StorageError, match="it exists already"):
        replace_file(path, lambda temporary: path.write_text("faster") and None, overwrite=False)
    assert path.read_text() == "faster"
    assert os.listdir(tmp_path) == ["file"]


# The rules of the house


def test_only_the_gate_opens_hdf5() -> None:
    users = {
        str(path.relative_to(ROOT))
        for package in ("ctmc", "builders", "solvers")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"h5py\.File|h5f|import File\b|from h5py import \*", path.read_text())
    }
    assert users - {"ctmc/storage/gate.py"} == set()
    assert "h5py.File(" in (ROOT / "ctmc/storage/gate.py").read_text()


def test_hdf5_is_imported_late_and_silent(small: Path) -> None:
    damaged = small.with_name("damaged.h5")
    data = bytearray(small.read_bytes())
    data[60] ^= 1
    damaged.write_bytes(data)
    script = f"""
    import sys, threading
    from ctmc.errors import StorageError
    from ctmc.storage.container import read_container
    assert "h5py" not in sys.modules
    def read():
        try:
            read_container({str(damaged)!r}, ["example"])
        except StorageError as error:
            print(str(error).count("Cannot read"))
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    read()
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True)
    assert (result.stdout, result.stderr, result.returncode) == ("1\n1\n", "", 0)
