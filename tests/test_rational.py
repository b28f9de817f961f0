"""Implicit collocation: closed forms, stiff chains, other methods, bounds, and the numbers of the method."""

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
    machines,
    machines_in_closed_form,
    queue,
    queue_in_closed_form,
    two_parts,
)

import ctmc
from ctmc.errors import ModelError, UnknownNameError
from ctmc.model.generator import Generator
from ctmc.problem import AccumulatedReward, Transient
from solvers.transient._collocation import collocation
from solvers.transient.rational import STAGES, Rational

METHOD = Rational()


def test_against_uniformization_and_the_others():
    check_agreement(METHOD, ("uniformization",))


def test_two_states():
    check_two_states(METHOD, (1e-8, 1.0, 1e4, 1e8, 1e12), accuracy=1e-12)


@pytest.mark.parametrize("stages", STAGES[1:])
def test_queue_in_closed_form(stages):
    times = [0.3, 2.0, 15.0]
    found = ctmc.solve(Transient(Generator.from_matrix(queue(0.8, 9)), (3,), times), Rational(stages=stages))
    np.testing.assert_allclose(found.value, queue_in_closed_form(0.8, 9, 3, times), atol=1e-10)


@pytest.mark.parametrize("seed", [1439, 1447])
def test_the_bound_holds(seed):
    check_bounds(METHOD, seed, 30)


def test_the_bound_holds_with_few_stages():
    check_bounds(Rational(stages=7), 1451, 10)


def test_the_bound_of_rewards_holds():
    check_bounds_of_rewards(METHOD, 1453, 15)


@pytest.mark.parametrize("time", [1e3, 1e7, 1e11])
def test_machines_at_any_rate_and_time(time):
    """Five machines, their rates over seven decades, at rate x time up to 2e12: a product in closed form."""
    failures, repairs = 1e-6 * 10.0 ** np.arange(5), 10.0 * 10.0 ** (-0.7 * np.arange(5))
    problem = Transient(Generator.from_matrix(machines(failures, repairs)), (0,), [time])
    found = ctmc.solve(problem, METHOD)
    np.testing.assert_allclose(found.value[0], machines_in_closed_form(failures, repairs, time), atol=1e-11)
    assert found.iterations < 500


@pytest.mark.parametrize(("exchange", "accuracy"), [(1e-6, 1e-9), (1e-9, 1e-6)])
def test_nearly_decomposable(exchange, accuracy):
    rates, time = two_parts(exchange), 0.3 / exchange
    found = ctmc.solve(Transient(Generator.from_matrix(rates), (0,), [time]), METHOD)
    known = exact(rates, np.eye(6)[0], time)
    assert np.abs(found.value[0] - known).sum() <= min(found.error_bound, accuracy)
    assert 0.05 < known[3:].sum() < 0.5
    assert found.iterations < 2000


def test_accumulated_reward_of_a_stiff_chain():
    """Down time of one machine: E = f / (f + r) (t - (1 - exp(-(f + r) t)) / (f + r))."""
    fail, repair = 1e-5, 100.0
    both, times = fail + repair, np.array([0.1, 10.0, 1e5])
    model = Generator.from_matrix([[0, fail], [repair, 0]])
    found = ctmc.solve(AccumulatedReward(model, reward="state", initial=(0,), times=times, moments=2), METHOD)
    mean = fail / both * (times + np.expm1(-both * times) / both)
    assert (np.abs(found.value[0] - mean) <= found.error_bound[0]).all()
    np.testing.assert_allclose(found.value[0], mean, atol=1e-8)


def test_many_times_are_read_from_few_steps():
    assert check_many_times(METHOD).iterations < 700


@pytest.mark.parametrize("moments", [1, 2])
def test_systems_solved_by_gmres_give_the_same(moments):
    model = Generator.from_matrix(queue(0.7, 12))
    for initial in (None, (1,)):
        problem = AccumulatedReward(model, reward="state", initial=initial, times=[0.3], moments=moments)
        found = ctmc.solve(problem, Rational(linear_solver="gmres", stages=5))
        factorised = ctmc.solve(problem, Rational(linear_solver="lu", stages=5))
        np.testing.assert_allclose(found.value, factorised.value, rtol=1e-7, atol=1e-9)
    assert found.products > 3 * factorised.products


def test_factors_that_are_too_large_are_not_made():
    problem = Transient(Generator.from_matrix(queue(0.7, 12)), (1,), [0.5])
    iterated, factorised = (
        ctmc.solve(problem, Rational(largest_factor=20, stages=5)),
        ctmc.solve(problem, Rational(stages=5)),
    )
    assert iterated.products > 3 * factorised.products
    full = Transient(Generator.from_matrix(np.ones((150, 150)) - np.eye(150)), (1,), [0.5])
    with ctmc.limited_memory("1500KiB"), pytest.raises(ModelError, match="forecast in each of its factors"):
        ctmc.solve(full, Rational(linear_solver="lu"))


@pytest.mark.parametrize("stages", STAGES)
def test_the_numbers_of_the_method(stages):
    found = collocation(stages)
    powers = np.arange(1, stages + 1)
    table = found.points[:, None] ** powers
    np.testing.assert_allclose(found.derivative @ table, powers * found.points[:, None] ** (powers - 1), atol=1e-10)
    again = (found.back * found.shifts) @ found.into
    np.testing.assert_allclose(again.real, found.derivative, rtol=1e-8, atol=1e-9)
    assert (found.shifts.real > 0).all()
    # Radau: exact for polynomials up to degree 2 s - 2; a last coefficient; values and integrals at a place
    values, integrals = found.weights(0.3)
    np.testing.assert_allclose(values @ table, 0.3**powers, atol=1e-13)
    np.testing.assert_allclose(integrals @ table, 0.3 ** (powers + 1) / (powers + 1), atol=1e-14)
    whole = found.weights(1.0)[1]
    high = np.arange(1, 2 * stages - 1)
    np.testing.assert_allclose(whole @ found.points[:, None] ** high, 1 / (high + 1), atol=1e-13)
    np.testing.assert_allclose(found.leading[1:] @ table, (powers == stages).astype(float), atol=1e-7)
    grid = (np.arange(20_000) + 0.5) / 20_000
    product = np.abs((grid[:, None] - found.points).prod(axis=1)).mean()
    assert found.product_integral == pytest.approx(product, rel=1e-5)


def test_limits():
    check_limits(Rational, Transient(Generator.from_matrix(queue(0.999, 300)), (150,), [300.0]))


@pytest.mark.parametrize("stages", [1, 4, 13, 3.0])
def test_bad_stages(stages):
    with pytest.raises(ModelError, match="stages is"):
        Rational(stages=stages)


def test_bad_linear_solver():
    with pytest.raises(UnknownNameError, match="linear_solver"):
        Rational(linear_solver="qr")
