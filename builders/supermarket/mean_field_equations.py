"""The equations of the supermarket model with infinitely many servers: drift, fixed point, course over time.

Servers come in classes.  The state is the table of tails s[c, k], the part of the servers of class c that have k and more
jobs.  With p[c, k] = s[c, k] - s[c, k + 1], the d sampled servers are independent in the limit, so with A the part of all
servers whose key is at least that of (c, k), and B the part whose key is larger, a server of class c with k jobs gets jobs at
the rate

    a[c, k] = arrival_rate (A^d - B^d) / (A - B) = arrival_rate (A^(d-1) + A^(d-2) B + .. + B^(d-1)),

which shares ties evenly, and s'[c, k] = a[c, k-1] p[c, k-1] - mu[c] p[c, k].  Keys do not fall with the queue length, so A and B
are sums of tails, one of each class, and nothing is subtracted.

Two facts carry the numerics.  No entry of the Jacobian off the diagonal is negative, and its columns, weighted by the shares,
have no positive sum (a job more never raises the total inflow).  So the flow keeps the order of states, and it never lets two
states drift apart in the norm sum_c share_c sum_k |s[c, k]|: errors of integration add up, but do not grow.

Source, for equal servers: N. D. Vvedenskaya, R. L. Dobrushin, F. I. Karpelevich, *Queueing system with selection of the shortest
of two queues: an asymptotic approach*, Problems of Information Transmission 32 (1996); M. Mitzenmacher, *The power of two choices
in randomized load balancing*, IEEE Transactions on Parallel and Distributed Systems 12 (2001).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.integrate import BDF, LSODA
from scipy.sparse.linalg import splu

from ctmc.errors import ModelError, UnstableError

BEYOND = 1e-14
"""Part of a class that may have as many jobs as the last level, at most."""
LARGEST_LEVELS = 2**16
_FIRST_LEVELS = 32
_FORECAST_LEVELS = 1024
"""From here on the decay of the tails tells how many levels they need."""
_ROUNDS = 1000
_SETTLED = 1e-11
"""Norm of the drift at a fixed point, relative to the arrival rate, at most."""
_LONGEST_STEP = 1e13
"""Of implicit Euler, in units of the fastest event: then a step is one of Newton."""
_RELATIVE, _ABSOLUTE = 1e-11, 1e-15
_DENSE = 600
"""Unknowns up to which LSODA may ask for a dense Jacobian."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(5)


@dataclass(frozen=True, kw_only=True)
class Equations:
    """The differential equations of the tails, with at most `levels` jobs per server.

    Attributes
    ----------
    arrival_rate : float
        Per server and unit of time.
    choices : int
    service_rates, shares : ndarray, shape (C,)
    keys : ndarray of int, shape (C, K + 1)
        Smaller is better, equal ones tie; non-decreasing along each row.
    """

    arrival_rate: float
    choices: int
    service_rates: np.ndarray
    shares: np.ndarray
    keys: np.ndarray

    @property
    def levels(self) -> int:
        """K: servers with K jobs get no more."""
        return self.keys.shape[1] - 1

    @cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """For class b, and class c with k jobs: the first queue length of b whose key is not smaller, and is larger."""
        at, above = (
            np.array([np.searchsorted(row, self.keys, side=side) for row in self.keys]) for side in ("left", "right")
        )
        return at, above

    def whole(self, unknowns: np.ndarray) -> np.ndarray:
        """Return the tails with s[c, 0] = 1 and s[c, K + 1] = 0; shape (.., C, K + 2) from (.., C K)."""
        shape = (*unknowns.shape[:-1], len(self.shares), self.levels + 2)
        tails = np.zeros(shape)
        tails[..., 0] = 1
        tails[..., 1:-1] = unknowns.reshape(*shape[:-1], self.levels)
        return tails

    def ranks(self, tails: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return A and B, the parts of all servers with a key not smaller, and larger; shape (.., C, K + 1)."""
        parts = []
        for places in self.places:
            part = np.zeros((*tails.shape[:-1], self.levels + 1))
            for share, row, place in zip(self.shares, np.moveaxis(tails, -2, 0), places, strict=True):
                part += share * row[..., place]
            parts.append(part)
        return parts[0], parts[1]

    def drift(self, unknowns: np.ndarray) -> np.ndarray:
        """Return s'; shape (.., C K)."""
        tails = self.whole(unknowns)
        lengths = tails[..., :-1] - tails[..., 1:]
        inflow = self.arrival_rate * _powers(*self.ranks(tails), self.choices)[0] * lengths
        change = inflow[..., :-1] - self.service_rates[:, None] * lengths[..., 1:]
        return np.asarray(change.reshape(unknowns.shape))

    def jacobian(self, unknowns: np.ndarray) -> sparse.csc_array:
        """Return the Jacobian of the drift; shape (C K, C K)."""
        tails = self.whole(unknowns)
        classes, levels = len(self.shares), self.levels
        below = (tails[:, :-1] - tails[:, 1:])[:, :-1]  # one job fewer: from here a server comes up to k jobs
        powers, by_a, by_b = (part[:, :-1] for part in _powers(*self.ranks(tails), self.choices))
        number = np.arange(classes * levels).reshape(classes, levels)
        inflow, service = self.arrival_rate * powers, np.broadcast_to(self.service_rates[:, None], number.shape)
        entries = [
            (number, number, -inflow - service),
            (number[:, 1:], number[:, :-1], inflow[:, 1:]),
            (number[:, :-1], number[:, 1:], service[:, :-1]),
        ]
        for places, slope in zip(self.places, (by_a, by_b), strict=True):
            for other in range(classes):
                place = places[other][:, :-1]
                free = (place >= 1) & (place <= levels)
                values = self.arrival_rate * self.shares[other] * slope * below
                entries.append((number[free], other * levels + place[free] - 1, values[free]))
        rows, columns, values = (np.concatenate([np.ravel(entry[part]) for entry in entries]) for part in range(3))
        return sparse.csc_array((values, (rows, columns)), shape=(number.size, number.size))

    def correction(self, unknowns: np.ndarray) -> float:
        """Return the norm of one more step of Newton towards the fixed point: what is left of the error, to first order."""
        return float(self.norm(splu(self.jacobian(unknowns)).solve(self.drift(unknowns))))

    def norm(self, change: np.ndarray) -> Any:
        """Return sum_c share_c sum_k |change[c, k]|; shape (..) from (.., C K)."""
        shape = (*change.shape[:-1], len(self.shares), self.levels)
        return np.abs(change.reshape(shape)).sum(axis=-1) @ self.shares


def _powers(a: np.ndarray, b: np.ndarray, choices: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A^(d-1) + A^(d-2) B + .. + B^(d-1) and its derivatives by A and by B."""
    value, by_a, by_b = np.ones_like(a), np.zeros_like(a), np.zeros_like(a)
    power, slope = b, np.ones_like(b)
    for count in range(1, choices):
        value, by_a, by_b = a * value + power, value + a * by_a, a * by_b + slope
        slope, power = (count + 1) * power, power * b
    return value, by_a, by_b


def fixed_point(make: Callable[[int], Equations]) -> tuple[Equations, np.ndarray]:
    """Return equations with enough levels, and their fixed point.

    Implicit Euler from empty servers, one step of Newton each, with steps that grow until they are steps of Newton.  Levels are
    doubled until a part below 0.1 `BEYOND` of each class has as many jobs as the last, and those that are not needed are taken
    away.

    Parameters
    ----------
    make : callable
        Number of levels -> Equations.

    Returns
    -------
    Equations
    ndarray, shape (C K,)
        The tails s[c, 1], .., s[c, K] of each class.

    Raises
    ------
    UnstableError
        If the tails do not fall far enough up to the largest number of levels.
    """
    levels, classes = _FIRST_LEVELS, len(make(1).shares)
    start = np.zeros(classes * levels)
    while True:
        equations = make(levels)
        found = _settled(equations, start)
        gain = float(equations.norm(equations.drift(found))) / equations.arrival_rate
        if gain > _SETTLED:
            raise UnstableError(
                f"There is no fixed point within reach: after {_ROUNDS} steps with {levels} levels the part {gain:.3g} of the "
                f"arrivals is not balanced; allowed is {_SETTLED:g}."
            )
        tails = found.reshape(classes, levels)
        last = float(tails[:, -1].max())
        if last <= 0.1 * BEYOND:
            break
        needed = levels * np.log(0.1 * BEYOND) / np.log(min(last, 1 - 1e-12)) if levels >= _FORECAST_LEVELS else 0
        if 2 * levels > LARGEST_LEVELS or needed > LARGEST_LEVELS:
            raise UnstableError(
                f"There is no fixed point within reach: {last:.3g} of the servers of a class have {levels} jobs and more; allowed "
                f"is a load at which at most {BEYOND:g} have {LARGEST_LEVELS}."
            )
        start = np.concatenate([tails, np.zeros_like(tails)], axis=1).ravel()
        levels *= 2
    kept = max(2, int((tails > 0.1 * BEYOND).sum(axis=1).max()) + 1)
    equations = make(kept)
    return equations, _settled(equations, tails[:, :kept].ravel(), _LONGEST_STEP)


def _settled(equations: Equations, start: np.ndarray, step: float = 1.0) -> np.ndarray:
    """Return the fixed point, as well as rounding allows."""
    pace = equations.arrival_rate * equations.choices + float(equations.service_rates.max())
    identity = sparse.eye_array(len(start), format="csc")
    state, change = start, equations.drift(start)
    size, stalled = float(equations.norm(change)), 0
    for _ in range(_ROUNDS):
        matrix = sparse.csc_array((pace / step) * identity - equations.jacobian(state))
        moved = (state + splu(matrix).solve(change)).reshape(len(equations.shares), -1)
        # what a step of Newton oversteps: tails are between 0 and 1, and do not rise with the queue length
        trial = np.minimum.accumulate(np.clip(moved, 0, 1), axis=1).ravel()
        drift = equations.drift(trial)
        reached = float(equations.norm(drift))
        if not reached <= 2 * size:  # not a number as well
            if step >= _LONGEST_STEP:
                stalled += 1
            step /= 8
        else:
            stalled += step >= _LONGEST_STEP and reached > 0.5 * size
            if reached < size or step < _LONGEST_STEP:
                state, change, size = trial, drift, reached
            step = min(4 * step, _LONGEST_STEP)
        if stalled > 3 or size == 0:
            break
    return state


def course(equations: Equations, initial: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the tails at given times, the defect, and the largest part of a class at the last level.

    LSODA, which changes between Adams and BDF methods, and BDF with a sparse Jacobian where there are many unknowns; relative
    tolerance 1e-11, absolute 1e-15.

    Parameters
    ----------
    equations : Equations
    initial : ndarray, shape (C K,)
        Tails at time 0.
    times : ndarray, shape (T,)
        Ascending, >= 0.

    Returns
    -------
    tails : ndarray, shape (T, C K)
    defect : float
        Max over the steps up to t of the norm of s(t) - s(0) - integral of the drift over [0, t], by five Gauss points a step.
    last : float
        Max over the steps.
    """
    values = np.tile(initial, (len(times), 1))
    if times[-1] == 0:
        return values, 0.0, 0.0

    def drift(time: float, state: np.ndarray) -> np.ndarray:
        return equations.drift(state)

    settings: dict[str, Any] = {"rtol": _RELATIVE, "atol": _ABSOLUTE}
    if len(initial) <= _DENSE:
        method = LSODA(
            drift, 0.0, initial, times[-1], jac=lambda _, state: equations.jacobian(state).toarray(), **settings
        )
    else:
        method = BDF(drift, 0.0, initial, times[-1], jac=lambda _, state: equations.jacobian(state), **settings)
    inflow, defect, last = np.zeros_like(initial), 0.0, 0.0
    while method.status == "running":
        message = method.step()
        if method.status == "failed":
            raise ModelError(f"times reach to {times[-1]:g}, but the integration stopped at {method.t:g}: {message}")
        begin, end, inside = method.t_old, method.t, method.dense_output()
        nodes = begin + (end - begin) * (1 + _NODES) / 2
        inflow += (end - begin) / 2 * (_WEIGHTS @ equations.drift(inside(nodes).T))
        defect = max(defect, float(equations.norm(method.y - initial - inflow)))
        last = max(last, float(method.y.reshape(len(equations.shares), -1)[:, -1].max()))
        here = (times > begin) & (times <= end)
        if here.any():
            values[here] = inside(times[here]).T
    return values, defect, last
