"""The parameters of the mean field of the supermarket: checks, equations, stability, and models with finitely many servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from builders.supermarket.mean_field_equations import Equations
from builders.supermarket.selection import Selection, preference_keys, selection_table, tie_rules
from ctmc.errors import ModelError, UnstableError, shown
from ctmc.model.parameters import each, numbers, positive_rate, positive_rates, whole_number

MOST_CHOICES = 1000
MOST_INITIAL = 10_000


@dataclass(frozen=True, kw_only=True)
class Design:
    """The parameters, checked and completed.

    Attributes
    ----------
    service_rates, shares, preferences : ndarray, shape (C,)
        Shares sum to 1; preferences are relative to their mean over the servers.
    arrival_rate : float
        Per server.
    initial : tuple of int
        Jobs at each server of a class at time 0.
    """

    service_rates: np.ndarray
    shares: np.ndarray
    preferences: np.ndarray
    arrival_rate: float
    choices: int
    selection: Selection
    weights: np.ndarray
    ties: str | Sequence[str]
    initial: tuple[int, ...]

    def equations(self, levels: int) -> Equations:
        """Return the equations with at most so many jobs per server."""
        classes = len(self.shares)
        values = selection_table(self.selection, [levels] * classes, self.service_rates, self.preferences, self.weights)
        keys = np.array(preference_keys(values, tie_rules(self.ties), self.service_rates, self.preferences))
        falls = np.argwhere(np.diff(keys, axis=1) < 0)
        if len(falls):
            number, jobs = falls[0].tolist()
            raise ModelError(
                f"the selection function falls from {values[number][jobs]:g} to {values[number][jobs + 1]:g} between {jobs} and "
                f"{jobs + 1} jobs in class {number}; allowed is one that does not fall with the queue length."
            )
        return Equations(
            arrival_rate=self.arrival_rate, choices=self.choices, service_rates=self.service_rates, shares=self.shares,
            keys=keys,
        )  # fmt: skip

    def check_stable(self) -> None:
        """Raise `UnstableError` where a necessary condition of stability fails."""
        slowest = np.argsort(self.service_rates, kind="stable")
        inside = np.cumsum(self.shares[slowest])
        inside[-1] = 1
        service = np.cumsum((self.shares * self.service_rates)[slowest])
        # jobs per class are convex in the part of servers on each piece, so the ends of the classes suffice
        for count, (part, capacity) in enumerate(zip(inside.tolist(), service.tolist(), strict=True), 1):
            load = self.arrival_rate * part**self.choices
            if load >= capacity:
                chosen = ", ".join(map(str, sorted(slowest[:count].tolist())))
                raise UnstableError(
                    f"Unstable: jobs that sample only servers of the classes {chosen} arrive at rate {load:.6g} per server of all, "
                    f"not below the service rate {capacity:.6g} of these classes per server of all."
                )
        equations = self.equations(1)
        if (equations.keys[:, 0] == equations.keys[:, 1]).all():
            beaten = np.array([float(self.shares[equations.keys[:, 0] > key].sum()) for key in equations.keys[:, 0]])
            reached = np.array([float(self.shares[equations.keys[:, 0] >= key].sum()) for key in equations.keys[:, 0]])
            loads = self.arrival_rate * (reached**self.choices - beaten**self.choices) / (reached - beaten)
            for number, (load, rate) in enumerate(zip(loads.tolist(), self.service_rates.tolist(), strict=True)):
                if load >= rate:
                    raise UnstableError(
                        f"Unstable: the rule does not look at the queue lengths, and each server of class {number} gets jobs at the "
                        f"fixed rate {load:.6g}, not below its service rate {rate:.6g}."
                    )

    def finite_parameters(self, servers: int) -> dict[str, Any]:
        """Return the parameters of the model with finitely many servers; see `MeanField.finite_parameters`."""
        number = whole_number("servers", servers, self.choices, None, "as many as choices")
        counts = np.rint(self.shares * number).astype(int)
        if (np.abs(self.shares * number - counts) > 1e-6).any():
            raise ModelError(
                f"servers is {number}, of which the shares {self.shares.tolist()} are no whole numbers; allowed are numbers of "
                "servers of which they are."
            )
        preferences = np.repeat(self.preferences, counts)
        weights = self.weights * [
            1,
            1,
            1 / number,
        ]  # g is 1 / M of the relative preference, so 1 / g is M times as large
        selection = self.selection
        if callable(selection) or ":" in selection:
            selection = _scaled(self.selection, number)
        return {
            "service_rates": np.repeat(self.service_rates, counts).tolist(),
            "arrival_rate": self.arrival_rate * number,
            "choices": self.choices,
            "preferences": (preferences / preferences.sum()).tolist(),
            "selection": selection,
            "weights": (weights / weights.sum()).tolist(),
            "ties": self.ties,
        }


def _scaled(selection: Selection, servers: int) -> Selection:
    """Return a user's rule that takes preferences which sum to 1, as one that is given relative preferences."""

    def scaled(x: np.ndarray, mu: float, g: float) -> np.ndarray:
        return selection_table(
            selection, [len(x) - 1], np.array([mu]), np.array([g * servers]), np.ones(3) / 3
        )[0]  # fmt: skip

    return scaled


def checked_design(
    service_rates: Sequence[float],
    arrival_rate_per_server: float,
    choices: int,
    shares: Sequence[float] | None,
    preferences: Sequence[float] | None,
    selection: Selection,
    weights: Sequence[float],
    ties: str | Sequence[str],
    initial: int | Sequence[int],
) -> Design:
    """Return the parameters, checked and completed; raises `ModelError` with one sentence for what is wrong."""
    rates = positive_rates("service_rates", service_rates)
    classes = len(rates)
    parts = np.full(classes, 1 / classes) if shares is None else numbers("shares", shares, "numbers > 0 that sum to 1")
    if parts.shape != (classes,) or not (parts > 0).all() or abs(parts.sum() - 1) > 1e-9:
        raise ModelError(
            f"shares is {shown(shares)}; allowed are {classes} numbers > 0, one for each class, that sum to 1 (these sum to "
            f"{parts.sum():.12g})."
        )
    parts = parts / parts.sum()
    liked = np.ones(classes) if preferences is None else positive_rates("preferences", preferences)
    if liked.shape != (classes,):
        raise ModelError(f"preferences is {shown(preferences)}; allowed are {classes} numbers > 0, one for each class.")
    given = numbers("weights", weights, "three numbers >= 0 that sum to 1")
    if given.shape != (3,) or not (given >= 0).all() or abs(given.sum() - 1) > 1e-9:
        raise ModelError(
            f"weights is {shown(weights)}; allowed are three numbers >= 0 that sum to 1 (these sum to {given.sum():.12g})."
        )
    lengths = each("initial", initial, classes, f"the {classes} classes")
    return Design(
        service_rates=rates,
        shares=parts,
        preferences=liked / float(parts @ liked),
        arrival_rate=positive_rate("arrival_rate_per_server", arrival_rate_per_server),
        choices=whole_number("choices", choices, 1, MOST_CHOICES),
        selection=selection,
        weights=given,
        ties=ties,
        initial=tuple(whole_number("initial", length, 0, MOST_INITIAL) for length in lengths),
    )


def checked_times(times: Sequence[float] | None) -> np.ndarray:
    """Return the times, none by default; raises `ModelError` unless they are finite, >= 0 and ascending."""
    if times is None:
        return np.empty(0)
    allowed = "finite times >= 0, ascending"
    found = numbers("times", times, allowed)
    if not np.isfinite(found).all() or found[0] < 0 or (np.diff(found) <= 0).any():
        raise ModelError(f"times is {shown(times)}; allowed are {allowed}.")
    return found
