"""Files that are put in place whole: the steps in their order, the names of what is under way, and what is left alone."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from ctmc.errors import ModelError, StorageError
from ctmc.storage import atomic
from ctmc.storage.atomic import dead_leftovers, failure_reason, replace_file


def never(temporary):
    raise AssertionError("nothing must be written")


def said(text):
    return lambda temporary: temporary.write_text(text) and None


@pytest.fixture
def steps(monkeypatch):
    """Return a list of what is done to files, in its order."""
    done = []

    def watch(name, shown):
        before = getattr(os, name)

        def call(*given, **options):
            done.append(shown(*given))
            return before(*given, **options)

        monkeypatch.setattr(atomic.os, name, call)

    def flushed(descriptor):
        return "flush the folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "flush the file"

    watch("fsync", flushed)
    watch("replace", lambda a, b: "replace")
    watch("link", lambda a, b: "link")
    return done


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_on_the_disk_before_it_gets_its_name_and_its_name_thereafter(tmp_path, steps, overwrite):
    path = tmp_path / "x"
    before = set(os.listdir("/proc/self/fd"))

    def write(temporary):
        steps.append("write")
        assert not path.exists()
        temporary.write_text("whole")

    replace_file(path, write, overwrite=overwrite)
    assert steps == ["write", "flush the file", "replace" if overwrite else "link", "flush the folder"]
    assert path.read_text() == "whole"
    assert path.stat().st_nlink == 1
    assert os.listdir(tmp_path) == ["x"]
    assert set(os.listdir("/proc/self/fd")) == before  # nothing stays open


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_nothing_stays_open_or_behind_where_a_step_fails(tmp_path, monkeypatch, failing):
    path = tmp_path / "x"
    path.write_text("old")
    before = set(os.listdir("/proc/self/fd"))

    def fail(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if failing != "write":
        monkeypatch.setattr(atomic.os, failing, fail)
    with pytest.raises(StorageError, match=r"Cannot write .*x: No space left on device\."):
        replace_file(path, fail if failing == "write" else said("new"), overwrite=True)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["x"])
    assert set(os.listdir("/proc/self/fd")) == before


def test_an_empty_file_that_others_may_read_as_the_mask_allows_is_given(tmp_path):
    before = os.umask(0)
    try:
        replace_file(tmp_path / "x", lambda temporary: None, overwrite=False)
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o666
    assert (tmp_path / "x").stat().st_size == 0


@pytest.mark.parametrize(
    ("name", "kept"), [("a" * 240, 240), ("a" * 241, 240), ("a" * 255, 240), ("µ" * 121, 120), ("a" + "µ" * 120, 120)]
)
def test_a_name_keeps_all_letters_for_which_there_is_room(tmp_path, name, kept):
    replace_file(tmp_path / name, lambda temporary: temporary.write_text(temporary.name) and None, overwrite=False)
    used = (tmp_path / name).read_text()
    beginning, digits, ending = used.rsplit(".", 2)
    assert beginning == "." + name[:kept]
    assert (len(digits), ending) == (8, "part")
    assert len(os.fsencode(used)) <= 255


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("..", "it names a folder, not a file"),
        (".", "it names a folder, not a file"),
        ("/", "it names a folder, not a file"),
        ("a\0b", "a path has no NUL characters"),
        ("missing/x", "there is no folder missing"),
        ("file/x", "there is no folder file"),
        ("folder", "it is not a regular file, and is never replaced"),
        ("pipe", "it is not a regular file, and is never replaced"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_where_no_file_can_stand_nothing_is_written(tmp_path, monkeypatch, path, sentence, overwrite):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    os.mkfifo("pipe")
    with pytest.raises(StorageError, match=sentence):
        replace_file(path, never, overwrite=overwrite)
    assert sorted(os.listdir()) == ["file", "folder", "pipe"]


@pytest.mark.parametrize("kind", ["file", "link", "broken link"])
def test_what_stands_there_is_seen_before_anything_is_written(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("mine")
    else:
        (tmp_path / "target").write_text("mine")
        path.symlink_to("target" if kind == "link" else "nowhere")
    with pytest.raises(StorageError, match="it exists already; overwrite=True or --overwrite replaces it"):
        replace_file(path, never, overwrite=False)


def test_the_file_is_locked_as_long_as_it_is_written(tmp_path):
    def write(temporary):
        with temporary.open("r+b") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert dead_leftovers(tmp_path, remove=True) == []

    replace_file(tmp_path / "x", write, overwrite=False)


def test_leftovers_of_dead_writers(tmp_path, monkeypatch):
    dead = [".a.0123abcd.part", ".a\nb.0123abcd.part", ".b.c.ffffffff.part"]
    others = [
        ".a.0123abc.part",
        ".a.0123abcde.part",
        ".a.0123ABCD.part",
        "a.0123abcd.part",
        "..0123abcd.part",
        ".a.0123abcd.parts",
    ]
    for name in (*dead, *others):
        (tmp_path / name).touch()
    (tmp_path / ".link.0123abcd.part").symlink_to(others[0])
    everything = sorted(os.listdir(tmp_path))
    assert dead_leftovers(tmp_path, remove=False) == sorted(tmp_path / name for name in dead)
    assert dead_leftovers(tmp_path, "a", remove=False) == [tmp_path / dead[0]]
    assert dead_leftovers(tmp_path, "b.c", remove=False) == [tmp_path / dead[2]]
    assert dead_leftovers(tmp_path, "b-c", remove=False) == []
    assert sorted(os.listdir(tmp_path)) == everything
    with monkeypatch.context() as without:
        without.setattr(atomic.fcntl, "flock", lambda *given: fail())
        assert dead_leftovers(tmp_path, remove=True) == []  # perhaps the work of another machine
    assert sorted(os.listdir(tmp_path)) == everything
    before = set(os.listdir("/proc/self/fd"))
    assert dead_leftovers(tmp_path, remove=True) == sorted(tmp_path / name for name in dead)
    assert set(os.listdir("/proc/self/fd")) == before
    assert sorted(os.listdir(tmp_path)) == sorted(set(everything) - set(dead))


def fail():
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError("lots"), "there is not enough memory"),
        (OSError(errno.ENOSPC, "No space\x1b left"), "No space\\x1b left"),
        (OSError("only words."), "only words"),
        (OSError(), "OSError"),
        (KeyError("name"), "name"),
        (KeyError(), "KeyError"),
        (ValueError("first\nsecond"), "first"),
        (ValueError(""), "ValueError"),
        (ValueError("x" * 500), "x" * 400),
        (ValueError("x" * 399 + "." * 50), "x" * 399),
    ],
)
def test_why_something_failed_is_one_clause(error, reason):
    assert failure_reason(error) == reason


@pytest.mark.parametrize("path", [None, 5, "", b"file.h5", ["file.h5"], Path], ids=repr)
def test_what_is_no_path_is_refused_before_anything_is_written(path):
    with pytest.raises(ModelError, match=r"^path is .*; allowed is the path of a file, as text or pathlib\.Path\.$"):
        replace_file(path, lambda temporary: pytest.fail("it was written"), overwrite=True)
