"""Power iteration on the uniformised chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ctmc.certificate import imbalance
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._options import check_count
from solvers._start import first_guess


@dataclass(frozen=True, kw_only=True)
class PowerIteration:
    """Repeat pi <- pi (I + Q / (1.05 q)), q being the largest exit rate; the margin of 5 % breaks any period.

    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance.  One product per iteration, 2 vectors of length n.  Converges for
    every chain, slowly: as the second eigenvalue of the kernel, so rates over many decades or a load near 1 need millions of
    steps.  Take it as a yardstick, not to get work done.  Source: W. J. Stewart, *Introduction to the Numerical Solution of
    Markov Chains*, Princeton 1994, section 3.1.

    Parameters
    ----------
    max_iterations : int
        Largest number of steps.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), PowerIteration()).value.round(9).tolist()
    [0.666666667, 0.333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    keeps_zeros: ClassVar = True
    shared: ClassVar = True
    max_iterations: int = 100_000

    def __post_init__(self) -> None:
        check_count("max_iterations", self.max_iterations)

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 24 * states

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        require_memory("power_iteration", self.memory(chain.size, chain.entries), states=chain.size)
        pi = trace.start(first_guess(chain))
        step = 1 / (1.05 * chain.uniformization_rate)
        flow = chain.forward(pi)
        while not trace.finished(imbalance(flow, pi, chain), iterate=pi, limit=self.max_iterations):
            pi += step * flow
            pi /= chain.ranks.total(float(pi.sum()))
            chain.forward(pi, out=flow)
        return Outcome(pi, trace.status, trace.history)
