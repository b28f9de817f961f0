"""Phase-type distributions: closed forms, dense matrix exponentials, stiff and cyclic chains, samples, bad input."""

import math

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.sparse import csr_array
from scipy.stats import kstest

import ctmc
from ctmc.model.phase_type import PhaseType


def erlang(stages: int, rate: float) -> PhaseType:
    place = np.arange(stages)
    steps = csr_array((np.full(stages - 1, rate), (place[:-1], place[1:])), shape=(stages, stages))
    return PhaseType(1.0 * (place == 0), steps, rate * (place == stages - 1))


def hyperexponential(weights, rates) -> PhaseType:
    return PhaseType(weights, np.zeros((len(rates),) * 2), rates)


def random_law(seed: int, n: int = 9, acyclic: bool = False) -> PhaseType:
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0, 2, (n, n)) * (rng.random((n, n)) < 0.4)
    rates = np.triu(rates, 1) if acyclic else rates
    shuffle = rng.permutation(n)
    initial = rng.dirichlet(np.ones(n)) * 0.9
    return PhaseType(initial, rates[np.ix_(shuffle, shuffle)], rng.uniform(0.05, 1, n), atom=0.1)


def subgenerator(law: PhaseType) -> np.ndarray:
    return law.rates.toarray() - np.diag(law.exit_rates)


@pytest.mark.parametrize("acyclic", [False, True])
@pytest.mark.parametrize("seed", [401, 402, 403, 404])
def test_against_dense_matrix_functions(seed, acyclic):
    law = random_law(seed, acyclic=acyclic)
    t = subgenerator(law)
    inverse, ones = np.linalg.inv(-t), np.ones(law.size)
    moments = [math.factorial(k) * law.initial @ np.linalg.matrix_power(inverse, k) @ ones for k in (1, 2, 3)]
    assert [law.moment(k) for k in (1, 2, 3)] == pytest.approx(moments, rel=1e-12)
    assert law.variance == pytest.approx(moments[1] - moments[0] ** 2, rel=1e-12)
    times = np.array([[0.0, 0.3], [1.7, 9.0]])
    left = np.array([[law.initial @ expm(t * time) @ ones for time in row] for row in times])
    np.testing.assert_allclose(law.survival(times), left, rtol=1e-12)
    np.testing.assert_allclose(law.cdf(times), 1 - left, rtol=1e-12)
    slopes = [law.initial @ expm(t * time) @ law.absorption for time in times.ravel()]
    np.testing.assert_allclose(law.density(times).ravel(), slopes, rtol=1e-12)


@pytest.mark.parametrize("stages", [1, 3, 40])
def test_erlang(stages):
    law = erlang(stages, 2.5)
    assert law.mean == pytest.approx(stages / 2.5, rel=1e-14)
    assert law.variance == pytest.approx(stages / 2.5**2, rel=1e-14)


def test_both_tails_are_right_relative_to_their_own_size():
    law = erlang(3, 1.0)
    far = 60.0
    assert law.survival(far) == pytest.approx(math.exp(-far) * (1 + far + far**2 / 2), rel=1e-12, abs=0)
    near = 1e-6
    assert law.cdf(near) == pytest.approx(near**3 / 6 * (1 - 3 * near / 4), rel=1e-11, abs=0)
    assert law.cdf([-1.0, math.inf]).tolist() == [0.0, 1.0]
    assert law.survival([-1.0, math.inf]).tolist() == [1.0, 0.0]


def test_mean_of_a_cycle_that_is_hardly_ever_left():
    # ordinary elimination would lose the exit rate 1e-18 beside the rates of the cycle
    law = PhaseType([1, 0], [[0, 1.0], [1.0, 0]], [0, 1e-18])
    assert law.mean == pytest.approx(2e18 + 1, rel=1e-14)


def test_variance_without_cancellation():
    # nearly certain: the second moment less the squared mean would lose five digits
    assert erlang(100_000, 1e5).variance == pytest.approx(1e-5, rel=1e-11)


@pytest.mark.parametrize("p", [0.0, 1e-12, 0.2, 0.5, 0.95, 0.999999, 1 - 1e-13])
def test_quantiles_of_the_exponential(p):
    assert erlang(1, 3.0).quantile(p) == pytest.approx(-math.log1p(-p) / 3, rel=1e-14)


@pytest.mark.parametrize("seed", [411, 412])
def test_quantiles_invert_the_distribution_function(seed):
    law = random_law(seed)
    levels = np.array([[0.05, 0.1, 0.11], [0.5, 0.9, 0.99999]])
    found = law.quantile(levels)
    assert found[0, :2].tolist() == [0.0, 0.0]  # the atom
    np.testing.assert_allclose(law.cdf(found.ravel()[2:]), levels.ravel()[2:], rtol=1e-14)


def test_quantiles_where_the_density_hardly_moves():
    law = hyperexponential([0.5, 0.5], [40.0, 1e-2])
    for level in (0.25, 0.4999, 0.5, 0.5001, 0.75):
        time = law.quantile(level)
        exact = 0.5 * math.exp(-40 * time) + 0.5 * math.exp(-1e-2 * time)
        assert exact == pytest.approx(1 - level, rel=1e-9)


def test_mixture():
    parts = [erlang(2, 1.0), random_law(421)]
    both = PhaseType.mixture([3, 1], parts)
    assert both.atom == pytest.approx(0.025)
    for power in (1, 2):
        expected = 0.75 * parts[0].moment(power) + 0.25 * parts[1].moment(power)
        assert both.moment(power) == pytest.approx(expected, rel=1e-13)
    assert both.cdf(2.0) == pytest.approx(0.75 * parts[0].cdf(2.0) + 0.25 * parts[1].cdf(2.0), rel=1e-13)


@pytest.mark.parametrize("law", [random_law(431), random_law(432, 30, acyclic=True), erlang(4, 2.0)])
def test_samples_have_the_distribution(law):
    sample = law.sample(20_000, seed=433)
    at_once = (sample == 0).mean()
    assert abs(at_once - law.atom) < 4 * math.sqrt(law.atom * (1 - law.atom) / 20_000) + 1e-12
    assert kstest(sample[sample > 0], lambda t: (law.cdf(t) - law.atom) / (1 - law.atom)).pvalue > 1e-3
    assert law.sample(5, seed=434).tolist() == law.sample(5, seed=434).tolist()


GOOD = {"initial": [1.0, 0.0], "rates": [[0, 1.0], [0, 0]], "absorption": [0, 2.0]}
BAD = [
    ({"initial": [0.5, 0.4]}, "initial and atom sum to 0.9"),
    ({"initial": [1.5, -0.5]}, "initial has the value -0.5"),
    ({"absorption": [0, math.inf]}, "absorption has the value inf"),
    ({"absorption": [1.0]}, "absorption has 1 numbers"),
    ({"rates": [[0, -1.0], [0, 0]]}, "rates has the entry -1.0"),
    ({"rates": [[0.0]]}, "rates has the shape"),
    ({"rates": "fast"}, "rates is 'fast'"),
    ({"atom": 2}, "atom is 2"),
    ({"absorption": [1.0, 0.0]}, "state 1 never leads to absorption"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_bad_input(change, sentence):
    with pytest.raises(ctmc.ModelError) as caught:
        PhaseType(**{**GOOD, **change})
    assert str(caught.value).startswith(sentence)
    assert "allowed" in str(caught.value)


def test_bad_questions():
    law = erlang(2, 1.0)
    for wrong in (1.0, -0.1, math.nan):
        with pytest.raises(ctmc.ModelError, match=r"p is .*; allowed"):
            law.quantile(wrong)
    with pytest.raises(ctmc.ModelError, match="order is 0"):
        law.moment(0)
    with pytest.raises(ctmc.ModelError, match="times has the value nan"):
        law.cdf(math.nan)
    with pytest.raises(ctmc.ModelError, match=r"steps of the uniformized chain; allowed"):
        law.cdf(1e12)
