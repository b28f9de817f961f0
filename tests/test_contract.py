"""Tests of the tester: what a solver does wrong is found and named, and a good one passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from contract_examples import COUNTER, Compliant, Forgetful, Iterative, Melting, Plugin, eliminated

from ctmc import contract, registry
from ctmc.contract import Case, check_solver, solver_checks
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.problem import AccumulatedReward, DiscountedReward, FirstPassage, Stationary, Transient
from ctmc.solution import Outcome, Status

# the repr of a class inside a function is not its name, so they stand here


@dataclass(frozen=True, kw_only=True)
class Lying(Plugin):
    """Claims the first thing that comes to mind."""

    def run(self, problem, trace):
        size = problem.model.size
        return Outcome(np.full(size, 1 / size), Status.CONVERGED)


@dataclass(frozen=True, kw_only=True)
class Crashing(Plugin):
    """Does not get there."""

    def run(self, problem, trace):
        raise ZeroDivisionError("division by zero")


@dataclass(frozen=True, kw_only=True)
class CrashingLater(Plugin):
    """Works once for each model."""

    def run(self, problem, trace):
        if not problem.model.exit_rates.flags.writeable:
            rates = problem.model.rates
            seen = SEEN.setdefault(id(rates), [rates])  # kept, so that no other array gets its number
            seen.append(rates)
            if len(seen) > 2:
                raise ModelError("once is enough")
        return Outcome(eliminated(problem))


SEEN: dict[int, list[np.ndarray]] = {}


@dataclass(frozen=True, kw_only=True)
class Mutating(Plugin):
    """Makes the model fit the answer."""

    def run(self, problem, trace):
        answer = eliminated(problem)
        problem.model.rates.flags.writeable = True
        problem.model.rates[:] *= 2
        problem.model.exit_rates.flags.writeable = True
        problem.model.exit_rates[:] *= 2
        return Outcome(answer)


@dataclass(frozen=True, kw_only=True)
class Restless(Plugin):
    """Never gives the same digits."""

    def run(self, problem, trace):
        answer = eliminated(problem)
        answer[-1] *= 1 + 2.0**-50 * next(COUNTER)
        return Outcome(answer / answer.sum())


@dataclass(frozen=True, kw_only=True)
class Shaky(Restless):
    """Never gives the same digits, and says so."""

    same_bits: ClassVar = False


@dataclass(frozen=True, kw_only=True)
class Careless(Plugin):
    """Says so, and means other numbers."""

    same_bits: ClassVar = False

    def run(self, problem, trace):
        answer = eliminated(problem)
        answer[-1] *= 1 + 1e-8 * next(COUNTER)
        return Outcome(answer / answer.sum())


@dataclass(frozen=True, kw_only=True)
class Deaf(Plugin):
    """Has a limit, and asks nobody.

    max_iterations : int
    """

    max_iterations: int = 3_000

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


@dataclass(frozen=True, kw_only=True)
class Stubborn(Plugin):
    """Asks the monitor, and goes on.

    max_iterations : int
    """

    max_iterations: int = 3_000

    def run(self, problem, trace):
        for _ in range(5):
            trace.finished(1.0, limit=self.max_iterations)
        return Outcome(np.full(problem.model.size, np.nan) if trace.iteration < 2 else eliminated(problem))


@dataclass(frozen=True, kw_only=True)
class Starved(Plugin):
    """Claims success when it was stopped by its own limit.

    max_iterations : int
    """

    max_iterations: int = 3_000

    def run(self, problem, trace):
        outcome = Iterative(max_iterations=self.max_iterations).run(problem, trace)
        return Outcome(outcome.value, Status.CONVERGED, outcome.history)


@dataclass(frozen=True, kw_only=True)
class Greedy(Plugin):
    """Has a limit that does not limit.

    max_iterations : int
    """

    max_iterations: int = 3_000

    def run(self, problem, trace):
        return Iterative().run(problem, trace)


@dataclass(frozen=True)
class Positional(Plugin):
    """Takes its option by position.

    option : int
    """

    option: int = 1

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


@dataclass(frozen=True, kw_only=True)
class Undocumented(Plugin):
    option: int = 1

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


Undocumented.__doc__ = "Undocumented(*, option: int = 1)"  # what dataclass writes where nothing is inherited


@dataclass(frozen=True, kw_only=True)
class Silent(Plugin):
    """Does not tell what it is for."""

    riddle: int = 1

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


@dataclass(frozen=True, kw_only=True, repr=False)
class Anonymous(Plugin):
    """Has a repr of its own."""

    def __repr__(self):
        return "<a solver>"

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


@dataclass(frozen=True, kw_only=True)
class Ordered(Plugin):
    """Right only where the first state is among those with the largest exit rate, or all rates are small."""

    def run(self, problem, trace):
        answer = eliminated(problem)
        if problem.model.size == 60 and problem.model.exit_rates[0] != ORDERED_FIRST:
            answer = answer[::-1].copy()
        return Outcome(answer)


ORDERED_FIRST = next(case.problem.model.exit_rates[0] for case in contract.cases() if case.name == "random")


@dataclass(frozen=True, kw_only=True)
class Demanding(Plugin):
    """Cannot be made without being told how.

    option : int
    """

    option: int

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


@dataclass(frozen=True, kw_only=True)
class Useless:
    """Takes nothing that there is."""

    solves: ClassVar = (int,)
    needs: ClassVar = str

    def run(self, problem, trace):
        return Outcome(None)


class Plain(Plugin):
    """Is no dataclass."""

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


@dataclass(frozen=True, kw_only=True)
class Empty:
    """Has nothing to run."""

    solves: ClassVar = (Stationary,)


@dataclass(frozen=True, kw_only=True)
class Euler:
    """One step of Euler's method: distributions and integrals that fit each other, and are wrong."""

    solves: ClassVar = (Transient,)
    needs: ClassVar = Generator

    def run(self, problem, trace):
        for k, time in enumerate(problem.times):
            integral = problem.start * time
            trace.reached(k, problem.start + problem.change(integral), integral)
        return Outcome(None)


@pytest.mark.parametrize(
    "solver", [Compliant, Compliant(), Iterative, Iterative(max_iterations=2_000), Shaky, "gth", "gmres"]
)
def test_good_solvers_pass(solver):
    assert check_solver(solver) == []


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        (Lying, ["Lying on 'random': INACCURATE, the recomputed defect"]),
        (Crashing, ["Crashing on 'random': BREAKDOWN, ZeroDivisionError: division by zero"]),
        (CrashingLater, ["CrashingLater on 'random' raised ModelError when it was run again: once is enough"]),
        (Mutating, ["Mutating on 'random' changed the model's arrays."]),
        (Restless, ["Restless on 'random' gives other numbers when it is run again."]),
        (Careless, ["Careless on 'random' gives other numbers when it is run again."]),
        (Deaf, ["Deaf never asks the monitor, so it cannot be stopped."]),
        (Stubborn, ["Stubborn goes on after the monitor said stop (CONVERGED, asked 5 times)."]),
        (Starved, ["Starved with one iteration says INACCURATE, not ITERATION_LIMIT."]),
        (Greedy, ["Greedy makes ", " iterations although max_iterations is 1."]),
        (Melting, ["Melting is not frozen"]),
        (Positional, ["option option of Positional is not keyword-only."]),
        (Undocumented, ["Undocumented has no docstring.", "option option of Undocumented is not in its docstring."]),
        (Silent, ["option riddle of Silent is not in its docstring."]),
        (Anonymous, ["repr of Anonymous is <a solver>; allowed is Anonymous(option=value, ..) with plain values."]),
        (Forgetful, ["repr of Forgetful does not give it back."]),
        (Ordered, ["Ordered on 'random', states renumbered: INACCURATE"]),
        (Demanding, ["option option of Demanding has no default."]),
        (Useless, ["Useless takes none of the cases: nothing is tested."]),
        (Plain, ["Plain is not a dataclass."]),
        (Empty, ["Empty has no needs.", "Empty has no run."]),
        (Euler, ["Euler on 'transient'"]),
    ],
)
def test_bad_solvers_are_found_and_named(solver, words):
    found = check_solver(solver)
    for word in words:
        assert any(word in sentence for sentence in found), found


def test_a_plausible_wrong_answer_is_found_by_the_known_one():
    """The certificate of a distribution over time shows no more than that it fits its integral."""
    chain = Generator.from_matrix([[0, 1.0], [0.5, 0]])
    case = Case("half a step", Transient(chain, initial=(0,), times=[0.5]))
    (sentence,) = contract.check_case(Euler(), case)
    assert "CONVERGED, but the answer is 0.3" in sentence


def test_hard_cases_may_fail_but_not_lie():
    case = next(case for case in contract.cases() if case.name == "nearly decomposable")
    assert contract.check_case(Lying(), case) == []  # INACCURATE is an honest answer there
    wrong = Case("hard", Stationary(Generator.from_matrix([[0, 1.0], [1.0, 0]])), hard=True, answer=[0.4, 0.6])
    (sentence,) = contract.check_case(Compliant(), wrong)
    assert "CONVERGED, but the answer is 0.2 away from the known one." in sentence


def test_cases_of_ones_own():
    mine = Case("mine", Stationary(Generator.from_matrix([[0, 3.0], [1.0, 0]])), answer=[0.25, 0.75])
    assert ("mine", contract.check_case) in [
        (name, getattr(check, "func", None)) for name, check in solver_checks(Compliant, [mine])
    ]
    assert check_solver(Compliant, [mine]) == []
    assert len(check_solver(Lying, [mine])) == len(check_solver(Lying)) + 1


def test_cases_are_of_every_kind():
    cases = contract.cases()
    assert len({case.name for case in cases}) == len(cases) >= 15
    assert sum(case.hard for case in cases) >= 5
    kinds = {Stationary, Transient, AccumulatedReward, DiscountedReward, FirstPassage}
    assert {type(case.problem) for case in cases} == kinds
    for case in cases:
        assert case.known() is case.known() is not None  # found once, for all solvers, none of which can change it
        assert not case.known().flags.writeable


def test_refusal_is_checked(monkeypatch):
    assert contract.check_refusal(Compliant()) == []
    monkeypatch.setattr(registry, "check_takes", lambda solver, problem: None)
    (sentence,) = contract.check_refusal(Compliant())
    assert "Compliant" in sentence


@dataclass(frozen=True, kw_only=True)
class Hasty:
    """Takes the time in the state itself for the whole passage time."""

    solves: ClassVar = (FirstPassage,)
    needs: ClassVar = Generator

    def run(self, problem, trace):
        """Return b / q."""
        return Outcome(np.where(problem.inside, problem.right / np.maximum(problem.model.exit_rates, 1e-300), 0.0))


def test_a_wrong_passage_time_is_not_certified():
    chain = Generator.from_matrix([[0, 1.0, 0], [2.0, 0, 1.0], [0, 0, 0]])
    case = Case("two steps", FirstPassage(chain, "state == 2"))
    (sentence,) = contract.check_case(Hasty(), case)
    assert "INACCURATE, the defect" in sentence
    answer = np.array([[4.0, 3.0, 0.0], [40.0, 32.0, 0.0]])  # not the second moments
    wrong = Case("wrong", case.problem, answer=answer)
    (sentence,) = contract.check_case(registry.make_solver("absorption_elimination"), wrong)
    assert "away from the known one" in sentence
