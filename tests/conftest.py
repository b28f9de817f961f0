"""Shared by all tests: the tables beside them can be imported, and nothing of a user's settings leaks in."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
