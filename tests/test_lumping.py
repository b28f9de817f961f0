"""Lumping: the check of a partition against dense sums, and lumped supermarkets against the full ones."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

import ctmc
from builders.supermarket import supermarket
from builders.supermarket.lumped_transitions import largest_entries
from builders.supermarket.lumping import ServerClasses, lift, server_classes
from builders.supermarket.rank import shared_probabilities
from ctmc.model.lumpability import coarsest_partition, lumpability, lumped
from ctmc.model.state_space import Lattice, Variable

# ---- any generator and any partition ------------------------------------------------------------------------------------


def dense(chain):
    return chain.to_scipy().toarray()


def sums_into_parts(chain, part):
    """Rates of each state into each part, from the dense matrix; nan for its own."""
    indicator = np.eye(part.max() + 1)[part]
    rates = dense(chain)
    np.fill_diagonal(rates, 0)
    sums = rates @ indicator
    sums[np.arange(chain.size), part] = np.nan
    return sums


def lumpable_chain(rng, sizes, *, sparsity=0.5):
    """A chain that is lumpable on purpose, its states shuffled, with its parts and the rates between them."""
    parts = len(sizes)
    part = rng.permutation(np.repeat(np.arange(parts), sizes))
    between = rng.integers(1, 9, (parts, parts)) * (rng.random((parts, parts)) < sparsity)
    rates = np.zeros((len(part), len(part)))
    for i, a in enumerate(part):
        for b in range(parts):
            into = np.flatnonzero(part == b)
            if a == b:
                rates[i, into] = rng.random(len(into))  # inside a part anything goes
            else:  # dyadic shares of a whole number, so that sums are exact
                shares = rng.multinomial(64, np.ones(len(into)) / len(into)) / 64
                rates[i, into] = between[a, b] * shares
    np.fill_diagonal(rates, 0)
    np.fill_diagonal(between, 0)
    return ctmc.Generator.from_matrix(rates), part, between


@pytest.mark.parametrize("trial", range(12))
def test_the_chain_of_the_parts_is_found(trial):
    rng = np.random.default_rng(20271 + trial)
    chain, part, between = lumpable_chain(rng, rng.integers(1, 6, rng.integers(2, 7)))
    found = lumpability(chain, part, tolerance=0)
    assert found.lumpable, found.sentence
    assert (found.deviation, found.states, found.part) == (0, (), -1)
    quotient = lumped(chain, part, tolerance=0)
    rates = dense(quotient)
    np.fill_diagonal(rates, 0)
    np.testing.assert_array_equal(rates, between)


@pytest.mark.parametrize("trial", range(12))
def test_what_is_not_lumpable_is_named(trial):
    """One rate is changed; deviation, states and part are those of the dense sums."""
    rng = np.random.default_rng(20272 + trial)
    chain, part, _ = lumpable_chain(rng, [3, 2, 4, 1], sparsity=0.8)
    rates = dense(chain)
    np.fill_diagonal(rates, 0)
    i = rng.choice(np.flatnonzero(part != 3))
    j = rng.choice(np.flatnonzero(part != part[i]))
    rates[i, j] += 0.25
    chain = ctmc.Generator.from_matrix(rates)
    found = lumpability(chain, part)
    sums = sums_into_parts(chain, part)
    worst = 0.0
    for a in range(4):
        inside = sums[part == a][:, np.arange(4) != a]
        high = inside.max(axis=0)
        worst = max(worst, ((high - inside.min(axis=0))[high > 0] / high[high > 0]).max(initial=0))
    assert not found.lumpable
    assert found.deviation == pytest.approx(worst, rel=1e-14)
    assert found.part == part[j]
    assert i in found.states
    assert part[found.states[0]] == part[found.states[1]] == part[i]
    assert found.rates == tuple(sums[list(found.states), found.part])
    for text in (f"states {found.states[0]} ", f"of part {part[i]} go to part {part[j]}", "allowed is 1e-12"):
        assert text in found.sentence
    with pytest.raises(ctmc.ModelError, match="not lumpable: states"):
        lumped(chain, part)


def test_a_state_without_a_rate_counts():
    """A rate against none deviates by 1, wherever the state without one stands."""
    for silent in range(3):
        rates = np.zeros((4, 4))
        rates[:3, 3] = 2.0
        rates[silent, 3] = 0
        found = lumpability(ctmc.Generator.from_matrix(rates), [0, 0, 0, 1])
        assert found.deviation == 1
        assert silent in found.states
        assert sorted(found.rates) == [0, 2]


def test_the_first_of_several_differences_is_named():
    """Parts 2 and 1 both reach part 0 unequally, and the worse one, which is met first, is not the first part."""
    rates = np.zeros((5, 5))
    rates[:4, 4] = [1, 3, 1, 2]
    found = lumpability(ctmc.Generator.from_matrix(rates), [2, 2, 1, 1, 0])
    assert (found.part, found.states, found.rates) == (0, (2, 3), (1, 2))
    assert found.deviation == pytest.approx(2 / 3)


def test_rounding_is_allowed_up_to_the_tolerance():
    chain = ctmc.Generator.from_matrix([[0, 0.1, 0.2, 0], [0.3, 0, 0, 0], [0.3, 0, 0, 0], [0, 0.3, 0, 0]])
    part = [0, 1, 1, 0]
    assert 0.1 + 0.2 != 0.3
    assert lumpability(chain, part).lumpable
    strict = lumpability(chain, part, tolerance=0)
    assert not strict.lumpable
    assert 0 < strict.deviation < 1e-15
    assert coarsest_partition(chain, part).tolist() == part
    assert coarsest_partition(chain, part, tolerance=0).tolist() == [0, 1, 1, 2]
    # beside a state that does differ
    chain = ctmc.Generator.from_transitions([1, 1, 2, 3], [0, 4, 0, 0], [0.1, 0.2, 0.3, 0.5], Lattice((4,)))
    assert coarsest_partition(chain, [0, 1, 1, 1, 0]).tolist() == [0, 1, 1, 2, 0]
    assert coarsest_partition(chain, [0, 1, 1, 1, 0], tolerance=0).tolist() == [0, 1, 2, 3, 0]


def test_small_rates_are_compared_with_themselves():
    """A rare transition may not hide behind the frequent ones."""
    chain = ctmc.Generator.from_matrix([[0, 0, 5, 1e-9], [0, 0, 5, 2e-9], [1, 1, 0, 0], [1, 1, 0, 0]])
    found = lumpability(chain, [0, 0, 1, 2])
    assert found.deviation == pytest.approx(0.5)
    assert found.part == 2


def test_trivial_partitions():
    chain = ctmc.build("birth_death", births=[1.0, 2.0], deaths=[3.0, 4.0])
    assert lumped(chain, [0, 0, 0]).entries == 0
    same = lumped(chain, [2, 1, 0])
    np.testing.assert_array_equal(dense(same)[::-1, ::-1], dense(chain))


def test_initial_and_labels_of_the_quotient():
    chain = ctmc.Generator.from_matrix(
        [[0, 1, 1], [2, 0, 0], [2, 0, 0]],
        initial=np.array([0.5, 0.25, 0.25]),
        labels={"kept": np.array([False, True, True]), "cut": np.array([False, False, True])},
    )
    space = Lattice((1,), variables=(Variable("level"),))
    quotient = lumped(chain, [0, 1, 1], space=space)
    assert quotient.initial.dense(2).tolist() == [0.5, 0.5]
    assert {name: label.tolist() for name, label in quotient.labels.items()} == {"kept": [False, True]}
    assert quotient.space is space
    with pytest.raises(ctmc.ModelError, match="the space has 3 states; allowed are as many as there are parts, 2"):
        lumped(chain, [0, 1, 1], space=Lattice((2,)))


@pytest.mark.parametrize(
    ("part", "tolerance", "words"),
    [
        ([0, 1], 1e-12, r"shape \(2,\)"),
        ([0, 1, 0.5], 1e-12, "float64"),
        ([[0], [1, 1], 0], 1e-12, r"part_of is \[\[0\], \[1, 1\], 0\], of shape"),
        ([0, -1, 0], 1e-12, "from -1 to 0"),
        ([0, 3, 0], 1e-12, "to 3; allowed are numbers of parts from 0 to at most 2"),
        ([0, 2, 0], 1e-12, "part 1 of part_of has no state"),
        ([0, 1, 0], 1, "tolerance is 1;"),
        ([0, 1, 0], "small", "tolerance is 'small'"),
        ([0, 1, 0], -1e-9, "tolerance is -1e-09"),
    ],
)
def test_bad_partitions(part, tolerance, words):
    chain = ctmc.Generator.from_matrix([[0, 1, 1], [2, 0, 0], [2, 0, 0]])
    for function in (lumpability, lumped, coarsest_partition):
        with pytest.raises(ctmc.ModelError, match=words):
            function(chain, part, tolerance=tolerance)


def test_memory_is_asked_for():
    chain = ctmc.Generator.from_transitions([], [], [], Lattice((99_999,)))
    part = np.zeros(chain.size, dtype=int)
    with ctmc.limited_memory("1MiB"):
        for function in (lumpability, coarsest_partition):
            with pytest.raises(ctmc.ModelError, match="memory limit"):
                function(chain, part)


def coarsest_by_signatures(chain, part):
    """Split every part by the rates of its states into all parts at once, until nothing changes."""
    part = np.unique(part, return_inverse=True)[1]
    while True:
        sums = np.nan_to_num(sums_into_parts(chain, part), nan=-1.0).round(9)
        finer = np.unique(np.column_stack([part, sums]), axis=0, return_inverse=True)[1].ravel()
        if finer.max() == part.max():
            return part
        part = finer


def same_partition(one, other):
    pairs = {*zip(one.tolist(), other.tolist(), strict=True)}
    return len(pairs) == one.max() + 1 == other.max() + 1


@pytest.mark.parametrize("trial", range(12))
def test_the_coarsest_partition_is_that_of_repeated_signatures(trial):
    rng = np.random.default_rng(20273 + trial)
    chain, part, _ = lumpable_chain(rng, rng.integers(1, 6, 6), sparsity=0.6)
    start = part % 2
    found = coarsest_partition(chain, start)
    assert lumpability(chain, found).lumpable
    assert same_partition(found, coarsest_by_signatures(chain, start))
    assert found.max() < len(set(part.tolist()))  # the planted one is a refinement of it
    first = [int(np.argmax(found == number)) for number in range(found.max() + 1)]
    assert first == sorted(first)


def test_the_coarsest_partition_of_a_walk_is_found_from_its_end():
    """Each split makes the next one: a walk whose one end is told apart is told apart everywhere."""
    chain = ctmc.build("birth_death", births=[1.0] * 49, deaths=[1.0] * 49)
    assert coarsest_partition(chain, (np.arange(50) == 0).astype(int)).max() == 49
    assert coarsest_partition(chain).max() == 0
    # both ends at once: states at the same distance from the nearer end stay together
    ends = np.isin(np.arange(50), [0, 49]).astype(int)
    assert coarsest_partition(chain, ends).tolist() == [*range(25), *range(24, -1, -1)]


# ---- the supermarket ----------------------------------------------------------------------------------------------------

SYMMETRIC = [
    {"service_rates": [1, 1, 1], "arrival_rate": 2.4, "choices": 2, "capacity": 4},
    {"service_rates": [1, 1, 1], "arrival_rate": 2.4, "choices": 3, "capacity": 3, "total_capacity": 5},
    {"service_rates": [2, 1, 2], "arrival_rate": 4, "choices": 2, "capacity": [3, 5, 3], "overflow": "rerouted"},
    {"service_rates": [2, 1, 2, 1], "arrival_rate": 5, "choices": 2, "capacity": 3, "ties": "fastest"},
    {"service_rates": [2, 1, 2, 1], "arrival_rate": 5, "choices": 3, "capacity": [2, 3, 2, 3], "sampling": "with_replacement",
     "overflow": "rerouted", "ties": ["shortest", "fastest"], "selection": "expected_delay", "total_capacity": 7},
    {"service_rates": [1, 1, 1], "preferences": [0.25, 0.5, 0.25], "arrival_rate": 2, "choices": 2, "capacity": 4,
     "ties": ["preferred", "random"], "selection": "shortest_queue", "measured_by": "tandem"},
    {"service_rates": [1, 1, 1, 3], "arrival_rate": 4, "choices": 2, "capacity": 3, "selection": "weighted",
     "weights": [0.5, 0.3, 0.2], "total_capacity": 6},
    {"service_rates": [1, 1, 1, 3], "arrival_rate": 4, "choices": 4, "capacity": 2, "selection": "weighted",
     "weights": [0, 1, 0], "sampling": "with_replacement"},
    {"service_rates": [1] * 5, "arrival_rate": 4, "choices": 2, "capacity": 2, "overflow": "rerouted"},
]  # fmt: skip


def names(design):
    return "-".join(str(value) for name, value in design.items() if name != "capacity")


def orbits(full, small, design):
    servers = len(design["service_rates"])
    preferences = np.array(design.get("preferences", [1 / servers] * servers))
    classes = server_classes(np.array(design["service_rates"], dtype=float), preferences, full.space.limits)
    return classes.positions(small.space, full.space.states(np.arange(full.size)))


@pytest.fixture(params=SYMMETRIC, ids=names, scope="module")
def pair(request):
    design = request.param
    full, small = supermarket(**design), supermarket(**design, lump=True)
    answers = [ctmc.solve(ctmc.Stationary(model), "gth") for model in (full, small)]
    return design, *answers


def test_the_lumped_model_is_the_quotient_of_the_full_one(pair):
    design, whole, lumped_answer = pair
    full, small = whole.problem.model, lumped_answer.problem.model
    part, sizes = orbits(full, small, design)
    assert sorted(set(part.tolist())) == list(range(small.size))
    np.testing.assert_array_equal(np.bincount(part)[part], sizes)
    quotient = lumped(full, part, space=small.space)
    for name in ("indptr", "sources"):
        np.testing.assert_array_equal(getattr(small, name), getattr(quotient, name))
    np.testing.assert_allclose(small.rates, quotient.rates, rtol=1e-14)
    assert full.size > small.size
    assert small.entries <= largest_entries(small.space)
    assert small.coloring is not None  # total jobs change by one
    jobs = small.space.states(np.arange(small.size)).sum(axis=1)
    np.testing.assert_array_equal(small.coloring, jobs % 2)


def test_all_measures_are_those_of_the_full_model(pair):
    _, whole, small = pair
    expected, found = whole.measures(), small.measures()
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12, atol=1e-14, err_msg=name)
    for name in whole.problem.model.all_rewards:
        np.testing.assert_allclose(small.expected(name), whole.expected(name), rtol=1e-12, atol=1e-14, err_msg=name)
    assert small.problem.model.notes == whole.problem.model.notes
    assert small.probability("jobs >= 3") == pytest.approx(whole.probability("jobs >= 3"), rel=1e-12)
    np.testing.assert_allclose(small.marginal("jobs"), whole.marginal("jobs"), rtol=1e-11)


def test_the_lifted_answer_is_that_of_the_full_model(pair):
    _, whole, small = pair
    lifted = lift(small)
    assert lifted.converged
    np.testing.assert_allclose(lifted.value, whole.value, rtol=1e-11)
    chain = lifted.problem.model
    assert np.abs(chain.forward(lifted.value)).sum() <= 1e-14 * (lifted.value @ chain.exit_rates) * 10
    condition = "queue_length[0] >= 2 and queue_length[1] < 2"
    assert lifted.probability(condition) == pytest.approx(whole.probability(condition), rel=1e-11)
    np.testing.assert_allclose(lifted.marginal("queue_length", 1), whole.marginal("queue_length", 1), rtol=1e-11)
    again = lift(small, whole.problem.model)
    np.testing.assert_array_equal(again.value, lifted.value)


def test_lifting_over_time():
    """The lifted start is spread over its orbit, and the full chain goes on from it as the lifted answer says."""
    design = {"service_rates": [2, 1, 2], "arrival_rate": 4, "choices": 2, "capacity": 3}
    small = supermarket(**design, lump=True)
    # coordinates: servers 0 and 2, sorted, then server 1
    solution = ctmc.solve(ctmc.Transient(small, initial=(2, 1, 3), times=[0.5, 2.0]))
    lifted = lift(solution)
    full = lifted.problem.model
    assert lifted.problem.initial.dense(full.size)[[full.space.index((2, 3, 1)), full.space.index((1, 3, 2))]].tolist() == [
        0.5, 0.5
    ]  # fmt: skip
    direct = ctmc.solve(ctmc.Transient(full, initial={(2, 3, 1): 0.5, (1, 3, 2): 0.5}, times=[0.5, 2.0]))
    np.testing.assert_allclose(lifted.value, direct.value, atol=1e-10)
    np.testing.assert_allclose(solution.expected("queue_length"), direct.expected("queue_length"), atol=1e-9)


def test_a_lift_that_does_not_fit_is_refused():
    small = supermarket([1] * 12, 9, 2, 2, lump=True)
    assert small.size == comb(14, 2)
    solution = ctmc.solve(ctmc.Stationary(small), "gth")
    with (
        ctmc.limited_memory("20MiB"),
        pytest.raises(ctmc.ModelError, match=r"lifted solution needs .* .531,441 states"),
    ):
        lift(solution)
    huge = ctmc.solve(ctmc.Stationary(supermarket([1] * 30, 24, 2, 2, total_capacity=5, lump=True)), "gth")
    with ctmc.limited_memory("20MiB"), pytest.raises(ctmc.ModelError, match="lifted solution needs"):
        lift(huge)
    with pytest.raises(ctmc.ModelError, match=r"lifted solution needs|64-bit"):
        lift(ctmc.solve(ctmc.Stationary(supermarket([1] * 20, 16, 2, 2, lump=True)), "gth"))
    full = supermarket([1] * 2, 1, 2, 2)
    with pytest.raises(ctmc.ModelError, match="not of a lumped model"):
        lift(ctmc.solve(ctmc.Stationary(full), "gth"))
    answer = ctmc.solve(ctmc.Stationary(supermarket([1] * 2, 1, 2, 3, lump=True)), "gth")
    with pytest.raises(ctmc.ModelError, match="full is another model"):
        lift(answer, full)


def test_conditions_on_class_means_are_refused():
    solution = ctmc.solve(ctmc.Stationary(supermarket([1, 1], 1, 2, 3, lump=True)), "gth")
    with pytest.raises(ctmc.ModelError, match="'queue_length' of a lumped model is a mean"):
        solution.probability("queue_length[0] >= 2")
    with pytest.raises(ctmc.ModelError, match="'idle' of a lumped model is a mean"):
        solution.marginal("idle", 0)
    whole = ctmc.solve(ctmc.Stationary(supermarket([1, 1], 1, 2, 3)), "gth")
    both = whole.probability("queue_length[0] >= 2 or queue_length[1] >= 2")
    assert solution.probability("sorted_queue_length[0] >= 2") == pytest.approx(both, rel=1e-12)


def test_different_servers_are_left_alone():
    design = {"service_rates": [3, 2, 1], "arrival_rate": 3, "choices": 2, "capacity": [2, 3, 4], "total_capacity": 7}
    plain, same = supermarket(**design), supermarket(**design, lump=True)
    assert same.space == plain.space
    for name in ("indptr", "sources", "rates", "exit_rates"):
        np.testing.assert_array_equal(getattr(same, name), getattr(plain, name))
    solution = ctmc.solve(ctmc.Stationary(same), "gth")
    assert solution.probability("queue_length[0] == 2") > 0
    np.testing.assert_array_equal(lift(solution).value, solution.value)


def test_classes_are_by_rate_preference_and_capacity():
    assert server_classes(
        np.array([1.0, 1, 1, 1, 2]), np.array([0.2, 0.2, 0.1, 0.2, 0.3]), [3, 4, 3, 3, 3]
    ) == ServerClasses((0, 3, 1, 2, 4), (2, 1, 1, 1))


@pytest.mark.parametrize(("servers", "capacity"), [(1, 3), (2, 5), (4, 3), (7, 2), (10, 4)])
def test_one_class_has_a_binomial_number_of_states(servers, capacity):
    model = supermarket([1] * servers, 0.5 * servers, min(2, servers), capacity, lump=True)
    assert model.size == comb(servers + capacity, capacity)
    # d = 1: every step of the lattice occurs, and the number that memory is asked for is exact
    single = supermarket([1] * servers, 0.5 * servers, 1, capacity, lump=True)
    assert servers == 1 or single.entries == largest_entries(single.space)


@pytest.mark.parametrize("servers", [2, 5])
def test_single_choice_makes_independent_queues(servers):
    """Closed form: an orbit has its multinomial coefficient times the product of the M/M/1/K probabilities."""
    model = supermarket([2.0] * servers, 1.5 * servers, 1, 4, lump=True)
    queue = 0.75 ** np.arange(5)
    queue /= queue.sum()
    states = model.space.states(np.arange(model.size))
    expected = []
    for state in states:
        ways, left = 1, servers
        for count in np.bincount(state, minlength=5).tolist():
            ways *= comb(left, count)
            left -= count
        expected.append(ways * np.prod(queue[state]))
    found = ctmc.solve(ctmc.Stationary(model), "gth")
    np.testing.assert_allclose(found.value, expected, rtol=1e-12)
    np.testing.assert_allclose(found.expected("queue_length"), [queue @ np.arange(5)] * servers, rtol=1e-13)


def test_stability_notes_name_servers_as_they_were_given():
    design = {"service_rates": [4, 3, 4], "preferences": [0.25, 0.5, 0.25], "arrival_rate": 5.5, "choices": 2, "capacity": 3,
              "selection": "weighted", "weights": [0, 1, 0]}  # fmt: skip
    assert supermarket(**design).notes == supermarket(**design, lump=True).notes
    heavy = {**design, "weights": [0, 0, 1]}
    (note,) = supermarket(**heavy, lump=True).notes
    assert supermarket(**heavy).notes == (note,)
    assert "server 1 gets jobs at the fixed rate 3.66667" in note


def test_memory_is_checked_before_building():
    with ctmc.limited_memory("1GiB"), pytest.raises(
        ctmc.ModelError, match=r"lumped supermarket model needs .* \(30,045,015 states, 400,600,200 transitions\)"
    ):  # fmt: skip
        supermarket([1] * 20, 16, 2, 10, lump=True)


def test_a_lumped_model_comes_back_from_its_file(tmp_path):
    model = supermarket([2, 1, 2], 3, 2, 3, total_capacity=7, lump=True)
    path = tmp_path / "model.h5"
    ctmc.save(path, model)
    again = ctmc.load(path)
    assert again.space == model.space
    assert again.recipe == model.recipe
    one, other = (ctmc.solve(ctmc.Stationary(chain), "gth") for chain in (model, again))
    np.testing.assert_array_equal(one.measures()["queue_length"], other.measures()["queue_length"])
    np.testing.assert_array_equal(lift(other).value, lift(one).value)


def halves(x, mu, g):
    return x // 2


def test_a_model_that_is_selected_by_a_function_is_lifted_to_the_one_given():
    design = {"service_rates": [1, 1], "arrival_rate": 1.5, "choices": 2, "capacity": 4, "selection": halves}
    answer = ctmc.solve(ctmc.Stationary(supermarket(**design, lump=True)), "gth")
    with pytest.raises(ctmc.ModelError, match="selection names the function"):
        lift(answer)
    whole = ctmc.solve(ctmc.Stationary(supermarket(**design)), "gth")
    np.testing.assert_allclose(lift(answer, whole.problem.model).value, whole.value, rtol=1e-12)
    with ctmc.allowed_code():
        np.testing.assert_allclose(lift(answer).value, whole.value, rtol=1e-12)


@pytest.mark.parametrize("lump", [1, "yes", None])
def test_lump_is_true_or_false(lump):
    with pytest.raises(ctmc.ModelError, match=r"lump is .*; allowed are True and False"):
        supermarket([1, 1], 1, 2, 3, lump=lump)


def test_one_server_has_nothing_to_lump():
    solution = ctmc.solve(ctmc.Stationary(supermarket(2.0, 1.0, 1, 5, lump=True)), "gth")
    np.testing.assert_allclose(lift(solution).value, 0.5 ** np.arange(6) / (0.5 ** np.arange(6)).sum(), rtol=1e-14)


@pytest.mark.slow
def test_many_different_rates_take_wider_codes():
    """More than 256 rates, as lengths 0 and 1, 2 and 3 tie; server by server, the chain is the same."""
    servers = 16
    model = supermarket(
        [1.0] * servers, 12.0, 5, 3, selection=halves, sampling="with_replacement", lump=True
    )  # fmt: skip
    assert len(np.unique(model.rates)) > 256
    shares = shared_probabilities(servers, 5, "with_replacement")
    expected = {}
    states = model.space.states(np.arange(model.size))
    for number, state in enumerate(states.tolist()):
        for i, length in enumerate(state):
            keys = [other // 2 for other in state]
            share = shares[sum(key < keys[i] for key in keys)][keys.count(keys[i])]
            for change, rate in ((1, 12 * share), (-1, Fraction(1))):
                if rate and 0 <= length + change <= 3:
                    target = tuple(sorted([*state[:i], length + change, *state[i + 1 :]], reverse=True))
                    expected[number, target] = expected.get((number, target), 0) + rate
    assert model.entries == len(expected)
    sources, targets = zip(*expected, strict=True)
    found = model.to_scipy()[list(sources), model.space.index(np.array(targets))]
    np.testing.assert_allclose(found, [float(rate) for rate in expected.values()], rtol=1e-14)
