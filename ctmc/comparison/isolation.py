"""Attempts in processes of their own, from the side that asks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ctmc.errors import CTMCError

# The current folder must not shadow anything; what the parent has found elsewhere comes last.
_LAUNCH = """
import importlib.util, json, os, sys
paths, package, home, module = json.loads(sys.argv[1])
sys.path += [path for path in paths if path not in sys.path]
found = importlib.util.find_spec("ctmc")
if found is None or os.path.realpath(found.origin) != package:
    sys.path.insert(0, home)
from ctmc.comparison.warden import serve
serve(module)
"""


@dataclass(frozen=True)
class Ending:
    """How an attempt ended.

    Attributes
    ----------
    code : int
        Exit code; -N where signal N ended it.
    reason : str
        ``walltime`` or ``memory`` where the warden ended it, '' otherwise.
    phase : str
        The last that it told.
    wall_seconds, cpu_seconds : float
        Of the whole process.
    allocated_bytes, peak_bytes : int
        What it allocated at most, beside libraries and what it began with, looked at 50 times a second; and its largest resident
        memory.  Its children are included.
    tail : str
        The end of what it wrote.
    orphans : int
        Processes that it left behind, which were ended.
    isolation : str
        ``watched``: looked at by the warden; with ``cgroup v1`` or ``cgroup v2`` also bounded by the kernel.
    """

    code: int
    reason: str
    phase: str
    wall_seconds: float
    cpu_seconds: float
    allocated_bytes: int
    peak_bytes: int
    tail: str
    orphans: int = 0
    isolation: str = "watched"


class WardenError(CTMCError, RuntimeError):
    """The warden itself is gone, with what it ran."""


class Warden:
    """A process that runs attempts, one at a time; for a ``with`` block, at whose end nothing of it is left.

    Parameters
    ----------
    module : str
        Its function ``attempt(request, tell)`` is run in a child for each request.
    threads : int, optional
        Of compiled loops and of BLAS.
    """

    def __init__(self, module: str, threads: int | None = None) -> None:
        self.module, self.threads = module, threads
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    def __enter__(self) -> Warden:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def begin(self, request: Mapping[str, Any]) -> None:
        """Send a request; `poll` tells how it goes.  `time_limit` (seconds of each phase) and `memory_limit` (bytes) are the warden's."""
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `poll` finds out
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def poll(self, seconds: float) -> Ending | str | None:
        """Return the ending of the attempt, the name of a phase that has begun, or None after so many seconds without news.

        Raises
        ------
        WardenError
            The warden has died.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            if b"\n" in self._received:
                line, self._received = self._received.split(b"\n", 1)
                content = json.loads(line)
                event = content.pop("event")
                if event == "ended":
                    return Ending(**content)
                if event == "phase":
                    return str(content["phase"])
                continue
            descriptor = self._process.stdout.fileno()
            if not select.select([descriptor], [], [], seconds)[0]:
                return None
            data = os.read(descriptor, 65536)
            if not data:
                code = self._process.wait()
                self.end()
                raise WardenError(f"the process that runs the attempts died with code {code}.")
            self._received += data

    def end(self) -> None:
        """End the warden, and with it everything below."""
        process, self._process, self._received = self._process, None, b""
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _start(self) -> None:
        package = Path(__file__).resolve().parent.parent / "__init__.py"
        here = os.getcwd()
        paths = [entry for entry in sys.path if os.path.isabs(entry) and entry != here]
        threads = {}
        if self.threads is not None:
            names = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
            threads = dict.fromkeys(names, str(self.threads))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                _LAUNCH,
                json.dumps([paths, str(package), str(package.parent.parent), self.module]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **threads},
            start_new_session=True,
        )
