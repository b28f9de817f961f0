"""Commands on several ranks: the content and the numbers of one process, one voice, and a failure that ends all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

import ctmc
from ctmc.errors import MemoryLimitError
from tests.mpi import PARENT_OF_ALL, end, environment, left, mpirun, needs_mpi

pytestmark = needs_mpi("petsc4py")

PLUGIN = '''
import ctypes, os, signal, sys, threading, time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import ctmc
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.state_space import Lattice
from ctmc.model.streamed import made
from ctmc.model.transitions import FloatTransitions
from ctmc.problem import Stationary


def misbehave(where):
    how, rank, place = os.environ.get("FAULT", "none:9:none").split(":")
    if place != where or os.environ.get("OMPI_COMM_WORLD_RANK") != rank:
        return
    if how == "raises":
        raise ModelError("rows is 7; allowed are rows that can be made.")
    if how == "breaks":
        raise RuntimeError("no rows")
    if how == "exits":
        sys.exit(3)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfaults":
        ctypes.string_at(0)
    if how == "threads":  # with a thread that never ends
        threading.Thread(target=lambda: time.sleep(1000)).start()
        raise ModelError("rows is 8; allowed are rows that can be made.")


@ctmc.builder(version=1)
def ring(size: int = 9000) -> Generator:
    """A ring.

    Parameters
    ----------
    size : int
        Number of states.
    """

    def rows(begin, end):
        if begin:
            misbehave("build")
        states = np.arange(begin, end)
        return FloatTransitions(np.arange(end - begin + 1), ((states - 1) % size).astype(np.int32), 1.0 + states)

    return Generator(Lattice((size - 1,)), made(size, rows, slab_states=4096))


@dataclass(frozen=True, kw_only=True)
class Faulty:
    """Solves by steps.

    Parameters
    ----------
    steps : int
        Number of them.
    """

    solves: ClassVar = (Stationary,)
    needs: ClassVar = Generator
    shared: ClassVar = True
    steps: int = 40

    def run(self, problem, trace):
        chain = problem.model
        pi = trace.start(np.full(chain.size, 1 / chain.states))
        flow = chain.forward(pi)
        while not trace.finished(float(chain.ranks.total(np.abs(flow).sum())), iterate=pi, limit=self.steps):
            if trace.iteration == 5:
                misbehave("solve")
            time.sleep(float(os.environ.get("PAUSE", "0")))
            pi = pi + flow / (1.05 * chain.uniformization_rate)
            flow = chain.forward(pi)
        return ctmc.Outcome(pi, trace.status, trace.history)
'''


@pytest.fixture
def site(tmp_path):
    """An installed distribution with a builder and a solver that misbehave where they are told to."""
    folder = tmp_path / "site"
    info = folder / "faulty-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ctmc.builders]\nring = faulty:ring\n\n[ctmc.solvers]\nfaulty = faulty:Faulty\n"
    )
    (folder / "faulty.py").write_text(PLUGIN)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


MODEL = [
    "supermarket",
    "--service-rates",
    "1,1.5,2",
    "--arrival-rate",
    "3.6",
    "--choices",
    "2",
    "--capacity",
    "30",
    "--total-capacity",
    "40",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "model.h5"
    ctmc.save(
        path,
        ctmc.build(
            "supermarket", service_rates=[1, 1.5, 2], arrival_rate=3.6, choices=2, capacity=30, total_capacity=40
        ),
    )
    return path


def run(ranks, *arguments, **variables):
    return mpirun(ranks, "-m", "ctmc", *map(str, arguments), seconds=120, **variables)


def sentences(err):
    """The lines that are ours, not mpirun's."""
    return [line for line in err.splitlines() if line.startswith("ctmc: ")]


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_what_is_built_is_the_same(tmp_path, model, ranks):
    done = run(ranks, "build", *MODEL, "-o", tmp_path / "model.h5", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["content_hash"] == ctmc.load(model).content_hash
    assert ctmc.verify(tmp_path / "model.h5").problem == ""


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_what_is_solved_is_the_same(model, ranks):
    done = run(
        ranks, "solve", model, "--solver", "petsc_krylov", "--json", "--reward", "losses", "--probability", "jobs >= 10"
    )
    assert done.code == 0, done.err
    found = json.loads(done.out)  # one document, whoever else there is
    chain = ctmc.load(model)
    exact = ctmc.solve(ctmc.Stationary(chain), "bicgstab")
    for name, value in {
        **exact.measures(),
        "losses": exact.expected("losses"),
        "jobs >= 10": exact.probability("jobs >= 10"),
    }.items():
        np.testing.assert_allclose(found["measures"][name], value, rtol=1e-10, atol=1e-11, err_msg=name)
    from ctmc.storage import load_solution

    stored = load_solution(found["saved"])
    np.testing.assert_allclose(stored.value, exact.value, rtol=0, atol=1e-11)
    assert (stored.model_hash, stored.status.name) == (chain.content_hash, "CONVERGED")
    assert ctmc.verify(found["saved"]).problem == ""


def test_more_ranks_than_rows(tmp_path):
    done = run(4, "solve", "birth_death(births=[1.0, 1.0], deaths=[2.0, 2.0])", "--json", "--reward", "jobs")
    assert done.code == 0, done.err
    np.testing.assert_allclose(json.loads(done.out)["measures"]["jobs"], (0.5 + 2 * 0.25) / 1.75, rtol=1e-12)


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("raises", 2, ["ctmc: rank 1: rows is 7; allowed are rows that can be made."]),
        pytest.param(
            "threads", 2, ["ctmc: rank 1: rows is 8; allowed are rows that can be made."], marks=pytest.mark.slow
        ),
        ("breaks", 70, ["ctmc: rank 1: internal error, RuntimeError: no rows; run again with --debug to see where"]),
        pytest.param("exits", 3, ["ctmc: rank 1: the process was left with 3"], marks=pytest.mark.slow),
        pytest.param("killed", 137, [], marks=pytest.mark.slow),
        ("segfaults", 139, []),
    ],
)
@pytest.mark.parametrize("place", [pytest.param("build", marks=pytest.mark.slow), "solve"])
def test_a_rank_that_fails_ends_the_job(tmp_path, site, how, code, words, place):
    begin = time.monotonic()
    output = tmp_path / "ring.h5"
    if place == "build":
        done = run(3, "build", "ring", "-o", output, FAULT=f"{how}:1:build", **site)
        assert not output.exists()
    else:
        done = run(2, "solve", "ring(size=9000)", "--solver", "faulty", FAULT=f"{how}:1:solve", **site)
        if how == "breaks":  # a solver is a plug-in: whatever it does is one sentence
            code, words = (
                1,
                ["ctmc: rank 1: faulty: BREAKDOWN, RuntimeError: no rows. The method broke down on this model"],
            )
    assert done.code == code, (done.code, done.err)
    assert [line[: len(word)] for line, word in zip(sentences(done.err), words, strict=True)] == words
    assert time.monotonic() - begin < 60
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_all_ranks_meet_is_said_once(tmp_path, model):
    for arguments, words in (
        (["solve", tmp_path / "missing.h5"], "No such file"),
        (["solve", model, "--solver", "gth"], "needs the whole model in one process"),
        (["build", *MODEL, "-o", tmp_path / "nowhere" / "model.h5"], "there is no folder"),
        (["solve", model, "--certify", "strict"], "'strict'"),
        (
            ["solve", model, "--solver", "petsc_krylov", "--options=-pc_foo 3", "--no-save"],
            "-pc_foo, which PETSc did not read",
        ),
    ):
        done = run(3, *arguments)
        assert done.code == 2, done.err
        (sentence,) = sentences(done.err)
        assert words in sentence
        assert "rank" not in sentence.partition("ranks")[0]


def test_what_only_the_first_rank_meets_is_said_once(tmp_path):
    other = tmp_path / "other.h5"
    other.write_bytes(b"not ours")
    done = run(2, "build", *MODEL, "-o", other, "--overwrite")
    assert done.code == 2
    (sentence,) = sentences(done.err)
    assert "is never replaced" in sentence
    assert other.read_bytes() == b"not ours"


def test_a_file_that_another_run_holds(tmp_path, model):
    path = tmp_path / "model.h5"
    path.write_bytes(model.read_bytes())
    with h5py.File(path, "r+") as held:
        assert run(2, "solve", path, "--no-save").code == 0
        other = [*MODEL[:4], "3.3", *MODEL[5:]]
        assert run(2, "build", *other, "-o", path, "--overwrite").code == 0
        assert held["exit_rates.codes"].shape == (ctmc.load(model).size,)  # whoever has it open keeps what was there
    assert ctmc.load(path).recipe.parameters["arrival_rate"] == 3.3


def test_stopped_on_four_ranks_goes_on_with_three(tmp_path, model):
    stopped = run(4, "solve", model, "--solver", "petsc_krylov", "--checkpoint", tmp_path / "kept.h5", "--checkpoint-minutes", "0",
                  "--time-limit", "1e-9", "--no-save")  # fmt: skip
    assert stopped.code == 1, stopped.err
    assert "TIME_LIMIT" in sentences(stopped.err)[0]
    assert (tmp_path / "kept.h5").exists()
    resumed = run(
        3,
        "solve",
        model,
        "--solver",
        "petsc_krylov",
        "--checkpoint",
        tmp_path / "kept.h5",
        "--resume",
        "--json",
        "--no-save",
    )
    assert resumed.code == 0, resumed.err
    alone = ctmc.solve(ctmc.Stationary(ctmc.load(model)), "bicgstab")
    np.testing.assert_allclose(json.loads(resumed.out)["measures"]["jobs"], alone.expected("jobs"), rtol=1e-10)
    assert not (tmp_path / "kept.h5").exists()


def test_a_signal_to_mpirun_leaves_a_checkpoint(tmp_path, site):
    kept = tmp_path / "kept.h5"
    mark = f"{os.getpid()}-signal"
    command = ["mpirun", "-n", "2", sys.executable, "-m", "ctmc", "solve", "ring(size=9000)", "--solver", "faulty", "--steps", "100000",
               "--checkpoint", str(kept)]  # fmt: skip
    variables = environment(**{**site, PARENT_OF_ALL: mark, "PAUSE": "0.05", "OMPI_MCA_odls_base_sigkill_timeout": "5"})
    job = subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        limit = time.monotonic() + 60
        while len([one for one in left(mark) if "ctmc" in " ".join(one.cmdline())]) < 3 and time.monotonic() < limit:
            time.sleep(0.2)
        time.sleep(8)  # until the solve is under way
        job.send_signal(signal.SIGTERM)
        out, err = job.communicate(timeout=60)
    finally:
        end(mark)
    assert job.returncode != 0
    assert kept.exists(), (out, err)
    from ctmc.storage.checkpoints import load_checkpoint

    (run_under_way,) = load_checkpoint(kept).runs
    assert run_under_way.arrays["iterate"].shape == (9000,)
    assert run_under_way.arrays["iterate"].sum() == pytest.approx(1, abs=1e-12)


def test_too_narrow_numbers_are_refused_beforehand(monkeypatch):
    from ctmc.ranks import ALONE
    from solvers import _petsc

    class Narrow:
        IntType = np.int32

    monkeypatch.setattr(_petsc, "petsc", lambda: Narrow)
    _petsc.require_indices(ALONE, 2**31 - 1, 10)
    for entries, columns in ((2**31, 10), (10, 2**31)):
        with pytest.raises(MemoryLimitError, match="numbers entries with 32 bits, and 2,147,483,648 are needed"):
            _petsc.require_indices(ALONE, entries, columns)
