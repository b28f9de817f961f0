"""Designs of the supermarket by the paper's criteria: references, closed forms, brute force, jumps, the yardstick, refusals."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import ctmc
from builders.supermarket.selection import selection_table
from ctmc.cli import main
from ctmc.cli.optimize import CRITERION_NAMES
from ctmc.errors import CTMCError, ModelError
from ctmc.study.continuous import simplex_coordinates, simplex_design, simplex_point, ties_of
from ctmc.study.cost import Cost
from ctmc.study.criteria import CRITERIA, Criterion
from ctmc.study.optimize import optimize

HOME = Path(ctmc.__file__).resolve().parents[1]
ROWS = tomllib.loads((HOME / "data/reference/supermarket_criteria.toml").read_text())["row"]
COMMON = tomllib.loads((HOME / "data/reference/supermarket.toml").read_text())["common"]
SMALL = {"service_rates": [3, 2, 1], "arrival_rate": 3, "choices": 2, "capacity": 3}
JUDGED = SMALL | {"measured_by": "tandem"}
FLAGS = ["--service-rates", "3,2,1", "--arrival-rate", "3", "--capacity", "3"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")

    def command(*arguments):
        code = main(["optimize", "supermarket", *FLAGS, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.mark.parametrize("row", ROWS)
def test_the_criteria_give_the_reference_values(row):
    """Each rule by its own yardstick; the rule is fixed, so that the yardstick may be."""
    model = ctmc.build("supermarket", **COMMON, selection=row["selection"])
    cost = Cost("imbalance")
    finite = Criterion(name="finite-time", horizon=2.0, initial=row["initial"])
    value, measures = finite.read(ctmc.solve(finite.problem(model, cost)), cost)
    assert value == pytest.approx(row["accumulated"], abs=1e-10)
    assert measures["average(imbalance)"] == value / 2
    discounted = Criterion(name="discounted", discount=0.5, initial=row["initial"])
    value, measures = discounted.read(ctmc.solve(discounted.problem(model, cost)), cost)
    assert value == pytest.approx(row["discounted"], abs=2e-10)
    assert measures["average(imbalance)"] == value / 2


def test_a_search_by_a_criterion_of_the_paper_gives_the_reference_value():
    queue = {name: value for name, value in COMMON.items() if name != "choices"} | {"selection": "tandem"}
    found = optimize(
        "supermarket", queue, "choices=2:2", "imbalance", criterion="finite-time", horizon=2, initial=(0, 0, 0)
    )
    assert found.best.cost == pytest.approx(ROWS[0]["accumulated"], abs=1e-10)
    assert found.best.values == {"choices": 2}


def jobs_of(rate, service, capacity):
    """Return the mean number of jobs in M/M/1/K."""
    weights = np.power(rate / service, np.arange(capacity + 1.0))
    return float(np.arange(capacity + 1) @ weights / weights.sum())


def test_the_best_split_of_independent_servers():
    """With one choice and lost jobs each server is an M/M/1/K queue with a third of the arrivals: a sum of closed forms."""
    queue = {"service_rates": [2, 2], "arrival_rate": 1.5, "choices": 1, "capacity": [1, 4]}
    exact = minimize_scalar(
        lambda first: jobs_of(0.75, first, 1) + jobs_of(0.75, 3 - first, 4), bounds=(0.01, 2.99), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    found = optimize("supermarket", queue, "split", "jobs", total_rate=3, evaluations=120)
    assert sum(found.best.values["service_rates"]) == pytest.approx(3, abs=1e-12)
    assert found.best.values["service_rates"][0] == pytest.approx(exact.x, abs=1e-4)
    assert found.best.cost == pytest.approx(exact.fun, abs=1e-9)
    assert found.attained


def test_the_rule_of_equal_servers_is_the_shortest_queue():
    """Among d = M equal servers the shortest queue is the best rule (W. Winston, 1977); tandem is the same one there."""
    queue = {"service_rates": [1, 1], "arrival_rate": 1.5, "choices": 2, "capacity": 5}
    found = optimize("supermarket", queue, "selection=weighted,shortest_queue,tandem", "response_time")
    costs = {one.values["selection"]: one.cost for one in found.candidates}
    assert costs["shortest_queue"] == pytest.approx(costs["tandem"], rel=1e-12) == found.best.cost
    alone = optimize("supermarket", queue | {"choices": 1}, "selection=shortest_queue,tandem", "jobs")
    assert alone.candidates[0].cost == pytest.approx(alone.candidates[1].cost, rel=1e-12)  # one choice is no choice
    assert alone.best.cost == pytest.approx(2 * jobs_of(0.75, 1, 5), rel=1e-12)


def yardstick(states, limit=3):
    """Return the imbalance by the rule tandem of the parameters as given."""
    table = np.array(selection_table("tandem", [limit] * 3, np.array([3.0, 2, 1]), np.full(3, 1 / 3), np.ones(3)))
    own = table[np.arange(3), states]
    return np.divide(
        own.max(axis=1) - own.min(axis=1), own.max(axis=1), out=np.zeros(len(own)), where=own.max(axis=1) > 0
    )


def imbalance_of(**changes):
    """Return the long-run imbalance by an independent solve, with a yardstick written out."""
    model = ctmc.build("supermarket", **{**SMALL, **changes})
    pi = ctmc.solve(ctmc.Stationary(model), "gth").value
    return float(pi @ yardstick(model.space.states(np.arange(model.size))))


@pytest.mark.slow
def test_brute_force_on_a_coarse_grid_agrees():
    found = optimize(
        "supermarket", {k: v for k, v in JUDGED.items() if k != "choices"}, ["choices=1:3", "weights"], "imbalance"
    )
    grid = [(i / 7, j / 7, (7 - i - j) / 7) for i in range(8) for j in range(8 - i)]
    costs = {(d, b): imbalance_of(choices=d, selection="weighted", weights=b) for d in (1, 2, 3) for b in grid}
    assert found.best.cost <= min(costs.values()) + 1e-12
    for one in found.candidates[:3]:
        exact = imbalance_of(choices=one.values["choices"], selection="weighted", weights=one.values["weights"])
        assert one.cost == pytest.approx(exact, abs=1e-12)
    assert found.evaluations > 3 * len(found.candidates)  # the same decisions are solved once
    assert found.points == 3


def test_maximizing_the_balance_is_minimizing_the_imbalance():
    least = optimize("supermarket", JUDGED, "selection=tandem,weighted,shortest_queue,expected_delay", "imbalance")
    most = optimize(
        "supermarket", JUDGED, "selection=tandem,weighted,shortest_queue,expected_delay", maximize="balance"
    )
    assert [one.values for one in most.candidates] == [one.values for one in least.candidates]
    assert most.best.measures["imbalance"] == pytest.approx(least.best.cost, abs=1e-13)
    assert most.best.cost == pytest.approx(1 - least.best.cost, abs=1e-13)


@pytest.mark.parametrize(
    ("criterion", "kind"),
    [
        ({"criterion": "finite-time", "horizon": 3.0}, "accumulated"),
        ({"criterion": "discounted", "discount": 0.2}, "discounted"),
    ],
)
def test_weights_by_the_criteria_over_time(criterion, kind):
    found = optimize(
        "supermarket", JUDGED | {"capacity": 2}, "weights", "imbalance + 0.1 * jobs", evaluations=12, initial=(0, 1, 2),
        **criterion,
    )  # fmt: skip
    weights = found.best.values["weights"]
    model = ctmc.build("supermarket", **SMALL | {"capacity": 2}, selection="weighted", weights=weights)
    states = model.space.states(np.arange(model.size))
    generator, reward = model.to_scipy().toarray(), yardstick(states, 2) + 0.1 * states.sum(axis=1)
    start = int(model.space.index((0, 1, 2)))
    if kind == "discounted":
        exact = np.linalg.solve(0.2 * np.eye(model.size) - generator, reward)[start]
    else:
        from scipy.linalg import expm

        augmented = np.zeros((model.size + 1,) * 2)
        augmented[:-1, :-1], augmented[:-1, -1] = generator, reward
        exact = expm(3.0 * augmented)[start, -1]
    assert found.best.cost == pytest.approx(exact, abs=1e-9)
    parts = [found.best.measures[f"{kind}({name})"] for name in ("imbalance", "jobs")]
    assert found.best.cost == pytest.approx(parts[0] + 0.1 * parts[1], rel=1e-14)


def test_both_sides_of_a_tie_differ_and_are_told():
    """(1, 2) ties with (2, 1) where b1 = (1 - 1/2) b2 = b2 / 2, whatever b3: jobs are routed otherwise on each side."""
    found = optimize("supermarket", JUDGED, "weights", "imbalance", evaluations=300)
    best = found.best.values["weights"]
    assert found.ties
    assert found.sides
    for side in found.sides:
        assert side.on_tie > found.best.cost
        assert not side.better
        k, weights = int(side.parameter[-2]), list(best)
        weights[k] = side.at + side.direction * 1e-6
        behind = (1 - sum(weights[: k + 1])) / sum(weights[k + 1 :])
        weights[k + 1 :] = [behind * weight for weight in weights[k + 1 :]]  # those keep their proportions
        assert side.beyond == pytest.approx(imbalance_of(selection="weighted", weights=weights), abs=1e-9)
    assert any(abs(side.beyond - side.on_tie) > 1e-5 for side in found.sides)
    for tie in found.ties:
        (i, x), (j, y) = tie.first, tie.second
        mu = (3, 2, 1)
        values = [best[0] * jobs + best[1] / mu[server] + best[2] * 3 for server, jobs in ((i, x), (j, y))]
        assert abs(values[0] - values[1]) <= max(values) * (1e-9 if tie.exact else 1e-3)
    on, left, right = (imbalance_of(selection="weighted", weights=(b, 2 / 3 - b, 1 / 3)) for b in (2 / 9, 0.222, 0.223))
    assert len({round(value, 6) for value in (on, left, right)}) == 3
    assert found.attained


def test_an_infimum_that_is_not_attained_is_told(monkeypatch):
    """A cost that falls towards a tie and jumps up on it, put in the place of the solved one."""
    from ctmc.study import search as module

    def solved(self, point, cube):
        rates = self.space.values(point, cube)["service_rates"]
        above = self.ordering(point, cube).key == self.ordering(point, self.space.starts()[0]).key
        cost = rates[0] + (0.0 if above else 5.0)
        return module.Candidate(
            point=point, cube=cube, values={"service_rates": rates}, cost=cost, measures={}, defect=0.0
        )

    monkeypatch.setattr(module.Searcher, "_solve", solved)
    queue = {"service_rates": [2, 1], "arrival_rate": 1, "choices": 2, "capacity": 1}
    found = optimize("supermarket", queue, "split", "jobs", evaluations=120)
    assert found.best.cost == pytest.approx(1.5, abs=1e-6)
    assert not found.attained
    (side,) = [side for side in found.sides if not side.attained]
    assert side.direction == -1
    assert side.at == pytest.approx(1.5, abs=1e-8)
    assert side.on_tie == pytest.approx(6.5, abs=1e-6)


def test_warm_and_cold_starts_find_the_same():
    question = {"over": "weights", "minimize": "jobs", "evaluations": 25, "solver": "gauss_seidel"}
    warm, cold = (optimize("supermarket", SMALL | {"capacity": 2}, **question, warm=warm) for warm in (True, False))
    assert warm.best.values == cold.best.values
    assert warm.best.cost == pytest.approx(cold.best.cost, rel=1e-11)
    assert "imbalance" not in warm.best.measures  # its yardstick would be another for every candidate


def test_the_yardstick_does_not_move_unless_that_is_asked_for():
    queue = {"service_rates": [3, 1], "arrival_rate": 2, "choices": 1, "capacity": 2, "measured_by": "tandem"}
    fixed = optimize("supermarket", queue, "split", "imbalance", evaluations=12)
    moving = optimize("supermarket", queue, "split", "imbalance", evaluations=12, measured_rates="candidate")
    for found, judge in ((fixed, lambda rates: (3, 1)), (moving, lambda rates: rates)):
        one = next(one for one in found.candidates if abs(one.values["service_rates"][0] - 2) < 1e-6)
        rates = one.values["service_rates"]
        model = ctmc.build("supermarket", **queue | {"service_rates": rates})
        values = model.space.states(np.arange(9)) / np.array(judge(rates))
        largest = values.max(axis=1)
        spread = np.divide(largest - values.min(axis=1), largest, out=np.zeros(9), where=largest > 0)
        assert one.cost == pytest.approx(float(ctmc.solve(ctmc.Stationary(model)).value @ spread), abs=1e-12)
    assert abs(fixed.candidates[0].cost - moving.candidates[0].cost) > 1e-3


def test_the_yardstick_is_that_of_the_rates_as_given():
    """The total differs from that of the rates as given, so no candidate has the yardstick's rates."""
    queue = {"service_rates": [3, 1], "arrival_rate": 2, "choices": 2, "capacity": 2, "measured_by": "weighted"}
    found = optimize("supermarket", queue, "split", "imbalance", total_rate=9, evaluations=12)
    for one in found.candidates[:4]:
        model = ctmc.build("supermarket", **queue | {"service_rates": one.values["service_rates"]})
        values = model.space.states(np.arange(9)) / 3 + np.array([1 / 9, 1 / 3]) + 2 / 3
        spread = 1 - values.min(axis=1) / values.max(axis=1)
        assert one.cost == pytest.approx(float(ctmc.solve(ctmc.Stationary(model)).value @ spread), abs=1e-12)


def test_a_split_may_be_the_worst():
    queue = {"service_rates": [2, 2], "arrival_rate": 1.5, "choices": 1, "capacity": 3}
    found = optimize("supermarket", queue, "split", maximize="jobs", evaluations=60)
    assert found.best.cost >= max(one.cost for one in found.candidates) - 1e-9
    assert found.best.cost > 1.2 * 2 * jobs_of(0.75, 2, 3)


def test_a_share_is_never_below_the_least():
    design = simplex_design("preferences", 3, total=6.0, least=0.1)
    for u in ((0.0, 0.0), (1.0, 0.5), (0.0, 1.0), (0.3, 0.8)):
        numbers = design.value(u)
        assert min(numbers) >= 0.6 * (1 - 1e-12)
        assert sum(numbers) == pytest.approx(6, abs=1e-12)
    assert design.value((1.0, 0.5))[0] == pytest.approx(6 * 0.8, abs=1e-12)


def test_what_always_ties_is_no_tie_of_the_best():
    """Servers 0 and 1 are equal, and tie at equal lengths whatever the weights."""
    queue = JUDGED | {"service_rates": [2, 2, 1], "capacity": 2}
    found = optimize("supermarket", queue, "weights", "imbalance", evaluations=60)
    assert found.ties
    assert not [tie for tie in found.ties if {tie.first[0], tie.second[0]} == {0, 1} and tie.first[1] == tie.second[1]]
    assert ties_of([np.array([1.0, 1.0]), np.array([3.0, 4.0])], 0.1) == []  # a server does not tie with itself


def test_the_map_to_the_simplex_and_back():
    generator = np.random.default_rng(20264)
    for size in (2, 3, 6):
        for _ in range(50):
            u = generator.uniform(size=size - 1)
            parts = simplex_point(u)
            assert sum(parts) == pytest.approx(1, abs=1e-14)
            assert simplex_coordinates(parts) == pytest.approx(tuple(u), abs=1e-12)
    points = np.array([simplex_point(u) for u in generator.uniform(size=(20_000, 2))])
    assert points.mean(axis=0) == pytest.approx([1 / 3] * 3, abs=0.01)  # uniform on the simplex
    assert simplex_point([1.0, 0.3]) == [1.0, 0.0, 0.0]
    assert simplex_point(simplex_coordinates([0.0, 0.0, 1.0])) == [0.0, 0.0, 1.0]
    assert simplex_coordinates([1e-20, 1.0]) == (1e-20,)


def test_close_values_are_no_exact_tie():
    exact, close = ties_of([np.array([1.0, 2.0]), np.array([1.0005, 2.0 + 1e-10])], 1e-3)
    assert (exact.first, exact.second, exact.exact) == ((0, 1), (1, 1), True)
    assert (str(close), close.exact) == ("(0, 0) ~ (1, 0) (to 5.0e-04)", False)


BAD = [
    ({"over": "weights", "minimize": "imbalance"}, "the yardstick would move with the design; allowed is a fixed one, measured_by"),
    ({"over": ["choices=1:2", "split"], "minimize": None, "maximize": "balance"}, "which service_rates changes"),
    ({"over": "selection=tandem,weighted", "minimize": "imbalance + jobs"}, "which selection changes"),
    ({"over": "weight"}, "did you mean 'weights'?"),
    ({"over": []}, "over is empty"),
    ({"over": ["weights", "weights"]}, "weights is to be optimised twice"),
    ({"over": "choices=3:1"}, "the range of choices begins at 3 and ends at"),
    ({"over": "choices=1:9"}, "choices is 9"),
    ({"over": "selection=tandem,weigthed"}, "did you mean 'weighted'?"),
    ({"over": "selection=tandem,"}, "the list of selection is 'tandem,'"),
    ({"over": "selection=tandem,tandem"}, "allowed are different values"),
    ({"over": "service_rates=1,2"}, "service_rates of supermarket takes several values"),
    ({"over": "weights", "maximum": 3}, "maximum is 3, but the values of weights are real numbers"),
    ({"over": "weights", "method": "coordinate"}, "allowed is one design of whole numbers"),
    ({"over": "weights", "total_rate": 3}, "no design that is searched takes it"),
    ({"over": "split", "total_rate": -3}, "total_rate is -3"),
    ({"over": "weights", "evaluations": 0}, "evaluations is 0"),
    ({"over": "weights", "maximize": "jobs"}, "exactly one of minimize and maximize"),
    ({"minimize": None}, "exactly one of minimize and maximize"),
    ({"criterion": "finite"}, "did you mean 'finite-time'?"),
    ({"criterion": "finite-time"}, "horizon of the finite-time criterion is missing"),
    ({"criterion": "discounted", "discount": 0}, "discount of the discounted criterion is 0"),
    ({"horizon": 2.0}, "horizon is 2.0, but the criterion is long-run"),
    ({"criterion": "finite-time", "horizon": 2, "minimize": "jobs - idle[0]"}, "is no sum of rewards"),
    ({"criterion": "finite-time", "horizon": 2, "minimize": "idle"}, "'idle' has 3 components"),
    ({"criterion": "discounted", "discount": 1, "minimize": "job"}, "did you mean 'jobs'?"),
    ({"measured_rates": "candidate"}, "no yardstick is used that the searched rates would move"),
    ({"measured_rates": "mine"}, "There is no choice of measured_rates 'mine'"),
    ({"parameters": SMALL | {"selection": "tandem"}}, "selection is 'tandem', which has no weights"),
    ({"parameters": SMALL | {"weights": [1, 1, 1]}}, "weights is [1, 1, 1]; allowed are 3 numbers"),
    ({"parameters": SMALL | {"capacity": "auto"}}, "would give each value of weights states of its own"),
    ({"parameters": SMALL | {"lump": True}, "over": "split"}, "lump is true"),
    ({"parameters": SMALL | {"service_rates": [1]}, "over": "preferences"}, "preferences has one number"),
    ({"parameters": {"capacity": 3}, "over": "split"}, "service_rates is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_refusals(changes, message):
    parameters = changes.get("parameters", SMALL)
    if any("choices=" in text for text in changes.get("over", "")) or "choices=" in str(changes.get("over")):
        parameters = {name: value for name, value in parameters.items() if name != "choices"}
    question = {"over": "weights", "minimize": "jobs", **changes, "parameters": parameters}
    with pytest.raises(CTMCError) as caught:
        optimize("supermarket", **question)
    assert message in str(caught.value)


def test_states_that_differ_have_no_common_yardstick():
    queue = {"service_rates": [1, 2], "arrival_rate": 1, "choices": 1, "measured_by": "tandem"}
    with pytest.raises(ModelError, match="are measured on the states of the model as given"):
        optimize("supermarket", queue, ["selection=tandem,weighted", "capacity=1:2"], "imbalance")


def test_interrupted_searches_keep_what_was_found():
    found = optimize(
        "supermarket", JUDGED, "weights", "imbalance", curve_points=9, watch=lambda done, points, best: done == 7
    )
    assert found.stopped
    assert found.evaluations == 7
    assert (found.ties, found.curves) == ((), ())
    assert found.best.cost == min(one.cost for one in found.candidates)


def test_curves_break_at_ties():
    found = optimize("supermarket", JUDGED, "weights", "imbalance", evaluations=60, curve_points=12)
    first = found.curves[0]
    assert first.parameter == "weights[0]"
    lines = [costs for x, costs in first.segments if len(x) > 1]
    assert len(lines) > 4
    for costs in lines:  # decisions alone count, so that the cost is constant between the jumps
        assert np.ptp(costs) < 1e-12
    assert any(len(x) == 1 for x, _ in first.segments)
    ends = np.concatenate([x for x, _ in first.segments])
    assert (np.diff(ends) >= 0).all()
    assert (ends[0], ends[-1]) == (0, 1)


# ---- the command ------------------------------------------------------------------------------------------------------


def test_the_command_of_the_paper(run, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = ("--over", "choices=1:3", "--over", "weights", "--minimize", "imbalance", "--measured-by", "tandem",
                 "--evaluations", "40", "--show", "2")  # fmt: skip
    code, out, err = run(*arguments, "--plot", "jumps.png")
    assert code == 0, err
    assert out.split()[:3] == ["choices", "weights", "imbalance"]
    assert "Ties of the first row" in err
    assert "Jump above it at weights[0]" in err
    assert (tmp_path / "jumps.png").read_bytes()[:4] == b"\x89PNG"
    code, out, err = run(*arguments, "--json", "-q")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["best"][0]["choices"] == 3
    assert sum(document["best"][0]["weights"]) == pytest.approx(1)
    assert document["ties"][0]["exact"]
    assert document["attained"]
    assert document["criterion"] == "long-run"


def test_the_command_over_time(run):
    code, out, err = run("--choices", "2", "--over", "selection=tandem,shortest_queue", "--maximize", "balance", "--measured-by",
                         "tandem", "--criterion", "finite-time", "--horizon", "2", "--initial", "0,0,0", "--csv")  # fmt: skip
    assert code == 0, err
    assert out.splitlines()[0] == "selection,accumulated(balance),defect,average(balance)"
    assert "the first row is the greatest of all points" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--over", "weights", "--minimize", "imbalance"], "--measured-by RULE"),
        (["--over", "weights"], "Missing option '--minimize' or '--maximize'"),
        (["--over", "weights", "--minimize", "jobs", "--plot", "x.pdf"], "ends with .png"),
        (["--over", "weights", "--minimize", "jobs", "--plot", "none/x.png"], "there is no folder none"),
        (["--over", "weights", "--minimize", "jobs", "--initial", "a"], "--initial is 'a'"),
        (["--over", "weights", "--minimize", "jobs", "--criterion", "short"], "short"),
    ],
)
def test_bad_usage_is_one_line(run, arguments, words):
    code, out, err = run("--choices", "2", *arguments)
    assert code == 2
    assert words in err
    assert (out, err.count("\n")) == ("", 1)


def test_help_has_examples(run):
    assert CRITERION_NAMES == CRITERIA
    code, out, _ = run("--help")
    assert code == 0
    assert "--over choices=1:3 --over weights" in " ".join(out.split())
