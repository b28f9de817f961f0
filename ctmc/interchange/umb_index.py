"""The index of a UMB file: what it says is there, how many bytes that takes, and the chain that the bytes are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.errors import ModelError, StorageError
from ctmc.interchange.parts import numbered, shown, space_of
from ctmc.interchange.valuations import BitField, unpack
from ctmc.model.distribution import Distribution
from ctmc.model.generator import Generator
from ctmc.model.reward import Reward
from ctmc.model.state_space import StateSpace
from ctmc.storage.atomic import failure_reason

MAX_INDEX_BYTES = 16 * 1024**2
_VERSIONS = (0, 1)  # umbi writes 0, Storm 1; their members are the same
_MOST_BITS = 1 << 16
_SIZES = {"double": 8, "rational": 16}
_WIDTHS = {"bool": 1, "int": 64, "uint": 64, "double": 64, "string": 64, "rational": 128}

_FIXED = {
    "initial": "state-is-initial.bin",
    "choices": "state-to-choices.bin",
    "exits": "state-to-exit-rate.bin",
    "branches": "choice-to-branches.bin",
    "targets": "branch-to-target.bin",
    "probabilities": "branch-to-probability.bin",
}


@dataclass(frozen=True)
class Annotation:
    """One label or reward of the index."""

    group: str
    identifier: str
    alias: str
    description: str
    applies_to: tuple[str, ...]
    kind: str

    def place(self, entity: str) -> str:
        """Return where its values for states or branches stand."""
        return f"annotations/{self.group}/{self.identifier}/{entity}/values.bin"


@dataclass(frozen=True)
class Index:
    """What the index says, checked."""

    states: int
    choices: int
    branches: int
    initial_states: int
    probability_type: str
    exit_type: str
    annotations: tuple[Annotation, ...]
    fields: tuple[BitField, ...]
    record_bytes: int
    unique: bool
    notes: tuple[str, ...]

    def sizes(self) -> dict[str, int]:
        """Return the bytes that each member must have that is read."""
        n, choices, branches = self.states, self.choices, self.branches
        bits = 8 * -(-n // 64)
        sizes = {
            _FIXED["initial"]: bits,
            _FIXED["choices"]: 8 * (n + 1),
            _FIXED["exits"]: _SIZES[self.exit_type] * n,
            _FIXED["branches"]: 8 * (choices + 1),
            _FIXED["targets"]: 8 * branches,
            _FIXED["probabilities"]: _SIZES[self.probability_type] * branches,
        }
        for annotation in self.annotations:
            for entity in annotation.applies_to:
                count = {"states": n, "choices": choices, "branches": branches}[entity]
                sizes[annotation.place(entity)] = bits if annotation.kind == "bool" else _SIZES[annotation.kind] * count
        if self.fields:
            sizes["valuations/states/valuations.bin"] = self.record_bytes * n
        return sizes


def decode_index(path: str | os.PathLike[str], text: bytes) -> Index:
    """Return what the index of a UMB file says, or raise one sentence about what is wrong in it."""
    try:
        index = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_number)
        if not isinstance(index, dict):
            raise ValueError("it is no JSON object")
        version = _count(index, "format-version")
        if version not in _VERSIONS:
            raise ValueError(f"format-version is {version}; allowed are {_VERSIONS[0]} and {_VERSIONS[1]}")
        system = _object(index, "transition-system")
        _check_kind(path, system)
        notes: list[str] = []
        annotations = _annotations(_object(index, "annotations", {}), notes)
        valuations = _object(_object(index, "valuations", {}), "states", {})
        fields, record_bytes = _fields(valuations, notes)
        return Index(
            _count(system, "#states"),
            _count(system, "#choices"),
            _count(system, "#branches"),
            _count(system, "#initial-states"),
            _number_type(system, "branch-probability-type"),
            _number_type(system, "exit-rate-type"),
            annotations,
            fields,
            record_bytes,
            valuations.get("unique") is True,
            tuple(notes),
        )
    except ModelError:
        raise
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{shown(path)} has an index that does not follow the format: {failure_reason(error)}."
        ) from None


def chain_of(path: str | os.PathLike[str], index: Index, members: Mapping[str, bytes]) -> Generator:
    """Return the chain that the members of an archive describe."""
    for part in ("exits", "branches", "targets", "probabilities"):
        # of a file without transitions the arrays over branches are empty or left out
        if _FIXED[part] not in members and not (part in ("targets", "probabilities") and not index.branches):
            raise StorageError(f"{shown(path)} has no member {_FIXED[part]}.")
    n = index.states
    exits = _numbers(members[_FIXED["exits"]], index.exit_type)
    targets = np.frombuffer(members.get(_FIXED["targets"], b""), dtype="<u8")
    probabilities = _numbers(members.get(_FIXED["probabilities"], b""), index.probability_type)
    starts = _pointers(path, "branches", members[_FIXED["branches"]], index.branches)
    if _FIXED["choices"] in members:
        choices = _pointers(path, "choices", members[_FIXED["choices"]], index.choices)
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
    _check_numbers(path, exits, probabilities, sources, counts)
    targets = targets.astype(np.int64)
    space, rewards, notes = _space(path, index, members)
    labels, more, initial = _annotated(path, index, members, sources, targets)
    if _FIXED["initial"] in members:
        initial = _initial(members[_FIXED["initial"]], n, initial, labels, notes)
    chain = Generator.from_transitions(
        sources, targets, probabilities * exits[sources], space, labels=labels, rewards={**rewards, **more[0]},
        notes=(*index.notes, *notes), initial=initial,
    )  # fmt: skip
    return _with_impulses(chain, more[1], sources, targets, probabilities * exits[sources])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"it has the number {text}")


def _object(parent: Mapping[str, Any], name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
    found = parent.get(name, default)
    if not isinstance(found, dict):
        raise ValueError(f"{name} is missing or no object")
    return found


def _count(parent: Mapping[str, Any], name: str) -> int:
    found = parent.get(name)
    if type(found) is not int or not 0 <= found < 2**64:
        raise ValueError(f"{name} is {str(found)[:40]!r}; allowed are whole numbers from 0 to 2^64 - 1")
    return found


def _text(parent: Mapping[str, Any], name: str, default: str) -> str:
    found = parent.get(name, default)
    if not isinstance(found, str):
        raise ValueError(f"{name} is no text")
    return found


def _type(parent: Mapping[str, Any], name: str) -> tuple[str, int]:
    """Return name and bits of a type."""
    entry = _object(parent, name)
    kind = _text(entry, "type", "")
    size = entry.get("size", _WIDTHS.get(kind, 0))
    if type(size) is not int or not 0 <= size <= _MOST_BITS:
        raise ValueError(f"the size of {name} is {str(size)[:40]!r}; allowed are 1 to {_MOST_BITS} bits")
    return kind, size


def _number_type(parent: Mapping[str, Any], name: str) -> str:
    kind, size = _type(parent, name)
    if kind not in _SIZES or size != 8 * _SIZES[kind]:
        raise ModelError(f"{name} is {kind!r} of {size} bits; allowed are double and rational of 128 bits.")
    return kind


def _check_kind(path: str | os.PathLike[str], system: Mapping[str, Any]) -> None:
    time, players = _text(system, "time", ""), _count(system, "#players")
    if time != "stochastic" or players:
        raise ModelError(
            f"{shown(path)} is a model of {shown(time)} time with {players} players; allowed are chains in continuous time: "
            "stochastic, 0 players."
        )
    if _count(system, "#states") < 1:
        raise ModelError(f"{shown(path)} has no states.")


def _annotations(groups: Mapping[str, Any], notes: list[str]) -> tuple[Annotation, ...]:
    found = []
    for group in groups:
        for identifier, entry in _object(groups, group).items():
            if not isinstance(entry, dict):
                raise ValueError(f"the annotation {identifier[:80]!r} is no object")
            kind, _ = _type(entry, "type")
            applies = entry.get("applies-to")
            if not isinstance(applies, list) or not set(map(str, applies)) <= {"states", "choices", "branches"}:
                raise ValueError(
                    f"applies-to of the annotation {identifier[:80]!r} is no list of states, choices, branches"
                )
            alias = _text(entry, "alias", identifier)
            usable = {"aps": kind == "bool" and applies == ["states"], "rewards": kind in _SIZES,
                      "initial": identifier == "probability" and kind == "double" and applies == ["states"]}  # fmt: skip
            if usable.get(group) and "probability-type" not in entry:
                found.append(
                    Annotation(group, identifier, alias, _text(entry, "description", ""), tuple(applies), kind)
                )
            else:
                notes.append(
                    f"The annotation {group}/{shown(alias)} of the file was left out: ctmc has nothing like it."
                )
    return tuple(found)


def _fields(valuations: Mapping[str, Any], notes: list[str]) -> tuple[tuple[BitField, ...], int]:
    """Return the variables of the states that are whole numbers, and the bytes of a record."""
    classes = valuations.get("classes", [])
    if not isinstance(classes, list) or not all(isinstance(one, dict) for one in classes):
        raise ValueError("the classes of valuations are no list of objects")
    if len(classes) != 1:
        if classes:
            notes.append(f"The states have {len(classes)} kinds of variables; they were left out.")
        return (), 0
    fields, begin = [], 0
    entries = classes[0].get("variables")
    for entry in entries if isinstance(entries, list) else [None]:
        if not isinstance(entry, dict):
            raise ValueError("variables is no list of objects")
        if "padding" in entry:
            begin += _count(entry, "padding")
            continue
        kind, bits = _type(entry, "type")
        name, offset = _text(entry, "name", ""), entry.get("offset", 0)
        if type(offset) is not int or not -(2**63) <= offset < 2**63 or not bits:
            raise ValueError(f"the offset or size of variable {name[:80]!r} is no whole number of 64 bits")
        optional = entry.get("is-optional", False) is True
        if kind not in ("bool", "int", "uint") or bits > 64 or optional:
            notes.append(
                f"Variable {shown(name)} of the states was left out: it is {kind}{', optional' if optional else ''}."
            )
        else:
            fields.append(BitField(name, begin, bits, kind == "int", offset))
        begin += bits + optional
    if begin % 8 or begin > _MOST_BITS:
        raise ValueError(f"a record of variables has {begin} bits; allowed are multiples of 8 up to {_MOST_BITS}")
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise ValueError("two variables of the states have one name")
    return tuple(fields), begin // 8


def _numbers(data: bytes, kind: str) -> np.ndarray:
    if kind == "double":
        return np.frombuffer(data, dtype="<f8").astype(np.float64)
    pairs = np.frombuffer(data, dtype=[("over", "<i8"), ("under", "<u8")])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(pairs["over"] / pairs["under"].astype(np.float64))


def _pointers(path: str | os.PathLike[str], what: str, data: bytes, last: int) -> np.ndarray:
    found = np.frombuffer(data, dtype="<u8")
    if found[0] or found[-1] != last or (found[1:] < found[:-1]).any():
        raise StorageError(f"{shown(path)}: {_FIXED[what]} does not ascend from 0 to {last}.")
    return found.astype(np.int64)


def _check_numbers(
    path: str | os.PathLike[str], exits: np.ndarray, probabilities: np.ndarray, sources: np.ndarray, counts: np.ndarray
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
    bad = (np.abs(sums - 1) > 1e-6) & (exits > 0) & ~((counts == 0) & (exits == 0))
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
        if not single.all() and len(keys):
            notes.append(f"Several branches with the same ends earn their mean for reward {shown(name)}.")
        rewards[name] = Reward(state if state.any() else None, old.description, impulse=impulse)
    return chain.replace(rewards=rewards, notes=tuple(notes)) if impulses else chain
