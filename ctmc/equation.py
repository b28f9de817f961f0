"""What a question about discounted rewards or passage times asks of a solver: a linear equation with the generator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ctmc.model.class_factors import ClassFactors, ClassOrder, class_factors, class_order
from ctmc.model.generator import Generator
from ctmc.model.m_factors import MFactors, factorized
from ctmc.model.memory import memory_limit, require_memory
from ctmc.model.stopped import rates_between
from ctmc.model.streamed import StreamedTransitions

_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Equation:
    """The equation (shift I - Q) x = right on some of the states, with x = 0 on the others; or x (shift I - Q) = right.

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
    scale : ndarray, shape (n,), optional
        Of an equation with shift 0: positive on the inside; what the residual of each state is compared with, in place of its
        right side, which may then be 0.
    forward : bool
        The equation is x (-Q) = right, for a row x; shift 0, with a scale.
    found : dict
        What was found out about the left side; equations with the same inside share it.
    """

    model: Generator
    right: np.ndarray
    shift: float = 0.0
    inside: np.ndarray | None = None
    tolerance: float = 1e-10
    scale: np.ndarray | None = None
    forward: bool = False
    found: dict[str, Any] = field(default_factory=dict)

    def residual(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return right - (shift I - Q) x on the inside, 0 on the others; shape (n,).  Makes one product."""
        out = self.model.forward(x, out=out) if self.forward else self.model.backward(x, out=out)
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
        largest = self.model.ranks.largest
        if self.shift > 0:
            size = largest(float(np.abs(self.right).max(initial=0.0)))
            return float(largest(float(np.abs(residual).max(initial=0.0))) / (size or 1.0))
        inside = slice(None) if self.inside is None else self.inside
        scale = self.right if self.scale is None else self.scale
        return float(largest(float((np.abs(residual[inside]) / scale[inside]).max(initial=0.0))))

    def floor(self, x: np.ndarray) -> float:
        """Return a bound on what rounding, of x and of the residual itself, may add to or hide in the defect; x >= 0, shift 0."""
        inside = slice(None) if self.inside is None else self.inside
        scale = (self.right if self.scale is None else self.scale)[inside]
        return float(self.model.ranks.largest(float((self.rounding(x)[inside] / scale).max(initial=0.0))))

    def rounding(self, x: np.ndarray) -> np.ndarray:
        """Return a bound on what rounding, of x and of the residual itself, adds to the residual of each state; x >= 0, shift 0."""
        # a residual is a sum of `terms` products of one sign, of which x_i q_i is taken away: both are at most 2 x_i q_i
        terms = self.model.most_transitions_in() if self.forward else self.model.most_transitions_out()
        return np.asarray(_EPSILON * (terms + 4) * (self.model.exit_rates * x + self.right))

    def may_eliminate(self, size: int, needed: bool) -> bool:
        """Return whether an answer is to be compared with elimination: where that costs nothing, or is needed and not too much."""
        if self.model.shared:
            return False
        if "factors" in self.found or "class factors" in self.found:
            return True
        count = self.model.size if self.inside is None else np.count_nonzero(self.inside)
        return needed and bool(count <= size or self._class_factors_are_cheap())

    def elimination(self) -> MFactors | ClassFactors:
        """Return factors of the inside, without a subtraction: those that are found already, of classes if that is cheap, or dense."""
        if "factors" not in self.found and ("class factors" in self.found or self._class_factors_are_cheap()):
            return self.class_factors()
        return self.factors()

    def class_factors(self) -> ClassFactors:
        """Return the factors of shift I - Q on the inside along the communicating classes, found once.

        Raises
        ------
        MemoryLimitError
            If they do not fit.
        """
        if "class factors" not in self.found:
            rates, inside = self._rates(), slice(None) if self.inside is None else self.inside
            # rates out are added up, where the difference of exit rates and rates inside would lose them
            outside = np.zeros(self.model.size) if self.inside is None else (~self.inside).astype(np.float64)
            leave = self.model.backward(outside)[inside] + self.shift
            self.found["class factors"] = class_factors(rates, leave, self.found.get("class order"))
        found: ClassFactors = self.found["class factors"]
        return found

    def _class_factors_are_cheap(self) -> bool:
        streamed = isinstance(self.model.transitions, StreamedTransitions)
        if streamed or 64 * (self.model.entries + self.model.size) > memory_limit():
            return False
        if "class order" not in self.found:
            self.found["class order"] = class_order(self._rates())
        order: ClassOrder = self.found["class order"]
        return order.is_cheap

    def _rates(self) -> csr_array:
        """Return the rates inside by source, without a diagonal."""
        if "rates" not in self.found:
            inside = np.ones(self.model.size, dtype=bool) if self.inside is None else self.inside
            self.found["rates"] = rates_between(self.model, inside)
        return self.found["rates"]

    def factors(self) -> MFactors:
        """Return the triangular factors of -Q on the inside, found once, without a subtraction; shift 0.

        Raises
        ------
        ModelError
            If a dense matrix of the inside does not fit the memory limit.
        """
        if "factors" not in self.found:
            positions = np.arange(self.model.size) if self.inside is None else np.flatnonzero(self.inside)
            n = len(positions)
            require_memory("elimination, which works on a dense matrix,", 32 * n**2, states=n)
            rows = self.model.to_scipy()[positions]
            outside = np.ones(self.model.size)
            outside[positions] = 0.0
            self.found["factors"] = factorized(rows[:, positions].toarray(), rows @ outside)
        found: MFactors = self.found["factors"]
        return found
