"""Logarithmic reduction: exact small cases, accuracy on phases of very different speed, failures, options."""

import itertools
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal, localcontext
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import ctmc
from builders.fork_join import fork_join
from ctmc.model.generator import Generator
from ctmc.model.m_matrix import solve_m_matrix
from ctmc.model.qbd import QBD
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers.qbd._matrix_analytic import Blocks
from solvers.qbd.logarithmic_reduction import LogarithmicReduction, first_passage


def single_server(load: float) -> QBD:
    return QBD.from_blocks([[load]], [[-1 - load]], [[1.0]])


def modulated(arrival_rates, service_rates, changes) -> QBD:
    changes = np.array(changes, dtype=float)
    np.fill_diagonal(changes, 0)
    local = changes - np.diag(changes.sum(axis=1) + arrival_rates + service_rates)
    return QBD.from_blocks(np.diag(arrival_rates), local, np.diag(service_rates))


SLOWLY = modulated(
    [0.5, 1.4, 0.2], [1.0, 1.0, 1.0], 1e-10 * np.array([[0, 0.7, 0.9], [0.375, 0, 1.0], [0.625, 0.25, 0]])
)
QUICKLY = modulated(
    [0.5, 1.4, 0.2], [1.0, 1.0, 1.0], 1e8 * np.array([[0, 0.7, 0.9], [0.375, 0, 1.0], [0.625, 0.25, 0]])
)
# the first phase goes up and the second down, nearly always: I - HL - LH is nearly singular
ALTERNATING = QBD.from_blocks(
    np.array([[0, 1.0], [0, 2e-10]]), np.diag([-1 - 5e-10, -1 - 2e-10]), np.array([[5e-10, 0], [1.0, 0]])
)


def question(queue: QBD, tolerance: float = 1e-12) -> Stationary:
    return Stationary(queue, tolerance=tolerance)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.9, 0.9999, 1 - 1e-9])
def test_single_server_queue_is_exact(load):
    answer = ctmc.solve(question(single_server(load))).value
    assert answer.r.tolist() == [[load]]
    assert answer.g == pytest.approx(1, abs=1e-15)
    assert answer.boundary[0][0] == pytest.approx(1 - load, rel=1e-14)


@pytest.mark.parametrize("seed", [311, 312, 313])
@pytest.mark.parametrize("m", [5, 90])  # within one panel of the elimination, and beyond
def test_matrices_solve_their_equations(seed, m):
    rng = np.random.default_rng(seed)
    up, down, local = rng.uniform(0, 0.9, (m, m)), rng.uniform(0, 1, (m, m)), rng.uniform(0, 2, (m, m))
    np.fill_diagonal(local, 0)
    local -= np.diag((local + up + down).sum(axis=1))
    solution = ctmc.solve(question(QBD.from_blocks(up, local, down)))
    r, g = solution.value.r, solution.value.g
    scale = np.abs(local).max()
    np.testing.assert_allclose(down + local @ g + up @ g @ g, 0, atol=1e-14 * scale)
    np.testing.assert_allclose(up + r @ local + r @ r @ down, 0, atol=1e-14 * scale)
    np.testing.assert_allclose(g.sum(axis=1), 1, atol=1e-14)
    assert solution.defect < 1e-14
    defects = solution.history["defect"]
    assert defects[-1] <= 100 * defects[-2] ** 2


def digits(queue: QBD) -> tuple[list, list]:
    """G and R by the same doubling in 80 decimal digits, with ordinary elimination."""
    with localcontext() as context:
        context.prec = 80
        m = queue.phase_count
        one = range(m)

        def decimal(block):
            return [[Decimal(float(value)) for value in row] for row in block.toarray()]

        def times(a, b):
            return [[sum((a[i][k] * b[k][j] for k in one), Decimal(0)) for j in one] for i in one]

        def plus(a, b):
            return [[a[i][j] + b[i][j] for j in one] for i in one]

        def inverse(a):
            rows = [list(row) + [Decimal(int(i == j)) for j in one] for i, row in enumerate(a)]
            for k in one:
                rows[k] = [value / rows[k][k] for value in rows[k]]
                for i in one:
                    if i != k:
                        rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
            return [row[m:] for row in rows]

        def minus(a):
            return [[-value for value in row] for row in a]

        up, local, down = decimal(queue.up), decimal(queue.local), decimal(queue.down)
        for i in one:
            local[i][i] = -sum((local[i][j] for j in one if j != i), Decimal(0)) - sum(up[i]) - sum(down[i])
        identity = [[Decimal(int(i == j)) for j in one] for i in one]
        away = inverse(minus(local))
        rise, fall = times(away, up), times(away, down)
        g, above = fall, rise
        while max(sum(row) for row in above) > Decimal("1e-60"):
            both = inverse(plus(identity, minus(plus(times(rise, fall), times(fall, rise)))))
            rise, fall = times(both, times(rise, rise)), times(both, times(fall, fall))
            g, above = plus(g, times(above, fall)), times(above, rise)
        return g, times(up, inverse(minus(plus(local, times(up, g)))))


def largest_relative_error(found: np.ndarray, exact: list) -> float:
    pairs = zip(found.ravel(), itertools.chain(*exact), strict=True)
    return max(abs(Decimal(float(x)) / y - 1) if y else abs(Decimal(float(x))) for x, y in pairs)


@pytest.mark.parametrize("queue", [SLOWLY, QUICKLY, ALTERNATING], ids=["slowly", "quickly", "alternating"])
def test_phases_of_another_speed_than_the_levels_cost_no_digits(queue):
    g, r = digits(queue)
    trace = Trace(1e-32)
    found, beyond = first_passage(Blocks.of(queue), trace, limit=60)
    assert trace.status is Status.CONVERGED
    # an ordinary linear solver is off by 6e-7 (slowly) and 2e-8 (quickly) here
    assert largest_relative_error(found, g) < 1e-14
    assert largest_relative_error(queue.up @ Blocks.of(queue).visits(found, beyond), r) < 1e-14
    # slowly: the decay rate is 1 - 3e-10, so that rounding of R alone may cost more than the root of 1e-12
    assert ctmc.solve(question(queue, tolerance=1e-10)).defect < 1e-15


def test_row_sums_of_g_do_not_depend_on_the_tolerance():
    solution = ctmc.solve(question(SLOWLY, tolerance=1e-3))
    np.testing.assert_allclose(solution.value.g.sum(axis=1), 1, rtol=0, atol=1e-15)


def test_load_just_below_one():
    queue = fork_join([5, 2, 1], 0.9999 * 8 / 3, 3, [1, 2, 8])
    solution = ctmc.solve(question(queue))
    assert solution.defect < 1e-15
    assert solution.iterations < 25


# ---- elimination ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 64, 65, 150])
def test_m_matrix_systems(n):
    rng = np.random.default_rng(321 + n)
    stay, leave, right = rng.uniform(0, 1, (n, n)), rng.uniform(0.1, 1, n), rng.uniform(0, 1, (n, 3))
    matrix = -stay
    np.fill_diagonal(matrix, 0)
    matrix -= np.diag(matrix.sum(axis=1) - leave)
    np.testing.assert_allclose(solve_m_matrix(stay, leave, right), np.linalg.solve(matrix, right), rtol=1e-11)


def test_m_matrix_that_is_singular():
    with pytest.raises(ctmc.ModelError, match="phase 0 and those that it leads to are never left"):
        solve_m_matrix(np.array([[0, 1.0], [1.0, 0]]), np.zeros(2), np.eye(2))


# ---- stops and failures ---------------------------------------------------------------------------------------------


def test_too_few_iterations_are_reported():
    solution = ctmc.solve(question(single_server(0.9)), LogarithmicReduction(max_iterations=2), check=False)
    assert solution.status is Status.ITERATION_LIMIT
    assert solution.iterations == 2
    with pytest.raises(ctmc.SolveError, match="logarithmic_reduction: ITERATION_LIMIT"):
        ctmc.solve(question(single_server(0.9)), "logarithmic_reduction(max_iterations=2)")


def test_monitor_stops_it():
    seen = []

    def monitor(iteration, defect):
        seen.append((iteration, defect))
        return iteration == 1

    solution = ctmc.solve(question(SLOWLY), monitor=monitor, check=False)
    assert solution.status is Status.STOPPED
    assert [iteration for iteration, _ in seen] == [0, 1]
    assert seen == list(zip(solution.history["iteration"], solution.history["defect"], strict=True))


def test_same_bits_twice_and_model_unchanged():
    queue = fork_join([5, 2, 1], 1, 3, [1, 2, 8])
    before = [block.toarray() for block in (queue.up, queue.local, queue.down)]
    first, second = (ctmc.solve(question(queue)).value for _ in range(2))
    assert (first.r == second.r).all()
    assert all((a == b).all() for a, b in zip(first.boundary, second.boundary, strict=True))
    assert all((a == b.toarray()).all() for a, b in zip(before, (queue.up, queue.local, queue.down), strict=True))


def test_working_memory_is_asked_for_first():
    queue = QBD.from_blocks(np.eye(60), -3 * np.eye(60), 2 * np.eye(60))
    queue.drift  # noqa: B018  # which asks for memory of its own
    with (
        ctmc.limited_memory("400kB"),
        pytest.raises(ctmc.ModelError, match="logarithmic_reduction, which works on dense"),
    ):
        ctmc.solve(question(queue))


def test_several_recurrent_classes_are_refused():
    queue = QBD.from_blocks(np.eye(2), -3 * np.eye(2), 2 * np.eye(2))
    with pytest.raises(ctmc.ReducibleError, match="the QBD has several recurrent classes"):
        ctmc.solve(question(queue))


def test_generators_and_starts_are_refused():
    with pytest.raises(ctmc.UnsupportedProblemError, match="logarithmic_reduction does not take"):
        ctmc.solve(question(single_server(0.5).truncate(levels=5)), LogarithmicReduction())
    with pytest.raises(ctmc.ModelError, match="start is given"):
        ctmc.solve(question(single_server(0.5)), LogarithmicReduction(), start=np.ones(1))


# ---- boundary solvers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Lazy:
    """Says itself that it did not get there."""

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator

    def run(self, problem, trace):
        n = problem.model.size
        return Outcome(np.full(n, 1 / n), Status.STAGNATED)


@dataclass(frozen=True, kw_only=True)
class Crashing:
    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator

    def run(self, problem, trace):
        raise RuntimeError("out of luck")


QUEUE = fork_join([5, 2, 1], 1, 3, [1, 2, 8])


@pytest.mark.parametrize("boundary_solver", ["gth", "sparse_lu", "gmres", "gmres(restart=30)", "gauss_seidel"])
def test_boundary_solvers_by_name(boundary_solver):
    solution = ctmc.solve(question(QUEUE), LogarithmicReduction(boundary_solver=boundary_solver))
    assert solution.measures()["waiting_time"] == pytest.approx(0.142336726455, abs=1e-11)
    assert solution.solver == f"LogarithmicReduction(max_iterations=50, boundary_solver={boundary_solver!r})"
    assert eval(solution.solver) == LogarithmicReduction(boundary_solver=boundary_solver)


def test_status_of_the_boundary_is_passed_on(caplog):
    caplog.set_level("INFO", logger="ctmc")
    solution = ctmc.solve(question(QUEUE), LogarithmicReduction(boundary_solver=Lazy()), check=False)
    assert solution.status is Status.STAGNATED
    assert "the boundary was not solved by Lazy" in caplog.text
    crashed = ctmc.solve(question(QUEUE), LogarithmicReduction(boundary_solver=Crashing()), check=False)
    assert crashed.status in (Status.BREAKDOWN, Status.NOT_FINITE)
    assert "out of luck" in caplog.text


def test_boundary_solver_is_checked_at_once():
    with pytest.raises(ctmc.UnknownNameError, match="There is no solver 'gmress'; did you mean 'gmres'"):
        LogarithmicReduction(boundary_solver="gmress")
    with pytest.raises(ctmc.UnknownNameError, match="option of gth"):
        LogarithmicReduction(boundary_solver="gth(restart=3)")
    with pytest.raises(ctmc.UnsupportedProblemError, match="boundary_solver is logarithmic_reduction, which does not"):
        LogarithmicReduction(boundary_solver="logarithmic_reduction")
    with pytest.raises(ctmc.UnsupportedProblemError, match="boundary_solver is uniformization"):
        LogarithmicReduction(boundary_solver="uniformization")
    with pytest.raises(ctmc.ModelError, match="solver is 7"):
        LogarithmicReduction(boundary_solver=7)


@pytest.mark.parametrize("limit", [0, -3, 2.5, True, "many"])
def test_iteration_limit_is_checked(limit):
    with pytest.raises(ctmc.ModelError, match=r"max_iterations is .*allowed is a whole number"):
        LogarithmicReduction(max_iterations=limit)


def test_solve_stays_a_function_whatever_is_imported_first():
    script = "from ctmc.solve import solve\nimport ctmc\nassert ctmc.solve is solve"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[1])
