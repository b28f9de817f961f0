"""The helpers that start ranks: they say hello, and one that hangs is ended with all that it has started."""

import os
import subprocess
import sys
import time

import mpi
import pytest

pytestmark = mpi.needs_mpi()

HELLO = """
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(10 ** world.rank)
print(f"hello from {world.rank} of {world.size}:", total)
"""
HANGS = """
import os, subprocess, sys, time
from mpi4py import MPI
open(f"{MPI.COMM_WORLD.rank}", "w").write("here")
if MPI.COMM_WORLD.rank == 1:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    time.sleep(600)
MPI.COMM_WORLD.Barrier()
"""


@pytest.fixture
def marks(monkeypatch):
    """Return the marks of all jobs that a test starts."""
    found = []
    original = mpi.end
    monkeypatch.setattr(mpi, "end", lambda mark: (found.append(mark), original(mark)))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_say_hello(marks, ranks):
    ended = mpi.mpirun(ranks, "-c", HELLO)
    assert ended.code == 0, ended
    total = (10**ranks - 1) // 9
    assert sorted(ended.out.splitlines()) == [f"hello from {rank} of {ranks}: {total}" for rank in range(ranks)]
    assert marks
    assert mpi.left(marks[0]) == []


def test_a_rank_that_fails_is_an_exit_code():
    ended = mpi.mpirun(2, "-c", "import sys; sys.exit('it is over')")
    assert ended.code == 1
    assert "it is over" in ended.err


def test_a_rank_that_hangs_is_ended_with_all_it_has_started(tmp_path, marks):
    begin = time.monotonic()
    ended = mpi.mpirun(2, "-c", HANGS, seconds=5, cwd=tmp_path)
    assert ended.code is None, ended
    assert time.monotonic() - begin < 60
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]
    assert mpi.left(marks[0]) == []


def test_what_is_left_is_found():
    """Also in a session of its own, where no process group leads to it."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, mpi.PARENT_OF_ALL: "a mark"},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 30  # until the child has become the new program
        while mpi.left("a mark") == [] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [process.pid for process in mpi.left("a mark")] == [child.pid]
        assert mpi.left("another mark") == []
        mpi.end("a mark")
        assert mpi.left("a mark") == []
    finally:
        child.kill()
        child.wait()


def test_what_is_missing_is_told(monkeypatch):
    assert mpi.missing("numpy") == ""
    assert mpi.missing("no_such_module", "nor_this") == "no_such_module, nor_this cannot be imported: extra distributed"
    monkeypatch.setenv("PATH", "")
    assert mpi.missing() == "there is no mpirun"
