"""Entries from outside: a matrix, or a list of transitions, checked and put into compressed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array, csc_array, issparse

from ctmc.errors import ModelError, shown
from ctmc.model.parameters import real_numbers
from ctmc.model.transitions import FloatTransitions

if TYPE_CHECKING:
    from ctmc.model.generator import Generator


def entries_of(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return rows, columns and values of the entries of a square matrix, dense or sparse, and its size."""
    try:
        table = matrix if issparse(matrix) else np.atleast_2d(np.array(None if np.ma.is_masked(matrix) else matrix))
        entries = coo_array(table)
    except (TypeError, ValueError):
        raise ModelError(
            f"the matrix is {shown(matrix)}, no table of numbers; allowed is a square, non-empty one."
        ) from None
    if entries.ndim != 2 or entries.shape[0] != entries.shape[1] or not entries.shape[0]:
        raise ModelError(f"the matrix has shape {entries.shape}; allowed is a square, non-empty one.")
    if entries.dtype.kind not in "biuf":
        raise ModelError(f"the matrix has the type {entries.dtype}; allowed are real numbers.")
    rows, columns = entries.coords
    return rows, columns, np.asarray(entries.data, dtype=np.float64), entries.shape[0]


def check_diagonal(model: Generator, diagonal: np.ndarray) -> None:
    """Raise `ModelError` unless a diagonal is zero, or makes each row of a model sum to zero."""
    bad = ~(np.abs(diagonal + model.exit_rates) <= 1e-9 * model.exit_rates)
    if diagonal.any() and bad.any():
        i = int(np.argmax(bad))
        raise ModelError(
            f"row {model.name_of(i)} sums to {diagonal[i] + model.exit_rates[i]:.6g}, its diagonal being {diagonal[i]:.6g}; "
            f"rows of a generator sum to zero{_likely(model, diagonal)}."
        )


def _likely(model: Generator, diagonal: np.ndarray) -> str:
    """Return what else a matrix seems to be: the transpose of a generator, or probabilities; nothing where it is neither."""
    if (np.abs(diagonal + model.exit_rates - 1) <= 1e-9).all():
        return "; here all sum to one, as probabilities do: P - I has the same long-run distribution as P"
    inflows = model.forward(np.ones(model.size)) + model.exit_rates
    if (np.abs(diagonal + inflows) <= 1e-9 * np.maximum(inflows, np.abs(diagonal))).all():
        return "; here the columns do: give the transpose, whose row i has the rates from state i"
    return ""


def rows_of(sources: Any, targets: Any, rates: Any, n: int) -> FloatTransitions:
    """Return transitions between `n` states as compressed rows; doubled ones add up, those from a state to itself are left out."""
    sources = checked_positions("sources", sources, n)
    targets = checked_positions("targets", targets, n)
    rates = real_numbers("rates", rates, "non-negative, finite numbers")
    if not sources.shape == targets.shape == rates.shape:
        raise ModelError(
            f"there are {len(sources)} sources, {len(targets)} targets and rates of shape {rates.shape}; "
            "allowed are as many of each."
        )
    moves = sources != targets
    bad = moves & ~((rates >= 0) & np.isfinite(rates))
    if bad.any():
        k = int(np.argmax(bad))
        raise ModelError(
            f"the rate from state {sources[k]} to state {targets[k]} is {float(rates[k])!r}; "
            "allowed are non-negative, finite rates."
        )
    keep = moves & (rates > 0)
    columns = csc_array(coo_array((rates[keep], (sources[keep], targets[keep])), shape=(n, n)))
    columns.sum_duplicates()
    narrow = np.int32 if n <= np.iinfo(np.int32).max else np.int64
    return FloatTransitions(columns.indptr.astype(np.int64), columns.indices.astype(narrow), columns.data)


def checked_positions(name: str, given: Any, size: int) -> np.ndarray:
    """Return positions of states as an array of integers."""
    try:
        positions = np.asarray(None if np.ma.is_masked(given) else given)
    except ValueError:
        positions = np.asarray(None)
    if positions.ndim == 1 and not positions.size:
        positions = positions.astype(np.int64)
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        raise ModelError(
            f"{name} are {shown(given)}, of shape {positions.shape} and type {positions.dtype}; allowed is a vector of whole "
            "numbers."
        )
    if positions.size and (positions.min() < 0 or positions.max() >= size):
        k = int(np.argmax((positions < 0) | (positions >= size)))
        raise ModelError(f"{name}[{k}] is {positions[k]}; allowed is 0 to {size - 1}.")
    return positions
