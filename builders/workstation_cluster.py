"""Two sub-clusters of workstations, their switches and a backbone: the benchmark model `cluster` of PRISM and Storm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ctmc
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import positive_rate, real_number, whole_number
from ctmc.model.reward import Reward
from ctmc.model.state_space import Listed, Variable

_MOST_WORKSTATIONS = 100_000
"""Its states take hundreds of terabytes."""
_NAMES = ("left_workstations", "right_workstations", "left_switch", "right_switch", "backbone", "repair")
_IDLE, _LEFT, _RIGHT = 0, 1, 2
"""Values of ``repair``; 3, 4 and 5 are the left switch, the right switch and the backbone."""
# switches and backbone, what is being repaired; what is, does not work
_CONFIGURATIONS = np.array(
    [
        (left, right, backbone, repair)
        for left in range(2)
        for right in range(2)
        for backbone in range(2)
        for repair in range(6)
        if repair <= _RIGHT or not (left, right, backbone)[repair - 3]
    ]
)


def _connected(states: np.ndarray, least: int) -> np.ndarray:
    """Return whether so many workstations work and are connected: in one sub-cluster, or in both over the backbone."""
    left, right = states[:, 0], states[:, 1]
    alone = ((left >= least) & (states[:, 2] > 0)) | ((right >= least) & (states[:, 3] > 0))
    return np.asarray(alone | ((left + right >= least) & states[:, 2:5].all(axis=1)))


def _dress(
    model: Generator,
    workstations: int,
    workstation_failure_rate: float = 1 / 500,
    switch_failure_rate: float = 1 / 4000,
    backbone_failure_rate: float = 1 / 5000,
    inspection_rate: float = 10.0,
    workstation_repair_rate: float = 2.0,
    switch_repair_rate: float = 0.25,
    backbone_repair_rate: float = 0.125,
    required_share: float = 0.75,
) -> Generator:
    least = _required(required_share, workstations)
    speeds = np.array([0, workstation_repair_rate, workstation_repair_rate, switch_repair_rate, switch_repair_rate,
                       backbone_repair_rate])  # fmt: skip

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        found = solution.expectations(["operational_share", "below_minimum", "below_premium", "repair_rate"])
        return {
            "minimum_probability": 1 - found["below_minimum"],
            "premium_probability": 1 - found["below_premium"],
            "below_minimum": found["below_minimum"],
            "below_premium": found["below_premium"],
            "operational_share": found["operational_share"],
            "repairs": found["repair_rate"],
        }

    return model.replace(
        rewards={
            "operational_share": Reward(
                lambda states: states[:, :2].sum(axis=1) / (2 * workstations), "share of the workstations that work"
            ),
            "below_minimum": Reward(
                lambda states: ~_connected(states, least), f"1 while fewer than {least} workstations are connected"
            ),
            "below_premium": Reward(
                lambda states: ~_connected(states, workstations),
                f"1 while fewer than {workstations} workstations are connected",
            ),
            "repair_rate": Reward(lambda states: speeds[states[:, 5]], "rate at which repairs end"),
        },
        measures=measures,
    )


@ctmc.builder(version=1, dress=_dress)
def workstation_cluster(
    workstations: int,
    workstation_failure_rate: float = 1 / 500,
    switch_failure_rate: float = 1 / 4000,
    backbone_failure_rate: float = 1 / 5000,
    inspection_rate: float = 10.0,
    workstation_repair_rate: float = 2.0,
    switch_repair_rate: float = 0.25,
    backbone_repair_rate: float = 0.125,
    required_share: float = 0.75,
) -> Generator:
    """Two sub-clusters of workstations, each behind a switch, joined by a backbone, and one repair unit for all of it.

    The dependable cluster of B. Haverkort, H. Hermanns and J.-P. Katoen, "On the use of model checking techniques for
    dependability evaluation", SRDS 2000, known as `cluster` among the benchmarks of PRISM and Storm, whose rates (per
    hour) are the defaults.  All components fail independently.  The repair unit, when free, turns to each kind of component of
    which one is down at `inspection_rate`, and is then busy until it is repaired; workstations of a sub-cluster may fail
    meanwhile.

    Parameters
    ----------
    workstations : int
        Number of workstations in each sub-cluster.
    workstation_failure_rate : float
        Rate at which one workstation fails.
    switch_failure_rate : float
        Rate at which one switch fails.
    backbone_failure_rate : float
        Rate at which the backbone fails.
    inspection_rate : float
        Rate at which the repair unit turns to a kind of component that is down.
    workstation_repair_rate : float
        Rate of the repair of a workstation.
    switch_repair_rate : float
        Rate of the repair of a switch.
    backbone_repair_rate : float
        Rate of the repair of the backbone.
    required_share : float
        Share of `workstations` that are the minimum quality of service, above 0, up to 1; rounded down.

    Returns
    -------
    Generator
        States ``left_workstations``, ``right_workstations`` (how many work), ``left_switch``, ``right_switch``, ``backbone``
        (1 while it works) and ``repair``: 0 while the repair unit is free, or what it is at: 1 and 2 a workstation on the
        left and right, 3 and 4 the switch there, 5 the backbone.  36 N^2 + 56 N + 20 states for N workstations.  No transition
        leads back to its state and no two lead from one state to the same other one, so the numbers are those that PRISM
        counts: 597,012 states and 2,908,192 transitions for 128 workstations.  Rewards: operational_share, below_minimum,
        below_premium, repair_rate.  Labels: minimum and premium, the share required and as many as are in one
        sub-cluster, connected by one switch, or by both and the backbone.  Measures: minimum_probability, premium_probability,
        below_minimum, below_premium, operational_share, repairs (per unit of time).

    Raises
    ------
    ModelError
        If the number of workstations is not a positive whole number, a rate is not positive and finite, the share is not in
        (0, 1], or the model needs more than the memory limit.

    Examples
    --------
    >>> cluster = workstation_cluster(workstations=4)
    >>> cluster.size, cluster.entries
    (820, 3616)
    >>> round(ctmc.solve(ctmc.Stationary(cluster), "gth").measures()["premium_probability"], 9)
    0.999921241

    On the command line: ``ctmc build workstation_cluster --workstations 128 -o cluster.h5``
    """
    most = whole_number("workstations", workstations, 1, _MOST_WORKSTATIONS)
    workstation_failures = positive_rate("workstation_failure_rate", workstation_failure_rate)
    switch_failures = positive_rate("switch_failure_rate", switch_failure_rate)
    backbone_failures = positive_rate("backbone_failure_rate", backbone_failure_rate)
    inspections = positive_rate("inspection_rate", inspection_rate)
    workstation_repairs = positive_rate("workstation_repair_rate", workstation_repair_rate)
    switch_repairs = positive_rate("switch_repair_rate", switch_repair_rate)
    backbone_repairs = positive_rate("backbone_repair_rate", backbone_repair_rate)
    least = _required(required_share, most)
    size = 36 * most**2 + 56 * most + 20
    require_memory("the workstation cluster", 900 * size, states=size, entries=5 * size)

    # number[l, r, c] of the state with l and r workstations and configuration c, -1 where there is none
    repair = _CONFIGURATIONS[:, 3]
    working = np.arange(most + 1)
    exists = ((repair != _LEFT) | (working[:, None, None] < most)) & ((repair != _RIGHT) | (working[:, None] < most))
    number = np.where(exists, np.cumsum(exists.ravel()).reshape(exists.shape) - 1, -1)
    moves: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def move(before: np.ndarray, after: np.ndarray, rate: Any) -> None:
        happens = (before >= 0) & (after >= 0)
        moves.append((before[happens], after[happens], np.broadcast_to(rate, before.shape)[happens]))

    move(number[1:], number[:-1], workstation_failures * working[1:, None, None])
    move(number[:, 1:], number[:, :-1], workstation_failures * working[1:, None])
    idle, left, right = (np.flatnonzero(repair == kind) for kind in (_IDLE, _LEFT, _RIGHT))
    for busy in (left, right):
        move(number[..., idle], number[..., busy], inspections)
    move(number[:-1][..., left], number[1:][..., idle], workstation_repairs)
    move(number[:, :-1][..., right], number[:, 1:][..., idle], workstation_repairs)
    failures = (switch_failures, switch_failures, backbone_failures)
    repairs = (switch_repairs, switch_repairs, backbone_repairs)
    for component in range(3):
        down = np.flatnonzero((_CONFIGURATIONS[:, component] == 0) & (repair != component + 3))
        up = np.flatnonzero(_CONFIGURATIONS[:, component] == 1)  # in the same order as those that are down
        waits, works = down[repair[down] == _IDLE], up[repair[up] == _IDLE]
        busy = np.flatnonzero(repair == component + 3)
        move(number[..., up], number[..., down], failures[component])
        move(number[..., waits], number[..., busy], inspections)
        move(number[..., busy], number[..., works], repairs[component])
    sources, targets, rates = (np.concatenate(parts) for parts in zip(*moves, strict=True))
    moves.clear()

    at = np.nonzero(exists)
    table = np.column_stack([at[0], at[1], _CONFIGURATIONS[at[2]]])
    space = Listed(table, tuple(Variable(name) for name in _NAMES))
    return Generator.from_transitions(
        sources,
        targets,
        rates,
        space,
        initial=[most, most, 1, 1, 1, _IDLE],
        labels={"minimum": _connected(table, least), "premium": _connected(table, most)},
    )


def _required(share: Any, workstations: int) -> int:
    """Return how many connected workstations are the minimum quality of service."""
    chosen = real_number("required_share", share, lambda value: 0 < value <= 1, "a number above 0, up to 1")
    return math.floor(chosen * workstations)


_RATES = (
    *("workstation_failure_rate", "switch_failure_rate", "backbone_failure_rate", "inspection_rate"),
    *("workstation_repair_rate", "switch_repair_rate", "backbone_repair_rate"),
)


workstation_cluster.rates_that_may_change = _RATES
workstation_cluster.event_rates = _RATES  # what `ctmc.sensitivity` differentiates by
