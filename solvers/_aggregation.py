"""Aggregation: the chain between parts of the states is solved, and its masses are put back into the parts.

With the masses m and the shares s_i = pi_i / m_a of the states i in their part a, the rates of the chain between the parts are
sum_{i in a} s_i rate(i, b), and its stationary distribution replaces m.  Only sums, products and quotients of non-negative
numbers occur, so small probabilities keep their relative accuracy, and parts that hardly exchange anything have the right
masses as soon as the shares inside them are right.

Parts of three kinds: *levels*, which transitions leave for their neighbours only (the total of the coordinates of a queue, the
level of a truncated quasi-birth-and-death process), where the chain between the parts is a birth-death chain and the ratios of
neighbours are known at once (here); parts given by the user; and pairs of states between which most flows, again and again
until few parts are left, with sweeps in between (`ctmc.model.multilevel`).

Source: J. R. Koury, D. F. McAllister, W. J. Stewart, *Iterative methods for computing stationary distributions of nearly
completely decomposable Markov chains*, SIAM J. Algebraic Discrete Methods 5 (1984), doi:10.1137/0605019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numba
import numpy as np

from ctmc.errors import ModelError, shown, unknown_name
from ctmc.model.generator import Generator
from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.state_space import Lattice, Listed
from ctmc.model.transitions import LatticeTransitions, begin_digits, count_up, rate_at
from solvers._reduction import Reduction

LOOSE = 1e-5
"""A chain with a rate below this share of its source's exit rate may fall into parts that hardly exchange anything."""
_CHUNKS = 16
_FEW_LEVELS = 4096
_BLOCK = 1 << 10


@dataclass(frozen=True)
class Levels:
    """Parts that transitions leave for the part before or after only.

    Attributes
    ----------
    level : ndarray of int32, or int64 beyond 2^31 states, shape (n,)
    count : int
    up, down : ndarray, shape (n,)
        Total rate from each state into the next level, and into the one before.
    strict : bool
        Whether every transition changes the level.
    """

    level: np.ndarray
    count: int
    up: np.ndarray
    down: np.ndarray
    strict: bool

    def rescale(self, x: np.ndarray, weight: np.ndarray) -> None:
        """Balance the flow between neighbouring levels, in place; then weight . x = 1.

        Moves some 50 bytes a state; the same bits for any number of threads.

        Parameters
        ----------
        x : ndarray, shape (n,)
            Non-negative.
        weight : ndarray, shape (n,)
        """
        chunks = _CHUNKS if self.count <= _FEW_LEVELS else 1
        sums = np.zeros((chunks, 3, self.count))
        flows_of_levels(x, self.level, self.up, self.down, weight, sums)
        for chunk in range(1, chunks):
            sums[0] += sums[chunk]
        factor = np.empty(self.count)
        level_factors(sums[0], factor)
        multiply_parts(x, self.level, factor)


# ---- which parts --------------------------------------------------------------------------------------------------------------


def find_levels(chain: Generator) -> Levels | None:
    """Return the levels of a chain, found once, or None where there are none.

    Tried are a variable named ``level`` and the total of the coordinates.

    Examples
    --------
    >>> queue = Generator.from_matrix(np.diag([1.0, 1.0, 1.0], 1) + np.diag([2.0, 2.0, 2.0], -1))
    >>> levels = find_levels(queue)
    >>> pi = np.full(4, 0.25)
    >>> levels.rescale(pi, np.ones(4))
    >>> pi.round(9).tolist()
    [0.533333333, 0.266666667, 0.133333333, 0.066666667]
    """
    return chain.once("levels", lambda: _find_levels(chain))


def _find_levels(chain: Generator) -> Levels | None:
    if isinstance(chain.transitions, LatticeTransitions):
        level = _totals(chain)
        ones = np.ones(chain.size)
        up, down = rates_between_levels(chain, level, ones, ones)[1:]
        return Levels(level, int(level.max()) + 1, up, down, True)
    names = [variable.name for variable in chain.space.variables if variable.length is None]
    candidates = [parts_of_values(chain, "level")] if "level" in names else []
    candidates.append(_totals(chain))
    for level in candidates:
        found = levels_of(chain, level)
        if found is not None:
            return found
    return None


def levels_of(chain: Generator, part_of: np.ndarray) -> Levels | None:
    """Return the parts as levels, or None if some transition goes beyond the neighbouring parts."""
    ones = np.ones(chain.size)
    kind, up, down = rates_between_levels(chain, part_of, ones, ones)
    return None if kind == 2 else Levels(part_of, int(part_of.max()) + 1, up, down, kind == 0)


def half_levels(half: Reduction) -> Levels | None:
    """Return levels for the map `half.step`, whose flow goes two levels up or down at a time, or None.

    There are some where every transition changes the level, which then is even, or odd, for all states that are kept.
    """
    if not half.halved:
        return None
    chain = half.chain
    whole = find_levels(chain)
    if whole is None or not whole.strict:
        return None
    return chain.once("half_levels", lambda: _half_levels(half, whole))


def _half_levels(half: Reduction, whole: Levels) -> Levels:
    chain = half.chain
    up, down = rates_between_levels(chain, whole.level, whole.up / chain.exit_rates, whole.down / chain.exit_rates)[1:]
    level = half.restrict(whole.level.astype(np.float64)).astype(whole.level.dtype) >> 1
    return Levels(level, int(level.max()) + 1, half.restrict(up), half.restrict(down), True)


def _totals(chain: Generator) -> np.ndarray:
    """Return the total of the coordinates of each state, counted from the least; shape (n,) int32 or int64."""
    space = chain.space
    if isinstance(space, Lattice) and space.total is None and not space.classes:  # all of the box
        axes = [np.arange(limit + 1, dtype=_narrow(chain.size)) for limit in space.limits]
        return np.ascontiguousarray(reduce(np.add.outer, axes).ravel())
    totals = np.empty(chain.size, dtype=np.int64)
    if isinstance(space, Listed):
        totals[:] = space.table.sum(axis=1)
    else:
        for positions, states in space.slabs():
            totals[positions] = states.sum(axis=1)
    return _numbered(totals)


def _numbered(values: np.ndarray) -> np.ndarray:
    """Number whole values from the least one, or by rank where they are far apart."""
    least, most = int(values.min()), int(values.max())
    if most - least < len(values):
        return (values - least).astype(_narrow(len(values)))
    return np.unique(values, return_inverse=True)[1].astype(_narrow(len(values)))


def _narrow(count: int) -> type[np.int32] | type[np.int64]:
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64


def parts_of_values(chain: Generator, name: str) -> np.ndarray:
    """Return the parts on which a variable or reward, one number per state, is constant; shape (n,) int32 or int64, ascending in it.

    Raises
    ------
    UnknownNameError
        If the model has no such variable or reward.
    ModelError
        If it is a vector.
    """
    if name not in chain.all_rewards:
        raise unknown_name("partition", name, ["auto", "matching", "total", *chain.all_rewards])
    reward = chain.all_rewards[name]
    values = np.empty(chain.size)
    for positions, states in chain.space.slabs():
        found = reward.evaluate(states, positions)
        if found.ndim != 1:
            raise ModelError(f"partition is {shown(name)}, a vector per state; allowed is one number per state.")
        values[positions] = found
    return np.unique(values, return_inverse=True)[1].astype(_narrow(len(values)))


def given_parts(chain: Generator, partition: str | tuple[int, ...]) -> np.ndarray:
    """Return the part of each state, numbered without gaps, from a name or a number per state."""
    if isinstance(partition, str):
        return _totals(chain) if partition == "total" else parts_of_values(chain, partition)
    if len(partition) != chain.size:
        raise ModelError(f"partition has {len(partition)} numbers; allowed is one for each of the {chain.size} states.")
    return np.unique(np.array(partition), return_inverse=True)[1].astype(_narrow(chain.size))


def loosely_coupled(chain: Generator) -> bool:
    """Return whether some rate is tiny beside the exit rate of its source; found once.

    Only then can the chain fall into parts whose exchange is slow because of its rates.
    """
    return chain.once("loosely_coupled", lambda: _loosely_coupled(chain))


def _loosely_coupled(chain: Generator) -> bool:
    rows = chain.transitions
    if isinstance(rows, LatticeTransitions):
        least = min(float(rows.departures[i, 1:side].min()) for i, side in enumerate(rows.sides) if side > 1)
        largest = float(chain.exit_rates.max())
        return min(least, float(rows.unit[0])) < LOOSE * largest
    return any(least_share(*slab, chain.exit_rates) < LOOSE for slab in chain.row_slabs())


def rates_between_levels(
    chain: Generator, level: np.ndarray, weight_up: np.ndarray, weight_down: np.ndarray
) -> tuple[int, np.ndarray, np.ndarray]:
    """Return how levels are left, and the rates up and down from each state, times the weights of the states entered.

    Returns
    -------
    int
        0 if every transition changes the level by one, 1 if some stay in their level, 2 if some go further.
    ndarray, ndarray
        Shape (n,); sums of non-negative numbers.
    """
    up, down = np.zeros(chain.size), np.zeros(chain.size)
    chain.count_products()
    rows = chain.transitions
    if isinstance(rows, LatticeTransitions):
        lattice_rates(rows.weights, float(rows.unit[0]), rows.departures, rows.sides, rows.strides, weight_up, weight_down,
                      up, down)  # fmt: skip
        return 0, up, down
    kind = 0
    for slab in chain.row_slabs():
        kind = max(kind, int(rates_across(*slab, level, weight_up, weight_down, up, down)))
    return kind, up, down


# ---- compiled loops -------------------------------------------------------------------------------------------------------------


@compiled_parallel
def flows_of_levels(x: Any, level: Any, up: Any, down: Any, weight: Any, sums: Any) -> None:
    """Sum x up, x down and x weight by level, in as many chunks as `sums` has.  Moves 36 bytes a state."""
    chunks = sums.shape[0]
    for chunk in numba.prange(chunks):
        for i in range(x.size * chunk // chunks, x.size * (chunk + 1) // chunks):
            part = level[i]
            sums[chunk, 0, part] += x[i] * up[i]
            sums[chunk, 1, part] += x[i] * down[i]
            sums[chunk, 2, part] += x[i] * weight[i]


@compiled
def level_factors(sums: Any, factor: Any) -> None:
    """Set the factors of the levels that make what goes up from each equal to what comes down from the next.

    The factors are products of many ratios; their powers of two are kept apart, and the largest new level is where the
    exponents are taken from.
    """
    count = factor.size
    exponent = np.zeros(count, dtype=np.int64)
    factor[0] = 1.0
    for k in range(1, count):
        ratio = 1.0
        if sums[0, k - 1] > 0.0 and sums[1, k] > 0.0:
            ratio = sums[0, k - 1] / sums[1, k]
            if not ratio < np.inf or ratio == 0.0:
                ratio = 1.0
        fraction, power = math.frexp(factor[k - 1] * ratio)
        factor[k] = fraction
        exponent[k] = exponent[k - 1] + power
    most = np.int64(-(1 << 60))
    for k in range(count):
        if sums[2, k] > 0.0:
            fraction, power = math.frexp(sums[2, k])
            most = max(most, exponent[k] + power)
    total = 0.0
    for k in range(count):
        shift = exponent[k] - most
        # beyond these limits the level's probabilities cannot be told from 0
        factor[k] = math.ldexp(factor[k], int(shift)) if -1000 < shift < 1000 else 0.0
        total += factor[k] * sums[2, k]
    for k in range(count):
        factor[k] /= total


@compiled_parallel
def multiply_parts(x: Any, part_of: Any, factor: Any) -> None:
    """Multiply each element by the factor of its part.  Moves 20 bytes a state."""
    for i in numba.prange(x.size):
        x[i] *= factor[part_of[i]]


@compiled
def rates_across(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, level: Any, weight_up: Any, weight_down: Any, up: Any,
    down: Any,
) -> int:  # fmt: skip
    """Add to up and down the weighted rates between neighbouring levels; return the kind of `rates_between_levels`."""
    kind = 0
    for row in range(np.uint64(indptr.size - 1)):
        j = np.uint64(begin) + row
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            i = sources[k]
            step = level[j] - level[i]
            if step == 1:
                up[i] += rate_at(codes, rates, k) * weight_up[j]
            elif step == -1:
                down[i] += rate_at(codes, rates, k) * weight_down[j]
            elif step == 0:
                kind = 1
            else:
                return 2
    return kind


@compiled_parallel
def lattice_rates(
    weights: Any, unit: Any, departures: Any, sides: Any, strides: Any, weight_up: Any, weight_down: Any, up: Any, down: Any
) -> None:  # fmt: skip
    """Set up and down to the weighted rates to states with one job more and one less.  Moves 32 bytes and M weights a state."""
    n = up.size
    for block in numba.prange((n + _BLOCK - 1) // _BLOCK):
        low = np.int64(block) * _BLOCK
        digits = begin_digits(low, sides, strides)
        for j in range(low, min(low + _BLOCK, n)):
            more, less = 0.0, 0.0
            for i in range(sides.size):
                if digits[i] + 1 < sides[i]:
                    more += weights[i, j + strides[i]] * unit * weight_up[j + strides[i]]
                if digits[i] > 0:
                    less += departures[i, digits[i]] * weight_down[j - strides[i]]
            up[j], down[j] = more, less
            count_up(digits, sides)


@compiled
def least_share(begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, exit_rates: Any) -> float:
    """Return the smallest rate relative to the exit rate of its source."""
    least = np.inf
    for k in range(indptr[indptr.size - 1]):
        least = min(least, rate_at(codes, rates, k) / exit_rates[sources[k]])
    return least
