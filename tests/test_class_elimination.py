"""Elimination class by class: against dense elimination, fractions and closed forms, on chains without cycles and with few."""

import itertools
from fractions import Fraction

import networkx
import numpy as np
import pytest
from scipy.sparse import csr_array

import ctmc
from ctmc.advise import advise
from ctmc.defaults import class_sizes, default_solver
from ctmc.errors import MemoryLimitError, ModelError
from ctmc.model.class_factors import class_factors, work_of
from ctmc.model.generator import Generator
from ctmc.model.m_factors import factorized
from ctmc.problem import DiscountedReward, FirstPassage, Stationary


def progressive(rng, sizes, decades=8.0):
    """Return rates and rates out of classes of these sizes, one after the other, over many decades, in a random order."""
    n = sum(sizes)
    begins = np.cumsum([0, *sizes])
    rates = np.zeros((n, n))
    for c, (b, e) in enumerate(itertools.pairwise(begins)):
        for k in range(b, e):
            if e - b > 1:
                rates[k, b + (k - b + 1) % (e - b)] = 1.0  # a ring joins the class
            later = np.arange(begins[c + 1], n)
            chosen = later[rng.random(len(later)) < 0.2]
            rates[k, chosen] = 1.0
    leave = (rng.random(n) < 0.5).astype(float)
    leave[begins[1:] - 1] = 1.0
    order = rng.permutation(n)
    rates *= 10 ** rng.uniform(-decades, decades, (n, n))
    leave *= 10 ** rng.uniform(-decades, decades, n)
    return rates[order][:, order], leave[order]


@pytest.mark.parametrize("sizes", [[1] * 30, [3, 1, 5, 1, 1, 2], [20, 1, 1], [1], [7], [2] * 15], ids=str)
@pytest.mark.parametrize("seed", [31, 32, 33])
def test_every_number_is_that_of_dense_elimination(sizes, seed):
    rng = np.random.default_rng(seed)
    rates, leave = progressive(rng, sizes)
    found, dense = class_factors(csr_array(rates), leave), factorized(rates, leave)
    assert sorted(np.diff(found.begins).tolist()) == sorted(sizes)
    right = rng.random(len(leave)) * (rng.random(len(leave)) < 0.7)
    for one, other in ((found.solve(right), dense.solve(right)), (found.solve_left(right), dense.solve_left(right))):
        np.testing.assert_array_equal(one == 0, other == 0)
        np.testing.assert_allclose(one, other, rtol=1e-13)


def exact(rates, leave, right, transposed):
    """Solve the same equations by elimination in fractions."""
    n = len(leave)
    numbers = [[Fraction(-rate) for rate in row] for row in rates.tolist()]
    for i in range(n):
        numbers[i][i] = Fraction(leave[i]) - sum(numbers[i])
    if transposed:
        numbers = [list(column) for column in zip(*numbers, strict=True)]
    sides = [Fraction(one) for one in right.tolist()]
    for k in range(n):
        for i in range(n):
            if i != k and numbers[i][k]:
                share = numbers[i][k] / numbers[k][k]
                numbers[i] = [one - share * other for one, other in zip(numbers[i], numbers[k], strict=True)]
                sides[i] -= share * sides[k]
    return [sides[i] / numbers[i][i] for i in range(n)]


@pytest.mark.parametrize("sizes", [[1] * 12, [2, 1, 3, 1, 1], [6, 2]], ids=str)
@pytest.mark.parametrize("seed", [41, 42])
def test_the_bound_beforehand_holds(sizes, seed):
    rng = np.random.default_rng(seed)
    rates, leave = progressive(rng, sizes)
    found, right = class_factors(csr_array(rates), leave), rng.random(len(leave))
    assert 0 < found.error < 1e-11
    for transposed, answer in ((False, found.solve(right)), (True, found.solve_left(right))):
        for one, other in zip(answer.tolist(), exact(rates, leave, right, transposed), strict=True):
            assert abs(Fraction(one) / other - 1) <= found.error


@pytest.mark.parametrize("seed", [51, 52, 53])
def test_the_bound_grows_with_the_longest_way(seed):
    rates, leave = progressive(np.random.default_rng(seed), [1] * 40)
    graph = networkx.from_numpy_array(rates > 0, create_using=networkx.DiGraph)
    most = max(max(dict(graph.in_degree()).values()), max(dict(graph.out_degree()).values()))
    classes = networkx.dag_longest_path_length(graph, weight=None) + 1
    found = class_factors(csr_array(rates), leave)
    assert found.error / 2.0**-52 == classes * (most + 3)


def test_the_bound_takes_the_dearest_way():
    """Through a ring of three states, though the way past it has more classes."""
    rates = np.zeros((8, 8))
    for i, j in ((0, 1), (1, 2), (2, 3), (3, 1), (3, 7), (0, 4), (4, 5), (5, 6), (6, 7)):
        rates[i, j] = 1.0
    found = class_factors(csr_array(rates), np.eye(8)[7])
    assert found.error / 2.0**-52 == 5 + (5 + 20 * 9) + 5


def test_states_that_are_never_left_are_refused():
    with pytest.raises(ModelError, match="never left"):
        class_factors(csr_array(np.diag([1.0, 1.0], -1)), np.zeros(3))
    with pytest.raises(ModelError, match=r"row [01] .* never left"):
        class_factors(csr_array(np.array([[0, 1.0, 0], [1.0, 0, 0], [1.0, 0, 0]])), np.array([0, 0, 1.0]))


def test_a_large_class_asks_for_memory_first():
    chain = ctmc.build("birth_death", births=[1.0] * 4000, deaths=[2.0] * 4000)
    assert work_of(np.array([4000]))[1] == 128e6
    with ctmc.limited_memory("100MiB"), pytest.raises(MemoryLimitError, match="the factors of the classes"):
        ctmc.solve(FirstPassage(chain, "jobs == 4000", initial=(0,)), "class_elimination")


def decay(n):
    """Each of n particles goes at rate 1."""
    return Generator.from_matrix(csr_array((np.arange(1.0, n), (np.arange(1, n), np.arange(n - 1))), shape=(n, n)))


def test_independent_particles_and_long_ways_have_closed_forms():
    n = 20_000
    chain = decay(n + 1)
    passage = ctmc.solve(FirstPassage(chain, "state == 0", initial=(n,)))
    assert passage.solver == "ClassElimination()"
    numbers = np.arange(1.0, n + 1)
    assert passage.mean == pytest.approx((1 / numbers).sum(), rel=1e-13)
    assert passage.variance == pytest.approx((1 / numbers**2).sum(), rel=1e-9)
    chain = chain.replace(rewards={"left": ctmc.Reward(lambda states: states[:, 0].astype(float))})
    for discount in (1e-6, 1.0):
        earned = ctmc.solve(DiscountedReward(chain, "left", discount=discount, initial=(n,)))
        assert earned.solver == "ClassElimination()"
        assert earned.value[0] == pytest.approx(n / (1 + discount), rel=1e-9)
    stages = ctmc.solve(FirstPassage(stage_chain(n), f"state == {n}", initial=(0,)))
    assert stages.mean == pytest.approx(n, rel=1e-10)
    assert stages.variance == pytest.approx(n, rel=1e-6)


def stage_chain(n):
    return Generator.from_matrix(csr_array((np.ones(n), (np.arange(n), np.arange(1, n + 1))), shape=(n + 1, n + 1)))


def epidemic(n):
    """Susceptibles are infected at rate 2 s i / n, and the infected recover at rate 1."""

    def events(state):
        susceptible, infected = state
        if susceptible and infected:
            yield (susceptible - 1, infected + 1), 2.0 * susceptible * infected / n
        if infected:
            yield (susceptible, infected - 1), 1.0 * infected

    return ctmc.build("reachable", transitions=events, initial=(n - 1, 1), variables=["susceptible", "infected"])


def ends_of_epidemic(n):
    """The probability that so many are still susceptible at the end, jump by jump in long numbers."""
    chance = np.zeros((n + 1, n + 2), dtype=np.longdouble)
    chance[n - 1, 1] = 1
    for susceptible in range(n - 1, -1, -1):
        for infected in range(n - susceptible, 0, -1):
            here = chance[susceptible, infected]
            up = np.longdouble(2.0) * susceptible / n
            chance[susceptible, infected - 1] += here / (1 + up)
            if susceptible:
                chance[susceptible - 1, infected + 1] += here * up / (1 + up)
    return chance[:n, 0]


@pytest.mark.parametrize("n", [100, 300])
def test_an_epidemic_ends_as_its_jumps_tell(n):
    """5150 and 45,450 states: none has a way back, and there is an absorbing one for each size of the epidemic."""
    chain = epidemic(n)
    solution = ctmc.solve(Stationary(chain))
    ends = [(susceptible, 0) for susceptible in range(n)]
    positions = [chain.space.index(np.array(state)) for state in ends]
    np.testing.assert_allclose(solution.value[positions], ends_of_epidemic(n).astype(float), rtol=1e-11)
    passage = ctmc.solve(FirstPassage(chain, "infected == 0", initial=(n - 1, 1)))
    assert passage.solver == "ClassElimination()"
    other = ctmc.solve(FirstPassage(chain, "infected == 0", initial=(n - 1, 1)), "absorption_lu")
    assert passage.mean == pytest.approx(other.mean, rel=1e-9)
    assert passage.variance == pytest.approx(other.variance, rel=1e-9)
    before = ctmc.expected_time_before(chain, "infected == 0")
    assert before.total == pytest.approx(passage.mean, rel=1e-10)


def test_krylov_methods_name_what_eliminates_and_print_no_warning():
    """Warnings are errors here."""
    chain = epidemic(100)
    problem = FirstPassage(chain, "infected == 0", initial=(99, 1))
    with pytest.raises(ctmc.SolveError, match="Next to try: class_elimination"):
        ctmc.solve(problem, "absorption_krylov(max_iterations=100)")
    with pytest.raises(ctmc.SolveError, match="Next to try: class_elimination"):
        ctmc.solve(DiscountedReward(chain, "infected", discount=1e-4, initial=(99, 1)), "resolvent_krylov")


def test_it_is_the_default_where_classes_are_small():
    line, ring = stage_chain(3500), Generator.from_matrix(csr_array(np.roll(np.eye(3500), 1, axis=1)))
    assert default_solver(FirstPassage(line, "state == 3500")) == "class_elimination"
    assert default_solver(DiscountedReward(line, "state", discount=1.0)) == "class_elimination"
    assert default_solver(FirstPassage(ring, "state == 0")) == "absorption_krylov"
    assert default_solver(DiscountedReward(ring, "state", discount=1.0)) == "resolvent_krylov"
    assert default_solver(FirstPassage(stage_chain(2999), "state == 5")) == "absorption_elimination"
    # a large class before the target, and one that the passage never comes back from
    matrix = np.zeros((3600, 3600))
    matrix[:100, :100] = np.roll(np.eye(100), 1, axis=1)
    matrix[99, 100] = 1.0
    matrix[100:, 100:] = np.roll(np.eye(3500), 1, axis=1)
    both = Generator.from_matrix(csr_array(matrix))
    assert (
        class_sizes(FirstPassage(both, "state == 3000")).max() == 3499
    )  # 3000 is in the large class, whose others lead to it
    assert class_sizes(FirstPassage(both, "state == 50")).max() == 99
    assert default_solver(FirstPassage(both, "state == 3000")) == "absorption_krylov"
    assert default_solver(FirstPassage(both, "state == 50")) == "class_elimination"
    assert default_solver(DiscountedReward(both, "state", discount=1.0)) == "resolvent_krylov"


def test_the_advice_tells_why():
    found = advise(FirstPassage(stage_chain(3500), "state == 3500"))
    assert (found.solver, found.facts["largest_class"]) == ("class_elimination", 1)
    assert "no way back" in found.reasons[0]
    pairs = csr_array(np.kron(np.eye(2000), [[0, 1.0], [2.0, 0]]) + np.diag(np.ones(3998), 2))
    found = advise(FirstPassage(Generator.from_matrix(pairs), "state == 3999"))
    assert found.solver == "class_elimination"
    assert "2 at most" in found.reasons[0]
