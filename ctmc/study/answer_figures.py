"""Figures of a long-run distribution: marginals, heat maps of two variables, and how the mass of a QBD's levels decays."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.errors import ModelError, printable
from ctmc.model.matrix_geometric import MatrixGeometric
from ctmc.problem import Stationary
from ctmc.solution import Solution
from ctmc.study.pictures import check_picture, draw_answer
from ctmc.study.plots import COLORS, inert, new_figure, plain_axes, write_figure

_MOST_PANELS = 12
_MOST_BARS = 80
_MOST_VALUES = 2000
"""Of a variable in a heat map; a picture has no more points."""
_BEYOND = 1e-4
"""Values with less probability beyond them are not shown in a marginal."""
_DEEPEST = 1e-12
"""Of the tail of the levels, and of a cell of a heat map relative to the largest."""


def components(solution: Solution) -> list[tuple[str, str, int | None]]:
    """Return label, variable and component of every coordinate of the states.

    Examples
    --------
    >>> import ctmc
    >>> queues = ctmc.build("tandem_network", service_rates=[2.0, 2.0], arrival_rate=1.0, capacity=2)
    >>> [label for label, _, _ in components(ctmc.solve(ctmc.Stationary(queues)))]
    ['queue_length[0]', 'queue_length[1]']
    """
    model: Any = solution.problem.model
    variables = model.variables if isinstance(solution.value, MatrixGeometric) else model.space.variables
    found: list[tuple[str, str, int | None]] = []
    for variable in variables:
        if variable.length is None:
            found.append((variable.name, variable.name, None))
        else:
            found += [(f"{variable.name}[{k}]", variable.name, k) for k in range(variable.length)]
    return found


def _chosen(solution: Solution, names: Sequence[str]) -> list[tuple[str, str, int | None]]:
    """Return the named variables, components or rewards with whole values."""
    known = {label: (label, name, index) for label, name, index in components(solution)}
    found = []
    for name in names:
        if name in known:
            found.append(known[name])
        elif name in solution.problem.model.all_rewards:
            found.append((name, name, None))
        else:
            raise ModelError(
                f"there is no variable {printable(name)!r}; allowed are {', '.join(map(printable, known))}, and rewards."
            )
    return found


def _require_stationary(solution: Solution, what: str) -> None:
    if not isinstance(solution.problem, Stationary) or not isinstance(solution.value, np.ndarray | MatrixGeometric):
        raise ModelError(
            f"{what} belong to long-run distributions; this is a {type(solution.problem).__name__} answer."
        )


def draw_marginals(solution: Solution, path: Any = None, *, names: Sequence[str] = ()) -> Any:
    """Draw the long-run distribution of each variable, as bars.

    Parameters
    ----------
    solution : Solution
        Of a `Stationary` problem.
    path : path-like, optional
        Ends in .svg, .pdf or .png; an existing file is replaced only where it was drawn by this package.
    names : sequence of str
        Variables, such as ``queue_length[0]``, or rewards with whole values; by default the first 12 variables.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ModelError
        There is no such variable, or the answer is no long-run distribution.
    StorageError
        The file cannot be written.

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.build("birth_death", births=[1.0], deaths=[1.0])
    >>> [float(bar.get_height()) for bar in draw_marginals(ctmc.solve(ctmc.Stationary(queue))).axes[0].patches]
    [0.5, 0.5]
    """
    check_picture("figure.svg" if path is None else path)
    _require_stationary(solution, "marginals")
    chosen = _chosen(solution, names) if names else components(solution)[:_MOST_PANELS]
    if len(chosen) > _MOST_PANELS:
        raise ModelError(f"names has {len(chosen)} variables; allowed are 1 to {_MOST_PANELS} in one figure.")
    columns = min(len(chosen), 3)
    rows = -(-len(chosen) // columns)
    figure = new_figure((7.2, 3.6 if rows == columns == 1 else 2.3 * rows + 0.5))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for (label, name, index), axes in zip(chosen, panels, strict=False):
        probabilities = solution.marginal(name, index)
        # what is beyond has less than _BEYOND
        beyond = probabilities[::-1].cumsum()[::-1]
        shown = max(int((beyond > _BEYOND).sum()), 1)
        values = np.arange(shown)
        if shown <= _MOST_BARS:
            axes.bar(values, probabilities[:shown], color=COLORS[0], width=0.8)
        else:
            axes.fill_between(values, probabilities[:shown], step="mid", color=COLORS[0], linewidth=0)
        note = f"\nbeyond {shown - 1}: {beyond[shown]:.1e}" if shown < len(beyond) and beyond[shown] > 0 else ""
        _label(axes, inert(label.replace("_", " ")) + note, "probability" if axes in panels[::columns] else "")
        _whole_ticks(axes.xaxis)
    for axes in panels[len(chosen) :]:
        axes.set_visible(False)
    return _finished(figure, "Long-run marginals", path)


def joint(solution: Solution, first: str, second: str) -> np.ndarray:
    """Return the joint long-run distribution of two variables.

    Parameters
    ----------
    solution : Solution
        Of a `Stationary` problem.
    first, second : str
        Variables, such as ``queue_length[0]``, or rewards with whole values.

    Returns
    -------
    ndarray, shape (largest first + 1, largest second + 1)

    Raises
    ------
    ModelError
        There is no such variable, or it takes other values than whole ones from 0 to 1999.

    Examples
    --------
    >>> import ctmc
    >>> queues = ctmc.build("tandem_network", service_rates=[2.0, 2.0], arrival_rate=1.0, capacity=40)
    >>> joint(ctmc.solve(ctmc.Stationary(queues)), "queue_length[0]", "queue_length[1]")[:2, :2].round(9)
    array([[0.25  , 0.125 ],
           [0.125 , 0.0625]])
    """
    _require_stationary(solution, "joint distributions")
    chosen = _chosen(solution, (first, second))
    model = solution.problem.model
    rewards = [model.all_rewards[name] for _, name, _ in chosen]
    table = np.zeros((1, 1))
    for positions, states, weights in model.weighted_slabs(solution.value):
        pairs = []
        for (label, _, index), reward in zip(chosen, rewards, strict=True):
            values = np.asarray(reward.evaluate(states, positions), dtype=float)
            if values.ndim == 2:
                if index is None and values.shape[1] > 1:
                    raise ModelError(
                        f"{printable(label)} has {values.shape[1]} components; take one, {printable(label)}[0]."
                    )
                values = values[:, index or 0]
            bad = (values != np.floor(values)) | (values < 0) | (values >= _MOST_VALUES)
            if bad[weights > 0].any():
                worst = float(values[bad & (weights > 0)][0])
                raise ModelError(
                    f"{printable(label)} takes the value {worst:g}; a joint distribution needs whole values from 0 to "
                    f"{_MOST_VALUES - 1}."
                )
            pairs.append(np.where(bad, 0, values).astype(np.int64))
        size = [max(int(values.max(initial=0)) + 1, old) for values, old in zip(pairs, table.shape, strict=True)]
        if list(table.shape) != size:
            larger = np.zeros(size)
            larger[: table.shape[0], : table.shape[1]] = table
            table = larger
        table += np.bincount(pairs[0] * size[1] + pairs[1], weights=weights, minlength=size[0] * size[1]).reshape(size)
    return table


def draw_joint(solution: Solution, path: Any = None, *, names: Sequence[str] = ()) -> Any:
    """Draw the joint long-run distribution of two variables as a heat map, probabilities on a logarithmic scale.

    Parameters
    ----------
    solution : Solution
        Of a `Stationary` problem.
    path
        As in `draw_marginals`, which see for what is raised.
    names : sequence of two str
        By default the first two variables.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import ctmc
    >>> queues = ctmc.build("tandem_network", service_rates=[2.0, 2.0], arrival_rate=1.0, capacity=2)
    >>> draw_joint(ctmc.solve(ctmc.Stationary(queues))).axes[0].get_xlabel()
    'queue length[0]'
    """
    from matplotlib.colors import LogNorm

    check_picture("figure.svg" if path is None else path)
    _require_stationary(solution, "heat maps")
    if not names:
        names = [label for label, _, _ in components(solution)][:2]
    if len(names) != 2:
        raise ModelError(f"names has {len(names)} variables; a heat map shows two.")
    table = joint(solution, *names)
    largest = float(table.max())
    table = np.where(table >= largest * _DEEPEST, table, 0.0)
    rows, columns = (np.flatnonzero(table.any(axis=1 - axis))[-1] + 1 for axis in (0, 1))
    table = table[:rows, :columns]
    least = float(table[table > 0].min())
    figure = new_figure((6.4, 4.8))
    axes = figure.subplots()
    norm = LogNorm(least if least < largest else largest / 10, largest)
    edges = np.arange(rows + 1) - 0.5, np.arange(columns + 1) - 0.5
    # cells without probability stay white; as one image, since 40,000 outlines make a slow SVG
    mesh = axes.pcolormesh(
        *edges, np.ma.masked_equal(table.T, 0), norm=norm, cmap="viridis", rasterized=table.size > 400
    )
    bar = figure.colorbar(mesh, ax=axes)
    bar.set_label("probability", fontsize=10)
    bar.ax.tick_params(labelsize=8)
    _label(axes, *(inert(name.replace("_", " ")) for name in names))
    _whole_ticks(axes.xaxis)
    _whole_ticks(axes.yaxis)
    return _finished(figure, f"Joint long-run distribution of {names[0]} and {names[1]}".replace("_", " "), path)


def draw_levels(solution: Solution, path: Any = None, *, names: Sequence[str] = ()) -> Any:
    """Draw the probability of a level and all above, on a logarithmic scale, with the slope of the decay rate.

    Parameters
    ----------
    solution : Solution
        Of a `Stationary` problem about a QBD.
    path
        As in `draw_marginals`, which see for what is raised.
    names : sequence of str
        None.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])
    >>> draw_levels(ctmc.solve(ctmc.Stationary(queue))).axes[0].lines[1].get_label()
    'decay rate 0.5'
    """
    check_picture("figure.svg" if path is None else path)
    answer = solution.value
    if not isinstance(answer, MatrixGeometric):
        raise ModelError("levels belong to QBDs; the model of this answer is finite.")
    if names:
        raise ModelError("names are given, but the decay of the levels has none.")
    last = max(answer.quantile(1 - _DEEPEST), len(answer.boundary) + 1)
    levels = np.unique(np.linspace(0, last, min(last + 1, 41)).astype(np.int64))
    tails = np.array([answer.tail(int(level)) for level in levels])
    seen = tails > 0
    levels, tails = levels[seen], tails[seen]
    figure = new_figure((7.2, 4.0))
    axes = figure.subplots()
    axes.semilogy(levels, tails, "o", color=COLORS[0], markersize=4.5, label="exact")
    decay = answer.decay_rate
    if 0 < decay < 1:
        # through the deepest point, where other eigenvalues have died out
        slope = np.exp(np.log(tails[-1]) + math.log(decay) * (levels - levels[-1]).astype(float))
        kept = slope <= 10 * max(tails[0], 1e-300)
        axes.semilogy(levels[kept], slope[kept], "--", color=COLORS[1], linewidth=1.4, label=f"decay rate {decay:.6g}")
    axes.legend(fontsize=9, frameon=False)
    _label(axes, "level", "probability of the level and all above")
    _whole_ticks(axes.xaxis)
    return _finished(figure, "Decay of the levels", path)


def _label(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)


def _whole_ticks(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def _finished(figure: Any, title: str, path: Any) -> Any:
    for axes in figure.axes:
        if axes.get_label() != "<colorbar>" and axes.get_visible():
            plain_axes(axes)
    figure.suptitle("\n".join(map(inert, textwrap.wrap(printable(title), 80))), fontsize=11)
    if path is not None:
        write_figure(figure, Path(path))
    return figure


@dataclass(frozen=True)
class AnswerFigure:
    """One kind of figure of an answer.

    Attributes
    ----------
    draw : callable
        ``draw(solution, path, names=())``.
    about : str
        One sentence.
    fits : callable
        Whether it can be drawn of a solution.
    """

    draw: Callable[..., Any]
    about: str
    fits: Callable[[Solution], bool]


def _draw_course(solution: Solution, path: Any, *, names: Sequence[str] = ()) -> None:
    if names:
        raise ModelError("names are given, but a course shows what was asked for.")
    draw_answer(solution, Path(path))


def _is_long_run(solution: Solution) -> bool:
    return isinstance(solution.problem, Stationary) and isinstance(solution.value, np.ndarray | MatrixGeometric)


ANSWER_FIGURES = {
    "marginals": AnswerFigure(draw_marginals, "Long-run distribution of each variable.", _is_long_run),
    "joint": AnswerFigure(
        draw_joint, "Heat map of two variables.", lambda found: _is_long_run(found) and len(components(found)) > 1
    ),
    "levels": AnswerFigure(
        draw_levels, "How the tail of a QBD's levels decays.", lambda found: isinstance(found.value, MatrixGeometric)
    ),
    "course": AnswerFigure(
        _draw_course,
        "Answers over time with bands, and passage times.",
        lambda found: not isinstance(found.problem, Stationary),
    ),
}
"""The figures of one answer by name."""
