"""An equation with the generator as a PETSc matrix, scaled on both sides, and its solution by corrections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ctmc.equation import Equation
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.shared import SharedGenerator
from ctmc.solution import Outcome
from ctmc.trace import Trace
from solvers._petsc import (
    LIBRARY,
    Objects,
    check_krylov,
    check_type,
    function_matrix,
    generator_rows,
    krylov_solver,
    matrix,
    neighbours,
    options,
    part_of,
    petsc,
    vector,
)
from solvers._petsc_corrections import correction

_PREFIX = "ctmc_equation_"


@dataclass(frozen=True, kw_only=True)
class PetscEquation:
    """What the PETSc solvers of an `Equation` share; their fields are those of `solvers.stationary.petsc_krylov`."""

    needs: ClassVar = Generator
    library: ClassVar = LIBRARY
    shared: ClassVar = True
    method: str = "gmres"
    preconditioner: str = "asm"
    restart: int = 60
    options: str = ""
    max_iterations: int = 20_000

    def __post_init__(self) -> None:
        check_krylov(self)

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 8 * (self.restart + 8) * states + 64 * entries

    def run(self, problem: Equation, trace: Trace) -> Outcome:
        """Return x, 0 outside."""
        check_type("method", self.method, petsc().KSP.Type)
        check_type("preconditioner", self.preconditioner, petsc().PC.Type)
        chain = part_of(problem.model)
        require_memory("PETSc's Krylov method", self.memory(chain.size, chain.entries), states=chain.size)
        with Objects() as objects, options(self.options, _PREFIX) as given:
            system = _System(problem, chain, objects)
            solver = self._solver(objects, system)
            x = trace.resumed(system.first())
            steps: int | None = 0
            while steps is not None:
                x, residual, defect = system.looked_at(x)
                if trace.finished(defect, iterate=x, limit=self.max_iterations, iterations=steps):
                    break
                before, given.applied = x, True
                change, steps = correction(
                    solver, system.vectors, system.left * residual, defect, trace, self.max_iterations,
                    lambda change, before=before: system.corrected(before, change),
                )  # fmt: skip
                if change is not None:
                    x = system.corrected(x, change)
            return Outcome(x, trace.status, trace.history)

    def _solver(self, objects: Objects, system: _System) -> Any:
        stored = system.matrix if self.preconditioner == "none" else system.stored
        solver = krylov_solver(objects, _PREFIX, self.method, self.restart, (system.matrix, stored))
        solver.getPC().setType(self.preconditioner)
        solver.setFromOptions()
        return solver


class _System:
    """(L A R) y = L b with A = shift I - Q on the inside and the identity outside, x = R y.

    With a shift R = D^-1, the inverse of the diagonal, and L = I; a constant is in closed form there.  With shift 0, L is the inverse
    of the scale of the residuals, so that the largest residual is the defect, and R = D^-1 L^-1.

    Attributes
    ----------
    matrix : PETSc.Mat
        L A R, which counts its products.
    stored : PETSc.Mat
        The same with entries.
    vectors : tuple of PETSc.Vec
    left, right : ndarray, shape (n,)
        The diagonals of L and R.
    """

    def __init__(self, problem: Equation, chain: SharedGenerator, objects: Objects) -> None:
        self._problem, self._ranks = problem, chain.ranks
        inside = np.ones(chain.size, dtype=bool) if problem.inside is None else problem.inside
        self._least = None
        diagonal = np.where(inside, problem.shift + chain.exit_rates, 1.0)
        scale = np.ones(chain.size)
        if problem.shift == 0:
            scale[inside] = (problem.right if problem.scale is None else problem.scale)[inside]
            self._least = np.where(inside, problem.right, 0.0) / diagonal
        self.left, self.right = 1 / scale, scale / diagonal
        size = chain.ranks.largest(float(np.abs(problem.right).max(initial=0.0)))
        self._size = size or 1.0
        self.vectors = tuple(vector(objects, chain.ranks, np.zeros(chain.size)) for _ in range(2))
        self.stored = self._assembled(chain, inside, objects)
        self.matrix = function_matrix(objects, self.vectors[0], self.stored.mult, chain)

    def _assembled(self, chain: SharedGenerator, inside: np.ndarray, objects: Objects) -> Any:
        rows = generator_rows(chain)
        own = np.repeat(np.arange(chain.size), np.diff(rows.indptr))
        on_diagonal = rows.indices == own + chain.begin
        rows.data[on_diagonal] += self._problem.shift
        if self._problem.inside is not None:
            among = neighbours(chain, inside.astype(np.float64), rows.indices) > 0
            rows.data = np.where(inside[own] & among, rows.data, on_diagonal.astype(np.float64))
            rows.eliminate_zeros()
        made = matrix(objects, chain.ranks, rows, chain.size)
        if not self._problem.forward:
            made = objects.keep(made.transpose(petsc().Mat()))
        for given, values in zip(self.vectors, (self.left, self.right), strict=True):
            given.setArray(values)
        made.diagonalScale(*self.vectors)
        return made

    def first(self) -> np.ndarray:
        """Return what to begin with."""
        if self._least is not None:
            return self._least.copy()
        return np.full(len(self.left), self._middle(self._problem.right)[0] / self._problem.shift)

    def _middle(self, values: np.ndarray) -> tuple[float, float]:
        """Return the middle of the range of values on all ranks, and half its width."""
        low, high = self._ranks.largest(np.array([-values.min(initial=np.inf), values.max(initial=-np.inf)])) * [-1, 1]
        return low / 2 + high / 2, high / 2 - low / 2

    def looked_at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Return x less what is in closed form, its residual and its defect."""
        problem = self._problem
        residual = problem.residual(x)
        if self._least is None:
            middle, half = self._middle(residual)
            return x + middle / problem.shift, residual - middle, half / self._size
        defect = problem.defect(residual)
        if problem.tolerance < defect <= problem.floor(x):
            defect = problem.tolerance  # what is left is rounding
        return x, residual, defect

    def corrected(self, x: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Return x + R change; with shift 0 not below its first term, so that it is positive throughout."""
        found = x + self.right * change
        return found if self._least is None else np.maximum(found, self._least)
