"""Krylov methods of PETSc, on one process or on many ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.shared import SharedGenerator
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._options import check_choice
from solvers._petsc import LIBRARY, Objects, check_krylov, check_type, krylov_solver, options, part_of, petsc, vector
from solvers._petsc_corrections import correction
from solvers._petsc_equations import POLISH, Equations, equations
from solvers._shared_levels import LevelCorrection, own_levels
from solvers._start import first_guess

FORMS = ("auto", "reduced", "shell", "full")
COARSE = ("levels", "between", "none")
_PREFIX = "ctmc_krylov_"


@dataclass(frozen=True, kw_only=True)
class PetscKrylov:
    """Correct x with A x = 0 by a Krylov method of PETSc: solve A d = -A x, and again until the true defect is small.

    A is -Q^T, or where every transition changes the color of the state what is left of it on one color: half the unknowns, the
    square of the spectrum.  The equation is singular, as it is: residuals sum to zero, which PETSc is told by the null space of
    the transpose.  The preconditioner has two levels: overlapping blocks, one on each rank, factorised by ILU(0), and before them
    a correction on levels (a variable named level, or the total of the coordinates), which costs no product.

    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance, recomputed after each solve; PETSc's reason codes are not believed.  One
    product an iteration (bcgs: two).  Memory: 16 bytes an entry of A, of its factors and of what A is made from, `restart` vectors;
    form='shell' with method='bcgs' takes some 12 vectors and nothing else.  Under ``mpirun`` each
    rank has its own states.  Take it where a model outgrows one machine, or where bicgstab takes hundreds of products.  Needs the
    extra 'distributed'.  Source: S. Balay et al., *PETSc/TAO users manual*, ANL-21/39, Argonne National Laboratory.

    Parameters
    ----------
    method : str
        A KSP type of PETSc, such as 'gmres', 'fgmres', 'bcgs', 'tfqmr'.
    preconditioner : str
        A PC type of PETSc for the blocks, such as 'asm', 'bjacobi', 'jacobi', 'none'.
    coarse : str
        'levels': the preconditioner corrects the masses of levels, and they are balanced before and after a run of the Krylov
        method; then the slowest mode is right to many more digits than the defect asks for.  'between': balanced before and after
        only, which takes fewer steps.  'none'.
    form : str
        'reduced' (one color, put together), 'shell' (the same as products with the model's rows, nothing put together: the least
        memory; with preconditioner='none'), 'full' (all states), or 'auto': reduced where there are two colors.
    restart : int
        Vectors of the GMRES family.
    options : str
        PETSc options, such as '-pc_asm_overlap 2 -sub_pc_factor_levels 1'.
    max_iterations : int
        Largest number of steps.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), PetscKrylov()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    library: ClassVar = LIBRARY
    shared: ClassVar = True
    keeps_zeros: ClassVar = True
    method: str = "gmres"
    preconditioner: str = "asm"
    coarse: str = "levels"
    form: str = "auto"
    restart: int = 60
    options: str = ""
    max_iterations: int = 20_000

    def __post_init__(self) -> None:
        check_choice("coarse", self.coarse, COARSE)
        check_choice("form", self.form, FORMS)
        check_krylov(self)

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model, at the peak: while the matrix is put together, or later."""
        vectors = 10 + (self.restart if "gmres" in self.method else 0)
        blocks = 1.3 if self.preconditioner == "asm" else 0.0
        if self.form == "shell":
            return (50 + (40 if self.coarse != "none" else 0) + 4 * vectors) * states
        if self.form == "full":
            return int((3.7 + blocks) * 16 * (entries + states)) + 8 * vectors * states
        # ways of two steps from a state of one color, and back to it
        reduced = (entries * (entries / max(states, 1)) / 2 + states) / 2
        return int((3.5 + blocks) * 16 * reduced) + 32 * entries + 4 * vectors * states

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        check_type("method", self.method, petsc().KSP.Type)
        check_type("preconditioner", self.preconditioner, petsc().PC.Type)
        chain = part_of(problem.model)
        require_memory("petsc_krylov", self.memory(chain.size, chain.entries), states=chain.size)
        with Objects() as objects, options(self.options, _PREFIX) as given:
            system = equations(chain, self.form, objects)
            if system.stored is None and self.preconditioner != "none":
                raise ModelError(
                    f"preconditioner is {self.preconditioner!r}, but form='shell' has no entries; allowed is 'none'."
                )
            # with factors of the matrix the model's guess takes more steps than none
            factored = self.preconditioner != "none"
            first = np.full(chain.size, 1 / chain.states) if factored else first_guess(chain)
            x = trace.resumed(system.restrict(trace.start(first)))
            levels = None if self.coarse == "none" else _levels(chain, system)
            correction = None
            if levels is not None:
                correction = LevelCorrection(chain.ranks, levels, system.multiply, x)
                x = correction.x
                correction = correction if self.coarse == "levels" else None  # else its vectors are let go
            solver = self._solver(objects, system, correction)
            steps: int | None = 0
            while steps is not None:
                residual = -system.multiply(x)
                defect = system.defect(residual, x)
                if trace.finished(defect, iterate=x, limit=self.max_iterations, iterations=steps):
                    break
                x, steps = self._correct(solver, system, x, residual, defect, trace)
                given.applied = True
            if levels is not None and trace.status is Status.CONVERGED:
                x = _balanced(chain, system, levels, x, problem.tolerance)
            polish = POLISH if trace.status is Status.CONVERGED else 0
            return Outcome(system.expand(x, polish), trace.status, trace.history)

    def _correct(
        self, solver: Any, system: Equations, x: np.ndarray, residual: np.ndarray, defect: float, trace: Trace
    ) -> tuple[np.ndarray, int | None]:
        """Return x corrected by one run of PETSc's solver, and the steps that the trace has not seen, None where it said stop."""
        change, steps = correction(
            solver, system.vectors, residual, defect, trace, self.max_iterations, lambda change: x + change
        )
        if change is None:
            return x, steps
        x = x + change
        # a solution may have any factor: a direct preconditioner finds a large one, of either sign
        return x / (system.chain.ranks.total(float(x.sum())) or 1.0), steps

    def _solver(self, objects: Objects, system: Equations, correction: LevelCorrection | None) -> Any:
        module, comm = petsc(), system.matrix.getComm()
        stored = system.stored or system.matrix
        ones = objects.keep(module.NullSpace().create(constant=True, comm=comm))
        system.matrix.setTransposeNullSpace(ones)
        solver = krylov_solver(objects, _PREFIX, self.method, self.restart, (system.matrix, stored))
        blocks = objects.keep(module.PC().create(comm)) if correction is not None else solver.getPC()
        blocks.setOptionsPrefix(_PREFIX)
        blocks.setOperators(system.matrix, stored)
        database = module.Options(_PREFIX)
        if not database.hasName("sub_pc_factor_shift_type"):
            database.setValue("sub_pc_factor_shift_type", "nonzero")
        blocks.setType(self.preconditioner)
        blocks.setFromOptions()
        if correction is not None:
            pc = solver.getPC()
            pc.setOptionsPrefix(f"{_PREFIX}levels_")  # so that -pc_type speaks of the blocks
            pc.setType("python")
            rest = vector(objects, system.chain.ranks, np.zeros(len(correction.x)))
            pc.setPythonContext(_TwoLevels(correction, blocks, rest))
        solver.setFromOptions()
        return solver


def _levels(chain: SharedGenerator, system: Equations) -> np.ndarray | None:
    levels = own_levels(chain)
    return None if levels is None else system.levels(levels)


def _balanced(
    chain: SharedGenerator, system: Equations, levels: np.ndarray, x: np.ndarray, tolerance: float
) -> np.ndarray:
    """Return x with its levels balanced, which the smallest residuals leave open, unless its defect suffers."""
    other = LevelCorrection(chain.ranks, levels, system.multiply, x).x
    return other if system.defect(-system.multiply(other), other) <= tolerance else x


class _TwoLevels:
    """The preconditioner that PETSc calls: the correction on levels, then the blocks on what it leaves."""

    def __init__(self, correction: LevelCorrection, blocks: Any, rest: Any) -> None:
        self._correction, self._blocks, self._rest = correction, blocks, rest

    def setUp(self, preconditioner: Any) -> None:  # PETSc's name
        self._blocks.setUp()

    def apply(self, preconditioner: Any, residual: Any, out: Any) -> None:
        coarse, left = self._correction.correct(residual.getArray(readonly=True))
        self._rest.setArray(left)
        self._blocks.apply(self._rest, out)
        out.setArray(out.getArray() + coarse)
