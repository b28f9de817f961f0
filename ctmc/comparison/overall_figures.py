"""Figures of a comparison over all its models: profiles, quantiles, targets reached, growth with the number of states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
    in_units,
    left_out_note,
    logarithmic,
    looks,
    say,
)
from ctmc.comparison.profiles import TARGETS, Steps, costs, performance_profile, quantiles, targets_reached
from ctmc.comparison.runs import Comparison
from ctmc.comparison.trends import growth, several_sizes


def draw_profile(comparison: Comparison, path: Any = None, *, measure: str = "seconds") -> Any:
    """Draw performance profiles: the share of problems that a solver solves within a factor of the best one's cost.

    Parameters
    ----------
    comparison : Comparison
    path
        As in `draw_defect`, which see for what is raised.
    measure : {"products", "seconds", "memory"}

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> from ctmc.comparison.runs import Run
    >>> run = Run("queue", "gth", 1e-12, status="CONVERGED", seconds=(0.1,))
    >>> draw_profile(Comparison("", "stationary", {}, (run,))).axes[0].get_xlabel()
    'seconds relative to those of the best solver (factor)'
    """
    begin(path)
    found = performance_profile(comparison, measure)
    what = "memory relative to that" if measure == "memory" else f"{BY[measure]} relative to those"
    return _draw_shares(
        comparison, found, path, measure, f"performance profile by {BY[measure]}",
        f"{what} of the best solver (factor)", "share of problems solved", 1.0,
    )  # fmt: skip


def draw_targets(
    comparison: Comparison, path: Any = None, *, measure: str = "products", targets: Sequence[float] = TARGETS
) -> Any:
    """Draw the share of all targets, 1e-4 .. 1e-12 on every model, that a solver has reached after so much work.

    Parameters
    ----------
    comparison : Comparison
    path
        As in `draw_defect`, which see for what is raised.
    measure : {"products", "seconds"}
    targets : sequence of float
        Defects.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> from ctmc.comparison.runs import Run
    >>> run = Run("queue", "gth", 1e-12, status="CONVERGED", defect=1e-15, seconds=(0.1,))
    >>> draw_targets(Comparison("", "stationary", {}, (run,)), measure="seconds").axes[0].get_ylabel()
    'share of targets reached'
    """
    begin(path)
    found = targets_reached(comparison, measure, targets)
    return _draw_shares(
        comparison, found, path, measure, f"{BY[measure]} to reach defects of {_short(max(targets))} to {_short(min(targets))}",
        UNITS[measure], "share of targets reached", None,
    )  # fmt: skip


def _draw_shares(
    comparison: Comparison,
    found: Sequence[Steps],
    path: Any,
    measure: str,
    title: str,
    x: str,
    y: str,
    first: float | None,
) -> Any:
    """Draw step functions, with the numbers of cases that come true in the legend."""
    sheet, axes, look = _sheet(comparison, found, measure, title)
    values = np.concatenate([[], *(steps.values for steps in found)])
    if not values.size:
        say(axes, NOTHING)
    else:
        low = max(float(values.min()), LEAST[measure]) * 0.9 if first is None else first
        high = max(float(values.max()) * 1.1, low * 2)
        for steps in found:
            # x, y of the corners, from the left edge to the right one
            corners = np.concatenate([[low], np.maximum(steps.values, low), [high]])
            shares = np.concatenate(
                [[0.0], np.arange(1, len(steps.values) + 1) / steps.total, [len(steps.values) / steps.total]]
            )
            every = max(1, len(steps.values) // 6)
            axes.plot(
                corners, shares, drawstyle="steps-post", linewidth=1.4, markersize=MARKER_SIZE,
                markevery=list(range(len(steps.values), 0, -every)), **look[steps.label],
            )  # fmt: skip
        axes.set_xlim(low * (low / high) ** 0.01, high)  # room for the markers at the edge
        logarithmic(axes.xaxis, most=8, widen=False)
        axes.set_ylim(-0.02, 1.03)
    sheet.outer_labels(x, y)
    return sheet.finish(path)


def _sheet(
    comparison: Comparison, found: Sequence[Steps], measure: str, title: str
) -> tuple[Sheet, Any, dict[str, dict[str, Any]]]:
    """Return a sheet of one panel, the panel, and the looks of the solvers, with the numbers of cases in the legend."""
    look = looks(comparison, [steps.label for steps in found])
    captions = {steps.label: f"({len(steps.values)} of {steps.total})" for steps in found}
    table = costs(comparison, measure)
    taken = Counter(run.label for run in comparison.runs if run.status != "REFUSED")
    everywhere = all(taken[label] >= len(table.problems) for label in look)
    note = "" if everywhere else "A model that a solver does not take counts as not solved."
    notes = (note, left_out_note(table.left_out))
    sheet = Sheet(f"{comparison.title}: {title}", ("",), look, captions, notes)
    return sheet, sheet.axes[0], look


def draw_quantiles(comparison: Comparison, path: Any = None, *, measure: str = "seconds") -> Any:
    """Draw the costs of each solver in order: what its n-th cheapest problem has cost.

    Parameters
    ----------
    comparison : Comparison
    path
        As in `draw_defect`, which see for what is raised.
    measure : {"products", "seconds", "memory"}

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> from ctmc.comparison.runs import Run
    >>> run = Run("queue", "gth", 1e-12, status="CONVERGED", seconds=(0.1,))
    >>> draw_quantiles(Comparison("", "stationary", {}, (run,))).axes[0].get_ylabel()
    'seconds'
    """
    from matplotlib.ticker import MaxNLocator

    begin(path)
    found = quantiles(comparison, measure)
    sheet, axes, look = _sheet(comparison, found, measure, f"problems solved, in order of {BY[measure]}")
    for steps in found:
        order = np.arange(1, len(steps.values) + 1)
        values = [in_units(value, measure) for value in steps.values]
        axes.plot(order, values, linewidth=1.4, markersize=MARKER_SIZE, **look[steps.label])
    if any(len(steps.values) for steps in found):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        most = max(len(steps.values) for steps in found)
        axes.set_xlim(0.5, most + 0.5)
        logarithmic(axes.yaxis)
    else:
        say(axes, NOTHING)
    sheet.outer_labels("problems solved, the cheapest first", UNITS[measure])
    return sheet.finish(path)


def draw_scaling(
    comparison: Comparison, path: Any = None, *, measure: str = "seconds", tolerance: float | None = None
) -> Any:
    """Draw how the cost of each solver grows with the number of states; the legend has the exponents, with standard errors.

    Parameters
    ----------
    comparison : Comparison
    path
        As in `draw_defect`, which see for what is raised.
    measure : {"products", "seconds", "memory"}
    tolerance : float, optional
        By default the smallest.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> from ctmc.comparison.runs import ComparedModel, Run
    >>> run = Run("queue", "gth", 1e-12, status="CONVERGED", seconds=(0.1,))
    >>> models = {"queue": ComparedModel("queue", states=30)}
    >>> draw_scaling(Comparison("", "stationary", models, (run,))).axes[0].get_xlabel()
    'states'
    """
    begin(path)
    found = growth(comparison, measure, tolerance)
    look = {
        label: style | {"linestyle": "none"} for label, style in looks(comparison, [one.label for one in found]).items()
    }
    dashes = looks(comparison, [one.label for one in found])
    captions = {one.label: _exponent(one.exponent, one.standard_error) for one in found}
    fitted = any(one.exponent is not None for one in found)
    note = "Behind a name: the exponent of the states, ± its standard error"
    note += "; lines: families of several sizes." if several_sizes(comparison) else "."
    if not fitted:
        note = "Models of one size only, so there is nothing to fit." if found else ""
    notes = (note, left_out_note(costs(comparison, measure).left_out))
    sheet = Sheet(f"{comparison.title}: {BY[measure]} with the number of states", ("",), dashes, captions, notes)
    (axes,) = sheet.axes
    for one in found:
        values = np.array([max(in_units(value, measure), LEAST[measure]) for value in one.values])
        axes.plot(one.states, values, markersize=MARKER_SIZE, **look[one.label])
        for ends, costs_there in one.lines:
            line = [in_units(value, measure) for value in costs_there]
            axes.plot(ends, line, linewidth=1.2, **(dashes[one.label] | {"marker": "none"}))
    if found:
        logarithmic(axes.xaxis)
        logarithmic(axes.yaxis)
    else:
        say(axes, "No run on a model with a known number of states has a certified answer.")
    sheet.outer_labels("states", UNITS[measure])
    return sheet.finish(path)


def _short(target: float) -> str:
    return f"{target:.0e}".replace("e-0", "e-")


def _exponent(exponent: float | None, error: float | None) -> str:
    if exponent is None:
        return "(one size)"
    return f"({exponent:.2f})" if error is None else f"({exponent:.2f} ± {error:.2f})"
