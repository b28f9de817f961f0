"""Quasi-birth-and-death processes of every kind, to try matrix-analytic methods on; each is defined exactly."""

from __future__ import annotations

from functools import cache

import numpy as np

from ctmc.model.elimination import gth
from ctmc.model.qbd import QBD


def with_diagonal(up, local, down):
    """Return local with the diagonal that makes rows of up + local + down sum to zero."""
    local = np.array(local, dtype=float)
    np.fill_diagonal(local, 0)
    return local - np.diag((local + up + down).sum(axis=1))


def plain(up, local, down):
    """A QBD whose level 0 keeps its steps down as changes of phase."""
    up, down = np.array(up, dtype=float), np.array(down, dtype=float)
    return QBD.from_blocks(up, with_diagonal(up, local, down), down)


def map_ph_1(quiet, arrivals, start, service):
    """MAP/PH/1: quiet and arrivals are D0 (off-diagonal part) and D1; service starts by `start` and has generator `service`.

    Level 0 has the phases of the arrivals alone; above, a state is (phase of arrivals, phase of service).
    """
    quiet, arrivals, start, service = (np.array(given, dtype=float) for given in (quiet, arrivals, start, service))
    a, s = len(quiet), len(service)
    finish = -service.sum(axis=1)
    finish[np.abs(finish) < 1e-13] = 0.0
    moving = service - np.diag(np.diag(service))
    up = np.kron(arrivals, np.eye(s))
    down = np.kron(np.eye(a), np.outer(finish, start))
    local = with_diagonal(up, np.kron(quiet, np.eye(s)) + np.kron(np.eye(a), moving), down)
    first_up = np.kron(arrivals, start[None, :])
    last_down = np.kron(np.eye(a), finish[:, None])
    empty = with_diagonal(first_up.sum(axis=1)[:, None] * np.eye(a) * 0, quiet, np.zeros((a, a)))
    empty -= np.diag(first_up.sum(axis=1))
    return QBD.from_blocks(up, local, down, [(None, empty, first_up), (last_down, local, None)])


def m_ph_1(rate, start, service):
    return map_ph_1([[0.0]], [[rate]], start, service)


def tandem_with_blocking(arrival_rate, first, second, room):
    """Two stations in series: level = jobs at or before the first, phase = jobs at the second (0 .. room), blocking the
    first while it is full; so the level falls only where there is room."""
    m = room + 1
    up = arrival_rate * np.eye(m)
    down = first * np.eye(m, k=1)
    local = with_diagonal(up, second * np.eye(m, k=-1), down)
    empty = with_diagonal(up, second * np.eye(m, k=-1), np.zeros((m, m)))
    return QBD.from_blocks(up, local, down, [(None, empty, None)])


@cache
def random_blocks(m, load, seed=314):
    """Dense blocks with entries uniform on (0, 1), then `up` scaled until the load, x up 1 / x down 1, is as asked."""
    rng = np.random.default_rng(seed)
    up, local, down = (rng.random((m, m)) for _ in range(3))
    np.fill_diagonal(local, 0)
    for _ in range(100):
        x = gth(up + local + down)
        up *= load * (x @ down.sum(axis=1)) / (x @ up.sum(axis=1))
    return plain(up, local, down)


def slowly_modulated(m, load, rate=1e-3, seed=2718):
    """Diagonal up and down, tridiagonal phases whose rates are `rate` times uniform on (1/2, 3/2); down uniform on
    (1/2, 3/2), up uniform on (0, 1) and then scaled to the load."""
    rng = np.random.default_rng(seed)
    local = np.diag(rate * rng.uniform(0.5, 1.5, m - 1), 1) + np.diag(rate * rng.uniform(0.5, 1.5, m - 1), -1)
    down, up = rng.uniform(0.5, 1.5, m), rng.uniform(0, 1, m)
    x = gth(local)
    return plain(np.diag(up * (load * (x @ down) / (x @ up))), local, np.diag(down))


def unreachable_phase():
    """Phase 2 leads to the others, but nothing leads to it, on the boundary or above."""
    return plain(np.diag([0.5, 0.8, 0.3]), [[0, 0.4, 0], [0.6, 0, 0], [0.2, 0.1, 0]], np.diag([1.0, 1.2, 0.7]))


def uneven_boundary():
    """Boundary levels of 1, 4 and 2 states; the repeating levels have 2 phases."""
    up, down = np.array([[0.3, 0.1], [0.0, 0.5]]), np.array([[0.7, 0.2], [0.4, 0.6]])
    local = with_diagonal(up, [[0, 0.2], [0.3, 0]], down)
    first_up = np.array([[0.1, 0.2, 0.3, 0.4]])
    second_down, second_local = np.array([[1.0], [0.5], [0], [2.0]]), np.eye(4, k=1) * 0.7 + np.eye(4, k=-2) * 0.1
    second_up = np.array([[0.2, 0], [0, 0.3], [0.1, 0.1], [0, 0.4]])
    second_local -= np.diag(second_local.sum(axis=1) + second_down.sum(axis=1) + second_up.sum(axis=1))
    third_down = np.array([[0.2, 0.1, 0.3, 0.3], [0.5, 0.5, 0, 0]])
    return QBD.from_blocks(
        up, local, down, [(None, [[-1.0]], first_up), (second_down, second_local, second_up), (third_down, local, None)]
    )


ERLANG = ([1.0, 0, 0], [[-3.0, 3, 0], [0, -3, 3], [0, 0, -3]])
HYPEREXPONENTIAL = ([0.9, 0.1], [[-3.0, 0], [0, -0.2]])

MODELS = {
    "M/M/1 load .3": lambda: QBD.from_blocks([[0.3]], [[-1.3]], [[1.0]]),
    "M/M/1 load .9999": lambda: QBD.from_blocks([[0.9999]], [[-1.9999]], [[1.0]]),
    "M/E3/1": lambda: m_ph_1(0.7, *ERLANG),
    "M/H2/1": lambda: m_ph_1(0.9, *HYPEREXPONENTIAL),
    "MAP/H2/1": lambda: map_ph_1([[0, 0.1], [0.05, 0]], [[0.1, 0.02], [0.3, 1.8]], *HYPEREXPONENTIAL),
    "MMPP/M/1": lambda: map_ph_1([[0, 0.01], [0.02, 0]], [[0.4, 0], [0, 1.5]], [1.0], [[-1.0]]),
    "random environment": lambda: plain(
        np.diag([0.2, 1.0, 3.0]), [[0, 0.3, 0], [0.2, 0, 0.1], [0, 0.5, 0]], np.diag([2.0, 2.5, 3.0])
    ),
    "tandem with blocking": lambda: tandem_with_blocking(0.6, 1.2, 1.0, 6),
    "unreachable phase": unreachable_phase,
    "uneven boundary": uneven_boundary,
    "slowly modulated": lambda: slowly_modulated(20, 0.9),
    "random m = 50, load .5": lambda: random_blocks(50, 0.5),
    "random m = 50, load .9": lambda: random_blocks(50, 0.9),
    "random m = 50, load .99": lambda: random_blocks(50, 0.99),
    "random m = 50, load .999": lambda: random_blocks(50, 0.999),
}
