"""Elimination class by class: triangular factors of (leave + rates out) I - rates, along the communicating classes of the states.

States that reach each other are a class, and between classes there is no way back.  With the classes in the order of the ways
through them the matrix is block triangular: each class is eliminated by itself, as in `m_factors`, and substitution does the
rest.  A chain without cycles, such as an epidemic without relapse or a system without repair, has classes of one state, and costs one
addition and one multiplication an entry.  Nothing is subtracted, so that right sides >= 0 have answers with small relative errors,
however long the ways are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csgraph, csr_array

from ctmc.errors import ModelError
from ctmc.model.memory import require_memory
from ctmc.model.products import compiled


def work_of(sizes: np.ndarray) -> tuple[float, float]:
    """Return the multiplications that classes of these sizes take, and the bytes of their factors.

    Examples
    --------
    >>> work_of(np.array([1, 1, 3]))
    (19.333333333333332, 88.0)
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    return float((2 * sizes**3).sum() / 3), float(8 * (sizes**2).sum())


@dataclass(frozen=True, eq=False)
class ClassFactors:
    """The factors of `class_factors`.

    Attributes
    ----------
    states : ndarray of int, shape (n,)
        The states class by class; from none is there a way to an earlier class.
    position : ndarray of int, shape (n,)
        Where each state stands among them.
    begins : ndarray of int, shape (classes + 1,)
        Where each class begins among them.
    places : ndarray of int, shape (classes + 1,)
        Where the factors of each class begin.
    factors : ndarray
        Of a class of m states m x m numbers, by rows: what is passed on above the diagonal and below it, pivots on it.
    rates : csr_array, shape (n, n)
        By source.
    """

    states: np.ndarray
    position: np.ndarray
    begins: np.ndarray
    places: np.ndarray
    factors: np.ndarray
    rates: csr_array

    @cached_property
    def error(self) -> float:
        """A bound on the relative error of each number in an answer, to first order, for right sides >= 0.

        What the longest way through the classes adds up: each sum of some terms, and a quotient, once for each class on it, and 20
        m^2 units of roundoff for the factors of a class of m states (`MFactors.error`).

        Examples
        --------
        >>> class_factors(csr_array([[0, 1.0, 0], [0, 0, 1.0], [0, 0, 0]]), np.array([0, 0, 1.0])).error / 2.0**-52
        12.0
        """
        rates = self.rates
        most = max(np.diff(rates.indptr).max(initial=0), np.bincount(rates.indices, minlength=1).max())
        sizes = np.diff(self.begins)
        costs = most + 3.0 + np.where(sizes > 1, 20.0 * sizes**2, 0.0)
        class_of = np.repeat(np.arange(len(sizes)), sizes)  # by position
        longest(rates.indptr, rates.indices, self.states, self.position, class_of, costs)
        return float(np.finfo(np.float64).eps * costs.max(initial=0.0))

    def solve(self, right: np.ndarray) -> np.ndarray:
        """Return x with (leave + rates out) x - rates x = right; shape (n,).

        Examples
        --------
        >>> chain = csr_array([[0, 1.0, 0], [2.0, 0, 1e-20], [0, 0, 0]])
        >>> class_factors(chain, np.array([0, 0, 1.0])).solve(np.ones(3)).tolist()
        [3e+20, 3e+20, 1.0]
        """
        x = np.array(right, dtype=np.float64)
        self._kernel(solve_classes, x)
        return x

    def solve_left(self, left: np.ndarray) -> np.ndarray:
        """Return y with y (leave + rates out) - y rates = left; shape (n,).

        Examples
        --------
        >>> chain = csr_array([[0, 1.0, 0], [2.0, 0, 1e-20], [0, 0, 0]])
        >>> class_factors(chain, np.array([0, 0, 1.0])).solve_left(np.array([1.0, 0, 0])).tolist()
        [2e+20, 1e+20, 1.0]
        """
        y = np.array(left, dtype=np.float64)
        self._kernel(solve_classes_left, y)
        return y

    def _kernel(self, kernel: Any, vector: np.ndarray) -> None:
        rates = self.rates
        places = (self.states, self.position, self.begins, self.places)
        kernel(rates.indptr, rates.indices, rates.data, *places, self.factors, vector)


def class_factors(rates: csr_array, leave: np.ndarray) -> ClassFactors:
    """Factorize class by class; `work_of` tells what it takes.

    Parameters
    ----------
    rates : csr_array, shape (n, n)
        Positive, by source, none on the diagonal.
    leave : ndarray, shape (n,)
        >= 0: the rates out of these states, or what else is added to the diagonal.

    Raises
    ------
    ModelError
        If the matrix is singular: some states are never left.
    MemoryLimitError
        If the factors do not fit.

    Examples
    --------
    >>> found = class_factors(csr_array([[0, 1.0, 0], [2.0, 0, 1.0], [0, 0, 0]]), np.array([0, 0, 1.0]))
    >>> found.begins.tolist(), found.solve(np.ones(3)).tolist()
    ([0, 2, 3], [5.0, 4.0, 1.0])
    """
    n = rates.shape[0]
    count, class_of = csgraph.connected_components(rates, directed=True, connection="strong")
    sizes = np.bincount(class_of, minlength=count)
    require_memory("the factors of the classes", work_of(sizes)[1] + 48 * n, states=n)
    members = np.argsort(class_of, kind="stable")
    first = np.concatenate([[0], np.cumsum(sizes)])
    order = ways(rates.indptr, rates.indices, class_of.astype(np.int64), members, first)
    begins = np.concatenate([[0], np.cumsum(sizes[order])])
    states = members[np.arange(n) + np.repeat(first[order] - begins[:-1], sizes[order])]
    places = np.concatenate([[0], np.cumsum(sizes[order].astype(np.int64) ** 2)])
    position = np.empty(n, dtype=np.int64)
    position[states] = np.arange(n)
    factors = np.zeros(int(places[-1]))
    never_left = factorize(rates.indptr, rates.indices, rates.data, states, position, begins, places, leave, factors)
    if never_left >= 0:
        raise ModelError(
            f"row {never_left} and those that it leads to in its class are never left: the matrix is singular."
        )
    return ClassFactors(states, position, begins, places, factors, rates)


@compiled
def ways(indptr: Any, columns: Any, class_of: Any, members: Any, first: Any) -> Any:
    """Return the numbers of the classes in an order in which every transition leads to the same class or a later one."""
    count = first.size - 1
    entering = np.zeros(count, dtype=np.int64)
    for i in range(class_of.size):
        for k in range(indptr[i], indptr[i + 1]):
            if class_of[columns[k]] != class_of[i]:
                entering[class_of[columns[k]]] += 1
    order = np.empty(count, dtype=np.int64)
    known = 0
    for c in range(count):
        if entering[c] == 0:
            order[known] = c
            known += 1
    for place in range(count):
        c = order[place]
        for a in range(first[c], first[c + 1]):
            i = members[a]
            for k in range(indptr[i], indptr[i + 1]):
                other = class_of[columns[k]]
                if other != c:
                    entering[other] -= 1
                    if entering[other] == 0:
                        order[known] = other
                        known += 1
    return order


@compiled
def longest(indptr: Any, columns: Any, states: Any, position: Any, class_of: Any, costs: Any) -> None:
    """Replace the cost of each class by that of the dearest way to its end."""
    before = np.zeros(costs.size)
    for a in range(states.size):
        c = class_of[a]
        if a == 0 or class_of[a - 1] != c:
            costs[c] += before[c]
        for k in range(indptr[states[a]], indptr[states[a] + 1]):
            other = class_of[position[columns[k]]]
            if other != c:
                before[other] = max(before[other], costs[c])


@compiled
def factorize(
    indptr: Any, columns: Any, rates: Any, states: Any, position: Any, begins: Any, places: Any, leave: Any, factors: Any
) -> Any:  # fmt: skip
    """Eliminate the states of each class from the last to the first; return a state whose class is never left, else -1."""
    for c in range(begins.size - 1):
        b, m = begins[c], begins[c + 1] - begins[c]
        work = factors[places[c] : places[c + 1]].reshape((m, m))
        out = np.empty(m)
        for a in range(m):
            i = states[b + a]
            out[a] = leave[i]
            for k in range(indptr[i], indptr[i + 1]):
                other = position[columns[k]] - b
                if 0 <= other < m:
                    work[a, other] += rates[k]
                else:
                    out[a] += rates[k]
        for e in range(m - 1, -1, -1):
            pivot = out[e]
            for a in range(e):
                pivot += work[e, a]
            if not pivot > 0:
                return states[b + e]
            work[e, e] = pivot
            for a in range(e):
                share = work[a, e] / pivot
                work[a, e] = share
                if share > 0:
                    for j in range(e):
                        work[a, j] += share * work[e, j]
                    out[a] += share * out[e]
    return -1


@compiled
def solve_classes(
    indptr: Any, columns: Any, rates: Any, states: Any, position: Any, begins: Any, places: Any, factors: Any, x: Any
) -> None:  # fmt: skip
    """Replace the right side by the solution, from the last class to the first."""
    for c in range(begins.size - 2, -1, -1):
        b, m = begins[c], begins[c + 1] - begins[c]
        work = factors[places[c] : places[c + 1]].reshape((m, m))
        for a in range(m):
            i = states[b + a]
            total = x[i]
            for k in range(indptr[i], indptr[i + 1]):
                other = position[columns[k]] - b
                if other >= m:
                    total += rates[k] * x[columns[k]]
            x[i] = total
        for e in range(m - 1, -1, -1):
            for a in range(e):
                x[states[b + a]] += work[a, e] * x[states[b + e]]
        for e in range(m):
            total = x[states[b + e]]
            for a in range(e):
                total += work[e, a] * x[states[b + a]]
            x[states[b + e]] = total / work[e, e]


@compiled
def solve_classes_left(
    indptr: Any, columns: Any, rates: Any, states: Any, position: Any, begins: Any, places: Any, factors: Any, y: Any
) -> None:  # fmt: skip
    """Replace the left side by the solution, from the first class to the last."""
    for c in range(begins.size - 1):
        b, m = begins[c], begins[c + 1] - begins[c]
        work = factors[places[c] : places[c + 1]].reshape((m, m))
        for e in range(m - 1, -1, -1):
            total = y[states[b + e]] / work[e, e]
            y[states[b + e]] = total
            for a in range(e):
                y[states[b + a]] += work[e, a] * total
        for e in range(m):
            total = y[states[b + e]]
            for a in range(e):
                total += y[states[b + a]] * work[a, e]
            y[states[b + e]] = total
        for a in range(m):
            i = states[b + a]
            for k in range(indptr[i], indptr[i + 1]):
                if position[columns[k]] - b >= m:
                    y[columns[k]] += rates[k] * y[i]
