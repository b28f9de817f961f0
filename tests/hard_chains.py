"""Hard chains by kind and seed, and the ways in which an answer goes wrong, to try certificates on."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csgraph, diags_array
from scipy.sparse.linalg import splu

import ctmc
from ctmc.model.state_space import Lattice


@dataclass(frozen=True, eq=False)
class Hard:
    """A chain by its transitions; with several recurrent classes there is a distribution to begin with."""

    kind: str
    size: int
    begin: np.ndarray
    end: np.ndarray
    rates: np.ndarray
    initial: np.ndarray | None = None

    @property
    def model(self):
        return ctmc.Generator.from_transitions(self.begin, self.end, self.rates, Lattice((self.size - 1,)))

    @property
    def matrix(self):
        """The rates, with nothing on the diagonal."""
        return coo_array((self.rates, (self.begin, self.end)), shape=(self.size, self.size)).tocsr()

    def classes(self):
        """The members of each recurrent class, and the transient states, found in the graph."""
        count, of = csgraph.connected_components(self.matrix, connection="strong")
        left = np.zeros(count, dtype=bool)
        left[of[self.begin[of[self.begin] != of[self.end]]]] = True
        return [np.flatnonzero(of == k) for k in range(count) if not left[k]], np.flatnonzero(left[of])


def _joined(kind, size, *parts, initial=None):
    begin, end, rates = (np.concatenate([np.ravel(part[k]) for part in parts]) for k in range(3))
    good = (begin != end) & (rates > 0)
    pairs, place = np.unique(begin[good] * size + end[good], return_inverse=True)
    summed = np.bincount(place, weights=rates[good])
    return Hard(kind, size, (pairs // size).astype(np.int64), (pairs % size).astype(np.int64), summed, initial)


def _matrix(kind, matrix, initial=None):
    begin, end = np.nonzero(matrix)
    return _joined(kind, len(matrix), (begin, end, matrix[begin, end]), initial=initial)


def _spread(rng, decades, shape):
    return 10.0 ** rng.uniform(-decades, decades, shape)


def _line(up, down):
    low = np.arange(len(up))
    return (np.concatenate([low, low + 1]), np.concatenate([low + 1, low]), np.concatenate([up, down]))


def _ring(rng, states, decades):
    return states, np.roll(states, -1), _spread(rng, decades, len(states))


# ---- kinds ------------------------------------------------------------------------------------------------------------------


def dense(rng, size):
    size = min(size, 60)
    return _matrix("dense", rng.random((size, size)))


def sparse(rng, size):
    count = 2 * size
    more = rng.integers(0, size, count), rng.integers(0, size, count), rng.uniform(0.1, 1, count)
    return _joined("sparse", size, _ring(rng, rng.permutation(size), 0.5), more)


def decades(rng, size):
    """Rates from 1e-12 to 1e12."""
    count = size
    more = rng.integers(0, size, count), rng.integers(0, size, count), _spread(rng, 12, count)
    return _joined("decades", size, _ring(rng, rng.permutation(size), 12), more)


def decomposable(rng, size):
    """Blocks of blocks, coupled by 1e-14 to 1e-2, in both directions or around a ring."""
    blocks = int(rng.integers(2, 6))
    size = max(size, 2 * blocks)
    block = np.sort(rng.integers(0, blocks, size))
    block[:blocks] = np.arange(blocks)
    parts, ends = [], []
    for k in range(blocks):
        states = np.flatnonzero(block == k)
        ends.append(states)
        if size <= 300:
            parts.append(
                (np.repeat(states, 2), rng.choice(states, 2 * len(states)), rng.uniform(0.5, 2, 2 * len(states)))
            )
        if len(states) > 1:
            begin, end, rates = _ring(rng, states, 0.2)
            parts += [(begin, end, rates), (end, begin, rates[::-1])]
    coupling = 10.0 ** rng.uniform(-14, -2)
    for k in range(blocks):
        nearest = coupling if k % 2 else coupling * 10.0 ** rng.uniform(-3, 0)
        there, here = rng.choice(ends[(k + 1) % blocks]), rng.choice(ends[k])
        parts.append((np.array([here, there]), np.array([there, here]), nearest * rng.uniform(0.3, 3, 2)))
    return _joined("nearly decomposable", size, *parts)


def birth_death(rng, size):
    """Both drifts, mild to so strong that the tail is below 1e-300."""
    drift = 10.0 ** rng.choice([-8, -3, -0.3, -0.02, 0.0, 0.02, 0.3, 3, 8])
    return _joined("birth and death", size, _line(rng.uniform(0.5, 2, size - 1) * drift, rng.uniform(0.5, 2, size - 1)))


def periodic(rng, size):
    """Steps from one color to the next, all states left at the same rate: the uniformized chain has a period."""
    period = int(rng.integers(2, 6))
    size = max(size, 2 * period)
    color = np.arange(size) % period
    begin = np.concatenate([np.arange(size), np.repeat(np.arange(size), 2)])
    ahead = np.concatenate([np.full(size, 1), 1 + period * rng.integers(0, max(size // period, 1), 2 * size)])
    end = (begin + ahead) % (size - size % period)
    end = np.where(color[end] == (color[begin] + 1) % period, end, (color[begin] + 1) % period)
    weights = rng.uniform(0.1, 1, len(begin))
    hard = _joined(
        "periodic", size, (begin, end, weights), (np.arange(period), (np.arange(period) + 1) % period, np.ones(period))
    )
    total = np.bincount(hard.begin, weights=hard.rates, minlength=size)
    return Hard(hard.kind, size, hard.begin, hard.end, hard.rates / total[hard.begin])


def classes(rng, size):
    """Transient states, slow and fast, that lead to two or three recurrent classes."""
    count = int(rng.integers(2, 4))
    size = max(size, 3 * count + 2)
    first = size // 3
    of = np.concatenate([np.full(first, -1), np.sort(rng.integers(0, count, size - first))])
    of[-count:] = np.arange(count)
    parts = [(np.arange(first), rng.integers(0, size, first), _spread(rng, 3, first)),
             (np.arange(first), rng.integers(first, size, first), _spread(rng, 3, first))]  # fmt: skip
    for k in range(count):
        states = np.flatnonzero(of == k)
        if len(states) > 1:
            speed = 10.0 ** rng.uniform(-8, 8)
            begin, end, rates = _ring(rng, rng.permutation(states), 1)
            parts += [(begin, end, speed * rates), (end, begin, speed * rng.uniform(0.1, 3, len(end)))]
    initial = np.where(rng.random(size) < 0.5, rng.random(size), 0.0)
    initial[0] += 0.1
    return _joined("several classes", size, *parts, initial=initial / initial.sum())


def absorbing(rng, size):
    """States that nothing leaves, reached from all others."""
    size = max(size, 3)
    last = int(rng.integers(1, min(4, size - 1)))
    inner = size - last
    count = 2 * inner
    more = rng.integers(0, inner, count), rng.integers(0, size, count), _spread(rng, 3, count)
    out = (
        np.arange(inner),
        np.where(np.arange(inner) < inner - 1, np.arange(inner) + 1, size - 1),
        _spread(rng, 6, inner),
    )
    initial = rng.dirichlet(np.ones(size))
    return _joined("absorbing", size, out, more, initial=initial)


def transient(rng, size):
    """One recurrent class behind transient states that are left at rates down to 1e-14."""
    size = max(size, 4)
    first = size // 2
    kept = np.arange(first, size)
    ways = np.arange(first), np.roll(np.arange(first), -1), rng.uniform(0.5, 2, first)
    out = np.array([0, first - 1]), rng.choice(kept, 2), 10.0 ** rng.uniform(-14, 0, 2)
    begin, end, rates = _ring(rng, kept, 1)
    return _joined("transient states", size, ways, out, (begin, end, rates), (end, begin, rates[::-1]))


def wells(rng, size):
    """A walk in a potential with two to four wells, no rate above 1, no rate slow: what is slow is the way over a ridge."""
    size = max(size, 12)
    count = int(rng.integers(2, 5))
    depth = 10.0 ** rng.uniform(2, 13)
    where = np.arange(size) / (size - 1)
    height = np.log(depth) * (0.5 + 0.5 * np.cos(2 * np.pi * count * where)) + rng.uniform(-3, 3) * where
    steps = np.diff(height)
    steps = np.clip(steps, -3, 3)
    return _joined("wells", size, _line(np.minimum(1, np.exp(-steps)), np.minimum(1, np.exp(steps))))


def lattice(rng, size):
    """Two queues in a box, with rates of their own in each state."""
    side = max(2, int(size**0.5))
    places = np.arange(side * side).reshape(side, side)
    parts = []
    for a, b in ((places[:-1], places[1:]), (places[:, :-1], places[:, 1:])):
        speed = _spread(rng, 1, 2)
        parts += [
            (a.ravel(), b.ravel(), speed[0] * rng.uniform(0.5, 2, a.size)),
            (b.ravel(), a.ravel(), speed[1] * rng.uniform(0.5, 2, a.size)),
        ]
    return _joined("lattice", side * side, *parts)


def drifting_ring(rng, size):
    size = max(size, 3)
    states, drift = np.arange(size), 10.0 ** rng.uniform(-4, 0)
    forth, back = rng.uniform(0.5, 2, size), rng.uniform(0.5, 2, size) * drift
    return _joined("ring with drift", size, (states, np.roll(states, -1), forth), (np.roll(states, -1), states, back))


def tree(rng, size):
    """Every state falls to a random earlier one; the ways up take 1e-14 to 1."""
    child = np.arange(1, size)
    parent = (rng.random(size - 1) * child).astype(np.int64)
    return _joined(
        "tree with slow ways up",
        size,
        (child, parent, rng.uniform(0.5, 2, size - 1)),
        (parent, child, 10.0 ** rng.uniform(-14, 0, size - 1)),
    )


def two_colors(rng, size):
    size = max(size, 4)
    begin = np.repeat(np.arange(size), 2)
    end = (begin + 1 + 2 * rng.integers(0, size // 2, len(begin))) % (size - size % 2)
    end = np.where((begin + end) % 2 == 1, end, (begin + 1) % 2)
    line = _line(_spread(rng, 1, size - 1), _spread(rng, 1, size - 1))
    return _joined("two colors", size, line, (begin, end, _spread(rng, 2, len(begin))))


def fast_pair(rng, size):
    """A pair that has nearly all the flow, and slow states with nearly all the mass."""
    size = max(size, 4)
    slow = 10.0 ** rng.uniform(-9, -2)
    line = _line(slow * rng.uniform(0.5, 2, size - 1), slow * rng.uniform(0.5, 3, size - 1))
    return _joined(
        "a fast pair",
        size,
        line,
        (np.array([0, 1]), np.array([1, 0]), np.array([1.0, 2.0]) * 10.0 ** rng.uniform(3, 8)),
    )


def levels(rng, size):
    """A queue in a random environment, near critical, cut at some level: slow phases make long excursions."""
    phases = int(rng.integers(2, 4))
    count = max(2, size // phases)
    places = np.arange(count * phases).reshape(count, phases)
    environment = 10.0 ** rng.uniform(-6, 0)
    up = rng.uniform(0.2, 1.8, phases)
    down = np.full(phases, up.mean() * rng.choice([0.99, 1.01, 1.1, 2.0]))
    parts = [
        (places[:-1].ravel(), places[1:].ravel(), np.tile(up, count - 1)),
        (places[1:].ravel(), places[:-1].ravel(), np.tile(down, count - 1)),
    ]
    for a in range(phases):
        b = (a + 1) % phases
        parts += [(places[:, a], places[:, b], np.full(count, environment * rng.uniform(0.5, 2)))]
    return _joined("levels in an environment", count * phases, *parts)


def renewal(rng, size):
    """Up step by step, and back to the first state from anywhere, hardly ever or often."""
    size = max(size, 3)
    up = np.arange(size - 1)
    back = 10.0 ** rng.uniform(-10, 1, size - 1)
    return _joined(
        "renewal", size, (up, up + 1, rng.uniform(0.5, 2, size - 1)), (up + 1, np.zeros(size - 1, dtype=int), back)
    )


KINDS = (dense, sparse, decades, decomposable, birth_death, periodic, classes, absorbing, transient, wells, lattice,
         drifting_ring, tree, two_colors, fast_pair, levels, renewal)  # fmt: skip
BANDED = (birth_death, wells, drifting_ring, tree, levels, fast_pair, decomposable, renewal)
"""Kinds whose elimination stays sparse, so that the truth about long ones is to be had."""


def wide_chain(seed, side=17):
    """Three lines that know nothing of each other, too wide together for elimination; and its distribution, a product."""
    rng = np.random.default_rng(seed)
    lines = [(wells, birth_death, fast_pair)[int(rng.integers(3))](rng, side) for _ in range(3)]
    places, parts = np.arange(side**3).reshape((side,) * 3), []
    for axis, line in enumerate(lines):
        moved, speed = np.moveaxis(places, axis, 0), 10.0 ** rng.uniform(-3, 3)
        parts.append((moved[line.begin], moved[line.end], np.repeat(speed * line.rates, side**2)))
    return lines, _joined("product of three lines", side**3, *parts)


def hard_chain(seed, kind=None, size=None):
    """A chain of a kind; most have 2 to 40 states, one in ten up to 300, one in fifty 501 to 2,000."""
    rng = np.random.default_rng(seed)
    luck = rng.random()
    if size is None:
        size = (
            int(rng.integers(2, 40))
            if luck < 0.88
            else int(rng.integers(40, 300))
            if luck < 0.98
            else int(rng.integers(501, 2000))
        )
    if kind is None:
        kind = (BANDED if size > 500 else KINDS)[int(rng.integers(len(BANDED if size > 500 else KINDS)))]
    return kind(rng, size)


# ---- answers that are wrong ---------------------------------------------------------------------------------------------------


def _normalised(weights):
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


def _steps(hard, p, count, sweep=False):
    """So many steps of power iteration, or of damped Jacobi iteration (every state by its own rate)."""
    exits = np.asarray(hard.matrix.sum(axis=1)).ravel()
    back = hard.matrix.T.tocsr()
    own = np.where(exits > 0, exits, 1.0) if sweep else 1.01 * exits.max()
    for _ in range(count):
        p = p + 0.7 * (back @ p - exits * p) / own if sweep else p + (back @ p - exits * p) / own
        if sweep:
            p = _normalised(np.maximum(p, 0))
    return p


def _slowest(hard, right, tolerance, rng):
    """The right answer with as much of the slowest mode as the defect allows: the largest error that a residual can hide."""
    n, exits = hard.size, np.asarray(hard.matrix.sum(axis=1)).ravel()
    q = (hard.matrix - diags_array(exits)).T.tocsc()
    try:
        factors = splu(q - diags_array(np.full(n, 1e-13 * exits.max())).tocsc())
    except RuntimeError:
        return right
    slow = rng.normal(size=n) * right ** rng.choice([0, 0.5, 1])
    for _ in range(int(rng.integers(2, 6))):  # inverse iteration, beside the right answer itself
        slow = factors.solve(slow - slow.sum() * right)
        slow -= slow.sum() * right
        slow /= np.abs(slow).sum() or 1.0
    moved = np.abs(q @ slow).sum()
    most = min(0.9 * tolerance * (right @ exits) / moved, 2.0) if moved > 0 else 1.0
    wrong = right + most * slow
    while not wrong.min() >= 0 and most > 1e-16:
        most /= 2
        wrong = right + most * slow
    return _normalised(np.maximum(wrong, 0))


def _krylov(hard, start, steps):
    """The vector of least residual in a Krylov space that is too small."""
    exits = np.asarray(hard.matrix.sum(axis=1)).ravel()
    back, unit = hard.matrix.T.tocsr(), 1.01 * exits.max()
    basis = [start / np.linalg.norm(start)]
    for _ in range(steps):
        w = back @ basis[-1] - exits * basis[-1]
        w = w / unit
        for _ in range(2):
            for one in basis:
                w = w - (one @ w) * one
        if np.linalg.norm(w) < 1e-14:
            break
        basis.append(w / np.linalg.norm(w))
    v = np.array(basis).T
    image = (back @ v - exits[:, None] * v) / unit
    small = np.linalg.svd(image)[2][-1]
    return _normalised(np.abs(v @ small))


def _nearby(hard, rng):
    """The answer of a model whose rates are slightly others, by power iteration of high order: squaring of the kernel."""
    noise = 10.0 ** rng.uniform(-9, -1)
    rates = hard.rates * np.exp(noise * rng.normal(size=len(hard.rates)))
    if rng.random() < 0.3:  # the least rates tenfold
        rates = np.where(rates < 10 * rates.min(), 10 * rates, rates)
    return Hard(hard.kind, hard.size, hard.begin, hard.end, rates, hard.initial)


def wrong_answers(hard, right, recurrent, transient, tolerance, rng):
    """Yield (what went wrong, vector), given the right answer; some are nearly right, or right."""
    n, exits = hard.size, np.asarray(hard.matrix.sum(axis=1)).ravel()
    start = rng.dirichlet(np.ones(n)) if rng.random() < 0.5 else np.eye(n)[int(rng.integers(n))]
    factor = 1 + rng.choice([-1, 1]) * 10.0 ** rng.uniform(-8, -0.01)
    cut = int(rng.integers(1, n)) if n > 1 else 0
    yield "mass moved across a border", _normalised(np.concatenate([right[:cut] * factor, right[cut:]]))
    some = rng.random(n) < 0.5
    yield "mass moved at random", _normalised(np.where(some, right * factor, right))
    yield "noise", _normalised(right * np.exp(10.0 ** rng.uniform(-14, -0.5) * rng.normal(size=n)))
    order = np.argsort(right)
    zeroed = right.copy()
    zeroed[order[: int(rng.integers(1, n + 1)) - 1]] = 0
    yield "tail set to zero", _normalised(zeroed)
    zeroed = right.copy()
    zeroed[:cut] = 0
    yield "region missing", _normalised(zeroed)
    zeroed = right.copy()
    zeroed[cut:] *= 10.0 ** rng.uniform(-16, -4)
    yield "region nearly missing", _normalised(zeroed)
    if len(recurrent) > 1:
        zeroed = right.copy()
        zeroed[recurrent[int(rng.integers(len(recurrent)))]] = 0
        yield "class missing", _normalised(zeroed)
        weighed = right.copy()
        weighed[recurrent[0]] *= factor
        yield "weights of classes", _normalised(weighed)
    if len(transient):
        left = right.copy()
        left[transient] = 10.0 ** rng.uniform(-18, -1) * rng.random(len(transient))
        yield "mass in transient states", _normalised(left)
    flipped = right.copy()
    flipped[int(rng.integers(n))] *= -1
    yield "sign", flipped
    yield "sign of least states", np.where(np.arange(n) == order[0], -(10.0 ** rng.uniform(-25, -3)), right)
    yield "not normalized", right * factor
    yield "power iteration stopped early", _normalised(_steps(hard, start, int(10 ** rng.uniform(0, 2.3))))
    yield "sweeps stopped early", _normalised(_steps(hard, start, int(10 ** rng.uniform(0, 2.3)), sweep=True))
    if 2 < n <= 300:
        yield "Krylov space too small", _krylov(hard, start + 1e-3, int(rng.integers(2, 12)))
    if n > 2 and len(recurrent) == 1:
        yield "slow part unconverged", _slowest(hard, right, tolerance, rng)
    if n > 2:
        along = np.cos(np.pi * np.arange(n) / n * int(rng.integers(1, 4)))
        yield "long waves", _normalised(right * (1 + 0.9 * 10.0 ** rng.uniform(-7, 0) * along))
    yield "uniform", np.full(n, 1 / n)
    yield "by exit rates", _normalised(np.where(exits > 0, 1 / np.where(exits > 0, exits, 1), 1.0))
    yield "one state", np.eye(n)[int(np.argmax(right))]
