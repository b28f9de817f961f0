"""What of a stored answer is proved again, from the model and the numbers that its file keeps.

Long-run distributions get their whole certificate.  Passage times of every start go through the code that certified them, with
the stored vectors in place of a solver.  Discounted rewards of every start are put into their equations.  Of transient
distributions masses and signs are checked; the integrals that proved them, and the vectors behind numbers about one start, are
not kept, so that these stand on the hash of their file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc import certificate
from ctmc.certificate import MASS_TOLERANCE, wrong_distribution
from ctmc.equation import Equation
from ctmc.errors import CTMCError, ModelError
from ctmc.evolution import reward_columns, rounding_floor
from ctmc.model.distribution import Distribution
from ctmc.model.generator import Generator
from ctmc.model.impulses import impulse_matrix, impulse_rates
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.model.stopped import fates
from ctmc.passage import SMALL, answer_passage
from ctmc.problem import PROBLEMS, DiscountedReward, FirstPassage, Stationary
from ctmc.solution import Outcome, Solution, Status, flat_measures
from ctmc.storage.solutions import StoredSolution

RIGHT, WRONG, UNCHECKED = "right", "wrong", "not checked"
_FEWER_DIGITS = 4.0
"""Raw moments are put together from central ones; per moment, what that may cost a residual."""


@dataclass(frozen=True)
class Row:
    """One thing that was looked at.

    Attributes
    ----------
    part : str
        Such as 'arrays' or 'certificate'.
    result : str
        'right', 'wrong' or 'not checked'.
    detail : str
        One sentence, or what was counted.
    """

    part: str
    result: str
    detail: str


def check_answer(stored: StoredSolution, model: Generator | QBD) -> Iterator[Row]:
    """Yield what is found about an answer: its question, the lengths of its vectors, its certificate.

    Parameters
    ----------
    stored : StoredSolution
    model : Generator or QBD
        The one that it says to be about.

    Examples
    --------
    >>> import tempfile, ctmc
    >>> from ctmc.storage import load_solution, save, save_solution
    >>> queue = ctmc.build("birth_death", births=[1.0], deaths=[2.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     digest = save(f"{folder}/queue.h5", queue)
    ...     stored = load_solution(save_solution(f"{folder}/queue.h5", ctmc.solve(ctmc.Stationary(queue), "gth")))
    >>> [(row.part, row.result) for row in check_answer(stored, queue)]
    [('vectors', 'right'), ('certificate', 'right')]
    """
    wrong = _wrong_vectors(stored, model)
    yield Row("vectors", WRONG if wrong else RIGHT, wrong or "their lengths fit the model.")
    if wrong:
        return
    if stored.status is not Status.CONVERGED:
        yield Row("certificate", UNCHECKED, f"it claims nothing: {stored.status.name}.")
        return
    try:
        # numbers that overflow are a verdict, and no reason to warn
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            rows = list(_PROOFS.get(stored.problem, _none_kept)(stored, model))
        yield from rows
    except CTMCError as error:
        yield Row("certificate", WRONG, f"its question does not fit the model: {error}")
    except ArithmeticError as error:
        yield Row("certificate", WRONG, f"its numbers are beyond all arithmetic ({error}).")


def _wrong_vectors(stored: StoredSolution, model: Generator | QBD) -> str:
    """Return which vector does not fit the model, '' where all do."""
    value = stored.value
    if stored.problem not in PROBLEMS:
        return f"its problem is {stored.problem[:60]!r}; allowed are {', '.join(PROBLEMS)}."
    if isinstance(model, QBD) or isinstance(value, MatrixGeometric):
        if stored.problem != "stationary" or not (isinstance(model, QBD) and isinstance(value, MatrixGeometric)):
            return "its answer and its model are not of the same kind, finite or a QBD."
        lengths = [np.shape(vector) for vector in value.boundary]
        allowed = [(len(table),) for table in model.phases]
        square = (model.phase_count,) * 2
        blocks = [np.shape(block) for block in (value.r, value.g, value.u) if block is not None]
        if lengths != allowed or any(shape != square for shape in blocks):
            return (
                f"its vectors have the shapes {lengths} and its matrices {blocks}; allowed are {allowed} and {square}."
            )
        return ""
    n, start = model.size, stored.initial
    if start is not None and not _is_distribution(start, n):
        return f"its initial distribution is none over {n:,} states."
    of_states = stored.problem == "stationary" or (stored.problem == "transient" and not stored.reward)
    if of_states or start is None:
        lead = value.shape[:-1]
        if stored.problem == "stationary":
            lead = ()
        elif of_states:
            lead = (0 if stored.times is None else len(stored.times),)
        if value.shape != (*lead, n):
            return f"its value has the shape {value.shape}; allowed is {(*lead, n)} for {n:,} states."
    if stored.problem == "first-passage" and (stored.target is None or stored.moments is None):
        return "its question has no target or no moments."
    if stored.problem == "discounted-reward" and (not stored.reward or stored.moments is None):
        return "its question has no reward or no moments."
    return ""


def _is_distribution(initial: Distribution, n: int) -> bool:
    positions, probabilities = initial.positions, initial.probabilities
    inside = len(positions) and positions.dtype == np.int64 and positions[0] >= 0 and positions[-1] < n
    ascending = bool((np.diff(positions) > 0).all())
    return bool(inside and ascending and (probabilities > 0).all() and abs(probabilities.sum() - 1) <= 1e-9)


def _none_kept(stored: StoredSolution, model: Any) -> Iterator[Row]:
    yield Row("certificate", UNCHECKED, "hash only: the integrals that proved it are not stored.")


def _stationary(stored: StoredSolution, model: Any) -> Iterator[Row]:
    initial = stored.initial if isinstance(model, Generator) else None
    problem = Stationary(model, stored.tolerance, initial)
    proof = certificate.certify(problem, Outcome(stored.value))
    if proof.status is not Status.CONVERGED:
        yield Row("certificate", WRONG, f"it claims CONVERGED, but {proof.reason}")
        return
    yield Row("certificate", RIGHT, f"{proof.reason[:-1]}; stored is {stored.defect:.2g}.")
    if stored.intervals:
        yield _intervals(stored, problem)


def _intervals(stored: StoredSolution, problem: Stationary) -> Row:
    """Return whether what the stored distribution gives lies in the stored intervals."""
    solution = Solution(
        problem, stored.value, Status.CONVERGED, "", stored.defect, stored.history, 0.0, 0, stored.solver
    )
    found = flat_measures(solution.measures())
    known = [name for name in stored.intervals if name in found]
    for name in known:
        one, value = stored.intervals[name], found[name]
        room = math.sqrt(stored.tolerance) * max(abs(value), 1.0)
        if not one.low - room <= value <= one.high + room:
            return Row("intervals", WRONG, f"{name} is {value:.12g}, outside [{one.low:.12g}, {one.high:.12g}].")
    return Row("intervals", RIGHT, f"{len(known)} of {len(stored.intervals)} hold what the distribution gives.")


def _transient(stored: StoredSolution, model: Generator) -> Iterator[Row]:
    if stored.reward:
        yield from _none_kept(stored, model)
        return
    times = np.zeros(1) if stored.times is None else stored.times
    accepted = max(stored.tolerance, MASS_TOLERANCE, rounding_floor(model.uniformization_rate, float(times[-1])))
    for time, row in zip(times, stored.value, strict=True):
        wrong = wrong_distribution(row, stored.defect, accepted)
        if wrong:
            yield Row("distributions", WRONG, f"at time {time:g} {wrong.reason}")
            return
    yield Row("distributions", RIGHT, f"{len(times)} have mass 1 and no negative entry.")
    yield from _none_kept(stored, model)


class _NotStoredError(Exception):
    """An equation asks for what the file does not keep."""


def _passage(stored: StoredSolution, model: Generator) -> Iterator[Row]:
    reason = _why_only_the_hash(stored)
    if reason:
        yield Row("certificate", UNCHECKED, reason)
        return
    problem = FirstPassage(
        model, stored.target, None, stored.avoid, moments=stored.moments or 1, tolerance=stored.tolerance
    )
    found = fates(model, problem.target_states, problem.avoided_states)
    vectors: list[Any] = [None, stored.reach_probability] if found.possible.any() else []
    if found.certain.any():
        vectors += [*stored.value] + ([] if stored.variances is None else [stored.variances])
    left = iter(vectors)

    def run(equation: Equation) -> Outcome:
        vector = next(left)
        if vector is None:  # the times among the undecided states, which no answer keeps
            inside = equation.inside
            if not equation.may_eliminate(SMALL, True):
                raise _NotStoredError
            vector = np.zeros(model.size)
            vector[inside] = equation.elimination().solve(equation.right[inside])
        return Outcome(np.where(np.isfinite(vector), vector, 0.0))

    outside = ~(found.certain | found.target)
    if not np.isinf(stored.value[:, outside]).all() or stored.value[:, found.target].any():
        yield Row("certificate", WRONG, "its times are not 0 in the target, or finite where the target may be missed.")
        return
    try:
        _, proof, answer = answer_passage(problem, run)
    except _NotStoredError:
        yield Row("certificate", UNCHECKED, "hash only: the times among undecided states are not stored.")
        return
    if proof.status is not Status.CONVERGED:
        yield Row("certificate", WRONG, f"it claims CONVERGED, but {proof.reason}")
        return
    claimed = stored.relative_error_bound
    short = claimed is None or (10 * claimed + 1e-15 < answer.relative_bounds).any()
    off = float(np.abs(answer.reach - stored.reach_probability).max())
    if short or off > max(stored.tolerance, 1e-14):
        yield Row("certificate", WRONG, "its error bounds or probabilities are not those that its times prove.")
        return
    yield Row("certificate", RIGHT, f"{proof.reason[:-1]}; stored is {stored.defect:.2g}.")


def _why_only_the_hash(stored: StoredSolution) -> str:
    if stored.functions:
        return f"hash only: {' and '.join(stored.functions)} was a function, which no file keeps."
    if stored.initial is not None:
        return "hash only: the vector of every start is not stored."
    return ""


def _discounted(stored: StoredSolution, model: Generator) -> Iterator[Row]:
    reason = _why_only_the_hash(stored)
    if reason:
        yield Row("certificate", UNCHECKED, reason)
        return
    moments, tolerance = stored.moments or 1, stored.tolerance
    problem = DiscountedReward(
        model, stored.reward, None, discount=stored.discount or 0.0, moments=moments, tolerance=tolerance
    )
    columns = reward_columns(model, problem.reward)
    values = stored.value.reshape(-1, moments, model.size)
    if len(columns) != len(values):
        raise ModelError(f"it has {len(values)} columns; the rewards have {len(columns)}.")
    worst = 0.0
    for (name, reward, rates), found in zip(columns, values, strict=True):
        alone = rates - impulse_rates(model, reward) if reward.has_impulses else rates
        for k in range(1, moments + 1):
            shift = k * float(problem.discount)
            right = k * alone * (found[k - 2] if k > 1 else 1.0)
            if reward.has_impulses:
                right = right + impulse_rates(model, reward, k)
                for order in range(1, k):
                    right += math.comb(k, order) * (impulse_matrix(model, reward, order) @ found[k - order - 1])
            equation = Equation(model, right, shift)
            defect = equation.defect(equation.residual(found[k - 1]))
            accepted = _FEWER_DIGITS**k * max(tolerance, rounding_floor(model.uniformization_rate, 1 / shift))
            if not defect <= accepted:
                text = (
                    f"it claims CONVERGED, but moment {k} of {name} has the defect {defect:.3g}, above {accepted:.2g}."
                )
                yield Row("certificate", WRONG, text)
                return
            worst = max(worst, defect)
    yield Row(
        "certificate", RIGHT, f"all moments satisfy their equations to {worst:.2g}; stored is {stored.defect:.2g}."
    )


_PROOFS: dict[str, Any] = {
    "stationary": _stationary,
    "transient": _transient,
    "first-passage": _passage,
    "discounted-reward": _discounted,
}
