"""Values of builders' parameters and solvers' options: read from text, and compared with the annotation they must fit."""

from __future__ import annotations

import collections.abc
import inspect
import math
import re
import types
import typing
from fractions import Fraction
from typing import Any

from ctmc.errors import ModelError, shown

_SEQUENCES = (list, tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_CODE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def alternatives(annotation: Any) -> list[Any]:
    """Return the types that a union allows, one for anything else.

    Examples
    --------
    >>> alternatives(int | str | None)
    [<class 'int'>, <class 'str'>, <class 'NoneType'>]
    """
    if annotation is inspect.Parameter.empty:
        return [Any]
    if annotation is None:
        return [type(None)]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in alternatives(part)]
    if typing.get_origin(annotation) is typing.Annotated:
        return alternatives(typing.get_args(annotation)[0])
    return [annotation]


def is_sequence(kind: Any) -> bool:
    """Return whether one alternative stands for several values."""
    origin = typing.get_origin(kind) or kind
    return origin in _SEQUENCES or getattr(origin, "__name__", "") == "ndarray"


def item_of(kind: Any) -> Any:
    """Return the annotation of the items of a sequence."""
    arguments = [argument for argument in typing.get_args(kind) if argument is not Ellipsis]
    if not arguments or getattr(typing.get_origin(kind) or kind, "__name__", "") == "ndarray":
        return int | float
    return typing.Union[tuple(arguments)]  # noqa: UP007  # of a number of types that is known only here


def is_switch(annotation: Any) -> bool:
    """Return whether a parameter is true or false and nothing else."""
    return alternatives(annotation) == [bool]


def describe(annotation: Any) -> str:
    """Return how a value is written on the command line.

    Examples
    --------
    >>> describe(int | collections.abc.Sequence[int] | None)
    'INT or INT,..'
    """
    return " or ".join(dict.fromkeys(word for kind in alternatives(annotation) if (word := _describe_one(kind))))


def _describe_one(kind: Any) -> str:
    if kind is type(None):
        return ""
    if is_sequence(kind):
        items = [part for part in alternatives(item_of(kind)) if part is not type(None)]
        if any(map(is_sequence, items)):
            return f"{describe(item_of(next(filter(is_sequence, items))))},..;.."
        return f"{describe(item_of(kind)).replace(' or ', '|')},.."
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(map(str, typing.get_args(kind)))
    names = {bool: "true|false", int: "INT", float: "FLOAT", str: "NAME"}
    if kind in names:
        return names[kind]
    return "MODULE:FUNCTION" if _is_callable(kind) else "VALUE"


def from_text(name: str, text: str, annotation: Any) -> Any:
    """Return the value of a parameter that is given as text.

    Parameters
    ----------
    name : str
        Of the parameter, for the message.
    text : str
        Numbers as Python writes them, or as a fraction such as 1/3; items separated by commas, rows by semicolons.
    annotation : type
        What the parameter takes.

    Returns
    -------
    bool, int, float, str, None, or a list of them

    Raises
    ------
    ModelError
        If the text does not fit.

    Examples
    --------
    >>> from_text("weights", "1/4,0.75", collections.abc.Sequence[float])
    [0.25, 0.75]
    >>> from_text("capacity", "9", int | collections.abc.Sequence[int])
    9
    """
    kinds = alternatives(annotation)
    text = text.strip()
    if type(None) in kinds and text.lower() == "none":
        return None
    sequences = [kind for kind in kinds if is_sequence(kind)]
    scalars = [kind for kind in kinds if kind not in sequences and kind is not type(None)]
    unknown = [kind for kind in scalars if _is_unknown(kind)]
    if (sequences and not scalars) or (("," in text or ";" in text) and (sequences or unknown)):
        item = item_of(sequences[0]) if sequences else Any
        nested = [kind for kind in alternatives(item) if is_sequence(kind)]
        separator = ";" if ";" in text or (nested and "," not in text) else ","
        parts = text.rstrip(separator).split(separator) if text else []
        return [from_text(name, part, item) for part in parts]
    choices = [
        value for kind in scalars if typing.get_origin(kind) is typing.Literal for value in typing.get_args(kind)
    ]
    for choice in choices:
        if text == str(choice):
            return choice
    if (bool in scalars or unknown) and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if int in scalars or float in scalars or unknown:
        number = _number(text)
        if number is not None and (float in scalars or unknown or isinstance(number, int)):
            return number if int in scalars or unknown else _as_float(number)
    if unknown or str in scalars or any(map(_is_callable, scalars)):
        return text
    raise ModelError(f"{name} is {shown(text)}; allowed is {describe(annotation)}.")


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    try:
        return float(Fraction(text)) if len(text) < 100 else None
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


def _as_float(number: int | float) -> int | float:
    """Return a whole number as it is, infinity where it is too large for a float."""
    try:
        float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    return number


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value from a study file has a type that the annotation allows; types unknown here take any.

    Examples
    --------
    >>> fits([1, 2], collections.abc.Sequence[float]), fits("nine", int | None), fits(True, float)
    (True, False, False)
    """
    return any(_fits_one(value, kind) for kind in alternatives(annotation))


def _fits_one(value: Any, kind: Any) -> bool:
    if kind is type(None):
        return value is None
    if is_sequence(kind):
        return isinstance(value, list | tuple) and all(fits(item, item_of(kind)) for item in value)
    if typing.get_origin(kind) is typing.Literal:
        return any(type(value) is type(choice) and value == choice for choice in typing.get_args(kind))
    if kind in (int, float):
        number = isinstance(value, int | kind) and not isinstance(value, bool)
        return number and (kind is int or not isinstance(value, int) or math.isfinite(_as_float(value)))
    if kind in (bool, str):
        return isinstance(value, kind)
    if (typing.get_origin(kind) or kind) in (dict, collections.abc.Mapping):
        return isinstance(value, dict)
    return isinstance(value, str) if _is_callable(kind) else True


def _is_callable(kind: Any) -> bool:
    return (typing.get_origin(kind) or kind) is collections.abc.Callable or kind is typing.Callable


def _is_unknown(kind: Any) -> bool:
    return not (
        kind in (bool, int, float, str, type(None))
        or is_sequence(kind)
        or typing.get_origin(kind) is typing.Literal
        or _is_callable(kind)
    )


def names_code(value: Any) -> str | None:
    """Return the first ``module:function`` in a value, or None.

    Examples
    --------
    >>> names_code(["shortest", "my.rules:by_age"])
    'my.rules:by_age'
    """
    if isinstance(value, str):
        return value if _CODE.fullmatch(value) else None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next(filter(None, map(names_code, items)), None)


def option_annotations(kind: type) -> dict[str, Any]:
    """Return the annotation of each option of a solver class; `Any` where it cannot be evaluated."""
    import dataclasses

    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError, AttributeError):
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(kind)}
