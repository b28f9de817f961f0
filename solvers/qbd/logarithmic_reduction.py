"""Logarithmic reduction: the matrices G and R of a QBD by quadratically convergent doubling of the levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ctmc.model.m_matrix import drop_negligible, inverse
from ctmc.model.qbd import QBD
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._options import check_count
from solvers.qbd._matrix_analytic import Blocks, begin, boundary_method, conclude, dense

_BEYOND = 1e-32
_WORKING_MATRICES = 16


@dataclass(frozen=True, kw_only=True)
class LogarithmicReduction:
    """Latouche and Ramaswami's algorithm for G, and from it R; the boundary goes to any solver for finite chains.

    Equation: down + local G + up G^2 = 0, with the least non-negative G: the probabilities of the phases in which the
    level below is entered first.  With H and L the probabilities that the next change of level, in steps of 2^k levels,
    leads up or down, one iteration doubles the step::

        H, L <- (I - HL - LH)^-1 H^2, (I - HL - LH)^-1 L^2;     G <- G + T L;     T <- T H.

    Then R = up (-U)^-1 with U = local + up G; the chain watched while it is on the boundary levels is finite, with up G
    added to its last local block, and `boundary_solver` finds its distribution, which is scaled so that all levels
    together have mass 1.

    Stopping test: the largest row sum of T, the probability that the levels 0 .. 2^k above are left upwards before the
    level below is entered, is at most 1e-32; it bounds the error of G, so that entries down to 1e-16 are right to rounding.
    It is asked for whatever the tolerance of the problem is, because row sums of G that are off spoil the answer unseen; the
    convergence is quadratic, so this costs a step or two.  The history has this number as its defect.

    Nothing is ever subtracted: the diagonals of I - HL - LH and of -U are what their off-diagonal entries and their row
    sums, (H^2 + L^2) 1 and down 1, make them, and the systems are solved by elimination without a subtraction.  So G and R
    keep their relative accuracy entry by entry, up to a factor 1 / (1 - load), when phases change many orders of magnitude
    faster or slower than levels; with ordinary elimination phases 1e10 slower cost nine digits.

    Cost: some 20 m^3 multiplications per iteration, about log2(1 / (1 - load)) + 5 iterations; memory 16 dense m x m
    matrices, beside what the boundary solver takes.  The right choice for up to some hundred phases, at any load below 1.

    Parameters
    ----------
    max_iterations : int
        Most doublings of the step.
    boundary_solver : str or solver, optional
        Any solver of a stationary problem on a finite chain, for instance ``"sparse_lu"`` or ``"gmres(restart=30)"``.
        By default `gth` up to 3000 boundary states, and `gauss_seidel` above.

    References
    ----------
    G. Latouche, V. Ramaswami, *A logarithmic reduction algorithm for quasi-birth-death processes*, Journal of Applied
    Probability 30 (1993) 650-674, doi:10.2307/3214773.  Q. Ye, *On Latouche-Ramaswami's logarithmic reduction algorithm for
    quasi-birth-and-death processes*, Stochastic Models 18 (2002) 449-467, doi:10.1081/STM-120014221 (without subtraction).

    Examples
    --------
    >>> import ctmc
    >>> queue = QBD.from_blocks([[0.3]], [[-1.3]], [[1.0]])                     # M/M/1 at load 0.3
    >>> solution = ctmc.solve(Stationary(queue), LogarithmicReduction())
    >>> solution.value.r.tolist(), round(solution.value.mean_level, 12)
    ([[0.3]], 0.428571428571)
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = QBD
    max_iterations: int = 50
    boundary_solver: Any = None

    def __post_init__(self) -> None:
        check_count("max_iterations", self.max_iterations)
        boundary_method(self.boundary_solver)

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution as boundary vectors, R and G."""
        blocks = begin("logarithmic_reduction", problem.model, _WORKING_MATRICES)
        trace.tolerance = min(trace.tolerance, _BEYOND)
        g, beyond = first_passage(blocks, trace, self.max_iterations)
        r = np.asarray(blocks.up @ blocks.visits(g, beyond))
        return conclude(self, problem, trace, g, r)


def first_passage(blocks: Blocks, trace: Trace, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Find G by doubling the step.

    Parameters
    ----------
    blocks : Blocks
        With m phases.
    trace : Trace
        Told the largest row sum of T after each iteration.
    limit : int
        Most iterations.

    Returns
    -------
    g : ndarray, shape (m, m)
        First passage probabilities to the level below.
    beyond : ndarray, shape (m,)
        T 1 = 1 - G 1: what is missing in the row sums of G.
    """
    away = inverse(blocks.stay, blocks.leave_up + blocks.leave_down)
    up, down = (away @ dense(block) for block in (blocks.up, blocks.down))
    g, above = down.copy(), up.copy()
    while not trace.finished(float(above.sum(axis=1).max()), limit=limit):
        rise, fall = up @ up, down @ down
        # the row sums of the matrix are those of the right sides, so rows of H + L sum to 1 anew, whatever went before
        both = inverse(up @ down + down @ up, rise.sum(axis=1) + fall.sum(axis=1))
        up, down = both @ rise, both @ fall
        for matrix in (up, down):
            drop_negligible(matrix)
        g += above @ down
        above = above @ up
    return g, above.sum(axis=1)
