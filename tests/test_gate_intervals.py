"""Confidence intervals of simulations: of 95 % intervals, as many cover the exact mean as they say, kind by kind.

CTMC_INTERVALS gives another number of intervals of each kind, for a release; with -s, the shares are told.
"""

import os

import numpy as np
import pytest
from scipy.stats import binom

import ctmc

INTERVALS = int(os.environ.get("CTMC_INTERVALS", "100"))
REPLICATIONS = 100
pytestmark = pytest.mark.timeout(300 + INTERVALS)


def queue():
    """M/M/1/6 at load 1/2, begun empty."""
    return ctmc.build("birth_death", births=[1.0] * 6, deaths=[2.0] * 6).replace(initial=None).with_reward(
        "full", np.eye(7)[6]
    ).with_reward("busy", np.arange(7.0) > 0)  # fmt: skip


def exact_at(chain, name, time):
    return float(ctmc.solve(ctmc.Transient(chain, (0,), [time], 1e-12, name)).value[0])


def exact_until(chain, name, time):
    return float(np.ravel(ctmc.solve(ctmc.AccumulatedReward(chain, name, (0,), [time], 1, 1e-12)).value)[0])


def _simulated(chain, name, accumulated, seed, replications):
    found = ctmc.simulate(chain, rewards=[name], initial=(0,), times=[5.0], replications=replications, seed=seed)
    low, high = found.trajectories[f"accumulated_{name}" if accumulated else name].band
    return float(low[0]), float(high[0])


def _at(name, accumulated=False, replications=REPLICATIONS):
    chain = queue()
    exact = (exact_until if accumulated else exact_at)(chain, name, 5.0)
    return exact, lambda seed: _simulated(chain, name, accumulated, seed, replications)


def _passage(target, exact):
    """The mean time from 0 to a state is u_1 + .. + u_k with u_k = 1 + 2 u_{k-1}: 1, 4, 11."""
    chain = queue()
    return exact, lambda seed: ctmc.simulate(
        chain, target=f"jobs >= {target}", initial=(0,), horizon=1e5, replications=REPLICATIONS, seed=seed
    ).interval("first_passage_time")


def _reached(replications=REPLICATIONS):
    chain = queue()
    exact = ctmc.reach_probability(chain, "jobs >= 3", initial=(0,), interval=(0, 8)).value
    return exact, lambda seed: ctmc.simulate(
        chain, target="jobs >= 3", initial=(0,), horizon=8, replications=replications, seed=seed
    ).interval("reached")


def _discounted():
    chain = queue()
    exact = float(ctmc.solve(ctmc.DiscountedReward(chain, "jobs", discount=0.5, initial=(0,), moments=1)).value[0])
    return exact, lambda seed: ctmc.simulate(
        chain, rewards=["jobs"], initial=(0,), horizon=60, discount=0.5, replications=REPLICATIONS, seed=seed
    ).interval("discounted_jobs")  # fmt: skip


SERVERS = {"service_rates": [3, 2, 1], "arrival_rate": 3, "choices": 2, "capacity": 5}


def _supermarket(accumulated):
    chain = ctmc.build("supermarket", **SERVERS).replace(initial=None)
    problem = ctmc.AccumulatedReward(chain, "jobs", (0, 0, 0), [2.0], 1, 1e-12) if accumulated else ctmc.Transient(
        chain, (0, 0, 0), [2.0], 1e-12, "jobs"
    )  # fmt: skip
    exact = float(np.ravel(ctmc.solve(problem).value)[0])

    def interval(seed):
        found = ctmc.simulate("supermarket", **SERVERS, times=[2.0], replications=REPLICATIONS, seed=seed)
        low, high = found.trajectories["accumulated_jobs" if accumulated else "jobs"].band
        return float(low[0]), float(high[0])

    return exact, interval


TASKS = {"service_rates": [5, 2, 1], "arrival_rate": 1, "tasks": 3, "thresholds": [1, 2, 8]}


def _fork_join(name):
    """Averages of 100 jobs after 100 others, by when nothing is left of the empty start; exact in the long run."""
    exact = ctmc.solve(ctmc.Stationary(ctmc.build("fork_join", **TASKS))).measures()[name]
    return exact, lambda seed: ctmc.simulate(
        "fork_join", **TASKS, jobs=100, warm_up=100, replications=REPLICATIONS, seed=seed
    ).interval(name)


KINDS = {
    "jobs at a time": lambda: _at("jobs"),
    "busy at a time": lambda: _at("busy"),
    "jobs up to a time": lambda: _at("jobs", accumulated=True),
    "busy up to a time": lambda: _at("busy", accumulated=True),
    "first passage, near": lambda: _passage(1, 1.0),
    "first passage, far": lambda: _passage(3, 11.0),
    "reached in time": lambda: _reached(),
    "discounted": _discounted,
    "supermarket, jobs at a time": lambda: _supermarket(False),
    "supermarket, jobs up to a time": lambda: _supermarket(True),
    "fork-join, response time": lambda: _fork_join("response_time"),
}


@pytest.mark.parametrize("name", KINDS)
def test_intervals_cover_as_often_as_they_say(name):
    """Between 94 and 96 % of 10,000; of fewer, what chance makes of that but for one time in 20 million."""
    exact, interval = KINDS[name]()
    inside = 0
    for seed in range(90_000, 90_000 + INTERVALS):
        low, high = interval(seed)
        inside += low <= exact <= high
    print(f"{name}: {100 * inside / INTERVALS:.2f} % of {INTERVALS:,} intervals")
    if INTERVALS >= 10_000:
        assert 0.94 <= inside / INTERVALS <= 0.96
    else:
        assert binom.ppf(5e-8, INTERVALS, 0.94) <= inside <= binom.isf(5e-8, INTERVALS, 0.96)


def test_too_few_replications_for_skewed_ones_are_noted():
    """A queue is rarely full by time 5: the few runs that see it make the mean, and 100 cannot tell it; nor where none does."""
    chain, exact = queue(), exact_until(queue(), "full", 5.0)
    inside, noted = 0, 0
    for seed in range(91_000, 91_000 + INTERVALS):
        found = ctmc.simulate(chain, rewards=["full"], initial=(0,), times=[5.0], replications=100, seed=seed)
        low, high = found.trajectories["accumulated_full"].band
        inside += float(low[0]) <= exact <= float(high[0])
        noted += any(
            "accumulated_full" in note and ("few for that" in note or "the same" in note) for note in found.notes
        )
    print(
        f"rare: {100 * inside / INTERVALS:.2f} % of {INTERVALS:,} intervals, {100 * noted / INTERVALS:.2f} % with a note"
    )
    assert noted > 0.95 * INTERVALS
    many = ctmc.simulate(chain, rewards=["jobs"], initial=(0,), times=[5.0], replications=100, seed=91_000)
    assert not many.notes


def test_batch_means():
    """Batches of one run are not independent, so no share is promised; long ones come near to it."""
    exact = float(ctmc.solve(ctmc.Stationary(ctmc.build("supermarket", **SERVERS))).measures()["jobs"])
    inside = 0
    for seed in range(92_000, 92_000 + INTERVALS):
        found = ctmc.simulate("supermarket", **SERVERS, horizon=2_100, warm_up=100, batches=20, seed=seed)
        low, high = found.interval("jobs")
        inside += low <= exact <= high
    print(f"batch means, 20 of time 100: {100 * inside / INTERVALS:.2f} % of {INTERVALS:,} intervals")
    assert inside >= binom.ppf(5e-8, INTERVALS, 0.9)
