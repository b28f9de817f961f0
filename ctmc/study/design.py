"""What can be optimised: a parameter of a builder whose values are vectors of whole numbers.

A builder offers designs by its attribute ``designs``, a mapping of names to functions ``(parameters, maximum) -> Design``;
``parameters`` are those that are given, `maximum` is the largest number wanted, or None.  ``--over NAME`` asks for one.
A parameter that takes one whole number needs no design: ``--over NAME=1:3`` is a range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ctmc import registry
from ctmc.errors import ModelError, printable, unknown_name
from ctmc.study.parameters import fits

Point = tuple[int, ...]
_RANGE = re.compile(r"\s*(\w+)\s*=\s*(-?\d{1,9})\s*:\s*(-?\d{1,9})\s*")


@dataclass(frozen=True, kw_only=True)
class Design:
    """The values that a search may give to a parameter: vectors x of whole numbers, lower <= x <= upper.

    Attributes
    ----------
    parameter : str
        Of the builder.
    lower, upper : tuple of int
        Limits of each component.
    ordered : bool
        Whether components must never decrease; the limits must not either.
    scalar : bool
        Whether the parameter takes the one component itself and not a vector.
    bounds : callable, optional
        ``bounds(x)`` returns numbers that measures of the model cannot fall below, by the name of the measure; all
        must be valid lower bounds, proved, since a search passes over what they rule out.

    Examples
    --------
    >>> design = Design(parameter="thresholds", lower=(1, 1, 1), upper=(1, 3, 3), ordered=True)
    >>> design.count, list(design.points())[:4]
    (6, [(1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 2, 2)])
    """

    parameter: str
    lower: Point
    upper: Point
    ordered: bool = False
    scalar: bool = False
    bounds: Callable[[Point], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        if not self.lower or len(self.lower) != len(self.upper):
            raise ModelError(
                f"a design of {self.parameter} has limits {self.lower} and {self.upper} of unlike lengths."
            )
        if any(low > high for low, high in zip(self.lower, self.upper, strict=True)):
            raise ModelError(
                f"the range of {self.parameter} begins at {self.lower} and ends at {self.upper}; allowed is an end that is "
                "not below the beginning."
            )

    @property
    def count(self) -> int:
        """Number of points, found without listing them."""
        if not self.ordered:
            return math.prod(high - low + 1 for low, high in zip(self.lower, self.upper, strict=True))
        first, last = min(self.lower), max(self.upper)
        free = [k for k, (low, high) in enumerate(zip(self.lower, self.upper, strict=True)) if low < high]
        if all((self.lower[k], self.upper[k]) == (first, last) for k in free) and free == list(
            range(len(self.lower) - len(free), len(self.lower))
        ):
            return math.comb(last - first + len(free), len(free))
        # ways[v - first]: points of the components so far that end in v
        ways = [int(self.lower[0] <= value <= self.upper[0]) for value in range(first, last + 1)]
        for low, high in zip(self.lower[1:], self.upper[1:], strict=True):
            total, new = 0, []
            for value, way in zip(range(first, last + 1), ways, strict=True):
                total += way
                new.append(total if low <= value <= high else 0)
            ways = new
        return sum(ways)

    def points(self) -> Iterator[Point]:
        """Yield all points, the last component fastest."""

        def after(prefix: Point) -> Iterator[Point]:
            k = len(prefix)
            if k == len(self.lower):
                yield prefix
                return
            begin = max(self.lower[k], prefix[-1]) if self.ordered and prefix else self.lower[k]
            for value in range(begin, self.upper[k] + 1):
                yield from after((*prefix, value))

        return after(())

    def moved(self, point: Point, begin: int, end: int, step: int) -> Point:
        """Return a point with components begin .. end - 1 moved, cut at the limits; where order asks, the others follow."""
        moved = [
            min(max(value + step * (begin <= k < end), low), high)
            for k, (value, low, high) in enumerate(zip(point, self.lower, self.upper, strict=True))
        ]
        if self.ordered:
            for k in range(end, len(moved)):
                moved[k] = max(moved[k], moved[k - 1])
            for k in range(begin - 1, -1, -1):
                moved[k] = min(moved[k], moved[k + 1])
        inside = all(low <= value <= high for value, low, high in zip(moved, self.lower, self.upper, strict=True))
        return tuple(moved) if inside else point

    def value(self, point: Point) -> Any:
        """Return what the builder's parameter takes."""
        return point[0] if self.scalar else list(point)


def design_for(builder: str, parameters: Mapping[str, Any], over: str, maximum: int | None = None) -> Design:
    """Return the design that a text such as ``thresholds`` or ``choices=1:3`` names.

    Raises
    ------
    UnknownNameError, ModelError
        If the builder has no such design or parameter, the parameter does not take a whole number, or it is given already.

    Examples
    --------
    >>> queue = {"service_rates": [5, 2, 1], "arrival_rate": 1, "tasks": 3}
    >>> design_for("fork_join", queue, "thresholds", 12).count
    78
    >>> design_for("fork_join", queue, "tasks=1:3").count
    Traceback (most recent call last):
    ctmc.errors.ModelError: tasks is given and is to be optimised; allowed is one of both.
    """
    signature = registry.builder_parameters(builder).parameters
    match = _RANGE.fullmatch(over)
    designs = registry.builder_designs(builder)
    if match is not None:
        name = match[1]
        if name not in signature:
            raise unknown_name(f"parameter of {builder}", name, signature)
        if not fits(1, signature[name].annotation):
            raise ModelError(
                f"{name} of {builder} does not take one whole number; allowed in a range are those that do."
            )
        if maximum is not None:
            raise ModelError(
                f"maximum is {maximum}, but the range {printable(over)} has its own end; allowed is one of both."
            )
        design = Design(parameter=name, lower=(int(match[2]),), upper=(int(match[3]),), scalar=True)
    elif over in designs:
        design = designs[over](dict(parameters), maximum)
    else:
        raise unknown_name(f"design of {builder}", over, [*designs, "PARAMETER=BEGIN:END"])
    if design.parameter in parameters:
        raise ModelError(f"{design.parameter} is given and is to be optimised; allowed is one of both.")
    return design
