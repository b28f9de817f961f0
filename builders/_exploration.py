"""Breadth-first exploration from a successor function, with a compiled table in which states are found again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, TypeAlias

import numpy as np

from ctmc.errors import ModelError, printable
from ctmc.model.memory import limited_memory, memory_limit, require_memory
from ctmc.model.products import compiled
from ctmc.model.state_space import SLAB

_log = logging.getLogger("ctmc.builders.reachable")
_PATIENCE = 20
"""Seconds after which it is said how far exploring has come, and again whenever they have doubled."""

Block: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Rows of the batch, the states after them, and the rates."""


def explore(
    successors: Callable[[np.ndarray], Iterator[Block]], initial: np.ndarray, max_states: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the states in order of discovery, and sources, targets and rates of the transitions."""
    found = _Table(initial.shape[1], max_states)
    found.positions(initial)
    parts: list[Block] = []
    entries = begin = 0
    start, patience = monotonic(), _PATIENCE
    with limited_memory(memory_limit()):  # what is free now; later some of it is ours
        while begin < found.count:
            states = found.states[begin : min(begin + SLAB, found.count)].copy()
            blocks = list(successors(states))
            if blocks:
                rows, after, rates = (np.concatenate(pieces) for pieces in zip(*blocks, strict=True))
                order = np.argsort(rows, kind="stable")
                rows, after, rates = rows[order], after[order], rates[order]
                moves = (states[rows] != after).any(axis=1)
                rows, after, rates = rows[moves], after[moves], rates[moves]
                entries += len(rows)
                _check_memory(found.count, found.states.shape[1], entries)
                targets = found.positions(after, states, rows)
                parts.append((begin + rows, targets, rates))
            begin += len(states)
            if monotonic() - start > patience:  # the states may have no end
                patience *= 2
                latest = name_of(found.states[found.count - 1])
                _log.warning(
                    f"{found.count:,} states in {patience // 2} s, the latest {latest}; "
                    f"exploring ends at max_states = {max_states:,}"
                )
        _check_memory(found.count, found.states.shape[1], entries)
    if not parts:
        empty = np.empty(0, dtype=np.int64)
        return found.states[: found.count], empty, empty, np.empty(0)
    sources, targets, rates = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    return found.states[: found.count], sources, targets, rates


def _check_memory(states: int, dimension: int, entries: int) -> None:
    require_memory(
        "the reachable states found so far",
        states * (24 * dimension + 64) + 90 * entries,
        states=states,
        entries=entries,
    )


class _Table:
    """States in order of discovery, found again by hashing; the work is done in batches by compiled loops."""

    def __init__(self, dimension: int, max_states: int) -> None:
        self.max_states = max_states
        self.count = 0
        self.states = np.empty((min(1024, max_states), dimension), dtype=np.int64)
        self.slots = np.full(4096, -1, dtype=np.int64)

    @np.errstate(over="ignore")  # hashes wrap around, which NumPy's numbers warn of where loops are not compiled
    def positions(self, wanted: np.ndarray, origins: Any = None, rows: Any = None) -> np.ndarray:
        """Return the position of each state, new ones being appended; origins[rows] are the states before them."""
        out = np.empty(len(wanted), dtype=np.int64)
        done = 0
        while done < len(wanted):
            done, self.count = _insert(wanted, done, self.states, self.slots, self.count, out)
            if done == len(wanted):
                break
            if self.count == self.max_states:
                came = "" if origins is None else f", from {name_of(origins[rows[done]])}"
                raise ModelError(
                    f"more than max_states = {self.max_states:,} states are reachable, the first one too many being "
                    f"{name_of(wanted[done])}{came}; raise max_states, or bound the states."
                )
            self._grow()
        return out

    def _grow(self) -> None:
        capacity, dimension = self.states.shape
        capacity = min(2 * capacity, self.max_states)
        require_memory("the table of states", capacity * (8 * dimension + 64), states=capacity)
        states = np.empty((capacity, dimension), dtype=np.int64)
        states[: self.count] = self.states[: self.count]
        self.states = states
        while len(self.slots) < 2 * capacity:
            self.slots = np.full(2 * len(self.slots), -1, dtype=np.int64)
        self.slots.fill(-1)
        _rehash(self.states, self.slots, self.count)


@compiled
def _slot(state: Any, mask: Any) -> Any:
    """Return where to begin looking for a state: a multiplicative hash (splitmix64's finisher) of its coordinates."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for x in state:
        mixed ^= np.uint64(x)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed & mask


@compiled
def _insert(wanted: Any, done: Any, states: Any, slots: Any, count: Any, out: Any) -> tuple[int, int]:
    """Set out[k] to the position of wanted[k], from k = done on, until a new state finds no room; return (k, count)."""
    mask = np.uint64(slots.size - 1)
    for k in range(done, len(wanted)):
        place = _slot(wanted[k], mask)
        while True:
            known = slots[place]
            if known < 0:
                if count == len(states):
                    return k, count
                for i in range(states.shape[1]):
                    states[count, i] = wanted[k, i]
                slots[place] = count
                out[k] = count
                count += 1
                break
            same = True
            for i in range(states.shape[1]):
                if states[known, i] != wanted[k, i]:
                    same = False
                    break
            if same:
                out[k] = known
                break
            place = (place + np.uint64(1)) & mask
    return len(wanted), count


@compiled
def _rehash(states: Any, slots: Any, count: Any) -> None:
    """Enter the first `count` states, all different, into empty slots."""
    mask = np.uint64(slots.size - 1)
    for position in range(count):
        place = _slot(states[position], mask)
        while slots[place] >= 0:
            place = (place + np.uint64(1)) & mask
        slots[place] = position


def name_of(state: Any) -> str:
    """Return a state as messages show it."""
    if isinstance(state, np.ndarray):
        state = tuple(state.tolist()) if state.ndim else state.item()
    text = printable(state)
    return text if len(text) < 80 else text[:77] + "..."
