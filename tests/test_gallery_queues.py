"""modulated_queue, repairable_system, nearly_decomposable, courtois, loss_network, and the shortest queue, against closed forms,
brute force, and values found in other ways."""

from __future__ import annotations

import inspect
import itertools
import math
import shlex
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import ctmc
from builders.courtois import courtois
from builders.loss_network import loss_network
from builders.modulated_queue import modulated_queue
from builders.nearly_decomposable import nearly_decomposable, prescribed_distribution
from builders.repairable_system import repairable_system
from builders.supermarket import supermarket
from ctmc import registry
from ctmc.cli import main
from ctmc.cli.docstring import read_docstring
from ctmc.model import streamed
from ctmc.model.elimination import gth
from ctmc.model.memory import limited_memory
from ctmc.model.streamed import streaming

BURSTS = {
    "environment": [[0, 0.1, 0], [0, 0, 2], [0.5, 0.5, 0]],
    "arrival_rates": [0.2, 3, 0],
    "service_rates": [1, 0, 0.5],
}
SYSTEM = {
    "failure_rates": [1e-9, 0.3, 2e-4],
    "repair_rates": [1e2, 0.5, 7.0],
    "components": [2, 3, 1],
    "needed": [1, 2, 1],
}
NETWORK = {"capacities": [5, 4, 3], "circuits": [[1, 0, 0], [0, 2, 1], [1, 1, 0], [0, 0, 3]], "arrival_rates": [1, 0.5, 0.8, 2],
           "service_rates": [1, 0.3, 2, 0.7]}  # fmt: skip
BLOCKS = {"blocks": 4, "block_size": 5, "coupling": 1e-12, "seed": 1977}
ALL = {
    "modulated_queue": {**BURSTS, "servers": 2, "capacity": 9},
    "repairable_system": {**SYSTEM, "repairmen": 2},
    "nearly_decomposable": BLOCKS,
    "loss_network": NETWORK,
    "courtois": {},
}


def stationary(model, solver="gth"):
    return ctmc.solve(ctmc.Stationary(model), solver)


def brute_force(states, events):
    """The rates between listed states, from a function that lists the transitions out of one as (state, rate)."""
    number = {state: k for k, state in enumerate(states)}
    rates = np.zeros((len(states), len(states)))
    for state in states:
        for target, rate in events(state):
            rates[number[state], number[target]] += rate
    return rates


def check_rates(model, states, events):
    """The model has these states in this order, and these rates between them."""
    np.testing.assert_array_equal(model.space.states(np.arange(model.size)), states)
    found = model.to_scipy().toarray()
    np.fill_diagonal(found, 0.0)
    np.testing.assert_allclose(found, brute_force(states, events), rtol=1e-15, atol=0)


def erlang_queue(offered, servers, most):
    """M/M/c/K at service rate 1: probabilities of 0 .. K jobs."""
    weights = np.cumprod([1.0, *(offered / min(k, servers) for k in range(1, most + 1))])
    return weights / weights.sum()


# ---- modulated_queue ------------------------------------------------------------------------------------------------


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


# ---- repairable_system ----------------------------------------------------------------------------------------------


def repair_events(design, repairmen, order):
    failures, repairs, counts, _ = design.values()
    crew = Fraction(repairmen)

    def events(state):
        left = crew
        for i, failed in enumerate(state):
            after = list(state)
            if failed < counts[i]:
                after[i] += 1
                yield tuple(after), (counts[i] - failed) * failures[i]
            if order == "priority":
                men = min(left, failed)
                left -= men
            else:
                men = Fraction(failed * min(repairmen, sum(state)), sum(state)) if failed else 0
            after = list(state)
            if men:
                after[i] -= 1
                yield tuple(after), float(men) * repairs[i]

    return events


@pytest.mark.parametrize("order", ["shared", "priority"])
@pytest.mark.parametrize("repairmen", [1, 2, 4, 6])
def test_repairable_system_against_its_events(order, repairmen):
    model = repairable_system(**SYSTEM, repairmen=repairmen, order=order)
    states = list(itertools.product(range(3), range(4), range(2)))
    check_rates(model, states, repair_events(SYSTEM, repairmen, order))
    solution = stationary(model)
    pi, rates = solution.value, brute_force(states, repair_events(SYSTEM, repairmen, order))
    works = np.array([state[0] <= 1 and state[1] <= 1 and state[2] == 0 for state in states])
    found = solution.measures()
    often = pi[works] @ rates[np.ix_(works, ~works)].sum(axis=1)
    assert found["unavailability"] == pytest.approx(pi[~works].sum(), rel=1e-12)
    assert found["system_failure_rate"] == pytest.approx(often, rel=1e-12)
    assert found["mean_up_time"] == pytest.approx(pi[works].sum() / often, rel=1e-12)
    assert found["mean_down_time"] == pytest.approx(pi[~works].sum() / often, rel=1e-12)
    np.testing.assert_allclose(found["failed"], pi @ states, rtol=1e-12)
    # in the long run every type fails as often as it is repaired
    repaired = found["repairing"] * SYSTEM["repair_rates"]
    np.testing.assert_allclose(repaired, (SYSTEM["components"] - found["failed"]) * SYSTEM["failure_rates"], rtol=1e-12)


def test_independent_components_have_product_form():
    """Ten decades of rates: with nobody waiting for repair each type is binomial, to the last digits of 1e-24."""
    rates = {"failure_rates": [1e-9, 1e-3, 1e-5], "repair_rates": [1e2, 0.5, 1e-4], "components": [2, 3, 2]}
    known = np.ones(1)
    for failure, repair, count in zip(*rates.values(), strict=True):
        share = failure / (failure + repair)
        known = np.multiply.outer(
            known, [math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)]
        ).ravel()
    for order in ("shared", "priority"):
        solution = stationary(repairable_system(**rates, order=order))
        np.testing.assert_allclose(solution.value, known, rtol=1e-12)
        np.testing.assert_allclose(solution.measures()["repairing"], solution.measures()["failed"], rtol=1e-13)


def mean_time_up(births, deaths):
    """Mean time of a birth-death chain from 0 to the top, in exact arithmetic: one step up after the other."""
    step = total = Fraction(0)
    for up, down in zip(births, [0, *deaths], strict=True):
        step = (1 + down * step) / up
        total += step
    return total


@pytest.mark.parametrize(
    ("components", "needed", "repairmen", "failure", "repair"),
    [(1, 1, 1, 1e-9, 1e2), (2, 1, 1, 1e-9, 1e2), (5, 2, 2, 1e-4, 30.0), (6, 6, 1, 0.3, 1.0), (4, 1, 9, 1e-3, 1e2)],
)
def test_mean_time_to_failure(components, needed, repairmen, failure, repair):
    model = repairable_system([failure], [repair], components, needed, repairmen)
    down = components - needed + 1
    births = [(components - k) * Fraction(failure) for k in range(down)]
    deaths = [min(k, repairmen) * Fraction(repair) for k in range(1, down)]
    problem = ctmc.FirstPassage(model, "available == 0", initial=model.initial)
    found = ctmc.solve(problem, "absorption_elimination")
    assert found.mean == pytest.approx(float(mean_time_up(births, deaths)), rel=1e-12)


def test_priority_hides_the_later_types():
    """With preemption the first type does not feel the others; where the crew is shared it does."""
    rates = {"failure_rates": [0.2, 0.5, 0.1], "repair_rates": [1.0, 0.8, 2.0], "components": [3, 2, 2], "repairmen": 2}
    alone = stationary(repairable_system([0.2], [1.0], 3, repairmen=2)).value
    first = {
        order: stationary(repairable_system(**rates, order=order)).marginal("failed", 0)
        for order in ("priority", "shared")
    }
    np.testing.assert_allclose(first["priority"], alone, rtol=1e-12)
    assert np.abs(first["shared"] - alone).max() > 0.01


def test_sensitivity_of_one_component():
    """Unavailability is f / (f + r), so its derivatives are r / (f + r)^2 and - f / (f + r)^2."""
    failure, repair = 1e-3, 0.5
    found = ctmc.sensitivity(stationary(repairable_system([failure], [repair])), "unavailable").values
    known = np.array([repair, -failure]) / (failure + repair) ** 2
    assert list(found) == ["failure_rates[0]", "repair_rates[0]"]
    np.testing.assert_allclose(list(found.values()), known, rtol=1e-9)


# ---- nearly_decomposable, courtois ----------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", [1.0, 1e-4, 1e-12])
@pytest.mark.parametrize(
    ("blocks", "size", "neighbours", "decades"),
    [(4, 5, 2, 1.0), (2, 7, 99, 0.0), (6, 3, 1, 8.0), (9, 1, 1, 3.0), (1, 9, 2, 5.0)],
)
def test_the_prescribed_distribution_is_stationary(coupling, blocks, size, neighbours, decades):
    parameters = {"blocks": blocks, "block_size": size, "coupling": coupling, "seed": 20250613, "decades": decades}
    model = nearly_decomposable(**parameters, neighbours=neighbours)
    known = prescribed_distribution(**parameters)
    assert known.sum() == pytest.approx(1, rel=1e-14)
    assert known.max() / known.min() <= 10**decades
    rates = model.to_scipy().toarray()
    np.fill_diagonal(rates, 0.0)
    flows = known[:, None] * rates
    np.testing.assert_allclose(flows, flows.T, rtol=1e-13, atol=0)  # detailed balance, pair by pair
    # who is joined to whom, and how fast
    block, place = np.divmod(np.arange(blocks * size), size)
    inside = (
        (block[:, None] == block) & (abs(place[:, None] - place) <= neighbours) & ~np.eye(blocks * size, dtype=bool)
    )
    between = (abs(block[:, None] - block) == 1) & (place[:, None] == place)
    np.testing.assert_array_equal(rates > 0, inside | between)
    pace = rates / np.sqrt(known / known[:, None])
    assert (pace[inside] >= 0.5 * (1 - 1e-12)).all()
    assert (pace[inside] < 1.5 * (1 + 1e-12)).all()
    assert (pace[between] >= 0.5 * coupling * (1 - 1e-12)).all()
    assert (pace[between] < 1.5 * coupling * (1 + 1e-12)).all()
    solution = stationary(model)
    np.testing.assert_allclose(solution.value, known, rtol=1e-11)
    found = solution.measures()
    assert found["exchange_rate"] == pytest.approx(flows[between].sum(), rel=1e-11, abs=0)
    assert found["largest_relative_error"] < 1e-11


def test_random_numbers_of_blocks():
    """Another seed is another chain, another coupling the same one with slower moves between blocks; numbers are uniform."""
    chain, other = nearly_decomposable(**BLOCKS), nearly_decomposable(**{**BLOCKS, "seed": 1978})
    assert not np.intersect1d(chain.transitions.rates, other.transitions.rates).size
    np.testing.assert_array_equal(
        chain.with_rates(coupling=0.25).to_scipy().toarray(),
        nearly_decomposable(**{**BLOCKS, "coupling": 0.25}).to_scipy().toarray(),
    )
    weights = prescribed_distribution(blocks=100, block_size=100, seed=5077)
    exponents = np.sort(np.log10(weights / weights.max()))
    distance = np.abs(exponents - (np.arange(10_000) + 0.5) / 10_000 + 1).max()
    assert distance < 1.63 / 100 + 1e-3  # Kolmogorov's test at one percent; the largest stands for 1
    pairs = nearly_decomposable(
        blocks=1, block_size=200, coupling=1, seed=5078, neighbours=200, decades=0
    ).transitions.rates
    assert np.abs(np.sort(pairs) - 0.5 - (np.arange(len(pairs)) + 0.5) / len(pairs)).max() < 1.63 / math.sqrt(
        len(pairs) / 2
    )
    assert np.unique(pairs).size == len(pairs) // 2  # each pair has its own, the same both ways


def test_errors_of_an_answer_are_measured():
    parameters = {**BLOCKS, "decades": 1.5}
    solution, known = stationary(nearly_decomposable(**parameters)), prescribed_distribution(**parameters)
    wrong = np.full(20, 0.05)
    found = replace(solution, value=wrong).measures()
    assert found["misplaced_mass"] == pytest.approx(np.abs(wrong - known).sum() / 2, rel=1e-12)
    assert found["largest_relative_error"] == pytest.approx((np.abs(wrong - known) / known).max(), rel=1e-12)
    blocks = known.reshape(4, 5).sum(axis=1)
    assert found["largest_block_error"] == pytest.approx((np.abs(0.25 - blocks) / blocks).max(), rel=1e-12)


def test_courtois():
    """The stationary vector to the five digits that are published, and the degree of coupling."""
    chain = courtois()
    solution = stationary(chain)
    published = [0.08928, 0.09276, 0.04049, 0.15853, 0.11894, 0.12039, 0.27780, 0.10182]
    np.testing.assert_allclose(solution.value, published, rtol=0, atol=5.01e-6)
    np.testing.assert_allclose(
        solution.measures()["block_probability"], np.add.reduceat(solution.value, [0, 3, 5]), rtol=1e-13
    )
    rates = chain.to_scipy().toarray()
    np.fill_diagonal(rates, 0.0)
    block = chain.space.table[:, 0]
    leaving = (rates * (block[:, None] != block)).sum(axis=1)
    assert leaving.max() == pytest.approx(1e-3, rel=1e-12)
    assert chain.exit_rates.max() < 1
    slow = courtois(coupling=1e-9).to_scipy().toarray()
    np.fill_diagonal(slow, 0.0)
    np.testing.assert_allclose(slow, np.where(block[:, None] == block, rates, 1e-9 * rates), rtol=1e-14)


# ---- loss_network ---------------------------------------------------------------------------------------------------


def fitting(capacities, circuits, **_):
    """All states of a loss network, in lexicographic order, by trying each combination."""
    most = [min(c // a for c, a in zip(capacities, row, strict=True) if a) for row in circuits]
    return [
        calls for calls in itertools.product(*(range(limit + 1) for limit in most))
        if (np.array(calls) @ np.array(circuits) <= capacities).all()
    ]  # fmt: skip


def test_loss_network_against_its_events():
    states = fitting(**NETWORK)

    def events(calls):
        for route, (offered, ending) in enumerate(zip(NETWORK["arrival_rates"], NETWORK["service_rates"], strict=True)):
            more, fewer = (tuple(n + step * (r == route) for r, n in enumerate(calls)) for step in (1, -1))
            if more in known:
                yield more, offered
            if fewer in known:
                yield fewer, calls[route] * ending

    known = set(states)
    check_rates(loss_network(**NETWORK), states, events)


@pytest.mark.parametrize(
    "network",
    [
        NETWORK,
        {
            "capacities": [6, 6, 6],
            "circuits": [[1, 1, 0], [0, 1, 1], [1, 0, 1]],
            "arrival_rates": [2, 3, 1],
            "service_rates": 0.5,
        },
        {"capacities": [3], "circuits": [[1]], "arrival_rates": [40.0]},
    ],
)
def test_loss_network_has_product_form(network):
    states = np.array(fitting(**network))
    loads = np.array(network["arrival_rates"]) / network.get("service_rates", 1.0)
    weights = np.array(
        [math.prod(a**n / math.factorial(n) for a, n in zip(loads, calls, strict=True)) for calls in states.tolist()]
    )
    known = weights / weights.sum()
    solution = stationary(loss_network(**network))
    np.testing.assert_allclose(solution.value, known, rtol=1e-11)
    circuits = np.array(network["circuits"])
    fits = (states @ circuits)[:, None, :] + circuits <= np.array(network["capacities"])
    blocked = known @ ~fits.all(axis=2)
    found = solution.measures()
    np.testing.assert_allclose(found["blocking_probability"], blocked, rtol=1e-11)
    np.testing.assert_allclose(found["calls"], loads * (1 - blocked), rtol=1e-11)  # Little's law
    np.testing.assert_allclose(found["utilization"], found["calls"] @ circuits / network["capacities"], rtol=1e-11)
    offered = np.array(network["arrival_rates"])
    np.testing.assert_allclose(found["throughput"] + found["loss_rate"], offered, rtol=1e-11)
    assert found["lost_fraction"] == pytest.approx(blocked @ offered / offered.sum(), rel=1e-11)


@pytest.mark.parametrize("needs", [[1], [1, 3], [2, 3, 5]])
def test_one_link_against_kaufman_and_roberts(needs):
    """j q(j) = sum over routes of load x circuits x q(j - circuits); with one circuit a call it is Erlang's formula."""
    capacity, loads = 20, [3.0, 1.5, 0.7][: len(needs)]
    used = [1.0]
    for j in range(1, capacity + 1):
        used.append(sum(a * b * used[j - b] for a, b in zip(loads, needs, strict=True) if j >= b) / j)
    used = np.array(used) / sum(used)
    found = stationary(loss_network([capacity], [[b] for b in needs], loads)).measures()
    np.testing.assert_allclose(
        found["blocking_probability"], [used[capacity - b + 1 :].sum() for b in needs], rtol=1e-11
    )
    if needs == [1]:
        inverse = 1.0
        for servers in range(1, capacity + 1):
            inverse = 1 + servers / loads[0] * inverse
        assert found["lost_fraction"] == pytest.approx(1 / inverse, rel=1e-11)


@pytest.mark.parametrize("row", [[2, 1], [[2, 1]], [[2], [1]]])
def test_one_route_needs_no_table(row):
    """The command line makes a column of 2,1; calls that hold 2 of 5 and 1 of 4 circuits are at most two: Erlang's formula."""
    found = stationary(loss_network([5, 4], row, [1.5])).measures()
    assert found["lost_fraction"] == pytest.approx(1.5**2 / 2 / (1 + 1.5 + 1.5**2 / 2), rel=1e-12)


@pytest.mark.parametrize("row", [[1], [1, 1, 1], [[1, 1], [1, 1]], 1, [1.5, 1]])
def test_one_route_names_every_link(row):
    with pytest.raises(ctmc.ModelError, match="circuits is"):
        loss_network([5, 4], row, [1.5])


def test_sensitivity_of_erlangs_formula():
    """The derivative of B by the load a is B (C / a - 1 + B), with C circuits."""
    load, circuits = 2.5, 4
    solution = stationary(loss_network([circuits], [[1]], [load]))
    lost = solution.measures()["lost_fraction"]
    found = ctmc.sensitivity(solution, "blocked[0]", "arrival_rates").value
    assert found == pytest.approx(lost * (circuits / load - 1 + lost), rel=1e-9)


# ---- joining the shortest queue -------------------------------------------------------------------------------------


def shortest_queue(servers, arrival_rate, capacity):
    """The supermarket in which a job looks at all servers, which are alike, and joins the shortest."""
    return supermarket([1.0] * servers, arrival_rate, choices=servers, capacity=capacity, selection="shortest_queue")


def test_all_servers_sampled_is_joining_the_shortest_queue():
    capacity, arrivals = 3, 2.0

    def events(state):
        best = [i for i, length in enumerate(state) if length == min(state)]
        for i in range(3):
            if i in best and state[i] < capacity:
                yield (*state[:i], state[i] + 1, *state[i + 1 :]), arrivals / len(best)
            if state[i] > 0:
                yield (*state[:i], state[i] - 1, *state[i + 1 :]), 1.0

    check_rates(shortest_queue(3, arrivals, capacity), list(itertools.product(range(capacity + 1), repeat=3)), events)


def compensation(load, levels):
    """P(shorter queue = m, difference = n) of two symmetric servers, as a sum of products a^m b^n, up to a factor.

    I. J. B. F. Adan, J. Wessels, W. H. M. Zijm, Stochastic Models 6 (1990): terms that solve the balance inside are added in
    turn so that the balance at m = 0 and that at n = 0 hold; the first one is load^2, the rate that J. F. C. Kingman (1961) and
    L. Flatto, H. P. McKean (1977) found.
    """
    m, n = np.arange(levels)[:, None], np.arange(1, 2 * levels)
    a = load**2
    b, weight, sum_of_terms = a / (2 + load), 1.0, 0.0
    for _ in range(40):
        other = 2 * load * b * b / a  # the same b, for the balance at m = 0
        beside = -weight * (other - b) / (a - b)
        sum_of_terms = sum_of_terms + (weight * a**m + beside * other**m) * b**n
        a, weight = other, beside
        other = a * a / ((2 * load + a) * b)  # the same a, for the balance at n = 0
        slope = (load + a) * (2 * load + a) / (load + 1)
        beside = -weight * (a * a - slope * b) / (a * a - slope * other)
        b, weight = other, beside
    return sum_of_terms


@pytest.mark.parametrize("load", [0.3, 0.7, 0.85])
def test_two_servers_against_published_series(load):
    levels = 60 if load < 0.8 else 110
    table = compensation(load, levels)
    diagonal = np.empty(levels)
    diagonal[0] = table[0, 0] / (2 * load)  # balance of the empty system, and of equal queues
    diagonal[1:] = (2 * load * table[:-1, 0] + table[1:, 0]) / (2 * load + 2)
    whole = np.column_stack([diagonal, table])
    whole /= whole.sum()
    m, n = np.indices(whole.shape)
    jobs = ((2 * m + n) * whole).sum()
    model = supermarket([1.0] * 2, 2 * load, choices=2, capacity=levels, selection="shortest_queue", lump=True)
    solution = ctmc.solve(ctmc.Stationary(model, tolerance=1e-13), "level_reduction")
    assert solution.expected("jobs") == pytest.approx(jobs, rel=1e-9)
    pi = solution.value
    equal = pi[model.space.index([[k, k] for k in range(12)])]
    np.testing.assert_allclose(equal, diagonal[:12] / diagonal.sum() * whole[:, 0].sum(), rtol=1e-8)
    assert equal[11] / equal[10] == pytest.approx(load**2, rel=1e-3)


# ---- what all of them share -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("builder", "parameters"),
    [
        ("modulated_queue", {**BURSTS, "servers": 3, "capacity": 5000}),
        ("repairable_system", {**SYSTEM, "components": [30, 20, 20], "repairmen": 2, "order": "priority"}),
        ("nearly_decomposable", {**BLOCKS, "blocks": 100, "block_size": 150}),
        ("loss_network", {**NETWORK, "capacities": [24, 40, 30]}),
    ],
)
def test_rows_made_as_they_are_asked_for(builder, parameters, monkeypatch):
    monkeypatch.setattr(streamed, "SLAB_STATES", 4096)
    whole = ctmc.build(builder, **parameters)
    with streaming():
        model = ctmc.build(builder, **parameters)
    assert len(model.transitions.begins) > 3
    assert model.entries == whole.entries
    for name in ("indptr", "sources", "rates"):
        np.testing.assert_array_equal(getattr(model.expanded, name), getattr(whole.expanded, name))


@pytest.mark.parametrize(
    ("builder", "changes"),
    [
        ("modulated_queue", {"service_rates": [2, 0, 1.5], "environment": [[0, 1, 0], [0, 0, 3], [2, 1, 0]]}),
        ("repairable_system", {"failure_rates": [0.5, 0.5, 0.5], "repair_rates": [1e-3, 2, 1e4]}),
        ("nearly_decomposable", {"coupling": 0.25}),
        ("loss_network", {"arrival_rates": [2, 2, 2, 2], "service_rates": 3}),
    ],
)
def test_other_rates_on_the_same_structure(builder, changes):
    model, built = ctmc.build(builder, **ALL[builder]), ctmc.build(builder, **{**ALL[builder], **changes})
    moved = model.with_rates(**changes)
    assert moved.transitions.sources is model.transitions.sources
    assert moved.recipe == built.recipe
    np.testing.assert_array_equal(moved.transitions.rates, built.transitions.rates)
    for name, value in stationary(built).measures().items():
        np.testing.assert_array_equal(stationary(moved).measures()[name], value)


@pytest.mark.parametrize("builder", ALL)
def test_stored_models_have_their_measures(builder, tmp_path):
    model = ctmc.build(builder, **ALL[builder])
    ctmc.save(tmp_path / "model.h5", model)
    loaded = ctmc.load(tmp_path / "model.h5")
    one, other = (stationary(chain).measures() for chain in (model, loaded))
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])


@pytest.mark.parametrize("builder", sorted(ALL.keys() - {"courtois"}))
def test_models_ask_before_they_take_memory(builder):
    large = {"capacity": 900, "components": 30, "block_size": 900, "capacities": [20, 30, 30]}
    own = inspect.signature(registry.builder(builder)).parameters
    parameters = {**ALL[builder], **{name: value for name, value in large.items() if name in own}}
    with limited_memory("40KiB"), pytest.raises(ctmc.ModelError, match=r"states.*memory limit of 40 KiB"):
        ctmc.build(builder, **parameters)


@pytest.mark.parametrize("builder", ["modulated_queue", "repairable_system", "loss_network"])
def test_measures_follow_from_proven_intervals(builder):
    solution = ctmc.solve(ctmc.Stationary(ctmc.build(builder, **ALL[builder])), "gth", certify="strict")
    for name, value in solution.measures().items():
        for place, number in np.ndenumerate(value):
            found = solution.intervals[f"{name}[{place[0]}]" if place else name]
            assert found.low <= number * (1 + 1e-12)
            assert number <= found.high * (1 + 1e-12)


@pytest.mark.parametrize("builder", ALL)
def test_the_command_in_the_docstring_works(builder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    examples = read_docstring(registry.builder(builder)).examples
    assert examples
    for example in examples:
        assert main(shlex.split(example)[1:]) == 0, capsys.readouterr().err
    assert ctmc.load(next(tmp_path.glob("*.h5"))).recipe.builder == builder


WRONG = [
    ("modulated_queue", {"environment": [[0, 1], [1]]}, ["environment", "square table"]),
    ("modulated_queue", {"environment": [[0, 1, 1], [1, 0, 1]]}, ["environment has the shape (2, 3)"]),
    ("modulated_queue", {"environment": "fast"}, ["environment is 'fast'"]),
    ("modulated_queue", {"environment": [[0, -1, 1], [1, 0, 0], [1, 0, 0]]}, ["-1.0 from state 0 to 1"]),
    ("modulated_queue", {"environment": [[0, math.nan, 1], [1, 0, 0], [1, 0, 0]]}, ["nan from state 0 to 1"]),
    ("modulated_queue", {"environment": [[-2, 1, 0], [1, 0, 1], [1, 1, 0]]}, ["-2.0 on the diagonal of row 0"]),
    ("modulated_queue", {"environment": [[0, 1, 0], [1, 0, 0], [1, 0, 0]]}, ["states 0 and 2", "every other"]),
    ("modulated_queue", {"arrival_rates": [1, 2]}, ["arrival_rates has 2", "3 states"]),
    ("modulated_queue", {"arrival_rates": [1, -2, 3]}, ["arrival_rates", "-2.0"]),
    ("modulated_queue", {"service_rates": [0, 0, 0]}, ["service_rates is zero throughout"]),
    ("modulated_queue", {"service_rates": [1, math.inf, 0]}, ["service_rates", "inf"]),
    ("modulated_queue", {"servers": 0}, ["servers is 0", ">= 1"]),
    ("modulated_queue", {"capacity": 2.5}, ["capacity is 2.5"]),
    ("repairable_system", {"failure_rates": [1, 0, 1]}, ["failure_rates", "0.0"]),
    ("repairable_system", {"repair_rates": [1, 2]}, ["failure_rates has 3", "repair_rates 2"]),
    ("repairable_system", {"components": [1, 2]}, ["components has 2", "3 types"]),
    ("repairable_system", {"components": 0}, ["components is 0"]),
    ("repairable_system", {"needed": [1, 4, 1]}, ["needed is 4", "from 1 to 3"]),
    ("repairable_system", {"needed": [0, 1, 1]}, ["needed is 0"]),
    ("repairable_system", {"repairmen": 0}, ["repairmen is 0"]),
    ("repairable_system", {"order": "random"}, ["no value of order 'random'", "priority, shared"]),
    ("nearly_decomposable", {"blocks": 0}, ["blocks is 0"]),
    ("nearly_decomposable", {"block_size": "many"}, ["block_size is 'many'"]),
    ("nearly_decomposable", {"coupling": 0}, ["coupling is 0"]),
    ("nearly_decomposable", {"coupling": 1e-210}, ["coupling has the value 1e-210", "from 1e-200"]),
    ("nearly_decomposable", {"seed": -1}, ["seed is -1"]),
    ("nearly_decomposable", {"neighbours": 0}, ["neighbours is 0"]),
    ("nearly_decomposable", {"decades": 101}, ["decades is 101", "0 to 100"]),
    ("nearly_decomposable", {"decades": math.nan}, ["decades is nan"]),
    ("courtois", {"coupling": -1}, ["coupling is -1"]),
    ("loss_network", {"capacities": []}, ["capacities is empty"]),
    ("loss_network", {"capacities": [5, 4, 0]}, ["capacities is 0"]),
    ("loss_network", {"arrival_rates": [1, 2, 3, -4]}, ["arrival_rates", "-4.0"]),
    ("loss_network", {"service_rates": [1, 2]}, ["service_rates has 2", "4 routes"]),
    ("loss_network", {"circuits": [[1, 0, 0]]}, ["circuits", "a row for each of 4 routes"]),
    ("loss_network", {"circuits": [[1, 0], [1]]}, ["circuits"]),
    ("loss_network", {"circuits": [[0.5, 0, 0]] * 4}, ["circuits", "whole numbers"]),
    ("loss_network", {"circuits": [[6, 0, 0]] * 4}, ["circuits has 6 for route 0 on link 0", "0 to the link's 5"]),
    ("loss_network", {"circuits": [[1, 0, 0]] * 3 + [[0, 0, 0]]}, ["circuits has none for route 3"]),
]


@pytest.mark.parametrize(("builder", "change", "words"), WRONG)
def test_wrong_parameters_get_one_sentence(builder, change, words):
    with pytest.raises((ctmc.ModelError, ctmc.UnknownNameError)) as caught:
        ctmc.build(builder, **{**ALL[builder], **change})
    sentence = str(caught.value)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize("load", [1.0, 1.4])
def test_a_modulated_queue_that_grows_without_end_is_refused(load):
    """The environment is in its states half of the time each; the mean arrival rate is the load."""
    with pytest.raises(ctmc.UnstableError, match=r"mean drift is .* or a capacity\."):
        modulated_queue([[0, 3.0], [3.0, 0]], [0, 4 * load], [0.5, 1.5], servers=2)
    assert modulated_queue([[0, 3.0], [3.0, 0]], [0, 3.9], [0.5, 1.5], servers=2).drift == pytest.approx(
        -0.05, rel=1e-9
    )
