"""Checkpoints: what an interrupted solve has reached, with the question that it belongs to."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.checkpoint import Progress, Run
from ctmc.errors import CTMCError, ModelError, StorageError, printable
from ctmc.model.generator import Generator
from ctmc.model.qbd import QBD
from ctmc.ranks import ALONE, Ranks
from ctmc.solution import HISTORY, Status
from ctmc.storage.container import content_hash, open_container, read_container, write_container
from ctmc.storage.fields import field, fields
from ctmc.storage.hash_tree import Stream
from ctmc.storage.models import about, describe
from ctmc.storage.ranges import StoredVector
from ctmc.storage.relay import write_together

KIND = "checkpoint"
_OWN = ("iterate", "value")
"""Vectors of which each rank has a part."""


def question_of(problem: Any, solver: Any) -> dict[str, Any]:
    """Return what a checkpoint must agree with: model, problem, solver with its options, and version.

    Parameters
    ----------
    problem : a problem on a Generator or QBD
    solver : solver object

    Returns
    -------
    dict
        JSON values; arrays and functions by their SHA-256 or name.

    Examples
    --------
    >>> from ctmc.problem import Stationary
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> question_of(Stationary(chain), registry.make_solver("gmres(restart=9)"))["tolerance"]
    1e-12
    """
    kind = type(solver)
    found: dict[str, Any] = {
        "version": about()["versions"]["ctmc-lab"],
        "model": _model_hash(problem.model),
        "problem": registry.problem_name(type(problem)),
        "solver": f"{kind.__module__}.{solver!r}",
        "tolerance": float(problem.tolerance),
    }
    for name in ("moments", "discount"):
        if hasattr(problem, name):
            found[name] = (int if name == "moments" else float)(getattr(problem, name))
    if getattr(problem, "reward", None) is not None:
        found["reward"] = list(problem.reward)
    for name in ("target", "avoid"):
        given = getattr(problem, name, None)
        if given is not None:
            found[name] = given if isinstance(given, str) else str(getattr(given, "__name__", type(given).__name__))
    if hasattr(problem, "times"):
        found["times"] = digest(problem.times)
    initial = getattr(problem, "initial", None)
    if initial is not None:
        found["initial"] = digest(initial.positions, initial.probabilities)
    return found


def digest(*arrays: np.ndarray) -> str:
    """Return the SHA-256 of arrays, 64 hexadecimal digits."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _model_hash(model: Generator | QBD) -> str:
    """Return the content hash that a stored model has."""
    if model.content_hash is not None:
        return model.content_hash
    if isinstance(model, Generator) and model.shared:
        if model.recipe is None:
            raise ModelError(
                "checkpoint is given for a shared model without a file or recipe; allowed is one with either."
            )
        return f"recipe {model.recipe.hash}"
    return content_hash("generator" if isinstance(model, Generator) else "qbd", *describe(model))


def digest_of_states(model: Generator, chosen: np.ndarray) -> str:
    """Return a digest of some states, given as truth values, that does not depend on who has them; 64 hexadecimal digits."""
    words = (np.flatnonzero(chosen).astype(np.uint64) + np.uint64(model.begin + 1)) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(29)
    with np.errstate(over="ignore"):
        words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(32)
    found = model.ranks.gathered(
        (len(words), int(words.sum(dtype=np.uint64)), int(np.bitwise_xor.reduce(words, initial=0)))
    )
    count, total = (sum(part) for part in list(zip(*found, strict=True))[:2])
    mixed = 0
    for _, _, word in found:
        mixed ^= word
    return hashlib.sha256(f"{count} {total % 2**64} {mixed}".encode()).hexdigest()


def check_place(path: str | os.PathLike[str]) -> None:
    """Raise `StorageError` where a checkpoint could never be written: no folder, or something else that is kept there."""
    parent = Path(path).absolute().parent
    if not (parent.is_dir() or (parent.parent.is_dir() and not os.path.lexists(parent))):
        raise StorageError(f"Cannot write {printable(os.fspath(path))}: there is no folder {printable(parent)}.")
    if os.path.lexists(path):
        read_container(path, (KIND,), only=())


def save_checkpoint(
    path: str | os.PathLike[str], question: Mapping[str, Any], progress: Progress, ranks: Ranks = ALONE
) -> None:
    """Write a checkpoint; it takes the place of an older one in one step.  Its folder is made if only that is missing.

    On several ranks the first one writes, and gets the parts of the others, those of iterates and values, one after the other.

    Raises
    ------
    StorageError
        Nothing can be written; what stood there is whole.
    """
    arrays: dict[str, np.ndarray] = {}
    runs = []
    for number, run in enumerate(progress.runs):
        arrays |= {f"runs/{number}/{name}": array for name, array in run.arrays.items()}
        for column in HISTORY.names or ():
            arrays[f"runs/{number}/history/{column}"] = np.ascontiguousarray(run.history[column])
        runs.append(
            {
                "status": None if run.status is None else run.status.name,
                "solver": run.solver,
                "states": run.states,
                "numbers": dict(run.numbers),
            }
        )
    manifest = {
        "about": about(),
        "question": dict(question),
        "seconds": float(progress.seconds),
        "products": int(progress.products),
        "runs": runs,
    }

    def write(stream: Stream | None) -> None:
        with contextlib.suppress(OSError):  # whatever is wrong, writing says it
            Path(path).parent.mkdir()
        write_container(path, KIND, manifest, arrays, overwrite=True, stream=stream)

    if ranks.count == 1:
        write(None)
        return
    parts = {name: np.ascontiguousarray(arrays.pop(name)) for name in list(arrays) if name.rpartition("/")[2] in _OWN}
    write_together(ranks, parts, write)


def load_checkpoint(
    path: str | os.PathLike[str], question: Mapping[str, Any] | None = None, ranks: Ranks = ALONE
) -> Progress:
    """Load a checkpoint, after verifying every byte of it.

    Parameters
    ----------
    path : path-like
    question : mapping, optional
        What `question_of` says of the solve that is to go on.
    ranks : Ranks
        Where there are several, what each has a part of stays in the file, as a `StoredVector`.

    Returns
    -------
    Progress

    Raises
    ------
    StorageError
        Foreign, newer, truncated or damaged file, or the checkpoint of another question; names what differs.
    """
    if not os.path.lexists(path):
        raise StorageError(f"Cannot resume {printable(os.fspath(path))}: there is no such checkpoint.")
    container = open_container(path, (KIND,))
    kept = [name for name in container.stored if ranks.count > 1 and name.rpartition("/")[2] in _OWN]
    arrays: dict[str, Any] = container.read([name for name in container.stored if name not in kept])
    arrays |= {name: StoredVector(container, name) for name in kept}
    manifest = container.manifest
    shown = printable(os.fspath(path))
    try:
        if question is not None:
            _compare(field(manifest, "question", dict), question)
        runs = [_restored(entry, number, arrays) for number, entry in enumerate(fields(manifest, "runs", dict))]
        if not runs or any(run.status is None for run in runs[:-1]):
            raise StorageError("its runs are not complete")
        return Progress(tuple(runs), field(manifest, "seconds", float), field(manifest, "products", int))
    except CTMCError as error:
        raise StorageError(f"Cannot resume {shown}: {str(error).rstrip('.')}.") from error


def _compare(stored: Mapping[str, Any], question: Mapping[str, Any]) -> None:
    for name in dict.fromkeys((*question, *stored)):
        before, now = stored.get(name), question.get(name)
        if before != now:
            words = [
                "none" if value is None else printable(value if isinstance(value, str) else repr(value))[:120]
                for value in (before, now)
            ]
            raise StorageError(f"it belongs to the {name} {words[0]}, this solve has {words[1]}; allowed is the same")


def _restored(entry: Mapping[str, Any], number: int, arrays: Mapping[str, np.ndarray]) -> Run:
    prefix = f"runs/{number}/"
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    columns: list[Any] = [own.pop(f"history/{column}", None) for column in HISTORY.names or ()]
    if any(column is None or column.shape != columns[0].shape or column.ndim != 1 for column in columns):
        raise StorageError(f"the history of its run {number} is not complete")
    history = np.empty(len(columns[0]), HISTORY)
    for name, column in zip(HISTORY.names or (), columns, strict=True):
        history[name] = column
    status = field(entry, "status", str, type(None))
    if status is not None and status not in Status.__members__:
        raise StorageError(f"its status is {printable(status)!r}; allowed are {', '.join(Status.__members__)}")
    return Run(
        own,
        field(entry, "numbers", dict),
        history,
        None if status is None else Status[status],
        field(entry, "solver", str, type(None)),
        field(entry, "states", str),
    )


def remove_checkpoint(path: str | os.PathLike[str]) -> None:
    """Remove a checkpoint that is not needed any more, if it stands there."""
    with contextlib.suppress(OSError):
        os.unlink(path)
