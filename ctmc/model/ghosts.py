"""Ghosts: elements of a shared vector that other ranks own and this one reads, fetched before each product."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from ctmc.ranks import Ranks


class Traffic:
    """What has been exchanged so far by this rank.

    Attributes
    ----------
    messages, bytes : int
        What was sent to fetch ghosts or to give them back.
    """

    def __init__(self) -> None:
        self.messages = self.bytes = 0


class _Partner(NamedTuple):
    rank: int
    own: Any  # positions of elements that the partner reads: a slice where they are neighbours
    ghosts: Any  # of the elements that it owns and this rank reads: a slice, or where some are left out, positions
    buffer: np.ndarray
    incoming: np.ndarray | None = None  # where ghosts are positions


class Ghosts:
    """Fetches elements from their owners, and gives back what was added to them.  All ranks make one together.

    A vector with ghosts has the own elements first, then the ghosts in the order of their positions.

    Parameters
    ----------
    ranks : Ranks
    begins : ndarray of int64, shape (ranks + 1,)
        First element of each rank, and the number of all.
    wanted : ndarray of int64
        Ascending positions that others own.
    traffic : Traffic, optional

    Examples
    --------
    >>> from ctmc.ranks import ALONE
    >>> ghosts = Ghosts(ALONE, np.array([0, 3]), np.empty(0, dtype=np.int64))
    >>> ghosts.extended(np.ones(3)).tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, ranks: Ranks, begins: np.ndarray, wanted: np.ndarray, traffic: Traffic | None = None) -> None:
        self._ranks = ranks
        self.begin, end = int(begins[ranks.rank]), int(begins[ranks.rank + 1])
        self.own = end - self.begin
        self.wanted = wanted
        self.traffic = traffic or Traffic()
        self._partners: list[_Partner] = []
        self._extended: np.ndarray | None = None
        if ranks.count == 1:
            return
        # ranks without elements begin where the next one does: the owner is the last that begins there
        owners = np.searchsorted(begins, wanted, side="right") - 1
        cuts = np.searchsorted(owners, np.arange(ranks.count + 1))
        requests = [wanted[cuts[rank] : cuts[rank + 1]] for rank in range(ranks.count)]
        for rank, theirs in enumerate(ranks.communicator.alltoall(requests)):  # type: ignore[attr-defined]  # several ranks have one
            mine = slice(self.own + int(cuts[rank]), self.own + int(cuts[rank + 1]))
            if len(theirs) or mine.stop > mine.start:
                own: Any = np.asarray(theirs) - self.begin
                buffer = np.empty(len(own))
                if len(own) and own[-1] - own[0] + 1 == len(own):
                    own = slice(int(own[0]), int(own[-1]) + 1)
                self._partners.append(_Partner(rank, own, mine, buffer))

    @property
    def count(self) -> int:
        """Number of ghosts."""
        return len(self.wanted)

    @property
    def partners(self) -> int:
        """Number of ranks that elements are exchanged with."""
        return len(self._partners)

    @property
    def sent(self) -> int:
        """Number of own elements that are sent in each exchange."""
        return sum(len(partner.buffer) for partner in self._partners)

    def among(self, members: np.ndarray) -> Ghosts:
        """Return what exchanges only some elements, by their places among the own ones and all ghosts; nothing is sent for it.

        Parameters
        ----------
        members : ndarray of bool, shape (own + ghosts,)
            On all ranks alike: the owner of a ghost says of it the same.
        """
        found = copy.copy(self)
        found.wanted, found._partners, found._extended = self.wanted[members[self.own :]], [], None
        for partner in self._partners:
            own, ghosts = (
                np.flatnonzero(members[part]) + part.start if isinstance(part, slice) else part[members[part]]
                for part in (partner.own, partner.ghosts)
            )
            if len(own) or len(ghosts):
                rooms = np.empty(len(own)), np.empty(len(ghosts))
                found._partners.append(_Partner(partner.rank, own, ghosts, *rooms))
        return found

    def extended(self, own: np.ndarray) -> np.ndarray:
        """Return the vector with its ghosts, fetched now; valid until the next exchange."""
        if self._extended is None:
            self._extended = np.empty(self.own + self.count)
        self._extended[: self.own] = own
        self.fetch(self._extended)
        return self._extended

    def fetch(self, room: np.ndarray) -> None:
        """Fetch the ghosts of a vector that has room for all of them behind the own elements."""
        for partner in self._partners:
            np.copyto(partner.buffer, room[partner.own])
        received = [(room[p.ghosts] if p.incoming is None else p.incoming, p.rank) for p in self._partners]
        self._pass_on([(p.buffer, p.rank) for p in self._partners], received)
        for partner in self._partners:
            if partner.incoming is not None:
                room[partner.ghosts] = partner.incoming

    def give_back(self, extended: np.ndarray) -> None:
        """Add the ghosts of a vector to the elements of their owners, in the order of the ranks."""
        ghosts = [(extended[partner.ghosts], partner.rank) for partner in self._partners]
        self._pass_on(ghosts, [(partner.buffer, partner.rank) for partner in self._partners])
        for partner in self._partners:
            extended[partner.own] += partner.buffer  # positions of one partner are different ones

    def _pass_on(self, sent: list[tuple[np.ndarray, int]], received: list[tuple[np.ndarray, int]]) -> None:
        if not self._partners:
            return
        communicator = self._ranks.communicator  # type: ignore[attr-defined]  # several ranks have one
        requests = [communicator.Irecv(elements, rank) for elements, rank in received if len(elements)]
        requests += [communicator.Isend(elements, rank) for elements, rank in sent if len(elements)]
        type(requests[0]).Waitall(requests)
        self.traffic.messages += sum(len(elements) > 0 for elements, _ in sent)
        self.traffic.bytes += sum(elements.nbytes for elements, _ in sent)
