"""Uniformised value iteration with a two-sided bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.equation import Equation
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import DiscountedReward
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._options import check_count


@dataclass(frozen=True, kw_only=True)
class ValueIteration:
    """Iterate x <- (b + L P x) / (gamma + L) with P = I + Q / L, and enclose the answer from both sides.

    With the residual e = b - (gamma I - Q) x, which is gamma + L times the change of a step, the exact answer lies between
    x + min e / gamma and x + max e / gamma in every state, since the inverse of gamma I - Q has no negative entry and row sums
    1 / gamma; these are MacQueen's bounds.  The answer is the middle, whose residual is half the span of e.

    Stops when (max e - min e) / 2 <= tolerance max |b|.  The span falls by the second eigenvalue of P times L / (gamma + L) per
    step, so what counts is how fast the chain mixes or the discount forgets, whichever is faster.  One product per step, 4
    vectors of length n.  Take it for large discounts, and as a check of the others: it cannot break down.  Slow, with
    ITERATION_LIMIT, for stiff chains: about rate / gamma steps.  Sources: J. B. MacQueen, *A modified dynamic programming
    method for Markovian decision problems*, J. Math. Anal. Appl. 14 (1966); E. L. Porteus, *Some bounds for discounted
    sequential decision processes*, Manage. Sci. 18 (1971).

    Parameters
    ----------
    max_iterations : int
        Largest number of steps for one equation.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(DiscountedReward(chain, "state", discount=0.5), ValueIteration()).value.round(9).tolist()
    [[0.571428571, 0.857142857]]
    """

    solves: ClassVar = (DiscountedReward,)
    needs: ClassVar = Generator
    max_iterations: int = 200_000

    def __post_init__(self) -> None:
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Equation, trace: Trace) -> Outcome:
        """Return x with (shift I - Q) x = right on all states."""
        chain, n, shift = problem.model, problem.model.size, problem.shift
        require_memory("value_iteration", 40 * n, states=n)
        size = float(np.abs(problem.right).max()) or 1.0
        # above the largest exit rate, or a periodic chain would not forget
        step = 1 / (shift + 1.05 * chain.uniformization_rate)
        x = trace.resumed(np.full(n, (problem.right.min() / 2 + problem.right.max() / 2) / shift))
        residual = np.empty(n)
        while True:
            problem.residual(x, out=residual)
            low, high = float(residual.min()), float(residual.max())
            middle = low / 2 + high / 2
            if trace.finished((high / 2 - low / 2) / size, iterate=x, limit=self.max_iterations):
                return Outcome(x + middle / shift, trace.status, trace.history)
            # the part of the residual that is the same in all states is corrected at once
            residual -= middle
            residual *= step
            x += residual
            x += middle / shift
