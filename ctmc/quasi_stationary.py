"""Quasi-stationary distributions: how a chain looks in the long run while it has not entered a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

from ctmc.equation import Equation
from ctmc.errors import ModelError, SolveError
from ctmc.interval import EPSILON
from ctmc.model.communication import reachable_within
from ctmc.model.generator import Generator
from ctmc.model.stopped import one_class
from ctmc.model.summary import Rows, Summarised
from ctmc.passage import SMALL
from ctmc.problem import FirstPassage
from ctmc.solution import HISTORY, Solution, Status

_MOST_STEPS = 20_000
_FACTOR = 1.02
_POLISHES = 200
_POLISHED = 1e-9
_LEAST = 1e-100


@dataclass(frozen=True, eq=False, repr=False)
class QuasiStationary(Summarised):
    """How a chain looks in the long run while it has not entered the target.

    Attributes
    ----------
    distribution : ndarray, shape (n,)
        Over the states outside the target, 0 in it.
    decay_rate : float
        P{not yet entered} falls as exp(-decay_rate t); from this distribution the time is exponential with this rate.
    decay_bounds : tuple of float
        Between which the decay rate is proven to lie.
    residual : float
        ||nu Q + decay_rate nu||_1 over the states outside, relative to the probability flow sum_i nu_i q_i.
    """

    distribution: np.ndarray
    decay_rate: float
    decay_bounds: tuple[float, float]
    residual: float

    def _summary(self) -> tuple[str, Rows]:
        low, high = self.decay_bounds
        return "Quasi-stationary distribution", [
            ("states", f"{np.count_nonzero(self.distribution):,} of {len(self.distribution):,}"),
            ("decay rate", f"{self.decay_rate:.10g}"),
            ("proven", f"{low:.10g} to {high:.10g}"),
            ("residual", f"{self.residual:.3g}"),
        ]


def quasi_stationary(
    model: Generator, target: Any, initial: Any = None, *, tolerance: float = 1e-10
) -> QuasiStationary:
    """Return the distribution that does not change while the target is not entered: nu Q_SS = -decay_rate nu.

    Up to 3000 states by inverse iteration with factors of -Q_SS in which nothing is subtracted; above by Arnoldi's method on the
    uniformized chain.  For any positive nu the decay rate lies between the least and the largest (-nu Q)_i / nu_i (Collatz and
    Wielandt); these are the bounds.  Source: J. N. Darroch, E. Seneta, *On quasi-stationary distributions in absorbing
    continuous-time finite Markov chains*, J. Appl. Probab. 4 (1967).

    Parameters
    ----------
    model : Generator
    target : str or callable
        As in `FirstPassage`.
    initial : state, mapping, vector or Distribution, optional
        Only states that are reached from there count; default the model's own, all states where it has none.
    tolerance : float
        Largest accepted residual.

    Raises
    ------
    ModelError
        If the states that count are not one class, or do not lead to the target.
    SolveError
        If the residual is too large.

    Examples
    --------
    >>> walk = Generator.from_matrix(np.diag([0, 1.0, 1.0], 1) + np.diag([1.0, 1.0, 0], -1))
    >>> found = quasi_stationary(walk, "state == 3 or state == 0")
    >>> found.distribution.round(9).tolist(), round(found.decay_rate, 9)
    ([0.0, 0.5, 0.5, 0.0], 1.0)
    """
    problem = FirstPassage(model, target, model.initial if initial is None else initial, moments=1, tolerance=tolerance)
    inside = ~problem.target_states
    if problem.initial is not None:
        inside = reachable_within(model, inside & (problem.initial.dense(model.size) > 0), inside)
    into = model.backward(problem.target_states.astype(np.float64))
    if not into[inside].any():
        raise ModelError(
            "the target is never entered from the states that count; allowed is one that some of them leads to."
        )
    one_class(model, inside, "the states outside the target that count")
    nu = np.zeros(model.size)
    if np.count_nonzero(inside) <= SMALL:
        nu[inside], bounds = _inverse_iteration(Equation(model, np.ones(model.size), inside=inside))
    else:
        nu = _arnoldi(model, inside, np.where(inside, into, 0.0))
        bounds = _enclosed(model, nu, inside)
    flow = model.forward(nu)[inside]
    rate = float(nu[inside] @ into[inside])
    residual = float(np.abs(flow + rate * nu[inside]).sum() / (nu @ model.exit_rates))
    if not residual <= tolerance:
        reason = f"the residual {residual:.2g} of the quasi-stationary distribution is not within {tolerance:g}."
        failed = Solution(
            problem, nu, Status.INACCURATE, reason, residual, np.empty(0, HISTORY), 0.0, 0, "quasi_stationary"
        )
        raise SolveError(reason, failed)
    nu.flags.writeable = False
    return QuasiStationary(nu, rate, bounds, residual)


def _enclosed(model: Generator, nu: np.ndarray, inside: np.ndarray) -> tuple[float, float]:
    """Return the least and largest (-nu Q)_i / nu_i, with all rounding of the product and of the stored exit rates added.

    Above lies the least exit rate, too: no state is left more slowly than all of them together.
    """
    exits = model.exit_rates[inside]
    into, out = (most[inside] + 4 for most in (model.most_transitions_in(), model.most_transitions_out()))
    off = np.abs(model.backward(np.ones(model.size)))[inside] + 2 * EPSILON * out * exits
    least = float((exits + off).min())
    if not (nu[inside] > 0).all():
        return 0.0, least
    ratios = -model.forward(nu)[inside] / nu[inside]
    rounding = 1.01 * EPSILON * into * (np.abs(ratios) + 2 * exits) + off
    return max(0.0, float((ratios - rounding).min())), min(least, float((ratios + rounding).max()))


def _inverse_iteration(equation: Equation) -> tuple[np.ndarray, tuple[float, float]]:
    """Return nu and bounds of the decay rate; the ratios of two iterates enclose its inverse."""
    factors = equation.factors()
    nu = np.full(len(factors.work), 1.0 / len(factors.work))
    low, high, best = 0.0, math.inf, math.inf
    for step in range(_MOST_STEPS):
        after = factors.solve_left(nu)
        ratios = nu / after
        low, high = max(low, float(ratios.min())), min(high, float(ratios.max()))
        nu = after / after.sum()
        width = float(ratios.max() / ratios.min() - 1)
        if width <= 1e-15 or (step > 50 and width < 1e-12 and width >= 0.99 * best):
            break
        best = min(best, width)
    off = factors.error
    return nu, (low * (1 - off), high * (1 + off))


def _arnoldi(model: Generator, inside: np.ndarray, into: np.ndarray) -> np.ndarray:
    """Return nu from the dominant eigenvector of I + Q / q on the inside, and steps of nu_j = inflow_j / (q_j - decay rate)."""
    n, rate = model.size, _FACTOR * model.uniformization_rate

    def step(p: np.ndarray) -> np.ndarray:
        after = model.recurrence(np.where(inside, p.ravel(), 0.0), factor=1 / rate, keep=1.0)
        after[~inside] = 0.0
        return after

    start = np.where(inside, 1.0, 0.0)
    try:
        _, vectors = eigs(LinearOperator((n, n), matvec=step, dtype=np.float64), k=1, which="LR", v0=start, tol=1e-13)
        nu = step(np.abs(np.real(vectors[:, 0])))
    except ArpackError:
        nu = start
    nu[inside] = np.maximum(nu[inside], _LEAST * nu.max())
    nu /= nu.sum()
    for _ in range(_POLISHES):  # states of little probability get digits of their own, which the bounds depend on
        flow = model.forward(nu)
        flow[~inside] = 0.0
        ratios = -flow[inside] / nu[inside]
        decay = float(nu @ into)
        if 0 <= ratios.max() - ratios.min() <= _POLISHED * decay:
            break
        with np.errstate(divide="ignore", invalid="ignore"):  # a state that is left at the decay rate itself
            after = (nu + (flow + nu * model.exit_rates) / np.where(inside, model.exit_rates - decay, 1.0)) / 2
        after[~inside] = 0.0
        if not 0 < after.sum() < np.inf:
            break
        nu = after / after.sum()
    return np.asarray(nu)
