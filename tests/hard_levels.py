"""Hard QBDs by kind and seed, their exact distributions, and the ways in which answers over levels go wrong."""

from dataclasses import dataclass
from decimal import Decimal

import exact_chains as exact
import numpy as np

import ctmc
from ctmc.certificate import stationary_qbd
from ctmc.model.elimination import gth
from ctmc.model.matrix_geometric import MatrixGeometric

SINGLE = 48
"""So many levels above the boundary are compared one by one; beyond, blocks that double."""


@dataclass(frozen=True, eq=False)
class Levels:
    """Blocks with no diagonal, and those of a level 0 of its own: (local, up, down to it), or None."""

    kind: str
    up: np.ndarray
    local: np.ndarray
    down: np.ndarray
    first: tuple | None = None

    @property
    def model(self):
        local = _with_diagonal(self.local, self.up, self.down)
        if self.first is None:
            return ctmc.QBD.from_blocks(self.up, local, self.down)
        inside, leave, fall = self.first
        empty = _with_diagonal(inside, leave)
        top = _with_diagonal(self.local, self.up, fall)
        return ctmc.QBD.from_blocks(self.up, local, self.down, [(None, empty, leave), (fall, top, None)])


def _with_diagonal(local, *others):
    local = local * (1 - np.eye(len(local)))
    return local - np.diag(local.sum(axis=1) + sum(other.sum(axis=1) for other in others))


def _drift(up, local, down):
    whole = up + local + down
    weights = gth(whole) if len(whole) > 1 else np.ones(1)
    return float(weights @ (up.sum(axis=1) - down.sum(axis=1))), float(weights @ down.sum(axis=1))


def _balanced(kind, up, local, down, slack, first=None):
    """Scale the way up until the levels drift down at this share of the flow down."""
    low, high = -40.0, 40.0
    for _ in range(200):
        middle = (low + high) / 2
        drift, flow = _drift(10.0**middle * up, local, down)
        low, high = (middle, high) if drift < -slack * flow else (low, middle)
    return Levels(kind, 10.0**low * up, local, down, first)


def _slack(rng):
    return 10.0 ** rng.choice([rng.uniform(-7, -3), rng.uniform(-3, -0.1)])


def dense(rng, m):
    up, local, down = rng.random((3, m, m))
    return _balanced("dense", up, local, down, _slack(rng))


def environment(rng, m):
    """Phases that change slowly, some of them with a drift up."""
    local = 10.0 ** rng.uniform(-7, 0) * rng.uniform(0.3, 1, (m, m))
    up, down = np.diag(rng.uniform(0.1, 2, m)), np.diag(rng.uniform(0.5, 1, m))
    return _balanced("slow environment", up, local, down, _slack(rng))


def service(rng, m):
    """Services of several steps, which begin anew after each: the way down has rank one."""
    start = rng.dirichlet(np.ones(m))
    local = np.triu(_spread(rng, 2, (m, m)), 1)
    down = np.outer(_spread(rng, 2, m), start)
    up = np.eye(m)
    first = np.zeros((1, 1)), start[None, :].copy(), down.sum(axis=1)[:, None]
    chosen = _balanced("services", up, local, down, _slack(rng))
    return Levels("services", chosen.up, local, down, (first[0], first[1] * chosen.up[0, 0], first[2]))


def decades(rng, m):
    up, local, down = _spread(rng, 6, (3, m, m))
    return _balanced("decades", up, local, down, _slack(rng))


def separate(rng, m):
    """Two sets of phases that hardly exchange anything, each with a drift of its own."""
    m = max(m, 2)
    side = np.arange(m) < m // 2
    coupling = np.where(side[:, None] == side[None, :], 1.0, 10.0 ** rng.uniform(-12, -2))
    up = np.diag(rng.uniform(0.2, 1, m)) * rng.choice([0.5, 1.0])
    return _balanced(
        "nearly separate phases",
        up,
        rng.uniform(0.3, 1, (m, m)) * coupling,
        np.diag(rng.uniform(0.8, 1, m)),
        _slack(rng),
    )


def _spread(rng, decades, shape):
    return 10.0 ** rng.uniform(-decades, decades, shape)


KINDS = (dense, environment, service, decades, separate)


def hard_levels(seed):
    rng = np.random.default_rng(seed)
    return KINDS[int(rng.integers(len(KINDS)))](rng, int(rng.integers(1, 5)))


# ---- the truth ----------------------------------------------------------------------------------------------------------------


def _inverse(matrix):
    return exact.solved(matrix, exact.decimals(np.eye(len(matrix))))


def _filled(local, *others):
    """A block of decimals with the diagonal that makes rows sum to zero exactly."""
    filled = exact.decimals(local)
    for i in range(len(filled)):
        filled[i, i] = Decimal(0)
        filled[i, i] = -filled[i].sum() - sum((other[i].sum() for other in others), Decimal(0))
    return filled


def exact_levels(hard):
    """The distribution as (levels of the boundary, R), by logarithmic reduction in decimals."""
    with exact.precise():
        up, down = exact.decimals(hard.up), exact.decimals(hard.down)
        local = _filled(hard.local, up, down)
        inside = _inverse(-local)
        high, low = inside @ up, inside @ down
        g, passed = low, high
        one = exact.decimals(np.eye(len(up)))
        while max(abs(x) for x in passed.ravel()) > Decimal("1e-50"):
            whole = _inverse(one - high @ low - low @ high)
            high, low = whole @ high @ high, whole @ low @ low
            g, passed = g + passed @ low, passed @ high
        r = up @ _inverse(-(local + up @ g))
        if hard.first is None:
            rates, sizes = exact.decimals(hard.local) + down + up @ g, [len(up)]
        else:
            inside, leave, fall = (exact.decimals(block) for block in hard.first)
            rates = np.block([[inside, leave], [fall, exact.decimals(hard.local) + up @ g]])
            sizes = [len(inside), len(up)]
        begin, end = np.nonzero((rates > 0) & ~np.eye(len(rates), dtype=bool))
        pi = np.array(exact.stationary(begin, end, rates[begin, end], len(rates)), dtype=object)
        boundary = np.split(pi, np.cumsum(sizes)[:-1])
        total = pi.sum() + (boundary[-1] @ r @ _inverse(one - r)).sum()
        return [level / total for level in boundary], r


def apart(answer, truth):
    """The L1 distance of an answer from the truth, beyond some levels by blocks of them: at most the whole distance."""
    with exact.precise():
        mine = _masses([exact.decimals(level) for level in answer.boundary], exact.decimals(answer.r))
        right = _masses(*truth)
        length = max(len(mine), len(right))
        nothing = right[-1] * 0
        pad = [found + [nothing] * (length - len(found)) for found in (mine, right)]
        return float(sum(abs(a - b).sum() for a, b in zip(*pad, strict=True)))


def _masses(boundary, r):
    found, level = list(boundary), boundary[-1]
    for _ in range(SINGLE):
        level = level @ r
        found.append(level)
    below, power = level, r  # `below` has levels 0 .. 2^k - 1 from this one on, its first part already told
    for _ in range(60):
        block = below @ power
        found.append(block)
        if not abs(block).sum() > Decimal("1e-30"):
            break
        below, power = below + block, power @ power
    return found


# ---- answers that are wrong ---------------------------------------------------------------------------------------------------


def _scaled(boundary, r):
    """The answer scaled to the mass one."""
    whole = MatrixGeometric(tuple(np.array(level, dtype=float) for level in boundary), r)
    return MatrixGeometric(tuple(level / whole.mass for level in whole.boundary), r)


def _rebuilt(model, r):
    """The answer that belongs to an R, its boundary by elimination."""
    pi = gth(model.watched_boundary(r @ model.down).to_scipy().toarray())
    sizes = [level.local.shape[0] for level in model.boundary]
    return _scaled(np.split(pi, np.cumsum(sizes)[:-1]), r)


def _iterated(model, steps):
    """R after so many steps of the functional iteration from zero, which always falls short."""
    up, local, down = (block.toarray() for block in (model.up, model.local, model.down))
    r = np.zeros_like(up)
    for _ in range(steps):
        r = up @ np.linalg.inv(-(local + r @ down))
    return np.maximum(r, 0)


def _largest_slow(problem, right, sign):
    """R moved along its slowest mode by as much as the defect allows."""
    values, vectors = np.linalg.eig(right.r)
    v = np.abs(vectors[:, int(np.argmax(values.real))])
    values, vectors = np.linalg.eig(right.r.T)
    move = np.outer(v, np.abs(vectors[:, int(np.argmax(values.real))]))
    best, most = right, 1.0
    while most > 1e-16:
        r = right.r + sign * most * move / max(move.sum(), 1e-300)
        if r.min() >= 0 and np.abs(np.linalg.eigvals(r)).max() < 1:
            wrong = _scaled(right.boundary, r)
            if stationary_qbd(problem, wrong).defect <= 0.9 * problem.tolerance:
                return wrong
        most /= 2
    return best


def wrong_levels(hard, right, problem, rng):
    """Yield (what went wrong, answer); some are nearly right, or right."""
    model = hard.model
    factor = 1 + rng.choice([-1, 1]) * 10.0 ** rng.uniform(-9, -0.3)
    steps = int(10 ** rng.uniform(0, 3.5))
    yield "iteration stopped early", _rebuilt(model, _iterated(model, steps))
    if right.decay_rate * factor < 1:
        yield "R scaled", _scaled(right.boundary, right.r * factor)
        yield "R scaled, boundary by elimination", _rebuilt(model, right.r * factor)
    for sign in (-1, 1):
        yield "slow mode", _largest_slow(problem, right, sign)
    near = Levels(hard.kind, *(block * np.exp(10.0 ** rng.uniform(-12, -2) * rng.normal(size=block.shape))
                               for block in (hard.up, hard.local, hard.down)), hard.first)  # fmt: skip
    if _drift(near.up, near.local, near.down)[0] < 0:
        r = np.array(exact_levels(near)[1], dtype=float)
        if np.abs(np.linalg.eigvals(r)).max() < 1:
            yield "another model", _rebuilt(model, r)
    moved = [level * np.where(rng.random(len(level)) < 0.5, factor, 1.0) for level in right.boundary]
    yield "mass moved on the boundary", _scaled(moved, right.r)
    yield "first level scaled", _scaled([right.boundary[0] * factor, *right.boundary[1:]], right.r)
    yield "nothing above the boundary", _scaled(right.boundary, np.zeros_like(right.r))
    if right.decay_rate < 1 - 1e-12:
        yield "one decay for all phases", _scaled(right.boundary, right.decay_rate * np.eye(len(right.r)))
        yield "R transposed", _scaled(right.boundary, np.ascontiguousarray(right.r.T))
    rough = right.r * np.exp(10.0 ** rng.uniform(-14, -1) * rng.normal(size=right.r.shape))
    if np.abs(np.linalg.eigvals(rough)).max() < 1:
        yield "noise", _scaled(right.boundary, rough)
    yield "not normalized", MatrixGeometric(tuple(level * factor for level in right.boundary), right.r)
    yield "sign", MatrixGeometric((-right.boundary[0], *right.boundary[1:]), right.r)
