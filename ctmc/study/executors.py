"""Who works for a run in parallel: processes of this machine, the workers of a Dask cluster, ranks of MPI, or any executor.

Dask and MPI ship what a task is told, and what it gives back, as pickled objects: whoever can speak to a scheduler can run any
code on its workers and here.  So one is spoken to on this machine or over TLS only, unless the user allows more.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any, Protocol
from urllib.parse import urlsplit

from ctmc.errors import StudyError, printable, shown
from ctmc.model.memory import given_limit, memory_limit

_HELD = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to all of a command's processes; what to do about them is decided by the first one."""


class Crew(Protocol):
    """An executor, and what a run must know of it.

    Attributes
    ----------
    window : int or None
        How many tasks are handed over at a time; None: all at once.
    threads, memory : int or None
        Of each worker; None leaves all as it is there.
    """

    window: int | None
    threads: int | None
    memory: int | None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Hand a task over."""
        ...

    def renew(self) -> bool:
        """Replace workers of which one has died; return whether that can be done."""
        ...

    def close(self) -> None:
        """Wait for what is running, and let all go."""
        ...


class Processes:
    """A `Crew` of processes on this machine, which share its threads and memory, and end with their parent."""

    def __init__(self, jobs: int, threads: int | None = None) -> None:
        import numba

        self.window: int | None = jobs
        self.threads: int | None = threads or max(numba.get_num_threads() // jobs, 1)
        self.memory: int | None = max(memory_limit() // jobs, 1)
        self._pool = self._started()

    def _started(self) -> ProcessPoolExecutor:
        # a fork would take over locks and threads of compiled code in whatever state they are
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.window, mp_context=context, initializer=_begin)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Hand a task over; processes that are started for it begin with the signals of the terminal held back."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        try:
            return self._pool.submit(function, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def renew(self) -> bool:
        """Start other processes."""
        self._pool.shutdown(wait=True)
        self._pool = self._started()
        return True

    def close(self) -> None:
        """Wait for what is running, and end the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Given:
    """A `Crew` that somebody else has, and goes on having."""

    def __init__(self, executor: Executor, threads: int | None = None) -> None:
        self.window: int | None = None
        self.threads, self.memory = threads, given_limit()
        self._executor = executor

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Hand a task over."""
        return self._executor.submit(function, *arguments)

    def renew(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Leave it to its owner."""


def _begin() -> None:
    """Prepare a process: the terminal's signals are its parent's affair, and it ends when that has gone."""
    for number in _HELD:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=watch, daemon=True, name="ctmc-parent").start()


@contextlib.contextmanager
def opened(name: str, scheduler: str | None = None, *, allow_insecure: bool = False) -> Iterator[Executor | None]:
    """Give an executor by its name inside a ``with`` block; None for processes, which a run starts by itself.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    scheduler : str, optional
        Address of Dask's scheduler, such as ``localhost:8786``.
    allow_insecure : bool
        Whether it may be on another machine without TLS.

    Raises
    ------
    StudyError
        If the library is missing, the scheduler not allowed, or not there.
    """
    if name != "dask":
        if scheduler is not None or allow_insecure:
            option = "--scheduler" if scheduler is not None else "--allow-insecure-scheduler"
            raise StudyError(f"{option} is given, but the executor is {name}; only dask has a scheduler.")
        if name == "processes":
            yield None
            return
        with _library("mpi4py.futures", "mpi", "mpi").MPIPoolExecutor() as executor:
            yield executor
        return
    if scheduler is None:
        raise StudyError(
            "the executor is dask, but there is no --scheduler; allowed is its address, such as localhost:8786."
        )
    address = checked_scheduler(scheduler, allow_insecure=allow_insecure)
    distributed = _library("distributed", "dask", "cluster")
    try:
        client = distributed.Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise StudyError(f"the scheduler {printable(address)} does not answer: {printable(error)}.") from None
    with client, client.get_executor(pure=False) as executor:
        yield executor


def _library(module: str, executor: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise StudyError(
            f"the executor {executor} needs {module.partition('.')[0]} ({printable(error)}): python -m pip install 'ctmc-lab[{extra}]'."
        ) from None


def checked_scheduler(address: str, *, allow_insecure: bool = False) -> str:
    """Return the address of a scheduler, with its protocol.

    Raises
    ------
    StudyError
        If it is none, or on another machine and not reached over TLS.

    Examples
    --------
    >>> checked_scheduler("localhost:8786"), checked_scheduler("tls://10.0.0.7:8786")
    ('tcp://localhost:8786', 'tls://10.0.0.7:8786')
    """
    full = address if "://" in address else f"tcp://{address}"
    try:
        parts = urlsplit(full)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.scheme not in ("tcp", "tls") or parts.path not in ("", "/"):
        raise StudyError(f"scheduler is {shown(address)}; allowed is HOST:PORT, tcp://HOST:PORT or tls://HOST:PORT.")
    if not (parts.scheme == "tls" or _is_here(host) or allow_insecure):
        raise StudyError(
            f"scheduler is {shown(address)}, on another machine and without TLS, where anybody could run code here; "
            "allowed are localhost and tls:// addresses, or --allow-insecure-scheduler."
        )
    return full


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
