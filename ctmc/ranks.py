"""The processes among which a model is shared: sums and maxima over all of them, with the same bits on each.

Without MPI there is one, `ALONE`, of which the framework takes no notice.  Under ``mpirun`` or ``srun`` there is one rank for each
process; what is summed over the states of a model is summed over the ranks, in their order.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from ctmc.errors import PluginError

if TYPE_CHECKING:
    import numpy as np

_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")
"""Where the starters of Open MPI, MPICH, Intel MPI and SLURM say how many processes there are."""


class Ranks:
    """One process alone; and what is asked of several.

    Attributes
    ----------
    rank : int
        Number of this process, from 0.
    count : int
        Number of processes.

    Examples
    --------
    >>> ALONE.total(2.5), ALONE.largest(0.5), ALONE.any(False), ALONE.gathered("one")
    (2.5, 0.5, False, ['one'])
    """

    rank = 0
    count = 1

    def total(self, values: Any) -> Any:
        """Return the sum over the ranks of a number, or of an array of the same shape on each."""
        return values

    def largest(self, values: Any) -> Any:
        """Return the maximum over the ranks of a number, or of an array of the same shape on each; NaN wins."""
        return values

    def any(self, holds: bool) -> bool:
        """Return whether something holds on any rank."""
        return holds

    def gathered(self, value: Any) -> list[Any]:
        """Return what each rank has, in their order; for small things."""
        return [value]


ALONE = Ranks()


class MPIRanks(Ranks):
    """The ranks of a communicator of mpi4py.

    Parameters
    ----------
    communicator : mpi4py.MPI.Comm
    """

    def __init__(self, communicator: Any) -> None:
        self.communicator = communicator
        self.rank, self.count = communicator.Get_rank(), communicator.Get_size()

    def total(self, values: Any) -> Any:
        """Sum in the order of the ranks, so that all of them get the same bits."""
        return _plain(self._all(values).sum(axis=0))

    def largest(self, values: Any) -> Any:
        """Compare on all ranks alike."""
        return _plain(self._all(values).max(axis=0))

    def _all(self, values: Any) -> np.ndarray:
        import numpy as np  # not loaded for ctmc --help

        own = np.ascontiguousarray(values, dtype=np.float64)
        found = np.empty((self.count, *np.shape(values)))
        self.communicator.Allgather(own, found)
        return found

    def any(self, holds: bool) -> bool:
        """Ask all ranks."""
        return bool(self.largest(float(holds)))

    def gathered(self, value: Any) -> list[Any]:
        """Send it to all ranks."""
        return list(self.communicator.allgather(value))


def _plain(found: Any) -> Any:
    return found if found.ndim else float(found)


def started_ranks() -> int:
    """Return how many processes were started together as the environment tells, without loading MPI; 1 by itself."""
    for name in _COUNTS:
        if os.environ.get(name, "").isdigit():
            return max(1, int(os.environ[name]))
    return 1


def world() -> Ranks:
    """Return all ranks that were started together; from now on an exception that one of them does not catch ends all.

    Raises
    ------
    PluginError
        If there are several and mpi4py is not installed.
    """
    count = started_ranks()
    if count == 1:
        return ALONE
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise PluginError(
            f"{count} processes were started together, but mpi4py, by which they talk, is not installed: "
            "pip install 'ctmc-lab[distributed]'."
        ) from error
    if MPI.COMM_WORLD.Get_size() == 1:
        return ALONE
    if getattr(sys.excepthook, "func", None) is not _end_all:
        sys.excepthook = functools.partial(_end_all, sys.excepthook)
    return MPIRanks(MPI.COMM_WORLD)


def _end_all(tell: Any, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """End all ranks after an exception that nobody caught on one, as the others would wait for it for ever."""
    from mpi4py import MPI

    tell(kind, error, trace)
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)
