"""Two queues in series, the first with Coxian service: the benchmark model `tandem` of PRISM and Storm."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctmc
from builders._factors import BLOCK, Event, product_rows
from ctmc.model.distribution import distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import positive_rate, real_number, whole_number
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import is_streaming, made


def _first_queue(states: np.ndarray) -> np.ndarray:
    return (states[:, 0] + 1) // 2


def _dress(
    model: Generator,
    capacity: int,
    arrival_rate: float | None = None,
    first_phase_rate: float = 2.0,
    second_phase_rate: float = 2.0,
    second_phase_probability: float = 0.1,
    service_rate: float = 4.0,
) -> Generator:
    arrivals = 4.0 * capacity if arrival_rate is None else arrival_rate

    def phase(states: np.ndarray) -> np.ndarray:
        return np.where(states[:, 0] == 0, 1, 2 - states[:, 0] % 2)

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        found = solution.expectations(["first_queue", "second_queue", "first_full", "second_busy", "blocked"])
        customers = found["first_queue"] + found["second_queue"]
        throughput = service_rate * found["second_busy"]
        return {
            "throughput": throughput,
            "customers": customers,
            "first_queue": found["first_queue"],
            "second_queue": found["second_queue"],
            "response_time": customers / throughput,
            "loss_probability": found["first_full"],
            "accepted_rate": arrivals * (1 - found["first_full"]),
            "blocking_probability": found["blocked"],
        }

    return model.replace(
        rewards={
            "first_queue": Reward(_first_queue, "customers at the first station"),
            "phase": Reward(phase, "phase of the service at the first station, 1 while it is empty"),
            "customers": Reward(lambda states: _first_queue(states) + states[:, 1], "customers in the network"),
            "first_full": Reward(lambda states: states[:, 0] >= 2 * capacity - 1, "1 while an arrival would be lost"),
            "second_busy": Reward(lambda states: states[:, 1] > 0, "1 while the second station serves"),
            "blocked": Reward(
                lambda states: (states[:, 0] > 0) & (states[:, 1] == capacity),
                "1 while the first station holds customers and the second is full",
            ),
        },
        measures=measures,
    )


@ctmc.builder(version=1, dress=_dress)
def coxian_tandem(
    capacity: int,
    arrival_rate: float | None = None,
    first_phase_rate: float = 2.0,
    second_phase_rate: float = 2.0,
    second_phase_probability: float = 0.1,
    service_rate: float = 4.0,
) -> Generator:
    """M/Cox2/1 queue followed by an exponential server, both with `capacity` places; a full second station blocks.

    The model of H. Hermanns, J. Meyer-Kayser and M. Siegle, "Multi terminal binary decision diagrams to represent and analyse
    continuous time Markov chains", NSMC 1999, known as `tandem` among the benchmarks of PRISM and Storm, whose rates are the
    defaults.  Service at the first station has a first phase, and with probability `second_phase_probability` a second
    one.  While the second station is full, no service ends at the first one, though a first phase may still turn into a
    second.  Arrivals at a full first station are lost.

    Parameters
    ----------
    capacity : int
        Places at each station, that of the customer in service included.
    arrival_rate : float, optional
        Rate of the Poisson arrivals per unit of time; default 4 times the capacity.
    first_phase_rate : float
        Rate of the first phase of service at the first station.
    second_phase_rate : float
        Rate of the second phase.
    second_phase_probability : float
        That the first phase is followed by the second; above 0, up to 1.
    service_rate : float
        Rate of service at the second station.

    Returns
    -------
    Generator
        (2 capacity + 1)(capacity + 1) states ``stage``, ``second_queue``: stage 0 is an empty first station, stage 2k - 1 one
        with k customers in the first phase, stage 2k one in the second.  7 capacity^2 + 3 capacity - 1 transitions, as
        PRISM counts them: 8,386,560 states and 29,337,603 transitions for capacity 2047.  No transition leads back to its
        state, and no two lead from one state to the same other one.  Rewards: first_queue, phase, customers, first_full,
        second_busy, blocked.  Labels: first_queue_full, second_queue_full, network_full (both, in the second phase).
        Measures: throughput, customers, first_queue, second_queue, response_time (of customers that are let in),
        loss_probability, accepted_rate, blocking_probability.

    Raises
    ------
    ModelError
        If the capacity is not a positive whole number, a rate is not positive and finite, the probability is not in (0, 1],
        or the model needs more than the memory limit.

    Examples
    --------
    >>> tandem = coxian_tandem(capacity=7)
    >>> tandem.size, tandem.entries
    (120, 363)
    >>> round(ctmc.solve(ctmc.Stationary(tandem), "gth").measures()["customers"], 9)
    7.746562185

    On the command line: ``ctmc build coxian_tandem --capacity 1023 -o tandem.h5``
    """
    places = whole_number("capacity", capacity, 1)
    arrivals = 4.0 * places if arrival_rate is None else positive_rate("arrival_rate", arrival_rate)
    first, second = (
        positive_rate("first_phase_rate", first_phase_rate),
        positive_rate("second_phase_rate", second_phase_rate),
    )
    service = positive_rate("service_rate", service_rate)
    again = real_number(
        "second_phase_probability", second_phase_probability, lambda value: 0 < value <= 1, "a number above 0, up to 1"
    )

    space = Lattice((2 * places, places), variables=(Variable("stage"), Variable("second_queue")))
    entries = 7 * places**2 + 3 * places - 1
    wide = 4 if space.size <= np.iinfo(np.int32).max else 8
    whole = (
        3 * space.size if is_streaming() else (8 + wide) * entries + 30 * space.size
    )  # labels alone, or rows as well
    require_memory("the tandem", 400 * places + whole, states=space.size, entries=entries)
    stage, queue = np.arange(2 * places + 1), np.arange(places + 1)
    to_second = (stage % 2 == 0) & (stage > 0)
    arrived = np.where(stage == 1, 0, np.where(stage > 2, stage - 2, -1))
    # a service ends: what is left is empty, or begins in the first phase
    left = stage % 2 == 1
    left[0] = True
    left[-2:] = False
    after_first = np.where(left, np.where(stage == 0, 1, stage + 2), -1)
    after_second = np.where(left, np.where(stage == 0, 2, stage + 3), -1)
    moved, served = queue - 1, np.where(queue < places, queue + 1, -1)
    rows, _ = product_rows(
        [2 * places + 1, places + 1],
        [
            Event(arrivals, {0: arrived}),
            Event(again * first, {0: np.where(to_second, stage - 1, -1)}),
            Event(service, {1: served}),
            Event((1 - again) * first, {0: after_first, 1: moved}),
            Event(second, {0: after_second, 1: moved}),
        ],
    )
    full_first = np.repeat(stage >= 2 * places - 1, places + 1)
    full_second = np.tile(queue == places, len(stage))
    return Generator(
        space,
        made(space.size, rows, lambda: entries, block=BLOCK),
        initial=distribution(space, [0, 0]),
        labels={
            "first_queue_full": full_first,
            "second_queue_full": full_second,
            "network_full": np.repeat(stage == 2 * places, places + 1) & full_second,
        },
    )


coxian_tandem.rates_that_may_change = (
    *("arrival_rate", "first_phase_rate", "second_phase_rate"),
    *("second_phase_probability", "service_rate"),
)
coxian_tandem.event_rates = ("second_phase_rate", "service_rate", "first_phase_rate")  # for `ctmc.sensitivity`
