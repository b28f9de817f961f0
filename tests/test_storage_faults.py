"""What a damaged or forged file of our own says, kind by kind, and what else a run of the command line seldom meets."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import filelock
import h5py
import numpy as np
import pytest
from test_storage import described, put, said, typed, without

import ctmc
from builders.fork_join import fork_join
from builders.supermarket import supermarket
from ctmc import registry, storage
from ctmc.checkpoint import Progress, Run
from ctmc.errors import StorageError
from ctmc.model.matrix_geometric import MatrixGeometric
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import made, streaming
from ctmc.model.transitions import CodedTransitions
from ctmc.solution import HISTORY, Status
from ctmc.storage import (
    atomic,
    checkpoints,
    coding,
    foreign,
    gate,
    locks,
    model_parts,
    models,
    question,
    solutions,
    sources,
    stored,
)
from ctmc.storage.container import content_hash, read_container, write_container
from ctmc.storage.gate import StoredArray
from ctmc.storage.hash_tree import Stream


def refused(sentence, call, *arguments, **options):
    """One sentence, with these words in it."""
    with pytest.raises(StorageError) as caught:
        call(*arguments, **options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def together(*changes):
    def change(manifest, arrays):
        for each in changes:
            each(manifest, arrays)

    return change


def shaped(name, *shape):
    def change(manifest, arrays):
        arrays[name] = np.resize(arrays[name], shape)

    return change


def added(name, array):
    def change(manifest, arrays):
        arrays[name] = np.array(array)

    return change


def forged(tmp_path, model, change):
    manifest, arrays = described(tmp_path, model)
    change(manifest, arrays)
    write_container(tmp_path / "forged.h5", "generator", manifest, arrays)
    return tmp_path / "forged.h5"


def three_states():
    return ctmc.Generator.from_matrix([[0, 1.0, 0.5], [2.0, 0, 1.0], [0, 4.0, 0]])


# Models that stay on the disk: the arrays of transitions are looked at one by one, in chunks

PLAIN = {
    "no pointers": (without("rates/indptr"), "it has no array 'rates/indptr'"),
    "no rates": (without("rates/data"), "it has no array 'rates/data'"),
    "pointers that begin elsewhere": (put("rates/indptr", 1), "its row pointers do not begin with 0"),
    "pointers that fall": (put("rates/indptr", 4, 1), "are not whole numbers >= 0 that fit"),
    "a row of too many": (put("rates/indptr", 2**62, [1, 2, 3]), "are not whole numbers >= 0 that fit"),
    "rows of too few in all": (put("rates/indptr", 3, [2, 3]), "its row pointers do not fit its transitions"),
    "rows of too many in all": (put("rates/indptr", [4, 8], [2, 3]), "its row pointers do not fit its transitions"),
    "pointers of another length": (shaped("rates/indptr", 3), "do not fit 3 states and 5 transitions"),
    "rates of another length": (shaped("rates/data", 4), "do not fit 3 states and 5 transitions"),
    "tables": (together(shaped("rates/data", 5, 1), shaped("rates/indices", 5, 1)), "do not fit 3 states"),
    "pointers of another type": (typed("rates/indptr", np.int32), "its array rates/indptr has the type int32"),
    "sources of another type": (typed("rates/indices", np.uint32), "its array rates/indices has the type uint32"),
    "rates of another type": (typed("rates/data", np.int64), "its array rates/data has the type int64"),
    "an array more": (added("rates/extra", [1.0]), "it has the array 'rates/extra'"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLAIN)
def test_rows_on_the_disk_that_are_none_are_not_opened(tmp_path, fault):
    change, sentence = PLAIN[fault]
    refused(sentence, ctmc.open, forged(tmp_path, three_states(), change))


def large():
    """Rows by steps, numbers of transitions and rates coded."""
    return supermarket(service_rates=[3, 2, 1], arrival_rate=3, choices=2, capacity=16, total_capacity=40).written_out()


def uncoded(name):
    """Store an array as it is in place of codes."""

    def change(manifest, arrays):
        codes, values = arrays.pop(f"{name}.codes"), arrays.pop(f"{name}.values")
        arrays[name] = values[codes]

    return change


STEPS = {
    "a number without a value": (put("rates/counts.codes", 255), "a code of rates/counts.codes is 255, but there are"),
    "a negative number": (put("rates/counts.values", -1), "are not whole numbers >= 0 that fit"),
    "a negative number as it is": (together(uncoded("rates/counts"), put("rates/counts", -1)), "that fit"),
    "a rate without a value": (put("rates/data.codes", 255), "a code is 255; allowed is 0 to"),
    "numbers that are none": (typed("rates/counts.values", float), "the values of rates/counts.codes are no vector of int64"),
    "rates in a table": (shaped("rates/data.values", 2, 2), "the values of rates/data.codes are no vector of float64"),
    "codes of eight bytes": (typed("rates/data.codes", np.int64), "its array rates/data.codes has the type int64"),
    "steps of two bytes": (typed("rates/steps.codes", np.uint16), "its array rates/steps.codes has the type uint16"),
    "no starts": (without("rates/steps.starts"), "it has no array 'rates/steps.starts'"),
    "no numbers": (without("rates/counts.codes"), "it has no array 'rates/counts'"),
    "no table of rates": (without("rates/data.values"), "it has no array 'rates/data'"),
    "starts that fall": (put("rates/steps.starts", 2**40), "the starts of its other steps do not ascend"),
    "a start too few": (shaped("rates/steps.starts", 1), "the starts of its other steps do not ascend"),
    "an other step too many": (shaped("rates/steps.others", 9000), "its other steps do not fit their starts"),
    "other steps in a table": (shaped("rates/steps.others", 1, 1), "its other steps do not fit their starts"),
    "an array more": (added("rates/extra", [1.0]), "it has the array 'rates/extra'"),
}  # fmt: skip


@pytest.mark.parametrize("fault", STEPS)
def test_coded_rows_on_the_disk_that_are_none_are_not_opened(tmp_path, fault):
    change, sentence = STEPS[fault]
    refused(sentence, ctmc.open, forged(tmp_path, large(), change))


@pytest.mark.parametrize(
    "names", [["rates/counts"], ["rates/data"], ["rates/counts", "rates/data", "exit_rates"]], ids=str
)
def test_arrays_that_could_be_coded_and_are_not_are_read(tmp_path, names):
    """What another writer may do: coding is for size alone."""
    model = large()
    path = forged(tmp_path, model, together(*map(uncoded, names)))
    opened, loaded = ctmc.open(path), ctmc.load(path)
    x = np.random.default_rng(20260401).random(model.size)
    assert opened.forward(x).tobytes() == model.forward(x).tobytes() == loaded.forward(x).tobytes()
    small = read_container(path, ["generator"], only=["exit_rates"] if "exit_rates" in names else ())
    assert small.content_hash == opened.content_hash


WEIGHTS = {
    "an arrival from below 0": (lambda m, a: a["rates/weights"].__setitem__((1, 0), 1), "in which coordinate 1 is 0"),
    "no unit": (without("rates/unit"), "it has no array 'rates/unit'"),
    "a unit of many numbers": (
        lambda m, a: a.update({"rates/unit": np.arange(1.0, 31)}),
        "unit is array([ 1., 2., 3.",
    ),
    "an array more": (added("rates/extra", [1.0]), "it has the array 'rates/extra'"),
    "no box": (lambda m, a: m["space"].update(total=10), "its states are no box"),
}


@pytest.mark.parametrize("fault", WEIGHTS)
def test_a_lattice_on_the_disk_that_is_none_is_not_opened(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(stored, "LEAST_STREAMED", 100)
    monkeypatch.setattr(gate, "SLAB_BYTES", 256)  # a chunk is part of one row, as it is in files that are not loaded
    change, sentence = WEIGHTS[fault]
    model = supermarket(service_rates=[3, 2, 1], arrival_rate=3, choices=2, capacity=6)
    refused(sentence, ctmc.open, forged(tmp_path, model, change))


def test_a_pass_over_a_file_can_be_left_early(tmp_path, monkeypatch):
    """What was asked for ahead is dropped, and no thread stays."""
    monkeypatch.setattr(stored, "SLAB_ENTRIES", 2000)
    ctmc.save(tmp_path / "model.h5", large())
    rows = ctmc.open(tmp_path / "model.h5").transitions
    passing = rows.slabs()
    first = next(passing)
    passing.close()
    again = next(iter(rows.slabs()))
    np.testing.assert_array_equal(first.sources, again.sources)


def test_slabs_may_end_with_the_last_state(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "SLAB_ENTRIES", 1)
    n = 2 * sources.BLOCK
    ring = np.arange(n)
    space = Lattice((n - 1,), variables=(Variable("state"),))
    model = ctmc.Generator.from_transitions(ring, (ring + 1) % n, np.full(n, 2.0), space)
    ctmc.save(tmp_path / "ring.h5", model)
    rows = ctmc.open(tmp_path / "ring.h5").transitions
    assert rows.begins.tolist() == [0, sources.BLOCK, n]
    assert [len(slab.indptr) - 1 for slab in rows.slabs()] == [sources.BLOCK] * 2


def test_differences_beyond_what_is_counted_are_left_uncounted():
    many = np.random.default_rng(20260404).permutation(150_000).astype(np.uint32)
    found = sources.Differences()
    found.add(0, np.array([0, len(many)], np.uint64), many)
    assert found.frequent().tolist() == np.sort(many[: 1 << 17])[:255].tolist()
    assert found.uncovered(np.sort(many)) == len(many) - (1 << 17)


def test_too_many_values_are_no_longer_looked_for():
    found = coding.Distinct(10)
    found.add(np.arange(7.0))
    assert found.values(np.dtype(float)).tolist() == list(range(7))
    for _ in range(2):
        found.add(np.arange(200.0))
        assert (found.full, found.values(np.dtype(float))) == (True, None)


@pytest.mark.parametrize("isal", ["None", "types.SimpleNamespace(isal_zlib=old)"], ids=["none", "before 1.9"])
def test_without_isal_the_same_is_written_with_zlib(isal):
    script = f"""
    import sys, types, zlib

    class Inflater:  # as ISA-L before 1.9: what follows the end of a stream is lost
        def __init__(self, bits):
            self.inflater, self.unused_data = zlib.decompressobj(bits), b""
            self.decompress = self.inflater.decompress

    old = types.SimpleNamespace(**{{**vars(zlib), "decompressobj": Inflater}})
    sys.modules["isal"] = {isal}
    import numpy as np
    from ctmc.storage import checksum
    values = np.arange(3000.0) // 7
    again = np.empty(3000)
    checksum.unpack(checksum.pack(values, 4000), again, 4000)
    print(checksum.LEVEL, checksum._zlib.__name__, (again == values).all())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("1 zlib True\n", "")


def test_what_a_model_needs_is_told_from_its_arrays():
    def arrays(**shapes):
        return {name.replace("__", "/"): StoredArray(shape, np.dtype(kind)) for name, (shape, kind) in shapes.items()}

    matrix = arrays(repeating__up__data=((7,), "<f8"))
    assert stored.loaded_bytes(matrix) == stored.memory_to_load(matrix) == 56
    rows = arrays(exit_rates=((100,), "<f8"), rates__data=((300,), "<f8"))
    assert stored.loaded_bytes(rows) == 12 * 300 + 16 * 100
    assert stored.memory_to_load(rows) == 2 * stored.loaded_bytes(rows) + 56 * 100
    two = {**arrays(exit_rates=((100,), "<f8")), "rates/codes": StoredArray((300,), np.dtype("<u2"))}
    assert stored.loaded_bytes(two) == 6 * 300 + 16 * 100
    wide = {
        "exit_rates.codes": StoredArray((2**31,), np.dtype("u1")),
        "rates/data.codes": StoredArray((9,), np.dtype("u1")),
    }
    assert stored.loaded_bytes(wide) == 16 * 9 + 16 * 2**31


# Models that are loaded

GENERATOR = {
    "a label that is no yes or no": (together(said(labels=["up"]), added("labels/0", np.uint8([0, 2, 1]))), "label 'up' has values"),
    "a label of numbers": (together(said(labels=["up"]), added("labels/0", np.ones(3))), "label 'up' has values"),
    "a variable without length": (lambda m, a: m["space"].update(variables=[["state"]]), "is not a name with a length"),
    "a start in small numbers": (together(said(initial=True), added("initial/positions", np.int32([0])), added("initial/probabilities", [1.0])), "do not fit each other"),
    "a start out of order": (together(said(initial=True), added("initial/positions", [1, 0]), added("initial/probabilities", [0.5, 0.5])), "the initial distribution is none"),
    "a start beyond the space": (together(said(initial=True), added("initial/positions", [3]), added("initial/probabilities", [1.0])), "the initial distribution is none"),
    "a start of too little": (together(said(initial=True), added("initial/positions", [0, 1]), added("initial/probabilities", [0.5, 0.4])), "the initial distribution is none"),
}  # fmt: skip


@pytest.mark.parametrize("fault", GENERATOR)
def test_what_stands_beside_the_rates_is_looked_at(tmp_path, fault):
    change, sentence = GENERATOR[fault]
    path = forged(tmp_path, three_states(), change)
    refused(sentence, ctmc.load, path)
    refused(sentence, ctmc.open, path)


def test_a_parameter_that_the_builder_does_not_have_is_refused(tmp_path):
    model = ctmc.build("birth_death", births=[1.0], deaths=[2.0])
    recipe = dataclasses.replace(model.recipe, parameters={**model.recipe.parameters, "colour": 3})
    path = forged(tmp_path, model.replace(recipe=None), said(builder=model_parts.recipe_entry(recipe)))
    refused("has no parameter 'colour'", ctmc.load, path)


COUNTS = {
    "numbers of another type": (typed("rates/counts", np.int32), "are not whole numbers >= 0"),
    "numbers in a table": (shaped("rates/counts", 1, 4096), "are not whole numbers >= 0"),
    "a negative number": (put("rates/counts", -1), "are not whole numbers >= 0"),
}


@pytest.mark.parametrize("fault", COUNTS)
def test_numbers_of_transitions_that_are_none_are_not_loaded(tmp_path, fault):
    change, sentence = COUNTS[fault]
    refused(sentence, ctmc.load, forged(tmp_path, large(), together(uncoded("rates/counts"), change)))


DIFFERENCES = {
    "codes of two bytes": ({"codes": np.zeros(4, np.uint16)}, "are not codes of one byte"),
    "too many values": ({"values": np.arange(256)}, "are not codes of one byte"),
    "values that are no whole numbers": ({"values": np.zeros(2)}, "are not codes of one byte"),
    "others that are no whole numbers": ({"others": np.zeros(0)}, "are not vectors of int64"),
    "codes in a table": ({"codes": np.zeros((2, 2), np.uint8)}, "are not vectors of int64"),
    "others without a start": ({"others": np.array([1])}, "the starts of its other steps do not fit them"),
    "a code without a value": ({"codes": np.uint8([0, 1, 2, 0])}, "its codes of steps do not fit its other steps"),
    "an other step that is not there": ({"codes": np.uint8([0, 1, 255, 0])}, "its codes of steps do not fit"),
    "a step out of the space": ({"values": np.array([0, 5])}, "leads further than there are states"),
}


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("fault", DIFFERENCES)
def test_steps_that_are_none_are_refused(fault, parallel):
    whole = {
        "codes": np.uint8([0, 1, 0, 0]), "values": np.array([0, -1]), "others": np.empty(0, np.int64), "starts": np.array([0, 0])
    }  # fmt: skip
    found, indptr = np.empty(4, np.uint32), np.array([0, 1, 2, 3, 4], np.uint64)

    def decode(**arrays):
        sources.decode(0, indptr, *arrays.values(), found, states=4, parallel=parallel)

    decode(**whole)
    assert found.tolist() == [0, 0, 1, 2]
    change, sentence = DIFFERENCES[fault]
    refused(sentence, decode, **{**whole, **change})


def block(number, name, **arrays):
    def change(manifest, every):
        for part, array in arrays.items():
            every[f"{number}/{name}/{part}"] = np.array(array)

    return change


LEVELS = {
    "indices beyond the block": (block("repeating", "local", indices=[99] * 99), "its block repeating/local is not a sparse matrix"),
    "a shape of three": (block("repeating", "up", shape=[1, 1, 1]), "its block repeating/up is not a sparse matrix"),
    "rates that are none": (typed("repeating/down/data", np.int64), "its block repeating/down is not of float64"),
    "no block": (without("repeating/down/shape"), "it has no array 'repeating/down/shape'"),
    "no level": (said(boundary_levels="one"), "its field 'boundary_levels' is 'one'"),
    "no phases": (without("boundary/0/phases"), "it has no array 'boundary/0/phases'"),
}  # fmt: skip


@pytest.mark.parametrize("fault", LEVELS)
def test_blocks_that_are_none_are_refused(tmp_path, fault):
    ctmc.save(tmp_path / "queue.h5", fork_join([5, 2, 1], 1, 3))
    found = read_container(tmp_path / "queue.h5", ["qbd"])
    manifest, arrays = dict(found.manifest), dict(found.arrays)
    change, sentence = LEVELS[fault]
    change(manifest, arrays)
    write_container(tmp_path / "forged.h5", "qbd", manifest, arrays)
    refused(sentence, ctmc.load, tmp_path / "forged.h5")
    refused(sentence, ctmc.open, tmp_path / "forged.h5")


def test_versions_that_are_not_known_are_said_to_be_so(monkeypatch):
    def unknown(name):
        raise importlib.metadata.PackageNotFoundError(name)

    question.project_version.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", unknown)
    try:
        assert models.about()["versions"]["numpy"] == question.project_version() == "not installed"
    finally:
        question.project_version.cache_clear()


def test_a_maker_of_slabs_with_wrong_codes_is_stopped(tmp_path):
    def rows(codes, values):
        def make(a, b):
            ring = (np.arange(a, b, dtype=np.int32)[:, None] - 1) % 9
            return CodedTransitions(
                np.arange(b - a + 1), ring.ravel(), np.full(b - a, codes, np.uint8), np.array(values)
            )

        with streaming():
            return ctmc.Generator(Lattice((8,), variables=(Variable("state"),)), made(9, make))

    ctmc.save(tmp_path / "ring.h5", rows(0, [2.0]))
    assert ctmc.load(tmp_path / "ring.h5").exit_rates.tolist() == [2.0] * 9
    for codes, values, sentence in (
        (2, [1.0, 2.0], "a code is 2; allowed is 0 to 1"),
        (1, [1.0, -2.0], "a rate is -2.0"),
    ):
        with pytest.raises(ctmc.ModelError, match=sentence):
            ctmc.save(tmp_path / "wrong.h5", rows(codes, values))
    assert ctmc.save(tmp_path / "unused.h5", rows(0, [2.0, -1.0]))  # a value without an entry harms nobody
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ring.h5", "unused.h5"]


# Solutions and checkpoints


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


# Arrays that come in pieces


def stream(parts, shape=(5,), kind="<f8"):
    return Stream(
        {"x": StoredArray(shape, np.dtype(kind))}, lambda: iter([("x", row, np.array(one)) for row, one in parts])
    )


STREAMS = {
    "another type": (stream([(0, [1, 2, 3, 4, 5])]), "a part of the array 'x' has the type int64, not float64"),
    "a table": (stream([(0, np.ones((5, 1)))]), "a part of the array 'x' has the type float64"),
    "too much": (stream([(0, np.ones(3)), (0, np.ones(3))]), "the array 'x' has more than 5 elements"),
    "too little": (stream([(0, np.ones(3))]), "the array 'x' ends before its 5 elements"),
    "a row too few": (stream([(0, np.ones(2**19))], (2, 2**19)), "the array 'x' ends before its 524,288 elements"),
    "short rows": (stream([], (2, 5)), "the array 'x' cannot come in pieces"),
}


@pytest.mark.parametrize("fault", STREAMS)
def test_pieces_that_do_not_make_an_array_are_refused(tmp_path, fault):
    pieces, sentence = STREAMS[fault]
    refused(sentence, write_container, tmp_path / "x.h5", "example", {}, {}, stream=pieces)
    refused(sentence, content_hash, "example", {}, {}, pieces)
    refused("comes twice", content_hash, "example", {}, {"x": np.ones(5)}, stream([(0, np.ones(5))]))
    assert list(tmp_path.iterdir()) == []
    whole = stream([(0, np.ones(3)), (0, np.ones(2))])
    assert content_hash("example", {}, {}, whole) == content_hash("example", {}, {"x": np.ones(5)})


# Files that are replaced, and locks


def test_a_long_name_is_cut_for_the_file_that_is_being_written(tmp_path):
    path = tmp_path / ("µ" * 127)
    atomic.replace_file(path, lambda temporary: temporary.write_text(temporary.name) and None, overwrite=False)
    assert path.read_text().startswith(".µµ")
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("how", ["locked by another", "removed by another"])
def test_a_file_that_another_writer_takes_for_a_leftover_is_given_up(tmp_path, monkeypatch, how):
    lock, tried = atomic.fcntl.flock, []

    def flock(descriptor, operation):
        tried.append(descriptor)
        if len(tried) == 1:
            if how == "locked by another":
                raise BlockingIOError
            os.unlink(next(tmp_path.glob(".x.*.part")))
        lock(descriptor, operation)

    monkeypatch.setattr(atomic.fcntl, "flock", flock)
    atomic.replace_file(tmp_path / "x", lambda temporary: temporary.write_text("whole") and None, overwrite=False)
    assert (tmp_path / "x").read_text() == "whole"
    assert len(tried) == 2


def test_a_folder_without_room_for_the_first_file_is_named(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, "open", full)
    refused("x: No space left on device", atomic.replace_file, tmp_path / "x", Path.touch, overwrite=True)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_flush_folders_will_do(tmp_path, monkeypatch, number):
    flush = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        flush(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    if number == errno.EIO:
        refused("x: Input/output error", atomic.replace_file, tmp_path / "x", Path.touch, overwrite=True)
    else:
        atomic.replace_file(tmp_path / "x", Path.touch, overwrite=True)
    assert (tmp_path / "x").exists()


def test_without_hard_links_what_appears_meanwhile_stays(tmp_path, monkeypatch):
    def link(*arguments):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(atomic.os, "link", link)
    path = tmp_path / "x"
    refused(
        "it exists already", atomic.replace_file, path, lambda _: path.write_text("faster") and None, overwrite=False
    )
    assert path.read_text() == "faster"


@pytest.mark.parametrize("why", ["not writable", "not to be made"])
def test_locks_go_to_the_temporary_folder_where_the_user_has_none(tmp_path, monkeypatch, why):
    import platformdirs

    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    for _ in range(2):  # made, and found
        assert locks.cache_folder() == tmp_path / "cache" / "locks"
    if why == "not writable":
        monkeypatch.setattr(locks.os, "access", lambda folder, mode: False)
    else:
        (tmp_path / "cache" / "locks").rmdir()
        (tmp_path / "cache").rmdir()
        (tmp_path / "cache").write_text("in the way")
    assert locks.cache_folder() == tmp_path / f"ctmc-locks-{os.getuid()}"
    assert locks.cache_folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("holder", "told"), [("process 7\x1b", r"process 7\x1b"), ("", "another process"), (None, "another process")]
)
def test_who_holds_a_lock_is_told_as_well_as_it_is_known(tmp_path, holder, told):
    with filelock.FileLock(tmp_path / "queue.lock"):
        if holder is not None:
            (tmp_path / "queue.holder").write_text(holder)
        with pytest.raises(locks.BusyError) as caught, locks.held(tmp_path, "queue"):
            pass
    assert str(caught.value) == told


def test_one_who_waits_is_told_once_and_may_give_up(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.001)
    heard, looks = [], iter([False, False, False, True])
    with (
        filelock.FileLock(tmp_path / "queue.lock"),
        pytest.raises(locks.BusyError),
        locks.held(tmp_path, "queue", waiting=heard.append, stopped=lambda: next(looks)),
    ):
        pass
    assert heard == ["another process"]


# HDF5 as other programs write it


def written_by_others(path, fill):
    with h5py.File(path, "w") as file:
        fill(file)
    return path


def link_out(file):
    file["x"] = h5py.SoftLink("/y")


def with_filter(**options):
    return lambda file: file.create_dataset("x", data=np.arange(4000.0), chunks=(1000,), **options)


def damaged_chunk(data, mask=0, **options):
    def fill(file):
        dataset = file.create_dataset("x", shape=(100,), dtype="<f8", chunks=(100,), **options)
        dataset.id.write_direct_chunk((0,), data, mask)

    return fill


def outside(file):
    file.create_dataset("x", shape=(3,), dtype="<f8", external=[("elsewhere", 0, 24)])


OTHERS = {
    "nothing of that name": (lambda file: None, "it has no 'x'"),
    "a link": (link_out, "'x' is a soft or external link"),
    "a group": (lambda file: file.create_group("x"), "'x' is no array of numbers"),
    "another file": (outside, "the values of 'x' are stored in another file"),
    "text": (lambda file: file.create_dataset("x", data=np.bytes_("text")), "the type of 'x' is none of"),
    "no dimensions": (lambda file: file.create_dataset("x", data=1.0), "'x' has no dimensions, or more than 8"),
    "nine dimensions": (lambda file: file.create_dataset("x", data=np.ones((1,) * 9)), "'x' has no dimensions"),
    "other filters": (with_filter(scaleoffset=3), "'x' went through the filters"),
    "a large chunk": (lambda file: file.create_dataset("x", (2**24,), "<f8", chunks=(2**24,)), "a chunk of 'x' has 134,217,728 bytes; allowed are"),
    "no chunks": (lambda file: file.create_dataset("x", (100,), "<f8", chunks=(10,)), "0 of 10 chunks of 'x' are stored"),
    "no bytes": (lambda file: file.create_dataset("x", (10**5,), "<f8"), "'x' claims more bytes than the file has"),
    "a mask": (damaged_chunk(bytes(800), 1, compression="gzip"), "the chunk at (0,) of 'x' is not stored as the others"),
    "no stream": (damaged_chunk(bytes(100), compression="gzip"), "'x' is damaged (Error -3"),
    "a short chunk": (damaged_chunk(b"\x78\x01\x03\x00\x00\x00\x00\x01", compression="gzip"), "a chunk of 'x' has 0 bytes or more; it must have 800"),
    "another checksum": (damaged_chunk(bytes(800) + b"else", fletcher32=True), "a checksum of 'x' does not match"),
}  # fmt: skip


@pytest.mark.parametrize("fault", OTHERS)
def test_an_array_of_another_program_that_cannot_be_read_is_named(tmp_path, fault):
    fill, sentence = OTHERS[fault]
    with foreign.foreign(written_by_others(tmp_path / "x.mat", fill), 0) as file:
        refused(sentence, file.array, "x")


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": True}, {"compression": "gzip"}, {"shuffle": True, "compression": 9, "fletcher32": True}],
    ids=str,
)
@pytest.mark.parametrize("shape", [(0,), (7,), (30, 7), (3, 4, 5)], ids=str)
def test_arrays_of_another_program_are_read(tmp_path, shape, options):
    expected = np.random.default_rng(20260402).integers(-9, 9, shape).astype("<i4")
    chunks = tuple(max(1, length // 2) for length in shape)

    def fill(file):
        file.create_dataset("whole", data=expected)
        file.create_dataset("chunked", data=expected, maxshape=(None,) * len(shape), chunks=chunks, **options)

    with foreign.foreign(written_by_others(tmp_path / "x.mat", fill), 0) as file:
        assert sorted(file.names()) == ["chunked", "whole"]
        for name in file.names():
            assert file.members(name) is None
            np.testing.assert_array_equal(file.array(name), expected)


def test_members_and_attributes_of_another_program(tmp_path):
    def fill(file):
        group = file.create_group("sparse")
        group["data"], group["ir"] = np.ones(3), np.arange(3)
        group.create_group("jc")
        file["type"] = np.dtype("<f8")
        file["x"] = np.ones(2)
        for name, value in {
            "text": np.bytes_("sparse"), "number": np.uint8(7), "real": 1.5, "many": np.arange(3), "none": h5py.Empty("<i8"),
            "variable": "text", "long": np.bytes_("x" * 300),
        }.items():  # fmt: skip
            file["x"].attrs[name] = value

    with foreign.foreign(written_by_others(tmp_path / "x.mat", fill), 0) as file:
        assert sorted(file.members("sparse")) == ["data", "ir"]
        assert file.members("type") == {}
        assert file.array("ir", file.members("sparse")["ir"]).tolist() == [0, 1, 2]
        assert (file.attribute("x", "text"), file.attribute("x", "number")) == (b"sparse", 7)
        for name in ("real", "many", "none", "variable", "long", "missing"):
            assert file.attribute("x", name) is None


def test_more_names_than_anyone_needs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "MAX_OBJECTS", 20)
    fill = lambda file: [file.create_group(f"g{number}") for number in range(21)]  # noqa: E731
    with foreign.foreign(written_by_others(tmp_path / "x.mat", fill), 0) as file:
        refused("it has more than 20 objects", file.names)


def test_what_is_written_for_other_programs_is_read_by_them(tmp_path):
    """By HDF5's own reader, which skips what stands before the file."""
    path, block = tmp_path / "x.mat", b"MATLAB 7.3".ljust(512)
    path.touch()
    arrays = {"small": np.arange(6.0).reshape(2, 3), "large": np.arange(300_000).reshape(3, 100_000)}
    foreign.write_foreign(path, block, arrays, {"small": {"class": "double", "count": 6}})
    assert path.read_bytes()[:512] == block
    with h5py.File(path) as file:
        assert (file["small"].attrs["class"], file["small"].attrs["count"]) == (b"double", 6)
        assert (file["small"].chunks, file["large"].compression) == (None, "gzip")
    with foreign.foreign(path, 512) as file:
        for name, expected in arrays.items():
            np.testing.assert_array_equal(file.array(name), expected)


def test_an_array_that_claims_more_than_its_file_can_hold_is_refused(tmp_path):
    path = tmp_path / "x.h5"
    path.touch()
    with gate.created(path) as file:
        file.add("x", StoredArray((2**30,), np.dtype("<f8")))
    with gate.opened(path) as file:
        refused("'x' claims 8,589,934,592 bytes, more than the file can hold", file.chunks, "x", file.arrays()["x"])


def test_an_array_of_nine_dimensions_is_refused(tmp_path):
    path = tmp_path / "x.h5"
    path.touch()
    with gate.created(path) as file:
        file.add("x", StoredArray((1,) * 9, np.dtype("<f8")))
    with gate.opened(path) as file:
        refused("'x' has no dimensions, or more than 8", file.arrays)


def test_a_chunk_beyond_the_end_of_the_file_is_refused(tmp_path):
    write_container(tmp_path / "x.h5", "example", {}, {"x": np.arange(9)})
    with gate.opened(tmp_path / "x.h5") as file:
        array = file.arrays()["x"]
        (chunk,) = file.chunks("x", array)
        file._size = chunk.address + chunk.size - 1  # HDF5 itself opens no file that is shorter than it says
        refused("the chunk at (0,) of 'x' stands beyond the end of the file", file.chunks, "x", array)


def test_a_file_that_becomes_shorter_while_it_is_read_is_noticed(tmp_path):
    write_container(tmp_path / "x.h5", "example", {}, {"x": np.random.default_rng(20260403).random(5000)})
    with gate.opened(tmp_path / "x.h5") as file:
        (chunk,) = file.chunks("x", file.arrays()["x"])
        reader = file.reader()
        os.truncate(tmp_path / "x.h5", chunk.address + chunk.size - 1)
        refused("it became shorter while it was read", reader.read, chunk)


# ---- values and differences that meet in a hash table ------------------------------------------------------------------


def test_values_that_share_a_slot_keep_their_codes():
    """3,000 different values in 2^18 slots: some begin at the same one."""
    values = np.random.default_rng(1723).random(3000)
    array = np.concatenate([values, values[::-1], np.tile(values[:300], 10)])
    codes, table = coding.coded(array)
    np.testing.assert_array_equal(table[codes], array)
    assert len(table) == 3000


def test_differences_beyond_the_frequent_ones_come_back():
    """Random sources: 254 differences have codes, which share slots, hundreds of others stand apart, in two blocks."""
    rng = np.random.default_rng(1724)
    states = sources.BLOCK + 300
    indptr = np.arange(0, 2 * states + 1, 2).astype(np.uint64)
    given = rng.integers(0, states, 2 * states).astype(np.uint32)
    found = sources.Differences()
    found.add(0, indptr, given)
    frequent = found.frequent()[:254]
    codes, others, numbers = sources.Encoder(frequent).encode(0, indptr, given)
    assert len(others) == found.uncovered(frequent) == (codes == sources.OTHER).sum()
    assert (numbers > 100).all()
    back = np.empty_like(given)
    starts = np.concatenate([[0], np.cumsum(numbers)])
    for parallel in (False, True):
        back[:] = 0
        sources.decode(0, indptr, codes, frequent, others, starts, back, states=states, parallel=parallel)
        np.testing.assert_array_equal(back, given)


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
