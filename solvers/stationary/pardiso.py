"""LU factorisation by MKL's Pardiso."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._fixed_state import fixed_state, solved

_KEPT, _FACTORS, _ENTRIES = 16, 17, 18
"""Places, counted from 1, where Pardiso tells kilobytes kept from the analysis, kilobytes of the factors, and their entries."""


@dataclass(frozen=True, kw_only=True)
class Pardiso:
    """Fix the probability of one state and solve for the others by MKL's Pardiso, with one refinement.

    The equation is that of sparse_lu, x Q_TT = -q_kT with k the heaviest state after a few sweeps.  Pardiso orders by nested
    dissection (METIS), factorises dense blocks and replaces pivots that are too small instead of exchanging rows, which the
    refinement makes good.  No iteration and no stopping test.  Needs the extra ``pardiso`` (pypardiso).

    After the analysis Pardiso tells how much memory the factors take; what does not fit the memory limit is refused then.  Take
    it where sparse_lu is too slow: supermarkets with three servers and capacity 50 take half its time (`benchmarks/which_solver.py`),
    chains with little fill about the same.  It runs on one thread, since the bits of the answer depend on their number.  Source: O.
    Schenk and K. Gartner, *Solving unsymmetric sparse systems of linear equations with PARDISO*, Future Generation Computer
    Systems 20 (2004), doi:10.1016/j.future.2003.07.011.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), Pardiso()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    library: ClassVar = ("pypardiso", "pardiso")

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        from pypardiso import PyPardisoSolver

        chain = problem.model
        system = fixed_state(chain, "pardiso")
        matrix = csr_matrix(system.matrix)
        matrix.sort_indices()
        pardiso = PyPardisoSolver(mtype=11)
        with threadpool_limits(limits=1, user_api="blas"):
            try:
                pardiso.set_phase(11)
                pardiso._call_pardiso(matrix, system.right)
                entries, kilobytes = (int(pardiso.get_iparm(place)) for place in (_ENTRIES, _FACTORS))
                require_memory(
                    f"pardiso with {entries:,} entries forecast in its factors",
                    1024 * (kilobytes + int(pardiso.get_iparm(_KEPT))),
                    states=chain.size,
                )
                pardiso.set_phase(22)
                pardiso._call_pardiso(matrix, system.right)
                pardiso.set_phase(33)

                def solve(right: np.ndarray) -> np.ndarray:
                    return np.asarray(pardiso._call_pardiso(matrix, right))

                return solved(chain, system, solve)
            finally:
                pardiso.free_memory(everything=True)
