"""The equation (shift I - Q) x = b with the diagonal taken out, on one color of the chain where there are two.

With D = shift + exit rates, N the rates and y = D x it is (I - N D^-1) y = b, whose residual is that of x.  Where every
transition changes a color, the states of the other color follow from those that are kept, x_o = D_o^-1 (b_o + N_oe x_e), and

    (I - N_eo D_o^-1 N_oe D_e^-1) y_e = b_e + N_eo D_o^-1 b_o

has half the unknowns and the square of the spectrum, at the same cost per step.  The residual of the others is then 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numba
import numpy as np
from scipy.sparse import csc_array

from ctmc.equation import Equation
from ctmc.model.lattice_products import summing
from ctmc.model.memory import require_memory
from ctmc.model.products import compiled_parallel
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import LatticeTransitions
from solvers._reduction import copy_rows

_CHUNK = 1 << 12


class Resolvent(ABC):
    """The map y - N D^-1 y of an equation on all states, or its Schur complement on one color.

    Attributes
    ----------
    size : int
        Number of unknowns.
    halved : bool
        Whether the chain has two colors, of which one is kept.
    """

    size: int
    halved = False

    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        self.diagonal = equation.shift + equation.model.exit_rates

    @abstractmethod
    def restrict(self, x: np.ndarray) -> np.ndarray:
        """Return y of an x over all states."""

    @abstractmethod
    def expand(self, y: np.ndarray) -> np.ndarray:
        """Return x over all states."""

    @abstractmethod
    def residual(self, y: np.ndarray) -> np.ndarray:
        """Return the right side less the image of y."""

    @abstractmethod
    def difference(self, p: np.ndarray, shadow: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Set out to the image of p, and return the inner products shadow.out, p.out, out.out and shadow.p, shape (4,)."""

    def spread(self, residual: np.ndarray) -> tuple[float, float]:
        """Return the least and the largest residual over all states."""
        low, high = float(residual.min()), float(residual.max())
        return (min(low, 0.0), max(high, 0.0)) if self.halved else (low, high)


def resolvent(equation: Equation) -> Resolvent:
    """Return the map of an equation on all states of its model.

    Examples
    --------
    >>> from ctmc.model.generator import Generator
    >>> queue = Generator.from_matrix(np.diag([1.0, 1.0], 1) + np.diag([2.0, 2.0], -1))
    >>> half = resolvent(Equation(queue, np.arange(3.0), shift=0.5))
    >>> y = half.residual(np.zeros(2))
    >>> for _ in range(60):
    ...     y += half.residual(y)
    >>> half.size, half.expand(y).round(6).tolist()
    (2, [0.878049, 1.317073, 1.853659])
    """
    if isinstance(equation.model.transitions, LatticeTransitions | StreamedTransitions):
        return _Stored(equation)
    return _Whole(equation) if equation.model.coloring is None else _Half(equation)


class _AllStates(Resolvent):
    def __init__(self, equation: Equation) -> None:
        super().__init__(equation)
        self.size = equation.model.size

    def restrict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.diagonal * x)

    def expand(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y / self.diagonal)

    def residual(self, y: np.ndarray) -> np.ndarray:
        return self.equation.residual(self.expand(y))


class _Stored(_AllStates):
    """All states, by products with the model in the form in which it is stored."""

    def __init__(self, equation: Equation) -> None:
        super().__init__(equation)
        self._over = np.empty(self.size)

    def difference(self, p: np.ndarray, shadow: np.ndarray, out: np.ndarray) -> np.ndarray:
        np.divide(p, self.diagonal, out=self._over)
        # y - N x = (shift I - Q) x where y = D x
        self.equation.model.recurrence(self._over, out, factor=-1.0, keep=self.equation.shift, backward=True)
        return _products(p, shadow, out)


class _Whole(_AllStates):
    """All states, by rows of a copy of the rates, sorted by source and divided by the diagonal of their targets."""

    def __init__(self, equation: Equation) -> None:
        super().__init__(equation)
        self._rows = _rows_by_source(equation, self.diagonal)

    def difference(self, p: np.ndarray, shadow: np.ndarray, out: np.ndarray) -> np.ndarray:
        self.equation.model.count_products()
        return _subtracted(self._rows, p, p, shadow, out)


class _Half(Resolvent):
    """One color, by rows of such a copy within each color; y_o = D_o x_o of the other follows from y."""

    halved = True

    def __init__(self, equation: Equation) -> None:
        super().__init__(equation)
        colors = equation.model.coloring
        assert colors is not None
        self._members = [np.flatnonzero(colors == color) for color in (0, 1)]
        indptr, targets, rates = _rows_by_source(equation, self.diagonal)
        number = np.empty(equation.model.size, dtype=targets.dtype)
        for members in self._members:
            number[members] = np.arange(len(members))
        self._rows = [_rows_of(indptr, targets, rates, members, number) for members in self._members]
        self._rights = [np.asarray(equation.right[members]) for members in self._members]
        self.size = len(self._members[0])
        self._other, self._nothing = np.empty(len(self._members[1])), np.zeros(len(self._members[1]))

    def restrict(self, x: np.ndarray) -> np.ndarray:
        own = self._members[0]
        return np.asarray(self.diagonal[own] * x[own])

    def expand(self, y: np.ndarray) -> np.ndarray:
        x = np.empty(self.equation.model.size)
        x[self._members[0]], x[self._members[1]] = y, self._others(y, self._rights[1])
        x /= self.diagonal
        return x

    def residual(self, y: np.ndarray) -> np.ndarray:
        self.equation.model.count_products()
        out = np.empty(self.size)
        _subtracted(self._rows[0], self._others(y, self._rights[1]), y, y, out)
        return self._rights[0] - out

    def difference(self, p: np.ndarray, shadow: np.ndarray, out: np.ndarray) -> np.ndarray:
        self.equation.model.count_products()
        return _subtracted(self._rows[0], self._others(p, self._nothing), p, shadow, out)

    def _others(self, y: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return right + N_oe D_e^-1 y."""
        add_flow(*self._rows[1], y, right, self._other)
        return self._other


def _rows_by_source(equation: Equation, diagonal: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row pointers, targets, and rates over the diagonal of the target, sorted by source."""
    model = equation.model
    require_memory("the rates sorted by source", 36 * model.entries, states=model.size, entries=model.entries)
    stored = csc_array((model.rates, model.sources, model.indptr), shape=(model.size, model.size)).tocsr()
    stored.data /= diagonal[stored.indices]
    return stored.indptr.astype(np.uint64), _unsigned(stored.indices), stored.data


def _rows_of(
    indptr: np.ndarray, targets: np.ndarray, rates: np.ndarray, members: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of some states, with their targets renumbered."""
    counts = np.diff(indptr)[members]
    new = np.concatenate([np.zeros(1, np.uint64), np.cumsum(counts, dtype=np.uint64)])
    chosen_targets, chosen_rates = np.empty(int(new[-1]), targets.dtype), np.empty(int(new[-1]))
    copy_rows(indptr, targets, rates, members.view(np.uint64), number, new, chosen_targets, chosen_rates)
    return new, chosen_targets, chosen_rates


def _subtracted(
    rows: tuple[np.ndarray, ...], other: np.ndarray, p: np.ndarray, shadow: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """Set out to p less the flow of `other`, and return the inner products of `Resolvent.difference`."""
    dots = np.empty(((len(p) + _CHUNK - 1) // _CHUNK, 4))
    subtract_flow(*rows, other, p, shadow, out, dots)
    return np.asarray(dots.sum(axis=0))


def _unsigned(indices: np.ndarray) -> np.ndarray:
    return indices.view(np.uint32 if indices.dtype == np.int32 else np.uint64)


def _products(p: np.ndarray, shadow: np.ndarray, out: np.ndarray) -> np.ndarray:
    dots = np.empty(((len(p) + _CHUNK - 1) // _CHUNK, 4))
    inner_products(p, shadow, out, dots)
    return np.asarray(dots.sum(axis=0))


@compiled_parallel
def subtract_flow(indptr: Any, targets: Any, rates: Any, other: Any, p: Any, shadow: Any, out: Any, dots: Any) -> None:
    """Set out_i = p_i - sum_j rates_ij other_j, and write inner products of each chunk.  Moves 12 bytes an entry."""
    for chunk in numba.prange(dots.shape[0]):
        a = np.int64(chunk) * _CHUNK
        b = min(a + _CHUNK, out.size)
        for i in range(np.uint64(a), np.uint64(b)):
            total = 0.0
            for k in range(indptr[i], indptr[i + np.uint64(1)]):
                total += rates[k] * other[targets[k]]
            out[i] = p[i] - total
        multiply_chunk(p[a:b], shadow[a:b], out[a:b], dots[chunk])


@compiled_parallel
def add_flow(indptr: Any, targets: Any, rates: Any, y: Any, right: Any, out: Any) -> None:
    """Set out_i = right_i + sum_j rates_ij y_j.  Moves 12 bytes an entry."""
    for i in numba.prange(out.size):
        total = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            total += rates[k] * y[targets[k]]
        out[i] = right[i] + total


@compiled_parallel
def inner_products(p: Any, shadow: Any, out: Any, dots: Any) -> None:
    """Write shadow.out, p.out, out.out and shadow.p of each chunk."""
    for chunk in numba.prange(dots.shape[0]):
        a = np.int64(chunk) * _CHUNK
        b = min(a + _CHUNK, p.size)
        multiply_chunk(p[a:b], shadow[a:b], out[a:b], dots[chunk])


@summing
def multiply_chunk(p: Any, shadow: Any, out: Any, dots: Any) -> None:
    with_shadow, with_p, square, both = 0.0, 0.0, 0.0, 0.0
    for r in range(out.size):
        with_shadow += shadow[r] * out[r]
        with_p += p[r] * out[r]
        square += out[r] * out[r]
        both += shadow[r] * p[r]
    dots[0], dots[1], dots[2], dots[3] = with_shadow, with_p, square, both
