"""birth_death and tandem_network against closed forms and against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ctmc
from builders.birth_death import birth_death
from builders.reachable import reachable
from builders.tandem_network import tandem_network


def stationary(model):
    return ctmc.solve(ctmc.Stationary(model), "gth")


# ---- birth_death ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("load", "places"), [(0.5, 1), (0.9, 20), (1.0, 7), (3.0, 12)])
def test_mm1k(load, places):
    solution = stationary(birth_death([load] * places, [1.0] * places))
    weights = load ** np.arange(places + 1)
    np.testing.assert_allclose(solution.value, weights / weights.sum(), rtol=1e-13)
    found = solution.measures()
    jobs = weights @ np.arange(places + 1) / weights.sum()
    assert found["jobs"] == pytest.approx(jobs, rel=1e-13)
    assert found["throughput"] == pytest.approx(load * (1 - weights[-1] / weights.sum()), rel=1e-13)
    assert found["response_time"] == pytest.approx(jobs / found["throughput"], rel=1e-13)
    assert found["empty_probability"] == solution.value[0]
    assert found["full_probability"] == solution.value[-1]


@pytest.mark.parametrize(("offered", "servers", "places"), [(2.0, 3, 3), (2.0, 3, 10), (7.5, 8, 30)])
def test_mmck(offered, servers, places):
    """With K = c the last probability is Erlang's loss formula."""
    solution = stationary(birth_death([offered] * places, [min(k + 1.0, servers) for k in range(places)]))
    weights = [offered**k / math.factorial(min(k, servers)) / servers ** max(k - servers, 0) for k in range(places + 1)]
    np.testing.assert_allclose(solution.value, np.array(weights) / sum(weights), rtol=1e-13)


def test_birth_death_structure():
    model = birth_death([1.0, 2.0], [3.0, 4.0])
    assert model.to_scipy().toarray().tolist() == [[-1, 1, 0], [3, -5, 2], [0, 4, -4]]
    assert model.coloring.tolist() == [0, 1, 0]
    assert model.recipe.builder == "birth_death"
    assert model.recipe.reproducible


@pytest.mark.parametrize(
    ("births", "deaths", "words"),
    [
        ([1.0, -1.0], [1.0, 1.0], ["births", "-1.0", "positive"]),
        ([1.0], [0.0], ["deaths", "0.0"]),
        ([math.nan], [1.0], ["births", "nan"]),
        ([1.0], [math.inf], ["deaths", "inf"]),
        ([], [], ["births", "empty"]),
        ([1.0, 1.0], [1.0], ["births has 2", "deaths 1"]),
        (["a"], [1.0], ["births", "a"]),
        ([[1.0], [1.0, 2.0]], [1.0], ["births"]),
    ],
)
def test_birth_death_bad_input(births, deaths, words):
    with pytest.raises(ctmc.ModelError) as caught:
        birth_death(births, deaths)
    assert all(word in str(caught.value) for word in words), caught.value


# ---- tandem_network -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service_rates", "arrival_rate", "total"),
    [([2.0, 1.0], 1.0, 3), ([3.0, 2.0, 1.0], 0.8, 9), ([1.0, 1.0, 1.0, 5.0], 2.0, 5), ([0.7], 1.0, 6)],
)
def test_tandem_product_form(service_rates, arrival_rate, total):
    model = tandem_network(service_rates, arrival_rate, total_capacity=total)
    solution = stationary(model)
    states = model.space.states(np.arange(model.size))
    weights = np.prod((arrival_rate / np.array(service_rates)) ** states, axis=1)
    exact = weights / weights.sum()
    np.testing.assert_allclose(solution.value, exact, rtol=1e-12, atol=0)
    jobs = states.sum(axis=1)
    found = solution.measures()
    full = exact[jobs == total].sum()
    assert found["blocking_probability"] == pytest.approx(full, rel=1e-12)
    assert found["throughput"] == pytest.approx(arrival_rate * (1 - full), rel=1e-12)
    assert found["jobs"] == pytest.approx(exact @ jobs, rel=1e-12)
    assert found["response_time"] == pytest.approx(exact @ jobs / found["throughput"], rel=1e-12)
    np.testing.assert_allclose(found["queue_length"], exact @ states, rtol=1e-12)
    np.testing.assert_allclose(found["utilization"], found["throughput"] / np.array(service_rates), rtol=1e-12)


def tandem_transitions(service_rates, arrival_rate, limits, total):
    """The blocking network once more, written from its description: one job moves at a time."""

    def transitions(state):
        if state[0] < limits[0] and sum(state) < total:
            yield (state[0] + 1, *state[1:]), arrival_rate
        for station, rate in enumerate(service_rates):
            if state[station] == 0:
                continue
            after = list(state)
            after[station] -= 1
            if station + 1 < len(state):
                after[station + 1] += 1
                if after[station + 1] > limits[station + 1]:
                    continue
            yield tuple(after), rate

    return transitions


@pytest.mark.parametrize(
    ("service_rates", "capacity", "total"),
    [
        ([2.0, 1.0], 3, None),
        ([3.0, 2.0, 1.0], [2, 1, 4], None),
        ([3.0, 2.0, 1.0], [2, 3, 3], 5),
        ([3.0, 2.0, 1.0, 4.0], 1, 2),
        ([3.0, 2.0, 1.0], 4, 12),
        ([1.5], 4, None),
    ],
)
def test_blocking_tandem_against_reachable(service_rates, capacity, total):
    model = tandem_network(service_rates, 0.9, capacity, total)
    limits = [capacity] * len(service_rates) if isinstance(capacity, int) else capacity
    most = sum(limits) if total is None else total
    function = tandem_transitions(service_rates, 0.9, limits, most)
    other = reachable(function, [0] * len(service_rates), [f"queue_length[{len(service_rates)}]"])
    assert other.size == model.size
    place = model.space.index(other.space.table)
    ours = model.to_scipy().toarray()[np.ix_(place, place)]
    np.testing.assert_array_equal(other.to_scipy().toarray(), ours)
    pi = stationary(other).value
    states = other.space.table
    found = stationary(model).measures()
    serving = np.array(
        [[any(after[i] < state[i] for after, _ in function(state)) for i in range(len(state))] for state in map(tuple, states.tolist())]
    )  # fmt: skip
    np.testing.assert_allclose(found["utilization"], pi @ serving, rtol=1e-12)
    lost = [not any(sum(after) > sum(state) for after, _ in function(state)) for state in map(tuple, states.tolist())]
    assert found["blocking_probability"] == pytest.approx(pi @ lost, rel=1e-12)
    assert found["throughput"] == pytest.approx(0.9 * (1 - pi @ lost), rel=1e-12)
    assert found["throughput"] == pytest.approx(service_rates[0] * found["utilization"][0], rel=1e-12)


def test_tandem_across_chunks():
    """More states than one thread enumerates from one start, with a total that cuts the box."""
    model = tandem_network([3.0, 2.0, 1.0], 0.8, [40, 35, 30], 60)
    assert model.size > 2**14
    states = model.space.states(np.arange(model.size))
    expected = ctmc.model.generator.Generator.from_transitions(*tandem_arrays(model.space, states), model.space)
    for name in ("indptr", "sources", "rates"):
        np.testing.assert_array_equal(getattr(model, name), getattr(expected, name))


def tandem_arrays(space, states):
    sources, targets, rates = [], [], []
    for step, rate in (([1, 0, 0], 0.8), ([-1, 1, 0], 3.0), ([0, -1, 1], 2.0), ([0, 0, -1], 1.0)):
        place = space.find(states + step)
        sources.append(np.flatnonzero(place >= 0))
        targets.append(place[place >= 0])
        rates.append(np.full(len(targets[-1]), rate))
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(rates)


def test_tandem_coloring():
    """A job's way through M stations closes a cycle of M + 1 transitions."""
    assert tandem_network([1.0, 1.0], 1.0, 1).coloring is None
    assert tandem_network([1.0] * 4, 1.0, 2, 3).coloring is None
    assert tandem_network([1.0] * 3, 1.0, 2).coloring is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"service_rates": [1.0, 0.0]}, ["service_rates", "0.0", "positive"]),
        ({"service_rates": [1.0, math.inf]}, ["service_rates", "inf"]),
        ({"service_rates": []}, ["service_rates", "empty"]),
        ({"service_rates": "fast"}, ["service_rates", "fast"]),
        ({"service_rates": [[1.0, 2.0]]}, ["service_rates"]),
        ({"arrival_rate": -1.0}, ["arrival_rate", "-1.0"]),
        ({"arrival_rate": math.nan}, ["arrival_rate", "nan"]),
        ({"arrival_rate": [1.0, 2.0]}, ["arrival_rate"]),
        ({"capacity": None}, ["capacity", "total_capacity", "missing"]),
        ({"capacity": 0}, ["capacity", "0", "whole number"]),
        ({"capacity": [3, -1]}, ["capacity", "-1"]),
        ({"capacity": [3, 3, 3]}, ["capacity has 3", "2 stations"]),
        ({"capacity": 2.5}, ["capacity", "2.5"]),
        ({"capacity": True}, ["capacity", "True"]),
        ({"total_capacity": 0}, ["total_capacity", "0"]),
        ({"total_capacity": "9"}, ["total_capacity", "'9'"]),
        ({"capacity": 10**6}, ["tandem network", "1,000,002,000,001 states", "transitions", "--memory-limit"]),
        ({"capacity": None, "total_capacity": 10**9}, ["total", "1,000,000,000"]),
    ],
)
def test_tandem_bad_input(change, words):
    parameters = {"service_rates": [2.0, 1.0], "arrival_rate": 1.0, "capacity": 3, **change}
    with pytest.raises(ctmc.ModelError) as caught:
        tandem_network(**parameters)
    assert all(word in str(caught.value) for word in words), caught.value
