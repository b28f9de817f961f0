"""`solve` on reducible chains: mixtures of the classes, and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from scipy.linalg import expm
from solve_examples import known, queue, two_queues

import ctmc
from ctmc.errors import ReducibleError
from ctmc.model import absorption, class_factors
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.problem import Stationary
from ctmc.solution import HISTORY, Outcome, Status
from solvers.stationary.gauss_seidel import GaussSeidel
from solvers.stationary.power_iteration import PowerIteration

# ---- reducible chains -----------------------------------------------------------------------------------------------------


def mixture(rates, initial):
    return ctmc.solve(Stationary(Generator.from_matrix(rates), initial=initial))


GAMBLE = np.zeros((6, 6))  # 0 and 5 absorb; between them one step up at rate 2, one down at rate 1
for _k in range(1, 5):
    GAMBLE[_k, _k + 1], GAMBLE[_k, _k - 1] = 2.0, 1.0


@pytest.mark.parametrize("begin", range(6))
def test_gamblers_ruin_by_hand(begin):
    """P(5 before 0 from k) = (1 - 2^-k) / (1 - 2^-5)."""
    win = Fraction(2**begin - 1, 2**begin) / Fraction(31, 32)
    solution = mixture(GAMBLE, (begin,))
    np.testing.assert_allclose(solution.value, [float(1 - win), 0, 0, 0, 0, float(win)], rtol=1e-14, atol=0)
    assert solution.defect == 0
    assert solution.iterations == 0


@pytest.mark.parametrize("seed", [71, 72, 73])
@pytest.mark.parametrize("small", [1000, 0])  # by elimination and by sparse LU
def test_mixtures_against_the_distribution_at_a_late_time(seed, small, monkeypatch):
    monkeypatch.setattr(absorption, "SMALL", small)
    rng = np.random.default_rng(seed)
    sizes = [5, 1, 4, 3]  # transient states, an absorbing one and two classes
    size = sum(sizes)
    rates = np.zeros((size, size))
    offset = sizes[0]
    rates[:offset] = rng.random((offset, size)) * (rng.random((offset, size)) < 0.5)
    rates[0, 1], rates[1, 2], rates[2, 3], rates[3, 4], rates[4, [5, 6, 11]] = 1, 1, 1, 1, [1, 2, 3]
    for length in sizes[1:]:
        part = slice(offset, offset + length)
        rates[part, part] = rng.random((length, length))
        offset += length
    np.fill_diagonal(rates, 0)
    order = rng.permutation(size)
    rates = rates[np.ix_(order, order)]
    begin = rng.random(size)
    begin /= begin.sum()
    late = begin @ expm((rates - np.diag(rates.sum(axis=1))) * 500)
    for solver in ("gth", "gmres", "gauss_seidel", "sparse_lu"):
        solution = ctmc.solve(Stationary(Generator.from_matrix(rates), initial=begin), solver)
        np.testing.assert_allclose(solution.value, late, atol=1e-11)


def test_transient_states_before_one_class_need_no_start():
    rates = [[0, 1.0, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 1.0], [0, 0, 3.0, 0]]
    solution = ctmc.solve(Stationary(Generator.from_matrix(rates)))
    np.testing.assert_allclose(solution.value, [0, 0, 0.75, 0.25], rtol=1e-14)
    for begin in range(4):
        np.testing.assert_allclose(mixture(rates, (begin,)).value, [0, 0, 0.75, 0.25], rtol=1e-14)


def test_absorbing_chain_and_one_state():
    assert ctmc.solve(Stationary(Generator.from_matrix(np.diag([1.0, 1.0], 1)))).value.tolist() == [0, 0, 1]
    one = ctmc.solve(Stationary(Generator.from_matrix([[0.0]])))
    assert (one.value.tolist(), one.defect, one.status) == ([1.0], 0.0, Status.CONVERGED)
    nothing_moves = mixture(np.zeros((3, 3)), {(0,): 0.25, (2,): 0.75})
    assert nothing_moves.value.tolist() == [0.25, 0, 0.75]


def test_initial_distribution_of_the_model_is_the_default():
    chain = Generator.from_matrix(np.zeros((3, 3)), initial=(1,))
    assert ctmc.solve(Stationary(chain)).value.tolist() == [0, 1, 0]
    assert ctmc.solve(Stationary(chain, initial=(2,))).value.tolist() == [0, 0, 1]


def test_several_classes_without_a_start():
    rates = np.zeros((5, 5))
    rates[1, 0], rates[1, 2], rates[2, 3], rates[3, 2] = 1.0, 1.0, 1.0, 1.0
    with pytest.raises(ReducibleError) as caught:
        ctmc.solve(Stationary(Generator.from_matrix(rates)))
    assert str(caught.value) == (
        "the chain has 3 recurrent classes (with states 0 (0,), 2 (2,), 4 (4,)), so its long-run distribution depends on the "
        "start; give an initial state or distribution."
    )
    with pytest.raises(ReducibleError, match=r"4 recurrent classes \(with states 0 \(0,\), 1 \(1,\), 2 \(2,\), \.\.\)"):
        ctmc.solve(Stationary(Generator.from_matrix(np.zeros((4, 4)))), check=False)


def test_history_goes_on_from_class_to_class():
    solution = ctmc.solve(two_queues(), GaussSeidel(sweeps_per_check=1))
    history = solution.history
    assert history.dtype == HISTORY
    assert (np.diff(history["iteration"]) == 1).all()
    assert (np.diff(history["products"]) >= 0).all()
    assert (np.diff(history["seconds"]) >= 0).all()
    assert (history["defect"] <= 1e-12).sum() == 2  # the end of each class
    assert solution.iterations == len(history) - 1
    assert solution.products == history["products"][-1] + 1


def test_warm_start_of_a_reducible_chain():
    problem, solver = two_queues(), GaussSeidel(sweeps_per_check=1)
    cold = ctmc.solve(problem, solver)
    warm = ctmc.solve(problem, solver, start=cold.value)
    assert warm.iterations < cold.iterations / 3
    half = np.where(np.arange(13) < 7, cold.value, 0)  # nothing to begin with in the second class
    assert warm.iterations < ctmc.solve(problem, solver, start=half).iterations < cold.iterations


def test_status_of_any_class_is_the_status():
    solution = ctmc.solve(two_queues(), PowerIteration(max_iterations=2), check=False)
    assert solution.status is Status.ITERATION_LIMIT
    assert solution.value.sum() == pytest.approx(1)


def test_a_stop_in_one_class_is_not_asked_for_again():
    asked = []
    solution = ctmc.solve(
        two_queues(), "power_iteration", monitor=lambda k, defect: asked.append(k) or len(asked) == 3, check=False
    )
    assert solution.status is Status.STOPPED
    assert len(asked) == 3
    assert solution.value.sum() == pytest.approx(1)  # a start to go on from


def test_the_time_limit_is_for_all_classes_together(monkeypatch):
    clock = [0.0]
    times = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("ctmc.trace.time", times)
    monkeypatch.setattr("ctmc.resume.time", times)
    limits = []

    @dataclass(frozen=True, kw_only=True)
    class Slow:
        solves: ClassVar = (Stationary,)
        needs: ClassVar = Generator

        def run(self, problem, trace):
            limits.append(trace.time_limit)
            clock[0] += 4.0
            return Outcome(gth(problem.model.to_scipy().toarray()))

    assert ctmc.solve(two_queues(), Slow(), time_limit=5.0).converged
    assert limits == [5.0, 1.0]


# ---- weights of the classes -----------------------------------------------------------------------------------------------


def slow_choice(exit_rate):
    """Two transient states that play with each other for 1 / exit_rate, then end in 2 or 3, one time to two."""
    rates = np.zeros((4, 4))
    rates[0, 1], rates[1, 0] = 1.0, 1.0
    rates[0, 2], rates[1, 3] = exit_rate, 2 * exit_rate
    return Generator.from_matrix(rates)


def exact_choice(exit_rate):
    """The probability to end in 2 from state 0, in fractions."""
    e = Fraction(exit_rate)
    up, leave_0, leave_1 = Fraction(1), e, 2 * e
    # x0 = (leave_0 + up x1) / (up + leave_0), x1 = up x0 / (up + leave_1)
    return leave_0 * (up + leave_1) / ((up + leave_0) * (up + leave_1) - up * up)


@pytest.mark.parametrize("exit_rate", [1.0, 1e-6, 1e-10, 1e-14, 1e-15])
def test_slow_transient_states_cost_no_digits(exit_rate):
    weights, *bounds = absorption.class_weights(slow_choice(exit_rate), np.array([1.0, 0, 0, 0]))
    assert bounds == [0, 0]
    assert weights[0] == pytest.approx(float(exact_choice(exit_rate)), rel=1e-14)
    solution = ctmc.solve(Stationary(slow_choice(exit_rate), initial=(0,)))
    np.testing.assert_allclose(solution.value[2:], weights, rtol=1e-14)


@pytest.mark.parametrize("exit_rate", [1.0, 1e-6, 1e-10, 1e-14, 1e-15])
def test_sparse_weights_are_as_good_as_their_bound(exit_rate, monkeypatch):
    monkeypatch.setattr(absorption, "SMALL", 0)
    monkeypatch.setattr(class_factors, "CHEAP", 0)
    problem = Stationary(slow_choice(exit_rate), initial=(0,))
    weights, *bounds = problem.class_weights
    bound = sum(bounds)
    assert abs(weights[0] - float(exact_choice(exit_rate))) * 2 <= bound
    # the rounding in the residual is part of the bound, even where the residual comes out as 0
    assert 2.0**-52 / exit_rate <= bound <= 100 * 2.0**-52 / exit_rate
    solution = ctmc.solve(problem, check=False)
    assert solution.converged == (bound <= 1e-6)
    if not solution.converged:
        assert solution.status is Status.INACCURATE
        assert "weights of the recurrent classes are off by up to" in solution.reason


@pytest.mark.parametrize("cheap", [0, class_factors.CHEAP])
@pytest.mark.parametrize("seed", range(501, 511))
def test_bound_of_the_weights_holds(seed, cheap, monkeypatch):
    """Against elimination, on transient states whose rates spread over many decades."""
    rng = np.random.default_rng(seed)
    size, ends = 30, 4
    rates = np.where(rng.random((size, size)) < 0.2, 10 ** rng.uniform(-9, 0, (size, size)), 0.0)
    rates[-ends:] = 0
    rates[np.arange(size - ends), np.arange(1, size - ends + 1)] = 10 ** rng.uniform(-9, 0, size - ends)
    np.fill_diagonal(rates, 0)
    chain = Generator.from_matrix(rates)
    begin = np.zeros(size)
    begin[: size - ends] = rng.dirichlet(np.ones(size - ends))
    right = absorption.class_weights(chain, begin)[0]
    monkeypatch.setattr(absorption, "SMALL", 0)
    monkeypatch.setattr(class_factors, "CHEAP", cheap)
    weights, *bounds = absorption.class_weights(chain, begin)
    assert np.abs(weights - right).sum() <= sum(bounds) + 1e-14
    assert weights.sum() == pytest.approx(1, abs=1e-15)


def test_weights_that_need_no_equations():
    chain = slow_choice(1e-3)
    weights, *bounds = absorption.class_weights(chain, np.array([0, 0, 0.25, 0.75]))
    assert (weights.tolist(), bounds) == ([0.25, 0.75], [0.0, 0.0])
    assert absorption.class_weights(queue(), known()) == (np.ones(1), 0.0, 0.0)
