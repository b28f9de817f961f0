"""GMRES on the sum-zero subspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse.linalg import LinearOperator, gmres
from threadpoolctl import threadpool_limits

from ctmc.certificate import imbalance
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._kernels import cleared
from solvers._options import check_between, check_choice, check_count
from solvers._preconditioner import PRECONDITIONERS, preconditioner


@dataclass(frozen=True, kw_only=True)
class Gmres:
    """Correct pi by M y where -(M y) Q = pi Q, y by SciPy's restarted GMRES; again after each restart.

    Q is singular, but every residual and every image sums to zero, and on that subspace the equation has one solution, so
    nothing needs to be pinned.  M is the preconditioner, applied from the right: GMRES minimises the true residual.  Negative
    entries that rounding leaves are cleared by a symmetric sweep after each restart.

    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance, recomputed at each restart.  One product per iteration,
    restart + 6 vectors of length n.  The right choice for most chains above some thousand states; it stagnates when the
    restart is too short for a nearly decomposable chain.  Source: Y. Saad and M. H. Schultz, *GMRES: a generalized minimal
    residual algorithm for solving nonsymmetric linear systems*, SIAM J. Sci. Stat. Comput. 7 (1986), doi:10.1137/0907058.

    Parameters
    ----------
    restart : int
        Steps between restarts.
    preconditioner : str
        'none', 'jacobi' or 'ilu'.
    drop_tolerance, fill : float
        Of 'ilu': entries dropped relative to their column, and largest growth of the number of entries.
    max_iterations : int
        Largest number of steps.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), Gmres()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    restart: int = 40
    preconditioner: str = "jacobi"
    drop_tolerance: float = 1e-3
    fill: float = 10.0
    max_iterations: int = 20_000

    def __post_init__(self) -> None:
        check_count("restart", self.restart)
        check_count("max_iterations", self.max_iterations)
        check_choice("preconditioner", self.preconditioner, PRECONDITIONERS)
        check_between("drop_tolerance", self.drop_tolerance, 0, 1)
        check_between("fill", self.fill, 0, 1e6)

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        restart = min(self.restart, chain.size)
        require_memory(f"gmres with {restart} basis vectors", 8 * (restart + 6) * chain.size, states=chain.size)
        apply = preconditioner(self.preconditioner, chain, self.drop_tolerance, self.fill)
        operator = LinearOperator((chain.size, chain.size), matvec=lambda y: -chain.forward(apply(y.ravel())))
        steps = 0

        def count(residual: float) -> None:
            nonlocal steps
            steps += 1

        pi = trace.start(np.full(chain.size, 1 / chain.size))
        flow = chain.forward(pi)
        while not trace.finished(imbalance(flow, pi, chain), iterate=pi, limit=self.max_iterations, iterations=steps):
            steps = 0
            # ||r||_1 <= sqrt(n) ||r||_2, and the defect is relative to the flow
            target = 0.5 * problem.tolerance * float(pi @ chain.exit_rates) / chain.size**0.5
            cycle = min(restart, self.max_iterations - trace.iteration)
            with threadpool_limits(limits=1, user_api="blas"):  # vector work: more threads only wait for each other
                correction, _ = gmres(
                    operator, flow, rtol=0, atol=target, restart=cycle, maxiter=1, callback=count,
                    callback_type="pr_norm",
                )  # fmt: skip
            steps = max(steps, 1)
            pi = cleared(chain, pi + apply(correction))
            flow = chain.forward(pi)
        return Outcome(pi, trace.status, trace.history)
