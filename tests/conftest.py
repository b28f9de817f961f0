"""Shared by all tests: the tables beside them can be imported, and nothing of a user's settings leaks in."""

import os
import sys
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # of several processes each keeps to one thread, but where a test asks for more
    import numba

    numba.set_num_threads(1)

sys.path.insert(0, str(Path(__file__).parent))
