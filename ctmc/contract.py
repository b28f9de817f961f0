"""What a plug-in does wrong, as a list of sentences; and a decorator that makes tests of them.

A package with a solver of its own tests it with::

    import ctmc.contract

    @ctmc.contract.parametrize_with_checks("my_solver")
    def test_my_solver(check):
        check()
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.cases import Case, cases, distance, relative_distance
from ctmc.errors import (
    CTMCError,
    ReducibleError,
    SolveError,
    UnknownNameError,
    UnstableError,
    UnsupportedProblemError,
    unknown_name,
)
from ctmc.model.generator import Generator
from ctmc.model.impulses import reward_rates
from ctmc.model.level_dependent import LevelDependentQBD, LevelDistribution
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable
from ctmc.problem import FirstPassage, Stationary, Transient
from ctmc.solution import Solution, Status, value_arrays
from ctmc.solve import solve

ACCURACY = 1e-9
"""Largest accepted L1 distance from the known answer."""
HARD_ACCURACY = 1e-5
"""The same on hard cases, where the certificate itself promises no more."""

_ROUNDING = 1e-10
"""Largest difference, relative to the largest number, where a library may add up in another order each time."""
MOST_STEPS = 10
"""Steps that a solver may make between two looks at its limits."""


def check_solver(solver: Any, extra: Sequence[Case] = ()) -> list[str]:
    """Return what is wrong with a solver, as sentences; empty if nothing is.

    Parameters
    ----------
    solver : str, class or instance
        The solver; a class is tried with its default options.
    extra : sequence of Case
        More problems to try it on; those that it does not take are passed over.

    Examples
    --------
    >>> check_solver("gth")
    []
    """
    found: list[str] = []
    for _, check in solver_checks(solver, extra):
        found += check()
    return found


def solver_checks(solver: Any, extra: Sequence[Case] = ()) -> list[tuple[str, Callable[[], list[str]]]]:
    """Return the checks of a solver one by one, as (name, function that returns sentences)."""
    kind = solver if isinstance(solver, type) else type(registry.make_solver(solver))
    checks: list[tuple[str, Callable[[], list[str]]]] = [("options", partial(check_options, kind))]
    wrong = _not_a_solver(kind)
    if wrong:
        return checks
    instance = kind() if isinstance(solver, type) else registry.make_solver(solver)
    suited = [case for case in [*cases(), *extra] if registry.takes(instance, case.problem)]
    if not suited:
        return [*checks, ("cases", lambda: [f"{type(instance).__name__} takes none of the cases: nothing is tested."])]
    checks += [(case.name, partial(check_case, instance, case)) for case in suited]
    easy = next((case for case in suited if not case.hard), suited[0])
    checks.append(("refusal", partial(check_refusal, instance)))
    checks.append(("limits", partial(check_limits, instance, easy)))
    return checks


def check_options(kind: type) -> list[str]:
    """Check that a solver is a frozen, keyword-only dataclass whose repr gives it back."""
    name = kind.__name__
    wrong = _not_a_solver(kind)
    if wrong:
        return wrong
    parameters = kind.__dataclass_params__  # type: ignore[attr-defined]  # every dataclass has them
    if not parameters.frozen:
        wrong.append(f"{name} is not frozen: its options can be changed after they were checked.")
    # a dataclass without a docstring is given its signature as one
    document = "" if kind.__doc__ is None or kind.__doc__.startswith(f"{name}(") else kind.__doc__
    if not document:
        wrong.append(f"{name} has no docstring.")
    for option in dataclasses.fields(kind):
        if not option.kw_only:
            wrong.append(f"option {option.name} of {name} is not keyword-only.")
        if option.name not in document:
            wrong.append(f"option {option.name} of {name} is not in its docstring.")
    instance = kind()
    try:
        call = ast.parse(repr(instance), mode="eval").body
        if not isinstance(call, ast.Call) or getattr(call.func, "id", None) != name:
            raise ValueError
        again = kind(**{str(word.arg): ast.literal_eval(word.value) for word in call.keywords})
    except (SyntaxError, ValueError, TypeError):
        return [*wrong, f"repr of {name} is {instance!r}; allowed is {name}(option=value, ..) with plain values."]
    if again != instance:
        wrong.append(f"repr of {name} does not give it back.")
    return wrong


def _not_a_solver(kind: type) -> list[str]:
    """Return what keeps a class from being tried at all."""
    name = kind.__name__
    missing = [attribute for attribute in ("solves", "needs", "run") if not hasattr(kind, attribute)]
    if missing:
        return [f"{name} has no {attribute}." for attribute in missing]
    if not dataclasses.is_dataclass(kind):
        return [f"{name} is not a dataclass."]
    needed = [
        option.name
        for option in dataclasses.fields(kind)
        if option.default is dataclasses.MISSING and option.default_factory is dataclasses.MISSING
    ]
    return [f"option {option} of {name} has no default." for option in needed]


def check_case(solver: Any, case: Case) -> list[str]:
    """Check a solver's answer to one problem: honest, right, repeatable, and the model left alone."""
    name = f"{type(solver).__name__} on '{case.name}'"
    before = _fingerprint(case.problem.model)
    try:
        first = solve(case.problem, solver, check=False)
    except Exception as error:  # whatever a plug-in raises is what we want to tell
        return [f"{name} raised {type(error).__name__}: {error}"]
    wrong = []
    if _fingerprint(case.problem.model) != before:
        wrong.append(f"{name} changed the model's arrays.")
    wrong += [f"{name}: {sentence}" for sentence in _judge(first, case)]
    try:
        again = solve(case.problem, solver, check=False)
    except Exception as error:
        return [*wrong, f"{name} raised {type(error).__name__} when it was run again: {error}"]
    same = _bytes(first.value) == _bytes(again.value)
    if not same and (getattr(solver, "same_bits", True) or not _alike(first.value, again.value)):
        wrong.append(f"{name} gives other numbers when it is run again.")
    if not case.hard and not wrong and isinstance(case.problem.model, Generator) and case.problem.model.size > 1:
        wrong += [f"{name}, {sentence}" for sentence in _transformed(solver, case, first)]
    return wrong


def check_refusal(solver: Any) -> list[str]:
    """Check that a problem which the solver does not declare is refused."""
    stranger = next((case.problem for case in cases() if not registry.takes(solver, case.problem)), None)
    if stranger is None:
        return []
    try:
        solve(stranger, solver)
    except UnsupportedProblemError:
        return []
    except CTMCError as error:
        return [f"{type(solver).__name__}: a problem that it does not take raised {type(error).__name__}."]
    return [f"{type(solver).__name__} answered a problem that it does not take."]


def check_limits(solver: Any, case: Case) -> list[str]:
    """Check that an iterative solver says so when it is starved, and that a monitor can stop it."""
    name = type(solver).__name__
    wrong = []
    if any(option.name == "max_iterations" for option in dataclasses.fields(solver)):
        starved = solve(case.problem, dataclasses.replace(solver, max_iterations=1), check=False)
        if starved.status not in (Status.ITERATION_LIMIT, Status.CONVERGED):
            wrong.append(f"{name} with one iteration says {starved.status.name}, not ITERATION_LIMIT.")
        elif starved.converged and starved.iterations > MOST_STEPS:
            wrong.append(f"{name} makes {starved.iterations} iterations although max_iterations is 1.")
        asked = 0

        def monitor(iteration: int, defect: float) -> bool:
            nonlocal asked
            asked += 1
            return True

        stopped = solve(case.problem, solver, monitor=monitor, check=False)
        if not asked:
            wrong.append(f"{name} never asks the monitor, so it cannot be stopped.")
        elif stopped.status not in (Status.STOPPED, Status.CONVERGED) or asked > 2:
            wrong.append(f"{name} goes on after the monitor said stop ({stopped.status.name}, asked {asked} times).")
    return wrong


def check_builder(name: str, parameters: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a builder, tried with these parameters, as sentences; empty if nothing is.

    Parameters
    ----------
    name : str
    parameters : mapping
        Parameters of a small model.

    Examples
    --------
    >>> check_builder("birth_death", {"births": [1.0], "deaths": [2.0]})
    []
    """
    function = registry.builder(name)
    heads = [line.partition(" : ") for line in (inspect.getdoc(function) or "").splitlines() if line[:1].strip()]
    documented = {word.strip() for names, colon, _ in heads if colon for word in names.split(",")}
    wrong = [
        f"parameter {parameter} of {name} is not in its docstring."
        for parameter in inspect.signature(function).parameters
        if parameter not in documented
    ]
    try:
        first, again = function(**parameters), function(**parameters)
    except CTMCError as error:
        return [*wrong, f"{name} raised {type(error).__name__}: {error}"]
    if not isinstance(first, Generator | QBD):
        return [*wrong, f"{name} returns a {type(first).__name__}; allowed is a Generator or a QBD."]
    if _fingerprint(first) != _fingerprint(again):
        wrong.append(f"{name} gives another model when it is called again.")
    if first.recipe is None or first.recipe.builder != name:
        wrong.append(f"the model of {name} carries no recipe; decorate the builder with ctmc.builder.")
    try:
        function(**parameters, no_such_parameter=1)
        wrong.append(f"{name} takes a parameter that does not exist.")
    except UnknownNameError:
        pass
    except TypeError:
        wrong.append(f"{name} raises a TypeError for a parameter that does not exist; allowed is UnknownNameError.")
    try:
        solution = solve(Stationary(first))
        numbers = {key: np.asarray(value, dtype=float) for key, value in solution.measures().items()}
        wrong += [
            f"measure {key} of {name} is not finite." for key, value in numbers.items() if not np.isfinite(value).all()
        ]
    except (UnstableError, ReducibleError):
        pass  # no single stationary distribution, no measures
    except SolveError as error:
        wrong.append(f"the model of {name} was not solved: {error}")
    return wrong


def parametrize_with_checks(
    *solvers: Any, expected_failures: Mapping[str, str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a pytest decorator that runs a test once per check of each solver, as its argument ``check``.

    Parameters
    ----------
    *solvers : str, class or instance
    expected_failures : mapping of str to str, optional
        For a check, by its name or by its whole test id ``solver-name``, the reason why it fails; a check that passes after
        all is a failure, and a name that no check has is an error.

    Examples
    --------
    >>> @parametrize_with_checks("gth")
    ... def test_gth(check):
    ...     check()
    >>> len(test_gth.pytestmark[0].args[1]) > 10
    True
    """
    import pytest

    reasons = dict(expected_failures or {})
    parameters, known = [], set()
    for solver in solvers:
        kind = solver if isinstance(solver, type) else type(registry.make_solver(solver))
        title = solver if isinstance(solver, str) else registry.snake_case(kind.__name__)
        for name, check in solver_checks(solver):
            whole = f"{title}-{name}"
            known |= {name, whole}
            reason = reasons.get(whole, reasons.get(name))
            marks = () if reason is None else (pytest.mark.xfail(reason=reason, strict=True),)
            parameters.append(pytest.param(_Raising(check), id=whole, marks=marks))
    for name in reasons:
        if name not in known:
            raise unknown_name("check", name, known)
    return pytest.mark.parametrize("check", parameters)


@dataclass(frozen=True)
class _Raising:
    check: Callable[[], list[str]]

    def __call__(self) -> None:
        sentences = self.check()
        if sentences:
            raise AssertionError("\n".join(sentences))


def _judge(solution: Solution, case: Case) -> Iterable[str]:
    """Yield what is wrong with an answer."""
    if not solution.converged:
        if not case.hard:
            yield f"{solution.status.name}, {solution.reason}"
        return
    known = case.known()
    if known is None:
        return
    if isinstance(solution.value, MatrixGeometric):
        levels = range(len(solution.value.boundary) + 60)
        value = np.concatenate([solution.value.level(k) for k in levels])[: len(known)]
        known = known[: len(value)]
    elif isinstance(solution.value, LevelDistribution):
        value = np.concatenate(solution.value.levels)[: len(known)]
        known = known[: len(value)]
    else:
        value = solution.value
    apart = distance(case.problem, value, known)
    allowed = HARD_ACCURACY if case.hard else max(ACCURACY, 10 * solution.problem.tolerance)
    if not apart <= allowed:
        yield f"CONVERGED, but the answer is {apart:.2g} away from the known one."


def _transformed(solver: Any, case: Case, first: Solution) -> Iterable[str]:
    """Yield what is wrong after a change of the unit of time, and after renumbering the states."""
    model = case.problem.model
    assert isinstance(model, Generator)
    order = np.random.default_rng(977).permutation(model.size)
    targets = np.repeat(np.arange(model.size), np.diff(model.indptr))
    space = Lattice((model.size - 1,), variables=(Variable("state"),))
    initial = None if case.problem.initial is None else case.problem.initial.dense(model.size)
    place = np.argsort(order)
    for what, sources, ends, factor, numbering in (
        ("rates times 1000", model.sources, targets, 1000.0, np.arange(model.size)),
        ("states renumbered", place[model.sources], place[targets], 1.0, order),
    ):
        if isinstance(case.problem, FirstPassage):
            labels = {"target": case.problem.target_states[numbering]}
            changed = Generator.from_transitions(sources, ends, model.rates * factor, space, labels=labels)
            yield from _transformed_passage(solver, case.problem, first, changed, factor, numbering, what)
            continue
        changed = Generator.from_transitions(sources, ends, model.rates * factor, space)
        asked = getattr(case.problem, "reward", None)
        if asked is not None:
            if any(reward.has_impulses for reward in model.rewards.values()):
                return  # an array of impulses has the order of the transitions
            values = {name: reward_rates(model, model.all_rewards[name]) for name in asked}
            changed = changed.replace(
                rewards={name: Reward(rates[numbering] * factor) for name, rates in values.items()}
            )
        fields: dict[str, Any] = {"model": changed, "initial": None if initial is None else initial[numbering]}
        if hasattr(case.problem, "times"):
            fields["times"] = case.problem.times / factor
        if hasattr(case.problem, "discount"):
            fields["discount"] = case.problem.discount * factor
        solution = solve(dataclasses.replace(case.problem, **fields), solver, check=False)
        expectations = isinstance(case.problem, Transient) and asked is not None
        value = solution.value / factor if expectations else solution.value
        before = first.value[..., numbering] if first.value.shape[-1:] == (model.size,) else first.value
        apart = distance(case.problem, value, before)
        if not apart <= max(ACCURACY, 10 * case.problem.tolerance):
            yield f"{what}: {solution.status.name}, {apart:.2g} away from the answer before."


def _transformed_passage(
    solver: Any,
    problem: FirstPassage,
    first: Solution,
    changed: Generator,
    factor: float,
    numbering: np.ndarray,
    what: str,
) -> Iterable[str]:
    begin = None if problem.initial is None else problem.initial.dense(changed.size)[numbering]
    asked = FirstPassage(changed, "target", begin, None, problem.moments, problem.tolerance)
    solution = solve(asked, solver, check=False)
    powers = factor ** np.arange(1.0, problem.moments + 1)
    expected = first.value[:, numbering] / powers[:, None] if begin is None else first.value / powers
    apart = relative_distance(solution.value, expected)
    if not apart <= max(ACCURACY, 10 * problem.tolerance):
        yield f"{what}: {solution.status.name}, {apart:.2g} away from the answer before."


def _fingerprint(model: Generator | QBD | LevelDependentQBD) -> str:
    if isinstance(model, Generator):
        arrays = [model.indptr, model.sources, model.rates, model.exit_rates]
    else:
        blocks = [model.up, model.local, model.down] if isinstance(model, QBD) else []
        for level in model.boundary if isinstance(model, QBD) else map(model.level, range(8)):
            blocks += [block for block in (level.down, level.local, level.up) if block is not None]
        arrays = [array for block in blocks for array in (block.data, block.indices, block.indptr)]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


def _alike(one: Any, other: Any) -> bool:
    """Return whether two answers of a library that adds up in another order each time differ by rounding."""
    pairs = list(zip(value_arrays(one), value_arrays(other), strict=True))
    return all(
        np.shape(a) == np.shape(b)
        and np.allclose(a, b, rtol=0, atol=_ROUNDING * np.abs(a).max(initial=0.0), equal_nan=True)
        for a, b in pairs
    )


def _bytes(value: Any) -> list[bytes]:
    return [np.asarray(array).tobytes() for array in value_arrays(value)]
