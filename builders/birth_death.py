"""Birth-death chains: M/M/1/K, M/M/c/K and friends, whose closed forms are the yardstick of the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ctmc
from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import positive_rates
from ctmc.model.reward import Reward
from ctmc.model.state_space import Lattice, Variable
from ctmc.model.transitions import FloatTransitions


def _dress(model: Generator, births: Sequence[float], deaths: Sequence[float]) -> Generator:
    rates = np.append(np.asarray(births, dtype=float), 0.0)

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        found = solution.expectations(["jobs", "birth_rate"])
        throughput = found["birth_rate"]
        return {
            "throughput": throughput,
            "jobs": found["jobs"],
            "response_time": found["jobs"] / throughput,
            "empty_probability": solution.probability("jobs == 0"),
            "full_probability": solution.probability(f"jobs == {len(rates) - 1}"),
        }

    return model.replace(
        rewards={"birth_rate": Reward(lambda states: rates[states[:, 0]], "rate of births in the state")},
        measures=measures,
    )


def _checked(births: Sequence[float], deaths: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    up, down = positive_rates("births", births), positive_rates("deaths", deaths)
    if len(up) != len(down):
        raise ModelError(f"births has {len(up)} rates and deaths {len(down)}; allowed are as many of both.")
    return up, down


@ctmc.builder(version=1, dress=_dress)
def birth_death(births: Sequence[float], deaths: Sequence[float]) -> Generator:
    """Birth-death chain on 0 .. K: births[k] is the rate from k to k + 1, deaths[k] the rate from k + 1 to k.

    Parameters
    ----------
    births : sequence of float, length K
        Rates per unit of time; positive.
    deaths : sequence of float, length K
        Rates per unit of time; positive.  M/M/c/K has min(k + 1, c) mu.

    Returns
    -------
    Generator
        States ``jobs`` = 0 .. K.  Measures: throughput, jobs, response_time, empty_probability, full_probability.

    Raises
    ------
    ModelError
        If a rate is not positive and finite, or the lengths differ.

    Examples
    --------
    >>> queue = birth_death(births=[1.0] * 4, deaths=[2.0] * 4)       # M/M/1/4 at load 1/2
    >>> ctmc.solve(ctmc.Stationary(queue), "gth").value.round(6).tolist()
    [0.516129, 0.258065, 0.129032, 0.064516, 0.032258]

    On the command line: ``ctmc build birth_death --births 1,1,1,1 --deaths 2,2,2,2 -o queue.h5``
    """
    up, down = _checked(births, deaths)
    size = len(up) + 1
    require_memory("the birth-death chain", 60 * size, states=size, entries=2 * size - 2)
    low = np.arange(size - 1)
    return Generator.from_transitions(
        np.concatenate([low, low + 1]),
        np.concatenate([low + 1, low]),
        np.concatenate([up, down]),
        Lattice((size - 1,), variables=(Variable("jobs"),)),
        initial=[0],
    )


birth_death.event_rates = ("births", "deaths")  # what `ctmc.sensitivity` differentiates by


def _rerate(model: Generator, old: Mapping[str, Any], new: Mapping[str, Any]) -> Generator:
    """Return the chain at other rates: into each state lead the birth from below and the death from above."""
    up, down = _checked(new["births"], new["deaths"])
    if len(up) != model.size - 1:
        raise ModelError(f"births has {len(up)} rates; at other rates the chain keeps its {model.size - 1}.")
    rows = FloatTransitions(model.transitions.indptr, model.transitions.sources, np.column_stack([down, up]).ravel())
    return model.with_transition_rates(rows)


birth_death.rates_that_may_change = ("births", "deaths")
birth_death.rerate = _rerate  # what `with_rates` does in place of a build
