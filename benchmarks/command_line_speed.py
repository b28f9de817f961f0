"""How long the commands take that people type all day, as whole processes.

    python benchmarks/command_line_speed.py [--rounds 7]

Beside the seconds stand those of the processor, which other work on the machine changes less, and the largest peak of memory.

The model has 1000 states and is stored; kernels are compiled before the clock runs.  Limits: 0.5 s for help, 3 s for a solve.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUILD = "build supermarket --service-rates 3,2,1 --arrival-rate 3 --choices 2 --capacity 9 -o {model}"
COMMANDS = ["--help", "list solvers", "build supermarket --help", "info {model}"]
COMMANDS += [f"solve {{model}} --no-save --solver {name}" for name in ("gth", "gmres", "gauss_seidel", "sparse_lu")]
COMMANDS.append("solve {model} --no-save --problem transient --times 2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    ctmc = [sys.executable, "-m", "ctmc"]
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "model.h5")
        subprocess.run([*ctmc, *BUILD.format(model=model).split()], check=True, capture_output=True)
        load = os.getloadavg()[0]
        print(f"{datetime.date.today()}, {os.cpu_count()} cores, median of {options.rounds}, load average {load:.0f}\n")
        print(f"{'ctmc ..':<58}{'median':>8}{'least':>8}{'most':>8} s{'processor':>12} s{'peak':>8}")
        for command in COMMANDS:
            words = [*ctmc, *command.format(model=model).split()]
            subprocess.run(words, check=True, capture_output=True)
            seconds, processor, peak = [], [], 0
            for _ in range(options.rounds):
                begin = time.perf_counter()
                child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                _, code, used = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(code)
                seconds.append(time.perf_counter() - begin)
                processor.append(used.ru_utime + used.ru_stime)
                peak = max(peak, used.ru_maxrss)
            name = command.format(model="model.h5")
            print(
                f"{name:<58}{statistics.median(seconds):>8.2f}{min(seconds):>8.2f}{max(seconds):>8.2f}"
                f"{statistics.median(processor):>14.2f}{peak / 1024:>8.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
