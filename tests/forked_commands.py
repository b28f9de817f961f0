"""The command line in forks of one process that has imported everything: what each costs is counted, and is little."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

PARENT = """
import fcntl, importlib, io, json, os, signal, sys, tempfile
sys.path.insert(0, sys.argv[1])
from ctmc.cli import main
from ctmc.cli.app import COMMANDS
import h5py, scipy.sparse.linalg, ctmc.storage, ctmc.verify, ctmc.interchange.isolated, ctmc.study.run

for module, _ in COMMANDS.values():
    importlib.import_module(f"ctmc.cli.{module}")
silent = open(os.devnull, "w")
answers, sys.stdout, sys.stderr = os.dup(1), silent, silent
with tempfile.TemporaryDirectory() as folder:  # compiled loops are loaded once, here
    path = os.path.join(folder, "warm.h5")
    for command in (["build", "birth_death", "--births", "1,1", "--deaths", "2,2", "-o", path], ["solve", path], ["verify", path]):
        assert main(command) == 0, command

def pipe():
    # holds all that a command says, so that it is read when the command has ended
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    return reader, writer

def said(reader):
    parts = []
    try:
        while part := os.read(reader, 1 << 20):
            parts.append(part)
    except BlockingIOError:  # a process that was left behind still has the other end
        pass
    os.close(reader)
    return b"".join(parts).decode(errors="surrogateescape")

def child(job, out, err):
    os.setsid()
    os.chdir(job["folder"])
    os.environ.update(job["environment"])
    out = os.open(job["output"], os.O_WRONLY) if job["output"] else out
    for number, descriptor in enumerate((os.open(job["input"], os.O_RDONLY), out, err)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, "r" if number == 0 else "w", closefd=False) for number in range(3))
    exec(job["before"], {"os": os})
    code = main(job["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    job = json.loads(line)
    (out, out_end), (err, err_end) = pipe(), pipe()
    pid = os.fork()
    if not pid:
        try:
            child(job, out_end, err_end)
        except BaseException:
            import traceback
            os.write(2, b"Traceback of what no command catches: " + traceback.format_exc().encode())
        finally:
            os._exit(99)
    os.close(out_end)
    os.close(err_end)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, job["limit"])
    _, status, usage = os.wait4(pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    found = [os.waitstatus_to_exitcode(status), said(out), said(err), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024]
    os.write(answers, (json.dumps(found) + "\\n").encode())
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it took: seconds of processor time and bytes, those of its children among them."""

    code: int
    out: str
    err: str
    seconds: float
    peak: int


class Commands:
    """Runs commands, one after the other, each in a fork."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def __call__(
        self,
        *arguments: object,
        folder: str | os.PathLike[str],
        input: str = os.devnull,
        output: str = "",
        environment: Mapping[str, str] | None = None,
        before: str = "",
        limit: float = 60.0,
    ) -> Ended:
        """Run one command in a folder.

        Parameters
        ----------
        *arguments : object
            What stands behind ``ctmc``.
        folder : path-like
        input, output : str, optional
            Files that are its standard input and output; by default nothing, and what is returned.
        environment : mapping, optional
            What is added to the environment.
        before : str, optional
            Python that the child runs first, with `os`.
        limit : float
            Seconds after which it is killed, with all it has started.
        """
        job: dict[str, Any] = {
            "arguments": [os.fspath(one) if isinstance(one, os.PathLike) else str(one) for one in arguments],
            "folder": os.fspath(folder), "input": input, "output": output, "environment": dict(environment or {}),
            "before": before, "limit": limit,
        }  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return Ended(*json.loads(self.process.stdout.readline()))


@contextlib.contextmanager
def forked_commands() -> Iterator[Commands]:
    """Start the process that forks, and end it."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(ROOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "NUMBA_NUM_THREADS": "1", "NUMBA_THREADING_LAYER": "workqueue", "COLUMNS": "200"},
    )  # fmt: skip
    try:
        yield Commands(process)
    finally:
        process.kill()
        process.communicate()


def one_sentence(err: str) -> str:
    """Return the last line of standard error, which is the only one that is ours: no traceback, nothing that moves a terminal."""
    lines = err.splitlines()
    assert "Traceback" not in err, err[-3000:]
    assert lines, "nothing was said"
    assert lines[-1].startswith("ctmc: "), err
    assert all(line.isprintable() for line in lines), err
    assert len(lines[-1]) < 1000, err
    return lines[-1]


def files_below(folder: str | os.PathLike[str]) -> dict[str, tuple[int, int]]:
    """Return what stands in a folder, with times and sizes."""
    paths: Sequence[Path] = list(Path(folder).rglob("*"))
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in paths}
