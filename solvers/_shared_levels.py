"""A coarse correction on levels, for Krylov methods on any number of ranks: parts that an equation couples with their neighbours only.

The equation is A x = r with the columns of A summing to zero, such as A = -Q^T.  With the shares of the current iterate inside each
level the chain between the levels is a birth-death chain, so the correction of a residual is a running sum, and what it does to the
residual follows from three vectors that are found once: it costs no product.

Source: the aggregation step of J. R. Koury, D. F. McAllister, W. J. Stewart, SIAM J. Algebraic Discrete Methods 5 (1984),
doi:10.1137/0605019, as the coarse space of a two-level preconditioner.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ctmc.model.shared import SharedGenerator
from ctmc.ranks import Ranks
from solvers._aggregation import level_factors, rates_across


def own_levels(chain: SharedGenerator) -> np.ndarray | None:
    """Return the level of each own state, from 0, or None where transitions go further than to the neighbouring levels.

    Tried are a variable named ``level`` and the total of the coordinates; all ranks together.

    Examples
    --------
    >>> from ctmc.model.generator import Generator
    >>> from ctmc.model.shared import share
    >>> from ctmc.ranks import ALONE
    >>> queue = Generator.from_matrix(np.diag([1.0, 1.0, 1.0], 1) + np.diag([2.0, 2.0, 2.0], -1))
    >>> own_levels(share(queue, ALONE)).tolist()
    [0, 1, 2, 3]
    """
    return chain.once("own_levels", lambda: _own_levels(chain))


def _own_levels(chain: SharedGenerator) -> np.ndarray | None:
    names = [variable.name for variable in chain.space.variables if variable.length is None]
    for name in [*(["level"] if "level" in names else []), None]:
        level = np.empty(chain.size, dtype=np.int64)
        for positions, states in chain.state_slabs():
            level[positions] = states.sum(axis=1) if name is None else chain.space.columns(states)[name]
        least = -chain.ranks.largest(float((-level).max(initial=np.iinfo(np.int64).min)))
        level -= int(least)
        everywhere = chain.ghosts.extended(level.astype(np.float64)).astype(np.int64)
        room = np.zeros(len(everywhere))
        (slab,) = chain.row_slabs()
        if chain.ranks.largest(float(rates_across(*slab, everywhere, room, room, room, room))) < 2:
            return level.astype(np.int32)
    return None


class LevelCorrection:
    """The correction of residuals on levels, at the shares of an iterate; all ranks make one together.

    Parameters
    ----------
    ranks : Ranks
    level : ndarray of int64, shape (m,)
        Of the own unknowns.
    multiply : callable
        Maps an own vector x to A x.

    Attributes
    ----------
    x : ndarray, shape (m,)
        The iterate, its levels balanced.
    """

    def __init__(
        self, ranks: Ranks, level: np.ndarray, multiply: Callable[[np.ndarray], np.ndarray], x: np.ndarray
    ) -> None:
        self._ranks, self._level = ranks, level
        count = 1 + int(ranks.largest(float(level.max(initial=0))))
        self._count = count
        x = np.maximum(x, 0)
        # what the level below, the own and the level above add to A x
        self._from = np.zeros((3, len(x)))
        for residue in range(3):
            image = multiply(np.where(level % 3 == residue, x, 0.0))
            step = (residue - level + 1) % 3
            self._from[step, np.arange(len(x))] = image
        up = -self._by_level(self._from[0], shift=-1)
        down = -self._by_level(self._from[2], shift=1)
        sums = np.maximum(np.array([up, down, self._by_level(x)]), 0)
        factor = np.empty(count)
        level_factors(sums, factor)
        self.x = x * factor[level]
        padded = np.concatenate([[0.0], factor, [0.0]])
        for step in range(3):
            self._from[step] *= padded[level + step]
        self._masses = self._by_level(self.x)
        self._flows = (up * factor)[:-1]

    def _by_level(self, values: np.ndarray, shift: int = 0) -> np.ndarray:
        """Return the sums by level, of the level that is `shift` beside the own; over all ranks."""
        found = np.bincount(self._level + 1 + shift, weights=values, minlength=self._count + 2)
        return np.asarray(self._ranks.total(found[1:-1]))

    def correct(self, residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the correction of the masses of the levels that a residual asks for, and what it leaves of the residual."""
        sums = self._by_level(residual)
        below = np.cumsum(sums)[:-1]
        above = -np.cumsum(sums[::-1])[::-1][1:]  # the same, but for rounding, which must not meet the smallest flows
        peak = int(np.argmax(self._masses))
        wanted = np.where(np.arange(self._count - 1) < peak, below, above)
        steps = np.divide(-wanted, self._flows, out=np.zeros_like(wanted), where=self._flows > 0)
        shares = np.concatenate([[0.0], np.cumsum(steps)])
        shares -= shares @ self._masses / self._masses.sum()
        padded = np.concatenate([[0.0], shares, [0.0]])
        left = residual.copy()
        for step in range(3):
            left -= self._from[step] * padded[self._level + step]
        return self.x * shares[self._level], left
