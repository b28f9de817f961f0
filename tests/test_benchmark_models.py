"""The benchmark models of PRISM and Storm: published counts, event lists in their own coordinates, Storm, and conservation."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from prism_programs import PRISM

import ctmc
from builders._factors import Event, product_rows
from builders.reachable import reachable
from ctmc.model.memory import limited_memory
from ctmc.model.streamed import streaming

# ---- numbers of states and transitions --------------------------------------------------------------------------------

SIZE = {
    "coxian_tandem": "capacity",
    "polling": "stations",
    "kanban": "tickets",
    "workstation_cluster": "workstations",
    "flexible_manufacturing": "parts",
}
PUBLISHED = [  # model logs of the PRISM benchmark suite
    ("coxian_tandem", 255, 130_816, 455_939),
    ("coxian_tandem", 1023, 2_096_128, 7_328_771),
    pytest.param("coxian_tandem", 2047, 8_386_560, 29_337_603, marks=pytest.mark.slow),
    ("polling", 10, 15_360, 89_600),
    ("polling", 12, 73_728, 503_808),
    pytest.param("polling", 16, 1_572_864, 13_893_632, marks=pytest.mark.slow),
    pytest.param("polling", 18, 7_077_888, 69_599_232, marks=pytest.mark.slow),
    ("kanban", 2, 4_600, 28_120),
    ("kanban", 3, 58_400, 446_400),
    pytest.param("kanban", 4, 454_475, 3_979_850, marks=pytest.mark.slow),
    pytest.param("kanban", 5, 2_546_432, 24_460_016, marks=pytest.mark.slow),
    pytest.param("kanban", 6, 11_261_376, 115_708_992, marks=pytest.mark.slow),
    ("workstation_cluster", 4, 820, 3_616),
    ("workstation_cluster", 16, 10_132, 48_160),
    pytest.param("workstation_cluster", 128, 597_012, 2_908_192, marks=pytest.mark.slow),
    ("flexible_manufacturing", 2, 810, 3_699),
    ("flexible_manufacturing", 4, 35_910, 237_120),
    pytest.param("flexible_manufacturing", 6, 537_768, 4_205_670, marks=pytest.mark.slow),
    pytest.param("flexible_manufacturing", 8, 4_459_455, 38_533_968, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("builder", "size", "states", "transitions"), PUBLISHED)
def test_published_counts(builder, size, states, transitions):
    model = ctmc.build(builder, **{SIZE[builder]: size})
    assert (model.size, model.entries) == (states, transitions)
    assert int(model.transitions.indptr[-1]) == transitions  # the number that is known beforehand is that of the arrays


@pytest.mark.parametrize(
    ("builder", "size", "measure", "value", "tolerance"),
    [  # results of Storm on the models of the quantitative verification benchmark set, at its default precision
        ("kanban", 3, "throughput", 0.2330632923, 1e-4),
        ("workstation_cluster", 8, "premium_probability", 0.9998330771, 1e-7),
        ("flexible_manufacturing", 3, "productivity", 44.44383134, 1e-5),
    ],
)
def test_published_measures(builder, size, measure, value, tolerance):
    found = ctmc.solve(ctmc.Stationary(ctmc.build(builder, **{SIZE[builder]: size})), "bicgstab")
    assert found.measures()[measure] == pytest.approx(value, rel=tolerance)


# ---- the same models from lists of their events, state by state -------------------------------------------------------


def tandem_events(capacity, arrival, first, second, again, service):
    def events(state):
        customers, phase, after = state
        if customers < capacity:
            yield (customers + 1, phase, after), arrival
        if customers and phase == 1:
            yield (customers, 2, after), again * first
        if customers and after < capacity:
            yield (customers - 1, 1, after + 1), second if phase == 2 else (1 - again) * first
        if after:
            yield (customers, phase, after - 1), service

    return events, (0, 1, 0)


def polling_events(stations, service, walk, arrival):
    def events(state):
        at, serving, *full = state
        beyond = (at + 1) % stations
        if serving:
            yield (beyond, 0, *(0 if k == at else one for k, one in enumerate(full))), service
        elif full[at]:
            yield (at, 1, *full), walk
        else:
            yield (beyond, 0, *full), walk
        for k in range(stations):
            if not full[k]:
                yield (at, serving, *full[:k], 1, *full[k + 1 :]), arrival

    return events, (0,) * (2 + stations)


def kanban_events(tickets, enter, leave, fork, join, redo, ok, back):
    """A state is (processing, rework, finished) of one cell after the other."""

    def changed(state, *changes):
        after = list(state)
        for place, change in changes:
            after[place] += change
        return tuple(after)

    def events(state):
        free = [sum(state[3 * cell : 3 * cell + 3]) < tickets for cell in range(4)]
        done = [state[3 * cell + 2] > 0 for cell in range(4)]
        for cell in range(4):
            p = 3 * cell
            if state[p]:
                yield changed(state, (p, -1), (p + 1, 1)), redo[cell]
                yield changed(state, (p, -1), (p + 2, 1)), ok[cell]
            if state[p + 1]:
                yield changed(state, (p + 1, -1), (p, 1)), back
        if free[0]:
            yield changed(state, (0, 1)), enter
        if done[0] and free[1] and free[2]:
            yield changed(state, (2, -1), (3, 1), (6, 1)), fork
        if done[1] and done[2] and free[3]:
            yield changed(state, (5, -1), (8, -1), (9, 1)), join
        if done[3]:
            yield changed(state, (11, -1)), leave

    return events, (0,) * 12


def cluster_events(workstations, fails, switch_fails, line_fails, inspect, mends, switch_mends, line_mends):
    up = (workstations, workstations, 1, 1, 1)
    failing = (fails, fails, switch_fails, switch_fails, line_fails)
    mending = (mends, mends, switch_mends, switch_mends, line_mends)

    def events(state):
        works, busy = state[:5], state[5]
        for kind in range(5):
            if works[kind]:
                yield (*works[:kind], works[kind] - 1, *works[kind + 1 :], busy), failing[kind] * works[kind]
            if works[kind] < up[kind] and busy == 0:
                yield (*works, kind + 1), inspect
            if busy == kind + 1:
                yield (*works[:kind], works[kind] + 1, *works[kind + 1 :], 0), mending[kind]

    return events, (*up, 0)


FMS = ("p1", "p2", "p3", "p12", "w1", "m1", "w2", "m2", "m3", "w12", "m12", "s1", "s2", "s3", "s12", "q1", "q2")


def manufacturing_events(parts, carts, carry, machining, shares, ship):
    """A state counts tokens as the published net does: those that wait for a machine apart from those that are on it."""

    def events(state):
        x = dict(zip(FMS, state, strict=True))
        ready = x["p1"] + x["p2"] + x["p3"] + x["p12"]
        speed = carry * min(1, carts / ready) if ready else 0

        def after(**changes):
            return tuple(x[name] + changes.get(name, 0) for name in FMS)

        def finished(kind):  # the next one that waits takes the place
            return {f"w{kind}": -1} if x[f"w{kind}"] else {f"m{kind}": -1}

        for kind, places in ((1, 3), (2, 1), (12, 2)):
            if x[f"p{kind}"]:
                place = f"m{kind}" if x[f"m{kind}"] < places else f"w{kind}"
                yield after(**{f"p{kind}": -1, place: 1}), x[f"p{kind}"] * speed
        if x["p3"]:
            yield after(p3=-1, m3=1), x["p3"] * speed
        for kind, other, at in ((1, 2, 0), (2, 1, 1)):
            if x[f"m{kind}"]:
                rate = x[f"m{kind}"] * machining[at]
                yield after(**finished(kind), **{f"s{kind}": 1}), rate * (1 - shares[at])
                meets = {f"q{other}": -1, "p12": 1} if x[f"q{other}"] else {f"q{kind}": 1}
                yield after(**finished(kind), **meets), rate * shares[at]
        if x["m3"] and not x["m2"]:
            yield after(m3=-1, s3=1), machining[2]
        if x["m12"]:
            yield after(**finished(12), s12=1), x["m12"] * machining[3]
        for kind in (1, 2, 3):
            if x[f"s{kind}"]:
                yield after(**{f"p{kind}": x[f"s{kind}"], f"s{kind}": -x[f"s{kind}"]}), ship
        if x["s12"]:
            yield after(p1=x["s12"], p2=x["s12"], s12=-x["s12"]), ship

    return events, (parts, parts, parts, *[0] * 14)


def rewards(model, *names):
    """Return values of rewards in all states, side by side."""
    states = model.space.states(np.arange(model.size))
    every = slice(0, model.size)
    return np.column_stack([model.all_rewards[name].evaluate(states, every) for name in names]).astype(int)


def tandem_states(model):
    return rewards(model, "first_queue", "phase", "second_queue")


def polling_states(model):
    return rewards(model, "station", "serving", "occupied")


def kanban_states(model):
    return rewards(model, "processing", "rework", "finished").reshape(-1, 3, 4).swapaxes(1, 2).reshape(-1, 12)


def cluster_states(model):
    return model.space.states(np.arange(model.size))


def manufacturing_states(model):
    ready, at, done, waits = (rewards(model, name) for name in ("ready", "machining", "shipping", "unmatched"))
    on = np.minimum(at, [3, 1, 99, 2])
    line = np.column_stack([(at - on)[:, 0], on[:, 0], (at - on)[:, 1], on[:, 1], on[:, 2], (at - on)[:, 3], on[:, 3]])
    return np.column_stack([ready, line, done, waits])


REDO, OK = (0.31, 0.43, 0.37, 0.29), (0.83, 0.97, 0.71, 0.61)
MODELS = {  # parameters that all differ, and the same in the order of the event list
    "coxian_tandem": (
        [{"capacity": c, "arrival_rate": 1.7, "first_phase_rate": 2.3, "second_phase_rate": 1.1,
          "second_phase_probability": p, "service_rate": 1.9} for c, p in ((1, 0.3), (2, 0.3), (6, 0.6))],
        tandem_states, tandem_events,
    ),
    "polling": (
        [{"stations": n, "service_rate": 1.3, "polling_rate": 7.0, "arrival_rate": 0.4} for n in (2, 3, 6)],
        polling_states, polling_events,
    ),
    "kanban": (
        [{"tickets": t, "input_rate": 1.1, "output_rate": 0.9, "fork_rate": 0.45, "join_rate": 0.55, "redo_rates": REDO,
          "ok_rates": OK, "back_rate": 0.3} for t in (1, 2)],
        kanban_states, kanban_events,
    ),
    "workstation_cluster": (
        [{"workstations": n, "workstation_failure_rate": 0.2, "switch_failure_rate": 0.03, "backbone_failure_rate": 0.01,
          "inspection_rate": 10.5, "workstation_repair_rate": 2.1, "switch_repair_rate": 0.27,
          "backbone_repair_rate": 0.13} for n in (1, 2, 5)],
        cluster_states, cluster_events,
    ),
    "flexible_manufacturing": (
        [{"parts": n, "carts": k, "transport_rate": 1.2, "machining_rates": (0.26, 0.17, 0.51, 0.9),
          "assembly_shares": (0.21, 0.42), "shipping_rate": 0.02} for n, k in ((1, 2), (2, 1), (3, 2))],
        manufacturing_states, manufacturing_events,
    ),
}  # fmt: skip
CASES = [(builder, number) for builder, (rows, *_) in MODELS.items() for number in range(len(rows))]


@pytest.mark.parametrize(("builder", "number"), CASES)
def test_equals_its_list_of_events(builder, number):
    """Every state, every rate, the initial state, and what the rewards make of a state."""
    rows, states_of, list_of = MODELS[builder]
    model = ctmc.build(builder, **rows[number])
    events, begin = list_of(*rows[number].values())
    listed = reachable(events, initial=begin)
    assert (model.size, model.entries) == (listed.size, listed.entries)
    place = listed.space.index(states_of(model))
    assert len(set(place.tolist())) == model.size
    ours, theirs = model.to_scipy().tocsr(), listed.to_scipy().tocsr()[place][:, place]
    for matrix in (ours, theirs):
        matrix.sort_indices()
    np.testing.assert_array_equal(ours.indptr, theirs.indptr)
    np.testing.assert_array_equal(ours.indices, theirs.indices)
    np.testing.assert_allclose(ours.data, theirs.data, rtol=1e-14)
    assert place[model.initial.positions].tolist() == [0]


# ---- Storm --------------------------------------------------------------------------------------------------------------

STORM_SIZES = {
    "coxian_tandem": 3,
    "polling": 3,
    "kanban": 1,
    "workstation_cluster": 1,
    "flexible_manufacturing": 1,
}
# Storm's settings are global and its warnings go to standard output, so it has a process of its own; it counts exactly.
STORM = """
import json, sys
import stormpy
path, names, target = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
program = stormpy.parse_prism_program(path, prism_compatibility=True)
asked = stormpy.parse_properties("; ".join('R{"' + name + '"}=? [LRA]' for name in names), program)
model = stormpy.build_model[stormpy.Rational](program, asked)
first = model.initial_states[0]
values = [float(stormpy.model_checking(model, one).get_value(first)) for one in asked]
with open(target, "w") as file:
    json.dump({"states": model.nr_states, "transitions": model.nr_transitions, "values": dict(zip(names, values))}, file)
"""


@pytest.mark.skipif(
    importlib.util.find_spec("stormpy") is None,
    reason="stormpy is not installed; pip install 'ctmc-lab[interop]' brings it",
)
@pytest.mark.parametrize("builder", list(PRISM))
def test_storm_builds_the_same_model(builder, tmp_path):
    """Storm makes the states from a PRISM program and solves with rational numbers."""
    (tmp_path / "model.sm").write_text("ctmc\n" + PRISM[builder])
    names = [line.split('"')[1] for line in PRISM[builder].splitlines() if line.startswith("rewards")]
    done = subprocess.run(
        [sys.executable, "-c", STORM, tmp_path / "model.sm", ",".join(names), tmp_path / "found.json"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    theirs = json.loads((tmp_path / "found.json").read_text())
    model = ctmc.build(builder, **{SIZE[builder]: STORM_SIZES[builder]})
    assert (model.size, model.entries) == (theirs["states"], theirs["transitions"])
    ours = ctmc.solve(ctmc.Stationary(model), "gth").measures()
    for name, value in theirs["values"].items():
        assert ours[name] == pytest.approx(value, rel=1e-12), name


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


# ---- rows of products ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(11, 17))
def test_rows_of_any_range_of_a_product(seed):
    """Random maps of random factors against a dense matrix, cut into ranges anywhere; an event of rate 0 is none."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(2, 6, size=3).tolist()
    events = [Event(0.0, {0: np.arange(sizes[0])})]
    dense = np.zeros((np.prod(sizes), np.prod(sizes)))
    for number in range(6):
        factors = draw.permutation(3)[: draw.integers(1, 3)].tolist()
        before = {k: np.where(draw.random(sizes[k]) < 0.3, -1, draw.integers(0, sizes[k], sizes[k])) for k in factors}
        pairs = []
        for target, place in enumerate(np.ndindex(*sizes)):
            came = [int(before[k][place[k]]) if k in before else place[k] for k in range(3)]
            if min(came) >= 0:
                pairs.append((int(np.ravel_multi_index(came, sizes)), target))
        if all(source != target and dense[source, target] == 0 for source, target in pairs):
            events.append(Event(1.0 + number, before))
            for source, target in pairs:
                dense[source, target] = 1.0 + number
    rows, entries = product_rows(sizes, events)
    assert entries == np.count_nonzero(dense)
    cuts = [0, *sorted(draw.integers(0, len(dense) + 1, size=3).tolist()), len(dense)]
    for begin, end in itertools.pairwise(cuts):
        indptr, sources, rates = rows(begin, end)
        found = np.zeros((len(dense), end - begin))
        for column in range(end - begin):
            entry = slice(indptr[column], indptr[column + 1])
            assert (np.diff(sources[entry]) > 0).all()
            found[sources[entry], column] = rates[entry]
        np.testing.assert_array_equal(found, dense[:, begin:end])
