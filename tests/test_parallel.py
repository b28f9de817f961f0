"""Studies in parallel: the same rows as one after another, workers that die, signals, and clusters."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import psutil
import pytest

from ctmc.cli import main
from ctmc.cli.live import LiveTable
from ctmc.cli.output import Output
from ctmc.errors import StudyError
from ctmc.storage.container import read_container
from ctmc.study import Watcher, parse_study, run_study
from ctmc.study.executors import Processes, checked_scheduler, opened
from ctmc.study.parallel import ParallelWork
from ctmc.study.results import open_store_of, plain_row
from ctmc.study.tasks import Orders, tasks_of, work_off

TEXT = """
[models.queue]
builder = "tandem_network"
service_rates = [2.0, 1.8]
capacity = [4, 4]
[models.queue.sweep]
arrival_rate = [1.2, 0.8, 1.0]
[models.small]
builder = "birth_death"
births = [1.0, 1.0]
deaths = [2.0, 2.0]
[models.bad]
builder = "tandem_network"
service_rates = [2.0, -1.8]
arrival_rate = 1.0
capacity = 2
[[solve]]
solvers = ["gauss_seidel", "gth"]
[[solve]]
problem = "transient"
models = ["small"]
initial = [0]
times = [0.5, 1]
"""
WARM = TEXT.replace('"gth"]', '"gth"]\nwarm = true')
FUNCTIONS = """
import os, time
def step(state):
    yield (1 - state[0],), 1.0
def dies(state):
    os._exit(9)
def waits(state):
    open("waiting", "a").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
    return step(state)
"""
REACHABLE = '[models.{0}]\nbuilder = "reachable"\ntransitions = "steps_of_a_test:{0}"\ninitial = 0\n'
SOLVE = '[[solve]]\nsolvers = ["gth"]\n'


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CTMC_STORE", raising=False)
    Path("steps_of_a_test.py").write_text(FUNCTIONS)
    return tmp_path


def found(result):
    """Return what must not depend on who has worked: all of the rows but the time that it took."""
    return [{name: value for name, value in plain_row(row).items() if name != "seconds"} for row in result.rows]


def command(*arguments):
    line = [sys.executable, "-m", "ctmc", "run", "study.toml", "--allow-code", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    return subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


class Backwards(Executor):
    """Works off everything in the reverse order, as soon as somebody waits for a result."""

    def __init__(self):
        self.handed = []
        self.futures = []
        self.done = []

    def submit(self, function, *arguments):
        future = Future()
        self.handed.append((future, function, arguments))
        self.futures.append(future)
        timer = threading.Timer(0.05, self.work)
        timer.start()
        return future

    def work(self):
        while self.handed:
            with contextlib.suppress(IndexError):
                future, function, arguments = self.handed.pop()
                self.done.append(next(iter(arguments[0].models)))
                if future.set_running_or_notify_cancel():
                    future.set_result(function(*arguments))


# ---- the same rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [TEXT, WARM])
def test_rows_and_histories_do_not_depend_on_the_order_in_which_tasks_end(text):
    study = parse_study(text)
    serial = run_study(study, "serial.h5")
    executor = Backwards()
    parallel = run_study(study, "parallel.h5", executor=executor)
    assert executor.done != sorted(executor.done, key=list(study.models).index)
    assert found(serial) == found(parallel)
    assert len(found(serial)) == 12
    assert {row.status for row in serial.rows} == {"CONVERGED", "NOT_BUILT"}
    assert any(row.model_done.startswith("re-rated") for row in serial.rows)
    one, two = (read_container(name, ("study",)) for name in ("serial.h5", "parallel.h5"))
    assert one.manifest["histories"] == two.manifest["histories"]
    assert serial.savings == parallel.savings
    assert list(parallel.models) == list(serial.models)
    assert list(Path("parallel.store/.locks").iterdir()) == []
    again = run_study(study, "parallel.h5", executor=Backwards())
    assert {row.done for row in again.rows} == {"reused", ""}


def test_models_of_one_structure_are_built_once():
    tasks = tasks_of(parse_study(TEXT))
    assert [(task.label, task.only_builds, task.after) for task in tasks] == [
        ("queue (arrival_rate=1.2)", True, None),
        ("queue (arrival_rate=1.2)", False, 0),
        ("queue (arrival_rate=0.8)", False, 0),
        ("queue (arrival_rate=1)", False, 0),
        ("small", False, None),
        ("bad", False, None),
    ]
    assert [task.label for task in tasks_of(parse_study(WARM))] == [
        "queue (arrival_rate=1.2) and 2 more",
        "small",
        "bad",
    ]
    assert [task.after for task in tasks_of(parse_study(TEXT), rebuild=True)] == [None] * 5


def test_reasons_are_those_of_one_process():
    small = TEXT[TEXT.index("[models.small]") : TEXT.index("[models.bad]")] + SOLVE
    other = small.replace("small", "other").replace(SOLVE, "").replace("[2.0, 2.0]", "[2.0, 2.0, 3.0]").replace(
        "[1.0, 1.0]", "[1.0, 1.0, 1.0]")  # fmt: skip
    longer = other.replace("other", "longer").replace("3.0", "3.0, 4.0").replace("births = [", "births = [1.0, ")
    for name, executor in (("one", None), ("two", Backwards())):
        run_study(parse_study(small), f"{name}.h5", executor=executor)
    study = parse_study(other + longer + small)
    serial = run_study(study, "one.h5")
    assert found(serial) == found(run_study(study, "two.h5", executor=Backwards()))
    # not that of the one that was built just before, which is as much like it
    assert serial.models["longer"].why.startswith("parameter births: 1,1 -> 1,1,1,1;")


def test_fail_fast_hands_nothing_more_over():
    first, _, rest = TEXT.partition("[models.bad]")
    bad, _, solves = rest.partition("[[solve]]")
    study = parse_study(f"[models.bad]{bad}{first}[[solve]]{solves}")
    with ThreadPoolExecutor(1) as executor:
        result = run_study(study, "study.h5", executor=executor, fail_fast=True)
    assert [row.status for row in result.rows[:2]] == ["NOT_BUILT"] * 2
    late = [row for row in result.rows if row.status == "NOT_RUN"]
    assert late
    assert all(row.message == "--fail-fast ended the run at a step that failed before this step." for row in late)


def test_an_interrupted_run_waits_until_the_workers_of_others_have_ended():
    class Stopping(Watcher):
        def stopped(self):
            return bool(executor.done)

    executor = Backwards()
    result = run_study(parse_study(TEXT), "study.h5", executor=executor, watcher=Stopping())
    assert result.stopped
    assert len(executor.done) >= 3
    assert not any(future.cancelled() for future in executor.futures)
    late = [row.message for row in result.rows if row.status in ("NOT_BUILT", "NOT_RUN") and row.model != "bad"]
    assert late
    assert all("the run was interrupted before" in message for message in late)
    assert list(Path("study.store/.locks").iterdir()) == []


class Broken(Executor):
    """A pool whose workers died before anything was handed over; a new one is as bad."""

    def __init__(self):
        self.window, self.threads, self.memory, self.renewed = 2, None, None, 0

    def submit(self, function, *arguments):
        raise BrokenProcessPool("broken")

    def renew(self):
        self.renewed += 1
        return True

    def close(self):
        pass


def test_a_pool_that_cannot_be_used_at_all_is_a_row_for_each_step():
    crew = Broken()
    store = open_store_of(Path("study.h5"), None, print)
    work = ParallelWork(parse_study(TEXT), store, Watcher(), crew, rebuild=False, fail_fast=False)
    work.work()
    assert {row.status for row in work.rows} == {"ERROR"}
    assert crew.renewed == len(work.tasks)


def test_two_runs_of_one_study_at_once_share_the_work():
    study = parse_study(TEXT)
    with ThreadPoolExecutor(2) as runs, ThreadPoolExecutor(2) as one, ThreadPoolExecutor(2) as two:
        futures = [
            runs.submit(run_study, study, f"{k}.h5", store="shared", executor=executor) for k, executor in enumerate((one, two))
        ]  # fmt: skip
        first, second = (future.result() for future in futures)
    plain = [
        [(row["model"], row["point"], row["status"], row["measures"]) for row in found(result)]
        for result in (first, second)
    ]
    assert plain[0] == plain[1]
    for name, supplied in first.models.items():
        assert {supplied.done, second.models[name].done} > {"reused"}, name
    for row, other in zip(first.rows, second.rows, strict=True):
        assert sorted({row.done, other.done} - {"reused", ""}) in ([], ["solved: new"])
    assert sum(row.done == "solved: new" for result in (first, second) for row in result.rows if row.time is None) == 8


# ---- workers ----------------------------------------------------------------------------------------------------------


def test_two_processes_give_the_rows_of_one_and_one_that_dies_is_a_row(capfd):
    good = parse_study(TEXT)
    serial = run_study(good, "serial.h5")
    Path("study.toml").write_text(TEXT.replace("[models.small]", REACHABLE.format("dies") + "[models.small]"))
    assert main(["run", "study.toml", "-o", "parallel.h5", "--jobs", "2", "--allow-code", "--json"]) == 1
    rows = read_container("parallel.h5", ("study",)).manifest["rows"]
    dead = [row for row in rows if row["model"] == "dies"]
    assert [(row["status"], row["message"]) for row in dead] == [
        ("ERROR", "the process that worked on it ended without an answer: it was killed, or crashed.")
    ] * 2
    left = [{name: value for name, value in row.items() if name != "seconds"} for row in rows if row["model"] != "dies"]
    for row, other in zip(left, found(serial), strict=True):
        if "reused" not in (row["done"], row["model_done"]):  # what was done beside the one that died is not done again
            assert row == other
        assert row["measures"] == other["measures"]
    error = capfd.readouterr().err
    assert "dies: failed after" in error
    assert "small: done after" in error
    assert multiprocessing_children() == []


def multiprocessing_children():
    return [child for child in psutil.Process().children(recursive=True) if "spawn_main" in " ".join(child.cmdline())]


class Breaking(Executor):
    """Its pool breaks at the task of one model, and takes with it what else was handed over."""

    def __init__(self, culprit):
        self.window, self.threads, self.memory = 3, None, None
        self.culprit, self.renewed, self.open, self.closed = culprit, 0, [], False

    def submit(self, function, *arguments):
        future = Future()
        self.open.append((future, function, arguments))
        if len(self.open) == 3 or self.culprit in arguments[0].models:
            threading.Timer(0.02, self.work).start()
        else:
            threading.Timer(0.3, self.work).start()
        return future

    def work(self):
        given, self.open = self.open, []
        broken = any(self.culprit in arguments[0].models for _, _, arguments in given)
        for future, function, arguments in given:
            if broken:
                future.set_exception(BrokenProcessPool("broken"))
            else:
                future.set_result(function(*arguments))

    def renew(self):
        self.renewed += 1
        return True

    def close(self):
        self.closed = True


def test_after_a_death_the_tasks_are_tried_one_by_one():
    study = parse_study(TEXT)
    crew = Breaking("small")
    work = ParallelWork(
        study, open_store_of(Path("study.h5"), None, print), Watcher(), crew, rebuild=False, fail_fast=False
    )
    work.work()
    status = {(row.model, row.problem): row.status for row in work.rows}
    assert status == {
        ("queue", "stationary"): "CONVERGED",
        ("small", "stationary"): "ERROR",
        ("small", "transient"): "ERROR",
        ("bad", "stationary"): "NOT_BUILT",
    }
    assert crew.renewed == 2  # once with others beside it, and once alone
    assert crew.closed


def test_a_worker_of_another_version_or_without_the_store_does_nothing(tmp_path):
    from ctmc.storage.question import project_version

    study = tasks_of(parse_study(TEXT))[0].study
    other = work_off(study, Orders(str(tmp_path), (), "stop", "0.0"))
    assert other.error == f"the worker has version {project_version()} of ctmc-lab; allowed is that of the run, 0.0."
    lost = work_off(study, Orders(str(tmp_path / "lost"), (), "stop", project_version()))
    assert "allowed is a store that all workers share (--store)" in lost.error
    assert not (tmp_path / "lost").exists()


def test_threads_and_memory_are_divided():
    crew = Processes(64)
    try:
        assert crew.threads == 1
        assert crew.memory < psutil.virtual_memory().total / 64
    finally:
        crew.close()


# ---- signals ----------------------------------------------------------------------------------------------------------


def test_the_first_signal_ends_steps_at_their_next_look_and_leaves_no_process():
    slow = (
        TEXT.partition("[models.small]")[0]
        .replace("[4, 4]", "[400, 400]")
        .replace("[1.2, 0.8, 1.0]", "[1.2, 0.8]")
        .replace("queue", "slow")
    )
    small = TEXT[TEXT.index("[models.small]") : TEXT.index("[models.bad]")]
    Path("study.toml").write_text(small + slow + '[[solve]]\nsolvers = ["power_iteration"]\n')
    process = command("--jobs", "2")
    wait_for(
        lambda: (
            list(Path("study.store").glob("*.solutions/*.h5")) and len(list(Path("study.store").glob("tandem*.h5"))) > 1
        )
    )
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130, error
    assert "Stopping at the next step" in error
    assert psutil.wait_procs(children, timeout=10)[1] == []
    kept = read_container("study.h5", ("study",)).manifest
    assert kept["stopped"]
    status = [row["status"] for row in kept["rows"]]
    assert status[0] == "CONVERGED"
    assert set(status[1:]) <= {"STOPPED", "NOT_RUN", "NOT_BUILT"}
    assert "STOPPED" in status
    assert not [path for path in Path("study.store").rglob("*") if path.is_file() and path.suffix != ".h5"]


@pytest.mark.slow
def test_when_the_parent_is_killed_its_workers_end_and_the_next_run_goes_on():
    Path("study.toml").write_text(REACHABLE.format("step") + REACHABLE.format("waits") + SOLVE)
    process = command("--jobs", "2")
    wait_for(lambda: Path("waiting").exists() and list(Path("study.store").glob("*.solutions/*.h5")))
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert psutil.wait_procs(children, timeout=20)[1] == []
    Path("go").touch()
    study = parse_study_with_code()
    result = run_with_code(study)
    assert [(row.status, row.done) for row in result.rows] == [("CONVERGED", "reused"), ("CONVERGED", "solved: new")]
    for path in Path("study.store").rglob("*.h5"):
        assert main(["verify", str(path)]) == 0


def parse_study_with_code():
    from ctmc.model.recipe import allowed_code

    with allowed_code():
        return parse_study(Path("study.toml").read_text(), "study.toml")


def run_with_code(study):
    from ctmc.model.recipe import allowed_code

    sys.path.append(os.getcwd())
    try:
        with allowed_code():
            return run_study(study, "study.h5")
    finally:
        sys.path.remove(os.getcwd())
        sys.modules.pop("steps_of_a_test", None)


# ---- clusters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "full"),
    [
        ("localhost:8786", "tcp://localhost:8786"),
        ("tcp://127.3.0.1:1", "tcp://127.3.0.1:1"),
        ("tcp://[::1]:8786", "tcp://[::1]:8786"),
        ("tls://cluster.example:8786", "tls://cluster.example:8786"),
    ],
)
def test_schedulers_here_or_over_tls_are_allowed(address, full):
    assert checked_scheduler(address) == full


@pytest.mark.parametrize(
    "address", ["10.0.0.7:8786", "tcp://0.0.0.0:8786", "localhost.example:8786", "tcp://localhost@10.0.0.7:8786", "2130706433:1"]
)  # fmt: skip
def test_other_schedulers_are_refused_unless_allowed(address):
    with pytest.raises(
        StudyError, match="without TLS, where anybody could run code here; allowed are localhost and tls://"
    ):
        checked_scheduler(address)
    assert checked_scheduler(address, allow_insecure=True).endswith(address)


@pytest.mark.parametrize(
    "address", ["", "localhost", "http://localhost:80", "localhost:x", "tcp://:1", "localhost:99999", "a:1/x"]
)
def test_what_is_no_address_is_one_sentence(address):
    with pytest.raises(StudyError, match="allowed is HOST:PORT, tcp://HOST:PORT or tls://HOST:PORT"):
        checked_scheduler(address, allow_insecure=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "0"], "jobs is 0; allowed is a whole number from 1 to 1024."),
        (
            ["--scheduler", "localhost:1"],
            "--scheduler is given, but the executor is processes; only dask has a scheduler.",
        ),
        (["--allow-insecure-scheduler"], "--allow-insecure-scheduler is given, but the executor is processes"),
        (["--executor", "dask"], "there is no --scheduler; allowed is its address, such as localhost:8786."),
        (["--executor", "dask", "--scheduler", "10.0.0.7:1"], "scheduler is '10.0.0.7:1', on another machine"),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(arguments, message, capsys):
    Path("study.toml").write_text(TEXT)
    assert main(["run", "study.toml", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("study.h5").exists()


def test_jobs_beside_an_executor_are_refused():
    with ThreadPoolExecutor(1) as executor, pytest.raises(StudyError, match="jobs is 2, but an executor is given"):
        run_study(parse_study(TEXT), executor=executor, jobs=2)


@pytest.mark.parametrize(("name", "module", "extra"), [("dask", "distributed", "cluster"), ("mpi", "mpi4py", "mpi")])
def test_a_missing_library_is_named_with_its_extra(name, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.futures", None)
    with (
        pytest.raises(StudyError, match=rf"the executor {name} needs {module} .*install 'ctmc-lab\[{extra}\]'"),
        opened(name, "localhost:1" if name == "dask" else None),
    ):
        pass


CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.mark.slow
def test_a_dask_cluster_of_two_workers_gives_the_same_rows():
    pytest.importorskip("distributed", reason="Dask is not installed: python -m pip install 'ctmc-lab[cluster]'")
    serial = run_study(parse_study(TEXT), "serial.h5")
    Path("cluster.py").write_text(CLUSTER)
    Path("study.toml").write_text(TEXT)
    cluster = subprocess.Popen(
        [sys.executable, "cluster.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        process = command("--executor", "dask", "--scheduler", cluster.stdout.readline().strip())
        error = process.communicate(timeout=200)[1]
        assert process.returncode == 1, error  # for the model that is bad
    finally:
        cluster.communicate()
    rows = read_container("study.h5", ("study",)).manifest["rows"]
    assert [{name: value for name, value in row.items() if name != "seconds"} for row in rows] == found(serial)


# ---- what is shown ----------------------------------------------------------------------------------------------------


def test_the_live_table(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    table = LiveTable(Output(), "tasks")
    assert table.active
    table.show(["[bold]a", "b\x1b[2J"], 3, 1, 9)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("> [bold]a  ")
    assert lines[1].startswith("> b\\x1b[2J  ")
    assert lines[2].startswith("3 of 9 tasks, 1 without an answer, about ")
    table.clear()
    assert capsys.readouterr().err == "\x1b[3A\x1b[J"
    table.show([str(k) for k in range(20)], 0, 0, 20)
    table.look(at_once=True)
    assert "> and 12 more" in capsys.readouterr().err
    table.close()
    assert "\x1b[?25l" not in capsys.readouterr().err  # the cursor is never hidden
