"""Models of a study that differ only in rates: one is built, the others are it at other rates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ctmc import registry
from ctmc.errors import CTMCError
from ctmc.model.recipe import plain
from ctmc.model.rerating import rates_that_may_change
from ctmc.study.content import StudyModel
from ctmc.study.sweep import shown


class Builds:
    """Makes models one after another, and keeps the last one that was built.

    Attributes
    ----------
    said : str
        Of the last model, what was changed in place of a build, such as ``re-rated: arrival_rate 1.1``; else ''.

    Examples
    --------
    >>> builds = Builds()
    >>> _ = builds.model("birth_death", {"births": [1.0], "deaths": [2.0]})
    >>> model = builds.model("birth_death", {"births": [3.0], "deaths": [2.0]})
    >>> builds.said, model.exit_rates.tolist()
    ('re-rated: births 3', [3.0, 2.0])
    """

    def __init__(self) -> None:
        self.said = ""
        self._first: tuple[str, Mapping[str, Any], Any] | None = None

    def model(self, builder: str, parameters: Mapping[str, Any]) -> Any:
        """Return the model of a builder at these parameters."""
        self.said = ""
        changes = self._changes(builder, parameters)
        if changes:
            assert self._first is not None
            try:
                model = self._first[2].with_rates(**changes)
            except CTMCError:
                pass  # more than rates changes, or a rate is out of range: the build tells
            else:
                self.said = "re-rated: " + ", ".join(f"{name} {shown(value)}" for name, value in changes.items())
                return model
        self._first = None  # one built model in memory at a time
        model = registry.build(builder, **parameters)
        if model.recipe is not None and _is_taken_as_given(model.recipe.parameters, parameters):
            self._first = (builder, dict(parameters), model)
        return model

    def _changes(self, builder: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rates in which a model differs from the one that was built; none where more differs."""
        if self._first is None or self._first[0] != builder or self._first[1].keys() != parameters.keys():
            return {}
        before = self._first[1]
        changes = {name: value for name, value in parameters.items() if not _equal(name, value, before[name])}
        may = rates_that_may_change(registry.builder(builder), parameters)
        return changes if all(may.get(name, "") is None for name in changes) else {}


def _is_taken_as_given(recipe: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """Return whether no parameter was left open for the builder to find, such as a capacity, which depends on the rates."""
    return all(name not in recipe or _equal(name, recipe[name], value) for name, value in parameters.items())


def _equal(name: str, one: Any, other: Any) -> bool:
    return bool(plain(name, one) == plain(name, other))


def build_order(models: Mapping[str, StudyModel]) -> list[str]:
    """Return the names of models in an order in which those that differ only in rates follow one another.

    Examples
    --------
    >>> points = [(rate, choices) for rate in (1.0, 2.0) for choices in (1, 2)]
    >>> common = {"service_rates": [3, 2], "capacity": 5}
    >>> models = {
    ...     f"{rate:g} {choices}": StudyModel("queue", "supermarket", {**common, "arrival_rate": rate, "choices": choices})
    ...     for rate, choices in points
    ... }
    >>> build_order(models)
    ['1 1', '2 1', '1 2', '2 2']
    """
    groups: dict[str, list[str]] = {}
    for name, model in models.items():
        groups.setdefault(_structure(name, model), []).append(name)
    return [name for group in groups.values() for name in group]


def _structure(name: str, model: StudyModel) -> str:
    """Return a text that is the same for models that can differ in rates only."""
    try:
        may = rates_that_may_change(registry.builder(model.builder), model.parameters)
        fixed = {
            key: None if may.get(key, "") is None else plain(key, value) for key, value in model.parameters.items()
        }
    except CTMCError:  # what is wrong is told when the model is built
        return name
    return json.dumps([model.builder, fixed, name if model.optimize else None], sort_keys=True)
