"""Numbers behind the figures of a comparison, against examples worked out by hand and against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from ctmc.comparison.profiles import (
    TARGETS,
    costs,
    performance_profile,
    problems,
    quantiles,
    targets_reached,
    work_until,
)
from ctmc.comparison.runs import ComparedModel, Comparison, Run
from ctmc.comparison.trends import growth, trade_off
from ctmc.errors import StudyError
from ctmc.solution import HISTORY


def run(model, solver, products=None, *, tolerance=1e-8, status="CONVERGED", iterations=5, **more):
    return Run(
        model, solver, tolerance, status=status, products=products, iterations=iterations,
        seconds=() if products is None else (products / 10,), **more,
    )  # fmt: skip


def failed(model, solver, status="ITERATION_LIMIT", **more):
    return run(model, solver, 7, status=status, **more)


def compared(*runs, states=None, families=None):
    names = dict.fromkeys(one.model for one in runs)
    states, families = states or {}, families or {}
    models = {name: ComparedModel(name, family=families.get(name, ""), states=states.get(name)) for name in names}
    return Comparison("Some solvers", "stationary", models, runs)


def history(*records):
    return np.array([(k, products / 10, products, defect) for k, (products, defect) in enumerate(records)], HISTORY)


HAND = compared(
    run("A", "x", 10), run("A", "y", 20), failed("A", "z"),
    run("B", "x", 30), run("B", "y", 15), run("B", "z", 60),
    failed("C", "x"), failed("C", "y", "TIME_LIMIT"), failed("C", "z", "REFUSED"),
)  # fmt: skip
"""Ratios: x 1 on A and 2 on B, y 2 on A and 1 on B, z 4 on B; nobody solves C."""


@pytest.mark.parametrize("measure", ["products", "seconds"])
def test_performance_profile_by_hand(measure):
    found = {steps.label: steps for steps in performance_profile(HAND, measure)}
    assert {label: steps.values.tolist() for label, steps in found.items()} == {"x": [1, 2], "y": [1, 2], "z": [4]}
    assert [found["x"].share(at) for at in (0.9, 1, 1.9, 2, 1e9)] == [0, 1 / 3, 1 / 3, 2 / 3, 2 / 3]
    assert found["z"].share(3.999) == 0
    assert found["z"].share(4) == 1 / 3


def test_quantiles_by_hand():
    found = {steps.label: steps.values.tolist() for steps in quantiles(HAND, "products")}
    assert found == {"x": [10, 30], "y": [15, 20], "z": [60]}


def test_warm_starts_are_solvers_of_their_own_and_tolerances_problems_of_their_own():
    found = compared(run("A", "x", 10), run("A", "x", 5, start="warm"), run("A", "x", 30, tolerance=1e-12))
    assert problems(found) == (("A", 1e-8), ("A", 1e-12))
    table = costs(found)
    assert table.labels == ("x", "x (warm)")
    assert table.values.tolist() == [[10, 5], [30, math.inf]]


def test_what_was_not_tried_is_no_failure():
    found = compared(
        run("A", "x", 10), failed("A", "gone", "NOT_INSTALLED"),
        run("B", "x", 10), failed("B", "y", "NOT_RUN"),
        failed("C", "x", "NO_MODEL"),
    )  # fmt: skip
    table = costs(found)
    assert table.problems == (("A", 1e-8),)
    assert table.labels == ("x",)


def test_products_leave_out_direct_methods_and_only_those():
    found = compared(run("A", "gth", 1, iterations=0), run("A", "cyclic", 0), run("A", "x", 10), failed("A", "never"))
    assert costs(found, "products").labels == ("x", "never")
    assert costs(found, "products").left_out == ("gth", "cyclic")
    assert costs(found, "seconds").labels == ("gth", "cyclic", "x", "never")


def test_a_cost_of_nothing_is_a_ratio_of_one():
    found = compared(run("A", "x", 10, allocated_bytes=0), run("A", "y", 10, allocated_bytes=4096))
    assert [steps.values.tolist() for steps in performance_profile(found, "memory")] == [[1], []]


def test_profiles_against_brute_force():
    random = np.random.default_rng(1907)
    paid = random.integers(1, 50, (9, 5)).astype(float)
    paid[random.random(paid.shape) < 0.3] = math.inf
    paid[4] = math.inf
    found = compared(
        *(
            run(f"m{i}", f"s{j}", int(value)) if value < math.inf else failed(f"m{i}", f"s{j}")
            for (i, j), value in np.ndenumerate(paid)
        )
    )
    profile = performance_profile(found, "products")
    for tau in (1, 1.25, 2, 3.7, 100):
        for j, steps in enumerate(profile):
            solved = [i for i in range(9) if paid[i, j] < math.inf and paid[i, j] <= tau * min(paid[i])]
            assert steps.share(tau) == pytest.approx(len(solved) / 9)


# ---- targets


def test_targets_by_hand():
    """Reached in the history at 10, 20 and 40 products; 1e-8 first by the certified defect at 41."""
    records = history((0, 1.0), (10, 1e-4), (20, 2e-6), (30, math.nan), (40, 9e-8))
    one = run("A", "x", 41, defect=5e-9, history=records)
    (steps,) = targets_reached(compared(one), targets=(1e-4, 1e-5, 1e-7, 1e-8, 1e-10))
    assert steps.values.tolist() == [10, 20, 40, 41]  # 1e-10 is below the tolerance and no target
    assert steps.total == 4


def test_targets_take_the_smallest_tolerance_of_each_model():
    found = compared(
        run("A", "x", 5, defect=1e-9, history=history((5, 1e-9))),
        run("A", "x", 9, tolerance=1e-12, defect=1e-13, history=history((6, 1e-9), (9, 1e-13))),
        failed("B", "x", history=history((3, 1e-5))),
    )
    (steps,) = targets_reached(found)
    assert steps.total == 9 + 5  # 1e-4 .. 1e-12 on A, 1e-4 .. 1e-8 on B
    assert steps.values.tolist() == [3, 3, 6, 6, 6, 6, 6, 6, 9, 9, 9]


@pytest.mark.parametrize("status", ["INACCURATE", "NOT_FINITE"])
def test_an_answer_that_does_not_stand_up_reaches_no_target(status):
    one = failed("A", "x", status, defect=1e-15, history=history((1, 1e-12)))
    assert work_until(one, 1e-4) == math.inf
    assert trade_off(compared(one), "A", "products", "defect") == ()


def test_the_defect_of_a_run_that_did_not_converge_counts_by_its_history_only():
    one = failed("A", "x", defect=1e-9, history=history((1, 1e-5)))
    assert work_until(one, 1e-5) == 1
    assert work_until(one, 1e-6) == math.inf


def test_every_power_of_ten_is_a_target_of_its_tolerance():
    """1e-12 as a power, as a decimal and divided differ in the last bit."""
    for tolerance in (1e-12, 1e-6 * 1e-6, np.nextafter(1e-12, 1), np.nextafter(1e-12, 0)):
        one = run("A", "x", 5, tolerance=tolerance, defect=tolerance, history=history())
        (steps,) = targets_reached(compared(one))
        assert (len(steps.values), steps.total) == (len(TARGETS), len(TARGETS))


# ---- trade-offs and growth


def test_the_front_against_brute_force():
    random = np.random.default_rng(1921)
    runs = [
        run("A", f"s{k}", int(x), allocated_bytes=int(y)) for k, (x, y) in enumerate(random.integers(1, 12, (60, 2)))
    ]
    found = trade_off(
        compared(*runs, failed("A", "no"), run("B", "s0", 1, allocated_bytes=1)), "A", "products", "memory"
    )
    assert len(found) == 60
    for point in found:
        beaten = any(
            other.x <= point.x and other.y <= point.y and (other.x < point.x or other.y < point.y) for other in found
        )
        assert point.best == (not beaten)
    assert 1 < sum(point.best for point in found) < 30


def test_runs_that_ended_early_count_against_the_defect_only():
    found = compared(failed("A", "x", defect=1e-3, allocated_bytes=5))
    (point,) = trade_off(found, "A", "seconds", "defect")
    assert (point.x, point.y, point.best) == (0.7, 1e-3, True)
    assert trade_off(found, "A", "seconds", "memory") == ()


def test_growth_against_a_library():
    random = np.random.default_rng(1941)
    states = {f"m{k}": int(n) for k, n in enumerate(random.integers(10, 10**6, 7))}
    runs = [run(name, "x", int(3 * n**0.4 * math.exp(random.normal(0, 0.3))) + 1) for name, n in states.items()]
    (one,) = growth(compared(*runs, states=states), "products")
    fit = scipy.stats.linregress(
        np.log([states[one.model] for one in runs]), np.log([float(one.products) for one in runs])
    )
    assert one.exponent == pytest.approx(fit.slope, rel=1e-10)
    assert one.standard_error == pytest.approx(fit.stderr, rel=1e-8)
    ((ends, fitted),) = one.lines
    assert ends == pytest.approx((min(states.values()), max(states.values())))
    assert fitted == pytest.approx([math.exp(fit.intercept) * end**fit.slope for end in ends], rel=1e-9)
    assert (np.diff(one.states) >= 0).all()


def test_growth_within_families_against_regression_on_a_column_for_each():
    """A state of one family may cost a thousand times as much as one of another; singles of a size add nothing."""
    random = np.random.default_rng(1958)
    states = {f"{family}{k}": int(random.integers(10, 10**5)) for family in "qrs" for k in range(4)} | {"t0": 77}
    dear = {"q": 1.0, "r": 1e3, "s": 1e-2, "t": 5.0}
    seconds = {name: dear[name[0]] * n**1.3 * math.exp(random.normal(0, 0.2)) for name, n in states.items()}
    runs = [Run(name, "x", 1e-8, status="CONVERGED", seconds=(paid,)) for name, paid in seconds.items()]
    (one,) = growth(compared(*runs, states=states, families={name: name[0] for name in states}), "seconds")
    design = [[math.log(n), *(float(name[0] == family) for family in dear)] for name, n in states.items()]
    fit, squares = np.linalg.lstsq(np.array(design), np.log(list(seconds.values())), rcond=None)[:2]
    inverse = np.linalg.inv(np.array(design).T @ np.array(design))
    assert one.exponent == pytest.approx(fit[0], rel=1e-9)
    assert one.standard_error == pytest.approx(math.sqrt(squares[0] / (13 - 5) * inverse[0, 0]), rel=1e-8)
    for (ends, fitted), factor in zip(one.lines, np.exp(fit[1:4]), strict=True):
        assert fitted == pytest.approx([factor * end ** fit[0] for end in ends], rel=1e-8)


def test_growth_says_what_it_cannot_tell():
    runs = (run("A", "x", 10), run("B", "x", 40), run("A", "y", 3), run("C", "x", 1), failed("B", "y"))
    found = {one.label: one for one in growth(compared(*runs, states={"A": 10, "B": 100}), "products")}
    assert found["x"].exponent == pytest.approx(math.log10(4))  # C has no number of states
    assert found["x"].standard_error is None
    assert found["y"].exponent is None


def test_growth_takes_one_tolerance():
    runs = (run("A", "x", 10), run("A", "x", 30, tolerance=1e-12))
    assert growth(compared(*runs, states={"A": 10}), "products")[0].values.tolist() == [30]
    assert growth(compared(*runs, states={"A": 10}), "products", 1e-8)[0].values.tolist() == [10]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: costs(HAND, "hours"), "measure is 'hours'; allowed are products, seconds, memory"),
        (lambda: targets_reached(HAND, "memory"), "measure is 'memory'; allowed are products, seconds"),
        (lambda: trade_off(HAND, "Z"), "no run on the model 'Z'"),
        (lambda: trade_off(HAND, "A", "seconds", "beauty"), "measure is 'beauty'; allowed are defect"),
        (lambda: growth(HAND, "seconds", 1e-3), "tolerance is 0.001; in the comparison are 1e-08"),
    ],
)
def test_wrong_requests(call, sentence):
    with pytest.raises(StudyError, match=sentence):
        call()
