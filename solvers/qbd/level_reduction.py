"""Linear level reduction: finite block-tridiagonal chains, eliminated level by level without a subtraction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.m_matrix import inverse
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers.qbd._matrix_analytic import off_diagonal

_GROWTH = 1e150


@dataclass(frozen=True, kw_only=True)
class LevelReduction:
    """Block elimination of a chain whose transitions lead one level up, one down, or stay, from the last level to the first.

    The levels are the values of the first variable of the states, where no transition skips one; otherwise the chain is cut into
    breadth-first levels from state 0, so any chain is taken.  It is the method for QBDs with a last level, or with other blocks
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


def levels(chain: Generator) -> np.ndarray:
    """Return the level of each state, 0, 1, .., each reached from its neighbours only, shape (n,)."""
    targets = np.repeat(np.arange(chain.size), np.diff(chain.indptr))
    states = chain.space.states(np.arange(chain.size))
    first = states[:, 0] - states[:, 0].min()
    present = np.unique(first)
    if len(present) > 1:
        first = np.searchsorted(present, first)
        if np.abs(first[chain.sources] - first[targets]).max() <= 1:
            return np.asarray(first)
    links = csr_array((np.ones(chain.entries), (chain.sources, targets)), shape=(chain.size, chain.size))
    order, before = breadth_first_order(csr_array(links + links.T), 0, directed=False)
    found = np.zeros(chain.size, dtype=np.int64)
    for state in order[1:]:
        found[state] = found[before[state]] + 1
    return found


def reduce_levels(chain: Generator, level_of: np.ndarray) -> np.ndarray:
    """Eliminate the levels from the last to the first, and return the stationary distribution, shape (n,)."""
    sizes = np.bincount(level_of)
    count, widest = len(sizes), int(sizes.max())
    kept = 8 * float((sizes[1:].astype(float) * sizes[:-1]).sum())
    require_memory(
        "level_reduction, which keeps a dense matrix for each level,", int(kept + 48 * widest**2), states=chain.size
    )
    members = np.split(np.argsort(level_of, kind="stable"), np.cumsum(sizes)[:-1])
    rates = csr_array(chain.to_scipy())
    rates.setdiag(0)
    steps: list[np.ndarray] = []
    extra = np.zeros((sizes[-1], sizes[-1]))
    for k in range(count - 1, 0, -1):
        stay = off_diagonal(rates[members[k]][:, members[k]].toarray() + extra)
        down, up = rates[members[k]][:, members[k - 1]], rates[members[k - 1]][:, members[k]]
        r = np.asarray(up @ inverse(stay, down.sum(axis=1)))
        steps.append(r)
        extra = r @ down
    pi = np.zeros(chain.size)
    first = off_diagonal(rates[members[0]][:, members[0]].toarray() + extra)
    vector = gth(first) if len(first) > 1 else np.ones(1)
    pi[members[0]] = vector
    for k in range(1, count):
        vector = vector @ steps[-k]
        largest = float(vector.max())
        if largest > _GROWTH:  # levels that grow: what was found before is scaled down with them
            pi /= largest
            vector = vector / largest
        pi[members[k]] = vector
    return np.asarray(pi / pi.sum())
