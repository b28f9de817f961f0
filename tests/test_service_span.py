"""Service span and response time: a job followed through a queue of marked tasks, limits, reference values, the check."""

import math
from collections import defaultdict

import numpy as np
import pytest
from reference_models import reference
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import splu

import ctmc
from builders.fork_join import fork_join
from builders.fork_join.rules import Rules
from builders.fork_join.service_span import Starts, masses
from ctmc.solution import Status

PAPER = {"service_rates": [5, 2, 1], "arrival_rate": 1, "tasks": 3, "thresholds": [1, 2, 8]}


def solved(**parameters: object) -> ctmc.Solution:
    return ctmc.solve(ctmc.Stationary(fork_join(**parameters)))


# ---- a second derivation: every task in the queue and at the servers is marked, 1 if it belongs to the tagged job ----------


def dispatched(queue, servers, thresholds):
    """Tasks go from the front of the queue to the fastest idle server while the queue is long enough for it."""
    queue, servers = list(queue), list(servers)
    while None in servers and queue and len(queue) >= thresholds[servers.index(None)]:
        servers[servers.index(None)] = queue.pop(0)
    return tuple(queue), tuple(servers)


def after_arrival(queue, servers, marks, thresholds):
    for mark in marks:  # one by one: the queue grows before the next is looked at
        queue, servers = dispatched((*queue, mark), servers, thresholds)
    return queue, servers


def after_completion(queue, servers, server, thresholds):
    mine = list(servers)
    mine[server] = None
    if queue and len(queue) >= thresholds[server]:
        mine[server], queue = queue[0], queue[1:]
    return queue, tuple(mine)


def explored(starts, moves):
    """States that are reached, and their rates as a matrix."""
    number = {state: k for k, state in enumerate(dict.fromkeys(starts))}
    rows, columns, values = [], [], []
    todo = list(number)
    for state in todo:
        for target, rate in moves(state):
            if target not in number:
                number[target] = len(number)
                todo.append(target)
            rows.append(number[state])
            columns.append(number[target])
            values.append(rate)
    return number, csr_array((values, (rows, columns)), shape=(len(number),) * 2)


def response_time_by_marks(service_rates, arrival_rate, tasks, thresholds, longest):
    """E[T] of a job tagged at its arrival; jobs are lost that find more than `longest` tasks waiting."""

    def plain_moves(state):
        queue, servers = state
        if len(queue) <= longest:
            yield after_arrival(queue, servers, [0] * tasks, thresholds), arrival_rate
        for k, rate in enumerate(service_rates):
            if servers[k] is not None:
                yield after_completion(queue, servers, k, thresholds), rate

    number, rates = explored([((), (None,) * len(service_rates))], plain_moves)
    exits = rates.sum(axis=1)
    balance = (rates.T - diags_array(exits, dtype=float)).tolil()
    balance[0] = 1.0
    pi = splu(balance.tocsc()).solve(np.eye(len(number))[0])

    def cut(queue, servers):
        """What is behind the last marked task, beyond the longest queue that matters, is left out."""
        marked = 1 in queue or 1 in servers
        return (queue[: longest + tasks], servers) if marked else None

    def tagged_moves(state):
        queue, servers = state
        targets = [(after_arrival(queue, servers, [0] * tasks, thresholds), arrival_rate)]
        targets += [
            (after_completion(queue, servers, k, thresholds), rate)
            for k, rate in enumerate(service_rates)
            if servers[k] is not None
        ]
        for target, rate in targets:
            if (kept := cut(*target)) is not None and kept != state:
                yield kept, rate
            elif kept is None:
                yield "done", rate

    weights = defaultdict(float)
    for (queue, servers), place in number.items():
        if len(queue) <= longest:
            weights[after_arrival(queue, servers, [1] * tasks, thresholds)] += pi[place]
    number, rates = explored(["done", *weights], lambda state: () if state == "done" else tagged_moves(state))
    inside = rates[1:][:, 1:]
    times = splu((diags_array(rates.sum(axis=1)[1:], dtype=float) - inside).tocsc()).solve(np.ones(len(number) - 1))
    total = math.fsum(weights.values())
    return sum(weight * times[number[state] - 1] for state, weight in weights.items()) / total


@pytest.mark.parametrize(
    ("parameters", "longest"),
    [
        ({"service_rates": [2.0], "arrival_rate": 0.6, "tasks": 1, "thresholds": [1]}, 24),
        ({"service_rates": [3.0, 1.0], "arrival_rate": 0.5, "tasks": 2, "thresholds": [1, 3]}, 28),
        ({"service_rates": [4.0, 2.0, 1.0], "arrival_rate": 0.5, "tasks": 3, "thresholds": [1, 2, 4]}, 48),
        ({"service_rates": [4.0, 2.0, 1.0], "arrival_rate": 0.5, "tasks": 2, "thresholds": [1, 2, 5]}, 20),
        ({"service_rates": [4.0, 2.0, 1.0], "arrival_rate": 0.8, "tasks": 2, "thresholds": [1, 1, 3]}, 26),
        (PAPER, 60),
    ],
    ids=str,
)
def test_a_job_tagged_at_its_arrival_on_a_truncated_chain(parameters, longest):
    expected = response_time_by_marks(**parameters, longest=longest)
    assert solved(**parameters).measures()["response_time"] == pytest.approx(expected, abs=1e-10)


# ---- published values, limits, identities -----------------------------------------------------------------------------------


def starts_of(solution: ctmc.Solution, **parameters: object) -> Starts:
    rules = Rules(
        np.array(parameters["service_rates"], float),
        parameters["arrival_rate"],
        parameters["tasks"],
        parameters["thresholds"],
    )
    return Starts(rules, masses(solution.value, solution.problem.model.phases))


def test_rates_of_starts_and_their_mean_spans():
    known, starts = reference("fork_join")["starts"], starts_of(solved(**PAPER), **PAPER)
    assert starts.rates[0] == pytest.approx(known["rate_above"], abs=1e-14)
    assert math.fsum(starts.rates) == pytest.approx(1, rel=1e-14)
    assert starts.means == pytest.approx((known["mean_span_above"], known["mean_span_below"]), abs=1e-11)


def random_case(seed: int) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    servers = int(rng.integers(1, 6))
    tasks = int(rng.integers(1, servers + 1))
    rates = np.sort(rng.uniform(0.5, 5, servers))[::-1]
    thresholds = [1, *np.sort(rng.integers(1, 14, servers - 1)).tolist()]
    load = float(rng.uniform(0.2, 0.95))
    return {
        "service_rates": rates,
        "arrival_rate": load * rates.sum() / tasks,
        "tasks": tasks,
        "thresholds": thresholds,
    }


@pytest.mark.parametrize("seed", range(501, 513))
def test_the_distribution_of_the_response_time_has_the_mean_of_littles_law(seed):
    # the two come from different starts of the chain, and the waiting time from the mean level alone
    solution = solved(**random_case(seed))
    measures = solution.measures()
    assert solution.distribution("response_time").mean == pytest.approx(measures["response_time"], rel=1e-11)
    assert solution.distribution("service_span").mean == pytest.approx(measures["service_span"], rel=1e-13)
    assert measures["jobs"] == pytest.approx(
        solution.expected("waiting_jobs") + measures["jobs"] - measures["waiting_jobs"]
    )
    assert solution.distribution("response_time") is solution.distribution("response_time")


@pytest.mark.parametrize("load", [0.3, 0.9, 0.999])
def test_one_server_has_an_exponential_response_time(load):
    law = solved(service_rates=[2.0], arrival_rate=2 * load, tasks=1).distribution("response_time")
    rate = 2 * (1 - load)
    assert law.quantile([0.5, 0.95]) == pytest.approx([math.log(2) / rate, math.log(20) / rate], rel=1e-11)
    assert law.variance == pytest.approx(1 / rate**2, rel=1e-11)


def test_equal_servers_have_the_response_time_of_the_multi_server_queue():
    servers, mu, arrivals = 4, 1.5, 5.1
    solution = solved(service_rates=[mu] * servers, arrival_rate=arrivals, tasks=1)
    offered = arrivals / mu
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    queueing = offered**servers / math.factorial(servers) / (1 - offered / servers)
    wait = queueing / (sum(terms) + queueing)  # Erlang's C
    spare = servers * mu - arrivals
    assert solution.measures()["response_time"] == pytest.approx(1 / mu + wait / spare, rel=1e-13)
    law, times = solution.distribution("response_time"), np.array([0.1, 1.0, 7.0])
    # exponential service, and with the probability `wait` an exponential wait of rate `spare` before it
    both = (mu * np.exp(-spare * times) - spare * np.exp(-mu * times)) / (mu - spare)
    np.testing.assert_allclose(law.survival(times), (1 - wait) * np.exp(-mu * times) + wait * both, rtol=1e-12)


def test_a_rare_job_takes_the_largest_time_of_the_fastest_servers():
    rates = [5.0, 2.0, 1.0, 0.5]
    law = solved(service_rates=rates, arrival_rate=1e-9, tasks=3).distribution("response_time")
    expected = sum(1 / rate for rate in rates[:3]) - 1 / 7 - 1 / 6 - 1 / 3 + 1 / 8
    assert law.mean == pytest.approx(expected, rel=1e-7)
    times = np.array([0.2, 1.0, 4.0])
    np.testing.assert_allclose(
        law.cdf(times), np.prod([1 - np.exp(-rate * times) for rate in rates[:3]], axis=0), rtol=1e-7
    )


def test_a_truncation_has_the_measures_of_its_jobs_that_are_not_lost():
    queue = fork_join(**PAPER)
    finite = ctmc.solve(ctmc.Stationary(queue.truncate(levels=8)), "gth").measures()
    assert finite["jobs"] == pytest.approx(finite["waiting_jobs"] * finite["response_time"] / finite["waiting_time"])
    assert finite["service_span"] == pytest.approx(0.695625212149, rel=1e-4)


# ---- the check of the certificate -------------------------------------------------------------------------------------------


def test_the_certificate_reports_the_rate_of_starts(tmp_path):
    queue = fork_join(**PAPER)
    ctmc.save(tmp_path / "queue.h5", queue)
    for model in (queue, ctmc.load(tmp_path / "queue.h5")):
        solution = ctmc.solve(ctmc.Stationary(model))
        assert "the rate at which jobs start, against their arrival rate, is right to" in solution.reason
        assert model.checks(solution.value)["the rate at which jobs start, against their arrival rate"] < 1e-15
        assert solution.distribution("response_time").mean == pytest.approx(0.837961938604, abs=1e-11)


def test_an_answer_whose_starts_do_not_add_up_is_not_certified():
    # the answer of another queue with the same states: it balances, but for this one jobs start at the wrong rate
    queue, other = fork_join(**PAPER), fork_join(**{**PAPER, "arrival_rate": 1.01})
    mixed = other.replace(checks=queue.checks)
    solution = ctmc.solve(ctmc.Stationary(mixed), check=False)
    assert solution.status is Status.INACCURATE
    assert "a check of the model fails: the rate at which jobs start" in solution.reason
    with pytest.raises(ctmc.SolveError, match="a check of the model fails"):
        ctmc.solve(ctmc.Stationary(mixed))


def test_a_check_that_is_no_number_certifies_nothing():
    queue = fork_join(**PAPER).replace(checks=lambda answer: {"a count": math.nan})
    assert ctmc.solve(ctmc.Stationary(queue), check=False).status is Status.INACCURATE


def test_a_distribution_that_the_model_does_not_know():
    with pytest.raises(ctmc.UnknownNameError, match="response_time"):
        solved(**PAPER).distribution("response_tim")


def test_percentiles_as_text():
    from ctmc.study.measures import check_measure, evaluate_measure

    solution = solved(**PAPER)
    for text, level in (("p95(response_time)", 0.95), (" p99.5( service_span ) ", 0.995)):
        check_measure(text)
        assert evaluate_measure(solution, text) == solution.distribution(text.split("(")[1].strip(" )")).quantile(level)
    with pytest.raises(ctmc.ModelError):
        check_measure("p100(response_time)")
    with pytest.raises(ctmc.UnknownNameError, match="service_span"):
        evaluate_measure(solution, "p95(service_spam)")


def test_a_boundary_of_thousands_of_states_goes_to_gauss_seidel():
    rates = np.linspace(2, 1, 8)
    thresholds = [1, *[40] * 7]
    parameters = {"service_rates": rates, "arrival_rate": 0.5 * rates.sum() / 8, "tasks": 8, "thresholds": thresholds}
    solution = solved(**parameters)
    assert solution.solver.endswith("boundary_solver='gauss_seidel')")
    assert solved(**PAPER).solver.endswith("boundary_solver='gth')")
    direct = ctmc.solve(ctmc.Stationary(fork_join(**parameters)), "logarithmic_reduction(boundary_solver='sparse_lu')")
    assert solution.measures()["response_time"] == pytest.approx(direct.measures()["response_time"], rel=1e-10)
    assert math.fsum(starts_of(direct, **parameters).rates) == pytest.approx(parameters["arrival_rate"], rel=1e-13)
