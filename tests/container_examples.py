"""A small file, and what several tests of the file layer need."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from ctmc.errors import StorageError
from ctmc.storage import container
from ctmc.storage.container import read_container, write_container

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


def foreign_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.arange(3)


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


def refusal(path: Path) -> str | None:
    try:
        read_container(path, [KIND])
    except StorageError as error:
        return str(error)
    return None


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
