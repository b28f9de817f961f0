"""Sweeps, searches and plots in study files: what is refused, with key and line, what a run gives, and the paper's Figure 2."""

import json
import tomllib
import tracemalloc
from pathlib import Path

import pytest

import ctmc
from ctmc.cli import main
from ctmc.errors import ModelError, StudyError
from ctmc.storage.container import read_container
from ctmc.study import parse_study, read_study, run_study
from ctmc.study.plots import is_ours
from ctmc.study.run import line_data
from ctmc.study.shipped import find_study
from ctmc.study.sweep import count, listed, points, read_values

HOME = Path(ctmc.__file__).resolve().parents[1]
QUEUE = '[models.queue]\nbuilder = "fork_join"\nservice_rates = [3, 1]\ntasks = 2\n'
SWEEP = '[models.queue.sweep]\narrival_rate = "0.5:1.5:0.5"\n'
SEARCH = '[optimize]\nover = "thresholds"\nminimize = "response_time"\nmaximum = 4\n'
SOLVE = '[[solve]]\nmeasures = ["waiting_time"]\n'
PLOT = '[[plot]]\nx = "arrival_rate"\ny = "response_time"\n'
GOOD = QUEUE + SWEEP + SEARCH + SOLVE + PLOT

BAD = [
    (GOOD.replace("arrival_rate =", "arival_rate ="), "line 6: there is no parameter of fork_join 'arival_rate'; did you mean"),
    (GOOD.replace('"0.5:1.5:0.5"', '"0.5:1.5"'), "line 6: arrival_rate is '0.5:1.5'; allowed is a list of values, or a range"),
    (GOOD.replace('"0.5:1.5:0.5"', '"1:0:1"'), "line 6: arrival_rate is '1:0:1'"),
    (GOOD.replace('"0.5:1.5:0.5"', '"0:1:0"'), "line 6: arrival_rate is '0:1:0'"),
    (GOOD.replace('"0.5:1.5:0.5"', '"0:nan:1"'), "line 6: arrival_rate is '0:nan:1'"),
    (GOOD.replace('"0.5:1.5:0.5"', '"0:1:1e-999999999"'), "line 6: arrival_rate is "),
    (GOOD.replace('"0.5:1.5:0.5"', "[]"), "line 6: arrival_rate is []"),
    (GOOD.replace('"0.5:1.5:0.5"', "0.5"), "line 6: arrival_rate is 0.5"),
    (GOOD.replace('"0.5:1.5:0.5"', '[0.5, "x"]'), "line 6: arrival_rate takes 'x' in the sweep; allowed is FLOAT"),
    (GOOD.replace('"0.5:1.5:0.5"', '"1:1e12:1"'), "line 6: the sweep of 'queue' makes 1,000,000,000,000 models; allowed are 10,000"),
    (GOOD.replace('"0.5:1.5:0.5"', '"0:1e90:1e-90"'), "line 6: the sweep of 'queue' makes more than 10^15 models"),
    (GOOD.replace(SWEEP, "sweep = 3\n"), "line 5: sweep is 3; allowed is a table"),
    (GOOD.replace("tasks = 2\n", "tasks = 2\narrival_rate = 1\n"), "line 7: arrival_rate is given and swept"),
    (GOOD.replace(SWEEP, "").replace(SEARCH, ""), "line 1: the model 'queue' has no key arrival_rate"),
    (GOOD.replace("maximum =", "maximun ="), "line 10: there is no key of [optimize] 'maximun'; did you mean 'maximum'?"),
    (GOOD.replace('over = "thresholds"\n', ""), "line 7: the table [optimize] has no key over"),
    (GOOD.replace('over = "thresholds"', 'over = "threshold"'), "line 8: there is no design of fork_join 'threshold'"),
    (GOOD.replace('minimize = "response_time"', 'minimize = "response_time +"'), "line 9: formula 'response_time +'"),
    (GOOD.replace("maximum = 4", "maximum = 0"), "line 10: maximum is 0"),
    (GOOD.replace("maximum = 4", 'method = "newton"'), "line 10: there is no method 'newton'"),
    (GOOD.replace("maximum = 4", 'models = ["quue"]'), "line 10: there is no model 'quue'; did you mean 'queue'?"),
    (GOOD.replace("[optimize]", "[optimise]"), "line 7: there is no key of a study 'optimise'; did you mean 'optimize'?"),
    (GOOD.replace(SEARCH, SEARCH.replace("[o", "[[o").replace("e]", "e]]") * 2), "the model 'queue' is optimised twice"),
    ("optimize = 3\n" + GOOD.replace(SEARCH, ""), "line 1: optimize is no table"),
    (GOOD.replace('x = "arrival_rate"\n', ""), "line 13: the table [[plot]] has no key x"),
    (GOOD.replace("y =", "z ="), "line 15: there is no key of [[plot]] 'z'"),
    (GOOD.replace('y = "response_time"', 'y = "jobs >"'), "line 15: condition 'jobs >'"),
    (GOOD.replace("[[plot]]", "[plot]"), "plot is no table"),
    (GOOD + 'models = ["qeue"]\n', "line 16: there is no model 'qeue'"),
    (QUEUE + "arrival_rate = 1\n" + SOLVE + PLOT, "line 8: none of the plot's models has a sweep"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_refusals_name_key_and_line(text, message):
    with pytest.raises(StudyError) as caught:
        parse_study(text)
    assert message in str(caught.value)


def test_a_sweep_is_counted_before_it_is_made():
    text = GOOD.replace('"0.5:1.5:0.5"', '"1:1e6:1"').replace(SEARCH, "thresholds = [[1, 1], [1, 2]]\n")
    parse_study(GOOD)
    tracemalloc.start()
    with pytest.raises(StudyError, match="makes 2,000,000 models"):
        parse_study(text)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    several = "".join(
        QUEUE.replace("queue", f"q{k}") + SWEEP.replace("queue", f"q{k}").replace("0.5:1.5:0.5", "1:4000:1")
        for k in range(3)
    )
    with pytest.raises(StudyError, match="the sweep of 'q2' makes 4,000 models; allowed are 10,000 in a study"):
        parse_study(several + SOLVE)


def test_values_of_a_sweep():
    assert list(listed(read_values("0.1:2.6:0.1"))) == [k / 10 for k in range(1, 27)]
    assert list(listed(read_values("1:7:2"))) == [1, 3, 5, 7]
    assert all(isinstance(value, int) for value in listed(read_values("1:7:2")))
    assert count(read_values("0:1:0.3")) == 4
    assert [tuple(point.values()) for point in points({"a": [1, 2], "b": ["x", "y"]})] == [
        (1, "x"), (1, "y"), (2, "x"), (2, "y"),
    ]  # fmt: skip
    with pytest.raises(ModelError):
        read_values("0:1:x")


def test_a_product_of_two_parameters(tmp_path):
    text = QUEUE + "[models.queue.sweep]\narrival_rate = [0.5, 1]\nthresholds = [[1, 1], [1, 3]]\n" + SOLVE + PLOT
    study = parse_study(text)
    assert len(study.models) == 4
    result = run_study(study, tmp_path / "out.h5")
    assert not result.failed
    for row in result.rows:
        model = ctmc.build("fork_join", service_rates=[3, 1], tasks=2, **row.point)
        assert row.measures["waiting_time"] == ctmc.solve(ctmc.Stationary(model)).measures()["waiting_time"]
        assert row.model == "queue"
    lines = line_data(study.plots[0], result.rows)[""]
    assert list(lines) == ["queue, thresholds 1,1", "queue, thresholds 1,3"]
    assert dict(lines["queue, thresholds 1,3"])[1.0] == pytest.approx(1.157213277079, abs=1e-11)


def test_a_point_that_fails_is_a_row(tmp_path):
    result = run_study(parse_study(GOOD.replace("0.5:1.5:0.5", "1.5:2.5:0.5")), tmp_path / "out.h5")
    assert [row.status for row in result.rows] == ["CONVERGED", "NOT_BUILT", "NOT_BUILT"]
    assert "the mean drift is 0" in result.rows[1].message
    assert [row.point["arrival_rate"] for row in result.rows] == [1.5, 2.0, 2.5]


def test_the_search_runs_at_every_point(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(GOOD)
    assert main(["run", "study.toml", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plots"] == ["study-plot1.png"]
    assert document["picture"] is None
    assert is_ours(Path("study-plot1.png"))
    for row in document["rows"]:
        queue = {"service_rates": [3, 1], "tasks": 2, "arrival_rate": row["point"]["arrival_rate"]}
        times = {
            k: ctmc.solve(ctmc.Stationary(ctmc.build("fork_join", **queue, thresholds=[1, k]))).measures()[
                "response_time"
            ]
            for k in range(1, 5)
        }
        assert row["point"]["thresholds"] == [1, min(times, key=times.get)]
        assert row["measures"]["response_time"] == min(times.values())
    assert len(document["rows"]) == 3
    assert read_container(Path("study.h5"), ("study",)).manifest["rows"] == document["rows"]


@pytest.mark.slow
def test_figure_2_of_the_paper(tmp_path):
    study = read_study(find_study("fork_join_figure2"))
    result = run_study(study, tmp_path / "figure.h5")
    assert not result.failed
    free, best = (
        line_data(study.plots[0], result.rows)[""][name] for name in ("fastest_free_server", "best_thresholds")
    )
    assert len(free) == len(best) == 26
    assert best[-1][0] == 2.6
    gaps = [above[1] - below[1] for above, below in zip(free, best, strict=True)]
    assert all(gap > 0 for gap in gaps)
    assert gaps == sorted(gaps, reverse=True)  # the difference vanishes as the rate grows
    thresholds = [row.point["thresholds"] for row in result.rows if row.model == "best_thresholds"]
    for k in (1, 2):
        falling = [values[k] for values in thresholds]
        assert falling == sorted(falling, reverse=True)
    chosen = {row.point["arrival_rate"]: row for row in result.rows if row.model == "best_thresholds"}
    checked = 0
    for row in tomllib.loads((HOME / "data/reference/fork_join.toml").read_text())["row"]:
        if row.keys() & {"tasks", "service_rates"} or row["thresholds"] == [1, 2, 3]:
            continue
        values = dict(free)[row["arrival_rate"]] if row["thresholds"] == [1, 1, 1] else None
        if values is None:
            assert chosen[row["arrival_rate"]].point["thresholds"] == row["thresholds"]
            values = chosen[row["arrival_rate"]].measures["response_time"]
        assert values == pytest.approx(row["response_time"], abs=1e-11)
        checked += 1
    assert checked == 8
