"""What searches for the best parameter of a study's model have found, kept in the store so that they are not repeated.

A search is found again where the builder with its version, the parameters, what is searched and the version of the project agree.
It is small: the best values alone; the answer at these values is certified as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.errors import StorageError
from ctmc.model.recipe import plain
from ctmc.storage.container import read_container, write_container
from ctmc.storage.inventory import SEARCHES
from ctmc.storage.models import about
from ctmc.storage.question import project_version, question_hash
from ctmc.storage.store import Store, touch
from ctmc.study.content import StudyModel
from ctmc.study.parameters import names_code


def search_of(model: StudyModel) -> dict[str, Any] | None:
    """Return what a model's search asks, in plain values; None where code in its parameters may have changed."""
    task = model.optimize
    if task is None or any(names_code(value) for value in model.parameters.values()):
        return None
    return {
        "builder": model.builder,
        "builder_version": registry.builder_version(model.builder),
        "parameters": plain("parameters", dict(model.parameters)),
        "over": task.over,
        "minimize": task.minimize,
        "maximum": task.maximum,
        "method": task.method,
        "version": project_version(),
    }


def found_before(store: Store, search: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the best values of an earlier search, None where there is none that can be read."""
    for folder in store.folders:
        path = _path(folder, search)
        try:
            manifest = read_container(path, ("search",)).manifest if path.is_file() else {}
        except StorageError:
            continue
        if manifest.get("search") == dict(search) and isinstance(manifest.get("best"), dict):
            touch(path)
            return dict(manifest["best"])
    return None


def remember(store: Store, search: Mapping[str, Any], best: Mapping[str, Any]) -> None:
    """Keep the best values of a search."""
    path = _path(store.folder, search)
    path.parent.mkdir(exist_ok=True)
    manifest = {"search": dict(search), "best": plain("best", dict(best)), "about": about()}
    write_container(path, "search", manifest, {"none": np.empty(0)}, overwrite=True)


def _path(folder: Path, search: Mapping[str, Any]) -> Path:
    return folder / SEARCHES / f"{search['builder']}-{question_hash(search)[:10]}.h5"
