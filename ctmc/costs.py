"""What solvers will take, as far as a model's traits tell it: products, time and memory, by rules that were fitted to measurements.

Times are those of one core of an ordinary machine; `ctmc.advise` turns them into products' worth of time, which depends on the
machine far less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ctmc import registry
from ctmc.defaults import default_solver
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.qbd import QBD
from ctmc.model.traits import Traits
from ctmc.problem import AccumulatedReward, DiscountedReward, Transient

MIXING = 0.05
"""Share of an exit rate that must lead to other phases, in every phase, for G to be found in a few functional iterations."""


@dataclass(frozen=True)
class Cost:
    """What a solver will take.

    Attributes
    ----------
    solver : str
    products : float or None
        None for methods that eliminate.
    seconds : float
        Of one core.
    bytes : int
        Beside the model.
    spread : float
        The forecast may be wrong by this factor either way.
    """

    solver: str
    products: float | None
    seconds: float
    bytes: int
    spread: float


def costs(found: Traits, representation: str, limit: int) -> tuple[list[Cost], tuple[str, ...]]:
    raise NotImplementedError


def costs_of_queue(queue: QBD | LevelDependentQBD) -> tuple[list[Cost], tuple[str, ...], dict[str, Any]]:
    """Return the methods for a QBD, ranked, reasons, and what was read.

    Examples
    --------
    >>> ranked, reasons, _ = costs_of_queue(QBD.from_blocks([[0.5]], [[-1.5]], [[1.0]]))
    >>> ranked[0].solver
    'rank_one'
    """
    if isinstance(queue, LevelDependentQBD):
        reason = (
            "The blocks depend on the level, so the last level must be found on the way; there is one method for that."
        )
        return [Cost("level_dependent", None, 1.0, 0, 100.0)], (reason,), {}
    m = queue.phase_count
    mixing = _mixing(queue)
    facts = {"phases": m, "boundary_levels": queue.boundary_levels, "drift": queue.drift, "mixing": mixing}
    one = 2 * m**3 / 2e10 + 2e-4  # a product of dense blocks, and what a step costs however few the phases are
    slow = mixing < MIXING
    steps = {
        "functional_iteration": 4.0 if not slow else 1000.0,
        "cyclic_reduction": 30.0 if slow else 11.0,
        "logarithmic_reduction": 70.0 if slow else 25.0,
        "newton": 250.0,
        "invariant_subspace": 300.0,
    }
    reasons = []
    if registry.takes(registry.make_solver("rank_one"), _stationary(queue)):
        steps["rank_one"] = 1.0
        reasons.append("A block has rank one, so the answer is explicit: one system of equations, no iteration.")
    elif slow:
        reasons.append(
            f"Phases are slow: one of them is left for another with probability {mixing:.2g} per event; cyclic reduction, whose steps "
            "double, does not mind."
        )
    else:
        reasons.append(
            f"Phases mix quickly (each is left for another with probability {mixing:.2g} or more per event), so a few functional "
            "iterations find G, at any load."
        )
    size = 8 * m * m
    bytes_of = {"rank_one": 8, "functional_iteration": 10, "newton": 14, "invariant_subspace": 40}
    ranked = [Cost(name, None, count * one, bytes_of.get(name, 12) * size, 4.0) for name, count in steps.items()]
    return sorted(ranked, key=lambda cost: cost.seconds), tuple(reasons), facts


def _stationary(queue: QBD) -> Any:
    from ctmc.problem import Stationary

    return Stationary(queue)


def _mixing(queue: QBD) -> float:
    """Return the least probability, over the phases, that the next event changes the phase; 1 where there is one phase."""
    if queue.phase_count == 1:
        return 1.0
    events = csr_array(abs(queue.up) + abs(queue.local) + abs(queue.down))
    whole = -queue.local.diagonal()
    kept = events.diagonal() - whole  # up and down to the same phase
    moving = np.asarray(events.sum(axis=1)).ravel() - events.diagonal()
    return float((moving / np.maximum(moving + kept, 1e-300)).min())


def costs_over_time(problem: Any) -> tuple[list[Cost], tuple[str, ...], dict[str, Any]]:
    """Return the methods for transient answers, rewards and passages, ranked, reasons, and what was read.

    The first one is the default; the forecast is by the number of events, rate times time, and the tolerance.

    Examples
    --------
    >>> queue = registry.build("birth_death", births=[1.0] * 9, deaths=[2.0] * 9)
    >>> ranked, reasons, facts = costs_over_time(Transient(queue, times=[100.0]))
    >>> ranked[0].solver, facts["events"], round(ranked[0].products)
    ('chebyshev', 300.0, 125)
    """
    chain = problem.model
    one = product_cost(chain.size, chain.entries, chain.representation)
    rate, digits = chain.uniformization_rate, math.log(1 / problem.tolerance)
    facts: dict[str, Any] = {"states": chain.size, "entries": chain.entries, "largest_exit_rate": rate}
    first = default_solver(problem)
    if isinstance(problem, Transient | AccumulatedReward):
        events = rate * float(problem.times[-1])
        facts["events"] = events
        poisson = events + 7 * math.sqrt(events) + 20
        products = {
            "chebyshev": 1.06 * math.sqrt(2 * events * digits) + 2,
            "uniformization": poisson,
            "adaptive_uniformization": poisson,
            "krylov_exponential": 1.5 * math.sqrt(2 * events * digits) + 20,
        }
        work = {name: count * one * (15 if name == "krylov_exponential" else 1.3) for name, count in products.items()}
        if first == "rational":
            work["rational"] = 50 * one * 100
        reason = f"Up to the last time there are about {events:.3g} events: {_of_events(first)}"
    else:
        small = chain.size <= 3000
        names = ("resolvent_lu", "resolvent_krylov") if isinstance(problem, DiscountedReward) else (
            "absorption_elimination", "absorption_krylov", "absorption_lu")  # fmt: skip
        moments = problem.moments
        products = {name: 150.0 * moments for name in names if name.endswith("krylov")}
        work = dict.fromkeys(products, 150 * moments * one)
        work |= {name: 1e-7 * chain.size**1.8 + 1e-3 for name in names if name.endswith("lu")}
        work |= {name: 2.5e-11 * chain.size**3 + 1e-3 for name in names if name.endswith("elimination")}
        facts["moments"] = moments
        if isinstance(problem, DiscountedReward):
            facts["events"] = rate / problem.discount
        reason = (
            f"{chain.size:,} states are few enough to eliminate, which no spread of rates disturbs."
            if first.endswith(("lu", "elimination"))
            else f"{chain.size:,} states are many for elimination{'' if small else ''}, so a Krylov method takes the equations."
        )
    vector = 8 * chain.size
    dense = {"absorption_elimination": 16 * chain.size**2, "krylov_exponential": 40 * vector}
    ranked = [
        Cost(name, products.get(name), seconds, dense.get(name, 10 * vector), 4.0) for name, seconds in work.items()
    ]
    ranked.sort(key=lambda cost: (cost.solver != first, cost.seconds))
    return ranked, (reason,), facts


def _of_events(name: str) -> str:
    """Return why the default over time is what it is."""
    return {
        "uniformization": "so few that uniformization, which clears no negative numbers, takes about as many products as any method.",
        "chebyshev": "Chebyshev polynomials take about the square root of as many products as uniformization.",
        "rational": "so many that implicit steps pay, as the model is small enough to be factorised.",
    }[name]


def product_cost(states: int, entries: int, representation: str) -> float:
    """Return the time of a product in seconds, on one core of an ordinary machine."""
    each = 0.4e-9 if representation == "lattice" else 1.6e-9
    return 9e-6 + each * entries + 2e-9 * states
