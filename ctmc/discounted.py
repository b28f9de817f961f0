"""Discounted rewards: one equation for each moment, and the answer that follows from their solutions.

The moments m_k(i) = E_i[Psi^k] of Psi = integral of exp(-gamma s) r(X(s)) over [0, inf), plus exp(-gamma T) c(i, j) for each
transition at a time T, follow from what happens in the first moment of time:

    (k gamma I - Q) m_k = k r m_{k-1} + sum_{l=1..k} C(k, l) W_l m_{k-l},   m_0 = 1,

where W_l has the entries rate(i, j) c(i, j)^l.  The middle c of the range of r + W_1 1 is taken off r first, so that Psi is
c / gamma and a part of mean about zero: a constant reward costs no digit.  The inverse of k gamma I - Q has no negative entry and
the row sums 1 / (k gamma), so a residual of largest size e means an error of at most e / (k gamma).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ctmc.certificate import Certificate, agreed, verdict, wrong_vector
from ctmc.equation import Equation
from ctmc.evolution import centered, raw_errors, raw_moments, reward_columns, rounding_floor
from ctmc.model.impulses import impulse_matrix, impulse_rates
from ctmc.model.memory import require_memory
from ctmc.model.reward import Reward
from ctmc.over_time import assembled, worst
from ctmc.problem import DiscountedReward
from ctmc.solution import Answer, Outcome, Status, joined_histories

Run = Callable[[Equation], Outcome]


def answer_discounted(problem: DiscountedReward, run: Run) -> tuple[Outcome, Certificate, Answer]:
    """Have the equation of each moment of each reward solved, check each, and put the numbers together.

    Parameters
    ----------
    problem : DiscountedReward
    run : callable
        Has a solver answer an equation.

    Returns
    -------
    Outcome
        Joined history, and the first status that is not CONVERGED.
    Certificate
        The worst verdict.
    Answer
        Raw moments with bounds on their errors, and variances.
    """
    model = problem.model
    columns = reward_columns(model, problem.reward)
    kept = len(columns) if problem.initial is None else 1
    require_memory("the discounted rewards", 8 * model.size * ((kept + 1) * problem.moments + 4), states=model.size)
    watch = _Watch(problem, run)
    parts = [watch.column(reward, rates) for _, reward, rates in columns]
    outcome = Outcome(None, watch.status, joined_histories(watch.histories), solver=watch.solver)
    return outcome, worst(watch.proofs), assembled(problem, parts)


class _Watch:
    """Has equations solved one after another, and keeps the verdicts; after a failure nothing more is asked of the solver."""

    def __init__(self, problem: DiscountedReward, run: Run) -> None:
        self.problem, self.run = problem, run
        self.status = Status.CONVERGED
        self.solver: str | None = None
        self.histories: list[np.ndarray] = []
        self.proofs: list[Certificate] = []
        self._room = np.empty(problem.model.size)

    def solve(self, right: np.ndarray, order: int) -> tuple[np.ndarray, float]:
        """Return x with (order gamma I - Q) x = right, and a bound on its error; NaN where the solver did not get there."""
        problem = self.problem
        n, shift = problem.model.size, order * float(problem.discount)
        floor = rounding_floor(problem.model.uniformization_rate, 1 / shift)
        equation = Equation(problem.model, right, shift, tolerance=max(problem.tolerance, floor))
        ranks = problem.model.ranks
        size = ranks.largest(float(np.abs(right).max(initial=0.0)))
        if self.status not in (Status.CONVERGED, Status.INACCURATE) or not np.isfinite(size):
            reason = "the moment before has no answer, so this one was not asked for."
            self.proofs.append(Certificate(math.nan, Status.BREAKDOWN, reason))
            return np.full(n, np.nan), math.nan
        if size == 0:
            self.proofs.append(Certificate(0.0, Status.CONVERGED, "the reward is the same in all states.", 0.0))
            return np.zeros(n), 0.0
        right.flags.writeable = False
        outcome = self.run(equation)
        self.solver = outcome.solver or self.solver
        self.status = outcome.status if self.status is Status.CONVERGED else self.status
        if outcome.history is not None and len(outcome.history):
            self.histories.append(outcome.history)
        wrong = agreed(ranks, wrong_vector(outcome.value, (n,)))
        if wrong:
            self.proofs.append(wrong)
            return np.full(n, np.nan), math.nan
        defect = equation.defect(equation.residual(outcome.value, out=self._room))
        # the residual itself is computed, so that its rounding is added
        bound = (defect + floor) * size / shift
        limit = f"{problem.tolerance:g}" if floor <= problem.tolerance else f"the rounding floor {floor:.2g}"
        self.proofs.append(
            verdict(equation.tolerance, defect)
            or Certificate(defect, Status.CONVERGED, f"the defect {defect:.2g} is within {limit}.", bound)
        )
        return outcome.value, bound

    def column(self, reward: Reward, rates: np.ndarray) -> Answer:
        """Return the moments of one reward, shape (1, moments[, n]), their error bounds and the variance."""
        problem, (effective, middle, _) = self.problem, centered(rates, self.problem.model.ranks)
        model, moments, discount = problem.model, problem.moments, float(problem.discount)
        alone, matrices = effective, {}
        if reward.has_impulses and moments > 1:
            alone = effective - impulse_rates(model, reward)
            matrices = {order: impulse_matrix(model, reward, order) for order in range(1, moments)}
        found: list[np.ndarray] = []
        errors: list[float] = []
        for k in range(1, moments + 1):
            right = effective.copy() if k == 1 else k * alone * found[-1]
            inherited = 0.0 if k == 1 else k * self._largest(alone) * errors[-1]
            if k > 1 and reward.has_impulses:
                right += _earned_at_events(k, found, matrices)
                right += impulse_rates(model, reward, k)
                inherited += sum(
                    math.comb(k, order) * float(abs(matrices[order]).sum(axis=1).max()) * errors[k - order - 1]
                    for order in range(1, k)
                )
            x, bound = self.solve(right, k)
            found.append(x)
            errors.append(bound + inherited / (k * discount))
        return self._read(np.array(found), np.array(errors), middle)

    def _largest(self, values: np.ndarray) -> float:
        return float(self.problem.model.ranks.largest(float(np.abs(values).max(initial=0.0))))

    def _read(self, central: np.ndarray, errors: np.ndarray, middle: float) -> Answer:
        problem = self.problem
        if problem.initial is not None:
            initial = problem.model.own(problem.initial)
            central = problem.model.ranks.total(central[:, initial.positions] @ initial.probabilities)
        horizon = np.array([1 / float(problem.discount)])
        value = raw_moments(central[:, None], middle, horizon)[:, 0]
        bound = raw_errors(errors[:, None], middle, horizon)[:, 0]
        # rounding of the sum of both parts
        size = np.abs(value)
        if value.ndim > 1:
            size = problem.model.ranks.largest(size.max(axis=1, initial=0.0))
        bound = bound + 4 * np.finfo(np.float64).eps * problem.moments * size
        if problem.moments == 1:
            return Answer(value[None], bound[None])
        # the variance of Psi is that of Psi less a constant
        variance = np.maximum(central[1] - central[0] ** 2, 0)
        largest = self._largest(central[0])
        off = errors[1] + 2 * largest * errors[0] + errors[0] ** 2
        return Answer(value[None], bound[None], np.asarray(variance)[None], np.asarray(off)[None])


def _earned_at_events(k: int, found: list[np.ndarray], matrices: Mapping[int, csr_array]) -> Any:
    """Return sum_{l=1..k-1} C(k, l) W_l m_{k-l}, shape (n,)."""
    return sum(math.comb(k, order) * (matrices[order] @ found[k - order - 1]) for order in range(1, k))
