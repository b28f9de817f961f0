"""The polish: every state to its digits, compared with closed forms, elimination and long Gauss-Seidel iterations."""

from __future__ import annotations

import numpy as np
import pytest

from builders.birth_death import birth_death
from builders.supermarket import supermarket
from ctmc.certificate import imbalance
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator, ProductCounter
from ctmc.model.state_space import Lattice
from ctmc.model.sweeps import sweep
from solvers._aggregation import half_levels
from solvers._polish import polished, relative_mixer, settled
from solvers._reduction import reduction


def exact(chain):
    return gth(chain.to_scipy().toarray())


def noisy(pi, seed, size):
    """What a Krylov method leaves: errors of about `size` everywhere, whatever the state's probability."""
    return pi + size * np.random.default_rng(seed).normal(size=len(pi))


@pytest.fixture(scope="module")
def queues():
    mu = np.linspace(1, 2, 4)
    return supermarket(mu, 0.8 * mu.sum(), 2, 20, sampling="with_replacement")


@pytest.fixture(scope="module")
def reference(queues):
    """Symmetric Gauss-Seidel sweeps, with balanced totals between, until no state changes by 1e-12."""
    chain = queues.coded()
    states = chain.space.states(np.arange(chain.size))
    total = states.sum(axis=1)
    departures = (np.linspace(1, 2, 4) * (states > 0)).sum(axis=1)
    arrivals = np.maximum(chain.exit_rates - departures, 0)
    arrivals[total == total.max()] = 0
    # within a level states are far from equal from the start: the longest queue must pay
    pi = np.exp(-0.5 * ((states - states.mean(axis=1, keepdims=True)) ** 2).sum(axis=1))
    for _ in range(250):
        before = pi.copy()
        sweep(chain, pi, relaxation=1.5)
        sweep(chain, pi, relaxation=1.5, reverse=True)
        ups, downs = np.bincount(total, pi * arrivals), np.bincount(total, pi * departures)
        factor = np.cumprod([1.0, *(ups[:-1] / downs[1:])])
        pi *= factor[total]
        pi /= pi.sum()
        if np.abs(pi / before - 1).max() < 1e-12:
            break
    return pi


def test_the_least_states_of_the_supermarket(queues, reference):
    assert reference.min() == pytest.approx(4.08e-17, rel=1e-2)
    for seed, size in ((1103, 1e-17), (1109, 3e-16)):
        rough = noisy(reference, seed, size)
        assert (rough.min() < 0) == (size > 1e-16)
        pi = polished(queues, rough)
        assert pi.sum() == pytest.approx(1, rel=1e-14)
        np.testing.assert_allclose(pi, reference, rtol=1e-6)
        assert imbalance(queues.forward(pi), pi, queues) <= 1e-12


def test_a_good_answer_costs_a_step(queues, reference):
    polished(queues, reference)  # levels are found once
    for _ in range(2):
        counter = ProductCounter()
        pi = polished(queues.counted(counter), reference)
        assert counter.products == 1
        np.testing.assert_allclose(pi, reference, rtol=1e-8)


@pytest.mark.parametrize("ratio", [1e-3, 0.05, 0.5])
def test_tails_of_a_queue(ratio):
    size = int(60 / -np.log10(ratio)) + 1
    chain = birth_death([ratio] * (size - 1), [1.0] * (size - 1))
    known = ratio ** np.arange(size) * (1 - ratio)
    assert known[-1] < 1e-57
    np.testing.assert_allclose(polished(chain, noisy(known, 1117, 1e-16)), known, rtol=1e-8)


def test_tails_without_levels():
    """A batch queue: arrivals of one and two jobs, so no level is left for its neighbours only."""
    size = 60
    rates = np.diag(np.full(size - 1, 0.04), 1) + np.diag(np.full(size - 2, 0.004), 2) + np.diag(np.ones(size - 1), -1)
    chain = Generator.from_matrix(rates)
    known = exact(chain)
    assert known.min() < 1e-50
    np.testing.assert_allclose(polished(chain, noisy(known, 1123, 1e-16)), known, rtol=1e-6)


@pytest.mark.parametrize("coupling", [1e-14, 1e-8])
def test_nearly_decomposable(coupling):
    """Masses of the blocks that a defect of 1e-14 says nothing about."""
    rng = np.random.default_rng(1129)
    rates = np.zeros((24, 24))
    for a in range(0, 24, 8):
        rates[a : a + 8, a : a + 8] = rng.random((8, 8)) + 0.05
        rates[a, (a + 9) % 24] = coupling * (1 + a)
    np.fill_diagonal(rates, 0)
    chain = Generator.from_matrix(rates)
    known = exact(chain)
    rough = known * np.repeat([0.2, 1.0, 1.7], 8)
    np.testing.assert_allclose(polished(chain, rough / rough.sum()), known, rtol=1e-7)


def test_a_chain_with_levels_that_nearly_falls_apart():
    """Two queues of which one is open at a time, and hardly ever the other: the levels are right, the queues are not."""
    space = Lattice((1, 30))
    states = space.states(np.arange(space.size))
    sources, targets, rates = [], [], []
    for line, k in states.tolist():
        moves = [(line, k + 1, 1.0), (line, k - 1, 1.5 + line), (1 - line, k, 1e-12 * (1 + line + k))]
        for a, b, rate in moves:
            if 0 <= b <= 30:
                sources.append(space.index((line, k)))
                targets.append(space.index((a, b)))
                rates.append(rate)
    chain = Generator.from_transitions(sources, targets, rates, space)
    assert half_levels(reduction(chain)) is not None
    known = exact(chain)
    rough = known * np.where(states[:, 0] == 1, 3.0, 0.5)
    np.testing.assert_allclose(polished(chain, rough / rough.sum()), known, rtol=1e-7)


def test_no_step_at_all(queues, reference):
    rough = noisy(reference, 1151, 1e-15)
    pi = polished(queues, rough, steps=0)
    assert pi.min() > 0
    assert pi.sum() == pytest.approx(1, rel=1e-14)


class Spoiling:
    """Stands for a map whose accelerated iterates never settle: the first image is right, the others are not."""

    def __init__(self):
        self.chain = birth_death([1.0], [1.0])
        self.images = 0

    def expand(self, x):
        return x.copy()

    def image(self, x, out):
        self.images += 1
        out[:] = (0.5, 0.5) if self.images == 1 else (0.3 + 0.01 * self.images, 0.7 - 0.01 * self.images)
        return 0.0 if self.images == 1 else 1.0


def test_the_defect_is_kept():
    """The polish does not spoil what was within the tolerance."""
    pi = settled(Spoiling(), np.array([0.6, 0.4]), relative_mixer(2, 2, 1e-12), 1e-12, 1e-8, 5)
    assert pi.tolist() == [0.5, 0.5]
