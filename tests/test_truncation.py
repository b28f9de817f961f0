"""The truncation of the supermarket model: what is reported of it, and capacities that are found for an accuracy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ctmc
from builders.supermarket import supermarket
from builders.supermarket.truncation import carried, find_capacity, largest_change
from ctmc.cli import main

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


# ---- capacities that are found ------------------------------------------------------------------------------------------

PLACES = [  # service rates, load, choices, truncation error, other parameters
    ([3.0, 2.0], 0.5, 1, 1e-8, {}),
    ([1.0, 1.0], 0.8, 1, 1e-4, {}),
    ([3.0, 2.0, 1.0], 0.5, 2, 1e-8, {}),
    ([3.0, 2.0, 1.0], 0.8, 2, 1e-3, {}),
    ([3.0, 2.0, 1.0], 0.6, 3, 1e-4, {}),
    ([1.0, 1.0], 0.8, 2, 1e-8, {}),
    ([1.0, 1.0], 0.95, 2, 1e-4, {}),
    ([1.0, 1.5, 2.0], 0.6, 2, 1e-4, {"sampling": "with_replacement", "selection": "shortest_queue"}),
    ([1.0, 1.0, 1.0], 0.6, 3, 1e-6, {"overflow": "rerouted"}),
    ([3.0, 2.0, 1.0], 0.6, 2, 1e-5, {"selection": "expected_delay", "overflow": "rerouted"}),
    ([1.0, 2.0], 0.7, 2, 1e-8, {"selection": "weighted", "weights": [0.5, 0.25, 0.25]}),
    ([2.0, 2.0, 1.0], 0.7, 2, 1e-3, {"ties": "fastest"}),
    ([1.0, 1.2, 1.4, 1.6], 0.5, 2, 1e-2, {"sampling": "with_replacement"}),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[1]}-{place[2]}-{place[3]:g}-{'-'.join(map(str, place[4].values()))}")  # fmt: skip
def test_the_estimate_is_honest(place):
    """Against much larger capacities: the true change is at most ten times the estimate, which is what was asked for."""
    rates, load, choices, error, others = place
    given = {"service_rates": rates, "choices": choices, **others}
    given["arrival_rate"] = load * sum(given["service_rates"])
    found = find_capacity(**given, truncation_error=error)
    assert found.estimate <= error
    methods = "sparse_lu" if len(rates) < 4 else None
    here, far = (
        ctmc.solve(ctmc.Stationary(supermarket(**given, capacity=limits)), methods).measures()
        for limits in (list(found.capacity), [int(1.35 * limit) + 5 for limit in found.capacity])
    )
    true = largest_change(here, far, error)
    assert true <= 10 * found.estimate
    assert found.estimate <= 10 * true + 1e-9  # nor does it cry wolf
    assert far["loss_flow"].sum() / given["arrival_rate"] < error
    # the path: flows fall, and capacities never do
    steps = found.steps
    assert steps[-1].capacity == found.capacity
    assert all(
        a <= b for one, two in itertools.pairwise(steps) for a, b in zip(one.capacity, two.capacity, strict=True)
    )
    assert max(steps[-1].boundary_flow) < error
    assert steps[-1].loss < error


def test_only_servers_with_a_flow_grow():
    found = find_capacity([3.0, 2.0, 1.0], 3.0, 2, truncation_error=1e-6)
    assert found.capacity[0] > found.capacity[2]  # tandem: the fastest server has the longest queue
    equal = find_capacity([1.0, 1.0, 2.0], 2.4, 2, truncation_error=1e-4)
    assert equal.capacity[0] == equal.capacity[1]


def test_single_queues_get_the_capacity_of_their_formula():
    """With one choice every queue is M/M/1: what is lost of it falls as load^K, and relative to the mean a bit slower."""
    found = find_capacity([2.0, 3.0], 2.0, 1, truncation_error=1e-8)
    first = next(k for k in range(1, 99) if 0.5**k < 1e-8)
    assert first <= found.capacity[0] <= first + 12
    assert found.capacity[1] < found.capacity[0]


def test_auto_resolves_to_a_model_with_capacities(tmp_path):
    given = {"service_rates": [3.0, 2.0], "arrival_rate": 3.0, "choices": 2}
    model = supermarket(**given, capacity="auto", truncation_error=1e-6)
    found = find_capacity(**given, truncation_error=1e-6)
    assert model.recipe.parameters["capacity"] == list(found.capacity)
    assert model.recipe.hash == supermarket(**given, capacity=list(found.capacity)).recipe.hash
    assert "truncation_error" not in model.recipe.parameters
    assert model.notes == (found.note,)
    assert " -> " in found.note
    assert "\n" not in found.note
    columns, rows = found.table()
    assert [len(row) for row in rows] == [len(columns)] * len(found.steps)
    ctmc.save(tmp_path / "m.h5", model)
    again = ctmc.load(tmp_path / "m.h5")
    assert again.notes == model.notes
    assert again.space.limits == found.capacity
    assert supermarket(**given, capacity="auto").size > model.size  # the default accuracy is 1e-8


@pytest.mark.parametrize(("change", "sentence"), [
    ({"arrival_rate": 6.1}, "no capacity suffices: unstable without truncation"),
    ({"total_capacity": 9}, "allowed is no total capacity"),
    ({"truncation_error": 1e-11}, "truncation_error is 1e-11; allowed is a number from 1e-10 to 0.1"),
    ({"truncation_error": "small"}, "truncation_error is 'small'"),
    ({"truncation_error": float("nan")}, "truncation_error is nan"),
    ({"largest_capacity": 0}, "largest_capacity is 0"),
    ({"largest_capacity": 8}, r"at \(8, 8, 7\) .* boundary flow is .*, with 1e-08 asked for; allowed is a capacity of up to 8"),
    ({"capacity": 9, "truncation_error": 1e-8}, "truncation_error is 1e-08, but capacity is 9"),
    ({"capacity": 9, "largest_capacity": 9}, "largest_capacity is 9, but capacity is 9"),
    ({"capacity": "automatic"}, "capacity is 'automatic'; allowed is a whole number >= 1, one per server, or 'auto'"),
    ({"choices": 4}, "choices is 4"),
])  # fmt: skip
def test_what_cannot_be_reached_is_one_sentence(change, sentence):
    with pytest.raises(ctmc.ModelError, match=sentence) as caught:
        supermarket(**{**QUEUES, "capacity": "auto", **change})
    assert "\n" not in str(caught.value)


def test_the_memory_limit_ends_the_growth():
    with ctmc.limited_memory("1MiB"), pytest.raises(ctmc.ModelError, match="memory limit of 1 MiB") as caught:
        supermarket(**{**QUEUES, "capacity": "auto"})
    assert "the boundary flow is" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_answers_are_carried_to_larger_models():
    small = stationary(**QUEUES)
    large = supermarket(**{**QUEUES, "capacity": [6, 5, 8]})
    start = carried(small, large)
    assert start.sum() == pytest.approx(1, rel=1e-14)
    table = large.space.states(np.arange(large.size))
    assert start @ table == pytest.approx(small.expected("queue_length"), rel=1e-13)


def test_command_line_builds_with_capacities_that_suffice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "build",
        "supermarket",
        "--service-rates",
        "3,2",
        "--arrival-rate",
        "3",
        "--choices",
        "2",
        "--capacity",
        "auto",
    ]
    assert main([*arguments, "--truncation-error", "1e-4", "-o", "m.h5"]) == 0
    assert "was found for a truncation error of 0.0001" in capsys.readouterr().err
    assert main([*arguments, "--largest-capacity", "3", "-o", "n.h5"]) == 2
    assert "allowed is a capacity of up to 3" in capsys.readouterr().err
