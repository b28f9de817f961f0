"""Corrections by PETSc's Krylov methods, watched by the trace of the solve; PETSc's reason codes are not believed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ctmc.solution import Status
from ctmc.trace import Trace

_MARGIN = 2.0
"""How much larger than estimated from its norm a defect may be."""


def correction(
    solver: Any,
    vectors: tuple[Any, ...],
    residual: np.ndarray,
    defect: float,
    trace: Trace,
    limit: int,
    iterate: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray | None, int | None]:
    """Return the solution of A change = residual as far as it is needed, and the steps that the trace has not seen.

    Parameters
    ----------
    solver : PETSc.KSP
    vectors : tuple of PETSc.Vec
        Two, for the right side and the change.
    residual : ndarray, shape (n,)
        Of the own unknowns.
    defect : float
        That belongs to it; estimated from the norms of what is left of it.
    trace : Trace
    limit : int
        Largest number of steps.
    iterate : callable
        Returns the iterate from a change.

    Returns
    -------
    ndarray or None
        None where there is nothing of use.
    int or None
        None where the solve is to end.
    """
    right, change = vectors
    right.setArray(residual)
    change.set(0.0)
    first, made, recorded, stopped = 0.0, 0, 0, False

    def look(solver: Any, step: int, norm: float) -> bool:
        nonlocal first, made, recorded, stopped
        made, first = step, norm if step == 0 else first
        estimate = _MARGIN * defect * norm / first if first > 0 else math.nan
        if step == 0 or estimate <= trace.tolerance:  # the true defect is recorded next
            return step > 0
        steps, recorded = step - recorded, step
        stopped = trace.finished(
            estimate,
            iterate=lambda: iterate(solver.buildSolution().getArray()),
            limit=limit,
            iterations=steps,
        )
        return stopped

    solver.setConvergenceTest(look)
    solver.solve(right, change)
    if made == 0:
        trace.status = Status.BREAKDOWN
        return None, None
    if not math.isfinite(change.norm()):
        return None, None
    return np.array(change.getArray(readonly=True)), None if stopped else max(made - recorded, 1)
