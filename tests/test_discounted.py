"""Discounted rewards: reference values, closed forms, dense solves, simulation, and bounds that hold."""

import tomllib
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctmc
from builders.supermarket import supermarket
from ctmc.discounted import answer_discounted
from ctmc.model.reward import Reward
from ctmc.solution import Outcome, Status

REFERENCE = tomllib.loads((files("ctmc.data.reference") / "supermarket.toml").read_text(encoding="utf-8"))
SOLVERS = ("resolvent_krylov", "resolvent_lu", "value_iteration", "class_elimination")


def random_chain(seed, n, spread=1.0):
    """A chain of n states, irreducible or not, with rates over some decades."""
    rng = np.random.default_rng(seed)
    rates = 10 ** rng.uniform(-spread, spread, (n, n)) * (rng.random((n, n)) < 0.4)
    np.fill_diagonal(rates, 0)
    return ctmc.Generator.from_matrix(rates).with_reward("pay", rng.normal(size=n) + rng.normal())


def dense_moments(chain, pay, discount, moments, events=None, loops=None):
    """Solve for the moments without centering, on dense matrices."""
    q = chain.to_scipy().toarray()
    rates = q - np.diag(np.diag(q))
    impulses = np.zeros_like(q) if events is None else events
    found = [np.ones(len(q))]
    for k in range(1, moments + 1):
        right = k * pay * found[-1]
        for order in range(1, k + 1):
            earned = rates * impulses**order + (0 if loops is None else np.diag(loops))
            binomial = np.prod([(k - i) / (i + 1) for i in range(order)])
            right = right + binomial * (earned @ found[k - order])
        found.append(np.linalg.solve(k * discount * np.eye(len(q)) - q, right))
    return np.array(found[1:])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("row", REFERENCE["reward_process"], ids=lambda row: row["parameters"]["selection"])
def test_reference_values(solver, row):
    model = supermarket(**REFERENCE["common"], **row["parameters"])
    for initial, known in zip(row["initial"], row["discounted"], strict=True):
        found = ctmc.solve(ctmc.DiscountedReward(model, "imbalance", initial, discount=row["discount"]), solver)
        assert abs(found.value[0] - known) < 1e-9
        assert found.error_bound[0] < 1e-9
    every = ctmc.solve(ctmc.DiscountedReward(model, "imbalance", discount=row["discount"]), solver)
    assert every.value.shape == (1, model.size)
    assert every.value[0, model.space.index(np.array([[2, 1, 0]]))[0]] == found.value[0]


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_constant_reward_is_exact(solver):
    chain = random_chain(7, 20).with_reward("one", np.ones(20))
    found = ctmc.solve(ctmc.DiscountedReward(chain, "one", discount=0.3, moments=3), solver)
    assert (found.value[0] == 1 / 0.3).all()
    np.testing.assert_allclose(found.value[1:, 0], [(1 / 0.3) ** 2, (1 / 0.3) ** 3], rtol=4e-16)
    assert (found.variances == 0).all()


def test_two_states_in_closed_form():
    up, down, discount = 2.0, 3.0, 0.7
    chain = ctmc.Generator.from_matrix([[-up, up], [down, -down]])
    for solver in SOLVERS:
        found = ctmc.solve(ctmc.DiscountedReward(chain, "state", discount=discount), solver)
        known = np.array([up, discount + up]) / (discount * (discount + up + down))
        np.testing.assert_allclose(found.value[0], known, rtol=0, atol=1e-10 / discount)


@pytest.mark.parametrize("solver", SOLVERS)
def test_impulses_and_moments_against_dense_elimination(solver):
    chain = random_chain(11, 12)
    rng = np.random.default_rng(12)
    events, loops = rng.normal(size=(12, 12)), rng.random(12)
    pay = chain.rewards["pay"].rate

    def impulse(sources, targets):
        return events[sources[:, 0], targets[:, 0]]

    chain = chain.replace(rewards={"both": Reward(pay, impulse=impulse, self_loops=loops)})
    problem = ctmc.DiscountedReward(chain, "both", discount=0.8, moments=4)
    found = ctmc.solve(problem, solver)
    known = dense_moments(chain, pay, 0.8, 4, events, loops)
    error = np.abs(found.value - known).max(axis=1)
    assert (error <= found.error_bound + 1e-13 * np.abs(known).max(axis=1)).all()
    assert (found.error_bound < 1e-5 * np.abs(known).max(axis=1)).all()
    np.testing.assert_allclose(found.variance("both"), known[1] - known[0] ** 2, atol=2 * found.variance_bounds.max())


def test_mean_and_variance_against_simulation():
    """Discounted pay and impulses of a chain of three states, simulated jump by jump."""
    rates = np.array([[0, 1.0, 0.5], [2.0, 0, 1.0], [0.3, 0.7, 0]])
    pay, bonus, discount, runs = np.array([1.0, -2.0, 3.0]), 1.5, 0.9, 40_000
    chain = ctmc.Generator.from_matrix(rates)
    reward = Reward(pay, impulse=lambda sources, targets: bonus * (targets[:, 0] == 2))
    chain = chain.replace(rewards={"both": reward})
    found = ctmc.solve(ctmc.DiscountedReward(chain, "both", (0,), discount=discount, moments=2))
    rng = np.random.default_rng(20_167)
    state, factor, earned = np.zeros(runs, dtype=int), np.ones(runs), np.zeros(runs)
    cumulated = np.cumsum(rates, axis=1)
    while factor.max() > 1e-9:
        after = factor * np.exp(-discount * rng.exponential(1 / cumulated[state, -1]))
        earned += pay[state] * (factor - after) / discount
        state = (rng.random(runs)[:, None] * cumulated[state, -1:] > cumulated[state]).sum(axis=1)
        earned += bonus * after * (state == 2)
        factor = after
    variance = float(found.variances)
    assert abs(earned.mean() - found.value[0]) < 4 * (variance / runs) ** 0.5
    spread = ((earned - earned.mean()) ** 2).std() / runs**0.5
    assert abs(earned.var() - variance) < 4 * spread


@given(
    seed=st.integers(2, 10**6),
    n=st.integers(1, 12),
    spread=st.floats(0, 3),
    decade=st.floats(-3, 3),
    solver=st.sampled_from(SOLVERS),
    moments=st.integers(1, 3),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_bounds_hold(seed, n, spread, decade, solver, moments):
    chain = random_chain(seed, n, spread)
    discount = 10**decade
    if solver == "value_iteration" and chain.uniformization_rate > 30 * discount:
        solver = "resolvent_lu"
    problem = ctmc.DiscountedReward(chain, "pay", discount=discount, moments=moments)
    found = ctmc.solve(problem, solver, check=False)
    assert found.converged or solver != "resolvent_lu"
    if not found.converged:
        return
    known = dense_moments(chain, np.asarray(chain.rewards["pay"].rate), discount, moments)
    condition = 1 + chain.uniformization_rate / discount
    rounding = 1e-15 * condition * np.abs(known).max(axis=1)  # of the dense solve
    assert (np.abs(found.value - known).max(axis=1) <= found.error_bound + rounding).all()
    if moments > 1:
        exact = known[1] - known[0] ** 2
        wrong = np.abs(found.variances - exact).max()
        assert wrong <= found.variance_bounds + rounding[1] + 3 * rounding[0] * np.abs(known[0]).max()


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_state_and_a_given_initial_distribution_agree(solver):
    chain = random_chain(31, 15)
    weights = np.random.default_rng(32).dirichlet(np.ones(15))
    every = ctmc.solve(ctmc.DiscountedReward(chain, "pay", discount=0.4, moments=2), solver)
    mixed = ctmc.solve(ctmc.DiscountedReward(chain, "pay", weights, discount=0.4, moments=2), solver)
    np.testing.assert_allclose(every.value @ weights, mixed.value, rtol=1e-12)
    # the variance of a mixture is more than the mean of variances
    np.testing.assert_allclose(mixed.variances, mixed.value[1] - mixed.value[0] ** 2, rtol=1e-10)


def test_several_rewards_and_vectors():
    model = supermarket([2, 1], 1.5, 2, 3)
    found = ctmc.solve(ctmc.DiscountedReward(model, ["jobs", "queue_length", "loss_rate"], (0, 0), discount=0.2))
    assert found.value.shape == found.error_bound.shape == (4, 1)
    assert found.expected("queue_length").shape == (2,)
    assert abs(found.expected("queue_length").sum() - found.expected("jobs")) < 1e-9
    one = ctmc.solve(ctmc.DiscountedReward(model, "queue_length[1]", (0, 0), discount=0.2))
    assert abs(one.value[0] - found.expected("queue_length")[1]) < 1e-9
    assert set(found.measures()) == {"jobs", "queue_length", "loss_rate"}


@pytest.mark.parametrize("solver", SOLVERS)
def test_huge_discount(solver):
    chain = random_chain(41, 25)
    pay = np.asarray(chain.rewards["pay"].rate)
    found = ctmc.solve(ctmc.DiscountedReward(chain, "pay", discount=1e6), solver)
    q = chain.to_scipy()
    series = pay / 1e6 + (q @ pay) / 1e12 + (q @ (q @ pay)) / 1e18
    np.testing.assert_allclose(found.value[0], series, rtol=0, atol=2e-16)


@pytest.mark.parametrize("solver", SOLVERS)
def test_tiny_discount(solver):
    chain = random_chain(43, 25)
    assert chain.classes.irreducible
    found = ctmc.solve(ctmc.DiscountedReward(chain, "pay", discount=1e-6), solver)
    bias = ctmc.bias(chain, "pay")
    assert np.abs(found.value[0] - bias.gain / 1e-6 - bias.values).max() < found.error_bound[0] + 1e-4
    assert np.ptp(found.value[0] - bias.values) < 1e-4  # differences of states are much better than the bound
    assert found.error_bound[0] < 1e-7 * abs(bias.gain / 1e-6) * 10


@pytest.mark.parametrize("solver", ["resolvent_krylov", "resolvent_lu"])
def test_stiff_chain(solver):
    n = 60
    ups, downs = 10 ** np.linspace(-4, 4, n - 1), 10 ** np.linspace(4, -4, n - 1)
    chain = ctmc.Generator.from_matrix(np.diag(ups, 1) + np.diag(downs, -1)).with_reward("pay", np.sin(np.arange(n)))
    found = ctmc.solve(ctmc.DiscountedReward(chain, "pay", discount=0.01), solver, check=False)
    known = dense_moments(chain, np.sin(np.arange(n)), 0.01, 1)
    if solver == "resolvent_lu":
        assert found.converged
    if found.converged:
        assert np.abs(found.value - known).max() <= found.error_bound[0]
    else:
        assert found.status in (Status.STAGNATED, Status.ITERATION_LIMIT)


def test_a_chain_with_two_colors_is_solved_on_one():
    queue = ctmc.build("birth_death", births=[1.0] * 400, deaths=[1.1] * 400)
    apart = ctmc.solve(ctmc.DiscountedReward(queue, "jobs", discount=1e-3), "resolvent_krylov")
    mixed = random_chain(3, 9)
    assert queue.coloring is not None
    assert mixed.coloring is None
    known = dense_moments(queue, np.arange(401.0), 1e-3, 1)
    assert np.abs(apart.value - known).max() <= apart.error_bound[0]


def test_a_liar_is_found():
    chain = random_chain(5, 10)
    problem = ctmc.DiscountedReward(chain, "pay", discount=0.5, moments=2)
    _, proof, answer = answer_discounted(problem, lambda equation: Outcome(np.full(10, 0.1)))
    assert proof.status is Status.INACCURATE
    assert proof.error_bound is None
    _, proof, answer = answer_discounted(problem, lambda equation: Outcome(np.full(10, np.nan)))
    assert proof.status is Status.NOT_FINITE
    assert np.isnan(answer.value).all()
    assert answer.value.shape == (2, 10)
    _, proof, _ = answer_discounted(problem, lambda equation: Outcome(np.zeros(9)))
    assert proof.status is Status.BREAKDOWN


def test_no_moment_is_asked_for_after_a_failure():
    asked = []

    def run(equation):
        asked.append(equation.shift)
        return Outcome(np.ones(10), Status.STOPPED)

    problem = ctmc.DiscountedReward(random_chain(5, 10), "pay", discount=0.5, moments=3)
    outcome, proof, _ = answer_discounted(problem, run)
    assert asked == [0.5]
    assert outcome.status is Status.STOPPED
    assert proof.status is not Status.CONVERGED


def test_bad_input():
    chain = random_chain(5, 4)
    for discount in (0, -1.0, float("nan"), float("inf"), True, "1"):
        with pytest.raises(ctmc.ModelError, match="discount is"):
            ctmc.DiscountedReward(chain, "pay", discount=discount)
    with pytest.raises(ctmc.UnknownNameError, match="pya"):
        ctmc.DiscountedReward(chain, "pya", discount=1.0)
    problem = ctmc.DiscountedReward(chain, "pay", discount=1.0)
    with pytest.raises(ctmc.UnsupportedProblemError, match=r"resolvent_krylov, resolvent_lu, value_iteration"):
        ctmc.solve(problem, "gth")
    with pytest.raises(ctmc.ModelError, match="max_iterations is 0"):
        ctmc.solve(problem, "value_iteration(max_iterations=0)")


def test_factors_that_do_not_fit_are_refused():
    model = supermarket([3, 2, 1], 3, 2, 9)
    with ctmc.limited_memory("1MiB"), pytest.raises(ctmc.ModelError, match="forecast in its factors"):
        ctmc.solve(ctmc.DiscountedReward(model, "jobs", discount=1.0), "resolvent_lu")


def test_the_message_names_the_next_method():
    model = supermarket([3, 2, 1], 3, 2, 9)
    problem = ctmc.DiscountedReward(model, "jobs", discount=0.01)
    with pytest.raises(ctmc.SolveError, match=r"ITERATION_LIMIT.*Next to try: resolvent_krylov"):
        ctmc.solve(problem, "value_iteration(max_iterations=3)")
