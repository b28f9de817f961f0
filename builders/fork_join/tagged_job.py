"""The chain of one job of the fork-join queue, tagged when it arrives or when its first task starts.

A state is (w, r, busy, own): w tasks, the job's own last one included, wait and will start before any later job's; r later
jobs wait; `busy` servers are busy, and `own` of them work for the job.  With w > d the job itself waits and has w - d tasks
of others before it; with w <= d it has w tasks left to start.  The queue length is w + r d.

Two facts keep it small.  Once r d + 1 reaches the last threshold, all servers stay busy until the last task of the job has
started, so r is counted only up to there.  Once w = 0 nothing else matters, and the rest is the largest of independent
exponential times of the servers in `own`.

The chain has no cycle: with every event w falls, or r rises, or a server becomes idle.  Its states are listed in that
order, a layer (w, r, number of busy servers) at a time, and only those that are reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from builders.fork_join.rules import Rules
from ctmc.model.memory import require_memory

_LARGE = 200_000
"""Entries to come from which the memory is looked at."""
_BYTES = 100
"""Per entry to come: itself, and the copies that are made while it is sorted into its layer."""


@dataclass(frozen=True, eq=False)
class Layer:
    """States that do not lead to each other, and the transitions into them.

    Attributes
    ----------
    first : int
        Number of the first state.
    exits : ndarray, shape (n,)
        Exit rates.
    absorption : ndarray, shape (n,)
        Rates at which the job is done.
    sources, targets, rates : ndarray, shape (entries,)
        Transitions into the states; a negative source -1 - k is the k-th start, its rate the weight.
    """

    first: int
    exits: np.ndarray
    absorption: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    rates: np.ndarray


class TaggedJob:
    """Lists the states from given starts.

    Parameters
    ----------
    rules : Rules

    Attributes
    ----------
    most_later : int
        The largest r that is told apart: all servers are busy there until the job has started its last task.
    next : int
        Number of the next state; where others stand before, to be set at the beginning.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.most_later = -(-(rules.thresholds[-1] - 1) // rules.tasks)
        self.next = 0
        self._pending: defaultdict[tuple[int, int, int], list[tuple[np.ndarray, ...]]] = defaultdict(list)
        self._entries = 0

    def start(
        self, number: int, waiting: int, later: int, busy: np.ndarray, own: np.ndarray, weights: np.ndarray
    ) -> None:
        """Add starts in states with the same w and r.

        Parameters
        ----------
        number : int
            Of the start, from 0; several can be told apart afterwards.
        waiting, later : int
            w and r.
        busy, own : ndarray of int, shape (n,)
        weights : ndarray, shape (n,)
        """
        some = weights > 0
        self._push(waiting, later, busy[some], own[some], np.full(int(some.sum()), -1 - number), weights[some])

    def enter(self, later: int, waiting: int, source: int, rate: float) -> None:
        """Add a transition from a state that stands before, to one where all servers are busy and the job waits."""
        self._push(
            waiting, later, np.array([self.rules.everyone]), np.zeros(1, int), np.array([source]), np.array([rate])
        )

    def _push(
        self, waiting: int, later: int, busy: np.ndarray, own: np.ndarray, sources: np.ndarray, rates: np.ndarray
    ) -> None:
        if waiting == 0:
            busy, later = own, 0
        later = min(later, self.most_later)
        codes = busy << self.rules.servers | own
        counts = self.rules.count(busy)
        self._entries += len(codes)
        for count in np.flatnonzero(np.bincount(counts)):
            some = counts == count
            chosen = (codes, sources, rates) if some.all() else (codes[some], sources[some], rates[some])
            self._pending[-waiting, later, -int(count)].append(chosen)

    def layers(self) -> Iterator[Layer]:
        """Yield all layers in an order in which transitions lead forwards only."""
        while self._pending:
            key = min(self._pending)
            codes, sources, rates = (np.concatenate(parts) for parts in zip(*self._pending.pop(key), strict=True))
            if self._entries > _LARGE:
                require_memory("the chain of a tagged job", _BYTES * self._entries, entries=self._entries)
            self._entries -= len(codes)
            states, place = np.unique(codes, return_inverse=True)
            first = self.next
            self.next += len(states)
            busy, own = states >> self.rules.servers, states & self.rules.everyone
            numbers = np.arange(first, self.next)
            if key[0]:
                exits, absorption = self._move(-key[0], key[1], busy, own, numbers), np.zeros(len(states))
            else:
                exits, absorption = self._finish(own, numbers)
            yield Layer(first, exits, absorption, sources, first + place, rates)

    def _move(self, waiting: int, later: int, busy: np.ndarray, own: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Push all transitions out of a layer with w > 0, and return the exit rates."""
        rules = self.rules
        length = waiting + rules.tasks * later
        exits = rules.total_rate(busy)
        if later < self.most_later:
            _, after = rules.arrival(np.full(len(busy), length), busy)
            started = after & ~busy
            gained = own | rules.ranked(started, max(waiting - rules.tasks, 0), waiting)
            left = np.maximum(waiting - rules.count(started), 0)
            rates = np.full(len(busy), rules.arrival_rate)
            for w in np.unique(left):
                some = left == w
                self._push(int(w), later + 1, after[some], gained[some], numbers[some], rates[some])
            exits = exits + rules.arrival_rate
        forced = rules.forced(length)
        for server, (bit, rate) in enumerate(zip(rules.bits, rules.rates, strict=True)):
            if server < forced:  # goes on with the front task
                mine = own | bit if waiting <= rules.tasks else own
                self._push(waiting - 1, later, busy, mine, numbers, np.full(len(busy), rate))
            else:
                some = (busy & bit) != 0
                self._push(
                    waiting, later, busy[some] ^ bit, own[some] & ~bit, numbers[some], np.full(int(some.sum()), rate)
                )
        return exits

    def _finish(self, own: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Push all transitions out of a layer with w = 0, and return exit and absorption rates."""
        exits = self.rules.total_rate(own)
        if self.rules.count(own[:1])[0] == 1:
            return exits, exits
        for bit, rate in zip(self.rules.bits, self.rules.rates, strict=True):
            some = (own & bit) != 0
            less = own[some] ^ bit
            self._push(0, 0, less, less, numbers[some], np.full(len(less), rate))
        return exits, np.zeros(len(own))
