"""What a damaged or forged answer or checkpoint says, kind by kind, and what belongs to an answer."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
from forged_models import added, refused, three_states
from test_storage import said, without

import ctmc
from builders.fork_join import fork_join
from ctmc import registry, storage
from ctmc.checkpoint import Progress, Run
from ctmc.model.matrix_geometric import MatrixGeometric
from ctmc.solution import HISTORY, Status
from ctmc.storage import (
    checkpoints,
    question,
    solutions,
)
from ctmc.storage.container import read_container, write_container


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    path = tmp_path_factory.mktemp("solved") / "queue.h5"
    queue = fork_join([5, 2, 1], 1, 3)
    ctmc.save(path, queue)
    return path, ctmc.solve(ctmc.Stationary(queue))


SOLUTIONS = {
    "no history": (without("history/defect"), "it has no history"),
    "no value": (without("r"), "it has no value"),
    "a history of two lengths": (added("history/defect", [0.5] * 99), "the columns of its history differ in length"),
    "a level left out": (without("boundary/0"), "its boundary vectors are not complete"),
    "no status": (said(status="FINE"), "its status is 'FINE'; allowed are"),
    "an interval upside down": (said(intervals=[{"name": "x", "low": 2.0, "high": 1.0}]), "is none; allowed are two numbers in order"),
    "rewards and levels": (said(reward=["jobs"], columns=["jobs"]), "it has no value"),
    "a start without probabilities": (added("initial/positions", [0]), "its initial positions and probabilities"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SOLUTIONS)
def test_a_solution_that_is_none_is_refused(solved, tmp_path, fault):
    found = read_container(storage.save_solution(*solved, "whole", folder=tmp_path), ["solution"])
    manifest, arrays = dict(found.manifest), dict(found.arrays)
    change, sentence = SOLUTIONS[fault]
    change(manifest, arrays)
    write_container(tmp_path / "forged.h5", "solution", manifest, arrays)
    refused(sentence, storage.load_solution, tmp_path / "forged.h5")


def test_levels_without_boundary_vectors_are_refused(solved, tmp_path):
    found = read_container(storage.save_solution(*solved, "whole", folder=tmp_path), ["solution"])
    arrays = {name: array for name, array in found.arrays.items() if not name.startswith("boundary/")}
    write_container(tmp_path / "forged.h5", "solution", found.manifest, arrays)
    refused("its boundary vectors are not complete", storage.load_solution, tmp_path / "forged.h5")


def test_levels_of_a_method_that_finds_r_alone_come_back(solved, tmp_path):
    path, solution = solved
    bare = dataclasses.replace(solution, value=MatrixGeometric(solution.value.boundary, solution.value.r))
    again = storage.load_solution(storage.save_solution(path, bare, "bare", folder=tmp_path)).value
    assert (again.g, again.u) == (None, None)
    assert again.mean_level == solution.value.mean_level


def test_a_folder_of_solutions_that_cannot_be_made_is_named(solved, tmp_path):
    (tmp_path / "queue.solutions").write_text("in the way")
    refused(
        "queue.solutions cannot be made: File exists",
        storage.save_solution,
        *solved,
        folder=tmp_path / "queue.solutions",
    )
    assert (tmp_path / "queue.solutions").read_text() == "in the way"


def test_an_answer_takes_a_name_of_its_own(solved, tmp_path):
    """The same question its old one; another question, or what cannot be read, the next number."""
    path, solution = solved
    first = storage.save_solution(path, solution, folder=tmp_path)
    assert storage.save_solution(path, solution, folder=tmp_path) == first
    second = storage.save_solution(path, dataclasses.replace(solution, solver="power_iteration"), folder=tmp_path)
    assert second.stem == "stationary-power_iteration"
    first.write_text("unreadable")
    other = storage.save_solution(path, solution, folder=tmp_path)
    assert other.stem == f"{first.stem}-2"
    assert first.read_text() == "unreadable"
    asked = {**question.question_of(solution.problem, solution.solver), "tolerance": 0.5}
    assert storage.save_solution(path, solution, question=asked, folder=tmp_path).stem == f"{first.stem}-3"


def progress_of(*statuses):
    history = np.zeros(2, HISTORY)
    runs = [Run({"value": np.ones(3)}, {}, history, status, "gmres", "") for status in statuses]
    return Progress(tuple(runs), 1.5, 7)


def run_entry(**changes):
    return lambda manifest, arrays: manifest["runs"][0].update(changes)


CHECKPOINTS = {
    "no history": (without("runs/0/history/defect"), "the history of its run 0 is not complete"),
    "a history of two lengths": (added("runs/0/history/seconds", [0.5]), "the history of its run 0 is not complete"),
    "a history in a table": (lambda m, a: [a.update({f"runs/0/history/{name}": np.ones((1, 1))}) for name in HISTORY.names], "the history of its run 0"),
    "no runs": (said(runs=[]), "its runs are not complete"),
    "a run under way before the last": (run_entry(status=None), "its runs are not complete"),
    "no status": (run_entry(status="FINE"), "its status is 'FINE'; allowed are"),
    "no question": (said(question=3), "its field 'question' is 3"),
    "another question": (said(question={"problem": "stationary", "times": "later"}), "it belongs to the times later, this solve has none"),
    "less of a question": (said(question={}), "it belongs to the problem none, this solve has stationary"),
}  # fmt: skip


@pytest.mark.parametrize("fault", CHECKPOINTS)
def test_a_checkpoint_that_is_none_is_refused(tmp_path, fault):
    asked = {"problem": "stationary"}
    path = tmp_path / "whole.h5"
    checkpoints.save_checkpoint(path, asked, progress_of(Status.CONVERGED, None))
    assert checkpoints.load_checkpoint(path, asked).products == 7
    found = read_container(path, ["checkpoint"])
    manifest, arrays = dict(found.manifest), dict(found.arrays)
    change, sentence = CHECKPOINTS[fault]
    change(manifest, arrays)
    write_container(tmp_path / "forged.h5", "checkpoint", manifest, arrays)
    refused(sentence, checkpoints.load_checkpoint, tmp_path / "forged.h5", asked)


def test_questions_tell_everything_that_is_asked():
    chain = three_states().with_reward("cost", np.array([1.0, 2.0, 0.0]))

    def late(states):
        return states[:, 0] > 1

    solver = registry.make_solver("gmres")
    for tell in (checkpoints.question_of, question.question_of):
        found = tell(ctmc.DiscountedReward(chain, "cost", discount=0.25, moments=2), solver)
        assert (found["discount"], found["moments"], found["reward"]) == (0.25, 2, ["cost"])
        found = tell(ctmc.FirstPassage(chain, late, avoid="state == 1"), solver)
        assert (found["target"], found["avoid"]) == ("late", "state == 1")


def test_the_source_of_a_solver_that_has_no_file_is_unknown():
    assert question._module_hash("nowhere_to_be_found") == "unknown"
    assert (
        question._module_hash(question.__name__)
        == hashlib.sha256(Path(question.__file__).read_bytes()).hexdigest()[:10]
    )


# ---- what belongs to an answer -----------------------------------------------------------------------------------------

TANDEM = registry.build("tandem_network", service_rates=[3, 2], arrival_rate=1, total_capacity=6)


def test_the_file_of_a_plug_in_belongs_to_the_question():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own:
        solves = (ctmc.Stationary,)
        needs = ctmc.Generator

    asked = question.question_of(ctmc.Stationary(TANDEM), Own())
    assert asked["solver"] == "own"
    assert asked["source"] == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[: question.HASH_DIGITS]


def test_intervals_and_a_warm_start_come_back(tmp_path):
    path = tmp_path / "queue.h5"
    ctmc.save(path, TANDEM)
    start = ctmc.solve(ctmc.Stationary(TANDEM), "gth").value
    solution = ctmc.solve(ctmc.Stationary(TANDEM), "gauss_seidel", start=start, certify="strict")
    back = solutions.load_solution(solutions.save_solution(path, solution))
    assert back.warm
    assert {name: (one.low, one.high) for name, one in back.intervals.items()} == {
        name: (one.low, one.high) for name, one in solution.intervals.items()
    }
    assert solution.intervals
