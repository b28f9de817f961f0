"""Krylov methods of PETSc for passage times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ctmc.problem import FirstPassage
from solvers.reward._petsc_system import PetscEquation


@dataclass(frozen=True, kw_only=True)
class PetscPassage(PetscEquation):
    """Solve -Q_SS x = b by corrections with a Krylov method of PETSc, preconditioned by ILU(0) of a block on each rank.

    States outside S stay, as equations x_i = 0.  Rows are divided by the right side, so that the residual is that of the certificate,
    |b + Q_SS x| / b state by state, and columns by the diagonal.  After each correction x is kept at or above its first term b / q,
    so it is positive throughout.  Equations of a row x (-Q_SS) = b take the same matrix without transposing it.

    Stops when max |b + Q_SS x| / b <= tolerance, recomputed with the model after each correction, or at what rounding hides;
    PETSc's reason codes are not believed.  One product an iteration (bcgs: two).  Memory: 64 bytes an entry, `restart` vectors.  Under
    ``mpirun`` each rank has its own states.  Take it where a model outgrows one machine; where a target is almost never reached, or
    the way there is long and diffusive, it takes many restarts, and up to some thousand states `absorption_elimination` is better.
    Needs the extra 'distributed'.  Source: S. Balay et al., *PETSc/TAO users manual*, ANL-21/39, Argonne National Laboratory,
    doi:10.2172/2205494.

    Parameters
    ----------
    method : str
        A KSP type of PETSc, such as 'gmres', 'fgmres', 'bcgs', 'tfqmr'.
    preconditioner : str
        A PC type of PETSc, such as 'asm', 'bjacobi', 'jacobi', 'none'.
    restart : int
        Vectors of the GMRES family.
    options : str
        PETSc options, such as '-pc_asm_overlap 2 -sub_pc_factor_levels 1'.
    max_iterations : int
        Largest number of steps for one equation.

    Examples
    --------
    >>> from ctmc.model.generator import Generator
    >>> from ctmc.solve import solve
    >>> queue = Generator.from_matrix([[0, 1.0, 0, 0], [2.0, 0, 1.0, 0], [0, 2.0, 0, 1.0], [0, 0, 2.0, 0]])
    >>> round(solve(FirstPassage(queue, "state == 3", initial=(0,)), PetscPassage()).mean, 9)
    11.0
    """

    solves: ClassVar = (FirstPassage,)
