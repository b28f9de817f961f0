"""What the rows of a run show: one table, and the points of plots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ctmc.solution import Status, flat_measures
from ctmc.study.content import Plot
from ctmc.study.sweep import shown as shown_value

if TYPE_CHECKING:
    from ctmc.study.run import Row


def table(rows: tuple[Row, ...]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and cells of the table, measures with one number per column; None where there is none.

    Examples
    --------
    >>> from ctmc.study.run import Row
    >>> table((Row("queue", "stationary", "gth", "CONVERGED", measures={"utilization": [0.5, 0.2]}),))[0][-2:]
    ['utilization[0]', 'utilization[1]']
    """
    flat = [flat_measures(row.measures) for row in rows]
    names = list(dict.fromkeys(name for measures in flat for name in measures))
    timed = ["time"] if any(row.time is not None for row in rows) else []
    told = ["done"] if any(row.done for row in rows) else []
    chosen = list(dict.fromkeys(name for row in rows for name in row.point))
    columns = [
        "model",
        *chosen,
        "problem",
        *timed,
        "solver",
        "status",
        "defect",
        "iterations",
        "products",
        "seconds",
        *told,
    ]
    cells = [
        [
            row.model,
            *map(_cell, (row.point.get(name) for name in chosen)),
            *(getattr(row, column) for column in columns[1 + len(chosen) :]),
            *(measures.get(name) for name in names),
        ]
        for row, measures in zip(rows, flat, strict=True)
    ]
    return [*columns, *names], cells


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else shown_value(value)


Points = list[tuple[float, float]]


def line_data(plot: Plot, rows: tuple[Row, ...]) -> dict[str, dict[str, Points]]:
    """Return the points of a plot by its panels and lines.

    There is a line for each model and component of y, and for each solver and rest of a sweep where there are more.  Without
    `panels` all are in one, named ''.

    Examples
    --------
    >>> from ctmc.study.run import Row
    >>> rows = (Row("queue", "stationary", "gth", "CONVERGED", measures={"jobs": 2.0}, point={"load": 0.5}),)
    >>> line_data(Plot("load", "jobs", ("queue",), ""), rows)
    {'': {'queue': [(0.5, 2.0)]}}
    """
    found: dict[tuple[str, str, str, str, str], Points] = {}
    for row in rows:
        if row.model not in plot.models or row.status != Status.CONVERGED.name or not _is_drawn(plot, row):
            continue
        known = {**flat_measures(row.measures), **_numbers(row.point)}
        x = row.time if plot.x == "time" else known.get("".join(plot.x.split()), known.get(plot.x))
        lines = _lines(plot, known)
        if x is None or not lines:
            continue
        rest = ", ".join(
            f"{name} {shown_value(value)}"
            for name, value in row.point.items()
            if name not in (plot.x.partition("[")[0], plot.panels, row.searched)
        )
        for component, y in lines.items():
            found.setdefault((_panel(plot, row), row.model, row.solver, rest, component), []).append((x, y))
    models = {model for _, model, _, _, _ in found}
    components = {component for *_, component in found}
    # the long run and the times of a panel each have a solver of their own
    several = len({(*key[:2], *key[3:]) for key in found}) < len(found)
    panels: dict[str, dict[str, Points]] = {}
    for (panel, model, solver, rest, component), points in found.items():
        named = model if len(models) > 1 or (len(components) == 1 and not plot.labels) else ""
        parts = (named, component, solver if several else "", rest)
        label = ", ".join(part for part in parts if part)
        panels.setdefault(panel, {})[label] = sorted(points)
    return panels


def _is_drawn(plot: Plot, row: Row) -> bool:
    """Return whether a row is of the problem and the time that a plot shows."""
    if plot.problem is not None and row.problem != plot.problem:
        return False
    if plot.time is not None:
        return row.time == plot.time
    return plot.panels == "time" or (row.time is not None) == (plot.x == "time")


def _panel(plot: Plot, row: Row) -> str:
    if plot.panels is None:
        return ""
    if plot.panels == "time":
        return "in the long run" if row.time is None else f"at time {row.time:.10g}"
    return f"{plot.panels.replace('_', ' ')} {shown_value(row.point[plot.panels])}" if plot.panels in row.point else ""


def _lines(plot: Plot, known: Mapping[str, float]) -> dict[str, float]:
    """Return y by the name of its component: '' for a number."""
    text = plot.y if plot.y in known else "".join(plot.y.split())
    if text in known:
        return {plot.labels[0] if len(plot.labels) == 1 else "": known[text]}
    found = {}
    for k, name in enumerate(name for name in known if name.startswith(f"{text}[") or _component(name) == text):
        found[plot.labels[k] if k < len(plot.labels) else name] = known[name]
    return found


def _component(name: str) -> str:
    """Return ``variance(x)`` of ``variance(x[1])``."""
    return re.sub(r"\[\d+\]\)$", ")", name) if name.endswith("])") else ""


def _numbers(point: Mapping[str, Any]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, value in point.items():
        if isinstance(value, int | float):
            numbers[name] = float(value)
        elif isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value):
            numbers |= {f"{name}[{k}]": float(item) for k, item in enumerate(value)}
    return numbers
