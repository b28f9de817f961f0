"""What decides which solver is quick on a chain, read in the time of some products: levels, colors, rates, weak links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csgraph

from ctmc.model.generator import Generator
from ctmc.model.levels import MUCH_LESS, elimination, levels
from ctmc.model.memory import memory_limit
from ctmc.model.products import compiled
from ctmc.model.streamed import StreamedTransitions
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
        Levels between neighbours of which every transition leads, as `ctmc.model.levels` finds them; a single one where they were
        not looked for.
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
        sides = chain.transitions.sides  # type: ignore[union-attr]  # a lattice has sides
        side = int(sides[0] if sides[0] ** 2 > MUCH_LESS * sides.max() ** 2 else sides.max())
        sizes = np.full(side, chain.size // side)
    elif rows_read:
        sizes = np.bincount(levels(chain))
        least = _least_share(unsigned(chain.indptr), unsigned(chain.sources), chain.rates, chain.exit_rates)
        coupling, parts = _weak_links(chain, float(least))
    cubes, kept = elimination(sizes)
    return Traits(
        states=chain.size, entries=chain.entries, two_colors=chain.coloring is not None,
        recurrent_classes=len(chain.classes.recurrent), levels=len(sizes), widest_level=int(sizes.max()),
        elimination=cubes, elimination_bytes=kept, stiffness=float(exits.max() / exits.min()) if len(exits) else 1.0,
        coupling=coupling, parts=parts, rows_read=rows_read,
    )  # fmt: skip


@compiled
def _least_share(indptr: Any, sources: Any, rates: Any, exits: Any) -> Any:
    """Return the least share of an exit rate that a transition has."""
    least = 1.0
    for j in range(np.uint64(exits.size)):
        for k in range(indptr[j], indptr[j + np.uint64(1)]):
            least = min(least, rates[k] / exits[sources[k]])
    return least


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
