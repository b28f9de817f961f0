"""Variants: files that hold other rates and the name of a parent; re-rating on the command line and in studies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rerating_examples import MARKET, MODELS, check_same

import builders.supermarket
import ctmc
from ctmc.cli import main
from ctmc.errors import StorageError
from ctmc.storage import read_info, rerate
from ctmc.storage.store import Store
from ctmc.study import Watcher, parse_study, run_study

# ---- variants ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_variant_is_the_model_in_full(name, tmp_path):
    builder, parameters, changes = MODELS[name]
    (tmp_path / "sub").mkdir()
    parent, variant = tmp_path / "parent.h5", tmp_path / "sub" / "variant.h5"
    ctmc.save(parent, ctmc.build(builder, **parameters))
    fresh = ctmc.build(builder, **{**parameters, **changes})
    in_full = ctmc.save(tmp_path / "full.h5", fresh)
    assert ctmc.save(variant, ctmc.load(parent).with_rates(**changes), parent=parent) == in_full
    found = ctmc.load(variant)
    check_same(found, fresh)
    info = read_info(variant)
    assert found.content_hash == info["content_hash"] == in_full
    assert (info["kind"], info["parent"]["path"]) == ("variant", "../parent.h5")
    assert info["changes"] == changes
    # a variant of a variant points to the same parent; both move together
    assert rerate(variant, tmp_path / "sub" / "more.h5", changes).content_hash == in_full
    assert read_info(tmp_path / "sub" / "more.h5")["parent"]["path"] == "../parent.h5"
    ctmc.save(tmp_path / "sub" / "third.h5", found, parent=variant)
    away = tmp_path.with_name(f"{tmp_path.name} away")
    shutil.move(tmp_path, away)
    for file in ("variant.h5", "more.h5", "third.h5"):
        assert ctmc.load(away / "sub" / file).content_hash == in_full


def test_a_variant_is_a_few_kilobytes_however_large_its_parent(tmp_path):
    model = ctmc.build(
        "supermarket", service_rates=[3, 2, 1, 1], arrival_rate=4, choices=2, capacity=15, total_capacity=30
    )
    ctmc.save(tmp_path / "parent.h5", model)
    ctmc.save(tmp_path / "variant.h5", model.with_rates(arrival_rate=2), parent=tmp_path / "parent.h5")
    assert (tmp_path / "parent.h5").stat().st_size > 50_000
    assert (tmp_path / "variant.h5").stat().st_size < 4_000


@pytest.fixture
def variant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ctmc.save("parent.h5", ctmc.build("supermarket", **MARKET))
    rerate("parent.h5", "variant.h5", {"arrival_rate": 2.2})
    return Path("variant.h5")


def test_answers_belong_to_the_model_however_it_is_stored(variant):
    solution = ctmc.solve(ctmc.Stationary(ctmc.load(variant)), "sparse_lu")
    ctmc.storage.save_solution(variant, solution, "lu")
    ctmc.save("full.h5", ctmc.build("supermarket", **{**MARKET, "arrival_rate": 2.2}))
    shutil.copytree("variant.solutions", "full.solutions")
    stored = ctmc.storage.load_solution("full.solutions/lu.h5")
    np.testing.assert_array_equal(stored.value, solution.value)
    assert stored.model_hash == ctmc.load("full.h5").content_hash


def test_a_variant_without_its_parent_is_refused(variant):
    Path("parent.h5").rename("other.h5")
    with pytest.raises(StorageError, match=r"variant\.h5: its parent .*parent\.h5 is missing"):
        ctmc.load(variant)
    ctmc.save("parent.h5", ctmc.build("supermarket", **{**MARKET, "arrival_rate": 3.1}))
    with pytest.raises(StorageError, match=r"parent\.h5 holds another model now"):
        ctmc.load(variant)
    Path("parent.h5").write_bytes(b"text")
    with pytest.raises(StorageError, match="not an HDF5 file"):
        ctmc.load(variant)
    shutil.copy(variant, "parent.h5")  # a variant is no parent, and so none leads back to itself
    with pytest.raises(StorageError, match="it holds a 'variant'"):
        ctmc.load(variant)


def test_a_builder_of_another_version_is_refused(variant, monkeypatch):
    monkeypatch.setattr(builders.supermarket.supermarket, "version", 99)
    with pytest.raises(StorageError, match=r"variant\.h5: version 2 of the builder 'supermarket' is not installed"):
        ctmc.load(variant)


def test_a_builder_that_makes_other_rates_is_found_out(variant, monkeypatch):
    true = builders.supermarket.supermarket.rerate
    monkeypatch.setattr(
        builders.supermarket.supermarket,
        "rerate",
        lambda model, old, new: true(model, old, {**new, "arrival_rate": 2.3}),
    )
    with pytest.raises(StorageError, match="its rates are not those that the builder gives"):
        ctmc.load(variant)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parent": {"path": "/parent.h5", "content_hash": "0"}}, "allowed is a path relative to it"),
        ({"parent": {"path": "..\\parent.h5", "content_hash": "0"}}, "allowed is a path relative to it"),
        ({"parent": 3}, "its field 'parent' is 3"),
        ({"changes": {"capacity": 9}}, "capacity of supermarket cannot change without a rebuild"),
        ({"changes": {"arrival_rate": 2.2, "service_rates": "x"}}, "service_rates"),
        ({"model": {"kind": "generator", "content_hash": "0" * 64}}, "is not the one that was stored"),
        ({"model": {"kind": "qbd", "content_hash": ""}}, "is not the one that was stored"),
    ],
)
def test_manifests_that_were_made_up_are_refused(variant, change, sentence):
    from ctmc.storage.container import read_container, write_container

    whole = read_container(variant, ("variant",))
    write_container(variant, "variant", {**whole.manifest, **change}, whole.arrays, overwrite=True)
    with pytest.raises(StorageError) as caught:
        ctmc.load(variant)
    assert sentence in str(caught.value)


def test_only_a_re_rating_is_saved_as_one(variant):
    model = ctmc.load("parent.h5").with_rates(arrival_rate=2.5)
    label = {"all": np.ones(model.size, dtype=bool)}
    for other, sentence in (
        (model.replace(labels=label), "is not its parent at other rates"),
        (ctmc.build("supermarket", **{**MARKET, "choices": 1}), "choices of supermarket cannot change"),
        (ctmc.build("supermarket", **{**MARKET, "total_capacity": 5}), "other parameters than its parent"),
        (ctmc.build("birth_death", births=[1.0], deaths=[1.0]), "the same version of the same builder"),
        (ctmc.Generator.from_matrix([[0, 1.0], [1.0, 0]]), "the same version of the same builder"),
    ):
        with pytest.raises(StorageError, match=sentence):
            ctmc.save("new.h5", other, parent="parent.h5")
        assert not Path("new.h5").exists()
    with pytest.raises(StorageError, match="holds another model"):
        ctmc.save(variant, model, parent="parent.h5")
    ctmc.save(variant, model, parent="parent.h5", overwrite=True)
    assert ctmc.load(variant).recipe.parameters["arrival_rate"] == 2.5


# ---- the command line and studies ------------------------------------------------------------------------------------------


def test_the_command_line_re_rates(variant, capsys):
    assert main(["rerate", "parent.h5", "--arrival-rate", "2.5", "-o", "new.h5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    fresh = ctmc.build("supermarket", **{**MARKET, "arrival_rate": 2.5})
    assert found["content_hash"] == ctmc.save("full.h5", fresh)
    assert found["changes"] == {"arrival_rate": 2.5}
    assert main(["rerate", "-o", "newer.h5", "--service-rates", "6,4,2", "new.h5"]) == 0
    check_same(ctmc.load("newer.h5"), fresh.with_rates(service_rates=[6.0, 4.0, 2.0]))
    assert main(["solve", "new.h5", "--solver", "sparse_lu", "--json"]) == 0
    capsys.readouterr()
    assert main(["info", "new.h5", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["kind"], info["states"], info["changes"]) == ("variant", 125, {"arrival_rate": 2.5})
    assert [row["status"] for row in info["solutions"]] == ["CONVERGED"]
    assert main(["rerate", "parent.h5", "--help"]) == 0
    assert "--service-rates FLOAT,.." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["parent.h5", "-o", "x.h5"], "the flags --arrival-rate, --service-rates"),
        (["parent.h5", "--arrival-rate", "-1", "-o", "x.h5"], "arrival_rate is -1; allowed is"),
        (["parent.h5", "--arrival-rate", "fast", "-o", "x.h5"], "arrival_rate is 'fast'; allowed is FLOAT"),
        (["parent.h5", "--service-rates", "3,2,2", "-o", "x.h5"], "need a rebuild"),
        (["parent.h5", "--choices", "1", "-o", "x.h5"], "--choices cannot change without a rebuild"),
        (["missing.h5", "--arrival-rate", "1", "-o", "x.h5"], "Cannot read missing.h5"),
        (["parent.h5", "--arrival-rate", "1", "-o", "nowhere/x.h5"], "there is no folder nowhere"),
        (["--arrival-rate", "1", "-o", "x.h5"], "No such option '--arrival-rate'"),
    ],
)
def test_bad_re_ratings_are_one_sentence(variant, capsys, arguments, sentence):
    assert main(["rerate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not Path("x.h5").exists()


def test_info_of_a_variant_whose_parent_is_missing_says_so(variant, capsys):
    Path("parent.h5").unlink()
    assert main(["info", "variant.h5"]) == 0
    assert "is missing" in capsys.readouterr().out
    Path("parent.h5").write_bytes(b"text")
    assert main(["info", "variant.h5"]) == 2
    assert "parent.h5: it is not an HDF5 file" in capsys.readouterr().err


class News(Watcher):
    def __init__(self):
        self.lines = []

    def news(self, text):
        self.lines.append(text)


@pytest.fixture
def builds(tmp_path, monkeypatch):
    """Return the list of parameters of which models are built."""
    made, true = [], Store.get_or_build

    def counted(self, prepared, **known):
        made.append(prepared.recipe.parameters)
        stored = true(self, prepared, **known)
        if stored.rates:
            made.pop()
        return stored

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Store, "get_or_build", counted)
    return made


STUDY = """
[models.queues]
builder = "supermarket"
choices = 1
capacity = 3
{more}
[models.queues.sweep]
{sweep}
[[solve]]
solvers = ["sparse_lu"]
measures = ["jobs"]
"""


@pytest.mark.slow
def test_a_study_over_fifty_arrival_rates_builds_one_structure(builds):
    news = News()
    study = parse_study(STUDY.format(more="service_rates = [2.0, 2.0]", sweep='arrival_rate = "0.1:5.0:0.1"'))
    result = run_study(study, "result.h5", watcher=news)
    assert len(builds) == 1
    assert len(result.rows) == 50
    assert sum(row.model_done.startswith("re-rated: arrival_rate ") for row in result.rows) == 49
    assert any(row.model_done == "re-rated: arrival_rate 1.1" for row in result.rows)
    sizes = sorted(path.stat().st_size for path in Path().glob("*.store/*.h5"))
    assert len(sizes) == 50
    assert sizes[-2] < 4096
    for row in result.rows:  # one choice: two independent M/M/1/3 queues
        weights = (row.point["arrival_rate"] / 4) ** np.arange(4)
        assert row.measures["jobs"] == pytest.approx(2 * weights @ np.arange(4) / weights.sum(), rel=1e-9)


def test_points_that_differ_in_more_than_rates_are_built_once_for_each_structure(builds):
    news = News()
    study = parse_study(
        STUDY.format(
            more="service_rates = [2.0, 2.0]", sweep="arrival_rate = [1.0, 2.0, 3.0]\nchoices = [1, 2]"
        ).replace("\nchoices = 1", "")
    )
    result = run_study(study, "result.h5", watcher=news)
    assert [(made["choices"], made["arrival_rate"]) for made in builds] == [(1, 1.0), (2, 1.0)]
    assert [tuple(row.point.values()) for row in result.rows] == [(a, c) for a in (1.0, 2.0, 3.0) for c in (1, 2)]
    assert not result.failed


def test_points_whose_structure_depends_on_the_rates_are_built(builds):
    study = parse_study(
        STUDY.format(more="service_rates = [2.0, 2.0]", sweep="arrival_rate = [0.5, 1.0]").replace(
            "capacity = 3", 'capacity = "auto"\ntruncation_error = 1e-3'
        )
    )
    assert not run_study(study, "result.h5").failed
    assert len(builds) == 2
    builds.clear()
    study = parse_study(
        STUDY.format(
            more="arrival_rate = 1.0", sweep="service_rates = [[2.0, 2.0], [4.0, 4.0], [2.0, 1.0], [2.0, -1.0]]"
        )
    )
    result = run_study(study, "second.h5")
    assert [made["service_rates"] for made in builds] == [[2.0, 2.0], [2.0, 1.0], [2.0, -1.0]]
    assert [row.status for row in result.rows] == ["CONVERGED"] * 3 + ["NOT_BUILT"]
    assert "service_rates" in result.rows[-1].message
