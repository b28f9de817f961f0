"""Distributions over states, given in whatever form is at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.errors import ModelError, about, shown
from ctmc.model.parameters import real_numbers
from ctmc.model.state_space import StateSpace


@dataclass(frozen=True, eq=False)
class Distribution:
    """Probabilities of a few (or all) states; the others have none.

    Attributes
    ----------
    positions : ndarray of int64, shape (k,)
        Ascending positions in the state space.
    probabilities : ndarray of float64, shape (k,)
        Positive, sum 1.
    """

    positions: np.ndarray
    probabilities: np.ndarray

    def dense(self, size: int) -> np.ndarray:
        """Return the vector of all `size` probabilities."""
        vector = np.zeros(size)
        vector[self.positions] = self.probabilities
        return vector


def distribution(space: StateSpace, given: Any) -> Distribution:
    """Return a distribution from a state, a mapping of states to probabilities, or a vector.

    Parameters
    ----------
    space : StateSpace
    given : sequence of int, int, mapping, array of float, or Distribution
        One state (whole numbers, as many as a state has coordinates); a mapping ``{state: probability}``; or a float
        vector of length n.

    Raises
    ------
    ModelError
        If a state is outside the space, or probabilities are negative or do not sum to 1 within 1e-9 (a smaller
        deviation is scaled away).

    Examples
    --------
    >>> from ctmc.model.state_space import Lattice
    >>> distribution(Lattice((2, 2)), {(0, 0): .25, (1, 2): .75}).positions.tolist()
    [0, 5]
    """
    if isinstance(given, Distribution):
        return _checked(space, given)
    if isinstance(given, Mapping):
        with about("initial"):
            positions = np.array([space.index(state) for state in given], dtype=np.int64)
        weights = real_numbers("the probabilities of initial", list(given.values()), "one number >= 0 for each state")
        if weights.shape != positions.shape:
            raise ModelError(
                f"the probabilities of initial are {shown(list(given.values()))}; allowed are one number >= 0 for each state."
            )
        if len(np.unique(positions)) < len(positions):
            raise ModelError(
                f"initial is {shown(given)}, which names a state twice; allowed is each once, with its probability."
            )
    else:
        try:
            vector = np.asarray(None if np.ma.is_masked(given) else given)
        except ValueError:
            vector = np.asarray(None)
        if vector.dtype.kind in "iu" and np.atleast_1d(vector).shape == (space.dimension,):
            with about("initial"):
                return Distribution(np.array([space.index(vector)], dtype=np.int64), np.ones(1))
        if vector.dtype.kind not in "iuf" or vector.shape != (space.size,):
            raise ModelError(
                f"initial is {shown(given)}, of shape {vector.shape}; allowed is a state ({space.dimension} whole number{'s' * (space.dimension != 1)}), a mapping "
                f"of states to probabilities, or {space.size} probabilities."
            )
        positions = np.flatnonzero(vector)
        weights = vector[positions].astype(np.float64)
    _check_mass(weights)
    order = np.argsort(positions)
    keep = order[weights[order] > 0]
    return Distribution(positions[keep], weights[keep] / weights.sum())


def _check_mass(weights: np.ndarray) -> None:
    total = weights.sum()
    if not (np.all(weights >= 0) and abs(total - 1) <= 1e-9):
        raise ModelError(f"initial has probabilities that sum to {total:.12g}, the least being {weights.min(initial=0):.3g}; "
                         "allowed are non-negative ones that sum to 1.")  # fmt: skip


def _checked(space: StateSpace, given: Distribution) -> Distribution:
    """Return a distribution that was made elsewhere, if it is one of these states."""
    positions, weights = given.positions, given.probabilities
    vectors = all(isinstance(array, np.ndarray) and array.ndim == 1 for array in (positions, weights))
    if not vectors or positions.dtype.kind not in "iu" or weights.dtype != np.float64 or len(positions) != len(weights):
        raise ModelError(
            f"initial has the positions {shown(positions)} and probabilities {shown(weights)}; allowed are a vector of whole "
            "numbers and one of as many numbers of float64."
        )
    if positions.size and not (
        positions[0] >= 0 and positions[-1] < space.size and (positions[1:] > positions[:-1]).all()
    ):
        raise ModelError(f"initial has the positions {shown(positions)}; allowed are 0 to {space.size - 1}, ascending.")
    _check_mass(weights)
    return given
