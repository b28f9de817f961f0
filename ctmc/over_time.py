"""Questions about time: their equations one after another, and the answer that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctmc.certificate import Certificate
from ctmc.evolution import Evolution, evolutions, raw_errors, raw_moments
from ctmc.model.memory import require_memory
from ctmc.problem import AccumulatedReward, Transient, is_single
from ctmc.solution import Answer, Outcome, Status, joined_histories
from ctmc.witness import UselessAnswerError, Witness

Run = Callable[[Evolution, Witness], Outcome]


def answer_over_time(problem: Transient | AccumulatedReward, run: Run) -> tuple[Outcome, Certificate, Answer]:
    """Have each equation of a problem solved, and put the numbers together.

    Parameters
    ----------
    problem : Transient or AccumulatedReward
    run : callable
        Has a solver answer an equation, watched by a witness.

    Returns
    -------
    Outcome
        Joined history, and the first status that is not CONVERGED.
    Certificate
        The worst verdict.
    Answer
        Values, their error bounds, and variances.
    """
    _require_memory_for_values(problem)
    status, solver = Status.CONVERGED, None
    histories: list[np.ndarray] = []
    proofs: list[Certificate] = []
    parts: list[Answer] = []
    for evolution in evolutions(problem):
        witness = Witness(evolution)
        if status in (Status.CONVERGED, Status.INACCURATE):
            try:
                outcome = run(evolution, witness)
                solver = outcome.solver or solver
                status = outcome.status if status is Status.CONVERGED else status
                if outcome.history is not None and len(outcome.history):
                    histories.append(outcome.history)
            except UselessAnswerError:
                pass
        proofs.append(witness.certificate())
        parts.append(_read(problem, evolution, witness))
    history = joined_histories(histories)
    return Outcome(None, status, history, solver=solver), worst(proofs), assembled(problem, parts)


def _require_memory_for_values(problem: Any) -> None:
    n, times = problem.model.size, len(problem.times)
    if problem.reward is None:
        require_memory("keeping the distributions", 8 * n * times, states=n)
    elif problem.initial is None:
        numbers = times * getattr(problem, "moments", 1) * len(problem.reward)
        require_memory("keeping the rewards of every initial state", 16 * n * numbers, states=n)


@np.errstate(invalid="ignore")  # a bound that no method gives is infinite, and may meet a zero
def _read(problem: Any, evolution: Evolution, witness: Witness) -> Answer:
    """Return what one equation gives: values (columns, .., times[, n]), NaN where the solver did not get."""
    reading, times = evolution.reading, evolution.times
    if witness.values:
        shape = witness.values[0].shape
    else:
        lead = (reading.moments,) if reading.moments > 1 or evolution.backward else (max(len(reading.columns), 1),)
        shape = (*lead, evolution.model.size) if evolution.backward else lead
        shape = (evolution.model.size,) if not reading.columns else shape
    missing = [np.full(shape, np.nan)] * (len(times) - len(witness.values))
    if not reading.columns:
        return Answer(np.array([*witness.values, *missing]), max(witness.errors, default=np.inf))
    central = np.stack([*witness.values, *missing], axis=1)  # (columns or moments, times[, n])
    bounds = [reading.errors(error, float(time)) for error, time in zip(witness.errors, times, strict=False)]
    bounds += [np.full_like(reading.errors(1.0, 1.0), np.nan)] * len(missing)
    errors = np.array(bounds).T  # (columns or moments, times)
    spread = (slice(None), *(None,) * (central.ndim - 1))
    if reading.moments == 0:
        return Answer(central + reading.middle[spread], errors)
    if reading.moments == 1 and not evolution.backward:
        along = (None, slice(None), *(None,) * (central.ndim - 2))
        return Answer((central + reading.middle[spread] * times[along])[:, None], errors[:, None])
    middle = float(reading.middle[0])
    value, bound = raw_moments(central, middle, times), raw_errors(errors, middle, times)
    if reading.moments == 1:
        return Answer(value[None], bound[None])
    # the variance of Phi is that of Phi less a constant
    variance = np.maximum(central[1] - central[0] ** 2, 0)
    mean = np.abs(central[0])
    if evolution.backward:
        mean = evolution.model.ranks.largest(mean.max(axis=-1, initial=0.0))
    off = errors[1] + 2 * mean * errors[0] + errors[0] ** 2
    return Answer(value[None], bound[None], variance[None], off[None])


def assembled(problem: Any, parts: list[Answer]) -> Answer:
    """Return the columns of all parts together; without their axis for one reward that is a number."""
    if problem.reward is None:
        return parts[0]

    single = is_single(problem)

    def together(arrays: list[Any]) -> Any:
        if arrays[0] is None:
            return None
        array = np.concatenate(arrays)
        return array[0] if single else array

    return Answer(
        together([part.value for part in parts]),
        together([part.error_bound for part in parts]),
        together([part.variance for part in parts]),
        together([part.variance_bound for part in parts]),
    )


def worst(proofs: list[Certificate]) -> Certificate:
    """Return the first verdict that is not CONVERGED, else the one with the largest defect."""
    wrong = next((proof for proof in proofs if proof.status is not Status.CONVERGED), None)
    return wrong or max(proofs, key=lambda proof: proof.defect)
