"""Locks between processes: they die with their process, and nobody ever has to delete a file.

A lock is a file in a folder of locks, locked by the operating system; what is in it, or whether it is there, says nothing.
Who holds it stands in a file beside it, for messages only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ctmc.errors import printable

POLL_SECONDS = 0.1
"""How often one who waits looks again."""


class BusyError(Exception):
    """The lock is held by another process; the message names it and its host."""


def cache_folder() -> Path:
    """Return the user's folder for locks on things that lie in folders of others."""
    import platformdirs

    folder = Path(platformdirs.user_cache_dir("ctmc")) / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / f"ctmc-locks-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def lock_name(path: str | os.PathLike[str]) -> str:
    """Return the name of the lock of a file, the same from wherever it is looked at."""
    return hashlib.sha256(os.fsencode(Path(path).resolve())).hexdigest()[:32]


@contextlib.contextmanager
def held(
    folder: Path,
    name: str,
    *,
    waiting: Callable[[str], object] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    tidy: bool = False,
) -> Iterator[bool]:
    """Hold a lock inside a ``with`` block.

    Parameters
    ----------
    folder : Path
        Where the locks are; it exists.
    name : str
    waiting : callable, optional
        Told once who holds the lock, before waiting for it.  Without it there is no waiting.
    stopped : callable
        Looked at while waiting; true gives it up.
    tidy : bool
        Whether to remove the file of the lock at the end.  Of three processes that come in the same microsecond two may then hold
        it, so only for work that may be done twice.

    Yields
    ------
    bool
        Whether another process held it before.

    Raises
    ------
    BusyError
        Another process holds it, and there is no waiting, or no longer.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder, held(Path(folder), "queue") as waited:
    ...     waited
    False
    """
    import filelock

    holder = folder / f"{name}.holder"
    lock = filelock.FileLock(folder / f"{name}.lock", timeout=0)
    waited = False
    while True:
        try:
            lock.acquire()
            break
        except filelock.Timeout:
            who = _who(holder)
            if waiting is None or stopped():
                raise BusyError(who) from None
            if not waited:
                waiting(who)
            waited = True
            time.sleep(POLL_SECONDS)
    try:
        with contextlib.suppress(OSError):
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield waited
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        if tidy:
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_file)
        lock.release()


def _who(holder: Path) -> str:
    try:
        return printable(holder.read_text(encoding="utf-8", errors="replace")[:200]) or "another process"
    except OSError:
        return "another process"
