"""The file layer: what is written is read back, the hash is the documented one, and what no file can hold is refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import container_examples
import h5py
import numpy as np
import pytest
from container_examples import KIND, MANIFEST, ROOT, same, small_arrays

from ctmc.errors import StorageError
from ctmc.storage import checksum, pool
from ctmc.storage.container import SCHEMA_VERSION, content_hash, read_container, write_container

small = container_examples.small
pytestmark = pytest.mark.timeout(180)  # damaged files have made HDF5 loop


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


@pytest.mark.parametrize("kind", ["x", "a kind of its own", "x" * 64])
def test_kind_comes_back(tmp_path: Path, kind: str) -> None:
    write_container(tmp_path / "file.h5", kind, {}, {})
    assert read_container(tmp_path / "file.h5", [kind]).kind == kind


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
