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
from ctmc.defaults import class_work, default_solver
from ctmc.model.generator import Generator
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.qbd import QBD
from ctmc.model.traits import Traits
from ctmc.problem import AccumulatedReward, DiscountedReward, Stationary, Transient
from ctmc.solution import Status
from ctmc.trace import Trace

TOLERANCE = 1e-12
"""Defect that forecasts are for."""
WEAK = 1e-3
"""At this coupling and below methods that need the parts to exchange are left out."""
FAINT = 1e-8
"""At this coupling and below rounding in a factorisation, which subtracts, outweighs what the parts exchange."""
MOST_SWEEPS = 400
"""Beyond so many a rate that was seen in the first sweeps does not go on."""
LARGE = 50_000
"""On boxes of queues with more states mixed iterates take as many products as a Krylov method."""
STEP = 1e-4
"""Seconds that a step of a Krylov method costs on the smallest chain."""
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


def costs(found: Traits, representation: str, sweeps: float | None) -> tuple[list[Cost], tuple[str, ...]]:
    """Return the methods for the stationary distribution of a chain, ranked by time, and the reasons for the first one.

    Parameters
    ----------
    found : Traits
    representation : str
        Of the transitions.
    sweeps : float or None
        Products' worth that Gauss-Seidel is expected to take, by `trial_sweeps`; None where it was not tried.

    Examples
    --------
    >>> from ctmc.model.traits import traits
    >>> queue = registry.build("tandem_network", service_rates=[2.0, 1.8], arrival_rate=1.6, capacity=40)
    >>> ranked, reasons = costs(traits(queue), queue.representation, None)
    >>> ranked[0].solver
    'level_reduction'
    """
    n, entries, one = found.states, found.entries, product_cost(found.states, found.entries, representation)
    separate = found.parts > 1 and (found.coupling or 0) <= WEAK
    lattice = representation == "lattice"
    vector, halves = 8 * n, 1 if found.two_colors else 1.6
    # information goes one level a step
    krylov = (70 + (2 if lattice else 6) * max(found.levels - 15, 0)) * halves
    mixed = (
        82 + 0.5 * min(max(found.levels - 15, 0), 400) * (0 if lattice else 1) + (60 if lattice and n > LARGE else 0)
    )
    folded, overhead = 300.0 if separate else 200.0, 3e-3
    if found.widest_level == 1:  # the chain between levels of one state each is the chain itself, solved at once
        mixed, folded, overhead = 30.0, 20.0, 1e-4
    separator = min(found.widest_level, n ** (2 / 3))
    fill = 2 * n * max(math.log2(separator + 1), 1.0) + 4 * separator**2 * max(math.log2(n / separator), 1.0)
    step = STEP + 1.5 * one
    polish = 0.08 if n <= 1500 or not found.two_colors else 0.0
    table = [
        Cost("gth", None, 3e-3 + 5e-5 * n + 5e-11 * n**3, 16 * n * n, 3.0),
        Cost("sparse_lu", None, 8e-3 + 8e-6 * n + 2e-9 * separator**3, int(16 * fill + 36 * (entries + n)), 4.0),
        Cost(
            "level_reduction", None, 5e-3 + 5e-5 * found.levels + 1e-10 * found.elimination,
            int(found.elimination_bytes), 3.0,
        ),
        # its products are hard to foresee, so by time it counts as if it took twice as many
        Cost("aggregation", folded, 4e-3 + 2 * folded * (overhead / 3 + 1.6 * one), 8 * vector + 40 * entries, 4.0),
        Cost("anderson", mixed, mixed * (overhead + 5 * one), 16 * vector + 40 * entries, 3.0),
    ]  # fmt: skip
    if not separate:
        table.append(Cost("bicgstab", krylov, 2e-3 + krylov * step + polish, int(5.5 * vector), 2.5))
        table.append(Cost("gmres", 1.2 * krylov, 5e-3 + 2 * krylov * step + polish, 46 * vector, 4.0))
        if sweeps is not None:
            table.append(Cost("gauss_seidel", sweeps, 3e-3 + 1.4 * sweeps * one, 4 * vector, 1.7))
    if separate and (found.coupling or 0) <= FAINT:
        table = [cost for cost in table if cost.solver != "sparse_lu"]
    table.sort(key=lambda cost: cost.seconds)
    return table, _reasons(table[0], found, separate, sweeps)


def _reasons(first: Cost, found: Traits, separate: bool, sweeps: float | None) -> tuple[str, ...]:
    """Return why the first one is the first, with the numbers that were read."""
    n = found.states
    because = {
        "gth": f"{n:,} states are few enough for dense elimination, which cannot be inaccurate.",
        "sparse_lu": f"{n:,} states in {found.levels:,} levels of at most {found.widest_level:,} leave factors with few entries.",
        "level_reduction": f"{found.levels:,} levels of at most {found.widest_level:,} states are eliminated one after the other.",
        "bicgstab": (
            f"{n:,} states in {found.levels:,} levels of at most {found.widest_level:,} are too wide to factorise quickly, and short "
            "enough for a Krylov method."
        ),
        "gauss_seidel": f"A few trial sweeps shrink the defect so quickly that about {sweeps or 0:,.0f} products' worth are enough.",
        "aggregation": f"{n:,} states are many for elimination, and aggregation is what weak links or long levels do not disturb.",
        "anderson": f"{n:,} states are many for elimination, and mixing iterates takes few products.",
        "gmres": f"{n:,} states are many for elimination.",
    }[first.solver]  # fmt: skip
    if found.widest_level == 1 and first.solver in ("aggregation", "anderson"):
        because = f"{found.levels:,} levels of one state each: aggregation over the levels solves the chain at once, at any load."
    reasons = [because]
    if separate:
        reasons.append(
            f"There are {found.parts:,} parts that exchange less than {found.coupling:g} of their flow by any transition: Krylov "
            "methods and sweeps would stagnate, so they are left out"
            + (
                ", and so is factorisation, whose rounding outweighs so little."
                if (found.coupling or 0) <= FAINT
                else "."
            )
        )
    if found.two_colors and first.solver in ("bicgstab", "gmres", "anderson"):
        reasons.append("Every transition changes the color, so that iterations work on half of the states.")
    return tuple(reasons)


def krylov_products(levels: int, form: str) -> tuple[int, int]:
    """Return the least and most products that petsc_krylov is expected to make on a shared chain with so many levels.

    Parameters
    ----------
    levels : int
        States in a row along the longest coordinate: information goes one level a step.
    form : str
        'shell' has no preconditioner; others have blocks and levels.

    Examples
    --------
    >>> krylov_products(70, "shell"), krylov_products(70, "reduced")
    ((119, 721), (41, 369))
    """
    steps, spread = (2 * (70 + 1.4 * max(levels - 15, 0)), 2.45) if form == "shell" else (68 + max(levels - 15, 0), 3.0)
    return int(steps / spread), math.ceil(steps * spread)


def trial_sweeps(chain: Generator) -> float | None:
    """Return the products' worth that Gauss-Seidel is expected to take, from a few trial sweeps; None where it gets nowhere.

    Twelve symmetric sweeps, with four looks at the defect: 28 products' worth.  The rate at which the
    defect shrinks in the last four sweeps is taken to go on, or in the last eight where those were slower.

    Parameters
    ----------
    chain : Generator
        Irreducible.

    Examples
    --------
    >>> chain = registry.build("polling", stations=4)
    >>> round(trial_sweeps(chain))
    52
    """
    solver: Any = registry.make_solver("gauss_seidel(max_iterations=12, sweeps_per_check=4)")
    outcome = solver.run(Stationary(chain), Trace(TOLERANCE))
    defects = np.maximum(outcome.history["defect"], 1e-300)
    if outcome.status is Status.CONVERGED:
        return 2.25 * float(outcome.history["iteration"][-1])
    if len(defects) < 4 or not defects[3] < min(defects[1:3]):
        return None
    rate = max(defects[3] / defects[2], math.sqrt(defects[3] / defects[1]))
    more = 4 * math.log(TOLERANCE / defects[3]) / math.log(rate)
    return 2.25 * (12 + more) if more < MOST_SWEEPS else None


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
        return [Cost("level_dependent", None, 1.0, 0, 100.0)], (reason,), {"seconds_of_a_product": 1e-3}
    m = queue.phase_count
    mixing = _mixing(queue)
    one = 2 * m**3 / 2e10 + 2e-4  # a product of dense blocks, and what a step costs however few the phases are
    facts = {"phases": m, "boundary_levels": queue.boundary_levels, "drift": queue.drift, "mixing": mixing,
             "seconds_of_a_product": one}  # fmt: skip
    slow = mixing < MIXING
    steps = {
        "functional_iteration": 4.0 if not slow else 1000.0,
        "cyclic_reduction": 30.0 if slow else 11.0,
        "logarithmic_reduction": 70.0 if slow else 25.0,
        "newton": 250.0,
        "invariant_subspace": 300.0,
    }
    reasons = []
    if registry.takes(registry.make_solver("rank_one"), Stationary(queue)):
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
    ('chebyshev', 300.0, 127)
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
        names = ("resolvent_lu", "resolvent_krylov") if isinstance(problem, DiscountedReward) else (
            "absorption_elimination", "absorption_krylov", "absorption_lu")  # fmt: skip
        moments = problem.moments
        products = {name: 150.0 * moments for name in names if name.endswith("krylov")}
        work = dict.fromkeys(products, 150 * moments * one)
        work |= {name: 1e-7 * chain.size**1.8 + 1e-3 for name in names if name.endswith("lu")}
        work |= {name: 2.5e-11 * chain.size**3 + 1e-3 for name in names if name.endswith("elimination")}
        if first == "class_elimination":
            facts["multiplications"], size = class_work(problem)
            work[first] = 5e-10 * facts["multiplications"] + 2e-8 * (moments + 1) * (chain.entries + chain.size) + 1e-3
        facts["moments"] = moments
        if isinstance(problem, DiscountedReward):
            facts["events"] = rate / problem.discount
        reason = (
            _of_classes(chain.size, facts["multiplications"])
            if first == "class_elimination"
            else f"{chain.size:,} states are few enough to eliminate, which no spread of rates disturbs."
            if first.endswith(("lu", "elimination"))
            else f"{chain.size:,} states are many for elimination, so a Krylov method takes the equations."
        )
    vector = 8 * chain.size
    dense = {"absorption_elimination": 16 * chain.size**2, "krylov_exponential": 40 * vector}
    if first == "class_elimination":
        dense[first] = int(size) + 8 * vector + 24 * chain.entries
    ranked = [
        Cost(name, products.get(name), seconds, dense.get(name, 10 * vector), 4.0) for name, seconds in work.items()
    ]
    ranked.sort(key=lambda cost: (cost.solver != first, cost.seconds))
    return ranked, (reason,), facts


def _of_classes(states: int, multiplications: float) -> str:
    """Return why classes are eliminated one after the other."""
    if multiplications <= 2 * states:
        return "There is no way back from any state to itself, so substitution along the ways solves the equations."
    return (
        f"Elimination class by class takes some {multiplications:.1e} multiplications, and long ways do not disturb it."
    )


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
