"""What the figures of a comparison have in common: styles of solvers, panels, legends, logarithmic axes, text that does nothing."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctmc.comparison.runs import Comparison
from ctmc.errors import StudyError, printable, unknown_name
from ctmc.study.pictures import check_picture
from ctmc.study.plots import COLORS, MARKERS, STYLES, inert, new_figure, plain_axes, write_figure

MEBIBYTE = 2**20
UNITS = {
    "products": "products with the generator",
    "seconds": "seconds",
    "memory": "memory beside the interpreter (MiB)",
    "defect": "certified defect",
    "distance": "distance from the reference",
}
"""Labels of the axes."""
BY = {"products": "products", "seconds": "seconds", "memory": "memory"}
NOTHING = "No run has a certified answer."
LEAST = {"products": 1.0, "seconds": 1e-6, "memory": 0.01, "defect": 1e-17, "distance": 1e-17}
"""What is less is drawn here, as a logarithmic axis has no place for nothing."""
MARKER_SIZE = 4
MOST_PANELS = 12
"""Models in one figure; the text of more would be too small."""

WIDTH = 7.2
"""Inches, at which the text is legible: that of a page of A4 or letter."""
_SMALL = 8
_LETTER = 0.066
"""Inches that a letter of 8 points takes, on average."""
_LONGEST = 64
"""Letters of a name in a legend."""


def styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return color, dash and marker of each solver; 7 colors, 4 dashes and 5 markers repeat together after 140.

    Examples
    --------
    >>> found = styles(f"solver {k}" for k in range(140))
    >>> len({tuple(style.values()) for style in found.values()})
    140
    """
    return {
        label: {
            "color": COLORS[k % len(COLORS)],
            "linestyle": STYLES[k % len(STYLES)],
            "marker": MARKERS[k % len(MARKERS)],
        }
        for k, label in enumerate(labels)
    }


def shortened(names: Sequence[str], width: int = _LONGEST) -> list[str]:
    """Return names without their middles where they are too long; whole, where two would be the same.

    Examples
    --------
    >>> shortened(["gauss_seidel(relaxation=0.8)", "gth"], 15)
    ['gauss_s…ion=0.8', 'gth']
    """
    shown = [printable(name) for name in names]
    begin = width // 2
    cut = [
        name if len(name) <= width else f"{name[:begin]}…{name[len(name) - (width - begin - 1) :]}" for name in shown
    ]
    return cut if len(set(cut)) == len(set(shown)) else shown


def chosen_models(comparison: Comparison, models: Sequence[str] | None) -> tuple[list[str], str]:
    """Return the models that get a panel, and a sentence where that is not all of them.

    Raises
    ------
    UnknownNameError
        There is no such model.
    StudyError
        There are more than fit.
    """
    every = list(dict.fromkeys(run.model for run in comparison.runs))
    if models is None:
        more = f"The first {MOST_PANELS} of {len(every)} models." if len(every) > MOST_PANELS else ""
        return every[:MOST_PANELS], more
    for name in models:
        if name not in every:
            raise unknown_name("model in the comparison", name, every)
    if not 1 <= len(models) <= MOST_PANELS:
        raise StudyError(f"models names {len(models)}; allowed are 1 to {MOST_PANELS} in one figure.")
    return list(models), ""


@dataclass(eq=False)
class Sheet:
    """A figure under way: panels, and one legend below them for all.

    Attributes
    ----------
    title : str
    panels : sequence of str
        Headings; that of a single one is put into the title.
    legend : mapping of str to dict
        Label -> style, as `styles` returns; all of them get a line in the legend.
    captions : mapping of str to str
        What stands in the legend behind a label.
    notes : list of str
        Sentences below the title.
    height : float
        Of a panel, in inches.
    """

    title: str
    panels: Sequence[str]
    legend: Mapping[str, Mapping[str, Any]]
    captions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    height: float = 3.4

    def __post_init__(self) -> None:
        count = max(len(self.panels), 1)
        self.columns = 1 if count == 1 else 2 if count <= 4 else 3
        self.rows = -(-count // self.columns)
        entries = shortened(list(self.legend))
        self.entries = [
            f"{entry} {self.captions[label]}" if label in self.captions else entry
            for entry, label in zip(entries, self.legend, strict=True)
        ]
        longest = max(map(len, self.entries), default=1)
        self.in_a_row = max(1, int(WIDTH / (_LETTER * longest + 0.55)))
        legend_rows = -(-len(self.entries) // self.in_a_row)
        headings = shortened(list(self.panels), int(WIDTH / self.columns / (_LETTER * 1.15)) - 6)
        lines = textwrap.wrap(printable(self.title), 84) or [""]
        small = [line for note in self.notes if note for line in textwrap.wrap(printable(note), 100)]
        panel = self.height if self.columns == 1 else 2.6 if self.columns == 2 else 2.2
        extra = 0.17 * legend_rows + 0.22 * len(lines) + 0.16 * len(small) + 0.15
        self.figure = new_figure((WIDTH, panel * self.rows + extra))
        self.axes = list(self.figure.subplots(self.rows, self.columns, squeeze=False).ravel())
        for axes in self.axes[count:]:
            axes.set_visible(False)
        self.axes = self.axes[:count]
        if len(self.panels) > 1:
            for axes, heading in zip(self.axes, headings, strict=True):
                axes.set_title(inert(heading), fontsize=9)
        self.figure.suptitle("\n".join(map(inert, lines)), fontsize=11)
        if small:  # under the title of the only panel, or at its place
            self.figure.supxlabel("\n".join(map(inert, small)), fontsize=_SMALL, color="0.3")

    def finish(self, path: Any = None) -> Any:
        """Add the legend, write the figure where a path is given, and return it."""
        from matplotlib.lines import Line2D

        for axes in self.axes:
            plain_axes(axes)
            axes.tick_params(labelsize=_SMALL)
        if self.entries:
            handles = [Line2D([], [], linewidth=1.4, markersize=4, **style) for style in self.legend.values()]
            self.figure.legend(
                handles,
                [inert(entry) for entry in self.entries],
                loc="outside lower center",
                ncols=self.in_a_row,
                fontsize=_SMALL,
                frameon=False,
                handlelength=2.6,
            )
        if path is not None:
            write_figure(self.figure, Path(path))
        return self.figure

    def outer_labels(self, x: str, y: str) -> None:
        """Name the axes: x below the lowest panel of each column, y at the left."""
        for place, axes in enumerate(self.axes):
            if place + self.columns >= len(self.axes):
                axes.set_xlabel(inert(x), fontsize=9)
            if place % self.columns == 0:
                axes.set_ylabel(inert(y), fontsize=9)


def begin(path: Any) -> None:
    """Complain before the work about a picture that could not be drawn; without a path about a missing library only.

    Raises
    ------
    ModelError
    """
    check_picture("figure.svg" if path is None else path)


def say(axes: Any, text: str) -> None:
    """Write a sentence into the middle of an empty panel, in place of ticks that would measure nothing."""
    width = max(18, int(axes.get_position().width * WIDTH / 0.085))
    lines = textwrap.wrap(printable(text), min(width, 60))
    axes.text(
        0.5,
        0.5,
        "\n".join(map(inert, lines)),
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=9,
        color="0.3",
    )
    axes.set_xticks([])
    axes.set_yticks([])


def logarithmic(axis: Any) -> None:
    """Make an axis logarithmic, with labels at 1, 2 and 5 where it is short; to be called once all is drawn."""
    from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, LogLocator, NullFormatter

    axes = axis.axes
    is_x = axis.axis_name == "x"
    (axes.set_xscale if is_x else axes.set_yscale)("log")
    low, high = sorted(axes.get_xlim() if is_x else axes.get_ylim())
    decades = math.log10(high / low) if low > 0 else 1.0
    powers = LogFormatterMathtext()
    plain = low >= 1e-4 and high <= 2e5

    def shown(value: float, position: int | None = None) -> str:
        return f"{value:,.10g}" if plain else str(powers(value, position))

    if decades < 0.7:  # too short even for 1, 2 and 5
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 6, 8)))
        plain = plain or decades < 0.7
    elif decades < 2.2:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axis.set_major_locator(LogLocator(numticks=8))
    axis.set_major_formatter(FuncFormatter(shown))
    axis.set_minor_formatter(NullFormatter())


def left_out_note(names: Sequence[str]) -> str:
    """Return the sentence on solvers that make no products; '' where there is none."""
    if not names:
        return ""
    shown = ", ".join(shortened(names[:6], 40)) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"Left out, as their work is not products: {shown}."


def in_units(value: float, measure: str) -> float:
    """Return what is drawn on the axis: memory in MiB, and nothing below what a logarithmic axis can show."""
    return max(value / MEBIBYTE if measure == "memory" else value, LEAST[measure])


def looks(comparison: Comparison, labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the styles of some solvers: the same in every figure of a comparison."""
    every = styles(comparison.labels)
    return {label: every[label] for label in labels}
