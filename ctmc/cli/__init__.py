"""The command `ctmc`.

`main` turns every failure into one line on standard error and an exit code: 0 fine, 1 an answer that is not certified,
2 bad input, 70 an error inside the program, 129, 130 or 143 after SIGHUP, Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of the process.

    Examples
    --------
    >>> main(["--version"])  # doctest: +ELLIPSIS
    ctmc ...
    0
    """
    from ctmc.cli.app import run

    return run(list(sys.argv[1:] if arguments is None else arguments))
