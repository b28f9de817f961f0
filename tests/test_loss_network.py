"""loss_network against its events, its product form, and Kaufman's and Roberts's recursion."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from gallery_examples import NETWORK, check_rates, stationary

import ctmc
from builders.loss_network import loss_network


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
