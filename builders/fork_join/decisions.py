"""The decision process of the fork-join queue: after each event the front task is sent to an idle server, or all are kept.

A job of which the last task has been sent runs on its own, whatever is decided later: no task is ever taken from its server.
What it still costs is therefore known when that task is sent: the mean of the largest of independent exponential times of
the servers that work for it.  It is charged there and then, and the job can be forgotten.  Of the grouping of the busy
servers by jobs only one group is left, that of the job in progress, which still has tasks waiting: a state is the number of
waiting tasks b, the set of busy servers and the set `own` of those that work for the job in progress (none if b is a multiple
of the tasks of a job).  With d tasks to a job there are 2^M states for such b and at most 3^M for the others.

Until its last task is sent a job costs 1 per unit of time, so the mean cost per unit of time is the mean number of jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy.optimize import brentq

from builders.fork_join.rules import Rules
from ctmc.model.memory import require_memory

KEEP = -1
"""The action that sends no task."""


def tail_decay(rules: Rules) -> float:
    """Return how fast the logarithm of the probability of a queue length falls, per task, where all servers are busy.

    It is the logarithm of the root y > 1 of arrival_rate (y + .. + y^d) = sum of the service rates.

    Examples
    --------
    >>> print(f"{tail_decay(Rules(np.array([2.0]), 1.0, 1, [1])):.6f}")
    0.693147
    """
    capacity, arrivals = math.fsum(rules.rates), math.log(rules.arrival_rate)

    def excess(x: float) -> float:
        return math.fsum(math.exp(k * x + arrivals) for k in range(1, rules.tasks + 1)) - capacity

    return float(brentq(excess, 0.0, (math.log(capacity) - arrivals) / rules.tasks + 1.0, xtol=1e-300, rtol=1e-14))


class Decisions:
    """States, events and actions, up to a last level of waiting jobs.

    A job that arrives on the last level is turned away and charged what the fluid limit says that it would have cost, so
    that there is nothing to gain from turning jobs away, and the error of the cut is a small part of the mass there.

    Parameters
    ----------
    rules : Rules
        The thresholds are not looked at.
    last_level : int
        Greatest number of waiting jobs of which no task has started.

    Attributes
    ----------
    lengths, busy, own : ndarray of int, shape (n,)
        The states: by queue length, then busy servers, then servers of the job in progress.
    events : ndarray of int, shape (M + 1, n)
        State in which the decision is taken after an arrival, and after a completion at each server.
    event_rates : ndarray, shape (M + 1, n)
        0 where a server is idle.
    sent : ndarray of int, shape (M, n)
        State after the front task has been sent to each server; -1 where that is not possible.
    charges : ndarray, shape (M, n)
        What is charged then.
    costs : ndarray, shape (n,)
        Per unit of time.

    Examples
    --------
    >>> process = Decisions(Rules(np.array([5.0, 2.0, 1.0]), 1.0, 3, [1, 1, 1]), 4)
    >>> process.size, process.count(5, 3, 16)
    (270, 5712)
    """

    def __init__(self, rules: Rules, last_level: int) -> None:
        self.rules, self.last_level = rules, last_level
        servers, tasks, rates = rules.servers, rules.tasks, rules.rates
        self.size = self.count(servers, tasks, last_level)
        require_memory("the decision process", self.size * 48 * (servers + 2), states=self.size)
        everything = np.arange(1 << (2 * servers))
        groups = [everything[self._possible(everything, rest)] for rest in range(tasks)]
        self._place = np.full((tasks, 1 << (2 * servers)), -1)
        for rest, codes in enumerate(groups):
            self._place[rest, codes] = np.arange(len(codes))
        sizes = [len(codes) for codes in groups]
        self._first = np.concatenate([[0], np.cumsum(np.tile(sizes, last_level + 1))])
        codes = np.tile(np.concatenate(groups), last_level + 1)
        self.lengths = np.repeat(np.arange(tasks * (last_level + 1)), np.tile(sizes, last_level + 1))
        self.busy, self.own = codes >> servers, codes & rules.everyone

        here, level, rest = np.arange(self.size), self.lengths // tasks, self.lengths % tasks
        lost = level == last_level
        self.events = np.tile(here, (servers + 1, 1))
        self.event_rates = np.zeros((servers + 1, self.size))
        self.events[0, ~lost] = self.number(self.lengths[~lost] + tasks, self.busy[~lost], self.own[~lost])
        self.event_rates[0] = rules.arrival_rate
        self.sent = np.full((servers, self.size), -1)
        self.charges = np.zeros((servers, self.size))
        remaining = self.remaining
        for server, bit in enumerate(rules.bits):
            works = (self.busy & bit) != 0
            self.events[server + 1, works] = self.number(
                self.lengths[works], self.busy[works] ^ bit, self.own[works] & ~bit
            )
            self.event_rates[server + 1, works] = rates[server]
            free = ~works & (self.lengths > 0)
            group = self.own[free] | bit
            last = (self.lengths[free] - 1) % tasks == 0
            self.charges[server, free] = np.where(last, remaining[group], 0.0)
            self.sent[server, free] = self.number(
                self.lengths[free] - 1, self.busy[free] | bit, np.where(last, 0, group)
            )
        drain = math.fsum(rates) - rules.arrival_rate * tasks
        marginal = (2 * self.lengths + tasks) / (2 * drain)
        self.costs = level + (rest > 0) + np.where(lost, rules.arrival_rate * marginal, 0.0)

    @staticmethod
    def count(servers: int, tasks: int, last_level: int) -> int:
        """Return the number of states, before any array exists."""
        per_level = 1 << servers
        for rest in range(1, tasks):
            per_level += sum(math.comb(servers, k) << (servers - k) for k in range(tasks - rest + 1))
        return per_level * (last_level + 1)

    def _possible(self, codes: np.ndarray, rest: int) -> np.ndarray:
        busy, own = codes >> self.rules.servers, codes & self.rules.everyone
        most = self.rules.tasks - rest if rest else 0
        return ((own & ~busy) == 0) & (self.rules.count(own) <= most)

    @cached_property
    def remaining(self) -> np.ndarray:
        """Mean time until all servers of a set have completed their tasks, shape (2^M,)."""
        rules = self.rules
        found = np.zeros(rules.everyone + 1)
        for chosen in range(1, rules.everyone + 1):  # subsets are smaller numbers
            members = [(bit, rate) for bit, rate in zip(rules.bits, rules.rates, strict=True) if chosen & bit]
            total = math.fsum(rate for _, rate in members)
            found[chosen] = (1.0 + sum(rate * found[chosen ^ bit] for bit, rate in members)) / total
        return found

    def number(self, lengths: np.ndarray, busy: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return the numbers of states."""
        place = self._place[lengths % self.rules.tasks, busy << self.rules.servers | own]
        return np.asarray(self._first[lengths] + place)

    def threshold_policy(self, thresholds: Sequence[int]) -> np.ndarray:
        """Return the action in each state: the fastest idle server where the queue is as long as its threshold."""
        actions = np.full(self.size, KEEP)
        for server in reversed(range(self.rules.servers)):  # the fastest idle one is written last, and alone decides
            idle = self.sent[server] >= 0
            actions[idle] = np.where(self.lengths[idle] >= thresholds[server], server, KEEP)
        return actions
