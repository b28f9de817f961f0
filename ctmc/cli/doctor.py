"""``ctmc doctor``: what is installed, what shadows what, and what cannot work."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from ctmc.cli.app import Command, output_of
from ctmc.errors import CTMCError, printable

Check = tuple[str, Any, bool]
"""What was looked at, what was found, and whether it is all right."""
RANKS_SECONDS = 30.0
"""How long the libraries of MPI may take to load, in processes of their own, before they count as hanging."""
# Nothing of this starts MPI: the modules are loaded, but not initialized.
_RANKS = {
    "mpi4py": """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
found = f"{mpi4py.__version__}, {MPI.Get_library_version().split(',')[0].strip()}"
""",
    "petsc4py": """
import petsc4py.lib
from numpy import dtype
PETSc = petsc4py.lib.ImportPETSc()
version = ".".join(map(str, PETSc.Sys.getVersion()))
found = f"{petsc4py.__version__}, PETSc {version}, indices of {8 * dtype(PETSc.IntType).itemsize} bits"
if dtype(PETSc.ScalarType) != "float64":
    raise ImportError(f"this PETSc is configured with {dtype(PETSc.ScalarType).name}; allowed is float64")
""",
    "slepc4py": """
import slepc4py.lib
SLEPc = slepc4py.lib.ImportSLEPc()
found = f"{slepc4py.__version__}, SLEPc {'.'.join(map(str, SLEPc.Sys.getVersion()))}"
""",
}
_DISTRIBUTIONS = {"scikits.umfpack": "scikit-umfpack"}
"""Names on the package index that differ from the module's."""


def _doctor() -> int:
    output = output_of(click.get_current_context())
    checks: list[Check] = []
    for group in (_python, _libraries, _ranks, _threads, _memory, _cache, _plugins):
        try:
            checks += group()
        except Exception as error:
            checks.append((group.__name__.strip("_"), f"{type(error).__name__}: {printable(error)}", False))
    good = all(fine for _, _, fine in checks)
    if output.json:
        output.document(
            {"ok": good, "checks": [{"name": name, "value": value, "ok": fine} for name, value, fine in checks]}
        )
    else:
        output.table(
            ("check", "fine", "found"), [(name, "yes" if fine else "NO", value) for name, value, fine in checks]
        )
    if not good:
        output.line(
            "ctmc: something is wrong; see the lines marked NO." if not output.json else "ctmc: something is wrong."
        )
    return 0 if good else 1


def _python() -> list[Check]:
    import ctmc

    return [
        ("ctmc", f"{ctmc.__version__} in {Path(ctmc.__file__).parent}", True),
        ("Python", f"{platform.python_version()} ({sys.executable})", sys.version_info >= (3, 11)),
        ("platform", platform.platform(), True),
    ]


def _libraries() -> list[Check]:
    from importlib.metadata import PackageNotFoundError, version

    needed = (
        "numpy",
        "scipy",
        "numba",
        "networkx",
        "h5py",
        "click",
        "rich",
        "psutil",
        "threadpoolctl",
        "filelock",
        "platformdirs",
        "jinja2",
    )
    checks = [_version(name, partial(version, name)) for name in needed]
    checks.append(_version("HDF5", _hdf5))
    for name, extra, without in (
        ("matplotlib", "plots", "no pictures"),
        ("isal", "fast", "chunks of files go through zlib"),
        *_solver_libraries(),
    ):
        try:
            text = f"{version(name)} (extra {extra})"
        except PackageNotFoundError:
            text = f"not installed (extra {extra}): {without}"
        checks.append((f"{name} (optional)", text, True))
    return checks


def _ranks() -> list[Check]:
    """Look for MPI, PETSc and SLEPc, each in a process of its own: what fails to load may hang, or end its process."""
    program = shutil.which("mpirun") or shutil.which("mpiexec")
    text = program or "not installed: conda install -c conda-forge openmpi, or apt install openmpi-bin"
    checks: list[Check] = [("mpirun (optional)", text, True)]
    children = {}
    for name, code in _RANKS.items():
        if importlib.util.find_spec(name) is None:
            text = (
                f"not installed (extra distributed): conda install -c conda-forge {name}, or as docs/cluster.md tells"
            )
            checks.append((f"{name} (optional)", text, True))
            continue
        children[name] = subprocess.Popen(
            [sys.executable, "-P", "-c", f"{code}\nimport json; print(json.dumps(found))"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    end = time.monotonic() + RANKS_SECONDS
    for name, child in children.items():
        text, fine = _told(child, max(end - time.monotonic(), 0))
        checks.append((f"{name} (optional)", text, fine))
    return checks


def _told(child: subprocess.Popen[bytes], seconds: float) -> tuple[str, bool]:
    """Return what a child found, or why it found nothing, and which of the two it is."""
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return f"cannot be imported: it does not load within {RANKS_SECONDS:g} seconds", False
    with contextlib.suppress(ValueError, IndexError):
        return printable(str(json.loads(out.splitlines()[-1]))), True
    lines = err.decode("utf-8", "replace").strip().splitlines()
    return f"cannot be imported: {printable(lines[-1] if lines else f'exit code {child.returncode}')}", False


def _solver_libraries() -> list[tuple[str, str, str]]:
    """Return (distribution, extra, what is missing without it) of each solver that stands on an optional library."""
    from ctmc import registry

    rows = []
    for name in registry.solver_names():
        with contextlib.suppress(CTMCError):
            module, extra = getattr(registry.solver_class(name), "library", ("", ""))
            if module and module not in _RANKS:
                rows.append((_DISTRIBUTIONS.get(module, module), extra, f"no solver {name}"))
    return rows


def _hdf5() -> str:
    import h5py

    return str(h5py.version.hdf5_version)


def _version(name: str, find: Callable[[], str]) -> Check:
    try:
        return name, find(), True
    except Exception as error:
        return name, f"{type(error).__name__}: {printable(error)}", False


def _threads() -> list[Check]:
    import numba
    import numpy as np
    import threadpoolctl

    from ctmc.threads import usable_threads

    np.ones((2, 2)) @ np.ones((2, 2))  # loads BLAS
    in_numba = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # set when numba starts
    checks: list[Check] = [("threads", f"{usable_threads()} usable, {in_numba} in Numba", True)]

    @numba.njit(parallel=True)
    def total(values: Any) -> float:
        found = 0.0
        for k in numba.prange(values.shape[0]):
            found += values[k]
        return found

    right = total(np.ones(1000)) == 1000.0
    layer = numba.threading_layer()  # type: ignore[attr-defined]  # numba does not export it
    checks.append(("threading layer", layer, right))
    for pool in threadpoolctl.threadpool_info():
        if pool.get("user_api") == "blas":
            text = f"{pool.get('internal_api')} {pool.get('version')}, {pool.get('num_threads')} threads"
            checks.append(("BLAS", text, True))
    return checks


def _memory() -> list[Check]:
    import psutil

    from ctmc.model.memory import format_size, memory_limit

    memory = psutil.virtual_memory()
    text = f"{format_size(memory.available)} free of {format_size(memory.total)}; limit {format_size(memory_limit())}"
    return [("memory", text, memory.available > 200 * 1024**2)]


def _cache() -> list[Check]:
    import platformdirs

    from ctmc.registry import HOME

    chosen = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(chosen)] if chosen else [HOME / "ctmc" / "model" / "__pycache__", _numba_user_cache()]
    found = next((place for place in places if _writable(place)), None)
    text = (
        str(found) if found else f"none of {', '.join(map(str, places))} is writable: kernels are compiled in each run"
    )
    checks: list[Check] = [("cache of compiled kernels", text, found is not None)]
    own = Path(platformdirs.user_cache_dir("ctmc"))
    fine = _writable(own)
    checks.append(
        ("cache of ctmc", str(own) if fine else f"{own} is not writable; {tempfile.gettempdir()} is used", True)
    )
    return checks


def _numba_user_cache() -> Path:
    from numba.misc.appdirs import AppDirs

    return Path(AppDirs(appname="numba", appauthor=False).user_cache_dir)  # type: ignore[no-untyped-call]  # has no types


def _writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, or in the next one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _plugins() -> list[Check]:
    from ctmc import registry

    checks: list[Check] = []
    groups: tuple[tuple[str, Any, Any], ...] = (
        ("builders", registry.builder_names, registry.builder),
        ("solvers", registry.solver_names, registry.solver_class),
    )
    for kind, names, find in groups:
        try:
            found = names()
        except CTMCError as error:
            checks.append((kind, str(error), False))
            continue
        broken = []
        for name in found:
            try:
                find(name)
            except CTMCError as error:
                broken.append((f"{kind[:-1]} {name}", str(error), False))
        checks.append((kind, f"{len(found)}: {', '.join(found)}", not broken))
        checks += broken
    return checks


command = Command(
    "doctor",
    csv=True,
    callback=_doctor,
    help="Check the installation: versions, threads, memory, caches, shadowed packages, plug-ins that fail to load.  "
    "The exit code is 1 if something is wrong.",
)
