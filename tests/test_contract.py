"""Tests of the tester: what a plug-in does wrong is found and named, and a good one passes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import ctmc
from ctmc import contract, registry
from ctmc.certificate import imbalance
from ctmc.contract import Case, check_builder, check_solver, parametrize_with_checks, solver_checks
from ctmc.errors import ModelError, UnknownNameError
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.problem import AccumulatedReward, DiscountedReward, FirstPassage, Stationary, Transient
from ctmc.solution import Outcome, Status

HOME = Path(ctmc.__file__).resolve().parents[1]


class Plugin:
    """What all the solvers below declare."""

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator


def eliminated(problem):
    return gth(problem.model.to_scipy().toarray())


# the repr of a class inside a function is not its name, so they stand here


@dataclass(frozen=True, kw_only=True)
class Compliant(Plugin):
    """As small as can be."""

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


@dataclass(frozen=True, kw_only=True)
class Iterative(Plugin):
    """As small as an iterative one can be.

    max_iterations : int
    """

    max_iterations: int = 3_000

    def run(self, problem, trace):
        chain = problem.model
        pi = trace.start(np.full(chain.size, 1 / chain.size))
        while not trace.finished(imbalance(chain.forward(pi), pi, chain), limit=self.max_iterations):
            pi += chain.forward(pi) / (1.1 * chain.uniformization_rate)
            pi /= pi.sum()
        return Outcome(pi, trace.status, trace.history)


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


COUNTER = itertools.count(1)


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


@dataclass(kw_only=True)
class Melting(Plugin):
    """Is not frozen.

    option : int
    """

    option: int = 1

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


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
class Forgetful(Plugin):
    """Loses its option on the way.

    option : int
    """

    option: int = 1

    def __repr__(self):
        return "Forgetful(option=2)"

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


@pytest.mark.parametrize("solver", [Compliant, Compliant(), Iterative, Iterative(max_iterations=2_000), "gth", "gmres"])
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


# ---- the decorator ---------------------------------------------------------------------------------------------------------


@parametrize_with_checks(Compliant, "gth")
def test_decorated(check):
    check()


@parametrize_with_checks(Forgetful, Melting, expected_failures={"options": "known to be wrong"})
def test_decorated_with_failures(check):
    check()


@parametrize_with_checks(Compliant, Forgetful, expected_failures={"forgetful-options": "only this one"})
def test_decorated_with_a_failure_of_one_solver(check):
    check()


def parameters_of(*solvers, **options):
    @parametrize_with_checks(*solvers, **options)
    def decorated(check):
        check()

    return decorated.pytestmark[0].args[1]


def test_decorator_gives_one_test_per_check():
    found = parameters_of("gmres(restart=30)", Compliant, Iterative())
    identities = [item.id for item in found]
    assert len(set(identities)) == len(identities)
    for title in ("gmres(restart=30)", "compliant", "iterative"):
        assert f"{title}-options" in identities
        assert f"{title}-refusal" in identities
    assert repr(found[1].values[0].check.args[0]).startswith("Gmres(restart=30")


def test_a_failing_check_raises_with_its_sentences():
    (options,) = [item for item in parameters_of(Forgetful) if item.id == "forgetful-options"]
    with pytest.raises(AssertionError, match="repr of Forgetful does not give it back"):
        options.values[0]()


@pytest.mark.parametrize("name", ["no such check", "gth-optoins", "lying-options"])
def test_stale_reasons_are_errors(name):
    with pytest.raises(UnknownNameError, match="There is no check"):
        parametrize_with_checks("gth", expected_failures={name: "gone"})


def test_expected_failures_are_strict():
    (options,) = [
        item for item in parameters_of("gth", expected_failures={"options": "because"}) if item.id == "gth-options"
    ]
    (mark,) = options.marks
    assert (mark.name, mark.kwargs) == ("xfail", {"reason": "because", "strict": True})


# ---- builders -----------------------------------------------------------------------------------------------------------------


def coin(rate: float) -> Any:
    """Two states.

    Parameters
    ----------
    rate : float
        Of both transitions.
    """
    return Generator.from_matrix([[0, rate], [rate, 0]])


def undocumented(rate: float) -> Any:
    """Two states."""
    return coin(rate)


def drifting(rate: float) -> Any:
    """Another model each time.

    Parameters
    ----------
    rate : float
    """
    return coin(rate + next(COUNTER))


def nothing(rate: float) -> Any:
    """No model at all.

    Parameters
    ----------
    rate : float
    """
    return [rate]


def refusing(rate: float) -> Any:
    """Not this one.

    Parameters
    ----------
    rate : float
    """
    raise ModelError("rate is too good to be true.")


def swallowing(rate: float, **other: Any) -> Any:
    """Takes anything.

    Parameters
    ----------
    rate : float
    other : float
    """
    return coin(rate)


def reducible(rate: float) -> Any:
    """Two absorbing states.

    Parameters
    ----------
    rate : float
    """
    return Generator.from_matrix(np.zeros((2, 2)))


def infinite(rate: float) -> Any:
    """Measures that are no numbers.

    Parameters
    ----------
    rate : float
    """
    return coin(rate).replace(measures=lambda solution: {"load": np.inf, "jobs": 1.0})


@pytest.fixture
def builder(monkeypatch):
    """Register a function, as it is or decorated, under its own name."""

    def register(function, decorated=True):
        made = ctmc.builder(version=1)(function) if decorated else function
        monkeypatch.setattr(registry, "builder", lambda name: made)
        return function.__name__

    return register


def test_good_builders_pass(builder):
    assert check_builder(builder(coin), {"rate": 1.0}) == []
    assert check_builder(builder(reducible), {"rate": 1.0}) == []


@pytest.mark.parametrize(
    ("function", "decorated", "words"),
    [
        (
            coin,
            False,
            ["the model of coin carries no recipe", "coin raises a TypeError for a parameter that does not exist"],
        ),
        (undocumented, True, ["parameter rate of undocumented is not in its docstring."]),
        (drifting, True, ["drifting gives another model when it is called again."]),
        (nothing, False, ["nothing returns a list; allowed is a Generator or a QBD."]),
        (refusing, True, ["refusing raised ModelError: rate is too good to be true."]),
        (
            swallowing,
            False,
            ["swallowing takes a parameter that does not exist.", "the model of swallowing carries no recipe"],
        ),
        (infinite, True, ["measure load of infinite is not finite."]),
    ],
)
def test_bad_builders_are_found_and_named(builder, function, decorated, words):
    found = check_builder(builder(function, decorated), {"rate": 1.0})
    for word in words:
        assert any(word in sentence for sentence in found), found
    assert len(found) == len(words)


# ---- a solver in a package of its own -------------------------------------------------------------------------------------------


THIRD_PARTY = '''
"""A solver that nobody here has heard of."""
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import ctmc


@dataclass(frozen=True, kw_only=True)
class ThirdPartySolver:
    """Inverts a matrix.

    condition_limit : float
        Largest condition number.
    """

    solves: ClassVar = (ctmc.Stationary,)
    needs: ClassVar = ctmc.Generator
    condition_limit: float = 1e14

    def run(self, problem, trace):
        matrix = problem.model.to_scipy().toarray()
        matrix[:, 0] = 1.0
        right = np.zeros(len(matrix))
        right[0] = 1.0
        pi = np.maximum(np.linalg.solve(matrix.T, right), 0)
        return ctmc.Outcome(pi / pi.sum())
'''


def test_a_third_party_solver_is_found_used_and_tested_by_one_line(tmp_path):
    site, work = tmp_path / "site", tmp_path / "work"
    info = site / "elsewhere-2.0.dist-info"
    info.mkdir(parents=True)
    work.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[ctmc.solvers]\nthird_party_solver = elsewhere:ThirdPartySolver\n")
    (site / "elsewhere.py").write_text(THIRD_PARTY)
    (work / "test_elsewhere.py").write_text(
        textwrap.dedent(
            """
            import ctmc
            from ctmc.contract import parametrize_with_checks

            def test_use():
                queue = ctmc.build("birth_death", births=[1.0] * 4, deaths=[2.0] * 4)
                solution = ctmc.solve(ctmc.Stationary(queue), "third_party_solver(condition_limit=1e12)")
                assert solution.solver == "ThirdPartySolver(condition_limit=1000000000000.0)"
                assert abs(solution.value[0] - 16 / 31) < 1e-14

            @parametrize_with_checks("third_party_solver")
            def test_contract(check):
                check()
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(HOME)])}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "-rf", "."],
        cwd=work, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    passed = len([name for name, _ in solver_checks("gth")]) + 1
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout


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
