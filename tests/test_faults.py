"""What must not go wrong with files: damage, forgery, hostile content, failing disks and memory, and a writer that is killed.

Numbers are kinds of faults.  Each is tried on everything that reads a model: loaded at once, streamed, summarized, verified.
CTMC_MUTATIONS and CTMC_KILLS give other numbers of random files and of moments, for a release.
"""

import errno
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from container_examples import Countdown, leftovers
from forgeries import DAMAGE, KINDS, contents, forge, gallery
from hostile_files import HOSTILE, PATHS, watched

import ctmc
from ctmc import storage
from ctmc.model.state_space import Listed
from ctmc.model.streamed import streaming
from ctmc.storage.container import read_container
from ctmc.verify import Verifier

MUTATIONS = int(os.environ.get("CTMC_MUTATIONS", "600"))
KILLS = int(os.environ.get("CTMC_KILLS", "25"))
pytestmark = pytest.mark.timeout(600 + 10 * KILLS + MUTATIONS // 5)  # more of them take longer
SEED = 20270317

READERS = {"load": ctmc.load, "open": ctmc.open, "load_fitting": storage.load_fitting, "read": ctmc.read}

# rows about a file that has none of what they change
_OTHER_FILES = {"empty array missing", "kind changed", "not HDF5"}
FAULTS = {f"hostile: {name}": row[0] for name, row in HOSTILE.items() if name not in _OTHER_FILES}
FAULTS |= {f"path: {name}": lambda path, make=make: (path.unlink(), make(path)) for name, (make, _) in PATHS.items()}
assert len(FAULTS) >= 95


def stored_model(path):
    """Write a model with the arrays that the hostile files change: 300 listed states, 900 transitions."""
    rng = np.random.default_rng(SEED)
    states = np.arange(300)
    chain = ctmc.Generator.from_transitions(
        np.tile(states, 3),
        np.concatenate([(states + k) % 300 for k in (1, 2, 5)]),
        rng.random(900) + 0.1,
        Listed(rng.permutation(300)[:, None]),
        notes=("0.95",),
    )
    ctmc.save(path, chain)


@pytest.mark.parametrize("name", FAULTS)
def test_no_reader_takes_a_fault(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = Path("file.h5")
    stored_model(path)
    FAULTS[name](path)
    with watched(path.with_name("decoy.h5")) as opened:
        begin = time.process_time()
        for reader in READERS.values():
            with pytest.raises(ctmc.StorageError) as caught:
                reader(path)
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 600
        report = ctmc.verify(path)
        assert not report.trusted
        assert report.problem.isprintable()
        assert time.process_time() - begin < 2 * (len(READERS) + 1)
        assert not opened()


def test_the_faults_start_from_a_file_that_is_read(tmp_path):
    stored_model(tmp_path / "file.h5")
    for reader in READERS.values():
        assert reader(tmp_path / "file.h5").entries == 900


# Random files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return gallery(tmp_path_factory.mktemp("files"))


def readers(kind):
    """Return what reads a file of some kind."""
    if kind == "solution":
        return [storage.load_solution]
    return [ctmc.load] if kind == "variant" else [ctmc.load, ctmc.open]


def readings(path, kind):
    """Return what each reader makes of a file, None where it is refused in one sentence."""
    found, sentences = [], []
    for reader in readers(kind):
        try:
            found.append(reader(path))
        except ctmc.StorageError as error:
            found.append(None)
            sentences.append(str(error))
    assert all(sentence.isprintable() and sentence.endswith(".") for sentence in sentences)
    return found


def same_numbers(one, other):
    if isinstance(one, ctmc.Generator):
        assert one.content_hash == other.content_hash
        vector = np.random.default_rng(3).random(one.size)
        np.testing.assert_array_equal(one.forward(vector), other.forward(vector))
    elif isinstance(one, ctmc.QBD):
        assert one.content_hash == other.content_hash
        np.testing.assert_array_equal(one.up.toarray(), other.up.toarray())
    else:
        assert (one.model_hash, one.status, one.defect) == (other.model_hash, other.status, other.defect)
        np.testing.assert_array_equal(getattr(one.value, "r", one.value), getattr(other.value, "r", other.value))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_the_same_or_refused(files, damage):
    rng = np.random.default_rng([SEED, list(DAMAGE).index(damage)])
    kinds = {name: read_container(path, KINDS, only=()).kind for name, path in files.items()}
    whole = {name: path.read_bytes() for name, path in files.items()}
    loaded = {name: readings(path, kinds[name]) for name, path in files.items()}
    refused, count, names = 0, 4 * MUTATIONS // (5 * len(DAMAGE)), list(files)
    for number in range(count):
        name = names[number % len(names)]
        data = bytearray(whole[name])
        DAMAGE[damage](rng, data)
        path = files[name].with_name("damaged.h5")
        path.write_bytes(data)
        for one, other in zip(readings(path, kinds[name]), loaded[name], strict=True):
            refused += one is None
            if one is not None:
                same_numbers(one, other)
    assert refused > 0.6 * count


def is_generator(model):
    """Signs, finite numbers, rows that sum to zero: from the matrix itself."""
    rates = model.to_scipy().tocoo()
    off = rates.coords[0] != rates.coords[1]
    largest = float(np.abs(rates.data).max(initial=0.0))
    good = bool(np.isfinite(rates.data).all() and (rates.data[off] > 0).all() and (rates.data[~off] <= 0).all())
    return good and bool((np.abs(rates.sum(axis=1)) <= 1e-12 * largest * max(rates.shape[0], 100)).all())


def test_forged_files_are_models_or_refused(files):
    """Hashes are right, content is not: no crash, nothing but generators, and both readers of one opinion."""
    rng = np.random.default_rng([SEED, 99])
    held, names = contents(files), list(files)
    look, taken, refused = Verifier(), 0, 0
    for number in range(MUTATIONS // 5):
        name = names[number % len(names)]
        path = files[name].with_name("forged.h5")
        what = forge(rng, path, held[name])
        begin = time.process_time()
        found = readings(path, held[name].kind)
        assert time.process_time() - begin < 20, (number, name, what)
        assert len({one is None for one in found}) == 1, (number, name, what)
        taken, refused = taken + (found[0] is not None), refused + (found[0] is None)
        if isinstance(found[0], ctmc.Generator):
            assert is_generator(found[0]), (number, name, what)
            np.testing.assert_array_equal(found[0].exit_rates, found[-1].exit_rates)
        if held[name].kind == "solution":
            look(path)
    assert refused > MUTATIONS / 20
    assert taken > MUTATIONS / 100


# 47, 48: disks and memory that fail


def build_streamed(folder):
    with streaming():
        model = ctmc.build(
            "supermarket", service_rates=[3, 2, 1], arrival_rate=3.0, choices=2, capacity=4, total_capacity=9
        )
    ctmc.save(folder / "new.h5", model)


def write_rerated(folder):
    storage.rerate(folder / "old.h5", folder / "new.h5", {"deaths": [3.0, 5.0]})


def write_solution(folder):
    model = ctmc.load(folder / "old.h5")
    storage.save_solution(folder / "old.h5", ctmc.solve(ctmc.Stationary(model), "gth"), name="answer")


WRITERS = {"streamed build": build_streamed, "variant": write_rerated, "solution": write_solution}
STEPS = {"pwrite": errno.ENOSPC, "fsync": errno.EIO, "link": errno.EDQUOT, "replace": errno.EIO}


def parent(folder):
    ctmc.save(folder / "old.h5", ctmc.build("birth_death", births=[1.0, 2.0], deaths=[2.0, 3.0]))


def whole_or_absent(folder):
    """What stands in a folder is verified, and no writer has left anything."""
    for path in folder.rglob("*.h5"):
        assert ctmc.verify(path).trusted
    assert [name for place in (folder, *filter(Path.is_dir, folder.iterdir())) for name in leftovers(place)] == []


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("writer", WRITERS)
def test_each_step_of_a_writer_fails_once(tmp_path, monkeypatch, writer, step):
    parent(tmp_path)
    before = (tmp_path / "old.h5").read_bytes()
    fired = 0
    for moment in range(1, 400):
        for path in (tmp_path / "new.h5", tmp_path / "old.solutions" / "answer.h5"):
            path.unlink(missing_ok=True)
        countdown = Countdown(getattr(os, step), moment, OSError(STEPS[step], os.strerror(STEPS[step])))
        with monkeypatch.context() as patch:
            patch.setattr(os, step, countdown)
            if not failed(WRITERS[writer], tmp_path, os.strerror(STEPS[step]), countdown):
                break
        fired += 1
        assert (tmp_path / "old.h5").read_bytes() == before
    assert not countdown.fired
    whole_or_absent(tmp_path)
    assert fired >= {"pwrite": 5, "fsync": 2, "link": 0 if writer == "solution" else 1, "replace": 0}[step]


def failed(writer, folder, reason, countdown):
    sentence = ""
    try:
        writer(folder)
    except ctmc.StorageError as error:
        sentence = str(error)
    assert countdown.fired == bool(sentence)
    assert not sentence or (reason in sentence and sentence.isprintable())
    return bool(sentence)


@pytest.mark.parametrize("writer", WRITERS)
def test_each_allocation_of_a_writer_fails_once(tmp_path, monkeypatch, writer):
    """From 1 KiB on, so that all arrays of states and transitions are among them."""
    parent(tmp_path)
    WRITERS[writer](tmp_path)
    empty, fired = np.empty, 0
    for moment in range(1, 400):
        (tmp_path / "new.h5").unlink(missing_ok=True)
        left = [moment]

        def allocate(shape, *arguments, left=left, **options):
            array = empty(shape, *arguments, **options)
            left[0] -= array.nbytes >= 1024
            if not left[0]:
                left[0] = -1
                raise MemoryError("no room for an array")
            return array

        with monkeypatch.context() as patch:
            patch.setattr(np, "empty", allocate)
            sentence = ""
            try:
                WRITERS[writer](tmp_path)
            except (ctmc.CTMCError, MemoryError) as error:  # the command line has a sentence for the latter
                sentence = str(error)
        if not sentence:
            break
        assert "no room" in sentence or "not enough memory" in sentence
        fired += 1
        assert not (tmp_path / "new.h5").exists()
    whole_or_absent(tmp_path)
    assert fired >= (3 if writer == "streamed build" else 0)


# 46: a writer that is killed

KILLED = """
import os, signal, sys
from pathlib import Path
import ctmc, ctmc.storage.models, ctmc.storage.rerate, ctmc.storage.inventory, ctmc.verify
from ctmc.comparison.files import save_comparison
from ctmc.comparison.report import write_report
from ctmc.comparison.runs import ComparedModel, Comparison, Run
from ctmc.model.streamed import streaming
from ctmc.storage import inventory, rerate
from ctmc.study import parse_study, run_study

folder, wanted = Path(sys.argv[1]), -(-int(sys.argv[2]) // 7)

def build():
    ctmc.save(folder / "built.h5", ctmc.build("birth_death", births=[1.0] * 900, deaths=[2.0] * 900), overwrite=True)

def streamed():
    # 8,851 states under a cap: rows are made in several slabs while the file is written
    with streaming():
        queues = ctmc.build("supermarket", service_rates=[1.0, 2.0, 3.0, 4.0], arrival_rate=8.0, choices=2, capacity=18, total_capacity=19)
    ctmc.save(folder / "streamed.h5", queues, overwrite=True)

def variant():
    rerate(folder / "parent.h5", folder / "variant.h5", {"deaths": [4.0, 5.0]}, overwrite=True)

STUDY = parse_study('''
    [models.queue]
    builder = "birth_death"
    births = [1, 1]
    deaths = [2, 2]
    [[solve]]
    solvers = ["gth", "sparse_lu"]
    ''')
FOUND = Comparison("t", "stationary", {"m": ComparedModel("m")}, (Run("m", "gth", 1e-8),), ({},))

def run():
    run_study(STUDY, folder / "study.h5", rebuild=True)

def compared():
    save_comparison(folder / "compared.h5", FOUND)

def reported():
    write_report(folder / "page.html", FOUND, overwrite=True)

def prune():
    for name in "abc":
        if not (folder / "store" / f"{name}.h5").exists():
            ctmc.save(folder / "store" / f"{name}.h5", ctmc.build("birth_death", births=[float(ord(name))], deaths=[2.0]))
    inventory.prune(folder / "store", larger_than=0)

STEPS = ("pwrite", "fsync", "link", "replace", "unlink", "ftruncate", "open")

def child(moment, action):
    # counts the steps of an action, and ends itself without a word at one of them; returns the count, or None where killed
    pid = os.fork()
    if not pid:
        count = 0
        def counted(function):
            def step(*arguments, **options):
                nonlocal count
                count += 1
                if count == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)
            return step
        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        code = 255
        try:
            action()
            code = min(count, 254)
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return None
    assert os.WEXITSTATUS(status) != 255
    return os.WEXITSTATUS(status)

found_whole = set()

def whole():
    for path in folder.rglob("[!.]*.h5"):
        content = path.read_bytes()
        if content in found_whole:  # the same bytes were looked at before: most files are as they were
            continue
        problem = ctmc.verify(path).problem
        assert not problem, problem
        found_whole.add(content)

def again(action):
    whole()
    action()
    whole()
    page = folder / "page.html"
    assert not page.exists() or page.read_text().rstrip().endswith("</html>")
    left = [path for path in folder.rglob("*.part")]
    assert not left, left

def standing():
    # which files stand here: one that was replaced is another file, even where its bytes are the same
    found = {path: path.stat() for path in folder.rglob("[!.]*") if path.suffix in (".h5", ".html")}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}

for action in (build, streamed, variant, run, compared, reported, prune):
    action()  # once here, so that the children find everything compiled
whole()
killed = old = 0
for action in (build, streamed, variant, run, compared, reported, prune):
    last = child(0, action)
    moments_of = sorted({1 + k * (last - 1) // max(wanted - 1, 1) for k in range(wanted)})
    for moment in moments_of:
        before = standing()
        if child(moment, action) is None:
            killed += 1
            old += standing() == before
        child(0, lambda: again(action))
print(killed, old)
"""


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path):
    parent(tmp_path)
    os.rename(tmp_path / "old.h5", tmp_path / "parent.h5")
    (tmp_path / "store").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), str(KILLS)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "NUMBA_NUM_THREADS": "1", "NUMBA_THREADING_LAYER": "workqueue"},  # which stands a fork
        timeout=10 * max(KILLS, 50),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    killed, old = map(int, done.stdout.split())
    assert killed >= 0.7 * min(KILLS, 50)
    assert 0 < old < killed  # both ends are among the moments
    print(f"{killed} writers were killed: {old} left the old files, {killed - old} at least one new file, all whole.")
