"""`solve`: match a problem with a solver, run it, verify the answer, raise or return."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctmc import certificate, registry, strict
from ctmc.advise import chosen_solver
from ctmc.certificate import Certificate
from ctmc.checkpoint import Checkpoint
from ctmc.defaults import SMALL, next_method
from ctmc.discounted import answer_discounted
from ctmc.errors import CTMCError, ModelError, ReducibleError, SolveError, UnstableError, printable, shown, unknown_name
from ctmc.model.generator import Generator, ProductCounter
from ctmc.model.level_dependent import LevelDependentQBD, LevelDistribution
from ctmc.model.memory import holding
from ctmc.model.parameters import check_function, check_truth
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.model.shared import SharedGenerator
from ctmc.over_time import answer_over_time
from ctmc.passage import PassageAnswer, answer_passage
from ctmc.passage_solution import PassageSolution
from ctmc.problem import (
    AccumulatedReward,
    DiscountedReward,
    FirstPassage,
    Problem,
    Stationary,
    Transient,
    check_problem,
)
from ctmc.resume import Runs
from ctmc.solution import HISTORY, Answer, Outcome, Solution, Status, joined_histories, value_arrays
from ctmc.solver import Solver
from ctmc.trace import Monitor, check_time_limit, checked_start

_log = logging.getLogger("ctmc.solve")

CERTIFICATES = ("defect", "strict")


def solve(
    problem: Problem,
    solver: Solver | str | None = None,
    *,
    start: np.ndarray | Solution | None = None,
    time_limit: float | None = None,
    monitor: Monitor | None = None,
    check: bool = True,
    certify: str = "defect",
    rewards: Sequence[str] | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    checkpoint_minutes: float | None = None,
    resume: bool | None = None,
) -> Solution:
    """Answer a problem, and verify the answer.

    Parameters
    ----------
    problem : Stationary, Transient, AccumulatedReward, DiscountedReward or FirstPassage
    solver : solver object, or str, optional
        For instance ``"gmres"`` or ``"gmres(restart=50)"``; by default what `default_solver` says; ``"auto"`` for what `advise`
        recommends, which `Solution.notes` names with the reason.  Nothing else is ever tried by itself.
    start : ndarray, shape (n,), or Solution, optional
        First iterate for iterative methods, non-negative; such as the answer at other rates.  Methods that begin from no
        first guess do without it, and `Solution.notes` says so.
    time_limit : float, optional
        Seconds, looked at once per iteration.
    monitor : callable, optional
        ``monitor(iteration, defect)`` once per iteration; returning true stops the solve.
    check : bool
        If true (default), an answer that is not CONVERGED is raised as `SolveError`, which carries it.
    certify : str
        'defect' (default), or 'strict': a converged answer also gets intervals that are proven to contain the exact
        expectations, for one more equation to solve for each number; only stationary problems on a Generator have them.
    rewards : sequence of str, optional
        Of 'strict': the rewards and measures to prove, such as "jobs" and "queue_length[1]"; default what the model's
        measures need, vectors up to 20 numbers in all.
    checkpoint : path-like or Checkpoint, optional
        A file for what is reached, from which the solve can go on: see `Checkpoint`.  Stationary problems, discounted rewards
        and passage times go on from the iterate; questions about time from the last of their times that was reached, so a
        single time begins again.  Direct methods have no intermediate state (`Solution.notes` says so), and the proofs of
        'strict' are made anew.
    checkpoint_minutes : float, optional
        Between two checkpoints, 10 by default.
    resume : bool, optional
        Go on from the checkpoint; iterations, seconds and products are counted on.

    Returns
    -------
    Solution

    Raises
    ------
    SolveError
        The answer is not certified.
    UnsupportedProblemError
        The solver does not take this problem.
    ReducibleError
        Several recurrent classes and no initial distribution.
    StorageError
        The checkpoint is damaged, belongs to another question, solver or version, or cannot stand where it shall.
    UnstableError
        The QBD has no stationary distribution.

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), "gth").value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    >>> proven = solve(Stationary(chain), certify="strict").intervals["state"]
    >>> 1 / 3 in proven, proven.width < 1e-13
    (True, True)
    """
    check_problem(problem)
    check_truth("check", check)
    check_function("monitor", monitor, "a function of the defect and the iteration")
    strictly = _is_strict(problem, certify, rewards)
    chosen, advised = chosen_solver(problem, solver)
    registry.check_takes(chosen, problem)
    name = registry.solver_name(chosen)
    _log.info("%s: %s on %s", name, type(problem).__name__, type(problem.model).__name__)
    counter = ProductCounter()
    view = _counting(problem, counter)
    first = _first_iterate(problem, start)
    check_time_limit(time_limit)
    kept = _checkpoint(checkpoint, checkpoint_minutes, resume, start)
    runs = Runs(problem, chosen, counter, monitor, time_limit, kept)

    failure: Exception | None = None
    answer: Answer | None = None
    try:
        with holding(problem.model.nbytes if isinstance(problem.model, Generator) else 0):
            if isinstance(view, Transient | AccumulatedReward):
                outcome, proof, answer = answer_over_time(view, runs.over_time)
            elif isinstance(view, FirstPassage):
                outcome, proof, answer = answer_passage(view, runs.equation)
            elif isinstance(view, DiscountedReward):
                outcome, proof, answer = answer_discounted(view, runs.equation)
            elif isinstance(view, Stationary) and isinstance(view.model, Generator):
                outcome = _by_classes(view, chosen, runs, first)
            else:
                if isinstance(view.model, QBD):
                    _check_stable(view.model)
                outcome = runs.stationary(view)
            if answer is None:
                proof = certificate.certify(view, outcome)
                answer = Answer(outcome.value, proof.error_bound)
    except CTMCError:
        raise
    except Exception as error:  # a solver is a plug-in: whatever it does, the user gets one sentence
        failure = error
        outcome = Outcome(None, Status.BREAKDOWN)
        answer = PassageAnswer(_nothing(problem)) if isinstance(problem, FirstPassage) else Answer(_nothing(problem))
        proof = Certificate(math.nan, Status.BREAKDOWN, f"{type(error).__name__}: {printable(error)}.")
    solution = _conclude(problem, chosen, outcome, proof, answer, counter.products, runs.seconds)
    if strictly and solution.converged:
        counted = strict.with_intervals(dataclasses.replace(solution, problem=view), rewards)
        solution = dataclasses.replace(
            solution, intervals=counted.intervals, products=counter.products, seconds=runs.seconds
        )
    solution = dataclasses.replace(solution, warm=runs.warm, **runs.end(solution.converged))
    if advised:
        solution = dataclasses.replace(solution, notes=(advised, *solution.notes))
    if first is not None and not runs.warm:
        note = f"The start was not used: {name} begins from no first guess, or the start has no probability where it could."
        solution = dataclasses.replace(solution, notes=(*solution.notes, note))
    _log.info("%s: %s, defect %.3g, %.3f s", name, solution.status.name, solution.defect, solution.seconds)
    if (check and not solution.converged) or (failure is not None and getattr(problem.model, "shared", False)):
        # what one rank alone has met must end the others, too
        raise SolveError(failure_message(solution), solution) from failure
    return solution


def _checkpoint(given: Any, minutes: float | None, resume: bool | None, start: Any) -> Checkpoint | None:
    """Return the arguments that have to do with checkpoints as one."""
    if given is None:
        for name, value in (("checkpoint_minutes", minutes), ("resume", resume)):
            if value is not None and value is not False:
                raise ModelError(
                    f"{name} is {shown(value)}, but no checkpoint is given; allowed is the path of a file with it."
                )
        return None
    settings: dict[str, Any] = {"minutes": minutes, "resume": resume}
    settings = {name: value for name, value in settings.items() if value is not None}
    if isinstance(given, Checkpoint):
        kept = dataclasses.replace(given, **settings)
    else:
        kept = Checkpoint(given, **settings)
    if kept.resume and start is not None:
        raise ModelError("start is given, but the solve goes on from a checkpoint; allowed is one of both.")
    return kept


def _is_strict(problem: Problem, certify: str, rewards: Sequence[str] | None) -> bool:
    """Return whether intervals are asked for; complain before the solve about what cannot be proven after it."""
    if not isinstance(certify, str) or certify not in CERTIFICATES:
        raise unknown_name("certificate (certify)", certify, CERTIFICATES)
    if certify != "strict":
        if rewards is not None:
            raise ModelError(
                f"rewards is {shown(rewards)}, but certify is 'defect'; allowed are rewards with 'strict', which proves intervals."
            )
        return False
    strict.check(problem, rewards)
    return True


def failure_message(solution: Solution) -> str:
    """Return one sentence on why a solution is not certified, and the method to try next."""
    name = registry.snake_case(solution.solver.partition("(")[0].rpartition(".")[2])
    if solution.status is Status.STOPPED:  # nothing was wrong with the method
        return f"{name}: STOPPED at the defect {solution.defect:.3g}. {solution.status.advice}"
    other = next_method(solution.problem, name)
    if other and isinstance(solution.problem, Stationary) and other != "gth":
        other += ", or what 'ctmc advise' ranks first for this model"
    hint = f" Next to try: {other}." if other else ""
    return f"{name}: {solution.status.name}, {solution.reason} {solution.status.advice}{hint}"


def _conclude(
    problem: Problem,
    solver: Solver,
    outcome: Outcome,
    proof: Certificate,
    answer: Answer,
    products: int,
    seconds: float,
) -> Solution:
    """Join the solver's claim and the certificate: only the certificate can say CONVERGED."""
    status = proof.status
    if status is not Status.CONVERGED and outcome.status is not Status.CONVERGED:
        status = outcome.status  # the solver said itself that it did not get there
    for array in (*value_arrays(answer.value), answer.error_bound, answer.variance, answer.variance_bound):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    history = np.empty(0, HISTORY) if outcome.history is None else outcome.history
    history.flags.writeable = False
    fields: dict[str, Any] = {
        "problem": problem,
        "value": answer.value,
        "status": status,
        "reason": proof.reason,
        "defect": proof.defect,
        "history": history,
        "seconds": seconds,
        "products": products,
        "solver": repr(solver) if outcome.solver is None else outcome.solver,
        "error_bound": answer.error_bound if proof.error_bound is not None else None,
        "variances": answer.variance,
        "variance_bounds": answer.variance_bound,
    }
    if isinstance(answer, PassageAnswer):
        return PassageSolution(
            **fields,
            reach_probability=answer.reach,
            reach_error_bound=answer.reach_bound,
            relative_error_bound=answer.relative_bounds,
            solve=solve,
        )
    return Solution(**fields)


def _counting(problem: Problem, counter: ProductCounter) -> Any:
    if not isinstance(problem.model, Generator):
        return problem
    if isinstance(problem, Stationary) and not problem.model.shared:
        problem.model.classes  # noqa: B018  # found once, on the user's model, not on the view
    return dataclasses.replace(problem, model=problem.model.counted(counter))


def _first_iterate(problem: Problem, start: Any) -> np.ndarray | None:
    """Return the user's first iterate as a checked vector."""
    if start is None:
        return None
    if not isinstance(problem, Stationary) or not isinstance(problem.model, Generator):
        raise ModelError(
            f"start is given, but a {type(problem).__name__} problem on a {type(problem.model).__name__} takes none."
        )
    if isinstance(start, Solution):
        if not isinstance(start.problem, Stationary) or not isinstance(start.value, np.ndarray):
            raise ModelError(
                f"start is the answer to a {type(start.problem).__name__} problem on a {type(start.problem.model).__name__}; "
                "allowed is a long-run distribution on a Generator."
            )
        start = start.value
    return checked_start(start, problem.model.size, problem.model.ranks)


def _nothing(problem: Problem) -> Any:
    """Return an answer without a number, where the solver gave none."""
    model = problem.model
    if isinstance(model, QBD):
        sizes = [len(table) for table in model.phases]
        return MatrixGeometric(
            tuple(np.full(size, math.nan) for size in sizes), np.full((model.phase_count,) * 2, math.nan)
        )
    if isinstance(model, LevelDependentQBD):
        return LevelDistribution((np.full(1, math.nan),))
    shape: tuple[int, ...] = (model.size,)
    if isinstance(problem, Transient):
        shape = (len(problem.times), model.size)
    elif isinstance(problem, FirstPassage):
        shape = (problem.moments, model.size) if problem.initial is None else (problem.moments,)
    return np.full(shape, math.nan)


def _check_stable(queue: QBD) -> None:
    scale = float(-queue.local.diagonal().min())
    if not queue.drift < -1e-14 * scale:
        word = "zero (null recurrent)" if abs(queue.drift) <= 1e-14 * scale else f"{queue.drift:.6g}"
        raise UnstableError(
            f"the mean drift of the level is {word} per unit of time; allowed is a negative one: `up` leads a level up and "
            "`down` a level down (are they exchanged?), and a queue must be served faster than jobs come."
        )


def _by_classes(problem: Stationary, solver: Solver, runs: Runs, start: np.ndarray | None) -> Outcome:
    """Solve each recurrent class by itself and mix them; transient states have probability zero."""
    chain = problem.model
    assert isinstance(chain, Generator)
    if isinstance(chain, SharedGenerator):
        inside = chain.recurrent
        return runs.stationary(problem, start, inside if chain.ranks.any(not inside.all()) else None)
    found = chain.classes
    if found.irreducible and chain.size > 1:
        return runs.stationary(problem, start)
    if len(found.recurrent) > 1 and problem.initial is None:
        names = ", ".join(f"{chain.name_of(int(found.members(number)[0]))}" for number in found.recurrent[:3])
        raise ReducibleError(
            f"the chain has {len(found.recurrent)} recurrent classes (with states {names}{', ..' if len(found.recurrent) > 3 else ''}), "
            "so its long-run distribution depends on the start; give an initial state or distribution."
        )
    if len(found.recurrent) == 1 and chain.size > SMALL and getattr(solver, "keeps_zeros", False):
        inside = found.class_of == found.recurrent[0]
        if 2 * np.count_nonzero(inside) >= chain.size:  # worth more than a copy of the class
            first = None if start is None or not start[inside].any() else np.where(inside, start, 0)
            return runs.stationary(problem, first, inside)
    weights = np.ones(1) if len(found.recurrent) == 1 else problem.class_weights[0]
    value = np.zeros(chain.size)
    histories: list[np.ndarray] = []
    status = Status.CONVERGED
    for number, weight in zip(found.recurrent, weights, strict=True):
        if weight == 0:
            continue
        members = found.members(number)
        if len(members) == 1 or status in (Status.STOPPED, Status.TIME_LIMIT):
            value[members] = weight / len(members)
            continue
        part = chain.restricted(members)
        if chain._counter is not None:
            part = part.counted(chain._counter)
        first = None if start is None or not start[members].any() else start[members]
        outcome = runs.stationary(dataclasses.replace(problem, model=part, initial=None), first)
        wrong = certificate.wrong_vector(outcome.value, (len(members),))
        if wrong is not None and wrong.status is Status.BREAKDOWN:
            raise ValueError(wrong.reason.rstrip("."))
        value[members] = weight * outcome.value
        status = outcome.status if status is Status.CONVERGED else status
        if outcome.history is not None and len(outcome.history):
            histories.append(outcome.history)
    return Outcome(value, status, joined_histories(histories))
