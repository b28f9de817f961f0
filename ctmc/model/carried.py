"""What every model carries beside its rates, checked: rewards, measures, distributions, notes, and where it comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctmc.errors import ModelError, shown
from ctmc.model.parameters import check_function, check_known, check_mapping
from ctmc.model.recipe import Recipe
from ctmc.model.reward import Reward, check_rewards


def set_carried(model: Any, size: int | None) -> None:
    """Check the fields that all kinds of models have, and set them on a frozen model.

    Parameters
    ----------
    model : Generator, QBD or LevelDependentQBD
    size : int, optional
        Number of states; None where levels go on without end, so that rewards must be functions.

    Raises
    ------
    ModelError
        Names the first field that is wrong.
    """
    object.__setattr__(model, "rewards", _checked_rewards(model.rewards, size))
    check_function("measures", model.measures, "a function of a solution")
    distributions: Mapping[str, Callable[..., Any]] = getattr(model, "distributions", {})
    check_mapping("distributions", distributions, "functions of a solution")
    for name, function in distributions.items():
        check_function(f"distribution {shown(name)}", function, "a function of a solution")
    notes: Any = model.notes
    texts = isinstance(notes, Sequence) and not isinstance(notes, str)
    if not texts or not all(isinstance(note, str) for note in notes):
        raise ModelError(f"notes is {shown(notes)}; allowed are sentences, such as ('Measured in May.',).")
    object.__setattr__(model, "notes", tuple(notes))
    for name, kind, what in (("recipe", Recipe, "that of a builder"), ("content_hash", str, "text")):
        given = getattr(model, name)
        if given is not None and not isinstance(given, kind):
            raise ModelError(f"{name} is {shown(given)}; allowed is {what}, or None.")


def _checked_rewards(given: Any, size: int | None) -> dict[str, Reward]:
    if size is not None:
        return check_rewards(given, size)
    check_mapping("rewards", given, "rewards")
    for name, reward in given.items():
        arrays = [part for part in ("rate", "impulse", "self_loops") if _is_array(getattr(reward, part, None))]
        if arrays:
            raise ModelError(
                f"{arrays[0]} of reward {shown(name)} is an array, but levels go on without end; allowed is a function of states."
            )
    return check_rewards(given, 0)


def _is_array(part: Any) -> bool:
    return part is not None and not callable(part)


def check_fields(kind: type, changes: Mapping[str, Any], allowed: Sequence[str] | None = None) -> None:
    """Raise `UnknownNameError` for a name that is no field of a model, or none of those that are `allowed`."""
    own = [field.name for field in dataclasses.fields(kind) if not field.name.startswith("_")]
    check_known(f"field of a {kind.__name__} that may be given here", changes, own if allowed is None else allowed)
