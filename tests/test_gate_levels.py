"""Random hard QBDs: no wrong answer over infinitely many levels is certified.

CTMC_CHAINS gives another number of QBDs, for a release; with -s, what was tried is told by kind.
"""

import os
from collections import Counter

import numpy as np
import pytest
from hard_levels import apart, exact_levels, hard_levels, wrong_levels

import ctmc
from ctmc.certificate import certify
from ctmc.model.matrix_geometric import MatrixGeometric
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status

QUEUES = int(os.environ.get("CTMC_CHAINS", "120")) // 4
PARTS = 4
SOLVERS = ("cyclic_reduction", "functional_iteration", "functional_iteration(max_iterations=3000)", "invariant_subspace", "logarithmic_reduction",
           "newton")  # fmt: skip
pytestmark = pytest.mark.timeout(300 + QUEUES)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_wrong_levels_are_certified(part):
    """CONVERGED promises an error of at most sqrt(tolerance) in L1 where elimination is cheap."""
    tried, certified, queues, nearest, false, refused = Counter(), Counter(), Counter(), {}, [], []
    for seed in range(40_000 + part, 40_000 + QUEUES, PARTS):
        rng, hard = np.random.default_rng([seed, 21]), hard_levels(seed)
        truth = exact_levels(hard)
        right = MatrixGeometric(tuple(level.astype(float) for level in truth[0]), truth[1].astype(float))
        right = MatrixGeometric(tuple(level / right.mass for level in right.boundary), right.r)
        problem = Stationary(hard.model, 10.0 ** rng.integers(-12, -3))
        queues[hard.kind] += 1
        proof = certify(problem, Outcome(right))
        # else nothing in float64 is known to be the right answer
        known = max(apart(right, truth), 1e-15 / max(1 - right.decay_rate, 1e-16)) <= 0.1 * problem.tolerance**0.5
        if known and proof.status is not Status.CONVERGED:
            refused.append((seed, hard.kind, 1 - right.decay_rate, proof.reason))
        name = str(rng.choice(SOLVERS))
        found = ctmc.solve(problem, name, check=False)
        answers = [(what, answer, None) for what, answer in wrong_levels(hard, right, problem, rng)]
        for what, answer, converged in [*answers, (name, found.value, found.status is Status.CONVERGED)]:
            tried[hard.kind] += 1
            if converged is None:
                converged = certify(problem, Outcome(answer)).status is Status.CONVERGED
            if converged:
                certified[hard.kind] += 1
                share = apart(answer, truth) / problem.tolerance**0.5
                nearest[hard.kind] = max(nearest.get(hard.kind, 0.0), share)
                if share > 1 + 1e-6:
                    false.append((seed, hard.kind, what, problem.tolerance, share))
    for kind in sorted(queues):
        print(f"{kind} | {queues[kind]:,} | {tried[kind]:,} | {certified[kind]:,} | {nearest.get(kind, 0):.2g}")
    print(f"{sum(tried.values()):,} answers, {sum(certified.values()):,} certified, {len(false)} wrongly: {false}")
    print(f"right answers refused: {refused}")
    assert not false
    assert not refused
    assert sum(certified.values()) > sum(queues.values())  # the certificate is no wall
