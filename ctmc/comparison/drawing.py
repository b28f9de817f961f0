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
    "memory": "memory (MiB)",
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
_HANDLE = 0.55
"""Inches that the piece of line before a name takes, with its margins."""
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
    ['gauss_s…on=0.8)', 'gth']
    """
    shown = [printable(name) for name in names]
    begin = width // 2
    cut = [
        name if len(name) <= width else f"{name[:begin]}…{name[len(name) - (width - begin - 1) :]}" for name in shown
    ]
    return cut if len(set(cut)) == len(set(shown)) else shown


def chosen_models(comparison: Comparison, models: Sequence[str] | None) -> tuple[list[str], str]:
    """Return the models that get a panel, and a sentence where that is not all of them.

    Where there are more than fit, the largest of each family, then the next of each, so that a sweep does not take all the room.

    Raises
    ------
    UnknownNameError
        There is no such model.
    StudyError
        There are more than fit.
    """
    every = list(dict.fromkeys(run.model for run in comparison.runs)) or [""]
    if models is None:
        if len(every) <= MOST_PANELS:
            return every, ""
        chosen = _one_of_each(comparison, every)[:MOST_PANELS]
        more = (
            f"{MOST_PANELS} of {len(every)} models, the largest of each family first; 'ctmc plot --name' draws others."
        )
        return [name for name in every if name in chosen], more
    for name in models:
        if name not in every:
            raise unknown_name("model in the comparison", name, every)
    if not 1 <= len(models) <= MOST_PANELS:
        raise StudyError(f"models names {len(models)}; allowed are 1 to {MOST_PANELS} in one figure.")
    return list(models), ""


def _one_of_each(comparison: Comparison, models: Sequence[str]) -> list[str]:
    """Return models with the largest of each family in front, these by their sizes, then the second of each, and so on."""
    families: dict[str, list[tuple[int, int]]] = {}
    for place, name in enumerate(models):
        known = comparison.models.get(name)
        family, states = (known.family or name, known.states or 0) if known else (name, 0)
        families.setdefault(family, []).append((-states, place))
    turns = [(turn, *one) for several in families.values() for turn, one in enumerate(sorted(several))]
    return [models[place] for _, _, place in sorted(turns)]


@dataclass(eq=False)
class Sheet:
    """A figure under way: panels, and one legend below them for all.

    Attributes
    ----------
    title : str
    panels : sequence of str
        Headings; that of a single one is not shown.
    legend : mapping of str to dict
        Label -> style, as `styles` returns; all of them get a line in the legend.
    captions : mapping of str to str
        What stands in the legend behind a label.
    notes : sequence of str
        Sentences above the legend.
    """

    title: str
    panels: Sequence[str]
    legend: Mapping[str, Mapping[str, Any]]
    captions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        count = max(len(self.panels), 1)
        self.columns = 1 if count == 1 else 2 if count <= 4 else 3
        self.rows = -(-count // self.columns)
        behind = max((len(caption) + 1 for caption in self.captions.values()), default=0)
        # many solvers stand in two columns at least
        room = _LONGEST if len(self.legend) <= 4 else int((WIDTH / 2 - _HANDLE) / _LETTER) - behind
        self.entries = [
            f"{entry} {self.captions.get(label, '')}".rstrip()
            for entry, label in zip(shortened(list(self.legend), room), self.legend, strict=True)
        ]
        longest = max(map(len, self.entries), default=1)
        self.in_a_row = max(1, int(WIDTH / (_LETTER * longest + _HANDLE)))
        legend_rows = -(-len(self.entries) // self.in_a_row)
        letters = int(WIDTH / self.columns / (_LETTER * 1.15)) - 6
        headings = [textwrap.wrap(name, letters) for name in shortened(list(self.panels), 2 * letters - 4)]
        lines = textwrap.wrap(printable(self.title), 84) or [""]
        self.small = [line for note in self.notes if note for line in textwrap.wrap(printable(note), 110)]
        panel = 3.4 if self.columns == 1 else 2.6 if self.columns == 2 else 2.2
        extra = 0.17 * legend_rows + 0.22 * len(lines) + 0.15 * len(self.small) + 0.15
        self.figure = new_figure((WIDTH, panel * self.rows + extra))
        self.axes = list(self.figure.subplots(self.rows, self.columns, squeeze=False).ravel())
        for axes in self.axes[count:]:
            axes.set_visible(False)
        self.axes = self.axes[:count]
        if len(self.panels) > 1:
            for axes, heading in zip(self.axes, headings, strict=True):
                axes.set_title("\n".join(map(inert, heading)), fontsize=9)
        self.figure.suptitle("\n".join(map(inert, lines)), fontsize=11)

    def finish(self, path: Any = None) -> Any:
        """Add the legend, write the figure where a path is given, and return it."""
        from matplotlib.lines import Line2D

        for axes in self.axes:
            plain_axes(axes)
            axes.tick_params(labelsize=_SMALL)
        notes = "\n".join(map(inert, self.small))
        if self.entries:
            handles = [Line2D([], [], linewidth=1.4, markersize=4, **style) for style in self.legend.values()]
            legend = self.figure.legend(
                handles, [inert(entry) for entry in self.entries], loc="outside lower center", ncols=self.in_a_row,
                fontsize=_SMALL, frameon=False, handlelength=2.6, title=notes, title_fontsize=_SMALL,
            )  # fmt: skip
            legend.get_title().set_color("0.3")
        elif notes:
            self.figure.supxlabel(notes, fontsize=_SMALL, color="0.3")
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


def logarithmic(axis: Any, *, most: int = 6, widen: bool = True) -> None:
    """Make an axis logarithmic, with labels at 1, 2 and 5 where it is short; to be called once all is drawn.

    Parameters
    ----------
    axis : matplotlib.axis.Axis
    most : int
        Labels at powers of ten.
    widen : bool
        Show a decade at least, so that what is almost equal looks so.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes = axis.axes
    is_x = axis.axis_name == "x"
    (axes.set_xscale if is_x else axes.set_yscale)("log")
    low, high = sorted(axes.get_xlim() if is_x else axes.get_ylim())
    if widen and high < 10 * low:
        middle = math.sqrt(low * high)
        low, high = middle / 10**0.5, middle * 10**0.5
        (axes.set_xlim if is_x else axes.set_ylim)(low, high)
    decades = math.log10(high / low)
    plain = low >= 1e-4 and high <= 3e4
    if decades < 0.7:
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
    elif decades < 2.2 and plain:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 1.5 else (1, 3)))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 3) if decades < 1.5 else (1,), numticks=most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}" if plain else _scientific(value)))
    axis.set_minor_formatter(NullFormatter())


def _scientific(value: float) -> str:
    r"""Return a number as a power of ten, with the digits before it where there are any.

    Examples
    --------
    >>> _scientific(3e-7), _scientific(1000.0)
    ('$3\\times10^{-7}$', '$10^{3}$')
    """
    digits, _, power = f"{value:.3e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    before = "" if digits == "1" else rf"{digits}\times"
    return f"${before}10^{{{int(power)}}}$"


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
