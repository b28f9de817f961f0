"""Chebyshev expansion: coefficients, closed forms, products that grow like a square root, and a bound that holds."""

import math
import tomllib
from importlib import resources

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import expm
from scipy.special import ive

import ctmc
from builders.supermarket import supermarket
from ctmc.model.generator import Generator
from ctmc.problem import AccumulatedReward, Transient
from ctmc.solution import Status
from solvers.transient.chebyshev import Chebyshev, coefficients
from solvers.transient.uniformization import Uniformization

REFERENCE = tomllib.loads(resources.files("ctmc.data.reference").joinpath("supermarket.toml").read_text())["transient"]


@pytest.mark.parametrize("z", [0.0, 1e-8, 0.3, 5.0, 400.0, 9e5])
def test_coefficients(z):
    values, integrals = coefficients(np.array([z]))
    assert values[0, 0] + 2 * values[0, 1:].sum() == pytest.approx(1, abs=1e-13)  # exp(0)
    # the derivative at the right end of the interval is 1: the integrals sum to z
    assert integrals[0, 0] + 2 * integrals[0, 1:].sum() == pytest.approx(z, rel=1e-12, abs=1e-15)
    for k in (0, 1, 7):
        exact = quad(lambda u, k=k: ive(k, u), 0, z, limit=500, epsabs=0, epsrel=1e-9, points=[z / 1e4, z / 100])[0]
        assert integrals[0, k] == pytest.approx(exact, rel=1e-7, abs=1e-60)


def mm1k(arrival_rate, service_rate, capacity, time):
    """Distribution of M/M/1/K from the empty state: P. M. Morse, *Queues, Inventories and Maintenance*, Wiley 1958.

    The eigenvectors of the symmetrised generator are f(n) = sin(s (n + 1)) - sin(s n) / sqrt(rho), s = pi j / (K + 1).
    """
    rho = arrival_rate / service_rate
    n = np.arange(capacity + 1)
    steady = (1 - rho) * rho**n / (1 - rho ** (capacity + 1))
    s = np.arange(1, capacity + 1) * math.pi / (capacity + 1)
    decay = arrival_rate + service_rate - 2 * math.sqrt(arrival_rate * service_rate) * np.cos(s)
    f = np.sin(np.outer(n + 1, s)) - np.sin(np.outer(n, s)) / math.sqrt(rho)
    f /= np.sqrt((f**2).sum(axis=0))
    return steady + rho ** (n / 2) * (f @ (f[0] * np.exp(-decay * time)))


def bound_of(solution, rate_times_time):
    """Return the proven bound; of the one method that proves none, ten times what the certificate accepts."""
    if solution.error_bound is None:
        assert solution.solver.startswith("SlepcExponential")
        return 10 * max(1e-10, 8 * 2.0**-52 * (1 + rate_times_time))
    return float(np.max(solution.error_bound))


@pytest.mark.parametrize(
    "method", ctmc.registry.solvers_for(Transient(Generator.from_matrix([[0, 1], [1, 0]]), (0,), [1]))
)
def test_finite_queue_in_closed_form(method):
    queue = ctmc.build("birth_death", births=[1.0] * 12, deaths=[1.3] * 12)
    times = [0.0, 0.2, 3.0, 50.0]
    solution = ctmc.solve(Transient(queue, (0,), times), method)
    for row, time in zip(solution.value, times, strict=True):
        assert np.abs(row - mm1k(1.0, 1.3, 12, time)).sum() <= bound_of(solution, 2.3 * 50) + 1e-13


@pytest.mark.parametrize(
    "method", ctmc.registry.solvers_for(Transient(Generator.from_matrix([[0, 1], [1, 0]]), (0,), [1]))
)
@pytest.mark.parametrize("time", [1e-8, 1.0, 1e8])
def test_two_states_at_any_rate_times_time(method, time):
    a, b = 0.4, 0.6
    chain = Generator.from_matrix([[0, a], [b, 0]])
    solution = ctmc.solve(Transient(chain, (0,), [time]), method)
    left = a / (a + b) * -math.expm1(-(a + b) * time)
    assert np.abs(solution.value[0] - [1 - left, left]).sum() <= bound_of(solution, b * time)
    assert solution.error_bound is None or solution.error_bound <= max(1e-10, 8 * 2.0**-52 * (1 + b * time))
    backward = ctmc.solve(Transient(chain, None, [time], reward="state"), method)
    assert backward.value[0, 0] == pytest.approx(left, abs=bound_of(backward, b * time))


def queue(servers, capacity, load=0.8):
    rates = np.linspace(1, 2, servers)
    return supermarket(
        service_rates=rates, arrival_rate=load * rates.sum(), choices=2, capacity=capacity, sampling="with_replacement"
    )


def test_products_grow_like_the_square_root():
    """At most 85 products where uniformization needs 200, and 260 where it needs 1350; to the digits of the reference."""
    short, long, _ = REFERENCE
    chain = queue(short["servers"], short["capacity"])
    start = (0,) * 4
    for case, tolerance, most in ((short, 1e-10, 85), (long, 1e-9, 260), (long, 1e-10, 275)):
        solution = ctmc.solve(Transient(chain, start, [case["time"]], tolerance, reward="jobs"), Chebyshev())
        assert solution.value[0] == pytest.approx(case["jobs"], rel=1e-11 if tolerance == 1e-10 else 1e-10)
        assert solution.products <= most
        spent = ctmc.solve(AccumulatedReward(chain, "jobs", start, [case["time"]], tolerance=tolerance), Chebyshev())
        assert spent.value[0, 0] == pytest.approx(case["accumulated"], rel=1e-9)
        assert spent.products == solution.products


def test_the_mixing_time_bounds_the_cost():
    chain = queue(3, 12)
    steady, later = (ctmc.solve(Transient(chain, (0, 0, 0), [t], reward="jobs"), Chebyshev()) for t in (1e4, 1e6))
    assert steady.products < 1000
    assert later.products < 1200
    long_run = ctmc.solve(ctmc.Stationary(chain)).expected("jobs")
    assert steady.value[0] == pytest.approx(long_run, abs=float(steady.error_bound[0]))
    assert later.value[0] == pytest.approx(long_run, abs=float(later.error_bound[0]))


def test_six_servers():
    case = REFERENCE[2]
    solution = ctmc.solve(Transient(queue(6, 8), (0,) * 6, [case["time"]], reward="jobs"), Chebyshev())
    assert solution.value[0] == pytest.approx(case["jobs"], rel=1e-11)


@pytest.mark.parametrize("first_step", [0.5, 30.0, 1e5])
@pytest.mark.parametrize("rate_factor", [0.9, 1.0, 1.7])
def test_options_do_not_change_the_answer(first_step, rate_factor):
    """Too long a step, or too small an interval, is noticed by the growth of the terms."""
    chain = queue(2, 6)
    exact = expm(chain.to_scipy().toarray() * 60.0)[0]
    solver = Chebyshev(first_step=first_step, rate_factor=rate_factor)
    solution = ctmc.solve(Transient(chain, (0, 0), [60.0]), solver)
    assert np.abs(solution.value[0] - exact).sum() <= solution.error_bound + 1e-12


def test_steps_between_the_times():
    """Many steps before the first time: what is spent up to there, from every state and from one, adds up."""
    chain = queue(2, 6)
    for initial in (None, (0, 0)):
        problem = AccumulatedReward(chain, "jobs", initial, [60.0])
        short, long = (ctmc.solve(problem, Chebyshev(first_step=step)) for step in (4.0, 1e5))
        np.testing.assert_allclose(short.value, long.value, rtol=1e-9)


def test_many_times_share_steps():
    chain = queue(3, 5)
    times = np.linspace(0, 20, 101)
    solution = ctmc.solve(Transient(chain, (0, 0, 0), times, reward="queue_length"), Chebyshev())
    alone = ctmc.solve(Transient(chain, (0, 0, 0), times[[1, 50, 100]], reward="queue_length"), Uniformization())
    np.testing.assert_allclose(
        solution.expected("queue_length")[[1, 50, 100]], alone.expected("queue_length"), atol=1e-9
    )
    assert solution.products < 101 * 12


def test_same_answer_forwards_and_backwards():
    """A stiff chain: rates over six decades."""
    rng = np.random.default_rng(5081)
    rates = rng.random((30, 30)) * 10.0 ** rng.uniform(-3, 3, (30, 30))
    np.fill_diagonal(rates, 0)
    chain = Generator.from_matrix(rates)
    for time in (1e-3, 0.2, 30.0):
        forward = ctmc.solve(Transient(chain, (4,), [time], reward="state"), Chebyshev())
        backward = ctmc.solve(Transient(chain, None, [time], reward="state"), Chebyshev())
        allowed = float(forward.error_bound[0] + backward.error_bound[0])
        assert abs(forward.value[0] - backward.value[0, 4]) <= allowed


def test_limits():
    chain = queue(2, 20)
    problem = Transient(chain, (0, 0), [300.0])
    starved = ctmc.solve(problem, Chebyshev(max_iterations=40), check=False)
    assert starved.status is Status.ITERATION_LIMIT
    assert 40 <= starved.iterations < 50
    assert np.isnan(starved.value).all()
    stopped = ctmc.solve(problem, Chebyshev(), monitor=lambda iteration, _: iteration > 20, check=False)
    assert stopped.status is Status.STOPPED
    with pytest.raises(ctmc.ModelError, match="first_step is -1"):
        Chebyshev(first_step=-1)


def disease(state):
    """A disease that comes back in waves among some 40 people: births, deaths, infections, recoveries."""
    susceptible, infected = state
    if susceptible + infected < 80:
        yield (susceptible + 1, infected), 0.8
    if susceptible:
        yield (susceptible - 1, infected), 0.02 * susceptible
    if susceptible and infected:
        yield (susceptible - 1, infected + 1), 0.05 * susceptible * infected
    if infected:
        yield (susceptible, infected - 1), 1.02 * infected


@pytest.mark.parametrize(("horizon", "most"), [(100.0, 8_000), (300.0, 22_000)])
def test_growing_terms_do_not_use_up_what_rounding_may_add(horizon, most):
    """Steps without growth had nothing left of it, became as short as can be, and were cut before their terms were small."""
    chain = ctmc.build("reachable", transitions=disease, initial=(39, 1), variables=["susceptible", "infected"])
    problem = Transient(chain, (39, 1), [horizon], reward="infected")
    found, other = ctmc.solve(problem, Chebyshev()), ctmc.solve(problem, "uniformization")
    assert found.products < most
    assert abs(found.value[0] - other.value[0]) <= found.error_bound[0] + other.error_bound[0]
    assert found.error_bound[0] < 1e-7
