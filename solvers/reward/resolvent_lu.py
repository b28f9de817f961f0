"""Sparse LU factorisation for discounted rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csc_array, eye_array
from scipy.sparse.linalg import splu

from ctmc.equation import Equation
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import DiscountedReward
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._fixed_state import require_fill
from solvers._options import check_choice
from solvers._ordering import ORDERINGS, lattice_states, least_fill, symmetric_pattern

TRIED = ("NATURAL", "level_sets", "planes", "MMD_AT_PLUS_A")


@dataclass(frozen=True, kw_only=True)
class ResolventLu:
    """Solve (gamma I - Q) x = b by SuperLU without pivoting, with one step of refinement.

    gamma I - Q is a diagonally dominant M-matrix, for which the diagonal pivots are stable, whatever the discount.  No
    iteration and no stopping test.  The entries of the factors are counted before anything is factorised (16 bytes each); what
    does not fit the memory limit, or 32-bit indices, is refused at once.  Take it for stiff chains with little fill: narrow
    bands, trees, two or three short queues; see `SparseLu` for what lattices of queues take.  Each moment has a matrix of its
    own, k gamma I - Q.  Source: X. S. Li, *An overview of SuperLU*, ACM TOMS 31 (2005), doi:10.1145/1089014.1089017.

    Parameters
    ----------
    ordering : str
        The order in which states are eliminated, as of `SparseLu`: 'level_sets', 'planes', 'MMD_AT_PLUS_A', 'COLAMD', 'MMD_ATA'
        or 'NATURAL'; 'auto' takes the one with the least entries.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(DiscountedReward(chain, "state", discount=0.5, initial=(0,)), ResolventLu()).value.round(12).tolist()
    [0.571428571429]
    """

    solves: ClassVar = (DiscountedReward,)
    needs: ClassVar = Generator
    ordering: str = "auto"

    def __post_init__(self) -> None:
        check_choice("ordering", self.ordering, ORDERINGS)

    def run(self, problem: Equation, trace: Trace) -> Outcome:
        """Return x with (shift I - Q) x = right on all states."""
        chain, n = problem.model, problem.model.size
        require_memory("resolvent_lu, for the matrix alone,", 36 * (chain.entries + n), states=n)
        matrix = csc_array(problem.shift * eye_array(n) - chain.to_scipy())
        pattern = symmetric_pattern(matrix)
        states = lattice_states(chain.space, np.arange(n))
        names = TRIED if self.ordering == "auto" else (self.ordering,)
        if states is None:
            names = tuple(dict.fromkeys("level_sets" if name == "planes" else name for name in names))
        name, order, entries = least_fill(names, pattern, states)
        require_fill("resolvent_lu", name, 2 * entries - n, n)
        permuted = csc_array(matrix[order][:, order])
        factors = splu(permuted, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
        x = np.empty(n)
        x[order] = factors.solve(problem.right[order])
        correction = problem.residual(x)
        x[order] += factors.solve(correction[order])
        return Outcome(x)
