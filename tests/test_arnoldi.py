"""Arnoldi's method: what ARPACK returns, what it fails to return, limits and starts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence

import ctmc
from builders.birth_death import birth_death
from builders.supermarket import supermarket
from builders.tandem_network import tandem_network
from ctmc.errors import ModelError
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.problem import Stationary
from ctmc.solution import Status
from solvers._reduction import reduction
from solvers.stationary import arnoldi
from solvers.stationary.arnoldi import Arnoldi, best_vector

TANDEM = tandem_network([2.0, 1.5, 3.0], 1.2, total_capacity=12)
MARKET = supermarket([1.0, 1.5, 2.0], 3.6, choices=2, capacity=9, sampling="with_replacement")


def ring(size):
    return Generator.from_matrix(np.roll(np.diag(np.arange(1.0, size + 1)), 1, axis=1))


@pytest.mark.parametrize("chain", [TANDEM, MARKET], ids=["tandem", "market"])
@pytest.mark.parametrize("solver", [Arnoldi(), Arnoldi(basis=8), Arnoldi(basis=60), Arnoldi(patience=1)], ids=repr)
def test_it_agrees_with_elimination(chain, solver):
    known = gth(chain.to_scipy().toarray())
    solution = ctmc.solve(Stationary(chain), solver)
    np.testing.assert_allclose(solution.value, known, rtol=1e-10)
    assert solution.products >= solution.iterations + 2  # those of the start and of the certificate, and the polish


@pytest.mark.parametrize("size", [2, 3, 4, 5, 12, 13, 24, 26, 31, 60])
def test_periodic_chains(size):
    """Eigenvalues all around the unit circle; up to 12 unknowns are LAPACK's, more are ARPACK's."""
    np.testing.assert_allclose(
        ctmc.solve(Stationary(ring(size)), "arnoldi").value, gth(ring(size).to_scipy().toarray()), atol=1e-12
    )


def test_one_color_is_half_the_work():
    chain = supermarket([1.0, 1.5], 2.0, choices=2, capacity=25, sampling="with_replacement")
    assert reduction(chain).size < 0.6 * chain.size
    assert ctmc.solve(Stationary(chain), "arnoldi").products < 150


def test_the_limit_is_kept():
    for limit in (1, 7, 40):
        solution = ctmc.solve(Stationary(TANDEM), Arnoldi(max_iterations=limit), check=False)
        assert solution.status is Status.ITERATION_LIMIT
        assert limit <= solution.iterations <= limit + 10


def test_the_history_is_that_of_the_defect():
    solution = ctmc.solve(Stationary(TANDEM), Arnoldi(basis=10))
    assert (np.diff(solution.history["defect"]) < 0).all()
    assert solution.history["defect"][-1] == pytest.approx(solution.defect, rel=0.5, abs=1e-15)
    assert len(solution.history) > 4
    seen = []
    stopped = ctmc.solve(
        Stationary(TANDEM), Arnoldi(basis=10), monitor=lambda iteration, defect: seen.append(defect) or len(seen) == 3,
        check=False,
    )  # fmt: skip
    assert stopped.status is Status.STOPPED
    assert seen == solution.history["defect"][:3].tolist()


def test_a_warm_start_saves_products():
    near = gth(tandem_network([2.0, 1.5, 3.0], 1.20001, total_capacity=12).to_scipy().toarray())
    cold, warm = (ctmc.solve(Stationary(TANDEM), Arnoldi(basis=15), start=start) for start in (None, near))
    assert warm.products < cold.products
    assert ctmc.solve(Stationary(TANDEM), "arnoldi", start=cold.value).iterations == 0


def test_a_start_on_the_other_color_only():
    start = np.zeros(MARKET.size)
    start[MARKET.coloring == 1] = 1.0
    assert ctmc.solve(Stationary(MARKET), "arnoldi", start=start).converged


def test_a_long_queue_is_reported_as_what_it_is():
    chain = birth_death([0.9] * 500, [1.0] * 500)
    solution = ctmc.solve(Stationary(chain), Arnoldi(max_iterations=400), check=False)
    assert solution.status is Status.ITERATION_LIMIT
    assert solution.value.min() >= 0
    assert np.isfinite(solution.value).all()


@pytest.mark.parametrize("failure", [ArpackError(-9999), None])
def test_breakdown(monkeypatch, failure):
    def fails(*arguments, **options):
        if failure is None:
            return np.ones(1), np.full((reduction(TANDEM).size, 1), np.nan)
        raise failure

    monkeypatch.setattr(arnoldi, "eigs", fails)
    solution = ctmc.solve(Stationary(TANDEM), "arnoldi", check=False)
    assert solution.status is Status.BREAKDOWN
    assert len(solution.history) == 1
    assert np.isfinite(solution.value).all()


def test_no_convergence_leaves_the_best_vector_of_one_basis(monkeypatch):
    genuine, tolerances = arnoldi.eigs, []

    def strict(operator, **options):
        tolerances.append(options["tol"])
        if options["tol"] == 0:
            raise ArpackNoConvergence("no", np.empty(0), np.empty((operator.shape[0], 0)))
        return genuine(operator, **options)

    monkeypatch.setattr(arnoldi, "eigs", strict)
    half = reduction(TANDEM)
    p = half.restrict(np.full(TANDEM.size, 1 / TANDEM.size))
    found, steps = best_vector(half, p, 12, 10)
    assert tolerances == [0.0, arnoldi._LOOSE]
    assert found.min() >= 0
    assert steps <= 14
    assert half.defect(half.step(found) - found, found) < 0.1 * half.defect(half.step(p) - p, p)
    assert ctmc.solve(Stationary(TANDEM), "arnoldi").converged


def test_a_vector_that_is_no_better_is_not_taken(monkeypatch):
    monkeypatch.setattr(
        arnoldi, "eigs", lambda operator, **options: (np.ones(1), np.eye(operator.shape[0])[:, :1] * (1 + 0j))
    )
    solution = ctmc.solve(Stationary(TANDEM), Arnoldi(max_iterations=300), check=False)
    assert solution.status is Status.ITERATION_LIMIT
    assert solution.defect < solution.history["defect"][0] / 10


def test_memory_is_asked_for_first():
    with ctmc.limited_memory("50KiB"), pytest.raises(ModelError, match="arnoldi with 30 basis vectors needs"):
        ctmc.solve(Stationary(TANDEM), "arnoldi")
