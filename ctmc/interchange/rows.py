"""Chains from lists of transitions by source, as formats of text have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from ctmc.errors import StorageError, printable
from ctmc.interchange.text import Block, Layout, TextFile
from ctmc.model.distribution import Distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.reward import Reward
from ctmc.model.state_space import StateSpace
from ctmc.model.transitions import FloatTransitions

_SHORTEST = len(" 1:0")  # what a transition adds to a row of PRISM's
DEADLOCK = "deadlock"
INIT = "init"


@dataclass(frozen=True, eq=False)
class Moves:
    """Transitions of a file.

    Attributes
    ----------
    rows : FloatTransitions
    loops : ndarray of float64, shape (n,)
        Rates from each state to itself, which have no effect on the process.
    """

    rows: FloatTransitions
    loops: np.ndarray

    @property
    def size(self) -> int:
        """Number of states."""
        return len(self.loops)

    def absorbing(self) -> np.ndarray:
        """Return which states nothing leaves; shape (n,), bool."""
        left = np.zeros(self.size, dtype=bool)
        left[self.rows.sources] = True
        return ~left

    def notes(self) -> tuple[str, ...]:
        """Return what is said about transitions from a state to itself."""
        count = int(np.count_nonzero(self.loops))
        if not count:
            return ()
        return (f"The file has transitions of {count} states to themselves, which have no effect and are left out.",)


def read_moves(
    file: TextFile,
    layout: Layout,
    count: int | None = None,
    blocks: Callable[[TextFile, Layout], Iterator[Block]] = TextFile.blocks,
) -> Moves:
    """Read all further lines ``i j rate``, twice, so that nothing but the result is held.

    Parameters
    ----------
    file : TextFile
    layout : Layout
        With ascending sources; without `size`, the largest index tells it.
    count : int, optional
        Number of transitions that the header announces.
    blocks : callable
        Gives the transitions where lines have another form.

    Raises
    ------
    StorageError
        A line is wrong, stands there twice, or there are more or fewer than announced.
    ModelError
        The chain does not fit the memory limit.
    """
    if count is not None and count > file.size // _SHORTEST + 1:
        raise file.fault(f"{count:,} transitions are announced, but the file has only {file.size:,} bytes")
    if layout.size is not None:
        _require(file, layout.size, count or 0)
    mark = file.mark()
    into = np.zeros(layout.size or 1024, dtype=np.int64)
    loops = np.zeros(len(into))
    total, size = 0, layout.size or 0
    for block in blocks(file, layout):
        sources, targets = block.indices[0], block.indices[1]
        if count is not None and total + len(sources) > count:
            raise file.fault(
                f"a transition beyond the {count:,} that are announced", int(block.lines[max(count - total, 0)])
            )
        total += len(sources)
        if layout.size is None:
            size = max(size, int(block.indices.max()) + 1)
            if size > len(into):
                room = max(size, 2 * len(into)) if 64 * size < 2**31 else size
                _require(file, room, total)
                into, loops = _longer(into, room), _longer(loops, room)
        _count(sources, targets, block.values, into, loops)
    if count is not None and total < count:
        raise file.fault(f"the file ends after {total:,} transitions, but {count:,} are announced")
    if not size:
        raise file.fault("the file has no transitions, from which the number of states could be told")
    into, loops = into[:size], loops[:size]
    entries = int(into.sum())
    _require(file, size, entries)
    indptr = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(into, out=indptr[1:])
    filled = indptr[:-1].copy()
    sources_of = np.empty(entries, dtype=np.int32 if size <= np.iinfo(np.int32).max else np.int64)
    rates = np.empty(entries)
    file.go_back(mark)
    for block in blocks(file, layout):
        bad = _fill(block.indices[0], block.indices[1], block.values, indptr, filled, sources_of, rates)
        if bad >= 0:
            i, j = (block.indices[:, bad] + layout.first).tolist()
            raise file.fault(f"the transition from {i} to {j} stands there twice", int(block.lines[bad]))
    if not np.array_equal(filled, indptr[1:]):
        raise file.fault("the file has changed while it was read")
    return Moves(FloatTransitions(indptr, sources_of, rates), loops)


def by_target(sources: np.ndarray, targets: np.ndarray, rates: np.ndarray, size: int) -> Moves:
    """Return transitions that are given by ascending source, each once; shapes (m,)."""
    return in_two_passes(lambda: iter([(sources, targets, rates)]), size)


def in_two_passes(blocks: Callable[[], Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]], size: int) -> Moves:
    """Return transitions of which `blocks` yields sources, targets and rates, by ascending source, each once.

    It is called twice, so that nothing but the result is held.

    Raises
    ------
    StorageError
        The second time they are not those of the first.
    """
    into, loops = np.zeros(size, dtype=np.int64), np.zeros(size)
    for sources, targets, rates in blocks():
        _count(sources, targets, rates, into, loops)
    indptr = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(into, out=indptr[1:])
    found = np.empty(indptr[-1], dtype=np.int32 if size <= np.iinfo(np.int32).max else np.int64)
    values, filled = np.empty(len(found)), indptr[:-1].copy()
    bad = -1
    for sources, targets, rates in blocks():
        bad = max(bad, _fill(sources, targets, rates, indptr, filled, found, values))
    if bad >= 0 or not np.array_equal(filled, indptr[1:]):
        raise StorageError("the transitions have changed while they were read")
    return Moves(FloatTransitions(indptr, found, values), loops)


def read_values(file: TextFile, layout: Layout, size: int, count: int | None = None) -> np.ndarray:
    """Read all further lines ``i value``; states that are not named have 0; shape (n,)."""
    values = np.full(size, np.nan)
    total = 0
    for block in file.blocks(layout):
        total += len(block.values)
        bad = _put(block.indices[0], block.values, values)
        if bad >= 0:
            raise file.fault(f"state {block.indices[0, bad] + layout.first} stands there twice", int(block.lines[bad]))
    if count is not None and total != count:
        raise file.fault(f"{count:,} lines are announced, but there are {total:,}")
    values[np.isnan(values)] = 0.0
    return values


def read_impulses(
    file: TextFile, layout: Layout, moves: Moves, count: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read all further lines ``i j reward``: one number for each transition, and one for each loop of a state."""
    rows = moves.rows
    require_memory("the rewards of transitions", 8 * len(rows.rates), entries=len(rows.rates))
    impulses, loops = np.full(len(rows.rates), np.nan), np.full(moves.size, np.nan)
    total = 0
    for block in file.blocks(layout):
        total += len(block.values)
        bad, kind = _put_impulses(
            block.indices[0], block.indices[1], block.values, rows.indptr, rows.sources, moves.loops, impulses, loops
        )
        if kind:
            i, j = (block.indices[:, bad] + layout.first).tolist()
            what = (
                f"the transition from {i} to {j} stands there twice"
                if kind == 2
                else f"there is no transition from {i} to {j}"
            )
            raise file.fault(what, int(block.lines[bad]))
    if count is not None and total != count:
        raise file.fault(f"{count:,} lines are announced, but there are {total:,}")
    impulses[np.isnan(impulses)] = 0.0
    loops[np.isnan(loops)] = 0.0
    return impulses, loops


def reward_of(
    rate: np.ndarray | None, impulses: np.ndarray | None, looped: np.ndarray | None, moves: Moves
) -> tuple[Reward, str | None]:
    """Return a reward from its numbers, and a note where what loops of states earn becomes a rate.

    Parameters
    ----------
    rate : ndarray, shape (n,), optional
    impulses : ndarray, shape (transitions,), optional
    looped : ndarray, shape (n,), optional
        What each loop of a state earns.
    moves : Moves
    """
    note, self_loops = None, None
    if looped is not None and (moves.loops * looped).any():
        if set(np.unique(looped[moves.loops > 0]).tolist()) <= {0.0, 1.0}:
            self_loops = moves.loops * looped
        else:
            rate = moves.loops * looped + (0.0 if rate is None else rate)
            note = "what transitions of states to themselves earn is a rate; expectations stay, variances do not."
    if impulses is not None and not impulses.any() and (rate is not None or self_loops is not None):
        impulses = None
    if impulses is not None and rate is not None and not rate.any():
        rate = None
    return Reward(rate, impulse=impulses, self_loops=self_loops), note


def assembled(
    moves: Moves,
    space: StateSpace,
    labels: Mapping[str, np.ndarray],
    rewards: Mapping[str, Reward],
    notes: tuple[str, ...],
) -> Generator:
    """Return the chain: states labelled ``init`` begin, with equal probability; ``deadlock`` is no news if it is exactly that.

    Several initial states stand, in these formats, for as many chains; the uniform distribution over them answers for the
    mean of these, and a note says so.
    """
    kept = dict(labels)
    initial = None
    if INIT in kept:
        positions = np.flatnonzero(kept.pop(INIT))
        if len(positions):
            initial = Distribution(positions, np.full(len(positions), 1 / len(positions)))
        if len(positions) > 1:
            notes += (f"The file has {len(positions)} initial states; each begins with the same probability.",)
    if DEADLOCK in kept and np.array_equal(kept[DEADLOCK], moves.absorbing()):
        del kept[DEADLOCK]
    return Generator(
        space, moves.rows, initial=initial, labels=kept, rewards=dict(rewards), notes=moves.notes() + notes
    )


def numbers_of(line: bytes | None, count: int) -> list[int] | None:
    """Return the whole numbers of a line that has exactly so many words, all digits, else None."""
    words = (line or b"").split()
    if len(words) != count or not all(word.isdigit() and len(word) < 25 for word in words):
        return None
    return [int(word) for word in words]


def _longer(values: np.ndarray, size: int) -> np.ndarray:
    longer = np.zeros(size, dtype=values.dtype)
    longer[: len(values)] = values
    return longer


def _require(file: TextFile, states: int, entries: int) -> None:
    require_memory(
        f"the model in {printable(str(file.path))}", 48 * states + 12 * entries, states=states, entries=entries
    )


@numba.njit(cache=True, nogil=True)
def _count(sources: Any, targets: Any, values: Any, into: Any, loops: Any) -> None:
    for k in range(len(sources)):
        if sources[k] == targets[k]:
            loops[targets[k]] += values[k]
        else:
            into[targets[k]] += 1


@numba.njit(cache=True, nogil=True)
def _fill(sources: Any, targets: Any, values: Any, indptr: Any, filled: Any, out: Any, rates: Any) -> int:
    """Put transitions in their places; return the first that stands there twice, or -1."""
    for k in range(len(sources)):
        j = targets[k]
        if sources[k] == j:
            continue
        at = filled[j]
        if at >= indptr[j + 1] or (at > indptr[j] and out[at - 1] >= sources[k]):
            return k
        out[at], rates[at] = sources[k], values[k]
        filled[j] = at + 1
    return -1


@numba.njit(cache=True, nogil=True)
def _put(places: Any, given: Any, values: Any) -> int:
    for k in range(len(places)):
        if not np.isnan(values[places[k]]):
            return k
        values[places[k]] = given[k]
    return -1


@numba.njit(cache=True, nogil=True)
def _put_impulses(  # type: ignore[no-untyped-def]  # compiled for what it is given
    sources, targets, given, indptr, rows, loop_rates, impulses, loops
):
    """Put impulses to their transitions by bisection; return (line, 1 for no transition or 2 for a doubled one)."""
    for k in range(len(sources)):
        i, j = sources[k], targets[k]
        if i == j:
            if loop_rates[i] == 0:
                return k, 1
            if not np.isnan(loops[i]):
                return k, 2
            loops[i] = given[k]
            continue
        low, high = indptr[j], indptr[j + 1]
        while low < high:
            middle = (low + high) // 2
            if rows[middle] < i:
                low = middle + 1
            else:
                high = middle
        if low == indptr[j + 1] or rows[low] != i:
            return k, 1
        if not np.isnan(impulses[low]):
            return k, 2
        impulses[low] = given[k]
    return -1, 0
