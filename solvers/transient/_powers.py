"""Poisson mixtures of the powers of a stochastic kernel, with the bounds of what is left out: what all uniformization shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.evolution import Evolution, rounding_floor
from ctmc.model.poisson_weights import PoissonWeights, coupled_tail, poisson_weights
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers.transient._series import MOST_TIMES, FusedSums, Sums, distance, step

_TERMS = 8
"""Products between two looks at the monitor and at the steady state."""
_SOON = 200
"""Up to here a steady state is looked for whenever terms are added, later only every fourth time."""


@dataclass(frozen=True)
class Powers:
    """The sums of `solvers.transient.uniformization`, by the products of the evolution's model.

    Attributes
    ----------
    name : str
        Of the method, for what is said about memory.
    rate_factor : float
    max_iterations : int
    """

    name: str
    rate_factor: float
    max_iterations: int

    def run(self, problem: Evolution, trace: Trace) -> Outcome:
        """Have the witness see each time; times are taken in groups, each from where the last one ended."""
        times = problem.times
        rate = self.rate_factor * problem.rate
        groups = [range(first, min(first + MOST_TIMES, len(times))) for first in range(0, len(times), MOST_TIMES)]
        share = problem.tolerance / 10 / len(groups)
        settled = max(share, rounding_floor(rate, times[-1]) / 2 / len(groups))
        fused = len(times) == 1 and problem.blocks == 1
        sums = FusedSums(problem.model.size, self.name) if fused else Sums(problem, len(groups[0]), self.name)
        powers = self._fused_powers if fused else self._powers
        y, integral = problem.start.copy(), np.zeros_like(problem.start)
        begin, error = 0.0, 0.0
        trace.finished(2.0, limit=self.max_iterations, stagnates=False)
        for group in groups:
            spans = times[group] - begin
            windows, outside = _windows(problem, rate, spans, share)
            trace.expect(windows[-1].right)
            off = powers(problem, trace, sums, rate, windows, y, settled)
            if off is None:
                return Outcome(None, trace.status, trace.history)
            error = error * problem.amplification(float(spans[-1])) + outside + off
            for place, position in enumerate(group):
                here = sums.integral[place]
                here /= rate
                here += integral
                trace.reached(position, sums.y[place], here, error)
            begin = float(times[group[-1]])
            y[:], integral[:] = sums.y[len(group) - 1], sums.integral[len(group) - 1]
        return Outcome(None, Status.CONVERGED, trace.history)

    def _powers(
        self,
        problem: Evolution,
        trace: Trace,
        sums: Any,
        rate: float,
        windows: list[PoissonWeights],
        y: np.ndarray,
        settled: float,
    ) -> float | None:
        """Add the powers of the kernel to the sums; return the error of ending early, or None where the solve is to end."""
        sums.clear()
        ring, terms = sums.ring, len(sums.ring)
        steps = windows[-1].right
        tail = windows[-1].survival
        ring[0] = y
        first = 0  # the power that stands first in the ring
        while True:
            count = min(terms, steps - first + 1)
            for k in range(1, count):
                step(problem, ring[k - 1], ring[k], 1 / rate)
            last = first + count - 1
            made = count if first else count - 1  # products
            for place, window in enumerate(windows):
                if first <= window.right:
                    sums.add(place, window.at(first, count), window.beyond(first, count))
            if last == steps:
                trace.finished(2 * windows[-1].outside, limit=self.max_iterations, iterations=made, stagnates=False)
                return 0.0
            error = 2.0
            if problem.blocks == 1 and count > 2 and (first < _SOON or first // terms % 4 == 0):
                # each bounds the error of taking the mean of the last two powers for all later ones; the second, by pairs, is
                # not fooled by a chain of period two whose powers alternate at rounding level for ever
                once, pair = sums.distance(count - 1, count - 2), sums.distance(count - 1, count - 3)
                error = min((steps - last + 1) * once, (steps - last + 1) / 2 * pair + once)
                if error <= settled:
                    ring[0] = (ring[count - 1] + ring[count - 2]) / 2
                    for place, window in enumerate(windows):
                        sums.add(place, np.array([window.rest(last)]), np.array([window.rest_beyond(last)]))
                    trace.finished(error, limit=self.max_iterations, iterations=made, stagnates=False)
                    return error
            # the mass still to come bounds the error too, but not that of the integrals: it is only news
            ahead = 2 * float(tail[last - windows[-1].left]) if last >= windows[-1].left else 2.0
            news = max(min(error, ahead), 2 * problem.tolerance)  # only a limit or the user ends the sums early
            if trace.finished(news, limit=self.max_iterations, iterations=made, stagnates=False):
                return None
            first = last + 1
            step(problem, ring[count - 1], ring[0], 1 / rate)

    def _fused_powers(
        self,
        problem: Evolution,
        trace: Trace,
        sums: Any,
        rate: float,
        windows: list[PoissonWeights],
        y: np.ndarray,
        settled: float,
    ) -> float | None:
        """Do the same for one time and one block: every second product adds the two powers that it has at hand."""
        (window,) = windows
        steps, backward, ranks = window.right, problem.backward, problem.model.ranks
        now, after, before = y[0].copy(), np.empty_like(y[0]), np.empty_like(y[0])
        k, told = 0, 0  # `now` is power k; it and all later ones are still to be added
        while True:
            chunk = min(_TERMS, steps - k)
            weights, survival = window.at(k, chunk + 1), window.beyond(k, chunk + 1)
            for done in range(0, chunk, 2):
                problem.model.recurrence(
                    now, after, factor=1 / rate, keep=1.0, backward=backward,
                    sums=sums.mixed(weights[done : done + 2], survival[done : done + 2]),
                )  # fmt: skip
                if done + 1 == chunk:  # the power after the last pair
                    now, after = after, now
                    break
                problem.model.recurrence(after, before, factor=1 / rate, keep=1.0, backward=backward)
                now, after, before = before, now, after
            sums.settle()
            k += chunk + chunk % 2  # powers added
            if k > steps:
                break
            if k == steps:
                sums.add(now, float(weights[-1]), float(survival[-1]))
                sums.settle()
                break
            error = 2.0
            # `now` is power k, `before` the one before it and `after` that before
            once, pair = distance(now, before, backward, ranks), distance(now, after, backward, ranks)
            error = min((steps - k + 2) * once, (steps - k + 2) / 2 * pair + once)
            if error <= settled:
                middle = (now + before) / 2
                sums.add(middle, window.rest(k - 1), window.rest_beyond(k - 1))
                sums.settle()
                trace.finished(error, limit=self.max_iterations, iterations=k - told, stagnates=False)
                return error
            ahead = 2 * float(window.survival[k - window.left]) if k >= window.left else 2.0
            news = max(min(error, ahead), 2 * problem.tolerance)
            if trace.finished(news, limit=self.max_iterations, iterations=k - told, stagnates=False):
                return None
            told = k
        trace.finished(2 * window.outside, limit=self.max_iterations, iterations=steps - told, stagnates=False)
        return 0.0


def _windows(problem: Evolution, rate: float, spans: np.ndarray, share: float) -> tuple[list[PoissonWeights], float]:
    """Return the weights for each span of time, and a bound on what lies outside of all of them.

    With couplings the k-th power may have the norm sum_{j < blocks} C(k, j) (growth / rate)^j.
    """
    tolerance = share
    while True:
        windows = [poisson_weights(rate * float(span), tolerance) for span in spans]
        if problem.growth == 0:
            return windows, 2 * max(window.outside for window in windows)
        outside = max(
            coupled_tail(window, rate * float(span), problem.growth * float(span), problem.blocks)
            for window, span in zip(windows, spans, strict=True)
        )
        if outside <= share or tolerance < 1e-200:
            return windows, outside
        tolerance *= 1e-3
