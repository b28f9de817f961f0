"""The benchmark models of PRISM and Storm: conservation, other rates, files, derivatives, wrong input."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark_events import MODELS, SIZE

import ctmc
from builders.reachable import reachable
from ctmc.model.memory import limited_memory
from ctmc.model.streamed import streaming

# ---- laws ---------------------------------------------------------------------------------------------------------------


def measured(builder, number):
    parameters = MODELS[builder][0][number]
    model = ctmc.build(builder, **parameters)
    solution = ctmc.solve(ctmc.Stationary(model, tolerance=1e-13), "gth" if model.size < 1000 else "bicgstab")
    return parameters, solution, solution.measures()


@pytest.mark.parametrize("number", range(3))
def test_tandem_lets_out_what_it_lets_in(number):
    parameters, solution, found = measured("coxian_tandem", number)
    assert found["throughput"] == pytest.approx(found["accepted_rate"], rel=1e-12)
    assert found["response_time"] * found["accepted_rate"] == pytest.approx(found["customers"], rel=1e-12)
    full = parameters["capacity"]
    assert solution.probability(f"first_queue == {full}") == pytest.approx(found["loss_probability"], rel=1e-12)
    for label, condition in (
        ("first_queue_full", f"first_queue == {full}"),
        ("second_queue_full", f"second_queue == {full}"),
        ("network_full", f"first_queue == {full} and phase == 2 and second_queue == {full}"),
    ):
        assert solution.probability(label) == solution.probability(condition) > 0


def test_tandem_with_two_sure_phases_and_an_endless_second_station():
    """M/E2/1/c: with a second station that never fills the first is a queue by itself, solved phase by phase."""
    capacity, arrival, phase = 3, 1.3, 2.6
    tandem = ctmc.build("coxian_tandem", capacity=capacity, arrival_rate=arrival, first_phase_rate=phase,
                        second_phase_rate=phase, second_phase_probability=1, service_rate=1e9)  # fmt: skip
    stages = reachable(  # number of phases to do: an arrival brings two
        lambda state: [((state[0] + 2,), arrival)] * ((state[0] + 1) // 2 < capacity)
        + [((state[0] - 1,), phase)] * (state[0] > 0),
        initial=0, variables=["phases"],
    )  # fmt: skip
    alone = ctmc.solve(ctmc.Stationary(stages), "gth")
    found = ctmc.solve(ctmc.Stationary(tandem), "gth").measures()
    assert found["loss_probability"] == pytest.approx(alone.probability("phases >= 5"), rel=1e-7)
    assert len(tandem.labels) == 3


@pytest.mark.parametrize("number", range(3))
def test_polling_serves_who_comes(number):
    parameters, _, found = measured("polling", number)
    stations = parameters["stations"]
    assert found["throughput"] == pytest.approx(parameters["arrival_rate"] * (stations - found["customers"]), rel=1e-12)
    np.testing.assert_allclose(found["occupied"], found["customers"] / stations, rtol=1e-12)  # all stations are alike
    np.testing.assert_allclose(found["occupied"] - found["waiting"], found["utilization"] / stations, rtol=1e-11)
    assert found["waiting_time"] + 1 / parameters["service_rate"] == pytest.approx(found["response_time"], rel=1e-12)


@pytest.mark.parametrize("number", range(2))
def test_kanban_flows_are_the_same_everywhere(number):
    parameters, solution, found = measured("kanban", number)
    most = parameters["tickets"]
    cell = "processing[{0}] + rework[{0}] + finished[{0}] < {1}"
    forks = solution.probability(f"finished[0] > 0 and {cell.format(1, most)}")
    joins = solution.probability(f"finished[1] > 0 and finished[2] > 0 and {cell.format(3, most)}")
    out = solution.probability("finished[3] > 0")
    for flow in (parameters["fork_rate"] * forks, parameters["join_rate"] * joins, parameters["output_rate"] * out):
        assert flow == pytest.approx(found["throughput"], rel=1e-11)
    assert found["parts"][1] == pytest.approx(found["parts"][2], rel=1e-12)
    assert found["production_time"] * found["throughput"] == pytest.approx(found["parts"][[0, 1, 3]].sum(), rel=1e-12)


@pytest.mark.parametrize("number", range(3))
def test_cluster_repairs_what_fails(number):
    parameters, solution, found = measured("workstation_cluster", number)
    works = solution.expectations(
        ["left_workstations", "right_workstations", "left_switch", "right_switch", "backbone"]
    )
    failures = (
        parameters["workstation_failure_rate"] * (works["left_workstations"] + works["right_workstations"])
        + parameters["switch_failure_rate"] * (works["left_switch"] + works["right_switch"])
        + parameters["backbone_failure_rate"] * works["backbone"]
    )
    assert found["repairs"] == pytest.approx(failures, rel=1e-12)
    for label in ("minimum", "premium"):
        assert solution.probability(label) == pytest.approx(found[f"{label}_probability"], rel=1e-12)
        assert solution.probability(f"not {label}") == pytest.approx(found[f"below_{label}"], rel=1e-12)


def test_cluster_minimum_follows_the_share():
    """Half of five is two; all five are premium; each is what the literature calls quality of service."""
    cluster = ctmc.build("workstation_cluster", workstations=5, required_share=0.5)
    left, right, left_switch, right_switch, backbone, _ = cluster.space.states(np.arange(cluster.size)).T
    for label, least in (("minimum", 2), ("premium", 5)):
        joined = np.maximum(left * left_switch, right * right_switch)
        joined = np.maximum(joined, (left + right) * left_switch * right_switch * backbone)
        np.testing.assert_array_equal(cluster.labels[label], joined >= least)


@pytest.mark.parametrize("number", range(3))
def test_manufacturing_machines_what_it_carries(number):
    parameters, solution, found = measured("flexible_manufacturing", number)
    rates, shares = parameters["machining_rates"], parameters["assembly_shares"]
    third = solution.probability("machining[2] > 0 and machining[1] == 0")
    used = found["utilization"]
    flows = [3 * used[0] * rates[0], solution.probability("machining[1] > 0") * rates[1], third * rates[2],
             2 * used[2] * rates[3]]  # fmt: skip
    np.testing.assert_allclose(found["throughput"], flows, rtol=1e-11)
    np.testing.assert_allclose(np.multiply(flows[:2], shares), flows[3], rtol=1e-11)  # each assembly takes one of both
    assert used[1] == pytest.approx(flows[1] / rates[1] + third, rel=1e-12)
    held = found["ready"] + found["machining"] + found["shipping"]
    assert held[2] == pytest.approx(parameters["parts"], rel=1e-12)
    np.testing.assert_allclose(held[:2] + found["unmatched"] + held[3], parameters["parts"], rtol=1e-12)


# ---- what every builder must do ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("builder", ["coxian_tandem", "polling"])
def test_streamed_rows_are_those_in_memory(builder):
    size = {"coxian_tandem": 400, "polling": 14}[builder]
    model = ctmc.build(builder, **{SIZE[builder]: size})
    with streaming():
        streamed = ctmc.build(builder, **{SIZE[builder]: size})
    assert len(streamed.transitions.begins) > 2
    assert streamed.entries == model.entries
    v = np.random.default_rng(817).random(model.size)
    np.testing.assert_array_equal(streamed.forward(v), model.forward(v))


CHANGES = {
    "coxian_tandem": {"arrival_rate": 0.9, "service_rate": 3.0},
    "polling": {"polling_rate": 11.0},
    "kanban": {"ok_rates": (0.5, 0.6, 0.7, 0.8), "fork_rate": 1.5},
    "workstation_cluster": {"switch_repair_rate": 0.5},
    "flexible_manufacturing": {"carts": 1, "shipping_rate": 0.03},
}


@pytest.mark.parametrize("builder", list(MODELS))
def test_at_other_rates_and_from_a_file(builder, tmp_path):
    parameters = MODELS[builder][0][1 if builder != "kanban" else 0]
    model = ctmc.build(builder, **parameters)
    fresh = ctmc.build(builder, **{**parameters, **CHANGES[builder]})
    changed = model.with_rates(**CHANGES[builder])
    assert changed.transitions.sources is model.transitions.sources
    np.testing.assert_array_equal(changed.transitions.rates, fresh.transitions.rates)
    assert not np.array_equal(changed.transitions.rates, model.transitions.rates)
    ctmc.save(tmp_path / "model.h5", changed)
    loaded = ctmc.load(tmp_path / "model.h5")
    assert loaded.labels.keys() == model.labels.keys()
    ours, theirs = (ctmc.solve(ctmc.Stationary(one), "gth").measures() for one in (fresh, loaded))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(theirs[name], value, err_msg=name)


def test_a_phase_that_vanishes_needs_a_rebuild():
    tandem = ctmc.build("coxian_tandem", capacity=2)
    with pytest.raises(ctmc.ModelError, match="build it anew"):
        tandem.with_rates(second_phase_probability=1)


@pytest.mark.parametrize("builder", ["polling", "kanban", "workstation_cluster", "flexible_manufacturing"])
def test_derivatives_by_event_rates(builder):
    """Twice all rates halve the times and leave all shares of time: the derivatives, each times its rate, tell so."""
    parameters = {
        name: value for name, value in MODELS[builder][0][0].items() if builder != "polling" or name != "arrival_rate"
    }
    model = ctmc.build(builder, **parameters)
    earned = {
        "polling": "serving", "kanban": "accepts", "workstation_cluster": "below_premium",
        "flexible_manufacturing": "productivity",
    }[builder]  # fmt: skip
    solution = ctmc.solve(ctmc.Stationary(model), "gth")
    total = 0.0
    for name, derivative in ctmc.sensitivity(solution, earned).values.items():
        kind, _, index = name.rstrip("]").partition("[")
        total += derivative * (parameters[kind][int(index)] if index else parameters[kind])
    own = solution.expected(earned) if builder == "flexible_manufacturing" else 0.0  # a rate itself, or a share of time
    assert total == pytest.approx(own, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(
    ("builder", "changes", "words"),
    [
        ("coxian_tandem", {"capacity": 0}, ["capacity is 0", ">= 1"]),
        ("coxian_tandem", {"capacity": 2.5}, ["capacity is 2.5", "whole number"]),
        ("coxian_tandem", {"second_phase_probability": 0}, ["second_phase_probability is 0", "above 0"]),
        ("coxian_tandem", {"second_phase_probability": 1.5}, ["1.5", "up to 1"]),
        ("coxian_tandem", {"second_phase_probability": "often"}, ["'often'"]),
        ("coxian_tandem", {"arrival_rate": -1.0}, ["arrival_rate is -1.0", "positive"]),
        ("polling", {"stations": 1}, ["stations is 1", "from 2 to 40"]),
        ("polling", {"stations": True}, ["stations is True"]),
        ("polling", {"polling_rate": float("inf")}, ["polling_rate is inf"]),
        ("kanban", {"tickets": 101}, ["tickets is 101", "from 1 to 100"]),
        ("kanban", {"redo_rates": [1.0, 2.0, 3.0]}, ["redo_rates has 3", "4"]),
        ("kanban", {"ok_rates": [1.0, 2.0, 3.0, 0.0]}, ["ok_rates has the value 0.0"]),
        ("kanban", {"back_rate": "soon"}, ["back_rate is 'soon'"]),
        ("workstation_cluster", {"workstations": -2}, ["workstations is -2"]),
        ("workstation_cluster", {"required_share": 0}, ["required_share is 0", "above 0"]),
        ("workstation_cluster", {"inspection_rate": 0}, ["inspection_rate is 0"]),
        ("flexible_manufacturing", {"parts": "many"}, ["parts is 'many'"]),
        ("flexible_manufacturing", {"carts": 0}, ["carts is 0"]),
        ("flexible_manufacturing", {"assembly_shares": [0.2, 1.0]}, ["assembly_shares has the value 1.0"]),
        ("flexible_manufacturing", {"assembly_shares": [0.2]}, ["assembly_shares has 1 ", "2"]),
        ("flexible_manufacturing", {"machining_rates": [1.0] * 5}, ["machining_rates has 5", "4"]),
    ],
)
def test_wrong_input_is_one_sentence(builder, changes, words):
    with pytest.raises(ctmc.ModelError) as caught:
        ctmc.build(builder, **{SIZE[builder]: 2, **changes})
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert text.endswith(".")
    assert text.count("\n") == 0


@pytest.mark.parametrize(("builder", "size"), [("coxian_tandem", 1_000_000_000), ("polling", 30), ("kanban", 12),
                                               ("workstation_cluster", 3000), ("flexible_manufacturing", 20)])  # fmt: skip
def test_memory_is_asked_for_before_anything_is_made(builder, size):
    with limited_memory("200MB"), pytest.raises(ctmc.ModelError, match=r"memory limit of 190\.7 MiB"):
        ctmc.build(builder, **{SIZE[builder]: size})
