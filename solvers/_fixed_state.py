"""The stationary equations with the probability of one state fixed: what all direct methods solve."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.sparse import csc_array

from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.sweeps import cleared, sweep
from ctmc.solution import Outcome
from solvers._start import first_guess

BYTES_PER_ENTRY = 16
"""SuperLU takes 13 to 14: the entry, its row, and what the arrays have outgrown."""


class FixedState(NamedTuple):
    """The system A x = b for the probabilities of all states but one, relative to that one's.

    Attributes
    ----------
    state : int
        The one that is fixed, k.
    others : ndarray of int64, shape (n - 1,)
        The other states, T.
    matrix : csc_array, shape (n - 1, n - 1)
        A = -Q_TT^T, a regular M-matrix.
    right : ndarray, shape (n - 1,)
        b = q_kT, the rates out of k.
    """

    state: int
    others: np.ndarray
    matrix: csc_array
    right: np.ndarray


def fixed_state(chain: Generator, method: str) -> FixedState:
    """Return the system with the heaviest state fixed.

    Heaviest after a few sweeps, that is: leaving out a light state gives a nearly singular matrix.

    Parameters
    ----------
    chain : Generator
        Irreducible, of two and more states.
    method : str
        Who asks for the memory.

    Raises
    ------
    ModelError
        If the matrix alone is more than the memory limit.

    Examples
    --------
    >>> system = fixed_state(Generator.from_matrix([[-1, 1], [2, -2]]), "sparse_lu")
    >>> system.state, system.matrix.toarray().tolist(), system.right.tolist()
    (0, [[2.0]], [1.0])
    """
    require_memory(f"{method}, for the matrix alone,", 36 * (chain.entries + chain.size), states=chain.size)
    require_numbers(method, chain.entries + chain.size, chain.size)
    guess = first_guess(chain)
    for _ in range(3):
        sweep(chain, guess)
        sweep(chain, guess, reverse=True)
    state = int(np.argmax(guess))
    others = np.delete(np.arange(chain.size), state)
    generator = chain.to_scipy()
    matrix = csc_array(-generator[others][:, others].T)
    return FixedState(state, others, matrix, generator[[state]][:, others].toarray().ravel())


def solved(chain: Generator, system: FixedState, solve: Callable[[np.ndarray], np.ndarray]) -> Outcome:
    """Return the distribution, by a method's `solve`, one step of refinement, and a sweep where rounding left a negative entry."""
    x = solve(system.right)
    x = x + solve(system.right - system.matrix @ x)
    return Outcome(cleared(chain, np.insert(x, system.state, 1.0)))


def require_fill(method: str, ordering: str, entries: int, states: int) -> None:
    """Raise `ModelError` if factors with so many entries cannot be made; call it before factorising.

    Parameters
    ----------
    method, ordering : str
        Who asks, and in which order.
    entries : int
        Forecast for both factors together.
    states : int
    """
    what = f"{method} with {entries:,} entries forecast in its factors (ordering {ordering})"
    require_memory(what, BYTES_PER_ENTRY * entries, states=states)
    require_numbers(what, entries, states)


def require_numbers(what: str, entries: int, states: int) -> None:
    """Raise `ModelError` if a library that numbers entries with 32 bits cannot number these."""
    if entries > np.iinfo(np.int32).max:
        raise ModelError(
            f"{what} on {states:,} states has {entries:,} entries, more than 32-bit indices can number; allowed are {2**31 - 1:,}."
        )
