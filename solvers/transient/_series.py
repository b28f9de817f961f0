"""Sums over the terms of a series, several terms in one pass: what all methods with a recurrence for y(t) share."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ctmc.evolution import Evolution
from ctmc.model.memory import memory_limit, require_memory
from ctmc.model.products import FEW_ENTRIES, compiled, compiled_parallel
from ctmc.ranks import Ranks

MOST_TIMES = 8
"""Times whose sums are made at once."""
_RING = 8
_CHUNK = 1 << 11
_summing = numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")


class Sums:
    """The sums for y(t) and its integral at a few times, over terms that come one after another.

    Terms stand in a ring of some vectors; a full ring is added in one pass, so that a term costs about one reading of its vector.
    The sum for the integral is compensated from ring to ring: it may have millions of terms of one sign.

    Attributes
    ----------
    ring : ndarray, shape (terms, blocks, n)
    y, integral : ndarray, shape (times, blocks, n)
    """

    def __init__(self, evolution: Evolution, times: int, name: str) -> None:
        shape = evolution.start.shape
        size = 8 * int(np.prod(shape))
        self.ranks = evolution.model.ranks
        # the same number on all ranks, which look at the steady state after as many products
        terms = 3 if self.ranks.any(size * (_RING + 3 * times + 4) >= memory_limit() // 2) else _RING
        require_memory(name, size * (terms + 3 * times + 3), states=evolution.model.size)
        self.backward = evolution.backward
        self.ring = np.empty((terms, *shape))
        self.y = np.zeros((times, *shape))
        self.integral, self._lost = np.zeros_like(self.y), np.zeros_like(self.y)
        self._used = False
        self._flat = self.ring.reshape(terms, -1)

    def clear(self) -> None:
        """Begin new sums."""
        if not self._used:
            self._used = True
            return
        for array in (self.y, self.integral, self._lost):
            array[:] = 0

    def add(self, position: int, weights: np.ndarray, survival: np.ndarray, begin: int = 0) -> None:
        """Add terms of the ring, from `begin` on, times weights to y and times survival to the integral at one time."""
        if not (weights.any() or survival.any()):
            return
        terms = self._flat[begin : begin + len(weights)]
        target = self.y[position].ravel(), self.integral[position].ravel(), self._lost[position].ravel()
        _kernel(self._flat, _add_on_one_thread, _add)(terms, weights, survival, *target)

    def norms(self, begin: int, end: int) -> np.ndarray:
        """Return the norms of terms of the ring, in the norm of the evolution; shape (end - begin,)."""
        chunks = (self._flat.shape[1] + _CHUNK - 1) // _CHUNK
        found = np.empty((chunks, end - begin))
        _kernel(self._flat, _norms_on_one_thread, _norms)(self._flat[begin:end], self.backward, found)
        if self.backward:
            return np.asarray(self.ranks.largest(found.max(axis=0, initial=0.0)))
        return np.asarray(self.ranks.total(found.sum(axis=0)))

    def distance(self, a: int, b: int) -> float:
        """Return the norm of the difference of two terms of the ring."""
        return distance(self._flat[a], self._flat[b], self.backward, self.ranks)


class FusedSums:
    """The sums for y(t) and its integral at one time, of one block, made in the pass of every second product.

    Where a term is at hand anyway it costs little to add it; what is added to the integral goes to a sum of some terms first,
    which is then added with compensation.

    Attributes
    ----------
    y, integral : ndarray, shape (1, 1, n)
    """

    def __init__(self, n: int, name: str) -> None:
        require_memory(name, 8 * n * 10, states=n)
        self.y, self.integral = np.zeros((1, 1, n)), np.zeros((1, 1, n))
        self._part, self._lost = np.zeros(n), np.zeros(n)

    def mixed(self, weights: np.ndarray, survival: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sums that a product is to add to, with the weights of its two vectors."""
        mix = np.concatenate([survival, weights]) if weights.any() else survival
        return mix, self._part, self.y[0, 0]

    def add(self, x: np.ndarray, weight: float, survival: float) -> None:
        """Add a vector by itself."""
        self.y += weight * x
        self._part += survival * x

    def settle(self) -> None:
        """Add what has come together to the integral."""
        kernel = _settle_on_one_thread if self.y.size <= FEW_ENTRIES else _settle
        kernel(self.integral[0, 0], self._lost, self._part)


def step(
    evolution: Evolution, x: np.ndarray, out: np.ndarray, factor: float, keep: float = 1.0,
    previous: np.ndarray | None = None, weight: float = 0.0,
) -> None:  # fmt: skip
    """Set out = factor (change of x) + keep x + weight previous, block by block; `out` is another array than the others."""
    for block in range(evolution.blocks):
        evolution.model.recurrence(
            x[block], out[block], factor=factor, keep=keep, previous=None if previous is None else previous[block],
            weight=weight, backward=evolution.backward,
        )  # fmt: skip
    for coupling in evolution.couplings:
        if coupling.rate is not None:
            out[coupling.into] += factor * (coupling.rate * x[coupling.of])
        if coupling.matrix is not None:
            out[coupling.into] += factor * (coupling.matrix @ x[coupling.of])


def distance(x: np.ndarray, y: np.ndarray, backward: bool, ranks: Ranks) -> float:
    """Return the norm of x - y on all ranks: the sum of absolute values, or the largest one if backward."""
    found = np.empty((x.size + _CHUNK - 1) // _CHUNK)
    (_distance_on_one_thread if x.size <= FEW_ENTRIES else _distance)(x, y, backward, found)
    if backward:
        return float(ranks.largest(found.max(initial=0.0)))
    return float(ranks.total(found.sum()))


def without_negatives(y: np.ndarray, evolution: Evolution) -> None:
    """Set what is below 0 in a distribution (the first block of a forward evolution) to 0, which is nearer to what is right."""
    if not evolution.backward:
        np.maximum(y[0], 0, out=y[0])


def _kernel(flat: np.ndarray, on_one_thread: Any, on_all: Any) -> Any:
    return on_one_thread if flat.shape[1] <= FEW_ENTRIES else on_all


@compiled
def _add_four(p: Any, part: Any, ring: Any, term: int, a: int, b: int, w: Any, s: Any) -> None:
    x0, x1, x2, x3 = ring[term, a:b], ring[term + 1, a:b], ring[term + 2, a:b], ring[term + 3, a:b]
    w0, w1, w2, w3 = w[term], w[term + 1], w[term + 2], w[term + 3]
    s0, s1, s2, s3 = s[term], s[term + 1], s[term + 2], s[term + 3]
    for i in range(p.size):
        one, two, three, four = x0[i], x1[i], x2[i], x3[i]
        p[i] += (w0 * one + w1 * two) + (w2 * three + w3 * four)
        part[i] += (s0 * one + s1 * two) + (s2 * three + s3 * four)


@compiled
def _add_one(p: Any, part: Any, x: Any, w: float, s: float) -> None:
    for i in range(p.size):
        p[i] += w * x[i]
        part[i] += s * x[i]


@compiled
def _sum_four(part: Any, ring: Any, term: int, a: int, b: int, s: Any) -> None:
    x0, x1, x2, x3 = ring[term, a:b], ring[term + 1, a:b], ring[term + 2, a:b], ring[term + 3, a:b]
    s0, s1, s2, s3 = s[term], s[term + 1], s[term + 2], s[term + 3]
    for i in range(part.size):
        part[i] += (s0 * x0[i] + s1 * x1[i]) + (s2 * x2[i] + s3 * x3[i])


@compiled
def _compensated(total: Any, missing: Any, part: Any) -> None:
    for i in range(total.size):
        more = part[i] - missing[i]
        summed = total[i] + more
        missing[i] = (summed - total[i]) - more
        total[i] = summed


@compiled
def _settle_on_one_thread(total: Any, missing: Any, part: Any) -> None:
    _compensated(total, missing, part)
    part[:] = 0.0


@compiled_parallel
def _settle(total: Any, missing: Any, part: Any) -> None:
    """Moves 56 bytes an element."""
    for chunk in numba.prange((part.size + _CHUNK - 1) // _CHUNK):
        a = np.int64(chunk) * _CHUNK
        b = min(a + _CHUNK, part.size)
        _compensated(total[a:b], missing[a:b], part[a:b])
        part[a:b] = 0.0


@compiled
def _add_chunk(ring: Any, a: Any, b: Any, weights: Any, survival: Any, y: Any, integral: Any, lost: Any) -> None:
    part = np.zeros(b - a)
    p = y[a:b]
    term = 0
    matters = weights.any()  # before the window only the integral gets something
    while term + 4 <= weights.size:
        if matters:
            _add_four(p, part, ring, term, a, b, weights, survival)
        else:
            _sum_four(part, ring, term, a, b, survival)
        term += 4
    while term < weights.size:
        _add_one(p, part, ring[term, a:b], weights[term], survival[term])
        term += 1
    _compensated(integral[a:b], lost[a:b], part)


@compiled
def _add_on_one_thread(ring: Any, weights: Any, survival: Any, y: Any, integral: Any, lost: Any) -> None:
    for a in range(0, y.size, _CHUNK):
        _add_chunk(ring, a, min(a + _CHUNK, y.size), weights, survival, y, integral, lost)


@compiled_parallel
def _add(ring: Any, weights: Any, survival: Any, y: Any, integral: Any, lost: Any) -> None:
    """Moves 8 bytes a term and 48 bytes for each element."""
    for chunk in numba.prange((y.size + _CHUNK - 1) // _CHUNK):
        a = np.int64(chunk) * _CHUNK
        _add_chunk(ring, a, min(a + _CHUNK, y.size), weights, survival, y, integral, lost)


@_summing
def _norm(x: Any, backward: bool) -> float:
    if backward:
        largest = 0.0
        for i in range(x.size):
            largest = max(largest, abs(x[i]))
        return largest
    total = 0.0
    for i in range(x.size):
        total += abs(x[i])
    return total


@_summing
def _norm_of_difference(x: Any, y: Any, backward: bool) -> float:
    if backward:
        largest = 0.0
        for i in range(x.size):
            largest = max(largest, abs(x[i] - y[i]))
        return largest
    total = 0.0
    for i in range(x.size):
        total += abs(x[i] - y[i])
    return total


@compiled
def _norms_on_one_thread(ring: Any, backward: bool, found: Any) -> None:
    n = ring.shape[1]
    for chunk in range(found.shape[0]):
        a = chunk * _CHUNK
        for term in range(found.shape[1]):
            found[chunk, term] = _norm(ring[term, a : min(a + _CHUNK, n)], backward)


@compiled_parallel
def _norms(ring: Any, backward: bool, found: Any) -> None:
    """Moves 8 bytes an element of each term."""
    n = ring.shape[1]
    for chunk in numba.prange(found.shape[0]):
        a = np.int64(chunk) * _CHUNK
        for term in range(found.shape[1]):
            found[chunk, term] = _norm(ring[term, a : min(a + _CHUNK, n)], backward)


@compiled
def _distance_on_one_thread(x: Any, y: Any, backward: bool, found: Any) -> None:
    for chunk in range(found.size):
        a = chunk * _CHUNK
        found[chunk] = _norm_of_difference(x[a : a + _CHUNK], y[a : a + _CHUNK], backward)


@compiled_parallel
def _distance(x: Any, y: Any, backward: bool, found: Any) -> None:
    """Moves 16 bytes an element."""
    for chunk in numba.prange(found.size):
        a = np.int64(chunk) * _CHUNK
        found[chunk] = _norm_of_difference(x[a : a + _CHUNK], y[a : a + _CHUNK], backward)
