"""DRN, the text format of Storm for explicit models; also ``.drn.gz`` and ``.drn.xz``, inflated as they are read."""

from __future__ import annotations

import gzip
import lzma
import math
import os
import re
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.errors import ModelError, printable
from ctmc.interchange.archive import Inflated
from ctmc.interchange.listing import Listing, labels_to_write, listing, unused
from ctmc.interchange.parts import Earned, earned, left_out, no_descriptions, numbered, shown
from ctmc.interchange.rows import Moves, assembled, by_target, reward_of
from ctmc.interchange.storm import states_lost
from ctmc.interchange.text import TextFile, decoded
from ctmc.model.generator import Generator
from ctmc.model.memory import memory_limit, require_memory
from ctmc.model.reward import Reward
from ctmc.storage.atomic import replace_file

_WORD = re.compile(r'\s*(?:"([^"]*)"|([^\s"]+))')
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_VALUE_KEYS = ("@parameters", "@placeholders", "@reward_models", "@nr_states", "@nr_choices")
_EXIT_TOLERANCE = 1e-3  # other programs write few digits
_CHECKED_LINES = 1 << 16
_IDLE_LINES = 100_000
_STATES = 1 << 12


def read(path: str | os.PathLike[str]) -> Generator:
    """Read a chain from a DRN file.

    The states of the label ``init`` begin, with equal probability if they are several.  A transition from a state to itself has
    no effect and is left out, with a note.  What an action earns is earned at every transition out of its state.

    Parameters
    ----------
    path : path-like
        Ending in ``.drn``, ``.drn.gz`` or ``.drn.xz`` by custom; the first bytes tell whether it is compressed.

    Raises
    ------
    StorageError
        The file cannot be read or is damaged; names the line.
    ModelError
        It holds another kind of model, has parameters, or does not fit the memory limit.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(f"{folder}/queue.drn.gz", Generator.from_matrix([[-1, 1], [2, -2]]))
    ...     read(f"{folder}/queue.drn.gz").uniformization_rate
    2.0
    """
    # a transition takes 16 bytes and more of text than that, so longer text cannot be a model that fits
    with TextFile(path, partial(Inflated, allowed=2 * memory_limit())) as file:
        return _Reader(file).chain()


def write(path: str | os.PathLike[str], model: Any, *, overwrite: bool = False) -> list[str]:
    """Write a chain as a DRN file, compressed where the name ends in ``.gz`` or ``.xz``: otherwise as `ctmc.write`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     chain = Generator.from_matrix([[-1, 1], [2, -2]], initial=0)
    ...     write(f"{folder}/queue.drn", chain), Path(folder, "queue.drn").read_text().split()[-4:]
    ([], ['0', '0', ':', '2.0'])
    """
    rows = listing(model, "DRN")
    chain = rows.chain
    rewards, lost = earned(chain)
    lost += no_descriptions(rewards) + states_lost(chain.space)
    columns = [_columns(rows, reward, lost) for reward in rewards]
    labels = labels_to_write(chain, lost, _clean)
    names: list[str] = []
    for reward in rewards:
        names.append(unused(_clean(reward.name), names))
        if names[-1] != reward.name:
            lost.append(f"Reward {printable(reward.name)!r} is written as {printable(names[-1])!r}.")
    name = os.fspath(path).lower()
    opened: Callable[..., Any] = open
    if name.endswith(".gz"):
        opened = gzip.open
    elif name.endswith(".xz"):
        opened = lzma.open

    def write_text(temporary: Path) -> None:
        with opened(temporary, "wb") as file:
            for piece in _text(rows, names, columns, labels):
                file.write(piece.encode("utf-8"))

    replace_file(path, write_text, overwrite=overwrite)
    return lost + left_out(chain)


class _Reader:
    """Reads line by line; holds 16 bytes for each transition until all are put in their places."""

    def __init__(self, file: TextFile) -> None:
        self.file = file
        self.size = 0
        self.keys: set[str] = set()
        self.names: list[str] = []
        self.sources, self.targets, self.rates = array("q"), array("q"), array("d")
        self.exits: list[float | None] = []
        self.labels: dict[str, array[int]] = {}
        self.state_rewards: list[array[float]] = []
        self.action_rewards: list[array[float]] = []

    def chain(self) -> Generator:
        idle = 0
        lines = self.file.lines()
        for raw in lines:
            line = raw.strip()
            if not line or line.startswith(b"//"):
                idle += 1
                if idle > _IDLE_LINES:
                    raise self.file.fault("too many comments and blank lines before the model")
                continue
            if line.startswith(b"@model"):
                break
            self._key(decoded(line), lines)
        else:
            raise self.file.fault("the file ends before '@model'", max(self.file.line, 1))
        if not self.size:
            raise self.file.fault("'@nr_states' is missing; allowed is a number of states, 1 or more")
        require_memory(
            f"the model in {shown(self.file.path)}", (80 + 16 * len(self.names)) * self.size, states=self.size
        )
        self.state_rewards = [array("d") for _ in self.names]
        self.action_rewards = [array("d") for _ in self.names]
        self._states(lines)
        return self._assembled()

    def _key(self, line: str, lines: Iterator[bytes]) -> None:
        key, _, value = line.partition(":")
        value = value.strip()
        if key in self.keys:
            raise self.file.fault(f"{printable(key[:40])} stands there twice")
        self.keys.add(key)
        if key == "@type":
            if value.upper() != "CTMC":
                raise ModelError(
                    f"{shown(self.file.path)} holds a model of the type {printable(value[:40])}; allowed is CTMC."
                )
        elif key == "@value_type":
            if value != "double":
                raise ModelError(f"{shown(self.file.path)} has values {printable(value[:40])}; allowed is double.")
        elif line in _VALUE_KEYS:
            value = decoded(next(lines, b"")).strip()
            if line in ("@parameters", "@placeholders"):
                if value:
                    raise ModelError(
                        f"{shown(self.file.path)} has the parameters {printable(value[:60])}; allowed is a chain with numbers only."
                    )
            elif line == "@reward_models":
                self.names = [name for quoted, name in self._words(value) if name]
                for name in self.names:
                    if self.names.count(name) > 1:
                        raise self.file.fault(f"reward {printable(name[:60])!r} is named twice")
            else:
                if not value.isdecimal() or len(value) > 18 or not int(value):
                    raise self.file.fault(f"{line} is {printable(value[:40])!r}; allowed is a number, 1 or more")
                if line == "@nr_choices" and self.size and int(value) != self.size:
                    raise ModelError(
                        f"{shown(self.file.path)} has {value} choices in {self.size} states; a chain has one in each."
                    )
                if line == "@nr_states":
                    self.size = int(value)
        else:
            raise self.file.fault(f"it is {printable(line[:60])!r}; allowed are the keys of DRN")

    def _states(self, lines: Iterator[bytes]) -> None:
        state, idle = -1, 0
        action = True
        last = -1
        file = self.file
        for raw in lines:
            line = raw.strip()
            if line[:1].isdigit():
                if state < 0:
                    raise file.fault("a transition stands before the first state")
                target, _, value = line.partition(b":")
                try:
                    j, rate = int(target), float(value)
                except ValueError:
                    j, rate = -1, 0.0
                if not (0 < rate < math.inf and 0 <= j < self.size) or b"_" in line:
                    self._refuse_transition(decoded(target), decoded(value))
                if j <= last:
                    raise file.fault(f"state {j} stands after {last}; targets must be in ascending order, each once")
                last = j
                self.sources.append(state)
                self.targets.append(j)
                self.rates.append(rate)
                if not len(self.rates) % _CHECKED_LINES:
                    require_memory(
                        f"the model in {shown(file.path)}",
                        40 * len(self.rates) + 80 * self.size,
                        states=self.size,
                        entries=len(self.rates),
                    )
            elif line.startswith(b"state ") or line == b"state":
                state, last, action = state + 1, -1, False
                self._state(state, decoded(line[5:]))
            elif line.startswith(b"action"):
                if state < 0 or action:
                    raise file.fault("a chain has one action in each state")
                action = True
                values = self._rewards(decoded(line[6:]))
                for column, number in zip(self.action_rewards, values or [0.0] * len(self.names), strict=True):
                    column.append(number)
            elif not line or line.startswith(b"//"):
                idle += 1
                if idle > _IDLE_LINES + 2 * len(self.exits):
                    raise file.fault("there are more comments and blank lines than states")
            else:
                raise file.fault(
                    f"it is {printable(decoded(line[:60]))!r}; allowed are state, action and 'target : rate'"
                )
        if state + 1 != self.size:
            raise file.fault(f"the file ends after {state + 1:,} states, but {self.size:,} are announced")
        self._fill_actions(self.size)

    def _state(self, state: int, text: str) -> None:
        if state >= self.size:
            raise self.file.fault(f"a state beyond the {self.size:,} that are announced")
        self._fill_actions(state)
        words = text.split(maxsplit=1)
        if not words or words[0] != str(state):
            raise self.file.fault(f"the state is {printable(text.strip()[:40])!r}; allowed is {state}, the next one")
        rest = words[1].strip() if len(words) > 1 else ""
        exit_rate, values = None, None
        while rest[:1] in ("!", "["):
            if rest[0] == "!":
                word, _, rest = rest[1:].partition(" ")
                if exit_rate is not None or not _NUMBER.fullmatch(word) or not 0 <= float(word) < math.inf:
                    raise self.file.fault(f"the exit rate is {printable(word[:40])}; allowed is one finite number >= 0")
                exit_rate = float(word)
            else:
                inside, bracket, rest = rest.partition("]")
                if values is not None or not bracket:
                    raise self.file.fault("allowed is one list of rewards, such as [1, 0.5]")
                values = self._rewards(inside + "]")
            rest = rest.strip()
        self.exits.append(exit_rate)
        for column, number in zip(self.state_rewards, values or [0.0] * len(self.names), strict=True):
            column.append(number)
        for _, name in self._words(rest):
            self.labels.setdefault(name, array("q")).append(state)

    def _fill_actions(self, count: int) -> None:
        for column in self.action_rewards:
            column.extend([0.0] * (count - len(column)))

    def _rewards(self, text: str) -> list[float] | None:
        begin = text.find("[")
        if begin < 0:
            return None
        words = text[begin + 1 :].strip().rstrip("]").split(",")
        numbers = [float(word) for word in words if _NUMBER.fullmatch(word.strip())]
        if text[-1:] != "]" or not len(numbers) == len(words) == len(self.names) or not np.isfinite(numbers).all():
            raise self.file.fault(
                f"the rewards are {printable(text[begin:][:60])}; allowed are {len(self.names)} finite numbers"
            )
        return numbers

    def _words(self, text: str) -> Iterator[tuple[bool, str]]:
        at, text = 0, text.rstrip()
        while at < len(text):
            match = _WORD.match(text, at)
            if match is None:
                raise self.file.fault(f"a quotation mark is missing in {printable(text[at:].strip()[:40])}")
            at = match.end()
            yield match[1] is not None, match[2] if match[1] is None else match[1]

    def _refuse_transition(self, target: str, value: str) -> None:
        target, value = target.strip(), value.strip()
        if not target.isdecimal() or not value:
            raise self.file.fault(f"it is {printable(f'{target} : {value}'[:60])!r}; allowed is 'target : rate'")
        if len(target) > 18 or int(target) >= self.size:
            raise self.file.fault(f"the state is {printable(target[:40])}; allowed is 0 to {self.size - 1}")
        raise self.file.fault(f"the rate is {printable(value[:40])}; allowed are positive, finite numbers")

    def _assembled(self) -> Generator:
        size = self.size
        sources = np.frombuffer(self.sources, dtype=np.int64) if self.sources else np.zeros(0, dtype=np.int64)
        targets = np.frombuffer(self.targets, dtype=np.int64) if self.targets else np.zeros(0, dtype=np.int64)
        rates = np.frombuffer(self.rates, dtype=np.float64) if self.rates else np.zeros(0)
        moves = by_target(sources, targets, rates, size)
        sums = np.bincount(sources, weights=rates, minlength=size)
        exits = np.array([sums[k] if given is None else given for k, given in enumerate(self.exits)])
        bad = np.abs(exits - sums) > _EXIT_TOLERANCE * np.maximum(exits, sums)
        if bad.any():
            i = int(np.argmax(bad))
            raise ModelError(
                f"{shown(self.file.path)} gives state {i} the exit rate {float(exits[i])!r}, but its rates sum to "
                f"{float(sums[i])!r}; allowed are rates (not probabilities) that sum to it."
            )
        require_memory(f"the labels in {shown(self.file.path)}", len(self.labels) * size, states=size)
        labels = {}
        for name, positions in self.labels.items():
            labels[name] = np.zeros(size, dtype=bool)
            labels[name][np.frombuffer(positions, dtype=np.int64)] = True
        rewards: dict[str, Reward] = {}
        notes: tuple[str, ...] = ()
        for name, state_values, action_values in zip(self.names, self.state_rewards, self.action_rewards, strict=True):
            rewards[name], note = _reward(np.array(state_values), np.array(action_values), moves)
            notes += () if note is None else (f"Reward {printable(name)!r}: {note}",)
        return assembled(moves, numbered(size), labels, rewards, notes)


def _reward(rate: np.ndarray, action: np.ndarray, moves: Moves) -> tuple[Reward, str | None]:
    if not action.any():
        return Reward(rate), None
    return reward_of(rate, action[moves.rows.sources], action, moves)


def _columns(rows: Listing, reward: Earned, lost: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return what each state earns per unit of time, and what its action earns."""
    n = rows.chain.size
    rate = np.zeros(n) if reward.rate is None else reward.rate
    action = np.zeros(n)
    if reward.impulse is not None:
        impulses = reward.impulse[rows.places]
        sources = np.repeat(np.arange(n), np.diff(rows.indptr))
        action[sources] = impulses
        if not np.array_equal(action[sources], impulses):
            rate = rate + np.bincount(sources, weights=impulses * rows.rates, minlength=n)
            action = np.zeros(n)
            lost.append(
                f"Reward {printable(reward.name)!r}: what transitions earn depends on where they lead, and is written as a rate; "
                "expectations stay, variances do not."
            )
    return rate, action


def _text(
    rows: Listing, names: list[str], columns: list[tuple[np.ndarray, np.ndarray]], labels: dict[str, np.ndarray]
) -> Iterator[str]:
    chain = rows.chain
    yield "@type: CTMC\n@value_type: double\n@parameters\n\n@reward_models\n"
    yield " ".join(map(_quoted, names)) + f"\n@nr_states\n{chain.size}\n@nr_choices\n{chain.size}\n@model\n"
    words = [" " + _quoted(name) for name in labels]
    members = np.column_stack(list(labels.values()))
    exits = chain.exit_rates
    for begin in range(0, chain.size, _STATES):
        pieces = []
        for state in range(begin, min(begin + _STATES, chain.size)):
            part = slice(rows.indptr[state], rows.indptr[state + 1])
            marks = "".join(words[k] for k in np.flatnonzero(members[state]))
            of_state = _bracket(rate[state] for rate, _ in columns)
            of_action = _bracket(action[state] for _, action in columns)
            pieces.append(f"state {state} !{float(exits[state])!r}{of_state}{marks}\n\taction 0{of_action}\n")
            pieces += map(
                "\t\t%d : %r\n".__mod__, zip(rows.targets[part].tolist(), rows.rates[part].tolist(), strict=True)
            )
        yield "".join(pieces)


def _bracket(values: Iterator[Any]) -> str:
    text = ", ".join(repr(float(value)) for value in values)
    return f" [{text}]" if text else ""


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f'"{name}"'


def _clean(name: str) -> str:
    return re.sub(r'["\x00-\x1f\x7f]', "_", name.encode("utf-8", "backslashreplace").decode())
