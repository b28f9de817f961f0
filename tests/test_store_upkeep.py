"""Upkeep of a store: listing, verifying, pruning."""

import contextlib
import os
import time
from pathlib import Path

import pytest
import store_examples
from store_examples import MARKET, ONE, QUESTIONS, QUEUE, done, models_done

import ctmc
from ctmc.cli import main
from ctmc.cli.store import days
from ctmc.errors import ModelError
from ctmc.storage import save_solution, solution_paths
from ctmc.storage.atomic import _temporary_file, dead_leftovers
from ctmc.storage.inventory import entries, prune
from ctmc.storage.store import Store

here = store_examples.here
run = store_examples.run
cli = store_examples.cli


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
