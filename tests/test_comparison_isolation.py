"""Runs that crash, eat memory or never end, and parents that are killed: nothing is lost, left behind or done twice."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import comparison_examples
import pytest
from comparison_examples import Counting, gone

import ctmc
from ctmc.cli import main
from ctmc.comparison import compare as comparing
from ctmc.comparison.compare import compare
from ctmc.comparison.files import load_comparison
from ctmc.comparison.groups import memory_group
from ctmc.comparison.isolation import Warden, WardenError
from ctmc.errors import StorageError, StudyError

plugins = comparison_examples.plugins
queue = comparison_examples.queue
command = comparison_examples.command
pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_making_compiled_loops_is_no_part_of_a_solve(plugins, queue):
    """As on a machine where nothing has been compiled yet: it takes longer than the limit, and the solver may say so at first."""
    (run,) = compare([queue], "compiles", time_limit=1.0, repeats=2).runs
    assert run.status == "CONVERGED"
    assert run.first_seconds > 5.5
    assert len(run.seconds) == 2
    assert max(run.seconds) < 1


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


def test_the_command_names_a_file_of_results_only_where_it_stands(tmp_path, queue, monkeypatch, capsys):
    output = tmp_path / "found.h5"
    arguments = ["compare", str(queue), "--solvers", "gth", "-o", str(output)]

    def full(path, found):
        raise StorageError(f"Cannot write {path}: No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(comparing, "save_comparison", full)
        assert main(arguments) == 2
    told = capsys.readouterr()
    assert "gth" in told.out
    assert "1 of 1 runs have a certified answer.\n" in told.err
    assert "Results:" not in told.out + told.err
    assert f"ctmc: Cannot write {output}: No space left on device." in (told.out + told.err).splitlines()
    assert not output.exists()
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert f"1 of 1 runs have a certified answer.  Results: {output}; 'ctmc report {output}'" in told.err
    assert load_comparison(output).complete


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


def wait_for(condition, seconds=250.0):  # where nothing is compiled yet, every process compiles
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
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
