"""How fast generators are built, and how much memory that takes beside the finished arrays.

    python benchmarks/building_speed.py [--capacity 11]

The supermarket with M = 6, mu = linspace(1, 2, 6), load 0.8, d = 2 with replacement: 2,985,984 states at capacity 11.
Memory is the peak of a fresh process that builds once, less that of one that builds a tiny model.  Copy bandwidth is
measured in the same process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import numpy as np

PEAK = """
import sys
import numpy as np
from builders.supermarket import supermarket
mu = np.linspace(1, 2, 6)
def build(capacity):
    return supermarket(mu, .8 * mu.sum(), 2, capacity, sampling="with_replacement")
def peak():  # of this process image alone, unlike ru_maxrss, which remembers the parent's
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
build(1)
before = peak()
model = build(int(sys.argv[1]))
model.exit_rates
print(peak() - before, model.nbytes)
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--capacity", type=int, default=11)
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    from builders.supermarket import supermarket

    mu = np.linspace(1, 2, 6)
    supermarket(mu, 0.8 * mu.sum(), 2, 1, sampling="with_replacement")  # compile
    seconds, with_exits, copies = [], [], []
    block = np.ones(1 << 25)
    target = np.empty_like(block)
    for _ in range(options.repeats):
        begin = time.perf_counter()
        model = supermarket(mu, 0.8 * mu.sum(), 2, options.capacity, sampling="with_replacement")
        seconds.append(time.perf_counter() - begin)
        model.exit_rates  # noqa: B018  # found when they are first asked for
        with_exits.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        target[:] = block
        copies.append(2 * block.nbytes / (time.perf_counter() - begin))
    median = statistics.median(seconds)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(options.capacity)], capture_output=True, text=True, check=True
    )
    peak, arrays = (int(number) for number in done.stdout.split())
    rows = [
        ("states", f"{model.size:,}"),
        ("entries with the diagonal", f"{model.entries + model.size:,}"),
        ("seconds, median", f"{median:.3f} ({min(seconds):.3f} to {max(seconds):.3f})"),
        ("million states a second", f"{model.size / median / 1e6:.2f}"),
        ("the same with exit rates", f"{model.size / statistics.median(with_exits) / 1e6:.2f}"),
        ("nanoseconds an entry", f"{median / (model.entries + model.size) * 1e9:.1f}"),
        ("bytes a state", f"{model.nbytes / model.size:.1f}"),
        ("peak memory over arrays", f"{peak * 1024 / arrays:.2f}"),
        ("array bytes written over copy bandwidth", f"{model.nbytes / median / statistics.median(copies):.3f}"),
    ]
    for name, value in rows:
        print(f"{name:<42}{value}")


if __name__ == "__main__":
    main()
