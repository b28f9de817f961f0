"""Models larger than a memory limit: built slab by slab, stored, and solved from the file, at growing sizes.

    python benchmarks/storage_scale.py [--totals 30 38 46] [--per-state 66] [--folder DIR] [--readme]

The model is the supermarket of six different servers with two choices at load .8, and a cap on the total number of jobs, so that
no queue has a capacity of its own: it needs a column for every transition.  Each size is built by ``ctmc build`` and solved by
``ctmc solve --memory-limit`` in processes of their own; the limit is so many bytes per state and 128 MiB for slabs that are at
work, which is below the compressed rows (12 bytes an entry).  Peak memory is what the operating system says of each process when
it has ended, interpreter and libraries included.  A pass is one run through all slabs of the opened file; "read" is a plain read of
the file, "inflate" the time of undoing shuffle, deflate and checksum on as many threads, what a pass cannot be faster than
where nothing is kept in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MARKS = ("<!-- storage scale: begin -->", "<!-- storage scale: end -->")
RATES = "1,1.5,2,3,4.5,6"


def measured(arguments: list[str]) -> tuple[dict[str, Any], float, int]:
    """Run a command of ctmc; return its JSON, its seconds, and its peak memory in bytes."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([sys.executable, "-m", "ctmc", *arguments, "--json"], stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        out.seek(0)
        text = out.read()
    if status:
        raise SystemExit(f"ctmc {' '.join(arguments)} ended with {status}: {text[-500:]}")
    return json.loads(text), seconds, usage.ru_maxrss * 1024


PASSES = """
import sys, time
import numpy as np
from ctmc.storage import stored
from ctmc.storage.checksum import unpack
from ctmc.storage.pool import in_order

path, keep = sys.argv[1], int(sys.argv[2])
begin = time.perf_counter()
data = open(path, "rb").read()
read = time.perf_counter() - begin
del data
model = stored.open_model(path, keep=keep)
x = np.full(model.size, 1 / model.size)
out = np.empty_like(x)
model.forward(x, out)
times = []
for _ in range(5):
    begin = time.perf_counter()
    model.forward(x, out)
    times.append(time.perf_counter() - begin)
file = stored.open_container(path, ["generator"])
reader = stored._Reader(file, 0)
keys = [(name, k) for name in file.stored if name.startswith("rates/") for k in range(len(file.chunks(name)))]
for _ in in_order(reader.chunk, keys):
    pass
begin = time.perf_counter()
for _ in in_order(reader.chunk, keys):
    pass
inflate = time.perf_counter() - begin
print(read, inflate, float(np.median(times)))
"""


def row(total: int, per_state: float, folder: Path) -> list[str]:
    """Build and solve one size; return the cells of its row."""
    path = folder / f"capped-{total}.h5"
    model = ["--service-rates", RATES, "--arrival-rate", "14.4", "--choices", "2", "--capacity", str(total)]
    if path.exists():
        path.unlink()
    built, _, build_peak = measured(["build", "supermarket", *model, "--total-capacity", str(total), "-o", str(path)])
    states, entries, size = built["states"], built["entries"], built["file_bytes"]
    limit = int(per_state * states) + (128 << 20)
    keep = max(0, limit - 56 * states - (96 << 20))
    passes = [
        subprocess.run([sys.executable, "-c", PASSES, path, str(kept)], capture_output=True, text=True, check=True)
        for kept in (0, keep)
    ]
    read, inflate, streamed = (float(cell) for cell in passes[0].stdout.split())
    kept = float(passes[1].stdout.split()[-1])
    solved, whole, peak = measured(["solve", str(path), "--memory-limit", str(limit), "--no-save", "--no-checkpoint"])
    return [
        f"{states:,}", f"{entries:,}", f"{size / 2**20:.1f} MiB", f"{size / states:.2f}",
        f"{states / built['seconds'] / 1e6:.2f} M/s, {build_peak / 2**20:.0f} MiB",
        f"{read:.3f} / {inflate:.2f} / {streamed:.2f} / {kept:.2f} s", f"{solved['products']}", f"{solved['defect']:.1e}",
        f"{solved['seconds']:.0f} s of {whole:.0f} s", f"{limit / 2**20:.0f} MiB", f"{peak / 2**20:.0f} MiB",
        f"{(12 * entries + 8 * states) / 2**20:.0f} MiB",
    ]  # fmt: skip


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--totals", type=int, nargs="+", default=[30, 38, 46])
    parser.add_argument("--per-state", type=float, default=66.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--readme", action="store_true")
    options = parser.parse_args()
    heads = [
        "states", "entries", "file", "bytes a state", "build, peak", "read / inflate / pass / pass within the limit",
        "products", "defect", "solve", "limit", "peak", "compressed rows",
    ]  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join(["---"] * len(heads)) + " |"]
    print(*lines, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for total in options.totals:
            lines.append("| " + " | ".join(row(total, options.per_state, options.folder or Path(temporary))) + " |")
            print(lines[-1], flush=True)
    if options.readme:
        readme = HERE / "README.md"
        text = readme.read_text()
        before, _, rest = text.partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        readme.write_text(before + MARKS[0] + "\n" + "\n".join(lines) + "\n" + MARKS[1] + after)


if __name__ == "__main__":
    main()
