"""PRISM's explicit files: ``stem.tra`` with ``stem.sta``, ``stem.lab``, ``stem.srew`` and ``stem.trew`` beside it.

States start at 0.  Several reward structures stand in ``stem1.srew``, ``stem2.srew`` and so on, and likewise ``.trew``; where
``stem1.tra`` stands there too, they are that model's.  Give PRISM the option ``-ctmc`` when it reads such files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.errors import ModelError, StorageError, printable
from ctmc.interchange.listing import Listing, file_and_stem, labels_to_write, listing, unused, value_lines, writer
from ctmc.interchange.parts import (
    coordinate_names,
    earned,
    identifiers,
    left_out,
    no_descriptions,
    numbered,
    shown,
    space_of,
)
from ctmc.interchange.rows import (
    DEADLOCK,
    Moves,
    assembled,
    numbers_of,
    read_impulses,
    read_moves,
    read_values,
    reward_of,
)
from ctmc.interchange.text import NUMBER, Block, Layout, TextFile, decoded, replace_files
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.reward import Reward
from ctmc.model.state_space import StateSpace

_DECLARED = re.compile(r'\s*([0-9]{1,9})="([^"]*)"')
_STRUCTURE = re.compile(r'#\s*Reward structure:?\s*"([^"]*)"')
_BOOLEANS = {b"true": 1, b"false": 0}
_ROW = re.compile(rb"\s*([0-9]{1,18})((?:\s+" + NUMBER + rb":[0-9]{1,18})*)(?:\s+[^\s:]+)?")
_ROW_ENTRIES = 1 << 14


def read(path: str | os.PathLike[str]) -> Generator:
    r"""Read a chain from explicit files of PRISM.

    Transitions may stand one a line or, as ``-exportrows`` writes them, one state a line (``i rate:j rate:j``).
    A ``.sta`` gives the states with their variables, each a scalar, true and false as 1 and 0; without it there is the one
    variable ``state``.  The states of the label ``init`` begin, with equal probability if they are several (PRISM answers for
    each by itself); without a ``.lab``, state 0 does.

    Parameters
    ----------
    path : path-like
        The ``.tra``, or the path without an ending.

    Raises
    ------
    StorageError
        A file cannot be read or is damaged; names the line.
    ModelError
        The chain does not fit the memory limit, or is none.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "queue.tra").write_text("2 2\n0 1 1\n1 0 2\n")
    ...     read(f"{folder}/queue.tra").uniformization_rate
    2.0
    """
    main, stem = file_and_stem(path, reading=True)
    with TextFile(main) as file:
        size, count = _header(file, "transitions")
        blocks = _blocks_of_rows if _in_rows(file) else TextFile.blocks
        moves = read_moves(file, Layout(size=size, order=1, action=True, comments=True), count, blocks)
    space: StateSpace = _states(f"{stem}.sta", size) if os.path.lexists(f"{stem}.sta") else numbered(size)
    notes: tuple[str, ...] = ()
    if os.path.lexists(f"{stem}.lab"):
        labels = _labels(f"{stem}.lab", size)
    else:
        labels = {"init": np.arange(size) == 0}
    rewards: dict[str, Reward] = {}
    for state_file, transition_file in _structures(stem):
        name, reward, note = _reward(state_file, transition_file, moves)
        name = unused(name, rewards)
        rewards[name] = reward
        notes += () if note is None else (f"Reward {printable(name)!r}: {note}",)
    return assembled(moves, space, labels, rewards, notes)


def write(path: str | os.PathLike[str], model: Any, *, overwrite: bool = False) -> list[str]:
    """Write a chain as explicit files of PRISM: arguments, sentences and errors of `ctmc.interchange.tra.write`.

    Coordinates of vectors become scalars, ``queue[0]`` becomes ``queue_0``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     chain = Generator.from_matrix([[-1, 1], [2, -2]], initial=0)
    ...     write(f"{folder}/queue.tra", chain), Path(folder, "queue.tra").read_text().split()[:5]
    ([], ['2', '2', '0', '1', '1.0'])
    """
    main, stem = file_and_stem(path)
    rows = listing(model, "explicit files of PRISM")
    chain = rows.chain
    rewards, lost = earned(chain, components=True)
    lost += no_descriptions(rewards)
    labels = labels_to_write(chain, lost, lambda name: re.sub(r'["\x00-\x1f\x7f]', "_", _utf8(name)))
    labels.setdefault(DEADLOCK, rows.absorbing())
    files = [(Path(main), writer(f"{chain.size} {len(rows.rates)}\n", rows.lines(rows.rates, 0)))]
    files.append((Path(f"{stem}.sta"), writer(_state_lines(chain, lost))))
    files.append((Path(f"{stem}.lab"), writer(_label_lines(labels))))
    for number, reward in enumerate(rewards, start=1):
        mark = str(number) if len(rewards) > 1 else ""
        name = re.sub(r'["\x00-\x1f\x7f]', "_", _utf8(reward.name))
        if name != reward.name:
            lost.append(f"Reward {printable(reward.name)!r} is written as {printable(name)!r}.")
        rate = np.zeros(chain.size) if reward.rate is None else reward.rate
        head = f'# Reward structure: "{name}"\n# State rewards\n{chain.size} {np.count_nonzero(rate)}\n'
        files.append((Path(f"{stem}{mark}.srew"), writer(head, value_lines(rate, 0))))
        if reward.impulse is not None:
            files.append((Path(f"{stem}{mark}.trew"), writer(*_impulse_lines(rows, name, reward.impulse))))
    replace_files(files, overwrite=overwrite, old=(Path(name) for pair in _structures(stem) for name in pair))
    return lost + left_out(chain)


def _header(file: TextFile, what: str) -> tuple[int, int]:
    line = _content(file)
    found = numbers_of(line, 2)
    if found is None:
        if numbers_of(line, 3) is not None and what == "transitions":
            raise file.fault(
                "three numbers head a decision process or another tool's file; allowed are the numbers of states and transitions"
            )
        text = printable(decoded((line or b"")[:60]))
        raise file.fault(f"it is {text!r}; allowed are two numbers, of states and of {what}", max(file.line, 1))
    if not found[0]:
        raise file.fault("the number of states is 0; allowed is 1 or more")
    return found[0], found[1]


def _content(file: TextFile) -> bytes | None:
    """Return the first line that is neither blank nor a comment."""
    while (line := file.next_line()) is not None and (not line or line.startswith(b"#")):
        pass
    return line


def _in_rows(file: TextFile) -> bool:
    """Return whether the next lines are ``i rate:j rate:j``; they are not consumed."""
    mark = file.mark()
    words = (_content(file) or b"").split(maxsplit=2)
    file.go_back(mark)
    return len(words) == 1 or any(b":" in word for word in words[1:2])  # nothing may leave the first state


def _blocks_of_rows(file: TextFile, layout: Layout) -> Iterator[Block]:
    """Yield the transitions of lines ``i rate:j rate:j``, after which a word may follow."""
    size, last = int(layout.size or 0), -1
    sources: list[int] = []
    targets: list[int] = []
    rates: list[float] = []
    lines: list[int] = []

    def block() -> Block:
        found = Block(np.array([sources, targets], dtype=np.int64), np.array(rates), np.array(lines, dtype=np.int64))
        for part in (sources, targets, rates, lines):
            part.clear()
        return found

    for line in file.lines():
        if not line or line.startswith(b"#"):
            continue
        match = _ROW.fullmatch(line)
        if match is None:
            raise file.fault(f"it is {printable(decoded(line[:60]))!r}; allowed is 'i rate:j rate:j'")
        state = int(match[1])
        if state <= last:
            raise file.fault(f"state {state} stands after state {last}; allowed is each once, in ascending order")
        last = state
        for word in match[2].split():
            number, _, target = word.partition(b":")
            rate, j = float(number), int(target)
            if max(state, j) >= size:
                raise file.fault(f"the state is {max(state, j)}; allowed is 0 to {size - 1}")
            if not 0 < rate < math.inf:
                raise file.fault(f"the rate is {decoded(number[:40])}; allowed are positive, finite numbers")
            sources.append(state)
            targets.append(j)
            rates.append(rate)
            lines.append(file.line)
        if len(rates) >= _ROW_ENTRIES:
            yield block()
    yield block()


def _states(path: str, size: int) -> StateSpace:
    with TextFile(path) as file:
        head = _content(file) or b""
        if not (head.startswith(b"(") and head.endswith(b")")):
            raise file.fault("the names of the variables are missing; allowed is '(x,y)'", max(file.line, 1))
        names = [decoded(name.strip()) for name in head[1:-1].split(b",")]
        if not all(names) or len(set(names)) < len(names):
            raise file.fault(f"the variables are {printable(decoded(head[:60]))}; allowed are different names")
        require_memory(f"the states in {shown(path)}", 24 * size * len(names), states=size)
        table = np.zeros((size, len(names)), dtype=np.int64)
        row = 0
        for line in file.lines():
            if not line:
                continue
            number, _, values = line.partition(b":")
            values = values.strip()
            try:
                if int(number) != row or values[:1] != b"(" or values[-1:] != b")":
                    raise ValueError
                state = [
                    _BOOLEANS[word] if (word := text.strip()) in _BOOLEANS else int(word)
                    for text in values[1:-1].split(b",")
                ]
                if len(state) != len(names):
                    raise ValueError
                if row < size:
                    table[row] = state
            except (ValueError, OverflowError):
                raise file.fault(
                    f"it is {printable(decoded(line[:60]))!r}; allowed is '{row}:(...)' with {len(names)} whole numbers"
                ) from None
            row += 1
            if row > size:
                raise file.fault(f"a state beyond the {size:,} of the transitions")
        if row < size:
            raise file.fault(f"the file ends after {row:,} states, but the transitions have {size:,}")
    try:
        return space_of(table, names)
    except ModelError as error:
        raise StorageError(f"{shown(path)} does not list states: {error}") from None


def _labels(path: str, size: int) -> dict[str, np.ndarray]:
    with TextFile(path) as file:
        head = decoded(_content(file) or b"")
        declared: dict[int, str] = {}
        at = 0
        while match := _DECLARED.match(head, at):
            number, name, at = int(match[1]), match[2], match.end()
            if number in declared or name in declared.values():
                raise file.fault(f"label {printable(match[0].strip())} is declared twice")
            declared[number] = name
        if head[at:].strip() or not declared:
            raise file.fault('labels are not declared; allowed is 0="init" 1="deadlock" and so on', max(file.line, 1))
        require_memory(f"the labels in {shown(path)}", len(declared) * size, states=size)
        members = {number: np.zeros(size, dtype=bool) for number in declared}
        for line in file.lines():
            if not line or line.startswith(b"#"):
                continue
            state, _, numbers = line.partition(b":")
            try:
                position = int(state)
                if not 0 <= position < size:
                    raise file.fault(f"the state is {printable(decoded(state[:40]))}; allowed is 0 to {size - 1}")
                for index in numbers.split():
                    members[int(index)][position] = True
            except (ValueError, KeyError):
                raise file.fault(
                    f"it is {printable(decoded(line[:60]))!r}; allowed is 'state: label label' with declared labels"
                ) from None
    return {declared[number]: member for number, member in members.items()}


def _structures(stem: str) -> Iterator[tuple[str, str]]:
    """Yield the paths of state and transition rewards of each structure; at least one of both exists."""
    single = f"{stem}.srew", f"{stem}.trew"
    if any(map(os.path.lexists, single)):
        yield single
    number = 0
    while True:
        number += 1
        pair = f"{stem}{number}.srew", f"{stem}{number}.trew"
        if not any(map(os.path.lexists, pair)) or os.path.lexists(f"{stem}{number}.tra"):
            return
        yield pair


def _reward(state_file: str, transition_file: str, moves: Moves) -> tuple[str, Reward, str | None]:
    rate, impulses, loops, name = None, None, None, None
    if os.path.lexists(state_file):
        with TextFile(state_file) as file:
            name, count = _reward_header(file, "rewards", moves)
            rate = read_values(file, Layout(1, "reward", size=moves.size, comments=True), moves.size, count)
    if os.path.lexists(transition_file):
        with TextFile(transition_file) as file:
            other, count = _reward_header(file, "rewards of transitions", moves)
            layout = Layout(2, "reward", size=moves.size, action=True, comments=True)
            impulses, loops = read_impulses(file, layout, moves, count)
            name = name or other
    reward, note = reward_of(rate, impulses, loops, moves)
    return name or "reward", reward, note


def _reward_header(file: TextFile, what: str, moves: Moves) -> tuple[str | None, int]:
    name = None
    while (line := file.next_line()) is not None and (not line or line.startswith(b"#")):
        if match := _STRUCTURE.match(decoded(line)):
            name = match[1]
    found = numbers_of(line, 2)
    if found is None:
        raise file.fault(f"allowed are two numbers, of states and of {what}", max(file.line, 1))
    if found[0] != moves.size:
        raise file.fault(f"{found[0]:,} states are announced, but the transitions have {moves.size:,}")
    return name, found[1]


def _state_lines(chain: Generator, lost: list[str]) -> Iterator[str]:
    names = coordinate_names(chain.space)
    written = identifiers([re.sub(r"\[(\d+)\]$", r"_\1", name) for name in names], "A-Za-z0-9_", 200)
    changed = [f"{printable(old)} as {new}" for old, new in zip(names, written, strict=True) if old != new]
    if changed:
        lost.append(f"Variables are written under other names, each a scalar: {', '.join(changed[:20])}.")

    def lines() -> Iterator[str]:
        yield f"({','.join(written)})\n"
        form = "%d:(" + ",".join(["%d"] * len(names)) + ")\n"
        for positions, states in chain.space.slabs():
            numbers = range(positions.start, positions.stop)
            yield "".join(form % (k, *state) for k, state in zip(numbers, states.tolist(), strict=True))

    return lines()


def _label_lines(labels: dict[str, np.ndarray]) -> Iterator[str]:
    yield " ".join(f'{number}="{name}"' for number, name in enumerate(labels)) + "\n"
    members = np.column_stack(list(labels.values()))
    for state in np.flatnonzero(members.any(axis=1)).tolist():
        yield f"{state}: {' '.join(map(str, np.flatnonzero(members[state]).tolist()))}\n"


def _impulse_lines(rows: Listing, name: str, impulse: np.ndarray) -> tuple[str, Iterator[str]]:
    values = impulse[rows.places]
    head = f'# Reward structure: "{name}"\n# Transition rewards\n{rows.chain.size} {np.count_nonzero(values)}\n'
    return head, rows.lines(values, 0, zeros=False)


def _utf8(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()
