"""Restarted GMRES for passage times, on one color of the states where there are two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array, diags_array

from ctmc.equation import Equation
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.stopped import rates_between
from ctmc.problem import FirstPassage
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._gmres import cycle
from solvers._options import check_count


@dataclass(frozen=True, kw_only=True)
class AbsorptionKrylov:
    """Solve -Q_SS x = b by GMRES on u - B u = 1, with x_i = b_i u_i / q_i and B = b^-1 (rates in S) b / q.

    The residual of this equation is that of the certificate, |b + Q_SS x| / b state by state.  Where every transition changes a
    color, B maps each color into the other, and only one is solved for: (1 - B_01 B_10) u_0 = 1 + B_01 1, u_1 = 1 + B_10 u_0;
    half the unknowns, the square of the spectrum.  After each restart the residual is recomputed, x is corrected and kept at or
    above its first term b / q, so it is positive throughout.

    Stops when max |b + Q_SS x| / b <= tolerance, or at what rounding hides.  One product per iteration, restart + 6 vectors of
    length n / 2 (or n), and the rates by source, 24 bytes each while they are sorted.  The choice for large models and targets that
    are reached in a reasonable number of jumps; where a target is almost never reached, or the way there is long and diffusive, it
    takes many restarts, or stagnates: `absorption_elimination` and `class_elimination` do not mind.  Source: Y. Saad and M. H. Schultz,
    *GMRES: a generalized minimal residual algorithm for solving nonsymmetric linear systems*, SIAM J. Sci. Stat. Comput. 7
    (1986), doi:10.1137/0907058.

    Parameters
    ----------
    restart : int
        Steps between restarts.
    max_iterations : int
        Largest number of steps for one equation.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> queue = Generator.from_matrix([[0, 1.0, 0, 0], [2.0, 0, 1.0, 0], [0, 2.0, 0, 1.0], [0, 0, 2.0, 0]])
    >>> round(solve(FirstPassage(queue, "state == 3", initial=(0,)), AbsorptionKrylov()).mean, 9)
    11.0
    """

    solves: ClassVar = (FirstPassage,)
    needs: ClassVar = Generator
    restart: int = 50
    max_iterations: int = 20_000

    def __post_init__(self) -> None:
        check_count("restart", self.restart)
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Equation, trace: Trace) -> Outcome:
        """Return x, 0 outside."""
        chain = problem.model
        inside = np.ones(chain.size, dtype=bool) if problem.inside is None else problem.inside
        rates = rates_between(chain, inside)
        if problem.forward:
            rates = csr_array(rates.T)
        count = rates.shape[0]
        exits, right = chain.exit_rates[inside], problem.right[inside]
        scale = right if problem.scale is None else problem.scale[inside]
        colors = np.zeros(count, dtype=np.uint8) if chain.coloring is None else chain.coloring[inside]
        own, other = np.flatnonzero(colors == 0), np.flatnonzero(colors == 1)
        if not len(own):
            own, other = other, own
        require_memory("absorption_krylov", 8 * (self.restart + 8) * len(own) + 24 * rates.nnz, states=count)
        jumps = csr_array(diags_array(1 / scale) @ rates @ diags_array(scale / exits))
        halves = (jumps[own][:, other], jumps[other][:, own]) if len(other) else None
        if halves is not None:
            out, back = halves

        def operator(u: np.ndarray) -> np.ndarray:
            chain.count_products()
            return u - (jumps @ u if halves is None else out @ (back @ u))

        least = right / exits
        x = trace.resumed(least.copy())
        steps = 0
        whole = np.zeros(chain.size)
        while True:
            whole[inside] = x
            residual = problem.residual(whole)
            defect = problem.defect(residual)
            if defect > problem.tolerance and defect <= problem.floor(whole):
                defect = problem.tolerance  # what is left is rounding
            if trace.finished(defect, iterate=x, limit=self.max_iterations, iterations=steps):
                return Outcome(whole, trace.status, trace.history)
            scaled = residual[inside] / scale
            change = np.empty(count)
            first = scaled[own] if halves is None else scaled[own] + out @ scaled[other]
            most = min(self.restart, self.max_iterations - trace.iteration)
            change[own], steps = cycle(operator, first, 0.5 * problem.tolerance, most)
            if halves is not None:
                change[other] = scaled[other] + back @ change[own]
            x = np.maximum(x + change * scale / exits, least)
