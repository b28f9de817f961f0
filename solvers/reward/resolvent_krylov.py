"""BiCGSTAB for discounted rewards, on one color of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.equation import Equation
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.products import FEW_ENTRIES
from ctmc.problem import DiscountedReward
from ctmc.solution import Outcome
from ctmc.threads import limited_threads
from ctmc.trace import Trace
from solvers._bicgstab import LOOK, corrections
from solvers._options import check_count
from solvers.reward._resolvent import Resolvent, resolvent


@dataclass(frozen=True, kw_only=True)
class ResolventKrylov:
    """Solve (gamma I - Q) x = b by BiCGSTAB with the diagonal as right preconditioner, on one color where the chain has two.

    The equation is (I - N D^-1) y = b with N the rates, D = gamma + exit rates and x = D^-1 y; where every transition changes a
    color, one color is eliminated: half the unknowns, the square of the spectrum, at the same cost per step.  A constant is in
    closed form, (gamma I - Q) 1 = gamma 1, so the middle of the range of the residual is taken off whenever the recursion
    begins: small discounts cost no more than the mixing of the chain does.

    Stops when max |b - (gamma I - Q) x| <= tolerance max |b|, looked at every few steps with the updated residual and in the
    end with the true one, less the middle of its range; where they differ, or the recursion breaks down, it begins again from
    where it stands.  Two products per step.  Memory: 9 vectors of length n / 2 (or n), and a copy of the rates sorted by
    source, 12 bytes each; a lattice of queues is used as it is stored, on all states.  The right choice for most large chains.
    Fails, with STAGNATED, on chains of nearly separate parts whose exchange is slower than the discount can hide.  Source: H. A.
    van der Vorst, *Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG for the solution of nonsymmetric linear systems*,
    SIAM J. Sci. Stat. Comput. 13 (1992), doi:10.1137/0913035.

    Parameters
    ----------
    max_iterations : int
        Largest number of steps for one equation.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(DiscountedReward(chain, "state", discount=0.5), ResolventKrylov()).value.round(9).tolist()
    [[0.571428571, 0.857142857]]
    """

    solves: ClassVar = (DiscountedReward,)
    needs: ClassVar = Generator
    max_iterations: int = 20_000

    def __post_init__(self) -> None:
        check_count("max_iterations", self.max_iterations)

    @np.errstate(over="ignore", invalid="ignore")  # what overflows is found by the stopping rule
    def run(self, problem: Equation, trace: Trace) -> Outcome:
        """Return x with (shift I - Q) x = right on all states."""
        require_memory("resolvent_krylov", 80 * problem.model.size, states=problem.model.size)
        # small vectors would mostly wait for a second thread; the bits are the same
        with limited_threads(1 if problem.model.entries <= FEW_ENTRIES else None):
            return self._solve(problem, trace)

    def _solve(self, equation: Equation, trace: Trace) -> Outcome:
        n = equation.model.size
        half = resolvent(equation)
        size = float(np.abs(equation.right).max()) or 1.0
        x = np.full(n, (equation.right.min() / 2 + equation.right.max() / 2) / equation.shift)
        first = half.restrict(x)
        y = trace.resumed(first)
        x = x if y is first else half.expand(y)
        steps, stopped, room = 0, False, np.empty(n)
        while True:
            residual = equation.residual(x, out=room)
            low, high = float(residual.min()), float(residual.max())
            x += (low / 2 + high / 2) / equation.shift
            defect = (high / 2 - low / 2) / size
            y = half.restrict(x)
            if stopped or trace.finished(defect, iterate=y, limit=self.max_iterations, iterations=steps):
                return Outcome(x, trace.status, trace.history)
            steps, stopped = self._correct(half, trace, y, size)
            x = half.expand(y)

    def _correct(self, half: Resolvent, trace: Trace, y: np.ndarray, size: float) -> tuple[int, bool]:
        """Correct y until the updated residual is small, or the recursion breaks down.

        Returns the steps not yet recorded, and whether the trace said stop.
        """
        r = half.residual(y)
        square = float(r @ r)
        if not square > 0:
            return 1, False
        per_norm = float(np.abs(r).max()) / size / square**0.5
        steps = 0
        for left in corrections(half.difference, y, r, square):
            square = left
            steps += 1
            if per_norm * square**0.5 <= trace.tolerance or steps == LOOK:
                low, high = half.spread(r)
                defect = (high / 2 - low / 2) / size
                if defect <= 0.5 * trace.tolerance:  # the true residual is a little larger
                    return steps, False
                per_norm = max(defect, np.finfo(float).tiny) / square**0.5 if square > 0 else per_norm
                if trace.finished(
                    max(defect, 1.001 * trace.tolerance), iterate=y, limit=self.max_iterations, iterations=steps
                ):
                    return 0, True
                steps = 0
            if trace.iteration + steps >= self.max_iterations:
                break
        return max(steps, 1), False
