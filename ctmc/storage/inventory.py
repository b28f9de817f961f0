"""What a store holds, whether it is whole, and what of it may go.

Everything is read from the files themselves.  The time of a file tells when it was last used, for `prune` only: whether something
is used again never depends on it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctmc.errors import StorageError, printable
from ctmc.storage.atomic import dead_leftovers
from ctmc.storage.container import read_container
from ctmc.storage.gate import opened
from ctmc.storage.locks import BusyError
from ctmc.storage.models import MODEL_KINDS
from ctmc.storage.solutions import solution_folder, solution_paths
from ctmc.storage.store import LOCKS, Store, model_paths
from ctmc.storage.variants import whole_file

SECONDS_PER_DAY = 86400.0
SEARCHES = "searches"
"""The folder in a store of what searches for the best parameter have found."""

Check = Callable[[Path], str]
Sizes = Mapping[str, tuple[tuple[int, ...], int]]


@dataclass(frozen=True)
class Entry:
    """A file of a store.

    Attributes
    ----------
    path : Path
    kind : str
        'model', 'solution' or 'search'; 'damaged' where its manifest cannot be read, and `problem` says why.
    bytes : int
        On the disk.
    used : float
        Seconds since the epoch when it was last used.
    builder : str or None
    parameters : mapping
    recipe_hash : str or None
    states : int or None
        None for a QBD, which has infinitely many.
    solutions : int
        Of a model.
    problem : str
    """

    path: Path
    kind: str
    bytes: int
    used: float
    builder: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    recipe_hash: str | None = None
    states: int | None = None
    solutions: int = 0
    problem: str = ""


def array_sizes(path: str | os.PathLike[str]) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return shape and bytes of each array of a file, without reading one."""
    with opened(Path(path)) as stored:
        return {name: (array.shape, array.size) for name, array in stored.arrays().items()}


def array_length(sizes: Sizes, name: str) -> int | None:
    """Return the length of an array, stored as it is or as codes; None where there is no such array.

    Examples
    --------
    >>> array_length({"exit_rates.codes": ((9, 2), 18)}, "exit_rates")
    9
    """
    shape, _ = sizes.get(name, sizes.get(f"{name}.codes", (None, 0)))
    return None if shape is None else shape[0]


def checked_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder of a store; raise `StorageError` where there is none."""
    path = Path(folder)
    if not path.is_dir():
        raise StorageError(f"The store {printable(path)} is not there; allowed is a folder that `ctmc run` has made.")
    return path


def entries(folder: Path, *, solutions: bool = False) -> list[Entry]:
    """Return the models of a store, and their solutions and the searches if asked for, sorted by name.

    Parameters
    ----------
    folder : Path
    solutions : bool
        Whether to list these too; those whose model is gone come last.
    """
    found = []
    models = model_paths(folder)
    for path in models:
        found.append(_entry(path, "model"))
        if solutions:
            found += [_entry(solution, "solution") for solution in solution_paths(path)]
    if solutions:
        known = {solution_folder(path) for path in models}
        for other in sorted(set(folder.glob("[!.]*.solutions")) - known):
            found += [_entry(path, "solution") for path in sorted(other.glob("[!.]*.h5"))]
        found += [_entry(path, "search") for path in sorted((folder / SEARCHES).glob("[!.]*.h5"))]
    return found


def _entry(path: Path, kind: str) -> Entry:
    status = path.stat()
    facts: dict[str, Any] = {"bytes": status.st_size, "used": status.st_mtime}
    try:
        info = read_container(path, MODEL_KINDS if kind == "model" else (kind,), only=()).manifest
        if kind == "model":
            recipe = info.get("builder") or {}
            facts |= {
                "builder": recipe.get("name"),
                "parameters": recipe.get("parameters", {}),
                "recipe_hash": recipe.get("recipe_hash"),
                "states": array_length(array_sizes(path), "exit_rates"),
                "solutions": len(solution_paths(path)),
            }
    except StorageError as error:
        return Entry(path, "damaged", **facts, problem=str(error))
    return Entry(path, kind, **facts)


def verify(folder: Path, check: Check, told: Callable[[Path, str], object]) -> int:
    """Check every file of a store, tell what is wrong with each ('' where nothing is), and return how many are damaged.

    Parameters
    ----------
    folder : Path
    check : callable
        Returns what is wrong with a file, as one sentence.
    told : callable
    """
    damaged = 0
    for entry in entries(folder, solutions=True):
        problem = check(entry.path)
        damaged += bool(problem)
        told(entry.path, problem)
    return damaged


@dataclass(frozen=True)
class Pruned:
    """A file that `prune` has removed, or would; `reason` says why it stays where it does."""

    path: Path
    bytes: int
    what: str
    reason: str = ""


def prune(
    folder: Path,
    *,
    older_than: float | None = None,
    larger_than: int | None = None,
    keep: Collection[str] | None = None,
    damaged: Check | None = None,
    dry_run: bool = False,
) -> list[Pruned]:
    """Remove what dead writers left behind, and the models and solutions that meet all conditions that are given.

    Damaged files, which a run never replaces, meet `damaged` only.

    Files are looked at one by one: an answer outlives its model, and is found again when the model has been built again.

    Parameters
    ----------
    folder : Path
    older_than : float, optional
        Days since a file was last used.
    larger_than : int, optional
        Bytes.
    keep : collection of str, optional
        Names below the folder that stay; all others meet this condition.
    damaged : callable, optional
        Returns what is wrong with a file; those with which something is go.
    dry_run : bool
        Whether to remove nothing.

    Returns
    -------
    list of Pruned
        With no condition, leftovers only.  A model stays as long as one that is it at other rates.
    """
    others = (*folder.glob("[!.]*.solutions"), folder / SEARCHES)
    places = [folder, *sorted(path for path in others if path.is_dir())]
    done = []
    for place in places:
        # the size is gone with the file
        done += [Pruned(path, 0, "leftover") for path in dead_leftovers(place, remove=not dry_run)]
    conditions = not (older_than is None and larger_than is None and keep is None)
    if not conditions and damaged is None:
        return done
    now = time.time()
    doomed: list[Entry] = []
    for entry in entries(folder, solutions=True):
        if damaged is not None and damaged(entry.path):
            done.append(Pruned(entry.path, entry.bytes, "damaged", "" if dry_run else _remove(folder, entry)))
            continue
        if entry.kind == "damaged" or not conditions:
            continue
        name = entry.path.relative_to(folder).as_posix()
        old = older_than is None or now - entry.used > older_than * SECONDS_PER_DAY
        large = larger_than is None or entry.bytes > larger_than
        kept = keep is not None and (name in keep or entry.kind == "search")  # results do not name searches
        if old and large and not kept:
            doomed.append(entry)
    children = _children(folder, {entry.path for entry in doomed})
    for entry in doomed:
        needed = children.get(entry.path.resolve())
        reason = f"{printable(needed.name)} is this model at other rates" if needed is not None else ""
        done.append(Pruned(entry.path, entry.bytes, entry.kind, reason or ("" if dry_run else _remove(folder, entry))))
    if not dry_run:
        for place in (*places[1:], folder / LOCKS):
            with contextlib.suppress(OSError):  # it is not empty, or somebody is at it
                place.rmdir()
    return done


def _children(folder: Path, doomed: Collection[Path]) -> dict[Path, Path]:
    """Return for each parent, as an absolute path, a variant of it that stays."""
    found = {}
    for path in model_paths(folder):
        if path not in doomed:
            with contextlib.suppress(StorageError):
                found[whole_file(path).resolve()] = path
    return {parent: path for parent, path in found.items() if parent != path.resolve()}


def _remove(folder: Path, entry: Entry) -> str:
    """Remove a file unless its model is being built; return why it stays."""
    with contextlib.ExitStack() as stack:
        if entry.recipe_hash is not None:
            try:
                stack.enter_context(Store(folder).locked(entry.recipe_hash[:32]))
            except BusyError as who:
                return f"{who} is building it"
        try:
            entry.path.unlink(missing_ok=True)
        except OSError as error:
            return printable(error.strerror)
    return ""
