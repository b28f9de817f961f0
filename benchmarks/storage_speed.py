"""Compare `ctmc.save` and `ctmc.load` with the same arrays written and read plainly.

    python benchmarks/storage_speed.py [--folder DIR] [--rounds 5] [--capacity 11] [--form lattice] [--noise]

The model is the supermarket with M = 6, mu = linspace(1, 2, 6), load 0.8, d = 2 with replacement, in one of its forms: 442 MB of
arrays as float64 rows at capacity 11, 42 MB as a lattice.  Both writers flush to the disk, all reads come from the cache; ours code the arrays, compress, checksum and
hash them, and prove at loading that they are a generator.  With --noise the rates are all different, so that nothing can be
coded: the worst case.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

import ctmc
from builders.supermarket import supermarket
from ctmc.model.transitions import FloatTransitions


def plain_write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.close(descriptor)


def plain_read(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: file[name][:] for name in names}


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where the temporary files go (default: the system's temporary folder)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--capacity", type=int, default=11)
    parser.add_argument("--form", choices=("lattice", "coded", "float64"), default="lattice")
    parser.add_argument("--noise", action="store_true")
    options = parser.parse_args()
    mu = np.linspace(1, 2, 6)
    small, model = (
        supermarket(mu, 0.8 * mu.sum(), 2, capacity, sampling="with_replacement") for capacity in (4, options.capacity)
    )
    if options.form != "lattice":
        small, model = small.written_out(), model.written_out()
    if options.form == "coded":
        small, model = small.coded(), model.coded()
    if options.noise:
        noise = np.random.default_rng(20261129).random(model.entries) + 0.5
        model = ctmc.Generator(model.space, FloatTransitions(model.indptr, model.sources, noise))
    arrays = {**model.transitions._asdict(), "exits": model.exit_rates}
    tasks: dict[str, list[float]] = {"plain write": [], "our write": [], "plain read": [], "our read": []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        plain, ours, tiny = (Path(folder) / name for name in ("plain.h5", "ours.h5", "tiny.h5"))
        ctmc.save(tiny, small)  # compiles
        ctmc.load(tiny)
        for _ in range(options.rounds):
            for path in (plain, ours):
                path.unlink(missing_ok=True)
            tasks["plain write"].append(seconds(lambda: plain_write(plain, arrays)))
            tasks["our write"].append(seconds(lambda: ctmc.save(ours, model)))
            tasks["plain read"].append(seconds(lambda: plain_read(plain, list(arrays))))
            tasks["our read"].append(seconds(lambda: ctmc.load(ours)))
        sizes = plain.stat().st_size, ours.stat().st_size
    median = {task: statistics.median(times) for task, times in tasks.items()}
    print(f"{model.nbytes / 1e6:.0f} MB, median of {options.rounds}")
    print(f"{'task':12}  {'seconds':>8}  {'MB/s':>6}  {'ratio':>5}")
    for task, value in median.items():
        ratio = f"{value / median[task.replace('our', 'plain')]:5.2f}" if task.startswith("our") else "    -"
        print(f"{task:12}  {value:8.4f}  {model.nbytes / value / 1e6:6.0f}  {ratio}")
    print(f"{'size in MB':12}  plain {sizes[0] / 1e6:.1f}, ours {sizes[1] / 1e6:.1f}")


if __name__ == "__main__":
    main()
