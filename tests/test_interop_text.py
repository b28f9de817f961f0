"""DRN and explicit files between Storm and us: the same long-run averages and rewards over time, by other people's code."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

import ctmc
from ctmc.interchange import drn, storm

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
stem, kind = sys.argv[1:3]
if kind == "drn":
    model = stormpy.build_model_from_drn(stem + ".drn")
else:
    model = stormpy.build_model_from_explicit(
        stem + ".tra", stem + ".lab", state_rewards=stem + ".level.state.rew", transition_rewards=stem + ".level.trans.rew"
    )
environment = developer.EnvironmentBuilder.build_environment()
found = {}
for text in sys.argv[3:]:
    formula = stormpy.parse_properties(text)[0]
    result = stormpy.model_checking(model, formula, only_initial_states=True, environment=environment)
    found[text] = result.get_value(model.initial_states[0])
stormpy.io.export_to_drn(model, stem + "_storm.drn")
json.dump([model.nr_states, model.nr_transitions, found], open(stem + ".json", "w"))
"""


def supermarket():
    return ctmc.build(
        "supermarket", service_rates=[1.0, 1.5, 2.0], arrival_rate=3.0, choices=2, capacity=6, selection="tandem",
        sampling="with_replacement",
    )  # fmt: skip


def tandem():
    return ctmc.build("tandem_network", service_rates=[2.0, 1.5], arrival_rate=1.2, capacity=[4, 3])


def fork_join():
    return ctmc.build("fork_join", service_rates=[1.2, 1.0], tasks=2, arrival_rate=0.6, thresholds=[1, 3]).truncate(8)


def plain(model):
    """Return the model with a label and a reward of states and of leaving them."""
    level = model.space.states(np.arange(model.size)).sum(axis=1)
    paid = np.linspace(0.5, 2, model.size)
    return ctmc.Generator(
        model.space, model.expanded, initial=ctmc.model.distribution.distribution(model.space, np.eye(1, model.size)[0]),
        labels={"busy": level > level.mean()},
        rewards={"level": ctmc.Reward(level.astype(float), impulse=paid[model.sources])},
    )  # fmt: skip


def from_storm(stem, kind, *properties):
    """Return the sizes that Storm finds in the files with a stem, and its answers."""
    done = subprocess.run(
        [sys.executable, "-c", STORM, stem, kind, *properties], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(stem.with_suffix(".json").read_text())


@needs_storm
@pytest.mark.parametrize("kind", ["drn", "explicit"])
@pytest.mark.parametrize("build", [supermarket, tandem, fork_join])
def test_long_run_averages(tmp_path, build, kind):
    model = plain(build())
    if kind == "drn":
        drn.write(tmp_path / "model.drn", model)
    else:
        storm.write(tmp_path / "model.tra", model)
    average, reward = 'LRA=? [ "busy" ]', 'R{"level"}=? [ LRA ]' if kind == "drn" else "R=? [ LRA ]"
    states, transitions, theirs = from_storm(tmp_path / "model", kind, average, reward)
    assert (states, transitions) == (model.size, model.entries)
    answer = ctmc.solve(ctmc.Stationary(model, tolerance=1e-12))
    assert theirs[average] == pytest.approx(answer.value[model.labels["busy"]].sum(), rel=1e-9)
    assert theirs[reward] == pytest.approx(answer.expected("level"), rel=1e-9)


@needs_storm
def test_drn_of_storm(tmp_path):
    """What Storm writes, with few digits, is the same chain to these digits, also where nothing leaves a state."""
    model = plain(tandem())
    drn.write(tmp_path / "model.drn", model)
    from_storm(tmp_path / "model", "drn")
    back = ctmc.read(tmp_path / "model_storm.drn")
    np.testing.assert_array_equal(back.indptr, model.indptr)
    np.testing.assert_array_equal(back.sources, model.sources)
    np.testing.assert_allclose(back.rates, model.rates, rtol=1e-5)
    np.testing.assert_array_equal(back.labels["busy"], model.labels["busy"])
    assert back.initial.positions.tolist() == [0]
    np.testing.assert_allclose(back.rewards["level"].rate, model.rewards["level"].rate, rtol=1e-5)
    np.testing.assert_allclose(back.rewards["level"].impulse, model.rewards["level"].impulse, rtol=1e-5)


@needs_storm
@pytest.mark.parametrize("kind", ["drn", "explicit"])
def test_absorbing_states(tmp_path, kind):
    """A state that nothing leaves, first in the middle and then at the end, where nothing enters it either."""
    for number, matrix in enumerate(([[-1.5, 1, 0.5], [0, 0, 0], [2, 0, -2]], [[-1, 1, 0], [3, -3, 0], [0, 0, 0]])):
        stem = tmp_path / f"model{number}"
        model = ctmc.Generator.from_matrix(
            matrix, initial=0, labels={"one": np.array([False, True, False])},
            rewards={"level": ctmc.Reward(np.array([1.0, 2.0, 3.0]), impulse=np.array([0.25, 0.5, 0.25])[: 3 - number])},
        )  # fmt: skip
        (drn if kind == "drn" else storm).write(stem.with_suffix(".drn" if kind == "drn" else ".tra"), model)
        within, average = 'P=? [ F<=0.7 "one" ]', 'LRA=? [ "one" ]'
        states, _, theirs = from_storm(stem, kind, within, average)
        assert states == 3
        reach = ctmc.solve(ctmc.Transient(stopped(model), times=[0.7], tolerance=1e-12)).value[-1][1]
        assert theirs[within] == pytest.approx(reach, rel=1e-8)
        assert theirs[average] == pytest.approx(1.0 if number == 0 else 0.25, rel=1e-9)


def stopped(model):
    """Return the chain that stays in state 1."""
    matrix = model.to_scipy().toarray()
    matrix[1] = 0
    return ctmc.Generator.from_matrix(matrix, initial=0)
