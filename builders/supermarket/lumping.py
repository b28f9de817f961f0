"""Exchangeable servers: one state per orbit, and the way back.

Servers with the same service rate, preference and capacity may be exchanged without a change of the model, so the chain is
lumpable, ordinarily and exactly, with respect to the orbits of these exchanges (J. G. Kemeny, J. L. Snell, *Finite Markov
chains*, 1960, section 6.3; P. Buchholz, *Exact and ordinary lumpability in finite Markov chains*, Journal of Applied
Probability 31 (1994)).  Of each orbit the state is kept whose queue lengths are non-increasing inside each class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ctmc
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable

PER_SERVER = ("idle", "busy", "boundary_mass", "loss_flow", "boundary_flow")
"""Rewards of single servers."""
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


def class_means(classes: ServerClasses, rewards: Mapping[str, Reward]) -> dict[str, Reward]:
    """Return the rewards of single servers, and their queue lengths, as class means in the user's order of servers."""

    def averaged(rate: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda states: classes.means(rate(states))

    means = {
        name: Reward(averaged(rewards[name].rate), f"{rewards[name].description}; mean over the server's class", True)
        for name in PER_SERVER
        if name in rewards
    }
    return {"queue_length": Reward(classes.means, "mean queue length in the server's class", True), **means}


def lumped_space(limits: Sequence[int], total: int | None, classes: ServerClasses) -> Lattice:
    """Return the lattice of one state per orbit; limits come in the user's order of servers."""
    variables = (Variable(SORTED, len(limits)),)
    return Lattice(tuple(limits[i] for i in classes.order), total, variables, classes.lengths)


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
        The full model, where it is at hand; else it is built, which for a selection function needs `ctmc.allowed_code`, as
        the recipe knows its name only.

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
    rates = np.atleast_1d(np.asarray(parameters["service_rates"], dtype=np.float64))
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
