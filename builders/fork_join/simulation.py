"""Event-driven simulation of the fork-join queue, not truncated, with every job followed from arrival to its last task.

It shares the parameters with the model and nothing else: tasks stand one by one in a queue, each belongs to a job, and
response time, waiting time and service span of a job are differences of the times at which its events happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from builders.fork_join.rules import checked_rules
from ctmc.model.memory import require_memory
from ctmc.model.parameters import LARGEST_COUNT, whole_number
from ctmc.simulation import Estimate, Monitor

_PERCENTILES = (50, 95, 99)
_TIMES = ("response_time", "waiting_time", "service_span")
_AVERAGES = ("waiting_jobs", "waiting_tasks", "busy_servers")


def simulate(
    *,
    service_rates: Sequence[float],
    arrival_rate: float,
    tasks: int,
    thresholds: Sequence[int] | None = None,
    jobs: int = 100_000,
    replications: int = 10,
    warm_up: int | None = None,
    seed: int,
    monitor: Monitor | None = None,
) -> Estimate:
    """Simulate the fork-join queue in independent replications.

    Each replication starts empty and runs until all of its counted jobs are done; later jobs keep arriving until then.  For
    example ``ctmc simulate fork_join --service-rates 5,2,1 --arrival-rate 1 --tasks 3 --thresholds 1,2,8 --seed 7``.

    Parameters
    ----------
    service_rates, arrival_rate, tasks, thresholds
        As in `fork_join`.
    jobs : int
        Jobs counted in each replication.
    replications : int
        At least 2; the confidence intervals come from the differences between them.
    warm_up : int, optional
        Jobs of each replication that arrive before those that count; by default a tenth of `jobs`.
    seed : int
        Of the sequence from which the generators of the replications are spawned.
    monitor : callable, optional
        ``monitor(done, replications)`` after each replication; returning true ends the simulation with those done.

    Returns
    -------
    Estimate
        Means of ``response_time``, ``waiting_time``, ``service_span`` and their percentiles such as ``response_time_p95``, and
        averages over time of ``waiting_jobs``, ``waiting_tasks``, ``busy_servers``.

    Raises
    ------
    ModelError, UnstableError
        For parameters that `fork_join` does not take, or numbers that are not whole.

    Examples
    --------
    >>> found = simulate(service_rates=[5, 2, 1], arrival_rate=1, tasks=3, thresholds=[1, 2, 8], jobs=20_000, seed=20250611)
    >>> low, high = found.interval("response_time")
    >>> low < 0.837961938604 < high, high - low < 0.02
    (True, True)
    """
    rules = checked_rules(service_rates, arrival_rate, tasks, thresholds)
    counted = whole_number("jobs", jobs, 100)
    repeats = whole_number("replications", replications, 2)
    before = counted // 10 if warm_up is None else whole_number("warm_up", warm_up, 0)
    number = whole_number("seed", seed, 0, LARGEST_COUNT)
    require_memory("a replication", 8 * 6 * counted)
    rows: list[dict[str, float]] = []
    for done, child in enumerate(np.random.SeedSequence(number).spawn(repeats), start=1):
        times, averages = _replication(
            rules.rates,
            rules.arrival_rate,
            rules.tasks,
            np.array(rules.thresholds, dtype=np.int64),
            before,
            counted,
            np.random.default_rng(child),
        )
        row = dict(zip(_TIMES, times.mean(axis=1).tolist(), strict=True))
        for name, sample in zip(_TIMES, times, strict=True):
            found = np.percentile(sample, _PERCENTILES)
            row |= {f"{name}_p{level}": float(value) for level, value in zip(_PERCENTILES, found, strict=True)}
        row |= dict(zip(_AVERAGES, averages.tolist(), strict=True))
        rows.append(row)
        if monitor is not None and monitor(done, repeats) and done >= 2:
            break
    return Estimate.from_samples(
        {name: np.array([row[name] for row in rows]) for name in rows[0]},
        title="Simulation of the fork-join queue",
        run=f"{counted:,} jobs",
        replications=len(rows),
        warm_up=before,
        seed=number,
    )


@numba.njit(cache=True)
def _replication(
    rates: Any, arrival_rate: float, tasks: int, thresholds: Any, warm_up: int, counted: int, rng: Any
) -> tuple[Any, Any]:
    """Run one replication; return the times of the counted jobs, shape (3, counted), and averages over time, shape (3,).

    The waiting tasks are those of jobs `front`, front + 1, .., of which `front` has `rest` left, so the queue needs no list;
    what is known of a job stands in a ring that grows when a job comes around to one that is not done.
    """
    servers = rates.size
    serves = np.full(servers, -1, np.int64)  # the job of which a server has a task, or -1
    room = 1024
    arrived, began, missing = np.zeros(room), np.zeros(room), np.zeros(room, np.int64)
    times, averages = np.zeros((3, counted)), np.zeros(3)
    clock, begin, end, length, busy = 0.0, 0.0, 0.0, 0, 0
    front, rest, jobs, done = 0, tasks, 0, 0
    last = warm_up + counted
    total = arrival_rate
    while done < counted:
        step = rng.standard_exponential() / total
        if warm_up <= jobs < last:  # averages over the time in which counted jobs arrive
            waiting_jobs = length // tasks
            averages[0] += step * waiting_jobs
            averages[1] += step * length
            averages[2] += step * busy
        clock += step
        chosen = rng.random() * total - arrival_rate
        entering, free = 0, -1
        if chosen < 0:
            if jobs == warm_up:
                begin = clock
            if jobs == last:
                end = clock
            if missing[jobs % room] > 0:
                # double the ring; every job of the last `room` ones moves to its new place
                old, room = room, 2 * room
                more_arrived, more_began, more_missing = np.zeros(room), np.zeros(room), np.zeros(room, np.int64)
                for job in range(max(0, jobs - old), jobs):
                    more_arrived[job % room] = arrived[job % old]
                    more_began[job % room] = began[job % old]
                    more_missing[job % room] = missing[job % old]
                arrived, began, missing = more_arrived, more_began, more_missing
            arrived[jobs % room] = clock
            missing[jobs % room] = tasks
            jobs += 1
            entering = tasks
        else:
            server = 0
            for k in range(servers):
                if serves[k] >= 0:
                    server = k
                    chosen -= rates[k]
                    if chosen < 0:
                        break
            place = serves[server] % room
            missing[place] -= 1
            if missing[place] == 0 and warm_up <= serves[server] < last:
                row = serves[server] - warm_up
                times[0, row] = clock - arrived[place]
                times[1, row] = began[place] - arrived[place]
                times[2, row] = clock - began[place]
                done += 1
            serves[server] = -1
            busy -= 1
            free = server
            entering = 0
        while True:
            if (
                free < 0
            ):  # tasks enter one by one; the front one goes to the fastest idle server if the queue is long enough
                if entering == 0:
                    break
                entering -= 1
                length += 1
                target = -1
                for k in range(servers):
                    if serves[k] < 0:
                        target = k
                        break
            else:  # the server that has just completed a task
                target = free
            if target >= 0 and length > 0 and length >= thresholds[target]:
                place = front % room
                if rest == tasks:
                    began[place] = clock
                serves[target] = front
                length -= 1
                busy += 1
                rest -= 1
                if rest == 0:
                    front += 1
                    rest = tasks
            if free >= 0:
                break
        total = arrival_rate
        for k in range(servers):
            if serves[k] >= 0:
                total += rates[k]
    return times, averages / ((end if jobs > last else clock) - begin)
