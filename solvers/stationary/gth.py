"""Grassmann-Taksar-Heyman elimination (reference in `ctmc.model.elimination`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Gth:
    """Dense elimination without a subtraction: every probability to full relative accuracy, whatever the chain.

    Equation: pi Q = 0, eliminating the last state again and again.  No iteration and no stopping test; cost 2/3 n^3
    multiplications, memory 16 n^2 bytes.  Take it up to some thousand states, and wherever accuracy is in doubt: nearly
    decomposable chains and rates over many decades do not disturb it.  Above, it is refused for want of memory.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[0, 1e-14], [2e-14, 0]])
    >>> solve(Stationary(chain), Gth()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 16 * states**2

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        require_memory("gth, which works on a dense matrix,", self.memory(chain.size, chain.entries), states=chain.size)
        return Outcome(gth(chain.to_scipy().toarray()))
