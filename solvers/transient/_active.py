"""The states within some jumps of a start, products on them, and the birth process that counts the jumps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from scipy.sparse import csc_array, csr_array

from ctmc.model.generator import Generator
from ctmc.model.poisson_weights import poisson_weights
from ctmc.model.products import compiled


@dataclass(frozen=True, eq=False)
class Successors:
    """The transitions by source: entries indptr[i] : indptr[i + 1] lead out of state i."""

    indptr: np.ndarray
    targets: np.ndarray
    rates: np.ndarray

    @classmethod
    def of(cls, chain: Generator) -> Successors:
        """Return the transitions of a chain in this order."""
        n = chain.size
        rows = csr_array(csc_array((chain.rates, chain.sources, chain.indptr), shape=(n, n)))
        return cls(rows.indptr.astype(np.uint64), rows.indices.astype(np.uint64), rows.data)


@dataclass(frozen=True, eq=False)
class BirthWeights:
    """Of the number B of births up to each of some times.

    Attributes
    ----------
    rates : ndarray, shape (m,)
        Of the birth after k others.
    probabilities : ndarray, shape (times, m)
        P{B = k}; the last one has what is beyond.
    survival : ndarray, shape (times, m)
        The integral of P{B = k} over time: P{B > k} / rate; the last one has the rest of the time.
    beyond, lost : float
        P{B >= m} at the last time; a bound on what is wrong with the others, in their sum, and relative to time in that of
        the integrals.
    """

    rates: np.ndarray
    probabilities: np.ndarray
    survival: np.ndarray
    beyond: float
    lost: float


class ActiveStates:
    """The states that can have probability after 0, 1, 2, .. jumps.

    Parameters
    ----------
    successors : Successors
    exit_rates : ndarray, shape (n,)
    y : ndarray, shape (n,)
        Where it begins.

    Attributes
    ----------
    order : ndarray of uint64
        The states found, those after fewer jumps first.
    place : ndarray of uint64, shape (n,)
        Their positions in it.
    counts : list of int
        How many there are within 0, 1, 2, .. jumps; the last one for all later numbers of jumps if `whole`.
    weights : BirthWeights
    outside : float
        Bound on the error, once `weights` are known.

    Examples
    --------
    >>> path = Generator.from_matrix(np.diag([1.0, 2.0, 3.0], 1))
    >>> active = ActiveStates(Successors.of(path), path.exit_rates, np.array([0, 1.0, 0, 0]))
    >>> active.spread(5)
    >>> active.order.tolist(), active.counts, active.rates(4).tolist()
    ([1, 2, 3], [1, 2, 3], [2.0, 3.0, 3.0, 3.0])
    """

    weights: BirthWeights
    outside: float

    def __init__(self, successors: Successors, exit_rates: np.ndarray, y: np.ndarray) -> None:
        n = len(exit_rates)
        self._successors, self._exit_rates = successors, exit_rates
        start = np.flatnonzero(y).astype(np.uint64)
        self._room = np.empty(n, dtype=np.uint64)
        self._room[: len(start)] = start
        self.place = np.full(n, n, dtype=np.uint64)
        self.place[start] = np.arange(len(start), dtype=np.uint64)
        self.counts = [len(start)]
        self._fastest = [float(exit_rates[start].max())]
        self._entries = [self._out_of(start)]
        self.whole = False

    @property
    def order(self) -> np.ndarray:
        return self._room[: self.counts[-1]]

    def _out_of(self, states: np.ndarray) -> int:
        indptr = self._successors.indptr
        return int((indptr[states + np.uint64(1)] - indptr[states]).sum()) + len(states)

    def spread(self, jumps: int) -> None:
        """Find the states within so many jumps."""
        while len(self.counts) <= jumps and not self.whole:
            before = self.counts[-2] if len(self.counts) > 1 else 0
            count = self.counts[-1]
            found = int(
                spread_once(self._successors.indptr, self._successors.targets, self._room, self.place, before, count)
            )
            if found == count:
                self.whole = True
                return
            new = self._room[count:found]
            self.counts.append(found)
            self._fastest.append(max(self._fastest[-1], float(self._exit_rates[new].max())))
            self._entries.append(self._entries[-1] + self._out_of(new))

    def count(self, jumps: int) -> int:
        """Return the number of states within so many jumps."""
        return self.counts[min(jumps, len(self.counts) - 1)]

    def rates(self, jumps: int) -> np.ndarray:
        """Return the largest exit rate within 0, .., jumps - 1 jumps; 1 where no state has any."""
        found = np.array([self._fastest[min(k, len(self.counts) - 1)] for k in range(jumps)])
        return np.where(found > 0, found, 1.0)

    def entries(self, jumps: int) -> int:
        """Return the entries, diagonal included, that so many products touch."""
        known = self._entries[:jumps]
        return sum(known) + (jumps - len(known)) * self._entries[-1]


def poisson_steps(rates: np.ndarray, time: float, share: float) -> int:
    """Return how many steps the uniformization of the birth process takes, by a bound on the Poisson tail."""
    mean, depth = float(rates.max()) * time, math.log(4 / min(share, 0.1)) + 30
    return math.ceil(mean + depth / 3 + math.sqrt(depth**2 / 9 + 2 * mean * depth))


def birth_weights(rates: np.ndarray, times: np.ndarray, share: float) -> BirthWeights:
    """Return the distribution of the number of births up to each time, by uniformization of the birth process.

    Parameters
    ----------
    rates : ndarray, shape (m,)
        Positive.
    times : ndarray, shape (times,)
    share : float
        Largest error of a distribution, and, relative to time, of the integrals.

    Examples
    --------
    >>> found = birth_weights(np.array([1.0, 2.0, 4.0, 8.0]), np.array([0.1]), 1e-12)      # a Yule process that grows faster
    >>> found.probabilities[0, :2].round(12).tolist(), [math.exp(-0.1), round(math.exp(-0.1) - math.exp(-0.2), 12)]
    ([0.904837418036, 0.086106664958], [0.9048374180359595, 0.086106664958])
    """
    m = len(rates)
    fastest = float(rates.max())
    found = np.zeros((len(times), m + 1))
    lost = 0.0
    slowness = float((1 / rates).sum())
    for row, time in zip(found, times, strict=True):
        if time == 0:
            row[0] = 1.0
            continue
        # an error of P{B > k} is one of the integral over its rate
        part = min(1.0, time / slowness)
        window = poisson_weights(fastest * time, max(share / 4 * part, 1e-250))
        lost = max(lost, 2 * window.outside / part)
        births(rates / fastest, window.left, window.weights, row)
    beyond = float(found[:, m].max())
    # sums from the end, where probabilities are small
    survival = np.cumsum(found[:, :0:-1], axis=1)[:, ::-1] / rates
    rest = np.maximum(times - survival[:, :-1].sum(axis=1), 0)
    survival[:, -1] = rest
    probabilities = found[:, :m].copy()
    probabilities[:, -1] += found[:, m]
    return BirthWeights(rates, probabilities, survival, beyond, lost)


@compiled
def births(chances: Any, left: int, weights: Any, out: Any) -> None:
    """Add the Poisson mixture of the powers of the birth process to `out`; the last state is never left."""
    m = chances.size
    v = np.zeros(m + 1)
    v[0] = 1.0
    top = 0
    for k in range(left + weights.size):
        if k >= left:
            w = weights[k - left]
            for j in range(top + 1):
                out[j] += w * v[j]
        if top < m:
            top += 1
        for j in range(top, 0, -1):
            stays = v[j] * (1.0 - chances[j]) if j < m else v[j]
            v[j] = stays + v[j - 1] * chances[j - 1]
        v[0] *= 1.0 - chances[0]


@compiled
def spread_once(indptr: Any, targets: Any, order: Any, place: Any, begin: int, end: int) -> Any:
    """Append the states that are one jump from order[begin:end] and not among order[:end]; return how many there are now."""
    n = np.uint64(place.size)
    found = np.uint64(end)
    for k in range(begin, end):
        i = order[np.uint64(k)]
        for entry in range(indptr[i], indptr[i + np.uint64(1)]):
            j = targets[entry]
            if place[j] == n:
                place[j] = found
                order[found] = j
                found += np.uint64(1)
    return found


@compiled
def jump(
    order: Any, place: Any, indptr: Any, targets: Any, rates: Any, exit_rates: Any, count: int, after: int, rate: float,
    p: Any, out: Any,
) -> None:  # fmt: skip
    """Set out = p + p Q / rate by scattering from the first `count` active states; `after` may have probability then."""
    for k in range(np.uint64(after)):
        out[k] = 0.0
    for k in range(np.uint64(count)):
        i = order[k]
        here = p[k] / rate
        out[k] += here * (rate - exit_rates[i])
        for entry in range(indptr[i], indptr[i + np.uint64(1)]):
            out[place[targets[entry]]] += here * rates[entry]


@numba.njit(cache=True, nogil=True)
def add_weighted(p: Any, weights: Any, survival: Any, y: Any, integral: Any, lost: Any) -> None:
    """Add weights times p to y, and survival times p to the integral, compensated, at each time."""
    for time in range(weights.size):
        w, s = weights[time], survival[time]
        if w == 0.0 and s == 0.0:
            continue
        there, total, missing = y[time], integral[time], lost[time]
        for k in range(p.size):
            there[k] += w * p[k]
            more = s * p[k] - missing[k]
            summed = total[k] + more
            missing[k] = (summed - total[k]) - more
            total[k] = summed
