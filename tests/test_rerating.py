"""Re-rated equals rebuilt, array for array and reward for reward; what is shared, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rerating_examples import FORK, LUMPED, MARKET, MODELS, arrays_of, check_same

import builders.supermarket
import ctmc
from builders.supermarket.rate_table import different_products, rate_table, table_values
from ctmc.errors import CTMCError, ModelError, UnknownNameError
from ctmc.model.rerating import rates_by_event
from ctmc.model.transitions import FloatTransitions

SOME = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
RATE = st.sampled_from([0.1, 1 / 3, 0.7, 1.0, 1.5, 2.0, 2.9, 3.0, 1e-3, 250.0])


def compare(builder, parameters, changes):
    """Re-rate and rebuild; where the first is refused it must be with a reason, and where the second is, too."""
    model = ctmc.build(builder, **parameters)
    before = {name: array.copy() for name, array in arrays_of(model).items()}
    try:
        fresh = ctmc.build(builder, **{**parameters, **changes})
    except CTMCError:
        with pytest.raises(CTMCError):
            model.with_rates(**changes)
        return None
    try:
        found = model.with_rates(**changes)
    except ModelError:
        return False
    check_same(found, fresh)
    for name, array in arrays_of(model).items():  # the parent stays as it was
        np.testing.assert_array_equal(array, before[name])
    return True


# ---- re-rated equals rebuilt ------------------------------------------------------------------------------------------


@st.composite
def markets(draw):
    servers = draw(st.integers(2, 4))
    parts = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=servers, max_size=servers))
    rates = [draw(RATE) for _ in range(servers)]
    if draw(st.booleans()):
        rates, parts = [rates[0], rates[1]] * 2, [parts[0], parts[1]] * 2
    parameters = {
        "service_rates": rates,
        "arrival_rate": draw(RATE),
        "choices": draw(st.integers(1, 2)),
        "capacity": draw(st.integers(1, 3)),
        "preferences": [part / sum(parts) for part in parts],
        "selection": draw(st.sampled_from(["tandem", "weighted", "shortest_queue", "expected_delay"])),
        "weights": draw(st.sampled_from([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])),
        "ties": draw(st.sampled_from(["random", "fastest", "preferred", ["shortest", "fastest"]])),
        "overflow": draw(st.sampled_from(["lost", "rerouted"])),
        "sampling": draw(st.sampled_from(["without_replacement", "with_replacement"])),
        "total_capacity": draw(st.sampled_from([None, None, 4])),
        "lump": draw(st.booleans()),
    }
    factor = draw(st.sampled_from([2.0, 0.3, 1.1, 7.0]))
    scaled = [factor * rate for rate in rates]
    single = [*rates[:-1], draw(RATE)]
    changes = draw(
        st.sampled_from([{"arrival_rate": draw(RATE)}, {"service_rates": scaled}, {"service_rates": single}])
    )
    return parameters, changes


@settings(SOME, max_examples=150)
@given(markets())
def test_supermarket_re_rated_equals_rebuilt(case):
    parameters, changes = case
    done = compare("supermarket", parameters, changes)
    assert done or "arrival_rate" not in changes  # which never needs a rebuild


@pytest.mark.parametrize("selection", ["tandem", "expected_delay", "shortest_queue"])
@pytest.mark.parametrize("ties", ["random", "fastest", "shortest"])
@pytest.mark.parametrize("lump", [False, True])
def test_a_common_factor_of_all_service_rates_changes_no_decision(selection, ties, lump):
    parameters = {**LUMPED, "service_rates": [3.0, 0.7, 3.0, 0.7], "selection": selection, "ties": ties, "lump": lump}
    for factor in (0.1, 3.0, 1e6):
        assert compare("supermarket", parameters, {"service_rates": [factor * rate for rate in (3.0, 0.7, 3.0, 0.7)]})


@pytest.mark.parametrize(
    "options", [{"selection": "shortest_queue"}, {"selection": "weighted", "weights": [0.5, 0, 0.5]}]
)
def test_single_service_rates_change_where_nothing_reads_them(options):
    assert compare("supermarket", {**MARKET, **options}, {"service_rates": [1, 5, 2]})
    assert compare("supermarket", {**MARKET, **options, "ties": "fastest"}, {"service_rates": [1, 5, 2]}) is False
    lumped = {**LUMPED, **options}
    assert compare("supermarket", lumped, {"service_rates": [1, 5, 1, 5]})
    assert compare("supermarket", lumped, {"service_rates": [1, 5, 1, 4]}) is False


positive = st.lists(RATE, min_size=3, max_size=3)


@SOME
@given(positive, positive, positive, positive)
def test_birth_death_re_rated_equals_rebuilt(births, deaths, others, last):
    parameters = {"births": births, "deaths": deaths}
    assert compare("birth_death", parameters, {"births": others})
    assert compare("birth_death", parameters, {"births": others, "deaths": last})


@SOME
@given(
    positive, positive, RATE, RATE, st.sampled_from([{"capacity": 2}, {"total_capacity": 3}, {"capacity": [1, 2, 3]}])
)
def test_tandem_network_re_rated_equals_rebuilt(speeds, others, arrivals, more, limits):
    parameters = {"service_rates": speeds, "arrival_rate": arrivals, **limits}
    assert compare("tandem_network", parameters, {"arrival_rate": more})
    assert compare("tandem_network", parameters, {"service_rates": others, "arrival_rate": more})


@SOME
@given(positive, positive, RATE, RATE, st.integers(1, 3), st.sampled_from([None, [1, 2, 5], [1, 1, 3]]))
def test_fork_join_re_rated_equals_rebuilt(speeds, others, arrivals, more, tasks, thresholds):
    speeds, others = (sorted((1 + rate for rate in given), reverse=True) for given in (speeds, others))
    parameters = {
        "service_rates": speeds,
        "arrival_rate": min(arrivals, 0.9 * sum(speeds) / tasks),
        "tasks": tasks,
        "thresholds": thresholds,
    }
    compare("fork_join", parameters, {"arrival_rate": more})
    compare("fork_join", parameters, {"service_rates": others, "arrival_rate": 0.5 * sum(others) / tasks})


@pytest.mark.parametrize("name", MODELS)
def test_answers_of_a_re_rated_model_are_those_of_a_rebuilt_one(name):
    builder, parameters, changes = MODELS[name]
    found = ctmc.build(builder, **parameters).with_rates(**changes)
    fresh = ctmc.build(builder, **{**parameters, **changes})
    solver = "logarithmic_reduction" if builder == "fork_join" else "sparse_lu"
    one, other = (ctmc.solve(ctmc.Stationary(model), solver).measures() for model in (found, fresh))
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], other[key])


def test_rates_that_need_more_than_two_bytes_are_written_anew_on_the_same_structure(monkeypatch):
    true = builders.supermarket.lumped_rows

    def wide(*arguments):
        rows, count = true(*arguments)

        def written_out(begin, end):
            coded = rows(begin, end)
            return FloatTransitions(coded.indptr, coded.sources, coded.values[coded.codes])

        return written_out, count

    monkeypatch.setattr(builders.supermarket, "lumped_rows", wide)
    model = ctmc.build("supermarket", **LUMPED)
    assert model.representation == "float64 CSR"
    found = model.with_rates(arrival_rate=2.2)
    assert found.transitions.sources is model.transitions.sources
    check_same(found, ctmc.build("supermarket", **{**LUMPED, "arrival_rate": 2.2}))


def test_equal_rates_of_different_events_can_be_told_apart():
    # at first arrivals and completions have the same rates, which a table of different values would put together
    parameters = {"service_rates": [1.0, 1.0, 1.0], "arrival_rate": 3.0, "choices": 1, "capacity": 3, "lump": True}
    model = ctmc.build("supermarket", **parameters)
    assert len(np.unique(model.transitions.values)) < len(model.transitions.values)
    found = model.with_rates(arrival_rate=2.4)
    queue = 0.8 ** np.arange(4) / (0.8 ** np.arange(4)).sum()  # one choice: three independent M/M/1/3 queues
    jobs = ctmc.solve(ctmc.Stationary(found), "gth").measures()["jobs"]
    assert jobs == pytest.approx(3 * queue @ np.arange(4), rel=1e-12)


def test_the_table_of_rates_keeps_its_order_and_stays_small():
    model = ctmc.build("supermarket", service_rates=[1] * 20, arrival_rate=16, choices=2, capacity=2, lump=True)
    assert model.transitions.codes.dtype == np.uint8
    one, other = (
        ctmc.build(
            "supermarket",
            **{**LUMPED, "arrival_rate": rate, "service_rates": [speed, 1, speed, 1], "selection": "shortest_queue"},
        )
        for rate, speed in ((0.01, 1.9), (500.0, 1.1))
    )
    assert one.transitions.codes.tobytes() == other.transitions.codes.tobytes()


def test_a_table_that_rounding_has_merged_is_not_read_as_if_it_were_whole():
    shares = np.array([[0.0, 0.5, 0.25], [0.0, 0.125, 0.0], [0.0, 0.0, 0.0]])
    values = rate_table(np.ones((3, 3, 3)), shares, 3.0, np.array([1.0, 1.0]), [2])[2]
    assert different_products(values, shares, 3.0, [2]).tolist() == [0.125, 0.25, 0.5, 1.0]
    tiny = 5e-324 * 8
    merged = table_values(np.array([0.125, 0.5]), tiny, np.array([1.0, 1.0]), [2])
    shares[1, 2] = 0.13
    assert different_products(merged, shares, tiny, [2]) is None


def test_equal_rates_that_part_have_no_event_of_their_own():
    assert rates_by_event(np.array([1.0]), np.array([1.0, 1.0]), np.array([2.0, 3.0])) is None
    assert rates_by_event(np.array([1.5]), np.array([1.0, 2.0]), np.array([2.0, 3.0])) is None
    assert rates_by_event(np.array([1.0]), np.array([1.0, 1.0]), np.array([3.0, 3.0])).tolist() == [3.0]


# ---- what is shared, and what is kept ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_large_arrays_are_shared(name):
    builder, parameters, changes = MODELS[name]
    model = ctmc.build(builder, **parameters)
    one, other = arrays_of(model), arrays_of(model.with_rates(**changes))
    for key in one:
        if (
            key.split()[-1] not in ("rates", "values", "unit", "departures", "exit_rates", "data")
            and "guess" not in key
        ):
            assert one[key] is other[key], key


def test_structure_that_was_found_is_shared_but_nothing_that_rates_enter():
    model = ctmc.build("supermarket", **MARKET)
    classes, coloring, entries = model.classes, model.coloring, model.entries
    _ = (
        model.uniformization_rate,
        model.expanded,
        model.forward(np.ones(model.size)),
        model.backward(np.ones(model.size)),
    )
    found = model.with_rates(arrival_rate=30)
    assert found.classes is classes
    assert found.coloring is coloring
    assert found.entries == entries
    assert found.uniformization_rate == 36
    fresh = ctmc.build("supermarket", **{**MARKET, "arrival_rate": 30})
    vector = np.arange(model.size) % 7.0
    np.testing.assert_array_equal(found.forward(vector), fresh.forward(vector))
    np.testing.assert_array_equal(found.backward(vector), fresh.backward(vector))
    np.testing.assert_array_equal(found.rates, fresh.rates)
    assert model.uniformization_rate == 9
    assert set(found._found) - {"checked", "classes", "coloring", "entries"} <= {"exit_rates", "uniformization_rate", "expanded",
                                                                      "runs", "backward_runs"}  # fmt: skip


def test_only_rates_can_be_exchanged_and_what_follows_from_them_goes(tmp_path):
    model = ctmc.build("supermarket", **MARKET)
    ctmc.save(tmp_path / "model.h5", model)
    rows = model.transitions
    found = model.with_transition_rates(rows._replace(unit=2 * rows.unit))
    assert found.content_hash is None
    assert found.guess is None
    assert found.exit_rates[0] == 2 * model.exit_rates[0]
    for change, sentence in (
        ({"weights": rows.weights.copy()}, "weights of the transitions is another array"),
        ({"unit": np.zeros(1)}, "at these unit a transition would appear, vanish"),
        ({"departures": rows.departures[:, :-1]}, "at these departures"),
        ({"departures": rows.departures * np.inf}, "at these departures"),
    ):
        with pytest.raises(ModelError, match=sentence):
            model.with_transition_rates(rows._replace(**change))


def test_what_the_user_added_is_kept(tmp_path):
    model = ctmc.build("supermarket", **MARKET)
    member = np.arange(model.size) < 3
    mine = model.replace(labels={"low": member}, notes=(*model.notes, "mine"), initial=(1, 0, 0)).with_reward(
        "one", member * 1.0
    )
    ctmc.save(tmp_path / "mine.h5", mine)
    for start in (mine, ctmc.load(tmp_path / "mine.h5")):
        found = start.with_rates(arrival_rate=11)
        np.testing.assert_array_equal(found.labels["low"], member)
        np.testing.assert_array_equal(found.rewards["one"].rate, member)
        assert found.initial.positions.tolist() == model.space.find(np.array([[1, 0, 0]])).tolist()
        assert "mine" in found.notes
        assert any(note.startswith("Unstable") for note in found.notes)  # the builder's, of the new rates
        assert not any(note.startswith("Unstable") for note in found.with_rates(arrival_rate=3).notes)
        assert found.content_hash is None


def test_capacities_that_were_found_are_kept_without_the_claim_on_their_error():
    model = ctmc.build(
        "supermarket", service_rates=[2, 1], arrival_rate=1, choices=2, capacity="auto", truncation_error=1e-3
    )
    assert "truncation error" in model.notes[-1]
    found = model.with_rates(arrival_rate=0.5)
    check_same(found, ctmc.build("supermarket", **{**model.recipe.parameters, "arrival_rate": 0.5}))
    assert not found.notes


# ---- refusals --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"choices": 1}, ModelError, "choices of supermarket cannot change without a rebuild: states and transitions depend"),
        ({"arival_rate": 1}, UnknownNameError, "did you mean 'arrival_rate'?"),
        ({"arrival_rate": 0}, ModelError, "arrival_rate is 0; allowed is a positive, finite rate"),
        ({"arrival_rate": "fast"}, ModelError, "arrival_rate is 'fast'"),
        ({"service_rates": [3, 2]}, ModelError, "service_rates has 2 numbers; at other rates the system keeps its 3 servers"),
        ({"service_rates": [3, 2, 2]}, ModelError, "jobs would prefer other servers (selection tandem, ties random)"),
        ({"service_rates": [3, 2, -1]}, ModelError, "service_rates"),
        ({"arrival_rate": 1.7e308, "service_rates": [3e307, 2e307, 1e307]}, ModelError, "allowed are rates from 1e-200"),
        ({"arrival_rate": 5e-324}, ModelError, "allowed are rates from 1e-200"),
    ],
)  # fmt: skip
def test_what_is_no_change_of_rates_is_refused(changes, kind, sentence):
    model = ctmc.build("supermarket", **{**MARKET, "arrival_rate": 6})
    with pytest.raises(kind) as caught:
        model.with_rates(**changes).exit_rates.max()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_models_of_no_builder_and_of_builders_without_rates_are_refused():
    with pytest.raises(ModelError, match="not made by a builder"):
        ctmc.Generator.from_matrix([[0, 1.0], [1.0, 0]]).with_rates(arrival_rate=1)
    with pytest.raises(ModelError, match="held as float64 CSR"):
        ctmc.build("supermarket", **MARKET).written_out().with_rates(arrival_rate=1)
    for name, (parameters, changes) in {
        "birth_death": ({"births": [1.0], "deaths": [1.0]}, {"births": [1.0, 1.0], "deaths": [1.0, 1.0]}),
        "tandem_network": ({"service_rates": [1.0], "arrival_rate": 1.0, "capacity": 2}, {"service_rates": [1.0, 1.0]}),
        "fork_join": ({**FORK, "thresholds": None}, {"service_rates": [5, 2, 1, 1]}),
    }.items():
        with pytest.raises(ModelError, match="keeps its"):
            ctmc.build(name, **parameters).with_rates(**changes)


def by_length(x, mu, g):
    return x * 1.0


def test_a_function_among_the_parameters_must_be_found_again_and_allowed():
    model = ctmc.build("supermarket", **{**MARKET, "selection": by_length})
    with pytest.raises(ModelError, match="allow it with --allow-code"):
        model.with_rates(arrival_rate=2)
    with ctmc.allowed_code():
        found = model.with_rates(arrival_rate=2, service_rates=[1, 1, 9])
        check_same(found, ctmc.build("supermarket", **{**MARKET, "selection": by_length, "arrival_rate": 2,
                                                      "service_rates": [1, 1, 9]}))  # fmt: skip
        nameless = ctmc.build("supermarket", **{**MARKET, "selection": lambda x, mu, g: x * 1.0})
        with pytest.raises(ModelError, match="cannot be found again"):
            nameless.with_rates(arrival_rate=2)
