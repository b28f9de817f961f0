"""How far the fork-join queue goes: seconds and memory of each step, for many servers and high thresholds.

    python benchmarks/fork_join_scale.py [--servers 12] [--load 0.5]

M servers with rates linspace(2, 1, M), d = M tasks, and thresholds up to 40: spread evenly, and, the hardest, 1 and then 40
for all others, where 2^(M - 1) sets of busy servers belong to each of 40 queue lengths.  The peak is that of the process.

On two shared cores: M = 12, thresholds 1 and 40, load 0.5: 83,988 boundary states solved in 1.1 s, all means in 2 s more; the
service span has 816,890 states and 7.4 million transitions, listed in 4 s, its 95th percentile takes 17 s; the response
time 916,111 states, 4 s, and 31 s; at most 1.7 GiB.  The percentiles are products with the uniformized chain, one per step,
and there are (largest exit rate) x (time) steps: near load 1 means stay cheap, percentiles of large models do not.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ctmc
from builders.fork_join import fork_join


def timed(title: str, work: Callable[[], Any]) -> Any:
    begin = time.perf_counter()
    found = work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  {title:<44}{time.perf_counter() - begin:8.2f} s   peak {peak:,.0f} MiB")
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--servers", type=int, nargs="*", default=[8, 12])
    arguments.add_argument("--load", type=float, default=0.5)
    options = arguments.parse_args()
    ctmc.solve(ctmc.Stationary(fork_join([2, 1], 0.5, 2)))  # compile
    for servers in options.servers:
        rates = np.linspace(2, 1, servers)
        arrival_rate = options.load * rates.sum() / servers
        spread = np.linspace(1, 40, servers).round().astype(int).tolist()
        for name, thresholds in (("spread", spread), ("1 and 40", [1] + [40] * (servers - 1))):
            print(f"M = d = {servers}, thresholds {name}, load {options.load}")
            queue = timed("build", lambda: fork_join(rates, arrival_rate, servers, thresholds))  # noqa: B023  # called at once
            solution = timed("solve", lambda: ctmc.solve(ctmc.Stationary(queue)))  # noqa: B023  # called at once
            timed("measures (mean service span)", solution.measures)
            for law in ("service_span", "response_time"):
                found = timed(f"distribution of {law}", lambda: solution.distribution(law))  # noqa: B023  # called at once
                timed("  its 95th percentile", lambda: found.quantile(0.95))  # noqa: B023  # called at once
                print(f"    {found.size:,} states, {found.rates.nnz:,} transitions")
            states = sum(map(len, queue.phases))
            print(f"  {states:,} boundary states, {solution.solver}, defect {solution.defect:.1e}")


if __name__ == "__main__":
    main()
