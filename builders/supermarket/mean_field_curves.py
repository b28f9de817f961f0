"""Mean queue lengths over time with finitely many servers, exact and simulated, to be seen beside the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import ctmc
from builders.supermarket.lumping import server_classes
from ctmc.errors import ModelError
from ctmc.estimate import CONFIDENCE, student_interval
from ctmc.model.generator import Generator

_EVENTS = 10_000_000
"""Of the simulations of one curve, about."""

if TYPE_CHECKING:
    from builders.supermarket.mean_field import MeanField

MOST_STATES = 20_000
BOUNDARY = 1e-6
"""Probability that some queue of a truncated model is full, at most, at any of the times."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Mean queue length of each class over time.

    Attributes
    ----------
    label : str
    servers : int
    times : ndarray, shape (T,)
    queue_length : ndarray, shape (T, C)
    half_width : ndarray, shape (T, C), or None
        Of the confidence intervals of a simulation.
    """

    label: str
    servers: int
    times: np.ndarray = field(repr=False)
    queue_length: np.ndarray = field(repr=False)
    half_width: np.ndarray | None = field(default=None, repr=False)

    def record(self) -> dict[str, Any]:
        """Return the curve as plain values by name."""
        width = None if self.half_width is None else self.half_width.tolist()
        return {
            "label": self.label,
            "servers": self.servers,
            "queue_length": self.queue_length.tolist(),
            "half_width": width,
        }


def exact_curve(found: MeanField, servers: int) -> tuple[Curve, float]:
    """Return the exact course with finitely many servers, and the largest probability that some queue is full.

    The lumped model is truncated at capacities that grow until that probability is small at all times, or there would be too
    many states.

    Parameters
    ----------
    found : MeanField
        With times.
    servers : int
        Such that the shares are whole numbers of servers.

    Raises
    ------
    ModelError
        If there is no such model, or even the smallest truncation has too many states.

    Examples
    --------
    >>> from builders.supermarket.mean_field import mean_field
    >>> found = mean_field(service_rates=[1], arrival_rate_per_server=0.7, choices=2, times=[1, 4])
    >>> curve, full = exact_curve(found, 2)
    >>> curve.queue_length.round(8).tolist(), found.queue_length_at.round(8).tolist(), full < 1e-6
    ([[0.45696581], [0.9336704]], [[0.4525928], [0.88129532]], True)
    """
    parameters = found.finite_parameters(servers)
    counts = np.rint(found.shares * servers).astype(int)
    lengths = np.repeat(np.array(found.initial), counts)
    first = np.cumsum(counts) - counts  # a server of each class
    kinds = list(zip(parameters["service_rates"], parameters["preferences"], strict=True))
    # exchangeable servers begin alike, unless equal classes begin with different lengths
    lump = len(set(kinds)) == len({(*kind, length) for kind, length in zip(kinds, lengths.tolist(), strict=True)})
    numbers = [kinds.count(kind) for kind in set(kinds)] if lump else [1] * servers
    capacity, kept = max(8, 2 + max(found.initial)), None
    while True:
        states = math.prod(math.comb(capacity + number, number) for number in numbers)
        if states > MOST_STATES:
            if kept is None:
                raise ModelError(
                    f"servers is {servers}, for which a capacity of {capacity} makes {states:,} states; allowed are {MOST_STATES:,}."
                )
            return kept
        model = ctmc.build("supermarket", **parameters, capacity=capacity, lump=lump)
        assert isinstance(model, Generator)
        order = list(range(servers))
        if lump:
            rates, preferences = (np.array(parameters[name]) for name in ("service_rates", "preferences"))
            order = list(server_classes(rates, preferences, (capacity,) * servers).order)
        queues, full = _followed(model, tuple(lengths[order].tolist()), found.times)
        curve = Curve(
            label=f"{servers} servers, exact", servers=servers, times=found.times, queue_length=queues[:, first]
        )
        kept = curve, float(full.max())
        if kept[1] <= BOUNDARY:
            return kept
        capacity = capacity * 3 // 2


def _followed(model: Generator, initial: Any, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean queue lengths, and the probability that some queue is full; shapes (T, M) and (T,)."""
    solution = ctmc.solve(ctmc.Transient(model, initial=initial, times=times, reward=("queue_length", "boundary")))
    return solution.expected("queue_length"), solution.expected("boundary")


def simulated_curve(found: MeanField, servers: int, seed: int) -> Curve:
    """Return the simulated course with finitely many servers, with bands of 95 %; no queue is truncated.

    There are enough replications for some ten million events, from 4 to 1000.

    Parameters
    ----------
    found : MeanField
        With times.
    servers : int
        Such that the shares are whole numbers of servers.
    seed : int

    Raises
    ------
    ModelError
        If there is no such model, or the selection is a function.

    Examples
    --------
    >>> from builders.supermarket.mean_field import mean_field
    >>> found = mean_field(service_rates=[1], arrival_rate_per_server=0.7, choices=2, times=[4])
    >>> curve = simulated_curve(found, 1000, seed=20265)
    >>> bool(abs(curve.queue_length - found.queue_length_at)[0, 0] < 0.005)
    True
    """
    parameters = found.finite_parameters(servers)
    counts = np.rint(found.shares * servers).astype(int)
    events = servers * (found.arrival_rate_per_server + float(found.shares @ found.service_rates)) * found.times[-1]
    replications = int(np.clip(_EVENTS / max(events, 1), 4, 1000))
    estimate = ctmc.simulate(
        "supermarket", **parameters, times=found.times.tolist(), initial=np.repeat(found.initial, counts).tolist(),
        replications=replications, seed=seed, by_server=len(counts) > 1, imbalance=False,
    )  # fmt: skip
    path = estimate.trajectories["queue_length"]
    means, widths = path.means, path.half_widths
    if len(counts) == 1:
        means, widths = means[:, None], widths[:, None]
    else:
        means, widths = _class_means(path.samples, counts)
    return Curve(
        label=f"{servers:,} servers, simulated {replications} times", servers=servers, times=found.times,
        queue_length=means, half_width=widths,
    )  # fmt: skip


def _class_means(samples: np.ndarray | None, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means of the classes and half widths of their intervals, shapes (T, C), from (replications, T, M)."""
    assert samples is not None  # a simulation keeps them
    first = np.cumsum(counts) - counts
    of_classes = np.add.reduceat(samples, first, axis=2) / counts
    means, widths = student_interval(of_classes, CONFIDENCE)
    return np.asarray(means), np.asarray(widths)


def finite_curves(
    found: MeanField, exact: Sequence[int], simulated: Sequence[int], seed: int
) -> tuple[list[Curve], list[str]]:
    """Return exact and simulated curves, and notes on those that are missing or inaccurate.

    Parameters
    ----------
    found : MeanField
        With times.
    exact, simulated : sequence of int
        Numbers of servers.
    seed : int
        Of the simulations.
    """
    curves, notes = [], []
    for servers in exact:
        try:
            curve, full = exact_curve(found, servers)
        except ModelError as error:
            notes.append(f"no exact curve: {error}")
            continue
        curves.append(curve)
        if full > BOUNDARY:
            notes.append(f"{curve.label}: some queue of the truncated model is full with probability {full:.1e}.")
    for servers in simulated:
        try:
            curves.append(simulated_curve(found, servers, seed))
        except ModelError as error:
            notes.append(f"no simulated curve: {error}")
    return curves, notes
