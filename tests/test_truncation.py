"""The truncation of the supermarket model: what is reported of it, and capacities that are found for an accuracy."""

from __future__ import annotations

import numpy as np
import pytest

import ctmc
from builders.supermarket import supermarket

QUEUES = {"service_rates": [3.0, 2.0, 1.0], "arrival_rate": 4.5, "choices": 2, "capacity": [4, 5, 3]}


def stationary(**parameters):
    return ctmc.solve(ctmc.Stationary(supermarket(**parameters)), "gth")


# ---- the report -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{}, {"overflow": "rerouted"}, {"total_capacity": 6},
                                    {"overflow": "rerouted", "total_capacity": 6}, {"selection": "shortest_queue"}])  # fmt: skip
def test_loss_flows_sum_to_the_loss_rate(change):
    solution = stationary(**{**QUEUES, **change})
    found = solution.measures()
    loss = solution.expected("loss_rate")
    assert loss > 1e-4
    assert found["loss_flow"].sum() == pytest.approx(loss, rel=1e-13)
    assert found["throughput"] == pytest.approx(found["utilization"] @ QUEUES["service_rates"], rel=1e-12)
    # every flow over the boundary needs a server that is full
    assert (found["loss_flow"] <= found["boundary_mass"] * QUEUES["arrival_rate"]).all()
    assert ("boundary_flow" in found) == (change.get("overflow") == "rerouted")
    if "boundary_flow" in found:
        # some jobs found a place elsewhere; not where the total is reached
        assert found["boundary_flow"].sum() > loss * (1 - 1e-12 if "total_capacity" in change else 1.01)


@pytest.mark.parametrize("total", [None, 6])
def test_boundary_masses_are_those_of_the_states(total):
    solution = stationary(**QUEUES, total_capacity=total)
    found = solution.measures()
    for server, limit in enumerate(QUEUES["capacity"]):
        full = f"queue_length[{server}] == {limit}" + (f" or jobs == {total}" if total else "")
        assert found["boundary_mass"][server] == pytest.approx(solution.probability(full), rel=1e-12)
    assert found["boundary_mass"].max() <= found["boundary"] <= found["boundary_mass"].sum() + 1e-15


def test_one_choice_loses_what_single_queues_lose():
    found = stationary(**{**QUEUES, "choices": 1, "arrival_rate": 3.6}).measures()
    for server, (rate, limit) in enumerate(zip(QUEUES["service_rates"], QUEUES["capacity"], strict=True)):
        weights = (1.2 / rate) ** np.arange(limit + 1)
        full = weights[-1] / weights.sum()  # Erlang's formula for one server with a queue
        assert found["boundary_mass"][server] == pytest.approx(full, rel=1e-11)
        assert found["loss_flow"][server] == pytest.approx(1.2 * full, rel=1e-11)


def test_rerouted_jobs_leave_the_server_that_was_full():
    # one place each, both sampled: jobs prefer the idle faster one; at (1, 1) ties are decided by tandem's x / mu
    solution = stationary(service_rates=[2.0, 1.0], arrival_rate=1.0, choices=2, capacity=[1, 3], overflow="rerouted")
    pi = dict(zip(map(tuple, solution.problem.model.space.states(np.arange(8)).tolist()), solution.value, strict=True))
    # selection values x / mu: full server 0 has 1/2, so it is preferred to server 1 with one job (1) and more
    assert solution.measures()["boundary_flow"][0] == pytest.approx(pi[1, 1] + pi[1, 2] + pi[1, 3], rel=1e-12)
    assert solution.measures()["loss_flow"].sum() == pytest.approx(pi[1, 3], rel=1e-12)
