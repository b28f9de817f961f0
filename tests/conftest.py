"""Shared by all tests: the tables beside them can be imported, and nothing of a user's settings leaks in."""

import os
import sys
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # of several processes each keeps to one thread, but where a test asks for more
    import numba

    numba.set_num_threads(1)

sys.path.insert(0, str(Path(__file__).parent))


def pytest_runtest_setup(item):
    """Skip what would take minutes, or says nothing, where the loops are plain Python."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0") and item.get_closest_marker("needs_compilation"):
        pytest.skip("needs compiled loops, and NUMBA_DISABLE_JIT is set")
