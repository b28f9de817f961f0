"""Certificates: the defect of an answer, recomputed from the definition of its problem.

One function per problem and model; answers over time are checked by `ctmc.witness` as they come.  Nothing takes a number from
the solver except what the definition itself needs (R and G of a matrix-geometric answer, the integrals of a transient one).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.errors import ModelError
from ctmc.model import exchange, products, shared_exchange
from ctmc.model.banded import banded_stationary, may_be_eliminated
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.level_dependent import LevelDependentQBD, LevelDistribution
from ctmc.model.level_elimination import off_elimination
from ctmc.model.multilevel import estimated_error
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.model.shared import SharedGenerator
from ctmc.problem import Stationary
from ctmc.ranks import ALONE, Ranks
from ctmc.solution import Outcome, Status

MASS_TOLERANCE = 1e-12
"""Largest deviation of a total probability from 1, whatever the tolerance."""
ROW_SUM_TOLERANCE = 1e-12
"""Largest deviation of a row sum of G from 1."""
_COMPARED = 500


@dataclass(frozen=True)
class Certificate:
    """The verdict: defect, status (CONVERGED or what is wrong), a sentence, and a proven error bound if there is one."""

    defect: float
    status: Status
    reason: str
    error_bound: float | None = None


def imbalance(flow: np.ndarray, pi: np.ndarray, chain: Generator) -> float:
    """Return ||pi Q||_1 / sum_i pi_i q_i, the imbalance relative to the probability flow; 0 where nothing flows.

    Parameters
    ----------
    flow : ndarray, shape (n,)
        pi Q.
    pi : ndarray, shape (n,)
    chain : Generator

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1e-6, 1e-6], [1e4, -1e4]])           # failures and repairs
    >>> up = np.array([1.0, 0.0])
    >>> round(imbalance(chain.forward(up), up, chain), 12)                    # "always up" is the worst answer there is
    2.0
    """
    imbalances, through = chain.ranks.total(np.array(products.weigh(flow, pi, chain.exit_rates))).tolist()
    return imbalances / through if through > 0 else 0.0


def certify(problem: Any, outcome: Outcome) -> Certificate:
    """Return the certificate of a solver's claim."""
    if isinstance(problem.model, QBD):
        return _with_checks(problem, outcome.value, stationary_qbd(problem, outcome.value))
    if isinstance(problem.model, LevelDependentQBD):
        return stationary_levels(problem, outcome.value)
    return stationary(problem, outcome.value)


def stationary(problem: Stationary, pi: Any) -> Certificate:
    """Check pi >= 0, pi 1 = 1 and pi Q = 0 in every recurrent class by itself, and what a small defect does not prove."""
    chain = problem.model
    assert isinstance(chain, Generator)
    if isinstance(chain, SharedGenerator):
        return _shared_stationary(chain, pi, problem.tolerance)
    wrong = wrong_vector(pi, (chain.size,))
    if wrong:
        return wrong
    flow = chain.forward(pi)
    defect = imbalance(flow, pi, chain)
    if not chain.classes.irreducible:
        # fast classes must not hide what is wrong in a slow one
        found = chain.classes
        through = np.bincount(found.class_of, weights=np.abs(pi) * chain.exit_rates, minlength=found.count)
        imbalances = np.bincount(found.class_of, weights=np.abs(flow), minlength=found.count)
        moving = found.recurrent[through[found.recurrent] > 0]
        defect = max(defect, float((imbalances[moving] / through[moving]).max(initial=0.0)))
    wrong = wrong_distribution(pi, defect) or verdict(problem.tolerance, defect) or _wrong_weights(problem, pi, defect)
    if wrong:
        return wrong
    if chain.classes.irreducible:
        return _hidden(chain, pi, flow, problem.tolerance, defect) or _converged(problem.tolerance, defect)
    accepted = math.sqrt(problem.tolerance)
    whole = chain.size > _COMPARED and not may_be_eliminated(chain)
    if len(chain.classes.recurrent) == 1 and whole and not exchange.parts(chain, pi, accepted).any():
        return slow_states(chain, pi, flow, problem.tolerance, defect) or _converged(problem.tolerance, defect)
    for number in chain.classes.recurrent:
        members = chain.classes.members(number)
        mass = float(pi[members].sum())
        if len(members) > 1 and mass > 0:
            part = chain.restricted(members)
            wrong = _hidden(part, pi[members] / mass, flow[members] / mass, problem.tolerance, defect)
            if wrong:
                return wrong
    return _converged(problem.tolerance, defect)


def _shared_stationary(chain: SharedGenerator, pi: Any, tolerance: float) -> Certificate:
    """Do the same on all ranks together; a shared chain has one recurrent class."""
    ranks = chain.ranks
    wrong = agreed(ranks, wrong_vector(pi, (chain.size,)))
    if wrong:
        return wrong
    flow = chain.forward(pi)
    defect = imbalance(flow, pi, chain)
    wrong = wrong_distribution(pi, defect, ranks=ranks) or verdict(tolerance, defect)
    if wrong:
        return wrong
    outside = ranks.total(float(pi[~chain.recurrent].sum()))
    if outside > max(tolerance, MASS_TOLERANCE):
        return _transient_mass(outside, defect)
    if chain.states <= _COMPARED:
        whole, parts = shared_exchange.gathered(chain), np.concatenate(ranks.gathered(pi))
        return stationary(Stationary(whole, tolerance), parts)
    return (
        slow_states(chain, pi, flow, tolerance, defect)
        or slow_exchange(chain, pi, flow, tolerance, defect)
        or _converged(tolerance, defect)
    )


def _transient_mass(outside: float, defect: float) -> Certificate:
    return Certificate(
        defect, Status.INACCURATE, f"transient states have the probability {outside:.2g}; in the long run it is 0."
    )


def _wrong_weights(problem: Stationary, pi: np.ndarray, defect: float) -> Certificate | None:
    """Compare the masses of the recurrent classes with the probabilities to end there; transient states have none."""
    chain = problem.model
    assert isinstance(chain, Generator)
    found = chain.classes
    if found.irreducible:
        return None
    recurrent = np.zeros(found.count, dtype=bool)
    recurrent[found.recurrent] = True
    outside = float(pi[~recurrent[found.class_of]].sum())  # by itself: what a sum of millions lacks to 1 is rounding
    accepted = max(problem.tolerance, MASS_TOLERANCE)
    if outside > accepted:
        return _transient_mass(outside, defect)
    if len(found.recurrent) == 1 or problem.initial is None:
        return None
    masses = np.bincount(found.class_of, weights=pi, minlength=found.count)[found.recurrent]
    weights, residual, rounding = problem.class_weights
    seen = float(np.abs(masses - weights).sum()) + residual
    off = seen + rounding
    # long ways to the classes have rounding beyond the tolerance, which still proves the weights
    if not (off <= accepted or (seen <= rounding and off <= math.sqrt(problem.tolerance))):
        return Certificate(
            defect, Status.INACCURATE, f"the weights of the recurrent classes are off by up to {off:.2g}."
        )
    return None


def _hidden(chain: Generator, pi: np.ndarray, flow: np.ndarray, tolerance: float, defect: float) -> Certificate | None:
    """Look for what the defect of an irreducible chain does not show: `slow_states` and `slow_exchange`."""
    return slow_states(chain, pi, flow, tolerance, defect) or slow_exchange(chain, pi, flow, tolerance, defect)


def slow_states(
    chain: Generator, pi: np.ndarray, flow: np.ndarray, tolerance: float, defect: float
) -> Certificate | None:
    """Check that slow states balance by themselves: beside fast ones their whole flow is within the tolerance.

    The states are taken by the decade of their exit rates.  Where a decade has more than sqrt(tolerance) of the mass, its
    imbalance relative to its own flow must be below sqrt(tolerance) too.
    """
    accepted = math.sqrt(tolerance)
    for decade, mass, through, imbalances in exchange.balance_by_decade(chain.exit_rates, pi, flow, chain.ranks):
        if mass > accepted and imbalances > accepted * through:
            return Certificate(
                defect,
                Status.INACCURATE,
                f"the states with exit rates of about 1e{int(decade)} have the probability {mass:.2g}, but their balance is off by "
                f"{imbalances / through:.2g} of their own flow although the defect is {defect:.2g}.",
            )
    return None


def slow_exchange(
    chain: Generator, pi: np.ndarray, flow: np.ndarray, tolerance: float, defect: float
) -> Certificate | None:
    """Compare the masses of nearly separate parts of the chain with the balance of the flow between them.

    A small defect says little about the masses of parts that hardly exchange anything: two blocks coupled by 1e-14 can have
    any masses at a defect of 1e-14.  The exact masses of the parts follow from the chain between them, whose rates are flow
    over mass.  Where elimination is cheap, up to 500 states and for longer chains in a narrow band (`ctmc.model.banded`),
    every state is a part, and the answer is compared with elimination itself.  Else states that exchange more than
    sqrt(tolerance) of their flow are put together, since there a defect within the tolerance
    settles the masses to sqrt(tolerance); the chain between the parts must have a defect within the tolerance of its own,
    and is looked at in the same way, until 500 parts are left.

    What is unbalanced inside the parts counts too.  An imbalance r_j in the midst of a part, with the flow F_j through the
    state, gets to the other side with probability phi / F_j or so, phi being the exchange of the part, and one on the ridge
    between the parts with any probability; relative to phi this makes sum_j |r_j| / max(F_j, phi).

    Last, up to 500,000 states in memory (100,000 on a lattice), the error is estimated by cycles of multilevel aggregation
    (`ctmc.model.multilevel`); half of sqrt(tolerance) is accepted.  What larger chains hide: a part that the answer has
    missed altogether, and an error that moves slowly through a chain without nearly separate parts.

    Source: the aggregation step of P. J. Courtois, *Decomposability*, Academic Press 1977, and of J. R. Koury, D. F.
    McAllister, W. J. Stewart, SIAM J. Algebraic Discrete Methods 5 (1984), doi:10.1137/0605019, used as a test.
    """
    accepted = math.sqrt(tolerance)
    exact = _eliminated(chain)
    if exact is not None:
        off = float(np.abs(exact - pi).sum())
        return None if off <= accepted else _unbalanced(chain.size, off, defect)
    wrong = _unbalanced_parts(chain, pi, flow, tolerance, defect)
    if wrong or isinstance(chain, SharedGenerator):
        return wrong
    error = estimated_error(chain, pi, accepted / 2)
    if error is None or error <= accepted / 2:
        return None
    return Certificate(
        defect,
        Status.INACCURATE,
        f"cycles of aggregation find the answer to be off by about {error:.2g} although the defect is {defect:.2g}.",
    )


def _unbalanced_parts(
    chain: Generator, pi: np.ndarray, flow: np.ndarray, tolerance: float, defect: float
) -> Certificate | None:
    """Return what is wrong between parts that exchange little."""
    accepted = math.sqrt(tolerance)
    if isinstance(chain, SharedGenerator):
        whole, masses = shared_exchange.between_parts(chain, pi, accepted)
    else:
        whole, masses = exchange.between_parts(chain, pi, exchange.parts(chain, pi, accepted))
    count = len(masses)
    matters = np.minimum(masses, 1 - masses) > accepted
    if not matters.any():
        return None
    net, exchanged = whole.forward(masses), masses * whole.exit_rates
    if not whole.classes.irreducible:
        return _unbalanced(count, math.nan, defect)  # nothing flows out of some part
    off = chain.ranks.total(float((np.abs(flow) / np.maximum(pi * chain.exit_rates, exchanged[matters].min())).sum()))
    if not off <= accepted:
        return _unbalanced(count, off, defect)
    off = float(np.abs(net[matters]).sum() / exchanged[matters].sum())
    if count > _COMPARED and not off <= tolerance:
        return _unbalanced(count, off, defect)
    return slow_exchange(whole, masses, net, tolerance, defect)


def _eliminated(chain: Generator) -> np.ndarray | None:
    """Return the stationary distribution by elimination where that is cheap; NaN where nothing flows out of some part."""
    if isinstance(chain, SharedGenerator):
        return None
    if chain.size > _COMPARED:
        return banded_stationary(chain)
    try:
        return gth(chain.to_scipy().toarray())
    except ModelError:
        return np.full(chain.size, math.nan)


def _unbalanced(count: int, off: float, defect: float) -> Certificate:
    return Certificate(
        defect,
        Status.INACCURATE,
        f"the masses of {count} parts of the chain do not balance (off by {off:.2g}) although the defect is {defect:.2g}: "
        "they hardly exchange anything.",
    )


def stationary_qbd(problem: Stationary, answer: Any) -> Certificate:
    """Check the balance of every level of a matrix-geometric answer: the boundary one by one, the rest in closed form."""
    queue = problem.model
    assert isinstance(queue, QBD)
    if not isinstance(answer, MatrixGeometric):
        return Certificate(
            math.nan, Status.BREAKDOWN, f"the answer is a {type(answer).__name__}, not a MatrixGeometric."
        )
    shapes = [(len(table),) for table in queue.phases] + [(queue.phase_count, queue.phase_count)]
    arrays = [*answer.boundary, answer.r]
    if len(arrays) != len(shapes):
        return Certificate(
            math.nan, Status.BREAKDOWN, f"the answer has {len(answer.boundary)} levels, not {len(shapes) - 1}."
        )
    for array, shape in zip(arrays, shapes, strict=True):
        wrong = wrong_vector(array, shape)
        if wrong:
            return wrong
    if answer.r.min() < 0:
        return Certificate(
            math.nan, Status.INACCURATE, f"R has the entry {answer.r.min():.3g}; allowed are entries >= 0."
        )
    try:
        repeating = answer.repeating_phases
    except np.linalg.LinAlgError:
        repeating = None
    if repeating is None or not answer.decay_rate < 1:
        return Certificate(
            math.nan, Status.INACCURATE, f"the spectral radius of R is {answer.decay_rate:.12g}, not below 1."
        )
    up, local, down, r = queue.up, queue.local, queue.down, answer.r
    vectors = [*answer.boundary, answer.boundary[-1] @ r]
    imbalances, flow = 0.0, 0.0
    for k, level in enumerate(queue.boundary):
        above = queue.boundary[k + 1].down if k + 1 < len(queue.boundary) else down
        balance = vectors[k] @ level.local + vectors[k + 1] @ above
        if k:
            balance += vectors[k - 1] @ queue.boundary[k - 1].up
        imbalances += float(np.abs(balance).sum())
        flow -= float(vectors[k] @ level.local.diagonal())
    residual = np.abs(up.toarray() + r @ local + (r @ r) @ down)
    imbalances += float(np.abs(repeating) @ residual.sum(axis=1))
    flow -= float((repeating - answer.boundary[-1]) @ local.diagonal())
    defect = imbalances / flow if flow > 0 else 0.0
    least = min(float(vector.min()) for vector in answer.boundary)
    if least < 0:
        return Certificate(defect, Status.INACCURATE, f"a probability is {least:.3g}; allowed are numbers >= 0.")
    if abs(answer.mass - 1) > MASS_TOLERANCE:
        return Certificate(defect, Status.INACCURATE, f"the total probability is off 1 by {answer.mass - 1:.3g}.")
    if answer.g is not None:
        wrong = wrong_vector(answer.g, shapes[-1])
        if wrong:
            return wrong
        off = float(np.abs(answer.g.sum(axis=1) - 1).max())
        if off > ROW_SUM_TOLERANCE or answer.g.min() < 0:
            return Certificate(
                defect,
                Status.INACCURATE,
                f"row sums of G are off 1 by {off:.2g} and its least entry is {answer.g.min():.2g}; a small residual "
                "proves nothing about G.",
            )
    return verdict(problem.tolerance, defect) or _hidden_levels(problem, answer, defect)


def _hidden_levels(problem: Stationary, answer: MatrixGeometric, defect: float) -> Certificate:
    """Compare with elimination where it is cheap; else with the flow between levels, and look for slow exchange on the boundary.

    Where levels hardly drift, a small defect says little about the decay rate: the equation of R has two roots near 1, and
    rounding in R over their distance is an error of any answer.  As much flows up as down between levels; what is unbalanced
    there, over 1 minus the decay rate, is about the error of the mean level.  Watched on its boundary levels only, a QBD is
    a finite chain.
    """
    queue = problem.model
    assert isinstance(queue, QBD)
    off = off_elimination(queue, answer)
    if off is not None:
        if not off <= 0.9 * math.sqrt(problem.tolerance):  # a tenth for what cancels inside a block of levels
            return Certificate(
                defect,
                Status.INACCURATE,
                f"elimination of the levels gives another answer (off by {off:.2g}) although the defect is {defect:.2g}: levels "
                "or phases are left slowly.",
            )
    else:
        above = answer.repeating_phases
        rises = float(above @ queue.up.sum(axis=1))
        falls = float(above @ (answer.r @ queue.down.sum(axis=1)))
        off = abs(rises - falls) / (1 - answer.decay_rate)
        if not off <= math.sqrt(problem.tolerance) * rises:
            return Certificate(
                defect,
                Status.INACCURATE,
                f"the flow up and the flow down between levels do not balance (off by {off / rises:.2g}, relative to how fast the "
                f"levels fall off) although the defect is {defect:.2g}: levels hardly drift.",
            )
        chain = queue.watched_boundary(answer.r @ queue.down)
        pi = np.concatenate(answer.boundary)
        if chain.classes.irreducible:
            pi /= pi.sum()
            wrong = _hidden(chain, pi, chain.forward(pi), problem.tolerance, defect)
            if wrong:
                return wrong
    reason = f"the defect {defect:.2g} over all levels is within {problem.tolerance:g}."
    return Certificate(defect, Status.CONVERGED, reason)


def stationary_levels(problem: Stationary, answer: Any) -> Certificate:
    """Check pi Q = 0 over all levels with nothing beyond the kept ones: what leaves the last of them upwards is unbalanced.

    The mass beyond is estimated from how the masses of the levels fall, and must be within sqrt(tolerance); then what a small
    defect does not prove is looked for on the kept levels.
    """
    queue = problem.model
    assert isinstance(queue, LevelDependentQBD)
    if not isinstance(answer, LevelDistribution) or not answer.levels:
        return Certificate(
            math.nan, Status.BREAKDOWN, f"the answer is a {type(answer).__name__}, not a LevelDistribution with levels."
        )
    vectors, last = answer.levels, len(answer.levels) - 1
    levels = [queue.level(k) for k in range(last + 1)]
    imbalances, flow = 0.0, 0.0
    for k, level in enumerate(levels):
        wrong = wrong_vector(vectors[k], (level.local.shape[0],))
        if wrong:
            return wrong
    for k, level in enumerate(levels):
        balance = vectors[k] @ level.local
        if k:
            balance += vectors[k - 1] @ levels[k - 1].up
        if k < last:
            balance += vectors[k + 1] @ levels[k + 1].down
        imbalances += float(np.abs(balance).sum())
        flow -= float(np.abs(vectors[k]) @ level.local.diagonal())
    imbalances += float(np.abs(vectors[last] @ levels[last].up).sum())
    defect = imbalances / flow if flow > 0 else 0.0
    pi = np.concatenate(vectors)
    wrong = wrong_distribution(pi, defect)
    if wrong:
        return wrong
    if not answer.beyond <= math.sqrt(problem.tolerance):
        return Certificate(
            defect,
            Status.INACCURATE,
            f"the mass beyond level {last} is about {answer.beyond:.2g} as the masses of the levels fall, or do not fall: "
            "more levels are needed, or there is no stationary distribution.",
        )
    if verdict(problem.tolerance, defect):
        return Certificate(
            defect,
            Status.INACCURATE,
            f"the recomputed defect {defect:.3g} is above the tolerance {problem.tolerance:g}; the mass beyond level {last} is "
            f"about {answer.beyond:.2g}.",
        )
    chain = queue.truncate(last + 1)
    net = chain.forward(pi)
    for number in chain.classes.recurrent:
        members = chain.classes.members(number)
        mass = float(pi[members].sum())
        if len(members) > 1 and mass > 0:
            wrong = _hidden(
                chain.restricted(members), pi[members] / mass, net[members] / mass, problem.tolerance, defect
            )
            if wrong:
                return wrong
    return Certificate(
        defect,
        Status.CONVERGED,
        f"the defect {defect:.2g} over levels 0 to {last} is within {problem.tolerance:g}; the mass beyond is about "
        f"{answer.beyond:.2g}.",
    )


def _with_checks(problem: Stationary, answer: Any, proof: Certificate) -> Certificate:
    """Ask a model for what it knows beside its equations; a deviation above the tolerance spoils an answer."""
    queue = problem.model
    assert isinstance(queue, QBD)
    if queue.checks is None or proof.status is not Status.CONVERGED:
        return proof
    accepted = max(problem.tolerance, MASS_TOLERANCE)
    reason = proof.reason.rstrip(".")
    for name, deviation in queue.checks(answer).items():
        if not float(deviation) <= accepted:
            return Certificate(
                proof.defect,
                Status.INACCURATE,
                f"a check of the model fails: {name}, is off by {float(deviation):.2g} although the defect is {proof.defect:.2g}.",
            )
        reason += f"; {name}, is right to {float(deviation):.2g}"
    return Certificate(proof.defect, Status.CONVERGED, f"{reason}.", proof.error_bound)


def _converged(tolerance: float, defect: float) -> Certificate:
    return Certificate(defect, Status.CONVERGED, f"the defect {defect:.2g} is within {tolerance:g}.")


def verdict(tolerance: float, defect: float) -> Certificate | None:
    """Return the verdict on a defect above the tolerance, None for one within it."""
    if defect <= tolerance:
        return None
    return Certificate(
        defect, Status.INACCURATE, f"the recomputed defect {defect:.3g} is above the tolerance {tolerance:g}."
    )


def wrong_vector(value: Any, shape: tuple[int, ...]) -> Certificate | None:
    """Return the verdict on what is not a finite float64 array of this shape, None on what is."""
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != np.float64:
        got = f"{value.dtype} array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        return Certificate(math.nan, Status.BREAKDOWN, f"the answer is a {got}, not a float64 array of shape {shape}.")
    if not np.isfinite(value).all():
        return Certificate(math.nan, Status.NOT_FINITE, f"{int((~np.isfinite(value)).sum())} entries are not finite.")
    return None


def agreed(ranks: Ranks, wrong: Certificate | None) -> Certificate | None:
    """Return the verdict of the first rank that has one."""
    return next((one for one in ranks.gathered(wrong) if one is not None), None)


def negative(vector: np.ndarray, defect: float, ranks: Ranks = ALONE) -> Certificate | None:
    """Return the verdict on a vector with an entry below 0, None where there is none."""
    wrong = None
    if vector.size and vector.min() < 0:
        least = int(np.argmin(vector))
        on = f" of rank {ranks.rank}" if ranks.count > 1 else ""
        wrong = Certificate(
            defect, Status.INACCURATE, f"entry {least}{on} is {vector[least]:.3g}; allowed are numbers >= 0."
        )
    return agreed(ranks, wrong)


def wrong_distribution(
    p: np.ndarray, defect: float, accepted: float = MASS_TOLERANCE, ranks: Ranks = ALONE
) -> Certificate | None:
    """Return the verdict on a vector that is no distribution: its mass off 1 by more than accepted, or a negative entry."""
    off = ranks.total(float(p.sum())) - 1
    if abs(off) > accepted:
        return Certificate(defect, Status.INACCURATE, f"the total probability is off 1 by {off:.3g}.")
    return negative(p, defect, ranks)
