"""Sparse LU factorisation for passage times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csc_array, diags_array
from scipy.sparse.linalg import splu

from ctmc.equation import Equation
from ctmc.model.generator import Generator
from ctmc.model.stopped import rates_between
from ctmc.problem import FirstPassage
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._fixed_state import require_fill
from solvers._options import check_choice, check_count
from solvers._ordering import ORDERINGS, lattice_states, least_fill, symmetric_pattern

TRIED = ("NATURAL", "level_sets", "planes", "MMD_AT_PLUS_A")


@dataclass(frozen=True, kw_only=True)
class AbsorptionLu:
    """Solve -Q_SS x = b by SuperLU without pivoting, which suits an M-matrix, and refine x by its residual.

    No iteration and no stopping test: x is corrected as long as its defect max |b + Q_SS x| / b falls.  The factors are made
    once for all moments; their entries are counted before, and what does not fit is refused at once, as in `sparse_lu`.  Take it
    for narrow bands, trees and few queues, where the way to the target is long: a walk through thousands of states, which takes
    `absorption_krylov` as many iterations, costs it milliseconds.  Where the target is almost never reached digits are lost
    with the mean time, as pivots are differences: then `absorption_elimination`.  Source: X. S. Li, *An overview of SuperLU*,
    ACM TOMS 31 (2005), doi:10.1145/1089014.1089017.

    Parameters
    ----------
    ordering : str
        The order in which states are eliminated; see `sparse_lu`.
    refinements : int
        Largest number of corrections.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> walk = Generator.from_matrix(diags_array([np.ones(9000), np.ones(9000)], offsets=[1, -1]))
    >>> round(solve(FirstPassage(walk, "state == 9000", initial=(0,)), AbsorptionLu()).mean / (9000 * 9001 / 2), 9)
    1.0
    """

    solves: ClassVar = (FirstPassage,)
    needs: ClassVar = Generator
    ordering: str = "auto"
    refinements: int = 5

    def __post_init__(self) -> None:
        check_choice("ordering", self.ordering, ORDERINGS)
        check_count("refinements", self.refinements, 0)

    def run(self, problem: Equation, trace: Trace) -> Outcome:
        """Return x, 0 outside."""
        chain = problem.model
        inside = np.ones(chain.size, dtype=bool) if problem.inside is None else problem.inside
        if "sparse factors" not in problem.found:
            problem.found["sparse factors"] = self._factors(chain, inside)
        order, factors = problem.found["sparse factors"]

        def solve(right: np.ndarray) -> np.ndarray:
            whole, part = np.zeros(chain.size), np.empty(len(order))
            part[order] = factors.solve(right[inside][order], trans="T" if problem.forward else "N")
            whole[inside] = part
            return whole

        x = solve(problem.right)
        residual = problem.residual(x)
        for _ in range(self.refinements):
            better = x + solve(residual)
            after = problem.residual(better)
            if not problem.defect(after) < 0.9 * problem.defect(residual):
                break
            x, residual = better, after
        return Outcome(x)

    def _factors(self, chain: Generator, inside: np.ndarray) -> tuple[np.ndarray, Any]:
        rates = rates_between(chain, inside)
        matrix = csc_array(diags_array(chain.exit_rates[inside]) - rates)
        pattern = symmetric_pattern(matrix)
        states = lattice_states(chain.space, np.flatnonzero(inside))
        names = TRIED if self.ordering == "auto" else (self.ordering,)
        if states is None:
            names = tuple(dict.fromkeys("level_sets" if name == "planes" else name for name in names))
        name, order, entries = least_fill(names, pattern, states)
        require_fill("absorption_lu", name, 2 * entries - len(order), chain.size)
        ordered = csc_array(matrix[order][:, order])
        return order, splu(ordered, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
