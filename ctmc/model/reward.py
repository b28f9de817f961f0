"""Named rewards: one number, or one vector, per state and unit of time, and what is earned at once at an event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ctmc.errors import ModelError, shown
from ctmc.model.parameters import called, check_mapping, real_numbers
from ctmc.model.state_space import StateSpace


@dataclass(frozen=True, eq=False)
class Reward:
    """A reward rate in each state, as a function of the states or as an array of values, and impulses at events.

    Parameters
    ----------
    rate : callable, array or None
        A function that maps an (m, dimension) integer table of states to an array of shape (m,) or (m, length); or the
        values themselves, shape (size,) or (size, length); None where only impulses are earned.
    description : str
        What it measures, with its unit.
    averaged : bool
        Whether a value is the mean over several states that one state stands for.  Expectations are then right; conditions
        and marginals would not be, and are refused.
    impulse : callable or array, optional
        What a transition earns at once: a function of two tables of states, sources and targets, that returns an array of
        shape (m,); or one number for each entry of ``chain.rates``.
    self_loops : callable or array, optional
        Rate, in each state, of events that earn 1 at once and leave the state as it is, such as a job that is turned away;
        shape (m,), as for `rate`.

    Examples
    --------
    >>> arrivals = Reward(None, "jobs that have come", impulse=lambda sources, targets: targets.sum(1) > sources.sum(1))
    >>> arrivals.has_impulses
    True
    """

    rate: Callable[[np.ndarray], np.ndarray] | np.ndarray | None
    description: str = ""
    averaged: bool = False
    impulse: Callable[[np.ndarray, np.ndarray], np.ndarray] | np.ndarray | None = None
    self_loops: Callable[[np.ndarray], np.ndarray] | np.ndarray | None = None
    _name: str = ""  # in its model, for messages

    @property
    def title(self) -> str:
        """The name in its model, or where it has none yet the description, in quotes; for messages."""
        return shown(self._name or self.description)

    @property
    def has_impulses(self) -> bool:
        """Whether something is earned at events."""
        return self.impulse is not None or self.self_loops is not None

    def evaluate(self, states: np.ndarray, positions: slice) -> np.ndarray:
        """Return the rates at `states`, which stand at `positions`; shape (m,) or (m, length), float64; without impulses."""
        if self.rate is None:
            return np.zeros(len(states))
        if callable(self.rate):
            given = called(f"reward {self.title}", self.rate, states)
            values = real_numbers(f"what reward {self.title} gives", given, "numbers")
        else:
            values = real_numbers(f"reward {self.title}", self.rate[positions], "numbers")
        if values.ndim not in (1, 2) or len(values) != len(states):
            raise ModelError(
                f"reward {self.title} gives an array of shape {values.shape} for {len(states)} states; "
                f"allowed is ({len(states)},) or ({len(states)}, length)."
            )
        return values


def evaluate(space: StateSpace, rewards: Sequence[Reward]) -> Iterable[tuple[slice, list[np.ndarray]]]:
    """Yield (slice of positions, values of each reward there) slab by slab, so that nothing large is ever held."""
    for positions, states in space.slabs():
        yield positions, [reward.evaluate(states, positions) for reward in rewards]


def variable_rewards(space: StateSpace) -> dict[str, Reward]:
    """Return a reward for each named variable of the states: its value."""
    return {
        variable.name: Reward(
            lambda states, name=variable.name: space.columns(states)[name],  # type: ignore[misc]  # bound while it is made
            f"value of {variable.name}",
        )
        for variable in space.variables
    }


def check_rewards(rewards: Mapping[str, Reward], size: int) -> dict[str, Reward]:
    """Return the rewards as a plain dict; arrays of a wrong length or with non-finite values are refused."""
    checked = {}
    check_mapping("rewards", rewards, "rewards")
    for name, reward in rewards.items():
        if not isinstance(reward, Reward):
            raise ModelError(
                f"reward {shown(name)} is {shown(reward)}; allowed is a Reward, such as ctmc.Reward(values), with a number for "
                "each state."
            )
        if reward._name != name:
            reward = replace(reward, _name=name)
        if reward.rate is None and not reward.has_impulses:
            raise ModelError(f"reward {shown(name)} has neither a rate nor impulses; allowed are one of them or both.")
        for field in ("rate", "impulse", "self_loops"):
            given = getattr(reward, field)
            if given is None or callable(given):
                continue
            what = f"reward {shown(name)}" if field == "rate" else f"{field} of reward {shown(name)}"
            values = real_numbers(what, given, "numbers, or a function of the states").copy()
            if field == "rate":
                fits, allowed = values.ndim in (1, 2) and len(values) == size, f"({size},) or ({size}, length)"
            elif field == "impulse":
                fits, allowed = values.ndim == 1, "(transitions,)"
            else:
                fits, allowed = values.shape == (size,) and not (values < 0).any(), f"({size},), none negative"
            if not fits or not np.isfinite(values).all():
                raise ModelError(
                    f"{what} is {shown(given)}, of shape {values.shape}; allowed is {allowed}, all finite."
                )
            values.flags.writeable = False
            reward = replace(reward, **{field: values})  # type: ignore[arg-type]  # rate or impulse
        checked[name] = reward
    return checked
