"""Rows that are never all in memory: made by builders, written, opened, solved."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import ctmc
from builders.supermarket import supermarket
from builders.tandem_network import tandem_network
from ctmc.cli import main
from ctmc.model import streamed
from ctmc.model.generator import Generator
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Listed, Variable
from ctmc.model.streamed import StreamedTransitions, made, streaming
from ctmc.model.transitions import CodedTransitions, FloatTransitions
from ctmc.storage import sources, stored
from ctmc.storage.container import read_container

LUMPED = {"service_rates": [1, 1, 1, 2, 2], "arrival_rate": 5, "choices": 2, "capacity": 9, "lump": True}
CAPPED = {"service_rates": [1, 1.5, 2, 3], "arrival_rate": 5, "choices": 2, "capacity": 15, "total_capacity": 25}
BUILDERS = {
    "lumped": (supermarket, LUMPED),
    "lumped and capped": (supermarket, {**LUMPED, "capacity": 20, "total_capacity": 24}),
    "capped": (supermarket, CAPPED),
    "some servers never join": (supermarket, {**CAPPED, "service_rates": [1, 2, 3], "sampling": "without_replacement"}),
    "tandem": (tandem_network, {"service_rates": [3, 2, 1], "arrival_rate": 0.8, "total_capacity": 50}),
}


@pytest.fixture(params=BUILDERS)
def case(request, monkeypatch):
    """Return a builder and parameters; slabs are short, so that there are several."""
    monkeypatch.setattr(stored, "SLAB_ENTRIES", 20_000)
    monkeypatch.setattr(streamed, "SLAB_STATES", 4096)
    return BUILDERS[request.param]


def streamed_model(builder, parameters):
    with streaming():
        return builder(**parameters)


def same_rows(one, other):
    for name in ("indptr", "sources", "rates"):
        np.testing.assert_array_equal(getattr(one.expanded, name), getattr(other.expanded, name))
    np.testing.assert_array_equal(one.exit_rates, other.exit_rates)


def check_like(found, model, rng):
    """The same transitions, products with the same bits, the same structure."""
    same_rows(found, model)
    assert found.entries == model.entries
    np.testing.assert_array_equal(found.most_transitions_in(), model.most_transitions_in())
    np.testing.assert_array_equal(found.most_transitions_out(), model.most_transitions_out())
    x, before = rng.random((2, model.size))
    for backward in (False, True):
        mix = [np.array([0.5, 2.0, 1.0, 3.0]), *np.ones((2, model.size))]
        other = [mix[0], *np.ones((2, model.size))]
        options = {"factor": 0.3, "keep": 0.7, "previous": before, "weight": -0.2, "backward": backward}
        one = found.recurrence(x, sums=tuple(mix), **options)
        np.testing.assert_array_equal(one, model.recurrence(x, sums=tuple(other), **options))
        np.testing.assert_array_equal(mix[1], other[1])
        np.testing.assert_array_equal(mix[2], other[2])
    assert (found.coloring is None) == (model.coloring is None)
    if model.coloring is not None:
        np.testing.assert_array_equal(found.coloring, model.coloring)
    recurrent = [set(each.classes.members(each.classes.recurrent[0]).tolist()) for each in (found, model)]
    assert recurrent[0] == recurrent[1]
    j = model.size // 2
    for one, other in zip(found.transitions.into(j), model.transitions.into(j), strict=True):
        np.testing.assert_array_equal(one, other)


def test_builders_make_the_same_rows_slab_by_slab(case):
    builder, parameters = case
    model, found = builder(**parameters), streamed_model(builder, parameters)
    assert isinstance(found.transitions, StreamedTransitions)
    assert len(found.transitions.begins) > 2 or model.size < 4096 or builder is tandem_network
    check_like(found, model, np.random.default_rng(20261130))


def test_a_streamed_file_has_the_content_of_one_written_from_memory(case, tmp_path):
    builder, parameters = case
    model, found = builder(**parameters), streamed_model(builder, parameters)
    digest = ctmc.save(tmp_path / "whole.h5", model)
    assert ctmc.save(tmp_path / "slabs.h5", found) == digest
    assert ctmc.save(tmp_path / "slabs.h5", found) == digest  # it is there already
    one, other = (read_container(tmp_path / f"{name}.h5", ["generator"]) for name in ("whole", "slabs"))
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(other.arrays[name], array)
    same_rows(ctmc.load(tmp_path / "slabs.h5"), model)


@pytest.mark.parametrize("keep", [0, 30_000, 10**9])
def test_an_opened_model_is_the_stored_one(case, tmp_path, keep):
    builder, parameters = case
    model = builder(**parameters)
    ctmc.save(tmp_path / "model.h5", model)
    told = []
    found = ctmc.open(tmp_path / "model.h5", keep=keep, progress=lambda *one: told.append(one))
    assert [whole for _, whole in told] == [model.entries] * (len(found.transitions.begins) - 1)
    assert sorted({done for done, _ in told}) == [done for done, _ in told]
    assert told[-1][0] == model.entries
    assert found.representation == "stored rows"
    arrays = read_container(tmp_path / "model.h5", ["generator"]).arrays
    rows = sum(array.nbytes for name, array in arrays.items() if name.startswith("rates/"))
    assert found.transitions.nbytes == min(keep, rows)  # what is held all the time
    assert found.recipe == model.recipe
    assert list(found.all_rewards) == list(model.all_rewards)
    check_like(found, model, np.random.default_rng(20261201))


SOLVERS = ("bicgstab", "gauss_seidel", "aggregation", "gmres(restart=20)", "anderson", "arnoldi(basis=12)")


@pytest.mark.parametrize("name", ["capped", pytest.param("tandem", marks=pytest.mark.slow), "some servers never join"])
def test_solvers_and_certificates_work_on_the_file(name, tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "SLAB_ENTRIES", 20_000)
    builder, parameters = BUILDERS[name]
    parameters = {**parameters, "total_capacity": 12} if name != "tandem" else {**parameters, "total_capacity": 20}
    model = builder(**parameters)
    ctmc.save(tmp_path / "model.h5", model)
    found = ctmc.open(tmp_path / "model.h5")
    exact = ctmc.solve(ctmc.Stationary(model), "gth" if model.size < 3000 else "sparse_lu")
    for solver in SOLVERS:
        if name == "some servers never join" and solver.startswith(("aggregation", "anderson")):
            continue  # needs the recurrent class by itself
        solution = ctmc.solve(ctmc.Stationary(found, tolerance=1e-11), solver)
        assert solution.converged
        assert np.abs(solution.value - exact.value).sum() < 1e-8
        assert solution.expected("jobs") == pytest.approx(exact.expected("jobs"), rel=1e-8)


@pytest.mark.parametrize("solver", ["uniformization", "chebyshev", "krylov_exponential"])
def test_transient_answers_from_the_file_are_those_from_memory(solver, tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "SLAB_ENTRIES", 20_000)
    model = tandem_network(service_rates=[3, 2, 1], arrival_rate=0.8, total_capacity=25)
    ctmc.save(tmp_path / "model.h5", model)
    found = ctmc.open(tmp_path / "model.h5")
    for problem in (
        lambda chain: ctmc.Transient(chain, [0, 0, 0], [0.5, 3.0]),
        lambda chain: ctmc.AccumulatedReward(chain, "jobs", times=[0.5, 3.0]),
    ):
        one, other = (ctmc.solve(problem(chain), solver) for chain in (found, model))
        np.testing.assert_allclose(one.value, other.value, rtol=1e-12, atol=1e-15)


def test_other_questions_work_on_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "SLAB_ENTRIES", 20_000)
    model = supermarket(**{**CAPPED, "total_capacity": 9})
    ctmc.save(tmp_path / "model.h5", model)
    found = ctmc.open(tmp_path / "model.h5")
    for problem in (
        lambda chain: ctmc.DiscountedReward(chain, "jobs", discount=0.1),
        lambda chain: ctmc.FirstPassage(chain, "jobs >= 8"),
    ):
        one, other = (ctmc.solve(problem(chain)) for chain in (found, model))
        np.testing.assert_allclose(one.value, other.value, rtol=1e-9)


def test_a_large_lattice_is_streamed_window_by_window(tmp_path):
    """Above four million states the rows of the weights are longer than a chunk of the file."""
    parameters = {"service_rates": [1, 1.5, 2, 3, 4.5, 6], "arrival_rate": 8, "choices": 2, "capacity": 12}
    model, found = supermarket(**parameters), streamed_model(supermarket, parameters)
    assert model.size > streamed.LEAST_STREAMED
    np.testing.assert_array_equal(found.exit_rates, model.exit_rates)
    assert found.entries == model.entries
    digest = ctmc.save(tmp_path / "whole.h5", model)
    assert ctmc.save(tmp_path / "slabs.h5", found) == digest
    opened = ctmc.open(tmp_path / "slabs.h5")
    assert opened.representation == "stored rows"
    assert opened.entries == model.entries
    assert ctmc.open(tmp_path / "slabs.h5", keep=10**6).transitions.nbytes == 10**6
    x = np.random.default_rng(20261202).random(model.size)
    for backward in (False, True):
        one, other = (chain.recurrence(x, backward=backward) for chain in (opened, model))
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
    rated = opened.with_rates(arrival_rate=5.0)
    other = supermarket(**{**parameters, "arrival_rate": 5.0})
    np.testing.assert_array_equal(rated.exit_rates, other.exit_rates)
    np.testing.assert_allclose(rated.forward(x), other.forward(x), rtol=0, atol=1e-12)


def random_chain(rng, n, entries, values=None):
    """Return an irreducible chain of states in no order, with as many rates as transitions or a few of them."""
    begin, end = rng.integers(0, n, (2, entries))
    rates = rng.random(entries) + 0.1 if values is None else rng.choice(values, entries)
    ring = np.arange(n)
    return Generator.from_transitions(
        np.concatenate([begin, ring]), np.concatenate([end, (ring + 1) % n]), np.concatenate([rates, np.ones(n)]),
        Lattice((n - 1,), variables=(Variable("state"),)),
    )  # fmt: skip


@pytest.mark.parametrize("form", ["plain", "coded", "small", "two bytes"])
def test_chains_without_any_order_are_stored_and_opened(form, tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "SLAB_ENTRIES", 20_000)
    rng = np.random.default_rng(20261203)
    n, entries = (50, 200) if form == "small" else (9000, 70_000)
    values = {"coded": np.array([0.5, 1.0, 2.0]), "two bytes": np.linspace(1, 2, 700)}.get(form)
    model = random_chain(rng, n, entries, values)
    model = model if values is None else model.coded()
    assert isinstance(model.transitions, FloatTransitions if values is None else CodedTransitions)
    model = model.with_reward("weight", rng.random(n)).replace(
        labels={"even": np.arange(n) % 2 == 0}, initial={(0,): 0.5, (2,): 0.5}
    )
    ctmc.save(tmp_path / "model.h5", model)
    assert "rates/indices" in read_container(tmp_path / "model.h5", ["generator"]).arrays
    found = ctmc.open(tmp_path / "model.h5")
    check_like(found, model, rng)
    np.testing.assert_array_equal(found.labels["even"], model.labels["even"])
    np.testing.assert_array_equal(found.rewards["weight"].rate, model.rewards["weight"].rate)
    same_rows(ctmc.load(tmp_path / "model.h5"), model)


def test_a_listed_space_and_impulses_come_along(tmp_path):
    chain = random_chain(np.random.default_rng(20261204), 60, 300)
    table = np.random.default_rng(20261205).permutation(60)[:, None]
    space = Listed(table, (Variable("x"),))
    model = Generator(space, chain.transitions).replace(
        rewards={"jumps": Reward(None, "", impulse=np.arange(chain.entries, dtype=float))}
    )
    ctmc.save(tmp_path / "model.h5", model)
    found = ctmc.open(tmp_path / "model.h5")
    np.testing.assert_array_equal(found.space.table, table)
    one, other = (
        ctmc.solve(ctmc.AccumulatedReward(each, "jumps", initial=[0], times=[1.0])).value for each in (found, model)
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
def test_recurrent_classes_of_streamed_chains(reverse):
    """Two recurrent classes, transient states that lead to one of them and to both; these come last, or first."""
    pairs = [(0, 1), (1, 0), (2, 3), (3, 4), (4, 2), (5, 0), (5, 6), (6, 5), (6, 2), (7, 5), (8, 3)]
    begin, end = 8 - np.array(pairs).T if reverse else np.array(pairs).T
    space = Lattice((8,), variables=(Variable("state"),))
    model = Generator.from_transitions(begin, end, np.ones(len(pairs)), space)
    rows = model.transitions
    with streaming():
        found = Generator(space, made(9, lambda a, b: FloatTransitions(*_cut(rows, a, b))))
    expected = [[4, 5, 6], [7, 8]] if reverse else [[0, 1], [2, 3, 4]]
    assert [found.classes.members(k).tolist() for k in found.classes.recurrent] == expected
    start = [1 if reverse else 7]
    one, other = (ctmc.solve(ctmc.Stationary(each, initial=start), "gth").value for each in (found, model))
    np.testing.assert_allclose(one, other, atol=1e-14)


def _cut(rows, a, b):
    entries = slice(rows.indptr[a], rows.indptr[b])
    return rows.indptr[a : b + 1] - rows.indptr[a], rows.sources[entries], rows.rates[entries]


WRONG = {
    "a source beyond the space": (lambda a, s, r: s.__setitem__(5, 10_000), "the source of the transition"),
    "a source twice": (lambda a, s, r: s.__setitem__(slice(4, 6), 7), "not larger than the one before"),
    "a transition to itself": (lambda a, s, r: s.__setitem__(slice(0, 2), [0, a]), "transition to itself"),
    "a rate that is none": (lambda a, s, r: r.__setitem__(3, -1.0), "is -1.0"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_a_maker_of_slabs_does_wrong_is_said_before_anything_is_stored(fault, tmp_path):
    change, sentence = WRONG[fault]

    def rows(a, b):
        indptr = 2 * np.arange(b - a + 1)
        found = np.sort((np.arange(a, b)[:, None] + [1, 2]) % 9000, axis=1).ravel().astype(np.int32)
        rates = np.ones(2 * (b - a))
        if a > 4000:
            change(a, found, rates)
        return FloatTransitions(indptr, found, rates)

    with streaming():
        model = Generator(Lattice((8999,)), made(9000, rows, slab_states=4096))
    with pytest.raises(ctmc.ModelError, match=sentence):
        ctmc.save(tmp_path / "model.h5", model)
    assert not list(tmp_path.iterdir())


def test_sources_are_decoded_from_differences():
    """Every case of the rule: first row of a block, rows longer and shorter than the one before, rare differences."""
    rng = np.random.default_rng(20261206)
    n = 3 * sources.BLOCK + 17
    counts = rng.integers(0, 6, n)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
    entries = int(indptr[-1])
    near = np.repeat(np.arange(n), counts) + rng.integers(-40, 41, entries)
    true = np.where(rng.random(entries) < 0.02, rng.integers(0, n, entries), np.clip(near, 0, n - 1)).astype(np.uint32)
    found = sources.Differences()
    for begin in range(0, n, sources.BLOCK):  # slabs of one block
        rows = slice(begin, min(begin + sources.BLOCK, n))
        local = indptr[rows.start : rows.stop + 1] - indptr[rows.start]
        found.add(begin, local, true[int(indptr[rows.start]) : int(indptr[rows.stop])])
    whole = sources.Differences()
    whole.add(0, indptr, true)
    values = whole.frequent()
    np.testing.assert_array_equal(found.frequent(), values)
    codes, others, numbers = sources.Encoder(values).encode(0, indptr, true)
    assert len(others) == whole.uncovered(values) == numbers.sum() > 0
    # the rule in plain Python
    guess = np.empty(entries, dtype=np.int64)
    for j in range(n):
        a, b = int(indptr[j]), int(indptr[j + 1])
        for k in range(a, b):
            before = int(indptr[j - 1]) + k - a if j % sources.BLOCK else a
            guess[k] = int(true[before]) + 1 if before < a else j
    difference = true.astype(np.int64) - guess
    expected = np.append(values, [0] * (255 - len(values)))[np.minimum(codes, 254)]
    np.testing.assert_array_equal(np.where(codes == 255, 0, expected), np.where(codes == 255, 0, difference))
    np.testing.assert_array_equal(others, difference[codes == 255])
    starts = np.concatenate([[0], np.cumsum(numbers)])
    for parallel in (False, True):
        decoded = np.empty(entries, dtype=np.uint32)
        sources.decode(0, indptr, codes, values, others, starts, decoded, states=n, parallel=parallel)
        np.testing.assert_array_equal(decoded, true)


def test_a_file_that_changes_after_it_was_opened_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "SLAB_ENTRIES", 20_000)
    path = tmp_path / "model.h5"
    ctmc.save(path, tandem_network(service_rates=[3, 2, 1], arrival_rate=0.8, total_capacity=50))
    found = ctmc.open(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(bytes(size // 3))
    with pytest.raises(ctmc.StorageError, match="damaged"):
        found.forward(np.ones(found.size))


def test_a_slab_that_is_another_one_than_before_is_noticed(tmp_path):
    """Sound by itself, but not what was verified: its checksum differs."""
    ctmc.save(tmp_path / "model.h5", tandem_network(service_rates=[3, 2, 1], arrival_rate=0.8, total_capacity=50))
    file = stored.open_container(tmp_path / "model.h5", ["generator"])
    reader = stored._Reader(file, 0)
    key = ("rates/steps.codes", 0)
    reader.chunk(key)
    reader._checksums[key] = b"else"
    with pytest.raises(
        ctmc.StorageError, match=r"slab 0 of the array 'rates/steps.codes' was changed since it was verified"
    ):
        reader.chunk(key)


def test_no_more_than_asked_for_is_kept(tmp_path):
    ctmc.save(tmp_path / "model.h5", tandem_network(service_rates=[3, 2, 1], arrival_rate=0.8, total_capacity=50))
    reader = stored._Reader(stored.open_container(tmp_path / "model.h5", ["generator"]), 100_000)
    sizes = [reader.chunk((name, 0)).nbytes for name in reader._chunks]
    kept = sum(array.nbytes for array in reader._kept.values())
    assert 0 < kept <= 100_000 < sum(sizes)


@pytest.mark.parametrize("name", ["capped", "lumped"])
def test_streamed_rows_at_other_rates(name, tmp_path):
    builder, parameters = BUILDERS[name]
    ctmc.save(tmp_path / "model.h5", builder(**parameters))
    found = ctmc.open(tmp_path / "model.h5").with_rates(arrival_rate=3.5)
    assert found.representation == "stored rows"
    check_like(found, builder(**{**parameters, "arrival_rate": 3.5}), np.random.default_rng(20261207))


def test_what_a_limit_leaves_room_for_is_loaded_and_the_rest_streamed(tmp_path):
    path = tmp_path / "model.h5"
    ctmc.save(path, supermarket(**CAPPED))
    whole = ctmc.read(path)
    assert whole.representation == "value-coded CSR"
    assert not any("Streamed" in note for note in whole.notes)
    with ctmc.limited_memory("1MiB"):
        found = ctmc.read(path)
    assert found.representation == "stored rows"
    assert "Streamed from its file: in memory it would need" in found.notes[-1]
    assert "the memory limit is 1 MiB" in found.notes[-1]
    with ctmc.limited_memory("2KiB"), pytest.raises(ctmc.ModelError, match="bicgstab needs"):
        ctmc.solve(ctmc.Stationary(streamed_model(tandem_network, BUILDERS["tandem"][1])), "bicgstab")


def run(*arguments, capsys):
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr()


ARGUMENTS = (
    "--service-rates",
    "1,1.5,2,3",
    "--arrival-rate",
    5,
    "--choices",
    2,
    "--capacity",
    15,
    "--total-capacity",
    25,
)


def test_the_command_line_forecasts_builds_and_streams(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, shown = run("build", "supermarket", *ARGUMENTS, "--dry-run", "--json", capsys=capsys)
    assert code == 0
    assert not list(tmp_path.iterdir())
    found = json.loads(shown.out)
    model = supermarket(**CAPPED)
    assert (found["states"], found["entries"]) == (model.size, model.entries)
    assert found["raw_bytes"] == 12 * model.entries + 16 * model.size
    assert found["solvers"]["bicgstab"][1] < found["solvers"]["bicgstab"][0]
    assert run("build", "supermarket", *ARGUMENTS, "--dry-run", capsys=capsys)[1].out.count("MiB") > 5
    assert run("build", "supermarket", *ARGUMENTS, capsys=capsys)[0] == 2
    assert run("build", "supermarket", *ARGUMENTS, "-o", "model.h5", "--memory-limit", "4MiB", capsys=capsys)[0] == 0
    assert 0.4 < found["file_bytes"] / os.path.getsize("model.h5") < 2.5
    same_rows(ctmc.load("model.h5"), model)
    code, shown = run("solve", "model.h5", "--memory-limit", "1300KiB", "--json", capsys=capsys)
    assert code == 0
    assert "Streamed from its file" in shown.err
    exact = ctmc.solve(ctmc.Stationary(model), "bicgstab").expected("jobs")
    assert json.loads(shown.out)["measures"]["jobs"] == pytest.approx(exact, rel=1e-9)


def test_the_memory_of_a_streaming_build_does_not_grow_with_the_transitions(tmp_path):
    """Peak memory above that of a small build, in processes of their own: less than a third of the rows in memory."""
    script = """
import resource, sys
from ctmc.cli import main
small = ["build", "supermarket", "--service-rates", "1,1.5,2,3,4,5", "--arrival-rate", "9", "--choices", "2", "--capacity", "20", "-q"]
main([*small, "--total-capacity", "8", "-o", "small.h5"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
main([*small, "--total-capacity", "26", "-o", "large.h5"])
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    sizes = read_container(tmp_path / "large.h5", ["generator"], only=())
    assert sizes.kind == "generator"
    rows = stored.loaded_bytes(stored.open_container(tmp_path / "large.h5", ["generator"]).stored)
    states = 8 * ctmc.load(tmp_path / "large.h5").size
    assert int(done.stdout.split()[-1]) - states < rows


@pytest.mark.parametrize("form", ["box", "capped", "lumped", "tandem", "capped in memory"])
def test_forecasts_come_true(form, tmp_path):
    box = {"service_rates": [1, 1.5, 2, 3], "arrival_rate": 5, "choices": 2, "capacity": 17}
    builder, parameters = {"box": (supermarket, box)}.get(form) or BUILDERS[form.removesuffix(" in memory")]
    model = builder(**parameters) if form.endswith("memory") else streamed_model(builder, parameters)
    found = ctmc.forecast(model)
    ctmc.save(tmp_path / "model.h5", model)
    loaded = ctmc.load(tmp_path / "model.h5")
    assert (found.states, found.entries) == (loaded.size, loaded.entries)
    assert found.model_bytes == pytest.approx(loaded.nbytes, rel=0.1)
    assert 0.4 < found.file_bytes / os.path.getsize(tmp_path / "model.h5") < 1.6
    assert found.solvers["power_iteration"][1] == 16 * loaded.size + 24 * loaded.size


def test_slabs_are_decoded_by_the_thread_that_has_read_them(case, tmp_path, monkeypatch):
    """A thread of the pool starts no threads."""
    builder, parameters = case
    asked, decode = [], stored.decode
    monkeypatch.setattr(stored, "decode", lambda *given, **how: asked.append(how["parallel"]) or decode(*given, **how))
    ctmc.save(tmp_path / "model.h5", builder(**parameters))
    ctmc.open(tmp_path / "model.h5")
    assert set(asked) == {False}
