"""What fails where files are written: pieces that make no array, names, folders, locks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import filelock
import numpy as np
import pytest
from forged_models import refused

from ctmc.storage import (
    atomic,
    locks,
)
from ctmc.storage.container import content_hash, write_container
from ctmc.storage.gate import StoredArray
from ctmc.storage.hash_tree import Stream


def stream(parts, shape=(5,), kind="<f8"):
    return Stream(
        {"x": StoredArray(shape, np.dtype(kind))}, lambda: iter([("x", row, np.array(one)) for row, one in parts])
    )


STREAMS = {
    "another type": (stream([(0, [1, 2, 3, 4, 5])]), "a part of the array 'x' has the type int64, not float64"),
    "a table": (stream([(0, np.ones((5, 1)))]), "a part of the array 'x' has the type float64"),
    "too much": (stream([(0, np.ones(3)), (0, np.ones(3))]), "the array 'x' has more than 5 elements"),
    "too little": (stream([(0, np.ones(3))]), "the array 'x' ends before its 5 elements"),
    "a row too few": (stream([(0, np.ones(2**19))], (2, 2**19)), "the array 'x' ends before its 524,288 elements"),
    "short rows": (stream([], (2, 5)), "the array 'x' cannot come in pieces"),
}


@pytest.mark.parametrize("fault", STREAMS)
def test_pieces_that_do_not_make_an_array_are_refused(tmp_path, fault):
    pieces, sentence = STREAMS[fault]
    refused(sentence, write_container, tmp_path / "x.h5", "example", {}, {}, stream=pieces)
    refused(sentence, content_hash, "example", {}, {}, pieces)
    refused("comes twice", content_hash, "example", {}, {"x": np.ones(5)}, stream([(0, np.ones(5))]))
    assert list(tmp_path.iterdir()) == []
    whole = stream([(0, np.ones(3)), (0, np.ones(2))])
    assert content_hash("example", {}, {}, whole) == content_hash("example", {}, {"x": np.ones(5)})


# Files that are replaced, and locks


def test_a_long_name_is_cut_for_the_file_that_is_being_written(tmp_path):
    path = tmp_path / ("µ" * 127)
    atomic.replace_file(path, lambda temporary: temporary.write_text(temporary.name) and None, overwrite=False)
    assert path.read_text().startswith(".µµ")
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("how", ["locked by another", "removed by another"])
def test_a_file_that_another_writer_takes_for_a_leftover_is_given_up(tmp_path, monkeypatch, how):
    lock, tried = atomic.fcntl.flock, []

    def flock(descriptor, operation):
        tried.append(descriptor)
        if len(tried) == 1:
            if how == "locked by another":
                raise BlockingIOError
            os.unlink(next(tmp_path.glob(".x.*.part")))
        lock(descriptor, operation)

    monkeypatch.setattr(atomic.fcntl, "flock", flock)
    atomic.replace_file(tmp_path / "x", lambda temporary: temporary.write_text("whole") and None, overwrite=False)
    assert (tmp_path / "x").read_text() == "whole"
    assert len(tried) == 2


def test_a_folder_without_room_for_the_first_file_is_named(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, "open", full)
    refused("x: No space left on device", atomic.replace_file, tmp_path / "x", Path.touch, overwrite=True)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_flush_folders_will_do(tmp_path, monkeypatch, number):
    flush = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        flush(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    if number == errno.EIO:
        refused("x: Input/output error", atomic.replace_file, tmp_path / "x", Path.touch, overwrite=True)
    else:
        atomic.replace_file(tmp_path / "x", Path.touch, overwrite=True)
    assert (tmp_path / "x").exists()


def test_without_hard_links_what_appears_meanwhile_stays(tmp_path, monkeypatch):
    def link(*arguments):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(atomic.os, "link", link)
    path = tmp_path / "x"
    refused(
        "it exists already", atomic.replace_file, path, lambda _: path.write_text("faster") and None, overwrite=False
    )
    assert path.read_text() == "faster"


@pytest.mark.parametrize("why", ["not writable", "not to be made"])
def test_locks_go_to_the_temporary_folder_where_the_user_has_none(tmp_path, monkeypatch, why):
    import platformdirs

    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    for _ in range(2):  # made, and found
        assert locks.cache_folder() == tmp_path / "cache" / "locks"
    if why == "not writable":
        monkeypatch.setattr(locks.os, "access", lambda folder, mode: False)
    else:
        (tmp_path / "cache" / "locks").rmdir()
        (tmp_path / "cache").rmdir()
        (tmp_path / "cache").write_text("in the way")
    assert locks.cache_folder() == tmp_path / f"ctmc-locks-{os.getuid()}"
    assert locks.cache_folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("holder", "told"), [("process 7\x1b", r"process 7\x1b"), ("", "another process"), (None, "another process")]
)
def test_who_holds_a_lock_is_told_as_well_as_it_is_known(tmp_path, holder, told):
    with filelock.FileLock(tmp_path / "queue.lock"):
        if holder is not None:
            (tmp_path / "queue.holder").write_text(holder)
        with pytest.raises(locks.BusyError) as caught, locks.held(tmp_path, "queue"):
            pass
    assert str(caught.value) == told


def test_one_who_waits_is_told_once_and_may_give_up(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.001)
    heard, looks = [], iter([False, False, False, True])
    with (
        filelock.FileLock(tmp_path / "queue.lock"),
        pytest.raises(locks.BusyError),
        locks.held(tmp_path, "queue", waiting=heard.append, stopped=lambda: next(looks)),
    ):
        pass
    assert heard == ["another process"]
