"""Elimination along the communicating classes, for passage times and discounted rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.equation import Equation
from ctmc.model.class_factors import ClassFactors, class_factors
from ctmc.model.generator import Generator
from ctmc.model.stopped import rates_between
from ctmc.problem import DiscountedReward, FirstPassage
from ctmc.solution import Outcome
from ctmc.trace import Trace


@dataclass(frozen=True, kw_only=True)
class ClassElimination:
    """Solve -Q_SS x = b, or (gamma I - Q) x = b, class by class: states that reach each other are eliminated together.

    Between communicating classes there is no way back, so with the classes in order the matrix is block triangular, and
    substitution solves it.  Nothing is subtracted; no iteration and no stopping test.  A chain without cycles (an epidemic without
    relapse, a system without repair, a disease that only progresses) has classes of one state and takes some ten products' worth of
    time, where Krylov methods stagnate until they have taken as many steps as the longest way.  A class of m states takes 2/3 m^3
    multiplications and 8 m^2 bytes, so for one large class take `absorption_lu`, `absorption_krylov` or `resolvent_krylov`.  Beside
    the factors: 12 bytes an entry, and 64 a state.  It is the default above some thousand states where all classes are small.
    Source: J. G. Kemeny, J. L. Snell, *Finite Markov Chains* (1960), the canonical form; elimination as in `ctmc.model.m_factors`.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[0, 1e-14, 0, 1.0], [0, 0, 2.0, 0], [0, 4.0, 0, 1e-9], [0, 0, 0, 0]])
    >>> solve(FirstPassage(chain, "state == 3", initial=(1,)), ClassElimination()).mean / 3e9
    1.0000000001666667
    """

    solves: ClassVar = (FirstPassage, DiscountedReward)
    needs: ClassVar = Generator

    def run(self, problem: Equation, trace: Trace) -> Outcome:
        """Return x, 0 outside."""
        chain = problem.model
        inside = np.ones(chain.size, dtype=bool) if problem.inside is None else problem.inside
        name = f"class factors, shift {problem.shift!r}"
        if name not in problem.found:
            problem.found[name] = self._factors(problem, inside)
        factors = problem.found[name]
        right, x = problem.right[inside], np.zeros(chain.size)
        # a constant is in closed form, and what is left has no negative numbers
        low = float(right.min()) if problem.shift > 0 else 0.0
        x[inside] = (factors.solve_left if problem.forward else factors.solve)(right - low)
        if low:
            x += low / problem.shift
        return Outcome(x)

    def _factors(self, problem: Equation, inside: np.ndarray) -> ClassFactors:
        chain = problem.model
        # rates out are added up, where the difference of exit rates and rates inside would lose them
        leave = chain.backward((~inside).astype(np.float64))[inside] + problem.shift
        return class_factors(rates_between(chain, inside), leave)
