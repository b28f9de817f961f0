"""Files damaged at random, or cut, are never taken for whole ones."""

from __future__ import annotations

from pathlib import Path

import container_examples
import numpy as np
import pytest
from container_examples import KIND, MANIFEST, refusal, same, small_arrays
from forgeries import DAMAGE

from ctmc.errors import StorageError
from ctmc.storage.container import read_container, write_container

small = container_examples.small
pytestmark = pytest.mark.timeout(180)  # damaged files have made HDF5 loop


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_noticed(tmp_path: Path, name: str, part: int) -> None:
    assert len(DAMAGE) >= 4
    generator = np.random.default_rng([20261129, part])
    path = tmp_path / "file.h5"
    write_container(path, KIND, MANIFEST, small_arrays(part + 2), group_attributes={"rates": {"shape": (300, 300)}})
    original, expected = path.read_bytes(), read_container(path, [KIND])
    refused = 0
    for _ in range(130):
        data = bytearray(original)
        DAMAGE[name](generator, data)
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
