"""The optimal policy of the fork-join queue: send the front task to a server or keep it, by policy iteration.

The thresholds of `fork_join` look at the length of the queue and at the fastest idle server only.  The optimal policy also
looks at the job in progress: how many of its tasks wait, and which servers work for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from builders.fork_join.decisions import KEEP, Decisions, tail_decay
from builders.fork_join.evaluation import PolicyValue, evaluate
from builders.fork_join.rules import Rules, checked_rules
from ctmc.errors import ModelError
from ctmc.model.parameters import whole_number

LARGEST = 5
"""Servers up to which the optimal policy is offered."""
CUT_MASS = 1e-12
"""Of the last level, at most."""
_IMPROVEMENT = 1e-13
"""Relative; an action is given up for a better one only, so that equal ones do not take turns."""
_ROUNDS = 200


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the policy does for one grouping of the servers.

    Attributes
    ----------
    remaining_tasks : int
        Waiting tasks of the job in progress; 0 if there is none.
    busy, own : tuple of int
        Busy servers, and those that work for the job in progress, counted from 0.
    least : dict of int to int
        Idle server -> least number of waiting tasks at which the front task goes to it; servers that never get it are missing.
    is_threshold : bool
        Whether the front task goes to one and the same server for all longer queues, and is kept for all shorter ones.
    frequency : float
        Decisions of this kind per unit of time.
    """

    remaining_tasks: int
    busy: tuple[int, ...]
    own: tuple[int, ...]
    least: dict[int, int]
    is_threshold: bool
    frequency: float


@dataclass(frozen=True, kw_only=True)
class OptimalPolicy(PolicyValue):
    """The optimal policy, its value and its certificate.

    Attributes
    ----------
    lower_bound, upper_bound : float
        No policy has fewer jobs than the lower bound, and this one has no more than the upper: least and greatest right
        side of the optimality equation (Odoni 1969), over all states of the process, cut as it is.
    rounding : float
        How far rounding alone may spread the bounds: 8 eps times the largest sum of the sizes of their terms in a state.
    iterations : int
        Policies that were evaluated.
    states : int
        Of the decision process.
    compared : PolicyValue
        Value of the threshold policy from which the iteration starts.
    compared_thresholds : tuple of int
    rows : tuple of Row
        The policy, for each grouping in which decisions are taken.
    """

    lower_bound: float
    upper_bound: float
    rounding: float
    iterations: int
    states: int
    compared: PolicyValue
    compared_thresholds: tuple[int, ...]
    rows: tuple[Row, ...]
    _process: Decisions = field(repr=False, compare=False)
    _actions: np.ndarray = field(repr=False, compare=False)

    @property
    def gain(self) -> float:
        """What the threshold policy has more jobs (and a longer response time), relative to the optimum."""
        return (self.compared.jobs - self.jobs) / self.jobs

    @property
    def is_certified(self) -> bool:
        """Whether the last level is light enough, and the bounds are close.

        They may be 1e-9 of the number of jobs apart, and what rounding adds, but never more than 1e-6 of it.
        """
        spread = self.upper_bound - self.lower_bound
        close = spread <= min(1e-9 * self.jobs + self.rounding, 1e-6 * self.jobs)
        return close and self.last_level_mass <= CUT_MASS

    def decide(self, waiting_tasks: int, busy: Sequence[int], own: Sequence[int] = ()) -> int | None:
        """Return the server to which the front task goes, None if it is kept.

        Parameters
        ----------
        waiting_tasks : int
            Up to the last level, tasks x (last_level + 1) - 1.
        busy, own : sequence of int
            Busy servers, and those that work for the job in progress.

        Raises
        ------
        ModelError
            If there is no such state.
        """
        process, rules = self._process, self._process.rules
        most = rules.tasks * (self.last_level + 1) - 1
        length = whole_number("waiting_tasks", waiting_tasks, 0, most)
        if any(not 0 <= server < rules.servers for server in (*busy, *own)):
            raise ModelError(f"busy is {busy}, own {own}; allowed are servers 0 to {rules.servers - 1}.")
        sets = [sum(1 << (rules.servers - 1 - server) for server in {*chosen}) for chosen in (busy, own)]
        allowed = rules.tasks - length % rules.tasks if length % rules.tasks else 0
        if sets[1] & ~sets[0] or len({*own}) > allowed:
            raise ModelError(
                f"own is {tuple(own)}; allowed are at most {allowed} of the busy servers {tuple(busy)} with {length} waiting "
                "tasks."
            )
        number = process.number(np.array([length]), np.array(sets[:1]), np.array(sets[1:]))[0]
        action = int(self._actions[number])
        return None if action == KEEP else action

    def facts(self) -> dict[str, Any]:
        """Return what there is to say beside the table, by name."""
        return {
            "jobs": self.jobs,
            "response_time": self.response_time,
            "lower_bound": self.lower_bound,
            "upper_bound": self.upper_bound,
            "rounding": self.rounding,
            "certified": self.is_certified,
            "iterations": self.iterations,
            "states": self.states,
            "last_level": self.last_level,
            "last_level_mass": self.last_level_mass,
            "compared_thresholds": list(self.compared_thresholds),
            "compared_jobs": self.compared.jobs,
            "compared_response_time": self.compared.response_time,
            "gain": self.gain,
        }

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return the columns and the rows of the policy as a table, the most frequent decisions first.

        A row is a grouping: waiting tasks of the job in progress, the servers that work for it, the other busy servers; then
        for each server the least queue length, in tasks, at which the front task goes to it, "-" if it never does, "busy"
        where it cannot; whether that is all there is to say; and how often such a decision is taken.
        """
        servers = range(self._process.rules.servers)
        columns = ["remaining", "own", "others", *(f"to server {k}" for k in servers), "threshold", "per unit of time"]
        rows = []
        for row in self.rows:
            others = [server for server in row.busy if server not in row.own]
            cells = ["busy" if k in row.busy else str(row.least.get(k, "-")) for k in servers]
            rows.append(
                [
                    row.remaining_tasks,
                    _servers(row.own),
                    _servers(others),
                    *cells,
                    row.is_threshold,
                    float(f"{row.frequency:.4g}"),
                ]
            )
        return columns, rows


def _servers(chosen: Sequence[int]) -> str:
    return " ".join(map(str, chosen)) or "-"


def optimal_policy(
    service_rates: Sequence[float],
    arrival_rate: float,
    tasks: int,
    thresholds: Sequence[int] | None = None,
    last_level: int | None = None,
) -> OptimalPolicy:
    """Return the policy of the fork-join queue with the fewest jobs on average, and so the least mean response time.

    After each arrival and each completion the front task may be sent to any idle server, then the next one, or all are kept;
    what is known is the length of the queue, the busy servers and for which job each of them works.

    Parameters
    ----------
    service_rates : sequence of float, length M
        Tasks per unit of time that each server completes; positive, and not increasing.  At most five.
    arrival_rate : float
        Jobs per unit of time; positive.
    tasks : int
        Tasks of a job, 1 to M.
    thresholds : sequence of int, length M, optional
        Of the policy to compare with, from which the iteration starts; all 1 by default.
    last_level : int, optional
        Number of waiting jobs at which the queue is cut.  By default chosen so that its probability is below 1e-12.

    Returns
    -------
    OptimalPolicy

    Raises
    ------
    ModelError
        As `fork_join`; if there are more than five servers, or the states do not fit into memory.
    UnstableError
        If arrival_rate x tasks is not less than the sum of the service rates.

    Notes
    -----
    States and costs are those of `builders.fork_join.decisions`.  Each policy is evaluated on the states that it keeps, with
    h = 0 at the empty system: mean cost and mean length of a cycle from there and back by one sparse LU factorization, g their
    ratio, and from h the value of all other states in one product.  An action changes only for an improvement of 1e-13,
    relative.  The certificate needs no convergence: with any h, the least and the greatest value over the states of
    cost + sum of rates x (best value after the event - h) enclose the optimum.

    Source: R. A. Howard, *Dynamic Programming and Markov Processes* (1960), chapter 8; bounds: A. R. Odoni, Operations Research
    17 (1969) 857-860.

    Examples
    --------
    >>> best = optimal_policy(service_rates=[5, 2, 1], arrival_rate=1, tasks=3, thresholds=[1, 2, 8])
    >>> print(f"{best.compared.response_time:.9f}")
    0.837961939

    On the command line: ``ctmc policy fork_join --service-rates 5,2,1 --arrival-rate 1 --tasks 3 --thresholds 1,2,8``
    """
    rules = checked_rules(service_rates, arrival_rate, tasks, thresholds)
    process = _process(rules, last_level)
    while True:
        found = _iterate(process)
        masses = (found.last_level_mass, found.compared.last_level_mass)
        if last_level is not None or max(masses) <= CUT_MASS:
            return found
        process = Decisions(rules, 2 * process.last_level)  # until the memory limit


def _iterate(process: Decisions) -> OptimalPolicy:
    actions = process.threshold_policy(process.rules.thresholds)
    first = None
    for iterations in range(1, _ROUNDS + 1):
        value, h, weights = evaluate(process, actions)
        first = first or value
        best, improved = _improve(process, h, actions)
        if iterations == _ROUNDS or np.array_equal(improved, actions):
            break
        actions = improved
    right_side = process.costs + (process.event_rates * (best[process.events] - h)).sum(axis=0)
    sizes = (process.event_rates * (np.abs(best[process.events]) + np.abs(h))).sum(axis=0)
    return OptimalPolicy(
        **vars(value),
        lower_bound=float(right_side.min()),
        upper_bound=float(right_side.max()),
        rounding=float(8 * np.finfo(float).eps * sizes.max()),
        iterations=iterations,
        states=process.size,
        compared=first,
        compared_thresholds=tuple(process.rules.thresholds),
        rows=_rows(process, actions, weights),
        _process=process,
        _actions=actions,
    )


def threshold_value(
    service_rates: Sequence[float],
    arrival_rate: float,
    tasks: int,
    thresholds: Sequence[int] | None = None,
    last_level: int | None = None,
) -> PolicyValue:
    """Return the value of a threshold policy in the decision process; parameters and errors as `optimal_policy`.

    Examples
    --------
    >>> print(f"{threshold_value([5, 2, 1], 1, 3, [1, 2, 8]).response_time:.12f}")
    0.837961938604
    """
    rules = checked_rules(service_rates, arrival_rate, tasks, thresholds)
    process = _process(rules, last_level)
    return evaluate(process, process.threshold_policy(rules.thresholds))[0]


def _process(rules: Rules, last_level: int | None) -> Decisions:
    if last_level is None:
        # once all servers are busy, at the latest from the last threshold on, the tail falls by a known factor per task
        beyond = -math.log(0.1 * CUT_MASS) / tail_decay(rules)
        last_level = 1 + math.ceil((beyond + 2 * rules.servers + rules.thresholds[-1]) / rules.tasks)
    else:
        last_level = whole_number("last_level", last_level, 1)
    if rules.servers > LARGEST:
        states = Decisions.count(rules.servers, rules.tasks, last_level)
        raise ModelError(
            f"service_rates has {rules.servers} servers, so that the decision process has {states:,} states; allowed are at "
            f"most {LARGEST} servers."
        )
    return Decisions(rules, last_level)


def _improve(process: Decisions, h: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least value that decisions can reach from each state, and actions that reach it."""
    best, improved = h.copy(), actions.copy()
    counts = process.rules.count(process.busy)
    for count in reversed(range(process.rules.servers)):  # every task that is sent makes one more server busy
        here = np.flatnonzero((counts == count) & (process.lengths > 0))
        targets = process.sent[:, here]
        values = np.where(targets >= 0, process.charges[:, here] + best[targets], np.inf)
        values = np.vstack([values, h[here]])  # the last row is that of action -1
        now = values[actions[here], np.arange(len(here))]
        least = values.min(axis=0)
        better = least < now - _IMPROVEMENT * (1.0 + np.abs(now))
        chosen = values.argmin(axis=0)
        chosen[chosen == process.rules.servers] = KEEP
        improved[here[better]] = chosen[better]
        best[here] = least
    return best, improved


def _rows(process: Decisions, actions: np.ndarray, weights: np.ndarray) -> tuple[Row, ...]:
    rules = process.rules
    flow = np.bincount(process.events.ravel(), weights=(process.event_rates * weights).ravel(), minlength=process.size)
    step = np.arange(process.size)
    sends = actions != KEEP
    step[sends] = process.sent[actions[sends], step[sends]]
    total, moving = np.zeros(process.size), flow
    for _ in range(rules.servers + 1):  # a decision is also taken after each task that is sent
        total += moving
        moving = np.bincount(step[sends], weights=moving[sends], minlength=process.size)
    some = (total > CUT_MASS * rules.arrival_rate) & (process.lengths > 0) & (process.busy != rules.everyone)
    rest = process.lengths % rules.tasks
    keys = (rest << rules.servers | process.busy) << rules.servers | process.own
    rows = []
    for key in np.unique(keys[some]):
        here = np.flatnonzero((keys == key) & (process.lengths > 0))
        lengths, chosen = process.lengths[here], actions[here]
        sent = chosen != KEEP
        least = {int(server): int(lengths[chosen == server].min()) for server in np.unique(chosen[sent])}
        rows.append(
            Row(
                remaining_tasks=int(key >> (2 * rules.servers)),
                busy=_members(rules, int(key >> rules.servers)),
                own=_members(rules, int(key)),
                least=least,
                is_threshold=len(least) <= 1 and bool((np.diff(sent.astype(int)) >= 0).all()),
                frequency=float(total[here].sum()),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.frequency))


def _members(rules: Rules, chosen: int) -> tuple[int, ...]:
    return tuple(server for server, bit in enumerate(rules.bits) if chosen & bit)
