"""Files of models that ranks share: what they write together, and the parts that they read, are those of one process."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from thread_ranks import on_ranks

import ctmc
from builders.fork_join import fork_join
from builders.supermarket import supermarket
from ctmc.checkpoint import Progress, Run
from ctmc.errors import ModelError, StorageError
from ctmc.model import streamed
from ctmc.model.generator import Generator
from ctmc.model.impulses import reward_rates
from ctmc.model.reward import Reward
from ctmc.model.shared import share
from ctmc.model.state_space import Lattice
from ctmc.model.streamed import StreamedTransitions, streaming
from ctmc.model.transitions import CodedTransitions, FloatTransitions
from ctmc.passage_solution import PassageSolution
from ctmc.ranks import ALONE
from ctmc.registry import make_solver
from ctmc.solution import HISTORY, Status
from ctmc.storage import gate, relay, rerate, shares, stored
from ctmc.storage.checkpoints import digest_of_states, load_checkpoint, question_of, save_checkpoint
from ctmc.storage.container import open_container, read_container, write_container
from ctmc.storage.ranges import StoredVector, stored_range
from ctmc.storage.relay import save_together, together, write_together
from ctmc.storage.shares import open_share
from ctmc.storage.solutions import can_be_saved, save_solution
from tests.chain_gallery import random_chain

RANKS = [2, 3, 5]
BLOCK = 4096
MODELS = {
    "float rows": lambda: ring(331, 6 * BLOCK + 17),
    "coded rows": lambda: ring(337, 6 * BLOCK + 17, [0.5, 1.5, 2.0]).coded(),
    "a lattice": lambda: supermarket([1, 1.5, 2, 3], 5, 2, 8),
}


def ring(seed, states, values=None):
    """A random chain that is irreducible; its rates are random numbers, or some of a few."""
    rng = np.random.default_rng(seed)
    begin, end = rng.integers(0, states, (2, states))
    rates = rng.random(states) + 0.1 if values is None else rng.choice(values, states)
    sources, targets = np.append(begin, np.arange(states)), np.append(end, np.roll(np.arange(states), -1))
    return Generator.from_transitions(sources, targets, np.append(rates, np.ones(states)), Lattice((states - 1,)))


def in_slabs(form):
    """Return a model with rows that come slab by slab."""
    with streaming():
        model = MODELS[form]()
    if isinstance(model.transitions, StreamedTransitions):
        return model
    rows, begins = model.transitions, np.append(np.arange(0, model.size, BLOCK), model.size)

    def stream(numbers):
        for number in numbers:
            a, b = begins[number], begins[number + 1]
            cut = slice(rows.indptr[a], rows.indptr[b])
            pointers = rows.indptr[a : b + 1] - rows.indptr[a]
            if isinstance(rows, CodedTransitions):
                part = CodedTransitions(pointers, rows.sources[cut], rows.codes[cut], rows.values)
            else:
                part = FloatTransitions(pointers, rows.sources[cut], rows.rates[cut])
            yield streamed.as_slab(int(a), part)

    return model._with_transitions(StreamedTransitions("rows", begins, lambda: model.entries, stream))


@pytest.fixture
def short(monkeypatch):
    """Make slabs short and stream every lattice, so that there are many slabs of each form."""
    monkeypatch.setattr(streamed, "SLAB_STATES", 600)
    monkeypatch.setattr(gate, "SLAB_BYTES", 4096)
    monkeypatch.setattr(streamed, "LEAST_STREAMED", 0)
    monkeypatch.setattr(shares, "LEAST_STREAMED", 0)
    monkeypatch.setattr(stored, "LEAST_STREAMED", 0)
    monkeypatch.setattr(stored, "SLAB_ENTRIES", 20_000)


@pytest.mark.parametrize("count", RANKS)
@pytest.mark.parametrize("form", MODELS)
def test_a_file_that_all_ranks_write_is_that_of_one_process(form, count, short, tmp_path):
    model = in_slabs(form)
    rows = model.transitions
    assert len(rows.begins) > 7
    digest = ctmc.save(tmp_path / "one.h5", MODELS[form]())
    assert ctmc.save(tmp_path / "slabs.h5", model) == digest
    made = [[] for _ in range(count)]

    def watched(rank):
        def stream(numbers):
            for number in numbers:
                made[rank].append(number)
                yield from rows.stream([number])

        def windows(numbers):
            for number in numbers:
                made[rank].append(number)
                yield from rows.lattice.windows([number])

        lattice = rows.lattice and streamed.replace(rows.lattice, windows=windows)
        return model._with_transitions(streamed.replace(rows, stream=stream, lattice=lattice))

    def work(ranks):
        return save_together(watched(ranks.rank), lambda whole: ctmc.save(tmp_path / "all.h5", whole), ranks)

    assert on_ranks(count, work) == [digest] * count
    assert read_container(tmp_path / "all.h5", ["generator"]).content_hash == digest
    passes = sorted(number for numbers in made for number in numbers).count(0)
    for rank, numbers in enumerate(made):  # in turn, and nothing twice
        turn = [number for number in range(len(rows.begins) - 1) if number % count == rank]
        assert numbers == turn * passes


def test_models_in_memory_are_written_by_the_first(tmp_path):
    for number, model in enumerate((random_chain(341), fork_join([5, 2, 1], 1, 3, [1, 2, 8]))):
        digest = ctmc.save(tmp_path / "one.h5", model, overwrite=True)
        wrote = []

        def work(ranks, model=model, number=number, wrote=wrote):
            def write(whole):
                wrote.append(ranks.rank)
                return ctmc.save(tmp_path / f"{number}.h5", whole)

            return save_together(model, write, ranks)

        assert on_ranks(3, work) == [digest] * 3
        assert wrote == [0]
        assert save_together(model, lambda whole, model=model: whole is model, ALONE)


@pytest.mark.parametrize("slabs", [0, 1, 2, 7])
@pytest.mark.parametrize("form", ["coded rows", "a lattice"])
def test_who_stops_in_the_midst_leaves_no_answer_behind(form, slabs, short, tmp_path):
    """All meet the error of the first rank, and the next question gets its own answer."""
    model = in_slabs(form)
    number = tmp_path / "missing" / "model.h5"

    def write(whole):
        rows = whole.transitions
        coming = rows.stream(range(7)) if rows.lattice is None else rows.lattice.windows(range(7))
        for _ in zip(range(slabs), coming, strict=False):
            pass
        coming.close()
        return ctmc.save(number, whole)

    def work(ranks):
        with pytest.raises(StorageError, match="there is no folder"):
            save_together(model, write, ranks)
        return save_together(model, lambda whole: ctmc.save(tmp_path / "model.h5", whole), ranks)

    assert on_ranks(3, work) == [ctmc.save(tmp_path / "model.h5", model)] * 3


@pytest.mark.parametrize("form", ["float rows", "coded rows"])
def test_what_is_sent_is_a_copy_without_room_that_is_not_used(form):
    """A slab is valid until the next one, and its arrays may be longer than its rows."""
    model, lent = in_slabs(form), []
    rows = model.transitions

    def stream(numbers):
        for slab in rows.stream(numbers):
            roomy = slab._replace(indptr=slab.indptr.copy(), sources=np.append(slab.sources, slab.sources[:9]))
            if form == "coded rows":
                roomy = roomy._replace(codes=np.append(slab.codes, slab.codes[:9]))
            else:
                roomy = roomy._replace(rates=np.append(slab.rates, slab.rates[:9]))
            lent.append(roomy)
            yield roomy

    answer = relay.rows_answer(model._with_transitions(streamed.replace(rows, stream=stream)))
    begin, indptr, sources, codes, rates = answer(("slab", 2))
    (whole,) = rows.stream([2])
    for array in lent[0][1:]:
        if array.flags.writeable:
            array[...] = 0
    assert begin == whole.begin == 2 * BLOCK
    np.testing.assert_array_equal(indptr, whole.indptr)
    np.testing.assert_array_equal(sources, whole.sources, strict=True)
    if form == "coded rows":
        np.testing.assert_array_equal(codes, whole.codes, strict=True)
        assert rates.shape == whole.rates.shape
    else:
        assert codes is None
        np.testing.assert_array_equal(rates, whole.rates, strict=True)


def test_rows_of_a_file_come_from_all_ranks_too(short, tmp_path):
    """A file has a way of its own to hand out its slabs, which goes past the ranks."""
    ctmc.save(tmp_path / "model.h5", MODELS["float rows"]())
    digest = ctmc.save(tmp_path / "one.h5", ctmc.open(tmp_path / "model.h5"))

    def work(ranks):
        def write(whole):
            assert whole.transitions.each is None
            return ctmc.save(tmp_path / "again.h5", whole)

        return save_together(ctmc.open(tmp_path / "model.h5"), write, ranks)

    assert on_ranks(2, work) == [digest] * 2


@pytest.mark.parametrize("form", MODELS)
def test_slabs_come_in_the_order_in_which_they_are_asked_for(form, short):
    model, order = in_slabs(form), [5, 1, 4, 0, 6, 3]
    begins = model.transitions.begins[order].tolist()

    def read(whole):
        rows = whole.transitions
        if rows.lattice is not None:
            return [begin for begin, _ in rows.lattice.windows(order)]
        return [slab.begin for slab in rows.stream(order)]

    assert on_ranks(3, lambda ranks: save_together(model, read, ranks)) == [begins] * 3


def test_all_ranks_work_whatever_is_asked_for():
    """Every other slab of a forecast is not the share of one rank."""
    model, made = in_slabs("float rows"), [[], []]
    rows = model.transitions

    def work(ranks):
        def stream(numbers):
            for number in numbers:
                made[ranks.rank].append(number)
                yield from rows.stream([number])

        mine = model._with_transitions(streamed.replace(rows, stream=stream))
        return save_together(mine, lambda whole: len(list(whole.transitions.stream([0, 2, 4, 6]))), ranks)

    assert on_ranks(2, work) == [4, 4]
    assert made == [[0, 4], [2, 6]]


@pytest.mark.parametrize("own", [[5, 0, 7, 1], [0, 9], [3, 3, 3]])
def test_vectors_of_which_ranks_have_parts(own, monkeypatch, tmp_path):
    monkeypatch.setattr(relay, "PART", 3)
    rng = np.random.default_rng(347)
    whole = {"x": rng.random(sum(own)), "deep/y": rng.integers(0, 99, 2 * sum(own))}
    wanted = write_container(tmp_path / "one.h5", "test", {"a": 1}, whole)

    def work(ranks):
        end = np.cumsum([0, *own])[ranks.rank : ranks.rank + 2]
        mine = {"x": whole["x"][slice(*end)], "deep/y": whole["deep/y"][slice(*(2 * end))]}
        sent = []
        return write_together(
            ranks,
            mine,
            lambda stream: (
                write_container(tmp_path / "all.h5", "test", {"a": 1}, {}, stream=stream),
                sent.extend(len(values) for _, _, values in stream.parts()),
                max(sent),
            ),
        )

    assert on_ranks(len(own), work) == [(wanted, None, 3)] * len(own)


def test_a_question_is_answered_by_who_is_asked():
    def lead(leader):
        leader.ask(2, "a")
        leader.ask(1, "b")
        leader.ask(2, "c")
        return leader.count, leader.answer(2), leader.answer(2), leader.answer(1)

    found = on_ranks(3, lambda ranks: together(ranks, lead, lambda request: f"{request}{ranks.rank}"))
    assert found == [(3, "a2", "c2", "b1")] * 3


# ---- what each rank reads -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """Return a file with arrays of several chunks, and what they hold."""
    monkeypatch.setattr(gate, "SLAB_BYTES", 80)
    rng = np.random.default_rng(349)
    held = {"vector": rng.random(37), "matrix": rng.random((9, 25)), "narrow": rng.random((33, 3)), "none": np.empty(0)}
    codes = rng.integers(0, 5, 203).astype(np.uint8)
    write_container(tmp_path / "a.h5", "test", {}, {**held, "few.codes": codes, "few.values": np.arange(5) / 8})
    return open_container(tmp_path / "a.h5", ["test"]), {**held, "few": codes / 8}


@pytest.mark.parametrize("name", ["vector", "matrix", "narrow", "none", "few"])
def test_a_range_is_what_the_whole_has_there(name, arrays):
    file, held = arrays
    array = held[name]
    step = file.stored[name if name in file.stored else f"{name}.codes"].chunk[0]
    for begin in (0, 1, step - 1, step, step + 1, len(array) - 1, len(array)):
        for end in (begin, begin + 1, begin + step, begin + 2 * step + 1, len(array)):
            if 0 <= begin <= end <= len(array):
                np.testing.assert_array_equal(stored_range(file, name, begin, end), array[begin:end], strict=True)
    if name in file.stored:
        vector = StoredVector(file, name)
        assert vector.shape == array.shape
        np.testing.assert_array_equal(vector.part(0, len(array)), array)


def test_only_the_chunks_of_a_range_are_read(arrays):
    file, held = arrays
    read = []

    class Watched:
        stored, chunks = file.stored, file.chunks

        def slab(self, name, number, chunk):
            read.append(number)
            return file.slab(name, number, chunk)

    assert file.stored["vector"].chunk == (10,)
    for begin, end, wanted in (
        (0, 10, [0]),
        (9, 11, [0, 1]),
        (10, 20, [1]),
        (30, 37, [3]),
        (20, 20, []),
        (19, 21, [1, 2]),
    ):
        read.clear()
        np.testing.assert_array_equal(stored_range(Watched(), "vector", begin, end), held["vector"][begin:end])
        assert read == wanted


def test_ranges_that_are_not_there_are_refused(arrays, tmp_path):
    file, _ = arrays
    with pytest.raises(StorageError, match="it has no array 'other'"):
        stored_range(file, "other", 0, 1)
    with pytest.raises(StorageError, match="its array vector has 37 elements; needed are 38"):
        stored_range(file, "vector", 36, 38)
    wrong = {"few.codes": np.array([0, 4, 5, 1], dtype=np.uint8), "few.values": np.arange(5.0)}
    write_container(tmp_path / "b.h5", "test", {}, wrong)
    other = open_container(tmp_path / "b.h5", ["test"])
    np.testing.assert_array_equal(stored_range(other, "few", 0, 2), [0, 4])
    with pytest.raises(StorageError, match="a code of few is 5, but there are 5 values"):
        stored_range(other, "few", 1, 4)


def dressed(model):
    """Return a model with labels, and with rewards of every kind, stored as they are and coded."""
    rng = np.random.default_rng(353)
    few = rng.choice([0.5, 2.0], model.size)
    rewards = {
        "noise": Reward(rng.random(model.size)),
        "few": Reward(few, "of a few values", averaged=True),
        "jumps": Reward(few, impulse=rng.random(model.entries)),
        "only jumps": Reward(None, impulse=rng.choice([1.0, 3.0], model.entries), self_loops=few),
    }
    return model.replace(labels={"odd": few > 1, "all": np.ones(model.size, dtype=bool)}, rewards=rewards)


SHARED = {
    "rows": lambda: dressed(ring(359, 9000)),
    "coded rows": lambda: dressed(ring(367, 9000, [0.5, 1.5, 2.0]).coded()),
    "few states": lambda: random_chain(373),
    "a lattice": lambda: dressed(supermarket([1, 1.5, 2, 3], 5, 2, 8)),
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("form", SHARED)
@pytest.mark.parametrize("kept", ["in slabs", "whole"])
def test_each_rank_has_its_part_of_what_one_process_loads(form, kept, count, request, tmp_path):
    if kept == "in slabs":
        request.getfixturevalue("short")
    ctmc.save(tmp_path / "model.h5", SHARED[form]())
    whole = ctmc.load(tmp_path / "model.h5")
    x = np.random.default_rng(379).random(whole.size)

    def work(ranks):
        part = open_share(tmp_path / "model.h5", ranks)
        assert (part.content_hash, part.recipe, part.ranks) == (whole.content_hash, whole.recipe, ranks)
        assert list(part.all_rewards) == list(whole.all_rewards)
        for name, reward in part.rewards.items():
            assert (reward.description, reward.averaged) == (
                whole.rewards[name].description,
                whole.rewards[name].averaged,
            )
        here = slice(part.begin, part.begin + part.size)
        np.testing.assert_array_equal(part.exit_rates, whole.exit_rates[here])
        for name, member in whole.labels.items():
            np.testing.assert_array_equal(part.labels[name], member[here], strict=True)
        mine = x[here]
        return [part.forward(mine), *(reward_rates(part, reward) for reward in part.all_rewards.values())]

    found = [np.concatenate(parts) for parts in zip(*on_ranks(count, work), strict=True)]
    wanted = [whole.forward(x), *(reward_rates(whole, reward) for reward in whole.all_rewards.values())]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12 * np.abs(other).max())


def test_variants_are_shared_and_queues_refused(tmp_path):
    chain, queue = supermarket([1, 1.5, 2], 4, 2, 8), fork_join([5, 2, 1], 1, 3, [1, 2, 8])
    for name, model in (("chain", chain), ("queue", queue)):
        ctmc.save(tmp_path / f"{name}.h5", model)
        rerate(tmp_path / f"{name}.h5", tmp_path / f"{name} again.h5", {"arrival_rate": 0.9})
    rated = ctmc.load(tmp_path / "chain again.h5")
    x = np.random.default_rng(383).random(chain.size)

    def work(ranks):
        part = open_share(tmp_path / "chain again.h5", ranks)
        assert part.content_hash == rated.content_hash
        return part.forward(x[part.begin : part.begin + part.size])

    np.testing.assert_allclose(np.concatenate(on_ranks(2, work)), rated.forward(x), rtol=1e-12, atol=1e-12)
    for name in ("queue", "queue again"):
        with pytest.raises(ModelError, match=rf"{name}\.h5 holds a QBD; allowed on several ranks is a Generator"):
            open_share(tmp_path / f"{name}.h5", ALONE)


FORGED = {
    "a label that is no yes or no": (
        lambda arrays: arrays["labels/0"].__setitem__(1999, 2),
        "label 'odd' has values other",
    ),
    "a label of other numbers": (
        lambda arrays: arrays.update({"labels/1": np.ones(2000)}),
        "label 'all' has values other",
    ),
    "a short reward": (
        lambda arrays: arrays.update({"rewards/0": np.ones(1999)}),
        "has 1,999 elements; needed are 2,000",
    ),
    "no reward": (lambda arrays: arrays.pop("rewards/0"), "it has no array 'rewards/0'"),
    "another exit rate": (lambda arrays: arrays["exit_rates"].__setitem__(1999, 9e9), "exit rate"),
    "a rate below 0": (lambda arrays: arrays["rates/data"].__setitem__(-1, -1.0), "rate"),
}


@pytest.mark.parametrize("fault", FORGED)
def test_what_is_wrong_in_a_part_is_refused(fault, tmp_path):
    change, sentence = FORGED[fault]
    ctmc.save(tmp_path / "model.h5", dressed(ring(389, 2000)))
    held = read_container(tmp_path / "model.h5", ["generator"])
    changed = {name: np.array(array) for name, array in held.arrays.items()}
    change(changed)
    write_container(tmp_path / "forged.h5", "generator", held.manifest, changed)
    with pytest.raises(StorageError, match=sentence) as error:
        on_ranks(2, lambda ranks: open_share(tmp_path / "forged.h5", ranks))
    assert "forged.h5" in str(error.value)


# ---- checkpoints ----------------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_some_ranks_goes_on_with_others(tmp_path):
    """What three ranks write is the file of one process, of which two, or one, take their parts."""
    rng = np.random.default_rng(397)
    history = np.zeros(4, HISTORY)
    history["iteration"], history["defect"] = np.arange(4), rng.random(4)
    value, iterate, integral = rng.random((3, 50))
    question = {"model": "m", "tolerance": 1e-9}

    def progress(begin, end):
        runs = (
            Run({"value": value[begin:end]}, {"a": 2.0}, history, Status.CONVERGED, "gmres"),
            Run({"iterate": iterate[begin:end], "integral": integral}, {}, history[:2], states="abc"),
        )
        return Progress(runs, 12.5, 34)

    save_checkpoint(tmp_path / "one.h5", question, progress(0, 50))

    def write(ranks):
        save_checkpoint(tmp_path / "all.h5", question, progress(*([0, 7, 7, 50][ranks.rank : ranks.rank + 2])), ranks)

    on_ranks(3, write)
    hashes = [read_container(tmp_path / f"{name}.h5", ["checkpoint"]).content_hash for name in ("one", "all")]
    assert hashes[0] == hashes[1]

    def read(ranks):
        found = load_checkpoint(tmp_path / "all.h5", question, ranks)
        assert (found.seconds, found.products) == (12.5, 34)
        for run, other in zip(found.runs, progress(0, 50).runs, strict=True):
            assert (run.numbers, run.status, run.solver, run.states) == (
                other.numbers,
                other.status,
                other.solver,
                other.states,
            )
            np.testing.assert_array_equal(run.history, other.history)
            for name, array in other.arrays.items():
                kept = run.arrays[name]
                assert isinstance(kept, StoredVector) == (ranks.count > 1 and name != "integral")
                np.testing.assert_array_equal(
                    kept.part(9, 31) if isinstance(kept, StoredVector) else kept[9:31], array[9:31]
                )

    on_ranks(2, read)
    read(ALONE)


def test_a_digest_of_states_does_not_depend_on_who_has_them():
    chain = ring(401, 300)
    rng = np.random.default_rng(409)
    chosen = [
        rng.random(300) < 0.3,
        np.zeros(300, dtype=bool),
        np.arange(300) == 0,
        np.arange(300) == 1,
        np.arange(300) < 2,
    ]
    alone = [digest_of_states(chain, one) for one in chosen]
    assert len(set(alone)) == len(chosen)
    for one, digest in zip(chosen, alone, strict=True):
        count = total = mixed = 0
        for state in np.flatnonzero(one).tolist():
            word = (state + 1) * 0x9E3779B97F4A7C15 % 2**64
            word = (word ^ word >> 29) * 0xBF58476D1CE4E5B9 % 2**64
            word ^= word >> 32
            count, total, mixed = count + 1, total + word, mixed ^ word
        assert digest == hashlib.sha256(f"{count} {total % 2**64} {mixed}".encode()).hexdigest()

    def work(ranks):
        part = share(chain, ranks)
        return [digest_of_states(part, one[part.begin : part.begin + part.size]) for one in chosen]

    for count in (2, 5):
        assert on_ranks(count, work) == [alone] * count


# ---- solutions ------------------------------------------------------------------------------------------------------------------------


def given(problem, value, **more):
    """A solution whose numbers are given."""
    kind = PassageSolution if isinstance(problem, ctmc.FirstPassage) else ctmc.Solution
    history = np.empty(0, HISTORY)
    return kind(problem, value, Status.CONVERGED, "given.", 1e-14, history, 0.5, 7, "gmres", **more)


def test_a_solution_of_all_ranks_is_stored_as_one_of_a_single_process(tmp_path, monkeypatch):
    monkeypatch.setattr(relay, "PART", 100)
    path = tmp_path / "chain.h5"
    ctmc.save(path, ring(419, 700))
    chain = ctmc.load(path)
    rng = np.random.default_rng(433)
    pi, hitting, variances = rng.random((3, 700))
    chosen = np.arange(700) == 5

    def stationary(model, own):
        return given(ctmc.Stationary(model), pi[own])

    def passage(model, own):
        times = {
            "variances": variances[own],
            "reach_probability": variances[own] / 2,
            "relative_error_bound": np.ones(1),
        }
        return given(ctmc.FirstPassage(model, chosen[own], moments=1), hitting[own], **times)

    def one_start(model, own):
        return given(ctmc.AccumulatedReward(model, "busy", initial=(0,), times=[1.0]), np.array([[2.5]]))

    chain = chain.replace(rewards={"busy": Reward(rng.random(700))})
    for ask in (stationary, passage, one_start):
        name = ask.__name__
        alone = save_solution(path, ask(chain, slice(None)), f"{name} one")

        def work(ranks, ask=ask, name=name):
            part = share(chain, ranks)
            solution = ask(part, slice(part.begin, part.begin + part.size))
            assert can_be_saved(solution)
            return save_solution(path, solution, f"{name} all")

        (together_path,) = set(on_ranks(3, work))
        assert together_path.name == f"{name} all.h5"
        hashes = [read_container(one, ["solution"]).content_hash for one in (alone, together_path)]
        assert hashes[0] == hashes[1], name


def test_what_ranks_cannot_store_is_said_before():
    chain = ring(439, 60)

    def work(ranks):
        part = share(chain, ranks)
        question = ctmc.AccumulatedReward(
            part.replace(rewards={"one": Reward(np.ones(part.size))}), "one", times=[1.0, 2.0]
        )
        many = given(question, np.ones((2, part.size)))
        assert not can_be_saved(many)
        with pytest.raises(StorageError, match="has several numbers for each state, and 3 ranks share the model"):
            save_solution("nowhere.h5", many)
        # a number that is missing on one rank is known to all
        lost = np.where(np.arange(part.size) == 0, np.nan if ranks.rank == 1 else 1.0, 1.0)
        endless = np.full(part.size, np.inf)
        target = np.arange(part.begin, part.begin + part.size) == 0
        return [
            can_be_saved(given(ctmc.Stationary(part), lost)),
            can_be_saved(given(ctmc.Stationary(part), endless)),
            can_be_saved(given(ctmc.FirstPassage(part, target), lost)),
            can_be_saved(given(ctmc.FirstPassage(part, target), endless)),
        ]

    assert on_ranks(3, work) == [[False, False, False, True]] * 3


def test_a_checkpoint_of_a_shared_model_names_its_file_or_its_recipe(tmp_path):
    bare, built = ring(443, 60), ctmc.build("birth_death", births=[1.0] * 9, deaths=[2.0] * 9)
    ctmc.save(tmp_path / "model.h5", ring(443, 60))

    def work(ranks):
        solver = make_solver("gmres")
        with pytest.raises(ModelError, match="a shared model without a file or recipe; allowed is one with either"):
            question_of(ctmc.Stationary(share(bare, ranks)), solver)
        stored = share(ctmc.load(tmp_path / "model.h5"), ranks)
        return [question_of(ctmc.Stationary(part), solver)["model"] for part in (stored, share(built, ranks))]

    wanted = [ctmc.load(tmp_path / "model.h5").content_hash, f"recipe {built.recipe.hash}"]
    assert on_ranks(2, work) == [wanted] * 2
