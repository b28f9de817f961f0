"""The supermarket model with infinitely many servers: its fixed point and its course over time, for classes of servers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from builders.supermarket.mean_field_design import Design, checked_design, checked_times
from builders.supermarket.mean_field_equations import BEYOND, Equations, course, fixed_point
from builders.supermarket.selection import Selection

if TYPE_CHECKING:
    from builders.supermarket.mean_field_curves import Curve

_DEFECT = 1e-12
_CORRECTION = 1e-9
_COURSE_DEFECT = 1e-8
_SHOWN = 1e-12
"""Tails below it are left out of the table."""


@dataclass(frozen=True, kw_only=True)
class MeanField:
    """The supermarket model with infinitely many servers: its fixed point, its course over time, and their certificates.

    C classes, K levels, T times.

    Attributes
    ----------
    service_rates, shares, preferences : ndarray, shape (C,)
    arrival_rate_per_server : float
    choices : int
    tails : ndarray, shape (C, K + 1)
        At the fixed point: part of the servers of class c with at least k jobs, accurate to 1e-14 or so, not relatively.
    times : ndarray, shape (T,)
    tails_at : ndarray, shape (T, C, K' + 1)
        Over time, from the initial state.
    defect : float
        Sum of share x |rate up from k - rate down to k| over classes and k, relative to the sum of these rates, recomputed from
        the definition.
    balance : float
        |throughput - arrival rate| / arrival rate.
    beyond : float
        Largest part of a class at the last level, at the fixed point and over time.
    correction : float
        What one more step of Newton changes, as a part of the jobs: an estimate of the error.
    course_defect : float
        Max over t of sum_c share_c sum_k |s(t) - s(0) - integral of the drift over [0, t]|, in jobs per server.
    """

    service_rates: np.ndarray
    shares: np.ndarray
    preferences: np.ndarray
    arrival_rate_per_server: float
    choices: int
    tails: np.ndarray = field(repr=False)
    times: np.ndarray = field(repr=False)
    tails_at: np.ndarray = field(repr=False)
    defect: float
    balance: float
    beyond: float
    correction: float
    course_defect: float
    _design: Design = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        for array in (
            self.service_rates, self.shares, self.preferences, self.tails, self.times, self.tails_at
        ):  # fmt: skip
            array.flags.writeable = False

    @property
    def initial(self) -> tuple[int, ...]:
        """Jobs at each server of a class at time 0."""
        return self._design.initial

    @property
    def queue_length(self) -> np.ndarray:
        """Mean number of jobs at a server of each class, at the fixed point; shape (C,)."""
        return np.asarray(_jobs(self.tails))

    @property
    def queue_length_at(self) -> np.ndarray:
        """Mean number of jobs at a server of each class, over time; shape (T, C)."""
        return np.asarray(_jobs(self.tails_at))

    @property
    def jobs_per_server(self) -> float:
        """Mean number of jobs at a server of any class, at the fixed point."""
        return float(self.shares @ self.queue_length)

    @property
    def utilization(self) -> np.ndarray:
        """Part of the servers of each class that work, at the fixed point; shape (C,)."""
        return self.tails[:, 1]

    @property
    def response_time(self) -> float:
        """Mean time of a job in the system, at the fixed point, by Little's law."""
        return self.jobs_per_server / self.arrival_rate_per_server

    @property
    def class_response_time(self) -> np.ndarray:
        """Mean time in the system of the jobs that join a class, at the fixed point, by Little's law; shape (C,)."""
        flow = self.service_rates * self.utilization
        return np.divide(self.queue_length, flow, out=np.full(len(flow), np.nan), where=flow > 0)

    @property
    def is_certified(self) -> bool:
        """Whether the recomputed residuals are small enough.

        Defect and balance 1e-12, beyond 1e-14, correction 1e-9, the defect of the course 1e-8 of a job and the jobs.
        """
        most = float((self.queue_length_at @ self.shares).max(initial=1))
        return (  # one by one: no comparison with what is not a number holds
            self.defect <= _DEFECT
            and self.balance <= _DEFECT
            and self.beyond <= BEYOND
            and self.correction <= _CORRECTION
            and self.course_defect <= _COURSE_DEFECT * most
        )

    def facts(self) -> dict[str, Any]:
        """Return what there is to say beside the tables, by name."""
        found = {
            "jobs_per_server": self.jobs_per_server,
            "response_time": self.response_time,
            "certified": self.is_certified,
            "defect": self.defect,
            "balance": self.balance,
            "correction": self.correction,
            "beyond": self.beyond,
            "levels": self.tails.shape[1] - 1,
        }
        return found | ({"course_defect": self.course_defect} if len(self.times) else {})

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return the columns and rows of the fixed point, a row for each class."""
        columns = ["class", "share", "service rate", "utilization", "queue length", "response time"]
        parts = (self.shares, self.service_rates, self.utilization, self.queue_length, self.class_response_time)
        return columns, [[number, *row] for number, row in enumerate(np.column_stack(parts).tolist())]

    def tails_table(self) -> tuple[list[str], list[list[Any]]]:
        """Return the columns and rows of the tails at the fixed point, a row for each number of jobs, down to 1e-12."""
        columns = ["jobs", *(f"class {number}" for number in range(len(self.shares)))]
        shown = int((self.tails > _SHOWN).any(axis=0).sum())
        return columns, [[jobs, *row] for jobs, row in enumerate(self.tails[:, :shown].T.tolist())]

    def course_table(self) -> tuple[list[str], list[list[Any]]]:
        """Return the columns and rows of the mean queue length of each class over time, and the mean over the classes."""
        columns = ["time", *(f"class {number}" for number in range(len(self.shares))), "jobs per server"]
        lengths = self.queue_length_at
        return columns, np.column_stack([self.times, lengths, lengths @ self.shares]).tolist()

    def summary(self) -> str:
        """Return the results as text."""
        rows = [
            f"class {number}: share {share:.6g}, service rate {rate:.6g}, utilization {busy:.10g}, queue length {length:.10g}"
            for number, share, rate, busy, length, _ in self.table()[1]
        ]
        state = "certified" if self.is_certified else "not certified"
        head = (
            f"Mean field of the supermarket, {self.choices} choices, {self.arrival_rate_per_server:.6g} arrivals per server: "
            f"{self.jobs_per_server:.10g} jobs per server, response time {self.response_time:.10g} ({state}: defect "
            f"{self.defect:.1e}, balance {self.balance:.1e})"
        )
        return "\n".join([head, *rows])

    def finite_parameters(self, servers: int) -> dict[str, Any]:
        """Return the parameters of the supermarket model with this number of servers, apart from its capacity.

        Raises
        ------
        ModelError
            If the shares are not whole numbers of these servers, or there are fewer than choices.
        """
        return self._design.finite_parameters(servers)

    def finite_curves(
        self, exact: Sequence[int] = (), simulated: Sequence[int] = (), seed: int = 2024
    ) -> tuple[list[Curve], list[str]]:
        """Return mean queue lengths over time of models with finitely many servers; see `mean_field_curves.finite_curves`."""
        from builders.supermarket.mean_field_curves import finite_curves

        return finite_curves(self, exact, simulated, seed)


def _jobs(tails: np.ndarray) -> np.ndarray:
    return tails[..., :0:-1].sum(axis=-1)  # small ones first


def mean_field(
    *,
    service_rates: Sequence[float],
    arrival_rate_per_server: float,
    choices: int,
    shares: Sequence[float] | None = None,
    preferences: Sequence[float] | None = None,
    selection: Selection = "tandem",
    weights: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
    ties: str | Sequence[str] = "random",
    times: Sequence[float] | None = None,
    initial: int | Sequence[int] = 0,
) -> MeanField:
    """Supermarket model with infinitely many servers in classes: its fixed point, and its course over time.

    Parameters
    ----------
    service_rates : sequence of float, length C
        Rate of a server of each class, per unit of time.
    arrival_rate_per_server : float
        Total rate of arrivals divided by the number of servers, per unit of time.
    choices : int
        Number of servers d that a job samples, up to 1000; with infinitely many servers it is the same with and without
        replacement.
    shares : sequence of float, length C
        Part of the servers that belongs to each class; sums to 1.  Equal parts by default.
    preferences : sequence of float, length C
        Preference g of a server of each class, relative to the mean over the servers (M times the preference in a model with M
        servers); a common factor does not count.  Equal by default.
    selection : str or callable
        Selection value of a server with queue length x: 'tandem' x / (mu g), 'weighted' b1 x + b2 / mu + b3 / g,
        'shortest_queue' x, 'expected_delay' (x + 1) / mu, or a function f(x, mu, g), by name as module:function, that does
        not fall with x; g is relative.
    weights : sequence of float
        (b1, b2, b3) of the rule 'weighted'; non-negative, summing to 1.
    ties : str or sequence of str
        What decides among the best sampled servers: 'random', 'fastest', 'shortest', 'preferred', or several in order;
        what still ties is split evenly.
    times : sequence of float, optional
        Ascending, >= 0: when the course over time is wanted.
    initial : int or sequence of int
        Jobs at each server at time 0: one number, or one per class.

    Returns
    -------
    MeanField

    Raises
    ------
    UnstableError
        If a necessary condition of stability fails, or no fixed point is found.
    ModelError
        If a parameter is out of range.

    Notes
    -----
    The equations and their sources stand in `builders.supermarket.mean_field_equations`.  For one class and any rule that
    grows with x, s[k] = load^((d^k - 1) / (d - 1)).  Stability needs arrival_rate (share of S)^d < sum of share x service rate
    over S, for every set S of classes; the slowest classes suffice.

    Examples
    --------
    >>> found = mean_field(service_rates=[1], arrival_rate_per_server=0.9, choices=2, times=[5])
    >>> round(found.jobs_per_server, 10), found.queue_length_at.round(8).tolist(), found.is_certified
    (2.3526516396, [[1.3956454]], True)
    >>> mean_field(service_rates=[3, 1], shares=[0.25, 0.75], arrival_rate_per_server=1.2, choices=2).queue_length.round(8)
    array([1.49759001, 2.79525313])

    On the command line: ``ctmc mean-field supermarket --service-rates 3,1 --shares .25,.75 --arrival-rate-per-server 1.2
    --choices 2 --times 0:20:1``
    """
    design = checked_design(
        service_rates, arrival_rate_per_server, choices, shares, preferences, selection, weights, ties, initial
    )
    chosen = checked_times(times)
    design.check_stable()
    equations, unknowns = fixed_point(design.equations)
    tails = equations.whole(unknowns)[:, :-1]
    defect, balance = imbalance(equations, tails)
    jobs = float(design.shares @ _jobs(tails))
    over, course_defect, last = _course(design, equations.levels, chosen)
    return MeanField(
        service_rates=design.service_rates,
        shares=design.shares,
        preferences=design.preferences,
        arrival_rate_per_server=design.arrival_rate,
        choices=design.choices,
        tails=tails,
        times=chosen,
        tails_at=over,
        defect=defect,
        balance=balance,
        beyond=max(float(tails[:, -1].max()), last),
        correction=equations.correction(unknowns) / jobs,
        course_defect=course_defect,
        _design=design,
    )


def _course(design: Design, levels: int, times: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the tails over time, shape (T, C, K' + 1), the defect, and the largest part at the last level.

    Servers get at most Poisson(arrival rate x choices x time) jobs, so few levels suffice for a short time; if it turns out
    that too many servers reach the last one, there are twice as many.
    """
    if not len(times):
        return np.empty((0, len(design.shares), levels + 1)), 0.0, 0.0
    most = max(design.initial)
    arrived = design.arrival_rate * design.choices * float(times[-1])
    levels = most + 1 + min(levels, math.ceil(arrived + 10 * math.sqrt(arrived) + 40))
    while True:
        equations = design.equations(levels)
        jobs = np.arange(1, levels + 1)
        initial = (jobs <= np.array(design.initial)[:, None]).astype(np.float64).ravel()
        found, defect, last = course(equations, initial, times)
        if last <= BEYOND or levels > 100_000:
            return np.clip(equations.whole(found)[..., :-1], 0, 1), defect, last
        levels *= 2


def imbalance(equations: Equations, tails: np.ndarray) -> tuple[float, float]:
    """Return defect and balance of a fixed point, recomputed from the definition.

    The probability that the best of d sampled servers has a key is that of d keys not smaller, less that of d keys larger; it
    is shared by the servers that have the key.  Between k and k + 1 jobs of each class the rates up and down must agree, and
    nothing may be left over at the last level.

    Parameters
    ----------
    equations : Equations
    tails : ndarray, shape (C, K + 1)
    """
    parts = equations.shares[:, None] * -np.diff(tails, axis=1, append=0)
    _, key = np.unique(equations.keys, return_inverse=True)
    masses = np.bincount(key.ravel(), weights=parts.ravel())
    behind = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    behind[0] = 1
    joined = equations.arrival_rate * -np.diff(behind**equations.choices)
    each = np.divide(joined, masses, out=np.zeros_like(joined), where=masses > 0)
    up = each[key.reshape(parts.shape)] * parts
    down = np.append(equations.service_rates[:, None] * parts[:, 1:], np.zeros((len(parts), 1)), axis=1)
    throughput = float(down.sum())
    defect = float(np.abs(up - down).sum() / (up.sum() + throughput))
    return defect, abs(throughput - equations.arrival_rate) / equations.arrival_rate
