"""Advice: which solver to take for a problem, why, and what it will take; read from the model, never promised."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.costs import Cost, costs, costs_of_queue, costs_over_time, product_cost, trial_sweeps
from ctmc.defaults import default_solver
from ctmc.errors import ModelError, printable
from ctmc.model.generator import Generator
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.memory import format_size, memory_limit
from ctmc.model.parameters import check_truth
from ctmc.model.qbd import QBD
from ctmc.model.summary import Rows, Summarised
from ctmc.model.traits import Traits, traits
from ctmc.problem import Problem, Stationary, check_problem
from ctmc.solver import Solver

AUTO = "auto"
"""What stands for the advised solver where a solver is named."""
SLOWEST = 4.0
"""By how much a machine is taken to differ from the one that the rules were fitted on."""
NEARLY_DECOMPOSABLE = 1e-4
"""From this coupling on a small defect says little about the masses of the parts."""


@dataclass(frozen=True)
class Candidate:
    """A solver, and what it will take as far as can be told.

    Attributes
    ----------
    solver : str
        With its options.
    products : tuple of int, or None
        Least and most products that are forecast; None for methods that eliminate.
    work : tuple of float
        Least and most products' worth of time: seconds over the seconds of one product; of two blocks, for a QBD.
    seconds : tuple of float, or None
        The same in seconds of this machine, as it is busy now; None where no product was timed.
    bytes : int
        Beside the model.
    """

    solver: str
    products: tuple[int, int] | None
    work: tuple[float, float]
    seconds: tuple[float, float] | None
    bytes: int


@dataclass(frozen=True, repr=False)
class Advice(Summarised):
    """Which solver to take, why, and what it will take.

    Attributes
    ----------
    problem : str
    solver : str
        The recommendation, with its options: the least time.
    fewest_products : str
        The iterative method that is forecast to make the fewest products: for models whose products are dear, such as those that
        are streamed from a file.  '' where none is taken into account.
    candidates : tuple of Candidate
        Ranked, the recommendation first; solvers that do not fit the memory limit are left out.
    facts : mapping of str to object
        What was read.
    reasons, warnings : tuple of str
        Sentences.
    certify : str
        'defect', or 'strict' where a small defect proves little.
    """

    problem: str
    solver: str
    fewest_products: str
    candidates: tuple[Candidate, ...]
    facts: dict[str, Any]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    certify: str

    @property
    def recommended(self) -> Candidate:
        """The first of the candidates."""
        return self.candidates[0]

    def _summary(self) -> tuple[str, Rows]:
        found = self.recommended
        rows: list[tuple[str, Any]] = [("solver", self.solver)]
        rows += [("products", range_text(found.products))] if found.products else []
        rows += [("seconds", range_text(found.seconds))] if found.seconds else []
        rows += [("memory", format_size(found.bytes))]
        rows += [("reason", reason) for reason in self.reasons]
        return "Advice", rows + [("warning", warning) for warning in self.warnings]


def advise(problem: Problem | Generator | QBD | LevelDependentQBD, *, timed: bool = True) -> Advice:
    """Recommend a solver for a problem, with reasons and a forecast.

    What is read (`ctmc.model.traits`, and a few trial sweeps where there are rows) takes some 5 ms, and the time of ten products
    for models in lattice form, of 50 to 180 for others, half of which are the sweeps; with `timed` ten products more are timed for
    the forecast in seconds.  The recommendation depends on the model and on the memory limit alone, not on the clock.

    Parameters
    ----------
    problem : problem, or model
        A model stands for its stationary problem.
    timed : bool
        Whether the forecast is told in seconds, too.

    Returns
    -------
    Advice

    Raises
    ------
    ModelError
        If it is neither, or if no solver fits the memory limit.

    Notes
    -----
    Rules and factors were measured on a gallery of models; `benchmarks/README.md` tells how often they are right.  A forecast is a
    range, and no promise.

    Examples
    --------
    >>> queue = registry.build("birth_death", births=[0.9] * 400, deaths=[1.0] * 400)
    >>> found = advise(queue)
    >>> found.solver, found.facts["levels"]
    ('anderson', 401)
    """
    if isinstance(problem, Generator | QBD | LevelDependentQBD):
        problem = Stationary(problem)
    check_problem(problem, also=" or a model")
    check_truth("timed", timed)
    model = problem.model
    limit = memory_limit()
    facts: dict[str, Any] = {"model": type(model).__name__, "memory_limit": limit}
    warnings: list[str] = []
    certify = "defect"
    one = None
    if isinstance(problem, Stationary) and isinstance(model, Generator):
        found = traits(model)
        facts |= {**dataclasses.asdict(found), "entries_per_state": found.entries_per_state}
        tried = found.rows_read and model.classes.irreducible and model.size > 1
        sweeps = trial_sweeps(model) if tried else None
        ranked, reasons = costs(found, model.representation, sweeps)
        certify, warnings = _doubts(found, facts)
        nominal = product_cost(found.states, found.entries, model.representation)
    elif isinstance(problem, Stationary) and not isinstance(model, Generator):
        ranked, reasons, read = costs_of_queue(model)
        facts |= read
        nominal = one = read["seconds_of_a_product"]
    else:
        ranked, reasons, read = costs_over_time(problem)
        facts |= read
        nominal = product_cost(model.size, model.entries, model.representation)  # type: ignore[union-attr]  # a generator
    ranked = [cost for cost in ranked if _can_run(cost.solver, problem)]
    fitting = [cost for cost in ranked if cost.bytes <= limit]
    if not fitting:
        least = min(cost.bytes for cost in ranked)
        raise ModelError(
            f"memory limit is {format_size(limit)}, but every solver takes {format_size(least)} or more; allowed is a higher one."
        )
    left_out = [cost.solver for cost in ranked if cost.bytes > limit]
    if left_out:
        reasons = (*reasons, f"{', '.join(left_out)} would not fit the memory limit, {format_size(limit)}.")
    if timed and isinstance(model, Generator):
        # what other processes and threads take of so short a time must not blow up the forecast
        one = float(np.clip(_seconds_of_product(model), nominal / SLOWEST, nominal * SLOWEST))
        facts["seconds_of_a_product"] = one
    iterative = [cost for cost in fitting if cost.products is not None]
    return Advice(
        problem=registry.problem_name(type(problem)),
        solver=fitting[0].solver,
        fewest_products=min(iterative, key=lambda cost: cost.products or 0.0).solver if iterative else "",
        candidates=tuple(_candidate(cost, nominal, one) for cost in fitting),
        facts=facts,
        reasons=tuple(reasons),
        warnings=tuple(warnings),
        certify=certify,
    )


def is_auto(solver: Any) -> bool:
    """Return whether a solver is named 'auto'; one with options is refused.

    Examples
    --------
    >>> is_auto("auto"), is_auto("gth")
    (True, False)
    """
    if not isinstance(solver, str) or solver.partition("(")[0].strip() != AUTO:
        return False
    if solver.strip() != AUTO:
        raise ModelError(f"solver is {printable(solver)!r}; allowed is 'auto' alone, which has no options.")
    return True


def chosen_solver(problem: Problem, solver: Solver | str | None = None) -> tuple[Solver, str]:
    """Return the solver that is meant, and for 'auto' one sentence on what it became and why.

    Parameters
    ----------
    problem : problem
    solver : Solver or str, optional
        An object, text, 'auto' for the advised one, or None for the default.

    Examples
    --------
    >>> queue = registry.build("birth_death", births=[1.0] * 4, deaths=[2.0] * 4)
    >>> chosen_solver(Stationary(queue), "auto")[0]
    Gth()
    """
    if not is_auto(solver):
        return registry.make_solver(default_solver(problem) if solver is None else solver), ""
    if getattr(problem.model, "shared", False):  # whose traits no rank knows
        name = default_solver(problem)
        return registry.make_solver(name), f"auto: {name}, the default where ranks share the model."
    advice = advise(problem, timed=False)
    return registry.make_solver(advice.solver), f"auto: {advice.solver}. {' '.join(advice.reasons[:1])}"


def range_text(numbers: tuple[float, float]) -> str:
    """Return a range as text.

    Examples
    --------
    >>> range_text((40, 160)), range_text((0.012, 0.19))
    ('40 to 160', '0.012 to 0.19')
    """
    low, high = (f"{number:,.0f}" if number >= 10 else f"{number:.2g}" for number in numbers)
    return f"{low} to {high}"


def _can_run(solver: str, problem: Problem) -> bool:
    made = registry.make_solver(solver)
    return registry.takes(made, problem) and not registry.missing_library(made)


def _candidate(cost: Cost, nominal: float, one: float | None) -> Candidate:
    """Return a cost as ranges; `one` is the measured time of a product, `nominal` the one that the cost was reckoned with."""
    spread = cost.spread
    products = None if cost.products is None else (int(cost.products / spread), -int(-cost.products * spread))
    work = cost.seconds / nominal
    low, high = work / spread, work * spread
    seconds = None if one is None else (low * one, high * one)
    return Candidate(cost.solver, products, (low, high), seconds, cost.bytes)


def _doubts(found: Traits, facts: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the certificate to ask for, and warnings."""
    warnings = []
    certify = "defect"
    if found.coupling is not None and found.coupling <= NEARLY_DECOMPOSABLE:
        certify = "strict"
        warnings.append(
            f"Nearly decomposable: without transitions below {found.coupling:g} of an exit rate there are {found.parts:,} parts, "
            "whose masses a small defect hardly proves; check with --certify strict, or with gth where it fits."
        )
    if found.stiffness >= 1e6:
        warnings.append(
            f"Exit rates differ by a factor of {found.stiffness:.1e}: slow states carry little of the defect, so look at the "
            "certificate's word on slow states."
        )
    if found.recurrent_classes > 1:
        warnings.append(
            f"There are {found.recurrent_classes:,} recurrent classes, each of which is solved by itself; the forecast takes them "
            "for one chain, and their weights need --initial."
        )
    if not found.rows_read and not facts.get("two_colors"):
        warnings.append("Single transitions were not looked at, so weak links between parts would not have been seen.")
    return certify, warnings


def _seconds_of_product(chain: Generator) -> float:
    """Return the least time of a product out of ten, the first of which loads what is compiled."""
    p = np.full(chain.size, 1 / chain.size)
    out = chain.forward(p)
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        chain.forward(p, out)
        times.append(time.perf_counter() - begin)
    return min(times)
