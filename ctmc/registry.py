"""Builders and solvers by name: the files of our own folders, then the entry points of installed packages.

A builder is a function in ``builders/NAME.py`` or ``builders/NAME/``; a solver a class in ``solvers/TOPIC/FILE.py``, named
as the file in CamelCase.  Third parties use the entry-point groups ``ctmc.builders`` and ``ctmc.solvers``.  Nothing is
imported before it is asked for, and a plug-in that fails to import spoils only its own name.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import operator
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctmc.errors import ModelError, PluginError, UnsupportedProblemError, printable, shown, unknown_name

if TYPE_CHECKING:
    from ctmc.model.recipe import Prepared
    from ctmc.solver import Solver

# `ctmc.problem` and `ctmc.solver` (NumPy, SciPy) are imported where they are used: names are listed without waiting for them.

HOME = Path(__file__).resolve().parent.parent
"""The folder that holds `ctmc`, and beside it `builders` and `solvers`."""


def builder_names() -> list[str]:
    """Return the names of all builders, sorted."""
    return sorted(_places("builders"))


def solver_names() -> list[str]:
    """Return the names of all solvers, sorted."""
    return sorted(_places("solvers"))


def builder(name: str) -> Callable[..., Any]:
    """Return a builder by name.

    Raises
    ------
    UnknownNameError
        If there is none; close names are listed.
    PluginError
        If its module fails to load, or has no function of that name.
    """
    found = _load("builder", name, _places("builders"))
    if not callable(found):
        raise PluginError(f"builder {name!r} is a {type(found).__name__}; a builder is a function.")
    return found  # type: ignore[no-any-return]  # any callable


def builder_designs(name: str) -> dict[str, Callable[..., Any]]:
    """Return what can be optimised in a builder's models: name -> function (parameters, maximum) -> Design.

    A builder says so by its attribute ``designs``; most have none.  See `ctmc.study.design`.
    """
    return dict(getattr(builder(name), "designs", {}))


def builder_version(name: str) -> int:
    """Return a builder's version, 0 where it has none."""
    return int(getattr(builder(name), "version", 0))


def optimal_policy(name: str) -> Callable[..., Any]:
    """Return the function that finds the optimal policy of a builder's model, which the builder's ``policy`` names.

    Raises
    ------
    UnsupportedProblemError
        If the model has no decisions; the builders of those that have are listed.
    PluginError
        If the builder or the function fails to load.
    """
    if not hasattr(builder(name), "policy"):
        others = ", ".join(policy_names()) or "none"
        raise UnsupportedProblemError(f"the model of builder {name!r} has no decisions; builders that have: {others}.")
    return _function_of(name, "policy")


def policy_names() -> list[str]:
    """Return the names of the builders whose models have decisions; plug-ins that fail to load are passed over."""
    return _names_with("policy")


def simulator(name: str) -> Callable[..., Any]:
    """Return the function that simulates a builder's system, which the builder's ``simulation`` names.

    Raises
    ------
    UnsupportedProblemError
        If there is none; the builders that have one are listed.
    PluginError
        If the builder or the function fails to load.
    """
    if not hasattr(builder(name), "simulation"):
        others = ", ".join(simulator_names()) or "none"
        raise UnsupportedProblemError(
            f"the builder {name!r} has no simulator of its own; builders that have: {others}; "
            "any Generator can be simulated once it is built."
        )
    return _function_of(name, "simulation")


def simulator_names() -> list[str]:
    """Return the names of the builders that have a simulator; plug-ins that fail to load are passed over."""
    return _names_with("simulation")


def mean_field(name: str) -> Callable[..., Any]:
    """Return the function of a builder's limit of infinitely many servers, which the builder's ``mean_field`` names.

    Raises
    ------
    UnsupportedProblemError
        If it has none; the builders that have are listed.
    PluginError
        If the builder or the function fails to load.
    """
    if not hasattr(builder(name), "mean_field"):
        others = ", ".join(mean_field_names()) or "none"
        raise UnsupportedProblemError(
            f"builder {name!r} has no limit of infinitely many servers; builders that have: {others}."
        )
    return _function_of(name, "mean_field")


def mean_field_names() -> list[str]:
    """Return the names of the builders with a limit of infinitely many servers; as `policy_names`."""
    return _names_with("mean_field")


def _function_of(name: str, attribute: str) -> Callable[..., Any]:
    """Return the function that an attribute of a builder names as ``module:function``."""
    found: Callable[..., Any] = _load(attribute, name, {name: getattr(builder(name), attribute)})
    return found


def _names_with(attribute: str) -> list[str]:
    names = []
    for name in builder_names():
        with contextlib.suppress(PluginError):
            if hasattr(builder(name), attribute):
                names.append(name)
    return names


def solver_class(name: str) -> type[Solver]:
    """Return a solver's class by name; raises as `builder` does."""
    found = _load("solver", name, _places("solvers"))
    if not isinstance(found, type) or not dataclasses.is_dataclass(found) or not callable(getattr(found, "run", None)):
        raise PluginError(f"solver {name!r} is not a dataclass with `solves`, `needs` and `run`.")
    for attribute in ("solves", "needs"):
        declared = getattr(found, attribute, None)
        kinds = (declared,) if attribute == "needs" and isinstance(declared, type) else declared
        if not isinstance(kinds, tuple) or not kinds or not all(isinstance(kind, type) for kind in kinds):
            raise PluginError(f"solver {name!r} has {attribute} = {shown(declared)}; allowed is a tuple of classes.")
    return found  # type: ignore[return-value]  # looked at above


def load_own_solvers() -> None:
    """Import all solvers of the project, none of a plug-in: for a process that is forked for each solve."""
    for name, place in _places("solvers").items():
        if place.startswith("solvers."):
            solver_class(name)


def solver_name(solver: Any) -> str:
    """Return the name of a solver instance: its class name in snake_case."""
    return snake_case(type(solver).__name__)


def snake_case(name: str) -> str:
    """Return a CamelCase name in snake_case.

    Examples
    --------
    >>> snake_case("PowerIteration"), snake_case("SparseLu")
    ('power_iteration', 'sparse_lu')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def make_solver(given: Any) -> Solver:
    """Return a solver from an instance, or from text such as ``gmres`` or ``gmres(restart=50, preconditioner='ilu')``.

    Examples
    --------
    >>> make_solver("gauss_seidel(relaxation=1.1)").relaxation
    1.1
    """
    from ctmc.solver import Solver

    if not isinstance(given, str):
        if isinstance(given, type) or not isinstance(given, Solver):
            raise ModelError(f"solver is {shown(given)}; allowed is a solver object or the name of one.")
        return given
    match = re.fullmatch(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*", given, flags=re.DOTALL)
    if match is None:
        raise ModelError(f"solver is {shown(given)}; allowed is NAME or NAME(option=value, ...).")
    options = plain_options("solver", given, match[2] or "")
    return solver_with(match[1], options)


def solver_with(name: str, options: dict[str, Any]) -> Solver:
    """Return the named solver with options; unknown ones raise `UnknownNameError`."""
    kind = solver_class(name)
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # solvers are dataclasses
    for option in options:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known)
    return kind(**options)


def solvers_for(problem: Any) -> list[str]:
    """Return the names of the solvers that take a problem; those that fail to load, or lack a library, are passed over."""
    names = []
    for name in solver_names():
        try:
            kind = solver_class(name)
        except PluginError:
            continue
        if takes(kind, problem) and not missing_library(kind):
            names.append(name)
    return names


def missing_library(kind: Any) -> str:
    """Return what to install before a solver (class or instance) can run, in one clause, or '' if nothing is missing.

    Examples
    --------
    >>> class Clairvoyant:
    ...     library = ("crystal_ball", "foresight")
    >>> missing_library(Clairvoyant)
    "needs crystal_ball: pip install 'ctmc-lab[foresight]'"
    """
    module, extra = getattr(kind, "library", ("ctmc", ""))
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that the module is in
        found = False
    return "" if found else f"needs {module}: pip install 'ctmc-lab[{extra}]'"


def takes(kind: Any, problem: Any) -> bool:
    """Return whether a solver (class or instance) takes a problem with its model."""
    return _fits(kind, problem) and not _refusal(kind, problem)


def _fits(kind: Any, problem: Any) -> bool:
    return isinstance(problem, kind.solves) and isinstance(problem.model, kind.needs)


def _refusal(kind: Any, problem: Any) -> str:
    """Return why a solver that needs some structure, or all of a model, refuses this one, or ''."""
    if getattr(problem.model, "shared", False) and not getattr(kind, "shared", False):
        return "it needs the whole model in one process"
    refuses = getattr(kind, "refuses", None)
    return str(refuses(problem.model)) if refuses is not None else ""


def check_takes(solver: Solver, problem: Any) -> None:
    """Raise `UnsupportedProblemError`, listing the solvers that do, if this one does not take the problem.

    A solver that takes it, but lacks its library, raises `PluginError`.
    """
    if takes(solver, problem):
        missing = missing_library(solver)
        if missing:
            raise PluginError(f"{solver_name(solver)} {missing}.")
        return
    others = ", ".join(solvers_for(problem)) or "none"
    reason = f" ({_refusal(solver, problem)})" if _fits(solver, problem) else ""
    raise UnsupportedProblemError(
        f"{solver_name(solver)} does not take a {type(problem).__name__} problem on a {type(problem.model).__name__}{reason}; "
        f"solvers that do: {others}."
    )


def problem_class(name: str) -> Any:
    """Return a problem class by its name on the command line."""
    from ctmc.problem import PROBLEMS

    if name not in PROBLEMS:
        raise unknown_name("problem", name, PROBLEMS)
    return PROBLEMS[name]


def problem_name(kind: type) -> str:
    """Return the name of a problem class on the command line, in studies and in files.

    Examples
    --------
    >>> from ctmc.problem import AccumulatedReward
    >>> problem_name(AccumulatedReward)
    'accumulated-reward'
    """
    return snake_case(kind.__name__).replace("_", "-")


def build(name: str, **parameters: Any) -> Any:
    """Build a model: the same as calling the builder's function.

    Parameters
    ----------
    name : str
        Name of the builder.
    **parameters
        Of the builder; ``ctmc build NAME --help`` lists them.

    Returns
    -------
    Generator or QBD
    """
    return builder(name)(**parameters)


def prepare(name: str, **parameters: Any) -> Prepared:
    """Return what a builder would make of some parameters: the recipe now, the model when it is asked for.

    Examples
    --------
    >>> prepared = prepare("birth_death", births=[1.0], deaths=[2.0])
    >>> prepared.recipe.hash[:12], prepared.build().size
    ('4de5d3ab52e3', 2)
    """
    from ctmc.model.recipe import Prepared

    function = builder(name)
    own = getattr(function, "prepare", None)
    return Prepared(None, functools.partial(function, **parameters)) if own is None else own(**parameters)


def plain_options(what: str, given: str, text: str) -> dict[str, Any]:
    """Return what stands between the parentheses of NAME(option=value, ...), plain values by name."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        # one call with plain keywords: no f(..)(..), no positional, no ** and none twice
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        names = [word.arg for word in call.keywords]
        if None in names or len(set(names)) < len(names):
            raise ValueError
        return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ModelError(
            f"{what} is {shown(given)}; options are written as NAME(option=value, ...) with plain values."
        ) from None


def _load(kind: str, name: str, places: dict[str, str]) -> Any:
    if not isinstance(name, str) or name not in places:
        raise unknown_name(kind, name, places)
    module, _, attribute = places[name].partition(":")
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except (Exception, SystemExit) as error:  # a plug-in must not end the program either
        raise PluginError(
            f"{kind} {name!r} ({module}) failed to load: {type(error).__name__}: {printable(error)}."
        ) from error


def _places(package: str) -> dict[str, str]:
    """Return name -> 'module:attribute' of everything in our folder and in the entry-point group."""
    folder = _own_folder(package)
    places: dict[str, str] = {}
    if package == "builders":
        for path in _modules(folder):
            places[path.stem] = f"builders.{path.stem}:{path.stem}"
    else:
        for topic in sorted(folder.iterdir()):
            if topic.is_dir() and not topic.name.startswith(("_", ".")):
                for path in _modules(topic):
                    _add(places, path.stem, f"solvers.{topic.name}.{path.stem}:{_camel_case(path.stem)}")
    for name, value in _installed(importlib.metadata.entry_points, f"ctmc.{package}", tuple(sys.path)):
        _add(places, name, value)
    return places


@functools.lru_cache(maxsize=16)
def _installed(find: Callable[..., Any], group: str, _: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return names and places of the entry points of a group.

    Kept for each search path: every solve asks, and reading what all installed packages say takes as long as a small chain.
    """
    return tuple((entry.name, entry.value) for entry in find(group=group))


def _add(places: dict[str, str], name: str, value: str) -> None:
    if places.setdefault(name, value) != value:
        raise PluginError(f"the name {name!r} is defined twice: by {places[name]} and by {value}.")


def _modules(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if not path.name.startswith(("_", "."))
        and (path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").is_file()))
    ]


def _camel_case(name: str) -> str:
    words = name.split("_")
    return "".join(word[:1].upper() + word[1:] for word in words)


def _own_folder(package: str) -> Path:
    """Return our folder of this name, after checking that Python would import it and no other."""
    own = HOME / package
    spec = importlib.util.find_spec(package)
    found = Path(spec.origin).resolve().parent if spec and spec.origin else None
    if found is None and spec and spec.submodule_search_locations:
        found = Path(next(iter(spec.submodule_search_locations))).resolve()
    if found != own:
        raise PluginError(
            f"the package {package!r} is shadowed: ours is in {printable(own)}, but Python finds {printable(found)}; "
            "rename or remove that one."
        )
    return own


def builder_parameters(name: str) -> inspect.Signature:
    """Return the signature of a builder, with evaluated annotations."""
    return inspect.signature(inspect.unwrap(builder(name)), eval_str=True)
