"""Random hard chains: no wrong answer is certified, and no bound is below the true error.

CTMC_CHAINS gives another number of chains, for a release; with -s, what was tried is told by kind.
"""

import os
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest

import ctmc
import exact_chains as exact
from ctmc.certificate import certify
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from hard_bounds import bounds
from hard_chains import hard_chain, wrong_answers

CHAINS = int(os.environ.get("CTMC_CHAINS", "200"))
PARTS = 8


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


SOLVERS = ("aggregation", "anderson", "arnoldi", "bicgstab", "gauss_seidel", "gmres", "gth", "power_iteration", "sparse_lu")


def solved(hard, tolerance, rng):
    """What a solver of the registry claims, under limits that it may not get along with."""
    name = str(rng.choice(SOLVERS if hard.size <= 300 else SOLVERS[:-2]))
    found = ctmc.solve(Stationary(hard.model, tolerance, hard.initial), name, time_limit=2.0, check=False)
    return name, found.value, found.status is Status.CONVERGED


@pytest.mark.needs_compilation
@pytest.mark.parametrize("part", range(PARTS))
def test_no_wrong_answer_is_certified_and_no_bound_is_below_the_error(part):
    """CONVERGED promises an error of at most sqrt(tolerance) in L1 where elimination is cheap, as it is for all chains here."""
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
    print(f"{sum(checked.values()):,} bounds, {len(below)} below the error: {below}; right answers refused: {+refused_right}")
    assert not false
    assert not below
    assert sum(refused_right.values()) == 0
    assert sum(certified.values()) > sum(chains.values())  # the certificate is no wall
