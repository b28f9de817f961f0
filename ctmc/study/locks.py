"""One run at a time for each result file; the lock dies with its process and leaves nothing beside the user's files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ctmc.errors import StudyError, printable


def _folder() -> Path:
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


@contextlib.contextmanager
def only_run(output: Path) -> Iterator[None]:
    """Hold the lock of a result file inside a ``with`` block.

    Raises
    ------
    StudyError
        If another run holds it; names its process and host.
    """
    import filelock

    name = hashlib.sha256(os.fsencode(output.resolve())).hexdigest()[:32]
    folder = _folder()
    holder = folder / f"{name}.holder"
    lock = filelock.FileLock(folder / f"{name}.lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        who = "another process"
        with contextlib.suppress(OSError):
            who = printable(holder.read_text(encoding="utf-8", errors="replace")[:200])
        raise StudyError(
            f"another run ({who}) is writing {printable(output)}; wait for it, or choose another file with --output."
        ) from None
    try:
        with contextlib.suppress(OSError):
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        lock.release()
