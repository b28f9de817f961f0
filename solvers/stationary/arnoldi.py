"""Arnoldi's method, by ARPACK."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigs
from threadpoolctl import threadpool_limits

from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.sweeps import cleared
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._options import check_count
from solvers._polish import answer
from solvers._reduction import Reduction, reduction
from solvers._start import first_guess

_FEW = 12
"""Up to so many unknowns the map is written out: ARPACK needs room between the vectors it is asked for and all of them."""
_LEAST_BASIS = 4
_LOOSE = 1e10
"""A tolerance that ARPACK meets with its first basis, whose best vector it then returns."""


@dataclass(frozen=True, kw_only=True)
class Arnoldi:
    """Find the left eigenvector of the jump chain for the eigenvalue 1 by ARPACK, again from the best vector found so far.

    The equation is z J = z for the probability flows z_j = pi_j q_j, J being the jump chain, or its square on one color where the
    chain has two (then half as many unknowns).  ARPACK is asked for the eigenvalue of largest real part: on a periodic chain
    others have modulus 1 too, but only one is 1.  Each call builds a basis of `basis` vectors and takes its best vector, or,
    after a call that gained less than a factor of 10, keeps the best part of the basis and builds on (implicit restarts, up to
    `patience` of them).

    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance, recomputed after each call.  One product per iteration, basis + 8
    vectors of the unknowns.  It needs neither a preconditioner nor a fixed state: take it to
    check another answer.  Supermarkets with capacity 20 and three servers, or 12 and four, take 98 products at load .8, a tandem
    of three queues with up to 30 jobs 168.  It fails where eigenvalues crowd around 1 (nearly decomposable chains) or probability
    has far to go (STAGNATED on a single queue with room for 2000 at load .9): then take multigrid or sparse_lu.

    Source: R. B. Lehoucq, D. C. Sorensen and C. Yang, *ARPACK Users' Guide*,
    SIAM 1998, doi:10.1137/1.9780898719628.

    Parameters
    ----------
    basis : int
        Vectors in the basis, at least 4.
    patience : int
        Largest number of implicit restarts in one call.
    max_iterations : int
        Largest number of products.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), Arnoldi()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    basis: int = 30
    patience: int = 10
    max_iterations: int = 20_000

    def __post_init__(self) -> None:
        check_count("basis", self.basis, least=_LEAST_BASIS)
        check_count("patience", self.patience)
        check_count("max_iterations", self.max_iterations)

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 8 * (self.basis + 8) * states

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        half = reduction(chain)
        require_memory(
            f"arnoldi with {self.basis} basis vectors", self.memory(half.size, chain.entries), states=chain.size
        )
        p = half.restrict(trace.start(first_guess(chain)))
        p = trace.resumed(p if p.any() else np.ones(half.size))
        defect, steps, restarts = half.defect(half.step(p) - p, p), 1, 1
        with threadpool_limits(limits=1, user_api="blas"):  # vector work: more threads only wait for each other
            while not trace.finished(defect, iterate=p, limit=self.max_iterations, iterations=steps):
                left = max(self.max_iterations - trace.iteration, _LEAST_BASIS)
                basis = min(self.basis, left)
                found, steps = best_vector(half, p, basis, min(restarts, left // basis))
                if found is None:
                    return Outcome(cleared(chain, half.expand(p)), Status.BREAKDOWN, trace.history)
                new = half.defect(half.step(found) - found, found)
                if not new < defect:  # a vector that is no better: half a step of the map damps what ARPACK cannot see
                    found = (p + half.step(p)) / 2
                    new = half.defect(half.step(found) - found, found)
                    steps += 2
                restarts = self.patience if new > 0.1 * defect else 1
                p, defect, steps = found, new, steps + 1
        return Outcome(answer(half, p, trace, problem.tolerance), trace.status, trace.history)


def best_vector(half: Reduction, p: np.ndarray, basis: int, restarts: int) -> tuple[np.ndarray | None, int]:
    """Return a non-negative vector nearer to the fixed point than p, or None where ARPACK gives none, and the products taken."""
    n, steps = half.size, 0
    exits = half.exit_rates

    def flow(z: np.ndarray) -> np.ndarray:
        nonlocal steps
        steps += 1
        return half.step(np.ravel(z) / exits) * exits

    if n <= _FEW:
        values, vectors = np.linalg.eig(np.array([flow(unit) for unit in np.eye(n)]).T)
        return _distribution(vectors[:, [np.argmax(values.real)]], exits), steps
    operator = LinearOperator((n, n), matvec=flow, dtype=np.float64)
    begin = p * exits
    vectors = np.empty((n, 0))
    for tolerance, limit in ((0.0, restarts), (_LOOSE, 1)) if restarts > 1 else ((_LOOSE, 1),):
        try:
            _, vectors = eigs(operator, k=1, which="LR", v0=begin, ncv=min(basis, n), maxiter=limit, tol=tolerance)
        except ArpackNoConvergence as failure:
            vectors = failure.eigenvectors
        except ArpackError:
            break
        if vectors.shape[1]:
            break
    return _distribution(vectors, exits), steps


def _distribution(vectors: np.ndarray, exits: np.ndarray) -> np.ndarray | None:
    """Return the probabilities of the first eigenvector of flows, its sign and scale chosen, without what is negative."""
    if not vectors.shape[1] or not np.isfinite(vectors).all():
        return None
    flow = vectors[:, 0]
    # LAPACK and ARPACK leave the phase open: turn the sum to the positive real axis
    total = flow.sum()
    if abs(total) == 0:
        return None
    p = np.maximum((flow / total).real, 0) / exits
    return p / p.sum() if np.isfinite(p).all() else None
