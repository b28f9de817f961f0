"""Bad input of the command line: one sentence, exit code 2, and nothing half-written."""

import csv
import io
import json
import os
import socket
import sys
from pathlib import Path

import command_line
import pytest
from command_line import QUEUE, one_sentence

run = command_line.run
queue = command_line.queue


def files_below(folder):
    return {str(path): path.lstat().st_mtime_ns for path in Path(folder).rglob("*")}


RATES = ["build", "birth_death", "-o", "new.h5"]
MARKET = ["build", "supermarket", "-o", "new.h5", "--service-rates", "3,2,1", "--arrival-rate", "3"]
MARKET_9 = [*MARKET, "--choices", "2", "--capacity", "9"]
BAD = [
    ([*RATES, "--births", "1,-1", "--deaths", "2,2"], "births has the value -1.0"),
    ([*RATES, "--births", "1,0", "--deaths", "2,2"], "births has the value 0.0"),
    ([*RATES, "--births", "nan", "--deaths", "2"], "births has the value nan"),
    ([*RATES, "--births", "inf", "--deaths", "2"], "births has the value inf"),
    ([*RATES, "--births", "1,x", "--deaths", "2"], "births is 'x'; allowed is FLOAT"),
    ([*RATES, "--births", "", "--deaths", "2"], "births is empty"),
    ([*RATES, "--births", "1"], "Missing option '--deaths'"),
    ([*RATES, "--birth", "1"], "--births"),
    ([*RATES, "--births", "1", "--deaths", "2", "--memory-limit", "1B"], "more than the memory limit"),
    ([*RATES, "--births", "1", "--deaths", "2", "--memory-limit", "much"], "memory limit is 'much'"),
    ([*RATES, "--births", "1", "--deaths", "2", "--threads", "0"], "threads is 0"),
    (["build", "birth_deaht", "-o", "new.h5"], "did you mean 'birth_death'"),
    (["build", "birth_death", "--births", "1", "--deaths", "2", "-o", "no/folder/x.h5"], "there is no folder"),
    (["build", "birth_death", "--births", "1", "--deaths", "2", "-o", "."], "not a regular file"),
    (["build"], "Missing the name of a builder"),
    ([*MARKET, "--choices", "4", "--capacity", "9"], "choices is 4"),
    ([*MARKET, "--choices", "2", "--capacity", "0"], "capacity is 0"),
    ([*MARKET, "--choices", "2", "--capacity", "-3"], "capacity is -3"),
    ([*MARKET, "--choices", "2", "--capacity", "2.5"], "capacity is '2.5'; allowed is INT"),
    ([*MARKET_9, "--preferences", ".2,.2,.2"], "preferences is"),
    ([*MARKET_9, "--selection", "weighted", "--weights", "1,1,1"], "weights is"),
    ([*MARKET_9, "--selection", "tandemm"], "did you mean 'tandem'"),
    ([*MARKET, "--choices", "2", "--capacity", "9999"], "more than the memory limit"),
    ([*MARKET_9, "--selection", "os:system"], "--allow-code"),
    (["build", "fork_join", "-o", "new.h5", "--service-rates", "5,2,1", "--arrival-rate", "1", "--tasks", "3",
      "--thresholds", "1,8,2"], "thresholds"),
    (["build", "fork_join", "-o", "new.h5", "--service-rates", "5,2,1", "--arrival-rate", "1", "--tasks", "3",
      "--thresholds", "2,2,8"], "thresholds"),
    (["build", "fork_join", "-o", "new.h5", "--service-rates", "5,2,1", "--arrival-rate", "3", "--tasks", "3",
      "--thresholds", "1,2,8"], "drift"),
    (["solve", "queue.h5", "--solver", "gmress"], "did you mean 'gmres'"),
    (["solve", "queue.h5", "--solver", "gmres", "--restrat", "3"], "--restart"),
    (["solve", "queue.h5", "--restart", "3"], "need its name, as in --solver gmres"),
    (["solve", "queue.h5", "--solver", "gmres", "--restart", "x"], "restart is 'x'"),
    (["solve", "queue.h5", "--solver", "gmres(__import__('os').system('touch x'))"], "NAME(option=value, ...)"),
    (["solve", "queue.h5", "--solver", "logarithmic_reduction"], "does not take a Stationary problem on a Generator"),
    (["solve", "queue.h5", "--solver", "uniformization"], "does not take a Stationary problem"),
    (["solve", "queue.h5", "--problem", "stationery"], "did you mean 'stationary'"),
    (["solve", "queue.h5", "--problem", "transient"], "needs --times"),
    (["solve", "queue.h5", "--problem", "transient", "--times", "2,1"], "ascending"),
    (["solve", "queue.h5", "--problem", "transient", "--times", "1", "--initial", "7"], "(7,)"),
    (["solve", "queue.h5", "--initial", "x"], "--initial is 'x'"),
    (["solve", "queue.h5", "--times", "1"], "only --problem transient and --problem accumulated-reward have it"),
    (["solve", "queue.h5", "--tolerance", "2"], "tolerance is 2.0"),
    (["solve", "queue.h5", "--tolerance", "nan"], "tolerance is nan"),
    (["solve", "queue.h5", "--time-limit", "0"], "time_limit is 0.0"),
    (["solve", "queue.h5", "--probability", "jobs >>"], "expected"),
    (["solve", "queue.h5", "--no-save", "--reward", "job"], "did you mean 'jobs'"),
    (["solve", "queue.h5", "--no-save", "--probability", "job > 1"], "did you mean 'jobs'"),
    (["solve", "queue.h5", "--problem", "transient", "--times", "1", "--initial", "-1"], "initial: state (-1,) is not in"),
    (["solve", "queue.h5", "--probability", "jobs >> 1"], "--probability 'jobs >> 1': expected a name or a number at position 6"),
    (["solve", "queue.h5", "--probability", "jobs \\ 2"], "--probability 'jobs \\ 2': expected"),
    (["solve", "queue.h5", "--probability", "jobs = 2"], "position 4, found '='; equality is '=='"),
    (["solve", "queue.h5", "--probability", "job > 1"], "--probability 'job > 1': There is no reward, variable or label 'job'"),
    (["solve", "queue.h5", "--no-save", "--reward", "job"], "--reward 'job': There is no"),
    (["solve", "queue.h5", "--reward", "p95(jobs"], "--reward 'p95(jobs': expected"),
    (["solve", "queue.h5", "--reward", ""], "--reward '': expected a name or a number"),
    (["solve", "queue.h5", "--problem", "first-passage", "--target", "job > 1"], "target 'job > 1': There is no reward"),
    (["solve", "queue.h5", "--problem", "first-passage", "--target", "jobs > 1 \\"], "target 'jobs > 1 \\': expected"),
    (["solve", "queue.h5", "--problem", "first-passage", "--target", "jobs > 1", "--avoid", "full"], "avoid 'full': There is no"),
    (["solve", "queue.h5", "--problem", "first-passage", "--target", "jobs[1] > 1"], "target 'jobs[1] > 1': index 1 of 'jobs'"),
    (["solve", "queue.h5", "--checkpoint-minutes", "-1"], "--checkpoint-minutes is -1; allowed is"),
    (["solve", "queue.h5", "--tolerance", "1e-8", "--tolerance", "1e-9"], "--tolerance is given more than once"),
    (["rerate", "queue.h5", "-o", "new.h5", "--deaths", "2,2,2,2", "--deaths", "3,3,3,3"], "--deaths is given more than once"),
    (["rerate", ".", "-o", "new.h5"], "Cannot read .: it is a folder"),
    (["rerate", "queue.h5", "-o", "new.h5", "--births", "1,1", "--deaths", "2,2"], "births has 2 rates; at other rates the chain keeps its 4"),
    (["plot", "queue.h5", "--figure", "jiont", "-o", "new.svg"], "did you mean 'joint'"),
    (["run", "quickstart", "--store", ""], "names no folder"),
    (["store", "prune", ".", "--larger-than", "x"], "--larger-than is 'x'; allowed is a positive size"),
    (["store", "prune", ".", "--keep", "missing.h5"], "--keep: Cannot read missing.h5"),
    (["compare", "missing.h5"], "missing.h5 cannot be read: No such file"),
    (["compare", ".", "missing.h5"], "it is a folder"),
    (["compare", "wich_solver"], "did you mean 'which_solver'"),
    (["compare", "queue.h5", "--threads", "0"], "threads is 0; allowed is a whole number from 1"),
    (["compare", "queue.h5", "--solvers", ""], "--solvers is empty"),
    (["compare", "queue.h5", "--set", "tolerance=1"], "--set is 'tolerance=1', but there is no study"),
    (["compare", "queue.h5", "--problem", "first-passage", "--target", "jobs >"], "--target 'jobs >': expected"),
    (["simulate", "queue.h5", "--horizon", "0", "--seed", "7"], "horizon is 0; allowed is a time > 0, not before"),
    (["simulate", "queue.h5", "--times", "0:2:1", "--seed", "7", "--plot", "new.gif"], "--plot is 'new.gif'; allowed is a file that ends in .png"),
    (["simulate", "queue.h5", "--horizon", "5", "--target", "job > 1", "--seed", "7"], "target 'job > 1': There is no"),
    (["mean-field", "supermarket", "--service-rates", "1", "--shares", "1", "--arrival-rate-per-server", ".5", "--choices", "2",
      "--seed", "-1"], "'--seed': -1 is not in the range x>=0"),
    (["optimize", "birth_death", "--births", "1", "--deaths", "2", "--over", "births", "--minimize", "jobs", "--maximize", "jobs"],
     "--minimize is given with --maximize"),
    (["optimize", "fork_join", "--service-rates", "2,1", "--arrival-rate", "1", "--tasks", "2", "--over", "thresholds",
      "--minimize", "jobs", "--criterion", "discounted"], "discount of the discounted criterion is missing"),
    (["optimize", "supermarket", "--service-rates", "2,1", "--arrival-rate", "1", "--capacity", "2", "--over", "choices=2:1",
      "--minimize", "jobs"], "the range of choices begins at 2 and ends at 1"),
    (["solve", "queue.h5", "--start", "missing.h5"], "missing.h5"),
    (["solve", "missing.h5"], "missing.h5"),
    (["solve"], "Missing argument 'FILE'"),
    (["info", "missing.h5"], "missing.h5"),
    (["slove"], "did you mean 'solve'"),
    (["completion", "tcsh"], "tcsh"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments)[:60] for arguments, _ in BAD])
def test_bad_input_is_one_sentence_and_exit_code_2(run, queue, arguments, message):
    before = files_below(".")
    code, out, err = run(*arguments)
    assert code == 2, err
    one_sentence(err.splitlines(keepends=True)[-1])
    assert message.replace("'", "") in " ".join(err.split()).replace("'", ""), err
    assert not any(part.startswith(("Traceback", "measure")) for part in out.splitlines())
    assert files_below(".") == before


def test_the_table_of_bad_input_is_not_empty():
    assert len(BAD) >= 50


def test_a_parameter_that_is_no_rate_is_told_from_a_typo(run):
    run(
        "build",
        "supermarket",
        "--service-rates",
        "2,1",
        "--arrival-rate",
        "1",
        "--choices",
        "2",
        "--capacity",
        "2",
        "-o",
        "m.h5",
    )
    for flag, words in (
        ("--capacity", "--capacity cannot change without a rebuild; rates that may: --arrival-rate, --service-rates"),
        ("--capcity", "No such option"),
    ):
        code, _, err = run("rerate", "m.h5", flag, "3", "-o", "new.h5")
        assert code == 2
        one_sentence(err)
        assert words in err
    assert not Path("new.h5").exists()


def test_a_wrong_name_of_a_measure_does_not_cost_the_answer(run):
    run(
        "build",
        "fork_join",
        "--service-rates",
        "2,1",
        "--arrival-rate",
        "1",
        "--tasks",
        "2",
        "--thresholds",
        "1,2",
        "-o",
        "m.h5",
    )
    code, out, err = run("solve", "m.h5", "--reward", "respons_time")
    assert code == 2
    assert "--reward 'respons_time': There is no" in err
    assert "did you mean 'response_time'" in err
    assert "CONVERGED" in out
    assert len(list(Path("m.solutions").iterdir())) == 1


@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "socket", "loop", "empty", "text"])
@pytest.mark.parametrize("command", ["info", "solve"])
def test_what_is_no_model_file(run, kind, command):
    path = Path("thing.h5")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.write_text("" if kind == "empty" else "states 3\n")
    before = files_below(".")
    code, _, err = run(command, path)
    assert code == 2
    one_sentence(err)
    assert str(path) in err
    assert files_below(".") == before


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b[31mb", "<script>", "[bold]x", "=cmd|' calc'!A1", "x" * 240, os.fsdecode(b"\xff\xfe"), "ü"]
)  # fmt: skip
def test_strange_file_names_work_and_are_shown_escaped(run, name):
    assert run(*QUEUE, f"{name}.h5")[0] == 0
    code, out, err = run("info", f"{name}.h5")
    assert code == 0, err
    assert "\x1b" not in out + err
    code, out, err = run("solve", f"{name}.h5")
    assert code == 0, err
    assert "\x1b" not in out + err
    out.encode()
    code, out, _ = run("solve", f"{name}.h5", "--json")
    assert json.loads(out)["status"] == "CONVERGED"
    out.encode()
    code, out, _ = run("solve", f"{name}.h5", "--csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert not row["model"].startswith("=")
    assert float(row["jobs"]) > 0


def test_code_runs_only_when_allowed(run, tmp_path, monkeypatch):
    Path("left_a_marker.py").write_text(
        "open('marker', 'w').close()\ndef rule(lengths, rates, preferences):\n    return lengths / rates\n"
    )
    arguments = [*MARKET_9, "--selection", "left_a_marker:rule"]
    code, _, err = run(*arguments)
    assert code == 2
    assert "--allow-code" in err
    assert not Path("marker").exists()
    before = list(sys.path)
    code, _, err = run(*arguments, "--allow-code")
    assert code == 0, err
    assert Path("marker").exists()
    assert sys.path == before
    sys.modules.pop("left_a_marker")
