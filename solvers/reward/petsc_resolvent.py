"""Krylov methods of PETSc for discounted rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ctmc.problem import DiscountedReward
from solvers.reward._petsc_system import PetscEquation


@dataclass(frozen=True, kw_only=True)
class PetscResolvent(PetscEquation):
    """Solve (gamma I - Q) x = b by corrections with a Krylov method of PETSc, preconditioned by ILU(0) of a block on each rank.

    The matrix, the transpose of what a model stores, is put together on all ranks, and its columns are divided by the diagonal.  A
    constant is in closed form, (gamma I - Q) 1 = gamma 1, so the middle of the range of the residual is taken off before each
    correction.

    Stops when max |b - (gamma I - Q) x| <= tolerance max |b|, recomputed with the model after each correction; PETSc's reason codes
    are not believed.  One product an iteration (bcgs: two).  Memory: 64 bytes an entry, `restart` vectors.  Under ``mpirun`` each
    rank has its own states.  Take it where a model outgrows one machine; on one process `resolvent_krylov` needs no copy of the
    rates beside the one that it sorts.  Fails, with STAGNATED, on chains of nearly separate parts whose exchange is slower than the
    discount can hide.  Needs the extra 'distributed'.  Source: S. Balay et al., *PETSc/TAO users manual*, ANL-21/39, Argonne
    National Laboratory, doi:10.2172/2205494.

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
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(DiscountedReward(chain, "state", discount=0.5), PetscResolvent()).value.round(9).tolist()
    [[0.571428571, 0.857142857]]
    """

    solves: ClassVar = (DiscountedReward,)
