"""What do passage times cost in chains without cycles?  The duration of an epidemic, by class elimination and by what else there is.

    python benchmarks/class_elimination.py [--quick] [--repeats 5]

An epidemic without relapse: with s susceptible and i infected of n people the next infection comes at twice the rate s i / n, and
each infected recovers at rate 1; the mean time until nobody is infected, from every state.  All in one process, on one thread.  The
unit U is the time of 100 SciPy products of the same matrix.  For each method: U of a whole `ctmc.solve` with one moment, certificate
included, and its status; iterations end after a minute.  The peer is SciPy's `spsolve`, factors and solution, without any check.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import diags_array
from scipy.sparse.linalg import spsolve
from threadpoolctl import threadpool_limits

import ctmc

METHODS = ("class_elimination", "absorption_lu", "absorption_krylov")
LIMIT = 60.0


def epidemic(people: int) -> ctmc.Generator:
    """Return the chain of an epidemic that one of so many people begins."""

    def transitions(states: np.ndarray) -> Any:
        susceptible, infected = states.T
        infections = np.flatnonzero((susceptible > 0) & (infected > 0))
        recoveries = np.flatnonzero(infected > 0)
        yield infections, states[infections] + [-1, 1], 2.0 * susceptible[infections] * infected[infections] / people
        yield recoveries, states[recoveries] - [0, 1], 1.0 * infected[recoveries]

    return ctmc.build(
        "reachable",
        transitions=transitions,
        initial=(people - 1, 1),
        variables=["susceptible", "infected"],
        vectorized=True,
    )


def median_seconds(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Return the median time of a call, and what it returned; a call of more than ten seconds is not repeated."""
    seconds: list[float] = []
    while len(seconds) < repeats:
        begin = time.perf_counter()
        value = call()
        seconds.append(time.perf_counter() - begin)
        if seconds[0] > 10:
            break
    return statistics.median(seconds), value


def measure(people: int, repeats: int) -> None:
    """Print a line for each method."""
    begin = time.perf_counter()
    chain = epidemic(people)
    built = time.perf_counter() - begin
    matrix = chain.to_scipy()
    vector = np.ones(chain.size)
    unit, _ = median_seconds(lambda: [matrix @ vector for _ in range(100)], 5)
    print(
        f"n = {people}: {chain.size:,} states, {chain.entries:,} transitions, built in {built:.2g} s; U = {unit:.3g} s"
    )
    problem = ctmc.FirstPassage(chain, "infected == 0", moments=1)
    ctmc.solve(problem, METHODS[0])  # so that loops are compiled
    start = chain.space.index(np.array([people - 1, 1]))
    for method in METHODS:
        seconds, found = median_seconds(
            lambda method=method: ctmc.solve(problem, method, time_limit=LIMIT, check=False), repeats
        )
        mean = f"mean {found.mean[start]:.10g}" if found.converged else found.reason
        print(f"  {method:18} {seconds / unit:9.3g} U  {seconds:8.3g} s  {found.status.name}, {mean}")
    inside = ~problem.target_states
    part = -matrix[inside][:, inside]
    part = (part - diags_array(part.diagonal()) + diags_array(chain.exit_rates[inside])).tocsc()
    seconds, x = median_seconds(lambda: spsolve(part, np.ones(part.shape[0])), repeats)
    place = np.count_nonzero(inside[:start])
    print(f"  {'SciPy spsolve':18} {seconds / unit:9.3g} U  {seconds:8.3g} s  mean {x[place]:.10g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest epidemic only")
    parser.add_argument("--repeats", type=int, default=5, help="runs that the median is taken of")
    given = parser.parse_args()
    with threadpool_limits(1), ctmc.limited_threads(1):
        for people in (100,) if given.quick else (100, 400, 2000):
            measure(people, given.repeats)


if __name__ == "__main__":
    main()
