"""The fork-join queue: blocks against a slow builder written from the rules, published values, closed forms, bad input."""

import itertools
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

import ctmc
from builders.fork_join import fork_join
from ctmc.model.qbd import QBD

REFERENCE = tomllib.loads((Path(__file__).parents[1] / "data" / "reference" / "fork_join.toml").read_text())
SMALL = {"service_rates": [5, 2, 1], "arrival_rate": 1, "tasks": 3}


def solved(queue: QBD, **options: object) -> ctmc.Solution:
    return ctmc.solve(ctmc.Stationary(queue), "logarithmic_reduction", **options)


def random_case(rng: np.random.Generator) -> tuple[list[float], float, int, list[int]]:
    servers = int(rng.integers(1, 6))
    tasks = int(rng.integers(1, servers + 1))
    rates = np.sort(rng.uniform(0.5, 5, servers))[::-1]
    thresholds = [1, *np.sort(rng.integers(1, 12, servers - 1)).tolist()]
    return rates.tolist(), float(rng.uniform(0.2, 0.8) * rates.sum() / tasks), tasks, thresholds


def slow_chain(rates, arrival_rate, tasks, thresholds, levels):
    """All states below a level and their transitions, one by one, from the text of the model."""
    servers = len(rates)
    states, moves = [], {}
    for r, rest, *busy in itertools.product(range(levels), range(tasks), *[range(2)] * servers):
        if all(busy[i] or thresholds[i] > tasks * r + rest for i in range(servers)):
            states.append((r, rest, *busy))
    for state in states:
        length, busy = tasks * state[0] + state[1], state[2:]
        out = moves[state] = {}

        def add(length, busy, rate, out=out):
            target = (length // tasks, length % tasks, *busy)
            out[target] = out.get(target, 0.0) + rate

        after, at_work = length + tasks, list(busy)  # all tasks enter, then they are dispatched from the front
        while 0 in at_work and after >= thresholds[at_work.index(0)]:
            at_work[at_work.index(0)] = 1
            after -= 1
        add(after, at_work, arrival_rate)
        for i in range(servers):
            if busy[i] and length >= thresholds[i]:
                add(length - 1, busy, rates[i])
            elif busy[i]:
                add(length, (*busy[:i], 0, *busy[i + 1 :]), rates[i])
    return states, moves


@pytest.mark.parametrize("seed", range(101, 113))
def test_every_transition_is_that_of_the_rules(seed):
    case = random_case(np.random.default_rng(seed))
    queue = fork_join(*case)
    levels = queue.boundary_levels + 2
    states, moves = slow_chain(*case, levels)
    chain = queue.truncate(levels=levels)
    assert chain.space.table.tolist() == [list(state) for state in states]
    matrix = chain.to_scipy().toarray()
    np.fill_diagonal(matrix, 0)
    expected = np.zeros_like(matrix)
    position = {state: k for k, state in enumerate(states)}
    for state, out in moves.items():
        for target, rate in out.items():
            if target in position:
                expected[position[state], position[target]] += rate
            else:
                assert target[0] == levels
    np.testing.assert_allclose(matrix, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("seed", range(121, 127))
def test_blocks_pass_the_checks_of_given_blocks(seed):
    queue = fork_join(*random_case(np.random.default_rng(seed)))
    boundary = [(level.down, level.local, level.up) for level in queue.boundary]
    again = QBD.from_blocks(queue.up, queue.local, queue.down, boundary)
    for mine, checked in zip(queue.boundary, again.boundary, strict=True):
        np.testing.assert_allclose(mine.local.toarray(), checked.local.toarray(), rtol=1e-14)
    assert all(table.flags.writeable is False for table in queue.phases)


@pytest.mark.parametrize("seed", range(131, 151))
def test_level_sizes_by_enumeration(seed):
    rates, _, tasks, thresholds = case = random_case(np.random.default_rng(seed))
    queue = fork_join(*case)
    last = queue.boundary_levels - 1
    assert last == min(r for r in range(1, 30) if r * tasks >= thresholds[-1])
    for level in range(last + 2):
        count = 0
        for rest in range(tasks):
            forced = sum(threshold <= level * tasks + rest for threshold in thresholds)
            count += sum(all(busy[:forced]) for busy in itertools.product((False, True), repeat=len(rates)))
        assert len(queue.level_states(level)) == count


def test_example_of_level_sizes():
    queue = fork_join(**SMALL, thresholds=[1, 2, 8])
    assert [len(queue.level_states(level)) for level in range(6)] == [14, 6, 5, 3, 3, 3]


@pytest.mark.parametrize("row", REFERENCE["row"], ids=lambda row: "-".join(map(str, row.values())))
@pytest.mark.parametrize("boundary_solver", ["gth", "sparse_lu"])
def test_reference_values(row, boundary_solver):
    given = {
        name: row.get(name, REFERENCE.get(name)) for name in ("service_rates", "arrival_rate", "tasks", "thresholds")
    }
    queue = fork_join(**given)
    method = f"logarithmic_reduction(boundary_solver='{boundary_solver}')"
    measures = ctmc.solve(ctmc.Stationary(queue), method).measures()
    for name in row.keys() - given.keys():
        np.testing.assert_allclose(measures[name], row[name], rtol=0, atol=1e-11)


@pytest.mark.parametrize("thresholds", [[1, 1, 1], [1, 2, 8]])
def test_rate_matrix_depends_on_rates_and_tasks_only(thresholds):
    answer = solved(fork_join(**SMALL, thresholds=thresholds)).value
    assert answer.r[0].tolist() == pytest.approx(REFERENCE["rate_matrix"]["first_row"], rel=1e-11)
    np.testing.assert_allclose(answer.g, np.outer(np.ones(3), [0, 0, 1]), atol=1e-15)
    local, ones = fork_join(**SMALL).local.toarray(), np.outer(np.ones(3), [0, 0, 1])
    np.testing.assert_allclose(answer.r, np.linalg.inv(-local - ones), rtol=1e-13)


@pytest.mark.parametrize("seed", range(161, 166))
def test_measures_in_closed_form_are_the_sums_over_all_levels(seed):
    rates, arrival_rate, tasks, _ = case = random_case(np.random.default_rng(seed))
    queue = fork_join(*case)
    solution = solved(queue)
    measures = solution.measures()
    assert list(measures) == [
        "waiting_jobs",
        "waiting_tasks",
        "waiting_time",
        "service_span",
        "response_time",
        "jobs",
        "utilization",
        "busy_servers",
        "empty_probability",
        "decay_rate",
    ]
    for name in ("waiting_jobs", "waiting_tasks", "busy_servers"):
        assert measures[name] == pytest.approx(solution.expected(name), rel=1e-12)
    np.testing.assert_allclose(measures["utilization"], solution.expected("busy"), rtol=1e-12)
    idle = " and ".join(f"busy[{i}] == 0" for i in range(len(rates)))
    assert measures["empty_probability"] == pytest.approx(solution.probability(idle), rel=1e-12)
    assert measures["utilization"] @ rates == pytest.approx(arrival_rate * tasks, rel=1e-13)
    low = solution.value.tail(40) / solution.value.tail(39)
    assert measures["decay_rate"] == pytest.approx(low, rel=1e-9)


@pytest.mark.parametrize("seed", range(171, 175))
def test_truncation_solved_by_elimination_agrees(seed):
    rates, _, tasks, thresholds = random_case(np.random.default_rng(seed))
    queue = fork_join(rates, 0.4 * sum(rates) / tasks, tasks, thresholds)
    exact = solved(queue).measures()
    finite = ctmc.solve(ctmc.Stationary(queue.truncate(levels=60)), "gth").measures()
    assert exact.keys() - finite.keys() == {"decay_rate"}
    for name, value in finite.items():
        np.testing.assert_allclose(value, exact[name], rtol=1e-11)


def test_one_server_is_the_single_server_queue():
    load = 0.3
    solution = solved(fork_join(service_rates=[1.0], arrival_rate=load, tasks=1))
    assert solution.value.r.tolist() == [[0.3]]
    measures = solution.measures()
    assert measures["waiting_time"] == pytest.approx(load / (1 - load), rel=1e-14)
    assert measures["empty_probability"] == pytest.approx(1 - load, rel=1e-14)
    assert measures["decay_rate"] == load


def test_truncated_single_server_loses_jobs():
    load, places = 0.8, 5  # four wait at most, one is in service
    finite = ctmc.solve(ctmc.Stationary(fork_join([1.0], load, 1).truncate(levels=places)), "gth").measures()
    weights = load ** np.arange(places + 1)
    pi = weights / weights.sum()
    waiting = pi @ np.maximum(np.arange(places + 1) - 1, 0)
    assert finite["waiting_jobs"] == pytest.approx(waiting, rel=1e-13)
    assert finite["waiting_time"] == pytest.approx(waiting / (load * (1 - pi[-1])), rel=1e-13)
    assert finite["utilization"] == pytest.approx([1 - pi[0]], rel=1e-13)


@pytest.mark.parametrize(("servers", "load"), [(2, 0.5), (5, 0.9), (5, 0.9999)])
def test_equal_servers_are_the_multi_server_queue(servers, load):
    mu = 1.25
    offered = servers * load
    measures = solved(fork_join([mu] * servers, offered * mu, 1)).measures()
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    empty = 1 / (sum(terms) + last)
    # 1 - load is known to eps / (1 - load) only, whatever is done with it
    close = 1e-13 / (1 - load)
    assert measures["waiting_jobs"] == pytest.approx(last * empty * load / (1 - load), rel=close)
    assert measures["empty_probability"] == pytest.approx(empty, rel=close)
    assert measures["busy_servers"] == pytest.approx(offered, rel=1e-12)


def test_load_just_below_one():
    load = 0.9999
    queue = fork_join([5, 2, 1], load * 8 / 3, 3, [1, 2, 8])
    solution = solved(queue)
    measures = solution.measures()
    assert solution.defect < 1e-15
    assert measures["utilization"] @ [5, 2, 1] == pytest.approx(8 * load, rel=1e-12)
    assert measures["waiting_jobs"] == pytest.approx(solution.expected("waiting_jobs"), rel=1e-9)
    # heavy traffic: batches of d tasks, so the number of waiting tasks decays by 1 - 2 (1 - load) / (d + 1) per task
    assert 1 - measures["decay_rate"] == pytest.approx(1.5 * (1 - load), rel=1e-3)


def test_default_thresholds_use_the_fastest_free_server():
    bare, given = fork_join(**SMALL), fork_join(**SMALL, thresholds=(1, 1, 1))
    assert [table.tolist() for table in bare.phases] == [table.tolist() for table in given.phases]
    assert bare.recipe.parameters == SMALL
    assert bare.drift == pytest.approx(1 - 8 / 3, rel=1e-14)


def test_a_bare_model_is_dressed_without_being_built_again():
    queue = fork_join(**SMALL)
    bare = queue.replace(rewards={}, measures=None)
    dressed = fork_join.dress(bare, **{**queue.recipe.parameters, "thresholds": None})
    assert dressed.up is queue.up
    assert solved(dressed).measures()["waiting_time"] == solved(queue).measures()["waiting_time"]
    assert dressed.all_rewards.keys() == queue.all_rewards.keys()


def test_many_servers_in_levels_of_thousands_of_states():
    rates = np.linspace(2, 1, 12)
    thresholds = [1, 2, 4, 6, 9, 12, 15, 20, 25, 30, 35, 40]
    queue = fork_join(rates, 0.5 * rates.sum() / 12, 12, thresholds)
    assert len(queue.phases[0]) == 4096 + 2048 + 2 * (1024 + 512) + 3 * (256 + 128)
    exits = queue.boundary[0].local.sum(axis=1) + queue.boundary[0].up.sum(axis=1)
    np.testing.assert_allclose(exits, 0, atol=1e-13)


BAD = [
    ({"service_rates": [5, -2, 1]}, "service_rates has the value -2.0"),
    ({"service_rates": [5, 2, 0]}, "service_rates has the value 0.0"),
    ({"service_rates": [math.nan, 2, 1]}, "service_rates has the value nan"),
    ({"service_rates": [math.inf, 2, 1]}, "service_rates has the value inf"),
    ({"service_rates": []}, "service_rates is empty"),
    ({"service_rates": "fast"}, "service_rates is 'fast'"),
    ({"service_rates": [5, 1, 2]}, "service_rates rises from 1 to 2 at server 2"),
    ({"arrival_rate": 0}, "arrival_rate is 0"),
    ({"arrival_rate": -1}, "arrival_rate is -1"),
    ({"arrival_rate": math.nan}, "arrival_rate is nan"),
    ({"arrival_rate": math.inf}, "arrival_rate is inf"),
    ({"arrival_rate": [1, 2]}, "arrival_rate is"),
    ({"tasks": 0}, "tasks is 0; allowed is a whole number from 1 to 3"),
    ({"tasks": 4}, "tasks is 4"),
    ({"tasks": 1.5}, "tasks is 1.5"),
    ({"thresholds": [1, 2]}, "thresholds has 2 numbers; allowed are 3"),
    ({"thresholds": [1, 2.5, 3]}, "thresholds has the value 2.5"),
    ({"thresholds": [1, 2, math.inf]}, "thresholds has the value inf"),
    ({"thresholds": [2, 2, 3]}, "thresholds starts at 2"),
    ({"thresholds": [0, 2, 3]}, "thresholds starts at 0"),
    ({"thresholds": [1, 3, 2]}, "thresholds falls from 3 to 2 at server 2"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_bad_input(change, sentence):
    with pytest.raises(ctmc.ModelError) as caught:
        fork_join(**{**SMALL, **change})
    assert str(caught.value).startswith(sentence)
    assert "allowed" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arrival_rate", [8 / 3, 3.0])
def test_unstable_queue_names_the_drift(arrival_rate):
    with pytest.raises(
        ctmc.UnstableError, match=r"the mean drift is .* tasks per unit of time .*allowed is a negative one"
    ):
        fork_join([5, 2, 1], arrival_rate, 3)


@pytest.mark.parametrize(
    ("servers", "thresholds"), [(30, [1] * 30), (3, [1, 10**9, 10**9]), (3, [1, 1, 10**15]), (60, [1] * 60)]
)
def test_memory_is_estimated_before_anything_is_built(servers, thresholds):
    with ctmc.limited_memory("64MiB"), pytest.raises(ctmc.ModelError, match=r"states, .* transitions.*memory limit"):
        fork_join([1.0] * servers, 0.5, 1, thresholds)


def test_unknown_parameter():
    with pytest.raises(ctmc.UnknownNameError, match="thresholds"):
        fork_join(**SMALL, treshold=[1, 2, 3])
