"""The fork-join queue with centralized splitting, heterogeneous servers and a threshold policy, as a QBD.

Source: O. Osipov, E. Rogachko, *Analysis of centralized splitting fork-join queueing systems with heterogeneous servers and
threshold control policy*, CEUR Workshop Proceedings 2792 (2020), paper 5.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array

import ctmc
from builders.fork_join.rules import Rules, checked_rules
from builders.fork_join.service_span import Starts, law_of_response, law_of_span, masses
from builders.fork_join.thresholds import threshold_design
from ctmc.errors import ModelError
from ctmc.model.memory import require_memory
from ctmc.model.phase_type import PhaseType
from ctmc.model.qbd import QBD, Level, MatrixGeometric
from ctmc.model.rerating import on_the_structure_of
from ctmc.model.reward import Reward
from ctmc.model.state_space import Variable

_MOST_SERVERS = 1000

_LEVEL_BYTES = 4096  # of the Python objects that hold the blocks of a level, however few states it has


def _dress(
    model: QBD,
    service_rates: Sequence[float],
    arrival_rate: float,
    tasks: int,
    thresholds: Sequence[int] | None = None,
) -> QBD:
    servers = len(service_rates)
    least = [1] * servers if thresholds is None else [int(threshold) for threshold in thresholds]
    rules = Rules(np.array(service_rates, dtype=np.float64), float(arrival_rate), int(tasks), least)

    def starts(solution: ctmc.Solution) -> Starts:
        known = solution.value if isinstance(solution.value, MatrixGeometric) else solution
        return Starts(rules, masses(known, model.phases))

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        answer = solution.value
        if isinstance(answer, MatrixGeometric):
            # the phases are the same on all levels from the last boundary level on, so one sum serves them all
            parts = [*answer.boundary[:-1], answer.repeating_phases]
            means = sum(part @ table for part, table in zip(parts, model.phases, strict=True))
            waiting_jobs, remaining_tasks, busy = answer.mean_level, float(means[0]), means[1:]
            empty, accepted = float(answer.boundary[0][0]), rules.arrival_rate
            last = {"decay_rate": answer.decay_rate}
        else:  # a truncation: jobs that find the last level are lost
            found = solution.expectations(["waiting_jobs", "remaining_tasks", "busy"])
            waiting_jobs, remaining_tasks, busy = found["waiting_jobs"], found["remaining_tasks"], found["busy"]
            empty = float(solution.at(np.array([0]))[0])
            accepted = rules.arrival_rate * (1.0 - float(solution.marginal("waiting_jobs")[-1]))
            last = {}
        waiting_time, service_span = waiting_jobs / accepted, starts(solution).mean
        return {
            "waiting_jobs": waiting_jobs,
            "waiting_tasks": tasks * waiting_jobs + remaining_tasks,
            "waiting_time": waiting_time,
            "service_span": service_span,
            "response_time": waiting_time + service_span,
            "jobs": accepted * (waiting_time + service_span),
            "utilization": busy,
            "busy_servers": float(busy.sum()),
            "empty_probability": empty,
            **last,
        }

    def checks(answer: MatrixGeometric) -> dict[str, float]:
        # the drift of the level: an imbalance of the states counts with their level, so a defect of the answer, which is
        # relative to the flow of arrivals and completions, may show up here times the mean level
        off = abs(math.fsum(Starts(rules, masses(answer, model.phases)).rates) / rules.arrival_rate - 1)
        return {
            "the rate at which jobs start, against their arrival rate": off / ((1 + answer.mean_level) * (1 + tasks))
        }

    def response(solution: ctmc.Solution) -> PhaseType:
        return law_of_response(rules, solution.value, model.phases)

    return model.replace(
        rewards={
            "waiting_tasks": Reward(lambda states: tasks * states[:, 0] + states[:, 1], "tasks in the queue"),
            "busy_servers": Reward(lambda states: states[:, 2:].sum(axis=1), "number of busy servers"),
        },
        measures=measures,
        checks=checks,
        distributions={
            "service_span": lambda solution: law_of_span(starts(solution)),
            "response_time": response,
        },
    )


@ctmc.builder(version=1, dress=_dress)
def fork_join(
    service_rates: Sequence[float], arrival_rate: float, tasks: int, thresholds: Sequence[int] | None = None
) -> QBD:
    """Fork-join queue: a job is so many tasks, one queue feeds all servers, and a threshold keeps each slow server idle.

    Jobs arrive in a Poisson stream and are split at once into tasks, which wait in one first-come first-served queue.  A
    waiting task goes to the fastest idle server if the queue, itself included, is as long as that server's threshold; a
    server that completes a task takes the next one if the queue is as long as its threshold, and is idle otherwise.

    Parameters
    ----------
    service_rates : sequence of float, length M
        Tasks per unit of time that each server completes; positive, and not increasing from server to server.
    arrival_rate : float
        Jobs per unit of time; positive.  Stable if arrival_rate x tasks is less than the sum of the service rates.
    tasks : int
        Tasks of a job, 1 to M.
    thresholds : sequence of int, length M, optional
        Least queue length, in tasks, at which each server is used; the first is 1, and they do not decrease.  By default
        all are 1: every task goes to the fastest free server.

    Returns
    -------
    QBD
        A state is (``waiting_jobs``, ``remaining_tasks``, ``busy[0]``, .., ``busy[M - 1]``): jobs of which no task has
        started, waiting tasks of the job that has started last, and 1 for each busy server.  The level is the number of
        waiting jobs; inside a level states are in lexicographic order.  More rewards: ``waiting_tasks``,
        ``busy_servers``.  Measures: waiting_jobs, waiting_tasks, waiting_time (until the first task of a job starts),
        service_span (from there to the end of its last), response_time, jobs (in the system), utilization (per server),
        busy_servers, empty_probability and decay_rate (of the number of waiting jobs, from one level to the next); those
        of a truncation lack the last, and its times are those of jobs not lost.  Distributions: service_span and
        response_time, as ``solution.distribution("response_time")``.  Check: jobs start at the rate at which they arrive.

    Raises
    ------
    ModelError
        If a rate is not positive and finite, service rates increase, tasks is not a whole number from 1 to M, thresholds
        are not M whole numbers that start at 1 and never decrease, or the boundary does not fit into memory.
    UnstableError
        If arrival_rate x tasks is not less than the sum of the service rates.

    Notes
    -----
    With b waiting tasks the servers whose threshold is at most b are busy, so 2^(servers left) states have queue length b.
    From level r on, the least r >= 1 with r tasks >= thresholds[-1], all servers are busy, a level has as many phases as a
    job has tasks, and the blocks repeat: up = arrival_rate I, local bidiagonal, down of rank one.  Events are found for
    whole levels at once, on sets of busy servers held as bits; server 0 is the highest bit, so that the order of the sets
    as numbers is the order of the states, and the position of a state is an addition.  Memory: 12 bytes an entry and
    8 (M + 4) a state, and 90 per entry of level 0 while it is built.

    Source: O. Osipov, E. Rogachko, CEUR Workshop Proceedings 2792 (2020), paper 5, equations (1) to (5).

    Examples
    --------
    >>> queue = fork_join(service_rates=[5, 2, 1], arrival_rate=1, tasks=3, thresholds=[1, 2, 8])
    >>> [len(table) for table in queue.phases]
    [14, 6, 5, 3]
    >>> solution = ctmc.solve(ctmc.Stationary(queue), "logarithmic_reduction")
    >>> print(f"{solution.measures()['waiting_time']:.9f}")
    0.142336726
    >>> print(f"{solution.measures()['response_time']:.9f} {solution.distribution('response_time').quantile(0.95):.9f}")
    0.837961939 1.947482435
    >>> print(f"{solution.probability('busy[2] == 1 and waiting_jobs >= 1'):.9f}")
    0.023265784

    On the command line: ``ctmc build fork_join --service-rates 5,2,1 --arrival-rate 1 --tasks 3 --thresholds 1,2,8 -o
    queue.h5``
    """
    rules = checked_rules(service_rates, arrival_rate, tasks, thresholds)
    rates, arrivals, parts, least = rules.rates, rules.arrival_rate, rules.tasks, rules.thresholds
    capacity = float(np.cumsum(rates)[-1])
    if len(rates) > _MOST_SERVERS:
        raise ModelError(
            f"service_rates has {len(rates):,} numbers; allowed are up to {_MOST_SERVERS}, as each set of busy servers is a phase."
        )
    states, entries, widest = _counts(len(rates), parts, least, rules.last)
    require_memory(
        "the boundary of the fork-join queue",
        12 * entries + 8 * (len(rates) + 4) * states + 90 * widest + _LEVEL_BYTES * rules.last,
        states=states,
        entries=entries,
    )
    exits = np.full(parts, arrivals + capacity)
    up = csr_array((np.full(parts, arrivals), np.arange(parts), np.arange(parts + 1)), shape=(parts, parts))
    step = np.arange(1, parts)
    local = _block(
        np.concatenate([np.arange(parts), step]),
        np.concatenate([np.arange(parts), step - 1]),
        np.concatenate([-exits, np.full(parts - 1, capacity)]),
        (parts, parts),
    )
    down = _block(np.array([0]), np.array([parts - 1]), np.array([capacity]), (parts, parts))
    levels, tables = [], []
    for level, table in _boundary(rules):
        levels.append(level)
        tables.append(table)
    # all servers are busy on the level below, so the last state of the last queue length there is where a step down ends
    below = len(tables[-1])
    levels.append(Level(_block(np.array([0]), np.array([below - 1]), np.array([capacity]), (parts, below)), local, up))
    tables.append(np.column_stack([np.arange(parts), np.ones((parts, len(rates)), dtype=np.int64)]))
    for table in tables:
        table.flags.writeable = False
    variables = (Variable("waiting_jobs"), Variable("remaining_tasks"), Variable("busy", len(rates)))
    return QBD(up, local, down, tuple(levels), tuple(tables), variables)


def _rerate(model: QBD, old: Mapping[str, Any], new: Mapping[str, Any]) -> QBD:
    """Return the queue at other rates: its blocks are small, and the tables of phases and the places are shared."""
    fresh = inspect.unwrap(fork_join)(**new)
    if len(fresh.phases) != len(model.phases) or not all(map(np.array_equal, fresh.phases, model.phases)):
        raise ModelError(
            f"service_rates has {len(new['service_rates'])} numbers; at other rates the queue keeps its "
            f"{len(old['service_rates'])} servers."
        )
    return on_the_structure_of(model, fresh)


fork_join.rates_that_may_change = ("service_rates", "arrival_rate")
fork_join.rerate = _rerate  # what `with_rates` does in place of a build
fork_join.policy = "builders.fork_join.policy:optimal_policy"
fork_join.simulation = "builders.fork_join.simulation:simulate"


def _boundary(
    rules: Rules,
) -> Iterator[tuple[Level, np.ndarray]]:
    """Yield the blocks and the table of phases of levels 0 .. rbar - 1."""
    rates, tasks, last = rules.rates, rules.tasks, rules.last
    servers, everyone, bits, needed = rules.servers, rules.everyone, rules.bits, rules.needed
    served = np.concatenate([[0.0], np.cumsum(rates)])
    lengths = np.arange(tasks * (last + 1))
    # per queue length: servers that must be busy, their set, the number of states, and the place of the first in its level
    forced = np.searchsorted(needed[:-1], lengths, side="right")
    base = everyone + 1 - (1 << (servers - forced))
    sizes = (1 << (servers - forced)).reshape(last + 1, tasks)
    first = np.cumsum(np.column_stack([np.zeros(last + 1, dtype=np.int64), sizes]), axis=1)
    sizes_of_levels, first = first[:, -1], first[:, :-1].ravel()

    for level in range(last):
        own = slice(tasks * level, tasks * (level + 1))
        size = int(sizes_of_levels[level])
        here = np.arange(size)
        length = np.repeat(lengths[own], sizes[level])
        busy = here - first[length] + base[length]
        fixed = forced[length]

        after, started = rules.arrival(length, busy)
        rows, queues = [here], [after]
        columns, values = [first[after] + started - base[after]], [np.full(size, rules.arrival_rate)]
        waiting = np.flatnonzero(length > 0)
        shorter = length[waiting] - 1
        rows.append(waiting)  # the servers that must be busy stay so, and a task leaves the queue
        queues.append(shorter)
        columns.append(first[shorter] + busy[waiting] - base[shorter])
        values.append(served[fixed[waiting]])
        for server, bit in enumerate(bits):  # the others become idle
            ending = np.flatnonzero((busy & bit != 0) & (server >= fixed))
            rows.append(ending)
            queues.append(length[ending])
            columns.append(ending - bit)
            values.append(np.full(len(ending), rates[server]))
        row, column, value = np.concatenate(rows), np.concatenate(columns), np.concatenate(values)
        target = np.concatenate(queues) // tasks - level
        exits = np.bincount(row, weights=value, minlength=size)
        blocks: list[csr_array | None] = []
        for step in (-1, 0, 1):
            if level + step < 0:
                blocks.append(None)
                continue
            chosen = target == step
            shape = (size, int(sizes_of_levels[level + step]))
            if step:
                blocks.append(_block(row[chosen], column[chosen], value[chosen], shape))
            else:
                diagonal = (here, here, -exits)
                entries = [np.concatenate([a[chosen], b]) for a, b in zip((row, column, value), diagonal, strict=True)]
                blocks.append(_block(*entries, shape))
        table = np.column_stack([length - tasks * level, (busy[:, None] & bits) != 0]).astype(np.int64, copy=False)
        yield Level(*blocks), table


def _block(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> csr_array:
    block = csr_array((values, (rows, columns)), shape=shape)
    block.sort_indices()
    return block


def _counts(servers: int, tasks: int, thresholds: Sequence[int], last: int) -> tuple[int, int, int]:
    """Return the numbers of states and of entries of levels 0 .. last, and of entries of level 0, before any array exists."""

    def below(length: int) -> tuple[int, int]:
        edges = [0, *thresholds, length]
        states = entries = 0
        for forced in range(servers + 1):
            lengths = max(0, min(edges[forced + 1], length) - edges[forced])
            free = servers - forced
            states += lengths << free
            # arrival, completion at a server that goes on, completions at the others, diagonal
            entries += lengths * (3 * (1 << free) + free * (1 << free) // 2)
        return states, entries

    states, entries = below(tasks * (last + 1))
    return states, entries, below(tasks)[1]


fork_join.designs = {"thresholds": threshold_design}  # what `ctmc optimize fork_join --over` takes
