"""Eigenvalues of largest real part by the Krylov-Schur method of SLEPc."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from solvers._petsc import Objects, slepc

PREFIX = "ctmc_eigen_"


def eigensolver(objects: Objects, matrix: Any, wanted: int, vectors: int) -> Any:
    """Return a Krylov-Schur solver for the eigenvalues of largest real part of a matrix that is not symmetric.

    Parameters
    ----------
    objects : Objects
    matrix : PETSc.Mat
    wanted : int
        Number of eigenvalues.
    vectors : int
        Largest number of basis vectors.
    """
    module, size = slepc(), matrix.getSize()[0]
    solver = objects.keep(module.EPS().create(matrix.getComm()))
    solver.setOptionsPrefix(PREFIX)
    solver.setOperators(matrix)
    solver.setProblemType(module.EPS.ProblemType.NHEP)
    solver.setType(module.EPS.Type.KRYLOVSCHUR)
    solver.setWhichEigenpairs(module.EPS.Which.LARGEST_REAL)
    solver.setDimensions(min(wanted, size), min(max(vectors, wanted + 2), size))
    solver.setFromOptions()
    return solver


def restarted(solver: Any, first: Any, tolerance: float, most: int, stop: Callable[[int, float], bool]) -> int:
    """Run a solver from a first vector, and return the number of restarts.

    Parameters
    ----------
    solver : SLEPc.EPS
    first : PETSc.Vec
    tolerance : float
        Of the residuals relative to the eigenvalues, in the 2-norm as SLEPc estimates it.
    most : int
        Largest number of restarts.
    stop : callable
        ``stop(restarts, error)`` is asked between restarts with the largest estimated error; true ends the run.
    """
    wanted = solver.getDimensions()[0]
    reasons = slepc().EPS.ConvergedReason
    error = 1.0

    def watch(solver: Any, restarts: int, converged: int, values: Any, errors: Any) -> None:
        nonlocal error
        error = float(max(errors[:wanted], default=1.0))

    def enough(solver: Any, restarts: int, most: int, converged: int, wanted: int) -> Any:
        if converged >= wanted:
            return reasons.CONVERGED_TOL
        if restarts > 1 and stop(restarts - 1, error):  # the monitor has seen what was before
            return reasons.CONVERGED_USER
        return reasons.DIVERGED_ITS if restarts >= most else reasons.CONVERGED_ITERATING

    solver.cancelMonitor()
    solver.setMonitor(watch)
    solver.setStoppingTest(enough)
    solver.setTolerances(tolerance, most)
    solver.setInitialSpace([first])
    solver.solve()
    return int(solver.getIterationNumber())


def leading_vector(solver: Any) -> np.ndarray:
    """Return the own part of the vector that the first eigenvalue has got so far, converged or not."""
    basis = solver.getBV()
    column = basis.getColumn(0)
    found = np.array(column.getArray(readonly=True))
    basis.restoreColumn(0, column)
    return found


def eigenpairs(objects: Objects, solver: Any, like: Any) -> list[tuple[complex, np.ndarray]]:
    """Return the eigenvalues that have converged, with the own parts of their vectors."""
    real, imaginary = objects.keep(like.duplicate()), objects.keep(like.duplicate())
    found = []
    for number in range(solver.getConverged()):
        value = solver.getEigenpair(number, real, imaginary)
        found.append((complex(value), real.getArray() + 1j * imaginary.getArray()))
    return found
