"""Re-rated equals rebuilt, array for array and reward for reward; what is shared, what is refused, variants, studies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import builders.supermarket
import ctmc
from builders.supermarket.rate_table import different_products, rate_table, table_values
from ctmc.cli import main
from ctmc.errors import CTMCError, ModelError, StorageError, UnknownNameError
from ctmc.model.impulses import impulse_values
from ctmc.model.rerating import rates_by_event
from ctmc.model.transitions import FloatTransitions
from ctmc.storage import read_info, rerate
from ctmc.storage.store import Store
from ctmc.study import Watcher, parse_study, run_study

SOME = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
RATE = st.sampled_from([0.1, 1 / 3, 0.7, 1.0, 1.5, 2.0, 2.9, 3.0, 1e-3, 250.0])
MARKET = {"service_rates": [3, 2, 1], "arrival_rate": 3, "choices": 2, "capacity": 4, "preferences": [0.2, 0.3, 0.5]}
LUMPED = {"service_rates": [2, 1, 2, 1], "arrival_rate": 4, "choices": 2, "capacity": 4, "lump": True}
FORK = {"service_rates": [5, 2, 1], "arrival_rate": 1, "tasks": 3, "thresholds": [1, 2, 8]}
MODELS = {
    "lattice": ("supermarket", MARKET, {"arrival_rate": 2.2}),
    "capped": ("supermarket", {**MARKET, "total_capacity": 7}, {"arrival_rate": 2.2}),
    "lumped": ("supermarket", LUMPED, {"arrival_rate": 2.2, "service_rates": [4, 2, 4, 2]}),
    "lumped and capped": ("supermarket", {**LUMPED, "total_capacity": 7}, {"arrival_rate": 2.2}),
    "births": ("birth_death", {"births": [1.0, 2.0], "deaths": [2.0, 2.0]}, {"births": [3.0, 0.5]}),
    "tandem": ("tandem_network", {"service_rates": [2, 2], "arrival_rate": 1, "capacity": 5}, {"service_rates": [2, 3]}),
    "fork_join": ("fork_join", FORK, {"arrival_rate": 1.2, "service_rates": [4, 3, 1]}),
}  # fmt: skip


def arrays_of(model):
    """Return every array of a model by name."""
    if isinstance(model, ctmc.Generator):
        found = dict(zip(model.transitions._fields, model.transitions, strict=True))
        found |= {"exit_rates": model.exit_rates, "positions": model.initial.positions}
        return found | {f"guess {k}": part for k, part in enumerate(model.guess or ())}
    found = {f"phases {k}": table for k, table in enumerate(model.phases)}
    blocks = [(name, getattr(model, name)) for name in ("up", "local", "down")]
    for k, level in enumerate(model.boundary):
        blocks += [(f"{name} {k}", getattr(level, name)) for name in ("up", "local", "down")]
    for name, block in blocks:
        if block is not None:
            found |= {f"{name} {part}": getattr(block, part) for part in ("data", "indices", "indptr")}
    return found


def values_of(model):
    """Return the values of every reward in every state (of a QBD: of level 1), and its impulses."""
    whole = isinstance(model, ctmc.Generator)
    states = model.space.states(np.arange(model.size)) if whole else model.level_states(1)
    found = {}
    for name, reward in model.all_rewards.items():
        if reward.rate is not None:
            found[name] = reward.evaluate(states, slice(0, len(states)))
        if reward.self_loops is not None:
            found[f"{name} loops"] = reward.self_loops(states)
        if reward.impulse is not None and whole:
            found[f"{name} impulses"] = impulse_values(model, reward)
    return found


def check_same(model, fresh):
    assert model.recipe == fresh.recipe
    assert model.recipe.hash == fresh.recipe.hash
    assert model.notes == fresh.notes
    for one, other in ((arrays_of(model), arrays_of(fresh)), (values_of(model), values_of(fresh))):
        assert one.keys() == other.keys()
        for name, array in one.items():
            assert array.dtype == other[name].dtype, name
            np.testing.assert_array_equal(array, other[name], err_msg=name)
    assert list(model.distributions) == list(fresh.distributions)
    assert (model.guess is None) == (fresh.guess is None) if isinstance(model, ctmc.Generator) else True


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
        ({"service_rates": [3, 2]}, ModelError, "preferences"),
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


# ---- variants ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_variant_is_the_model_in_full(name, tmp_path):
    builder, parameters, changes = MODELS[name]
    (tmp_path / "sub").mkdir()
    parent, variant = tmp_path / "parent.h5", tmp_path / "sub" / "variant.h5"
    ctmc.save(parent, ctmc.build(builder, **parameters))
    fresh = ctmc.build(builder, **{**parameters, **changes})
    in_full = ctmc.save(tmp_path / "full.h5", fresh)
    assert ctmc.save(variant, ctmc.load(parent).with_rates(**changes), parent=parent) == in_full
    found = ctmc.load(variant)
    check_same(found, fresh)
    info = read_info(variant)
    assert found.content_hash == info["content_hash"] == in_full
    assert (info["kind"], info["parent"]["path"]) == ("variant", "../parent.h5")
    assert info["changes"] == changes
    # a variant of a variant points to the same parent; both move together
    assert rerate(variant, tmp_path / "sub" / "more.h5", changes).content_hash == in_full
    assert read_info(tmp_path / "sub" / "more.h5")["parent"]["path"] == "../parent.h5"
    ctmc.save(tmp_path / "sub" / "third.h5", found, parent=variant)
    away = tmp_path.with_name(f"{tmp_path.name} away")
    shutil.move(tmp_path, away)
    for file in ("variant.h5", "more.h5", "third.h5"):
        assert ctmc.load(away / "sub" / file).content_hash == in_full


def test_a_variant_is_a_few_kilobytes_however_large_its_parent(tmp_path):
    model = ctmc.build(
        "supermarket", service_rates=[3, 2, 1, 1], arrival_rate=4, choices=2, capacity=15, total_capacity=30
    )
    ctmc.save(tmp_path / "parent.h5", model)
    ctmc.save(tmp_path / "variant.h5", model.with_rates(arrival_rate=2), parent=tmp_path / "parent.h5")
    assert (tmp_path / "parent.h5").stat().st_size > 50_000
    assert (tmp_path / "variant.h5").stat().st_size < 4_000


@pytest.fixture
def variant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ctmc.save("parent.h5", ctmc.build("supermarket", **MARKET))
    rerate("parent.h5", "variant.h5", {"arrival_rate": 2.2})
    return Path("variant.h5")


def test_answers_belong_to_the_model_however_it_is_stored(variant):
    solution = ctmc.solve(ctmc.Stationary(ctmc.load(variant)), "sparse_lu")
    ctmc.storage.save_solution(variant, solution, "lu")
    ctmc.save("full.h5", ctmc.build("supermarket", **{**MARKET, "arrival_rate": 2.2}))
    shutil.copytree("variant.solutions", "full.solutions")
    stored = ctmc.storage.load_solution("full.solutions/lu.h5")
    np.testing.assert_array_equal(stored.value, solution.value)
    assert stored.model_hash == ctmc.load("full.h5").content_hash


def test_a_variant_without_its_parent_is_refused(variant):
    Path("parent.h5").rename("other.h5")
    with pytest.raises(StorageError, match=r"variant\.h5: its parent .*parent\.h5 is missing"):
        ctmc.load(variant)
    ctmc.save("parent.h5", ctmc.build("supermarket", **{**MARKET, "arrival_rate": 3.1}))
    with pytest.raises(StorageError, match=r"parent\.h5 holds another model now"):
        ctmc.load(variant)
    Path("parent.h5").write_bytes(b"text")
    with pytest.raises(StorageError, match="not an HDF5 file"):
        ctmc.load(variant)
    shutil.copy(variant, "parent.h5")  # a variant is no parent, and so none leads back to itself
    with pytest.raises(StorageError, match="it holds a 'variant'"):
        ctmc.load(variant)


def test_a_builder_of_another_version_is_refused(variant, monkeypatch):
    monkeypatch.setattr(builders.supermarket.supermarket, "version", 99)
    with pytest.raises(StorageError, match=r"variant\.h5: version 2 of the builder 'supermarket' is not installed"):
        ctmc.load(variant)


def test_a_builder_that_makes_other_rates_is_found_out(variant, monkeypatch):
    true = builders.supermarket.supermarket.rerate
    monkeypatch.setattr(
        builders.supermarket.supermarket,
        "rerate",
        lambda model, old, new: true(model, old, {**new, "arrival_rate": 2.3}),
    )
    with pytest.raises(StorageError, match="its rates are not those that the builder gives"):
        ctmc.load(variant)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parent": {"path": "/parent.h5", "content_hash": "0"}}, "allowed is a path relative to it"),
        ({"parent": {"path": "..\\parent.h5", "content_hash": "0"}}, "allowed is a path relative to it"),
        ({"parent": 3}, "its field 'parent' is 3"),
        ({"changes": {"capacity": 9}}, "capacity of supermarket cannot change without a rebuild"),
        ({"changes": {"arrival_rate": 2.2, "service_rates": "x"}}, "service_rates"),
        ({"model": {"kind": "generator", "content_hash": "0" * 64}}, "is not the one that was stored"),
        ({"model": {"kind": "qbd", "content_hash": ""}}, "is not the one that was stored"),
    ],
)
def test_manifests_that_were_made_up_are_refused(variant, change, sentence):
    from ctmc.storage.container import read_container, write_container

    whole = read_container(variant, ("variant",))
    write_container(variant, "variant", {**whole.manifest, **change}, whole.arrays, overwrite=True)
    with pytest.raises(StorageError) as caught:
        ctmc.load(variant)
    assert sentence in str(caught.value)


def test_only_a_re_rating_is_saved_as_one(variant):
    model = ctmc.load("parent.h5").with_rates(arrival_rate=2.5)
    label = {"all": np.ones(model.size, dtype=bool)}
    for other, sentence in (
        (model.replace(labels=label), "is not its parent at other rates"),
        (ctmc.build("supermarket", **{**MARKET, "choices": 1}), "choices of supermarket cannot change"),
        (ctmc.build("supermarket", **{**MARKET, "total_capacity": 5}), "other parameters than its parent"),
        (ctmc.build("birth_death", births=[1.0], deaths=[1.0]), "the same version of the same builder"),
        (ctmc.Generator.from_matrix([[0, 1.0], [1.0, 0]]), "the same version of the same builder"),
    ):
        with pytest.raises(StorageError, match=sentence):
            ctmc.save("new.h5", other, parent="parent.h5")
        assert not Path("new.h5").exists()
    with pytest.raises(StorageError, match="holds another model"):
        ctmc.save(variant, model, parent="parent.h5")
    ctmc.save(variant, model, parent="parent.h5", overwrite=True)
    assert ctmc.load(variant).recipe.parameters["arrival_rate"] == 2.5


# ---- the command line and studies ------------------------------------------------------------------------------------------


def test_the_command_line_re_rates(variant, capsys):
    assert main(["rerate", "parent.h5", "--arrival-rate", "2.5", "-o", "new.h5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    fresh = ctmc.build("supermarket", **{**MARKET, "arrival_rate": 2.5})
    assert found["content_hash"] == ctmc.save("full.h5", fresh)
    assert found["changes"] == {"arrival_rate": 2.5}
    assert main(["rerate", "-o", "newer.h5", "--service-rates", "6,4,2", "new.h5"]) == 0
    check_same(ctmc.load("newer.h5"), fresh.with_rates(service_rates=[6.0, 4.0, 2.0]))
    assert main(["solve", "new.h5", "--solver", "sparse_lu", "--json"]) == 0
    capsys.readouterr()
    assert main(["info", "new.h5", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["kind"], info["states"], info["changes"]) == ("variant", 125, {"arrival_rate": 2.5})
    assert [row["status"] for row in info["solutions"]] == ["CONVERGED"]
    assert main(["rerate", "parent.h5", "--help"]) == 0
    assert "--service-rates FLOAT,.." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["parent.h5", "-o", "x.h5"], "the flags --arrival-rate, --service-rates"),
        (["parent.h5", "--arrival-rate", "-1", "-o", "x.h5"], "arrival_rate is -1; allowed is"),
        (["parent.h5", "--arrival-rate", "fast", "-o", "x.h5"], "arrival_rate is 'fast'; allowed is FLOAT"),
        (["parent.h5", "--service-rates", "3,2,2", "-o", "x.h5"], "need a rebuild"),
        (["parent.h5", "--choices", "1", "-o", "x.h5"], "No such option '--choices'"),
        (["missing.h5", "--arrival-rate", "1", "-o", "x.h5"], "Cannot read missing.h5"),
        (["parent.h5", "--arrival-rate", "1", "-o", "nowhere/x.h5"], "there is no folder nowhere"),
        (["--arrival-rate", "1", "-o", "x.h5"], "No such option '--arrival-rate'"),
    ],
)
def test_bad_re_ratings_are_one_sentence(variant, capsys, arguments, sentence):
    assert main(["rerate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not Path("x.h5").exists()


def test_info_of_a_variant_whose_parent_is_missing_says_so(variant, capsys):
    Path("parent.h5").unlink()
    assert main(["info", "variant.h5"]) == 0
    assert "is missing" in capsys.readouterr().out
    Path("parent.h5").write_bytes(b"text")
    assert main(["info", "variant.h5"]) == 2
    assert "parent.h5: it is not an HDF5 file" in capsys.readouterr().err


class News(Watcher):
    def __init__(self):
        self.lines = []

    def news(self, text):
        self.lines.append(text)


@pytest.fixture
def builds(tmp_path, monkeypatch):
    """Return the list of parameters of which models are built."""
    made, true = [], Store.get_or_build

    def counted(self, prepared, **known):
        made.append(prepared.recipe.parameters)
        stored = true(self, prepared, **known)
        if stored.rates:
            made.pop()
        return stored

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Store, "get_or_build", counted)
    return made


STUDY = """
[models.queues]
builder = "supermarket"
choices = 1
capacity = 3
{more}
[models.queues.sweep]
{sweep}
[[solve]]
solvers = ["sparse_lu"]
measures = ["jobs"]
"""


def test_a_study_over_fifty_arrival_rates_builds_one_structure(builds):
    news = News()
    study = parse_study(STUDY.format(more="service_rates = [2.0, 2.0]", sweep='arrival_rate = "0.1:5.0:0.1"'))
    result = run_study(study, "result.h5", watcher=news)
    assert len(builds) == 1
    assert len(result.rows) == 50
    assert sum(row.model_done.startswith("re-rated: arrival_rate ") for row in result.rows) == 49
    assert any(row.model_done == "re-rated: arrival_rate 1.1" for row in result.rows)
    sizes = sorted(path.stat().st_size for path in Path().glob("*.store/*.h5"))
    assert len(sizes) == 50
    assert sizes[-2] < 4096
    for row in result.rows:  # one choice: two independent M/M/1/3 queues
        weights = (row.point["arrival_rate"] / 4) ** np.arange(4)
        assert row.measures["jobs"] == pytest.approx(2 * weights @ np.arange(4) / weights.sum(), rel=1e-9)


def test_points_that_differ_in_more_than_rates_are_built_once_for_each_structure(builds):
    news = News()
    study = parse_study(
        STUDY.format(
            more="service_rates = [2.0, 2.0]", sweep="arrival_rate = [1.0, 2.0, 3.0]\nchoices = [1, 2]"
        ).replace("\nchoices = 1", "")
    )
    result = run_study(study, "result.h5", watcher=news)
    assert [(made["choices"], made["arrival_rate"]) for made in builds] == [(1, 1.0), (2, 1.0)]
    assert [tuple(row.point.values()) for row in result.rows] == [(a, c) for a in (1.0, 2.0, 3.0) for c in (1, 2)]
    assert not result.failed


def test_points_whose_structure_depends_on_the_rates_are_built(builds):
    study = parse_study(
        STUDY.format(more="service_rates = [2.0, 2.0]", sweep="arrival_rate = [0.5, 1.0]").replace(
            "capacity = 3", 'capacity = "auto"\ntruncation_error = 1e-3'
        )
    )
    assert not run_study(study, "result.h5").failed
    assert len(builds) == 2
    builds.clear()
    study = parse_study(
        STUDY.format(
            more="arrival_rate = 1.0", sweep="service_rates = [[2.0, 2.0], [4.0, 4.0], [2.0, 1.0], [2.0, -1.0]]"
        )
    )
    result = run_study(study, "second.h5")
    assert [made["service_rates"] for made in builds] == [[2.0, 2.0], [2.0, 1.0], [2.0, -1.0]]
    assert [row.status for row in result.rows] == ["CONVERGED"] * 3 + ["NOT_BUILT"]
    assert "service_rates" in result.rows[-1].message
