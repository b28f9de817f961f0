"""Reading: in part, within a limit of memory, with errors of the disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import container_examples
import numpy as np
import pytest
from container_examples import KIND, MANIFEST, ROOT, Countdown, damage_array, refusal, small_arrays

from ctmc.errors import StorageError
from ctmc.storage import pool
from ctmc.storage.container import read_container, write_container

small = container_examples.small
pytestmark = pytest.mark.timeout(180)  # damaged files have made HDF5 loop


def test_only_some_arrays(small: Path) -> None:
    damage_array(small)
    assert read_container(small, [KIND], only=()).arrays == {}
    assert read_container(small, [KIND], only=()).manifest == MANIFEST
    found = read_container(small, [KIND], only=["states", "rates/indptr", "states"])
    assert list(found.arrays) == ["rates/indptr", "states"]
    with pytest.raises(StorageError, match=r"small\.h5: slab 0 of the array 'rates/data' is damaged \(its checksum"):
        read_container(small, [KIND], only=["rates/data"])
    for name in ("nothing", "manifest", "rates"):
        with pytest.raises(StorageError, match=f"it has no array '{name}'"):
            read_container(small, [KIND], only=[name])


def test_memory_limit_comes_before_any_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.h5"
    write_container(path, KIND, {}, {"zeros": np.zeros(2_000_000)})
    with pytest.raises(StorageError, match="need 16,000,000 bytes, more than the memory limit of 15,999,999"):
        read_container(path, [KIND], memory_limit=15_999_999)
    assert read_container(path, [KIND], memory_limit=16_000_000).arrays["zeros"].size == 2_000_000
    monkeypatch.setattr("ctmc.model.memory.memory_limit", lambda: 10)
    with pytest.raises(StorageError, match="memory limit of 10;"):
        read_container(path, [KIND])
    assert read_container(path, [KIND], only=()).arrays == {}


def test_failing_allocation_is_a_sentence(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    arrays = small_arrays()
    monkeypatch.setattr(np, "empty", fail)
    with pytest.raises(StorageError, match="there is not enough memory"):
        read_container(small, [KIND])
    with pytest.raises(StorageError, match="there is not enough memory"):
        write_container(small, KIND, {}, arrays, overwrite=True)
    assert os.listdir(small.parent) == ["small.h5"]


def test_progress(tmp_path: Path) -> None:
    arrays = {"a": np.zeros(2_000_000), "b": np.zeros(7, dtype=np.uint8), "c": np.empty(0)}
    written: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []
    write_container(tmp_path / "file.h5", KIND, {}, arrays, progress=lambda *news: written.append(news))
    read_container(tmp_path / "file.h5", [KIND], progress=lambda *news: read.append(news))
    assert written == read
    assert [done for done, _ in read] == sorted({done for done, _ in read})
    assert read[-1] == (16_000_007, 16_000_007)
    assert len(read) == 5


def test_little_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "worker_count", lambda: 3)
    begun = []
    results = pool.in_order(lambda item: begun.append(item) or item, iter(range(1_000)))
    assert [next(results) for _ in range(10)] == list(range(10))
    time.sleep(0.05)
    assert len(begun) <= 10 + 2 * 3 + 1
    results.close()


def test_threads_follow_the_limit() -> None:
    from ctmc.threads import limited_threads

    with limited_threads(1):
        assert pool.worker_count() == 1
    assert 1 <= pool.worker_count() <= 8


def test_kinds(small: Path) -> None:
    with pytest.raises(StorageError, match=r"small\.h5: it holds a 'example'; wanted is 'generator' or 'qbd'"):
        read_container(small, ["generator", "qbd"])


def test_read_error_is_a_sentence(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment in range(1, 200):
        countdown = Countdown(os.pread, moment, OSError(errno.EIO, os.strerror(errno.EIO)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", countdown)
            sentence = refusal(small)
        if not countdown.fired:
            break
        assert sentence == f"Cannot read {small}: Input/output error."
    assert moment >= 10
    assert sentence is None


@pytest.mark.parametrize("moment", range(1, 8))
def test_process_ends_well_after_a_read_error(small: Path, moment: int) -> None:
    """HDF5 gives up a file whose beginning it cannot read only at the end of the process, and dies over it."""
    script = f"""
    import errno, os
    from ctmc.errors import StorageError
    from ctmc.storage.container import read_container
    real, count = os.pread, 0
    def fail(*arguments):
        global count
        count += 1
        if count == {moment}:
            raise OSError(errno.EIO, "broken")
        return real(*arguments)
    os.pread = fail
    try:
        read_container({str(small)!r}, {[KIND]!r})
    except StorageError:
        print("refused")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "refused\n")
