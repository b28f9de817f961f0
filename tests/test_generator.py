"""The generator: what is refused, the products, structure against networkx, rewards and summaries."""

from __future__ import annotations

import dataclasses

import networkx
import numpy as np
import pytest
import scipy.sparse

import ctmc
from ctmc.errors import ModelError, UnknownNameError
from ctmc.model.generator import Generator, ProductCounter
from ctmc.model.state_space import Lattice, Listed, Variable
from ctmc.model.transitions import FloatTransitions


def random_rates(seed, size, density):
    """Rates of a random sparse chain, dense matrix without a diagonal."""
    rng = np.random.default_rng(seed)
    rates = np.where(rng.random((size, size)) < density, rng.exponential(size=(size, size)), 0.0)
    np.fill_diagonal(rates, 0.0)
    return rates


def generator_matrix(rates):
    return rates - np.diag(rates.sum(axis=1))


def digraph(rates):
    return networkx.from_numpy_array(rates, create_using=networkx.DiGraph)


# ---- construction ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_all_ways_to_give_a_matrix(seed):
    rates = random_rates(seed, 23, 0.2)
    full = generator_matrix(rates)
    sources, targets = np.nonzero(rates)
    models = [
        Generator.from_matrix(rates),
        Generator.from_matrix(full),
        Generator.from_matrix(full.tolist()),
        Generator.from_matrix(scipy.sparse.csr_array(full)),
        Generator.from_matrix(scipy.sparse.csc_matrix(rates)),
        Generator.from_transitions(sources, targets, rates[sources, targets], Lattice((22,))),
        Generator.from_transitions(
            np.tile(sources, 2), np.tile(targets, 2), np.tile(rates[sources, targets] / 2, 2), Lattice((22,))
        ),
    ]
    for model in models:
        np.testing.assert_allclose(model.to_scipy().toarray(), full, rtol=1e-14, atol=1e-14)
        assert model.indptr.dtype == np.int64
        assert model.sources.dtype == np.int32
        for j in range(model.size):
            assert (np.diff(model.sources[model.indptr[j] : model.indptr[j + 1]]) > 0).all()


def test_whole_number_matrix_and_one_state():
    assert Generator.from_matrix([[-1, 1], [2, -2]]).rates.dtype == np.float64
    one = Generator.from_matrix([[0.0]])
    assert (one.size, one.entries, one.uniformization_rate) == (1, 0, 1.0)
    assert one.forward(np.ones(1)).tolist() == [0.0]
    assert Generator.from_transitions([], [], [], Lattice((2,))).entries == 0


def test_self_loops_and_zeros_are_left_out():
    model = Generator.from_transitions([0, 0, 1, 1], [0, 1, 1, 0], [5.0, 1.0, -3.0, 0.0], Lattice((1,)))
    assert model.to_scipy().toarray().tolist() == [[-1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([[-1, 1], [2, -3]], ["row 1 (1,) sums to -1", "diagonal being -3", "zero"]),
        ([[-1, 1, 0], [1, -2, 0], [0, 0, -1]], ["row 1 (1,)"]),  # the first of two bad rows
        ([[-1, 0], [0, 0]], ["row 0 (0,) sums to -1"]),
        ([[np.nan, 1], [2, -2]], ["row 0 (0,)", "nan"]),
        ([[0, 1, -1], [-1, 0, 1], [0, 0, 0]], ["rate from state 0 to state 2 is -1.0", "non-negative"]),
        ([[0, 1], [np.nan, 0]], ["rate from state 1 to state 0 is nan"]),
        ([[0, np.inf], [1, 0]], ["rate from state 0 to state 1 is inf"]),
        ([[0, 0, 0], [1e308, 0, 1e308], [1, 0, 0]], ["out of state 1 (1,)", "infinity"]),
        ([[1, 2]], ["(1, 2)", "square"]),
        (np.empty((0, 0)), ["(0, 0)", "non-empty"]),
        (np.zeros((2, 2, 2)), ["(2, 2, 2)", "square"]),
        ([["a", "b"], ["c", "d"]], ["numbers"]),
        ([[0, 1], [1]], ["numbers"]),
        (np.array([[0, 1j], [1, 0]]), ["complex128", "real"]),
        (scipy.sparse.csr_array(np.array([[0, 1j], [1, 0]])), ["complex128"]),
        (None, ["no table of numbers"]),
    ],
)
def test_matrices_that_are_no_generators(matrix, words):
    with pytest.raises(ModelError) as caught:
        Generator.from_matrix(matrix)
    assert all(word in str(caught.value) for word in words), caught.value


def test_matrix_and_space_of_different_sizes():
    for size in (2, 4):
        with pytest.raises(ModelError, match=f"matrix has {size} rows; allowed are 3"):
            Generator.from_matrix(np.zeros((size, size)), Lattice((2,)))


@pytest.mark.parametrize(
    ("sources", "targets", "rates", "words"),
    [
        ([0, 5, 7], [1, 1, 1], [1.0] * 3, ["sources[1] is 5", "0 to 2"]),
        ([0, 1], [1, -1], [1.0] * 2, ["targets[1] is -1", "0 to 2"]),
        ([0.0, 1.0], [1, 2], [1.0] * 2, ["sources", "float64"]),
        ([[0, 1]], [[1, 2]], [[1.0] * 2], ["sources", "(1, 2)"]),
        ([[0], [1, 2]], [1, 2], [1.0] * 2, ["sources", "object"]),
        ([0, 1], [1, 2], [1.0], ["2 sources, 2 targets", "(1,)"]),
        ([0, 1], [1], [1.0] * 2, ["2 sources, 1 targets"]),
        ([0, 1], [1, 2], ["a", "b"], ["rates"]),
        ([0, 1, 2], [1, 2, 0], [1.0, -2.0, -3.0], ["from state 1 to state 2 is -2.0"]),
    ],
)
def test_transitions_that_do_not_fit(sources, targets, rates, words):
    with pytest.raises(ModelError) as caught:
        Generator.from_transitions(sources, targets, rates, Lattice((2,)))
    assert all(word in str(caught.value) for word in words), caught.value


def arrays(**changes):
    """The chain 0 <-> 1 <-> 2 as stored arrays, with changes."""
    chosen = {
        "indptr": np.array([0, 1, 3, 4]),
        "sources": np.array([1, 0, 2, 1], dtype=np.int32),
        "rates": np.array([2.0, 1.0, 2.0, 1.0]),
        "exit_rates": None,
        **changes,
    }
    return Generator(
        Listed(np.array([[4, 4], [5, 5], [6, 6]])),
        FloatTransitions(chosen["indptr"], chosen["sources"], chosen["rates"]),
        chosen["exit_rates"],
        **{name: value for name, value in chosen.items() if name in ("labels", "rewards")},
    )


def int32(*values):
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indptr": np.array([0, 1, 3, 4], dtype=np.int32)}, ["indptr", "int32", "int64"]),
        ({"indptr": np.array([0, 1, 4])}, ["indptr", "(3,)", "(4,)"]),
        ({"indptr": np.array([0, 1, 3, 5])}, ["0 to 5", "0 to 4"]),
        ({"indptr": np.array([1, 1, 3, 4])}, ["1 to 4"]),
        ({"indptr": np.array([0, 3, 1, 4])}, ["indptr decreases after state 1 (5, 5)"]),
        ({"indptr": np.array([0, -1, 3, 4])}, ["indptr decreases after state 0 (4, 4)"]),
        ({"sources": int32(1, 0, 3, 1)}, ["into state 1 (5, 5) (entry 2) is 3", "0 to 2"]),
        ({"sources": int32(-1, 0, 2, 1)}, ["into state 0 (4, 4)", "is -1"]),
        ({"sources": int32(1, 2, 0, 1)}, ["into state 1 (5, 5) (entry 2) is 0", "ascending"]),
        ({"sources": int32(1, 0, 0, 1)}, ["into state 1 (5, 5)", "ascending"]),
        ({"sources": int32(1, 0, 2, 2)}, ["state 2 (6, 6) has a transition to itself (entry 3)"]),
        ({"sources": np.array([1, 0, 2, 1], dtype=np.uint8)}, ["sources", "int32 or int64"]),
        ({"sources": int32(1, 0, 2)}, ["same length"]),
        ({"rates": np.ones((4, 1))}, ["same length"]),
        ({"rates": np.ones(4, dtype=np.float32)}, ["float64"]),
        ({"rates": np.array([2.0, 1.0, 0.0, -1.0])}, ["state 2 (6, 6) to state 1 (5, 5) is 0.0", "positive"]),
        ({"rates": np.array([2.0, np.nan, 2.0, 1.0])}, ["state 0 (4, 4) to state 1 (5, 5) is nan"]),
        ({"rates": np.array([2.0, 1.0, 2.0, np.inf])}, ["state 1 (5, 5) to state 2 (6, 6) is inf"]),
        ({"rates": np.array([1e308, 1.0, 2.0, 1e308])}, ["out of state 1 (5, 5)", "infinity"]),
        ({"exit_rates": np.array([1.0, 3.1, 2.0])}, ["exit rate of state 1 (5, 5) is", "3.1", "3.0"]),
        ({"exit_rates": np.array([1.0, 3.0, np.nan])}, ["exit rate of state 2 (6, 6)", "nan"]),
        ({"exit_rates": np.ones(2)}, ["exit_rates", "[1., 1.]", "3 numbers"]),
        ({"exit_rates": np.array([1, 3, 2])}, ["float64"]),
        ({"labels": {"up": np.array([True])}}, ["label 'up'", "(1,)", "3 truth values"]),
        ({"labels": {"up": np.array([1, 0, 1])}}, ["label 'up'", "truth values"]),
        ({"rewards": {"cost": ctmc.Reward(np.ones(2))}}, ["reward 'cost'", "(2,)", "(3,)"]),
        ({"rewards": {"cost": ctmc.Reward(np.array([0.0, np.nan, 1.0]))}}, ["reward 'cost'", "finite"]),
    ],
)
def test_arrays_that_break_a_law(changes, words):
    with pytest.raises(ModelError) as caught:
        arrays(**changes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_exit_rates_may_be_given():
    given = np.array([1.0, 4.0, 2.0])
    model = arrays(rates=np.array([2.0, 1.0, 2.0, 2.0]), exit_rates=given)
    assert model.exit_rates.tolist() == [1.0, 4.0, 2.0]
    almost = given * (1 + 1e-13)
    assert arrays(rates=np.array([2.0, 1.0, 2.0, 2.0]), exit_rates=almost).exit_rates is almost


def test_frozen():
    model = arrays(labels={"up": np.array([True, False, False])}, rewards={"cost": ctmc.Reward(np.ones(3))})
    frozen = [
        model.indptr,
        model.sources,
        model.rates,
        model.exit_rates,
        model.labels["up"],
        model.rewards["cost"].rate,
    ]
    for array in frozen:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.rates = np.ones(4)


# ---- products -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [21, 22, 23])
@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_products_against_scipy(seed, width):
    rates = random_rates(seed, 60, 0.1)
    matrix = generator_matrix(rates)
    narrow = Generator.from_matrix(rates)
    model = Generator(narrow.space, FloatTransitions(narrow.indptr, narrow.sources.astype(width), narrow.rates))
    assert model.sources.dtype == width
    rng = np.random.default_rng(seed)
    x = rng.normal(size=60)
    np.testing.assert_allclose(model.forward(x), x @ matrix, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(model.backward(x), matrix @ x, rtol=1e-12, atol=1e-13)
    out = np.empty(60)
    assert model.forward(x, out) is out
    np.testing.assert_array_equal(out, narrow.forward(x))
    assert model.backward(x, out) is out
    np.testing.assert_array_equal(out, narrow.backward(x))
    np.testing.assert_array_equal(model.forward(np.arange(60)), model.forward(np.arange(60.0)))
    assert model.forward(np.full(60, 1 / 60)).sum() == pytest.approx(0, abs=1e-13)
    assert np.abs(model.backward(np.ones(60))).max() < 1e-13
    assert model.uniformization_rate == model.exit_rates.max()
    assert model.coloring is None
    assert model.classes.count == narrow.classes.count
    np.testing.assert_array_equal(model.to_scipy().toarray(), narrow.to_scipy().toarray())


def test_products_refuse_other_shapes():
    for x in (np.ones(2), np.ones((3, 1)), 1.0):
        with pytest.raises(ModelError, match=r"allowed is \(3,\)"):
            arrays().forward(x)


def test_rows_are_unsigned_and_by_destination():
    _, indptr, sources, _, rates = next(arrays().row_slabs())
    assert indptr.dtype == np.uint64
    assert sources.dtype == np.uint32
    assert rates.tolist() == [2.0, 1.0, 2.0, 1.0]


def test_products_are_counted_by_the_view():
    model, counter = arrays(), ProductCounter()
    view = model.counted(counter)
    view.forward(np.ones(3))
    view.backward(np.ones(3))
    view.count_products(3)
    model.forward(np.ones(3))
    assert counter.products == 5
    assert view.rates is model.rates


# ---- structure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(31, 51))
def test_classes_against_networkx(seed):
    size = 8 + seed
    rates = random_rates(seed, size, 1.3 / size)
    model = Generator.from_matrix(rates)
    graph = digraph(rates)
    expected = {frozenset(part) for part in networkx.strongly_connected_components(graph)}
    found = model.classes
    assert {frozenset(found.members(number).tolist()) for number in range(found.count)} == expected
    assert found.irreducible == (len(expected) == 1)
    recurrent = [found.members(number) for number in found.recurrent]
    assert {frozenset(part.tolist()) for part in recurrent} == {
        frozenset(part) for part in networkx.attracting_components(graph)
    }
    firsts = [int(part[0]) for part in recurrent]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("seed", range(51, 71))
def test_condensation_against_networkx(seed):
    rates = random_rates(seed, 30, 0.04)
    model = Generator.from_matrix(rates)
    found = ctmc.condensation(model)
    expected = networkx.condensation(digraph(rates))
    number = {expected.graph["mapping"][state]: int(model.classes.class_of[state]) for state in range(30)}
    assert {(number[a], number[b]) for a, b in expected.edges} == set(found.edges)
    for node, data in expected.nodes(data=True):
        assert found.nodes[number[node]]["size"] == len(data["members"])
        assert found.nodes[number[node]]["recurrent"] == (expected.out_degree(node) == 0)
    between = model.classes.class_of
    i, j = np.nonzero(rates)
    assert sum(count for *_, count in found.edges(data="count")) == (between[i] != between[j]).sum()


@pytest.mark.parametrize("seed", range(71, 101))
def test_coloring_against_networkx(seed):
    """Half of the graphs are bipartite by construction, some fall into parts, all are directed."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 40))
    rates = random_rates(seed, size, 1.2 / size)
    if seed % 2:
        side = rng.integers(0, 2, size)
        rates[side[:, None] == side] = 0.0
    model = Generator.from_matrix(rates)
    bipartite = networkx.is_bipartite(digraph(rates).to_undirected())
    coloring = model.coloring
    assert (coloring is not None) == bipartite
    if coloring is not None:
        assert coloring.dtype == np.uint8
        assert coloring[0] == 0
        i, j = np.nonzero(rates)
        assert (coloring[i] != coloring[j]).all()
        assert model.coloring is coloring  # found once


def test_coloring_of_long_cycles():
    for size in (999, 1000):
        steps = np.random.default_rng(7).permutation(size)
        model = Generator.from_transitions(steps, np.roll(steps, -1), np.ones(size), Lattice((size - 1,)))
        assert (model.coloring is not None) == (size % 2 == 0)


def test_restricted():
    rates = random_rates(61, 12, 0.4)
    positions = np.array([2, 3, 7, 11])
    part = Generator.from_matrix(rates).restricted(positions)
    np.testing.assert_allclose(
        part.to_scipy().toarray(), generator_matrix(rates[np.ix_(positions, positions)]), rtol=1e-14, atol=1e-15
    )


def test_to_networkx():
    graph = ctmc.to_networkx(arrays())
    assert list(graph.nodes) == [(4, 4), (5, 5), (6, 6)]
    assert graph.edges[(6, 6), (5, 5)]["rate"] == 2.0
    assert graph.number_of_edges() == 4
    lonely = ctmc.to_networkx(Generator.from_matrix(np.zeros((3, 3))))
    assert (len(lonely), lonely.number_of_edges()) == (3, 0)


def test_networkx_graphs_have_a_limit():
    big = Generator.from_transitions([], [], [], Lattice((100_000,)))
    with pytest.raises(ModelError, match="100,001 states is too large; allowed are 100,000"):
        ctmc.to_networkx(big)
    with pytest.raises(ModelError, match="100,001 classes"):
        ctmc.condensation(big)


# ---- rewards, copies, summaries -------------------------------------------------------------------------------------


def test_with_reward():
    model = arrays()
    assert sorted(model.all_rewards) == ["x"]
    richer = model.with_reward("cost", [1.0, 2.0, 4.0], "euro per hour").with_reward("sum", lambda s: s.sum(axis=1))
    assert sorted(richer.all_rewards) == ["cost", "sum", "x"]
    assert sorted(model.all_rewards) == ["x"]
    assert richer.rates is model.rates
    solution = ctmc.solve(ctmc.Stationary(richer), "gth")
    weights = np.array([4, 2, 1]) / 7
    assert solution.expected("cost") == pytest.approx(weights @ [1, 2, 4], rel=1e-13)
    assert solution.expected("sum") == pytest.approx(weights @ [8, 10, 12], rel=1e-13)
    with pytest.raises(ModelError, match=r"reward 'cost' is \[1.0, 2.0\], of shape \(2,\)"):
        model.with_reward("cost", [1.0, 2.0])
    with pytest.raises(ModelError, match="gives an array of shape"):
        ctmc.solve(ctmc.Stationary(model.with_reward("odd", lambda s: s.sum())), "gth").expected("odd")


def test_replace():
    model = arrays()
    changed = model.replace(initial=[5, 5], notes=("a note",), labels={"up": [True, False, False]})
    assert changed.initial.positions.tolist() == [1]
    assert changed.notes == ("a note",)
    assert model.notes == ()
    assert changed.labels["up"].tolist() == [True, False, False]
    with pytest.raises(UnknownNameError, match="note"):
        model.replace(note="x")
    with pytest.raises(UnknownNameError):
        model.replace(rates=np.ones(4))
    with pytest.raises(ModelError, match="not in the state space"):
        model.replace(initial=[0, 0])
    with pytest.raises(ModelError, match="label"):
        model.replace(labels={"up": [True]})


def test_summaries():
    model = arrays(labels={"<b>up</b>": np.array([True, False, False])}).replace(
        notes=("<script>alert(1)</script>\x1b[31m",)
    )
    text, page = repr(model), model._repr_html_()
    assert "states" in text
    assert "3" in text
    assert "\x1b" not in text + page
    assert "<script>" in text
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;up&lt;/b&gt;" in page
    odd = Generator.from_matrix([[0, 1], [1, 0]], Lattice((1,), variables=(Variable("<i>"),)))
    assert "<i>" not in odd._repr_html_()


def test_nbytes():
    assert arrays().nbytes == 4 * 8 + 4 * 4 + 4 * 8 + 3 * 8


def test_what_was_refused_can_be_shown():
    """A debugger shows the half-made chain, and no compiled loop may run over its wrong sources."""
    rows = FloatTransitions(np.array([0, 1, 2]), np.array([1, 70_000_000]), np.ones(2))
    with pytest.raises(ModelError, match=r"allowed is 0 to 1\.") as caught:
        Generator(Listed(np.array([[0], [1]])), rows)
    chain = next(entry.frame.f_locals["self"] for entry in caught.traceback if "self" in entry.frame.f_locals)
    assert "refused" in repr(chain)
