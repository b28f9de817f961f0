"""Named rewards: one number, or one vector, per state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ctmc.errors import ModelError
from ctmc.model.state_space import StateSpace


@dataclass(frozen=True, eq=False)
class Reward:
    """A reward rate in each state, as a function of the states or as an array of values.

    Parameters
    ----------
    rate : callable or array
        A function that maps an (m, dimension) integer table of states to an array of shape (m,) or (m, length); or the
        values themselves, shape (size,) or (size, length).
    description : str
        What it measures, with its unit.
    averaged : bool
        Whether a value is the mean over several states that one state stands for.  Expectations are then right; conditions
        and marginals would not be, and are refused.
    """

    rate: Callable[[np.ndarray], np.ndarray] | np.ndarray
    description: str = ""
    averaged: bool = False

    def evaluate(self, states: np.ndarray, positions: slice) -> np.ndarray:
        """Return the values at `states`, which stand at `positions`; shape (m,) or (m, length), float64."""
        values = self.rate(states) if callable(self.rate) else self.rate[positions]
        values = np.asarray(values, dtype=np.float64)
        if values.ndim not in (1, 2) or len(values) != len(states):
            raise ModelError(
                f"reward {self.description!r} gives an array of shape {values.shape} for {len(states)} states; "
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
            lambda states, name=variable.name: space.columns(states)[name],  # type: ignore[misc]
            f"value of {variable.name}",
        )
        for variable in space.variables
    }


def check_rewards(rewards: Mapping[str, Reward], size: int) -> dict[str, Reward]:
    """Return the rewards as a plain dict; arrays of a wrong length or with non-finite values are refused."""
    checked = {}
    for name, reward in rewards.items():
        if not callable(reward.rate):
            values = np.array(reward.rate, dtype=np.float64)
            if values.ndim not in (1, 2) or len(values) != size or not np.isfinite(values).all():
                raise ModelError(
                    f"reward {name!r} has shape {values.shape}; allowed is ({size},) or ({size}, length), all finite."
                )
            values.flags.writeable = False
            reward = Reward(values, reward.description, reward.averaged)
        checked[name] = reward
    return checked
