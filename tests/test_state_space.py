"""State spaces: ranking against brute force, both directions, and what does not fit."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctmc.errors import ModelError
from ctmc.model import state_space
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.qbd import QBD
from ctmc.model.state_space import SLAB, Lattice, Listed, Variable

boxes = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(boxes, st.one_of(st.none(), st.integers(0, 12)))
def test_lattice_against_brute_force(limits, total):
    space = Lattice(tuple(limits), total=total)
    expected = [
        state
        for state in itertools.product(*(range(limit + 1) for limit in limits))
        if total is None or sum(state) <= total
    ]
    assert space.size == len(expected)
    np.testing.assert_array_equal(space.states(np.arange(space.size)), expected)
    np.testing.assert_array_equal(space.index(expected), np.arange(space.size))
    around = np.array(list(itertools.product(*(range(-1, limit + 2) for limit in limits))))
    place = {state: k for k, state in enumerate(expected)}
    assert space.find(around).tolist() == [place.get(state, -1) for state in map(tuple, around.tolist())]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_listed_against_a_dictionary(data):
    dimension = data.draw(st.integers(1, 3))
    number = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
    states = data.draw(st.lists(st.tuples(*[number] * dimension), min_size=1, max_size=20, unique=True))
    others = data.draw(st.lists(st.tuples(*[number] * dimension), max_size=20))
    space = Listed(np.array(states))
    place = {state: k for k, state in enumerate(states)}
    wanted = np.array(states + others, dtype=np.int64).reshape(-1, dimension)
    assert space.find(wanted).tolist() == [place.get(state, -1) for state in states + others]
    np.testing.assert_array_equal(space.states(np.arange(len(states))), states)


def test_one_state_and_one_position():
    space = Lattice((3, 2), total=4)
    assert space.index((2, 1)) == 7
    assert isinstance(space.index((2, 1)), int)
    assert space.states(7).tolist() == [2, 1]
    assert Lattice((5,)).index(3) == 3
    assert Lattice((5,)).index(3.0) == 3
    assert Listed(np.array([4, 7])).states(1).tolist() == [7]
    assert space.index(np.empty((0, 2), dtype=int)).shape == (0,)


def test_a_total_that_cuts_nothing_is_dropped():
    assert Lattice((3, 2), total=5).total is None
    assert Lattice((3, 2), total=5) == Lattice((3, 2))


@pytest.mark.parametrize(
    ("space", "state"),
    [
        (Lattice((9999,) * 3), (9999, 0, 1)),
        (Lattice((9999,) * 3, total=20_000), (9999, 9999, 2)),
        (Lattice((2**31,) * 2), (2**31, 2**31 - 1)),
        (Lattice((2**62,)), (2**62,)),
    ],
)
def test_huge_lattices_are_indexed_without_allocating(space, state):
    """10^12 states and more, and positions that need 64 bits."""
    position = space.index(state)
    assert position > 2**39
    assert space.states(position).tolist() == list(state)
    rng = np.random.default_rng(20261)
    positions = rng.integers(0, space.size, 50)
    np.testing.assert_array_equal(space.index(space.states(positions)), positions)
    assert space.index(space.states(space.size - 1)) == space.size - 1


def test_counting_table():
    space = Lattice((2, 3, 1), total=4)
    for first in range(4):
        for room in range(5):
            choices = itertools.product(*(range(limit + 1) for limit in space.limits[first:]))
            assert space.counts[first, room + 1] == sum(sum(choice) <= room for choice in choices)
    assert (space.counts[:, 0] == 0).all()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=3),
    st.one_of(st.none(), st.integers(0, 10)),
)
def test_ordered_classes_against_brute_force(parts, total):
    classes = tuple(length for length, _ in parts)
    limits = tuple(limit for length, limit in parts for _ in range(length))
    space = Lattice(limits, total=total, classes=classes)
    number = np.repeat(np.arange(len(classes)), classes)
    falls = [i for i in range(1, len(limits)) if number[i] == number[i - 1]]
    expected = [
        state
        for state in itertools.product(*(range(limit + 1) for limit in limits))
        if (total is None or sum(state) <= total) and all(state[i] <= state[i - 1] for i in falls)
    ]
    assert space.size == len(expected)
    np.testing.assert_array_equal(space.states(np.arange(space.size)), expected)
    np.testing.assert_array_equal(space.index(expected), np.arange(space.size))
    around = np.array(
        list(itertools.product(*(range(-1, limit + 2) for limit in limits[:6]), *([0],) * (len(limits) - 6)))
    )
    place = {state: k for k, state in enumerate(expected)}
    assert space.find(around).tolist() == [place.get(state, -1) for state in map(tuple, around.tolist())]


def test_ordered_classes_are_counted_exactly():
    assert Lattice((10,) * 20, classes=(20,)).size == comb(30, 10) == 30_045_015
    assert Lattice((4,) * 3 + (6,) * 2, classes=(3, 2)).size == comb(7, 3) * comb(8, 2)
    assert Lattice((5,) * 3 + (2, 7), classes=(3, 1, 1)).size == comb(8, 3) * 3 * 8
    # partitions of 0 .. 5: 1 + 1 + 2 + 3 + 5 + 7
    assert Lattice((9,) * 9, total=5, classes=(9,)).size == 19


@pytest.mark.parametrize("total", [None, 60])
def test_large_ordered_classes_are_ranked_without_allocating(total):
    space = Lattice((20,) * 30 + (3,) * 2, total=total, classes=(30, 2))
    positions = np.random.default_rng(20262).integers(0, space.size, 200)
    states = space.states(positions)
    np.testing.assert_array_equal(space.index(states), positions)
    order = np.lexsort(states.T[::-1])
    assert (np.diff(positions[order]) >= 0).all()  # lexicographic
    assert space.states(space.size - 1).tolist() == ([20] * 30 + [3] * 2 if total is None else [20] * 3 + [0] * 29)


def test_classes_of_one_coordinate_are_none():
    assert Lattice((2, 3), classes=(1, 1)) == Lattice((2, 3))
    assert Lattice((2, 2), classes=(2,)) != Lattice((2, 2))
    assert "non-increasing in coordinates 1..2, sum" in Lattice((3, 2, 2), total=5, classes=(1, 2)).describe()
    assert "non-increasing" not in Lattice((3, 2, 2), total=5).describe()


@pytest.mark.parametrize("table", ["counts", "below", "strides"])
def test_tables_of_plain_lattices_are_refused_with_ordered_classes(table):
    with pytest.raises(ModelError, match="ordered classes has no"):
        getattr(Lattice((2, 2), classes=(2,)), table)


def test_strides():
    space = Lattice((2, 3, 1))
    assert space.strides.tolist() == [8, 2, 1]


def test_slabs_cover_all_in_order():
    space = Lattice((SLAB, 2))
    seen = 0
    for positions, states in space.slabs():
        assert positions.start == seen
        assert len(states) <= SLAB
        np.testing.assert_array_equal(states, space.states(np.arange(positions.start, positions.stop)))
        seen = positions.stop
    assert seen == space.size == 3 * (SLAB + 1)


def test_columns_and_names():
    variables = (Variable("level"), Variable("queue_length", 2))
    for space in (Lattice((1, 2, 2), variables=variables), Listed(np.array([[0, 2, 1], [1, 0, 0]]), variables)):
        assert space.dimension == 3
        columns = space.columns(np.array([[0, 2, 1], [1, 0, 0]]))
        assert columns["level"].tolist() == [0, 1]
        assert columns["queue_length"].tolist() == [[2, 1], [0, 0]]
        assert "queue_length[0..1]" in space.describe()
        assert "level" in repr(space)
    assert Lattice((1, 2)).columns(np.array([[0, 1]]))["x"].tolist() == [[0, 1]]


def test_listed_is_a_frozen_copy():
    table = np.array([[1, 2], [3, 4]])
    space = Listed(table)
    table[0] = 9
    assert space.table[0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        space.table[0] = 5


TWICE = (Variable("a"), Variable("b"), Variable("b"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Lattice(()), ["()", ">= 0"]),
        (lambda: Lattice((2, -1)), ["(2, -1)", ">= 0"]),
        (lambda: Lattice((2, 2), total=-1), ["total is -1"]),
        (lambda: Lattice((2**40, 2**40)), ["10^24 states", "2^63 - 1"]),
        (lambda: Lattice((10**12, 10**12), total=10**12), ["total is 1,000,000,000,000"]),
        (lambda: Lattice((2, 2), variables=(Variable("a"),)), ["1 coordinates", "allowed are 2"]),
        (lambda: Lattice((2, 2), classes=(3,)), ["classes is (3,)", "sum to the 2 coordinates"]),
        (lambda: Lattice((2, 2), classes=(2, 0)), ["classes is (2, 0)", ">= 1"]),
        (lambda: Lattice((2, 1), classes=(2,)), ["limits (2, 1)", "the same limit"]),
        (lambda: Lattice((99,) * 99, total=5000, classes=(99,)), ["50,004,999 numbers", "allowed are 10,000,000"]),
        (lambda: Listed(np.empty((0, 2), dtype=int)), ["[]", "one for each state"]),
        (lambda: Listed(np.array([[0.5]])), ["whole numbers"]),
        (lambda: Listed([[1], [1, 2]]), ["whole numbers"]),
        (lambda: Listed(np.array([[2**63]], dtype=np.uint64)), ["whole numbers"]),
        (lambda: Listed(np.zeros((2, 2, 2), dtype=int)), ["rows of whole numbers"]),
        (lambda: Listed(np.array([[1, 2], [3, 4], [1, 2]])), ["(1, 2)", "twice"]),
        (lambda: Listed(np.array([[2**62, -(2**62)], [-(2**62), 5], [2**62, -(2**62)]])), [str(2**62), "twice"]),
        (lambda: Listed(np.array([[1, 2]]), (Variable("a"),)), ["1 coordinates", "2"]),
        (lambda: Lattice((1, 1, 2), variables=TWICE), ["variables has the name 'b' twice"]),
        (lambda: Listed(np.array([[1, 2, 3]]), TWICE), ["variables has the name 'b' twice"]),
        (lambda: QBD.from_blocks([[1]], [[-3]], [[2]], variables=TWICE), ["variables has the name 'b' twice"]),
        (lambda: LevelDependentQBD(lambda k: (None, 0, 0), variables=TWICE), ["variables has the name 'b' twice"]),
    ],
)
def test_bad_spaces(make, words):
    with pytest.raises(ModelError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    "space",
    [Lattice((2, 2), total=3), Lattice((2, 2), classes=(2,), total=3), Listed(np.array([[0, 0], [2, 1], [1, 2]]))],
)
@pytest.mark.parametrize(
    ("state", "words"),
    [
        ((2, 2), ["(2, 2)", "not in the state space"]),
        ((-1, 0), ["(-1, 0)"]),
        ([(0, 0), (5, 5)], ["(5, 5)"]),
        ((1,), ["(1,)", "2 whole numbers"]),
        ((1, 2, 0), ["(1, 2, 0)"]),
        (3, ["3 does not fit"]),
        ((0.5, 0), ["(0.5, 0)", "whole numbers"]),
        ((np.nan, 0), ["nan"]),
        ((np.inf, 0), ["inf"]),
        ((1e300, 0), ["1e+300"]),
        ((2**70, 0), [str(2**70)]),
        ((True, False), ["True"]),
        ("ab", ["ab"]),
        (None, ["None"]),
        ([[1], [1, 2]], ["[[1], [1, 2]]"]),
        (np.zeros((2, 2, 2), dtype=int), ["does not fit"]),
        ("\x1b[31m" * 50, ["\\x1b", "..."]),
    ],
)
def test_states_outside(space, state, words):
    with pytest.raises(ModelError) as caught:
        space.index(state)
    assert all(word in str(caught.value) for word in words), caught.value
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("space", [Lattice((2, 2)), Lattice((2, 2), total=3), Listed(np.arange(9))])
@pytest.mark.parametrize("position", [-1, 9, [0, 10**15]])
def test_positions_outside(space, position):
    with pytest.raises(ModelError, match="is outside the state space; allowed is 0 to"):
        space.states(position)


@pytest.mark.parametrize(
    "space",
    [
        Lattice((5, 4, 3), total=7),
        Lattice((9, 9, 9, 4), total=14, classes=(3, 1)),
        Lattice((4, 9, 9, 9), classes=(1, 3)),
        Lattice((7,), total=3),
    ],
    ids=str,
)
def test_slabs_of_capped_and_ordered_lattices_are_found_by_counting_up(space, monkeypatch):
    monkeypatch.setattr(state_space, "SLAB", 100)
    expected = space.states(np.arange(space.size))
    found = list(space.slabs())
    np.testing.assert_array_equal(np.concatenate([states for _, states in found]), expected)
    for positions, states in found:
        np.testing.assert_array_equal(states, expected[positions])
