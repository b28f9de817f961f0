"""Quantiles of a random time from its distribution function, survival function and density."""

from __future__ import annotations

import math
from collections.abc import Callable


def quantile_between(
    at: Callable[[float], tuple[float, float, float]],
    level: float,
    low: float,
    high: float,
    *,
    from_below: bool = False,
) -> float:
    """Return the least t in [low, high] with P{T <= t} >= level.

    Newton's method on the logarithm of the smaller one of P{T <= t} and P{T > t}, with a bisection wherever a step would leave
    the bracket.

    Parameters
    ----------
    at : callable
        Returns P{T <= t}, P{T > t} and the density at a time.
    level : float
    low, high : float
        P{T <= t} is below the level at `low`, and at least the level at `high`.
    from_below : bool
        Whether P{T <= t} alone is looked at, as where the other two do not sum to 1.

    Examples
    --------
    >>> exponential = lambda time: (-math.expm1(-time), math.exp(-time), math.exp(-time))
    >>> round(quantile_between(exponential, 0.75, 0.0, 2.0), 12) == round(math.log(4), 12)
    True
    """
    time = (low + high) / 2
    for _ in range(200):
        gone, left, slope = at(time)
        if gone < 0.5 or from_below:
            above, distance = gone >= level, gone * math.log(gone / level) if gone > 0 else math.inf
        else:
            above, distance = left <= 1 - level, left * math.log((1 - level) / left) if left > 0 else math.inf
        low, high = (low, time) if above else (time, high)
        new = time - distance / slope if slope > 0 else math.inf
        if not low < new < high:
            new = (low + high) / 2
        if abs(new - time) <= 2e-16 * time or new in (low, high):
            return float(new)
        time = new
    return float(time)
