"""Checks of the parameters that the truncated model and the simulation share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from builders.supermarket.rank import SAMPLINGS
from ctmc.errors import ModelError, shown
from ctmc.model.parameters import choice, numbers, positive_rate, positive_rates, whole_number

OVERFLOWS = ("lost", "rerouted")


def checked_servers(
    service_rates: Sequence[float], preferences: Sequence[float] | None, weights: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return service rates, preferences and weights of the rule 'weighted'; shapes (M,), (M,), (3,).

    Raises
    ------
    ModelError
        If a rate is not positive, preferences are not in (0, 1], or do not sum to 1 as the weights must.

    Examples
    --------
    >>> checked_servers([3, 2], None, [1, 0, 0])[1].tolist()
    [0.5, 0.5]
    """
    rates = positive_rates("service_rates", service_rates)
    servers = len(rates)
    liked = (
        np.full(servers, 1 / servers)
        if preferences is None
        else numbers("preferences", preferences, f"{servers} numbers in (0, 1] that sum to 1")
    )
    if liked.shape != (servers,) or not (liked > 0).all() or abs(liked.sum() - 1) > 1e-9:
        raise ModelError(
            f"preferences is {shown(preferences)}; allowed are {servers} numbers in (0, 1] that sum to 1 "
            f"(these sum to {liked.sum():.12g})."
        )
    parts = numbers("weights", weights, "three numbers >= 0 that sum to 1")
    if parts.shape != (3,) or not (parts >= 0).all() or abs(parts.sum() - 1) > 1e-9:
        raise ModelError(
            f"weights is {shown(weights)}; allowed are three numbers >= 0 that sum to 1 (these sum to {parts.sum():.12g})."
        )
    return rates, liked, parts


def checked_arrivals(
    servers: int, arrival_rate: Any, choices: Any, sampling: str, overflow: str, total_capacity: Any
) -> float:
    """Return the arrival rate; the rules of arrivals must be known, and the number of choices fit the sampling."""
    total_rate = positive_rate("arrival_rate", arrival_rate)
    choice("sampling", sampling, SAMPLINGS)
    choice("overflow", overflow, OVERFLOWS)
    if sampling == "without_replacement":
        whole_number("choices", choices, 1, servers, "sampling is without replacement")
    else:
        whole_number("choices", choices, 1, 10_000)
    if total_capacity is not None:
        whole_number("total_capacity", total_capacity, 1)
    return total_rate
