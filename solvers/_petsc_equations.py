"""The stationary equations as PETSc matrices: on all states, or on one color of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array

from ctmc.certificate import imbalance
from ctmc.model.shared import SharedGenerator
from solvers._petsc import Objects, function_matrix, generator_rows, matrix, petsc, require_indices, vector

POLISH = 3
"""Steps of the jump chain after the last correction, which give unlikely states digits of their own."""


class Equations(ABC):
    """A x = 0 with the columns of A summing to zero, diagonal positive; x are probabilities, all or some of them.

    Attributes
    ----------
    chain : SharedGenerator
    matrix : PETSc.Mat
        Counts its products.
    vectors : tuple of PETSc.Vec
        Two, for whoever needs them next.
    stored : PETSc.Mat or None
        The same with entries, for preconditioners; None where there is only the product.
    """

    chain: SharedGenerator
    matrix: Any
    stored: Any
    vectors: tuple[Any, ...]

    @abstractmethod
    def restrict(self, pi: np.ndarray) -> np.ndarray:
        """Return the own unknowns of a distribution."""

    @abstractmethod
    def expand(self, x: np.ndarray, polish: int) -> np.ndarray:
        """Return the own part of the distribution that belongs to x, non-negative and normalised, after so many steps of polish."""

    @abstractmethod
    def defect(self, residual: np.ndarray, x: np.ndarray) -> float:
        """Return the defect of `expand(x)`, the residual being -A x."""

    @abstractmethod
    def levels(self, of_states: np.ndarray) -> np.ndarray | None:
        """Return the levels of the unknowns from those of the own states; None where they would not do."""

    def multiply(self, x: np.ndarray) -> np.ndarray:
        """Return A x of the own unknowns."""
        self.vectors[0].setArray(x)
        self.matrix.mult(self.vectors[0], self.vectors[1])
        return np.array(self.vectors[1].getArray(readonly=True))

    def _finish(self, objects: Objects, size: int, multiply: Any) -> None:
        """Make the matrix that counts its products, and the vectors that belong to it."""
        self.vectors = tuple(vector(objects, self.chain.ranks, np.zeros(size)) for _ in range(2))
        self.matrix = function_matrix(objects, self.vectors[0], multiply, self.chain)


class AllStates(Equations):
    """-Q^T on all states."""

    def __init__(self, chain: SharedGenerator, objects: Objects) -> None:
        self.chain = chain
        self.stored = matrix(objects, chain.ranks, generator_rows(chain), chain.size)
        self._finish(objects, chain.size, self.stored.mult)

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        return pi

    def expand(self, x: np.ndarray, polish: int) -> np.ndarray:
        pi = np.maximum(x, 0)
        exits = np.where(self.chain.exit_rates > 0, self.chain.exit_rates, 1.0)
        for _ in range(polish):
            pi = pi + 0.5 * self.chain.forward(pi) / exits
        return np.asarray(pi / self.chain.ranks.total(float(pi.sum())))

    def defect(self, residual: np.ndarray, x: np.ndarray) -> float:
        return imbalance(residual, x, self.chain)

    def levels(self, of_states: np.ndarray) -> np.ndarray | None:
        return of_states


class OneColor(Equations):
    """What is left of -Q^T on the states of color 0 when those of color 1 are eliminated: half the unknowns.

    Parameters
    ----------
    chain : SharedGenerator
        With two colors.
    objects : Objects
    assembled : bool
        Whether the matrix, of about twice as many entries a row, is put together; or two are multiplied with, one after the other.
    """

    def __init__(self, chain: SharedGenerator, objects: Objects, assembled: bool) -> None:
        self.chain = chain
        colors = chain.coloring
        assert colors is not None
        ranks = chain.ranks
        self._of = [np.flatnonzero(colors == color) for color in (0, 1)]
        self._exits = [chain.exit_rates[states] for states in self._of]
        whole = generator_rows(chain)
        counts = ranks.gathered(tuple(len(states) for states in self._of))
        before = np.cumsum([(0, 0), *counts], axis=0)
        # the number of each state, own or ghost, among those of its color
        own = np.empty(chain.size)
        for color, states in enumerate(self._of):
            own[states] = before[ranks.rank, color] + np.arange(len(states))
        everywhere = chain.ghosts.extended(own).astype(np.int64)
        positions = np.concatenate([np.arange(chain.begin, chain.begin + chain.size), chain.ghosts.wanted])
        order = np.argsort(positions)
        require_indices(ranks, whole.nnz, chain.states)
        into = []
        for color in (0, 1):
            rows = whole[self._of[color]]
            rows.data = np.where(rows.data < 0, -rows.data, 0.0)  # without the diagonal
            rows.eliminate_zeros()
            columns = everywhere[order[np.searchsorted(positions[order], rows.indices)]]
            part = csr_array((rows.data, columns, rows.indptr), shape=(rows.shape[0], int(before[-1, 1 - color])))
            part.sort_indices()
            into.append(part)
        into[1] = csr_array(diags_array(1 / self._exits[1]) @ into[1])
        into[1].sort_indices()
        # from color 0 to the probabilities of color 1, and from there to what flows back
        self._to_one = matrix(objects, ranks, into[1], len(self._of[0]))
        self._to_zero = matrix(objects, ranks, into[0], len(self._of[1]))
        self._middle = vector(objects, ranks, np.zeros(len(self._of[1])))
        self.stored = self._put_together(objects) if assembled else None
        self._finish(objects, len(self._of[0]), self.stored.mult if assembled else self._multiply)

    def _put_together(self, objects: Objects) -> Any:
        own = len(self._of[0])
        found = objects.keep(self._to_zero.matMult(self._to_one))
        found.scale(-1.0)
        begin, end = found.getOwnershipRange()
        shape = (own, found.getSize()[1])
        places = (np.arange(own), np.arange(begin, end))
        with Objects() as passing:
            diagonal = matrix(passing, self.chain.ranks, csr_array((self._exits[0], places), shape=shape), own)
            found.axpy(1.0, diagonal, petsc().Mat.Structure.DIFFERENT_NONZERO_PATTERN)
        return found

    def _multiply(self, x: Any, out: Any) -> None:
        self._to_one.mult(x, self._middle)
        self._to_zero.mult(self._middle, out)
        out.scale(-1.0)
        out.setArray(out.getArray() + self._exits[0] * x.getArray(readonly=True))

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        return np.asarray(pi[self._of[0]])

    def expand(self, x: np.ndarray, polish: int) -> np.ndarray:
        x = np.maximum(x, 0)
        for _ in range(polish + 1):  # the last step gives color 1
            self.vectors[0].setArray(x)
            self.chain.count_products()
            self._to_one.mult(self.vectors[0], self._middle)
            self._to_zero.mult(self._middle, self.vectors[1])
            x = self.vectors[1].getArray(readonly=True) / self._exits[0]
        pi = np.empty(self.chain.size)
        pi[self._of[0]] = x
        pi[self._of[1]] = self._middle.getArray(readonly=True)
        return pi / self.chain.ranks.total(float(pi.sum()))

    def defect(self, residual: np.ndarray, x: np.ndarray) -> float:
        # all of the imbalance stands on color 0, which has half of the flow
        sums = np.array([np.abs(residual).sum(), 2 * np.abs(x) @ self._exits[0]])
        imbalances, flow = self.chain.ranks.total(sums)
        return float(imbalances / flow) if flow > 0 else 0.0

    def levels(self, of_states: np.ndarray) -> np.ndarray | None:
        levels = of_states[self._of[0]]
        odd = self.chain.ranks.total(np.array([np.count_nonzero(levels & 1), len(levels)], dtype=np.float64))
        return levels >> 1 if odd[0] in (0, odd[1]) else None


def equations(chain: SharedGenerator, form: str, objects: Objects) -> Equations:
    """Return the equations in a form: 'reduced', 'shell' or 'full'; 'auto' is the first where the chain has two colors."""
    if form != "full" and chain.coloring is not None:
        return OneColor(chain, objects, form != "shell")
    return AllStates(chain, objects)
