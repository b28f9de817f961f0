"""`ctmc solve`: what it prints, as text, JSON and CSV, and how it fails."""

import csv
import io
import json
import os
import sys
from pathlib import Path

import command_line
import pytest
from command_line import SUPERMARKET, one_sentence

from ctmc.cli.app import COMMANDS

run = command_line.run
queue = command_line.queue


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
