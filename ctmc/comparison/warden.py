"""A process that runs one attempt after the other in a child and lets nothing out: time, memory, output and orphans.

It is started by `ctmc.comparison.isolation` and speaks lines of JSON: a request on standard input, news and one ending for each on
standard output.  It runs no solver itself.  Each attempt is a fork of it, so that libraries are loaded once; a segmentation fault, a
process that eats memory, one that never ends and one that leaves children behind are endings like any other.  When the process that
asked is gone, however it ended, standard input ends, and everything below the warden with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

from ctmc.comparison.groups import memory_group

_LOOK, _LOOK_BELOW = 0.02, 0.2
"""Seconds between two looks at the memory of a child, and of its children, which take longer to find."""
_TAIL = 2000
"""Bytes of what an attempt writes that are kept; the rest is read and dropped."""
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # of prctl(2)


def _prctl(option: int, value: int) -> None:
    """Ask the kernel for something that only Linux has."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def held_bytes(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process, and the part of it that is no file's: (0, 0) where it has ended.

    A fork finds the pages of libraries when it first uses them; only the second number tells what it allocates.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
        resident, shared = (int(fields[k]) * resource.getpagesize() for k in (1, 2))
        return resident, resident - shared
    except (OSError, IndexError):
        import psutil

        with contextlib.suppress(psutil.Error):
            resident = int(psutil.Process(pid).memory_info().rss)
            return resident, resident
        return 0, 0


def below(pid: int) -> list[int]:
    """Return the processes below one, children of children included."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def end_all_below(pid: int) -> int:
    """Kill everything below a process and return how many there were beside its own zombies."""
    killed = 0
    for _ in range(50):
        left = [child for child in below(pid) if not _is_zombie(child)]
        if not left:
            break
        for child in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                killed += 1
        time.sleep(0.01)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return killed


def _is_zombie(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def serve(module: str) -> None:
    """Answer requests until standard input ends: after ``module.prepare()``, ``module.attempt(request, tell)`` for each, in a child."""
    _prctl(_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the process that asks decides; when it goes, its end of the pipe does
    loaded = importlib.import_module(module)
    loaded.prepare()
    work = loaded.attempt
    _say({"event": "ready"})
    received = b""
    while True:
        part = os.read(0, 65536)
        if not part:
            return
        received += part
        while b"\n" in received:
            line, received = received.split(b"\n", 1)
            if not _answer(work, json.loads(line)):
                return


def _say(content: dict[str, Any]) -> None:
    data = json.dumps(content).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _answer(work: Any, request: dict[str, Any]) -> bool:
    """Run one attempt and say how it ended; return false when nobody is there any more to be told."""
    told_reader, told_writer = os.pipe()
    out_reader, out_writer = os.pipe()
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # BLAS has threads, which handle a fork
        child = os.fork()
    if child == 0:
        _become(work, request, told_writer, out_writer)
    os.close(told_writer)
    os.close(out_writer)
    group = None if request.get("memory_limit") is None else memory_group(int(request["memory_limit"]))
    if group is not None:
        group.add(child)
    found = _watch(child, request, told_reader, out_reader, begin)
    os.close(told_reader)
    os.close(out_reader)
    orphans = end_all_below(os.getpid())
    isolation = "watched"
    if group is not None:
        isolation = f"watched, {group.version}"
        if found is not None and found["code"] == -signal.SIGKILL and not found["reason"] and group.ran_out:
            found["reason"] = "memory"
        group.remove()
    if found is None:
        return False
    _say({"event": "ended", **found, "orphans": orphans, "isolation": isolation})
    return True


def _become(work: Any, request: dict[str, Any], told: int, out: int) -> None:
    """Be the child of an attempt; never returns."""
    code = 70
    try:
        _prctl(_DEATH_SIGNAL, signal.SIGKILL)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        def tell(phase: str) -> None:
            os.write(told, phase.encode() + b"\n")

        work(request, tell)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:  # whatever it is: the parent gets its text and the code
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def patience(request: Mapping[str, Any], phase: str) -> float:
    """Return the seconds that a phase may take; a solver gets some more than its limit, at which it should stop by itself."""
    limit = float(request.get("time_limit") or math.inf)
    if phase.startswith("solve"):
        return 1.2 * limit + 3
    return max(limit, float(request.get("loading_limit") or 0))


def _watch(child: int, request: dict[str, Any], told: int, out: int, begin: float) -> dict[str, Any] | None:
    """Watch a child until it ends, or ends too late or too large; None when the process that asked is gone."""
    base = held_bytes(child)[1]
    peak = grown = 0
    room = request.get("memory_limit")
    phase, since = "start", begin
    look = look_below = begin
    beside = (0, 0)
    tail, reason = b"", ""
    open_ends = {0, told, out}
    while True:
        readable, _, _ = select.select(list(open_ends), [], [], _LOOK)
        if 0 in readable:  # nothing is sent while an attempt runs: it is the end
            end_all_below(os.getpid())
            return None
        if told in readable:
            data = os.read(told, 4096)
            if data:
                phase, since = data.decode().split()[-1], time.perf_counter()
                _say({"event": "phase", "phase": phase})
            else:
                open_ends.discard(told)
        if out in readable:
            data = os.read(out, 1 << 20)
            tail = (tail + data)[-_TAIL:]
            if not data:
                open_ends.discard(out)
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        now = time.perf_counter()
        if now < look:
            continue
        look = now + _LOOK
        if now >= look_below:
            others = [held_bytes(other) for other in below(os.getpid()) if other != child]
            beside = (sum(each[0] for each in others), sum(each[1] for each in others))
            look_below = now + _LOOK_BELOW
        resident, allocated = held_bytes(child)
        peak, grown = max(peak, resident + beside[0]), max(grown, allocated + beside[1] - base)
        if room is not None and grown > room:
            reason = "memory"
        elif now - since > patience(request, phase):
            reason = "walltime"
        if reason:
            os.kill(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            break
    seconds = time.perf_counter() - begin
    with contextlib.suppress(OSError):
        while out in open_ends and select.select([out], [], [], 0)[0]:
            data = os.read(out, 1 << 20)
            if not data:
                break
            tail = (tail + data)[-_TAIL:]
    code = os.waitstatus_to_exitcode(status)
    scale = 1 if sys.platform == "darwin" else 1024
    return {
        "code": code,
        "reason": reason,
        "phase": phase,
        "wall_seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "allocated_bytes": grown,
        "peak_bytes": max(peak, usage.ru_maxrss * scale),
        "tail": tail.decode(errors="replace"),
    }
