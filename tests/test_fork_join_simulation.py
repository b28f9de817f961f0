"""Simulation of the fork-join queue: confidence intervals against exact values, closed forms, seeds, bad input."""

import numpy as np
import pytest

import ctmc
from builders.fork_join import fork_join
from builders.fork_join.simulation import simulate

CASES = [
    ({"service_rates": [5, 2, 1], "arrival_rate": 1.0, "tasks": 3, "thresholds": [1, 2, 8]}, 7201),
    ({"service_rates": [5, 2, 1], "arrival_rate": 2.0, "tasks": 3, "thresholds": [1, 2, 3]}, 7202),
    ({"service_rates": [5, 2, 1], "arrival_rate": 1.0, "tasks": 1, "thresholds": [1, 2, 8]}, 7203),
    ({"service_rates": [3, 1], "arrival_rate": 1.0, "tasks": 2, "thresholds": [1, 3]}, 7204),
    ({"service_rates": [5, 2, 1, 0.5], "arrival_rate": 1.0, "tasks": 3, "thresholds": [1, 2, 5, 9]}, 7205),
    ({"service_rates": [2, 2, 2, 2, 2], "arrival_rate": 3.2, "tasks": 2, "thresholds": None}, 7206),
]


@pytest.mark.parametrize(("parameters", "seed"), CASES, ids=[str(seed) for _, seed in CASES])
def test_confidence_intervals_contain_the_exact_values(parameters, seed):
    found = simulate(**parameters, jobs=60_000, replications=12, seed=seed)
    solution = ctmc.solve(ctmc.Stationary(fork_join(**parameters)))
    exact = solution.measures()
    for name in ("response_time", "service_span"):
        law = solution.distribution(name)
        exact |= {f"{name}_p{level}": law.quantile(level / 100) for level in (50, 95, 99)}
    assert found.half_widths["response_time"] < 0.02 * exact["response_time"]
    low, high = found.interval("response_time")
    assert low < exact["response_time"] < high
    # the others depend on each other strongly: a few may lie outside together, but none far
    names = sorted(found.means.keys() & exact.keys())
    assert len(names) == 12
    off = np.array([abs(found.means[name] - exact[name]) / max(found.half_widths[name], 1e-300) for name in names])
    assert np.sum(off > 1) <= 3
    assert off.max() < 2.5


def test_times_of_a_job_add_up():
    found = simulate(**CASES[0][0], jobs=2000, replications=3, seed=7011)
    means = found.means
    assert means["response_time"] == pytest.approx(means["waiting_time"] + means["service_span"], rel=1e-12)
    assert "response_time" in repr(found)


def test_the_same_seed_gives_the_same_numbers_and_another_does_not():
    first, again, other = (simulate(**CASES[0][0], jobs=1000, replications=2, seed=seed) for seed in (7012, 7012, 7013))
    assert first.means == again.means
    assert first.means["response_time"] != other.means["response_time"]


def test_more_jobs_at_once_than_the_ring_holds_at_first():
    # near load 1 thousands of jobs wait; none may be overwritten by a later one
    load = 0.9995
    found = simulate(
        service_rates=[1.0], arrival_rate=load, tasks=1, jobs=200_000, replications=2, warm_up=0, seed=7014
    )
    assert found.means["waiting_jobs"] > 100
    assert found.means["response_time"] == pytest.approx(found.means["waiting_time"] + 1, rel=0.02)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"jobs": 10}, "jobs is 10"),
        ({"replications": 1}, "replications is 1"),
        ({"seed": -1}, "seed is -1"),
        ({"warm_up": 0.5}, "warm_up is 0.5"),
        ({"tasks": 4}, "tasks is 4"),
        ({"thresholds": [2, 2, 2]}, "thresholds starts at 2"),
    ],
)
def test_bad_input(change, sentence):
    with pytest.raises(ctmc.ModelError, match=sentence):
        simulate(**{**CASES[0][0], "seed": 7015, **change})


def test_an_unstable_queue_is_refused():
    with pytest.raises(ctmc.UnstableError):
        simulate(service_rates=[1.0], arrival_rate=1.0, tasks=1, seed=7016)
