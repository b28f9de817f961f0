"""Solvers, good and bad, that several tests of the tester need."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctmc.certificate import imbalance
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.problem import Stationary
from ctmc.solution import Outcome


class Plugin:
    """What all the solvers below declare."""

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator


def eliminated(problem):
    return gth(problem.model.to_scipy().toarray())


@dataclass(frozen=True, kw_only=True)
class Compliant(Plugin):
    """As small as can be."""

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


@dataclass(frozen=True, kw_only=True)
class Iterative(Plugin):
    """As small as an iterative one can be.

    max_iterations : int
    """

    max_iterations: int = 3_000

    def run(self, problem, trace):
        chain = problem.model
        pi = trace.start(np.full(chain.size, 1 / chain.size))
        while not trace.finished(imbalance(chain.forward(pi), pi, chain), limit=self.max_iterations):
            pi += chain.forward(pi) / (1.1 * chain.uniformization_rate)
            pi /= pi.sum()
        return Outcome(pi, trace.status, trace.history)


COUNTER = itertools.count(1)


@dataclass(kw_only=True)
class Melting(Plugin):
    """Is not frozen.

    option : int
    """

    option: int = 1

    def run(self, problem, trace):
        return Outcome(eliminated(problem))


@dataclass(frozen=True, kw_only=True)
class Forgetful(Plugin):
    """Loses its option on the way.

    option : int
    """

    option: int = 1

    def __repr__(self):
        return "Forgetful(option=2)"

    def run(self, problem, trace):
        return Outcome(eliminated(problem))
