"""A generator shared by several processes: each rank holds neighbouring states, and the transitions into them.

Vectors are shared in the same way, and no rank ever holds one of all states.  A product fetches what is read of the others'
elements (`ctmc.model.ghosts`), then runs the same loops as on one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ctmc.errors import ModelError, ReducibleError
from ctmc.model import products
from ctmc.model.distribution import Distribution
from ctmc.model.generator import Generator
from ctmc.model.ghosts import Ghosts
from ctmc.model.laws import check_exit_rates
from ctmc.model.reward import Reward
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import (
    NO_CODES,
    CodedTransitions,
    FloatTransitions,
    LatticeTransitions,
    Slab,
    lattice_slabs,
    slab_rates,
)
from ctmc.ranks import ALONE, Ranks

Exits = Callable[[int, int], np.ndarray]

_STATES = 1 << 18
"""States per slab of a lattice in memory."""
_MOST_VALUES = 1 << 16
_PART = 1 << 20
"""Entries that are renumbered at once."""


@dataclass(frozen=True, eq=False, repr=False)
class SharedGenerator(Generator):
    """The own states of a rank and the transitions into them; made by `share`, on all ranks together.

    `size` is the number of own states, `states` that of all; vectors have shape (size,), and what the framework sums over the
    states it sums over the ranks.  `space` is the space of all states, of which the own ones begin at `begin`.

    Attributes
    ----------
    ranks : Ranks
    begins : ndarray of int64, shape (ranks + 1,)
        First state of each rank, and the number of states.
    ghosts : Ghosts
        Which states of other ranks transitions come from; `transitions` numbers own states first, then these.
    """

    ranks: Ranks = ALONE
    begins: np.ndarray = field(default_factory=lambda: np.zeros(2, dtype=np.int64))
    ghosts: Ghosts = field(default=None)  # type: ignore[assignment]  # whoever makes one gives it

    def __post_init__(self) -> None:
        self._found.setdefault("checked", True)
        for array in self.transitions:
            array.flags.writeable = False
        given = self.__dict__["exit_rates"]
        if given is None:
            object.__setattr__(self, "exit_rates", self._sum_rates())
        else:
            check_exit_rates(self, self._sum_rates())
        self.exit_rates.flags.writeable = False
        self._check_names()

    def _sum_rates(self) -> np.ndarray:
        with np.errstate(over="ignore"):  # told below
            sums = self.added_up(products.exit_sums)
        if not np.isfinite(sums).all():
            raise ModelError(
                f"the rates out of state {self.name_of(int(np.argmin(np.isfinite(sums))))} sum to infinity."
            )
        return sums

    @property
    def held(self) -> int:
        """Number of own states and ghosts."""
        return self.size + self.ghosts.count

    def positions_of(self, sources: np.ndarray) -> np.ndarray:
        """Return the positions among all states of own states and ghosts."""
        ghosts = self.ghosts.wanted
        if not len(ghosts):
            return sources + self.begin
        return np.where(sources < self.size, sources + self.begin, ghosts[np.maximum(sources - self.size, 0)])

    def collected(self, held: np.ndarray) -> np.ndarray:
        """Give what was added up for ghosts to their owners; all ranks together.  Overwrites `held`."""
        self.ghosts.give_back(held)
        return held[: self.size].copy()

    def added_up(self, loop: Callable[..., Any], *vectors: np.ndarray) -> np.ndarray:
        """Do what `Generator.added_up` does for the own states; all ranks together."""
        (slab,) = self.row_slabs()
        everywhere = [self.ghosts.extended(vector).copy() for vector in vectors]
        found = np.zeros(self.held)
        loop(*slab, *everywhere, found)
        return self.collected(found)

    @property
    def shared(self) -> bool:
        """True."""
        return True

    @property
    def size(self) -> int:
        """Number of own states."""
        return int(self.begins[self.ranks.rank + 1] - self.begins[self.ranks.rank])

    @property
    def begin(self) -> int:
        """Position of the first own state."""
        return int(self.begins[self.ranks.rank])

    @property
    def states(self) -> int:
        """Number of states of all ranks."""
        return int(self.begins[-1])

    @property
    def uniformization_rate(self) -> float:
        """The largest exit rate of all ranks; 1 where there is none."""
        return self.once(
            "uniformization_rate", lambda: self.ranks.largest(float(self.exit_rates.max(initial=0.0))) or 1.0
        )

    def state_slabs(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (slice of own positions, states there)."""
        for positions, states in self.space.slabs(self.begin, self.begin + self.size):
            yield slice(positions.start - self.begin, positions.stop - self.begin), states

    def own(self, initial: Distribution) -> Distribution:
        """Return the part of a distribution over all states that is on own states, at own positions."""
        first, last = np.searchsorted(initial.positions, [self.begin, self.begin + self.size])
        return Distribution(initial.positions[first:last] - self.begin, initial.probabilities[first:last])

    def _multiply(self, backward: bool, *others: Any) -> None:
        """Do what `Generator._multiply` does; all ranks together."""
        exit_rates, x, *rest = others
        if not backward:
            products.forward(*next(self.row_slabs()), exit_rates, self.ghosts.extended(x), *rest)
            return
        # as on one process the exit rate comes first, then the transitions in the order of their ends
        out = rest[-1]
        self._room[self.size :] = 0.0
        products.begin_backward(exit_rates, x, self._room)
        products.scatter(*next(self.row_slabs()), x, self._room)
        self.ghosts.give_back(self._room)
        out[:] = self._room[: self.size]
        products.end_backward(x, *rest)

    def reached(self, begin: np.ndarray, within: np.ndarray, *, backward: bool) -> np.ndarray:
        """Return which own states are reached, as `ctmc.model.communication.reachable_within` does.

        Each rank goes as far as it can, then the ranks tell each other, until nothing is new.
        """
        spread = products.spread_back_within if backward else products.spread_within
        (slab,) = self.row_slabs()
        allowed = self.ghosts.extended(within.astype(np.float64)) > 0
        own, count = begin, -1
        while True:
            seen = self.ghosts.extended(own.astype(np.float64)) > 0
            if backward:  # that others' states are seen says their owner
                seen[self.size :] = False
            before, number = -1, 0
            while (now := int(np.count_nonzero(seen))) != before or number < 2:
                before, number = now, number + 1
                spread(*slab, number % 2 == 0, allowed, seen)
            if backward:
                marks = seen.astype(np.float64)
                self.ghosts.give_back(marks)
                seen = marks > 0
            own = seen[: self.size]
            before, count = count, int(self.ranks.total(float(np.count_nonzero(own))))
            if count == before:
                return own

    @property
    def coloring(self) -> np.ndarray | None:
        """Whether the total of the coordinates is odd, of each own state, where every transition changes that; else None."""
        return self.once("coloring", self._parity)

    def _parity(self) -> np.ndarray | None:
        own = np.empty(self.size, dtype=np.uint8)
        for positions, states in self.state_slabs():
            own[positions] = states.sum(axis=1) & 1
        if self.ranks.largest(float(own.max(initial=0))) == 0:
            return None
        everywhere = self.ghosts.extended(own.astype(np.float64)).astype(np.uint8)
        (slab,) = self.row_slabs()
        return None if self.ranks.any(products.count_same_color(*slab, everywhere) > 0) else own

    @property
    def recurrent(self) -> np.ndarray:
        """Which own states are in the recurrent class; found once, on all ranks together.

        Raises
        ------
        ReducibleError
            If there are several.
        """
        return self.once("recurrent", self._one_recurrent)

    def _one_recurrent(self) -> np.ndarray:
        everything = np.ones(self.size, dtype=bool)
        state = 0
        while True:
            start = np.zeros(self.size, dtype=bool)
            if self.begin <= state < self.begin + self.size:
                start[state - self.begin] = True
            reached = self.reached(start, everything, backward=False)
            leading = self.reached(start, everything, backward=True)
            left = np.flatnonzero(reached & ~leading)
            # go on from the last of those that do not lead back
            state = int(self.ranks.largest(float(self.begin + left[-1]) if len(left) else -1.0))
            if state < 0:
                break
        if self.ranks.any(not leading.all()):
            raise ReducibleError(
                f"the chain has several recurrent classes, and is shared by {self.ranks.count} ranks; allowed is one recurrent "
                "class, or one process and an initial state."
            )
        return reached

    @cached_property
    def _room(self) -> np.ndarray:
        return np.zeros(self.held)

    def _expand(self) -> FloatTransitions:
        raise ModelError(
            f"what was asked for needs all transitions in one process, and {self.ranks.count} ranks share the model; allowed is "
            "one process."
        )

    def restricted(self, positions: np.ndarray) -> Generator:
        """Refuse: parts of a shared model are not taken out."""
        return Generator(self.space, self._expand())

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that this rank holds, ghosts included."""
        return super().nbytes + 16 * self.ghosts.count


def share(model: Generator, ranks: Ranks, exits: Exits | None = None) -> SharedGenerator:
    """Return this rank's part of a model; about equally many transitions fall to each rank.

    Of a streamed model each rank makes, or reads, the rows of its own states only (to place the borders, the rows are counted
    by all ranks together).  A model in memory is cut.

    Parameters
    ----------
    model : Generator
        The same on all ranks.
    ranks : Ranks
    exits : callable, optional
        ``exits(begin, end)`` returns stored exit rates; without it those of a model in memory are taken, and of a streamed one summed.

    Examples
    --------
    >>> queue = Generator.from_matrix(np.diag([1.0, 1.0], 1) + np.diag([2.0, 2.0], -1))
    >>> part = share(queue, ALONE)
    >>> part.size, part.states, part.forward(np.array([1.0, 0, 0])).tolist()
    (3, 3, [-1.0, 1.0, 0.0])
    """
    begins = _borders(model, ranks)
    begin, end = int(begins[ranks.rank]), int(begins[ranks.rank + 1])
    transitions, outside = own_rows(model, begin, end)
    entries = len(transitions.sources)
    before = sum(ranks.gathered(entries)[: ranks.rank])
    exit_rates: Any = None
    if exits is not None:
        exit_rates = exits(begin, end)
    elif not isinstance(model.transitions, StreamedTransitions):
        exit_rates = model.exit_rates[begin:end].copy()
    return SharedGenerator(
        model.space, transitions, exit_rates,
        initial=model.initial,
        labels={name: member[begin:end] for name, member in model.labels.items()},
        rewards={name: _own_reward(reward, slice(begin, end), slice(before, before + entries)) for name, reward in model.rewards.items()},
        measures=model.measures, notes=model.notes, recipe=model.recipe, content_hash=model.content_hash, guess=model.guess,
        distributions=model.distributions, ranks=ranks, begins=begins,
        ghosts=Ghosts(ranks, begins, outside),
    )  # fmt: skip


def _own_reward(reward: Reward, states: slice, entries: slice) -> Reward:
    changes: dict[str, Any] = {}
    for name, own in (("rate", states), ("self_loops", states), ("impulse", entries)):
        values = getattr(reward, name)
        if values is not None and not callable(values):
            changes[name] = values[own]
    return replace(reward, **changes) if changes else reward


# ---- which states, and the transitions into them --------------------------------------------------------------------------------


def _borders(model: Generator, ranks: Ranks) -> np.ndarray:
    """Return the first state of each rank and the number of states, so that transitions are shared out evenly."""
    if ranks.count == 1:
        return np.array([0, model.space.size])
    own = border(model, transitions_before(model, ranks), ranks.rank / ranks.count)
    return np.array([*ranks.gathered(own), model.space.size])


def transitions_before(model: Generator, ranks: Ranks) -> np.ndarray:
    """Return how many transitions lead into the states before each slab, and into all; counted by all ranks together."""
    slabs = len(slab_begins(model)) - 1
    counts = np.zeros(slabs)
    for number in range(ranks.rank, slabs, ranks.count):
        counts[number] = int(_slab(model, number).indptr[-1])
    return np.concatenate([[0.0], np.cumsum(ranks.total(counts))])


def border(model: Generator, before: np.ndarray, share: float) -> int:
    """Return the first state before which lies this share of the transitions; `before` is what `transitions_before` returned."""
    if share == 0:
        return 0
    wanted = before[-1] * share
    number = min(int(np.searchsorted(before, wanted, side="right")), len(before) - 1) - 1
    slab = _slab(model, number)
    inside = np.searchsorted(slab.indptr.view(np.int64), wanted - before[number])
    return int(slab.begin) + min(int(inside), len(slab.indptr) - 1)


def slab_begins(model: Generator) -> np.ndarray:
    """Return the first state of each slab in which a model's rows come, and the number of states."""
    rows = model.transitions
    if isinstance(rows, StreamedTransitions):
        return rows.begins
    step = _STATES if isinstance(rows, LatticeTransitions) else max(model.space.size, 1)
    return np.append(np.arange(0, model.space.size, step), model.space.size)


def _slab(model: Generator, number: int) -> Slab:
    """Return one slab of a model's rows."""
    rows = model.transitions
    if isinstance(rows, StreamedTransitions):
        return next(iter(rows.stream([number])))
    if isinstance(rows, LatticeTransitions):
        begin = number * _STATES
        window = (begin, rows.weights[:, begin : begin + _STATES])
        return next(lattice_slabs([window], model.space.size, _STATES, *rows[1:]))
    return next(rows.slabs())


def slabs_of(model: Generator, begin: int, end: int) -> Iterator[Slab]:
    """Yield the slabs that have some of the states begin .. end - 1; each is valid until the next one."""
    rows = model.transitions
    if begin == end:
        return
    if isinstance(rows, StreamedTransitions):
        first, last = np.searchsorted(rows.begins, [begin, end - 1], side="right") - 1
        yield from rows.stream(range(int(first), int(last) + 1))
    elif isinstance(rows, LatticeTransitions):
        for number in range(begin // _STATES, (end - 1) // _STATES + 1):
            yield _slab(model, number)
    else:
        yield next(rows.slabs())


def own_rows(model: Generator, begin: int, end: int) -> tuple[FloatTransitions | CodedTransitions, np.ndarray]:
    """Return the transitions into the states begin .. end - 1, and the states outside that they come from, ascending.

    Sources are numbered from `begin`, then on through the states outside.  Arrays grow in place, slab by slab, so that nothing is
    ever held twice.
    """
    size, done, found = end - begin, 0, 0
    indptr = np.zeros(size + 1, dtype=np.int64)
    numbers: np.ndarray = np.empty(0, dtype=np.int32 if 2 * size <= np.iinfo(np.int32).max else np.int64)
    beyond: list[np.ndarray] = []
    table = _Table()
    for slab in slabs_of(model, begin, end):
        first, last = max(begin - int(slab.begin), 0), min(end - int(slab.begin), len(slab.indptr) - 1)
        pointers = slab.indptr[first : last + 1].view(np.int64)
        entries = slice(int(pointers[0]), int(pointers[-1]))
        place = int(slab.begin) + first - begin
        indptr[place + 1 : place + len(pointers)] = done + pointers[1:] - pointers[0]
        table.add(slab, entries)
        from_ = slab.sources[entries].astype(np.int64)
        outside = (from_ < begin) | (from_ >= end)
        beyond.append(np.unique(from_[outside]))
        from_ -= begin
        from_[outside] = size + found + np.searchsorted(beyond[-1], from_[outside] + begin)  # for now: by slab
        found += len(beyond[-1])
        if size + found > np.iinfo(np.int32).max:
            numbers = numbers.astype(np.int64, copy=False)
        done = _append(numbers, done, from_)
    ghosts, final = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *beyond]), return_inverse=True)
    for part in _parts(numbers):
        outside = part >= size
        part[outside] = size + final[part[outside] - size]
    return table.rows(indptr, numbers), ghosts


def _append(array: np.ndarray, done: int, values: np.ndarray) -> int:
    """Put values behind those that are there, and return how many there are; the memory grows where it is."""
    array.resize(done + len(values), refcheck=False)
    array[done:] = values
    return done + len(values)


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    for begin in range(0, len(array), _PART):
        yield array[begin : begin + _PART]


class _Table:
    """Rates that come slab by slab, kept as small codes where few of them differ."""

    def __init__(self) -> None:
        self._values = np.empty(0)  # ascending, but for those that came later
        self._codes: np.ndarray | None = np.empty(0, dtype=np.uint8)
        self._rates = np.empty(0)
        self._done = 0

    def add(self, slab: Slab, entries: slice) -> None:
        """Take the rates of some entries."""
        if self._codes is not None:
            given = slab.rates[entries] if slab.codes is NO_CODES else slab.rates
            values = np.unique(given)
            new = np.setdiff1d(values, self._values, assume_unique=True)
            if len(self._values) + len(new) <= _MOST_VALUES:
                self._values = np.concatenate([self._values, new])
                if len(self._values) > 256:
                    self._codes = self._codes.astype(np.uint16, copy=False)
                order = np.argsort(self._values)
                codes = order[np.searchsorted(self._values, given, sorter=order)].astype(self._codes.dtype)
                self._done = _append(
                    self._codes, self._done, codes if slab.codes is NO_CODES else codes[slab.codes[entries]]
                )
                return
            self._rates, self._codes = self._values[self._codes], None
        self._done = _append(self._rates, self._done, slab_rates(slab, entries))

    def rows(self, indptr: np.ndarray, sources: np.ndarray) -> FloatTransitions | CodedTransitions:
        """Return all of them as rows."""
        if self._codes is None:
            return FloatTransitions(indptr, sources, self._rates)
        values, place = np.unique(self._values, return_inverse=True)
        for part in _parts(self._codes):
            part[:] = place[part]
        return CodedTransitions(indptr, sources, self._codes, values)
