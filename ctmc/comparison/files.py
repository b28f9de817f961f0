"""The file of a comparison: everything that was measured, raw."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ctmc.comparison.runs import OUTCOMES, ComparedModel, Comparison, Run
from ctmc.errors import StorageError, printable
from ctmc.solution import HISTORY
from ctmc.storage.container import read_container, write_container
from ctmc.storage.models import about

KIND = "comparison"
_MAXIMUM_TEXT = 1 << 30


def save_comparison(path: str | os.PathLike[str], comparison: Comparison) -> None:
    """Write a comparison, in place of an older one.

    The runs and models are JSON in an array of bytes, as a manifest is bounded; the histories stand behind each other.

    Raises
    ------
    StorageError
        If it cannot be written; the old file is whole then.
    """
    histories = [run.history for run in comparison.runs]
    begins = np.concatenate([[0], np.cumsum([len(history) for history in histories])]).astype(np.int64)
    arrays = {"runs": _packed([plain_run(run) for run in comparison.runs])}
    arrays["models"] = _packed([dataclasses.asdict(model) for model in comparison.models.values()])
    arrays["history/begins"] = begins
    for name in HISTORY.names or ():
        arrays[f"history/{name}"] = np.concatenate([np.empty(0, HISTORY)[name], *(each[name] for each in histories)])
    manifest = {
        "title": comparison.title,
        "problem": comparison.problem,
        "question": dict(comparison.question),
        "stopped": comparison.stopped,
        "sessions": [dict(session) for session in comparison.sessions],
        "about": about(),
    }
    write_container(path, KIND, manifest, arrays, overwrite=True)


def load_comparison(path: str | os.PathLike[str]) -> Comparison:
    """Read a comparison.

    Raises
    ------
    StorageError
        No comparison, damaged, or from a newer version.
    """
    file = read_container(path, (KIND,))
    try:
        arrays = file.arrays
        begins = arrays["history/begins"].tolist()
        entries = _unpacked(arrays["runs"])
        history = np.empty(begins[-1], HISTORY)
        for name in HISTORY.names or ():
            history[name] = arrays[f"history/{name}"]
        if len(begins) != len(entries) + 1 or any(a > b for a, b in itertools.pairwise(begins)) or begins[0]:
            raise ValueError("the histories do not belong to the runs")
        history.setflags(write=False)
        runs = tuple(_run(entry, history[begins[k] : begins[k + 1]]) for k, entry in enumerate(entries))
        models = {entry["name"]: ComparedModel(**entry) for entry in _unpacked(arrays["models"])}
        sessions = tuple(dict(session) for session in file.manifest["sessions"])
        for run in runs:
            if run.model not in models or not 0 <= run.session < max(len(sessions), 1):
                raise ValueError(f"a run names the model {run.model!r} of session {run.session}")
        title, problem = str(file.manifest["title"]), str(file.manifest["problem"])
        question = dict(file.manifest.get("question", {}))
        return Comparison(title, problem, models, runs, sessions, bool(file.manifest["stopped"]), question=question)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise StorageError(f"{printable(os.fspath(path))} is not a whole comparison: {printable(error)}.") from error


def plain_run(run: Run) -> dict[str, Any]:
    """Return a run as JSON takes it, without its history."""
    content = {item.name: getattr(run, item.name) for item in dataclasses.fields(run) if item.name != "history"}
    for name, value in content.items():
        if isinstance(value, float) and not math.isfinite(value):
            content[name] = None
    return content


def _run(entry: Mapping[str, Any], history: np.ndarray) -> Run:
    content = dict(entry)
    content["seconds"] = tuple(map(float, content["seconds"]))
    run = Run(**content, history=history)
    if run.status not in OUTCOMES:
        raise ValueError(f"a run has the status {run.status!r}")
    return run


def _packed(content: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(content, allow_nan=False).encode(), dtype=np.uint8)


def _unpacked(array: np.ndarray) -> Any:
    if array.dtype != np.uint8 or array.ndim != 1 or array.size > _MAXIMUM_TEXT:
        raise ValueError("its text is no array of bytes")
    content = json.loads(array.tobytes())
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise ValueError("its text is no list")
    return content
