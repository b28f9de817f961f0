"""Proven intervals against exact rational elimination: they may be wide, but never false."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction

import numpy as np
import pytest

import ctmc
from builders.supermarket import supermarket
from ctmc import interval, strict
from ctmc.cli import main
from ctmc.cli.options import CERTIFICATE_NAMES
from ctmc.interval import Interval, enclose, prove_interval
from ctmc.model.generator import Generator
from ctmc.model.qbd import QBD
from ctmc.solve import CERTIFICATES
from ctmc.storage import load_solution, save_solution


def exact_distribution(chain):
    """Elimination without a subtraction, in fractions: the rates are the stored numbers, the exit rates their sums."""
    n = chain.size
    rates = [[Fraction(0)] * n for _ in range(n)]
    for j in range(n):
        for k in range(chain.indptr[j], chain.indptr[j + 1]):
            rates[chain.sources[k]][j] = Fraction(float(chain.rates[k]))
    for k in range(n - 1, 0, -1):
        out = sum(rates[k][:k])
        for i in range(k):
            rates[i][k] /= out
            for j in range(k):
                if i != j:
                    rates[i][j] += rates[i][k] * rates[k][j]
    pi = [Fraction(1)]
    for k in range(1, n):
        pi.append(sum(pi[i] * rates[i][k] for i in range(k)))
    total = sum(pi)
    return [p / total for p in pi]


def exact_mean(chain, reward):
    return sum(p * Fraction(float(r)) for p, r in zip(exact_distribution(chain), reward, strict=True))


def contains(found, exact):
    return (found.low == -np.inf or Fraction(found.low) <= exact) and (
        found.high == np.inf or exact <= Fraction(found.high)
    )


def answer(chain, value=None):
    solution = ctmc.solve(ctmc.Stationary(chain), "gth", check=False)
    return solution if value is None else dataclasses.replace(solution, value=np.asarray(value, dtype=float))


def random_chain(rng, n, decades=0.0):
    rates = rng.random((n, n)) * 10 ** (decades * (rng.random((n, n)) - 0.5)) * (rng.random((n, n)) < 0.5)
    rates += np.roll(np.eye(n), 1, axis=1) * rng.random(n)[:, None]
    np.fill_diagonal(rates, 0)
    return Generator.from_matrix(rates)


def coupled(between=1e-14):
    """Two blocks of three states; the exact masses of the blocks are 1 : 3."""
    rates = np.zeros((6, 6))
    rates[:3, :3] = [[0, 1, 2], [3, 0, 1], [1, 1, 0]]
    rates[3:, 3:] = [[0, 2, 1], [1, 0, 1], [4, 1, 0]]
    rates[0, 3], rates[4, 1] = 3 * between, between
    return Generator.from_matrix(rates)


def heavy():
    return ctmc.build("birth_death", births=[0.999] * 60, deaths=[1.0] * 60)


HARD = {
    "coupled": coupled(),
    "coupled tightly": coupled(1e-9),
    "decades": random_chain(np.random.default_rng(3571), 9, decades=10),
    "heavy": heavy(),
    "failures": Generator.from_matrix([[-1e-6, 1e-6], [1e4, -1e4]]),
    "cycle": Generator.from_matrix(np.roll(np.eye(5), 1, axis=1) * [[1.0], [0.1], [0.7], [1e5], [1e-5]]),
}


# ---- the theorem --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(7300, 7312))
def test_any_vector_gives_an_interval_that_holds(seed):
    rng = np.random.default_rng(seed)
    for decades in (0.0, 10.0):
        chain = random_chain(rng, int(rng.integers(2, 8)), decades)
        reward = rng.standard_normal(chain.size) * 10.0 ** rng.integers(-3, 4)
        exact = exact_mean(chain, reward)
        for scale in (0.0, 1e-8, 1.0, 1e12, 1e300):
            assert contains(enclose(chain, reward, rng.standard_normal(chain.size) * scale), exact)


@pytest.mark.parametrize("seed", range(9210, 9216))
def test_rounding_is_added(seed):
    """With the h that solves the equation all that is left is rounding, which misses the exact value if left out."""
    rng = np.random.default_rng(seed)
    missed = 0
    for _ in range(6):
        chain = random_chain(rng, 6)
        reward = rng.standard_normal(6)
        exact = exact_mean(chain, reward)
        matrix = chain.to_scipy().toarray()
        h = np.linalg.lstsq(matrix, reward - float(exact), rcond=None)[0]
        found = enclose(chain, reward, h + 1e3)
        assert contains(found, exact)
        assert found.width < 1e-12
        value = reward - chain.backward(h)
        missed += not value.min() <= exact <= value.max()
    assert missed < 6  # most often rounding is of both signs


@pytest.mark.parametrize("sign", [1, -1])
def test_exit_rates_may_be_off_by_their_rounding(sign):
    """Exit rates that are given may be 1e-12 off; what is proven is about the exact sums of the rates."""
    bare = Generator.from_matrix([[-1, 1], [2, -2]])
    off = sign * np.array([8e-13, -8e-13])
    chain = Generator(bare.space, bare.transitions, bare.exit_rates * (1 + off))
    # h solves the equation of the bare chain; with these exit rates r - Q h is on one side of E[r] = 1 in both states
    found = enclose(chain, np.array([0.0, 3.0]), np.array([0.5, -0.5]))
    assert contains(found, Fraction(1))
    assert 1e-13 < found.width < 1e-11


def test_a_vector_that_is_no_number_proves_nothing():
    chain = heavy()
    for bad in (np.nan, np.inf, 1e308):
        h = np.zeros(chain.size)
        h[3], h[4] = bad, -bad
        assert enclose(chain, np.arange(float(chain.size)), h) == Interval(-np.inf, np.inf)


# ---- the Poisson equation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("method", ["elimination", "krylov"])
def test_hard_chains(name, method, monkeypatch):
    monkeypatch.setattr(interval, "SMALL", 3000 if method == "elimination" else 0)
    chain = HARD[name]
    rng = np.random.default_rng(611)
    solution = answer(chain)
    wrong = answer(chain, rng.random(chain.size))  # nothing that is proven comes from the answer
    for reward in (np.arange(float(chain.size)), np.eye(chain.size)[0], rng.standard_normal(chain.size)):
        exact = exact_mean(chain, reward)
        for one in (solution, wrong):
            found = prove_interval(one, reward)
            assert contains(found, exact)
            assert reward.min() <= found.low <= found.high <= reward.max()
        if name in ("heavy", "cycle", "failures") or (name == "decades" and method == "elimination"):
            assert prove_interval(solution, reward).width < 1e-7 * np.abs(reward).max()


def test_nearly_separate_parts_widen_the_interval_and_say_so():
    chain = coupled()
    found = {"state": prove_interval(answer(chain), "state")}
    assert contains(found["state"], exact_mean(chain, np.arange(6.0)))
    assert found["state"].width > 1e-6
    (note,) = strict.width_notes(found)
    assert "state is wider than 1e-06 of its value" in note
    assert strict.width_notes({"state": prove_interval(answer(heavy()), "jobs")}) == []


def test_the_limit_of_products_keeps_what_was_found(monkeypatch):
    monkeypatch.setattr(interval, "SMALL", 0)
    solution = answer(heavy())
    exact = exact_mean(heavy(), np.arange(61.0))
    widths = [prove_interval(solution, "jobs", largest_products=most).width for most in (1, 20, 20_000)]
    assert widths[0] > widths[2] < 1e-6
    assert all(contains(prove_interval(solution, "jobs", largest_products=most), exact) for most in (1, 20))


def test_krylov_and_elimination_agree(monkeypatch):
    model = supermarket([3.0, 2.0, 1.0], 4.8, 2, 12)
    solution = ctmc.solve(ctmc.Stationary(model), "gth")
    first = {name: prove_interval(solution, name) for name in ("jobs", "loss_rate", "queue_length[1]")}
    monkeypatch.setattr(interval, "SMALL", 0)
    for name, one in first.items():
        other = prove_interval(solution, name)
        assert max(one.low, other.low) <= min(one.high, other.high)
        assert max(one.relative_width, other.relative_width) < 1e-8


# ---- classes ------------------------------------------------------------------------------------------------------------


def test_transient_states_are_left_out():
    chain = Generator.from_matrix([[0, 1.0, 0, 0.5], [0, 0, 2, 0], [0, 1, 0, 0], [1, 0, 0, 0]])
    found = prove_interval(answer(chain), np.array([1e9, 0.0, 3.0, -1e9]))
    assert contains(found, Fraction(2))
    assert found.width < 1e-13


def test_several_classes_are_mixed_by_a_start_inside_of_them():
    chain = Generator.from_matrix([[0, 1.0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0], [0.5, 0, 1, 0]])
    reward = np.array([0.0, 3.0, 10.0, 99.0])  # means of the classes: 1 and 10

    def solved(start):
        return ctmc.solve(ctmc.Stationary(chain, initial=start), "gth")

    mixed = prove_interval(solved({(0,): 0.25, (2,): 0.75}), reward)
    assert contains(mixed, Fraction(31, 4))
    assert mixed.width < 1e-12
    assert prove_interval(solved((2,)), reward).width < 1e-12
    with pytest.raises(ctmc.ReducibleError, match=r"transient state 3 \(3,\) and has 2 recurrent classes") as caught:
        prove_interval(solved((3,)), reward)
    assert "\n" not in str(caught.value)
    with pytest.raises(ctmc.ReducibleError, match="transient state"):
        ctmc.solve(ctmc.Stationary(chain, initial=(3,)), certify="strict")
    with pytest.raises(ctmc.ReducibleError, match="depends on the start"):
        prove_interval(dataclasses.replace(solved((2,)), problem=ctmc.Stationary(chain)), reward)


def test_one_state():
    assert prove_interval(answer(Generator.from_matrix([[0.0]])), np.array([2.5])) == Interval(2.5, 2.5)


# ---- answers with intervals ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return supermarket([3.0, 2.0, 1.0], 3.0, 2, 6, [0.2, 0.3, 0.5])


def test_strict_solve_proves_what_the_measures_need(model):
    plain = ctmc.solve(ctmc.Stationary(model), "gth")
    assert plain.intervals == {}
    solution = ctmc.solve(ctmc.Stationary(model), "gth", certify="strict")
    measures = ctmc.solution.flat_measures(solution.measures())
    assert set(measures) <= set(solution.intervals)
    for name, value in measures.items():
        found = solution.intervals[name]
        assert found.low - 1e-14 <= value <= found.high + 1e-14  # the value itself has its own rounding
        assert found.width <= 1e-8 * value + 1e-15
    assert solution.products > plain.products
    assert "proven jobs" in repr(solution)


def test_named_rewards_and_the_measures_that_follow(model):
    solution = ctmc.solve(ctmc.Stationary(model), "gth", certify="strict", rewards=["jobs", "queue_length[1]"])
    assert sorted(solution.intervals) == ["jobs", "queue_length[1]"]
    solution = ctmc.solve(ctmc.Stationary(model), "gth", certify="strict", rewards=["loss_rate", "idle"])
    assert sorted(solution.intervals) == [
        "blocking_probability", "idle[0]", "idle[1]", "idle[2]", "loss_rate", "throughput"
    ]  # fmt: skip
    assert "utilization[2]" in ctmc.solve(ctmc.Stationary(model), certify="strict", rewards=["utilization"]).intervals


def test_many_components_need_names():
    model = supermarket([1.0] * 6, 4.0, 2, 1)
    found = ctmc.solve(ctmc.Stationary(model), certify="strict").intervals
    assert "jobs" in found
    assert "queue_length[5]" in found
    assert "loss_flow[0]" not in found


def test_what_cannot_be_proven_is_said_before_the_solve(model):
    for given, error, sentence in [
        ({"certify": "strickt"}, ctmc.UnknownNameError, "did you mean 'strict'"),
        ({"rewards": ["jobs"]}, ctmc.ModelError, "allowed are rewards with 'strict'"),
        ({"certify": "strict", "rewards": ["jobz"]}, ctmc.UnknownNameError, "'jobs'"),
        ({"certify": "strict", "rewards": ["queue_length[3]"]}, ctmc.ModelError, "allowed is 0 to 2"),
        ({"certify": "strict", "rewards": ["jobs[0]"]}, ctmc.ModelError, "allowed is none"),
    ]:
        with pytest.raises(error, match=sentence):
            ctmc.solve(ctmc.Stationary(model), **given)
    queue = QBD.from_blocks([[0.6]], [[-1.6]], [[1.0]])
    with pytest.raises(ctmc.UnsupportedProblemError, match=r"queue.truncate"):
        ctmc.solve(ctmc.Stationary(queue), certify="strict")
    with pytest.raises(ctmc.UnsupportedProblemError, match="Transient"):
        ctmc.solve(ctmc.Transient(model, times=[1.0]), certify="strict")
    solution = ctmc.solve(ctmc.Stationary(model), "gth")
    for arguments, sentence in [
        (("queue_length",), "give index=0 to 2"), (("queue_length", 3), "allowed is 0 to 2"), (("jobs", 0), "allowed is none"),
        ((np.zeros(4),), r"shape \(4,\)"), ((np.full(model.size, np.nan),), "all finite"),
    ]:  # fmt: skip
        with pytest.raises(ctmc.ModelError, match=sentence):
            prove_interval(solution, *arguments)
    assert tuple(CERTIFICATE_NAMES) == CERTIFICATES


def test_measures_that_compare_have_no_interval():
    def measures(solution):
        jobs = solution.expected("jobs")
        return {"load": jobs / 2 if jobs > 0 else 0.0}

    chain = heavy().replace(measures=measures)
    found = ctmc.solve(ctmc.Stationary(chain), certify="strict").intervals
    assert "load" not in found
    assert "jobs" in found
    other = heavy().replace(
        measures=lambda s: {"load": 1 - s.expected("jobs") * 0.5, "x": np.float64(2) / s.expected("jobs")}
    )
    found = ctmc.solve(ctmc.Stationary(other), certify="strict").intervals
    exact = exact_mean(other, np.arange(61.0))
    assert contains(found["load"], 1 - exact / 2)
    assert contains(found["x"], 2 / exact)
    assert found["load"].width < 1e-7


@pytest.mark.parametrize("seed", range(3310, 3314))
def test_arithmetic_encloses(seed):
    rng = np.random.default_rng(seed)
    for _ in range(200):
        ends = np.sort(rng.standard_normal((2, 2)) * 10.0 ** rng.integers(-8, 8, (2, 1)), axis=1)
        a, b = (strict._Uncertain(*pair) for pair in ends.tolist())
        x, y = (Fraction(low) + (Fraction(high) - Fraction(low)) * Fraction(int(rng.integers(0, 9)), 8)
                for low, high in ends.tolist())  # fmt: skip
        for found, exact in [(a + b, x + y), (a - b, x - y), (a * b, x * y), (2.5 - a, Fraction(5, 2) - x), (-a, -x),
                             (a / b, x / y if y else None), (3.0 / b, 3 / y if y else None)]:  # fmt: skip
            if exact is not None:
                assert contains(Interval(found.low, found.high), exact)
    for question in (lambda: bool(a), lambda: a == b, lambda: a > b, lambda: float(a), lambda: a + "b"):
        with pytest.raises(TypeError):
            question()


def test_intervals_are_stored(model, tmp_path):
    ctmc.save(tmp_path / "m.h5", model)
    solution = ctmc.solve(ctmc.Stationary(model), "gth", certify="strict", rewards=["jobs"])
    assert load_solution(save_solution(tmp_path / "m.h5", solution)).intervals == solution.intervals
    plain = ctmc.solve(ctmc.Stationary(model), "gth")
    assert load_solution(save_solution(tmp_path / "m.h5", plain, "plain")).intervals == {}
    swapped = dataclasses.replace(solution, intervals={"jobs": Interval(2.0, 1.0)})
    with pytest.raises(ctmc.StorageError, match="two numbers in order"):
        load_solution(save_solution(tmp_path / "m.h5", swapped, "swapped"))


def test_command_line(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    ctmc.save("m.h5", model)
    assert main(["solve", "m.h5", "--certify", "strict", "--reward", "jobs"]) == 0
    text = capsys.readouterr().out
    head = next(line for line in text.splitlines() if line.startswith("measure"))
    assert head.split() == ["measure", "value", "low", "high", "width"]
    row = next(line for line in text.splitlines() if line.startswith("jobs"))
    assert len(row.split()) == 5
    assert float(row.split()[-1]) < 1e-9
    assert main(["solve", "m.h5", "--certify", "strict", "--reward", "jobs", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = document["intervals"]["jobs"]
    assert found["low"] <= document["measures"]["jobs"] <= found["high"]
    assert main(["solve", "m.h5", "--certify", "strict", "--csv", "--no-save"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "measure,value,low,high,width"
    assert main(["solve", "m.h5", "--json"]) == 0
    assert "intervals" not in json.loads(capsys.readouterr().out)
    assert main(["solve", "m.h5", "--certify", "strictly"]) == 2
    assert "did you mean 'strict'" in capsys.readouterr().err
