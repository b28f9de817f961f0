"""Questions about time from the command line and in studies: answers, tables, pictures, and one sentence for what does not fit."""

import csv
import io
import json
import math
import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from command_line import caught

import ctmc
from ctmc import storage
from ctmc.cli import main
from ctmc.cli.progress import monitor_for
from ctmc.cli.question import parse_initial, parse_times
from ctmc.cli.tables import aligned_numbers
from ctmc.errors import ModelError, StudyError
from ctmc.study import parse_study, read_study
from ctmc.study.content import Plot
from ctmc.study.pictures import check_picture
from ctmc.study.plots import is_ours
from ctmc.study.run import Row, line_data
from ctmc.study.shipped import find_study

FROM_EMPTY = ("--initial", "0,0,0")
(IMBALANCE,) = (
    process
    for process in tomllib.loads((files("ctmc.data") / "reference" / "supermarket.toml").read_text())["reward_process"]
    if process["parameters"] == {"selection": "tandem"}
)
"""Reference values from the empty system and from 2,1,0."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the reference supermarket and a chain of two states."""
    folder = tmp_path_factory.mktemp("questions")
    market = ctmc.build(
        "supermarket", service_rates=[3, 2, 1], arrival_rate=3, choices=2, capacity=9, preferences=[0.2, 0.3, 0.5],
        selection="tandem",
    )  # fmt: skip
    ctmc.save(folder / "market.h5", market)
    ctmc.save(folder / "queue.h5", ctmc.build("birth_death", births=[1.0], deaths=[1.0]))
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Run the command line; gives (exit code, standard output, standard error)."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "250")
    return caught(capsys)


def solve(run, problem, *arguments, file="market.h5"):
    """Solve and return the JSON document."""
    code, out, err = run("solve", file, "--problem", problem, *arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["status"] == "CONVERGED"
    return found


def values(found, name):
    (number,) = (number for number in found["numbers"] if number["name"] == name)
    return number["values"], number["error_bounds"]


# ---- answers ----------------------------------------------------------------------------------------------------------


def test_transient_rewards_at_times(run):
    """P{X(t) = 1} of the symmetric chain of two states is (1 - exp(-2 t)) / 2."""
    found = solve(run, "transient", "--times", "0:2:0.5", "--initial", "0", "--reward", "jobs", file="queue.h5")
    numbers, bounds = values(found, "jobs")
    exact = [-math.expm1(-2 * time) / 2 for time in (0, 0.5, 1, 1.5, 2)]
    assert found["times"] == [0, 0.5, 1, 1.5, 2]
    assert (np.abs(np.subtract(numbers, exact)) <= np.array(bounds)).all()
    assert found["initial"] == "0"
    stored = storage.load_solution(found["saved"])
    assert (stored.problem, stored.reward, stored.value.shape) == ("transient", ("jobs",), (5,))


def test_a_distribution_as_the_start(run):
    found = solve(
        run, "transient", "--times", "0", "--initial", "0,0,0:0.25; 2,1,0:0.75", "--reward", "jobs",
        "--reward", "queue_length[1]",
    )  # fmt: skip
    assert values(found, "jobs")[0][0] == pytest.approx(2.25, abs=1e-9)
    assert values(found, "queue_length[1]")[0][0] == pytest.approx(0.75, abs=1e-9)
    assert found["initial"] == "0,0,0:0.25; 2,1,0:0.75"


@pytest.mark.parametrize(("state", "k"), [("0,0,0", 0), ("2,1,0", 1)])
def test_reference_values_of_the_reward_process(run, state, k):
    earned = solve(run, "accumulated-reward", "--times", "2", "--reward", "imbalance", "--initial", state)
    assert values(earned, "imbalance")[0][0] == pytest.approx(IMBALANCE["accumulated"][k], abs=1e-10)
    discounted = solve(run, "discounted-reward", "--discount", "0.5", "--reward", "imbalance", "--initial", state)
    assert values(discounted, "imbalance")[0] == pytest.approx(IMBALANCE["discounted"][k], abs=1e-9)
    assert (discounted["discount"], discounted["moments"]) == (0.5, 1)


def test_moments_give_variances(run):
    """Time in state 1 from state 0: mean and second moment by integrating P{X(s) = 1, X(u) = 1} over s < u."""
    found = solve(
        run, "accumulated-reward", "--times", "1", "--moments", "3", "--reward", "jobs", "--initial", "0",
        file="queue.h5",
    )  # fmt: skip
    mean = 0.5 - math.expm1(-2) / -4
    s, weights = np.polynomial.legendre.leggauss(40)
    s, weights = (s + 1) / 2, weights / 2
    inner = (1 - s) / 2 + (1 - np.exp(-2 * (1 - s))) / 4
    second = 2 * weights @ ((1 - np.exp(-2 * s)) / 2 * inner)
    assert values(found, "jobs")[0][0] == pytest.approx(mean, abs=1e-12)
    assert values(found, "variance(jobs)")[0][0] == pytest.approx(second - mean**2, abs=1e-12)
    assert [number["name"] for number in found["numbers"]] == ["jobs", "variance(jobs)", "moment3(jobs)"]


def test_passage_times(run):
    """From 0 the chain of two states enters 1 after an exponential time of rate 1."""
    found = solve(
        run, "first-passage", "--target", "jobs >= 1", "--initial", "0", "--quantile", "0.5,0.9", "--cdf-times", "0,1,2",
        file="queue.h5",
    )  # fmt: skip
    assert values(found, "mean")[0] == pytest.approx(1, rel=1e-12)
    assert values(found, "variance")[0] == pytest.approx(1, rel=1e-12)
    assert values(found, "reach_probability")[0] == 1
    quantiles = [(entry["p"], entry["time"]) for entry in found["quantiles"]]
    assert quantiles == [(0.5, pytest.approx(math.log(2), rel=1e-9)), (0.9, pytest.approx(math.log(10), rel=1e-9))]
    assert found["cdf"]["values"] == pytest.approx([0, -math.expm1(-1), -math.expm1(-2)], abs=1e-9)
    assert found["target"] == "jobs >= 1"


def test_a_target_that_may_be_missed_is_said_plainly(run):
    arguments = ("--target", "queue_length[0] >= 3", "--avoid", "queue_length[1] >= 3", *FROM_EMPTY)
    code, out, err = run("solve", "market.h5", "--problem", "first-passage", *arguments)
    assert code == 0, err
    assert "Infinite: the target is reached with probability 0.42352" in out
    stored = storage.load_solution("market.solutions/first-passage-absorption_elimination.h5")
    assert np.isinf(stored.value).all()
    assert (stored.target, stored.avoid) == ("queue_length[0] >= 3", "queue_length[1] >= 3")


@pytest.mark.parametrize(
    ("problem", "arguments", "name"),
    [
        ("transient", ("--times", "1,2", "--reward", "imbalance", "--reward", "queue_length"), "queue_length[2]"),
        ("accumulated-reward", ("--times", "2", "--reward", "imbalance", "--moments", "2"), "variance(imbalance)"),
        ("discounted-reward", ("--discount", "0.5", "--reward", "imbalance"), "imbalance"),
        (
            "first-passage",
            (
                "--target",
                "jobs >= 10",
            ),
            "mean",
        ),
    ],
)
def test_every_state_is_shown_by_its_range(run, problem, arguments, name):
    found = solve(run, problem, *arguments)
    assert found["initial"] == "every state"
    assert "numbers" not in found
    rows = [row for row in found["every_state"] if row["measure"] == name]
    stored = storage.load_solution(found["saved"])
    assert stored.value.shape[-1] == 1000
    assert len(rows) == (len(stored.times) if stored.times is not None else 1)
    row = rows[-1]
    assert row["least"] <= min(row["from_0,0,0"], row["from_9,9,9"]) <= row["largest"]
    if name == "imbalance":
        assert row["from_0,0,0"] == pytest.approx(IMBALANCE["discounted"][0], abs=1e-9)
        lowest = int(np.argmin(stored.value[0]))
        assert row["least_from"] == ",".join(map(str, np.unravel_index(lowest, (10, 10, 10))))
    code, out, _ = run("solve", "market.h5", "--problem", problem, *arguments, "--no-save")
    assert code == 0
    assert len(out.splitlines()) < 30
    assert "every state" in out


# ---- tables -----------------------------------------------------------------------------------------------------------


def test_times_are_rows_and_rewards_columns_that_align(run):
    arguments = ("--times", "0,1,2", "--reward", "jobs", "--reward", "queue_length", *FROM_EMPTY)
    code, out, err = run("solve", "market.h5", "--problem", "transient", *arguments)
    assert code == 0, err
    head, _, *rows = out.splitlines()[-5:]
    assert head.split() == [
        "time",
        "jobs",
        "+-",
        *(word for k in range(3) for word in (f"queue_length[{k}]", "+-")),
    ]
    assert len({tuple(k for k, character in enumerate(row) if character == ".") for row in rows}) == 1
    assert "initial      0,0,0" in out
    assert "times        0, 1, 2" in out


def test_csv_has_error_bounds_and_all_moments(run):
    arguments = ("--times", "0,1,2", "--reward", "imbalance", "--moments", "3", *FROM_EMPTY)
    code, out, _ = run("solve", "market.h5", "--problem", "accumulated-reward", *arguments, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    names = ("imbalance", "variance(imbalance)", "moment3(imbalance)")
    assert list(rows[0]) == ["time", *(column for name in names for column in (name, f"error_bound({name})"))]
    assert float(rows[2]["imbalance"]) == pytest.approx(IMBALANCE["accumulated"][0], abs=1e-10)
    assert 0 < float(rows[2]["error_bound(variance(imbalance))"]) < 1e-9
    code, out, _ = run(
        "solve", "market.h5", "--problem", "first-passage", "--target", "jobs >= 10", *FROM_EMPTY, "--quantile", "0.5",
        "--cdf-times", "100", "--csv",
    )  # fmt: skip
    rows = {row["measure"]: row for row in csv.DictReader(io.StringIO(out))}
    assert list(rows) == ["mean", "variance", "reach_probability", "quantile(0.5)", "cdf(100)"]
    assert float(rows["mean"]["value"]) == pytest.approx(183.5410302, rel=1e-9)


def test_numbers_align():
    assert aligned_numbers([0.0, 1234.5]) == ["0.0", "1234.5"]
    assert aligned_numbers([]) == []
    assert aligned_numbers([math.inf, 2.0]) == ["inf", "2"]
    assert aligned_numbers([0.0, 1.25e-7]) == ["0", "1.25e-07"]


def test_times_of_a_range_are_exact():
    assert parse_times("0:0.5:0.1") == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert parse_initial("3,1") == (3, 1)


# ---- what does not fit ------------------------------------------------------------------------------------------------

TRANSIENT = ("--problem", "transient")
REWARD = ("--problem", "accumulated-reward")
DISCOUNTED = ("--problem", "discounted-reward")
PASSAGE = ("--problem", "first-passage")
BAD = [
    ((*TRANSIENT, "--times", "1", "--discount", "0.5"), "--discount is given for a transient problem; only --problem discounted-reward has it."),
    (("--moments", "2"), "--moments is given for a stationary problem; only"),
    (("--plot", "x.png"), "--plot is given for a stationary problem; only"),
    (("--target", "jobs >= 1"), "--target is given for a stationary problem; only --problem first-passage has it."),
    ((*REWARD, "--times", "1", "--reward", "jobs", "--quantile", "0.5"), "--quantile is given for an accumulated-reward"),
    ((*PASSAGE, "--target", "jobs >= 1", "--reward", "jobs"), "--reward is given for a first-passage problem"),
    ((*PASSAGE, "--target", "jobs >= 1", "--times", "1"), "--times is given for a first-passage problem"),
    ((*REWARD, "--times", "1", "--reward", "jobs", "--probability", "jobs > 1"), "--probability is given"),
    ((*TRANSIENT, "--times", "1", "--reward", "jobs", "--probability", "jobs > 1"), "--probability is given with --reward"),
    ((*TRANSIENT, "--times", "1", "--start", "x.h5"), "--start is given for a transient problem"),
    (TRANSIENT, "a transient problem needs --times, such as --times 0.5,2 or --times 0:50:1."),
    ((*REWARD, "--times", "1"), "an accumulated-reward problem needs --reward, such as --reward jobs."),
    ((*REWARD, "--reward", "jobs"), "an accumulated-reward problem needs --times"),
    ((*DISCOUNTED, "--reward", "jobs"), "a discounted-reward problem needs --discount, such as --discount 0.5."),
    (PASSAGE, "a first-passage problem needs --target"),
    ((*TRANSIENT, "--times=-1,2"), "--times is '-1,2'; allowed are finite times >= 0, ascending."),
    ((*TRANSIENT, "--times", "2,1"), "--times is '2,1'; allowed are finite times >= 0, ascending."),
    ((*TRANSIENT, "--times", "1,inf"), "--times is '1,inf'"),
    ((*TRANSIENT, "--times", "0:9"), "--times is '0:9'; allowed are numbers such as"),
    ((*TRANSIENT, "--times", "0:nan:1"), "--times is '0:nan:1'"),
    ((*TRANSIENT, "--times", "0:1e9:0.1"), "are 1e+10 times; allowed are 1,000,000."),
    ((*DISCOUNTED, "--reward", "jobs", "--discount", "0"), "--discount is 0; allowed is a positive number, per unit of time."),
    ((*DISCOUNTED, "--reward", "jobs", "--discount", "nan"), "--discount is nan"),
    ((*REWARD, "--reward", "jobs", "--times", "1", "--moments", "9"), "--moments is 9; allowed is a whole number from 1 to 8."),
    ((*REWARD, "--reward", "jbos", "--times", "1"), "There is no reward 'jbos'; did you mean 'jobs'"),
    ((*TRANSIENT, "--reward", "queue_length[3]", "--times", "1"), "index 3 of 'queue_length' is out of range"),
    ((*TRANSIENT, "--times", "1", "--initial", "0,0,0:0.5;1,0,0:0.4"), "--initial has probabilities that sum to 0.9"),
    ((*TRANSIENT, "--times", "1", "--initial", "0,0,0:1;0,0,0:0"), "--initial is '0,0,0:1;0,0,0:0'"),
    ((*TRANSIENT, "--times", "1", "--initial", "0,0,x"), "--initial is '0,0,x'"),
    ((*PASSAGE, "--target", "jobs >= 100"), "target 'jobs >= 100' holds in no state"),
    ((*PASSAGE, "--target", "jobs >"), "target 'jobs >'"),
    ((*PASSAGE, "--target", "jobs >= 1", "--quantile", "0.5"), "--quantile needs --initial"),
    ((*PASSAGE, "--target", "jobs >= 1", "--plot", "x.png"), "--plot needs --initial"),
    ((*PASSAGE, "--target", "jobs >= 1", *FROM_EMPTY, "--quantile", "1.5"), "--quantile is '1.5'; allowed are probabilities"),
    ((*PASSAGE, "--target", "jobs >= 1", *FROM_EMPTY, "--cdf-times", "2,1"), "--cdf-times is '2,1'"),
    ((*TRANSIENT, "--times", "1", "--plot", "x.jpg"), "the picture 'x.jpg' has the suffix '.jpg'"),
    (("--problem", "transcient"), "There is no problem 'transcient'; did you mean 'transient'?"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments)[:70] for arguments, _ in BAD])
def test_what_does_not_fit_is_one_sentence(run, arguments, message):
    code, out, err = run("solve", "market.h5", *arguments)
    assert code == 2, (out, err)
    last = err.splitlines()[-1]
    assert last.startswith("ctmc: ")
    assert message in last
    assert "Traceback" not in err


# ---- pictures ---------------------------------------------------------------------------------------------------------

PICTURES = [
    ("transient", ("--times", "0:3:0.5", "--reward", "queue_length", *FROM_EMPTY), ["queue_length[0]", "from 0,0,0"]),
    ("transient", ("--times", "0:3:0.5", "--reward", "jobs"), ["each of 1,000 states", "band"]),
    ("transient", ("--times", "0:3:0.5", *FROM_EMPTY), ["queue_length[2]"]),
    ("accumulated-reward", ("--times", "0:2:0.25", "--reward", "imbalance", "--moments", "2", *FROM_EMPTY), ["one standard deviation"]),
    ("accumulated-reward", ("--times", "2", "--reward", "imbalance", "--moments", "2", *FROM_EMPTY), ["bar: one"]),
    ("discounted-reward", ("--discount", "0.5", "--reward", "queue_length", "--moments", "2", *FROM_EMPTY), ["discount 0.5"]),
    ("discounted-reward", ("--discount", "0.5", "--reward", "imbalance"), ["states as the start"]),
    ("first-passage", ("--target", "jobs >= 6", *FROM_EMPTY), ["mean", "0.95 quantile"]),
    ("first-passage", ("--target", "jobs >= 6", "--avoid", "queue_length[1] >= 2", *FROM_EMPTY), ["ever reached"]),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "arguments", "texts"), PICTURES, ids=[f"{a} {b[-3:]}" for a, b, _ in PICTURES])
def test_pictures(run, tmp_path, monkeypatch, problem, arguments, texts):
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text as text
    path = tmp_path / "picture.svg"
    found = solve(run, problem, *arguments, "--plot", path)
    assert found["plot"] == str(path)
    drawn = path.read_text()
    for text in texts:
        assert text in drawn
    assert "nan" not in drawn.lower().partition("<g id")[2]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_is_replaced_only_where_it_is_ours(run, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"x.{suffix}"
    arguments = ("--times", "1,2", "--initial", "0", "--reward", "jobs", "--plot", path)
    for _ in range(2):
        solve(run, "transient", *arguments, file="queue.h5")
        assert is_ours(path)
    path.write_bytes(b"somebody's work")
    code, _, err = run("solve", "queue.h5", "--problem", "transient", *arguments)
    assert code == 2
    assert str(path) in err
    assert path.read_bytes() == b"somebody's work"


def test_without_matplotlib_it_is_said_before_the_solve(monkeypatch):
    monkeypatch.setattr("ctmc.study.pictures.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"ctmc-lab\[plots\]"):
        check_picture("x.png")


# ---- progress ---------------------------------------------------------------------------------------------------------


def test_a_series_is_counted_against_its_terms():
    class Shown:
        calls = ()

        def __call__(self, iteration, defect):
            self.calls = (*self.calls, ("defect", iteration))

        def count(self, done, total, news):
            self.calls = (*self.calls, (done, total))

    shown = Shown()
    queue = ctmc.build("birth_death", births=[1.0] * 20, deaths=[2.0] * 20)
    monitor = monitor_for(shown, lambda: False)
    solution = ctmc.solve(ctmc.Transient(queue, (0,), [30.0], reward="jobs"), "uniformization", monitor=monitor)
    assert shown.calls[0] == ("defect", 0)
    counted = shown.calls[1:]
    assert len({total for _, total in counted}) == 1
    assert counted[-1][0] == solution.iterations <= counted[-1][1]


# ---- studies ----------------------------------------------------------------------------------------------------------

MODEL = '[models.queue]\nbuilder = "birth_death"\nbirths = [1.0]\ndeaths = [1.0]\n'
MARKETS = (
    '[models.market]\nbuilder = "supermarket"\nservice_rates = [2, 1]\nchoices = 2\ncapacity = 3\n'
    "sweep = {arrival_rate = [0.5, 1, 1.5]}\n"
)
COURSE = '[[solve]]\nproblem = "transient"\ninitial = [0]\ntimes = [0, 1]\nreward = "jobs"\n'
EARNED = '[[solve]]\nproblem = "accumulated-reward"\ninitial = [0]\ntimes = [1, 2]\nreward = ["jobs"]\nmoments = 2\n'
DISCOUNT = '[[solve]]\nproblem = "discounted-reward"\ninitial = [0]\nreward = "jobs"\ndiscount = 0.5\nmoments = 2\n'
HIT = '[[solve]]\nproblem = "first-passage"\ninitial = [0]\ntarget = "jobs >= 1"\n'


@pytest.fixture
def study(tmp_path, monkeypatch, capsys):
    """Run the text of a study; gives its rows."""
    monkeypatch.chdir(tmp_path)

    def rows(text):
        Path("study.toml").write_text(text)
        code = main(["run", "study.toml", "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out)

    return rows


def test_a_study_asks_every_question(study):
    rows = study(MODEL + COURSE + EARNED + DISCOUNT + HIT)["rows"]
    found = {(row["problem"], row["time"]): row["measures"] for row in rows}
    assert found["transient", 1.0]["jobs"] == pytest.approx(-math.expm1(-2) / 2, abs=1e-9)
    assert found["accumulated-reward", 1.0]["jobs"] == pytest.approx(0.5 + math.expm1(-2) / 4, abs=1e-10)
    assert found["accumulated-reward", 1.0]["variance(jobs)"] == pytest.approx(0.095189093, abs=1e-8)
    # (gamma I - Q) m = r by hand: m_1 = (1 + gamma) m_0, m_0 = 1 / (gamma (gamma + 2))
    assert found["discounted-reward", None]["jobs"] == pytest.approx(1 / (0.5 * 2.5), abs=1e-9)
    assert found["first-passage", None] == pytest.approx({"mean": 1, "variance": 1, "reach_probability": 1})
    names = sorted(path.stem for path in Path("study.store").glob("*.solutions/*.h5"))
    assert [name.partition("-")[0] for name in names] == ["accumulated", "discounted", "first", "transient"]
    assert len(names) == 4


def test_a_plot_against_the_time_has_a_line_for_each_component(study, tmp_path):
    pytest.importorskip("matplotlib")
    course = COURSE.replace("[0]\n", "[0, 0]\n", 1).replace('"jobs"', '"queue_length"')
    plot = '[[plot]]\nx = "time"\ny = "queue_length"\npanels = "arrival_rate"\n[[plot]]\nx = "arrival_rate"\ny = "queue_length"\n'
    document = study(MARKETS + course + "[[solve]]\n" + plot)
    assert document["plots"] == ["study-plot1.png", "study-plot2.png"]
    rows = tuple(Row(**row) for row in document["rows"])
    over_time = line_data(Plot("time", "queue_length", ("market",), "", panels="arrival_rate"), rows)
    assert list(over_time) == ["arrival rate 0.5", "arrival rate 1", "arrival rate 1.5"]
    assert [list(lines) for lines in over_time.values()] == [["queue_length[0]", "queue_length[1]"]] * 3
    assert over_time["arrival rate 1"]["queue_length[0]"][0] == (0.0, pytest.approx(0, abs=1e-10))
    long_run = line_data(Plot("arrival_rate", "queue_length", ("market",), "", labels=("fast", "slow")), rows)
    assert list(long_run) == [""]
    assert {name: [x for x, _ in points] for name, points in long_run[""].items()} == {
        "fast": [0.5, 1.0, 1.5],
        "slow": [0.5, 1.0, 1.5],
    }
    at_one = line_data(Plot("arrival_rate", "queue_length[1]", ("market",), "", time=1.0), rows)
    assert at_one[""]["market"][1][1] == over_time["arrival rate 1"]["queue_length[1]"][1][1]
    times = line_data(Plot("arrival_rate", "queue_length", ("market",), "", panels="time"), rows)
    assert list(times) == ["at time 0", "at time 1", "in the long run"]
    assert times["in the long run"]["queue_length[1]"] == long_run[""]["slow"]


def test_variances_can_be_drawn():
    rows = tuple(
        Row(
            "queue",
            "accumulated-reward",
            "uniformization",
            "CONVERGED",
            time=time,
            measures={"variance(jobs)": time / 2},
        )
        for time in (1.0, 2.0)
    )
    plot = Plot("time", "variance(jobs)", ("queue",), "", problem="accumulated-reward")
    assert line_data(plot, rows) == {"": {"queue": [(1.0, 0.5), (2.0, 1.0)]}}
    assert line_data(Plot("time", "variance(jobs)", ("queue",), "", problem="transient"), rows) == {}


WRONG = [
    (COURSE + "discount = 0.5\n", "line 10: discount is given for a transient problem; only a discounted-reward one has discount."),
    (COURSE.replace("times = [0, 1]\n", ""), "a transient problem has no key times"),
    (COURSE.replace("initial = [0]\n", ""), "a transient problem of a study has no key initial, such as initial = [0, 0, 0]."),
    (COURSE.replace('"jobs"', "3"), "line 9: reward is 3; allowed is the name of a reward, or a list of names."),
    (COURSE.replace("[0, 1]", "[1, 0]"), "line 8: times is [1, 0]; allowed are finite times >= 0, ascending."),
    (COURSE.replace("[0, 1]", '"0:1"'), "line 8: times is '0:1'; allowed is a list of values, or a range"),
    (COURSE + 'measures = ["jobs"]\n', "line 10: measures is given, but a transient problem that keeps no distribution"),
    (EARNED.replace("moments = 2", "moments = 9"), "line 10: moments is 9; allowed is a whole number from 1 to 8."),
    (EARNED.replace('reward = ["jobs"]\n', ""), "an accumulated-reward problem has no key reward"),
    (DISCOUNT.replace("0.5", "-1"), "line 9: discount is -1; allowed is a positive number, per unit of time."),
    (DISCOUNT.replace("discount = 0.5\n", ""), "a discounted-reward problem has no key discount"),
    (HIT.replace('target = "jobs >= 1"\n', ""), "a first-passage problem has no key target"),
    (HIT.replace('"jobs >= 1"', "1"), "line 8: target is 1; allowed is a condition in quotes."),
    (HIT + 'reward = "jobs"\n', "line 9: reward is given for a first-passage problem"),
    (COURSE + '[[plot]]\nx = "time"\ny = "jobs"\ntime = 1\n', "line 11: x is 'time', and time chooses times as well"),
    (HIT + '[[plot]]\nx = "time"\ny = "mean"\n', "line 10: x is 'time', but no question of the plot's models has times."),
    (COURSE + '[[plot]]\nx = "time"\ny = "jobs"\npanels = "births"\n', "line 13: there is no swept parameter 'births'"),
    (COURSE + '[[plot]]\nx = "jobs"\ny = "jobs"\ntime = 3\n', "line 13: time is 3; allowed is one of the times asked for: 0, 1."),
    (COURSE + '[[plot]]\nx = "time"\ny = "jobs"\nproblem = "transcient"\n', "line 13: there is no problem 'transcient'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message[:60] for _, message in WRONG])
def test_a_wrong_study_is_one_sentence_with_the_line(text, message):
    with pytest.raises(StudyError) as caught:
        parse_study(MODEL + text)
    assert message in str(caught.value)


def test_an_unknown_reward_is_a_row(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(MODEL + COURSE.replace('"jobs"', '"jbos"'))
    assert main(["run", "study.toml", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["status"] == "ERROR"
    assert "did you mean 'jobs'" in row["message"]


def test_the_experiments_of_the_paper_ask_for_every_parameter():
    study = read_study(find_study("supermarket_experiments"))
    swept = {key for model in study.models.values() for key in model.point}
    assert swept == {"choices", "arrival_rate", "service_rates", "preferences"}
    assert [plot.x for plot in study.plots] == ["time", "arrival_rate", "choices", "service_rates[0]", "preferences[2]"]
    for model in study.models.values():
        rates = model.parameters["service_rates"]
        assert model.parameters["arrival_rate"] < sum(rates)
        assert sum(model.parameters["preferences"]) == pytest.approx(1, abs=1e-12)
