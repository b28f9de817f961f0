"""A store that several processes use at once, and one that cannot be written."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import store_examples
from store_examples import ONE, QUEUE, done, forbid, models_done

from ctmc import registry
from ctmc.errors import StorageError
from ctmc.storage.locks import BusyError, held
from ctmc.storage.store import Store, open_store

here = store_examples.here
run = store_examples.run
cli = store_examples.cli


# ---- several processes ------------------------------------------------------------------------------------------------

SLOW = """
import os, sys, time
from contextlib import ExitStack
from pathlib import Path
from ctmc import registry
from ctmc.cli import main
from ctmc.model.recipe import Prepared
from ctmc.storage.atomic import _temporary_file
from ctmc.storage.store import Store

prepare, seconds, half, arguments = registry.prepare, float(sys.argv[1]), sys.argv[2], sys.argv[3:]

def slow(name, **parameters):
    prepared = prepare(name, **parameters)
    def build():
        with ExitStack() as stack:
            if half == "half":
                path, _ = stack.enter_context(_temporary_file(Store(Path("shared"))._place(prepared.recipe)))
                path.write_text("half of a model")
            with open("builds", "a") as file:
                file.write(f"{os.getpid()}\\n")
            time.sleep(seconds)
            return prepared.build()
    return Prepared(prepared.recipe, build)

registry.prepare = slow
sys.exit(main(arguments))
"""


def process(seconds, *arguments, half="whole"):
    command = [
        sys.executable,
        "-c",
        SLOW,
        str(seconds),
        half,
        "run",
        "study.toml",
        "--store",
        "shared",
        "--json",
        *arguments,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def leftovers():
    return [path for path in Path("shared").rglob("*") if path.is_file() and path.suffix != ".h5"]


def test_four_processes_build_a_model_once(run):
    Path("study.toml").write_text(QUEUE + ONE)
    Path("shared").mkdir()
    several = [process(1.5, "-o", f"result{k}.h5") for k in range(4)]
    documents = []
    for one in several:
        out, err = one.communicate(timeout=280)
        assert one.returncode == 0, err
        documents.append(json.loads(out))
    assert len(Path("builds").read_text().split()) == 1
    assert sorted(name for document in documents for name in models_done(document)) == ["built: new"] + ["reused"] * 3
    measures = [document["rows"][0]["measures"] for document in documents]
    assert measures == [measures[0]] * 4
    assert measures[0]["jobs"] == pytest.approx(4 / 7, abs=1e-12)
    assert sum(name == "solved: new" for document in documents for name in done(document)) == 1
    assert leftovers() == []


def test_when_the_one_who_builds_is_killed_another_takes_over(run):
    Path("study.toml").write_text(QUEUE + ONE)
    Path("shared").mkdir()
    first = process(100, "-o", "first.h5", half="half")
    try:
        wait_for(lambda: Path("builds").exists())
        second = process(0, "-o", "second.h5")
        line = second.stderr.readline()
        while "waiting" not in line:
            assert line, "the second did not wait"
            line = second.stderr.readline()
        assert f"waiting for process {first.pid} on " in line
        assert any(path.suffix == ".part" for path in leftovers())
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    out, err = second.communicate(timeout=280)
    assert second.returncode == 0, err
    assert models_done(json.loads(out)) == ["built: new"]
    assert Path("builds").read_text().split() == [str(first.pid), str(second.pid)]
    assert leftovers() == []


def test_an_answer_that_another_process_gives_meanwhile_is_taken(run, monkeypatch):
    run(QUEUE + ONE)
    (path,) = Path("study.store").glob("*.solutions/*.h5")
    path.rename("aside.h5")

    @contextlib.contextmanager
    def locked(store, name, *, waiting, stopped):
        waiting("process 7 on elsewhere")
        Path("aside.h5").rename(path)
        yield True

    monkeypatch.setattr(Store, "locked", locked)
    forbid(monkeypatch)
    assert done(run(QUEUE + ONE)) == ["reused"]
    assert "waiting for process 7 on elsewhere, which solves the same" in run.err


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def test_waiting_can_be_given_up(here):
    with held(here, "queue") as waited:
        assert waited is False
        told = []
        with (
            pytest.raises(BusyError, match=f"process {os.getpid()} on "),
            held(here, "queue", waiting=told.append, stopped=lambda: bool(told)),
        ):
            pytest.fail("it is held")
        assert len(told) == 1
        with pytest.raises(BusyError), held(here, "queue"):
            pytest.fail("it is held")
    prepared = registry.prepare("birth_death", births=[1.0], deaths=[2.0])
    store = Store(here)
    with store.locked(prepared.recipe.hash[:32]), pytest.raises(StorageError, match="given up"):
        store.get_or_build(prepared, stopped=lambda: True)
    assert store.get_or_build(prepared).built


# ---- a store that cannot be written -----------------------------------------------------------------------------------


@pytest.fixture
def frozen(monkeypatch):
    """Make a folder read only, as a file system that is mounted so."""

    def freeze(folder):
        folder = os.fspath(Path(folder).resolve())

        def guarded(function, changes=lambda *arguments: True):
            def guard(*arguments, **known):
                inside = any(
                    isinstance(one, str | os.PathLike) and os.path.abspath(one).startswith(folder)
                    for one in arguments[:2]
                )
                if inside and changes(*arguments):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
                return function(*arguments, **known)

            return guard

        for name in ("mkdir", "unlink", "replace", "rename", "link", "utime", "rmdir"):
            monkeypatch.setattr(os, name, guarded(getattr(os, name)))
        monkeypatch.setattr(
            os, "open", guarded(os.open, lambda path, flags, *_: flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        )

    return freeze


def test_a_store_that_cannot_be_written_is_read(run, cli, frozen):
    Path("archive/.locks").mkdir(parents=True)
    run(QUEUE + ONE, "--store", "archive")
    before = sorted(Path("archive").rglob("*"))
    frozen("archive")
    again = run(QUEUE + ONE, "--store", "archive", "-o", "second.h5")
    assert (models_done(again), done(again)) == (["reused"], ["reused"])
    assert "The store archive cannot be written" in run.err
    assert "second.store" in run.err
    more = ONE.replace('"]', '", "gth"]')
    other = QUEUE.replace("queue", "other").replace("[1.0, 1.0]", "[1.0, 3.0]")
    third = run(QUEUE + other + more, "--store", "archive", "-o", "second.h5")
    assert models_done(third) == ["reused", "built: parameter births changed"]
    assert done(third) == ["reused", "solved: new", "solved: new", "solved: new"]
    assert set(done(run(QUEUE + other + more, "--store", "archive", "-o", "second.h5"))) == {"reused"}
    assert sorted(Path("archive").rglob("*")) == before
    assert open_store("archive", Path("second.store")).folders == (Path("second.store"), Path("archive"))
    with pytest.raises(StorageError, match="Read-only file system"):
        open_store("archive")
    assert cli("verify", "archive")["damaged"] == 0
    assert [row["stays"] for row in cli("prune", "archive", "--larger-than", "1")["removed"]] == [
        "Read-only file system"
    ] * 2
