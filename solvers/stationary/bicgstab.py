"""BiCGSTAB on one color of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._bicgstab import LOOK, corrections
from solvers._options import check_count
from solvers._polish import answer
from solvers._reduction import Reduction, reduction
from solvers._start import first_guess


@dataclass(frozen=True, kw_only=True)
class Bicgstab:
    """Solve p = step(p) by BiCGSTAB, step being the jump chain, on one color where the chain has two.

    A chain in which every transition changes the color (each event adds or removes a job) has a jump chain of period two: the
    equations reduce to half the states, and the spectrum of the map to its square, at the same cost per step.  The singular
    equation is solved as it is: residuals and images keep sum_j p_j q_j = 0.  The first iterate is the model's guess, where it
    has one.  Inner products are summed where the product is made, and a step passes over the vectors 15 times.

    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance, looked at every few steps with the updated residual and in the end with
    the true one; where they differ, or the recursion breaks down, it begins again from where it stands.  A converged answer is
    polished, so that it is non-negative and states of the least probability have correct digits.  Two products per step,
    7 vectors of length n / 2 (or n).  The right choice for most large chains; a nearly decomposable one makes it stagnate.
    Source: H. A. van der Vorst, *Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG for the solution of nonsymmetric
    linear systems*, SIAM J. Sci. Stat. Comput. 13 (1992), doi:10.1137/0913035.

    Parameters
    ----------
    max_iterations : int
        Largest number of steps.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), Bicgstab()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    keeps_zeros: ClassVar = True
    max_iterations: int = 20_000

    def __post_init__(self) -> None:
        check_count("max_iterations", self.max_iterations)

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 44 * states

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        require_memory("bicgstab", self.memory(chain.size, chain.entries), states=chain.size)
        half = reduction(chain)
        x = trace.resumed(half.restrict(trace.start(first_guess(chain))))
        residual = np.empty(half.size)
        steps, stopped = 0, False
        while not stopped:
            square = float(half.difference(x, x, residual)[2])
            if trace.finished(half.defect(residual, x), iterate=x, limit=self.max_iterations, iterations=steps):
                break
            steps, stopped = self._correct(half, trace, x, residual, square, problem.tolerance)
        return Outcome(answer(half, x, trace, problem.tolerance), trace.status, trace.history)

    def _correct(
        self, half: Reduction, trace: Trace, x: np.ndarray, residual: np.ndarray, square: float, tolerance: float
    ) -> tuple[int, bool]:
        """Correct x until the updated residual is small, or the recursion breaks down.

        `residual` comes in as x - step(x), with its square, and is used up.  Returns the steps not yet recorded, and whether the trace said stop.
        """
        r = np.negative(residual, out=residual)
        per_norm = half.defect(r, x) / square**0.5
        steps = 0
        for left in corrections(half.difference, x, r, square):
            square = left
            steps += 1
            if per_norm * square**0.5 <= tolerance or steps == LOOK:
                defect = half.defect(r, x)
                if defect <= tolerance:
                    return steps, False
                per_norm = defect / square**0.5
                if trace.finished(defect, iterate=x, limit=self.max_iterations, iterations=steps):
                    return 0, True
                steps = 0
            if trace.iteration + steps >= self.max_iterations:
                break
        return max(steps, 1), False
