"""Every error bound that an answer about a small hard chain reports, beside the error that it has."""

from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from typing import Any, ClassVar
from unittest.mock import patch

import exact_chains as exact
import numpy as np

import ctmc
from ctmc.problem import AccumulatedReward, DiscountedReward, FirstPassage, Stationary, Transient
from ctmc.registry import make_solver
from ctmc.solution import Outcome
from ctmc.strict import prove_intervals

quasi_stationary = import_module("ctmc.quasi_stationary")
KNOWN = 1e-50
"""To so much the truth is known, where a bound may be 0."""
OVER_TIME = ("adaptive_uniformization", "chebyshev", "krylov_exponential", "rational", "uniformization")
DISCOUNTED = ("resolvent_krylov", "resolvent_lu", "value_iteration", "class_elimination")
PASSAGE = ("absorption_elimination", "absorption_krylov", "absorption_lu", "class_elimination")


@dataclass(frozen=True, kw_only=True)
class Spoiled:
    """A solver of equations whose answers are then spoiled, by noise of this size relative to each number."""

    solves: ClassVar = (DiscountedReward, FirstPassage)
    needs: ClassVar = ctmc.Generator
    solver: Any
    noise: float
    seed: int

    def run(self, problem, trace):
        outcome = make_solver(self.solver).run(problem, trace)
        factors = 1 + self.noise * np.random.default_rng(self.seed).uniform(-1, 1, len(outcome.value))
        return Outcome(outcome.value * factors)


def _largest(found, true):
    """The largest difference of numbers from decimals."""
    pairs = zip(np.ravel(found).tolist(), np.ravel(true).tolist(), strict=True)
    return float(max(abs(Decimal(a) - b) for a, b in pairs))


def _spoiled(names, rng):
    name = str(rng.choice(names))
    return (
        name
        if rng.random() < 0.5
        else Spoiled(solver=name, noise=10.0 ** rng.uniform(-15, -1), seed=int(rng.integers(2**31)))
    )


def _sum_of_differences(found, true):
    return float(sum(abs(Decimal(a) - b) for a, b in zip(found.tolist(), true, strict=True)))


def over_time(model, q, initial, rng):
    """Distributions at two times, and an accumulated reward with its variance."""
    n = model.size
    fastest = float(model.exit_rates.max())
    times = np.sort(10 ** rng.uniform(-2, 3.5, 2)) / fastest
    tolerance, solver = 10.0 ** rng.integers(-12, -2), str(rng.choice(OVER_TIME))
    begin = exact.decimals(initial) / sum(exact.decimals(initial))
    found = ctmc.solve(Transient(model, initial, times, tolerance=tolerance), solver, check=False)
    if found.error_bound is not None:
        for row, time in zip(found.value, times, strict=True):
            yield (
                "transient",
                float(np.max(found.error_bound)),
                _sum_of_differences(row, begin @ exact.exponential(q, time)[0]),
            )
    reward = rng.normal(size=n) * 10.0 ** rng.uniform(-3, 3)
    rated = model.with_reward("cost", reward)
    found = ctmc.solve(Transient(rated, None, times[-1:], tolerance=tolerance, reward="cost"), solver, check=False)
    whole, _ = exact.exponential(q, times[-1])
    if found.error_bound is not None:
        yield (
            "expectation at a time",
            float(found.error_bound[0]),
            _largest(found.value[0], whole @ exact.decimals(reward)),
        )
    if n <= 4:
        found = ctmc.solve(
            AccumulatedReward(rated, "cost", initial, times[-1:], moments=2, tolerance=tolerance), solver, check=False
        )
        earned = np.diag(exact.decimals(reward))
        nothing = np.array([[Decimal(0)] * n] * n, dtype=object)
        together = np.block([[q, 2 * earned, nothing], [nothing, q, earned], [nothing, nothing, q]])
        moments = exact.exponential(together, times[-1])[0][:, 2 * n :].sum(axis=1)
        second, first = begin @ moments[:n], begin @ moments[n : 2 * n]
        if found.error_bound is not None:
            yield "accumulated reward", float(found.error_bound[0, 0]), _largest(found.value[0], [first])
            yield "second moment", float(found.error_bound[1, 0]), _largest(found.value[1], [second])
            yield "variance", float(found.variance_bounds[0]), _largest(found.variances, [second - first * first])


def discounted(model, q, rng):
    """Two moments of a discounted reward, of every start."""
    n, fastest = model.size, float(model.exit_rates.max())
    reward = rng.normal(size=n) * 10.0 ** rng.uniform(-3, 3)
    discount = fastest * 10.0 ** rng.uniform(-4, 1)
    problem = DiscountedReward(
        model.with_reward("cost", reward), "cost", discount=discount, moments=2, tolerance=10.0 ** rng.integers(-12, -2)
    )
    found = ctmc.solve(problem, _spoiled(DISCOUNTED, rng), check=False)
    unit = np.diag([Decimal(discount)] * n) + Decimal(0)
    r = exact.decimals(reward)
    first = exact.solved(unit - q, r)[:, 0]
    second = exact.solved(2 * unit - q, 2 * r * first)[:, 0]
    if found.error_bound is not None:
        yield "discounted reward", float(found.error_bound[0]), _largest(found.value[0], first)
        yield "its second moment", float(found.error_bound[1]), _largest(found.value[1], second)
        yield "its variance", float(np.max(found.variance_bounds)), _largest(found.variances, second - first * first)


def passage(model, q, rng):
    """Mean, second moment and variance of the time until a state of an irreducible chain, of every start."""
    n = model.size
    target = int(rng.integers(n))
    problem = FirstPassage(
        model, lambda states: states[:, 0] == target, None, moments=2, tolerance=10.0 ** rng.integers(-12, -2)
    )
    found = ctmc.solve(problem, _spoiled(PASSAGE, rng), check=False)
    inside = np.delete(np.arange(n), target)
    part = -q[np.ix_(inside, inside)]
    first = exact.solved(part, np.array([Decimal(1)] * len(inside), dtype=object))[:, 0]
    second = exact.solved(part, 2 * first)[:, 0]
    if found.error_bound is None or not np.isfinite(np.asarray(found.error_bound)).all():
        return
    for k, true in enumerate((first, second)):
        yield "passage time", float(found.error_bound[k]), _largest(found.value[k][inside], true)
        relative = [abs(Decimal(a) / b - 1) for a, b in zip(found.value[k][inside].tolist(), true, strict=True)]
        yield "passage time, relative", float(found.relative_error_bound[k]), float(max(relative))
    if found.variance_bounds is not None and np.isfinite(found.variance_bounds):
        yield "its variance", float(found.variance_bounds), _largest(found.variances[inside], second - first * first)


def leaving(model, q, rng):
    """The decay rate outside a target, by both methods: whether the proven bounds enclose it, told by the signs of pivots.

    A is -Q outside the target.  A - x I without exchanges has positive pivots only just where x is below the decay rate.
    """
    target = int(rng.integers(model.size))
    inside = np.delete(np.arange(model.size), target)

    def below(x):
        part = -q[np.ix_(inside, inside)] - np.diag([Decimal(x)] * len(inside))
        for k in range(len(part)):
            if not part[k, k] > 0:
                return False
            part[k + 1 :] = part[k + 1 :] - np.outer(part[k + 1 :, k] / part[k, k], part[k])
        return True

    for small in (3000, 0) if model.size > 3 else (3000,):
        with patch.object(quasi_stationary, "SMALL", small):
            try:
                low, high = ctmc.quasi_stationary(model, lambda states: states[:, 0] == target).decay_bounds
            except (ctmc.ModelError, ctmc.SolveError):  # not one class, or nothing is claimed
                continue
        holds = (low == 0 or below(low)) and not below(high)
        yield f"decay rate outside a target{', Arnoldi' if not small else ''}", 1.0, 0.0 if holds else 2.0


def reached(model, q, recurrent, rng):
    """The probability to end in a class of a chain with several."""
    n = model.size
    goal = np.zeros(n, dtype=bool)
    goal[recurrent[0]] = True
    found = ctmc.reach_probability(
        model.replace(labels={"goal": goal}), "goal", tolerance=10.0 ** rng.integers(-12, -2)
    )
    elsewhere = np.concatenate([goal[None], *[np.isin(np.arange(n), members)[None] for members in recurrent]]).any(
        axis=0
    )
    inside = np.flatnonzero(~elsewhere)
    if len(inside):
        into = q[np.ix_(inside, np.flatnonzero(goal))].sum(axis=1)
        true = exact.solved(-q[np.ix_(inside, inside)], into)[:, 0]
        yield "probability to reach", float(found.error_bound), max(_largest(found.value[inside], true) - KNOWN, 0.0)


def strict(model, pi, initial, rng):
    """An interval for a long-run expectation, from an answer right or wrong: how far the truth lies outside, over its width."""
    n = model.size
    reward = rng.normal(size=n) * 10.0 ** rng.uniform(-6, 6)
    problem = Stationary(model.with_reward("cost", reward), 1e-10, initial)
    wrong = rng.dirichlet(np.ones(n)) if rng.random() < 0.5 else np.maximum(np.array(pi, dtype=float), 0)
    found = ctmc.Solution(problem, wrong, ctmc.Status.INACCURATE, "not looked at.", 1.0, np.empty(0), 0.0, 0, "none")
    interval = prove_intervals(found, ["cost"])["cost"]
    true = sum(Decimal(r) * p for r, p in zip(reward.tolist(), pi, strict=True))
    middle = (Decimal(interval.low) + Decimal(interval.high)) / 2
    known = abs(true) * Decimal(KNOWN)
    yield (
        "strict interval",
        float((Decimal(interval.high) - Decimal(interval.low)) / 2),
        float(max(abs(true - middle) - known, 0)),
    )


def bounds(hard, pi, recurrent, transient, rng):
    """Yield (what, bound, true error) of all questions that the chain is fit for."""
    model, initial = hard.model, hard.initial
    with exact.precise():
        if len(recurrent) == 1:
            yield from strict(model, pi, initial, rng)
        if hard.size > 8:
            return
        q = exact.generator(hard.matrix.toarray())
        begin = rng.dirichlet(np.ones(hard.size)) if initial is None else initial
        yield from over_time(model, q, begin, rng)
        with exact.precise(120):
            yield from discounted(model, q, rng)
            if len(recurrent) == 1 and not len(transient) and hard.size > 1:
                yield from passage(model, q, rng)
                yield from leaving(model, q, rng)
            if len(recurrent) > 1:
                yield from reached(model, q, recurrent, rng)
