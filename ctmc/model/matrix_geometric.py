"""Matrix-geometric distributions: boundary vectors, then powers of R; levels, tails, moments and quantiles in closed form.

Source: M. F. Neuts, *Matrix-Geometric Solutions in Stochastic Models*, 1981, chapter 1; the aggregates over all repeating
levels are those of A. Riska, E. Smirni, *ETAQA: an efficient technique for the analysis of QBD-processes by aggregation*,
Performance Evaluation 36-37 (1999) 71-93, doi:10.1016/S0166-5316(99)00018-8, with R at hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ctmc.errors import ModelError
from ctmc.model.parameters import real_number, real_numbers, whole_number
from ctmc.model.summary import Rows, Summarised

if TYPE_CHECKING:
    from ctmc.model.qbd import QBD


@dataclass(frozen=True, eq=False, repr=False)
class MatrixGeometric(Summarised):
    """A stationary distribution over levels: boundary vectors, then pi_{b+k} = pi_b R^k.

    Attributes
    ----------
    boundary : tuple of ndarray, shape (phases of the level,)
        pi_0 .. pi_b.
    r : ndarray, shape (m, m)
        R: expected visits to the level above, per unit of exit flow.
    g : ndarray, shape (m, m), or None
        G: first passage probabilities to the level below.
    u : ndarray, shape (m, m), or None
        U = local + up G: the generator of the phases of a level, watched until the level below is entered.

    Examples
    --------
    >>> answer = MatrixGeometric((np.array([.5]),), np.array([[.5]]))          # M/M/1 at load 1/2
    >>> float(answer.tail(3)), answer.decay_rate, answer.mean_level
    (0.125, 0.5, 1.0)
    >>> answer.moment(2), answer.level_variance, answer.quantile(0.99)
    (3.0, 2.0, 6)
    """

    boundary: tuple[np.ndarray, ...]
    r: np.ndarray
    g: np.ndarray | None = None
    u: np.ndarray | None = None

    def __post_init__(self) -> None:
        for array in (*self.boundary, self.r, self.g, self.u):
            if array is not None:
                array.flags.writeable = False

    @cached_property
    def decay_rate(self) -> float:
        """The spectral radius of R, by which the mass of a level shrinks from one to the next (caudal characteristic)."""
        return float(np.abs(np.linalg.eigvals(self.r)).max())

    @cached_property
    def _sums(self) -> tuple[np.ndarray, np.ndarray]:
        # (I - R)^-1 1 and (I - R)^-2 R 1
        identity = np.eye(len(self.r))
        once = np.linalg.solve(identity - self.r, np.ones(len(self.r)))
        return once, np.linalg.solve(identity - self.r, self.r @ once)

    def mass_from(self, weights: np.ndarray) -> float:
        """Return the mass of weights, weights R, weights R^2, ..; shape (m,)."""
        weights = real_numbers("weights", weights, f"{len(self.r)} numbers")
        if weights.shape != (len(self.r),):
            raise ModelError(f"weights has shape {weights.shape}; allowed is ({len(self.r)},).")
        return float(weights @ self._sums[0])

    def level(self, k: int) -> np.ndarray:
        """Return the probabilities of the states of level k >= 0, shape (phases,)."""
        whole_number("level", k, 0)
        last = len(self.boundary) - 1
        if k <= last:
            return self.boundary[k]
        return np.asarray(self.boundary[-1] @ np.linalg.matrix_power(self.r, k - last))

    def tail(self, k: int) -> float:
        """Return the probability of levels k, k + 1, .. for k >= 0."""
        whole_number("level", k, 0)
        last = len(self.boundary) - 1
        if k > last:
            return self.mass_from(self.level(k))
        return float(sum(weights.sum() for weights in self.boundary[k:last])) + self.mass_from(self.boundary[-1])

    @property
    def mass(self) -> float:
        """The total probability, 1 up to rounding."""
        return self.tail(0)

    @cached_property
    def mean_level(self) -> float:
        """The mean level, in closed form over the repeating levels."""
        last = len(self.boundary) - 1
        low = sum(k * float(weights.sum()) for k, weights in enumerate(self.boundary[:last]))
        top = self.boundary[-1]
        return low + last * self.mass_from(top) + float(top @ self._sums[1])

    def moment(self, order: int) -> float:
        """Return E[level^order], in closed form over the repeating levels and without a subtraction.

        The sum over k of binomial(k, j) pi_b R^k 1 is pi_b R^j (I - R)^-(j+1) 1, and powers of k are combinations of
        binomials with coefficients >= 0 (Stirling numbers).

        Parameters
        ----------
        order : int
            0 or more.
        """
        whole_number("order", order, 0, 170, "factorials that floats hold")
        last = len(self.boundary) - 1
        total = float(sum(float(k) ** order * weights.sum() for k, weights in enumerate(self.boundary[:last])))
        for power, binomials in enumerate(self._powers(order)):
            total += math.comb(order, power) * float(last) ** (order - power) * binomials
        return total

    def _powers(self, order: int) -> list[float]:
        """Return the sums over k >= 0 of k^i pi_b R^k 1 for i = 0 .. order."""
        difference = np.eye(len(self.r)) - self.r
        weights, falling = self._sums[0], []
        for j in range(order + 1):
            falling.append(math.factorial(j) * float(self.boundary[-1] @ weights))
            weights = np.linalg.solve(difference, self.r @ weights)
        stirling, found = [1], []
        for i in range(order + 1):
            found.append(float(sum(count * value for count, value in zip(stirling, falling[: i + 1], strict=True))))
            padded = [0, *stirling, 0]
            stirling = [padded[j] + j * padded[j + 1] for j in range(i + 2)]
        return found

    @cached_property
    def level_variance(self) -> float:
        """The variance of the level."""
        return self.moment(2) - self.mean_level**2

    def quantile(self, probability: float) -> int:
        """Return the least level k with P(level <= k) >= probability.

        Found by doubling: about 2 log2(k) products of m x m matrices, however far out k is.

        Parameters
        ----------
        probability : float
            At least 0 and below 1.
        """
        real_number("probability", probability, lambda value: 0 <= value < 1, "a number >= 0 and < 1")
        beyond = 1 - probability
        last = len(self.boundary) - 1
        for k in range(last + 1):
            if self.tail(k + 1) <= beyond:
                return k
        # the greatest k with more than `beyond` above level last + k, bit by bit
        powers = [self.r]
        start = self.boundary[-1] @ self.r
        while self.mass_from(start @ powers[-1]) > beyond:
            powers.append(powers[-1] @ powers[-1])
        steps, weights = 0, start
        for bit in range(len(powers) - 1, -1, -1):
            further = weights @ powers[bit]
            if self.mass_from(further) > beyond:
                steps, weights = steps + (1 << bit), further
        return last + steps + 1

    @property
    def repeating_phases(self) -> np.ndarray:
        """Total mass per phase of levels b, b + 1, ..: pi_b (I - R)^-1, shape (m,)."""
        return np.asarray(np.linalg.solve(np.eye(len(self.r)) - self.r.T, self.boundary[-1]))

    def _summary(self) -> tuple[str, Rows]:
        rows: list[tuple[str, object]] = [
            ("mean level", f"{self.mean_level:.10g}"),
            ("decay rate", f"{self.decay_rate:.10g}"),
        ]
        rows += [(f"level {k}", f"{weights.sum():.6g}") for k, weights in enumerate(self.boundary[:6])]
        return "Matrix-geometric distribution", rows


def matrix_residuals(queue: QBD, answer: MatrixGeometric) -> dict[str, float]:
    """Return the largest entries of the residuals of the equations of G, R and U, over the largest exit rate.

    G: down + local G + up G^2.  R: up + R local + R^2 down.  U = local + up G: U - local - R down, that is up G = R down.
    ``row sums``: the largest deviation of a row sum of G from 1, which says more about G than its residual.

    Parameters
    ----------
    queue : QBD
    answer : MatrixGeometric

    Examples
    --------
    >>> from ctmc.model.qbd import QBD
    >>> queue = QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])
    >>> matrix_residuals(queue, MatrixGeometric((np.array([.5]),), np.array([[.5]]), np.array([[1.0]])))
    {'R': 0.0, 'G': 0.0, 'U': 0.0, 'row sums': 0.0}
    """
    up, local, down = (block.toarray() for block in (queue.up, queue.local, queue.down))
    r, g, scale = answer.r, answer.g, float(-local.diagonal().min()) or 1.0
    falling = r @ down
    found = {"R": up + r @ local + r @ falling}
    if g is not None:
        rising = up @ g
        found |= {"G": down + local @ g + rising @ g, "U": rising - falling}
    largest = {name: float(np.abs(matrix).max()) / scale for name, matrix in found.items()}
    if g is not None:
        largest["row sums"] = float(np.abs(g.sum(axis=1) - 1).max())
    return largest
