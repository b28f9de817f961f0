"""What happens before a target is entered: whether it is, in what time, and what time is spent where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ctmc import registry
from ctmc.advise import chosen_solver
from ctmc.equation import Equation
from ctmc.errors import ModelError, SolveError, shown
from ctmc.model.generator import Generator
from ctmc.model.parameters import real_number
from ctmc.model.reward import Reward
from ctmc.model.stopped import fates, met, stopped
from ctmc.model.summary import Rows, Summarised
from ctmc.passage import SMALL, Proofs, chances
from ctmc.problem import FirstPassage, Transient
from ctmc.solution import HISTORY, Outcome, Solution, Status
from ctmc.solve import failure_message, solve
from ctmc.trace import Trace

_FLOOR = 1e-13


class Proven(NamedTuple):
    """A number, or one of each state, and a proven bound on its error."""

    value: Any
    error_bound: float


def _proofs(problem: FirstPassage, solver: Any) -> Proofs:
    chosen, _ = chosen_solver(problem, solver)
    registry.check_takes(chosen, problem)

    def run(equation: Equation) -> Outcome:
        found: Outcome = chosen.run(equation, Trace(equation.tolerance))
        return found

    return Proofs(run)


def _raise_unless_good(problem: FirstPassage, proofs: Proofs, value: Any, solver: str) -> None:
    proof = proofs.certificate("the transitions alone decide.")
    if proof.status is Status.CONVERGED:
        return
    outcome = proofs.outcome()
    status = proof.status if outcome.status is Status.CONVERGED else outcome.status
    history = np.empty(0, HISTORY) if outcome.history is None else outcome.history
    failed = Solution(problem, value, status, proof.reason, proof.defect, history, 0.0, 0, solver)
    raise SolveError(failure_message(failed), failed)


def reach_probability(
    model: Generator,
    target: Any,
    *,
    avoid: Any = None,
    initial: Any = None,
    interval: tuple[float, float] | None = None,
    tolerance: float = 1e-10,
    solver: Any = None,
) -> Proven:
    """Return the probability to enter the target, and never before it the states to avoid.

    Without an interval: exactly 0 and 1 for states where the transitions alone decide; for the others the equation -Q h = (rates
    into what is decided), each answer certified.  With an interval [a, b] the target is to be entered, or still be occupied, at
    some time in it, and the states to avoid not before (P[not avoid U^[a, b] target] of continuous stochastic logic): two
    transient answers, the chain of [a, b] stopped in the target, that of [0, a] not.

    Parameters
    ----------
    model : Generator
    target, avoid : str or callable
        As in `FirstPassage`.
    initial : state, mapping, vector or Distribution, optional
        None: every state as the start.
    interval : pair of float, optional
        0 <= a <= b; b may be infinite.
    tolerance : float
        Largest accepted error bound, absolute.
    solver : str or solver, optional
        For passage times; default what `solve` takes.

    Returns
    -------
    Proven
        Its `value`, a number or shape (n,), and `error_bound`.

    Raises
    ------
    SolveError
        If the answer is not certified.

    Examples
    --------
    A gambler with 3 of 10 coins, who wins a coin at rate 1 and loses one at rate 2:

    >>> game = Generator.from_matrix(np.diag(np.r_[0, np.ones(9)], 1) + np.diag(np.r_[np.full(9, 2.0), 0], -1))
    >>> round(reach_probability(game, "state == 10", initial=(3,)).value, 12) == round(7 / 1023, 12)
    True
    >>> round(reach_probability(game, "state == 10", initial=(3,), interval=(0, 20)).value, 9)
    0.006801722
    """
    problem = FirstPassage(model, target, initial, avoid, 1, tolerance)
    begin = None if problem.initial is None else problem.initial.dense(model.size)
    if solver is not None:
        registry.check_takes(chosen_solver(problem, solver)[0], problem)
    if interval is not None:
        first, last = _checked_interval(interval)
        return _within(problem, begin, first, last, solver)
    found = fates(model, problem.target_states, problem.avoided_states)
    undecided = found.possible.any() if begin is None else begin[found.possible].any()
    if not undecided:
        sure = (found.certain | found.target).astype(np.float64)
        if begin is None:
            return Proven(sure, 0.0)
        return Proven(float(begin @ sure) if begin[found.never].any() else 1.0, 0.0)
    proofs = _proofs(problem, solver)
    if begin is not None:
        found = met(model, found, begin)
    chance, errors = chances(model, found, tolerance, proofs)
    _raise_unless_good(problem, proofs, chance, "reach_probability")
    if begin is None:
        chance.flags.writeable = False
        return Proven(chance, float(errors.max()))
    return Proven(min(float(begin @ chance), 1.0), float(begin @ errors))


def _checked_interval(interval: Any) -> tuple[float, float]:
    try:
        first, last = (real_number("interval", time, lambda time: True, "") for time in interval)
    except (TypeError, ValueError):
        first, last = math.nan, math.nan
    if not 0 <= first <= last or first == math.inf:
        raise ModelError(f"interval is {shown(interval)}; allowed are two times, 0 <= a <= b, the first finite.")
    return first, last


def _within(problem: FirstPassage, begin: np.ndarray | None, first: float, last: float, solver: Any) -> Proven:
    """Return the probability for an interval: of entering in time from each state, averaged over the state at its beginning."""
    model, tolerance = problem.model, max(problem.tolerance, _FLOOR)
    target, avoided = problem.target_states, problem.avoided_states
    inner = problem.initial if first == 0 else None
    if last == math.inf:
        chance, error = reach_probability(
            model, problem.target, avoid=problem.avoid, initial=inner, tolerance=tolerance, solver=solver
        )
    elif last == first:
        chance, error = target.astype(np.float64), 0.0
        chance = chance if inner is None or begin is None else float(begin @ chance)
    else:
        reached = Reward(target.astype(np.float64), "1 in the target")
        chain = stopped(model, ~(target | avoided), rewards={"reached": reached})
        answer = solve(Transient(chain, inner, [last - first], tolerance, reward="reached"))
        chance, error = np.clip(answer.value[0], 0.0, 1.0), float(answer.error_bound[0])
    if first > 0:
        chain = stopped(model, ~avoided, rewards={"chance": Reward(chance)})
        answer = solve(Transient(chain, problem.initial, [first], tolerance, reward="chance"))
        chance, error = np.clip(answer.value[0], 0.0, 1.0), error + float(answer.error_bound[0])
    return Proven(float(chance) if np.ndim(chance) == 0 else chance, error)


@dataclass(frozen=True, eq=False, repr=False)
class TimeBefore(Summarised):
    """What is spent before a passage.

    Attributes
    ----------
    times : ndarray, shape (n,)
        Expected time in each state.
    visits : ndarray, shape (n,)
        Expected number of visits; a start in a state is one.
    error_bound : float
        A proven bound on the L1 error of the times.
    """

    times: np.ndarray
    visits: np.ndarray
    error_bound: float

    @property
    def total(self) -> float:
        """The expected time until the passage."""
        return float(self.times.sum())

    def _summary(self) -> tuple[str, Rows]:
        return "Time before the passage", [
            ("expected time", f"{self.total:.10g}"),
            ("states entered", f"{np.count_nonzero(self.times):,}"),
            ("error bound", f"{self.error_bound:.3g}"),
        ]


def expected_time_before(
    model: Generator,
    target: Any,
    initial: Any = None,
    *,
    avoid: Any = None,
    tolerance: float = 1e-10,
    solver: Any = None,
) -> TimeBefore:
    """Return the expected time in each state, and number of visits to it, before the target, or a state to avoid, is entered.

    The times solve y (-Q_SS) = p on the states before; with the mean passage times m of all states, an error is at most
    sum_i |residual_i| m_i in L1.  Visits are times x exit rates.

    Parameters
    ----------
    model : Generator
    target, avoid : str or callable
        As in `FirstPassage`.
    initial : state, mapping, vector or Distribution, optional
        Default: the model's own.
    tolerance : float
        Largest accepted error, relative to the expected time until the passage.
    solver : str or solver, optional
        For passage times; default what `solve` takes.

    Raises
    ------
    ModelError
        If the passage is not certain from the initial states, so that times are infinite.
    SolveError
        If the answer is not certified.

    Examples
    --------
    >>> game = Generator.from_matrix(np.diag([0, 1.0, 1.0], 1) + np.diag([1.0, 1.0, 0], -1))
    >>> expected_time_before(game, "state == 3 or state == 0", (1,)).visits.round(12).tolist()
    [0.0, 1.333333333333, 0.666666666667, 0.0]
    """
    problem = FirstPassage(model, target, model.initial if initial is None else initial, avoid, 1, tolerance)
    if problem.initial is None:
        raise ModelError("initial is missing and the model has none; give a state, e.g. initial=(0, 0, 0).")
    found = fates(model, problem.target_states | problem.avoided_states)
    begin = problem.initial.dense(model.size)
    if begin[found.possible | found.never].any():
        raise ModelError(
            "the passage is not certain from the initial states, so the expected time before it is infinite."
        )
    inside, nothing = met(model, found, begin).certain, np.zeros(model.size)
    if not begin[inside].any():
        return TimeBefore(nothing, nothing, 0.0)
    proofs = _proofs(problem, solver)
    shared: dict[str, Any] = {}
    ones = np.ones(model.size)
    mean, _, high = proofs.positive(Equation(model, ones, inside=inside, tolerance=math.sqrt(tolerance), found=shared))
    times, error = nothing, math.inf
    if mean is not None:
        # a residual of one size everywhere must not cost more than the tolerance
        least = float(begin @ mean) / float(mean.sum())
        equation = Equation(
            model, np.where(inside, begin, 0.0), inside=inside, tolerance=min(tolerance * least / 2, 0.1), scale=ones,
            forward=True, found=shared,
        )  # fmt: skip
        y = proofs.solve(equation)
        if y is not None:
            times = np.maximum(y, 0.0)
            residual = np.abs(equation.residual(times)) + equation.rounding(times)
            error = float(residual[inside] @ mean[inside]) * high
            if equation.may_eliminate(SMALL, error > tolerance * float(begin @ mean)):
                factors = equation.elimination()
                other = factors.solve_left(begin[inside])
                error = min(error, float(np.abs(times[inside] - other).sum() + factors.error * other.sum()))
            proofs.check(error / float(begin @ mean), max(tolerance, 20 * equation.floor(times)), "the times")
    _raise_unless_good(problem, proofs, times, "expected_time_before")
    visits = times * model.exit_rates
    times.flags.writeable = visits.flags.writeable = False
    return TimeBefore(times, visits, error)
