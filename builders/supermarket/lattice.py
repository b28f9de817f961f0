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
from ctmc.model.transitions import LatticeTransitions

_ROWS = 64
"""Rows per block of work."""


def lattice_transitions(
    space: Lattice,
    keys: np.ndarray,
    probabilities: list[list[Fraction]],
    arrival_rate: float,
    service_rates: np.ndarray,
) -> tuple[LatticeTransitions, np.ndarray] | None:
    """Return the transitions and the exit rates, or None where the weights need more than 16 bits.

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
    servers = len(service_rates)
    denominator = lcm(*(share.denominator for row in probabilities for share in row))
    most = max(int(share * denominator) for row in probabilities for share in row)
    if most > np.iinfo(np.uint16).max:
        return None
    numbers = np.array([[int(share * denominator) for share in row] for row in probabilities], dtype=np.int64)
    sides = np.array(space.limits, dtype=np.int64) + 1
    weights = np.empty((servers, space.size), dtype=np.uint8 if most <= 255 else np.uint16)
    unit = arrival_rate / denominator
    exit_rates = np.empty(space.size)
    _fill(
        sides,
        space.strides,
        keys,
        numbers.astype(weights.dtype),
        numbers.astype(np.float64),
        unit,
        service_rates,
        weights,
        exit_rates,
    )
    departures = np.repeat(service_rates[:, None], int(sides.max()), axis=1)
    return LatticeTransitions(weights, np.array([unit]), departures, sides, space.strides), exit_rates


@compiled_parallel
def _fill(
    sides: Any, strides: Any, keys: Any, numbers: Any, accepted: Any, unit: float, service_rates: Any, weights: Any,
    exit_rates: Any,
) -> None:  # fmt: skip
    rows = exit_rates.size // sides[sides.size - 1]
    for block in numba.prange((rows + _ROWS - 1) // _ROWS):
        _fill_rows(
            sides, strides, keys, numbers, accepted, unit, service_rates, weights, exit_rates,
            block * _ROWS, min((block + 1) * _ROWS, rows),
        )  # fmt: skip


@compiled
def _fill_rows(
    sides: Any, strides: Any, keys: Any, numbers: Any, accepted: Any, unit: float, service_rates: Any, weights: Any,
    exit_rates: Any, begin: int, end: int,
) -> None:  # fmt: skip
    servers = sides.size
    width = sides[servers - 1]
    state = np.empty(servers, dtype=np.int64)
    for i in range(servers):
        state[i] = begin * width // strides[i] % sides[i]
    arriving = np.empty(width)
    for row in range(begin, end):
        a = row * width
        arriving[:] = 0.0
        leaving = 0.0
        for i in range(servers - 1):
            leaving += service_rates[i] if state[i] > 0 else 0.0
            if state[i] > 0:
                _weights_of(keys, numbers, state, i, state[i] - 1, weights[i, a : a + width])
            else:
                weights[i, a : a + width] = 0
            if state[i] + 1 < sides[i]:
                _add_accepted(keys, accepted, state, i, arriving)
        _last_weights(keys, numbers, accepted, state, weights[servers - 1, a : a + width], arriving)
        last_rate = service_rates[servers - 1]
        exits = exit_rates[a : a + width]
        for x in range(width):
            exits[x] = arriving[x] * unit + (leaving + (last_rate if x > 0 else 0.0))
        i = servers - 2
        while i >= 0:
            state[i] += 1
            if state[i] < sides[i]:
                break
            state[i] = 0
            i -= 1


@compiled
def _ranks(keys: Any, state: Any, i: int, own: int) -> tuple[int, int]:
    """Count the servers but i and the last one that are better than this key, and those that tie with it."""
    better, tied = 0, 1
    for j in range(state.size - 1):
        if j != i:
            other = keys[j, state[j]]
            better += other < own
            tied += other == own
    return better, tied


@compiled
def _weights_of(keys: Any, numbers: Any, state: Any, i: int, length: int, out: Any) -> None:
    """Write the weights of server i at this queue length, for every length of the last queue."""
    own = keys[i, length]
    better, tied = _ranks(keys, state, i, own)
    last = keys[state.size - 1]
    worse_last, tied_last, better_last = numbers[better, tied], numbers[better, tied + 1], numbers[better + 1, tied]
    for x in range(out.size):
        key = last[x]
        out[x] = better_last if key < own else (tied_last if key == own else worse_last)


@compiled
def _add_accepted(keys: Any, accepted: Any, state: Any, i: int, arriving: Any) -> None:
    own = keys[i, state[i]]
    better, tied = _ranks(keys, state, i, own)
    last = keys[state.size - 1]
    worse_last, tied_last, better_last = accepted[better, tied], accepted[better, tied + 1], accepted[better + 1, tied]
    for x in range(arriving.size):
        key = last[x]
        arriving[x] += better_last if key < own else (tied_last if key == own else worse_last)


@compiled
def _last_weights(keys: Any, numbers: Any, accepted: Any, state: Any, out: Any, arriving: Any) -> None:
    """Write the weights of the last server, and add what it accepts at each of its lengths."""
    last = state.size - 1
    out[0] = 0
    for x in range(out.size - 1):
        better, tied = _ranks(keys, state, last, keys[last, x])
        out[x + 1] = numbers[better, tied]
        arriving[x] += accepted[better, tied]
