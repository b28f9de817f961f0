"""Blocks of states that are weakly coupled, with a stationary distribution that was chosen beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import ctmc
from builders._rows import bytes_of_rows, compressed_rows
from ctmc.model.distribution import distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import LARGEST_COUNT, positive_rate, real_number, whole_number
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import is_streaming, made

_MOST_DECADES = 100.0
# the finaliser of splitmix64: G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014
_GOLDEN, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, eq=False)
class _Design:
    """Checked parameters."""

    blocks: int
    block_size: int
    coupling: float
    neighbours: int
    decades: float
    seed: int

    @property
    def size(self) -> int:
        return self.blocks * self.block_size

    def weights(self, states: np.ndarray) -> np.ndarray:
        """Return the prescribed probabilities of states by position, up to a common factor."""
        return np.asarray(10.0 ** (-self.decades * _uniform(self.seed, states, states)))

    @cached_property
    def total(self) -> float:
        """The sum of all weights."""
        step = 1 << 16
        return float(sum(self.weights(np.arange(k, min(k + step, self.size))).sum() for k in range(0, self.size, step)))

    def rates(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the rates between states that are joined, the coupling apart."""
        speed = 0.5 + _uniform(self.seed, np.minimum(sources, targets), np.maximum(sources, targets))
        # the same number both ways times the square root of both weights: the flows of each pair are equal
        return np.asarray(speed * np.sqrt(self.weights(targets) / self.weights(sources)))

    def tables(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the neighbours of some states, ascending, and the rates from them, 0 where there is none; (m, k) each."""
        block, place = np.divmod(positions, self.block_size)
        near = np.concatenate([np.arange(-self.neighbours, 0), np.arange(1, self.neighbours + 1)])
        inside = place[:, None] + near
        there = np.column_stack([block > 0, (inside >= 0) & (inside < self.block_size), block < self.blocks - 1])
        here = positions[:, None]
        others = np.where(there, here + np.concatenate([[-self.block_size], near, [self.block_size]]), here)
        rates = self.rates(others, here)
        rates[:, [0, -1]] *= self.coupling
        return others, np.where(there, rates, 0.0)

    def exchange(self, states: np.ndarray) -> np.ndarray:
        """Return the rate at which each state (block, place) leaves its block, shape (m,)."""
        here = states @ np.array([self.block_size, 1])
        before = np.where(states[:, 0] > 0, self.rates(here, np.maximum(here - self.block_size, 0)), 0.0)
        after = np.where(states[:, 0] < self.blocks - 1, self.rates(here, here + self.block_size), 0.0)
        return self.coupling * (before + after)


def _dress(
    model: Generator,
    blocks: int,
    block_size: int,
    coupling: float,
    seed: int,
    neighbours: int = 2,
    decades: float = 1.0,
) -> Generator:
    design = _design(blocks, block_size, coupling, seed, neighbours, decades)

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        exchange = solution.expected("exchange_rate")
        worst, misplaced = 0.0, 0.0
        found, known = np.zeros((2, design.blocks))
        chain: Any = solution.problem.model
        for positions, states, weights in chain.weighted_slabs(solution.value):
            right = design.weights(chain.begin + np.arange(positions.start, positions.stop)) / design.total
            worst = max(worst, float((np.abs(weights - right) / right).max()))
            misplaced += float(np.abs(weights - right).sum()) / 2
            found += np.bincount(states[:, 0], weights, design.blocks)
            known += np.bincount(states[:, 0], right, design.blocks)
        found, known = chain.ranks.total(np.array([found, known]))
        return {
            "exchange_rate": exchange,
            "misplaced_mass": chain.ranks.total(misplaced),
            "largest_relative_error": chain.ranks.largest(worst),
            "largest_block_error": float((np.abs(found - known) / known).max()),
        }

    return model.replace(
        rewards={"exchange_rate": Reward(design.exchange, "rate of moves from block to block")}, measures=measures
    )


@ctmc.builder(version=1, dress=_dress)
def nearly_decomposable(
    blocks: int,
    block_size: int,
    coupling: float,
    seed: int,
    neighbours: int = 2,
    decades: float = 1.0,
) -> Generator:
    """Nearly completely decomposable chain with a prescribed stationary distribution: a line of weakly coupled random blocks.

    Parameters
    ----------
    blocks : int
        Number of blocks.
    block_size : int
        States of each block.
    coupling : float
        How much slower moves between blocks are than those inside, for instance 1e-12; at least 1e-200.
    seed : int
        Of the random rates and the prescribed distribution, from 0 to 2^63 - 1.
    neighbours : int
        In its block a state is joined to so many places before it and after it; a block of this size or less is full.
    decades : float
        Stationary probabilities inside a block spread over so many powers of ten, 0 to 100.

    Returns
    -------
    Generator
        States (``block``, ``place``), place fastest.  A state also moves to the same place of the blocks before and after.
        Reward: exchange_rate.  Measures: exchange_rate (of moves from block to block), and how far the answer is from the
        prescribed distribution: misplaced_mass (half the sum of absolute differences), largest_relative_error of a state,
        largest_block_error (relative, of the probability of a block).

    Raises
    ------
    ModelError
        If a parameter is out of range, or the model needs more than the memory limit.

    Notes
    -----
    A state i has the weight w_i = 10^(-decades u_i), and a pair that is joined the rates s sqrt(w_j / w_i) from i to j and s
    sqrt(w_i / w_j) back, with s uniform on [0.5, 1.5), times the coupling between blocks.  So the chain is reversible, and its
    stationary distribution is proportional to w whatever the coupling: `prescribed_distribution`.  All random numbers are a
    function of seed and states, so rows of any range come out the same by themselves.  Source of the notion: P. J. Courtois,
    *Decomposability*, Academic Press 1977; `courtois` is the example of that book.

    Examples
    --------
    >>> chain = nearly_decomposable(blocks=4, block_size=5, coupling=1e-12, seed=1977)
    >>> found = ctmc.solve(ctmc.Stationary(chain), "gth").measures()
    >>> print(f"{found['exchange_rate']:.6e} {found['largest_relative_error'] < 1e-13}")
    1.532176e-12 True

    On the command line: ``ctmc build nearly_decomposable --blocks 40 --block-size 50 --coupling 1e-9 --seed 1977 -o blocks.h5``
    """
    design = _design(blocks, block_size, coupling, seed, neighbours, decades)
    space = Lattice((design.blocks - 1, design.block_size - 1), variables=(Variable("block"), Variable("place")))
    pairs = design.neighbours * design.block_size - design.neighbours * (design.neighbours + 1) // 2
    entries = 2 * (design.blocks * pairs + (design.blocks - 1) * design.block_size)
    if not is_streaming():
        require_memory("the chain of blocks", bytes_of_rows(space.size, entries), states=space.size, entries=entries)

    def rows(begin: int, end: int) -> Any:
        return compressed_rows(begin, end, space.size, design.tables, 2 * design.neighbours + 2)

    return Generator(space, made(space.size, rows, lambda: entries), initial=distribution(space, [0, 0]))


def prescribed_distribution(blocks: int, block_size: int, seed: int, decades: float = 1.0, **others: Any) -> np.ndarray:
    """Return the stationary distribution of `nearly_decomposable` with these parameters, which no other one changes.

    Parameters
    ----------
    blocks, block_size : int
    seed : int
    decades : float
    **others
        Parameters of the builder that do not matter.

    Returns
    -------
    ndarray of float64, shape (blocks * block_size,)

    Examples
    --------
    >>> prescribed_distribution(blocks=2, block_size=2, seed=1977).round(6).tolist()
    [0.464973, 0.131316, 0.249394, 0.154317]
    """
    design = _design(blocks, block_size, others.get("coupling", 1.0), seed, 1, decades)
    require_memory("the prescribed distribution", 48 * design.size, states=design.size)
    return design.weights(np.arange(design.size)) / design.total


nearly_decomposable.rates_that_may_change = ("coupling",)


def _design(blocks: Any, block_size: Any, coupling: Any, seed: Any, neighbours: Any, decades: Any) -> _Design:
    count, size = whole_number("blocks", blocks, 1), whole_number("block_size", block_size, 1)
    near = min(whole_number("neighbours", neighbours, 1), size - 1)
    allowed = f"a number from 0 to {_MOST_DECADES:g}"
    spread = real_number("decades", decades, lambda value: 0 <= value <= _MOST_DECADES, allowed)
    return _Design(
        count, size, positive_rate("coupling", coupling), near, spread, whole_number("seed", seed, 0, LARGEST_COUNT)
    )


def _uniform(seed: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each pair of states that depends on the pair and the seed alone."""
    word = np.broadcast_to(np.uint64(seed), np.broadcast_shapes(low.shape, high.shape))
    for part in (low, high):
        word = (word ^ part.astype(np.uint64)) + _GOLDEN
        word = (word ^ (word >> np.uint64(30))) * _FIRST
        word = (word ^ (word >> np.uint64(27))) * _SECOND
        word = word ^ (word >> np.uint64(31))
    return np.asarray((word >> np.uint64(11)) * 2.0**-53)
