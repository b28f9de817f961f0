"""Checks of numbers that users give to builders: one sentence for what is wrong."""

from __future__ import annotations

import numbers as numbers_module
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctmc.errors import ModelError, shown, unknown_name

LEAST_RATE, MOST_RATE = 1e-200, 1e200
"""Rates beyond have reciprocals, products or sums that float64 does not hold."""
LARGEST_NUMBER = 2**53
"""Whole numbers beyond are not exact in float64, and overflow 64 bits where they are multiplied."""


def numbers(name: str, given: Any, allowed: str) -> np.ndarray:
    """Return a parameter as a vector of float64; one number makes a vector of length 1.

    Text, None and truth values are no numbers, whatever NumPy makes of them.

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
        if not _all_numbers(given):
            raise TypeError
        vector = np.atleast_1d(np.asarray(given, dtype=np.float64))
    except (TypeError, ValueError, OverflowError):
        raise ModelError(f"{name} is {shown(given)}; allowed are {allowed}.") from None
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
    check_magnitude(name, rates)
    return rates


def check_magnitude(name: str, rates: np.ndarray) -> None:
    """Raise `ModelError` where a rate is too small or too large to be reckoned with; zero is none of both."""
    bad = (rates != 0) & ((rates < LEAST_RATE) | (rates > MOST_RATE))
    if bad.any():
        raise ModelError(
            f"{name} has the value {rates[np.argmax(bad)]}; allowed are rates from {LEAST_RATE:g} to {MOST_RATE:g}."
        )


def number(given: Any) -> float:
    """Return one number as a float, NaN for anything else.

    Examples
    --------
    >>> number(2), number("2"), number(True), number([2])
    (2.0, nan, nan, nan)
    """
    try:
        return float(given) if _is_number(given) else float("nan")
    except OverflowError:  # of more than 308 digits
        return float("nan")


def positive_rate(name: str, given: Any) -> float:
    """Return a parameter as one positive, finite rate."""
    rate = number(given)
    if not (rate > 0 and np.isfinite(rate)):
        raise ModelError(f"{name} is {shown(given)}; allowed is a positive, finite rate.")
    check_magnitude(name, np.array([rate]))
    return rate


def choice(name: str, given: Any, choices: Sequence[str]) -> str:
    """Return a parameter that is one of a few words.

    Raises
    ------
    UnknownNameError
        If it is none of them.
    """
    if not isinstance(given, str) or given not in choices:
        raise unknown_name(f"value of {name}", given, choices)
    return given


def switch(name: str, given: Any) -> bool:
    """Return a parameter that is true or false."""
    if not isinstance(given, bool | np.bool_):
        raise ModelError(f"{name} is {shown(given)}; allowed are true and false.")
    return bool(given)


def each(name: str, given: Any, count: int, of: str) -> list[Any]:
    """Return a parameter as a list of as many values as there are things; one value stands for all of them.

    Examples
    --------
    >>> each("capacity", 5, 2, "the 2 servers"), each("capacity", [5, 6], 2, "the 2 servers")
    ([5, 5], [5, 6])
    """
    if not isinstance(given, list | tuple | range) and not (isinstance(given, np.ndarray) and given.ndim):
        return [given] * count
    if len(given) != count:
        raise ModelError(f"{name} has {len(given)} numbers; allowed is one, or one for each of {of}.")
    return list(given)


def whole_number(name: str, given: Any, least: int, most: int | None = None, why: str = "") -> int:
    """Return a parameter as a whole number in a range; True is none.

    Parameters
    ----------
    name, given
    least, most : int
        The range; up to `LARGEST_NUMBER` by default.
    why : str
        Added to the message, in parentheses.
    """
    is_whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
    largest = LARGEST_NUMBER if most is None else most
    if not is_whole or not least <= given <= largest:
        limits = f">= {least}" if most is None and not (is_whole and given > largest) else f"from {least} to {largest}"
        reason = f" ({why})" if why else ""
        raise ModelError(f"{name} is {shown(given)}; allowed is a whole number {limits}{reason}.")
    return int(given)


def _all_numbers(given: Any) -> bool:
    """Return whether there is nothing but numbers in a value or its lists; raises ValueError where rows differ in length."""
    kind = np.asarray(given).dtype.kind
    if kind != "O" and not isinstance(given, list | tuple):
        return kind in "iuf"
    return kind in "iufO" and all(_is_number(item) for item in np.asarray(given, dtype=object).ravel())


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers_module.Real) and not isinstance(value, bool | np.bool_)
