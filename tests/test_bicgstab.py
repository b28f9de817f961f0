"""BiCGSTAB on one color: few products, restarts, warm starts, large chains with transient states."""

import numpy as np
import pytest

import ctmc
from builders.birth_death import birth_death
from builders.supermarket import supermarket
from builders.tandem_network import tandem_network
from ctmc import certificate
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator
from ctmc.solution import Status
from solvers._reduction import reduction
from solvers._start import first_guess
from solvers.stationary.bicgstab import Bicgstab
from solvers.stationary.gauss_seidel import GaussSeidel


def heterogeneous(servers, capacity, load, **more):
    rates = np.linspace(1, 2, servers)
    return supermarket(rates, load * rates.sum(), 2, capacity, sampling="with_replacement", **more)


@pytest.mark.parametrize(("load", "most"), [(0.5, 70), (0.8, 90), (0.95, 120)])
def test_products_stay_in_the_tens(load, most):
    """Peers need 216 to 900 products on (4, 20); here (4, 12), whose count is nearly the same."""
    solution = ctmc.solve(ctmc.Stationary(heterogeneous(4, 12, load)), "bicgstab")
    assert solution.products <= most
    assert solution.defect <= 1e-12


SMALL = {
    "supermarket, load .3": lambda: heterogeneous(3, 12, 0.3),  # least state 3e-21
    "supermarket, load .8": lambda: heterogeneous(3, 9, 0.8),
    "supermarket, load .99": lambda: heterogeneous(3, 9, 0.99),
    "two long queues": lambda: heterogeneous(2, 40, 0.8),
    "without two colors": lambda: tandem_network([2.0, 1.5, 3.0], 1.2, total_capacity=9),
    "a tail of 1e-31": lambda: birth_death(births=[1.0] * 100, deaths=[2.0] * 100),
}


@pytest.mark.parametrize(
    "solver", ["bicgstab", "gmres", "anderson(polish=200)", "aggregation(polish=200)", "arnoldi", "sparse_lu"]
)
@pytest.mark.parametrize("name", SMALL)
def test_small_models_agree_with_elimination_in_every_state(name, solver):
    """To 1e-10 relative, where a defect of 1e-12 says nothing about states of 1e-21."""
    model = SMALL[name]()
    value = ctmc.solve(ctmc.Stationary(model), solver).value
    np.testing.assert_allclose(value, gth(model.to_scipy().toarray()), rtol=1e-10)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_larger_models_are_accurate_in_every_state(load):
    """Above 10,000 unknowns fewer steps are worth it: every state to 1e-6; the reference only adds, multiplies and divides."""
    model = heterogeneous(4, 12, load)
    half = reduction(model)
    p = half.restrict(ctmc.solve(ctmc.Stationary(model, tolerance=1e-14), "bicgstab").value)
    for _ in range(3000):
        p = half.step(p)
    np.testing.assert_allclose(ctmc.solve(ctmc.Stationary(model), "bicgstab").value, half.expand(p), rtol=1e-6)


def test_a_guess_is_where_it_begins():
    model = heterogeneous(4, 12, 0.8)
    guess = first_guess(model)
    assert guess.sum() == pytest.approx(1, rel=1e-13)
    state = (3, 0, 5, 1)
    product = np.prod([marginal[length] for marginal, length in zip(model.guess, state, strict=True)])
    empty = np.prod([marginal[0] for marginal in model.guess])
    assert guess[model.space.index(state)] / guess[0] == pytest.approx(product / empty, rel=1e-12)
    np.testing.assert_allclose(first_guess(model.written_out()), guess, rtol=1e-12)
    with_guess = ctmc.solve(ctmc.Stationary(model), "bicgstab").products
    assert with_guess < ctmc.solve(ctmc.Stationary(model.replace(guess=None)), "bicgstab").products
    assert supermarket([1, 1], 3.0, 2, 4).guess is None  # overloaded: no such limit


def test_a_warm_start_pays():
    problem = ctmc.Stationary(heterogeneous(4, 9, 0.8))
    cold = ctmc.solve(problem, "bicgstab")
    warm = ctmc.solve(problem, "bicgstab", start=cold.value)
    assert warm.products <= 3 < cold.products
    near = ctmc.solve(ctmc.Stationary(heterogeneous(4, 9, 0.79)), "bicgstab", start=cold.value)
    assert near.products < cold.products


def test_it_begins_again_where_the_recursion_breaks_down(monkeypatch):
    import solvers._bicgstab as module

    monkeypatch.setattr(module, "BREAKDOWN", 0.02)  # a cosine that comes up every few steps
    problem = ctmc.Stationary(heterogeneous(3, 6, 0.8))
    solution = ctmc.solve(problem, "bicgstab")
    np.testing.assert_allclose(solution.value, gth(problem.model.to_scipy().toarray()), rtol=1e-6)
    assert (np.diff(solution.history["iteration"]) > 0).all()


def test_an_answer_on_the_other_side_of_zero_is_an_answer():
    """Here the recursion wanders so far that it comes back with all signs changed."""
    chain = tandem_network(service_rates=[2, 1.8], arrival_rate=1.0, capacity=[20, 20])
    solution = ctmc.solve(ctmc.Stationary(chain), "bicgstab")
    exact = ctmc.solve(ctmc.Stationary(chain), "gth").value
    np.testing.assert_allclose(solution.value, exact, rtol=1e-8)


def test_a_recursion_that_never_gets_anywhere_ends():
    import solvers._bicgstab as module

    before = module.BREAKDOWN
    module.BREAKDOWN = 2.0
    try:
        problem = ctmc.Stationary(heterogeneous(3, 6, 0.8))
        solution = ctmc.solve(problem, Bicgstab(max_iterations=50), check=False)
    finally:
        module.BREAKDOWN = before
    assert solution.status is Status.ITERATION_LIMIT
    assert solution.iterations == 50


def test_a_large_chain_with_transient_states_is_not_copied(monkeypatch):
    """Without replacement the worst server of some states gets no job, so that others are never reached."""
    model = supermarket([1, 1.5, 2, 3], 5.0, 2, 8)
    inside = model.classes.class_of == model.classes.recurrent[0]
    assert model.size > 3000
    assert 0.5 < inside.mean() < 1
    part = model.restricted(np.flatnonzero(inside))
    known = ctmc.solve(ctmc.Stationary(part), "gauss_seidel").value
    monkeypatch.setattr(Generator, "restricted", lambda *arguments: pytest.fail("the class was copied"))
    monkeypatch.setattr(certificate, "may_be_eliminated", lambda chain: False)  # for which the certificate copies it
    for solver in ("bicgstab", "gmres", "gauss_seidel"):
        solution = ctmc.solve(ctmc.Stationary(model), solver)
        assert not solution.value[~inside].any()
        np.testing.assert_allclose(solution.value[inside], known, rtol=1e-5, atol=1e-12)
    everywhere = ctmc.solve(ctmc.Stationary(model), "bicgstab", start=np.ones(model.size))
    assert not everywhere.value[~inside].any()


def test_colored_sweeps_need_two_colors():
    queue = birth_death(births=[1.0] * 9, deaths=[2.0] * 9)
    colored = ctmc.solve(ctmc.Stationary(queue), GaussSeidel(order="colored"))
    np.testing.assert_allclose(colored.value, gth(queue.to_scipy().toarray()), rtol=1e-9)
    triangle = Generator.from_matrix([[0, 1.0, 0], [0, 0, 1.0], [1.0, 0, 0]])
    with pytest.raises(ctmc.ModelError, match="order is 'colored', but the chain has no two colors"):
        ctmc.solve(ctmc.Stationary(triangle), GaussSeidel(order="colored"))


@pytest.mark.parametrize("relaxation", [0.8, 1.3])
def test_colored_sweeps_may_be_relaxed(relaxation):
    model = heterogeneous(3, 5, 0.6)
    solution = ctmc.solve(ctmc.Stationary(model), GaussSeidel(order="colored", relaxation=relaxation))
    np.testing.assert_allclose(solution.value, gth(model.to_scipy().toarray()), rtol=1e-9)
