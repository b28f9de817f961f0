"""The store: what is found again and what is not, what is said about it, several processes at once, read-only folders, upkeep."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ctmc
from ctmc import registry
from ctmc.cli import main
from ctmc.cli.store import days
from ctmc.errors import ModelError, StorageError, StudyError
from ctmc.storage import save_solution, solution_paths
from ctmc.storage.atomic import _temporary_file, dead_leftovers
from ctmc.storage.container import read_container, write_container
from ctmc.storage.inventory import entries, prune
from ctmc.storage.locks import BusyError, held
from ctmc.storage.store import Store, open_store
from ctmc.study import Watcher, parse_study, run_study
from ctmc.study.overrides import overridden

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


# ---- what is found again ----------------------------------------------------------------------------------------------


def test_a_second_run_gives_the_same_numbers_and_does_nothing(run, monkeypatch):
    first = run(QUEUE + QUESTIONS)
    assert set(done(first)) == {"solved: new"}
    forbid(monkeypatch)
    second = run(QUEUE + QUESTIONS)
    assert set(done(second)) == {"reused"}
    assert models_done(second) == ["reused"]
    same = ("measures", "status", "solver", "time", "iterations", "products", "seconds", "solution_file")
    assert [[row[name] for name in same] for row in first["rows"]] == [
        [row[name] for name in same] for row in second["rows"]
    ]
    assert len(first["rows"]) == 7
    assert "Models: 1 reused.  Answers: 6 reused." in run.err
    kept = read_container("study.h5", ("study",))
    assert [row["done"] for row in kept.manifest["rows"]] == done(second)
    assert len(kept.arrays["histories/0/defect"]) > 2


CHANGES = [
    ("solvers = ", "tolerance = 1e-9\nsolvers = ", "tolerance changed", "tolerance: 1e-12 -> 1e-09"),
    ('"gauss_seidel"', '"gauss_seidel(relaxation=0.9)"', "options changed", "gauss_seidel -> gauss_seidel(relaxation=0.9)"),
    ('"gauss_seidel"', '"gth"', "new", "no answer of this solver"),
    ("solvers = ", "initial = [1]\nsolvers = ", "initial changed", ""),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason", "why"), CHANGES)
def test_another_question_is_solved_and_stands_beside_the_first(run, old, new, reason, why):
    run(QUEUE + ONE)
    again = run(QUEUE + ONE.replace(old, new))
    assert models_done(again) == ["reused"]
    assert done(again) == [f"solved: {reason}"]
    assert why in again["rows"][0]["why"]
    assert len(list(Path("study.store").glob("*.solutions/*.h5"))) == 2
    assert done(run(QUEUE + ONE)) == ["reused"]
    assert done(run(QUEUE + ONE.replace(old, new))) == ["reused"]


def test_times_rewards_and_targets_are_part_of_the_question(run):
    run(QUEUE + QUESTIONS)
    text = QUESTIONS.replace("[0.5, 1]", "[0.5, 2]").replace("moments = 2", "moments = 1").replace("0.5\n[", "0.25\n[")
    found = [row["done"].removeprefix("solved: ") for row in run(QUEUE + text.replace(">= 2", ">= 1"))["rows"]]
    assert found == ["reused"] * 2 + ["times changed"] * 2 + ["moments changed", "discount changed", "target changed"]


def test_a_changed_rate_takes_one_model_at_other_rates(run):
    other = QUEUE.replace("queue", "other").replace("births = [1.0, 1.0]", "births = [1.0, 3.0]")
    run(QUEUE + ONE)
    found = run(QUEUE + other + ONE)
    assert models_done(found) == ["reused", "re-rated: births 1,3"]
    assert found["models"][1]["why"].endswith(" differs in rates only.")
    assert done(found) == ["reused", "solved: new"]
    assert "other: re-rated: births 1,3" in run.err
    assert read_container(found["models"][1]["file"], ("variant",), only=()).manifest["changes"] == {
        "births": [1.0, 3.0]
    }
    assert models_done(run(QUEUE + other + ONE)) == ["reused", "reused"]


def test_a_parent_stays_as_long_as_a_variant_of_it(run):
    other = QUEUE.replace("queue", "other").replace("births = [1.0, 1.0]", "births = [1.0, 3.0]")
    found = run(QUEUE + other + ONE)
    whole, variant = (Path(model["file"]) for model in found["models"])
    small = variant.stat().st_size
    pruned = {one.path: one.reason for one in prune(whole.parent, larger_than=small - 1, keep=[variant.name])}
    assert pruned[whole] == f"{variant.name} is this model at other rates"
    assert ctmc.load(variant).exit_rates.tolist() == [1.0, 5.0, 2.0]
    prune(whole.parent, older_than=0)
    assert not whole.exists()
    assert not variant.exists()


def test_numbers_are_compared_not_their_spelling_and_names_do_not_count(run):
    run(QUEUE + ONE)
    again = run(QUEUE.replace("queue", "renamed").replace("[1.0, 1.0]", "[1, 1]") + ONE)
    assert (models_done(again), done(again)) == (["reused"], ["reused"])


def test_another_version_of_a_builder_or_of_the_project_counts(run, monkeypatch):
    run(QUEUE + ONE)
    monkeypatch.setattr("ctmc.storage.question.project_version", lambda: "99")
    assert done(run(QUEUE + ONE)) == ["solved: version of ctmc-lab changed"]
    prepare = registry.prepare

    def newer(name, **parameters):
        from dataclasses import replace

        prepared = prepare(name, **parameters)
        return replace(prepared, recipe=replace(prepared.recipe, version=prepared.recipe.version + 1))

    monkeypatch.setattr("ctmc.study.work.registry.prepare", newer)
    assert models_done(run(QUEUE + ONE)) == ["built: version of the builder changed"]


def test_a_function_enters_with_its_source_and_one_without_is_never_found(here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    parameters = {"service_rates": [2, 1], "arrival_rate": 1, "choices": 2, "capacity": 3}

    def prepared(module, code):
        Path(f"{module}.py").write_text(f"def rule(lengths, rates, preferences):\n    return {code}\n")
        function = __import__(module).rule
        function.__module__ = "rules"
        return registry.prepare("supermarket", **parameters, selection=function)

    store = Store(here)
    first, same, other = (
        prepared(f"rules_of_test_{number}", code)
        for number, code in enumerate(("lengths / rates", "lengths / rates", "lengths * rates"))
    )
    assert store.get_or_build(first).built
    assert not store.get_or_build(same).built
    assert store.model(other.recipe) is None
    unknown = registry.prepare(
        "supermarket", **parameters, selection=lambda lengths, rates, preferences: lengths / rates
    )
    places = [store.get_or_build(unknown), store.get_or_build(unknown)]
    assert [place.built for place in places] == [True, True]
    assert places[0].path == places[1].path  # of the same content
    assert "content" in places[0].path.name
    assert store.model(unknown.recipe) is None


def test_a_store_finds_models_by_builder_and_parameters(here):
    store = Store(here)
    assert store.model("birth_death", births=[1.0], deaths=[2.0]) is None
    built = store.get_or_build(registry.prepare("birth_death", births=[1.0], deaths=[2.0]))
    assert store.model("birth_death", births=[1], deaths=(2,)) == built.path
    assert ctmc.load(built.path).to_scipy().toarray().tolist() == [[-1.0, 1.0], [2.0, -2.0]]


SEARCH = """
[models.jobs]
builder = "fork_join"
service_rates = [5, 2, 1]
arrival_rate = 1
tasks = 3
[optimize]
over = "thresholds"
minimize = "response_time"
maximum = 3
[[solve]]
measures = ["response_time"]
"""


def test_a_search_is_not_repeated_unless_it_is_another(run, cli, monkeypatch):
    assert done(run(SEARCH, "--dry-run")) == ["to solve: new"]
    first = run(SEARCH)["rows"]
    with monkeypatch.context() as patch:
        patch.setattr("ctmc.study.work.optimize", lambda *arguments, **known: pytest.fail("it searched again"))
        assert done(run(SEARCH, "--dry-run")) == ["reused"]
        again = run(SEARCH)["rows"]
        assert "known from an earlier search" in run.err
        assert (again[0]["point"], again[0]["measures"]) == (first[0]["point"], first[0]["measures"])
        assert (again[0]["done"], again[0]["model_done"]) == ("reused", "reused")
    assert run(SEARCH, "--set", "arrival_rate=0.1")["rows"][0]["measures"] != first[0]["measures"]
    assert "known" not in run.err
    assert len(list(Path("study.store/searches").iterdir())) == 2
    assert cli("verify", "study.store")["damaged"] == 0
    for path in Path("study.store/searches").iterdir():
        damage(path)
    assert cli("verify", "study.store", code=1)["damaged"] == 2
    assert run(SEARCH)["rows"][0]["point"] == first[0]["point"]
    assert "is not stored" in run.err  # what cannot be read is not replaced
    assert [row["kind"] for row in cli("prune", "study.store", "--damaged")["removed"]] == ["damaged"] * 2
    assert cli("verify", "study.store")["damaged"] == 0
    run(SEARCH)
    run(SEARCH)
    assert "known from an earlier search" in run.err


# ---- what must not be taken for an answer -----------------------------------------------------------------------------


def forge(change):
    """Write the stored answer again with another value, under hashes that are right."""
    (path,) = Path("study.store").glob("*.solutions/*.h5")
    container = read_container(path, ("solution",))
    arrays, manifest = dict(container.arrays), dict(container.manifest)
    change(arrays, manifest)
    write_container(path, "solution", manifest, arrays, overwrite=True)


def test_a_stored_answer_that_does_not_stand_up_to_the_check_is_solved_again(run):
    first = run(QUEUE + ONE)
    forge(lambda arrays, manifest: arrays.update(value=np.array([0.5, 0.3, 0.2])))
    again = run(QUEUE + ONE)
    assert done(again) == ["solved: the stored answer is not certified"]
    assert "above the tolerance" in again["rows"][0]["why"]
    assert again["rows"][0]["measures"] == first["rows"][0]["measures"]
    assert done(run(QUEUE + ONE)) == ["reused"]


def test_an_answer_of_another_shape_model_or_question_is_solved_again(run):
    run(QUEUE + ONE)
    forge(lambda arrays, manifest: arrays.update(value=np.array([0.5, 0.5])))
    assert done(run(QUEUE + ONE)) == ["solved: the stored answer is not certified"]
    forge(lambda arrays, manifest: manifest.update(model_hash="0" * 64))
    assert done(run(QUEUE + ONE)) == ["solved: the model's content changed"]
    forge(lambda arrays, manifest: manifest.update(question={**manifest["question"], "tolerance": 1e-3}))
    assert done(run(QUEUE + ONE)) == ["solved: new"]


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 400] = bytes(400)
    path.write_bytes(content)


@pytest.mark.parametrize("how", [damage, lambda path: path.write_bytes(path.read_bytes()[:700]), Path.unlink])
def test_a_damaged_model_is_built_again(run, how):
    first = run(QUEUE + ONE)
    (path,) = Path("study.store").glob("*.h5")
    how(path)
    again = run(QUEUE + ONE)
    assert models_done(again)[0].startswith("built: ")
    assert again["rows"][0]["status"] == "CONVERGED"
    assert again["rows"][0]["measures"] == first["rows"][0]["measures"]
    assert models_done(run(QUEUE + ONE)) == ["reused"]


def test_a_damaged_answer_is_solved_again(run):
    run(QUEUE + ONE)
    (path,) = Path("study.store").glob("*.solutions/*.h5")
    damage(path)
    again = run(QUEUE + ONE)
    assert done(again)[0].startswith("solved: ")
    assert again["rows"][0]["status"] == "CONVERGED"


def test_what_failed_before_is_not_tried_again_but_what_was_stopped_is(run, monkeypatch):
    text = QUEUE + '[[solve]]\nsolvers = ["power_iteration(max_iterations=2)"]\n'
    first = run(text, code=1)
    with monkeypatch.context() as patch:
        forbid(patch)
        again = run(text, code=1)
    assert done(again) == ["failed before"]
    assert again["rows"][0]["status"] == first["rows"][0]["status"] == "ITERATION_LIMIT"
    assert again["rows"][0]["message"] == first["rows"][0]["message"]
    assert done(run(text, "--rebuild", code=1)) == ["solved: --rebuild"]

    class Impatient(Watcher):
        seen = False

        def step(self, number, total, label, tolerance):
            return None if tolerance is None else self.look

        def look(self, iteration, defect):
            self.seen = iteration >= 3
            return self.seen

        def stopped(self):
            return self.seen

    study = parse_study(QUEUE + '[[solve]]\nsolvers = ["power_iteration", "gth"]\n')
    stopped = run_study(study, "study.h5", watcher=Impatient())
    assert [row.status for row in stopped.rows] == ["STOPPED", "NOT_RUN"]
    rows = run_study(study, "study.h5").rows
    assert [row.done for row in rows] == ["solved: unfinished before", "solved: new"]
    assert [row.model_done for row in rows] == ["reused"] * 2
    assert [row.status for row in rows] == ["CONVERGED"] * 2


def test_an_unfinished_answer_does_not_replace_a_certified_one(run):
    run(QUEUE + ONE)
    study = parse_study(QUEUE + ONE)

    class Stops(Watcher):
        seen = False

        def step(self, number, total, label, tolerance):
            return None if tolerance is None else self.look

        def look(self, iteration, defect):
            self.seen = True
            return True

    (row,) = run_study(study, "study.h5", watcher=Stops(), rebuild=True).rows
    assert row.status == "STOPPED"
    assert done(run(QUEUE + ONE)) == ["reused"]


def test_answers_to_different_questions_have_different_names():
    queue = ctmc.build("birth_death", births=[1.0], deaths=[2.0])
    ctmc.save("queue.h5", queue)
    asked = [ctmc.Stationary(queue), ctmc.Stationary(queue, tolerance=1e-9), ctmc.Stationary(queue)]
    names = [save_solution("queue.h5", ctmc.solve(problem, "gth")).name for problem in asked]
    assert names == ["stationary-gth.h5", "stationary-gth-2.h5", "stationary-gth.h5"]
    passage = ctmc.FirstPassage(queue, lambda states: states[:, 0] == 1)
    names = {save_solution("queue.h5", ctmc.solve(passage)).name for _ in range(2)}
    assert len(names) == 2  # two functions without a name cannot be told to be the same
    assert len(solution_paths("queue.h5")) == 4


# ---- options ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_tells_what_a_run_then_does_and_makes_nothing(run):
    plan = run(QUEUE + ONE, "--dry-run", "--why")
    assert sorted(os.listdir()) == ["study.toml"]
    assert models_done(plan) == ["to build: new"]
    assert [row["status"] for row in plan["rows"]] == ["PLANNED"]
    assert "the store has no model like it" in run.err
    run(QUEUE + ONE)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    text = QUEUE + ONE.replace('"]', '", "gauss_seidel(relaxation=0.9)"]')
    assert done(run(text, "--dry-run")) == ["reused", "to solve: options changed"]
    assert {path: path.read_bytes() for path in before if path.suffix == ".h5"} == {
        path: content for path, content in before.items() if path.suffix == ".h5"
    }
    assert done(run(text)) == ["reused", "solved: options changed"]
    (path,) = Path("study.store").glob("*.h5")
    container = read_container(path, ("generator",))  # good hashes over what is no generator
    arrays = {**container.arrays, "exit_rates": -container.arrays["exit_rates"]}
    write_container(path, "generator", container.manifest, arrays, overwrite=True)
    content = path.read_bytes()
    assert done(run(text, "--dry-run")) == ["to solve: unknown"] * 2
    assert path.read_bytes() == content
    again = run(text)
    assert again["rows"][0]["model_done"] == "built: the stored file cannot be read"
    assert done(again) == ["reused"] * 2


def test_the_reasons_are_told_on_demand(run):
    run(QUEUE + ONE)
    run(QUEUE + ONE, "--set", "tolerance=1e-6", "--why")
    assert "queue, stationary, gauss_seidel: solved: tolerance changed (tolerance: 1e-12 -> 1e-06)" in run.err


def test_fail_fast_ends_at_the_first_failure_and_others_go_on_without_it(run):
    text = QUEUE + '[[solve]]\nsolvers = ["power_iteration(max_iterations=2)", "gth"]\n'
    assert [row["status"] for row in run(text, code=1)["rows"]] == ["ITERATION_LIMIT", "CONVERGED"]
    rows = run(text, "--fail-fast", code=1)["rows"]
    assert [row["status"] for row in rows] == ["ITERATION_LIMIT", "NOT_RUN"]
    assert "--fail-fast" in rows[1]["message"]
    broken = QUEUE.replace("queue", "broken").replace("births = [1.0, 1.0]", "births = [1.0]")
    rows = run(broken + QUEUE + ONE, "--fail-fast", code=1)["rows"]
    assert [row["status"] for row in rows] == ["NOT_BUILT", "NOT_BUILT"]
    assert "--fail-fast" in rows[1]["message"]


def test_a_store_of_ones_own_is_shared_by_studies(run, monkeypatch):
    run(QUEUE + ONE, "--store", "shared")
    assert not Path("study.store").exists()
    monkeypatch.setenv("CTMC_STORE", "shared")
    assert done(run(QUEUE + ONE, "-o", "other.h5")) == ["reused"]
    assert sorted(os.listdir()) == ["other.h5", "shared", "study.h5", "study.toml"]
    Path("study.toml").write_text(QUEUE + ONE)
    assert main(["run", "study.toml", "--store", "no/such/folder"]) == 2


MARKET = """
[models.market]
builder = "supermarket"
service_rates = [2, 1]
arrival_rate = 1
choices = 2
capacity = 3
"""


def test_values_can_be_set_on_the_command_line(run):
    rows = run(MARKET + "[[solve]]\n", "--set", "arrival_rate=0.5,1", "--set", "choices=1:2")["rows"]
    assert [row["point"] for row in rows] == [
        {"arrival_rate": rate, "choices": choices} for rate in (0.5, 1) for choices in (1, 2)
    ]
    rows = run(MARKET + "[[solve]]\n", "--set", "market.service_rates=3,2")["rows"]
    assert rows[0]["model_done"] == "built: parameter service_rates changed"
    assert read_container("study.h5", ("study",), only=()).manifest["changes"] == ["market.service_rates=3,2"]
    content = {"models": {"a": {"builder": "supermarket", "sweep": {"arrival_rate": [1]}}, "b": {"builder": "gone"}}}
    assert overridden(content, ["a.arrival_rate=0.5:2:0.5"])["models"]["a"]["sweep"] == {"arrival_rate": "0.5:2:0.5"}
    assert overridden(content, ["arrival_rate=3"])["models"]["a"] == {"builder": "supermarket", "arrival_rate": 3.0}
    assert content["models"]["a"]["sweep"] == {"arrival_rate": [1]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("arrival_rat=2", "did you mean 'arrival_rate'"),
        ("shop.arrival_rate=2", "no model 'shop'"),
        ("arrival_rate=much", "arrival_rate"),
        ("arrival_rate", "allowed is KEY=VALUE"),
        ("=2", "allowed is KEY=VALUE"),
        ("tolerance=tiny", "tolerance"),
        ("arrival_rate=1:1e12:1e-3", "makes"),
        ("tolerance=7", "allowed is a number between 0 and 1"),
    ],
)
def test_a_bad_change_is_one_sentence(change, message):
    with pytest.raises(StudyError, match=message) as caught:
        parse_study(MARKET + "[[solve]]\n", changes=(change,))
    assert "\n" not in str(caught.value)


# ---- several processes ------------------------------------------------------------------------------------------------

SLOW = """
import os, sys, time
from contextlib import ExitStack
from pathlib import Path
from ctmc import registry
from ctmc.cli import main
from ctmc.model.recipe import Prepared
from ctmc.storage.atomic import _temporary_file
from ctmc.storage.store import Store

prepare, seconds, half, arguments = registry.prepare, float(sys.argv[1]), sys.argv[2], sys.argv[3:]

def slow(name, **parameters):
    prepared = prepare(name, **parameters)
    def build():
        with ExitStack() as stack:
            if half == "half":
                path, _ = stack.enter_context(_temporary_file(Store(Path("shared"))._place(prepared.recipe)))
                path.write_text("half of a model")
            with open("builds", "a") as file:
                file.write(f"{os.getpid()}\\n")
            time.sleep(seconds)
            return prepared.build()
    return Prepared(prepared.recipe, build)

registry.prepare = slow
sys.exit(main(arguments))
"""


def process(seconds, *arguments, half="whole"):
    command = [
        sys.executable,
        "-c",
        SLOW,
        str(seconds),
        half,
        "run",
        "study.toml",
        "--store",
        "shared",
        "--json",
        *arguments,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def leftovers():
    return [path for path in Path("shared").rglob("*") if path.is_file() and path.suffix != ".h5"]


def test_four_processes_build_a_model_once(run):
    Path("study.toml").write_text(QUEUE + ONE)
    Path("shared").mkdir()
    several = [process(1.5, "-o", f"result{k}.h5") for k in range(4)]
    documents = []
    for one in several:
        out, err = one.communicate(timeout=100)
        assert one.returncode == 0, err
        documents.append(json.loads(out))
    assert len(Path("builds").read_text().split()) == 1
    assert sorted(name for document in documents for name in models_done(document)) == ["built: new"] + ["reused"] * 3
    measures = [document["rows"][0]["measures"] for document in documents]
    assert measures == [measures[0]] * 4
    assert measures[0]["jobs"] == pytest.approx(4 / 7, abs=1e-12)
    assert sum(name == "solved: new" for document in documents for name in done(document)) == 1
    assert leftovers() == []


def test_when_the_one_who_builds_is_killed_another_takes_over(run):
    Path("study.toml").write_text(QUEUE + ONE)
    Path("shared").mkdir()
    first = process(100, "-o", "first.h5", half="half")
    try:
        wait_for(lambda: Path("builds").exists())
        second = process(0, "-o", "second.h5")
        line = second.stderr.readline()
        while "waiting" not in line:
            assert line, "the second did not wait"
            line = second.stderr.readline()
        assert f"waiting for process {first.pid} on " in line
        assert any(path.suffix == ".part" for path in leftovers())
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    out, err = second.communicate(timeout=100)
    assert second.returncode == 0, err
    assert models_done(json.loads(out)) == ["built: new"]
    assert Path("builds").read_text().split() == [str(first.pid), str(second.pid)]
    assert leftovers() == []


def test_an_answer_that_another_process_gives_meanwhile_is_taken(run, monkeypatch):
    run(QUEUE + ONE)
    (path,) = Path("study.store").glob("*.solutions/*.h5")
    path.rename("aside.h5")

    @contextlib.contextmanager
    def locked(store, name, *, waiting, stopped):
        waiting("process 7 on elsewhere")
        Path("aside.h5").rename(path)
        yield True

    monkeypatch.setattr(Store, "locked", locked)
    forbid(monkeypatch)
    assert done(run(QUEUE + ONE)) == ["reused"]
    assert "waiting for process 7 on elsewhere, which solves the same" in run.err


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def test_waiting_can_be_given_up(here):
    with held(here, "queue") as waited:
        assert waited is False
        told = []
        with (
            pytest.raises(BusyError, match=f"process {os.getpid()} on "),
            held(here, "queue", waiting=told.append, stopped=lambda: bool(told)),
        ):
            pytest.fail("it is held")
        assert len(told) == 1
        with pytest.raises(BusyError), held(here, "queue"):
            pytest.fail("it is held")
    prepared = registry.prepare("birth_death", births=[1.0], deaths=[2.0])
    store = Store(here)
    with store.locked(prepared.recipe.hash[:32]), pytest.raises(StorageError, match="given up"):
        store.get_or_build(prepared, stopped=lambda: True)
    assert store.get_or_build(prepared).built


# ---- a store that cannot be written -----------------------------------------------------------------------------------


@pytest.fixture
def frozen(monkeypatch):
    """Make a folder read only, as a file system that is mounted so."""

    def freeze(folder):
        folder = os.fspath(Path(folder).resolve())

        def guarded(function, changes=lambda *arguments: True):
            def guard(*arguments, **known):
                inside = any(
                    isinstance(one, str | os.PathLike) and os.path.abspath(one).startswith(folder)
                    for one in arguments[:2]
                )
                if inside and changes(*arguments):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
                return function(*arguments, **known)

            return guard

        for name in ("mkdir", "unlink", "replace", "rename", "link", "utime", "rmdir"):
            monkeypatch.setattr(os, name, guarded(getattr(os, name)))
        monkeypatch.setattr(
            os, "open", guarded(os.open, lambda path, flags, *_: flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        )

    return freeze


def test_a_store_that_cannot_be_written_is_read(run, cli, frozen):
    Path("archive/.locks").mkdir(parents=True)
    run(QUEUE + ONE, "--store", "archive")
    before = sorted(Path("archive").rglob("*"))
    frozen("archive")
    again = run(QUEUE + ONE, "--store", "archive", "-o", "second.h5")
    assert (models_done(again), done(again)) == (["reused"], ["reused"])
    assert "The store archive cannot be written" in run.err
    assert "second.store" in run.err
    more = ONE.replace('"]', '", "gth"]')
    other = QUEUE.replace("queue", "other").replace("[1.0, 1.0]", "[1.0, 3.0]")
    third = run(QUEUE + other + more, "--store", "archive", "-o", "second.h5")
    assert models_done(third) == ["reused", "built: parameter births changed"]
    assert done(third) == ["reused", "solved: new", "solved: new", "solved: new"]
    assert set(done(run(QUEUE + other + more, "--store", "archive", "-o", "second.h5"))) == {"reused"}
    assert sorted(Path("archive").rglob("*")) == before
    assert open_store("archive", Path("second.store")).folders == (Path("second.store"), Path("archive"))
    with pytest.raises(StorageError, match="Read-only file system"):
        open_store("archive")
    assert cli("verify", "archive")["damaged"] == 0
    assert [row["stays"] for row in cli("prune", "archive", "--larger-than", "1")["removed"]] == [
        "Read-only file system"
    ] * 2


# ---- upkeep -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(capsys):
    def command(*arguments, code=0):
        assert main(["store", *arguments, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return command


def age(path, number):
    then = time.time() - 86400 * number
    os.utime(path, (then, then))


def test_a_store_is_listed(run, cli, capsys, monkeypatch):
    run(MARKET + QUEUE + ONE)
    Path("study.store/broken.h5").write_text("x")
    rows = {row["builder"]: row for row in cli("list", "study.store")["models"]}
    assert (rows["birth_death"]["states"], rows["supermarket"]["states"]) == (3, 16)
    assert rows["supermarket"]["parameters"]["service_rates"] == [2, 1]
    assert rows["supermarket"]["solutions"] == 1
    assert "broken.h5" in rows[None]["problem"]
    monkeypatch.setenv("CTMC_STORE", "study.store")
    assert main(["store", "list"]) == 0
    shown = capsys.readouterr().out
    assert "births=1,1 deaths=2,2" in shown
    assert main(["store", "list", "missing"]) == 2
    monkeypatch.delenv("CTMC_STORE")
    assert main(["store", "list"]) == 2
    assert "CTMC_STORE" in capsys.readouterr().err


def test_every_file_of_a_store_is_verified(run, cli):
    run(QUEUE + QUESTIONS)
    good = cli("verify", "study.store")
    assert good["damaged"] == 0
    assert len(good["files"]) == 7
    model = next(Path("study.store").glob("*.h5"))
    for path in (model, *solution_paths(model)):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        found = cli("verify", "study.store", code=1)
        assert path.relative_to("study.store").as_posix() in [
            file["name"] for file in found["files"] if file["problem"]
        ]
        path.write_bytes(content)
    other = ctmc.build("birth_death", births=[5.0], deaths=[2.0])
    ctmc.save("other.h5", other)
    stranger = save_solution("other.h5", ctmc.solve(ctmc.Stationary(other)), folder=solution_paths(model)[0].parent)
    assert "another model" in ctmc.verify(stranger).problem


def test_nothing_but_leftovers_goes_without_a_condition(run, cli):
    run(QUEUE + ONE)
    model = next(Path("study.store").glob("*.h5"))
    part = Path(f"study.store/.{model.name}.0123abcd.part")
    part.write_text("half")
    own = Path("study.store/.mine.part")
    own.write_text("precious")
    assert dead_leftovers(Path("study.store"), remove=False) == [part]
    assert [row["name"] for row in cli("prune", "study.store", "--dry-run")["removed"]] == [part.name]
    assert part.exists()
    assert [row["kind"] for row in cli("prune", "study.store")["removed"]] == ["leftover"]
    assert not part.exists()
    assert own.exists()
    with _temporary_file(model) as (alive, _):  # of a writer who lives
        assert cli("prune", "study.store")["removed"] == []
        assert alive.exists()
    assert done(run(QUEUE + ONE)) == ["reused"]


def test_conditions_are_met_together_and_what_goes_is_made_again(run, cli, monkeypatch):
    run(QUEUE + ONE)
    run(MARKET + ONE, "-o", "market.h5", "--store", "study.store")
    for entry in entries(Path("study.store"), solutions=True):
        age(entry.path, 40)
    run(MARKET + ONE, "-o", "market.h5", "--store", "study.store")  # used: young again
    assert cli("prune", "study.store", "--older-than", "6w")["removed"] == []
    assert cli("prune", "study.store", "--older-than", "30d", "--larger-than", "1GB")["removed"] == []
    gone = cli("prune", "study.store", "--older-than", "30d")["removed"]
    assert [row["kind"] for row in gone] == ["model", "solution"]
    assert all(row["name"].startswith("birth_death-") for row in gone)
    assert [entry.builder for entry in entries(Path("study.store"))] == ["supermarket"]
    run(QUEUE + ONE)
    gone = cli("prune", "study.store", "--keep", "study.h5")["removed"]
    assert [row["name"].partition("-")[0] for row in gone] == ["supermarket"] * 2
    assert done(run(QUEUE + ONE)) == ["reused"]
    cli("prune", "study.store", "--keep", "study.h5", "--larger-than", "1kB")
    assert done(run(QUEUE + ONE)) == ["reused"]
    next(Path("study.store").glob("*.h5")).unlink()  # an answer outlives its model
    again = run(QUEUE + ONE)
    assert (models_done(again), done(again)) == (["built: new"], ["reused"])


def test_a_model_that_is_being_built_stays(run):
    run(QUEUE + ONE)
    folder = Path("study.store")
    (entry,) = entries(folder)
    with Store(folder).locked(entry.recipe_hash[:32]):
        stays = prune(folder, larger_than=0)
    assert [bool(item.reason) for item in stays] == [True, False]
    assert f"process {os.getpid()}" in stays[0].reason
    assert entry.path.exists()


def test_a_prune_that_dies_anywhere_leaves_whole_files(run, monkeypatch):
    text = QUEUE + QUESTIONS
    run(text)
    unlink = Path.unlink
    for number in range(8):
        left = [number]

        def dying(path, missing_ok=False, left=left):
            if path.suffix == ".h5":
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1
            unlink(path, missing_ok=missing_ok)

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(Path, "unlink", dying)
            prune(Path("study.store"), larger_than=0)
        files = list(Path("study.store").rglob("*.h5"))
        assert len(files) == 7 - min(number, 7)
        assert all(ctmc.verify(path).trusted for path in files)
        assert {row["status"] for row in run(text)["rows"]} == {"CONVERGED"}


def test_ages():
    assert [days(text) for text in ("30d", "36h", "2w", "1y")] == [30, 1.5, 14, 365]
    for text in ("30", "d", "-1d", "nan d", ""):
        with pytest.raises(ModelError, match="--older-than is"):
            days(text)


def test_the_commands_of_the_store_are_completed(capfd, monkeypatch):
    monkeypatch.setenv("_CTMC_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "ctmc store ")
    monkeypatch.setenv("COMP_CWORD", "2")
    with contextlib.suppress(SystemExit):
        main([])
    assert [line.partition(",")[2] for line in capfd.readouterr().out.split()] == ["list", "prune", "verify"]
