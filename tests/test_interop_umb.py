"""UMB files between Storm and us: the same long-run averages and rewards over time, found by other people's code."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

import ctmc

needs_storm = pytest.mark.skipif(
    importlib.util.find_spec("stormpy") is None,
    reason="stormpy is not installed; pip install 'ctmc-lab[interop]' brings it",
)

# Storm's settings are global and its warnings go to standard output, so it has a process of its own.
STORM = """
import json, sys
import stormpy, stormpy.io
source, answer, target = sys.argv[1:4]
model = stormpy.build_model_from_umb(source)
environment = stormpy.Environment()
environment.solver_environment.set_force_exact(False)
environment.solver_environment.native_solver_environment.precision = stormpy.Rational("1e-12")
found = {}
for text in sys.argv[4:]:
    formula = stormpy.parse_properties(text)[0]
    found[text] = stormpy.model_checking(model, formula, only_initial_states=True, environment=environment).at(model.initial_states[0])
stormpy.io.export_to_umb(model, target)
json.dump(found, open(answer, "w"))
"""

MODELS = {
    "supermarket": lambda: ctmc.build(
        "supermarket", service_rates=[1.0, 1.5, 2.0], arrival_rate=3.0, choices=2, capacity=6, selection="tandem",
        sampling="with_replacement",
    ),
    "tandem": lambda: ctmc.build("tandem", **TANDEM),
    "fork_join": lambda: ctmc.build("fork_join", **FORK_JOIN).truncate(12),
}  # fmt: skip


def storm(model, folder, *properties):
    """Return what Storm finds from the UMB file of a model, and the UMB file that Storm then writes."""
    ctmc.write(folder / "ours.umb", model)
    done = subprocess.run(
        [sys.executable, "-c", STORM, folder / "ours.umb", folder / "answer.json", folder / "storms.umb", *properties],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "answer.json").read_text()), folder / "storms.umb"
