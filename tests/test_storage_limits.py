"""Limits of files exactly where they are, and what is done to the files of a store and nothing beyond."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

import ctmc
from ctmc import registry
from ctmc.checkpoint import Progress, Run
from ctmc.errors import StorageError
from ctmc.model.memory import limited_memory
from ctmc.model.state_space import Lattice
from ctmc.model.streamed import made, streaming
from ctmc.model.transitions import CodedTransitions, FloatTransitions
from ctmc.solution import HISTORY
from ctmc.storage import coding, container, foreign, gate, hash_tree, inventory, manifest, rerate, sources, verified
from ctmc.storage.checkpoints import _compare, load_checkpoint, save_checkpoint
from ctmc.storage.checksum import pack
from ctmc.storage.foreign import write_foreign
from ctmc.storage.gate import opened
from ctmc.storage.manifest import decode_manifest, encode_manifest
from ctmc.storage.question import question_hash, question_of
from ctmc.storage.ranges import stored_range
from ctmc.storage.store import Store
from ctmc.storage.stored import _cut, load_fitting
from ctmc.storage.streams import stream_of

FORMAT = [
    (manifest, "MAX_MANIFEST_BYTES", 16_777_216),
    (gate, "SLAB_BYTES", 4_194_304),
    (hash_tree, "SCHEMA_VERSION", 1),
    (hash_tree, "DIGEST_BYTES", 32),
    (coding, "LEAST", 4096),
    (coding, "MOST", 65_536),
    (sources, "BLOCK", 4096),
    (sources, "OTHER", 255),
    (gate, "MAX_DEPTH", 16),
    (gate, "MAX_OBJECTS", 10_000),
    (gate, "MAX_DIMENSIONS", 8),
    (foreign, "MAX_CHUNK_BYTES", 67_108_864),
]


@pytest.mark.parametrize(("module", "name", "value"), FORMAT, ids=lambda one: one if isinstance(one, str) else "")
def test_what_the_format_fixes_does_not_move(module, name, value):
    """Other numbers would be other files: those of today could not be read, or had another hash."""
    assert getattr(module, name) == value


def test_a_manifest_may_be_so_long_and_no_longer(monkeypatch):
    monkeypatch.setattr(manifest, "MAX_MANIFEST_BYTES", 100)
    fits = {"x": "a" * (100 - len('{"x":""}'))}
    assert decode_manifest(encode_manifest(fits)) == fits
    with pytest.raises(StorageError, match="101"):
        encode_manifest({"x": fits["x"] + "a"})


def test_a_stored_manifest_may_be_so_long_and_no_longer(tmp_path, monkeypatch):
    container.write_container(tmp_path / "x.h5", "test", {"x": "a" * 500}, {})
    with opened(tmp_path / "x.h5") as file:
        length = file.arrays()["manifest"].size
    monkeypatch.setattr(verified, "MAX_MANIFEST_BYTES", length)
    assert container.read_container(tmp_path / "x.h5", ["test"]).manifest == {"x": "a" * 500}
    monkeypatch.setattr(verified, "MAX_MANIFEST_BYTES", length - 1)
    with pytest.raises(StorageError, match=f"its manifest has {length:,} bytes; allowed are {length - 1:,}"):
        container.read_container(tmp_path / "x.h5", ["test"])


def test_a_chunk_of_another_program_may_be_so_large_and_no_larger(tmp_path, monkeypatch):
    values = np.arange(600.0)
    (tmp_path / "x.h5").touch()
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512) as file:
        file.create_dataset("x", data=values, chunks=(200,), compression="gzip", shuffle=True, fletcher32=True)
    for allowed in (1600, 1599):
        monkeypatch.setattr(foreign, "MAX_CHUNK_BYTES", allowed)
        with foreign.foreign(tmp_path / "x.h5", 512) as file:
            if allowed == 1600:
                np.testing.assert_array_equal(file.array("x"), values)
            else:
                with pytest.raises(StorageError, match="has 1,600 bytes; allowed are 1,599"):
                    file.array("x")


@pytest.mark.parametrize("elements", [1 << 17, (1 << 17) + 1])
def test_long_arrays_for_other_programs_are_compressed(tmp_path, elements):
    (tmp_path / "x.mat").touch()
    write_foreign(tmp_path / "x.mat", bytes(512), {"x": np.zeros((elements, 1))}, {"x": {"a": "b"}})
    with h5py.File(tmp_path / "x.mat") as file:
        assert (file["x"].compression == "gzip") == (elements > 1 << 17)
        assert file["x"].chunks is None or np.prod(file["x"].chunks) <= 1 << 17


def test_long_words_of_another_question_are_cut():
    with pytest.raises(StorageError) as error:
        _compare({"solver": "x" * 300}, {"solver": "y" * 120})
    assert str(error.value).startswith(f"it belongs to the solver {'x' * 120}, this solve has {'y' * 120}; allowed")


@pytest.mark.parametrize("kind", ["a pipe", "a folder"])
def test_what_took_the_place_of_a_file_is_closed_again(tmp_path, monkeypatch, kind):
    """Looked at it was a file; opened it is none."""
    path, regular = tmp_path / "x", os.stat(__file__)
    os.mkfifo(path) if kind == "a pipe" else path.mkdir()
    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as exchanged:
        exchanged.setattr(gate.os, "stat", lambda path: regular)
        with pytest.raises(StorageError, match=f"it is {kind}, not a regular file"):
            gate.open_regular(path)
    assert set(os.listdir("/proc/self/fd")) == before
    descriptor = gate.open_regular(Path(__file__))
    assert os.read(descriptor, 3) == b'"""'
    os.close(descriptor)


def test_a_chunk_with_a_right_checksum_and_other_numbers_is_refused(tmp_path):
    """Only the digests tell: by every way on which slabs are read."""
    rng = np.random.default_rng(457)
    values = rng.random(300)
    container.write_container(tmp_path / "x.h5", "test", {}, {"x": values})
    file = container.open_container(tmp_path / "x.h5", ["test"])
    (chunk,) = file.chunks("x")
    forged = next(
        packed
        for packed in (pack(np.where(np.arange(300) == k, rng.random(), values), 300) for k in range(300))
        if len(packed) == chunk.size
    )
    data = bytearray((tmp_path / "x.h5").read_bytes())
    data[chunk.address : chunk.address + chunk.size] = forged
    (tmp_path / "forged.h5").write_bytes(data)
    other = container.open_container(tmp_path / "forged.h5", ["test"])
    found, checksum = other.slab("x", 0, chunk, known=forged[-4:])  # whoever has verified it before knows its checksum
    assert checksum == forged[-4:]
    assert (found != values).sum() == 1
    for read in (
        lambda: other.slab("x", 0, chunk),
        lambda: stored_range(other, "x", 10, 12),
        lambda: other.read(["x"]),
        other.verify,
        lambda: container.read_container(tmp_path / "forged.h5", ["test"]),
    ):
        with pytest.raises(StorageError, match="slab 0 of the array 'x' was changed: it does not match its digest"):
            read()
    with pytest.raises(StorageError, match="slab 0 of the array 'x' was changed since it was verified"):
        other.slab("x", 0, chunk, known=b"0123")


# ---- arrays that come slab by slab ----------------------------------------------------------------------------------------------------------

VALUES = np.array([0.5, 2.0, 3.0])


READERS = {
    "load": ctmc.load,
    "open": ctmc.open,
    "load what fits": load_fitting,
    "open what does not fit": lambda path, progress: opened_under(path, progress),
    "verify": ctmc.verify,
}


def opened_under(path, progress):
    with limited_memory("400KiB"):
        return load_fitting(path, progress=progress)


@pytest.mark.parametrize(
    ("way", "variant"),
    [
        *((way, False) for way in READERS),
        ("load", True),
        ("load what fits", True),
        ("verify", True),
    ],  # others are loaded
)
def test_every_way_of_reading_a_model_tells_how_far_it_is(tmp_path, way, variant):
    path, told = tmp_path / "model.h5", []
    model = registry.build("tandem_network", service_rates=[3.0, 2.0], arrival_rate=1.0, total_capacity=90)
    ctmc.save(path, model, progress=lambda *news: told.append(news))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1][0] == told[-1][1] > model.size
    if variant:
        path = tmp_path / "fast.h5"
        rerate(tmp_path / "model.h5", path, {"arrival_rate": 1.5})
    told.clear()
    READERS[way](path, progress=lambda *news: told.append(news))
    assert told
    assert all(0 < done <= whole for done, whole in told)
    assert told[-1][0] == told[-1][1]


def ring_of_slabs(n, special=-1, behind=0, coded=False):
    """Return a streamed ring in slabs of 4096 states; one state has a transition more, and rates of its own.

    Parameters
    ----------
    n, special : int
    behind : int
        Elements that stand behind the last transition of a slab: what no law of a generator allows.
    coded : bool
    """

    def rows(begin, end):
        states = np.arange(begin, end)
        pairs = [([(i - 1) % n], [0]) if i != special else (sorted([(i - 1) % n, (i - 2) % n]), [1, 2]) for i in states]
        used = np.concatenate([np.array(one, np.int32) for one, _ in pairs])
        codes = np.concatenate([np.array(one, np.uint8) for _, one in pairs])
        indptr = np.concatenate([[0], np.cumsum([len(one) for one, _ in pairs])])
        found = np.concatenate([used, np.full(behind, n + 7, np.int32)])
        if coded:
            return CodedTransitions(indptr, found, np.concatenate([codes, np.full(behind, 255, np.uint8)]), VALUES)
        return FloatTransitions(indptr, found, np.concatenate([VALUES[codes], np.full(behind, -1.0)]))

    with streaming():
        return ctmc.Generator(Lattice((n - 1,)), made(n, rows, slab_states=4096))


@pytest.mark.parametrize("coded", [False, True], ids=["plain", "coded"])
@pytest.mark.parametrize("special", [0, 4095, 4096, 8191, 8192, 8999])
def test_a_value_that_occurs_once_is_stored_wherever_it_stands(tmp_path, special, coded):
    """At the first and last place of every slab: a number of transitions, and two rates, that no other state has."""
    ctmc.save(tmp_path / "ring.h5", ring_of_slabs(9000, special, coded=coded))
    kept = container.read_container(tmp_path / "ring.h5", ["generator"]).arrays
    assert {"rates/counts.values", "rates/values" if coded else "rates/data.values"} <= kept.keys()
    ring = np.arange(9000)
    rates = np.where(ring == special, VALUES[2], VALUES[0])
    expected = ctmc.Generator.from_transitions(
        np.append((ring - 1) % 9000, (special - 2) % 9000),
        np.append(ring, special),
        np.append(rates, VALUES[1]),
        Lattice((8999,)),
    )
    for found in (ctmc.load(tmp_path / "ring.h5"), ctmc.open(tmp_path / "ring.h5")):
        for name in ("indptr", "sources", "rates"):
            np.testing.assert_array_equal(getattr(found.expanded, name), getattr(expected.expanded, name))


@pytest.mark.parametrize("coded", [False, True], ids=["plain", "coded"])
@pytest.mark.parametrize("n", [9, 9000])
def test_what_stands_behind_the_transitions_of_a_slab_is_not_looked_at(tmp_path, n, coded):
    """Makers of slabs may use the same memory again, so that there is something left of a longer slab."""
    digests = [ctmc.save(tmp_path / f"{behind}.h5", ring_of_slabs(n, 3, behind, coded)) for behind in (0, 5)]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("take", [ctmc.load, ctmc.open])
def test_states_that_nothing_leads_into_come_back(tmp_path, take):
    """Where the numbers of transitions are stored, 0 is one of them."""
    down = np.arange(1, 9000)
    model = ctmc.Generator.from_transitions(down, down - 1, np.full(8999, 2.0), Lattice((8999,)))
    ctmc.save(tmp_path / "down.h5", model)
    assert container.read_container(tmp_path / "down.h5", ["generator"]).arrays["rates/counts.values"].tolist() == [
        0,
        1,
    ]
    np.testing.assert_array_equal(take(tmp_path / "down.h5").expanded.indptr, model.indptr)


def test_rows_that_claim_too_much_are_given_up_at_once():
    """A file can claim more than anyone wants to wait for."""
    taken = []
    parts = (taken.append(k) or np.full(4096, 2) for k in range(100))
    with pytest.raises(StorageError, match="row pointers do not fit"):
        _cut(parts, 10_000)
    assert taken == [0, 1]


# ---- stores -------------------------------------------------------------------------------------------------------------------------------


def queue(births=1.0):
    return registry.prepare("birth_death", births=[births], deaths=[2.0])


def test_an_emptied_store_stays_a_folder(tmp_path):
    folder = tmp_path / "study.store"
    folder.mkdir()
    ctmc.save(folder / "bare.h5", ctmc.Generator.from_matrix([[-1, 1], [2, -2]]))
    assert [one.reason for one in inventory.prune(folder, larger_than=0)] == [""]
    assert folder.is_dir()
    assert list(folder.iterdir()) == []


def test_a_list_reads_no_arrays(tmp_path):
    """So it does not see what is damaged in them, which `verify` does."""
    path = Store(tmp_path).get_or_build(queue()).path
    with opened(path) as file:
        (chunk,) = file.chunks("exit_rates", file.arrays()["exit_rates"])
    with path.open("r+b") as file:
        file.seek(chunk.address)
        file.write(bytes(chunk.size))
    (entry,) = inventory.entries(tmp_path)
    assert (entry.kind, entry.states, entry.builder) == ("model", 2, "birth_death")
    with pytest.raises(StorageError):
        ctmc.load(path)


def test_a_model_at_other_rates_was_built_just_now(tmp_path):
    here = Store(tmp_path)
    first, second, again = here.get_or_build(queue()), here.get_or_build(queue(1.5)), here.get_or_build(queue(1.5))
    assert [one.built for one in (first, second, again)] == [True, True, False]
    assert (dict(first.rates), dict(second.rates)) == ({}, {"births": [1.5]})
    assert second.path == again.path != first.path


# ---- questions and variants -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", [None, "tolerance", "times", "initial", "reward", "moments", "discount", "target", "avoid", "solver"]
)
def test_every_part_of_a_question_makes_another(other):
    """An answer to another question is never taken for one to this."""
    chain = registry.build("birth_death", births=[1.0, 1.0, 1.0], deaths=[2.0, 2.0, 2.0])
    chain = chain.with_reward("a", np.arange(4.0)).with_reward("b", np.ones(4))
    changes = {
        "tolerance": 1e-9, "times": [0.5, 2.0], "initial": (1,), "reward": "b", "moments": 2, "discount": 0.25,
        "target": "customers == 2", "avoid": "customers == 1", "solver": "gmres",
    }  # fmt: skip
    one, two = {"tolerance": 1e-8}, {"tolerance": 1e-8}
    two |= {other: changes[other]} if other not in (None, "solver") else {}
    states = {"target": "customers == 3", "avoid": "customers == 0", "initial": (2,)}
    asked = {
        "transient": (ctmc.Transient, {"initial": (0,), "times": [0.5, 1.0]}),
        "accumulated": (ctmc.AccumulatedReward, {"reward": "a", "times": [0.5, 1.0], "moments": 1, "initial": (0,)}),
        "discounted": (ctmc.DiscountedReward, {"reward": "a", "discount": 0.5, "moments": 1, "initial": (0,)}),
        "passage": (ctmc.FirstPassage, {**states, "moments": 1}),
        "stationary": (ctmc.Stationary, {}),
    }
    seen = 0
    for name, (kind, given) in asked.items():
        if other in (None, "tolerance", "solver", *given):
            solver = "gmres(restart=50)" if other == "solver" else "gmres"
            questions = [
                question_of(kind(chain, **given, **one), "gmres"),
                question_of(kind(chain, **{**given, **two}), solver),
            ]
            assert (questions[0] == questions[1]) == (other is None), name
            hashes = {question_hash(question) for question in questions}
            assert len(hashes) == (1 if other is None else 2)
            seen += 1
    assert seen > 0
    kinds = [question_of(kind(chain, **given), "gmres")["problem"] for kind, given in asked.values()]
    assert len(set(kinds)) == len(asked)


def test_a_variant_replaces_another_only_where_that_is_asked_for(tmp_path):
    ctmc.save(tmp_path / "model.h5", registry.build("birth_death", births=[1.0], deaths=[2.0]))
    first = rerate(tmp_path / "model.h5", tmp_path / "fast.h5", {"births": [3.0]})
    with pytest.raises(StorageError, match=r"fast\.h5"):
        rerate(tmp_path / "model.h5", tmp_path / "fast.h5", {"births": [4.0]})
    assert ctmc.load(tmp_path / "fast.h5").content_hash == first.content_hash
    second = rerate(tmp_path / "model.h5", tmp_path / "fast.h5", {"births": [4.0]}, overwrite=True)
    assert ctmc.load(tmp_path / "fast.h5").content_hash == second.content_hash != first.content_hash


def test_what_is_written_slab_by_slab_needs_room_for_vectors(tmp_path):
    """A forecast, which looks at some slabs only, needs none."""

    def rows(begin, end):
        states = np.arange(begin, end)
        return FloatTransitions(
            np.arange(len(states) + 1), ((states - 1) % 20_000).astype(np.int32), np.ones(len(states))
        )

    with streaming():
        ring = ctmc.Generator(Lattice((19_999,)), made(20_000, rows, slab_states=4096))
    with limited_memory(16 * 20_000 - 1):
        stream_of(ring, sample=[0, 2])
        with pytest.raises(ctmc.ModelError, match="the model, stored slab by slab, "):
            stream_of(ring)
    with limited_memory(16 * 20_000):
        stream_of(ring)


@pytest.mark.parametrize("column", HISTORY.names)
def test_a_history_without_one_of_its_columns_is_refused(tmp_path, column):
    path = tmp_path / "x.h5"
    run = Run({"iterate": np.ones(3)}, history=np.zeros(2, HISTORY))
    save_checkpoint(path, {}, Progress((run,), 1.0, 2))
    held = container.read_container(path, ["checkpoint"])
    for change in ({}, {f"runs/0/history/{column}": np.zeros(3, held.arrays[f"runs/0/history/{column}"].dtype)}):
        arrays = {name: array for name, array in held.arrays.items() if not name.endswith(f"/{column}")} | change
        container.write_container(path, "checkpoint", held.manifest, arrays, overwrite=True)
        with pytest.raises(StorageError, match="the history of its run 0 is not complete"):
            load_checkpoint(path)


def test_a_whole_chunk_of_noise_may_be_longer_than_its_elements(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "SLAB_BYTES", 2**16)
    noise = np.random.default_rng(461).integers(0, 256, 2**16).astype(np.uint8)
    container.write_container(tmp_path / "x.h5", "test", {}, {"x": noise})
    (chunk,) = container.open_container(tmp_path / "x.h5", ["test"]).chunks("x")
    assert chunk.size > noise.size
    np.testing.assert_array_equal(container.read_container(tmp_path / "x.h5", ["test"]).arrays["x"], noise)


@pytest.mark.parametrize(("length", "fits"), [(256, True), (257, False)])
def test_an_attribute_may_be_so_long_and_no_longer(tmp_path, length, fits):
    told = {"g": {"text": "a" * length}}
    if fits:
        container.write_container(tmp_path / "x.h5", "test", {}, {"g/x": np.ones(2)}, group_attributes=told)
        assert container.read_container(tmp_path / "x.h5", ["test"]).arrays["g/x"].tolist() == [1.0, 1.0]
    else:
        with pytest.raises(StorageError, match="attribute"):
            container.write_container(tmp_path / "x.h5", "test", {}, {"g/x": np.ones(2)}, group_attributes=told)
        assert list(tmp_path.iterdir()) == []
