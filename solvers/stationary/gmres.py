"""Restarted GMRES, on one color of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.certificate import imbalance
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.sweeps import cleared
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._gmres import cycle
from solvers._options import check_between, check_choice, check_count
from solvers._polish import answer
from solvers._preconditioner import PRECONDITIONERS, preconditioner
from solvers._reduction import reduction
from solvers._start import first_guess


@dataclass(frozen=True, kw_only=True)
class Gmres:
    """Correct p where p = step(p) is not yet true, by SciPy's restarted GMRES; again after each restart.

    step is the jump chain, on one color where the chain has two (see `Bicgstab`).  The equation is singular, but residuals and
    images keep sum_j p_j q_j = 0, and on that subspace it has one solution, so nothing needs to be pinned.  With another
    preconditioner M, the equation is -(M y) Q = pi Q on all states, M from the right: GMRES minimises the true residual.
    The converged answer is polished, so that it is non-negative and states of the least probability have correct digits; without
    coloring, negative entries that rounding leaves are cleared by a symmetric sweep after each restart.

    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance, recomputed at each restart.  One product per iteration,
    restart + 6 vectors of length n / 2 (or n).  Its residual never grows, unlike that of bicgstab, which takes fewer vectors; it
    stagnates when the restart is too short for a nearly decomposable chain.  Source: Y. Saad and M. H. Schultz, *GMRES: a generalized minimal
    residual algorithm for solving nonsymmetric linear systems*, SIAM J. Sci. Stat. Comput. 7 (1986), doi:10.1137/0907058.

    Parameters
    ----------
    restart : int
        Steps between restarts.
    preconditioner : str
        'coloring' (the map above), or on all states 'none', 'jacobi' or 'ilu'.
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
    keeps_zeros: ClassVar = True
    restart: int = 40
    preconditioner: str = "coloring"
    drop_tolerance: float = 1e-3
    fill: float = 10.0
    max_iterations: int = 20_000

    def __post_init__(self) -> None:
        check_count("restart", self.restart)
        check_count("max_iterations", self.max_iterations)
        check_choice("preconditioner", self.preconditioner, ("coloring", *PRECONDITIONERS))
        check_between("drop_tolerance", self.drop_tolerance, 0, 1)
        check_between("fill", self.fill, 0, 1e6)

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 8 * (min(self.restart, states) + 6) * states

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        restart = min(self.restart, chain.size)
        unknowns = chain.size // 2 if self.preconditioner == "coloring" and chain.coloring is not None else chain.size
        require_memory(f"gmres with {restart} basis vectors", self.memory(unknowns, chain.entries), states=chain.size)
        if self.preconditioner == "coloring":
            return self._on_one_color(problem, trace)
        apply = preconditioner(self.preconditioner, chain, self.drop_tolerance, self.fill)
        pi = trace.start(first_guess(chain))
        flow = chain.forward(pi)
        steps = 0
        while not trace.finished(imbalance(flow, pi, chain), iterate=pi, limit=self.max_iterations, iterations=steps):
            # ||r||_1 <= sqrt(n) ||r||_2, and the defect is relative to the flow
            target = 0.5 * problem.tolerance * float(pi @ chain.exit_rates) / chain.size**0.5
            most = min(self.restart, self.max_iterations - trace.iteration)
            correction, steps = cycle(lambda y: -chain.forward(apply(y)), flow, target, most)
            pi = cleared(chain, pi + apply(correction))
            flow = chain.forward(pi)
        return Outcome(pi, trace.status, trace.history)

    def _on_one_color(self, problem: Stationary, trace: Trace) -> Outcome:
        half = reduction(problem.model)
        p = trace.resumed(half.restrict(trace.start(first_guess(problem.model))))
        residual = half.step(p) - p
        steps = 0
        while not trace.finished(half.defect(residual, p), iterate=p, limit=self.max_iterations, iterations=steps):
            # the defect and the norm of a residual fall together
            norm = float(np.linalg.norm(residual))
            target = 0.3 * problem.tolerance * norm / half.defect(residual, p)
            most = min(self.restart, self.max_iterations - trace.iteration)
            correction, steps = cycle(lambda y: y - half.step(y), residual, target, most)
            p += correction
            half.step(p, out=residual)
            residual -= p
        return Outcome(answer(half, p, trace, problem.tolerance), trace.status, trace.history)
