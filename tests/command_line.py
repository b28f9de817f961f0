"""Running the command line, in this process and in others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctmc
from ctmc.cli import main

HOME = Path(ctmc.__file__).resolve().parents[1]
QUEUE = ["build", "birth_death", "--births", "1,1,1,1", "--deaths", "2,2,2,2", "-o"]
SUPERMARKET = [
    "build", "supermarket", "--service-rates", "3,2,1", "--arrival-rate", "3", "--choices", "2", "--capacity", "9",
    "--preferences", ".2,.3,.5", "--selection", "tandem", "-o",
]  # fmt: skip


def caught(capsys):
    """Return what runs the command line and gives (exit code, standard output, standard error)."""

    def command(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command line in an empty folder; gives (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return caught(capsys)


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


def one_sentence(err):
    assert err.startswith("ctmc: "), err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert "\x1b" not in err
