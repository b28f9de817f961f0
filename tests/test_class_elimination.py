"""Elimination class by class: against dense elimination, fractions and closed forms, on chains without cycles and with few."""

import itertools
from fractions import Fraction

import networkx
import numpy as np
import pytest
from scipy.sparse import csr_array

import ctmc
from ctmc.advise import advise
from ctmc.defaults import class_sizes, class_work, default_solver
from ctmc.errors import MemoryLimitError, ModelError
from ctmc.model.class_factors import class_factors, class_order
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
    assert sorted(found.order.sizes.tolist()) == sorted(sizes)
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
    assert found.error / 2.0**-52 == 5 + (5 + min(20 * 9, 32 * 3 * 3)) + 5


def test_states_that_are_never_left_are_refused():
    with pytest.raises(ModelError, match="never left"):
        class_factors(csr_array(np.diag([1.0, 1.0], -1)), np.zeros(3))
    with pytest.raises(ModelError, match=r"row [01] .* never left"):
        class_factors(csr_array(np.array([[0, 1.0, 0], [1.0, 0, 0], [1.0, 0, 0]])), np.array([0, 0, 1.0]))


def banded(n, width, seed):
    """Return rates between states of one class that are at most so many places away, in a random order."""
    rng = np.random.default_rng(seed)
    rates = 10 ** rng.uniform(-3, 3, (n, n)) * (rng.random((n, n)) < 0.6)
    rates += np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1)
    places = np.arange(n)
    rates[np.abs(places[:, None] - places) > width] = 0
    np.fill_diagonal(rates, 0)
    order = rng.permutation(n)
    return rates[order][:, order]


@pytest.mark.parametrize("width", [1, 3, 8])
def test_a_class_in_a_band_is_that_of_dense_elimination(width):
    rates = banded(60, width, 61)
    leave = 10 ** np.random.default_rng(62).uniform(-12, -6, 60)
    found, dense = class_factors(csr_array(rates), leave), factorized(rates, leave)
    assert width <= found.order.widths[0] <= 2 * width
    assert len(found.factors) == 60 * (2 * found.order.widths[0] + 1)
    right = np.random.default_rng(63).random(60)
    np.testing.assert_allclose(found.solve(right), dense.solve(right), rtol=1e-13)
    np.testing.assert_allclose(found.solve_left(right), dense.solve_left(right), rtol=1e-13)


def test_the_bound_of_a_band_holds():
    rates = banded(24, 2, 64)
    leave = 10 ** np.random.default_rng(65).uniform(-12, -6, 24)
    found, right = class_factors(csr_array(rates), leave), np.random.default_rng(66).random(24)
    width = int(found.order.widths[0])
    assert 32 * 24 * (width + 1) < 20 * 24**2
    assert found.error < 2.0**-52 * (32 * 24 * (width + 1) + 20)
    for one, other in zip(found.solve(right).tolist(), exact(rates, leave, right, False), strict=True):
        assert abs(Fraction(one) / other - 1) <= found.error


def test_states_stay_as_they_come_where_that_is_as_narrow():
    line = csr_array(np.diag(np.ones(9), 1) + np.diag(np.ones(9), -1))
    assert class_order(line).states.tolist() == list(range(10))


def test_a_wide_class_asks_for_memory_first():
    queues = ctmc.build("tandem_network", service_rates=[2.0, 1.8, 1.9], arrival_rate=1.0, capacity=[20, 20, 20])
    with ctmc.limited_memory("30MiB"), pytest.raises(MemoryLimitError, match="the factors of the classes"):
        ctmc.solve(FirstPassage(queues, "jobs == 60", initial=(0, 0, 0)), "class_elimination")


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


def test_a_target_of_a_wide_chain_that_is_hardly_ever_reached():
    """Three kinds of twenty components; the default is a Krylov method, which names what does not mind."""

    def events(state):
        for kind, rate in enumerate((1e-3, 1e-4, 1e-5)):
            step = np.eye(3, dtype=int)[kind]
            if state[kind] < 20:
                yield tuple(np.add(state, step)), rate * (20 - state[kind])
            if state[kind]:
                yield tuple(np.subtract(state, step)), 1.0

    chain = ctmc.build("reachable", transitions=events, initial=(0, 0, 0), variables=["a", "b", "c"])
    problem = FirstPassage(chain, "a >= 15", initial=(0, 0, 0))
    with pytest.raises(ctmc.SolveError, match=r"absorption_krylov.*Next to try: class_elimination"):
        ctmc.solve(problem)
    found = ctmc.solve(problem, "class_elimination")
    # the kinds do not know of each other, so the first one alone tells it
    alone = ctmc.build("birth_death", births=[1e-3 * (20 - k) for k in range(20)], deaths=[1.0] * 20)
    other = ctmc.solve(FirstPassage(alone, "jobs >= 15", initial=(0,)))
    assert other.mean > 1e28
    assert abs(found.mean / other.mean - 1) <= found.relative_error_bound[0] < 1e-7


def test_it_is_the_default_where_few_multiplications_do():
    line, ring = stage_chain(3500), Generator.from_matrix(csr_array(np.roll(np.eye(3500), 1, axis=1)))
    for chain in (line, ring):
        assert default_solver(FirstPassage(chain, "state == 3499")) == "class_elimination"
        assert default_solver(DiscountedReward(chain, "state", discount=1.0)) == "class_elimination"
    assert default_solver(FirstPassage(stage_chain(2999), "state == 5")) == "absorption_elimination"
    assert default_solver(DiscountedReward(stage_chain(999), "state", discount=1.0)) == "resolvent_lu"
    # a lattice, by its sides, and other models by levels
    for servers, capacity, name in ((2, 80, "class_elimination"), (3, 20, "absorption_krylov")):
        queues = ctmc.build(
            "supermarket", service_rates=[1.0] * servers, arrival_rate=0.9 * servers, choices=2, capacity=capacity
        )
        assert default_solver(FirstPassage(queues, "jobs >= 60")) == name
        written = FirstPassage(queues.written_out(), "jobs >= 60")
        assert (class_work(written), default_solver(written)) == (class_work(FirstPassage(queues, "jobs >= 60")), name)
    with ctmc.limited_memory("1MiB"):
        assert default_solver(FirstPassage(ring, "state == 0")) == "class_elimination"
        assert default_solver(FirstPassage(queues, "jobs >= 60")) == "absorption_krylov"


def test_classes_that_the_passage_does_not_meet_do_not_count():
    matrix = np.zeros((3600, 3600))
    matrix[:100, :100] = np.roll(np.eye(100), 1, axis=1)
    matrix[99, 100] = 1.0
    matrix[100:, 100:] = np.roll(np.eye(3500), 1, axis=1)
    both = Generator.from_matrix(csr_array(matrix))
    assert class_sizes(FirstPassage(both, "state == 3000")).max() == 3499
    assert class_sizes(FirstPassage(both, "state == 50")).max() == 99
    assert class_work(FirstPassage(both, "state == 50")) == (2 * 99.0**3, 16 * 99.0**2)


NATURAL = {
    "a symmetric walk": (lambda: ctmc.build("birth_death", births=[1.0] * 4000, deaths=[1.0] * 4000), "jobs == 4000", (0,)),
    "an endemic disease": (lambda: endemic(3500), "infected == 0", (500,)),
    "two stations in a row": (
        lambda: ctmc.build("tandem_network", service_rates=[1.2, 1.0], arrival_rate=0.9, capacity=[63, 63]),
        "queue_length[0] == 63", (0, 0),
    ),
    "two servers that fill up": (
        lambda: ctmc.build("supermarket", service_rates=[1.0, 1.0], arrival_rate=1.8, choices=2, capacity=60), "jobs >= 90", (0, 0),
    ),
}  # fmt: skip


def endemic(n):
    """Each infected meets others at rate 1.2, and recovers at rate 1 without becoming immune."""

    def events(state):
        (infected,) = state
        if 0 < infected < n:
            yield (infected + 1,), 1.2 * infected * (n - infected) / n
        if infected:
            yield (infected - 1,), 1.0 * infected

    return ctmc.build("reachable", transitions=events, initial=(n // 2,), variables=["infected"])


@pytest.mark.parametrize("name", NATURAL)
def test_long_ways_are_no_matter(name):
    """Where `absorption_krylov` stagnates; some of these times are beyond 1e30.  Dense elimination of what is inside is the judge."""
    make, target, initial = NATURAL[name]
    chain = make()
    problem = FirstPassage(chain, target, initial=initial)
    found = ctmc.solve(problem)
    assert found.solver == "ClassElimination()"
    inside = np.flatnonzero(~problem.target_states)
    rows = chain.to_scipy()[inside]
    leave = np.asarray(rows[:, np.flatnonzero(problem.target_states)].sum(axis=1)).ravel()
    mean = factorized(rows[:, inside].toarray(), leave).solve(np.ones(len(inside)))
    place = np.searchsorted(inside, chain.space.index(np.array(initial)))
    assert abs(found.mean / mean[place] - 1) <= found.relative_error_bound[0]


def test_the_advice_tells_why():
    found = advise(FirstPassage(stage_chain(3500), "state == 3500"))
    assert found.solver == "class_elimination"
    assert "no way back" in found.reasons[0]
    pairs = csr_array(np.kron(np.eye(2000), [[0, 1.0], [2.0, 0]]) + np.diag(np.ones(3998), 2))
    found = advise(FirstPassage(Generator.from_matrix(pairs), "state == 3999"))
    assert found.solver == "class_elimination"
    assert "long ways do not disturb it" in found.reasons[0]
