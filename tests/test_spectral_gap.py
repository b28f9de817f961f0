"""The spectral gap: closed forms, what it says about mixing, and what is refused."""

import json
import math
import sys

import numpy as np
import pytest
from optional_libraries import skipped_without_library
from scipy.linalg import expm

import ctmc
from ctmc.cli import main
from ctmc.spectral_gap import METHODS

MODULE = sys.modules["ctmc.spectral_gap"]

GAPS = [
    pytest.param(name, marks=skipped_without_library(name) if name.startswith("slepc") else ())
    for name in METHODS
    if name != "auto"
]


def queue(arrivals, services, size):
    births, deaths = np.full(size - 1, arrivals), np.full(size - 1, services)
    return ctmc.Generator.from_matrix(np.diag(births, 1) + np.diag(deaths, -1))


@pytest.mark.parametrize("method", GAPS)
@pytest.mark.parametrize(("arrivals", "services", "size"), [(1.0, 2.0, 40), (3.0, 2.0, 25), (1.0, 1.0, 16)])
def test_queues_with_a_limit(method, arrivals, services, size):
    """The eigenvalues are -(a + s) + 2 sqrt(a s) cos(k pi / size)."""
    found = ctmc.spectral_gap(queue(arrivals, services, size), method=method)
    exact = arrivals + services - 2 * math.sqrt(arrivals * services) * math.cos(math.pi / size)
    assert found.gap == pytest.approx(exact, abs=1e-9)
    assert found.eigenvalue.imag == 0
    assert found.relaxation_time == pytest.approx(1 / exact, rel=1e-7)
    assert (found.checked is None) == (method == "dense")


@pytest.mark.parametrize("method", GAPS)
def test_rings_have_complex_ones(method):
    """The eigenvalues of a ring are rate (exp(2 pi i k / n) - 1)."""
    ring = ctmc.Generator.from_matrix(3.0 * np.roll(np.eye(12), 1, axis=1))
    found = ctmc.spectral_gap(ring, method=method)
    exact = 3.0 * (np.exp(2j * np.pi / 12) - 1)
    assert abs(found.eigenvalue - exact) < 1e-12
    q = ring.to_scipy().toarray()
    assert np.abs(found.vector @ q - exact * found.vector).sum() < 1e-11


@pytest.mark.parametrize("method", GAPS[1:])
def test_more_states_than_are_looked_at_at_once(method):
    """With one choice the queues are independent, and the slower one has the gap."""
    rates, arrivals = [1.0, 1.5], 0.6
    model = ctmc.build("supermarket", service_rates=rates, arrival_rate=2 * arrivals, choices=1, capacity=29)
    found = ctmc.spectral_gap(model, method=method)
    exact = min(arrivals + rate - 2 * math.sqrt(arrivals * rate) * math.cos(math.pi / 30) for rate in rates)
    assert found.checked is None
    assert found.gap == pytest.approx(exact, abs=1e-8)


def test_transient_states_count():
    """What is left of the start may be in states that are left for ever."""
    chain = ctmc.Generator.from_matrix([[0, 0.125, 0], [0, 0, 1.0], [0, 2.0, 0]])
    assert ctmc.spectral_gap(chain).gap == pytest.approx(0.125, abs=1e-14)


@pytest.mark.parametrize("seed", [3, 4, 5])
@pytest.mark.parametrize("distance", [0.05, 0.25, 0.45])
def test_no_chain_mixes_before(seed, distance):
    """Some start is farther from the long run than the distance just before the time that is given from below."""
    rng = np.random.default_rng(seed)
    rates = rng.random((9, 9)) ** 6
    np.fill_diagonal(rates, 0)
    chain = ctmc.Generator.from_matrix(rates)
    time = 0.999 * ctmc.spectral_gap(chain).mixing_time(distance)
    pi = ctmc.solve(ctmc.Stationary(chain), "gth").value
    apart = np.abs(expm(chain.to_scipy().toarray() * time) - pi).sum(axis=1).max() / 2
    assert distance < apart


def test_a_wrong_eigenvalue_of_small_residual_is_told(monkeypatch):
    """The third eigenvalue has a small residual, too; the dense solver knows better."""
    chain = queue(1.0, 2.0, 12)
    values, vectors = np.linalg.eig(chain.to_scipy().toarray().T)
    third = np.argsort(-values.real)[2]
    monkeypatch.setattr(MODULE, "_arnoldi", lambda model, tolerance: (complex(values[third]), vectors[:, third]))
    with pytest.raises(ctmc.SolveError, match="away from that of a dense solver"):
        ctmc.spectral_gap(chain, method="arnoldi")


def test_what_is_not_accurate_is_told(monkeypatch):
    chain = queue(1.0, 2.0, 12)
    wrong = (complex(-0.2), np.ones(12))
    monkeypatch.setattr(MODULE, "_dense", lambda model: wrong)
    with pytest.raises(ctmc.SolveError, match=r"residual .* of the eigenvalue -0.2"):
        ctmc.spectral_gap(chain)
    monkeypatch.setattr(MODULE, "_RESTARTS", 1)
    monkeypatch.setattr(MODULE, "_VECTORS", 4)
    with pytest.raises(ctmc.SolveError, match="found no second eigenvalue"):
        ctmc.spectral_gap(queue(1.0, 1.0, 800), method="arnoldi")


TWO_CLASSES = [[0, 1.0, 1.0], [0, 0, 0], [0, 0, 0]]
REFUSED = [
    (lambda: ctmc.QBD.from_blocks([[0.3]], [[-1.3]], [[1.0]]), {}, ctmc.ModelError, "model is a QBD"),
    (lambda: ctmc.Generator.from_matrix([[0.0]]), {}, ctmc.ModelError, "one state"),
    (lambda: ctmc.Generator.from_matrix(TWO_CLASSES), {}, ctmc.ReducibleError, "2 recurrent classes"),
    (lambda: queue(1.0, 2.0, 9), {"method": "lanczos"}, ctmc.UnknownNameError, "lanczos"),
    (lambda: queue(1.0, 2.0, 4), {"method": "arnoldi"}, ctmc.ModelError, "5 states"),
]


@pytest.mark.parametrize(("model", "options", "kind", "sentence"), REFUSED)
def test_what_has_no_gap_is_refused(model, options, kind, sentence):
    with pytest.raises(kind, match=sentence):
        ctmc.spectral_gap(model(), **options)


@pytest.mark.parametrize("distance", [0, 0.5, 1, -0.1, math.nan, True, "0.2"])
def test_distances_that_say_nothing(distance):
    with pytest.raises(ctmc.ModelError, match="distance is"):
        ctmc.spectral_gap(queue(1.0, 2.0, 3)).mixing_time(distance)


def test_without_the_library(monkeypatch):
    monkeypatch.setattr("ctmc.registry.missing_library", lambda kind: "needs slepc4py")
    with pytest.raises(ctmc.PluginError, match="needs slepc4py"):
        ctmc.spectral_gap(queue(1.0, 2.0, 9), method="slepc_krylov_schur")


def test_command_line(tmp_path, capsys):
    path = tmp_path / "queue.h5"
    ctmc.save(path, queue(1.0, 2.0, 10))
    assert main(["info", str(path), "--spectral-gap", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["spectral_gap"]
    assert found["spectral_gap"] == pytest.approx(3 - 2 * math.sqrt(2) * math.cos(math.pi / 10), abs=1e-12)
    assert found["mixing_time_at_least"] == pytest.approx(math.log(2) * found["relaxation_time"])
    assert main(["info", str(path), "--spectral-gap"]) == 0
    assert "relaxation time" in capsys.readouterr().out
    assert main(["info", str(path)]) == 0
    assert "relaxation time" not in capsys.readouterr().out
