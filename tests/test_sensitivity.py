"""Derivatives of long-run rewards against differences of solved models, and where there is no derivative."""

import numpy as np
import pytest

import ctmc
from builders.birth_death import birth_death
from builders.fork_join import fork_join
from builders.supermarket import supermarket
from builders.tandem_network import tandem_network
from ctmc.model.reward import Reward

NO_TIES = {
    "service_rates": [3.0, 2.1, 1.03],
    "arrival_rate": 3.0,
    "choices": 2,
    "capacity": 3,
    "preferences": [0.23, 0.31, 0.46],
}


def gain(model, reward):
    name, _, index = reward.partition("[")
    found = ctmc.solve(ctmc.Stationary(model), "gth").expected(name)
    return found[int(index[:-1])] if index else found


def differences(build, parameters, name, rewards, relative=1e-5):
    """Return central differences of the averages of models solved by elimination."""
    base, _, index = name.partition("[")

    def at(factor):
        changed = dict(parameters)
        if index:
            changed[base] = [x * factor if i == int(index[:-1]) else x for i, x in enumerate(parameters[base])]
        else:
            changed[base] *= factor
        model = build(**changed)
        return np.array([gain(model, reward) for reward in rewards])

    here = parameters[base][int(index[:-1])] if index else parameters[base]
    return (at(1 + relative) - at(1 - relative)) / (2 * relative * here)


CASES = [
    (supermarket, NO_TIES, ("jobs", "imbalance", "loss_rate", "queue_length[1]"), 4),
    (supermarket, {**NO_TIES, "selection": "weighted", "overflow": "rerouted"}, ("jobs", "idle[2]"), 4),
    (supermarket, {**NO_TIES, "selection": "shortest_queue", "total_capacity": 5}, ("jobs",), 4),
    (birth_death, {"births": [1.0, 0.7, 0.3], "deaths": [2.0, 1.1, 0.9]}, ("jobs", "birth_rate"), 6),
    (tandem_network, {"service_rates": [2.0, 1.5], "arrival_rate": 1.0, "capacity": 3}, ("jobs", "busy[1]"), 3),
]


@pytest.mark.parametrize(("build", "parameters", "rewards", "count"), CASES)
def test_every_event_rate_against_differences(build, parameters, rewards, count):
    solution = ctmc.solve(ctmc.Stationary(build(**parameters)), "gth")
    found = {reward: ctmc.sensitivity(solution, reward) for reward in rewards}
    for one in found.values():
        assert len(one.values) == count
        assert one.notes == ()
        assert max(one.errors.values()) < 1e-8
    for name in one.values:
        known = differences(build, parameters, name, rewards)
        np.testing.assert_allclose([one.values[name] for one in found.values()], known, rtol=0, atol=2e-9)


def test_two_states_in_closed_form():
    a, b = 2.0, 3.0
    found = ctmc.sensitivity(ctmc.solve(ctmc.Stationary(birth_death([a], [b]))), "jobs")
    assert abs(found.values["births[0]"] - b / (a + b) ** 2) < 1e-13
    assert abs(found.values["deaths[0]"] + a / (a + b) ** 2) < 1e-13
    assert "d / d births[0]" in repr(found)


def test_scaling_all_rates_changes_nothing():
    """Euler's identity: the average of a reward without rates is homogeneous of degree 0 in all of them."""
    model = supermarket([3, 2, 1], 3, 2, 6, [0.2, 0.3, 0.5], selection="shortest_queue")
    values = ctmc.sensitivity(ctmc.solve(ctmc.Stationary(model)), "jobs").values
    weighted = 3 * values["arrival_rate"] + sum(
        rate * values[f"service_rates[{i}]"] for i, rate in enumerate([3, 2, 1])
    )
    assert abs(weighted) < 1e-9


def test_where_servers_tie_the_routing_is_held_and_a_note_says_so():
    model = supermarket([3, 2, 1], 3, 2, 4, [0.2, 0.3, 0.5])  # 3 x 0.2 = 2 x 0.3
    found = ctmc.sensitivity(ctmc.solve(ctmc.Stationary(model), "gth"), "jobs")
    assert len(found.notes) == 2
    assert "at service_rates[0] = 3 decisions change" in found.notes[0]

    def held(service_rates, arrival_rate):
        """The same routing, whatever the service rates are."""
        speed = {0.2: 3.0, 0.3: 2.0, 0.5: 1.0}
        return supermarket(
            service_rates, arrival_rate, 2, 4, [0.2, 0.3, 0.5], selection=lambda x, mu, g: x / (speed[g] * g)
        )

    parameters = {"service_rates": [3.0, 2.0, 1.0], "arrival_rate": 3.0}
    for name, value in found.values.items():
        assert abs(value - differences(held, parameters, name, ["jobs"])[0]) < 2e-9, name
    # the average itself jumps
    above, below = (supermarket([3 * f, 2, 1], 3, 2, 4, [0.2, 0.3, 0.5]) for f in (1 + 1e-6, 1 - 1e-6))
    assert abs(gain(above, "jobs") - gain(below, "jobs")) > 1e-3


def test_a_reward_with_a_kink_is_noted():
    queue = birth_death([1.0, 1.0], [2.0, 2.0])

    def build(births, deaths):
        model = birth_death(births, deaths)
        return model.replace(rewards={"apart": Reward(np.full(model.size, abs(births[0] - 1.0)))})

    solution = ctmc.solve(ctmc.Stationary(build([1.0, 1.0], [2.0, 2.0])))
    parameters = {"births": [1.0, 1.0], "deaths": [2.0, 2.0]}
    found = ctmc.sensitivity(solution, "apart", "births[0]", build=build, parameters=parameters)
    assert "kink at births[0] = 1" in found.notes[0]
    assert ctmc.sensitivity(ctmc.solve(ctmc.Stationary(queue)), "jobs", "births[0]").notes == ()


def test_a_truncated_fork_join_queue():
    def build(service_rates, arrival_rate):
        return fork_join(service_rates, arrival_rate, tasks=2, thresholds=[1, 2]).truncate(levels=30)

    parameters = {"service_rates": [5.0, 2.0], "arrival_rate": 2.0}
    solution = ctmc.solve(ctmc.Stationary(build(**parameters)), "gth")
    with pytest.raises(ctmc.ModelError, match="was not made by a builder"):
        ctmc.sensitivity(solution, "waiting_jobs")
    found = ctmc.sensitivity(solution, "waiting_jobs", build=build, parameters=parameters)
    for name, value in found.values.items():
        assert abs(value - differences(build, parameters, name, ["waiting_jobs"])[0]) < 1e-8, name


def test_one_parameter_and_components():
    solution = ctmc.solve(ctmc.Stationary(supermarket(**NO_TIES)))
    every = ctmc.sensitivity(solution, "jobs").values
    assert ctmc.sensitivity(solution, "jobs", "arrival_rate").value == every["arrival_rate"]
    some = ctmc.sensitivity(solution, "jobs", ["service_rates[2]", "arrival_rate"])
    assert list(some.values) == ["service_rates[2]", "arrival_rate"]
    with pytest.raises(ctmc.ModelError, match="2 derivatives"):
        some.value  # noqa: B018


def test_a_reward_of_ones_own_stays_what_it_is():
    model = birth_death([1.0, 2.0], [2.0, 1.0]).with_reward("pay", np.array([1.0, 4.0, 2.0]))
    found = ctmc.sensitivity(ctmc.solve(ctmc.Stationary(model)), "pay")

    def build(births, deaths):
        return birth_death(births, deaths).with_reward("pay", np.array([1.0, 4.0, 2.0]))

    parameters = {"births": [1.0, 2.0], "deaths": [2.0, 1.0]}
    for name, value in found.values.items():
        assert abs(value - differences(build, parameters, name, ["pay"])[0]) < 2e-9


def test_what_is_refused():
    solution = ctmc.solve(ctmc.Stationary(supermarket(**NO_TIES)))
    with pytest.raises(ctmc.UnknownNameError, match="service_rate"):
        ctmc.sensitivity(solution, "jobs", "service_rate")
    with pytest.raises(ctmc.ModelError, match=r"index 3 of parameter service_rates is out of range; allowed is 0 to 2"):
        ctmc.sensitivity(solution, "jobs", "service_rates[3]")
    with pytest.raises(ctmc.ModelError, match="index 0 of parameter arrival_rate"):
        ctmc.sensitivity(solution, "jobs", "arrival_rate[0]")
    with pytest.raises(ctmc.ModelError, match="parameter selection is 'tandem'; allowed is a number"):
        ctmc.sensitivity(solution, "jobs", "selection")
    with pytest.raises(ctmc.ModelError, match="build is given without parameters"):
        ctmc.sensitivity(solution, "jobs", build=supermarket)
    equal = {"service_rates": [1, 1, 1], "arrival_rate": 2, "choices": 2, "capacity": 3}
    lumped = ctmc.solve(ctmc.Stationary(supermarket(**equal, lump=True)))
    assert ctmc.sensitivity(lumped, "jobs", "arrival_rate").value > 0
    with pytest.raises(ctmc.ModelError, match=r"service_rates\[0\] makes a model with other states"):
        ctmc.sensitivity(lumped, "jobs")
    fastest = ctmc.solve(ctmc.Stationary(supermarket(**equal, ties="fastest")))
    with pytest.raises(ctmc.ModelError, match=r"not linear in service_rates\[0\] near 1: decisions change"):
        ctmc.sensitivity(fastest, "jobs")
    explored = ctmc.build(
        "reachable", transitions=lambda state: [(((state[0] + 1) % 3,), 1.0 + state[0])], initial=(0,)
    )
    with pytest.raises(ctmc.UnsupportedProblemError, match="names no event rates"):
        ctmc.sensitivity(ctmc.solve(ctmc.Stationary(explored)), "state")
