"""Comparing solvers: runs that crash, eat memory or never end are rows; nothing is lost, left behind or done twice."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest

import ctmc
from ctmc.cli import main
from ctmc.comparison import compare as comparing
from ctmc.comparison.compare import Watcher, compare
from ctmc.comparison.files import load_comparison, save_comparison
from ctmc.comparison.groups import memory_group
from ctmc.comparison.isolation import Warden, WardenError
from ctmc.comparison.settings import Entry, Settings
from ctmc.comparison.studies import entries_of_files, entries_of_study
from ctmc.errors import CTMCError, StorageError, StudyError
from ctmc.storage.store import Store
from ctmc.study.solver_grid import solvers_of
from ctmc.study.study import parse_study

pytestmark = pytest.mark.timeout(600)

MARK = "CTMC_TEST_MARK"

PLUGIN = '''
import ctypes, os, subprocess, sys, time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import ctmc
from ctmc.solution import Outcome, Status


@dataclass(frozen=True, kw_only=True)
class Base:
    """A solver that misbehaves."""

    solves: ClassVar = (ctmc.Stationary,)
    needs: ClassVar = ctmc.Generator

    def run(self, problem, trace):
        self.misbehave()
        return ctmc.registry.make_solver("gth").run(problem, trace)

class Segfaults(Base):
    def misbehave(self):
        ctypes.string_at(0)

class Exits(Base):
    def misbehave(self):
        print("\\x1b[31mgiving up", flush=True)
        os._exit(3)

class Eats(Base):
    def misbehave(self):
        kept = []
        while True:
            kept.append(np.ones(2_000_000))

class Gulps(Base):
    def misbehave(self):
        np.ones(1_000_000_000)

class NeverEnds(Base):
    def misbehave(self):
        while True:
            pass

class Forks(Base):
    def misbehave(self):
        # two generations, in sessions of their own
        code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)"
        subprocess.run([sys.executable, "-c", code], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)

class Talks(Base):
    def misbehave(self):
        for _ in range(1024):
            os.write(1, b"x" * 2**20)

class Compiles(Base):
    """Makes compiled loops in the first two solves of a process, for longer than a solver is waited for."""

    made = 0

    def run(self, problem, trace):
        from numba.core import event

        if Compiles.made < 2:
            Compiles.made += 1
            with event.trigger_event("numba:compile"):
                time.sleep(5.5)
        return ctmc.registry.make_solver("power_iteration").run(problem, trace)

class Raises(Base):
    def misbehave(self):
        raise RuntimeError("<b>no</b>")

class Lies(Base):
    def run(self, problem, trace):
        return Outcome(np.full(problem.model.size, 1 / problem.model.size), Status.CONVERGED)

class Waits(Base):
    def misbehave(self):
        time.sleep(float(os.environ.get("CTMC_TEST_WAIT", "1000")))
'''
NAMES = {"segfaults": "Segfaults", "exits": "Exits", "eats": "Eats", "never_ends": "NeverEnds", "forks": "Forks",
         "talks": "Talks", "raises": "Raises", "lies": "Lies", "waits": "Waits", "gulps": "Gulps",
         "compiles": "Compiles"}  # fmt: skip


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """An installed distribution of solvers that misbehave."""
    site = tmp_path / "site"
    info = site / "misbehaving-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: misbehaving\nVersion: 1.0\n")
    points = "".join(f"{name} = misbehaving:{kind}\n" for name, kind in NAMES.items())
    (info / "entry_points.txt").write_text(f"[ctmc.solvers]\n{points}")
    (site / "misbehaving.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv(MARK, str(tmp_path))
    yield site
    sys.modules.pop("misbehaving", None)


@pytest.fixture
def queue(tmp_path):
    path = tmp_path / "queue.h5"
    ctmc.save(path, ctmc.build("birth_death", births=[1.0] * 40, deaths=[2.0] * 40))
    return path


def marked(tmp_path):
    """Return the processes that carry the test's mark in their environment, this one apart."""
    found = []
    for process in psutil.process_iter():
        try:
            marks = process.environ().get(MARK) == str(tmp_path)
            if marks and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


def gone(tmp_path, seconds=5.0):
    end = time.monotonic() + seconds
    while marked(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    return not marked(tmp_path)


class Counting(Watcher):
    def __init__(self, stop_after=None):
        self.labels, self.lines, self.done, self.stop_after = [], [], 0, stop_after

    def began(self, number, label):
        self.labels.append(label)

    def ended(self, number, run):
        self.done += 1

    def news(self, text):
        self.lines.append(text)

    def stopped(self):
        return self.stop_after is not None and self.done >= self.stop_after


def test_making_compiled_loops_is_no_part_of_a_solve(plugins, queue):
    """As on a machine where nothing has been compiled yet: it takes longer than the limit, and the solver may say so at first."""
    (run,) = compare([queue], "compiles", time_limit=1.0, repeats=2).runs
    assert run.status == "CONVERGED"
    assert run.first_seconds > 5.5
    assert len(run.seconds) == 2
    assert max(run.seconds) < 1


def test_whatever_a_solver_does_is_a_row(tmp_path, plugins, queue):
    found = compare(
        [queue],
        ["gth", *(name for name in NAMES if name not in ("gulps", "compiles")), "gmres"],
        time_limit=1.0,
        memory_limit="300MiB",
    )
    runs = {run.solver: run for run in found.runs}
    assert [runs[name].status for name in ("gth", "gmres", "forks", "talks")] == ["CONVERGED"] * 4
    expected = {
        "segfaults": ("CRASHED", "signal 11", "signal 11 (SIGSEGV)"),
        "exits": ("CRASHED", "exit code 3", "exit code 3; it wrote: \\x1b[31mgiving up."),
        "eats": ("MEMORY_LIMIT", "memory", "limit of 300 MiB"),
        "never_ends": ("TIME_LIMIT", "walltime", "limit of 1 s"),
        "waits": ("TIME_LIMIT", "walltime", "limit of 1 s"),
        "raises": ("BREAKDOWN", "", "RuntimeError: <b>no</b>"),
        "lies": ("INACCURATE", "", "above the tolerance"),
    }
    for name, (status, reason, words) in expected.items():
        run = runs[name]
        assert (run.status, run.reason) == (status, reason), (name, run)
        assert words in run.message, (name, run.message)
        assert run.message.isprintable()
        assert run.wall_seconds < 30
        assert not run.converged
    assert runs["eats"].allocated_bytes > 300 * 2**20
    assert runs["eats"].allocated_bytes < 2000 * 2**20
    # what a liar says is measured all the same
    exact = 2.0 ** -np.arange(41)
    exact /= exact.sum()
    assert runs["lies"].distance == pytest.approx(np.abs(exact - 1 / 41).sum(), rel=1e-12)
    assert found.complete
    assert {run.solver for run in found.failures} == set(expected)
    assert gone(tmp_path)


def test_what_is_known_is_not_repeated_and_what_differs_is(tmp_path, queue):
    output = tmp_path / "found.h5"
    first, second, third = Counting(), Counting(), Counting()
    before = compare([queue], "gth,gmres", output, watcher=first)
    assert first.done == 2
    again = compare([queue], "gth,gmres", output, watcher=second)
    assert second.labels == []
    assert [run.seconds for run in again.runs] == [run.seconds for run in before.runs]
    assert len(again.sessions) == 1
    assert again.models == before.models
    assert again.models["queue"].states == 41
    more = compare([queue], "gth,gmres", output, watcher=third, tolerances=(1e-12, 1e-6))
    assert third.done == 2  # those of the other tolerance
    assert [run.session for run in more.runs] == [0, 0, 1, 1]
    stored = load_comparison(output)
    assert [run.key for run in stored.runs] == [run.key for run in more.runs]
    for run, kept in zip(more.runs, stored.runs, strict=True):
        assert run.measures == kept.measures
        np.testing.assert_array_equal(run.history, kept.history)
    changed = ctmc.build("birth_death", births=[1.5] * 40, deaths=[2.0] * 40)
    ctmc.save(queue, changed, overwrite=True)
    fourth = Counting()
    compare([queue], "gth,gmres", output, watcher=fourth)
    assert fourth.done == 2


def test_what_is_not_asked_for_again_stays(tmp_path, queue):
    output, other = tmp_path / "found.h5", tmp_path / "other.h5"
    ctmc.save(other, ctmc.build("birth_death", births=[1.0] * 9, deaths=[2.0] * 9))
    first = compare([queue], "gth", output)
    both = compare([other], "gth", output)
    assert [(run.model, run.session) for run in both.runs] == [("other", 1), ("queue", 0)]
    stored = load_comparison(output)
    assert stored.runs[1].seconds == first.runs[0].seconds
    assert stored.models["queue"] == first.models["queue"]
    # but nothing about a model that is another one now
    ctmc.save(other, ctmc.build("birth_death", births=[1.5] * 9, deaths=[2.0] * 9), overwrite=True)
    changed = compare([other], "sparse_lu", output)
    assert [(run.model, run.solver) for run in changed.runs] == [("other", "sparse_lu"), ("queue", "gth")]


def test_an_interrupted_comparison_goes_on(tmp_path, queue):
    output = tmp_path / "found.h5"
    found = compare([queue], "gth,gmres,sparse_lu", output, watcher=Counting(stop_after=1))
    assert found.stopped
    assert not found.complete
    assert [run.status for run in found.runs] == ["CONVERGED", "NOT_RUN", "NOT_RUN"]
    rest = Counting()
    whole = compare([queue], "gth,gmres,sparse_lu", output, watcher=rest)
    assert rest.done == 2
    assert whole.complete
    assert whole.runs[0].seconds == found.runs[0].seconds


def fake_groups(tmp_path, version):
    """A folder that looks like control groups: this process may make one, and the kernel has ended something in it."""
    own = tmp_path / ("memory/here" if version == "cgroup v1" else "here")
    own.mkdir(parents=True)
    groups = tmp_path / "groups"
    groups.write_text("5:cpu:/\n4:memory:/here\n" if version == "cgroup v1" else "5:cpu:/\n0::/here\n")
    return own, groups


@pytest.mark.parametrize("version", ["cgroup v1", "cgroup v2"])
def test_groups_of_processes_of_both_versions(tmp_path, monkeypatch, version):
    own, groups = fake_groups(tmp_path, version)
    limit, events = {
        "cgroup v1": ("memory.limit_in_bytes", "memory.oom_control"),
        "cgroup v2": ("memory.max", "memory.events"),
    }[version]
    made = pathlib.Path.mkdir

    def kernel(path, *arguments, **options):
        made(path, *arguments, **options)
        for name in (limit, events, "cgroup.procs", *(["memory.swap.max"] if version == "cgroup v2" else [])):
            (path / name).write_text("")

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "mkdir", kernel)
        group = memory_group(10**9, mount=tmp_path, groups=groups)
    assert group.version == version
    assert group.path.parent == own
    assert int((group.path / limit).read_text()) == 10**9 + 64 * 2**20
    assert not group.ran_out
    (group.path / events).write_text("low 0\noom_kill 2\n")
    assert group.ran_out
    group.add(1234)
    assert (group.path / "cgroup.procs").read_text() == "1234"


def test_where_no_group_can_be_made_there_is_none(tmp_path):
    own, groups = fake_groups(tmp_path, "cgroup v2")
    assert memory_group(10**9, mount=tmp_path, groups=groups) is None  # no memory controller in what was made
    assert list(own.iterdir()) == []
    assert memory_group(10**9, mount=tmp_path / "nowhere", groups=groups) is None
    assert memory_group(10**9, mount=tmp_path, groups=tmp_path / "no file") is None


def test_the_kernel_keeps_the_limit(plugins, queue):
    """One that eats faster than the warden looks."""
    group = memory_group(10**9)
    if group is None:
        pytest.skip("no control group with memory can be made here")
    group.remove()
    (run,) = compare([queue], "gulps", memory_limit="300MiB").runs
    assert (run.status, run.reason) == ("MEMORY_LIMIT", "memory")
    assert run.isolation.startswith("watched, cgroup v")
    assert run.peak_bytes < 700 * 2**20


def test_several_at_once_come_out_in_order(tmp_path, plugins, queue):
    found = compare([queue], "gth,segfaults,gmres,sparse_lu", jobs=3, threads=1)
    assert [(run.solver, run.status) for run in found.runs] == [
        ("gth", "CONVERGED"), ("segfaults", "CRASHED"), ("gmres", "CONVERGED"), ("sparse_lu", "CONVERGED"),
    ]  # fmt: skip
    assert found.sessions[0]["jobs"] == 3
    assert gone(tmp_path)


def test_a_full_disk_loses_nothing(tmp_path, queue, monkeypatch):
    output = tmp_path / "found.h5"
    compare([queue], "gth", output)
    before = output.read_bytes()

    def full(path, found):
        raise StorageError(f"Cannot write {path}: No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(comparing, "save_comparison", full)
        watcher = Counting()
        found = compare([queue], "gth,gmres", output, watcher=watcher)
    assert "No space left" in found.unsaved
    assert [run.status for run in found.runs] == ["CONVERGED"] * 2
    assert sum("not stored" in line for line in watcher.lines) == 1
    assert output.read_bytes() == before
    rest = Counting()
    assert compare([queue], "gth,gmres", output, watcher=rest).unsaved == ""
    assert rest.done == 1


def test_the_same_output_at_once(tmp_path, queue):
    output = tmp_path / "found.h5"

    class Second(Counting):
        def ended(self, number, run):
            with pytest.raises(StudyError, match=rf"another run .*{os.getpid()}.* is writing"):
                compare([queue], "gth", output)
            super().ended(number, run)

    watcher = Second()
    compare([queue], "gth", output, watcher=watcher)
    assert watcher.done == 1


@pytest.fixture
def command():
    """Return a function that starts ``ctmc compare``; what it has started ends with the test."""
    started = []

    def start(*arguments, **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "ctmc", "compare", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(condition, seconds=250.0):  # where nothing is compiled yet, every process compiles
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_parent_that_is_ended_leaves_no_process_and_a_whole_file(tmp_path, plugins, queue, number, command):
    output = tmp_path / "found.h5"
    asked = (queue, "--solvers", "gth,forks,waits,gmres", "--time-limit", "100", "-o", output)
    running = command(*asked)
    # the third runs, the first two are stored
    wait_for(lambda: output.exists() and sum(run.converged for run in load_comparison(output).runs) == 2)
    running.send_signal(number)
    running.communicate(timeout=20)
    assert running.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert gone(tmp_path)
    stored = load_comparison(output)
    assert [run.status for run in stored.runs] == ["CONVERGED", "CONVERGED", "NOT_RUN", "NOT_RUN"]
    assert ctmc.verify(output).trusted
    again = command(*asked, "--json", CTMC_TEST_WAIT="0.1")
    out, news = again.communicate(timeout=250)
    assert again.returncode == 0, news
    document = json.loads(out)
    assert document["complete"]
    assert [run["status"] for run in document["runs"]] == ["CONVERGED"] * 4
    assert [run["session"] for run in document["runs"]] == [0, 0, 1, 1]


@pytest.mark.needs_compilation
def test_what_is_loaded_before_the_forks_has_run_a_loop_but_none_in_parallel():
    """The first loop of a process costs most; threads of parallel ones would end every fork."""
    code = """
        import numba
        from ctmc.comparison.attempt import prepare
        from ctmc.storage.checksum import fletcher32
        print(len(fletcher32.signatures))
        prepare()
        print(len(fletcher32.signatures))
        try:
            print(numba.threading_layer())
        except ValueError:
            print("no threads")
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == ["0", "1", "no threads"]


def test_a_warden_that_is_killed_costs_one_row(queue):
    with Warden(comparing.ATTEMPT) as warden:
        warden.begin({})
        process = warden._process
        process.kill()
        process.wait()
        with pytest.raises(WardenError, match="died with code -9"):
            warden.poll(60.0)


def test_warm_starts_are_methods_of_their_own(tmp_path):
    paths = []
    for number, rate in enumerate((4.0, 4.05)):
        paths.append(tmp_path / f"queues{number}.h5")
        ctmc.save(
            paths[-1], ctmc.build("supermarket", service_rates=[3, 2, 1], arrival_rate=rate, choices=2, capacity=6)
        )
    found = compare(paths, "power_iteration,gth", warm=True)
    labels = [(run.model, run.label) for run in found.runs]
    assert labels == [
        ("queues0", "power_iteration"), ("queues0", "gth"),
        ("queues1", "power_iteration"), ("queues1", "power_iteration (warm)"), ("queues1", "gth"), ("queues1", "gth (warm)"),
    ]  # fmt: skip
    runs = dict(zip(labels, found.runs, strict=True))
    cold, warm = (runs["queues1", f"power_iteration{text}"] for text in ("", " (warm)"))
    assert warm.converged
    assert warm.products < cold.products
    assert warm.distance < 1e-9
    # also where the model before has nothing left to do, and never from what does not fit
    output, smaller = tmp_path / "found.h5", tmp_path / "smaller.h5"
    ctmc.save(smaller, ctmc.build("birth_death", births=[1.0], deaths=[2.0]))
    compare(paths[:1], "power_iteration", output)
    again = compare([*paths, smaller], "power_iteration", output, warm=True)
    runs = {(run.model, run.start): run for run in again.runs}
    assert runs["queues1", "warm"].products == warm.products
    assert runs["smaller", "warm"].status == "REFUSED"
    assert "the model before it has 343 states" in runs["smaller", "warm"].message


def test_truncations_meet_their_qbd(tmp_path):
    path = tmp_path / "fork_join.h5"
    ctmc.save(path, ctmc.build("fork_join", service_rates=[5, 2, 1], tasks=3, arrival_rate=1.5))
    found = compare([path], "all", levels=(8, 16), time_limit=20)
    short, long = "fork_join (8 levels)", "fork_join (16 levels)"
    assert list(found.models) == ["fork_join", short, long]
    assert {found.models[name].family for name in found.models} == {"fork_join"}
    exact = ctmc.solve(ctmc.Stationary(ctmc.load(path)), "cyclic_reduction")
    for name, levels in ((short, 8), (long, 16)):
        runs = [run for run in found.runs if run.model == name and run.converged]
        assert len(runs) > 5
        for run in runs:
            assert run.truncated_mass == pytest.approx(exact.value.tail(levels), rel=1e-9)
            assert 0 < run.measure_difference < 20 * run.truncated_mass * levels
            assert not run.disagrees
    assert {run.solver for run in found.runs if run.model == "fork_join"} >= {"logarithmic_reduction", "newton"}
    # methods for the other kind are no rows where all were asked for
    assert not any(run.solver == "gth" and run.model == "fork_join" for run in found.runs)


def test_a_qbd_at_other_rates_is_a_qbd(tmp_path):
    study = parse_study("""
        [models.queue]
        builder = "fork_join"
        service_rates = [2, 1]
        tasks = 2
        sweep = {arrival_rate = [0.3, 0.4]}
        [compare]
        solvers = "all"
        levels = [12]
        """)
    entries = list(entries_of_study(study, Store(tmp_path)))
    assert ctmc.storage.read_info(entries[1].path)["kind"] == "variant"
    how = {**study.compare.how, "time_limit": 20}
    found = compare(entries, "logarithmic_reduction,gth", **how)
    ends = {(run.model, run.solver): run.status for run in found.runs}
    for point in ("0.3", "0.4"):
        assert ends[f"queue (arrival_rate={point})", "logarithmic_reduction"] == "CONVERGED"
        assert ends[f"queue (arrival_rate={point}) (12 levels)", "gth"] == "CONVERGED"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gmres(restart=20..10)", "restart is 20..10; allowed is a range"),
        ("gmres(restart=0..10)", "restart is 0..10; allowed is a range"),
        ("gauss_seidel(relaxation=0.5..1.5:0)", "allowed is a range"),
        ("gauss_seidel(relaxation=0.0001..1:0.0001)", "more than 1000"),
        ("gmress", "did you mean 'gmres'"),
        ("gmres(restar=3)", "restar"),
        ("", "allowed is 'all', or names"),
        ("chebyshev", "chebyshev does not take stationary problems"),
    ],
)
def test_wrong_solvers_are_refused_in_a_sentence(text, sentence):
    with pytest.raises(CTMCError) as caught:
        solvers_of(text)
    assert sentence in str(caught.value)


def test_ranges_of_options():
    assert solvers_of("gauss_seidel(relaxation=0.8..1.2)") == [
        "gauss_seidel(relaxation=0.8)", "gauss_seidel(relaxation=0.9)", "gauss_seidel",
        "gauss_seidel(relaxation=1.1)", "gauss_seidel(relaxation=1.2)",
    ]  # fmt: skip
    assert solvers_of("gmres(restart=10..35:10)") == ["gmres(restart=10)", "gmres(restart=20)", "gmres(restart=30)"]
    assert len(solvers_of("all")) == len(set(solvers_of("all"))) > 15
    assert "chebyshev" in solvers_of("all", "transient")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"repeats": 0}, "repeats is 0; allowed is a whole number from 1 to 1000"),
        ({"jobs": 1.5}, "jobs is 1.5"),
        ({"time_limit": -1.0}, "time_limit is -1"),
        ({"tolerances": (2.0,)}, "tolerance is 2.0"),
        ({"levels": (0,)}, "levels has 0"),
        ({"warm": True, "problem": "transient"}, "warm starts belong to stationary"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(settings, sentence):
    with pytest.raises(StudyError) as caught:
        Settings(("gth",), **settings)
    assert sentence in str(caught.value)


def test_models_that_cannot_be_had_are_rows(tmp_path, queue):
    missing = tmp_path / "missing.h5"
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(queue.read_bytes()[:-100])
    found = compare(list(entries_of_files([str(missing), str(damaged), str(queue)], lambda: None)), "gth")
    assert [run.status for run in found.runs] == ["NO_MODEL", "NO_MODEL", "CONVERGED"]
    assert "missing.h5" in found.runs[0].message
    assert found.complete
    with pytest.raises(StudyError, match="two models have the name 'x'"):
        compare([Entry("x", queue), Entry("x", queue)], "gth")
    with pytest.raises(StudyError, match="needs one or more models"):
        compare([], "gth")


def test_the_output_is_never_somebody_elses_file(tmp_path, queue):
    other = tmp_path / "thesis.h5"
    other.write_text("my only copy")
    with pytest.raises(StudyError, match="never replaced"):
        compare([queue], "gth", other)
    with pytest.raises(StudyError, match="never replaced"):
        compare([queue], "gth", queue)
    assert other.read_text() == "my only copy"
    with pytest.raises(StudyError, match="no folder"):
        compare([queue], "gth", tmp_path / "nowhere" / "found.h5")


STUDY = """
title = "Which"
[models.small]
builder = "birth_death"
births = [1.0, 1.0]
deaths = [2.0, 2.0]
[models.swept]
builder = "tandem_network"
service_rates = [3, 2]
total_capacity = 4
[models.swept.sweep]
arrival_rate = [0.5, 5]
[compare]
solvers = "gth,gmres(restart=20|40)"
time_limit = 20
"""


def test_a_study_with_a_table_compare(tmp_path):
    study = parse_study(STUDY)
    assert study.solves == ()
    entries = list(entries_of_study(study, Store(tmp_path)))
    assert [entry.name for entry in entries] == ["small", "swept (arrival_rate=0.5)", "swept (arrival_rate=5)"]
    assert [entry.family for entry in entries] == ["small", "swept", "swept"]
    assert entries[1].recipe == "ctmc build tandem_network --service-rates 3,2 --total-capacity 4 --arrival-rate 0.5"
    found = compare(entries, study.compare.solvers, **study.compare.how)
    assert len(found.runs) == 9
    assert all(run.converged for run in found.runs)
    assert {run.solver for run in found.runs} == {"gth", "gmres(restart=20)", "gmres"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('solvers = "gmress"', "line 14: there is no solver 'gmress'"),
        ("solvers = 3", "line 14: solvers is 3; allowed is text"),
        ('solvers = "gth"\ntolerances = [2]', "line 15: tolerances is [2]"),
        ('solvers = "gth"\nlevels = [0]', "line 15: levels is [0]"),
        ('solvers = "gth"\nwarm = 1', "line 15: warm is 1"),
        ('solvers = "gth"\njobs = 0', "line 15: jobs is 0"),
        ('solvers = "gth"\nmemory_limit = "lots"', "line 15: memory_limit is 'lots'"),
        ('solvers = "gth"\ntimes = [1]', "line 15: times is given for a stationary problem"),
        ('solvers = "gth"\nmodels = ["nobody"]', "line 15: there is no model 'nobody'"),
        ('solver = "gth"', "line 14: there is no key of [compare] 'solver'"),
    ],
)
def test_wrong_keys_of_compare_have_their_line(line, words):
    text = STUDY.replace('solvers = "gth,gmres(restart=20|40)"', line)
    with pytest.raises(StudyError) as caught:
        parse_study(text, "which.toml")
    assert words in str(caught.value)


def test_a_damaged_comparison_is_no_comparison(tmp_path, queue):
    output = tmp_path / "found.h5"
    found = compare([queue], "gth", output)
    for change in ({"status": "WONDERFUL"}, {"model": "other"}, {"session": 7}):
        import dataclasses

        wrong = dataclasses.replace(found, runs=(dataclasses.replace(found.runs[0], **change),))
        save_comparison(output, wrong)
        with pytest.raises(StorageError, match="is not a whole comparison"):
            load_comparison(output)


def test_names_are_inert_on_the_terminal_and_in_csv(tmp_path, queue, command):
    hostile = tmp_path / "=cmd|' [bold]\x1b[31m<img src=x>.h5"
    os.rename(queue, hostile)
    found = command(hostile, "--solvers", "gth", "-o", tmp_path / "o.h5", "--csv")
    out, news = found.communicate(timeout=250)
    assert found.returncode == 0, news
    assert "\x1b" not in out + news
    assert out.splitlines()[1].startswith("'=cmd|' [bold]\\x1b[31m<img src=x>,gth,")


def test_info_tells_what_a_comparison_holds(tmp_path, queue, capsys):
    output = tmp_path / "found.h5"
    compare([queue], "gth", output)
    assert main(["info", str(output), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["runs"], told["status"]) == ("comparison", 1, "1 CONVERGED")
    assert told["models"] == ["queue"]
    assert ctmc.verify(output).trusted


@pytest.mark.parametrize("place", ["../outside.h5", "/tmp/outside.h5", "link.h5"])
def test_a_study_writes_below_the_current_folder_only(tmp_path, monkeypatch, capsys, place):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    (inside / "link.h5").symlink_to(tmp_path / "elsewhere.h5")
    (inside / "which.toml").write_text(f'output = "{place}"\n{STUDY}')
    assert main(["compare", "which.toml"]) == 2
    error = capsys.readouterr().err
    assert "current folder" in error
    assert sorted(os.listdir(tmp_path)) == ["inside"]
    assert sorted(os.listdir(inside)) == ["link.h5", "which.toml"]


def test_help_teaches_by_example():
    found = subprocess.run(
        [sys.executable, "-m", "ctmc", "compare", "--help"], capture_output=True, text=True, check=True
    )
    assert textwrap.dedent("ctmc compare *.h5 --solvers") in found.stdout
