"""Stores in which something stands where it does not belong, and variants that are none."""

from __future__ import annotations

import errno
import os
import shutil
import time

import numpy as np
import pytest
from forged_models import refused

import ctmc
from ctmc import registry
from ctmc.model.recipe import Prepared
from ctmc.storage import inventory, read_info, rerate, save_solution, store, variants
from ctmc.storage.container import read_container, write_container
from ctmc.storage.gate import opened
from ctmc.storage.store import Store, open_store


def queue(births=1.0, deaths=2.0):
    return registry.prepare("birth_death", births=[births], deaths=[deaths])


@pytest.fixture
def here(tmp_path):
    return Store(tmp_path)


# Models


def test_a_model_that_another_process_built_meanwhile_is_taken(here, monkeypatch):
    path = here.get_or_build(queue()).path
    found = iter([None, path])
    monkeypatch.setattr(Store, "model", lambda self, recipe: next(found))
    again = here.get_or_build(queue())
    assert (again.path, again.built) == (path, False)


def test_both_names_of_a_model_that_are_taken_are_told(here):
    prepared = queue()
    first, second = (here.folder / name for name in store._names(prepared.recipe))
    first.write_text("mine")
    assert here.get_or_build(prepared).path == second
    second.write_text("mine, too")
    refused(f"{first.name} cannot be read and stands in the way", here.get_or_build, prepared)
    assert (first.read_text(), second.read_text()) == ("mine", "mine, too")


def test_a_model_whose_parent_is_damaged_is_built(here):
    parent = here.get_or_build(queue())
    with opened(parent.path) as file:
        (chunk,) = file.chunks("exit_rates", file.arrays()["exit_rates"])
    with parent.path.open("r+b") as file:
        file.seek(chunk.address)
        file.write(bytes(4))
    assert read_info(parent.path)["builder"]["name"] == "birth_death"
    made = here.get_or_build(queue(births=1.5))
    assert (made.built, dict(made.rates)) == (True, {})
    assert read_info(made.path)["kind"] == "generator"


def test_a_parent_that_gives_another_recipe_is_not_taken(here):
    """A parameter at its default that the parent's file names: the model at other rates would name it as well."""
    prepared = registry.prepare("supermarket", service_rates=[2, 1], arrival_rate=1, choices=2, capacity=3)
    parent = prepared.build()
    recipe = parent.recipe
    named = {**recipe.parameters, "sampling": _default("supermarket", "sampling")}
    other = type(recipe)(recipe.builder, recipe.version, named, recipe.functions)
    ctmc.save(here.folder / "supermarket-other.h5", parent.replace(recipe=other))
    changed = registry.prepare("supermarket", service_rates=[2, 1], arrival_rate=2, choices=2, capacity=3)
    found = here.parent(changed.recipe)
    assert found == (here.folder / "supermarket-other.h5", {"arrival_rate": 2})
    made = here.get_or_build(changed)
    assert (made.built, read_info(made.path)["builder"]["recipe_hash"]) == (True, changed.recipe.hash)


def _default(builder, name):
    return registry.builder_parameters(builder).parameters[name].default


def test_a_recipe_without_its_builder_has_no_parent(here):
    here.get_or_build(queue())
    recipe = queue(births=3.0).recipe
    assert here.parent(recipe) is not None
    assert here.parent(type(recipe)(recipe.builder, recipe.version, recipe.parameters)) is None


def test_models_without_a_recipe_are_named_by_their_content(here):
    model = ctmc.Generator.from_matrix([[-1, 1], [2, -2]])
    prepared = Prepared(None, lambda: model)
    first, second = (here.get_or_build(prepared, builder="../mine") for _ in range(2))
    assert first.path == second.path
    assert first.path.name.startswith("..%2Fmine-")
    assert first.path.parent == here.folder
    assert here.model("birth_death", births=[9.0], deaths=[9.0]) is None


def test_only_recipes_of_the_builder_are_told(here):
    here.get_or_build(queue())
    ctmc.save(here.folder / "birth_death-stranger.h5", ctmc.Generator.from_matrix([[-1, 1], [2, -2]]))
    (here.folder / "birth_death-letter.h5").write_text("no model")
    (here.folder / "birth_death-folder.h5").mkdir()
    tandem = registry.prepare("tandem_network", service_rates=[3, 2], arrival_rate=1, total_capacity=3).build()
    ctmc.save(here.folder / "birth_death-other.h5", tandem)
    (only,) = here.recipes("birth_death")
    assert only["parameters"] == {"births": [1.0], "deaths": [2.0]}
    assert store.recipe_hash(here.folder / "birth_death-folder.h5") is None


def test_locks_that_cannot_stand_in_the_store_stand_elsewhere(here, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(store, "cache_folder", lambda: elsewhere)
    (here.folder / store.LOCKS).write_text("in the way")
    with here.locked("queue"):
        assert [path.suffix for path in sorted(elsewhere.iterdir())] == [".holder", ".lock"]
    assert list(elsewhere.iterdir()) == []


def test_a_store_that_cannot_be_made_or_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    refused("file cannot be made: File exists", open_store, tmp_path / "file")
    other, full = tmp_path / "other", tmp_path / "full"
    full.mkdir()
    real = store.tempfile.TemporaryFile

    def temporary(dir):
        if dir == full:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(dir=dir)

    monkeypatch.setattr(store.tempfile, "TemporaryFile", temporary)
    refused("full cannot be written: Read-only file system", open_store, full)
    refused("full cannot be written: Read-only file system", open_store, full, full)
    assert open_store(full, other).folders == (other, full)


# What a store holds


@pytest.fixture
def kept(here):
    """A store with a model, its answer, a variant, an answer without a model, a search, a damaged file, and a leftover."""
    parent = here.get_or_build(queue())
    save_solution(parent.path, ctmc.solve(ctmc.Stationary(ctmc.load(parent.path)), "gth"))
    variant = here.get_or_build(queue(births=1.5))
    assert read_info(variant.path)["kind"] == "variant"
    gone = here.get_or_build(registry.prepare("birth_death", births=[1.0, 1.0], deaths=[2.0, 2.0]))
    save_solution(gone.path, ctmc.solve(ctmc.Stationary(ctmc.load(gone.path)), "gth"))
    gone.path.unlink()
    (here.folder / inventory.SEARCHES).mkdir()
    write_container(here.folder / "searches" / "one.h5", "search", {"about": {}}, {"none": np.empty(0)})
    (here.folder / "broken.h5").write_text("no model")
    (here.folder / ".x.h5.0123abcd.part").touch()
    return here, parent.path, variant.path


def test_everything_in_a_store_is_listed(kept):
    here, parent, variant = kept
    found = {
        entry.path.relative_to(here.folder).as_posix(): entry
        for entry in inventory.entries(here.folder, solutions=True)
    }
    kinds = sorted(entry.kind for entry in found.values())
    assert kinds == ["damaged", "model", "model", "search", "solution", "solution"]
    assert (found[parent.name].states, found[parent.name].solutions) == (2, 1)
    assert found[variant.name].builder == "birth_death"
    assert "broken.h5" in found["broken.h5"].problem
    assert {entry.kind for entry in inventory.entries(here.folder)} == {"model", "damaged"}
    told = []
    damaged = inventory.verify(
        here.folder, lambda path: "bad" if path.name == "broken.h5" else "", lambda *one: told.append(one)
    )
    assert (damaged, len(told)) == (1, len(found))
    assert inventory.array_length({}, "exit_rates") is None
    assert inventory.checked_folder(here.folder) == here.folder
    refused("nowhere is not there", inventory.checked_folder, here.folder / "nowhere")


def names(pruned):
    return sorted(one.path.name for one in pruned if not one.reason)


def test_what_meets_all_conditions_goes_and_nothing_else(kept):
    here, parent, variant = kept
    before = sorted(here.folder.rglob("*"))
    leftover, folder = ".x.h5.0123abcd.part", here.folder
    for options in ({}, {"older_than": 1}, {"larger_than": 10**9}, {"older_than": 0, "larger_than": 10**9}):
        assert names(inventory.prune(folder, dry_run=True, **options)) == [leftover], options
    assert names(inventory.prune(folder, damaged=lambda path: path.name[:6] == "broken", dry_run=True)) == [
        leftover,
        "broken.h5",
    ]
    assert sorted(folder.rglob("*")) == before
    # the parent stays as long as a variant of it does
    stays = inventory.prune(folder, keep=[variant.name, "broken.h5"], dry_run=True)
    reasons = {one.path.name: one.reason for one in stays}
    assert reasons[parent.name] == f"{variant.name} is this model at other rates"
    assert "one.h5" not in reasons  # results do not name searches
    month = time.time() - 30 * inventory.SECONDS_PER_DAY
    os.utime(folder / "searches" / "one.h5", (month, month))
    assert names(inventory.prune(folder, older_than=29)) == [leftover, "one.h5"]
    assert not (folder / "searches").exists()
    assert "broken.h5" in os.listdir(folder)
    assert names(inventory.prune(folder, damaged=lambda path: path.name[:6] == "broken")) == ["broken.h5"]
    inventory.prune(folder, larger_than=0)
    assert [path.name for path in folder.rglob("*.h5")] == []


def test_what_cannot_be_removed_stays_and_says_why(kept, monkeypatch):
    here, parent, variant = kept
    variant.unlink()
    with here.locked(read_info(parent)["builder"]["recipe_hash"][:32]):
        stays = {one.path: one.reason for one in inventory.prune(here.folder, larger_than=0, keep=["searches"])}
    assert stays[parent].endswith("is building it")

    def unlink(path, missing_ok=False):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("pathlib.Path.unlink", unlink)
    stays = {one.path: one.reason for one in inventory.prune(here.folder, larger_than=0)}
    assert stays[parent] == "Permission denied"
    assert parent.exists()


# Variants


def forge(change):
    def make(folder):
        found = read_container(folder / "fast.h5", ["variant"])
        manifest, arrays = dict(found.manifest), dict(found.arrays)
        change(manifest, arrays)
        write_container(folder / "fast.h5", "variant", manifest, arrays, overwrite=True)

    return make


def parent_named(path):
    return forge(lambda manifest, arrays: manifest["parent"].update(path=path))


def another_parent(folder):
    ctmc.save(folder / "whole.h5", queue(deaths=7.0).build(), overwrite=True)


VARIANTS = {
    "no name": (parent_named(""), "its parent is ''; allowed is a path relative to it"),
    "an absolute path": (parent_named("/whole.h5"), "its parent is '/whole.h5'; allowed is a path"),
    "a path of another system": (parent_named("a\\whole.h5"), "allowed is a path relative to it, with slashes"),
    "a name with NUL": (parent_named("a\0"), "allowed is a path relative to it"),
    "a parent that is gone": (lambda folder: (folder / "whole.h5").unlink(), "whole.h5 is missing; put it back there"),
    "another parent": (another_parent, "whole.h5 holds another model now (content hash"),
    "a variant of itself": (parent_named("fast.h5"), "it holds a 'variant'"),
    "rates of its own": (forge(lambda m, a: a.update({"rates/unit": np.ones(1)})), "its rates are not those that the builder gives"),
    "another model": (forge(lambda m, a: m["model"].update(content_hash="0" * 64)), "is not the one that was stored"),
    "another kind": (forge(lambda m, a: m["model"].update(kind="qbd")), "is not the one that was stored"),
    "no model": (forge(lambda m, a: m.update(model=3)), "its field 'model' is 3"),
}  # fmt: skip


@pytest.mark.parametrize("fault", VARIANTS)
def test_a_variant_that_is_none_is_refused(tmp_path, fault):
    ctmc.save(tmp_path / "whole.h5", queue().build())
    rerate(tmp_path / "whole.h5", tmp_path / "fast.h5", {"births": [3.0]})
    assert ctmc.load(tmp_path / "fast.h5").exit_rates.tolist() == [3.0, 2.0]
    damage, sentence = VARIANTS[fault]
    damage(tmp_path)
    for take in (ctmc.load, ctmc.storage.load_fitting):
        refused(sentence, take, tmp_path / "fast.h5")
        refused("fast.h5", take, tmp_path / "fast.h5")


def test_rates_that_a_table_holds_are_compared(tmp_path):
    market = registry.prepare("supermarket", service_rates=[2, 1], arrival_rate=1, choices=2, capacity=3).build()
    ctmc.save(tmp_path / "whole.h5", market)
    rerate(tmp_path / "whole.h5", tmp_path / "fast.h5", {"arrival_rate": 1.25})
    assert ctmc.load(tmp_path / "fast.h5").recipe.parameters["arrival_rate"] == 1.25
    forge(lambda manifest, arrays: arrays.update({name: 2 * array for name, array in arrays.items()}))(tmp_path)
    refused("its rates are not those that the builder gives", ctmc.load, tmp_path / "fast.h5")


OTHER_MODELS = {
    "no recipe": (lambda: ctmc.Generator.from_matrix([[-1, 1], [2, -2]]), "same version of the same builder"),
    "another builder": (lambda: registry.build("tandem_network", service_rates=[3, 2], arrival_rate=1, total_capacity=3), "same version of the same builder"),
    "labels of its own": (lambda: queue().build().replace(labels={"up": np.array([False, True])}), "labels, rewards or notes of its own"),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHER_MODELS)
def test_a_model_that_is_more_than_other_rates_is_no_variant(tmp_path, other):
    ctmc.save(tmp_path / "whole.h5", queue().build())
    make, sentence = OTHER_MODELS[other]
    refused(sentence, ctmc.storage.save, tmp_path / "x.h5", make(), parent=tmp_path / "whole.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["whole.h5"]


def test_parameters_that_are_left_out_are_no_change_of_rates():
    recipe = queue().recipe
    fewer = type(recipe)(recipe.builder, recipe.version, {"births": [1.0]})
    refused("it has other parameters than its parent", variants.changes_between, recipe, fewer)


def test_a_variant_of_a_variant_points_to_the_whole_model(tmp_path):
    ctmc.save(tmp_path / "whole.h5", queue().build())
    rerate(tmp_path / "whole.h5", tmp_path / "fast.h5", {"births": [3.0]})
    faster = rerate(tmp_path / "fast.h5", tmp_path / "faster.h5", {"deaths": [5.0]})
    assert faster.exit_rates.tolist() == [3.0, 5.0]
    assert read_info(tmp_path / "faster.h5")["parent"]["path"] == "whole.h5"
    shutil.copy(tmp_path / "faster.h5", tmp_path / "copy.h5")
    assert ctmc.load(tmp_path / "copy.h5").content_hash == faster.content_hash
    assert ctmc.storage.save(tmp_path / "third.h5", faster, parent=tmp_path / "fast.h5") == faster.content_hash
