"""Simulation: estimates with confidence intervals, from a builder's own simulator or from the jump chain of any generator.

A replication has random streams of its own, which depend on the seed and its number only: any number of threads gives the same
estimate, and two designs that are simulated with the same seed see the same randomness, so that their difference is estimated
from pairs (common random numbers).  Source for output analysis: A. M. Law, *Simulation Modeling and Analysis*, chapters 9 to 11.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from ctmc import registry
from ctmc.errors import ModelError, shown
from ctmc.estimate import Estimate, difference
from ctmc.model.distribution import distribution
from ctmc.model.generator import Generator
from ctmc.model.jump_chain import INTEGRALS, reward_table, rows_by_source, run_paths, target_states
from ctmc.model.memory import require_memory
from ctmc.model.parameters import (
    LARGEST_COUNT,
    check_function,
    check_known,
    checked_names,
    numbers,
    real_number,
    whole_number,
)
from ctmc.model.random_streams import spawn_streams

_CHUNK_SECONDS = 0.1
Monitor = Callable[[int, int], bool]
"""``monitor(done, replications)`` after some replications; returning true ends the simulation with those done."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to simulate, how often, and when to look.

    Attributes
    ----------
    grid : ndarray, shape (g,)
        All times at which a run is read, ascending.
    edges : ndarray of int, shape (2,) or (batches + 1,)
        Positions in the grid of the end of the warm-up and of each batch, or of the horizon.
    shown : ndarray of int, shape (times,)
        Positions in the grid of the times asked for.
    warm_up, horizon : float
    replications, seed : int
    batches : int or None
        Parts of one long run, which stand for replications.
    """

    grid: np.ndarray
    edges: np.ndarray
    shown: np.ndarray
    warm_up: float
    horizon: float
    replications: int
    seed: int
    batches: int | None

    @classmethod
    def checked(
        cls,
        *,
        horizon: float | None,
        times: Sequence[float] | None,
        warm_up: float | None,
        replications: int | None,
        seed: int,
        batches: int | None = None,
        default_replications: int = 10,
    ) -> Plan:
        """Return the plan of a user's options; without times a tenth of the horizon is left out.

        Examples
        --------
        >>> plan = Plan.checked(horizon=10, times=None, warm_up=None, replications=None, seed=3)
        >>> plan.grid.tolist(), plan.replications
        ([1.0, 10.0], 10)
        """
        asked = np.empty(0)
        if times is not None:
            allowed = "one or more finite times >= 0, ascending"
            asked = numbers("times", times, allowed)
            if not np.isfinite(asked).all() or asked[0] < 0 or (np.diff(asked) <= 0).any():
                raise ModelError(f"times is {shown(times)}; allowed are {allowed}.")
        if horizon is None and times is None:
            raise ModelError("horizon is missing; give the time that each replication lasts, or times.")
        end = float(asked[-1]) if horizon is None else _time("horizon", horizon)
        if not end > 0 or (len(asked) and asked[-1] > end):
            raise ModelError(f"horizon is {end:g}; allowed is a time > 0, not before the last of times.")
        before = (end / 10 if times is None else 0.0) if warm_up is None else _time("warm_up", warm_up)
        if before >= end:
            raise ModelError(f"warm_up is {before:g}; allowed is a time before the horizon {end:g}.")
        if batches is not None:
            if replications is not None:
                raise ModelError(
                    f"batches is {shown(batches)} and replications is {shown(replications)}; allowed is one of the two."
                )
            if times is not None:
                raise ModelError("times are given with batches; trajectories need replications.")
            edges = np.linspace(before, end, whole_number("batches", batches, 2, 10_000) + 1)
        else:
            edges = np.array([before, end])
        count = (
            default_replications
            if replications is None
            else whole_number("replications", replications, 2, LARGEST_COUNT)
        )
        grid = np.unique(np.concatenate([edges, asked]))
        return cls(
            grid=grid,
            edges=np.searchsorted(grid, edges),
            shown=np.searchsorted(grid, asked),
            warm_up=before,
            horizon=end,
            replications=count if batches is None else 1,
            seed=whole_number("seed", seed, 0, LARGEST_COUNT),
            batches=batches,
        )

    @property
    def times(self) -> np.ndarray:
        """The times asked for."""
        return np.asarray(self.grid[self.shown])

    @property
    def durations(self) -> np.ndarray:
        """Length of each part that gives one sample of a long-run average, in a run; shape (1,) or (batches,)."""
        return np.diff(self.grid[self.edges])

    @property
    def run(self) -> str:
        """What one replication is."""
        return f"time {self.horizon - self.warm_up:,g}" if self.batches is None else f"time {self.durations[0]:,g}"

    def parts(self, integrals: np.ndarray) -> np.ndarray:
        """Return what was added in each replication, or in each batch: (replications, grid, ..) becomes (samples, ..)."""
        steps = np.diff(integrals[:, self.edges], axis=1)
        return np.asarray(steps.reshape(-1, *steps.shape[2:]))


def _time(name: str, given: Any) -> float:
    return real_number(name, given, lambda value: 0 <= value < np.inf, "a finite time >= 0")


def checked_discount(discount: Any) -> float:
    """Return a discount rate, 0 for None; others must be positive."""
    if discount is None:
        return 0.0
    value = _time("discount", discount)
    if value == 0:
        raise ModelError("discount is 0; allowed is a rate > 0.")
    return value


def replicate(
    plan: Plan, streams: int, run: Callable[[np.ndarray], Sequence[np.ndarray]], monitor: Monitor | None = None
) -> list[np.ndarray]:
    """Run the replications of a plan on all threads, in portions of about a tenth of a second.

    Parameters
    ----------
    plan : Plan
    streams : int
        Random streams of a replication.
    run : callable
        Takes their states, shape (m, streams, 4), and returns arrays of shapes (m, ..); it should release the GIL.
    monitor : callable, optional
        At least two replications are done before it can stop the simulation.

    Returns
    -------
    list of ndarray, shapes (replications done, ..)
    """
    parts: list[Sequence[np.ndarray]] = []
    workers, done, size = numba.get_num_threads(), 0, 1

    def portion(numbers: np.ndarray) -> Sequence[np.ndarray]:
        return run(spawn_streams(plan.seed, int(numbers[0]), len(numbers), streams))

    with ThreadPoolExecutor(workers) as pool:
        while done < plan.replications:
            count = min(size * workers, plan.replications - done)
            begin = time.perf_counter()
            portions = np.array_split(np.arange(done, done + count), min(workers, count))
            parts += pool.map(portion, portions)
            done += count
            if time.perf_counter() - begin < _CHUNK_SECONDS:
                size *= 2
            if monitor is not None and monitor(done, plan.replications) and done >= 2:
                break
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def simulate(model: Any, /, **options: Any) -> Estimate:
    """Simulate a builder's system by its own simulator, or the jump chain of a generator.

    Parameters
    ----------
    model : str or Generator
        Name of a builder that has a simulator, such as 'supermarket' or 'fork_join'; or a model, in memory or loaded.
    **options
        Of the simulator: ``seed``, and what `simulate_generator`, or the builder's simulator, takes.

    Returns
    -------
    Estimate

    Raises
    ------
    ModelError
        For options out of range.
    UnsupportedProblemError
        If the builder has no simulator.

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> low, high = simulate(chain, initial=(0,), horizon=1000, replications=20, seed=20261).interval("state")
    >>> low < 1 / 3 < high, high - low < 0.02
    (True, True)
    """
    if isinstance(model, str):
        simulator = registry.simulator(model)
        _check_options(simulator, options)
        found: Estimate = simulator(**options)
        return found
    if isinstance(model, Generator):
        _check_options(simulate_generator, options)
        return simulate_generator(model, **options)
    hint = "; queue.truncate(levels=..) makes a Generator of a queue with infinitely many levels"
    raise ModelError(f"model is a {type(model).__name__}; allowed is the name of a builder or a Generator{hint}.")


def _check_options(simulator: Callable[..., Estimate], options: dict[str, Any]) -> None:
    """Raise what is wrong with the names of options, or which of them is missing."""
    known = {
        name: option.default
        for name, option in inspect.signature(simulator).parameters.items()
        if option.kind is option.KEYWORD_ONLY
    }
    check_known("option of simulate", options, known)
    for name, default in known.items():
        if default is inspect.Parameter.empty and name not in options:
            raise ModelError(f"{name} is missing; allowed are {', '.join(known)}, and {name} must be given.")


def simulate_generator(
    chain: Generator,
    *,
    horizon: float | None = None,
    times: Sequence[float] | None = None,
    rewards: Sequence[str] | None = None,
    initial: Any = None,
    target: str | None = None,
    discount: float | None = None,
    warm_up: float | None = None,
    replications: int = 100,
    seed: int,
    monitor: Monitor | None = None,
) -> Estimate:
    """Simulate the jump chain of a generator: exponential holding times, and transitions in proportion to their rates.

    Makes 27 million transitions a second of a queue with four servers (`benchmarks/simulation_speed.py`), and takes 12 to 16 bytes
    for each transition of the model.  For example ``ctmc simulate model.h5 --times 0:50:1 --rewards jobs --replications 1000
    --seed 7``.

    Parameters
    ----------
    chain : Generator
    horizon : float, optional
        Time that each replication lasts; default the last of the times.  With a target, when to give up.
    times : sequence of float, optional
        When to look at the rewards and at their integrals since time 0, the reward process.
    rewards : sequence of str, optional
        Names of rewards or variables; default all that the model has.
    initial : sequence of int, optional
        Where each replication starts: a state, or in Python any distribution; default the model's own.
    target : str, optional
        A condition such as 'jobs >= 10', or a label: the time until it first holds is estimated in place of rewards.
    discount : float, optional
        Rate at which rewards lose value: also estimates their discounted sums over [0, horizon].
    warm_up : float, optional
        Time that averages leave out; default a tenth of the horizon, nothing where times are given.
    replications : int
        At least 2; the confidence intervals come from the differences between them.
    seed : int
        Of the random streams; the same seed gives the same estimate.
    monitor : callable, optional

    Returns
    -------
    Estimate
        Averages over time of the rewards, by name; at the times, `trajectories` of each reward and of its integral,
        ``accumulated_NAME`` and ``accumulated_NAME_variance``; with a discount, ``discounted_NAME``.  With a target:
        ``reached``, the probability to reach it by the horizon, and where all replications did, ``first_passage_time``.

    Raises
    ------
    ModelError, UnknownNameError

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> found = simulate_generator(chain, initial=(0,), times=[0.5], replications=4000, seed=20262)
    >>> low, high = found.trajectories["state"].band
    >>> bool(low[0] < 0.258956613284 < high[0])
    True
    """
    if target is not None and (times is not None or rewards is not None or discount is not None or warm_up is not None):
        raise ModelError("target is given with times, rewards, discount or warm_up; allowed is horizon alone.")
    check_function("monitor", monitor, "a function of what is done")
    plan = Plan.checked(
        horizon=horizon, times=times, warm_up=0 if target is not None else warm_up, replications=replications, seed=seed
    )
    rate = checked_discount(discount)
    given = chain.initial if initial is None else initial
    if given is None:
        raise ModelError("initial is missing and the model has none; give a state, e.g. initial=(0, 0, 0).")
    start = distribution(chain.space, given)
    stop = np.zeros(0, dtype=bool) if target is None else target_states(chain, target)
    chosen = (
        []
        if target is not None
        else list(chain.all_rewards)
        if rewards is None
        else list(checked_names("rewards", rewards, "reward"))
    )
    table, columns = reward_table(chain, chosen)
    rows = rows_by_source(chain)
    places, width = len(plan.grid), table.shape[1]
    require_memory("what the replications see", 8 * plan.replications * INTEGRALS * places * max(width, 1))
    cumulative = np.cumsum(start.probabilities)

    def run(streams: np.ndarray) -> Sequence[np.ndarray]:
        seen = np.zeros((len(streams), INTEGRALS, places, width))
        hits, events = np.full(len(streams), np.inf), np.zeros(len(streams), dtype=np.int64)
        run_paths(*rows, chain.exit_rates, table, stop, start.positions, cumulative, streams, plan.grid, rate, seen, hits, events)  # fmt: skip
        return seen, hits, events

    seen, hits, events = replicate(plan, 1, run, monitor)
    samples: dict[str, np.ndarray] = {}
    paths: dict[str, np.ndarray] = {}
    notes: tuple[str, ...] = ()
    if target is not None:
        samples["reached"] = np.isfinite(hits).astype(np.float64)
        if np.isfinite(hits).all():
            samples["first_passage_time"] = hits
        else:
            notes = (f"{np.isinf(hits).sum()} of {len(hits)} replications did not reach the target by time {plan.horizon:g}, "
                     "so its mean time is not estimated.",)  # fmt: skip
    for name, column in columns.items():
        samples[name] = plan.parts(seen[:, 1, :, column]) / plan.durations[0]
        if rate:
            samples[f"discounted_{name}"] = seen[:, 2, -1][..., column]
        if len(plan.shown):
            paths[name] = seen[:, 0][:, plan.shown][..., column]
            paths[f"accumulated_{name}"] = seen[:, 1][:, plan.shown][..., column]
    return Estimate.from_samples(
        samples,
        times=plan.times,
        paths=paths,
        variances=[name for name in paths if name.startswith("accumulated_")],
        proportions=["reached"],
        title="Simulation of the jump chain",
        run=plan.run,
        replications=len(hits),
        warm_up=plan.warm_up,
        seed=plan.seed,
        events=int(events.sum()),
        notes=notes,
    )


def compare(model: Any, first: Mapping[str, Any], second: Mapping[str, Any], **common: Any) -> Estimate:
    """Simulate two designs with common random numbers and return the estimate of first minus second.

    Parameters
    ----------
    model : str or Generator
        As in `simulate`.
    first, second : mapping
        Options in which the designs differ.
    **common
        All others, the seed among them.

    Examples
    --------
    >>> servers = {"service_rates": [1.0] * 10, "arrival_rate": 8.0, "horizon": 2000, "seed": 20263}
    >>> low, high = compare("supermarket", {"choices": 2}, {"choices": 3}, **servers).interval("jobs")
    >>> 0 < low < high
    True
    """
    return difference(simulate(model, **common, **first), simulate(model, **common, **second))


__all__ = [
    "Estimate",
    "Monitor",
    "Plan",
    "checked_discount",
    "compare",
    "difference",
    "replicate",
    "simulate",
    "simulate_generator",
]
