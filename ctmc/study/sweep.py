"""Sweeps: which values a model's parameters take in turn, counted before any of them exists."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ctmc import errors
from ctmc.errors import ModelError, printable

MAXIMUM_POINTS = 10_000
"""Most models that the sweep of one model, and a whole study, may make."""

_NUMBER = (
    r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?\s*"  # larger powers of ten are no rates, but a lot of digits
)
_RANGE = re.compile(f"{_NUMBER}:{_NUMBER}:{_NUMBER}")

Values = tuple[Fraction, Fraction, int] | list[Any]
"""Begin, step and number of a range; or the values themselves."""


def read_values(given: Any) -> Values:
    """Return the values of one parameter: a list, or text ``begin:end:step``, the end included; nothing is listed yet.

    Raises
    ------
    ModelError
        If it is neither.

    Examples
    --------
    >>> list(listed(read_values("0.1:0.5:0.1"))), count(read_values("0:1e12:1"))
    ([0.1, 0.2, 0.3, 0.4, 0.5], 1000000000001)
    """
    if isinstance(given, list) and given:
        return given
    problem = ModelError(
        f"is {errors.shown(given)}; allowed is a list of values, or a range such as '0.1:2.0:0.1' (begin, end, step)."
    )
    if not isinstance(given, str) or len(given) > 100 or _RANGE.fullmatch(given) is None:
        raise problem
    begin, end, step = (Fraction(part.strip()) for part in given.split(":"))  # exact: 0.1 + 2 * 0.1 is 0.3 here
    if step <= 0 or begin > end:
        raise problem
    return begin, step, int((end - begin) // step) + 1


def count(values: Values) -> int:
    """Return the number of values."""
    return values[2] if isinstance(values, tuple) else len(values)


def listed(values: Values) -> Iterator[Any]:
    """Yield the values; whole numbers of a range of whole numbers as such."""
    if not isinstance(values, tuple):
        yield from values
        return
    begin, step, number = values
    whole = begin.denominator == step.denominator == 1
    for k in range(number):
        value = begin + k * step
        yield int(value) if whole else float(value)


def read_together(given: Any, sweep: Mapping[str, Values]) -> tuple[tuple[str, ...], ...]:
    """Return which parameters of a sweep advance together, from a list of lists of names.

    Raises
    ------
    ModelError
        If it is something else, names what is not swept, names a parameter twice, or parameters with unequally many values.

    Examples
    --------
    >>> read_together([["a", "b"]], {"a": [1, 2], "b": [5, 6], "c": [0, 1]})
    (('a', 'b'),)
    """
    groups: list[Any] = given if isinstance(given, list) else [None]
    if not all(
        isinstance(names, list) and len(names) > 1 and all(isinstance(x, str) for x in names) for names in groups
    ):
        raise ModelError(
            f"is {errors.shown(given)}; allowed is a list of lists of two or more swept parameters, such as "
            "[['arrival_rate', 'capacity']]."
        )
    seen: set[str] = set()
    for names in groups:
        for name in names:
            if name not in sweep:
                raise ModelError(
                    f"names {printable(name)!r}, which is not swept; allowed are {printable(', '.join(sweep))}."
                )
            if name in seen:
                raise ModelError(f"names {printable(name)!r} twice; allowed is once.")
            seen.add(name)
        if len({count(sweep[name]) for name in names}) > 1:
            counts = " and ".join(f"{count(sweep[name]):,} of {printable(name)}" for name in names)
            raise ModelError(f"has {counts}; parameters that advance together have equally many values.")
    return tuple(map(tuple, groups))


def _blocks(sweep: Mapping[str, Values], together: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return what advances by itself: groups of parameters, each where its first one stands in the sweep."""
    group_of = {name: tuple(names) for names in together for name in names}
    return list(dict.fromkeys(group_of.get(name, (name,)) for name in sweep))


def total(sweep: Mapping[str, Values], together: Sequence[Sequence[str]] = ()) -> int:
    """Return the number of points."""
    return math.prod(count(sweep[names[0]]) for names in _blocks(sweep, together))


def points(sweep: Mapping[str, Values], together: Sequence[Sequence[str]] = ()) -> Iterator[dict[str, Any]]:
    """Yield all combinations, the last parameter fastest; parameters that advance together count as one.

    Examples
    --------
    >>> list(points({"a": [1, 2], "b": [5]}))
    [{'a': 1, 'b': 5}, {'a': 2, 'b': 5}]
    >>> list(points({"a": [1, 2], "b": [5, 6]}, [["a", "b"]]))
    [{'a': 1, 'b': 5}, {'a': 2, 'b': 6}]
    """
    blocks = _blocks(sweep, together)
    steps = [list(zip(*(list(listed(sweep[name])) for name in names), strict=True)) for names in blocks]
    for chosen in itertools.product(*steps):
        values = {
            name: value
            for names, step in zip(blocks, chosen, strict=True)
            for name, value in zip(names, step, strict=True)
        }
        yield {name: values[name] for name in sweep}


def shown(value: Any) -> str:
    """Return a parameter's value as it stands in tables and names.

    Examples
    --------
    >>> shown([1, 2, 8]), shown(0.30000000000000004), shown("tandem")
    ('1,2,8', '0.3', 'tandem')
    """
    if isinstance(value, list | tuple):
        return (";" if any(isinstance(item, list | tuple) for item in value) else ",").join(map(shown, value))
    return f"{value:.10g}" if isinstance(value, float) else printable(value)
