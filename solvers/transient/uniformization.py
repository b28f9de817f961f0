"""Uniformization: Poisson mixtures of the powers of a stochastic kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.certificate import rounding_floor
from ctmc.evolution import Evolution
from ctmc.model.generator import Generator
from ctmc.model.poisson_weights import PoissonWeights, poisson_weights, shifted_tail
from ctmc.problem import AccumulatedReward, Transient
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._options import check_between, check_count
from solvers.transient._series import MOST_TIMES, Sums, step


@dataclass(frozen=True, kw_only=True)
class Uniformization:
    """Sum p(t) = sum_k P{N(t) = k} p(0) P^k with P = I + Q / q and N(t) Poisson with mean q t.

    The integrals of p come from the same powers: L(t) = (1/q) sum_k P{N(t) >= k + 1} p(0) P^k.  The weights are computed in
    log space; their tails are bounded before the first product by a tenth of the tolerance, in L1.  Since P contracts, all
    later powers stay within (steps to come) x ||p P^{k+1} - p P^k||_1 of the current one: once that is below another tenth
    of the tolerance (or half the rounding floor) the rest of the sum needs no products: steady-state detection, with this
    bound added to the reported one.  Backward, for every initial state, all of this holds in the largest norm.  With moments
    the kernel grows by couplings of known size, which enter the tails; there is no steady state then.

    Costs about q t + 8 sqrt(q t) products, fewer once the chain is steady; 8 + 3 x times vectors, up to 8 times being made at
    once.  The right choice up to q t of some thousands, and the yardstick beyond; for stiff chains on long horizons its cost
    grows with q t.  Source: A. Jensen, *Markoff chains as an aid in the study of Markoff processes*, Skand. Aktuarietidskr. 36
    (1953); B. L. Fox and P. W. Glynn, *Computing Poisson probabilities*, CACM 31 (1988), doi:10.1145/42404.42409.

    Parameters
    ----------
    rate_factor : float
        q over the largest exit rate; above 1, so that no chain is periodic and the steady state is seen.
    max_iterations : int
        Largest number of products.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Transient(chain, initial=(0,), times=[.5]), Uniformization()).value.round(12).tolist()
    [[0.741043386716, 0.258956613284]]
    >>> spent = AccumulatedReward(chain, reward="state", initial=(0,), times=[.5], moments=2)
    >>> solve(spent, Uniformization()).value.round(10).ravel().tolist()
    [0.0803477956, 0.0237970607]
    """

    solves: ClassVar = (Transient, AccumulatedReward)
    needs: ClassVar = Generator
    rate_factor: float = 1.02
    max_iterations: int = 100_000_000

    def __post_init__(self) -> None:
        check_between("rate_factor", self.rate_factor, 1, 100)
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Evolution, trace: Trace) -> Outcome:
        """Have the witness see each time; times are taken in groups, each from where the last one ended."""
        times = problem.times
        rate = self.rate_factor * problem.rate
        groups = [range(first, min(first + MOST_TIMES, len(times))) for first in range(0, len(times), MOST_TIMES)]
        share = problem.tolerance / 10 / len(groups)
        settled = max(share, rounding_floor(rate, times[-1]) / 2 / len(groups))
        sums = Sums(problem, len(groups[0]), "uniformization")
        y, integral = problem.start.copy(), np.zeros_like(problem.start)
        begin, error = 0.0, 0.0
        trace.finished(2.0, limit=self.max_iterations, stagnates=False)
        for group in groups:
            spans = times[group] - begin
            windows, outside = _windows(problem, rate, spans, share)
            off = self._powers(problem, trace, sums, rate, windows, y, settled)
            if off is None:
                return Outcome(None, trace.status, trace.history)
            error = error * float(np.exp(problem.growth * spans[-1])) + outside + off
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
        sums: Sums,
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
            for place, window in enumerate(windows):
                if first <= window.right:
                    sums.add(place, window.at(first, count), window.beyond(first, count))
            if last == steps:
                self._tell(trace, problem, 2 * windows[-1].outside, count)
                return 0.0
            error = 2.0
            if problem.blocks == 1 and count > 2:
                # each bounds the error of taking the mean of the last two powers for all later ones; the second, by pairs, is
                # not fooled by a chain of period two whose powers alternate at rounding level for ever
                once, pair = sums.distance(count - 1, count - 2), sums.distance(count - 1, count - 3)
                error = min((steps - last + 1) * once, (steps - last + 1) / 2 * pair + once)
                if error <= settled:
                    ring[0] = (ring[count - 1] + ring[count - 2]) / 2
                    for place, window in enumerate(windows):
                        sums.add(place, np.array([window.rest(last)]), np.array([window.rest_beyond(last)]))
                    self._tell(trace, problem, error, count)
                    return error
            # the mass still to come bounds the error too, but not that of the integrals: it is only news
            ahead = 2 * float(tail[last - windows[-1].left]) if last >= windows[-1].left else 2.0
            if self._tell(trace, problem, min(error, ahead), count):
                return None
            first = last + 1
            step(problem, ring[count - 1], ring[0], 1 / rate)

    def _tell(self, trace: Trace, problem: Evolution, error: float, count: int) -> bool:
        """Tell the trace; only a limit or the user ends the sums early."""
        above = max(error, 2 * problem.tolerance)
        return trace.finished(above, limit=self.max_iterations, iterations=count, stagnates=False)


def _windows(problem: Evolution, rate: float, spans: np.ndarray, share: float) -> tuple[list[PoissonWeights], float]:
    """Return the weights for each span of time, and a bound on what lies outside of all of them.

    With couplings the k-th power may have the norm (1 + growth / rate)^k, which makes of a Poisson tail with mean q t one with
    mean (q + growth) t, exp(growth t) times as large.
    """
    tolerance = share
    while True:
        windows = [poisson_weights(rate * float(span), tolerance) for span in spans]
        outside = max(
            _outside(window, rate * float(span), problem.growth * float(span))
            for window, span in zip(windows, spans, strict=True)
        )
        if outside <= share or tolerance < 1e-300:
            return windows, outside
        tolerance *= max(min(share / outside / 2, 1e-3 if problem.growth else 0.5), 1e-6)


def _outside(window: PoissonWeights, mean: float, growth: float) -> float:
    """Return a bound on the error of y, and on that of its integral relative to time, by what is outside of a window.

    An error e of the weights in all is one of up to e in each P{N > k}, and up to the last k the integral has the sum of these
    over the rate: for few events that is more than e x time.  Beyond, P{N > k} falls geometrically.
    """
    if mean == 0:
        return 0.0
    error = shifted_tail(window, mean, growth) if growth else 2 * window.outside
    ratio = (mean + growth) / (window.right + 2)
    beyond = 1 / (1 - ratio) if ratio < 1 else np.inf
    return float(error * max(1.0, (window.right + 1 + beyond) / mean))
