"""Implicit collocation for stiff chains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ctmc.errors import ModelError
from ctmc.evolution import Evolution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import AccumulatedReward, Transient
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._options import check_choice, check_count
from solvers.transient._collocation import Collocation, collocation
from solvers.transient._reports import Allowance, accumulate, report, stay
from solvers.transient._shifted import LINEAR_SOLVERS, ShiftedSystems, shifted_systems

STAGES = (3, 5, 7, 9, 11)
_LARGEST_CHANGE = 4
"""Binary orders of magnitude by which a step may grow or shrink at once."""
_REFINEMENTS = 3
_SHORTEST = 1e-6
"""Rate x step below which a step is taken whatever its bound."""


@dataclass(frozen=True, kw_only=True)
class Rational:
    """Collocate y' = y A at the Radau points of steps that adapt, as long as what is fast has died out: for stiff chains.

    On each step y is a polynomial u of degree s, the number of stages, that satisfies the equation at s Radau points (Radau
    IIA, order 2 s - 1, stable at any rate x step, and L-stable: what is fast vanishes).  Its residual is w prod_i (t - c_i)
    plus what the solves have left at the points, a polynomial that is known from s products; exp(A t) does not expand in
    the norm of the equation (up to known couplings of moments), so the integral of the residual's norm bounds the error.
    That bound, with the solves' own errors in it, is reported and steers the steps, which are powers of two of the time.
    Diagonalising the s stages leaves one real and (s - 1) / 2 complex systems (shift I - A) x = b, regular M-matrices but
    for the imaginary part of the shift.  Times inside steps, and the integral of y, are read from u.  Ends early once (time
    ahead) x ||y A|| is small: the chain is steady.

    The systems are factorised by SuperLU without pivoting, in the order with the least forecast of entries, and kept while
    the step is; (s + 1) / 2 solves and s products a step.  Where the factors are too large, GMRES with the diagonal solves
    each system, which pays only at moderate rate x step.  Take it where rate x time is above some 10^4 and nothing is
    steady soon: failures and repairs, chains with rates over many decades, nearly decomposable ones; a few hundred solves
    at any rate x time. Not for large lattices, whose factors fill up. Source: E. Hairer and G. Wanner, *Solving ordinary
    differential equations II*, Springer 1996, sections IV.5 and IV.8.

    Parameters
    ----------
    stages : int
        3, 5, 7, 9 or 11.
    linear_solver : str
        'lu', 'gmres', or 'auto': LU where one real factor has at most `largest_factor` entries and the memory is enough.
    largest_factor : int
        Of 'auto'.
    max_iterations : int
        Largest number of solves of one system.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Transient(chain, initial=(0,), times=[.5]), Rational()).value.round(12).tolist()
    [[0.741043386716, 0.258956613284]]
    """

    solves: ClassVar = (Transient, AccumulatedReward)
    needs: ClassVar = Generator
    stages: int = 9
    linear_solver: str = "auto"
    largest_factor: int = 4_000_000
    max_iterations: int = 1_000_000

    def __post_init__(self) -> None:
        check_count("stages", self.stages, 3)
        if self.stages not in STAGES:
            raise ModelError(f"stages is {self.stages}; allowed are {', '.join(map(str, STAGES))}.")
        check_choice("linear_solver", self.linear_solver, LINEAR_SOLVERS)
        check_count("largest_factor", self.largest_factor)
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Evolution, trace: Trace) -> Outcome:
        """Have the witness see each time."""
        method = collocation(self.stages)
        vectors = 6 * self.stages + 10
        require_memory("rational", 8 * problem.start.size * vectors, states=problem.model.size)
        status = self._steps(problem, trace, method)
        return Outcome(None, status, trace.history)

    def _steps(self, problem: Evolution, trace: Trace, method: Collocation) -> Status:
        times = problem.times
        last = float(times[-1])
        y, integral = problem.start.copy(), np.zeros_like(problem.start)
        change, lost = np.empty_like(y), np.zeros_like(y)
        position, begin, error = 0, 0.0, 0.0
        if self._tell(trace, problem, 1.0, 0):
            return trace.status
        while position < len(times) and times[position] <= 0:
            report(trace, problem, position, y.copy(), integral.copy(), 0.0)
            position += 1
        if position == len(times):
            return Status.CONVERGED
        allowance = Allowance(problem)
        pace = _Pace(method.order, max(0, math.ceil(math.log2(max(problem.rate * last, 1.0)))))
        systems: ShiftedSystems | None = None
        problem.change(y, out=change)
        while True:
            remaining = last - begin
            if problem.blocks == 1 or not change.any():
                speed = problem.norm(change)
                if remaining * speed <= allowance.of(remaining, remaining):
                    stay(trace, problem, position, begin, y, integral, error, speed)
                    return Status.CONVERGED
            if systems is None:
                systems = shifted_systems(problem, method.shifts, self.linear_solver, self.largest_factor)
            span = last * 2.0**-pace.halvings
            allowed = allowance.of(span, max(remaining, span))
            step = _step(problem, method, systems, y, change, span, allowed)
            made = step.error
            good = made <= allowed or span * problem.rate < _SHORTEST
            pace.judge(made / allowed, good)
            if self._tell(trace, problem, remaining / last, step.solves):
                return trace.status
            if not good:
                continue
            error += made
            while position < len(times) and times[position] <= begin + span:
                there, spent = step.at((float(times[position]) - begin) / span)
                spent += integral
                report(trace, problem, position, there, spent, error)
                position += 1
            if position == len(times):
                return Status.CONVERGED
            there, spent = step.at(1.0)
            y, change = there, step.changes[-1].copy()
            accumulate(integral, lost, spent)
            begin += span
            allowance.take(made, span)

    def _tell(self, trace: Trace, problem: Evolution, ahead: float, solves: int) -> bool:
        """Tell the trace which part of the time lies ahead; only a limit or the user ends the solve early."""
        above = max(2 * ahead, 2 * problem.tolerance)
        return trace.finished(above, limit=self.max_iterations, iterations=solves, stagnates=False)


class _Pace:
    """How often the whole time is halved to give the step.

    The bound of what is slow grows with a power of the step, that of what is fast, and of rounding, in proportion to it, like
    what is allowed.  So after some steps twice the step is tried whatever the power says, more rarely after each failure.
    """

    def __init__(self, order: int, halvings: int) -> None:
        self.order = order
        self.halvings = halvings
        self._tried, self._wait, self._since = False, 4, 0

    def judge(self, ratio: float, good: bool) -> None:
        """Set the next step from the bound of the last one over what it may be."""
        binary = math.floor(math.log2(0.7 * max(ratio, 1e-300) ** (-1 / self.order))) if math.isfinite(ratio) else -9
        self._since += 1
        if not good:
            if self._tried:
                self._wait = min(2 * self._wait, 256)
            self.halvings += min(max(1, -binary), 1 if self._tried else _LARGEST_CHANGE)
            self._tried, self._since = False, 0
            return
        self._tried = False
        if binary < 1 and self._since >= self._wait:
            binary, self._tried = 1, True
        if binary >= 1:
            self.halvings = max(0, self.halvings - min(binary, _LARGEST_CHANGE))
            self._since = 0


class _Step(NamedTuple):
    """The polynomial of a step: u(0), u - u(0) and u A at the points, and the bound of its error."""

    method: Collocation
    span: float
    y: np.ndarray
    moved: np.ndarray
    changes: np.ndarray
    error: float
    solves: int

    def at(self, place: float) -> tuple[np.ndarray, np.ndarray]:
        """Return u, and its integral, at a part of the step."""
        values, integrals = self.method.weights(place)
        there = self.y + np.tensordot(values, self.moved, 1)
        return there, self.span * (place * self.y + np.tensordot(integrals, self.moved, 1))


def _step(
    problem: Evolution,
    method: Collocation,
    systems: ShiftedSystems,
    y: np.ndarray,
    change: np.ndarray,
    span: float,
    allowed: float,
) -> _Step:
    """Solve for the stages, and refine them until what the solves leave is a small part of what is allowed."""
    stages = len(method.points)
    systems.prepare(span)
    wanted = allowed / (4 * span * stages)
    moved = _stages(problem, method, systems, np.broadcast_to(change, (stages, *y.shape)), wanted)
    changes = np.empty_like(moved)
    solves = len(method.shifts) * problem.blocks
    before = math.inf
    for refinement in range(_REFINEMENTS + 1):
        for point in range(stages):
            problem.change(y + moved[point], out=changes[point])
        left = np.tensordot(method.derivative, moved, 1) / span - changes
        at_points = sum(float(method.basis_integrals[k]) * problem.norm(left[k]) for k in range(stages))
        if 4 * span * at_points <= allowed or refinement == _REFINEMENTS:
            break
        if at_points >= before / 2:
            break  # it is rounding that is left
        before = at_points
        moved = moved + _stages(problem, method, systems, -left, wanted)
        solves += len(method.shifts) * problem.blocks
    leading = method.leading[0] * change + np.tensordot(method.leading[1:], changes, 1)
    error = span * (at_points + method.product_integral * problem.norm(leading))
    return _Step(method, span, y, moved, changes, error, solves)


def _stages(
    problem: Evolution, method: Collocation, systems: ShiftedSystems, right: np.ndarray, wanted: float
) -> np.ndarray:
    """Return z with (derivative / span) z - z A = right at each point; shapes (stages, blocks, n)."""
    found = np.empty(right.shape)
    for block in range(problem.blocks):
        here = right[:, block]
        for coupling in problem.couplings:
            if coupling.into == block:
                of = found[:, coupling.of]
                if coupling.rate is not None:
                    here = here + coupling.rate * of
                if coupling.matrix is not None:
                    here = here + (coupling.matrix @ of.T).T
        apart = method.into @ here
        for k in range(len(method.shifts)):
            apart[k] = systems.solve(k, apart[k], wanted)
        found[:, block] = method.back.real @ apart.real - method.back.imag @ apart.imag
    return found
