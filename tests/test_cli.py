"""The command line: flags, output, exit codes, bad input, signals."""

import csv
import dataclasses
import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ctmc
from ctmc import registry
from ctmc.cli import main
from ctmc.cli.app import COMMANDS
from ctmc.cli.docstring import read_docstring
from ctmc.cli.options import PROBLEM_NAMES
from ctmc.cli.question import parse_times
from ctmc.errors import ModelError
from ctmc.problem import PROBLEMS
from ctmc.study.parameters import describe, fits, from_text

HOME = Path(ctmc.__file__).resolve().parents[1]
QUEUE = ["build", "birth_death", "--births", "1,1,1,1", "--deaths", "2,2,2,2", "-o"]
SUPERMARKET = [
    "build", "supermarket", "--service-rates", "3,2,1", "--arrival-rate", "3", "--choices", "2", "--capacity", "9",
    "--preferences", ".2,.3,.5", "--selection", "tandem", "-o",
]  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command line in an empty folder; gives (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def queue(run):
    code, _, err = run(*QUEUE, "queue.h5")
    assert code == 0, err
    return "queue.h5"


def environment(**changes):
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    return {**kept, "PYTHONPATH": str(HOME), **changes}


def python(*arguments, cwd, **changes):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment(**changes), capture_output=True, timeout=120
    )


def files_below(folder):
    return {str(path): path.lstat().st_mtime_ns for path in Path(folder).rglob("*")}


def one_sentence(err):
    assert err.startswith("ctmc: "), err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert "\x1b" not in err


# ---- help, names, completion ------------------------------------------------------------------------------------------


def test_help_version_and_completion_import_nothing_heavy(tmp_path):
    program = """
import os, sys
from ctmc.cli import main
for arguments in (["--help"], ["--version"], ["completion", "bash"], ["completion", "zsh"], ["completion", "fish"]):
    assert main(arguments) == 0, arguments
heavy = [name for name in ("numpy", "scipy", "numba", "h5py", "rich", "networkx", "matplotlib") if name in sys.modules]
assert not heavy, heavy
os.environ |= {"_CTMC_COMPLETE": "bash_complete", "COMP_WORDS": "ctmc solve --solver gm", "COMP_CWORD": "3"}
try:
    main([])
except SystemExit as end:
    assert not end.code
assert "numpy" not in sys.modules
"""
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    out = done.stdout.decode()
    assert f"ctmc {ctmc.__version__}" in out
    assert out.rstrip().endswith("plain,gmres")
    for name in COMMANDS:
        assert f"\n  {name} " in out
    for start in ("_ctmc_completion() {", "#compdef ctmc", "function _ctmc_completion"):
        assert start in out


def test_without_a_command_the_help_is_shown(run):
    assert run()[:2] == run("--help")[:2]


@pytest.mark.parametrize("name", registry.builder_names())
def test_help_of_a_builder_tells_every_parameter_its_meaning_and_an_example(run, name):
    code, out, _ = run("build", name, "--help")
    assert code == 0
    parts = read_docstring(registry.builder(name))
    words = "".join(out.split())
    assert "".join(parts.summary.split()) in words
    assert f"ctmcbuild{name}" in words
    for parameter in registry.builder_parameters(name).parameters:
        assert f"--{parameter.replace('_', '-')}" in out
        assert parts.parameters[parameter][1], parameter
        assert "".join(parts.parameters[parameter][1].rstrip(".").split()) in words, parameter


@pytest.mark.parametrize("name", registry.solver_names())
def test_help_of_solve_tells_every_option_of_the_solver(run, name):
    code, out, _ = run("solve", "--solver", name, "--help")
    assert code == 0
    for option in dataclasses.fields(registry.solver_class(name)):  # class variables are none
        assert f"--{option.name.replace('_', '-')}" in out


def test_lists(run):
    code, out, _ = run("list", "solvers", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)["solvers"]}
    assert sorted(rows) == registry.solver_names()
    assert rows["gth"]["problem"] == "stationary"
    assert rows["gth"]["needs"] == "Generator"
    assert rows["gmres"]["options"]["restart"] == 40
    code, out, _ = run("list")
    assert [name in out for name in ("BUILDERS", "gmres", "birth_death", "transient")] == [True] * 4
    code, out, _ = run("list", "--csv")
    assert [row["kind"] for row in csv.DictReader(io.StringIO(out))].count("problem") == len(PROBLEMS)
    code, out, _ = run("list", "builders", "--csv")
    assert sorted(row["name"] for row in csv.DictReader(io.StringIO(out))) == registry.builder_names()
    code, out, _ = run("list", "gth")
    assert "2/3 n^3" in out
    code, _, err = run("list", "solvers", "gmress")
    assert code == 2
    assert "did you mean 'gmres'" in err


def test_problem_names_are_those_of_the_registry():
    assert tuple(PROBLEMS) == PROBLEM_NAMES


def test_completion_gives_dynamic_names(monkeypatch, capsys):
    def complete(words):
        monkeypatch.setenv("_CTMC_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        with pytest.raises(SystemExit):
            main([])
        return [line.partition(",")[2] for line in capsys.readouterr().out.split()]

    assert complete("ctmc so") == ["solve"]
    assert complete("ctmc build birth") == ["birth_death"]
    assert complete("ctmc build birth_death --de") == ["--deaths", "--debug"]
    assert complete("ctmc run qui") == ["quickstart"]
    assert complete("ctmc solve --problem tr") == ["transient"]
    assert complete("ctmc solve --solver gmres --rest") == ["--restart"]
    assert complete("ctmc list sparse") == ["sparse_lu"]


def test_completion_script_as_json(run):
    code, out, _ = run("completion", "bash", "--json")
    assert code == 0
    assert "_CTMC_COMPLETE" in json.loads(out)["script"]


# ---- values of flags --------------------------------------------------------------------------------------------------


def test_values_from_text():
    from collections.abc import Callable, Sequence

    assert from_text("x", "3,2.5,1/4", Sequence[float]) == [3, 2.5, 0.25]
    assert from_text("x", "9", int | Sequence[int]) == 9
    assert from_text("x", "9,8", int | Sequence[int] | None) == [9, 8]
    assert from_text("x", "5", Sequence[int]) == [5]
    assert from_text("x", "1,2;3,4", Sequence[Sequence[int]]) == [[1, 2], [3, 4]]
    assert from_text("x", "shortest,fastest", str | Sequence[str]) == ["shortest", "fastest"]
    assert from_text("x", "none", int | None) is None
    assert from_text("x", "my.rules:age", str | Callable[..., float]) == "my.rules:age"
    assert type(from_text("x", "3", float)) is int  # as a user of Python writes it: one recipe, one hash
    assert describe(str | Sequence[str]) == "NAME or NAME,.."
    for text, kind in (("2.5", int), ("x", float), ("1,x", Sequence[float]), ("maybe", bool), ("1/0", float)):
        with pytest.raises(ModelError, match="x is "):
            from_text("x", text, kind)
    assert fits({"a": 1}, dict[str, int])
    assert not fits([1, "a"], Sequence[int])


def test_times():
    assert parse_times("0:50:1") == list(map(float, range(51)))
    assert parse_times("0:0.3:0.1")[-1] == pytest.approx(0.3)
    for text in ("", "a", "1:2", "0:1:0", "2:1:1", "0:inf:1", "nan:1:1"):
        with pytest.raises(ModelError, match="--times is"):
            parse_times(text)
    with pytest.raises(ModelError, match="1,000,000"):  # 10^12 times: by forecast, before anything is allocated
        parse_times("0:1e6:1e-6")


# ---- build, info ------------------------------------------------------------------------------------------------------


def test_build_is_the_same_as_in_python(run):
    code, out, _ = run(*SUPERMARKET, "market.h5", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["states"] == 1000
    assert document["file_bytes"] == Path("market.h5").stat().st_size
    model = ctmc.build(
        "supermarket", service_rates=[3, 2, 1], arrival_rate=3, choices=2, capacity=9, preferences=[0.2, 0.3, 0.5],
        selection="tandem",
    )  # fmt: skip
    assert ctmc.load("market.h5").recipe.hash == model.recipe.hash
    assert ctmc.save("python.h5", model) == document["content_hash"]


def test_build_never_replaces_another_model_unasked(run, queue):
    before = Path(queue).read_bytes()
    other = ["build", "birth_death", "--births", "3", "--deaths", "4", "-o", queue]
    code, _, err = run(*other)
    assert code == 2
    one_sentence(err)
    assert "--overwrite" in err
    assert Path(queue).read_bytes() == before
    assert run(*QUEUE, queue)[0] == 0  # the same model again
    assert run(*other, "--overwrite")[0] == 0
    assert ctmc.load(queue).size == 2


def test_notes_are_shown_on_standard_error(run):
    code, out, err = run(
        "build", "supermarket", "--service-rates", "1,1", "--arrival-rate", "9", "--choices", "1", "--capacity", "3",
        "-o", "full.h5",
    )  # fmt: skip
    assert code == 0
    assert "Note: " in err
    assert "Note: " not in out


def test_info(run, queue):
    assert run("solve", queue)[0] == 0
    code, out, _ = run("info", queue, "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["kind"] == "Generator"
    assert facts["builder"] == "birth_death"
    assert facts["parameters"] == {"births": [1, 1, 1, 1], "deaths": [2, 2, 2, 2]}
    assert facts["states"] == 5
    assert facts["entries"] == 8
    assert facts["bytes_on_disk"] == Path(queue).stat().st_size
    assert len(facts["content_hash"]) == 64
    (solution,) = facts["solutions"]
    assert solution["status"] == "CONVERGED"
    assert solution["defect"] < 1e-12
    assert "Gth" in solution["solver"]
    code, out, _ = run("info", queue)
    assert code == 0
    assert "birth_death" in out
    assert "CONVERGED" in out
    code, out, _ = run("info", solution["file"], "--json")
    assert code == 0
    assert json.loads(out)["kind"] == "solution"


# ---- solve ------------------------------------------------------------------------------------------------------------


def test_solve_names_the_default_solver_first(run, queue):
    code, out, err = run("solve", queue)
    assert code == 0
    assert out.startswith("Solver: gth (the default for this stationary problem)\n")
    assert "throughput" in out
    assert err == ""


def test_solve_as_json(run, queue):
    code, out, err = run("solve", queue, "--json", "--probability", "jobs >= 2", "--reward", "birth_rate")
    assert code == 0
    found = json.loads(out)
    assert found["solver"] == "gth"
    assert found["default_solver"] is True
    assert found["status"] == "CONVERGED"
    assert found["defect"] <= 1e-12
    assert found["iterations"] == 0
    assert found["seconds"] > 0
    assert found["products"] >= 1
    weights = [2.0**-k for k in range(5)]
    assert found["measures"]["jobs >= 2"] == pytest.approx(sum(weights[2:]) / sum(weights), rel=1e-13)
    assert found["measures"]["birth_rate"] == pytest.approx(1 - weights[4] / sum(weights), rel=1e-13)
    assert Path(found["saved"]).is_file()
    assert "(the default for this stationary problem)" in err


def test_solve_reference_values(run):
    assert run(*SUPERMARKET, "market.h5")[0] == 0
    code, out, _ = run("solve", "market.h5", "--solver", "gmres", "--restart", "30", "--json", "--no-save")
    assert code == 0
    found = json.loads(out)
    assert "restart=30" in found["solver_options"]
    expected = [0.5817947978, 0.7935083628, 0.8683978543]
    assert found["measures"]["queue_length"] == pytest.approx(expected, abs=1e-9)
    assert found["saved"] is None
    assert not Path("market.solutions").exists()


def test_solve_as_csv_has_numbers_and_one_column_for_each_server(run):
    assert run(*SUPERMARKET, "market.h5")[0] == 0
    code, out, _ = run("solve", "market.h5", "--csv", "--no-save")
    assert code == 0
    (row,) = csv.DictReader(io.StringIO(out))
    assert float(row["queue_length[2]"]) == pytest.approx(0.8683978543, abs=1e-9)
    assert row["status"] == "CONVERGED"


def test_transient(run, queue):
    code, out, _ = run("solve", queue, "--problem", "transient", "--times", "0:1:0.5", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["times"] == [0, 0.5, 1]
    assert found["measures"]["jobs"][0] == 0
    assert len(found["measures"]["jobs"]) == 3
    code, out, _ = run("solve", queue, "--problem", "transient", "--times", "0.5,2", "--initial", "4")
    assert "t = 0.5" in out
    assert "t = 2" in out
    code, out, _ = run("solve", queue, "--problem", "transient", "--times", "0:9:1", "--csv")
    assert [row["time"] for row in csv.DictReader(io.StringIO(out))] == [f"{k}.0" for k in range(10)]


def test_failed_solve_is_one_document_one_line_and_exit_code_1(run, queue):
    code, out, err = run("solve", queue, "--solver", "power_iteration(max_iterations=3)", "--json")
    assert code == 1
    found = json.loads(out)
    assert found["status"] == "ITERATION_LIMIT"
    assert found["measures"] == {}
    assert found["error"]["exit_code"] == 1
    assert "Next to try: gth" in found["error"]["message"]
    lines = err.splitlines()
    assert lines[0].startswith("ctmc: power_iteration: ITERATION_LIMIT")
    assert len(lines) == 2  # and how to go on
    assert "--start" in lines[1]
    code, out, _ = run("solve", queue, "--solver", "power_iteration", "--start", found["saved"], "--json")
    assert code == 0
    assert json.loads(out)["status"] == "CONVERGED"


def test_an_unfinished_answer_does_not_replace_a_certified_one(run, queue):
    found = [
        json.loads(run("solve", queue, "--solver", solver, "--json")[1])["saved"]
        for solver in ("power_iteration", "power_iteration(max_iterations=3)")
    ]
    assert found[0] != found[1]
    assert all(map(os.path.isfile, found))


@pytest.mark.parametrize("command", COMMANDS)
def test_json_errors_are_documents_too(run, command):
    code, out, err = run(command, "--json", "--no-such-option")
    assert code == 2
    assert json.loads(out)["error"]["type"] == "UsageError"
    one_sentence(err)


def test_debug_shows_the_traceback(run):
    code, _, err = run("solve", "missing.h5", "--debug")
    assert code == 2
    assert "Traceback" in err
    assert err.rstrip().splitlines()[-1].startswith("ctmc: ")


def test_unknown_exceptions_are_one_line(run, queue, monkeypatch):
    def crash(*_, **__):
        raise ZeroDivisionError("oh\x1b[31m")

    monkeypatch.setattr(sys.modules["ctmc.solve"], "solve", crash)  # `ctmc.solve` is the function
    code, out, err = run("solve", queue, "--json")
    assert code == 70
    assert json.loads(out)["error"]["type"] == "InternalError"
    assert "--debug" in err
    assert "\x1b" not in err


# ---- bad input --------------------------------------------------------------------------------------------------------

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


def test_doctor(run, monkeypatch, tmp_path):
    code, out, _ = run("doctor", "--json")
    found = json.loads(out)
    assert code == 0, found
    names = [check["name"] for check in found["checks"]]
    assert [name in names for name in ("Python", "numpy", "HDF5", "threading layer", "BLAS", "solvers")] == [True] * 6

    def broken(name):
        raise ctmc.PluginError("it failed to load: [bold]\x1b")

    monkeypatch.setattr(registry, "solver_class", broken)
    code, out, err = run("doctor")
    assert code == 1
    assert "it failed to load: [bold]\\x1b" in out
    one_sentence(err)


# ---- whole processes: streams, signals, other people's packages -------------------------------------------------------


def slow_solve(run):
    """Store a model that power iteration needs a minute for; return the command that solves it."""
    code, _, err = run(
        "build", "supermarket", "--service-rates", "3,2,1", "--arrival-rate", "5.5", "--choices", "2", "--capacity", "29",
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
    time.sleep(0.5)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    found = json.loads(out)
    assert found["status"] == "STOPPED"
    assert found["error"]["exit_code"] == code
    assert "\x1b" not in err.decode()
    result = run("solve", "slow.h5", "--solver", "power_iteration", "--start", found["saved"], "--tolerance", "0.5")
    assert result[0] == 0


def test_the_second_signal_leaves_at_once(run, tmp_path):
    ctmc.save("slow.h5", ctmc.build("birth_death", births=[1.0] * 2990, deaths=[1.0] * 2990))
    # gth, which knows no monitor, takes its time
    process = subprocess.Popen(
        [sys.executable, "-m", "ctmc", "solve", "slow.h5", "--solver", "gth", "-vv"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(process.stderr.fileno(), b"Stationary on Generator")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
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


def test_the_listing_names_the_default_solvers_that_are_taken():
    from ctmc.cli.listing import _problems
    from ctmc.defaults import SMALL, default_solver
    from ctmc.model.generator import Generator
    from ctmc.model.state_space import Lattice
    from ctmc.problem import Stationary

    listed = {row["name"]: row["default_solver"] for row in _problems()}
    sizes = (SMALL, SMALL + 1)
    small, large = (
        default_solver(Stationary(Generator.from_transitions([], [], [], Lattice((size - 1,))))) for size in sizes
    )
    assert listed["stationary"].startswith(f"{small} up to {SMALL} states, {large} above")


def test_the_listing_names_the_default_solvers_of_questions_about_time():
    from ctmc.cli.listing import _problems
    from ctmc.defaults import FACTORISED, FEW_EVENTS, MANY_EVENTS, SMALL, VERY_SMALL, default_solver

    def chain(size):
        return ctmc.build("birth_death", births=[1.0] * (size - 1), deaths=[1.0] * (size - 1))

    def named(kind, sizes, **settings):
        return [default_solver(kind(chain(size), **settings)) for size in sizes]

    listed = {row["name"]: row["default_solver"] for row in _problems()}
    rate = chain(3).uniformization_rate
    times = [FEW_EVENTS / rate, (FEW_EVENTS + 1) / rate, (MANY_EVENTS + 1) / rate]
    few, more, many = (default_solver(ctmc.Transient(chain(3), (0,), [time])) for time in times)
    known = (
        f"{few} up to a rate x time of {FEW_EVENTS:g}, {more} above, {many} above 1e{math.log10(MANY_EVENTS):g} up to"
    )
    assert listed["transient"] == f"{known} {FACTORISED:,} states"
    assert listed["accumulated-reward"] == listed["transient"]
    small, large = named(ctmc.DiscountedReward, (VERY_SMALL, VERY_SMALL + 1), reward="jobs", discount=1.0)
    assert listed["discounted-reward"] == f"{small} up to {VERY_SMALL} states, {large} above"
    small, large = named(ctmc.FirstPassage, (SMALL, SMALL + 1), target="jobs >= 1")
    assert listed["first-passage"] == f"{small} up to {SMALL} states, {large} above"
