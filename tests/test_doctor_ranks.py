"""What ``ctmc doctor`` says of MPI, PETSc and SLEPc: other packages of these names stand in for them."""

import importlib.util
import json
import time

import psutil
import pytest

from ctmc.cli import doctor, main

MPI4PY = "class rc: initialize = True\n__version__ = '4.9'"
MPI = (
    "from mpi4py import rc\nassert not rc.initialize, 'MPI would start'\n"
    "def Get_library_version(): return 'Some MPI 7.1, of today'"
)
PETSC4PY = "__version__ = '3.99.1'"
PETSC = """
from numpy import int32, float64, complex128
class Sys:
    def getVersion(): return 3, 99, 1
class PETSc:
    Sys, IntType, ScalarType = Sys, int32, float64
def ImportPETSc(): return PETSc
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Put packages, given as texts of their modules, before all others; return a function that does it and asks the doctor."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)

    def found(capsys, modules):
        for name, text in modules.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        code = main(["doctor", "--json"])
        checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
        return code, {
            name: (checks[f"{name} (optional)"]["value"], checks[f"{name} (optional)"]["ok"])
            for name in ("mpirun", "mpi4py", "petsc4py", "slepc4py")
        }

    return found


def test_versions_and_width(packages, capsys):
    modules = {
        "mpi4py/__init__.py": MPI4PY,
        "mpi4py/MPI.py": MPI,
        "petsc4py/__init__.py": PETSC4PY,
        "petsc4py/lib.py": PETSC,
    }
    _, found = packages(capsys, modules)
    assert found["mpi4py"] == ("4.9, Some MPI 7.1", True)
    assert found["petsc4py"] == ("3.99.1, PETSc 3.99.1, indices of 32 bits", True)


COMPLEX = PETSC.replace("Sys, int32, float64", "Sys, int32, complex128")


@pytest.mark.parametrize(
    "said",
    [
        {
            "mpi4py": ("raise OSError('libmpi.so.40 is not there')", "OSError: libmpi.so.40 is not there"),
            "petsc4py": ("import os; os._exit(3)", "exit code 3"),
            "slepc4py": ("import os; os.kill(os.getpid(), 11)", "exit code -11"),
        },
        {
            "mpi4py": ("print('[bold]'); raise ImportError('\\x1b[31m')", r"ImportError: \x1b[31m"),
            "petsc4py": (COMPLEX, "ImportError: this PETSc is configured with complex128; allowed is float64"),
        },
    ],
)
def test_what_cannot_be_imported(packages, capsys, said):
    modules = {f"{name}/__init__.py": PETSC4PY for name in said}
    modules |= {f"{name}/{'MPI' if name == 'mpi4py' else 'lib'}.py": text for name, (text, _) in said.items()}
    modules |= {"mpi4py/__init__.py": MPI4PY}
    code, found = packages(capsys, modules)
    assert {name: found[name] for name in said} == {
        name: (f"cannot be imported: {why}", False) for name, (_, why) in said.items()
    }
    assert code == 1


def test_what_hangs_is_ended_with_what_it_started(packages, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "RANKS_SECONDS", 3.0)
    hangs = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    begin = time.monotonic()
    code, found = packages(capsys, {"mpi4py/__init__.py": hangs})
    assert found["mpi4py"] == ("cannot be imported: it does not load within 3 seconds", False)
    assert code == 1
    assert time.monotonic() - begin < 60
    try:
        orphan = psutil.Process(int((tmp_path / "pid").read_text()))
        psutil.wait_procs([orphan], timeout=10)
        assert orphan.status() == psutil.STATUS_ZOMBIE  # until whoever adopted it looks
    except psutil.NoSuchProcess:
        pass


def test_what_is_not_installed(packages, capsys, monkeypatch):
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in doctor._RANKS else original(name, *more)
    )
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    code, found = packages(capsys, {})
    assert code == 0
    assert found["petsc4py"] == (
        "not installed (extra distributed): conda install -c conda-forge petsc4py, or as docs/cluster.md tells", True
    )  # fmt: skip
    assert found["mpirun"] == ("not installed: conda install -c conda-forge openmpi, or apt install openmpi-bin", True)
