"""By which criterion a design is judged: a mean over a finite time, a discounted one, or one in the long run.

Source: Q.-L. Li, F. Yang, N. Li, *Reward processes and performance simulation in supermarket models with different servers*,
IJSPM 11(3/4), 2016, arXiv:1504.08150: the designs of least (greatest) mean reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.errors import ModelError, shown, unknown_name
from ctmc.problem import AccumulatedReward, DiscountedReward, Stationary
from ctmc.solution import Solution
from ctmc.study.cost import Cost

CRITERIA = ("long-run", "finite-time", "discounted")


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """How the cost of a candidate is defined.

    Attributes
    ----------
    name : str
        ``long-run``: a measure of the stationary distribution.  ``finite-time``: E[Phi(t)], Phi(t) the integral of the reward
        over [0, t].  ``discounted``: Psi, the expected integral of exp(-gamma s) times the reward over [0, inf).
    horizon : float, optional
        t of ``finite-time``, in the model's unit of time.
    discount : float, optional
        gamma of ``discounted``, per unit of time.
    initial : state, mapping, vector or Distribution, optional
        Where the chain starts; default the model's own.

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.build("birth_death", births=[1.0], deaths=[1.0])
    >>> criterion = Criterion(name="finite-time", horizon=2.0, initial=0)
    >>> cost = Cost("jobs")
    >>> value, _ = criterion.read(ctmc.solve(criterion.problem(queue, cost)), cost)
    >>> round(value, 12)  # (2 - (1 - exp(-4)) / 2) / 2
    0.754578909722
    """

    name: str = "long-run"
    horizon: float | None = None
    discount: float | None = None
    initial: Any = None

    def __post_init__(self) -> None:
        if self.name not in CRITERIA:
            raise unknown_name("criterion", self.name, CRITERIA)
        for field, owner in (("horizon", "finite-time"), ("discount", "discounted")):
            given = getattr(self, field)
            if self.name != owner:
                if given is not None:
                    raise ModelError(f"{field} is {given!r}, but the criterion is {self.name}; it goes with {owner}.")
            elif (
                isinstance(given, bool)
                or not isinstance(given, int | float | np.number)
                or not 0 < float(given) < np.inf
            ):
                state = "is missing" if given is None else f"is {shown(given)}"
                raise ModelError(f"{field} of the {owner} criterion {state}; allowed is a positive, finite number.")

    def problem(self, model: Any, cost: Cost, **settings: Any) -> Any:
        """Return the problem whose answer holds the cost of a model; `settings` are a tolerance, or nothing."""
        if self.name == "long-run":
            return Stationary(model, **({} if self.initial is None else {"initial": self.initial}), **settings)
        initial = getattr(model, "initial", None) if self.initial is None else self.initial
        if initial is None:
            raise ModelError(f"the {self.name} criterion needs an initial state, and the model has none of its own.")
        names = tuple(cost.rewards)
        if self.name == "finite-time":
            return AccumulatedReward(model, reward=names, initial=initial, times=[self.horizon], **settings)
        return DiscountedReward(model, reward=names, initial=initial, discount=float(self.discount or 0), **settings)

    def read(self, solution: Solution, cost: Cost) -> tuple[float, dict[str, Any]]:
        """Return the cost and the measures of a certified answer.

        Of the criteria over time these are E[Phi(t)] or Psi of each reward, and the mean reward per unit of time that goes with
        it: E[Phi(t)] / t or gamma Psi.
        """
        if self.name == "long-run":
            measures = dict(solution.measures())
            return cost.of(solution, measures), measures
        word, scale = (
            ("accumulated", 1 / float(self.horizon or 1))
            if self.name == "finite-time"
            else ("discounted", float(self.discount or 1))
        )
        weights, means, measures = cost.rewards, {}, {}
        for name in weights:
            found = np.ravel(solution.expected(name))
            if len(found) != 1:
                raise ModelError(f"{name!r} has {len(found)} components; write {name}[0], for instance.")
            means[name] = float(found[0])
            measures |= {f"{word}({name})": means[name], f"average({name})": scale * means[name]}
        return sum(weight * means[name] for name, weight in weights.items()), measures
