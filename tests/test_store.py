"""The store: what is found again and what is not, what is said about it, and options of a run."""

import os
from pathlib import Path

import pytest
import store_examples
from store_examples import MARKET, ONE, QUESTIONS, QUEUE, damage, done, forbid, models_done

import ctmc
from ctmc import registry
from ctmc.cli import main
from ctmc.errors import StudyError
from ctmc.storage.container import read_container, write_container
from ctmc.storage.inventory import prune
from ctmc.storage.store import Store
from ctmc.study import parse_study
from ctmc.study.overrides import overridden

here = store_examples.here
run = store_examples.run
cli = store_examples.cli


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
