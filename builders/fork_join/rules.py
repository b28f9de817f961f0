"""The rules by which the fork-join queue starts tasks, on whole arrays of states; sets of servers are held as bits.

Server 0 is the highest bit, so that the order of the sets as numbers is the lexicographic order of the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ctmc.errors import ModelError, UnstableError
from ctmc.model import parameters
from ctmc.model.parameters import positive_rate, positive_rates, whole_number

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Rules:
    """Checked parameters of the queue, and what follows from them.

    Attributes
    ----------
    rates : ndarray, shape (M,)
        Tasks per unit of time of each server.
    arrival_rate : float
        Jobs per unit of time.
    tasks : int
        Of a job.
    thresholds : sequence of int, length M

    Examples
    --------
    >>> rules = Rules(np.array([5.0, 2.0, 1.0]), 1.0, 3, [1, 2, 8])
    >>> rules.last, rules.forced(2), [int(a[0]) for a in rules.arrival(np.array([0]), np.array([0b000]))]
    (3, 2, [1, 6])
    """

    rates: np.ndarray
    arrival_rate: float
    tasks: int
    thresholds: Sequence[int]

    @property
    def servers(self) -> int:
        """M."""
        return len(self.rates)

    @property
    def everyone(self) -> int:
        """The set of all servers."""
        return (1 << self.servers) - 1

    @cached_property
    def bits(self) -> np.ndarray:
        """The set of each server alone, shape (M,)."""
        return 1 << np.arange(self.servers - 1, -1, -1)

    @property
    def last(self) -> int:
        """The last boundary level: the least r >= 1 with r jobs waiting of which all servers are busy."""
        return max(1, -(-self.thresholds[-1] // self.tasks))

    @cached_property
    def needed(self) -> np.ndarray:
        """Thresholds, and one that no queue reaches; shape (M + 1,)."""
        return np.append(np.array(self.thresholds, dtype=np.int64), NEVER)

    def forced(self, length: int) -> int:
        """Return how many servers, from the first on, must be busy when so many tasks wait."""
        return int(np.searchsorted(self.needed[:-1], length, side="right"))

    def arrival(self, length: np.ndarray, busy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return queue length and busy servers after a job has arrived: its tasks enter the queue one after the other."""
        for _ in range(self.tasks):
            # frexp gives the number of bits of a whole number, 0 for 0; its highest bit is the fastest idle server
            digits = np.frexp(self.everyone ^ busy)[1].astype(np.int64)
            starts = self.needed[self.servers - digits] <= length + 1
            busy = np.where(starts, busy | (1 << np.maximum(digits - 1, 0)), busy)
            length = np.where(starts, length, length + 1)
        return length, busy

    def ranked(self, chosen: np.ndarray, begin: int | np.ndarray, end: int | np.ndarray) -> np.ndarray:
        """Return the members number begin .. end - 1 of each set, counted from 0 in the order of the servers."""
        rank = np.zeros(len(chosen), dtype=np.int64)
        found = np.zeros(len(chosen), dtype=np.int64)
        for bit in self.bits:
            member = (chosen & bit) != 0
            found |= np.where(member & (rank >= begin) & (rank < end), bit, 0)
            rank += member
        return found

    def count(self, chosen: np.ndarray) -> np.ndarray:
        """Return the number of servers in each set."""
        return np.bitwise_count(chosen).astype(np.int64)

    def total_rate(self, chosen: np.ndarray) -> np.ndarray:
        """Return the sum of the service rates over each set."""
        return np.asarray(((chosen[:, None] & self.bits) != 0) @ self.rates)


def checked_rules(
    service_rates: Sequence[float], arrival_rate: float, tasks: int, thresholds: Sequence[int] | None
) -> Rules:
    """Return the rules for parameters as users give them; raises as `fork_join` does."""
    rates = _service_rates(service_rates)
    arrivals = positive_rate("arrival_rate", arrival_rate)
    parts = whole_number("tasks", tasks, 1, len(rates), "the number of servers")
    least = _thresholds(thresholds, len(rates))
    capacity = float(np.cumsum(rates)[-1])
    if arrivals * parts >= capacity:
        raise UnstableError(
            f"the mean drift is {arrivals * parts - capacity:.6g} tasks per unit of time ({arrivals:g} jobs of {parts} tasks "
            f"arrive, {capacity:g} tasks can be served); allowed is a negative one."
        )
    return Rules(rates, arrivals, parts, least)


def _service_rates(given: Sequence[float]) -> np.ndarray:
    rates = positive_rates("service_rates", given)
    rises = rates[1:] > rates[:-1]
    if rises.any():
        server = int(np.argmax(rises))
        raise ModelError(
            f"service_rates rises from {rates[server]:g} to {rates[server + 1]:g} at server {server + 1}; allowed are rates "
            "that do not increase (nothing is sorted: thresholds belong to servers)."
        )
    return rates


def _thresholds(given: Sequence[int] | None, servers: int) -> list[int]:
    if given is None:
        return [1] * servers
    numbers = parameters.numbers("thresholds", given, f"{servers} whole numbers, one per server")
    if len(numbers) != servers:
        raise ModelError(f"thresholds has {len(numbers)} numbers; allowed are {servers}, one per server.")
    whole = (numbers == np.floor(numbers)) & (np.abs(numbers) < 2**53)
    if not whole.all():
        raise ModelError(f"thresholds has the value {numbers[np.argmin(whole)]}; allowed are whole numbers below 2^53.")
    if numbers[0] != 1:
        raise ModelError(
            f"thresholds starts at {numbers[0]:g}; allowed is 1: the fastest server never waits for a queue."
        )
    falls = numbers[1:] < numbers[:-1]
    if falls.any():
        server = int(np.argmax(falls))
        raise ModelError(
            f"thresholds falls from {numbers[server]:g} to {numbers[server + 1]:g} at server {server + 1}; allowed are "
            "thresholds that never decrease."
        )
    return [int(number) for number in numbers]
