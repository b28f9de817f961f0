"""What formats have in common: states as columns, rewards as numbers, and the sentences about what is left out."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.errors import ModelError, printable
from ctmc.model.generator import Generator
from ctmc.model.impulses import impulse_values, self_loop_rates
from ctmc.model.level_dependent import LevelDependentQBD
from ctmc.model.qbd import QBD
from ctmc.model.reward import Reward, evaluate
from ctmc.model.state_space import Lattice, Listed, StateSpace, Variable

_COORDINATE = re.compile(r"(.*)\[(\d+)\]")


@dataclass(frozen=True, eq=False)
class Earned:
    """A reward as one number per state and per transition.

    Attributes
    ----------
    name, description : str
    rate : ndarray of float64, shape (n,) or, where components stay together, (n, length), or None
        Earned per unit of time.
    impulse : ndarray of float64, shape (transitions,), or None
        Earned at each transition, in the order of ``chain.rates``.
    """

    name: str
    description: str
    rate: np.ndarray | None
    impulse: np.ndarray | None


def finite_chain(model: Any, kind: str) -> Generator:
    """Return the model if it is a `Generator`, or raise a sentence that says what to write instead."""
    if isinstance(model, Generator):
        return model
    if isinstance(model, QBD | LevelDependentQBD):
        raise ModelError(
            f"a {type(model).__name__} has infinitely many states and cannot be written as {kind}; allowed is a Generator, "
            "such as its truncation (truncate)."
        )
    raise ModelError(f"a {type(model).__name__} cannot be written as {kind}; allowed is a Generator.")


def earned(chain: Generator, *, components: bool = True) -> tuple[list[Earned], list[str]]:
    """Return the rewards as numbers, and a sentence for each thing that changes on the way.

    A reward with several components becomes one for each, unless `components` is false.  Events that leave the state as it is become a rate, which has
    the same expectation.

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]]).with_reward("busy", [0.0, 1.0])
    >>> [(reward.name, reward.rate.tolist()) for reward in earned(chain)[0]]
    [('busy', [0.0, 1.0])]
    """
    found, lost = [], []
    for name, reward in chain.rewards.items():
        shown = printable(name)
        rate = None if reward.rate is None else _rates(chain, reward)
        if reward.self_loops is not None:
            loops = self_loop_rates(chain, reward)
            rate = loops if rate is None else rate + (loops if rate.ndim == 1 else loops[:, None])
            lost.append(
                f"Reward {shown!r}: what events earn that leave the state as it is, is written as a rate; expectations stay, "
                "variances do not."
            )
        if reward.averaged:
            lost.append(f"Reward {shown!r}: that its values are means over several states is not carried.")
        impulse = None if reward.impulse is None else impulse_values(chain, reward)
        if rate is None or rate.ndim == 1 or not components:
            found.append(Earned(name, reward.description, rate, impulse))
        else:
            found += [
                Earned(f"{name}[{k}]", reward.description, np.ascontiguousarray(column), impulse)
                for k, column in enumerate(rate.T)
            ]
            lost.append(f"Reward {shown!r} is written as {rate.shape[1]} rewards, one for each component.")
    return found, lost


def left_out(chain: Generator) -> list[str]:
    """Return a sentence for each part of a chain that no foreign format carries."""
    parts = {
        "measures": chain.measures is not None,
        "distributions": bool(chain.distributions),
        "notes": bool(chain.notes),
        "the builder with its parameters": chain.recipe is not None,
    }
    names = [name for name, there in parts.items() if there]
    if not names:
        return []
    sentence = ", ".join(names) + (" is" if names == ["the builder with its parameters"] else " are") + " not carried."
    return [sentence[0].upper() + sentence[1:]]


def no_descriptions(rewards: Sequence[Earned]) -> list[str]:
    """Return a sentence for a format that has no descriptions of rewards, none if no reward has one."""
    names = [printable(reward.name) for reward in rewards if reward.description]
    return [f"Descriptions of rewards are not carried: {', '.join(names)}."] if names else []


def coordinate_names(space: StateSpace) -> list[str]:
    """Return a name for each coordinate: that of its variable, with a position in a vector.

    Examples
    --------
    >>> coordinate_names(Lattice((1, 1, 1), variables=(Variable("queue", 2), Variable("phase"))))
    ['queue[0]', 'queue[1]', 'phase']
    """
    names: list[str] = []
    for variable in space.variables:
        names += (
            [variable.name] if variable.length is None else [f"{variable.name}[{k}]" for k in range(variable.length)]
        )
    return names


def variables_of(names: Sequence[str]) -> tuple[Variable, ...]:
    """Return the variables behind names of coordinates, the inverse of `coordinate_names`."""
    variables: list[Variable] = []
    for name in names:
        match = _COORDINATE.fullmatch(name)
        last = variables[-1] if variables else None
        if match and match[2] == "0":
            variables.append(Variable(match[1], 1))
        elif match and last is not None and last.name == match[1] and last.length == int(match[2]):
            variables[-1] = Variable(match[1], last.length + 1)
        else:
            variables.append(Variable(name))
    if len({variable.name for variable in variables}) < len(variables):
        return tuple(Variable(name) for name in names)
    return tuple(variables)


def numbered(size: int) -> Lattice:
    """Return the states 0 .. size - 1 with the one variable ``state``."""
    return Lattice((size - 1,), variables=(Variable("state"),))


def space_of(table: np.ndarray, names: Sequence[str]) -> StateSpace:
    """Return the state space of a table of states: a box if it is one in its order, else the table itself.

    Raises
    ------
    ModelError
        If a state stands twice.

    Examples
    --------
    >>> space_of(np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), ["a", "b"]).describe()
    'a, b from 0 to 1'
    """
    variables = variables_of(names)
    limits = table.max(axis=0)
    sides = 1
    for limit in limits.tolist():
        sides *= limit + 1
    if table.min() == 0 and sides == len(table):
        box = Lattice(tuple(limits.tolist()), variables=variables)
        if all(np.array_equal(states, table[positions]) for positions, states in box.slabs()):
            return box
    return Listed(table, variables)


def identifiers(names: Sequence[str], allowed: str, longest: int, taken: Sequence[str] = ()) -> list[str]:
    """Return names made of `allowed` characters (a class of regular expressions), different from each other and from `taken`.

    Examples
    --------
    >>> identifiers(["busy", "busy!", "busy?"], "A-Za-z0-9_", 63)
    ['busy', 'busy_', 'busy__2']
    """
    used, found = set(taken), []
    for name in names:
        plain = re.sub(f"[^{allowed}]", "_", name)[:longest] or "_"
        new, count = plain, 1
        while new in used:
            count += 1
            new = f"{plain[: longest - 8]}_{count}"
        used.add(new)
        found.append(new)
    return found


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path as it may stand in a sentence."""
    return printable(os.fspath(path))


def _rates(chain: Generator, reward: Reward) -> np.ndarray:
    return np.concatenate([values for _, (values,) in evaluate(chain.space, [reward])])
