"""A model to store, and what is in a model's file, to be changed."""

import ctmc
from ctmc.storage.container import read_container

EXAMPLE = {"service_rates": [3, 2, 1], "arrival_rate": 3, "choices": 2, "capacity": 4, "preferences": [0.2, 0.3, 0.5]}


def described(tmp_path, model):
    """Return the manifest and the arrays of a model's file, to be changed."""
    ctmc.save(tmp_path / "described.h5", model)
    container = read_container(tmp_path / "described.h5", ["generator"])
    return container.manifest, {name: array.copy() for name, array in container.arrays.items()}
