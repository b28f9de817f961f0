"""What is no regular file is refused, and any file name works."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import container_examples
import pytest
from container_examples import KIND, MANIFEST, small_arrays
from hostile_files import PATHS

from ctmc.errors import StorageError
from ctmc.storage.atomic import replace_file
from ctmc.storage.container import read_container, write_container

small = container_examples.small
pytestmark = pytest.mark.timeout(180)  # damaged files have made HDF5 loop


@pytest.mark.parametrize("name", PATHS)
def test_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = Path("file.h5")
    make, phrase = PATHS[name]
    make(path)
    with pytest.raises(StorageError, match=f"^Cannot read file.h5: .*{phrase}"):
        read_container(path, [KIND])


def test_unreadable_file(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=r"small\.h5: Permission denied\.$"):
        read_container(small, [KIND])


def test_pipe_that_takes_the_place_of_a_file(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regular = os.stat(small)
    small.unlink()
    os.mkfifo(small)
    monkeypatch.setattr(os, "stat", lambda *_, **__: regular)
    with pytest.raises(StorageError, match="it is a pipe"):
        read_container(small, [KIND])


def test_nul_in_path() -> None:
    with pytest.raises(StorageError, match=r"a\\x00b"):
        read_container("a\0b", [KIND])
    with pytest.raises(StorageError, match=r"a\\x00b"):
        write_container("a\0b", KIND, {}, {})
    with pytest.raises(StorageError, match=r"a\\x00b"):
        replace_file("a\0b", Path.touch, overwrite=True)


NAMES = {
    "new line": b"a\nb.h5",
    "escape": b"a\x1b[31m.h5",
    "markup": b"<script>.h5",
    "255 bytes": b"x" * 255,
    "255 bytes of UTF-8": ("µ" * 127).encode() + b"x",
    "not UTF-8": b"a\xff\xfe.h5",
    "leading hyphen": b"-o.h5",
    "spaces": b" a b ",
    "quotes": b"'\"`$(x).h5",
}
assert len(NAMES) >= 9


@pytest.mark.parametrize("name", NAMES)
def test_file_name_works_and_is_shown_escaped(tmp_path: Path, name: str) -> None:
    path = tmp_path / os.fsdecode(NAMES[name])
    digest = write_container(path, KIND, MANIFEST, small_arrays())
    assert write_container(path, KIND, {}, {}, overwrite=True) != digest
    assert os.listdir(os.fsencode(tmp_path)) == [NAMES[name]]
    assert read_container(path, [KIND]).manifest == {}
    path.write_bytes(b"spoilt")
    with pytest.raises(StorageError) as caught:
        read_container(path, [KIND])
    assert str(caught.value).isprintable()
    assert str(caught.value).encode()  # no lone surrogates either
