"""Preconditioners for the stationary equations: maps M so that x -> (M x) Q is better conditioned than x -> x Q."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import dia_array
from scipy.sparse.linalg import spilu

from ctmc.model.generator import Generator
from solvers._fixed_state import require_numbers

PRECONDITIONERS = ("none", "jacobi", "ilu")
_SHIFT = 1e-10


def preconditioner(
    name: str, chain: Generator, drop_tolerance: float, fill: float
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the map M, applied from the right, as a function of a vector of shape (n,).

    Parameters
    ----------
    name : str
        'none': M = I.  'jacobi': division by the exit rates, so that the unknowns are probability flows.  'ilu': solution
        with incomplete LU factors of -Q^T (SuperLU's threshold ILU), shifted by 1e-10 of its diagonal to be regular.
    chain : Generator
        Irreducible.
    drop_tolerance, fill : float
        Of the incomplete factors: entries dropped relative to their column, and largest growth of the entries.
    """
    if name == "none":
        return lambda x: x
    if name == "jacobi":
        inverse = 1 / chain.exit_rates
        return lambda x: x * inverse
    require_numbers("the preconditioner 'ilu'", chain.entries + chain.size, chain.size)
    shift = dia_array((_SHIFT * chain.exit_rates[None], [0]), shape=(chain.size, chain.size))
    factors = spilu((shift - chain.to_scipy().T).tocsc(), drop_tol=drop_tolerance, fill_factor=fill)
    return factors.solve
