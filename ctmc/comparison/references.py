"""The answers that others are compared with: elimination where a model is small, else the tightest certified answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctmc.comparison.runs import ComparedModel

TOLERANCES = (1e-13, 1e-12, 1e-10)
"""What a reference tries to reach, one after the other."""

Attempt = Callable[[str, Mapping[str, Any]], dict[str, Any] | None]


class References:
    """References of the models of a comparison, made by the default solver when they are first needed.

    That is elimination without subtraction (`gth`) up to 3000 states, and logarithmic reduction for a QBD.

    Parameters
    ----------
    models : dict of str to ComparedModel
        What is found out about a model is entered.
    folder : Path
        Where vectors are kept.
    attempt : callable
        ``attempt(name, request)`` makes one attempt in a process of its own.
    question : mapping
        What the problem asks beside the tolerance.
    """

    def __init__(
        self, models: dict[str, ComparedModel], folder: Path, attempt: Attempt, question: Mapping[str, Any]
    ) -> None:
        self.models, self.folder, self.attempt, self.question = models, folder, attempt, question
        self._made: dict[str, dict[str, Any]] = {}
        self._number: dict[str, int] = {}

    def make(self, name: str) -> None:
        """Make the reference of a model; of a truncation also that of its QBD."""
        whole = self.whole(name)
        for one in (name,) if whole is None else (whole, name):
            if one not in self._made:
                self._made[one] = self._make(one)

    def _make(self, name: str) -> dict[str, Any]:
        self._number.setdefault(name, len(self._number))
        truncations = [model.levels for model in self.models.values() if model.levels is not None]
        for tolerance in TOLERANCES:
            place = self.folder / f"reference-{self._number[name]}.npy"
            more = {
                "settings": {**self.question, "tolerance": tolerance},
                "keep": str(place),
                "masses_beyond": truncations,
            }
            answer = self.attempt(name, more)
            if answer is None:
                return {}
            model = self.models[name]
            if answer.get("kind"):
                model = replace(model, kind=answer["kind"], states=answer.get("states"), entries=answer.get("entries"))
            if answer.get("status") == "CONVERGED":
                self.models[name] = replace(model, reference=answer["ran"], reference_defect=answer["defect"])
                return answer | {"place": str(place) if place.exists() else None}
            self.models[name] = model
            if answer.get("status") not in ("STAGNATED", "INACCURATE"):
                break  # a looser tolerance helps nothing
        return {}

    def whole(self, name: str) -> str | None:
        """Return the name of the QBD that a truncation is of, None where the model is none."""
        model = self.models[name]
        if model.levels is None:
            return None
        return next(one.name for one in self.models.values() if one.path == model.path and one.levels is None)

    def vector(self, name: str) -> str | None:
        """Return where the reference's vector stands."""
        return self._made.get(name, {}).get("place")

    def measures(self, name: str) -> Mapping[str, float]:
        """Return the reference's measures, of a truncation those of its QBD."""
        whole = self.whole(name)
        found = self._made.get(name if whole is None else whole, {}).get("measures", {})
        return dict(found)

    def mass_beyond(self, name: str) -> float | None:
        """Return the probability that a truncation cuts off, by the answer for its QBD."""
        whole = self.whole(name)
        masses = {} if whole is None else self._made.get(whole, {}).get("masses_beyond", {})
        return masses.get(str(self.models[name].levels))
