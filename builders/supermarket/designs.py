"""What a search may change in a supermarket model, and what it needs to know of it.

Source: Q.-L. Li, F. Yang, N. Li, *Reward processes and performance simulation in supermarket models with different servers*,
IJSPM 11(3/4), 2016, arXiv:1504.08150: the model is designed by its selection rule, its weights, the preferences, and the split
of the service rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ctmc.errors import ModelError, shown
from ctmc.model.parameters import numbers, positive_rate, positive_rates
from ctmc.study.continuous import ContinuousDesign, Yardstick, simplex_design

LEAST_SHARE = 1e-3
"""Smallest preference, and smallest share of the total service rate: at 0 the selection values would be infinite."""

YARDSTICK = Yardstick(
    rewards=("imbalance", "balance"),
    parameter="measured_by",
    moved_by=("selection", "weights", "preferences", "service_rates"),
    rates="service_rates",
)


def weights_design(parameters: Mapping[str, Any], maximum: int | None = None) -> ContinuousDesign:
    """Return the weights b1, b2, b3 >= 0 with sum 1 of the rule `weighted`, which is taken where no rule is given.

    Examples
    --------
    >>> weights_design({"service_rates": [3, 2, 1]}).value((0.75, 0.5))
    [0.5, 0.25, 0.25]
    """
    _no_maximum("weights", maximum)
    _fixed_capacity("weights", parameters)
    selection = parameters.get("selection", "weighted")
    if selection != "weighted":
        raise ModelError(
            f"selection is {shown(selection)}, which has no weights; allowed is 'weighted' where weights are optimised."
        )
    given = parameters.get("weights")
    if given is not None:
        given = _shares("weights", given, 3)
    corners = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    return simplex_design("weights", 3, given=given, others=corners, implied={"selection": "weighted"})


def preferences_design(parameters: Mapping[str, Any], maximum: int | None = None) -> ContinuousDesign:
    """Return the preferences g > 0 with sum 1; each is 0.001 at least.

    Examples
    --------
    >>> [round(part, 4) for part in preferences_design({"service_rates": [3, 1]}).value((0.25,))]
    [0.2505, 0.7495]
    """
    _no_maximum("preferences", maximum)
    _fixed_capacity("preferences", parameters)
    rates = _rates("preferences", parameters)
    given = parameters.get("preferences")
    if given is not None:
        given = _shares("preferences", given, len(rates))
    others = ((rates / rates.sum()).tolist(), ((1 / rates) / (1 / rates).sum()).tolist())
    return simplex_design("preferences", len(rates), least=_least(len(rates)), given=given, others=others)


def split_design(
    parameters: Mapping[str, Any], maximum: int | None = None, total_rate: float | None = None
) -> ContinuousDesign:
    """Return the service rates with a given sum; default that of those that are given.  Each is 0.001 of it at least.

    Examples
    --------
    >>> [round(part, 9) for part in split_design({"service_rates": [3, 1]}, total_rate=8).value((0.75,))]
    [5.996, 2.004]
    """
    _no_maximum("split", maximum)
    _fixed_capacity("split", parameters)
    rates = _rates("split", parameters)
    total = math.fsum(rates) if total_rate is None else positive_rate("total_rate", total_rate)
    return simplex_design("service_rates", len(rates), total=total, least=_least(len(rates)), given=rates.tolist())


def _rates(design: str, parameters: Mapping[str, Any]) -> np.ndarray:
    if "service_rates" not in parameters:
        raise ModelError(f"{design} is optimised for given servers, but service_rates is missing.")
    if parameters.get("lump"):
        raise ModelError(f"lump is true, but {design} makes servers differ that were alike; allowed is false.")
    return positive_rates("service_rates", parameters["service_rates"])


def _shares(name: str, given: Any, size: int) -> list[float]:
    found = numbers(name, given, f"{size} numbers >= 0 that sum to 1")
    if found.shape != (size,) or not (found >= 0).all() or abs(found.sum() - 1) > 1e-9:
        raise ModelError(
            f"{name} is {shown(given)}; allowed are {size} numbers >= 0 that sum to 1 (these sum to {found.sum():.12g})."
        )
    return [float(part) for part in found]


def _least(servers: int) -> float:
    return min(LEAST_SHARE, 1 / (2 * servers))


def _no_maximum(design: str, maximum: int | None) -> None:
    if maximum is not None:
        raise ModelError(f"maximum is {maximum}, but the values of {design} are real numbers; allowed is none.")


def _fixed_capacity(design: str, parameters: Mapping[str, Any]) -> None:
    if isinstance(parameters.get("capacity"), str):
        raise ModelError(
            f"capacity is {shown(parameters['capacity'])}, which would give each value of {design} states of its own; allowed is a "
            "whole number, or one per server."
        )
