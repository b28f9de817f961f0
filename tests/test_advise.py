"""Advice: what is read against brute force, each reason where it belongs, forecasts against solves, and 'auto' everywhere."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctmc
from ctmc import registry
from ctmc.advise import advise, chosen_solver
from ctmc.cli import main
from ctmc.comparison.compare import compare
from ctmc.costs import costs_of_queue
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.traits import COUPLINGS, traits
from ctmc.study.solver_grid import solvers_of

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "advise.py"


def walk(lengths, rate=1.0):
    """A random walk on a box, written out as rows: one coordinate changes by one."""
    n = int(np.prod(lengths))
    places = np.arange(n).reshape(lengths)
    rates = np.zeros((n, n))
    for axis in range(len(lengths)):
        low = places.take(range(lengths[axis] - 1), axis).ravel()
        high = places.take(range(1, lengths[axis]), axis).ravel()
        rates[low, high], rates[high, low] = rate, 1.0
    return Generator.from_matrix(rates)


def blocks(coupling, count=4, size=6, seed=523):
    """Dense blocks in a ring, of which only the first states are joined, by `coupling`."""
    rng = np.random.default_rng(seed)
    rates = np.zeros((count * size, count * size))
    for k in range(count):
        inside = slice(k * size, (k + 1) * size)
        rates[inside, inside] = rng.uniform(0.5, 1, (size, size))
        rates[k * size, (k + 1) % count * size] = coupling
    np.fill_diagonal(rates, 0)
    return Generator.from_matrix(rates)


# ---- what is read -----------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(3, 40))
def test_levels_and_weak_links_are_those_of_a_search_by_networkx(seed, n):
    rng = np.random.default_rng(seed)
    rates = np.where(rng.random((n, n)) < 2.5 / n, 10.0 ** rng.uniform(-9, 0, (n, n)), 0.0)
    rates[np.arange(n), (np.arange(n) + 1) % n] = 10.0 ** rng.uniform(-9, 0, n)
    order = rng.permutation(n)  # so that the first coordinate, the number of the state, skips levels
    rates = rates[order][:, order]
    np.fill_diagonal(rates, 0)
    chain = Generator.from_matrix(rates)
    found = traits(chain)
    graph = networkx.from_numpy_array(rates, create_using=networkx.DiGraph)
    skips = any(abs(i - j) > 1 for i, j in graph.edges)
    distance = networkx.single_source_shortest_path_length(graph.to_undirected(), 0)
    sizes = np.bincount(list(distance.values())) if skips else np.ones(n, dtype=int)
    assert (found.levels, found.widest_level) == (len(sizes), sizes.max())
    assert found.elimination == 3 * (sizes.astype(float) ** 3).sum()
    exits = rates.sum(axis=1)
    assert found.stiffness == pytest.approx(exits.max() / exits.min())
    weakest = None
    for coupling in COUPLINGS:
        strong = [(i, j) for i, j in graph.edges if rates[i, j] / exits[i] >= coupling]
        thinned = networkx.Graph(strong)
        parts = sum(len(part) > 1 for part in networkx.connected_components(thinned))
        if parts < 2:
            break
        weakest = coupling, parts
    assert (found.coupling, found.parts) == (weakest or (None, 1))


def test_a_lattice_has_the_levels_of_its_rows():
    """Told by the form in one case, found by looking at every transition in the other."""
    lattice = ctmc.build("supermarket", service_rates=[2, 1, 1.5], arrival_rate=3, choices=2, capacity=[4, 6, 3])
    assert lattice.representation == "lattice"
    one, other = traits(lattice), traits(lattice.written_out())
    assert (one.levels, one.widest_level, one.elimination) == (other.levels, other.widest_level, other.elimination)
    assert (one.levels, one.widest_level) == (5, 28)
    assert other.rows_read
    assert not one.rows_read


# ---- reasons and warnings ---------------------------------------------------------------------------------------------


def test_only_parts_that_hardly_exchange_anything_call_for_more_than_a_small_defect():
    for coupling, strictly in ((1.0, False), (1e-2, False), (1e-9, True)):
        found = advise(blocks(coupling))
        assert (found.certify == "strict") is strictly
        assert any("Nearly decomposable" in warning for warning in found.warnings) is strictly
    assert found.facts["parts"] == 4


def test_a_state_that_is_hardly_entered_is_no_part():
    rates = np.diag([1.0, 1e-9], 1) + np.diag([2.0, 0.0], -1)
    assert traits(Generator.from_matrix(rates)).parts == 1
    rates[2, 1] = 1e-9  # nor one that is hardly left, if it leads nowhere else
    assert traits(Generator.from_matrix(rates)).parts == 1


def test_only_rates_far_apart_are_called_so():
    rates = {"failure_rates": [1e-9, 1e-3], "repair_rates": [100.0, 0.5]}
    stiff = ctmc.build("repairable_system", **rates, components=[2, 3])
    assert any("slow states" in warning for warning in advise(stiff).warnings) is (traits(stiff).stiffness >= 1e6)
    far = ctmc.build("birth_death", births=[1.0, 1e-9], deaths=[1.0, 1e-9])
    assert any("slow states" in warning for warning in advise(far).warnings)
    assert not advise(walk((30,))).warnings


def test_classes_are_told():
    two = Generator.from_matrix(np.kron(np.eye(2), [[0, 1.0], [2.0, 0]]))
    assert any("2 recurrent classes" in warning for warning in advise(two).warnings)


def test_what_does_not_fit_is_left_out_and_named():
    chain = walk((40, 40))
    free = advise(chain)
    with ctmc.limited_memory("2MiB"):
        tight = advise(chain)
        assert any("gth" in reason and "memory limit" in reason for reason in tight.reasons)
        assert all(candidate.bytes <= 2 * 2**20 for candidate in tight.candidates)
    assert "gth" in {candidate.solver for candidate in free.candidates}
    assert "gth" not in {candidate.solver for candidate in tight.candidates}
    with ctmc.limited_memory("1KiB"), pytest.raises(ModelError, match="memory limit is 1 KiB, but every solver"):
        advise(chain)


def test_slow_phases_change_the_method_for_g():
    draw = np.random.default_rng(1847)
    for speed, first in ((1.0, "functional_iteration"), (1e-4, "cyclic_reduction")):
        local = speed * draw.uniform(0.5, 1, (12, 12)) * (1 - np.eye(12))
        queue = ctmc.build(
            "modulated_queue",
            environment=local,
            arrival_rates=list(np.linspace(0.1, 0.9, 12)),
            service_rates=[1.0] * 12,
        )
        found = advise(queue)
        assert found.solver == first, found.facts
        assert ("slow" in found.reasons[0]) is (speed < 1)
        assert ctmc.solve(ctmc.Stationary(queue), found.solver).converged
    ranked, reasons, _ = costs_of_queue(ctmc.QBD.from_blocks([[0.5]], [[-1.5]], [[1.0]]))
    assert ranked[0].solver == "rank_one"
    assert "rank one" in reasons[0]


def test_questions_about_time_go_by_the_number_of_events():
    queue = ctmc.build("birth_death", births=[1.0] * 30, deaths=[2.0] * 30)
    for time, solver in ((1.0, "uniformization"), (500.0, "chebyshev"), (1e7, "rational")):
        found = advise(ctmc.Transient(queue, times=[time], initial=(0,)))
        assert found.solver == solver
        assert found.facts["events"] == pytest.approx(3 * time)
    passage = advise(ctmc.FirstPassage(queue, target="jobs >= 20"))
    assert passage.solver == "absorption_elimination"
    assert advise(ctmc.DiscountedReward(queue, reward="jobs", discount=0.5)).solver == "resolvent_lu"


# ---- forecasts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("builder", "parameters"),
    [
        ("supermarket", {"service_rates": [2, 1, 1.5], "arrival_rate": 3.6, "choices": 2, "capacity": 17}),
        ("tandem_network", {"service_rates": [3, 2, 1.5], "arrival_rate": 1.2, "capacity": 16}),
        ("kanban", {"tickets": 2}),
    ],
)
def test_products_are_within_the_forecast(builder, parameters):
    model = ctmc.build(builder, **parameters)
    found = advise(model)
    (row,) = (candidate for candidate in found.candidates if candidate.solver == "bicgstab")
    low, high = row.products
    assert high / low < 20
    assert low <= ctmc.solve(ctmc.Stationary(model), "bicgstab").products <= high
    assert row.seconds[0] == pytest.approx(row.work[0] * found.facts["seconds_of_a_product"])
    assert advise(model, timed=False).recommended.seconds is None


def test_products_over_time_are_within_the_forecast():
    queue = ctmc.build("supermarket", service_rates=[2, 1], arrival_rate=2.4, choices=2, capacity=15)
    for time in (0.5, 40.0):
        problem = ctmc.Transient(queue, times=[time], initial=(0, 0))
        found = advise(problem).recommended
        products = ctmc.solve(problem, found.solver).products
        assert found.products[0] <= products <= found.products[1]


# ---- 'auto' -----------------------------------------------------------------------------------------------------------


def test_auto_runs_what_is_advised_and_says_so():
    for model in (walk((50, 3)), blocks(1e-3), ctmc.QBD.from_blocks([[0.5]], [[-1.5]], [[1.0]])):
        problem = ctmc.Stationary(model)
        solution = ctmc.solve(problem, "auto")
        advised = advise(problem, timed=False)
        assert registry.snake_case(solution.solver.partition("(")[0]) == advised.solver
        assert solution.notes[0] == f"auto: {advised.solver}. {advised.reasons[0]}"
    assert not ctmc.solve(ctmc.Stationary(walk((3,)))).notes  # not asked for
    with pytest.raises(ModelError, match="'auto' alone"):
        ctmc.solve(ctmc.Stationary(walk((3,))), "auto(restart=3)")
    assert chosen_solver(ctmc.Stationary(walk((3,))))[1] == ""


def test_auto_is_the_same_again():
    """What a study stores must not depend on a clock."""
    chain = walk((12, 12, 3))
    assert len({advise(chain).solver for _ in range(5)} | {advise(chain, timed=False).solver}) == 1


def test_wrong_questions_get_one_sentence():
    with pytest.raises(ModelError, match="problem is 3; allowed is a problem or a model"):
        advise(3)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("CTMC_STORE", raising=False)
    ctmc.save("queue.h5", ctmc.build("birth_death", births=[1.0] * 60, deaths=[2.0] * 60))

    def command(*arguments):
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def test_the_command(run):
    code, out, err = run("advise", "queue.h5", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["facts"]["states"] == 61
    assert document["facts"]["levels"] == 61
    assert document["solver"] == document["candidates"][0]["solver"]
    code, out, _ = run("advise", "queue.h5")
    assert code == 0
    assert f"Recommended: {document['solver']}\n" in out
    assert document["check"] in out
    assert document["reasons"][0] in out
    code, out, _ = run("advise", "queue.h5", "--problem", "transient", "--times", "1,400", "--json")
    assert json.loads(out)["solver"] == "chebyshev"
    for arguments, said in (
        (["--times", "3"], "--times is given for a stationary problem"),
        (["--memory-limit", "many"], "memory limit is 'many'"),
        (["--problem", "transient"], "needs --times"),
        (["--problem", "weather"], "weather"),
    ):
        code, out, err = run("advise", "queue.h5", *arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert err.count("\n") == 1


def test_solve_auto_on_the_command_line(run):
    advised = advise(ctmc.load("queue.h5")).solver
    code, out, err = run("solve", "queue.h5", "--solver", "auto", "--no-save")
    assert code == 0
    assert out.startswith(f"Solver: {advised} (advised)\n")
    assert f"Note: auto: {advised}. " in err
    code, out, _ = run("solve", "queue.h5", "--solver", "auto", "--json")
    document = json.loads(out)
    assert document["solver"] == advised
    assert document["advice"].startswith(f"auto: {advised}. ")
    code, _, err = run("solve", "queue.h5", "--solver", "auto", "--restart", "3")
    assert code == 2
    assert "--restart" in err


def test_a_study_keeps_what_auto_became(run):
    text = (
        'output = "out.h5"\n[models.queue]\nbuilder = "birth_death"\nbirths = [1.0, 1.0]\ndeaths = [2.0, 2.0]\n'
        '[[solve]]\nsolvers = ["auto"]\n'
    )
    Path("study.toml").write_text(text, encoding="utf-8")
    for done in ("solved", "reused"):
        code, out, err = run("run", "study.toml", "--csv")
        assert code == 0, err
        assert "gth" in out
        assert "auto" not in out
        assert done in out
        assert "auto: gth. " in err
    Path("study.toml").write_text(text.replace('"auto"', '"auto(a=1)"'), encoding="utf-8")
    code, _, err = run("run", "study.toml")
    assert code == 2
    assert "'auto' alone" in err


def test_auto_is_compared():
    assert solvers_of("auto, gth") == ["auto", "gth"]
    with pytest.raises(ModelError, match="'auto' alone"):
        solvers_of("auto(restart=3)")


def test_auto_in_a_comparison(run):
    found = compare(["queue.h5"], "auto,gth", "comparison.h5")
    assert [(one.solver, one.status, one.distance < 1e-12) for one in found.runs] == [
        ("auto", "CONVERGED", True), ("gth", "CONVERGED", True)
    ]  # fmt: skip


# ---- a small gallery --------------------------------------------------------------------------------------------------


def small_gallery():
    """Models that differ in what decides: size, dimensions, length, colors, weak links, rates."""
    market = {"service_rates": [2, 1, 1.5], "choices": 2, "capacity": 13}
    yield "supermarket", market | {"arrival_rate": 2.2}
    yield "supermarket", market | {"arrival_rate": 4.3}
    yield "tandem_network", {"service_rates": [3, 2, 1.5], "arrival_rate": 1.2, "capacity": 10}
    yield "tandem_network", {"service_rates": [2, 1.8], "arrival_rate": 1.5, "capacity": 30}
    yield "coxian_tandem", {"capacity": 20}
    yield "kanban", {"tickets": 2}
    yield "polling", {"stations": 7}
    yield "nearly_decomposable", {"blocks": 20, "block_size": 20, "coupling": 1e-5, "seed": 1931}
    yield "birth_death", {"births": [0.97] * 700, "deaths": [1.0] * 700}
    yield "flexible_manufacturing", {"parts": 2}


@pytest.mark.slow
def test_advice_makes_few_products_on_a_small_gallery():
    """Within 1.5 times the fewest products of the usual methods in nine models of ten; products are no clock's business."""
    usual = {"bicgstab": 300, "anderson": 250, "aggregation": 100, "gauss_seidel": 150}
    good = 0
    for builder, parameters in small_gallery():
        model = ctmc.build(builder, **parameters)
        chosen = advise(model, timed=False)
        made = {}
        for solver, steps in usual.items():
            solution = ctmc.solve(ctmc.Stationary(model), f"{solver}(max_iterations={steps})", check=False)
            if solution.converged:
                made[solver] = solution.products
        good += made.get(chosen.fewest_products, np.inf) <= 1.5 * min(made.values())
        assert ctmc.solve(ctmc.Stationary(model), chosen.solver, check=False).converged
    assert good >= 9


def test_the_benchmark_judges():
    spec = importlib.util.spec_from_file_location("advise_benchmark", BENCHMARK)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    names = [row[0] for row in benchmark.gallery()]
    assert len(names) == len(set(names)) >= 40
    chain = walk((20,))
    advice = advise(chain, timed=False)
    runs = {"gth": {"status": "CONVERGED", "seconds": 2.0, "products": 1}, "gmres": {"status": "TIME_LIMIT"}}
    runs |= {"bicgstab": {"status": "CONVERGED", "seconds": 4.0, "products": 30}}
    runs |= {"aggregation": {"status": "CONVERGED", "seconds": 8.0, "products": 10}}
    row = benchmark.judged({"model": "walk", "product": 1e-3, "runs": runs}, advice)
    assert (row["quickest"], row["thriftiest"]) == ("gth", "aggregation")
    assert row["ratio"] == runs.get(advice.solver, {}).get("seconds", np.inf) / 2
    assert row["products_ratio"] == runs.get(advice.fewest_products, {}).get("products", np.inf) / 10
