"""Uniformization on active states: closed forms, other methods, bounds, and the work that is saved."""

import math

import numpy as np
import pytest
import scipy.stats
from transient_gallery import (
    check_agreement,
    check_bounds,
    check_bounds_of_rewards,
    check_limits,
    check_many_times,
    check_two_states,
    queue,
    queue_in_closed_form,
)

import ctmc
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.problem import Transient
from solvers.transient._active import ActiveStates, Successors, birth_weights
from solvers.transient.adaptive_uniformization import AdaptiveUniformization

METHOD = AdaptiveUniformization()
ALWAYS = AdaptiveUniformization(largest_share=1e5)
"""Keeps active states apart whatever it costs."""


def infinite_servers(arrival_rate, capacity):
    return ctmc.build("birth_death", births=[arrival_rate] * capacity, deaths=[float(k + 1) for k in range(capacity)])


@pytest.mark.parametrize("method", [METHOD, ALWAYS], ids=["auto", "always"])
def test_against_the_others(method):
    check_agreement(method, ("krylov_exponential",))


def test_two_states():
    check_two_states(METHOD, (1e-8, 1.0, 1e7))
    check_two_states(ALWAYS, (1e-8, 1.0, 100.0))


def test_queue_in_closed_form():
    times = [0.3, 2.0, 15.0, 40.0]
    found = ctmc.solve(Transient(Generator.from_matrix(queue(0.8, 9)), (3,), times, tolerance=1e-12), ALWAYS)
    np.testing.assert_allclose(found.value, queue_in_closed_form(0.8, 9, 3, times), atol=2e-12)


@pytest.mark.parametrize("method", [METHOD, ALWAYS], ids=["auto", "always"])
def test_the_bound_holds(method):
    check_bounds(method, 1459, 50)
    check_bounds_of_rewards(method, 1471, 15)


def test_many_times():
    check_many_times(ALWAYS)


def test_work_is_saved_where_the_fast_states_are_far_away():
    """Infinite servers: the number of jobs is a Poisson variable with mean 5 (1 - exp(-t)); the last state's rate is 3000."""
    model = infinite_servers(5.0, 3000)
    problem = Transient(model, (0,), [0.5, 1.0])
    found, known = ctmc.solve(problem, METHOD), ctmc.solve(problem, "uniformization")
    for row, time in zip(found.value, problem.times, strict=True):
        poisson = scipy.stats.poisson.pmf(np.arange(model.size), -5 * math.expm1(-time))
        assert np.abs(row - poisson).sum() <= found.error_bound
    assert found.products < known.products / 20
    jumps = found.products - 2
    active = ActiveStates(Successors.of(model), model.exit_rates, np.eye(1, model.size)[0])
    active.spread(jumps)
    assert active.count(jumps) <= jumps + 1
    assert active.entries(jumps) < known.products * (model.entries + model.size) / 1000


def test_plain_uniformization_where_nothing_is_saved():
    problem = Transient(Generator.from_matrix(queue(0.8, 9)), (3,), [50.0])
    assert ctmc.solve(problem, METHOD).value.tolist() == ctmc.solve(problem, "uniformization").value.tolist()


def test_plain_uniformization_takes_over_at_later_times():
    """Two groups of times: active states for the first, all of them for the second, from where the first has come to."""
    capacity, times = 60, [*np.linspace(0, 0.5, 8), 20.0, 30.0]
    model = infinite_servers(5.0, capacity)
    found, known = ctmc.solve(Transient(model, (0,), times), METHOD), ctmc.solve(Transient(model, (0,), times))
    first, plain = ctmc.solve(Transient(model, (0,), times[:8]), METHOD), ctmc.solve(Transient(model, (0,), times[:8]))
    assert first.products < plain.products
    assert np.abs(found.value - known.value).sum(axis=1).max() <= found.error_bound + known.error_bound
    assert (np.diff(found.history["iteration"]) >= 0).all()


@pytest.mark.parametrize("time", [0.0, 1e-6, 0.7, 30.0])
def test_births(time):
    """Yule processes have geometric numbers, those with one rate Poisson numbers."""
    yule = birth_weights(0.1 * np.arange(1.0, 400), np.array([time]), 1e-12)
    stay = math.exp(-0.1 * time)
    geometric = stay * (-math.expm1(-0.1 * time)) ** np.arange(398.0)
    np.testing.assert_allclose(yule.probabilities[0, :-1], geometric, atol=1e-12)
    even = birth_weights(np.full(120, 2.0), np.array([time]), 1e-12)
    np.testing.assert_allclose(
        even.probabilities[0, :-1], scipy.stats.poisson.pmf(np.arange(119), 2 * time), atol=1e-12
    )
    np.testing.assert_allclose(even.survival[0, :-1], scipy.stats.poisson.sf(np.arange(119), 2 * time) / 2, atol=1e-12)
    for found in (yule, even):
        assert found.probabilities.sum() == pytest.approx(1, abs=1e-13)
        assert found.survival.sum() == pytest.approx(time, rel=1e-13)


def test_limits():
    check_limits(AdaptiveUniformization, Transient(infinite_servers(30.0, 3000), (0,), [1.0]))


def test_bad_options():
    with pytest.raises(ModelError, match="rate_factor is 1; allowed is a number between 1 and 100"):
        AdaptiveUniformization(rate_factor=1)
    with pytest.raises(ModelError, match="largest_share is 0; allowed"):
        AdaptiveUniformization(largest_share=0)
