"""The stored forms of the transitions agree entry by entry and product by product."""

import itertools

import numba
import numpy as np
import pytest
from scipy.sparse import csr_array

import ctmc
from builders.supermarket import supermarket
from builders.tandem_network import tandem_network
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.state_space import Lattice
from ctmc.model.sweeps import sweep
from ctmc.model.transitions import CodedTransitions, FloatTransitions, LatticeTransitions
from ctmc.threads import limited_threads
from solvers._reduction import reduction


def box(limits, seed=7, kind=np.uint8, zeros=0.2):
    """A lattice with random weights and departure rates that depend on the queue length."""
    rng = np.random.default_rng(seed)
    space = Lattice(limits)
    sides = np.array(limits) + 1
    weights = rng.integers(1, np.iinfo(kind).max, (len(limits), space.size)).astype(kind)
    weights[rng.random(weights.shape) < zeros] = 0
    states = space.states(np.arange(space.size))
    weights[states.T == 0] = 0
    departures = rng.random((len(limits), sides.max())) + 0.1
    return Generator(space, LatticeTransitions(weights, np.array([0.01]), departures, sides, space.strides))


def dense(model):
    """Q from the definition of the lattice form, state by state."""
    lattice, space = model.transitions, model.space
    matrix = np.zeros((model.size, model.size))
    for j, state in enumerate(space.states(np.arange(model.size)).tolist()):
        for i, length in enumerate(state):
            if length > 0:
                matrix[space.index([*state[:i], length - 1, *state[i + 1 :]]), j] += (
                    lattice.unit[0] * lattice.weights[i, j]
                )
            if length < space.limits[i]:
                above = space.index([*state[:i], length + 1, *state[i + 1 :]])
                matrix[above, j] += lattice.departures[i, length + 1]
    return matrix - np.diag(matrix.sum(axis=1))


SHAPES = [(5,), (1, 1), (6, 2), (2, 7), (3, 4, 2), (2, 1, 3, 4), (1, 2, 1, 2, 3), (1,) * 7, (2, 25, 9), (3, 2, 40, 11)]
SMALL_SHAPES = [shape for shape in SHAPES if np.prod(np.array(shape) + 1) < 1000]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("limits", SMALL_SHAPES, ids=str)
def test_a_lattice_is_what_its_definition_says(limits, kind):
    model = box(limits, kind=kind)
    matrix = dense(model)
    np.testing.assert_allclose(model.to_scipy().toarray(), matrix, rtol=1e-13, atol=1e-13)
    v = np.random.default_rng(8).standard_normal(model.size)
    scale = 1e-14 * np.abs(matrix).max()
    np.testing.assert_allclose(model.forward(v), v @ matrix, atol=scale * 10, rtol=1e-12)
    np.testing.assert_allclose(model.backward(v), matrix @ v, atol=scale * 10, rtol=1e-12)
    assert model.entries == np.count_nonzero(matrix - np.diag(np.diag(matrix)))


@pytest.mark.parametrize("limits", SHAPES, ids=str)
def test_all_forms_have_the_same_products_sweeps_and_structure(limits):
    model = box(limits)
    others = [model.written_out(), model.coded()]
    assert [form.representation for form in (model, *others)] == ["lattice", "float64 CSR", "value-coded CSR"]
    v = np.random.default_rng(9).random(model.size)
    for other in others:
        np.testing.assert_allclose(other.forward(v), model.forward(v), rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(other.backward(v), model.backward(v), rtol=1e-11, atol=1e-12)
        np.testing.assert_array_equal(other.exit_rates, model.exit_rates)
        assert other.classes.count == model.classes.count
        np.testing.assert_array_equal(np.bincount(other.coloring), np.bincount(model.coloring))
        for reverse in (False, True):
            mine, theirs = v.copy(), v.copy()
            sweep(model, mine, reverse=reverse)
            sweep(other, theirs, reverse=reverse)
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)
        for j in {0, model.size // 2, model.size - 1}:
            np.testing.assert_array_equal(other.transitions.into(j)[0], np.sort(model.transitions.into(j)[0]))
            np.testing.assert_allclose(sum(other.transitions.into(j)[1]), sum(model.transitions.into(j)[1]), rtol=1e-13)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("limits", [(5,), (3, 4, 2), (2, 25, 9), (3, 2, 40, 11)], ids=str)
def test_a_step_of_a_recurrence_and_the_sums_it_adds_to(limits, backward):
    """factor x Q + keep x + weight previous, and multiples of x and of it added to one sum or two, in every form."""
    model = box(limits)
    matrix = model.to_scipy()
    rng = np.random.default_rng(33)
    x, previous, first, second = rng.random((4, model.size))
    mix = np.array([0.3, -1.2, 2.0, 0.7])
    step = 0.25 * (matrix @ x if backward else matrix.T @ x) + 1.5 * x - 0.8 * previous
    for form in (model, model.written_out(), model.written_out().coded()):
        for many in (0, 2, 4):
            sums = [first.copy(), second.copy()]
            given = (mix[:many], *sums) if many else None
            found = form.recurrence(
                x, factor=0.25, keep=1.5, previous=previous, weight=-0.8, backward=backward, sums=given
            )
            np.testing.assert_allclose(found, step, rtol=1e-12, atol=1e-12)
            wanted = first + (mix[0] * x + mix[1] * step if many else 0)
            np.testing.assert_allclose(sums[0], wanted, rtol=1e-12, atol=1e-12)
            wanted = second + (mix[2] * x + mix[3] * step if many == 4 else 0)
            np.testing.assert_allclose(sums[1], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("limits", SHAPES, ids=str)
def test_a_step_on_one_color_is_two_steps_of_the_jump_chain(limits):
    model = box(limits)
    chain = model.written_out().to_scipy()
    jumps = csr_array(chain + np.diag(model.exit_rates) if model.size < 2000 else chain)
    if model.size >= 2000:
        jumps.setdiag(0)
    colors = model.coloring
    pi = np.random.default_rng(10).random(model.size)
    even = np.where(colors == 0, pi, 0)
    odd = np.where(colors == 1, (even @ jumps) / model.exit_rates, 0)
    after = np.where(colors == 0, (odd @ jumps) / model.exit_rates, 0)
    for form in (model, model.written_out(), model.coded()):
        half = reduction(form)
        assert half.halved
        p = half.restrict(pi)
        whole = half.expand(p)
        np.testing.assert_allclose(whole, (even + odd) / (even + odd).sum(), rtol=1e-12)
        image = half.step(p)
        np.testing.assert_allclose(
            half.expand(image)[colors == 0] / half.expand(image)[0], after[colors == 0] / after[0], rtol=1e-11
        )
        shadow, out = np.random.default_rng(11).random(half.size), np.empty(half.size)
        shadow[half.restrict(np.ones(model.size)) == 0] = 0
        dots = half.difference(p, shadow, out)
        np.testing.assert_allclose(out, p - image, atol=1e-13)
        np.testing.assert_allclose(dots, [shadow @ out, p @ out, out @ out, shadow @ p], rtol=1e-10, atol=1e-12)
        flow = model.forward(whole)
        defect = np.abs(flow).sum() / (whole @ model.exit_rates)
        assert half.defect(image - p, p) == pytest.approx(defect, rel=1e-9)
        np.testing.assert_allclose(
            half.exit_rates[half.restrict(np.ones(model.size)) > 0].sum(), model.exit_rates[colors == 0].sum()
        )


def test_a_chain_without_two_colors_is_taken_whole():
    model = tandem_network([2.0, 1.5], 1.2, total_capacity=6)
    half = reduction(model)
    assert not half.halved
    pi = ctmc.solve(ctmc.Stationary(model), "gth").value
    np.testing.assert_allclose(half.step(half.restrict(pi)), pi, rtol=1e-12)
    guess = np.random.default_rng(12).random(model.size)
    defect = np.abs(model.forward(guess)).sum() / (guess @ model.exit_rates)
    assert half.defect(half.step(guess) - guess, guess) == pytest.approx(defect, rel=1e-12)


@pytest.mark.parametrize("form", ["lattice", "float64 CSR", "value-coded CSR"])
def test_the_number_of_threads_changes_no_bit(form):
    model = supermarket(np.linspace(1, 2, 4), 4.8, 2, 11, sampling="with_replacement")
    model = {"lattice": model, "float64 CSR": model.written_out(), "value-coded CSR": model.coded()}[form]
    v = np.random.default_rng(13).random(model.size)
    found = []
    for threads in range(1, numba.config.NUMBA_NUM_THREADS + 1):
        with limited_threads(threads):
            answer = ctmc.solve(ctmc.Stationary(model), "bicgstab")
            found.append((model.forward(v).tobytes(), answer.value.tobytes(), answer.history["defect"].tobytes()))
    assert len(set(found)) == 1


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_coded_rows_take_sources_of_both_widths(width):
    plain = box((3, 4, 5)).written_out()
    rows = plain.coded().transitions
    wide = Generator(plain.space, CodedTransitions(rows.indptr, rows.sources.astype(width), rows.codes, rows.values))
    assert wide.transitions.sources.dtype == width
    v = np.random.default_rng(14).random(plain.size)
    np.testing.assert_allclose(wide.forward(v), plain.forward(v), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(wide.backward(v), plain.backward(v), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(reduction(wide).step(v[:60]), reduction(plain).step(v[:60]), rtol=1e-12)


def test_many_different_rates_are_not_coded():
    rng = np.random.default_rng(15)
    chain = Generator.from_transitions(
        np.arange(70_000), np.roll(np.arange(70_000), -1), rng.random(70_000) + 1, Lattice((69_999,))
    )
    assert chain.coded() is chain
    few = Generator.from_transitions(np.arange(300), np.roll(np.arange(300), -1), np.arange(300) + 1.0, Lattice((299,)))
    assert few.coded().transitions.codes.dtype == np.uint16


SPACE = Lattice((2, 1))


def lattice(**changes):
    weights = np.array([[0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1]], dtype=np.uint8)
    parts = {
        "weights": weights, "unit": np.array([0.5]), "departures": np.ones((2, 3)), "sides": np.array([3, 2]),
        "strides": SPACE.strides, **changes,
    }  # fmt: skip
    return LatticeTransitions(**parts)


WRONG = [
    (SPACE, lattice(weights=np.zeros((2, 5), np.uint8)), "weights have shape"),
    (SPACE, lattice(weights=np.zeros((2, 6))), "weights have shape"),
    (SPACE, lattice(weights=np.ones((2, 6), np.uint8)), "coordinate 0 is 0"),
    (SPACE, lattice(unit=np.array([0.0])), "unit is"),
    (SPACE, lattice(unit=np.array([np.inf])), "unit is"),
    (SPACE, lattice(departures=np.ones((2, 2))), "departures have shape"),
    (SPACE, lattice(departures=-np.ones((2, 3))), "departures of coordinate 0"),
    (SPACE, lattice(sides=np.array([2, 3])), "sides are"),
    (SPACE, lattice(strides=np.array([1, 3])), "sides are"),
    (Lattice((2, 1), total=2), lattice(), "a box without a cap"),
    (Lattice((5,)), lattice(), "weights have shape"),
    (Lattice((1,)), CodedTransitions(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.array([0, 3], np.uint8), np.ones(2)), "a code is 3"),
    (Lattice((1,)), CodedTransitions(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.array([0, 1], np.uint8), np.array([1.0, 0.0])), "a rate is 0.0"),
    (Lattice((1,)), CodedTransitions(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.array([0, 1]), np.ones(2)), "codes"),
    (Lattice((1,)), FloatTransitions(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones(2, np.float32)), "rates have the type"),
    (Lattice((1,)), "rates", "transitions is a str"),
]  # fmt: skip


@pytest.mark.parametrize(("space", "transitions", "sentence"), WRONG, ids=range(len(WRONG)))
def test_wrong_transitions_are_refused(space, transitions, sentence):
    with pytest.raises(ModelError, match=sentence):
        Generator(space, transitions)


def test_a_value_that_no_entry_has_does_no_harm():
    codes = CodedTransitions(
        np.array([0, 1, 2]), np.array([1, 0], np.int32), np.array([0, 2], np.uint8), np.array([1.0, 0, 2])
    )
    assert Generator(Lattice((1,)), codes).exit_rates.tolist() == [2.0, 1.0]


def test_writing_out_asks_for_memory():
    model = box((9, 9, 9))
    model.written_out().coded().to_scipy()
    model.to_scipy()
    assert "expanded" not in model._found  # what may be large is kept only where it is asked for by name
    with ctmc.limited_memory("20KiB"), pytest.raises(ModelError, match="written out"):
        model.rates  # noqa: B018
    assert len(model.rates) == model.entries


DESIGNS = [
    {"service_rates": rates, "choices": choices, "sampling": sampling, "overflow": overflow, "capacity": capacity, "ties": ties}
    for (rates, capacity), choices, sampling, overflow, ties in itertools.islice(
        itertools.product(
            [([3, 2, 1], [4, 6, 3]), ([1.0, 2.0], 7), ([2, 2, 1, 1], 3), ([1.5], 9), ([1, 2, 3, 4, 5], [1, 2, 1, 3, 2])],
            [1, 2, 3],
            ["with_replacement", "without_replacement"],
            ["lost", "rerouted"],
            ["random", ("shortest", "fastest")],
        ),
        0, None, 3,
    )
    if sampling == "with_replacement" or choices <= len(rates)
]  # fmt: skip


@pytest.mark.parametrize("design", DESIGNS, ids=range(len(DESIGNS)))
def test_the_supermarket_as_a_lattice_is_that_by_rows(design, monkeypatch):
    """Two builders of the same chain: numbers of one unit row by row, and rates found at each destination."""
    model = supermarket(arrival_rate=2.5, **design)
    assert model.representation == "lattice"
    monkeypatch.setattr("builders.supermarket.lattice_transitions", lambda *arguments: None)
    rows = supermarket(arrival_rate=2.5, **design)
    assert rows.representation == "value-coded CSR"
    np.testing.assert_array_equal(model.indptr, rows.indptr)
    np.testing.assert_array_equal(model.sources, rows.sources)
    np.testing.assert_allclose(model.rates, rows.rates, rtol=1e-14)
    np.testing.assert_allclose(model.exit_rates, rows.exit_rates, rtol=1e-14)


def test_weights_that_need_more_than_sixteen_bits_are_rates_by_rows():
    model = supermarket([1, 2, 3], 4.0, 12, 3, sampling="with_replacement")
    assert model.representation == "value-coded CSR"
    assert supermarket([1, 2, 3], 4.0, 7, 3, sampling="with_replacement").transitions.weights.dtype == np.uint16
