"""What a question asks, in plain values: two answers can stand for each other only where these agree.

With the model's content hash they are the identity of an answer: the problem with all that it asks, the certificate, the solver
with all its options, and the version of the project, since a release may answer better.  Versions of libraries, the number of
threads and the machine do not count: the certificate does.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.model.recipe import source_hash
from ctmc.storage.manifest import canonical_json

HASH_DIGITS = 10
"""Of a question's hash in the name of a solution."""


def question_of(problem: Any, solver: Any, *, certificate: str = "defect") -> dict[str, Any]:
    """Return what is asked of a model, as JSON would give it back.

    Parameters
    ----------
    problem : Stationary, Transient, AccumulatedReward, DiscountedReward or FirstPassage
    solver : Solver, or str
        A solver object, or text that tells it with its options.
    certificate : str
        'defect' or 'strict'.

    Returns
    -------
    dict
        `problem`, `tolerance`, `certificate`, `solver`, `version`, and of a solver that is none of ours the hash of its `source`; what the problem has of `initial` (a digest), `times`,
        `reward`, `moments`, `discount`, `target`, `avoid`; `functions`: for conditions that are functions, the hash of their
        source.

    Examples
    --------
    >>> from ctmc.problem import Stationary
    >>> queue = registry.build("birth_death", births=[1.0], deaths=[2.0])
    >>> asked = question_of(Stationary(queue, tolerance=1e-9), registry.make_solver("gth"))
    >>> asked["problem"], asked["tolerance"], asked["solver"]
    ('stationary', 1e-09, 'gth')
    """
    asked: dict[str, Any] = {
        "problem": registry.problem_name(type(problem)),
        "tolerance": float(problem.tolerance),
        "certificate": certificate,
        "solver": solver if isinstance(solver, str) else solver_text(solver),
        "version": project_version(),
    }
    if not isinstance(solver, str) and type(solver).__module__.partition(".")[0] != "solvers":
        asked["source"] = _module_hash(type(solver).__module__)
    initial = getattr(problem, "initial", None)
    if initial is not None:
        content = b"".join(np.ascontiguousarray(part).tobytes() for part in (initial.positions, initial.probabilities))
        asked["initial"] = hashlib.sha256(content).hexdigest()
    if hasattr(problem, "times"):
        asked["times"] = [float(time) for time in problem.times]
    if getattr(problem, "reward", None) is not None:
        asked["reward"] = list(problem.reward)
    for name, kind in (("moments", int), ("discount", float)):
        if hasattr(problem, name):
            asked[name] = kind(getattr(problem, name))
    functions: dict[str, str] = {}
    for name in ("target", "avoid"):
        given = getattr(problem, name, None)
        if given is not None:
            asked[name] = given if isinstance(given, str) else str(getattr(given, "__name__", type(given).__name__))
            functions |= {} if isinstance(given, str) else {name: source_hash(given)}
    return asked | ({"functions": functions} if functions else {})


def can_be_found(question: Mapping[str, Any]) -> bool:
    """Return whether an answer to a question may be used again: every function has a source to compare."""
    return all(question.get("functions", {}).values())


def question_hash(question: Mapping[str, Any]) -> str:
    """Return SHA-256 of a question, 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(dict(question))).hexdigest()


def solver_text(solver: Any) -> str:
    """Return a solver as a study writes it: its name, with the options that are not at their default.

    Examples
    --------
    >>> solver_text(registry.make_solver("gmres(restart=50)"))
    'gmres(restart=50)'
    """
    options = [
        f"{item.name}={getattr(solver, item.name)!r}"
        for item in dataclasses.fields(solver)
        if getattr(solver, item.name) != item.default
    ]
    return registry.solver_name(solver) + (f"({', '.join(options)})" if options else "")


def differences(question: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the parts in which two questions differ, in the order of their names.

    Examples
    --------
    >>> differences({"tolerance": 1e-9, "moments": 1}, {"tolerance": 1e-6, "moments": 1})
    ['tolerance']
    """
    return [name for name in sorted({*question, *other}) if question.get(name) != other.get(name)]


@functools.cache
def project_version() -> str:
    """Return the version of the project as it is installed."""
    try:
        return importlib.metadata.version("ctmc-lab")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _module_hash(name: str) -> str:
    file = getattr(sys.modules.get(name), "__file__", None)
    try:
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()[:HASH_DIGITS]
    except OSError:
        return "unknown"
