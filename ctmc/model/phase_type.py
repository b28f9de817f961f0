"""Phase-type distributions: the time until a finite chain is absorbed.

Source: M. F. Neuts, *Matrix-Geometric Solutions in Stochastic Models*, Johns Hopkins 1981, chapter 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import block_diag, csgraph, csr_array

from ctmc.errors import ModelError, shown
from ctmc.model import products
from ctmc.model.m_matrix import solve_m_matrix
from ctmc.model.memory import require_memory
from ctmc.model.parameters import (
    LARGEST_COUNT,
    numbers,
    positive_rates,
    real_matrix,
    real_number,
    real_numbers,
    whole_number,
)
from ctmc.model.poisson_weights import poisson_weights
from ctmc.model.quantile import quantile_between
from ctmc.model.summary import Rows, Summarised

_NEGLIGIBLE = 1e-40
"""Poisson mass that is left out: the absolute accuracy of the survival function far in the tail."""
_MOST_STEPS = 20_000_000
_MASS = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class PhaseType(Summarised):
    """The distribution of the time until a chain with n transient states is absorbed.

    Rates between the states and rates of absorption are stored apart, so no exit rate is ever a difference, and means and
    moments come from sums, products and quotients of non-negative numbers alone: by substitution where the chain has no
    cycle, by elimination without subtraction on the states of a cycle.

    Parameters
    ----------
    initial : array of float, shape (n,)
        Probabilities of the first state, >= 0.
    rates : array or sparse matrix, shape (n, n)
        Rates from i to j, >= 0, per unit of time; the diagonal is ignored.
    absorption : array of float, shape (n,)
        Rates of absorption, >= 0.
    atom : float
        Probability of the time 0; initial sums to 1 less this, to 1e-12.

    Raises
    ------
    ModelError
        If a number is negative or not finite, shapes do not fit, probabilities do not sum to 1, or some state never
        leads to absorption.

    Examples
    --------
    >>> erlang = PhaseType([1, 0], [[0, 2.0], [0, 0]], [0, 2.0])               # two stages of mean 1/2
    >>> erlang.mean, erlang.variance, round(erlang.quantile(0.95), 12)
    (1.0, 0.5, 2.371932259195)
    >>> float(erlang.cdf(1.0).round(12)) == round(1 - 3 * math.exp(-2), 12)
    True
    """

    initial: np.ndarray
    rates: csr_array
    absorption: np.ndarray
    atom: float = 0.0
    _powers: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        initial = self._checked("initial", self.initial, None)
        absorption = self._checked("absorption", self.absorption, len(initial))
        n = len(initial)
        rates = real_matrix("rates", self.rates)
        if rates.shape != (n, n):
            raise ModelError(f"rates has the shape {rates.shape}; allowed is ({n}, {n}), as initial has {n} numbers.")
        rates.setdiag(0.0)
        rates.sum_duplicates()
        rates.eliminate_zeros()
        if not (np.isfinite(rates.data).all() and (rates.data >= 0).all()):
            bad = rates.data[~(np.isfinite(rates.data) & (rates.data >= 0))]
            raise ModelError(f"rates has the entry {float(bad[0])!r}; allowed are finite rates >= 0.")
        real_number("atom", self.atom, lambda value: 0 <= value <= 1, "a probability, a number from 0 to 1")
        total = math.fsum(initial) + self.atom
        if abs(total - 1) > _MASS:
            raise ModelError(f"initial and atom sum to {total!r}; allowed is 1.")
        for array in (initial, absorption, rates.data, rates.indices, rates.indptr):
            array.flags.writeable = False
        for name, value in (
            ("initial", initial),
            ("rates", rates),
            ("absorption", absorption),
            ("atom", float(self.atom)),
        ):
            object.__setattr__(self, name, value)
        self._parts  # noqa: B018  # complains where absorption is never reached

    @staticmethod
    def _checked(name: str, given: Any, length: int | None) -> np.ndarray:
        vector = numbers(name, given, "finite numbers >= 0").copy()
        bad = ~((vector >= 0) & np.isfinite(vector))
        if bad.any():
            raise ModelError(f"{name} has the value {vector[np.argmax(bad)]}; allowed are finite numbers >= 0.")
        if length is not None and len(vector) != length:
            raise ModelError(f"{name} has {len(vector)} numbers; allowed are {length}, as initial has.")
        return vector

    @classmethod
    def mixture(cls, weights: Sequence[float], parts: Sequence[PhaseType]) -> PhaseType:
        """Return the distribution that is the k-th part with the probability weights[k] / sum(weights).

        Examples
        --------
        >>> fast, slow = PhaseType([1], [[0]], [2.0]), PhaseType([1], [[0]], [0.5])
        >>> PhaseType.mixture([3, 1], [fast, slow]).mean
        0.875
        """
        shares = positive_rates("weights", weights)
        if not isinstance(parts, list | tuple) or not all(isinstance(part, PhaseType) for part in parts):
            raise ModelError(f"parts is {shown(parts)}; allowed are distributions of the class PhaseType.")
        if len(shares) != len(parts):
            raise ModelError(f"weights has {len(shares)} numbers; allowed are {len(parts)}, one per part.")
        shares = shares / math.fsum(shares)
        return cls(
            np.concatenate([share * part.initial for share, part in zip(shares, parts, strict=True)]),
            csr_array(block_diag([part.rates for part in parts])),
            np.concatenate([part.absorption for part in parts]),
            min(1.0, math.fsum(share * part.atom for share, part in zip(shares, parts, strict=True))),
        )

    @property
    def size(self) -> int:
        """Number of transient states, n."""
        return len(self.initial)

    @cached_property
    def exit_rates(self) -> np.ndarray:
        """Total rate out of each state, shape (n,)."""
        return np.asarray(self.rates.sum(axis=1) + self.absorption)

    # ---- moments ------------------------------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> tuple[np.ndarray, list[slice]]:
        """States in an order in which a state's successors stand before it, and the slices of it that are cycles."""
        # the classes are numbered as they are completed, so transitions lead to the same or to a smaller number
        count, number = csgraph.connected_components(self.rates, directed=True, connection="strong")
        order = np.argsort(number, kind="stable")
        sizes = np.bincount(number, minlength=count)
        leaves = np.zeros(count, dtype=bool)
        leaves[number[self.absorption > 0]] = True
        entries = self.rates.tocoo()
        leaves[number[entries.coords[0][number[entries.coords[0]] != number[entries.coords[1]]]]] = True
        if not leaves.all():
            state = int(np.flatnonzero(~leaves[number])[0])
            raise ModelError(f"state {state} never leads to absorption; allowed are states that do.")
        ends = np.cumsum(sizes)
        return order, [slice(int(ends[k] - sizes[k]), int(ends[k])) for k in np.flatnonzero(sizes > 1)]

    def _solve(self, right: np.ndarray) -> np.ndarray:
        """Return (-T)^-1 right for right >= 0, without a subtraction; shape (n,)."""
        order, cycles = self._parts
        x = np.array(right, dtype=np.float64)
        arrays = (self.rates.indptr, self.rates.indices, self.rates.data, self.exit_rates)
        done = 0
        for cycle in [*cycles, slice(self.size, self.size)]:
            products.substitute(*arrays, order[done : cycle.start], x)
            done = cycle.stop
            if cycle.start == cycle.stop:
                break
            inside = order[cycle]
            require_memory("a cycle of a phase-type distribution", 24 * len(inside) ** 2, states=len(inside))
            rows = self.rates[inside]
            stay = rows[:, inside].toarray()
            outside = rows.copy()
            outside.data[np.isin(outside.indices, inside)] = 0.0
            leave = outside.sum(axis=1) + self.absorption[inside]
            into = x.copy()
            into[inside] = 0.0
            x[inside] = solve_m_matrix(stay, leave, (x[inside] + outside @ into)[:, None])[:, 0]
        return x

    @cached_property
    def _moments(self) -> list[np.ndarray]:
        return [np.ones(self.size)]

    def moment(self, order: int) -> float:
        """Return E[X^order] for a whole number order >= 1."""
        whole_number("order", order, 1, 170, "factorials that floats hold")
        known = self._moments
        while len(known) <= order:
            known.append(len(known) * self._solve(known[-1]))
        return float(self.initial @ known[order])

    @property
    def mean(self) -> float:
        """E[X]."""
        return self.moment(1)

    @property
    def variance(self) -> float:
        """E[(X - E X)^2], as a sum of terms >= 0.

        Given the first state the variance is the expected sum, over the states on the way, of the variance of the time in
        the state and of the mean of what comes after it.
        """
        self.moment(1)
        means, mean = self._moments[1], self.mean
        entries = self.rates.tocoo()
        row, column = entries.coords
        # a jump from i: its own time has the variance 1 / exit^2; what comes after, m_j or 0, has the mean sum_j rate_ij m_j / exit
        after = self.rates @ means / self.exit_rates
        spread = np.bincount(row, weights=entries.data * (means[column] - after[row]) ** 2, minlength=self.size)
        spread = (spread + self.absorption * after**2) / self.exit_rates
        within = self._solve(self.exit_rates * (1 / self.exit_rates**2 + spread))
        return float(self.initial @ (within + (means - mean) ** 2)) + self.atom * mean**2

    @property
    def standard_deviation(self) -> float:
        """The square root of the variance."""
        return math.sqrt(self.variance)

    # ---- distribution function ------------------------------------------------------------------------------------

    @cached_property
    def _uniform(self) -> tuple[float, Any, np.ndarray]:
        rate = float(self.exit_rates.max())
        return rate, csr_array(self.rates.T), rate - self.exit_rates

    def _steps(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, for at least count steps of the uniformized chain, the mass left, the mass absorbed and the rate of absorption."""
        if count > _MOST_STEPS:
            raise ModelError(
                f"the largest time takes {count:,} steps of the uniformized chain; allowed are {_MOST_STEPS:,}, which is a "
                f"time of {_MOST_STEPS / self._uniform[0]:.3g}."
            )
        known = self._powers
        have = len(known.get("left", ()))
        if have < count:
            rate, inflow, stay = self._uniform
            more = max(count, 2 * have, 64)
            left, flow = np.empty(more), np.empty(more)
            if have:
                left[:have], flow[:have] = known["left"], known["flow"]
            power = known.get("power", self.initial)
            for k in range(have, more):
                left[k], flow[k] = power.sum(), power @ self.absorption
                power = (inflow @ power + stay * power) / rate
            gone = np.concatenate([[0.0], np.cumsum(flow[:-1])]) / rate
            known |= {"power": power, "left": left, "flow": flow, "gone": gone}
        return known["left"], known["gone"], known["flow"]

    def _at(self, times: Any) -> tuple[np.ndarray, tuple[int, ...]]:
        """Return absorbed mass, mass left and density at times, shape (3, number of times), and the times' own shape."""
        given = real_numbers("times", times, "numbers")
        flat = np.atleast_1d(given).ravel()
        if np.isnan(flat).any():
            raise ModelError("times has the value nan; allowed are numbers.")
        rate = self._uniform[0]
        found = np.empty((3, len(flat)))
        for place in np.argsort(-flat):  # the longest first, so that the powers are made in one go
            time = flat[place]
            if time < 0 or time == math.inf:
                found[:, place] = (0.0, 1.0, 0.0) if time < 0 else (1 - self.atom, 0.0, 0.0)
                continue
            if rate * time > _MOST_STEPS:
                self._steps(int(min(rate * time, 1e18)))
            window = poisson_weights(rate * time, _NEGLIGIBLE)
            left, gone, flow = self._steps(window.right + 1)
            chosen = slice(window.left, window.right + 1)
            found[:, place] = [
                window.weights @ gone[chosen],
                window.weights @ left[chosen],
                window.weights @ flow[chosen],
            ]
        return found, given.shape

    def cdf(self, times: Any) -> Any:
        """Return P{X <= t}, in the shape of times; right to rounding relative to its own size, too.

        Uniformization: a Poisson mixture of what is absorbed after k steps.  One pass of rate x (longest time) products serves
        all times, and calls that come later.
        """
        found, shape = self._at(times)
        before = np.asarray(times, dtype=np.float64) < 0
        return np.where(before, 0.0, np.minimum(found[0].reshape(shape) + self.atom, 1.0))

    def survival(self, times: Any) -> Any:
        """Return P{X > t}, in the shape of times; not a difference, so right to rounding down to 1e-30 or so."""
        found, shape = self._at(times)
        return np.minimum(found[1].reshape(shape), 1.0)

    def density(self, times: Any) -> Any:
        """Return the density at times t > 0, in the shape of times; the atom at 0 is left out."""
        found, shape = self._at(times)
        return found[2].reshape(shape)

    def quantile(self, p: Any) -> Any:
        """Return the least t with P{X <= t} >= p, for 0 <= p < 1, in the shape of p.

        Bracketing by doubling, then `ctmc.model.quantile.quantile_between`.

        Raises
        ------
        ModelError
            If a p is not in [0, 1).
        """
        given = real_numbers("p", p, "numbers from 0 on, below 1")
        bad = ~((given >= 0) & (given < 1))
        if bad.any():
            raise ModelError(f"p is {float(given[bad].flat[0])!r}; allowed are numbers from 0 on, below 1.")
        found = np.array([self._quantile(float(level)) for level in given.ravel()]).reshape(given.shape)
        return float(found) if found.ndim == 0 else found

    def _quantile(self, level: float) -> float:
        if level <= self.atom:
            return 0.0
        low, high = 0.0, self.mean
        while self.cdf(high) < level:
            low, high = high, 2 * high

        def at(time: float) -> tuple[float, float, float]:
            gone, left, slope = self._at(time)[0][:, 0]
            return gone + self.atom, left, slope

        return quantile_between(at, level, low, high)

    # ---- samples ------------------------------------------------------------------------------------------------

    def sample(self, size: int, seed: int) -> np.ndarray:
        """Return independent samples, shape (size,), by running the chain.

        Parameters
        ----------
        size : int
        seed : int
            Of NumPy's default generator.
        """
        count = whole_number("size", size, 1)
        rng = np.random.default_rng(whole_number("seed", seed, 0, LARGEST_COUNT))
        cumulated = np.concatenate([np.cumsum(self.initial), [np.inf]])
        state = np.minimum(np.searchsorted(cumulated, rng.random(count), side="right"), self.size)
        if not self.atom:
            state = np.minimum(state, np.flatnonzero(self.initial)[-1])
        # one ascending table of (state + probability of its jumps so far) serves all states
        rates, exits = self.rates, self.exit_rates
        row = np.repeat(np.arange(self.size), np.diff(rates.indptr))
        sums = np.concatenate([[0.0], np.cumsum(rates.data / exits[row])])
        table = row + np.minimum(sums[1:] - sums[rates.indptr[row]], 1.0)
        last = np.where(self.absorption > 0, rates.indptr[1:], rates.indptr[1:] - 1)
        times = np.zeros(count)
        running = np.flatnonzero(state < self.size)
        while len(running):
            here = state[running]
            times[running] += rng.standard_exponential(len(running)) / exits[here]
            jump = np.minimum(np.searchsorted(table, here + rng.random(len(running)), side="right"), last[here])
            inside = jump < rates.indptr[here + 1]
            running = running[inside]
            state[running] = rates.indices[jump[inside]]
        return times

    def _summary(self) -> tuple[str, Rows]:
        rows: list[tuple[str, object]] = [
            ("states", self.size),
            ("mean", f"{self.mean:.10g}"),
            ("standard deviation", f"{self.standard_deviation:.10g}"),
        ]
        return "Phase-type distribution", [*rows, *([("atom at 0", f"{self.atom:.6g}")] if self.atom else [])]
