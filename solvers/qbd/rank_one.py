"""QBDs in which steps down, or steps up, forget the phase: R and G explicitly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csc_array, csr_array
from scipy.sparse.linalg import splu

from ctmc.model.m_matrix import inverse
from ctmc.model.qbd import QBD
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers.qbd._matrix_analytic import Blocks, begin, boundary_method, conclude, dense

_WORKING_MATRICES = 8
_SAME = 4e-15
_SPARSE_PHASES = 600
_SPARSE = 0.05
_MOST_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class RankOne:
    """The explicit answer where `down` or `up` has rank one, found by itself; the boundary goes to any solver.

    ``down = c v`` with a row v of sum 1: whatever the phase was, v tells the phases below, so G = 1 v, exactly, and
    R = up (-local - (up 1) v)^-1: one system, no iteration.  Up to 600 phases it is solved by elimination without a
    subtraction; beyond, where local and v are sparse, -U is sparse too and goes to a sparse LU factorization.

    ``up = a w`` with a row w of sum 1: R = a rho has rank one as well, rho = w (-local - z down)^-1 with the decay rate z = rho a,
    the smallest root of z = w (-local - z down)^-1 a.  The right side is convex, so Newton's method for this one number rises to
    the root from z = 0.  Then G = (-local - a (rho down))^-1 down.

    No stopping test for the first form; for the second z must not rise any more.

    Cost: 3 m^3 multiplications for the first form; 2 m^3 for each step of Newton's method, about log2(1 / (1 - z)) + 5 of
    them, for the second; memory 8 dense m x m matrices.  Take it wherever it takes the model: M/PH/1 queues and the fork-join
    queue have such blocks.

    Parameters
    ----------
    boundary_solver : str or solver, optional
        Any solver of a stationary problem on a finite chain.
        By default `gth` up to 3000 boundary states, and `gauss_seidel` above.

    References
    ----------
    V. Ramaswami, G. Latouche, *A general class of Markov processes with explicit matrix-geometric solutions*, OR Spektrum 8
    (1986) 209-218, doi:10.1007/BF01721131.

    Examples
    --------
    >>> import ctmc
    >>> queue = QBD.from_blocks([[0.3]], [[-1.3]], [[1.0]])                     # M/M/1 at load 0.3
    >>> solution = ctmc.solve(Stationary(queue), RankOne())
    >>> solution.value.r.tolist(), solution.value.g.tolist()
    ([[0.3]], [[1.0]])
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = QBD
    boundary_solver: Any = None

    def __post_init__(self) -> None:
        boundary_method(self.boundary_solver)

    @staticmethod
    def refuses(queue: QBD) -> str:
        """Return why a QBD has no explicit answer of this kind, or ''."""
        if row_of(queue.down) is None and row_of(queue.up) is None:
            return "neither down nor up has rank one"
        return ""

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution as boundary vectors, R and G."""
        queue = problem.model
        blocks = begin("rank_one", queue, _WORKING_MATRICES)
        row = row_of(queue.down)
        status = Status.CONVERGED
        if row is not None:
            g, r = np.tile(row, (len(row), 1)), forgetting_down(queue, blocks, row)
        else:
            upward = row_of(queue.up)
            assert upward is not None
            g, r, status = forgetting_up(blocks, upward)
        return conclude(self, problem, trace, g, r, status)


def row_of(block: csr_array) -> np.ndarray | None:
    """Return the row v of sum 1 with block = (block 1) v, shape (m,), or None where the rank is not one."""
    sums = block.sum(axis=1)
    rows = np.flatnonzero(sums)
    if not len(rows):
        return None
    full = int(np.argmax(sums))
    row = block[[full]].toarray().ravel() / sums[full]
    there = np.flatnonzero(row)
    entries = block.tocoo()
    if block.nnz != len(rows) * len(there):
        return None
    expected = sums[entries.coords[0]] * row[entries.coords[1]]
    return row if (np.abs(entries.data - expected) <= _SAME * expected).all() else None


def forgetting_down(queue: QBD, blocks: Blocks, row: np.ndarray) -> np.ndarray:
    """Return R where steps down lead to the phases of a row, shape (m, m)."""
    m = len(row)
    columns = np.count_nonzero(row)
    if m <= _SPARSE_PHASES or queue.local.nnz + columns * m > _SPARSE * m * m:
        return np.asarray(blocks.up @ inverse(blocks.stay + np.outer(blocks.leave_up, row), blocks.leave_down))
    leaving = csr_array(blocks.leave_up[:, None]) @ csr_array(row[None, :])
    factors = splu(csc_array(-(queue.local + leaving).T), diag_pivot_thresh=0.0)
    rows = np.flatnonzero(blocks.leave_up)  # the other rows of R are zero
    r = np.zeros((m, m))
    r[rows] = factors.solve(queue.up[rows].toarray().T).T
    return np.maximum(r, 0.0)


def forgetting_up(blocks: Blocks, row: np.ndarray) -> tuple[np.ndarray, np.ndarray, Status]:
    """Return G and R where steps up lead to the phases of a row, and whether z was found."""
    down = dense(blocks.down)
    z, status = 0.0, Status.ITERATION_LIMIT
    for _ in range(_MOST_STEPS):
        away = inverse(blocks.stay + z * down, blocks.leave_up + (1 - z) * blocks.leave_down)
        rho = row @ away
        # the slope of w (-local - z down)^-1 a
        slope = float(rho @ (down @ (away @ blocks.leave_up)))
        value = float(rho @ blocks.leave_up)
        if not (value > z * (1 + 2e-16) and slope < 1):
            status = Status.CONVERGED
            break
        z += (value - z) / (1 - slope)
    r = np.outer(blocks.leave_up, rho)
    visits = inverse(blocks.stay + np.outer(blocks.leave_up, rho @ down), blocks.leave_down)
    return np.asarray(visits @ down), r, status
