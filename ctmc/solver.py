"""What a solver is."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

from ctmc.solution import Outcome
from ctmc.trace import Trace


@runtime_checkable
class Solver(Protocol):
    """A frozen, keyword-only dataclass whose fields are its options, checked in ``__post_init__``.

    Attributes
    ----------
    solves : tuple of problem classes
    needs : model class, or tuple of them

    A solver for models with some structure may have a static method ``refuses(model) -> str``: why it does not take
    a model of the class that it needs, or ''.  One that stands on an optional library names it and the extra that brings
    it, ``library = ("pyamg", "multigrid")``, and imports it in ``run``: it is listed, but not offered, where it is missing.
    One may say beforehand, by a method ``memory(states, entries) -> int``, how many bytes it takes beside the model; forecasts
    show it.
    """

    solves: ClassVar[tuple[type, ...]]
    needs: ClassVar[Any]

    def run(self, problem: Any, trace: Trace) -> Outcome:
        """Propose an answer to the problem.

        A stationary problem on a Generator arrives with an irreducible chain of at least two states; the framework has
        taken reducible chains apart.  A solver with the class attribute ``keeps_zeros = True``, whose iterates stay 0 wherever
        `Trace.start` is 0 and nothing flows in, may instead get a large chain with its transient states, and a start without them.
        The same problem has the same bits each time, unless the solver says ``same_bits = False``: some libraries add up in an order
        that depends on where their vectors happen to lie; then runs agree to rounding.

        `Transient` and `AccumulatedReward` arrive as an `Evolution`, one linear differential equation at a time; the answer goes to
        ``trace.reached`` time by time, and the outcome has no value.  `DiscountedReward` and `FirstPassage` arrive as an `Equation`,
        one for each moment, whose solution is the value of the outcome.
        """
        ...
