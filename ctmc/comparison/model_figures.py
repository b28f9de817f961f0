"""Figures of a comparison with a panel for each model: defect against work, work against precision, Pareto fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ctmc.comparison.drawing import (
    BY,
    LEAST,
    MARKER_SIZE,
    NOTHING,
    UNITS,
    Sheet,
    begin,
    chosen_models,
    in_units,
    left_out_note,
    logarithmic,
    looks,
    say,
)
from ctmc.comparison.profiles import MEASURES, check_measure, cost, costs
from ctmc.comparison.runs import NOT_APPLICABLE, Comparison, Run
from ctmc.comparison.trends import trade_off

PER_MODEL = ("defect", "work-precision", "pareto")
"""Names of these figures."""


def draw_defect(
    comparison: Comparison, path: Any = None, *, measure: str = "products", models: Sequence[str] | None = None
) -> Any:
    """Draw how the defect falls with the work, a panel for each model, at the smallest tolerance.

    The large marker at the end is the certified defect of an answer, a cross the defect of a run that has none.

    Parameters
    ----------
    comparison : Comparison
    path : path-like, optional
        Ends in .svg, .pdf or .png; an existing file is replaced only where it was drawn by this package.
    measure : {"products", "seconds"}
    models : sequence of str, optional
        At most 12; by default the first 12.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    StudyError, UnknownNameError
        There is no such measure or model.
    ModelError
        The suffix is that of no format, or matplotlib is missing.
    StorageError
        The file cannot be written.

    Examples
    --------
    >>> draw_defect(Comparison("", "stationary", {}, (Run("queue", "gth", 1e-12),)), measure="seconds").get_size_inches()[0]
    np.float64(7.2)
    """
    begin(path)
    check_measure(measure, MEASURES[:2])
    shown, more = chosen_models(comparison, models)
    left_out = costs(comparison, measure).left_out
    look = looks(comparison, _labels(comparison, shown, left_out))
    title = f"{comparison.title}: defect against {BY[measure]}"
    crosses = any(run.model in shown and run.label in look and not run.converged for run in comparison.runs)
    note = "Cross: the defect of a run without a certified answer." if crosses else ""
    sheet = Sheet(_with_model(title, shown), shown, look, notes=(note, more, left_out_note(left_out)))
    for axes, model in zip(sheet.axes, shown, strict=False):
        runs = [run for run in comparison.runs if run.model == model and run.label in look]
        tolerance = min((run.tolerance for run in runs), default=0.0)
        drawn = [_draw_history(axes, run, measure, look[run.label]) for run in runs if run.tolerance == tolerance]
        if not _scaled(sheet, axes, any(drawn), "No run has a defect to show."):
            continue
        axes.axhline(tolerance, color="0.5", linewidth=0.8)
        axes.annotate(
            "tolerance", (0.01, tolerance), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
            ha="left", fontsize=8, color="0.35",
        )  # fmt: skip
    sheet.outer_labels(UNITS[measure], "defect")
    return sheet.finish(path)


def _draw_history(axes: Any, run: Run, measure: str, style: Mapping[str, Any]) -> bool:
    """Draw one run, and return whether there was something to draw."""
    history = run.history
    seen = np.isfinite(history["defect"]) & (history["defect"] >= 0)
    x = np.maximum(history[measure][seen].astype(float), LEAST[measure])
    y = np.maximum(history["defect"][seen], LEAST["defect"])
    known = run.products if measure == "products" else run.median_seconds
    end: tuple[float, float] | None = None
    if run.defect is not None and known is not None:
        end = max(float(known), LEAST[measure]), max(run.defect, LEAST["defect"])
        x, y = np.append(x, end[0]), np.append(y, end[1])
    axes.plot(x, y, color=style["color"], linestyle=style["linestyle"], linewidth=1.2)
    if end is None:
        return bool(seen.any())
    if run.converged:
        axes.plot(*end, marker=style["marker"], color=style["color"], markersize=5, linestyle="none")
    else:
        axes.plot(*end, marker="x", color=style["color"], markersize=5, linestyle="none")
    return True


def draw_work_precision(
    comparison: Comparison,
    path: Any = None,
    *,
    measure: str = "seconds",
    precision: str = "defect",
    models: Sequence[str] | None = None,
) -> Any:
    """Draw what certified answers cost against how precise they are: a line through the tolerances of each solver.

    Parameters
    ----------
    comparison : Comparison
    path, models
        As in `draw_defect`, which see for what is raised.
    measure : {"products", "seconds", "memory"}
    precision : {"defect", "distance"}
        The certified defect, or the distance from the reference.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> run = Run("queue", "gth", 1e-12, status="CONVERGED", defect=1e-15, seconds=(0.1,))
    >>> len(draw_work_precision(Comparison("", "stationary", {}, (run,))).axes[0].lines)
    1
    """
    begin(path)
    check_measure(measure)
    check_measure(precision, ("defect", "distance"))
    shown, more = chosen_models(comparison, models)
    left_out = costs(comparison, measure).left_out
    look = looks(comparison, _labels(comparison, shown, left_out))
    title = f"{comparison.title}: {BY[measure]} against {UNITS[precision]}"
    sheet = Sheet(_with_model(title, shown), shown, look, notes=(more, left_out_note(left_out)))
    for axes, model in zip(sheet.axes, shown, strict=False):
        points: dict[str, list[tuple[float, float, float]]] = {}
        for run in comparison.runs:
            reached, paid = getattr(run, precision), cost(run, measure)
            if run.model == model and run.label in look and reached is not None and np.isfinite(paid):
                place = run.tolerance, max(reached, LEAST[precision]), in_units(paid, measure)
                points.setdefault(run.label, []).append(place)
        for label, places in points.items():
            _, x, y = zip(*sorted(places), strict=True)
            axes.plot(x, y, linewidth=1.2, markersize=MARKER_SIZE, **look[label])
        _scaled(sheet, axes, bool(points))
    sheet.outer_labels(UNITS[precision], UNITS[measure])
    return sheet.finish(path)


def draw_pareto(
    comparison: Comparison,
    path: Any = None,
    *,
    measure: str = "seconds",
    against: str = "memory",
    models: Sequence[str] | None = None,
) -> Any:
    """Draw the runs on each model between two costs, or a cost and the defect, with the front of those that none beats in both.

    Parameters
    ----------
    comparison : Comparison
    path, models
        As in `draw_defect`, which see for what is raised.
    measure : {"products", "seconds", "memory"}
    against : {"defect", "memory", "products", "seconds"}

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> run = Run("queue", "gth", 1e-12, status="CONVERGED", seconds=(0.1,), allocated_bytes=2**20)
    >>> len(draw_pareto(Comparison("", "stationary", {}, (run,))).axes[0].lines)
    2
    """
    begin(path)
    check_measure(measure)
    check_measure(against, ("defect", *MEASURES))
    shown, more = chosen_models(comparison, models)
    left_out = costs(comparison, "products").left_out if "products" in (measure, against) else ()
    points = {model: trade_off(comparison, model, measure, against) if comparison.runs else () for model in shown}
    drawn = {point.run.label for found in points.values() for point in found}
    look = {
        label: style | {"linestyle": "none"}
        for label, style in looks(comparison, comparison.labels).items()
        if label in drawn
    }
    title = f"{comparison.title}: {BY[measure]} against {against}"
    note = "Gray line: the front, with no run better in both; runs off the front are hollow." if drawn else ""
    sheet = Sheet(_with_model(title, shown), shown, look, notes=(note, more, left_out_note(left_out)))
    for axes, found in zip(sheet.axes, points.values(), strict=False):
        places = [
            tuple(max(in_units(value, name), LEAST[name]) for value, name in ((point.x, measure), (point.y, against)))
            for point in found
        ]
        front = [place for place, point in zip(places, found, strict=True) if point.best]
        for place, point in zip(places, found, strict=True):
            face = look[point.run.label]["color"] if point.best else "white"
            axes.plot(
                *place, markersize=5, markerfacecolor=face, zorder=3 if point.best else 2, **look[point.run.label]
            )
        if not _scaled(sheet, axes, bool(found)):
            continue
        # the front goes on to the edges: what lies above it and to the right of it is beaten
        limits = axes.axis()
        corners = [(front[0][0], limits[3]), *front, (limits[1], front[-1][1])]
        axes.plot(*zip(*corners, strict=True), drawstyle="steps-post", color="0.6", linewidth=1.2, zorder=1)
        axes.axis(limits)
    sheet.outer_labels(UNITS[measure], UNITS[against])
    return sheet.finish(path)


def _scaled(sheet: Sheet, axes: Any, drawn: bool, nothing: str = NOTHING) -> bool:
    """Make the axes of a panel logarithmic once something is drawn, else say why it is empty; return which."""
    if drawn:
        logarithmic(axes.xaxis, most=7 - sheet.columns)
        logarithmic(axes.yaxis)
    else:
        say(axes, nothing)
    return drawn


def _labels(comparison: Comparison, models: Sequence[str], left_out: Sequence[str]) -> list[str]:
    """Return the solvers that were tried on these models, in order, without those that are left out."""
    tried = {run.label for run in comparison.runs if run.model in models and run.status not in NOT_APPLICABLE}
    return [label for label in comparison.labels if label in tried and label not in left_out]


def _with_model(title: str, models: Sequence[str]) -> str:
    return f"{title}, {models[0]}" if len(models) == 1 and models[0] else title
