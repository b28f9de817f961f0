"""Which thresholds a search may try, and what no thresholds can go below."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from builders.fork_join.rules import checked_rules
from ctmc.errors import ModelError
from ctmc.model.parameters import whole_number
from ctmc.study.design import Design, Point

DEFAULT_MAXIMUM = 12
_LARGEST = 10_000


def threshold_design(parameters: Mapping[str, Any], maximum: int | None = None) -> Design:
    """Return the thresholds 1 = q_1 <= .. <= q_M <= maximum, with lower bounds of the measures.

    Parameters
    ----------
    parameters : mapping
        Of the builder: service_rates, arrival_rate and tasks.
    maximum : int, optional
        Default 12, 1 to 10,000.

    Notes
    -----
    While fewer than Q = q_{k+1} tasks wait only servers 1 .. k take tasks from the queue.  Let Y be the waiting tasks
    and those at servers 1 .. k, and compare it with Z, which grows by d with each arrival, is cut at Q - 1, and falls at the
    rate mu_1 + .. + mu_min(Z, k).  In the same randomness Z <= Y always: Y falls at most at the rate mu_1 + .. +
    mu_min(Y, k) while fewer than Q tasks wait, and an event that leaves the queue to another server, or to more of them,
    leaves at least Q - 1 tasks waiting.  At least Y - k tasks wait, so B >= E[floor((Z - k)^+ / d)], W = B / lambda.  Of a job
    with j tasks left at most j are in service, so V >= sum_{j=1..d} 1 / (mu_1 + .. + mu_j).  Busy servers are fewest where
    the fastest do all they can.

    Examples
    --------
    >>> design = threshold_design({"service_rates": [5, 2, 1], "arrival_rate": 2, "tasks": 3}, 12)
    >>> design.count, [round(design.bounds(point)["response_time"], 6) for point in ((1, 12, 12), (1, 2, 5))]
    (78, [1.235062, 0.467857])
    """
    missing = [name for name in ("service_rates", "arrival_rate", "tasks") if name not in parameters]
    if missing:
        raise ModelError(f"thresholds are optimised for a given queue, but {missing[0]} is missing.")
    rules = checked_rules(parameters["service_rates"], parameters["arrival_rate"], parameters["tasks"], None)
    most = whole_number("maximum", DEFAULT_MAXIMUM if maximum is None else maximum, 1, _LARGEST)
    rates, arrivals, tasks, servers = rules.rates, rules.arrival_rate, rules.tasks, rules.servers
    together = np.cumsum(rates)
    span = math.fsum(1 / together[:tasks])
    work = arrivals * tasks
    # so many servers are busy all the time, where the fastest do all they can
    full = int(np.searchsorted(together, work))
    busy = full + (work - (together[full - 1] if full else 0.0)) / rates[full]

    @cache
    def waiting(k: int, threshold: int) -> float:
        """Return the bound of B that q_{k+1} = threshold gives."""
        size = threshold  # Z = 0 .. threshold - 1
        falls = together[np.minimum(np.arange(1, size), k) - 1]
        pi = np.zeros(size)
        pi[0] = 1.0
        for z in range(1, size):
            # what crosses from below z upwards comes back at the rate falls[z - 1]
            pi[z] = arrivals * pi[max(0, z - tasks) : z].sum() / falls[z - 1]
            if pi[z] > 1e200:
                pi /= pi[z]
        pi /= pi.sum()
        return float(pi @ (np.maximum(np.arange(size) - k, 0) // tasks))

    def bounds(point: Point) -> dict[str, float]:
        jobs = max((waiting(k, point[k]) for k in range(1, servers)), default=0.0)
        wait = jobs / arrivals
        return {
            "waiting_jobs": jobs,
            "waiting_tasks": tasks * jobs,
            "waiting_time": wait,
            "service_span": span,
            "response_time": wait + span,
            "jobs": arrivals * (wait + span),
            "busy_servers": float(busy),
        }

    return Design(
        parameter="thresholds", lower=(1,) * servers, upper=(1, *[most] * (servers - 1)), ordered=True, bounds=bounds
    )
