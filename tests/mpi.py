"""Starting ranks of MPI in tests: always with a limit of time, and nothing left running afterwards."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from typing import NamedTuple

import psutil
import pytest

ENVIRONMENT = {
    # as root, with more ranks than cores, each of which yields while it waits, over shared memory alone
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    # what another Open MPI, 5 and later, calls the first of these
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # whole lines at a time, or those of several ranks mix
    "PYTHONUNBUFFERED": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
PARENT_OF_ALL = "CTMC_TEST_OF_MPI"
"""In the environment of everything that a test starts, so that it is found wherever it went."""


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a job: ours, without what MPI has left in it where a test before has used it in this process."""
    left_behind = ("OMPI_", "OPAL_", "ORTE_", "PMIX_", "PRTE_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(left_behind)}
    return {**own, **ENVIRONMENT, **variables}


class Ended(NamedTuple):
    """How a job ended: code None where its time ran out."""

    code: int | None
    out: str
    err: str


def missing(*modules: str) -> str:
    """Return what a test of MPI lacks here, '' if nothing; imports nothing."""
    if shutil.which("mpirun") is None:
        return "there is no mpirun"
    lacking = [name for name in ("mpi4py", *modules) if importlib.util.find_spec(name) is None]
    return f"{', '.join(lacking)} cannot be imported: extra distributed" if lacking else ""


def needs_mpi(*modules: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a test, or as ``pytestmark`` of a file, that starts ranks which import mpi4py and these modules."""
    why = missing(*modules)
    return [pytest.mark.mpi, pytest.mark.skipif(bool(why), reason=why)]


def mpirun(ranks: int, *arguments: str, seconds: float = 60, cwd: object = None, **variables: str) -> Ended:
    """Run ``python ARGUMENTS`` on so many ranks; whatever becomes of it, nothing is left running.

    Parameters
    ----------
    ranks : int
    *arguments : str
        Such as ``"-c", code`` or ``"-m", "ctmc", "solve", ..``.
    seconds : float
        After which the job is ended.
    cwd : path-like, optional
    **variables : str
        Further variables of the environment.
    """
    mark = f"{os.getpid()}-{os.urandom(8).hex()}"
    job = subprocess.Popen(
        ["mpirun", "-n", str(ranks), sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(**{PARENT_OF_ALL: mark, **variables}),
        start_new_session=True,
    )
    try:
        out, err = job.communicate(timeout=seconds)
        # ranks write to a terminal, on which Numba's colorama resets the colors at the end
        return Ended(job.returncode, out.replace("\x1b[0m", ""), err)
    except subprocess.TimeoutExpired:
        end(mark)
        out, err = job.communicate()
        return Ended(None, out, err)
    finally:
        end(mark)
        job.wait()


def left(mark: str) -> list[psutil.Process]:
    """Return the processes that carry a mark: ranks have groups of their own, and outlive an mpirun that is killed."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(PARENT_OF_ALL) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # of another user, or gone
            continue
    return found


def end(mark: str) -> None:
    """Kill every process that carries a mark, until there is none."""
    while there := left(mark):
        for process in there:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        psutil.wait_procs(there, timeout=1)
