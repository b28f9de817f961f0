"""What do transient answers cost?  Expected jobs at a time and accumulated up to it, in the heterogeneous supermarket.

    python benchmarks/transient_scale.py [--quick] [--repeats 5] [--output FOLDER]

All in one process, so that ratios mean something on a machine that others use too.  The unit U is the time of 100 SciPy products
Q^T x.  For each of our methods: products (with those of the certificate), U of a whole `ctmc.solve`, certificate included,
the same relative to as many bare products, the proven bound on the error of E[jobs], and the true one.  Peers: plain
uniformization over SciPy's products, which gives both numbers, and SciPy's `expm_multiply`, which gives the first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse.linalg import expm_multiply
from scipy.stats import poisson
from stationary_methods import build, transposed
from threadpoolctl import threadpool_limits

import ctmc

MODELS = [(4, 20, 0.8), (4, 20, 0.95), (6, 8, 0.8)]
TIMES = [10.0, 100.0, 10_000.0]
MOST_PRODUCTS = 20_000
"""A method that would take more is left out."""


def median_seconds(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Return the median time of a call, and what it returned."""
    seconds, value = [], None
    for _ in range(repeats):
        begin = time.perf_counter()
        value = call()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), value


def plain_uniformization(
    matrix: Any, rate: float, start: np.ndarray, jobs: np.ndarray, horizon: float
) -> tuple[float, float]:
    """Return E[jobs] at the horizon and accumulated, as a user of SciPy writes it."""
    mean = rate * horizon
    last = int(poisson.isf(1e-12, mean)) + 1
    weights = poisson.pmf(np.arange(last + 1), mean)
    beyond = poisson.sf(np.arange(last + 1), mean)
    power, p, integral = start.copy(), weights[0] * start, beyond[0] * start
    for k in range(1, last + 1):
        power = power + matrix @ power / rate
        p += weights[k] * power
        integral += beyond[k] * power
    return float(p @ jobs), float(integral @ jobs) / rate


def measure(servers: int, capacity: int, load: float, times: list[float], repeats: int, peers: bool) -> list[str]:
    """Return the rows of a model."""
    chain = build(servers, capacity, load)
    start = (0,) * servers
    methods = ctmc.registry.solvers_for(ctmc.AccumulatedReward(chain, "jobs", start, [1.0]))
    matrix, vector = transposed(chain), np.random.default_rng(17).random(chain.size)
    jobs = np.concatenate([states.sum(axis=1) for _, states in chain.space.slabs()]).astype(float)
    out = np.empty_like(vector)
    for horizon in (0.01, 1.0):  # warm
        for method in methods:
            ctmc.solve(ctmc.Transient(chain, start, [horizon], reward="jobs"), method, check=False, time_limit=20)
    rows = []
    for horizon in times:
        with threadpool_limits(1):
            unit = 100 * median_seconds(partial(matrix.dot, vector), 30)[0]
        bare = median_seconds(partial(chain.forward, vector, out), 60)[0]
        name = f"({servers}, {capacity}), load {load}, t = {horizon:g}"
        exact: float | None = None
        for method in ("chebyshev", *(other for other in methods if other != "chebyshev")):
            events = 1.02 * chain.uniformization_rate * horizon
            if method in ("uniformization", "adaptive_uniformization") and events > 100 * MOST_PRODUCTS:
                continue
            if method not in ("chebyshev", "uniformization") and not peers:
                continue
            for what, problem in (
                ("at t", ctmc.Transient(chain, start, [horizon], reward="jobs")),
                ("both", ctmc.AccumulatedReward(chain, "jobs", start, [horizon])),
            ):
                call = partial(ctmc.solve, problem, method, check=False, time_limit=60)
                seconds, solution = median_seconds(call, repeats if method in ("chebyshev", "uniformization") else 1)
                if not solution.converged:
                    rows.append(f"| {name} | {method}, {what} | | {seconds / unit:.2f} | | {solution.status.name} | |")
                    break
                value = float(solution.value.ravel()[0])
                if what == "at t":
                    exact = value if exact is None else exact
                    error = f"{abs(value - exact):.1e}"
                else:
                    error = ""
                proven = solution.error_bound
                bound = "none" if proven is None else f"{float(np.ravel(proven)[0]):.1e}"
                rows.append(
                    f"| {name} | {method}, {what} | {solution.products} | {seconds / unit:.2f} | "
                    f"{seconds / (solution.products * bare):.2f} | {bound} | {error} |"
                )
        if peers and horizon <= 100:
            begin = np.zeros(chain.size)
            begin[chain.space.index(start)] = 1
            rate = 1.02 * chain.uniformization_rate
            with threadpool_limits(1):
                seconds, found = median_seconds(partial(plain_uniformization, matrix, rate, begin, jobs, horizon), 1)
                error = f"{abs(found[0] - exact):.1e}"
                count = int(poisson.isf(1e-12, rate * horizon)) + 1
                rows.append(
                    f"| {name} | SciPy, plain uniformization, both | {count} | {seconds / unit:.2f} | | | {error} |"
                )
                if horizon <= 10:
                    seconds, p = median_seconds(partial(expm_multiply, matrix * horizon, begin), 1)
                    error = f"{abs(p @ jobs - exact):.1e}"
                    rows.append(f"| {name} | SciPy, expm_multiply, at t | | {seconds / unit:.2f} | | | {error} |")
        rows.append(f"| {name} | *one product* | 1 | {bare / unit:.4f} | 1 | | |")
    return rows


def draw(points: dict[str, list[tuple[float, int]]], path: Path) -> None:
    """Draw products against rate x time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for (name, values), marker in zip(points.items(), "osD^v", strict=False):
        axes.loglog(*zip(*values, strict=True), marker=marker, markersize=4.5, label=name)
    axes.set_xlabel("rate x time")
    axes.set_ylabel("products, certificate included")
    axes.set_title("Expected jobs of four servers, proven to 1e-10")
    axes.grid(True, which="major", color="0.9", linewidth=0.6)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that everything runs")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="folder for the picture of the products")
    given = parser.parse_args()
    models = [(2, 3, 0.8)] if given.quick else MODELS
    times = [1.0, 10.0] if given.quick else TIMES
    print("| model | method | products | U | over bare products | proven bound | error |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for number, model in enumerate(models):
        for row in measure(*model, times if number == 0 else times[:2], given.repeats, peers=number == 0):
            print(row, flush=True)
    if given.output is not None:
        chain = build(*models[0])
        points: dict[str, list[tuple[float, int]]] = {"chebyshev": [], "uniformization": []}
        for horizon in (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)[: 3 if given.quick else 9]:
            for method, line in points.items():
                problem = ctmc.Transient(chain, (0,) * models[0][0], [horizon], reward="jobs")
                line.append((chain.uniformization_rate * horizon, ctmc.solve(problem, method).products))
        given.output.mkdir(exist_ok=True, parents=True)
        draw(points, given.output / "transient_scale.png")


if __name__ == "__main__":
    main()
