"""Comparing solvers: what is a row, what is known is not repeated, warm starts, truncations, studies."""

import json
import subprocess
import sys
import textwrap

import comparison_examples
import numpy as np
import pytest
from comparison_examples import NAMES, STUDY, Counting, gone

import ctmc
from ctmc.cli import main
from ctmc.comparison.against import regressions
from ctmc.comparison.compare import compare
from ctmc.comparison.files import load_comparison
from ctmc.comparison.studies import entries_of_study
from ctmc.errors import StudyError
from ctmc.storage.store import Store
from ctmc.study.solver_grid import solvers_of
from ctmc.study.study import parse_study

plugins = comparison_examples.plugins
queue = comparison_examples.queue
pytestmark = pytest.mark.timeout(600)


def test_whatever_a_solver_does_is_a_row(tmp_path, plugins, queue):
    found = compare(
        [queue],
        ["gth", *(name for name in NAMES if name not in ("gulps", "compiles")), "gmres"],
        time_limit=1.0,
        memory_limit="300MiB",
    )
    runs = {run.solver: run for run in found.runs}
    assert [runs[name].status for name in ("gth", "gmres", "forks", "talks")] == ["CONVERGED"] * 4
    expected = {
        "segfaults": ("CRASHED", "signal 11", "signal 11 (SIGSEGV)"),
        "exits": ("CRASHED", "exit code 3", "exit code 3; it wrote: \\x1b[31mgiving up."),
        "eats": ("MEMORY_LIMIT", "memory", "limit of 300 MiB"),
        "never_ends": ("TIME_LIMIT", "walltime", "limit of 1 s"),
        "waits": ("TIME_LIMIT", "walltime", "limit of 1 s"),
        "raises": ("BREAKDOWN", "", "RuntimeError: <b>no</b>"),
        "lies": ("INACCURATE", "", "above the tolerance"),
    }
    for name, (status, reason, words) in expected.items():
        run = runs[name]
        assert (run.status, run.reason) == (status, reason), (name, run)
        assert words in run.message, (name, run.message)
        assert run.message.isprintable()
        assert run.wall_seconds < 30
        assert not run.converged
    assert runs["eats"].allocated_bytes > 300 * 2**20
    assert runs["eats"].allocated_bytes < 2000 * 2**20
    # what a liar says is measured all the same
    exact = 2.0 ** -np.arange(41)
    exact /= exact.sum()
    assert runs["lies"].distance == pytest.approx(np.abs(exact - 1 / 41).sum(), rel=1e-12)
    assert found.complete
    assert {run.solver for run in found.failures} == set(expected)
    assert gone(tmp_path)


def test_what_is_known_is_not_repeated_and_what_differs_is(tmp_path, queue):
    output = tmp_path / "found.h5"
    first, second, third = Counting(), Counting(), Counting()
    before = compare([queue], "gth,gmres", output, watcher=first)
    assert first.done == 2
    again = compare([queue], "gth,gmres", output, watcher=second)
    assert second.labels == []
    assert [run.seconds for run in again.runs] == [run.seconds for run in before.runs]
    assert len(again.sessions) == 1
    assert again.models == before.models
    assert again.models["queue"].states == 41
    more = compare([queue], "gth,gmres", output, watcher=third, tolerances=(1e-12, 1e-6))
    assert third.done == 2  # those of the other tolerance
    assert [run.session for run in more.runs] == [0, 0, 1, 1]
    stored = load_comparison(output)
    assert [run.key for run in stored.runs] == [run.key for run in more.runs]
    for run, kept in zip(more.runs, stored.runs, strict=True):
        assert run.measures == kept.measures
        np.testing.assert_array_equal(run.history, kept.history)
    changed = ctmc.build("birth_death", births=[1.5] * 40, deaths=[2.0] * 40)
    ctmc.save(queue, changed, overwrite=True)
    fourth = Counting()
    compare([queue], "gth,gmres", output, watcher=fourth)
    assert fourth.done == 2


def test_what_is_not_asked_for_again_stays(tmp_path, queue):
    output, other = tmp_path / "found.h5", tmp_path / "other.h5"
    ctmc.save(other, ctmc.build("birth_death", births=[1.0] * 9, deaths=[2.0] * 9))
    first = compare([queue], "gth", output)
    both = compare([other], "gth", output)
    assert [(run.model, run.session) for run in both.runs] == [("other", 1), ("queue", 0)]
    stored = load_comparison(output)
    assert stored.runs[1].seconds == first.runs[0].seconds
    assert stored.models["queue"] == first.models["queue"]
    # but nothing about a model that is another one now
    ctmc.save(other, ctmc.build("birth_death", births=[1.5] * 9, deaths=[2.0] * 9), overwrite=True)
    changed = compare([other], "sparse_lu", output)
    assert [(run.model, run.solver) for run in changed.runs] == [("other", "sparse_lu"), ("queue", "gth")]


def test_what_is_repeated_takes_no_other_run_away(tmp_path, queue):
    output = tmp_path / "found.h5"
    compare([queue], "gth,sparse_lu", output)
    stopped = compare([queue], "gth,sparse_lu", output, watcher=Counting(stop_after=1), again=True)
    assert [run.status for run in stopped.runs] == ["CONVERGED", "NOT_RUN"]
    assert [(run.status, run.session) for run in load_comparison(output).runs] == [("CONVERGED", 1), ("CONVERGED", 0)]
    counting = Counting()
    found = compare([queue], "gth", output, watcher=counting, again=True)
    assert counting.done == 1
    assert [(run.solver, run.status, run.session) for run in found.runs] == [
        ("gth", "CONVERGED", 2),
        ("sparse_lu", "CONVERGED", 0),
    ]


SOON = {"problem": "transient", "question": {"initial": 0, "times": (1.0,)}}
LATE = {"problem": "transient", "question": {"initial": 0, "times": (1.0, 2.0)}}


def test_a_file_has_the_answers_to_one_question(tmp_path, queue):
    output = tmp_path / "found.h5"
    first = compare([queue], "uniformization", output, **SOON)
    assert (first.asked, load_comparison(output).question) == (
        "transient, initial 0, times [1.0]",
        {"initial": 0, "times": [1.0]},
    )
    before = output.read_bytes()
    for solver, other in (("gth", {}), ("uniformization", LATE)):
        for again in (False, True):
            with pytest.raises(
                StudyError, match=r"so far is 'transient, initial 0, times \[1\.0\]'; .* another output"
            ):
                compare([queue], solver, output, again=again, **other)
    assert output.read_bytes() == before
    known = Counting()
    compare([queue], "uniformization", output, watcher=known, **SOON)
    assert known.done == 0
    (finding,) = regressions(compare([queue], "uniformization", **LATE), first)
    assert finding.fails
    assert "Nothing was compared: the problem is transient, initial 0, times [1.0, 2.0], and was" in str(finding)


QUESTIONS = {
    "reward": ("accumulated-reward", {"reward": ("nonsense",), "initial": 0, "times": (1.0,)}, "no reward 'nonsense'"),
    "state": ("transient", {"initial": (41,), "times": (1.0,)}, "(41,) is not in the state space"),
    "target": ("first-passage", {"target": "jbs > 1"}, "did you mean 'jobs'"),
    "avoided": ("first-passage", {"target": "jobs > 1", "avoid": "jbs < 1"}, "did you mean 'jobs'"),
    "empty target": ("first-passage", {"target": "jobs > 40"}, "holds in no state"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_no_model_can_be_asked_is_refused_and_nothing_is_written(tmp_path, queue, name):
    problem, question, why = QUESTIONS[name]
    output, small = tmp_path / "found.h5", tmp_path / "small.h5"
    ctmc.save(small, ctmc.build("birth_death", births=[1.0], deaths=[2.0]))
    with pytest.raises(StudyError) as told:
        compare([queue], "all", output, problem=problem, question=question)
    assert why in str(told.value)
    with pytest.raises(StudyError, match="No model can be asked this; of small: "):
        compare([small, queue], "all", output, problem=problem, question=question)
    assert not output.exists()


def test_a_model_that_cannot_be_asked_is_rows_beside_one_that_can(tmp_path, queue):
    small = tmp_path / "small.h5"
    ctmc.save(small, ctmc.build("birth_death", births=[1.0], deaths=[2.0]))
    counting = Counting()
    found = compare(
        [small, queue], "uniformization,chebyshev", tmp_path / "found.h5", problem="transient",
        question={"initial": (7,), "times": (1.0,)}, watcher=counting,
    )  # fmt: skip
    assert [(run.model, run.status) for run in found.runs] == [("small", "ERROR")] * 2 + [("queue", "CONVERGED")] * 2
    assert "(7,) is not in the state space" in found.runs[1].message
    assert counting.done == 4
    assert found.complete
    # also where the other one has nothing left to do
    output = tmp_path / "more.h5"
    asked = {"problem": "transient", "question": {"initial": (7,), "times": (1.0,)}}
    compare([queue], "uniformization", output, **asked)
    assert [run.status for run in compare([small, queue], "uniformization", output, **asked).runs] == [
        "ERROR",
        "CONVERGED",
    ]


def test_an_interrupted_comparison_goes_on(tmp_path, queue):
    output = tmp_path / "found.h5"
    found = compare([queue], "gth,gmres,sparse_lu", output, watcher=Counting(stop_after=1))
    assert found.stopped
    assert not found.complete
    assert [run.status for run in found.runs] == ["CONVERGED", "NOT_RUN", "NOT_RUN"]
    rest = Counting()
    whole = compare([queue], "gth,gmres,sparse_lu", output, watcher=rest)
    assert rest.done == 2
    assert whole.complete
    assert whole.runs[0].seconds == found.runs[0].seconds


@pytest.mark.slow
def test_warm_starts_are_methods_of_their_own(tmp_path):
    paths = []
    for number, rate in enumerate((4.0, 4.05)):
        paths.append(tmp_path / f"queues{number}.h5")
        ctmc.save(
            paths[-1], ctmc.build("supermarket", service_rates=[3, 2, 1], arrival_rate=rate, choices=2, capacity=6)
        )
    found = compare(paths, "power_iteration,gth", warm=True)
    labels = [(run.model, run.label) for run in found.runs]
    assert labels == [
        ("queues0", "power_iteration"), ("queues0", "gth"),
        ("queues1", "power_iteration"), ("queues1", "power_iteration (warm)"), ("queues1", "gth"), ("queues1", "gth (warm)"),
    ]  # fmt: skip
    runs = dict(zip(labels, found.runs, strict=True))
    cold, warm = (runs["queues1", f"power_iteration{text}"] for text in ("", " (warm)"))
    assert warm.converged
    assert warm.products < cold.products
    assert warm.distance < 1e-9
    # also where the model before has nothing left to do, and never from what does not fit
    output, smaller = tmp_path / "found.h5", tmp_path / "smaller.h5"
    ctmc.save(smaller, ctmc.build("birth_death", births=[1.0], deaths=[2.0]))
    compare(paths[:1], "power_iteration", output)
    again = compare([*paths, smaller], "power_iteration", output, warm=True)
    runs = {(run.model, run.start): run for run in again.runs}
    assert runs["queues1", "warm"].products == warm.products
    assert runs["smaller", "warm"].status == "REFUSED"
    assert "the model before it has 343 states" in runs["smaller", "warm"].message


@pytest.mark.slow
def test_truncations_meet_their_qbd(tmp_path):
    path = tmp_path / "fork_join.h5"
    ctmc.save(path, ctmc.build("fork_join", service_rates=[5, 2, 1], tasks=3, arrival_rate=1.5))
    found = compare([path], "all", levels=(8, 16), time_limit=20)
    short, long = "fork_join (8 levels)", "fork_join (16 levels)"
    assert list(found.models) == ["fork_join", short, long]
    assert {found.models[name].family for name in found.models} == {"fork_join"}
    exact = ctmc.solve(ctmc.Stationary(ctmc.load(path)), "cyclic_reduction")
    for name, levels in ((short, 8), (long, 16)):
        runs = [run for run in found.runs if run.model == name and run.converged]
        assert len(runs) > 5
        for run in runs:
            assert run.truncated_mass == pytest.approx(exact.value.tail(levels), rel=1e-9)
            assert 0 < run.measure_difference < 20 * run.truncated_mass * levels
            assert not run.disagrees
    assert {run.solver for run in found.runs if run.model == "fork_join"} >= {"logarithmic_reduction", "newton"}
    # methods for the other kind are no rows where all were asked for
    assert not any(run.solver == "gth" and run.model == "fork_join" for run in found.runs)


def test_a_qbd_at_other_rates_is_a_qbd(tmp_path):
    study = parse_study("""
        [models.queue]
        builder = "fork_join"
        service_rates = [2, 1]
        tasks = 2
        sweep = {arrival_rate = [0.3, 0.4]}
        [compare]
        solvers = "all"
        levels = [12]
        """)
    entries = list(entries_of_study(study, Store(tmp_path)))
    assert ctmc.storage.read_info(entries[1].path)["kind"] == "variant"
    how = {**study.compare.how, "time_limit": 20}
    found = compare(entries, "logarithmic_reduction,gth", **how)
    ends = {(run.model, run.solver): run.status for run in found.runs}
    for point in ("0.3", "0.4"):
        assert ends[f"queue (arrival_rate={point})", "logarithmic_reduction"] == "CONVERGED"
        assert ends[f"queue (arrival_rate={point}) (12 levels)", "gth"] == "CONVERGED"


def test_ranges_of_options():
    assert solvers_of("gauss_seidel(relaxation=0.8..1.2)") == [
        "gauss_seidel(relaxation=0.8)", "gauss_seidel(relaxation=0.9)", "gauss_seidel",
        "gauss_seidel(relaxation=1.1)", "gauss_seidel(relaxation=1.2)",
    ]  # fmt: skip
    assert solvers_of("gmres(restart=10..35:10)") == ["gmres(restart=10)", "gmres(restart=20)", "gmres(restart=30)"]
    assert len(solvers_of("all")) == len(set(solvers_of("all"))) > 15
    assert "chebyshev" in solvers_of("all", "transient")


def test_a_study_with_a_table_compare(tmp_path):
    study = parse_study(STUDY)
    assert study.solves == ()
    entries = list(entries_of_study(study, Store(tmp_path)))
    assert [entry.name for entry in entries] == ["small", "swept (arrival_rate=0.5)", "swept (arrival_rate=5)"]
    assert [entry.family for entry in entries] == ["small", "swept", "swept"]
    assert entries[1].recipe == "ctmc build tandem_network --service-rates 3,2 --total-capacity 4 --arrival-rate 0.5"
    found = compare(entries, study.compare.solvers, **study.compare.how)
    assert len(found.runs) == 9
    assert all(run.converged for run in found.runs)
    assert {run.solver for run in found.runs} == {"gth", "gmres(restart=20)", "gmres"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('solvers = "gmress"', "line 14: there is no solver 'gmress'"),
        ("solvers = 3", "line 14: solvers is 3; allowed is text"),
        ('solvers = "gth"\ntolerances = [2]', "line 15: tolerances is [2]"),
        ('solvers = "gth"\nlevels = [0]', "line 15: levels is [0]"),
        ('solvers = "gth"\nwarm = 1', "line 15: warm is 1"),
        ('solvers = "gth"\njobs = 0', "line 15: jobs is 0"),
        ('solvers = "gth"\nmemory_limit = "lots"', "line 15: memory_limit is 'lots'"),
        ('solvers = "gth"\ntimes = [1]', "line 15: times is given for a stationary problem"),
        ('solvers = "gth"\nmodels = ["nobody"]', "line 15: there is no model 'nobody'"),
        ('solver = "gth"', "line 14: there is no key of [compare] 'solver'"),
    ],
)
def test_wrong_keys_of_compare_have_their_line(line, words):
    text = STUDY.replace('solvers = "gth,gmres(restart=20|40)"', line)
    with pytest.raises(StudyError) as caught:
        parse_study(text, "which.toml")
    assert words in str(caught.value)


def test_info_tells_what_a_comparison_holds(tmp_path, queue, capsys):
    output = tmp_path / "found.h5"
    compare([queue], "gth", output)
    assert main(["info", str(output), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["runs"], told["status"]) == ("comparison", 1, "1 CONVERGED")
    assert told["models"] == ["queue"]
    assert ctmc.verify(output).trusted


def test_help_teaches_by_example():
    found = subprocess.run(
        [sys.executable, "-m", "ctmc", "compare", "--help"], capture_output=True, text=True, check=True
    )
    assert textwrap.dedent("ctmc compare *.h5 --solvers") in found.stdout
