"""Distributions over states, given in whatever form is at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.errors import ModelError
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
        if given.positions.size and not (given.positions.min() >= 0 and given.positions.max() < space.size):
            raise ModelError(f"initial has positions outside 0 to {space.size - 1}.")
        return given
    if isinstance(given, Mapping):
        positions = np.array([space.index(state) for state in given], dtype=np.int64)
        try:
            weights = np.array(list(given.values()), dtype=np.float64)
        except (TypeError, ValueError):
            raise ModelError("initial has a probability that is not a number; allowed are non-negative ones.") from None
        if len(np.unique(positions)) < len(positions):
            raise ModelError("initial names a state twice; allowed is each once, with its probability.")
    else:
        try:
            vector = np.asarray(given)
        except ValueError:
            vector = np.asarray(None)
        if vector.dtype.kind in "iu" and np.atleast_1d(vector).shape == (space.dimension,):
            return Distribution(np.array([space.index(vector)], dtype=np.int64), np.ones(1))
        if vector.dtype.kind not in "iuf" or vector.shape != (space.size,):
            raise ModelError(
                f"initial has shape {vector.shape} and type {vector.dtype}; allowed is a state ({space.dimension} whole "
                f"numbers), a mapping of states to probabilities, or {space.size} probabilities."
            )
        positions = np.flatnonzero(vector)
        weights = vector[positions].astype(np.float64)
    total = weights.sum()
    if not (np.all(weights >= 0) and abs(total - 1) <= 1e-9):
        raise ModelError(f"initial has probabilities that sum to {total:.12g}, the least being {weights.min(initial=0):.3g}; "
                         "allowed are non-negative ones that sum to 1.")  # fmt: skip
    order = np.argsort(positions)
    keep = order[weights[order] > 0]
    return Distribution(positions[keep], weights[keep] / total)
