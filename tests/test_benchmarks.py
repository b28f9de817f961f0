"""Benchmarks that reach into the code run at a tiny size, so that a change of the code cannot break them unseen."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_methods_for_qbds_are_compared():
    arguments = ["--phases", "8", "--load", "0.5", "--family", "random", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "qbd_methods.py", *arguments], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stdout  # of ours, a failure is no result
    for method in ("cyclic_reduction", "functional_iteration", "logarithmic_reduction"):
        assert method in done.stdout
