"""Direct methods: orderings, the forecast of the fill, the fixed state, and libraries that are not installed."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest
from optional_libraries import skipped_without_library
from scipy.sparse import csc_array, csr_array, random_array
from scipy.sparse.linalg import splu

import ctmc
from builders.supermarket import supermarket
from builders.tandem_network import tandem_network
from ctmc import registry
from ctmc.cli import main
from ctmc.errors import ModelError, PluginError
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.problem import Stationary
from ctmc.solution import Status
from solvers._fixed_state import BYTES_PER_ENTRY, fixed_state, require_fill, solved
from solvers._ordering import (
    ORDERINGS,
    column_counts,
    factor_entries,
    lattice_states,
    least_fill,
    level_sets,
    ordering,
    planes,
    symmetric_pattern,
)
from solvers.stationary.sparse_lu import TRIED, SparseLu
from solvers.stationary.umfpack import Umfpack

MARKET = supermarket([1.0, 1.5, 2.0], 3.6, choices=2, capacity=9, sampling="with_replacement")
TANDEM = tandem_network([2.0, 1.5, 3.0], 1.2, total_capacity=7)


def graph(seed, size, density):
    return symmetric_pattern(csr_array(random_array((size, size), density=density, rng=np.random.default_rng(seed))))


def grid(*sides):
    """Return the pattern of a grid with a state per point, and the points."""
    points = np.indices(sides).reshape(len(sides), -1).T
    near = np.abs(points[:, None] - points[None]).sum(axis=-1) == 1
    return symmetric_pattern(csr_array(near.astype(float))), points


def counts_by_elimination(pattern, order):
    """Eliminate state by state: all later neighbours of a state become neighbours of each other."""
    filled = pattern.toarray()[np.ix_(order, order)] != 0
    counts = []
    for k in range(len(filled)):
        later = k + 1 + np.flatnonzero(filled[k + 1 :, k])
        filled[np.ix_(later, later)] = True
        counts.append(1 + len(later))
    return counts


# ---- orderings and their fill ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "density"), [(1, 0.0), (7, 0.0), (40, 0.03), (60, 0.08), (90, 0.02)])
@pytest.mark.parametrize("name", [name for name in ORDERINGS if name not in ("auto", "planes")])
def test_the_forecast_is_what_elimination_fills(name, size, density):
    pattern = graph(907 + size, size, density)
    order = ordering(name, pattern)
    assert sorted(order) == list(range(size))
    assert column_counts(pattern, order).tolist() == counts_by_elimination(pattern, order)


@pytest.mark.parametrize("sides", [(2, 2), (5, 9), (4, 5, 6), (40, 2)])
def test_the_forecast_on_lattices(sides):
    pattern, points = grid(*sides)
    for order in (planes(points), ordering("level_sets", pattern)):
        assert sorted(order) == list(range(len(points)))
        assert column_counts(pattern, order).tolist() == counts_by_elimination(pattern, order)


def test_cuts_come_last():
    pattern, points = grid(9, 31)
    assert points[planes(points)[-9:], 1].tolist() == [15] * 9
    diagonal = points[ordering("level_sets", pattern)[-9:]].sum(axis=1)
    assert len(set(diagonal)) == 1  # from corner to corner, a level is a diagonal
    order = planes(points)
    half = (len(points) - 9) // 2
    assert (points[order[:half], 1] < 15).all()
    assert (points[order[half:-9], 1] > 15).all()


def test_parts_that_do_not_touch_stay_together():
    one, _ = grid(20)
    two = symmetric_pattern(csr_array(np.kron(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), one.toarray())))
    mixed = np.random.default_rng(911).permutation(60)
    order = level_sets(two[mixed][:, mixed].indptr.astype(np.uint64), two[mixed][:, mixed].indices.astype(np.uint64))
    assert sorted(order) == list(range(60))
    assert factor_entries(two[mixed][:, mixed], order) <= 3 * (factor_entries(one, ordering("level_sets", one)) + 20)


def test_dissection_grows_slower_than_a_band():
    fill = {}
    for side in (12, 24):
        pattern, points = grid(side, side)
        fill[side] = [factor_entries(pattern, planes(points)), factor_entries(pattern, np.arange(side**2))]
    assert fill[24][0] / fill[12][0] < 6 < fill[24][1] / fill[12][1]


def test_the_forecast_is_what_superlu_makes():
    system = fixed_state(MARKET, "this test")
    pattern, states = symmetric_pattern(system.matrix), lattice_states(MARKET.space, system.others)
    forecast = {}
    for name in ORDERINGS[1:]:
        order = ordering(name, pattern, states)
        forecast[name] = 2 * factor_entries(pattern, order) - len(order)
        matrix = csc_array(system.matrix[order][:, order])
        factors = splu(matrix, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
        assert 0.98 < factors.nnz / forecast[name] < 1.15, name  # SuperLU joins small columns to blocks
    assert max(forecast["level_sets"], forecast["MMD_AT_PLUS_A"]) < forecast["COLAMD"] < forecast["NATURAL"]
    name, _, entries = least_fill(TRIED, pattern, states)
    assert 2 * entries - len(pattern.indptr) + 1 == forecast[name] == min(forecast.values())


def test_a_band_stays_as_it_is():
    pattern, _ = grid(200)
    assert least_fill(TRIED[:2], pattern, None)[::2] == ("NATURAL", 399)
    assert lattice_states(Generator.from_matrix([[-1, 1], [2, -2]]).space, np.arange(2)) is None


# ---- what does not fit ------------------------------------------------------------------------------------------------------------


def test_a_hopeless_factorisation_is_refused():
    chain = supermarket([1.0, 1.5, 2.0], 3.6, choices=2, capacity=16, sampling="with_replacement")
    with ctmc.limited_memory("8MiB"), pytest.raises(ModelError) as caught:
        ctmc.solve(Stationary(chain), "sparse_lu")
    message = str(caught.value)
    assert "entries forecast in its factors (ordering level_sets) needs 11" in message
    assert "(4,913 states), more than the memory limit of 8 MiB" in message
    with ctmc.limited_memory("16MiB"):
        assert ctmc.solve(Stationary(chain), "sparse_lu").converged


def test_indices_of_32_bits_are_a_limit():
    with ctmc.limited_memory("1TiB"):
        require_fill("sparse_lu", "planes", 2**31 - 1, 7)
        with pytest.raises(ModelError, match=r"2,147,483,648 entries .* on 7 states .* allowed are 2,147,483,647"):
            require_fill("sparse_lu", "planes", 2**31, 7)
    with ctmc.limited_memory(BYTES_PER_ENTRY * 100):
        require_fill("sparse_lu", "planes", 100, 7)
        with pytest.raises(ModelError, match="101 entries"):
            require_fill("sparse_lu", "planes", 101, 7)


# ---- the fixed state -----------------------------------------------------------------------------------------------------------------


def test_the_system_is_the_balance_of_the_other_states():
    system = fixed_state(MARKET, "this test")
    pi = gth(MARKET.to_scipy().toarray())
    assert pi[system.state] > 0.5 * pi.max()
    assert system.state not in system.others
    np.testing.assert_allclose(system.matrix @ pi[system.others], system.right * pi[system.state], atol=1e-15)


def test_one_step_of_refinement():
    """Factors with an error of 1e-4 give an answer with one of 1e-8."""
    system = fixed_state(TANDEM, "this test")
    factors = splu(system.matrix)
    off = 1 + 1e-4 * np.random.default_rng(919).standard_normal(len(system.others))
    found = solved(TANDEM, system, lambda right: off * factors.solve(right)).value
    np.testing.assert_allclose(found, gth(TANDEM.to_scipy().toarray()), rtol=1e-6)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_every_ordering_gives_every_digit(ordering):
    found = ctmc.solve(Stationary(MARKET), SparseLu(ordering=ordering)).value
    np.testing.assert_allclose(found, gth(MARKET.to_scipy().toarray()), rtol=1e-9)


# ---- pardiso and umfpack ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pardiso():
    for mark in skipped_without_library("pardiso"):
        pytest.skip(mark.kwargs["reason"])


@pytest.fixture
def umfpack():
    for mark in skipped_without_library("umfpack"):
        pytest.skip(mark.kwargs["reason"])


@pytest.mark.parametrize("chain", [MARKET, TANDEM], ids=["market", "tandem"])
def test_pardiso(pardiso, chain):
    solution = ctmc.solve(Stationary(chain), "pardiso")
    np.testing.assert_allclose(solution.value, gth(chain.to_scipy().toarray()), rtol=1e-9)
    assert solution.iterations == 0


def test_pardiso_asks_for_memory_after_its_analysis(pardiso):
    chain = supermarket([1.0, 1.5, 2.0], 3.6, choices=2, capacity=20)
    with ctmc.limited_memory("8MiB"), pytest.raises(ModelError, match=r"pardiso with [\d,]{7} entries forecast"):
        ctmc.solve(Stationary(chain), "pardiso")


@pytest.mark.parametrize("chain", [MARKET, TANDEM], ids=["market", "tandem"])
def test_umfpack(umfpack, chain):
    found = ctmc.solve(Stationary(chain), "umfpack").value
    np.testing.assert_allclose(found, gth(chain.to_scipy().toarray()), rtol=1e-9)


def test_the_way_to_umfpack(monkeypatch):
    """With SuperLU in the place of UMFPACK, since few machines can build it."""
    seen = []

    def factorise(matrix):
        seen.append(matrix)
        return splu(matrix)

    stand_in = types.ModuleType("scikits.umfpack")
    stand_in.splu = factorise
    package = types.ModuleType("scikits")
    package.umfpack = stand_in
    monkeypatch.setitem(sys.modules, "scikits", package)
    monkeypatch.setitem(sys.modules, "scikits.umfpack", stand_in)
    monkeypatch.setattr(registry, "missing_library", lambda kind: "")
    found = ctmc.solve(Stationary(TANDEM), Umfpack()).value
    np.testing.assert_allclose(found, gth(TANDEM.to_scipy().toarray()), rtol=1e-9)
    assert seen[0].shape == (TANDEM.size - 1,) * 2
    with ctmc.limited_memory("26KiB"), pytest.raises(ModelError, match=r"umfpack with [\d,]+ entries forecast"):
        ctmc.solve(Stationary(TANDEM), Umfpack())
    assert len(seen) == 1


# ---- libraries that are not installed ---------------------------------------------------------------------------------------------------


@pytest.fixture
def without_library(monkeypatch):
    """Make multigrid stand on a library that does not exist."""
    kind = registry.solver_class("multigrid")
    monkeypatch.setattr(kind, "library", ("no_such_package.amg", "multigrid"))
    return kind


def test_a_missing_library_is_one_sentence(without_library):
    problem = Stationary(TANDEM)
    assert registry.takes(without_library, problem)
    assert "multigrid" not in registry.solvers_for(problem)
    assert "multigrid" in registry.solver_names()
    with pytest.raises(PluginError) as caught:
        ctmc.solve(problem, "multigrid")
    assert str(caught.value) == "multigrid needs no_such_package.amg: pip install 'ctmc-lab[multigrid]'."
    assert skipped_without_library("multigrid")[0].kwargs["reason"].startswith("multigrid needs no_such")
    assert skipped_without_library("gth") == ()


def test_a_missing_library_is_listed(without_library, capsys):
    assert main(["list", "solvers", "--json"]) == 0
    rows = {row["name"]: row["description"] for row in json.loads(capsys.readouterr().out)["solvers"]}
    assert rows["multigrid"].startswith(
        "(needs no_such_package.amg: pip install 'ctmc-lab[multigrid]') Correct the flows"
    )
    assert not rows["sparse_lu"].startswith("(")
    main(["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    missing = checks["no_such_package.amg (optional)"]
    assert missing["value"] == "not installed (extra multigrid): no solver multigrid"
    assert missing["ok"]
    assert "scikit-umfpack (optional)" in checks


def test_a_library_that_fails_to_load_is_a_breakdown(monkeypatch):
    monkeypatch.setattr(registry, "missing_library", lambda kind: "")
    monkeypatch.setitem(sys.modules, "scikits", None)
    solution = ctmc.solve(Stationary(TANDEM), Umfpack(), check=False)
    assert solution.status is Status.BREAKDOWN
    assert "scikits" in solution.reason
