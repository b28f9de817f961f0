"""The certificate of answers over time: right ones pass, every kind of wrong one is found."""

import math

import numpy as np
import pytest
from scipy.linalg import expm

from ctmc.evolution import evolutions, rounding_floor
from ctmc.model.generator import Generator
from ctmc.model.reward import Reward
from ctmc.problem import AccumulatedReward, Transient
from ctmc.solution import Status
from ctmc.witness import UselessAnswerError, Witness

TIMES = [0.0, 0.5, 3.0]
WALK = np.array([[0, 1.0, 0.5], [2.0, 0, 0.0], [0.3, 1.0, 0]])
CHAIN = Generator.from_matrix(WALK, rewards={"cost": Reward(np.array([1.0, -2.0, 5.0]))})
OVER_TIME = Transient(CHAIN, initial=(0,), times=TIMES)


def exact(problem):
    """y and its integral at each time, from one exponential of the dense equation beside an identity."""
    (evolution,) = evolutions(problem)
    size = evolution.start.size
    columns = np.array([evolution.change(unit.reshape(evolution.start.shape)).ravel() for unit in np.eye(size)])
    double = np.zeros((2 * size, 2 * size))  # row vectors: y' = y columns
    double[:size, :size], double[:size, size:] = columns, np.eye(size)
    found = [evolution.start.ravel() @ expm(double * time)[:size] for time in problem.times]
    return np.array([row[:size] for row in found]), np.array([row[size:] for row in found])


def witnessed(problem, values, integrals, error=None):
    (evolution,) = evolutions(problem)
    witness = Witness(evolution)
    shape = evolution.start.shape
    try:
        for k, (y, integral) in enumerate(zip(values, integrals, strict=True)):
            given = [
                np.asarray(a).reshape(shape) if np.size(a) == np.prod(shape) else np.asarray(a) for a in (y, integral)
            ]
            witness.reached(k, *given, error)
    except UselessAnswerError:
        pass
    return witness.certificate()


P, L = exact(OVER_TIME)


def test_right_distributions_over_time():
    proof = witnessed(OVER_TIME, P, L, 1e-14)
    assert proof.status is Status.CONVERGED
    assert proof.defect < 1e-14
    assert proof.error_bound == 1e-14 + rounding_floor(CHAIN.uniformization_rate, TIMES[-1])  # rounding is on top
    assert witnessed(OVER_TIME, P, L).error_bound is None  # nothing was proven


def off(array, place, amount):
    array = array.copy()
    array[place] += amount
    return array


def shifted(array, amount):
    """Mass moved from the first to the second state at the last time."""
    return off(off(array, (2, 0), -amount), (2, 1), amount)


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ((P[:2], L[:2]), Status.BREAKDOWN, "no answer for t = 3"),
        (([], []), Status.BREAKDOWN, "no answer for t = 0"),
        ((P, L[:, :2]), Status.BREAKDOWN, "shape (2,)"),
        ((P.astype(np.float32), L), Status.BREAKDOWN, "float32"),
        ((P * np.nan, L), Status.NOT_FINITE, "3 entries"),
        ((P, off(L, (1, 1), np.inf)), Status.NOT_FINITE, "1 entries"),
        ((off(P, (1, 0), 1e-9), L), Status.INACCURATE, "total probability is off 1 by 1e-09"),
        ((shifted(P, 0.9), L), Status.INACCURATE, "entry 0 is -"),
        ((shifted(P, 1e-9), L), Status.INACCURATE, "recomputed defect 2e-09"),
        ((P[[0, 2, 1]], L), Status.INACCURATE, "recomputed defect"),
        ((P, off(L, (2, 2), 1e-8)), Status.INACCURATE, "the integral up to t = 3 has mass"),
        ((P, 0 * L), Status.INACCURATE, "the integral up to t = 0.5 has mass"),
        ((P, shifted(L, 1e-8)), Status.INACCURATE, "recomputed defect"),
        ((P, shifted(L, 3.0)), Status.INACCURATE, "entry 0 is -"),
        ((P, L, 2e-10), Status.INACCURATE, "own error bound 2e-10"),
        ((P, L, math.nan), Status.INACCURATE, "own error bound nan"),
        ((P, L, math.inf), Status.INACCURATE, "own error bound inf"),
    ],
)
def test_wrong_distributions_over_time(answer, status, words):
    proof = witnessed(OVER_TIME, *answer)
    assert proof.status is status
    assert words in proof.reason


def test_times_come_in_order():
    (evolution,) = evolutions(OVER_TIME)
    with pytest.raises(ValueError, match="time 1, where 0 is next"):
        Witness(evolution).reached(1, P[1:2], L[1:2])


def test_integrals_never_shrink():
    """Distributions that fit integrals which take time back from a state."""
    integrals = np.array([[0.5, 0, 0], [0.45, 0.1, 0.15]])
    p = np.array([np.array([1.0, 0, 0]) + CHAIN.forward(row) for row in integrals])
    assert p.min() >= 0
    proof = witnessed(Transient(CHAIN, initial=(0,), times=[0.5, 0.7]), p, integrals)
    assert proof.status is Status.INACCURATE
    assert "smaller than an earlier one" in proof.reason


def test_rounding_floor():
    """At rate x time = 1e9 nothing better than 2e-6 can be had, so that is what is asked, and what is told."""
    chain = Generator.from_matrix([[0, 1e6], [1e6, 0]])
    time = 1e3
    floor = rounding_floor(chain.uniformization_rate, time)
    assert floor == pytest.approx(8 * 2.0**-52 * 1e9)
    p, half = np.array([[0.5, 0.5]]), 0.5 * time
    integrals = np.array([[half + 0.25e-6, half - 0.25e-6]])
    problem = Transient(chain, initial=(0,), times=[time])
    proof = witnessed(problem, p + np.array([2e-7, -2e-7]), integrals, 1e-12)
    assert problem.tolerance < proof.defect < floor
    assert proof.status is Status.CONVERGED
    assert proof.error_bound == floor
    assert "rounding floor" in proof.reason
    assert witnessed(problem, p + np.array([2e-6, -2e-6]), integrals).status is Status.INACCURATE


EARNING = Generator.from_matrix(
    WALK, rewards={"pay": Reward(np.array([1.0, -2.0, 5.0]), impulse=np.array([1.0, 2.0, -1.0, 0.5, 3.0]))}
)


@pytest.mark.parametrize("initial", [(0,), None])
@pytest.mark.parametrize("time", [0.2, 6.0])
def test_couplings_amplify_no_more_than_they_are_said_to(initial, time):
    """||exp(A t)|| of the whole equation, from the dense matrix, in the norm of the equation."""
    (evolution,) = evolutions(AccumulatedReward(EARNING, "pay", initial, [time], 3))
    size = evolution.start.size
    images = np.array([evolution.change(unit.reshape(evolution.start.shape)).ravel() for unit in np.eye(size)])
    whole = expm(images * time)
    # rows of `whole` are the images of single units: forward those of mass 1, backward columns of the map
    norm = np.abs(whole).sum(axis=0 if evolution.backward else 1).max()
    assert 1.3 < norm <= evolution.amplification(time) < 20 * norm
    for part in (0.3 * time, 0.01 * time):
        dense = np.abs(expm(images * part))
        assert dense.sum(axis=0 if evolution.backward else 1).max() <= evolution.amplification(part)


@pytest.mark.parametrize("initial", [(0,), None])
@pytest.mark.parametrize("moments", [1, 2, 3])
@pytest.mark.parametrize("time", [0.01, 7.0])
def test_errors_cover_what_is_wrong_with_an_integral(initial, moments, time):
    """The integral off by time x error in any one place changes no number by more than is said, and some by a good part of it."""
    (evolution,) = evolutions(AccumulatedReward(EARNING, "pay", initial, [time], moments))
    reading, error, shape = evolution.reading, 1e-3, evolution.start.shape
    nothing = np.zeros(shape)
    plain = reading.read(nothing, nothing, time, evolution.backward)
    largest = np.zeros(moments)
    for place in np.ndindex(shape):
        wrong = nothing.copy()
        wrong[place] = time * error
        change = np.abs(reading.read(nothing, wrong, time, evolution.backward) - plain)
        largest = np.maximum(largest, change.max(axis=-1) if evolution.backward else change)
    said = reading.errors(error, time)
    assert (largest <= said * (1 + 1e-12)).all()
    assert (said <= 4 * largest).all()


@pytest.mark.parametrize("initial", [(0,), None])
@pytest.mark.parametrize("moments", [1, 2, 3])
def test_moments(initial, moments):
    """Every block of every moment counts, forwards and backwards."""
    problem = AccumulatedReward(CHAIN, "cost", initial, [0.7, 4.0], moments)
    y, integral = exact(problem)
    assert witnessed(problem, y, integral, 1e-13).status is Status.CONVERGED
    for place in range(y.shape[1]):
        wrong = y.copy()
        wrong[1, place] += 1e-8
        assert witnessed(problem, wrong, integral).status is Status.INACCURATE
        wrong = integral.copy()
        wrong[0, place] += 1e-8
        assert witnessed(problem, y, wrong).status is Status.INACCURATE
