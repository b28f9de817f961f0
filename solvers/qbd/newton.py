"""Newton's method for the matrix G of a QBD, without a subtraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ctmc.model.m_matrix import drop_negligible
from ctmc.model.qbd import QBD
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._options import check_count
from solvers.qbd._matrix_analytic import Blocks, begin, boundary_method, conclude, dense, improved

_RISE = 1e-16
_WORKING_MATRICES = 14
_MOST_DOUBLINGS = 60


@dataclass(frozen=True, kw_only=True)
class Newton:
    """Newton's method on down + local G + up G^2 = 0, from G = 0; the boundary goes to any solver.

    The correction E solves E = V (residual) + T E G with V = (-local - up G)^-1 and T = V up.  Newton's residual is known without
    a subtraction: it is `down` at first and up E^2 after each correction.  So the correction is a sum of non-negative terms
    T^j V (up E^2) G^j, found by doubling (squared Smith iteration): S <- S + T S G, T <- T^2, G <- G^2.  G rises monotonically to
    the least non-negative solution.

    Stopping test: the largest row sum of E is at most 1e-16; as the convergence is quadratic, what is left is its square.
    It is the defect in the history.

    Cost: 8 m^3 multiplications per doubling, and about log2(1 / (1 - decay rate)) Newton steps of up to as many doublings:
    the dearest of the quadratic methods, which differs from them in everything, so that it is a good second opinion; memory
    14 dense m x m matrices.  What is missing in the row sums of G is a difference on the way, which costs digits where phases are
    slow; a last Newton step with the recomputed residual and a U-based one, which are given the row sums, restore them.

    Parameters
    ----------
    max_iterations : int
        Most Newton steps.
    boundary_solver : str or solver, optional
        Any solver of a stationary problem on a finite chain.
        By default `gth` up to 3000 boundary states, and `gauss_seidel` above.

    References
    ----------
    G. Latouche, *Newton's iteration for non-linear equations in Markov chains*, IMA Journal of Numerical Analysis 14 (1994)
    583-598, doi:10.1093/imanum/14.4.583.  R. A. Smith, *Matrix equation XA + BX = C*, SIAM Journal on Applied Mathematics 16
    (1968) 198-201, doi:10.1137/0116017.

    Examples
    --------
    >>> import ctmc
    >>> queue = QBD.from_blocks([[0.3]], [[-1.3]], [[1.0]])                     # M/M/1 at load 0.3
    >>> round(ctmc.solve(Stationary(queue), Newton()).value.decay_rate, 12)
    0.3
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = QBD
    max_iterations: int = 60
    boundary_solver: Any = None

    def __post_init__(self) -> None:
        check_count("max_iterations", self.max_iterations)
        boundary_method(self.boundary_solver)

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution as boundary vectors, R and G."""
        blocks = begin("newton", problem.model, _WORKING_MATRICES)
        trace.tolerance = min(trace.tolerance, _RISE)
        g = rise(blocks, trace, self.max_iterations)
        if trace.status is not Status.CONVERGED:
            r = np.asarray(blocks.up @ blocks.visits(g, np.maximum(1 - g.sum(axis=1), 0.0)))
            return conclude(self, problem, trace, g, r)
        return conclude(self, problem, trace, *improved(blocks, _last_step(blocks, g)))


def _last_step(blocks: Blocks, g: np.ndarray) -> np.ndarray:
    """Return G after a step with the residual as it is, now that row sums are known to be 1."""
    g = g / g.sum(axis=1, keepdims=True)
    visits, up = blocks.visits(g), dense(blocks.up)
    exits = blocks.stay.sum(axis=1) + blocks.leave_up + blocks.leave_down
    residual = dense(blocks.down) + (blocks.stay + up @ g) @ g - exits[:, None] * g
    # the correction has row sums zero, so any row can be taken from G: without its eigenvalue 1 rounding is not amplified
    return np.asarray(g + _smith(visits @ residual, visits @ up, g - g.mean(axis=0)))


def rise(blocks: Blocks, trace: Trace, limit: int) -> np.ndarray:
    """Return G by Newton's method from zero, shape (m, m)."""
    g = np.zeros_like(blocks.stay)
    residual = dense(blocks.down)
    defect = 1.0
    while not trace.finished(defect, limit=limit):
        # what is missing in the row sums is right to rounding only; it matters where `down` is small, and the last step mends it
        visits = blocks.visits(g, np.maximum(1 - g.sum(axis=1), 0.0))
        correction = _smith(visits @ residual, np.asarray(visits @ dense(blocks.up)), g)
        g = g + correction
        residual = np.asarray(blocks.up @ (correction @ correction))
        defect = float(correction.sum(axis=1).max())
    return g


def _smith(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the sum over j of left^j total right^j."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found by the stopping rule
        for _ in range(_MOST_DOUBLINGS):
            more = left @ total @ right
            total = total + more
            if float(np.abs(more).max()) <= 1e-17 * float(np.abs(total).max()):
                break
            left, right = left @ left, right @ right
            drop_negligible(left)
    return total
