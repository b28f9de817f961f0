"""Any model given as a transition function or as a graph, explored breadth-first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

import ctmc
from builders._exploration import Block, explore, name_of
from ctmc.errors import ModelError, printable, shown
from ctmc.model.distribution import Distribution, distribution
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.parameters import check_truth, whole_number
from ctmc.model.state_space import Listed, Variable

_NUMBERS = re.compile(r"\s*\(?\s*(-?\d{1,19}(?:\s*,\s*-?\d{1,19})*)\s*,?\s*\)?\s*")
_NAME = re.compile(r"([^\W\d]\w*)(?:\[(\d{1,9})\])?")
_MOST_LABELS = 256
"""Up to this many nodes of a graph are labels of the model."""

Graph: TypeAlias = Any
"""A networkx.DiGraph or MultiDiGraph; networkx itself is not needed here."""


@ctmc.builder(version=1, code=("transitions",))
def reachable(
    transitions: Callable[..., Iterable[Any]] | str | Graph,
    initial: int | Sequence[int] | Mapping[Any, float] | None = None,
    variables: Sequence[str] | None = None,
    max_states: int = 10_000_000,
    vectorized: bool = False,
) -> Generator:
    """All states that a transition function reaches, explored breadth-first.

    The states stand in the order of discovery: the initial ones as given, then by the state that they were first reached
    from, and for each of those in the order in which the function gives its transitions.  Transitions from a state to
    itself are left out; several between the same two states add up.

    Parameters
    ----------
    transitions : callable, str or networkx.DiGraph
        The transition function, its name ``module:function``, or a graph; see Notes.
    initial : int, sequence of int, or mapping of states to probabilities
        Where exploring begins, and the model's initial distribution; ``{"0,0" = 0.5, "1,0" = 0.5}`` in a study.  A graph
        needs none.
    variables : sequence of str, optional
        Names of the coordinates: ``"jobs"`` for one of them, ``"queue_length[3]"`` for three.  Default: ``state``.
    max_states : int
        Exploring more is an error; default 10,000,000.
    vectorized : bool
        Whether the function takes an array of states.  Nothing is tried out to guess it.

    Returns
    -------
    Generator
        Over a listed state space, with the initial distribution.

    Raises
    ------
    ModelError
        If the function fails or gives a state that does not fit, a rate that is not positive and finite; if there are
        more than `max_states` states, or the model needs more than the memory limit.  The message names the state.

    Notes
    -----
    A function of one state, ``f(state)``, takes a tuple of int and gives pairs ``(next state, rate)``, as a list or a
    generator.  With `vectorized`, a function of many: ``f(states)`` takes an int64 array of shape (m, dimension), m up to
    65,536, and gives blocks ``(rows, next states, rates)``: `rows` are row numbers, shape (k,), or a mask, shape (m,);
    next states have the shape (k, dimension); rates are an array (k,) or one number.  A function named as
    ``module:function`` is imported only where code is allowed (``--allow-code``, `ctmc.allowed_code`).

    The edges of a graph carry `rate`.  Nodes that are ints, or tuples of them of one length, are the states; other nodes
    are numbered, and up to 256 of them are labels of the model by their names.  Without `initial` all nodes are taken,
    in the graph's order; with it, nodes that it does not reach are left out.

    States are found again in a compiled table, a batch at a time.  Memory at the peak is about 64 bytes + 24 per
    coordinate a state and 90 a transition.  A function of one state takes some microseconds a state, a vectorized one a
    fraction of one.

    Examples
    --------
    >>> def failures(state):                                # two machines, one repairer
    ...     (down,) = state
    ...     if down < 2:
    ...         yield (down + 1,), 0.1 * (2 - down)
    ...     if down > 0:
    ...         yield (down - 1,), 1.0
    >>> model = reachable(failures, initial=0, variables=["down"])
    >>> round(ctmc.solve(ctmc.Stationary(model), "gth").expected("down"), 9)
    0.196721311

    >>> def many(states):                                   # the same for arrays
    ...     down = states[:, 0]
    ...     yield down < 2, states[down < 2] + 1, 0.1 * (2 - down[down < 2])
    ...     yield down > 0, states[down > 0] - 1, 1.0
    >>> reachable(many, initial=0, vectorized=True).size
    3

    On the command line: ``ctmc build reachable --transitions module:function --initial 0,0 --allow-code -o model.h5``
    """
    most = whole_number("max_states", max_states, 1)
    check_truth("vectorized", vectorized)
    if hasattr(transitions, "is_directed") and hasattr(transitions, "edges"):
        if vectorized:
            raise ModelError("vectorized is given with a graph; it is for functions.")
        return _from_graph(transitions, initial, variables, most)
    if not callable(transitions):
        raise ModelError(
            f"transitions is {shown(transitions)}; allowed is a function, module:function or a directed graph."
        )
    if initial is None:
        raise ModelError(
            "initial is missing; give a state, e.g. initial=(0, 0), or a mapping of states to probabilities."
        )
    table, weights = _initial(initial)
    names = _variables(variables, table.shape[1])
    successors = _vectorized(transitions) if vectorized else _scalar(transitions)
    states, sources, targets, rates = explore(successors, table, most)
    space = Listed(states, names)
    return Generator.from_transitions(
        sources, targets, rates, space, initial=Distribution(weights.positions, weights.probabilities)
    )


def _scalar(function: Callable[..., Iterable[Any]]) -> Callable[[np.ndarray], Iterator[Block]]:
    """Turn a function of one state into one that gives a block of rows, next states and rates."""

    def successors(states: np.ndarray) -> Iterator[Block]:
        rows: list[int] = []
        after: list[Any] = []
        rates: list[Any] = []
        for row, state in enumerate(map(tuple, states.tolist())):
            try:
                for following, rate in function(state):
                    rows.append(row)
                    after.append(following)
                    rates.append(rate)
            except Exception as error:  # the function is the user's: whatever it does, the answer is one sentence
                raise ModelError(
                    f"transitions failed in state {name_of(state)}: {type(error).__name__}: {printable(error)}; it gives pairs "
                    "(next state, rate)."
                ) from error
        if not rows:
            return
        table = _whole(after)
        if table is not None and table.ndim == 1:
            table = table[:, None]
        if table is None or table.shape[1:] != states.shape[1:]:  # one by one, to name the first that does not fit
            for row, following in zip(rows, after, strict=True):
                one = _whole(following)
                if one is None or np.atleast_1d(one).shape != states.shape[1:]:
                    raise _misfit(states[row], following)
            table = np.array([np.atleast_1d(_whole(following)) for following in after], dtype=np.int64)
        yield _checked(states, np.array(rows, dtype=np.int64), table, rates)

    return successors


def _vectorized(function: Callable[..., Iterable[Any]]) -> Callable[[np.ndarray], Iterator[Block]]:
    """Check the blocks of a function of many states."""

    def blocks(states: np.ndarray) -> Iterator[tuple[Any, Any, Any]]:
        try:
            for rows, after, rates in function(states.copy()):  # noqa: UP028  # what is no triple fails in here
                yield rows, after, rates
        except Exception as error:  # the function is the user's: whatever it does, the answer is one sentence
            raise ModelError(
                f"transitions failed on {len(states):,} states, the first being {name_of(states[0])}: {type(error).__name__}: "
                f"{printable(error)}; it gives blocks (rows, next states, rates)."
            ) from error

    def successors(states: np.ndarray) -> Iterator[Block]:
        for number, (rows, after, rates) in enumerate(blocks(states)):
            where = f"block {number} of transitions, from {len(states):,} states beginning with {name_of(states[0])},"
            chosen = np.asarray(rows)
            if chosen.dtype == bool and chosen.shape == (len(states),):
                chosen = np.flatnonzero(chosen)
            elif chosen.dtype == bool or chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
                raise ModelError(
                    f"{where} has rows of shape {chosen.shape} and type {chosen.dtype}; allowed are row numbers, or a mask "
                    f"of shape ({len(states)},)."
                )
            chosen = chosen.astype(np.int64)
            if chosen.size and (chosen.min() < 0 or chosen.max() >= len(states)):
                worst = chosen.min() if chosen.min() < 0 else chosen.max()
                raise ModelError(f"{where} has the row number {worst}; allowed is 0 to {len(states) - 1}.")
            table = _whole(after)
            if not chosen.size and (table is None or not table.size):
                continue
            if table is not None and table.ndim == 1 and states.shape[1] == 1:
                table = table[:, None]
            if table is None or table.shape != (len(chosen), states.shape[1]):
                odd = _first_odd(after, len(chosen), states.shape[1])
                if odd is not None:
                    raise _misfit(states[chosen[odd]], np.asarray(after)[odd])
                raise ModelError(
                    f"{where} has next states of shape {np.shape(after) if table is None else table.shape}; allowed are whole numbers of shape "
                    f"({len(chosen)}, {states.shape[1]})."
                )
            yield _checked(states, chosen, table, rates)

    return successors


def _checked(states: np.ndarray, rows: np.ndarray, after: np.ndarray, rates: Any) -> Block:
    """Return a block with its rates as an array, all positive and finite."""
    try:
        speeds = np.asarray(rates, dtype=np.float64)
        speeds = np.broadcast_to(speeds, len(rows)) if speeds.ndim == 0 else speeds
    except (TypeError, ValueError):
        speeds = np.array([_float(rate) for rate in rates]) if isinstance(rates, list) else np.empty((0, 0))
    if speeds.shape != (len(rows),):
        raise ModelError(
            f"transitions from {len(states):,} states beginning with {name_of(states[0])} have rates of shape {speeds.shape}; "
            f"allowed are numbers of shape ({len(rows)},), or one number."
        )
    bad = ~((speeds > 0) & np.isfinite(speeds))
    if bad.any():
        k = int(np.argmax(bad))
        value = rates[k] if isinstance(rates, list) else float(speeds[k])
        raise ModelError(
            f"the rate from state {name_of(states[rows[k]])} to state {name_of(after[k])} is {printable(value)}; allowed are "
            "positive, finite rates."
        )
    return rows, after, speeds


def _whole(values: Any) -> np.ndarray | None:
    """Return values as an int64 array; None where they are not whole numbers that fit, or have no common shape."""
    try:
        table = np.asarray(values)
    except ValueError:
        return None
    if table.dtype.kind == "f" and np.isfinite(table).all() and (np.abs(table) < 2**53).all():
        whole = table.astype(np.int64)
        return whole if (whole == table).all() else None
    if table.dtype.kind not in "iu" or (table.dtype == np.uint64 and table.size and table.max() >= 2**63):
        return None
    return table.astype(np.int64, copy=False)


def _first_odd(after: Any, count: int, dimension: int) -> int | None:
    """Return the first row that is not of whole numbers, in a table of the right shape."""
    table = np.asarray(after) if isinstance(after, np.ndarray) else None
    if table is None or table.shape != (count, dimension) or table.dtype.kind != "f":
        return None
    return int(np.argmax(~((table == np.floor(table)) & (np.abs(table) < 2**53)).all(axis=1)))


def _misfit(state: Any, following: Any) -> ModelError:
    return ModelError(
        f"state {name_of(state)} has the successor {name_of(following)}; allowed are {len(state)} whole numbers, as in the state "
        "itself."
    )


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan


def _variables(given: Sequence[str] | None, dimension: int) -> tuple[Variable, ...]:
    if given is None:
        return (Variable("state", None if dimension == 1 else dimension),)
    chosen = []
    if not isinstance(given, str | list | tuple):
        raise ModelError(f"variables is {shown(given)}; allowed are names such as jobs or queue_length[3].")
    for text in [given] if isinstance(given, str) else given:
        match = _NAME.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[2] == "0":
            raise ModelError(
                f"variables has {shown(text)}; allowed are names such as jobs, or queue_length[3] for three coordinates."
            )
        chosen.append(Variable(match[1], int(match[2]) if match[2] else None))
    if len({variable.name for variable in chosen}) < len(chosen):
        raise ModelError(f"variables are {', '.join(v.name for v in chosen)}; allowed are different names.")
    if sum(variable.width for variable in chosen) != dimension:
        raise ModelError(
            f"variables name {sum(variable.width for variable in chosen)} coordinates, but a state has {dimension}."
        )
    return tuple(chosen)


def _initial(given: Any) -> tuple[np.ndarray, Distribution]:
    """Return the initial states, shape (k, dimension), and their probabilities."""
    states = list(given) if isinstance(given, Mapping) else [given]
    rows = []
    for state in states:
        match = _NUMBERS.fullmatch(state) if isinstance(state, str) else None
        row = _whole([int(number) for number in match[1].split(",")] if match else state)
        if row is None or row.ndim > 1 or not row.size:
            raise ModelError(f"initial has the state {shown(state)}; allowed are whole numbers, such as (0, 0).")
        rows.append(np.atleast_1d(row))
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise ModelError(
            f"initial has states of {' and '.join(map(str, sorted({len(row) for row in rows}))) or 'no'} coordinates; "
            "allowed are one or more states of the same length."
        )
    table = np.array(rows)
    weights = list(given.values()) if isinstance(given, Mapping) else [1.0]
    chosen = distribution(Listed(table), np.array([_float(weight) for weight in weights]))
    # a state without mass is no place to begin
    return table[chosen.positions], Distribution(np.arange(len(chosen.positions)), chosen.probabilities)


def _from_graph(graph: Any, initial: Any, variables: Sequence[str] | None, max_states: int) -> Generator:
    """Return the model of a graph: all of it, or what is reachable from the initial nodes."""
    if not graph.is_directed():
        raise ModelError(
            f"transitions is an undirected {type(graph).__name__}; allowed is a directed graph, edges with a rate."
        )
    nodes = list(graph.nodes)
    if not nodes:
        raise ModelError("transitions is a graph without nodes; allowed are one or more.")
    if len(nodes) > max_states:
        raise ModelError(f"the graph has {len(nodes):,} nodes, more than max_states = {max_states:,}.")
    number = {node: k for k, node in enumerate(nodes)}
    edges = list(graph.edges(data="rate"))
    require_memory("the model of the graph", 90 * len(edges) + 200 * len(nodes), states=len(nodes), entries=len(edges))
    speeds = np.array([_float(rate) for *_, rate in edges], dtype=np.float64)
    bad = ~((speeds > 0) & np.isfinite(speeds))
    if bad.any():
        begin, end, rate = edges[int(np.argmax(bad))]
        raise ModelError(
            f"the edge from {name_of(begin)} to {name_of(end)} has the rate {printable(rate)}; allowed are positive, finite rates."
        )
    sources = np.array([number[begin] for begin, _, _ in edges], dtype=np.int64)
    targets = np.array([number[end] for _, end, _ in edges], dtype=np.int64)
    chosen = np.arange(len(nodes))
    weights = None
    if initial is not None:
        weights, chosen = _reached(graph, number, initial, sources, targets)
        place = np.full(len(nodes), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        keep = place[sources] >= 0
        sources, targets, speeds = place[sources[keep]], place[targets[keep]], speeds[keep]
        nodes = [nodes[k] for k in chosen]
    table, labels, notes = _node_states(nodes)
    space = Listed(table, _variables(variables, table.shape[1]))
    return Generator.from_transitions(sources, targets, speeds, space, initial=weights, labels=labels, notes=notes)


def _reached(
    graph: Any, number: Mapping[Any, int], initial: Any, sources: np.ndarray, targets: np.ndarray
) -> tuple[Distribution, np.ndarray]:
    """Return the initial distribution, and the numbers of the nodes that it reaches, in order of discovery."""
    given = initial if isinstance(initial, Mapping) else {_node(initial): 1.0}
    for node in given:
        if _node(node) not in number:
            raise ModelError(f"initial has {name_of(node)}, which is no node of the graph.")
    begin = np.array([number[_node(node)] for node in given], dtype=np.int64)[:, None]
    order = np.argsort(sources, kind="stable")
    after, starts = targets[order], np.searchsorted(sources[order], np.arange(len(number) + 1))

    def successors(states: np.ndarray) -> Iterator[Block]:
        at = states[:, 0]
        counts = starts[at + 1] - starts[at]
        rows = np.repeat(np.arange(len(at)), counts)
        offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        yield rows, after[starts[at[rows]] + offsets][:, None], np.ones(len(rows))

    table, weights = _initial({int(k): weight for k, weight in zip(begin[:, 0], given.values(), strict=True)})
    return weights, explore(successors, table, len(number))[0][:, 0]


def _node(given: Any) -> Any:
    """Return a node as the graph has it: a list or an array of numbers is a tuple there."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    return tuple(given) if isinstance(given, list) else given


def _node_states(nodes: list[Any]) -> tuple[np.ndarray, dict[str, np.ndarray], tuple[str, ...]]:
    """Return states for the nodes of a graph; nodes that are not whole numbers are numbered, their names are labels."""
    lengths = {len(node) if isinstance(node, tuple) else 0 for node in nodes}
    flat = [item for node in nodes for item in (node if isinstance(node, tuple) else (node,))]
    integers = all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in flat)
    if integers and len(lengths) == 1 and flat and all(-(2**63) <= item < 2**63 for item in flat):
        return np.array(flat, dtype=np.int64).reshape(len(nodes), -1), {}, ()
    numbers = np.arange(len(nodes), dtype=np.int64)
    names = [str(node) for node in nodes]
    if len(nodes) <= _MOST_LABELS and len(set(names)) == len(names):
        return numbers[:, None], {name: numbers == k for k, name in enumerate(names)}, ()
    listed = ", ".join(printable(name) for name in names[:8])
    return numbers[:, None], {}, (f"States number the nodes of the graph: {listed}{', ..' if len(names) > 8 else ''}.",)
