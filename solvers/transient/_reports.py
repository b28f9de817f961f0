"""What methods that go from time to time in steps share: how much error a step may make, and how answers are handed on."""

from __future__ import annotations

import numpy as np

from ctmc.evolution import Evolution, rounding_floor
from ctmc.trace import Trace
from solvers.transient._series import without_negatives

_SHARE = 1 / 32
"""Of the error that is left, what one step may always take: steps of different lengths make errors of the same size."""


class Allowance:
    """The error that steps may make: a quarter of the tolerance in all, and three of the rounding floor in proportion to time.

    Parameters
    ----------
    evolution : Evolution

    Attributes
    ----------
    left : float
        Of the quarter of the tolerance.
    floor : float
        Three quarters of the rounding floor of the last time, per unit of time.

    Examples
    --------
    >>> from ctmc.model.generator import Generator
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> allowance = Allowance(Evolution(chain, np.array([10.0]), 1e-10, np.array([[1.0, 0.0]])))
    >>> round(allowance.of(0.5, 10.0) * 1e12, 2), round(allowance.of(10.0, 10.0) * 1e12, 2)
    (1.25, 25.03)
    """

    def __init__(self, evolution: Evolution) -> None:
        end = float(evolution.times[-1])
        # what is made now may grow until the last time
        shrink = 1 / evolution.amplification(end)
        self.left = evolution.tolerance / 4 * shrink
        floor = rounding_floor(evolution.model.uniformization_rate, end)
        self.floor = floor * 0.75 * shrink / end if end else 0.0

    def of(self, span: float, remaining: float) -> float:
        """Return the error that a step over `span` may make, where `remaining` is what lies ahead."""
        return self.left * max(_SHARE, min(span / remaining, 1.0)) + self.floor * span

    def take(self, error: float, span: float) -> None:
        """Note the error that a step over `span` has made."""
        self.left = max(self.left - max(error - self.floor * span, 0.0), 0.0)


def accumulate(total: np.ndarray, lost: np.ndarray, more: np.ndarray) -> None:
    """Add `more` to a sum, compensated: equal amounts, added to a sum that grows, are rounded the same way again and again.

    Examples
    --------
    >>> total, lost = np.ones(1), np.zeros(1)
    >>> for _ in range(1000):
    ...     accumulate(total, lost, np.array([1e-16]))
    >>> round(float(total[0] - 1) * 1e13, 3)
    0.999
    """
    more = more - lost
    summed = total + more
    np.subtract(summed, total, out=lost)
    lost -= more
    total[:] = summed


def report(
    trace: Trace, evolution: Evolution, position: int, y: np.ndarray, integral: np.ndarray, error: float
) -> None:
    """Hand on y and its integral, which are changed: probabilities below 0, which are errors that are within the bound, become 0.

    The error is that of an equation without couplings, a sum of residuals; with couplings it may be amplified.
    """
    without_negatives(y, evolution)
    without_negatives(integral, evolution)
    time = float(evolution.times[position])
    trace.reached(position, y, integral, error * evolution.amplification(time))


def stay(
    trace: Trace,
    evolution: Evolution,
    position: int,
    begin: float,
    y: np.ndarray,
    integral: np.ndarray,
    error: float,
    speed: float,
) -> None:
    """Answer for all times from `position` on as if nothing changed any more.

    The norm of y A never grows where there are no couplings, so y(t) stays within (t - begin) times its `speed` ||y A||.
    """
    for place in range(position, len(evolution.times)):
        ahead = float(evolution.times[place]) - begin
        report(trace, evolution, place, y.copy(), integral + ahead * y, error + ahead * speed)
