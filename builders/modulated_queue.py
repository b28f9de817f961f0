"""The queue in a random environment: arrivals and services whose rates a Markov chain changes (MMPP/MSP/c)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components

import ctmc
from builders._rows import bytes_of_rows, compressed_rows
from ctmc.errors import ModelError, UnstableError, shown
from ctmc.model.distribution import distribution
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import check_magnitude, numbers, whole_number
from ctmc.model.qbd import QBD
from ctmc.model.rerating import on_the_structure_of
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import is_streaming, made

_LEVEL_BYTES = 4096  # of the Python objects that hold the blocks of a level


@dataclass(frozen=True, eq=False)
class _Design:
    """Checked parameters: off-diagonal rates of the environment, shape (m, m), and the rates in its states, shape (m,)."""

    environment: np.ndarray
    arrivals: np.ndarray
    services: np.ndarray
    servers: int


def _dress(
    model: Generator | QBD,
    environment: Sequence[Sequence[float]],
    arrival_rates: Sequence[float],
    service_rates: Sequence[float],
    servers: int = 1,
    capacity: int | None = None,
) -> Generator | QBD:
    arrivals, services = np.asarray(arrival_rates, dtype=np.float64), np.asarray(service_rates, dtype=np.float64)

    def here(states: np.ndarray) -> np.ndarray:
        return np.asarray(states[:, 1, None] == np.arange(len(arrivals)))

    def busy(states: np.ndarray) -> np.ndarray:
        return np.minimum(states[:, 0], servers)

    rewards = {
        "waiting_jobs": Reward(lambda states: np.maximum(states[:, 0] - servers, 0), "number of jobs that wait"),
        "busy_servers": Reward(busy, "number of busy servers"),
        "arrival_rate": Reward(lambda states: arrivals[states[:, 1]], "rate of arrivals, the lost ones included"),
        "service_rate": Reward(lambda states: services[states[:, 1]] * busy(states), "rate of completions"),
        "environment_state": Reward(here, "per state of the environment, 1 while it is there"),
        "jobs_in_environment": Reward(
            lambda states: states[:, :1] * here(states), "jobs while the environment is there"
        ),
    }
    if capacity is not None:
        rewards["loss_rate"] = Reward(
            lambda states: arrivals[states[:, 1]] * (states[:, 0] == capacity), "rate at which jobs are lost"
        )
        rewards["full_in_environment"] = Reward(
            lambda states: (states[:, :1] == capacity) & here(states),
            "1 while the queue is full and the environment there",
        )

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        found = solution.expectations(["jobs", *rewards])
        throughput, weights = found["service_rate"], found["environment_state"]
        more: dict[str, Any] = {}
        if capacity is not None:
            more = {
                "blocking_probability": found["loss_rate"] / found["arrival_rate"],
                "full_by_environment": found["full_in_environment"] / weights,
            }
        elif isinstance(solution.problem.model, QBD):  # a truncation has none
            more = {"decay_rate": solution.value.decay_rate}
        return {
            "throughput": throughput,
            "utilization": found["busy_servers"] / servers,
            "jobs": found["jobs"],
            "waiting_jobs": found["waiting_jobs"],
            "response_time": found["jobs"] / throughput,
            "waiting_time": found["waiting_jobs"] / throughput,
            "environment_probability": weights,
            "jobs_by_environment": found["jobs_in_environment"] / weights,
            **more,
        }

    return model.replace(rewards=rewards, measures=measures)


@ctmc.builder(version=1, dress=_dress)
def modulated_queue(
    environment: Sequence[Sequence[float]],
    arrival_rates: Sequence[float],
    service_rates: Sequence[float],
    servers: int = 1,
    capacity: int | None = None,
) -> Generator | QBD:
    """Queue with modulated arrivals and services, MMPP/MSP/c or MMPP/MSP/c/K: an environment sets the rates of both.

    While the environment, a Markov chain of its own, is in state e, jobs arrive at rate arrival_rates[e] and each busy server
    completes jobs at rate service_rates[e].  A change of the environment changes the rates at once and moves no job.

    Parameters
    ----------
    environment : sequence of sequence of float, shape (m, m)
        Entry (e, f) is the rate from state e of the environment to f; every state reaches every other.  The diagonal is zero
        or makes rows sum to zero.
    arrival_rates : sequence of float, length m
        Rate of arrivals in each state of the environment; not negative, not all zero.
    service_rates : sequence of float, length m
        Rate of each server in each state of the environment; not negative, not all zero.
    servers : int
        Number of servers c.
    capacity : int, optional
        Most jobs, those in service included; an arrival that finds so many is lost.  By default there is no limit.

    Returns
    -------
    QBD or Generator
        Without a capacity a QBD with the number of jobs as its level and c boundary levels; with one, the generator of K + 1
        levels.  States (``jobs``, ``environment``), the environment fastest.  Rewards: waiting_jobs, busy_servers,
        arrival_rate, service_rate, and per state of the environment environment_state and jobs_in_environment; with a
        capacity loss_rate and, per state, full_in_environment.  Measures: throughput, utilization (share of busy servers),
        jobs, waiting_jobs, response_time, waiting_time, and per state of the environment environment_probability and
        jobs_by_environment (mean number of jobs while it lasts); with a capacity blocking_probability (part of the arrivals
        that are lost) and full_by_environment, without one decay_rate (of the number of jobs, from one level to the next).

    Raises
    ------
    ModelError
        If a rate is negative or not finite, the shapes differ, the environment is not irreducible, servers or capacity are not
        positive whole numbers, or the model does not fit into memory.
    UnstableError
        If there is no capacity and jobs arrive, in the mean, at least as fast as all servers complete them.

    Notes
    -----
    One state of the environment makes M/M/c; service rates that are all equal make MMPP/M/c.  Source of the model with one
    server: M. F. Neuts, *Matrix-Geometric Solutions in Stochastic Models*, 1981, chapter 6.

    Examples
    --------
    >>> bursts = modulated_queue([[0, 0.1], [0.4, 0]], arrival_rates=[0.3, 2], service_rates=[1, 1.5])
    >>> found = ctmc.solve(ctmc.Stationary(bursts), "logarithmic_reduction").measures()
    >>> round(found["jobs"], 9), found["jobs_by_environment"].round(6).tolist()
    (2.209603302, [1.817502, 3.77801])
    >>> queue = modulated_queue([[0, 0.1], [0.4, 0]], [0.3, 2], [1, 1.5], servers=2, capacity=10)
    >>> round(ctmc.solve(ctmc.Stationary(queue), "gth").measures()["blocking_probability"], 9)
    0.00089918

    On the command line: ``ctmc build modulated_queue --environment "0,0.1;0.4,0" --arrival-rates 0.3,2 --service-rates 1,1.5
    --servers 2 --capacity 10 -o bursts.h5``
    """
    design = _design(environment, arrival_rates, service_rates, servers)
    if capacity is None:
        return _without_limit(design)
    most = whole_number("capacity", capacity, 1)
    phases = len(design.arrivals)
    space = Lattice((most, phases - 1), variables=(Variable("jobs"), Variable("environment")))
    changes = int(np.count_nonzero(design.environment))
    entries = (most + 1) * changes + most * int(np.count_nonzero(design.arrivals) + np.count_nonzero(design.services))
    if not is_streaming():
        require_memory("the modulated queue", bytes_of_rows(space.size, entries), states=space.size, entries=entries)
    before, rates = _changes_into(design.environment)

    def tables(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        jobs, state = np.divmod(positions, phases)
        arrival = np.where(jobs > 0, design.arrivals[state], 0.0)
        serving = np.where(jobs < most, np.minimum(jobs + 1, design.servers), 0)
        first = positions - state
        return (
            np.column_stack([positions - phases, first[:, None] + before[state], positions + phases]),
            np.column_stack([arrival, rates[state], serving * design.services[state]]),
        )

    def rows(begin: int, end: int) -> Any:
        return compressed_rows(begin, end, space.size, tables, before.shape[1] + 2)

    return Generator(space, made(space.size, rows, lambda: entries), initial=distribution(space, [0, 0]))


def _rerate(model: Any, old: Mapping[str, Any], new: Mapping[str, Any]) -> Any:
    """Return the queue at other rates; they must be zero where they were."""
    fresh: Any = inspect.unwrap(modulated_queue)(**new)
    if len(old["arrival_rates"]) != len(new["arrival_rates"]):
        raise ModelError(
            f"arrival_rates has {len(new['arrival_rates'])} numbers; at other rates the queue keeps its "
            f"{len(old['arrival_rates'])} states of the environment."
        )
    return on_the_structure_of(model, fresh)


modulated_queue.rates_that_may_change = ("environment", "arrival_rates", "service_rates")
modulated_queue.rerate = _rerate  # what `with_rates` does in place of a build


def _design(environment: Any, arrival_rates: Any, service_rates: Any, servers: Any) -> _Design:
    rates = _environment(environment)
    given = [
        _not_negative(name, values, len(rates))
        for name, values in (("arrival_rates", arrival_rates), ("service_rates", service_rates))
    ]
    return _Design(rates, *given, whole_number("servers", servers, 1))


def _not_negative(name: str, given: Any, length: int) -> np.ndarray:
    allowed = "finite rates >= 0, not all zero, one for each state of the environment"
    rates = numbers(name, given, allowed)
    if len(rates) != length:
        raise ModelError(
            f"{name} has {len(rates)} numbers and environment {length} states; allowed are as many of both."
        )
    bad = ~((rates >= 0) & np.isfinite(rates))
    if bad.any():
        raise ModelError(f"{name} has the value {rates[np.argmax(bad)]}; allowed are {allowed}.")
    check_magnitude(name, rates)
    if not rates.any():
        raise ModelError(f"{name} is zero throughout; allowed are {allowed}.")
    return rates


def _environment(given: Any) -> np.ndarray:
    """Return the rates between states of the environment, shape (m, m), with a zero diagonal."""
    allowed = "allowed is a square table of finite rates >= 0, its diagonal zero or making rows sum to zero"
    try:
        table = np.array([numbers("environment", row, "") for row in given])
    except (TypeError, ValueError):
        raise ModelError(f"environment is {shown(given)}; {allowed}.") from None
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not table.size:
        raise ModelError(f"environment has the shape {table.shape}; {allowed}.")
    diagonal = table.diagonal().copy()
    np.fill_diagonal(table, 0.0)
    bad = ~((table >= 0) & np.isfinite(table))
    if bad.any():
        e, f = np.argwhere(bad)[0]
        raise ModelError(f"environment has the rate {table[e, f]} from state {e} to {f}; {allowed}.")
    check_magnitude("environment", table.ravel())
    exits = table.sum(axis=1)
    if diagonal.any() and not (np.abs(diagonal + exits) <= 1e-9 * exits).all():
        e = int(np.argmax(~(np.abs(diagonal + exits) <= 1e-9 * exits)))
        raise ModelError(
            f"environment has {diagonal[e]} on the diagonal of row {e}, whose rates sum to {exits[e]}; {allowed}."
        )
    count, part = connected_components(csr_array(table), connection="strong")
    if count > 1:
        other = int(np.argmax(part != part[0]))
        raise ModelError(
            f"environment has states 0 and {other}, which do not reach each other both ways; allowed is an environment in which "
            "every state reaches every other."
        )
    return table


def _changes_into(environment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each state, the states that change into it, ascending, and their rates: (m, k), padded with rates of 0."""
    width = int(np.count_nonzero(environment, axis=0).max())
    before = np.argsort(environment.T == 0, axis=1, kind="stable")[:, :width]
    return before, np.take_along_axis(environment.T, before, axis=1)


def _without_limit(design: _Design) -> QBD:
    """Return the QBD; levels 0 .. c - 1 are the boundary, as there all jobs are in service."""
    phases, entries = len(design.arrivals), int(np.count_nonzero(design.environment)) + 3 * len(design.arrivals)
    require_memory(
        "the boundary of the modulated queue",
        design.servers * (12 * entries + 16 * phases + _LEVEL_BYTES) + 32 * phases * phases,
        states=design.servers * phases,
        entries=design.servers * entries,
    )
    exits = design.environment.sum(axis=1)
    share = gth(design.environment - np.diag(exits))
    offered, served = float(share @ design.arrivals), float(share @ design.services) * design.servers
    if offered >= served:
        raise UnstableError(
            f"the mean drift is {offered - served:.6g} jobs per unit of time ({offered:g} arrive, {served:g} can be served); "
            "allowed is a negative one, or a capacity."
        )
    changes = csr_array(design.environment)

    def blocks(jobs: int) -> tuple[Any, Any, None]:
        service = design.services * jobs
        local = changes - diags_array(exits + design.arrivals + service)
        return (diags_array(service) if jobs else None), local, None

    up = diags_array(design.arrivals)
    down, local, _ = blocks(design.servers)
    boundary = [(low, own, up) for low, own, _ in map(blocks, range(design.servers))]
    table = np.arange(phases)[:, None]
    return QBD.from_blocks(
        up,
        local,
        down,
        boundary,
        phases=[table] * design.servers,
        variables=(Variable("jobs"), Variable("environment")),
    )
