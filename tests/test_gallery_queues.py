"""The shortest queue against published values, and what all builders of the gallery of queues share."""

from __future__ import annotations

import inspect
import itertools
import math
import shlex

import numpy as np
import pytest
from gallery_examples import ALL, BLOCKS, BURSTS, NETWORK, SYSTEM, check_rates, stationary

import ctmc
from builders.supermarket import supermarket
from ctmc import registry
from ctmc.cli import main
from ctmc.cli.docstring import read_docstring
from ctmc.model import streamed
from ctmc.model.memory import limited_memory
from ctmc.model.streamed import streaming

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
