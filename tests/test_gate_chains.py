"""Random hard chains: no wrong answer is certified, and no bound is below the true error.

CTMC_CHAINS gives another number of chains, for a release; with -s, what was tried is told by kind.
"""

import os
from collections import Counter
from decimal import Decimal

import exact_chains as exact
import numpy as np
import pytest
from hard_bounds import bounds
from hard_chains import BANDED, fast_pair, hard_chain, renewal, tree, wells, wide_chain, wrong_answers
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

import ctmc
from ctmc.certificate import certify
from ctmc.interval import poisson_elimination
from ctmc.model.banded import banded_stationary
from ctmc.model.elimination import gth
from ctmc.problem import FirstPassage, Stationary
from ctmc.registry import make_solver
from ctmc.solution import Outcome, Status
from ctmc.strict import prove_intervals

CHAINS = int(os.environ.get("CTMC_CHAINS", "120"))
PARTS = 8
pytestmark = pytest.mark.timeout(300 + CHAINS)


def truth(hard):
    """The exact long-run distribution as decimals, its recurrent classes and transient states."""
    recurrent, transient = hard.classes()
    pi = [Decimal(0)] * hard.size
    weights = None
    if len(recurrent) > 1:
        entered = exact.ends(hard.begin, hard.end, hard.rates, hard.initial, transient)
        weights = [sum(entered[i] for i in members.tolist()) for members in recurrent]
    with exact.precise():
        for k, members in enumerate(recurrent):
            part = hard.matrix[members][:, members].tocoo()
            inside = exact.stationary(part.row, part.col, part.data, len(members))
            for i, p in zip(members.tolist(), inside, strict=True):
                pi[i] = p if weights is None else p * weights[k] / sum(weights)
    return pi, recurrent, transient


def error(answer, pi):
    with exact.precise():
        return float(sum(abs(Decimal(a) - p) for a, p in zip(answer.tolist(), pi, strict=True)))


ITERATIVE = ("aggregation", "anderson", "arnoldi", "bicgstab", "gauss_seidel", "gmres", "power_iteration")
DIRECT = ("gth", "sparse_lu")


def solved(hard, tolerance, rng):
    """What a solver of the registry claims, under limits that it may not get along with."""
    name = str(rng.choice(ITERATIVE + DIRECT))
    limits = "(max_iterations=200)" if name in ITERATIVE else ""
    found = ctmc.solve(Stationary(hard.model, tolerance, hard.initial), name + limits, check=False)
    return name, found.value, found.status is Status.CONVERGED


@pytest.mark.needs_compilation
@pytest.mark.parametrize("part", range(PARTS))
def test_no_wrong_answer_is_certified_and_no_bound_is_below_the_error(part):
    """CONVERGED promises an error of at most sqrt(tolerance) in L1 where elimination is cheap, as it is for nearly all chains here."""
    tried, certified, refused_right, chains, checked = Counter(), Counter(), Counter(), Counter(), Counter()
    nearest, false, below = {}, [], []
    for seed in range(20_000 + part, 20_000 + CHAINS, PARTS):
        rng, hard = np.random.default_rng([seed, 9]), hard_chain(seed)
        pi, recurrent, transient = truth(hard)
        right = np.array(pi, dtype=float)
        right /= right.sum()
        tolerance = 10.0 ** rng.integers(-12, -3)
        problem = Stationary(hard.model, tolerance, hard.initial)
        chains[hard.kind] += 1
        refused_right[hard.kind] += certify(problem, Outcome(right)).status is not Status.CONVERGED
        answers = [(*one, None) for one in wrong_answers(hard, right, recurrent, transient, tolerance, rng)]
        for what, answer, converged in [*answers, solved(hard, tolerance, rng)]:
            tried[hard.kind] += 1
            if converged is None:
                converged = certify(problem, Outcome(answer)).status is Status.CONVERGED
            if converged:
                certified[hard.kind] += 1
                share = error(answer, pi) / tolerance**0.5
                nearest[hard.kind] = max(nearest.get(hard.kind, 0.0), share)
                if share > 1 + 1e-6:
                    false.append((seed, hard.kind, hard.size, what, tolerance, share))
        small = hard_chain(seed + 500_000, size=int(rng.integers(2, 8)))
        if seed // PARTS % 3:
            continue
        for what, bound, off in bounds(small, *truth(small), rng):
            checked[what] += 1
            nearest[what] = max(nearest.get(what, 0.0), off / bound if bound else 0.0)
            if not off <= bound:
                below.append((seed, small.kind, what, bound, off))
    for kind in sorted(chains):
        print(f"{kind} | {chains[kind]:,} | {tried[kind]:,} | {certified[kind]:,} | {nearest.get(kind, 0):.2g}")
    for what in sorted(checked):
        print(f"{what} | {checked[what]:,} | {nearest[what]:.9g}")
    print(f"{sum(tried.values()):,} answers, {sum(certified.values()):,} certified, {len(false)} wrongly: {false}")
    print(
        f"{sum(checked.values()):,} bounds, {len(below)} below the error: {below}; right answers refused: {+refused_right}"
    )
    assert not false
    assert not below
    assert sum(refused_right.values()) == 0
    assert sum(certified.values()) > sum(chains.values())  # the certificate is no wall


def test_no_wrong_answer_of_a_wide_chain_is_certified():
    """Too wide for elimination: what is wrong between parts is looked for, and the error is estimated by cycles."""
    tried, certified, false = 0, 0, []
    for seed in range(30_000, 30_000 + max(1, CHAINS // 250)):
        rng = np.random.default_rng([seed, 13])
        lines, hard = wide_chain(seed)
        right = np.ones(1)
        for line in lines:
            part = np.array(exact.stationary(line.begin, line.end, line.rates, line.size), dtype=float)
            right = np.outer(right, part / part.sum()).ravel()
        tolerance = 10.0 ** rng.integers(-12, -3)
        problem = Stationary(hard.model, tolerance)
        assert banded_stationary(hard.model) is None
        assert certify(problem, Outcome(right / right.sum())).status is Status.CONVERGED
        for what, answer in wrong_answers(hard, right, [np.arange(hard.size)], np.empty(0, dtype=int), tolerance, rng):
            tried += 1
            if certify(problem, Outcome(answer)).status is Status.CONVERGED:
                certified += 1
                share = float(np.abs(answer - right).sum()) / tolerance**0.5
                if share > 1 + 1e-6:
                    false.append((seed, what, tolerance, share))
    print(
        f"wide: {tried:,} answers, {certified:,} certified, {len(false)} with a larger error than sqrt(tolerance): {false}"
    )
    assert not false


# ---- what the gate has found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BANDED)
def test_elimination_in_a_band(kind):
    """Every digit of every state, the rarest too."""
    hard = kind(np.random.default_rng(2711), 150)
    found = banded_stationary(hard.model)
    if found is None:  # everything leads to the first state: as wide as long
        assert kind is renewal
        return
    pi = exact.stationary(hard.begin, hard.end, hard.rates, hard.size)
    least = Decimal("1e-250")
    assert all(abs(Decimal(a) / b - 1) < Decimal("1e-11") for a, b in zip(found.tolist(), pi, strict=True) if b > least)


def test_elimination_in_a_band_takes_no_memory_that_is_not_there():
    rates = np.diag(np.ones(699), 1) + np.diag(np.ones(699), -1)
    model = ctmc.Generator.from_matrix(rates)
    for limit in (60_000, 200_000):
        with ctmc.limited_memory(limit):
            assert (banded_stationary(model) is None) == (limit == 60_000)


@pytest.mark.parametrize(
    "eliminated", [lambda rates: gth(rates), lambda rates: banded_stationary(ctmc.Generator.from_matrix(rates))]
)
def test_elimination_of_a_chain_whose_weights_overflow(eliminated):
    """From the first state to the last they grow by 1e8 a step, to 1e800."""
    rates = np.diag(np.full(100, 1e8), 1) + np.diag(np.ones(100), -1)
    found = eliminated(rates)
    assert found[-3:] == pytest.approx([1e-16, 1e-8, 1 - 1e-8], rel=1e-12)
    assert found.sum() == pytest.approx(1, rel=1e-15)


@pytest.mark.parametrize(
    "eliminated", [lambda rates: gth(rates), lambda rates: banded_stationary(ctmc.Generator.from_matrix(rates))]
)
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0]])
def test_elimination_of_a_chain_whose_weights_overflow_in_a_step(eliminated, order):
    """From one state to the next they grow by 1e300."""
    rates = np.diag(np.full(3, 1e150), 1) + np.diag(np.full(3, 1e-150), -1)
    found = eliminated(rates[order][:, order])[order]
    assert found == pytest.approx([0, 0, 1e-300, 1], rel=1e-12, abs=0)


def test_large_chains_that_hide_a_wrong_answer():
    """A slow mode, as large as the defect allows, and a missing well: above 500 states, elimination in a band tells."""
    for kind, what in (
        (fast_pair, "slow part unconverged"),
        (wells, "slow part unconverged"),
        (wells, "region nearly missing"),
    ):
        found = 0
        for seed in range(41, 49):
            rng = np.random.default_rng(seed)
            hard = kind(rng, 900)
            pi = np.array(truth(hard)[0], dtype=float)
            for tolerance in (1e-5, 1e-10):
                answers = dict(
                    wrong_answers(hard, pi / pi.sum(), [np.arange(900)], np.empty(0, dtype=int), tolerance, rng)
                )
                proof = certify(Stationary(hard.model, tolerance), Outcome(answers[what]))
                found += "do not balance" in proof.reason and proof.defect <= tolerance
                assert (
                    proof.status is not Status.CONVERGED or np.abs(answers[what] - pi).sum() <= 1.001 * tolerance**0.5
                )
        assert found, what


def test_an_interval_where_sparse_elimination_is_singular():
    """A wrong answer holds a state for the likeliest that is hardly ever reached, and SuperLU meets a zero."""
    hard, likeliest = hard_chain(128, tree, 7), 5
    inside = np.delete(np.arange(7), likeliest)
    q = hard.model.to_scipy().toarray()[np.ix_(inside, inside)]
    with pytest.raises(RuntimeError, match="singular"):
        splu(csc_array(q))
    with exact.precise():
        h = exact.solved(exact.generator(hard.matrix.toarray())[np.ix_(inside, inside)], exact.decimals(-np.ones(6)))[
            :, 0
        ]
        pi = exact.stationary(hard.begin, hard.end, hard.rates, 7)
        true = sum(k * p for k, p in enumerate(pi))
    found = poisson_elimination(hard.model, likeliest)(-np.ones(7))
    assert found[inside] == pytest.approx(h.astype(float), rel=1e-9)
    problem = Stationary(hard.model.with_reward("cost", np.arange(7.0)))
    wrong = ctmc.Solution(problem, np.eye(7)[likeliest], Status.INACCURATE, "wrong.", 1.0, np.empty(0), 0.0, 0, "none")
    interval = prove_intervals(wrong, ["cost"])["cost"]
    assert Decimal(interval.low) <= true <= Decimal(interval.high)


def test_relative_bounds_of_passage_times_hold_relative_to_the_exact_ones():
    """All times too long by a thousandth, as elimination tells: relative to the exact ones the error is 1e-3, and no less."""
    rates = np.diag(np.ones(4), 1) + np.diag(np.full(4, 2.0), -1)

    class Long:
        solves, needs = (FirstPassage,), ctmc.Generator

        def run(self, problem, trace):
            return Outcome(make_solver("absorption_elimination").run(problem, trace).value * 1.001)

    problem = FirstPassage(ctmc.Generator.from_matrix(rates), lambda states: states[:, 0] == 4, None, moments=1)
    found = ctmc.solve(problem, Long(), check=False)
    assert found.relative_error_bound[0] >= 1e-3 * (1 - 1e-12)
