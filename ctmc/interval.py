"""Proven intervals for long-run expectations, whatever the answer of the solver is worth.

For any vector h, pi Q h = 0, so E[r] = pi (r - Q h), and a mean lies between the extremes:

    min_x (r - Q h)(x) <= E[r] <= max_x (r - Q h)(x).

The interval is narrow where h solves the Poisson equation Q h = r - E[r]; it holds for any other h as well.  Source: the
bound is the elementary one of policy iteration, A. R. Odoni, *On finding the maximal gain for Markov decision processes*,
Oper. Res. 17 (1969).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.linalg import splu
from threadpoolctl import threadpool_limits

from ctmc.errors import ModelError, ReducibleError, UnsupportedProblemError, shown, unknown_name
from ctmc.model.generator import Generator
from ctmc.model.m_factors import factorized
from ctmc.model.memory import require_memory
from ctmc.model.parameters import LARGEST_COUNT, real_numbers, whole_number
from ctmc.model.reward import evaluate
from ctmc.problem import Problem, Stationary
from ctmc.solution import Solution

EPSILON = float(np.finfo(np.float64).eps)
SMALL = 3000
"""Up to this many states the Poisson equation is solved by sparse elimination."""

_RESTART = 60
_TARGET = 1e-9
_LEAST_NORMAL = float(np.finfo(np.float64).tiny)
COMPONENT = re.compile(r"\s*([^\W\d]\w*)\s*\[\s*(\d+)\s*\]\s*")


@dataclass(frozen=True)
class Interval:
    """Two numbers between which an exact value is proven to lie.

    Examples
    --------
    >>> found = Interval(0.25, 0.5)
    >>> found.width, 0.3 in found
    (0.25, True)
    """

    low: float
    high: float

    @property
    def width(self) -> float:
        """The larger number minus the smaller."""
        return self.high - self.low

    @property
    def relative_width(self) -> float:
        """The width as a part of the larger of the two numbers, signs left out; 0 where both are 0."""
        largest = max(abs(self.low), abs(self.high))
        return self.width / largest if largest else 0.0

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def enclose(chain: Generator, reward: np.ndarray, h: np.ndarray) -> Interval:
    """Return min and max of r - Q h with all rounding added: an interval that contains E[r] for any h.

    Per state, with m rates out of it, eps = 2^-52 and S = sum_j rate_ij |h_j| + exit_i |h_i|, the rounding of the product is
    at most (m + 2) eps S / 2 in any order of summation; (m + 4) eps (S + |r_i|) is added, so that the product that finds S,
    and the difference, are covered too.  Stored exit rates are rounded sums: |Q 1|, found in the same way, bounds what they
    are off, times |h_i|.  Q 1 = 0 lets h be shifted to lie around zero, which makes S small.

    Parameters
    ----------
    chain : Generator
        Irreducible.  What is proven is about the chain whose rates are the stored numbers, and whose exit rates are their
        exact sums.
    reward : ndarray, shape (n,)
        Finite.
    h : ndarray, shape (n,)
        Any numbers; where one is not finite, the interval is the whole line.

    Returns
    -------
    Interval

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])                    # pi = (2/3, 1/3)
    >>> found = enclose(chain, np.array([0.0, 3.0]), np.array([0.0, 0.5]))    # E[r] = 1
    >>> round(found.low, 12), round(found.high, 12)
    (-0.5, 4.0)
    """
    return _enclosure(chain, reward, h, *_row_rounding(chain))[0]


def _row_rounding(chain: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return (m + 4) for each state, m being the rates out of it, and a bound on what its stored exit rate is off."""
    terms = chain.most_transitions_out() + 4.0
    off = np.abs(chain.backward(np.ones(chain.size))) + 2 * EPSILON * terms * chain.exit_rates
    return terms, off


def _enclosure(
    chain: Generator, reward: np.ndarray, h: np.ndarray, terms: np.ndarray, off: np.ndarray
) -> tuple[Interval, np.ndarray, np.ndarray]:
    """Return the interval, r - Q h, and the bound of its rounding in each state."""
    with np.errstate(over="ignore", invalid="ignore"):
        h = h - (h.min() + (h.max() - h.min()) / 2)
        value = reward - chain.backward(h)
        exits = chain.exit_rates
        size = np.abs(h)
        # backward(|h|) has the exit rate's term with the other sign
        total = chain.backward(size) + 2 * exits * size + np.abs(reward)
        # 1.01: what the bound itself loses by rounding; the least normal number: what underflow takes from each term
        bound = 1.01 * (EPSILON * (terms * total + np.abs(value)) + off * size) + terms * _LEAST_NORMAL
        low, high = float((value - bound).min()), float((value + bound).max())
    if not (np.isfinite(low) and np.isfinite(high)):
        return Interval(-np.inf, np.inf), value, bound
    return Interval(float(np.nextafter(low, -np.inf)), float(np.nextafter(high, np.inf))), value, bound


# ---- the Poisson equation -------------------------------------------------------------------------------------------------


def _best_interval(chain: Generator, reward: np.ndarray, pi: np.ndarray, largest_products: int) -> Interval:
    """Return the interval of the h that solves Q h = r - E[r] as well as it gets; the chain is irreducible.

    E[r] is not known exactly, and with a wrong value the equation has no solution; so it is taken anew, from pi (r - Q h),
    after each correction of h: its error is the product of those of pi and h.
    """
    if chain.size == 1:
        return Interval(float(reward[0]), float(reward[0]))
    rounding = _row_rounding(chain)
    total = float(pi.sum())
    weights = np.full(chain.size, 1 / chain.size) if not (total > 0 and np.isfinite(total)) else pi / total
    correct = poisson_elimination(chain, int(weights.argmax())) if chain.size <= SMALL else None
    h = np.zeros(chain.size)
    _, value, bound = _enclosure(chain, reward, h, *rounding)
    best = Interval(float(reward.min()), float(reward.max()))  # of h = 0, without any rounding
    spent, poor = 0, 0
    while spent < largest_products and poor < 3:
        mean = float(weights @ value)
        residual = value - mean
        largest = float(np.abs(residual).max())
        target = max(0.5 * _TARGET * abs(mean), 0.1 * float(bound.max()))
        if not largest > target:
            break
        if correct is not None:
            step, products = correct(residual), 1
        else:
            step, products = poisson_cycle(chain, residual, 0.3 * target / largest, largest_products - spent)
        spent += products
        if not np.isfinite(step).all():
            break
        h = h + step
        found, value, bound = _enclosure(chain, reward, h, *rounding)
        # any two intervals hold, so both ends are the best so far; but further steps must pay
        poor = 0 if found.width < 0.5 * best.width else poor + 1
        best = Interval(max(best.low, found.low), min(best.high, found.high))
    return best


def poisson_elimination(chain: Generator, fixed: int) -> Any:
    """Return the map from b to h with Q h = b in all states but one, where h is 0: the state that is visited most.

    None where the state is too hard to reach for elimination.
    """
    others = np.delete(np.arange(chain.size), fixed)
    rows = chain.to_scipy()[others]
    try:
        solve = splu(rows[:, others].tocsc()).solve
    except RuntimeError:  # singular to rounding: a slow way to the fixed state; without subtraction nothing is lost
        try:
            factors = factorized(rows[:, others].toarray(), rows[:, [fixed]].toarray()[:, 0])
        except ModelError:  # so slow that it underflows
            return None

        def solve(right: np.ndarray) -> Any:
            return factors.solve(np.maximum(-right, 0)) - factors.solve(np.maximum(right, 0))

    def correct(residual: np.ndarray) -> np.ndarray:
        h = np.zeros(chain.size)
        h[others] = solve(residual[others])
        return h

    return correct


def poisson_cycle(chain: Generator, b: np.ndarray, reduction: float, most: int) -> tuple[np.ndarray, int]:
    """Return one cycle of GMRES for Q h = b, and its products: h = y / exit rates, where the 2-norm of b - Q h is least.

    Source: Y. Saad and M. H. Schultz, SIAM J. Sci. Stat. Comput. 7 (1986), doi:10.1137/0907058; orthogonalised twice.
    """
    n = chain.size
    steps = min(_RESTART, most)
    require_memory(f"the Poisson equation with {steps} basis vectors", 8 * (steps + 8) * n, states=n)
    basis = np.empty((steps + 1, n))
    upper = np.zeros((steps + 1, steps))
    norm = float(np.linalg.norm(b))
    basis[0] = b / norm
    inverse = 1 / np.where(chain.exit_rates > 0, chain.exit_rates, 1.0)
    small: np.ndarray = np.zeros(0)
    with threadpool_limits(limits=1, user_api="blas"):  # vector work: more threads only wait for each other
        for k in range(steps):
            w = chain.backward(basis[k] * inverse)
            for _ in range(2):
                along = basis[: k + 1] @ w
                w -= along @ basis[: k + 1]
                upper[: k + 1, k] += along
            upper[k + 1, k] = np.linalg.norm(w)
            right = np.zeros(k + 2)
            right[0] = norm
            small, *_ = np.linalg.lstsq(upper[: k + 2, : k + 1], right, rcond=None)
            rest = float(np.linalg.norm(right - upper[: k + 2, : k + 1] @ small))
            if rest <= reduction * norm or upper[k + 1, k] <= 1e-14 * np.linalg.norm(upper[: k + 2, k]):
                break
            basis[k + 1] = w / upper[k + 1, k]
        return (small @ basis[: len(small)]) * inverse, len(small)


# ---- rewards of an answer -------------------------------------------------------------------------------------------------


def prove_interval(
    solution: Solution,
    reward: str | np.ndarray,
    index: int | None = None,
    *,
    largest_products: int = 20_000,
) -> Interval:
    """Return an interval that is proven to contain the long-run expectation of a reward.

    Nothing is assumed of the answer: a wrong one makes the interval wide, never false.  So do nearly separate parts, whose
    h is as large as the inverse of the rates between them.  A chain with one recurrent class is looked at on that class;
    with several, the intervals are mixed by the classes' initial probabilities.

    Costs a solve of the Poisson equation Q h = r - E[r]: sparse elimination up to 3000 states, restarted GMRES with as many
    products as a stationary solve above, 68 vectors of length n.

    Parameters
    ----------
    solution : Solution
        Of a stationary problem on a Generator.
    reward : str or ndarray, shape (n,)
        A reward of the model, such as "jobs" or "queue_length[1]", or the values themselves.
    index : int, optional
        Component of a reward that is a vector.
    largest_products : int
        Limit of the work; the interval found so far is returned.

    Returns
    -------
    Interval

    Raises
    ------
    UnsupportedProblemError
        If the problem is not a stationary one on a Generator.
    ReducibleError
        If the chain may start in a transient state from which several recurrent classes can be reached.
    UnknownNameError, ModelError
        If there is no such reward or component.

    Examples
    --------
    >>> from ctmc import registry
    >>> from ctmc.solve import solve
    >>> queue = registry.build("birth_death", births=[1.0] * 9, deaths=[2.0] * 9)
    >>> found = prove_interval(solve(Stationary(queue)), "jobs")
    >>> round(found.low, 9), round(found.high, 9), found.width < 1e-12
    (0.990224829, 0.990224829, True)
    """
    if not isinstance(solution, Solution):
        raise ModelError(f"solution is {shown(solution)}; allowed is a Solution of a stationary problem.")
    check_problem(solution.problem)
    whole_number("largest_products", largest_products, 1)
    if index is not None:
        whole_number("index", index, 0, LARGEST_COUNT)
    chain = solution.problem.model
    assert isinstance(chain, Generator)
    if not isinstance(reward, str):
        values = real_numbers("reward", reward, "the name of a reward, or numbers")
    else:
        match = COMPONENT.fullmatch(reward)
        if match and index is None:
            reward, index = match[1], int(match[2])
        values = _values(chain, reward.strip())
    if values.ndim == 2 and (index is not None or values.shape[1] == 1):
        if not 0 <= (index or 0) < values.shape[1]:
            raise ModelError(f"index {index} of the reward is out of range; allowed is 0 to {values.shape[1] - 1}.")
        values = values[:, index or 0]
    elif values.ndim == 2:
        raise ModelError(f"reward {reward!r} has {values.shape[1]} components; give index=0 to {values.shape[1] - 1}.")
    elif index is not None:
        raise ModelError(f"index {index} of the reward is out of range; allowed is none: it is one number.")
    if values.shape != (chain.size,) or not np.isfinite(values).all():
        raise ModelError(f"the reward has shape {values.shape}; allowed is ({chain.size},), all finite.")
    return _by_class(solution, np.ascontiguousarray(values), largest_products)


def check_problem(problem: Problem) -> None:
    """Raise `UnsupportedProblemError` or `ReducibleError` where no interval can be proven."""
    if not isinstance(problem, Stationary) or not isinstance(problem.model, Generator):
        hint = "" if isinstance(problem.model, Generator) else "; queue.truncate(levels=..) makes one of a QBD"
        raise UnsupportedProblemError(
            f"intervals are proven for stationary problems on a Generator; this is a {type(problem).__name__} problem on a "
            f"{type(problem.model).__name__}{hint}."
        )
    _weights(problem)


def _weights(problem: Stationary) -> np.ndarray:
    """Return the weight of each recurrent class, where it is certain: one class, or a start inside of classes."""
    chain, initial = problem.model, problem.initial
    assert isinstance(chain, Generator)
    found = chain.classes
    if len(found.recurrent) == 1:
        return np.ones(1)
    if initial is None:
        raise ReducibleError(
            f"the chain has {len(found.recurrent)} recurrent classes, so its long-run expectation depends on the start; "
            "give an initial state or distribution."
        )
    inside = np.isin(found.class_of[initial.positions], found.recurrent)
    if not inside.all():
        raise ReducibleError(
            f"the chain may start in the transient state {chain.name_of(int(initial.positions[np.argmin(inside)]))} and has "
            f"{len(found.recurrent)} recurrent classes, whose weights are not proven; allowed are initial states inside "
            "recurrent classes."
        )
    weights = np.bincount(found.class_of[initial.positions], weights=initial.probabilities, minlength=found.count)
    return np.asarray(weights[found.recurrent])


def _values(chain: Generator, name: str) -> np.ndarray:
    """Return a named reward in all states, shape (n,) or (n, length)."""
    if name not in chain.all_rewards:
        raise unknown_name("reward", name, chain.all_rewards)
    reward = chain.all_rewards[name]
    if reward.has_impulses:
        raise ModelError(f"reward {name!r} is earned at events; intervals are proven for rewards of states.")
    length = reward.evaluate(chain.space.states(np.arange(1)), slice(0, 1)).size
    require_memory(f"the values of reward {name!r}", 8 * length * chain.size, states=chain.size)
    return np.concatenate([values for _, (values,) in evaluate(chain.space, [reward])])


def _by_class(solution: Solution, reward: np.ndarray, largest_products: int) -> Interval:
    """Return the interval of a chain with any classes: that of its recurrent class, or their mixture."""
    chain, pi = solution.problem.model, np.abs(solution.value)
    assert isinstance(chain, Generator)
    found = chain.classes
    if found.irreducible:
        return _best_interval(chain, reward, pi, largest_products)
    assert isinstance(solution.problem, Stationary)
    weights = _weights(solution.problem)
    low = high = size = 0.0
    for number, weight in zip(found.recurrent, weights, strict=True):
        if weight > 0:
            members = found.members(number)
            part = chain.restricted(members) if len(members) > 1 else None
            if part is not None and chain._counter is not None:
                part = part.counted(chain._counter)
            if part is None:
                inside = Interval(float(reward[members[0]]), float(reward[members[0]]))
            else:
                inside = _best_interval(part, reward[members], pi[members], largest_products)
            low, high = low + weight * inside.low, high + weight * inside.high
            size += weight * max(abs(inside.low), abs(inside.high))
    if len(found.recurrent) == 1:
        return Interval(low, high)
    # rounding of the sums, and of probabilities that sum to 1 only within rounding
    terms = len(found.recurrent) + len(solution.problem.initial.positions) + 2
    rounding = 4 * terms * EPSILON * size + _LEAST_NORMAL
    return Interval(low - rounding, high + rounding)
