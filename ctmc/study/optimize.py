"""Search for the values of parameters that make a measure least or greatest; every candidate's answer is certified."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ctmc.errors import ModelError, shown, unknown_name
from ctmc.study.continuous import Tie
from ctmc.study.cost import Cost
from ctmc.study.criteria import Criterion
from ctmc.study.curves import Curve, Side
from ctmc.study.design import space_for
from ctmc.study.search import Candidate, Searcher, Watch

METHODS = ("exhaustive", "coordinate")
MEASURED_RATES = ("given", "candidate")
MAXIMUM_POINTS = 1_000_000
"""Most points of an exhaustive search; at some hundredths of a second each this is a night."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """What a search has found.

    Attributes
    ----------
    parameters : tuple of str
        That were optimised.
    objective : str
        The cost.
    maximize : bool
        Whether it was to be greatest.
    criterion : Criterion
    method : str
    points : int
        In the discrete designs.
    evaluations : int
        Points that were looked at, in the discrete designs and the cube; less than that were solved where the same decisions
        make the same model.
    ruled_out : int
        Points not solved because a proved bound is above the least cost found.
    candidates : tuple of Candidate
        All that were solved, the best first, those without an answer last.
    stopped : bool
        Whether the search was interrupted.
    scalar : bool
        Whether the one parameter is the one component of a point.
    ties : tuple of Tie
        Of the best candidate, exact ones first, then close ones: where selection values cross the cost jumps.  Those that hold
        whatever the design are left out.
    sides : tuple of Side
        What the cost is at the nearest such place in each direction, and beyond it.
    curves : tuple of Curve
        The cost along each design through the best candidate, where they were asked for.
    """

    parameters: tuple[str, ...]
    objective: str
    maximize: bool
    criterion: Criterion
    method: str
    points: int
    evaluations: int
    ruled_out: int
    candidates: tuple[Candidate, ...]
    stopped: bool = False
    scalar: bool = False
    ties: tuple[Tie, ...] = ()
    sides: tuple[Side, ...] = ()
    curves: tuple[Curve, ...] = ()

    @property
    def best(self) -> Candidate:
        """The best candidate; the first in the order of points among equals."""
        found = self.candidates[0] if self.candidates else None
        if found is None or found.message:
            raise ModelError(f"no candidate has a certified answer: {found.message if found else 'none was tried.'}")
        return found

    @property
    def parameter(self) -> str:
        """The parameters in one text."""
        return ", ".join(self.parameters)

    @property
    def attained(self) -> bool:
        """False where the cost still improves towards a tie beside the best point and jumps up on it: an infimum."""
        return all(side.attained for side in self.sides)

    @property
    def failed(self) -> tuple[Candidate, ...]:
        """Candidates without a certified answer."""
        return tuple(candidate for candidate in self.candidates if candidate.message)


def optimize(
    builder: str,
    parameters: Mapping[str, Any],
    over: str | Sequence[str],
    minimize: str | None = None,
    *,
    maximize: str | None = None,
    criterion: str = "long-run",
    horizon: float | None = None,
    discount: float | None = None,
    initial: Any = None,
    maximum: int | None = None,
    total_rate: float | None = None,
    measured_rates: str = "given",
    method: str = "exhaustive",
    evaluations: int = 500,
    locally_biased: bool = True,
    warm: bool = True,
    curve_points: int = 0,
    solver: str | None = None,
    tolerance: float | None = None,
    watch: Watch | None = None,
) -> Optimum:
    """Find the values of parameters that make a cost least, or greatest.

    Parameters
    ----------
    builder : str
    parameters : mapping
        Of the builder, without those that are optimised.  One of real numbers may be given: there the search begins.
    over : str or sequence of str
        Designs of the builder, such as ``thresholds`` or ``weights``, ranges of whole numbers, such as ``choices=1:3``, or lists
        of values, such as ``selection=tandem,weighted``; several are combined.
    minimize, maximize : str
        One of both: the cost; see `Cost`.
    criterion : str
        What it is the cost of; see `Criterion`: ``long-run``, ``finite-time`` or ``discounted``.
    horizon, discount, initial
        Of the criterion.
    maximum : int, optional
        Largest number of a design of whole numbers.
    total_rate : float, optional
        Of a design that splits a total.
    measured_rates : str
        A reward that judges states by parameters which the design changes (the supermarket's imbalance) is taken from the model
        with the parameters as given, rates included, so that all designs are judged alike.  ``candidate`` takes the rates of
        the candidate instead, the only part of a yardstick that may move, and only where it is asked for.
    method : str
        ``exhaustive`` solves all points, except those that a proved bound of the design rules out.  ``coordinate`` moves
        single components and runs of neighbours, by steps that are halved down to 1, as long as the cost falls: far fewer
        points, and a local optimum; it takes one design of whole numbers.
    evaluations : int
        Of each combination of the discrete designs, for the designs of real numbers: at most three quarters by the DIRECT
        method (D. R. Jones, C. D. Perttunen, B. E. Stuckman, Journal of Optimization Theory and Applications 79, 1993; SciPy's
        `direct`), which needs no derivative and no start, then a pattern search around the best point.  Points where all
        decisions are the same are solved once.
    locally_biased : bool
        Whether DIRECT looks more around the best points (J. M. Gablonsky, C. T. Kelley, Journal of Global Optimization 21, 2001)
        or more evenly.
    warm : bool
        Whether an iterative solve of a stationary distribution begins with the answer of the nearest candidate.
    curve_points : int
        Points of each curve of the cost through the best candidate, 0 for none.
    solver : str, optional
    tolerance : float, optional
    watch : callable, optional
        Told before each candidate; returning true ends the search.

    Returns
    -------
    Optimum

    Raises
    ------
    ModelError
        If the cost, the method or a design is not one, an exhaustive search has more than a million points, or the cost
        judges states by what the design changes and nothing says by what instead.

    Examples
    --------
    >>> queue = {"service_rates": [3, 1], "arrival_rate": 1, "tasks": 2}
    >>> found = optimize("fork_join", queue, "thresholds", "response_time", maximum=4)
    >>> found.best.point, f"{found.best.cost:.9f}"
    ((1, 2), '1.152747166')

    Two servers that jobs choose at random do best with equal rates:

    >>> market = {"service_rates": [2, 1], "arrival_rate": 1, "choices": 1, "capacity": 3}
    >>> found = optimize("supermarket", market, "split", "jobs", evaluations=60)
    >>> [round(rate, 3) for rate in found.best.values["service_rates"]], round(found.best.cost, 6)
    ([1.5, 1.5], 0.9)
    """
    if (minimize is None) == (maximize is None):
        raise ModelError("allowed is exactly one of minimize and maximize.")
    cost = Cost(str(maximize if minimize is None else minimize))
    judged = Criterion(name=criterion, horizon=horizon, discount=discount, initial=initial)
    if method not in METHODS:
        raise ModelError(f"method is {shown(method)}; allowed is {' or '.join(METHODS)}.")
    if measured_rates not in MEASURED_RATES:
        raise unknown_name("choice of measured_rates", measured_rates, MEASURED_RATES)
    for name, number, least in (("evaluations", evaluations, 1), ("curve_points", curve_points, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MAXIMUM_POINTS:
            raise ModelError(f"{name} is {number!r}; allowed is a whole number from {least} to {MAXIMUM_POINTS:,}.")
    space = space_for(builder, parameters, [over] if isinstance(over, str) else over, maximum, total_rate)
    search = Searcher(
        builder=builder, parameters=dict(parameters), space=space, cost=cost, sign=1.0 if maximize is None else -1.0,
        criterion=judged, rates_of_candidate=measured_rates == "candidate", evaluations=evaluations, warm=warm,
        solver=solver, tolerance=tolerance, watch=watch,
    )  # fmt: skip
    if method == "coordinate":
        if len(space.discrete) != 1 or space.continuous or space.discrete[0].values is not None:
            raise ModelError(
                f"method is 'coordinate', but what changes is {', '.join(space.parameters)}; allowed is one design of whole numbers."
            )
        search.coordinate()
    else:
        if space.count > MAXIMUM_POINTS:
            raise ModelError(
                f"an exhaustive search has {space.count:,} points; allowed are {MAXIMUM_POINTS:,}: lower the maximum, or take "
                "the method coordinate."
            )
        if space.continuous:
            search.everywhere(locally_biased)
        else:
            search.exhaustive()
    ties, sides, curves = search.around_best(curve_points)
    tried = sorted(
        {id(one): one for one in search.tried.values()}.values(),
        key=lambda one: (math.isnan(one.cost), search.sign * one.cost, one.point, one.cube),
    )
    return Optimum(
        parameters=space.parameters, objective=cost.text, maximize=minimize is None, criterion=judged, method=method,
        points=space.count, evaluations=search.done, ruled_out=search.ruled_out, candidates=tuple(tried),
        stopped=search.stopped, ties=ties, sides=sides, curves=curves,
        scalar=len(space.discrete) == 1 and not space.continuous and space.discrete[0].scalar,
    )  # fmt: skip


__all__ = ["METHODS", "Candidate", "Cost", "Optimum", "optimize"]
