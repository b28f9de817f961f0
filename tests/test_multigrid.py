"""Multigrid: both hierarchies against elimination, and every way in which it may fail."""

from __future__ import annotations

import numpy as np
import pytest
from optional_libraries import skipped_without_library

import ctmc
from builders.birth_death import birth_death
from builders.supermarket import supermarket
from builders.tandem_network import tandem_network
from ctmc.errors import ModelError
from ctmc.model.elimination import gth
from ctmc.problem import Stationary
from ctmc.solution import Status
from solvers.stationary import multigrid
from solvers.stationary.multigrid import HIERARCHIES, Multigrid, v_cycle

pytestmark = list(skipped_without_library("multigrid"))

TANDEM = tandem_network([2.0, 1.5, 3.0], 1.2, total_capacity=14)
MARKET = supermarket([1.0, 1.5, 2.0], 3.6, choices=2, capacity=9, sampling="with_replacement")


@pytest.mark.parametrize("chain", [TANDEM, MARKET], ids=["tandem", "market"])
@pytest.mark.parametrize("hierarchy", HIERARCHIES)
def test_it_agrees_with_elimination(chain, hierarchy):
    known = gth(chain.to_scipy().toarray())
    solution = ctmc.solve(Stationary(chain), Multigrid(hierarchy=hierarchy))
    np.testing.assert_allclose(solution.value, known, atol=1e-11)
    likely = known > 1e-6
    np.testing.assert_allclose(solution.value[likely], known[likely], rtol=1e-6)
    again = ctmc.solve(Stationary(chain), Multigrid(hierarchy=hierarchy))
    assert (again.value == solution.value).all()


@pytest.mark.parametrize("load", [0.9, 0.99])
def test_long_queues_take_no_longer(load):
    """Where a Krylov method alone needs as many products as the queue is long."""
    iterations = []
    for size in (1000, 8000):
        chain = birth_death([load] * size, [1.0] * size)
        solution = ctmc.solve(Stationary(chain), "multigrid")
        weights = load ** np.arange(size + 1)
        np.testing.assert_allclose(solution.value, weights / weights.sum(), atol=1e-8)
        iterations.append(solution.iterations)
    assert max(iterations) <= 20


@pytest.mark.parametrize("hierarchy", HIERARCHIES)
def test_a_cycle_is_linear_and_reduces_what_is_left(hierarchy):
    pi = np.full(TANDEM.size, 1 / TANDEM.size)
    apply = v_cycle(TANDEM, hierarchy, pi)
    x, y = np.random.default_rng(1009).standard_normal((2, TANDEM.size))
    np.testing.assert_allclose(apply(x + 2 * y), apply(x) + 2 * apply(y), atol=1e-8)
    right = x - x.mean()
    left = right + TANDEM.forward(apply(right) / TANDEM.exit_rates)
    assert np.linalg.norm(left) < 0.5 * np.linalg.norm(right)


@pytest.mark.parametrize("hierarchy", HIERARCHIES)
def test_it_leaves_no_trace_in_the_program(hierarchy, capfd):
    """pyamg draws from NumPy's global generator, and prints in one of its interpolations."""
    np.random.seed(1019)  # noqa: NPY002
    _, before, place, *_ = np.random.get_state()  # noqa: NPY002
    chain = supermarket([3, 2, 1], 3, choices=2, preferences=[0.2, 0.3, 0.5], capacity=9, selection="weighted")
    assert ctmc.solve(Stationary(chain), Multigrid(hierarchy=hierarchy)).converged
    _, after, new_place, *_ = np.random.get_state()  # noqa: NPY002
    assert (after == before).all()
    assert new_place == place
    assert capfd.readouterr() == ("", "")


def test_limits_and_the_monitor():
    for limit in (1, 4):
        solution = ctmc.solve(Stationary(TANDEM), Multigrid(max_iterations=limit), check=False)
        assert solution.status is Status.ITERATION_LIMIT
        assert solution.iterations == limit
    seen = []
    stopped = ctmc.solve(
        Stationary(TANDEM), Multigrid(restart=3), check=False,
        monitor=lambda iteration, defect: seen.append(iteration) or len(seen) == 3,
    )  # fmt: skip
    assert stopped.status is Status.STOPPED
    assert seen == [0, 3, 6]


def test_a_warm_start_saves_iterations():
    near = gth(tandem_network([2.0, 1.5, 3.0], 1.20001, total_capacity=14).to_scipy().toarray())
    cold, warm = (ctmc.solve(Stationary(TANDEM), "multigrid", start=start) for start in (None, near))
    assert warm.iterations < cold.iterations
    assert ctmc.solve(Stationary(TANDEM), "multigrid", start=cold.value).iterations <= 1


def test_cycles_are_counted_as_what_they_cost():
    solution = ctmc.solve(Stationary(TANDEM), "multigrid")
    assert solution.products > 5 * solution.iterations


# ---- failures ---------------------------------------------------------------------------------------------------------------------


def with_cycle(monkeypatch, apply):
    monkeypatch.setattr(multigrid, "v_cycle", lambda *_: apply)
    return ctmc.solve(Stationary(TANDEM), "multigrid", check=False)


def test_numbers_that_are_not_finite(monkeypatch):
    solution = with_cycle(monkeypatch, lambda y: np.full(TANDEM.size, np.nan))
    assert solution.status is Status.NOT_FINITE


def test_a_cycle_that_does_nothing(monkeypatch):
    solution = with_cycle(monkeypatch, lambda y: np.zeros(TANDEM.size))
    assert solution.status is Status.STAGNATED
    assert len(solution.history) == 1 + multigrid._BARREN_RESTARTS
    np.testing.assert_allclose(solution.value, 1 / TANDEM.size)


def test_a_cycle_that_makes_it_worse(monkeypatch):
    noise = np.random.default_rng(1013)
    solution = with_cycle(monkeypatch, lambda y: 1e3 * noise.standard_normal(TANDEM.size))
    assert solution.status in (Status.STAGNATED, Status.NOT_FINITE)


def test_a_cycle_that_raises(monkeypatch):
    def fails(y):
        raise ZeroDivisionError("no smoother")

    solution = with_cycle(monkeypatch, fails)
    assert solution.status is Status.BREAKDOWN
    assert "ZeroDivisionError: no smoother" in solution.reason


def test_a_hierarchy_that_does_not_get_small(monkeypatch):
    monkeypatch.setattr(multigrid, "_COARSEST", 1)
    import pyamg

    genuine = pyamg.ruge_stuben_solver
    monkeypatch.setattr(pyamg, "ruge_stuben_solver", lambda matrix, **options: genuine(matrix, max_levels=2))
    solution = ctmc.solve(Stationary(TANDEM), "multigrid", check=False)
    assert solution.status is Status.BREAKDOWN
    assert "the coarsest level has" in solution.reason


def test_memory_is_asked_for_first():
    with ctmc.limited_memory("100KiB"), pytest.raises(ModelError, match="multigrid needs"):
        ctmc.solve(Stationary(TANDEM), "multigrid")
