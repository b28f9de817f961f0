"""Event-driven simulation of the supermarket model, not truncated, up to hundreds of thousands of servers.

It shares the rules of the model and nothing else: no generator, no rank probabilities; a job samples servers one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from builders.supermarket import event_loop as loop
from builders.supermarket.checks import checked_arrivals, checked_servers
from builders.supermarket.rank import stability_notes
from builders.supermarket.selection import SELECTIONS, grouped, tie_rules
from ctmc.errors import ModelError, shown
from ctmc.model.memory import require_memory
from ctmc.model.parameters import check_truth, choice, numbers, whole_number
from ctmc.simulation import Estimate, Monitor, Plan, checked_discount, replicate

DETAILED = 1000
"""Up to so many servers every one is told, and the imbalance, unless asked otherwise."""
PERCENTILES = (50, 95, 99)
_UNLIMITED = np.iinfo(np.int32).max
_NOTED = 300
"""Servers up to which all conditions of stability are looked at, not the load alone."""


def simulate(
    *,
    service_rates: Sequence[float],
    arrival_rate: float,
    choices: int,
    servers: int | Sequence[int] | None = None,
    capacity: int | Sequence[int] | None = None,
    preferences: Sequence[float] | None = None,
    selection: str = "tandem",
    weights: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
    sampling: str = "without_replacement",
    ties: str | Sequence[str] = "random",
    overflow: str = "lost",
    total_capacity: int | None = None,
    measured_by: str | None = None,
    horizon: float | None = None,
    times: Sequence[float] | None = None,
    warm_up: float | None = None,
    replications: int | None = None,
    batches: int | None = None,
    initial: Sequence[int] | None = None,
    discount: float | None = None,
    response_times: bool = False,
    by_server: bool | None = None,
    imbalance: bool | None = None,
    seed: int,
    monitor: Monitor | None = None,
) -> Estimate:
    """Simulate the supermarket model without truncation: averages over time, trajectories, response times.

    For example ``ctmc simulate supermarket --service-rates 1 --servers 1000 --arrival-rate 800 --choices 2 --horizon 500 --seed
    7`` or, from an empty system, ``ctmc simulate supermarket --service-rates 3,2,1 --arrival-rate 3 --choices 2 --times 0:50:1
    --replications 1000 --seed 7 --plot trajectories.png``.

    The same seed gives the same arrival epochs and, while the sampling is the same, the same sampled servers and potential
    services, whatever the rules are; `ctmc.simulation.compare` estimates differences of designs in this way.

    Parameters
    ----------
    service_rates : sequence of float, length M
        Rate of each server, or of each class of equal servers, per unit of time.
    arrival_rate : float
        Total rate of arrivals, per unit of time.
    choices : int
        Number of servers d that a job samples.
    servers : int or sequence of int, optional
        How many servers there are of each service rate; default one.  Capacity, preferences and initial are then also given
        for each class.
    capacity : int or sequence of int, optional
        Largest queue length, the job in service included: one number, or one per server; default none.
    preferences : sequence of float, optional
        Preference g of each server, in (0, 1], summing to 1 over all servers; default 1/M each.
    selection : str
        'tandem', 'weighted', 'shortest_queue' or 'expected_delay', as in the model.
    weights : sequence of float
        (b1, b2, b3) of the rule 'weighted'; non-negative, summing to 1.
    sampling : str
        'without_replacement' (d different servers) or 'with_replacement'.
    ties : str or sequence of str
        What decides among the best sampled servers: 'random', 'fastest', 'shortest', 'preferred', or several in order.
    overflow : str
        What becomes of a job that chose a full server: 'lost' or 'rerouted', as in the model.
    total_capacity : int, optional
        Largest number of jobs in the system; default none.
    measured_by : str, optional
        Selection rule by which the imbalance is judged; default the selection.
    horizon : float, optional
        Time that each replication lasts; default the last of the times.
    times : sequence of float, optional
        When to look at the queues, in every replication.
    warm_up : float, optional
        Time that averages leave out; default a tenth of the horizon, nothing where times are given.
    replications : int, optional
        Independent runs, at least 2; default 10.
    batches : int, optional
        One long run, of which so many equal parts stand for replications.
    initial : sequence of int, optional
        Queue length of each server at time 0; default empty.
    discount : float, optional
        Also estimate the discounted integrals of jobs and imbalance over [0, horizon], at this rate.
    response_times : bool
        Whether to follow every job, first come first served, for the mean and percentiles of its time in the system.
    by_server : bool, optional
        Whether every server is told, not only their mean; default up to 1000 servers.
    imbalance : bool, optional
        Whether to follow the largest and the smallest selection value; default up to 1000 servers.
    seed : int
        Of the random streams; the same seed gives the same estimate.
    monitor : callable, optional
        ``monitor(done, replications)`` between replications; returning true ends the simulation with those done.

    Returns
    -------
    Estimate
        Averages over [warm_up, horizon]: ``throughput``, ``utilization``, ``queue_length`` (per server, or the mean),
        ``jobs``, ``response_time`` (jobs over throughput, or of the jobs followed that left in this time, with percentiles
        such as ``response_time_p95``, exact to a 512th), ``blocking_probability``, ``imbalance``; with a discount
        ``discounted_jobs``, ``discounted_imbalance``.  At the times, `trajectories` of ``queue_length``, ``jobs``,
        ``imbalance``, and of the integrals since 0 ``accumulated_jobs``, ``accumulated_imbalance`` and their variances
        ``accumulated_jobs_variance``, ``accumulated_imbalance_variance``.

    Raises
    ------
    ModelError, UnknownNameError
        If a parameter is out of range.

    Examples
    --------
    >>> found = simulate(service_rates=[3, 2, 1], arrival_rate=3, choices=2, preferences=[.2, .3, .5], horizon=4000, seed=20264)
    >>> low, high = found.interval("queue_length[0]")
    >>> low < 0.5817947978 < high, high - low < 0.02
    (True, True)
    """
    counts = _counts(service_rates, servers)
    rates, shown, parts = checked_servers(
        _spread("service_rates", service_rates, counts), _spread("preferences", preferences, counts), weights
    )
    many = len(rates)
    checked_arrivals(many, arrival_rate, choices, sampling, overflow, total_capacity)
    limits = _limits(capacity, counts, many)
    slopes, offsets = _values(selection, "selection", rates, shown, parts)
    yardstick = (slopes, offsets) if measured_by is None else _values(measured_by, "measured_by", rates, shown, parts)
    begin = _initial(initial, counts, many, limits, total_capacity)
    plan = Plan.checked(
        horizon=horizon, times=times, warm_up=warm_up, replications=replications, seed=seed, batches=batches
    )
    rate = checked_discount(discount)
    every = _switch("by_server", by_server, many <= DETAILED)
    spread = _switch("imbalance", imbalance, many <= DETAILED)
    follow = _switch("response_times", response_times, False)
    alike = bool((rates == rates[0]).all() and (shown == shown[0]).all() and slopes[0] > 0)
    accepted, aliases = loop.alias_table(rates)
    system = loop.Servers(
        arrival_rate=float(arrival_rate),
        service_rate=float(rates.sum()),
        choices=int(choices),
        replaced=sampling == "with_replacement",
        rerouted=overflow == "rerouted" and bool((limits < _UNLIMITED).any()),
        plain=alike,
        slopes=slopes,
        offsets=offsets,
        tie_codes=np.array([loop.TIE_CODES[rule] for rule in tie_rules(ties)], dtype=np.int64),
        tie_ranks=np.array([grouped(-rates), grouped(-shown)]),
        limits=limits,
        total=-1 if total_capacity is None else int(total_capacity),
        accepted=accepted,
        aliases=aliases,
        measured_slopes=yardstick[0],
        measured_offsets=yardstick[1],
    )
    places, kept = len(plan.grid), many if every else 0
    seen = places * (loop.COLUMNS + 3 * kept + (loop.BINS if follow else 0))
    require_memory("what the replications see", 8 * plan.replications * seen)

    def run(streams: np.ndarray) -> Sequence[np.ndarray]:
        runs = len(streams)
        sums = np.zeros((runs, places, loop.COLUMNS))
        lengths, areas, occupied = (np.zeros((runs, places, kept)) for _ in range(3))
        histograms = np.zeros((runs, places, loop.BINS) if follow else (0, 0, 0), dtype=np.int64)
        loop.run(system, begin, streams, plan.grid, every, spread, follow, rate, sums, lengths, areas, occupied, histograms)  # fmt: skip
        return sums, lengths, areas, occupied, np.cumsum(histograms, axis=1) if follow else np.zeros((runs, 0))

    found = replicate(plan, loop.STREAMS, run, monitor)
    samples, paths = _measures(plan, found, many, every, spread, follow, rate)
    return Estimate.from_samples(
        samples,
        times=plan.times,
        paths=paths,
        variances=("accumulated_jobs", "accumulated_imbalance"),
        title=f"Simulation of the supermarket model, {many:,} servers",
        run=plan.run,
        replications=plan.batches or len(found[0]),
        warm_up=plan.warm_up,
        seed=plan.seed,
        events=int(found[0][:, -1, loop.EVENTS].sum()),
        notes=_notes(float(arrival_rate), rates, int(choices), sampling, limits, total_capacity),
    )


def _measures(
    plan: Plan, found: Sequence[np.ndarray], many: int, every: bool, spread: bool, follow: bool, discount: float
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the samples of averages over time, and what was seen at the times asked for."""
    sums, lengths, areas, occupied, histograms = found
    added, time = plan.parts(sums), np.tile(plan.durations, len(sums))
    accepted = added[:, loop.ARRIVALS] - added[:, loop.LOST]
    jobs = added[:, loop.JOBS_AREA]
    samples = {
        "throughput": accepted / time,
        "utilization": plan.parts(occupied) / time[:, None] if every else added[:, loop.BUSY_AREA] / time / many,
        "queue_length": plan.parts(areas) / time[:, None] if every else jobs / time / many,
        "jobs": jobs / time,
        "response_time": _ratio(jobs, accepted),
        "blocking_probability": _ratio(added[:, loop.LOST], added[:, loop.ARRIVALS]),
    }
    if follow:
        samples["response_time"] = _ratio(added[:, loop.TIMES_SUM], added[:, loop.TIMES_COUNT])
        tables = np.array([loop.percentile(counts, PERCENTILES) for counts in plan.parts(histograms)])
        samples |= {f"response_time_p{level}": column for level, column in zip(PERCENTILES, tables.T, strict=True)}
    rewards = [("jobs", loop.JOBS, loop.JOBS_AREA, loop.JOBS_DISCOUNTED)]
    if spread:
        samples["imbalance"] = added[:, loop.IMBALANCE_AREA] / time
        rewards.append(("imbalance", loop.IMBALANCE, loop.IMBALANCE_AREA, loop.IMBALANCE_DISCOUNTED))
    paths: dict[str, np.ndarray] = {}
    if len(plan.shown):
        paths["queue_length"] = lengths[:, plan.shown] if every else sums[:, plan.shown, loop.JOBS] / many
    for name, now, since, discounted in rewards:
        if discount and plan.batches is None:
            samples[f"discounted_{name}"] = sums[:, -1, discounted]
        if len(plan.shown):
            paths[name] = sums[:, plan.shown, now]
            paths[f"accumulated_{name}"] = sums[:, plan.shown, since]
    return samples, paths


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0)


def _counts(service_rates: Any, servers: Any) -> np.ndarray | None:
    """Return the number of servers of each class, or None where every server is given by itself."""
    if servers is None:
        return None
    given = [servers] if not _several(servers) else list(servers)
    counts = [whole_number("servers", count, 1) for count in given]
    if len(counts) != np.size(service_rates):
        raise ModelError(
            f"servers has {len(counts)} numbers; allowed are as many as service rates, {np.size(service_rates)}."
        )
    require_memory("the servers", 200 * sum(counts))
    return np.array(counts)


def _several(given: Any) -> bool:
    return isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.ndim > 0)


def _spread(name: str, given: Any, counts: np.ndarray | None) -> Any:
    """Return one value for each server from one for each class."""
    if counts is None or given is None:
        return given
    values = numbers(name, given, "one number for each class of servers")
    if len(values) != len(counts):
        raise ModelError(f"{name} has {len(values)} numbers; allowed is one for each of the {len(counts)} classes.")
    return np.repeat(values, counts)


def _whole_numbers(name: str, given: Any, counts: np.ndarray | None, many: int, least: int) -> np.ndarray:
    wanted, what = (many, "servers") if counts is None else (len(counts), "classes")
    if len(given) != wanted:
        raise ModelError(f"{name} has {len(given)} numbers; allowed is one for each of the {wanted} {what}.")
    values = [whole_number(name, value, least, _UNLIMITED) for value in given]
    return np.array(values) if counts is None else np.repeat(values, counts)


def _limits(capacity: Any, counts: np.ndarray | None, many: int) -> np.ndarray:
    """Return the largest queue length of each server, shape (M,)."""
    if capacity is None:
        return np.full(many, _UNLIMITED)
    if isinstance(capacity, str):
        raise ModelError(f"capacity is {shown(capacity)}; allowed is a whole number >= 1, or one per server: nothing is truncated here.")  # fmt: skip
    if not _several(capacity):
        return np.full(many, whole_number("capacity", capacity, 1, _UNLIMITED))
    return _whole_numbers("capacity", capacity, counts, many, 1)


def _initial(
    initial: Any, counts: np.ndarray | None, many: int, limits: np.ndarray, total_capacity: int | None
) -> np.ndarray:
    """Return the queue length of each server at time 0, shape (M,)."""
    if initial is None:
        return np.zeros(many, dtype=np.int64)
    begin = _whole_numbers("initial", initial if _several(initial) else [initial], counts, many, 0)
    if (begin > limits).any():
        server = int(np.argmax(begin > limits))
        raise ModelError(f"initial[{server}] is {begin[server]}; allowed is 0 to its capacity {limits[server]}.")
    if total_capacity is not None and begin.sum() > total_capacity:
        raise ModelError(f"initial has {begin.sum()} jobs; allowed are 0 to the total capacity {total_capacity}.")
    return begin


def _values(
    rule: Any, name: str, rates: np.ndarray, preferences: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return slope and offset of each server's selection value, which is linear in its queue length; shapes (M,)."""
    if not isinstance(rule, str) or ":" in rule:
        raise ModelError(f"{name} is {shown(rule)}; a simulation takes the rules by name: {', '.join(SELECTIONS)}.")
    choice(name, rule, SELECTIONS)
    if rule == "tandem":
        return 1 / (rates * preferences), np.zeros(len(rates))
    if rule == "weighted":
        return np.full(len(rates), weights[0]), weights[1] / rates + weights[2] / preferences
    if rule == "shortest_queue":
        return np.ones(len(rates)), np.zeros(len(rates))
    return 1 / rates, 1 / rates


def _switch(name: str, given: Any, default: bool) -> bool:
    if given is None:
        return default
    check_truth(name, given)
    return bool(given)


def _notes(
    arrival_rate: float, rates: np.ndarray, choices: int, sampling: str, limits: np.ndarray, total_capacity: int | None
) -> tuple[str, ...]:
    """Return a note where the queues grow without bound; a truncated system has no such note."""
    if total_capacity is not None or (limits < _UNLIMITED).all():
        return ()
    unstable = arrival_rate >= rates.sum()
    if not unstable and len(rates) <= _NOTED:
        unstable = bool(stability_notes(arrival_rate, rates, choices, sampling, None))
    return ("Unstable: queues grow without bound, and averages depend on the horizon.",) if unstable else ()
