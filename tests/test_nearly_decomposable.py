"""nearly_decomposable and courtois against the distribution that was prescribed and published values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from gallery_examples import BLOCKS, stationary

from builders.courtois import courtois
from builders.nearly_decomposable import nearly_decomposable, prescribed_distribution


@pytest.mark.parametrize("coupling", [1.0, 1e-4, 1e-12])
@pytest.mark.parametrize(
    ("blocks", "size", "neighbours", "decades"),
    [(4, 5, 2, 1.0), (2, 7, 99, 0.0), (6, 3, 1, 8.0), (9, 1, 1, 3.0), (1, 9, 2, 5.0)],
)
def test_the_prescribed_distribution_is_stationary(coupling, blocks, size, neighbours, decades):
    parameters = {"blocks": blocks, "block_size": size, "coupling": coupling, "seed": 20250613, "decades": decades}
    model = nearly_decomposable(**parameters, neighbours=neighbours)
    known = prescribed_distribution(**parameters)
    assert known.sum() == pytest.approx(1, rel=1e-14)
    assert known.max() / known.min() <= 10**decades
    rates = model.to_scipy().toarray()
    np.fill_diagonal(rates, 0.0)
    flows = known[:, None] * rates
    np.testing.assert_allclose(flows, flows.T, rtol=1e-13, atol=0)  # detailed balance, pair by pair
    # who is joined to whom, and how fast
    block, place = np.divmod(np.arange(blocks * size), size)
    inside = (
        (block[:, None] == block) & (abs(place[:, None] - place) <= neighbours) & ~np.eye(blocks * size, dtype=bool)
    )
    between = (abs(block[:, None] - block) == 1) & (place[:, None] == place)
    np.testing.assert_array_equal(rates > 0, inside | between)
    pace = rates / np.sqrt(known / known[:, None])
    assert (pace[inside] >= 0.5 * (1 - 1e-12)).all()
    assert (pace[inside] < 1.5 * (1 + 1e-12)).all()
    assert (pace[between] >= 0.5 * coupling * (1 - 1e-12)).all()
    assert (pace[between] < 1.5 * coupling * (1 + 1e-12)).all()
    solution = stationary(model)
    np.testing.assert_allclose(solution.value, known, rtol=1e-11)
    found = solution.measures()
    assert found["exchange_rate"] == pytest.approx(flows[between].sum(), rel=1e-11, abs=0)
    assert found["largest_relative_error"] < 1e-11


def test_random_numbers_of_blocks():
    """Another seed is another chain, another coupling the same one with slower moves between blocks; numbers are uniform."""
    chain, other = nearly_decomposable(**BLOCKS), nearly_decomposable(**{**BLOCKS, "seed": 1978})
    assert not np.intersect1d(chain.transitions.rates, other.transitions.rates).size
    np.testing.assert_array_equal(
        chain.with_rates(coupling=0.25).to_scipy().toarray(),
        nearly_decomposable(**{**BLOCKS, "coupling": 0.25}).to_scipy().toarray(),
    )
    weights = prescribed_distribution(blocks=100, block_size=100, seed=5077)
    exponents = np.sort(np.log10(weights / weights.max()))
    distance = np.abs(exponents - (np.arange(10_000) + 0.5) / 10_000 + 1).max()
    assert distance < 1.63 / 100 + 1e-3  # Kolmogorov's test at one percent; the largest stands for 1
    pairs = nearly_decomposable(
        blocks=1, block_size=200, coupling=1, seed=5078, neighbours=200, decades=0
    ).transitions.rates
    assert np.abs(np.sort(pairs) - 0.5 - (np.arange(len(pairs)) + 0.5) / len(pairs)).max() < 1.63 / math.sqrt(
        len(pairs) / 2
    )
    assert np.unique(pairs).size == len(pairs) // 2  # each pair has its own, the same both ways


def test_errors_of_an_answer_are_measured():
    parameters = {**BLOCKS, "decades": 1.5}
    solution, known = stationary(nearly_decomposable(**parameters)), prescribed_distribution(**parameters)
    wrong = np.full(20, 0.05)
    found = replace(solution, value=wrong).measures()
    assert found["misplaced_mass"] == pytest.approx(np.abs(wrong - known).sum() / 2, rel=1e-12)
    assert found["largest_relative_error"] == pytest.approx((np.abs(wrong - known) / known).max(), rel=1e-12)
    blocks = known.reshape(4, 5).sum(axis=1)
    assert found["largest_block_error"] == pytest.approx((np.abs(0.25 - blocks) / blocks).max(), rel=1e-12)


def test_courtois():
    """The stationary vector to the five digits that are published, and the degree of coupling."""
    chain = courtois()
    solution = stationary(chain)
    published = [0.08928, 0.09276, 0.04049, 0.15853, 0.11894, 0.12039, 0.27780, 0.10182]
    np.testing.assert_allclose(solution.value, published, rtol=0, atol=5.01e-6)
    np.testing.assert_allclose(
        solution.measures()["block_probability"], np.add.reduceat(solution.value, [0, 3, 5]), rtol=1e-13
    )
    rates = chain.to_scipy().toarray()
    np.fill_diagonal(rates, 0.0)
    block = chain.space.table[:, 0]
    leaving = (rates * (block[:, None] != block)).sum(axis=1)
    assert leaving.max() == pytest.approx(1e-3, rel=1e-12)
    assert chain.exit_rates.max() < 1
    slow = courtois(coupling=1e-9).to_scipy().toarray()
    np.fill_diagonal(slow, 0.0)
    np.testing.assert_allclose(slow, np.where(block[:, None] == block, rates, 1e-9 * rates), rtol=1e-14)
