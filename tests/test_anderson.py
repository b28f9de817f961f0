"""Anderson acceleration: its least-squares step against linear algebra, its maps, its safeguards, and the solver."""

from __future__ import annotations

import gc
import math
import tracemalloc

import numpy as np
import pytest

import ctmc
from builders.birth_death import birth_death
from builders.supermarket import supermarket
from builders.tandem_network import tandem_network
from ctmc.certificate import imbalance
from ctmc.errors import ModelError, UnknownNameError
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.problem import Stationary
from ctmc.solution import Status
from ctmc.threads import limited_threads
from ctmc.trace import Trace
from solvers._acceleration import Mixer, StepMap, SweepMap, swift_map, without_zeros
from solvers._aggregation import half_levels
from solvers._reduction import reduction
from solvers.stationary.anderson import MAPS, Anderson

QUEUES = supermarket([1.0, 1.5, 2.0], 3.6, 2, 7, sampling="with_replacement")
RING = Generator.from_matrix(np.roll(np.diag(np.arange(1.0, 10.0)), 1, axis=1))
MODELS = {
    "lattice": QUEUES,
    "coded": QUEUES.coded(),
    "tandem": tandem_network([2.0, 1.5, 3.0], 1.2, total_capacity=7),
    "ring": RING,
    "queue": birth_death([0.9] * 30, [1.0] * 30),
}


def exact(chain):
    return gth(chain.to_scipy().toarray())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("of", MAPS)
def test_every_map_finds_every_state(name, of):
    solution = ctmc.solve(Stationary(MODELS[name]), Anderson(of=of))
    np.testing.assert_allclose(solution.value, exact(MODELS[name]), rtol=1e-6)


@pytest.mark.parametrize("depth", [1, 2, 15])
def test_any_depth(depth):
    solution = ctmc.solve(Stationary(QUEUES), Anderson(depth=depth))
    np.testing.assert_allclose(solution.value, exact(QUEUES), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("of", MAPS)
def test_the_memory_of_any_depth_is_what_was_forecast(of):
    """All of it but the rows, which maps may copy, sorted by color or slab by slab; what a depth takes more, exactly."""
    chain = supermarket([1.0, 1.5, 2.0], 3.6, 2, 15, sampling="with_replacement").written_out()
    problem, rows = Stationary(chain), 24 * chain.entries
    Anderson(of=of).run(problem, Trace(1e-12))  # what is found once about the chain is its own
    peaks, forecasts = [], []
    for depth in (20, 40, 60):
        method = Anderson(of=of, depth=depth)
        forecasts.append(method.memory(method._map(chain).size, chain.entries))
        gc.collect()
        tracemalloc.start()
        try:
            method.run(problem, Trace(1e-12))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert all(peak < forecast + rows for peak, forecast in zip(peaks, forecasts, strict=True))
    np.testing.assert_allclose(np.diff(peaks), np.diff(forecasts), rtol=0.1)  # the rest is least squares


def test_acceleration_pays():
    chain = QUEUES.coded()
    plain = ctmc.solve(Stationary(chain), "power_iteration").iterations
    jumps = ctmc.solve(Stationary(chain), Anderson(of="jump_chain")).iterations
    levels = ctmc.solve(Stationary(chain), Anderson()).iterations
    assert levels < jumps < plain / 10
    assert levels < 90


def test_the_step_is_the_least_squares_one():
    """Four linear steps, and the fifth combination compared with a dense least-squares solution."""
    rng = np.random.default_rng(1009)
    size, depth = 50, 3
    matrix, shift = 0.5 * rng.random((size, size)) / size, rng.random(size)
    weights = 5.0 + 2.0 / 1.0
    mixer = Mixer(size, depth, uniform=weights, relative=0.0, low=0.0, high=np.inf)
    x = rng.random(size)
    iterates, images = [], []
    for _ in range(6):
        image = matrix @ x + shift
        iterates.append(x.copy())
        images.append(image)
        mixer.step(x, image)
        g, f = np.array(images[-depth - 1 :]), np.array(images[-depth - 1 :]) - np.array(iterates[-depth - 1 :])
        expected = g[-1]
        if len(g) > 1:
            best = np.linalg.lstsq(np.diff(f, axis=0).T, f[-1], rcond=None)[0]
            expected = g[-1] - best @ np.diff(g, axis=0)
        np.testing.assert_allclose(x, expected, rtol=1e-5)
    assert mixer.change < 1e-4


def test_relative_weights():
    """With relative weights an element of 1e-12 whose change is large for its size decides, not a large one nearly at rest."""
    scale, rates = np.array([1.0, 1e-12]), np.array([0.9, 0.5])
    mixer = Mixer(2, 1, uniform=0.0, relative=1.0, low=0.5, high=2.0)
    x = scale * np.array([1 + 1e-9, 1 + 1e-4])
    for _ in range(2):
        mixer.step(x, scale + rates * (x - scale))
    assert x[1] == pytest.approx(scale[1], rel=1e-7, abs=0)


def test_limits_of_a_step():
    mixer = Mixer(2, 2, uniform=1.0, relative=0.0, low=0.5, high=2.0)
    x = np.array([1.0, 1.0])
    mixer.step(x, np.array([0.9, 0.9]))
    np.testing.assert_allclose(x, 0.9)
    image = np.array([0.82, 0.805])  # the secant goes far below zero
    mixer.step(x, image)
    assert (x >= 0.5 * image - 1e-15).all()
    assert (x <= 2 * image).all()


def test_the_change_is_infinite_while_there_are_zeros():
    mixer = Mixer(3, 2, uniform=1.0, relative=1.0, low=0.5, high=2.0)
    mixer.step(np.array([1.0, 1e-3, 0.0]), np.array([1.0, 0.0, 0.0]))
    assert mixer.change == math.inf
    mixer.step(np.array([1.0, 1e-3, 0.0]), np.array([1.0, 2e-3, 0.0]))  # the last belongs to no state
    assert mixer.change == 0.5


def test_growth_and_stagnation_begin_anew():
    mixer = Mixer(2, 3, uniform=1.0, relative=0.0, low=0.0, high=np.inf, patience=4)
    for image in ([1.0, 2.0], [1.1, 2.0], [9.0, 5.0]):
        x = np.array([1.0, 1.0])
        mixer.step(x, np.array(image))
    assert x.tolist() == [9.0, 5.0]  # after growth the image itself
    mixer = Mixer(2, 3, uniform=1.0, relative=0.0, low=0.0, high=np.inf, patience=4)
    plain = []
    for k in range(12):
        x = np.array([1.0, 1.0])
        image = np.array([1.5, 1.5 + 0.01 * k])
        mixer.step(x, image)
        plain.append(bool((x == image).all()))
    assert plain[0]
    assert sum(plain[1:]) == 2


@pytest.mark.parametrize("form", ["lattice", "coded"])
def test_the_map_of_steps_tells_the_defect(form):
    chain = MODELS[form]
    fixed_point = swift_map(chain)
    assert isinstance(fixed_point, StepMap)
    x = fixed_point.restrict(np.random.default_rng(1013).random(chain.size))
    image = np.empty_like(x)
    defect = fixed_point.image(x, image)
    pi = fixed_point.expand(x)
    assert defect == pytest.approx(imbalance(chain.forward(pi), pi, chain), rel=1e-12)
    settled = exact(chain)
    x = fixed_point.restrict(settled)
    assert fixed_point.image(x, image) < 1e-14
    np.testing.assert_allclose(fixed_point.expand(image), settled, rtol=1e-12)


def test_chains_without_levels_are_swept():
    assert isinstance(swift_map(MODELS["tandem"]), SweepMap)
    assert isinstance(swift_map(RING), SweepMap)
    assert half_levels(reduction(RING)) is None


def test_sweeps_that_subtract_too_much_are_done_again():
    chain = birth_death([1.0] * 12, [30.0] * 12)
    fixed_point = SweepMap(chain, 1.9, 1, [])
    x = np.full(13, 1 / 13)
    image = np.empty(13)
    fixed_point.image(x, image)
    assert image.min() > 0
    assert image.sum() == pytest.approx(1)


def test_zeros_become_small():
    assert without_zeros(np.array([0.5, 0.25, 0.25])).tolist() == [0.5, 0.25, 0.25]
    np.testing.assert_allclose(
        without_zeros(np.array([1.0, 1e-4, 0.0])), [0.9998900131, 9.998900131e-5, 9.998900131e-6]
    )
    np.testing.assert_allclose(without_zeros(np.array([1.0, 1e-4, -1e-8]))[2], 1e-9, rtol=1e-3)


def test_same_bits_on_any_number_of_threads():
    with limited_threads(1):
        one = ctmc.solve(Stationary(QUEUES), Anderson())
    both = ctmc.solve(Stationary(QUEUES), Anderson())
    assert one.value.tobytes() == both.value.tobytes()


def test_a_start_is_used():
    first = ctmc.solve(Stationary(QUEUES), Anderson())
    again = ctmc.solve(Stationary(QUEUES), Anderson(), start=first.value)
    assert again.iterations == 0
    assert again.products < 8
    delta = np.zeros(QUEUES.size)
    delta[5] = 1.0
    np.testing.assert_allclose(ctmc.solve(Stationary(QUEUES), Anderson(), start=delta).value, first.value, rtol=1e-6)


def test_limits_and_honesty():
    for of in MAPS:
        for limit in (1, 3, 6):
            solution = ctmc.solve(Stationary(QUEUES), Anderson(of=of, max_iterations=limit), check=False)
            assert solution.status is Status.ITERATION_LIMIT
            assert solution.iterations == limit


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[(name, value) for name in ("depth", "max_iterations") for value in (0, -1, 2.5, True, None)],
        *[("polish", value) for value in (-1, 0.5, None)],
        *[("of", value) for value in ("sor", None)],
        *[("relaxation", value) for value in (0, 2, math.nan, "1", None)],
    ],
)
def test_bad_options(option, value):
    with pytest.raises((ModelError, UnknownNameError), match=option):
        Anderson(**{option: value})
