"""Chains over time, random and in closed form, that all methods for `Transient` and `AccumulatedReward` are tried on."""

import math
from dataclasses import replace

import numpy as np
import pytest

import ctmc
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.reward import Reward
from ctmc.problem import AccumulatedReward, Transient
from ctmc.registry import snake_case
from ctmc.solution import Status


def random_rates(rng, size, decades=0.0):
    """Return rates over some decades, six in ten of them 0: often reducible, sometimes absorbing."""
    rates = np.where(rng.random((size, size)) < 0.4, 10 ** rng.uniform(-decades, 0, (size, size)), 0.0)
    np.fill_diagonal(rates, 0.0)
    return rates


def exact(rates, begin, time):
    """Return the distribution at a time from a matrix exponential in which nothing cancels.

    The powers of the uniformised kernel are non-negative, are doubled in extended precision, and keep their row sums.
    """
    rates = np.asarray(rates, dtype=np.longdouble)
    size = len(rates)
    exits = rates.sum(axis=1)
    q = max(float(exits.max()), 1e-300)
    halvings = max(0, math.ceil(math.log2(max(q * time, 1e-300))) + 1)
    mean = np.longdouble(q) * np.longdouble(time) / 2**halvings
    kernel = rates / np.longdouble(q) + np.diag(1 - exits / np.longdouble(q))
    term, total = np.eye(size, dtype=np.longdouble), np.zeros((size, size), dtype=np.longdouble)
    for k in range(1, 40):
        total += term
        term = term @ kernel * mean / k
    total *= np.exp(-mean)
    for _ in range(halvings):
        total = total @ total
        total /= total.sum(axis=1, keepdims=True)
    return np.asarray(begin @ total, dtype=float)


def queue(load, capacity):
    """Return the rates of M/M/1/K with service rate 1."""
    return np.diag(np.full(capacity, load), 1) + np.diag(np.ones(capacity), -1)


def queue_in_closed_form(load, capacity, begin, times):
    """Return its distributions, shape (times, K + 1), from its eigenvectors, which are trigonometric (Morse; Takacs 1962)."""
    n = np.arange(capacity + 1)
    weights = load**n / (load**n).sum()
    k = np.arange(1, capacity + 1)[:, None]
    angle = np.pi * k / (capacity + 1)
    decay = 1 + load - 2 * math.sqrt(load) * np.cos(angle[:, 0])
    shape = math.sqrt(load) * np.sin(angle * (n + 1)) - np.sin(angle * n)
    return np.array(
        [
            weights
            + 2 / (capacity + 1) * load ** ((n - begin) / 2)
            * ((np.exp(-decay * time) / decay)[:, None] * shape * shape[:, [begin]]).sum(axis=0)
            for time in times
        ]
    )  # fmt: skip


def machines(failures, repairs):
    """Return the rates of independent machines that fail and are repaired, one bit of the state for each, from the last."""
    count = len(failures)
    rates = np.zeros((2**count, 2**count))
    for state in range(2**count):
        for i in range(count):
            rates[state, state ^ (1 << i)] = repairs[i] if state >> i & 1 else failures[i]
    return rates


def machines_in_closed_form(failures, repairs, time):
    """Return their distribution at a time, all having worked at the start: a product."""
    found = np.ones(1)
    for fail, repair in zip(failures, repairs, strict=True):
        down = fail / (fail + repair) * -math.expm1(-(fail + repair) * time)
        found = np.kron([1 - down, down], found)
    return found


def two_parts(exchange):
    """Return the rates of two parts of three states that exchange next to nothing."""
    rates = np.zeros((6, 6))
    rates[:3, :3] = [[0, 1, 2], [3, 0, 1], [1, 5, 0]]
    rates[3:, 3:] = [[0, 2, 2], [1, 0, 1], [4, 5, 0]]
    rates[1, 4], rates[5, 0] = exchange, 2 * exchange
    return rates


def gallery():
    """Yield (name, model, initial, times)."""
    rng = np.random.default_rng(1409)
    yield "random", Generator.from_matrix(random_rates(rng, 12)), rng.dirichlet(np.ones(12)), [0.0, 0.3, 9.0]
    yield "decades", Generator.from_matrix(random_rates(rng, 9, 5)), (2,), [0.5, 40.0]
    yield "queue", Generator.from_matrix(queue(0.8, 20)), (3,), [0.0, 1.0, 20.0]
    yield "absorbing", Generator.from_matrix(np.diag(np.full(4, 3.0), 1)), (0,), [0.1, 1.0, 50.0]
    yield "ring", Generator.from_matrix(np.roll(np.eye(7), 1, axis=1)), (0,), [0.5, 20.0]
    yield "one state", Generator.from_matrix([[0.0]]), (0,), [0.0, 3.0]
    yield "still", Generator.from_matrix(np.zeros((3, 3))), (1,), [0.0, 5.0, 30.0]
    yield "machines", Generator.from_matrix(machines([1e-3, 1e-2], [5.0, 20.0])), (0,), [0.01, 1.0, 20.0]


def with_impulses(model):
    """Return the model with the reward `earned`: a rate in each state, and 1 for each move to a later state."""
    later = Reward(np.sin(np.arange(model.size)) + 1, "", impulse=lambda a, b: (b[:, 0] > a[:, 0]).astype(float))
    return replace(model, rewards={"earned": later})


# ---- what every method must pass ---------------------------------------------------------------------------------------------


def check_bounds(solver, seed, count):
    """Compare random chains, times and tolerances with the exact distributions: the bounds hold, and are within the tolerance."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        size = int(rng.integers(1, 11))
        rates = random_rates(rng, size, rng.choice([0, 2, 4]))
        begin = rng.dirichlet(np.ones(size))
        times = np.sort(10 ** rng.uniform(-3, 3, 3))
        tolerance = 10.0 ** rng.integers(-11, -1)
        model = Generator.from_matrix(rates)
        found = ctmc.solve(Transient(model, begin, times, tolerance=tolerance), solver)
        floor = 8 * 2.0**-52 * (1 + model.uniformization_rate * times[-1])
        assert found.error_bound <= max(tolerance, floor)
        for row, time in zip(found.value, times, strict=True):
            assert np.abs(row - exact(rates, begin, time)).sum() <= found.error_bound + 1e-14


def check_bounds_of_rewards(solver, seed, count):
    """Compare expectations and moments of random chains, forward and backward, with those of uniformization at 1e-13."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        size = int(rng.integers(1, 8))
        model = Generator.from_matrix(random_rates(rng, size, rng.choice([0, 3])))
        model = with_impulses(model) if k % 3 == 0 else model
        reward = "earned" if k % 3 == 0 else "state"
        times = np.concatenate([[0.0], np.sort(10 ** rng.uniform(-3, 1.5, 2))])
        tolerance = 10.0 ** rng.integers(-10, -2)
        initial = None if k % 2 else rng.dirichlet(np.ones(size))
        for problem in (
            Transient(model, initial, times, reward="state", tolerance=tolerance),
            AccumulatedReward(
                model, reward=reward, initial=initial, times=times, moments=1 + k % 3, tolerance=tolerance
            ),
        ):
            known = ctmc.solve(replace(problem, tolerance=1e-13), "uniformization")
            found = ctmc.solve(problem, solver)
            off = np.abs(found.value - known.value)
            bound = np.asarray(found.error_bound) + np.asarray(known.error_bound)
            bound = bound[..., None] if initial is None else bound
            size_of = np.abs(known.value) + size * (1 + times[-1])
            assert (off <= bound + 1e-13 * size_of).all(), (k, problem)


def check_agreement(solver, others=("uniformization",)):
    """Compare with other methods on every chain of the gallery: distributions, and accumulated rewards with two moments."""
    for name, model, initial, times in gallery():
        problems = [
            Transient(model, initial, times),
            Transient(model, None, times, reward="state"),
            AccumulatedReward(model, reward="state", initial=initial, times=times, moments=2),
            AccumulatedReward(with_impulses(model), reward="earned", initial=None, times=times[:2], moments=2),
        ]
        for problem in problems:
            found = ctmc.solve(problem, solver)
            for other in others:
                known = ctmc.solve(problem, other)
                bound = np.asarray(found.error_bound) + np.asarray(known.error_bound)
                if found.value.ndim > bound.ndim:
                    bound = bound[..., None]
                off = np.abs(found.value - known.value)
                assert (off <= bound + 1e-13 * (1 + np.abs(known.value))).all(), (name, other, problem)


def check_two_states(solver, scales=(1e-8, 1.0, 1e8), accuracy=1e-10):
    """p(t) = b / (a + b) + a / (a + b) exp(-(a + b) t), with the largest rate x t from 1e-8 up."""
    a, b = 1.0, 0.25
    model = Generator.from_matrix([[0, a], [b, 0]])
    for scale in scales:
        found = ctmc.solve(Transient(model, (0,), [scale]), solver)
        assert found.value[0, 1] == pytest.approx(a / (a + b) * -math.expm1(-(a + b) * scale), rel=accuracy)
        assert found.value[0].sum() == pytest.approx(1, abs=1e-12)
        assert found.error_bound <= max(1e-10, 8 * 2.0**-52 * (1 + scale))


def check_many_times(solver):
    """200 times in one call, the first of which is 0, are what each is by itself."""
    rates = queue(0.9, 25)
    model, times = Generator.from_matrix(rates), np.linspace(0, 60, 200)
    found = ctmc.solve(Transient(model, (2,), times), solver)
    assert found.value[0].tolist() == np.eye(26)[2].tolist()
    known = queue_in_closed_form(0.9, 25, 2, times[1:])
    assert np.abs(found.value[1:] - known).sum(axis=1).max() <= found.error_bound + 1e-13
    spent = ctmc.solve(AccumulatedReward(model, reward="state", initial=(2,), times=times), solver)
    each = [
        ctmc.solve(AccumulatedReward(model, reward="state", initial=(2,), times=[t]), solver).value
        for t in times[[7, 99]]
    ]
    np.testing.assert_allclose(np.ravel(spent.value)[[7, 99]], np.ravel(each), rtol=1e-9)
    return found


def check_limits(solver_class, problem):
    """The iteration limit, the monitor and the time limit end a solve, and say so; memory is asked for first."""
    name = solver_class.__name__
    starved = ctmc.solve(problem, solver_class(max_iterations=12), check=False)
    assert starved.status is Status.ITERATION_LIMIT, name
    assert 12 <= starved.iterations <= 32
    whole = ctmc.solve(problem, solver_class())
    assert whole.iterations > 32
    assert (np.diff(whole.history["iteration"]) > 0).all()
    stopped = ctmc.solve(problem, solver_class(), monitor=lambda iteration, defect: iteration >= 8, check=False)
    assert stopped.status is Status.STOPPED
    assert stopped.iterations <= 24
    assert ctmc.solve(problem, solver_class(), time_limit=1e-9, check=False).status is Status.TIME_LIMIT
    with (
        ctmc.limited_memory(problem.model.nbytes + 20 * problem.model.size),
        pytest.raises(ModelError, match=f"{snake_case(name)}.* needs"),
    ):
        ctmc.solve(replace(problem, reward=(next(iter(problem.model.all_rewards)),)), solver_class())
