"""Polish: the last steps of an iterative method, which give every state its digits, the least likely ones too.

A small defect bounds what is wrong in total; states with probabilities below it can have any value.  Sweeps and steps on one
color with aggregation only add, multiply and divide, so they have no such floor; Anderson acceleration in a norm that weighs
the relative change of every state against the defect makes a handful of them enough.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ctmc.certificate import imbalance
from ctmc.model.generator import Generator
from ctmc.model.products import compiled_parallel
from ctmc.solution import Status
from ctmc.trace import Trace
from solvers._acceleration import FixedPointMap, Mixer, StepMap, swift_map
from solvers._reduction import Reduction

BOUND = 1e-8
"""Relative change of a state by one step, below which it counts as settled."""
STEPS = 30
DEPTH = 4
_CHUNK = 1 << 14
_SMALL, _LARGE = 10_000, 10_000_000


def polished(
    chain: Generator, pi: np.ndarray, *, tolerance: float = 1e-12, bound: float = BOUND, steps: int = STEPS
) -> np.ndarray:
    """Return a non-negative distribution near pi in which every state has settled.

    Negative elements become small positive ones; then steps of `solvers._acceleration.swift_map` are made until none changes
    a state by more than `bound`, relatively, and the defect is within the tolerance, but at most `steps`.  One step, a
    product on a chain with two colors and levels and two sweeps elsewhere, tells that a good answer is good.

    Parameters
    ----------
    chain : Generator
        Irreducible, of two and more states.
    pi : ndarray, shape (n,)
        An approximation; some elements may be negative.
    tolerance : float
        Defect.
    bound : float
        Relative change.
    steps : int
        Largest number of steps.

    Returns
    -------
    ndarray, shape (n,)
        Positive, sum 1.

    Examples
    --------
    >>> queue = Generator.from_matrix(np.diag(np.full(20, 1.0), 1) + np.diag(np.full(20, 1e3), -1))
    >>> rough = np.full(21, -1e-17)                           # the last of 21 states has the probability 1e-60
    >>> rough[:3] = 0.999, 1e-3, 1e-6
    >>> [f"{share:.10g}" for share in polished(queue, rough)[[1, 20]]]
    ['0.000999', '9.99e-61']
    """
    fixed_point = swift_map(chain)
    x = fixed_point.restrict(pi)
    return settled(fixed_point, x, relative_mixer(fixed_point.size, DEPTH, tolerance, bound), tolerance, bound, steps)


def answer(half: Reduction, p: np.ndarray, trace: Trace, tolerance: float) -> np.ndarray:
    """Return the distribution over all states that belongs to the unknowns of a Krylov method, polished where it has converged.

    Steps on one color tell a good answer, and mend one that is nearly good; what they do not mend in two is left to `polished`,
    except on the largest chains, for which its history has no room, and on those with transient states, which stay at zero.

    Parameters
    ----------
    half : Reduction
    p : ndarray, shape (half.size,)
        Overwritten.
    trace : Trace
    tolerance : float
        Defect.

    Returns
    -------
    ndarray, shape (n,)
        Sum 1; non-negative where it has converged.
    """
    if trace.status is not Status.CONVERGED:
        return half.expand(p)
    bound = bound_for(half.size)
    image = np.empty_like(p)
    if p.sum() < 0:  # a fixed point has any factor; a Krylov method that wandered far may come back on the other side
        np.negative(p, out=p)
    np.maximum(p, 0, out=p)
    for step in range(STEPS):
        half.step(p, out=image)
        p, image = image, p
        if largest_relative_change(image, p) <= 2 * bound:
            break
        if step == 1 and trace.whole and half.size <= _LARGE:
            return polished(half.chain, half.expand(p), tolerance=tolerance, bound=bound, steps=3 * STEPS)
    return half.expand(p)


def bound_for(size: int) -> float:
    """Return the relative change below which a state counts as settled.

    An error is some thirty times a change; where steps cost next to nothing, ten digits of every state are worth them.
    """
    return 1e-12 if size <= _SMALL else BOUND


def largest_relative_change(x: np.ndarray, image: np.ndarray) -> float:
    """Return the largest |image - x| / image, infinite where x is zero and its image is not."""
    largest = np.zeros((len(x) + _CHUNK - 1) // _CHUNK)
    relative_changes(x, image, largest)
    return float(largest.max())


@compiled_parallel
def relative_changes(x: Any, image: Any, largest: Any) -> None:
    """Write the largest relative change of each chunk.  Moves 16 bytes an element."""
    for chunk in numba.prange(largest.size):
        for j in range(np.int64(chunk) * _CHUNK, min((np.int64(chunk) + 1) * _CHUNK, x.size)):
            if image[j] > 0.0:
                change = abs(image[j] - x[j]) / image[j] if x[j] > 0.0 else np.inf
                largest[chunk] = max(largest[chunk], change)


def relative_mixer(size: int, depth: int, tolerance: float, bound: float = BOUND) -> Mixer:
    """Return a mixer whose norm is 1 where the changes of all states, or their sum, are about as large as is allowed."""
    uniform = size * min(max(bound / tolerance, 1e2), 1e6)
    return Mixer(size, depth, uniform=uniform, relative=1.0, low=0.5, high=2.0)


def settled(
    fixed_point: FixedPointMap, x: np.ndarray, mixer: Mixer, tolerance: float, bound: float, steps: int
) -> np.ndarray:
    """Return the distribution of an iterate in which every state has settled, or that of the last step.

    Parameters
    ----------
    fixed_point : StepMap or SweepMap
    x : ndarray, shape (size,)
        Overwritten.
    mixer : Mixer
    tolerance, bound : float
    steps : int
    """
    chain = fixed_point.half.chain if isinstance(fixed_point, StepMap) else fixed_point.chain
    if not steps:
        return fixed_point.expand(x)
    image, safe = np.empty_like(x), np.empty_like(x)
    for step in range(steps):
        defect = fixed_point.image(x, image)
        mixer.step(x, image)
        if step == 0 or (defect is not None and defect <= tolerance):
            np.copyto(safe, image)
        if mixer.change <= bound:
            if defect is None:  # without mixing a sweep does no harm
                pi = fixed_point.expand(image)
                defect = 0.0 if step == 0 else imbalance(chain.forward(pi), pi, chain)
            if defect <= tolerance:
                return fixed_point.expand(image)
    pi = fixed_point.expand(image)
    return pi if imbalance(chain.forward(pi), pi, chain) <= tolerance else fixed_point.expand(safe)
