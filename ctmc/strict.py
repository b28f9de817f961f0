"""The proven intervals of an answer: of the rewards that its measures need, and of the measures that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctmc.errors import ModelError, unknown_name
from ctmc.interval import COMPONENT, Interval, check_problem, prove_interval
from ctmc.model.generator import Generator
from ctmc.model.parameters import checked_names
from ctmc.problem import Problem
from ctmc.solution import Solution

WIDE = 1e-6
"""An interval is called wide if its width is more than this part of the value."""
MOST_COMPONENTS = 20
"""Of the rewards that the measures need, those of vectors are proven by default up to this many numbers in all."""


def prove_intervals(
    solution: Solution, names: Sequence[str] | None = None, *, largest_products: int = 20_000
) -> dict[str, Interval]:
    """Return proven intervals for rewards, and for the measures that follow from them.

    Measures are functions of expectations; they are computed once more with intervals instead of numbers, every operation
    rounded outwards.  A measure that needs something else, or a reward that is not proven, has no interval.

    Parameters
    ----------
    solution : Solution
        Of a stationary problem on a Generator.
    names : sequence of str, optional
        Rewards ("jobs"; all components of a vector, or one: "queue_length[1]") and measures.  By default the rewards that
        the model's measures need (all rewards where it has no measures): numbers, and vectors up to 20 components in all.
    largest_products : int
        Limit of the work for each number.

    Returns
    -------
    dict of str to Interval
        By names as in `flat_measures`, such as ``"jobs"`` and ``"queue_length[1]"``; a measure comes before a reward of the
        same name.

    Raises
    ------
    UnsupportedProblemError, ReducibleError, UnknownNameError, ModelError
        As `prove_interval`.

    Examples
    --------
    >>> from ctmc import registry
    >>> from ctmc.problem import Stationary
    >>> from ctmc.solve import solve
    >>> model = registry.build("supermarket", service_rates=[3, 2, 1], arrival_rate=3, choices=2, capacity=9,
    ...                        preferences=[.2, .3, .5])
    >>> found = prove_intervals(solve(Stationary(model)), ["jobs", "loss_rate"])
    >>> sorted(found)
    ['blocking_probability', 'jobs', 'loss_rate', 'response_time', 'throughput']
    >>> found["response_time"].relative_width < 1e-9
    True
    """
    check_problem(solution.problem)
    wanted = _wanted(solution.problem, names)
    found: dict[str, Interval] = {}
    for name, index in wanted:
        flat = name if index is None else f"{name}[{index}]"
        if flat not in found:
            found[flat] = prove_interval(solution, name, index, largest_products=largest_products)
    return found | _measure_intervals(solution.problem, found)


def width_notes(intervals: Mapping[str, Interval]) -> list[str]:
    """Return a sentence on the intervals that are wider than 1e-6 of their value; empty where none is.

    Examples
    --------
    >>> width_notes({"jobs": Interval(1.0, 1.5), "loss_rate": Interval(2.0, 2.0)})
    ['The interval of jobs is wider than 1e-06 of its value (0.33); the value may be right, but more is not proven.']
    """
    wide = {name: interval.relative_width for name, interval in intervals.items() if interval.relative_width > WIDE}
    if not wide:
        return []
    shown = ", ".join(list(wide)[:6]) + (", .." if len(wide) > 6 else "")
    many = len(wide) > 1
    return [
        f"The interval{'s' if many else ''} of {shown} {'are' if many else 'is'} wider than {WIDE:g} of "
        f"{'their values' if many else 'its value'} ({'up to ' if many else ''}{max(wide.values()):.2g}); the value"
        f"{'s' if many else ''} may be right, but more is not proven."
    ]


def _length(chain: Generator, name: str) -> int | None:
    """Return the number of components of a reward, None for one that is a number."""
    values = chain.all_rewards[name].evaluate(chain.space.states(np.arange(1)), slice(0, 1))
    return None if values.ndim == 1 else values.shape[1]


def _components(chain: Generator, name: str) -> list[tuple[str, int | None]]:
    length = _length(chain, name)
    return [(name, None)] if length is None else [(name, index) for index in range(length)]


def _default_names(chain: Generator, needed: Sequence[str]) -> list[tuple[str, int | None]]:
    parts = {name: _components(chain, name) for name in needed}
    chosen = [part for name in needed for part in parts[name] if part[1] is None]
    for name in needed:
        if parts[name][0][1] is not None and len(chosen) + len(parts[name]) <= MOST_COMPONENTS:
            chosen += parts[name]
    return chosen


def check(problem: Problem, names: Sequence[str] | None = None) -> None:
    """Raise what `prove_intervals` would raise for an answer of this problem."""
    if getattr(problem.model, "shared", False):
        raise ModelError("certificate is 'strict', and ranks share the model; allowed is 'defect', or one process.")
    check_problem(problem)
    _wanted(problem, names)


def _wanted(problem: Problem, names: Sequence[str] | None) -> list[tuple[str, int | None]]:
    """Return reward and component of each name; a measure stands for the rewards that the measures need."""
    chain, needed = problem.model, _needed(problem)
    assert isinstance(chain, Generator)
    if names is None:
        return _default_names(chain, needed)
    names = checked_names("rewards", names, "reward or measure")
    measures = _evaluated(problem, {})[0]
    chosen: list[tuple[str, int | None]] = []
    for text in names:
        match = COMPONENT.fullmatch(text)
        name = match[1] if match else text.strip()
        if name in chain.all_rewards:
            parts = _components(chain, name)
            chosen += [part for part in parts if match is None or part[1] == int(match[2])]
            if match and (name, int(match[2])) not in parts:
                allowed = "none: it is one number" if parts[0][1] is None else f"0 to {len(parts) - 1}"
                raise ModelError(f"index {match[2]} of {name!r} is out of range; allowed is {allowed}.")
        elif name in measures:
            chosen += _default_names(chain, needed)
        else:
            raise unknown_name("reward or measure", name, {*chain.all_rewards, *measures})
    return chosen


# ---- measures, with intervals instead of numbers --------------------------------------------------------------------------


class _Uncertain:
    """A number of which two bounds are known; what a measure does with it is done with both, rounded outwards.

    Questions about it have no answer: comparisons, truth and conversion to a float raise `TypeError`.
    """

    __hash__ = None  # type: ignore[assignment]  # no key of a dictionary

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __bool__(self) -> bool:
        raise TypeError("an interval is neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise TypeError("intervals are not compared")

    def __add__(self, other: Any) -> _Uncertain:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> _Uncertain:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> _Uncertain:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> _Uncertain:
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> _Uncertain:
        low, high = _ends(other)
        return _EVERYTHING if low <= 0 <= high else self._with(other, lambda a, b: a / b)

    def __rtruediv__(self, other: Any) -> _Uncertain:
        return _EVERYTHING if self.low <= 0 <= self.high else self._with(other, lambda a, b: b / a)

    def __neg__(self) -> _Uncertain:
        return _Uncertain(-self.high, -self.low)

    __radd__, __rmul__ = __add__, __mul__

    def _with(self, other: Any, operation: Any) -> _Uncertain:
        """Apply an operation that is monotone in each argument, so that its extremes stand in the corners."""
        with np.errstate(all="ignore"):
            corners = [float(operation(a, b)) for a in (self.low, self.high) for b in _ends(other)]
        if not np.isfinite(corners).all():
            return _EVERYTHING
        return _Uncertain(float(np.nextafter(min(corners), -np.inf)), float(np.nextafter(max(corners), np.inf)))


_EVERYTHING = _Uncertain(-np.inf, np.inf)


def _ends(value: Any) -> tuple[float, float]:
    if isinstance(value, _Uncertain):
        return value.low, value.high
    if isinstance(value, int | float | np.number):
        return float(value), float(value)
    raise TypeError(f"an interval does not go together with a {type(value).__name__}")


class _Enclosed:
    """Stands in for a solution where a measure asks for expectations: gives intervals, and takes note of the names."""

    def __init__(self, problem: Problem, known: dict[str, Interval]) -> None:
        self.problem, self._known = problem, known
        self.names: list[str] = []

    def expectations(self, names: Sequence[str]) -> dict[str, Any]:
        """Return intervals by name, or arrays of them."""
        return {name: self.expected(name) for name in names}

    def expected(self, name: str) -> Any:
        """Return the interval of a reward; the whole line where nothing is proven."""
        model = self.problem.model
        assert isinstance(model, Generator)
        self.names.append(name)
        parts = _components(model, name)
        found = [self._known.get(name if index is None else f"{name}[{index}]") for _, index in parts]
        intervals = [_EVERYTHING if one is None else _Uncertain(one.low, one.high) for one in found]
        if parts[0][1] is None:
            return intervals[0]
        array = np.empty(len(intervals), dtype=object)
        array[:] = intervals
        return array


def _evaluated(problem: Problem, known: dict[str, Interval]) -> tuple[dict[str, Any], list[str]]:
    """Return the measures, computed with intervals, and the rewards that they asked for."""
    stand_in = _Enclosed(problem, known)
    measures = problem.model.measures
    try:
        found = {} if measures is None else dict(measures(stand_in))  # type: ignore[arg-type]  # stands in for a solution
    except Exception:  # the measures are a plug-in's, and may want what an interval is not
        found = {}
    return found, stand_in.names


def _needed(problem: Problem) -> list[str]:
    """Return the names of the rewards that the measures need; of all rewards where there are no measures."""
    model = problem.model
    names = _evaluated(problem, {})[1]
    known = {name for name, reward in model.all_rewards.items() if not reward.has_impulses}
    return list(dict.fromkeys(name for name in names if name in known)) or sorted(
        known, key=list(model.all_rewards).index
    )


def _measure_intervals(problem: Problem, known: dict[str, Interval]) -> dict[str, Interval]:
    """Return the intervals of those measures of which something is proven."""
    found = {}
    for name, value in _evaluated(problem, known)[0].items():
        for place, one in np.ndenumerate(np.asarray(value, dtype=object)):
            if isinstance(one, _Uncertain) and np.isfinite([one.low, one.high]).all():
                found[f"{name}[{','.join(map(str, place))}]" if place else name] = Interval(one.low, one.high)
    return found


def with_intervals(solution: Solution, names: Sequence[str] | None = None) -> Solution:
    """Return the solution with its proven intervals; see `prove_intervals`."""
    return replace(solution, intervals=prove_intervals(solution, names))
