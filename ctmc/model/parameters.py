"""Checks of numbers that users give to builders: one sentence for what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctmc.errors import ModelError, printable


def numbers(name: str, given: Any, allowed: str) -> np.ndarray:
    """Return a parameter as a vector of float64; one number makes a vector of length 1.

    Parameters
    ----------
    name : str
        Of the parameter, for the message.
    given
        What the user gave.
    allowed : str
        What is allowed, for the message: "allowed are ..".

    Raises
    ------
    ModelError
        If it is not a non-empty vector of numbers.
    """
    try:
        vector = np.atleast_1d(np.asarray(given, dtype=np.float64))
    except (TypeError, ValueError):
        raise ModelError(f"{name} is {printable(repr(given))}; allowed are {allowed}.") from None
    if not vector.size:
        raise ModelError(f"{name} is empty; allowed are {allowed}.")
    if vector.ndim != 1:
        raise ModelError(f"{name} has the shape {vector.shape}; allowed are {allowed}.")
    return vector


def positive_rates(name: str, given: Any) -> np.ndarray:
    """Return a parameter as a vector of positive, finite rates.

    Examples
    --------
    >>> positive_rates("service_rates", [3, 2]).tolist()
    [3.0, 2.0]
    """
    allowed = "one or more positive, finite rates"
    rates = numbers(name, given, allowed)
    bad = ~((rates > 0) & np.isfinite(rates))
    if bad.any():
        raise ModelError(f"{name} has the value {rates[np.argmax(bad)]}; allowed are {allowed}.")
    return rates


def positive_rate(name: str, given: Any) -> float:
    """Return a parameter as one positive, finite rate."""
    try:
        rate = float(given)
    except (TypeError, ValueError):
        rate = float("nan")
    if not (rate > 0 and np.isfinite(rate)):
        raise ModelError(f"{name} is {printable(repr(given))}; allowed is a positive, finite rate.")
    return rate


def whole_number(name: str, given: Any, least: int, most: int | None = None, why: str = "") -> int:
    """Return a parameter as a whole number in a range; True is none.

    Parameters
    ----------
    name, given
    least, most : int
        The range; no upper limit by default.
    why : str
        Added to the message, in parentheses.
    """
    is_whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
    if not is_whole or given < least or (most is not None and given > most):
        limits = f">= {least}" if most is None else f"from {least} to {most}"
        reason = f" ({why})" if why else ""
        raise ModelError(f"{name} is {printable(repr(given))}; allowed is a whole number {limits}{reason}.")
    return int(given)
