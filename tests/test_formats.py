"""Which format a file is of, the formats that SciPy and networkx know, the child process, and ``ctmc convert``."""

import io
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import networkx
import numpy as np
import pytest
from chain_gallery import check_mutations, random_chain, same_chain
from scipy.sparse import coo_array, csr_array, load_npz, save_npz

import ctmc
from ctmc.cli import main
from ctmc.interchange import graphml, isolated, scipy_npz
from ctmc.interchange.formats import FORMATS, format_of
from ctmc.interchange.parts import space_of, variables_of

QUEUE = ctmc.Generator.from_matrix([[-1, 1, 0], [2, -3, 1], [0, 2, -2]])


class Marker:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", [name for name, entry in FORMATS.items() if entry.extensions])
def test_every_format_by_ending_and_by_first_bytes(tmp_path, name):
    path = tmp_path / f"queue{FORMATS[name].extensions[0].upper()}"
    ctmc.write(path, QUEUE)
    assert format_of(path).name == name
    bare = path.rename(tmp_path / "queue")
    assert format_of(bare).name == name
    found = ctmc.read(bare)
    np.testing.assert_allclose(found.to_scipy().toarray(), QUEUE.to_scipy().toarray(), rtol=3e-16)
    with pytest.raises(ctmc.StorageError, match=r"allowed are the endings \.h5/\.hdf5 \(ctmc\), .*\.npz"):
        ctmc.write(tmp_path / "queue.xyz", QUEUE)
    ctmc.write(tmp_path / "other.xyz", QUEUE, format=name)
    before = (tmp_path / "other.xyz").read_bytes()
    with pytest.raises(ctmc.StorageError, match=r"exists already|another model"):
        ctmc.write(tmp_path / "other.xyz", QUEUE.with_reward("one", np.ones(3)), format=name)
    assert (tmp_path / "other.xyz").read_bytes() == before


def test_unknown_formats(tmp_path):
    (tmp_path / "noise").write_bytes(b"no format at all")
    with pytest.raises(ctmc.StorageError, match="noise is of no known format"):
        ctmc.read(tmp_path / "noise")
    with pytest.raises(ctmc.UnknownNameError, match="did you mean 'umb'"):
        ctmc.read(tmp_path / "noise", "umbi")


@pytest.mark.parametrize("ending", [entry.extensions[0] for entry in FORMATS.values() if entry.extensions])
def test_what_is_no_file(tmp_path, ending):
    os.mkfifo(tmp_path / f"pipe{ending}")
    (tmp_path / f"folder{ending}").mkdir()
    (tmp_path / f"empty{ending}").touch()
    (tmp_path / f"itself{ending}").symlink_to(tmp_path / f"itself{ending}")
    (tmp_path / f"zero{ending}").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "empty", "itself", "zero", "missing"):
        with pytest.raises(ctmc.StorageError, match=name):
            ctmc.read(tmp_path / (name + ending))


def test_what_our_own_files_do_not_store(tmp_path):
    chain = QUEUE.replace(measures=lambda solution: {})
    assert ctmc.write(tmp_path / "one.h5", chain) == ["Measures are functions and not stored."]
    assert ctmc.write(tmp_path / "two.h5", QUEUE) == []
    built = ctmc.build("birth_death", births=[1.0], deaths=[2.0])
    assert ctmc.write(tmp_path / "three.h5", built) == []
    assert ctmc.read(tmp_path / "two.h5").size == 3


def test_tables_of_states_that_are_no_box():
    """As many states as a box has, but in another order; and a name that stands for two variables."""
    space = space_of(np.array([[0, 1], [0, 0], [1, 0], [1, 1]]), ["x[0]", "x[1]"])
    assert space.table.tolist() == [[0, 1], [0, 0], [1, 0], [1, 1]]
    with pytest.raises(ctmc.ModelError):
        space_of(np.array([[0, 0], [1, 1], [1, 1], [0, 1]]), ["a", "b"])
    names = ["x[0]", "y", "x[0]"]
    assert [variable.name for variable in variables_of(names)] == names


def test_qbds_are_refused_where_they_do_not_fit(tmp_path):
    queue = ctmc.QBD.from_blocks([[1.0]], [[-3.0]], [[2.0]])
    for name in ("umb", "scipy-npz", "graphml"):
        with pytest.raises(ctmc.ModelError, match="infinitely many states"):
            ctmc.write(tmp_path / "queue", queue, format=name)
    assert list(tmp_path.iterdir()) == []


# ---- SciPy -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
def test_npz_of_scipy(tmp_path, form):
    chain = random_chain(3)
    save_npz(tmp_path / "m.npz", chain.to_scipy().asformat(form))
    np.testing.assert_array_equal(scipy_npz.read(tmp_path / "m.npz").rates, chain.rates)
    scipy_npz.write(tmp_path / "ours.npz", chain)
    np.testing.assert_array_equal(load_npz(tmp_path / "ours.npz").toarray(), chain.to_scipy().toarray())


def test_npz_names_all_it_leaves_out(tmp_path):
    lost = scipy_npz.write(tmp_path / "m.npz", random_chain(3))
    for word in ("states", "initial distribution", "full, Größe > 3, 満員", "busy, κόστος, jumps, only jumps"):
        assert any(word in sentence for sentence in lost), word


@pytest.mark.parametrize("member", ["data.npy", "indices.npy", "more.npy"])
def test_npz_unpickles_nothing(tmp_path, member):
    arrays = {"data.npy": np.ones(1), "indices.npy": np.zeros(1, int), "indptr.npy": np.array([0, 1]),
              "shape.npy": np.array([1, 1]), "format.npy": np.array(b"csr")}  # fmt: skip
    arrays[member] = np.array([Marker(tmp_path / "marker")], dtype=object)
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, array, allow_pickle=True)
            archive.writestr(name, data.getvalue())
    with pytest.raises(ctmc.StorageError, match="Python objects"):
        scipy_npz.read(tmp_path / "m.npz")
    assert not (tmp_path / "marker").exists()
    if member == "data.npy":  # the payload is one: NumPy runs it when it is allowed to
        np.load(tmp_path / "m.npz", allow_pickle=True)["data"]
        assert (tmp_path / "marker").exists()


def test_npz_sizes_are_looked_at_first(tmp_path):
    save_npz(
        tmp_path / "m.npz", csr_array((np.zeros(0), np.zeros(0, int), np.zeros(4_000_001, int)), shape=(4_000_000,) * 2)
    )
    assert (tmp_path / "m.npz").stat().st_size < 100_000
    with ctmc.limited_memory("50MB"), pytest.raises(ctmc.ModelError, match="more than the memory limit"):
        scipy_npz.read(tmp_path / "m.npz")
    save_npz(tmp_path / "wide.npz", coo_array((np.ones(1), ([0], [1])), shape=(2**62, 2**62)))
    with pytest.raises(ctmc.ModelError, match="more than the memory limit"):
        scipy_npz.read(tmp_path / "wide.npz")


def test_npz_places_outside_the_matrix(tmp_path):
    matrix = QUEUE.to_scipy()
    np.savez(
        tmp_path / "m.npz",
        data=matrix.data,
        indices=matrix.indices + 1,
        indptr=matrix.indptr,
        shape=(3, 3),
        format=b"csr",
    )
    with pytest.raises(ctmc.StorageError, match="cannot be read"):
        scipy_npz.read(tmp_path / "m.npz")


def npy(array, version=(1, 0), **head):
    """An array as NumPy stores it, with a head that may say something else."""
    if not head:
        data = io.BytesIO()
        np.lib.format.write_array(data, np.asarray(array), version)
        return data.getvalue()
    text = repr({"descr": "<f8", "fortran_order": False, "shape": (1,)} | head).encode() + b"\n"
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text + bytes(8)


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"data": npy(0, shape=[1])}, ctmc.StorageError, "an array whose shape is no tuple of whole numbers"),
        ({"data": npy(0, shape=(-1,))}, ctmc.StorageError, "an array whose shape is no tuple of whole numbers"),
        ({"data": npy(0, (3, 0), shape=(1,))}, ctmc.StorageError, "an array of the version .3, 0."),
        ({"data": npy(0, shape=(1,), more="x" * 60_000)}, ctmc.StorageError, "claims|save_npz"),
        ({"data": npy(0, (2, 0), shape=(1,), more="x" * 70_000)}, ctmc.StorageError, r"a header of 70,\d+ bytes"),
        ({"data": npy(0, shape=(2**50,))}, ctmc.StorageError, r"claims 9,007,199,254,740,992 bytes for data\.npy"),
        ({"data": b"no array"}, ctmc.StorageError, "cannot be read as a file of save_npz"),
        ({"shape": npy([3, 2])}, ctmc.ModelError, r"has shape \(3, 2\); allowed is a square"),
        ({"shape": npy([0, 0])}, ctmc.ModelError, r"has shape \(0, 0\); allowed is a square"),
        ({"shape": npy([3.0, 3.0])}, ctmc.StorageError, "is not a sparse matrix that"),
        ({"shape": npy([3, 3, 3])}, ctmc.StorageError, "is not a sparse matrix that"),
        ({"format": None}, ctmc.StorageError, "is not a sparse matrix that"),
        ({"row": npy([0, 3])}, ctmc.StorageError, "axis 0 index 3 exceeds"),
        ({"col": npy([-1, 0])}, ctmc.StorageError, "negative axis 1 index: -1"),
        ({"data": npy([-1.0, 1.0])}, ctmc.ModelError, "rate from state 0 to state 1"),
        ({f"more{k}": npy([0]) for k in range(40)}, ctmc.StorageError, "has 45 members, or one twice"),
    ],
)
def test_npz_that_is_none(tmp_path, change, error, sentence):
    arrays = {
        "row": npy([0, 1]),
        "col": npy([1, 0]),
        "format": npy(b"coo"),
        "shape": npy([3, 3]),
        "data": npy([1.0, 2.0]),
    }
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        for name, data in {**arrays, **change}.items():
            if data is not None:
                archive.writestr(f"{name}.npy", data)
    with pytest.raises(error, match=sentence) as caught:
        scipy_npz.read(tmp_path / "m.npz")
    assert "\n" not in str(caught.value)


def test_npz_of_version_two_and_without_entries(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        for name, data in {"row": [], "col": [], "data": np.zeros(0), "format": b"coo", "shape": [2, 2]}.items():
            array = np.asarray(data, dtype=np.int64) if name in ("row", "col") else np.asarray(data)
            archive.writestr(f"{name}.npy", npy(array, (2, 0)))
    assert scipy_npz.read(tmp_path / "m.npz").exit_rates.tolist() == [0, 0]


def test_mutated_npz(tmp_path):
    check_mutations(scipy_npz.read, scipy_npz.write, tmp_path / "m.npz", 1000)


# ---- networkx ----------------------------------------------------------------------------------------------------


def test_graphml_round_trip(tmp_path):
    chain = random_chain(3)
    lost = graphml.write(tmp_path / "m.graphml", chain)
    assert lost == ["Descriptions of rewards are not carried: busy."]
    found = graphml.read(tmp_path / "m.graphml")
    same_chain(found, chain)


def test_graphml_of_networkx(tmp_path):
    graph = networkx.MultiDiGraph()
    graph.add_edge("down", "up", weight=2)
    graph.add_edge("up", "down", weight=0.5)
    graph.add_edge("up", "down", weight=0.25)
    networkx.write_graphml(graph, tmp_path / "m.graphml")
    assert graphml.read(tmp_path / "m.graphml").to_scipy().toarray().tolist() == [[-2, 2], [0.75, -0.75]]


def test_to_networkx_and_back():
    chain = random_chain(3)
    found = ctmc.from_networkx(ctmc.to_networkx(chain))
    np.testing.assert_array_equal(found.to_scipy().toarray(), chain.to_scipy().toarray())
    np.testing.assert_array_equal(found.space.table, chain.space.table)


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (networkx.Graph([(0, 1)]), "undirected"),
        (networkx.DiGraph(), "0 nodes"),
        (networkx.DiGraph([(0, 1)]), "has the rate 'None'"),
        (networkx.empty_graph(graphml.LIMIT + 1, create_using=networkx.DiGraph), "50,001 nodes"),
        (
            networkx.DiGraph([((0, 1.5), (1, 0), {"rate": 1})]),
            r"node 0 has the state \[0, 1\.5\]; allowed are whole numbers",
        ),
        (networkx.DiGraph([((2**63,), (1,), {"rate": 1})]), "node 0 has the state"),
        (networkx.DiGraph([(0, 1, {"rate": True})]), "has the rate 'True'"),
        (networkx.DiGraph([(0, 1, {"rate": 1, "impulse.a": "x"})]), "impulse.a is 'x'; allowed are numbers"),
        (
            networkx.MultiDiGraph([(0, 1, {"rate": 1, "impulse.a": 2}), (0, 1, {"rate": 1})]),
            "impulses on parallel edges",
        ),
        (
            networkx.DiGraph([(0, 1, {"rate": 1, "impulse.a": 2}), (1, 1, {"rate": 1})]),
            "impulses on parallel edges, loops",
        ),
    ],
)
def test_graphs_that_are_refused(graph, sentence):
    with pytest.raises(ctmc.ModelError, match=sentence):
        ctmc.from_networkx(graph)


def test_graphml_that_is_none(tmp_path):
    for text, sentence in (
        ("<graphml><graph>", "is no GraphML file"),
        ("", "is no GraphML file"),
        ("<a/>", "is no GraphML file"),
    ):
        (tmp_path / "m.graphml").write_text(text)
        with pytest.raises(ctmc.StorageError, match=sentence):
            graphml.read(tmp_path / "m.graphml")


def test_graphml_without_entities(tmp_path):
    lines = "".join(f'<!ENTITY a{k} "{f"&a{k - 1};" * 10}">' for k in range(1, 9))
    text = f'<?xml version="1.0"?><!DOCTYPE graphml [<!ENTITY a0 "0123456789">{lines}]><graphml><graph edgedefault="directed"><node id="&a8;"/></graph></graphml>'
    (tmp_path / "m.graphml").write_text(text)
    with pytest.raises(ctmc.StorageError, match="document type"):
        graphml.read(tmp_path / "m.graphml")


def test_graphml_limits(tmp_path):
    big = ctmc.Generator.from_transitions([0], [1], [1.0], ctmc.model.state_space.Lattice((graphml.LIMIT,)))
    with pytest.raises(ctmc.ModelError, match="50,001 states is too large"):
        graphml.write(tmp_path / "m.graphml", big)
    nodes = "".join(f'<node id="{k}"/>' for k in range(graphml.LIMIT + 1))
    (tmp_path / "m.graphml").write_text(f'<graphml><graph edgedefault="directed">{nodes}</graph></graphml>')
    with pytest.raises(ctmc.ModelError, match="more than 50,000 nodes"):
        graphml.read(tmp_path / "m.graphml")


@pytest.mark.filterwarnings("ignore")
def test_mutated_graphml(tmp_path):
    check_mutations(graphml.read, graphml.write, tmp_path / "m.graphml", 1000)


# ---- the child process -------------------------------------------------------------------------------------------

PARSERS = {
    "ends": "import os\ndef read(path): os._exit(3)",
    "is_killed": "import os\ndef read(path): os.kill(os.getpid(), 9)",
    "crashes": "import os\ndef read(path): os.kill(os.getpid(), 11)",
    "sleeps": "import time\ndef read(path): time.sleep(60)",
    "takes_memory": "def read(path): return bytearray(1 << 33)",
    "fails": "def read(path): raise KeyError('a\\nb')",
    "has_no_chain": "from ctmc.errors import ModelError\ndef read(path): raise ModelError('no chain.')",
    "returns_nothing": "def read(path): return None",
}


@pytest.mark.parametrize(
    ("parser", "error", "sentence"),
    [
        ("ends", ctmc.StorageError, "died .exit code 3."),
        ("is_killed", ctmc.StorageError, "was killed"),
        ("crashes", ctmc.StorageError, "died .signal 11."),
        ("sleeps", ctmc.StorageError, "more than 2 seconds"),
        ("takes_memory", ctmc.StorageError, "more than the memory limit of 95.37 MiB"),
        ("fails", ctmc.StorageError, "it is damaged .KeyError: a"),
        ("has_no_chain", ctmc.ModelError, r"^no chain\.$"),
        ("returns_nothing", ctmc.ModelError, "a NoneType cannot be saved"),
    ],
)
def test_a_child_that_fails_is_a_sentence(tmp_path, monkeypatch, parser, error, sentence):
    (tmp_path / f"parser_{parser}.py").write_text(PARSERS[parser])
    monkeypatch.syspath_prepend(tmp_path)
    begin = time.monotonic()
    seconds = 2 if parser == "sleeps" else 60
    with ctmc.limited_memory(100_000_000), pytest.raises(error, match=sentence) as caught:
        isolated.read(f"parser_{parser}", tmp_path / "file", time_limit=seconds)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - begin < 50


def test_the_child_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    ctmc.write(tmp_path / "m.npz", QUEUE)
    for name in ("numpy", "scipy", "json", "ctmc"):
        (tmp_path / f"{name}.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'marker')!r})")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ctmc.read("m.npz").size == 3
    assert not (tmp_path / "marker").exists()


# ---- the command line --------------------------------------------------------------------------------------------


def test_convert_and_all_that_read(tmp_path, capsys):
    ctmc.save(tmp_path / "m.h5", random_chain(3))
    assert main(["convert", str(tmp_path / "m.h5"), str(tmp_path / "m.npz")]) == 0
    out, err = capsys.readouterr()
    assert "Converted ctmc to scipy-npz" in out
    assert len([line for line in err.splitlines() if line.startswith("Warning: ")]) == 4
    assert main(["convert", str(tmp_path / "m.h5"), str(tmp_path / "m.npz")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "m.h5"), str(tmp_path / "x"), "--to", "umb", "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["format"], document["states"], len(document["not_carried"])) == ("umb", 40, 1)
    assert main(["info", str(tmp_path / "x"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "umb"


def test_solve_takes_any_format_and_stores_only_when_asked(tmp_path, capsys):
    ctmc.write(tmp_path / "m.umb", QUEUE.replace(initial=[0]))
    assert main(["solve", str(tmp_path / "m.umb"), "--reward", "state", "--json"]) == 0
    # birth-death chain with ratio 1/2: 4/7, 2/7, 1/7
    assert json.loads(capsys.readouterr().out)["saved"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["m.umb"]
    assert main(["solve", str(tmp_path / "m.umb"), "--save", "--json"]) == 0
    saved = json.loads(capsys.readouterr().out)["saved"]
    stored = ctmc.storage.load_solution(saved)
    np.testing.assert_allclose(stored.value, np.array([4, 2, 1]) / 7, rtol=1e-14)
    assert main(["simulate", str(tmp_path / "m.umb"), "--horizon", "10", "--replications", "8", "--seed", "5"]) == 0


def test_formats_are_listed(capsys):
    assert main(["list", "formats", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["formats"]] == list(FORMATS)
    assert main(["list", "umb"]) == 0
    assert "tar archive" in capsys.readouterr().out


def test_modules_of_formats_are_imported_when_used():
    code = "import sys, ctmc.interchange.formats; print([name for name in sys.modules if name.startswith(('ctmc.interchange.', 'scipy.io'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ctmc.interchange.formats']"


STUDY = """
[models.given]
file = "{name}"
[[solve]]
solvers = ["gth", "power_iteration"]
measures = ["busy"]
"""


@pytest.mark.parametrize("name", ["queue.h5", "queue.umb", pytest.param("queue.mat", marks=pytest.mark.slow)])
def test_a_study_takes_a_model_from_any_file_and_knows_it_again(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    chain = ctmc.Generator.from_matrix([[-1.0, 1.0], [2.0, -2.0]]).with_reward("busy", [0.0, 1.0])
    ctmc.write(f"models/{name}", chain)
    Path("models/study.toml").write_text(STUDY.format(name=name))
    for done in ("solved: new", "reused"):
        assert main(["run", "models/study.toml", "-o", "result.h5", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert [row["done"] for row in rows] == [done] * 2
        assert [row["measures"]["busy"] for row in rows] == pytest.approx([1 / 3] * 2)
    assert main(["run", "models/study.toml", "-o", "result.h5", "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (STUDY.format(name="gone.umb"), "No such file"),
        (STUDY.format(name="study.toml"), "of no known format"),
        ('[models.a]\nfile = "x.umb"\nchoices = 2\n[[solve]]\n', "line 3: choices stands beside file"),
        ("[models.a]\n[[solve]]\n", "no key builder, and no key file"),
        ("[models.a]\nfile = 3\n[[solve]]\n", "file is 3"),
    ],
)
def test_a_study_says_what_is_wrong_with_a_file(tmp_path, monkeypatch, capsys, text, sentence):
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(text)
    assert main(["run", "study.toml", "-o", "result.h5"]) in (1, 2)
    shown = capsys.readouterr()
    assert sentence in " ".join((shown.out + shown.err).split())


@pytest.mark.parametrize("name", ["queue.prism", "queue.sm", "QUEUE.PM", "queue.jani", "chain.nm"])
@pytest.mark.parametrize("text", [b"ctmc\nmodule queue\nendmodule\n", b"2 1\n0 1 1.0\n"])
def test_a_model_in_a_language_is_told_how_to_become_a_list(tmp_path, name, text):
    """Whatever its first bytes look like."""
    (tmp_path / name).write_bytes(text)
    with pytest.raises(
        ctmc.StorageError, match=r"is a model in the language of PRISM or JANI; allowed are lists of states"
    ):
        format_of(tmp_path / name)


@pytest.mark.parametrize("graph", [None, 5, "up", [[-1.0, 1.0]], {"up": {"down": 1.0}}], ids=repr)
def test_what_is_no_graph_is_refused(graph):
    with pytest.raises(ctmc.ModelError, match=r"graph is a .*; allowed is a directed graph of networkx\."):
        graphml.from_networkx(graph)
