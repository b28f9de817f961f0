"""Sparse LU factorisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

from ctmc.model.generator import Generator
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._fixed_state import fixed_state, require_fill, solved
from solvers._options import check_choice
from solvers._ordering import ORDERINGS, lattice_states, least_fill, symmetric_pattern

TRIED = ("NATURAL", "level_sets", "planes", "MMD_AT_PLUS_A")


@dataclass(frozen=True, kw_only=True)
class SparseLu:
    """Fix the probability of one state and solve for the others by SuperLU, without pivoting, with one refinement.

    The equation is x Q_TT = -q_kT for the states T other than k; -Q_TT is a regular M-matrix, for which the diagonal pivots
    are stable.  k is the heaviest state after a few sweeps, since leaving out a light one gives a nearly singular matrix.  No
    iteration and no stopping test; where rounding leaves a negative entry, one symmetric sweep clears it.

    The entries of the factors are counted before anything is factorised (16 bytes each), and what does not fit the memory
    limit, or SuperLU's 32-bit indices, is refused at once.  Take it for chains with little fill: narrow bands, trees, two
    queues, three short ones.  On lattices of more queues the factors grow too fast: then take gmres.  Supermarkets with capacity
    20 and three servers have 1.8 million entries, with capacity 12 and four servers 24 million, with capacity 20 and four servers
    485 million (7.2 GiB).  Source: X. S. Li, *An overview of SuperLU*, ACM TOMS 31 (2005),
    doi:10.1145/1089014.1089017; the orderings: see `solvers._ordering`.

    Parameters
    ----------
    ordering : str
        The order in which states are eliminated.  'level_sets': nested dissection at levels of a breadth-first search, the best
        on lattices; 'planes': nested dissection across the longest side of a lattice; 'MMD_AT_PLUS_A' (minimum degree),
        'COLAMD', 'MMD_ATA': SuperLU's; 'NATURAL': as they stand.  'auto' takes the one with the least entries among natural
        order, both dissections and minimum degree.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), SparseLu()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    ordering: str = "auto"

    def __post_init__(self) -> None:
        check_choice("ordering", self.ordering, ORDERINGS)

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        system = fixed_state(chain, "sparse_lu")
        pattern = symmetric_pattern(system.matrix)
        states = lattice_states(chain.space, system.others)
        names = TRIED if self.ordering == "auto" else (self.ordering,)
        if states is None:
            names = tuple(dict.fromkeys("level_sets" if name == "planes" else name for name in names))
        name, order, entries = least_fill(names, pattern, states)
        require_fill("sparse_lu", name, 2 * entries - len(order), chain.size)
        matrix = csc_array(system.matrix[order][:, order])
        factors = splu(matrix, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"SymmetricMode": True})

        def solve(right: np.ndarray) -> np.ndarray:
            x = np.empty(len(order))
            x[order] = factors.solve(right[order])
            return x

        return solved(chain, system, solve)
