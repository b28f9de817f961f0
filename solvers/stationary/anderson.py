"""Anderson acceleration of fixed-point maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.certificate import imbalance
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._acceleration import FixedPointMap, Mixer, StepMap, SweepMap, swift_map
from solvers._options import check_between, check_choice, check_count
from solvers._polish import bound_for, relative_mixer, settled
from solvers._reduction import reduction
from solvers._start import first_guess

MAPS = ("aggregation", "gauss_seidel", "jump_chain")
_STEPS_PER_LOOK = 4


@dataclass(frozen=True, kw_only=True)
class Anderson:
    """Accelerate a fixed-point map pi <- g(pi): the next iterate is a combination of the last images, by least squares.

    With f = g(pi) - pi, the combination sum_j a_j g(pi_j), sum_j a_j = 1, is taken that makes sum_j a_j f_j smallest, each state
    weighted by n b / tolerance + 1 / pi_i with b = 1e-8: once the sum of all changes is small enough, the relative change of the
    least likely states decides.  Elements that would fall below a tenth of the image's are kept there, and the history begins
    anew when the change doubles, or has not halved in 30 steps.

    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance, looked at in every step where the map gives it away, else in every
    fourth, and then makes some steps more until no state changes by more than 1e-8 of itself.  Memory: 2 depth + 6 vectors, of
    half the length on chains with two colors; a step passes over them once, beside its product or two sweeps.

    Take it for large queues: with its defaults it is among the fastest methods on the supermarket model, and its answer has
    correct digits in every state.  It may stagnate on nearly decomposable chains; then take `aggregation`.  Source: H. Fang,
    Y. Saad, *Two classes of multisecant methods for nonlinear acceleration*, Numerical Linear Algebra with Applications 16
    (2009), doi:10.1002/nla.617, type II.

    Parameters
    ----------
    of : str
        The map: 'aggregation' (a step on one color with balanced levels where all transitions change the level, else symmetric
        sweeps with aggregation), 'gauss_seidel' (symmetric sweeps) or 'jump_chain' (a step on one color of a chain with two,
        else half a step of the jump chain).
    depth : int
        Differences that are combined.
    relaxation : float
        w of the sweeps, between 0 and 2; above 1 they may never settle on a chain that runs round one way.
    polish : int
        Most steps after the defect is within the tolerance.
    max_iterations : int
        Largest number of steps before.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), Anderson()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    of: str = "aggregation"
    depth: int = 6
    relaxation: float = 1.0
    polish: int = 30
    max_iterations: int = 20_000

    def __post_init__(self) -> None:
        check_choice("of", self.of, MAPS)
        check_count("depth", self.depth)
        check_between("relaxation", self.relaxation, 0, 2)
        check_count("polish", self.polish, 0)
        check_count("max_iterations", self.max_iterations)

    def _map(self, chain: Generator) -> FixedPointMap:
        if self.of == "aggregation":
            return swift_map(chain, self.relaxation)
        if self.of == "gauss_seidel":
            return SweepMap(chain, self.relaxation, 1, [])
        return StepMap(reduction(chain))

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 8 * (2 * self.depth + 6) * states + 8 * self.depth**2

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        fixed_point = self._map(chain)
        needed = self.memory(fixed_point.size, chain.entries)
        require_memory(f"anderson with a depth of {self.depth}", needed, states=chain.size)
        x = trace.resumed(fixed_point.restrict(trace.start(first_guess(chain))))
        bound = bound_for(fixed_point.size)
        mixer = relative_mixer(fixed_point.size, self.depth, problem.tolerance, bound)
        mixer.low, mixer.high = 0.1, np.inf
        if isinstance(fixed_point, StepMap):
            self._step(fixed_point, x, mixer, trace)
        else:
            self._sweep(fixed_point, x, mixer, trace)
        polish = self.polish if trace.status is Status.CONVERGED else 0
        pi = settled(fixed_point, x, mixer, problem.tolerance, bound, polish)
        return Outcome(pi, trace.status, trace.history)

    def _step(self, fixed_point: StepMap, x: np.ndarray, mixer: Mixer, trace: Trace) -> None:
        """Iterate until the trace ends it; each image tells the defect of the iterate before."""
        image = np.empty_like(x)
        while not trace.finished(fixed_point.image(x, image), iterate=x, limit=self.max_iterations):
            mixer.step(x, image)

    def _sweep(self, fixed_point: SweepMap, x: np.ndarray, mixer: Mixer, trace: Trace) -> None:
        """Iterate until the trace ends it; the defect of the last image costs a product of its own."""
        chain, image, done = fixed_point.chain, x.copy(), 0
        flow = chain.forward(image)
        while not trace.finished(
            imbalance(flow, image, chain), iterate=image, limit=self.max_iterations, iterations=done
        ):
            done = min(_STEPS_PER_LOOK, self.max_iterations - trace.iteration)
            for _ in range(done):
                fixed_point.image(x, image)
                mixer.step(x, image)
            chain.forward(image, out=flow)
        np.copyto(x, image)
