"""Checks of solver options, with one sentence for what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctmc.errors import ModelError, shown, unknown_name
from ctmc.model.parameters import real_number, whole_number


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise `ModelError` unless the option is a whole number of at least `least`."""
    whole_number(name, value, least)


def check_between(name: str, value: Any, low: float, high: float) -> None:
    """Raise `ModelError` unless low < value < high."""
    real_number(name, value, lambda number: low < number < high, f"a number between {low:g} and {high:g}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise `UnknownNameError` unless the option is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise unknown_name(name, value, choices)


def check_text(name: str, value: Any) -> None:
    """Raise `ModelError` unless the option is text."""
    if not isinstance(value, str):
        raise ModelError(f"{name} is {shown(value)}; allowed is text.")
