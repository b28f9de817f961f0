"""Designs whose values are real numbers: a point of the unit cube stands for a value of a builder's parameter.

Beside whole numbers (`ctmc.study.design`) a builder offers such designs by its attribute ``designs``, and says by two more what
it knows of them: ``ordering``, a function of the parameters that returns an `Ordering`, and ``yardstick``, a `Yardstick`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctmc.errors import ModelError

Cube = tuple[float, ...]
EXACT = 1e-9
"""Selection values closer than this, relatively, tie; the rules that builders apply have the same tolerance."""


@dataclass(frozen=True, kw_only=True)
class ContinuousDesign:
    """The values that a search may give to a parameter, as the image of a unit cube.

    Attributes
    ----------
    parameter : str
        Of the builder.
    dimension : int
        Of the cube.
    value : callable
        ``value(u)`` of a point of the cube is what the parameter takes, a list of numbers, whose component k grows with u[k].
    starts : tuple of points
        Where the search looks first, the value that is given among them.
    implied : mapping
        What other parameters are where they are not given.

    Examples
    --------
    >>> design = simplex_design("weights", 3, given=[0.5, 0.3, 0.2])
    >>> design.dimension, [round(part, 12) for part in design.value(design.starts[0])]
    (2, [0.5, 0.3, 0.2])
    """

    parameter: str
    dimension: int
    value: Callable[[Sequence[float]], list[float]]
    starts: tuple[Cube, ...]
    implied: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """Which server a job prefers where: all that some parameters of a model have a say in.

    Attributes
    ----------
    key : bytes
        Equal for parameters that lead to the same decisions everywhere.
    values : tuple of ndarray
        Selection value of each server at each queue length; equal ones tie.
    covers : tuple of str
        The parameters whose whole influence on the transitions is the key.
    """

    key: bytes
    values: tuple[np.ndarray, ...]
    covers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """Rewards that judge states by parameters which a design may change.

    Attributes
    ----------
    rewards : tuple of str
    parameter : str
        Of the builder: by what they measure; where it is not given, by the model's own rule.
    moved_by : tuple of str
        The parameters that change them.
    rates : str
        That of `moved_by` whose value for the candidate may be wanted.
    """

    rewards: tuple[str, ...]
    parameter: str
    moved_by: tuple[str, ...]
    rates: str


@dataclass(frozen=True, kw_only=True)
class Tie:
    """Two servers that a job values alike.

    Attributes
    ----------
    first, second : (int, int)
        Server and its queue length.
    difference : float
        Of the selection values, relative to the larger.
    exact : bool
        Whether they count as equal; else they are close.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    difference: float
    exact: bool

    def __str__(self) -> str:
        (server, jobs), (other, others) = self.first, self.second
        near = "" if self.exact else f" (to {self.difference:.1e})"
        return f"({server}, {jobs}) ~ ({other}, {others}){near}"


def ties_of(values: Sequence[np.ndarray], within: float) -> list[Tie]:
    """Return the pairs of different servers, with queue lengths, whose selection values differ by at most `within`, relatively.

    Examples
    --------
    >>> [str(tie) for tie in ties_of([np.array([0.0, 2.0]), np.array([1.0, 2.0, 3.0])], 0.1)]
    ['(0, 1) ~ (1, 1)']
    """
    flat = np.concatenate(list(values))
    places = [(server, jobs) for server, part in enumerate(values) for jobs in range(len(part))]
    order = np.argsort(flat, kind="stable")
    found = []
    for rank, here in enumerate(order):
        for there in order[rank + 1 :]:
            largest = max(abs(flat[here]), abs(flat[there]))
            difference = float(abs(flat[there] - flat[here]) / largest) if largest else 0.0
            if difference > within:
                break
            if places[here][0] != places[there][0]:
                first, second = sorted((places[here], places[there]))
                found.append(Tie(first=first, second=second, difference=difference, exact=difference <= EXACT))
    return sorted(found, key=lambda tie: (tie.difference > EXACT, tie.first, tie.second))


def simplex_design(
    parameter: str,
    size: int,
    *,
    total: float = 1.0,
    least: float = 0.0,
    given: Sequence[float] | None = None,
    others: Sequence[Sequence[float]] = (),
    implied: Mapping[str, Any] | None = None,
) -> ContinuousDesign:
    """Return the design of `size` numbers >= least x total that sum to a total.

    Parameters
    ----------
    parameter : str
    size : int
        2 and more.
    total : float
    least : float
        Smallest share of the total.
    given : sequence of float, optional
        Where the search begins; default equal numbers.
    others : sequence of such
        Where it looks next.
    implied : mapping, optional

    Raises
    ------
    ModelError
        If there is only one number.
    """
    if size < 2:
        raise ModelError(f"{parameter} has one number, which its sum fixes; allowed are models with two and more.")

    def value(point: Sequence[float]) -> list[float]:
        return [total * (least + (1 - size * least) * part) for part in simplex_point(point)]

    def place(numbers: Sequence[float]) -> Cube:
        shares = np.maximum(np.asarray(numbers, dtype=np.float64) / math.fsum(numbers) - least, 0)
        return simplex_coordinates(shares / shares.sum())

    first = [1 / size] * size if given is None else list(given)
    starts = tuple(dict.fromkeys(place(numbers) for numbers in (first, *others, [1 / size] * size)))
    return ContinuousDesign(
        parameter=parameter, dimension=size - 1, value=value, starts=starts, implied=dict(implied or {})
    )


def simplex_point(point: Sequence[float]) -> list[float]:
    """Return the numbers >= 0 with sum 1 that a point of the unit cube stands for, by breaking a stick.

    Of what is left before the k-th of m numbers it takes the part 1 - (1 - u_k)^(1 / (m - k)), k = 1, 2, ..: the beta
    distribution that makes a uniform point of the cube a uniform point of the simplex, so that equal parts of the cube are equal
    parts of the simplex (L. Devroye, Non-Uniform Random Variate Generation, 1986, chapter V).  The k-th number grows with
    u_k, those behind it keep their proportions.

    Examples
    --------
    >>> simplex_point([0.75, 0.5])
    [0.5, 0.25, 0.25]
    """
    left, parts = 1.0, []
    for k, u in enumerate(point):
        exponent = 1 / (len(point) - k)
        stays = (1 - u) ** exponent
        taken = -math.expm1(exponent * math.log1p(-u)) if u < 1 else 1.0
        parts.append(left * taken)
        left *= stays
    return [*parts, left]


def simplex_coordinates(parts: Sequence[float]) -> Cube:
    """Return the point of the unit cube that stands for numbers >= 0 with sum 1; the inverse of `simplex_point`.

    Examples
    --------
    >>> simplex_coordinates([0.5, 0.25, 0.25])
    (0.75, 0.5)
    """
    point = []
    for k in range(len(parts) - 1):
        left = math.fsum(parts[k:])
        taken = parts[k] / left if left > 0 else 0.0
        point.append(-math.expm1((len(parts) - 1 - k) * math.log1p(-taken)) if taken < 1 else 1.0)
    return tuple(min(max(float(u), 0.0), 1.0) for u in point)
