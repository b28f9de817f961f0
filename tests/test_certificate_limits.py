"""Where the verdicts of certificates change: what stands exactly at a limit is accepted, what is beyond it is not."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from thread_ranks import on_ranks

import ctmc
from builders.fork_join import fork_join
from ctmc import certificate
from ctmc.certificate import agreed, certify, negative, slow_exchange, slow_states, wrong_distribution, wrong_vector
from ctmc.model.distribution import Distribution
from ctmc.model.generator import Generator
from ctmc.model.level_dependent import LevelDependentQBD, LevelDistribution
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.model.shared import share
from ctmc.model.state_space import Lattice
from ctmc.problem import Stationary
from ctmc.ranks import ALONE
from ctmc.solution import Outcome, Status


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Large chains are looked at part by part only, like those too large for elimination and for a cycle."""
    monkeypatch.setattr(certificate, "banded_stationary", lambda chain: None)
    monkeypatch.setattr(certificate, "estimated_error", lambda *given: None)
    monkeypatch.setattr(certificate, "may_be_eliminated", lambda chain: False)


TOLERANCE = 2.0**-20
ROOT = 2.0**-10
"""Its square root, exactly."""
JUST = 1 + 2**-40


def queue(states, up=1.0, down=2.0):
    """A queue with one server, and its distribution, exact to rounding."""
    low = np.arange(states - 1)
    rates = np.repeat([up, down], states - 1)
    chain = Generator.from_transitions(np.append(low, low + 1), np.append(low + 1, low), rates, Lattice((states - 1,)))
    weights = (up / down) ** np.arange(states)
    return chain, weights / weights.sum()


# ---- vectors --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_a_mass_may_be_off_by_so_much_and_no_more(sign):
    assert certificate.MASS_TOLERANCE == certificate.ROW_SUM_TOLERANCE == 1e-12
    off = sign * ROOT
    assert wrong_distribution(np.array([0.5, 0.5 + off]), 0.25, accepted=ROOT) is None
    proof = wrong_distribution(np.array([0.5, 0.5 + off * JUST]), 0.25, accepted=ROOT)
    assert (proof.defect, proof.status, proof.error_bound) == (0.25, Status.INACCURATE, None)
    assert f"off 1 by {off:.3g}" in proof.reason
    assert wrong_distribution(np.array([0.5, 0.5 + sign * 0.6e-12]), 0.0) is None
    assert wrong_distribution(np.array([0.5, 0.5 + sign * 1.5e-12]), 0.0) is not None


def test_the_least_entry_is_named():
    assert negative(np.array([0.5, 0.0, -0.0]), 0.25) is None
    assert negative(np.empty(0), 0.25) is None
    proof = negative(np.array([0.5, -0.125, 1.0, -0.25, 0.0]), 0.25)
    assert (proof.defect, proof.status) == (0.25, Status.INACCURATE)
    assert proof.reason == "entry 3 is -0.25; allowed are numbers >= 0."
    assert negative(np.array([-1e-300]), 0.25).reason.startswith("entry 0 is -1e-300")


def test_a_defect_at_the_tolerance_is_within_it():
    assert certificate.verdict(TOLERANCE, TOLERANCE) is None
    proof = certificate.verdict(TOLERANCE, TOLERANCE * JUST)
    assert (proof.defect, proof.status) == (TOLERANCE * JUST, Status.INACCURATE)


def test_what_is_no_vector_has_no_defect():
    for value, shape in (
        (np.zeros(3), (4,)),
        (np.zeros(3, dtype=np.float32), (3,)),
        ("abc", (3,)),
        (np.zeros((3, 1)), (3,)),
    ):
        proof = wrong_vector(value, shape)
        assert math.isnan(proof.defect)
        assert proof.status is Status.BREAKDOWN
    proof = wrong_vector(np.array([np.nan, 0.0, np.inf]), (3,))
    assert math.isnan(proof.defect)
    assert (proof.status, proof.reason) == (Status.NOT_FINITE, "2 entries are not finite.")
    assert wrong_vector(np.zeros((2, 3)), (2, 3)) is None


@pytest.mark.parametrize("count", [2, 3])
def test_the_first_rank_that_finds_something_speaks(count):
    def work(ranks):
        first = agreed(ranks, None if ranks.rank == 0 else certificate.verdict(0.0, float(ranks.rank)))
        second = negative(np.array([0.5, -float(ranks.rank == count - 1)]), 0.25, ranks)
        third = negative(np.empty(0), 0.25, ranks)
        fourth = wrong_distribution(np.full(2, 0.25) + 0.125 * (count == 2), 0.25, ranks=ranks)
        return first.defect, second.reason, third, fourth.reason

    found = on_ranks(count, work)
    words = f"entry 1 of rank {count - 1} is -1; allowed are numbers >= 0."
    assert found == [(1.0, words, None, found[0][3])] * count
    assert "off 1 by 0.5" in found[0][3]
    assert agreed(ALONE, None) is None


# ---- slow states and slow exchange ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mass", "off", "accepted"),
    [(ROOT, 1.0, True), (ROOT * JUST, 1.0, False), (0.25, 0.25 * ROOT, True), (0.25, 0.25 * ROOT * JUST, False)],
)
def test_slow_states_with_noticeable_mass_must_balance(mass, off, accepted):
    """State 0 has an exit rate of 1, the others of 1024."""
    chain = Generator.from_matrix(np.array([[0, 1.0, 0], [0, 0, 1024.0], [1.0, 1023.0, 0]]))
    proof = slow_states(chain, np.array([mass, 1 - mass, 0]), np.array([off, 0, 0]), TOLERANCE, 0.125)
    assert (proof is None) == accepted
    if proof:
        assert (proof.defect, proof.status) == (0.125, Status.INACCURATE)
        assert "exit rates of about 1e0" in proof.reason
        assert f"off by {off / mass:.2g} of their own flow" in proof.reason


def test_up_to_500_states_are_compared_with_elimination(monkeypatch):
    compared = []
    monkeypatch.setattr(certificate, "gth", lambda rates: compared.append(len(rates)) or queue(len(rates))[1])
    for states in (2, 500, 501):
        chain, pi = queue(states)
        assert slow_exchange(chain, pi, chain.forward(pi), 1e-12, 0.125) is None
    assert compared == [2, 500]


@pytest.mark.parametrize("states", [2, 500])
def test_masses_may_be_off_by_the_root_of_the_tolerance(states, monkeypatch):
    chain, _ = queue(states)
    exact = np.full(states, 2.0**-9)
    monkeypatch.setattr(certificate, "gth", lambda rates: exact)
    change = np.zeros(states)
    change[:2] = ROOT / 2, -ROOT / 2
    assert slow_exchange(chain, exact + change, change, TOLERANCE, 0.125) is None
    proof = slow_exchange(chain, exact + change * JUST, change, TOLERANCE, 0.125)
    assert (proof.defect, proof.status) == (0.125, Status.INACCURATE)
    assert proof.reason.startswith(
        f"the masses of {states} parts of the chain do not balance (off by {ROOT:.2g}) although"
    )


def two_rings(states=300, out=2.0**-30):
    """Two rings with all masses equal, joined by one transition each way at a rate far below the tolerance."""
    ring = np.arange(states)
    sources = np.concatenate([ring, ring + states, [0, states]])
    targets = np.concatenate([np.roll(ring, -1), np.roll(ring, -1) + states, [states, 0]])
    chain = Generator.from_transitions(
        sources, targets, np.append(np.ones(2 * states), [out, out]), Lattice((2 * states - 1,))
    )
    return chain, np.full(2 * states, 0.5 / states)


@pytest.mark.parametrize("on", [1, 2])
def test_what_is_unbalanced_within_parts_counts_against_what_they_exchange(on):
    """Two parts of 300 states; an imbalance as large as the exchange is off by one."""
    chain, pi = two_rings()
    exchanged = 2.0**-30 * pi[0]
    for off, accepted in (
        (0.0, True),
        (exchanged * ROOT / 4, True),
        (exchanged * 4 * ROOT, False),
        (exchanged / 2, False),
    ):
        flow = np.zeros(chain.size)
        flow[[1, 299]] = off, -off  # the ring runs through them at pi[1], far more than is exchanged

        def work(ranks, flow=flow):
            part = share(chain, ranks)
            here = slice(part.begin, part.begin + part.size)
            return slow_exchange(part, pi[here].copy(), flow[here].copy(), TOLERANCE, 0.125)

        scaled = flow * pi[1] / exchanged  # relative to the flow through the states it is that much more
        flow[:] = scaled
        alone = slow_exchange(chain, pi, flow, TOLERANCE, 0.125)
        found = [alone] if on == 1 else on_ranks(on, work)
        for proof in found:
            assert (proof is None) == accepted, off
            if proof:
                assert (proof.defect, proof.status) == (0.125, Status.INACCURATE)
                assert (
                    f"the masses of 2 parts of the chain do not balance (off by {2 * off / exchanged:.2g})"
                    in proof.reason
                )


@pytest.mark.parametrize("light", [ROOT * 0.999, ROOT, ROOT * 1.001])
def test_parts_lighter_than_the_root_of_the_tolerance_do_not_matter(light):
    """Of two parts one has next to no mass: its mass is off by a factor of three."""
    chain, _ = two_rings(256)
    weights = np.repeat([1 - light, light], 256) / 256
    proof = slow_exchange(chain, weights, chain.forward(weights), TOLERANCE, 0.125)
    assert (proof is None) == (light <= ROOT)
    other = slow_exchange(chain, weights[::-1].copy(), chain.forward(weights[::-1]), TOLERANCE, 0.125)
    assert (other is None) == (light <= ROOT)


@pytest.mark.parametrize(
    ("error", "accepted"), [(ROOT / 2, True), (ROOT / 2 * JUST, False), (math.nan, False), (None, True)]
)
def test_an_error_is_estimated_where_elimination_is_not_cheap(error, accepted, monkeypatch):
    chain, pi = queue(501)
    seen = []
    monkeypatch.setattr(certificate, "estimated_error", lambda *given: seen.append(given) or error)
    proof = slow_exchange(chain, pi, chain.forward(pi), TOLERANCE, 0.125)
    assert seen == [(chain, pi, ROOT / 2)]
    assert (proof is None) == accepted
    if proof:
        assert (proof.defect, proof.status) == (0.125, Status.INACCURATE)
        assert f"off by about {error:.2g} although the defect is 0.12" in proof.reason
    small = queue(500)
    assert slow_exchange(*small, small[0].forward(small[1]), TOLERANCE, 0.125) is None
    assert len(seen) == 1


# ---- who is looked at ---------------------------------------------------------------------------------------------------------------------


def test_an_irreducible_chain_is_looked_at_as_it_is(monkeypatch):
    """Nothing is cut out of it, which would be a copy."""
    monkeypatch.setattr(Generator, "restricted", None)
    for states in (2, 3, 600):
        chain, pi = queue(states)
        proof = certify(Stationary(chain), Outcome(pi))
        assert proof.status is Status.CONVERGED
        assert proof.defect < 1e-14
        assert proof.defect == certificate.imbalance(chain.forward(pi), pi, chain)


def leading_in(states, rate=1.0):
    """A queue, a state that leads into it at this rate, and its distribution."""
    _, pi = queue(states)
    low = np.arange(states - 1)
    whole = Generator.from_transitions(
        np.concatenate([low, low + 1, [states]]),
        np.concatenate([low + 1, low, [0]]),
        np.append(np.repeat([1.0, 2.0], states - 1), rate),
        Lattice((states,)),
    )
    return whole, np.append(pi, 0.0)


def test_a_large_chain_with_one_recurrent_class_is_cut_only_where_parts_hardly_exchange_anything(monkeypatch):
    cut = []
    before = Generator.restricted
    monkeypatch.setattr(
        Generator, "restricted", lambda chain, members: cut.append(len(members)) or before(chain, members)
    )
    looked = []
    hidden = certificate._hidden
    monkeypatch.setattr(certificate, "_hidden", lambda *given: looked.append(given[0].size) or hidden(*given))
    for states, wanted in ((2, [2]), (499, [499]), (500, []), (700, [])):
        cut.clear(), looked.clear()
        chain, pi = leading_in(states)
        proof = certify(Stationary(chain), Outcome(pi))
        assert proof.status is Status.CONVERGED
        assert proof.defect == certificate.imbalance(chain.forward(pi), pi, chain) < 1e-14
        assert cut == looked == wanted
    # two parts: a class of 600 states, and a state that leads into it
    rings, pi = two_rings()
    rates = rings.to_scipy().tocoo()
    off = rates.row != rates.col
    chain = Generator.from_transitions(
        np.append(rates.row[off], 600), np.append(rates.col[off], 0), np.append(rates.data[off], 1.0), Lattice((600,))
    )
    cut.clear()
    assert certify(Stationary(chain, 1e-10), Outcome(np.append(pi, 0.0))).status is Status.CONVERGED
    assert cut == [600]
    wrong = np.append(pi * np.repeat([1.5, 0.5], 300), 0.0)
    proof = certify(Stationary(chain, 1e-10), Outcome(wrong))
    assert proof.defect < 1e-10
    assert (proof.status, "parts of the chain do not balance" in proof.reason) == (Status.INACCURATE, True)


def test_slow_states_of_a_large_chain_with_a_transient_state_must_balance():
    """As in an irreducible chain: states that leave at 1e-6 beside a pair that turns at 1e7."""
    size = 603
    low = np.arange(size - 1)
    sources, targets = np.concatenate([low, low + 1, [size]]), np.concatenate([low + 1, low, [0]])
    rates = np.append(np.repeat([1e-6, 3e-6], size - 1), 1.0)
    rates[[0, size - 1]] = 1e7
    chain = Generator.from_transitions(sources, targets, rates, Lattice((size,)))
    proof = certify(Stationary(chain), Outcome(np.append(np.full(size, 1 / size), 0.0)))
    assert proof.defect < 1e-12
    assert (proof.status, "exit rates of about 1e-6" in proof.reason) == (Status.INACCURATE, True)


@pytest.mark.parametrize("tolerance", [1e-15, TOLERANCE])
def test_transient_states_and_weights_to_the_tolerance_and_rounding(tolerance):
    """State 0 leads into two pairs of states with equal probability."""
    rates = np.zeros((5, 5))
    rates[0, [1, 3]] = 2.0**-60  # so slow that nothing else shows it
    rates[1, 2] = rates[2, 1] = rates[3, 4] = rates[4, 3] = 1.0
    accepted = max(tolerance, certificate.MASS_TOLERANCE)
    problem = Stationary(Generator.from_matrix(rates), tolerance, Distribution(np.array([0]), np.array([1.0])))
    for share_of_it, fine in ((0.0, True), (0.9, True), (1.0, True), (1.5, False)):
        part = share_of_it * accepted
        proof = certify(problem, Outcome(np.array([part, *np.full(4, (1 - part) / 4)])))
        assert (proof.status is Status.CONVERGED) == fine, part
        assert ("transient states have the probability" in proof.reason) == (not fine)
        if share_of_it == 1.0:
            continue  # only the sum above is exact
        moved = np.array([0.0, *np.full(2, 0.25 + part / 4), *np.full(2, 0.25 - part / 4)])
        proof = certify(problem, Outcome(moved))
        assert (proof.status is Status.CONVERGED) == fine, part
        assert (f"weights of the recurrent classes are off by up to {part:.2g}" in proof.reason) == (not fine)
        assert certify(Stationary(problem.model, tolerance), Outcome(moved)).status is Status.CONVERGED


def test_shared_chains_have_the_same_verdicts():
    """What one rank finds is found by all: vectors, masses, defects and transient states."""
    chain, pi = leading_in(700, rate=2.0**-60)  # so slow that nothing else shows what is left there
    for vector, status, words in (
        (pi, Status.CONVERGED, "is within 1e-06"),
        (np.where(np.arange(701) == 700, np.nan, pi), Status.NOT_FINITE, "1 entries"),
        (pi * 1.1, Status.INACCURATE, "off 1 by 0.1"),
        (np.roll(pi, 1), Status.INACCURATE, "recomputed defect"),
        (np.append(pi[:-1] * (1 - 0.9e-6), 0.9e-6), Status.CONVERGED, "is within 1e-06"),
        (np.append(pi[:-1] * (1 - 1e-6), 1e-6), Status.CONVERGED, "is within 1e-06"),
        (np.append(pi[:-1] * (1 - 1.5e-6), 1.5e-6), Status.INACCURATE, "transient states have the probability 1.5e-06"),
    ):

        def work(ranks, vector=vector):
            part = share(chain, ranks)
            mine = vector[part.begin : part.begin + part.size].copy()
            return certify(Stationary(part, 1e-6), Outcome(mine))

        alone = certify(Stationary(chain, 1e-6), Outcome(vector))
        for proof in (alone, *on_ranks(3, work)):
            assert (proof.status, words in proof.reason) == (status, True), words
            assert proof.defect == pytest.approx(alone.defect, rel=1e-9, abs=1e-15, nan_ok=True)


@pytest.mark.parametrize("states", [500, 501])
def test_shared_chains_of_up_to_500_states_are_gathered(states, monkeypatch):
    gathered, before = [], certificate.shared_exchange.gathered
    monkeypatch.setattr(certificate.shared_exchange, "gathered", lambda part: gathered.append(1) or before(part))
    chain, pi = queue(states)

    def work(ranks):
        part = share(chain, ranks)
        return certify(Stationary(part), Outcome(pi[part.begin : part.begin + part.size].copy()))

    for proof in on_ranks(2, work):
        assert proof.status is Status.CONVERGED
        assert proof.defect < 1e-14
    assert len(gathered) == (2 if states == 500 else 0)


# ---- answers level by level -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [421, 431])
def test_the_defect_over_infinitely_many_levels_is_that_of_very_many(seed):
    """An answer with errors everywhere: every level above the boundary by itself, until nothing is left."""
    model = fork_join([5, 2, 1], 1, 3, [1, 2, 8])
    right = ctmc.solve(Stationary(model)).value
    rng = np.random.default_rng(seed)
    boundary = tuple(level * rng.uniform(0.9, 1.1, level.shape) for level in right.boundary)
    answer = MatrixGeometric(boundary=boundary, r=right.r * rng.uniform(0.9, 1.05, right.r.shape), g=None)
    last = len(boundary) - 1
    up, local, down = (block.toarray() for block in (model.up, model.local, model.down))
    levels = [*boundary, boundary[-1] @ answer.r]
    imbalances = flow = 0.0
    for k, level in enumerate(model.boundary):
        over = model.boundary[k + 1].down if k < last else model.down
        balance = levels[k] @ level.local + levels[k + 1] @ over
        if k > 0:
            balance = balance + levels[k - 1] @ model.boundary[k - 1].up
        imbalances += np.abs(balance).sum()
        flow += levels[k] @ -level.local.diagonal()
    residual = np.abs(up + answer.r @ local + answer.r @ answer.r @ down).sum(axis=1)
    vector = boundary[-1]
    for _ in range(3000):
        imbalances += vector @ residual
        vector = vector @ answer.r
        flow += vector @ -local.diagonal()
    assert vector.sum() < 1e-15
    proof = certify(Stationary(model), Outcome(answer))
    assert proof.status is Status.INACCURATE
    assert proof.defect == pytest.approx(imbalances / flow, rel=1e-11)
    assert proof.defect > 0.01


@pytest.mark.parametrize(("off", "accepted"), [(0.6e-12, True), (1.5e-12, False)])
def test_masses_and_row_sums_of_matrix_geometric_answers(off, accepted):
    model = QBD.from_blocks(np.diag([0.2, 1.5]), [[-2.3, 0.1], [0.2, -4.7]], np.diag([2.0, 3.0]))
    problem = Stationary(model, 1e-9)
    right = ctmc.solve(problem, "logarithmic_reduction").value
    exact = right.g / right.g.sum(axis=1, keepdims=True)
    for sign in (1, -1):
        for boundary, g, words in (
            (right.boundary[0] * (1 + sign * off), exact, "total probability is off 1 by"),
            (right.boundary[0], exact + np.diag([0, sign * off]), "row sums of G are off 1 by"),
        ):
            proof = certify(problem, Outcome(MatrixGeometric(boundary=(boundary,), r=right.r, g=g)))
            assert proof.defect < 1e-11
            assert (proof.status is Status.CONVERGED) == accepted, words
            assert accepted or words in proof.reason


def test_an_answer_without_any_flow_has_no_defect():
    model = QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])
    proof = certify(Stationary(model), Outcome(MatrixGeometric(boundary=(np.zeros(1),), r=np.zeros((1, 1)), g=None)))
    assert (proof.defect, proof.status) == (0.0, Status.INACCURATE)
    assert "total probability is off 1 by -1" in proof.reason


@pytest.mark.parametrize("scale", [1.0, 2.0**-40])
def test_the_defect_of_levels_is_that_of_the_whole_chain_with_nothing_beyond(scale):
    """Whatever the unit of time: what leaves the last level upwards counts as unbalanced."""
    rates = [(0.0, 1.0), *((0.75 * k, 1.0) for k in range(1, 40))]

    def blocks(k):
        down, up = rates[min(k, 39)]
        return None if k == 0 else [[scale * down]], [[-scale * (down + up)]], [[scale * up]]

    rng = np.random.default_rng(449)
    pi = np.cumprod([1.0, *(1 / (0.75 * k) for k in range(1, 30))]) * rng.uniform(0.9, 1.1, 30)
    pi /= pi.sum()
    answer = LevelDistribution(tuple(np.array([mass]) for mass in pi))
    flow = imbalances = 0.0
    for k in range(30):
        into = (pi[k - 1] * rates[k - 1][1] if k else 0.0) + (pi[k + 1] * rates[k + 1][0] if k < 29 else 0.0)
        flow += pi[k] * sum(rates[k])
        imbalances += abs(into - pi[k] * sum(rates[k]))
    imbalances += pi[29] * rates[29][1]
    proof = certify(Stationary(LevelDependentQBD(blocks), 1e-3), Outcome(answer))
    assert proof.defect == pytest.approx(imbalances / flow, rel=1e-12)
    assert proof.status is Status.INACCURATE
    assert "the recomputed defect" in proof.reason


@pytest.mark.parametrize(("change", "accepted"), [(2.0**-22, True), (2.0**-22 * JUST, False)])
def test_more_than_500_parts_balance_to_the_tolerance(change, accepted, monkeypatch):
    """A ring of 512 parts: what a change of two masses leaves unbalanced is four times the change."""
    chain, pi = two_rings()
    masses = np.full(512, 2.0**-9)
    ring = np.arange(512)
    whole = Generator.from_transitions(ring, np.roll(ring, -1), np.ones(512), Lattice((511,)))
    masses[[10, 20]] += change, -change
    given = [(whole, masses), (whole, np.ones(1))]
    monkeypatch.setattr(certificate.exchange, "between_parts", lambda *asked: given.pop(0))
    proof = slow_exchange(chain, pi, np.zeros(chain.size), TOLERANCE, 0.125)
    assert (proof is None) == accepted
    assert len(given) == (0 if accepted else 1)  # what holds is looked at in the same way
    assert accepted or "512 parts" in proof.reason


def test_classes_without_mass_are_not_looked_into():
    """From state 0 the second pair of states is never reached: nothing may be divided by its mass."""
    rates = np.zeros((5, 5))
    rates[0, 1] = rates[1, 2] = rates[2, 1] = rates[3, 4] = rates[4, 3] = 1.0
    pi = np.array([0.0, 0.5, 0.5, 0.0, 0.0])
    proof = certify(Stationary(Generator.from_matrix(rates), 1e-12, (0,)), Outcome(pi))
    assert (proof.status, proof.defect) == (Status.CONVERGED, 0.0)


def test_one_recurrent_class_has_all_the_weight(monkeypatch):
    """Wherever the chain begins, so that nothing is solved for."""
    chain, pi = leading_in(20)
    monkeypatch.setattr(Stationary, "class_weights", None)
    assert certify(Stationary(chain, 1e-12, (20,)), Outcome(pi)).status is Status.CONVERGED


@pytest.mark.parametrize("level", [0, 1, -1])
def test_a_negative_entry_of_any_level_is_found(level):
    model = fork_join([5, 2, 1], 1, 3, [1, 2, 8])
    right = ctmc.solve(Stationary(model)).value
    boundary = [vector.copy() for vector in right.boundary]
    assert len(boundary) > 2
    boundary[level][0] = -1e-30
    proof = certify(Stationary(model, 0.5), Outcome(MatrixGeometric(boundary=tuple(boundary), r=right.r, g=None)))
    assert (proof.status, proof.reason) == (Status.INACCURATE, "a probability is -1e-30; allowed are numbers >= 0.")


def test_slow_exchange_between_two_phases_is_found():
    """A queue in an environment that hardly ever changes: each of its two states may seem to have any probability."""
    slow = 1e-14
    model = QBD.from_blocks(np.diag([0.5, 1.0]), [[-2.5 - slow, slow], [slow, -4.0 - slow]], np.diag([2.0, 3.0]))
    right = ctmc.solve(Stationary(model), "logarithmic_reduction").value
    masses = np.array([2.0, 1.0]) * right.boundary[0]
    wrong = MatrixGeometric(
        boundary=(masses / MatrixGeometric(boundary=(masses,), r=right.r, g=None).mass,), r=right.r, g=None
    )
    proof = certify(Stationary(model), Outcome(wrong))
    assert proof.defect < 1e-12
    assert proof.status is Status.INACCURATE
    assert proof.reason.startswith("elimination of the levels gives another answer")


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_levels_of_two_chains_are_looked_at_one_by_one(weight, monkeypatch):
    """Two queues in one model; where one has all the mass nothing is divided by that of the other."""
    seen, hidden = [], certificate._hidden
    monkeypatch.setattr(certificate, "_hidden", lambda *given: seen.append(given) or hidden(*given))

    def blocks(k):
        down = np.diag([float(k), 2.0 * k])
        return (down if k else None), -down - np.eye(2), np.eye(2)

    first, second = (np.cumprod([1.0, *(1.0 / (rate * k) for k in range(1, 30))]) for rate in (1, 2))
    masses = np.column_stack([weight * first / first.sum(), (1 - weight) * second / second.sum()])
    masses *= 1 + 1e-4 * np.cos(np.arange(30))[:, None]
    masses /= masses.sum()
    proof = certify(Stationary(LevelDependentQBD(blocks), 1e-2), Outcome(LevelDistribution(tuple(masses))))
    assert proof.status is Status.CONVERGED
    assert len(seen) == (1 if weight == 1.0 else 2)
    for chain, part, flow, *_ in seen:
        assert part.sum() == pytest.approx(1.0, rel=1e-12)
        np.testing.assert_allclose(flow, chain.forward(part), rtol=1e-9, atol=1e-12)


def test_a_class_is_looked_at_as_a_chain_with_all_the_mass(monkeypatch):
    """Two pairs of states with a quarter and a half of the mass, both a little off, and a state that is never left."""
    seen, hidden = [], certificate._hidden
    monkeypatch.setattr(certificate, "_hidden", lambda *given: seen.append(given) or hidden(*given))
    rates = np.zeros((5, 5))
    rates[0, 1], rates[1, 0], rates[2, 3], rates[3, 2] = 1.0, 2.0, 3.0, 1.0
    pi = np.array([0.25 * (2 / 3 + 1e-4), 0.25 * (1 / 3 - 1e-4), 0.5 * (1 / 4 - 1e-4), 0.5 * (3 / 4 + 1e-4), 0.25])
    assert certify(Stationary(Generator.from_matrix(rates), 1e-2), Outcome(pi)).status is Status.CONVERGED
    assert [len(part) for _, part, *_ in seen] == [2, 2]
    for chain, part, flow, tolerance, defect in seen:
        assert part.sum() == pytest.approx(1.0, rel=1e-14)
        np.testing.assert_allclose(flow, chain.forward(part), rtol=1e-9)
        assert (tolerance, defect) == (1e-2, pytest.approx(defect))


def test_levels_without_any_mass_have_no_defect_and_two_states_are_a_chain(monkeypatch):
    def blocks(k):
        return ([[1e6 * k]] if k else None), [[-1.0 - 1e6 * k]], [[1.0]]

    problem = Stationary(LevelDependentQBD(blocks), 1e-3)
    proof = certify(problem, Outcome(LevelDistribution((np.zeros(1), np.zeros(1)))))
    assert (proof.defect, proof.status) == (0.0, Status.INACCURATE)
    seen = []
    monkeypatch.setattr(certificate, "_hidden", lambda chain, *given: seen.append(chain.size))
    monkeypatch.setattr(LevelDistribution, "beyond", 0.0)  # so few levels tell nothing of how the masses fall
    for levels in (1, 2):
        pi = np.array([1.0, 1e-6])[:levels]
        answer = LevelDistribution(tuple(np.array([mass]) for mass in pi / pi.sum()))
        certify(Stationary(problem.model, 0.999), Outcome(answer))
    assert seen == [2]  # one state alone is no chain


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (JUST, False)])
def test_what_is_unbalanced_in_parts_may_be_the_root_of_the_tolerance(factor, accepted):
    chain, pi = two_rings(256)
    flow = np.zeros(512)
    flow[[1, 255]] = TOLERANCE * factor, -TOLERANCE * factor  # 2^-9 flows through each of these states
    proof = slow_exchange(chain, pi, flow, TOLERANCE, 0.125)
    assert (proof is None) == accepted


def test_500_parts_are_compared_with_elimination_and_not_by_their_balance(monkeypatch):
    chain, pi = two_rings()
    masses, ring = np.full(500, 1 / 500), np.arange(500)
    masses[[10, 20]] += 2.0**-20, -(2.0**-20)
    whole = Generator.from_transitions(ring, np.roll(ring, -1), np.ones(500), Lattice((499,)))
    monkeypatch.setattr(certificate.exchange, "between_parts", lambda *asked: (whole, masses))
    assert slow_exchange(chain, pi, np.zeros(chain.size), TOLERANCE, 0.125) is None


@pytest.mark.parametrize("tolerance", [1e-14, 1e-6])
def test_checks_of_a_model_hold_to_the_tolerance_and_rounding(tolerance):
    model = QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])
    accepted = max(tolerance, 1e-12)
    for deviation, status in ((accepted, Status.CONVERGED), (accepted * JUST, Status.INACCURATE)):
        checked = model.replace(checks=lambda answer, deviation=deviation: {"it": deviation})
        answer = MatrixGeometric(boundary=(np.array([0.5]),), r=np.array([[0.5]]), g=None)
        assert certify(Stationary(checked, tolerance), Outcome(answer)).status is status


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (JUST, False)])
def test_matrix_geometric_answers_exactly_at_their_limits(factor, accepted, monkeypatch):
    monkeypatch.setattr(certificate, "MASS_TOLERANCE", ROOT)
    monkeypatch.setattr(certificate, "ROW_SUM_TOLERANCE", ROOT)
    problem = Stationary(QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]]), 0.5)
    for off in (ROOT * factor, -ROOT * factor):
        for boundary, g in ((0.5 + off / 2, None), (0.5, np.array([[1.0 + off]]))):
            answer = MatrixGeometric(boundary=(np.array([boundary]),), r=np.array([[0.5]]), g=g)
            assert (certify(problem, Outcome(answer)).status is Status.CONVERGED) == accepted


def test_the_defect_of_a_queue_does_not_depend_on_the_unit_of_time():
    found = []
    for scale in (1.0, 2.0**-40, 2.0**40):
        model = QBD.from_blocks([[scale]], [[-3 * scale]], [[2 * scale]])
        answer = MatrixGeometric(boundary=(np.array([0.4]),), r=np.array([[0.6]]), g=None)
        found.append(certify(Stationary(model), Outcome(answer)).defect)
    assert found[0] > 0.01
    assert found == [found[0]] * 3


@pytest.mark.parametrize(("beyond", "accepted"), [(ROOT, True), (ROOT * JUST, False)])
def test_the_mass_beyond_the_levels_may_be_the_root_of_the_tolerance(beyond, accepted, monkeypatch):
    monkeypatch.setattr(LevelDistribution, "beyond", beyond)
    model = LevelDependentQBD(lambda k: (([[float(k)]] if k else None), [[-1.0 - k]], [[1.0]]))
    pi = np.cumprod([1.0, *(1.0 / k for k in range(1, 30))])
    proof = certify(
        Stationary(model, TOLERANCE), Outcome(LevelDistribution(tuple(np.array([mass]) for mass in pi / pi.sum())))
    )
    assert (proof.status is Status.CONVERGED) == accepted
    assert accepted or "more levels are needed" in proof.reason


def test_a_band_is_compared_with_elimination_and_its_error_not_estimated(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(certificate, "estimated_error", lambda *given: math.inf)
    chain, pi = queue(501)
    assert slow_exchange(chain, pi, chain.forward(pi), TOLERANCE, 0.125) is None
    off = np.zeros(501)
    off[:2] = ROOT, -ROOT
    proof = slow_exchange(chain, pi + off, chain.forward(pi + off), TOLERANCE, 0.125)
    assert proof.reason.startswith("the masses of 501 parts of the chain do not balance")


@pytest.mark.parametrize(("off", "accepted"), [(0.9 * ROOT, True), (0.9 * ROOT * JUST, False), (math.nan, False)])
def test_levels_may_be_off_elimination_by_nine_tenths_of_the_root(off, accepted, monkeypatch):
    monkeypatch.setattr(certificate, "off_elimination", lambda *given: off)
    line = QBD.from_blocks(up=[[1.0]], local=[[-3.0]], down=[[2.0]])
    answer = MatrixGeometric((np.array([0.5]),), np.array([[0.5]]))
    proof = certificate._hidden_levels(Stationary(line, TOLERANCE), answer, 0.125)
    assert (proof.status is Status.CONVERGED) == accepted
    assert proof.defect == 0.125


def test_levels_with_many_phases_are_compared_by_their_flow(monkeypatch):
    """As much goes up as down, phase by phase to another one."""
    monkeypatch.setattr(certificate, "off_elimination", lambda *given: None)
    up, down = np.array([[0.0, 0.25], [0.0, 0.75]]), np.array([[1.0, 0.5], [2.0, 0.25]])
    local = np.array([[0.0, 0.5], [1.0, 0.0]])
    np.fill_diagonal(local, -(up + down + local).sum(axis=1))
    problem = Stationary(QBD.from_blocks(up=up, local=local, down=down), 1e-20)
    right = ctmc.solve(Stationary(problem.model), "logarithmic_reduction").value
    assert certificate._hidden_levels(problem, right, 0.0).status is Status.CONVERGED


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (1 - 1e-9, False)])
def test_the_flow_between_levels_may_be_off_by_the_root(factor, accepted, monkeypatch):
    monkeypatch.setattr(certificate, "off_elimination", lambda *given: None)
    line = QBD.from_blocks(up=[[1.0]], local=[[-3.0]], down=[[2.0]])
    answer = MatrixGeometric((np.array([0.5 - 2.0**-12]),), np.array([[0.5 + 2.0**-12]]))
    assert answer.repeating_phases == 1
    root = 2.0**-11 / (0.5 - 2.0**-12) * factor  # up 1, down 1 + 2^-11
    assert math.sqrt(root**2) == root
    proof = certificate._hidden_levels(Stationary(line, root**2), answer, 0.125)
    assert (proof.status is Status.CONVERGED) == accepted


def test_the_bound_of_the_weights_of_classes_counts_against_them():
    chain = Generator.from_matrix(np.zeros((2, 2)))
    weights = np.array([0.25, 0.75])
    # what is seen must be within the tolerance, or within rounding that proves the weights to its root all the same
    cases = {(0.0, 0.0): True, (2e-12, 0.0): False, (0.0, 2e-12): True, (2e-12, 2e-12): True, (3e-12, 2e-12): False,
             (0.0, 1e-7): True, (0.0, 1.1e-7): False, (2e-9, 1e-7): False}  # fmt: skip
    for bounds, accepted in cases.items():
        problem = SimpleNamespace(model=chain, tolerance=1e-14, initial=weights, class_weights=(weights, *bounds))
        assert (certificate._wrong_weights(problem, weights, 0.0) is None) == accepted
