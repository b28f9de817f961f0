"""Recipes: canonical parameters, hashes, functions, and that no code runs unless it is allowed."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys

import numpy as np
import pytest

import ctmc
from builders.birth_death import birth_death
from ctmc.errors import ModelError, UnknownNameError
from ctmc.model.recipe import Recipe, allowed_code, builder, code_is_allowed, function_named, plain

CHAIN = ctmc.Generator.from_matrix([[0.0, 1.0], [2.0, 0.0]])


@builder(version=3)
def made_for_test(rates, count=2, scale=1.0, mode="plain", extra=None, flag=False):
    return CHAIN


def rule(state):
    return []


class Rule:
    def __call__(self, state):
        return []


@builder(version=1, code=("function",))
def with_code(function, other=None):
    assert not isinstance(function, str)
    return CHAIN


def recipe(*args, **kwargs):
    return made_for_test(*args, **kwargs).recipe


# ---- canonical parameters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(1.5), 1.5),
        (np.int8(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        ((1, (2.5, "a")), [1, [2.5, "a"]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ({"b": (1,), "a": None}, {"b": [1], "a": None}),
        ({(1, 0): 0.5, 7: 1, (np.int64(2), 3): 1}, {"1,0": 0.5, "7": 1, "2,3": 1}),
        (rule, f"{__name__}:rule"),
        (Rule(), f"{__name__}:Rule"),
    ],
)
def test_plain(value, expected):
    found = plain("parameter", value)
    assert found == expected
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("value", [1j, b"bytes", {1, 2}, object(), [object()], {"a": object()}])
def test_values_without_a_plain_form(value):
    with pytest.raises(ModelError, match=r"rates has the value .*, of type \w+; allowed are numbers, text and lists"):
        recipe(rates=value)


def test_parameters_at_their_defaults_are_left_out():
    found = recipe([1.0], count=2, scale=1, mode="plain", extra=None, flag=False)
    assert found == Recipe("made_for_test", 3, {"rates": [1.0]}, {})
    assert recipe([1.0]).hash == found.hash
    assert recipe([1.0], mode="other").parameters == {"rates": [1.0], "mode": "other"}
    assert recipe([1.0], count=True).parameters == {"rates": [1.0], "count": True}


# ---- hashes ---------------------------------------------------------------------------------------------------------


def test_same_model_same_hash():
    hashes = {
        recipe([3, 2, 1], scale=3, extra={"a": 1, "b": [2]}).hash,
        recipe((3.0, 2.0, 1.0), scale=3.0, extra={"b": [2.0], "a": 1}).hash,
        recipe(np.array([3, 2, 1]), extra={"b": (2,), "a": np.float32(1)}, scale=np.float64(3)).hash,
        recipe(np.array([3.0, 2.0, 1.0]), scale=np.int64(3), extra={"a": 1.0, "b": np.array([2])}, flag=False).hash,
    }
    assert len(hashes) == 1


def test_other_model_other_hash():
    base = Recipe("queue", 1, {"rates": [1.0, 2.0], "mode": "a"})
    others = [
        Recipe("queues", 1, base.parameters),
        Recipe("queue", 2, base.parameters),
        Recipe("queue", 1, {"rates": [2.0, 1.0], "mode": "a"}),
        Recipe("queue", 1, {"rates": [1.0, 2.0000000000000004], "mode": "a"}),
        Recipe("queue", 1, {"rates": [1.0, 2.0], "mode": "b"}),
        Recipe("queue", 1, {"rates": [1.0, 2.0]}),
        Recipe("queue", 1, {"rates": [1.0, "2"], "mode": "a"}),
        Recipe("queue", 1, {"rates": [True, 2.0], "mode": "a"}),
        Recipe("queue", 1, {"rates": [[1.0, 2.0]], "mode": "a"}),
        Recipe("queue", 1, base.parameters, {"mode": "0" * 64}),
    ]
    assert len({one.hash for one in [base, *others]}) == len(others) + 1


def test_hash_survives_json():
    one = recipe([0.1, 1e300, 5e-324, -0.0], extra={"z": [1, 2], "a": "ä"})
    stored = json.loads(json.dumps(dict(one.parameters)))
    assert Recipe(one.builder, one.version, stored).hash == one.hash
    assert len(one.hash) == 64


def test_recipe_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe([1.0]).version = 9


# ---- the decorator --------------------------------------------------------------------------------------------------


def test_builders_keep_name_version_and_text():
    assert birth_death.__name__ == "birth_death"
    assert "Birth-death" in birth_death.__doc__
    assert birth_death.version == 1
    assert callable(birth_death.dress)
    assert birth_death([1.0], [2.0]).recipe.version == 1


def test_unknown_parameters_get_close_names():
    with pytest.raises(UnknownNameError, match="no parameter of birth_death 'birth'; did you mean 'births'"):
        birth_death(birth=[1.0], deaths=[1.0])


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, ["missing", "births", "needed are births, deaths"]),
        (([1.0],), {}, ["missing", "deaths"]),
        (([1.0], [1.0], 5), {}, ["too many"]),
        (([1.0], [1.0]), {"births": [1.0]}, ["multiple values", "births"]),
    ],
)
def test_missing_and_doubled_parameters(args, kwargs, words):
    with pytest.raises(ModelError) as caught:
        birth_death(*args, **kwargs)
    assert all(word in str(caught.value) for word in words), caught.value


def test_dress_gets_all_parameters():
    seen = {}

    def dress(model, **parameters):
        seen.update(parameters)
        return model.replace(notes=("dressed",))

    @builder(version=1, dress=dress)
    def dressed(rates, count=2):
        return CHAIN

    model = dressed([1.0])
    assert seen == {"rates": [1.0], "count": 2}
    assert model.notes == ("dressed",)
    assert model.recipe.builder == "dressed"
    assert CHAIN.recipe is None


# ---- functions ------------------------------------------------------------------------------------------------------


def test_importable_functions_are_reproducible():
    found = with_code(rule).recipe
    assert found.parameters == {"function": f"{__name__}:rule"}
    assert len(found.functions["function"]) == 64
    assert found.reproducible
    other = with_code(rule, other=rule).recipe
    assert set(other.functions) == {"function", "other"}


def inner():
    def local(state):
        return []

    return local


@pytest.mark.parametrize(
    "value", [lambda state: [], inner(), functools.partial(rule, 1), Rule(), {"a": 1}.get, object()]
)
def test_other_functions_and_objects_are_not(value):
    found = with_code(value).recipe
    assert found.functions == {"function": ""}
    assert not found.reproducible
    assert found.hash


def test_functions_of_the_main_program_are_not():
    def function(state):
        return []

    function.__module__, function.__qualname__ = "__main__", "function"
    assert not with_code(function).recipe.reproducible


def test_the_source_enters_the_hash(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    hashes = []
    for number in (1, 2):
        name = f"rules_for_test_{number}"
        (tmp_path / f"{name}.py").write_text(f"def rule(state):\n    return [(state, {number})]\n", encoding="utf-8")
        with allowed_code():
            found = with_code(f"{name}:rule").recipe
        hashes.append(found.functions["function"])
    assert len(set(hashes)) == 2


def marker_module(tmp_path, monkeypatch, name, body):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    marker = tmp_path / "ran"
    (tmp_path / f"{name}.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n{body}\n", encoding="utf-8"
    )
    return marker


def test_no_code_unless_allowed(tmp_path, monkeypatch):
    marker = marker_module(tmp_path, monkeypatch, "marker_for_test", "def rule(state):\n    return []")
    for make in (
        lambda: function_named("rule", "marker_for_test:rule"),
        lambda: with_code("marker_for_test:rule"),
        lambda: ctmc.build("reachable", transitions="marker_for_test:rule", initial=0),
    ):
        with pytest.raises(
            ModelError, match=r"'marker_for_test:rule', whose code would run; allow it with --allow-code"
        ):
            make()
    assert not marker.exists()
    assert "marker_for_test" not in sys.modules
    with allowed_code():
        assert code_is_allowed()
        with allowed_code(False), pytest.raises(ModelError, match="--allow-code"):
            function_named("rule", "marker_for_test:rule")
        assert not marker.exists()
        found = function_named("rule", "marker_for_test:rule")
    assert not code_is_allowed()
    assert marker.exists()
    assert found(0) == []
    assert with_code(found).recipe.parameters == {"function": "marker_for_test:rule"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module_for_test:rule", ["cannot be imported", "ModuleNotFoundError"]),
        ("math:no_such_function", ["cannot be imported", "no_such_function"]),
        ("math", ["cannot be imported"]),
        ("math:", ["cannot be imported"]),
        (":rule", ["cannot be imported"]),
        ("", ["cannot be imported"]),
        ("math:pi", ["a float", "allowed is a function"]),
        ("math:pi\x1b", ["\\x1b"]),
    ],
)
def test_names_of_no_functions(name, words):
    with allowed_code(), pytest.raises(ModelError) as caught:
        function_named("rule", name)
    assert all(word in str(caught.value) for word in ["rule", *words]), caught.value
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("body", ["raise RuntimeError('broken')", "def rule(:", "1 / 0"])
def test_a_module_that_fails(tmp_path, monkeypatch, body):
    marker_module(tmp_path, monkeypatch, "broken_for_test", body)
    with allowed_code(), pytest.raises(ModelError, match="'broken_for_test:rule', which cannot be imported"):
        function_named("rule", "broken_for_test:rule")


def test_a_method_is_found_by_its_path():
    with allowed_code():
        assert function_named("rule", "pathlib:Path.exists").__name__ == "exists"
