"""Studies that use a store, run in a folder of their own."""

import json
from pathlib import Path

import pytest

from ctmc.cli import main

QUEUE = '[models.queue]\nbuilder = "birth_death"\nbirths = [1.0, 1.0]\ndeaths = [2.0, 2.0]\n'
QUESTIONS = """
[[solve]]
solvers = ["gth", "power_iteration"]
[[solve]]
problem = "transient"
initial = [0]
times = [0.5, 1]
[[solve]]
problem = "accumulated-reward"
reward = "jobs"
initial = [0]
times = [1]
moments = 2
[[solve]]
problem = "discounted-reward"
reward = "jobs"
initial = [0]
discount = 0.5
[[solve]]
problem = "first-passage"
target = "jobs >= 2"
initial = [0]
"""
ONE = '[[solve]]\nsolvers = ["gauss_seidel"]\n'


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CTMC_STORE", raising=False)
    monkeypatch.setattr("ctmc.cli.run._picture", lambda study, result, out: None)  # it takes longer than all the rest
    return tmp_path


@pytest.fixture
def run(capsys):
    def command(text, *arguments, code=0):
        Path("study.toml").write_text(text)
        assert main(["run", "study.toml", "--json", *arguments]) == code
        captured = capsys.readouterr()
        command.err = captured.err
        return json.loads(captured.out)

    return command


def done(document):
    return [row["done"] for row in document["rows"]]


def models_done(document):
    return [model["done"] for model in document["models"]]


def forbid(monkeypatch):
    """Let nothing be built or solved."""

    def never(*arguments, **known):
        raise AssertionError("it was done again")

    monkeypatch.setattr("ctmc.study.work.solve", never)
    monkeypatch.setattr("ctmc.storage.store.save", never)


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 400] = bytes(400)
    path.write_bytes(content)


MARKET = """
[models.market]
builder = "supermarket"
service_rates = [2, 1]
arrival_rate = 1
choices = 2
capacity = 3
"""


@pytest.fixture
def cli(capsys):
    def command(*arguments, code=0):
        assert main(["store", *arguments, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return command
