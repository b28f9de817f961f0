"""Writing: what stands there already, failures at every step, a killed writer, and replacing other files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import container_examples
import numpy as np
import pytest
from container_examples import KIND, MANIFEST, ROOT, Countdown, damage_array, foreign_hdf5, leftovers, small_arrays

from ctmc.errors import StorageError
from ctmc.storage import atomic
from ctmc.storage.atomic import replace_file
from ctmc.storage.container import content_hash, read_container, write_container

small = container_examples.small
pytestmark = pytest.mark.timeout(180)  # damaged files have made HDF5 loop


# What stands there already


def test_same_content_is_left_as_it_is(small: Path) -> None:
    before = small.stat()
    digest = write_container(small, KIND, MANIFEST | {"about": {"ctmc": "0.2.0"}}, small_arrays())
    assert digest == read_container(small, [KIND]).content_hash
    assert (small.stat().st_ino, small.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    write_container(small, KIND, MANIFEST | {"about": {"ctmc": "0.2.0"}}, small_arrays(), overwrite=True)
    assert read_container(small, [KIND]).manifest["about"] == {"ctmc": "0.2.0"}


def test_same_content_but_damaged_is_replaced(small: Path) -> None:
    original = small.read_bytes()
    damage_array(small)
    with pytest.raises(StorageError, match="damaged"):
        read_container(small, [KIND])
    write_container(small, KIND, MANIFEST, small_arrays())
    assert small.read_bytes() == original


def test_other_content_is_replaced_only_when_asked(small: Path) -> None:
    before = small.read_bytes()
    with pytest.raises(StorageError, match=r"small\.h5: it exists already and holds another model.*--overwrite"):
        write_container(small, KIND, {}, {})
    assert small.read_bytes() == before
    digest = write_container(small, KIND, {}, {}, overwrite=True)
    assert read_container(small, [KIND]).content_hash == digest
    assert leftovers(small.parent) == []


def text_file(path: Path) -> None:
    path.write_text("my thesis")


def damaged_head(path: Path) -> None:
    write_container(path, KIND, MANIFEST, small_arrays())
    path.write_bytes(path.read_bytes()[:-1])


FOREIGN: dict[str, Callable[[Path], object]] = {
    "text": text_file,
    "empty": Path.touch,
    "other HDF5": foreign_hdf5,
    "truncated": damaged_head,
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path),
}
assert len(FOREIGN) >= 8


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_file_is_never_replaced(tmp_path: Path, name: str, overwrite: bool) -> None:
    path = tmp_path / "precious"
    FOREIGN[name](path)
    before = os.lstat(path)
    with pytest.raises(
        StorageError, match=r"precious: what stands there is not a readable file of ctmc .* never replaced"
    ):
        write_container(path, KIND, {}, {}, overwrite=overwrite)
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)
    assert os.listdir(tmp_path) == ["precious"]


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/file\.h5: there is no folder .*nowhere"):
        write_container(tmp_path / "nowhere" / "file.h5", KIND, {}, {})


def test_many_writers_of_one_path(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    digests: list[str | StorageError] = []

    def write() -> None:
        try:
            digests.append(write_container(path, KIND, MANIFEST, small_arrays()))
        except StorageError as error:
            digests.append(error)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert digests == [content_hash(KIND, MANIFEST, small_arrays())] * 8
    assert os.listdir(tmp_path) == ["file.h5"]


def test_a_file_that_comes_just_before_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not there when it was looked for, and is there when the temporary file would be made."""
    path = tmp_path / "file.h5"
    digest = write_container(path, KIND, MANIFEST, small_arrays())
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    assert write_container(path, KIND, MANIFEST, small_arrays()) == digest
    with pytest.raises(StorageError, match=r"file\.h5: it exists already"):
        write_container(path, KIND, {**MANIFEST, "other": 1}, small_arrays())
    assert os.listdir(tmp_path) == ["file.h5"]


# Failures while writing

FAILURES = {
    "no room": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "quota": OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    "disk error": OSError(errno.EIO, os.strerror(errno.EIO)),
    "interrupt": KeyboardInterrupt(),
}
STEPS = {"pwrite": 8, "ftruncate": 1, "fsync": 2, "replace": 1, "open": 3, "link": 1}  # and how often at least
assert len(FAILURES) * len(STEPS) >= 24


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("step", STEPS)
def test_failure_of_each_step_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: str
) -> None:
    path = tmp_path / "file.h5"
    overwrite = step != "link"
    fired = 0
    for moment in range(1, 200):
        path.unlink(missing_ok=True)
        if overwrite:
            write_container(path, KIND, MANIFEST, small_arrays())
        before = path.read_bytes() if overwrite else None
        countdown = Countdown(getattr(os, step), moment, FAILURES[failure])
        with monkeypatch.context() as patch:
            patch.setattr(os, step, countdown)
            raised, digest = None, ""
            try:
                digest = write_container(path, KIND, {"x": 1}, small_arrays(), overwrite=overwrite)
            except (StorageError, KeyboardInterrupt) as error:
                raised = error
        assert countdown.fired == (raised is not None)
        if failure == "interrupt":
            assert not isinstance(raised, StorageError)
        elif raised is not None:
            assert str(raised).startswith(f"Cannot write {path}: ")
            assert FAILURES[failure].strerror in str(raised)
        assert leftovers(tmp_path) == []
        if not countdown.fired:
            assert read_container(path, [KIND]).content_hash == digest
            break
        fired += 1
        if path.exists() and path.read_bytes() != before:
            # Only when the last step failed, flushing the folder, does the new file stand there, whole.
            assert step in ("fsync", "open")
            assert moment >= 2
            assert read_container(path, [KIND]).manifest == {"x": 1}
    assert fired >= STEPS[step]
    assert threading.active_count() < 20


def test_interrupt_in_progress(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"

    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_container(path, KIND, {}, {"x": np.arange(3_000_000)}, progress=interrupt)
    assert os.listdir(tmp_path) == []
    write_container(path, KIND, {}, {"x": np.arange(3_000_000)})
    with pytest.raises(KeyboardInterrupt):
        read_container(path, [KIND], progress=interrupt)


def test_write_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:100], offset))
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: pread(descriptor, min(size, 100), offset))
    write_container(tmp_path / "file.h5", KIND, MANIFEST, small_arrays())
    assert read_container(tmp_path / "file.h5", [KIND]).manifest == MANIFEST


def test_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    write_container(path, KIND, {}, small_arrays())
    script = f"""
    import numpy as np
    from ctmc.storage.container import write_container
    print("ready", flush=True)
    while True:
        for version in (1, 2):
            write_container({str(path)!r}, "example", {{"x": version}}, {{"x": np.arange(2_000_000)}}, overwrite=True)
    """
    for delay in (0.0, 0.03, 0.11, 0.23, 0.31):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert read_container(path, [KIND]).manifest in ({}, {"x": 1}, {"x": 2})
    write_container(path, KIND, {"x": 3}, small_arrays(), overwrite=True)
    assert os.listdir(tmp_path) == ["file.h5"]


# Other files


def test_replace_file(tmp_path: Path) -> None:
    path = tmp_path / "answer.csv"
    replace_file(path, lambda temporary: temporary.write_text("old") and None, overwrite=False)
    with pytest.raises(StorageError, match=r"answer\.csv: it exists already; overwrite=True or --overwrite"):
        replace_file(path, Path.touch, overwrite=False)
    with pytest.raises(ZeroDivisionError):
        replace_file(path, lambda _: 1 // 0 and None, overwrite=True)
    assert path.read_text() == "old"
    replace_file(path, lambda temporary: temporary.write_text("new") and None, overwrite=True)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["answer.csv"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_replace_file_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to("target")
    replace_file(tmp_path / "link", lambda temporary: temporary.write_text("new") and None, overwrite=True)
    assert (tmp_path / "target").read_text() == "mine"
    assert (tmp_path / "link").read_text() == "new"


@pytest.mark.parametrize("path", ["/dev/null", "/", "..", "."])
def test_replace_file_refuses(path: str) -> None:
    with pytest.raises(StorageError, match="Cannot write"):
        replace_file(path, Path.touch, overwrite=True)


def test_leftovers_are_removed_but_not_the_work_of_a_living_writer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for name in (".file.0123abcd.part", ".file.x.part", ".other.0123abcd.part", "file.part"):
        (tmp_path / name).touch()

    def slow(temporary: Path) -> None:
        replace_file(path, Path.touch, overwrite=True)
        assert temporary.exists()

    replace_file(path, slow, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == [".file.x.part", ".other.0123abcd.part", "file", "file.part"]


def test_file_system_without_hard_links_and_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(atomic.fcntl, "flock", refuse)
    path = tmp_path / "file.h5"
    digest = write_container(path, KIND, MANIFEST, small_arrays())
    assert read_container(path, [KIND]).content_hash == digest
    assert os.listdir(tmp_path) == ["file.h5"]


def test_file_that_appears_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(StorageError, match="it exists already"):
        replace_file(path, lambda temporary: path.write_text("faster") and None, overwrite=False)
    assert path.read_text() == "faster"
    assert os.listdir(tmp_path) == ["file"]
