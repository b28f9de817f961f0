"""Charts of a comparison as SVG that stands inside a page: classes in place of styles, and no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ctmc.comparison.runs import Comparison
from ctmc.comparison.standings import by_problem, cost, records
from ctmc.errors import printable

LINES = 8
"""Solvers that can be told apart; more are left out, and said to be."""
_WIDTH, _HEIGHT = 640.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 26.0, 14.0, 52.0


@dataclass(frozen=True)
class Line:
    """How many problems a solver has solved at which cost.

    Attributes
    ----------
    label : str
    solved : int
    path : str
        Of an SVG.
    marks : tuple of (float, float)
        Where the steps are, thinned out.
    """

    label: str
    solved: int
    path: str
    marks: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Chart:
    """A chart of step functions: the share of problems with a certified answer against a cost on a logarithmic axis.

    Attributes
    ----------
    measure : str
    problems : int
    lines : tuple of Line
        The solvers with most certified answers first.
    left_out : tuple of str
    ticks : tuple of (float, str)
        Positions on the axis of costs.
    shares : tuple of (float, str)
        Positions on the axis of shares.
    width, height, left, right, top, bottom : float
        The box of the axes lies within the picture.
    """

    measure: str
    problems: int
    lines: tuple[Line, ...]
    left_out: tuple[str, ...]
    ticks: tuple[tuple[float, str], ...]
    shares: tuple[tuple[float, str], ...]
    width: float = _WIDTH
    height: float = _HEIGHT
    left: float = _LEFT
    right: float = _WIDTH - _RIGHT
    top: float = _TOP
    bottom: float = _HEIGHT - _BOTTOM


def chart_of_costs(comparison: Comparison, measure: str) -> Chart | None:
    """Return the chart for a cost, None where no answer has any.

    Parameters
    ----------
    comparison : Comparison
    measure : str
        ``seconds`` or ``products``.

    Raises
    ------
    StudyError
        There is no such measure.

    Examples
    --------
    >>> from ctmc.comparison.runs import Run
    >>> runs = [Run("queue", s, 1e-8, status="CONVERGED", seconds=(t,)) for s, t in (("gth", 2.0), ("gmres", 5.0))]
    >>> chart = chart_of_costs(Comparison("", "stationary", {}, tuple(runs)), "seconds")
    >>> [(line.label, line.solved) for line in chart.lines], [text for _, text in chart.ticks]
    ([('gth', 1), ('gmres', 1)], ['1', '10'])
    """
    problems = by_problem(comparison)
    paid: dict[str, list[float]] = {}
    for runs in problems.values():
        for run in runs:
            spent = cost(run, measure)
            if 0 < spent < math.inf:
                paid.setdefault(run.label, []).append(spent)
    if not paid:
        return None
    labels = [record.label for record in records(comparison) if record.label in paid]
    labels.sort(key=lambda label: -len(paid[label]))
    costs = [spent for values in paid.values() for spent in values]
    low, high = math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs)))
    high = max(high, low + 1)
    bottom = _HEIGHT - _BOTTOM

    def x(spent: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log10(spent) - low) / (high - low), 1)

    def y(share: float) -> float:
        return round(bottom - (bottom - _TOP) * share, 1)

    lines = []
    for label in labels[:LINES]:
        values = sorted(paid[label])
        corners = [(x(spent), y((k + 1) / len(problems))) for k, spent in enumerate(values)]
        path = f"M{corners[0][0]:g} {y(0):g}" + "".join(f"H{across:g}V{up:g}" for across, up in corners)
        lines.append(Line(printable(label), len(values), f"{path}H{_WIDTH - _RIGHT:g}", _thinned(corners)))
    step = max(1, (high - low) // 6)
    ticks = tuple((x(10.0**power), _power(power)) for power in range(low, high + 1, step))
    shares = tuple((y(quarter / 4), f"{25 * quarter} %") for quarter in range(5))
    return Chart(measure, len(problems), tuple(lines), tuple(map(printable, labels[LINES:])), ticks, shares)


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -4 <= power <= 3 else f"1e{power}"


def _thinned(points: Sequence[tuple[float, float]], most: int = 12) -> tuple[tuple[float, float], ...]:
    step = -(-len(points) // most)
    return tuple(points[::step])
