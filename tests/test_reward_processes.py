"""Reward processes: reference values, closed forms, and formulas that no solver uses, by every method that takes them."""

import math
import tomllib
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.stats import poisson

import ctmc
from builders.supermarket import supermarket
from ctmc.model.generator import Generator
from ctmc.model.reward import Reward
from ctmc.problem import AccumulatedReward, Transient

REFERENCE = tomllib.loads(resources.files("ctmc.data.reference").joinpath("supermarket.toml").read_text())
CASES = [
    {"parameters": row["parameters"], "initial": initial, "accumulated": accumulated}
    for row in REFERENCE["reward_process"]
    for initial, accumulated in zip(row["initial"], row["accumulated"], strict=True)
]
HORIZON = 2.0
CHAIN = Generator.from_matrix(
    [[0, 1.0], [2.0, 0]], rewards={"one": Reward(np.ones(2)), "up": Reward(np.array([1.0, 0.0]))}
)
METHODS = [
    name
    for name in ctmc.registry.solvers_for(AccumulatedReward(CHAIN, "up", (0,), [1.0]))
    if not name.startswith(("petsc_", "slepc_"))  # which have tests of their own, where they are installed
]


def model(**parameters):
    return supermarket(**REFERENCE["common"], **parameters)


def test_there_are_several_methods():
    assert len(METHODS) >= 2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['parameters']['selection']} from {case['initial']}")
def test_reference_values(method, case):
    problem = AccumulatedReward(model(**case["parameters"]), "imbalance", case["initial"], [HORIZON])
    solution = ctmc.solve(problem, method)
    assert solution.value.shape == (1, 1)
    assert solution.value[0, 0] == pytest.approx(case["accumulated"], abs=1e-9)
    assert solution.error_bound[0, 0] < 1e-9
    every = ctmc.solve(AccumulatedReward(problem.model, "imbalance", None, [HORIZON]), method)
    assert every.value[0, 0, problem.model.space.index(case["initial"])] == pytest.approx(case["accumulated"], abs=1e-9)


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: str(case["initial"]))
def test_the_conditional_formula_gives_the_same_mean(case):
    """E[Phi(t) | N(t) = n] = t / (n + 1) sum_{k <= n} P^k r, summed over the Poisson number n of events (the paper's technique)."""
    chain = model(**case["parameters"])
    omega = 3 + 6.0
    power = np.concatenate(
        [chain.rewards["imbalance"].evaluate(states, place) for place, states in chain.space.slabs()]
    )
    start = chain.space.index(case["initial"])
    total, mean = 0.0, 0.0
    for n in range(120):
        total += power[start]
        mean += poisson.pmf(n, omega * HORIZON) * HORIZON / (n + 1) * total
        power = power + chain.backward(power) / omega
    assert mean == pytest.approx(case["accumulated"], abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("initial", [(0,), None])
def test_a_reward_of_one_gives_the_time(method, initial):
    times = np.array([0.0, 1e-8, 0.3, 7.0, 1e4])
    solution = ctmc.solve(AccumulatedReward(CHAIN, "one", initial, times, moments=3), method)
    mean, second, third = (row.T for row in solution.value)
    for k, found in enumerate((mean, second, third), start=1):
        assert (np.abs(found - times**k) <= 1e-12 * times**k).all()
    assert (1e-12 * times**2 >= solution.variances.T).all()


@pytest.mark.parametrize("method", METHODS)
def test_two_states_in_closed_form(method):
    """Time spent in state 0 out of two, with rates a and b: mean and variance from the covariance of an alternating process."""
    a, b = 1.0, 2.0
    times = np.array([0.5, 3.0, 40.0])
    solution = ctmc.solve(AccumulatedReward(CHAIN, "up", (0,), times, moments=2), method)
    up, rate = b / (a + b), a + b
    mean = up * times + (1 - up) / rate * -np.expm1(-rate * times)
    # E[Phi^2] = 2 int_0^t int_0^s P(up at s') P(up at s | up at s') ds' ds
    second = np.array([_second_moment(up, rate, time) for time in times])
    np.testing.assert_allclose(solution.expected("up"), mean, rtol=1e-10)
    np.testing.assert_allclose(solution.value[1], second, rtol=1e-10)
    np.testing.assert_allclose(solution.variance("up"), second - mean**2, rtol=1e-8)


def _second_moment(up, rate, time):
    down = 1 - up
    nodes, weights = np.polynomial.legendre.leggauss(60)
    s = time * (nodes + 1) / 2
    # the inner integral over s' from 0 to s in closed form
    decay = np.exp(-rate * s)
    inner = up * up * s + up * down * (1 - decay) / rate + down * up * (1 - decay) / rate + down * down * s * decay
    return 2 * float(weights @ inner) * time / 2


@pytest.mark.parametrize("method", METHODS)
def test_moments_against_a_differential_equation_solved_apart(method):
    """m_k' = Q m_k + k r m_{k-1}, by Runge-Kutta with tight tolerances, on the reference model."""
    chain = model(selection="tandem")
    dense = chain.to_scipy()
    r = np.concatenate([chain.rewards["imbalance"].evaluate(states, place) for place, states in chain.space.slabs()])
    n = chain.size

    def change(_, m):
        first, second = m[:n], m[n:]
        return np.concatenate([dense @ first + r, dense @ second + 2 * r * first])

    found = solve_ivp(change, (0, HORIZON), np.zeros(2 * n), method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1]
    solution = ctmc.solve(AccumulatedReward(chain, "imbalance", None, [HORIZON], moments=2), method)
    np.testing.assert_allclose(solution.value[0, 0], found[:n], atol=1e-9)
    np.testing.assert_allclose(solution.value[1, 0], found[n:], atol=1e-9)
    np.testing.assert_allclose(solution.variances[0], found[n:] - found[:n] ** 2, atol=1e-9)
    forward = ctmc.solve(AccumulatedReward(chain, "imbalance", (0, 0, 0), [HORIZON], moments=2), method)
    np.testing.assert_allclose(forward.value[:, 0], solution.value[:, 0, 0], atol=1e-10)
    # a path of jumps: 40,000 simulated ones of the same chain agree within four standard errors
    mean, variance = _simulated(dense, r, 40_000, seed=20_240_611)
    assert abs(mean - forward.value[0, 0]) < 4 * math.sqrt(forward.variances[0] / 40_000)
    assert abs(variance / forward.variances[0] - 1) < 0.05


def _simulated(rates, r, paths, seed):
    """Mean and variance of Phi(2) over paths from state 0, all paths stepping together."""
    rng = np.random.default_rng(seed)
    n = rates.shape[0]
    dense = rates.toarray()
    exits = -dense.diagonal()
    np.fill_diagonal(dense, 0)
    table = (np.cumsum(dense / exits[:, None], axis=1) + np.arange(n)[:, None]).ravel()
    state, clock, earned = np.zeros(paths, dtype=np.int64), np.zeros(paths), np.zeros(paths)
    running = np.arange(paths)
    while len(running):
        here = state[running]
        step = rng.standard_exponential(len(running)) / exits[here]
        left = HORIZON - clock[running]
        earned[running] += r[here] * np.minimum(step, left)
        clock[running] += step
        going = step < left
        draw = here + rng.random(len(running)) * (1 - 1e-12)
        state[running] = np.minimum(np.searchsorted(table, draw, side="right") - here * n, n - 1)
        running = running[going]
    return float(earned.mean()), float(earned.var(ddof=1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("initial", [(0, 0, 0), None])
def test_offered_jobs_are_poisson(method, initial):
    """Arrivals that are taken, earned at transitions, and those that are lost, at self-loops, are a Poisson process together."""
    chain = supermarket(service_rates=[3, 2, 1], arrival_rate=4.5, choices=2, capacity=2)
    known = chain.rewards
    offered = Reward(None, "offered", impulse=known["arrivals"].impulse, self_loops=known["losses"].self_loops)
    chain = chain.replace(rewards={**known, "offered": offered})
    times = [0.4, 3.0]
    solution = ctmc.solve(AccumulatedReward(chain, "offered", initial, times, moments=3), method)
    for place, time in enumerate(times):
        mean = 4.5 * time
        moments = [mean, mean + mean**2, mean + 3 * mean**2 + mean**3]
        for k, exact in enumerate(moments):
            np.testing.assert_allclose(solution.value[k, place], exact, rtol=1e-9)
        np.testing.assert_allclose(solution.variances[place], mean, rtol=1e-8)
    counts = ctmc.solve(AccumulatedReward(chain, ("arrivals", "services", "losses", "jobs"), (0, 0, 0), times))
    arrivals, services, losses, _ = (counts.expected(name) for name in counts.problem.reward)
    jobs = ctmc.solve(Transient(chain, (0, 0, 0), times, reward="jobs"))
    np.testing.assert_allclose(arrivals - services, jobs.value, atol=1e-9)
    np.testing.assert_allclose(arrivals + losses, 4.5 * np.array(times), rtol=1e-9)


def test_stationary_expectations_count_impulses():
    chain = supermarket(service_rates=[3, 2, 1], arrival_rate=4.5, choices=2, capacity=2)
    solution = ctmc.solve(ctmc.Stationary(chain))
    found = solution.expectations(["arrivals", "services", "losses", "loss_rate"])
    assert found["arrivals"] == pytest.approx(solution.measures()["throughput"], rel=1e-12)
    assert found["services"] == pytest.approx(found["arrivals"], rel=1e-12)
    assert found["losses"] == pytest.approx(found["loss_rate"], rel=1e-12)


@st.composite
def processes(draw):
    """A random chain, some of whose states may be absorbing, with rewards, impulses and self-loops."""
    n = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(2, 2**32)))
    rates = rng.random((n, n)) * (rng.random((n, n)) < 0.6) * 10.0 ** rng.uniform(-2, 2, (n, n))
    np.fill_diagonal(rates, 0)
    entries = int((rates > 0).sum())
    reward = Reward(
        rng.normal(size=n) * 10.0 ** rng.uniform(-2, 2),
        impulse=rng.normal(size=entries) if draw(st.booleans()) else None,
        self_loops=rng.random(n) if draw(st.booleans()) else None,
    )
    chain = Generator.from_matrix(rates, rewards={"r": reward})
    times = np.sort(rng.uniform(0, 10.0 ** rng.uniform(-2, 1.5), draw(st.integers(1, 11))))
    initial = None if draw(st.booleans()) else (int(rng.integers(n)),)
    return chain, times, initial, draw(st.integers(1, 3)), draw(st.sampled_from([1e-4, 1e-7, 1e-10]))


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(process=processes())
def test_the_reported_bounds_hold(method, process):
    chain, times, initial, moments, tolerance = process
    problem = AccumulatedReward(chain, "r", initial, np.unique(times), moments, tolerance)
    solution = ctmc.solve(problem, method)
    exact = ctmc.contract.Case("", problem).known()
    bound = solution.error_bound[..., None] if initial is None else solution.error_bound
    # the matrix exponential that it is compared with is right to rounding of its largest entry
    slack = 1e-12 * np.maximum(1.0, np.abs(exact).max(axis=tuple(range(1, exact.ndim)), keepdims=True))
    assert (np.abs(solution.value - exact) <= bound + slack).all()
    if moments > 1:
        bound = solution.variance_bounds[:, None] if initial is None else solution.variance_bounds
        slack = 1e-12 * max(1.0, np.abs(exact[1]).max())
        assert (np.abs(solution.variances - (exact[1] - exact[0] ** 2)) <= bound + slack).all()


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(process=processes())
def test_the_bounds_of_distributions_and_expectations_hold(method, process):
    chain, times, initial, _, tolerance = process
    times, start = np.unique(times), initial or (0,)
    distributions = ctmc.solve(Transient(chain, start, times, tolerance), method)
    exact = ctmc.contract.Case("", distributions.problem).known()
    assert (np.abs(distributions.value - exact).sum(axis=1) <= distributions.error_bound + 1e-12).all()
    chain = chain.replace(rewards={"r": Reward(np.linspace(-3, 1, chain.size))})
    expected = ctmc.solve(Transient(chain, initial, times, tolerance, reward="r"), method)
    exact = ctmc.contract.Case("", expected.problem).known()
    bound = expected.error_bound[..., None] if initial is None else expected.error_bound
    assert (np.abs(expected.value - exact) <= bound + 1e-12).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("initial", [(1,), None])
def test_hard_ones_among_the_random_chains(method, initial):
    """Nothing happens before the horizon; and events that leave the state as it is are much faster than transitions."""
    short = Generator.from_matrix([[0, 0.29], [0.007, 0]], rewards={"r": Reward(np.array([-2.5, -6.0]))})
    busy = Reward(np.array([-0.12, -0.11]), impulse=np.array([0.2]), self_loops=np.array([0.5, 0.3]))
    slow = Generator.from_matrix([[0, 0.0], [0.13, 0]], rewards={"r": busy})
    for chain, times, moments, tolerance in ((short, [1.6e-4], 1, 1e-4), (slow, [0.4, 14.0], 3, 1e-10)):
        problem = AccumulatedReward(chain, "r", initial, times, moments, tolerance)
        solution = ctmc.solve(problem, method)
        exact = ctmc.contract.Case("", problem).known()
        bound = solution.error_bound[..., None] if initial is None else solution.error_bound
        assert (np.abs(solution.value - exact) <= bound + 1e-12 * np.maximum(1, np.abs(exact))).all()
    # hardly an event is expected, so that the moments of all orders are alike
    soon = ctmc.solve(AccumulatedReward(slow, "r", initial, [1e-4], moments=3), method)
    assert (soon.error_bound <= 1e-12).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"times": [2.0, 1.0]}, "times is"),
        ({"times": [-1.0]}, "times is"),
        ({"reward": "up_time"}, "up"),
        ({"reward": "up[0]"}, "index 0 of 'up'"),
        ({"reward": ()}, "reward is"),
        ({"initial": np.array([0.5, 0.2])}, "sum"),
        ({"moments": 0}, "moments is 0"),
        ({"moments": 2.5}, "moments is 2.5"),
        ({"tolerance": 0}, "tolerance is 0"),
    ],
)
def test_bad_input(options, words):
    with pytest.raises(ctmc.CTMCError) as caught:
        ctmc.solve(AccumulatedReward(CHAIN, **{"reward": "up", "initial": (0,), "times": [1.0], **options}))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_variances_need_two_moments():
    solution = ctmc.solve(AccumulatedReward(CHAIN, "up", (0,), [1.0]))
    with pytest.raises(ctmc.ModelError, match="moments=2"):
        solution.variance("up")
    with pytest.raises(ctmc.ModelError, match="keeps none"):
        solution.probability("up > 0")
    with pytest.raises(ctmc.UnknownNameError, match="one"):
        solution.expected("one")


def test_moments_of_class_means_are_refused():
    lumped = supermarket(service_rates=[1, 1, 1], arrival_rate=2, choices=2, capacity=3, lump=True)
    with pytest.raises(ctmc.ModelError, match="mean over states"):
        AccumulatedReward(lumped, "queue_length[0]", None, [1.0], moments=2)
    assert ctmc.solve(AccumulatedReward(lumped, "jobs", (0, 0, 0), [1.0], moments=2)).converged
