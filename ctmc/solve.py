"""`solve`: match a problem with a solver, run it, verify the answer, raise or return."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from typing import Any

import numpy as np
from scipy.sparse.linalg import splu

from ctmc import certificate, registry
from ctmc.certificate import Certificate
from ctmc.errors import CTMCError, ModelError, ReducibleError, SolveError, UnstableError
from ctmc.model.generator import Generator, ProductCounter
from ctmc.model.qbd import QBD
from ctmc.problem import Problem, Stationary
from ctmc.solution import HISTORY, Outcome, Solution, Status, value_arrays
from ctmc.solver import Solver
from ctmc.trace import Monitor, Trace

_log = logging.getLogger("ctmc.solve")

SMALL = 3000
"""Up to this many states elimination is the default for a stationary distribution."""


def default_solver(problem: Problem) -> str:
    """Return the name of the solver that is taken when none is named.

    Stationary: `gth` up to 3000 states (it cannot be inaccurate), `gmres` above, `logarithmic_reduction` for a QBD.
    Transient: `uniformization`.
    """
    if not isinstance(problem, Stationary):
        return "uniformization"
    if isinstance(problem.model, QBD):
        return "logarithmic_reduction"
    return "gth" if problem.model.size <= SMALL else "gmres"


def next_method(problem: Problem, name: str) -> str:
    """Return the method to try after this one failed, or '' where there is none."""
    if isinstance(problem, Stationary) and isinstance(problem.model, Generator):
        order = ["gth"] if problem.model.size <= SMALL else []
        order += ["gmres", "gauss_seidel", "sparse_lu"]
    else:
        order = [default_solver(problem)]
    return next((other for other in order if other != name), "")


def solve(
    problem: Problem,
    solver: Solver | str | None = None,
    *,
    start: np.ndarray | None = None,
    time_limit: float | None = None,
    monitor: Monitor | None = None,
    check: bool = True,
) -> Solution:
    """Answer a problem, and verify the answer.

    Parameters
    ----------
    problem : Stationary or Transient
    solver : solver object, or str, optional
        For instance ``"gmres"`` or ``"gmres(restart=50)"``; by default what `default_solver` says.  Nothing else is ever
        tried by itself.
    start : ndarray, shape (n,), optional
        First iterate for iterative methods, non-negative.
    time_limit : float, optional
        Seconds, looked at once per iteration.
    monitor : callable, optional
        ``monitor(iteration, defect)`` once per iteration; returning true stops the solve.
    check : bool
        If true (default), an answer that is not CONVERGED is raised as `SolveError`, which carries it.

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
    UnstableError
        The QBD has no stationary distribution.

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), "gth").value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """
    chosen = registry.make_solver(default_solver(problem) if solver is None else solver)
    registry.check_takes(chosen, problem)
    name = registry.solver_name(chosen)
    _log.info("%s: %s on %s", name, type(problem).__name__, type(problem.model).__name__)
    counter = ProductCounter()
    view = _counting(problem, counter)
    begin = time.perf_counter()

    def trace_for(tolerance: float, start: np.ndarray | None) -> Trace:
        return Trace(tolerance, start=start, time_limit=time_limit, monitor=monitor, counter=counter)

    failure: Exception | None = None
    lost = 0.0
    try:
        if isinstance(view, Stationary) and isinstance(view.model, Generator):
            outcome, lost = _by_classes(view, chosen, trace_for, start)
        else:
            if isinstance(view.model, QBD):
                _check_stable(view.model)
            if start is not None:
                raise ModelError(f"start is given, but {type(problem).__name__} on this model takes none.")
            outcome = chosen.run(view, trace_for(problem.tolerance, None))
        if not isinstance(outcome, Outcome):
            raise TypeError(f"the solver returned a {type(outcome).__name__}, not an Outcome")
        proof = certificate.certify(view, outcome)
    except CTMCError:
        raise
    except Exception as error:  # a solver is a plug-in: whatever it does, the user gets one sentence
        failure = error
        outcome = Outcome(np.full(getattr(view.model, "size", 0), math.nan), Status.BREAKDOWN)
        proof = Certificate(math.nan, Status.BREAKDOWN, f"{type(error).__name__}: {error}")
    solution = _conclude(problem, chosen, outcome, proof, lost, counter.products, time.perf_counter() - begin)
    _log.info("%s: %s, defect %.3g, %.3f s", name, solution.status.name, solution.defect, solution.seconds)
    if check and not solution.converged:
        raise SolveError(failure_message(solution), solution) from failure
    return solution


def failure_message(solution: Solution) -> str:
    """Return one sentence on why a solution is not certified, and the method to try next."""
    name = registry.snake_case(solution.solver.partition("(")[0])
    other = next_method(solution.problem, name)
    hint = f" Next to try: {other}." if other else ""
    return f"{name}: {solution.status.name}, {solution.reason} {solution.status.advice}{hint}"


def _conclude(
    problem: Problem,
    solver: Solver,
    outcome: Outcome,
    proof: Certificate,
    lost: float,
    products: int,
    seconds: float,
) -> Solution:
    """Join the solver's claim and the certificate: only the certificate can say CONVERGED."""
    status, reason = proof.status, proof.reason
    if status is Status.CONVERGED and lost > problem.tolerance:
        status, reason = Status.INACCURATE, f"the weights of the recurrent classes are off by up to {lost:.2g}."
    if status is not Status.CONVERGED and outcome.status is not Status.CONVERGED:
        status = outcome.status  # the solver said itself that it did not get there
    for array in value_arrays(outcome.value):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    history = np.empty(0, HISTORY) if outcome.history is None else outcome.history
    history.flags.writeable = False
    return Solution(
        problem=problem,
        value=outcome.value,
        status=status,
        reason=reason,
        defect=max(proof.defect, lost) if lost else proof.defect,
        history=history,
        seconds=seconds,
        products=products,
        solver=repr(solver),
        error_bound=proof.error_bound,
    )


def _counting(problem: Problem, counter: ProductCounter) -> Any:
    if not isinstance(problem.model, Generator):
        return problem
    problem.model.classes, problem.model.slow_classes  # noqa: B018  # found once, on the user's model, not on the view
    return dataclasses.replace(problem, model=problem.model.counted(counter))


def _check_stable(queue: QBD) -> None:
    scale = float(-queue.local.diagonal().min())
    if not queue.drift < -1e-14 * scale:
        word = "zero (null recurrent)" if abs(queue.drift) <= 1e-14 * scale else f"{queue.drift:.6g}"
        raise UnstableError(f"the mean drift of the level is {word} per unit of time; allowed is a negative one.")


def _by_classes(problem: Stationary, solver: Solver, trace_for: Any, start: np.ndarray | None) -> tuple[Outcome, float]:
    """Solve each recurrent class by itself and mix them; transient states have probability zero.

    Returns the outcome and a bound on the L1 error of the mixing weights.
    """
    chain = problem.model
    assert isinstance(chain, Generator)
    found = chain.classes
    if start is not None and np.shape(start) != (chain.size,):
        raise ModelError(f"start has shape {np.shape(start)}; allowed is ({chain.size},).")
    if found.irreducible and chain.size > 1:
        return solver.run(problem, trace_for(problem.tolerance, start)), 0.0
    if len(found.recurrent) > 1 and problem.initial is None:
        names = ", ".join(f"{chain._name(int(found.members(number)[0]))}" for number in found.recurrent[:3])
        raise ReducibleError(
            f"the chain has {len(found.recurrent)} recurrent classes (with states {names}{', ..' if len(found.recurrent) > 3 else ''}), "
            "so its long-run distribution depends on the start; give an initial state or distribution."
        )
    weights, lost = (np.ones(1), 0.0) if len(found.recurrent) == 1 else _class_weights(problem)
    value = np.zeros(chain.size)
    histories: list[np.ndarray] = []
    status = Status.CONVERGED
    for number, weight in zip(found.recurrent, weights, strict=True):
        if weight == 0:
            continue
        members = found.members(number)
        if len(members) == 1:
            value[members] = weight
            continue
        part = chain.restricted(members)
        if chain._counter is not None:
            part = part.counted(chain._counter)
        trace = trace_for(problem.tolerance, None if start is None or not start[members].any() else start[members])
        outcome = solver.run(dataclasses.replace(problem, model=part, initial=None), trace)
        if np.shape(outcome.value) != (len(members),):
            raise ValueError(f"the answer has shape {np.shape(outcome.value)}, not ({len(members)},)")
        value[members] = weight * outcome.value
        status = outcome.status if status is Status.CONVERGED else status
        if outcome.history is not None and len(outcome.history):
            history = outcome.history.copy()
            if histories:
                history["iteration"] += histories[-1]["iteration"][-1] + 1
                history["seconds"] += histories[-1]["seconds"][-1]
            histories.append(history)
    return Outcome(value, status, np.concatenate(histories) if histories else None), lost


def _class_weights(problem: Stationary) -> tuple[np.ndarray, float]:
    """Return the probability to end in each recurrent class, and a proven bound on the L1 error of them.

    With y the expected times in the transient states T, y Q_TT = -p_T and the weights are p_C + y Q_TC.  Any residual of the
    first equation, in L1, bounds the error of the weights, since the missing mass ends somewhere.
    """
    chain = problem.model
    assert isinstance(chain, Generator)
    found = chain.classes
    begin = problem.initial.dense(chain.size)
    number = np.full(found.count, -1)
    number[found.recurrent] = np.arange(len(found.recurrent))
    ends_in = number[found.class_of]
    transient = np.flatnonzero(ends_in < 0)
    weights = np.bincount(ends_in[ends_in >= 0], weights=begin[ends_in >= 0], minlength=len(found.recurrent))
    if not begin[transient].any():
        return weights, 0.0
    rates = chain.to_scipy()[transient]
    inside = rates[:, transient]
    times = np.maximum(splu(inside.T.tocsc()).solve(-begin[transient]), 0)
    residual = float(np.abs(times @ inside + begin[transient]).sum())
    arrivals = times @ rates
    weights += np.bincount(ends_in[ends_in >= 0], weights=arrivals[ends_in >= 0], minlength=len(found.recurrent))
    return weights / weights.sum(), residual + abs(float(weights.sum()) - 1)
