"""The numbers of a collocation method at the Radau points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.polynomial import legendre


@dataclass(frozen=True, eq=False)
class Collocation:
    """Radau IIA with its stages taken apart, and what bounds the residual of its polynomial.

    Polynomials of degree s are told by their values at 0 and at the s points of [0, 1], the last of which is 1; L_j is 1 at
    the j-th of these and 0 at the others, l_j the same without the 0.

    Attributes
    ----------
    points : ndarray, shape (s,)
    derivative : ndarray, shape (s, s)
        Derivatives at the points from the values at the points, where the value at 0 is 0.
    shifts : ndarray of complex, shape ((s + 1) / 2,)
        Its eigenvalues, one of each conjugate pair; the first is real.
    into : ndarray of complex, shape ((s + 1) / 2, s)
    back : ndarray of complex, shape (s, (s + 1) / 2)
        derivative = Re(back diag(shifts) into).
    leading : ndarray, shape (s + 1,)
        The coefficient of t^s from the values at 0 and the points.
    product_integral : float
        Integral of |prod_i (t - c_i)| over [0, 1].
    basis_integrals : ndarray, shape (s,)
        Integrals of |l_j|.
    """

    points: np.ndarray
    derivative: np.ndarray
    shifts: np.ndarray
    into: np.ndarray
    back: np.ndarray
    leading: np.ndarray
    product_integral: float
    basis_integrals: np.ndarray

    @property
    def order(self) -> int:
        """The power of the step in the integral of the residual."""
        return len(self.points) + 1

    def weights(self, place: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the values at a place, and the integrals from 0 to it, of L_1, .., L_s; shapes (s,)."""
        if place == 1:
            values = np.zeros(len(self.points))
            values[-1] = 1.0
        else:
            values = _lagrange(np.concatenate([[0.0], self.points]), np.array([place]))[1:, 0]
        return values, _integrals(self.points, place)


@lru_cache(maxsize=8)
def collocation(stages: int) -> Collocation:
    """Return the method with an odd number of stages.

    Examples
    --------
    >>> three = collocation(3)
    >>> three.points.round(9).tolist(), [round(x, 9) for x in three.shifts.real.tolist()]
    ([0.155051026, 0.644948974, 1.0], [3.637834253, 2.681082874])
    """
    nodes = legendre.legroots([0.0] * (stages - 1) + [-1.0, 1.0]).real
    points = (np.sort(nodes) + 1) / 2
    points[-1] = 1.0
    whole = np.concatenate([[0.0], points])
    gaps = whole[:, None] - whole
    np.fill_diagonal(gaps, 1.0)
    leading = 1 / gaps.prod(axis=1)
    # derivatives of L_j at the others, from the barycentric weights; rows of the whole sum to zero
    whole_derivative = leading / (leading[:, None] * gaps)
    np.fill_diagonal(whole_derivative, 0.0)
    np.fill_diagonal(whole_derivative, -whole_derivative.sum(axis=1))
    derivative = whole_derivative[1:, 1:]
    shifts, vectors = np.linalg.eig(derivative)
    into = np.linalg.inv(vectors)
    kept = np.flatnonzero(shifts.imag >= 0)
    kept = kept[np.argsort(shifts[kept].imag)]
    twice = np.where(shifts[kept].imag > 0, 2.0, 1.0)
    gauss, weights = legendre.leggauss(stages + 1)
    places = np.concatenate([a + (b - a) * (gauss + 1) / 2 for a, b in pairwise(whole)])
    parts = np.concatenate([(b - a) / 2 * weights for a, b in pairwise(whole)])
    # neither changes its sign between two points
    product = np.abs((places[:, None] - points).prod(axis=1))
    return Collocation(
        points,
        derivative,
        shifts[kept],
        into[kept],
        vectors[:, kept] * twice,
        leading,
        float(parts @ product),
        np.abs(_lagrange(points, places)) @ parts,
    )


def _lagrange(nodes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the polynomials that are 1 at one node and 0 at the others; shape (nodes, places).

    Products of ratios: coefficients of powers would cost digits.
    """
    found = np.ones((len(nodes), len(places)))
    for j in range(len(nodes)):
        for k in range(len(nodes)):
            if k != j:
                found[j] *= (places - nodes[k]) / (nodes[j] - nodes[k])
    return found


def _integrals(points: np.ndarray, place: float) -> np.ndarray:
    """Return the integrals of L_1, .., L_s from 0 to a place."""
    gauss, weights = legendre.leggauss(len(points) // 2 + 1)
    inside = place * (gauss + 1) / 2
    return np.asarray(_lagrange(np.concatenate([[0.0], points]), inside)[1:] @ weights * (place / 2))
