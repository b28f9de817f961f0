"""Iterative aggregation and disaggregation, with one level of parts or many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.certificate import imbalance
from ctmc.errors import ModelError, shown
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.multilevel import Multilevel
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._acceleration import (
    FixedPointMap,
    Mixer,
    Rescaling,
    StepMap,
    SweepMap,
    WholeLevels,
    swift_map,
)
from solvers._aggregation import given_parts, levels_of
from solvers._options import check_between, check_count
from solvers._polish import DEPTH, bound_for, relative_mixer, settled
from solvers._start import first_guess

_STRETCH = 1.8
"""Factor of the change by a step on one color: its eigenvalues lie between 0 and 1, mostly."""


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """Repeat symmetric Gauss-Seidel sweeps, and after them solve the chain between parts and give the parts its masses.

    With the masses m of the parts and the shares s_i = pi_i / m_a inside them, the chain between the parts has the rates
    sum_{i in a} s_i rate(i, b); its stationary distribution replaces m.  Up to 2000 given parts are solved by elimination,
    levels, left for their neighbours only, by ratios of neighbours, and many parts by the same method again (multilevel).
    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance, and then makes some steps more until no state changes by more than
    1e-8 of itself.  Where all transitions change the level, a step on one color, one product on all threads, takes the place of
    the sweeps.

    Cost per iteration: 2 sweeps and a product each; the aggregation adds some passes over vectors for levels, and about four
    products for pairs of states.  4 to 8 vectors, and copies of the transitions for pairs.  Take it for nearly decomposable
    chains, whose parts exchange little: everything adds, multiplies and divides, so masses and small probabilities are right
    to their last digits (with a relaxation above 1 up to a small factor).  It has no proof of convergence: where parts are
    chosen badly it may stagnate.  Source: J. R. Koury, D. F. McAllister, W. J. Stewart, *Iterative methods for computing
    stationary distributions of nearly completely decomposable Markov chains*, SIAM J. Algebraic Discrete Methods 5 (1984),
    doi:10.1137/0605019.

    Parameters
    ----------
    partition : str or sequence of int
        'auto' (levels: a variable ``level`` or the total of the coordinates, else pairs; both where rates differ by five
        decades), 'matching' (pairs by the strongest flow, again and again), 'total', the name of a variable or reward, on whose
        values the parts are, or the part of each state.
    sweeps : int
        Pairs of sweeps, forward and backward, between aggregations.
    relaxation : float
        w of the sweeps, between 0 and 2.
    levels : int
        Largest number of chains on top of each other.
    polish : int
        Most steps after the defect is within the tolerance.
    max_iterations : int
        Largest number of aggregations before.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[0, 1, 1e-14], [1, 0, 0], [2e-14, 0, 0]])
    >>> solve(Stationary(chain), Aggregation(partition=(0, 0, 1))).value.round(12).tolist()
    [0.4, 0.4, 0.2]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    partition: str | tuple[int, ...] = "auto"
    sweeps: int = 1
    relaxation: float = 1.0
    levels: int = 40
    polish: int = 30
    max_iterations: int = 20_000

    def __post_init__(self) -> None:
        if not isinstance(self.partition, str):
            object.__setattr__(self, "partition", _numbers(self.partition))
        check_count("sweeps", self.sweeps)
        check_between("relaxation", self.relaxation, 0, 2)
        check_count("levels", self.levels)
        check_count("polish", self.polish, 0)
        check_count("max_iterations", self.max_iterations)

    def _map(self, chain: Generator) -> FixedPointMap:
        if self.partition == "auto":
            return swift_map(chain, self.relaxation, self.sweeps, self.levels, _STRETCH)
        chosen: Rescaling
        if self.partition == "matching":
            chosen = Multilevel(chain, depth=self.levels)
        else:
            parts = given_parts(chain, self.partition)
            found = levels_of(chain, parts)
            chosen = Multilevel(chain, parts, depth=self.levels) if found is None else WholeLevels(found)
        return SweepMap(chain, self.relaxation, self.sweeps, [chosen])

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 64 * states

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = problem.model
        require_memory("aggregation", self.memory(chain.size, chain.entries), states=chain.size)
        fixed_point = self._map(chain)
        x = trace.resumed(fixed_point.restrict(trace.start(first_guess(chain))))
        image = np.empty_like(x)
        if isinstance(fixed_point, StepMap):
            while not trace.finished(fixed_point.image(x, image), iterate=x, limit=self.max_iterations):
                x, image = image, x
        else:
            flow = chain.forward(x)
            while not trace.finished(imbalance(flow, x, chain), iterate=x, limit=self.max_iterations):
                fixed_point.image(x, image)
                x, image = image, x
                chain.forward(x, out=flow)
        polish = self.polish if trace.status is Status.CONVERGED else 0
        bound = bound_for(fixed_point.size)
        mixer: Mixer = relative_mixer(fixed_point.size, DEPTH, problem.tolerance, bound)
        pi = settled(fixed_point, x, mixer, problem.tolerance, bound, polish)
        return Outcome(pi, trace.status, trace.history)


def _numbers(partition: Sequence[int]) -> tuple[int, ...]:
    """Return the part of each state as plain integers."""
    try:
        numbers = np.asarray(partition)
    except ValueError:
        numbers = np.asarray(None)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not numbers.size:
        raise ModelError(f"partition is {shown(partition)}; allowed is a name, or one whole number per state.")
    return tuple(numbers.tolist())
