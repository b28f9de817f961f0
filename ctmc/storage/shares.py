"""Models of which each rank reads its own part of the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from ctmc.errors import ModelError, StorageError, printable
from ctmc.model.generator import Generator
from ctmc.model.shared import SharedGenerator, share
from ctmc.model.state_space import StateSpace
from ctmc.model.streamed import LEAST_STREAMED, StreamedTransitions
from ctmc.model.transitions import Slab, Transitions
from ctmc.ranks import Ranks, world
from ctmc.storage import variants
from ctmc.storage.container import OpenContainer, open_container
from ctmc.storage.fields import fields
from ctmc.storage.model_parts import restored_lattice
from ctmc.storage.models import MODEL_KINDS, about_file, restore, restored_reward
from ctmc.storage.ranges import stored_range
from ctmc.storage.stored import load_or_open, stored_transitions
from ctmc.storage.streams import check_slab

_PER_STATE = ("labels/", "rewards/", "impulses/", "self_loops/")


def open_share(path: str | os.PathLike[str], ranks: Ranks | None = None) -> SharedGenerator:
    """Return this rank's part of a stored model; all ranks call it together.

    Each rank reads and verifies the transitions into its own states, and what else belongs to them: exit rates, labels, rewards.
    Of a variant each rank reads the parent once as a whole, slab by slab.

    Parameters
    ----------
    path : path-like
        A file that `save` wrote, which every rank can read.
    ranks : Ranks, optional
        By default all that ``mpirun`` has started.

    Returns
    -------
    SharedGenerator

    Raises
    ------
    StorageError
        Foreign, newer, truncated or damaged file, or arrays that are not a generator.
    ModelError
        The file holds a QBD, which one process solves.

    Examples
    --------
    >>> import tempfile
    >>> from ctmc.storage.models import save
    >>> queue = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     digest = save(f"{folder}/queue.h5", queue)
    ...     part = open_share(f"{folder}/queue.h5")
    ...     part.size, part.forward(np.array([0.5, 0.5])).tolist()
    (2, [0.5, -0.5])
    """
    ranks = world() if ranks is None else ranks
    file = open_container(path, MODEL_KINDS)
    if file.kind == variants.KIND:
        model = load_or_open(path)
        if isinstance(model, Generator):
            return share(model, ranks)
    if file.kind != "generator":
        raise ModelError(
            f"{printable(os.fspath(path))} holds a QBD; allowed on several ranks is a Generator, such as its truncation."
        )
    manifest = file.manifest
    small = [name for name in file.stored if not name.startswith(("rates/", "exit_rates", *_PER_STATE))]
    arrays = file.read(small)

    def transitions(arrays: dict[str, np.ndarray], space: StateSpace) -> Transitions | StreamedTransitions:
        if "rates/weights" in file.stored and space.size <= LEAST_STREAMED:
            rates = [name for name in file.stored if name.startswith("rates/")]
            return restored_lattice(dict(file.read(rates)), space)
        return stored_transitions(file, space)

    bare = {**manifest, "labels": [], "rewards": []}
    with about_file(path):
        model = restore(bare, arrays, file.kind, file.content_hash, transitions, exit_rates=False)
        assert isinstance(model, Generator)
        part = share(_checked(model), ranks, lambda begin, end: stored_range(file, "exit_rates", begin, end))
        return _with_own(part, file)


def _checked(model: Generator) -> Generator:
    """Return a model whose slabs are checked as they come."""
    rows = model.transitions
    if not isinstance(rows, StreamedTransitions):
        return model

    def stream(numbers: Iterable[int]) -> Iterator[Slab]:
        for slab in rows.stream(numbers):
            check_slab(model, slab)
            yield slab

    return model._with_transitions(replace(rows, stream=stream, each=None))


def _with_own(part: SharedGenerator, file: OpenContainer) -> SharedGenerator:
    """Return a part with the labels and rewards of the file, on its own states."""
    begin, end = part.begin, part.begin + part.size
    labels = {}
    for number, name in enumerate(fields(file.manifest, "labels", str)):
        member = stored_range(file, f"labels/{number}", begin, end)
        if member.dtype != np.uint8 or (member > 1).any():
            raise StorageError(f"label {printable(name)!r} has values other than 0 and 1")
        labels[name] = member.astype(bool)
    before = sum(part.ranks.gathered(part.entries)[: part.ranks.rank])
    own = {"rewards": (begin, end), "self_loops": (begin, end), "impulses": (before, before + part.entries)}
    rewards = {}
    for number, entry in enumerate(fields(file.manifest, "rewards", dict)):
        names = {f"{place}/{number}": cut for place, cut in own.items()}
        arrays = {name: stored_range(file, name, *cut) for name, cut in names.items() if _is_there(file, name)}
        rewards[str(entry.get("name"))] = restored_reward(entry, number, arrays)
    found = part.replace(labels=labels, rewards={**part.rewards, **rewards})
    assert isinstance(found, SharedGenerator)
    return found


def _is_there(file: OpenContainer, name: str) -> bool:
    return name in file.stored or f"{name}.codes" in file.stored
