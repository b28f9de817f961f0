"""Elimination of the levels of a QBD without a subtraction, and how far two distributions over its levels are apart."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, zip_longest

import numpy as np

from ctmc.errors import ModelError
from ctmc.model.elimination import gth
from ctmc.model.m_matrix import drop_negligible, inverse
from ctmc.model.matrix_geometric import MatrixGeometric
from ctmc.model.qbd import QBD

BEYOND = 1e-18
"""So rarely 2^k levels are climbed, when levels need no further halving."""
MOST_PHASES = 200
MOST_BOUNDARY_STATES = 500
_EPSILON = float(np.finfo(np.float64).eps)
_MOST_HALVINGS = 70
_MOST_DOUBLINGS = 60
_SINGLE = 32


def halve(
    up: np.ndarray, down: np.ndarray, stay: np.ndarray, enough: Callable[[float], bool]
) -> tuple[np.ndarray, np.ndarray]:
    """Return G and (-U)^-1 of a QBD by cyclic reduction: every other level is eliminated, again and again.

    Row sums of -local are those of up + down in every iteration, and row sums of -home those of up and the first down.

    Parameters
    ----------
    up, down, stay : ndarray, shape (m, m)
        Repeating blocks, and the off-diagonal part of local.
    enough : callable
        Told before each iteration the largest row sum of up relative to that of the first down, whether to stop.
    """
    first, leave, home = down, down.sum(axis=1), stay.copy()
    scale = float(leave.max())
    rises = up.sum(axis=1)
    while not enough(float(rises.max()) / scale):
        away = inverse(stay, rises + down.sum(axis=1))
        from_up, from_down = away @ up, away @ down
        around = up @ from_down
        home += around
        rises = up @ from_up.sum(axis=1)
        if float(rises.max()) <= BEYOND * scale:
            continue  # the last iteration: only home is needed
        stay = stay + around
        stay += down @ from_up
        up, down = up @ from_up, down @ from_down
        for matrix in (up, down):
            drop_negligible(matrix, scale)
        rises = up.sum(axis=1)
    visits = inverse(home, leave)  # steps that are left upwards for good have no weight any more
    return visits @ first, visits


def eliminated_levels(queue: QBD) -> MatrixGeometric | None:
    """Return the stationary distribution of an irreducible QBD by elimination, or None where that is not cheap or fails.

    Cheap are up to 200 phases and 500 states on the boundary levels; some 14 m^3 multiplications for each of log2(1 / (1 -
    decay rate)) + 5 halvings.  It fails where phases or boundary states are transient.

    Examples
    --------
    >>> queue = QBD.from_blocks([[0.999999]], [[-1.999999]], [[1.0]])
    >>> answer = eliminated_levels(queue)
    >>> round(1 / (1 - answer.decay_rate)), round(answer.mean_level)
    (1000000, 999999)
    """
    sizes = [level.local.shape[0] for level in queue.boundary]
    if queue.phase_count > MOST_PHASES or sum(sizes) > MOST_BOUNDARY_STATES:
        return None
    up, local, down = (block.toarray() for block in (queue.up, queue.local, queue.down))
    np.fill_diagonal(local, 0.0)
    halvings = count()
    try:
        g, visits = halve(up, down, local, lambda climbed: climbed <= BEYOND or next(halvings) == _MOST_HALVINGS)
        r = up @ visits
        pi = gth(queue.watched_boundary(r @ down).to_scipy().toarray())
    except ModelError:
        return None
    boundary = np.split(pi, np.cumsum(sizes)[:-1])
    total = pi.sum() + sum(block.sum() for block in doubling_levels(boundary[-1], r))
    return MatrixGeometric(tuple(level / total for level in boundary), r, g)


def off_elimination(queue: QBD, answer: MatrixGeometric) -> float | None:
    """Return how far an answer may be off, as elimination and its own rounding tell; None where there is no elimination.

    Examples
    --------
    >>> queue = QBD.from_blocks([[1 - 2.0**-20]], [[2.0**-20 - 2]], [[1.0]])
    >>> wrong = MatrixGeometric((np.array([2.0**-17]),), np.array([[1 - 2.0**-17]]))       # of defect 5e-11
    >>> round(off_elimination(queue, wrong), 1)
    1.3
    """
    exact = eliminated_levels(queue)
    if exact is None:
        return None
    off = distance(exact, answer) + queue.phase_count * _EPSILON / max(1 - exact.decay_rate, _EPSILON)
    return off if answer.g is None else max(off, float(np.abs(answer.g - exact.g).max()))


def doubling_levels(weights: np.ndarray, r: np.ndarray) -> list[np.ndarray]:
    """Return weights R, weights (R^2 + R^3), weights (R^4 + .. + R^7), and so on while there is mass.

    Examples
    --------
    >>> [block.item() for block in doubling_levels(np.array([1.0]), np.array([[0.5]]))][:3]
    [0.5, 0.375, 0.1171875]
    """
    below, power, found = weights, r, []
    for _ in range(_MOST_DOUBLINGS):
        block = below @ power
        if not block.sum() > BEYOND * weights.sum():
            break
        found.append(block)
        below, power = below + block, power @ power
    return found


def distance(one: MatrixGeometric, other: MatrixGeometric) -> float:
    """Return how far two distributions over the same levels are apart in L1, far beyond the boundary by blocks of levels.

    Each phase by itself; the blocks, from 32 levels above the boundary on, are those of `doubling_levels`.

    Examples
    --------
    >>> one, other = (MatrixGeometric((np.array([1 - rho]),), np.array([[rho]])) for rho in (0.5, 0.25))
    >>> distance(one, other)                                        # 1/4 at level 0, and as much above
    0.5
    """
    nothing = np.zeros(len(one.r))
    pairs = zip_longest(_parts(one), _parts(other), fillvalue=nothing)
    return float(sum(np.abs(a - b).sum() for a, b in pairs))


def _parts(answer: MatrixGeometric) -> list[np.ndarray]:
    found = list(answer.boundary)
    for _ in range(_SINGLE):
        found.append(found[-1] @ answer.r)
    return found + doubling_levels(found[-1], answer.r)
