"""Variants: a re-rated model as a file of a few kilobytes that points to the file of its parent.

The manifest names the parent by a path relative to the variant and by the hash of its content, the parameters that differ, and
the hash that the re-rated model has when it is saved in full.  So an answer belongs to the model, however it is stored, and
whatever has happened to the parent or to the builder shows.  The parent is always a full file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.errors import CTMCError, StorageError, printable
from ctmc.model.generator import Generator
from ctmc.model.recipe import Recipe
from ctmc.model.rerating import RATES
from ctmc.storage.container import Container, content_hash, read_container, write_container
from ctmc.storage.fields import field
from ctmc.storage.hash_tree import Stream
from ctmc.storage.verified import Progress

KIND = "variant"
Model = Any
"""A Generator or QBD."""
Describe = Callable[[Model], tuple[dict[str, Any], dict[str, np.ndarray], Stream]]


@dataclass(frozen=True)
class Origin:
    """What a variant says of its parent and of itself.

    Attributes
    ----------
    path : str
        The parent, relative to the folder of the variant, with slashes.
    parent_hash : str
        Content hash of the parent.
    changes : mapping of str to JSON value
        Parameters of the builder that differ.
    kind, content_hash : str
        Of the re-rated model when it is saved in full.
    """

    path: str
    parent_hash: str
    changes: Mapping[str, Any]
    kind: str
    content_hash: str

    def beside(self, variant: str | os.PathLike[str]) -> Path:
        """Return where the parent of a variant is looked for."""
        return _folder(variant) / self.path


def origin_of(manifest: Mapping[str, Any]) -> Origin:
    """Return what the manifest of a variant says.

    Raises
    ------
    StorageError
        If a field is missing, or the parent is not named by a relative path.
    """
    parent, model = field(manifest, "parent", dict), field(manifest, "model", dict)
    path = field(parent, "path", str)
    if not path or "\0" in path or "\\" in path or Path(path).is_absolute():
        raise StorageError(f"its parent is {printable(repr(path))}; allowed is a path relative to it, with slashes")
    return Origin(
        path,
        field(parent, "content_hash", str),
        field(manifest, "changes", dict),
        field(model, "kind", str),
        field(model, "content_hash", str),
    )


def whole_file(path: str | os.PathLike[str]) -> Path:
    """Return the file of a model in full: the parent of a variant, else the file itself."""
    container = read_container(path, ("generator", "qbd", KIND), only=())
    if container.kind != KIND:
        return Path(path)
    with _about(path):
        return origin_of(container.manifest).beside(path)


def write_variant(
    path: str | os.PathLike[str],
    model: Model,
    whole: Path,
    parent: Model,
    describe: Describe,
    *,
    overwrite: bool,
    proven: bool = False,
) -> str:
    """Save a model as its parent at other rates, and return the content hash that it has in full.

    Parameters
    ----------
    path : path-like
    model : Generator or QBD
    whole : Path
        The parent's file.
    parent : Generator or QBD
        Loaded from it.
    describe : callable
        Returns manifest, arrays and the stream of a model's file.
    overwrite : bool
    proven : bool
        Whether the model is known to be the parent at other rates; else that is tried, which takes as long as hashing a model.

    Raises
    ------
    StorageError
        If the model is more than its parent at other rates, or the file cannot be written.
    """
    manifest, arrays, stream = describe(model)
    with _about(path, "Cannot write"):
        changes = changes_between(parent.recipe, model.recipe)
        digest = content_hash(_kind(model), manifest, arrays, stream)
        if not proven and content_hash(_kind(model), *describe(parent.with_rates(**changes))) != digest:
            raise StorageError(
                "it is not its parent at other rates, but has states, labels, rewards or notes of its own"
            )
    entry = {
        **{name: manifest[name] for name in ("about", "notes", "builder")},
        "parent": {"path": relative_path(whole, path), "content_hash": parent.content_hash},
        "changes": changes,
        "model": {"kind": _kind(model), "content_hash": digest},
    }
    write_container(path, KIND, entry, rate_arrays(arrays), overwrite=overwrite)
    object.__setattr__(model, "content_hash", digest)  # what is known now of the same, unchanged model
    return digest


def restored_variant(
    container: Container, load: Callable[[Path, Progress | None], Model], describe: Describe, progress: Progress | None
) -> Model:
    """Return the model of a variant: its parent, at other rates, proven by both hashes.

    Raises
    ------
    StorageError
        If the parent is missing or another model, or the builder does not make what was stored.
    """
    with _about(container.path):
        origin = origin_of(container.manifest)
        place = origin.beside(container.path)
        if not place.exists():
            raise StorageError(f"its parent {printable(place)} is missing; put it back there, and keep both together")
        parent = load(place, progress)
        if parent.content_hash != origin.parent_hash:
            raise StorageError(
                f"its parent {printable(place)} holds another model now (content hash {str(parent.content_hash)[:12]}.., "
                f"wanted is {printable(origin.parent_hash)[:12]}..)"
            )
        model = parent.with_rates(**origin.changes)
        manifest, arrays, stream = describe(model)
        given = rate_arrays(arrays)
        if given.keys() != container.arrays.keys() or not all(
            np.array_equal(given[name], array) for name, array in container.arrays.items()
        ):
            raise StorageError("its rates are not those that the builder gives for its parameters")
        digest = content_hash(_kind(model), manifest, arrays, stream)
        if (_kind(model), digest) != (origin.kind, origin.content_hash):
            raise StorageError("the model that its parent and its parameters give is not the one that was stored")
    return model.replace(content_hash=digest)


def rate_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the small tables of rates among a model's arrays; other forms have none, and the builder makes their rates."""
    small = {f"rates/{name}" for name in RATES}
    return {name: array for name, array in arrays.items() if name in small}


def changes_between(parent: Recipe | None, model: Recipe | None) -> dict[str, Any]:
    """Return the parameters in which a model differs from its parent.

    Raises
    ------
    StorageError
        If they were not made by the same version of the same builder, or a parameter was left out or given anew.
    """
    if parent is None or model is None or (parent.builder, parent.version) != (model.builder, model.version):
        raise StorageError("it was not made by the same version of the same builder as its parent")
    if parent.functions != model.functions or parent.parameters.keys() != model.parameters.keys():
        raise StorageError("it has other parameters than its parent, not other rates only")
    return {name: value for name, value in model.parameters.items() if value != parent.parameters[name]}


def relative_path(parent: str | os.PathLike[str], variant: str | os.PathLike[str]) -> str:
    """Return the parent's path as a variant names it."""
    whole = _folder(parent) / Path(parent).name
    return Path(os.path.relpath(whole, _folder(variant))).as_posix()


def _folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a file, symbolic links to it resolved."""
    return Path(path).parent.resolve()


def _kind(model: Model) -> str:
    return "generator" if isinstance(model, Generator) else "qbd"


@contextmanager
def _about(path: str | os.PathLike[str], what: str = "Cannot load the variant") -> Iterator[None]:
    """Turn what is wrong with a variant into one sentence about its file."""
    try:
        yield
    except CTMCError as error:
        raise StorageError(f"{what} {printable(os.fspath(path))}: {str(error).rstrip('.')}.") from error
