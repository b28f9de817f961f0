"""Who imports whom: the statements of all modules are read, and a forbidden edge fails."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
PACKAGES = ("ctmc", "builders", "solvers")

# Imports go leftwards only.
ROOMS = (
    *("errors", "threads", "cells", "ranks"),
    "model",
    *("problem", "evolution", "equation", "solution", "estimate"),
    *(
        "checkpoint",
        "trace",
        "solver",
        "certificate",
        "witness",
        "over_time",
        "discounted",
        "passage",
        "interval",
        "strict",
    ),
    "registry",
    *("storage", "interchange"),
    *("passage_solution", "resume"),
    *("defaults", "costs", "advise"),
    *(
        "solve",
        "simulation",
        "reach",
        "quasi_stationary",
        "spectral_gap",
        "cases",
        "contract",
        "bias",
        "sensitivity",
        "forecast",
        "scale",
    ),
    *("recheck", "verify"),
    "study",
    "comparison",
    "cli",
    "__main__",
)
MODEL = (
    *(
        "memory",
        "parameters",
        "summary",
        "counting",
        "state_space",
        "transitions",
        *("lattice_runs", "lattice_products", "lattice_rates"),
        "streamed",
        "products",
        "forms",
        "distribution",
        "entries",
        "laws",
    ),
    "random_streams",
    *("reward", "predicate", "communication", "recipe", "carried", "rerating"),
    *(
        "poisson_weights",
        "quantile",
        "m_matrix",
        "m_factors",
        "class_factors",
        "elimination",
        "phase_type",
        "generator",
        "impulses",
        "jump_chain",
        "banded",
        "matrix_geometric",
        "qbd",
        "level_dependent",
    ),
    *("ghosts", "shared", "volume"),
    *(
        "absorption",
        "exchange",
        "shared_exchange",
        "lumpability",
        "period",
        "decay",
        "level_elimination",
        *("sweeps", "multilevel"),
        "structure",
        "levels",
        "traits",
        "stopped",
        "passage_law",
    ),
)
FRONT = ("study", "comparison", "cli", "__main__")
"""Rooms that may take names from `ctmc` itself, which knows everything."""
REPORTS_VERSIONS = "ctmc.cli.doctor"
"""Imports h5py for the version of HDF5; opening a file there is caught all the same."""
NEVER = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
EXECUTES = {"eval", "exec", "compile", "__import__"}


def modules(home: Path) -> dict[str, Path]:
    """Return module name -> file of the three packages."""
    found = {}
    for package in PACKAGES:
        for path in sorted((home / package).rglob("*.py")):
            parts = path.relative_to(home).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def nodes_at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes, bodies of functions included, except what stands under TYPE_CHECKING."""
    yield node
    if isinstance(node, ast.If) and is_type_checking(node.test):
        for child in node.orelse:
            yield from nodes_at_run_time(child)
        return
    for child in ast.iter_child_nodes(node):
        yield from nodes_at_run_time(child)


def imported(module: str, is_package: bool, node: ast.AST, known: set[str]) -> Iterator[str]:
    """Yield the modules that one node imports; `from X import Y` is X.Y where that is a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = module.split(".")
            parts = parts[: len(parts) - node.level + is_package]
            base = ".".join([*parts, *([base] if base else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield inner if inner in known else base
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)


def forbidden(module: str, target: str) -> str | None:
    """Return why a module may not import a target, or None."""
    own, other = module.split("."), target.split(".")
    if other[0] == "h5py" and own[:2] != ["ctmc", "storage"] and module != REPORTS_VERSIONS:
        return "only ctmc.storage opens HDF5 files"
    if other[0] in NEVER:
        return "nothing is pickled"
    if other[0] not in PACKAGES:
        return None
    if own[0] != "ctmc":
        if other[0] == "ctmc" or (other[0] == own[0] and (len(other) == 1 or other[1].startswith("_"))):
            return None
        family = 2 if own[0] == "builders" else 3
        if len(other) == 3 and other[:2] == own[:2] and other[2].startswith("_"):
            return None  # what the methods of a topic share
        if own[:family] == other[:family] or (own[0] == "solvers" and other == own[:2]):
            return None
        return f"{own[0]} import ctmc only, and their own parts"
    if other[0] != "ctmc":
        return f"ctmc finds {other[0]} through the registry"
    if len(own) == 1:
        return "ctmc loads its parts when they are asked for"
    if len(other) == 1:
        return None if own[1] in FRONT else "ctmc itself stands to the right"
    for room in (own[1], other[1]):
        if room not in ROOMS:
            return f"{room} has no place in the order of rooms"
    if ROOMS.index(other[1]) > ROOMS.index(own[1]):
        return f"{other[1]} stands to the right of {own[1]}"
    if own[1] == other[1] == "model" and len(own) > 2 and len(other) > 2:
        for part in (own[2], other[2]):
            if part not in MODEL:
                return f"{part} has no place in the order of ctmc.model"
        if MODEL.index(other[2]) > MODEL.index(own[2]):
            return f"model.{other[2]} stands to the right of model.{own[2]}"
    return None


def violations(home: Path) -> list[str]:
    """Return a sentence for each forbidden import, and each use of what executes text or unpickles."""
    found = []
    files = modules(home)
    for module, path in files.items():
        for node in nodes_at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(home)}:{getattr(node, 'lineno', 0)}"
            for target in imported(module, path.name == "__init__.py", node, set(files)):
                why = forbidden(module, target)
                if why:
                    found.append(f"{where} imports {target}: {why}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EXECUTES:
                found.append(f"{where} calls {node.func.id}")
            opens = isinstance(node, ast.Attribute) and ast.unparse(node) in ("h5py.File", "h5py.h5f.open")
            if opens and not module.startswith("ctmc.storage"):
                found.append(f"{where} opens an HDF5 file: only ctmc.storage does")
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and getattr(node.value, "value", 1):
                found.append(f"{where} allows pickles")
    return found


def test_no_forbidden_import():
    assert violations(HOME) == []


def test_all_rooms_are_seen():
    """The floor against an empty sweep."""
    found = modules(HOME)
    assert {"ctmc", "ctmc.errors", "ctmc.model", "ctmc.model.generator", "builders.reachable", "ctmc.solve"} <= set(
        found
    )
    assert {f"ctmc.model.{part}" for part in MODEL} <= set(found)


CASES = [
    ("ctmc/errors.py", "import ctmc.problem", "problem stands to the right of errors"),
    ("ctmc/errors.py", "def f():\n    from ctmc.model.reward import Reward", "model stands to the right of errors"),
    ("ctmc/model/reward.py", "from ctmc.model.generator import Generator", "model.generator stands to the right"),
    ("ctmc/model/reward.py", "from ctmc.model import generator", "model.generator stands to the right"),
    ("ctmc/model/reward.py", "from . import generator", "model.generator stands to the right"),
    ("ctmc/model/reward.py", "from .generator import Generator", "model.generator stands to the right"),
    ("ctmc/model/reward.py", "from ..problem import Stationary", "problem stands to the right of model"),
    ("ctmc/model/reward.py", "from ctmc import problem", "problem stands to the right of model"),
    ("ctmc/model/reward.py", "import ctmc", "ctmc itself stands to the right"),
    ("ctmc/model/novel.py", "from ctmc.model import reward", "novel has no place"),
    ("ctmc/novel.py", "from ctmc.model import reward", "novel has no place"),
    ("ctmc/problem.py", "import builders.reachable", "through the registry"),
    ("ctmc/problem.py", "import importlib\nimportlib.import_module('solvers.stationary.gth')", "through the registry"),
    ("ctmc/problem.py", "try:\n    import h5py\nexcept ImportError:\n    pass", "only ctmc.storage"),
    ("ctmc/problem.py", "class A:\n    import pickle", "nothing is pickled"),
    ("ctmc/problem.py", "if not TYPE_CHECKING:\n    import ctmc.solution", "solution stands to the right of problem"),
    ("ctmc/problem.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import ctmc.solution", "solution stands to the right"),
    ("ctmc/__init__.py", "from ctmc.errors import CTMCError", "when they are asked for"),
    ("builders/reachable.py", "from solvers.stationary.gth import Gth", "ctmc only"),
    ("builders/reachable.py", "from builders.tandem import tandem", "ctmc only"),
    ("builders/reachable.py", "import h5py", "only ctmc.storage"),
    ("solvers/stationary/gth.py", "import builders", "ctmc only"),
    ("solvers/stationary/gth.py", "from solvers.qbd.cyclic import Cyclic", "ctmc only"),
    ("builders/reachable.py", "eval('1')", "calls eval"),
    ("solvers/stationary/gth.py", "def f():\n    exec('1')", "calls exec"),
    ("ctmc/problem.py", "__import__('os')", "calls __import__"),
    ("ctmc/cli/doctor.py", "import h5py\nh5py.File('x')", "only ctmc.storage does"),
    ("ctmc/cli/app.py", "import h5py", "only ctmc.storage"),
    ("ctmc/storage/gate.py", "import numpy\nnumpy.load('x', allow_pickle=True)", "allows pickles"),
]


@pytest.mark.parametrize(("file", "text", "why"), CASES)
def test_the_checker_catches(tmp_path, file, text, why):
    write(tmp_path, file, text)
    found = violations(tmp_path)
    assert len(found) == 1
    assert why in found[0]
    assert file in found[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ctmc/problem.py", "if TYPE_CHECKING:\n    from ctmc.solution import Solution"),
        ("ctmc/problem.py", "import typing\nif typing.TYPE_CHECKING:\n    import ctmc.solution"),
        (
            "ctmc/solution.py",
            "import numpy, os\nfrom ctmc.problem import Stationary\nfrom ctmc.errors import ModelError",
        ),
        ("ctmc/model/generator.py", "from ctmc.model import reward\nfrom ctmc.threads import limited_threads"),
        ("ctmc/storage/gate.py", "import h5py\nfrom ctmc.storage import atomic"),
        ("ctmc/cli/app.py", "def f():\n    import ctmc\n    from ctmc.study import run"),
        (
            "builders/family/__init__.py",
            "from builders.family.part import f\nfrom builders._helper import g\nimport ctmc",
        ),
        ("solvers/qbd/cyclic.py", "from solvers._options import f\nimport ctmc.model.qbd"),
        ("ctmc/registry.py", "import ast\nast.literal_eval('1')\nast.parse('1', mode='eval')"),
    ],
)
def test_the_checker_lets_pass(tmp_path, file, text):
    write(tmp_path, file, text)
    assert violations(tmp_path) == []


def write(home, file, text):
    for name in ("ctmc/problem.py", "ctmc/solution.py", "ctmc/model/generator.py", "ctmc/model/reward.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("", encoding="utf-8")
    (home / file).parent.mkdir(parents=True, exist_ok=True)
    (home / file).write_text(text + "\n", encoding="utf-8")


@pytest.mark.parametrize("module", ["ctmc", "ctmc.cli", "ctmc.errors"])
def test_light_imports(module):
    """`ctmc --help` must not wait for the numerical libraries."""
    if (
        not (HOME / module.replace(".", "/")).with_suffix(".py").exists()
        and not (HOME / module.replace(".", "/") / "__init__.py").exists()
    ):
        pytest.skip(f"{module} is not there")
    heavy = ("numpy", "scipy", "numba", "h5py", "networkx", "matplotlib", "psutil")
    code = f"import sys, {module}; print(*[name for name in {heavy!r} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == []


def test_attributes_of_the_package():
    import ctmc

    for name in ctmc.__all__:
        assert name in dir(ctmc)
    with pytest.raises(AttributeError, match="no attribute 'solv'"):
        ctmc.solv  # noqa: B018


LONG = {
    "ctmc/certificate.py": "one verdict after another, each with what it looks at and what it may miss",
    "ctmc/model/generator.py": "one class, half of it docstrings; what it does stands in the rooms that it imports",
    "ctmc/model/qbd.py": "one class with its levels; the other half is what a model of it carries",
    "ctmc/model/state_space.py": "one interface with its two kinds, read side by side",
    "ctmc/solution.py": "one class, what an answer can be asked",
    "tests/test_arguments.py": "one table",
    "tests/test_certificate_limits.py": "one verdict after another, each just inside and just outside of its limit",
    "tests/test_checkpoints.py": "one subject, with the child processes that it needs",
    "tests/test_parallel.py": "one subject for three kinds of workers",
    "tests/test_relay.py": "one conversation, and everything that goes through it",
}
"""Files of more than 500 lines, with the reason."""


def test_no_file_is_long_without_a_reason():
    folders = (*PACKAGES, "tests", "benchmarks", "docs", ".ci")
    found = {
        str(path.relative_to(HOME))
        for folder in folders
        for path in (HOME / folder).rglob("*.py")
        if path.read_bytes().count(b"\n") > 500
    }
    assert found == LONG.keys()
