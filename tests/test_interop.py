"""Our stationary distributions against Storm's, found by other people's code from the same rates."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ctmc

METHODS = Path(__file__).parent.parent / "benchmarks" / "stationary_methods.py"

# Storm's settings are global and its warnings go to standard output, so it has a process of its own.
STORM = """
import importlib.util, json, sys
import numpy as np
import ctmc
spec = importlib.util.spec_from_file_location("stationary_methods", sys.argv[1])
methods = importlib.util.module_from_spec(spec)
spec.loader.exec_module(methods)
np.save(sys.argv[3], methods.storm(ctmc.load(sys.argv[2]))["x"])
"""

needs_storm = pytest.mark.skipif(
    importlib.util.find_spec("stormpy") is None,
    reason="stormpy is not installed; pip install 'ctmc-lab[interop]' brings it",
)


def storm(model, folder):
    """Return Storm's stationary distribution: gmm++'s bicgstab with precision 1e-13."""
    ctmc.save(folder / "model.h5", model, overwrite=True)
    done = subprocess.run(
        [sys.executable, "-c", STORM, METHODS, folder / "model.h5", folder / "storm.npy"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return np.load(folder / "storm.npy")


def supermarket(servers, capacity, load):
    rates = np.linspace(1, 2, servers)
    return ctmc.build(
        "supermarket", service_rates=rates, arrival_rate=load * rates.sum(), choices=2, capacity=capacity,
        selection="tandem", sampling="with_replacement",
    )  # fmt: skip


@needs_storm
@pytest.mark.parametrize("load", [0.5, 0.95])
def test_small_chains(tmp_path, load):
    model = supermarket(3, 8, load)
    ours = ctmc.solve(ctmc.Stationary(model), "gth").value
    np.testing.assert_allclose(storm(model, tmp_path), ours, rtol=0, atol=1e-11)


@needs_storm
def test_cyclic_and_unsymmetric(tmp_path):
    """Rates over four decades round a ring with shortcuts, nothing of the supermarket's structure."""
    rng = np.random.default_rng(61)
    n = 400
    sources = np.concatenate([np.arange(n), rng.integers(0, n, 3 * n)])
    targets = np.concatenate([(np.arange(n) + 1) % n, rng.integers(0, n, 3 * n)])
    rates = 10.0 ** rng.uniform(-2, 2, len(sources))
    space = ctmc.model.state_space.Lattice((n - 1,))
    model = ctmc.Generator.from_transitions(sources, targets, rates, space)
    ours = ctmc.solve(ctmc.Stationary(model), "gth").value
    np.testing.assert_allclose(storm(model, tmp_path), ours, rtol=0, atol=1e-10)


@needs_storm
def test_supermarket_of_four_servers(tmp_path):
    """194,481 states, by the default solver."""
    model = supermarket(4, 20, 0.8)
    solution = ctmc.solve(ctmc.Stationary(model, tolerance=1e-12))
    theirs = storm(model, tmp_path)
    assert np.abs(solution.value - theirs).sum() < 1e-9
    jobs = model.space.states(np.arange(model.size)).sum(axis=1)
    assert solution.expected("jobs") == pytest.approx(theirs @ jobs, rel=1e-9)
    likely = solution.value > 1e-6
    np.testing.assert_allclose(theirs[likely], solution.value[likely], rtol=1e-6)
