"""modulated_queue against its events, Neuts's matrices and closed forms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gallery_examples import ALL, BURSTS, check_rates, stationary

import ctmc
from builders.modulated_queue import modulated_queue
from ctmc.model.elimination import gth


def erlang_queue(offered, servers, most):
    """M/M/c/K at service rate 1: probabilities of 0 .. K jobs."""
    weights = np.cumprod([1.0, *(offered / min(k, servers) for k in range(1, most + 1))])
    return weights / weights.sum()


def modulated_events(environment, arrival_rates, service_rates, servers, capacity):
    def events(state):
        jobs, phase = state
        if jobs < capacity:
            yield (jobs + 1, phase), arrival_rates[phase]
        if jobs > 0:
            yield (jobs - 1, phase), min(jobs, servers) * service_rates[phase]
        for other, rate in enumerate(environment[phase]):
            if other != phase:
                yield (jobs, other), rate

    return events


@pytest.mark.parametrize(("servers", "capacity"), [(1, 6), (2, 9), (5, 3), (3, 3)])
def test_modulated_queue_against_its_events(servers, capacity):
    model = modulated_queue(**BURSTS, servers=servers, capacity=capacity)
    states = list(itertools.product(range(capacity + 1), range(3)))
    check_rates(model, states, modulated_events(**BURSTS, servers=servers, capacity=capacity))


@pytest.mark.parametrize(("servers", "capacity"), [(1, 12), (3, 20), (5, 2), (1, None), (3, None)])
def test_one_environment_is_a_plain_queue(servers, capacity):
    offered = 0.8 * servers
    model = modulated_queue([[0]], [2 * offered], [2.0], servers, capacity)
    known = erlang_queue(offered, servers, 400 if capacity is None else capacity)
    solution = stationary(model, "logarithmic_reduction" if capacity is None else "gth")
    found = solution.measures()
    jobs = np.arange(len(known))
    waiting = known @ np.maximum(jobs - servers, 0)
    lost = 0.0 if capacity is None else known[-1]
    assert found["jobs"] == pytest.approx(known @ jobs, rel=1e-11)
    assert found["waiting_jobs"] == pytest.approx(waiting, rel=1e-11, abs=1e-14)
    assert found["throughput"] == pytest.approx(2 * offered * (1 - lost), rel=1e-11)
    assert found["waiting_time"] == pytest.approx(waiting / (2 * offered * (1 - lost)), rel=1e-11, abs=1e-14)
    assert found["utilization"] == pytest.approx(offered * (1 - lost) / servers, rel=1e-11)
    if capacity is None:
        assert found["decay_rate"] == pytest.approx(0.8, rel=1e-12)
        assert "blocking_probability" not in found
    else:
        assert found["blocking_probability"] == pytest.approx(lost, rel=1e-12)
        np.testing.assert_allclose(found["full_by_environment"], [lost], rtol=1e-12)


def neuts(environment, arrival_rates, service_rates, servers, levels):
    """Probabilities of levels 0 .. levels - 1 of MMPP/MSP/c: R by Neuts's fixed point, levels 0 .. c by a linear system."""
    environment = np.array(environment, dtype=float)
    m = len(environment)
    environment -= np.diag(environment.sum(axis=1))
    up, service = np.diag(arrival_rates).astype(float), np.diag(service_rates).astype(float)
    local = [environment - up - min(k, servers) * service for k in range(servers + 1)]
    r, inverse = np.zeros((m, m)), np.linalg.inv(-local[-1])
    for _ in range(100_000):
        after = (up + r @ r @ (servers * service)) @ inverse
        done, r = np.abs(after - r).max() < 1e-15, after
        if done:
            break
    balance = np.zeros(((servers + 1) * m,) * 2)
    for k in range(servers + 1):
        own = slice(k * m, (k + 1) * m)
        balance[own, own] = local[k] + (r @ (servers * service) if k == servers else 0)
        if k:
            balance[(k - 1) * m : k * m, own] = up
            balance[own, (k - 1) * m : k * m] = k * service
    mass = np.ones(len(balance))
    mass[-m:] = np.linalg.solve(np.eye(m) - r, np.ones(m))
    balance[:, 0] = mass
    pi = np.linalg.solve(balance.T, np.eye(len(balance))[0]).reshape(-1, m)
    more = [pi[-1] @ np.linalg.matrix_power(r, k) for k in range(1, levels - servers)]
    return np.vstack([pi, *more]), r


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_modulated_queue_against_neuts(servers):
    rates = {**BURSTS, "arrival_rates": [0.2, 0.8 * servers, 0]}
    known, r = neuts(**rates, servers=servers, levels=60)
    model = modulated_queue(**rates, servers=servers)
    for solver in ("cyclic_reduction", "logarithmic_reduction"):
        solution = stationary(model, solver)
        for level, probabilities in enumerate(known):
            np.testing.assert_allclose(solution.value.level(level), probabilities, rtol=1e-9, atol=1e-14)
    # far above all levels are geometric; the truncation is the finite queue at a capacity that nothing reaches
    assert solution.measures()["decay_rate"] == pytest.approx(np.abs(np.linalg.eigvals(r)).max(), rel=1e-9)
    large = modulated_queue(**rates, servers=servers, capacity=500)
    cut, found = stationary(large, "level_reduction").measures(), solution.measures()
    for name in found.keys() - {"decay_rate"}:
        np.testing.assert_allclose(found[name], cut[name], rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(found["environment_probability"], known.sum(axis=0), atol=1e-3)
    assert "decay_rate" not in stationary(model.truncate(30)).measures()


def test_flows_of_the_modulated_queue():
    """What arrives and is not lost is served; conditional means add up to the mean."""
    solution = stationary(modulated_queue(**BURSTS, servers=2, capacity=9))
    found, pi = solution.measures(), solution.value.reshape(10, 3)
    environment = gth(np.array(BURSTS["environment"]) - np.diag(np.sum(BURSTS["environment"], axis=1)))
    np.testing.assert_allclose(found["environment_probability"], environment, rtol=1e-12)
    arrivals = environment @ BURSTS["arrival_rates"]
    assert found["throughput"] == pytest.approx(arrivals * (1 - found["blocking_probability"]), rel=1e-12)
    assert found["blocking_probability"] == pytest.approx(pi[-1] @ BURSTS["arrival_rates"] / arrivals, rel=1e-12)
    np.testing.assert_allclose(found["full_by_environment"], pi[-1] / environment, rtol=1e-12)
    np.testing.assert_allclose(found["jobs_by_environment"], np.arange(10) @ pi / environment, rtol=1e-12)


def test_slow_and_fast_environments():
    """A slow environment leaves a mixture of plain queues, a fast one a queue at the mean rates."""
    arrivals, services, weights = [0.5, 4.0], [1.0, 2.0], [0.8, 0.2]
    queues = [erlang_queue(a / s, 2, 8) for a, s in zip(arrivals, services, strict=True)]
    mixture = sum(share * queue for share, queue in zip(weights, queues, strict=True))
    mean = erlang_queue(np.dot(weights, arrivals) / np.dot(weights, services), 2, 8)
    errors = {}
    for speed in (1e-4, 1e-6, 1e4, 1e6):
        model = modulated_queue([[0, speed], [4 * speed, 0]], arrivals, services, servers=2, capacity=8)
        limit = mixture if speed < 1 else mean
        errors[speed] = np.abs(stationary(model).value.reshape(9, 2).sum(axis=1) - limit).max()
    for far, near in ((1e-4, 1e-6), (1e4, 1e6)):
        assert 50 < errors[far] / errors[near] < 200  # the difference is of first order
        assert errors[near] < 1e-5
    assert np.abs(mixture - mean).max() > 0.05


def test_blocks_of_the_modulated_queue_at_other_rates():
    parameters = {**BURSTS, "arrival_rates": [0.2, 0.5, 0], "servers": 2}
    changes = {
        "arrival_rates": [0.3, 0.1, 0],
        "service_rates": [2, 0, 1.5],
        "environment": [[0, 1, 0], [0, 0, 3], [2, 1, 0]],
    }
    model, built = modulated_queue(**parameters), modulated_queue(**{**parameters, **changes})
    moved = model.with_rates(**changes)
    assert moved.recipe == built.recipe
    assert moved.up.indices is model.up.indices
    for name in ("up", "local", "down"):
        np.testing.assert_array_equal(getattr(moved, name).toarray(), getattr(built, name).toarray())
        np.testing.assert_array_equal(
            getattr(moved.boundary[1], name).toarray(), getattr(built.boundary[1], name).toarray()
        )


@pytest.mark.parametrize(
    ("builder", "changes", "sentence"),
    [
        ("modulated_queue", {"arrival_rates": [0.3, 0.1, 1]}, "other transitions"),
        (
            "modulated_queue",
            {"environment": [[0, 1], [1, 0]], "arrival_rates": [1, 1], "service_rates": [1, 1]},
            "keeps its 3",
        ),
        ("repairable_system", {"failure_rates": [1, 1], "repair_rates": [1, 1]}, "keeps its 3"),
        ("loss_network", {"arrival_rates": [1, 1]}, "for each of 2 routes"),
        ("nearly_decomposable", {"seed": 1978}, "without a rebuild"),
    ],
)
def test_what_is_more_than_a_change_of_rates_is_refused(builder, changes, sentence):
    with pytest.raises(ctmc.ModelError, match=sentence):
        ctmc.build(builder, **ALL[builder]).with_rates(**changes)


@pytest.mark.parametrize("load", [1.0, 1.4])
def test_a_modulated_queue_that_grows_without_end_is_refused(load):
    """The environment is in its states half of the time each; the mean arrival rate is the load."""
    with pytest.raises(ctmc.UnstableError, match=r"mean drift is .* or a capacity\."):
        modulated_queue([[0, 3.0], [3.0, 0]], [0, 4 * load], [0.5, 1.5], servers=2)
    assert modulated_queue([[0, 3.0], [3.0, 0]], [0, 3.9], [0.5, 1.5], servers=2).drift == pytest.approx(
        -0.05, rel=1e-9
    )
