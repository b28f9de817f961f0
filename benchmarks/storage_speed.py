"""Compare a file with hashes, checksums and compression with the same arrays written and read plainly.

The arrays are those of a large banded chain: 33 million rates of some 40 distinct values in repeated patterns, as many
32-bit columns, 3 million row pointers and exit rates, 444 MB.  Both writers flush the file to the disk; all reads come
from the cache.  The limit for both ratios is 3.

    python benchmarks/storage_speed.py [--folder DIR] [--rounds 5] [--states 3000000]
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

from ctmc.storage.container import read_container, write_container
from ctmc.storage.pool import worker_count


def banded_chain(states: int) -> dict[str, np.ndarray]:
    """Return the arrays of a chain with 11 entries per state, sorted, at fixed distances."""
    generator = np.random.default_rng(20261129)
    distances = np.array([-50_000, -3_000, -300, -40, -5, -1, 1, 6, 45, 333, 3_333])
    pattern = generator.choice(generator.random(40), size=5_000)
    data = np.resize(pattern, states * distances.size)
    indices = np.empty((states, distances.size), dtype=np.int32)
    np.clip(np.arange(states)[:, None] + distances, 0, states - 1, out=indices, casting="unsafe")
    indptr = np.arange(states + 1, dtype=np.int64) * distances.size
    exit_rates = np.add.reduceat(data, indptr[:-1])
    return {"rates/data": data, "rates/indices": indices.reshape(-1), "rates/indptr": indptr, "exit_rates": exit_rates}


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
    parser.add_argument("--states", type=int, default=3_000_000)
    options = parser.parse_args()
    arrays = banded_chain(options.states)
    size = sum(array.nbytes for array in arrays.values())
    tasks: dict[str, list[float]] = {
        "plain write": [],
        "our write": [],
        "plain read": [],
        "our read": [],
        "our info": [],
    }
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        plain, ours, tiny = (Path(folder) / name for name in ("plain.h5", "ours.h5", "tiny.h5"))
        # The kernels are compiled, and all libraries loaded, before the clock runs.
        write_container(tiny, "generator", {}, {name: array[:100] for name, array in arrays.items()})
        read_container(tiny, ["generator"])
        for _ in range(options.rounds):
            for path in (plain, ours):
                path.unlink(missing_ok=True)
            tasks["plain write"].append(seconds(lambda: plain_write(plain, arrays)))
            tasks["our write"].append(seconds(lambda: write_container(ours, "generator", {}, arrays)))
            tasks["plain read"].append(seconds(lambda: plain_read(plain, list(arrays))))
            tasks["our read"].append(seconds(lambda: read_container(ours, ["generator"])))
            tasks["our info"].append(seconds(lambda: read_container(ours, ["generator"], only=())))
        sizes = plain.stat().st_size, ours.stat().st_size
    median = {task: statistics.median(times) for task, times in tasks.items()}
    print(f"{size / 1e6:.0f} MB, {worker_count()} threads, median of {options.rounds}")
    print(f"{'task':12}  {'seconds':>8}  {'MB/s':>6}  {'ratio':>5}")
    for task, value in median.items():
        baseline = median.get(task.replace("our", "plain"))
        ratio = f"{value / baseline:5.2f}" if task.startswith("our") and baseline else "    -"
        print(f"{task:12}  {value:8.4f}  {size / value / 1e6:6.0f}  {ratio}")
    print(f"{'size in MB':12}  plain {sizes[0] / 1e6:.1f}, ours {sizes[1] / 1e6:.1f}")


if __name__ == "__main__":
    main()
