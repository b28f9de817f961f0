"""Aggregation: levels, parts, multilevel cycles against elimination and closed forms, and the solver."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ctmc
from builders.birth_death import birth_death
from builders.supermarket import supermarket
from builders.tandem_network import tandem_network
from ctmc.certificate import imbalance
from ctmc.errors import ModelError, UnknownNameError
from ctmc.model import multilevel
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.multilevel import Multilevel, between, estimated_error, matched, shares_and_masses
from ctmc.model.qbd import QBD
from ctmc.model.sweeps import sweep
from ctmc.problem import Stationary
from ctmc.solution import Status
from solvers._aggregation import (
    find_levels,
    given_parts,
    half_levels,
    levels_of,
    loosely_coupled,
    rates_between_levels,
)
from solvers._reduction import reduction
from solvers.stationary.aggregation import Aggregation


def dense(chain):
    rates = chain.to_scipy().toarray()
    np.fill_diagonal(rates, 0)
    return rates


def random_chain(seed, size, density=0.1):
    rng = np.random.default_rng(seed)
    rates = np.where(rng.random((size, size)) < density, rng.random((size, size)), 0.0)
    rates[np.arange(size), np.roll(np.arange(size), -1)] = rng.random(size) + 0.1
    np.fill_diagonal(rates, 0)
    return Generator.from_matrix(rates)


def blocks(seed, count=4, size=6, coupling=1e-14):
    """Nearly decomposable: full blocks, and one weak transition from each block to every other."""
    rng = np.random.default_rng(seed)
    rates = np.zeros((count * size,) * 2)
    for a in range(count):
        own = slice(a * size, (a + 1) * size)
        rates[own, own] = rng.random((size, size)) + 0.01
        for b in range(count):
            if a != b:
                rates[a * size + b, b * size + a] = coupling * rng.random()
    np.fill_diagonal(rates, 0)
    return Generator.from_matrix(rates)


def truncated_qbd():
    up, local, down = np.diag([0.5, 1.0]), np.array([[-2.8, 0.3], [0.4, -3.4]]), np.diag([2.0, 2.0])
    return QBD.from_blocks(up, local, down).truncate(30)


QUEUES = supermarket([1.0, 1.5, 2.0], 3.0, 2, 5, sampling="with_replacement")


# ---- levels -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "strict"),
    [
        (QUEUES, True),
        (QUEUES.coded(), True),
        (supermarket([1.0, 2.0], 2.0, 2, 6, total_capacity=8), True),
        (tandem_network([2.0, 1.5], 1.2, total_capacity=6), False),
        (truncated_qbd(), False),
        (birth_death([1.0] * 9, [2.0] * 9), True),
    ],
    ids=["lattice", "coded", "capped", "tandem", "qbd", "queue"],
)
def test_levels_and_the_rates_between_them(chain, strict):
    levels = find_levels(chain)
    assert levels.strict is strict
    states = chain.space.states(np.arange(chain.size))
    names = [variable.name for variable in chain.space.variables]
    expected = states[:, 0] if "level" in names else states.sum(axis=1)
    assert (levels.level == expected).all()
    assert levels.count == expected.max() + 1
    weights = np.random.default_rng(911).random((2, chain.size))
    kind, up, down = rates_between_levels(chain, levels.level, *weights)
    step = expected[None, :] - expected[:, None]
    assert kind == (0 if strict else 1)
    np.testing.assert_allclose(up, (dense(chain) * (step == 1)) @ weights[0], rtol=1e-14)
    np.testing.assert_allclose(down, (dense(chain) * (step == -1)) @ weights[1], rtol=1e-14)


def test_no_levels():
    chain = random_chain(917, 30)
    assert find_levels(chain) is None
    assert half_levels(reduction(chain)) is None
    assert half_levels(reduction(tandem_network([2.0, 1.5], 1.2, total_capacity=6))) is None
    assert levels_of(chain, np.arange(30, dtype=np.int32) % 2) is not None  # two parts are always neighbours
    assert levels_of(chain, np.arange(30, dtype=np.int32) % 4) is None


def test_three_parts_are_levels_only_without_a_jump():
    rates = np.zeros((3, 3))
    rates[0, 1] = rates[1, 2] = rates[2, 0] = 1.0
    assert levels_of(Generator.from_matrix(rates), np.arange(3, dtype=np.int32)) is None


@pytest.mark.parametrize("form", ["lattice", "coded"])
def test_levels_on_one_color_are_those_of_two_jumps(form):
    chain = QUEUES if form == "lattice" else QUEUES.coded()
    half = reduction(chain)
    found = half_levels(half)
    total = chain.space.states(np.arange(chain.size)).sum(axis=1)
    jumps = dense(chain) / chain.exit_rates[:, None]
    twice = jumps @ jumps
    pi = np.random.default_rng(919).random(chain.size)
    p = half.restrict(pi)
    flow = np.where(total % 2 == 0, pi, 0) * chain.exit_rates
    for low in range(0, total.max() - 1, 2):
        ups = flow @ (twice * ((total[:, None] == low) & (total[None, :] == low + 2))).sum(axis=1)
        downs = flow @ (twice * ((total[:, None] == low + 2) & (total[None, :] == low))).sum(axis=1)
        np.testing.assert_allclose(p[found.level == low // 2] @ found.up[found.level == low // 2], ups, rtol=1e-13)
        above = found.level == low // 2 + 1
        np.testing.assert_allclose(p[above] @ found.down[above], downs, rtol=1e-13)


def test_levels_of_a_queue_solve_it_at_once():
    """The birth-death chain between the levels is the queue itself: closed form, over 300 decades, 1e-13 each."""
    size = 300
    chain = birth_death([1.0] * (size - 1), [10.0] * (size - 1))
    pi = np.full(size, 1 / size)
    find_levels(chain).rescale(pi, np.ones(size))
    expected = 0.9 * 0.1 ** np.arange(size)
    np.testing.assert_allclose(pi, expected, rtol=1e-12)


def test_level_factors_neither_overflow_nor_underflow():
    """A peak in the midst, 10^500 times as high as the ends."""
    size = 2001
    births = np.where(np.arange(size - 1) < 1000, 10.0, 1.0)
    chain = birth_death(births.tolist(), (11.0 - births).tolist())
    pi = np.full(size, 1 / size)
    find_levels(chain).rescale(pi, np.ones(size))
    near = slice(800, 1201)
    expected = 0.1 ** np.abs(np.arange(size) - 1000.0)
    np.testing.assert_allclose(pi[near], (expected / expected.sum())[near], rtol=1e-11)
    assert pi.sum() == pytest.approx(1, rel=1e-14)


def test_a_balanced_distribution_is_left_alone():
    pi = gth(dense(QUEUES))
    scaled = pi.copy()
    find_levels(QUEUES).rescale(scaled, np.ones(len(pi)))
    np.testing.assert_allclose(scaled, pi, rtol=1e-12)
    half = reduction(QUEUES)
    p = half.restrict(pi)
    half_levels(half).rescale(p, half.exit_rates)
    np.testing.assert_allclose(half.expand(p), pi, rtol=1e-12)


# ---- the chain between the parts ------------------------------------------------------------------------------------------------


def test_rates_between_parts():
    chain = random_chain(929, 40)
    rng = np.random.default_rng(937)
    part_of = rng.integers(0, 5, 40).astype(np.int32)
    pi = rng.random(40)
    pi[part_of == 2] = 0
    shares, masses = shares_and_masses(pi, part_of, 5)
    member = np.equal.outer(part_of, np.arange(5)).astype(float)
    assert masses[2] == 0
    np.testing.assert_allclose(member.T @ shares, 1)
    expected = (member * shares[:, None]).T @ dense(chain) @ member
    np.fill_diagonal(expected, 0)
    for stored in (chain, chain.coded()):
        whole = between(stored, shares, part_of, 5)
        np.testing.assert_allclose(whole.dense(), expected, rtol=1e-13)
        np.testing.assert_allclose(whole.exit_rates, expected.sum(axis=1), rtol=1e-13)


def test_pairs_stay_inside_blocks():
    chain = blocks(941, size=5)  # an odd number: one state of each block is left over
    part_of, count = matched(chain, np.full(chain.size, 1 / chain.size))
    assert count <= chain.size // 2
    assert sorted(set(part_of)) == list(range(count))
    assert all(len(set(np.flatnonzero(part_of == part) // 5)) == 1 for part in range(count))


@pytest.mark.parametrize("depth", [1, 2, 40])
def test_multilevel_cycles_find_the_stationary_distribution(depth):
    chain = random_chain(947, 400, density=0.02)
    problem = Stationary(chain)
    cycles = Multilevel(chain, eliminated=25, depth=depth)
    pi = np.full(400, 1 / 400)
    for _ in range(60):
        sweep(chain, pi)
        sweep(chain, pi, reverse=True)
        cycles.rescale(pi)
    np.testing.assert_allclose(pi, gth(dense(problem.model)), rtol=1e-9)


@pytest.mark.parametrize("builder", ["supermarket", "tandem_network", "polling", "kanban"])
def test_the_estimate_is_near_the_error(builder):
    """Power iteration from the uniform distribution: errors of all modes at first, of the slowest ones in the end."""
    parameters = {
        "supermarket": {"service_rates": [3, 2, 1], "arrival_rate": 5.7, "choices": 2, "capacity": 9},
        "tandem_network": {"service_rates": [1.3, 1.25], "arrival_rate": 1.2, "capacity": 30},
        "polling": {"stations": 7},
        "kanban": {"tickets": 1},
    }
    chain = ctmc.build(builder, **parameters[builder])
    right = ctmc.solve(Stationary(chain), "bicgstab").value
    pi, rate, steps = np.full(chain.size, 1 / chain.size), 1.02 * chain.exit_rates.max(), 0
    for more in (5, 50, 400, 800):
        for _ in range(more):
            pi = pi + chain.forward(pi) / rate
        error = float(np.abs(pi - right).sum())
        if error > 1e-8:
            steps += 1
            assert 0.5 <= estimated_error(chain, pi) / error <= 2.1
            assert estimated_error(chain, pi) < estimated_error(chain, pi, 100 * error) < 20 * error  # by one cycle
    assert steps >= 2
    assert estimated_error(chain, right) < 1e-9


def test_the_estimate_sees_slow_states_beside_fast_ones():
    """A pair of states has all the flow, so that the defect says nothing about the others."""
    line = np.full(999, 1e-6)
    up, down = line.copy(), line.copy()
    up[0] = down[0] = 1e6
    chain = birth_death(births=up, deaths=down)
    wave = np.where(np.arange(1000) < 500, 0.9, 1.1) / 1000
    assert imbalance(chain.forward(wave), wave, chain) < 1e-12
    assert 0.05 < estimated_error(chain, wave) < 0.2  # it is 0.1


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_has_no_estimate(wrong):
    pi = np.full(1000, 1e-3)
    pi[3] = wrong
    assert math.isnan(estimated_error(birth_death(births=np.ones(999), deaths=np.ones(999)), pi))


def test_large_chains_are_not_estimated(monkeypatch):
    chain = random_chain(947, 400, density=0.02)
    assert estimated_error(chain, np.full(400, 1 / 400)) > 0
    with ctmc.limited_memory(1000):
        assert estimated_error(chain, np.full(400, 1 / 400)) is None
    for most, limit, model in (("MOST_STATES", 400, chain), ("MOST_ON_LATTICE", 216, QUEUES)):
        for more, there in ((0, True), (-1, False)):
            monkeypatch.setattr(multilevel, most, limit + more)
            assert (estimated_error(model, np.full(model.size, 1 / model.size)) is not None) == there


def test_loosely_coupled():
    assert loosely_coupled(blocks(953))
    assert not loosely_coupled(random_chain(967, 30))
    assert not loosely_coupled(QUEUES)
    assert loosely_coupled(supermarket([1.0, 1e-7], 0.5, 2, 4, sampling="with_replacement"))


# ---- the solver -------------------------------------------------------------------------------------------------------------------

PARTITIONS = ["auto", "matching", tuple(np.repeat(range(4), 6).tolist()), tuple((np.arange(24) // 2).tolist())]


@pytest.mark.parametrize("coupling", [1e-14, 1e-7])
@pytest.mark.parametrize("partition", PARTITIONS, ids=["auto", "matching", "blocks", "pairs"])
def test_nearly_decomposable_chains_come_out_right(coupling, partition):
    chain = blocks(971, coupling=coupling)
    solution = ctmc.solve(Stationary(chain), Aggregation(partition=partition))
    np.testing.assert_allclose(solution.value, gth(dense(chain)), rtol=1e-7)


def test_masses_are_right_to_the_last_digits():
    """With relaxation 1 nothing is subtracted: exchange at 1e-14 does not cost a digit."""
    chain = blocks(977)
    value = ctmc.solve(Stationary(chain), Aggregation(relaxation=1.0)).value
    for _ in range(3):
        value = ctmc.solve(Stationary(chain), Aggregation(relaxation=1.0), start=value).value
    np.testing.assert_allclose(value, gth(dense(chain)), rtol=1e-12)


@pytest.mark.parametrize(
    ("chain", "partition"),
    [
        (QUEUES, "auto"),
        (QUEUES.coded(), "auto"),
        (QUEUES, "total"),
        (QUEUES, "matching"),
        (QUEUES, "jobs"),
        (tandem_network([2.0, 1.5], 1.2, total_capacity=9), "auto"),
        (truncated_qbd(), "auto"),
        (truncated_qbd(), "phase"),
        (random_chain(983, 350, density=0.02), "auto"),
        (random_chain(983, 350, density=0.02), tuple((np.arange(350) // 10).tolist())),
    ],
)
def test_every_state_is_right(chain, partition):
    for sweeps in (1, 2):
        solution = ctmc.solve(Stationary(chain), Aggregation(partition=partition, sweeps=sweeps))
        np.testing.assert_allclose(solution.value, gth(dense(chain)), rtol=1e-6)


def test_aggregation_saves_sweeps():
    chain = birth_death([0.98] * 200, [1.0] * 200)
    assert ctmc.solve(Stationary(chain), Aggregation()).iterations <= 3
    plain = ctmc.solve(Stationary(chain), Aggregation(partition=(0,) * 201, max_iterations=300), check=False)
    assert plain.status is Status.ITERATION_LIMIT


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("partition", value) for value in (3, None, [0.5, 1.0], [[0, 1]], [])],
        *[(name, value) for name in ("sweeps", "levels", "max_iterations") for value in (0, -1, 1.5, True, None)],
        *[("polish", value) for value in (-1, 0.5, None)],
        *[("relaxation", value) for value in (0, 2, math.nan, "1", None)],
    ],
)
def test_bad_options(option, value):
    with pytest.raises(ModelError, match=option):
        Aggregation(**{option: value})


def test_arrays_become_tuples():
    assert Aggregation(partition=np.array([2, 0, 2])) == Aggregation(partition=(2, 0, 2))
    assert eval(repr(Aggregation(partition=[1, 0]))) == Aggregation(partition=(1, 0))
    chain = birth_death([1.0, 1.0], [1.0, 1.0])
    assert given_parts(chain, (7, 3, 7)).tolist() == [1, 0, 1]


def test_bad_partitions():
    with pytest.raises(ModelError, match="partition has 2 numbers; allowed is one for each of the 216 states"):
        ctmc.solve(Stationary(QUEUES), Aggregation(partition=(0, 1)))
    with pytest.raises(UnknownNameError, match="partition 'job'"):
        ctmc.solve(Stationary(QUEUES), Aggregation(partition="job"))
    with pytest.raises(ModelError, match="partition is 'queue_length', a vector"):
        ctmc.solve(Stationary(QUEUES), Aggregation(partition="queue_length"))


def test_levels_of_a_lumped_model_are_those_of_its_own_states():
    """Its states are not all of the box of its limits, which would have 5^20 of them here."""
    model = ctmc.build("supermarket", service_rates=[1] * 20, arrival_rate=10, choices=2, capacity=4, lump=True)
    levels = find_levels(model)
    assert levels.level.shape == (model.size,)
    assert levels.level[model.space.index(np.array([[2, 1] + [0] * 18]))[0]] == 3
