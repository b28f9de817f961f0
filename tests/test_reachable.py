"""reachable, from functions and from graphs, against states that are listed in other ways."""

from __future__ import annotations

import math

import networkx
import numpy as np
import pytest

import ctmc
from builders.birth_death import birth_death
from builders.reachable import reachable
from builders.tandem_network import tandem_network


def stationary(model):
    return ctmc.solve(ctmc.Stationary(model), "gth")


# ---- reachable ------------------------------------------------------------------------------------------------------

LIMIT = 4


def shortest_of_three(state):
    """A job joins the shortest of three queues, ties at random."""
    least = min(state)
    if least < LIMIT:
        ties = [i for i in range(3) if state[i] == least]
        for i in ties:
            yield tuple(x + (i == j) for j, x in enumerate(state)), 2.0 / len(ties)
    for i in range(3):
        if state[i]:
            yield tuple(x - (i == j) for j, x in enumerate(state)), 3.0 - i


def shortest_of_three_vectorized(states):
    least = states.min(axis=1)
    ties = states == least[:, None]
    for i in range(3):
        rows = ties[:, i] & (least < LIMIT)
        yield rows, states[rows] + np.eye(3, dtype=int)[i], 2.0 / ties[rows].sum(axis=1)
    for i in range(3):
        rows = np.flatnonzero(states[:, i])
        yield rows, states[rows] - np.eye(3, dtype=int)[i], 3.0 - i


def same_model(one, two):
    np.testing.assert_array_equal(one.space.states(np.arange(one.size)), two.space.states(np.arange(two.size)))
    for name in ("indptr", "sources", "rates", "exit_rates"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), strict=True)


def test_scalar_and_vectorized_agree():
    one = reachable(shortest_of_three, (0, 0, 0))
    two = reachable(shortest_of_three_vectorized, (0, 0, 0), vectorized=True)
    assert one.size == 5**3
    same_model(one, two)


def test_reachable_against_all_states():
    """The same queues over the whole box, in another order."""
    from ctmc.model.state_space import Lattice

    space = Lattice((LIMIT,) * 3)
    rates = np.zeros((space.size, space.size))
    for k, state in enumerate(map(tuple, space.states(np.arange(space.size)).tolist())):
        for after, rate in shortest_of_three(state):
            rates[k, space.index(after)] += rate
    model = reachable(shortest_of_three, (0, 0, 0), ["queue_length[3]"])
    place = space.index(model.space.table)
    expected = ctmc.Generator.from_matrix(rates, space)
    np.testing.assert_allclose(stationary(model).value, stationary(expected).value[place], rtol=1e-12)
    assert stationary(model).expected("queue_length").shape == (3,)


def test_order_of_discovery():
    graph = {(0,): [(5,), (3,)], (5,): [(1,), (0,)], (3,): [(9,)], (1,): [], (9,): [(0,)]}
    model = reachable(lambda state: [(after, 1.0) for after in graph[state]], 0)
    assert model.space.table.ravel().tolist() == [0, 5, 3, 1, 9]
    assert model.space.variables[0].name == "state"
    several = reachable(lambda state: [(after, 1.0) for after in graph[state]], {(3,): 0.25, (5,): 0.75})
    assert several.space.table.ravel().tolist() == [3, 5, 9, 1, 0]
    assert several.initial.dense(5).tolist() == [0.25, 0.75, 0, 0, 0]


def test_self_loops_and_doubles():
    model = reachable(lambda state: [(state, 7.0), ((1 - state[0],), 1.0), ((1 - state[0],), 0.5)], 0)
    assert model.to_scipy().toarray().tolist() == [[-1.5, 1.5], [1.5, -1.5]]


def test_one_state():
    for function in (lambda state: [], lambda state: [(state, 1.0)]):
        model = reachable(function, (3, 4))
        assert (model.size, model.entries) == (1, 0)


def test_next_states_may_be_ints_whole_floats_and_arrays():
    forms = [lambda x: x, lambda x: (float(x),), lambda x: np.array([x]), lambda x: [np.int32(x)]]
    models = [
        reachable(lambda state, form=form: [(form((state[0] + 1) % 5), 1.0), (form(0), 0.5)], 0) for form in forms
    ]
    for model in models[1:]:
        same_model(models[0], model)
    mixed = reachable(lambda state: [((state[0] + 1) % 5, 1.0), ((0,), 0.5)], 0)
    same_model(models[0], mixed)


def test_wide_and_negative_coordinates():
    """Coordinates whose product of ranges does not fit 64 bits."""
    far = 2**61

    def function(state):
        for i in range(3):
            yield tuple(-x if i == j else x for j, x in enumerate(state)), 1.0 + i

    model = reachable(function, (far, -far, far - 1))
    assert model.size == 8
    np.testing.assert_allclose(stationary(model).value, 0.125, rtol=1e-13)


def test_many_states_vectorized():
    """Some hundred thousand states: the table grows again and again."""
    side = 69

    def function(states):
        for i in range(3):
            rows = states[:, i] < side
            yield rows, states[rows] + np.eye(3, dtype=int)[i], 1.0
        rows = np.ones(len(states), dtype=bool)
        yield rows, np.zeros_like(states), 0.5

    model = reachable(function, {(0, 0, 0): 1}, vectorized=True)
    assert model.size == (side + 1) ** 3
    sums = model.space.table.sum(axis=1)
    assert (np.diff(sums) >= 0).all()  # breadth-first
    assert model.entries == 3 * side * (side + 1) ** 2 + model.size - 1


def test_functions_see_some_states_at_once():
    seen = []

    def star(states):
        seen.append(len(states))
        if states[0, 0] == 0:
            yield np.zeros(150_000, dtype=int), np.arange(1, 150_001)[:, None], 1.0

    assert reachable(star, 0, vectorized=True).size == 150_001
    assert seen == [1, 65_536, 65_536, 150_000 - 2 * 65_536]


def test_memory_is_watched_while_exploring():
    """Few states with many transitions each: the end is not waited for."""
    calls = 0

    def function(states):
        nonlocal calls
        calls += 1
        yield np.zeros(1000, dtype=int), np.repeat(states[:1] + 1, 1000, axis=0), 1.0

    with ctmc.limited_memory("10MB"), pytest.raises(ctmc.ModelError, match="found so far"):
        reachable(function, 0, max_states=1000, vectorized=True)
    assert calls < 200


def test_a_deep_chain():
    """A frontier of one state, many times over."""
    model = reachable(lambda state: [((state[0] + 1,), 1.0)] if state[0] < 3000 else [((0,), 1.0)], 0)
    assert model.space.table.ravel().tolist() == list(range(3001))


def test_the_state_array_is_the_functions_own():
    def function(states):
        states += 1
        states[states > 2] = 0
        yield np.arange(len(states)), states, 1.0

    assert reachable(function, 0, vectorized=True).space.table.ravel().tolist() == [0, 1, 2]


def test_initial_forms():
    def both(state):
        yield state[::-1], 1.0

    for form in ((0, 1), [0, 1], np.array([0, 1]), "0,1", {(0, 1): 1.0}, {"0,1": 1}, {"(0, 1)": 1.0}):
        model = reachable(both, form)
        assert model.space.table.tolist() == [[0, 1], [1, 0]]
        assert model.initial.positions.tolist() == [0]
    weighted = reachable(both, {"0,1": 0.5, "7,7": 0.0, "1,1": 0.5})
    assert weighted.space.table.tolist() == [[0, 1], [1, 1], [1, 0]]


def test_initial_makes_reducible_chains_solvable():
    model = reachable(lambda state: [((1,), 1.0), ((2,), 3.0)] if state == (0,) else [], 0)
    assert stationary(model).value.tolist() == pytest.approx([0, 0.25, 0.75], rel=1e-12)


def two_states(after, rate):
    return lambda state: [(after, rate)] if state == (0, 0) else []


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (two_states((0, 1), -2.0), ["rate from state (0, 0) to state (0, 1) is -2.0", "positive"]),
        (two_states((0, 1), 0), ["(0, 0)", "(0, 1) is 0"]),
        (two_states((0, 1), math.nan), ["(0, 0)", "nan"]),
        (two_states((0, 1), math.inf), ["(0, 0)", "inf"]),
        (two_states((0, 1), None), ["(0, 0)", "None"]),
        (two_states((0, 1), "fast"), ["(0, 0)", "fast"]),
        (two_states((0, 1), [1.0, 2.0]), ["(0, 0)"]),
        (two_states((0, 1, 2), 1.0), ["state (0, 0) has the successor (0, 1, 2)", "2 whole numbers"]),
        (two_states((0,), 1.0), ["(0, 0)", "successor (0,)"]),
        (two_states(3, 1.0), ["(0, 0)", "successor 3"]),
        (two_states((0, 0.5), 1.0), ["(0, 0)", "(0, 0.5)"]),
        (two_states((0, math.nan), 1.0), ["(0, 0)", "(0, nan)"]),
        (two_states((0, 2**70), 1.0), ["(0, 0)", str(2**70)]),
        (two_states((0, "a"), 1.0), ["(0, 0)", "(0, 'a')"]),
        (two_states("ab", 1.0), ["(0, 0)", "ab"]),
        (two_states(None, 1.0), ["(0, 0)", "None"]),
        (lambda state: [(state,)], ["failed in state (0, 0)", "pairs"]),
        (lambda state: None, ["failed in state (0, 0)", "TypeError"]),
        (lambda state: 1 / state[0], ["failed in state (0, 0)", "ZeroDivisionError", "division by zero"]),
        (lambda state: [((state[0] + 1, 0), 1 / (3 - state[0]))], ["failed in state (3, 0)", "ZeroDivisionError"]),
        (lambda: [], ["failed in state (0, 0)", "TypeError"]),
    ],
)
def test_bad_scalar_functions(function, words):
    with pytest.raises(ctmc.ModelError) as caught:
        reachable(function, (0, 0))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (([0], [[0, 1]], [-1.0]), ["rate from state (0, 0) to state (0, 1) is -1.0"]),
        (([0], [[0, 1]], 0.0), ["(0, 0)", "0.0"]),
        (([0], [[0, 1]], [math.nan]), ["(0, 0)", "nan"]),
        (([0], [[0, 1]], [1.0, 2.0]), ["(0, 0)", "rates of shape (2,)", "(1,)"]),
        (([0], [[0, 1]], np.array(["a"])), ["(0, 0)", "rates"]),
        (([0], [[0, 1, 2]], 1.0), ["(0, 0)", "shape (1, 3)", "(1, 2)"]),
        (([0], [[0, 1], [1, 1]], 1.0), ["(0, 0)", "shape (2, 2)", "(1, 2)"]),
        (([0], [0, 1], 1.0), ["(0, 0)", "shape (2,)", "(1, 2)"]),
        (([0], np.array([[0, 0.5]]), 1.0), ["state (0, 0) has the successor (0.0, 0.5)"]),
        (([0], np.array([[0, math.nan]]), 1.0), ["state (0, 0) has the successor (0.0, nan)"]),
        (([0], [["a", "b"]], 1.0), ["(0, 0)", "whole numbers"]),
        (([0], [[True, False]], 1.0), ["(0, 0)", "whole numbers"]),
        (([1], [[0, 1]], 1.0), ["(0, 0)", "row number 1", "0 to 0"]),
        (([-1], [[0, 1]], 1.0), ["(0, 0)", "row number -1"]),
        (([0.0], [[0, 1]], 1.0), ["(0, 0)", "float64"]),
        (([True, False], [[0, 1]], 1.0), ["(0, 0)", "mask"]),
        (([[0]], [[0, 1]], 1.0), ["(0, 0)", "rows of shape (1, 1)"]),
        (([0], [[0, 1]]), ["failed", "(0, 0)", "blocks (rows, next states, rates)"]),
        (None, ["failed", "(0, 0)", "TypeError"]),
    ],
)
def test_bad_vectorized_functions(block, words):
    with pytest.raises(ctmc.ModelError) as caught:
        reachable(lambda states: [block], (0, 0), vectorized=True)
    assert all(word in str(caught.value) for word in words), caught.value


def test_vectorized_function_that_raises():
    def function(states):
        yield np.arange(len(states)), states + 1, 1.0
        raise RuntimeError("no more")

    with pytest.raises(ctmc.ModelError, match=r"failed on 1 states, the first being \(5, 6\): RuntimeError: no more"):
        reachable(function, (5, 6), vectorized=True)


def test_infinite_models_end():
    with pytest.raises(ctmc.ModelError, match=r"max_states = 5,000 .* being \(5000,\), from \(4999,\)"):
        reachable(lambda state: [((state[0] + 1,), 1.0)], 0, max_states=5000)
    with pytest.raises(ctmc.ModelError, match=r"max_states = 3 .* being \(2, 0\), from \(1, 0\)"):
        reachable(lambda state: [((state[0] + 1, 0), 1.0), ((0, state[0] + 1), 1.0)], (0, 0), max_states=3)
    assert reachable(shortest_of_three, (0, 0, 0), max_states=125).size == 125
    with pytest.raises(ctmc.ModelError, match="max_states = 124"):
        reachable(shortest_of_three, (0, 0, 0), max_states=124)
    with pytest.raises(ctmc.ModelError, match="max_states = 1 "):
        reachable(shortest_of_three, {(0, 0, 0): 0.5, (1, 0, 0): 0.5}, max_states=1)

    def growing(states):
        yield np.arange(len(states)), states + 1, 1.0
        yield np.arange(len(states)), states * 2, 1.0

    with ctmc.limited_memory("2MB"), pytest.raises(ctmc.ModelError, match="--memory-limit"):
        reachable(growing, 1, vectorized=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"initial": None}, ["initial is missing"]),
        ({"initial": (0.5, 0)}, ["initial", "whole numbers"]),
        ({"initial": ()}, ["initial", "()"]),
        ({"initial": [[0, 0], [1, 1]]}, ["initial"]),
        ({"initial": "zero"}, ["initial", "zero"]),
        ({"initial": {}}, ["initial", "no coordinates"]),
        ({"initial": {(0, 0): 0.5, (1,): 0.5}}, ["initial", "1 and 2 coordinates"]),
        ({"initial": {(0, 0): 0.5, (1, 1): 0.25}}, ["0.75", "sum to 1"]),
        ({"initial": {(0, 0): 1.5, (1, 1): -0.5}}, ["-0.5", "non-negative"]),
        ({"initial": {(0, 0): "all"}}, ["initial", "nan"]),
        ({"initial": {"0,0": 0.5, (0, 0): 0.5}}, ["(0, 0)", "twice"]),
        ({"variables": ["jobs"]}, ["variables name 1", "has 2"]),
        ({"variables": ["a", "a"]}, ["different names"]),
        ({"variables": ["a b"]}, ["variables", "a b"]),
        ({"variables": ["a[0]", "b[2]"]}, ["variables", "a[0]"]),
        ({"variables": [1, 2]}, ["variables", "1"]),
        ({"max_states": 0}, ["max_states", "0"]),
        ({"max_states": True}, ["max_states", "True"]),
        ({"max_states": 1e6}, ["max_states", "1000000.0"]),
        ({"transitions": 5}, ["transitions is 5"]),
        ({"transitions": "os:system"}, ["os:system", "--allow-code"]),
        ({"transitions": networkx.Graph([(0, 1)])}, ["undirected"]),
    ],
)
def test_reachable_bad_parameters(change, words):
    parameters = {"transitions": two_states((0, 1), 1.0), "initial": (0, 0), **change}
    with pytest.raises(ctmc.ModelError) as caught:
        reachable(**parameters)
    assert all(word in str(caught.value) for word in words), caught.value


def test_function_named_as_text(tmp_path, monkeypatch):
    (tmp_path / "machines_for_test.py").write_text(
        "def repair(state):\n    return [((1 - state[0],), 1.0 + state[0])]\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with ctmc.allowed_code():
        model = ctmc.build("reachable", transitions="machines_for_test:repair", initial=0)
    np.testing.assert_allclose(stationary(model).value, [2 / 3, 1 / 3], rtol=1e-13)
    assert model.recipe.parameters["transitions"] == "machines_for_test:repair"
    assert model.recipe.reproducible
    import machines_for_test

    assert reachable(machines_for_test.repair, 0).recipe.hash == model.recipe.hash


def test_recipes_of_reachable():
    assert not reachable(lambda state: [], 0).recipe.reproducible
    assert reachable(shortest_of_three, (0, 0, 0)).recipe.functions["transitions"]
    graph = networkx.DiGraph()
    graph.add_edge(0, 1, rate=1.0)
    recipe = reachable(graph).recipe
    assert not recipe.reproducible
    assert "DiGraph" in recipe.parameters["transitions"]
    assert recipe.hash


# ---- reachable from a networkx graph --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        birth_death([1.0, 2.0], [3.0, 4.0]),
        tandem_network([2.0, 1.0], 1.0, 2, 3),
        reachable(shortest_of_three, (0, 0, 0)),
        ctmc.Generator.from_matrix([[0, 1.0, 0], [0, 0, 0], [0, 0, 0]]),
    ],
    ids=["birth_death", "tandem_network", "reachable", "isolated"],
)
def test_networkx_round_trip(model):
    same_model(reachable(ctmc.to_networkx(model)), model)


def test_graph_of_names():
    graph = networkx.DiGraph()
    graph.add_edge("up", "down", rate=1e-3)
    graph.add_edge("down", "up", rate=1.0)
    graph.add_edge("spare", "up", rate=1.0)
    model = reachable(graph)
    assert model.space.table.ravel().tolist() == [0, 1, 2]
    assert stationary(model).probability("down") == pytest.approx(1e-3 / 1.001, rel=1e-12)
    begun = reachable(graph, "down")
    assert begun.size == 2
    assert begun.labels["down"].tolist() == [True, False]
    assert begun.initial.dense(2).tolist() == [1, 0]
    mixed = reachable(graph, {"spare": 0.25, "up": 0.75})
    assert list(mixed.labels) == ["spare", "up", "down"]
    assert mixed.initial.dense(3).tolist() == [0.25, 0.75, 0]


def test_graph_with_many_names_has_a_note():
    graph = networkx.DiGraph()
    networkx.add_cycle(graph, [f"n{k}" for k in range(300)], rate=1.0)
    model = reachable(graph)
    assert not model.labels
    assert "n0, n1" in model.notes[0]


def test_graph_with_names_that_print_alike():
    graph = networkx.DiGraph()
    networkx.add_cycle(graph, [1, "1", (2, "x")], rate=1.0)
    model = reachable(graph)
    assert (model.size, model.labels) == (3, {})
    assert model.notes


def test_multigraph_adds_up():
    graph = networkx.MultiDiGraph()
    graph.add_edge((0, 1), (1, 0), rate=1.0)
    graph.add_edge((0, 1), (1, 0), rate=0.5)
    graph.add_edge((1, 0), (0, 1), rate=2.0)
    model = reachable(graph, [0, 1], ["a", "b"])
    assert model.to_scipy().toarray().tolist() == [[-1.5, 1.5], [2.0, -2.0]]
    assert sorted(model.all_rewards) == ["a", "b"]


@pytest.mark.parametrize(
    ("edges", "parameters", "words"),
    [
        ([(0, 1, {})], {}, ["edge from 0 to 1", "None"]),
        ([(0, 1, {"rate": -1})], {}, ["edge from 0 to 1", "-1"]),
        ([(0, 1, {"rate": 1}), ((1,), 0, {"rate": math.inf})], {}, ["edge from (1,) to 0", "inf"]),
        ([("a", "b", {"rate": "quick"})], {}, ["edge from a to b", "quick"]),
        ([], {}, ["without nodes"]),
        ([(0, 1, {"rate": 1})], {"initial": 7}, ["7", "no node"]),
        ([(0, 1, {"rate": 1})], {"initial": {0: 0.5}}, ["0.5", "sum to 1"]),
        ([(0, 1, {"rate": 1})], {"max_states": 1}, ["2 nodes", "max_states = 1"]),
        ([(0, 1, {"rate": 1})], {"vectorized": True}, ["vectorized"]),
        ([(0, 1, {"rate": 1})], {"variables": ["a", "b"]}, ["variables name 2"]),
    ],
)
def test_bad_graphs(edges, parameters, words):
    graph = networkx.DiGraph()
    graph.add_edges_from(edges)
    with pytest.raises(ctmc.ModelError) as caught:
        reachable(graph, **parameters)
    assert all(word in str(caught.value) for word in words), caught.value
