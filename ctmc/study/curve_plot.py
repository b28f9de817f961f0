"""The picture of a search: the cost along each component of the designs, broken where decisions change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.study.curves import Curve
from ctmc.study.plots import COLORS, inert, new_figure, write_figure


def draw_curves(curves: Sequence[Curve], cost: str, path: Path) -> None:
    """Draw the curves into a PNG file, one panel for each; raises as `ctmc.study.plots.draw_convergence` does.

    Parameters
    ----------
    curves : sequence of Curve
        At least one.
    cost : str
        Name of the cost.
    path : Path
        An existing file is replaced only where it is such a picture.
    """
    columns = min(len(curves), 3)
    rows = -(-len(curves) // columns)
    figure = new_figure((5.2 * columns + 0.6, 4.2 * rows))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, curve in zip(panels, curves, strict=False):
        _panel(axes, curve)
        axes.set_ylabel(inert(cost.replace("_", " ")), fontsize=11)
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    figure.suptitle(inert(f"{cost.replace('_', ' ')} through the best point"), fontsize=12)

    write_figure(figure, path)


def _panel(axes: Any, curve: Curve) -> None:
    lines = [part for part in curve.segments if len(part[0]) > 1]
    points = [part for part in curve.segments if len(part[0]) == 1]
    for x, costs in lines:
        axes.plot(x, costs, color=COLORS[0], linewidth=1.8)
    if points:
        x, costs = (np.concatenate([part[k] for part in points]) for k in (0, 1))
        label = None if curve.names or not lines else "on a tie"
        axes.plot(x, costs, "o", color=COLORS[0], markersize=4 if lines else 7, markerfacecolor="white", label=label)
    axes.plot(*curve.best, "D", color=COLORS[1], markersize=7, label="best", zorder=3)
    if not lines:
        axes.set_xticks(sorted(float(part[0][0]) for part in points))
        axes.margins(x=0.15)
    if curve.names:
        axes.set_xticks(range(len(curve.names)), [inert(name) for name in curve.names])
    more = " (those behind it in proportion)" if lines else ""
    axes.set_xlabel(inert(curve.parameter.replace("_", " ") + more), fontsize=11)
    axes.grid(True, color="0.9", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=9, frameon=False)
