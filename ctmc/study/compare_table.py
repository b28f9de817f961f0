"""The table ``[compare]`` of a study: which solvers are compared on its models, and within which limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ctmc.errors import CTMCError, shown
from ctmc.model.memory import parse_size
from ctmc.problem import PROBLEMS
from ctmc.study.parameters import fits
from ctmc.study.questions import QUESTION_KEYS, WrongKey, read_question
from ctmc.study.solver_grid import ALL, solvers_of

_QUESTION = tuple(key for key in QUESTION_KEYS if key not in ("models", "problem", "solvers", "tolerance", "measures"))
COMPARE_KEYS = (
    "models", "solvers", "tolerances", "problem", *_QUESTION, "levels", "warm", "repeats", "time_limit", "memory_limit",
    "threads", "jobs",
)  # fmt: skip
"""The keys of ``[compare]``."""
_NUMBERS: dict[str, type] = {"repeats": int, "time_limit": float, "threads": int, "jobs": int}


@dataclass(frozen=True)
class Compare:
    """``[compare]``: solvers, and how they are compared; see `ctmc.comparison.settings.Settings` for the fields of `how`.

    Attributes
    ----------
    models : tuple of str
        Names of models, each point of a sweep by itself.
    solvers : str or tuple of str
        As they stand in the study.
    how : mapping
    """

    models: tuple[str, ...]
    solvers: str | tuple[str, ...] = ALL
    how: Mapping[str, Any] = field(default_factory=dict)


def read_compare(content: Mapping[str, Any]) -> tuple[str | tuple[str, ...], dict[str, Any]]:
    """Return the solvers and the settings of a ``[compare]`` table, checked; the models are left to who knows them.

    Raises
    ------
    WrongKey
        Names the key, its value and what is allowed.

    Examples
    --------
    >>> read_compare({"solvers": "gth,gmres(restart=20..40)", "tolerances": [1e-8, 1e-12], "time_limit": 30})
    ('gth,gmres(restart=20..40)', {'problem': 'stationary', 'question': {}, 'tolerances': (1e-08, 1e-12), 'time_limit': 30})
    """
    problem = content.get("problem", "stationary")
    if problem not in PROBLEMS:
        raise WrongKey(f"problem is {shown(problem)}; allowed is one of {', '.join(PROBLEMS)}.", "problem")
    solvers = content.get("solvers", ALL)
    if isinstance(solvers, list) and solvers and all(isinstance(text, str) for text in solvers):
        solvers = tuple(solvers)
    elif not isinstance(solvers, str):
        raise WrongKey(f"solvers is {shown(solvers)}; allowed is text, or a list of texts.", "solvers")
    try:
        solvers_of(solvers, problem)
    except CTMCError as error:
        message = str(error)
        raise WrongKey(message[0].lower() + message[1:], "solvers") from None
    how: dict[str, Any] = {"problem": problem, "question": read_question(content, problem)}
    kind: type
    for key, kind, allowed in (
        ("tolerances", float, "numbers between 0 and 1"),
        ("levels", int, "whole numbers above 0"),
    ):
        given = content.get(key)
        if given is None:
            continue
        values = given if isinstance(given, list) else [given]
        if not values or not all(fits(value, kind) and 0 < value < (1 if kind is float else 10**9) for value in values):
            raise WrongKey(f"{key} is {shown(given)}; allowed is a list of {allowed}.", key)
        how[key] = tuple(values)
    for key, kind in _NUMBERS.items():
        value = content.get(key)
        if value is not None:
            if not (fits(value, kind) and value > 0):
                what = "a whole number" if kind is int else "a number of seconds"
                raise WrongKey(f"{key} is {shown(value)}; allowed is {what} above 0.", key)
            how[key] = value
    warm = content.get("warm", False)
    if not isinstance(warm, bool):
        raise WrongKey(f"warm is {shown(warm)}; allowed is true or false.", "warm")
    if warm:
        how["warm"] = True
    if content.get("memory_limit") is not None:
        try:
            how["memory_limit"] = parse_size(content["memory_limit"])
        except CTMCError as error:
            raise WrongKey(str(error).replace("memory limit", "memory_limit", 1), "memory_limit") from None
    return solvers, how
