"""GMRES with algebraic multigrid."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import LinearOperator, gmres
from threadpoolctl import threadpool_limits

from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.sweeps import cleared, sweep
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._fixed_state import require_numbers
from solvers._options import check_choice, check_count
from solvers._start import first_guess

HIERARCHIES = ("classical", "aggregation")
_COARSEST = 300
"""A level of so many states is solved by its pseudo-inverse."""
_SEED = 201602
_BARREN_RESTARTS = 5


@dataclass(frozen=True, kw_only=True)
class Multigrid:
    """Correct the flows z by M y where -(M y) (J - I) = z (J - I), y by GMRES and M one V-cycle of pyamg; again after each restart.

    z_j = pi_j q_j are the probability flows and J is the jump chain, so that the matrix has ones on its diagonal and columns
    that sum to zero; it is singular, but every residual and every image sums to zero, and nothing needs to be fixed.  Needs
    the extra ``multigrid`` (pyamg).

    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance, recomputed at each restart; ends as STAGNATED after five restarts
    in a row that gain less than a thousandth.  One product and one V-cycle (counted as the products that it costs) per
    iteration; restart + 8 vectors and the hierarchy, up to 150 bytes a transition.

    The number of iterations hardly depends on the size: 10 on a single queue with room for 5000 at load .9 (8 at load .99), 12 on
    a tandem of three queues with up to 30 jobs, 11 to 13 on supermarkets with three servers and capacity 20, four and 12, five
    and 7.  So it is the right choice for long queues at high load, where Krylov methods alone need as many products as the queue
    is long.  On supermarkets its V-cycles cost five times what bicgstab takes.  Of pyamg's other methods, smoothed aggregation
    (``hierarchy="aggregation"``) takes twice the iterations, with half of the memory on chains with many transitions; its hierarchy
    of approximate ideal restriction took minutes to build for 28,561 states, and its root-node one failed with a TypeError.
    A chain of up to 300 states is a single level, which is solved by its pseudo-inverse.

    Source: J. W. Ruge and K. Stuben, *Algebraic multigrid*, in: Multigrid Methods, SIAM 1987, doi:10.1137/1.9781611971057.ch4;
    P. Vanek, J. Mandel and M. Brezina, *Algebraic multigrid by smoothed aggregation*, Computing 56 (1996),
    doi:10.1007/BF02238511.

    Parameters
    ----------
    hierarchy : str
        'classical' (Ruge and Stuben) or 'aggregation' (smoothed aggregation, with the flows after a few sweeps as the vector
        that coarse levels must be able to form).
    restart : int
        Steps between restarts.
    max_iterations : int
        Largest number of steps.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), Multigrid()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    library: ClassVar = ("pyamg", "multigrid")
    hierarchy: str = "classical"
    restart: int = 30
    max_iterations: int = 2000

    def __post_init__(self) -> None:
        check_choice("hierarchy", self.hierarchy, HIERARCHIES)
        check_count("restart", self.restart)
        check_count("max_iterations", self.max_iterations)

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 150 * entries + 8 * (self.restart + 8) * states

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        n, exits = chain.size, chain.exit_rates
        require_memory("multigrid", self.memory(n, chain.entries), states=n)
        pi = trace.start(first_guess(chain))
        apply = v_cycle(chain, self.hierarchy, pi)
        operator = LinearOperator((n, n), matvec=lambda y: -chain.forward(apply(y.ravel()) / exits), dtype=np.float64)
        steps = 0

        def count(residual: float) -> None:
            nonlocal steps
            steps += 1

        barren, best = 0, math.inf
        while True:
            total = float(pi @ exits)
            residual = chain.forward(pi) / total
            defect = float(np.abs(residual).sum())
            if trace.finished(defect, iterate=pi, limit=self.max_iterations, iterations=steps):
                return Outcome(pi, trace.status, trace.history)
            barren, best = (0, defect) if defect < 0.999 * best else (barren + 1, best)
            if barren == _BARREN_RESTARTS:
                return Outcome(pi, Status.STAGNATED, trace.history)
            steps = 0
            target = max(0.3 * problem.tolerance, 1e-6 * defect) / math.sqrt(n)  # ||r||_1 <= sqrt(n) ||r||_2
            cycle = min(self.restart, self.max_iterations - trace.iteration, n)
            with threadpool_limits(limits=1, user_api="blas"):  # vector work: more threads only wait for each other
                y, _ = gmres(
                    operator, residual, rtol=0, atol=target, restart=cycle, maxiter=1, callback=count,
                    callback_type="pr_norm",
                )  # fmt: skip
                correction = apply(y) / exits
            steps = max(steps, 1)
            corrected = pi / total + correction
            fine = np.isfinite(corrected).all() and abs(corrected.sum()) > 0
            pi = cleared(chain, corrected / corrected.sum()) if fine else np.full(n, math.nan)


def v_cycle(chain: Generator, hierarchy: str, pi: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return one V-cycle for the matrix I - J^T as a linear map of a vector, shape (n,), that counts the products it costs.

    Parameters
    ----------
    chain : Generator
    hierarchy : str
        Of `HIERARCHIES`.
    pi : ndarray, shape (n,)
        A rough distribution.

    Raises
    ------
    ArithmeticError
        If the coarsest level is too large to be solved.
    ModelError
        If there are more entries than pyamg can number.
    """
    require_numbers("multigrid", chain.entries + chain.size, chain.size)
    import pyamg

    exits = chain.exit_rates
    matrix = csr_matrix(-chain.to_scipy().T)
    matrix.data /= exits[matrix.indices]
    matrix.sort_indices()
    with warnings.catch_warnings(), threadpool_limits(limits=1, user_api="blas"):
        warnings.simplefilter("ignore")  # pyamg warns of what it converts
        if hierarchy == "classical":
            # not pyamg's own default interpolation, which prints where a state has no strong neighbour
            levels = pyamg.ruge_stuben_solver(matrix, interpolation="direct", max_coarse=_COARSEST)
        else:
            rough = pi.copy()
            for _ in range(5):
                sweep(chain, rough)
                sweep(chain, rough, reverse=True)
            # pyamg estimates spectral radii from random vectors of NumPy's global generator
            state = np.random.get_state()  # noqa: NPY002
            np.random.seed(_SEED)  # noqa: NPY002
            try:
                near_kernel = (rough * exits / (rough @ exits))[:, None]
                levels = pyamg.smoothed_aggregation_solver(matrix, B=near_kernel, max_coarse=_COARSEST)
            finally:
                np.random.set_state(state)  # noqa: NPY002
    coarsest = levels.levels[-1].A.shape[0]
    if coarsest > 10 * _COARSEST:
        raise ArithmeticError(f"the coarsest level has {coarsest:,} states; allowed are {10 * _COARSEST:,}")
    cost = math.ceil(levels.cycle_complexity())
    cycle: Any = levels.aspreconditioner(cycle="V")

    def apply(vector: np.ndarray) -> np.ndarray:
        chain.count_products(cost)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(cycle.matvec(vector)).ravel()

    return apply
