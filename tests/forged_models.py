"""Models that are stored with a change under right hashes, and the sentence that refuses them."""

from __future__ import annotations

import numpy as np
import pytest
from test_storage import described

import ctmc
from ctmc.errors import StorageError
from ctmc.storage.container import write_container


def refused(sentence, call, *arguments, **options):
    """One sentence, with these words in it."""
    with pytest.raises(StorageError) as caught:
        call(*arguments, **options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def together(*changes):
    def change(manifest, arrays):
        for each in changes:
            each(manifest, arrays)

    return change


def shaped(name, *shape):
    def change(manifest, arrays):
        arrays[name] = np.resize(arrays[name], shape)

    return change


def added(name, array):
    def change(manifest, arrays):
        arrays[name] = np.array(array)

    return change


def forged(tmp_path, model, change):
    manifest, arrays = described(tmp_path, model)
    change(manifest, arrays)
    write_container(tmp_path / "forged.h5", "generator", manifest, arrays)
    return tmp_path / "forged.h5"


def three_states():
    return ctmc.Generator.from_matrix([[0, 1.0, 0.5], [2.0, 0, 1.0], [0, 4.0, 0]])
