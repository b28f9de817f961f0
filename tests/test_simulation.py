"""Simulation of generators and what all simulations share: coverage, pairs, streams, plans, first passage, bad input."""

import numpy as np
import pytest

import ctmc
from ctmc import registry
from ctmc.estimate import Estimate, difference, variance_interval
from ctmc.model.jump_chain import rows_by_source, target_states
from ctmc.model.memory import limited_memory
from ctmc.model.random_streams import (
    exponential,
    half_of,
    index_of_half,
    next_word,
    refused_below,
    spawn_streams,
    uniform,
)
from ctmc.simulation import Plan, replicate, simulate_generator
from ctmc.threads import limited_threads

QUEUE = {"births": [1.0] * 6, "deaths": [2.0] * 6}


def test_words_are_those_of_the_published_generator():
    """The first numbers of xoshiro256++ from the state 1, 2, 3, 4, as in the reference implementation."""
    streams = np.array([[1, 2, 3, 4]], dtype=np.uint64)
    expected = [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205, 9973669472204895162]
    assert [int(next_word(streams, 0)) for _ in expected] == expected


def test_exponential_numbers_have_the_law_in_the_body_and_in_the_tail():
    streams = spawn_streams(60101, 0, 1, 1)[0]
    found = np.sort([exponential(streams, 0) for _ in range(200_000)])
    law = 1 - np.exp(-found)
    steps = np.arange(1, len(found) + 1) / len(found)
    assert np.abs(law - steps).max() < 1.63 / np.sqrt(len(found))  # Kolmogorov and Smirnov, level 1 %
    assert found.mean() == pytest.approx(1, abs=0.008)
    beyond = np.sum(found > 7.7) / len(found)  # the tail has a branch of its own
    assert beyond == pytest.approx(np.exp(-7.7), rel=0.25)
    assert found[0] > 0


def test_numbers_below_a_bound_are_fair():
    """With 3 x 2^30 of 2^32 a plain multiplication would make every third number twice as likely."""
    size = np.uint64(3 * 2**30)
    streams, threshold = spawn_streams(60102, 0, 1, 1)[0], refused_below(3 * 2**30)
    thirds, refused = np.zeros(3, dtype=int), 0
    for _ in range(30_000):
        index = index_of_half(next_word(streams, 0) & np.uint64(0xFFFFFFFF), size, threshold)
        if index == np.uint64(0xFFFFFFFFFFFFFFFF):
            refused += 1
        else:
            thirds[int(index) % 3] += 1
    assert refused / 30_000 == pytest.approx(0.25, abs=0.01)
    assert np.abs(thirds / thirds.sum() - 1 / 3).max() < 0.012


def test_half_words_begin_with_the_key_and_differ():
    key = np.uint64(0x123456789ABCDEF0)
    halves = [int(half_of(key, np.uint64(k))) for k in range(64)]
    assert halves[:2] == [0x9ABCDEF0, 0x12345678]
    assert len(set(halves)) == 64
    assert all(0 < uniform(spawn_streams(k, 0, 1, 1)[0], 0) <= 1 for k in range(2, 40))


def test_intervals_cover_the_exact_value_in_95_percent_of_1000_runs():
    """Begun in the stationary distribution, an average over any time has the stationary mean: nothing is left to the warm-up."""
    chain = ctmc.build("birth_death", **QUEUE)
    solution = ctmc.solve(ctmc.Stationary(chain), "gth")
    exact, inside = solution.expected("jobs"), 0
    for seed in range(7000, 8000):
        found = simulate_generator(
            chain, rewards=["jobs"], initial=solution.value, horizon=60, warm_up=0, replications=12, seed=seed
        )
        low, high = found.interval("jobs")
        inside += low < exact < high
    assert 930 <= inside <= 970


def test_rewards_at_times_and_their_integrals_have_the_transient_means():
    chain = ctmc.build("supermarket", service_rates=[3, 2, 1], arrival_rate=3, choices=2, capacity=5)
    times = [0.5, 2.0]
    found = ctmc.simulate(chain, times=times, rewards=["jobs", "queue_length"], replications=8000, seed=60103)
    exact = ctmc.solve(ctmc.Transient(chain, times=times))
    for name in ("jobs", "queue_length"):
        low, high = found.trajectories[name].band
        mean, value = found.trajectories[name].means, np.array(exact.expected(name))
        assert np.all(np.abs(mean - value) < 1.5 * (high - low) / 2)
    # the integral by quadrature over a fine grid
    grid = np.linspace(0, 2, 201)
    values = np.array(ctmc.solve(ctmc.Transient(chain, times=grid[1:])).expected("jobs"))
    path = np.concatenate([[0], values])
    integral = (grid[1] / 3) * (path[0] + path[-1] + 4 * path[1:-1:2].sum() + 2 * path[2:-1:2].sum())
    low, high = (end[1] for end in found.trajectories["accumulated_jobs"].band)
    assert low - 0.003 < integral < high + 0.003
    assert found.means["jobs"] == pytest.approx(found.trajectories["accumulated_jobs"].means[1] / 2, rel=1e-12)


def test_a_constant_reward_accumulates_to_the_time_and_discounts_in_closed_form():
    chain = ctmc.build("birth_death", **QUEUE).with_reward("one", np.ones(7))
    found = ctmc.simulate(
        chain, rewards=["one"], times=[0.0, 1.5, 4.0], initial=(0,), discount=0.5, replications=20, seed=60104
    )
    assert found.trajectories["accumulated_one"].means == pytest.approx([0, 1.5, 4], rel=1e-12, abs=1e-12)
    assert found.trajectories["accumulated_one_variance"].means == pytest.approx([0, 0, 0], abs=1e-20)
    assert found.means["discounted_one"] == pytest.approx((1 - np.exp(-2)) / 0.5, rel=1e-12)


def test_time_until_a_condition_holds():
    """From 0, rate 1 up and 2 down, the mean times to 1, 2, 3 are 1, 1 + 3, 1 + 3 + 7: u_k = 1 + 2 u_{k-1}."""
    chain = ctmc.build("birth_death", **QUEUE)
    found = ctmc.simulate(chain, target="jobs >= 3", initial=(0,), horizon=1e5, replications=6000, seed=60105)
    low, high = found.interval("first_passage_time")
    assert low < 11 < high
    assert high - low < 0.7
    assert found.means["reached"] == 1
    short = ctmc.simulate(chain, target="jobs >= 3", initial=(0,), horizon=3, replications=4000, seed=60106)
    absorbed = ctmc.Generator.from_matrix([[-1, 1, 0, 0], [2, -3, 1, 0], [0, 2, -3, 1], [0, 0, 0, 0]])
    exact = ctmc.solve(ctmc.Transient(absorbed, initial=(0,), times=[3.0])).value[0, 3]
    low, high = short.interval("reached")
    assert low < exact < high
    assert "first_passage_time" not in short.means
    assert "did not reach" in short.notes[0]
    there = ctmc.simulate(chain, target="jobs == 2", initial=(2,), horizon=3, replications=2, seed=60107)
    assert there.means["first_passage_time"] == 0


def test_a_label_is_a_target_and_an_absorbing_state_keeps_the_path():
    chain = ctmc.Generator.from_matrix(
        [[-2, 1, 1], [0, 0, 0], [0, 0, 0]], labels={"won": np.array([False, True, False])}
    )
    found = ctmc.simulate(chain, target="won", initial=(0,), horizon=50, replications=4000, seed=60108)
    low, high = found.interval("reached")
    assert low < 0.5 < high
    assert target_states(chain, "won or state == 2").tolist() == [False, True, True]
    assert target_states(chain, "true").all()


@pytest.mark.parametrize("form", ["written_out", "coded", "lattice"])
def test_every_stored_form_gives_the_same_rows_and_the_same_estimate(form):
    chain = ctmc.build("supermarket", service_rates=[3, 2], arrival_rate=3, choices=2, capacity=4)
    assert chain.representation == "lattice"
    other = chain if form == "lattice" else getattr(chain, form)()
    indptr, targets, cumulative = rows_by_source(other)
    matrix = other.to_scipy().tolil()
    matrix.setdiag(0)
    for i in range(chain.size):
        row = slice(int(indptr[i]), int(indptr[i + 1]))
        assert targets[row].tolist() == sorted(
            matrix.rows[i][k] for k in range(len(matrix.rows[i])) if matrix.data[i][k]
        )
        assert cumulative[row][-1] == pytest.approx(chain.exit_rates[i], rel=1e-14)
        rates = dict(zip(matrix.rows[i], matrix.data[i], strict=True))
        assert np.diff(cumulative[row], prepend=0) == pytest.approx([rates[int(j)] for j in targets[row]], rel=1e-12)
    found = ctmc.simulate(other, rewards=["jobs"], horizon=50, replications=4, seed=60109)
    same = ctmc.simulate(chain.written_out(), rewards=["jobs"], horizon=50, replications=4, seed=60109)
    assert found.means["jobs"] == pytest.approx(same.means["jobs"], rel=1e-12)


def test_long_rows_are_searched_by_halves():
    """One state leads to forty others, at rates 1, 2, .., 40, and each leads back."""
    n = 41
    matrix = np.zeros((n, n))
    matrix[0, 1:] = np.arange(1, n)
    matrix[1:, 0] = 1e4
    chain = ctmc.Generator.from_matrix(matrix).with_reward("at", np.eye(n))
    found = ctmc.simulate(chain, rewards=["at"], initial=(0,), horizon=400, warm_up=0, replications=8, seed=60110)
    exact = ctmc.solve(ctmc.Stationary(chain), "gth").value
    off = np.abs(found.means["at"] - exact) / found.half_widths["at"]
    assert np.sum(off > 1) <= 6
    assert off.max() < 3


def test_neither_threads_nor_portions_change_the_estimate(monkeypatch):
    chain = ctmc.build("birth_death", **QUEUE)

    def run():
        return ctmc.simulate(chain, rewards=["jobs"], initial=(0,), horizon=20, replications=37, seed=60111)

    first = run()
    with limited_threads(1):
        one = run()
    monkeypatch.setattr("ctmc.simulation._CHUNK_SECONDS", 0.0)
    assert run().samples["jobs"].tolist() == one.samples["jobs"].tolist() == first.samples["jobs"].tolist()
    other = ctmc.simulate(chain, rewards=["jobs"], initial=(0,), horizon=20, replications=37, seed=60112)
    assert other.means["jobs"] != first.means["jobs"]


def test_a_monitor_ends_the_simulation_with_what_is_done():
    chain = ctmc.build("birth_death", **QUEUE)
    seen = []

    def monitor(done, total):
        seen.append((done, total))
        return True

    found = ctmc.simulate(chain, initial=(0,), horizon=1, replications=10_000, seed=60113, monitor=monitor)
    assert 2 <= found.replications < 10_000
    assert len(found.samples["jobs"]) == found.replications == seen[-1][0]
    jobs = ctmc.simulate(
        "fork_join",
        service_rates=[5, 2, 1],
        arrival_rate=1,
        tasks=3,
        jobs=200,
        replications=9,
        seed=60114,
        monitor=monitor,
    )
    assert jobs.replications == 2


def test_plans_cut_a_run_into_batches():
    plan = Plan.checked(horizon=100, times=None, warm_up=20, replications=None, batches=4, seed=3)
    assert plan.grid.tolist() == [20, 40, 60, 80, 100]
    assert plan.durations.tolist() == [20] * 4
    integrals = np.array([[[1.0], [3.0], [7.0], [7.0], [9.0]]])
    assert plan.parts(integrals).tolist() == [[2], [4], [0], [2]]
    assert replicate(plan, 1, lambda streams: [np.zeros(len(streams))])[0].shape == (1,)
    both = Plan.checked(horizon=10, times=[0, 5, 10], warm_up=5, replications=3, seed=3)
    assert (both.grid.tolist(), both.edges.tolist(), both.shown.tolist()) == ([0, 5, 10], [1, 2], [0, 1, 2])


def test_the_interval_of_a_variance_covers_it():
    rng = np.random.default_rng(60115)
    inside = 0
    for _ in range(1000):
        variance, reach = variance_interval(rng.normal(size=(600, 1)))
        inside += abs(variance[0] - 1) < reach[0]
    assert 930 <= inside <= 970
    skewed = rng.exponential(size=(100_000, 1))
    _, reach = variance_interval(skewed)
    assert reach[0] == pytest.approx(1.96 * np.sqrt(8 / 100_000), rel=0.15)  # m4 - m2^2 = 9 - 1


def test_names_of_measures():
    found = Estimate.from_samples(
        {"jobs": np.array([1.0, 2.0]), "queue_length": np.array([[1.0, 2.0], [3.0, 5.0]])},
        title="Two", run="time 1", replications=2, warm_up=0, seed=3,
    )  # fmt: skip
    assert found.interval("queue_length[1]")[0] == pytest.approx(found.interval("queue_length")[0][1])
    assert "queue_length  2 +- 13, 3.5 +- 19" in repr(found)
    for name in ("queues", "queue_length[2]", "queue_length[x]", "jobs[0]"):
        with pytest.raises(ctmc.UnknownNameError, match="no measure"):
            found.interval(name)


def test_differences_need_something_in_common():
    chain = ctmc.build("birth_death", **QUEUE)
    first = ctmc.simulate(chain, rewards=["jobs"], initial=(0,), horizon=5, replications=3, seed=60116)
    fewer = ctmc.simulate(chain, rewards=["jobs"], initial=(0,), horizon=5, replications=2, seed=60116)
    target = ctmc.simulate(chain, target="jobs >= 1", initial=(0,), horizon=500, replications=3, seed=60116)
    assert difference(first, first).means["jobs"] == 0
    with pytest.raises(ctmc.ModelError, match="3 and 2 replications"):
        difference(first, fewer)
    with pytest.raises(ctmc.ModelError, match="no measure in common"):
        difference(first, target)


BAD = [
    ({"horizon": None}, "horizon is missing"),
    ({"horizon": 0}, "horizon is 0"),
    ({"horizon": -1}, "horizon is -1"),
    ({"horizon": "long"}, "horizon is 'long'"),
    ({"horizon": float("inf")}, "horizon is inf"),
    ({"times": [1, 20]}, "horizon is 10"),
    ({"times": [2, 1]}, r"times is \[2, 1\]; allowed are one or more finite times >= 0, ascending"),
    ({"times": [-1, 1]}, r"times is \[-1, 1\]"),
    ({"times": []}, "times is empty"),
    ({"warm_up": 10}, "warm_up is 10; allowed is a time before the horizon 10"),
    ({"replications": 1}, "replications is 1"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 1.5}, "seed is 1.5"),
    ({"discount": 0}, "discount is 0; allowed is a rate > 0"),
    ({"discount": -0.5}, "discount is -0.5"),
    ({"initial": None}, "initial is missing"),
    ({"initial": (9,)}, "9"),
    ({"rewards": ["sobj"]}, "There is no reward 'sobj'"),
    ({"target": "sobj > 1"}, "There is no reward, variable or label 'sobj'"),
    ({"target": "jobs >"}, "expected a name or a number"),
    ({"target": "jobs > 1", "rewards": ["jobs"]}, "target is given with times, rewards"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_bad_input(change, sentence):
    chain = ctmc.build("birth_death", **QUEUE).replace(initial=None)
    with pytest.raises(ctmc.CTMCError, match=sentence):
        ctmc.simulate(chain, **{"initial": (0,), "horizon": 10, "seed": 60117, **change})


def test_what_can_be_simulated():
    assert registry.simulator_names() == ["fork_join", "supermarket"]
    with pytest.raises(
        ctmc.UnsupportedProblemError, match="'birth_death' has no simulator of its own; builders that have: fork_join"
    ):
        ctmc.simulate("birth_death", seed=60118)
    with pytest.raises(ctmc.UnknownNameError, match="supermarket"):
        ctmc.simulate("supermarkt", seed=60118)
    queue = ctmc.build("fork_join", service_rates=[5, 2, 1], arrival_rate=1, tasks=3)
    with pytest.raises(ctmc.ModelError, match=r"model is a QBD; .* queue.truncate"):
        ctmc.simulate(queue, seed=60118)


def test_memory_is_asked_for():
    chain = ctmc.build("birth_death", births=[1.0] * 5000, deaths=[2.0] * 5000)
    with limited_memory("100KiB"), pytest.raises(ctmc.ModelError, match="the values of the rewards needs"):
        ctmc.simulate(chain, initial=(0,), horizon=1, seed=60119, rewards=["jobs"] * 3)
    with limited_memory("100KiB"), pytest.raises(ctmc.ModelError, match="the jump chain needs"):
        ctmc.simulate(chain, initial=(0,), horizon=1, seed=60119, target="jobs > 1")
    with limited_memory("1MiB"), pytest.raises(ctmc.ModelError, match="what the replications see needs"):
        ctmc.simulate(chain, initial=(0,), horizon=1, seed=60119, rewards=["jobs"], replications=100_000)
