"""Krylov methods of PETSc on one process: forms of the equation, names and options, and what they are worth."""

from __future__ import annotations

import numpy as np
import pytest

import ctmc
from ctmc.errors import ModelError, UnknownNameError
from ctmc.model.shared import share
from ctmc.ranks import ALONE
from tests.mpi import needs_mpi

pytestmark = needs_mpi("petsc4py")


@pytest.fixture(scope="module")
def queues():
    return ctmc.build(
        "supermarket", service_rates=[1, 1, 1], arrival_rate=2.55, choices=2, capacity=20, selection="shortest_queue"
    )


@pytest.fixture(scope="module")
def exact(queues):
    return np.asarray(ctmc.solve(ctmc.Stationary(queues, 1e-14), "bicgstab", check=False).value)


@pytest.mark.parametrize(
    "solver",
    [
        "petsc_krylov",
        "petsc_krylov(coarse='between')",
        "petsc_krylov(coarse='none')",
        "petsc_krylov(form='full')",
        "petsc_krylov(form='full', coarse='levels', preconditioner='bjacobi')",
        "petsc_krylov(form='shell', preconditioner='none', method='bcgs')",
        "petsc_krylov(form='shell', preconditioner='none', coarse='levels')",
        "petsc_krylov(method='bcgs')",
        "petsc_krylov(method='tfqmr')",
        "petsc_krylov(method='fgmres', restart=10)",
        "petsc_krylov(preconditioner='jacobi', options='-ksp_pc_side left')",
        "petsc_krylov(options='-pc_asm_overlap 2 -sub_pc_factor_levels 1')",
        "petsc_krylov(preconditioner='lu')",
    ],
)
def test_every_form_gives_the_same(queues, exact, solver):
    solution = ctmc.solve(ctmc.Stationary(queues), solver)
    assert np.abs(solution.value - exact).sum() < 5e-10
    assert solution.value.min() >= 0
    # products are counted: one an iteration and a few besides, two for methods of two
    assert solution.iterations <= solution.products <= 2 * solution.iterations + 20


def test_chains_without_two_colors():
    chain = ctmc.build("polling", stations=5)
    assert share(chain, ALONE).coloring is None
    solution = ctmc.solve(ctmc.Stationary(chain), "petsc_krylov")
    wanted = ctmc.solve(ctmc.Stationary(chain), "gth").value
    assert np.abs(solution.value - wanted).sum() < 1e-10


def test_one_color_takes_fewer_steps_than_all_states(queues):
    reduced = ctmc.solve(ctmc.Stationary(queues), "petsc_krylov(coarse='none')")
    full = ctmc.solve(ctmc.Stationary(queues), "petsc_krylov(coarse='none', form='full')")
    assert reduced.iterations < 0.7 * full.iterations


def test_levels_are_balanced(queues):
    """What the defect leaves open between levels is settled: the masses of the levels balance to rounding."""
    solution = ctmc.solve(ctmc.Stationary(queues, 1e-9), "petsc_krylov")
    jobs = solution.marginal("jobs")
    up = 2.55 * np.cumsum(jobs)[:-1]  # arrivals are lost in full systems only, which have next to no mass
    busy = [solution.probability(f"queue_length[{server}] >= 1") for server in range(3)]
    assert sum(busy) == pytest.approx(2.55 * (1 - solution.measures()["blocking_probability"]), rel=1e-9)
    assert len(up) == 60


@pytest.mark.parametrize(
    ("solver", "error", "words"),
    [
        ("petsc_krylov(method='newton')", ModelError, "method is 'newton'; allowed are bcgs"),
        ("petsc_krylov(preconditioner='magic')", ModelError, "preconditioner is 'magic'; allowed are"),
        ("petsc_krylov(coarse='coarse')", UnknownNameError, "coarse"),
        ("petsc_krylov(form='half')", UnknownNameError, "form"),
        ("petsc_krylov(restart=0)", ModelError, "restart is 0; allowed is a whole number >= 1"),
        ("petsc_krylov(options='fast')", ModelError, "options is 'fast'; allowed are PETSc options"),
        ("petsc_krylov(options='-pc_asm_overlap 2 3')", ModelError, "allowed are PETSc options"),
        ("petsc_krylov(options=3)", ModelError, "options is 3; allowed is text"),
        ("petsc_krylov(options='-pc_foo 3')", ModelError, "options has -pc_foo, which PETSc did not read"),
        (
            "petsc_krylov(form='shell')",
            ModelError,
            "preconditioner is 'asm', but form='shell' has no entries; allowed is 'none'",
        ),
    ],
)
def test_wrong_options_are_one_sentence(queues, solver, error, words):
    with pytest.raises(error) as caught:
        ctmc.solve(ctmc.Stationary(queues), solver)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_of_one_solve_are_gone_in_the_next(queues):
    with pytest.raises(ctmc.SolveError, match="ITERATION_LIMIT"):
        ctmc.solve(ctmc.Stationary(queues), "petsc_krylov(max_iterations=3)")
    before = ctmc.solve(ctmc.Stationary(queues), "petsc_krylov")
    ctmc.solve(ctmc.Stationary(queues), "petsc_krylov(options='-sub_pc_factor_levels 3')")
    after = ctmc.solve(ctmc.Stationary(queues), "petsc_krylov")
    assert before.iterations == after.iterations


def test_a_start_is_used(queues, exact):
    cold = ctmc.solve(ctmc.Stationary(queues), "petsc_krylov")
    warm = ctmc.solve(ctmc.Stationary(queues), "petsc_krylov", start=exact)
    assert warm.warm
    assert warm.iterations < cold.iterations / 4
