"""Counts that pages tell and no clock disturbs: states, transitions, products, entries of factors.

    python benchmarks/counts.py [--all]

Each line is one count, by the command that a page names or the model that a section describes.  `docs/site/numbers.toml` ties
the pages to these lines, and tests/test_numbers.py prints them anew.  With --all also those that take a minute, whose last output is
kept in benchmarks/results/counts.txt.  Run it with NUMBA_NUM_THREADS=1, which changes no count.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

import ctmc
from builders.fork_join import fork_join
from builders.fork_join.thresholds import threshold_design
from builders.supermarket import supermarket
from ctmc.errors import MemoryLimitError
from ctmc.model.streamed import streaming
from solvers.stationary.anderson import Anderson
from solvers.stationary.gmres import Gmres
from solvers.transient.krylov_exponential import KrylovExponential

SIX = [1, 1.5, 2, 3, 4.5, 6]
STUDIED = {  # PRISM's, at the sizes of the README
    "coxian_tandem": {"capacity": 1023},
    "polling": {"stations": 16},
    "kanban": {"tickets": 4},
    "workstation_cluster": {"workstations": 128},
    "flexible_manufacturing": {"parts": 4},
}


def heterogeneous(servers: int, capacity: int, load: float) -> ctmc.Generator:
    """Return the supermarket of `stationary_scale.py` and `transient_scale.py`."""
    rates = np.linspace(1, 2, servers)
    return supermarket(rates, load * rates.sum(), 2, capacity, selection="tandem", sampling="with_replacement")


def size(name: str, builder: str, **parameters: Any) -> str:
    """Return the line of a model whose rows are not made, or only counted."""
    with streaming():
        model = ctmc.build(builder, **parameters)
        return f"{name}: {model.size:,} states, {model.entries:,} transitions, {model.size + model.entries:,} with the diagonal"


def sizes(everything: bool) -> Iterator[str]:
    """Yield the sizes of models."""
    shapes = [(4, 9), (4, 17), (4, 20), (5, 11), (6, 8), (6, 9), (6, 11)] + everything * [(7, 9), (7, 11), (8, 9)]
    for servers, capacity in shapes:
        rates = np.linspace(1, 2, servers).tolist()
        common = {"arrival_rate": 0.8 * sum(rates), "choices": 2, "sampling": "with_replacement"}
        yield size(
            f"supermarket ({servers}, {capacity})", "supermarket", service_rates=rates, capacity=capacity, **common
        )
    yield f"supermarket (9, 8): {9**9:,} states"
    for servers, capacity in [(3, 40), (3, 80), (4, 27)] + everything * [(4, 69)]:
        equal = {"service_rates": [1.0] * servers, "arrival_rate": 0.8 * servers, "choices": 2}
        yield size(f"{servers} equal servers, capacity {capacity}", "supermarket", capacity=capacity, **equal)
    for total in [30] + everything * [38, 46]:
        common = {"arrival_rate": 14.4, "choices": 2, "capacity": total, "total_capacity": total}
        yield size(f"six servers, cap {total}", "supermarket", service_rates=SIX, **common)
    for builder, parameters in STUDIED.items():
        yield size(
            ", ".join([builder, *(f"{name} {value}" for name, value in parameters.items())]), builder, **parameters
        )
    lumped = {"service_rates": [2, 1, 2, 1], "arrival_rate": 4, "choices": 2, "capacity": 9}
    yield size("two and two equal servers, capacity 9, lumped", "supermarket", lump=True, **lumped)
    twenty = {"service_rates": [1.0] * 20, "arrival_rate": 16, "choices": 2, "capacity": 2}
    yield size("twenty equal servers, capacity 2, lumped", "supermarket", lump=True, **twenty)
    yield f"twenty equal servers, capacity 10, lumped: {math.comb(30, 10):,} orbits of {11**20:.1e} states"
    rates = np.linspace(2, 1, 12)
    queue = fork_join(rates, 0.5 * rates.sum() / 12, 12, [1] + [40] * 11)
    yield f"fork_join of 12 servers, thresholds 1 and 40: {sum(map(len, queue.phases)):,} boundary states"


def designs() -> Iterator[str]:
    """Yield how many designs there are."""
    for servers, tasks, most in ((3, 3, 12), (6, 4, 20)):
        parameters = {"service_rates": np.linspace(2, 1, servers).tolist(), "arrival_rate": 0.1, "tasks": tasks}
        yield f"thresholds of {servers} servers up to {most}: {threshold_design(parameters, most).count:,} points"


def stationary(everything: bool) -> Iterator[str]:
    """Yield products of stationary solves to 1e-12."""
    asked = [(4, 9, 0.8), (4, 17, 0.8), (4, 20, 0.8), (4, 20, 0.95)]
    asked += [(5, 11, 0.8), (6, 8, 0.8), (6, 9, 0.8), (6, 11, 0.8)]
    for servers, capacity, load in asked + everything * [(7, 9, 0.8)]:
        model = heterogeneous(servers, capacity, load)
        both = (servers, capacity) in ((4, 20), (5, 11), (6, 8)) or (everything and (servers, capacity) == (6, 11))
        for solver in ("bicgstab", "anderson") if both else ("bicgstab",):
            solution = ctmc.solve(ctmc.Stationary(model, 1e-12), solver)
            yield f"({servers}, {capacity}), load {load}, {solver}: {solution.products} products"


def over_time(everything: bool) -> Iterator[str]:
    """Yield products of transient solves of (4, 20) from the empty state."""
    asked = [("chebyshev", 0.8, 10), ("uniformization", 0.8, 10), ("chebyshev", 0.8, 100), ("chebyshev", 0.95, 10)]
    asked += [("uniformization", 0.95, 10), ("chebyshev", 0.95, 100)]
    if everything:
        asked += [("adaptive_uniformization", 0.8, 10), ("krylov_exponential", 0.8, 10), ("uniformization", 0.8, 100)]
        asked += [("krylov_exponential", 0.8, 100), ("chebyshev", 0.8, 10_000), ("uniformization", 0.8, 10_000)]
        asked += [("krylov_exponential", 0.8, 10_000), ("uniformization", 0.95, 100)]
    for solver, load, horizon in asked:
        model = heterogeneous(4, 20, load)
        solution = ctmc.solve(ctmc.Transient(model, (0,) * 4, [horizon], reward="jobs"), solver)
        yield f"(4, 20), load {load}, t = {horizon}, {solver}: {solution.products} products"
    if everything:
        found = ctmc.solve(
            ctmc.Transient(heterogeneous(4, 20, 0.8), (0,) * 4, [100], reward="jobs", tolerance=1e-9), "chebyshev"
        )
        yield f"(4, 20), load 0.8, t = 100, tolerance 1e-9, chebyshev: {found.products} products"


def one_process() -> Iterator[str]:
    """Yield products of the methods of one process in `petsc_solvers.py`."""
    model = supermarket([1.0] * 3, 2.55, 2, 40, selection="shortest_queue")
    start = (0, 0, 0)
    times = ctmc.Transient(model, initial=start, reward="jobs", times=[3.0, 30.0])
    asked = [("bicgstab", ctmc.Stationary(model, 1e-11)), ("uniformization", times), ("chebyshev", times)]
    asked.append(("resolvent_krylov", ctmc.DiscountedReward(model, "jobs", initial=start, discount=0.01)))
    asked.append(("absorption_krylov", ctmc.FirstPassage(model, "jobs >= 15", initial=start, moments=1)))
    for solver, problem in asked:
        yield f"(3, 40), load 0.85, {type(problem).__name__}, {solver}: {ctmc.solve(problem, solver).products} products"


def factors(everything: bool) -> Iterator[str]:
    """Yield how many entries the factors of `sparse_lu` would have: each is refused before it is made."""
    for servers, capacity, limit in [(3, 20, "20MiB"), (4, 12, "100MiB")] + everything * [(4, 20, "1GiB")]:
        try:
            with ctmc.limited_memory(limit):
                ctmc.solve(ctmc.Stationary(heterogeneous(servers, capacity, 0.8)), "sparse_lu")
        except MemoryLimitError as error:
            yield f"({servers}, {capacity}): {str(error).partition(', more')[0]}"


def memory() -> Iterator[str]:
    """Yield how many vectors methods hold with the options that they have if none is given."""
    yield f"gmres: {Gmres().restart} half vectors of the basis"
    yield f"anderson: {2 * Anderson().depth + 6} vectors"
    yield f"krylov_exponential: {KrylovExponential().dimension + 9} vectors"


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also those that take a minute")
    everything = parser.parse_args().all
    counted = [sizes(everything), designs(), stationary(everything), over_time(everything)]
    for line in chain.from_iterable([*counted, one_process(), factors(everything), memory()]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
