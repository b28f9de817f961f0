"""Fields of a manifest, with one sentence for what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctmc.errors import StorageError, printable


def field(manifest: Mapping[str, Any], name: str, *kinds: type) -> Any:
    """Return a field of one of these types (NoneType for an optional one).

    Raises
    ------
    StorageError
        If it is missing or of another type; True is no int.

    Examples
    --------
    >>> field({"total": 3}, "total", int, type(None))
    3
    """
    value = manifest.get(name)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        allowed = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in kinds)
        raise StorageError(f"its field {name!r} is {printable(repr(value))[:60]}; allowed is {allowed}")
    return value


def fields(manifest: Mapping[str, Any], name: str, *kinds: type) -> list[Any]:
    """Return a field that is a list of values of these types."""
    values = field(manifest, name, list)
    for number, value in enumerate(values):
        field({f"{name}[{number}]": value}, f"{name}[{number}]", *kinds)
    return list(values)
