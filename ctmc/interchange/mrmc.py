"""MRMC's files: ``stem.tra`` with STATES and TRANSITIONS, ``stem.lab``, ``stem.rew``, ``stem.rewi``; states start at 1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.errors import printable
from ctmc.interchange.listing import (
    file_and_stem,
    first_reward,
    labels_to_write,
    listing,
    only_words,
    value_lines,
    writer,
)
from ctmc.interchange.parts import earned, left_out, no_descriptions, numbered
from ctmc.interchange.rows import assembled, read_impulses, read_moves, read_values, reward_of
from ctmc.interchange.storm import declared_lines, read_declared, states_lost
from ctmc.interchange.text import Layout, TextFile, decoded, replace_files
from ctmc.model.generator import Generator
from ctmc.model.reward import Reward


def read(path: str | os.PathLike[str]) -> Generator:
    r"""Read a chain from files of MRMC.

    The states of the label ``init`` begin, with equal probability if they are several.  The one reward is called ``reward``.

    Parameters
    ----------
    path : path-like
        The ``.tra``, or the path without an ending.

    Raises
    ------
    StorageError
        A file cannot be read or is damaged; names the line.
    ModelError
        The chain does not fit the memory limit.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "queue.tra").write_text("STATES 2\nTRANSITIONS 2\n1 2 1\n2 1 2\n")
    ...     read(f"{folder}/queue.tra").uniformization_rate
    2.0
    """
    main, stem = file_and_stem(path, reading=True)
    with TextFile(main) as file:
        size, count = _announced(file, b"STATES"), _announced(file, b"TRANSITIONS")
        if not size:
            raise file.fault("the number of states is 0; allowed is 1 or more", 1)
        moves = read_moves(file, Layout(first=1, size=size, order=1), count)
    labels = read_declared(f"{stem}.lab", size, 1) if os.path.lexists(f"{stem}.lab") else {}
    rate, impulses, loops = None, None, None
    if os.path.lexists(f"{stem}.rew"):
        with TextFile(f"{stem}.rew") as file:
            rate = read_values(file, Layout(1, "reward", first=1, size=size), size)
    if os.path.lexists(f"{stem}.rewi"):
        with TextFile(f"{stem}.rewi") as file:
            count = _announced(file, b"TRANSITIONS")
            impulses, loops = read_impulses(file, Layout(2, "reward", first=1, size=size), moves, count)
    rewards: dict[str, Reward] = {}
    notes: tuple[str, ...] = ()
    if rate is not None or impulses is not None:
        rewards["reward"], note = reward_of(rate, impulses, loops, moves)
        notes = () if note is None else (f"Reward 'reward': {note}",)
    return assembled(moves, numbered(size), labels, rewards, notes)


def write(path: str | os.PathLike[str], model: Any, *, overwrite: bool = False) -> list[str]:
    """Write a chain as files of MRMC, which hold one reward: arguments, sentences and errors of `ctmc.interchange.tra.write`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     chain = Generator.from_matrix([[-1, 1], [2, -2]], initial=0)
    ...     write(f"{folder}/queue.tra", chain), Path(folder, "queue.tra").read_text().split()[:6]
    ([], ['STATES', '2', 'TRANSITIONS', '2', '1', '2'])
    """
    main, stem = file_and_stem(path)
    rows = listing(model, "files of MRMC")
    chain = rows.chain
    rewards, lost = earned(chain)
    lost += states_lost(chain.space)
    chosen = first_reward(rewards, lost)
    lost += no_descriptions(chosen)
    labels = labels_to_write(chain, lost, only_words)
    head = f"STATES {chain.size}\nTRANSITIONS {len(rows.rates)}\n"
    files = [(Path(main), writer(head, rows.lines(rows.rates, 1)))]
    files.append((Path(f"{stem}.lab"), writer(declared_lines(labels, 1))))
    for reward in chosen:
        if reward.rate is not None:
            files.append((Path(f"{stem}.rew"), writer(value_lines(reward.rate, 1))))
        if reward.impulse is not None:
            impulse = reward.impulse[rows.places]
            head = f"TRANSITIONS {np.count_nonzero(impulse)}\n"
            files.append((Path(f"{stem}.rewi"), writer(head, rows.lines(impulse, 1, zeros=False))))
    replace_files(files, overwrite=overwrite, old=(Path(f"{stem}.rew"), Path(f"{stem}.rewi")))
    return lost + left_out(chain)


def _announced(file: TextFile, word: bytes) -> int:
    line = file.next_line()
    words = (line or b"").split()
    if len(words) != 2 or words[0] != word or not words[1].isdigit() or len(words[1]) > 25:
        text = printable(decoded((line or b"")[:60]))
        raise file.fault(f"it is {text!r}; allowed is {word.decode()!r} and a number", max(file.line, 1))
    return int(words[1])
