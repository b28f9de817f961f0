"""Every QBD method on the gallery: residuals at rounding, all agree, and elimination on the truncation agrees too."""

import numpy as np
import pytest
from qbd_gallery import MODELS, map_ph_1, plain, random_blocks, slowly_modulated

import ctmc
from ctmc import registry
from ctmc.model.decay import decay_rate
from ctmc.model.elimination import gth
from ctmc.model.m_matrix import inverse
from ctmc.model.matrix_geometric import matrix_residuals
from ctmc.model.qbd import QBD
from ctmc.problem import Stationary
from ctmc.solution import Status
from solvers.qbd._reversible import phase_weights
from solvers.qbd.cyclic_reduction import CyclicReduction
from solvers.qbd.functional_iteration import FunctionalIteration
from solvers.qbd.rank_one import row_of

METHODS = [
    "logarithmic_reduction",
    "cyclic_reduction",
    "cyclic_reduction(shift='always')",
    "cyclic_reduction(shift='never')",
    "functional_iteration",
    "newton",
    "invariant_subspace",
    "rank_one",
]
SUBTRACTING = ("cyclic_reduction(shift='always')", "invariant_subspace")


def test_no_method_is_left_out():
    problem = Stationary(MODELS["M/M/1 load .3"]())
    assert {method.partition("(")[0] for method in METHODS} == set(registry.solvers_for(problem))


@pytest.mark.parametrize("name", MODELS)
def test_methods_agree_and_solve_their_equations(name):
    queue = MODELS[name]()
    problem = Stationary(queue)
    known = ctmc.solve(problem, "logarithmic_reduction").value
    for method in METHODS:
        if not registry.takes(registry.make_solver(method), problem):
            assert method == "rank_one"
            continue
        if (name, method) == ("slowly modulated", "functional_iteration"):
            assert ctmc.solve(problem, method, check=False).status is Status.ITERATION_LIMIT
            continue
        solution = ctmc.solve(problem, method)
        residuals = matrix_residuals(queue, solution.value)
        assert max(residuals.values()) < 1e-14, (method, residuals)
        accuracy = 1e-10 if method in SUBTRACTING else 2e-11
        for found, right in ((solution.value.g, known.g), (solution.value.r, known.r)):
            assert np.abs(found - right).max() < accuracy, method
            assert found.min() >= 0, method
        # U is what R = up (-U)^-1 and G = (-U)^-1 down say it is
        u, scale = solution.value.u, -queue.local.diagonal().min()
        assert np.abs(u @ solution.value.g + queue.down).max() < 1e-13 * scale, method
        assert np.abs(solution.value.r @ u + queue.up).max() < 1e-13 * scale, method
        assert solution.value.decay_rate == pytest.approx(decay_rate(queue), rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_truncation_solved_by_elimination_agrees(name):
    queue = MODELS[name]()
    answer = ctmc.solve(Stationary(queue), "cyclic_reduction").value
    levels = min(answer.quantile(1 - 1e-14) + queue.boundary_levels + 1, 1800 // queue.phase_count)
    finite = gth(queue.truncate(levels).to_scipy().toarray())
    first = np.concatenate([answer.level(k) for k in range(queue.boundary_levels + 2)])
    # steps up from the last level are dropped: relative to each other the first levels change by the mass beyond only
    beyond = answer.tail(levels)
    distance = np.abs(finite[: len(first)] / finite[: len(first)].sum() - first / first.sum()).sum()
    assert distance < max(1e-11, 10 * beyond)
    if beyond < 1e-12:
        np.testing.assert_allclose(finite[: len(first)], first, atol=1e-11)


def test_single_server_queue_at_load_three_tenths():
    for method in METHODS:
        assert ctmc.solve(Stationary(MODELS["M/M/1 load .3"]()), method).value.r.item() == pytest.approx(0.3, abs=2e-16)


def test_pollaczek_khinchine():
    for name, rate, second_moment in (("M/E3/1", 0.7, 4 / 3), ("M/H2/1", 0.9, 2 * (0.9 / 9 + 0.1 / 0.04))):
        start, mean = MODELS[name](), {"M/E3/1": 1.0, "M/H2/1": 0.8}[name]
        load = rate * mean
        known = load + rate**2 * second_moment / (2 * (1 - load))
        for method in ("rank_one", "cyclic_reduction"):
            assert ctmc.solve(Stationary(start), method).value.mean_level == pytest.approx(known, rel=1e-12)


@pytest.mark.parametrize(
    "method", [*METHODS[:-1], "functional_iteration(form='natural')", "functional_iteration(form='traditional')"]
)
def test_all_forms_on_dense_blocks(method):
    queue = random_blocks(70, 0.9)  # beyond one block of the elimination, and in single precision first
    found = ctmc.solve(Stationary(queue), method)
    assert max(matrix_residuals(queue, found.value).values()) < 1e-14
    np.testing.assert_allclose(found.value.g, ctmc.solve(Stationary(queue)).value.g, atol=1e-14)


@pytest.mark.parametrize("load", [0.5, 0.9, 0.999])
def test_row_sums_on_slow_phases(load):
    queue = slowly_modulated(90, load)
    assert phase_weights(queue) is not None
    known = ctmc.solve(Stationary(queue)).value.g
    for shift, accuracy in (("auto", 1e-14), ("never", 1e-14), ("always", 1e-9)):
        g = ctmc.solve(Stationary(queue), CyclicReduction(shift=shift)).value.g
        np.testing.assert_allclose(g.sum(axis=1), 1, rtol=0, atol=1e-14)
        np.testing.assert_allclose(g, known, rtol=0, atol=accuracy)
        if shift != "always":
            np.testing.assert_allclose(g, known, rtol=1e-11, atol=1e-22)


def test_phase_weights():
    assert phase_weights(random_blocks(5, 0.5)) is None
    ring = plain(np.eye(3), np.roll(np.eye(3), 1, axis=1), 2 * np.eye(3))
    assert phase_weights(ring) is None
    turning = np.array([[0, 1, 2.0], [2, 0, 1], [1, 2, 0]])  # both ways everywhere, but not reversible
    assert phase_weights(plain(np.eye(3), turning, 2 * np.eye(3))) is None
    weights = phase_weights(plain(np.eye(3), [[0, 1, 0], [2, 0, 1], [0, 4, 0]], 2 * np.eye(3)))
    np.testing.assert_allclose(weights, [1, 0.5, 0.125])


def test_rank_is_found():
    assert row_of(MODELS["M/E3/1"]().down).tolist() == [1, 0, 0]
    assert row_of(random_blocks(5, 0.5).down) is None
    ones = np.outer([0, 2.0, 3.0], [0.25, 0.75, 0])
    np.testing.assert_allclose(row_of(plain(np.eye(3), np.ones((3, 3)), ones).down), [0.25, 0.75, 0])
    ones[1, 0] *= 1 + 1e-13
    assert row_of(plain(np.eye(3), np.ones((3, 3)), ones).down) is None
    with pytest.raises(ctmc.UnsupportedProblemError, match="neither down nor up has rank one"):
        ctmc.solve(Stationary(random_blocks(5, 0.5)), "rank_one")


@pytest.mark.parametrize("load", [0.2, 0.9, 0.9999])
def test_steps_up_that_forget_the_phase(load):
    rng = np.random.default_rng(77)
    local, down, up = rng.random((12, 12)), rng.random((12, 12)), np.outer(rng.random(12), rng.random(12))
    for _ in range(100):
        x = gth(up + local + down)
        up *= load * (x @ down.sum(axis=1)) / (x @ up.sum(axis=1))
    queue = plain(up, local, down)
    found, known = (ctmc.solve(Stationary(queue), method).value for method in ("rank_one", "logarithmic_reduction"))
    np.testing.assert_allclose(found.r, known.r, atol=1e-16 / (1 - load))
    np.testing.assert_allclose(found.g, known.g, atol=1e-12)


def test_large_sparse_blocks_stay_sparse():
    # one phase is entered on every step down; the others are left by a long walk
    m = 900
    rng = np.random.default_rng(15)
    up, down = np.zeros((m, m)), np.zeros((m, m))
    up[0, 0], down[:, 7] = 0.4, rng.uniform(0.5, 1.0, m)
    queue = plain(up, np.eye(m, k=1) + 0.5 * np.eye(m, k=-1), down)
    found = ctmc.solve(Stationary(queue), "rank_one(boundary_solver='sparse_lu')")
    assert matrix_residuals(queue, found.value)["R"] < 1e-15
    assert found.value.g.sum(axis=1) == pytest.approx(1, abs=1e-14)


def test_unstable_and_null_recurrent_are_refused():
    for method in METHODS:
        with pytest.raises(ctmc.UnstableError, match=r"drift of the level is 0\.5"):
            ctmc.solve(Stationary(QBD.from_blocks([[1.5]], [[-2.5]], [[1.0]])), method)
        with pytest.raises(ctmc.UnstableError, match="null recurrent"):
            ctmc.solve(Stationary(QBD.from_blocks([[1.0]], [[-2.0]], [[1.0]])), method)


def test_g_of_an_unstable_chain_is_not_stochastic():
    from ctmc.trace import Trace
    from solvers.qbd._matrix_analytic import Blocks
    from solvers.qbd.logarithmic_reduction import first_passage

    g, beyond = first_passage(Blocks.of(QBD.from_blocks([[2.0]], [[-3.0]], [[1.0]])), Trace(1e-32), limit=60)
    assert g.item() == pytest.approx(0.5)
    assert beyond.item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    "method", ["cyclic_reduction", "cyclic_reduction(shift='never')", "functional_iteration", "newton"]
)
def test_too_few_iterations_are_reported(method):
    queue = MODELS["MAP/H2/1"]()
    name, _, rest = method.rstrip(")").partition("(")
    starved = f"{name}(max_iterations=2{', ' + rest if rest else ''})"
    solution = ctmc.solve(Stationary(queue), starved, check=False)
    assert solution.status is Status.ITERATION_LIMIT
    assert solution.iterations == 2


def test_subspace_that_is_not_found_is_reported(monkeypatch):
    from solvers.qbd import invariant_subspace

    monkeypatch.setattr(invariant_subspace, "_POLES", ())
    solution = ctmc.solve(Stationary(MODELS["M/H2/1"]()), "invariant_subspace", check=False)
    assert solution.status is Status.BREAKDOWN


def test_drift_decay_rate_and_residuals_are_told(caplog):
    caplog.set_level("INFO", logger="ctmc")
    ctmc.solve(Stationary(MODELS["M/M/1 load .3"]()), "cyclic_reduction")
    assert "cyclic_reduction: 1 phases, mean drift -0.7, decay rate 0.3" in caplog.text
    assert "residuals relative to the largest exit rate: R" in caplog.text


def test_options_are_checked():
    with pytest.raises(ctmc.UnknownNameError, match="shift"):
        CyclicReduction(shift="sometimes")
    with pytest.raises(ctmc.UnknownNameError, match="form"):
        FunctionalIteration(form="unnatural")


def test_decay_rate_of_queues():
    assert decay_rate(QBD.from_blocks([[0.3]], [[-1.3]], [[1.0]])) == pytest.approx(0.3, rel=1e-14)
    assert decay_rate(QBD.from_blocks([[1e-9]], [[-1 - 1e-9]], [[1.0]])) == pytest.approx(1e-9, rel=1e-6)
    erlang = map_ph_1([[0.0]], [[0.7]], [1.0, 0], [[-2.0, 2.0], [0, -2.0]])
    assert decay_rate(erlang) == pytest.approx(ctmc.solve(Stationary(erlang)).value.decay_rate, rel=1e-12)


@pytest.mark.parametrize("n", [1, 39, 40, 41, 130])
def test_inverse_of_an_m_matrix(n):
    rng = np.random.default_rng(900 + n)
    stay, leave = rng.random((n, n)) * 10.0 ** rng.integers(-8, 8, (n, 1)), rng.random(n)
    matrix = -stay
    np.fill_diagonal(matrix, 0)
    matrix -= np.diag(matrix.sum(axis=1) - leave)
    found = inverse(stay, leave)
    assert found.min() >= 0
    np.testing.assert_allclose(found @ leave, 1, atol=1e-13)
    np.testing.assert_allclose(
        (matrix / np.diag(matrix)[:, None]) @ found, np.diag(1 / np.diag(matrix)), atol=1e-12 * found.max()
    )


def test_r_of_the_functional_iteration_belongs_to_the_last_g():
    queue = random_blocks(120, 0.999)
    assert matrix_residuals(queue, ctmc.solve(Stationary(queue), "functional_iteration").value)["R"] < 1e-16
