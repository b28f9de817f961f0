"""The supermarket's transitions in the lattice form: one whole number per server and state, nothing else.

Arrival rates are whole multiples of one unit: with replacement of lambda / M^d, since (a^d - (a - t)^d) / t is a whole number,
without of lambda / (C(M, d) d!).  A state y is entered from y - e_i at a rate that depends on how many servers are better than
server i there, and how many tie with it.  A whole row of states, in which only the last queue changes, is written at once: what
the other servers say about server i is counted once a row, and the last server joins in from two tables of comparisons.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import Any

import numba
import numpy as np

from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.state_space import Lattice
from ctmc.model.streamed import StreamedTransitions, made_lattice
from ctmc.model.transitions import LatticeTransitions, begin_digits, count_up

_ROWS = 64
"""Rows per block of work."""


def lattice_transitions(
    space: Lattice,
    keys: np.ndarray,
    probabilities: tuple[tuple[Fraction, ...], ...],
    arrival_rate: float,
    service_rates: np.ndarray,
) -> LatticeTransitions | StreamedTransitions | None:
    """Return the transitions, or None where the weights need more than 16 bits.

    Parameters
    ----------
    space : Lattice
        A box.
    keys : ndarray of int64, shape (M, largest limit + 1)
        Preference key of each server at each queue length.
    probabilities : list of list of Fraction
        Share of a server, by the number of better and of tied servers.
    arrival_rate : float
    service_rates : ndarray, shape (M,)
    """
    servers, denominator = len(service_rates), _denominator(probabilities)
    most = max(int(share * denominator) for row in probabilities for share in row)
    if most > np.iinfo(np.uint16).max:
        return None
    numbers = np.array([[int(share * denominator) for share in row] for row in probabilities], dtype=np.int64)
    sides = np.array(space.limits, dtype=np.int64) + 1
    kind = np.dtype(np.uint8 if most <= 255 else np.uint16)

    def weights(begin: int, end: int) -> np.ndarray:
        found = np.empty((servers, end - begin), dtype=kind)
        _fill(begin // sides[-1], sides, space.strides, keys.astype(np.int32), numbers.astype(kind), found)
        return found

    unit, departures = lattice_rates(space, probabilities, arrival_rate, service_rates)
    return made_lattice(space.size, weights, unit, departures, sides, space.strides)


def lattice_rates(
    space: Lattice,
    probabilities: tuple[tuple[Fraction, ...], ...],
    arrival_rate: float,
    service_rates: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return unit and departures, the two small arrays that hold all rates; shapes (1,) and (M, largest limit + 1)."""
    departures = np.repeat(service_rates[:, None], max(space.limits) + 1, axis=1)
    return np.array([arrival_rate / _denominator(probabilities)]), departures


def _denominator(probabilities: tuple[tuple[Fraction, ...], ...]) -> int:
    return lcm(*(share.denominator for row in probabilities for share in row))


@compiled_parallel
def _fill(first: Any, sides: Any, strides: Any, keys: Any, numbers: Any, weights: Any) -> None:
    """Write the weights of the states from a row on.  Moves one or two bytes a server and state."""
    rows = weights.shape[1] // sides[sides.size - 1]
    for block in numba.prange((rows + _ROWS - 1) // _ROWS):
        low = np.int64(block) * _ROWS
        _fill_rows(first, sides, strides, keys, numbers, weights, low, min(low + _ROWS, rows))


@compiled
def _fill_rows(
    first: Any, sides: Any, strides: Any, keys: Any, numbers: Any, weights: Any, begin: Any, end: Any
) -> None:
    last = sides.size - 1
    width = sides[last]
    digits = begin_digits((first + begin) * width, sides, strides)
    better, tied = np.empty(width, dtype=np.int64), np.empty(width, dtype=np.int64)
    for row in range(begin, end):
        a = row * width
        for i in range(last):
            out = weights[i, a : a + width]
            if digits[i] == 0:
                out[:] = 0
                continue
            own = keys[i, digits[i] - 1]
            ahead, even = 0, 1
            for j in range(last):
                if j != i:
                    other = keys[j, digits[j]]
                    ahead += other < own
                    even += other == own
            _join_last(out, keys[last], own, numbers[ahead, even], numbers[ahead, even + 1], numbers[ahead + 1, even])
        better[:] = 0
        tied[:] = 1
        for j in range(last):
            _compare(better, tied, keys[last], keys[j, digits[j]])
        out = weights[last, a : a + width]
        out[0] = 0
        for x in range(width - 1):
            out[x + 1] = numbers[better[x], tied[x]]
        digits[last] = width - 1
        count_up(digits, sides)


@compiled
def _join_last(out: Any, last: Any, own: Any, if_worse: Any, if_tied: Any, if_better: Any) -> None:
    """Write the weight of a server with this key for every length of the last queue, by the last server's keys."""
    for x in range(out.size):
        out[x] = if_better if last[x] < own else (if_tied if last[x] == own else if_worse)


@compiled
def _compare(better: Any, tied: Any, last: Any, other: Any) -> None:
    """Count another server where it is better than the last one, or ties with it."""
    for x in range(better.size):
        better[x] += other < last[x]
        tied[x] += other == last[x]
