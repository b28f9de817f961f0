"""Krylov spaces over time: closed forms, other methods, bounds, and where products are saved."""

import numpy as np
import pytest
from transient_gallery import (
    check_agreement,
    check_bounds,
    check_bounds_of_rewards,
    check_limits,
    check_many_times,
    check_two_states,
    exact,
    queue,
    queue_in_closed_form,
    two_parts,
)

import ctmc
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.problem import AccumulatedReward, Transient
from solvers.transient.krylov_exponential import KrylovExponential, _bounded

METHOD = KrylovExponential()


def test_against_uniformization_and_the_others():
    check_agreement(METHOD, ("uniformization", "rational"))


def test_two_states():
    check_two_states(METHOD, (1e-8, 1.0, 1e4, 1e8, 1e12), accuracy=1e-13)


@pytest.mark.parametrize("dimension", [7, 40])
def test_queue_in_closed_form(dimension):
    times = [0.3, 2.0, 15.0, 200.0]
    problem = Transient(Generator.from_matrix(queue(0.8, 9)), (3,), times, tolerance=1e-12)
    found = ctmc.solve(problem, KrylovExponential(dimension=dimension))
    np.testing.assert_allclose(found.value, queue_in_closed_form(0.8, 9, 3, times), atol=2e-12)


@pytest.mark.parametrize("seed", [1423, 1427])
def test_the_bound_holds(seed):
    check_bounds(METHOD, seed, 60)


@pytest.mark.parametrize("dimension", [9])
def test_the_bound_holds_with_many_short_steps(dimension):
    check_bounds_of_rewards(KrylovExponential(dimension=dimension), 1429, 12)


def test_the_bound_of_rewards_holds():
    check_bounds_of_rewards(METHOD, 1433, 30)


def test_the_bound_of_a_step_is_that_of_its_integral():
    """For a Jordan block [exp(s H)]_{m1} is s^{m-1} / (m - 1)! exp(-s), whose integral is known."""
    small = np.diag(-np.ones(3)) + np.diag(np.ones(2), -1)
    found = _bounded(small, 0.05, 40, 2.0)
    ends = 0.05 * np.arange(41)
    integrals = 2 * (1 - np.exp(-ends) * (1 + ends + ends**2 / 2))
    assert (found.bounds >= integrals).all()
    assert (found.bounds[5:] <= 1.2 * integrals[5:]).all()
    np.testing.assert_allclose(found.x[:, 2], ends**2 / 2 * np.exp(-ends), atol=1e-15)
    np.testing.assert_allclose(found.z[:, 0], -np.expm1(-ends), atol=1e-15)


def test_many_times_are_read_from_few_steps():
    assert check_many_times(METHOD).products - 199 < 80


def test_fewer_products_than_uniformization():
    model = Generator.from_matrix(queue(0.8, 200))
    problem = Transient(model, (3,), [400.0])
    found, known = ctmc.solve(problem, METHOD), ctmc.solve(problem, "uniformization")
    assert found.products < known.products / 3
    assert ctmc.solve(problem, KrylovExponential(dimension=100)).products < known.products / 4


def test_a_small_invariant_space_is_found_at_any_rate_and_time():
    """Slow exchange between two parts: nothing is steady, and six vectors are the whole space."""
    rates, time = two_parts(1e-6), 3e5
    found = ctmc.solve(Transient(Generator.from_matrix(rates), (0,), [time]), METHOD)
    assert found.products < 30
    assert np.abs(found.value[0] - exact(rates, np.eye(6)[0], time)).sum() <= found.error_bound
    assert 0.05 < found.value[0, 3:].sum() < 0.5


def test_rewards_that_are_constant():
    """Nothing is left of r = 1 once its middle is taken off: E Phi = t without a product but those of the certificate."""
    model = Generator.from_matrix(queue(0.8, 9))
    model = ctmc.Generator.from_matrix(queue(0.8, 9), rewards={"one": ctmc.Reward(np.ones(model.size))})
    found = ctmc.solve(AccumulatedReward(model, reward="one", initial=None, times=[3.0], moments=2), METHOD)
    np.testing.assert_allclose(found.value[0], 3.0, rtol=1e-14)
    assert np.abs(found.variances).max() <= 9e-12


def test_limits():
    check_limits(KrylovExponential, Transient(Generator.from_matrix(queue(0.999, 1000)), (500,), [300.0]))


@pytest.mark.parametrize("dimension", [1, 0, 2.5, True, "9"])
def test_bad_dimension(dimension):
    with pytest.raises(ModelError, match=r"dimension is .*; allowed is a whole number >= 2"):
        KrylovExponential(dimension=dimension)
