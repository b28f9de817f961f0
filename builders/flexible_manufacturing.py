"""Three machines, four kinds of parts and a fleet of carts: the benchmark model `fms` of PRISM and Storm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ctmc
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import numbers, positive_rate, positive_rates, whole_number
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Listed, Variable

_MOST_PARTS = 100
"""Beyond, states can no longer be numbered with 64 bits."""
_MACHINING_RATES = (1 / 4, 1 / 6, 1 / 2, 1.0)
_ASSEMBLY_SHARES = (0.2, 0.4)
_WORTH = np.array([400.0, 600.0, 100.0, 1100.0])
"""Gain from one part of each kind, as in the literature."""
_FIRST, _SECOND, _THIRD, _ASSEMBLY = range(4)
"""Kinds of parts; the last are assemblies of one part of each of the first two kinds."""
_SERVERS = (3, 1, None, 2)
"""Places of work of each kind; the third kind has the second machine while nothing of the second kind is there."""


def _carts(given: int | None, parts: int) -> int:
    return 3 * parts // 2 if given is None else whole_number("carts", given, 1)


def _dress(
    model: Generator,
    parts: int,
    carts: int | None = None,
    transport_rate: float = 1.0,
    machining_rates: Sequence[float] = _MACHINING_RATES,
    assembly_shares: Sequence[float] = _ASSEMBLY_SHARES,
    shipping_rate: float = 1 / 60,
) -> Generator:
    fleet = _carts(carts, parts)

    def transport(states: np.ndarray) -> np.ndarray:
        ready = states[:, :4]
        return transport_rate * ready * np.minimum(1, fleet / np.maximum(ready.sum(axis=1, keepdims=True), 1))

    def working(states: np.ndarray) -> np.ndarray:
        at = states[:, 4:8]
        second = (at[:, _SECOND] > 0) | (at[:, _THIRD] > 0)
        return np.column_stack([np.minimum(at[:, _FIRST], 3) / 3, second, np.minimum(at[:, _ASSEMBLY], 2) / 2])

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        found = solution.expectations(["transport", "working", "ready", "machining", "shipping", "unmatched"])
        return {
            "throughput": found["transport"],
            "productivity": float(_WORTH @ found["transport"]),
            "utilization": found["working"],
            "ready": found["ready"],
            "machining": found["machining"],
            "shipping": found["shipping"],
            "unmatched": found["unmatched"],
        }

    return model.replace(
        rewards={
            "transport": Reward(transport, "per kind, rate at which parts are brought to their machine"),
            "working": Reward(working, "per machine, share of its places where work is done"),
            "productivity": Reward(lambda states: transport(states) @ _WORTH, "gain per unit of time"),
        },
        measures=measures,
    )


@ctmc.builder(version=1, dress=_dress)
def flexible_manufacturing(
    parts: int,
    carts: int | None = None,
    transport_rate: float = 1.0,
    machining_rates: Sequence[float] = _MACHINING_RATES,
    assembly_shares: Sequence[float] = _ASSEMBLY_SHARES,
    shipping_rate: float = 1 / 60,
) -> Generator:
    """Parts of three kinds, machined on three machines and partly assembled, carried by carts that they share.

    The flexible manufacturing system of G. Ciardo and K. S. Trivedi, "A decomposition approach for stochastic reward net
    models", Performance Evaluation 18 (1993), pp. 37-59, known as `fms` among the benchmarks of PRISM and Storm, whose rates
    are the defaults.  Kinds 0, 1 and 2 have `parts` parts each; kind 3 are assemblies of one part of kind 0 and one of
    kind 1.  Parts that are ready are carried to their machine, each at `transport_rate`, slower in proportion where more are
    ready than there are carts.  The first machine works on 3 parts of kind 0 at once, the second on one of kind 1 or, while
    none is there, one of kind 2, the third on 2 assemblies.  Of kinds 0 and 1 the `assembly_shares` wait after machining for
    a part of the other kind; two that meet are an assembly that is ready.  All others are shipped, all of a kind at once, at
    `shipping_rate`, and new ones in their place are ready: for an assembly one of kind 0 and one of kind 1.

    Parameters
    ----------
    parts : int
        Number of parts of each kind.
    carts : int, optional
        Number of carts; default 3 parts / 2, rounded down.
    transport_rate : float
        Rate at which one cart brings a part to its machine.
    machining_rates : sequence of float, length 4
        Rate per part that is worked on, of each kind.
    assembly_shares : sequence of float, length 2
        Probability that a part of kind 0, of kind 1, is for an assembly; between 0 and 1.
    shipping_rate : float
        Rate at which the finished parts of a kind leave.

    Returns
    -------
    Generator
        States ``ready``, ``machining`` (at the machine, waiting or worked on), ``shipping``, shape (4,) each, by kind, and
        ``unmatched``, shape (2,): parts of kinds 0 and 1 that wait for each other.  No transition leads back to its state and
        no two lead from one state to the same other one, so the numbers are those that PRISM counts: 35,910 states and
        237,120 transitions for 4 parts, 4,459,455 and 38,533,968 for 8.  Rewards: transport, working, productivity.
        Measures: throughput (per kind, parts brought to their machine), productivity (400, 600, 100 and 1100 for a part of
        each kind), utilization (per machine), ready, machining, shipping, unmatched.

    Raises
    ------
    ModelError
        If parts or carts is not a positive whole number, a rate is not positive and finite, a share is not between 0 and 1,
        a sequence has another length, or the model needs more than the memory limit.

    Examples
    --------
    >>> system = flexible_manufacturing(parts=2)
    >>> system.size, system.entries
    (810, 3699)
    >>> round(ctmc.solve(ctmc.Stationary(system), "gth").measures()["productivity"], 6)
    29.154699

    On the command line: ``ctmc build flexible_manufacturing --parts 5 -o fms.h5``
    """
    most = whole_number("parts", parts, 1, _MOST_PARTS)
    fleet = _carts(carts, most)
    transport = positive_rate("transport_rate", transport_rate)
    machining = _of_length("machining_rates", positive_rates("machining_rates", machining_rates), 4)
    shares = _shares(assembly_shares)
    shipping = positive_rate("shipping_rate", shipping_rate)
    size = _size(most)
    require_memory("the manufacturing system", 1100 * size, states=size, entries=9 * size)

    others, thirds = _others(most), _of_sum(most, 3)
    width = len(thirds)
    graph = Listed(others)
    pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    load = others[:, [0, 4, 8]].sum(axis=1)[:, None] + thirds[:, 0]
    slowed = transport * np.minimum(1.0, fleet / np.maximum(load, 1))

    def add(happens: np.ndarray, after: np.ndarray, rates: np.ndarray, carried: bool = False) -> None:
        """Add an event of all kinds but the third, in every state of the third."""
        at, to = np.flatnonzero(happens)[:, None], graph.find(after[happens])[:, None]
        of_third = np.arange(width)
        speed = rates[happens][:, None] * (slowed[happens] if carried else np.ones(width))
        pieces.append(((at * width + of_third).ravel(), (to * width + of_third).ravel(), speed.ravel()))

    for begin in (0, 4, 8):
        add(others[:, begin] > 0, _changed(others, {begin: -1, begin + 1: 1}), others[:, begin].astype(float), True)
    for begin, kind, partner in ((0, _FIRST, 7), (4, _SECOND, 3)):
        at_work = np.minimum(others[:, begin + 1], _SERVERS[kind]) * machining[kind]
        add(at_work > 0, _changed(others, {begin + 1: -1, begin + 2: 1}), at_work * (1 - shares[kind]))
        alone = others[:, partner] == 0
        add((at_work > 0) & alone, _changed(others, {begin + 1: -1, begin + 3: 1}), at_work * shares[kind])
        add((at_work > 0) & ~alone, _changed(others, {begin + 1: -1, partner: -1, 8: 1}), at_work * shares[kind])
        shipped = others.copy()
        shipped[:, begin] += shipped[:, begin + 2]
        shipped[:, begin + 2] = 0
        add(others[:, begin + 2] > 0, shipped, np.full(len(others), shipping))
    assembled = np.minimum(others[:, 9], _SERVERS[_ASSEMBLY]) * machining[_ASSEMBLY]
    add(assembled > 0, _changed(others, {9: -1, 10: 1}), assembled)
    shipped = others.copy()
    shipped[:, [0, 4]] += shipped[:, 10:]
    shipped[:, 10] = 0
    add(others[:, 10] > 0, shipped, np.full(len(others), shipping))
    pieces += _third_kind(others, thirds, slowed, machining[_THIRD], shipping)
    sources, targets, rates = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    pieces.clear()
    space = _space(others, thirds)
    begin_at = [most, most, most, *[0] * 11]
    return Generator.from_transitions(sources, targets, rates, space, initial=begin_at)


def _changed(states: np.ndarray, changes: Mapping[int, int]) -> np.ndarray:
    after = states.copy()
    for column, change in changes.items():
        after[:, column] += change
    return after


def _third_kind(
    others: np.ndarray, thirds: np.ndarray, slowed: np.ndarray, machining: float, shipping: float
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the events of the third kind, in every state of the others that allows them."""
    graph = Listed(thirds)
    shipped = np.column_stack([thirds[:, 0] + thirds[:, 2], thirds[:, 1], np.zeros_like(thirds[:, 2])])
    everywhere, free = np.arange(len(others)), np.flatnonzero(others[:, 5] == 0)
    pieces = []
    for states, happens, after, rates in (
        (everywhere, thirds[:, 0] > 0, _changed(thirds, {0: -1, 1: 1}), slowed * thirds[:, 0]),
        (free, thirds[:, 1] > 0, _changed(thirds, {1: -1, 2: 1}), np.full(slowed.shape, machining)),
        (everywhere, thirds[:, 2] > 0, shipped, np.full(slowed.shape, shipping)),
    ):
        at, to = np.flatnonzero(happens), graph.find(after[happens])
        first = states[:, None] * len(thirds)
        pieces.append(((first + at).ravel(), (first + to).ravel(), rates[np.ix_(states, at)].ravel()))
    return pieces


def _of_sum(total: int, width: int) -> np.ndarray:
    """Return all vectors of so many numbers with this sum."""
    free = Lattice((total,) * (width - 1), total=total)
    first = free.states(np.arange(free.size))
    return np.column_stack([first, total - first.sum(axis=1)])


def _others(most: int) -> np.ndarray:
    """Return the states of all kinds but the third: ready, machining, shipping, unmatched of kinds 0 and 1, then kind 3."""
    parts = []
    for assemblies in range(most + 1):
        single, joint = _of_sum(most - assemblies, 4), _of_sum(assemblies, 3)
        waits = single[:, 3] > 0
        first, second = np.nonzero(~(waits[:, None] & waits))  # parts of both kinds do not wait for each other
        pairs = np.column_stack([single[first], single[second]])
        parts.append(np.column_stack([np.repeat(pairs, len(joint), axis=0), np.tile(joint, (len(pairs), 1))]))
    return np.concatenate(parts)


def _size(most: int) -> int:
    """Return the number of states, without making them."""
    total = 0
    for assemblies in range(most + 1):
        single = most - assemblies
        ways = (single + 1) * (single + 2) * (single + 3) // 6
        waits = single * (single + 1) * (single + 2) // 6
        total += (ways**2 - waits**2) * ((assemblies + 1) * (assemblies + 2) // 2)
    return total * ((most + 1) * (most + 2) // 2)


def _space(others: np.ndarray, thirds: np.ndarray) -> Listed:
    table = np.empty((len(others), len(thirds), 14), dtype=np.int64)
    for column, source in ((0, 0), (1, 4), (3, 8)):
        table[:, :, column:12:4] = others[:, None, source : source + 3]
    table[:, :, 2:12:4] = thirds
    table[:, :, 12:] = others[:, None, [3, 7]]
    variables = (*(Variable(name, 4) for name in ("ready", "machining", "shipping")), Variable("unmatched", 2))
    return Listed(table.reshape(-1, 14), variables)


def _of_length(name: str, given: np.ndarray, length: int) -> np.ndarray:
    if len(given) != length:
        raise ModelError(f"{name} has {len(given)} numbers; allowed are {length}.")
    return given


def _shares(given: Any) -> np.ndarray:
    allowed = "numbers between 0 and 1"
    shares = _of_length("assembly_shares", numbers("assembly_shares", given, allowed), 2)
    bad = ~((shares > 0) & (shares < 1))
    if bad.any():
        raise ModelError(f"assembly_shares has the value {shares[np.argmax(bad)]}; allowed are {allowed}.")
    return shares


_RATES = ("transport_rate", "machining_rates", "shipping_rate")


flexible_manufacturing.rates_that_may_change = (*_RATES, "carts", "assembly_shares")
flexible_manufacturing.event_rates = _RATES  # what `ctmc.sensitivity` differentiates by
