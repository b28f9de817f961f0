"""The figures of a comparison by name: each is drawn by one function, which returns it and writes it where a path is given.

Solvers are told apart by color, dash and marker.  Names are drawn as they are: they start no formula, and no markup of SVG.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ctmc.comparison.model_figures import draw_defect, draw_pareto, draw_work_precision
from ctmc.comparison.overall_figures import draw_profile, draw_quantiles, draw_scaling, draw_targets
from ctmc.comparison.profiles import MEASURES
from ctmc.comparison.runs import Comparison
from ctmc.study.plots import svg_text

__all__ = [
    "FIGURES",
    "draw_all",
    "draw_defect",
    "draw_pareto",
    "draw_profile",
    "draw_quantiles",
    "draw_scaling",
    "draw_targets",
    "draw_work_precision",
    "svg_text",
]


@dataclass(frozen=True)
class Kind:
    """One kind of figure.

    Attributes
    ----------
    draw : callable
        ``draw(comparison, path=None, *, measure)``.
    about : str
        One sentence.
    measures : tuple of str
        By which it is drawn when all are asked for; the first is the default.
    allowed : tuple of str
        By which it can be drawn.
    """

    draw: Callable[..., Any]
    about: str
    measures: tuple[str, ...]
    allowed: tuple[str, ...] = MEASURES


FIGURES = {
    "defect": Kind(
        draw_defect, "How the defect falls with the work, for each model.", ("products", "seconds"), MEASURES[:2]
    ),
    "work-precision": Kind(
        draw_work_precision, "What answers cost against how precise they are.", ("seconds", "products")
    ),
    "profile": Kind(
        draw_profile, "Performance profiles: problems solved within a factor of the best.", ("seconds", "products")
    ),
    "quantiles": Kind(
        draw_quantiles, "What the n-th cheapest problem of each solver has cost.", ("seconds", "products")
    ),
    "targets": Kind(
        draw_targets, "Work to reach the defects 1e-4 .. 1e-12, over all models.", ("products", "seconds"), MEASURES[:2]
    ),
    "pareto": Kind(draw_pareto, "Time against memory, with the front of those that none beats in both.", ("seconds",)),
    "scaling": Kind(draw_scaling, "How cost grows with the number of states, with exponents.", ("seconds", "memory")),
}
"""The figures of a comparison by name."""


def draw_all(comparison: Comparison) -> Iterator[tuple[str, str, Any]]:
    """Yield every figure: name with its measure, such as ``profile-seconds``, a sentence about it, and the figure.

    Parameters
    ----------
    comparison : Comparison

    Examples
    --------
    >>> from ctmc.comparison.runs import Run
    >>> empty = Comparison("", "stationary", {}, (Run("queue", "gth", 1e-12),))
    >>> [name for name, about, figure in draw_all(empty)][:3]
    ['defect-products', 'defect-seconds', 'work-precision-seconds']
    """
    for name, kind in FIGURES.items():
        for measure in kind.measures:
            yield f"{name}-{measure}", kind.about, kind.draw(comparison, measure=measure)
