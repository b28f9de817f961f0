"""The mean field of the supermarket: closed forms, other integrators, exact models, simulation; the command line; bad input."""

import csv
import dataclasses
import io
import json
import math

import numba
import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import ive

import ctmc
from builders.supermarket import mean_field as module
from builders.supermarket.mean_field import imbalance, mean_field
from builders.supermarket.mean_field_curves import exact_curve, simulated_curve
from builders.supermarket.mean_field_equations import BEYOND, course
from ctmc import registry
from ctmc.cli import main
from ctmc.errors import ModelError, UnknownNameError, UnstableError, UnsupportedProblemError

CLASSES = {"service_rates": [3, 1], "shares": [0.25, 0.75], "arrival_rate_per_server": 1.2, "choices": 2}
RULES = [
    {"selection": "tandem"},
    {"selection": "tandem", "preferences": [1, 3], "ties": ("shortest", "fastest")},
    {"selection": "shortest_queue"},
    {"selection": "expected_delay", "ties": "preferred", "preferences": [1, 2]},
    {"selection": "weighted", "weights": (0.5, 0.3, 0.2), "preferences": [2, 1]},
]


@pytest.mark.parametrize("load", [0.05, 0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("choices", [1, 2, 3, 7])
def test_equal_servers_have_the_closed_form(load, choices):
    if choices == 1 and load > 0.99:
        pytest.skip("32,610 levels: the same at a load of 0.99")
    found = mean_field(service_rates=[2.5], arrival_rate_per_server=2.5 * load, choices=choices)
    levels = range(found.tails.shape[1])
    exact = [load ** sum(choices**j for j in range(k)) for k in levels]  # (d^k - 1) / (d - 1), and k for d = 1
    np.testing.assert_allclose(found.tails[0], exact, rtol=0, atol=1e-13)
    assert found.queue_length[0] == pytest.approx(sum(exact[1:]), rel=2e-12)
    assert found.is_certified
    assert exact[-1] < BEYOND


def test_one_choice_is_a_queue_with_poisson_arrivals():
    """The mean queue length of M/M/1 over time: closed form of the emptiness, and m' = lambda - mu (1 - p0)."""
    times = np.linspace(0, 12, 25)
    found = mean_field(service_rates=[1], arrival_rate_per_server=0.7, choices=1, times=times.tolist())
    assert found.jobs_per_server == pytest.approx(0.7 / 0.3, rel=1e-12)
    root, total = math.sqrt(0.7), 1.7
    # N. U. Prabhu: from empty, p0(t) = 1 - integral of sqrt(rho) exp(-(lambda + mu) u) I_1(2 sqrt(lambda mu) u) / u
    nodes, weights = np.polynomial.legendre.leggauss(40)

    def busy(time):
        points = time * (1 + nodes) / 2
        density = root * ive(1, 2 * root * points) * np.exp((2 * root - total) * points) / points
        return time / 2 * weights @ density

    for time, tails in zip(times[1:], found.tails_at[1:, 0], strict=True):
        assert tails[1] == pytest.approx(busy(time), abs=1e-10)
    assert found.tails_at[0, 0, 1:].max() == 0


def runge_kutta(rates, shares, arrival_rate, choices, value, initial, times, levels=22, steps=120):
    """Return mean queue lengths, shape (T, C), written from the text: masses and values, no keys, no tails."""
    rates, shares = np.array(rates, dtype=float), np.array(shares, dtype=float)
    values = np.array([[value(x, mu) for x in range(levels)] for mu in rates])

    def drift(p):
        mass = shares[:, None] * p
        not_less = np.array([[mass[values >= v - 1e-9].sum() for v in row] for row in values])
        more = np.array([[mass[values > v + 1e-9].sum() for v in row] for row in values])
        each = sum(not_less**j * more ** (choices - 1 - j) for j in range(choices))
        up, down = arrival_rate * each * p, rates[:, None] * p
        up[:, -1] = down[:, 0] = 0
        change = -up - down
        change[:, 1:] += up[:, :-1]
        change[:, :-1] += down[:, 1:]
        return change

    p = np.zeros((len(rates), levels))
    p[np.arange(len(rates)), initial] = 1
    found, now = [], 0.0
    for time in times:
        h = (time - now) / steps
        for _ in range(steps):
            a = drift(p)
            b = drift(p + h / 2 * a)
            c = drift(p + h / 2 * b)
            p = p + h / 6 * (a + 2 * b + 2 * c + drift(p + h * c))
        now = time
        found.append(p @ np.arange(levels))
    return np.array(found)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("tandem", lambda x, mu: x / mu),
        ("shortest_queue", lambda x, mu: x),
        ("expected_delay", lambda x, mu: (x + 1) / mu),
    ],
)
@pytest.mark.parametrize("initial", [(5, 1)])
def test_the_course_agrees_with_runge_kutta(rule, value, initial):
    times = [0.5, 2.0]
    found = mean_field(**CLASSES, selection=rule, times=times, initial=initial)
    other = runge_kutta([3, 1], [0.25, 0.75], 1.2, 2, value, initial, times)
    np.testing.assert_allclose(found.queue_length_at, other, rtol=0, atol=2e-9)
    assert found.course_defect < 1e-9


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "choices", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_the_course_ends_at_the_fixed_point(rule, choices):
    rate = 0.8 if choices > 1 else 0.4  # single queues settle slowly
    known = {**CLASSES, "choices": choices, "arrival_rate_per_server": rate}
    found = mean_field(**known, **rule, times=[0, 400], initial=[3, 0])
    np.testing.assert_allclose(found.queue_length_at[1], found.queue_length, rtol=0, atol=1e-8)
    assert found.queue_length_at[0].tolist() == [3, 0]
    assert found.is_certified
    assert found.response_time * rate == pytest.approx(found.shares @ found.queue_length, rel=1e-15)
    assert found.utilization * found.service_rates @ found.shares == pytest.approx(rate, rel=1e-13)
    flows = found.service_rates * found.utilization * found.shares / rate
    assert flows @ found.class_response_time == pytest.approx(found.response_time, rel=1e-13)


def test_many_unknowns_take_the_method_with_a_sparse_jacobian():
    """M/M/1 at a load of 0.99: the course has over a thousand levels; its mean follows from its emptiness."""
    found = mean_field(service_rates=[1], arrival_rate_per_server=0.99, choices=1, times=[100, 500])
    assert found.tails_at.shape[2] > 600
    assert found.is_certified
    # the same by the other method, which fewer levels take for a shorter time
    short = mean_field(service_rates=[1], arrival_rate_per_server=0.99, choices=1, times=[100])
    assert short.tails_at.shape[2] < 600
    np.testing.assert_allclose(found.queue_length_at[0], short.queue_length_at[0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("rule", [{}, {"selection": "expected_delay"}, {"ties": "shortest"}])
def test_equal_classes_are_one_class(rule):
    one = mean_field(service_rates=[1], arrival_rate_per_server=0.9, choices=3, times=[4], **rule)
    three = mean_field(
        service_rates=[1] * 3, shares=[0.2, 0.5, 0.3], arrival_rate_per_server=0.9, choices=3, times=[4], **rule
    )
    levels = min(one.tails.shape[1], three.tails.shape[1])
    for tails in three.tails:
        np.testing.assert_allclose(tails[:levels], one.tails[0, :levels], rtol=0, atol=1e-14)
    np.testing.assert_allclose(three.queue_length_at, np.tile(one.queue_length_at, 3), rtol=0, atol=1e-9)


def test_classes_that_differ_in_name_only_may_be_split():
    whole = mean_field(**CLASSES)
    split = mean_field(
        service_rates=[1, 3, 1], shares=[0.5, 0.25, 0.25], arrival_rate_per_server=1.2, choices=2, preferences=[7] * 3
    )
    np.testing.assert_allclose(split.queue_length, whole.queue_length[[1, 0, 1]], rtol=1e-13)


def test_a_rule_that_never_looks_at_the_queues_gives_single_queues():
    """With d = 2 the fast half gets 3/4 of the jobs: loads 0.6 and 0.3."""
    found = mean_field(
        service_rates=[3, 2], arrival_rate_per_server=1.2, choices=2, selection="weighted", weights=[0, 0.5, 0.5]
    )
    np.testing.assert_allclose(found.queue_length, [0.6 / 0.4, 0.3 / 0.7], rtol=1e-12)


@pytest.mark.parametrize("preferences", [[1, 1], [1, 4]])
def test_preferences_and_weights_mean_what_they_mean_with_finitely_many_servers(preferences):
    """The rates at which jobs choose a server come from the builder of finite models, on one state of many servers."""
    rule = {"selection": "weighted", "weights": [0.5, 0.2, 0.3], "preferences": preferences}
    found = mean_field(**CLASSES, **rule)
    small = found.finite_parameters(8)
    assert small["arrival_rate"] == pytest.approx(9.6)
    assert sum(small["preferences"]) == pytest.approx(1)
    ratio = [
        0.5 * x + 0.2 / mu + 0.3 / g
        for x, mu, g in [(0, 3, found.preferences[0]), (2, 3, found.preferences[0]), (1, 1, found.preferences[1])]
    ]
    b, g = small["weights"], small["preferences"]
    others = [b[0] * x + b[1] / mu + b[2] / g[i] for x, mu, i in [(0, 3, 0), (2, 3, 0), (1, 1, 7)]]
    np.testing.assert_allclose(np.array(others) / others[0], np.array(ratio) / ratio[0], rtol=1e-12)


def test_a_rule_of_ones_own_may_be_a_function():
    known = {**CLASSES, "shares": [0.5, 0.5], "arrival_rate_per_server": 0.5, "times": [1, 3]}
    found = mean_field(**known, selection=lambda x, mu, g: (x + 1) / mu)
    named = mean_field(**known, selection="expected_delay")
    np.testing.assert_array_equal(found.tails, named.tails)
    curves = [exact_curve(field, 2)[0].queue_length for field in (found, named)]
    np.testing.assert_allclose(*curves, rtol=0, atol=1e-9)


def test_models_with_more_servers_come_closer_like_one_over_their_number():
    """Exact, lumped, truncated so that few queues are full; equal servers, the shortest queue."""
    limit = mean_field(service_rates=[1], arrival_rate_per_server=0.5, choices=2, selection="shortest_queue")
    gaps = {}
    for servers, capacity in ((2, 30), (5, 8), (10, 5), (20, 4)):
        model = ctmc.build("supermarket", **limit.finite_parameters(servers), capacity=capacity, lump=True)
        measures = ctmc.solve(ctmc.Stationary(model), "gauss_seidel").measures()
        gaps[servers] = measures["jobs"] / servers - limit.jobs_per_server
        assert measures["boundary"] < 0.005  # 20 servers with 5 jobs: 4e-8 of all in the limit
    assert all(gap > 0 for gap in gaps.values())
    # M gap = a + b / M: nearly the same for all
    scaled = [servers * gap for servers, gap in gaps.items()]
    assert gaps[10] / gaps[20] == pytest.approx(2, abs=0.15)
    assert gaps[5] / gaps[10] == pytest.approx(2, abs=0.3)
    assert 1 < max(scaled) / min(scaled) < 1.8


def test_exact_courses_come_closer_like_one_over_their_number():
    found = mean_field(service_rates=[1], arrival_rate_per_server=0.5, choices=2, times=[1.0, 4.0])
    curves = {servers: exact_curve(found, servers) for servers in (4, 8)}
    gaps = {servers: curve.queue_length - found.queue_length_at for servers, (curve, _) in curves.items()}
    assert all(full < 1e-6 for _, full in curves.values())
    np.testing.assert_allclose(gaps[4] / gaps[8], 2, atol=0.3)


def test_exact_and_simulated_courses_agree():
    """Four servers of two classes that begin with different queue lengths, and equal classes that do."""
    for rates in ([3, 1], [1, 1]):
        found = mean_field(
            service_rates=rates, arrival_rate_per_server=0.5, choices=2, times=[0.0, 1.0, 4.0], initial=[2, 0]
        )
        exact, simulated = exact_curve(found, 4)[0], simulated_curve(found, 4, seed=20266)
        assert exact.queue_length[0].tolist() == simulated.queue_length[0].tolist() == [2, 0]
        assert (np.abs(exact.queue_length - simulated.queue_length) <= 1.7 * simulated.half_width).all()
        assert simulated.half_width.max() < 0.1


@numba.njit
def simulated(rates, arrival_rate, choices, horizon, warm_up, seed):
    """Return the mean queue length of each server over time, from the rules as they stand, `tandem` and random ties."""
    np.random.seed(seed)  # noqa: NPY002
    servers = len(rates)
    lengths, integral, since = np.zeros(servers, np.int64), np.zeros(servers), np.full(servers, warm_up)
    fastest = rates.max()
    total = servers * (arrival_rate + fastest)
    now = 0.0
    while True:
        now += np.random.exponential(1 / total)  # noqa: NPY002
        if now > horizon:
            break
        server = np.random.randint(servers)  # noqa: NPY002
        change = 0
        if np.random.random() * total < servers * arrival_rate:  # noqa: NPY002
            for sample in range(choices):
                other = np.random.randint(servers)  # noqa: NPY002
                a, b = lengths[other] * rates[server], lengths[server] * rates[other]
                if sample == 0 or a < b or (a == b and np.random.random() * (sample + 1) < 1):  # noqa: NPY002
                    server = other
            change = 1
        elif np.random.random() * fastest < rates[server] and lengths[server] > 0:  # noqa: NPY002
            change = -1
        if change:
            if now > warm_up:
                integral[server] += lengths[server] * (now - since[server])
                since[server] = now
            lengths[server] += change
    for server in range(servers):
        integral[server] += lengths[server] * (horizon - since[server])
    return integral / (horizon - warm_up)


def test_different_servers_agree_with_a_simulation():
    found = mean_field(**CLASSES)
    rates = np.repeat([3.0, 1.0], [500, 1500])
    runs = [simulated(rates, 1.2, 2, 500.0, 100.0, seed) for seed in (20261, 20262, 20263)]
    means = np.array([[run[:500].mean(), run[500:].mean()] for run in runs])
    # the spread of the runs, and the bias of 2000 servers
    np.testing.assert_allclose(means.mean(axis=0), found.queue_length, rtol=0.01)
    assert np.abs(means.std(axis=0)).max() < 0.04


@pytest.mark.parametrize("rule", RULES)
def test_the_jacobian_is_that_of_differences_and_keeps_the_order_of_states(rule):
    field = mean_field(**CLASSES, **rule)
    equations = field._design.equations(8)
    state = np.sort(np.random.default_rng(7).random((2, 8)), axis=1)[:, ::-1].ravel()
    jacobian = equations.jacobian(state).toarray()
    np.testing.assert_allclose(jacobian, approx_fprime(state, equations.drift, 1e-7), atol=1e-5)
    assert (jacobian - np.diag(np.diag(jacobian)) >= 0).all()


def test_the_defect_is_recomputed():
    found = mean_field(**CLASSES)
    equations = found._design.equations(found.tails.shape[1] - 1)
    wrong = found.tails.copy()
    wrong[0, 2] += 1e-6
    assert found.defect < 1e-14
    assert imbalance(equations, wrong)[0] > 1e-7
    # full up to the last level: balanced but for what is lost there
    full = np.ones_like(wrong)
    assert imbalance(equations, full)[0] > 0.1


@pytest.mark.parametrize(
    "name", ["defect", "balance", "beyond", "correction", "course_defect"]
)  # fmt: skip
def test_each_residual_can_refuse_the_certificate(name):
    found = mean_field(**CLASSES, times=[1])
    assert found.is_certified
    assert not dataclasses.replace(found, **{name: 1e-5}).is_certified
    assert not dataclasses.replace(found, **{name: math.nan}).is_certified


def test_the_course_tells_its_defect(monkeypatch):
    """A drift that is not the one that was integrated shows in the defect."""
    found = mean_field(**CLASSES)
    equations = found._design.equations(20)
    true = type(equations).drift
    calls = {"vectorised": 0}

    def disturbed(self, unknowns):
        calls["vectorised"] += unknowns.ndim == 2
        return true(self, unknowns) * (1 + 1e-4 * (unknowns.ndim == 2))

    monkeypatch.setattr(type(equations), "drift", disturbed)
    assert course(equations, np.zeros(40), np.array([2.0]))[1] > 1e-5
    assert calls["vectorised"] > 0


def test_levels_are_added_where_servers_reach_the_last(monkeypatch):
    """Two classes that start apart: the bound on the arrivals is cut on purpose."""
    monkeypatch.setattr(module.math, "sqrt", lambda _: -4.0)
    found = mean_field(service_rates=[1], arrival_rate_per_server=0.9, choices=1, times=[20])
    monkeypatch.undo()
    assert found.beyond <= BEYOND
    exact = mean_field(service_rates=[1], arrival_rate_per_server=0.9, choices=1, times=[20])
    np.testing.assert_allclose(found.queue_length_at, exact.queue_length_at, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"shares": [0.5]}, ModelError, "shares is"),
        ({"shares": [0.5, 0.6]}, ModelError, "sum to 1"),
        ({"shares": [0, 1]}, ModelError, "allowed are 2 numbers > 0"),
        ({"service_rates": [3, -1]}, ModelError, "service_rates has the value -1"),
        ({"arrival_rate_per_server": 0}, ModelError, "arrival_rate_per_server is 0"),
        ({"choices": 0}, ModelError, "choices is 0; allowed is a whole number from 1 to 1000"),
        ({"preferences": [1]}, ModelError, "preferences is"),
        ({"weights": [1, 1, 1]}, ModelError, "weights is"),
        ({"selection": "tandm"}, UnknownNameError, "did you mean 'tandem'"),
        ({"ties": "fast"}, UnknownNameError, "value of ties 'fast'"),
        ({"times": [2, 1]}, ModelError, "times is .*ascending"),
        ({"times": [-1]}, ModelError, "times is"),
        ({"initial": [1, 2, 3]}, ModelError, "initial has 3 numbers"),
        ({"initial": -1}, ModelError, "initial is -1"),
        ({"selection": lambda x, mu, g: -1.0 * x}, ModelError, "does not fall with the queue length"),
        ({"arrival_rate_per_server": 1.6, "choices": 10}, UnstableError, "only servers of the classes 0, 1 arrive at rate 1.6"),
        ({"arrival_rate_per_server": 1.35}, UnstableError, "only servers of the classes 1 arrive at rate 0.759375"),
        (
            {"selection": "weighted", "weights": [0, 0, 1], "preferences": [1, 2], "arrival_rate_per_server": 1.1},
            UnstableError,
            "each server of class 1 gets jobs at the fixed rate 1.375",
        ),
        (
            {
                "selection": "weighted", "weights": [0, 0, 1], "preferences": [1, 2], "arrival_rate_per_server": 1.1,
                "ties": "shortest",
            },
            UnstableError,
            "no fixed point within reach",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(changes, error, sentence):
    with pytest.raises(error, match=sentence):
        mean_field(**{**CLASSES, **changes})


def test_finite_models_that_there_are_not():
    found = mean_field(**CLASSES)
    for servers, sentence in ((6, "no whole numbers"), (1, "allowed is a whole number >= 2")):
        with pytest.raises(ModelError, match=sentence):
            found.finite_parameters(servers)


SMALL = (
    *("mean-field", "supermarket", "--service-rates", "3,1", "--shares", "1/4,3/4"),
    *("--arrival-rate-per-server", "1.2", "--choices", "2"),
)


def test_command_line(capsys):
    assert main([*SMALL, "--times", "0:2:1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = mean_field(**CLASSES, times=[0, 1, 2])
    assert document["certified"] is True
    assert [row["queue length"] for row in document["classes"]] == found.queue_length.tolist()
    assert [row["class 1"] for row in document["course"]] == found.queue_length_at[:, 1].tolist()
    assert document["tails"][1]["class 0"] == found.tails[0, 1]
    assert main([*SMALL]) == 0
    shown = capsys.readouterr().out
    assert "Fixed point" in shown
    assert "over time" not in shown
    assert main([*SMALL, "--csv", "--times", "1,2"]) == 0
    assert [row[0] for row in csv.reader(io.StringIO(capsys.readouterr().out))] == ["time", "1.0", "2.0"]
    assert "certified" in found.summary()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("mean-field",), "Missing the name of a builder"),
        (("mean-field", "fork_join"), "has no limit of infinitely many servers; builders that have: supermarket"),
        ((*SMALL, "--plot", "a.png"), "--times is missing"),
        ((*SMALL, "--times", "1", "--plot", "a.pdf"), "ends in .png"),
        ((*SMALL, "--times", "1", "--plot", "no_such_folder/a.png"), "there is no folder"),
        ((*SMALL, "--times", "1", "--plot", "a.png", "--exact", "2,x"), "--exact is '2,x'"),
    ],
)
def test_bad_commands_are_one_line(arguments, sentence, capsys):
    assert main([*arguments]) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert len(shown.err.splitlines()) == 1


def test_what_is_not_certified_ends_with_1(monkeypatch, capsys):
    monkeypatch.setattr(module, "imbalance", lambda *_: (0.1, 0.0))
    assert main([*SMALL]) == 1
    assert "not certified" in capsys.readouterr().err


def test_the_registry_knows_the_limit():
    assert registry.mean_field_names() == ["supermarket"]
    assert registry.mean_field("supermarket") is mean_field
    with pytest.raises(UnsupportedProblemError, match="builders that have: supermarket"):
        registry.mean_field("birth_death")
