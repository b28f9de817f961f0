"""What decides which solver is quick on a chain, read in the time of some products: levels, colors, rates, weak links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csc_array, csgraph, csr_array

from ctmc.model.generator import Generator
from ctmc.model.memory import memory_limit
from ctmc.model.products import compiled
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.structure import breadth_first
from ctmc.model.transitions import LatticeTransitions, unsigned

COUPLINGS = (1e-2, 1e-3, 1e-4, 1e-6, 1e-8)
"""Shares of an exit rate below which transitions are left out, to see whether the chain falls apart."""
MOST_ENTRIES = 20_000_000
"""Up to so many transitions rows are looked at one by one; above, the coordinates of the states tell the levels."""


@dataclass(frozen=True)
class Traits:
    """What decides which solver is quick on a chain.

    Attributes
    ----------
    states, entries : int
    two_colors : bool
        Whether every transition changes a color, so that iterations work on half of the states.
    recurrent_classes : int
    levels, widest_level : int
        Levels between neighbours of which every transition leads: values of the first coordinate where none is skipped, else
        breadth-first ones; a single one where they were not looked for.
    elimination : float
        Multiplications of a dense elimination level by level, 3 sum m^3.
    elimination_bytes : float
    stiffness : float
        Largest exit rate over the least one that is not zero.
    coupling : float or None
        The least of `COUPLINGS` without whose weaker transitions the chain falls apart into `parts`, of two and more states each;
        None where it does not, or was not looked at.
    parts : int
        1 where it does not fall apart.
    rows_read : bool
        Whether single transitions were looked at: not those of a lattice, whose form says enough, nor of more than `MOST_ENTRIES`, nor where
        the memory limit is too low.
    """

    states: int
    entries: int
    two_colors: bool
    recurrent_classes: int
    levels: int
    widest_level: int
    elimination: float
    elimination_bytes: float
    stiffness: float
    coupling: float | None
    parts: int
    rows_read: bool

    @property
    def entries_per_state(self) -> float:
        """Transitions per state."""
        return self.entries / self.states


def traits(chain: Generator) -> Traits:
    """Read what decides which solver is quick on a chain; nothing is solved.

    A handful of passes over the transitions, none over those of a lattice; classes and colors are kept with the model, and
    every solve needs them.

    Parameters
    ----------
    chain : Generator

    Returns
    -------
    Traits

    Examples
    --------
    >>> queue = Generator.from_matrix(np.diag([1.0, 1e-4, 1.0], 1) + np.diag([1.0, 2e-4, 1.0], -1))
    >>> found = traits(queue)
    >>> found.levels, found.widest_level, found.parts, found.coupling
    (4, 1, 2, 0.001)
    """
    streamed = isinstance(chain.transitions, StreamedTransitions)
    lattice = isinstance(chain.transitions, LatticeTransitions)
    fits = 52 * chain.entries + 64 * chain.size <= memory_limit()
    rows_read = fits and not (streamed or lattice) and chain.entries <= MOST_ENTRIES
    exits = chain.exit_rates[chain.exit_rates > 0]
    sizes, coupling, parts = np.array([chain.size]), None, 1
    if lattice:  # nothing moves but one coordinate by one
        side = int(chain.transitions.sides[0])  # type: ignore[union-attr]  # a lattice has sides
        sizes = np.full(side, chain.size // side)
    elif rows_read:
        first = _first_coordinate(chain)
        jump, least = _survey(unsigned(chain.indptr), unsigned(chain.sources), chain.rates, chain.exit_rates, first)
        sizes = _levels(chain, first, int(jump))
        coupling, parts = _weak_links(chain, float(least))
    cubes, kept = _elimination(sizes)
    return Traits(
        states=chain.size, entries=chain.entries, two_colors=chain.coloring is not None,
        recurrent_classes=len(chain.classes.recurrent), levels=len(sizes), widest_level=int(sizes.max()),
        elimination=cubes, elimination_bytes=kept, stiffness=float(exits.max() / exits.min()) if len(exits) else 1.0,
        coupling=coupling, parts=parts, rows_read=rows_read,
    )  # fmt: skip


def _first_coordinate(chain: Generator) -> np.ndarray:
    """Return the position of each state's first coordinate among its values, shape (n,)."""
    first = np.concatenate([states[:, 0] for _, states in chain.space.slabs()])
    first = first - first.min()
    if first.max() < 4 * chain.size:  # counting is faster than sorting
        places = np.cumsum(np.bincount(first) > 0) - 1
        return np.asarray(places[first])
    return np.asarray(np.unique(first, return_inverse=True)[1])


@compiled
def _survey(indptr: Any, sources: Any, rates: Any, exits: Any, first: Any) -> Any:
    """Return the largest change of the first coordinate by a transition, and the least share of an exit rate that one has."""
    jump, least = np.int64(0), 1.0
    for j in range(np.uint64(exits.size)):
        for k in range(indptr[j], indptr[j + np.uint64(1)]):
            i = sources[k]
            jump = max(jump, abs(first[i] - first[j]))
            least = min(least, rates[k] / exits[i])
    return jump, least


def _levels(chain: Generator, first: np.ndarray, jump: int) -> np.ndarray:
    """Return the sizes of levels between neighbours of which every transition leads.

    Values of the first coordinate where none is skipped, as `level_reduction` takes them, else breadth-first levels from state 0.
    """
    n = chain.size
    if jump <= 1 and len(np.bincount(first)) > 1:
        return np.bincount(first)
    leaving = csr_array(csc_array((np.ones(chain.entries, dtype=np.int8), chain.sources, chain.indptr), shape=(n, n)))
    level = np.full(n, -1, dtype=np.int64)
    breadth_first(
        unsigned(chain.indptr), unsigned(chain.sources), unsigned(leaving.indptr), unsigned(leaving.indices), level,
        np.empty(n, dtype=np.uint64),
    )  # fmt: skip
    return np.bincount(level)


def _elimination(sizes: np.ndarray) -> tuple[float, float]:
    """Return multiplications and bytes of a dense elimination, level by level."""
    widths = sizes.astype(float)
    kept = 8 * float((widths[1:] * widths[:-1]).sum()) + 48 * float(widths.max()) ** 2
    return 3 * float((widths**3).sum()), kept


def _weak_links(chain: Generator, least: float) -> tuple[float | None, int]:
    """Return the least share of an exit rate without whose weaker transitions the chain falls apart, and the parts.

    Parts of single states do not count: a rare state that is hardly ever entered is no part that keeps its mass.
    """
    if least >= COUPLINGS[0]:  # nothing would be left out
        return None, 1
    n = chain.size
    targets = np.repeat(np.arange(n), np.diff(chain.indptr))
    share = chain.rates / chain.exit_rates[chain.sources]
    found: tuple[float | None, int] = (None, 1)
    for coupling in COUPLINGS:
        if least >= coupling:  # nothing is left out
            break
        strong = share >= coupling
        links = coo_array(
            (np.ones(int(strong.sum()), dtype=np.int8), (chain.sources[strong], targets[strong])), shape=(n, n)
        )
        count, part_of = csgraph.connected_components(links, directed=False)
        count = int((np.bincount(part_of) > 1).sum()) if count > 1 else 1
        if count == 1:  # nor would it with more transitions
            break
        found = coupling, count
    return found
