"""Long-run average and bias: closed forms, dense solves, the Abel limit, and what is refused."""

import importlib

import numpy as np
import pytest

import ctmc
from builders.supermarket import supermarket
from ctmc.model.reward import Reward

module = importlib.import_module("ctmc.bias")


def dense_bias(chain, rates):
    """Solve for the gain and the bias together, by dense elimination."""
    q = chain.to_scipy().toarray()
    n = len(q)
    pi = np.linalg.lstsq(np.vstack([q.T, np.ones(n)]), np.append(np.zeros(n), 1.0), rcond=None)[0]
    gain = pi @ rates
    h = np.linalg.solve(np.outer(np.ones(n), pi) - q, rates - gain)
    return gain, h - pi @ h


def test_two_states_in_closed_form():
    up, down = 2.0, 3.0
    found = ctmc.bias(ctmc.Generator.from_matrix([[-up, up], [down, -down]]), "state")
    assert abs(found.gain - up / (up + down)) < 1e-15
    np.testing.assert_allclose(found.values, np.array([-up, down]) / (up + down) ** 2, rtol=1e-13)
    assert found.gain in found.interval
    assert found.interval.width < 1e-14


@pytest.mark.parametrize("method", ["elimination", "gmres"])
def test_against_dense_elimination(monkeypatch, method):
    if method == "gmres":
        monkeypatch.setattr(module, "SMALL", 0)
    model = supermarket([3, 2, 1], 3, 2, 5, [0.2, 0.3, 0.5])
    solution = ctmc.solve(ctmc.Stationary(model))
    for name in ("jobs", "queue_length[1]", "imbalance", "loss_rate"):
        found = ctmc.bias(solution, name)
        base, _, index = name.partition("[")
        rates = model.all_rewards[base].evaluate(model.space.states(np.arange(model.size)), slice(None))
        gain, h = dense_bias(model, rates[:, int(index[:-1])] if index else rates)
        assert abs(found.gain - gain) < 1e-10
        assert gain in found.interval or min(abs(gain - found.interval.low), abs(gain - found.interval.high)) < 1e-13
        np.testing.assert_allclose(found.values, h, atol=1e-8 * np.abs(h).max())
        assert abs(solution.value @ found.values) < 1e-12 * np.abs(h).max()
        if not index:
            assert abs(found.gain - solution.expected(name)) < 1e-10


def test_impulses_count_with_their_rate():
    queue = ctmc.build("birth_death", births=[1.0] * 5, deaths=[2.0] * 5)
    queue = queue.replace(rewards={"arrivals": Reward(None, impulse=lambda before, after: after[:, 0] > before[:, 0])})
    solution = ctmc.solve(ctmc.Stationary(queue))
    assert abs(ctmc.bias(solution, "arrivals").gain - (1 - solution.value[-1])) < 1e-14


def test_abel_limit():
    model = supermarket([3, 2, 1], 3, 2, 4, [0.2, 0.3, 0.5])
    found = ctmc.bias(model, "jobs")
    apart = []
    for discount in (1e-2, 1e-3, 1e-4):
        psi = ctmc.solve(ctmc.DiscountedReward(model, "jobs", discount=discount)).value[0]
        assert np.abs(discount * psi - found.gain).max() < 2 * discount * np.abs(found.values).max()
        apart.append(np.abs(psi - found.gain / discount - found.values).max())
    assert apart[1] < 0.15 * apart[0]  # in the first order of the discount
    assert apart[2] < 0.15 * apart[1]
    assert apart[2] < 1e-3 * np.abs(found.values).max()


def test_transient_and_absorbing_states_have_a_bias():
    chain = ctmc.Generator.from_matrix(np.diag([1.0, 2.0], 1)).with_reward("pay", np.array([3.0, 4.0, 5.0]))
    found = ctmc.bias(chain, "pay")
    assert found.gain == 5.0
    np.testing.assert_allclose(found.values, [-2 / 1 - 1 / 2, -1 / 2, 0], atol=1e-14)


def test_what_is_refused():
    queue = ctmc.build("birth_death", births=[1.0] * 5, deaths=[2.0] * 5)
    apart = ctmc.Generator.from_matrix(np.zeros((2, 2)))
    with pytest.raises(ctmc.ReducibleError, match="2 recurrent classes"):
        ctmc.bias(apart, "state")
    with pytest.raises(ctmc.UnknownNameError, match="jbos"):
        ctmc.bias(queue, "jbos")
    with pytest.raises(ctmc.ModelError, match=r"2 components; allowed is one of them, such as idle\[0\]"):
        ctmc.bias(supermarket([2, 1], 1, 2, 2), "idle")
    with pytest.raises(ctmc.ModelError, match=r"source is 'queue\.h5'"):
        ctmc.bias("queue.h5", "jobs")
    with pytest.raises(ctmc.UnsupportedProblemError, match="this is a Transient problem"):
        ctmc.bias(ctmc.solve(ctmc.Transient(queue, times=[1.0])), "jobs")
    with pytest.raises(ctmc.UnsupportedProblemError, match="on a QBD"):
        ctmc.bias(ctmc.solve(ctmc.Stationary(ctmc.QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]]))), "level")
    starved = ctmc.solve(ctmc.Stationary(queue), "power_iteration(max_iterations=1)", check=False)
    with pytest.raises(ctmc.SolveError, match="ITERATION_LIMIT; allowed is one that converged"):
        ctmc.bias(starved, "jobs")


def test_too_few_products_are_said(monkeypatch):
    monkeypatch.setattr(module, "SMALL", 0)
    model = supermarket([3, 2, 1], 3, 2, 5)
    with pytest.raises(ctmc.SolveError, match="residual of the Poisson equation of 'jobs'"):
        ctmc.bias(model, "jobs", largest_products=5)
