"""The stationary solvers: options, variants, warm starts, and elimination to full relative accuracy."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from optional_libraries import skipped_without_library

import ctmc
from builders.tandem_network import tandem_network
from ctmc import registry
from ctmc.errors import CTMCError, ModelError, UnknownNameError
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.sweeps import cleared, sweep
from ctmc.problem import Stationary
from ctmc.solution import Status
from solvers._preconditioner import PRECONDITIONERS, preconditioner
from solvers.qbd.level_reduction import LevelReduction
from solvers.stationary.aggregation import Aggregation
from solvers.stationary.anderson import MAPS, Anderson
from solvers.stationary.arnoldi import Arnoldi
from solvers.stationary.bicgstab import Bicgstab
from solvers.stationary.gauss_seidel import DIRECTIONS, GaussSeidel
from solvers.stationary.gmres import Gmres
from solvers.stationary.gth import Gth
from solvers.stationary.multigrid import HIERARCHIES, Multigrid
from solvers.stationary.pardiso import Pardiso
from solvers.stationary.power_iteration import PowerIteration
from solvers.stationary.sparse_lu import ORDERINGS, SparseLu
from solvers.stationary.umfpack import Umfpack

OPTIONAL = [
    pytest.param(solver, marks=skipped_without_library(registry.solver_name(solver)), id=repr(solver))
    for solver in (*[Multigrid(hierarchy=name) for name in HIERARCHIES], Pardiso(), Umfpack())
]
VARIANTS = [
    *[Aggregation(partition=name) for name in ("auto", "matching")],
    *[Anderson(of=name) for name in MAPS],
    Bicgstab(),
    Gth(),
    PowerIteration(),
    *[GaussSeidel(direction=direction, relaxation=w) for direction in DIRECTIONS for w in (0.7, 1.0)],
    GaussSeidel(relaxation=1.15),
    GaussSeidel(sweeps_per_check=1),
    GaussSeidel(order="sequential"),
    *[Gmres(preconditioner=name) for name in ("coloring", *PRECONDITIONERS)],
    Gmres(restart=7),
    Gmres(restart=1000),
    *[SparseLu(ordering=ordering) for ordering in ORDERINGS],
    Arnoldi(),
    Arnoldi(basis=5),
    *OPTIONAL,
    LevelReduction(),
]


def random_rates(seed, size, decades=1.0, density=0.2):
    rng = np.random.default_rng(seed)
    rates = np.where(rng.random((size, size)) < density, 10 ** rng.uniform(-decades, 0, (size, size)), 0.0)
    rates[np.arange(size), np.roll(np.arange(size), -1)] = 10 ** rng.uniform(-decades, 0, size)
    np.fill_diagonal(rates, 0.0)
    return rates


# ---- options ------------------------------------------------------------------------------------------------------------------


COUNT = (0, -1, 1.0, "5", True, None, math.nan)
BAD = {
    (PowerIteration, "max_iterations"): COUNT,
    (GaussSeidel, "max_iterations"): COUNT,
    (GaussSeidel, "sweeps_per_check"): COUNT,
    (GaussSeidel, "relaxation"): (0, 2, -0.5, 2.0, math.nan, math.inf, "1", True, None),
    (GaussSeidel, "order"): ("random", "", None),
    (Bicgstab, "max_iterations"): COUNT,
    (GaussSeidel, "direction"): ("sideways", "Forward", 1, None),
    (Gmres, "restart"): COUNT,
    (Gmres, "max_iterations"): COUNT,
    (Gmres, "preconditioner"): ("ilut", "", None, 3),
    (Gmres, "drop_tolerance"): (0, 1, -1e-3, math.nan, "0.1", None),
    (Gmres, "fill"): (0, -1, 1e6, math.inf, math.nan, "10"),
    (SparseLu, "ordering"): ("AMD", "colamd", None),
    (Arnoldi, "basis"): (3, *COUNT),
    (Arnoldi, "patience"): COUNT,
    (Arnoldi, "max_iterations"): COUNT,
    (Multigrid, "hierarchy"): ("air", "", None),
    (Multigrid, "restart"): COUNT,
    (Multigrid, "max_iterations"): COUNT,
}


@pytest.mark.parametrize(
    ("kind", "option", "value"), [(*place, value) for place, values in BAD.items() for value in values]
)
def test_bad_options(kind, option, value):
    with pytest.raises((ModelError, UnknownNameError)) as caught:
        kind(**{option: value})
    assert isinstance(caught.value, CTMCError)
    assert option in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_option_is_in_the_table():
    kinds = {kind for kind, _ in BAD} | {Gth}
    assert {(kind, option.name) for kind in kinds for option in dataclasses.fields(kind)} == set(BAD)


@pytest.mark.parametrize(
    "solver",
    [PowerIteration(max_iterations=np.int64(7)), GaussSeidel(relaxation=1), Gmres(fill=np.float64(2.5))],
)
def test_good_options(solver):
    again = type(solver)(**{option.name: getattr(solver, option.name) for option in dataclasses.fields(solver)})
    assert again == solver


# ---- answers agree ----------------------------------------------------------------------------------------------------------------


MODELS = {
    "random": Generator.from_matrix(random_rates(801, 60)),
    "tandem": tandem_network([2.0, 1.5, 3.0], 1.2, total_capacity=7),
    "ring": Generator.from_matrix(np.roll(np.diag(np.arange(1.0, 10.0)), 1, axis=1)),
    "star": Generator.from_matrix(
        np.vstack([np.r_[0, np.arange(1.0, 30.0)], np.column_stack([np.full(29, 2.0), np.zeros((29, 29))])])
    ),
    "two states": Generator.from_matrix([[0, 1.0], [3.0, 0]]),
}


def may_never_settle(solver):
    """A sweep in one direction without damping can go round in circles, and over-relaxation need not converge."""
    if not isinstance(solver, GaussSeidel):
        return False
    return solver.relaxation > 1 or (solver.relaxation == 1 and solver.direction != "symmetric")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("solver", VARIANTS, ids=repr)
def test_all_variants_agree(name, solver):
    solution = ctmc.solve(Stationary(MODELS[name]), solver, check=False)
    if may_never_settle(solver) and not solution.converged:
        assert solution.status in (Status.STAGNATED, Status.ITERATION_LIMIT)
        return
    assert solution.converged, solution.reason
    np.testing.assert_allclose(solution.value, gth(MODELS[name].to_scipy().toarray()), atol=1e-11)


def test_every_registered_solver_is_here():
    names = {registry.solver_name(getattr(solver, "values", (solver,))[0]) for solver in VARIANTS}
    found = registry.solvers_for(Stationary(MODELS["random"]))
    # those of PETSc and SLEPc, where they are installed, have tests of their own
    assert names >= {name for name in found if not name.startswith(("petsc_", "slepc_"))}


# ---- gauss_seidel ------------------------------------------------------------------------------------------------------------------


def test_one_sweep_by_hand():
    rates = np.array([[0, 1.0, 2.0], [3.0, 0, 1.0], [1.0, 1.0, 0]])
    chain = Generator.from_matrix(rates)
    exits = rates.sum(axis=1)
    for relaxation in (1.0, 0.5):
        for reverse in (False, True):
            x, expected = np.array([0.2, 0.3, 0.5]), np.array([0.2, 0.3, 0.5])
            sweep(chain, x, relaxation=relaxation, reverse=reverse)
            for j in (2, 1, 0) if reverse else (0, 1, 2):
                expected[j] += relaxation * (expected @ rates[:, j] / exits[j] - expected[j])
            np.testing.assert_allclose(x, expected, rtol=1e-15)


def test_the_direction_of_the_flow_matters():
    """With all transitions to higher states but one, a sweep forwards settles at once, backwards it takes as many as states."""
    size = 40
    rates = np.diag(np.linspace(1, 3, size - 1), 1)
    rates[-1, 0] = 1.0
    problem = Stationary(Generator.from_matrix(rates))
    forward = ctmc.solve(problem, GaussSeidel(direction="forward", sweeps_per_check=1))
    assert forward.iterations <= 2
    backward = ctmc.solve(
        problem, GaussSeidel(direction="backward", sweeps_per_check=1, max_iterations=30), check=False
    )
    assert backward.status is Status.ITERATION_LIMIT
    symmetric = ctmc.solve(problem, GaussSeidel(sweeps_per_check=1))
    assert symmetric.iterations <= 2


def test_small_probabilities_keep_their_relative_accuracy():
    chain = Generator.from_matrix(np.diag(np.full(39, 0.1), 1) + np.diag(np.ones(39), -1))
    x = np.full(40, 1 / 40)
    for _ in range(90):
        sweep(chain, x)
        sweep(chain, x, reverse=True)
    np.testing.assert_allclose(x / x[0], 0.1 ** np.arange(40), rtol=1e-13)


def test_iteration_limit_is_kept_between_checks():
    problem = Stationary(MODELS["tandem"])
    for limit in (1, 3, 4, 5):
        solution = ctmc.solve(problem, GaussSeidel(sweeps_per_check=4, max_iterations=limit), check=False)
        assert solution.iterations == limit
        assert solution.status is Status.ITERATION_LIMIT


# ---- gmres ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRECONDITIONERS)
def test_preconditioners_are_linear_maps(name):
    chain = MODELS["random"]
    apply = preconditioner(name, chain, 1e-3, 10.0)
    x, y = np.random.default_rng(809).random((2, chain.size))
    np.testing.assert_allclose(apply(x + 2 * y), apply(x) + 2 * apply(y), rtol=1e-6)
    if name == "jacobi":
        np.testing.assert_allclose(apply(x) * chain.exit_rates, x, rtol=1e-15)


def test_ilu_nearly_solves_what_it_is_for():
    chain = MODELS["tandem"]
    right = np.random.default_rng(811).random(chain.size)
    right -= right.mean()
    solved = preconditioner("ilu", chain, 1e-8, 100.0)(right)
    np.testing.assert_allclose(-chain.forward(solved), right, atol=1e-4)


def test_preconditioners_save_products():
    chain = tandem_network([2.0, 1.5, 3.0], 1.2, total_capacity=12)
    counts = {name: ctmc.solve(Stationary(chain), Gmres(preconditioner=name)).products for name in PRECONDITIONERS}
    assert counts["ilu"] < counts["jacobi"] <= counts["none"]


def test_restarts_and_limits_of_gmres():
    chain = tandem_network([2.0, 1.5, 3.0], 1.2, total_capacity=9)
    whole = ctmc.solve(Stationary(chain), Gmres(restart=500))
    short = ctmc.solve(Stationary(chain), Gmres(restart=10))
    assert len(whole.history) < len(short.history)
    assert whole.iterations <= short.iterations
    assert (np.diff(short.history["iteration"])[:-1] == 10).all()
    starved = ctmc.solve(Stationary(chain), Gmres(restart=10, max_iterations=15), check=False)
    assert starved.status is Status.ITERATION_LIMIT
    assert starved.iterations == 15


def test_memory_is_asked_for_first():
    chain = Generator.from_matrix(random_rates(821, 300, density=0.02))
    for solver, limit in (("gth", "700KiB"), ("gmres(restart=200)", "300KiB"), ("sparse_lu", "60KiB")):
        with ctmc.limited_memory(limit), pytest.raises(ModelError, match="more than the memory limit"):
            ctmc.solve(Stationary(chain), solver)


def test_negative_entries_are_cleared():
    chain = MODELS["tandem"]
    right = gth(chain.to_scipy().toarray())
    assert cleared(chain, 3 * right).tolist() == (3 * right / (3 * right).sum()).tolist()
    spoiled = right.copy()
    spoiled[[5, 17]] *= -1e-3
    found = cleared(chain, spoiled)
    assert found.min() > 0
    assert found.sum() == pytest.approx(1, abs=1e-14)
    assert found[5] == pytest.approx(right[5], rel=0.9)


# ---- warm starts -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["power_iteration", "gauss_seidel", "gmres"])
def test_a_warm_start_saves_iterations(solver):
    near = Stationary(tandem_network([2.0, 1.5, 3.0], 1.2, total_capacity=8))
    problem = Stationary(tandem_network([2.0, 1.5, 3.0], 1.2001, total_capacity=8))
    cold = ctmc.solve(problem, solver)
    warm = ctmc.solve(problem, solver, start=ctmc.solve(near, "gth").value)
    again = ctmc.solve(problem, solver, start=cold.value)
    assert warm.products < cold.products
    assert again.iterations <= 4
    np.testing.assert_allclose(warm.value, cold.value, atol=1e-10)


# ---- elimination -----------------------------------------------------------------------------------------------------------------------------


def plain_elimination(rates):
    """The textbook's loop, state by state, without panels."""
    work = np.array(rates, dtype=float)
    n = len(work)
    for k in range(n - 1, 0, -1):
        work[:k, k] /= work[k, :k].sum()
        work[:k, :k] += np.outer(work[:k, k], work[k, :k])
    pi = np.ones(n)
    for k in range(1, n):
        pi[k] = pi[:k] @ work[:k, k]
    return pi / pi.sum()


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 66, 128, 129, 130])
@pytest.mark.parametrize("decades", [1, 20])
def test_panels_of_elimination(size, decades):
    rates = random_rates(830 + size, size, decades)
    np.fill_diagonal(rates, 7.0)  # is not looked at
    found = gth(rates)
    np.fill_diagonal(rates, 0.0)
    np.testing.assert_allclose(found, plain_elimination(rates), rtol=1e-12, atol=0)
    assert rates.diagonal().any() == 0


def exact_elimination(rates):
    work = [[Fraction(float(rate)) for rate in row] for row in rates]
    n = len(work)
    for k in range(n - 1, 0, -1):
        total = sum(work[k][:k])
        for i in range(k):
            work[i][k] /= total
        for i in range(k):
            if work[i][k]:
                for j in range(k):
                    work[i][j] += work[i][k] * work[k][j]
    pi = [Fraction(1)]
    for k in range(1, n):
        pi.append(sum(pi[i] * work[i][k] for i in range(k)))
    total = sum(pi)
    # balance, once more, in fractions and from the definition
    for j in range(n):
        inflow = sum(pi[i] * Fraction(float(rates[i][j])) for i in range(n) if i != j)
        assert inflow == pi[j] * sum(Fraction(float(rates[j][i])) for i in range(n) if i != j)
    return np.array([float(value / total) for value in pi])


@pytest.mark.parametrize("seed", [841, 842, 843, 844])
@pytest.mark.parametrize("size", [3, 9])
def test_elimination_is_right_in_every_component(seed, size):
    """Rates over 20 decades; the smallest probabilities are as accurate as the largest."""
    rates = random_rates(seed, size, 20.0, density=0.6)
    exact = exact_elimination(rates)
    assert exact.min() < 1e-4
    np.testing.assert_allclose(gth(rates), exact, rtol=3e-15, atol=0)
    solution = ctmc.solve(Stationary(Generator.from_matrix(rates)), "gth")
    np.testing.assert_allclose(solution.value, exact, rtol=3e-15, atol=0)


def test_nearly_decomposable_in_fractions():
    rates = np.array([[0, 1.0, 1e-14, 0], [2.0, 0, 0, 0], [0, 0, 0, 1e-3], [0, 3e-15, 1.0, 0]])
    np.testing.assert_allclose(gth(rates), exact_elimination(rates), rtol=1e-15)


@pytest.mark.parametrize(
    ("rates", "state"),
    [
        ([[0, 1.0], [0, 0]], 1),
        ([[0, 1.0, 0], [1.0, 0, 1.0], [0, 0, 0]], 2),
        ([[0, 0, 1.0], [0, 0, 1.0], [0, 1.0, 0]], 1),
    ],
)
def test_elimination_of_a_reducible_chain(rates, state):
    with pytest.raises(ModelError, match=f"state {state} cannot reach the states before it"):
        gth(np.array(rates))


def test_elimination_leaves_its_argument_alone():
    rates = random_rates(853, 70)
    before = rates.copy()
    gth(rates)
    assert (rates == before).all()
