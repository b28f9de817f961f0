"""Checks of solver options, with one sentence for what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctmc.errors import ModelError, unknown_name


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise `ModelError` unless the option is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ModelError(f"{name} is {value!r}; allowed is a whole number >= {least}.")


def check_between(name: str, value: Any, low: float, high: float) -> None:
    """Raise `ModelError` unless low < value < high."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low < value < high:
        raise ModelError(f"{name} is {value!r}; allowed is a number between {low:g} and {high:g}.")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise `UnknownNameError` unless the option is one of the choices."""
    if value not in choices:
        raise unknown_name(name, value, choices)
