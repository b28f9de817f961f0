"""What a builder does wrong is found and named, and a good one passes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from contract_examples import COUNTER
from pages import HOME, blocks_of

import ctmc
from ctmc import registry
from ctmc.contract import check_builder
from ctmc.errors import ModelError
from ctmc.model.generator import Generator


def coin(rate: float) -> Any:
    """Two states.

    Parameters
    ----------
    rate : float
        Of both transitions.
    """
    return Generator.from_matrix([[0, rate], [rate, 0]])


def undocumented(rate: float) -> Any:
    """Two states."""
    return coin(rate)


def drifting(rate: float) -> Any:
    """Another model each time.

    Parameters
    ----------
    rate : float
    """
    return coin(rate + next(COUNTER))


def nothing(rate: float) -> Any:
    """No model at all.

    Parameters
    ----------
    rate : float
    """
    return [rate]


def refusing(rate: float) -> Any:
    """Not this one.

    Parameters
    ----------
    rate : float
    """
    raise ModelError("rate is too good to be true.")


def half_documented(rate: float, other: float = 1.0, third: float = 1.0) -> Any:
    """Parameters in one line of numpydoc, and one without.

    Parameters
    ----------
    rate, other : float
        The words third : float stand in a meaning.
    """
    return coin(rate)


def swallowing(rate: float, **other: Any) -> Any:
    """Takes anything.

    Parameters
    ----------
    rate : float
    other : float
    """
    return coin(rate)


def reducible(rate: float) -> Any:
    """Two absorbing states.

    Parameters
    ----------
    rate : float
    """
    return Generator.from_matrix(np.zeros((2, 2)))


def infinite(rate: float) -> Any:
    """Measures that are no numbers.

    Parameters
    ----------
    rate : float
    """
    return coin(rate).replace(measures=lambda solution: {"load": np.inf, "jobs": 1.0})


@pytest.fixture
def builder(monkeypatch):
    """Register a function, as it is or decorated, under its own name."""

    def register(function, decorated=True):
        made = ctmc.builder(version=1)(function) if decorated else function
        monkeypatch.setattr(registry, "builder", lambda name: made)
        return function.__name__

    return register


def test_good_builders_pass(builder):
    assert check_builder(builder(coin), {"rate": 1.0}) == []
    assert check_builder(builder(reducible), {"rate": 1.0}) == []


def test_the_builder_of_the_page_passes(monkeypatch):
    page = (HOME / "docs" / "how-to" / "add-a-builder.md").read_text(encoding="utf-8")
    (source,) = [block.text for block in blocks_of(page) if block.marks.get("file") == "repair_shop.py"]
    names: dict[str, Any] = {"__name__": "repair_shop"}
    exec(source, names)
    monkeypatch.setattr(registry, "builder", lambda name: names[name])
    call = re.search(r"`ctmc\.contract\.(check_builder\(.*\))`", page)[1]
    assert eval(call, {"check_builder": check_builder}) == []


@pytest.mark.parametrize(
    ("function", "decorated", "words"),
    [
        (
            coin,
            False,
            ["the model of coin carries no recipe", "coin raises a TypeError for a parameter that does not exist"],
        ),
        (undocumented, True, ["parameter rate of undocumented is not in its docstring."]),
        (half_documented, True, ["parameter third of half_documented is not in its docstring."]),
        (drifting, True, ["drifting gives another model when it is called again."]),
        (nothing, False, ["nothing returns a list; allowed is a Generator or a QBD."]),
        (refusing, True, ["refusing raised ModelError: rate is too good to be true."]),
        (
            swallowing,
            False,
            ["swallowing takes a parameter that does not exist.", "the model of swallowing carries no recipe"],
        ),
        (infinite, True, ["measure load of infinite is not finite."]),
    ],
)
def test_bad_builders_are_found_and_named(builder, function, decorated, words):
    found = check_builder(builder(function, decorated), {"rate": 1.0})
    for word in words:
        assert any(word in sentence for sentence in found), found
    assert len(found) == len(words)
