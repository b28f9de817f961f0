"""The exponential of the generator on Krylov spaces, with sub-steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.linalg import expm
from threadpoolctl import threadpool_limits

from ctmc.evolution import Evolution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.problem import AccumulatedReward, Transient
from ctmc.solution import Outcome, Status
from ctmc.trace import Trace
from solvers._options import check_count
from solvers.transient._reports import Allowance, accumulate, report, stay

_TERMS = 24
_MOST_PIECES = 512
_BREAKDOWN = 16 * float(np.finfo(np.float64).eps)
_NEWS = 8
"""Products between two looks at the limits, and at whether the space is large enough."""


@dataclass(frozen=True, kw_only=True)
class KrylovExponential:
    """Project y' = y A on the space of y, y A, y A^2, .. and exponentiate the small matrix, in sub-steps with a proven bound.

    With the orthonormal basis V of m vectors, A V = V H + h v e_m^T and b = ||y||_2, the approximation b V exp(s H) e_1 has
    the residual -b h [exp(s H)]_{m1} v.  exp(A s) does not expand in the norm of the equation (up to known couplings of
    moments), so the error is at most the integral of the residual's norm.  That integral is bounded piece by piece: on
    pieces shorter than 1 / ||H|| the entry is a Taylor polynomial of degree 23 and a remainder below 1e-23, and the moduli
    of its terms are integrated.  The longest sub-step whose bound is within its part of the tolerance is taken; all times
    inside, and the integral of y, are read from the same small matrix.  The basis is made no larger than the time ahead
    needs.  Ends early once (time ahead) x ||y A|| is small: the chain is steady.

    One product for each basis vector, about 2 m n operations for each (Gram-Schmidt twice), dimension + 9 vectors.  A
    sub-step over s takes about as many products as the square root of 5 ln(1 / tolerance) x rate x s where that is below
    `dimension`, and never many more than rate x s: fewer than uniformization for real spectra (birth-death chains,
    reversible networks) and a large `dimension`.  Take it where products are costly and vectors are not, for many times
    close together, and for small invariant spaces, which it finds: then it is exact at any rate x time.  Not for stiff
    chains on long horizons: then `rational`. Source: Y. Saad, *Analysis of some Krylov subspace approximations to the
    matrix exponential operator*, SIAM J. Numer. Anal. 29 (1992), doi:10.1137/0729014; R. B. Sidje, *Expokit: a software
    package for computing matrix exponentials*, ACM TOMS 24 (1998), doi:10.1145/285861.285868.

    Parameters
    ----------
    dimension : int
        Largest number of basis vectors.
    max_iterations : int
        Largest number of products, blocks of moments counted as one.

    Examples
    --------
    >>> from ctmc.solve import solve
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> solve(Transient(chain, initial=(0,), times=[.5]), KrylovExponential()).value.round(12).tolist()
    [[0.741043386716, 0.258956613284]]
    """

    solves: ClassVar = (Transient, AccumulatedReward)
    needs: ClassVar = Generator
    dimension: int = 40
    max_iterations: int = 10_000_000

    def __post_init__(self) -> None:
        check_count("dimension", self.dimension, 2)
        check_count("max_iterations", self.max_iterations)

    def run(self, problem: Evolution, trace: Trace) -> Outcome:
        """Have the witness see each time."""
        size = problem.start.size
        room = min(self.dimension, size) + 1
        require_memory(
            f"krylov_exponential with {room} basis vectors", 8 * size * (room + 8), states=problem.model.size
        )
        with threadpool_limits(limits=1, user_api="blas"):  # vector work: more threads only wait for each other
            status = self._steps(problem, trace, np.empty((room, size)))
        return Outcome(None, status, trace.history)

    def _steps(self, problem: Evolution, trace: Trace, basis: np.ndarray) -> Status:
        times, shape = problem.times, problem.start.shape
        last = float(times[-1])
        y, integral = problem.start.ravel().copy(), np.zeros(problem.start.size)
        lost = np.zeros_like(integral)
        begin, position, error = 0.0, 0, 0.0
        allowance = Allowance(problem)
        if self._tell(trace, problem, 1.0, 0):
            return trace.status
        while position < len(times) and times[position] <= 0:
            report(trace, problem, position, y.reshape(shape).copy(), integral.reshape(shape).copy(), 0.0)
            position += 1
        while position < len(times):
            remaining = last - begin
            length = float(np.linalg.norm(y))
            space = self._space(problem, trace, basis, y, length, remaining, last, allowance)
            if space is None:
                return trace.status
            if space.steps is None:
                there, spent = y.reshape(shape), integral.reshape(shape)
                stay(trace, problem, position, begin, there, spent, error, space.speed)
                return Status.CONVERGED
            steps = space.steps
            span = steps.reach
            end = last if span >= remaining else begin + span
            used = basis[: len(steps.small)]
            while position < len(times) and times[position] <= end:
                inside = float(times[position]) - begin
                x, z, made = steps.at(inside)
                there, spent = (length * (x @ used)).reshape(shape), (integral + length * (z @ used)).reshape(shape)
                report(trace, problem, position, there, spent, error + made)
                position += 1
            if position < len(times):
                x, z, made = steps.at(span)
                y = length * (x @ used)
                accumulate(integral, lost, length * (z @ used))
                error += made
                allowance.take(made, span)
                begin = end
        return Status.CONVERGED

    def _space(
        self,
        problem: Evolution,
        trace: Trace,
        basis: np.ndarray,
        y: np.ndarray,
        length: float,
        remaining: float,
        last: float,
        allowance: Allowance,
    ) -> _Space | None:
        """Build the basis until a step within the allowance is as long as it can be; None where the solve is to end."""
        shape = problem.start.shape
        if length == 0:
            return _Space(None, 0.0)
        most = len(basis) - 1
        hessenberg = np.zeros((most, most))
        basis[0] = y / length
        told = 0
        for k in range(most):
            w = basis[k + 1]
            problem.change(basis[k].reshape(shape), out=w.reshape(shape))
            before = float(np.linalg.norm(w))
            if k == 0 and problem.blocks == 1:
                speed = length * problem.norm(w.reshape(shape))
                if remaining * speed <= allowance.of(remaining, remaining):
                    self._tell(trace, problem, 0.0, 1)
                    return _Space(None, speed)
            for _ in range(2):
                along = basis[: k + 1] @ w
                w -= along @ basis[: k + 1]
                hessenberg[: k + 1, k] += along
            left = float(np.linalg.norm(w))
            broken = left <= _BREAKDOWN * before
            if (k + 1) % _NEWS == 0 or k + 1 == most or broken:
                if self._tell(trace, problem, remaining / last, k + 1 - told):
                    return None
                told = k + 1
                # the residual of any combination of the basis is the last coefficient times this
                tail = length * problem.norm(w.reshape(shape))
                small = hessenberg[: k + 1, : k + 1]
                if broken and remaining < last:
                    # not at once: exponentials over long times cost digits, and most chains are steady after the first step
                    # b |x_m| <= ||b V x||_2, at most the norm forward, and sqrt(size) times it backward
                    ratio = math.sqrt(y.size) if problem.backward else 1.0
                    speed = tail / length * 2 * ratio * problem.norm(y.reshape(shape))
                    exact = _Invariant(small, remaining, speed)
                    if exact.at_most() <= allowance.of(remaining, remaining):
                        return _Space(exact, 0.0)
                steps = _pieces(small, tail, remaining, allowance, last=broken or k + 1 == most)
                if steps is not None:
                    return _Space(steps, 0.0)
            if k + 1 < most:
                hessenberg[k + 1, k] = left
                w /= left
        raise AssertionError("the last basis vector always gives a step")

    def _tell(self, trace: Trace, problem: Evolution, ahead: float, products: int) -> bool:
        """Tell the trace which part of the time lies ahead; only a limit or the user ends the solve early."""
        above = max(2 * ahead, 2 * problem.tolerance)
        return trace.finished(above, limit=self.max_iterations, iterations=products, stagnates=False)


class _Space(NamedTuple):
    """A step, or None where nothing changes any more, at this speed."""

    steps: _Pieces | _Invariant | None
    speed: float


@dataclass(frozen=True, eq=False)
class _Pieces:
    """x(s) = exp(s H) e_1 and its integral z on pieces of a step, with the bounds of the error at their ends."""

    small: np.ndarray
    piece: float
    reach: float
    x: np.ndarray
    z: np.ndarray
    bounds: np.ndarray

    def at(self, s: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Return x, z and the bound of the error at all times up to s."""
        k = min(int(s / self.piece), len(self.bounds) - 2)
        span = s - k * self.piece
        term = self.x[k]
        x, z = term.copy(), self.z[k] + span * term
        for j in range(1, _TERMS):
            term = (span / j) * (self.small @ term)
            x += term
            z += (span / (j + 1)) * term
        return x, z, float(self.bounds[k + 1])


@dataclass(frozen=True, eq=False)
class _Invariant:
    """The same on a space that A does not leave but for rounding, for any length of time."""

    small: np.ndarray
    reach: float
    speed: float

    def at_most(self) -> float:
        """Return the bound at the end."""
        return self.speed * self.reach

    def at(self, s: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Return x, z and the bound of the error at all times up to s."""
        m = len(self.small)
        matrix = np.zeros((m + 1, m + 1))
        matrix[:m, :m] = s * self.small
        matrix[0, m] = s
        whole = expm(matrix)
        return whole[:m, 0], whole[:m, m], self.speed * s


def _pieces(small: np.ndarray, tail: float, remaining: float, allowance: Allowance, *, last: bool) -> _Pieces | None:
    """Return the longest step within the allowance, or None where a larger space would make it longer."""
    # at least ||H||_2
    size = math.sqrt(float(np.abs(small).sum(axis=0).max()) * float(np.abs(small).sum(axis=1).max()))
    pieces = max(1, math.ceil(min(remaining * size, float(_MOST_PIECES))))
    span = remaining if pieces < _MOST_PIECES else min(_MOST_PIECES / size, remaining)
    while True:
        found = _bounded(small, span / pieces, pieces, tail)
        ends = span / pieces * np.arange(1, pieces + 1)
        made = found.bounds[1:]
        allowed = np.array([allowance.of(float(end), remaining) for end in ends])
        good = int(np.argmin(np.append(made <= allowed, False)))
        if good == pieces or (last and good > 0):
            return _Pieces(
                small, found.piece, span if good == pieces else good * found.piece, found.x[: good + 1],
                found.z[: good + 1], np.concatenate([[0.0], made[:good]]),
            )  # fmt: skip
        if not last:
            return None
        if span * size < 1e-6:  # not even next to nothing is within the allowance: the bound will say so
            return _Pieces(small, found.piece, span, found.x, found.z, np.concatenate([[0.0], made]))
        span, pieces = span / pieces, 16


def _bounded(small: np.ndarray, piece: float, pieces: int, tail: float) -> _Pieces:
    """Return x and z at the ends of pieces, and bounds of tail times the integral of |x_m|.

    On a piece |x_m(s)| <= sum_j |[H^j x]_m| s^j / j!, and the terms from `_TERMS` on are below 1.05 ||x|| / _TERMS! since
    s ||H|| <= 1.
    """
    m = len(small)
    scaled = piece * small
    exponential, integrated = np.zeros((m, m)), np.zeros((m, m))
    lasts = np.empty((_TERMS, m))
    power = np.eye(m)
    for j in range(_TERMS):
        exponential += power
        integrated += power / (j + 1)
        lasts[j] = power[-1]
        power = power @ scaled / (j + 1)
    x, z = np.zeros((pieces + 1, m)), np.zeros((pieces + 1, m))
    x[0, 0] = 1.0
    total, lost = np.zeros(m), np.zeros(m)
    for k in range(pieces):
        x[k + 1] = exponential @ x[k]
        accumulate(total, lost, piece * (integrated @ x[k]))
        z[k + 1] = total
    terms = np.abs(x[:-1] @ lasts.T) @ (1 / np.arange(1, _TERMS + 1))
    terms += np.linalg.norm(x[:-1], axis=1) * (1.05 / math.factorial(_TERMS))
    bounds = np.concatenate([[0.0], tail * piece * np.cumsum(terms)])
    return _Pieces(small, piece, piece * pieces, x, z, bounds)
