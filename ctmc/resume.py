"""The runs of a solver that a solve consists of, each watched, kept for a checkpoint, and taken up again."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.checkpoint import Checkpoint, Keeper, Progress, Run
from ctmc.equation import Equation
from ctmc.errors import ModelError, StorageError
from ctmc.evolution import Evolution
from ctmc.model.generator import Generator, ProductCounter
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.memory import require_memory
from ctmc.problem import AccumulatedReward, Stationary, Transient
from ctmc.ranks import ALONE
from ctmc.solution import HISTORY, Outcome, Status
from ctmc.solver import Solver
from ctmc.trace import Monitor, Trace
from ctmc.witness import Witness

_LEAST_SHARE = 0.1
"""Of the tolerance that is left to the times after an interruption, where the method's bound has used up the rest."""


class Runs:
    """Runs a solver on one question after another, for a solve as a whole.

    Parameters
    ----------
    problem : Problem
        As the user has given it.
    solver : solver object
    counter : ProductCounter
    monitor : callable, optional
    time_limit : float, optional
    checkpoint : Checkpoint, optional
    """

    def __init__(
        self,
        problem: Any,
        solver: Solver,
        counter: ProductCounter,
        monitor: Monitor | None,
        time_limit: float | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._tolerance, self._solver, self._counter, self._monitor = problem.tolerance, solver, counter, monitor
        self._time_limit, self._checkpoint = time_limit, checkpoint
        self._ranks = problem.model.ranks if isinstance(problem.model, Generator) else ALONE
        self._begin = time.perf_counter()
        self._before = 0.0
        self.warm = False
        """Whether a run began from the user's first iterate."""
        self._over_time = isinstance(problem, Transient | AccumulatedReward)
        self.keeper = None if checkpoint is None else self._open(problem, checkpoint)

    def _open(self, problem: Any, checkpoint: Checkpoint) -> Keeper | None:
        from ctmc.storage.checkpoints import check_place, load_checkpoint, question_of, save_checkpoint

        if isinstance(problem.model, LevelDependentQBD):
            raise ModelError(
                "checkpoint is given, but the blocks of a LevelDependentQBD are a function, which no file can tell apart; "
                "allowed is a Generator or QBD."
            )
        if self._over_time and self._ranks.count > 1:
            raise ModelError(
                f"checkpoint is given, but a {type(problem).__name__} problem on several ranks keeps none; allowed is one process."
            )
        question = question_of(problem, self._solver)
        before = None
        if checkpoint.resume:
            before = load_checkpoint(checkpoint.path, question, self._ranks)
            self._counter.products += before.products
            self._before = before.seconds
        else:
            check_place(checkpoint.path)

        def write(progress: Progress) -> None:
            save_checkpoint(checkpoint.path, question, progress, self._ranks)

        wanted = getattr(self._monitor, "wants_checkpoint", None)
        return Keeper(write, checkpoint.minutes, before, wanted, self._ranks)

    @property
    def seconds(self) -> float:
        """Wall time of the solve, of what was interrupted as well."""
        return self._before + time.perf_counter() - self._begin

    def stationary(
        self, problem: Stationary, start: np.ndarray | None = None, support: np.ndarray | None = None
    ) -> Outcome:
        """Run the solver on a chain, or on one recurrent class."""
        return self._run(problem, lambda saved: self._trace(start=start, support=support, interrupted=saved))

    def equation(self, equation: Equation) -> Outcome:
        """Run the solver on one linear equation."""
        states = ""
        if self.keeper is not None and equation.inside is not None:
            from ctmc.storage.checkpoints import digest_of_states

            states = digest_of_states(equation.model, equation.inside)
        return self._run(
            equation, lambda saved: self._trace(tolerance=equation.tolerance, interrupted=saved), states=states
        )

    def over_time(self, evolution: Evolution, witness: Witness) -> Outcome:
        """Run the solver on one equation over time; a time that was reached is where it can go on."""
        keeper = self.keeper
        if keeper is None:
            return checked(self._solver.run(evolution, self._trace(reached=witness.reached)))
        saved = keeper.begin()
        if saved is not None:
            witness.restore(saved)
        if saved is not None and saved.status is not None:
            outcome = Outcome(None, saved.status, saved.history, solver=saved.solver)
        else:
            rest = Rest(evolution, witness, keeper, saved)
            trace = self._trace(reached=rest.reached, interrupted=saved)
            trace.go_on()
            rest.history = lambda: trace.history
            outcome = checked(self._solver.run(rest.evolution, trace))
        if witness.fine:
            keeper.finish(outcome, *witness.seen())
        else:
            keeper.give_up()  # the verdict on it is not kept
        return outcome

    def _run(self, question: Any, trace_for: Callable[[Run | None], Trace], states: str = "") -> Outcome:
        keeper = self.keeper
        if keeper is None:
            trace = trace_for(None)
            outcome = checked(self._solver.run(question, trace))
            self.warm |= trace.warm
            return outcome
        saved = keeper.begin(states)
        if saved is not None and saved.status is not None:
            value: Any = saved.arrays.get("value")
            if value is None or value.shape != (question.model.states,):
                raise StorageError("the checkpoint has a run without a vector for each state; allowed is one of them.")
            if question.model.shared:
                begin = question.model.begin
                value = value.part(begin, begin + question.model.size)
            outcome = Outcome(np.array(value), saved.status, saved.history, solver=saved.solver)
        else:
            trace = trace_for(saved)
            outcome = checked(self._solver.run(question, trace))
            self.warm |= trace.warm
        if isinstance(outcome.value, np.ndarray) and outcome.value.dtype == np.float64:
            keeper.finish(outcome, {"value": outcome.value}, {})
        else:
            keeper.give_up()
        return outcome

    def _trace(self, tolerance: float | None = None, **arguments: Any) -> Trace:
        left = self._time_limit
        if left is not None:
            left = max(left - (time.perf_counter() - self._begin), 1e-3)
        return Trace(
            self._tolerance if tolerance is None else tolerance,
            time_limit=left,
            monitor=self._monitor,
            counter=self._counter,
            keeper=self.keeper,
            ranks=self._ranks,
            **arguments,
        )

    def end(self, converged: bool) -> dict[str, Any]:
        """Remove the checkpoint of a solve that has converged; return what the solution says about it."""
        keeper, checkpoint = self.keeper, self._checkpoint
        if keeper is None or checkpoint is None:
            return {}
        if converged and (keeper.written or checkpoint.resume) and not self._ranks.rank:
            from ctmc.storage.checkpoints import remove_checkpoint

            remove_checkpoint(checkpoint.path)
        notes = []
        if keeper.failures:
            notes.append(f"{keeper.failures} checkpoints were not written, the last one so: {keeper.reason}")
        if not keeper.kept:
            notes.append(
                "There is no checkpoint: no time but the last one was reached."
                if self._over_time
                else "There is no checkpoint: the method has no intermediate state."
            )
        left = not converged and (keeper.written > 0 or checkpoint.resume)
        return {"notes": tuple(notes), "checkpoint": Path(checkpoint.path) if left else None}


class Rest:
    """What is left of an equation over time after the last time that was reached.

    The rest begins with y at that time; its integral and error bound are added to those before.

    Parameters
    ----------
    evolution : Evolution
    witness : Witness
        Has seen the times so far.
    keeper : Keeper
    saved : Run, optional
        What was reached.
    """

    def __init__(self, evolution: Evolution, witness: Witness, keeper: Keeper, saved: Run | None) -> None:
        self._whole, self._witness, self._keeper = evolution, witness, keeper
        self.evolution = evolution
        self.history: Callable[[], np.ndarray] = lambda: np.empty(0, HISTORY)
        self._done = len(witness.values)
        self._integral: np.ndarray | None = None
        self._error: float | None = 0.0
        self._begin = 0.0
        require_memory("a checkpoint", 16 * evolution.start.size, states=evolution.model.size)
        self._point = np.empty_like(evolution.start), np.empty_like(evolution.start)
        if saved is not None and self._done:
            self._integral = saved.arrays["integral"]
            self._begin = float(evolution.times[self._done - 1])
            self._error = float(saved.numbers["error"]) if "error" in saved.numbers else None
            self.evolution = dataclasses.replace(
                evolution,
                start=np.array(saved.arrays["y"]),
                times=evolution.times[self._done :] - self._begin,
                tolerance=max(evolution.tolerance - self._inherited(-1), _LEAST_SHARE * evolution.tolerance),
            )

    def _inherited(self, position: int) -> float:
        span = float(self._whole.times[position]) - self._begin
        return (self._error or 0.0) * self._whole.amplification(span)

    def reached(self, position: int, y: np.ndarray, integral: np.ndarray, error: float | None = None) -> None:
        """Hand the answer for a time of the rest to the witness, and keep it as the newest point to go on from."""
        position += self._done
        if self._integral is not None:
            integral = integral + self._integral
            # without a bound of what came before there is none
            error = None if error is None or self._error is None else error + self._inherited(position)
        self._witness.reached(position, y, integral, error)
        if not self._witness.fine or position + 1 == len(self._whole.times):
            return
        np.copyto(self._point[0], y)
        np.copyto(self._point[1], integral)
        records = len(self.history())

        def point() -> Run:
            arrays, numbers = self._witness.seen()
            if error is not None and math.isfinite(error):
                numbers["error"] = float(error)
            arrays |= {"y": self._point[0], "integral": self._point[1]}
            return Run(arrays, numbers, self.history()[:records])

        self._keeper.reached(point)


def checked(outcome: Any) -> Outcome:
    """Return what a solver returned, if it is an outcome at all; its value is the certificate's business."""
    if not isinstance(outcome, Outcome):
        raise TypeError(f"the solver returned a {type(outcome).__name__}, not an Outcome")
    if not isinstance(outcome.status, Status):
        raise TypeError(f"the solver's status is {outcome.status!r}, not a Status")
    history = outcome.history
    if history is not None and not (isinstance(history, np.ndarray) and history.dtype == HISTORY and history.ndim == 1):
        raise TypeError(f"the solver's history is a {type(history).__name__}, not that of its trace")
    return outcome
