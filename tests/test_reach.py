"""What happens before a passage: gambler's ruin, bounded until by hand, time in states, quasi-stationary distributions."""

import math

import numpy as np
import pytest
from scipy.linalg import eig, expm

import ctmc
from ctmc.errors import ModelError, SolveError
from ctmc.model.communication import reachable_within

SOLVERS = ("absorption_elimination", "absorption_krylov", "absorption_lu", "class_elimination")


def game(coins, win, lose):
    births, deaths = np.full(coins, win), np.full(coins, lose)
    births[0] = deaths[-1] = 0.0
    return ctmc.Generator.from_matrix(np.diag(births, 1) + np.diag(deaths, -1))


@pytest.mark.parametrize("solver", SOLVERS)
def test_gamblers_ruin(solver):
    coins, ratio = 30, 2.0
    known = np.expm1(np.arange(coins + 1) * math.log(ratio)) / np.expm1(coins * math.log(ratio))
    value, bound = ctmc.reach_probability(game(coins, 1.0, ratio), f"state == {coins}", solver=solver)
    assert (np.abs(value - known) <= bound + 1e-16).all()
    assert bound <= 1e-10
    assert value[0] == 0.0
    assert value[-1] == 1.0
    if solver == "absorption_elimination":
        np.testing.assert_allclose(value, known, rtol=1e-13)
    single = ctmc.reach_probability(game(coins, 1.0, ratio), f"state == {coins}", initial=(29,), solver=solver)
    assert single.value == pytest.approx(known[29], abs=1e-10)
    assert single.error_bound <= bound


def test_probabilities_decided_by_the_transitions_are_exact():
    chain = game(4, 1.0, 3.0)
    assert ctmc.reach_probability(chain, "state == 4", initial=(0,)) == (0.0, 0.0)
    assert ctmc.reach_probability(chain, "state == 4 or state == 0", initial={(1,): 0.3, (2,): 0.7}) == (1.0, 0.0)
    value, bound = ctmc.reach_probability(chain, "state == 4 or state == 0")
    assert (value == 1).all()
    assert bound == 0


def test_one_target_before_another():
    rates = np.random.default_rng(313).random((12, 12))
    np.fill_diagonal(rates, 0)
    chain = ctmc.Generator.from_matrix(rates)
    value, _ = ctmc.reach_probability(chain, "state == 3", avoid="state >= 10")
    dense = chain.to_scipy().toarray()
    inside = ~np.isin(np.arange(12), (3, 10, 11))
    known = np.linalg.solve(-dense[inside][:, inside], dense[inside, 3])
    np.testing.assert_allclose(value[inside], known, rtol=1e-12)
    assert value[3] == 1.0
    assert (value[10:] == 0).all()


@pytest.mark.parametrize("interval", [(0.0, 0.7), (0.4, 1.1), (0.4, 0.4), (0.0, 0.0), (0.4, math.inf), (0, math.inf)])
def test_bounded_until_by_hand(interval):
    rates = np.random.default_rng(317).random((9, 9))
    np.fill_diagonal(rates, 0)
    chain = ctmc.Generator.from_matrix(rates)
    target, avoided = np.arange(9) == 3, np.arange(9) >= 7
    first, last = interval
    dense = chain.to_scipy().toarray()
    inner, outer = dense.copy(), dense.copy()
    inner[target | avoided] = 0
    outer[avoided] = 0
    inside = expm(inner * min(last - first, 1e4)) @ target
    known = expm(outer * first) @ np.where(avoided, 0, inside)
    every = ctmc.reach_probability(chain, "state == 3", avoid="state >= 7", interval=interval)
    assert (np.abs(every.value - known) <= every.error_bound + 1e-12).all()
    assert every.error_bound < 1e-9
    single = ctmc.reach_probability(chain, "state == 3", avoid="state >= 7", interval=interval, initial=(5,))
    assert single.value == pytest.approx(known[5], abs=1e-9)


@pytest.mark.parametrize("interval", [(2, 1), (-1, 1), (math.nan, 1), (math.inf, math.inf), 3, ("a", 1)])
def test_wrong_intervals(interval):
    with pytest.raises(ModelError, match=r"interval is .*allowed are two times"):
        ctmc.reach_probability(game(3, 1.0, 1.0), "state == 3", interval=interval)


@pytest.mark.parametrize("solver", SOLVERS)
def test_time_in_each_state_before(solver):
    rates = np.random.default_rng(331).random((40, 40)) * (np.random.default_rng(337).random((40, 40)) < 0.2)
    rates += np.eye(40, k=1)
    np.fill_diagonal(rates, 0)
    chain = ctmc.Generator.from_matrix(rates)
    spent = ctmc.expected_time_before(chain, "state >= 38", (3,), avoid="state == 20", solver=solver)
    inside = (np.arange(40) < 38) & (np.arange(40) != 20)
    dense = chain.to_scipy().toarray()[inside][:, inside]
    known = np.zeros(40)
    known[inside] = np.linalg.solve(-dense.T, (np.arange(40) == 3)[inside].astype(float))
    assert np.abs(spent.times - known).sum() <= spent.error_bound + 1e-13
    assert spent.error_bound <= 1e-9 * spent.total
    np.testing.assert_allclose(spent.visits, known * chain.exit_rates, rtol=1e-9)
    both = ctmc.FirstPassage(chain, "state >= 38 or state == 20", initial=(3,), moments=1)
    assert spent.total == pytest.approx(ctmc.solve(both).mean, rel=1e-9)


def test_time_before_what_may_be_missed_is_infinite():
    with pytest.raises(ModelError, match="infinite"):
        ctmc.expected_time_before(game(4, 1.0, 1.0), "state == 4", (2,))
    with pytest.raises(ModelError, match="initial is missing"):
        ctmc.expected_time_before(game(4, 1.0, 1.0), "state == 4")
    assert ctmc.expected_time_before(game(4, 1.0, 1.0), "state == 4", (4,)).total == 0


def test_starved_solvers_are_not_believed():
    chain = game(400, 1.0, 1.0)
    with pytest.raises(SolveError, match="ITERATION_LIMIT"):
        ctmc.reach_probability(chain, "state == 400", solver="absorption_krylov(max_iterations=3)")
    with pytest.raises(SolveError, match="ITERATION_LIMIT"):
        ctmc.expected_time_before(
            chain, "state == 400 or state == 0", (3,), solver="absorption_krylov(max_iterations=3)"
        )


def test_quasi_stationary_distribution():
    rates = np.random.default_rng(347).random((15, 15)) * 10.0 ** np.random.default_rng(349).uniform(-3, 1, (15, 15))
    np.fill_diagonal(rates, 0)
    chain = ctmc.Generator.from_matrix(rates)
    found = ctmc.quasi_stationary(chain, "state == 0")
    values, vectors = eig(chain.to_scipy().toarray()[1:, 1:].T)
    most = np.argmax(values.real)
    known = np.abs(vectors[:, most].real)
    np.testing.assert_allclose(found.distribution[1:], known / known.sum(), rtol=1e-9)
    assert found.decay_rate == pytest.approx(-values[most].real, rel=1e-10)
    low, high = found.decay_bounds
    assert low <= -values[most].real * (1 + 1e-12)
    assert -values[most].real * (1 - 1e-12) <= high
    assert high / low - 1 < 1e-9
    # from there the time is exponential
    passage = ctmc.solve(ctmc.FirstPassage(chain, "state == 0", initial=found.distribution))
    assert passage.mean == pytest.approx(1 / found.decay_rate, rel=1e-9)
    assert passage.standard_deviation == pytest.approx(passage.mean, rel=1e-9)


def test_quasi_stationary_distribution_of_many_states():
    model = ctmc.build("supermarket", service_rates=[1, 1, 1], arrival_rate=2.4, choices=2, capacity=16)
    found = ctmc.quasi_stationary(model, "jobs >= 36")
    assert np.count_nonzero(found.distribution) > 3000
    low, high = found.decay_bounds
    assert found.residual < 1e-11
    assert low <= found.decay_rate <= high < 1.001 * low
    inside = found.distribution > 0
    flow = model.forward(found.distribution)
    np.testing.assert_allclose(flow[inside], -found.decay_rate * found.distribution[inside], atol=1e-12)


def test_no_quasi_stationary_distribution():
    two = ctmc.Generator.from_matrix([[0, 0, 1.0], [0, 0, 1.0], [1.0, 1.0, 0]])
    with pytest.raises(ModelError, match="2 classes"):
        ctmc.quasi_stationary(two, "state == 2")
    lonely = ctmc.Generator.from_matrix([[0, 1.0, 0], [1.0, 0, 0], [1.0, 0, 0]])
    with pytest.raises(ModelError, match="never entered"):
        ctmc.quasi_stationary(lonely, "state == 2")


def test_search_falls_back_to_breadth_first():
    rng = np.random.default_rng(353)
    order = rng.permutation(3000)  # a path in no order at all: passes would take thousands
    chain = ctmc.Generator.from_transitions(
        order[:-1], order[1:], np.ones(2999), ctmc.Generator.from_matrix(np.eye(3000, k=1)).space
    )
    ends = np.arange(3000) == order[2500]
    within = np.arange(3000) != order[700]
    found = reachable_within(chain, ends, within, backward=True)
    np.testing.assert_array_equal(np.flatnonzero(found), np.sort(order[701:2501]))
    found = reachable_within(chain, np.arange(3000) == order[200], within)
    np.testing.assert_array_equal(np.flatnonzero(found), np.sort(order[200:700]))
