"""The stationary equations as PETSc matrices: on all states, or on one color of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ctmc.certificate import imbalance
from ctmc.model.products import compiled
from ctmc.model.shared import SharedGenerator
from ctmc.model.transitions import rate_at
from solvers._petsc import Objects, function_matrix, matrix_of_rows, state_numbers, vector, written_rows

POLISH = 3
"""Steps of the jump chain after the last correction, which give unlikely states digits of their own."""


class Equations(ABC):
    """A x = 0 with the columns of A summing to zero, diagonal positive; x are probabilities, or flows, all or some of them.

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
        rows = written_rows(
            chain, np.ones(chain.size, dtype=bool), state_numbers(chain), np.full(chain.size, -1.0), chain.exit_rates
        )
        self.stored = matrix_of_rows(objects, chain.ranks, rows, chain.size, chain.states)
        del rows
        self._finish(objects, chain.size, self.stored.mult)

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        return pi

    def expand(self, x: np.ndarray, polish: int) -> np.ndarray:
        return smoothed(self.chain, np.maximum(x, 0), polish)

    def defect(self, residual: np.ndarray, x: np.ndarray) -> float:
        return imbalance(residual, x, self.chain)

    def levels(self, of_states: np.ndarray) -> np.ndarray | None:
        return of_states


class OneColor(Equations):
    """What is left of -Q^T on the states of color 0 when those of color 1 are eliminated: half the unknowns.

    The matrix, of about twice as many entries a row, is put together.

    Parameters
    ----------
    chain : SharedGenerator
        With two colors.
    objects : Objects
    """

    def __init__(self, chain: SharedGenerator, objects: Objects) -> None:
        self.chain = chain
        self._other = other_color(chain)
        self._kept = ~self._other
        ranks, other = chain.ranks, int(np.count_nonzero(self._other))
        kept = chain.size - other
        self._exits = chain.exit_rates[self._kept]
        counts = ranks.gathered((kept, other))
        before = np.cumsum([(0, 0), *counts], axis=0)
        # A = diag(q) - (into color 0) (into color 1) / q; the diagonal goes with the states of color 1, so that PETSc makes A at once:
        # each rank numbers its states of color 1, then its own states of color 0
        own = np.empty(chain.size)
        own[self._other] = before[ranks.rank].sum() + np.arange(other)
        own[self._kept] = before[ranks.rank].sum() + other + np.arange(kept)
        middle = chain.ghosts.extended(own).astype(np.int64)
        own[self._kept] = before[ranks.rank, 0] + np.arange(kept)
        first = chain.ghosts.extended(own).astype(np.int64)
        states, unknowns = chain.states, int(before[-1, 0])
        with Objects() as passing:
            rows = written_rows(chain, self._kept, middle, np.full(chain.size, -1.0), chain.exit_rates)
            back = matrix_of_rows(passing, ranks, rows, chain.size, states)
            rows = written_rows(
                chain, self._other, first, 1 / np.where(self._other, chain.exit_rates, 1.0), np.empty(0)
            )
            place = np.arange(1, kept + 1, dtype=rows[0].dtype)  # color 0, as it is, behind the rows of color 1
            rows = (
                np.concatenate([rows[0], rows[0][-1] + place]),
                np.concatenate([rows[1], before[ranks.rank, 0] + place - 1]),
                np.concatenate([rows[2], np.ones(kept)]),
            )
            forth = matrix_of_rows(passing, ranks, rows, kept, unknowns)
            del rows, own, middle, first
            # a copy, since PETSc keeps with a product its factors and all that it was made from
            self.stored = objects.keep(passing.keep(back.matMult(forth)).duplicate(copy=True))
        self._finish(objects, kept, self.stored.mult)

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        return np.asarray(pi[self._kept])

    def expand(self, x: np.ndarray, polish: int) -> np.ndarray:
        return expanded(self.chain, self._other, np.maximum(x, 0), polish)

    def defect(self, residual: np.ndarray, x: np.ndarray) -> float:
        # all of the imbalance stands on color 0, which has half of the flow
        sums = np.array([np.abs(residual).sum(), 2 * np.abs(x) @ self._exits])
        imbalances, flow = self.chain.ranks.total(sums)
        return float(imbalances / flow) if flow > 0 else 0.0

    def levels(self, of_states: np.ndarray) -> np.ndarray | None:
        return halved_levels(self.chain, of_states, self._kept)


class Products(Equations):
    """The jump chain as it stands in the model's rows: nothing is put together, and the unknowns are flows q x.

    On one color where there are two, by what is read of color 0 and then of color 1; each rank fetches no more than that.

    Parameters
    ----------
    chain : SharedGenerator
    objects : Objects
    """

    stored = None

    def __init__(self, chain: SharedGenerator, objects: Objects) -> None:
        self.chain = chain
        self._halved = chain.coloring is not None
        self._other = other_color(chain) if self._halved else np.zeros(chain.size, dtype=bool)
        self._kept = ~self._other
        self._exits = np.where(self._kept, chain.exit_rates, 0.0)[self._kept]
        self._exits[self._exits == 0] = 1.0  # where nothing leads out there is nothing to divide
        self._room = np.zeros(chain.size + chain.ghosts.count)
        self._ghosts = (chain.ghosts,)
        if self._halved:
            everywhere = chain.ghosts.extended(self._other.astype(np.float64)) > 0
            self._ghosts = (chain.ghosts.among(~everywhere), chain.ghosts.among(everywhere))
        self._finish(objects, len(self._exits), self._multiply)

    def _multiply(self, flows: Any, out: Any) -> None:
        given, room = flows.getArray(readonly=True), self._room
        (slab,) = self.chain.row_slabs()
        put_unknowns(self._other, given, self._exits, room)
        self._ghosts[0].fetch(room)
        if self._halved:
            pass_through(*slab[1:], self._other, self.chain.exit_rates, room)
            self._ghosts[1].fetch(room)
        found = np.empty(len(given))
        flow_left(*slab[1:], self._other, given, room, found)
        out.setArray(found)

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        return np.asarray(pi[self._kept] * self._exits)

    def expand(self, x: np.ndarray, polish: int) -> np.ndarray:
        pi = np.maximum(x, 0) / self._exits
        if self._halved:
            return expanded(self.chain, self._other, pi, polish)
        return smoothed(self.chain, pi, polish)

    def defect(self, residual: np.ndarray, x: np.ndarray) -> float:
        imbalances, flow = self.chain.ranks.total(np.array([np.abs(residual).sum(), np.abs(x).sum()]))
        return float(imbalances / flow / (2 if self._halved else 1)) if flow > 0 else 0.0

    def levels(self, of_states: np.ndarray) -> np.ndarray | None:
        return halved_levels(self.chain, of_states, self._kept) if self._halved else of_states


def other_color(chain: SharedGenerator) -> np.ndarray:
    """Return which own states have color 1."""
    colors = chain.coloring
    assert colors is not None
    return colors.view(bool)


def halved_levels(chain: SharedGenerator, of_states: np.ndarray, kept: np.ndarray) -> np.ndarray | None:
    """Return the levels of the states of color 0, two by two, where these are all even or all odd; else None."""
    levels = of_states[kept]
    odd = chain.ranks.total(np.array([np.count_nonzero(levels & 1), len(levels)], dtype=np.float64))
    return levels >> 1 if odd[0] in (0, odd[1]) else None


def smoothed(chain: SharedGenerator, pi: np.ndarray, polish: int) -> np.ndarray:
    """Return a distribution after so many steps of the jump chain, each half of the way, normalised."""
    exits = np.where(chain.exit_rates > 0, chain.exit_rates, 1.0)
    for _ in range(polish):
        pi = pi + 0.5 * chain.forward(pi) / exits
    return np.asarray(pi / chain.ranks.total(float(pi.sum())))


def expanded(chain: SharedGenerator, other: np.ndarray, x: np.ndarray, polish: int) -> np.ndarray:
    """Return the distribution, normalised, that follows from the probabilities of color 0, after one step and so many more."""
    room = np.zeros(chain.size + chain.ghosts.count)
    (slab,) = chain.row_slabs()
    put_unknowns(other, x, np.ones(len(x)), room)
    for _ in range(polish + 1):
        chain.count_products()
        for color in (other, ~other):
            chain.ghosts.fetch(room)
            pass_through(*slab[1:], color, chain.exit_rates, room)
    pi = room[: chain.size].copy()
    return np.asarray(pi / chain.ranks.total(float(pi.sum())))


@compiled
def put_unknowns(other: Any, given: Any, exits: Any, room: Any) -> None:
    """Put probabilities, given over the exit rates, in their places."""
    taken = 0
    for j in range(other.size):
        if not other[j]:
            room[j] = given[taken] / exits[taken]
            taken += 1


@compiled
def pass_through(indptr: Any, sources: Any, codes: Any, rates: Any, chosen: Any, exit_rates: Any, room: Any) -> None:
    """Set the chosen states to the probability that the flow into them keeps there."""
    for j in range(np.uint64(chosen.size)):
        if chosen[j]:
            total = 0.0
            for k in range(indptr[j], indptr[j + np.uint64(1)]):
                total += room[sources[k]] * rate_at(codes, rates, k)
            room[j] = total / exit_rates[j]


@compiled
def flow_left(
    indptr: Any, sources: Any, codes: Any, rates: Any, other: Any, given: Any, room: Any, out: Any
) -> None:  # fmt: skip
    """Set out to the flow out of each state of color 0 less the flow into it."""
    taken = 0
    for j in range(np.uint64(other.size)):
        if not other[j]:
            total = 0.0
            for k in range(indptr[j], indptr[j + np.uint64(1)]):
                total += room[sources[k]] * rate_at(codes, rates, k)
            out[taken] = given[taken] - total
            taken += 1


def equations(chain: SharedGenerator, form: str, objects: Objects) -> Equations:
    """Return the equations in a form: 'reduced', 'shell' or 'full'; 'auto' is the first where the chain has two colors."""
    if form == "shell":
        return Products(chain, objects)
    return OneColor(chain, objects) if form != "full" and chain.coloring is not None else AllStates(chain, objects)
