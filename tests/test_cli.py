"""The command line: help, names, completion, values of flags, build, info, doctor and the listings."""

import csv
import dataclasses
import io
import json
import math
from pathlib import Path

import command_line
import pytest
from command_line import QUEUE, SUPERMARKET, one_sentence, python

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

run = command_line.run
queue = command_line.queue


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


# ---- build, info, doctor, the listings ---------------------------------------------------------------------------------


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
    assert "\n1 solution\n" in out
    code, out, _ = run("info", solution["file"], "--json")
    assert code == 0
    assert json.loads(out)["kind"] == "solution"


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


def test_the_listing_names_the_default_solvers_that_are_taken():
    from ctmc.cli.listing import _problems
    from ctmc.defaults import LONG, SMALL, default_solver

    def line(size):
        return ctmc.Stationary(ctmc.build("birth_death", births=[1.0] * (size - 1), deaths=[2.0] * (size - 1)))

    def box(*capacity):
        return ctmc.Stationary(
            ctmc.build("tandem_network", service_rates=[2.0, 1.8], arrival_rate=1.6, capacity=list(capacity))
        )

    listed = {row["name"]: row["default_solver"] for row in _problems()}
    small, wide, narrow = (default_solver(problem) for problem in (line(SMALL), box(59, 59), line(SMALL + 1)))
    assert listed["stationary"].startswith(
        f"{small} up to {SMALL} states, {wide} above, {narrow} for {LONG} and more levels that are narrow;"
    )
    assert [default_solver(box(LONG - k, 19)) for k in (1, 2)] == [narrow, wide]


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
    wide = ctmc.build("tandem_network", service_rates=[2.0, 1.8, 1.9], arrival_rate=1.0, capacity=[20, 20, 20])
    for name, kind, most, settings in (
        ("discounted-reward", ctmc.DiscountedReward, VERY_SMALL, {"reward": "jobs", "discount": 1.0}),
        ("first-passage", ctmc.FirstPassage, SMALL, {"target": "jobs >= 1"}),
    ):
        small, narrow = named(kind, (most, most + 1), **settings)
        other = default_solver(kind(wide, **settings))
        assert listed[name] == f"{small} up to {most} states, {narrow} above where that is quick, else {other}"
