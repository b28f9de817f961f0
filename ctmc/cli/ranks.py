"""One command on several ranks: the first one speaks, and a failure of any ends all of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from ctmc.ranks import ALONE, Ranks, started_ranks, world

SHARED = ("build", "solve")
"""Commands that all ranks do together; the others each process does by itself."""
_PATIENCE = 2.0
"""Seconds in which ranks that fail for the same reason do so."""


class Speaker:
    """Who writes, of the ranks that run a command.

    Attributes
    ----------
    ranks : Ranks
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self._aside: Any = None
        if ranks.count > 1:
            self._aside = ranks.communicator.Dup()  # type: ignore[attr-defined]  # for what is said when nothing else works
        self.output = sys.stdout
        if ranks.rank:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # as long as the process lives

    @property
    def leads(self) -> bool:
        """Whether this rank writes to standard output and shows progress."""
        return self.ranks.rank == 0

    def failed(self, tell: Callable[[str], int]) -> int:
        """Tell of a failure once, and end all ranks; return the exit code, if they all have failed.

        Parameters
        ----------
        tell : callable
            Writes the error, with a prefix that names the rank, and returns the exit code.
        """
        if self.ranks.count == 1:
            return tell("")
        if self._all_here():
            code = tell("") if self.leads else 0
            code = self._aside.bcast(code, 0)
            self._all_here()
            return int(code)
        sys.stdout = self.output
        code = tell(f"rank {self.ranks.rank}: ")
        sys.stdout.flush()
        sys.stderr.flush()
        self._aside.Abort(code)
        os._exit(code)

    def _all_here(self) -> bool:
        """Return whether all ranks get here before patience ends."""
        request = self._aside.Ibarrier()
        end = time.monotonic() + _PATIENCE
        while not request.Test():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True


def speaker_for(arguments: list[str]) -> Speaker:
    """Return the speaker of a command; MPI is only loaded where several processes run one that they share."""
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    return Speaker(world() if command in SHARED and started_ranks() > 1 else ALONE)
