"""Uniformization at the rate of the states that can have been reached."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ctmc.evolution import Evolution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import AccumulatedReward, Transient
from ctmc.registry import solver_with
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._options import check_between, check_count
from solvers.transient._active import ActiveStates, Successors, add_weighted, birth_weights, jump, poisson_steps
from solvers.transient._reports import report
from solvers.transient._series import MOST_TIMES

_NEWS = 10
"""Jumps between two looks at the limits."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveUniformization:
    """Sum p(t) = sum_k P{B(t) = k} p_k with p_{k+1} = p_k + p_k Q / q_k, where q_k is the largest exit rate within k jumps.

    The states within k jumps of the start are active at the k-th step: only they are multiplied, and only they say how fast
    the clock B must run.  B is a birth process with the rates q_k, whose probabilities come from its own uniformization, in
    sums without a subtraction of what is alike; the integral of p is sum_k P{B(t) > k} p_k / q_k.  What B and the Poisson
    weights leave out is bounded before the first product, in L1, and is the reported bound.  Between groups of eight times
    the least probabilities, up to a small part of the tolerance, are dropped, and are added to the bound.

    Takes fewer products than uniformization, over fewer states, where the fast states are far away: rates that grow with
    the level (infinite servers, populations, epidemics), a large space seen from one state for a short time.  It costs one
    more copy of the transitions, by source, and three vectors for each of eight times over the active states; products are
    on one thread. Where most of the work would be on the whole chain all the same, and for expectations from every initial
    state and several moments, it is `uniformization` itself that runs, from where that is so. Source: A. P. A. van Moorsel
    and W. H. Sanders, *Adaptive uniformization*, Stochastic Models 10 (1994), doi:10.1080/15326349408807313.

    Parameters
    ----------
    rate_factor : float
        q_k over the largest exit rate of active states.
    largest_share : float
        Largest work, relative to that of uniformization, at which active states are kept apart.
    max_iterations : int
        Largest number of products.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Transient(chain, initial=(0,), times=[.5]), AdaptiveUniformization()).value.round(12).tolist()
    [[0.741043386716, 0.258956613284]]
    """

    solves: ClassVar = (Transient, AccumulatedReward)
    needs: ClassVar = Generator
    rate_factor: float = 1.02
    largest_share: float = 0.8
    max_iterations: int = 100_000_000

    def __post_init__(self) -> None:
        check_between("rate_factor", self.rate_factor, 1, 100)
        check_between("largest_share", self.largest_share, 0, 1e6)
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Evolution, trace: Trace) -> Outcome:
        """Have the witness see each time; times are taken in groups, each from where the last one ended."""
        if problem.backward or problem.blocks > 1:
            return self._plain(problem, trace, 0, 0.0, problem.start, np.zeros_like(problem.start), 0.0)
        if trace.finished(max(2.0, 2 * problem.tolerance), limit=self.max_iterations, stagnates=False):
            return Outcome(None, trace.status, trace.history)
        times, size = problem.times, problem.model.size
        require_memory("adaptive_uniformization", 8 * size * 8 + 24 * problem.model.entries, states=size)
        successors = Successors.of(problem.model)
        groups = [range(first, min(first + MOST_TIMES, len(times))) for first in range(0, len(times), MOST_TIMES)]
        share = problem.tolerance / 10 / len(groups)
        y, integral, begin, error = problem.start[0].copy(), np.zeros(size), 0.0, 0.0
        for group in groups:
            error += _drop_least(y, share)
            found = self._active(problem, successors, y, times[group] - begin, share)
            if found is None:
                return self._plain(problem, trace, group[0], begin, y[None], integral[None], error)
            active, spans = found, times[group] - begin
            require_memory("adaptive_uniformization", 8 * (3 * len(group) + 2) * len(active.order), states=size)
            sums = self._sums(problem, trace, successors, active, y, spans)
            if sums is None:
                return Outcome(None, trace.status, trace.history)
            there, spent = sums
            error += active.outside
            for place, position in enumerate(group):
                whole, before = np.zeros((1, size)), integral[None].copy()
                whole[0, active.order] = there[place]
                before[0, active.order] += spent[place]
                report(trace, problem, position, whole, before, error)
            y, integral, begin = whole[0], before[0], float(times[group[-1]])
        return Outcome(None, Status.CONVERGED, trace.history)

    def _active(
        self, problem: Evolution, successors: Successors, y: np.ndarray, spans: np.ndarray, share: float
    ) -> ActiveStates | None:
        """Return the active states of as many jumps as are needed; None where it is not worth keeping them apart."""
        chain = problem.model
        plain = poisson_steps(np.array([self.rate_factor * problem.rate]), float(spans[-1]), share)
        work = self.largest_share * plain * (chain.entries + chain.size)
        active = ActiveStates(successors, chain.exit_rates, y)
        jumps = 8
        while True:
            active.spread(jumps)
            rates = self.rate_factor * active.rates(jumps)
            # a step of the clock is about a quarter of the work on an entry, for each time
            steps = poisson_steps(rates, float(spans[-1]), share)
            touched = active.entries(jumps)
            if touched + jumps * steps / 4 > work or steps > 50 * plain + 1000:
                return None
            weights = birth_weights(rates, spans, share)
            if weights.beyond <= share:
                # no more jumps than that takes: fewer than half may do
                tails = np.cumsum(weights.probabilities[-1, ::-1])[::-1]
                enough = np.flatnonzero(np.append(tails, 0.0)[1:] <= share)
                if enough.size and enough[0] + 1 < jumps:
                    weights = birth_weights(rates[: enough[0] + 1], spans, share)
                active.weights, active.outside = weights, 2 * (weights.beyond + weights.lost)
                return active
            jumps *= 2

    def _sums(
        self,
        problem: Evolution,
        trace: Trace,
        successors: Successors,
        active: ActiveStates,
        y: np.ndarray,
        spans: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return y and its integral at each time, by place among the active states; None where the solve is to end."""
        weights = active.weights
        places = len(active.order)
        p, after = np.zeros(places), np.zeros(places)
        p[: active.counts[0]] = y[active.order[: active.counts[0]]]
        there, spent = np.zeros((len(spans), places)), np.zeros((len(spans), places))
        lost = np.zeros_like(spent)
        last = int(np.flatnonzero(weights.probabilities.any(axis=0) | weights.survival.any(axis=0))[-1])
        told = 0
        for k in range(last + 1):
            count = active.count(k)
            add_weighted(p[:count], weights.probabilities[:, k], weights.survival[:, k], there, spent, lost)
            if k == last:
                break
            jump(
                active.order, active.place, successors.indptr, successors.targets, successors.rates, problem.model.exit_rates,
                count, active.count(k + 1), float(weights.rates[k]), p, after,
            )  # fmt: skip
            p, after = after, p
            problem.model.count_products()
            if (k + 1) % _NEWS == 0 or k + 1 == last:
                # the probability of later jumps is what is still missing
                ahead = max(2 * float(1 - weights.probabilities[-1, : k + 2].sum()), 2 * problem.tolerance)
                stop = trace.finished(ahead, limit=self.max_iterations, iterations=k + 1 - told, stagnates=False)
                told = k + 1
                if stop:
                    return None
        return there, spent

    def _plain(
        self,
        problem: Evolution,
        trace: Trace,
        position: int,
        begin: float,
        y: np.ndarray,
        integral: np.ndarray,
        error: float,
    ) -> Outcome:
        """Have plain uniformization answer for the times from `position` on."""
        options = {"rate_factor": self.rate_factor, "max_iterations": self.max_iterations}
        method: Any = solver_with("uniformization", options)
        if position == 0 and begin == 0 and error == 0:
            return method.run(problem, trace)
        later = copy.copy(trace)  # shares the history

        def reached(place: int, there: np.ndarray, spent: np.ndarray, more: float) -> None:
            trace.reached(position + place, there, integral + spent, error + more)

        later.reached = reached
        rest: Any = replace(problem, start=y, times=problem.times[position:] - begin)
        return method.run(rest, later)


def _drop_least(y: np.ndarray, share: float) -> float:
    """Set the least probabilities to 0, up to a sum of a tenth of the share, which is returned; the rest keeps its mass of 1."""
    some = np.flatnonzero(y)
    ordered = some[np.argsort(y[some], kind="stable")]
    sums = np.cumsum(y[ordered])
    dropped = int(np.searchsorted(sums, share / 10, side="right"))
    if dropped == 0:
        return 0.0
    y[ordered[:dropped]] = 0
    y[ordered[-1]] += sums[dropped - 1]
    return 2 * float(sums[dropped - 1])
