"""The parts of a model as entries of a manifest and arrays of a file, and back: recipe, state space, transitions, blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ctmc.errors import StorageError, printable
from ctmc.model.recipe import Recipe
from ctmc.model.state_space import Lattice, Listed, StateSpace, Variable
from ctmc.model.transitions import CodedTransitions, FloatTransitions, LatticeTransitions, Transitions, unsigned
from ctmc.storage.coding import coded, decoded
from ctmc.storage.fields import field, fields
from ctmc.storage.sources import BLOCK, decode

Arrays = dict[str, np.ndarray]
STEPS = ("codes", "values", "others", "starts")
"""The arrays that sources are stored in, `rates/steps.codes` and so on."""


def recipe_entry(recipe: Recipe | None) -> dict[str, Any] | None:
    """Return what a manifest says of a recipe."""
    if recipe is None:
        return None
    return {
        "name": recipe.builder,
        "version": recipe.version,
        "parameters": dict(recipe.parameters),
        "functions": dict(recipe.functions),
        "recipe_hash": recipe.hash,
    }


def restored_recipe(entry: Mapping[str, Any] | None) -> Recipe | None:
    """Return the recipe of an entry, whose hash must be its own."""
    if entry is None:
        return None
    recipe = Recipe(
        field(entry, "name", str),
        field(entry, "version", int),
        field(entry, "parameters", dict),
        field(entry, "functions", dict),
    )
    if recipe.hash != field(entry, "recipe_hash", str):
        raise StorageError("its recipe hash is not that of its builder and parameters")
    return recipe


def space_entry(space: StateSpace) -> dict[str, Any]:
    """Return what a manifest says of a state space; the table of a listed one is an array."""
    if isinstance(space, Lattice):
        entry = {
            "kind": "lattice",
            "limits": list(space.limits),
            "total": space.total,
            "variables": variables_entry(space.variables),
        }
        # left out where there are none: plain lattices keep the form, and the hash, that they always had
        return {**entry, "classes": list(space.classes)} if space.classes else entry
    return {"kind": "listed", "variables": variables_entry(space.variables)}


def restored_space(entry: Mapping[str, Any], arrays: Arrays) -> StateSpace:
    """Return the state space of an entry."""
    variables = restored_variables(fields(entry, "variables", list))
    kind = field(entry, "kind", str)
    if kind == "lattice":
        limits = tuple(fields(entry, "limits", int))
        classes = tuple(fields(entry, "classes", int)) if "classes" in entry else ()
        return Lattice(limits, field(entry, "total", int, type(None)), variables, classes)
    if kind == "listed":
        return Listed(take(arrays, "states"), variables)
    raise StorageError(f"its state space is of the kind {printable(kind)!r}; allowed are lattice and listed")


def restored_transitions(arrays: Arrays, space: StateSpace) -> Transitions:
    """Return transitions from their arrays, which are taken out."""
    if "rates/weights" in arrays:
        return restored_lattice(arrays, space)
    if "rates/indices" in arrays:
        indptr, sources = take(arrays, "rates/indptr"), take(arrays, "rates/indices")
    else:
        counts = take(arrays, "rates/counts")
        if counts.dtype != np.int64 or counts.ndim != 1 or (counts.size and counts.min() < 0):
            raise StorageError("its numbers of transitions per state are not whole numbers >= 0")
        indptr = np.concatenate([[0], np.cumsum(counts)])
        sources = _sources(arrays, indptr)
    if "rates/codes" in arrays:
        return CodedTransitions(indptr, sources, take(arrays, "rates/codes"), take(arrays, "rates/values"))
    return FloatTransitions(indptr, sources, take(arrays, "rates/data"))


def _sources(arrays: Arrays, indptr: np.ndarray) -> np.ndarray:
    codes, values, others, starts = (take(arrays, f"rates/steps.{part}") for part in STEPS)
    n = len(indptr) - 1
    if n < 1 or codes.shape != (indptr[-1],) or starts.shape != (-(-n // BLOCK) + 1,) or starts.dtype != np.int64:
        raise StorageError("its numbers of transitions do not fit its steps")
    sources = np.empty(codes.size, dtype=np.int32 if n <= np.iinfo(np.int32).max else np.int64)
    decode(0, unsigned(indptr), codes, values, others, starts, unsigned(sources), states=n, parallel=True)
    return sources


def restored_lattice(arrays: Arrays, space: StateSpace) -> LatticeTransitions:
    """Return lattice transitions from their arrays, which are taken out; what is in them is for the generator to check."""
    if not isinstance(space, Lattice) or space.total is not None or space.classes:
        raise StorageError("its rates are those of a lattice, but its states are no box")
    names = ("rates/weights", "rates/unit", "rates/departures")
    weights, unit, departures = (take(arrays, name) for name in names)
    sides = np.array(space.limits, dtype=np.int64) + 1
    return LatticeTransitions(weights, unit, departures, sides, space.strides)


def variables_entry(variables: tuple[Variable, ...]) -> list[list[Any]]:
    """Return names and lengths."""
    return [[variable.name, variable.length] for variable in variables]


def restored_variables(entries: list[list[Any]]) -> tuple[Variable, ...]:
    """Return the variables of an entry."""
    variables = []
    for entry in entries:
        if len(entry) != 2:
            raise StorageError("a variable of its states is not a name with a length")
        named = {"name": entry[0], "length": entry[1]}
        variables.append(Variable(field(named, "name", str), field(named, "length", int, type(None))))
        if variables[-1].width < 1:
            raise StorageError(f"variable {printable(entry[0])!r} has length {entry[1]}; allowed is 1 or more")
    return tuple(variables)


def put_block(arrays: Arrays, name: str, block: csr_array) -> None:
    """Put a sparse block in as four arrays."""
    arrays |= {
        f"{name}/indptr": block.indptr.astype(np.int64),
        f"{name}/indices": block.indices,
        f"{name}/data": block.data,
        f"{name}/shape": np.array(block.shape, dtype=np.int64),
    }


def take_block(arrays: Arrays, name: str, optional: bool) -> csr_array | None:
    """Take a sparse block out, None where an optional one is not there."""
    if optional and f"{name}/shape" not in arrays:
        return None
    parts = [take(arrays, f"{name}/{part}") for part in ("data", "indices", "indptr", "shape")]
    shape = tuple(parts[3].tolist())
    try:
        block = csr_array((parts[0], parts[1], parts[2]), shape=shape)
        block.check_format(full_check=True)
    except (ValueError, IndexError, TypeError) as error:
        raise StorageError(f"its block {name} is not a sparse matrix ({printable(error)})") from error
    if block.data.dtype != np.float64 or not block.has_canonical_format:
        raise StorageError(f"its block {name} is not of float64, or its columns do not ascend in every row")
    return block


def put(arrays: Arrays, name: str, array: np.ndarray) -> None:
    """Put an array in, coded where that pays."""
    few = coded(array)
    if few is None:
        arrays[name] = array
    else:
        arrays[f"{name}.codes"], arrays[f"{name}.values"] = few


def take(arrays: Arrays, name: str) -> np.ndarray:
    """Take an array out, so that what is left over shows."""
    if name not in arrays and f"{name}.codes" in arrays:
        return decoded(take(arrays, f"{name}.codes"), take(arrays, f"{name}.values"))
    if name not in arrays:
        raise StorageError(f"it has no array {name!r}")
    return arrays.pop(name)
