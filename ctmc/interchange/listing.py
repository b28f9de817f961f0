"""Lists of transitions by source from chains, and names that formats of text take."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.errors import printable
from ctmc.interchange.parts import Earned, finite_chain
from ctmc.interchange.rows import INIT
from ctmc.interchange.umb import by_source
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory

_STATES = 1 << 14


@dataclass(frozen=True, eq=False)
class Listing:
    """A chain by source, ready to be written.

    Attributes
    ----------
    chain : Generator
    indptr, targets : ndarray of int64
    rates : ndarray of float64
    places : ndarray of int64
        Where each transition stands in ``chain.rates``.
    """

    chain: Generator
    indptr: np.ndarray
    targets: np.ndarray
    rates: np.ndarray
    places: np.ndarray

    def lines(self, values: np.ndarray, first: int, *, zeros: bool = True) -> Iterator[str]:
        """Yield text with lines ``i j value``, exact in each bit, for values by source."""
        for begin in range(0, self.chain.size, _STATES):
            end = min(begin + _STATES, self.chain.size)
            part = slice(self.indptr[begin], self.indptr[end])
            sources = np.repeat(np.arange(begin, end), np.diff(self.indptr[begin : end + 1]))
            chosen = values[part]
            keep = slice(None) if zeros else chosen != 0
            yield _joined("%d %d %r\n", sources[keep] + first, self.targets[part][keep] + first, chosen[keep])

    def absorbing(self) -> np.ndarray:
        """Return which states nothing leaves; shape (n,), bool."""
        found: np.ndarray = np.diff(self.indptr) == 0
        return found


def listing(model: Any, kind: str) -> Listing:
    """Return a model by source, or say that it is no finite chain."""
    chain = finite_chain(model, kind)
    require_memory("writing", 64 * (chain.entries + chain.size), states=chain.size, entries=chain.entries)
    rates, places = by_source(chain)
    return Listing(
        chain, rates.indptr.astype(np.int64), rates.indices.astype(np.int64), np.asarray(rates.data), np.asarray(places)
    )


def value_lines(values: np.ndarray, first: int) -> Iterator[str]:
    """Yield text with lines ``i value`` for the values that are not 0."""
    for begin in range(0, len(values), _STATES):
        part = values[begin : begin + _STATES]
        places = np.flatnonzero(part)
        yield _joined("%d %r\n", places + begin + first, part[places])


def labels_to_write(chain: Generator, lost: list[str], clean: Callable[[str], str]) -> dict[str, np.ndarray]:
    """Return ``init`` and the labels under the names that a format takes; what changes is put on the list of what is lost."""
    initial = np.zeros(chain.size, dtype=bool)
    if chain.initial is None:
        initial[0] = True
        lost.append("The model has no initial distribution; the format needs an initial state, which is the first one.")
    else:
        initial[chain.initial.positions] = True
        probabilities = chain.initial.probabilities
        if np.ptp(probabilities) > 1e-15:
            lost.append(
                f"The initial probabilities of {len(probabilities)} states are not carried; these states are marked initial."
            )
    found = {INIT: initial}
    for name, member in chain.labels.items():
        if name == INIT and np.array_equal(member, initial):
            continue
        written = unused(clean(name), found)
        if written != name:
            lost.append(f"Label {printable(name)!r} is written as {printable(written)!r}.")
        found[written] = member
    return found


def unused(name: str, taken: Any) -> str:
    """Return a name that is not taken, with a number added where it is.

    Examples
    --------
    >>> unused("init", ["init"]), unused("full", ["init"])
    ('init_2', 'full')
    """
    found, number = name or "_", 1
    while found in taken:
        number += 1
        found = f"{name or '_'}_{number}"
    return found


def only_words(name: str) -> str:
    """Return a name without blanks and control characters.

    Examples
    --------
    >>> only_words("Größe > 3")
    'Größe_>_3'
    """
    return re.sub(r"[\s\x00-\x20\x7f]", "_", name.encode("utf-8", "backslashreplace").decode()).lstrip("#") or "_"


def writer(*pieces: Any) -> Callable[[Path], None]:
    """Return a function that writes text, given as strings or iterables of them, to a path."""

    def write(path: Path) -> None:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            for piece in pieces:
                file.writelines([piece] if isinstance(piece, str) else piece)

    return write


def first_reward(rewards: list[Earned], lost: list[str]) -> list[Earned]:
    """Return the first reward for a format that has room for one; the others, and its name, are lost."""
    if rewards:
        lost.append(f"The name of the reward is not carried: {printable(rewards[0].name)}.")
    if len(rewards) > 1:
        lost.append(
            f"Rewards beyond the first are not carried: {', '.join(printable(reward.name) for reward in rewards[1:])}."
        )
    return rewards[:1]


def file_and_stem(path: str | os.PathLike[str], *, reading: bool = False) -> tuple[str, str]:
    """Return the path of the transitions, and what the files beside it begin with.

    A path without an ending, and one that is read and does not exist, is what all begin with.

    Examples
    --------
    >>> file_and_stem("queue"), file_and_stem("queue.TRA")
    (('queue.tra', 'queue'), ('queue.TRA', 'queue'))
    """
    text = os.fsdecode(path)
    root, ending = os.path.splitext(text)
    if os.path.lexists(text) if reading and ending.lower() != ".tra" else ending:
        return text, root
    if reading and ending and not os.path.lexists(f"{text}.tra"):
        return text, root
    return f"{text}.tra", text


def _joined(form: str, *columns: np.ndarray) -> str:
    return "".join(map(form.__mod__, zip(*(column.tolist() for column in columns), strict=True)))
