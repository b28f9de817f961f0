"""Krylov-Schur iteration of SLEPc for the stationary vector, and for the eigenvalues that follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._options import check_choice, check_count, check_text
from solvers._petsc import SLEPC, Objects, function_matrix, options, parsed_options, part_of, vector
from solvers._petsc_equations import POLISH, Equations, Products, equations
from solvers._slepc import PREFIX, eigenpairs, eigensolver, leading_vector, restarted
from solvers._start import first_guess

FORMS = ("auto", "reduced", "full")
_LEAST = 1e-16
_PATIENCE = 4


@dataclass(frozen=True, kw_only=True)
class SlepcKrylovSchur:
    """Find the eigenvector of y = T y, T being the jump chain, or two jumps of it on one color, by SLEPc's Krylov-Schur method.

    With D the exit rates, y = D x and T = I + Q^T D^-1, which has the eigenvalue 1 and none of larger real part; where every
    transition changes the color of the state, T is what is left of it on one color: half the unknowns, the square of the spectrum.  The
    basis begins with the first guess and is restarted with the best half of itself.

    Stops when ||pi Q||_1 / sum_i pi_i q_i <= tolerance, recomputed after each run of SLEPc, whose own estimates, in the 2-norm, are
    only news; where they were too small it is run again from where it stands.  A restart takes about half as many products as
    there are vectors, and 4 x vectors readings of the basis for each.  Memory: vectors + 6 vectors of half a length (or a whole one),
    16 bytes an entry.  Under ``mpirun`` each rank has its own states.  Take it where there is no good preconditioner, and for what it
    gives beside: `ctmc.spectral_gap` on ranks.  No preconditioner helps it: with slow mixing (loads near 1, large truncations) it takes many more
    products than `petsc_krylov`, and nearly separate parts look alike to it.  Needs the extra 'distributed'.  Source: G. W. Stewart, *A
    Krylov-Schur algorithm for large eigenproblems*, SIAM J. Matrix Anal. Appl. 23 (2002), doi:10.1137/S0895479800371529; V.
    Hernandez, J. E. Roman, V. Vidal, ACM TOMS 31 (2005), doi:10.1145/1089014.1089019.

    Parameters
    ----------
    vectors : int
        Largest number of basis vectors.
    form : str
        'reduced' (one color), 'full' (all states), or 'auto': reduced where there are two colors.
    options : str
        PETSc options, such as '-eps_krylovschur_restart 0.3'.
    max_iterations : int
        Largest number of restarts.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Stationary(chain), SlepcKrylovSchur()).value.round(12).tolist()
    [0.666666666667, 0.333333333333]
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    library: ClassVar = SLEPC
    same_bits: ClassVar = False
    shared: ClassVar = True
    vectors: int = 40
    form: str = "auto"
    options: str = ""
    max_iterations: int = 5000

    def __post_init__(self) -> None:
        check_count("vectors", self.vectors, 4)
        check_choice("form", self.form, FORMS)
        check_count("max_iterations", self.max_iterations)
        check_text("options", self.options)
        parsed_options(self.options)

    def memory(self, states: int, entries: int) -> int:
        """Return the bytes that the method takes beside the model."""
        return 8 * (self.vectors + 8) * states + 48 * entries

    def run(self, problem: Stationary, trace: Trace) -> Outcome:
        """Return the stationary distribution."""
        chain = part_of(problem.model)
        require_memory("slepc_krylov_schur", self.memory(chain.size, chain.entries), states=chain.size)
        with Objects() as objects, options(self.options, PREFIX) as given:
            system = equations(chain, "full" if self.form == "full" else "shell", objects)
            x = trace.resumed(system.restrict(trace.start(first_guess(chain))))
            x = self._iterate(system, objects, x, trace)
            given.applied = True
            polish = POLISH if trace.status is Status.CONVERGED else 0
            return Outcome(system.expand(x, polish), trace.status, trace.history)

    def next_eigenvalue(self, model: Generator, tolerance: float) -> tuple[complex, np.ndarray]:
        """Return the eigenvalue of Q of second largest real part, and its left eigenvector's own part; NaN where none is found.

        Parameters
        ----------
        model : Generator
            All of it, or the part of a rank.
        tolerance : float
            As SLEPc estimates it.
        """
        chain = part_of(model)
        rate = chain.uniformization_rate
        require_memory("slepc_krylov_schur", self.memory(chain.size, chain.entries), states=chain.size)
        with Objects() as objects, options(self.options, PREFIX) as given:
            first = vector(objects, chain.ranks, first_guess(chain))

            def step(p: Any, out: Any) -> None:
                out.setArray(chain.recurrence(p.getArray(readonly=True), factor=1 / rate, keep=1.0))

            solver = eigensolver(objects, function_matrix(objects, first, step), 2, self.vectors)
            restarted(solver, first, tolerance, self.max_iterations, lambda restarts, error: False)
            found = sorted(eigenpairs(objects, solver, first), key=lambda pair: -pair[0].real)
            given.applied = True
        if len(found) < 2:
            return complex(np.nan), np.full(chain.size, np.nan)
        return rate * (found[1][0] - 1), found[1][1]

    def _iterate(self, system: Equations, objects: Objects, x: np.ndarray, trace: Trace) -> np.ndarray:
        # what is iterated are flows
        exits = np.ones(1) if isinstance(system, Products) else system.restrict(system.chain.exit_rates)
        exits = np.where(exits > 0, exits, 1.0)
        first = objects.keep(system.vectors[0].duplicate())

        def jump(y: Any, out: Any) -> None:
            first.setArray(y.getArray(readonly=True) / exits)
            system.matrix.mult(first, out)
            out.aypx(-1.0, y)

        solver = eigensolver(objects, function_matrix(objects, first, jump), 1, self.vectors)
        start = objects.keep(first.duplicate())
        tolerance, steps, best, waited = trace.tolerance / 2, 0, np.inf, 0
        while True:
            defect = system.defect(-system.multiply(x), x)
            if trace.finished(defect, iterate=x, limit=self.max_iterations, iterations=steps):
                return x
            waited = 0 if defect < 0.5 * best else waited + 1
            best = min(best, defect)
            if waited > _PATIENCE:
                trace.status = Status.STAGNATED
                return x
            if steps:  # what SLEPc took for enough was not
                tolerance = max(tolerance * min(0.5 * trace.tolerance / defect, 0.5), _LEAST)
            start.setArray(exits * x)
            watch = _Watch(trace, self.max_iterations, x)
            made = restarted(solver, start, tolerance, max(self.max_iterations - trace.iteration, 1), watch)
            y = leading_vector(solver)
            y *= np.sign(system.chain.ranks.total(float(y.sum()))) or 1.0
            x = np.maximum(y, 0) / exits
            if watch.stopped:
                return x
            steps = max(made - watch.seen, 1)


class _Watch:
    """Tells the trace of restarts, between which SLEPc asks whether to stop; a checkpoint has what the run began with."""

    def __init__(self, trace: Trace, limit: int, first: np.ndarray) -> None:
        self._trace, self._limit, self._first = trace, limit, first
        self.seen, self.stopped = 0, False

    def __call__(self, restarts: int, error: float) -> bool:
        news = max(error, 1.001 * self._trace.tolerance)  # only the true defect tells that it is enough
        self.stopped = self._trace.finished(
            news, iterate=self._first, limit=self._limit, iterations=restarts - self.seen
        )
        self.seen = restarts
        return self.stopped
