"""Answers about passage times: moments, whether the target is reached at all, and the distribution of the time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.parameters import real_numbers
from ctmc.model.passage_law import PassageLaw
from ctmc.model.phase_type import PhaseType
from ctmc.model.reward import Reward
from ctmc.model.stopped import Fates, fates, met, rates_between, stopped
from ctmc.model.summary import Rows
from ctmc.problem import FirstPassage, Transient
from ctmc.solution import Solution

PHASES = 10_000
"""Most states of a passage that is turned into a phase-type distribution."""
_FLOOR = 1e-13


@dataclass(frozen=True, eq=False, repr=False)
class PassageSolution(Solution):
    """The verified answer to a `FirstPassage`; attributes of `Solution`, and these.

    Attributes
    ----------
    reach_probability : float, or ndarray of shape (n,)
        Probability that the target is ever entered (before `avoid`); exactly 0 and 1 where the transitions alone decide.
    reach_error_bound : float
        A proven bound on its error.
    relative_error_bound : ndarray, shape (moments,)
        Proven bounds on the relative errors of the moments of every state.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> erlang = Generator.from_matrix([[0, 2.0, 0], [0, 0, 2.0], [0, 0, 0]])
    >>> passage = solve(FirstPassage(erlang, "state == 2", initial=(0,)))
    >>> round(passage.mean, 12), round(passage.variance, 12), round(passage.quantile(0.95), 9)
    (1.0, 0.5, 2.371932259)
    >>> passage.cdf([0.5, 1.0]).round(9).tolist()
    [0.264241118, 0.59399415]
    """

    reach_probability: Any = math.nan
    reach_error_bound: float = math.nan
    relative_error_bound: Any = None
    solve: Callable[..., Solution] | None = None
    """What answers the questions about the distribution function."""

    @property
    def mean(self) -> Any:
        """The mean time; a number, or shape (n,) for every state as the start.  Infinite where the target may be missed."""
        return _plain(self.value[0])

    @property
    def variance(self) -> Any:
        """The variance of the time, in the shape of `mean`; a sum of terms >= 0, so small ones are right, too.

        Raises
        ------
        ModelError
            If one moment only was asked for.
        """
        if self.variances is None:
            raise ModelError("moments is 1, which gives no variance; ask for moments=2.")
        return _plain(self.variances)

    @property
    def standard_deviation(self) -> Any:
        """The square root of the variance."""
        return _plain(np.sqrt(self.variance))

    def measures(self) -> dict[str, Any]:
        """Return mean, variance (where there are two moments) and the probability to reach the target."""
        found = {"mean": self.mean}
        if self.variances is not None:
            found["variance"] = self.variance
        return {**found, "reach_probability": self.reach_probability}

    # ---- the distribution of the time ---------------------------------------------------------------------------

    @property
    def _passage(self) -> FirstPassage:
        assert isinstance(self.problem, FirstPassage)
        return self.problem

    def _kept(self, name: str, find: Callable[[], Any]) -> Any:
        if name not in self._cache:
            self._cache[name] = find()
        return self._cache[name]

    @property
    def _fates(self) -> Fates:
        problem = self._passage

        def find() -> Fates:
            every = fates(problem.model, problem.target_states, problem.avoided_states)
            if problem.initial is None:
                return every
            return met(problem.model, every, problem.initial.dense(problem.model.size))

        found: Fates = self._kept("fates", find)
        return found

    @property
    def _stopped(self) -> Generator:
        """The chain that stops in the target, and where the target cannot be reached any more."""
        found = self._fates

        def find() -> Generator:
            reached = Reward(found.target.astype(np.float64), "1 in the target")
            live = found.certain | found.possible
            return stopped(self._passage.model, live, rewards={"reached": reached})

        chain: Generator = self._kept("stopped", find)
        return chain

    def reached_by(self, times: Any) -> Solution:
        """Return the certified answer to the question with what probability the target is entered up to some times.

        Parameters
        ----------
        times : sequence of float
            Ascending, >= 0.

        Returns
        -------
        Solution
            Of a `Transient` problem on the chain stopped at the passage: `value` of shape (times,), or (times, n) for every
            state as the start, and `error_bound`.
        """
        problem = self._passage
        question = Transient(self._stopped, problem.initial, times, max(problem.tolerance, _FLOOR), reward="reached")
        assert self.solve is not None
        return self.solve(question)

    def cdf(self, times: Any) -> Any:
        """Return P{T <= t}, in the shape of times (with a last axis (n,) for every state), right to the tolerance.

        Certified as a transient answer; `reached_by` has its error bounds.
        """
        given = real_numbers("times", times, "numbers")
        if np.isnan(given).any():
            raise ModelError("times has the value nan; allowed are numbers.")
        lead = () if self._passage.initial is not None else (self._passage.model.size,)
        flat = given.ravel()
        found = np.zeros((len(flat), *lead))
        found[flat == math.inf] = self.reach_probability
        inner = (flat >= 0) & (flat < math.inf)
        if inner.any():
            asked, place = np.unique(flat[inner], return_inverse=True)
            found[inner] = np.clip(self.reached_by(asked).value, 0.0, 1.0)[place]
        return _plain(found.reshape(given.shape + lead))

    def survival(self, times: Any) -> Any:
        """Return P{T > t}, in the shape of `cdf`, right to the tolerance; `phase_type` has tails right relative to their size."""
        return _plain(1.0 - np.asarray(self.cdf(times)))

    def density(self, times: Any) -> Any:
        """Return the density of the time at t > 0, in the shape of times; a start in the target, an atom at 0, is left out."""
        return self._law.density(times)

    def quantile(self, p: Any) -> Any:
        """Return the least t with P{T <= t} >= p, for 0 <= p <= 1, in the shape of p; infinite above the reach probability.

        All come from one pass of uniformization: a Poisson mixture of what has reached the target after k steps, inverted by
        Newton's method inside a bracket.

        Raises
        ------
        ModelError
            If a p is not in [0, 1], for every state as the start, or where it takes too many steps.
        """
        return self._law.quantile(p, self.reach_probability)

    @property
    def _law(self) -> PassageLaw:
        problem = self._passage
        initial = problem.initial
        if initial is None:
            raise ModelError(
                "initial is None, every state; densities and quantiles need an initial state or distribution."
            )
        begin = initial.dense(problem.model.size)
        law: PassageLaw = self._kept("law", lambda: PassageLaw(self._stopped, begin, self._fates))
        return law

    def phase_type(self) -> PhaseType:
        """Return the time as a `PhaseType`: moments of any order, distribution function and samples, right relative to size.

        Raises
        ------
        ModelError
            For every state as the start, where the target may be missed, or beyond 10,000 states.
        """
        problem = self._passage
        if problem.initial is None:
            raise ModelError(
                "initial is None, every state; a phase-type distribution needs an initial state or distribution."
            )
        found, begin = self._fates, problem.initial.dense(problem.model.size)
        if begin[found.possible | found.never].any():
            raise ModelError(
                f"the target is reached with probability {self.reach_probability:.6g}; a phase-type distribution needs 1."
            )
        inside = found.certain
        count = int(np.count_nonzero(inside))
        if count > PHASES:
            raise ModelError(f"the passage has {count:,} states; allowed are {PHASES:,} for a phase-type distribution.")
        if not count:
            return PhaseType(np.zeros(1), csr_array((1, 1)), np.ones(1), 1.0)
        into = problem.model.backward(found.target.astype(np.float64))[inside]
        atom = math.fsum(begin[found.target])
        return PhaseType(begin[inside], rates_between(problem.model, inside), into, min(atom, 1.0))

    def _summary(self) -> tuple[str, Rows]:
        title, rows = super()._summary()
        if self.error_bound is None or self.relative_error_bound is None:
            return title, rows
        bound = ("relative error bound", f"{np.max(self.relative_error_bound):.3g}")
        return title, [bound if name == "error bound" else (name, value) for name, value in rows]


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else np.asarray(value)
