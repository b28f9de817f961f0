"""Models and solutions through files: round trips, hostile content under a right hash, and 2,000 damaged files."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from storage_examples import EXAMPLE, described

import ctmc
from builders.fork_join import fork_join
from builders.reachable import reachable
from builders.supermarket import supermarket
from ctmc import storage
from ctmc.model.state_space import Lattice, Listed
from ctmc.storage import coding
from ctmc.storage.container import read_container, write_container


def halves(x, mu, g):
    return x / mu


def steps(state):
    yield ((state[0] + 1) % 5,), 1.5


def models():
    yield "supermarket", supermarket(**EXAMPLE, total_capacity=7, ties=("shortest", "fastest"))
    yield "function", supermarket(**EXAMPLE, selection=halves)
    yield "fork_join", fork_join([5, 2, 1], 1, 3, [1, 2, 8])
    yield "truncation", fork_join([5, 2, 1], 1, 3, [1, 2, 8]).truncate(6)
    yield "reachable", reachable(steps, (0,))
    yield "birth_death", ctmc.build("birth_death", births=[0.1] * 3, deaths=[1e-9, 3.0, 1e9])
    yield "tandem", ctmc.build("tandem_network", service_rates=[2.0, 1.5], arrival_rate=1.0, total_capacity=4)
    yield "own", ctmc.Generator.from_matrix(
        [[0, 1 / 3, 0], [0.1, 0, 0.7], [np.pi, 0, 0]],
        Listed(np.array([[7, -3], [0, 2**40], [5, 5]])),
        initial={(7, -3): 0.25, (5, 5): 0.75},
        labels={"up ✓": np.array([True, False, True])},
        rewards={"cost": ctmc.Reward(np.array([1.0, 2.0, 1e-300]), "euros per hour"),
                 "square": ctmc.Reward(lambda states: states[:, 0].astype(float) ** 2)},
        notes=("a note",),
    )  # fmt: skip
    yield (
        "ordered classes",
        ctmc.Generator.from_transitions(
            np.arange(36), np.roll(np.arange(36), 1), np.ones(36), Lattice((3,) * 3 + (4,), total=5, classes=(3, 1))
        ),
    )
    yield "one state", ctmc.Generator.from_matrix([[0.0]])


@pytest.mark.parametrize(("name", "model"), list(models()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_model_comes_back_as_it_was(tmp_path, name, model):
    path = tmp_path / "model.h5"
    digest = ctmc.save(path, model)
    again = ctmc.load(path)
    assert again.content_hash == digest == model.content_hash
    assert again.recipe == model.recipe
    assert again.notes == model.notes
    if isinstance(model, ctmc.Generator):
        for array in ("indptr", "sources", "rates", "exit_rates"):
            np.testing.assert_array_equal(getattr(again, array), getattr(model, array))
            assert not getattr(again, array).flags.writeable
        states = np.arange(model.size)
        np.testing.assert_array_equal(again.space.states(states), model.space.states(states))
        assert again.space.variables == model.space.variables
        assert again.labels.keys() == model.labels.keys()
        for label in model.labels:
            np.testing.assert_array_equal(again.labels[label], model.labels[label])
    for question in (model, again):
        assert ctmc.solve(ctmc.Stationary(question)).converged
    known = ctmc.solve(ctmc.Stationary(model)).measures()
    found = ctmc.solve(ctmc.Stationary(again)).measures()
    for measure in set(found) & set(known):
        np.testing.assert_allclose(found[measure], known[measure], rtol=1e-12)
    assert found.keys() == known.keys() or name == "truncation"  # which no builder makes
    assert ctmc.save(tmp_path / "again.h5", again) == digest


def test_a_function_named_in_a_file_is_not_imported(tmp_path):
    """Its rewards are stored by value, so that they are there all the same."""
    folder = tmp_path / "code"
    folder.mkdir()
    marker = tmp_path / "marker"
    (folder / "marker_module.py").write_text(
        f"open({str(marker)!r}, 'w').close()\ndef select(x, mu, g):\n    return x / mu\n"
    )
    path = tmp_path / "model.h5"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}

    def run(text):
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True, env=environment, timeout=120
        )
        return json.loads(done.stdout)

    jobs = "print(json.dumps({k: float(v) for k, v in ctmc.solve(ctmc.Stationary(model)).measures().items() if k in ('imbalance', 'throughput')}))"
    built = run(
        "import ctmc, json, marker_module\nfrom builders.supermarket import supermarket\n"
        f"model = supermarket([2, 1], 1, 2, 3, selection=marker_module.select)\nctmc.save({str(path)!r}, model)\n{jobs}"
    )
    marker.unlink()
    assert run(f"import ctmc, json\nmodel = ctmc.load({str(path)!r})\n{jobs}") == pytest.approx(built, rel=1e-14)
    assert not marker.exists()
    assert run(
        f"import ctmc, json\nwith ctmc.allowed_code():\n    model = ctmc.load({str(path)!r})\n{jobs}"
    ) == pytest.approx(built, rel=1e-14)
    assert marker.exists()


def check_refused(path, sentence):
    """Neither loading nor opening takes the file."""
    with pytest.raises(ctmc.StorageError, match=sentence):
        ctmc.load(path)
    with pytest.raises(ctmc.StorageError):
        ctmc.open(path)


def rewritten(tmp_path, change):
    """Write a file whose hash is right and whose content is not: what a forger can do."""
    model = ctmc.Generator.from_matrix([[0, 1.0, 0.5], [2.0, 0, 1.0], [0, 4.0, 0]])
    manifest, arrays = described(tmp_path, model)
    change(manifest, arrays)
    path = tmp_path / "forged.h5"
    write_container(path, "generator", manifest, arrays)
    return path


def put(name, value, place=0):
    def change(manifest, arrays):
        arrays[name][place] = value

    return change


def typed(name, dtype):
    def change(manifest, arrays):
        arrays[name] = arrays[name].astype(dtype)

    return change


def said(**fields):
    def change(manifest, arrays):
        manifest.update(fields)

    return change


def without(name):
    def change(manifest, arrays):
        del arrays[name]

    return change


# rates by destination: into 0 from 1; into 1 from 0 and 2; into 2 from 0 and 1
FORGED = [
    (put("rates/indices", 3), "the source of the transition into state 0"),
    (put("rates/indices", -1), "the source of the transition into state 0"),
    (put("rates/indices", 0), "state 0 .* has a transition to itself"),
    (put("rates/indices", 2, 1), "not larger than the one before"),
    (put("rates/indices", 0, 2), "not larger than the one before"),
    (put("rates/indptr", 4, 1), "decreases|not larger|itself"),
    (put("rates/indptr", 1, 0), "indptr runs from 1"),
    (put("rates/indptr", 4, 3), "indptr runs from 0 to 4"),
    (put("rates/data", -1.0), "rate from state 1 .* to state 0 .* is -1.0"),
    (put("rates/data", 0.0), "is 0.0"),
    (put("rates/data", float("nan")), "is nan"),
    (put("rates/data", float("inf")), "is inf"),
    (put("rates/data", 1.7e308, [1, 3]), "sum to infinity"),
    (put("exit_rates", 1.0), "exit rate of state 0"),
    (put("exit_rates", float("nan"), 2), "exit rate of state 2"),
    (typed("rates/indptr", np.int32), "indptr has shape .* int32"),
    (typed("rates/indices", np.float64), "int32 or int64"),
    (typed("rates/data", np.int64), "float64"),
    (typed("exit_rates", np.int64), "exit.rates"),
    (without("rates/data"), "no array 'rates/data'"),
    (without("exit_rates"), "no array 'exit_rates'"),
    (lambda manifest, arrays: arrays.update(extra=np.ones(1)), "'extra'"),
    (lambda manifest, arrays: arrays.update({"rates/extra": np.ones(1)}), "'rates/extra'"),
    (lambda manifest, arrays: arrays.update({"rates/codes": np.arange(5).astype("u1"), "rates/values": arrays["rates/data"]}), "'rates/data'"),
    (said(space={"kind": "lattice", "limits": [7], "total": None, "variables": [["state", None]]}), "indptr has shape"),
    (said(space={"kind": "lattice", "limits": [-1], "total": None, "variables": [["state", None]]}), "limits"),
    (said(space={"kind": "lattice", "limits": [2], "total": None, "variables": [["state", 0]]}), "length 0"),
    (said(space={"kind": "lattice", "limits": [2], "total": "x", "variables": [["state", None]]}), "'total'"),
    (said(space={"kind": "lattice", "limits": [1, 1], "total": None, "variables": [["x", 2]], "classes": [3]}), "sum to the 2"),
    (said(space={"kind": "lattice", "limits": [2], "total": None, "variables": [["x", 1]], "classes": 1}), "'classes'"),
    (said(space={"kind": "cube"}), "'variables'"),
    (said(space={"kind": "cube", "variables": [["state", None]]}), "cube"),
    (said(space=3), "'space'"),
    (said(labels=["up"]), "labels/0"),
    (said(rewards=[{"name": "cost"}]), "description"),
    (said(initial=True), "initial/positions"),
    (said(initial="yes"), "'initial'"),
    (said(notes=[3]), "notes"),
    (said(builder={"name": "birth_death"}), "'version'"),
    (said(builder={"name": "birth_death", "version": 1, "parameters": {}, "functions": {}, "recipe_hash": "0"}), "recipe hash"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), FORGED, ids=range(len(FORGED)))
def test_what_is_not_a_generator_is_refused(tmp_path, change, sentence):
    path = rewritten(tmp_path, change)
    with pytest.raises(ctmc.StorageError, match=sentence) as caught:
        ctmc.load(path)
    assert "\n" not in str(caught.value)
    assert "forged.h5" in str(caught.value)
    with pytest.raises(ctmc.StorageError, match=r"forged\.h5"):
        ctmc.open(path)


def test_the_forgers_start_from_a_file_that_loads(tmp_path):
    assert ctmc.load(rewritten(tmp_path, lambda manifest, arrays: None)).size == 3
    assert len(FORGED) >= 35


@pytest.mark.parametrize("name", ["os:system", "no_such_builder", "../../etc/passwd", "<script>"])
def test_a_builder_that_is_not_here_leaves_a_note(tmp_path, name):
    from ctmc.model.recipe import Recipe

    model = ctmc.Generator.from_matrix([[0, 1.0], [1.0, 0]]).replace(recipe=Recipe(name, 1, {"x": 1}))
    ctmc.save(tmp_path / "model.h5", model)
    again = ctmc.load(tmp_path / "model.h5")
    assert "is not installed" in again.notes[0]
    assert ctmc.solve(ctmc.Stationary(again)).measures() == {"state": 0.5}


def test_another_version_of_the_builder_leaves_a_note(tmp_path):
    from dataclasses import replace

    model = supermarket(**EXAMPLE)
    ctmc.save(tmp_path / "model.h5", model.replace(recipe=replace(model.recipe, version=999), rewards={}))
    assert "version 999" in ctmc.load(tmp_path / "model.h5").notes[0]


def test_overwriting_needs_to_be_asked_for(tmp_path):
    path = tmp_path / "model.h5"
    first = ctmc.save(path, supermarket(**EXAMPLE))
    assert ctmc.save(path, supermarket(**EXAMPLE)) == first
    other = supermarket(**{**EXAMPLE, "arrival_rate": 2})
    with pytest.raises(ctmc.StorageError, match="overwrite"):
        ctmc.save(path, other)
    assert ctmc.load(path).content_hash == first
    assert ctmc.save(path, other, overwrite=True) != first
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(ctmc.StorageError):
        ctmc.save(tmp_path / "letter.txt", other, overwrite=True)
    assert (tmp_path / "letter.txt").read_text() == "dear reader"
    with pytest.raises(ctmc.ModelError, match="cannot be saved"):
        ctmc.save(tmp_path / "x.h5", "model")


def test_rewards_of_a_qbd_that_no_builder_gives_are_named(tmp_path):
    queue = fork_join([5, 2, 1], 1, 3)
    queue = queue.replace(rewards={**queue.rewards, "own": ctmc.Reward(lambda states: states[:, 0])})
    ctmc.save(tmp_path / "queue.h5", queue)
    again = ctmc.load(tmp_path / "queue.h5")
    assert "own" in again.notes[-1]
    assert "own" not in again.rewards
    assert "waiting_tasks" in again.rewards


def test_solutions_stand_beside_their_model(tmp_path):
    path = tmp_path / "model.h5"
    model = supermarket(**EXAMPLE)
    ctmc.save(path, model)
    before = path.read_bytes()
    stationary = ctmc.solve(ctmc.Stationary(model), "gauss_seidel")
    transient = ctmc.solve(ctmc.Transient(model, times=[0.5, 2.0]), "uniformization")
    places = [storage.save_solution(path, solution) for solution in (stationary, transient)]
    assert storage.solution_paths(path) == sorted(places)
    assert path.read_bytes() == before
    again = storage.load_solution(places[0])
    np.testing.assert_array_equal(again.value, stationary.value)
    np.testing.assert_array_equal(again.history, stationary.history)
    assert again.status is ctmc.Status.CONVERGED
    assert again.defect == stationary.defect
    assert again.model_hash == model.content_hash
    assert again.iterations == stationary.iterations
    over_time = storage.load_solution(places[1])
    np.testing.assert_array_equal(over_time.value, transient.value)
    np.testing.assert_array_equal(over_time.times, [0.5, 2.0])
    assert over_time.error_bound == transient.error_bound
    with pytest.raises(ctmc.StorageError, match="generator"):
        ctmc.load(places[0])
    other = tmp_path / "other.h5"
    ctmc.save(other, supermarket(**{**EXAMPLE, "arrival_rate": 1}))
    with pytest.raises(ctmc.StorageError, match="another model"):
        storage.save_solution(other, stationary)
    for name in ("../x", "", ".hidden", "a/b", "x" * 201):
        with pytest.raises(ctmc.StorageError, match="not allowed"):
            storage.save_solution(path, stationary, name)


def test_a_solution_of_a_qbd_and_a_failed_one(tmp_path):
    queue = fork_join([5, 2, 1], 1, 3)
    ctmc.save(tmp_path / "queue.h5", queue)
    solution = ctmc.solve(ctmc.Stationary(queue))
    again = storage.load_solution(storage.save_solution(tmp_path / "queue.h5", solution))
    np.testing.assert_array_equal(again.value.r, solution.value.r)
    np.testing.assert_array_equal(again.value.g, solution.value.g)
    np.testing.assert_array_equal(again.value.u, solution.value.u)
    assert again.value.mean_level == solution.value.mean_level
    model = supermarket(**EXAMPLE)
    ctmc.save(tmp_path / "model.h5", model)
    starved = ctmc.solve(ctmc.Stationary(model), "power_iteration(max_iterations=3)", check=False)
    again = storage.load_solution(storage.save_solution(tmp_path / "model.h5", starved, "starved"))
    assert again.status is ctmc.Status.ITERATION_LIMIT


def test_arrays_with_few_values_are_coded():
    rng = np.random.default_rng(31)
    for array in (rng.choice(rng.random(300), 9000), rng.choice([-0.0, 0.0, np.inf, 5e-324], 5000), np.full(4096, 7)):
        codes, values = coding.coded(array)
        assert codes.dtype == (np.uint8 if len(values) <= 256 else np.uint16)
        again = coding.decoded(codes, values)
        assert again.dtype == array.dtype
        assert again.tobytes() == array.tobytes()  # bit by bit: -0.0 is not 0.0
    assert coding.coded(np.ones(4095)) is None
    assert coding.coded(rng.random(70_000)) is None
    many, values = coding.coded(np.tile(np.arange(65_536), 2))
    assert len(values) == 65_536
    assert (coding.decoded(many, values) == np.tile(np.arange(65_536), 2)).all()


FORMS = {
    "lattice": ({}, {"rates/weights", "rates/unit", "rates/departures"}, {"rates/steps.codes", "rates/data.codes"}),
    "float64 CSR": (
        {"total_capacity": 25},
        {"rates/steps.codes", "rates/data.codes"},
        {"rates/weights", "rates/codes"},
    ),
    "value-coded CSR": (
        {"total_capacity": 25},
        {"rates/steps.codes", "rates/codes", "rates/values"},
        {"rates/data.codes"},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_large_model_comes_back_in_the_form_in_which_it_was_stored(tmp_path, form):
    change, there, missing = FORMS[form]
    model = supermarket(**{**EXAMPLE, "capacity": 15, **change})
    model = model.written_out() if form == "float64 CSR" else model
    assert model.representation == form
    ctmc.save(tmp_path / "model.h5", model)
    names = set(read_container(tmp_path / "model.h5", ["generator"]).arrays)
    assert there <= names
    assert not missing & names
    again = ctmc.load(tmp_path / "model.h5")
    assert again.representation == form
    for array in ("indptr", "sources", "rates", "exit_rates"):
        np.testing.assert_array_equal(getattr(again, array), getattr(model, array))
        assert getattr(again, array).dtype == getattr(model, array).dtype


def first_weight(name, value):
    """Change the weight of an arrival at the first server in the empty state, or the whole array's form."""

    def change(manifest, arrays):
        arrays["rates/weights"][name] = value

    return change


LATTICE = [
    (first_weight((0, 0), 1), "leads into a state in which coordinate 0 is 0"),
    (first_weight((0, -1), 200), "exit rate of state"),
    (typed("rates/weights", np.int64), "weights have shape"),
    (put("rates/unit", -1.0), "unit is"),
    (put("rates/departures", np.nan), "departures of coordinate"),
    (without("rates/unit"), "no array 'rates/unit'"),
    (lambda manifest, arrays: manifest["space"].update(total=5), "its states are no box"),
    (lambda manifest, arrays: manifest["space"].update(limits=[4, 4, 3]), "weights have shape"),
]


@pytest.mark.parametrize(("change", "sentence"), LATTICE, ids=range(len(LATTICE)))
def test_wrong_lattices_are_refused(tmp_path, change, sentence):
    manifest, arrays = described(tmp_path, supermarket(**EXAMPLE))
    change(manifest, arrays)
    write_container(tmp_path / "forged.h5", "generator", manifest, arrays)
    check_refused(tmp_path / "forged.h5", sentence)


CODED = [
    (put("rates/data.codes", 255), "a code is 255, but there are"),
    (put("rates/steps.codes", 255), "do not fit its other steps"),
    (put("rates/steps.values", 2**40), "leads further than there are states"),
    (put("rates/steps.values", -(2**40)), "leads further than there are states"),
    (put("rates/steps.values", -4), "source|itself|larger"),
    (put("rates/data.values", -1.0), "is -1.0"),
    (put("rates/counts.codes", 255), "a code is 255"),
    (put("rates/counts.values", -1), "whole numbers >= 0"),
    (put("rates/counts.values", 9), "do not fit its steps"),
    (typed("rates/data.codes", np.int64), "codes are not vectors"),
    (without("rates/steps.values"), "no array 'rates/steps.values'"),
    (without("rates/data.values"), "no array 'rates/data.values'"),
]


@pytest.mark.parametrize(("change", "sentence"), CODED, ids=range(len(CODED)))
def test_wrong_codes_are_refused(tmp_path, change, sentence):
    manifest, arrays = described(tmp_path, supermarket(**{**EXAMPLE, "capacity": 16}).written_out())
    change(manifest, arrays)
    write_container(tmp_path / "forged.h5", "generator", manifest, arrays)
    check_refused(tmp_path / "forged.h5", sentence)


def test_two_thousand_damaged_model_files(tmp_path):
    """Bit flips, overwritten bytes, zeroed blocks and truncations: the same model, or one sentence."""
    whole = tmp_path / "whole.h5"
    model = supermarket([2, 1], 1.5, 2, 6)
    digest = ctmc.save(whole, model)
    original = whole.read_bytes()
    rng = np.random.default_rng(20261129)
    damaged = tmp_path / "damaged.h5"
    unchanged = 0
    for number in range(2000):
        data = bytearray(original)
        kind, place = number % 4, int(rng.integers(len(original)))
        if kind == 0:
            data[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[place : place + 8] = rng.bytes(min(8, len(data) - place))
        elif kind == 2:
            data[place : place + 512] = bytes(min(512, len(data) - place))
        else:
            del data[place:]
        damaged.write_bytes(data)
        try:
            again = ctmc.load(damaged)
        except ctmc.StorageError:
            continue
        unchanged += 1
        assert again.content_hash == digest
        np.testing.assert_array_equal(again.rates, model.rates)
        np.testing.assert_array_equal(again.sources, model.sources)
        np.testing.assert_array_equal(again.indptr, model.indptr)
    assert unchanged < 200
    assert read_container(whole, ["generator"]).content_hash == digest


@pytest.mark.parametrize("change", [typed("repeating/local/data", np.int64), "unordered"])
def test_blocks_that_are_not_canonical_are_refused(tmp_path, change):
    path = tmp_path / "queue.h5"
    ctmc.save(path, fork_join([5, 2, 1], 1, 3, [1, 2, 8]))
    container = read_container(path, ["qbd"])
    arrays = {name: array.copy() for name, array in container.arrays.items()}
    if change == "unordered":
        row = int(np.argmax(np.diff(arrays["repeating/local/indptr"]) > 1))
        begin, end = arrays["repeating/local/indptr"][row : row + 2]
        assert end - begin > 1
        for part in ("data", "indices"):
            arrays[f"repeating/local/{part}"][begin:end] = arrays[f"repeating/local/{part}"][begin:end][::-1].copy()
    else:
        change(container.manifest, arrays)
    write_container(path, "qbd", container.manifest, arrays, overwrite=True)
    check_refused(path, "its block repeating/local is not of float64, or its columns do not ascend")
