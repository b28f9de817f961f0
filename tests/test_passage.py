"""Passage times: closed forms, exact rational solves, stiff chains, distribution functions, and what cannot be reached."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.linalg import expm

import ctmc
from ctmc.defaults import default_solver
from ctmc.errors import ModelError, SolveError
from ctmc.model.m_factors import factorized
from ctmc.model.stopped import fates
from ctmc.problem import FirstPassage
from ctmc.study.measures import evaluate_measure

SOLVERS = ("absorption_elimination", "absorption_krylov", "absorption_lu", "class_elimination")


def birth_death(births, deaths):
    return ctmc.Generator.from_matrix(np.diag(births, 1) + np.diag(deaths, -1))


def upward_moments(births, deaths, target):
    """Mean and variance of the time from 0 up to `target`: independent steps up, each by a recursion of positive terms.

    With t_k the time from k to k + 1: E t_k = (1 + d_k E t_{k-1}) / b_k, and E t_k^2 from conditioning on the first jump.
    """
    means, variances = [], []
    for k in range(target):
        b, d = births[k], deaths[k - 1] if k else 0.0
        before, spread = (means[-1], variances[-1]) if k else (0.0, 0.0)
        q = b + d
        mean = (1 + d * before) / b
        # t = own time + with chance d / q (t_{k-1} + t_k'); solved for E t^2
        second = (2 / q**2 + d / q * (2 / q * (before + mean) + spread + before**2 + 2 * before * mean)) * q / b
        means.append(mean)
        variances.append(second - mean**2)
    return math.fsum(means), math.fsum(variances)


@pytest.mark.parametrize("solver", SOLVERS)
def test_up_and_down_a_birth_death_chain(solver):
    births, deaths = np.linspace(1, 3, 14), np.linspace(2, 4, 14)
    up = ctmc.solve(FirstPassage(birth_death(births, deaths), "state == 9", initial=(0,)), solver)
    mean, variance = upward_moments(births, deaths, 9)
    assert up.mean == pytest.approx(mean, rel=1e-9)
    assert up.variance == pytest.approx(variance, rel=1e-8)
    assert abs(up.mean - mean) <= up.error_bound[0] + 1e-12 * mean
    down = ctmc.solve(FirstPassage(birth_death(births, deaths), "state == 5", initial=(14,)), solver)
    mean, variance = upward_moments(deaths[::-1], births[::-1], 9)
    assert down.mean == pytest.approx(mean, rel=1e-9)
    assert down.standard_deviation == pytest.approx(math.sqrt(variance), rel=1e-8)
    assert down.measures() == {"mean": down.mean, "variance": down.variance, "reach_probability": 1.0}


def exact_solve(rates, inside, right):
    """Solve -Q_SS x = right in rational numbers, by Gauss and Jordan."""
    rows = [[-Fraction(rates[i, j]) for j in inside] + [Fraction(r)] for i, r in zip(inside, right, strict=True)]
    for a, i in enumerate(inside):
        rows[a][a] = sum((Fraction(rate) for rate in rates[i]), Fraction(0))
    for c in range(len(inside)):
        for r in range(len(inside)):
            if r != c and rows[r][c]:
                factor = rows[r][c] / rows[c][c]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[c], strict=True)]
    return [row[-1] / row[a] for a, row in enumerate(rows)]


def random_chain(seed, decades):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    rates = rng.random((n, n)) * (rng.random((n, n)) < 0.45) * 10.0 ** rng.uniform(-decades, decades, (n, n))
    np.fill_diagonal(rates, 0)
    target = rng.random(n) < 0.3
    target[rng.integers(n)] = True
    return rates, target


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1000, 10**6), st.sampled_from([0.5, 3.0]), st.sampled_from(SOLVERS))
def test_bounds_hold_state_by_state(seed, decades, solver):
    rates, target = random_chain(seed, decades)
    chain = ctmc.Generator.from_matrix(rates, labels={"goal": target})
    found = fates(chain, target)
    inside = np.flatnonzero(found.certain)
    first = exact_solve(rates, inside, [1] * len(inside))
    second = exact_solve(rates, inside, [2 * x for x in first])
    answer = ctmc.solve(FirstPassage(chain, "goal"), solver, check=False)
    hard = decades > 1 and solver != "absorption_elimination"
    assert answer.converged or hard
    if not answer.converged:
        return
    assert (answer.mean[target] == 0).all()
    assert np.isinf(answer.mean[found.possible | found.never]).all()
    for k, one, two in zip(inside, first, second, strict=True):
        assert abs(Fraction(answer.value[0, k]) / one - 1) <= answer.relative_error_bound[0]
        assert abs(Fraction(answer.value[1, k]) / two - 1) <= answer.relative_error_bound[1]
        assert abs(Fraction(answer.variance[k]) - (two - one**2)) <= answer.variance_bounds
        if solver == "absorption_elimination":
            assert answer.variance[k] == pytest.approx(float(two - one**2), rel=1e-12)


def test_elimination_is_right_on_rates_over_ten_decades():
    births, deaths = 10.0 ** np.linspace(-5, 5, 12), 10.0 ** np.linspace(5, -5, 12)
    rates = np.diag(births, 1) + np.diag(deaths, -1)
    answer = ctmc.solve(FirstPassage(ctmc.Generator.from_matrix(rates), "state == 12"), "absorption_elimination")
    exact = exact_solve(rates, range(12), [1] * 12)
    assert max(abs(float(Fraction(x) / y - 1)) for x, y in zip(answer.mean[:12], exact, strict=True)) < 1e-14
    assert answer.mean[0] > 1e20
    assert "elimination without subtraction" in answer.reason


def test_factors_solve_from_both_sides():
    rng = np.random.default_rng(71)
    stay, leave = rng.random((150, 150)), 1e-3 * rng.random(150)
    dense = np.diag(stay.sum(axis=1) - np.diag(stay) + leave) - (stay - np.diag(np.diag(stay)))
    right = rng.random(150)
    factors = factorized(stay, leave)
    np.testing.assert_allclose(dense @ factors.solve(right), right, rtol=1e-7)
    np.testing.assert_allclose(factors.solve_left(right) @ dense, right, rtol=1e-7)
    with pytest.raises(ModelError, match="never left"):
        factorized(stay, np.zeros(150))


def erlang(stages, rate):
    return ctmc.Generator.from_matrix(np.diag(np.full(stages, rate), 1))


def test_erlang_distribution():
    stages, rate = 7, 3.0
    passage = ctmc.solve(FirstPassage(erlang(stages, rate), f"state == {stages}", initial=(0,), moments=4))
    law = stats.gamma(stages, scale=1 / rate)
    times = np.array([[-1.0, 0.0, 0.4], [2.0, 9.0, np.inf]])
    np.testing.assert_allclose(passage.cdf(times), law.cdf(times), atol=1e-10)
    np.testing.assert_allclose(passage.survival(times), law.sf(times), atol=1e-10)
    np.testing.assert_allclose(passage.density([0.4, 2.0, 9.0]), law.pdf([0.4, 2.0, 9.0]), rtol=1e-10)
    levels = [0.0, 1e-9, 0.05, 0.5, 0.95, 1 - 1e-9]
    np.testing.assert_allclose(passage.quantile(levels), law.ppf(levels), rtol=1e-8)
    np.testing.assert_allclose(passage.value, [law.moment(k) for k in (1, 2, 3, 4)], rtol=1e-12)
    assert passage.variance == pytest.approx(law.var(), rel=1e-13)
    assert passage.phase_type().quantile(0.95) == pytest.approx(passage.quantile(0.95), rel=1e-12)
    inner = passage.reached_by([0.4, 2.0])
    assert (np.abs(inner.value - law.cdf([0.4, 2.0])) <= inner.error_bound).all()


def test_variance_of_many_stages_without_cancellation():
    passage = ctmc.solve(FirstPassage(erlang(1000, 1e3), "state == 1000", initial=(0,)))
    assert passage.variance == pytest.approx(1000 * 1e-6, rel=1e-12)
    assert abs(passage.variance - 1000 * 1e-6) <= passage.variance_bounds


@pytest.mark.parametrize("seed", [1234, 55, 901])
def test_quantiles_invert_the_distribution_function(seed):
    rng = np.random.default_rng(seed)
    rates = rng.random((30, 30)) * (rng.random((30, 30)) < 0.2) + np.eye(30, k=1)
    np.fill_diagonal(rates, 0)
    chain = ctmc.Generator.from_matrix(rates)
    passage = ctmc.solve(FirstPassage(chain, "state >= 28", initial=(0,)))
    levels = np.array([0.01, 0.3, 0.5, 0.9, 0.999])
    np.testing.assert_allclose(passage.cdf(passage.quantile(levels)), levels, atol=1e-10)


def test_every_state_as_the_start():
    chain = birth_death([1.0, 2.0, 1.0], [2.0, 1.0, 1.0])
    passage = ctmc.solve(FirstPassage(chain, "state == 3"))
    assert passage.value.shape == (2, 4)
    assert passage.mean[3] == passage.variance[3] == 0
    dense = chain.to_scipy().toarray()
    dense[3] = 0
    np.testing.assert_allclose(passage.cdf([0.7, 2.0]), [expm(dense * t)[:, 3] for t in (0.7, 2.0)], atol=1e-10)
    for what in (lambda: passage.quantile(0.5), lambda: passage.density(1.0), passage.phase_type):
        with pytest.raises(ModelError, match="initial is None, every state"):
            what()


GAME = ctmc.Generator.from_matrix(np.diag([0, 1.0, 1.0, 1.0], 1) + np.diag([2.0, 2.0, 2.0, 0], -1))


def test_unreachable_and_partly_reachable():
    never = ctmc.solve(FirstPassage(GAME, "state == 4", initial=(0,)))
    assert never.mean == never.variance == math.inf
    assert never.reach_probability == 0.0
    assert "probability 0, so the time is infinite" in never.reason
    assert never.quantile(0.3) == math.inf
    assert never.cdf([1.0, math.inf]).tolist() == pytest.approx([0.0, 0.0], abs=1e-15)
    partly = ctmc.solve(FirstPassage(GAME, "state == 4", initial=(2,)))
    assert partly.mean == math.inf
    assert partly.reach_probability == pytest.approx(3 / 15, rel=1e-13)
    assert partly.quantile([0.2001, 1.0]).tolist() == [math.inf] * 2
    assert partly.cdf(partly.quantile([0.01, 0.15])) == pytest.approx([0.01, 0.15], abs=1e-10)
    assert partly.cdf(math.inf) == partly.reach_probability
    with pytest.raises(ModelError, match=r"reached with probability 0\.2"):
        partly.phase_type()
    every = ctmc.solve(FirstPassage(GAME, "state == 4"))
    assert every.mean.tolist() == [math.inf] * 4 + [0.0]
    np.testing.assert_allclose(every.reach_probability, [0, 1 / 15, 3 / 15, 7 / 15, 1], rtol=1e-13)


def test_initial_inside_the_target_and_partly():
    chain = erlang(2, 1.0)
    inside = ctmc.solve(FirstPassage(chain, "state >= 1", initial=(2,)))
    assert (inside.mean, inside.variance, inside.quantile(0.9), inside.cdf(0.0)) == (0, 0, 0, 1)
    assert inside.phase_type().mean == 0
    mixed = ctmc.solve(FirstPassage(chain, "state >= 1", initial={(0,): 0.5, (2,): 0.5}))
    assert mixed.mean == pytest.approx(0.5)
    assert mixed.variance == pytest.approx(0.75)
    assert mixed.quantile([0.5, 0.75]) == pytest.approx([0, math.log(2)])
    assert mixed.phase_type().atom == 0.5


def test_all_states_are_the_target():
    every = ctmc.solve(FirstPassage(GAME, "state >= 0"))
    assert not every.value.any()
    assert (every.reach_probability == 1).all()


def test_empty_target_is_refused():
    with pytest.raises(ModelError, match="holds in no state"):
        ctmc.solve(FirstPassage(GAME, "state > 9"))


def test_avoid_callable_and_label():
    chain = ctmc.Generator.from_matrix(
        np.diag(np.ones(4), 1) + np.diag(np.ones(4), -1), labels={"goal": np.arange(5) == 3}
    )
    by_label = ctmc.solve(FirstPassage(chain, "goal", avoid="state == 0"))
    by_function = ctmc.solve(FirstPassage(chain, lambda s: s[:, 0] == 3, avoid=lambda s: s[:, 0] == 0))
    np.testing.assert_array_equal(by_label.value, by_function.value)
    np.testing.assert_allclose(by_label.reach_probability, [0, 1 / 3, 2 / 3, 1, 1], rtol=1e-13)
    assert by_label.mean.tolist() == [math.inf, math.inf, math.inf, 0.0, 1.0]
    # what is to be avoided but in the target is in the target
    assert ctmc.solve(FirstPassage(chain, "state <= 1", avoid="state == 1", initial=(4,))).reach_probability == 1.0


def test_default_solver_by_size():
    small, large = birth_death(np.ones(9), np.ones(9)), birth_death(np.ones(3001), np.ones(3001))
    assert default_solver(FirstPassage(small, "state == 9")) == "absorption_elimination"
    assert default_solver(FirstPassage(large, "state == 9")) == "class_elimination"
    passage = ctmc.solve(FirstPassage(large, "state == 9", initial=(0,)))
    assert passage.mean == pytest.approx(45, rel=1e-9)


def test_only_states_that_are_met_are_solved_for():
    chain = birth_death(np.ones(500), np.ones(500))
    passage = ctmc.solve(FirstPassage(chain, "state == 7", initial=(0,)))
    assert passage.phase_type().size == 7
    assert passage.mean == pytest.approx(7 * 8 / 2, rel=1e-13)


def test_one_moment_has_no_variance():
    with pytest.raises(ModelError, match="moments is 1"):
        ctmc.solve(FirstPassage(GAME, "state == 0", initial=(0,), moments=1)).variance  # noqa: B018


def test_a_starved_solver_is_not_believed():
    chain = birth_death(np.full(60, 1.0), np.full(60, 1.0))
    with pytest.raises(SolveError, match="ITERATION_LIMIT") as failure:
        ctmc.solve(FirstPassage(chain, "state == 60", initial=(0,)), "absorption_krylov(max_iterations=3)")
    assert "absorption_elimination" in str(failure.value)


@pytest.mark.parametrize("solver", SOLVERS)
def test_supermarket_fills_up(solver):
    model = ctmc.build(
        "supermarket", service_rates=[3, 2, 1], arrival_rate=3, choices=2, capacity=9, preferences=[0.2, 0.3, 0.5]
    )
    passage = ctmc.solve(FirstPassage(model, "jobs >= 10", initial=(0, 0, 0)), solver)
    states = model.space.states(np.arange(model.size))
    below = states.sum(axis=1) < 10
    dense = model.to_scipy().toarray()[below][:, below]
    first = np.linalg.solve(-dense, np.ones(len(dense)))
    second = np.linalg.solve(-dense, 2 * first)
    assert passage.mean == pytest.approx(first[0], rel=1e-9)
    assert passage.variance == pytest.approx(second[0] - first[0] ** 2, rel=1e-8)
    assert passage.cdf(100.0) == pytest.approx(1 - expm(dense * 100).sum(axis=1)[0], abs=1e-9)


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"overflow": "rerouted", "capacity": [2, 3, 4]},
        {"total_capacity": 5},
        {"service_rates": [1, 1, 2], "preferences": None, "lump": True, "capacity": 4},
    ],
    ids=["lost", "rerouted", "total capacity", "lumped"],
)
def test_response_time_of_the_supermarket(case):
    base = {"service_rates": [3, 2, 1], "arrival_rate": 3, "choices": 2, "capacity": 6, "preferences": [0.2, 0.3, 0.5]}
    solution = ctmc.solve(ctmc.Stationary(ctmc.build("supermarket", **(base | case))))
    law = solution.distribution("response_time")
    assert law.mean == pytest.approx(solution.measures()["response_time"], rel=1e-12)  # Little's law
    assert law.cdf(law.quantile(0.95)) == pytest.approx(0.95, rel=1e-12)
    full = ctmc.solve(ctmc.Stationary(ctmc.build("supermarket", **(base | case | {"lump": False}))))
    assert full.distribution("response_time").quantile(0.9) == pytest.approx(law.quantile(0.9), rel=1e-11)


def test_response_time_of_one_queue():
    load, capacity = 0.7, 5
    model = ctmc.build("supermarket", service_rates=[1.0], arrival_rate=load, choices=1, capacity=capacity)
    weights = load ** np.arange(capacity)
    weights /= weights.sum()
    known = sum(w * stats.gamma(k + 1).sf(3.0) for k, w in enumerate(weights))
    solution = ctmc.solve(ctmc.Stationary(model))
    assert solution.distribution("response_time").survival(3.0) == pytest.approx(known, rel=1e-12)
    assert solution.distribution("response_time").cdf(
        evaluate_measure(solution, "p95(response_time)")
    ) == pytest.approx(0.95)
    over_time = ctmc.solve(ctmc.Transient(model, times=[1.0]))
    with pytest.raises(ModelError, match="the long run"):
        over_time.distribution("response_time")
