"""Elimination along the communicating classes, for passage times and discounted rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.equation import Equation
from ctmc.model.generator import Generator
from ctmc.problem import DiscountedReward, FirstPassage
from ctmc.solution import Outcome
from ctmc.trace import Trace


@dataclass(frozen=True, kw_only=True)
class ClassElimination:
    """Solve -Q_SS x = b, or (gamma I - Q) x = b, class by class: states that reach each other are eliminated together, in a band.

    Between communicating classes there is no way back, so with the classes in order the matrix is block triangular, and
    substitution solves it.  Nothing is subtracted; no iteration and no stopping test.  A chain without cycles (an epidemic without
    relapse, a system without repair, a disease that only progresses) has classes of one state and takes some tens of products' worth of
    time, where Krylov methods stagnate until they have taken as many steps as the longest way.  In a class the states stand as they
    come, or as Cuthill and McKee order them; m of them with transitions to w places away at most take 2 m w^2 multiplications and
    16 m w bytes.  It is the default above some thousand states where that is quick: long and narrow chains, two queues, and however
    rarely the target is reached.  Fails, for want of time or memory, which it asks for first, on wide models (three queues and more):
    there take `absorption_krylov`, `resolvent_krylov` or `absorption_lu`.  At its peak an epidemic of 246,050 states, whose classes have
    one each, took 144 bytes a state.
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
        inside = slice(None) if problem.inside is None else problem.inside
        factors, right, x = problem.class_factors(), problem.right[inside], np.zeros(problem.model.size)
        # a constant is in closed form, and what is left has no negative numbers
        low = float(right.min()) if problem.shift > 0 else 0.0
        x[inside] = (factors.solve_left if problem.forward else factors.solve)(right - low)
        if low:
            x += low / problem.shift
        return Outcome(x)
