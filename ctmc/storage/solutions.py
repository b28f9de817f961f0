"""Solutions, beside the model that they belong to: ``model.h5`` has ``model.solutions/NAME.h5``.

A model file never changes once it is written; a solution names its model by content hash.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.errors import ModelError, StorageError, printable
from ctmc.interval import Interval
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.qbd import MatrixGeometric
from ctmc.problem import Transient
from ctmc.solution import HISTORY, Solution, Status
from ctmc.storage.container import read_container, write_container
from ctmc.storage.fields import field, fields
from ctmc.storage.models import about, about_file, read_info


@dataclass(frozen=True, eq=False)
class StoredSolution:
    """A solution as it was stored; nothing in it has been verified again.

    Attributes
    ----------
    path : Path
    model_hash : str
        Content hash of its model.
    problem : str
        'stationary' or 'transient'.
    tolerance, defect, seconds : float
    status : Status
    reason, solver : str
    iterations, products : int
    error_bound : float or None
    value : ndarray or MatrixGeometric
    times : ndarray or None
        Of a transient solution.
    history : ndarray of records (iteration, seconds, products, defect)
    intervals : mapping of str to Interval
        Proven intervals of rewards and measures; empty where none were asked for.
    """

    path: Path
    model_hash: str
    problem: str
    tolerance: float
    status: Status
    reason: str
    defect: float
    error_bound: float | None
    seconds: float
    iterations: int
    products: int
    solver: str
    value: Any
    times: np.ndarray | None
    history: np.ndarray
    intervals: Mapping[str, Interval] = dataclass_field(default_factory=dict)


def solution_folder(model_path: str | os.PathLike[str]) -> Path:
    """Return the folder of a model's solutions.

    Examples
    --------
    >>> solution_folder("study/model.h5").as_posix()
    'study/model.solutions'
    """
    path = Path(model_path)
    return path.with_name((path.name.removesuffix(".h5") or path.name) + ".solutions")


def solution_paths(model_path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a model's solutions, sorted by name."""
    folder = solution_folder(model_path)
    return sorted(folder.glob("[!.]*.h5")) if folder.is_dir() else []


def save_solution(
    model_path: str | os.PathLike[str], solution: Solution, name: str | None = None, *, overwrite: bool = True
) -> Path:
    """Store a solution beside its model's file.

    Parameters
    ----------
    model_path : path-like
        File of the model that the solution belongs to.
    solution : Solution
    name : str, optional
        By default problem and solver, such as ``stationary-gmres``.
    overwrite : bool
        Whether an older solution of that name is replaced.

    Returns
    -------
    Path

    Raises
    ------
    StorageError
        If the file holds another model than the one that was solved, or nothing can be written.
    """
    if isinstance(solution.problem.model, LevelDependentQBD):
        raise ModelError(
            "a solution of a LevelDependentQBD cannot be saved: its model is a function; allowed are those of models with a file."
        )
    problem = registry.snake_case(type(solution.problem).__name__)
    solver = registry.snake_case(solution.solver.partition("(")[0])
    name = f"{problem}-{solver}" if name is None else name
    if not re.fullmatch(r"[\w.,=()' -]{1,200}", name) or name.startswith("."):
        raise StorageError(f"the name {printable(name)!r} of a solution is not allowed; take letters, digits, - and _.")
    info = read_info(model_path)
    if solution.model_hash is not None and info["content_hash"] != solution.model_hash:
        raise StorageError(f"{printable(os.fspath(model_path))} holds another model than the one that was solved.")
    manifest: dict[str, Any] = {
        "about": about(),
        "model_hash": info["content_hash"],
        "problem": problem,
        "tolerance": float(solution.problem.tolerance),
        "status": solution.status.name,
        "reason": solution.reason,
        "defect": _finite(solution.defect),
        "error_bound": _finite(solution.error_bound),
        "seconds": float(solution.seconds),
        "iterations": solution.iterations,
        "products": solution.products,
        "solver": solution.solver,
    }
    if solution.intervals:
        manifest["intervals"] = [
            {"name": name, "low": float(one.low), "high": float(one.high)}
            for name, one in solution.intervals.items()
            if math.isfinite(one.low) and math.isfinite(one.high)
        ]
    arrays = {f"history/{column}": np.ascontiguousarray(solution.history[column]) for column in HISTORY.names or ()}
    if isinstance(solution.problem, Transient):
        arrays["times"] = solution.problem.times
    initial = getattr(solution.problem, "initial", None)
    if initial is not None:
        arrays |= {"initial/positions": initial.positions, "initial/probabilities": initial.probabilities}
    if isinstance(solution.value, MatrixGeometric):
        arrays |= {f"boundary/{number}": vector for number, vector in enumerate(solution.value.boundary)}
        arrays["r"] = solution.value.r
        if solution.value.g is not None:
            arrays["g"] = solution.value.g
        if solution.value.u is not None:
            arrays["u"] = solution.value.u
    else:
        arrays["value"] = solution.value
    path = solution_folder(model_path) / f"{name}.h5"
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"{printable(path.parent)} cannot be made: {error.strerror}.") from error
    write_container(path, "solution", manifest, arrays, overwrite=overwrite)
    return path


def load_solution(path: str | os.PathLike[str]) -> StoredSolution:
    """Load a stored solution, after verifying every byte of it.

    Raises
    ------
    StorageError
        Foreign, newer, truncated or damaged file.
    """
    container = read_container(path, ("solution",))
    manifest, arrays = container.manifest, container.arrays
    with about_file(path):
        missing = [column for column in HISTORY.names or () if f"history/{column}" not in arrays]
        if missing or ("value" not in arrays and "r" not in arrays):
            raise StorageError(f"it has no {'history' if missing else 'value'}")
        history = np.empty(len(arrays["history/iteration"]), dtype=HISTORY)
        for column in HISTORY.names or ():
            if arrays[f"history/{column}"].shape != history.shape:
                raise StorageError("the columns of its history differ in length")
            history[column] = arrays[f"history/{column}"]
        value: Any = arrays.get("value")
        if value is None:
            count = sum(name.startswith("boundary/") for name in arrays)
            vectors = [arrays.get(f"boundary/{number}") for number in range(count)]
            if not vectors or any(vector is None for vector in vectors):
                raise StorageError("its boundary vectors are not complete")
            value = MatrixGeometric(tuple(vectors), arrays["r"], arrays.get("g"), arrays.get("u"))  # type: ignore[arg-type]
        status = field(manifest, "status", str)
        if status not in Status.__members__:
            raise StorageError(f"its status is {printable(status)!r}; allowed are {', '.join(Status.__members__)}")
        defect = field(manifest, "defect", float, int, type(None))
        return StoredSolution(
            path=Path(path),
            model_hash=field(manifest, "model_hash", str),
            problem=field(manifest, "problem", str),
            tolerance=field(manifest, "tolerance", float),
            status=Status[status],
            reason=field(manifest, "reason", str),
            defect=math.nan if defect is None else defect,
            error_bound=field(manifest, "error_bound", float, int, type(None)),
            seconds=field(manifest, "seconds", float),
            iterations=field(manifest, "iterations", int),
            products=field(manifest, "products", int),
            solver=field(manifest, "solver", str),
            value=value,
            times=arrays.get("times"),
            history=history,
            intervals=_intervals(manifest),
        )


def _intervals(manifest: Mapping[str, Any]) -> dict[str, Interval]:
    if "intervals" not in manifest:
        return {}
    found = {}
    for entry in fields(manifest, "intervals", dict):
        low, high = field(entry, "low", float), field(entry, "high", float)
        if not low <= high:
            raise StorageError(f"its interval from {low!r} to {high!r} is none; allowed are two numbers in order")
        found[field(entry, "name", str)] = Interval(low, high)
    return found


def _finite(number: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return None if number is None or not math.isfinite(number) else float(number)
