"""The pictures of a run: how the defect falls with the products, one panel for each model, and y against x in a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctmc.errors import printable

if TYPE_CHECKING:
    from ctmc.study.run import History

SIGNATURE = "ctmc study"
"""Stands in the picture's metadata, so that a later run knows whether it may replace it."""

# M. Okabe and K. Ito, Color Universal Design, 2008: told apart by all common kinds of color blindness; line styles as well,
# for print in black and white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v")


def is_ours(path: Path) -> bool:
    """Return whether an existing picture was drawn by a run of a study."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return SIGNATURE.encode() in file.read(4096)
    except OSError:
        return False


def draw_convergence(histories: Sequence[History], title: str, path: Path) -> None:
    """Draw the histories into a PNG file, which is replaced whole.

    Parameters
    ----------
    histories : sequence of History
        At least one.
    title : str
    path : Path
        An existing file is replaced only where `is_ours` says so.

    Raises
    ------
    ImportError
        If matplotlib, the extra ``plots``, is missing.
    StorageError
        If the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ctmc.storage.atomic import replace_file

    panels = list(dict.fromkeys((history.model, history.problem) for history in histories))
    figure = Figure(figsize=(max(6.4, 5.2 * min(len(panels), 3)), 4.2 * -(-len(panels) // 3)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(-(-len(panels) // 3), min(len(panels), 3), squeeze=False).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        _panel(axes, panel, [history for history in histories if (history.model, history.problem) == panel])
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(inert(title), fontsize=12)

    def write(temporary: Path) -> None:
        figure.savefig(temporary, format="png", dpi=150, metadata={"Software": SIGNATURE})

    replace_file(path, write, overwrite=is_ours(path))


def draw_lines(lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, title: str, path: Path) -> None:
    """Draw y against x, one line for each name, into a PNG file; raises as `draw_convergence` does.

    Parameters
    ----------
    lines : mapping of str to points (x, y)
    x, y : str
        Names of the axes.
    title : str
    path : Path
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from ctmc.storage.atomic import replace_file

    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    styles = zip(cycle(COLORS), cycle(_STYLES), cycle(_MARKERS), strict=False)
    for (name, points), (color, style, marker) in zip(lines.items(), styles, strict=False):
        axes.plot(
            [point[0] for point in points], [point[1] for point in points],
            color=color, linestyle=style, linewidth=1.8, marker=marker if len(points) <= 60 else None, markersize=4.5,
            label=inert(name),
        )  # fmt: skip
    if all(float(value).is_integer() for points in lines.values() for _, value in points):
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(inert(x.replace("_", " ")), fontsize=11)
    axes.set_ylabel(inert(y.replace("_", " ")), fontsize=11)
    axes.set_title(inert(title), fontsize=12)
    axes.grid(True, color="0.9", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=10, frameon=False)

    def write(temporary: Path) -> None:
        figure.savefig(temporary, format="png", dpi=150, metadata={"Software": SIGNATURE})

    replace_file(path, write, overwrite=is_ours(path))


def _panel(axes: Any, panel: tuple[str, str], histories: Sequence[History]) -> None:
    model, problem = panel
    # the methods for QBDs work on blocks and make no products
    work = "products" if any(history.records["products"].any() for history in histories) else "iteration"
    ends = [max(int(history.records[work].max(initial=1)), 1) for history in histories]
    for history, color, style in zip(histories, cycle(COLORS), cycle(_STYLES), strict=False):
        records = history.records
        seen = np.isfinite(records["defect"]) & (records["defect"] > 0)
        marker = "o" if seen.sum() < 30 else None
        axes.plot(
            records[work][seen], records["defect"][seen],
            color=color, linestyle=style, linewidth=1.6, marker=marker, markersize=3, label=inert(history.solver),
        )  # fmt: skip
    axes.axhline(min(history.tolerance for history in histories), color="0.5", linewidth=0.8, label="tolerance")
    axes.set_yscale("log")
    if max(ends) > 30 * min(ends):
        axes.set_xscale("symlog", linthresh=10)
        axes.set_xlim(left=0)
    axes.set_title(inert(f"{model} ({problem})"), fontsize=11)
    axes.set_xlabel("products with the generator" if work == "products" else "iterations")
    axes.set_ylabel("defect")
    axes.grid(True, which="major", color="0.9", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)


def inert(text: str) -> str:
    """Return text that matplotlib draws as it is: `$` would start a formula, a leading `_` hide a label."""
    shown = printable(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
