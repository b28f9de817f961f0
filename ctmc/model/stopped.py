"""Chains that are stopped where something ends: the target of a passage, and what must not be entered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csc_array, csr_array

from ctmc.errors import ModelError
from ctmc.model.communication import reachable_within
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.transitions import FloatTransitions


@dataclass(frozen=True, eq=False)
class Fates:
    """What becomes of each state: a partition found in the graph of the transitions, not by numbers; each of shape (n,).

    Attributes
    ----------
    target : ndarray of bool
    certain : ndarray of bool
        Outside the target, which is reached with probability 1.
    possible : ndarray of bool
        The target is reached with a probability between 0 and 1.
    never : ndarray of bool
        The target is not reached, or not without entering what is to be avoided.
    """

    target: np.ndarray
    certain: np.ndarray
    possible: np.ndarray
    never: np.ndarray


def fates(model: Generator, target: np.ndarray, avoided: np.ndarray | None = None) -> Fates:
    """Return what becomes of each state.

    Parameters
    ----------
    model : Generator
    target, avoided : ndarray of bool, shape (n,)

    Examples
    --------
    >>> chain = Generator.from_matrix([[0, 0, 0, 0], [1.0, 0, 1.0, 0], [0, 0, 0, 1.0], [0, 0, 0, 0]])   # 0 <- 1 -> 2 -> 3
    >>> found = fates(chain, np.array([False, False, False, True]))
    >>> found.never.tolist(), found.possible.tolist(), found.certain.tolist()
    ([True, False, False, False], [False, True, False, False], [False, False, True, False])
    """
    outside = ~target if avoided is None else ~(target | avoided)
    reaching = reachable_within(model, target, outside, backward=True)
    never = ~reaching
    inside = reaching & outside
    some = model.ranks.any(bool(never.any()))
    missing = reachable_within(model, never, inside, backward=True) if some else never
    possible = missing & inside
    return Fates(target, inside & ~missing, possible, never)


def met(model: Generator, found: Fates, begin: np.ndarray) -> Fates:
    """Return the fates of the states that are met from an initial distribution before the passage; others have none.

    Examples
    --------
    >>> chain = Generator.from_matrix([[0, 1.0, 0], [1.0, 0, 1.0], [0, 1.0, 0]])
    >>> met(chain, fates(chain, np.array([False, True, False])), np.array([1.0, 0, 0])).certain.tolist()
    [True, False, False]
    """
    live = found.certain | found.possible
    seen = reachable_within(model, live & (begin > 0), live)
    return Fates(found.target, found.certain & seen, found.possible & seen, found.never)


def stopped(model: Generator, live: np.ndarray, **known: Any) -> Generator:
    """Return the chain in which no transition leaves a state that is not live; the states stay what they are.

    Parameters
    ----------
    model : Generator
    live : ndarray of bool, shape (n,)
    **known
        Other fields of the class: `initial`, `labels`, `rewards`, `notes`.

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> stopped(chain, np.array([True, False])).to_scipy().toarray().tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    require_memory("the stopped chain", 12 * model.entries + 16 * model.size, states=model.size, entries=model.entries)
    keep = live[model.sources]
    before = np.concatenate([[0], np.cumsum(keep)])
    rows = FloatTransitions(before[model.indptr].astype(np.int64), model.sources[keep], model.rates[keep])
    return Generator(model.space, rows, **known)


def rates_between(model: Generator, inside: np.ndarray) -> csr_array:
    """Return the rates between some states, by source, without a diagonal; shape (states inside, states inside)."""
    positions = np.flatnonzero(inside)
    require_memory("the rates between the states", 24 * model.entries, states=model.size, entries=model.entries)
    number = np.full(model.size, -1, dtype=np.int64)
    number[positions] = np.arange(len(positions))
    source = number[model.sources]
    kept = (source >= 0) & np.repeat(inside, np.diff(model.indptr))
    before = np.concatenate([[0], np.cumsum(kept)])[model.indptr]
    indptr = np.append(before[:-1][inside], before[-1])
    shape = (len(positions),) * 2
    return csr_array(csc_array((model.rates[kept], source[kept], indptr), shape=shape))


def one_class(model: Generator, inside: np.ndarray, what: str) -> None:
    """Raise `ModelError` unless each of some states reaches each other of them without leaving them."""
    part = model.restricted(np.flatnonzero(inside))
    if not part.classes.irreducible:
        raise ModelError(
            f"{what} fall into {part.classes.count} classes that do not reach one another; allowed is one class."
        )
