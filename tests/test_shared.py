"""Models that ranks share: every rank's part of a product, a search and a certificate is that of one process."""

from __future__ import annotations

import numpy as np
import pytest

import ctmc
from ctmc import certificate
from ctmc.errors import ModelError, ReducibleError, UnsupportedProblemError
from ctmc.model import exchange
from ctmc.model.communication import reachable_within
from ctmc.model.generator import Generator
from ctmc.model.impulses import reward_rates
from ctmc.model.products import add_squared_differences
from ctmc.model.shared import share
from ctmc.model.shared_exchange import between_parts, gathered
from ctmc.model.state_space import Lattice
from ctmc.model.streamed import streaming
from ctmc.ranks import ALONE
from tests.chain_gallery import random_chain
from tests.reference_models import ROWS
from tests.thread_ranks import on_ranks

RANKS = [1, 2, 3, 5]


def irreducible(seed, states=60, spread=3.0):
    """A random chain that is irreducible: a ring, and transitions besides."""
    rng = np.random.default_rng(seed)
    ring = np.arange(states)
    sources, targets = (
        np.append(ring, rng.integers(0, states, 4 * states)),
        np.append(np.roll(ring, -1), rng.integers(0, states, 4 * states)),
    )
    rates = 10.0 ** rng.uniform(-spread, spread, len(sources))
    return Generator.from_transitions(sources, targets, rates, Lattice((states - 1,)))


def supermarket(**changes):
    given = {"service_rates": [2.0, 1.0, 0.5], "arrival_rate": 2.8, "choices": 2, "capacity": 6, **changes}
    return ctmc.build("supermarket", **given)


def chosen(part, vector):
    return vector[..., part.begin : part.begin + part.size]


def joined(parts):
    return np.concatenate(parts, axis=-1)


@pytest.mark.parametrize("count", [*RANKS, 70])
def test_products_are_those_of_one_process(count):
    chain = irreducible(3)
    rng = np.random.default_rng(11)
    x, previous, first, second = rng.random((4, chain.size))
    mix = np.array([0.5, -1.5, 2.0, 0.25])
    settings = {"factor": 0.3, "keep": 0.9, "weight": -0.4}
    wanted = []
    for backward in (False, True):
        sums = first.copy(), second.copy()
        wanted += [chain.recurrence(x, previous=previous, backward=backward, sums=(mix, *sums), **settings), *sums]

    def work(ranks):
        part = share(chain, ranks)
        found = []
        for backward in (False, True):
            sums = chosen(part, first).copy(), chosen(part, second).copy()
            out = part.recurrence(
                chosen(part, x), previous=chosen(part, previous), backward=backward, sums=(mix, *sums), **settings
            )
            found += [out, *sums]
        return [
            *found,
            part.exit_rates,
            part.added_up(add_squared_differences, chosen(part, x)),
            part.most_transitions_out(),
        ]

    found = [joined(parts) for parts in zip(*on_ranks(count, work), strict=True)]
    np.testing.assert_array_equal(found[0], wanted[0])  # gathered in the same order: the same bits
    for one, other in zip(found, wanted, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12 * np.abs(other).max())
    np.testing.assert_allclose(found[6], chain.exit_rates, rtol=1e-14)
    np.testing.assert_allclose(found[7], chain.added_up(add_squared_differences, x), rtol=1e-12)
    np.testing.assert_array_equal(found[8], chain.most_transitions_out())


def test_transitions_are_shared_out_evenly():
    chain = supermarket(capacity=12)

    def work(ranks):
        part = share(chain, ranks)
        return part.begins.tolist(), part.entries, part.states

    found = on_ranks(4, work)
    assert len({tuple(begins) for begins, *_ in found}) == 1
    assert [states for *_, states in found] == [chain.size] * 4
    entries = [own for _, own, _ in found]
    assert sum(entries) == chain.entries
    assert max(entries) - min(entries) < 20


@pytest.mark.parametrize("model", [pytest.param("box", marks=pytest.mark.slow), "capped", "lumped", "tandem"])
def test_rows_that_are_made_are_those_that_are_cut(model):
    build = {
        "box": lambda: supermarket(capacity=200, service_rates=[1.0, 2.0, 3.0], total_capacity=None),
        "capped": lambda: supermarket(capacity=30, total_capacity=41),
        "lumped": lambda: supermarket(service_rates=[1.0] * 4, capacity=20, lump=True),
        "tandem": lambda: ctmc.build("tandem_network", service_rates=[3, 2, 1], arrival_rate=0.8, total_capacity=40),
    }[model]
    whole = build()
    with streaming():
        streamed = build()

    def rows(chain):
        def work(ranks):
            part = share(chain, ranks)
            return part.begins, part.transitions.indptr, part.transitions.sources, part.ghosts.wanted, part.exit_rates

        return on_ranks(3, work)

    for one, other in zip(rows(whole), rows(streamed), strict=True):
        for left, right in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(left, right)
        np.testing.assert_allclose(one[4], other[4], rtol=1e-14)


@pytest.mark.parametrize("count", RANKS)
@pytest.mark.parametrize("backward", [False, True])
def test_searches_find_what_one_process_finds(count, backward):
    rng = np.random.default_rng(5)
    for seed in (13, 14, 15):
        sources, targets = rng.integers(0, 50, (2, 70))
        chain = Generator.from_transitions(sources, targets, np.ones(70), Lattice((49,)))
        begin, within = rng.random(50) < 0.1, rng.random(50) < 0.8
        wanted = reachable_within(chain, begin, within, backward=backward)

        def work(ranks, chain=chain, begin=begin, within=within):
            part = share(chain, ranks)
            return reachable_within(part, chosen(part, begin), chosen(part, within), backward=backward)

        np.testing.assert_array_equal(joined(on_ranks(count, work)), wanted, err_msg=str(seed))


@pytest.mark.parametrize("count", RANKS)
def test_recurrent_states(count):
    inner = irreducible(21, 30)
    # a path of transient states leads in, from the far end of the numbers
    sources, targets = (
        np.append(inner.sources, np.arange(39, 29, -1)),
        np.append(np.repeat(np.arange(30), np.diff(inner.indptr)), np.arange(38, 28, -1)),
    )
    rates = np.append(inner.rates, np.ones(10))
    chain = Generator.from_transitions(sources, targets, rates, Lattice((39,)))
    found = joined(on_ranks(count, lambda ranks: share(chain, ranks).recurrent))
    np.testing.assert_array_equal(found, np.arange(40) < 30)

    split = Generator.from_transitions([1, 1, 2, 0], [0, 2, 3, 0], [1.0, 1, 1, 0], Lattice((3,)))
    with pytest.raises(ReducibleError, match="several recurrent classes"):
        on_ranks(count, lambda ranks: share(split, ranks).recurrent)


def blocks(seed, coupling):
    """Three irreducible blocks of 250 states that hardly exchange anything."""
    parts = [irreducible(seed + k, 250, 0.5) for k in range(3)]
    sources = np.concatenate([part.sources + 250 * k for k, part in enumerate(parts)])
    targets = np.concatenate(
        [np.repeat(np.arange(250), np.diff(part.indptr)) + 250 * k for k, part in enumerate(parts)]
    )
    rates = np.concatenate([part.rates for part in parts])
    sources, targets = np.append(sources, [10, 300, 700]), np.append(targets, [260, 600, 5])
    return Generator.from_transitions(
        sources, targets, np.append(rates, np.array([1.0, 2.0, 0.5]) * coupling), Lattice((749,))
    )


@pytest.mark.parametrize("count", RANKS)
def test_parts_that_hardly_exchange_anything(count):
    chain = blocks(31, 1e-9)
    pi = ctmc.solve(ctmc.Stationary(chain), "gth").value
    whole, masses = exchange.between_parts(chain, pi, exchange.parts(chain, pi, 1e-6))
    assert len(masses) == 3

    def work(ranks):
        part = share(chain, ranks)
        between, found = between_parts(part, chosen(part, pi), 1e-6)
        return between.to_scipy().toarray(), found

    for rates, found in on_ranks(count, work):
        order, wanted = np.argsort(found), np.argsort(masses)
        np.testing.assert_allclose(found[order], masses[wanted], rtol=1e-12)
        np.testing.assert_allclose(rates[order][:, order], whole.to_scipy().toarray()[wanted][:, wanted], rtol=1e-10)


@pytest.mark.parametrize("count", RANKS)
def test_no_false_certificate(count):
    chain = blocks(41, 1e-13)
    pi = np.asarray(ctmc.solve(ctmc.Stationary(chain), "gth").value)
    shifted = pi.copy()
    shifted[:250] *= 1.1  # the defect stays below the tolerance, as the blocks exchange next to nothing
    shifted /= shifted.sum()
    wrong = {
        "right": pi,
        "masses": shifted,
        "mass": pi * 1.001,
        "not a number": pi.copy(),
        "negative": pi.copy(),
        "uniform": np.full(750, 1 / 750),
    }
    wrong["not a number"][700] = np.nan
    wrong["negative"][740] -= 2 * pi[740]
    serial = {name: certificate.stationary(ctmc.Stationary(chain), value).status for name, value in wrong.items()}
    assert serial["right"].name == "CONVERGED"
    assert sum(status.name == "CONVERGED" for status in serial.values()) == 1

    def work(ranks):
        part = share(chain, ranks)
        problem = ctmc.Stationary(part)
        return {
            name: certificate.stationary(problem, chosen(part, value).copy()).status for name, value in wrong.items()
        }

    for found in on_ranks(count, work):
        assert found == serial


def test_small_chains_are_compared_with_elimination():
    chain = irreducible(51, 12)
    pi = np.asarray(ctmc.solve(ctmc.Stationary(chain), "gth").value)

    def work(ranks):
        part = share(chain, ranks)
        whole = gathered(part)
        return whole.to_scipy().toarray(), certificate.stationary(ctmc.Stationary(part), chosen(part, pi).copy()).reason

    for matrix, reason in on_ranks(3, work):
        np.testing.assert_allclose(matrix, chain.to_scipy().toarray(), rtol=1e-14)
        assert "within" in reason


def solved(part, value):
    """A solution whose numbers are given."""
    return ctmc.Solution(
        ctmc.Stationary(part),
        value,
        ctmc.Status.CONVERGED,
        "given.",
        0.0,
        np.empty(0, ctmc.solution.HISTORY),
        0.0,
        0,
        "nobody",
    )


@pytest.mark.parametrize("count", [2, 4, 9])
def test_numbers_of_a_solution(count):
    chain = supermarket()
    pi = np.asarray(ctmc.solve(ctmc.Stationary(chain), "gth").value)
    one = solved(chain, pi)

    def numbers(solution):
        return (
            *solution.expectations(["jobs", "queue_length", "losses"]).values(),
            solution.probability("jobs >= 5 and queue_length[0] < 3"),
            solution.marginal("jobs"),
            solution.marginal("queue_length", 2),
        )

    def work(ranks):
        part = share(chain, ranks)
        return numbers(solved(part, chosen(part, pi)))

    for found in on_ranks(count, work):
        for value, wanted in zip(found, numbers(one), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-13, atol=1e-16)


def test_colors():
    def work(chain):
        return lambda ranks: share(chain, ranks).coloring

    chain = supermarket()
    np.testing.assert_array_equal(joined(on_ranks(3, work(chain))), chain.coloring)
    assert on_ranks(3, work(irreducible(61))) == [None] * 3


def test_what_needs_one_process_says_so():
    chain = supermarket()

    def asked(question):
        def work(ranks):
            with pytest.raises((ModelError, UnsupportedProblemError)) as caught:
                question(share(chain, ranks))
            return str(caught.value)

        (first, second) = on_ranks(2, work)
        assert first == second
        return first

    assert "needs the whole model in one process" in asked(lambda part: ctmc.solve(ctmc.Stationary(part), "gth"))
    assert "allowed is one process" in asked(lambda part: part.to_scipy())
    assert "allowed is one process" in asked(lambda part: part.indptr)
    assert "'strict'" in asked(lambda part: ctmc.solve(ctmc.Stationary(part), "petsc_krylov", certify="strict"))


def test_one_rank_alone_is_the_whole():
    chain = irreducible(71)
    part = share(chain, ALONE)
    assert (part.size, part.begin, part.ghosts.count, part.ghosts.partners) == (chain.size, 0, 0, 0)
    x = np.random.default_rng(73).random(chain.size)
    np.testing.assert_array_equal(part.forward(x), chain.forward(x))


def test_traffic_is_counted():
    chain = supermarket(capacity=9)
    x = np.random.default_rng(81).random(chain.size)

    def work(ranks):
        part = share(chain, ranks)
        before = part.ghosts.traffic.bytes, part.ghosts.traffic.messages
        for _ in range(3):
            part.forward(chosen(part, x))
        after = part.ghosts.traffic.bytes, part.ghosts.traffic.messages
        return after[0] - before[0], after[1] - before[1], part.ghosts.count

    found = on_ranks(4, work)
    # all that is sent is received, eight bytes an element
    assert sum(sent for sent, _, _ in found) == 3 * 8 * sum(count for *_, count in found) > 0
    assert [messages for _, messages, _ in found] == [3, 6, 6, 3]


def test_each_rank_reads_its_own_part(tmp_path):
    from ctmc.storage.shares import open_share

    chain = random_chain(91)
    ctmc.save(tmp_path / "chain.h5", chain)

    def work(ranks):
        part = open_share(tmp_path / "chain.h5", ranks)
        x = np.arange(chain.size, dtype=np.float64)
        rewards = [reward_rates(part, part.rewards[name]) for name in chain.rewards]
        return [part.forward(chosen(part, x)), part.exit_rates, *rewards, *part.labels.values()]

    found = [joined(parts) for parts in zip(*on_ranks(3, work), strict=True)]
    x = np.arange(chain.size, dtype=np.float64)
    wanted = [
        chain.forward(x),
        chain.exit_rates,
        *(reward_rates(chain, reward) for reward in chain.rewards.values()),
        *chain.labels.values(),
    ]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-13 * np.abs(other).max())


@pytest.mark.parametrize("count", [1, 3])
def test_a_damaged_file_is_refused_by_who_reads_it(tmp_path, count):
    from ctmc.errors import StorageError
    from ctmc.storage.shares import open_share

    path = tmp_path / "queue.h5"
    ctmc.save(path, supermarket(capacity=30))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"queue\.h5"):
        on_ranks(count, lambda ranks: open_share(path, ranks))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_measures_of_every_builder(row):
    chain = row.model
    if not isinstance(chain, Generator):
        chain = chain.truncate(levels=30)
    pi = np.asarray(ctmc.solve(ctmc.Stationary(chain), check=False).value)
    wanted = solved(chain, pi).measures()

    def work(ranks):
        part = share(chain, ranks)
        return solved(part, chosen(part, pi)).measures()

    for found in on_ranks(3, work):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-13, err_msg=name)


def test_measures_that_read_single_states_are_refused():
    chain = supermarket().replace(measures=lambda solution: {"first": float(solution.value[0])})
    pi = np.asarray(ctmc.solve(ctmc.Stationary(chain), "gth").value)

    def work(ranks):
        part = share(chain, ranks)
        with pytest.raises(ModelError, match=r"measure .first. is .*: it reads single states"):
            solved(part, chosen(part, pi)).measures()

    on_ranks(2, work)
