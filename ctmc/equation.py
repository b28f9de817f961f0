"""What a question about discounted rewards or passage times asks of a solver: a linear equation with the generator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ctmc.model.generator import Generator


@dataclass(frozen=True, eq=False)
class Equation:
    """The equation (shift I - Q) x = right on some of the states, with x = 0 on the others.

    A solver for `DiscountedReward` or `FirstPassage` gets one and returns x as the value of its outcome.

    Attributes
    ----------
    model : Generator
    right : ndarray, shape (n,)
        Read on the inside only.  For passage times it is positive there.
    shift : float
        >= 0; a multiple of the rate of discounting.
    inside : ndarray of bool, shape (n,), optional
        The states of the equation; all where None.  With shift 0 every one of them leads out of the inside.
    tolerance : float
        Largest accepted defect.
    """

    model: Generator
    right: np.ndarray
    shift: float = 0.0
    inside: np.ndarray | None = None
    tolerance: float = 1e-10

    def residual(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return right - (shift I - Q) x on the inside, 0 on the others; shape (n,).  Makes one product."""
        out = self.model.backward(x, out=out)
        out += self.right
        out -= self.shift * x
        if self.inside is not None:
            out[~self.inside] = 0
        return out

    def defect(self, residual: np.ndarray) -> float:
        """Return the largest residual, relative to the largest right side; with shift 0, to that of the same state.

        With a shift it bounds the error by defect x max |right| / shift.  With shift 0 a defect e < 1 proves
        x / (1 + e) <= exact <= x / (1 - e) state by state, since the inverse of -Q on the inside has no negative entry.

        Examples
        --------
        >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
        >>> equation = Equation(chain, np.array([1.0, 0.0]), shift=0.5)
        >>> equation.defect(equation.residual(np.array([1.0, 1.0])))
        0.5
        """
        if self.shift > 0:
            return float(np.abs(residual).max()) / (float(np.abs(self.right).max()) or 1.0)
        inside = slice(None) if self.inside is None else self.inside
        return float((np.abs(residual[inside]) / self.right[inside]).max(initial=0.0))
