"""What the machine and the libraries of a measurement were."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from typing import Any

from ctmc.storage.models import about
from ctmc.threads import usable_threads


def manifest(**more: Any) -> dict[str, Any]:
    """Return date, versions, processor, memory, BLAS and threads, with what else is told.

    Examples
    --------
    >>> sorted(manifest(repeats=3))[:4]
    ['blas', 'created', 'host', 'memory_bytes']
    """
    import psutil
    import scipy.linalg  # noqa: F401  # brings its BLAS along
    import threadpoolctl

    pools = threadpoolctl.threadpool_info()
    blas = [f"{pool['internal_api']} {pool.get('version')}" for pool in pools if pool["user_api"] == "blas"]
    return {
        **about(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": _processor(),
        "processors": usable_threads(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "blas": sorted(set(blas)),
        **more,
    }


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or os.uname().machine
