"""Selection values and tie rules: which server an arriving job prefers.

Source: Q.-L. Li, F. Yang, N. Li, *Reward processes and performance simulation in supermarket models with different servers*,
IJSPM 11(3/4), 2016, arXiv:1504.08150, section 2; `expected_delay` and the tie rules are extensions.

A selection value depends on a server's own queue length only, so everything here is a table over (server, queue length).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctmc.errors import ModelError, printable, shown
from ctmc.model.parameters import choice, real_numbers
from ctmc.model.recipe import function_named

Selection = str | Callable[[np.ndarray, float, float], np.ndarray]
SELECTIONS = ("tandem", "weighted", "shortest_queue", "expected_delay")
TIE_RULES = ("random", "fastest", "shortest", "preferred")
TIE_TOLERANCE = 1e-9
"""Values closer than this, relatively, tie: 3 x 0.2 and 2 x 0.3 differ in floating point only."""


def selection_table(
    selection: Selection,
    limits: Sequence[int],
    rates: np.ndarray,
    preferences: np.ndarray,
    weights: np.ndarray,
    name: str = "selection",
) -> list[np.ndarray]:
    """Return the selection value of each server at each queue length.

    Parameters
    ----------
    selection : str or callable
        A rule, ``module:function``, or a function f(x, mu, g) of a vector of queue lengths.
    limits : sequence of int, length M
        Largest queue length of each server.
    rates, preferences : ndarray, shape (M,)
    weights : ndarray, shape (3,)
        Of the rule `weighted`.
    name : str
        Of the parameter, for messages.

    Returns
    -------
    list of ndarray, shapes (limits[i] + 1,)

    Examples
    --------
    >>> selection_table("tandem", [2], np.array([4.0]), np.array([0.5]), np.ones(3) / 3)[0].tolist()
    [0.0, 0.5, 1.0]
    """
    if isinstance(selection, str) and ":" in selection:
        selection = function_named(name, selection)
    elif not callable(selection):
        choice(name, selection, SELECTIONS)
    table = []
    for i, limit in enumerate(limits):
        x = np.arange(limit + 1)
        mu, g = float(rates[i]), float(preferences[i])
        if callable(selection):
            values = _called(name, selection, x, mu, g)
            if values.shape != x.shape or not np.isfinite(values).all():
                raise ModelError(
                    f"{name} is a function that gives shape {values.shape} for server {i}; allowed is {x.shape}, all finite."
                )
        elif selection == "tandem":
            values = x / (mu * g)
        elif selection == "weighted":
            values = weights[0] * x + weights[1] / mu + weights[2] / g
        elif selection == "shortest_queue":
            values = x.astype(np.float64)
        else:
            values = (x + 1) / mu
        table.append(values)
    return table


def _called(name: str, function: Callable[..., Any], x: np.ndarray, mu: float, g: float) -> np.ndarray:
    """Return the values of a user's function; what it raises becomes one sentence."""
    try:
        values = function(x, mu, g)
    except Exception as error:
        raise ModelError(
            f"{name} is a function that failed with {type(error).__name__}: {printable(error)}; allowed is f(x, mu, g) of a "
            "vector of queue lengths, a service rate and a preference."
        ) from error
    return real_numbers(f"what {name} returns", values, "numbers, one for each queue length")


def held_decisions(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of the same model whose selection values stay what they are when a service rate is changed a little.

    Derivatives with respect to service rates need it where servers tie: there any change would route jobs anew.  The rewards
    `imbalance` and `balance` go on with the rates as they are.

    Examples
    --------
    >>> held = held_decisions({"service_rates": [3.0, 2.0], "preferences": [0.5, 0.5]})
    >>> held["selection"](np.arange(3), 3.001, 0.5).round(6).tolist(), held["measured_by"]
    ([0.0, 0.666667, 1.333333], 'tandem')
    """
    rates = np.asarray(parameters["service_rates"], dtype=np.float64)
    rule = parameters.get("selection", "tandem")
    weights = np.asarray(parameters.get("weights", np.ones(3) / 3), dtype=np.float64)

    def held(x: np.ndarray, mu: float, g: float) -> np.ndarray:
        before = rates[[np.argmin(np.abs(rates - mu))]]
        return selection_table(rule, [len(x) - 1], before, np.array([g]), weights)[0]

    return {**parameters, "selection": held, "measured_by": parameters.get("measured_by", rule)}


def tie_rules(ties: str | Sequence[str]) -> tuple[str, ...]:
    """Return the tie rules in order, without the final 'random', which is what always remains."""
    rules = tuple(choice("ties", rule, TIE_RULES) for rule in (ties if isinstance(ties, list | tuple) else [ties]))
    if not rules or len(set(rules)) < len(rules) or "random" in rules[:-1]:
        raise ModelError(
            f"ties is {shown(ties)}; allowed are different rules of {', '.join(TIE_RULES)}, 'random' last."
        )
    return tuple(rule for rule in rules if rule != "random")


def preference_keys(
    table: Sequence[np.ndarray], rules: Sequence[str], rates: np.ndarray, preferences: np.ndarray
) -> list[np.ndarray]:
    """Return one whole number per server and queue length: smaller is better, equal ones tie.

    The selection value comes first, then the tie rules in order; whole numbers compare exactly.

    Parameters
    ----------
    table : list of ndarray
        From `selection_table`.
    rules : sequence of str
        From `tie_rules`.
    rates, preferences : ndarray, shape (M,)

    Returns
    -------
    list of ndarray of int64, shapes as in `table`
    """
    lengths = [len(values) for values in table]
    server = np.repeat(np.arange(len(table)), lengths)
    columns = [grouped(np.concatenate(table))]
    for rule in rules:
        if rule == "shortest":
            columns.append(np.concatenate([np.arange(length) for length in lengths]))
        else:
            columns.append(grouped(-(rates if rule == "fastest" else preferences))[server])
    _, keys = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    return [part.astype(np.int64) for part in np.split(keys.ravel(), np.cumsum(lengths)[:-1])]


def grouped(values: np.ndarray) -> np.ndarray:
    """Rank values in ascending order, those within the tie tolerance of their neighbour having the same rank."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    apart = np.diff(ascending) > TIE_TOLERANCE * np.maximum(np.abs(ascending[1:]), np.abs(ascending[:-1]))
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.concatenate([[0], np.cumsum(apart)])
    return ranks
