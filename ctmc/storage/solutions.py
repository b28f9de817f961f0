"""Solutions, beside the model that they belong to: ``model.h5`` has ``model.solutions/NAME.h5``.

A model file never changes once it is written; a solution names its model by content hash.
"""

from __future__ import annotations

import contextlib
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
from ctmc.model.distribution import Distribution
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.qbd import MatrixGeometric
from ctmc.problem import FirstPassage, Stationary, Transient, column_names, is_single
from ctmc.ranks import ALONE, Ranks
from ctmc.solution import HISTORY, Solution, Status, value_arrays
from ctmc.storage.container import read_container, write_container
from ctmc.storage.fields import field, fields
from ctmc.storage.hash_tree import Stream
from ctmc.storage.models import about, about_file, read_info
from ctmc.storage.question import can_be_found, question_of
from ctmc.storage.relay import write_together

CHECKPOINT_SUFFIX = ".checkpoint.h5"


@dataclass(frozen=True, eq=False)
class StoredSolution:
    """A solution as it was stored; nothing in it has been verified again.

    Attributes
    ----------
    path : Path
    model_hash : str
        Content hash of its model.
    problem : str
        Such as 'stationary' or 'accumulated-reward'.
    tolerance, defect, seconds : float
    status : Status
    reason, solver : str
    iterations, products : int
    error_bound : float, ndarray or None
    value : ndarray or MatrixGeometric
        In the shape that `Solution` has.
    times : ndarray or None
        Of transient problems and accumulated rewards.
    history : ndarray of records (iteration, seconds, products, defect)
    intervals : mapping of str to Interval
        Proven intervals of rewards and measures; empty where none were asked for.
    initial : Distribution or None
        None also where every state is the start.
    reward, columns : tuple of str
        Rewards as they were asked for, and the names of the columns of `value`, one for each component of a vector.
    moments : int or None
    discount : float or None
    target, avoid : str or None
        Conditions, or names of functions.
    functions : tuple of str
        Which of target and avoid were functions; these are known by name only, and nothing is imported for them.
    variances, variance_bounds : ndarray or None
    reach_probability : ndarray or None
        Of passage times; shape () or (n,).
    reach_error_bound : float or None
    relative_error_bound : ndarray or None
        Of passage times; shape (moments,).
    warm : bool
        Whether the solver began from a start that was given.
    """

    path: Path
    model_hash: str
    problem: str
    tolerance: float
    status: Status
    reason: str
    defect: float
    error_bound: Any
    seconds: float
    iterations: int
    products: int
    solver: str
    value: Any
    times: np.ndarray | None
    history: np.ndarray
    intervals: Mapping[str, Interval] = dataclass_field(default_factory=dict)
    initial: Distribution | None = None
    reward: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    moments: int | None = None
    discount: float | None = None
    target: str | None = None
    avoid: str | None = None
    functions: tuple[str, ...] = ()
    variances: np.ndarray | None = None
    variance_bounds: np.ndarray | None = None
    reach_probability: np.ndarray | None = None
    reach_error_bound: float | None = None
    relative_error_bound: np.ndarray | None = None
    warm: bool = False


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
    """Return the files of a model's solutions, sorted by name; checkpoints of solves under way are none."""
    folder = solution_folder(model_path)
    found = sorted(folder.glob("[!.]*.h5")) if folder.is_dir() else []
    return [path for path in found if not path.name.endswith(CHECKPOINT_SUFFIX)]


def checkpoint_path(model_path: str | os.PathLike[str], name: str) -> Path:
    """Return where the command line keeps the checkpoint of a solve, such as ``model.solutions/NAME.checkpoint.h5``."""
    return solution_folder(model_path) / f"{name}{CHECKPOINT_SUFFIX}"


def can_be_saved(solution: Solution) -> bool:
    """Return whether an answer has numbers to store: finite ones, or passage times that may be infinite.

    Ranks that share a model store one number for each state, or those of an initial distribution, not more.
    """
    ranks = getattr(solution.problem.model, "ranks", ALONE)
    if ranks.count > 1 and _own_arrays(solution) is None:
        return False
    if isinstance(solution.problem, FirstPassage):
        return not ranks.any(bool(np.isnan(solution.value).any()))
    return not ranks.any(not all(np.isfinite(array).all() for array in value_arrays(solution.value)))


def save_solution(
    model_path: str | os.PathLike[str],
    solution: Solution,
    name: str | None = None,
    *,
    overwrite: bool = True,
    foreign: bool = False,
    question: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Path:
    """Store a solution beside its model's file.

    Parameters
    ----------
    model_path : path-like
        File of the model that the solution belongs to.
    solution : Solution
    name : str, optional
        By default problem and solver, such as ``stationary-gmres``, and a number after it where that name has another
        question's answer; an answer that is not certified gets ``-unfinished``.
    overwrite : bool
        Whether an older solution of that name is replaced.
    foreign : bool
        The file is of another program's format: the hash of the model that was read from it stands for that of the file.
    question : mapping, optional
        From `ctmc.storage.question.question_of`, by default with the solver as it ran.
    folder : Path, optional
        In place of the one beside the model.

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
    ranks = getattr(solution.problem.model, "ranks", ALONE)
    if ranks.count > 1:
        return _save_together(ranks, model_path, solution, name, overwrite, foreign, question, folder)
    return _save(model_path, solution, name, overwrite, foreign, question, folder, {}, None)


def _save_together(
    ranks: Ranks,
    model_path: Any,
    solution: Solution,
    name: str | None,
    overwrite: bool,
    foreign: bool,
    question: Mapping[str, Any] | None,
    folder: Path | None,
) -> Path:
    """Have the first rank store a solution of which each rank has the numbers of its own states."""
    arrays = _own_arrays(solution)
    if arrays is None:
        raise StorageError(
            f"the solution has several numbers for each state, and {ranks.count} ranks share the model; allowed are one number for "
            "each state, or those of an initial distribution."
        )
    own = dict(arrays)

    def write(stream: Stream) -> Path:
        return _save(model_path, solution, name, overwrite, foreign, question, folder, own, stream)

    return write_together(ranks, own, write)


def _own_arrays(solution: Solution) -> dict[str, np.ndarray] | None:
    """Return the arrays of which each rank has the elements of its own states, or None where they have more axes."""
    problem = solution.problem
    of_states = isinstance(problem, Stationary) or getattr(problem, "initial", None) is None
    of_states = of_states or (isinstance(problem, Transient) and problem.reward is None)
    found: dict[str, Any] = {
        name: getattr(solution, name, None) for name in ("value", "variances", "reach_probability")
    }
    arrays = {name: np.asarray(array) for name, array in found.items() if of_states and np.ndim(array)}
    return None if any(array.ndim > 1 for array in arrays.values()) else arrays


def _save(
    model_path: Any,
    solution: Solution,
    name: str | None,
    overwrite: bool,
    foreign: bool,
    question: Mapping[str, Any] | None,
    folder: Path | None,
    streamed: Mapping[str, np.ndarray],
    stream: Stream | None,
) -> Path:
    problem = registry.problem_name(type(solution.problem))
    folder = solution_folder(model_path) if folder is None else folder
    if question is None:
        certificate = "strict" if solution.intervals else "defect"
        question = question_of(solution.problem, solution.solver, certificate=certificate)
    name = _free_name(folder, solution, problem, question) if name is None else name
    if not re.fullmatch(r"[\w.,=()' -]{1,200}", name) or name.startswith("."):
        raise StorageError(f"the name {printable(name)!r} of a solution is not allowed; take letters, digits, - and _.")
    model_hash = solution.model_hash if foreign else read_info(model_path)["content_hash"]
    if model_hash is None or (solution.model_hash is not None and model_hash != solution.model_hash):
        raise StorageError(f"{printable(os.fspath(model_path))} holds another model than the one that was solved.")
    manifest: dict[str, Any] = {
        "about": about(),
        "model_hash": model_hash,
        "problem": problem,
        "tolerance": float(solution.problem.tolerance),
        "status": solution.status.name,
        "reason": solution.reason,
        "defect": _finite(solution.defect),
        "error_bound": None if np.ndim(solution.error_bound) else _finite(solution.error_bound),
        "seconds": float(solution.seconds),
        "iterations": solution.iterations,
        "products": solution.products,
        "solver": solution.solver,
        "question": dict(question),
    }
    if solution.warm:
        manifest["warm"] = True
    if solution.intervals:
        manifest["intervals"] = [
            {"name": name, "low": float(one.low), "high": float(one.high)}
            for name, one in solution.intervals.items()
            if math.isfinite(one.low) and math.isfinite(one.high)
        ]
    arrays = {f"history/{column}": np.ascontiguousarray(solution.history[column]) for column in HISTORY.names or ()}
    asked, found = _question(solution)
    manifest |= asked
    arrays |= found
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
    arrays = {name: array for name, array in arrays.items() if name not in streamed}
    path = folder / f"{name}.h5"
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"{printable(path.parent)} cannot be made: {error.strerror}.") from error
    write_container(path, "solution", manifest, arrays, overwrite=overwrite, stream=stream)
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
            value = MatrixGeometric(tuple(vectors), arrays["r"], arrays.get("g"), arrays.get("u"))  # type: ignore[arg-type]  # none is missing
        status = field(manifest, "status", str)
        if status not in Status.__members__:
            raise StorageError(f"its status is {printable(status)!r}; allowed are {', '.join(Status.__members__)}")
        defect = field(manifest, "defect", float, int, type(None))
        asked = _asked(manifest, arrays)
        bound = field(manifest, "error_bound", float, int, type(None))
        return StoredSolution(
            path=Path(path),
            model_hash=field(manifest, "model_hash", str),
            problem=field(manifest, "problem", str),
            tolerance=field(manifest, "tolerance", float),
            status=Status[status],
            reason=field(manifest, "reason", str),
            defect=math.nan if defect is None else defect,
            error_bound=arrays.get("error_bound", bound),
            seconds=field(manifest, "seconds", float),
            iterations=field(manifest, "iterations", int),
            products=field(manifest, "products", int),
            solver=field(manifest, "solver", str),
            value=value,
            times=arrays.get("times"),
            history=history,
            intervals=_intervals(manifest),
            warm=manifest.get("warm") is True,
            **asked,
        )


def _free_name(folder: Path, solution: Solution, problem: str, question: Mapping[str, Any]) -> str:
    """Return a name that is free, or that this question's answer has."""
    base = f"{problem}-{registry.snake_case(solution.solver.partition('(')[0])}"
    base += "" if solution.converged else "-unfinished"
    name, number = base, 1
    while os.path.lexists(path := folder / f"{name}.h5"):
        with contextlib.suppress(StorageError):  # what cannot be read stays where it is
            if can_be_found(question) and read_info(path).get("question") == question:
                break
        number += 1
        name = f"{base}-{number}"
    return name


def _question(solution: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what was asked, and the arrays of an answer beside its value."""
    problem = solution.problem
    asked: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    if getattr(problem, "reward", None) is not None:
        asked |= {"reward": list(problem.reward), "columns": column_names(problem), "single": is_single(problem)}
    for name in ("moments", "discount"):
        if hasattr(problem, name):
            asked[name] = (int if name == "moments" else float)(getattr(problem, name))
    functions = []
    for name in ("target", "avoid"):
        given = getattr(problem, name, None)
        if given is not None:
            asked[name] = given if isinstance(given, str) else str(getattr(given, "__name__", type(given).__name__))
            functions += [] if isinstance(given, str) else [name]
    if functions:
        asked["functions"] = functions
    if hasattr(problem, "times"):
        arrays["times"] = problem.times
    for name in ("error_bound", "variances", "variance_bounds", "reach_probability", "relative_error_bound"):
        array = getattr(solution, name, None)
        if array is not None and (np.ndim(array) or name != "error_bound"):
            # a file has no arrays without an axis; the question says where there is none
            arrays[name] = np.atleast_1d(np.asarray(array, dtype=np.float64))
    if isinstance(problem, FirstPassage):
        asked["reach_error_bound"] = _finite(solution.reach_error_bound)
    return asked, arrays


def _asked(manifest: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return what was asked, and the arrays beside the value, their shapes checked against it."""
    found: dict[str, Any] = {"initial": _initial(arrays)}
    for name in ("reward", "columns", "functions"):
        found[name] = tuple(fields(manifest, name, str)) if name in manifest else ()
    kinds = {"moments": int, "discount": float, "target": str, "avoid": str, "reach_error_bound": float}
    for name, kind in kinds.items():
        found[name] = field(manifest, name, kind, type(None)) if name in manifest else None
    times, value = arrays.get("times"), arrays.get("value")
    if times is not None and times.ndim != 1:
        raise StorageError(f"its times have the shape {times.shape}; allowed is (times,)")
    passage = found["target"] is not None
    if not found["reward"] and not passage:
        return found
    if value is None:
        raise StorageError("it has no value")
    moments, columns = found["moments"], len(found["columns"])
    single = not passage and field(manifest, "single", bool)
    if not passage and (not columns or (single and columns > 1)):
        raise StorageError(f"it has {columns} columns for the rewards {', '.join(map(printable, found['reward']))}")
    outer = () if passage or single else (columns,)
    inner = () if times is None else (len(times),)
    start = () if found["initial"] is not None else value.shape[-1:]
    lead = (*outer, *(() if moments is None else (moments,)), *inner)
    _check_shape("value", value, (*lead, *start))
    shapes = {
        "error_bound": lead,
        "variances": (*outer, *inner, *start),
        "variance_bounds": (*outer, *inner),
        "reach_probability": start,
        "relative_error_bound": lead,
    }
    if moments is not None and moments > 1 and "variances" not in arrays:
        raise StorageError(f"it has {moments} moments and no array 'variances'")
    if passage and "reach_probability" not in arrays:
        raise StorageError("it has no array 'reach_probability'")
    for name, shape in shapes.items():
        if name in arrays:
            array = arrays[name]
            arrays[name] = array.reshape(shape) if not shape and array.size == 1 else array
            _check_shape(name, arrays[name], shape)
        if name != "error_bound":
            found[name] = arrays.get(name)
    return found


def _check_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise StorageError(f"its {name} has the shape {array.shape}; allowed is {shape} for what was asked")


def _initial(arrays: Mapping[str, np.ndarray]) -> Distribution | None:
    positions, probabilities = arrays.get("initial/positions"), arrays.get("initial/probabilities")
    if positions is None and probabilities is None:
        return None
    if positions is None or probabilities is None or positions.ndim != 1 or positions.shape != probabilities.shape:
        raise StorageError("its initial positions and probabilities do not fit each other")
    return Distribution(positions, probabilities)


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
