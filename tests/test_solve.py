"""`solve`: the right solver, honest statuses, limits, and plug-ins that misbehave."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from solve_examples import known, queue, two_queues

import ctmc
from ctmc import registry
from ctmc.defaults import SMALL, default_solver, next_method
from ctmc.errors import ModelError, SolveError, UnstableError, UnsupportedProblemError
from ctmc.model.generator import Generator
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.model.state_space import Lattice
from ctmc.problem import Stationary, Transient
from ctmc.solution import Outcome, Status
from solvers.stationary.gauss_seidel import GaussSeidel
from solvers.stationary.power_iteration import PowerIteration

MM1 = QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])


# ---- which solver -----------------------------------------------------------------------------------------------------


def test_default_solvers():
    def sized(size):
        first, others = np.zeros(size - 1, dtype=int), np.arange(1, size)
        ends = np.concatenate([first, others]), np.concatenate([others, first])
        return Stationary(Generator.from_transitions(*ends, np.ones(2 * size - 2), Lattice((size - 1,))))

    assert default_solver(sized(SMALL)) == "gth"
    assert default_solver(sized(SMALL + 1)) == "bicgstab"
    assert default_solver(Stationary(MM1)) == "logarithmic_reduction"
    assert default_solver(Transient(queue(), initial=(0,), times=[1.0])) == "uniformization"


@pytest.mark.parametrize(
    ("problem", "solver"),
    [
        (Stationary(queue()), "Gth()"),
        (Stationary(MM1), "LogarithmicReduction(max_iterations=50, boundary_solver='gth')"),
        (Transient(queue(), initial=(0,), times=[1.0]), "Uniformization(rate_factor=1.02, max_iterations=100000000)"),
    ],
)
def test_default_is_taken_and_named(problem, solver):
    solution = ctmc.solve(problem)
    assert solution.solver == solver
    assert solution.converged
    assert solution.reason.startswith("the defect")


def test_a_default_is_registered_for_every_problem():
    for problem in (Stationary(queue()), Stationary(MM1), Transient(queue(), initial=(0,), times=[1.0])):
        assert default_solver(problem) in registry.solvers_for(problem)


@pytest.mark.parametrize("given", ["gauss_seidel(direction='forward')", GaussSeidel(direction="forward")])
def test_solvers_by_name_and_as_objects(given):
    solution = ctmc.solve(Stationary(queue()), given)
    assert solution.solver.startswith("GaussSeidel(direction='forward'")
    np.testing.assert_allclose(solution.value, known(), rtol=1e-10)


def test_what_is_no_solver():
    for given in (7, GaussSeidel, object()):
        with pytest.raises(ModelError, match="allowed is a solver object or the name of one"):
            ctmc.solve(Stationary(queue()), given)


@pytest.mark.parametrize(
    ("problem", "solver", "names"),
    [
        (Stationary(queue()), "uniformization", ["gth", "gmres", "gauss_seidel", "sparse_lu", "power_iteration"]),
        (Stationary(MM1), "gth", ["logarithmic_reduction"]),
        (Transient(queue(), initial=(0,), times=[1.0]), "gmres", ["uniformization"]),
    ],
)
def test_unsupported_problems_list_the_solvers_that_do(problem, solver, names):
    with pytest.raises(UnsupportedProblemError) as caught:
        ctmc.solve(problem, solver)
    text = str(caught.value)
    assert text.startswith(
        f"{solver} does not take a {type(problem).__name__} problem on a {type(problem.model).__name__}"
    )
    listed = text.rpartition("solvers that do: ")[2].rstrip(".").split(", ")
    assert set(names) <= set(listed)
    assert solver not in listed


# ---- failure -----------------------------------------------------------------------------------------------------------


def test_failure_carries_the_solution_and_names_the_next_method():
    with pytest.raises(SolveError) as caught:
        ctmc.solve(Stationary(queue()), PowerIteration(max_iterations=3))
    solution = caught.value.solution
    assert solution.status is Status.ITERATION_LIMIT
    assert solution.iterations == 3
    assert solution.defect > 1e-12
    assert solution.value.sum() == pytest.approx(1)
    text = str(caught.value)
    assert text.startswith("power_iteration: ITERATION_LIMIT, the recomputed defect")
    assert Status.ITERATION_LIMIT.advice in text
    assert text.endswith("Next to try: gth.")


def test_unchecked_failure_is_returned():
    solution = ctmc.solve(Stationary(queue()), PowerIteration(max_iterations=3), check=False)
    assert not solution.converged
    assert solution.status is Status.ITERATION_LIMIT


def test_next_methods():
    small, qbd, over_time = Stationary(queue()), Stationary(MM1), Transient(queue(), initial=(0,), times=[1.0])
    large = Stationary(Generator.from_transitions([], [], [], Lattice((SMALL,))))
    assert [next_method(small, name) for name in ("gth", "gmres", "power_iteration")] == ["bicgstab", "gth", "gth"]
    assert [next_method(large, name) for name in ("bicgstab", "gmres")] == ["gmres", "bicgstab"]
    assert next_method(qbd, "logarithmic_reduction") == ""
    assert next_method(qbd, "other") == "logarithmic_reduction"
    assert [next_method(over_time, name) for name in ("uniformization", "chebyshev")] == ["chebyshev", "rational"]


def test_answer_that_is_better_than_its_claim():
    """The certificate alone decides: a solver that stopped early with a right answer has a right answer."""

    @dataclass(frozen=True, kw_only=True)
    class Modest:
        solves: ClassVar = (Stationary,)
        needs: ClassVar = Generator

        def run(self, problem, trace):
            return Outcome(known(), Status.STAGNATED)

    assert ctmc.solve(Stationary(queue()), Modest()).converged


# ---- start, limits, monitor --------------------------------------------------------------------------------------------


def test_start_is_used():
    solver = GaussSeidel(sweeps_per_check=1)
    cold = ctmc.solve(Stationary(queue()), solver)
    warm = ctmc.solve(Stationary(queue()), solver, start=7 * cold.value)
    assert cold.iterations > 5
    assert warm.iterations <= 1
    assert ctmc.solve(Stationary(queue()), solver, start=cold.value.tolist()).iterations <= 1


@pytest.mark.parametrize("solver", ["gth", "gauss_seidel"])
@pytest.mark.parametrize(
    ("start", "words"),
    [
        (np.ones(3), "start has shape (3,); allowed is (9,)"),
        (np.full(9, np.nan), "start[0] is nan"),
        (-np.ones(9), "start[0] is -1.0"),
        (np.zeros(9), "start sums to 0.0"),
        ("nine", "start is 'nine'; allowed are 9 real numbers >= 0"),
    ],
)
def test_bad_starts_are_refused_whatever_the_solver(solver, start, words):
    with pytest.raises(ModelError) as caught:
        ctmc.solve(Stationary(queue()), solver, start=start)
    assert words in str(caught.value)


@pytest.mark.parametrize("problem", [Stationary(MM1), Transient(queue(), initial=(0,), times=[1.0])])
def test_a_start_where_none_is_taken(problem):
    with pytest.raises(ModelError, match=r"start is given, but a .* problem on a .* takes none"):
        ctmc.solve(problem, start=np.ones(9))


def test_time_limit():
    slow = Stationary(Generator.from_matrix([[0, 1e-9, 0], [1e-9, 0, 1.0], [0, 2.0, 0]]))
    solution = ctmc.solve(slow, PowerIteration(max_iterations=10**9), time_limit=1e-9, check=False)
    assert solution.status is Status.TIME_LIMIT
    assert solution.value.sum() == pytest.approx(1)


@pytest.mark.parametrize("limit", [0, -1.0, math.nan, "1"])
def test_bad_time_limits_are_refused_even_where_no_solver_runs(limit):
    for chain in (queue(), Generator.from_matrix([[0.0]])):
        with pytest.raises(ModelError, match="time_limit"):
            ctmc.solve(Stationary(chain), "gth", time_limit=limit)


def test_monitor_stops():
    asked = []

    def monitor(iteration, defect):
        asked.append(iteration)
        return len(asked) == 4

    solution = ctmc.solve(Stationary(queue()), "power_iteration", monitor=monitor, check=False)
    assert solution.status is Status.STOPPED
    assert asked == [0, 1, 2, 3]
    assert solution.history["iteration"].tolist() == asked


# ---- what is counted and kept -------------------------------------------------------------------------------------------


def test_products_are_counted_with_sweeps_and_certificate():
    power = ctmc.solve(Stationary(queue()), "power_iteration")
    assert power.products == power.iterations + 2  # one for the start, one of the certificate
    sweeps = ctmc.solve(Stationary(queue()), GaussSeidel(direction="symmetric", sweeps_per_check=1))
    assert sweeps.products == 3 * sweeps.iterations + 2
    forward = ctmc.solve(Stationary(queue()), GaussSeidel(direction="forward", sweeps_per_check=5, relaxation=0.9))
    assert forward.iterations % 5 == 0
    assert forward.products == forward.iterations + forward.iterations // 5 + 2
    assert ctmc.solve(Stationary(queue()), "gth").products == 1
    assert forward.history["products"].tolist() == [1 + 6 * k for k in range(len(forward.history))]


def test_the_users_model_counts_nothing():
    model = queue()
    ctmc.solve(Stationary(model), "power_iteration")
    assert model._counter is None


def test_results_are_read_only():
    solutions = [
        ctmc.solve(Stationary(queue()), "gmres"),
        ctmc.solve(Transient(queue(), initial=(0,), times=[1.0])),
    ]
    for solution in solutions:
        for array in (solution.value, solution.history):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
    geometric = ctmc.solve(Stationary(MM1)).value
    for array in (*geometric.boundary, geometric.r, geometric.g):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        solutions[0].status = Status.STOPPED


@pytest.mark.parametrize("solver", ["gth", "gmres", "sparse_lu", "gauss_seidel", "power_iteration"])
def test_same_bits_twice(solver):
    first, again = (ctmc.solve(Stationary(queue()), solver) for _ in range(2))
    assert first.value.tobytes() == again.value.tobytes()
    assert first.history["defect"].tobytes() == again.history["defect"].tobytes()
    assert (first.products, first.defect) == (again.products, again.defect)


def test_log_tells_begin_and_end(caplog):
    with caplog.at_level("INFO", logger="ctmc.solve"):
        ctmc.solve(Stationary(queue()), "gth")
    assert caplog.messages[0] == "gth: Stationary on Generator"
    assert caplog.messages[1].startswith("gth: CONVERGED, defect ")


# ---- QBD -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arrivals", "words"), [(2.0, "zero (null recurrent)"), (2.5, "0.5 per unit of time")])
def test_unstable_queues(arrivals, words):
    model = QBD.from_blocks([[arrivals]], [[-2.0 - arrivals]], [[2.0]])
    with pytest.raises(UnstableError) as caught:
        ctmc.solve(Stationary(model))
    assert f"the mean drift of the level is {words}" in str(caught.value)
    assert "allowed is a negative one" in str(caught.value)


# ---- plug-ins that misbehave -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Returns whatever it is given, or raises it."""

    solves: ClassVar = (Stationary, Transient)
    needs: ClassVar = (Generator, QBD)
    answer: Any = None

    def run(self, problem, trace):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


WRONG = [
    (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero."),
    (MemoryError(), "MemoryError: ."),
    (RuntimeError("line\n\x1b[31mtwo"), "RuntimeError: line\\x0a\\x1b[31mtwo."),
    (None, "TypeError: the solver returned a NoneType, not an Outcome."),
    (known(), "TypeError: the solver returned a ndarray, not an Outcome."),
    (Outcome(known(), status="fine"), "TypeError: the solver's status is 'fine', not a Status."),
    (Outcome(known(), history=[1, 2]), "TypeError: the solver's history is a list, not that of its trace."),
    (Outcome(known(), history=np.zeros(3)), "TypeError: the solver's history is a ndarray, not that of its trace."),
    (Outcome(None), "the answer is a NoneType"),
    (Outcome(known()[:4]), "shape (4,), not a float64 array of shape (9,)"),
    (Outcome(known().astype(complex)), "complex128"),
]


@pytest.mark.parametrize(("answer", "sentence"), WRONG)
def test_crashing_and_nonsense_solvers(answer, sentence):
    solution = ctmc.solve(Stationary(queue()), Answers(answer=answer), check=False)
    assert solution.status is Status.BREAKDOWN
    assert sentence in solution.reason
    assert math.isnan(solution.defect)
    assert "BREAKDOWN" in repr(solution)
    with pytest.raises(SolveError) as caught:
        ctmc.solve(Stationary(queue()), Answers(answer=answer))
    assert str(caught.value).startswith("answers: BREAKDOWN, ")
    assert str(caught.value).endswith("Next to try: gth.")
    if isinstance(answer, Exception):
        assert caught.value.__cause__ is answer


@pytest.mark.parametrize("answer", [None, Outcome(known()[:4]), Outcome(known()[:6].astype(complex))])
def test_nonsense_in_one_class_of_many(answer):
    solution = ctmc.solve(two_queues(), Answers(answer=answer), check=False)
    assert solution.status is Status.BREAKDOWN
    assert solution.value.shape == (13,)


def test_the_answer_of_a_crashed_solver_has_the_right_form():
    crash = Answers(answer=ValueError("no"))
    assert np.isnan(ctmc.solve(Stationary(queue()), crash, check=False).value).all()
    times = Transient(queue(), initial=(0,), times=[1.0, 2.0])
    assert ctmc.solve(times, crash, check=False).value.shape == (2, 9)
    geometric = ctmc.solve(Stationary(MM1), crash, check=False)
    assert isinstance(geometric.value, MatrixGeometric)
    assert math.isnan(geometric.expected("level"))


def test_false_claims_are_found():
    lie = np.full(9, 1 / 9)
    solution = ctmc.solve(Stationary(queue()), Answers(answer=Outcome(lie, Status.CONVERGED)), check=False)
    assert solution.status is Status.INACCURATE
    assert solution.defect == pytest.approx(1 / 12)
    not_a_number = ctmc.solve(Stationary(queue()), Answers(answer=Outcome(lie * np.nan)), check=False)
    assert not_a_number.status is Status.NOT_FINITE
    one_class = ctmc.solve(two_queues(), Answers(answer=Outcome(np.full(6, 1 / 6))), check=False)
    assert one_class.status is Status.INACCURATE


def test_errors_of_the_framework_pass_through():
    with pytest.raises(ModelError, match="no room"):
        ctmc.solve(Stationary(queue()), Answers(answer=ModelError("no room")), check=False)


def test_interrupts_pass_through():
    @dataclass(frozen=True, kw_only=True)
    class Interrupted:
        solves: ClassVar = (Stationary,)
        needs: ClassVar = Generator

        def run(self, problem, trace):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ctmc.solve(Stationary(queue()), Interrupted(), check=False)
