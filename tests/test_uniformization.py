"""Uniformization: against matrix exponentials and closed forms, its bound, its products, and the Poisson weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
from scipy.linalg import expm
from transient_gallery import exact as reference
from transient_gallery import random_rates

import ctmc
from ctmc.errors import ModelError
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.model.poisson_weights import poisson_weights
from ctmc.problem import Transient
from ctmc.solution import Status
from solvers.transient.uniformization import Uniformization


def generator(rates):
    return np.asarray(rates) - np.diag(np.sum(rates, axis=1))


def solved(rates, times, initial=(0,), **options):
    return ctmc.solve(Transient(Generator.from_matrix(rates), initial, times, **options), "uniformization")


# ---- right answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(401, 407))
def test_against_the_matrix_exponential(seed):
    rng = np.random.default_rng(seed)
    rates = random_rates(rng, 12)
    begin = rng.dirichlet(np.ones(12))
    times = [0.0, 0.01, 0.7, 3.0, 20.0]
    solution = solved(rates, times, begin, tolerance=1e-13)
    for row, time in zip(solution.value, times, strict=True):
        np.testing.assert_allclose(row, begin @ expm(generator(rates) * time), atol=1e-12, rtol=0)
    assert solution.converged
    assert solution.error_bound < 1e-12


def test_queue_over_time_in_closed_form():
    """M/M/1/K: the eigenvalues and eigenvectors of its generator are known (Takacs 1962; trigonometric)."""
    load, capacity = 0.8, 9
    rates = np.diag(np.full(capacity, load), 1) + np.diag(np.ones(capacity), -1)
    n = np.arange(capacity + 1)
    times = np.array([0.3, 2.0, 15.0, 200.0])
    weights = load**n / (load**n).sum()
    k = np.arange(1, capacity + 1)[:, None]
    angle = np.pi * k / (capacity + 1)
    decay = 1 + load - 2 * math.sqrt(load) * np.cos(angle[:, 0])
    shape = math.sqrt(load) * np.sin(angle * (n + 1)) - np.sin(angle * n)
    begin = 3
    exact = [
        weights
        + 2
        / (capacity + 1)
        * load ** ((n - begin) / 2)
        * ((np.exp(-decay * time) / decay)[:, None] * shape * shape[:, [begin]]).sum(axis=0)
        for time in times
    ]
    found = solved(rates, times, (begin,), tolerance=1e-13)
    np.testing.assert_allclose(found.value, exact, atol=1e-12)


def test_late_times_give_the_stationary_distribution():
    rng = np.random.default_rng(433)
    rates = random_rates(rng, 15) + np.roll(np.eye(15), 1, axis=1)
    np.fill_diagonal(rates, 0)
    solution = solved(rates, [1e3, 1e6])
    np.testing.assert_allclose(solution.value, np.tile(gth(rates), (2, 1)), atol=1e-10)
    assert solution.products < 2000


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_two_states_from_hardly_any_to_very_many_events(scale):
    """p(t) = b / (a + b) + a / (a + b) exp(-(a + b) t), with the largest rate x t from 1e-8 to 1e8."""
    a, b = 1.0, 0.25
    solution = solved([[0, a], [b, 0]], [scale])
    decay = -math.expm1(-(a + b) * scale)
    moved = a / (a + b) * decay
    assert solution.value[0, 1] == pytest.approx(moved, rel=1e-10)
    assert solution.value[0].sum() == pytest.approx(1, abs=1e-12)
    assert solution.error_bound <= max(1e-10, 8 * 2.0**-52 * (1 + scale))
    assert solution.products < 500


def test_integrals_are_right_to_the_last_time():
    """A ring of two whose powers alternate for long: the mass still to come is no bound for what the integrals lack."""
    rates = [[0, 1.0], [1.0, 0]]
    for time in (200.0, 400.0, 600.0):
        assert solved(rates, [time]).defect < 1e-11


def test_slow_and_fast_together():
    """Rate x time 1e5 with a slow mode of rate 1e-4: there is no steady state to be seen early."""
    a, b = 1e-4, 2e-4
    rates = np.zeros((4, 4))
    rates[0, 1] = rates[1, 0] = 10.0
    rates[2, 3] = rates[3, 2] = 10.0
    rates[0, 2], rates[1, 3], rates[2, 0], rates[3, 1] = a, a, b, b
    times = [1.0, 1e3, 1e4]
    solution = solved(rates, times)
    exact = a / (a + b) * -np.expm1(-(a + b) * np.array(times))
    np.testing.assert_allclose(solution.value[:, 2:].sum(axis=1), exact, rtol=1e-9)


@pytest.mark.parametrize("size", [2, 5, 12])
def test_periodic_ring(size):
    """Round a ring with one rate: the position is a Poisson number modulo its length."""
    rates = np.roll(np.eye(size), 1, axis=1)
    for time in (0.5, 7.0, 400.0):
        events = np.arange(2000)
        exact = np.bincount(events % size, weights=scipy.stats.poisson.pmf(events, time), minlength=size)
        np.testing.assert_allclose(solved(rates, [time]).value[0], exact, atol=1e-11)


def test_absorbing_chains():
    """Through k states in a row at one rate: Erlang distributions of the time of absorption."""
    rates = np.diag(np.full(4, 3.0), 1)
    times = np.array([0.1, 1.0, 5.0, 1000.0])
    solution = solved(rates, times)
    np.testing.assert_allclose(solution.value[:, -1], scipy.stats.gamma.cdf(times, 4, scale=1 / 3), atol=1e-11)
    np.testing.assert_allclose(solution.value[:, 1], 3 * times * np.exp(-3 * times), atol=1e-11)


def test_chain_that_never_moves():
    solution = solved(np.zeros((3, 3)), [0.0, 5.0, 1e6], (1,))
    np.testing.assert_allclose(solution.value, [[0, 1, 0]] * 3, rtol=1e-15)
    assert solution.defect < 1e-15


def test_time_zero_is_the_start():
    begin = np.array([0.25, 0.5, 0.25])
    solution = solved(np.ones((3, 3)) - np.eye(3), [0.0], begin)
    assert solution.value.tolist() == [begin.tolist()]
    assert solution.products == 1  # of the certificate


# ---- times ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "times",
    [[2.0, 1.0], [1.0, 1.0], [-1.0], [-1e-300, 1.0], [math.nan], [1.0, math.inf], [], [[1.0]], "soon", None, [1j]],
)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_bad_times(times):
    with pytest.raises(ModelError, match=r"times (is|has) .*; allowed are one or more finite times >= 0, ascending"):
        Transient(Generator.from_matrix([[0, 1.0], [1.0, 0]]), initial=(0,), times=times)


def test_one_time_and_times_are_read_only():
    problem = Transient(Generator.from_matrix([[0, 1.0], [1.0, 0]]), initial=(0,), times=2)
    assert problem.times.tolist() == [2.0]
    given = np.array([1.0, 2.0])
    problem = Transient(problem.model, initial=(0,), times=given)
    given[0] = 9
    assert problem.times.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        problem.times[0] = 0


def test_missing_start():
    with pytest.raises(ModelError, match="initial is missing and the model has none"):
        Transient(Generator.from_matrix([[0, 1.0], [1.0, 0]]), times=[1.0])


def test_a_grid_of_times_is_as_good_as_each_by_itself_and_shares_products():
    rng = np.random.default_rng(443)
    rates = random_rates(rng, 10)
    times = np.sort(rng.uniform(0, 60, 50))
    together = solved(rates, times)
    for row, time in zip(together.value, times, strict=True):
        np.testing.assert_allclose(row, solved(rates, [time]).value[0], atol=2e-11)
    last = solved(rates, times[-1:])
    # a product for each time in the certificate; eight times share a pass
    assert together.products - 50 < 3 * (last.products - 1)
    early = solved(rates, [0.1, 0.2, times[-1]])
    assert abs((early.products - 3) - (last.products - 1)) <= 8


# ---- limits, statuses, options ------------------------------------------------------------------------------------------------


def test_iteration_limit_and_history():
    model = Generator.from_matrix(np.diag(np.ones(400), 1) + np.diag(np.ones(400), -1))
    problem = Transient(model, initial=(0,), times=[50.0])
    starved = ctmc.solve(problem, Uniformization(max_iterations=20), check=False)
    assert starved.status is Status.ITERATION_LIMIT
    assert 20 <= starved.iterations < 28
    whole = ctmc.solve(problem, "uniformization")
    assert whole.iterations == whole.products - 1  # all but the certificate's
    assert (np.diff(whole.history["iteration"]) > 0).all()
    assert whole.history["defect"][-1] <= 1e-10


def test_steps_are_counted_also_where_the_steady_state_is_seen():
    solution = solved([[0, 1.0], [0.25, 0]], [1e6])
    assert solution.iterations == solution.products - 1  # all but the certificate's


def test_monitor_and_time_limit():
    problem = Transient(
        Generator.from_matrix(np.diag(np.ones(40), 1) + np.diag(np.ones(40), -1)), initial=(0,), times=[1e4]
    )
    stopped = ctmc.solve(problem, "uniformization", monitor=lambda iteration, defect: iteration >= 16, check=False)
    assert stopped.status is Status.STOPPED
    assert 16 <= stopped.iterations < 24
    assert ctmc.solve(problem, time_limit=1e-9, check=False).status is Status.TIME_LIMIT


@pytest.mark.parametrize("factor", [1, 1.0, 0.5, 100, math.nan, math.inf, "2", True])
def test_bad_rate_factor(factor):
    with pytest.raises(ModelError, match=r"rate_factor is .*; allowed is a number between 1 and 100"):
        Uniformization(rate_factor=factor)


@pytest.mark.parametrize("factor", [1.0001, 1.5, 4.0])
def test_any_rate_factor_gives_the_same(factor):
    rates = random_rates(np.random.default_rng(449), 8)
    found = ctmc.solve(
        Transient(Generator.from_matrix(rates), (0,), [0.5, 9.0]), Uniformization(rate_factor=factor)
    ).value
    np.testing.assert_allclose(found, solved(rates, [0.5, 9.0]).value, atol=2e-11)


def test_memory_is_asked_for_first():
    problem = Transient(Generator.from_matrix(np.ones((50, 50)) - np.eye(50)), (0,), np.linspace(0, 1, 1000))
    with ctmc.limited_memory("100KiB"), pytest.raises(ModelError, match="keeping the distributions needs"):
        ctmc.solve(problem)
    with ctmc.limited_memory(problem.model.nbytes + 10 * 1024), pytest.raises(ModelError, match="uniformization needs"):
        ctmc.solve(Transient(problem.model, (0,), problem.times, reward="state"), "uniformization")


@pytest.mark.parametrize("times", [[1e5], [5e4, 1e5]])
def test_sums_of_many_terms_are_compensated(times):
    """A hundred thousand terms that hardly change are rounded the same way again and again."""
    rates = [[0, 1.0, 0, 0], [0.7, 0, 3e-6, 0], [0, 2e-6, 0, 0.9], [0, 0, 1.0, 0]]
    solution = solved(rates, times)
    assert solution.products > 100_000
    assert solution.defect < 2e-11  # 2e-10 without


def test_errors_of_earlier_times_count_at_later_ones():
    model = Generator.from_matrix(random_rates(np.random.default_rng(467), 12) + np.diag(np.ones(11), 1))
    solution = ctmc.solve(Transient(model, (0,), np.linspace(0.5, 6, 32), reward="state"), "uniformization")
    assert (np.diff(solution.error_bound) >= 0).all()
    assert solution.error_bound[-1] > 2 * solution.error_bound[0]  # four groups of times


# ---- the bound -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("decades", [0, 4])
def test_the_reported_bound_holds(tolerance, decades):
    rng = np.random.default_rng(int(-1000 * math.log10(tolerance)) + decades)
    for _ in range(50):
        size = int(rng.integers(2, 9))
        rates = random_rates(rng, size, decades)
        begin = rng.dirichlet(np.ones(size))
        times = np.sort(10 ** rng.uniform(-3, 3, 3))
        solution = solved(rates, times, begin, tolerance=tolerance)
        assert solution.error_bound <= tolerance
        for row, time in zip(solution.value, times, strict=True):
            assert np.abs(row - reference(rates, begin, time)).sum() <= solution.error_bound + 1e-14


def test_the_reference_of_the_bound_is_right():
    rates = np.array([[0, 1.0], [0.25, 0]])
    for time in (1e-3, 2.0, 1e3):
        moved = 0.8 * -math.expm1(-1.25 * time)
        np.testing.assert_allclose(reference(rates, np.array([1.0, 0]), time), [1 - moved, moved], rtol=1e-15, atol=0)


def test_a_false_steady_state_is_not_taken():
    """Two pairs that hardly know each other: after ten events all is still, and after 1e5 it is not."""
    rates = np.zeros((4, 4))
    rates[0, 1] = rates[1, 0] = rates[2, 3] = rates[3, 2] = 1.0
    rates[1, 2] = rates[2, 1] = 1e-5
    solution = solved(rates, [2e4])
    exact = reference(rates, np.array([1.0, 0, 0, 0]), 2e4)
    assert np.abs(solution.value[0] - exact).sum() <= solution.error_bound
    assert 0.05 < exact[2:].sum() < 0.3


# ---- Poisson weights ---------------------------------------------------------------------------------------------------------------


MEANS = [1e-300, 1e-20, 1e-8, 1e-3, 0.5, 1.0, 2.0, 3.7, 25.0, 1e3, 12_345.6, 1e6, 1e8]


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("tolerance", [1e-3, 1e-12, 1e-15])
def test_weights(mean, tolerance):
    found = poisson_weights(mean, tolerance)
    k = found.left + np.arange(len(found.weights))
    assert found.weights.sum() == pytest.approx(1, abs=1e-13)
    assert (found.weights >= 0).all()
    assert np.isfinite(found.weights).all()
    assert found.right == k[-1]
    assert 0 <= found.outside <= tolerance
    outside = scipy.special.pdtr(found.left - 1, mean) if found.left else 0.0
    outside += scipy.special.pdtrc(found.right, mean)
    if mean <= 1e4:  # beyond, scipy's tails of Poisson variables are not better than what is tested
        assert outside <= found.outside * (1 + 1e-9) + 1e-300
        # scaled to sum to 1 over what is kept
        exact = scipy.stats.poisson.pmf(k, mean)
        np.testing.assert_allclose(found.weights, exact / exact.sum(), rtol=2e-11, atol=1e-300)
    # by Bernstein the window is no wider than it must be
    reach = math.log(4 / tolerance)
    assert len(found.weights) <= 2 * (reach + math.sqrt(2 * mean * reach)) + 6


@pytest.mark.parametrize("mean", MEANS)
def test_moments_of_the_weights(mean):
    """With next to nothing cut off, mean and variance are both the mean."""
    found = poisson_weights(mean, 1e-18 * min(1.0, mean))
    k = found.left + np.arange(len(found.weights), dtype=np.float64)
    center = math.fsum(found.weights * (k - mean))
    assert abs(center) <= 1e-13 * max(mean, 1e-300) + 1e-320
    assert math.fsum(found.weights * (k - mean) ** 2) == pytest.approx(mean, rel=1e-11)


@pytest.mark.parametrize("mean", [1e5, 1e7, 1e8])
def test_tails_of_large_means_stay_below_a_closed_bound(mean):
    """Chernoff: P(N >= k) <= exp(-mean) (e mean / k)^k, and likewise below."""
    found = poisson_weights(mean, 1e-12)
    for k in (found.left - 1, found.right + 1):
        exponent = k - mean - k * math.log(k / mean)
        assert exponent < math.log(1e-9)
        assert found.outside < 1e-12
    shifted = poisson_weights(mean, 1e-6)
    assert found.left < shifted.left < mean < shifted.right < found.right
    # what the narrow window leaves out is within its bound, measured with the weights of the wide one
    kept = found.weights[shifted.left - found.left : shifted.right - found.left + 1].sum()
    assert 1e-8 < 1 - kept <= shifted.outside + 1e-12


def test_no_events():
    found = poisson_weights(0.0, 1e-10)
    assert (found.left, found.right, found.weights.tolist(), found.outside) == (0, 0, [1.0], 0.0)
    assert found.survival.tolist() == [0.0]


@pytest.mark.parametrize("mean", [0.3, 7.0, 2e4])
def test_survival(mean):
    found = poisson_weights(mean, 1e-14)
    assert found.survival.shape == found.weights.shape
    for place in (0, len(found.weights) // 2, len(found.weights) - 1):
        assert found.survival[place] == pytest.approx(found.weights[place + 1 :].sum(), rel=1e-12, abs=1e-300)
    k = found.left + np.arange(len(found.weights))
    np.testing.assert_allclose(found.survival, scipy.stats.poisson.sf(k, mean), atol=2e-13)
