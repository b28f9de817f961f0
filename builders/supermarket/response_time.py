"""The response time of a job that the supermarket accepts: a mixture of Erlang distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array

import ctmc
from ctmc.errors import ModelError
from ctmc.model.phase_type import PhaseType


def response_time(
    solution: ctmc.Solution,
    joins: Callable[[np.ndarray], np.ndarray],
    service_rates: np.ndarray,
    limits: tuple[int, ...],
) -> PhaseType:
    """Return the distribution of the response time of an accepted job, in the long run.

    Poisson arrivals see time averages, so a job finds the state x and joins server i in proportion to pi(x) x its rate of
    joining.  Service is first come, first served: the job then takes x_i + 1 exponential times at the rate of the server.
    Servers of one rate share their phases.

    Parameters
    ----------
    solution : Solution
        Stationary.
    joins : callable
        Maps states, shape (m, M), to the rates at which jobs join each server, shape (m, M).
    service_rates : ndarray, shape (M,)
        In the order of the coordinates.
    limits : tuple of int, length M
        Capacities.

    Raises
    ------
    ModelError
        If the solution is not stationary.

    Examples
    --------
    A job that finds k others in M/M/1/2 takes k + 1 services:

    >>> queue = ctmc.build("supermarket", service_rates=[1.0], arrival_rate=1.0, choices=1, capacity=2)
    >>> ctmc.solve(ctmc.Stationary(queue)).distribution("response_time").mean.__round__(12)
    1.5
    """
    if not isinstance(solution.problem, ctmc.Stationary):
        raise ModelError(
            f"the response time is that of the long run; allowed is the answer to Stationary, not {type(solution.problem).__name__}."
        )
    found = [np.zeros(limit) for limit in limits]
    model: Any = solution.problem.model
    for _, states, weights in model.weighted_slabs(solution.value):
        flows = weights[:, None] * joins(states)
        for server, (row, limit) in enumerate(zip(found, limits, strict=True)):
            # a full server takes no job
            row += np.bincount(states[:, server], weights=flows[:, server], minlength=limit + 1)[:limit]
    found = [model.ranks.total(row) for row in found]
    distinct = np.unique(service_rates)
    initial, absorption, chains = [], [], []
    for rate in distinct:
        shared = [row for row, own in zip(found, service_rates, strict=True) if own == rate]
        stages = max(map(len, shared))
        initial.append(sum(np.pad(row, (0, stages - len(row))) for row in shared))
        absorption.append(np.r_[rate, np.zeros(stages - 1)])
        chains.append(np.r_[np.full(stages - 1, rate), 0.0])  # from each stage to the one before it, none across chains
    weights = np.concatenate(initial)
    steps = np.concatenate(chains)[:-1]
    places = np.arange(len(steps))
    rates = csr_array((steps, (places + 1, places)), shape=(len(weights),) * 2)
    return PhaseType(weights / math.fsum(weights), rates, np.concatenate(absorption))
