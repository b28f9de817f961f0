"""How good is the advice on which solver to take? Every stationary solver on a gallery of models, against `ctmc.advise`.

    python benchmarks/advise.py [--folder FOLDER] [--only PART_OF_NAME] [--list]

Solves run in another process, which is ended where it does not answer in time; run it with NUMBA_NUM_THREADS=1 and one BLAS thread.  The
limit, in processor time, is 2.5 times what the quickest one so far took and 0.2 s, for iterative methods one second at least.
Cost is told in two ways.  *Products* are those with the generator that a converged iterative method made, which no clock
disturbs.  *Products' worth of time* is the processor time of a solve with its certificate over the time of one product of the same
model in the same run, so that eliminations and factorisations are compared, too.  A recommendation is good if it costs at most 1.5
times the best one.  The rules of `ctmc/costs.py` were fitted on the models that are not marked `held out`: every third one of
the gallery is.  It takes about 15 minutes of one core.  With a folder the runs are kept there, and what is there is not run again; the advice always is.
With --list nothing is solved: the models of the gallery are counted, and their states.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ctmc
from ctmc import registry
from ctmc.model.streamed import streaming

DIRECT = ("gth", "sparse_lu", "level_reduction", "pardiso", "umfpack")
"""Methods that eliminate, and so are compared by time only."""
ORDER = (
    "bicgstab",
    "sparse_lu",
    "gauss_seidel",
    "level_reduction",
    "aggregation",
    "gmres",
    "anderson",
    "arnoldi",
    "gth",
)
"""Tried first, so that the others get short limits."""
GOOD = 1.5
SHORTEST, STRETCH, LONGEST = 0.2, 2.5, 10.0
ITERATIVE = 1.0
"""Seconds of processor time that iterative methods have at least, so that their products are known."""
COMPILING = 30.0
"""Seconds more for the first solve of a process, which may have to compile."""
MOST_DENSE = 4000
"""Most states for dense elimination, whose cost is known beforehand."""
SPEEDS = np.linspace(1, 2, 4)


def gallery() -> Iterator[tuple[str, str, dict[str, Any], int | None]]:
    """Yield name, builder, parameters, and for QBDs that are cut off the number of levels."""
    for servers, capacity in ((2, 30), (3, 20), (4, 20)):
        rates = np.linspace(1, 2, servers)
        for load in (0.5, 0.8, 0.95, 0.99):
            common = {"service_rates": rates.tolist(), "arrival_rate": load * rates.sum(), "choices": 2}
            yield f"supermarket {servers}x{capacity} load {load}", "supermarket", common | {"capacity": capacity}, None
    for servers, capacity, load in ((8, 6, 0.8), (12, 8, 0.8), (12, 8, 0.95)):
        common = {"service_rates": [1.0] * servers, "arrival_rate": load * servers, "choices": 2, "lump": True}
        yield f"lumped {servers}x{capacity} load {load}", "supermarket", common | {"capacity": capacity}, None
    for load, total in ((0.8, 20), (0.95, 30)):
        common = {"service_rates": SPEEDS.tolist(), "arrival_rate": load * SPEEDS.sum(), "choices": 2}
        yield f"capped {total} load {load}", "supermarket", common | {"capacity": total, "total_capacity": total}, None
    few = {"service_rates": [5, 2, 1], "tasks": 3}
    many = {"service_rates": [9, 7, 5, 4, 3, 2], "tasks": 4}
    yield "fork_join 3 cut 200", "fork_join", few | {"arrival_rate": 1.5, "thresholds": [1, 2, 8]}, 200
    yield "fork_join 3 cut 3000", "fork_join", few | {"arrival_rate": 1.5, "thresholds": [1, 2, 8]}, 3000
    yield "fork_join 6 cut 400", "fork_join", many | {"arrival_rate": 4.0, "thresholds": [1, 2, 3, 4, 5, 6]}, 400
    yield "fork_join 3", "fork_join", few | {"arrival_rate": 1.5, "thresholds": [1, 2, 8]}, None
    yield "fork_join 6", "fork_join", many | {"arrival_rate": 4.0, "thresholds": [1, 2, 3, 4, 5, 6]}, None
    for rates, arrival, room in (([3, 2, 1.5], 1.2, 20), ([2, 1.8], 1.6, 100), ([2, 1.8], 1.2, 350)):
        parameters = {"service_rates": rates, "arrival_rate": arrival, "capacity": room}
        yield f"tandem {len(rates)}x{room}", "tandem_network", parameters, None
    yield (
        "tandem total 60",
        "tandem_network",
        {"service_rates": [3, 2, 1], "arrival_rate": 0.8, "total_capacity": 60},
        None,
    )
    for room in (10, 60, 200):
        yield f"coxian_tandem {room}", "coxian_tandem", {"capacity": room}, None
    for stations in (5, 9, 12):
        yield f"polling {stations}", "polling", {"stations": stations}, None
    for tickets in (1, 2, 3):
        yield f"kanban {tickets}", "kanban", {"tickets": tickets}, None
    for number in (2, 16, 60):
        yield f"workstation_cluster {number}", "workstation_cluster", {"workstations": number}, None
    for parts in (2, 3, 4):
        yield f"flexible_manufacturing {parts}", "flexible_manufacturing", {"parts": parts}, None
    bursts = {"environment": [[0, 0.1, 0], [0, 0, 2], [0.5, 0.5, 0]], "arrival_rates": [0.2, 3, 0]}
    slow = {"environment": [[0, 1e-4], [3e-4, 0]], "arrival_rates": [0.5, 2.5], "service_rates": [1, 3]}
    yield (
        "modulated_queue 300",
        "modulated_queue",
        bursts | {"service_rates": [1, 1.5, 0.5], "servers": 2, "capacity": 300},
        None,
    )
    yield "modulated_queue slow 2000", "modulated_queue", slow | {"capacity": 2000}, None
    yield "modulated_queue", "modulated_queue", bursts | {"service_rates": [1, 1.5, 0.5], "servers": 2}, None
    for phases, speed in ((30, 1.0), (150, 1.0), (150, 1e-3)):
        draw = np.random.default_rng(1861)
        environment = speed * draw.random((phases, phases)) * (1 - np.eye(phases))
        rates = {"arrival_rates": draw.uniform(0, 1, phases).tolist(), "service_rates": [0.6] * phases}
        yield (
            f"modulated_queue {phases} phases {speed:g}",
            "modulated_queue",
            rates | {"environment": environment.tolist()},
            None,
        )
    rare = {"failure_rates": [1e-9, 1e-3, 1e-5], "repair_rates": [100.0, 0.5, 1e-4], "components": [2, 3, 2]}
    yield "repairable_system rare", "repairable_system", rare, None
    wear = {"failure_rates": [1e-3, 2e-3, 1e-4], "repair_rates": [1.0, 0.5, 0.2]}
    yield "repairable_system 20", "repairable_system", wear | {"components": [20, 20, 20], "repairmen": 2}, None
    yield "repairable_system 45", "repairable_system", wear | {"components": [45, 45, 45]}, None
    for blocks, size, coupling in ((20, 20, 1e-6), (50, 60, 1e-3), (100, 100, 1e-9), (300, 200, 1e-4)):
        parameters = {"blocks": blocks, "block_size": size, "coupling": coupling, "seed": 1994}
        yield f"nearly_decomposable {blocks}x{size} {coupling:g}", "nearly_decomposable", parameters, None
    yield "courtois", "courtois", {}, None
    yield "courtois 1e-3", "courtois", {"coupling": 1e-3}, None
    routes = {"circuits": [[1, 0], [0, 2], [1, 1]]}
    yield "loss_network 20", "loss_network", routes | {"capacities": [20, 20], "arrival_rates": [8, 4, 5]}, None
    yield "loss_network 90", "loss_network", routes | {"capacities": [90, 90], "arrival_rates": [40, 20, 25]}, None
    for capacity, load in ((100, 0.9), (5000, 0.99), (100_000, 0.999)):
        yield f"birth_death {capacity}", "birth_death", {"births": [load] * capacity, "deaths": [1.0] * capacity}, None


def measure(name: str, builder: str, parameters: dict[str, Any], levels: int | None, worker: Worker) -> dict[str, Any]:
    """Return one row of the gallery: what every solver took."""
    model = build(builder, parameters, levels)
    row: dict[str, Any] = {"model": name, "runs": {}}
    if isinstance(model, ctmc.Generator):
        row |= {"states": model.size, "entries": model.entries, "product": seconds_of_product(model)}
    else:
        row |= {"phases": model.phase_count}
    solvers = registry.solvers_for(ctmc.Stationary(model))
    solvers.sort(key=lambda solver: ORDER.index(solver) if solver in ORDER else len(ORDER))
    best = LONGEST
    for solver in solvers:
        if solver == "gth" and model.size > MOST_DENSE:
            continue
        row["runs"][solver] = found = worker.run(
            (builder, parameters, levels), solver, min(LONGEST, STRETCH * best + SHORTEST)
        )
        if found["status"] == "CONVERGED":
            best = min(best, found["seconds"])
    return row


def build(builder: str, parameters: dict[str, Any], levels: int | None) -> Any:
    model: Any = registry.build(builder, **parameters)
    return model if levels is None else model.truncate(levels=levels)


def seconds_of_product(chain: ctmc.Generator) -> float:
    """Return the median processor time of a product, from passes long enough for the clock."""
    p = np.full(chain.size, 1 / chain.size)
    out = chain.forward(p)
    repeats = max(1, 2_000_000 // (chain.entries + chain.size))
    times = []
    for _ in range(7):
        begin = time.process_time()
        for _ in range(repeats):
            chain.forward(p, out)
        times.append((time.process_time() - begin) / repeats)
    return statistics.median(times)


def over(end: float, *_: Any) -> bool:
    """Return whether the processor time of this process is over, as a monitor of a solve."""
    return time.process_time() > end


def serve(connection: Any) -> None:
    """Solve what comes through a connection, until nothing comes; a first solve loads the compiled loops."""
    warm: set[str] = set()
    place, model = None, None
    while True:
        wanted, solver, limit = connection.recv()
        if wanted != place:
            place, model = wanted, build(*wanted)
            problem = ctmc.Stationary(model)
        try:
            times: list[float] = []
            while len(times) < 2 and (sum(times) < 1 or (solver not in warm and sum(times) < 10)):
                begin = time.process_time()
                end = begin + max(limit, ITERATIVE) + (0 if solver in warm else COMPILING)
                solution = ctmc.solve(problem, solver, check=False, monitor=partial(over, end))
                times.append(time.process_time() - begin)
                if not solution.converged:
                    break
            warm.add(solver)
        except ctmc.CTMCError as error:
            connection.send({"status": type(error).__name__, "message": str(error)})
            continue
        found = {"status": solution.status.name, "products": solution.products}
        connection.send(found | {"seconds": min(times)})


class Worker:
    """A process that solves; one that does not answer in time is ended, and another one takes its place."""

    def __init__(self) -> None:
        self.process: Any = None

    def run(self, wanted: tuple[str, dict[str, Any], int | None], solver: str, limit: float) -> dict[str, Any]:
        """Return how a solve ended, with its products and processor time."""
        if self.process is None:
            self.warm: set[str] = set()
            self.connection, other = multiprocessing.Pipe()
            self.process = multiprocessing.get_context("spawn").Process(target=serve, args=(other,), daemon=True)
            self.process.start()
        self.connection.send((wanted, solver, limit))
        loading = 4.0 if solver in self.warm else 4 * COMPILING
        self.warm.add(solver)
        if self.connection.poll(4 * max(limit, ITERATIVE) + loading):
            with contextlib.suppress(EOFError):
                found: dict[str, Any] = self.connection.recv()
                return found
        self.process.kill()
        self.process.join()
        self.process = None
        return {"status": "TIME_LIMIT"}


def judged(row: dict[str, Any], advice: ctmc.Advice) -> dict[str, Any]:
    """Return the ratios of the advice to the best: by time over all methods, and by products among those that iterate.

    What did not converge within its limit counts as infinitely dear.
    """
    runs = {name: found for name, found in row["runs"].items() if found["status"] == "CONVERGED"}
    seconds = {name: found["seconds"] for name, found in runs.items()}
    products = {name: found["products"] for name, found in runs.items() if name not in DIRECT and found["products"]}
    quickest, thriftiest = min(seconds, key=seconds.__getitem__), min(products, key=products.__getitem__, default="")
    return {
        "model": row["model"], "states": row.get("states"), "quickest": quickest, "advised": advice.solver,
        "ratio": seconds.get(advice.solver, np.inf) / seconds[quickest],
        "thriftiest": thriftiest, "fewest": advice.fewest_products,
        "products_ratio": products.get(advice.fewest_products, np.inf) / products[thriftiest] if thriftiest else None,
        "worth": seconds[quickest] / row["product"] if "product" in row else None,
    }  # fmt: skip


def share(found: list[dict[str, Any]], key: str) -> str:
    """Return how many ratios are good, as text."""
    ratios = [row[key] for row in found if row[key] is not None]
    good = sum(ratio <= GOOD for ratio in ratios)
    return f"{good} of {len(ratios)} ({good / len(ratios):.0%})"


def listed() -> Iterator[str]:
    """Yield a line for each model with its states, and how many there are."""
    held, sizes = 0, []
    for number, (name, builder, parameters, levels) in enumerate(gallery()):
        with streaming():  # rows are not made where a builder can do without
            model = build(builder, parameters, levels)
        states = model.size if isinstance(model, ctmc.Generator) else None
        held += number % 3 == 2
        sizes.append(states)
        yield f"{name}{' (held out)' * (number % 3 == 2)} | {states or ''}"
    counted = [states for states in sizes if states]
    yield f"{len(sizes)} models, {len(sizes) - held} used for fitting, {held} held out; {min(counted):,} to {max(counted):,} states"


def main() -> None:
    """Measure what is not there yet, ask for advice, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where runs are kept")
    parser.add_argument("--only", default="", help="models with this in their name")
    parser.add_argument("--list", action="store_true", help="count the models and their states, and solve nothing")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(listed()))
        return
    folder = asked.folder or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    worker, rows = Worker(), []
    print("| model | states | quickest | its products' worth | advised | ratio | fewest products | advised | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for number, (name, builder, parameters, levels) in enumerate(gallery()):
        place = folder / f"{name.replace(' ', '_')}.json"
        if asked.only not in name:
            continue
        if not place.exists():
            place.write_text(json.dumps(measure(name, builder, parameters, levels, worker)))
        advice = ctmc.advise(build(builder, parameters, levels), timed=False)
        row = judged(json.loads(place.read_text()), advice) | {"held": number % 3 == 2}
        rows.append(row)
        fewest = "" if row["products_ratio"] is None else f"{row['products_ratio']:.2f}"
        print(
            f"| {name}{' (held out)' * row['held']} | {row['states'] or ''} | `{row['quickest']}` | {row['worth'] or 0:.0f} | "
            f"`{row['advised']}` | {row['ratio']:.2f} | {row['thriftiest']} | {row['fewest']} | {fewest} |",
            flush=True,
        )
    for what, some in (("all", rows), ("held out", [row for row in rows if row["held"]])):
        if some:
            print(f"{what}: by time {share(some, 'ratio')}, by products {share(some, 'products_ratio')}")


if __name__ == "__main__":
    main()
