"""Poisson probabilities for uniformization, computed in log space."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import pdtr, pdtrc


@dataclass(frozen=True, eq=False)
class PoissonWeights:
    """Probabilities P{N = k} for k = left, left + 1, .., of a Poisson variable N, scaled to sum to 1.

    Attributes
    ----------
    left : int
        First k.
    weights : ndarray, shape (m,)
    outside : float
        Proven bound on the probability that N is not among these k, nor among them but for the last.
    """

    left: int
    weights: np.ndarray
    outside: float

    @property
    def right(self) -> int:
        """Last k."""
        return self.left + len(self.weights) - 1

    @cached_property
    def survival(self) -> np.ndarray:
        """P{N >= k + 1} for k = left, .., right, shape (m,), from the scaled weights."""
        return np.concatenate([np.cumsum(self.weights[:0:-1])[::-1], [0.0]])

    def at(self, first: int, count: int) -> np.ndarray:
        """Return the weights of k = first, .., first + count - 1, 0 outside; shape (count,)."""
        return self._part(self.weights, first, count, 0.0)

    def beyond(self, first: int, count: int) -> np.ndarray:
        """Return P{N >= k + 1} for k = first, .., first + count - 1; shape (count,)."""
        return self._part(self.survival, first, count, 1.0)

    def _part(self, values: np.ndarray, first: int, count: int, before: float) -> np.ndarray:
        found = np.zeros(count)
        places = np.arange(first, first + count) - self.left
        inside = (places >= 0) & (places < len(values))
        found[inside] = values[places[inside]]
        found[places < 0] = before
        return found

    def rest(self, k: int) -> float:
        """Return the sum of the weights after k."""
        return float(self.weights[max(k + 1 - self.left, 0) :].sum())

    def rest_beyond(self, k: int) -> float:
        """Return the sum of P{N >= j + 1} over j > k."""
        return max(self.left - k - 1, 0) + float(self.survival[max(k + 1 - self.left, 0) :].sum())


def poisson_weights(mean: float, tolerance: float) -> PoissonWeights:
    """Return the Poisson weights whose total tail probability is at most the tolerance, and one more.

    The logarithms of the ratios to the largest weight are summed outwards from the mode, so nothing under- or overflows at
    any mean, and the scaling by the sum makes the accuracy of the largest weight irrelevant.  Outside the window the weights
    fall faster than a geometric series, which bounds the tails.

    Parameters
    ----------
    mean : float
        Rate x time, >= 0.
    tolerance : float
        Of the tails, in (0, 1).

    Examples
    --------
    >>> found = poisson_weights(4.0, 1e-12)
    >>> found.left, found.right, round(float(found.weights[4]), 12)
    (0, 26, 0.195366814813)
    """
    if mean == 0:
        return PoissonWeights(0, np.ones(1), 0.0)
    mode = int(mean)
    # For any mean, 2 exp(-x^2 / (2 mean + 2 x / 3)) bounds the tails beyond mean -+ x (Bernstein).
    depth = np.log(4) - np.log(tolerance)
    reach = int(np.ceil(depth / 3 + np.sqrt(depth**2 / 9 + 2 * mean * depth))) + 2
    down = np.arange(mode, max(mode - reach, 0), -1, dtype=np.float64)  # w_{k-1} / w_k = k / mean
    up = np.arange(mode + 1, mode + reach + 1, dtype=np.float64)  # w_k / w_{k-1} = mean / k
    below = np.cumsum(np.log1p((down - mean) / mean))[::-1]
    above = np.cumsum(-np.log1p((up - mean) / mean))
    weights = np.exp(np.concatenate([below, [0.0], above]))
    weights /= weights.sum()
    left = mode - len(down)
    # Cut where the geometric bounds of both tails stay below half the tolerance each.
    k = left + np.arange(len(weights), dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        above_tail = np.where(k + 1 > mean, weights * (mean / (k + 1)) / (1 - mean / (k + 2)), np.inf)
        below_tail = np.where(k < mean, weights * (k / mean) / (1 - (k - 1) / mean), np.inf)
    last = int(np.argmax(above_tail <= tolerance / 2)) if (above_tail <= tolerance / 2).any() else len(weights) - 1
    low_enough = np.flatnonzero(below_tail <= tolerance / 2)
    first = int(low_enough[-1]) if low_enough.size else 0
    outside = float(above_tail[last] + (below_tail[first] if left + first > 0 else 0.0))
    chosen = weights[first : last + 2]  # one more: E[N; N > k] = mean x P{N >= k} is small then, too
    return PoissonWeights(left + first, chosen / chosen.sum(), outside)


def coupled_tail(window: PoissonWeights, mean: float, growth: float, blocks: int) -> float:
    """Return a bound on sum_k |w_k - P{N = k}| c_k with c_k = sum_{j < blocks} C(k, j) (growth / mean)^j, N having this mean.

    sum_k C(k, j) P{N = k} over k > r is mean^j / j! P{N > r - j}.  The same bounds the sums of P{N >= k + 1}, relative to the mean.

    Examples
    --------
    >>> round(coupled_tail(poisson_weights(4.0, 1e-3), 4.0, 0.0, 1), 5)
    0.00082
    """
    if mean == 0:
        return 0.0
    total = 0.0
    for j in range(blocks):
        above = float(pdtrc(window.right - 1 - j, mean)) if window.right > j else 1.0
        below = float(pdtr(window.left - 1, mean)) if window.left else 0.0
        # those inside are scaled up by what is outside
        total += growth**j / math.factorial(j) * (2 * above + below + window.outside)
    return total
