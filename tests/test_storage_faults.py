"""What a damaged or forged model says, kind by kind, and what else a run of the command line seldom meets."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from forged_models import added, forged, refused, shaped, three_states, together
from test_storage import put, said, typed, without

import ctmc
from builders.fork_join import fork_join
from builders.supermarket import supermarket
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.streamed import made, streaming
from ctmc.model.transitions import CodedTransitions
from ctmc.storage import (
    coding,
    gate,
    model_parts,
    models,
    question,
    sources,
    stored,
)
from ctmc.storage.container import read_container, write_container
from ctmc.storage.gate import StoredArray

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
    for states, per_entry in ((2**31 - 1, 12), (2**31, 16)):  # sources of 64 bits where they are needed
        wide = {
            "exit_rates.codes": StoredArray((states,), np.dtype("u1")),
            "rates/data.codes": StoredArray((9,), np.dtype("u1")),
        }
        assert stored.loaded_bytes(wide) == per_entry * 9 + 16 * states


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
