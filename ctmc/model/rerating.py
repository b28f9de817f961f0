"""Models at other rates: states and transitions are found once, and only the numbers change.

A builder says by two attributes what needs no rebuild.  ``rates_that_may_change`` has the names of parameters, or is a function
of the parameters that maps names to None, or to the reason why not.  ``rerate(model, old, new)`` returns the model at the new
parameters, bare as the builder makes it, and raises `ModelError` with the reason where these change more than rates; notes that
still hold stay on it.  Without `rerate` the model is built anew, and takes the arrays that do not depend on rates from the old one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from scipy.sparse import csr_array

from ctmc.errors import ModelError, printable, unknown_name
from ctmc.model.recipe import Recipe, function_named, source_hash
from ctmc.model.streamed import StreamedTransitions

if TYPE_CHECKING:
    from ctmc.model.generator import Generator
    from ctmc.model.qbd import QBD

    Model = TypeVar("Model", Generator, QBD)

RATES = ("rates", "values", "unit", "departures")
"""Names of the arrays of transitions that hold rates; all others are structure."""


def rerated(model: Model, changes: Mapping[str, Any]) -> Model:
    """Return a model at other rates: what its builder would make of the recipe's parameters with these changes.

    Parameters
    ----------
    model : Generator or QBD
    changes : mapping of str to value

    Returns
    -------
    Generator or QBD

    Raises
    ------
    ModelError
        If no builder made the model, or one that cannot do without a rebuild.
    UnknownNameError
        If the builder has no such parameter.
    """
    recipe = model.recipe
    if recipe is None:
        raise ModelError("the model was not made by a builder, so nothing tells which of its numbers are rates.")
    maker: Any = recipe.made_by
    if maker is None:
        raise ModelError(
            f"version {recipe.version} of the builder {printable(recipe.builder)!r} is not installed, so nothing tells which "
            "numbers of the model are rates."
        )
    defaults = {name: parameter.default for name, parameter in inspect.signature(maker).parameters.items()}
    old = {**defaults, **recipe.parameters, **_functions(recipe)}
    may = rates_that_may_change(maker, old)
    for name in changes:
        if name not in defaults:
            raise unknown_name(f"parameter of {recipe.builder}", name, defaults)
        if may.get(name, "") is not None:
            reason = may.get(name, "states and transitions depend on it")
            allowed = ", ".join(rate for rate, why in may.items() if why is None) or "none"
            raise ModelError(
                f"{name} of {recipe.builder} cannot change without a rebuild: {reason}; rates that may: {allowed}."
            )
    new = {**old, **changes}
    own_way = getattr(maker, "rerate", None)
    bare: Any = own_way(model, old, new) if own_way else on_the_structure_of(model, inspect.unwrap(maker)(**new))
    dress: Callable[..., Model] = maker.dress or _plain
    none: dict[str, Any] = {"rewards": {}, "measures": None, "distributions": {}, "notes": ()}
    before = dress(model.replace(**none), **old)
    fresh: Any = dress(bare.replace(**none, recipe=recipe.changed(changes, defaults), content_hash=None), **new)
    own = {name: reward for name, reward in model.rewards.items() if name not in before.rewards}
    notes: tuple[str, ...] = tuple(note for note in bare.notes if note not in before.notes and note not in fresh.notes)
    found: Model = fresh.replace(rewards={**fresh.rewards, **own}, notes=(*fresh.notes, *notes))
    return found


def rates_that_may_change(maker: Any, parameters: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the rates of a builder's model, with None or the reason why one may not change without a rebuild.

    Parameters
    ----------
    maker : callable
        A builder; one without the attribute of this name has none.
    parameters : mapping of str to value
    """
    rates = getattr(maker, "rates_that_may_change", ())
    return dict(rates(**parameters)) if callable(rates) else dict.fromkeys(rates)


def _plain(model: Any, **parameters: Any) -> Any:
    return model


def _functions(recipe: Recipe) -> dict[str, Any]:
    """Return the functions among the parameters, found by their names, and unchanged."""
    found = {}
    for name, digest in recipe.functions.items():
        text = recipe.parameters.get(name)
        if not digest or not isinstance(text, str):
            raise ModelError(f"{name} is {printable(str(text))}, which cannot be found again; build the model anew.")
        found[name] = function_named(name, text)
        if source_hash(found[name]) != digest:
            raise ModelError(f"{name} is {printable(text)}, whose source has changed since; build the model anew.")
    return found


def checked_rates(before: Any, after: Any) -> None:
    """Raise `ModelError` unless two transitions are the same but for their rates."""
    _check_form(before, after)
    if isinstance(before, StreamedTransitions):
        return  # looked at by `StreamedTransitions.rerated`
    for name, one, other in zip(before._fields, before, after, strict=True):
        if name not in RATES:
            if one is not other:
                raise ModelError(f"{name} of the transitions is another array; at other rates it must be the same one.")
        elif one.shape != other.shape or not np.isfinite(other).all() or not np.array_equal(one > 0, other > 0):
            raise ModelError(f"at these {name} a transition would appear, vanish, or have no finite, positive rate.")


def _check_form(before: Any, after: Any) -> None:
    if type(before) is not type(after):
        raise ModelError(
            f"the model's transitions are held as {before.name}; only those in the builder's own form, {after.name}, can "
            "be taken at other rates."
        )


def on_the_structure_of(model: Any, fresh: Any) -> Any:
    """Return the rates of a model that was built anew, on the arrays of one that has the same states and transitions.

    Of a QBD each block takes the places of its rates from the old one where they are the same.

    Raises
    ------
    ModelError
        If a generator has others.
    """
    if hasattr(model, "boundary"):
        levels = zip(model.boundary, fresh.boundary, strict=True)
        boundary = tuple(replace(level, **_shared_blocks(own, level)) for own, level in levels)
        return replace(fresh, boundary=boundary, **_shared_blocks(model, fresh), phases=model.phases, notes=model.notes)
    stored: Any = model.transitions
    if isinstance(stored, StreamedTransitions):
        raise ModelError("the transitions of the model are streamed and have no table of rates; build it anew.")
    rows: Any = fresh.transitions
    _check_form(stored, rows)
    if model.size == fresh.size:
        structure = {name: getattr(stored, name) for name in stored._fields if name not in RATES}
        if all(np.array_equal(array, getattr(rows, name)) for name, array in structure.items()):
            return model.with_transition_rates(rows._replace(**structure))
    raise ModelError("at these rates the model has other transitions; build it anew.")


def rates_by_event(rates: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray | None:
    """Return rates with each old value replaced by the new one, or None where equal old values become different ones.

    Parameters
    ----------
    rates : ndarray, shape (entries,)
    old, new : ndarray, shape (events,)

    Examples
    --------
    >>> rates_by_event(np.array([2.0, 1.0, 2.0]), np.array([1.0, 2.0]), np.array([1.5, 3.0])).tolist()
    [3.0, 1.5, 3.0]
    """
    if old.shape != new.shape:
        return None
    values, first, places = np.unique(old, return_index=True, return_inverse=True)
    if not np.array_equal(new[first][places], new):
        return None
    where = np.minimum(np.searchsorted(values, rates), len(values) - 1)
    return np.asarray(new[first][where]) if np.array_equal(values[where], rates) else None


def _shared_blocks(model: Any, fresh: Any) -> dict[str, csr_array | None]:
    return {name: _shared_block(getattr(model, name), getattr(fresh, name)) for name in ("up", "local", "down")}


def _shared_block(model: csr_array | None, fresh: csr_array | None) -> csr_array | None:
    """Return the rates of one block with the places of the other, where these are equal."""
    if model is None or fresh is None or model.shape != fresh.shape:
        return fresh
    if not (np.array_equal(model.indptr, fresh.indptr) and np.array_equal(model.indices, fresh.indices)):
        return fresh
    block = fresh.copy()
    block.indices, block.indptr = model.indices, model.indptr
    return block
