"""Store, verify and multiply a generator with more than 2^31 transitions, and compare the products with a closed form.

    python benchmarks/boundary.py [--states 110000000] [--neighbours 20] [--folder DIR] [--memory-limit 12GiB]

The states stand on a ring; a state leads to the next NEIGHBOURS / 2 on either side, at the rates 1 / d ahead and 0.5 / d back, d being
the distance.  With p_j = cos(t j), t a multiple of 2 pi / n, both p Q and Q p are a cos(t j) + b sin(t j) with sums of ten terms for a
and b.  Rows are made as they are asked for, so what is held are vectors, a few slabs and the directory of the file.  The peak is
the resident memory of a process of its own, looked at ten times a second.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

import ctmc
from ctmc.model.memory import limited_memory
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import made, streaming
from ctmc.model.transitions import FloatTransitions

_CHUNK = 1 << 20


class Ring:
    """A ring of so many states, and what its generator makes of a cosine."""

    def __init__(self, states: int, reach: int) -> None:
        self.states = states
        self.distances = np.arange(1, reach + 1)
        self.ahead, self.back = 1.0 / self.distances, 0.5 / self.distances
        self.turns = states // 7  # so that neighbours differ much
        angles = 2 * np.pi * self.turns / states * self.distances
        self.a = float(((self.ahead + self.back) * (np.cos(angles) - 1)).sum())
        self.b = float(((self.ahead - self.back) * np.sin(angles)).sum())

    def generator(self) -> ctmc.Generator:
        """Return the chain, its rows made as they are asked for."""
        offsets = np.concatenate([-self.distances[::-1], self.distances])
        rates = np.concatenate([self.ahead[::-1], self.back])  # from j - d ahead into j, from j + d back into j
        narrow = np.int32 if self.states <= np.iinfo(np.int32).max else np.int64

        def rows(begin: int, end: int) -> FloatTransitions:
            sources = np.add.outer(np.arange(begin, end), offsets)
            here = np.tile(rates, (end - begin, 1))
            for j in np.flatnonzero((sources[:, 0] < 0) | (sources[:, -1] >= self.states)):
                sources[j] %= self.states
                order = np.argsort(sources[j])
                sources[j], here[j] = sources[j, order], here[j, order]
            pointers = np.arange(end - begin + 1, dtype=np.int64) * len(offsets)
            return FloatTransitions(pointers, sources.ravel().astype(narrow), here.ravel())

        with streaming():
            transitions = made(self.states, rows, lambda: self.states * len(offsets))
        return ctmc.Generator(Lattice((self.states - 1,), variables=(Variable("state"),)), transitions)

    def wave(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return cos(t j) and sin(t j); whole turns are taken off in whole numbers, so that no digit is lost."""
        angles = 2 * np.pi / self.states * (np.arange(begin, end) * self.turns % self.states)
        return np.cos(angles), np.sin(angles)

    def error(self, product: np.ndarray, sign: int) -> float:
        """Return the largest difference from the closed form."""
        largest = 0.0
        for begin in range(0, self.states, _CHUNK):
            cosine, sine = self.wave(begin, min(begin + _CHUNK, self.states))
            exact = self.a * cosine + sign * self.b * sine
            largest = max(largest, float(np.abs(product[begin : begin + _CHUNK] - exact).max()))
        return largest


def run(states: int, neighbours: int, path: Path) -> None:
    """Do all of it and print what it took."""
    ring = Ring(states, neighbours // 2)

    def timed(name: str, work):
        begin = time.perf_counter()
        result = work()
        print(f"{name:<28}{time.perf_counter() - begin:.1f} s", flush=True)
        return result

    digest = timed("save, two passes", lambda: ctmc.save(path, ring.generator()))
    stored = timed("open, one pass that verifies", lambda: ctmc.open(path))
    wave = np.concatenate([ring.wave(k, min(k + _CHUNK, states))[0] for k in range(0, states, _CHUNK)])
    product = np.empty(states)
    for name, multiply, sign in (("p Q, one pass", stored.forward, 1), ("Q p, one pass", stored.backward, -1)):
        timed(name, lambda multiply=multiply: multiply(wave, out=product))
        print(f"  largest error             {ring.error(product, sign):.1e}")
    sources, rates = stored.transitions.into(states - 1)
    size = path.stat().st_size
    print(f"{'states':<28}{states:,}")
    print(f"{'transitions':<28}{stored.entries:,} = 2^31 x {stored.entries / 2**31:.3f}")
    print(f"{'file':<28}{size:,} bytes, {size / stored.entries:.3f} a transition")
    print(f"{'content hash':<28}{digest[:12]}, again {stored.content_hash[:12]}")
    print(f"{'into the last state':<28}from {sources[0]} .. {sources[-1]}, rates sum to {rates.sum():.6f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=110_000_000)
    parser.add_argument("--neighbours", type=int, default=20)
    parser.add_argument("--folder", help="where the file goes (default: the system's temporary folder)")
    parser.add_argument("--memory-limit", default="12GiB")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        with limited_memory(options.memory_limit):
            run(options.states, options.neighbours, Path(options.inside))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        child = subprocess.Popen([sys.executable, *sys.argv, "--inside", str(Path(folder) / "ring.h5")])
        peak, watched = 0, psutil.Process(child.pid)
        while child.poll() is None:
            try:
                peak = max(peak, watched.memory_info().rss)
            except psutil.NoSuchProcess:  # it ended just now
                break
            time.sleep(0.1)
        if child.wait():
            raise SystemExit(child.returncode)
        print(f"{'peak resident memory':<28}{peak / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
