"""Exchangeable servers: one state per orbit, and the way back.

Servers with the same service rate, preference and capacity may be exchanged without a change of the model, so the chain is
lumpable, ordinarily and exactly, with respect to the orbits of these exchanges (J. G. Kemeny, J. L. Snell, *Finite Markov
chains*, 1960, section 6.3; P. Buchholz, *Exact and ordinary lumpability in finite Markov chains*, Journal of Applied
Probability 31 (1994)).  Of each orbit the state is kept whose queue lengths are non-increasing inside each class.

The predecessors of such a state y, in ascending order.  Inside a class equal queue lengths form a run.  One job less in the
last server of a run with a positive length is an arrival; one more in the first server of a run below the limit is a
service completion.  Several servers of the predecessor may make the step: as many as have there the length from which it
is made, so the rate of one is taken that many times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

import ctmc
from builders.supermarket.transitions import BLOCK
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.products import compiled, compiled_parallel, unsigned
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable

SORTED = "sorted_queue_length"
"""Name of the coordinates of a lumped state."""


@dataclass(frozen=True)
class ServerClasses:
    """Which servers are exchangeable.

    Attributes
    ----------
    order : tuple of int, length M
        Server of the user's list that stands at each coordinate: classes in the order of their first server, and inside a
        class the servers in the user's order.
    lengths : tuple of int
        Number of servers in each class.
    """

    order: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def trivial(self) -> bool:
        """Whether no two servers are exchangeable; then the order is the user's."""
        return max(self.lengths) == 1

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the class means of a table over coordinates, in the user's order of servers; shape (m, M).

        Examples
        --------
        >>> ServerClasses((0, 2, 1), (2, 1)).means(np.array([[4, 1, 7]])).tolist()
        [[2.5, 7.0, 2.5]]
        """
        starts = np.cumsum((0, *self.lengths[:-1]))
        of_classes = np.add.reduceat(values, starts, axis=1, dtype=np.float64) / self.lengths
        return self.given_order(np.repeat(of_classes, self.lengths, axis=1))

    def given_order(self, values: np.ndarray) -> np.ndarray:
        """Return an array over coordinates, its last axis, in the user's order of servers."""
        result = np.empty_like(values)
        result[..., self.order] = values
        return result

    def positions(self, space: Lattice, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the orbit of each full state stands, and how many states it has.

        Parameters
        ----------
        space : Lattice
            Of the lumped model.
        states : ndarray of int64, shape (m, M)
            Queue lengths in the user's order of servers.

        Returns
        -------
        positions : ndarray of int64, shape (m,)
        sizes : ndarray of float64, shape (m,)
            Multinomial coefficients.
        """
        ordered = states[:, self.order]
        sizes = np.ones(len(states))
        first = 0
        for length in self.lengths:
            part = -np.sort(-ordered[:, first : first + length], axis=1)
            ordered[:, first : first + length] = part
            run = np.ones(len(states))
            for k in range(1, length):  # (k + 1) choices of a place, of which those in a run of equal values are one
                run = np.where(part[:, k] == part[:, k - 1], run + 1, 1)
                sizes *= (k + 1) / run
            first += length
        return space.find(ordered), np.rint(sizes)


def server_classes(rates: np.ndarray, preferences: np.ndarray, limits: Sequence[int]) -> ServerClasses:
    """Return the classes of servers with the same service rate, preference and capacity.

    Parameters
    ----------
    rates, preferences : ndarray, shape (M,)
    limits : sequence of int, length M

    Examples
    --------
    >>> server_classes(np.array([2.0, 1.0, 2.0]), np.ones(3) / 3, [4, 4, 4])
    ServerClasses(order=(0, 2, 1), lengths=(2, 1))
    """
    members: dict[tuple[float, float, int], list[int]] = {}
    for i, kind in enumerate(zip(rates.tolist(), preferences.tolist(), limits, strict=True)):
        members.setdefault(kind, []).append(i)
    order = tuple(i for group in members.values() for i in group)
    return ServerClasses(order, tuple(len(group) for group in members.values()))


def class_means(classes: ServerClasses) -> dict[str, Reward]:
    """Return the rewards of single servers, as class means in the user's order of servers."""
    return {
        "queue_length": Reward(lambda states: classes.means(states), "mean queue length in the server's class", True),
        "idle": Reward(lambda states: classes.means(states == 0), "share of idle servers in the server's class", True),
        "busy": Reward(lambda states: classes.means(states > 0), "share of busy servers in the server's class", True),
    }


def lumped_space(limits: Sequence[int], total: int | None, classes: ServerClasses) -> Lattice:
    """Return the lattice of one state per orbit; limits come in the user's order of servers."""
    variables = (Variable(SORTED, len(limits)),)
    return Lattice(tuple(limits[i] for i in classes.order), total, variables, classes.lengths)


def largest_entries(space: Lattice) -> int:
    """Return an upper bound of the number of transitions of a lumped model; without a total cap it is the number itself,
    unless some servers never get a job.

    In a class of m servers with limit K a given length stands in the share m / (m + K) of the states, and each positive
    length makes a predecessor by an arrival, each below K one by a service.  A total cap takes transitions away, and
    keeps d different positive lengths only where d (d + 1) / 2 jobs are allowed.
    """
    kinds = [(length, space.limits[first]) for first, length in zip(space.firsts, space.classes, strict=True)]
    whole = replace(space, total=None).size
    arrivals = sum(whole * length * limit // (length + limit) for length, limit in kinds)
    if space.total is None:
        return 2 * arrivals
    different = int((np.sqrt(8 * space.total + 1) - 1) / 2)
    return 2 * min(arrivals, space.size * sum(min(length, limit, different) for length, limit in kinds))


def lift(solution: ctmc.Solution, full: Generator | None = None) -> ctmc.Solution:
    """Return the answer of the full model that the answer of a lumped one stands for.

    The states of an orbit have equal shares of its probability.  Lifting goes with the generators, lift(p) Q = lift(p Q'),
    and keeps the L1 norm, so the defect and the status that the certificate found hold for the lifted answer as well.
    Conditions, marginals and rewards of single servers are then those of the full model.

    Parameters
    ----------
    solution : Solution
        Stationary or transient, of a model made with ``lump=True``.
    full : Generator, optional
        The full model, where it is at hand; else it is built.

    Returns
    -------
    Solution
        Of the full model.  A transient one starts from the lifted initial distribution.

    Raises
    ------
    ModelError
        If the model is not a lumped supermarket model, `full` is another one, or the full model would not fit the memory
        limit.

    Examples
    --------
    >>> from builders.supermarket import supermarket
    >>> model = supermarket([1] * 3, arrival_rate=2, choices=2, capacity=4, lump=True)
    >>> solution = lift(ctmc.solve(ctmc.Stationary(model), "gth"))
    >>> solution.value.shape, round(solution.probability("queue_length[0] >= 2"), 9)
    ((125,), 0.312882212)
    """
    model = solution.problem.model
    recipe = model.recipe
    if recipe is None or recipe.builder != "supermarket" or recipe.parameters.get("lump") is not True:
        raise ModelError("the solution is not of a lumped model; allowed are those of supermarket(.., lump=True).")
    parameters = {name: value for name, value in recipe.parameters.items() if name != "lump"}
    box = math.prod(limit + 1 for limit in model.space.limits)
    states = box if model.space.total is None else Lattice(model.space.limits, model.space.total).size
    entries = int(2 * states * sum(limit / (limit + 1) for limit in model.space.limits))
    # the full arrays, the lifted answer, and the distribution that the problem starts from
    needed = 12 * entries + (64 + 8 * solution.value.size // model.size) * states
    require_memory("the full model of a lifted solution", needed, states=states, entries=entries)
    if full is None:
        full = ctmc.build("supermarket", **parameters)
    elif full.recipe is None or full.recipe.hash != replace(recipe, parameters=parameters).hash:
        raise ModelError("full is another model; allowed is the one that the same parameters make without lump=True.")
    rates = np.asarray(parameters["service_rates"], dtype=np.float64)
    shown = parameters.get("preferences")
    preferences = np.full(len(rates), 1 / len(rates)) if shown is None else np.asarray(shown, dtype=np.float64)
    classes = server_classes(rates, preferences, full.space.limits)
    problem: Any = solution.problem
    initial = problem.initial
    if initial is not None:
        initial = lifted(model.space, full.space, classes, initial.dense(model.size))
    value = lifted(model.space, full.space, classes, solution.value)
    value.flags.writeable = False
    return replace(solution, problem=replace(problem, model=full, initial=initial), value=value, _cache={})


def lifted(space: Lattice, full: Lattice, classes: ServerClasses, values: np.ndarray) -> np.ndarray:
    """Return probabilities of the full states, those of an orbit being equal.

    Parameters
    ----------
    space, full : Lattice
        Of the lumped and of the full model.
    classes : ServerClasses
    values : ndarray, shape (size,) or (times, size)
        Probabilities of the orbits.

    Returns
    -------
    ndarray, shape (full size,) or (times, full size)
    """
    if classes.trivial:
        return values.copy()
    result = np.empty((*values.shape[:-1], full.size))
    for slab, states in full.slabs():
        positions, sizes = classes.positions(space, states)
        result[..., slab] = values[..., positions] / sizes
    return result


def coded_transitions(
    space: Lattice, keys: np.ndarray, shares: np.ndarray, service_rates: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (indptr, sources, codes, values) of all transitions by destination; entry k has the rate values[codes[k]].

    Parameters
    ----------
    space : Lattice
        With an ordered class for each class of servers.
    keys : ndarray of int64, shape (M, largest limit + 1)
        Preference key of each server at each queue length.
    shares : ndarray, shape (M + 1, M + 1)
        Arrival rate at a server, by the number of better and of tied servers.
    service_rates : ndarray, shape (M,)

    Returns
    -------
    indptr : ndarray of int64, shape (n + 1,)
    sources : ndarray of int32 or int64, shape (entries,)
    codes : ndarray of uint8, uint16 or uint32, shape (entries,)
        The narrowest type that takes all different rates.
    values : ndarray of float64
        Different rates, ascending.
    """
    starts = space.states(np.arange(0, space.size, BLOCK)).view(np.uint64)
    limits = np.array(space.limits, dtype=np.uint64)
    firsts = np.repeat(space.firsts, space.classes).astype(np.uint64)
    total = np.uint64(sum(space.limits) if space.total is None else space.total)
    indptr = np.zeros(space.size + 1, dtype=np.int64)
    used = np.zeros((*shares.shape, max(space.classes) + 1), dtype=np.uint8)
    _count(starts, limits, firsts, total, keys, shares, indptr, used)
    np.cumsum(indptr, out=indptr)
    # One code for each different rate: of the arrivals that occur, and of one and more servers of a class that complete.
    multiples = np.arange(used.shape[2])
    better, tied, times = np.nonzero(used)
    services = service_rates[:, None] * multiples
    arrivals = shares[better, tied] * times
    values, places = np.unique(np.concatenate([arrivals, services.ravel()]), return_inverse=True)
    narrow = np.min_scalar_type(len(values) - 1)
    of_arrivals = np.zeros(used.shape, dtype=narrow)
    of_arrivals[better, tied, times] = places[: len(arrivals)]
    of_services = places[len(arrivals) :].reshape(services.shape).astype(narrow)
    sources = np.empty(indptr[-1], dtype=np.int32 if space.size <= np.iinfo(np.int32).max else np.int64)
    codes = np.empty(indptr[-1], dtype=narrow)
    _fill(
        starts, limits, firsts, total, space.total is not None, space.ranks.view(np.uint64), keys, shares,
        of_arrivals, of_services, unsigned(indptr), unsigned(sources), codes,
    )  # fmt: skip
    return indptr, sources, codes, values


# Everything below counts in unsigned numbers: Numba's test for negative indices would cost a factor of two.
_NONE, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)


@compiled
def _find_runs(state: Any, firsts: Any, keys: Any, begins: Any, members: Any, run_keys: Any) -> Any:
    """Describe the runs of equal values in a class: first coordinate, number of servers, preference key; return how many.

    ``begins`` also holds the end of the last run.
    """
    runs = _NONE
    for i in range(np.uint64(state.size)):
        if i == firsts[i] or state[i] != state[i - _ONE]:
            begins[runs] = i
            members[runs] = 1
            run_keys[runs] = keys[i, state[i]]
            runs += _ONE
        else:
            members[runs - _ONE] += 1
    begins[runs] = np.uint64(state.size)
    return runs


@compiled
def _ranking(own: int, members: Any, run_keys: Any, runs: Any, r: Any) -> Any:
    """Numbers of better and of tied servers for one of run r, its key being `own` with one job less."""
    better, tied = 0, 1
    for s in range(runs):
        better += members[s] * (run_keys[s] < own)
        tied += members[s] * (run_keys[s] == own)
    # it was counted with the job that it has more
    return np.uint64(better - (run_keys[r] < own)), np.uint64(tied - (run_keys[r] == own))


@compiled
def _with_one_less(state: Any, firsts: Any, begins: Any, runs: Any, r: Any) -> Any:
    """Number of servers with the length of run r less one, once a server of that run has it too."""
    after = begins[r + _ONE]
    same = r + _ONE < runs and firsts[after] == firsts[begins[r]]
    if same and state[after] + _ONE == state[begins[r]]:
        return begins[r + _TWO] - after + _ONE
    return _ONE


@compiled
def _with_one_more(state: Any, firsts: Any, begins: Any, r: Any) -> Any:
    """Number of servers with the length of run r and one more, once a server of that run has it too."""
    if r > _NONE:
        before = begins[r - _ONE]
        if firsts[before] == firsts[begins[r]] and state[before] == state[begins[r]] + _ONE:
            return begins[r] - before + _ONE
    return _ONE


@compiled
def _advance(state: Any, limits: Any, firsts: Any, total: Any, filled: Any) -> Any:
    """Count up to the next state of the lattice; takes and returns the sum of the coordinates."""
    i = np.uint64(state.size)
    while i > _NONE:
        i -= _ONE
        largest = limits[i] if i == firsts[i] else state[i - _ONE]
        if state[i] < largest and filled < total:
            state[i] += _ONE
            return filled + _ONE
        filled -= state[i]
        state[i] = _NONE
    return filled


@compiled_parallel
def _count(
    starts: Any, limits: Any, firsts: Any, total: Any, keys: Any, shares: Any, counts: Any, used: Any
) -> None:  # fmt: skip
    """Set counts[y + 1] to the number of transitions into each state y, and mark which arrival rates occur."""
    n = np.uint64(counts.size - 1)
    for block in numba.prange(starts.shape[0]):
        state = starts[block].copy()
        begins = np.empty(state.size + 1, dtype=np.uint64)
        members, run_keys = np.empty(state.size, dtype=np.int64), np.empty(state.size, dtype=np.int64)
        filled = state.sum()
        first = np.uint64(block * BLOCK)
        for y in range(first, min(first + np.uint64(BLOCK), n)):
            runs = _find_runs(state, firsts, keys, begins, members, run_keys)
            count = 0
            for r in range(runs):
                length = state[begins[r]]
                if length > _NONE:
                    better, tied = _ranking(keys[begins[r], length - _ONE], members, run_keys, runs, r)
                    if shares[better, tied] > 0.0:
                        times = _with_one_less(state, firsts, begins, runs, r)
                        if used[better, tied, times] == 0:  # written once each, so that threads do not wait
                            used[better, tied, times] = 1
                        count += 1
                if length < limits[begins[r]] and filled < total:
                    count += 1
            counts[y + _ONE] = count
            filled = _advance(state, limits, firsts, total, filled)


@compiled_parallel
def _fill(
    starts: Any, limits: Any, firsts: Any, total: Any, capped: bool, ranks: Any, keys: Any, shares: Any,
    of_arrivals: Any, of_services: Any, indptr: Any, sources: Any, codes: Any,
) -> None:  # fmt: skip
    """Write sources and codes.  Moves 5 bytes an entry."""
    n, m = np.uint64(indptr.size - 1), np.uint64(limits.size)
    for block in numba.prange(starts.shape[0]):
        state = starts[block].copy()
        begins = np.empty(m + _ONE, dtype=np.uint64)
        members, run_keys = np.empty(m, dtype=np.int64), np.empty(m, dtype=np.int64)
        rooms = np.zeros(m, dtype=np.uint64)
        # What the coordinates after i add to the position if one job less, or one more, stands before them; positions
        # wrap around below zero and back.
        after_less, after_more = np.zeros(m, dtype=np.uint64), np.zeros(m, dtype=np.uint64)
        filled = state.sum()
        first = np.uint64(block * BLOCK)
        for y in range(first, min(first + np.uint64(BLOCK), n)):
            if capped:
                room, less, more = total - filled, _NONE, _NONE
                for step in range(m):
                    i = m - _ONE - step
                    x = state[i]
                    room += x
                    rooms[i], after_less[i], after_more[i] = room, less, more
                    less += ranks[i, min(room + _ONE, total), x] - ranks[i, room, x]
                    more += ranks[i, max(room, _ONE) - _ONE, x] - ranks[i, room, x]
            runs = _find_runs(state, firsts, keys, begins, members, run_keys)
            k = indptr[y]
            for r in range(runs):
                length = state[begins[r]]
                if length > _NONE:
                    better, tied = _ranking(keys[begins[r], length - _ONE], members, run_keys, runs, r)
                    if shares[better, tied] > 0.0:
                        i = begins[r + _ONE] - _ONE
                        fewer = ranks[i, rooms[i], length] - ranks[i, rooms[i], length - _ONE]
                        sources[k] = y + after_less[i] - fewer
                        codes[k] = of_arrivals[better, tied, _with_one_less(state, firsts, begins, runs, r)]
                        k += _ONE
            if filled < total:
                for step in range(runs):
                    r = runs - _ONE - step
                    i = begins[r]
                    if state[i] < limits[i]:
                        further = ranks[i, rooms[i], state[i] + _ONE] - ranks[i, rooms[i], state[i]]
                        sources[k] = y + after_more[i] + further
                        codes[k] = of_services[i, _with_one_more(state, firsts, begins, r)]
                        k += _ONE
            filled = _advance(state, limits, firsts, total, filled)
