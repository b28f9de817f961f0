"""State spaces: which states there are, and in which order.

Two kinds with one interface.  A `Lattice` is a box of integer vectors, optionally cut at a total, optionally with ordered
classes of coordinates, in lexicographic order with the last coordinate fastest; positions are computed from counting
tables, so nothing is stored per state.  A `Listed` space is a table of states in a given order, searched by bisection.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ctmc.errors import ModelError, shown
from ctmc.model.counting import count_on
from ctmc.model.parameters import LARGEST_COUNT, check_name, whole_number

SLAB = 1 << 16
"""States per slab wherever something is evaluated state by state."""
_LARGEST_TOTAL = 10_000_000
"""Numbers in a row of a counting table; with ordered classes, in the whole table."""


@dataclass(frozen=True)
class Variable:
    """A named coordinate of the states: a scalar (`length` None) or a vector of `length` coordinates."""

    name: str
    length: int | None = None

    def __post_init__(self) -> None:
        check_name("the name of a variable", self.name)
        if self.length is not None:
            whole_number(f"length of variable {shown(self.name)}", self.length, 0, LARGEST_COUNT)

    @property
    def width(self) -> int:
        """Number of coordinates."""
        return 1 if self.length is None else self.length


class StateSpace(ABC):
    """What both kinds of state space offer: `size`, `index`, `states`, `slabs` and named variables."""

    variables: tuple[Variable, ...]

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of states."""

    @property
    def dimension(self) -> int:
        """Number of coordinates of a state."""
        return sum(variable.width for variable in self.variables)

    @abstractmethod
    def states(self, indices: Any) -> np.ndarray:
        """Return the states at these positions.

        Parameters
        ----------
        indices : int or array of int, shape (m,)
            Positions in [0, size).

        Returns
        -------
        ndarray of int64, shape (m, dimension), or (dimension,) for one position
        """

    @abstractmethod
    def find(self, states: np.ndarray) -> np.ndarray:
        """Return the position of each row of an (m, dimension) int64 array, -1 where it is not in the space."""

    def index(self, states: Any) -> Any:
        """Return the position of one state, or of each row of states.

        Parameters
        ----------
        states : array of int, shape (dimension,) or (m, dimension)

        Returns
        -------
        int, or ndarray of int64, shape (m,)

        Raises
        ------
        ModelError
            If a state is outside the space.
        """
        try:
            table = np.asarray(None if np.ma.is_masked(states) else states)
        except ValueError:
            table = np.asarray(None)
        if table.ndim == 0:
            table = table[None]
        width = table.shape[-1] if table.ndim else 0
        whole = table.dtype.kind in "iu" or (
            table.dtype.kind == "f" and np.all((table == np.floor(table)) & (np.abs(table) < 2**63))
        )
        if table.ndim > 2 or width != self.dimension or not whole:
            raise ModelError(
                f"state {shown(states)} does not fit: a state has {self.dimension} whole numbers ({self.describe()})."
            )
        rows = np.atleast_2d(table).astype(np.int64)
        positions = self.find(rows)
        missing = np.flatnonzero(positions < 0)
        if missing.size:
            bad = tuple(rows[missing[0]].tolist())
            raise ModelError(f"state {bad} is not in the state space ({self.describe()}).")
        return positions if table.ndim == 2 else int(positions[0])

    def slabs(self, first: int = 0, last: int | None = None) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (slice of positions, states there), a slab at a time, in order; all states, or those before `last` from `first` on."""
        for begin, end in _cuts(first, self.size if last is None else last):
            yield slice(begin, end), self.states(np.arange(begin, end))

    def columns(self, states: np.ndarray) -> dict[str, np.ndarray]:
        """Split an (m, dimension) table into the named variables, (m,) for scalars and (m, length) for vectors."""
        columns: dict[str, np.ndarray] = {}
        begin = 0
        for variable in self.variables:
            end = begin + variable.width
            columns[variable.name] = states[:, begin] if variable.length is None else states[:, begin:end]
            begin = end
        return columns

    @abstractmethod
    def describe(self) -> str:
        """Return what is in the space, as a phrase."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size:,} states; {self.describe()})"


@dataclass(frozen=True, repr=False)
class Lattice(StateSpace):
    """All integer vectors with 0 <= x_i <= limits[i] and, if `total` is given, x_1 + .. + x_M <= total.

    Coordinates in one ordered class are non-increasing, so that of all vectors that differ by an exchange inside a class
    there is one: a class of m coordinates with limit K alone has C(m + K, K) states.

    Parameters
    ----------
    limits : tuple of int
        Largest value of each coordinate.
    total : int, optional
        Largest sum of the coordinates.
    variables : tuple of Variable, optional
        Names; by default one vector variable ``x``.
    classes : tuple of int, optional
        Lengths of the ordered classes, in the order of the coordinates; a length of 1 is a coordinate by itself.  Inside a
        class all limits are the same.  By default every coordinate stands by itself, and the tuple is empty.

    Examples
    --------
    >>> space = Lattice((2, 2), total=3)
    >>> space.size, space.index((2, 1)), space.states(7).tolist()
    (8, 7, [2, 1])
    >>> space = Lattice((10,) * 20, classes=(20,))
    >>> space.size, space.states(5).tolist()[:7]
    (30045015, [1, 1, 1, 1, 1, 0, 0])
    """

    limits: tuple[int, ...]
    total: int | None = None
    variables: tuple[Variable, ...] = ()
    classes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", _whole_numbers("limits", self.limits))
        if self.total is not None:
            object.__setattr__(self, "total", whole_number("total", self.total, 0))
        if not self.limits or min(self.limits) < 0:
            raise ModelError(f"limits is {shown(self.limits)}; allowed are one or more whole numbers >= 0.")
        object.__setattr__(self, "variables", _checked_variables(self.variables, len(self.limits)))
        if self.total is not None and self.total >= sum(self.limits):
            object.__setattr__(self, "total", None)
        self._check_classes()
        if self.total is not None and self.total * len(self.limits) > _LARGEST_TOTAL:
            raise ModelError(
                f"total is {self.total:,} for {len(self.limits)} coordinates; allowed are up to "
                f"{_LARGEST_TOTAL // len(self.limits):,}, as counting takes a table."
            )
        if self.size > np.iinfo(np.int64).max:
            raise ModelError(
                f"limits {shown(self.limits)} span about 10^{round(math.log10(self.size))} states; allowed are up to 2^63 - 1."
            )

    def _check_classes(self) -> None:
        classes = _whole_numbers("classes", self.classes)
        classes = () if classes == (1,) * len(self.limits) else classes
        object.__setattr__(self, "classes", classes)
        if not classes:
            return
        if min(classes) < 1 or sum(classes) != len(self.limits):
            raise ModelError(
                f"classes is {shown(classes)}; allowed are lengths >= 1 that sum to the {len(self.limits)} coordinates."
            )
        for first, length in zip(self.firsts, classes, strict=True):
            inside = self.limits[first : first + length]
            if len(set(inside)) > 1:
                raise ModelError(
                    f"limits {shown(inside)} stand in one ordered class; allowed is the same limit throughout it."
                )
        numbers = self.rooms * len(self.limits) * (max(self.limits) + 2)
        if numbers > _LARGEST_TOTAL:
            raise ModelError(
                f"ordered classes with limits up to {max(self.limits):,} and total {self.total} take a counting table of "
                f"{numbers:,} numbers; allowed are {_LARGEST_TOTAL:,}."
            )

    def slabs(self, first: int = 0, last: int | None = None) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (slice of positions, states there); the tables of a box are made of runs, others by counting up."""
        last = self.size if last is None else last
        if self.classes or self.total is not None:
            yield from self._counted_slabs(first, last)
            return
        for begin, end in _cuts(first, last):
            columns = np.empty((self.dimension, end - begin), dtype=np.int64)
            for column, stride, limit in zip(columns, self.strides.tolist(), self.limits, strict=True):
                run = begin // stride
                values = np.arange(run, (end - 1) // stride + 1) % (limit + 1)
                column[:] = np.repeat(values, stride)[begin - run * stride : end - run * stride]
            yield slice(begin, end), columns.T

    def _counted_slabs(self, first: int, last: int) -> Iterator[tuple[slice, np.ndarray]]:
        limits = np.array(self.limits, dtype=np.int64)
        firsts = np.repeat(self.firsts, self.classes) if self.classes else np.arange(self.dimension)
        total = int(limits.sum()) if self.total is None else self.total
        for begin, end in _cuts(first, last):
            columns = np.empty((self.dimension, end - begin), dtype=np.int64)
            count_on(self.states(begin), limits, firsts.astype(np.int64), total, columns)
            yield slice(begin, begin + columns.shape[1]), columns.T

    @property
    def firsts(self) -> tuple[int, ...]:
        """First coordinate of each ordered class."""
        return tuple(sum(self.classes[:number]) for number in range(len(self.classes)))

    @property
    def rooms(self) -> int:
        """Number of different values that the room left for the coordinates can have: 1 where there is no total."""
        return 1 if self.total is None else self.total + 1

    @cached_property
    def _exact_ranks(self) -> list[np.ndarray]:
        """`ranks` of each coordinate, shapes (rooms, limits[i] + 2), in Python's integers of any size."""
        inner = {first + k for first, length in zip(self.firsts, self.classes, strict=True) for k in range(1, length)}
        tables: list[np.ndarray] = []
        for i in range(len(self.limits) - 1, -1, -1):
            limit = self.limits[i]
            table = np.zeros((self.rooms, limit + 2), dtype=object)
            for value in range(limit + 1):
                # ways to choose the coordinates after i when this one has the value, by room before it
                taken = 0 if self.total is None else value
                if not tables:
                    table[taken:, value + 1] = 1
                else:
                    largest = value if i + 1 in inner else self.limits[i + 1]
                    table[taken:, value + 1] = tables[-1][: max(self.rooms - taken, 0), largest + 1]
            tables.append(np.cumsum(table, axis=1))
        return tables[::-1]

    @cached_property
    def ranks(self) -> np.ndarray:
        """Ranking table of a lattice with ordered classes, shape (dimension, rooms, largest limit + 2) int64.

        With room r left for coordinates i, i + 1, .., the states whose coordinate i is less than x number
        ``ranks[i, r, x]``, whatever the coordinates before it; the position of a state is the sum of these.  Where there
        is no total, the room is 0 throughout; otherwise it is the total less the coordinates before i.  Entries beyond
        what room and limit allow repeat the last one.
        """
        width = max(self.limits) + 2
        padded = [np.pad(table, ((0, 0), (0, width - table.shape[1])), mode="edge") for table in self._exact_ranks]
        return np.array(padded, dtype=np.int64)

    def _require_no_classes(self, table: str) -> None:
        if self.classes:
            raise ModelError(f"a lattice with ordered classes has no {table}; positions come from its table of ranks.")

    @cached_property
    def size(self) -> int:
        """Number of states, exact for any size."""
        if self.classes:
            return int(self._exact_ranks[0][-1, -1])
        if self.total is None:
            size = 1
            for limit in self.limits:
                size *= limit + 1
            return size
        counts = [1] * (self.total + 1)
        for limit in reversed(self.limits):
            counts = _convolve_box(counts, limit)
        return counts[self.total]

    @cached_property
    def counts(self) -> np.ndarray:
        """Counting table, shape (dimension + 1, T + 2) int64: ``counts[i, r + 1]`` is the number of ways to choose
        coordinates i, i + 1, .. with sum <= r, and column 0 (nothing left) is 0.  T is the total, or the sum of limits.
        """
        self._require_no_classes("table of counts by sum")
        total = sum(self.limits) if self.total is None else self.total
        rows = [[1] * (total + 1)]
        for limit in reversed(self.limits):
            rows.append(_convolve_box(rows[-1], limit))
        return np.array([[0, *row] for row in reversed(rows)], dtype=np.int64)

    @cached_property
    def below(self) -> np.ndarray:
        """Ranking table, shape (dimension, T + 2) int64.

        With room r left for coordinates i, i + 1, .., the states whose coordinate i is less than x number
        ``below[i, r + 1] - below[i, r + 1 - x]``; the position of a state is the sum of these.
        """
        return np.cumsum(self.counts[1:], axis=1)

    @cached_property
    def strides(self) -> np.ndarray:
        """Distance between neighbours along each coordinate of a full box, shape (dimension,) int64."""
        self._require_no_classes("strides")
        sizes = np.array([*self.limits[1:], 0], dtype=np.int64) + 1
        return np.cumprod(sizes[::-1])[::-1]

    def find(self, states: np.ndarray) -> np.ndarray:
        """Return positions by stride (a box) or from the counting tables."""
        inside = np.asarray(((states >= 0) & (states <= np.array(self.limits))).all(axis=1))
        if self.classes:
            return self._find_ordered(states, inside)
        if self.total is None:
            return np.where(inside, states @ self.strides, -1)
        inside &= states.sum(axis=1) <= self.total
        rows = np.where(inside[:, None], states, 0)
        left = np.full(len(rows), self.total)
        positions = np.zeros(len(rows), dtype=np.int64)
        for i in range(self.dimension):
            positions += self.below[i, left + 1] - self.below[i, left + 1 - rows[:, i]]
            left -= rows[:, i]
        return np.where(inside, positions, -1)

    def _find_ordered(self, states: np.ndarray, inside: np.ndarray) -> np.ndarray:
        for first, length in zip(self.firsts, self.classes, strict=True):
            part = states[:, first : first + length]
            inside &= (part[:, 1:] <= part[:, :-1]).all(axis=1)
        room = np.zeros(len(states), dtype=np.int64)
        if self.total is not None:
            inside &= states.sum(axis=1) <= self.total
            room += self.total
        positions = np.zeros(len(states), dtype=np.int64)
        for i in range(self.dimension):
            value = np.where(inside, states[:, i], 0)
            positions += self.ranks[i, room, value]
            if self.total is not None:
                room -= value
        return np.where(inside, positions, -1)

    def _ordered_states(self, positions: np.ndarray) -> np.ndarray:
        table = np.empty((len(positions), self.dimension), dtype=np.int64)
        rank, room = positions.copy(), np.full(len(positions), self.rooms - 1)
        for i in range(self.dimension):
            if self.total is None:
                value = np.searchsorted(self.ranks[i, 0], rank, side="right") - 1
            else:  # bisection in the row that belongs to each state's room
                value, beyond = np.zeros_like(rank), np.full_like(rank, self.limits[i] + 1)
                for _ in range((self.limits[i] + 1).bit_length()):
                    middle = (value + beyond) // 2
                    reached = self.ranks[i, room, middle] <= rank
                    value, beyond = np.where(reached, middle, value), np.where(reached, beyond, middle)
            rank -= self.ranks[i, room, value]
            if self.total is not None:
                room -= value
            table[:, i] = value
        return table

    def states(self, indices: Any) -> np.ndarray:
        """Return the states at these positions."""
        positions = np.atleast_1d(_checked_positions(indices, self.size))
        if self.classes:
            table = self._ordered_states(positions)
        elif self.total is None:
            table = positions[:, None] // self.strides % (np.array(self.limits) + 1)
        else:
            table = np.empty((len(positions), self.dimension), dtype=np.int64)
            left = np.full(len(positions), self.total)
            rank = positions.copy()
            for i in range(self.dimension):
                value = np.zeros(len(positions), dtype=np.int64)
                for candidate in range(1, self.limits[i] + 1):
                    least = self.below[i, left + 1] - self.below[i, np.maximum(left + 1 - candidate, 0)]
                    value[(rank >= least) & (candidate <= left)] = candidate
                table[:, i] = value
                rank -= self.below[i, left + 1] - self.below[i, left + 1 - value]
                left -= value
        return np.asarray(table if np.ndim(indices) else table[0])

    def describe(self) -> str:
        """Return names and limits."""
        names = ", ".join(
            variable.name if variable.length is None else f"{variable.name}[0..{variable.length - 1}]"
            for variable in self.variables
        )
        limits = f"{self.limits[0]}" if len(set(self.limits)) == 1 else f"{self.limits}"
        total = "" if self.total is None else f", sum at most {self.total}"
        spans = zip(self.firsts, self.classes, strict=True)
        ordered = " and ".join(f"{first}..{first + length - 1}" for first, length in spans if length > 1)
        order = f", non-increasing in coordinates {ordered}" if ordered else ""
        return f"{names} from 0 to {limits}{order}{total}"


@dataclass(frozen=True, repr=False, eq=False)
class Listed(StateSpace):
    """A table of different states, in the order given.

    Parameters
    ----------
    table : array of int, shape (n, dimension)
        The states.
    variables : tuple of Variable, optional
        Names; by default one vector variable ``x``.

    Examples
    --------
    >>> space = Listed(np.array([[5, 0], [0, 3], [2, 2]]))
    >>> space.index([[2, 2], [5, 0]]).tolist()
    [2, 0]
    """

    table: np.ndarray
    variables: tuple[Variable, ...] = ()

    def __post_init__(self) -> None:
        try:
            table = np.array(None if np.ma.is_masked(self.table) else self.table)  # a copy: it is made read-only
        except ValueError:
            table = np.array(None)
        if table.ndim == 1:
            table = table[:, None]
        large = table.dtype == np.uint64 and table.size and table.max() >= 2**63
        if table.ndim != 2 or not table.size or table.dtype.kind not in "iu" or large:
            raise ModelError(
                f"the table of states is {shown(self.table)}; allowed are rows of whole numbers of 64 bits, one for each state."
            )
        table = table.astype(np.int64, copy=False)
        table.flags.writeable = False
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "variables", _checked_variables(self.variables, table.shape[1]))
        keys = self._sorted[1]
        doubled = np.flatnonzero(keys[1:] == keys[:-1])
        if doubled.size:
            first = self._sorted[0][doubled[0]]
            raise ModelError(f"state {tuple(table[first].tolist())} stands twice in the table of states.")

    @property
    def size(self) -> int:
        """Number of states."""
        return len(self.table)

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        keys = self._keys(self.table)
        order = np.argsort(keys, kind="stable")
        return order, keys[order]

    @cached_property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return self.table.min(axis=0), self.table.max(axis=0)

    def _keys(self, rows: np.ndarray) -> np.ndarray:
        """One sortable key per row: a mixed-radix number where it fits 63 bits, else a structured row."""
        low, high = self._bounds
        spans = [int(top) - int(bottom) + 1 for bottom, top in zip(low, high, strict=True)]
        product = 1
        for span in spans:
            product *= span
        if product < 2**63:
            keys = np.zeros(len(rows), dtype=np.int64)
            for i, span in enumerate(spans):
                keys = keys * span + (rows[:, i] - low[i])
            return keys
        names = [(f"c{i}", np.int64) for i in range(rows.shape[1])]
        return np.ascontiguousarray(rows).view(names).ravel()

    def find(self, states: np.ndarray) -> np.ndarray:
        """Return positions by bisection."""
        low, high = self._bounds
        inside = np.asarray(((states >= low) & (states <= high)).all(axis=1))
        order, keys = self._sorted
        wanted = self._keys(np.where(inside[:, None], states, low))
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(inside & np.asarray(keys[places] == wanted), order[places], -1)

    def states(self, indices: Any) -> np.ndarray:
        """Return rows of the table."""
        positions = _checked_positions(indices, self.size)
        return np.asarray(self.table[positions])

    def describe(self) -> str:
        """Return names and limits."""
        names = (v.name if v.length is None else f"{v.name}[0..{v.length - 1}]" for v in self.variables)
        return ", ".join(names) + " as listed"


def _cuts(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each slab."""
    for begin in range(first, last, SLAB):
        yield begin, min(begin + SLAB, last)


def _convolve_box(counts: Sequence[int], limit: int) -> list[int]:
    """Counts of sums <= r after one more coordinate in 0..limit, from those before it; exact Python integers."""
    running = 0
    result = []
    for r, count in enumerate(counts):
        running += count - (counts[r - limit - 1] if r > limit else 0)
        result.append(running)
    return result


def _checked_positions(given: Any, size: int) -> np.ndarray:
    """Return one position, or an array of them, as int64."""
    try:
        positions = np.asarray(None if np.ma.is_masked(given) else given)
    except ValueError:
        positions = np.asarray(None)
    if positions.dtype.kind not in "iu" and positions.size:
        raise ModelError(f"position {shown(given)} is no whole number; allowed is 0 to {size - 1}.")
    bad = positions[(positions < 0) | (positions >= size)]
    if bad.size:
        raise ModelError(f"position {bad.flat[0]} is outside the state space; allowed is 0 to {size - 1}.")
    return positions.astype(np.int64, copy=False)


def _whole_numbers(name: str, given: Any) -> tuple[int, ...]:
    """Return whole numbers as a tuple."""
    known = isinstance(given, list | tuple | range | np.ndarray) and getattr(given, "ndim", 1) == 1
    items: list[Any] = list(given) if known else [None]
    if not all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items):
        raise ModelError(f"{name} is {shown(given)}; allowed are whole numbers, such as (3, 2).")
    return tuple(int(item) for item in items)


def check_different(variables: Sequence[Variable]) -> None:
    """Raise `ModelError` at the first name that stands twice."""
    names = [variable.name for variable in variables]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ModelError(f"variables has the name {shown(doubled)} twice; allowed are different ones.")


def _checked_variables(given: Any, width: int) -> tuple[Variable, ...]:
    """Return the names of `width` coordinates, ``x`` where there are none."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, Variable) for one in given):
        raise ModelError(f"variables is {shown(given)}; allowed is a tuple of Variable.")
    variables = tuple(given) or (Variable("x", width),)
    check_different(variables)
    if sum(variable.width for variable in variables) != width:
        count = shown(sum(variable.width for variable in variables))
        raise ModelError(f"the variables name {count} coordinates; allowed are {width}, as states have.")
    return variables
