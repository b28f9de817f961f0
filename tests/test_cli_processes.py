"""The command line as a process: streams, signals, other people's packages, locales."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import command_line
import pytest
from command_line import HOME, environment, one_sentence, python

import ctmc

run = command_line.run
queue = command_line.queue


def slow_solve(run):
    """Store a model that power iteration needs tens of thousands of products for; return the command that solves it."""
    code, _, err = run(
        "build", "supermarket", "--service-rates", "3,2,1", "--arrival-rate", "5.97", "--choices", "2", "--capacity", "59",
        "-o", "slow.h5",
    )  # fmt: skip
    assert code == 0, err
    return ["-m", "ctmc", "solve", "slow.h5", "--solver", "power_iteration"]


def wait_for(stream, text, seconds=60):
    """Read until the text has come."""
    seen, end = b"", time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < end, seen
        chunk = os.read(stream, 4096)
        assert chunk, seen
        seen += chunk
    return seen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_stops_at_the_next_step_and_keeps_the_answer(run, tmp_path, number, code):
    arguments = [sys.executable, *slow_solve(run), "--json", "-vv"]
    process = subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for(process.stderr.fileno(), b"Stationary on Generator")
    time.sleep(2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    found = json.loads(out)
    assert found["status"] == "STOPPED"
    assert found["error"]["exit_code"] == code
    assert "\x1b" not in err.decode()
    # a step from there is as near, which the first step from the start of all solves is not
    solver = ["--solver", "power_iteration(max_iterations=1)", "--json", "--no-save"]
    first, further = (
        json.loads(run("solve", "slow.h5", *solver, *start)[1]) for start in ([], ["--start", found["saved"]])
    )
    assert further["defect"] <= 1.01 * found["defect"]
    assert found["defect"] < first["defect"]


def test_the_second_signal_leaves_at_once(run, tmp_path):
    ctmc.save("slow.h5", ctmc.build("birth_death", births=[1.0] * 2990, deaths=[1.0] * 2990))
    # gth, which knows no monitor, takes its time
    process = subprocess.Popen(
        [sys.executable, "-m", "ctmc", "solve", "slow.h5", "--solver", "gth", "-vv"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(process.stderr.fileno(), b"Stationary on Generator")
    process.send_signal(signal.SIGINT)
    wait_for(process.stderr.fileno(), b"Ctrl-C again leaves at once")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not Path("slow.solutions").exists()


def test_progress_on_a_terminal_and_the_cursor_after_ctrl_c(run, tmp_path):
    import pty

    arguments = slow_solve(run)
    child, terminal = pty.fork()
    if not child:
        os.chdir(tmp_path)
        os.execve(sys.executable, [sys.executable, *arguments], environment(TERM="xterm", COLUMNS="120"))
    seen = wait_for(terminal, b"iteration")
    seen += wait_for(terminal, b"left")
    os.write(terminal, b"\x03")
    seen += wait_for(terminal, b"Ctrl-C again leaves at once")
    try:
        while chunk := os.read(terminal, 4096):
            seen += chunk
    except OSError:  # the terminal is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    os.close(terminal)
    assert b"STOPPED" in seen
    assert b"defect" in seen
    assert seen.rfind(b"\x1b[?25l") <= seen.rfind(b"\x1b[?25h")  # a hidden cursor is shown again
    assert b".checkpoint.h5" in seen
    assert seen.rstrip().endswith(b"--resume")
    assert b"Traceback" not in seen


def test_what_lies_in_the_current_folder_is_not_imported(run, tmp_path, queue):
    for name in ("numpy.py", "solvers/__init__.py", "builders.py", "click.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("open('marker', 'w').close()\n")
    done = python("-m", "ctmc", "solve", queue, "--json", cwd=tmp_path, NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "CONVERGED"
    assert not (tmp_path / "marker").exists()


def test_another_package_of_our_name_is_named_with_both_places(tmp_path):
    other = tmp_path / "elsewhere"
    (other / "solvers").mkdir(parents=True)
    (other / "solvers" / "__init__.py").write_text("")
    done = python("-m", "ctmc", "list", "solvers", cwd=tmp_path, PYTHONPATH=f"{other}{os.pathsep}{HOME}")
    assert done.returncode == 2
    err = done.stderr.decode()
    one_sentence(err)
    assert str(HOME / "solvers") in err
    assert str(other / "solvers") in err


def test_numbers_do_not_depend_on_time_zone_or_locale(run, queue, tmp_path):
    first = json.loads(run("solve", queue, "--json", "--solver", "gauss_seidel")[1])
    for changes in (
        {"LC_ALL": "C", "TZ": "Pacific/Kiritimati"},
        {"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8", "TZ": ""},
    ):
        done = python("-m", "ctmc", "solve", queue, "--json", "--solver", "gauss_seidel", cwd=tmp_path, **changes)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert [found[name] for name in ("measures", "defect", "iterations")] == [
            first[name] for name in ("measures", "defect", "iterations")
        ]


def test_a_reader_that_leaves_is_no_error(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "ctmc", "list"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=60)
    process.stderr.close()
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err
