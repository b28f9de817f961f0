"""The optimal policy of the fork-join queue: against the process with all groups, brute force, closed forms; bad input."""

import csv
import dataclasses
import io
import itertools
import json
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

import ctmc
from builders.fork_join import fork_join, policy
from builders.fork_join.decisions import KEEP, Decisions
from builders.fork_join.policy import optimal_policy, threshold_value
from builders.fork_join.rules import Rules
from ctmc import registry
from ctmc.cli import main
from ctmc.errors import ModelError, UnstableError, UnsupportedProblemError

REFERENCE = tomllib.loads((Path(__file__).parents[1] / "data" / "reference" / "fork_join.toml").read_text())
SMALL = ("policy", "fork_join", "--service-rates", "5,2,1", "--arrival-rate", "1", "--tasks", "3")


def jobs_of(rates, arrival_rate, tasks, thresholds):
    queue = fork_join(service_rates=rates, arrival_rate=arrival_rate, tasks=tasks, thresholds=thresholds)
    return ctmc.solve(ctmc.Stationary(queue, tolerance=1e-13), "logarithmic_reduction").measures()["jobs"]


class Grouped:
    """The process as it stands in the text: all groups of servers are kept apart, and each job costs 1 until it is done.

    A state is (waiting tasks, group of the job in progress or None, groups of the other jobs).
    """

    def __init__(self, rates, arrival_rate, tasks, longest):
        self.rates, self.arrival_rate, self.tasks, self.longest = rates, arrival_rate, tasks, longest
        start = (0, None, frozenset())
        self.numbers, self.states = {start: 0}, [start]
        self.events, self.sends, self.costs = [], [], []
        for state in self.states:  # grows
            length, _, groups = state
            mine = length % tasks != 0
            self.costs.append(length // tasks + mine + len(groups))
            arrived = self.add((length + tasks, *state[1:])) if length + tasks <= longest else self.numbers[state]
            self.events.append([arrived, *(self.completed(state, k) for k in range(len(rates)))])
            self.sends.append([self.sent(state, k) for k in range(len(rates))])
        self.events, self.sends = np.array(self.events).T, np.array(self.sends).T
        self.costs = np.array(self.costs, dtype=float)
        self.busy = np.array([[k in self.working(state) for k in range(len(rates))] for state in self.states])

    def add(self, state):
        if state not in self.numbers:
            self.numbers[state] = len(self.states)
            self.states.append(state)
        return self.numbers[state]

    def working(self, state):
        return frozenset().union(state[1] or (), *state[2])

    def completed(self, state, server):
        length, mine, groups = state
        if server not in self.working(state):
            return self.numbers[state]
        if mine is not None:
            mine = mine - {server}
        return self.add((length, mine, frozenset(group - {server} for group in groups) - {frozenset()}))

    def sent(self, state, server):
        length, mine, groups = state
        if length == 0 or server in self.working(state):
            return -1
        group = (mine or frozenset()) | {server}
        if (length - 1) % self.tasks == 0:
            return self.add((length - 1, None, groups | {group}))
        return self.add((length - 1, group, groups))

    def best(self, h):
        """Return the least value within reach, and for each state the first action, len(rates) to keep the task."""
        found, chosen = h.copy(), np.full(len(h), len(self.rates))
        for _ in self.rates:
            choices = np.vstack([np.where(self.sends >= 0, found[self.sends], np.inf), h])
            found, chosen = choices.min(axis=0), choices.argmin(axis=0)
        return found, chosen

    def optimum(self, rounds):
        """Return bounds of the optimum and the policy, by value iteration on the uniformized chain."""
        rates = np.vstack([np.full(len(self.states), self.arrival_rate), self.busy.T * np.array(self.rates)[:, None]])
        total = self.arrival_rate + sum(self.rates)
        h = np.zeros(len(self.states))
        for _ in range(rounds):
            found, chosen = self.best(h)
            side = self.costs + (rates * (found[self.events] - h)).sum(axis=0)
            if np.ptp(side) < 1e-11:
                break
            h = h + side / total
            h -= h[0]
        return side.min(), side.max(), chosen, h


@pytest.mark.parametrize(
    ("rates", "arrival_rate", "tasks", "longest"),
    [((2.0, 1.0), 0.5, 2, 60), ((3.0, 0.5), 0.6, 2, 60), ((5.0, 2.0, 1.0), 0.5, 3, 50), ((4.0, 1.0, 0.5), 1.0, 2, 60)],
)
def test_value_iteration_with_all_groups_kept_apart_gives_the_same_mean_and_policy(rates, arrival_rate, tasks, longest):
    grouped = Grouped(rates, arrival_rate, tasks, longest)
    low, high, chosen, h = grouped.optimum(20_000)
    assert high - low < 1e-10
    found = optimal_policy(rates, arrival_rate, tasks)
    assert found.jobs == pytest.approx((low + high) / 2, abs=1e-10)
    assert found.is_certified
    reach, compared = grouped.best(h)[0], 0
    for number, (length, mine, groups) in enumerate(grouped.states):
        busy = grouped.working((length, mine, groups))
        if 0 < length <= longest // 2 and len(busy) < len(rates):
            values = np.sort([h[number], *(reach[k] for k in grouped.sends[:, number] if k >= 0)])
            if values[1] - values[0] > 1e-7:  # no tie
                action = found.decide(length, sorted(busy), sorted(mine or ()))
                assert (len(rates) if action is None else action) == chosen[number]
                compared += 1
    assert compared > 100


def test_a_threshold_policy_has_the_mean_that_the_matrix_geometric_solution_gives():
    rng = np.random.default_rng(20261)
    for servers, tasks in ((1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (4, 3), (5, 2), (5, 5)):
        rates = np.sort(rng.uniform(0.5, 5, servers))[::-1]
        arrival_rate = float(rng.uniform(0.2, 0.8) * rates.sum() / tasks)
        thresholds = [1, *np.sort(rng.integers(1, 12, servers - 1)).tolist()]
        found = threshold_value(rates, arrival_rate, tasks, thresholds)
        assert found.jobs == pytest.approx(jobs_of(rates, arrival_rate, tasks, thresholds), rel=1e-10)
        assert found.response_time * arrival_rate == pytest.approx(found.jobs, rel=1e-15)
        assert found.last_level_mass < 1e-12


@pytest.mark.parametrize("row", [row for row in REFERENCE["row"] if "response_time" in row])
def test_published_thresholds_are_reproduced_and_improved_on(row):
    found = optimal_policy(
        row.get("service_rates", REFERENCE["service_rates"]),
        row["arrival_rate"],
        row.get("tasks", REFERENCE["tasks"]),
        row["thresholds"],
    )
    assert found.compared.response_time == pytest.approx(row["response_time"], abs=1e-10)
    assert found.response_time < row["response_time"]
    assert found.is_certified
    assert found.lower_bound - 1e-12 <= found.jobs <= found.upper_bound + 1e-12
    assert found.gain == pytest.approx(row["response_time"] / found.response_time - 1, rel=1e-6)


def test_what_the_best_thresholds_lose_does_not_depend_on_where_the_iteration_starts():
    best = optimal_policy([5, 2, 1], 1, 3, [1, 2, 8])
    other = optimal_policy([5, 2, 1], 1, 3)
    assert best.jobs == pytest.approx(other.jobs, rel=1e-12)
    assert best.gain == pytest.approx(2.282168991e-4, rel=1e-6)
    assert other.compared.response_time == pytest.approx(1.072782177107, abs=1e-10)
    assert [best.decide(b, (0, 1), (0, 1)) for b in (1, 4, 7, 10)] == [None, None, 2, 2]


@pytest.mark.parametrize(("rates", "arrival_rate"), [((5.0, 1.0), 2.0), ((5.0, 0.4), 3.0), ((2.0, 1.9), 1.0)])
def test_with_one_task_and_two_servers_the_slow_one_has_the_threshold_that_brute_force_finds(rates, arrival_rate):
    means = {q: jobs_of(rates, arrival_rate, 1, [1, q]) for q in range(1, 30)}
    threshold = min(means, key=means.get)
    found = optimal_policy(rates, arrival_rate, 1)
    assert found.jobs == pytest.approx(means[threshold], rel=1e-11)
    rows = {row.busy: row for row in found.rows}
    assert rows[0,].least == {1: threshold}
    assert rows[()].least == rows[1,].least == {0: 1}
    assert all(row.is_threshold for row in found.rows)


def test_one_server_leaves_nothing_to_decide():
    found = optimal_policy([2.0], 1.5, 1)
    assert found.jobs == pytest.approx(3.0, rel=1e-12)
    assert found.gain == 0
    assert found.iterations == 1


def test_equal_servers_with_one_task_make_erlangs_queue_and_do_not_cycle():
    found = optimal_policy([1.0, 1.0, 1.0], 2.4, 1)
    load, servers = 2.4, 3
    waiting = load**servers / math.factorial(servers) / (1 - load / servers)
    waits = waiting / (sum(load**k / math.factorial(k) for k in range(servers)) + waiting)
    assert found.jobs == pytest.approx(load + waits * load / (servers - load), rel=1e-11)
    assert found.iterations <= 3


def test_five_servers_and_heavy_traffic():
    found = optimal_policy([5, 4, 3, 2, 1], 2.7, 5)
    assert found.is_certified
    assert 0.01 < found.gain < 0.0103
    heavy = optimal_policy([5, 2, 1], 2.64, 3)
    assert heavy.is_certified
    assert heavy.upper_bound - heavy.lower_bound < 1e-7 * heavy.jobs


def test_rounding_does_not_certify_bounds_that_are_far_apart():
    found = optimal_policy([5, 2, 1], 1e-6, 3)
    spread = found.upper_bound - found.lower_bound
    assert 1e-9 * found.jobs < spread < found.rounding  # a task that is kept in the empty system waits for a million
    assert found.is_certified
    assert found.response_time == pytest.approx(0.6, rel=1e-5)
    assert not dataclasses.replace(found, upper_bound=found.jobs * (1 + 1e-5), rounding=1.0).is_certified
    assert not dataclasses.replace(found, upper_bound=found.lower_bound + 3 * found.rounding).is_certified


def test_the_slow_server_may_get_the_front_task_although_the_fast_one_is_idle():
    found = optimal_policy([10, 1, 0.1], 2, 3)
    assert [(row.remaining_tasks, row.busy, sorted(row.least)) for row in found.rows if not row.is_threshold] == [
        (2, (), [0, 1])
    ]
    assert found.decide(32, ()) == 0
    assert found.decide(35, ()) == 1  # the next task goes to the fast one at once


def test_the_cut_is_moved_until_its_mass_is_small(monkeypatch):
    expected = optimal_policy([5, 2, 1], 2, 3)
    monkeypatch.setattr(policy, "tail_decay", lambda rules: 50.0)
    found = optimal_policy([5, 2, 1], 2, 3)
    assert found.last_level_mass <= 1e-12
    assert found.jobs == pytest.approx(expected.jobs, abs=1e-10)


def test_a_cut_that_is_too_low_is_not_certified():
    found = optimal_policy([5, 2, 1], 2, 3, last_level=10)
    assert found.last_level == 10
    assert found.last_level_mass > 1e-6
    assert not found.is_certified
    # what a job turned away is charged makes good most of the error
    assert found.jobs == pytest.approx(optimal_policy([5, 2, 1], 2, 3).jobs, rel=found.last_level_mass * 10)


def test_the_bounds_hold_for_a_policy_that_is_not_optimal(monkeypatch):
    optimum = optimal_policy([5, 2, 1], 1, 3).jobs
    monkeypatch.setattr(policy, "_ROUNDS", 1)
    found = optimal_policy([5, 2, 1], 1, 3)
    assert found.lower_bound < optimum < found.jobs
    assert found.jobs <= found.upper_bound + 1e-12
    assert not found.is_certified


def test_remaining_times_are_those_of_the_maximum_of_exponentials():
    rates = np.array([5.0, 2.0, 1.0])
    process = Decisions(Rules(rates, 1.0, 3, [1, 1, 1]), 2)
    for size in range(1, 4):
        for chosen in itertools.combinations(range(3), size):
            expected = sum(
                (-1) ** (k + 1) / sum(part)
                for k in range(1, size + 1)
                for part in itertools.combinations(rates[list(chosen)], k)
            )
            assert process.remaining[sum(4 >> server for server in chosen)] == pytest.approx(expected, rel=1e-14)


def test_states_are_counted_before_they_are_listed():
    for servers, tasks, last in itertools.product((1, 2, 4), (1, 2, 3), (1, 5)):
        if tasks <= servers:
            process = Decisions(Rules(np.ones(servers), 0.1, tasks, [1] * servers), last)
            assert process.size == len(process.lengths) == len(process.own)
            numbers = process.number(process.lengths, process.busy, process.own)
            assert np.array_equal(numbers, np.arange(process.size))


def test_thresholds_send_to_the_fastest_idle_server_only():
    process = Decisions(Rules(np.array([3.0, 2.0]), 0.1, 1, [1, 1]), 5)
    actions = process.threshold_policy([1, 4])
    asked = process.number(np.array([1, 3, 4, 0, 2]), np.array([0b00, 0b10, 0b10, 0b00, 0b11]), np.zeros(5, int))
    assert actions[asked].tolist() == [0, KEEP, 1, KEEP, KEEP]


def test_where_the_policy_is_of_no_threshold_type_the_row_says_so():
    process = Decisions(Rules(np.array([3.0, 2.0]), 1.0, 1, [1, 1]), 5)
    actions = process.threshold_policy([1, 1])
    one_busy = process.number(np.arange(1, 6), np.full(5, 0b10), np.zeros(5, int))
    actions[one_busy] = [1, KEEP, KEEP, 1, 1]
    none_busy = process.number(np.arange(1, 6), np.zeros(5, int), np.zeros(5, int))
    actions[none_busy] = [1, 0, 0, 0, 0]
    rows = {row.busy: row for row in policy._rows(process, actions, np.full(process.size, 1 / process.size))}
    assert {busy: row.is_threshold for busy, row in rows.items()} == {(): False, (0,): False, (1,): True}
    assert rows[()].least == {0: 2, 1: 1}
    assert rows[0,].least == {1: 1}


def test_bad_input_is_one_sentence():
    with pytest.raises(ModelError, match=r"service_rates has 6 servers, so that .* has [\d,]+ states; allowed .* 5"):
        optimal_policy([6, 5, 4, 3, 2, 1], 1, 3)
    with pytest.raises(UnstableError, match="drift"):
        optimal_policy([1.0], 1.0, 1)
    with pytest.raises(ModelError, match="last_level is 0"):
        optimal_policy([2.0], 1.0, 1, last_level=0)
    with pytest.raises(ModelError, match="the decision process needs"):
        optimal_policy([2.0, 1.0], 1.5 * (1 - 1e-9), 2)
    found = optimal_policy([5, 2, 1], 1, 3)
    with pytest.raises(ModelError, match="waiting_tasks is -1"):
        found.decide(-1, ())
    with pytest.raises(ModelError, match="allowed are servers 0 to 2"):
        found.decide(1, (3,))
    for length, busy, own in ((2, (0, 1), (0, 1)), (1, (0,), (1,)), (3, (0,), (0,))):
        with pytest.raises(ModelError, match=r"own is .*; allowed are at most"):
            found.decide(length, busy, own)


def test_a_builder_without_decisions_is_refused_with_those_that_have():
    assert registry.policy_names() == ["fork_join"]
    with pytest.raises(UnsupportedProblemError, match="'birth_death' has no decisions; builders that have: fork_join"):
        registry.optimal_policy("birth_death")


def test_the_command_shows_value_bounds_and_table(capsys):
    assert main([*SMALL, "--thresholds", "1,2,8", "--rows", "5"]) == 0
    captured = capsys.readouterr()
    assert "0.8377707452" in captured.out
    assert "0.8379619386" in captured.out
    assert "33 rows more" in captured.err
    assert main([*SMALL, "--thresholds", "1,2,8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["response_time"] == pytest.approx(0.837770745163, abs=1e-10)
    assert document["certified"] is True
    assert len(document["policy"]) == 38
    assert document["policy"][0]["to server 2"] == "7"
    assert main([*SMALL, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 38
    assert {row["threshold"] for row in rows} == {"true"}


def test_the_command_ends_with_1_where_the_cut_is_too_low_and_with_2_on_bad_input(capsys):
    assert main([*SMALL, "--last-level", "3"]) == 1
    assert "not certified" in capsys.readouterr().err
    assert main(["policy"]) == 2
    assert main(["policy", "tandem_network"]) == 2
    assert "has no decisions" in capsys.readouterr().err
    assert main(["policy", "fork_join", "--service-rates", "1", "--arrival-rate", "2", "--tasks", "1"]) == 2
