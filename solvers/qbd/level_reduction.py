"""Linear level reduction: finite block-tridiagonal chains, eliminated level by level without a subtraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array

from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.levels import elimination, levels
from ctmc.model.m_matrix import inverse
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers.qbd._matrix_analytic import dense, off_diagonal

_GROWTH = 1e150
_NARROW = 200


@dataclass(frozen=True, kw_only=True)
class LevelReduction:
    """Block elimination of a chain whose transitions lead one level up, one down, or stay, from the last level to the first.

    The levels are the values of the first variable of the states, where no transition skips one, or of another that makes them much
    narrower; otherwise the chain is cut into breadth-first levels from state 0, so any chain is taken.  It is the method for QBDs with a last level, or with other blocks
    in every level (``queue.truncate(levels=..)``, a `tandem_network`), and as ``boundary_solver`` for long boundaries.

    With S_k the local block of level k watched below level k + 1, R_k the expected times in level k per unit of time in level k - 1::

        R_{k+1} = up_k (-S_{k+1})^-1,   S_k = local_k + R_{k+1} down_{k+1};   pi_{k+1} = pi_k R_{k+1},  pi_0 S_0 = 0.

    Row sums of -S_k are those of down_k, so elimination subtracts nothing and every probability is right to rounding, however
    small it is and whatever the chain is like; level 0 goes to `gth`.

    No stopping test: a direct method.  Cost: 3 m^3 multiplications for a level of m states; memory one dense m x m matrix for
    each level and 6 for the largest.  It fails for want of memory where levels are wide.

    References
    ----------
    D. P. Gaver, P. A. Jacobs, G. Latouche, *Finite birth-and-death models in randomly changing environments*, Advances in
    Applied Probability 16 (1984) 715-731, doi:10.2307/1427338.

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.QBD.from_blocks([[0.5]], [[-1.5]], [[1.0]]).truncate(levels=3)
    >>> ctmc.solve(Stationary(queue), LevelReduction()).value.round(12).tolist()
    [0.571428571429, 0.285714285714, 0.142857142857]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution, shape (n,)."""
        chain = problem.model
        level_of = levels(chain)
        return Outcome(reduce_levels(chain, level_of), Status.CONVERGED)


def reduce_levels(chain: Generator, level_of: np.ndarray) -> np.ndarray:
    """Eliminate the levels from the last to the first, and return the stationary distribution, shape (n,)."""
    sizes = np.bincount(level_of)
    count = len(sizes)
    require_memory(
        "level_reduction, which keeps a dense matrix for each level,", int(elimination(sizes)[1]), states=chain.size
    )
    begin = [0, *np.cumsum(sizes).tolist()]
    order = np.argsort(level_of, kind="stable")
    rates = csr_array(chain.to_scipy())[order][:, order]
    steps: list[np.ndarray] = []
    extra = np.zeros((sizes[-1], sizes[-1]))
    local, down, _ = _blocks(rates, begin, count - 1)
    for k in range(count - 1, 0, -1):
        below, further, up = _blocks(rates, begin, k - 1)
        r = np.asarray(up @ inverse(off_diagonal(dense(local) + extra), down.sum(axis=1)))
        steps.append(r)
        extra = r @ down
        local, down = below, further
    first = off_diagonal(dense(local) + extra)
    vector = gth(first) if len(first) > 1 else np.ones(1)
    parts = [vector]
    for k in range(1, count):
        vector = vector @ steps[-k]
        largest = float(vector.max())
        if largest > _GROWTH:  # levels that grow: what was found before is scaled down with them
            parts = [part / largest for part in parts]
            vector = vector / largest
        parts.append(vector)
    pi = np.empty(chain.size)
    pi[order] = np.concatenate(parts)
    return np.asarray(pi / pi.sum())


def _blocks(rates: csr_array, begin: list[int], k: int) -> tuple[Any, Any, Any]:
    """Return the blocks (local, down, up) of a level, from rates in the order of the levels, which begin there; narrow levels as
    dense matrices.

    Slices of a sparse matrix take longer than all that is done to a narrow level.
    """
    low, high = begin[k], begin[k + 1]
    left, right = begin[max(k - 1, 0)], begin[min(k + 2, len(begin) - 1)]
    if right - left > _NARROW:
        rows = rates[low:high]
        return rows[:, low:high], rows[:, left:low], rows[:, high:right]
    first, last = rates.indptr[low], rates.indptr[high]
    places = np.repeat(np.arange(high - low), np.diff(rates.indptr[low : high + 1]))
    rows = np.zeros((high - low, right - left))
    rows[places, rates.indices[first:last] - left] = rates.data[first:last]
    return rows[:, low - left : high - left], rows[:, : low - left], rows[:, high - left :]
