"""What is asked of an answer, as text: a measure, a reward, a component of one, a label, a percentile or a condition."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from ctmc.errors import ModelError, unknown_name
from ctmc.model import predicate

if TYPE_CHECKING:
    from ctmc.solution import Solution

_NAME = re.compile(r"\s*([^\W\d]\w*)\s*(?:\[\s*(\d+)\s*\])?\s*")
_VARIANCE = re.compile(r"\s*variance\(\s*([^\W\d]\w*(?:\[\d+\])?)\s*\)\s*(?:\[\s*\d+\s*\])?\s*")
_PERCENTILE = re.compile(r"\s*p(\d{1,2}(?:\.\d+)?)\s*\(\s*([^\W\d]\w*)\s*\)\s*")


def check_measure(text: str, field: str = "condition") -> None:
    """Raise `ModelError` if the text is neither a name, ``name[index]``, a percentile ``p95(name)``, nor a condition.

    Examples
    --------
    >>> check_measure("queue_length[1]")
    >>> check_measure("jobs >> 10")
    Traceback (most recent call last):
    ctmc.errors.ModelError: condition 'jobs >> 10': expected a name or a number at position 6, found '>'.
    """
    if all(known.fullmatch(text) is None for known in (_NAME, _VARIANCE, _PERCENTILE)):
        predicate.parse(text, field)


def check_names(text: str, known: Collection[str]) -> None:
    """Raise `UnknownNameError` if the text is a condition that reads a name that is not known.

    Examples
    --------
    >>> check_names("job >= 1", ["jobs"])
    Traceback (most recent call last):
    ctmc.errors.UnknownNameError: There is no reward, variable or label 'job'; did you mean 'jobs'?
    """
    if all(single.fullmatch(text) is None for single in (_NAME, _VARIANCE, _PERCENTILE)):
        for name in sorted(predicate.parse(text).names.difference(known)):
            raise unknown_name("reward, variable or label", name, known)


def evaluate_measure(solution: Solution, text: str) -> Any:
    """Return the value of what the text names.

    Parameters
    ----------
    solution : Solution
    text : str
        The name of a measure, else of a reward (its expectation), else of a label (its probability); ``name[index]`` for
        one component; ``p95(name)`` or ``p99.9(name)``, a percentile of a distribution that the model knows; or a condition
        such as ``jobs >= 10`` (its probability).

    Returns
    -------
    float or ndarray
        The first axis of a transient answer is the time.

    Raises
    ------
    UnknownNameError
        If there is no such name; close names are listed.

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.build("birth_death", births=[1.0], deaths=[1.0])
    >>> evaluate_measure(ctmc.solve(ctmc.Stationary(queue), "gth"), "jobs >= 1")
    0.5
    """
    percentile = _PERCENTILE.fullmatch(text)
    if percentile is not None:
        return solution.distribution(percentile[2]).quantile(float(percentile[1]) / 100)
    match = _NAME.fullmatch(text)
    if match is None:
        return solution.probability(text)
    name, index = match[1], match[2]
    measures, model = solution.measures(), solution.problem.model
    if name in measures:
        value = measures[name]
    elif name in model.all_rewards:
        value = solution.expected(name)
    elif name in model.labels:
        value = solution.probability(name)
    else:
        raise unknown_name("measure, reward or label", name, {*measures, *model.all_rewards, *model.labels})
    if index is None:
        return value
    array, lead = np.asarray(value), np.ndim(getattr(solution.problem, "times", 0))
    if array.ndim <= lead or int(index) >= array.shape[-1]:
        allowed = f"0 to {array.shape[-1] - 1}" if array.ndim > lead else "none: it is one number"
        raise ModelError(f"index {index} of {name!r} is out of range; allowed is {allowed}.")
    chosen = array[..., int(index)]
    return float(chosen) if chosen.ndim == 0 else chosen


def at_time(measures: dict[str, Any], position: int) -> dict[str, Any]:
    """Return the measures of a transient answer at one of its times."""
    return {name: np.asarray(value)[position] for name, value in measures.items()}
