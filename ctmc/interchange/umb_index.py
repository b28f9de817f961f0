"""The index of a UMB file: what it says is there, and how many bytes that takes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctmc.errors import ModelError, StorageError
from ctmc.interchange.parts import shown
from ctmc.interchange.valuations import BitField
from ctmc.storage.atomic import failure_reason

MAX_INDEX_BYTES = 16 * 1024**2
_VERSIONS = (0, 1)  # umbi writes 0, Storm 1; their members are the same
_MOST_BITS = 1 << 16
SIZES = {"double": 8, "rational": 16}
_WIDTHS = {"bool": 1, "int": 64, "uint": 64, "double": 64, "string": 64, "rational": 128}

FIXED = {
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
            FIXED["initial"]: bits,
            FIXED["choices"]: 8 * (n + 1),
            FIXED["exits"]: SIZES[self.exit_type] * n,
            FIXED["branches"]: 8 * (choices + 1),
            FIXED["targets"]: 8 * branches,
            FIXED["probabilities"]: SIZES[self.probability_type] * branches,
        }
        for annotation in self.annotations:
            for entity in annotation.applies_to:
                count = {"states": n, "choices": choices, "branches": branches}[entity]
                sizes[annotation.place(entity)] = bits if annotation.kind == "bool" else SIZES[annotation.kind] * count
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
    if kind not in SIZES or size != 8 * SIZES[kind]:
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
            usable = {"aps": kind == "bool" and applies == ["states"], "rewards": kind in SIZES,
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
