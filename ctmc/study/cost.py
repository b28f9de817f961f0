"""What is to be least or greatest: a measure, or arithmetic over measures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ctmc.errors import ModelError, shown
from ctmc.model.predicate import parse_formula
from ctmc.solution import Solution
from ctmc.study.design import Design, Point
from ctmc.study.measures import check_measure, evaluate_measure

_TERM = re.compile(r"\s*(?:([\d.]+(?:[eE][+-]?\d+)?)\s*\*\s*)?([^\W\d]\w*)\s*(?:\*\s*([\d.]+(?:[eE][+-]?\d+)?))?\s*")
_COMPONENT = re.compile(r"\s*([^\W\d]\w*)\s*\[\s*(\d+)\s*\]\s*")


class Cost:
    """What is to be least: a measure, ``utilization[2]``, ``p95(response_time)``, or arithmetic over names of measures.

    Examples
    --------
    >>> Cost("response_time + 0.1 * busy_servers").weights
    {'response_time': 1.0, 'busy_servers': 0.1}
    >>> Cost("response_time +")
    Traceback (most recent call last):
    ctmc.errors.ModelError: formula 'response_time +': expected a name or a number at position 15, found the end.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._formula = None
        if re.search(r"[<>=!]|\b(?:and|or|not|true|false)\b", text):
            raise ModelError(f"what is minimised is {shown(text)}; allowed is a measure, or arithmetic over measures.")
        if re.fullmatch(r"\s*(?:\w+\s*\[\s*\d+\s*\]|p[\d.]+\s*\(.*\)|[^\W\d]\w*)\s*", text):
            check_measure(text)
        else:
            self._formula = parse_formula(text)
            if not self._formula.names:
                raise ModelError(f"what is minimised is {shown(text)}, which names no measure.")

    @property
    def weights(self) -> dict[str, float] | None:
        """Weights >= 0 of the measures where the cost is such a sum of them; else None."""
        weights: dict[str, float] = {}
        for term in self.text.split("+"):
            match = _TERM.fullmatch(term)
            if match is None:
                return None
            try:
                weight = float(match[1] or 1) * float(match[3] or 1)
            except ValueError:
                return None
            weights[match[2]] = weights.get(match[2], 0.0) + weight
        return weights

    @property
    def names(self) -> set[str]:
        """Names of the measures and rewards that the cost is made of."""
        return set(re.findall(r"[^\W\d]\w*", self.text))

    @property
    def rewards(self) -> dict[str, float]:
        """Weights of rewards where the cost is a sum of them, as a reward that accumulates over time must be.

        Raises
        ------
        ModelError
            If it is none.

        Examples
        --------
        >>> Cost("queue_length[1]").rewards, Cost("imbalance + 0.1*jobs").rewards
        ({'queue_length[1]': 1.0}, {'imbalance': 1.0, 'jobs': 0.1})
        """
        component = _COMPONENT.fullmatch(self.text)
        weights = {f"{component[1]}[{component[2]}]": 1.0} if component else self.weights
        if weights is None:
            raise ModelError(
                f"the cost {shown(self.text)} is no sum of rewards with weights >= 0, and nothing else accumulates over time; "
                "allowed is for instance 'imbalance + 0.1*jobs'."
            )
        return weights

    def of(self, solution: Solution, measures: Mapping[str, Any]) -> float:
        """Return the cost of a certified answer."""
        if self._formula is None:
            value = evaluate_measure(solution, self.text)
        else:
            found = {name: measures.get(name) for name in self._formula.names}
            for name in self._formula.names:
                if found[name] is None:
                    found[name] = evaluate_measure(solution, name)
            value = self._formula.evaluate(found)
        try:
            number = float(value)
        except TypeError:
            raise ModelError(
                f"{self.text!r} has {len(value)} components; write {self.text}[0], for instance."
            ) from None
        if not math.isfinite(number):
            raise ModelError(f"the cost {shown(self.text)} is {number}; allowed is a finite number.")
        return number

    def bound(self, design: Design, point: Point) -> float:
        """Return what the cost cannot be below, minus infinity where nothing is known."""
        weights = self.weights
        if design.bounds is None or weights is None:
            return -math.inf
        known = design.bounds(point)
        if any(name not in known for name in weights):
            return -math.inf
        return sum(weight * known[name] for name, weight in weights.items())
