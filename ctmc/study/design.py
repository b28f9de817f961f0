"""What can be optimised: a parameter of a builder whose values are vectors of whole numbers, or a few that are listed.

A builder offers designs by its attribute ``designs``, a mapping of names to functions ``(parameters, maximum)``, which return a
`Design` or, of real numbers, a `ctmc.study.continuous.ContinuousDesign`; ``parameters`` are those that are given, `maximum` is
the largest number wanted, or None.  ``--over NAME`` asks for one.  A function that has a third parameter ``total_rate`` takes the
one that is asked for.  A parameter that takes one value needs no design: ``--over NAME=1:3`` is a range, ``--over NAME=a,b`` a list.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ctmc import registry
from ctmc.errors import ModelError, printable, shown, unknown_name
from ctmc.study.continuous import ContinuousDesign, Cube
from ctmc.study.parameters import alternatives, fits, from_text, is_sequence

Point = tuple[int, ...]
_LIST = re.compile(r"\s*(\w+)\s*=(.*,.*)")
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
    values : tuple, optional
        What the parameter takes, where the one component of a point only counts it.
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
    values: tuple[Any, ...] | None = None
    bounds: Callable[[Point], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        if not self.lower or len(self.lower) != len(self.upper):
            raise ModelError(
                f"a design of {self.parameter} has limits {self.lower} and {self.upper} of unlike lengths."
            )
        if any(low > high for low, high in zip(self.lower, self.upper, strict=True)):
            lower, upper = (",".join(map(str, limits)) for limits in (self.lower, self.upper))
            raise ModelError(
                f"the range of {self.parameter} begins at {lower} and ends at {upper}; allowed is an end that is "
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
        if self.values is not None:
            return self.values[point[0]]
        return point[0] if self.scalar else list(point)


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """All combinations of the points of some designs, times a unit cube for those of real numbers.

    Attributes
    ----------
    discrete : tuple of Design
    continuous : tuple of ContinuousDesign

    Examples
    --------
    >>> first = Design(parameter="choices", lower=(1,), upper=(3,), scalar=True)
    >>> second = Design(parameter="ties", lower=(0,), upper=(1,), scalar=True, values=("random", "fastest"))
    >>> space = SearchSpace(discrete=(first, second), continuous=())
    >>> space.count, space.values((2, 1))
    (6, {'choices': 2, 'ties': 'fastest'})
    """

    discrete: tuple[Design, ...]
    continuous: tuple[ContinuousDesign, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters that change."""
        return (*(one.parameter for one in self.discrete), *(one.parameter for one in self.continuous))

    @property
    def count(self) -> int:
        """Number of combinations of the discrete designs."""
        return math.prod(design.count for design in self.discrete)

    @property
    def dimension(self) -> int:
        """Dimension of the cube."""
        return sum(design.dimension for design in self.continuous)

    def points(self) -> Iterator[Point]:
        """Yield all combinations, each as one tuple, the last component fastest."""
        for parts in itertools.product(*(design.points() for design in self.discrete)):
            yield tuple(itertools.chain.from_iterable(parts))

    def starts(self) -> list[Cube]:
        """Return where the search of the cube begins: the first start of every design, then the others, one design at a time."""
        first = [design.starts[0] for design in self.continuous]
        found = [tuple(itertools.chain.from_iterable(first))]
        for k, design in enumerate(self.continuous):
            for start in design.starts[1:]:
                parts = [*first[:k], start, *first[k + 1 :]]
                found.append(tuple(itertools.chain.from_iterable(parts)))  # reads better than two loops in one
        return found

    def values(self, point: Point, cube: Sequence[float] = ()) -> dict[str, Any]:
        """Return the parameters of the builder that a point of both stands for, those included that a design implies."""
        found: dict[str, Any] = {}
        for continuous in self.continuous:
            found |= continuous.implied
        begin = 0
        for design in self.discrete:
            end = begin + len(design.lower)
            found[design.parameter] = design.value(point[begin:end])
            begin = end
        begin = 0
        for continuous in self.continuous:
            end = begin + continuous.dimension
            found[continuous.parameter] = continuous.value(cube[begin:end])
            begin = end
        return found

    @property
    def coordinates(self) -> list[tuple[str, int]]:
        """Parameter and component that each coordinate of the cube moves."""
        return [(design.parameter, k) for design in self.continuous for k in range(design.dimension)]


def space_for(
    builder: str,
    parameters: Mapping[str, Any],
    over: Sequence[str],
    maximum: int | None = None,
    total_rate: float | None = None,
) -> SearchSpace:
    """Return the designs that several texts name, together; raises as `design_for` does, and where two change one parameter."""
    if not over:
        raise ModelError("over is empty; allowed are one or more designs.")
    designs = [any_design(builder, parameters, text, maximum, total_rate) for text in over]
    names = [design.parameter for design in designs]
    for name in names:
        if names.count(name) > 1:
            raise ModelError(f"{name} is to be optimised twice; allowed is once.")
    functions = [registry.builder_designs(builder).get(text) for text in over]
    if total_rate is not None and not any(function and _takes_total(function) for function in functions):
        raise ModelError(f"total_rate is {total_rate!r}, but no design that is searched takes it.")
    return SearchSpace(
        discrete=tuple(design for design in designs if isinstance(design, Design)),
        continuous=tuple(design for design in designs if isinstance(design, ContinuousDesign)),
    )


def _takes_total(function: Callable[..., Any]) -> bool:
    return "total_rate" in inspect.signature(function).parameters


def design_for(builder: str, parameters: Mapping[str, Any], over: str, maximum: int | None = None) -> Design:
    """Return the design of whole numbers that a text such as ``thresholds`` or ``choices=1:3`` names.

    Raises
    ------
    UnknownNameError, ModelError
        If the builder has no such design or parameter, the parameter does not take such values, or it is given already.

    Examples
    --------
    >>> queue = {"service_rates": [5, 2, 1], "arrival_rate": 1, "tasks": 3}
    >>> design_for("fork_join", queue, "thresholds", 12).count
    78
    >>> design_for("fork_join", queue, "tasks=1:3").count
    Traceback (most recent call last):
    ctmc.errors.ModelError: tasks is given and is to be optimised; allowed is one of both.
    """
    design = any_design(builder, parameters, over, maximum)
    if isinstance(design, ContinuousDesign):
        raise ModelError(
            f"the values of {printable(over)} are real numbers; allowed here are designs of whole numbers."
        )
    return design


def any_design(
    builder: str,
    parameters: Mapping[str, Any],
    over: str,
    maximum: int | None = None,
    total_rate: float | None = None,
) -> Design | ContinuousDesign:
    """Return the design that a text names; what is given for one of real numbers is where its search begins."""
    signature = registry.builder_parameters(builder).parameters
    match, listed = _RANGE.fullmatch(over), _LIST.fullmatch(over)
    designs = registry.builder_designs(builder)
    if match is not None or listed is not None:
        name = (match or listed)[1]  # type: ignore[index]  # one of them is none
        if name not in signature:
            raise unknown_name(f"parameter of {builder}", name, signature)
        if maximum is not None:
            raise ModelError(
                f"maximum is {maximum}, but the range {printable(over)} has its own end; allowed is one of both."
            )
        if match is not None:
            if not fits(1, signature[name].annotation):
                raise ModelError(
                    f"{name} of {builder} does not take one whole number; allowed in a range are those that do."
                )
            design: Any = Design(parameter=name, lower=(int(match[2]),), upper=(int(match[3]),), scalar=True)
        else:
            design = _listed(builder, name, over.partition("=")[2], signature[name].annotation)
    elif over in designs:
        more = {} if total_rate is None or not _takes_total(designs[over]) else {"total_rate": total_rate}
        design = designs[over](dict(parameters), maximum, **more)
    else:
        raise unknown_name(f"design of {builder}", over, [*designs, "PARAMETER=BEGIN:END", "PARAMETER=VALUE,VALUE"])
    if isinstance(design, Design) and design.parameter in parameters:
        raise ModelError(f"{design.parameter} is given and is to be optimised; allowed is one of both.")
    return design  # type: ignore[no-any-return]  # a plug-in's is trusted


def _listed(builder: str, name: str, text: str, annotation: Any) -> Design:
    single = [kind for kind in alternatives(annotation) if not is_sequence(kind) and kind is not type(None)]
    if not single:
        raise ModelError(f"{name} of {builder} takes several values; allowed in a list are parameters that take one.")
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or len(set(parts)) < len(parts):
        raise ModelError(f"the list of {name} is {shown(text)}; allowed are different values with commas between.")
    values = tuple(from_text(name, part, annotation) for part in parts)
    return Design(parameter=name, lower=(0,), upper=(len(values) - 1,), scalar=True, values=values)
