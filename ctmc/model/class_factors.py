"""Elimination class by class: triangular factors of (leave + rates out) I - rates, along the communicating classes of the states.

States that reach each other are a class, and between classes there is no way back.  With the classes in the order of the ways
through them the matrix is block triangular: each class is eliminated by itself, as in `m_factors`, in a band, and substitution does
the rest.  A chain without cycles, such as an epidemic without relapse or a system without repair, has classes of one state, and costs
one addition and one multiplication an entry; a class of m states in a row, with transitions to at most w places away, costs
2 m w^2.  Nothing is subtracted, so that right sides >= 0 have answers with small relative errors, however long the ways are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csgraph, csr_array

from ctmc.errors import ModelError
from ctmc.model.memory import memory_limit, require_memory
from ctmc.model.products import compiled

CHEAP = 1e10
"""Up to so many multiplications an elimination is made where it only judges or mixes what others have found."""


@dataclass(frozen=True, eq=False)
class ClassOrder:
    """The states class by class, those of each class in a row.

    Attributes
    ----------
    states : ndarray of int, shape (n,)
        From none is there a way to an earlier class.
    position : ndarray of int, shape (n,)
        Where each state stands among them.
    begins : ndarray of int, shape (classes + 1,)
        Where each class begins among them.
    widths : ndarray of int, shape (classes,)
        How many places away transitions inside a class lead at most.
    """

    states: np.ndarray
    position: np.ndarray
    begins: np.ndarray
    widths: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """How many states each class has."""
        return np.diff(self.begins)

    @property
    def multiplications(self) -> float:
        """Of an elimination."""
        return 2 * float((self.sizes * self.widths.astype(float) ** 2).sum())

    @property
    def is_cheap(self) -> bool:
        """Whether an elimination takes seconds, and its factors fit."""
        return self.multiplications <= CHEAP and 8 * int(self.places[-1]) <= memory_limit()

    @property
    def places(self) -> np.ndarray:
        """Where the factors of each class begin, and how many there are."""
        return np.concatenate([[0], np.cumsum(self.sizes * (2 * self.widths + 1))])


def class_order(rates: csr_array) -> ClassOrder:
    """Return the classes of a chain in order, the states of each as they come, or as Cuthill and McKee order them if that is narrower.

    Parameters
    ----------
    rates : csr_array, shape (n, n)
        By source, none on the diagonal.

    Examples
    --------
    >>> found = class_order(csr_array([[0, 0, 0, 1.0], [1.0, 0, 1.0, 0], [0, 1.0, 0, 0], [0, 0, 0, 0]]))
    >>> found.states.tolist(), found.begins.tolist(), found.widths.tolist()
    ([1, 2, 0, 3], [0, 2, 3, 4], [1, 0, 0])
    """
    n = rates.shape[0]
    count, class_of = csgraph.connected_components(rates, directed=True, connection="strong")
    class_of = class_of.astype(np.int64)
    sizes = np.bincount(class_of, minlength=count)
    first = np.concatenate([[0], np.cumsum(sizes)])
    members = np.argsort(class_of, kind="stable")
    widths = np.zeros(count, dtype=np.int64)
    if count < n:
        begin = np.repeat(np.arange(n), np.diff(rates.indptr))
        within = class_of[begin] == class_of[rates.indices]
        begin, end = begin[within], rates.indices[within].astype(np.int64)
        inner = csr_array((np.ones(len(begin), dtype=np.int8), (begin, end)), shape=(n, n))
        rank = np.empty(n, dtype=np.int64)
        rank[csgraph.reverse_cuthill_mckee(inner, symmetric_mode=False)] = np.arange(n)
        other = np.lexsort((rank, class_of))
        widths, narrower = (_widths(order, class_of, begin, end, count) for order in (members, other))
        members = np.where((narrower < widths)[class_of[members]], other, members)
        widths = np.minimum(widths, narrower)
    order = ways(rates.indptr, rates.indices, class_of, members, first)
    begins = np.concatenate([[0], np.cumsum(sizes[order])])
    states = members[np.arange(n) + np.repeat(first[order] - begins[:-1], sizes[order])]
    position = np.empty(n, dtype=np.int64)
    position[states] = np.arange(n)
    return ClassOrder(states, position, begins, widths[order])


def _widths(order: np.ndarray, class_of: np.ndarray, begin: np.ndarray, end: np.ndarray, count: int) -> np.ndarray:
    """Return how many places away the transitions inside each class lead at most, in an order of the states class by class."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    found = np.zeros(count, dtype=np.int64)
    np.maximum.at(found, class_of[begin], np.abs(place[begin] - place[end]))
    return found


@dataclass(frozen=True, eq=False)
class ClassFactors:
    """The factors of `class_factors`.

    Attributes
    ----------
    order : ClassOrder
    factors : ndarray
        Of each class a band, by rows: what is passed on above the diagonal and below it, pivots on it.
    rates : csr_array, shape (n, n)
        By source.
    """

    order: ClassOrder
    factors: np.ndarray
    rates: csr_array

    @cached_property
    def error(self) -> float:
        """A bound on the relative error of each number in an answer, to first order, for right sides >= 0.

        What the longest way through the classes adds up: each sum of some terms, and a quotient, once for each class on it, and
        for a class of m states and the width w what its m steps do: each changes w rows and its own by 30 units of roundoff at
        most, which changes the inverse by twice as much for each of them (`MFactors.error`, where w is m).

        Examples
        --------
        >>> class_factors(csr_array([[0, 1.0, 0], [0, 0, 1.0], [0, 0, 0]]), np.array([0, 0, 1.0])).error / 2.0**-52
        12.0
        """
        rates = self.rates
        most = max(np.diff(rates.indptr).max(initial=0), np.bincount(rates.indices, minlength=1).max())
        sizes = self.order.sizes
        costs = (
            most + 3.0 + np.where(sizes > 1, 32.0 * sizes * np.minimum(self.order.widths + 1.0, 20 / 32 * sizes), 0.0)
        )
        class_of = np.repeat(np.arange(len(sizes)), sizes)  # by position
        longest(rates.indptr, rates.indices, self.order.states, self.order.position, class_of, costs)
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
        rates, order = self.rates, self.order
        rows = (order.states, order.position, order.begins, order.widths, order.places)
        kernel(rates.indptr, rates.indices, rates.data, *rows, self.factors, vector)


def class_factors(rates: csr_array, leave: np.ndarray, order: ClassOrder | None = None) -> ClassFactors:
    """Factorize class by class.

    Parameters
    ----------
    rates : csr_array, shape (n, n)
        Positive, by source, none on the diagonal.
    leave : ndarray, shape (n,)
        >= 0: the rates out of these states, or what else is added to the diagonal.
    order : ClassOrder, optional
        Of these rates; found if it is not known.

    Raises
    ------
    ModelError
        If the matrix is singular: some states are never left.
    MemoryLimitError
        If the factors do not fit.

    Examples
    --------
    >>> found = class_factors(csr_array([[0, 1.0, 0], [2.0, 0, 1.0], [0, 0, 0]]), np.array([0, 0, 1.0]))
    >>> found.order.begins.tolist(), found.solve(np.ones(3)).tolist()
    ([0, 2, 3], [5.0, 4.0, 1.0])
    """
    order = class_order(rates) if order is None else order
    places = order.places
    require_memory("the factors of the classes", 8 * int(places[-1]), states=rates.shape[0])
    factors = np.zeros(int(places[-1]))
    never_left = factorize(
        rates.indptr, rates.indices, rates.data, order.states, order.position, order.begins, order.widths, places,
        factors, leave,
    )  # fmt: skip
    if never_left >= 0:
        raise ModelError(
            f"row {never_left} and those that it leads to in its class are never left: the matrix is singular."
        )
    return ClassFactors(order, factors, rates)


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
    indptr: Any, columns: Any, rates: Any, states: Any, position: Any, begins: Any, widths: Any, places: Any, factors: Any,
    leave: Any,
) -> Any:  # fmt: skip
    """Eliminate the states of each class from the last to the first; return a state whose class is never left, else -1."""
    for c in range(begins.size - 1):
        b, m, w = begins[c], begins[c + 1] - begins[c], widths[c]
        band = factors[places[c] : places[c + 1]].reshape((m, 2 * w + 1))  # row a has the columns a - w .. a + w
        out = np.empty(m)
        for a in range(m):
            i = states[b + a]
            out[a] = leave[i]
            for k in range(indptr[i], indptr[i + 1]):
                other = position[columns[k]] - b
                if 0 <= other < m:
                    band[a, other - a + w] += rates[k]
                else:
                    out[a] += rates[k]
        for e in range(m - 1, -1, -1):
            low = max(0, e - w)
            pivot = out[e]
            for j in range(low, e):
                pivot += band[e, j - e + w]
            if not pivot > 0:
                return states[b + e]
            band[e, w] = pivot
            for a in range(low, e):
                share = band[a, e - a + w] / pivot
                band[a, e - a + w] = share
                if share > 0:
                    for j in range(low, e):
                        band[a, j - a + w] += share * band[e, j - e + w]
                    out[a] += share * out[e]
    return -1


@compiled
def solve_classes(
    indptr: Any, columns: Any, rates: Any, states: Any, position: Any, begins: Any, widths: Any, places: Any, factors: Any,
    x: Any,
) -> None:  # fmt: skip
    """Replace the right side by the solution, from the last class to the first."""
    for c in range(begins.size - 2, -1, -1):
        b, m, w = begins[c], begins[c + 1] - begins[c], widths[c]
        band = factors[places[c] : places[c + 1]].reshape((m, 2 * w + 1))
        for a in range(m):
            i = states[b + a]
            total = x[i]
            for k in range(indptr[i], indptr[i + 1]):
                if position[columns[k]] - b >= m:
                    total += rates[k] * x[columns[k]]
            x[i] = total
        for e in range(m - 1, -1, -1):
            for a in range(max(0, e - w), e):
                x[states[b + a]] += band[a, e - a + w] * x[states[b + e]]
        for e in range(m):
            total = x[states[b + e]]
            for a in range(max(0, e - w), e):
                total += band[e, a - e + w] * x[states[b + a]]
            x[states[b + e]] = total / band[e, w]


@compiled
def solve_classes_left(
    indptr: Any, columns: Any, rates: Any, states: Any, position: Any, begins: Any, widths: Any, places: Any, factors: Any,
    y: Any,
) -> None:  # fmt: skip
    """Replace the left side by the solution, from the first class to the last."""
    for c in range(begins.size - 1):
        b, m, w = begins[c], begins[c + 1] - begins[c], widths[c]
        band = factors[places[c] : places[c + 1]].reshape((m, 2 * w + 1))
        for e in range(m - 1, -1, -1):
            total = y[states[b + e]] / band[e, w]
            y[states[b + e]] = total
            for a in range(max(0, e - w), e):
                y[states[b + a]] += band[e, a - e + w] * total
        for e in range(m):
            total = y[states[b + e]]
            for a in range(max(0, e - w), e):
                total += y[states[b + a]] * band[a, e - a + w]
            y[states[b + e]] = total
        for a in range(m):
            i = states[b + a]
            for k in range(indptr[i], indptr[i + 1]):
                if position[columns[k]] - b >= m:
                    y[columns[k]] += rates[k] * y[i]
