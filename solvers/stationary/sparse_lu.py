"""Sparse LU factorisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse.linalg import splu

from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._kernels import cleared, sweep
from solvers._options import check_choice

ORDERINGS = ("COLAMD", "MMD_AT_PLUS_A", "MMD_ATA", "NATURAL")


@dataclass(frozen=True, kw_only=True)
class SparseLu:
    """Fix the probability of one state and solve for the others by SuperLU, without pivoting, with one refinement.

    The equation is x Q_TT = -q_kT for the states T other than k; -Q_TT is a regular M-matrix, for which the diagonal pivots
    are stable.  k is the heaviest state after a few sweeps, since leaving out a light one gives a nearly singular matrix.  No
    iteration and no stopping test.  Take it for chains with little fill: narrow bands, trees, two queues.  On lattices of
    three and more queues the factors grow like n^(4/3) and more: then take gmres.  Source: X. S. Li, *An overview of
    SuperLU*, ACM TOMS 31 (2005), doi:10.1145/1089014.1089017.

    Parameters
    ----------
    ordering : str
        Column ordering of SuperLU: 'MMD_AT_PLUS_A' (minimum degree, for nearly symmetric patterns), 'COLAMD', 'MMD_ATA' or
        'NATURAL'.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), SparseLu()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    ordering: str = "MMD_AT_PLUS_A"

    def __post_init__(self) -> None:
        check_choice("ordering", self.ordering, ORDERINGS)

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        require_memory("sparse_lu, for the matrix alone,", 36 * (chain.entries + chain.size), states=chain.size)
        guess = np.full(chain.size, 1 / chain.size)
        for _ in range(3):
            sweep(chain, guess)
            sweep(chain, guess, reverse=True)
        fixed = int(np.argmax(guess))
        others = np.delete(np.arange(chain.size), fixed)
        generator = chain.to_scipy()
        matrix = -generator[others][:, others].T.tocsc()
        right = generator[[fixed]][:, others].toarray().ravel()
        factors = splu(
            matrix,
            permc_spec=self.ordering,
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": self.ordering == "MMD_AT_PLUS_A"},
        )
        x = factors.solve(right)
        x += factors.solve(right - matrix @ x)
        return Outcome(cleared(chain, np.insert(x, fixed, 1.0)))
