"""Linear level reduction: relative accuracy, levels found by themselves, growing levels, boundaries, last levels."""

import numpy as np
import pytest
from qbd_gallery import MODELS, slowly_modulated, tandem_with_blocking

import ctmc
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.qbd import QBD
from ctmc.problem import Stationary
from solvers.qbd.level_reduction import levels, reduce_levels


@pytest.mark.parametrize("name", ["MAP/H2/1", "tandem with blocking", "uneven boundary", "slowly modulated"])
def test_truncated_queues_to_full_relative_accuracy(name):
    chain = MODELS[name]().truncate(levels=40)
    np.testing.assert_array_equal(levels(chain), chain.space.states(np.arange(chain.size))[:, 0])
    exact = gth(chain.to_scipy().toarray())
    np.testing.assert_allclose(ctmc.solve(Stationary(chain), "level_reduction").value, exact, rtol=1e-12)


@pytest.mark.parametrize("load", [1e-3, 0.9999, 7.0])
def test_long_chains(load):
    n = 1500
    chain = QBD.from_blocks([[load]], [[-1 - load]], [[1.0]]).truncate(levels=n)
    found = reduce_levels(chain, levels(chain))
    steps = np.arange(n) if load < 1 else np.arange(n) - n + 1
    exact = float(load) ** steps
    seen = exact > 1e-280
    np.testing.assert_allclose(found[seen], (exact / exact.sum())[seen], rtol=1e-11)


def test_chains_without_levels_are_cut_breadth_first():
    rng = np.random.default_rng(818)
    rates = rng.random((120, 120)) * (rng.random((120, 120)) < 0.03) + np.roll(np.eye(120), 1, axis=1)
    chain = Generator.from_matrix(rates - np.diag(np.diag(rates)))
    level_of = levels(chain)
    targets = np.repeat(np.arange(chain.size), np.diff(chain.indptr))
    assert np.abs(level_of[chain.sources] - level_of[targets]).max() == 1
    np.testing.assert_allclose(reduce_levels(chain, level_of), gth(chain.to_scipy().toarray()), rtol=1e-12)


def test_levels_that_skip_numbers():
    # batches of two: the first variable moves by two at a time, which is one level of the chain
    model = ctmc.build(
        "reachable",
        transitions=lambda state: [((min(state[0] + 2, 8),), 1.0), ((max(state[0] - 2, 0),), 2.0)],
        initial=(0,),
    )
    assert levels(model).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", ["logarithmic_reduction", "rank_one"])
def test_as_boundary_solver(method):
    queue = MODELS["M/E3/1"]() if method == "rank_one" else MODELS["uneven boundary"]()
    found = ctmc.solve(Stationary(queue), f"{method}(boundary_solver='level_reduction')").value
    known = ctmc.solve(Stationary(queue)).value
    for k in range(5):
        np.testing.assert_allclose(found.level(k), known.level(k), rtol=1e-12)


def test_last_level_with_blocks_of_its_own():
    queue = tandem_with_blocking(0.6, 1.2, 1.0, 3)
    down, local = 2 * queue.down.toarray(), np.eye(4, k=-1) * 0.5
    local -= np.diag((local + down).sum(axis=1))
    chain = queue.truncate(levels=9, last=(down, local))
    assert "last with blocks of its own" in chain.notes[-1]
    whole = chain.to_scipy().toarray()
    np.testing.assert_array_equal(whole[-4:, -8:-4], down)
    np.testing.assert_allclose(ctmc.solve(Stationary(chain), "level_reduction").value, gth(whole), rtol=1e-12)
    with pytest.raises(ctmc.ModelError, match="allowed are two blocks"):
        queue.truncate(levels=9, last=(down,))
    with pytest.raises(ctmc.ModelError, match="shapes"):
        queue.truncate(levels=9, last=(down[:2], local))
    with pytest.raises(ctmc.ModelError, match="of the last level sums to"):
        queue.truncate(levels=9, last=(down, 2 * local))


def test_memory_is_asked_for_first():
    chain = slowly_modulated(40, 0.5).truncate(levels=30)
    with (
        ctmc.limited_memory("200kB"),
        pytest.raises(ctmc.ModelError, match="level_reduction, which keeps a dense matrix"),
    ):
        reduce_levels(chain, levels(chain))
