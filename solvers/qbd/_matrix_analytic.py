"""What all solvers of QBDs share: dense blocks, R from G, the decay rate beforehand, and the boundary afterwards."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

import ctmc
from ctmc import registry
from ctmc.defaults import SMALL
from ctmc.errors import ModelError, ReducibleError, UnknownNameError, UnsupportedProblemError
from ctmc.model.decay import decay_rate
from ctmc.model.generator import Generator
from ctmc.model.m_matrix import inverse
from ctmc.model.matrix_geometric import MatrixGeometric, matrix_residuals
from ctmc.model.memory import require_memory
from ctmc.model.qbd import QBD
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.solver import Solver
from ctmc.trace import Trace

_log = logging.getLogger("ctmc.solvers.qbd")
_DENSE = 1 / 8
_CHEAP = 100
"""Up to here the decay rate is found before solving, if somebody reads it."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The repeating blocks as matrix products need them.

    Attributes
    ----------
    up, down : ndarray or csr_array, shape (m, m)
        Sparse where less than an eighth of the entries are there.
    stay : ndarray, shape (m, m)
        Off-diagonal entries of local.
    leave_up, leave_down : ndarray, shape (m,)
        Row sums of up and down.
    """

    up: Any
    down: Any
    stay: np.ndarray
    leave_up: np.ndarray
    leave_down: np.ndarray

    @classmethod
    def of(cls, queue: QBD) -> Blocks:
        """Return the blocks of a QBD."""
        return cls(
            _as_it_is_faster(queue.up),
            _as_it_is_faster(queue.down),
            off_diagonal(queue.local.toarray()),
            queue.up.sum(axis=1),
            queue.down.sum(axis=1),
        )

    def visits(self, g: np.ndarray, beyond: np.ndarray | None = None) -> np.ndarray:
        """Return (-U)^-1 for U = local + up G, the mean times in the phases of a level before one below is entered.

        The row sums of -U are (down + up (I - G)) 1; so what is missing in the row sums of G is asked for.

        Parameters
        ----------
        g : ndarray, shape (m, m)
        beyond : ndarray, shape (m,), optional
            (I - G) 1 without cancellation; zero by default.
        """
        leave = self.leave_down if beyond is None else self.leave_down + self.up @ beyond
        return inverse(self.stay + self.up @ g, leave)


def dense(block: Any) -> np.ndarray:
    """Return a block as an ndarray."""
    return block.toarray() if isinstance(block, csr_array) else block


def off_diagonal(matrix: np.ndarray) -> np.ndarray:
    """Return the matrix with its diagonal set to zero in place."""
    np.fill_diagonal(matrix, 0.0)
    return matrix


def improved(blocks: Blocks, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return G and R after one step of the U-based iteration from G, negative entries cleared and rows scaled to 1."""
    g = np.maximum(g, 0.0)
    g /= g.sum(axis=1, keepdims=True)
    visits = blocks.visits(g)
    return np.asarray(visits @ dense(blocks.down)), np.asarray(blocks.up @ visits)


def _as_it_is_faster(block: csr_array) -> Any:
    return block.toarray() if block.nnz > _DENSE * block.shape[0] ** 2 else block


def boundary_method(given: Any, size: int = 1) -> Solver:
    """Return the solver for a boundary of so many states: the given one, or `gth` up to 3000 states and `gauss_seidel` above.

    Raises
    ------
    UnsupportedProblemError
        If it takes no stationary problem on a finite chain.
    """
    try:
        method = registry.make_solver(("gth" if size <= SMALL else "gauss_seidel") if given is None else given)
    except (ModelError, UnknownNameError) as error:
        raise type(error)(f"boundary_solver: {error}") from None
    if Stationary not in method.solves or not issubclass(Generator, method.needs):
        raise UnsupportedProblemError(
            f"boundary_solver is {registry.solver_name(method)}, which does not take a Stationary problem on a "
            "Generator; allowed are solvers that do, such as gth, sparse_lu or gmres."
        )
    return method


def begin(name: str, queue: QBD, matrices: int) -> Blocks:
    """Ask for the memory of this many dense m x m matrices, tell drift and decay rate, and return the blocks."""
    m = queue.phase_count
    require_memory(f"{name}, which works on dense matrices of all phases,", matrices * 8 * m * m, states=m)
    if _log.isEnabledFor(logging.INFO):
        known = f"{decay_rate(queue):.12g}" if m <= _CHEAP else "not looked for"
        _log.info("%s: %d phases, mean drift %.6g, decay rate %s", name, m, queue.drift, known)
    return Blocks.of(queue)


def conclude(
    solver: Any, problem: Stationary, trace: Trace, g: np.ndarray, r: np.ndarray, status: Status | None = None
) -> Outcome:
    """Solve the boundary, scale the whole to mass 1, and tell the residuals of G, R and U.

    The chain watched while it is on the boundary levels is finite, with up G added to its last local block; its
    distribution is the boundary part of the QBD's up to a factor.

    Parameters
    ----------
    solver : solver with a `boundary_solver`
    problem : Stationary
    trace : Trace
    g, r : ndarray, shape (m, m)
    status : Status, optional
        How the search for G ended; by default what the trace says.
    """
    queue = problem.model
    assert isinstance(queue, QBD)
    status = trace.status if status is None else status
    if not (np.isfinite(g).all() and np.isfinite(r).all()):
        nothing = tuple(np.full(len(table), np.nan) for table in queue.phases)
        failed = Status.NOT_FINITE if status is Status.CONVERGED else status
        return Outcome(MatrixGeometric(nothing, r, g), failed, trace.history)
    chain = queue.censored_boundary(g)
    question = Stationary(chain, tolerance=problem.tolerance / 2)  # the other half is for the levels above
    method = boundary_method(solver.boundary_solver, chain.size)
    try:
        boundary = ctmc.solve(question, method, time_limit=trace.remaining, check=False)
    except ReducibleError as error:
        raise ReducibleError(
            f"the QBD has several recurrent classes and so no single stationary distribution: watched on its "
            f"boundary, {error}"
        ) from None
    if status is Status.CONVERGED and not boundary.converged:
        status = boundary.status
        _log.info("the boundary was not solved by %s: %s, %s", boundary.solver, status.name, boundary.reason)
    ends = np.cumsum([len(table) for table in queue.phases])[:-1]
    u = queue.local.toarray() + np.asarray(queue.up @ g)
    whole = MatrixGeometric(tuple(np.split(boundary.value, ends)), r, g, u)
    scaled = MatrixGeometric(tuple(vector / whole.mass for vector in whole.boundary), r, g, u)
    if _log.isEnabledFor(logging.INFO):
        found = ", ".join(f"{name} {value:.2g}" for name, value in matrix_residuals(queue, scaled).items())
        _log.info("residuals relative to the largest exit rate: %s", found)
    named = registry.solver_name(method) if solver.boundary_solver is None else solver.boundary_solver
    return Outcome(scaled, status, trace.history, solver=repr(dataclasses.replace(solver, boundary_solver=named)))
