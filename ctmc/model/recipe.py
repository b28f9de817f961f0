"""How a model was made: builder, version and parameters, with a hash that finds it again; and the builder decorator."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ctmc.errors import ModelError, PluginError, printable, shown, unknown_name
from ctmc.model.parameters import check_function, whole_number
from ctmc.model.streamed import streaming

if TYPE_CHECKING:
    from ctmc.model.generator import Generator
    from ctmc.model.qbd import QBD

    Model: TypeAlias = Generator | QBD

RECIPE_SCHEMA = 1
"""Raised whenever the same recipe would make another model; part of every recipe's hash."""

_code_allowed: ContextVar[bool] = ContextVar("code_allowed", default=False)


@dataclass(frozen=True)
class Recipe:
    """A builder's name and version with canonical parameters.

    Attributes
    ----------
    builder : str
    version : int
        The builder's own version.
    parameters : mapping of str to JSON value
        Every parameter that was not left at its default, as plain numbers, strings, booleans and lists; a function stands
        as ``module:function``.
    functions : mapping of str to str
        For each parameter that is a function, the SHA-256 of its source; empty where there is none to be had.
    made_by : callable, optional
        The builder itself, where it is installed in this version; no part of what the recipe says.

    Examples
    --------
    >>> Recipe("birth_death", 1, {"births": [1.0], "deaths": [2.0]}).hash[:12]
    '4de5d3ab52e3'
    """

    builder: str
    version: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    made_by: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    @property
    def reproducible(self) -> bool:
        """Whether the recipe makes the same model again: every function has a source to compare."""
        return all(self.functions.values())

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON form, hexadecimal; 3 and 3.0 are the same number, orders of names do not count."""
        form = [RECIPE_SCHEMA, self.builder, self.version, _whole(self.parameters), dict(self.functions)]
        return hashlib.sha256(json.dumps(form, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def changed(self, changes: Mapping[str, Any], defaults: Mapping[str, Any]) -> Recipe:
        """Return the recipe with some parameters changed, as the builder would write it."""
        chosen = {name: plain(name, value) for name, value in changes.items() if not _same(value, defaults[name])}
        kept = {name: value for name, value in self.parameters.items() if name not in changes}
        return replace(self, parameters={**kept, **chosen})


@dataclass(frozen=True)
class Prepared:
    """A model that is about to be built: its recipe is known, its arrays are not.

    Attributes
    ----------
    recipe : Recipe or None
        None where the builder keeps none.
    build : callable
        Returns the model.
    """

    recipe: Recipe | None
    build: Callable[[], Model]


def _whole(value: Any) -> Any:
    """Return a plain value with whole floats as ints."""
    if isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def plain(name: str, value: Any) -> Any:
    """Return a parameter's value as JSON would give it back: lists, floats, ints, strings, booleans, None.

    A mapping's keys become text: a state (1, 0) becomes "1,0".

    Examples
    --------
    >>> plain("example", (np.float64(1.5), np.int64(2), "random"))
    [1.5, 2, 'random']
    """
    if isinstance(value, Mapping):
        return {_key(name, key): plain(name, item) for key, item in value.items()}
    if np.ma.is_masked(value):
        raise ModelError(f"{name} is {shown(value)}; allowed are numbers that are not masked.")
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return [plain(name, item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    if callable(value):
        return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__name__)}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ModelError(
        f"{name} has the value {shown(value)}, of type {type(value).__name__}; allowed are numbers, text and lists of them."
    )


def _key(name: str, key: Any) -> str:
    value = plain(name, key)
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def builder(
    version: int,
    dress: Callable[..., Model] | None = None,
    code: tuple[str, ...] = (),
    resolve: Callable[..., tuple[dict[str, Any], tuple[str, ...]]] | None = None,
) -> Callable[[Callable[..., Model]], Callable[..., Model]]:
    """Make a function a builder: its model carries the recipe, and is dressed.

    Parameters
    ----------
    version : int
        Raised whenever the same parameters would give other arrays.
    dress : callable, optional
        ``dress(model, **parameters)`` returns the model with rewards, measures and notes.  It is kept apart from the
        arrays, so that a stored model gets them back without being built again.
    code : tuple of str
        Parameters that take a function.  Text ``module:function`` is looked up, if that is allowed, so that the function
        arrives and its source enters the recipe either way.  Any other object, such as a graph, stands in the recipe as
        its type, and makes it not reproducible.
    resolve : callable, optional
        ``resolve(**parameters)`` returns parameters that replace those given, and notes for the model.  It is called before
        the recipe is made: what a parameter leaves open, such as a capacity that must suffice for an accuracy, is found out
        once, and stands in the recipe as what was found.

    Returns
    -------
    callable
        The decorator.  Unknown parameters raise `UnknownNameError`, missing ones `ModelError`.
    """
    whole_number("version", version, 1)
    check_function("dress", dress, "a function of the model and its parameters")
    check_function("resolve", resolve, "a function of the parameters")

    def decorate(function: Callable[..., Model]) -> Callable[..., Model]:
        signature = inspect.signature(function)

        def prepare(*args: Any, **kwargs: Any) -> Prepared:
            for name in kwargs:
                if name not in signature.parameters:
                    raise unknown_name(f"parameter of {function.__name__}", name, signature.parameters)
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise ModelError(f"{function.__name__}: {error}; needed are {_required(signature)}.") from None
            for name in code:
                if isinstance(given.get(name), str) and ":" in given[name]:
                    given[name] = function_named(name, given[name])
            defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
            notes: tuple[str, ...] = ()
            if resolve is not None:
                # what is solved on the way is small, and looked at many times
                with streaming(False), _numbers_that_fit(given):
                    changes, notes = resolve(**{**defaults, **given})
                given |= changes
            objects = {
                name for name in code if not (callable(given.get(name)) or isinstance(given.get(name), str | None))
            }
            chosen = {
                name: plain(name, type(value) if name in objects else value)
                for name, value in given.items()
                if not _same(value, defaults[name])
            }
            functions = {name: source_hash(value) for name, value in given.items() if callable(value)}
            functions |= dict.fromkeys(sorted(objects), "")
            recipe = Recipe(function.__name__, version, chosen, functions, made)

            def build() -> Model:
                with _numbers_that_fit(given):
                    model = function(**given)
                if not hasattr(model, "replace") or isinstance(model, str):
                    raise PluginError(f"builder {function.__name__!r} returns {shown(model)}; allowed is a model.")
                model = model.replace(recipe=recipe)
                if notes:
                    model = model.replace(notes=(*model.notes, *notes))
                return model if dress is None else dress(model, **{**defaults, **given})

            return Prepared(recipe, build)

        @functools.wraps(function)
        def made(*args: Any, **kwargs: Any) -> Model:
            return prepare(*args, **kwargs).build()

        made.version, made.dress, made.prepare = version, dress, prepare  # type: ignore[attr-defined]  # functions have attributes
        return made

    return decorate


@contextmanager
def _numbers_that_fit(given: Mapping[str, Any]) -> Iterator[None]:
    """Name the parameter whose whole number is more than a builder can count with."""
    try:
        yield
    except OverflowError as error:
        for name, value in given.items():
            if _too_large(value):
                raise ModelError(
                    f"{name} has a number beyond 2^63 = {2**63:,}; allowed are numbers that can be counted to."
                ) from error
        raise


def _too_large(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_too_large, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_too_large, value))
    return isinstance(value, int) and abs(value) >= 2**63


def _same(value: Any, default: Any) -> bool:
    numbers = all(isinstance(one, int | float | np.number) and not isinstance(one, bool) for one in (value, default))
    return (numbers or type(value) is type(default)) and not isinstance(value, np.ndarray) and bool(value == default)


def _required(signature: inspect.Signature) -> str:
    return ", ".join(name for name, parameter in signature.parameters.items() if parameter.default is parameter.empty)


def source_hash(function: Any) -> str:
    """Return SHA-256 of a function's source, '' where there is none that can be compared."""
    if getattr(function, "__module__", "__main__") == "__main__" or "<" in getattr(function, "__qualname__", "<"):
        return ""  # cannot be imported again by name
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


@contextmanager
def allowed_code(allowed: bool = True) -> Iterator[None]:
    """Allow, inside a ``with`` block, that a function named in a file or on the command line is imported."""
    token = _code_allowed.set(allowed)
    try:
        yield
    finally:
        _code_allowed.reset(token)


def code_is_allowed() -> bool:
    """Return whether names of functions may be imported here."""
    return _code_allowed.get()


def function_named(parameter: str, name: str) -> Callable[..., Any]:
    """Return the function ``module:function``, if importing it is allowed.

    Raises
    ------
    ModelError
        If it is not allowed (nothing is imported then), or there is no such function.
    """
    module, _, path = name.partition(":")
    if not code_is_allowed():
        raise ModelError(
            f"{parameter} names the function {printable(name)!r}, whose code would run; allow it with --allow-code, "
            "or in Python pass the function itself."
        )
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # the module is the user's: whatever it does, the answer is one sentence
        raise ModelError(
            f"{parameter} is {printable(name)!r}, which cannot be imported: {type(error).__name__}: {printable(error)}."
        ) from error
    if not callable(found):
        raise ModelError(f"{parameter} is {printable(name)!r}, a {type(found).__name__}; allowed is a function.")
    return found  # type: ignore[no-any-return]  # any callable
