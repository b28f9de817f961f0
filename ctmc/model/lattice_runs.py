"""How a lattice is cut into runs of neighbouring states, for the loops of `ctmc.model.lattice_products`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ctmc.model.transitions import LatticeTransitions

_LEAST_RUN = 1000
"""Shorter runs are joined, as long as that leaves enough of them for several threads."""
_LEAST_RUNS = 8


class Runs(NamedTuple):
    """How a lattice is cut into runs; distances and lengths are in elements of the layout.

    Attributes
    ----------
    length : ndarray of int64, shape (1,)
    outer_sides, outer_strides : ndarray of int64, shape (outer,)
    outer_departures : ndarray, shape (outer, largest side + 1)
        Rate of the departure *into* a state with y_i = column, 0 in the last one.
    inner_strides : ndarray of int64, shape (inner,)
        Of the inner coordinates but the last.
    inner_departures : ndarray, shape (2, inner, length)
        The same rates along a run, by its parity.
    upper : ndarray of bool, shape (2, length)
        Whether the last coordinate steps down inside the element and up to the next one; else down to the one before and up inside.
    last_departures : ndarray, shape (2, length)
        Rate of the departure of the last coordinate into a state.
    outer_leaving : ndarray, shape (outer, largest side)
        Rate of the departure *out of* a state, by its coordinate.
    leaving : ndarray, shape (2, length)
        The same rates of all inner coordinates together, along a run; 1 in elements that belong to no state.
    """

    length: Any
    outer_sides: Any
    outer_strides: Any
    outer_departures: Any
    inner_strides: Any
    inner_departures: Any
    upper: Any
    last_departures: Any
    outer_leaving: Any
    leaving: Any


def runs(lattice: LatticeTransitions, *, halved: bool) -> Runs:
    """Cut a lattice into runs.

    Examples
    --------
    >>> side = np.array([4, 6])
    >>> rates = LatticeTransitions(np.zeros((2, 24), np.uint8), np.ones(1), np.ones((2, 6)), side, np.array([6, 1]))
    >>> cut = runs(rates, halved=True)
    >>> int(cut.length[0]), cut.upper[0].astype(int).tolist()
    (12, [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1])
    """
    sides = lattice.sides.astype(np.int64)
    count = len(sides)
    width = int(sides[-1])
    if halved:
        width = (width + 1) // 2
    inner, length = 0, width
    elements = width * int(np.prod(sides[:-1]))
    while inner < count - 1 and (inner == 0 or length < _LEAST_RUN):
        longer = length * int(sides[count - 2 - inner])
        if inner > 0 and elements < _LEAST_RUNS * longer:
            break
        inner, length = inner + 1, longer
    outer = count - 1 - inner
    strides = np.array([width * int(np.prod(sides[i + 1 : -1])) for i in range(count - 1)], dtype=np.int64)
    into = np.zeros((count, int(sides.max()) + 1))  # rate of the departure into a state, by its own queue length
    for i, side in enumerate(sides):
        into[i, : side - 1] = lattice.departures[i, 1:side]
    element = np.arange(length)
    digits = [element // strides[outer + i] % sides[outer + i] for i in range(inner)]
    inner_departures = np.array([into[outer + i][digit] for i, digit in enumerate(digits)]).reshape(inner, length)
    out_of = lattice.departures.copy()
    out_of[:, 0] = 0
    inner_leaving = sum((out_of[outer + i][digit] for i, digit in enumerate(digits)), start=np.zeros(length))
    upper, last_departures, leaving = np.zeros((2, length), np.bool_), np.zeros((2, length)), np.ones((2, length))
    for parity in (0, 1):
        last = element % width
        if halved:
            upper[parity] = (parity + sum(digits, start=np.zeros(length, dtype=np.int64))) % 2 == 1
            last = 2 * last + upper[parity]
        inside = last < sides[-1]  # an odd side is made even by a value that no state has
        last_departures[parity][inside] = into[-1][last[inside]]
        leaving[parity][inside] = (inner_leaving + out_of[-1][np.minimum(last, sides[-1] - 1)])[inside]
    if not halved:
        # flat: down to the element before, up from the one after
        upper[:] = True
    return Runs(
        np.array([length], dtype=np.int64), sides[:outer], strides[:outer], np.ascontiguousarray(into[:outer]),
        strides[outer:], np.ascontiguousarray(np.stack([inner_departures] * 2)), upper, last_departures,
        np.ascontiguousarray(out_of[:outer]), leaving,
    )  # fmt: skip


class BackwardRuns(NamedTuple):
    """The same for products from the right, in the flat layout: flows out of a state instead of into it.

    Attributes
    ----------
    length : ndarray of int64, shape (1,)
    outer_sides : ndarray of int64, shape (outer,)
    outer_departures : ndarray, shape (outer, largest side)
    strides : ndarray of int64, shape (M,)
    ahead : ndarray, shape (M - outer, length)
        1 where an inner coordinate is below its limit.
    departures : ndarray, shape (M - outer, length)
        Departure rate of an inner coordinate along a run, 0 where it is 0.
    """

    length: Any
    outer_sides: Any
    outer_departures: Any
    strides: Any
    ahead: Any
    departures: Any


def backward_runs(lattice: LatticeTransitions) -> BackwardRuns:
    """Cut a lattice into runs for products from the right."""
    sides, strides = lattice.sides.astype(np.int64), lattice.strides.astype(np.int64)
    length = int(runs(lattice, halved=False).length[0])
    outer = int(np.sum(strides >= length))
    element = np.arange(length)
    digits = [element // strides[i] % sides[i] for i in range(outer, len(sides))]
    ahead = np.array([digit + 1 < side for digit, side in zip(digits, sides[outer:], strict=True)], dtype=np.float64)
    leaving = lattice.departures.copy()
    leaving[:, 0] = 0
    departures = np.array([leaving[outer + i][digit] for i, digit in enumerate(digits)])
    return BackwardRuns(
        np.array([length], dtype=np.int64),
        sides[:outer],
        np.ascontiguousarray(leaving[:outer]),
        strides,
        ahead,
        departures,
    )
