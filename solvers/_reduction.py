"""The stationary equations on one color: half the unknowns, the square of the spectrum, the same cost per step.

In every chain whose transitions all change a color (`Generator.coloring`: each event adds or removes one job, say), the jump
chain leads from one color to the other and back.  With the probabilities p of the states of color 0 and the exit rates q,

    step(p)_j = (1 / q_j) sum_i o_i rate(i, j),     o_i = (1 / q_i) sum_k p_k rate(k, i),     i of color 1, j and k of color 0

has the stationary distribution, restricted to color 0, as its fixed point, and keeps the flow sum_j p_j q_j.  Other chains take
the jump chain as it is, p <- sum_i p_i rate(i, j) / q_j, for all states.  Krylov and fixed-point methods are written once for
either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numba
import numpy as np

from ctmc.model.generator import Generator
from ctmc.model.lattice_products import halved_difference, halved_step, halved_weights, summing
from ctmc.model.lattice_rates import accepted_weights
from ctmc.model.lattice_runs import runs
from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import LatticeTransitions, begin_digits, count_up, rate_at
from solvers._colors import counts_before, gather_color, gather_color_on_one_thread, put_color, take_color

_ROWS = 256
_CHUNK = 1 << 12


class Reduction(ABC):
    """A map whose fixed point is the stationary distribution of an irreducible chain, on one color where there are two.

    Attributes
    ----------
    chain : Generator
        Of two and more states.
    size : int
        Number of unknowns.
    halved : bool
        Whether the chain has two colors.
    exit_rates : ndarray, shape (size,)
        Of the states that are kept; 1 in elements that belong to no state, where the unknown is always 0.
    """

    chain: Generator
    size: int
    halved = True
    exit_rates: np.ndarray

    @abstractmethod
    def restrict(self, pi: np.ndarray) -> np.ndarray:
        """Return the unknowns of a distribution over all states."""

    @abstractmethod
    def expand(self, p: np.ndarray) -> np.ndarray:
        """Return the distribution over all states that belongs to p, normalised."""

    @abstractmethod
    def _step(self, p: np.ndarray, out: np.ndarray) -> None: ...

    def step(self, p: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the image of p; counts as one product."""
        self.chain.count_products()
        out = np.empty(self.size) if out is None else out
        self._step(p, out)
        return out

    def difference(self, p: np.ndarray, shadow: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Set out = p - step(p), and return the inner products shadow.out, p.out, out.out and shadow.p, shape (4,).

        Summed over chunks that depend on `size` only: the same bits for any number of threads.
        """
        self.step(p, out)
        dots = np.empty(((self.size + _CHUNK - 1) // _CHUNK, 4))
        subtract(p, shadow, out, dots)
        return np.asarray(dots.sum(axis=0))

    def defect(self, residual: np.ndarray, p: np.ndarray) -> float:
        """Return the defect of `expand(p)`, the residual being step(p) - p.

        All of the imbalance stands on the states that are kept, which have half of the flow where there are two colors.
        """
        sums = np.empty(((self.size + _CHUNK - 1) // _CHUNK, 2))
        imbalance_and_flow(residual, p, self.exit_rates, sums)
        imbalance, flow = sums.sum(axis=0)
        return float(imbalance / ((2 if self.halved else 1) * flow))


def reduction(chain: Generator) -> Reduction:
    """Return the chain's reduction; it holds a copy of the rates, sorted by color, unless they are streamed.

    Examples
    --------
    >>> queue = Generator.from_matrix(np.diag([1.0, 1.0, 1.0], 1) + np.diag([2.0, 2.0, 2.0], -1))
    >>> half = reduction(queue)
    >>> p = half.restrict(np.full(4, 0.25))
    >>> for _ in range(60):
    ...     p = half.step(p)
    >>> half.size, half.expand(p).round(9).tolist()
    (2, [0.533333333, 0.266666667, 0.133333333, 0.066666667])
    """
    if isinstance(chain.transitions, LatticeTransitions):
        return _LatticeHalves(chain)
    if chain.coloring is None:
        return _Whole(chain)
    return _StreamedHalves(chain) if isinstance(chain.transitions, StreamedTransitions) else _Halves(chain)


class _Whole(Reduction):
    """A chain without two colors: the jump chain itself."""

    halved = False

    def __init__(self, chain: Generator) -> None:
        self.chain, self.size, self.exit_rates = chain, chain.size, chain.exit_rates

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        return pi.copy()

    def expand(self, p: np.ndarray) -> np.ndarray:
        return p / p.sum()

    def _step(self, p: np.ndarray, out: np.ndarray) -> None:
        rows = self.chain.transitions
        if isinstance(rows, StreamedTransitions):
            rows.gather(
                lambda slab: gather_over_exits_on_one_thread(*slab, self.exit_rates, p, out),
                lambda slab: gather_over_exits(*slab, self.exit_rates, p, out),
            )
        else:
            gather_over_exits(*next(rows.slabs()), self.exit_rates, p, out)


class _Halves(Reduction):
    """Compressed rows of each color, their sources renumbered within the other."""

    def __init__(self, chain: Generator) -> None:
        self.chain = chain
        self._members, self._rows = _split_rows(chain)
        self._exits = [chain.exit_rates[members] for members in self._members]
        self.size, self.exit_rates = len(self._members[0]), self._exits[0]
        self._other = np.empty(len(self._members[1]))

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        return np.asarray(pi[self._members[0]])

    def expand(self, p: np.ndarray) -> np.ndarray:
        gather_over_exits(0, *self._rows[1], self._exits[1], p, self._other)
        pi = np.empty(self.chain.size)
        pi[self._members[0]], pi[self._members[1]] = p, self._other
        pi /= pi.sum()
        return pi

    def _step(self, p: np.ndarray, out: np.ndarray) -> None:
        gather_over_exits(0, *self._rows[1], self._exits[1], p, self._other)
        gather_over_exits(0, *self._rows[0], self._exits[0], self._other, out)


class _StreamedHalves(Reduction):
    """Rows that come slab by slab, in one pass for each color, over a vector in the order of the states."""

    def __init__(self, chain: Generator) -> None:
        self.chain = chain
        assert chain.coloring is not None
        self._colors: np.ndarray = chain.coloring
        self._before = counts_before(self._colors)
        self.size = chain.size - int(np.count_nonzero(self._colors))
        self._all = np.empty(chain.size)
        self.exit_rates = self.restrict(chain.exit_rates)

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        p = np.empty(self.size)
        take_color(self._colors, self._before, 0, pi, p)
        return p

    def expand(self, p: np.ndarray) -> np.ndarray:
        put_color(self._colors, self._before, 0, p, self._all)
        self._gather(1)
        return np.asarray(self._all / self._all.sum())

    def _step(self, p: np.ndarray, out: np.ndarray) -> None:
        put_color(self._colors, self._before, 0, p, self._all)
        self._gather(1)
        self._gather(0)
        take_color(self._colors, self._before, 0, self._all, out)

    def _gather(self, color: int) -> None:
        rows = self.chain.transitions
        assert isinstance(rows, StreamedTransitions)
        others = (self._colors, color, self.chain.exit_rates, self._all)
        rows.gather(lambda slab: gather_color_on_one_thread(*slab, *others), lambda slab: gather_color(*slab, *others))


class _LatticeHalves(Reduction):
    """A box of queues, the states of each parity by themselves: see `ctmc.model.lattice_products`."""

    def __init__(self, chain: Generator) -> None:
        lattice = chain.transitions
        self.chain = chain
        self._cut = chain.once("halved_runs", lambda: runs(lattice, halved=True))
        self._sides, self._strides = lattice.sides.astype(np.int64), lattice.strides.astype(np.int64)
        self._weights, self._accepted = _split_lattice(lattice, self._sides, self._strides)
        self._unit = float(lattice.unit[0])
        self.size = len(self._accepted[0])
        self._other = np.empty(self.size)

    @cached_property
    def exit_rates(self) -> np.ndarray:  # not needed by all
        exits = np.ones(self.size)
        split(self._sides, self._strides, 0, self.chain.exit_rates, exits)
        return exits

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        p = np.zeros(self.size)
        split(self._sides, self._strides, 0, pi, p)
        return p

    def expand(self, p: np.ndarray) -> np.ndarray:
        self._to_other(p)
        pi = np.empty(self.chain.size)
        join(self._sides, self._strides, 0, p, pi)
        join(self._sides, self._strides, 1, self._other, pi)
        pi /= pi.sum()
        return pi

    def difference(self, p: np.ndarray, shadow: np.ndarray, out: np.ndarray) -> np.ndarray:
        self.chain.count_products()
        dots = np.empty((self.size // int(self._cut.length[0]), 4))
        self._to_other(p)
        halved_difference(self._cut, self._weights[0], self._unit, self._accepted[0], self._other, p, shadow, out, dots)
        return np.asarray(dots.sum(axis=0))

    def defect(self, residual: np.ndarray, p: np.ndarray) -> float:
        sums = np.empty((self.size // int(self._cut.length[0]), 2))
        halved_weights(self._cut, self._unit, self._accepted[0], residual, p, sums)
        imbalance, flow = sums.sum(axis=0)
        return float(imbalance / (2 * flow))

    def _step(self, p: np.ndarray, out: np.ndarray) -> None:
        self._to_other(p)
        halved_step(self._cut, 0, self._weights[0], self._unit, self._accepted[0], self._other, out)

    def _to_other(self, p: np.ndarray) -> None:
        halved_step(self._cut, 1, self._weights[1], self._unit, self._accepted[1], p, self._other)


def _split_rows(chain: Generator) -> tuple[list[np.ndarray], list[tuple[np.ndarray, ...]]]:
    """Return the members of each color, and the rows into them as the fields of a slab after the first."""
    (slab,) = chain.row_slabs()
    colors = chain.coloring
    assert colors is not None
    members = [np.flatnonzero(colors == color) for color in (0, 1)]
    number = np.empty(chain.size, dtype=slab.sources.dtype)
    for states in members:
        number[states] = np.arange(len(states))
    counts = np.diff(slab.indptr)
    rows = []
    per_entry = slab.codes if len(slab.codes) else slab.rates
    for states in members:
        indptr = np.concatenate([np.zeros(1, np.uint64), np.cumsum(counts[states], dtype=np.uint64)])
        sources, values = np.empty(int(indptr[-1]), slab.sources.dtype), np.empty(int(indptr[-1]), per_entry.dtype)
        copy_rows(slab.indptr, slab.sources, per_entry, states.view(np.uint64), number, indptr, sources, values)
        coded = len(slab.codes) > 0
        rows.append((indptr, sources, values if coded else slab.codes, slab.rates if coded else values))
    return members, rows


def _split_lattice(
    lattice: LatticeTransitions, sides: np.ndarray, strides: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the weights of each color, and that of all arrivals out of its states; 0 in elements that belong to no state."""
    states, kind = lattice.weights.shape[1], lattice.weights.dtype
    size = states // int(sides[-1]) * ((int(sides[-1]) + 1) // 2)
    largest = int(sum(int(row.max()) for row in lattice.weights))
    accepted = np.empty(states, dtype=np.min_scalar_type(largest))
    accepted_weights(lattice.weights, sides, strides, accepted)
    weights = [np.zeros((len(sides), size), dtype=kind) for _ in (0, 1)]
    halves = [np.zeros(size, dtype=accepted.dtype) for _ in (0, 1)]
    for color in (0, 1):
        for i in range(len(sides)):
            split(sides, strides, color, lattice.weights[i], weights[color][i])
        split(sides, strides, color, accepted, halves[color])
    return weights, halves


@compiled_parallel
def copy_rows(
    indptr: Any, sources: Any, values: Any, rows: Any, number: Any, new_indptr: Any, new_sources: Any, new_values: Any
) -> None:
    """Copy some rows, sources renumbered.  Moves 24 bytes an entry."""
    for place in numba.prange(rows.size):
        to = new_indptr[place]
        for k in range(indptr[rows[place]], indptr[rows[place] + np.uint64(1)]):
            new_sources[to] = number[sources[k]]
            new_values[to] = values[k]
            to += np.uint64(1)


@compiled
def gather_over_exits_on_one_thread(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, exit_rates: Any, x: Any, out: Any
) -> None:
    """Do what `gather_over_exits` does."""
    for row in range(np.uint64(indptr.size - 1)):
        j = np.uint64(begin) + row
        total = 0.0
        for k in range(indptr[row], indptr[row + np.uint64(1)]):
            total += x[sources[k]] * rate_at(codes, rates, k)
        out[j] = total / exit_rates[j]


@compiled_parallel
def gather_over_exits(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, exit_rates: Any, x: Any, out: Any
) -> None:
    """Set out_j = sum_i x_i rate(i, j) / q_j for the states j of a slab.  Moves 12 bytes an entry."""
    for row in numba.prange(indptr.size - 1):
        j = np.uint64(begin) + np.uint64(row)
        total = 0.0
        for k in range(indptr[row], indptr[row + 1]):
            total += x[sources[k]] * rate_at(codes, rates, k)
        out[j] = total / exit_rates[j]


@compiled_parallel
def split(sides: Any, strides: Any, color: Any, x: Any, half: Any) -> None:
    """Copy the elements of one color from the order of the states to the halved layout."""
    width = sides[sides.size - 1]
    rows = x.size // width
    for block in numba.prange((rows + _ROWS - 1) // _ROWS):
        low = np.int64(block) * _ROWS
        digits = begin_digits(low * width, sides, strides)
        for row in range(low, min(low + _ROWS, rows)):
            place = row * ((width + 1) // 2)
            for last in range((color + digits.sum()) & 1, width, 2):
                half[place + (last >> 1)] = x[row * width + last]
            _next_row(digits, sides)


@compiled_parallel
def join(sides: Any, strides: Any, color: Any, half: Any, x: Any) -> None:
    """Copy the elements of one color from the halved layout to the order of the states."""
    width = sides[sides.size - 1]
    rows = x.size // width
    for block in numba.prange((rows + _ROWS - 1) // _ROWS):
        low = np.int64(block) * _ROWS
        digits = begin_digits(low * width, sides, strides)
        for row in range(low, min(low + _ROWS, rows)):
            place = row * ((width + 1) // 2)
            for last in range((color + digits.sum()) & 1, width, 2):
                x[row * width + last] = half[place + (last >> 1)]
            _next_row(digits, sides)


@compiled
def _next_row(digits: Any, sides: Any) -> None:
    digits[digits.size - 1] = sides[sides.size - 1] - 1
    count_up(digits, sides)


@compiled_parallel
def subtract(x: Any, shadow: Any, out: Any, dots: Any) -> None:
    """Set out to x - out, and write four inner products of each chunk; see `Reduction.difference`."""
    for chunk in numba.prange(dots.shape[0]):
        a = np.int64(chunk) * _CHUNK
        b = min(a + _CHUNK, out.size)
        subtract_chunk(x[a:b], shadow[a:b], out[a:b], dots[chunk])


@summing
def subtract_chunk(x: Any, shadow: Any, out: Any, dots: Any) -> None:
    with_shadow, with_x, square, both = 0.0, 0.0, 0.0, 0.0
    for r in range(out.size):
        value = x[r] - out[r]
        out[r] = value
        with_shadow += shadow[r] * value
        with_x += x[r] * value
        square += value * value
        both += shadow[r] * x[r]
    dots[0], dots[1], dots[2], dots[3] = with_shadow, with_x, square, both


@compiled_parallel
def imbalance_and_flow(residual: Any, p: Any, exit_rates: Any, sums: Any) -> None:
    """Write sum |residual| q and sum |p| q of each chunk."""
    for chunk in numba.prange(sums.shape[0]):
        a = np.int64(chunk) * _CHUNK
        b = min(a + _CHUNK, p.size)
        weigh_chunk(residual[a:b], p[a:b], exit_rates[a:b], sums[chunk])


@summing
def weigh_chunk(residual: Any, p: Any, exit_rates: Any, sums: Any) -> None:
    imbalance, flow = 0.0, 0.0
    for r in range(p.size):
        imbalance += abs(residual[r]) * exit_rates[r]
        flow += abs(p[r]) * exit_rates[r]
    sums[0], sums[1] = imbalance, flow
