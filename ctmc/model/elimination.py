"""Elimination without a subtraction: stationary vectors (Grassmann, Taksar, Heyman) and linear systems of chains.

Source: W. K. Grassmann, M. I. Taksar, D. P. Heyman, *Regenerative analysis and steady state distributions for Markov
chains*, Operations Research 33 (1985), doi:10.1287/opre.33.5.1107.  Every operation adds, multiplies or divides
non-negative numbers, so each probability has full relative accuracy, however small it is and however badly the chain is
conditioned (C. O'Cinneide, Numerische Mathematik 65 (1993), doi:10.1007/BF01385743).
"""

from __future__ import annotations

import numpy as np

from ctmc.errors import ModelError

_PANEL = 64
_LARGE, _STEEP = 1e200, 1e100


def gth(rates: np.ndarray) -> np.ndarray:
    """Return the stationary distribution of an irreducible chain given by a dense matrix.

    The states are eliminated from the last to the first, in panels: inside a panel one by one, and the rest of the matrix
    is updated by one matrix product per panel.  Costs 2/3 n^3 multiplications and 8 n^2 bytes for a copy.

    Parameters
    ----------
    rates : ndarray, shape (n, n)
        Rates from i to j; the diagonal is ignored.

    Returns
    -------
    ndarray, shape (n,)
        Positive, sum 1.

    Raises
    ------
    ModelError
        If a state cannot leave towards those before it: the chain is not irreducible.

    Examples
    --------
    >>> gth(np.array([[0, 1.0, 0], [2.0, 0, 1.0], [0, 2.0, 0]])).round(12).tolist()
    [0.571428571429, 0.285714285714, 0.142857142857]
    """
    work = np.array(rates, dtype=np.float64)
    n = len(work)
    np.fill_diagonal(work, 0.0)
    high = n
    while high > 1:
        low = max(1, high - _PANEL)
        for k in range(high - 1, low - 1, -1):
            total = work[k, :k].sum()
            if not total > 0:
                raise ModelError(f"state {k} cannot reach the states before it: the chain is not irreducible.")
            work[:k, k] /= total
            # only the panel's own rows and columns are brought up to date now; the rest waits for the product below
            work[low:k, :k] += np.outer(work[low:k, k], work[k, :k])
            work[:low, low:k] += np.outer(work[:low, k], work[k, low:k])
        work[:low, :low] += work[:low, low:high] @ work[low:high, :low]
        high = low
    pi = np.zeros(n)
    pi[0] = 1.0
    for k in range(1, n):
        steepest = work[:k, k].max()
        if steepest > _STEEP:  # so that the product does not overflow
            pi[:k] /= steepest
        pi[k] = pi[:k] @ work[:k, k]
        if pi[k] > _LARGE:  # likelier by far than all before it, which may fall to zero
            pi[: k + 1] /= _LARGE
    pi /= pi.sum()
    return pi
