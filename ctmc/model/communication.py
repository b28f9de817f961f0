"""Which states reach which: strongly connected classes, the recurrent ones among them, periods of two.

The work is done by SciPy's compressed-graph routines on the stored arrays; networkx is a format to exchange small models
in, and the condensation of the classes is a networkx graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csc_array, csgraph, csr_array

from ctmc.errors import ModelError
from ctmc.model import lattice_rates, products
from ctmc.model.parameters import check_chain
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import LatticeTransitions

if TYPE_CHECKING:
    import networkx

    from ctmc.model.generator import Generator

NETWORKX_LIMIT = 100_000
"""Most states of a model that is turned into a networkx graph; more would take minutes and gigabytes."""
_MOST = 2**31 - 1
"""Most transitions of SciPy's graphs, some of whose numbers have 32 bits; beyond it passes over the transitions do all the work."""


@dataclass(frozen=True, eq=False)
class Classes:
    """The communicating classes of a chain.

    Attributes
    ----------
    class_of : ndarray of int32, shape (n,)
        Class of each state.
    count : int
        Number of classes.
    recurrent : ndarray of int
        Classes that no transition leaves, in the order of their first state.
    """

    class_of: np.ndarray
    count: int
    recurrent: np.ndarray

    @property
    def irreducible(self) -> bool:
        """Whether every state reaches every other."""
        return self.count == 1

    def members(self, number: int) -> np.ndarray:
        """Return the positions of the states in a class, ascending."""
        return np.flatnonzero(self.class_of == number)


def classes(model: Generator) -> Classes:
    """Find the strongly connected classes; of what is streamed or has more than 2^31 - 1 transitions the recurrent ones, and all
    transient states as one.

    Examples
    --------
    >>> from ctmc.model.generator import Generator
    >>> found = classes(Generator.from_matrix([[0, 1.0, 0], [0, 0, 1.0], [0, 0, 0]]))     # 0 -> 1 -> 2
    >>> found.count, found.class_of[found.recurrent[0] == found.class_of].size
    (3, 1)
    """
    n = model.size
    left = np.zeros(n, dtype=np.uint8)
    transitions = model.transitions
    if isinstance(transitions, LatticeTransitions) and lattice_rates.count_not_entered(transitions.weights) == 1:
        # all but the empty state are entered from one with fewer jobs, and departures lead from all to the empty one
        return Classes(np.zeros(n, dtype=np.int32), 1, np.zeros(1, dtype=np.int64))
    if all(products.entered_from_before(*slab, left) for slab in model.row_slabs()) and left[1:].all():
        return Classes(np.zeros(n, dtype=np.int32), 1, np.zeros(1, dtype=np.int64))
    if isinstance(transitions, StreamedTransitions) or model.entries > _MOST:
        return _classes_by_passes(model)
    indptr, sources = model.indptr, model.sources
    # The transposed graph has the same classes, and one byte an entry is enough for its weights.
    graph = csc_array((np.ones(len(sources), dtype=np.int8), sources, indptr), shape=(n, n)).T
    count, class_of = csgraph.connected_components(graph, directed=True, connection="strong")
    if count == 1:
        return Classes(class_of, 1, np.zeros(1, dtype=np.int64))
    left = class_of[sources] != np.repeat(class_of, np.diff(indptr))
    transient = np.zeros(count, dtype=bool)
    transient[class_of[sources[left]]] = True
    first_state = np.full(count, n)
    np.minimum.at(first_state, class_of, np.arange(n))
    recurrent = np.flatnonzero(~transient)
    return Classes(class_of, int(count), recurrent[np.argsort(first_state[recurrent])])


def _classes_by_passes(model: Generator) -> Classes:
    """Find the recurrent classes by passes over the slabs; all transient states count as one class.

    From any state one goes on to what it reaches but what does not lead back, until everything leads back: a recurrent class.
    """
    n = model.size
    class_of = np.full(n, -1, dtype=np.int32)
    found: list[int] = []
    leads_to_one = np.zeros(n, dtype=bool)
    while not leads_to_one.all():
        state = int(np.argmin(leads_to_one))
        while True:
            reached = reachable(model, np.array([state]))
            leading = reachable(model, np.array([state]), backward=True)
            beyond = reached & ~leading
            if not beyond.any():
                break
            state = int(np.argmax(beyond))
        class_of[reached] = len(found)
        found.append(int(np.argmax(reached)))
        leads_to_one |= leading
    transient = class_of < 0
    class_of[transient] = len(found)
    return Classes(class_of, len(found) + bool(transient.any()), np.argsort(found))


_PASSES = 64


def _passes(model: Generator) -> Iterable[int]:
    """Return the numbers of the passes before SciPy takes over, or of as many as it takes where it cannot."""
    return itertools.count() if model.entries > _MOST else range(_PASSES)


def reachable_within(model: Generator, begin: np.ndarray, within: np.ndarray, *, backward: bool = False) -> np.ndarray:
    """Return which states, of those within some, are reached from the beginning, or lead there if backward; shape (n,).

    The ways there run through states within alone; those of the beginning are included.

    Parameters
    ----------
    model : Generator
    begin, within : ndarray of bool, shape (n,)
    backward : bool

    Examples
    --------
    >>> from ctmc.model.generator import Generator
    >>> chain = Generator.from_matrix([[0, 1.0, 0], [0, 0, 1.0], [0, 0, 0]])     # 0 -> 1 -> 2
    >>> last, ends = np.array([False, False, True]), np.array([True, False, True])
    >>> reachable_within(chain, last, ends, backward=True).tolist()
    [False, False, True]
    >>> reachable_within(chain, ~last, ends).tolist()
    [True, True, True]
    """
    if model.shared:
        found: np.ndarray = model.reached(begin, within, backward=backward)  # type: ignore[attr-defined]  # a SharedGenerator
        return found
    seen = begin.copy()
    spread = products.spread_back_within if backward else products.spread_within
    for number in _passes(model):
        before = np.count_nonzero(seen)
        for slab in model.row_slabs(reverse=number % 2 == 1):
            spread(*slab, number % 2 == 1, within, seen)
        if np.count_nonzero(seen) == before and number:
            return seen
    n = model.size
    into, out = np.repeat(np.arange(n), np.diff(model.indptr)), model.sources
    first, last = (into, out) if backward else (out, into)
    allowed = within[last]
    found = np.flatnonzero(seen)
    # one more state leads to all that are seen
    rows = np.concatenate([first[allowed], np.full(len(found), n)])
    columns = np.concatenate([last[allowed], found])
    graph = csr_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(n + 1, n + 1))
    order = csgraph.breadth_first_order(graph, n, return_predecessors=False)
    seen[order[order < n]] = True
    return seen


def reachable(model: Generator, positions: np.ndarray, *, backward: bool = False) -> np.ndarray:
    """Return which states are reached from some states, or lead to them if backward, these included; shape (n,).

    Passes over the stored transitions, forwards and backwards in turn, as long as they find more; in chains without any
    order, where that would take long, a breadth-first search on written-out transitions.

    Examples
    --------
    >>> from ctmc.model.generator import Generator
    >>> chain = Generator.from_matrix([[0, 1.0, 0], [0, 0, 1.0], [0, 0, 0]])     # 0 -> 1 -> 2
    >>> reachable(chain, np.array([1])).tolist(), reachable(chain, np.array([1]), backward=True).tolist()
    ([False, True, True], [True, True, False])
    """
    seen = np.zeros(model.size, dtype=bool)
    seen[positions] = True
    if model.shared:
        return reachable_within(model, seen, np.ones(model.size, dtype=bool), backward=backward)
    spread = products.spread_back if backward else products.spread
    for number in _passes(model):
        before = np.count_nonzero(seen)
        for slab in model.row_slabs(reverse=number % 2 == 1):
            spread(*slab, number % 2 == 1, seen)
        if np.count_nonzero(seen) == before and number:
            return seen
    graph = csc_array(
        (np.ones(len(model.sources), dtype=np.int8), model.sources, model.indptr), shape=(model.size,) * 2
    )
    # one more state leads to all that are seen
    n = model.size
    entries = (graph.T if backward else graph).tocoo()
    found = np.flatnonzero(seen)
    rows, columns = np.append(entries.coords[0], np.full(len(found), n)), np.append(entries.coords[1], found)
    more = csr_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(n + 1, n + 1))
    order = csgraph.breadth_first_order(more, n, return_predecessors=False)
    seen[order[order < n]] = True
    return seen


def two_coloring(model: Generator) -> np.ndarray | None:
    """Return a color 0 or 1 per state such that every transition changes the color, or None.

    A chain that has one moves between the two color classes at every jump: its jump chain has an even period.

    Returns
    -------
    ndarray of uint8, shape (n,), or None
        The first state has color 0.

    Examples
    --------
    >>> from ctmc.model.generator import Generator
    >>> two_coloring(Generator.from_matrix([[0, 1.0, 0], [1.0, 0, 1.0], [0, 1.0, 0]])).tolist()     # 0 <-> 1 <-> 2
    [0, 1, 0]
    """
    colors = np.zeros(model.size, dtype=np.uint8)
    if isinstance(model.transitions, LatticeTransitions):  # every transition changes one coordinate by one
        lattice_rates.parity(model.transitions.sides, model.transitions.strides, colors)
        return colors
    if all(products.color_from_before(*slab, colors) for slab in model.row_slabs()):  # then there is no other coloring
        same = any(products.count_same_color(*slab, colors) for slab in model.row_slabs())
        return None if same else colors
    parent, parity = np.arange(model.size, dtype=np.uint64), np.zeros(model.size, dtype=np.uint8)
    if not all(products.two_coloring(*slab, parent, parity) for slab in model.row_slabs()):
        return None
    products.colors_of(parent, parity, colors)
    return colors


def to_networkx(model: Generator) -> networkx.DiGraph:
    """Return the chain as a networkx graph: nodes are the states as tuples, edges carry `rate`.

    Raises
    ------
    ModelError
        If the model has more than 100,000 states.
    """
    import networkx

    check_chain(model)
    if model.size > NETWORKX_LIMIT:
        raise ModelError(f"a networkx graph of {model.size:,} states is too large; allowed are {NETWORKX_LIMIT:,}.")
    names = [tuple(state) for state in model.space.states(np.arange(model.size)).tolist()]
    graph = networkx.DiGraph()
    graph.add_nodes_from(names)
    for j, target in enumerate(names):
        for k in range(model.indptr[j], model.indptr[j + 1]):
            graph.add_edge(names[model.sources[k]], target, rate=float(model.rates[k]))
    return graph


def condensation(model: Generator) -> networkx.DiGraph:
    """Return the graph of the classes: nodes are class numbers with `size` and `recurrent`, edges carry the `count` of
    transitions between the classes.
    """
    import networkx

    check_chain(model)
    found = model.classes
    if found.count > NETWORKX_LIMIT:
        raise ModelError(f"a networkx graph of {found.count:,} classes is too large; allowed are {NETWORKX_LIMIT:,}.")
    graph = networkx.DiGraph()
    recurrent = set(found.recurrent.tolist())
    for number, size in enumerate(np.bincount(found.class_of).tolist()):
        graph.add_node(number, size=size, recurrent=number in recurrent)
    begin = found.class_of[model.sources].astype(np.int64)
    end = np.repeat(found.class_of, np.diff(model.indptr))
    pairs, counts = np.unique((begin * found.count + end)[begin != end], return_counts=True)
    for pair, number in zip(pairs.tolist(), counts.tolist(), strict=True):
        graph.add_edge(pair // found.count, pair % found.count, count=number)
    return graph
