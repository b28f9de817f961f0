"""How many events a second the simulations make, on one core.

    python benchmarks/simulation_speed.py [--million 20] [--repeats 5]

The supermarket with M equal servers, load 0.8, d = 2 without replacement, begun empty.  Events are arrivals and potential
services; of these 11 % find an idle server and do nothing.  Beside it the jump chain of the truncated model, and simpy and ciw
where they are installed (`pip install simpy ciw`), whose events are arrivals and services.  The numbers are medians of runs
after one that compiles; the processor's time counts, which other work on the machine changes less than the clock.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import ctmc

LOAD = 0.8
KEPT: list[tuple[str, dict[str, Any]]] = [
    ("jobs, throughput, utilization", {"by_server": False, "imbalance": False}),
    ("the same of every server", {"by_server": True, "imbalance": False}),
    ("and the imbalance", {"by_server": True, "imbalance": True}),
    ("and every job's response time", {"by_server": True, "imbalance": True, "response_times": True}),
]


def rates(run: Callable[[int], int], repeats: int) -> list[float]:
    """Return millions of events a second of processor time of each run; `run` takes a seed and returns the events."""
    run(20250)  # compiles
    found = []
    for seed in range(20251, 20251 + repeats):
        begin = time.process_time()
        events = run(seed)
        found.append(events / (time.process_time() - begin) / 1e6)
    return found


def supermarket(servers: int, million: float, rules: dict[str, Any], kept: dict[str, Any]) -> Callable[[int], int]:
    """Return a run of the supermarket, two batches so that it is one path."""

    def run(seed: int) -> int:
        found = ctmc.simulate(
            "supermarket",
            **{"service_rates": [1.0], "servers": servers, "arrival_rate": LOAD * servers, "choices": 2, **rules},
            horizon=million * 1e6 / ((1 + LOAD) * servers),
            batches=2,
            seed=seed,
            **kept,
        )
        return found.events

    return run


def jump_chain(servers: int, million: float) -> Callable[[int], int]:
    """Return a run of the jump chain of the truncated model."""
    chain = ctmc.build("supermarket", service_rates=[1.0] * servers, arrival_rate=LOAD * servers, choices=2, capacity=9)

    def run(seed: int) -> int:
        horizon = million * 1e6 / (4 * LOAD * servers)
        return ctmc.simulate(chain, rewards=["jobs"], horizon=horizon, replications=2, seed=seed).events

    return run


def with_simpy(servers: int) -> Callable[[int], int]:
    """Return a run of the same system in simpy: a process for each job."""
    import simpy

    def run(seed: int) -> int:
        source, environment = random.Random(seed), simpy.Environment()
        queues = [simpy.Resource(environment) for _ in range(servers)]
        served = [0]

        def job(queue: Any) -> Any:
            with queue.request() as turn:
                yield turn
                yield environment.timeout(source.expovariate(1.0))
            served[0] += 1

        def arrivals() -> Any:
            while True:
                yield environment.timeout(source.expovariate(LOAD * servers))
                one, other = source.sample(queues, 2)
                length = [queue.count + len(queue.queue) for queue in (one, other)]
                environment.process(job(one if length[0] <= length[1] else other))

        environment.process(arrivals())
        environment.run(until=20_000 / servers)
        return 2 * served[0]

    return run


def with_ciw(servers: int) -> Callable[[int], int]:
    """Return a run of the same system in ciw: a node for each server, and a routing function."""
    import ciw

    class Shorter(ciw.routing.NodeRouting):
        def next_node(self, individual: Any) -> Any:
            nodes = self.simulation.transitive_nodes[1:]
            return min(random.sample(nodes, 2), key=lambda node: node.number_of_individuals)

    def run(seed: int) -> int:
        ciw.seed(seed)
        leave = [ciw.routing.Leave() for _ in range(servers)]
        network = ciw.create_network(
            arrival_distributions=[ciw.dists.Exponential(LOAD * servers), *[None] * servers],
            service_distributions=[ciw.dists.Deterministic(0.0), *[ciw.dists.Exponential(1.0)] * servers],
            number_of_servers=[float("inf"), *[1] * servers],
            routing=ciw.routing.NetworkRouting(routers=[Shorter(), *leave]),
        )
        simulation = ciw.Simulation(network)
        simulation.simulate_until_max_time(400 / servers)
        return 2 * sum(record.node > 1 for record in simulation.get_all_records())

    return run


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--million", type=float, default=20, help="millions of events of a run")
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    rows: list[tuple[str, Callable[[], Callable[[int], int]]]] = []
    for servers in (10, 1000, 100_000):
        for name, kept in KEPT:
            rows.append((f"M = {servers:,}: {name}", lambda m=servers, k=kept: supermarket(m, options.million, {}, k)))
    different = {"service_rates": [2.0, 0.5], "servers": [333, 667], "arrival_rate": LOAD * (2 * 333 + 0.5 * 667)}
    for selection in ("tandem", "shortest_queue"):
        rules = {**different, "selection": selection, "ties": ["fastest"]}
        rows.append(
            (
                f"M = 1,000, two service rates, {selection}",
                lambda r=rules: supermarket(1000, options.million, r, KEPT[1][1]),
            )
        )
    rows.append(("jump chain, M = 4, capacity 9", lambda: jump_chain(4, options.million / 4)))
    for package, make in (("simpy", with_simpy), ("ciw", with_ciw)):
        if importlib.util.find_spec(package) is not None:
            rows.append((f"{package}, M = 10", lambda make=make: make(10)))
        else:
            print(f"{package} is not installed: pip install {package}")
    print(f"{'':<52}million events a second, median (least to largest)")
    for name, make_run in rows:
        found = rates(make_run(), options.repeats)
        print(f"{name:<52}{statistics.median(found):.3g} ({min(found):.3g} to {max(found):.3g})", flush=True)


if __name__ == "__main__":
    main()
