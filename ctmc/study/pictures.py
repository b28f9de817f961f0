"""The picture of one answer: expected rewards against time, moments of what was earned, the distribution of a passage time."""

from __future__ import annotations

import importlib.util
import os
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from ctmc.errors import ModelError, printable
from ctmc.problem import AccumulatedReward, DiscountedReward, FirstPassage, Transient, column_names
from ctmc.study.numbers import Number, initial_text, numbers_of
from ctmc.study.plots import COLORS, MARKERS, STYLES, inert, new_figure, plain_axes, write_figure

FORMATS = ("png", "svg", "pdf")
TIME = "time (in the model's unit)"
_MOST_MARKERS = 40


def check_picture(path: str | os.PathLike[str]) -> None:
    """Complain before the solve about a picture that could not be drawn after it.

    Raises
    ------
    ModelError
        If the suffix is not that of a format, or matplotlib is missing.

    Examples
    --------
    >>> check_picture("course.jpg")
    Traceback (most recent call last):
    ctmc.errors.ModelError: the picture 'course.jpg' has the suffix '.jpg'; allowed are .png, .svg and .pdf.
    """
    suffix = Path(path).suffix
    if suffix.lower().lstrip(".") not in FORMATS:
        shown = printable(os.fspath(path))
        raise ModelError(
            f"the picture {shown!r} has the suffix {printable(suffix)!r}; allowed are .png, .svg and .pdf."
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise ModelError("a picture needs matplotlib: python -m pip install 'ctmc-lab[plots]'.")


def draw_answer(solution: Any, path: Path, *, quantiles: tuple[float, ...] = (0.5, 0.95)) -> None:
    """Draw a certified answer into a file; its suffix says the format.

    Parameters
    ----------
    solution : Solution
        Of a `Transient`, `AccumulatedReward`, `DiscountedReward` or `FirstPassage` problem.
    path : Path
        An existing file is replaced only where it was drawn by this package.
    quantiles : tuple of float
        Marked in the distribution function of a passage time.

    Raises
    ------
    ModelError
        If there is nothing to draw.
    StorageError
        If the file cannot be written.
    """
    check_picture(path)
    problem = solution.problem
    figure = new_figure((7.2, 4.8))
    axes = figure.subplots()
    start = (
        f"from each of {problem.model.size:,} states" if problem.initial is None else f"from {initial_text(problem)}"
    )
    if isinstance(problem, Transient):
        title = f"Expected rewards over time, {start}"
        numbers = _kept(solution) if problem.reward is None else numbers_of(solution)
        _draw_course(axes, numbers, problem, "expected reward")
    elif isinstance(problem, AccumulatedReward):
        title = f"Reward earned up to a time, {start}"
        _draw_course(axes, numbers_of(solution), problem, "accumulated reward")
    elif isinstance(problem, DiscountedReward):
        title = f"Discounted reward, discount {problem.discount:g}, {start}"
        _draw_discounted(axes, numbers_of(solution), problem)
    elif isinstance(problem, FirstPassage):
        target = (
            problem.target if isinstance(problem.target, str) else getattr(problem.target, "__name__", "a function")
        )
        avoid = problem.avoid if isinstance(problem.avoid, str) else getattr(problem.avoid, "__name__", "a function")
        title = (
            f"Time until {target}" + (f" without {avoid} before" if problem.avoid is not None else "") + f", {start}"
        )
        _draw_passage(axes, solution, quantiles)
    else:
        raise ModelError(f"there is no picture of a {type(problem).__name__} answer.")
    axes.set_title(inert(title), fontsize=12)
    plain_axes(axes)
    write_figure(figure, path)


def _kept(solution: Any) -> list[Number]:
    """Return the expectations of the variables of the states, of an answer that keeps distributions."""
    found = []
    for variable in solution.problem.model.space.variables:
        values = np.asarray(solution.expected(variable.name))
        if values.ndim == 1:
            found.append(Number(variable.name, values))
        else:
            found += [Number(f"{variable.name}[{k}]", values[:, k]) for k in range(values.shape[1])]
    return found


def _unit(problem: Any, names: list[str], otherwise: str) -> str:
    """Return what the vertical axis is: the name of the reward where there is one only."""
    rewards = {name.partition("[")[0] for name in names}
    return f"{otherwise}: {next(iter(rewards)).replace('_', ' ')}" if len(rewards) == 1 else otherwise


def _draw_course(axes: Any, numbers: list[Number], problem: Any, label: str) -> None:
    """Draw means against time; a band shows one standard deviation, or the range over all states as the start."""
    spreads = {number.name: number for number in numbers if number.name.startswith("variance(")}
    means = [number for number in numbers if number.order == 1]
    every = problem.initial is None
    times, proven = problem.times, 0.0
    styles = zip(cycle(COLORS), cycle(STYLES), cycle(MARKERS), strict=False)
    for number, (color, style, marker) in zip(means, styles, strict=False):
        values = number.values[:, 0] if every else number.values
        if every:
            ranges = number.values.min(axis=1), number.values.max(axis=1)
            axes.fill_between(times, *ranges, facecolor=color, alpha=0.15, linewidth=0)
            for edge in ranges:
                axes.plot(times, edge, color=color, alpha=0.5, linewidth=0.8)
        spread = spreads.get(f"variance({number.name})")
        if spread is not None and not every:
            deviation = np.sqrt(np.maximum(spread.values, 0))
            if len(times) == 1:
                axes.errorbar(times, values, deviation, color=color, capsize=4)
            axes.fill_between(times, values - deviation, values + deviation, color=color, alpha=0.15, linewidth=0)
        if spread is None and not every and number.bounds is not None and np.isfinite(number.bounds).all():
            bounds = np.broadcast_to(number.bounds, np.shape(values))
            axes.fill_between(times, values - bounds, values + bounds, color=color, alpha=0.25, linewidth=0)
            proven = max(proven, float(bounds.max(initial=0.0)))
        axes.plot(
            times, values, color=color, linestyle=style, linewidth=1.8,
            marker=marker if len(times) <= _MOST_MARKERS else None, markersize=4.5, label=inert(number.name),
        )  # fmt: skip
    if len(times) > 1:
        axes.set_xlim(float(times[0]), float(times[-1]))
    notes = []
    if every:
        first = ",".join(map(str, problem.model.space.states(np.arange(1))[0].tolist()))
        notes.append(f"line: from {first}; band: least to largest over all starts")
    elif spreads:
        notes.append("band: one standard deviation" if len(times) > 1 else "bar: one standard deviation")
    elif proven:
        notes.append(f"band: proven error, at most {proven:.1e}")
    axes.set_xlabel("\n".join([TIME, *map(inert, notes)]), fontsize=11)
    axes.set_ylabel(inert(_unit(problem, [number.name for number in means], label)), fontsize=11)
    axes.legend(fontsize=10, frameon=False)


def _draw_discounted(axes: Any, numbers: list[Number], problem: Any) -> None:
    means = [number for number in numbers if number.order == 1]
    names = [number.name for number in means]
    label = _unit(problem, column_names(problem), "expected discounted reward")
    if problem.initial is None:
        _histogram(axes, {number.name: number.values for number in means}, label, "states as the start")
        return
    spreads = {number.name: float(number.values) for number in numbers if number.name.startswith("variance(")}
    deviations = [spreads.get(f"variance({name})", 0.0) ** 0.5 for name in names]
    values = [float(number.values) for number in means]
    colors = [color for color, _ in zip(cycle(COLORS), names, strict=False)]
    axes.bar(range(len(names)), values, color=colors, alpha=0.85, width=0.6)
    if any(deviations):
        axes.errorbar(range(len(names)), values, deviations, fmt="none", ecolor="black", capsize=5)
        axes.set_xlabel("bar: one standard deviation", fontsize=11)
    for place, value in enumerate(values):
        axes.annotate(f" {value:.6g}", (place, value), ha="left", va="bottom", fontsize=10)
    axes.set_xticks(range(len(names)), [inert(name) for name in names])
    axes.set_xlim(-0.8, len(names) - 0.2)
    axes.set_ylabel(inert(label), fontsize=11)


def _histogram(axes: Any, columns: dict[str, np.ndarray], label: str, count: str) -> None:
    everything = np.concatenate(list(columns.values()))
    finite = everything[np.isfinite(everything)]
    if not finite.size:
        raise ModelError("no number of the answer is finite, so there is nothing to draw.")
    edges = np.histogram_bin_edges(finite, bins=40)
    for (name, values), color, style in zip(columns.items(), cycle(COLORS), cycle(STYLES), strict=False):
        if len(columns) == 1:
            axes.hist(values, edges, color=color, alpha=0.85, label=inert(name))
        else:
            axes.hist(values, edges, color=color, histtype="step", linestyle=style, linewidth=1.8, label=inert(name))
    axes.set_xlabel(inert(label), fontsize=11)
    axes.set_ylabel(count, fontsize=11)
    axes.legend(fontsize=10, frameon=False)


def _draw_passage(axes: Any, solution: Any, quantiles: tuple[float, ...]) -> None:
    reach = float(solution.reach_probability)
    mean = float(solution.mean)
    if reach <= 0:
        raise ModelError("the target is never reached, so there is nothing to draw.")
    end = float(solution.quantile(min(max(0.995, *quantiles, 0.0), 0.9999) * reach if reach < 1 else 0.995))
    marks = [(p, float(solution.quantile(p))) for p in quantiles if p < reach or (p <= reach and p < 1)]
    end = max([end, *(time for _, time in marks if np.isfinite(time))]) or 1.0
    times = np.linspace(0.0, end, 121)
    axes.plot(times, solution.cdf(times), color=COLORS[0], linewidth=1.8)
    shades = zip(marks, cycle(COLORS[1:]), cycle(STYLES[1:]), strict=False)
    for (p, time), color, style in shades:
        axes.plot(
            [0, time, time],
            [p, p, 0],
            color=color,
            linestyle=style,
            linewidth=1.2,
            label=f"{p:.4g} quantile {time:.6g}",
        )
    if np.isfinite(mean):
        note = f"mean {mean:.6g}"
        if solution.variances is not None:
            note += f", standard deviation {float(solution.standard_deviation):.6g}"
        axes.axvline(mean, color="0.35", linewidth=1.2, label=note)
    if reach < 1:
        axes.axhline(reach, color="0.35", linewidth=1.0, linestyle=":", label=f"ever reached: {reach:.6g}")
    axes.set_xlim(0, end)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(TIME, fontsize=11)
    axes.set_ylabel("probability that the target is entered by then", fontsize=11)
    axes.legend(fontsize=10, facecolor="white", edgecolor="none", framealpha=1, loc="lower right")
