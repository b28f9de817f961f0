"""Memory limits that the kernel keeps, for a process with all that it starts, where a group (cgroup) of processes may be made.

Of both versions of control groups; whoever is not root gets one where the system delegates it, as under ``systemd-run --user --scope``.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
_ROOM = 64 * 1024**2
"""Bytes above the limit at which the kernel steps in: the warden looks at what is allocated, files that are read come on top here."""
_FILES = {"cgroup v2": ("memory.max", "memory.events"), "cgroup v1": ("memory.limit_in_bytes", "memory.oom_control")}


@dataclass(frozen=True)
class MemoryGroup:
    """A group of processes whose memory the kernel bounds.

    Attributes
    ----------
    path : Path
    version : str
        ``cgroup v1`` or ``cgroup v2``.
    """

    path: Path
    version: str

    def add(self, pid: int) -> None:
        """Take a process into the group, and with it all that it starts."""
        with contextlib.suppress(OSError):  # it has ended already
            (self.path / "cgroup.procs").write_text(str(pid))

    @property
    def ran_out(self) -> bool:
        """Whether the kernel has ended a process of the group for want of memory."""
        with contextlib.suppress(OSError, ValueError):
            for line in (self.path / _FILES[self.version][1]).read_text().splitlines():
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number) > 0
        return False

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def memory_group(limit: int, *, mount: Path = MOUNT, groups: Path = Path("/proc/self/cgroup")) -> MemoryGroup | None:
    """Return a new group with a limit, None where none can be made.

    Parameters
    ----------
    limit : int
        Bytes.
    mount : Path
        Where control groups are mounted.
    groups : Path
        The file that tells to which groups this process belongs.
    """
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, own = rest.partition(":")
        if number == "0":
            version, base = "cgroup v2", mount
        elif "memory" in controllers.split(","):
            version, base = "cgroup v1", mount / "memory"
        else:
            continue
        path = base / own.lstrip("/") / f"ctmc-{os.getpid()}"
        name = _FILES[version][0]
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            if not (path / name).exists():  # no memory controller here
                raise OSError
            (path / name).write_text(str(limit + _ROOM))
            swap = path / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
            return MemoryGroup(path, version)
        except OSError:
            with contextlib.suppress(OSError):
                path.rmdir()
    return None
