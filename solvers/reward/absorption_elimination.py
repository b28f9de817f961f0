"""Elimination without a subtraction for passage times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.equation import Equation
from ctmc.model.generator import Generator
from ctmc.problem import FirstPassage
from ctmc.solution import Outcome
from ctmc.trace import Trace


@dataclass(frozen=True, kw_only=True)
class AbsorptionElimination:
    """Solve -Q_SS x = b by factors of -Q_SS in which nothing is subtracted: every number right relative to its own size.

    No iteration and no stopping test; 2/3 n^3 multiplications, once for all moments, and 32 n^2 bytes for n states outside the
    target.  Take it up to some thousand states, and wherever accuracy is in doubt: targets that are almost never reached and
    rates over many decades do not disturb it.  Source: see `ctmc.model.m_factors`.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[0, 1e-14, 0], [1e6, 0, 1e-8], [0, 1.0, 0]])
    >>> mean = solve(FirstPassage(chain, "state == 2", initial=(0,)), AbsorptionElimination()).mean
    >>> abs(mean / 1.00000000000001e28 - 1) < 1e-15
    True
    """

    solves: ClassVar = (FirstPassage,)
    needs: ClassVar = Generator

    def run(self, problem: Equation, trace: Trace) -> Outcome:
        """Return x, 0 outside."""
        inside = slice(None) if problem.inside is None else problem.inside
        x = np.zeros(problem.model.size)
        factors = problem.factors()
        x[inside] = (factors.solve_left if problem.forward else factors.solve)(problem.right[inside])
        return Outcome(x)
