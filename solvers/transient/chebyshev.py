"""Chebyshev expansion of the matrix exponential: products grow like the square root of rate x time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.special import ive

from ctmc.evolution import EPSILON, Evolution
from ctmc.model.generator import Generator
from ctmc.problem import AccumulatedReward, Transient
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._options import check_between, check_count
from solvers.transient._series import MOST_TIMES, Sums, step, without_negatives

_LONGEST = 1e6
"""Largest rate x time of one step."""
_PATIENCE = 15
"""Most steps between two tries of a longer one."""
_ROUNDING = 4 * EPSILON
"""Error of a step of the recurrence relative to its terms."""


@dataclass(frozen=True, kw_only=True)
class Chebyshev:
    """Expand exp(Q t) = sum_k c_k(t) T_k(A) with A = I + Q / q, the spectrum of Q being in the disc around -q.

    With z = q t the coefficients are c_k = 2 exp(-z) I_k(z) (half of it for k = 0), so that terms beyond sqrt(2 z log(1 / tolerance))
    or so are negligible: as many products, where uniformization makes z of them.  The vectors y_k = T_k(A) p(0) come from
    y_{k+1} = 2 A y_k - y_{k-1}; the integral of p has the coefficients (1/q) integral of c_k, which all come from sums of positive
    numbers.  A is not normal, so that the y_k may grow; how much is measured.

    Error bound, proven a posteriori: cut after K terms, the expansion satisfies the differential equation up to
    q (i_{K+1} y_K - i_K y_{K+1}) with i_k = exp(-q s) I_k(q s), and an error f of a step of the recurrence adds q i_k f.  As
    exp(Q t) contracts, the error is at most F_{K+1} |y_K| + F_K |y_{K+1}| + sum_k F_k |f_k| with F_k the integral of i_k from 0 to z.
    Steps are halved where the growth of the terms makes the rounding in it too large, as on chains that go round in cycles, and
    doubled where they do not grow, as they do not once the chain is nearly steady; then, as for uniformization, the rest of the time needs no products.

    Costs one product a term and about two readings of a vector; 8 + 3 x times vectors.  The right choice for rate x time
    from ten to some hundred thousands.  Source: H. Tal-Ezer, R. Kosloff, J. Chem. Phys. 81 (1984), doi:10.1063/1.448136;
    L. Bergamaschi, M. Vianello, *Efficient computation of the exponential operator for large, sparse, symmetric matrices*, Numer.
    Linear Algebra Appl. 7 (2000); the bound follows from the recurrence of the Bessel functions.

    Parameters
    ----------
    rate_factor : float
        q over the largest exit rate; the bound holds for any, but terms grow fast where q is too small for the spectrum.
    first_step : float
        Largest rate x time of the first step.
    max_iterations : int
        Largest number of products.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Transient(chain, initial=(0,), times=[.5]), Chebyshev()).value.round(10).tolist()
    [[0.7410433867, 0.2589566133]]
    """

    solves: ClassVar = (Transient, AccumulatedReward)
    needs: ClassVar = Generator
    shared: ClassVar = True
    rate_factor: float = 1.0
    first_step: float = 1200.0
    max_iterations: int = 1_000_000

    def __post_init__(self) -> None:
        check_between("rate_factor", self.rate_factor, 0.5, 100)
        check_between("first_step", self.first_step, 0, _LONGEST)
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Evolution, trace: Trace) -> Outcome:
        """Have the witness see each time; a step serves all times inside it, up to 8 at once."""
        times, rate = problem.times, self.rate_factor * problem.rate
        end = float(times[-1])
        sums = Sums(problem, min(MOST_TIMES, len(times)) + 1, "chebyshev")
        y, integral = problem.start.copy(), np.zeros_like(problem.start)
        begin, done, longest = 0.0, 0, self.first_step
        rest, rounding = 0.0, 0.0  # so far
        calm, patience = 0, 0  # steps since one was too long, and how many are waited for before a longer one is tried
        level = (
            0.0  # backward: a constant that y + level has more than y; it stays what it is, and is kept out of the sums
        )
        budget = problem.accepted / problem.amplification(end)
        trace.finished(2.0, limit=self.max_iterations, stagnates=False)
        while done < len(times):
            if problem.backward and problem.blocks == 1:
                extremes = np.array([-y.min(initial=np.inf), y.max(initial=-np.inf)])
                middle = float(problem.model.ranks.largest(extremes) @ [-0.5, 0.5])
                y -= middle
                level += middle
            if problem.blocks == 1 and begin > 0:
                # all later distributions are within (time to come) x |y A| of this one
                ahead = (end - begin) * problem.norm(problem.change(y))
                if rest + rounding + ahead <= 0.95 * budget:
                    for position in range(done, len(times)):
                        later = integral + (times[position] - begin) * (y + level)
                        without_negatives(later, problem)
                        trace.reached(position, y + level, later, rest + rounding + ahead)
                    break
            span = min(longest / rate, end - begin)
            inside = times[done : done + MOST_TIMES]
            inside = inside[inside <= (begin + span) * (1 + 4 * EPSILON)]
            if len(inside) == MOST_TIMES or (len(inside) and done + len(inside) == len(times)):
                span = float(inside[-1]) - begin
            spans = inside - begin
            if not len(inside) or spans[-1] != span:
                spans = np.append(spans, span)
            left = self._rounding_allowed(problem.norm(y), 0.3 * budget - rounding, rate * span, rate * (end - begin))
            found = self._expand(
                problem, trace, sums, rate, spans, 0.6 * budget * (span / end if end else 1.0), left, y
            )
            if found is None:
                return Outcome(None, trace.status, trace.history)
            if found.rounding > left and span * rate > 1:
                longest = span * rate / 2
                calm, patience = 0, min(2 * patience + 1, _PATIENCE)
                continue
            calm += 1
            if (found.rounding < left / 20 or found.growth < 2) and calm > patience:
                longest = min(2 * longest, _LONGEST)
            rest, rounding = rest + found.rest, rounding + found.rounding
            error = (rest + rounding) * problem.amplification(begin + span)
            for place, position in enumerate(range(done, done + len(inside))):
                here, spent = sums.y[place], sums.integral[place]
                spent += integral
                here += level
                spent += level * (times[position] - begin)
                without_negatives(here, problem)
                without_negatives(spent, problem)
                trace.reached(position, here, spent, error)
            done += len(inside)
            begin += span
            if len(spans) > len(inside):  # no time ends the step
                y[:] = sums.y[len(spans) - 1]
                without_negatives(y, problem)
                integral += sums.integral[len(spans) - 1]
                integral += level * span
            else:
                y[:], integral[:] = here - level, spent
        return Outcome(None, Status.CONVERGED, trace.history)

    def _rounding_allowed(self, norm: float, left: float, z: float, ahead: float) -> float:
        """Return what a step may add by rounding, where `left` is for all to come, of rate x time `ahead`.

        As much as leaves enough for steps whose terms do not grow, or a quarter, as the chain may soon be steady; but not less than
        a step without growth needs, since shorter ones need as much together.
        """
        least = _ROUNDING / 2 * norm
        return max(
            left - 1.2 * least * (ahead - z), left * max(z / ahead if ahead else 1.0, 0.25), least * (1.2 * z + 2)
        )

    def _expand(
        self,
        problem: Evolution,
        trace: Trace,
        sums: Sums,
        rate: float,
        spans: np.ndarray,
        allowed: float,
        left: float,
        y: np.ndarray,
    ) -> _Errors | None:
        """Sum the expansion for all spans, of which the last is the longest; None where the solve is to end.

        It ends where the terms left out are within what is allowed, or rounding is above what is left for it.
        """
        values, integrals = coefficients(rate * spans)
        longest = integrals[-1]  # F_k for the longest span
        sums.clear()
        ring, norms = sums.ring, np.empty(0)
        factors = np.where(np.arange(len(longest)) == 0, 1.0, 2.0)
        ring[0] = y
        last, begin, end = 0, 0, 1  # the last term made; terms that are not added yet stand in ring[begin:end]
        goal = max(int(np.argmax(longest <= allowed)), 1)  # the bound needs two terms
        while True:
            while end < len(ring) and last < goal:
                last, end = last + 1, end + 1
                _next(problem, rate, ring, last, end - 1)
            norms = np.append(norms, sums.norms(begin, end))
            terms = slice(last + 1 - (end - begin), last + 1)
            for place in range(len(spans)):
                weights = factors[terms] * values[place, terms], factors[terms] / rate * integrals[place, terms]
                sums.add(place, *weights, begin)
            rest = float(longest[last] * norms[-2] + longest[last - 1] * norms[-1])
            rounding = _ROUNDING * float(longest[: last + 1] @ norms)
            enough = rest <= allowed or rounding > left
            news = rest if enough else max(rest, 2 * problem.tolerance)
            made = end - begin - (last < end)  # the first term is no product
            if trace.finished(news, limit=self.max_iterations, iterations=made, stagnates=False) and not enough:
                return None
            if enough:
                return _Errors(
                    rest, rounding, rounding / (_ROUNDING * float(longest[: last + 1].sum()) * norms[0] or 1.0)
                )
            # where the terms to come are like the last one
            goal = max(int(np.argmax(2 * longest * norms[-1] <= allowed)), last + 1)
            if goal + 2 >= len(longest):
                return _Errors(rest, math.inf, math.inf)
            begin = end % len(ring)
            last, end = last + 1, begin + 1
            _next(problem, rate, ring, last, begin)


def _next(problem: Evolution, rate: float, ring: np.ndarray, k: int, slot: int) -> None:
    """Make term k from the two in the slots before."""
    if k == 1:
        step(problem, ring[slot - 1], ring[slot], 1 / rate)
    else:
        step(problem, ring[slot - 1], ring[slot], 2 / rate, 2.0, ring[slot - 2], -1.0)


class _Errors(NamedTuple):
    """What one step adds to the error: the terms left out, and rounding in the others; and by what factor these have grown."""

    rest: float
    rounding: float
    growth: float


def coefficients(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return exp(-z) I_k(z) and its integrals from 0 to z, for k = 0, 1, .. as far as they matter; shape (len(z), terms).

    The integrals F_k satisfy F_{k-1} - 2 F_k + F_{k+1} = 2 exp(-z) I_k(z) for k > 0, so F_k = 2 sum_{j > k} (j - k) exp(-z) I_j(z): two sums
    of positive numbers from the far end.

    Examples
    --------
    >>> values, integrals = coefficients(np.array([2.0]))
    >>> (values[0, 0] + 2 * values[0, 1:].sum()).round(14), integrals[0, 0].round(9)
    (np.float64(1.0), np.float64(1.047555224))
    """
    largest = float(z.max())
    count = int(math.sqrt(160 * largest)) + 80
    values = ive(np.arange(count), z[:, None])
    beyond = np.cumsum(values[:, ::-1], axis=1)[:, ::-1] - values
    return values, 2 * np.cumsum(beyond[:, ::-1], axis=1)[:, ::-1]
