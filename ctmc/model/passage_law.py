"""The distribution of a passage time from the powers of a uniformized chain, made once and kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.parameters import real_numbers
from ctmc.model.poisson_weights import poisson_weights
from ctmc.model.quantile import quantile_between
from ctmc.model.stopped import Fates

_NEGLIGIBLE = 1e-40
_MOST_STEPS = 20_000_000
_FACTOR = 1.02
_NEVER_AGAIN = 1e-14


class PassageLaw:
    """P{T <= t} = sum_k P{N(t) = k} P{reached after k steps}, N(t) Poisson; likewise what is left, and the density.

    Parameters
    ----------
    chain : Generator
        Stopped in the target and where the target cannot be reached any more.
    begin : ndarray, shape (n,)
    found : Fates

    Examples
    --------
    >>> from ctmc.model.stopped import fates
    >>> chain = Generator.from_matrix([[0, 1.0], [0, 0]])
    >>> law = PassageLaw(chain, np.array([1.0, 0]), fates(chain, np.array([False, True])))
    >>> round(law.quantile(0.5, 1.0), 12) == round(math.log(2), 12)
    True
    """

    def __init__(self, chain: Generator, begin: np.ndarray, found: Fates) -> None:
        self._chain = chain
        live = found.certain | found.possible
        self._live = live.astype(np.float64)
        self._into = np.where(live, chain.backward(found.target.astype(np.float64)), 0.0)
        self._rate = _FACTOR * chain.uniformization_rate
        self._power = begin.copy()
        self._gone = self._left = self._flow = np.empty(0)
        self.atom = float(begin[found.target].sum())

    def _steps(self, count: int) -> None:
        """Make sure that at least so many steps are known."""
        if count > _MOST_STEPS:
            raise ModelError(
                f"the time takes {count:,} steps of the uniformized chain; allowed are {_MOST_STEPS:,}, which is a time of "
                f"{_MOST_STEPS / self._rate:.3g}."
            )
        have = len(self._left)
        if have >= count:
            return
        more = max(count, 2 * have, 64)
        left, flow = np.empty(more), np.empty(more)
        left[:have], flow[:have] = self._left, self._flow
        after = np.empty_like(self._power)
        for k in range(have, more):
            power = self._power
            left[k], flow[k] = power @ self._live, power @ self._into
            self._chain.recurrence(power, after, factor=1 / self._rate, keep=1.0)
            self._power, after = after, power
        self._left, self._flow = left, flow
        self._gone = np.concatenate([[0.0], np.cumsum(flow[:-1])]) / self._rate

    def at(self, time: float) -> tuple[float, float, float]:
        """Return the probabilities that the target was entered in (0, t], that it still may be entered later, and the density."""
        if self._rate * time > _MOST_STEPS:
            self._steps(int(min(self._rate * time, 1e18)))
        window = poisson_weights(self._rate * time, _NEGLIGIBLE)
        self._steps(window.right + 1)
        chosen = slice(window.left, window.right + 1)
        return (
            float(window.weights @ self._gone[chosen]),
            float(window.weights @ self._left[chosen]),
            float(window.weights @ self._flow[chosen]),
        )

    def density(self, times: Any) -> Any:
        """Return the density at times, in their shape; 0 for t < 0."""
        given = real_numbers("times", times, "numbers")
        if np.isnan(given).any():
            raise ModelError("times has the value nan; allowed are numbers.")
        flat = [0.0 if time < 0 or time == math.inf else self.at(float(time))[2] for time in given.ravel()]
        found = np.array(flat).reshape(given.shape)
        return float(found) if found.ndim == 0 else found

    def quantile(self, p: Any, reach: float) -> Any:
        """Return the least t with P{T <= t} >= p, in the shape of p; infinite above the probability to reach the target."""
        given = real_numbers("p", p, "numbers from 0 to 1")
        bad = ~((given >= 0) & (given <= 1))
        if bad.any():
            raise ModelError(f"p is {float(given[bad].flat[0])!r}; allowed are numbers from 0 to 1.")
        found = np.array([self._quantile(float(level), reach) for level in given.ravel()]).reshape(given.shape)
        return float(found) if found.ndim == 0 else found

    def _quantile(self, level: float, reach: float) -> float:
        if level <= self.atom:
            return 0.0
        if level >= 1 or level > reach:
            return math.inf
        low, high = 0.0, 1 / self._rate
        while self.atom + self.at(high)[0] < level:
            if self.at(high)[1] <= _NEVER_AGAIN * level:
                return high if level <= reach else math.inf
            low, high = high, 2 * high

        def at(time: float) -> tuple[float, float, float]:
            gone, left, slope = self.at(time)
            return gone + self.atom, left, slope

        # what the target misses in the end counts neither as gone nor as left: else levels above a half are found from the tail
        return quantile_between(at, level, low, high, from_below=reach < 1)
