"""What `ctmc verify` finds: files of every kind that are right, and what is wrong with each kind of forgery."""

import json
from pathlib import Path

import numpy as np
import pytest
from forgeries import KINDS, gallery

import ctmc
from ctmc.cli import main
from ctmc.model.memory import limited_memory
from ctmc.model.state_space import Lattice
from ctmc.storage import rerate
from ctmc.storage.container import read_container, write_container
from ctmc.verify import Verifier

PROVED = {
    "stationary": {"certificate": "right"},
    "levels": {"certificate": "right"},
    "transient": {"distributions": "right", "certificate": "not checked"},
    "rewards": {"certificate": "not checked"},
    "accumulated": {"certificate": "not checked"},
    "discounted": {"certificate": "right"},
    "passage": {"certificate": "right"},
    "avoiding": {"certificate": "right"},
    "one start": {"certificate": "not checked"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return gallery(tmp_path_factory.mktemp("files"))


def forged(path, change):
    """Write a file beside another one, with other content and hashes that are right."""
    container = read_container(path, KINDS)
    manifest, arrays = dict(container.manifest), {name: array.copy() for name, array in container.arrays.items()}
    change(manifest, arrays)
    place = path.with_name("forged.h5")
    write_container(place, container.kind, manifest, arrays, overwrite=True)
    return place


def test_what_is_right_is_trusted(files):
    look = Verifier()
    for name, path in files.items():
        report = look(path)
        assert report.problem == ""
        assert report.kind == read_container(path, KINDS, only=()).kind
        found = {row.part: row.result for row in report.rows}
        if report.kind == "solution":
            for part, result in PROVED[name].items():
                assert found[part] == result, name
        else:
            assert found["model"] == "right", name


def scaled(name, factor, place=...):
    def change(manifest, arrays):
        arrays[name][place] *= factor

    return change


def shifted(name, amount, place=...):
    def change(manifest, arrays):
        arrays[name][place] += amount

    return change


def exchanged(name, axis=0):
    """Two numbers of a vector change places, so that sums stay."""

    def change(manifest, arrays):
        flat = arrays[name].reshape(-1)
        flat[[0, -1]] = flat[[-1, 0]]

    return change


def longer(name):
    def change(manifest, arrays):
        arrays[name] = np.concatenate([arrays[name], arrays[name][..., :1]], axis=-1)

    return change


def says(**values):
    def change(manifest, arrays):
        manifest.update(values)

    return change


LIES = [
    ("stationary", exchanged("value"), "claims CONVERGED"),
    ("stationary", scaled("value", 1 + 1e-9), "claims CONVERGED"),
    ("stationary", scaled("value", np.nan, 3), "claims CONVERGED"),
    ("stationary", longer("value"), "its value has the shape"),
    ("stationary", says(tolerance=1e-30), "claims CONVERGED"),
    ("stationary", says(model_hash="0" * 64), "another model"),
    ("stationary", says(problem="transient"), "shape|times"),
    ("stationary", says(problem="weather"), "its problem is"),
    (
        "stationary",
        says(intervals=[{"name": "jobs", "low": 7.5, "high": 8.0}]),
        r"jobs is .*, outside \[7.5, 8\]",
    ),
    ("levels", scaled("r", 1.01), "claims CONVERGED"),
    ("levels", shifted("r", -1.0), "claims CONVERGED"),
    ("levels", longer("boundary/1"), "its vectors have the shapes"),
    ("levels", exchanged("boundary/2"), "claims CONVERGED"),
    ("transient", scaled("value", 1.001), "total probability"),
    ("transient", lambda manifest, arrays: arrays.update(value=arrays["value"][:, :-1].copy()), "its value has the shape"),
    ("transient", lambda manifest, arrays: arrays["value"][0].__setitem__(slice(0, 2), [2.0, -1.0]), "entry 1 is -1"),
    ("transient", shifted("initial/positions", 10**6), "its initial distribution is none"),
    ("rewards", longer("value"), "its value has the shape"),
    ("accumulated", longer("value"), "shape"),
    ("discounted", exchanged("value"), "moment 1 of jobs"),
    ("discounted", scaled("value", 1 + 1e-7, 2), "moment 3 of jobs"),
    ("discounted", says(discount=0.31), "moment 1 of jobs"),
    ("discounted", says(reward=["joy"], columns=["joy"]), "question does not fit the model"),
    ("discounted", says(discount=-1.0), "question does not fit the model"),
    ("passage", scaled("value", 1 + 1e-7, 0), "claims CONVERGED"),
    ("passage", scaled("value", 1 + 1e-7, 1), "claims CONVERGED"),
    ("passage", scaled("variances", 1 + 1e-7), "claims CONVERGED"),
    ("passage", scaled("relative_error_bound", 1e-9), "not those that its times prove"),
    ("passage", says(target="jobs >= 8"), "its times are not 0 in the target"),
    ("passage", says(target="jobs >= 900"), "question does not fit the model"),
    ("avoiding", shifted("reach_probability", 1e-6, 5), "claims CONVERGED|not those"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "sentence"), LIES, ids=[f"{row[0]} {k}" for k, row in enumerate(LIES)])
def test_a_false_answer_is_named(files, name, change, sentence):
    report = ctmc.verify(forged(files[name], change))
    assert not report.trusted
    with pytest.raises(ctmc.StorageError, match=sentence):
        raise ctmc.StorageError(report.problem)
    assert "forged.h5" in report.problem
    assert report.problem.isprintable()
    assert len(LIES) >= 30


def test_an_answer_that_claims_nothing_is_only_measured(files):
    false = forged(
        files["stationary"], lambda manifest, arrays: manifest.update(status="STAGNATED") or arrays["value"].fill(1.0)
    )
    report = ctmc.verify(false)
    assert report.trusted
    assert report.rows[-1].result == "not checked"
    short = forged(
        files["stationary"],
        lambda manifest, arrays: manifest.update(status="STAGNATED") or arrays.update(value=np.ones(3)),
    )
    assert "its value has the shape (3,)" in ctmc.verify(short).problem


def test_an_answer_without_its_model_stands_on_its_hash(files, tmp_path):
    alone = tmp_path / "alone.h5"
    alone.write_bytes(files["stationary"].read_bytes())
    assert [row.result for row in ctmc.verify(alone).rows] == ["right", "right", "not checked"]
    alone.write_bytes(alone.read_bytes()[:-1])
    assert not ctmc.verify(alone).trusted


def test_a_variant_stands_and_falls_with_its_parent(tmp_path):
    queue = ctmc.build("birth_death", births=[1.0, 2.0], deaths=[2.0, 3.0])
    ctmc.save(tmp_path / "queue.h5", queue)
    rerate(tmp_path / "queue.h5", tmp_path / "fast.h5", {"births": [4.0, 5.0]})
    report = ctmc.verify(tmp_path / "fast.h5")
    assert [row.part for row in report.rows] == ["manifest", "parent", "model"]
    assert report.trusted
    ctmc.save(tmp_path / "queue.h5", ctmc.build("birth_death", births=[1.0], deaths=[2.0]), overwrite=True)
    assert "holds another model now" in ctmc.verify(tmp_path / "fast.h5").problem
    (tmp_path / "queue.h5").unlink()
    assert "is missing" in ctmc.verify(tmp_path / "fast.h5").problem


@pytest.mark.parametrize(("kind", "names"), [("checkpoint", ("question", "runs")), ("search", ("search", "best"))])
def test_other_kinds(tmp_path, kind, names):
    path, content = tmp_path / "file.h5", {"x": np.arange(9.0)}
    write_container(path, kind, {key: [] for key in names}, content)
    assert ctmc.verify(path).trusted
    write_container(path, kind, {names[0]: []}, content, overwrite=True)
    assert f"its manifest has no {names[1]!r}" in ctmc.verify(path).problem
    write_container(path, "poem", {}, content, overwrite=True)
    assert "it holds a 'poem'" in ctmc.verify(path).problem


def test_histories_of_a_study(tmp_path):
    path = tmp_path / "study.h5"
    manifest = {"study": "", "rows": [{}], "histories": [{}]}
    good = {"histories/0/iteration": np.arange(3), "histories/0/defect": np.ones(3)}
    write_container(path, "study", manifest, good)
    assert ctmc.verify(path).trusted
    for arrays in ({"x": np.ones(1)}, {**good, "histories/0/defect": np.ones(2)}):
        write_container(path, "study", manifest, arrays, overwrite=True)
        assert "history 0 has no columns, or columns of different lengths" in ctmc.verify(path).problem


def test_a_model_is_verified_without_room_for_it(tmp_path):
    """The rows are some megabytes more than what is allowed at a time."""
    ring = np.arange(150_000)
    model = ctmc.Generator.from_transitions(
        np.tile(ring, 9),
        np.concatenate([(ring + k) % 150_000 for k in range(1, 10)]),
        np.random.default_rng(5).random(9 * 150_000),
        Lattice((149_999,)),
    )
    path = tmp_path / "model.h5"
    ctmc.save(path, model)
    told = []
    with limited_memory("12MB"):
        with pytest.raises(ctmc.StorageError, match="memory limit"):
            ctmc.load(path)
        assert ctmc.verify(path, progress=lambda done, total: told.append((done, total))).trusted
    assert told[-1] == (1_350_000, 1_350_000)
    assert len(told) >= 2
    container = read_container(path, ("generator",))
    rates = container.arrays["rates/data"].copy()
    rates[-1] *= 1 + 1e-6
    write_container(path, "generator", container.manifest, {**container.arrays, "rates/data": rates}, overwrite=True)
    with limited_memory("12MB"):
        assert "exit rate of state" in ctmc.verify(path).problem


def test_the_command(files, capsys, monkeypatch):
    lie = forged(files["stationary"], scaled("value", 1.1))
    assert main(["verify", str(files["lattice"]), str(files["variant"])]) == 0
    assert "2 files verified, 0 wrong." in capsys.readouterr().out
    assert main(["verify", "--json", str(files["lattice"]), str(lie)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["wrong"] == 1
    assert [file["trusted"] for file in document["files"]] == [True, False]
    assert "claims CONVERGED" in document["files"][1]["problem"]
    assert main(["verify", str(lie)]) == 1
    assert "claims CONVERGED" in capsys.readouterr().out
    assert main(["verify", "--csv", str(lie)]) == 1
    assert capsys.readouterr().out.startswith("file,part,result,detail\n")
    broken = Path(files["lattice"]).with_name("broken.h5")
    broken.write_bytes(b"\x89HDF\r\n\x1a\n")
    assert main(["verify", str(broken)]) == 1
    assert "Cannot read" in capsys.readouterr().out
    for bad in ([], ["--colour"], [str(broken.with_name("missing.h5"))]):
        assert main(["verify", *bad]) == 2
