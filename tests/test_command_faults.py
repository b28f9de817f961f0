"""What must not go wrong on the command line, whatever it is given: one sentence, exit code 2, nothing written, within limits.

Every command runs in a fork of its own, so that seconds, memory and files are counted as a user meets them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from forked_commands import Commands, files_below, forked_commands, one_sentence
from hostile_files import HOSTILE, PATHS
from test_faults import stored_model

import ctmc
from ctmc.comparison.files import save_comparison
from ctmc.comparison.runs import ComparedModel, Comparison, Run

SECONDS, BYTES = 2.0, 300_000_000
STUDY = """
output = "out.h5"
[models.queue]
builder = "birth_death"
births = [1, 1]
deaths = [2, 2]
[[solve]]
solvers = ["gth"]
"""
QUEUE = {"births": [1.0, 1.0], "deaths": [2.0, 2.0]}


@pytest.fixture(scope="module")
def command() -> Iterator[Commands]:
    with forked_commands() as commands:
        yield commands


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one; the path of a socket in it is short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def one_of_each(command: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each kind that commands take, one of no use, and a folder."""
    folder = tmp_path_factory.mktemp("kinds")
    ctmc.save(folder / "model.h5", ctmc.build("birth_death", **QUEUE))
    assert command("solve", "model.h5", folder=folder).code == 0
    os.rename(folder / "model.solutions/stationary-gth.h5", folder / "solution.h5")
    os.rmdir(folder / "model.solutions")
    (folder / "study.toml").write_text(STUDY)
    assert command("run", "study.toml", folder=folder).code == 0
    os.rename(folder / "out.h5", folder / "results.h5")
    shutil.rmtree(folder / "out.store")
    found = Comparison("t", "stationary", {"m": ComparedModel("m")}, (Run("m", "gth", 1e-8),), ({},))
    save_comparison(folder / "comparison.h5", found)
    (folder / "text.txt").write_text("hello\n")
    (folder / "folder").mkdir()
    return folder


@pytest.fixture
def kinds(folder: Path, one_of_each: Path) -> Path:
    """The current folder, with a file of each kind."""
    shutil.copytree(one_of_each, folder, dirs_exist_ok=True)
    return folder


def refused(command: Commands, folder: Path, *arguments: object, seconds: float = SECONDS, **options: str) -> str:
    """Run what must be refused, within the limits, and return the sentence."""
    before = files_below(folder)
    ended = command(*arguments, folder=folder, **options)
    sentence = one_sentence(ended.err)
    assert ended.code == 2, (arguments, ended)
    assert files_below(folder) == before, arguments
    if ended.seconds >= seconds:  # the first who needs a loop compiles it
        ended = command(*arguments, folder=folder, **options)
    assert ended.seconds < seconds, (arguments, ended.seconds)
    assert ended.peak < BYTES, (arguments, ended.peak)
    return sentence


# ---- files that are read ----------------------------------------------------------------------------------------------

_OTHERS = {"empty array missing", "kind changed", "not HDF5", "user block"}  # rows that change nothing here, or no HDF5
FILES: dict[str, Callable[[Path], object]] = {name: row[0] for name, row in HOSTILE.items() if name not in _OTHERS}
FILES |= {name: lambda path, make=make: (path.unlink(), make(path)) for name, (make, _) in PATHS.items()}  # type: ignore[misc]
READERS = (["info"], ["solve", "--no-save"])


@pytest.mark.parametrize("name", FILES)
def test_hostile_files_of_ours(command: Commands, folder: Path, name: str) -> None:
    path = Path("file.h5")
    stored_model(path)
    FILES[name](path)
    for reader in READERS:
        assert "file.h5" in refused(command, folder, *reader, path)
    before = files_below(folder)
    ended = command("verify", path, folder=folder)
    assert (ended.code, "Traceback" in ended.err) == ((2 if name == "missing" else 1), False), ended
    assert ended.seconds < SECONDS
    assert ended.peak < BYTES
    assert files_below(folder) == before


def archive(path: Path, *members: tuple[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as file:
        for name, data in members:
            head = tarfile.TarInfo(name)
            head.size = len(data)
            file.addfile(head, io.BytesIO(data))


def bomb(path: Path, megabytes: int) -> None:
    """A member of so many zero bytes behind a right head."""
    head = tarfile.TarInfo("index.json")
    head.size = megabytes << 20
    path.write_bytes(gzip.compress(head.tobuf()) + gzip.compress(bytes(1 << 20)) * megabytes)


def pickled(path: Path) -> None:
    data = io.BytesIO()
    np.lib.format.write_array(data, np.array([Path("x")], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.npy", data.getvalue())


OTHER_FORMATS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "umb: a member that inflates to 600 MB": ("m.umb", lambda path: bomb(path, 600), "629,145,600 bytes"),
    "umb: a name that leads out": ("m.umb", lambda path: archive(path, ("../../x", b"0")), "not allowed"),
    "drn: a bomb of one line": ("m.drn.gz", lambda path: path.write_bytes(gzip.compress(bytes(1 << 20)) * 1000), "line 1"),
    "tra: more rows than announced": ("m.tra", lambda path: path.write_text("2 2\n0 1 1.0\n1 0 1.0\n0 1 2.0\n"), "line 4"),
    "tra: fewer rows than announced": ("m.tra", lambda path: path.write_text("2 3\n0 1 1.0\n1 0 1.0\n"), "3"),
    "matrix market: a size beyond counting": ("m.mtx", lambda path: path.write_text(f"%%MatrixMarket matrix coordinate real general\n{2**62} {2**62} {2**62}\n1 2 1\n"), "line 2"),
    "matrix market: a pattern": ("m.mtx", lambda path: path.write_text("%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 2\n"), "pattern"),
    "matlab: damaged": ("m.mat", lambda path: path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + b"\x0e\0\0\0\xff\xff\xff\x7f" * 40), "m.mat"),
    "npz: Python objects": ("m.npz", pickled, "Python objects"),
    "graphml: entities": ("m.graphml", lambda path: path.write_text('<?xml version="1.0"?><!DOCTYPE g [<!ENTITY a "b">]><graphml>&a;</graphml>'), "m.graphml"),
    "petsc: a size beyond counting": ("m.petsc", lambda path: path.write_bytes(np.array([1211216, 2**31 - 1, 2**31 - 1, 2**31 - 1], ">i4").tobytes()), "m.petsc"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_hostile_files_of_other_programs(command: Commands, folder: Path, name: str) -> None:
    """Their parser is a process of its own, whose beginning counts as well."""
    file, make, words = OTHER_FORMATS[name]
    make(folder / file)
    assert words in refused(command, folder, "solve", file, "--no-save", seconds=2 * SECONDS)


# Each command with a file of each kind: what it takes, and where it writes.
TAKES: dict[tuple[str, ...], set[str]] = {
    ("info", "FILE"): {"model.h5", "solution.h5", "comparison.h5", "results.h5"},
    ("solve", "FILE", "--no-save"): {"model.h5"},
    ("advise", "FILE"): {"model.h5"},
    ("convert", "FILE", "new.tra"): {"model.h5"},
    ("rerate", "FILE", "-o", "new.h5", "--births", "3,3"): {"model.h5"},
    ("simulate", "FILE", "--seed", "5", "--horizon", "9"): {"model.h5"},
    ("solve", "model.h5", "--no-save", "--start", "FILE"): {"solution.h5"},
    ("solve", "model.h5", "--no-save", "--solver", "gauss_seidel", "--resume", "--checkpoint", "FILE"): set(),
    ("report", "FILE", "-o", "new.html", "--no-figures"): {"comparison.h5"},
    ("plot", "FILE", "-o", "new.svg"): {"comparison.h5", "solution.h5"},
    ("compare", "model.h5", "--solvers", "gth", "-o", "new.h5", "--against", "FILE"): {"comparison.h5"},
    ("run", "FILE", "-o", "new.h5"): {"study.toml"},
    ("store", "list", "FILE"): {"folder"},
    ("store", "verify", "FILE"): {"folder"},
    ("store", "prune", "FILE"): {"folder"},
    ("optimize", "FILE"): set(),
    ("policy", "FILE"): set(),
    ("mean-field", "FILE"): set(),
}
ALL = ("model.h5", "solution.h5", "comparison.h5", "results.h5", "study.toml", "text.txt", "folder")


def test_files_of_the_wrong_kind(command: Commands, kinds: Path) -> None:
    for pattern, taken in TAKES.items():
        for name in ALL:
            if name not in taken:
                refused(command, kinds, *(name if word == "FILE" else word for word in pattern))


def test_each_kind_is_told_by_info(command: Commands, kinds: Path) -> None:
    for name, words in {"model.h5": "Generator", "solution.h5": "solution", "comparison.h5": "comparison", "results.h5": "study"}.items():  # fmt: skip
        ended = command("info", name, folder=kinds)
        assert (ended.code, ended.err) == (0, ""), name
        assert words in ended.out


# ---- paths ------------------------------------------------------------------------------------------------------------

ODD_PATHS = {"long": "x" * 300, "deep": "x/" * 700 + "x", "nothing": "", "root": "/", "below a file": "model.h5/x", "with a slash": "text.txt/",
             "bell": "no\x07such", "endless": "/dev/zero", "full": "/dev/full", "memory of a process": "/proc/self/mem"}  # fmt: skip
READ_ONLY = {"bell", "root"}  # a file may have such a name, a store such a place
PLACES = [pattern for pattern in TAKES if pattern[0] not in ("optimize", "policy", "mean-field", "store") and "--resume" not in pattern]  # fmt: skip
OUTPUTS = [
    ("build", "birth_death", "--births", "1", "--deaths", "2", "-o", "FILE"),
    ("convert", "model.h5", "FILE"),
    ("rerate", "model.h5", "--births", "3,3", "-o", "FILE"),
    ("report", "comparison.h5", "--no-figures", "-o", "FILE"),
    ("report", "comparison.h5", "--csv", "FILE"),
    ("plot", "comparison.h5", "-o", "FILE"),
    ("run", "study.toml", "-o", "FILE"),
    ("solve", "model.h5", "--no-save", "--solver", "gauss_seidel", "--checkpoint", "FILE"),
]


@pytest.mark.parametrize("name", ODD_PATHS)
def test_odd_paths(command: Commands, kinds: Path, name: str) -> None:
    for pattern in [*PLACES, *(OUTPUTS if name not in READ_ONLY else ())]:
        refused(command, kinds, *(ODD_PATHS[name] if word == "FILE" else word for word in pattern))


def test_a_current_folder_that_is_gone(command: Commands, kinds: Path) -> None:
    gone = "import tempfile; place = tempfile.mkdtemp(); os.chdir(place); os.rmdir(place)"
    sentence = refused(command, kinds, "run", kinds / "study.toml", before=gone)
    assert sentence == "ctmc: The current folder is no longer there; go to another one."
    refused(command, kinds, "build", "birth_death", "--births", "1", "--deaths", "2", "-o", "x.h5", before=gone)
    assert command("solve", kinds / "model.h5", "--no-save", folder=kinds, before=gone).code == 0
    script = 'mkdir gone && cd gone && rmdir "$PWD" && exec "$0" -m ctmc --version'
    done = subprocess.run(["sh", "-c", script, sys.executable], cwd=kinds, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(Path(ctmc.__file__).parents[1])})  # fmt: skip
    assert (done.returncode, done.stdout[:5]) == (0, "ctmc "), done.stderr


# ---- numbers ----------------------------------------------------------------------------------------------------------

NUMBERS = ["", "nan", "-inf", "1e999", "1/0", "1" + "0" * 400, "-1" + "0" * 400, "\N{RIGHT-TO-LEFT OVERRIDE}1", "9" * 1200]  # fmt: skip


@pytest.mark.parametrize("text", NUMBERS, ids=range(len(NUMBERS)))
def test_numbers_that_are_none(command: Commands, kinds: Path, text: str) -> None:
    """A value is taken or refused in a sentence: no number is an error inside the program."""
    queues = ["build", "supermarket", "--service-rates=2,1", "--choices=1", "-o", "new.h5", "--overwrite", "--capacity=3", "--arrival-rate=1"]  # fmt: skip
    rows = [
        *([*queues, f"--{name}={text}"] for name in ("service-rates", "choices", "capacity", "arrival-rate", "preferences")),
        *(["solve", "model.h5", "--no-save", f"--{name}={text}"] for name in ("tolerance", "time-limit", "threads", "memory-limit", "checkpoint-minutes", "initial", "probability")),
        ["solve", "model.h5", "--no-save", "--problem=transient", "--initial=0", f"--times={text}"],
        *(["solve", "model.h5", "--no-save", "--solver=gmres", f"--{name}={text}"] for name in ("restart", "max-iterations")),
        *(["simulate", "model.h5", "--seed=5", "--horizon=9", f"--{name}={text}"] for name in ("seed", "horizon", "replications")),
        *(["store", "prune", "folder", "--dry-run", f"--{name}={text}"] for name in ("older-than", "larger-than")),
    ]  # fmt: skip
    refusals = 0
    for row in rows:
        ended = command(*row, folder=kinds)
        assert ended.code in (0, 1, 2), (row, ended)
        assert ended.peak < BYTES
        if ended.code:
            one_sentence(ended.err)
            refusals += 1
    assert refusals >= len(rows) / 3


TOO_MANY = {
    "states": ["supermarket", "--service-rates", "1," * 3000, "--choices", "2", "--capacity", "3", "--arrival-rate", "1"],
    "places": ["supermarket", "--service-rates", "1,1", "--choices", "2", "--capacity", "1" + "0" * 400, "--arrival-rate", "1"],
    "customers": ["coxian_tandem", "--capacity", "1" + "0" * 400],
    "blocks": ["nearly_decomposable", "--blocks", "1" + "0" * 400],
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_MANY)
def test_more_than_can_be_counted(command: Commands, folder: Path, name: str) -> None:
    """Numbers beyond all memory are refused at once, before tables are made for them."""
    refused(command, folder, "build", *TOO_MANY[name], "-o", "new.h5")


def test_numbers_of_a_study_that_no_float_can_be(command: Commands, kinds: Path) -> None:
    Path("study.toml").write_text(STUDY.replace("[1, 1]", f"[1, 1{'0' * 400}]"))
    assert "line 5: births is [1, 1000" in refused(command, kinds, "run", "study.toml")


# ---- standard input and output, environment ---------------------------------------------------------------------------

WRITERS = [["--help"], ["--version"], ["list", "solvers"], ["list", "builders", "--json"], ["info", "model.h5"], ["solve", "model.h5", "--no-save"],
           ["solve", "model.h5", "--no-save", "--json"], ["solve", "model.h5", "--no-save", "--csv"], ["verify", "model.h5"], ["info", "missing.h5", "--json"],
           ["run", "study.toml", "-o", "out.h5"], ["completion", "bash"]]  # fmt: skip


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_output_that_cannot_be_written(command: Commands, kinds: Path, arguments: list[str]) -> None:
    whole = command(*arguments, folder=kinds)
    full = command(*arguments, folder=kinds, output="/dev/full")
    assert full.code == 2
    assert "No space left on device" in one_sentence(full.err)
    for stream, number in (("stdout", 1), ("stderr", 2), ("stdin", 0)):
        closed = command(*arguments, folder=kinds, before=f"import sys; os.close({number}); sys.{stream} = None")
        assert closed.code == whole.code, (stream, closed)
        assert "Traceback" not in closed.err
    news = command(*arguments, folder=kinds, before="os.dup2(os.open('/dev/full', os.O_WRONLY), 2)")
    assert news.code == whole.code  # news that nobody can read stop nothing
    assert "--json" not in arguments or json.loads(news.out)


ENVIRONMENT = {"TERM": "dumb", "HOME": "/nowhere", "TMPDIR": "/nowhere", "XDG_CACHE_HOME": "", "LC_ALL": "xx_XX.UTF-8", "COLUMNS": "-3", "LINES": "x",
               "PYTHONHASHSEED": "77", "NO_COLOR": "1", "MPLCONFIGDIR": "/proc/nowhere", "OMP_NUM_THREADS": "x"}  # fmt: skip


def test_an_environment_without_sense(command: Commands, kinds: Path) -> None:
    for arguments in (
        ["solve", "model.h5", "--no-save", "--json"],
        ["run", "study.toml", "--json"],
        ["list", "solvers"],
    ):
        plain, odd = (command(*arguments, folder=kinds, environment=given) for given in ({}, ENVIRONMENT))
        assert (plain.code, odd.code) == (0, 0), odd
        if "--json" in arguments:
            one, other = (json.loads(ended.out) for ended in (plain, odd))
            assert one.get("measures") == other.get("measures")
            assert [row["measures"] for row in one.get("rows", ())] == [
                row["measures"] for row in other.get("rows", ())
            ]


def test_a_clock_that_is_set_back(command: Commands, kinds: Path) -> None:
    """An hour at each look, on the clock that an administrator sets."""
    back = "import time; now = [1e9]; time.time = lambda: now.__setitem__(0, now[0] - 3600) or now[0]; time.time_ns = lambda: int(time.time() * 1e9)"
    arguments = ["solve", "model.h5", "--solver", "gauss_seidel", "--no-save", "--time-limit", "50", "--json"]
    one, other = (json.loads(command(*arguments, folder=kinds, before=before).out) for before in ("", back))
    assert [one[name] for name in ("measures", "defect", "iterations", "status")] == [
        other[name] for name in ("measures", "defect", "iterations", "status")
    ]
    assert 0 <= other["seconds"] < 50
    assert command("run", "study.toml", folder=kinds, before=back).code == 0
    assert command("run", "study.toml", folder=kinds).code == 0
    assert command("store", "prune", "out.store", "--older-than", "1d", folder=kinds, before=back).code == 0
    assert len(list(Path("out.store").glob("*.h5"))) == 1  # what seems to come from the future stays


@pytest.mark.skipif(shutil.which("localedef") is None, reason="needs localedef to make a locale")
def test_a_locale_with_commas(command: Commands, kinds: Path) -> None:
    done = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(kinds / "de_DE.UTF-8")], capture_output=True)
    if done.returncode > 1 or not (kinds / "de_DE.UTF-8").exists():
        pytest.skip("no source of the locale de_DE is installed")
    german = "import locale; locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8'); assert locale.localeconv()['decimal_point'] == ','"
    settings = {"LOCPATH": str(kinds), "LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"}
    for arguments in (["solve", "model.h5", "--no-save", "--csv"], ["convert", "model.h5", "new.tra", "--overwrite"],
                      ["report", "comparison.h5", "--csv", "new.csv", "--overwrite"]):  # fmt: skip
        found = []
        for options in ({}, {"environment": settings, "before": german}):
            ended = command(*arguments, folder=kinds, **options)
            assert ended.code == 0, ended.err
            new = [path.read_text() for path in sorted(kinds.glob("new.*"))]
            found.append(
                (new, [line.split(",")[-5:] for line in ended.out.splitlines()] if arguments[-1] == "--csv" else "")
            )
        assert found[0] == found[1], arguments


# ---- disks that are full ----------------------------------------------------------------------------------------------

# .petsc is written through a scratch file of a fixed size, so that it is refused by all sizes here
STORERS = [
    ["build", "birth_death", "--births", "1,1,1", "--deaths", "2,2,2", "-o", "model.h5", "--overwrite"],
    ["rerate", "model.h5", "--births", "3,3", "-o", "new.h5"],
    ["solve", "model.h5", "--solver", "gauss_seidel", "--checkpoint", "kept.h5", "--checkpoint-minutes", "0"],
    ["run", "study.toml"],
    ["report", "comparison.h5", "-o", "new.html", "--no-figures"],
    ["report", "comparison.h5", "--csv", "new.csv"],
    ["report", "comparison.h5", "--latex", "new.tex"],
    *(["convert", "model.h5", f"new{ending}"] for ending in (".h5", ".umb", ".mat", ".npz", ".graphml", ".drn", ".drn.gz", ".drn.xz", ".tra", ".mtx", ".mtx.gz", ".petsc")),
]  # fmt: skip


@pytest.mark.parametrize("arguments", STORERS, ids=" ".join)
def test_a_disk_that_takes_so_many_bytes(command: Commands, kinds: Path, arguments: list[str]) -> None:
    """Of every file: the system refuses what is beyond, in Python and in libraries alike."""
    ends = []
    for size in (0, 40, 1_000_000):
        before = {path: path.read_bytes() for path in kinds.iterdir() if path.is_file()}
        limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {resource.RLIM_INFINITY}))"
        ended = command(*arguments, folder=kinds, before=limited)
        ends.append(ended.code)
        if ended.code == 0:
            break
        assert ended.code == 2, ended
        assert "File too large" in one_sentence(ended.err)
        after = {path: path.read_bytes() for path in kinds.rglob("*") if path.is_file()}
        assert {path: after[path] for path in before} == before
        assert [path.name for path in after if path.suffix == ".part"] == []
    assert ends[:2] == [2, 2]
    assert ".petsc" in arguments[-1] or ends[-1] == 0
