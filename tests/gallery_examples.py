"""Parameters of the builders of the gallery of queues, and brute force to compare with."""

from __future__ import annotations

import numpy as np

import ctmc

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
