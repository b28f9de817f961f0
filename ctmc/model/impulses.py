"""What a reward earns at events: moments of its impulses in each state, and their coupling of states."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import coo_array, csr_array, dia_array

from ctmc.errors import ModelError
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import called, real_numbers
from ctmc.model.reward import Reward
from ctmc.model.transitions import slab_rates

_ENTRIES = 1 << 20
"""Entries whose impulses are found at once."""


def _earned(chain: Generator, reward: Reward) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (sources, targets, rates, impulses) of the transitions, some at a time; states as `Generator.row_slabs` numbers them."""
    impulse = reward.impulse
    if impulse is not None and not callable(impulse) and len(impulse) != chain.entries:
        raise ModelError(
            f"impulse of reward {reward.title} has {len(impulse)} numbers; allowed are {chain.entries}, one for each "
            "transition."
        )
    done = 0
    for slab in chain.row_slabs():
        indptr = slab.indptr.astype(np.int64)
        first = 0
        while first < len(indptr) - 1:
            last = max(int(np.searchsorted(indptr, indptr[first] + _ENTRIES, side="right")) - 1, first + 1)
            chosen = slice(indptr[first], indptr[last])
            sources = slab.sources[chosen].astype(np.int64)
            targets = slab.begin + np.repeat(np.arange(first, last), np.diff(indptr[first : last + 1]))
            rates = slab_rates(slab, chosen)
            if callable(impulse):
                ends = chain.space.states(chain.positions_of(sources)), chain.space.states(chain.begin + targets)
                given = called(f"impulse of reward {reward.title}", impulse, *ends)
                values = real_numbers(f"what impulse of reward {reward.title} gives", given, "finite numbers")
                if values.shape != sources.shape or not np.isfinite(values).all():
                    raise ModelError(
                        f"impulse of reward {reward.title} gives an array of shape {values.shape} for {len(sources)} "
                        f"transitions; allowed are {len(sources)} finite numbers."
                    )
            else:
                values = np.asarray(impulse)[done : done + len(sources)]
            done += len(sources)
            yield sources, targets, rates, values
            first = last


def _loops(chain: Generator, reward: Reward) -> np.ndarray:
    """Return the rate of events that earn 1 and leave the state as it is; shape (n,)."""
    found = np.zeros(chain.size)
    if reward.self_loops is None:
        return found
    for positions, states in chain.state_slabs():
        what, loops = f"self_loops of reward {reward.title}", reward.self_loops
        given = called(what, loops, states) if callable(loops) else loops[positions]
        rates = real_numbers(what, given, "finite rates >= 0")
        if rates.shape != (len(states),) or not np.isfinite(rates).all() or (rates < 0).any():
            raise ModelError(
                f"self_loops of reward {reward.title} gives an array of shape {rates.shape} for {len(states)} states; "
                f"allowed are {len(states)} finite rates >= 0."
            )
        found[positions] = rates
    return found


def impulse_values(chain: Generator, reward: Reward) -> np.ndarray:
    """Return what each transition earns, in the order of ``chain.rates``; shape (transitions,).

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> impulse_values(chain, Reward(None, impulse=lambda sources, targets: targets[:, 0] + 3.0)).tolist()
    [3.0, 4.0]
    """
    require_memory("the impulses", 8 * chain.entries, entries=chain.entries)
    return np.concatenate([np.zeros(0), *(values for _, _, _, values in _earned(chain, reward))])


def self_loop_rates(chain: Generator, reward: Reward) -> np.ndarray:
    """Return the rate of events that earn 1 and leave the state as it is; shape (n,)."""
    return _loops(chain, reward)


def impulse_rates(chain: Generator, reward: Reward, power: int = 1) -> np.ndarray:
    """Return sum_j rate(i, j) impulse(i, j)^power in each state i, self-loops included; shape (n,).

    Examples
    --------
    >>> chain = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> impulse_rates(chain, Reward(None, impulse=lambda sources, targets: targets[:, 0] + 3.0), 2).tolist()
    [16.0, 18.0]
    """
    found = _loops(chain, reward)
    if reward.impulse is not None:
        earned = np.zeros(chain.held)
        for sources, _, rates, values in _earned(chain, reward):
            earned += np.bincount(sources, weights=rates * values**power, minlength=chain.held)
        found += chain.collected(earned)
    return found


def impulse_matrix(chain: Generator, reward: Reward, power: int = 1) -> csr_array:
    """Return rate(i, j) impulse(i, j)^power as a sparse matrix; self-loops stand on the diagonal.

    Raises
    ------
    ModelError
        If it does not fit the memory limit.
    """
    if chain.shared:
        raise ModelError(
            f"two and more moments of reward {reward.title}, which is earned at events, are asked for, and "
            f"{chain.ranks.count} ranks share the model; allowed is one moment, or one process."
        )
    found = csr_array(dia_array((_loops(chain, reward)[None], [0]), shape=(chain.size,) * 2))
    if reward.impulse is not None:
        require_memory("the matrix of impulses", 40 * chain.entries, states=chain.size, entries=chain.entries)
        for sources, targets, rates, values in _earned(chain, reward):
            earning = values != 0
            entries = (rates * values**power)[earning], (sources[earning], targets[earning])
            found = found + csr_array(coo_array(entries, shape=(chain.size,) * 2))
    return csr_array(found)


def largest_impulse(chain: Generator, reward: Reward) -> float:
    """Return the largest absolute value of an impulse."""
    largest = 1.0 if reward.self_loops is not None else 0.0
    if reward.impulse is not None:
        for _, _, _, values in _earned(chain, reward):
            largest = max(largest, float(np.abs(values).max(initial=0.0)))
    return float(chain.ranks.largest(largest))


def reward_rates(chain: Generator, reward: Reward) -> np.ndarray:
    """Return what a reward earns on average per unit of time in each state, impulses included; (n,) or (n, length)."""
    require_memory("a reward's values", 8 * chain.size, states=chain.size)
    parts = [reward.evaluate(states, positions) for positions, states in chain.state_slabs()]
    if not parts:  # a rank without states
        given = (
            reward.rate
            if isinstance(reward.rate, np.ndarray)
            else reward.evaluate(chain.space.states([0]), slice(0, 1))
        )
        parts = [given[:0]]
    found = np.concatenate(parts)
    if not np.isfinite(found).all():
        raise ModelError(f"reward {reward.title} has values that are not finite.")
    if reward.has_impulses:
        if found.ndim == 2:
            raise ModelError(f"reward {reward.title} has {found.shape[1]} components and impulses; allowed is one.")
        found = found + impulse_rates(chain, reward)
    return found
