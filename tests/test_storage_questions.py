"""Answers about time, and rewards earned at events, through files: round trips, faults, and what older files lack."""

import dataclasses

import numpy as np
import pytest

import ctmc
from builders.supermarket import supermarket
from ctmc import storage
from ctmc.errors import StorageError
from ctmc.model.impulses import impulse_rates, impulse_values
from ctmc.storage.container import read_container, write_container


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    model = supermarket(service_rates=[3, 2, 1], arrival_rate=3, choices=2, capacity=3, preferences=[0.2, 0.3, 0.5])
    path = tmp_path_factory.mktemp("market") / "market.h5"
    ctmc.save(path, model)
    return path, ctmc.load(path)


EMPTY = (0, 0, 0)


def crowded(states):
    return states.sum(axis=1) >= 5


def questions(model):
    both = ("imbalance", "queue_length")
    yield "transient", ctmc.Transient(model, EMPTY, [0, 1, 2], reward=both)
    yield "transient, one number", ctmc.Transient(model, EMPTY, [1.5], reward="queue_length[1]")
    yield "transient, every state", ctmc.Transient(model, None, [1, 2], reward="jobs")
    yield "distributions", ctmc.Transient(model, EMPTY, [0.5, 1])
    yield "accumulated", ctmc.AccumulatedReward(model, both, EMPTY, [1, 2], moments=3)
    yield "accumulated, one number", ctmc.AccumulatedReward(model, "imbalance", {EMPTY: 0.5, (1, 0, 0): 0.5}, [2])
    yield "accumulated, every state", ctmc.AccumulatedReward(model, both, None, [1, 2], moments=2)
    yield "discounted", ctmc.DiscountedReward(model, "imbalance", EMPTY, discount=0.5, moments=2)
    yield "discounted, every state", ctmc.DiscountedReward(model, both, None, discount=0.5, moments=2)
    yield "passage", ctmc.FirstPassage(model, "jobs >= 6", EMPTY)
    yield "passage, one moment", ctmc.FirstPassage(model, "jobs >= 6", EMPTY, moments=1)
    yield "passage, every state", ctmc.FirstPassage(model, crowded, None, moments=3)
    yield "passage, missed", ctmc.FirstPassage(model, "jobs >= 6", EMPTY, avoid="queue_length[0] >= 2")


NAMES = [name for name, _ in questions(supermarket(service_rates=[3, 2, 1], arrival_rate=3, choices=2, capacity=1))]


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_comes_back_with_what_was_asked(market, name):
    path, model = market
    problem = dict(questions(model))[name]
    solution = ctmc.solve(problem)
    assert storage.can_be_saved(solution)
    stored = storage.load_solution(storage.save_solution(path, solution, f"round trip {NAMES.index(name)}"))
    assert stored.value.shape == np.shape(solution.value)
    np.testing.assert_array_equal(stored.value, solution.value)
    for array in ("error_bound", "variances", "variance_bounds", "reach_probability", "relative_error_bound"):
        known = getattr(solution, array, None)
        found = getattr(stored, array)
        assert (found is None) == (known is None), array
        if known is not None:
            assert np.shape(found) == np.shape(known), array
            np.testing.assert_array_equal(found, known, err_msg=array)
    for asked in ("moments", "discount", "reward"):
        assert getattr(stored, asked) == (getattr(problem, asked, None) or (() if asked == "reward" else None))
    if hasattr(problem, "times"):
        np.testing.assert_array_equal(stored.times, problem.times)
    assert (stored.initial is None) == (problem.initial is None)
    if stored.initial is not None:
        np.testing.assert_array_equal(stored.initial.positions, problem.initial.positions)
        np.testing.assert_array_equal(stored.initial.probabilities, problem.initial.probabilities)
    if stored.reward:
        assert stored.columns == tuple(
            {"imbalance": ["imbalance"], "jobs": ["jobs"], "queue_length[1]": ["queue_length[1]"]}.get(
                problem.reward[-1], ["imbalance", "queue_length[0]", "queue_length[1]", "queue_length[2]"]
            )
        )


def test_a_function_as_the_target_is_kept_by_its_name(market):
    path, model = market
    solution = ctmc.solve(ctmc.FirstPassage(model, crowded, EMPTY, avoid="queue_length[0] >= 3"))
    stored = storage.load_solution(storage.save_solution(path, solution, "function"))
    assert (stored.target, stored.avoid, stored.functions) == ("crowded", "queue_length[0] >= 3", ("target",))
    assert stored.reach_error_bound == solution.reach_error_bound
    info = storage.read_info(stored.path)
    assert info["target"] == "crowded"


def test_an_older_file_has_none_of_the_new_fields(market):
    """As version 0.1 wrote a transient answer: value, times, initial and history."""
    path, model = market
    file = storage.save_solution(path, ctmc.solve(ctmc.Transient(model, EMPTY, [0.5, 1])), "older")
    found = read_container(file, ("solution",))
    assert {name.partition("/")[0] for name in found.arrays} == {"value", "times", "initial", "history"}
    stored = storage.load_solution(file)
    assert (stored.reward, stored.columns, stored.moments, stored.target, stored.variances) == (
        (),
        (),
        None,
        None,
        None,
    )
    assert isinstance(stored.error_bound, float)


def without(name):
    return lambda manifest, arrays: arrays.pop(name)


def shaped(name, shape):
    return lambda manifest, arrays: arrays.update({name: np.zeros(shape)})


def set_field(name, value):
    return lambda manifest, arrays: manifest.update({name: value})


FAULTS = [
    (without("value"), "it has no value"),
    (shaped("value", (4, 2, 3)), "its value has the shape (4, 2, 3); allowed is (4, 2, 2)"),
    (shaped("value", (4, 2, 2, 64)), "its value has the shape"),
    (shaped("error_bound", (4, 2)), "its error_bound has the shape (4, 2)"),
    (shaped("variances", (4,)), "its variances has the shape (4,)"),
    (shaped("variance_bounds", (4, 2, 64)), "its variance_bounds has the shape"),
    (without("variances"), "it has 2 moments and no array 'variances'"),
    (without("initial/probabilities"), "its initial positions and probabilities do not fit"),
    (shaped("times", (2, 1)), "its times have the shape (2, 1)"),
    (set_field("columns", []), "it has 0 columns for the rewards imbalance, queue_length"),
    (set_field("columns", "imbalance"), "its field 'columns' is 'imbalance'; allowed is list"),
    (set_field("reward", [3]), "its field 'reward[0]' is 3; allowed is str"),
    (set_field("moments", True), "its field 'moments' is True"),
    (set_field("single", None), "its field 'single' is None"),
    (set_field("single", True), "it has 4 columns"),
    (set_field("discount", "half"), "its field 'discount' is 'half'"),
]


@pytest.mark.parametrize(("damage", "message"), FAULTS, ids=[message for _, message in FAULTS])
def test_a_fault_is_one_sentence(market, tmp_path, damage, message):
    path, model = market
    problem = ctmc.AccumulatedReward(model, ("imbalance", "queue_length"), EMPTY, [1, 2], moments=2)
    file = storage.save_solution(path, ctmc.solve(problem), "faults")
    found = read_container(file, ("solution",))
    manifest, arrays = dict(found.manifest), dict(found.arrays)
    damage(manifest, arrays)
    write_container(tmp_path / "bad.h5", "solution", manifest, arrays)
    with pytest.raises(StorageError) as caught:
        storage.load_solution(tmp_path / "bad.h5")
    assert message in str(caught.value)
    assert str(caught.value).count(".") - str(caught.value).count(".h5") >= 1


def test_a_passage_without_its_reach_probability_is_refused(market, tmp_path):
    path, model = market
    file = storage.save_solution(path, ctmc.solve(ctmc.FirstPassage(model, "jobs >= 6", EMPTY)), "reach")
    found = read_container(file, ("solution",))
    arrays = {name: array for name, array in found.arrays.items() if name != "reach_probability"}
    write_container(tmp_path / "bad.h5", "solution", dict(found.manifest), arrays)
    with pytest.raises(StorageError, match="no array 'reach_probability'"):
        storage.load_solution(tmp_path / "bad.h5")


def test_an_answer_without_numbers_cannot_be_saved(market):
    _, model = market
    passage = ctmc.solve(ctmc.FirstPassage(model, "jobs >= 6", EMPTY, avoid="queue_length[0] >= 2"))
    assert np.isinf(passage.value).all()
    assert storage.can_be_saved(passage)
    assert not storage.can_be_saved(dataclasses.replace(passage, value=np.full(2, np.nan)))
    transient = ctmc.solve(ctmc.Transient(model, EMPTY, [1], reward="jobs"))
    assert not storage.can_be_saved(dataclasses.replace(transient, value=np.full(1, np.inf)))


# ---- rewards that are earned at events --------------------------------------------------------------------------------


def arrivals(sources, targets):
    return 1.5 * (targets.sum(axis=1) > sources.sum(axis=1))


def models():
    rewards = {
        "revenue": ctmc.Reward(None, "euros per arrival", impulse=arrivals),
        "profit": ctmc.Reward(lambda states: -0.25 * states.sum(axis=1), "income less waiting", impulse=arrivals),
        "lost": ctmc.Reward(None, "jobs that are lost", self_loops=lambda states: 0.5 * (states.sum(axis=1) >= 4)),
        "fees": ctmc.Reward(np.arange(16.0), "all", False, lambda s, t: t[:, 0] - s[:, 0], np.arange(16) / 7),
        "mean": ctmc.Reward(np.arange(16.0), "a class mean", averaged=True),
    }
    lattice = supermarket(service_rates=[2, 1], arrival_rate=1, choices=2, capacity=3)
    yield "lattice", lattice.replace(rewards={**lattice.rewards, **rewards})
    coded = lattice.coded()
    yield "coded", coded.replace(rewards={**coded.rewards, **rewards})
    yield "floats", lattice.written_out().replace(rewards={**lattice.rewards, **rewards})
    large = supermarket(
        service_rates=[2, 1], arrival_rate=1, choices=2, capacity=40
    )  # so large that impulses are coded
    yield "large", large.replace(rewards={**large.rewards, "revenue": rewards["revenue"]})


@pytest.mark.parametrize(("name", "model"), list(models()), ids=lambda value: value if isinstance(value, str) else "")
def test_impulses_come_back_transition_by_transition(tmp_path, name, model):
    digest = ctmc.save(tmp_path / "model.h5", model)
    again = ctmc.load(tmp_path / "model.h5")
    own = [name for name in model.rewards if name in ("revenue", "profit", "lost", "fees", "mean")]
    for reward in own:
        before, after = model.rewards[reward], again.rewards[reward]
        assert (after.rate is None) == (before.rate is None)
        assert (after.impulse is None, after.self_loops is None) == (before.impulse is None, before.self_loops is None)
        assert (after.description, after.averaged) == (before.description, before.averaged)
        if before.impulse is not None:
            assert not callable(after.impulse)
            assert len(after.impulse) == len(again.rates)
            np.testing.assert_array_equal(after.impulse, impulse_values(model, before))
        for power in (1, 2):
            np.testing.assert_allclose(
                impulse_rates(again, after, power), impulse_rates(model, before, power), rtol=1e-15, atol=0
            )
    question = {"initial": (0, 0), "times": [2.0], "moments": 2}
    for reward in own:
        if not model.rewards[reward].averaged:
            known, found = (ctmc.solve(ctmc.AccumulatedReward(chain, reward, **question)) for chain in (model, again))
            np.testing.assert_allclose(found.value, known.value, rtol=1e-13)
            np.testing.assert_allclose(found.variances, known.variances, rtol=1e-13)
    assert ctmc.save(tmp_path / "again.h5", again) == digest


def test_impulses_count_arrivals():
    """The number of births of a chain of one birth: Erlang(1), so Phi(t) is a Bernoulli number."""
    chain = ctmc.Generator.from_matrix([[0, 2.0], [0, 0]], rewards={"births": ctmc.Reward(None, "", impulse=arrivals)})
    earned = ctmc.solve(ctmc.AccumulatedReward(chain, "births", (0,), [0.7], moments=2))
    born = -np.expm1(-1.4)
    np.testing.assert_allclose(earned.value[:, 0], [1.5 * born, 2.25 * born], rtol=1e-12)
    np.testing.assert_allclose(earned.variances, 2.25 * born * (1 - born), rtol=1e-10)


REWARD_FAULTS = [
    (without("impulses/0"), "it has no array 'impulses/0'"),
    (shaped("impulses/0", (3,)), "reward 'revenue' has impulses of the shape (3,); allowed is one for each of"),
    (shaped("self_loops/2", (3,)), "self_loops of reward 'lost'"),
    (shaped("self_loops/0", (16,)), "it has the array 'self_loops/0', which no model of this kind has"),
    (lambda manifest, arrays: manifest["rewards"][0].update(parts=["rates"]), "a reward has the part 'rates'"),
    (lambda manifest, arrays: manifest["rewards"][0].update(parts="rate"), "its field 'parts' is 'rate'"),
    (lambda manifest, arrays: manifest["rewards"][0].update(averaged=1), "its field 'averaged' is 1"),
]


@pytest.mark.parametrize(("damage", "message"), REWARD_FAULTS, ids=[message for _, message in REWARD_FAULTS])
def test_a_reward_at_fault_is_one_sentence(tmp_path, damage, message):
    ctmc.save(tmp_path / "model.h5", next(models())[1])
    found = read_container(tmp_path / "model.h5", ("generator",))
    manifest, arrays = dict(found.manifest), dict(found.arrays)
    damage(manifest, arrays)
    write_container(tmp_path / "bad.h5", "generator", manifest, arrays)
    with pytest.raises(StorageError) as caught:
        ctmc.load(tmp_path / "bad.h5")
    assert message in str(caught.value)
