"""Foreign and hostile files are refused: at once, in one sentence, and without a look at other files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from container_examples import KIND, MANIFEST, ROOT, small_arrays
from hostile_files import HOSTILE, dcpl_with, edit, low_level, virtual, watched, with_file

from ctmc.errors import StorageError
from ctmc.storage.container import read_container, write_container

pytestmark = pytest.mark.timeout(180)  # damaged files have made HDF5 loop


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.h5"
    write_container(path, KIND, MANIFEST, small_arrays() | {"empty": np.empty(0)})
    change, phrase = HOSTILE[name]
    change(path)
    with watched(path.with_name("decoy.h5")) as opened:
        start = time.process_time()
        with pytest.raises(StorageError) as caught:
            read_container(path, [KIND])
        assert time.process_time() - start < 2
        assert not opened()
    sentence = str(caught.value)
    assert sentence.startswith(f"Cannot read {path}: ")
    assert sentence.isprintable()
    assert len(sentence) < 600
    assert phrase in sentence


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_the_watch_would_notice(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    write_container(path, KIND, MANIFEST, small_arrays())
    with_file(virtual("other"))(path)
    with watched(path.with_name("decoy.h5")) as opened:
        with h5py.File(path) as file:
            assert file["rates/data"][()].tolist() == [0, 1, 2]
        assert opened()


def test_honest_file_that_shrinks_a_lot(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    zeros = np.zeros(50_000_000, dtype=np.uint8)
    write_container(path, KIND, {}, {"zeros": zeros, "more": np.zeros(5_000_000)})
    assert path.stat().st_size < 90_000_000 / 150
    assert not read_container(path, [KIND]).arrays["zeros"].any()


PLUGIN = """
#include <stdio.h>
#include <stdlib.h>
typedef struct { int version; int id; unsigned encoder, decoder; const char *name;
                 void *can, *set; size_t (*filter)(); } h5z;
static size_t run() { return 0; }
static h5z entry = {1, 32099, 1, 1, "marker", 0, 0, run};
__attribute__((constructor)) static void mark() {
    FILE *file = fopen(getenv("MARKER"), "w"); if (file) fclose(file); }
int H5PLget_plugin_type(void) { return 0; }
const void *H5PLget_plugin_info(void) { return &entry; }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a compiler")
def test_filter_plugin_is_not_loaded(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (tmp_path / "plugin.c").write_text(PLUGIN)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", plugins / "libmarker.so", tmp_path / "plugin.c"], check=True)
    path = tmp_path / "file.h5"
    write_container(path, KIND, MANIFEST, small_arrays())
    with edit(path) as file:
        del file["rates/data"]
        low_level(file, "rates/data", 900, dcpl_with((32099, ()))).write_direct_chunk((0,), b"x" * 100)
    environment = os.environ | {
        "HDF5_PLUGIN_PATH": str(plugins),
        "MARKER": str(tmp_path / "marker"),
        "PYTHONPATH": str(ROOT),
    }
    ours = f"from ctmc.storage.container import read_container; read_container({str(path)!r}, ['example'])"
    theirs = f"import h5py; h5py.File({str(path)!r})['rates/data'][()]"
    for script, loaded, message in ((ours, False, "filters [32099]"), (theirs, True, "")):
        result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert result.returncode == 1
        assert message in result.stderr
        assert (tmp_path / "marker").exists() == loaded
