"""The supermarket model against an explicit enumeration of samples, closed forms, and published values."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from reference_models import reference

import ctmc
from builders.supermarket import supermarket
from builders.supermarket.rank import best_within, rank_probabilities, stability_notes
from builders.supermarket.selection import preference_keys, selection_table, tie_rules

EXAMPLE = reference("supermarket")["common"]


def brute_force(service_rates, arrival_rate, choices, limits, *, values, ties=(), sampling, overflow, total=None):
    """The generator from the model's text: every sample listed, selection values exact rationals, states in a dict."""
    servers = range(len(service_rates))
    states = [x for x in itertools.product(*(range(limit + 1) for limit in limits)) if total is None or sum(x) <= total]
    number = {x: k for k, x in enumerate(states)}
    samples = (
        list(itertools.combinations(servers, choices))
        if sampling == "without_replacement"
        else list(itertools.product(servers, repeat=choices))
    )
    rates = np.zeros((len(states), len(states)))
    loss = np.zeros(len(states))
    rules = {
        "fastest": lambda x, i: -service_rates[i],
        "shortest": lambda x, i: x[i],
        "preferred": lambda x, i: -values.preferences[i],
    }
    for x in states:
        full = [x[i] >= limits[i] or (total is not None and sum(x) >= total) for i in servers]
        share = [Fraction(0)] * len(service_rates)
        lost = Fraction(0)
        for sample in samples:
            able = set(sample)
            if overflow == "rerouted":
                able = {i for i in able if not full[i]}
            if not able:
                lost += Fraction(1, len(samples))
                continue
            keys = {i: (values(x[i], i), *(rules[rule](x, i) for rule in ties)) for i in able}
            best = [i for i in able if keys[i] == min(keys.values())]
            for i in best:
                share[i] += Fraction(1, len(samples) * len(best))
        for i in servers:
            if full[i]:
                lost += share[i]
            elif share[i]:
                up = (*x[:i], x[i] + 1, *x[i + 1 :])
                rates[number[x], number[up]] += arrival_rate * float(share[i])
            if x[i]:
                down = (*x[:i], x[i] - 1, *x[i + 1 :])
                rates[number[x], number[down]] += service_rates[i]
        loss[number[x]] = arrival_rate * float(lost)
    return states, rates, loss


class Exact:
    """Selection values as exact rationals."""

    def __init__(self, rule, rates, preferences, weights):
        self.rule = rule
        self.rates, self.preferences, self.weights = (
            [Fraction(str(number)) for number in numbers] for numbers in (rates, preferences, weights)
        )

    def __call__(self, x, i):
        mu, g = self.rates[i], self.preferences[i]
        b = self.weights
        return {
            "tandem": x / (mu * g),
            "weighted": b[0] * x + b[1] / mu + b[2] / g,
            "shortest_queue": Fraction(x),
            "expected_delay": (x + 1) / mu,
        }[self.rule]


DESIGNS = [
    {"service_rates": [3, 2, 1], "choices": 2, "capacity": [2, 3, 1], "preferences": ["0.2", "0.3", "0.5"], "selection": rule,
     "sampling": sampling, "overflow": overflow, "total_capacity": total, "ties": ties}
    for rule, sampling, overflow, total, ties in [
        ("tandem", "without_replacement", "lost", None, "random"),
        ("tandem", "with_replacement", "rerouted", 4, "random"),
        ("weighted", "without_replacement", "rerouted", None, "random"),
        ("weighted", "with_replacement", "lost", 3, "fastest"),
        ("shortest_queue", "without_replacement", "lost", 5, ["fastest"]),
        ("shortest_queue", "with_replacement", "rerouted", None, ["preferred", "random"]),
        ("expected_delay", "without_replacement", "lost", None, ["shortest", "fastest"]),
        ("expected_delay", "with_replacement", "rerouted", 2, ["shortest", "preferred"]),
    ]
] + [
    {"service_rates": [2, 2, 2, 1], "choices": d, "capacity": 1, "preferences": ["0.25"] * 4, "selection": "tandem",
     "sampling": sampling, "overflow": overflow, "total_capacity": None, "ties": "random"}
    for d, sampling, overflow in [
        (1, "without_replacement", "lost"), (3, "without_replacement", "rerouted"),
        (4, "without_replacement", "lost"), (6, "with_replacement", "lost"),
    ]
]  # fmt: skip


@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: "-".join(str(d[k]) for k in ("selection", "sampling", "overflow", "ties", "choices")))  # fmt: skip
def test_generator_equals_the_explicit_enumeration(design):
    weights = ["0.5", "0.3", "0.2"]
    given = {**design, "arrival_rate": 2.5, "weights": [float(w) for w in weights]}
    given["preferences"] = [float(g) for g in design["preferences"]]
    model = supermarket(**given)
    limits = np.broadcast_to(design["capacity"], len(design["service_rates"])).tolist()
    exact = Exact(design["selection"], design["service_rates"], design["preferences"], weights)
    rules = [design["ties"]] if isinstance(design["ties"], str) else design["ties"]
    states, rates, loss = brute_force(
        design["service_rates"], 2.5, design["choices"], limits, values=exact,
        ties=[rule for rule in rules if rule != "random"], sampling=design["sampling"],
        overflow=design["overflow"], total=design["total_capacity"],
    )  # fmt: skip
    assert [tuple(x) for x in model.space.states(np.arange(model.size)).tolist()] == states
    found = model.to_scipy().toarray()
    np.fill_diagonal(found, 0)
    np.testing.assert_allclose(found, rates, rtol=1e-14, atol=1e-15)
    assert ((found > 0) == (rates > 0)).all()
    table = np.array(states)
    np.testing.assert_allclose(model.rewards["loss_rate"].evaluate(table, slice(None)), loss, atol=1e-14)
    # accepted and lost jobs are all jobs
    arrivals = (rates * (table.sum(axis=1)[None, :] > table.sum(axis=1)[:, None])).sum(axis=1)
    np.testing.assert_allclose(arrivals + loss, 2.5, rtol=1e-13)


@pytest.mark.parametrize("sampling", ["without_replacement", "with_replacement"])
@pytest.mark.parametrize("servers", range(1, 7))
def test_rank_probabilities_equal_the_enumeration_of_samples(servers, sampling):
    for choices in range(1, servers + (1 if sampling == "without_replacement" else 2)):
        samples = (
            list(itertools.combinations(range(servers), choices))
            if sampling == "without_replacement"
            else list(itertools.product(range(servers), repeat=choices))
        )
        counts = [sum(min(sample) == i for sample in samples) for i in range(servers)]
        found = rank_probabilities(servers, choices, sampling)
        assert found == [Fraction(count, len(samples)) for count in counts]
        assert sum(found) == 1


def test_ties_are_exact_where_floating_point_is_not():
    assert 3 * 0.2 != 2 * 0.3  # why a tolerance is needed
    rates, preferences = np.array([3.0, 2.0, 1.0]), np.array([0.2, 0.3, 0.5])
    table = selection_table("tandem", [9, 9, 9], rates, preferences, np.ones(3) / 3)
    keys = preference_keys(table, (), rates, preferences)
    assert (keys[0] == keys[1]).all()
    assert (keys[0][1:] != keys[2][1:]).any()
    ordered = preference_keys(table, tie_rules(["fastest"]), rates, preferences)
    assert (ordered[0] < ordered[1]).all()


def test_single_choice_splits_into_independent_queues():
    rates, capacity = [3.0, 1.5], [4, 6]
    model = supermarket(rates, 2.0, 1, capacity)
    pi = ctmc.solve(ctmc.Stationary(model)).value.reshape(5, 7)
    factors = [(1.0 / mu) ** np.arange(k + 1) for mu, k in zip(rates, capacity, strict=True)]
    product = np.outer(*(factor / factor.sum() for factor in factors))
    np.testing.assert_allclose(pi, product, atol=1e-15)


def test_one_server_is_a_single_queue():
    pi = ctmc.solve(ctmc.Stationary(supermarket([2.0], 1.0, 1, 10))).value
    np.testing.assert_allclose(pi, 0.5 ** np.arange(11) / (0.5 ** np.arange(11)).sum(), rtol=1e-13)


def test_equal_servers_with_all_choices_join_the_shortest_queue():
    model = supermarket([1.0, 1.0, 1.0], 2.0, 3, 4)
    states = model.space.states(np.arange(model.size))
    targets = np.repeat(np.arange(model.size), np.diff(model.indptr))
    arrival = states[targets].sum(axis=1) > states[model.sources].sum(axis=1)
    before = states[model.sources[arrival]]
    joined = (states[targets[arrival]] - before).argmax(axis=1)
    assert (before[np.arange(len(joined)), joined] == before.min(axis=1)).all()


def test_scaled_rates_leave_the_distribution_alone():
    one = supermarket(**EXAMPLE)
    other = supermarket(**{**EXAMPLE, "service_rates": [300, 200, 100], "arrival_rate": 300})
    values = [ctmc.solve(ctmc.Stationary(model)).value for model in (one, other)]
    np.testing.assert_allclose(values[0], values[1], atol=1e-15)


def test_measures_fit_each_other():
    solution = ctmc.solve(ctmc.Stationary(supermarket(**{**EXAMPLE, "arrival_rate": 5, "capacity": 5})))
    found = solution.measures()
    assert list(found) == ["throughput", "utilization", "queue_length", "jobs", "response_time", "blocking_probability",
                           "imbalance", "boundary", "boundary_mass", "loss_flow"]  # fmt: skip
    assert found["throughput"] == pytest.approx(found["utilization"] @ [3, 2, 1], rel=1e-12)  # what enters leaves
    assert found["jobs"] == pytest.approx(found["queue_length"].sum(), rel=1e-14)
    assert found["response_time"] == pytest.approx(found["jobs"] / found["throughput"], rel=1e-14)
    assert found["blocking_probability"] == pytest.approx(1 - found["throughput"] / 5, rel=1e-10)
    assert solution.expected("balance") == pytest.approx(1 - found["imbalance"], rel=1e-12)
    corner = solution.probability("queue_length[0] == 5 or queue_length[1] == 5 or queue_length[2] == 5")
    assert found["boundary"] == pytest.approx(corner, rel=1e-12)
    np.testing.assert_allclose(
        solution.marginal("queue_length", 1) @ np.arange(6), found["queue_length"][1], rtol=1e-12
    )


def test_imbalance_is_measured_by_the_rule_that_is_asked_for():
    own = supermarket(**EXAMPLE)
    other = supermarket(**EXAMPLE, measured_by="shortest_queue")
    state = np.array([[3, 1, 2]])
    delta = np.array([3 / 0.6, 1 / 0.6, 2 / 0.5])
    assert own.rewards["imbalance"].evaluate(state, slice(0, 1))[0] == pytest.approx(1 - delta.min() / delta.max())
    assert other.rewards["imbalance"].evaluate(state, slice(0, 1))[0] == pytest.approx(2 / 3)
    empty = np.zeros((1, 3), dtype=int)
    assert own.rewards["imbalance"].evaluate(empty, slice(0, 1))[0] == 0
    assert own.rewards["balance"].evaluate(empty, slice(0, 1))[0] == 1


def delay(x, mu, g):
    return (x + 1) / mu


def test_a_function_may_select():
    named = supermarket(**EXAMPLE, selection="expected_delay")
    by_function = supermarket(**EXAMPLE, selection=delay)
    np.testing.assert_array_equal(named.rates, by_function.rates)
    np.testing.assert_array_equal(named.sources, by_function.sources)
    assert by_function.recipe.parameters["selection"].endswith(":delay")


SELECTING = {
    "it is code": ("os:getcwd", "--allow-code"),
    "too few values": (
        lambda x, mu, g: x[:2],
        r"selection is a function that gives shape \(2,\) for server 0; allowed is \(10,\)",
    ),
    "one value": (lambda x, mu, g: mu, r"gives shape \(\) for server 0"),
    "infinite for one server": (lambda x, mu, g: np.where(mu == 1, np.inf, x), "for server 2; .* all finite"),
    "not a number": (lambda x, mu, g: x + np.nan, "all finite"),
    "imaginary": (lambda x, mu, g: x + 1j, r"what selection returns is array\(\[0.\+1.j"),
    "text": (lambda x, mu, g: [str(one) for one in x], r"what selection returns is \['0', .*; allowed are numbers"),
    "nothing": (lambda x, mu, g: None, "what selection returns is None"),
    "masked": (lambda x, mu, g: np.ma.masked_equal(x, 1), "what selection returns is masked_array"),
    "one argument": (lambda x: x, r"selection is a function that failed with TypeError: .*; allowed is f\(x, mu, g\)"),
    "it fails": (lambda x, mu, g: x[99], "selection is a function that failed with IndexError"),
}


@pytest.mark.parametrize("fault", SELECTING)
def test_a_function_that_cannot_select_is_refused(fault):
    function, sentence = SELECTING[fault]
    with pytest.raises(ctmc.ModelError, match=sentence) as caught:
        supermarket(**EXAMPLE, selection=function)
    assert "\n" not in str(caught.value)


BAD = [
    ({"service_rates": [3, -2, 1]}, "service_rates has the value -2"),
    ({"service_rates": [3, 0, 1]}, "service_rates has the value 0"),
    ({"service_rates": [3, float("nan"), 1]}, "service_rates has the value nan"),
    ({"service_rates": [3, float("inf"), 1]}, "service_rates has the value inf"),
    ({"service_rates": []}, "service_rates is empty"),
    ({"service_rates": "fast"}, "service_rates"),
    ({"arrival_rate": 0}, "arrival_rate is 0"),
    ({"arrival_rate": -1.5}, "arrival_rate is -1.5"),
    ({"arrival_rate": float("nan")}, "arrival_rate is nan"),
    ({"arrival_rate": float("inf")}, "arrival_rate is inf"),
    ({"arrival_rate": "many"}, "arrival_rate is 'many'"),
    ({"choices": 4}, "choices is 4; allowed is a whole number from 1 to 3"),
    ({"choices": 0}, "choices is 0"),
    ({"choices": 1.5}, "choices is 1.5"),
    ({"choices": True}, "choices is True"),
    ({"capacity": 0}, "capacity is 0"),
    ({"capacity": -3}, "capacity is -3"),
    ({"capacity": [9, 9]}, "capacity has 2 numbers"),
    ({"capacity": [9, 0, 9]}, "capacity is 0"),
    ({"capacity": 2.5}, "capacity is 2.5"),
    ({"total_capacity": 0}, "total_capacity is 0"),
    ({"total_capacity": 2.5}, "total_capacity is 2.5"),
    ({"preferences": [0.2, 0.3, 0.6]}, "preferences is .* sum to 1.1"),
    ({"preferences": [0.5, 0.5, 0.0]}, "preferences is"),
    ({"preferences": [0.5, 0.5]}, "preferences is"),
    ({"weights": [0.5, 0.2, 0.2]}, "weights is .* sum to 0.9"),
    ({"weights": [1.5, -0.5, 0.0]}, "weights is"),
    ({"weights": [0.5, 0.5]}, "weights is"),
    ({"ties": ["random", "fastest"]}, "ties is"),
    ({"ties": []}, "ties is"),
    ({"capacity": 3000}, "memory limit"),
    ({"capacity": 10**9}, r"allowed are up to 2\^63 - 1"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[str(change)[:40] for change, _ in BAD])
def test_bad_parameters_are_one_sentence(change, sentence):
    with pytest.raises(ctmc.ModelError, match=sentence) as caught:
        supermarket(**{**EXAMPLE, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "hint"),
    [({"selection": "tandm"}, "tandem"), ({"sampling": "without"}, "without_replacement"), ({"ties": "fast"}, "fastest"),
     ({"overflow": "loss"}, "lost"), ({"capcity": 3}, "capacity")],
)  # fmt: skip
def test_unknown_names_list_close_ones(change, hint):
    with pytest.raises(ctmc.UnknownNameError, match=hint):
        supermarket(**{**EXAMPLE, **change})


def test_memory_is_checked_before_building():
    with ctmc.limited_memory("1MiB"), pytest.raises(ctmc.ModelError, match=r"250,000 states, 1,[0-9,]+ transitions"):
        supermarket([1, 1, 1], 2, 2, [49, 49, 99])


def test_stability_notes_name_the_condition_that_fails():
    assert supermarket(**EXAMPLE).notes == ()
    # the two slowest of three servers: lambda C(2,2)/C(3,2) = 6/3 >= 1 + 0.5
    (note,) = supermarket([6, 1, 0.5], 6, 2, 3).notes
    assert "2 slowest" in note
    (note,) = supermarket([1, 1], 2.5, 2, 3).notes
    assert "2 slowest" in note
    # a rule that ignores the queues sends two thirds of the jobs to one server
    ignorant = {**EXAMPLE, "selection": "weighted", "weights": [0, 1, 0], "arrival_rate": 5}
    (note,) = supermarket(**ignorant).notes
    assert "server 0 gets jobs at the fixed rate 3.33333" in note
    assert not supermarket(**{**ignorant, "arrival_rate": 2.9}).notes
    assert stability_notes(1.0, np.array([2.0]), 1, "with_replacement", None) == []
    assert best_within(2, 1, "with_replacement") == [0, Fraction(1, 2), 1]
