"""Lumping: whether a chain stays a Markov chain when states are put together, and the chain of the parts.

A chain is *ordinarily* (strongly) lumpable with respect to a partition if, for any two different parts A and B, all states
of A have the same total rate into B; the parts then form a Markov chain for every initial distribution, with these rates.

Source: J. G. Kemeny, J. L. Snell, *Finite Markov chains*, Van Nostrand, 1960, section 6.3.  The coarsest partition is found
by splitting, as in S. Derisavi, H. Hermanns, W. H. Sanders, *Optimal state-space lumping in Markov chains*, Information
Processing Letters 87 (2003), doi:10.1016/S0020-0190(03)00343-0.

Only rates are added, never subtracted, so two sums are compared up to their own rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csc_array

from ctmc.errors import ModelError, shown
from ctmc.model.distribution import Distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import real_number
from ctmc.model.products import compiled
from ctmc.model.state_space import Lattice, StateSpace, Variable
from ctmc.model.transitions import FloatTransitions, unsigned

TOLERANCE = 1e-12
"""Two rates into a part are the same if they differ by at most this, relative to the larger one."""
_NONE, _ONE = np.uint64(0), np.uint64(1)


@dataclass(frozen=True)
class Lumpability:
    """Whether a chain is ordinarily lumpable, and where it fails.

    Attributes
    ----------
    lumpable : bool
    deviation : float
        Largest difference of the rates of two states of one part into another part, relative to the larger rate, over all
        parts; 0 where all are equal, 1 where one state has a rate and another has none.
    tolerance : float
        Largest deviation that counts as rounding.
    states : tuple of int, length 2
        Two states of one part that differ; of the first part that is reached unequally, and there of the first part from
        which it is.  Empty where the chain is lumpable.
    part : int
        The part that they reach at different rates; -1 where the chain is lumpable.
    rates : tuple of float, length 2
        Their rates into it.
    sentence : str
        All this in one sentence.
    """

    lumpable: bool
    deviation: float
    tolerance: float
    states: tuple[int, ...]
    part: int
    rates: tuple[float, ...]
    sentence: str


def lumpability(chain: Generator, part_of: Any, *, tolerance: float = TOLERANCE) -> Lumpability:
    """Check exactly, by one pass over all transitions, whether a chain is ordinarily lumpable.

    Cost: one pass over the entries, grouped by the part that they lead into, on one thread; 32 bytes a state and
    64 a part, beside the result.

    Parameters
    ----------
    chain : Generator
    part_of : array of int, shape (n,)
        Part of each state, numbered from 0; every number up to the largest occurs.
    tolerance : float
        Largest difference of two rates into a part that counts as rounding, relative to the larger one; 0 asks for equal
        bits.

    Returns
    -------
    Lumpability

    Raises
    ------
    ModelError
        If `part_of` is no partition, or the tolerance is not in [0, 1).

    Examples
    --------
    >>> chain = Generator.from_matrix([[-3, 1, 2], [2, -2, 0], [1, 1, -2]])
    >>> lumpability(chain, [0, 1, 1]).sentence
    'The chain is not lumpable: states 1 (1,) and 2 (2,) of part 1 go to part 0 at the rates 2.0 and 1.0; the largest relative
    difference of any two is 0.5, allowed is 1e-12.'
    >>> lumpability(chain, [1, 0, 1]).deviation
    0.0
    """
    return _compare(chain, part_of, tolerance)[0]


def lumped(
    chain: Generator, part_of: Any, *, space: StateSpace | None = None, tolerance: float = TOLERANCE
) -> Generator:
    """Return the chain of the parts.

    The rates are those of the first state of each part.  The initial distribution is summed over parts, and labels that are
    the same throughout every part are kept; rewards are not, as they need not be.

    Parameters
    ----------
    chain : Generator
    part_of : array of int, shape (n,)
        Part of each state, numbered from 0.
    space : StateSpace, optional
        States of the result; by default the numbers of the parts, variable ``part``.
    tolerance : float
        As in `lumpability`.

    Raises
    ------
    ModelError
        If the chain is not ordinarily lumpable; the sentence names two states and the part in which they differ.

    Examples
    --------
    >>> chain = Generator.from_matrix([[-3, 1, 2], [2, -2, 0], [2, 1, -3]])
    >>> lumped(chain, [0, 1, 1]).to_scipy().toarray().tolist()
    [[-3.0, 3.0], [2.0, -2.0]]
    """
    found, parts, (indptr, sources, rates) = _compare(chain, part_of, tolerance)
    if not found.lumpable:
        raise ModelError(found.sentence)
    part = np.asarray(part_of)
    if space is None:
        space = Lattice((parts - 1,), variables=(Variable("part"),))
    if space.size != parts:
        raise ModelError(f"the space has {space.size} states; allowed are as many as there are parts, {parts}.")
    known: dict[str, Any] = {}
    if chain.initial is not None:
        mass = np.bincount(part[chain.initial.positions], weights=chain.initial.probabilities, minlength=parts)
        known["initial"] = Distribution(np.flatnonzero(mass), mass[mass > 0])
    members = np.bincount(part, minlength=parts)
    labels = {name: np.bincount(part[label], minlength=parts) for name, label in chain.labels.items()}
    known["labels"] = {
        name: count > 0 for name, count in labels.items() if ((count == 0) | (count == members)).all()
    }  # fmt: skip
    return Generator(space, FloatTransitions(indptr, sources, rates), **known)


def coarsest_partition(chain: Generator, part_of: Any = None, *, tolerance: float = TOLERANCE) -> np.ndarray:
    """Return the coarsest partition that refines a given one and with respect to which the chain is ordinarily lumpable.

    Parts are split by the rates of their states into other parts until nothing splits; every new part splits the others in
    turn.  Sorted rates that differ by at most the tolerance from their neighbours stay together.  Cost: as many passes over
    the entries into a state as its part was split, at most n; 120 bytes a state.

    Parameters
    ----------
    chain : Generator
    part_of : array of int, shape (n,), optional
        States that must stay apart have different numbers, for instance the values of a reward or a label; by default
        nothing must, and the answer is then one part: every chain is lumpable to a single state.
    tolerance : float
        As in `lumpability`.

    Returns
    -------
    ndarray of int64, shape (n,)
        Part of each state; parts are numbered in the order of their first state.

    Examples
    --------
    >>> chain = Generator.from_matrix([[0, 1, 1, 0], [2, 0, 0, 1], [2, 0, 0, 1], [0, 3, 3, 0]])
    >>> coarsest_partition(chain, [0, 1, 1, 1]).tolist()
    [0, 1, 1, 2]
    """
    n = chain.size
    part, parts = _partition(np.zeros(n, dtype=np.int64) if part_of is None else part_of, n)
    _check_tolerance(tolerance)
    require_memory("the coarsest partition", 120 * n, states=n)
    indptr, sources = unsigned(chain.indptr), unsigned(chain.sources)
    members = np.argsort(part, kind="stable").view(np.uint64)
    begins = np.zeros(n + 1, dtype=np.uint64)
    begins[1 : parts + 1] = np.cumsum(np.bincount(part, minlength=parts))
    refined = part.astype(np.uint64)
    _refine(indptr, sources, chain.rates, refined, members, begins, parts, float(tolerance))
    _, first, renumbered = np.unique(refined, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[renumbered]


def _compare(
    chain: Generator, part_of: Any, tolerance: float
) -> tuple[Lumpability, int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return what was found, the number of parts, and the arrays of the quotient, by destination."""
    n = chain.size
    part, parts = _partition(part_of, n)
    _check_tolerance(tolerance)
    require_memory("the check of a partition", 32 * n + 64 * parts, states=n)
    sizes = np.bincount(part, minlength=parts)
    order = np.argsort(part, kind="stable")
    begins = np.concatenate([[0], np.cumsum(sizes)])
    indptr = np.zeros(parts + 1, dtype=np.int64)
    states, faults = np.zeros(2, dtype=np.int64), np.zeros(4)
    sources, rates = _quotient(
        unsigned(chain.indptr), unsigned(chain.sources), chain.rates, part.view(np.uint64), order.view(np.uint64),
        begins.view(np.uint64), float(tolerance), indptr, states, faults,
    )  # fmt: skip
    narrow = np.int32 if parts <= np.iinfo(np.int32).max else np.int64
    columns = csc_array((rates, sources.astype(narrow), indptr), shape=(parts, parts))
    columns.sort_indices()
    arrays = indptr, columns.indices.astype(narrow, copy=False), columns.data
    deviation, target = float(faults[0]), int(faults[1])
    if deviation <= tolerance:
        sentence = f"The chain is lumpable to {parts} parts; rates differ by at most {deviation:.3g}, relatively."
        return Lumpability(True, deviation, tolerance, (), -1, (), sentence), parts, arrays
    (one, own), (other, its) = sorted(zip(states.tolist(), faults[2:].tolist(), strict=True))
    sentence = (
        f"The chain is not lumpable: states {chain.name_of(one)} and {chain.name_of(other)} of part {part[one]} go to part {target} "
        f"at the rates {own!r} and {its!r}; the largest relative difference of any two is {deviation:.3g}, allowed is "
        f"{tolerance:g}."
    )
    return Lumpability(False, deviation, tolerance, (one, other), target, (own, its), sentence), parts, arrays


def _partition(part_of: Any, size: int) -> tuple[np.ndarray, int]:
    """Return the parts as int64, and their number."""
    try:
        part = np.asarray(None if np.ma.is_masked(part_of) else part_of)
    except ValueError:
        part = np.asarray(None)
    if part.shape != (size,) or part.dtype.kind not in "iu":
        raise ModelError(
            f"part_of is {shown(part_of)}, of shape {part.shape} and type {part.dtype}; allowed is a whole number for each of the {size} states."
        )
    if part.min() < 0 or part.max() >= size:
        raise ModelError(
            f"part_of has values from {part.min()} to {part.max()}; allowed are numbers of parts from 0 to at most {size - 1}."
        )
    part = part.astype(np.int64, copy=False)
    parts = int(part.max()) + 1
    empty = np.bincount(part, minlength=parts) == 0
    if empty.any():
        raise ModelError(
            f"part {int(np.argmax(empty))} of part_of has no state; allowed are parts numbered without a gap."
        )
    return np.ascontiguousarray(part), parts


def _check_tolerance(tolerance: Any) -> None:
    real_number("tolerance", tolerance, lambda value: 0 <= value < 1, "a number >= 0 and below 1")


@compiled
def _quotient(
    indptr: Any, sources: Any, rates: Any, part: Any, order: Any, begins: Any, tolerance: float,
    quotient_indptr: Any, states: Any, faults: Any,
) -> Any:  # fmt: skip
    """Return sources and rates of the quotient, and write down the first states that differ and the worst deviation.

    For each part its members' entries are added up by source, and then compared inside the sources' parts; these come as
    they are met, not sorted.  Moves 12 bytes an entry, and adds at random places.
    """
    n, parts = np.uint64(part.size), np.uint64(begins.size - 1)
    into = np.zeros(n)  # rate of each state into the part at hand
    touched = np.empty(n, dtype=np.uint64)
    count = np.zeros(parts, dtype=np.uint64)  # states of each part with a rate into the part at hand
    least, most = np.empty(parts, dtype=np.uint64), np.empty(parts, dtype=np.uint64)
    reached = np.empty(parts, dtype=np.uint64)
    found_sources, found_rates = np.empty(1024, dtype=np.uint64), np.empty(1024)
    written = _NONE
    first_target: Any = parts  # that is reached unequally, and the first part from which it is; none yet
    first_part: Any = parts
    for target in range(parts):
        seen = _NONE
        for step in range(begins[target], begins[target + _ONE]):
            j = order[step]
            for k in range(indptr[j], indptr[j + _ONE]):
                i = np.uint64(sources[k])
                if part[i] != target:
                    if into[i] == 0.0:
                        touched[seen] = i
                        seen += _ONE
                    into[i] += rates[k]
        groups = _NONE
        for step in range(seen):
            i = touched[step]
            a = part[i]
            if count[a] == _NONE:
                reached[groups] = a
                groups += _ONE
                least[a], most[a] = i, i
            elif into[i] < into[least[a]]:
                least[a] = i
            elif into[i] > into[most[a]]:
                most[a] = i
            count[a] += _ONE
        if written + groups > np.uint64(found_rates.size):
            room = np.uint64(2) * (written + groups)
            more_sources, more_rates = np.empty(room, dtype=np.uint64), np.empty(room)
            more_sources[:written] = found_sources[:written]
            more_rates[:written] = found_rates[:written]
            found_sources, found_rates = more_sources, more_rates
        for step in range(groups):
            a = reached[step]
            found_sources[written] = a
            largest = into[most[a]]
            first = into[order[begins[a]]]
            found_rates[written] = first if first > 0.0 else largest
            written += _ONE
            low = least[a]
            if count[a] < begins[a + _ONE] - begins[a]:
                at = begins[a]
                while into[order[at]] > 0.0:
                    at += _ONE
                low = order[at]  # the first that has no rate into the part at all
            deviation = (largest - into[low]) / largest
            if deviation > faults[0]:
                faults[0] = deviation
            if deviation > tolerance and (first_target == parts or (first_target == target and a < first_part)):
                first_target, first_part = target, a
                states[0], states[1] = low, most[a]
                faults[1], faults[2], faults[3] = target, into[low], largest
        quotient_indptr[target + _ONE] = written
        for step in range(seen):
            into[touched[step]] = 0.0
        for step in range(groups):
            count[reached[step]] = _NONE
    return found_sources[:written].copy(), found_rates[:written].copy()


@compiled
def _refine(
    indptr: Any, sources: Any, rates: Any, part: Any, members: Any, begins: Any, parts: int, tolerance: float
) -> None:
    """Split parts until all states of each have the same rates into the others.

    Part a is ``members[begins[a]:ends[a]]``; a part that splits keeps its number for its first piece, and gives numbers
    from `parts` on to the others.
    """
    n = np.uint64(part.size)
    number = np.uint64(parts)
    ends = np.empty(n, dtype=np.uint64)
    ends[:number] = begins[1 : number + _ONE]
    place = np.empty(n, dtype=np.uint64)  # of each state among the members
    for at in range(n):
        place[members[at]] = at
    into = np.zeros(n)
    touched = np.empty(n, dtype=np.uint64)
    marked = np.zeros(n, dtype=np.uint64)  # touched states of each part, which are moved to its front
    reached = np.empty(n, dtype=np.uint64)
    waiting = np.empty(n, dtype=np.uint64)  # a ring: each part waits once at most
    is_waiting = np.zeros(n, dtype=np.uint8)
    head, length = _NONE, number
    for a in range(number):
        waiting[a] = a
        is_waiting[a] = 1
    while length > _NONE:
        splitter = waiting[head]
        head = (head + _ONE) % n
        length -= _ONE
        is_waiting[splitter] = 0
        seen, groups = _NONE, _NONE
        for step in range(begins[splitter], ends[splitter]):
            j = members[step]
            for k in range(indptr[j], indptr[j + _ONE]):
                i = np.uint64(sources[k])
                if part[i] != splitter:
                    if into[i] == 0.0:
                        touched[seen] = i
                        seen += _ONE
                    into[i] += rates[k]
        for step in range(seen):
            i = touched[step]
            a = part[i]
            if marked[a] == _NONE:
                reached[groups] = a
                groups += _ONE
            front = begins[a] + marked[a]
            other = members[front]
            members[place[i]], place[other] = other, place[i]
            members[front], place[i] = i, front
            marked[a] += _ONE
        for step in range(groups):
            a = reached[step]
            begin, middle, end = begins[a], begins[a] + marked[a], ends[a]
            marked[a] = _NONE
            low = high = into[members[begin]]
            for at in range(begin, middle):
                low, high = min(low, into[members[at]]), max(high, into[members[at]])
            if middle == end and high - low <= tolerance * high:
                continue  # as nearly always: nothing to sort
            inner = members[begin:middle].copy()
            inner = inner[np.argsort(into[inner])]
            for at in range(np.uint64(inner.size)):
                members[begin + at] = inner[at]
                place[inner[at]] = begin + at
            cut = begin  # where the present piece begins
            split = False
            for at in range(begin + _ONE, end + _ONE):
                if at < middle:
                    here, before = into[members[at]], into[members[at - _ONE]]
                    if here - before <= tolerance * here:
                        continue
                elif at > middle and at < end:
                    continue  # those without a rate into the splitter stay together
                # a piece ends before `at`
                if cut == begin:
                    ends[a] = at
                else:
                    begins[number], ends[number] = cut, at
                    for inside in range(cut, at):
                        part[members[inside]] = number
                    waiting[(head + length) % n] = number
                    length += _ONE
                    is_waiting[number] = 1
                    number += _ONE
                    split = True
                cut = at
                if at == end:
                    break
            if split and is_waiting[a] == 0:
                waiting[(head + length) % n] = a
                length += _ONE
                is_waiting[a] = 1
        for step in range(seen):
            into[touched[step]] = 0.0
