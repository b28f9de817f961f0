"""Invariant subspaces: the matrix G of a QBD from an ordered Schur form, without iterating on G."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import LinAlgError, schur

from ctmc.model.qbd import QBD
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers.qbd._matrix_analytic import Blocks, begin, boundary_method, conclude, dense, improved

_WORKING_MATRICES = 40
_POLES = (-1.75, -1.25, 2.75, -3.5)


@dataclass(frozen=True, kw_only=True)
class InvariantSubspace:
    """G from the invariant subspace of its eigenvalues, by an ordered Schur form of a matrix of twice the size.

    Where down + z local + z^2 up is singular, z is an eigenvalue of G if |z| <= 1, and 1 / z one of R otherwise.  The
    eigenvalue 1 is first moved to 0, as in shifted cyclic reduction, so that the unit circle separates the two sets; then with
    A = [[0, I], [-down, -local]], B = [[I, 0], [0, up]] and a pole s that is no eigenvalue, K = (A - s B)^-1 B has the
    eigenvalues 1 / (z - s), and the columns of its Schur vectors that belong to |z| < 1, cut into halves X and Y, give
    G = Y X^-1 (+ the shift).  One U-based step without a subtraction, as in `cyclic_reduction`, brings row sums to rounding.
    R = up (-U)^-1.

    No stopping test: a direct method.  If not exactly m eigenvalues are inside, or X is singular, it reports a BREAKDOWN.

    Cost: some 200 m^3 to 300 m^3 multiplications, most of them in the Schur form and none in large products; memory 40 dense
    m x m matrices.  A second opinion for up to some hundred phases, and the method whose cost does not depend on the load
    or on the speed of the phases; it subtracts, so slow phases cost digits.

    Parameters
    ----------
    boundary_solver : str or solver, optional
        Any solver of a stationary problem on a finite chain.
        By default `gth` up to 3000 boundary states, and `gauss_seidel` above.

    References
    ----------
    N. Akar, K. Sohraby, *An invariant subspace approach in M/G/1 and G/M/1 type Markov chains*, Communications in Statistics.
    Stochastic Models 13 (1997) 381-416, doi:10.1080/15326349708807433.

    Examples
    --------
    >>> import ctmc
    >>> queue = QBD.from_blocks([[0.3]], [[-1.3]], [[1.0]])                     # M/M/1 at load 0.3
    >>> round(ctmc.solve(Stationary(queue), InvariantSubspace()).value.decay_rate, 12)
    0.3
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = QBD
    boundary_solver: Any = None

    def __post_init__(self) -> None:
        boundary_method(self.boundary_solver)

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution as boundary vectors, R and G."""
        queue = problem.model
        blocks = begin("invariant_subspace", queue, _WORKING_MATRICES)
        g = inside(blocks, queue.local.toarray())
        if g is None:
            shape = blocks.stay.shape
            return conclude(self, problem, trace, np.full(shape, np.nan), np.full(shape, np.nan), Status.BREAKDOWN)
        return conclude(self, problem, trace, *improved(blocks, g), Status.CONVERGED)


def inside(blocks: Blocks, local: np.ndarray) -> np.ndarray | None:
    """Return G from the Schur vectors inside the unit circle, shape (m, m), or None where they are not m."""
    m = len(local)
    scale = float(-local.diagonal().min()) or 1.0
    up = dense(blocks.up) / scale
    down = (dense(blocks.down) - blocks.leave_down[:, None] / m) / scale
    local = (local + blocks.leave_up[:, None] / m) / scale
    right = np.block([[np.eye(m), np.zeros((m, m))], [np.zeros((m, m)), up]])
    left = np.block([[np.zeros((m, m)), np.eye(m)], [-down, -local]])
    for pole in _POLES:
        try:
            matrix = np.linalg.solve(left - pole * right, right)

            def chosen(real: float, imaginary: float, pole: float = pole) -> bool:
                value = complex(real, imaginary)
                return value != 0 and abs(pole + 1 / value) < 1

            _, vectors, count = schur(matrix, sort=chosen)
        except (LinAlgError, np.linalg.LinAlgError):
            continue
        if count == m and np.linalg.cond(vectors[:m, :m]) < 1e12:
            return np.asarray(np.linalg.solve(vectors[:m, :m].T, vectors[m:, :m].T).T + 1 / m)
    return None
