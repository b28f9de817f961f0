"""Simulation of the supermarket: every rule against exact values, reward processes, pairs of designs, and what limits it."""

import json
import os
import signal
import tomllib
from importlib.resources import files

import numpy as np
import pytest

import ctmc
from builders.supermarket import event_loop
from builders.supermarket.simulation import simulate
from ctmc.cli import main
from ctmc.cli.progress import Progress
from ctmc.simulation import compare, difference

REFERENCE = tomllib.loads(files("ctmc.data.reference").joinpath("supermarket.toml").read_text(encoding="utf-8"))
COMMON = {name: REFERENCE["common"][name] for name in ("service_rates", "preferences", "arrival_rate", "choices")}
NAMES = ("throughput", "utilization", "queue_length", "jobs", "response_time", "blocking_probability", "imbalance")


def off_by(found, exact, names=NAMES):
    """Return how many half widths each number is off; the half width of what is always 0 counts as 1e-3."""
    return np.concatenate(
        [
            np.ravel(np.abs(found.means[name] - np.asarray(exact[name])) / np.maximum(found.half_widths[name], 1e-3))
            for name in names
        ]
    )


CASES = [
    *[(row["parameters"], 12) for row in REFERENCE["stationary"]],
    ({"selection": "weighted", "weights": [0.2, 0.5, 0.3]}, 25),
    ({"selection": "expected_delay"}, 14),
    ({"ties": "preferred"}, 14),
    ({"selection": "shortest_queue", "ties": ["preferred", "fastest"]}, 14),
    ({"selection": "shortest_queue", "ties": "fastest", "measured_by": "expected_delay"}, 14),
    ({"choices": 3}, 14),
    pytest.param({"choices": 5, "sampling": "with_replacement"}, 14, marks=pytest.mark.slow),
    ({"capacity": [2, 1, 3], "arrival_rate": 4.5}, None),
    ({"capacity": [2, 1, 3], "arrival_rate": 4.5, "overflow": "rerouted"}, None),
    ({"capacity": 3, "total_capacity": 5, "arrival_rate": 4.5, "overflow": "rerouted"}, None),
    ({"capacity": 4, "total_capacity": 6, "arrival_rate": 6.5, "selection": "expected_delay"}, None),
]


@pytest.mark.parametrize(("change", "capacity"), CASES, ids=[str(case[0]) for case in CASES])
def test_every_rule_has_the_exact_stationary_values(change, capacity):
    parameters = {**COMMON, **change}
    found = simulate(**parameters, horizon=12_000, replications=16, seed=71001)
    truncated = parameters if capacity is None else {**parameters, "capacity": capacity}
    exact = ctmc.solve(ctmc.Stationary(ctmc.build("supermarket", **truncated)), "bicgstab").measures()
    off = off_by(found, exact)
    assert np.sum(off > 1) <= 3  # the numbers depend on each other: a few may lie outside together
    assert off.max() < 2.2
    assert np.max(found.half_widths["queue_length"]) < 0.02 * np.max(exact["queue_length"]) + 0.01


def test_the_rules_are_told_apart():
    """What the test above allows is less than what lies between the rules."""
    exact = {str(row["parameters"]): np.array(row["queue_length"]) for row in REFERENCE["stationary"]}
    found = simulate(**COMMON, ties="fastest", horizon=12_000, replications=16, seed=71001)
    off = {
        name: np.max(np.abs(found.means["queue_length"] - value) / found.half_widths["queue_length"])
        for name, value in exact.items()
    }
    assert sorted(off.values())[2] > 4  # (shortest, fastest) is too near to 'fastest' to be told apart


@pytest.mark.slow  # test_gate_intervals tries every kind of measure with fewer runs
def test_intervals_cover_the_exact_mean_in_95_percent_of_1000_runs():
    """Jobs in the system at time 3, from empty: nothing is left to a warm-up or a truncation that matters."""
    chain = ctmc.build("supermarket", **COMMON, capacity=12)
    exact = ctmc.solve(ctmc.Transient(chain, times=[3.0])).expected("jobs")
    inside = 0
    for seed in range(8000, 9000):
        found = simulate(**COMMON, times=[3.0], replications=30, seed=seed)
        low, high = found.trajectories["jobs"].band
        inside += low[0] < exact[0] < high[0]
    assert 930 <= inside <= 970


def test_trajectories_have_the_transient_means():
    chain = ctmc.build("supermarket", **COMMON, capacity=12)
    times = [0.0, 0.3, 1.0, 4.0]
    found = simulate(**COMMON, times=times, initial=[2, 1, 0], replications=12_000, seed=71002)
    exact = ctmc.solve(ctmc.Transient(chain, initial=(2, 1, 0), times=times))
    for name in ("queue_length", "jobs", "imbalance"):
        path = found.trajectories[name]
        value = np.array(exact.expected(name))
        assert np.all(np.abs(path.means - value) <= 1.5 * path.half_widths + 1e-12)
        assert path.means[0] == pytest.approx(value[0], rel=1e-12)


@pytest.mark.parametrize("row", REFERENCE["reward_process"], ids=["tandem", "weighted"])
@pytest.mark.parametrize("start", [0, 1])
def test_reward_processes_have_the_reference_means(row, start):
    found = simulate(
        **COMMON, **row["parameters"], initial=row["initial"][start], times=[row["time"]], horizon=45,
        discount=row["discount"], replications=12_000, seed=71003,
    )  # fmt: skip
    low, high = found.trajectories["accumulated_imbalance"].band
    assert low[0] < row["accumulated"][start] < high[0]
    assert high[0] - low[0] < 0.02
    low, high = found.interval("discounted_imbalance")
    assert low < row["discounted"][start] < high


def test_the_variance_of_a_reward_process_is_that_of_the_moment_equations():
    """m1' = Q m1 + r, m2' = Q m2 + 2 r m1, by a Taylor series of the matrix exponential of the block system."""
    from scipy.sparse import block_array, csr_array
    from scipy.sparse.linalg import expm_multiply

    chain = ctmc.build("supermarket", **COMMON, capacity=7)
    matrix = chain.to_scipy()
    for name in ("imbalance", "jobs"):
        reward = chain.all_rewards[name].evaluate(chain.space.states(np.arange(chain.size)), slice(0, chain.size))
        own = csr_array((reward, (np.arange(chain.size), np.arange(chain.size))), shape=matrix.shape)
        zero = csr_array(matrix.shape)
        system = block_array([[matrix, own, zero], [zero, matrix, 2 * own], [zero, zero, matrix]])
        ones = np.concatenate([np.zeros(2 * chain.size), np.ones(chain.size)])
        # the lowest block is 1, the middle one 2 m1, the upper one m2
        found = expm_multiply(system * 2.0, ones, traceA=float(system.trace() * 2))
        second, first = found[0], found[chain.size] / 2
        estimate = simulate(**COMMON, times=[2.0], replications=20_000, seed=71004)
        mean, variance = (estimate.trajectories[f"accumulated_{name}{end}"] for end in ("", "_variance"))
        assert abs(mean.means[0] - first) < 1.5 * mean.half_widths[0]
        assert abs(variance.means[0] - (second - first**2)) < 1.5 * variance.half_widths[0] + 1e-3


def test_one_choice_makes_independent_queues():
    """Each of three servers is an M/M/1 queue with arrivals at rate 0.5: E[x] = a / (mu - a), and the time Exp(mu - a)."""
    found = simulate(service_rates=[1.5, 1.0, 2.5], arrival_rate=1.5, choices=1, horizon=20_000, replications=16,
                     response_times=True, seed=71005)  # fmt: skip
    rates = np.array([1.0, 0.5, 2.0])
    exact = {
        "queue_length": 0.5 / rates,
        "utilization": 0.5 / np.array([1.5, 1, 2.5]),
        "response_time": (1 / rates).mean(),
    }
    assert off_by(found, exact, list(exact)).max() < 1.5
    from scipy.optimize import brentq

    for level in (50, 95, 99):
        quantile = brentq(lambda t, level=level: np.exp(-rates * t).mean() - (1 - level / 100), 0, 50)
        low, high = found.interval(f"response_time_p{level}")
        assert low - 0.002 * quantile < quantile < high + 0.002 * quantile


def test_response_times_of_jobs_followed_agree_with_littles_law_and_with_the_law_at_arrivals():
    alike = {"service_rates": [1.0], "servers": 5, "arrival_rate": 4.0, "choices": 2, "horizon": 8000, "seed": 71006}
    followed, counted = simulate(**alike, response_times=True), simulate(**alike)
    assert counted.means["jobs"] == followed.means["jobs"]
    assert followed.means["response_time"] == pytest.approx(counted.means["response_time"], rel=2e-3)
    assert followed.means["response_time_p50"] < followed.means["response_time"] < followed.means["response_time_p95"]


def test_jobs_that_are_there_at_the_start_have_no_response_time():
    rare = {"service_rates": [1.0, 2.0], "arrival_rate": 1e-9, "choices": 2, "initial": [3, 4], "seed": 71020}
    found = simulate(**rare, horizon=100, warm_up=0, response_times=True)
    assert np.isnan(found.means["response_time"])
    assert np.isnan(found.means["response_time_p99"])
    assert found.means["queue_length"] == pytest.approx(
        [6 / 100, 5 / 100], rel=0.5
    )  # (1 + 2 + 3) / 1, (1 + .. + 4) / 2


def test_more_jobs_than_there_are_places_at_first():
    """An overloaded server: who leaves at time t came at t / 5, so those who leave in [500, 1000] stayed 600 on average."""
    found = simulate(service_rates=[1.0], arrival_rate=5.0, choices=1, horizon=1000, warm_up=500, replications=8,
                     response_times=True, seed=71021)  # fmt: skip
    assert found.means["response_time"] == pytest.approx(600, rel=0.05)
    assert found.means["response_time_p50"] == pytest.approx(600, rel=0.05)


def test_batches_of_one_run_give_intervals_as_well():
    found = simulate(**COMMON, horizon=100_000, batches=20, seed=71007)
    exact = REFERENCE["stationary"][0]
    assert found.replications == 20
    assert found.samples["queue_length"].shape == (20, 3)
    assert off_by(found, exact, ["queue_length", "throughput"]).max() < 1.5
    many = simulate(**COMMON, horizon=5000, batches=5, response_times=True, seed=71007)
    assert many.samples["response_time_p95"].shape == (5,)


def test_many_servers_tend_to_the_mean_field():
    """Equal servers, d = 2: a fraction load^(2^k - 1) of the queues has k jobs and more, as M goes to infinity."""
    found = simulate(service_rates=[1.0], servers=4000, arrival_rate=3200, choices=2, horizon=500, warm_up=60,
                     replications=2, seed=71008)  # fmt: skip
    tails = 0.8 ** (2.0 ** np.arange(1, 12) - 1)
    assert found.means["queue_length"] == pytest.approx(tails.sum(), rel=5e-3)
    assert found.means["utilization"] == pytest.approx(0.8, rel=3e-3)
    assert "imbalance" not in found.means
    assert found.trajectories == {}
    exact = ctmc.solve(
        ctmc.Stationary(
            ctmc.build("supermarket", service_rates=[1.0] * 4, arrival_rate=3.2, choices=2, capacity=10, lump=True)
        )
    )
    few = simulate(
        service_rates=[1.0], servers=4, arrival_rate=3.2, choices=2, horizon=20_000, by_server=False, seed=71009
    )
    assert abs(4 * few.means["queue_length"] - exact.expected("jobs")) < 1.5 * few.half_widths["jobs"]
    assert few.means["jobs"] == pytest.approx(4 * few.means["queue_length"], rel=1e-12)


def test_many_choices_of_many_servers_are_shuffled():
    """All of ten equal servers sampled: join the shortest queue."""
    chain = ctmc.build("supermarket", service_rates=[1.0] * 10, arrival_rate=9, choices=10, capacity=3, lump=True)
    exact = ctmc.solve(ctmc.Stationary(chain)).measures()
    found = simulate(service_rates=[1.0] * 10, arrival_rate=9, choices=10, capacity=3, horizon=5000, seed=71010)
    assert off_by(found, exact, ["jobs", "blocking_probability", "utilization"]).max() < 1.8


@pytest.mark.parametrize(("size", "choices"), [(5, 2), (5, 5), (40, 12), (12, 12)])
def test_samples_are_distinct_fair_and_depend_on_their_key_only(size, choices):
    shuffled = choices > 8
    order = np.arange(size if shuffled else 0).astype(np.uint64)
    chosen = np.zeros(choices, dtype=np.uint64)
    threshold = event_loop.refused_below(size)
    rng = np.random.default_rng(71011)
    first, members = np.zeros(size), np.zeros(size)
    for key in rng.integers(0, 2**64, 6000, dtype=np.uint64):
        event_loop._sample(key, np.uint64(choices), False, np.uint64(size), threshold, chosen, order)
        assert len(set(chosen.tolist())) == choices
        first[chosen[0]] += 1
        members[chosen.astype(int)] += 1
    assert np.abs(first / 6000 * size - 1).max() < 5 * np.sqrt(size / 6000)
    assert np.abs(members / 6000 - choices / size).max() < 0.035
    assert order.tolist() == list(range(len(order)))


def test_common_random_numbers_narrow_the_interval_of_a_difference():
    base = {**COMMON, "horizon": 1500, "replications": 20}
    paired = compare("supermarket", {"ties": "random"}, {"ties": "fastest"}, **base, seed=71012)
    apart = difference(simulate(**base, seed=71012), simulate(**base, ties="fastest", seed=71013))
    assert paired.half_widths["jobs"] < 0.4 * apart.half_widths["jobs"]
    rows = [np.sum(REFERENCE["stationary"][k]["queue_length"]) for k in (0, 4)]
    low, high = paired.interval("jobs")
    assert low < rows[0] - rows[1] < high
    more = compare(
        "supermarket", {"choices": 2}, {"choices": 3}, **{k: v for k, v in base.items() if k != "choices"}, seed=71012
    )
    assert more.half_widths["throughput"] < 1e-3  # the same jobs arrive
    faster = compare(
        "supermarket",
        {"arrival_rate": 3},
        {"arrival_rate": 3.1},
        **{k: v for k, v in base.items() if k != "arrival_rate"},
        seed=71012,
    )
    assert faster.interval("jobs")[1] < 0


def test_designs_with_other_service_rates_see_the_same_arrivals():
    slow, fast = ({"service_rates": rates} for rates in ([3, 2, 1], [4, 2, 1.5]))
    found = compare("supermarket", slow, fast, arrival_rate=3, choices=2, horizon=50, replications=4, seed=71022)
    assert found.samples["throughput"].tolist() == [0] * 4
    assert found.means["jobs"] > 0


def test_the_same_seed_gives_the_same_arrivals_whatever_is_kept():
    runs = [
        simulate(**COMMON, times=[5.0, 50.0], replications=3, seed=71014, **kept)
        for kept in ({}, {"response_times": True}, {"by_server": False, "imbalance": False}, {"discount": 0.3})
    ]
    for other in runs[1:]:
        assert other.samples["throughput"].tolist() == runs[0].samples["throughput"].tolist()
        assert other.trajectories["jobs"].samples.tolist() == runs[0].trajectories["jobs"].samples.tolist()


def test_alias_tables_give_every_server_its_share():
    weights = np.random.default_rng(71015).exponential(size=57)
    accepted, aliases = event_loop.alias_table(weights)
    shares = accepted.copy()
    np.add.at(shares, aliases.astype(int), 1 - accepted)
    assert shares / 57 == pytest.approx(weights / weights.sum(), rel=1e-12)
    assert event_loop.alias_table(np.ones(3))[0].size == 0


def test_percentiles_from_the_histogram():
    samples = np.random.default_rng(71016).exponential(size=100_000)
    counts = np.bincount([event_loop._bin_of(sample) for sample in samples], minlength=event_loop.BINS)
    exact = np.percentile(samples, [5, 50, 99])
    assert event_loop.percentile(counts, (5, 50, 99)) == pytest.approx(exact, rel=1e-3)
    assert np.isnan(event_loop.percentile(0 * counts, (50,))).all()
    assert [event_loop._bin_of(value) for value in (1e-30, 1.0, 1e30)] == [0, 32 * 512, event_loop.BINS - 1]


def test_servers_by_class_are_those_given_one_by_one():
    classes = simulate(service_rates=[2, 1], servers=[2, 3], arrival_rate=4, choices=2, capacity=[5, 4], initial=[1, 0],
                       preferences=[0.2, 0.2], horizon=20, seed=71017)  # fmt: skip
    single = simulate(service_rates=[2, 2, 1, 1, 1], arrival_rate=4, choices=2, capacity=[5, 5, 4, 4, 4],
                      initial=[1, 1, 0, 0, 0], preferences=[0.2] * 5, horizon=20, seed=71017)  # fmt: skip
    assert classes.samples["queue_length"].tolist() == single.samples["queue_length"].tolist()


BAD = [
    ({"service_rates": [3, -1, 1]}, "service_rates has the value -1"),
    ({"arrival_rate": 0}, "arrival_rate is 0"),
    ({"choices": 4}, "choices is 4; allowed is a whole number from 1 to 3"),
    ({"selection": "fastest"}, "There is no value of selection 'fastest'"),
    ({"selection": "rules:age"}, "selection is 'rules:age'; a simulation takes the rules by name"),
    ({"selection": len}, "a simulation takes the rules by name"),
    ({"measured_by": "nothing"}, "There is no value of measured_by 'nothing'"),
    ({"ties": "oldest"}, "There is no value of ties 'oldest'"),
    ({"sampling": "twice"}, "There is no value of sampling 'twice'"),
    ({"overflow": "kept"}, "There is no value of overflow 'kept'"),
    ({"weights": [1, 1, 1]}, "weights is"),
    ({"preferences": [0.5, 0.5]}, "preferences is"),
    ({"capacity": "auto"}, "capacity is 'auto'; .* nothing is truncated here"),
    ({"capacity": [3, 3]}, "capacity has 2 numbers; allowed is one for each of the 3 servers"),
    ({"capacity": 0}, "capacity is 0"),
    ({"total_capacity": 0}, "total_capacity is 0"),
    ({"initial": [1, 2]}, "initial has 2 numbers"),
    ({"initial": [1, 2, -1]}, "initial is -1"),
    ({"initial": [1, 2, 3], "capacity": 2}, r"initial\[2\] is 3; allowed is 0 to its capacity 2"),
    ({"initial": [1, 2, 3], "total_capacity": 5}, "initial has 6 jobs; allowed are 0 to the total capacity 5"),
    ({"servers": [1, 2]}, "servers has 2 numbers; allowed are as many as service rates, 3"),
    ({"servers": 0.5}, "servers is 0.5"),
    ({"batches": 1}, "batches is 1"),
    ({"batches": 5, "replications": 5}, "batches is 5 and replications is 5"),
    ({"batches": 5, "times": [1.0]}, "times are given with batches"),
    ({"response_times": "yes"}, "response_times is 'yes'; allowed are True and False"),
    ({"horizon": None}, "horizon is missing"),
    ({"seed": None}, "seed is None"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_bad_input(change, sentence):
    with pytest.raises(ctmc.CTMCError, match=sentence):
        simulate(**{**COMMON, "horizon": 10, "seed": 71018, **change})


def test_an_unstable_system_says_so():
    for change in ({"arrival_rate": 7}, {"choices": 1, "arrival_rate": 3.1}):
        found = simulate(**{**COMMON, **change}, horizon=10, seed=71019)
        assert "queues grow without bound" in found.notes[0]
    many = simulate(service_rates=[1], servers=400, arrival_rate=401, choices=2, horizon=5, seed=71019)
    assert "queues grow without bound" in many.notes[0]
    assert simulate(**{**COMMON, "arrival_rate": 7}, capacity=3, horizon=10, seed=71019).notes == ()


# ---- the command line -----------------------------------------------------------------------------------------------

SMALL = ("simulate", "supermarket", "--service-rates", "3,2,1", "--arrival-rate", "3", "--choices", "2")


def test_command_shows_means_and_half_widths(capsys):
    assert main([*SMALL, "--horizon", "100", "--seed", "72001"]) == 0
    shown = capsys.readouterr().out
    assert "queue_length[2]" in shown
    assert "half_width" in shown
    assert "72,001" in shown
    assert main([*SMALL, "--horizon", "100", "--seed", "72001", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    again = simulate(service_rates=[3, 2, 1], arrival_rate=3, choices=2, horizon=100, seed=72001)
    means = {row["measure"]: row["mean"] for row in document["estimates"]}
    assert means["queue_length[1]"] == again.means["queue_length"][1]
    assert document["seed"] == 72001
    assert document["stopped"] is False


def test_command_draws_trajectories_with_bands(capsys, tmp_path):
    path = tmp_path / "queues.png"
    arguments = [*SMALL, "--times", "0:5:1", "--replications", "20", "--seed", "72002"]
    assert main([*arguments, "--csv", "--plot", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "measure,time,mean,half_width,low,high"
    assert sum(line.startswith("queue_length[0],") for line in lines) == 7  # the average, and six times
    assert path.stat().st_size > 10_000
    assert main([*arguments, "--plot", str(tmp_path / "jobs.png"), "--plot-of", "accumulated_jobs", "--quiet"]) == 0
    assert main([*arguments, "--plot", str(path), "--plot-of", "jbs"]) == 2
    assert "There is no trajectory 'jbs'" in capsys.readouterr().err
    assert main([*SMALL, "--horizon", "5", "--seed", "72002", "--plot", str(path)]) == 2
    assert "--plot draws trajectories" in capsys.readouterr().err


def test_command_simulates_a_stored_model(capsys, tmp_path):
    path = tmp_path / "model.h5"
    assert main(["build", "birth_death", "--births", "1,1,1", "--deaths", "2,2,2", "-o", str(path)]) == 0
    capsys.readouterr()
    arguments = ["simulate", str(path), "--initial", "0", "--seed", "72003", "--json"]
    assert main([*arguments, "--horizon", "500", "--rewards", "jobs"]) == 0
    estimate = json.loads(capsys.readouterr().out)["estimates"][0]
    assert estimate["low"] < 11 / 15 < estimate["high"]  # (1/2 + 2/4 + 3/8) / (15/8)
    assert main([*arguments, "--horizon", "1e4", "--target", "jobs >= 3"]) == 0
    names = [row["measure"] for row in json.loads(capsys.readouterr().out)["estimates"]]
    assert names == ["reached", "first_passage_time"]
    assert main(["simulate", str(tmp_path / "none.h5"), "--horizon", "5", "--seed", "3"]) == 2
    assert "none.h5" in capsys.readouterr().err


def test_ctrl_c_shows_the_replications_done_so_far(capsys, monkeypatch):
    once = iter([signal.SIGINT])  # a second Ctrl-C would leave at once
    monkeypatch.setattr(Progress, "count", lambda *_: [os.kill(os.getpid(), each) for each in once])
    arguments = [*SMALL, "--horizon", "200", "--replications", "5000", "--seed", "72004", "--json"]
    assert main(arguments) == 130
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["stopped"] is True
    assert 2 <= document["replications"] < 5000
    assert "Stopping after these replications" in captured.err


def test_completion_knows_builders_options_and_files():
    from click.shell_completion import ShellComplete

    from ctmc.cli.app import cli

    complete = ShellComplete(cli, {}, "ctmc", "_CTMC_COMPLETE").get_completions
    assert [item.value for item in complete(["simulate"], "su")] == ["supermarket"]
    assert [item.type for item in complete(["simulate"], "mod")] == ["file"]
    assert "--response-times" in [item.value for item in complete(["simulate", "supermarket"], "--resp")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["simulate"], "Missing the name of a builder or a file"),
        (["simulate", "birth_death"], "has no simulator of its own"),
        (["simulate", "supermarkt"], "did you mean 'supermarket'"),
        ([*SMALL, "--horizon", "5"], "Missing option '--seed'"),
        ([*SMALL, "--times", "5:0:1", "--seed", "3"], "--times is '5:0:1'"),
    ],
)
def test_command_refuses(arguments, sentence, capsys):
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_help_has_an_example(capsys):
    for name in ("supermarket", "fork_join", "model.h5"):
        assert main(["simulate", name, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"ctmc simulate {name}" in shown
        assert "--seed" in shown
        assert "--monitor" not in shown
        assert "--chain" not in shown
    assert main(["simulate", "--help"]) == 0
    assert "supermarket" in capsys.readouterr().out
