"""The jump chain of a generator: transitions by source, and compiled paths through them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctmc.errors import about, quoted, unknown_name
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.predicate import Predicate, parse
from ctmc.model.products import compiled
from ctmc.model.random_streams import exponential, uniform
from ctmc.model.reward import evaluate
from ctmc.model.transitions import rate_at

INTEGRALS = 3
"""Value of a reward now, its integral since time 0, and its discounted integral."""
_FEW = 12
"""Transitions of a row that are looked through one by one."""
_ONE = np.uint64(1)


def rows_by_source(chain: Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the transitions out of each state, found once and shared by copies of the model.

    Returns
    -------
    indptr : ndarray of uint64, shape (n + 1,)
        Entries ``indptr[i]:indptr[i + 1]`` lead out of state i.
    targets : ndarray of uint32 or uint64, shape (entries,)
    cumulative : ndarray of float64, shape (entries,)
        Sums of the rates of the row, up to and with the entry.

    Raises
    ------
    ModelError
        If they do not fit the memory limit.

    Examples
    --------
    >>> indptr, targets, cumulative = rows_by_source(Generator.from_matrix([[-3, 1, 2], [4, -4, 0], [0, 0, 0]]))
    >>> indptr.tolist(), targets.tolist(), cumulative.tolist()
    ([0, 2, 3, 3], [1, 2, 0], [1.0, 3.0, 4.0])
    """
    return chain.once("rows_by_source", lambda: _rows_by_source(chain))


def _rows_by_source(chain: Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    narrow = chain.size <= np.iinfo(np.int32).max
    size = (4 if narrow else 8) + 8
    require_memory("the jump chain", size * chain.entries + 16 * chain.size, states=chain.size, entries=chain.entries)
    counts = np.zeros(chain.size + 1, dtype=np.uint64)
    for slab in chain.row_slabs():
        _count(*slab, counts)
    indptr = np.cumsum(counts, dtype=np.uint64)
    entries = int(indptr[-1])
    targets, cumulative = np.empty(entries, dtype=np.uint32 if narrow else np.uint64), np.empty(entries)
    filled = indptr[:-1].copy()
    for slab in chain.row_slabs():
        _fill(*slab, filled, targets, cumulative)
    _add_up(indptr, cumulative)
    return indptr, targets, cumulative


@compiled
def _count(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, counts: Any) -> None:
    for k in range(indptr[indptr.size - 1]):
        counts[np.uint64(sources[k]) + _ONE] += _ONE


@compiled
def _fill(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, filled: Any, targets: Any, cumulative: Any
) -> None:
    for j in range(np.uint64(indptr.size - 1)):
        for k in range(indptr[j], indptr[j + _ONE]):
            place = filled[sources[k]]
            targets[place] = np.uint64(begin) + j
            cumulative[place] = rate_at(codes, rates, k)
            filled[sources[k]] = place + _ONE


@compiled
def _add_up(indptr: Any, cumulative: Any) -> None:
    for i in range(np.uint64(indptr.size - 1)):
        total = 0.0
        for k in range(indptr[i], indptr[i + _ONE]):
            total += cumulative[k]
            cumulative[k] = total


def reward_table(chain: Generator, names: Sequence[str]) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the values of rewards in every state, shape (n, width), and which column or columns belong to each name."""
    known = chain.all_rewards
    for name in names:
        if name not in known:
            raise unknown_name("reward", name, known)
    chosen = [known[name] for name in names]
    if not names:
        return np.zeros((chain.size, 0)), {}
    first = chain.space.states(np.arange(1))
    shapes = [reward.evaluate(first, slice(0, 1)).shape[1:] for reward in chosen]
    width = sum(shape[0] if shape else 1 for shape in shapes)
    require_memory("the values of the rewards", 8 * chain.size * width, states=chain.size)
    table, columns, place = np.empty((chain.size, width)), {}, 0
    for name, shape in zip(names, shapes, strict=True):
        columns[name] = slice(place, place + shape[0]) if shape else place
        place += shape[0] if shape else 1
    for positions, values in evaluate(chain.space, chosen):
        table[positions] = np.column_stack(values)
    return table, columns


def target_states(chain: Generator, condition: str) -> np.ndarray:
    """Return where a condition on rewards, variables and labels holds; shape (n,) of truth values."""
    predicate = parse(condition, "target")
    with about(f"target {quoted(condition)}"):
        return _meeting(chain, predicate)


def _meeting(chain: Generator, predicate: Predicate) -> np.ndarray:
    known = {**chain.all_rewards, **chain.labels}
    for name in predicate.names:
        if name not in known:
            raise unknown_name("reward, variable or label", name, known)
    chosen = [name for name in predicate.names if name not in chain.labels]
    labels = [name for name in predicate.names if name in chain.labels]
    member = np.empty(chain.size, dtype=bool)
    for positions, states in chain.space.slabs():
        values = {name: chain.all_rewards[name].evaluate(states, positions) for name in chosen}
        values |= {name: chain.labels[name][positions] for name in labels}
        member[positions] = predicate.evaluate(values or {"": np.empty(len(states))})
    return member


@compiled
def _end_of(cumulative: Any, begin: Any, end: Any, wanted: float) -> Any:
    """Return the first entry of a row whose cumulative rate is at least `wanted`; the last one where rounding goes beyond."""
    last = end - _ONE
    while last - begin > _FEW:
        middle = begin + ((last - begin) >> _ONE)
        if cumulative[middle] < wanted:
            begin = middle + _ONE
        else:
            last = middle
    while begin < last and cumulative[begin] < wanted:
        begin += _ONE
    return begin


@compiled
def run_paths(
    indptr: Any,
    targets: Any,
    cumulative: Any,
    exit_rates: Any,
    table: Any,
    stop: Any,
    begins: Any,
    begin_sums: Any,
    streams: Any,
    grid: Any,
    discount: float,
    seen: Any,
    hits: Any,
    events: Any,
) -> None:
    """Run one path for each set of streams, and record rewards and their integrals at the times of the grid.

    Parameters
    ----------
    indptr, targets, cumulative
        From `rows_by_source`.
    exit_rates : ndarray, shape (n,)
    table : ndarray, shape (n, width)
        Rewards.
    stop : ndarray of bool, shape (n,) or (0,)
        A path ends here, the time goes to `hits`.
    begins, begin_sums : ndarray, shape (k,)
        States in which a path may begin, cumulative probabilities.
    streams : ndarray of uint64, shape (paths, 1, 4)
    grid : ndarray, shape (g,)
    discount : float
    seen : ndarray, shape (paths, 3, g, width)
    hits : ndarray, shape (paths,)
    events : ndarray of int64, shape (paths,)
    """
    width = table.shape[1]
    sums, discounted = np.zeros(width), np.zeros(width)
    for path in range(streams.shape[0]):
        own = streams[path]
        sums[:] = 0.0
        discounted[:] = 0.0
        place = np.searchsorted(begin_sums, uniform(own, 0) * begin_sums[-1])
        state = np.uint64(begins[min(place, begins.size - 1)])
        clock, position = 0.0, 0
        while True:
            if stop.size > 0 and stop[state]:
                hits[path] = clock
                break
            rate = exit_rates[state]
            leaving = clock + exponential(own, 0) / rate if rate > 0 else np.inf
            while True:
                until = min(leaving, grid[position])
                step = until - clock
                for k in range(width):
                    sums[k] += table[state, k] * step
                if discount > 0:
                    weight = math.exp(-discount * clock) * -math.expm1(-discount * step) / discount
                    for k in range(width):
                        discounted[k] += table[state, k] * weight
                clock = until
                if leaving <= grid[position]:
                    break
                for k in range(width):
                    seen[path, 0, position, k] = table[state, k]
                    seen[path, 1, position, k] = sums[k]
                    seen[path, 2, position, k] = discounted[k]
                position += 1
                if position == grid.size:
                    break
            if position == grid.size:
                break
            entry = _end_of(cumulative, indptr[state], indptr[state + _ONE], uniform(own, 0) * rate)
            state = np.uint64(targets[entry])
            events[path] += 1
