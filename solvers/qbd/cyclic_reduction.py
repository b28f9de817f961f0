"""Cyclic reduction: the matrices G and R of a QBD by elimination of every other level, again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ctmc.model.level_elimination import BEYOND, halve
from ctmc.model.qbd import QBD
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._options import check_choice, check_count
from solvers.qbd._matrix_analytic import Blocks, begin, boundary_method, conclude, dense, improved
from solvers.qbd._reversible import halve_reversible, phase_weights

_SHIFTED = 1e-15
_WORKING_MATRICES = 14


@dataclass(frozen=True, kw_only=True)
class CyclicReduction:
    """Bini and Meini's algorithm for G, shifted or without a subtraction; R from it, and the boundary as elsewhere.

    Equation: down + local G + up G^2 = 0.  Of the levels above level 0 every other one is eliminated, which leaves a QBD
    with twice the step; with V = (-local)^-1 one iteration is::

        home <- home + up V down,   local <- local + up V down + down V up,   up <- up V up,   down <- down V down,

    and (-home)^-1 down, with the first `down`, tends to G.  R = up (-U)^-1 with U = local + up G.

    ``shift="never"``: nothing is ever subtracted, as in `logarithmic_reduction`, at three quarters of its cost; entries of G
    down to 1e-16 are right to rounding one by one, and about log2(1 / (1 - decay rate)) + 5 iterations are made.

    ``shift="always"``: the eigenvalue 1 of G is taken out first, down <- down - (down 1) v and local <- local + (up 1) v with v
    = 1 / m, so that the number of iterations depends on the other eigenvalues only: on blocks without slow phases it is 3
    to 5 at any load.  That needs subtractions; afterwards G, its negative entries cleared and its rows scaled, goes through
    one step of the U-based functional iteration without any, which brings row sums back to rounding.

    ``shift="auto"`` (default): shifted, except where `up` and `down` are diagonal and the phases are reversible (tridiagonal
    `local`, for instance), where slow phases make as many iterations either way.  There all blocks, times the
    stationary distribution of the phases, are symmetric and stay so; with a triangular factor of V, up and down
    are halves of one symmetric product, and an iteration costs little more than half.  Nothing is subtracted.

    Stopping test: the largest row sum of `up` relative to that of the first `down` is at most 1e-18: the probability that 2^k
    levels are climbed before the level below is entered.  It is the defect in the history.  Shifted: the largest
    entry that `home` gained in the iteration is at most 1e-15 of the largest exit rate.

    Cost: 14 m^3 multiplications per iteration without a subtraction, 8 m^3 where reversible, 18 m^3 shifted; memory 14
    dense m x m matrices.  The right choice for dense blocks of hundreds of phases.  It fails, and says so, where phases
    are so much slower than levels that shifting loses more digits than the tolerance leaves; take ``shift="never"``.

    Parameters
    ----------
    shift : str
        ``"auto"``, ``"always"`` or ``"never"``.
    max_iterations : int
        Most halvings.
    boundary_solver : str or solver, optional
        Any solver of a stationary problem on a finite chain.
        By default `gth` up to 3000 boundary states, and `gauss_seidel` above.

    References
    ----------
    D. A. Bini, B. Meini, *On the solution of a nonlinear matrix equation arising in queueing problems*, SIAM Journal on
    Matrix Analysis and Applications 17 (1996) 906-926, doi:10.1137/S0895479895284804.  C. He, B. Meini, N. H. Rhee, *A shifted
    cyclic reduction algorithm for quasi-birth-death problems*, SIAM Journal on Matrix Analysis and Applications 23 (2002)
    673-691, doi:10.1137/S0895479800371955.

    Examples
    --------
    >>> import ctmc
    >>> queue = QBD.from_blocks([[0.3]], [[-1.3]], [[1.0]])                     # M/M/1 at load 0.3
    >>> round(ctmc.solve(Stationary(queue), CyclicReduction()).value.decay_rate, 12)
    0.3
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = QBD
    shift: str = "auto"
    max_iterations: int = 50
    boundary_solver: Any = None

    def __post_init__(self) -> None:
        check_choice("shift", self.shift, ("auto", "always", "never"))
        check_count("max_iterations", self.max_iterations)
        boundary_method(self.boundary_solver)

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution as boundary vectors, R and G."""
        queue = problem.model
        blocks = begin("cyclic_reduction", queue, _WORKING_MATRICES)
        weights = phase_weights(queue) if self.shift == "auto" else None
        if weights is not None:
            trace.tolerance = min(trace.tolerance, BEYOND)
            g, r = halve_reversible(blocks, weights, trace, self.max_iterations)
        elif self.shift == "never":
            trace.tolerance = min(trace.tolerance, BEYOND)
            g, visits = halve(
                dense(blocks.up),
                dense(blocks.down),
                blocks.stay,
                lambda climbed: trace.finished(climbed, limit=self.max_iterations),
            )
            r = np.asarray(blocks.up @ visits)
        else:
            trace.tolerance = min(trace.tolerance, _SHIFTED)
            g, r = halve_shifted(blocks, queue.local.toarray(), trace, self.max_iterations)
        return conclude(self, problem, trace, g, r)


def halve_shifted(blocks: Blocks, local: np.ndarray, trace: Trace, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return G and R by shifted cyclic reduction and one U-based step without a subtraction."""
    m = len(local)
    up = dense(blocks.up)
    down = dense(blocks.down) - blocks.leave_down[:, None] / m
    local = local + blocks.leave_up[:, None] / m
    first, home = down, local
    scale = float(-blocks_diagonal(blocks).min()) or 1.0
    gained = 1.0
    while not trace.finished(gained, limit=limit):
        away = np.linalg.inv(-local)
        from_up, from_down = away @ up, away @ down
        around = up @ from_down
        home = home + around
        gained = float(np.abs(around).max()) / scale
        if gained <= trace.tolerance:
            continue
        local = local + around
        local += down @ from_up
        up, down = up @ from_up, down @ from_down
    g = np.linalg.solve(-home, first) + 1 / m
    return improved(blocks, g)


def blocks_diagonal(blocks: Blocks) -> np.ndarray:
    """Return the diagonal of local."""
    return -(blocks.stay.sum(axis=1) + blocks.leave_up + blocks.leave_down)
