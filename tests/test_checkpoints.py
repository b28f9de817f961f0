"""Long solves survive: interrupted and resumed against uninterrupted, kill -9, full disks, signals, foreign checkpoints."""

import dataclasses
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ctmc
from builders.supermarket import supermarket
from ctmc import registry
from ctmc.checkpoint import Checkpoint, Progress, Run
from ctmc.errors import ModelError, StorageError
from ctmc.model.generator import Generator
from ctmc.problem import AccumulatedReward, DiscountedReward, FirstPassage, Stationary, Transient
from ctmc.solution import HISTORY, Status
from ctmc.storage import checkpoints
from ctmc.storage.checkpoints import load_checkpoint, save_checkpoint

QUEUES = {"service_rates": [3.0, 2.0, 1.0], "arrival_rate": 4.5, "choices": 2}
KILLS = int(os.environ.get("CTMC_KILLS", "50"))


@pytest.fixture(scope="module")
def queues():
    return supermarket(**QUEUES, capacity=7)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "solve.checkpoint.h5"


class StopAfter:
    """A monitor that ends a solve after so many looks."""

    def __init__(self, looks):
        self.left = looks

    def __call__(self, iteration, defect):
        self.left -= 1
        return self.left < 0


def interrupted(problem, solver, looks, place):
    return ctmc.solve(problem, solver, monitor=StopAfter(looks), check=False, checkpoint=place, checkpoint_minutes=1e6)


def assert_history_goes_on(first, second):
    for column, least in (("iteration", 1), ("products", 0), ("seconds", 0)):
        assert (np.diff(second.history[column]) >= least).all(), column
    shared = len(first.history) - 1
    assert (second.history[:shared] == first.history[:shared]).all()
    assert second.iterations >= first.iterations
    assert second.products > first.products
    assert second.seconds >= first.history["seconds"][-1]


def stationary_solvers():
    for name in registry.solver_names():
        kind = registry.solver_class(name)
        if Stationary in kind.solves and kind.needs is Generator and not registry.missing_library(kind):
            yield name


@pytest.mark.parametrize("name", list(stationary_solvers()))
def test_resumed_is_as_good_as_uninterrupted(queues, place, name):
    problem = Stationary(queues)
    whole = ctmc.solve(problem, name)
    if not len(whole.history):
        noted = ctmc.solve(problem, name, checkpoint=place)
        assert noted.notes == ("There is no checkpoint: the method has no intermediate state.",)
        assert not place.exists()
        return
    looks = len(whole.history)
    for k in sorted({0, min(1, looks - 2), (looks - 2) // 2, looks - 2}):
        first = interrupted(problem, name, k, place)
        assert first.status is Status.STOPPED
        assert first.checkpoint == place
        second = ctmc.solve(problem, name, checkpoint=place, resume=True)
        assert second.converged
        assert second.defect <= 4 * max(whole.defect, 1e-15)
        for reward in ("jobs", "queue_length"):
            assert np.abs(second.expected(reward) - whole.expected(reward)).max() < 1e-10
        assert_history_goes_on(first, second)
        if name != "slepc_krylov_schur":  # SLEPc shows its subspace to nobody: a run begins again
            # what was done is not done again
            assert second.products - first.products <= whole.products - 0.8 * first.products + 20
        assert not place.exists()
        assert second.checkpoint is None


def over_time(queues):
    start = (0, 0, 0)
    yield "distribution", Transient(queues, start, np.linspace(0.5, 12, 12))
    yield "rewards", Transient(queues, start, np.linspace(0.5, 12, 12), reward="queue_length")
    yield "every start", Transient(queues, None, np.linspace(0.5, 12, 12), reward="jobs")
    yield "moments", AccumulatedReward(queues, ("jobs", "imbalance"), start, np.linspace(0.5, 6, 10), moments=2)
    yield "discounted", DiscountedReward(queues, ("jobs", "imbalance"), start, discount=0.1, moments=2)
    yield "passage", FirstPassage(queues, "jobs >= 8", start)
    yield "passage with avoided states", FirstPassage(queues, "jobs >= 8", start, avoid="queue_length[0] >= 5")


QUESTIONS = tuple(name for name, _ in over_time(supermarket(**QUEUES, capacity=2)))


OFTEN = ("distribution", "every start", "passage")
"""Of each direction one; the others are left to releases."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow]) for name in QUESTIONS]
)
def test_questions_about_time_go_on(queues, tmp_path, name):
    problem = dict(over_time(queues))[name]
    tried = 0
    for solver in registry.solver_names():
        kind = registry.solver_class(solver)
        if type(problem) not in kind.solves or registry.missing_library(kind):
            continue
        whole = ctmc.solve(problem, solver)
        for share in (0.4, 0.7, 0.95):
            place = tmp_path / f"{solver}-{share}.h5"
            first = interrupted(problem, solver, int(share * len(whole.history)), place)
            if first.checkpoint is None:
                continue
            tried += 1
            second = ctmc.solve(problem, solver, checkpoint=place, resume=True)
            # steps of an adaptive method fall elsewhere when it begins at a time that was reached
            assert second.defect <= 2 * max(whole.defect, problem.tolerance / 10), (solver, share)
            np.testing.assert_allclose(second.value, whole.value, rtol=1e-10, atol=1e-10)
            if whole.error_bound is not None:  # SLEPc's exponential proves none
                assert np.all(np.asarray(second.error_bound) <= 3 * np.asarray(whole.error_bound) + 1e-12)
            assert (np.diff(second.history["iteration"]) >= 0).all()
            assert (np.diff(second.history["products"]) >= 0).all()
            assert len(second.history) > 1
    assert tried >= 2


def test_a_solve_that_is_interrupted_again_and_again(queues, place):
    problem = Transient(queues, (0, 0, 0), np.linspace(0.25, 10, 40), reward="jobs")
    whole = ctmc.solve(problem, "uniformization")
    found = interrupted(problem, "uniformization", 12, place)
    for _ in range(100):
        if found.converged:
            break
        monitor = StopAfter(12)
        found = ctmc.solve(problem, "uniformization", monitor=monitor, check=False, checkpoint=place, resume=True)
    assert found.converged
    assert np.abs(found.value - whole.value).max() < 1e-10
    # a bound is a bound: that of earlier times is carried on
    assert (np.abs(found.value - whole.value) <= found.error_bound + whole.error_bound).all()


def separate(queues):
    """Return two copies of a model, side by side, and a state that leads into either."""
    rates, n = queues.to_scipy().toarray(), queues.size
    np.fill_diagonal(rates, 0)
    both = np.zeros((2 * n + 1, 2 * n + 1))
    both[:n, :n], both[n : 2 * n, n : 2 * n] = rates, 3 * rates
    both[2 * n, 0], both[2 * n, n] = 1.0, 2.0
    return Generator.from_matrix(both, initial={(2 * n,): 1.0})


def test_recurrent_classes_that_are_done_are_not_solved_again(place):
    chain = separate(supermarket(**QUEUES, capacity=4))
    problem = Stationary(chain, initial={(chain.size - 1,): 1.0})
    whole = ctmc.solve(problem, "power_iteration")
    classes = np.flatnonzero(np.diff(whole.history["defect"]) > 0.1)
    assert len(classes) == 1  # where the second class begins
    looks = int(classes[0]) + 30
    first = interrupted(problem, "power_iteration", looks, place)
    assert first.status is Status.STOPPED
    second = ctmc.solve(problem, "power_iteration", checkpoint=place, resume=True)
    np.testing.assert_allclose(second.value, whole.value, rtol=0, atol=1e-13)
    assert second.products <= whole.products + 5
    assert_history_goes_on(first, second)


def test_checkpoints_are_written_when_it_is_time(queues, place, monkeypatch):
    written = []
    monkeypatch.setattr(
        checkpoints, "save_checkpoint", lambda path, question, progress, ranks: written.append(progress)
    )
    problem = Stationary(queues)
    looks = len(ctmc.solve(problem, "gmres").history)
    for minutes, count in ((0, looks), (1e6, 0)):
        written.clear()
        ctmc.solve(problem, "gmres", checkpoint=place, checkpoint_minutes=minutes)
        assert len(written) == count
    written.clear()

    class Asks(StopAfter):
        def wants_checkpoint(self):
            return self.left == 10**6 - 3

    ctmc.solve(problem, "power_iteration", monitor=Asks(10**6), checkpoint=place)
    assert [len(progress.runs[0].history) for progress in written] == [3]
    clock = iter(range(0, 10**9, 7))  # seven seconds a look
    monkeypatch.setattr(ctmc.checkpoint.time, "monotonic", lambda: next(clock))
    written.clear()
    found = ctmc.solve(problem, "power_iteration", checkpoint=place, checkpoint_minutes=5)
    assert 1 <= len(written) <= len(found.history) * 3 * 7 / 300


def test_a_time_limit_leaves_a_checkpoint(queues, place):
    first = ctmc.solve(Stationary(queues), "power_iteration", time_limit=1e-3, check=False, checkpoint=place)
    assert first.status is Status.TIME_LIMIT
    assert ctmc.solve(Stationary(queues), "power_iteration", checkpoint=Checkpoint(place, resume=True)).converged


# ---- disks -----------------------------------------------------------------------------------------------------------


class Countdown:
    """A system call that fails the k-th time."""

    def __init__(self, function, moment, failure):
        self.function, self.moment, self.failure, self.fired = function, moment, failure, False

    def __call__(self, *arguments, **options):
        self.moment -= 1
        if self.moment == 0:
            self.fired = True
            raise self.failure
        return self.function(*arguments, **options)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize(("call", "least"), [("pwrite", 8), ("ftruncate", 1), ("fsync", 2), ("replace", 1)])
def test_a_disk_that_fails_ends_no_solve(tmp_path, monkeypatch, call, least, number):
    chain = ctmc.build("birth_death", births=[1.0] * 9, deaths=[2.0] * 9)
    place = tmp_path / "solve.h5"
    fired = 0
    for moment in range(1, 300):
        place.unlink(missing_ok=True)
        interrupted(Stationary(chain), "power_iteration", 2, place)
        old = place.read_bytes()
        countdown = Countdown(getattr(os, call), moment, OSError(number, os.strerror(number)))
        with monkeypatch.context() as patch:
            patch.setattr(os, call, countdown)
            found = ctmc.solve(
                Stationary(chain), "power_iteration", monitor=StopAfter(6), check=False, checkpoint=place, resume=True
            )
        assert found.status is Status.STOPPED
        assert [entry.name for entry in tmp_path.iterdir()] == ["solve.h5"]
        reached = int(load_checkpoint(place).runs[0].history["iteration"][-1])
        if not countdown.fired:
            assert (found.notes, reached) == ((), 8)
            break
        fired += 1
        assert os.strerror(number) in found.notes[0]
        assert reached in (2, 8)
        # only where the last flush, of the folder, fails the new file stands there
        assert place.read_bytes() == old or (call == "fsync" and reached == 8)
        assert ctmc.solve(Stationary(chain), "power_iteration", checkpoint=place, resume=True).converged
    assert fired >= least


WRITER = """
import os, sys
import numpy as np
from ctmc.checkpoint import Progress, Run
from ctmc.solution import HISTORY
from ctmc.storage import checksum, gate  # so that each child need not import them
from ctmc.storage.checkpoints import load_checkpoint, save_checkpoint

import h5py
checksum.pack(np.zeros(9), 9)
path = sys.argv[1]
rng = np.random.default_rng(2718)
noise = rng.random(20_000)  # of several chunks' worth of time to write
for line in sys.stdin:
    number = int(line)
    child = os.fork()
    if not child:
        while True:
            number += 1
            history = np.zeros(3, HISTORY)
            history["iteration"] = number
            save_checkpoint(path, {"it": "tests"}, Progress((Run({"iterate": noise + number}, {}, history),), 1.0, number))
            os.write(1, b".")
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@pytest.mark.timeout(300 + 5 * KILLS)
def test_kill_at_any_moment_leaves_a_whole_file(tmp_path):
    place = tmp_path / "solve.h5"
    moments = random.Random(31415)
    noise = np.random.default_rng(2718).random(20_000)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    )
    number, seen = 0, set()
    try:
        for _ in range(KILLS):
            writer.stdin.write(b"%d\n" % number)
            writer.stdin.flush()
            child = int(writer.stdout.readline().replace(b".", b""))
            while writer.stdout.read(1) != b".":  # the first file is there
                pass
            time.sleep(moments.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
            while not writer.stdout.readline().endswith(b"gone\n"):
                pass
            progress = load_checkpoint(place, {"it": "tests"})
            assert progress.products > number
            number = progress.products
            (run,) = progress.runs
            np.testing.assert_array_equal(run.arrays["iterate"], noise + number)
            assert (run.history["iteration"] == number).all()
            seen.add(number)
    finally:
        writer.kill()
        writer.communicate()
    assert len(seen) == KILLS
    save_checkpoint(place, {}, Progress((Run({"iterate": noise}, {}, np.zeros(1, HISTORY)),)))
    assert os.listdir(tmp_path) == ["solve.h5"]  # what killed writers have left behind is gone


# ---- refusals --------------------------------------------------------------------------------------------------------


OTHERS = {
    "model": lambda old: (supermarket(**{**QUEUES, "arrival_rate": 4.6}, capacity=4), {}, "gmres"),
    "solver": lambda old: (old, {}, "bicgstab"),
    "option": lambda old: (old, {}, "gmres(restart=9)"),
    "tolerance": lambda old: (old, {"tolerance": 1e-9}, "gmres"),
    "initial": lambda old: (old, {"initial": (0, 0, 1)}, "gmres"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_checkpoint_of_another_question_is_refused(place, what):
    old = supermarket(**QUEUES, capacity=4)
    interrupted(Stationary(old), "gmres", 0, place)
    before = place.read_bytes()
    model, settings, solver = OTHERS[what](old)
    name = "solver" if what == "option" else what
    with pytest.raises(StorageError, match=rf"Cannot resume .*it belongs to the {name} .*allowed is the same\.$"):
        ctmc.solve(Stationary(model, **settings), solver, checkpoint=place, resume=True)
    assert place.read_bytes() == before
    # the same arrays again are the same model
    again = supermarket(**QUEUES, capacity=4)
    assert ctmc.solve(Stationary(again), "gmres", checkpoint=place, resume=True).converged


@pytest.mark.parametrize(
    "change",
    [{"times": [1, 2, 3, 5.0]}, {"reward": ("imbalance",)}, {"initial": (1, 0, 0)}, {"moments": 1}],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_a_question_counts(place, change):
    model = supermarket(**QUEUES, capacity=5)
    problem = AccumulatedReward(model, ("jobs",), (0, 0, 0), np.arange(1.0, 21), moments=2)
    looks = len(ctmc.solve(problem, "uniformization").history)
    assert interrupted(problem, "uniformization", int(0.8 * looks), place).checkpoint == place
    (name,) = change
    with pytest.raises(StorageError, match=f"it belongs to the {name} "):
        ctmc.solve(dataclasses.replace(problem, **change), "uniformization", checkpoint=place, resume=True)


def test_targets_that_are_functions_are_told_apart_by_their_states(place):
    model = supermarket(**QUEUES, capacity=5)

    def waiting(least):
        def many(states):
            return states.sum(axis=1) >= least

        return FirstPassage(model, many, (0, 0, 0))

    interrupted(waiting(8), "absorption_krylov", 0, place)
    with pytest.raises(ModelError, match="another target"):
        ctmc.solve(waiting(9), "absorption_krylov", checkpoint=place, resume=True)
    assert ctmc.solve(waiting(8), "absorption_krylov", checkpoint=place, resume=True).converged


def test_another_version_is_refused(queues, place, monkeypatch):
    about = checkpoints.about
    monkeypatch.setattr(checkpoints, "about", lambda: {**about(), "versions": {"ctmc-lab": "0.0.9"}})
    interrupted(Stationary(queues), "gmres", 0, place)
    monkeypatch.setattr(checkpoints, "about", about)
    with pytest.raises(StorageError, match=r"it belongs to the version 0\.0\.9"):
        ctmc.solve(Stationary(queues), "gmres", checkpoint=place, resume=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"resume": True}, ["there is no such checkpoint"]),
        ({"checkpoint_minutes": -1}, ["minutes is -1", "allowed is"]),
        ({"checkpoint_minutes": float("nan")}, ["minutes is nan", "allowed is"]),
        ({"checkpoint_minutes": "5"}, ["minutes is '5'", "allowed is"]),
        ({"resume": 1}, ["resume is 1", "allowed are"]),
        ({"checkpoint": 7}, ["path is 7", "allowed is"]),
        ({"checkpoint": ""}, ["path is ''", "allowed is"]),
        ({"checkpoint": "a/b/solve.h5"}, ["there is no folder"]),
        ({"checkpoint": None, "resume": True}, ["resume is True", "no checkpoint is given"]),
        ({"checkpoint": None, "checkpoint_minutes": 3}, ["checkpoint_minutes is 3", "no checkpoint is given"]),
        ({"resume": True, "start": np.ones(4)}, ["start is given", "allowed is one of both"]),
    ],
)
def test_wrong_arguments_are_refused_at_once(tmp_path, arguments, words):
    chain = ctmc.build("birth_death", births=[1.0] * 3, deaths=[2.0] * 3)
    with pytest.raises((ModelError, StorageError)) as caught:
        ctmc.solve(Stationary(chain), "gmres", **{"checkpoint": tmp_path / "new.h5", **arguments})
    for word in words:
        assert word in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_nothing_but_a_checkpoint_is_replaced(queues, tmp_path):
    ctmc.save(tmp_path / "model.h5", queues)
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("model.h5", "notes.txt"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(StorageError, match=name):
            ctmc.solve(Stationary(queues), "gmres", checkpoint=tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_damaged_checkpoints_give_a_sentence_or_what_they_held(place):
    chain = ctmc.build("birth_death", births=[1.0] * 9, deaths=[2.0] * 9)
    interrupted(Stationary(chain), "power_iteration", 5, place)
    good = place.read_bytes()
    held = load_checkpoint(place)
    rng = random.Random(161803)
    refused = 0
    for trial in range(400):
        bad = bytearray(good)
        if trial % 4 == 0:
            bad = bad[: rng.randrange(len(bad))]
        else:
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        place.write_bytes(bad)
        try:
            found = load_checkpoint(place)
        except StorageError as error:
            refused += len(str(error).splitlines()) == 1
            continue
        assert (found.products, found.seconds) == (held.products, held.seconds)
        np.testing.assert_array_equal(found.runs[0].arrays["iterate"], held.runs[0].arrays["iterate"])
        np.testing.assert_array_equal(found.runs[0].history, held.runs[0].history)
    assert refused > 200


# ---- the command line ------------------------------------------------------------------------------------------------


class Process:
    """``ctmc`` as a process of its own in a folder with the model ``slow.h5``."""

    def __init__(self, folder, *arguments):
        environment = {**os.environ, "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ctmc", *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def begun(self):
        """Wait until the solver runs."""
        seen = b""
        while b"Stationary on Generator" not in seen:
            line = self.process.stderr.readline()
            assert line, seen
            seen += line
        time.sleep(0.7)
        return self

    def send(self, number):
        self.process.send_signal(number)
        return self

    def end(self):
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out.decode(), err.decode()


SOLVE = ("solve", "slow.h5", "--solver", "power_iteration(max_iterations=10000000)", "--tolerance", "1e-13")
PLACE = Path("slow.solutions") / "stationary-power_iteration.checkpoint.h5"


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Return a folder with a model that power iteration needs long for."""
    folder = tmp_path_factory.mktemp("slow")
    ctmc.save(folder / "slow.h5", supermarket(**{**QUEUES, "arrival_rate": 5.97}, capacity=59))
    ctmc.save(folder / "quick.h5", supermarket(**QUEUES, capacity=12))
    return folder


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow)],
)
def test_a_signal_leaves_a_checkpoint_and_says_how_to_go_on(slow, number, code):
    if number == signal.SIGINT:  # asks for a checkpoint first
        process = Process(slow, *SOLVE, "-vv").begun().send(signal.SIGUSR1)
        end = time.monotonic() + 20
        while not (slow / PLACE).exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        assert process.process.poll() is None
    else:
        process = Process(slow, *SOLVE, "-vv").begun()
    returned, out, err = process.send(number).end()
    assert returned == code, err
    assert f"What was reached stands in {PLACE}" in err
    assert "Traceback" not in err
    command = err.split("Go on with: ctmc ")[1].splitlines()[0]
    assert command.endswith("--resume")
    reached = load_checkpoint(slow / PLACE).products
    if number != signal.SIGINT:
        (slow / PLACE).unlink()
        return
    returned, out, err = Process(slow, *SOLVE, "--resume", "--time-limit", "0.2", "--json").end()
    assert returned == 1, err
    found = json.loads(out)
    assert found["status"] == "TIME_LIMIT"
    assert found["products"] > reached
    assert found["checkpoint"] == str(PLACE)
    returned, out, err = Process(slow, "info", "slow.h5", "--json").end()
    assert [entry["file"] for entry in json.loads(out)["solutions"]] == [
        "slow.solutions/stationary-power_iteration-unfinished.h5"
    ]
    (slow / PLACE).unlink()


def test_a_kill_after_a_termination_finds_a_checkpoint(slow):
    """As schedulers do it.  CTMC_CAPACITY=341 tries it with 40 million states."""
    capacity, place = int(os.environ.get("CTMC_CAPACITY", "59")), slow / "terminated.h5"
    model = "slow.h5"
    if capacity != 59:
        model = "large.h5"
        ctmc.save(slow / model, supermarket(**{**QUEUES, "arrival_rate": 5.97}, capacity=capacity))
    asked = ("solve", model, *SOLVE[2:], "-vv", "--checkpoint", str(place), "--checkpoint-minutes", "60")
    Process(slow, *SOLVE, "--no-save", "--time-limit", "0.001").end()  # so that loops are compiled
    process = Process(slow, *asked).begun().send(signal.SIGTERM)
    end = time.monotonic() + 30
    while process.process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    process.send(signal.SIGKILL).end()
    (run,) = load_checkpoint(place).runs
    assert run.arrays["iterate"].size >= capacity**3
    assert run.arrays["iterate"].sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.slow
def test_resume_on_the_command_line_converges(slow):
    code, out, err = Process(
        slow, "solve", "quick.h5", "--solver", "gauss_seidel", "--time-limit", "0.001", "--json"
    ).end()
    assert (code, json.loads(out)["status"]) == (1, "TIME_LIMIT"), err
    place = slow / "quick.solutions" / "stationary-gauss_seidel.checkpoint.h5"
    code, _, err = Process(
        slow, "solve", "quick.h5", "--solver", "gauss_seidel", "--sweeps-per-check", "9", "--resume"
    ).end()
    assert code == 2
    assert "it belongs to the solver" in err
    code, out, err = Process(slow, "solve", "quick.h5", "--solver", "gauss_seidel", "--resume", "--json").end()
    assert (code, json.loads(out)["status"]) == (0, "CONVERGED"), err
    assert not place.exists()


def test_the_second_ctrl_c_leaves_at_once_and_the_file_is_whole(slow):
    place = slow / "own.h5"
    process = Process(slow, *SOLVE, "-vv", "--checkpoint", str(place), "--checkpoint-minutes", "0").begun()
    begin = time.monotonic()
    code, _, err = process.send(signal.SIGINT).send(signal.SIGINT).end()
    assert code == 130, err
    assert time.monotonic() - begin < 30
    assert load_checkpoint(place).runs[0].arrays["iterate"].shape == (216000,)
    assert not (slow / "slow.solutions" / "own.checkpoint.h5").exists()
