"""Where iterative methods begin."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ctmc.model.generator import Generator
from ctmc.model.products import compiled_parallel
from ctmc.model.transitions import LatticeTransitions, begin_digits, count_up

_ROWS = 256


def first_guess(chain: Generator) -> np.ndarray:
    """Return the distribution to begin with: the product of the model's guesses for its coordinates, else uniform.

    Examples
    --------
    >>> first_guess(Generator.from_matrix([[-1, 1], [2, -2]])).tolist()
    [0.5, 0.5]
    """
    n, guess = chain.size, chain.guess
    if guess is None:
        return np.full(n, 1 / chain.states)
    pi = np.empty(n)
    if isinstance(chain.transitions, LatticeTransitions):
        sides = chain.transitions.sides.astype(np.int64)
        table = np.ones((len(sides), int(sides.max())))
        for row, given in zip(table, guess, strict=True):
            row[: len(given)] = given
        product(table, sides, chain.transitions.strides.astype(np.int64), pi)
    else:
        for positions, states in chain.state_slabs():
            pi[positions] = np.prod([given[column] for given, column in zip(guess, states.T, strict=True)], axis=0)
    pi /= chain.ranks.total(pi.sum())
    return pi


@compiled_parallel
def product(table: Any, sides: Any, strides: Any, out: Any) -> None:
    """Set out to the product of a factor for each coordinate of a box."""
    last = sides.size - 1
    width = sides[last]
    rows = out.size // width
    for block in numba.prange((rows + _ROWS - 1) // _ROWS):
        low = np.int64(block) * _ROWS
        digits = begin_digits(low * width, sides, strides)
        for row in range(low, min(low + _ROWS, rows)):
            factor = 1.0
            for i in range(last):
                factor *= table[i, digits[i]]
            for x in range(width):
                out[row * width + x] = factor * table[last, x]
            digits[last] = width - 1
            count_up(digits, sides)
