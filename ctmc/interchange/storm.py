"""Storm's explicit files: ``stem.tra`` that begins with ``ctmc``, ``stem.lab``, ``stem.NAME.state.rew``, ``stem.NAME.trans.rew``.

States start at 0, and there is no line with sizes: the largest state named tells how many there are.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.errors import ModelError, printable
from ctmc.interchange.listing import file_and_stem, labels_to_write, listing, only_words, value_lines, writer
from ctmc.interchange.parts import earned, identifiers, left_out, no_descriptions, numbered, shown
from ctmc.interchange.rows import assembled, numbers_of, read_impulses, read_moves, read_values, reward_of
from ctmc.interchange.text import Layout, TextFile, decoded, replace_files
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, StateSpace

STATE_REWARDS, TRANSITION_REWARDS = ".state.rew", ".trans.rew"


def read(path: str | os.PathLike[str]) -> Generator:
    r"""Read a chain from explicit files of Storm.

    The states of the label ``init`` begin, with equal probability if they are several.  A transition from a state to itself,
    which Storm needs where nothing leaves a state, has no effect on the process and is left out, with a note.

    Parameters
    ----------
    path : path-like
        The ``.tra``, or the path without an ending.

    Raises
    ------
    StorageError
        A file cannot be read or is damaged; names the line.
    ModelError
        It holds another kind of model, or the chain does not fit the memory limit.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "queue.tra").write_text("ctmc\n0 1 1\n1 0 2\n")
    ...     read(f"{folder}/queue.tra").uniformization_rate
    2.0
    """
    main, stem = file_and_stem(path, reading=True)
    with TextFile(main) as file:
        start = file.mark()
        line = file.next_line()
        if numbers_of(line, 2) is not None:
            raise file.fault("two numbers head a file of PRISM; allowed is 'ctmc', and then lines 'i j rate'")
        if line is not None and line.split()[:1] == [b"STATES"]:
            raise file.fault("STATES heads a file of MRMC; allowed is 'ctmc', and then lines 'i j rate'")
        if line is not None and line[:1].isdigit():
            file.go_back(start)
        elif (line or b"").strip().lower() != b"ctmc":
            kind = printable(decoded((line or b"")[:40]))
            if (line or b"").strip().lower() in (b"dtmc", b"mdp", b"ma"):
                raise ModelError(f"{shown(file.path)} holds a model of the kind {kind}; allowed is ctmc.")
            raise file.fault(f"it is {kind!r}; allowed is 'ctmc', and then lines 'i j rate'", 1)
        moves = read_moves(file, Layout(order=2))
    size = moves.size
    labels = read_declared(f"{stem}.lab", size, 0) if os.path.lexists(f"{stem}.lab") else {}
    rewards: dict[str, Reward] = {}
    notes: tuple[str, ...] = ()
    for name, state_file, transition_file in _structures(stem):
        rate, impulses, loops = None, None, None
        if os.path.lexists(state_file):
            with TextFile(state_file) as file:
                rate = read_values(file, Layout(1, "reward", size=size), size)
        if os.path.lexists(transition_file):
            with TextFile(transition_file) as file:
                impulses, loops = read_impulses(file, Layout(2, "reward", size=size), moves)
        rewards[name], note = reward_of(rate, impulses, loops, moves)
        notes += () if note is None else (f"Reward {printable(name)!r}: {note}",)
    return assembled(moves, numbered(size), labels, rewards, notes)


def write(path: str | os.PathLike[str], model: Any, *, overwrite: bool = False) -> list[str]:
    """Write a chain as explicit files of Storm: arguments, sentences and errors of `ctmc.interchange.tra.write`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     chain = Generator.from_matrix([[-1, 1], [2, -2]], initial=0)
    ...     write(f"{folder}/queue.tra", chain), Path(folder, "queue.tra").read_text().split()[:4]
    ([], ['ctmc', '0', '1', '1.0'])
    """
    main, stem = file_and_stem(path)
    rows = listing(model, "explicit files of Storm")
    chain = rows.chain
    rewards, lost = earned(chain)
    lost += no_descriptions(rewards) + states_lost(chain.space)
    labels = labels_to_write(chain, lost, only_words)
    largest = int(rows.targets.max(initial=-1))
    nameless = chain.size - 1 > largest and rows.indptr[-1] == rows.indptr[-2]
    # nothing else would say that the last state is there
    end = f"{chain.size - 1} {chain.size - 1} 1\n" if nameless else ""
    files = [(Path(main), writer("ctmc\n", rows.lines(rows.rates, 0), end))]
    files.append((Path(f"{stem}.lab"), writer(declared_lines(labels, 0))))
    names = identifiers([reward.name for reward in rewards], "A-Za-z0-9_", 100)
    for name, reward in zip(names, rewards, strict=True):
        if name != reward.name:
            lost.append(f"Reward {printable(reward.name)!r} is written as {name!r}.")
        if reward.rate is not None:
            files.append((Path(f"{stem}.{name}{STATE_REWARDS}"), writer(value_lines(reward.rate, 0))))
        if reward.impulse is not None:
            lines = rows.lines(reward.impulse[rows.places], 0, zeros=False)
            files.append((Path(f"{stem}.{name}{TRANSITION_REWARDS}"), writer(lines)))
    replace_files(files, overwrite=overwrite, old=(Path(name) for _, *pair in _structures(stem) for name in pair))
    return lost + left_out(chain)


def states_lost(space: StateSpace) -> list[str]:
    """Return what is said where a format numbers states and knows no variables."""
    if isinstance(space, Lattice) and [variable.name for variable in space.variables] == ["state"]:
        return []
    return ["State variables are not carried: states are numbers, in the same order."]


def read_declared(path: str, size: int, first: int) -> dict[str, np.ndarray]:
    """Read labels as MRMC and Storm have them: ``#DECLARATION``, names, ``#END``, then lines ``state name name``."""
    with TextFile(path) as file:
        names: list[str] = []
        line = file.next_line()
        while line == b"":
            line = file.next_line()
        if (line or b"").strip() != b"#DECLARATION":
            raise file.fault("'#DECLARATION' is missing, which labels begin with", max(file.line, 1))
        for line in file.lines():
            if line.strip() == b"#END":
                break
            names += [decoded(word) for word in line.split()]
        else:
            raise file.fault("'#END' is missing, which the names of labels end with")
        if len(set(names)) < len(names):
            raise file.fault("a label is declared twice")
        require_memory(f"the labels in {shown(path)}", len(names) * size, states=size)
        labels = {name: np.zeros(size, dtype=bool) for name in names}
        for line in file.lines():
            words = line.split()
            if not words:
                continue
            if not words[0].isdigit() or len(words[0]) > 18:
                raise file.fault(f"it is {printable(decoded(line[:60]))!r}; allowed is 'state label label'")
            position = int(words[0]) - first
            if not 0 <= position < size:
                raise file.fault(f"the state is {position + first}; allowed is {first} to {size - 1 + first}")
            for word in map(decoded, words[1:]):
                if word not in labels:
                    raise file.fault(f"label {printable(word[:60])!r} is not declared")
                labels[word][position] = True
    return labels


def declared_lines(labels: dict[str, np.ndarray], first: int) -> Iterator[str]:
    """Yield the text of such labels."""
    names = list(labels)
    yield f"#DECLARATION\n{' '.join(names)}\n#END\n"
    members = np.column_stack(list(labels.values()))
    for state in np.flatnonzero(members.any(axis=1)).tolist():
        yield f"{state + first} {' '.join(names[k] for k in np.flatnonzero(members[state]))}\n"


def _structures(stem: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each reward and the paths of its two files, of which at least one exists."""
    found = {}
    for ending in (STATE_REWARDS, TRANSITION_REWARDS):
        for path in sorted(glob.glob(glob.escape(stem) + ".*" + ending[1:]) + glob.glob(glob.escape(stem) + ending)):
            name = path[len(stem) + 1 : -len(ending)] if len(path) > len(stem) + len(ending) else ""
            if re.fullmatch(r"[^./]*", name):
                found[name] = True
    for name in found:
        middle = f".{name}" if name else ""
        yield name or "reward", f"{stem}{middle}{STATE_REWARDS}", f"{stem}{middle}{TRANSITION_REWARDS}"
