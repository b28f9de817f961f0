"""Gauss-Seidel sweeps, with relaxation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ctmc.certificate import imbalance
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.sweeps import sweep
from ctmc.model.transitions import LatticeTransitions
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._options import check_between, check_choice, check_count
from solvers._reduction import reduction
from solvers._start import first_guess

ORDERS = ("auto", "sequential", "colored")
DIRECTIONS = ("forward", "backward", "symmetric")


@dataclass(frozen=True, kw_only=True)
class GaussSeidel:
    """Set pi_j <- (1 - w) pi_j + w (sum_i pi_i q_ij) / q_j for each state in turn, again and again.

    Where the chain has two colors, in which every transition changes the color, all states of a color can be set at once, on all
    threads and in vector instructions: a colored sweep sets one color, then the other.

    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance, looked at after every few sweeps.  One product's cost per sweep, 2
    vectors of length n.  With w <= 1 it only adds, multiplies and divides, so small probabilities keep their relative
    accuracy.  Take it when memory is short or a componentwise accurate answer is wanted; it is slow near load 1, and a sweep
    in one direction may never settle on a chain that runs round the other way (then take 'symmetric', or w < 1).  Source:
    W. J. Stewart, *Introduction to the Numerical Solution of Markov Chains*, Princeton 1994, section 3.2.

    Parameters
    ----------
    direction : str
        'forward', 'backward' (order of the states), or 'symmetric' (one of each per iteration).
    relaxation : float
        w, between 0 and 2.
    sweeps_per_check : int
        Iterations between two looks at the defect, which cost a product each.
    max_iterations : int
        Largest number of iterations.
    order : str
        'sequential' (state by state), 'colored', or 'auto': colored for a model in lattice form, whose colored sweeps are ten times
        as fast, else sequential.  A colored sweep relaxes the pair of colors together, and has no direction.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), GaussSeidel(direction="forward")).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    keeps_zeros: ClassVar = True
    direction: str = "symmetric"
    relaxation: float = 1.0
    sweeps_per_check: int = 4
    max_iterations: int = 100_000
    order: str = "auto"

    def __post_init__(self) -> None:
        check_choice("order", self.order, ORDERS)
        check_choice("direction", self.direction, DIRECTIONS)
        check_between("relaxation", self.relaxation, 0, 2)
        check_count("sweeps_per_check", self.sweeps_per_check)
        check_count("max_iterations", self.max_iterations)

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 32 * states

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        if self.order == "colored" and chain.coloring is None:
            raise ModelError(
                "order is 'colored', but the chain has no two colors; allowed are 'sequential' and 'auto'."
            )
        if self.order == "colored" or (self.order == "auto" and isinstance(chain.transitions, LatticeTransitions)):
            return self._colored(chain, trace)
        require_memory("gauss_seidel", self.memory(chain.size, chain.entries), states=chain.size)
        pi = trace.start(first_guess(chain))
        flow = chain.forward(pi)
        done = 0
        while not trace.finished(imbalance(flow, pi, chain), iterate=pi, limit=self.max_iterations, iterations=done):
            done = min(self.sweeps_per_check, self.max_iterations - trace.iteration)
            for _ in range(done):
                if self.direction != "backward":
                    sweep(chain, pi, relaxation=self.relaxation)
                if self.direction != "forward":
                    sweep(chain, pi, relaxation=self.relaxation, reverse=True)
                pi /= pi.sum()
            chain.forward(pi, out=flow)
        return Outcome(pi, trace.status, trace.history)

    def _colored(self, chain: Generator, trace: Trace) -> Outcome:
        half = reduction(chain)
        p = trace.resumed(half.restrict(trace.start(first_guess(chain))))
        image = half.step(p)
        done = 0
        while not trace.finished(half.defect(image - p, p), iterate=p, limit=self.max_iterations, iterations=done):
            done = min(5 * self.sweeps_per_check, self.max_iterations - trace.iteration)
            for _ in range(done):
                p += self.relaxation * (image - p)
                half.step(p, out=image)
        return Outcome(half.expand(p), trace.status, trace.history)
