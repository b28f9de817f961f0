"""The exponential of the generator by SLEPc's matrix functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ctmc.evolution import Evolution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import AccumulatedReward, Transient
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._options import check_between, check_choice, check_count, check_text
from solvers._petsc import SLEPC, Objects, options, parsed_options, petsc, slepc, vector
from solvers.transient._reports import Allowance, accumulate
from solvers.transient._series import without_negatives

METHODS = ("krylov", "expokit")
_PREFIX = "ctmc_exponential_"
_LEAST = 1e-15
"""Smallest tolerance that SLEPc gets."""
_HALVINGS = 40


@dataclass(frozen=True, kw_only=True)
class SlepcExponential:
    """Step y' = y A in time by exp(h B) on Krylov spaces of SLEPc (MFN), B also integrating y.

    With z = (y, w), w' = y / h, one exponential of B = [[A, 0], [I / h, 0]] gives y after a step h and its integral, h w.  SLEPc
    estimates its error in the 2-norm, which proves nothing: a step is accepted when its own defect, ||y(h) - y(0) - (integral) A||, is
    within half of the accepted error, in proportion to the time; else the tolerance that SLEPc gets is lowered, then the step
    halved.  Ends early once (time ahead) x ||y A|| is small: the chain is steady.

    It gives no error bound, since none is proven; the defect is the certificate's.  Some three times sqrt(step) products a step
    with 'krylov', and two for its defect; 2 x vectors + 12 vectors of length n.  Take it to compare; else
    `chebyshev`, which runs on ranks as well, proves its error and keeps no basis.  Not for stiff chains on long horizons: it takes
    rate x time / step steps.  Needs the extra 'distributed'.  Source: V. Hernandez, J. E. Roman, V. Vidal, *SLEPc:
    a scalable and flexible toolkit for the solution of eigenvalue problems*, ACM TOMS 31 (2005), doi:10.1145/1089014.1089019; R. B.
    Sidje, *Expokit: a software package for computing matrix exponentials*, ACM TOMS 24 (1998), doi:10.1145/285861.285868.

    Parameters
    ----------
    method : str
        'krylov' (restarted) or 'expokit' (with sub-steps of its own).
    vectors : int
        Basis vectors between restarts.
    step : float
        Largest rate x time of a step.
    options : str
        PETSc options, such as '-mfn_ncv 60'.
    max_iterations : int
        Largest number of steps in time.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Transient(chain, initial=(0,), times=[.5]), SlepcExponential()).value.round(10).tolist()
    [[0.7410433867, 0.2589566133]]
    """

    solves: ClassVar = (Transient, AccumulatedReward)
    needs: ClassVar = Generator
    library: ClassVar = SLEPC
    same_bits: ClassVar = False
    shared: ClassVar = True
    method: str = "krylov"
    vectors: int = 20
    step: float = 200.0
    options: str = ""
    max_iterations: int = 1_000_000

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_count("vectors", self.vectors, 4)
        check_between("step", self.step, 0, 1e6)
        check_count("max_iterations", self.max_iterations)
        check_text("options", self.options)
        parsed_options(self.options)

    def run(self, problem: Evolution, trace: Trace) -> Outcome:
        """Have the witness see each time."""
        size = problem.start.size
        require_memory("slepc_exponential", 8 * size * (2 * self.vectors + 12), states=problem.model.size)
        with Objects() as objects, options(self.options, _PREFIX) as given:
            status = _Steps(self, problem, objects).run(trace)
            given.applied = True
        return Outcome(None, status, trace.history)


class _Steps:
    """The steps of one evolution; PETSc calls `mult` for B z."""

    def __init__(self, solver: SlepcExponential, problem: Evolution, objects: Objects) -> None:
        self._problem = problem
        ranks, size = problem.model.ranks, problem.start.size
        self._halves = (2, *problem.start.shape)
        self._span = 1.0
        self._z, self._after = (vector(objects, ranks, np.zeros(2 * size)) for _ in range(2))
        comm = self._z.getComm()
        shell = objects.keep(petsc().Mat().createPython((self._z.getSizes(),) * 2, self, comm))
        shell.setUp()
        function = objects.keep(slepc().FN().create(comm))
        function.setType(slepc().FN.Type.EXP)
        self._exponential = objects.keep(slepc().MFN().create(comm))
        self._exponential.setOptionsPrefix(_PREFIX)
        self._exponential.setOperator(shell)
        self._exponential.setFN(function)
        self._exponential.setType(solver.method)
        self._exponential.setDimensions(min(solver.vectors, self._z.getSize()))
        self._exponential.setFromOptions()
        self._longest = solver.step / problem.model.uniformization_rate
        self._limit = solver.max_iterations

    def mult(self, matrix: Any, z: Any, out: Any) -> None:
        """Set out = B z."""
        y, _ = z.getArray(readonly=True).reshape(self._halves)
        change = self._problem.change(y)
        change *= self._span
        out.setArray(np.concatenate([change.ravel(), y.ravel()]))

    def norm(self, matrix: Any, kind: Any) -> float:
        """Return a bound on the norm of B, from which expokit takes its sub-steps."""
        return self._span * (2 * self._problem.model.uniformization_rate + self._problem.growth) + 1.0

    def run(self, trace: Trace) -> Status:
        """Have the witness see each time."""
        problem, times = self._problem, self._problem.times
        last = float(times[-1])
        y, integral = problem.start.copy(), np.zeros_like(problem.start)
        lost = np.zeros_like(integral)
        begin, position = 0.0, 0
        allowance = Allowance(problem)
        tolerance = max(problem.tolerance / 100, _LEAST)
        if trace.finished(2.0, limit=self._limit, stagnates=False):
            return trace.status
        while True:
            while position < len(times) and times[position] <= begin:
                self._report(trace, position, y, integral)
                position += 1
            if position == len(times):
                return Status.CONVERGED
            remaining = last - begin
            if problem.blocks == 1 and remaining * problem.norm(problem.change(y)) <= allowance.of(
                remaining, remaining
            ):
                for place in range(position, len(times)):
                    self._report(trace, place, y, integral + (float(times[place]) - begin) * y)
                return Status.CONVERGED
            ahead = float(times[position]) - begin
            span = ahead if ahead <= self._longest else min(self._longest, ahead / 2)
            for halving in range(_HALVINGS):
                after, spent, defect = self._step(y, span, tolerance)
                allowed = allowance.of(span, remaining)
                if defect <= allowed:
                    break
                if tolerance > _LEAST:
                    tolerance = max(tolerance * min(allowed / defect, 0.1) if np.isfinite(defect) else 0.0, _LEAST)
                elif halving:  # once more at the least tolerance, before steps become shorter
                    span /= 2
            allowance.take(defect, span)
            y[:] = after
            accumulate(integral, lost, spent)
            begin = float(times[position]) if span == ahead else begin + span
            above = max(2 * (last - begin) / last, 2 * problem.tolerance)
            if trace.finished(above, limit=self._limit, stagnates=False) and begin < last:
                return trace.status

    def _step(self, y: np.ndarray, span: float, tolerance: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Return y after a step, its integral over the step, and the defect of both."""
        self._span = span
        if not self._problem.norm(y) > 0:  # SLEPc takes no vector of zeros
            return np.zeros_like(y), np.zeros_like(y), 0.0
        self._z.setArray(np.concatenate([y.ravel(), np.zeros(y.size)]))
        self._exponential.setTolerances(tolerance)
        self._exponential.solve(self._z, self._after)
        after, spent = self._after.getArray().copy().reshape(self._halves)
        spent *= span
        if not self._problem.model.ranks.largest(float(np.abs(spent).max(initial=0.0))) < np.inf:
            return y, spent, np.inf
        residual = self._problem.change(spent)
        residual -= after
        residual += y
        return after, spent, self._problem.norm(residual)

    def _report(self, trace: Trace, position: int, y: np.ndarray, integral: np.ndarray) -> None:
        here, spent = y.copy(), integral.copy()
        without_negatives(here, self._problem)
        without_negatives(spent, self._problem)
        trace.reached(position, here, spent)
