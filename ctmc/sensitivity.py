"""Derivatives of a long-run reward with respect to every event rate, from one bias vector.

d E[r] / d theta = pi (dQ / d theta) h + pi (dr / d theta), with h the bias of r: Q h = E[r] - r.  Source: X.-R. Cao and H.-F. Chen,
*Perturbation realization, potentials, and sensitivity analysis of Markov processes*, IEEE Trans. Autom. Control 42 (1997).

Q is linear in event rates, so dQ / d theta is a difference of two generators, exactly: the builder makes the model again at
changed parameters, and nothing is written out but pi Q.  Where a rate also decides something, such as which queue a job
joins, the generator is linear in it only as long as no decision changes.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.bias import Bias, one_column, poisson, stationary_solution
from ctmc.errors import ModelError, UnsupportedProblemError, shown, unknown_name
from ctmc.evolution import EPSILON
from ctmc.model.generator import Generator
from ctmc.model.impulses import reward_rates
from ctmc.model.parameters import called, check_function, check_mapping, checked_names
from ctmc.model.summary import Rows, Summarised
from ctmc.problem import reward_name
from ctmc.solution import Solution

Build = Callable[..., Any]
_STEPS = (2.0**-10, 2.0**-20)
"""Changes relative to the parameter: the first loses three digits to cancellation, the second six but decides more alike."""
_LINEAR = 1e-9
_PLACE = re.compile(r"\s*(\w+)\s*(?:\[\s*(\d+)\s*\])?\s*")
_FOUR = (-2, -1, 1, 2)


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity(Summarised):
    """Derivatives of the long-run average of one reward.

    Attributes
    ----------
    reward : str
    gain : float
        The long-run average itself.
    values : mapping of str to float
        The derivative for each parameter, such as ``service_rates[1]``.
    errors : mapping of str to float
        Estimates, not bounds: what the residual of h, the defect of pi and rounding may do to each value.
    notes : tuple of str
        Where the reward jumps or has a kink at these parameters, so that the derivative is that of something smoother.
    bias : Bias
        The vector behind all values.
    """

    reward: str
    gain: float
    values: Mapping[str, float]
    errors: Mapping[str, float]
    notes: tuple[str, ...]
    bias: Bias

    @property
    def value(self) -> float:
        """The derivative, where one parameter was asked for."""
        if len(self.values) != 1:
            raise ModelError(f"there are {len(self.values)} derivatives; take them from values by their names.")
        return next(iter(self.values.values()))

    def _summary(self) -> tuple[str, Rows]:
        rows: Rows = [("long-run average", f"{self.gain:.10g}")]
        rows = [*rows, *((f"d / d {name}", f"{value:.10g}") for name, value in self.values.items())]
        largest = max(self.errors.values(), default=0.0)
        rows.append(("error estimate", f"{largest:.2g}"))
        return f"Sensitivity of {self.reward}", [*rows, *(("note", note) for note in self.notes)]


def sensitivity(
    solution: Solution,
    reward: str,
    parameter: str | Sequence[str] | None = None,
    *,
    build: Build | None = None,
    parameters: Mapping[str, Any] | None = None,
    tolerance: float = 1e-11,
    largest_products: int = 20_000,
) -> Sensitivity:
    """Return derivatives of the long-run average of a reward with respect to event rates.

    One Poisson equation for all; then for each parameter four models, built one after another, with one product each: enough
    to see that the generator is linear in the parameter, and to find the derivative of a reward that is not.  Decisions are
    held fixed: where a selection value ties, an arbitrarily small change of a service rate sends other jobs elsewhere, so
    that the reward jumps and has no derivative; the builder then holds the routing, if it can, and a note says so.

    Parameters
    ----------
    solution : Solution
        Stationary, on a Generator with one recurrent class.
    reward : str
        A reward of the model, or a component such as "queue_length[1]"; it may depend on the parameters itself.
    parameter : str or sequence of str, optional
        Such as "arrival_rate", "service_rates" (all of them) or "service_rates[1]"; default all event rates that the builder
        names.
    build : callable, optional
        Makes the model from `parameters`, as ``build(**parameters)``; default the builder in the model's recipe.
    parameters : mapping of str to number or sequence of numbers, optional
        With `build`: the parameters of the solved model; by default all of them are event rates.
    tolerance, largest_products
        Of the bias, see `ctmc.bias`.

    Returns
    -------
    Sensitivity

    Raises
    ------
    ModelError
        If a parameter is no number, the model was not made by a builder, or the generator is not linear in the parameter.
    UnknownNameError
        If there is no such parameter or reward.

    Examples
    --------
    >>> from ctmc.problem import Stationary
    >>> from ctmc.solve import solve
    >>> queue = registry.build("birth_death", births=[1.0], deaths=[2.0])        # jobs: a / (a + b)
    >>> found = sensitivity(solve(Stationary(queue)), "jobs")
    >>> {name: round(value, 9) for name, value in found.values.items()}           # b / (a + b)^2 and -a / (a + b)^2
    {'births[0]': 0.222222222, 'deaths[0]': -0.111111111}
    """
    solution = stationary_solution(solution)
    chain = solution.problem.model
    assert isinstance(chain, Generator)
    design = _design(chain, build, parameters)
    places = _places(design, parameter)
    name, rates = one_column(chain, reward)
    found = poisson(solution, name, rates, tolerance, largest_products)
    watch = _Watch(chain, design, found, rates)
    values, errors, notes = {}, {}, []
    for place in places:
        values[place.name], errors[place.name], said = watch.derivative(place)
        notes += said
    return Sensitivity(name, found.gain, values, errors, tuple(notes), found)


@dataclass(frozen=True)
class _Place:
    """One number among the parameters."""

    parameter: str
    index: int | None

    @property
    def name(self) -> str:
        return self.parameter if self.index is None else f"{self.parameter}[{self.index}]"


@dataclass(frozen=True, eq=False)
class _Design:
    """How the model is made: a function, its parameters, which of these are event rates, and how decisions are held."""

    build: Build
    parameters: Mapping[str, Any]
    event_rates: tuple[str, ...]
    held: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def known(self) -> dict[str, Any]:
        return {**self.defaults, **self.parameters}

    def at(self, place: _Place) -> float:
        given = self.known()[place.parameter]
        return float(given if place.index is None else given[place.index])

    def changed(self, place: _Place, value: float, held: bool) -> Any:
        """Return the model with one number changed."""
        given: Any = value
        if place.index is not None:
            given = [float(number) for number in self.known()[place.parameter]]
            given[place.index] = value
        base = self.held if held and self.held is not None else self.parameters
        return called("build", functools.partial(self.build, **{**base, place.parameter: given}))


def _design(chain: Generator, build: Build | None, parameters: Mapping[str, Any] | None) -> _Design:
    check_function("build", build, "a function that makes the model")
    if parameters is not None:
        check_mapping("parameters", parameters, "what build takes")
    if build is not None:
        if parameters is None:
            raise ModelError("build is given without parameters; allowed are both or none.")
        return _Design(build, parameters, tuple(parameters))
    if parameters is not None:
        raise ModelError("parameters are given without build; allowed are both or none.")
    if chain.recipe is None:
        raise ModelError(
            "the model was not made by a builder, so it cannot be made again at other rates; give build=, a function, and the "
            "parameters= at which it makes this model."
        )
    function = registry.builder(chain.recipe.builder)
    hold = getattr(function, "held_decisions", None)
    own = dict(chain.recipe.parameters)
    defaults = {
        name: option.default
        for name, option in inspect.signature(function).parameters.items()
        if option.default is not option.empty
    }
    return _Design(
        function, own, tuple(getattr(function, "event_rates", ())), None if hold is None else hold(own), defaults
    )


def _places(design: _Design, parameter: str | Sequence[str] | None) -> list[_Place]:
    """Return the numbers that were asked for, one by one."""
    if parameter is None and not design.event_rates:
        raise UnsupportedProblemError("the builder of this model names no event rates; say which parameter= is one.")
    asked = design.event_rates if parameter is None else checked_names("parameter", parameter, "parameter")
    known = design.known()
    found = []
    for text in asked:
        match = _PLACE.fullmatch(text)
        if match is None or match[1] not in known:
            raise unknown_name("parameter", text, known)
        name, value = match[1], known[match[1]]
        several = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
        numbers = list(value) if several else [value]
        if not all(isinstance(one, int | float | np.number) and not isinstance(one, bool) for one in numbers):
            raise ModelError(f"parameter {name} is {shown(value)}; allowed is a number, or several.")
        if match[2] is None:
            found += [_Place(name, index) for index in range(len(numbers))] if several else [_Place(name, None)]
        elif not several or int(match[2]) >= len(numbers):
            allowed = f"0 to {len(numbers) - 1}" if several else "none: it is one number"
            raise ModelError(f"index {match[2]} of parameter {name} is out of range; allowed is {allowed}.")
        else:
            found.append(_Place(name, int(match[2])))
    return found


class _Watch:
    """Holds what all derivatives have in common."""

    def __init__(self, chain: Generator, design: _Design, found: Bias, rates: np.ndarray) -> None:
        self.chain, self.design, self.bias = chain, design, found
        self.pi = np.asarray(found.solution.value)
        self.earned = float(self.pi @ rates)
        self.flow = float(self.pi @ chain.exit_rates)
        self.half = float(rates.max() / 2 - rates.min() / 2) or 1.0
        self.before = chain.forward(self.pi)

    def derivative(self, place: _Place) -> tuple[float, float, list[str]]:
        """Return the derivative, an estimate of its error, and notes."""
        notes: list[str] = []
        for held in (False, True):
            if held and self.design.held is None:
                break
            for step in _STEPS:
                found = self._differences(place, step, held)
                if found is None:
                    continue
                if held:
                    notes.append(
                        f"at {place.name} = {self.design.at(place):g} decisions change with the least change of it, so the "
                        "average jumps: the derivative is that with all decisions held fixed."
                    )
                value, error, kink = found
                if kink:
                    notes.append(f"the reward itself has a kink at {place.name} = {self.design.at(place):g}.")
                return value, error, notes
        raise ModelError(
            f"the generator is not linear in {place.name} near {self.design.at(place):g}: decisions change there, or it is no "
            "event rate; allowed are rates at which transitions go on as they are."
        )

    def _differences(self, place: _Place, relative: float, held: bool) -> tuple[float, float, bool] | None:
        """Return derivative, error estimate and whether the reward has a kink; None where the generator is not linear."""
        at = self.design.at(place)
        step = abs(at) * relative or relative
        flows, earned = {}, {}
        for k in _FOUR:
            changed = self._model(place, at + k * step, held)
            flows[k] = changed.forward(self.pi) - self.before
            earned[k] = self._earned(changed)
        slope = (8 * (flows[1] - flows[-1]) - (flows[2] - flows[-2])) / (12 * step)
        allowed = _LINEAR * step * float(np.abs(slope).sum()) + 32 * EPSILON * self.flow
        if any(float(np.abs(flows[k] - k * step * slope).sum()) > allowed for k in _FOUR):
            return None
        h = self.bias.values
        value = float(slope @ h) + (8 * (earned[1] - earned[-1]) - (earned[2] - earned[-2])) / (12 * step)
        bends = [earned[k] + earned[-k] - 2 * self.earned for k in (1, 2)]
        kink = abs(4 * bends[0] - bends[1]) / (2 * step)
        spread = float(h.max() - h.min())
        changes = float(np.abs(slope).sum())
        # how long an imbalance lasts is taken from the bias itself: its spread per reward
        lasting = spread / (2 * self.half)
        off = self.bias.residual + self.bias.solution.defect * self.flow * spread
        rounding = EPSILON * (self.flow * spread + abs(self.earned)) / step
        error = changes * lasting * off + rounding
        size = abs(value) + changes * spread + abs(self.earned / (at or 1.0))
        return value, error, kink > 1e-6 * size + 100 * rounding

    def _model(self, place: _Place, value: float, held: bool) -> Generator:
        changed = self.design.changed(place, value, held)
        chain = self.chain
        alike = isinstance(changed, Generator) and changed.size == chain.size
        if not alike or changed.space.describe() != chain.space.describe():
            raise ModelError(
                f"another value of {place.name} makes a model with other states; allowed are rates that leave the states as "
                "they are."
            )
        assert isinstance(changed, Generator)
        return changed

    def _earned(self, changed: Generator) -> float:
        """Return pi r of a changed model; a reward that the builder does not make stays what it is."""
        text = self.bias.reward
        name = reward_name(text)
        if name not in changed.all_rewards:
            return (
                float(self.pi @ reward_rates(changed, self.chain.all_rewards[name])) if "[" not in text else self.earned
            )
        return float(self.pi @ one_column(changed, text)[1])
