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

from ctmc import registry
from ctmc.errors import CTMCError, ModelError, PluginError, StorageError, UnknownNameError, printable
from ctmc.model.distribution import Distribution
from ctmc.model.generator import Generator
from ctmc.model.impulses import impulse_values, self_loop_rates
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.memory import require_memory
from ctmc.model.qbd import QBD, Level
from ctmc.model.reward import Reward, evaluate
from ctmc.model.state_space import Listed, StateSpace
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import Transitions
from ctmc.storage import variants
from ctmc.storage.container import read_container, write_container
from ctmc.storage.fields import field, fields
from ctmc.storage.hash_tree import Stream
from ctmc.storage.model_parts import (
    Arrays,
    put,
    put_block,
    recipe_entry,
    restored_recipe,
    restored_space,
    restored_transitions,
    restored_variables,
    space_entry,
    take,
    take_block,
    variables_entry,
)
from ctmc.storage.streams import stream_of

Progress = Callable[[int, int], None]
Restorer = Callable[[Arrays, StateSpace], Transitions | StreamedTransitions]

KINDS = ("generator", "qbd")
MODEL_KINDS = (*KINDS, variants.KIND)
_BLOCKS = ("up", "local", "down")


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
    manifest: dict[str, Any] = {"about": about(), "notes": list(model.notes), "builder": recipe_entry(model.recipe)}
    arrays: Arrays = {}
    if isinstance(model, QBD):
        lost = [name for name in model.rewards if name not in _builder_rewards(model)]
        if lost:
            manifest["notes"].append(
                f"Not stored: {', '.join(lost)}, rewards on infinitely many states that no builder gives."
            )
        manifest["variables"] = variables_entry(model.variables)
        manifest["boundary_levels"] = model.boundary_levels
        for name in _BLOCKS:
            put_block(arrays, f"repeating/{name}", getattr(model, name))
        for number, level in enumerate(model.boundary):
            for name in _BLOCKS:
                if getattr(level, name) is not None:
                    put_block(arrays, f"boundary/{number}/{name}", getattr(level, name))
            arrays[f"boundary/{number}/phases"] = model.phases[number]
        return manifest, arrays, Stream()
    small, stream = stream_of(model)
    arrays |= small
    manifest["space"] = space_entry(model.space)
    manifest["labels"] = list(model.labels)
    manifest["initial"] = model.initial is not None
    put(arrays, "exit_rates", model.exit_rates)
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
            put(arrays, f"impulses/{number}", impulse_values(model, reward))
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
    found = {part: take(arrays, f"{places[part]}/{number}") for part in parts}
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
    recipe = restored_recipe(field(manifest, "builder", dict, type(None)))
    notes = tuple(fields(manifest, "notes", str))
    bare: Generator | QBD
    if kind == "qbd":
        bare = _restore_qbd(manifest, arrays)
    else:
        bare = _restore_generator(manifest, arrays, transitions or restored_transitions, exit_rates)
    if arrays:
        raise StorageError(f"it has the array {printable(next(iter(arrays)))!r}, which no model of this kind has")
    own = bare.rewards
    model: Generator | QBD = _dressed(bare.replace(recipe=recipe, rewards={}, content_hash=content_hash))
    missing = tuple(note for note in notes if note not in model.notes)
    return model.replace(rewards={**model.rewards, **own}, notes=(*model.notes, *missing))


def _restore_generator(
    manifest: Mapping[str, Any], arrays: Arrays, transitions: Restorer, exit_rates: bool
) -> Generator:
    space = restored_space(field(manifest, "space", dict), arrays)
    initial = None
    if field(manifest, "initial", bool):
        positions, probabilities = take(arrays, "initial/positions"), take(arrays, "initial/probabilities")
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
        member = take(arrays, f"labels/{number}")
        if member.dtype != np.uint8 or (member > 1).any():
            raise StorageError(f"label {printable(name)!r} has values other than 0 and 1")
        labels[name] = member.astype(bool)
    rewards = {}
    for number, entry in enumerate(fields(manifest, "rewards", dict)):
        rewards[field(entry, "name", str)] = restored_reward(entry, number, arrays)
    chain = Generator(
        space,
        transitions(arrays, space),
        take(arrays, "exit_rates") if exit_rates else None,  # type: ignore[arg-type]  # None is found when first read
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
    variables = restored_variables(fields(manifest, "variables", list))
    levels, phases = [], []
    for number in range(field(manifest, "boundary_levels", int)):
        blocks = [take_block(arrays, f"boundary/{number}/{name}", name == "down" and number == 0) for name in _BLOCKS]
        levels.append(Level(up=blocks[0], local=blocks[1], down=blocks[2]))
        phases.append(take(arrays, f"boundary/{number}/phases"))
    repeating = [take_block(arrays, f"repeating/{name}", False) for name in _BLOCKS]
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


@contextmanager
def about_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what is wrong with the content of a file into one sentence about the file."""
    try:
        yield
    except CTMCError as error:
        raise StorageError(f"{printable(os.fspath(path))} is not a model: {str(error).rstrip('.')}.") from error
