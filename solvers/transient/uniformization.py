"""Uniformization: Poisson mixtures of the powers of a stochastic kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg.blas import daxpy

from ctmc.certificate import rounding_floor
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.poisson_weights import PoissonWeights, poisson_weights
from ctmc.problem import Transient
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._kernels import step_and_sum
from solvers._options import check_between, check_count

_STRIDE = 8
"""Products between two looks at the monitor and at steady-state detection."""


@dataclass(frozen=True, kw_only=True)
class Uniformization:
    """Sum p(t) = sum_k P{N(t) = k} p(0) P^k with P = I + Q / q and N(t) Poisson with mean q t, for all times in one pass.

    The integrals of p come from the same powers: L(t) = (1/q) sum_k P{N(t) >= k + 1} p(0) P^k.  The weights are computed in
    log space; their tails are bounded before the first product by a tenth of the tolerance, in L1.  Since P contracts, all
    later powers stay within (steps to come) x ||p P^{k+1} - p P^k||_1 of the current one: once that is below another tenth
    of the tolerance (or half the rounding floor) the rest of the sum needs no products: steady-state detection, with this
    bound added to the reported one.

    Costs about q t + 8 sqrt(q t) products, fewer once the chain is steady; 2 x times + 6 vectors of length n.  The right
    choice up to q t of some ten thousands; for stiff chains on long horizons its cost grows with q t.  Source: A. Jensen,
    *Markoff chains as an aid in the study of Markoff processes*, Skand. Aktuarietidskr. 36 (1953); B. L. Fox and P. W. Glynn,
    *Computing Poisson probabilities*, CACM 31 (1988), doi:10.1145/42404.42409.

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
    """

    solves: ClassVar = (Transient,)
    needs: ClassVar = Generator
    rate_factor: float = 1.02
    max_iterations: int = 100_000_000

    def __post_init__(self) -> None:
        check_between("rate_factor", self.rate_factor, 1, 100)
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Transient, trace: Trace) -> Outcome:
        """Return the distributions, their integrals and the a-priori bound."""
        chain, times = problem.model, problem.times
        n = chain.size
        require_memory("uniformization", 8 * n * (2 * len(times) + 6), states=n)
        rate = self.rate_factor * chain.uniformization_rate
        share = problem.tolerance / 10
        settled = max(share, rounding_floor(rate, times[-1]) / 2)
        windows = [poisson_weights(rate * time, share) for time in times]
        steps = windows[-1].right
        value, integrals = np.zeros((len(times), n)), np.zeros((len(times), n))
        power = problem.initial.dense(n)
        total, lost = (
            np.zeros(n),
            np.zeros(n),
        )  # sum of the powers before the current one, and what rounding took from it
        change, previous = np.empty(n), np.zeros(n)
        tail = windows[-1].survival
        k, error = 0, 2.0
        while True:
            for row, window in enumerate(windows):
                _add(window, k, power, total, value[row], integrals[row])
            if k == steps:
                error = 2 * windows[-1].outside
                break
            chain.forward(power, out=change)
            if k % _STRIDE == 0:
                # each bounds the L1 error of taking the mean of this power and the next for all later ones; the second, by
                # pairs, is not fooled by a chain of period two whose powers alternate at rounding level for ever
                once = float(np.abs(change).sum()) / rate
                pair = float(np.abs(change + previous).sum()) / rate
                error = min((steps - k) * once, (steps - k) / 2 * pair + once)
                if error <= settled:
                    break
                # the mass still to come bounds the error too, but not that of the integrals: it is only news
                ahead = 2 * float(tail[k - windows[-1].left]) if k >= windows[-1].left else 2.0
                error = min(error, ahead)
                if trace.finished(
                    max(error, 2 * problem.tolerance), limit=self.max_iterations, iterations=_STRIDE, stagnates=False
                ):
                    return Outcome(value, trace.status, trace.history, integrals=integrals)
            if k % _STRIDE == _STRIDE - 1:
                previous[:] = change
            step_and_sum(power, change, 1 / rate, total, lost)
            k += 1
        if k < steps:
            power += change / (2 * rate)
        for row, window in enumerate(windows):
            if k < window.right:
                _add_rest(window, k, power, total, value[row], integrals[row])
        integrals /= rate
        trace.finished(error, limit=self.max_iterations, iterations=k - trace.iteration, stagnates=False)
        bound = 2 * max(window.outside for window in windows) + error
        return Outcome(value, Status.CONVERGED, trace.history, integrals=integrals, error_bound=bound)


def _add(
    window: PoissonWeights, k: int, power: np.ndarray, total: np.ndarray, p: np.ndarray, integral: np.ndarray
) -> None:
    """Add the k-th power to the distribution and to (rate times) the integral at one time.

    Inside the window `integral` gathers what the sum of all powers has too much, P{N <= k} each; at its end it becomes the
    difference.  So long sums are made once, with compensation, for all times.
    """
    place = k - window.left
    if 0 <= place < len(window.weights):
        daxpy(power, p, a=window.weights[place])
        daxpy(power, integral, a=1 - window.survival[place])
    if k == window.right:
        np.subtract(total + power, integral, out=integral)


def _add_rest(
    window: PoissonWeights, k: int, power: np.ndarray, total: np.ndarray, p: np.ndarray, integral: np.ndarray
) -> None:
    """Add all later powers, taken equal to the k-th one."""
    later = max(k - window.left + 1, 0)
    before = max(window.left - k - 1, 0)  # powers after this one and before the window count in full
    daxpy(power, p, a=float(window.weights[later:].sum()))
    np.subtract(total, integral, out=integral)
    daxpy(power, integral, a=1 + before + float(window.survival[later:].sum()))
