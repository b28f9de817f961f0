"""The structure of models, against networkx, brute force over all transitions, and closed forms."""

from __future__ import annotations

import itertools
import json
import math

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctmc
from ctmc.cli import info, main
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.period import periods
from ctmc.model.state_space import Lattice, Listed, Variable
from ctmc.model.structure import count_distinct, structure

FIFTY = settings(max_examples=50, deadline=None, derandomize=True)


def graph_of(matrix):
    return networkx.from_numpy_array(np.asarray(matrix), create_using=networkx.DiGraph)


def independent_period(graph):
    """The period of a strongly connected graph, from the lengths of its simple cycles."""
    return math.gcd(*map(len, networkx.simple_cycles(graph))) or 1


def check_classes(rates):
    chain = Generator.from_matrix(rates)
    graph = graph_of(rates)
    components = list(networkx.strongly_connected_components(graph))
    recurrent = [
        members for members in components if not any(j not in members for i in members for j in graph.successors(i))
    ]
    wanted = sorted(independent_period(graph.subgraph(members)) for members in recurrent)
    facts = structure(chain)
    assert sorted(periods(chain.indptr, chain.sources, chain.classes).tolist()) == wanted
    assert facts["periods"] == {value: wanted.count(value) for value in sorted(set(wanted))}
    assert facts["communicating_classes"] == len(components)
    assert facts["recurrent_classes"] == len(recurrent)
    assert facts["transient_states"] == len(rates) - sum(map(len, recurrent))
    assert facts["two_colorable"] == networkx.is_bipartite(graph.to_undirected())
    distances = {}
    for part in networkx.connected_components(graph.to_undirected()):
        distances |= networkx.single_source_shortest_path_length(graph.to_undirected(), min(part))
    widths = np.bincount(list(distances.values()))
    assert facts["breadth_first_levels"] == len(widths)
    assert facts["widest_breadth_first_level"] == widths.max()


@FIFTY
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=14))
def test_random_graphs(size, edges):
    rates = np.zeros((size, size))
    for i, j in edges:
        if i % size != j % size:
            rates[i % size, j % size] = 1 + i + j
    check_classes(rates)


@FIFTY
@given(st.data())
def test_cyclic_classes_of_any_period(data):
    """States in groups; every transition leads to the next group round a ring, or out of a transient state into it."""
    period = data.draw(st.integers(2, 6))
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=period, max_size=period))
    group = np.repeat(np.arange(period), sizes)
    n = len(group)
    rates = np.where((group[None] - group[:, None]) % period == 1, 1.0, 0.0)
    for i, j in itertools.product(range(n), repeat=2):  # thin it out, with a ring through all states of a group kept
        if group[j] == (group[i] + 1) % period and data.draw(st.integers(0, 3)) == 0 and sizes[group[j]] > 1:
            row, column = rates[i].copy(), rates[:, j].copy()
            rates[i, j] = 0.0
            if not networkx.is_strongly_connected(graph_of(rates)):
                rates[i], rates[:, j] = row, column
    whole = np.zeros((n + 1, n + 1))
    whole[:n, :n] = rates
    whole[n, data.draw(st.integers(0, n - 1))] = 1.0
    order = np.random.default_rng(data.draw(st.integers(1000, 2000))).permutation(n + 1)
    found = structure(Generator.from_matrix(whole[np.ix_(order, order)]))
    wanted = independent_period(graph_of(rates))
    assert wanted % period == 0
    assert found["periods"] == {wanted: 1}
    assert found["transient_states"] == 1


def test_several_classes_with_different_periods():
    rates = np.zeros((11, 11))
    for first, length in ((0, 3), (3, 4), (7, 2)):
        for k in range(length):
            rates[first + k, first + (k + 1) % length] = 1.5
    rates[9, [0, 3, 10]] = 1.0  # 9 is transient, 10 absorbing
    facts = structure(Generator.from_matrix(rates))
    assert facts["periods"] == {1: 1, 2: 1, 3: 1, 4: 1}
    assert (facts["communicating_classes"], facts["recurrent_classes"], facts["transient_states"]) == (5, 4, 1)


def test_a_long_ring_with_a_chord():
    """Cycles of 3000 and 1800 transitions: period 600."""
    n = 3000
    sources, targets = np.append(np.arange(n), 1799), np.append((np.arange(n) + 1) % n, 0)
    chain = Generator.from_transitions(sources, targets, np.ones(n + 1), Lattice((n - 1,)))
    assert structure(chain)["periods"] == {600: 1}


@pytest.mark.parametrize("seed", [21, 22, 23])
def test_levels_entries_and_rates_against_brute_force(seed):
    rng = np.random.default_rng(seed)
    table = np.unique(rng.integers(-4, 5, (40, 3)), axis=0)
    rng.shuffle(table)
    n = len(table)
    rates = np.where(rng.random((n, n)) < 0.1, rng.choice([0.25, 0.5, 3.0], (n, n)), 0.0)
    far = np.abs(table[:, None, 1] - table[None, :, 1]) > 1
    rates[far | np.eye(n, dtype=bool)] = 0.0  # the second coordinate makes single steps
    space = Listed(table, (Variable("a"), Variable("b", 2)))
    facts = structure(Generator.from_matrix(rates, space))
    sources, targets = np.nonzero(rates)
    values = np.column_stack([table, table.sum(axis=1)])
    for row, name, column in zip(facts["variables"], ["a", "b[0]", "b[1]", "total"], values.T, strict=True):
        counts = np.unique(column, return_counts=True)[1]
        assert row == {
            "name": name, "levels": len(counts), "widest_level": counts.max(),
            "largest_change": np.abs(column[sources] - column[targets]).max(),
        }  # fmt: skip
    assert facts["level_variables"] == ["b[0]"]
    assert facts["bandwidth"] == np.abs(sources - targets).max()
    for name, axis in (("transitions_into_a_state", 0), ("transitions_out_of_a_state", 1)):
        counts = (rates > 0).sum(axis=axis)
        assert facts[name] == {"least": counts.min(), "mean": pytest.approx(counts.mean()), "largest": counts.max()}
    assert facts["transitions"] == len(sources)
    assert facts["distinct_rates"] == 3
    assert facts["distinct_exit_rates"] == len(np.unique(rates.sum(axis=1)))
    assert (facts["least_rate"], facts["largest_rate"]) == (0.25, 3.0)
    assert facts["largest_exit_rate"] == rates.sum(axis=1).max()


def test_coordinates_at_the_ends_of_64_bits():
    table = np.array([[-(2**63), 0], [2**63 - 1, 1], [2**63 - 2, 2]])
    rates = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0.0]])
    facts = structure(Generator.from_matrix(rates, Listed(table)))
    assert [row["name"] for row in facts["variables"]] == ["x[0]", "x[1]"]  # their total would not fit
    assert [row["largest_change"] for row in facts["variables"]] == [2**64 - 1, 2]


def test_supermarket_levels_and_bytes():
    servers, capacity = 3, 6
    model = ctmc.build(
        "supermarket", service_rates=[1, 1.5, 2], arrival_rate=3, choices=2, capacity=capacity,
        sampling="with_replacement",
    )  # fmt: skip
    facts = structure(model)
    side = capacity + 1
    entries = 2 * servers * capacity * side ** (servers - 1)
    assert facts["transitions"] == entries
    assert facts["level_variables"] == ["queue_length[0]", "queue_length[1]", "queue_length[2]", "total"]
    assert facts["variables"][0]["widest_level"] == side ** (servers - 1)
    assert facts["breadth_first_levels"] == servers * capacity + 1  # the levels of the total
    assert facts["widest_breadth_first_level"] == facts["variables"][3]["widest_level"]
    assert facts["bandwidth"] == side ** (servers - 1)
    assert facts["periods"] == {2: 1}
    assert sum(facts["colors"]) == side**servers
    found = facts["bytes_a_state_by_representation"]
    assert found["float64 CSR"] == 12 * entries / side**servers + 16
    assert found["value-coded CSR"] == 5 * entries / side**servers + 16
    assert found["lattice"] == servers
    assert facts["bytes_a_state"] == pytest.approx(model.nbytes / side**servers)


def test_codes_of_two_bytes_and_none():
    n = 300
    births, deaths = 1 + np.arange(n) / 7, np.full(n, 2.0)
    facts = structure(ctmc.build("birth_death", births=births, deaths=deaths))
    a_state = 2 * n / (n + 1)
    assert facts["distinct_rates"] == len(set(births) | set(deaths))
    assert facts["bytes_a_state_by_representation"] == pytest.approx(
        {"float64 CSR": 12 * a_state + 16, "value-coded CSR": 6 * a_state + 16, "lattice": 2.0}
    )
    facts = structure(ctmc.build("birth_death", births=births, deaths=deaths + np.arange(n)))
    assert "lattice" not in facts["bytes_a_state_by_representation"]  # it falls at different rates
    n = 70_000
    sources = np.arange(n)
    ring = Generator.from_transitions(sources, (sources + 1) % n, 1.0 + sources, Lattice((n - 1,)))
    facts = structure(ring)
    assert facts["distinct_rates"] == n
    assert facts["bytes_a_state_by_representation"] == {"float64 CSR": 28.0}


@pytest.mark.parametrize("what", ["two at once", "two steps", "a fall left out", "a total cap"])
def test_no_lattice_form(what):
    space = Lattice((2, 2), total=3 if what == "a total cap" else None)
    states = space.states(np.arange(space.size))
    difference = states[None] - states[:, None]
    rates = (np.abs(difference).sum(axis=2) == 1).astype(float)
    if what == "two at once":
        rates[0, 4] = 1.0
    elif what == "two steps":
        rates[0, 2] = 1.0
    elif what == "a fall left out":
        rates[2, 1] = 0.0
    forms = structure(Generator.from_matrix(rates, space))["bytes_a_state_by_representation"]
    assert list(forms) == ["float64 CSR", "value-coded CSR"]


def test_no_transitions():
    facts = structure(Generator.from_matrix(np.zeros((3, 3))))
    assert facts["periods"] == {1: 3}
    assert (facts["distinct_rates"], facts["least_rate"], facts["largest_rate"]) == (0, None, None)
    assert (facts["level_variables"], facts["bandwidth"], facts["largest_exit_rate"]) == ([], 0, 0.0)


@pytest.mark.parametrize("distinct", [1, 2, 5000, 65_536, 65_537, 100_000])
def test_distinct_numbers(distinct):
    rng = np.random.default_rng(31)
    values = np.concatenate([[0.0], rng.permutation(distinct - 1) + 1.5])
    assert count_distinct(rng.choice(values, 3 * distinct)) <= distinct
    assert count_distinct(np.repeat(values, 2)) == distinct


def test_queue():
    facts = structure(ctmc.QBD.from_blocks([[0.3, 0], [0, 0.1]], [[-2.3, 1], [1, -2.1]], [[1, 0], [0, 1]]))
    assert (facts["phases"], facts["boundary_levels"], facts["boundary_states"]) == (2, 1, 2)
    assert facts["entries"] == {"up": 2, "local": 4, "down": 2}
    assert facts["drift"] == pytest.approx(-0.8)
    solution = ctmc.solve(
        ctmc.Stationary(ctmc.QBD.from_blocks([[0.3, 0], [0, 0.1]], [[-2.3, 1], [1, -2.1]], [[1, 0], [0, 1]]))
    )
    assert facts["decay_rate"] == pytest.approx(solution.value.decay_rate, rel=1e-12)
    assert (facts["distinct_rates"], facts["least_rate"], facts["largest_rate"]) == (3, 0.1, 1.0)
    assert structure(ctmc.QBD.from_blocks([[2]], [[-3]], [[1]]))["decay_rate"] is None  # not stable


def test_what_is_refused():
    with pytest.raises(ModelError, match=r"model is a int; allowed are Generator and QBD"):
        structure(5)
    chain = Generator.from_matrix([[-1, 1], [2, -2]])
    with ctmc.limited_memory("50B"), pytest.raises(ModelError, match="the structure report needs"):
        structure(chain)


# ---- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        code = main(list(arguments))
        return code, capsys.readouterr().out

    return run


def test_info_shows_the_structure(command, monkeypatch):
    model = ctmc.build("supermarket", service_rates=[1, 1.5], arrival_rate=1, choices=2, capacity=3)
    ctmc.save("model.h5", model)
    code, out = command("info", "model.h5", "--json")
    assert code == 0
    document = json.loads(out)
    facts = structure(model)
    assert document["structure"] == json.loads(json.dumps(facts))
    assert document["bytes_in_memory"] == model.nbytes
    code, out = command("info", "model.h5")
    assert code == 0
    for text in ("periods ", "2 (1 class)", "8 and 8 states", "queue_length[0], queue_length[1], total", "lattice 2"):
        assert text in out
    # a large one is loaded on request only, its arrays being coded or not
    monkeypatch.setattr(info, "_LOADED_BYTES", 100)
    coded = ctmc.build("supermarket", service_rates=[1, 1.5, 2], arrival_rate=1, choices=2, capacity=9).written_out()
    ctmc.save("coded.h5", coded)
    document = json.loads(command("info", "coded.h5", "--json")[1])
    assert document["structure"] is None
    assert (document["states"], document["entries"]) == (coded.size, coded.entries)
    assert document["bytes_in_memory"] == coded.nbytes - 8  # without the last of n + 1 row pointers
    code, out = command("info", "model.h5")
    assert code == 0
    assert "Structure: shown with --structure, which loads the model" in out
    assert "2 (1 class)" not in out
    assert json.loads(command("info", "model.h5", "--json")[1])["structure"] is None
    assert "2 (1 class)" in command("info", "model.h5", "--structure")[1]


def test_info_of_a_queue(command):
    ctmc.save("queue.h5", ctmc.QBD.from_blocks([[0.3]], [[-1.3]], [[1.0]]))
    code, out = command("info", "queue.h5")
    assert code == 0
    assert "decay rate       0.3" in out
