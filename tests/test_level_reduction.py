"""Linear level reduction: relative accuracy, levels found by themselves, growing levels, boundaries, last levels."""

import numpy as np
import pytest
from qbd_gallery import MODELS, slowly_modulated, tandem_with_blocking

import ctmc
from ctmc.advise import advise
from ctmc.defaults import default_solver
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.levels import levels
from ctmc.model.qbd import QBD
from ctmc.problem import Stationary
from solvers.qbd.level_reduction import reduce_levels


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


def machines(*names):
    """Jobs that wait for machines which break down: 30 x 400 states, its coordinates in either order."""

    def transitions(state):
        found = dict(zip(names, state, strict=True))
        up, waiting = found["machines"], found["waiting"]
        changes = [(0, 1, 2.0)] if waiting < 399 else []
        changes += [(0, -1, 0.3 * min(up, waiting))] if up and waiting else []
        changes += [(-1, 0, 0.05 * up)] if up else []
        changes += [(1, 0, 0.1)] if up < 29 else []
        for more, jobs, rate in changes:
            moved = {"machines": up + more, "waiting": waiting + jobs}
            yield tuple(moved[name] for name in names), rate

    return ctmc.build("reachable", transitions=transitions, initial=(0, 0), variables=list(names))


@pytest.mark.parametrize("names", [("machines", "waiting"), ("waiting", "machines")])
def test_a_long_and_narrow_chain_is_eliminated_whatever_its_first_coordinate(names):
    """Four hundred levels of thirty states, and not thirty of four hundred; the default takes it, and so does the advice."""
    model = machines(*names)
    assert np.bincount(levels(model)).tolist() == [30] * 400
    solution = ctmc.solve(Stationary(model))
    assert (solution.solver, solution.status.name) == ("LevelReduction()", "CONVERGED")
    assert advise(model, timed=False).solver == "level_reduction"
    # machines by themselves, with service or without: births 0.1, deaths 0.05 each
    alone = gth(np.diag(np.full(29, 0.1), 1) + np.diag(0.05 * np.arange(1, 30), -1))
    assert solution.expected("machines") == pytest.approx(alone @ np.arange(30), rel=1e-12)


def test_chains_that_are_short_or_streamed_keep_their_default():
    assert (
        default_solver(
            Stationary(ctmc.build("tandem_network", service_rates=[2.0, 1.8], arrival_rate=1.6, capacity=60))
        )
        == "bicgstab"
    )
    assert (
        default_solver(Stationary(ctmc.build("birth_death", births=[1.0] * 25_000, deaths=[2.0] * 25_000)))
        == "bicgstab"
    )
