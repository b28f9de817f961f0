"""How much memory may be taken, and the check that comes before anything large is allocated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ctmc.errors import MemoryLimitError, ModelError, shown

_limit: ContextVar[int | None] = ContextVar("memory_limit", default=None)
_held: ContextVar[int] = ContextVar("held", default=0)
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}


def memory_limit() -> int:
    """Return the limit in bytes: what `limited_memory` set, else 80 % of what is free now."""
    limit = _limit.get()
    if limit is None:
        import psutil

        return int(0.8 * psutil.virtual_memory().available)
    return max(limit - _held.get(), 0)


def given_limit() -> int | None:
    """Return the limit in bytes that `limited_memory` set, None where it set none."""
    return _limit.get()


@contextmanager
def limited_memory(limit: int | str | None) -> Iterator[None]:
    """Set the memory limit inside a ``with`` block; None leaves it as it is.

    Examples
    --------
    >>> with limited_memory("400MiB"):
    ...     memory_limit()
    419430400
    """
    token = _limit.set(_limit.get() if limit is None else parse_size(limit))
    try:
        yield
    finally:
        _limit.reset(token)


@contextmanager
def holding(size: int) -> Iterator[None]:
    """Take what is held already from a limit that was set, inside a ``with`` block; what is free now goes without it anyhow.

    Examples
    --------
    >>> with limited_memory("400MiB"), holding(300 * 1024**2):
    ...     memory_limit()
    104857600
    """
    token = _held.set(_held.get() + size)
    try:
        yield
    finally:
        _held.reset(token)


def parse_size(text: int | str, field: str = "memory limit") -> int:
    """Return a number of bytes from 4096, '400MiB', '2GiB' or '1.5GB'; messages name the field.

    Examples
    --------
    >>> parse_size("1.5GB"), parse_size("2KiB")
    (1500000000, 2048)
    """
    given = shown(text).strip("'") if isinstance(text, str | int) and not isinstance(text, bool) else ""
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]*)?)\s*([a-zA-Z]*)\s*", given)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise ModelError(f"{field} is {shown(text)}; allowed is a positive size such as 400MiB, 2GiB or 1.5GB.")
    return int(float(match[1]) * unit)


def format_size(size: float) -> str:
    """Return a size in bytes as people read it.

    Examples
    --------
    >>> format_size(445_000_000), format_size(512)
    ('424.4 MiB', '512 B')
    """
    size = min(size, 2**1000)  # what a float can hold
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.4g} {unit}"


def require_memory(what: str, size: int, *, states: int | None = None, entries: int | None = None) -> None:
    """Raise `MemoryLimitError` when `size` bytes are more than the memory limit; call it before allocating.

    Parameters
    ----------
    what : str
        What needs the memory, the subject of the sentence.
    size : int
        Bytes needed at the peak.
    states, entries : int, optional
        Number of states and of transitions, for the message.
    """
    limit = memory_limit()
    if size > limit:
        held = _held.get() if _limit.get() is not None else 0
        beside = f", of which the model holds {format_size(held)}" if held else ""
        counts = ", ".join(
            f"{count:,} {name}" if count < 10**30 else f"about 10^{round(math.log10(count))} {name}"
            for count, name in ((states, "states"), (entries, "transitions"))
            if count is not None
        )
        raise MemoryLimitError(
            f"{what} needs {format_size(size)}{' (' + counts + ')' if counts else ''}, more than the memory limit of "
            f"{format_size(_limit.get() or limit)}{beside}; make the model smaller or raise --memory-limit."
        )
