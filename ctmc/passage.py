"""Questions about passage times: their equations, what is proven about each answer, and the numbers that follow.

On the states S from which the target is reached with certainty the moments of the time solve -Q_SS m_k = k m_{k-1}, m_0 = 1.  All
right sides are positive and (-Q_SS)^-1 has no negative entry, so a residual that is small relative to its right side, state by
state, bounds the relative error state by state.  The variance solves an equation of the same kind, with nothing taken away,

    -Q_SS v = g,  g_i = sum_j rate(i, j) (m_j - m_i)^2  (m = 0 in the target),

since t + m(X(t)) is a martingale up to the passage.  Probabilities to reach the target solve -Q_UU h = (rates into the target and
S), on the states U where it may be reached and missed; an error there is at most the residual times the time spent in U.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.certificate import Certificate, agreed, wrong_vector
from ctmc.equation import Equation
from ctmc.model import products
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.stopped import Fates, fates, met
from ctmc.problem import FirstPassage
from ctmc.ranks import Ranks
from ctmc.solution import Answer, Outcome, Status, joined_histories

Run = Callable[[Equation], Outcome]

SMALL = 3000
"""Up to this many states elimination is the default, and the judge of answers whose residual rounding hides."""
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class PassageAnswer(Answer):
    """The numbers about a passage.

    Attributes
    ----------
    reach : float or ndarray
        Probability that the target is reached; a number, or shape (n,).
    reach_bound : float
        Bound on its error.
    relative_bounds : ndarray, shape (moments,)
        Bounds on the relative errors of the moments, of every state.
    """

    reach: Any = math.nan
    reach_bound: float = math.nan
    relative_bounds: Any = None


class Proofs:
    """Runs a solver on one equation after another, certifies each answer, and remembers what was said.

    Parameters
    ----------
    run : callable
        Has a solver answer an equation.
    """

    def __init__(self, run: Run) -> None:
        self.status = Status.CONVERGED
        self.solver: str | None = None
        self._run = run
        self._histories: list[np.ndarray] = []
        self._verdicts: list[Certificate] = []

    def solve(self, equation: Equation) -> np.ndarray | None:
        """Return the solver's x with zeros outside, or None where there is nothing of use."""
        if self.status not in (Status.CONVERGED, Status.INACCURATE):
            return None
        outcome = self._run(equation)
        self.solver = outcome.solver or self.solver
        self.status = outcome.status if self.status is Status.CONVERGED else self.status
        if outcome.history is not None and len(outcome.history):
            self._histories.append(outcome.history)
        wrong = agreed(equation.model.ranks, wrong_vector(outcome.value, (equation.model.size,)))
        if wrong:
            self._verdicts.append(wrong)
            return None
        x = np.array(outcome.value, dtype=np.float64)
        if equation.inside is not None:
            x[~equation.inside] = 0.0
        return x

    def positive(self, equation: Equation) -> tuple[np.ndarray | None, float, float]:
        """Solve an equation with positive right side; return x, and factors with low x <= exact <= high x state by state.

        Where residuals are measured by another scale than the right side, exact - x is within that share of the answer to the
        scale as the right side.
        """
        x = self.solve(equation)
        if x is None:
            return None, math.nan, math.nan
        inside = slice(None) if equation.inside is None else equation.inside
        if equation.model.ranks.any(not (x[inside] > 0).all()):
            self._say(math.inf, Status.INACCURATE, "an answer that is positive by definition has numbers <= 0.")
            return None, math.nan, math.nan
        defect = equation.defect(equation.residual(x))
        floor = equation.floor(x)
        low, high, total = 0.0, math.inf, defect + floor
        if total < 1:
            low, high = 1 / (1 + total), 1 / (1 - total)
        accepted = equation.tolerance
        good = defect <= max(accepted, floor) and total <= math.sqrt(accepted)
        reason = f"the defect {defect:.2g} is within {accepted:g}."
        if defect > accepted:
            reason = f"the defect {defect:.2g} is within the rounding floor {floor:.2g}."
        if total > accepted and equation.may_eliminate(SMALL, not good):
            # rounding hides the residual of a stiff chain, but not the difference from an answer without subtractions
            factors = equation.elimination()
            ratio = x[inside] / factors.solve(equation.right[inside])
            off = factors.error
            least = float(ratio.min())  # 0 where a number is that far too small
            closer = (1 - off) / float(ratio.max()) if least > 0 else 0.0, (1 + off) / least if least > 0 else math.inf
            if closer[1] - closer[0] < high - low:
                low, high = closer
            error = max(high - 1, 1 - low)
            if not good and error <= max(accepted, 2 * off):
                good, defect = True, error
                reason = f"no number differs by more than {error:.2g} of itself from elimination without subtraction."
        if not good:
            reason = f"the defect {defect:.2g}, and rounding by up to {floor:.2g}, are not within {accepted:g}."
        self._say(defect, Status.CONVERGED if good else Status.INACCURATE, reason)
        return x, low, high

    def _say(self, defect: float, status: Status, reason: str) -> None:
        self._verdicts.append(Certificate(defect, status, reason, 0.0 if status is Status.CONVERGED else None))

    def check(self, error: float, accepted: float, reason: str) -> None:
        """Say whether an error bound is within what is accepted."""
        good = error <= accepted
        sentence = f"the error bound {error:.2g} of {reason} is {'' if good else 'not '}within {accepted:g}."
        self._say(error, Status.CONVERGED if good else Status.INACCURATE, sentence)

    def outcome(self) -> Outcome:
        """Return the joined history, and the first status that is not CONVERGED."""
        return Outcome(None, self.status, joined_histories(self._histories), solver=self.solver)

    def certificate(self, nothing: str) -> Certificate:
        """Return the worst verdict; `nothing` is the reason where no equation had to be solved."""
        wrong = next((verdict for verdict in self._verdicts if verdict.status is not Status.CONVERGED), None)
        if wrong or not self._verdicts:
            return wrong or Certificate(0.0, Status.CONVERGED, nothing, 0.0)
        return max(self._verdicts, key=lambda verdict: verdict.defect)


def answer_passage(problem: FirstPassage, run: Run) -> tuple[Outcome, Certificate, PassageAnswer]:
    """Have the equations of a passage time solved, and put the numbers together.

    Parameters
    ----------
    problem : FirstPassage
    run : callable
        Has a solver answer an equation.

    Returns
    -------
    Outcome
        Joined history, and the first status that is not CONVERGED.
    Certificate
        The worst verdict.
    PassageAnswer
    """
    model, moments = problem.model, problem.moments
    n = model.size
    found = fates(model, problem.target_states, problem.avoided_states)
    require_memory("the moments of the passage time", 8 * n * (moments + 4), states=n)
    ranks = model.ranks
    begin = None if problem.initial is None else model.own(problem.initial).dense(n)
    proofs = Proofs(run)
    sure = found.certain | found.target
    if begin is not None:
        found = met(model, found, begin)  # fewer equations
    reach, reach_bound = _reach(found, begin, problem, proofs)
    if begin is not None and ranks.any(bool(begin[~sure].any())):
        value, infinite = np.full(moments, math.inf), np.array(math.inf)
        answer = PassageAnswer(
            value, np.zeros(moments), infinite if moments > 1 else None, np.array(0.0) if moments > 1 else None,
            reach, reach_bound, np.zeros(moments),
        )  # fmt: skip
        return proofs.outcome(), _plainly(proofs, reach), answer
    if begin is not None and not ranks.any(bool(begin[found.certain].any())):
        zeros = np.zeros(moments)
        none = np.array(0.0) if moments > 1 else None
        answer = PassageAnswer(zeros, zeros, none, none, reach, reach_bound, zeros)
        return proofs.outcome(), proofs.certificate("the passage begins in the target."), answer
    columns, relative, variance = _moments(problem, found.certain, proofs)
    return (
        proofs.outcome(),
        proofs.certificate("no state leads to the target."),
        _assembled(columns, relative, variance, sure, begin, (reach, reach_bound), ranks),
    )


def _plainly(proofs: Proofs, reach: Any) -> Certificate:
    """Return the verdict with the probability that the target is reached at all."""
    verdict = proofs.certificate("the target cannot be reached from the initial states.")
    if verdict.status is not Status.CONVERGED:
        return verdict
    missed = f"the target is reached with probability {reach:.10g}, so the time is infinite; {verdict.reason}"
    return Certificate(verdict.defect, verdict.status, missed, verdict.error_bound)


def _moments(
    problem: FirstPassage, inside: np.ndarray, proofs: Proofs
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the moments on the inside, shape (moments, n), bounds on their relative errors, and the variance."""
    model, moments = problem.model, problem.moments
    n = model.size
    columns, relative = np.full((moments, n), np.nan), np.full(moments, np.inf)
    shared: dict[str, Any] = {}
    if not model.ranks.any(bool(inside.any())):
        return np.zeros((moments, n)), np.zeros(moments), np.zeros(n) if moments > 1 else None
    right, low, high = np.ones(n), 1.0, 1.0
    for k in range(1, moments + 1):
        equation = Equation(model, right, inside=inside, tolerance=problem.tolerance, found=shared)
        x, below, above = proofs.positive(equation)
        if x is None:
            return columns, relative, np.full(n, np.nan) if moments > 1 else None
        low, high = low * below, high * above
        columns[k - 1] = x
        relative[k - 1] = (
            max(high - 1, 1 / low - 1) if low > 0 else math.inf
        )  # relative to the answer, and to what is exact
        right = (k + 1) * x
    if moments == 1:
        return columns, relative, None
    spread = np.maximum(squared_differences(model, columns[0]), 1 / np.where(inside, model.exit_rates, 1.0))
    # a residual relative to the right side of the second moment proves as much of the variance as of that moment
    scale = 2 * columns[0]
    equation = Equation(model, spread, inside=inside, tolerance=problem.tolerance, scale=scale, found=shared)
    variance = proofs.positive(equation)[0]
    return columns, relative, np.full(n, np.nan) if variance is None else variance


def squared_differences(model: Generator, x: np.ndarray) -> np.ndarray:
    """Return sum_j rate(i, j) (x_j - x_i)^2 of each state i; shape (n,).

    Examples
    --------
    >>> chain = Generator.from_matrix([[0, 2.0], [3.0, 0]])
    >>> squared_differences(chain, np.array([1.0, 5.0])).tolist()
    [32.0, 48.0]
    """
    return model.added_up(products.add_squared_differences, x)


def _reach(found: Fates, begin: np.ndarray | None, problem: FirstPassage, proofs: Proofs) -> tuple[Any, float]:
    """Return the probability that the target is reached, a number or shape (n,), and a bound on its error."""
    ranks = problem.model.ranks
    sure = (found.certain | found.target).astype(np.float64)
    if begin is None:
        if not ranks.any(bool(found.possible.any())):
            return sure, 0.0
        chance, errors = chances(problem.model, found, problem.tolerance, proofs)
        return chance, ranks.largest(float(errors.max(initial=0.0)))
    if ranks.any(bool(begin[found.possible].any())):
        chance, errors = chances(problem.model, found, problem.tolerance, proofs)
        return min(ranks.total(float(begin @ chance)), 1.0), ranks.total(float(begin @ errors))
    if ranks.any(bool(begin[found.never].any())):
        return ranks.total(float(begin @ sure)), 0.0
    return 1.0, 0.0


def chances(model: Generator, found: Fates, tolerance: float, proofs: Proofs) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability to reach the target from each state, and bounds on the absolute errors; shapes (n,).

    With the residual r of h, and times w spent among the states where it is not decided, |error| <= max |r| x w; up to 3000 such
    states also by comparison with an elimination that does not subtract, whose relative error is bounded beforehand.
    """
    n = model.size
    chance = (found.certain | found.target).astype(np.float64)
    errors = np.zeros(n)
    inside = found.possible
    ranks = model.ranks
    if not ranks.any(bool(inside.any())):
        return chance, errors
    into = model.backward(chance)  # 0 inside, so a sum of rates
    shared: dict[str, Any] = {}
    ones = np.ones(n)
    time, _, high = proofs.positive(Equation(model, ones, inside=inside, tolerance=math.sqrt(tolerance), found=shared))
    if time is None:
        return np.where(inside, np.nan, chance), np.where(inside, 1.0, 0.0)
    longest = ranks.largest(float(time.max(initial=0.0))) * (high if math.isfinite(high) else 1.0)
    equation = Equation(model, into, inside=inside, tolerance=min(tolerance / longest, 0.1), scale=ones, found=shared)
    h = proofs.solve(equation)
    if h is None:
        return np.where(inside, np.nan, chance), np.where(inside, 1.0, 0.0)
    off = equation.defect(equation.residual(h)) + equation.floor(np.abs(h))
    errors = np.minimum(off * high * time, 1.0)
    if equation.may_eliminate(SMALL, float(errors[inside].max(initial=0.0)) > tolerance):
        factors = equation.elimination()
        other = factors.solve(into[inside])
        errors[inside] = np.minimum(errors[inside], np.abs(h[inside] - other) + factors.error * other)
    errors[~inside] = 0.0
    chance[inside] = np.clip(h[inside], 0.0, 1.0)
    proofs.check(
        ranks.largest(float(errors.max(initial=0.0))),
        max(tolerance, 40 * _EPSILON),
        "the probability to reach the target",
    )
    return chance, errors


def _assembled(
    columns: np.ndarray,
    relative: np.ndarray,
    variance: np.ndarray | None,
    sure: np.ndarray,
    begin: np.ndarray | None,
    reach: tuple[Any, float],
    ranks: Ranks,
) -> PassageAnswer:
    """Return values, bounds and variances, of every state or of an initial distribution."""
    moments = len(columns)
    with np.errstate(invalid="ignore"):
        errors = np.where(columns == 0, 0.0, columns * relative[:, None])  # 0 is exact, even where nothing is proven
    off = None
    if variance is not None:
        # the second moment less the square of the first is right within these; the variance is near it, or nearer to the truth
        difference = np.abs(variance - (columns[1] - columns[0] ** 2)) + 4 * _EPSILON * columns[1]
        off = difference + errors[1] + 2 * columns[0] * errors[0] + errors[0] ** 2
    if begin is None:
        value = np.where(sure, columns, math.inf)
        most = ranks.largest(errors.max(axis=1, initial=0.0))
        if variance is None or off is None:
            return PassageAnswer(value, most, None, None, *reach, relative)
        spread = np.where(sure, variance, math.inf)
        return PassageAnswer(value, most, spread, np.array(ranks.largest(off.max(initial=0.0))), *reach, relative)
    value = ranks.total(columns @ begin)
    bounds = value * (relative + 4 * _EPSILON * moments)
    if variance is None or off is None:
        return PassageAnswer(value, bounds, None, None, *reach, relative)
    mixed = ranks.total(float(begin @ (variance + np.where(begin > 0, columns[0] - value[0], 0.0) ** 2)))
    difference = abs(mixed - (value[1] - value[0] ** 2)) + 4 * _EPSILON * value[1]
    bound = difference + bounds[1] + 2 * value[0] * bounds[0] + bounds[0] ** 2
    return PassageAnswer(value, bounds, np.array(mixed), np.array(bound), *reach, relative)
