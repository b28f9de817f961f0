"""Save and load models.

A file holds the arrays, the state space, and the builder's name and parameters.  Rewards and measures that a builder gives
are functions; they are not stored, but come back from the builder of that name when it is installed.  Rewards that a user
added are stored as values.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ctmc import registry
from ctmc.errors import CTMCError, ModelError, PluginError, StorageError, UnknownNameError, printable
from ctmc.model.distribution import Distribution
from ctmc.model.generator import Generator
from ctmc.model.impulses import impulse_values, self_loop_rates
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.memory import require_memory
from ctmc.model.qbd import QBD, Level
from ctmc.model.recipe import Recipe
from ctmc.model.reward import Reward, evaluate
from ctmc.model.state_space import Lattice, Listed, StateSpace, Variable
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import CodedTransitions, FloatTransitions, LatticeTransitions, Transitions, unsigned
from ctmc.storage import variants
from ctmc.storage.coding import coded, decoded
from ctmc.storage.container import read_container, write_container
from ctmc.storage.fields import field, fields
from ctmc.storage.hash_tree import Stream
from ctmc.storage.sources import BLOCK, decode
from ctmc.storage.streams import stream_of

Arrays = dict[str, np.ndarray]
Progress = Callable[[int, int], None]
Restorer = Callable[[Arrays, StateSpace], Transitions | StreamedTransitions]

KINDS = ("generator", "qbd")
MODEL_KINDS = (*KINDS, variants.KIND)
_BLOCKS = ("up", "local", "down")
STEPS = ("codes", "values", "others", "starts")
"""The arrays that sources are stored in, `rates/steps.codes` and so on."""


def save(
    path: str | os.PathLike[str],
    model: Generator | QBD,
    *,
    parent: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> str:
    """Save a model; the file appears under its name only when it is complete.

    Parameters
    ----------
    path : path-like
        Ending in ``.h5`` by custom.
    model : Generator or QBD
    parent : path-like, optional
        File of the model of which this one is a re-rating, see `Generator.with_rates`: stored is a *variant*, a few kilobytes
        that point to the parent by a relative path and the hash of its content.  Of a parent that is a variant itself, the
        parent's parent is taken.  The parent is loaded, to prove that the variant will be this model.
    overwrite : bool
        Whether a file with another model may be replaced; a file that is not ours never is.
    progress : callable, optional
        Called with the number of bytes done and to do.

    Returns
    -------
    str
        The content hash: SHA-256 over arrays, state space, parameters and labels, 64 hexadecimal digits; of a variant that of
        the model in full.

    Raises
    ------
    StorageError
        The file exists with other content, or cannot be written; or the model is not the parent at other rates.

    Examples
    --------
    >>> import tempfile
    >>> queue = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     digest = save(f"{folder}/queue.h5", queue)
    ...     load(f"{folder}/queue.h5").content_hash == digest
    True
    """
    if isinstance(model, LevelDependentQBD):
        raise ModelError(
            "a LevelDependentQBD cannot be saved: its blocks are a function; allowed are a Generator, such as its truncation, "
            "and a QBD."
        )
    if not isinstance(model, Generator | QBD):
        raise ModelError(f"a {type(model).__name__} cannot be saved as a model; allowed are Generator and QBD.")
    if parent is not None:
        whole = variants.whole_file(parent)
        return variants.write_variant(path, model, whole, load(whole, progress=progress), describe, overwrite=overwrite)
    manifest, arrays, stream = describe(model)
    kind = "generator" if isinstance(model, Generator) else "qbd"
    groups = {}
    if {"rates/data", "rates/indices"} <= stream.arrays.keys() and isinstance(
        model, Generator
    ):  # the form that anndata reads
        shape = (model.size,) * 2
        groups["rates"] = {"encoding-type": "csc_matrix", "encoding-version": "0.1.0", "shape": shape}
    digest = write_container(
        path, kind, manifest, arrays, overwrite=overwrite, stream=stream, group_attributes=groups, progress=progress
    )
    object.__setattr__(model, "content_hash", digest)  # what is known now of the same, unchanged model
    return digest


def load(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Generator | QBD:
    """Load a model, after verifying every byte of it and that it is a generator; of a variant its parent, too.

    Parameters
    ----------
    path : path-like
    progress : callable, optional
        Called with the number of bytes done and to do.

    Raises
    ------
    StorageError
        Foreign, newer, truncated or damaged file, or arrays that are not a generator; a variant whose parent is missing or
        holds another model.
    """
    container = read_container(path, (*KINDS, variants.KIND), progress=progress)
    if container.kind == variants.KIND:
        model: Generator | QBD = variants.restored_variant(container, _load_whole, describe, progress)
        return model
    with about_file(path):
        return restore(container.manifest, dict(container.arrays), container.kind, container.content_hash)


def _load_whole(path: Path, progress: Progress | None) -> Generator | QBD:
    """Load a model that is no variant."""
    container = read_container(path, KINDS, progress=progress)
    with about_file(path):
        return restore(container.manifest, dict(container.arrays), container.kind, container.content_hash)


def read_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a file of any kind says of itself, without its arrays.

    Returns
    -------
    dict
        The manifest, with `kind` and `content_hash`; of a variant the hash of its model in full.
    """
    container = read_container(path, (*KINDS, variants.KIND, "solution", "study", "comparison"), only=())
    digest = container.content_hash
    if container.kind == variants.KIND:
        with about_file(path):
            digest = variants.origin_of(container.manifest).content_hash
    return {**container.manifest, "kind": container.kind, "content_hash": digest}


def about() -> dict[str, Any]:
    """Return date and versions; they are not part of the content hash."""
    versions = {"python": platform.python_version()}
    for name in ("ctmc-lab", "numpy", "scipy", "numba", "h5py"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"created": now, "versions": versions}


def describe(model: Generator | QBD) -> tuple[dict[str, Any], Arrays, Stream]:
    """Return the manifest, the arrays and the stream of more arrays of a model's file."""
    manifest: dict[str, Any] = {"about": about(), "notes": list(model.notes), "builder": _builder(model.recipe)}
    arrays: Arrays = {}
    if isinstance(model, QBD):
        lost = [name for name in model.rewards if name not in _builder_rewards(model)]
        if lost:
            manifest["notes"].append(
                f"Not stored: {', '.join(lost)}, rewards on infinitely many states that no builder gives."
            )
        manifest["variables"] = _variables(model.variables)
        manifest["boundary_levels"] = model.boundary_levels
        for name in _BLOCKS:
            _put_block(arrays, f"repeating/{name}", getattr(model, name))
        for number, level in enumerate(model.boundary):
            for name in _BLOCKS:
                if getattr(level, name) is not None:
                    _put_block(arrays, f"boundary/{number}/{name}", getattr(level, name))
            arrays[f"boundary/{number}/phases"] = model.phases[number]
        return manifest, arrays, Stream()
    small, stream = stream_of(model)
    arrays |= small
    manifest["space"] = _space(model.space)
    manifest["labels"] = list(model.labels)
    manifest["initial"] = model.initial is not None
    _put(arrays, "exit_rates", model.exit_rates)
    if isinstance(model.space, Listed):
        arrays["states"] = model.space.table
    if model.initial is not None:
        arrays |= {
            "initial/positions": model.initial.positions,
            "initial/probabilities": model.initial.probabilities,
        }
    for number, member in enumerate(model.labels.values()):
        arrays[f"labels/{number}"] = member.astype(np.uint8)
    given = _builder_rewards(model)
    own = {name: reward for name, reward in model.rewards.items() if name not in given}
    manifest["rewards"] = [_reward(name, reward) for name, reward in own.items()]
    for number, reward in enumerate(own.values()):
        if reward.rate is not None:
            arrays[f"rewards/{number}"] = _values(model, reward)
        if reward.impulse is not None:
            _put(arrays, f"impulses/{number}", impulse_values(model, reward))
        if reward.self_loops is not None:
            arrays[f"self_loops/{number}"] = self_loop_rates(model, reward)
    return manifest, arrays, stream


def _reward(name: str, reward: Reward) -> dict[str, Any]:
    """Return the entry of a reward; what is not there is left out, so that rewards of states keep the form they always had."""
    parts = [part for part in ("rate", "impulse", "self_loops") if getattr(reward, part) is not None]
    entry: dict[str, Any] = {"name": name, "description": reward.description}
    if parts != ["rate"]:
        entry["parts"] = parts
    return entry | ({"averaged": True} if reward.averaged else {})


def restored_reward(entry: Mapping[str, Any], number: int, arrays: Arrays) -> Reward:
    """Return a reward from its entry and arrays, which are taken out."""
    description = field(entry, "description", str)
    parts = fields(entry, "parts", str) if "parts" in entry else ["rate"]
    places = {"rate": "rewards", "impulse": "impulses", "self_loops": "self_loops"}
    for part in parts:
        if part not in places:
            raise StorageError(f"a reward has the part {printable(part)!r}; allowed are {', '.join(places)}")
    found = {part: _take(arrays, f"{places[part]}/{number}") for part in parts}
    return Reward(
        found.get("rate"),
        description,
        field(entry, "averaged", bool) if "averaged" in entry else False,
        found.get("impulse"),
        found.get("self_loops"),
    )


def _builder_rewards(model: Generator | QBD) -> Mapping[str, Reward]:
    """Return the rewards that come back by themselves when the model is loaded."""
    rewards: Mapping[str, Reward] = _dressed(model.replace(rewards={}, measures=None, notes=())).rewards
    return rewards


def _values(model: Generator, reward: Reward) -> np.ndarray:
    if not callable(reward.rate):
        return np.asarray(reward.rate)
    require_memory("a reward's values", 8 * model.size, states=model.size)
    return np.concatenate([values for _, (values,) in evaluate(model.space, [reward])])


def restore(
    manifest: Mapping[str, Any],
    arrays: Arrays,
    kind: str,
    content_hash: str,
    transitions: Restorer | None = None,
    *,
    exit_rates: bool = True,
) -> Generator | QBD:
    """Return the model of a manifest and arrays, which are taken out; transitions in place of those of the arrays.

    Without `exit_rates` they are left to the caller.
    """
    recipe = _recipe(field(manifest, "builder", dict, type(None)))
    notes = tuple(fields(manifest, "notes", str))
    bare: Generator | QBD
    if kind == "qbd":
        bare = _restore_qbd(manifest, arrays)
    else:
        bare = _restore_generator(manifest, arrays, transitions or _restored_transitions, exit_rates)
    if arrays:
        raise StorageError(f"it has the array {printable(next(iter(arrays)))!r}, which no model of this kind has")
    own = bare.rewards
    model: Generator | QBD = _dressed(bare.replace(recipe=recipe, rewards={}, content_hash=content_hash))
    missing = tuple(note for note in notes if note not in model.notes)
    return model.replace(rewards={**model.rewards, **own}, notes=(*model.notes, *missing))


def _restore_generator(
    manifest: Mapping[str, Any], arrays: Arrays, transitions: Restorer, exit_rates: bool
) -> Generator:
    space = _restored_space(field(manifest, "space", dict), arrays)
    initial = None
    if field(manifest, "initial", bool):
        positions, probabilities = _take(arrays, "initial/positions"), _take(arrays, "initial/probabilities")
        if positions.dtype != np.int64 or positions.shape != probabilities.shape or positions.ndim != 1:
            raise StorageError("the initial distribution's positions and probabilities do not fit each other")
        inside = positions.size and positions[0] >= 0 and positions[-1] < space.size and (np.diff(positions) > 0).all()
        if not inside or not (probabilities > 0).all() or abs(probabilities.sum() - 1) > 1e-9:
            raise StorageError(
                "the initial distribution is none: positions ascend inside the space, probabilities sum to 1"
            )
        initial = Distribution(positions, probabilities)
    labels = {}
    for number, name in enumerate(fields(manifest, "labels", str)):
        member = _take(arrays, f"labels/{number}")
        if member.dtype != np.uint8 or (member > 1).any():
            raise StorageError(f"label {printable(name)!r} has values other than 0 and 1")
        labels[name] = member.astype(bool)
    rewards = {}
    for number, entry in enumerate(fields(manifest, "rewards", dict)):
        rewards[field(entry, "name", str)] = restored_reward(entry, number, arrays)
    chain = Generator(
        space,
        transitions(arrays, space),
        _take(arrays, "exit_rates") if exit_rates else None,  # type: ignore[arg-type]
        initial=initial,
        labels=labels,
        rewards=rewards,
    )
    for name, reward in rewards.items():
        if reward.impulse is not None and np.asarray(reward.impulse).shape != (chain.entries,):
            raise StorageError(
                f"reward {printable(name)!r} has impulses of the shape {np.asarray(reward.impulse).shape}; allowed is one for each of "
                f"{chain.entries} transitions"
            )
    return chain


def _restore_qbd(manifest: Mapping[str, Any], arrays: Arrays) -> QBD:
    variables = _restored_variables(fields(manifest, "variables", list))
    levels, phases = [], []
    for number in range(field(manifest, "boundary_levels", int)):
        blocks = [_take_block(arrays, f"boundary/{number}/{name}", name == "down" and number == 0) for name in _BLOCKS]
        levels.append(Level(up=blocks[0], local=blocks[1], down=blocks[2]))
        phases.append(_take(arrays, f"boundary/{number}/phases"))
    repeating = [_take_block(arrays, f"repeating/{name}", False) for name in _BLOCKS]
    boundary = [(level.down, level.local, level.up) for level in levels]
    up, local, down = repeating
    return QBD.from_blocks(up, local, down, boundary, phases=phases, variables=variables)


def _dressed(model: Any) -> Any:
    """Return a model with what its builder gives beside the arrays, or with a note that the builder is not there."""
    recipe = model.recipe
    if recipe is None:
        return model
    try:
        function = registry.builder(recipe.builder)
    except (UnknownNameError, PluginError):
        return model.replace(
            notes=(
                f"The builder {printable(recipe.builder)!r} is not installed: its rewards and measures are not known.",
            )
        )
    version, dress = getattr(function, "version", None), getattr(function, "dress", None)
    if version != recipe.version:
        return model.replace(
            notes=(
                f"Built by version {recipe.version} of {recipe.builder}, installed is {version}: its rewards and measures are not known.",
            )
        )
    model = model.replace(recipe=replace(recipe, made_by=function))
    if dress is None:
        return model
    signature = registry.builder_parameters(recipe.builder)
    for name in recipe.parameters:
        if name not in signature.parameters:
            raise StorageError(f"its builder {recipe.builder} has no parameter {printable(name)!r}")
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    return dress(model, **{**defaults, **recipe.parameters})


def _builder(recipe: Recipe | None) -> dict[str, Any] | None:
    if recipe is None:
        return None
    return {
        "name": recipe.builder,
        "version": recipe.version,
        "parameters": dict(recipe.parameters),
        "functions": dict(recipe.functions),
        "recipe_hash": recipe.hash,
    }


def _recipe(entry: Mapping[str, Any] | None) -> Recipe | None:
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


def _space(space: StateSpace) -> dict[str, Any]:
    if isinstance(space, Lattice):
        entry = {
            "kind": "lattice",
            "limits": list(space.limits),
            "total": space.total,
            "variables": _variables(space.variables),
        }
        # left out where there are none: plain lattices keep the form, and the hash, that they always had
        return {**entry, "classes": list(space.classes)} if space.classes else entry
    return {"kind": "listed", "variables": _variables(space.variables)}


def _restored_space(entry: Mapping[str, Any], arrays: Arrays) -> StateSpace:
    variables = _restored_variables(fields(entry, "variables", list))
    kind = field(entry, "kind", str)
    if kind == "lattice":
        limits = tuple(fields(entry, "limits", int))
        classes = tuple(fields(entry, "classes", int)) if "classes" in entry else ()
        return Lattice(limits, field(entry, "total", int, type(None)), variables, classes)
    if kind == "listed":
        return Listed(_take(arrays, "states"), variables)
    raise StorageError(f"its state space is of the kind {printable(kind)!r}; allowed are lattice and listed")


def _restored_transitions(arrays: Arrays, space: StateSpace) -> Transitions:
    if "rates/weights" in arrays:
        return restored_lattice(arrays, space)
    if "rates/indices" in arrays:
        indptr, sources = _take(arrays, "rates/indptr"), _take(arrays, "rates/indices")
    else:
        counts = _take(arrays, "rates/counts")
        if counts.dtype != np.int64 or counts.ndim != 1 or (counts.size and counts.min() < 0):
            raise StorageError("its numbers of transitions per state are not whole numbers >= 0")
        indptr = np.concatenate([[0], np.cumsum(counts)])
        sources = _sources(arrays, indptr)
    if "rates/codes" in arrays:
        return CodedTransitions(indptr, sources, _take(arrays, "rates/codes"), _take(arrays, "rates/values"))
    return FloatTransitions(indptr, sources, _take(arrays, "rates/data"))


def _sources(arrays: Arrays, indptr: np.ndarray) -> np.ndarray:
    codes, values, others, starts = (_take(arrays, f"rates/steps.{part}") for part in STEPS)
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
    weights, unit, departures = (_take(arrays, name) for name in names)
    sides = np.array(space.limits, dtype=np.int64) + 1
    return LatticeTransitions(weights, unit, departures, sides, space.strides)


def _variables(variables: tuple[Variable, ...]) -> list[list[Any]]:
    return [[variable.name, variable.length] for variable in variables]


def _restored_variables(entries: list[list[Any]]) -> tuple[Variable, ...]:
    variables = []
    for entry in entries:
        if len(entry) != 2:
            raise StorageError("a variable of its states is not a name with a length")
        named = {"name": entry[0], "length": entry[1]}
        variables.append(Variable(field(named, "name", str), field(named, "length", int, type(None))))
        if variables[-1].width < 1:
            raise StorageError(f"variable {printable(entry[0])!r} has length {entry[1]}; allowed is 1 or more")
    return tuple(variables)


def _put_block(arrays: Arrays, name: str, block: csr_array) -> None:
    arrays |= {
        f"{name}/indptr": block.indptr.astype(np.int64),
        f"{name}/indices": block.indices,
        f"{name}/data": block.data,
        f"{name}/shape": np.array(block.shape, dtype=np.int64),
    }


def _take_block(arrays: Arrays, name: str, optional: bool) -> csr_array | None:
    if optional and f"{name}/shape" not in arrays:
        return None
    parts = [_take(arrays, f"{name}/{part}") for part in ("data", "indices", "indptr", "shape")]
    shape = tuple(parts[3].tolist())
    try:
        block = csr_array((parts[0], parts[1], parts[2]), shape=shape)
        block.check_format(full_check=True)
    except (ValueError, IndexError, TypeError) as error:
        raise StorageError(f"its block {name} is not a sparse matrix ({printable(error)})") from error
    if block.data.dtype != np.float64 or not block.has_canonical_format:
        raise StorageError(f"its block {name} is not of float64, or its columns do not ascend in every row")
    return block


def _put(arrays: Arrays, name: str, array: np.ndarray) -> None:
    """Put an array in, coded where that pays."""
    few = coded(array)
    if few is None:
        arrays[name] = array
    else:
        arrays[f"{name}.codes"], arrays[f"{name}.values"] = few


def _take(arrays: Arrays, name: str) -> np.ndarray:
    """Take an array out, so that what is left over shows."""
    if name not in arrays and f"{name}.codes" in arrays:
        return decoded(_take(arrays, f"{name}.codes"), _take(arrays, f"{name}.values"))
    if name not in arrays:
        raise StorageError(f"it has no array {name!r}")
    return arrays.pop(name)


@contextmanager
def about_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what is wrong with the content of a file into one sentence about the file."""
    try:
        yield
    except CTMCError as error:
        raise StorageError(f"{printable(os.fspath(path))} is not a model: {str(error).rstrip('.')}.") from error
