"""Logarithmic reduction: the matrices G and R of a QBD by quadratically convergent doubling of the levels."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import ctmc
from ctmc import registry
from ctmc.errors import ReducibleError, UnsupportedProblemError
from ctmc.model.elimination import solve_m_matrix
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.solve import SMALL
from ctmc.solver import Solver
from ctmc.trace import Trace
from solvers._options import check_count

_log = logging.getLogger("ctmc.solvers.logarithmic_reduction")

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
        Any solver of a stationary problem on a finite chain, for instance ``"sparse_lu"`` or ``"gmres(restart=30)"``.  By
        default ``"gth"`` up to 3000 boundary states, and ``"gauss_seidel"`` above: on boundaries of queues it takes seconds
        for 100,000 states, where factors fill and GMRES is slow.  The solution's `solver` names the one that was taken.

    References
    ----------
    G. Latouche, V. Ramaswami, *A logarithmic reduction algorithm for quasi-birth-death processes*, Journal of Applied
    Probability 30 (1993) 650-674, doi:10.2307/3214773.  Q. Ye, *On Latouche-Ramaswami's logarithmic reduction algorithm for
    quasi-birth-and-death processes*, Stochastic Models 18 (2002) 449-467, doi:10.1081/STM-120014221 (without subtraction).

    Examples
    --------
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
        self._boundary_method(1)

    def _boundary_method(self, size: int) -> Solver:
        given = self.boundary_solver
        method = registry.make_solver(("gth" if size <= SMALL else "gauss_seidel") if given is None else given)
        if Stationary not in method.solves or not issubclass(Generator, method.needs):
            raise UnsupportedProblemError(
                f"boundary_solver is {registry.solver_name(method)}, which does not take a Stationary problem on a "
                "Generator; allowed are solvers that do, such as gth, sparse_lu or gmres."
            )
        return method

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution as boundary vectors, R and G."""
        queue = problem.model
        m = queue.phase_count
        size = _WORKING_MATRICES * 8 * m * m
        require_memory("logarithmic_reduction, which works on dense matrices of all phases,", size, states=m)
        trace.tolerance = min(trace.tolerance, _BEYOND)
        g, beyond = first_passage(queue, trace, self.max_iterations)
        r = rate_matrix(queue, g, beyond)
        chain = queue.censored_boundary(g)
        question = Stationary(chain, tolerance=problem.tolerance / 2)  # the other half is for the levels above
        try:
            boundary = ctmc.solve(question, self._boundary_method(chain.size), time_limit=trace.remaining, check=False)
        except ReducibleError as error:
            raise ReducibleError(
                f"the QBD has several recurrent classes and so no single stationary distribution: watched on its "
                f"boundary, {error}"
            ) from None
        status = trace.status
        if status is Status.CONVERGED and not boundary.converged:
            status = boundary.status
            _log.info("the boundary was not solved by %s: %s, %s", boundary.solver, status.name, boundary.reason)
        ends = np.cumsum([len(table) for table in queue.phases])[:-1]
        whole = MatrixGeometric(tuple(np.split(boundary.value, ends)), r, g)
        scaled = MatrixGeometric(tuple(vector / whole.mass for vector in whole.boundary), r, g)
        taken = self.boundary_solver or registry.snake_case(boundary.solver.partition("(")[0])
        return Outcome(scaled, status, trace.history, solver=repr(dataclasses.replace(self, boundary_solver=taken)))


def first_passage(queue: QBD, trace: Trace, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Find G by doubling the step.

    Parameters
    ----------
    queue : QBD
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
    m = queue.phase_count
    rates = _off_diagonal(queue.local.toarray())
    moves = solve_m_matrix(
        rates, queue.up.sum(axis=1) + queue.down.sum(axis=1), np.hstack([queue.up.toarray(), queue.down.toarray()])
    )
    up, down = moves[:, :m], moves[:, m:]
    g, above = down.copy(), up.copy()
    while not trace.finished(float(above.sum(axis=1).max()), limit=limit):
        both = np.hstack([up @ up, down @ down])
        # the row sums of the matrix are those of the right sides, so rows of H + L sum to 1 anew, whatever went before
        moves = solve_m_matrix(up @ down + down @ up, both.sum(axis=1), both)
        up, down = moves[:, :m], moves[:, m:]
        g += above @ down
        above = above @ up
    return g, above.sum(axis=1)


def rate_matrix(queue: QBD, g: np.ndarray, beyond: np.ndarray) -> np.ndarray:
    """Return R = up (-U)^-1 with U = local + up G, shape (m, m); the row sums of -U are (down + up (I - G)) 1.

    Parameters
    ----------
    queue : QBD
    g : ndarray, shape (m, m)
    beyond : ndarray, shape (m,)
        (I - G) 1, without cancellation.
    """
    stay = _off_diagonal(queue.local.toarray() + queue.up @ g)
    leave = queue.down.sum(axis=1) + queue.up @ beyond
    return np.asarray(queue.up @ solve_m_matrix(stay, leave, np.eye(queue.phase_count)))


def _off_diagonal(matrix: np.ndarray) -> np.ndarray:
    np.fill_diagonal(matrix, 0.0)
    return matrix
