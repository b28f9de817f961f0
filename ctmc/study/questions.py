"""What a ``[[solve]]`` asks beside models and solvers: which keys belong to which problem, and what they may say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ctmc.errors import shown
from ctmc.study.parameters import fits

_TIMED = ("transient", "accumulated-reward")
_KEYS: dict[str, tuple[str, ...]] = {
    "initial": ("stationary", "transient", "accumulated-reward", "discounted-reward", "first-passage"),
    "times": _TIMED,
    "reward": ("transient", "accumulated-reward", "discounted-reward"),
    "moments": ("accumulated-reward", "discounted-reward", "first-passage"),
    "discount": ("discounted-reward",),
    "target": ("first-passage",),
    "avoid": ("first-passage",),
}
_NEEDS = {
    "transient": ("times",),
    "accumulated-reward": ("reward", "times"),
    "discounted-reward": ("reward", "discount"),
    "first-passage": ("target",),
}
QUESTION_KEYS = ("models", "problem", "solvers", "tolerance", "measures", "warm", *_KEYS)
"""The keys of a ``[[solve]]``."""


class WrongKey(Exception):  # noqa: N818  # it becomes a StudyError with the line, where that is known
    """A key that is missing, does not belong, or says what it may not."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


def read_question(content: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """Return the fields of a `Solve` that belong to its problem.

    Raises
    ------
    WrongKey
        Names the key, its value and what is allowed.

    Examples
    --------
    >>> read_question({"times": [1, 2], "reward": "jobs", "initial": [0]}, "transient")
    {'initial': (0,), 'times': (1, 2), 'reward': ('jobs',)}
    """
    article = "an" if problem.startswith("a") else "a"
    for key, problems in _KEYS.items():
        if content.get(key) is not None and problem not in problems:
            kinds = problems[0] if len(problems) == 1 else f"{', '.join(problems[:-1])} and {problems[-1]}"
            kinds = f"only a {kinds} one has" if len(problems) == 1 else f"only {kinds} ones have"
            raise WrongKey(f"{key} is given for {article} {problem} problem; {kinds} {key}.", key)
    for key in _NEEDS.get(problem, ()):
        if content.get(key) is None:
            raise WrongKey(f"{article} {problem} problem has no key {key}.")
    found: dict[str, Any] = {}
    for key in ("initial", "times"):
        if content.get(key) is not None:
            found[key] = _numbers(key, content[key])
    times = found.get("times", ())
    ascending = all(left < right for left, right in pairwise(times))
    if times and not (ascending and times[0] >= 0 and all(map(math.isfinite, times))):
        raise WrongKey(f"times is {list(times)!r}; allowed are finite times >= 0, ascending.", "times")
    if content.get("reward") is not None:
        found["reward"] = _texts("reward", content["reward"])
    for key in ("target", "avoid"):
        if content.get(key) is not None:
            if not isinstance(content[key], str):
                raise WrongKey(f"{key} is {shown(content[key])}; allowed is a condition in quotes.", key)
            found[key] = content[key]
    moments, discount = content.get("moments"), content.get("discount")
    if moments is not None:
        if not fits(moments, int) or not 1 <= moments <= 8:
            raise WrongKey(f"moments is {shown(moments)}; allowed is a whole number from 1 to 8.", "moments")
        found["moments"] = moments
    if discount is not None:
        if not fits(discount, float) or not 0 < discount < math.inf:
            raise WrongKey(
                f"discount is {shown(discount)}; allowed is a positive number, per unit of time.", "discount"
            )
        found["discount"] = float(discount)
    numbers = problem == "first-passage" or "reward" in found
    if numbers and "initial" not in found:
        # every state as the start is no row of a table
        raise WrongKey(f"{article} {problem} problem of a study has no key initial, such as initial = [0, 0, 0].")
    if numbers and content.get("measures") is not None:
        raise WrongKey(f"measures is given, but {article} {problem} problem that keeps no distribution has the numbers "
                       "it asks for; allowed is none.", "measures")  # fmt: skip
    return found


def _numbers(key: str, value: Any) -> tuple[float, ...]:
    if key == "times" and isinstance(value, str):
        from ctmc.study import sweep

        try:
            read = sweep.read_values(value)
        except ValueError as error:
            raise WrongKey(f"times {error}", key) from None
        if sweep.count(read) > sweep.MAXIMUM_POINTS:
            raise WrongKey(f"times are {sweep.count(read):,}; allowed are {sweep.MAXIMUM_POINTS:,}.", key)
        return tuple(sweep.listed(read))
    if not isinstance(value, list) or not value or not fits(value, list[float]):
        raise WrongKey(f"{key} is {shown(value)}; allowed is a list of one or more numbers.", key)
    return tuple(value)


def _texts(key: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise WrongKey(f"{key} is {shown(value)}; allowed is the name of a reward, or a list of names.", key)
    return tuple(texts)
