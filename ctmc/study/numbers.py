"""The numbers of an answer that keeps no distribution: one for each component, moment and time, with proven error bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.errors import printable
from ctmc.problem import FirstPassage, Stationary, column_names, is_single
from ctmc.solution import Solution


@dataclass(frozen=True, eq=False)
class Number:
    """A number that was asked for, at each time, and from every state as the start where no other was given.

    Attributes
    ----------
    name : str
        Such as ``queue_length[1]``, ``variance(imbalance)``, ``moment3(imbalance)`` or ``mean``.
    values : ndarray
        Shape (), (times,), (n,) or (times, n).
    bounds : ndarray or None
        Bounds on the errors, shape () or (times,); None where none is proven.
    order : int
        1 for means, 2 for variances, else that of the moment.
    """

    name: str
    values: np.ndarray
    bounds: np.ndarray | None = None
    order: int = 1


def keeps_numbers(problem: Any) -> bool:
    """Return whether the answer to a problem is some numbers, rather than a distribution."""
    return not isinstance(problem, Stationary) and (
        isinstance(problem, FirstPassage) or getattr(problem, "reward", None) is not None
    )


def numbers_of(solution: Solution) -> list[Number]:
    """Return the numbers of an answer for which `keeps_numbers` holds: means, variances, then higher moments.

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.build("birth_death", births=[1.0], deaths=[1.0])
    >>> earned = ctmc.solve(ctmc.AccumulatedReward(queue, "jobs", (0,), [1.0], moments=2))
    >>> [(number.name, number.values.round(9).tolist()) for number in numbers_of(earned)]
    [('jobs', [0.283833821]), ('variance(jobs)', [0.095189093])]
    """
    problem = solution.problem
    if isinstance(problem, FirstPassage):
        return _passage(solution)
    single = is_single(problem)
    value, bound = _columns(solution.value, single), _columns(solution.error_bound, single)
    spread, off = _columns(solution.variances, single), _columns(solution.variance_bounds, single)
    names, count = column_names(problem), getattr(problem, "moments", None)
    if count is None:
        return [Number(name, value[k], None if bound is None else bound[k]) for k, name in enumerate(names)]
    found = []
    for k, name in enumerate(names):
        moments = [
            Number(
                name if order == 1 else f"moment{order}({name})",
                value[k, order - 1],
                None if bound is None else bound[k, order - 1],
                order,
            )
            for order in range(1, count + 1)
        ]
        found.append(moments[0])
        if spread is not None:
            found.append(Number(f"variance({name})", spread[k], None if off is None else off[k], 2))
        found += moments[2:]
    return found


def _passage(solution: Any) -> list[Number]:
    names = ["mean", "second_moment", *(f"moment{order}" for order in range(3, solution.problem.moments + 1))]
    bounds = solution.error_bound
    value = np.asarray(solution.value)
    moments = [
        Number(name, value[k], None if bounds is None else np.asarray(bounds)[k], k + 1)
        for k, name in enumerate(names[: len(value)])
    ]
    found = moments[:1]
    if solution.variances is not None:
        off = solution.variance_bounds
        found.append(Number("variance", np.asarray(solution.variances), None if off is None else np.asarray(off), 2))
    reach = Number("reach_probability", np.asarray(solution.reach_probability), np.asarray(solution.reach_error_bound))
    return [*found, *moments[2:], reach]


def _columns(array: Any, single: bool) -> Any:
    """Return an array with an axis of columns, also where there is one only; None for None."""
    return None if array is None else np.asarray(array)[None] if single else np.asarray(array)


def initial_text(problem: Any) -> str:
    """Return where the chain starts, as one word or a few.

    Examples
    --------
    >>> import ctmc
    >>> queue = ctmc.build("birth_death", births=[1.0], deaths=[1.0])
    >>> initial_text(ctmc.Transient(queue, (1,), [1.0])), initial_text(ctmc.Transient(queue, None, [1.0], reward="jobs"))
    ('1', 'every state')
    """
    initial = getattr(problem, "initial", None)
    if initial is None:
        return "every state"
    if len(initial.positions) > 3:
        return f"a distribution over {len(initial.positions):,} states"
    states = [",".join(map(str, row)) for row in problem.model.space.states(initial.positions).tolist()]
    if len(states) == 1:
        return states[0]
    chances = initial.probabilities.tolist()
    return "; ".join(f"{state}:{chance:.6g}" for state, chance in zip(states, chances, strict=True))


def settings_facts(problem: Any) -> dict[str, Any]:
    """Return what was asked, with plain values: initial, times, rewards, moments, discount, target, avoid."""
    facts: dict[str, Any] = {}
    if isinstance(problem, Stationary):
        return facts
    facts["initial"] = initial_text(problem)
    for name in ("times", "reward", "moments", "discount", "target", "avoid"):
        given = getattr(problem, name, None)
        if given is None:
            continue
        if name in ("target", "avoid"):
            facts[name] = printable(given) if isinstance(given, str) else getattr(given, "__name__", "a function")
        else:
            facts[name] = np.asarray(given).tolist() if name in ("times", "discount", "moments") else list(given)
    return facts


__all__ = ["Number", "initial_text", "keeps_numbers", "numbers_of", "settings_facts"]
