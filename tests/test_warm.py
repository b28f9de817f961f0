"""Sweeps as paths: parameters that advance together, starts from the answer to a neighbour, and what these save."""

import dataclasses
import inspect
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import ctmc
from ctmc import registry
from ctmc.errors import ModelError, StudyError
from ctmc.problem import FirstPassage, Stationary
from ctmc.solution import Status
from ctmc.study import parse_study, run_study
from ctmc.study.content import StudyModel
from ctmc.study.sweep import points, read_together, total
from ctmc.study.warm import paths, structure_of

QUEUE = '[models.queue]\nbuilder = "tandem_network"\nservice_rates = [2.0, 1.8]\ncapacity = [6, 6]\n'
SWEEP = "[models.queue.sweep]\narrival_rate = [1.2, 0.8, 1.0]\n"
TOGETHER = '[models.queue]\nbuilder = "tandem_network"\nservice_rates = [2.0, 1.8]\n[models.queue.sweep]\n'
VALUES = "arrival_rate = [1.2, 0.8]\ncapacity = [6, 7]\n"
WARM = '[[solve]]\nsolvers = ["gauss_seidel", "gth"]\nwarm = true\n'
NEAR = ctmc.registry.build("tandem_network", service_rates=[2.0, 1.8], capacity=[6, 6], arrival_rate=0.9)
FAR = NEAR.with_rates(arrival_rate=0.91)


# ---- parameters that advance together ---------------------------------------------------------------------------------


def test_parameters_that_advance_together_are_one_axis():
    sweep = {"a": [1, 2], "b": [7, 8, 9], "c": (0, 1, 2)}
    found = list(points(sweep, [["a", "c"]]))
    assert [tuple(point.values()) for point in found] == [(a, b, c) for a, c in ((1, 0), (2, 1)) for b in (7, 8, 9)]
    assert total(sweep, [["a", "c"]]) == len(found) == 6
    assert total(sweep) == 12
    study = parse_study(TOGETHER + VALUES + 'together = [["capacity", "arrival_rate"]]\n' + WARM)
    assert [dict(model.point) for model in study.models.values()] == [
        {"arrival_rate": 1.2, "capacity": 6},
        {"arrival_rate": 0.8, "capacity": 7},
    ]


def test_a_change_on_the_command_line_keeps_what_advances_together():
    text = TOGETHER + VALUES + 'together = [["arrival_rate", "capacity"]]\n' + WARM
    changed = parse_study(text, changes=("arrival_rate=1,0.5",))
    assert [(m.point["arrival_rate"], m.point["capacity"]) for m in changed.models.values()] == [(1, 6), (0.5, 7)]
    alone = parse_study(text, changes=("arrival_rate=1",))
    assert [dict(model.point) for model in alone.models.values()] == [{"capacity": 6}, {"capacity": 7}]
    with pytest.raises(StudyError, match="together has 3 of arrival_rate and 2 of capacity; parameters that advance"):
        parse_study(text, changes=("arrival_rate=1,2,3",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("3", "line 7: together is 3; allowed is a list of lists"),
        ('["arrival_rate", "capacity"]', "together is .*; allowed is a list of lists"),
        ('[["arrival_rate"]]', "allowed is a list of lists of two or more"),
        ('[["arrival_rate", 3]]', "allowed is a list of lists of two or more"),
        ('[["arrival_rate", "service_rates"]]', "together names 'service_rates', which is not swept; allowed are arrival_"),
        ('[["arrival_rate", "arrival_rate"]]', "together names 'arrival_rate' twice"),
        ('[["arrival_rate", "capacity"], ["capacity", "arrival_rate"]]', "together names 'capacity' twice"),
    ],
)  # fmt: skip
def test_what_cannot_advance_together_is_one_sentence(given, message):
    with pytest.raises(StudyError, match=message):
        parse_study(TOGETHER + VALUES + f"together = {given}\n" + WARM)
    with pytest.raises(ModelError, match="3 of a and 4 of b"):
        read_together([["a", "b"]], {"a": [1, 2, 3], "b": (0, 1, 4)})


# ---- starts -----------------------------------------------------------------------------------------------------------


def stationary_solvers():
    kinds = {name: registry.solver_class(name) for name in registry.solver_names()}
    return [
        name for name, kind in kinds.items() if registry.takes(kind, Stationary(NEAR)) and not registry.missing_library(kind)
    ]  # fmt: skip


def test_every_solver_that_begins_from_a_first_guess_takes_a_start_and_the_others_say_that_they_do_not():
    taking = []
    for name in stationary_solvers():
        begins = "trace.start(" in inspect.getsource(sys.modules[registry.solver_class(name).__module__])
        cold = ctmc.solve(Stationary(NEAR), name)
        warm = ctmc.solve(Stationary(FAR), name, start=cold)
        assert warm.warm is begins, name
        assert not cold.warm
        assert begins is not any("The start was not used" in note for note in warm.notes), name
        np.testing.assert_allclose(warm.value, ctmc.solve(Stationary(FAR), "gth").value, rtol=1e-7)
        if begins:
            assert warm.history["defect"][0] < cold.history["defect"][0] / 5, name
            taking.append(name)
    assert {"gmres", "bicgstab", "gauss_seidel", "power_iteration", "arnoldi", "aggregation", "anderson"} <= {*taking}


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (np.full(49, np.nan), r"start\[0\] is nan; allowed are finite numbers >= 0"),
        (-np.ones(49), r"start\[0\] is -1.0"),
        (np.ones(48), r"start has shape \(48,\); allowed is \(49,\)"),
        (np.zeros(49), "start sums to 0.0"),
        ("x", "start is 'x'; allowed are"),
    ],
)
def test_a_bad_start_is_one_sentence(start, message):
    with pytest.raises(ModelError, match=message):
        ctmc.solve(Stationary(NEAR), "gauss_seidel", start=start)


def test_the_answer_to_another_kind_of_question_is_no_start():
    passage = ctmc.solve(FirstPassage(NEAR, target="jobs >= 5"))
    with pytest.raises(
        ModelError, match="start is the answer to a FirstPassage problem on a Generator; allowed is a long-run"
    ):
        ctmc.solve(Stationary(NEAR), "gauss_seidel", start=passage)


# ---- warm sweeps ------------------------------------------------------------------------------------------------------


def test_a_path_has_one_structure_and_small_steps():
    def model(name, **point):
        given = {"service_rates": [2.0, 1.8], "capacity": 3, **point}
        return StudyModel(name, "tandem_network", given, "queue", point)

    models = [model(f"{a}-{c}-{s}", arrival_rate=a, capacity=c, service_rates=[s, 1.0])
              for a in (3.0, 1.0, 2.0) for c in (4, 5) for s in (1.0, 7.0, 2.0)]  # fmt: skip
    found = paths({one.name: one for one in models}, [one.name for one in models])
    assert sorted(map(len, found)) == [9, 9]
    for path in found:
        values = [tuple(map(float, name.split("-"))) for name in path]
        assert len({capacity for _, capacity, _ in values}) == 1
        assert values[0] == (1.0, values[0][1], 1.0)
        changes = [sum(x != y for x, y in zip(one, two, strict=True)) for one, two in pairwise(values)]
        assert set(changes) == {1}
    assert structure_of(StudyModel("q", "", {}, file="queue.h5")) is None
    assert (
        structure_of(StudyModel("q", "tandem_network", {"service_rates": "?", "arrival_rate": 1, "capacity": object()}))
        is None
    )


def test_a_warm_sweep_gives_the_same_numbers_says_so_and_tells_what_it_has_saved(tmp_path):
    cold_study, warm_study = (parse_study(QUEUE + SWEEP + text) for text in (WARM.replace("warm = true\n", ""), WARM))
    cold = run_study(cold_study, tmp_path / "cold.h5", store=tmp_path / "cold")
    warm = run_study(warm_study, tmp_path / "warm.h5", store=tmp_path / "warm")
    for one, two in zip(cold.rows, warm.rows, strict=True):
        assert (one.model, one.solver, one.point) == (two.model, two.solver, two.point)
        assert two.measures["throughput"] == pytest.approx(one.measures["throughput"], rel=1e-9)
    done = {(row.point["arrival_rate"], row.solver): (row.done, row.why) for row in warm.rows}
    assert done[0.8, "gauss_seidel"][0] == "solved: new"
    assert "no neighbour" in done[0.8, "gauss_seidel"][1]
    for rate, before in ((1.0, 0.8), (1.2, 1)):
        words, why = done[rate, "gauss_seidel"]
        assert words == "solved from the neighbour: new"
        assert f"the answer of queue (arrival_rate={before})" in why
        assert done[rate, "gth"][0] == "solved: new"
        assert "gth begins from no first guess" in done[rate, "gth"][1]
    products = {row.point["arrival_rate"]: row.products for row in warm.rows if row.solver == "gauss_seidel"}
    (saving,) = warm.savings
    assert (saving.answers, saving.products, saving.known) == (2, products[1.0] + products[1.2], 0)
    assert (saving.first, saving.estimate) == (products[0.8], 2 * products[0.8])
    assert "of the first point (it may be far off, as points differ)." in str(saving)

    again = run_study(warm_study, tmp_path / "again.h5", store=tmp_path / "cold", rebuild=True)
    (measured,) = again.savings
    known = {row.point["arrival_rate"]: row.products for row in cold.rows if row.solver == "gauss_seidel"}
    assert (measured.known, measured.known_products, measured.before) == (2, saving.products, known[1.0] + known[1.2])
    assert "measured: 2 of them" in str(measured)
    share = 100 * (1 - measured.known_products / measured.before)
    assert str(measured).endswith(f"so {share:.0f} % were saved.")
    dearer = dataclasses.replace(measured, known_products=300, before=200)
    assert str(dearer).endswith("so 50 % more were needed.")
    third = run_study(warm_study, tmp_path / "third.h5", store=tmp_path / "cold", rebuild=True)
    assert third.savings[0].known == 0  # what is in the store now began from a neighbour itself

    reused = run_study(warm_study, tmp_path / "reused.h5", store=tmp_path / "warm")
    assert {row.done for row in reused.rows} == {"reused"}
    assert reused.savings == ()


def test_a_start_that_does_not_help_does_not_cost_the_answer(tmp_path, monkeypatch):
    from ctmc.study import work

    asked = []

    def solve(problem, solver, *, start=None, **how):
        solution = ctmc.solve(problem, solver, start=start, **how)
        asked.append(start is not None)
        return solution if start is None else replace(solution, status=Status.STAGNATED)

    monkeypatch.setattr(work, "solve", solve)
    result = run_study(parse_study(QUEUE + SWEEP + WARM.replace(', "gth"', "")), tmp_path / "study.h5")
    assert asked == [False, True, False, True, False]
    assert [row.status for row in result.rows] == ["CONVERGED"] * 3
    assert "it was STAGNATED, and begun again from scratch" in result.rows[0].why
    assert result.savings[0].products == result.rows[0].products + result.rows[2].products


def test_neighbours_have_the_same_states(tmp_path):
    text = TOGETHER + "arrival_rate = [0.8, 1.0]\ncapacity = [6, 7]\n" + WARM.replace(', "gth"', "")
    result = run_study(parse_study(text), tmp_path / "study.h5")
    done = [(row.point["capacity"], row.point["arrival_rate"], row.done) for row in result.rows]
    assert sorted(done) == [(6, 0.8, "solved: new"), (6, 1.0, "solved from the neighbour: new"),
                            (7, 0.8, "solved: new"), (7, 1.0, "solved from the neighbour: new")]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("warm = true", 'warm = "yes"', "line 9: warm is 'yes'; allowed is true or false"),
        ('solvers = ["gauss_seidel", "gth"]', 'problem = "transient"\ntimes = [1]', "warm is given for a problem of the kind transient"),
    ],
)  # fmt: skip
def test_warm_is_refused_where_it_means_nothing(old, new, message):
    with pytest.raises(StudyError, match=message):
        parse_study(QUEUE + SWEEP + WARM.replace(old, new) + "# end\n")
