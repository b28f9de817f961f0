"""Optimisation: the published optimum, the coordinate search against the exhaustive one, bounds, refusals, the command."""

import itertools
import json
import math
import os
import pty
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

import ctmc
from ctmc import registry
from ctmc.cli import main
from ctmc.errors import CTMCError, ModelError, SolveError, UnknownNameError, UnstableError
from ctmc.model.predicate import parse_formula
from ctmc.study.design import Design, design_for
from ctmc.study.optimize import Cost, optimize

HOME = Path(ctmc.__file__).resolve().parents[1]
ROWS = tomllib.loads((HOME / "data/reference/fork_join.toml").read_text())["row"]
QUEUE = {"service_rates": [5.0, 2.0, 1.0], "arrival_rate": 1.0, "tasks": 3}
FLAGS = ["--service-rates", "5,2,1", "--arrival-rate", "1", "--tasks", "3", "--over", "thresholds"]
COMMAND = ["optimize", "fork_join", *FLAGS, "--minimize", "response_time"]

# the best thresholds of each rate stand in the table once, beside (1, 1, 1) and (1, 2, 3)
BEST = {
    row["arrival_rate"]: row
    for row in ROWS
    if not row.keys() & {"tasks", "service_rates"} and row["thresholds"] not in ([1, 1, 1], [1, 2, 3])
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")

    def command(*arguments):
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.mark.parametrize(
    "rate",
    [
        pytest.param(0.5, marks=pytest.mark.slow),
        1.0,
        pytest.param(1.5, marks=pytest.mark.slow),
        pytest.param(2.0, marks=pytest.mark.slow),
    ],
)
def test_the_best_thresholds_of_the_paper(rate):
    assert len(BEST) == 4
    found = optimize("fork_join", QUEUE | {"arrival_rate": rate}, "thresholds", "response_time", maximum=12)
    assert list(found.best.point) == BEST[rate]["thresholds"]
    assert found.best.cost == pytest.approx(BEST[rate]["response_time"], abs=1e-11)
    assert found.points == 78 == len(found.candidates) + found.ruled_out
    assert found.best.defect < 1e-12
    assert [one.cost for one in found.candidates] == sorted(one.cost for one in found.candidates)
    local = optimize(
        "fork_join", QUEUE | {"arrival_rate": rate}, "thresholds", "response_time", maximum=12, method="coordinate"
    )
    assert local.best.point == found.best.point
    assert len(local.candidates) < 40


@pytest.mark.parametrize(
    ("rates", "rate", "tasks", "maximum", "cost"),
    [
        ([5, 2, 1, 0.5], 1.0, 3, 6, "response_time"),
        ([5, 2, 1], 1.0, 3, 9, "response_time + 0.1*busy_servers"),
        ([4, 4, 0.3], 1.4, 2, 12, "jobs"),
        ([2, 1.5, 1, 0.5], 1.0, 4, 4, "response_time"),
        ([3, 1, 0.1], 0.5, 1, 6, "p95(response_time)"),
    ],
)
def test_coordinate_search_finds_what_exhaustive_search_finds(rates, rate, tasks, maximum, cost):
    queue = {"service_rates": rates, "arrival_rate": rate, "tasks": tasks}
    whole = optimize("fork_join", queue, "thresholds", cost, maximum=maximum)
    local = optimize("fork_join", queue, "thresholds", cost, maximum=maximum, method="coordinate")
    assert local.best.point == whole.best.point
    assert local.best.cost == whole.best.cost
    assert len(local.candidates) < whole.points


def test_the_cost_is_that_of_a_solve_by_hand():
    queue = ctmc.build("fork_join", **QUEUE, thresholds=[1, 2, 5])
    measures = ctmc.solve(ctmc.Stationary(queue)).measures()
    for text, cost in (
        ("response_time + 0.1*busy_servers", measures["response_time"] + 0.1 * measures["busy_servers"]),
        ("(jobs - 2) * waiting_time / 4", (measures["jobs"] - 2) * measures["waiting_time"] / 4),
        ("-utilization[1]", -measures["utilization"][1]),
        ("utilization[2] + 1", measures["utilization"][2] + 1),
    ):
        found = optimize("fork_join", QUEUE, "thresholds", text, maximum=5)
        assert {one.point: one.cost for one in found.candidates}[1, 2, 5] == pytest.approx(cost, rel=1e-13)


@pytest.mark.parametrize(
    ("rates", "rate", "tasks", "maximum"),
    [
        ([5, 2, 1], 2.2, 3, 9),
        ([5, 2, 1], 0.4, 3, 7),
        ([2, 1, 1, 0.5], 1.0, 2, 5),
        ([3, 1], 1.5, 1, 30),
        ([3, 3], 2.9, 2, 25),
    ],
)
def test_bounds_are_below_the_measures(rates, rate, tasks, maximum):
    """Each bound against the exact measure, at every point; and it is not empty."""
    queue = {"service_rates": rates, "arrival_rate": rate, "tasks": tasks}
    design = design_for("fork_join", queue, "thresholds", maximum)
    closest = dict.fromkeys(design.bounds(design.lower), 0.0)
    for point in design.points():
        measures = ctmc.solve(ctmc.Stationary(ctmc.build("fork_join", **queue, thresholds=list(point)))).measures()
        for name, bound in design.bounds(point).items():
            assert bound <= measures[name] * (1 + 1e-12), (point, name)
            closest[name] = max(closest[name], bound / measures[name])
    assert closest["response_time"] > 0.3
    assert closest["busy_servers"] > 0.4


@pytest.mark.slow
def test_what_bounds_rule_out_is_not_solved_and_not_better():
    queue = QUEUE | {"arrival_rate": 2.0}
    found = optimize("fork_join", queue, "thresholds", "response_time", maximum=20)
    assert found.points == 210 == len(found.candidates) + found.ruled_out
    assert found.ruled_out > 15
    design = design_for("fork_join", queue, "thresholds", 20)
    tried = {one.point for one in found.candidates}
    left = [point for point in design.points() if point not in tried]
    for point in left[:: len(left) // 8]:
        model = ctmc.build("fork_join", **queue, thresholds=list(point))
        assert ctmc.solve(ctmc.Stationary(model)).measures()["response_time"] > found.best.cost


def test_no_bound_where_the_cost_is_no_sum_of_measures():
    for text in (
        "-jobs",
        "1 / jobs",
        "jobs * jobs",
        "jobs - 2 * waiting_time",
        "(jobs)",
        "p95(jobs)",
        "2",
        "jobs * -1",
    ):
        assert _weights(text) is None, text
    assert Cost("jobs + 2*jobs + busy_servers * 0.5").weights == {"jobs": 3.0, "busy_servers": 0.5}


def _weights(text):
    try:
        return Cost(text).weights
    except ModelError:
        return None


@pytest.mark.parametrize(
    ("lower", "upper", "ordered"),
    [
        ((1, 1, 1), (1, 4, 4), True),
        ((1, 2, 1), (3, 5, 4), True),
        ((0, 0), (2, 3), False),
        ((2,), (2,), False),
        ((1, 1), (5, 2), True),
    ],
)
def test_points_and_their_number(lower, upper, ordered):
    design = Design(parameter="x", lower=lower, upper=upper, ordered=ordered)
    box = itertools.product(*(range(low, high + 1) for low, high in zip(lower, upper, strict=True)))
    expected = [point for point in box if not ordered or list(point) == sorted(point)]
    assert list(design.points()) == expected
    assert design.count == len(expected) > 0
    generator = np.random.default_rng(20261)
    for point in expected:
        for _ in range(5):
            begin, step = int(generator.integers(len(lower))), int(generator.integers(-3, 4))
            assert design.moved(point, begin, begin + 1, step) in expected


def test_a_range_of_a_parameter_without_a_design():
    market = {"service_rates": [1.0, 1.0, 1.0], "arrival_rate": 2.4, "capacity": 6}
    found = optimize("supermarket", market, "choices=1:3", "response_time")
    assert [one.point for one in found.candidates] == [(3,), (2,), (1,)]  # more choices, shorter queues
    assert found.ruled_out == 0


BAD = [
    ({"over": "threshold"}, "There is no design of fork_join 'threshold'; did you mean 'thresholds'?"),
    ({"over": "choices=1:3"}, "There is no parameter of fork_join 'choices'"),
    ({"over": "thresholds=1:3"}, "thresholds of fork_join does not take one whole number"),
    ({"over": "tasks=1:3"}, "tasks is given and is to be optimised"),
    ({"over": "thresholds=1:3:x"}, "There is no design"),
    ({"maximum": 0}, "maximum is 0; allowed is a whole number from 1 to 10000"),
    ({"maximum": 10**12}, "maximum is 1000000000000"),
    ({"maximum": 5000}, "an exhaustive search has 12,502,500 points; allowed are 1,000,000"),
    ({"method": "newton"}, "method is 'newton'; allowed is exhaustive or coordinate"),
    ({"minimize": "respons_time"}, "did you mean 'response_time'?"),
    ({"minimize": "respons_time + 1"}, "did you mean 'response_time'?"),
    ({"minimize": "response_time >= 1"}, "allowed is a measure, or arithmetic over measures"),
    ({"minimize": "response_time +"}, "expected a name or a number"),
    ({"minimize": "__import__('os')"}, "expected"),
    ({"minimize": "2 + 3"}, "names no measure"),
    ({"minimize": "utilization"}, "'utilization' has 3 components; write utilization[0]"),
    ({"minimize": "utilization + 1"}, "'utilization' has 3 components; write utilization[0] to"),
    ({"minimize": "jobs / 0"}, "is inf; allowed is a finite number"),
    ({"parameters": QUEUE | {"arrival_rate": 3.0}}, "the mean drift is 1 tasks per unit of time"),
    ({"parameters": QUEUE | {"thresholds": [1, 1, 1]}}, "thresholds is given and is to be optimised"),
    ({"parameters": {"tasks": 3}}, "service_rates is missing"),
    ({"solver": "gmress"}, "did you mean 'gmres'"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_refusals(changes, message):
    question = {"builder": "fork_join", "parameters": QUEUE, "over": "thresholds", "minimize": "response_time"}
    with pytest.raises(CTMCError) as caught:
        optimize(**{**question, "maximum": None, **changes})
    assert message in str(caught.value)


def test_the_kind_of_refusal():
    with pytest.raises(UnstableError):
        design_for("fork_join", QUEUE | {"arrival_rate": 3.0}, "thresholds")
    with pytest.raises(UnknownNameError):
        design_for("birth_death", {}, "thresholds")
    with pytest.raises(ModelError, match="the range of tasks begins at"):
        design_for("fork_join", {}, "tasks=3:1")


def test_without_a_certificate_there_is_no_optimum():
    with pytest.raises(SolveError, match="ITERATION_LIMIT"):
        optimize("fork_join", QUEUE, "thresholds", "jobs", solver="logarithmic_reduction(max_iterations=1)")


def test_a_candidate_without_an_answer_never_wins(monkeypatch):
    """The best point fails: it is reported, and the second best comes first."""
    from ctmc.study import search as module

    honest = module.solve

    def failing(problem, solver, **settings):
        if problem.model.recipe.parameters.get("thresholds") == [1, 2, 8]:
            solver = "logarithmic_reduction(max_iterations=1)"
        return honest(problem, solver, **settings)

    monkeypatch.setattr(module, "solve", failing)
    for method in ("exhaustive", "coordinate"):
        found = optimize("fork_join", QUEUE, "thresholds", "response_time", maximum=9, method=method)
        assert found.best.point == (1, 2, 7)
        assert [one.point for one in found.failed] == [(1, 2, 8)] == [found.candidates[-1].point]
        assert math.isnan(found.failed[0].cost)


def test_a_watcher_stops_the_search():
    seen = []

    def watch(done, points, best):
        seen.append((done, points, best is not None))
        return len(seen) == 4

    found = optimize("fork_join", QUEUE, "thresholds", "response_time", watch=watch)
    assert found.stopped
    assert seen == [(0, 78, False), (1, 78, True), (2, 78, True), (3, 78, True)]
    assert len(found.candidates) == 3


def test_formulas():
    values = {"a": 2.0, "b": np.array([1.0, 4.0])}
    assert parse_formula("-(a + 2) / b[1] * 3 - .5").evaluate(values) == -3.5
    for bad in ("a b", "a +", "a[", "a < 1", "a; b", "f(a)"):
        with pytest.raises(ModelError, match="formula"):
            parse_formula(bad)
    with pytest.raises(ModelError, match="a condition stands where a number"):
        parse_formula("(a < 1) + 1").evaluate(values)


# ---- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_best_few(run):
    code, out, err = run(*COMMAND, "--maximum", "12")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["thresholds", "response_time"]
    assert lines[2].split()[:2] == ["1,2,8", "0.8379619386"]
    assert len(lines) == 7
    assert "of 78 points solved" in err
    assert "the least of all points" in err


def test_the_command_as_json(run):
    code, out, err = run(*COMMAND, "--maximum", "9", "--method", "coordinate", "--show", "2", "--json", "-q")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["best"][0]["thresholds"] == [1, 2, 8]
    assert document["best"][0]["cost"] == pytest.approx(0.837961938604, abs=1e-11)
    assert len(document["best"]) == 2
    assert document["points"] == 45
    assert document["method"] == "coordinate"


@pytest.mark.parametrize("name", registry.builder_names())
def test_every_builder_has_its_parameters_as_flags(run, name):
    code, out, _ = run("optimize", name, "--help")
    assert code == 0
    for parameter in registry.builder_parameters(name).parameters:
        assert f"--{parameter.replace('_', '-')}" in out
    assert ("thresholds or " in out) == (name == "fork_join")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["optimize"], "Missing the name of a builder"),
        (["optimize", "fork_joi"], "did you mean 'fork_join'?"),
        (["optimize", "fork_join", "--over", "thresholds"], "--minimize"),
        (["optimize", "fork_join", "--over", "thresholds", "--minimize", "jobs"], "service_rates is missing"),
        ([*COMMAND, "--method", "guess"], "guess"),
        ([*COMMAND, "--maximum", "x"], "maximum"),
        ([*COMMAND, "--thresholds", "1,2,3"], "thresholds is given and is to be optimised"),
    ],
)
def test_bad_usage_is_one_line(run, arguments, words):
    code, out, err = run(*arguments)
    assert code == 2
    assert words in err
    assert (out, err.count("\n")) == ("", 1)


def test_ctrl_c_prints_what_was_found(tmp_path):
    """On a terminal: progress is shown, the first signal ends the search after a candidate, and the table comes."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ctmc", *COMMAND, "--maximum", "400"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(HOME), "TERM": "xterm", "COLUMNS": "250"},
        stdout=subprocess.PIPE, stderr=follower,
    )  # fmt: skip
    os.close(follower)
    seen = b""
    limit = time.monotonic() + 60
    while b"of 80,200" not in seen or b"best" not in seen:
        assert time.monotonic() < limit
        seen += os.read(leader, 4096)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    out = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 130
    assert out.startswith("thresholds")
    assert b"the best of those solved until the interrupt" in seen
