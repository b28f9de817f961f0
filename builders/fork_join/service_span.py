"""Service span and response time of a job in the fork-join queue.

The service span is the time from the start of the first task of a job to the end of its last.  Its law follows from the
rates at which jobs start in each state, and the chain of a tagged job from there (`tagged_job`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

import ctmc
from builders.fork_join.rules import Rules
from builders.fork_join.tagged_job import TaggedJob
from ctmc.model.phase_type import PhaseType
from ctmc.model.qbd import MatrixGeometric

_RARE, _OTHER = 0, 1
"""Numbers of the two kinds of starts: into r > rbar (the chain nu of the paper), and all others (zeta)."""


@dataclass(frozen=True, eq=False)
class Masses:
    """A stationary distribution in the parts that starts of jobs are made of.

    Attributes
    ----------
    boundary : sequence of ndarray
        Probabilities of levels 0 .. rbar - 1.
    phases : sequence of ndarray, shape (states, 1 + M)
        n_0 and busy servers of these states.
    no_rest : tuple of three floats
        Mass of the states n_0 = 0 of level rbar, of level rbar + 1, and of all levels above together.
    """

    boundary: Sequence[np.ndarray]
    phases: Sequence[np.ndarray]
    no_rest: tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Starts:
    """Rates at which jobs start, and the mean service spans that follow.

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.build("fork_join", service_rates=[5, 2, 1], arrival_rate=1, tasks=3, thresholds=[1, 2, 8])
    >>> answer = ctmc.solve(ctmc.Stationary(queue)).value
    >>> starts = Starts(Rules(np.array([5.0, 2, 1]), 1.0, 3, [1, 2, 8]), masses(answer, queue.phases))
    >>> [f"{rate:.12f}" for rate in starts.rates], [f"{mean:.12f}" for mean in starts.means]
    (['0.001238111508', '0.998761888492'], ['0.898297991071', '0.695373969582'])
    """

    rules: Rules
    masses: Masses

    @cached_property
    def _found(self) -> list[tuple[int, int, int, np.ndarray, np.ndarray, np.ndarray]]:
        """All starts: kind, w, r, busy, own, rates."""
        rules, found = self.rules, []
        for level, (pi, phases) in enumerate(zip(self.masses.boundary, self.masses.phases, strict=True)):
            rest, busy = phases[:, 0], phases[:, 1:] @ rules.bits
            length = rest + rules.tasks * level
            _, after = rules.arrival(length, busy)
            count = rules.count(after & ~busy)
            # the first of the servers switched on take what was left of the job before
            own = rules.ranked(after & ~busy, rest, rules.servers)
            left = rules.tasks - (count - rest)
            for w in np.unique(left[count > rest]):
                some = (count > rest) & (left == w)
                found.append((_OTHER, int(w), level, after[some], own[some], rules.arrival_rate * pi[some]))
            if level > 0:
                found += self._from_queue(_OTHER, level, busy[rest == 0], pi[rest == 0])
        everyone = np.array([rules.everyone])
        for kind, beyond, mass in zip((_OTHER, _OTHER, _RARE), range(3), self.masses.no_rest, strict=True):
            found += self._from_queue(kind, rules.last + beyond, everyone, np.array([mass]))
        return found

    def _from_queue(
        self, kind: int, level: int, busy: np.ndarray, pi: np.ndarray
    ) -> list[tuple[int, int, int, np.ndarray, np.ndarray, np.ndarray]]:
        """Return the starts of a job at a server that has completed a task and goes on, where no other has tasks left."""
        rules = self.rules
        return [
            (kind, rules.tasks - 1, level - 1, busy, np.full(len(busy), rules.bits[server]), rules.rates[server] * pi)
            for server in range(rules.forced(rules.tasks * level))
        ]

    @cached_property
    def rates(self) -> tuple[float, float]:
        """c_1 and c_2; their sum is the rate at which jobs arrive and are not lost."""
        sums = [[weights.sum() for kind, *_, weights in self._found if kind == number] for number in (_RARE, _OTHER)]
        return float(sum(sums[0])), float(sum(sums[1]))

    def chain(self) -> TaggedJob:
        """Return the chain of a job from its start on."""
        chain = TaggedJob(self.rules)
        for start in self._found:
            chain.start(*start)
        return chain

    @cached_property
    def means(self) -> tuple[float, float]:
        """E[xi] and E[eta], the mean service spans after the two kinds of starts.

        Expected times in the states, layer by layer from the starts on: sums, products and quotients of positive numbers.
        """
        times = np.zeros((1024, 2))
        totals = np.zeros(2)
        for layer in self.chain().layers():
            size, end = len(layer.exits), layer.first + len(layer.exits)
            if end > len(times):
                times = np.concatenate([times, np.zeros((max(end, len(times)), 2))])
            inside = layer.sources >= 0
            place, sources, rates = layer.targets - layer.first, layer.sources[inside], layer.rates[inside]
            for kind in (_RARE, _OTHER):
                starts = layer.sources == -1 - kind
                flow = np.bincount(place[inside], weights=times[sources, kind] * rates, minlength=size)
                flow = flow + np.bincount(place[starts], weights=layer.rates[starts], minlength=size)
                times[layer.first : end, kind] = flow / layer.exits
            totals += times[layer.first : end].sum(axis=0)
        rare, other = self.rates
        return float(totals[_RARE] / rare) if rare else 0.0, float(totals[_OTHER] / other)

    @property
    def mean(self) -> float:
        """V, the mean service span of all jobs."""
        (rare, other), (xi, eta) = self.rates, self.means
        return (rare * xi + other * eta) / (rare + other)


def masses(answer: MatrixGeometric | ctmc.Solution, phases: Sequence[np.ndarray]) -> Masses:
    """Return the parts of a stationary distribution, of the queue or of a truncation of it.

    Parameters
    ----------
    answer : MatrixGeometric, or Solution of a truncation
    phases : sequence of ndarray
        Of the queue's levels 0 .. rbar.
    """
    if isinstance(answer, MatrixGeometric):
        top, beyond = answer.boundary[-1], answer.boundary[-1] @ answer.r
        # level rbar + 2 and all above, without a difference
        above = np.linalg.solve(np.eye(len(answer.r)) - answer.r.T, beyond @ answer.r)
        return Masses(answer.boundary[:-1], phases[:-1], (float(top[0]), float(beyond[0]), float(above[0])))
    sizes = [len(table) for table in phases]
    below = sum(sizes[:-1])
    boundary = np.split(answer.at(np.arange(below)), np.cumsum(sizes[:-2]))[: len(sizes) - 1]
    firsts = answer.at(np.arange(below, answer.problem.model.states, sizes[-1]))
    top, beyond = firsts[0], firsts[1:2].sum()
    return Masses(boundary, phases[:-1], (float(top), float(beyond), float(firsts[2:].sum())))


def law_of_span(starts: Starts) -> PhaseType:
    """Return the distribution of the service span.

    Parameters
    ----------
    starts : Starts
    """
    return _collected(starts.chain(), 0, [], np.zeros(0))


def law_of_response(rules: Rules, answer: MatrixGeometric, phases: Sequence[np.ndarray]) -> PhaseType:
    """Return the distribution of the response time, from the arrival of a job to the end of its last task.

    A job finds the stationary distribution, and is tagged when it has arrived.  What it finds up to level rbar starts in
    the chain of `tagged_job`.  Above, with n_0 + d (rbar + L) tasks before it, all servers stay busy while n_0 + d L of them
    start, one after the other at the rate mu, and only the number of later jobs counts.  P{L = l, n_0 = i} = (pi_rbar
    R^l)_i is the law of a backward chain of phases: with delta = pi_rbar (I - R)^-1 it begins in i with the probability
    delta_i, goes from j to k with R_kj delta_k / delta_j, and ends in j with pi_rbar,j / delta_j; L is the number of its
    steps.  So L need not be known at the start: after n_0 tasks, and after d tasks more each time, the chain takes a step
    or ends.  The states (tasks to the next step, phase, later jobs) are finitely many, and the distribution is exact.

    Parameters
    ----------
    rules : Rules
    answer : MatrixGeometric
    phases : sequence of ndarray
        Of levels 0 .. rbar.

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.build("fork_join", service_rates=[1.0], arrival_rate=0.75, tasks=1)      # M/M/1: exponential
    >>> law = law_of_response(Rules(np.array([1.0]), 0.75, 1, [1]), ctmc.solve(ctmc.Stationary(queue)).value, queue.phases)
    >>> round(law.mean, 12), round(law.variance, 12)
    (4.0, 16.0)
    """
    d, top = rules.tasks, answer.boundary[-1]
    found = answer.repeating_phases
    steps = answer.r.T * found / found[:, None]
    ends = top / found
    scale = steps.sum(axis=1) + ends  # 1, up to rounding
    steps, ends = steps / scale[:, None], ends / scale
    capacity = float(rules.rates.sum())
    chain = TaggedJob(rules)
    laters = chain.most_later + 1
    number = np.arange(laters * d * d).reshape(laters, d, d)  # later jobs, tasks to the next step less 1, phase
    chain.next = number.size
    edges = [(number[:-1], number[1:], np.full((laters - 1, d, d), rules.arrival_rate))]
    edges.append((number[:, 1:], number[:, :-1], np.full((laters, d - 1, d), capacity)))
    for later in range(laters):
        into = np.broadcast_to(number[later, d - 1], (d, d))
        edges.append((np.broadcast_to(number[later, 0][:, None], (d, d)), into, capacity * steps))
        for phase in range(d):
            chain.enter(later, d * (rules.last + 1), int(number[later, 0, phase]), capacity * ends[phase])
    initial = np.zeros(number.size)
    initial[number[0, d - 1]] = found[0] * steps[0]
    initial[number[0, np.arange(d - 1), np.arange(1, d)]] += found[1:]
    everyone, nobody = np.array([rules.everyone]), np.zeros(1, dtype=np.int64)
    chain.start(0, d * (rules.last + 1), 0, everyone, nobody, found[:1] * ends[:1])
    for level, (pi, table) in enumerate(zip(answer.boundary[:-1], phases[:-1], strict=True)):
        rest, busy = table[:, 0], table[:, 1:] @ rules.bits
        before = rest + d * level
        _, after = rules.arrival(before, busy)
        started = after & ~busy
        own = rules.ranked(started, before, rules.servers)
        waiting = before + d - rules.count(started)
        for w in np.unique(waiting):
            some = waiting == w
            chain.start(0, int(w), 0, after[some], own[some], pi[some])
    return _collected(chain, number.size, edges, initial)


def _collected(
    chain: TaggedJob, first: int, edges: list[tuple[np.ndarray, np.ndarray, np.ndarray]], initial: np.ndarray
) -> PhaseType:
    """Return the distribution of the time in a chain, behind some states that stand before it."""
    begins, absorption = [initial], [np.zeros(first)]
    entries = [tuple(part.ravel() for part in edge) for edge in edges]
    for layer in chain.layers():
        inside = layer.sources >= 0
        entries.append((layer.sources[inside], layer.targets[inside], layer.rates[inside]))
        places = layer.targets[~inside] - layer.first
        begins.append(np.bincount(places, weights=layer.rates[~inside], minlength=len(layer.exits)))
        absorption.append(layer.absorption)
    sources, targets, rates = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    begin = np.concatenate(begins)
    return PhaseType(
        begin / math.fsum(begin),
        csr_array((rates, (sources, targets)), shape=(len(begin), len(begin))),
        np.concatenate(absorption),
    )
