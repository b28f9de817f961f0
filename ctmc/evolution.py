"""What a question about time asks of a solver: a linear differential equation over blocks of vectors.

A distribution moves forward, p' = p Q; the expectation of a reward, for every initial state, backward, u' = Q u.  Moments of
what has been earned need one block each, coupled to those before:

backward, with u_k the derivative of the k-th moment:
    u_k' = Q u_k + k r u_{k-1} + sum_{l < k} C(k, l) W_l u_{k-l},  u_1(0) = r + W_1 1,  u_k(0) = W_k 1,  m_k = integral of
    u_k;

forward, with a_k(j) = E[Phi^k; X = j], a_0 = p:
    a_k' = a_k Q + k r a_{k-1} + sum_l C(k, l) a_{k-l} W_l,  m_k = integral of sum_l C(k, l) a_{k-l} w_l,  w_1 = r + W_1 1,
    w_l = W_l 1,

where W_l has the entries rate(i, j) impulse(i, j)^l.  The middle of the range of r + W_1 1 is taken off r first, and blocks
are scaled by powers of the largest amount that can be earned, so that all have about the size 1: a constant reward costs no
digit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from ctmc.errors import ModelError
from ctmc.model.communication import reachable
from ctmc.model.generator import Generator
from ctmc.model.impulses import impulse_matrix, impulse_rates, largest_impulse, reward_rates
from ctmc.model.memory import require_memory
from ctmc.model.reward import Reward
from ctmc.problem import AccumulatedReward, Transient
from ctmc.ranks import ALONE, Ranks

EPSILON = float(np.finfo(np.float64).eps)
_COMPONENT = re.compile(r"\s*([^\W\d]\w*)\s*(?:\[\s*(\d+)\s*\])?\s*")


def rounding_floor(rate: float, time: float) -> float:
    """Return the error below which rounding hides everything: 8 eps (1 + rate x time)."""
    return 8 * EPSILON * (1 + rate * time)


class Coupling(NamedTuple):
    """What block `of` adds to the change of block `into`: rate * y, and matrix @ y."""

    into: int
    of: int
    rate: np.ndarray | None
    matrix: csr_array | None


@dataclass(frozen=True, eq=False)
class Evolution:
    """The equation y' = y A (forward) or y' = A y (backward), and the times at which y and its integral are wanted.

    A solver for `Transient` and `AccumulatedReward` gets one; at each time it calls ``trace.reached(k, y, integral, error)``.

    Attributes
    ----------
    model : Generator
    times : ndarray, shape (times,)
    tolerance : float
        Largest accepted error of y at any time, in `norm`; the start has about the norm 1.
    start : ndarray, shape (blocks, n)
        The first block of a forward equation is the initial distribution.
    backward : bool
    couplings : tuple of Coupling
    """

    model: Generator
    times: np.ndarray
    tolerance: float
    start: np.ndarray
    backward: bool = False
    couplings: tuple[Coupling, ...] = ()
    reading: Reading = field(default=None)  # type: ignore[assignment]  # whoever makes one gives it

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.start)

    @cached_property
    def rate(self) -> float:
        """The largest exit rate of a state that can have probability; 1 where there is none."""
        chain = self.model
        if self.backward or chain.shared or chain.classes.irreducible:
            return chain.uniformization_rate
        return float(chain.exit_rates[reachable(chain, np.flatnonzero(self.start.any(axis=0)))].max()) or 1.0

    def amplification(self, time: float) -> float:
        """Return a bound on ||exp(A t)||: sum_{j < blocks} (g t)^j / j!, as couplings lead from a block to later ones only."""
        return float(sum((self.growth * time) ** j / math.factorial(j) for j in range(self.blocks)))

    @property
    def accepted(self) -> float:
        """The tolerance, or the rounding floor where that is larger."""
        return max(self.tolerance, rounding_floor(self.model.uniformization_rate, float(self.times[-1])))

    def change(self, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the derivative of y; shape (blocks, n).  Makes one product for each block."""
        out = np.empty_like(y) if out is None else out
        multiply = self.model.backward if self.backward else self.model.forward
        for block, into in zip(y, out, strict=True):
            multiply(block, out=into)
        for coupling in self.couplings:
            if coupling.rate is not None:
                out[coupling.into] += coupling.rate * y[coupling.of]
            if coupling.matrix is not None:
                out[coupling.into] += coupling.matrix @ y[coupling.of]
        return out

    def norm(self, y: np.ndarray) -> float:
        """Return the norm in which A without couplings shrinks nothing and grows nothing: sum of |y| forward, largest backward."""
        ranks = self.model.ranks
        return float(ranks.largest(_largest(y)) if self.backward else ranks.total(float(np.abs(y).sum())))

    @cached_property
    def growth(self) -> float:
        """A bound g on the couplings in `norm`; 0 for one block."""
        # an entry of |coupling| between two blocks is at most its largest row sum over the sources of transitions
        sizes = np.zeros((self.blocks, self.blocks))
        for coupling in self.couplings:
            reach = np.zeros(self.model.size) if coupling.rate is None else np.abs(coupling.rate)
            if coupling.matrix is not None:
                reach = reach + np.asarray(abs(coupling.matrix).sum(axis=1 if self.backward else 0)).ravel()
            sizes[coupling.into, coupling.of] += reach.max(initial=0.0)
        sizes = self.model.ranks.largest(sizes)
        return float(sizes.sum(axis=1 if self.backward else 0).max())


@dataclass(frozen=True, eq=False)
class Reading:
    """How the numbers that were asked for follow from y and its integral Y.

    Attributes
    ----------
    columns : tuple of str
        Names of the rewards; none where the distribution itself is wanted.
    moments : int
        0: expectations at the times; k: that many moments of what has been earned.
    rewards : ndarray, shape (columns, n)
        Forward, one moment and expectations: the rewards less `middle`.
    middle : ndarray, shape (columns,)
    half : ndarray, shape (columns,)
        Largest absolute value of the rewards less `middle`; 1 where that is 0.
    scale : float
        Of the blocks: block k stands for what is `scale`^k larger.
    weights : tuple of ndarray, shape (n,)
        Forward, several moments: w_1, w_2, ...
    ranks : Ranks
        Of the model.
    """

    columns: tuple[str, ...] = ()
    moments: int = 0
    rewards: np.ndarray | None = None
    middle: np.ndarray = field(default_factory=lambda: np.zeros(1))
    half: np.ndarray = field(default_factory=lambda: np.ones(1))
    scale: float = 1.0
    weights: tuple[np.ndarray, ...] = ()
    ranks: Ranks = ALONE

    def read(self, y: np.ndarray, integral: np.ndarray, time: float, backward: bool) -> Any:
        """Return the numbers at one time, of rewards less their middle: (columns,) or (moments,), with (n,) added if backward."""
        if not self.columns:
            return y[0]
        if self.moments == 0:
            return self.half[:, None] * y if backward else self.ranks.total(self.rewards @ y[0])
        if backward:
            return self.half[0] * self.scale ** np.arange(self.moments)[:, None] * integral
        if self.moments == 1:
            return self.ranks.total(self.rewards @ integral[0])
        found = np.zeros(self.moments)
        for k in range(1, self.moments + 1):
            for order in range(1, k + 1):
                block = integral[k - order] * self.scale ** (k - order)
                found[k - 1] += math.comb(k, order) * float(block @ self.weights[order - 1])
        return self.ranks.total(found)

    def errors(self, error: float, time: float) -> np.ndarray:
        """Return bounds on the errors of `read` where y is right to `error`, and its integral to time x `error`."""
        if not self.columns:
            return np.array([error])
        if self.moments == 0:
            return self.half * error
        if self.moments == 1:
            return self.half * time * error
        if not self.weights:
            return np.asarray(self.half[0] * self.scale ** np.arange(self.moments) * time * error)
        sizes = [self.ranks.largest(_largest(weight)) for weight in self.weights]
        return np.array(
            [
                time
                * error
                * sum(math.comb(k, order) * self.scale ** (k - order) * sizes[order - 1] for order in range(1, k + 1))
                for k in range(1, self.moments + 1)
            ]
        )


def reward_columns(model: Generator, names: tuple[str, ...]) -> list[tuple[str, Reward, np.ndarray]]:
    """Return (name, reward, mean rate in each state) of each number: a vector ``x`` gives ``x[0]``, ``x[1]``, ..

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> [(name, rates.tolist()) for name, _, rates in reward_columns(chain, ("state",))]
    [('state', [0.0, 1.0])]
    """
    found = []
    for text in names:
        name, index = component(text)
        reward = model.all_rewards[name]
        rates = reward_rates(model, reward)
        if rates.ndim == 1:
            if index is not None:
                raise ModelError(f"index {index} of {name!r} is out of range; allowed is none: it is one number.")
            found.append((name, reward, rates))
            continue
        chosen = range(rates.shape[1]) if index is None else [index]
        if index is not None and index >= rates.shape[1]:
            raise ModelError(f"index {index} of {name!r} is out of range; allowed is 0 to {rates.shape[1] - 1}.")
        found += [(f"{name}[{k}]", reward, np.ascontiguousarray(rates[:, k])) for k in chosen]
    return found


def component(text: str) -> tuple[str, int | None]:
    """Return name and index of ``name`` or ``name[index]``."""
    match = _COMPONENT.fullmatch(text)
    if match is None:
        return text, None
    return match[1], None if match[2] is None else int(match[2])


def evolutions(problem: Transient | AccumulatedReward) -> list[Evolution]:
    """Return the equations whose solutions answer a question about time: one, or one for each reward."""
    model, times, tolerance = problem.model, problem.times, problem.tolerance
    n = model.size
    begin = None if problem.initial is None else model.own(problem.initial).dense(n)
    if problem.reward is None:
        return [Evolution(model, times, tolerance, begin[None], reading=Reading())]  # type: ignore[index]  # without a reward there is a start
    require_memory("the values of the rewards", 16 * n * len(problem.reward), states=n)
    columns = reward_columns(model, problem.reward)
    moments = problem.moments if isinstance(problem, AccumulatedReward) else 0
    parts = [centered(rates, model.ranks) for _, _, rates in columns]
    if begin is not None and moments <= 1:
        reading = Reading(
            tuple(name for name, _, _ in columns),
            moments,
            np.array([rates for rates, _, _ in parts]),
            np.array([middle for _, middle, _ in parts]),
            np.array([half for _, _, half in parts]),
            ranks=model.ranks,
        )
        return [Evolution(model, times, tolerance, begin[None], reading=reading)]
    return [
        _moments(problem, begin, name, reward, rates, moments)
        for (name, reward, _), rates in zip(columns, parts, strict=True)
    ]


def centered(rates: np.ndarray, ranks: Ranks = ALONE) -> tuple[np.ndarray, float, float]:
    """Return rates less the middle of their range, the middle, and the largest that is left (1 for 0)."""
    low = -ranks.largest(float((-rates).max(initial=-math.inf)))
    high = ranks.largest(float(rates.max(initial=-math.inf)))
    middle = low + (high - low) / 2
    left = rates - middle
    return left, middle, ranks.largest(_largest(left)) or 1.0


def _largest(values: np.ndarray) -> float:
    """Return the largest absolute value; 0 of nothing."""
    return float(np.abs(values).max(initial=0.0))


def _moments(
    problem: Any,
    begin: np.ndarray | None,
    name: str,
    reward: Reward,
    rates: tuple[np.ndarray, float, float],
    moments: int,
) -> Evolution:
    """Return the equation of one reward with as many blocks as moments (one for expectations)."""
    model, (effective, middle, half) = problem.model, rates
    n, blocks = model.size, max(moments, 1)
    couplings: list[Coupling] = []
    weights, scale = [effective], 1.0
    if blocks > 1:
        require_memory("the moments", 8 * n * 8 * blocks, states=n)
        alone = effective - impulse_rates(model, reward) if reward.has_impulses else effective
        matrices, earning = {}, np.abs(alone)
        if reward.has_impulses:
            matrices = {order: impulse_matrix(model, reward, order) for order in range(1, blocks)}
            earning = earning + np.asarray(abs(matrices[1]).sum(axis=1)).ravel()
            weights += [impulse_rates(model, reward, order) for order in range(2, blocks + 1)]
        else:
            weights += [np.zeros(n)] * (blocks - 1)
        # what may be earned up to the end, its mean not taken off: so couplings are about as small as 1 / time
        most = model.ranks.largest(_largest(earning))
        scale = max(float(most * problem.times[-1]), largest_impulse(model, reward)) or 1.0
        # so that no block of the start is much above 1
        sizes = [model.ranks.largest(_largest(weight)) for weight in weights]
        half = max(half, *(size / scale**k for k, size in enumerate(sizes)))
        # block k stands for the moment k + 1 backward, and for E[Phi^k; X] forward
        for k in range(1, blocks):
            power = k + 1 if begin is None else k
            for order in range(1, k + 1):
                matrix = None
                if order in matrices:
                    factor = math.comb(power, order) / scale**order
                    part = matrices[order] if begin is None else matrices[order].T
                    matrix = csr_array(part * factor)
                rate = alone * (power / scale) if order == 1 else None
                if rate is not None or matrix is not None:
                    couplings.append(Coupling(k, k - order, rate, matrix))
    start = np.zeros((blocks, n))
    if begin is None:
        start[0] = effective / half
        for k in range(1, blocks):
            start[k] = weights[k] / (half * scale**k)
    else:
        start[0] = begin
    reading = Reading(
        (name,), moments, None, np.array([middle]), np.array([half]), scale,
        () if begin is None else tuple(weights), model.ranks,
    )  # fmt: skip
    return Evolution(
        model,
        problem.times,
        problem.tolerance,
        start,
        backward=begin is None,
        couplings=tuple(couplings),
        reading=reading,
    )


def raw_moments(central: np.ndarray, middle: float, times: np.ndarray) -> np.ndarray:
    """Return the moments of Phi from those of Phi - middle x time; shapes (moments, times) or (moments, times, n).

    Examples
    --------
    >>> raw_moments(np.array([[0.5], [1.0]]), 2.0, np.array([3.0])).ravel().tolist()
    [6.5, 43.0]
    """
    return _shifted(central, middle * times.reshape((-1,) + (1,) * (central.ndim - 2)))


def _shifted(central: np.ndarray, shift: np.ndarray) -> np.ndarray:
    found = np.empty_like(central)
    for k in range(1, len(central) + 1):
        total = np.broadcast_to(shift**k, central.shape[1:]).copy()
        for order in range(1, k + 1):
            total += math.comb(k, order) * shift ** (k - order) * central[order - 1]
        found[k - 1] = total
    return found


def raw_errors(errors: np.ndarray, middle: float, times: np.ndarray) -> np.ndarray:
    """Return bounds on the errors of `raw_moments`, shape (moments, times), from those of the moments less the middle."""
    shift = np.abs(middle) * times
    return np.array(
        [
            sum(math.comb(k, order) * shift ** (k - order) * errors[order - 1] for order in range(1, k + 1))
            for k in range(1, len(errors) + 1)
        ]
    )
