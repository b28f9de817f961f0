"""What a comparison says that it is going to run: it is what it then runs, and nothing is done for it."""

import json
import os
import shlex

import pytest

import ctmc
from ctmc.cli import main
from ctmc.comparison.compare import compare
from ctmc.comparison.plan import plan
from ctmc.comparison.settings import Entry
from ctmc.errors import StudyError

STUDY = """
output = "which.h5"
[models.small]
builder = "birth_death"
births = [1.0, 1.0]
deaths = [2.0, 2.0]
[models.queue]
builder = "fork_join"
service_rates = [2, 1]
tasks = 2
sweep = {arrival_rate = [0.3, 0.4]}
[compare]
solvers = "gth,logarithmic_reduction"
levels = [6]
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs ``ctmc compare`` in a folder of its own and returns code, document and news."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments):
        code = main(["compare", *map(str, arguments), "--json"])
        shown = capsys.readouterr()
        return code, json.loads(shown.out) if shown.out else None, shown.err

    return run_command


def queues(folder, *rates):
    """Save M/M/1/8 at some arrival rates and return the files."""
    paths = []
    for rate in rates:
        paths.append(folder / f"queue {rate}.h5")
        ctmc.save(paths[-1], ctmc.build("birth_death", births=[rate] * 8, deaths=[2.0] * 8))
    return paths


def listed(document):
    return [(row["model"], row["solver"], row["tolerance"]) for row in document["plan"]]


def test_a_dry_run_of_a_study_tells_what_then_runs_and_makes_nothing(run, tmp_path):
    (tmp_path / "which.toml").write_text(STUDY)
    code, told, news = run("which.toml", "--dry-run")
    assert (code, sorted(os.listdir(tmp_path))) == (0, ["which.toml"])
    # three models and, as fork_join is declared to make QBDs, two truncations
    assert (told["models"], told["solvers"], told["runs"], told["known"], told["to_run"]) == (5, 2, 10, 0, 10)
    assert {row["done"] for row in told["plan"]} == {"to build and run"}
    assert "10 runs: 0 done already, 10 to run" in news
    code, made, _ = run("which.toml")
    assert code == 0
    assert [(row["model"], row["solver"], row["tolerance"]) for row in made["runs"]] == listed(told)
    before = (tmp_path / "which.h5").read_bytes()
    _, again, news = run("which.toml", "--dry-run", "--set", "tolerance=1e-12")
    assert (again["known"], again["to_run"], again["longest_seconds"]) == (10, 0, 0)
    assert [row["done"] for row in again["plan"]] == [row["status"] for row in made["runs"]]
    assert "at most" not in news
    _, other, _ = run("which.toml", "--dry-run", "--solvers", "gth,sparse_lu", "--time-limit", "60")
    assert [row["done"] for row in other["plan"] if row["solver"] == "sparse_lu"] == ["to run"] * 5
    assert other["known"] == 5
    assert run("which.toml", "--dry-run", "--again")[1]["to_run"] == 10
    assert (tmp_path / "which.h5").read_bytes() == before


def test_files_that_are_no_models_will_not_be_run(run, tmp_path):
    (tmp_path / "noise.h5").write_bytes(b"noise")
    (tmp_path / "ring.tra").write_text("STATES 2\nTRANSITIONS 2\n1 2 1.0\n2 1 2.0\n")
    (good,) = queues(tmp_path, 1.0)
    code, told, news = run(good, "noise.h5", "missing.h5", "ring.tra", "--solvers", "gth", "--dry-run")
    assert [row["done"] for row in told["plan"]] == ["to run", "no model", "no model", "to build and run"]
    assert (code, told["to_run"]) == (0, 2)
    assert "noise.h5: it is not" in news
    assert not (tmp_path / "comparison.h5").exists()
    assert not list(tmp_path.glob("*.store"))


def test_the_longest_time_is_that_of_ending_every_solve_from_outside():
    """A solver that does not look at its limit is ended 3 s after 1.2 times the limit; 5 s go into a first solve at most."""
    models = [Entry(name, None, unbuilt=True) for name in "abc"] + [Entry("d", None, message="there is none.")]
    each = 4 * (1.2 * 50 + 3) + 5
    assert plan(models, "gth,gmres", time_limit=50.0, repeats=4).longest_seconds == pytest.approx(6 * each)
    assert plan(models, "gth,gmres", time_limit=50.0, repeats=4, jobs=4).longest_seconds == pytest.approx(2 * each)


@pytest.mark.parametrize("more", [("--against", "old.h5"), ("--fail-if", "products:+5%")])
def test_a_dry_run_has_nothing_to_look_at_against_an_older_one(run, tmp_path, more):
    (path,) = queues(tmp_path, 1.0)
    code, document, _ = run(path, "--dry-run", *more)
    assert code == 2
    assert "--dry-run makes no runs" in document["error"]["message"]


def test_a_plan_looks_at_the_output_as_the_comparison_does(tmp_path):
    (path,) = queues(tmp_path, 1.0)
    with pytest.raises(StudyError, match="is never replaced"):
        plan([path], "gth", path)
    with pytest.raises(StudyError, match="there is no folder"):
        plan([path], "gth", tmp_path / "nowhere" / "found.h5")


@pytest.mark.slow
def test_the_command_of_a_warm_row_repeats_it(run, tmp_path):
    """With the model that it begins from; names of files are quoted."""
    paths = queues(tmp_path, 1.0, 1.9)
    how = {"warm": True, "tolerances": (1e-9,), "repeats": 2}
    row = compare(paths, "gmres(restart=7)", tmp_path / "found.h5", **how).runs[-1]
    assert row.start == "warm"
    words = shlex.split(row.command)
    assert words[:2] == ["ctmc", "compare"]
    code, again, news = run(*words[2:], "-o", tmp_path / "again.h5")
    assert code == 0, news
    last = again["runs"][-1]
    asked = ("solver", "start", "tolerance", "products", "key")
    assert [last[name] for name in asked] == [getattr(row, name) for name in asked]
    assert len(last["seconds"]) == 2
