"""What a store holds and must not be taken for an answer."""

from pathlib import Path

import numpy as np
import pytest
import store_examples
from store_examples import ONE, QUEUE, damage, done, forbid, models_done

import ctmc
from ctmc.storage import save_solution, solution_paths
from ctmc.storage.container import read_container, write_container
from ctmc.study import Watcher, parse_study, run_study

here = store_examples.here
run = store_examples.run


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
