"""The chain that the members of a UMB archive are, checked against each other."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from ctmc.errors import ModelError, StorageError
from ctmc.interchange.parts import numbered, shown, space_of
from ctmc.interchange.umb_index import FIXED, Index
from ctmc.interchange.valuations import unpack
from ctmc.model.distribution import Distribution
from ctmc.model.generator import Generator
from ctmc.model.reward import Reward
from ctmc.model.state_space import StateSpace
from ctmc.storage.atomic import failure_reason


def chain_of(path: str | os.PathLike[str], index: Index, members: Mapping[str, bytes]) -> Generator:
    """Return the chain that the members of an archive describe."""
    for part in ("exits", "branches", "targets", "probabilities"):
        # of a file without transitions the arrays over branches are empty or left out
        if FIXED[part] not in members and not (part in ("targets", "probabilities") and not index.branches):
            raise StorageError(f"{shown(path)} has no member {FIXED[part]}.")
    n = index.states
    exits = _numbers(members[FIXED["exits"]], index.exit_type)
    targets = np.frombuffer(members.get(FIXED["targets"], b""), dtype="<u8")
    probabilities = _numbers(members.get(FIXED["probabilities"], b""), index.probability_type)
    starts = _pointers(path, "branches", members[FIXED["branches"]], index.branches)
    if FIXED["choices"] in members:
        choices = _pointers(path, "choices", members[FIXED["choices"]], index.choices)
        if (np.diff(choices) > 1).any():
            i = int(np.argmax(np.diff(choices) > 1))
            raise ModelError(
                f"{shown(path)} has {int(choices[i + 1] - choices[i])} choices in state {i}; a chain has at most one."
            )
        starts = starts[choices]
    elif index.choices != n:
        raise ModelError(f"{shown(path)} has {index.choices:,} choices for {n:,} states; a chain has one for each.")
    if targets.size and targets.max() >= n:
        raise ModelError(f"{shown(path)} has a transition to state {int(targets.max())}; allowed is 0 to {n - 1}.")
    counts = np.diff(starts)
    sources = np.repeat(np.arange(n), counts)
    _check_numbers(path, exits, probabilities, sources)
    targets = targets.astype(np.int64)
    space, rewards, notes = _space(path, index, members)
    labels, more, initial = _annotated(path, index, members, sources, targets)
    if FIXED["initial"] in members:
        initial = _initial(members[FIXED["initial"]], n, initial, labels, notes)
    chain = Generator.from_transitions(
        sources, targets, probabilities * exits[sources], space, labels=labels, rewards={**rewards, **more[0]},
        notes=(*index.notes, *notes), initial=initial,
    )  # fmt: skip
    return _with_impulses(chain, more[1], sources, targets, probabilities * exits[sources])


def _numbers(data: bytes, kind: str) -> np.ndarray:
    if kind == "double":
        return np.frombuffer(data, dtype="<f8").astype(np.float64)
    pairs = np.frombuffer(data, dtype=[("over", "<i8"), ("under", "<u8")])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(pairs["over"] / pairs["under"].astype(np.float64))


def _pointers(path: str | os.PathLike[str], what: str, data: bytes, last: int) -> np.ndarray:
    found = np.frombuffer(data, dtype="<u8")
    if found[0] or found[-1] != last or (found[1:] < found[:-1]).any():
        raise StorageError(f"{shown(path)}: {FIXED[what]} does not ascend from 0 to {last}.")
    return found.astype(np.int64)


def _check_numbers(
    path: str | os.PathLike[str], exits: np.ndarray, probabilities: np.ndarray, sources: np.ndarray
) -> None:
    bad = ~((exits >= 0) & np.isfinite(exits))
    if bad.any():
        i = int(np.argmax(bad))
        raise ModelError(
            f"{shown(path)} has the exit rate {float(exits[i])!r} in state {i}; allowed are finite rates >= 0."
        )
    bad = ~((probabilities >= 0) & (probabilities <= 1 + 1e-9))
    if bad.any():
        k = int(np.argmax(bad))
        raise ModelError(
            f"{shown(path)} has the probability {float(probabilities[k])!r} in state {int(sources[k])}; allowed is 0 to 1."
        )
    sums = np.bincount(sources, weights=probabilities, minlength=len(exits))
    bad = (np.abs(sums - 1) > 1e-6) & (exits > 0)
    if bad.any():
        i = int(np.argmax(bad))
        raise ModelError(
            f"{shown(path)} has probabilities that sum to {float(sums[i]):.9g} in state {i}; allowed is 1."
        )


def _bits(data: bytes, count: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count, bitorder="little").astype(bool)


def _space(
    path: str | os.PathLike[str], index: Index, members: Mapping[str, bytes]
) -> tuple[StateSpace, dict[str, Reward], list[str]]:
    """Return the states; variables that do not tell them apart become rewards."""
    data = members.get("valuations/states/valuations.bin")
    if data is None or not index.fields:
        return numbered(index.states), {}, []
    records = np.frombuffer(data, dtype=np.uint8).reshape(index.states, index.record_bytes)
    try:
        columns = {field.name: unpack(records, field) for field in index.fields}
    except ValueError as error:
        raise ModelError(f"{shown(path)}: {failure_reason(error)}.") from None
    table = np.stack(list(columns.values()), axis=1)
    if len(np.unique(table, axis=0)) == len(table):
        return space_of(table, list(columns)), {}, []
    rewards = {name: Reward(values.astype(np.float64), f"value of {name}") for name, values in columns.items()}
    return numbered(index.states), rewards, ["The variables do not tell the states apart; they are rewards here."]


def _annotated(
    path: str | os.PathLike[str], index: Index, members: Mapping[str, bytes], sources: np.ndarray, targets: np.ndarray
) -> tuple[dict[str, np.ndarray], tuple[dict[str, Reward], dict[str, np.ndarray]], Distribution | None]:
    """Return labels, rewards with what branches earn, and initial probabilities."""
    labels: dict[str, np.ndarray] = {}
    rewards: dict[str, Reward] = {}
    impulses: dict[str, np.ndarray] = {}
    initial = None
    for annotation in index.annotations:
        values = {
            entity: members[annotation.place(entity)]
            for entity in annotation.applies_to
            if annotation.place(entity) in members
        }
        if annotation.group == "aps":
            labels[annotation.alias] = _bits(values.get("states", bytes(8 * -(-index.states // 64))), index.states)
            continue
        numbers = {entity: _numbers(data, annotation.kind) for entity, data in values.items()}
        if not all(np.isfinite(array).all() for array in numbers.values()):
            raise ModelError(f"{shown(path)} has values of {shown(annotation.alias)} that are not finite.")
        if annotation.group == "initial":
            vector = numbers.get("states", np.zeros(0))
            if not (vector >= 0).all() or abs(vector.sum() - 1) > 1e-9:
                raise ModelError(
                    f"{shown(path)} has initial probabilities that sum to {float(vector.sum()):.9g}; allowed is 1."
                )
            places = np.flatnonzero(vector)
            initial = Distribution(places, vector[places])
            continue
        earning = numbers.get("branches", np.zeros(index.branches))
        if "choices" in numbers:
            if index.choices != index.states:
                raise ModelError(
                    f"{shown(path)} has rewards {shown(annotation.alias)} of choices, but not one choice for each state."
                )
            earning = earning + numbers["choices"][sources]
        state = numbers.get("states")
        if earning.any():
            impulses[annotation.alias] = earning
        rewards[annotation.alias] = Reward(
            state if state is not None else np.zeros(index.states), annotation.description
        )
    return labels, (rewards, impulses), initial


def _initial(
    data: bytes, size: int, given: Distribution | None, labels: dict[str, np.ndarray], notes: list[str]
) -> Distribution | None:
    """Return the initial distribution; several states without probabilities are a label instead."""
    member = _bits(data, size)
    places = np.flatnonzero(member)
    if given is not None and np.array_equal(given.positions, places):
        return given
    if len(places) == 1:
        return Distribution(places, np.ones(1))
    if len(places):
        labels.setdefault("init", member)
        notes.append(f"The file has {len(places):,} initial states without probabilities: they have the label init.")
    return None


def _with_impulses(
    chain: Generator, impulses: Mapping[str, np.ndarray], sources: np.ndarray, targets: np.ndarray, rates: np.ndarray
) -> Generator:
    """Return the chain with what branches earn as impulses of its transitions.

    Branches with the same ends are one transition, which earns their mean; what a loop earns is a rate.
    """
    rewards = dict(chain.rewards)
    keep = (sources != targets) & (rates > 0)
    places = chain.expanded
    n = chain.size
    keys = np.repeat(np.arange(n), np.diff(places.indptr)) * np.int64(n) + places.sources
    position = np.searchsorted(keys, targets[keep] * np.int64(n) + sources[keep])
    notes = list(chain.notes)
    for name, earning in impulses.items():
        total = np.bincount(position, weights=rates[keep] * earning[keep], minlength=len(keys))
        loops = np.bincount(sources[~keep], weights=(rates * earning)[~keep], minlength=n)
        old = rewards[name]
        state = np.asarray(old.rate)
        if loops.any():
            state = state + loops
            notes.append(
                f"What loops earn for reward {shown(name)} became a rate: expectations stay, variances do not."
            )
        single = np.bincount(position, minlength=len(keys)) == 1
        impulse = total / places.rates
        impulse[position[single[position]]] = earning[keep][single[position]]
        if not single.all():
            notes.append(f"Several branches with the same ends earn their mean for reward {shown(name)}.")
        rewards[name] = Reward(state if state.any() else None, old.description, impulse=impulse)
    return chain.replace(rewards=rewards, notes=tuple(notes)) if impulses else chain
