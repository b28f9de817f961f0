"""QBDs whose blocks depend on the level: against closed forms, elimination on the truncation and logarithmic reduction."""

import itertools
import math

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import poisson

import ctmc
from ctmc import LevelDependentQBD, LevelDistribution, Outcome, Stationary, Status
from ctmc.certificate import certify
from ctmc.errors import ModelError, ReducibleError, SolveError
from ctmc.model import level_dependent
from ctmc.model.elimination import gth
from ctmc.model.level_dependent import mass_beyond
from ctmc.model.state_space import Variable
from ctmc.storage.solutions import save_solution
from solvers.qbd.level_dependent import LevelDependent


def birth_death(birth, death):
    """One phase per level, rates by functions of the level."""

    def blocks(k):
        fall = death(k) if k else 0.0
        return ([[fall]] if k else None), [[-birth(k) - fall]], [[birth(k)]]

    return LevelDependentQBD(blocks)


def infinitely_many_servers(arrival_rate):
    return birth_death(lambda k: arrival_rate, lambda k: float(k))


def retrials(servers, arrival_rate, retrial_rate, **known):
    """M/M/c with classical retrials: level = customers in orbit, phase = busy servers, service rate 1."""

    def blocks(orbit):
        down, up = np.zeros((servers + 1,) * 2), np.zeros((servers + 1,) * 2)
        down[range(servers), range(1, servers + 1)] = orbit * retrial_rate
        up[servers, servers] = arrival_rate
        local = np.diag(np.full(servers, arrival_rate), 1) + np.diag(np.arange(1.0, servers + 1), -1)
        local -= np.diag((down + local + up).sum(axis=1))
        return (csr_array(down) if orbit else None), local, up

    return LevelDependentQBD(blocks, **known)


@pytest.mark.parametrize("mean", [0.01, 3.0, pytest.param(1200.0, marks=pytest.mark.slow)])
def test_infinitely_many_servers_are_poisson(mean):
    """Mean 1200: level 0 has the probability e^-1200, which no floating-point number is."""
    solution = ctmc.solve(Stationary(infinitely_many_servers(mean)))
    assert solution.solver.startswith("LevelDependent(")
    known = poisson.pmf(np.arange(len(solution.value.levels)), mean)
    found = np.concatenate(solution.value.levels)
    np.testing.assert_allclose(found, known, rtol=2e-11, atol=1e-16)  # the known ones have rounding of k log(mean)
    assert solution.value.mean_level == pytest.approx(mean, rel=1e-12)
    assert solution.value.mass == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize(("load", "retrial_rate"), [(0.3, 0.05), (0.7, 1.0), (0.9, 20.0)])
def test_one_server_with_retrials(load, retrial_rate):
    """Falin and Templeton, Retrial Queues, 1997, section 1.2: mean orbit load (lambda + load mu) / ((1 - load) mu)."""
    solution = ctmc.solve(Stationary(retrials(1, load, retrial_rate)))
    mean = load * (load + load * retrial_rate) / ((1 - load) * retrial_rate)
    assert solution.expected("level") == pytest.approx(mean, rel=1e-11)
    assert solution.value.mean_level == pytest.approx(mean, rel=1e-11)
    assert solution.probability("phase == 1") == pytest.approx(load, abs=1e-13)
    assert solution.value.level(0)[0] == pytest.approx((1 - load) ** (1 + load / retrial_rate), rel=1e-11)
    assert solution.probability("level >= 3") == pytest.approx(solution.value.tail(3), rel=1e-12)
    np.testing.assert_allclose(solution.marginal("level"), solution.value.masses, rtol=1e-14)


def test_three_servers_with_retrials_agree_with_elimination():
    queue = retrials(3, 2.0, 0.4)
    solution = ctmc.solve(Stationary(queue))
    chain = queue.truncate(150)
    known = gth(chain.to_scipy().toarray())
    found = np.concatenate(solution.value.levels)
    np.testing.assert_allclose(found[:200], known[:200], rtol=1e-11)
    assert chain.space.variables == queue.variables
    assert ctmc.solve(Stationary(chain), "gth").expected("level") == pytest.approx(
        solution.expected("level"), rel=1e-11
    )
    assert solution.probability("phase == 3") == pytest.approx(known[3::4].sum(), rel=1e-11)


def test_blocks_that_do_not_depend_on_the_level_agree_with_logarithmic_reduction():
    """Phases 1e6 apart in speed, and a level 0 with fewer phases."""
    up, down = np.diag([0.5, 1.5, 0.1]), np.diag([2.0, 1.8, 1.0])
    switch = np.array([[0, 1e-3, 0], [5.0, 0, 1e3], [0, 1e2, 0]])
    local = switch - np.diag((up + down + switch).sum(axis=1))
    first = (None, [[-0.7]], [[0.2, 0.4, 0.1]])
    fall = down.sum(axis=1, keepdims=True)
    second = (fall, local, up)
    known = ctmc.solve(Stationary(ctmc.QBD.from_blocks(up, local, down, [first, second]))).value
    queue = LevelDependentQBD(lambda k: first if k == 0 else second if k == 1 else (down, local, up))
    answer = ctmc.solve(Stationary(queue)).value
    for k in range(20):
        np.testing.assert_allclose(answer.level(k), known.level(k), rtol=1e-11)
    assert answer.mean_level == pytest.approx(known.mean_level, rel=1e-10)
    assert answer.quantile(0.999) == known.quantile(0.999)
    last = len(answer.levels)
    assert known.tail(last) <= answer.beyond < 1e-12


@pytest.mark.parametrize(
    ("birth", "death"),
    [
        (lambda k: 2.0, lambda k: 1.0),
        (lambda k: 1.0, lambda k: 1.0),  # null recurrent
        (lambda k: 2 * 4.0**k, lambda k: 4.0**k),  # explosive, although the balance equations have a summable solution
    ],
    ids=["transient", "null recurrent", "explosive"],
)
def test_without_a_stationary_distribution_nothing_converges(birth, death):
    with pytest.raises(SolveError, match=r"ITERATION_LIMIT, the .*mass beyond level 400 is about") as caught:
        ctmc.solve(Stationary(birth_death(birth, death)), LevelDependent(max_levels=400))
    assert not caught.value.solution.converged
    assert len(caught.value.solution.value.levels) == 401


def test_the_mass_beyond_is_told_where_masses_fall_slowly():
    """pi_k is proportional to 1 / (k + 1)^3: beyond 1000 levels there are 4e-7, and 1e-12 is out of reach."""
    queue = birth_death(lambda k: float(k + 1), lambda k: (k + 1.0) ** 3 / k**2)
    solution = ctmc.solve(Stationary(queue), LevelDependent(max_levels=1000), check=False)
    assert solution.status is Status.ITERATION_LIMIT
    assert "mass beyond level 1000 is about 1.8e-07" in solution.reason
    k = np.arange(1.0, 2e6)
    known = (k[1001:] ** -3).sum() / (k**-3.0).sum()
    assert known / 3 < solution.value.beyond < known  # killing above level 1000 has made the last masses smaller


def test_the_estimate_of_the_mass_beyond():
    assert mass_beyond(np.ones(100)) == 1.0
    assert mass_beyond(np.array([1.0])) == 1.0
    assert mass_beyond(np.array([1.0, 0, 0, 0, 0, 0])) == 0.0
    for load in (0.5, 0.9, 0.99):
        masses = (1 - load) * load ** np.arange(4000)
        for levels in (50, 400, 2000):
            assert load**levels <= mass_beyond(masses[:levels]) or load**levels < 1e-300
    assert mass_beyond(0.5 ** np.arange(1, 101)) < 1e-21


BAD = [
    (lambda k: (None if k == 0 else [[1.0]], [[-2.0]], [[1.0]]) if k != 0 else (None, [[-1.0]], [[1.0]]), None),
    (lambda k: (None if k == 0 else [[1.0]], [[-1.0 - (0 < k < 5)]], [[1.0]]), "row 0 of the blocks of level 5 sums"),
    (lambda k: (None if k == 0 else [[1.0 - 2 * (k == 3)]], [[-1.0 - (k > 0)]], [[1.0]]), "down of level 3 has the rate -1"),
    (lambda k: (None if k == 0 else [[1.0]], [[-1.0 - (k > 0)]], [[0.5] * 2 if k == 2 else [1.0]]), "blocks of level 3 have shapes"),
    (lambda k: (None if k == 0 else [[1.0]], [[-1.0 - (k > 0)]], [[1.0]] * (1 + (k == 2))), "blocks of level 2 have shapes"),
    (lambda k: (None, [[-1.0]], [[1.0]]), "down of level 1 is None"),
    (lambda k: ([[1.0]], [[-2.0]], [[1.0]]), "down of level 0 is given"),
    (lambda k: (None if k == 0 else [[math.nan]], [[-1.0]], [[1.0]]), "down of level 1 has the entry nan"),
    (lambda k: (None, [[-1.0]], [["x"]]), "up of level 0 is .*'x'"),
    (lambda k: (None, [[-1.0]]), r"blocks\(0\) is .*allowed are the blocks"),
    (lambda k: [None, [[-1.0]], [[1.0]]] if k < 1 else {}[k], r"blocks\(1\) raised KeyError: 1"),
]  # fmt: skip


@pytest.mark.parametrize(("blocks", "sentence"), BAD)
def test_bad_blocks_name_the_level(blocks, sentence):
    queue = LevelDependentQBD(blocks)
    if sentence is None:
        assert queue.truncate(6).size == 6
        return
    with pytest.raises(ModelError, match=sentence):
        queue.truncate(6)
    with pytest.raises(ModelError, match=sentence):
        ctmc.solve(Stationary(LevelDependentQBD(blocks)))


def test_a_level_that_cannot_be_left_is_named():
    trap = csr_array((2, 2))
    local, up = np.array([[-2.0, 1.0], [0, 0]]), np.diag([1.0, 0])

    def blocks(k):
        return (None, [[-1.0]], [[1.0, 0]]) if k == 0 else (([[0.0], [0]] if k == 1 else trap), local, up)

    with pytest.raises(ModelError, match="at level 32, phase 1 and those that it leads to are never left"):
        ctmc.solve(Stationary(LevelDependentQBD(blocks)))


def test_phases_that_are_only_left_upwards_do_no_harm():
    """Dropping the steps up would make the second phase of the last level absorbing."""
    down, up = np.array([[3.0, 0], [0, 0]]), np.array([[0, 0], [1.0, 0]])
    local = np.array([[-4.0, 1.0], [0, -1.0]])
    first = (None, [[-1.0, 1.0], [0, -1.0]], up)
    queue = LevelDependentQBD(lambda k: first if k == 0 else (down, local, up))
    known = ctmc.solve(Stationary(ctmc.QBD.from_blocks(up, local, down, [first]))).value
    answer = ctmc.solve(Stationary(queue)).value
    np.testing.assert_allclose(np.array(answer.levels[:15]), [known.level(k) for k in range(15)], rtol=1e-12)


def test_two_recurrent_classes_are_refused():
    eye = np.eye(2)
    queue = LevelDependentQBD(lambda k: (None if k == 0 else 2 * eye, -(3.0 - 2 * (k == 0)) * eye, eye))
    with pytest.raises(ReducibleError, match="watched on level 0"):
        ctmc.solve(Stationary(queue))


def test_the_certificate_sees_through_wrong_answers():
    problem = Stationary(retrials(2, 1.0, 0.5))
    right = ctmc.solve(problem).value
    assert certify(problem, Outcome(right)).status is Status.CONVERGED
    assert "over levels 0 to" in certify(problem, Outcome(right)).reason
    assert "mass beyond is about" in certify(problem, Outcome(right)).reason

    def verdict(levels):
        return certify(problem, Outcome(LevelDistribution(tuple(np.array(vector) for vector in levels))))

    turned = [right.levels[0][::-1], *right.levels[1:]]
    assert verdict(turned).defect > 0.01
    assert verdict(turned).status is Status.INACCURATE
    assert "off 1 by" in verdict([2 * vector for vector in right.levels]).reason
    negative = [np.array(vector) for vector in right.levels]
    negative[-1][:2] += [-1e-14, 1e-14]
    assert "allowed are numbers >= 0" in verdict(negative).reason
    assert verdict(right.levels[:1]).status is Status.INACCURATE
    assert verdict([*right.levels[:-1], np.ones(2)]).status is Status.BREAKDOWN
    assert verdict([*right.levels[:-1], np.full(3, np.nan)]).status is Status.NOT_FINITE
    assert certify(problem, Outcome(np.ones(3))).status is Status.BREAKDOWN
    assert certify(problem, Outcome(LevelDistribution(()))).status is Status.BREAKDOWN


def test_the_flow_over_the_cut_counts():
    """The exact answer of the chain cut at level 8: all its levels balance but for what would leave the last."""
    queue = infinitely_many_servers(1.0)
    pi = gth(queue.truncate(9).to_scipy().toarray())
    answer = LevelDistribution(tuple(pi[:, None]))
    proof = certify(Stationary(queue, tolerance=1e-2), Outcome(answer))
    assert proof.defect == pytest.approx(2 * pi[8] / (pi @ (1 + np.arange(9))), rel=1e-9)
    assert certify(Stationary(queue, tolerance=1e-7), Outcome(answer)).status is Status.INACCURATE


def test_mass_that_does_not_fall_is_refused_however_small_the_defect():
    """Rates 2^-k: next to nothing flows over the cut, yet all levels have the same mass."""
    queue = birth_death(lambda k: 0.5**k, lambda k: 0.5 ** (k - 1))
    proof = certify(Stationary(queue), Outcome(LevelDistribution((np.array([0.01]),) * 100)))
    assert proof.defect < 1e-12
    assert proof.status is Status.INACCURATE
    assert "mass beyond level 99 is about 1 " in proof.reason


def test_slow_exchange_is_looked_for():
    """Two parts of every level that hardly exchange anything: wrong weights balance to 1e-13."""
    slow = 1e-13
    local = np.array([[-3.0 - slow, slow], [2 * slow, -3.0 - 2 * slow]])
    queue = LevelDependentQBD(
        lambda k: (None if k == 0 else 2 * np.eye(2), local + 2 * (k == 0) * np.eye(2), np.eye(2))
    )
    answer = ctmc.solve(Stationary(queue)).value
    np.testing.assert_allclose(answer.level(0), [1 / 3, 1 / 6], rtol=1e-9)
    wrong = LevelDistribution(tuple(np.full(2, vector.sum() / 2) for vector in answer.levels))
    proof = certify(Stationary(queue), Outcome(wrong))
    assert proof.defect < 1e-12
    assert proof.status is Status.INACCURATE


def test_states_rewards_and_slabs(monkeypatch):
    queue = retrials(
        2, 1.0, 0.5, phases=lambda k: [0, 1, 2], variables=(Variable("orbit"), Variable("busy")),
        rewards={"customers": ctmc.Reward(lambda states: states.sum(axis=1))},
    )  # fmt: skip
    solution = ctmc.solve(Stationary(queue))
    assert solution.expected("busy") == pytest.approx(1.0, abs=1e-12)  # offered load
    assert solution.measures()["customers"] == pytest.approx(1 + solution.value.mean_level, rel=1e-12)
    monkeypatch.setattr(level_dependent, "SLAB", 7)
    places = [(place.start, place.stop, len(weights)) for place, _, weights in queue.weighted_slabs(solution.value)]
    assert places[0] == (0, 9, 9)
    assert all(stop == after for (_, stop, _), (after, _, _) in itertools.pairwise(places))
    assert places[-1][1] == 3 * len(solution.value.levels)
    again = ctmc.solve(Stationary(queue))
    assert again.expected("customers") == pytest.approx(solution.expected("customers"), rel=1e-13)
    assert "orbit, busy" in repr(queue)
    assert "mass beyond" in repr(solution.value)
    renamed = queue.replace(variables=(Variable("level"), Variable("phase")))
    assert set(renamed.all_rewards) == {"level", "phase", "customers"}
    assert renamed.replace(blocks=infinitely_many_servers(1.0).blocks).level(0).local.shape == (1, 1)
    with pytest.raises(ModelError, match=r"phases of level 0 have shape \(2,\)"):
        queue.replace(phases=lambda k: [0, 1]).truncate(2)


def test_a_function_cannot_be_stored(tmp_path):
    queue = infinitely_many_servers(1.0)
    with pytest.raises(ModelError, match="LevelDependentQBD cannot be saved: its blocks are a function"):
        ctmc.save(tmp_path / "queue.h5", queue)
    ctmc.save(tmp_path / "cut.h5", queue.truncate(5))
    with pytest.raises(ModelError, match="its model is a function"):
        save_solution(tmp_path / "cut.h5", ctmc.solve(Stationary(queue)))


def test_what_is_refused():
    queue = infinitely_many_servers(1.0)
    with pytest.raises(ModelError, match="blocks is 3; allowed is a function"):
        LevelDependentQBD(3)
    with pytest.raises(ModelError, match=r"phases is \[\]"):
        LevelDependentQBD(lambda k: None, phases=[])
    with pytest.raises(ModelError, match="level is -1"):
        queue.level(-1)
    with pytest.raises(ModelError, match="levels is 0"):
        queue.truncate(0)
    with pytest.raises(ModelError, match="initial is given"):
        Stationary(queue, initial=(0, 0))
    with pytest.raises(ModelError, match="truncate"):
        ctmc.Transient(queue, times=[1.0])
    for options in ({"max_levels": 3}, {"first_levels": 0}, {"beyond": 0.0}, {"beyond": 2}):
        with pytest.raises(ModelError, match=next(iter(options))):
            LevelDependent(**options)
    answer = LevelDistribution((np.array([0.5]), np.array([0.5])))
    for wrong in (lambda: answer.level(2), lambda: answer.tail(-1), lambda: answer.quantile(1.0)):
        with pytest.raises(ModelError, match="allowed"):
            wrong()
    assert answer.tail(7) == 0


def test_memory_is_asked_for():
    with ctmc.limited_memory("200KiB"):
        with pytest.raises(ModelError, match="keeping the blocks of levels 0 to 255 needs"):
            infinitely_many_servers(1.0).level(300)
        with pytest.raises(ModelError, match="truncation needs"):
            retrials(60, 1.0, 1.0).truncate(60)
        with pytest.raises(ModelError, match="keeps a rate matrix for each of 32 levels"):
            ctmc.solve(Stationary(retrials(60, 1.0, 1.0)))


def test_a_smaller_mass_beyond_costs_levels_and_the_monitor_stops():
    problem = Stationary(retrials(1, 0.9, 1.0))
    few = ctmc.solve(problem, LevelDependent(beyond=1e-6), check=False).value
    many = ctmc.solve(problem, LevelDependent(beyond=1e-60)).value
    assert len(few.levels) < len(many.levels)
    assert many.beyond <= 1e-60
    stopped = ctmc.solve(problem, LevelDependent(), monitor=lambda iteration, defect: True, check=False)
    assert stopped.status is Status.STOPPED
    assert len(stopped.value.levels) == 33
