"""What the ranks that share a model write together: the first one writes, and asks the others for their parts as it gets there.

So one process has the file open, it has the content that it has without MPI, and no rank ever holds more than a few parts of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ctmc.errors import CTMCError
from ctmc.model.generator import Generator
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import NO_CODES, Slab
from ctmc.ranks import Ranks
from ctmc.storage.gate import StoredArray
from ctmc.storage.hash_tree import Stream

PART = 1 << 18
"""Elements that are sent at once."""
Result = TypeVar("Result")


class _End(NamedTuple):
    result: Any
    error: CTMCError | None


class Leader:
    """The first rank's way to the others."""

    def __init__(self, ranks: Ranks) -> None:
        self._communicator = ranks.communicator  # type: ignore[attr-defined]  # several ranks have one
        self.count = ranks.count

    def ask(self, rank: int, request: Any) -> None:
        """Ask another rank for something; answers come in the order of the questions."""
        self._communicator.send(request, rank)

    def answer(self, rank: int) -> Any:
        """Return the next answer of a rank."""
        return self._communicator.recv(source=rank)

    def end(self, result: Any, error: CTMCError | None = None) -> None:
        """Tell all others that nothing more is asked."""
        for rank in range(1, self.count):
            self._communicator.send(_End(result, error), rank)


def together(ranks: Ranks, lead: Callable[[Leader], Result], answer: Callable[[Any], Any]) -> Result:
    """Have the first rank do something while the others answer its questions; all return the result, or raise its error.

    Parameters
    ----------
    ranks : Ranks
        More than one.
    lead : callable
        Called on the first rank.
    answer : callable
        Maps a request to an answer, on the others.
    """
    if ranks.rank:
        communicator = ranks.communicator  # type: ignore[attr-defined]  # several ranks have one
        while not isinstance(request := communicator.recv(source=0), _End):
            communicator.send(answer(request), 0)
        if request.error is not None:
            raise request.error
        result: Result = request.result
        return result
    leader = Leader(ranks)
    try:
        result = lead(leader)
    except CTMCError as error:
        leader.end(None, type(error)(*error.args))
        raise
    leader.end(result)
    return result


# ---- vectors of which each rank has a part --------------------------------------------------------------------------------------


def parts_of(arrays: Mapping[str, np.ndarray]) -> Callable[[tuple[str, int, int]], np.ndarray]:
    """Return what answers requests (name, begin, end) for own elements."""
    return lambda request: np.asarray(arrays[request[0]][request[1] : request[2]])


def shared_stream(leader: Leader, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, list[int]]) -> Stream:
    """Return vectors of all ranks, one part after the other, as arrays of a file.

    Parameters
    ----------
    leader : Leader
    arrays : mapping of str to ndarray, shape (own,)
        The first rank's parts.
    sizes : mapping of str to list of int
        How many elements each rank has.
    """

    def parts() -> Iterator[tuple[str, int, np.ndarray]]:
        for name, array in arrays.items():
            for begin in range(0, len(array), PART):
                yield name, 0, np.ascontiguousarray(array[begin : begin + PART])
            for rank in range(1, leader.count):
                for begin in range(0, sizes[name][rank], PART):
                    leader.ask(rank, (name, begin, begin + PART))
                    yield name, 0, leader.answer(rank)

    stored = {name: StoredArray((sum(sizes[name]),), array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    return Stream(stored, parts)


def write_together(ranks: Ranks, own: Mapping[str, np.ndarray], write: Callable[[Stream], Result]) -> Result:
    """Have the first rank write vectors of which each rank has a part; all return what `write` returns, or raise its error.

    Parameters
    ----------
    ranks : Ranks
        More than one.
    own : mapping of str to ndarray, shape (own,)
        The same names on all ranks.
    write : callable
        Gets the stream of the whole vectors.
    """
    found = ranks.gathered({name: len(array) for name, array in own.items()})
    sizes = {name: [one[name] for one in found] for name in own}
    return together(ranks, lambda leader: write(shared_stream(leader, own, sizes)), parts_of(own))


# ---- rows that all ranks make -----------------------------------------------------------------------------------------------------


def rows_answer(model: Generator) -> Callable[[tuple[str, int]], Any]:
    """Return what answers requests for slabs of streamed rows, or for windows of a lattice."""
    rows = model.transitions
    assert isinstance(rows, StreamedTransitions)

    def answer(request: tuple[str, int]) -> Any:
        what, number = request
        if what == "window":
            assert rows.lattice is not None
            begin, weights = next(iter(rows.lattice.windows([number])))
            return begin, np.array(weights)
        slab = next(iter(rows.stream([number])))
        used = int(slab.indptr[-1])
        codes = None if slab.codes is NO_CODES else np.array(slab.codes[:used])
        rates = np.array(slab.rates[:used] if codes is None else slab.rates)
        return slab.begin, np.array(slab.indptr), np.array(slab.sources[:used]), codes, rates

    return answer


def relayed(model: Generator, leader: Leader) -> Generator:
    """Return a model whose slabs are made by all ranks in turn, for the first rank to write; the rows are the same."""
    rows = model.transitions
    assert isinstance(rows, StreamedTransitions)
    answer = rows_answer(model)

    def passed(what: str, numbers: Iterable[int]) -> Iterator[Any]:
        waiting: deque[tuple[int, int]] = deque()
        coming = enumerate(numbers)
        try:
            while True:
                while len(waiting) < leader.count and (item := next(coming, None)) is not None:
                    rank = item[0] % leader.count
                    if rank:
                        leader.ask(rank, (what, item[1]))
                    waiting.append((rank, item[1]))
                if not waiting:
                    return
                rank, number = waiting.popleft()
                yield leader.answer(rank) if rank else answer((what, number))
        finally:
            for rank, _ in waiting:  # nobody waits for these any more
                if rank:
                    leader.answer(rank)

    def stream(numbers: Iterable[int]) -> Iterator[Slab]:
        for begin, indptr, sources, codes, rates in passed("slab", numbers):
            yield Slab(begin, indptr, sources, NO_CODES if codes is None else codes, rates)

    lattice = rows.lattice
    if lattice is not None:
        lattice = replace(lattice, windows=lambda numbers: passed("window", numbers))
    return model._with_transitions(replace(rows, stream=stream, each=None, lattice=lattice))


def save_together(model: Any, write: Callable[[Any], Result], ranks: Ranks) -> Result:
    """Have the first rank write a model whose rows, where they are made as they are asked for, all ranks make in turn.

    Parameters
    ----------
    model : Generator or QBD
        The same on all ranks.
    write : callable
        Writes a model.
    ranks : Ranks
    """
    if ranks.count == 1:
        return write(model)
    streamed = isinstance(model, Generator) and isinstance(model.transitions, StreamedTransitions)
    answer: Callable[[Any], Any] = rows_answer(model) if streamed else str
    return together(ranks, lambda leader: write(relayed(model, leader) if streamed else model), answer)
