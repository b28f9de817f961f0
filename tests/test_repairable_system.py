"""repairable_system against its events, its product form and times to failure found in other ways."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from gallery_examples import SYSTEM, brute_force, check_rates, stationary

import ctmc
from builders.repairable_system import repairable_system


def repair_events(design, repairmen, order):
    failures, repairs, counts, _ = design.values()
    crew = Fraction(repairmen)

    def events(state):
        left = crew
        for i, failed in enumerate(state):
            after = list(state)
            if failed < counts[i]:
                after[i] += 1
                yield tuple(after), (counts[i] - failed) * failures[i]
            if order == "priority":
                men = min(left, failed)
                left -= men
            else:
                men = Fraction(failed * min(repairmen, sum(state)), sum(state)) if failed else 0
            after = list(state)
            if men:
                after[i] -= 1
                yield tuple(after), float(men) * repairs[i]

    return events


@pytest.mark.parametrize("order", ["shared", "priority"])
@pytest.mark.parametrize("repairmen", [1, 2, 4, 6])
def test_repairable_system_against_its_events(order, repairmen):
    model = repairable_system(**SYSTEM, repairmen=repairmen, order=order)
    states = list(itertools.product(range(3), range(4), range(2)))
    check_rates(model, states, repair_events(SYSTEM, repairmen, order))
    solution = stationary(model)
    pi, rates = solution.value, brute_force(states, repair_events(SYSTEM, repairmen, order))
    works = np.array([state[0] <= 1 and state[1] <= 1 and state[2] == 0 for state in states])
    found = solution.measures()
    often = pi[works] @ rates[np.ix_(works, ~works)].sum(axis=1)
    assert found["unavailability"] == pytest.approx(pi[~works].sum(), rel=1e-12)
    assert found["system_failure_rate"] == pytest.approx(often, rel=1e-12)
    assert found["mean_up_time"] == pytest.approx(pi[works].sum() / often, rel=1e-12)
    assert found["mean_down_time"] == pytest.approx(pi[~works].sum() / often, rel=1e-12)
    np.testing.assert_allclose(found["failed"], pi @ states, rtol=1e-12)
    # in the long run every type fails as often as it is repaired
    repaired = found["repairing"] * SYSTEM["repair_rates"]
    np.testing.assert_allclose(repaired, (SYSTEM["components"] - found["failed"]) * SYSTEM["failure_rates"], rtol=1e-12)


def test_independent_components_have_product_form():
    """Ten decades of rates: with nobody waiting for repair each type is binomial, to the last digits of 1e-24."""
    rates = {"failure_rates": [1e-9, 1e-3, 1e-5], "repair_rates": [1e2, 0.5, 1e-4], "components": [2, 3, 2]}
    known = np.ones(1)
    for failure, repair, count in zip(*rates.values(), strict=True):
        share = failure / (failure + repair)
        known = np.multiply.outer(
            known, [math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count + 1)]
        ).ravel()
    for order in ("shared", "priority"):
        solution = stationary(repairable_system(**rates, order=order))
        np.testing.assert_allclose(solution.value, known, rtol=1e-12)
        np.testing.assert_allclose(solution.measures()["repairing"], solution.measures()["failed"], rtol=1e-13)


def mean_time_up(births, deaths):
    """Mean time of a birth-death chain from 0 to the top, in exact arithmetic: one step up after the other."""
    step = total = Fraction(0)
    for up, down in zip(births, [0, *deaths], strict=True):
        step = (1 + down * step) / up
        total += step
    return total


@pytest.mark.parametrize(
    ("components", "needed", "repairmen", "failure", "repair"),
    [(1, 1, 1, 1e-9, 1e2), (2, 1, 1, 1e-9, 1e2), (5, 2, 2, 1e-4, 30.0), (6, 6, 1, 0.3, 1.0), (4, 1, 9, 1e-3, 1e2)],
)
def test_mean_time_to_failure(components, needed, repairmen, failure, repair):
    model = repairable_system([failure], [repair], components, needed, repairmen)
    down = components - needed + 1
    births = [(components - k) * Fraction(failure) for k in range(down)]
    deaths = [min(k, repairmen) * Fraction(repair) for k in range(1, down)]
    problem = ctmc.FirstPassage(model, "available == 0", initial=model.initial)
    found = ctmc.solve(problem, "absorption_elimination")
    assert found.mean == pytest.approx(float(mean_time_up(births, deaths)), rel=1e-12)


def test_priority_hides_the_later_types():
    """With preemption the first type does not feel the others; where the crew is shared it does."""
    rates = {"failure_rates": [0.2, 0.5, 0.1], "repair_rates": [1.0, 0.8, 2.0], "components": [3, 2, 2], "repairmen": 2}
    alone = stationary(repairable_system([0.2], [1.0], 3, repairmen=2)).value
    first = {
        order: stationary(repairable_system(**rates, order=order)).marginal("failed", 0)
        for order in ("priority", "shared")
    }
    np.testing.assert_allclose(first["priority"], alone, rtol=1e-12)
    assert np.abs(first["shared"] - alone).max() > 0.01


def test_sensitivity_of_one_component():
    """Unavailability is f / (f + r), so its derivatives are r / (f + r)^2 and - f / (f + r)^2."""
    failure, repair = 1e-3, 0.5
    found = ctmc.sensitivity(stationary(repairable_system([failure], [repair])), "unavailable").values
    known = np.array([repair, -failure]) / (failure + repair) ** 2
    assert list(found) == ["failure_rates[0]", "repair_rates[0]"]
    np.testing.assert_allclose(list(found.values()), known, rtol=1e-9)
