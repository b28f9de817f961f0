"""Certificates: whatever is wrong with an answer is found, and right answers are never refused."""

import math

import numpy as np
import pytest

import ctmc
from ctmc import certificate
from ctmc.certificate import certify, imbalance
from ctmc.model import exchange
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.qbd import QBD, MatrixGeometric
from ctmc.model.state_space import Lattice
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Large chains are looked at part by part only, like those too large for elimination and for a cycle; `test_gate_chains` tries elimination."""
    monkeypatch.setattr(certificate, "banded_stationary", lambda chain: None)
    monkeypatch.setattr(certificate, "estimated_error", lambda *given: None)


def random_rates(rng, size, decades=0.0, density=0.5):
    """Rates of an irreducible chain: a ring, and more, spread over some decades."""
    rates = np.where(rng.random((size, size)) < density, 10 ** rng.uniform(-decades, 0, (size, size)), 0.0)
    ring = (np.arange(size), np.roll(np.arange(size), -1))
    rates[ring] = 10 ** rng.uniform(-decades, 0, size)
    np.fill_diagonal(rates, 0.0)
    return rates


def verdict(rates, pi, tolerance=1e-12, initial=None):
    return certify(Stationary(Generator.from_matrix(rates), tolerance, initial), Outcome(pi))


def normalised(weights):
    return np.asarray(weights) / np.sum(weights)


# ---- stationary: what every answer must be ----------------------------------------------------------------------------


QUEUE = np.diag(np.full(5, 1.0), 1) + np.diag(np.full(5, 2.0), -1)
RIGHT = normalised(0.5 ** np.arange(6))


def test_right_answer():
    proof = verdict(QUEUE, RIGHT)
    assert proof.status is Status.CONVERGED
    assert proof.defect < 1e-15
    assert proof.error_bound is None
    assert "within 1e-12" in proof.reason


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (None, Status.BREAKDOWN, "NoneType"),
        (RIGHT.tolist(), Status.BREAKDOWN, "list"),
        (RIGHT[:5], Status.BREAKDOWN, "shape (5,), not a float64 array of shape (6,)"),
        (RIGHT[None], Status.BREAKDOWN, "shape (1, 6)"),
        (RIGHT.astype(np.float32), Status.BREAKDOWN, "float32"),
        (RIGHT.astype(complex), Status.BREAKDOWN, "complex128"),
        (RIGHT.astype(">f8"), Status.BREAKDOWN, ">f8"),
        (np.array([np.nan, *RIGHT[1:]]), Status.NOT_FINITE, "1 entries are not finite"),
        (np.array([np.inf, -np.inf, *RIGHT[2:]]), Status.NOT_FINITE, "2 entries"),
        (RIGHT * (1 + 1e-11), Status.INACCURATE, "total probability is off 1 by 1e-11"),
        (RIGHT * 0, Status.INACCURATE, "total probability is off 1 by -1"),
        (-RIGHT, Status.INACCURATE, "off 1 by -2"),
        (RIGHT[::-1].copy(), Status.INACCURATE, "recomputed defect"),
        (np.full(6, 1 / 6), Status.INACCURATE, "recomputed defect"),
        (np.array([1.0, 0, 0, 0, 0, 0]), Status.INACCURATE, "recomputed defect 2 "),
    ],
)
def test_wrong_answers(answer, status, words):
    proof = verdict(QUEUE, answer)
    assert proof.status is status
    assert words in proof.reason


def test_a_negative_probability_is_named():
    rates = np.array([[0, 1e-14, 1.0], [1.0, 0, 0], [1.0, 0, 0]])
    pi = normalised([1.0, -1e-15, 1.0])
    proof = verdict(rates, pi)
    assert proof.status is Status.INACCURATE
    assert "entry 1 is -5e-16" in proof.reason


def test_defect_is_relative_to_the_flow():
    """Failures at 1e-6, repairs at 1e4: relative to the largest rate, "always up" would score 2e-10."""
    chain = Generator.from_matrix([[0, 1e-6], [1e4, 0]])
    up = np.array([1.0, 0.0])
    assert imbalance(chain.forward(up), up, chain) == pytest.approx(2.0, rel=1e-14)
    proof = certify(Stationary(chain), Outcome(up))
    assert proof.status is Status.INACCURATE
    assert proof.defect == pytest.approx(2.0, rel=1e-14)
    right = normalised([1e4, 1e-6])
    assert certify(Stationary(chain), Outcome(right)).status is Status.CONVERGED


def test_nothing_flows():
    chain = Generator.from_matrix([[0.0]])
    assert imbalance(np.zeros(1), np.ones(1), chain) == 0.0
    assert certify(Stationary(chain), Outcome(np.ones(1))).status is Status.CONVERGED
    assert certify(Stationary(chain), Outcome(np.full(1, 0.5))).status is Status.INACCURATE


def test_tolerance_of_the_problem_rules():
    pi = normalised(RIGHT * (1 + 1e-6 * np.cos(np.arange(6))))
    assert verdict(QUEUE, pi, 1e-12).status is Status.INACCURATE
    assert verdict(QUEUE, pi, 1e-5).status is Status.CONVERGED


# ---- stationary: what a small defect does not prove ---------------------------------------------------------------------


def blocks(couplings, size, seed=1931):
    """Dense random blocks in a row, neighbours coupled at single transitions."""
    rng = np.random.default_rng(seed)
    count = len(couplings) + 1
    rates = np.zeros((count * size,) * 2)
    for k in range(count):
        part = slice(k * size, (k + 1) * size)
        rates[part, part] = rng.uniform(0.5, 1.5, (size, size))
    for k, coupling in enumerate(couplings):
        rates[(k + 1) * size - 1, (k + 1) * size] = coupling
        rates[(k + 1) * size, (k + 1) * size - 1] = 2 * coupling
    np.fill_diagonal(rates, 0.0)
    return rates


def with_wrong_masses(pi, size, factor=2.0):
    """The first block has `factor` times its mass; inside the blocks everything is right."""
    wrong = pi.copy()
    wrong[:size] *= factor
    return wrong / wrong.sum()


@pytest.mark.parametrize("size", [3, 300])  # compared with elimination, and put together into parts
@pytest.mark.parametrize("coupling", [1e-3, 1e-5, 1e-8, 1e-11, 1e-14])
@pytest.mark.parametrize("count", [2, 3])
def test_blocks_that_hardly_exchange_anything(size, coupling, count):
    rates = blocks([coupling] * (count - 1), size)
    right = gth(rates)
    assert verdict(rates, right).status is Status.CONVERGED
    wrong = verdict(rates, with_wrong_masses(right, size))
    assert wrong.status is Status.INACCURATE
    if coupling <= 1e-14:
        assert wrong.defect < 1e-12
        assert "parts of the chain do not balance" in wrong.reason


@pytest.mark.parametrize("size", [3, 270])
@pytest.mark.parametrize(
    "couplings", [(1e-9, 1e-14), (1e-14, 1e-9), (1e-13, 1e-3, 1e-14), (1e-14, 1e-13, 1e-14, 1e-13)]
)
def test_nested_scales(size, couplings):
    """The blocks that exchange nearly nothing consist of blocks that exchange little."""
    rates = blocks(couplings, size)
    right = gth(rates)
    assert verdict(rates, right).status is Status.CONVERGED
    for first in range(1, len(couplings) + 1):
        if couplings[first - 1] < 1e-12:
            wrong = verdict(rates, with_wrong_masses(right, first * size, 1.01))
            assert wrong.defect < 1e-12
            assert wrong.status is Status.INACCURATE


def test_masses_are_held_to_the_square_root_of_the_tolerance():
    rates = blocks([1e-14], 4)
    right = gth(rates)
    assert verdict(rates, with_wrong_masses(right, 4, 1 + 3e-6)).status is Status.INACCURATE
    assert verdict(rates, with_wrong_masses(right, 4, 1 + 3e-7)).status is Status.CONVERGED


def double_well(size, depth):
    """A walk in a potential with two wells, tilted to one: no transition is slow, but the ridge is hardly ever crossed."""
    height = math.log(depth) * (1 - np.abs(np.linspace(-1, 1, size)))
    steps = np.diff(height)
    rates = np.diag(np.minimum(1, np.exp(steps)), 1) + np.diag(np.minimum(1, np.exp(-steps)), -1)
    rates[size // 2, size // 2 - 1] *= 5
    return rates


@pytest.mark.parametrize("size", [61, 1201])
@pytest.mark.parametrize("depth", [1e-7, 1e-10, 1e-13])
def test_two_wells_without_slow_transitions(size, depth):
    rates = double_well(size, depth)
    right = gth(rates)
    assert verdict(rates, right).status is Status.CONVERGED
    for place in (size // 2 - 20, size // 2, size // 2 + 7):  # wherever on the ridge the masses stop to fit
        assert verdict(rates, with_wrong_masses(right, place)).status is Status.INACCURATE


@pytest.mark.parametrize("size", [61, 1201])
@pytest.mark.parametrize(
    "solver",
    ["power_iteration(max_iterations=300)", "gmres(max_iterations=300, preconditioner='jacobi')",
     "gauss_seidel(max_iterations=300)", "sparse_lu"],
)  # fmt: skip
def test_no_solver_gets_away_with_the_masses_of_two_wells(size, solver):
    """All of them come to a defect below 1e-12 with half of the mass in the wrong well."""
    rates = double_well(size, 1e-13)
    solution = ctmc.solve(Stationary(Generator.from_matrix(rates)), solver, check=False)
    assert solution.status is not Status.CONVERGED
    assert np.abs(solution.value - gth(rates)).sum() > 1e-5


@pytest.mark.parametrize("slow", [1, 600])
def test_fast_states_do_not_hide_slow_ones(slow):
    """Every slow transition matters to one of its ends, and still the fast pair has all the flow."""
    size = slow + 3
    rates = np.diag(np.full(size - 1, 1e-6), 1) + np.diag(np.full(size - 1, 3e-6), -1)
    rates[:2, :2] = [[0, 1e7], [1e7, 0]]
    right = gth(rates)
    assert verdict(rates, right).status is Status.CONVERGED
    wrong = verdict(rates, np.full(size, 1 / size))
    assert wrong.defect < 1e-12
    assert wrong.status is Status.INACCURATE
    for solver in (
        "power_iteration",
        "gmres(preconditioner='jacobi')",
        "gauss_seidel",
    ):  # each stops at its first iterate
        assert ctmc.solve(Stationary(Generator.from_matrix(rates)), solver, check=False).status is Status.INACCURATE
    for solver in ("bicgstab", "gmres"):  # so do these, but the polish finds what is wrong, and mends it
        np.testing.assert_allclose(ctmc.solve(Stationary(Generator.from_matrix(rates)), solver).value, right, rtol=1e-9)


def test_slow_states_are_named():
    """Above 500 states the fast pair is one part with all that hangs on it, so their own balance must tell."""
    size = 603
    rates = np.diag(np.full(size - 1, 1e-6), 1) + np.diag(np.full(size - 1, 3e-6), -1)
    rates[:2, :2] = [[0, 1e7], [1e7, 0]]
    proof = verdict(rates, np.full(size, 1 / size))
    assert "exit rates of about 1e-6" in proof.reason
    assert "their own flow" in proof.reason


def test_many_light_classes_are_put_together():
    """A queue whose long tail is lighter than any tolerance, and whose tail states exchange less than eps with the rest."""
    size = 3000
    rates = np.diag(np.full(size - 1, 0.5), 1) + np.diag(np.full(size - 1, 1.0), -1)
    pi = normalised(0.5 ** np.arange(size))
    proof = verdict(rates, pi)
    assert pi[-1] < 1e-300 or pi[-1] == 0
    assert proof.status is Status.CONVERGED


def pairs_in_a_row(pairs, forward):
    """Pairs of states with masses 2 : 1, joined by transitions at these rates forwards and half of them backwards."""
    up, down = np.empty(2 * pairs - 1), np.empty(2 * pairs - 1)
    up[::2], down[::2] = 1.0, 2.0
    up[1::2], down[1::2] = forward, forward / 2
    low = np.arange(2 * pairs - 1)
    return Generator.from_transitions(
        np.concatenate([low, low + 1]),
        np.concatenate([low + 1, low]),
        np.concatenate([up, down]),
        Lattice((2 * pairs - 1,)),
    )


@pytest.mark.parametrize("scales", [(1e-13,), (1e-7, 1e-14)])
def test_more_parts_than_are_compared_with_elimination(scales):
    """2,500 slow pairs in a row, in one case in groups of pairs that are slow among the slow."""
    pairs = 2500
    forward = np.full(pairs - 1, scales[0])
    forward[4::5] = scales[-1]
    chain = pairs_in_a_row(pairs, forward)
    right = np.tile([2.0, 1.0], pairs) / (3 * pairs)
    assert exchange.parts(chain, right, 1e-6).max() + 1 == pairs
    assert certify(Stationary(chain), Outcome(right)).status is Status.CONVERGED
    for place, factor in ((2 * 1250, 1.5), (2 * 1245, 1.001), (10, 10.0)):
        proof = certify(Stationary(chain), Outcome(with_wrong_masses(right, place, factor)))
        assert proof.defect < 1e-12
        assert proof.status is Status.INACCURATE


def test_light_parts_do_not_matter():
    """A trap of mass 1e-9 that is hardly ever left: its mass may be off by half."""
    size = 600
    rates = np.zeros((size + 2, size + 2))
    rates[:size, :size] = blocks([], size)
    rates[0, size], rates[size, 0] = 1e-15, 1e-9
    rates[size, size + 1] = rates[size + 1, size] = 1.0
    right = gth(rates)
    assert 1e-10 < right[size:].sum() < 1e-8
    assert verdict(rates, right).status is Status.CONVERGED
    assert verdict(rates, with_wrong_masses(right, size, 1.5)).status is Status.CONVERGED


def test_parts_follow_the_wells_and_do_not_depend_on_where_the_ridge_is():
    for size in (1001, 2000):
        rates = double_well(size, 1e-10)
        chain = Generator.from_matrix(rates)
        part_of = exchange.parts(chain, gth(rates), 1e-6)
        assert part_of.max() == 1
        assert len(set(part_of[: size // 2 - 5].tolist())) == 1
        assert len(set(part_of[size // 2 + 5 :].tolist())) == 1
        assert part_of[0] != part_of[-1]


def test_chain_between_parts():
    rates = blocks([1e-3], 3)
    chain = Generator.from_matrix(rates)
    pi = gth(rates)
    halves = np.repeat(np.arange(2, dtype=np.int32), 3)
    whole, masses = exchange.between_parts(chain, pi, halves)
    assert masses == pytest.approx([pi[:3].sum(), pi[3:].sum()], rel=1e-14)
    assert whole.exit_rates == pytest.approx([pi[2] / masses[0] * 1e-3, pi[3] / masses[1] * 2e-3], rel=1e-14)
    # parts so light that their flow underflows, and parts without any mass
    light, _ = exchange.between_parts(chain, np.concatenate([pi[:3], pi[3:] * 1e-300]), halves)
    assert light.exit_rates == pytest.approx(whole.exit_rates, rel=1e-13)
    nothing, _ = exchange.between_parts(chain, np.concatenate([pi[:3], np.zeros(3)]), halves)
    assert nothing.exit_rates[1] == pytest.approx(2e-3 / 3, rel=1e-14)


def test_nothing_flows_out_of_a_part():
    """The exit state of the first block has exactly no probability: there is nothing to compare, so nothing is proven."""
    size = 300
    rates = blocks([1e-14], size)
    rates[size - 1, : size - 1] = rates[: size - 1, size - 1] = 1e-20
    pi = gth(rates)
    pi[size - 1] = 0.0
    proof = verdict(rates, normalised(pi), 1e-6)
    assert proof.defect < 1e-6
    assert proof.status is Status.INACCURATE
    assert "off by nan" in proof.reason


def test_rates_whose_products_are_nothing_prove_nothing():
    """State 1 gets to state 0 through state 2 only, at 1e-600: elimination finds no way, so there is nothing to compare with."""
    rates = np.array([[0, 1.0, 0], [0, 0, 1e-300], [1e-300, 1.0, 0]])
    proof = verdict(rates, np.array([0.0, 1.0, 1e-300]))
    assert proof.defect == 0
    assert proof.status is Status.INACCURATE
    assert "the masses of 3 parts of the chain do not balance (off by nan)" in proof.reason


@pytest.mark.parametrize("decades", [0, 3, 10, 20])
def test_elimination_is_never_refused(decades):
    """Several hundred random chains, with rates over many decades."""
    rng = np.random.default_rng(60_000 + decades)
    for _ in range(100):
        size = int(rng.integers(2, 40))
        rates = random_rates(rng, size, decades, density=rng.uniform(0.05, 1))
        proof = verdict(rates, gth(rates))
        assert proof.status is Status.CONVERGED, proof.reason


def test_elimination_is_never_refused_on_larger_chains():
    rng = np.random.default_rng(7_019)
    for decades in (0, 6, 15):
        rates = random_rates(rng, 700, decades, density=0.02)
        proof = verdict(rates, gth(rates))
        assert proof.status is Status.CONVERGED, proof.reason


@pytest.mark.slow
def test_usual_answers_of_iterative_methods_are_not_refused():
    rng = np.random.default_rng(8_111)
    for size in (12, 150, 600):
        model = Generator.from_matrix(random_rates(rng, size, 2.0, density=0.1))
        for solver in ("gmres", "gauss_seidel", "sparse_lu"):
            assert ctmc.solve(Stationary(model), solver).converged


# ---- stationary: reducible chains ---------------------------------------------------------------------------------------


def two_ends(fast=1.0, slow=1.0):
    """State 0 goes to a pair (1, 2) or a pair (3, 4), one time out of three and two out of three."""
    rates = np.zeros((5, 5))
    rates[0, [1, 3]] = 1.0, 2.0
    rates[1, 2], rates[2, 1] = fast, 3 * fast
    rates[3, 4], rates[4, 3] = slow, slow
    return rates


TWO_ENDS = np.array([0, 1 / 4, 1 / 12, 1 / 3, 1 / 3])


def test_mixture_of_classes():
    assert verdict(two_ends(), TWO_ENDS, initial=(0,)).status is Status.CONVERGED
    swapped = np.array([0, 1 / 2, 1 / 6, 1 / 6, 1 / 6])
    proof = verdict(two_ends(), swapped, initial=(0,))
    assert proof.defect < 1e-15
    assert proof.status is Status.INACCURATE
    assert "weights of the recurrent classes are off by up to 0.67" in proof.reason
    assert verdict(two_ends(), swapped).status is Status.CONVERGED  # without a start any mixture is stationary


def test_a_slow_class_is_not_hidden_by_a_fast_one():
    proof = verdict(two_ends(1e8, 1e-8), np.array([0, 1 / 4, 1 / 12, 2 / 3, 0]), initial=(0,))
    assert proof.defect == pytest.approx(2.0)
    assert proof.status is Status.INACCURATE
    assert verdict(two_ends(1e8, 1e-8), TWO_ENDS, initial=(0,)).status is Status.CONVERGED


def test_slow_exchange_inside_a_class_of_a_reducible_chain():
    rates = np.zeros((9, 9))
    rates[0, 1] = 1.0
    rates[1:, 1:] = blocks([1e-14], 4)
    right = np.concatenate([[0], gth(rates[1:, 1:])])
    assert verdict(rates, right, initial=(0,)).status is Status.CONVERGED
    assert verdict(rates, with_wrong_masses(right, 5), initial=(0,)).status is Status.INACCURATE


def test_probability_left_in_a_slow_transient_state():
    rates = np.zeros((3, 3))
    rates[0, 1], rates[1, 0], rates[1, 2] = 1.0, 1.0, 1e-15
    assert verdict(rates, np.array([0.0, 0, 1])).status is Status.CONVERGED
    proof = verdict(rates, np.array([0.5, 0.5, 0]))
    assert proof.defect < 1e-14
    assert proof.status is Status.INACCURATE
    assert "transient states have the probability 1" in proof.reason


# ---- QBD ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def queue():
    model = QBD.from_blocks(
        np.diag([0.2, 1.5]), [[-2.3, 0.1], [0.2, -4.7]], np.diag([2.0, 3.0])
    )  # M/M/1 in a random environment
    return Stationary(model), ctmc.solve(Stationary(model)).value


def changed(answer, **parts):
    return MatrixGeometric(**{"boundary": answer.boundary, "r": answer.r, "g": answer.g, **parts})


@pytest.mark.parametrize(
    ("spoil", "status", "words"),
    [
        (lambda a: a.boundary[0], Status.BREAKDOWN, "is a ndarray, not a MatrixGeometric"),
        (lambda a: changed(a, boundary=(*a.boundary, a.boundary[0])), Status.BREAKDOWN, "2 levels, not 1"),
        (lambda a: changed(a, boundary=()), Status.BREAKDOWN, "0 levels, not 1"),
        (lambda a: changed(a, boundary=(a.boundary[0][:1],)), Status.BREAKDOWN, "shape (1,)"),
        (lambda a: changed(a, r=a.r.astype(np.float32)), Status.BREAKDOWN, "float32"),
        (lambda a: changed(a, boundary=(a.boundary[0] * np.nan,)), Status.NOT_FINITE, "2 entries"),
        (lambda a: changed(a, r=a.r * np.inf), Status.NOT_FINITE, "not finite"),
        (lambda a: changed(a, r=a.r / a.decay_rate), Status.INACCURATE, "spectral radius of R is 1"),
        (lambda a: changed(a, r=a.r * 3), Status.INACCURATE, "spectral radius of R is 1."),
        (lambda a: changed(a, r=a.r - 1), Status.INACCURATE, "R has the entry -"),
        (lambda a: changed(a, r=a.r.T.copy()), Status.INACCURATE, ""),
        (lambda a: changed(a, boundary=(a.boundary[0] * 1.1,)), Status.INACCURATE, "off 1 by 0.1"),
        (lambda a: changed(a, boundary=(a.boundary[0][::-1].copy(),)), Status.INACCURATE, ""),
        (lambda a: changed(a, g=np.eye(2)[:1]), Status.BREAKDOWN, "shape (1, 2)"),
        (lambda a: changed(a, g=a.g * (1 - 1e-11)), Status.INACCURATE, "row sums of G are off 1 by 1e-11"),
        (lambda a: changed(a, g=np.array([[1.5, -0.5], [0, 1.0]])), Status.INACCURATE, "its least entry is -0.5"),
    ],
)
def test_wrong_matrix_geometric_answers(queue, spoil, status, words):
    problem, right = queue
    assert certify(problem, Outcome(right)).status is Status.CONVERGED
    proof = certify(problem, Outcome(spoil(right)))
    assert proof.status is status
    assert words in proof.reason


@pytest.mark.parametrize(
    ("deviations", "status", "words"),
    [
        ({}, Status.CONVERGED, "is within 1e-12."),
        ({"the first": 0.0, "the other": 1e-13}, Status.CONVERGED, "; the first, is right to 0; the other, is right to 1e-13."),
        ({"the first": 0.0, "the other": 1e-11}, Status.INACCURATE, "a check of the model fails: the other, is off by 1e-11"),
        ({"the first": math.nan, "the other": 0.0}, Status.INACCURATE, "a check of the model fails: the first, is off by nan"),
    ],
)  # fmt: skip
def test_checks_of_the_model(queue, deviations, status, words):
    problem, right = queue
    checked = problem.model.replace(checks=lambda answer: deviations)
    proof = certify(Stationary(checked), Outcome(right))
    assert proof.status is status
    assert proof.defect < 1e-12
    assert words in proof.reason
    spoiled = certify(Stationary(checked), Outcome(changed(right, r=right.r * 0.9)))
    assert "check" not in spoiled.reason  # what does not balance is not asked any more


@pytest.mark.needs_compilation
def test_rounding_of_a_long_sum_is_not_taken_for_probability_of_transient_states():
    """A million and a half states whose probabilities, added one by one, lack more than the tolerance to 1."""
    n = 1_500_000
    ring = np.arange(1, n)
    begin = np.concatenate([[0], ring])  # state 0 leads into a ring that nothing leaves
    end = np.concatenate([[1], np.roll(ring, -1)])
    chain = Generator.from_transitions(begin, end, np.ones(n), Lattice((n - 1,)))
    pi = np.concatenate([[0.0], np.full(n - 1, 1 / (n - 1))])
    assert abs(1 - np.bincount(np.zeros(n, dtype=int), weights=pi)[0]) > 1e-12
    proof = certificate.stationary(Stationary(chain), pi)
    assert proof.status is Status.CONVERGED
