"""Anderson acceleration of fixed-point maps for stationary distributions, and the maps.

With the iterates x_k, their images g_k and f_k = g_k - x_k, the next iterate is g_k - sum_j c_j (g_{j+1} - g_j), with the
numbers c that make f_k - sum_j c_j (f_{j+1} - f_j) smallest in a weighted norm: type II of H. Fang, Y. Saad, *Two classes of
multisecant methods for nonlinear acceleration*, Numerical Linear Algebra with Applications 16 (2009), doi:10.1002/nla.617; D. G.
Anderson, *Iterative procedures for nonlinear integral equations*, J. ACM 12 (1965), doi:10.1145/321296.321305.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numba
import numpy as np

from ctmc.model.generator import Generator
from ctmc.model.multilevel import Multilevel
from ctmc.model.products import compiled_parallel
from ctmc.model.sweeps import sweep
from solvers._aggregation import Levels, find_levels, half_levels, loosely_coupled
from solvers._reduction import Reduction, reduction

STRETCH = 1.2
"""Factor of the change by a step on one color, under acceleration."""
_CHUNKS = 32
_GROWTH = 2.0
_DROPPED = 1e-12


class Rescaling(Protocol):
    """Puts the masses of parts right, in place."""

    def rescale(self, pi: np.ndarray) -> None:
        """Change the masses of the parts of a distribution over all states."""


class WholeLevels:
    """`Levels` of a distribution over all states, normalised to 1."""

    def __init__(self, levels: Levels) -> None:
        self.levels = levels
        self._ones = np.ones(len(levels.level))

    def rescale(self, pi: np.ndarray) -> None:
        """Balance the levels, in place."""
        self.levels.rescale(pi, self._ones)


def rescalings(chain: Generator, depth: int = 40) -> list[Rescaling]:
    """Return the aggregations that suit a chain: levels where there are some, multilevel where not, both where loosely coupled."""
    found = find_levels(chain)
    chosen: list[Rescaling] = [] if found is None else [WholeLevels(found)]
    if found is None or loosely_coupled(chain):
        chosen.append(Multilevel(chain, depth=depth))
    return chosen


class StepMap:
    """`Reduction.step`, with the masses of the levels put right where there are levels.

    Its image of x is step(x) or a little beyond; half way there on chains without two colors, which breaks any period.

    Parameters
    ----------
    half : Reduction
    levels : Levels, optional
        From `half_levels`.
    stretch : float
        The change by the step is multiplied by this on chains with two colors; no element falls below a tenth of its image.
    """

    def __init__(self, half: Reduction, levels: Levels | None = None, stretch: float = STRETCH) -> None:
        self.half, self.levels, self.size = half, levels, half.size
        self.stretch = stretch if half.halved else 0.5
        self._residual = np.empty(half.size)

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        """Return the unknowns of a distribution over all states; with weights `exit_rates` they sum to 1."""
        x = self.half.restrict(without_zeros(pi))
        if self.levels is None:
            return x / float(x @ self.half.exit_rates)
        self.levels.rescale(x, self.half.exit_rates)
        return x

    def expand(self, x: np.ndarray) -> np.ndarray:
        """Return the distribution over all states."""
        return self.half.expand(x)

    def image(self, x: np.ndarray, out: np.ndarray) -> float:
        """Set out to the image of x, and return the defect of x."""
        self.half.step(x, out)
        np.subtract(out, x, out=self._residual)
        defect = self.half.defect(self._residual, x)
        if self.stretch != 1:
            stretch_change(x, out, self.stretch)
        if self.levels is not None:
            self.levels.rescale(out, self.half.exit_rates)
        return float(defect)


class SweepMap:
    """Symmetric Gauss-Seidel sweeps, and aggregations after them.

    Parameters
    ----------
    chain : Generator
    relaxation : float
        w of the sweeps; above 1 they subtract, and are done again with w = 1 where something becomes negative.
    sweeps : int
        Pairs of sweeps, forward and backward, before the aggregations.
    aggregations : sequence of Rescaling
    """

    def __init__(self, chain: Generator, relaxation: float, sweeps: int, aggregations: list[Rescaling]) -> None:
        self.chain, self.relaxation, self.sweeps, self.aggregations = chain, relaxation, sweeps, aggregations
        self.size = chain.size

    def restrict(self, pi: np.ndarray) -> np.ndarray:
        """Return a copy without zeros."""
        return without_zeros(pi)

    def expand(self, x: np.ndarray) -> np.ndarray:
        """Return the distribution over all states."""
        return x / x.sum()

    def image(self, x: np.ndarray, out: np.ndarray) -> None:
        """Set out to the image of x; its defect is not known."""
        np.copyto(out, x)
        for _ in range(self.sweeps):
            sweep(self.chain, out, relaxation=self.relaxation)
            sweep(self.chain, out, relaxation=self.relaxation, reverse=True)
            if self.relaxation > 1 and out.min() < 0:
                np.maximum(out, 0, out=out)
                sweep(self.chain, out)
                sweep(self.chain, out, reverse=True)
        out /= out.sum()
        for aggregation in self.aggregations:
            aggregation.rescale(out)


FixedPointMap = StepMap | SweepMap


def swift_map(
    chain: Generator, relaxation: float = 1.0, sweeps: int = 1, depth: int = 40, stretch: float = STRETCH
) -> FixedPointMap:
    """Return the map with aggregation that settles a chain in the least time.

    Where all transitions change the level this is a step on one color with its levels, one product on all threads; elsewhere,
    and for chains that may fall into parts, it is sweeps with the aggregations of `rescalings`.
    """
    half = reduction(chain)
    levels = half_levels(half)
    if levels is not None and not loosely_coupled(chain):
        return StepMap(half, levels, stretch)
    return SweepMap(chain, relaxation, sweeps, rescalings(chain, depth))


def without_zeros(pi: np.ndarray) -> np.ndarray:
    """Return a normalised copy whose negative and zero elements are about as small as the others can be trusted."""
    least = float(pi.min())
    if least > 0:
        return pi / pi.sum()
    positive = pi > 0
    small = -least if least < 0 else float(pi[positive].min())
    x = np.where(positive, pi, 0.1 * small)
    return np.asarray(x / x.sum())


class Mixer:
    """The history of an Anderson iteration, in arrays of fixed size, and its steps.

    Sums are over chunks of states whose number does not depend on the threads, so the bits do not either.

    Parameters
    ----------
    size : int
    depth : int
        Differences that are kept; 0 only measures changes.
    uniform, relative : float
        The weight of the change of element i is uniform + relative / g_i.
    low, high : float
        An element of the next iterate is kept between these multiples of that of the image.
    patience : int
        Steps in which the norm of the change must have halved; otherwise the history begins anew.
    """

    def __init__(
        self, size: int, depth: int, *, uniform: float, relative: float, low: float, high: float, patience: int = 30
    ) -> None:
        self.depth, self.uniform, self.relative, self.low, self.high = depth, uniform, relative, low, high
        self.patience = patience
        self.change = math.inf
        """Largest relative change of an element by the map; infinite while there are zeros."""
        self._images, self._changes = np.zeros((depth, size)), np.zeros((depth, size))
        self._image, self._change = np.empty(size), np.empty(size)
        self._gram = np.zeros((depth, depth))
        self._known = -1
        self._slot = 0
        self._norm = self._best = math.inf
        self._since = 0

    def forget(self) -> None:
        """Begin the history anew."""
        self._known, self._slot = -1, 0
        self._best, self._since = math.inf, 0

    @np.errstate(over="ignore", invalid="ignore")  # a norm that is not finite begins anew, with loops compiled or not
    def step(self, x: np.ndarray, image: np.ndarray) -> None:
        """Replace x, whose image is given, by the next iterate."""
        depth = self.depth
        used = min(self._known + 1, depth)
        sums = np.zeros((_CHUNKS, 2, depth + 2))
        measure(x, image, self._image, self._change, self._images, self._changes, used, self._slot,
                self.uniform, self.relative, sums)  # fmt: skip
        total = sums[:, :, :depth].sum(axis=0)
        norm = math.sqrt(float(sums[:, 0, depth].sum()))
        self.change = float(sums[:, 0, depth + 1].max())
        self._known += 1
        if used:
            self._gram[self._slot, :used] = self._gram[:used, self._slot] = total[1, :used]
            self._slot = (self._slot + 1) % depth
        self._since += 1
        if norm < 0.5 * self._best:
            self._best, self._since = norm, 0
        grown, self._norm = norm > _GROWTH * self._norm, norm
        if not math.isfinite(norm) or grown or self._since > self.patience:
            self.forget()
            self._known = 0
            used = 0
        coefficients = np.zeros(depth)
        if used:
            coefficients[:used] = _least_squares(self._gram[:used, :used], total[0, :used])
        combine(x, image, self._images, coefficients, used, self.low, self.high)


def _least_squares(gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve the normal equations, directions that rounding has made dependent left out."""
    scale = np.sqrt(np.diagonal(gram))
    if not (np.isfinite(scale).all() and scale.min() > 0 and np.isfinite(right).all()):
        return np.zeros(len(right))
    solved = np.linalg.lstsq(gram / np.outer(scale, scale), right / scale, rcond=_DROPPED)[0]
    return np.asarray(solved / scale)


@compiled_parallel
def stretch_change(x: Any, image: Any, factor: float) -> None:
    """Multiply the change from x to the image, but leave it a tenth of the image at least.  Moves 24 bytes a state."""
    for i in numba.prange(x.size):
        image[i] = max(x[i] + factor * (image[i] - x[i]), 0.1 * image[i])


@compiled_parallel
def measure(
    x: Any, image: Any, last_image: Any, last_change: Any, images: Any, changes: Any, used: int, slot: int, uniform: float,
    relative: float, sums: Any,
) -> None:  # fmt: skip
    """Write the newest differences into their slot, and sum what the least-squares problem needs.

    Per chunk, sums[0, j] = change . changes_j, sums[1, j] = newest . changes_j; then the square of the weighted change, and the
    largest relative change.  Moves 8 (depth + 8) bytes a state.
    """
    chunks, depth = sums.shape[0], images.shape[0]
    for chunk in numba.prange(chunks):
        largest = 0.0
        begin, end = x.size * chunk // chunks, x.size * (chunk + 1) // chunks
        square = 0.0
        for i in range(begin, end):
            g = image[i]
            change = g - x[i]
            if x[i] > 0.0 or g != 0.0:  # neither: an element that belongs to no state
                largest = max(largest, abs(change) / g if g > 0.0 else np.inf)
            weighted = change * uniform
            if relative > 0.0 and g > 0.0:
                weighted += change * relative / g
            square += weighted * weighted
            if used > 0:
                images[slot, i] = g - last_image[i]
                changes[slot, i] = weighted - last_change[i]
            last_image[i] = g
            last_change[i] = weighted
        sums[chunk, 0, depth] = square
        sums[chunk, 0, depth + 1] = largest
        for j in range(used):
            right, inner = 0.0, 0.0
            for i in range(begin, end):
                right += last_change[i] * changes[j, i]
                inner += changes[slot, i] * changes[j, i]
            sums[chunk, 0, j] = right
            sums[chunk, 1, j] = inner


@compiled_parallel
def combine(x: Any, image: Any, images: Any, coefficients: Any, used: int, low: float, high: float) -> None:
    """Set x to image - sum_j c_j images_j, kept within multiples of the image.  Moves 8 (depth + 2) bytes a state."""
    for i in numba.prange(x.size):
        g = image[i]
        mixed = g
        for j in range(used):
            mixed -= coefficients[j] * images[j, i]
        x[i] = min(max(mixed, low * g), high * g)
