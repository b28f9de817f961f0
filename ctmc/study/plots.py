"""The pictures of a run: how the defect falls with the products, one panel for each model, and y against x in a sweep."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ctmc.errors import StorageError, printable

if TYPE_CHECKING:
    from ctmc.study.run import History

SIGNATURE = "ctmc study"
"""Stands in the picture's metadata, so that a later run knows whether it may replace it."""

# M. Okabe and K. Ito, Color Universal Design, 2008: told apart by all common kinds of color blindness; line styles as well,
# for print in black and white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v")


def is_ours(path: Path) -> bool:
    """Return whether an existing picture was drawn by a run of a study."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            begin = file.read(4096)
            file.seek(max(path.stat().st_size - 16_384, 0))
            return SIGNATURE.encode() in begin or SIGNATURE.encode() in file.read()  # a PDF has it at its end
    except OSError:
        return False


def new_figure(size: tuple[float, float]) -> Any:
    """Return an empty figure with a canvas of its own: nothing global is touched, no window is opened."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure into a file, which is replaced whole; the suffix .svg or .pdf says the format, else it is PNG.

    Raises
    ------
    StorageError
        If the file cannot be written, or exists and was not drawn by this package.
    """
    from ctmc.storage.atomic import replace_file

    kind = {".svg": "svg", ".pdf": "pdf"}.get(path.suffix.lower(), "png")
    ours = is_ours(path)
    if path.is_file() and not ours:
        raise StorageError(
            f"Cannot write {printable(path)}: it exists already and was not drawn by ctmc; take another name."
        )
    replace_file(path, lambda temporary: _save(figure, temporary, kind), overwrite=ours)


def svg_text(figure: Any) -> str:
    """Return a figure as the text of an SVG document, the same text each time, with letters as outlines.

    Examples
    --------
    >>> figure = new_figure((2.0, 1.0))
    >>> svg_text(figure) == svg_text(figure)
    True
    """
    buffer = io.BytesIO()
    _save(figure, buffer, "svg")
    return buffer.getvalue().decode("utf-8")


def _save(figure: Any, target: Any, kind: str) -> None:
    """Save a figure without the time and without random names of its parts, so that equal figures are equal files."""
    import matplotlib

    metadata: dict[str, Any] = {"Software" if kind == "png" else "Creator": SIGNATURE}
    if kind != "png":
        metadata["Date" if kind == "svg" else "CreationDate"] = None
    with matplotlib.rc_context({"svg.hashsalt": SIGNATURE, "svg.fonttype": "path"}), warnings.catch_warnings():
        # letters that the font does not have are boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(target, format=kind, dpi=150, metadata=metadata)


def plain_axes(axes: Any) -> None:
    """Give axes a light grid and no frame."""
    axes.grid(True, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


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
    panels = list(dict.fromkeys((history.model, history.problem) for history in histories))
    figure = new_figure((max(6.4, 5.2 * min(len(panels), 3)), 4.2 * -(-len(panels) // 3)))
    grid = figure.subplots(-(-len(panels) // 3), min(len(panels), 3), squeeze=False).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        _panel(axes, panel, [history for history in histories if (history.model, history.problem) == panel])
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(inert(title), fontsize=12)
    write_figure(figure, path)


Lines = Mapping[str, Sequence[tuple[float, float]]]


def draw_lines(
    lines: Lines,
    x: str,
    y: str,
    title: str,
    path: Path,
    bands: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> None:
    """Draw y against x, one line for each name; `draw_panels` with one panel."""
    draw_panels({"": lines}, x, y, title, path, bands)


def draw_panels(
    panels: Mapping[str, Lines],
    x: str,
    y: str,
    title: str,
    path: Path,
    bands: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> None:
    """Draw y against x, one line for each name, in panels that share their axes; raises as `draw_convergence` does.

    Parameters
    ----------
    panels : mapping of str to lines, a mapping of str to points (x, y)
        One panel for each title; the title of a single one is not shown.
    x, y : str
        Names of the axes.
    title : str
    path : Path
    bands : mapping of str to intervals (low, high), optional
        Drawn behind the line of the same name, an interval for each of its points.
    """
    from matplotlib.ticker import MaxNLocator

    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = new_figure((7.2, 4.8) if len(panels) == 1 else (max(4.0 * columns, 7.2), 3.6 * rows + 0.6))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    styles = dict(zip(names, zip(cycle(COLORS), cycle(STYLES), cycle(MARKERS), strict=False), strict=False))
    for axes, (heading, lines) in zip(grid, panels.items(), strict=False):
        for name, points in lines.items():
            color, style, marker = styles[name]
            axes.plot(
                [point[0] for point in points], [point[1] for point in points],
                color=color, linestyle=style, linewidth=1.8, marker=marker if len(points) <= 30 else None, markersize=4.5,
                label=inert(name),
            )  # fmt: skip
            if bands and name in bands:
                low, high = zip(*bands[name], strict=True)
                axes.fill_between([point[0] for point in points], low, high, color=color, alpha=0.2, linewidth=0)
        if len(panels) > 1:
            axes.set_title(inert(heading), fontsize=11)
        plain_axes(axes)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    points = [point for lines in panels.values() for line in lines.values() for point in line]
    # expectations of counts are seldom whole all over; thresholds are
    if all(float(value).is_integer() for _, value in points):
        grid[0].yaxis.set_major_locator(MaxNLocator(integer=True))
    if len({place for place, _ in points}) <= 12 and all(float(place).is_integer() for place, _ in points):
        grid[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    if all(value >= 0 for _, value in points):
        grid[0].set_ylim(bottom=0)
    if len(panels) == 1:
        grid[0].set_xlabel(inert(x.replace("_", " ")), fontsize=11)
        grid[0].set_ylabel(inert(y.replace("_", " ")), fontsize=11)
        grid[0].set_title(inert(title), fontsize=12)
        grid[0].legend(fontsize=10, frameon=False)
    else:
        for axes in grid[max(len(panels) - columns, 0) : len(panels)]:  # a common one would lie under the legend
            axes.set_xlabel(inert(x.replace("_", " ")), fontsize=11)
            axes.xaxis.set_tick_params(labelbottom=True)
        figure.supylabel(inert(y.replace("_", " ")), fontsize=11)
        figure.suptitle(inert(title), fontsize=12)
        handles = {
            name: line
            for axes in grid[: len(panels)]
            for line, name in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=min(len(handles), 4),
            fontsize=10,
            frameon=False,
        )
    write_figure(figure, path)


def draw_courses(
    courses: Sequence[tuple[str, np.ndarray, np.ndarray, np.ndarray | None]],
    limits: Sequence[float],
    y: str,
    title: str,
    path: Path,
) -> None:
    """Draw courses over time into a PNG file, one panel for each class; raises as `draw_convergence` does.

    Parameters
    ----------
    courses : sequence of (name, times, values, half widths)
        Values have the shape (times, classes), half widths of their bands the same, or None.  The first course is drawn on top,
        black and thick.
    limits : sequence of float
        Of the first course as time goes on, one for each class, dotted.
    y : str
        Name of the axes of values.
    title : str
    path : Path
    """
    classes = len(limits)
    columns = min(classes, 3)
    figure = new_figure((max(7.2, 4.6 * columns), 4.8 * -(-classes // 3)))
    grid = figure.subplots(-(-classes // 3), columns, squeeze=False).ravel()
    for number, axes in enumerate(grid[:classes]):
        axes.axhline(limits[number], color="0.4", linewidth=1, linestyle=":", label="fixed point")
        others = zip(cycle(COLORS[:-1]), cycle(STYLES[1:] + STYLES[:1]), strict=False)
        styles = [(COLORS[-1], "-"), *(next(others) for _ in courses[1:])]
        for rank, ((name, times, values, widths), (color, style)) in enumerate(zip(courses, styles, strict=True)):
            first = rank == 0
            axes.plot(
                times, values[:, number], color=color, linestyle=style, linewidth=2.2 if first else 1.5,
                zorder=3 if first else 2, label=inert(name),
            )  # fmt: skip
            if widths is not None:
                low, high = values[:, number] - widths[:, number], values[:, number] + widths[:, number]
                axes.fill_between(times, low, high, color=color, alpha=0.18, linewidth=0)
        axes.set_xlabel("time", fontsize=11)
        axes.set_ylabel(inert(y), fontsize=11)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        if classes > 1:
            axes.set_title(f"class {number}", fontsize=11)
        axes.grid(True, color="0.9", linewidth=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in grid[classes:]:
        axes.set_visible(False)
    grid[0].legend(fontsize=9, frameon=False)
    figure.suptitle(inert(title), fontsize=12)
    write_figure(figure, path)


def _panel(axes: Any, panel: tuple[str, str], histories: Sequence[History]) -> None:
    model, problem = panel
    # the methods for QBDs work on blocks and make no products
    work = "products" if any(history.records["products"].any() for history in histories) else "iteration"
    ends = [max(int(history.records[work].max(initial=1)), 1) for history in histories]
    for history, color, style in zip(histories, cycle(COLORS), cycle(STYLES), strict=False):
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
