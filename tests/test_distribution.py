"""Distributions in whatever form is at hand."""

from __future__ import annotations

import numpy as np
import pytest

from ctmc.errors import ModelError
from ctmc.model.distribution import Distribution, distribution
from ctmc.model.state_space import Lattice, Listed

SPACE = Lattice((2, 2))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1, 2), {5: 1.0}),
        ([1, 2], {5: 1.0}),
        (np.array([1, 2], dtype=np.uint8), {5: 1.0}),
        ({(1, 2): 0.75, (0, 0): 0.25}, {0: 0.25, 5: 0.75}),
        ({(1, 2): 1, (0, 0): 0}, {5: 1.0}),
        ([0, 0.5, 0, 0, 0.5, 0, 0, 0, 0], {1: 0.5, 4: 0.5}),
        (np.full(9, 1 / 9), dict.fromkeys(range(9), 1 / 9)),
        (np.eye(9, dtype=int)[3], {3: 1.0}),
        (Distribution(np.array([2, 3]), np.array([0.5, 0.5])), {2: 0.5, 3: 0.5}),
    ],
)
def test_forms(given, expected):
    found = distribution(SPACE, given)
    assert dict(zip(found.positions.tolist(), found.probabilities.tolist(), strict=True)) == expected
    dense = found.dense(9)
    assert dense.shape == (9,)
    assert {k: dense[k] for k in np.flatnonzero(dense)} == expected
    assert (np.diff(found.positions) > 0).all()


def test_one_coordinate():
    space = Listed(np.array([5, 7, 9]))
    assert distribution(space, 7).positions.tolist() == [1]
    assert distribution(space, [7]).positions.tolist() == [1]
    assert distribution(space, {7: 0.5, 9: 0.5}).positions.tolist() == [1, 2]


def test_small_deviations_are_scaled_away():
    found = distribution(SPACE, {(0, 0): 0.5, (1, 1): 0.5 + 5e-10})
    assert found.probabilities.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((3, 0), ["(3, 0)", "not in the state space"]),
        ((1, 2, 3), ["(3,)", "2 whole numbers", "9 probabilities"]),
        ({(0, 0): 0.5, (9, 9): 0.5}, ["(9, 9)"]),
        ({(0,): 1.0}, ["(0,)"]),
        ({"00": 1.0}, ["00"]),
        ({(0, 0): 0.9}, ["0.9", "sum to 1"]),
        ({(0, 0): 1 + 1e-8}, ["1.00000001"]),
        ({(0, 0): 1.5, (1, 1): -0.5}, ["-0.5", "non-negative"]),
        ({(0, 0): np.nan}, ["nan"]),
        ({(0, 0): np.inf}, ["inf"]),
        ({(0, 0): "all"}, ["'all'", "number"]),
        ({}, ["sum to 0"]),
        (np.full(9, 0.2), ["1.8"]),
        (np.full(8, 0.125), ["(8,)"]),
        (np.full((3, 3), 1 / 9), ["(3, 3)"]),
        (np.full(9, np.nan), ["nan"]),
        ([np.inf] + [0.0] * 8, ["inf"]),
        ([[1], [1, 2]], ["[[1], [1, 2]]"]),
        ("start", ["initial is 'start'"]),
        (None, ["initial is None"]),
        (Distribution(np.array([9]), np.ones(1)), ["0 to 8"]),
        (Distribution(np.array([-1]), np.ones(1)), ["0 to 8"]),
    ],
)
def test_no_distributions(given, words):
    with pytest.raises(ModelError) as caught:
        distribution(SPACE, given)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_state_named_twice():
    with pytest.raises(ModelError, match="names a state twice"):
        distribution(Lattice((2,)), {0: 0.5, (0,): 0.5})
