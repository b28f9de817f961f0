"""``python -m ctmc``: the same as the command `ctmc`."""

import os
import sys

# Python puts the current folder first on the path; a file `numpy.py` or a folder `solvers` that happens to lie there must
# not be imported.  Only where the current folder is the one that holds this package does it stay.
try:
    _here = os.path.realpath(os.getcwd())
except OSError:  # it was removed: nothing lies there
    _here = ""
_home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if not sys.flags.safe_path and sys.path and os.path.realpath(sys.path[0] or ".") == _here and _here != _home:
    del sys.path[0]

from ctmc.cli import main  # noqa: E402  # only now is the path as it must be

if __name__ == "__main__":
    sys.exit(main())
