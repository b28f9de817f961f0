"""Gauss-Seidel sweeps, with relaxation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.certificate import imbalance
from ctmc.model.generator import Generator
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._kernels import sweep
from solvers._options import check_between, check_choice, check_count

DIRECTIONS = ("forward", "backward", "symmetric")


@dataclass(frozen=True, kw_only=True)
class GaussSeidel:
    """Set pi_j <- (1 - w) pi_j + w (sum_i pi_i q_ij) / q_j for each state in turn, again and again.

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

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), GaussSeidel(direction="forward")).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    direction: str = "symmetric"
    relaxation: float = 1.0
    sweeps_per_check: int = 4
    max_iterations: int = 100_000

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, DIRECTIONS)
        check_between("relaxation", self.relaxation, 0, 2)
        check_count("sweeps_per_check", self.sweeps_per_check)
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        pi = trace.start(np.full(chain.size, 1 / chain.size))
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
