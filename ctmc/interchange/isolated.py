"""Reading a file in a child process: whatever the file makes a parser do, it costs a bounded process and one sentence.

The child is a fresh interpreter that does not look into the current folder.  It parses the file under limits on memory and
processor time, and hands the model back through a file of our own format, which is verified like any other.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctmc.errors import CTMCError, ModelError, StorageError, printable
from ctmc.model.memory import format_size, limited_memory, memory_limit
from ctmc.storage import load, save
from ctmc.storage.atomic import failure_reason

if TYPE_CHECKING:
    from ctmc.model.generator import Generator
    from ctmc.model.qbd import QBD

TIME_LIMIT = 3600.0
"""Seconds after which a child is ended."""
_WORKING_BYTES = 512 * 1024**2  # what parsers and the stored file need besides the model

# -I keeps the current folder, PYTHONPATH and the user's packages out; what the parent has found elsewhere comes last.
_LAUNCH = """
import importlib.util, json, os, sys
request = json.load(sys.stdin)
sys.path += request["paths"]
found = importlib.util.find_spec("ctmc")
if found is None or os.path.realpath(found.origin) != request["package"]:
    sys.path.insert(0, request["home"])
from ctmc.interchange.isolated import serve
serve(request)
"""


def read(
    module: str, path: str | os.PathLike[str], *, time_limit: float = TIME_LIMIT, **options: Any
) -> Generator | QBD:
    """Read a model with ``module.read(path, **options)`` in a child process.

    Parameters
    ----------
    module : str
        Such as ``"ctmc.interchange.umb"``.
    path : path-like
    time_limit : float
        Seconds, of the clock and of the processor.
    **options
        Passed on; plain values only.

    Raises
    ------
    StorageError
        The file cannot be read, or the child died, ran out of memory or out of time.
    ModelError
        What the file holds is no chain.

    Examples
    --------
    >>> from ctmc.interchange import scipy_npz
    >>> from ctmc.model.generator import Generator
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = scipy_npz.write(f"{folder}/queue.npz", Generator.from_matrix([[-1, 1], [2, -2]]))
    ...     read("ctmc.interchange.scipy_npz", f"{folder}/queue.npz").uniformization_rate
    2.0
    """
    package = Path(__file__).resolve().parent.parent / "__init__.py"
    here = os.getcwd()
    limit = memory_limit()
    with tempfile.TemporaryDirectory(prefix="ctmc-") as folder:
        request = {
            "module": module,
            "path": os.fspath(path),
            "options": options,
            "folder": folder,
            "memory": limit,
            "seconds": time_limit,
            "package": str(package),
            "home": str(package.parent.parent),
            "paths": [entry for entry in sys.path if os.path.isabs(entry) and entry != here],
        }
        code = _run(path, request, time_limit)
        answer = _answer(Path(folder) / "answer.json")
        if answer is None:
            raise StorageError(f"{printable(os.fspath(path))} cannot be read: {_death(code, limit, time_limit)}.")
        if answer.get("error") is not None:
            kind = ModelError if answer["error"] == "ModelError" else StorageError
            raise kind(str(answer.get("message")))
        model = load(Path(folder) / "model.h5")
    return model


def serve(request: Mapping[str, Any]) -> None:
    """Answer a request in the child: parse, and store the model or the sentence about what is wrong."""
    folder, answer = Path(request["folder"]), {}
    module = importlib.import_module(request["module"])
    _limit(int(request["memory"]) + _WORKING_BYTES, float(request["seconds"]))
    try:
        with limited_memory(int(request["memory"])):
            save(folder / "model.h5", module.read(request["path"], **request["options"]))
    except CTMCError as error:
        answer = {"error": "ModelError" if isinstance(error, ModelError) else "StorageError", "message": str(error)}
    except MemoryError:
        size = format_size(request["memory"])
        answer = {
            "error": "StorageError",
            "message": f"{printable(request['path'])} cannot be read: it needs more than the memory limit of {size}; "
            "raise --memory-limit.",
        }
    except Exception as error:  # parsers fail in many ways on damaged files; the child's failure is a sentence
        reason = f"{type(error).__name__}: {failure_reason(error)}"
        answer = {
            "error": "StorageError",
            "message": f"{printable(request['path'])} cannot be read: it is damaged ({reason}).",
        }
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


def _limit(memory: int, seconds: float) -> None:
    """Bound what this process may take from here on.

    RLIMIT_DATA counts memory that is private and can be written; address space, which compiled loops and BLAS reserve in
    plenty, is not limited.
    """
    import psutil

    used = getattr(psutil.Process().memory_info(), "data", 0)
    for name, soft in ((resource.RLIMIT_DATA, used + memory), (resource.RLIMIT_CPU, int(seconds) + 1)):
        hard = resource.getrlimit(name)[1]
        with contextlib.suppress(ValueError, OSError):  # a lower limit that is there already stays
            resource.setrlimit(name, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _run(path: str | os.PathLike[str], request: Mapping[str, Any], time_limit: float) -> int | None:
    """Run the child and return its exit code, None if its time ran out."""
    one = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", _LAUNCH],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **one},
        start_new_session=True,
    )
    try:
        child.communicate(json.dumps(request).encode(), timeout=time_limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    return child.returncode


def _answer(path: Path) -> dict[str, Any] | None:
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def _death(code: int | None, memory: int, seconds: float) -> str:
    """Return why there is no answer."""
    if code is None or code == -24:  # SIGXCPU
        return f"reading it takes more than {seconds:g} seconds"
    if code == -9:
        return f"the process that read it was killed, as happens when memory runs out (limit {format_size(memory)})"
    return f"the process that read it died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
