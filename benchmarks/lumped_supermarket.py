"""How fast a supermarket of equal servers is built with one state per orbit, how much memory it takes, and how it is solved.

    python benchmarks/lumped_supermarket.py [--servers 20] [--capacity 10] [--solver gmres]

Equal servers of rate 1, load 0.8, d = 2 without replacement: C(M + K, K) states, 30,045,015 for 20 servers with capacity 10,
where the full model has 11^20.  Without --solver the model is only built, and its 2-coloring compared with the parity of the
number of jobs.  Memory is the peak of this process less what it had before building; 20 servers with capacity 10 take 6 GB.
"""

from __future__ import annotations

import argparse
import time
from math import comb

import numpy as np


def peak() -> int:
    """Return the largest memory of this process so far, bytes."""
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--servers", type=int, default=20)
    arguments.add_argument("--capacity", type=int, default=10)
    arguments.add_argument("--choices", type=int, default=2)
    arguments.add_argument("--load", type=float, default=0.8)
    arguments.add_argument("--solver", help="name of a solver, with options if any; by default nothing is solved")
    options = arguments.parse_args()
    import ctmc
    from builders.supermarket import supermarket

    def build(capacity: int) -> ctmc.Generator:
        rates = [1.0] * options.servers
        return supermarket(rates, options.load * options.servers, options.choices, capacity, lump=True)

    build(1)  # compile
    before = peak()
    begin, processor = time.perf_counter(), time.process_time()
    model = build(options.capacity)
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    different = len(np.unique(model.rates[:: max(1, model.entries // 1_000_000)]))
    rows = [
        ("states", f"{model.size:,}"),
        ("counted in closed form", f"{comb(options.servers + options.capacity, options.capacity):,}"),
        ("states of the full model", f"{(options.capacity + 1) ** options.servers:.4g}"),
        ("transitions", f"{model.entries:,} ({model.entries / model.size:.2f} a state)"),
        ("different rates, in a sample", f"{different}"),
        ("seconds", f"{seconds:.2f} ({processor:.2f} of processor time)"),
        ("million states a second", f"{model.size / seconds / 1e6:.2f}"),
        ("nanoseconds a transition", f"{seconds / model.entries * 1e9:.1f}"),
        ("bytes a state", f"{model.nbytes / model.size:.1f}"),
        ("peak memory over arrays", f"{(peak() - before) / model.nbytes:.2f} ({peak() / 2**30:.2f} GiB in all)"),
    ]
    show(rows)
    if options.solver is None:
        begin = time.perf_counter()
        colors = model.coloring
        seconds = time.perf_counter() - begin
        same = colors is not None and all(
            np.array_equal(colors[positions], states.sum(axis=1) % 2) for positions, states in model.space.slabs()
        )
        show([("2-colored by the parity of jobs", f"{same} ({seconds:.1f} s to find the coloring)")])
        return
    solution = ctmc.solve(ctmc.Stationary(model), options.solver, check=False)
    show(
        [
            ("solver", solution.solver),
            ("status", solution.status.name),
            ("defect", f"{solution.defect:.3g}"),
            ("seconds to solve, certificate included", f"{solution.seconds:.1f}"),
            ("products", solution.products),
            ("jobs", f"{solution.expected('jobs'):.12g}"),
            ("boundary", f"{solution.expected('boundary'):.3g}"),
            ("peak memory", f"{peak() / 2**30:.2f} GiB, {peak() / model.size:.0f} bytes a state"),
        ]
    )


def show(rows: list[tuple[str, object]]) -> None:
    """Print names and values in two columns."""
    for name, value in rows:
        print(f"{name:<42}{value}", flush=True)


if __name__ == "__main__":
    main()
