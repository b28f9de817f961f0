"""A store: a folder of models, each found by its recipe, with the solutions beside it.

The folder is the truth; there is no index that could go stale.  A model stands under its builder's name and the first digits of
its recipe's hash, such as ``supermarket-3f2a91c0de.h5``; one whose recipe does not make it again stands under the digits of its
content instead, and is never found.  Readers take no lock, so that a store may lie on a read-only file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ctmc import registry
from ctmc.errors import CTMCError, StorageError, printable
from ctmc.model.recipe import Prepared, Recipe
from ctmc.model.rerating import rates_that_may_change
from ctmc.storage.container import content_hash
from ctmc.storage.locks import BusyError, cache_folder, held, lock_name
from ctmc.storage.models import KINDS, MODEL_KINDS, describe, read_info, save
from ctmc.storage.solutions import solution_folder, solution_paths
from ctmc.storage.stored import load_or_open
from ctmc.storage.variants import write_variant

LOCKS = ".locks"
"""The folder of a store's locks: empty when nothing runs."""
_DIGITS = (10, 64)
"""Of the hash in a name: a few for people, and all of them where another file has that name."""


def file_name(name: str) -> str:
    """Return a file name, without suffix, for any name.

    Examples
    --------
    >>> file_name("queue-2"), file_name("../x")[:9]
    ('queue-2', '..%2Fx-d6')
    """
    if re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,80}", name, flags=re.ASCII):
        return name
    return f"{quote(name, safe='')[:80]}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"


@dataclass(frozen=True)
class Stored:
    """A model in a store.

    Attributes
    ----------
    path : Path
    built : bool
        Whether it was built just now, by this process.
    notes : tuple of str
        Of the model, where it was built just now.
    rates : mapping of str to value
        Where it is another model of the store at other rates, these.
    """

    path: Path
    built: bool
    notes: tuple[str, ...] = ()
    rates: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Store:
    """A folder of models and their solutions, and perhaps others that are looked into and never written.

    Attributes
    ----------
    folder : Path
        Where new files go.
    others : tuple of Path
        Looked into after it.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(Path(folder))
    ...     prepared = registry.prepare("birth_death", births=[1.0], deaths=[2.0])
    ...     first, second = store.get_or_build(prepared), store.get_or_build(prepared)
    ...     first.path.name, first.built, second.built
    ('birth_death-4de5d3ab52.h5', True, False)
    """

    folder: Path
    others: tuple[Path, ...] = ()
    _parents: dict[Path, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def folders(self) -> tuple[Path, ...]:
        """All folders that are looked into, in this order."""
        return (self.folder, *self.others)

    def models(self) -> list[Path]:
        """Return the files of models, of all folders, sorted by name."""
        return [path for folder in self.folders for path in model_paths(folder)]

    def model(self, recipe: Recipe | str, **parameters: Any) -> Path | None:
        """Return the file of a model, None where there is none.

        Parameters
        ----------
        recipe : Recipe or str
            A recipe, or the name of a builder, with parameters.
        """
        made = registry.prepare(recipe, **parameters).recipe if isinstance(recipe, str) else recipe
        if made is None or not made.reproducible:
            return None
        places = (folder / name for folder in self.folders for name in _names(made))
        return next((path for path in places if recipe_hash(path) == made.hash), None)

    def get_or_build(
        self,
        prepared: Prepared,
        *,
        builder: str = "model",
        rebuild: bool = False,
        waiting: Callable[[str], object] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Stored:
        """Return a model's file, building it where there is none; of several processes that want it one builds.

        Parameters
        ----------
        prepared : Prepared
            From `ctmc.registry.prepare`.
        builder : str
            Names a model without a recipe.
        rebuild : bool
            Build it in any case, and replace what is there.
        waiting : callable, optional
            Told who builds the same model, before waiting for that.
        stopped : callable
            Looked at while waiting; true gives it up.

        Raises
        ------
        StorageError
            If the file cannot be written, or waiting was given up.
        """
        recipe = prepared.recipe
        if recipe is None or not recipe.reproducible:
            return self._by_content(prepared, builder)
        found = None if rebuild else self.model(recipe)
        if found is not None:
            return Stored(found, False)
        with contextlib.ExitStack() as stack:
            try:
                told = waiting or (lambda who: None)
                stack.enter_context(self.locked(recipe.hash[:32], waiting=told, stopped=stopped))
            except BusyError as who:
                raise StorageError(f"waiting for the model that {who} builds was given up.") from None
            found = None if rebuild else self.model(recipe)
            if found is not None:
                return Stored(found, False)
            path = self._place(recipe)
            if not rebuild:
                stored = self._rerated(recipe, path)
                if stored is not None:
                    return stored
            model = prepared.build()
            save(path, model, overwrite=True)
            return Stored(path, True, tuple(model.notes))

    def parent(self, recipe: Recipe) -> tuple[Path, dict[str, Any]] | None:
        """Return the file of a model that differs in rates only, and these rates as they shall be; None where there is none."""
        if recipe.made_by is None or recipe.functions:
            return None
        defaults = {name: each.default for name, each in inspect.signature(recipe.made_by).parameters.items()}
        may = rates_that_may_change(recipe.made_by, {**defaults, **recipe.parameters})
        for path in model_paths(self.folder):
            if path.name.startswith(f"{file_name(recipe.builder)}-"):
                entry = _builder_entry(path, KINDS) or {}
                if (entry.get("name"), entry.get("version"), entry.get("functions")) == (
                    recipe.builder,
                    recipe.version,
                    {},
                ):
                    before, now = (
                        {**defaults, **given} for given in (entry.get("parameters") or {}, recipe.parameters)
                    )
                    changes = {name: value for name, value in now.items() if before.get(name) != value}
                    if changes and before.keys() == now.keys() and all(may.get(name, "") is None for name in changes):
                        return path, changes
        return None

    def _rerated(self, recipe: Recipe, path: Path) -> Stored | None:
        """Store a model as a variant of one that differs in rates only, if there is one and it can be taken at other rates."""
        found = self.parent(recipe)
        if found is None:
            return None
        try:
            if found[0] not in self._parents:
                self._parents.clear()  # one at a time
                self._parents[found[0]] = load_or_open(found[0])
            parent = self._parents[found[0]]
            model = parent.with_rates(**found[1])
            if model.recipe.hash != recipe.hash:
                return None
            write_variant(path, model, found[0], parent, describe, overwrite=True, proven=True)
        except CTMCError:
            return None  # more than rates would change, or the file cannot be read: the build tells
        return Stored(path, True, tuple(model.notes), found[1])

    def locked(
        self,
        name: str,
        *,
        waiting: Callable[[str], object] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> contextlib.AbstractContextManager[bool]:
        """Hold a lock of this store; see `ctmc.storage.locks.held`."""
        folder = self.folder / LOCKS
        with contextlib.suppress(OSError):
            folder.mkdir()
        if _not_writable(folder):  # the lock of another folder serves the processes of this host
            folder, name = cache_folder(), lock_name(folder / name)
        return held(folder, name, waiting=waiting, stopped=stopped, tidy=True)

    def solutions(self, model: Path) -> list[Path]:
        """Return the files of a model's solutions, those in other folders included, sorted by name in each."""
        return [path for folder in self.folders for path in solution_paths(folder / model.name)]

    def solution_folder(self, model: Path) -> Path:
        """Return where new solutions of a model go: beside it, or in `folder` where it lies in another one."""
        return solution_folder(self.folder / model.name)

    def recipes(self, builder: str) -> Sequence[Mapping[str, Any]]:
        """Return what the manifests of the models of one builder say of how these were made."""
        found = []
        for path in self.models():
            if path.name.startswith(f"{builder}-"):
                entry = _builder_entry(path)
                if entry is not None and entry.get("name") == builder:
                    found.append(entry)
        return found

    def _by_content(self, prepared: Prepared, builder: str) -> Stored:
        model = prepared.build()
        kind = "qbd" if hasattr(model, "boundary_levels") else "generator"
        name = prepared.recipe.builder if prepared.recipe is not None else builder
        digits = content_hash(kind, *describe(model))[:32] if _is_storable(model) else "0"
        path = self.folder / f"{file_name(name)}-content-{digits}.h5"
        save(path, model)
        return Stored(path, True, tuple(model.notes))

    def _place(self, recipe: Recipe) -> Path:
        """Return where a model goes: a name that is free, or that it has already."""
        for name in _names(recipe):
            path = self.folder / name
            if not os.path.lexists(path) or recipe_hash(path) == recipe.hash:
                return path
        raise StorageError(
            f"{printable(self.folder / _names(recipe)[0])} cannot be read and stands in the way of the model; remove it."
        )


def _names(recipe: Recipe) -> list[str]:
    return [f"{file_name(recipe.builder)}-{recipe.hash[:digits]}.h5" for digits in _DIGITS]


def _is_storable(model: Any) -> bool:
    from ctmc.model.level_dependent import LevelDependentQBD

    return not isinstance(model, LevelDependentQBD)


def open_store(folder: str | os.PathLike[str], otherwise: Path | None = None) -> Store:
    """Return the store in a folder, which is made if it is not there; one that cannot be written is read only.

    Parameters
    ----------
    folder : path-like
    otherwise : Path, optional
        Where new files go if `folder` cannot be written.

    Raises
    ------
    StorageError
        If the folder cannot be made, or written without an `otherwise`.
    """
    folder = Path(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"The store {printable(folder)} cannot be made: {printable(error.strerror)}.") from None
    problem = _not_writable(folder)
    if not problem:
        return Store(folder)
    if otherwise is None or otherwise.resolve() == folder.resolve():
        raise StorageError(f"The store {printable(folder)} cannot be written: {problem}.")
    return Store(open_store(otherwise).folder, (folder,))


def _not_writable(folder: Path) -> str:
    """Return why nothing can be written into a folder, '' where it can; tried, since permissions do not tell of everything."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return printable(error.strerror)


def model_paths(folder: Path) -> list[Path]:
    """Return the files in a store that are named as models are, sorted; unfinished ones are hidden."""
    return sorted(path for path in folder.glob("[!.]*.h5") if path.is_file())


def recipe_hash(path: Path) -> str | None:
    """Return the recipe's hash that a file's manifest holds, None for what is no readable model with a recipe."""
    entry = _builder_entry(path) if path.is_file() else None
    return None if entry is None else entry.get("recipe_hash")


def _builder_entry(path: Path, kinds: Sequence[str] = MODEL_KINDS) -> dict[str, Any] | None:
    try:
        info = read_info(path)
    except StorageError:
        return None
    entry = info.get("builder")
    return entry if info["kind"] in kinds and isinstance(entry, dict) else None


def touch(path: Path) -> None:
    """Note that a file has been used, for `prune`; a store that cannot be written takes no note."""
    with contextlib.suppress(OSError):
        os.utime(path)
