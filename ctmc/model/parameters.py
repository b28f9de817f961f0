"""Checks of what users give: numbers, words, switches, names and functions; one sentence for what is wrong."""

from __future__ import annotations

import numbers as kinds
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from ctmc.errors import CTMCError, ModelError, shown, unknown_name

LEAST_RATE, MOST_RATE = 1e-200, 1e200
"""Rates beyond have reciprocals, products or sums that float64 does not hold."""
LARGEST_EXACT = 2**53
"""Whole numbers beyond are not exact in float64, and overflow 64 bits where they are multiplied."""
LARGEST_COUNT = 2**63 - 1
"""The largest whole number that counts states, levels, or anything else that is held."""


def real_numbers(name: str, given: Any, allowed: str) -> np.ndarray:
    """Return numbers of any shape as an array of float64.

    NumPy alone would drop imaginary parts, uncover what is masked, and make numbers of text, times, records and None.

    Parameters
    ----------
    name : str
        Of the argument, the subject of the message.
    given
        What the user gave.
    allowed : str
        What is allowed, for the message: "allowed are ..".

    Raises
    ------
    ModelError
        If it is not made of real numbers and truth values alone.

    Examples
    --------
    >>> real_numbers("times", [1, 2.5], "numbers").tolist()
    [1.0, 2.5]
    """
    if isinstance(given, np.ndarray) and given.dtype == np.float64 and not np.ma.is_masked(given):
        return np.asarray(given)
    try:
        array = np.asarray(None if np.ma.is_masked(given) else given)
        real = array.dtype.kind in "biuf" or (
            array.dtype.kind == "O" and all(isinstance(item, kinds.Real | Decimal) for item in array.flat)
        )
        if real:
            return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ModelError(f"{name} is {shown(given)}; allowed are {allowed}.")


def real_matrix(name: str, given: Any) -> csr_array:
    """Return a dense or sparse matrix of real numbers as a copy in compressed rows, whose arrays may be written."""
    try:
        if issparse(given):
            if given.ndim == 2 and given.dtype.kind in "biuf":
                return csr_array(given, dtype=np.float64, copy=True)
        else:
            return csr_array(
                np.atleast_2d(real_numbers(name, given, "dense and sparse matrices of real numbers")), copy=True
            )
    except ValueError as error:
        if isinstance(error, ModelError):
            raise
    raise ModelError(f"{name} is {shown(given)}; allowed are dense and sparse matrices of real numbers.")


def real_number(name: str, given: Any, fits: Callable[[float], bool], allowed: str) -> float:
    """Return one number, neither text nor True, for which `fits` holds.

    Examples
    --------
    >>> real_number("discount", 2, lambda value: value > 0, "a positive number")
    2.0
    """
    if isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool):
        try:
            value = float(given)
        except OverflowError:
            value = float("nan")
        if fits(value):
            return value
    raise ModelError(f"{name} is {shown(given)}; allowed is {allowed}.")


def check_tolerance(given: Any) -> None:
    """Raise `ModelError` unless a tolerance is a number between 0 and 1."""
    real_number("tolerance", given, lambda value: 0 < value < 1, "a number between 0 and 1")


def check_truth(name: str, given: Any) -> None:
    """Raise `ModelError` unless something is true or false."""
    if not isinstance(given, bool | np.bool_):
        raise ModelError(f"{name} is {shown(given)}; allowed are True and False.")


def check_function(name: str, given: Any, what: str) -> None:
    """Raise `ModelError` unless something is None or can be called."""
    if given is not None and not callable(given):
        raise ModelError(f"{name} is {shown(given)}; allowed is {what}, or None.")


def check_chain(model: Any) -> None:
    """Raise `ModelError` unless a model has finitely many states."""
    if not hasattr(model, "row_slabs"):
        hint = ", such as queue.truncate(levels=..)" if hasattr(model, "truncate") else ""
        raise ModelError(f"model is a {type(model).__name__}; allowed is a Generator{hint}.")


def check_name(field: str, given: Any) -> None:
    """Raise `ModelError` unless something is a name: text that is not empty."""
    if not isinstance(given, str) or not given:
        raise ModelError(f"{field} is {shown(given)}; allowed is text.")


def checked_names(name: str, given: Any, what: str) -> tuple[str, ...]:
    """Return one or more names as a tuple; text is one name."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
    if not names or not all(isinstance(one, str) for one in names):
        raise ModelError(f"{name} is {shown(given)}; allowed is the name of a {what}, or several.")
    return names


def check_mapping(name: str, given: Any, what: str) -> None:
    """Raise `ModelError` unless something maps names to what is wanted."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ModelError(f"{name} is {shown(given)}; allowed is a mapping of names (text) to {what}.")


def check_known(kind: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UnknownNameError` for the first name that is not known."""
    known = set(known)
    for name in given:
        if name not in known:
            raise unknown_name(kind, name, known)


def called(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of the user's returns; what it raises becomes one sentence that names it."""
    try:
        return function(*arguments)
    except (CTMCError, MemoryError):
        raise
    except Exception as error:
        text = shown(error.args[0]) if len(error.args) == 1 else shown(error)
        raise ModelError(
            f"{what} raised {type(error).__name__} ({text}); allowed is a function that returns."
        ) from error


def numbers(name: str, given: Any, allowed: str) -> np.ndarray:
    """Return a parameter as a vector of float64; one number makes a vector of length 1, and true and false are none.

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
    vector = np.atleast_1d(real_numbers(name, given, allowed))
    if _has_switch(given):
        raise ModelError(f"{name} is {shown(given)}; allowed are {allowed}.")
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


def positive_rate(name: str, given: Any) -> float:
    """Return a parameter as one positive, finite rate."""
    rate = real_number(name, given, lambda value: 0 < value < np.inf, "a positive, finite rate")
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
        The range; up to `LARGEST_EXACT` by default.
    why : str
        Added to the message, in parentheses.
    """
    is_whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
    largest = LARGEST_EXACT if most is None else most
    if not is_whole or not least <= given <= largest:
        open_ended = most in (None, LARGEST_COUNT) and not (is_whole and given > largest)
        limits = f">= {least}" if open_ended else f"from {least} to {'2^63 - 1' if most == LARGEST_COUNT else largest}"
        reason = f" ({why})" if why else ""
        raise ModelError(f"{name} is {shown(given)}; allowed is a whole number {limits}{reason}.")
    return int(given)


def _has_switch(given: Any) -> bool:
    """Return whether there is a truth value in what was given, at any depth."""
    if isinstance(given, list | tuple):
        kinds_of_items = set(map(type, given))
        nested = kinds_of_items & {list, tuple, np.ndarray}
        return bool(kinds_of_items & {bool, np.bool_}) or (bool(nested) and any(map(_has_switch, given)))
    return isinstance(given, bool | np.bool_) or (isinstance(given, np.ndarray) and given.dtype.kind == "b")
