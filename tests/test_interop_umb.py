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
from stormpy import developer
developer.set_from_exploded_string(
    ["--eqsolver", "gmm++", "--gmm++:method", "bicgstab", "--gmm++:precision", "1e-13", "--gmm++:precond", "none",
     "--gmm++:maxiter", "100000", "--lra:detmethod", "distr", "--timebounded:precision", "1e-10"]
)
source, answer, target = sys.argv[1:4]
model = stormpy.build_model_from_umb(source)
environment = developer.EnvironmentBuilder.build_environment()
found = {}
for text in sys.argv[4:]:
    formula = stormpy.parse_properties(text)[0]
    result = stormpy.model_checking(model, formula, only_initial_states=True, environment=environment)
    found[text] = result.get_value(model.initial_states[0])
stormpy.io.export_to_umb(model, target)
json.dump(found, open(answer, "w"))
"""


def supermarket():
    return ctmc.build(
        "supermarket", service_rates=[1.0, 1.5, 2.0], arrival_rate=3.0, choices=2, capacity=6, selection="tandem",
        sampling="with_replacement",
    )  # fmt: skip


def tandem():
    model = ctmc.build("tandem_network", service_rates=[2.0, 1.5], arrival_rate=1.2, capacity=[4, 3])
    return model.replace(initial=[0, 0], labels={"full": model.space.states(np.arange(model.size))[:, 0] == 4})


def fork_join():
    model = ctmc.build("fork_join", service_rates=[1.2, 1.0], tasks=2, arrival_rate=0.6, thresholds=[1, 3]).truncate(8)
    return model.replace(initial=np.eye(1, model.size)[0])


def storm(model, folder, *properties):
    """Return what Storm finds from the UMB file of a model, and the UMB file that Storm then writes."""
    ctmc.write(folder / "ours.umb", model)
    done = subprocess.run(
        [sys.executable, "-c", STORM, folder / "ours.umb", folder / "answer.json", folder / "storms.umb", *properties],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "answer.json").read_text()), folder / "storms.umb"


@needs_storm
@pytest.mark.parametrize("build", [supermarket, tandem, fork_join])
def test_storm_reads_ours_and_we_read_storms(tmp_path, build):
    model = build()
    sizes = model.space.states(np.arange(model.size)).sum(axis=1).astype(float)
    moves = np.arange(model.entries) % 3 == 0
    model = model.replace(rewards={"size": ctmc.Reward(sizes), "moves": ctmc.Reward(None, impulse=moves.astype(float))})
    # Storm 2.0 has no rewards of transitions up to a time (C<=2 fails with "bad optional access")
    properties = ['R{"moves"}=? [ LRA ]', *(f'R{{"size"}}=? [ {what} ]' for what in ("LRA", "C<=2", "I=1.5"))]
    found, path = storm(model, tmp_path, *properties)
    stationary = ctmc.solve(ctmc.Stationary(model, tolerance=1e-12))
    assert found['R{"size"}=? [ LRA ]'] == pytest.approx(stationary.expected("size"), rel=1e-8)
    assert found['R{"moves"}=? [ LRA ]'] == pytest.approx(long_run(model, stationary, moves), rel=1e-8)
    total = ctmc.solve(ctmc.AccumulatedReward(model, reward="size", times=[2.0], initial=model.initial))
    assert found['R{"size"}=? [ C<=2 ]'] == pytest.approx(float(np.ravel(total.value)[0]), rel=1e-6)
    now = ctmc.solve(ctmc.Transient(model, times=[1.5], reward="size"))
    assert found['R{"size"}=? [ I=1.5 ]'] == pytest.approx(float(np.ravel(now.value)[0]), rel=1e-6)
    back = ctmc.read(path)
    difference = abs(back.to_scipy() - model.to_scipy()).max()
    assert difference <= 1e-14 * model.exit_rates.max()
    np.testing.assert_array_equal(back.rewards["size"].rate, sizes)
    np.testing.assert_array_equal(back.initial.positions, model.initial.positions)
    for name, member in model.labels.items():
        np.testing.assert_array_equal(back.labels[name], member)


def long_run(model, solution, moves):
    """What the chosen transitions earn per unit of time, from the stationary distribution alone."""
    return float((solution.value[model.sources] * model.rates)[moves].sum())
