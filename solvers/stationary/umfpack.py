"""LU factorisation by UMFPACK."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scipy.sparse import csc_matrix

from ctmc.model.generator import Generator
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._fixed_state import fixed_state, require_fill, solved
from solvers._ordering import factor_entries, ordering, symmetric_pattern

_ORDERING = "MMD_AT_PLUS_A"


@dataclass(frozen=True, kw_only=True)
class Umfpack:
    """Fix the probability of one state and solve for the others by UMFPACK, with one refinement.

    The equation is that of sparse_lu, x Q_TT = -q_kT with k the heaviest state after a few sweeps.  UMFPACK chooses between
    minimum degree on the pattern of A + A^T and COLAMD, exchanges rows where that saves entries, and factorises dense fronts.
    No iteration and no stopping test.  Needs the extra ``umfpack`` (scikit-umfpack, which is built from source and needs
    SuiteSparse and a compiler).

    The entries of the factors under minimum degree are counted before anything is factorised; what does not fit the memory
    limit is refused.  Take it for chains with little fill and unsymmetric patterns; sparse_lu with its dissection has half of the
    entries on lattices.  Source: T. A. Davis, *Algorithm 832: UMFPACK V4.3*, ACM TOMS 30 (2004),
    doi:10.1145/992200.992206.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), Umfpack()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    library: ClassVar = ("scikits.umfpack", "umfpack")

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        from scikits import umfpack

        chain = problem.model
        system = fixed_state(chain, "umfpack")
        pattern = symmetric_pattern(system.matrix)
        entries = factor_entries(pattern, ordering(_ORDERING, pattern))
        require_fill("umfpack", _ORDERING, 2 * entries - pattern.shape[0], chain.size)
        factors = umfpack.splu(csc_matrix(system.matrix))
        return solved(chain, system, factors.solve)
