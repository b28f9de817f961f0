"""Answers that are numbers, not distributions, as tables and as JSON: a line for each time, or the range over every start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctmc.cli.question import Question, parse_quantiles, parse_times
from ctmc.study.numbers import Number, numbers_of

Table = tuple[list[str], list[list[Any]]]


@dataclass
class Numbers:
    """What is shown of an answer.

    Attributes
    ----------
    numbers : list of Number
    times : list of float
        Empty where the problem has none.
    course : list of Number
        The distribution function of a passage time, where asked for.
    course_times : list of float
    quantiles : dict of float to float
    """

    solution: Any
    numbers: list[Number]
    times: list[float]
    course: list[Number] = field(default_factory=list)
    course_times: list[float] = field(default_factory=list)
    quantiles: dict[float, float] = field(default_factory=dict)

    @property
    def every_state(self) -> bool:
        """Whether each number is one for every state as the start."""
        return self.solution.problem.initial is None


def found_numbers(question: Question, solution: Any) -> Numbers:
    """Return the numbers of an answer, with the quantiles and the distribution function that were asked for."""
    found = Numbers(solution, numbers_of(solution), list(map(float, getattr(solution.problem, "times", ()))))
    if question.quantiles is not None:
        asked = parse_quantiles(question.quantiles)
        found.quantiles = dict(zip(asked, np.atleast_1d(solution.quantile(asked)).tolist(), strict=True))
    if question.cdf_times is not None:
        found.course_times = parse_times(question.cdf_times, "--cdf-times")
        reached = solution.reached_by(found.course_times)
        bounds = None if reached.error_bound is None else np.asarray(reached.error_bound)
        found.course = [Number("cdf", np.clip(reached.value, 0.0, 1.0), bounds)]
    return found


def tables(found: Numbers) -> list[Table]:
    """Return the tables for people: one line for each time, or for each number."""
    parts = [(found.numbers, found.times), (found.course, found.course_times)]
    shown = [
        _ranges(found.solution.problem.model, numbers, times) if found.every_state else _lines(numbers, times)
        for numbers, times in parts
        if numbers
    ]
    if found.quantiles:
        shown.append((["p", "quantile"], [[p, value] for p, value in found.quantiles.items()]))
    return shown


def csv_table(found: Numbers) -> Table:
    """Return all numbers in one table; columns are named, and a line each for quantiles and times of the distribution function."""
    if found.every_state:
        first = _ranges(found.solution.problem.model, found.numbers, found.times)
        for row in _ranges(found.solution.problem.model, found.course, found.course_times)[1] if found.course else []:
            first[1].append(row[-len(first[0]) :])
        return _with_plain_heads(first)
    if found.times:
        columns, rows = _lines(found.numbers, found.times)
        names = [number.name for number in found.numbers for _ in range(2 if number.bounds is not None else 1)]
        heads = [
            f"error_bound({name})" if head == "+-" else head for head, name in zip(columns[1:], names, strict=True)
        ]
        return [columns[0], *heads], rows
    _, rows = _lines(found.numbers, [])
    rows = [[*row, None][:3] for row in rows]
    rows += [[f"quantile({p:.10g})", value, None] for p, value in found.quantiles.items()]
    for number in found.course:
        bounds = [None] * len(number.values) if number.bounds is None else number.bounds.tolist()
        rows += [
            [f"cdf({time:.10g})", value, bound]
            for time, value, bound in zip(found.course_times, number.values.tolist(), bounds, strict=True)
        ]
    return ["measure", "value", "error_bound"], rows


def plain_numbers(found: Numbers) -> dict[str, Any]:
    """Return all numbers for JSON; for every state as the start their range, as the stored solution has each."""
    content: dict[str, Any] = {}
    if found.every_state:
        columns, rows = _with_plain_heads(_ranges(found.solution.problem.model, found.numbers, found.times))
        content["every_state"] = [dict(zip(columns, row, strict=True)) for row in rows]
    else:
        content["numbers"] = list(map(_plain, found.numbers))
    if found.course:
        content["cdf"] = {"times": found.course_times}
        if found.every_state:
            columns, rows = _with_plain_heads(_ranges(found.solution.problem.model, found.course, found.course_times))
            content["cdf"]["every_state"] = [dict(zip(columns, row, strict=True)) for row in rows]
        else:
            content["cdf"] |= _plain(found.course[0])
    if found.quantiles:
        content["quantiles"] = [{"p": p, "time": value} for p, value in found.quantiles.items()]
    return content


def _plain(number: Number) -> dict[str, Any]:
    return {"name": number.name, "values": number.values, "error_bounds": number.bounds}


def _with_plain_heads(table: Table) -> Table:
    return ["error_bound" if head == "+-" else head.replace(" ", "_") for head in table[0]], table[1]


def _lines(numbers: list[Number], times: list[float]) -> Table:
    if not times:
        rows = []
        for number in numbers:
            bound = None if number.bounds is None else float(number.bounds)
            rows.append([number.name, float(number.values), bound])
        if all(row[2] is None for row in rows):
            return ["measure", "value"], [row[:2] for row in rows]
        return ["measure", "value", "+-"], rows
    columns, cells = ["time"], [times]
    for number in numbers:
        columns.append(number.name)
        cells.append(number.values.tolist())
        if number.bounds is not None:
            columns.append("+-")
            cells.append(np.broadcast_to(number.bounds, number.values.shape).tolist())
    return columns, [list(row) for row in zip(*cells, strict=True)]


def _ranges(model: Any, numbers: list[Number], times: list[float]) -> Table:
    """Return the least and the largest number over all starts, where they are, and the numbers of the first and last state."""
    ends = [_state(model, 0), _state(model, model.size - 1)]
    columns = ["measure", "least", "least from", "largest", "largest from", *(f"from {end}" for end in ends), "+-"]
    rows: list[list[Any]] = []
    for k, time in enumerate(times or [None]):
        for number in numbers:
            values = number.values if time is None else number.values[k]
            bound = (
                None if number.bounds is None else float(number.bounds if number.bounds.ndim == 0 else number.bounds[k])
            )
            low, high = int(np.argmin(values)), int(np.argmax(values))
            cells = [float(values[low]), _state(model, low), float(values[high]), _state(model, high)]
            row = [number.name, *cells, float(values[0]), float(values[-1]), bound]
            rows.append(row if time is None else [time, *row])
    return (columns if not times else ["time", *columns]), rows


def _state(model: Any, position: int) -> str:
    return ",".join(map(str, model.space.states(np.array([position]))[0].tolist()))
