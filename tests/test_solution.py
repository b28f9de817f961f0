"""What a solution tells: expectations, probabilities, marginals, measures and summaries."""

from __future__ import annotations

import numpy as np
import pytest

import ctmc
from ctmc.errors import ModelError, UnknownNameError
from ctmc.model.generator import Generator
from ctmc.model.qbd import QBD
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Listed, Variable
from ctmc.problem import Stationary, Transient
from ctmc.solution import Status, flat_measures, format_measure
from solvers.stationary.power_iteration import PowerIteration

SPACE = Lattice((3, 2), variables=(Variable("jobs"), Variable("phase")))
STATES = SPACE.states(np.arange(12))


def chain(**known):
    rng = np.random.default_rng(90210)
    rates = rng.random((12, 12)) * (rng.random((12, 12)) < 0.4) + np.roll(np.eye(12), 1, axis=1)
    np.fill_diagonal(rates, 0)
    rewards = {
        "cost": Reward(lambda states: states[:, 0] * 1.5 + 1, "cost"),
        "both": Reward(np.column_stack([np.arange(12.0), np.arange(12) % 2]), "two columns"),
        "single": Reward(np.arange(12.0)[:, None] // 3, "one column"),
        "signed": Reward(np.arange(-1.0, 11), "from -1 up"),
        "large": Reward(np.where(np.arange(12) == 5, 1e6, 0), "up to a million"),
    }
    labels = {"odd": np.arange(12) % 2 == 1}
    return Generator.from_matrix(rates, SPACE, initial=(0, 0), rewards=rewards, labels=labels, **known)


@pytest.fixture(scope="module")
def solution():
    return ctmc.solve(Stationary(chain()), "gth")


@pytest.fixture(scope="module")
def over_time():
    return ctmc.solve(Transient(chain(), times=[0.0, 0.4, 2.5]))


MM1 = QBD.from_blocks([[0.6]], [[-1.6]], [[1.0]], variables=(Variable("jobs"), Variable("phase")))


@pytest.fixture(scope="module")
def geometric():
    return ctmc.solve(Stationary(MM1))


# ---- expectations -------------------------------------------------------------------------------------------------------


def test_expected(solution):
    pi = solution.value
    assert solution.expected("jobs") == pytest.approx(pi @ STATES[:, 0], rel=1e-14)
    assert isinstance(solution.expected("jobs"), float)
    assert solution.expected("cost") == pytest.approx(1 + 1.5 * (pi @ STATES[:, 0]), rel=1e-14)
    both = solution.expected("both")
    assert both.shape == (2,)
    np.testing.assert_allclose(both, [pi @ np.arange(12), pi[1::2].sum()], rtol=1e-14)
    assert solution.expected("single").shape == (1,)


def test_expected_over_time(over_time):
    assert over_time.value.shape == (3, 12)
    jobs, both = over_time.expected("jobs"), over_time.expected("both")
    assert jobs.shape == (3,)
    assert both.shape == (3, 2)
    assert jobs[0] == 0
    np.testing.assert_allclose(jobs, over_time.value @ STATES[:, 0], rtol=1e-13)
    np.testing.assert_allclose(both[:, 1], over_time.value[:, 1::2].sum(axis=1), rtol=1e-13)


def test_expected_of_a_queue_without_end(geometric):
    assert geometric.expected("jobs") == pytest.approx(0.6 / 0.4, rel=1e-13)
    assert geometric.expected("phase") == 0


def test_several_expectations_in_one_pass(solution):
    found = solution.expectations(["jobs", "both"])
    assert list(found) == ["jobs", "both"]
    assert found["jobs"] == solution.expected("jobs")


def test_slabs_do_not_matter(solution, monkeypatch):
    whole = solution.expectations(["jobs", "both"]), solution.probability("jobs > 1"), solution.marginal("jobs")
    monkeypatch.setattr("ctmc.model.state_space.SLAB", 5)
    cut = solution.expectations(["jobs", "both"]), solution.probability("jobs > 1"), solution.marginal("jobs")
    assert cut[0]["jobs"] == pytest.approx(whole[0]["jobs"], rel=1e-14)
    np.testing.assert_allclose(cut[0]["both"], whole[0]["both"], rtol=1e-14)
    assert cut[1] == pytest.approx(whole[1], rel=1e-14)
    np.testing.assert_allclose(cut[2], whole[2], rtol=1e-14)


def test_unknown_reward(solution):
    with pytest.raises(UnknownNameError, match="There is no reward 'job'; did you mean 'jobs'"):
        solution.expected("job")
    with pytest.raises(UnknownNameError, match="no reward 'nix'"):
        solution.marginal("nix")
    with pytest.raises(UnknownNameError, match="no reward 'nix'"):
        solution.probability("nix > 1")


# ---- probability ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "member"),
    [
        ("jobs >= 2", STATES[:, 0] >= 2),
        ("odd", np.arange(12) % 2 == 1),
        ("odd and jobs >= 2", (np.arange(12) % 2 == 1) & (STATES[:, 0] >= 2)),
        ("not odd or phase == 1", (np.arange(12) % 2 == 0) | (STATES[:, 1] == 1)),
        ("both[1] == 1", np.arange(12) % 2 == 1),
        ("1 <= jobs < 3", (STATES[:, 0] >= 1) & (STATES[:, 0] < 3)),
        ("true", np.ones(12, dtype=bool)),
        ("1 > 2", np.zeros(12, dtype=bool)),
    ],
)
def test_probability(solution, over_time, condition, member):
    assert solution.probability(condition) == pytest.approx(solution.value[member].sum(), rel=1e-13, abs=1e-300)
    assert isinstance(solution.probability(condition), float)
    np.testing.assert_allclose(over_time.probability(condition), over_time.value[:, member].sum(axis=1), rtol=1e-13)


def test_probability_of_a_queue_without_end(geometric):
    assert geometric.probability("jobs >= 3") == pytest.approx(0.6**3, rel=1e-12)
    assert geometric.probability("jobs == 0") == pytest.approx(0.4, rel=1e-13)


def test_bad_conditions(solution):
    for condition in ("jobs >", "jobs", "", "__import__('os')"):
        with pytest.raises(ctmc.CTMCError):
            solution.probability(condition)


# ---- marginals --------------------------------------------------------------------------------------------------------------


def test_marginal(solution, over_time, geometric):
    for reward, index, values in (
        ("jobs", None, STATES[:, 0]),
        ("both", 0, np.arange(12)),
        ("both", 1, np.arange(12) % 2),
        ("single", None, np.arange(12) // 3),
        ("single", 0, np.arange(12) // 3),
    ):
        found = solution.marginal(reward, index)
        np.testing.assert_allclose(found, np.bincount(values, weights=solution.value), rtol=1e-14)
        times = over_time.marginal(reward, index)
        assert times.shape == (3, len(found))
        np.testing.assert_allclose(times[2], np.bincount(values, weights=over_time.value[2]), rtol=1e-14)
    queue = geometric.marginal("jobs")
    np.testing.assert_allclose(queue, 0.4 * 0.6 ** np.arange(len(queue)), rtol=1e-12)
    assert 1 - queue.sum() < 1e-15


@pytest.mark.parametrize(
    ("reward", "index", "words"),
    [
        ("cost", None, ["reward 'cost' takes the value 2.5", "whole values from 0 to 999,999"]),
        ("signed", None, ["takes the value -1.0"]),
        ("large", None, ["takes the value 1000000.0"]),
        ("both", None, ["has 2 components", "index=0 to 1"]),
        ("both", 2, ["index 2 of reward 'both' is out of range", "0 to 1"]),
        ("both", -1, ["index is -1", ">= 0"]),
        ("jobs", 0, ["index 0 of reward 'jobs'", "allowed is none"]),
    ],
)
def test_marginals_that_make_no_sense(solution, reward, index, words):
    with pytest.raises(ModelError) as caught:
        solution.marginal(reward, index)
    assert all(word in str(caught.value) for word in words), caught.value


# ---- measures ---------------------------------------------------------------------------------------------------------------


def test_measures_of_a_model_without_any_are_its_rewards(solution, over_time):
    found = solution.measures()
    assert list(found) == ["jobs", "phase", "cost", "both", "single", "signed", "large"]
    assert found["jobs"] == solution.expected("jobs")
    assert over_time.measures()["jobs"].shape == (3,)


def test_measures_of_the_builder_are_asked_for_once():
    calls = []

    def measures(solution):
        calls.append(solution)
        return {"load": solution.probability("jobs > 0")}

    model = chain(measures=measures)
    solution = ctmc.solve(Stationary(model), "gth")
    assert not calls
    first = solution.measures()
    assert first == {"load": pytest.approx(1 - solution.probability("jobs == 0"))}
    first["load"] = -1
    assert solution.measures()["load"] > 0
    assert "load" in repr(solution)
    assert calls == [solution]
    # over time the builder's measures make no sense
    assert "load" not in ctmc.solve(Transient(model, times=[1.0])).measures()


def test_flat_measures_and_their_format():
    flat = flat_measures({"a": np.float64(1.5), "b": [1, 2], "c": np.ones((2, 1))})
    assert flat == {"a": 1.5, "b[0]": 1.0, "b[1]": 2.0, "c[0,0]": 1.0, "c[1,0]": 1.0}
    assert format_measure(1 / 3) == "0.3333333333"
    assert format_measure(np.arange(13)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, .."


# ---- attributes and summaries -------------------------------------------------------------------------------------------------


def test_attributes(solution):
    assert (solution.iterations, solution.converged, solution.model_hash) == (0, True, None)
    assert solution.error_bound is None
    assert ctmc.solve(Stationary(chain().replace(content_hash="abc")), "gth").model_hash == "abc"


def test_every_status_has_one_sentence_of_advice():
    assert len(Status) == 8
    for status in Status:
        assert status.advice.endswith(".")
        assert status.advice.count(". ") == 0


def test_text_summary(solution, over_time):
    text = repr(solution)
    lines = text.splitlines()
    assert lines[0] == "Solution of Stationary"
    assert [line.split()[0] for line in lines[1:7]] == [
        "status",
        "defect",
        "solver",
        "iterations",
        "products",
        "seconds",
    ]
    assert "CONVERGED: the defect" in text
    assert f"{solution.expected('jobs'):.10g}" in text
    assert "error bound" in repr(over_time)
    assert "jobs" not in repr(over_time)


def test_summary_of_a_failure_has_no_measures():
    failed = ctmc.solve(Stationary(chain()), PowerIteration(max_iterations=1), check=False)
    assert "ITERATION_LIMIT" in repr(failed)
    assert "jobs" not in repr(failed)


def test_html_summary_is_escaped():
    evil = "<img src=x onerror=alert(1)>"
    space = Listed(np.arange(12)[:, None], (Variable("state"),))
    model = Generator.from_matrix(chain().to_scipy(), space, rewards={evil: Reward(np.ones(12))}, notes=(evil,))
    solution = ctmc.solve(Stationary(model), "gth")
    for shown in (solution, solution.problem, model):
        page = shown._repr_html_()
        assert page.startswith("<table>")
        assert "<img" not in page
    assert "&lt;img" in solution._repr_html_()
    assert "\x1b" not in repr(ctmc.solve(Stationary(model.replace(rewards={"\x1b[31m": Reward(np.ones(12))})), "gth"))
