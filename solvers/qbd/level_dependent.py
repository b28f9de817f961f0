"""Level-dependent QBDs with infinitely many levels: rate matrices by recursion from a level that is moved out by doubling."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

import ctmc
from ctmc.errors import ModelError, ReducibleError
from ctmc.model.generator import Generator
from ctmc.model.level_dependent import LevelDependentQBD, LevelDistribution
from ctmc.model.m_matrix import inverse
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._options import check_between, check_count
from solvers.qbd._matrix_analytic import off_diagonal

_log = logging.getLogger("ctmc.solvers.qbd")
_HUGE = 1e150


@dataclass(frozen=True, kw_only=True)
class LevelDependent:
    """The scheme of Bright and Taylor: R_k from R_{k+1}, downwards from a level N that is doubled until nothing is beyond.

    Equations: pi_{k+1} = pi_k R_k with the rate matrices ::

        R_k = up_k (-U_{k+1})^-1,     U_k = local_k + R_k down_{k+1},     pi_0 U_0 = 0,

    started with R_N = 0, that is the process is killed when it leaves level N upwards.  The R_k grow with N to the least
    non-negative solution.  The rates at which the process is killed are carried along, e_N = up_N 1 and
    e_k = R_k e_{k+1}, so that the row sums of -U_k are down_k 1 + e_k and nothing is ever subtracted.

    Stopping test, after each doubling of N: the largest of the flow over the cut relative to the whole,
    2 pi_N up_N 1 / sum_i pi_i q_i; the square of the L1 change of the levels 0 .. N/2 since the last N; and the mass beyond N,
    times tolerance / `beyond`; it must be within the problem's tolerance.  The mass beyond is extrapolated from the masses
    of the levels N/4 .. N/2 and N/2 .. N as if they went on falling by a power of the level
    (`ctmc.model.level_dependent.mass_beyond`), which is too careful for masses that fall faster.  Where they do fall by a power, killing makes the
    last ones smaller and the estimate some half of what is beyond.  The history has the largest of the three as its defect.

    What it cannot see: probability far above levels of next to no mass, farther out than N.  A process without a stationary
    distribution ends at `max_levels`, the mass beyond not having fallen.

    Cost: some 4 m^3 multiplications per level with m phases, and twice that over all doublings; memory a dense m x m matrix
    per level, beside the blocks.

    Parameters
    ----------
    max_levels : int
        Largest N.
    beyond : float
        Largest accepted estimate of the mass beyond level N.
    first_levels : int
        The first N, at least 4.

    Notes
    -----
    Source: L. Bright, P. G. Taylor, *Calculating the equilibrium distribution in level dependent quasi-birth-and-death
    processes*, Stochastic Models 11 (1995) 497-525, doi:10.1080/15326349508807357.

    Examples
    --------
    >>> import ctmc
    >>> queue = LevelDependentQBD(lambda k: (None if k == 0 else [[1.0 * k]], [[-2.0 - k]], [[2.0]]))       # M/M/infinity
    >>> solution = ctmc.solve(Stationary(queue), LevelDependent())
    >>> round(solution.value.mean_level, 12), round(float(solution.value.level(0)[0]) * math.exp(2), 12)
    (2.0, 1.0)
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = LevelDependentQBD
    max_levels: int = 10_000
    beyond: float = 1e-12
    first_levels: int = 32

    def __post_init__(self) -> None:
        check_count("max_levels", self.max_levels, 4)
        check_count("first_levels", self.first_levels, 4)
        check_between("beyond", self.beyond, 0, 1)

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution on the levels that were kept."""
        queue = problem.model
        assert isinstance(queue, LevelDependentQBD)
        last = min(self.first_levels, self.max_levels)
        doublings = math.ceil(math.log2(self.max_levels / last))
        before: LevelDistribution | None = None
        while True:
            answer = distribution_up_to(queue, last, problem.tolerance, trace)
            change = 1.0 if before is None else _change(before, answer)
            lost = lost_flow(queue, answer)
            _log.info("N = %d: mass beyond %.2g, lost flow %.2g, change %.2g", last, answer.beyond, lost, change)
            defect = max(lost, change**2, answer.beyond * problem.tolerance / self.beyond)
            if trace.finished(defect, limit=doublings):
                return Outcome(answer, trace.status, trace.history)
            before, last = answer, min(2 * last, self.max_levels)


def distribution_up_to(queue: LevelDependentQBD, last: int, tolerance: float, trace: Trace) -> LevelDistribution:
    """Return the distribution with the process killed above level `last`.

    Parameters
    ----------
    queue : LevelDependentQBD
    last : int
        N.
    tolerance : float
        Of the problem, for the chain watched on level 0.
    trace : Trace
        Its time limit holds for level 0 too.
    """
    levels = [queue.level(k) for k in range(last + 1)]
    entries = sum(level.up.shape[0] * level.up.shape[1] for level in levels[:-1])
    require_memory(f"level_dependent, which keeps a rate matrix for each of {last:,} levels,", 8 * entries)
    rates: list[np.ndarray] = []
    returns: np.ndarray | None = None
    killed = levels[-1].up.sum(axis=1)
    for k in range(last, 0, -1):
        level = levels[k]
        assert level.down is not None
        stay = off_diagonal(level.local.toarray())
        if returns is not None:
            stay += returns
        try:
            visits = inverse(stay, level.down.sum(axis=1) + killed)
        except ModelError as error:
            raise ModelError(f"at level {k}, {error}") from None
        rate = np.asarray(levels[k - 1].up @ visits)
        rates.append(rate)
        returns = np.asarray(rate @ level.down)
        killed = rate @ killed
    assert returns is not None
    watched = Generator.from_matrix(csr_array(off_diagonal(levels[0].local.toarray() + returns)))
    try:
        lowest = ctmc.solve(Stationary(watched, tolerance=tolerance), "gth", time_limit=trace.remaining, check=False)
    except ReducibleError as error:
        raise ReducibleError(
            f"the QBD has several recurrent classes and so no single stationary distribution: watched on level 0, {error}"
        ) from None
    vectors = [lowest.value]
    for rate in reversed(rates):
        vectors.append(vectors[-1] @ rate)
        if vectors[-1].sum() > _HUGE:  # far from level 0 the masses may exceed its by any power of ten
            vectors = [vector / _HUGE for vector in vectors]
    total = sum(float(vector.sum()) for vector in reversed(vectors))
    return LevelDistribution(tuple(vector / total for vector in vectors))


def lost_flow(queue: LevelDependentQBD, answer: LevelDistribution) -> float:
    """Return twice the flow over the cut, relative to the whole flow: what is unbalanced if nothing is beyond."""
    levels = [queue.level(k) for k in range(len(answer.levels))]
    flow = -sum(float(vector @ level.local.diagonal()) for vector, level in zip(answer.levels, levels, strict=True))
    lost = float((answer.levels[-1] @ levels[-1].up).sum())
    return 2 * lost / flow if flow > 0 else 0.0


def _change(before: LevelDistribution, after: LevelDistribution) -> float:
    low = len(before.levels) // 2 + 1
    pairs = zip(before.levels[:low], after.levels[:low], strict=True)
    return sum(float(np.abs(old - new).sum()) for old, new in pairs)
