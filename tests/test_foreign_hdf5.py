"""HDF5 as other programs write it: what is read, and what is refused."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest
from forged_models import refused

from ctmc.storage import (
    foreign,
    gate,
)
from ctmc.storage.container import write_container
from ctmc.storage.gate import StoredArray


def written_by_others(path, fill):
    with h5py.File(path, "w") as file:
        fill(file)
    return path


def link_out(file):
    file["x"] = h5py.SoftLink("/y")


def with_filter(**options):
    return lambda file: file.create_dataset("x", data=np.arange(4000.0), chunks=(1000,), **options)


def damaged_chunk(data, mask=0, **options):
    def fill(file):
        dataset = file.create_dataset("x", shape=(100,), dtype="<f8", chunks=(100,), **options)
        dataset.id.write_direct_chunk((0,), data, mask)

    return fill


def outside(file):
    file.create_dataset("x", shape=(3,), dtype="<f8", external=[("elsewhere", 0, 24)])


OTHERS = {
    "nothing of that name": (lambda file: None, "it has no 'x'"),
    "a link": (link_out, "'x' is a soft or external link"),
    "a group": (lambda file: file.create_group("x"), "'x' is no array of numbers"),
    "another file": (outside, "the values of 'x' are stored in another file"),
    "text": (lambda file: file.create_dataset("x", data=np.bytes_("text")), "the type of 'x' is none of"),
    "no dimensions": (lambda file: file.create_dataset("x", data=1.0), "'x' has no dimensions, or more than 8"),
    "nine dimensions": (lambda file: file.create_dataset("x", data=np.ones((1,) * 9)), "'x' has no dimensions"),
    "other filters": (with_filter(scaleoffset=3), "'x' went through the filters"),
    "a large chunk": (lambda file: file.create_dataset("x", (2**24,), "<f8", chunks=(2**24,)), "a chunk of 'x' has 134,217,728 bytes; allowed are"),
    "no chunks": (lambda file: file.create_dataset("x", (100,), "<f8", chunks=(10,)), "0 of 10 chunks of 'x' are stored"),
    "no bytes": (lambda file: file.create_dataset("x", (10**5,), "<f8"), "'x' claims more bytes than the file has"),
    "a mask": (damaged_chunk(bytes(800), 1, compression="gzip"), "the chunk at (0,) of 'x' is not stored as the others"),
    "no stream": (damaged_chunk(bytes(100), compression="gzip"), "'x' is damaged (Error -3"),
    "a short chunk": (damaged_chunk(b"\x78\x01\x03\x00\x00\x00\x00\x01", compression="gzip"), "a chunk of 'x' has 0 bytes or more; it must have 800"),
    "another checksum": (damaged_chunk(bytes(800) + b"else", fletcher32=True), "a checksum of 'x' does not match"),
}  # fmt: skip


@pytest.mark.parametrize("fault", OTHERS)
def test_an_array_of_another_program_that_cannot_be_read_is_named(tmp_path, fault):
    fill, sentence = OTHERS[fault]
    with foreign.foreign(written_by_others(tmp_path / "x.mat", fill), 0) as file:
        refused(sentence, file.array, "x")


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": True}, {"compression": "gzip"}, {"shuffle": True, "compression": 9, "fletcher32": True}],
    ids=str,
)
@pytest.mark.parametrize("shape", [(0,), (7,), (30, 7), (3, 4, 5)], ids=str)
def test_arrays_of_another_program_are_read(tmp_path, shape, options):
    expected = np.random.default_rng(20260402).integers(-9, 9, shape).astype("<i4")
    chunks = tuple(max(1, length // 2) for length in shape)

    def fill(file):
        file.create_dataset("whole", data=expected)
        file.create_dataset("chunked", data=expected, maxshape=(None,) * len(shape), chunks=chunks, **options)

    with foreign.foreign(written_by_others(tmp_path / "x.mat", fill), 0) as file:
        assert sorted(file.names()) == ["chunked", "whole"]
        for name in file.names():
            assert file.members(name) is None
            np.testing.assert_array_equal(file.array(name), expected)


def test_members_and_attributes_of_another_program(tmp_path):
    def fill(file):
        group = file.create_group("sparse")
        group["data"], group["ir"] = np.ones(3), np.arange(3)
        group.create_group("jc")
        file["type"] = np.dtype("<f8")
        file["x"] = np.ones(2)
        for name, value in {
            "text": np.bytes_("sparse"), "number": np.uint8(7), "real": 1.5, "many": np.arange(3), "none": h5py.Empty("<i8"),
            "variable": "text", "long": np.bytes_("x" * 300),
        }.items():  # fmt: skip
            file["x"].attrs[name] = value

    with foreign.foreign(written_by_others(tmp_path / "x.mat", fill), 0) as file:
        assert sorted(file.members("sparse")) == ["data", "ir"]
        assert file.members("type") == {}
        assert file.array("ir", file.members("sparse")["ir"]).tolist() == [0, 1, 2]
        assert (file.attribute("x", "text"), file.attribute("x", "number")) == (b"sparse", 7)
        for name in ("real", "many", "none", "variable", "long", "missing"):
            assert file.attribute("x", name) is None


def test_more_names_than_anyone_needs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "MAX_OBJECTS", 20)
    fill = lambda file: [file.create_group(f"g{number}") for number in range(21)]  # noqa: E731
    with foreign.foreign(written_by_others(tmp_path / "x.mat", fill), 0) as file:
        refused("it has more than 20 objects", file.names)


def test_what_is_written_for_other_programs_is_read_by_them(tmp_path):
    """By HDF5's own reader, which skips what stands before the file."""
    path, block = tmp_path / "x.mat", b"MATLAB 7.3".ljust(512)
    path.touch()
    arrays = {"small": np.arange(6.0).reshape(2, 3), "large": np.arange(300_000).reshape(3, 100_000)}
    foreign.write_foreign(path, block, arrays, {"small": {"class": "double", "count": 6}})
    assert path.read_bytes()[:512] == block
    with h5py.File(path) as file:
        assert (file["small"].attrs["class"], file["small"].attrs["count"]) == (b"double", 6)
        assert (file["small"].chunks, file["large"].compression) == (None, "gzip")
    with foreign.foreign(path, 512) as file:
        for name, expected in arrays.items():
            np.testing.assert_array_equal(file.array(name), expected)


def test_an_array_that_claims_more_than_its_file_can_hold_is_refused(tmp_path):
    path = tmp_path / "x.h5"
    path.touch()
    with gate.created(path) as file:
        file.add("x", StoredArray((2**30,), np.dtype("<f8")))
    with gate.opened(path) as file:
        refused("'x' claims 8,589,934,592 bytes, more than the file can hold", file.chunks, "x", file.arrays()["x"])


def test_an_array_of_nine_dimensions_is_refused(tmp_path):
    path = tmp_path / "x.h5"
    path.touch()
    with gate.created(path) as file:
        file.add("x", StoredArray((1,) * 9, np.dtype("<f8")))
    with gate.opened(path) as file:
        refused("'x' has no dimensions, or more than 8", file.arrays)


def test_a_chunk_beyond_the_end_of_the_file_is_refused(tmp_path):
    write_container(tmp_path / "x.h5", "example", {}, {"x": np.arange(9)})
    with gate.opened(tmp_path / "x.h5") as file:
        array = file.arrays()["x"]
        (chunk,) = file.chunks("x", array)
        file._size = chunk.address + chunk.size - 1  # HDF5 itself opens no file that is shorter than it says
        refused("the chunk at (0,) of 'x' stands beyond the end of the file", file.chunks, "x", array)


def test_a_file_that_becomes_shorter_while_it_is_read_is_noticed(tmp_path):
    write_container(tmp_path / "x.h5", "example", {}, {"x": np.random.default_rng(20260403).random(5000)})
    with gate.opened(tmp_path / "x.h5") as file:
        (chunk,) = file.chunks("x", file.arrays()["x"])
        reader = file.reader()
        os.truncate(tmp_path / "x.h5", chunk.address + chunk.size - 1)
        refused("it became shorter while it was read", reader.read, chunk)
