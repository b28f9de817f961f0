"""The structure of a model as facts: classes, periods, levels, entries, rates and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array, csr_array

from ctmc.errors import ModelError
from ctmc.model.decay import decay_rate
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.model.period import periods
from ctmc.model.products import compiled
from ctmc.model.qbd import QBD
from ctmc.model.state_space import Lattice
from ctmc.model.transitions import unsigned

PLAIN = "float64 CSR"
CODED = "value-coded CSR"
LATTICE = "lattice"
_CHEAP_PHASES = 100
"""Up to here the decay rate of a QBD, which takes eigenvalues of dense matrices, is one of the facts."""
_MOST_CODES = 1 << 16
_SLOTS = 1 << 18


def structure(model: Generator | QBD) -> dict[str, Any]:
    """Return what a model is like, with plain values; facts only, nothing is solved.

    Parameters
    ----------
    model : Generator or QBD

    Returns
    -------
    dict
        For a Generator:

        - ``communicating_classes``, ``recurrent_classes``, ``transient_states``: how many.
        - ``periods``: period of the jump chain -> number of recurrent classes that have it; `periods` in
          `ctmc.model.period` says how it is found.
        - ``two_colorable``: whether every transition changes the color in some 2-coloring of the states; then ``colors``
          are the numbers of states of both.
        - ``variables``: for each coordinate of the states, and for their total where there are several, ``name``,
          ``levels`` (different values), ``widest_level`` (most states with the same value) and ``largest_change`` (by one
          transition).
        - ``level_variables``: the names of those that change, and never by more than one: the chain is a
          quasi-birth-and-death process in each of them.
        - ``breadth_first_levels``, ``widest_breadth_first_level``: levels by distance from state 0, transitions taken in
          both directions; any chain is block-tridiagonal in them.  ``bandwidth``: the largest |i - j| over the transitions.
        - ``transitions``; ``transitions_into_a_state`` and ``transitions_out_of_a_state``: ``least``, ``mean``, ``largest``.
        - ``distinct_rates``, ``distinct_exit_rates``, ``least_rate``, ``largest_rate``, ``largest_exit_rate``: per the user's
          unit of time; least and largest are None where there are no transitions.
        - ``representation``, and ``bytes_a_state`` that the model takes as it is stored.
        - ``bytes_a_state_by_representation``: for those that can hold it, indices and exit rates included; see below.

        For a QBD: ``boundary_levels``, ``boundary_states``, ``phases``, ``entries`` of each repeating block, ``drift`` (levels
        per unit of time), ``decay_rate`` (up to 100 phases, where the drift is negative; else None), ``distinct_rates``,
        ``least_rate``, ``largest_rate``.

    Raises
    ------
    ModelError
        If the model is of another kind, or the memory limit is too low: beside the float64 CSR form it takes 20 bytes
        a transition, where the classes are found, and some tables of the states.

    Notes
    -----
    Float64 CSR takes 12 bytes a transition (16 with 64-bit indices), value-coded CSR 5 or 6 (9 or 10), for up to 256 or
    65,536 different rates; both 16 a state for row pointers and exit rates.  The lattice form is possible on a full box where
    each transition changes one coordinate by one and each coordinate falls at one rate wherever it is above zero: the rates
    at which it rises are one or two bytes a coordinate and state, indices are implied.

    Examples
    --------
    >>> from ctmc.model.structure import structure
    >>> queue = Generator.from_matrix([[0, 1, 0], [2, 0, 1], [0, 2, 0]])
    >>> facts = structure(queue)
    >>> facts["periods"], facts["level_variables"], facts["distinct_rates"]
    ({2: 1}, ['state'], 2)
    >>> {form: round(size, 1) for form, size in facts["bytes_a_state_by_representation"].items()}
    {'float64 CSR': 32.0, 'value-coded CSR': 22.7, 'lattice': 1.0}
    """
    if isinstance(model, QBD):
        return _of_queue(model)
    if not isinstance(model, Generator):
        raise ModelError(f"model is a {type(model).__name__}; allowed are Generator and QBD.")
    columns = model.space.dimension + (model.space.dimension > 1)
    needed = 20 * model.entries + (8 * columns + 40) * model.size
    if model.representation != PLAIN:
        needed += 12 * model.entries  # the form that is read here
    require_memory("the structure report", needed, states=model.size, entries=model.entries)
    return _of_chain(model)


def _of_chain(model: Generator) -> dict[str, Any]:
    indptr, sources, rates = model.indptr, model.sources, model.rates
    n, entries = model.size, len(rates)
    found, coloring = model.classes, model.coloring
    recurrent_states = int(np.bincount(found.class_of, minlength=found.count)[found.recurrent].sum())
    values, counts = np.unique(periods(indptr, sources, found), return_counts=True)
    # by source, for the search in both directions; one byte an entry is enough for its weights
    leaving = csr_array(csc_array((np.ones(entries, dtype=np.int8), sources, indptr), shape=(n, n)))
    breadth = np.full(n, -1, dtype=np.int64)
    breadth_first(
        unsigned(indptr), unsigned(sources), unsigned(leaving.indptr),
        unsigned(leaving.indices), breadth, np.empty(n, dtype=np.uint64),
    )  # fmt: skip
    out_of = np.diff(leaving.indptr)
    del leaving
    widths = np.bincount(breadth)
    table, names = _coordinates(model)
    largest, falls = np.zeros(table.shape[1], dtype=np.uint64), np.zeros(model.space.dimension, dtype=np.int64)
    rises = np.zeros(entries if _is_box(model) else 0, dtype=np.bool_)
    band = _steps(unsigned(indptr), unsigned(sources), rates, table, largest, falls, rises)
    variables = []
    for column, name in enumerate(names):
        members = _level_sizes(table[:, column])
        variables.append(
            {
                "name": name,
                "levels": len(members),
                "widest_level": int(members.max()),
                "largest_change": int(largest[column]),
            }
        )
    distinct = count_distinct(rates)
    by_form = _bytes_a_state(model, distinct, rates[rises] if _has_lattice_form(model, falls) else None)
    return {
        "communicating_classes": found.count,
        "recurrent_classes": len(found.recurrent),
        "transient_states": n - recurrent_states,
        "periods": dict(zip(values.tolist(), counts.tolist(), strict=True)),
        "two_colorable": coloring is not None,
        "colors": None if coloring is None else np.bincount(coloring, minlength=2).tolist(),
        "variables": variables,
        "level_variables": [row["name"] for row in variables if row["largest_change"] == 1],
        "breadth_first_levels": len(widths),
        "widest_breadth_first_level": int(widths.max()),
        "bandwidth": int(band),
        "transitions": entries,
        "transitions_into_a_state": _spread(np.diff(indptr)),
        "transitions_out_of_a_state": _spread(out_of),
        "distinct_rates": distinct,
        "distinct_exit_rates": count_distinct(model.exit_rates),
        "least_rate": float(rates.min()) if entries else None,
        "largest_rate": float(rates.max()) if entries else None,
        "largest_exit_rate": float(model.exit_rates.max()),
        "representation": model.representation,
        "bytes_a_state": model.nbytes / n,
        "bytes_a_state_by_representation": by_form,
    }


def _of_queue(queue: QBD) -> dict[str, Any]:
    blocks = {"up": queue.up, "local": queue.local, "down": queue.down}
    others = [block for level in queue.boundary for block in (level.up, level.local, level.down) if block is not None]
    rates = np.concatenate([block.data[block.data > 0] for block in [*blocks.values(), *others]])
    cheap = queue.phase_count <= _CHEAP_PHASES and queue.drift < 0
    return {
        "boundary_levels": queue.boundary_levels,
        "boundary_states": sum(map(len, queue.phases)),
        "phases": queue.phase_count,
        "entries": {name: int(block.nnz) for name, block in blocks.items()},
        "drift": queue.drift,
        "decay_rate": decay_rate(queue) if cheap else None,
        "distinct_rates": count_distinct(rates),
        "least_rate": float(rates.min()) if len(rates) else None,
        "largest_rate": float(rates.max()) if len(rates) else None,
    }


def _level_sizes(values: np.ndarray) -> np.ndarray:
    """Return how many states have each value, shape (different values,)."""
    if values.max() < 4 * len(values):  # counting is faster than sorting
        counts = np.bincount(values.astype(np.int64))
        return np.asarray(counts[counts > 0])
    return np.asarray(np.unique(values, return_counts=True)[1])


def _spread(counts: np.ndarray) -> dict[str, Any]:
    return {"least": int(counts.min()), "mean": float(counts.mean()), "largest": int(counts.max())}


def _is_box(model: Generator) -> bool:
    return isinstance(model.space, Lattice) and model.space.total is None and not model.space.classes


def _has_lattice_form(model: Generator, falls: np.ndarray) -> bool:
    """Tell whether each coordinate falls at one rate wherever it is above zero, and nothing moves but by single steps."""
    if not (
        isinstance(model.space, Lattice) and model.space.total is None and not model.space.classes
    ):  # `_is_box`, as the type checker sees it
        return False
    limits = np.array(model.space.limits)
    return bool((falls == model.size // (limits + 1) * limits).all())


def _bytes_a_state(model: Generator, distinct: int, rising: np.ndarray | None) -> dict[str, float]:
    """Return the bytes a state in each form that can hold the model; `rising`: the rates upwards of a lattice form."""
    n, index = model.size, model.sources.itemsize
    a_state = model.entries / n
    found = {PLAIN: (8 + index) * a_state + 16}
    if distinct <= _MOST_CODES:
        found[CODED] = (index + (1 if distinct <= 256 else 2)) * a_state + 16
    if rising is not None:
        codes = count_distinct(rising) + 1  # and 0, for no transition
        if codes <= _MOST_CODES:
            found[LATTICE] = float(model.space.dimension * (1 if codes <= 256 else 2))
    return found


def _coordinates(model: Generator) -> tuple[np.ndarray, list[str]]:
    """Return the coordinates less their least values, then their total, shape (n, columns), and the names."""
    space = model.space
    names = [
        variable.name if variable.length is None else f"{variable.name}[{position}]"
        for variable in space.variables
        for position in range(variable.width)
    ]
    if isinstance(space, Lattice):
        least, most = [0] * space.dimension, list(space.limits)
    else:
        bounds = [(states.min(axis=0), states.max(axis=0)) for _, states in space.slabs()]
        least = np.min([low for low, _ in bounds], axis=0).tolist()
        most = np.max([high for _, high in bounds], axis=0).tolist()
    spans = [high - low for low, high in zip(least, most, strict=True)]
    with_total = space.dimension > 1 and sum(spans) < 2**63
    widest = sum(spans) if with_total else max(spans)
    table = np.empty((space.size, space.dimension + with_total), dtype=np.uint32 if widest < 2**32 else np.uint64)
    for positions, states in space.slabs():
        shifted = states.view(np.uint64) - np.array(least, dtype=np.int64).view(np.uint64)
        table[positions, : space.dimension] = shifted
        if with_total:
            table[positions, -1] = shifted.sum(axis=1)
    return table, [*names, "total"] if with_total else names


@compiled
def _steps(indptr: Any, sources: Any, rates: Any, table: Any, largest: Any, falls: Any, rises: Any) -> Any:
    """Set `largest` to the largest change of each column by a transition; return the largest distance of positions.

    `falls` counts the entries at which each coordinate falls; -1 where it falls at different rates, and -1 everywhere where
    some transition changes more than one coordinate, or one by more than one.  Where there is room, `rises` marks the
    entries at which a coordinate rises.
    """
    one = np.uint64(1)
    width, dimension = np.uint64(table.shape[1]), np.uint64(falls.size)
    fall, same, single = np.zeros(falls.size), np.ones(falls.size, dtype=np.bool_), True
    band = np.uint64(0)
    for j in range(np.uint64(indptr.size) - one):
        for k in range(indptr[j], indptr[j + one]):
            i = np.uint64(sources[k])
            band = max(band, i - j if i > j else j - i)
            changed = np.uint64(0)
            for c in range(width):
                before, after = np.uint64(table[i, c]), np.uint64(table[j, c])
                change = after - before if after > before else before - after
                largest[c] = max(largest[c], change)
                if c < dimension and change:
                    changed += change
                    if after > before:
                        if rises.size:
                            rises[k] = True
                        continue
                    falls[c] += 1
                    if falls[c] == 1:
                        fall[c] = rates[k]
                    same[c] &= fall[c] == rates[k]
            single &= changed == one
    for c in range(dimension):
        if not (same[c] and single):
            falls[c] = -1
    return np.int64(band)


@compiled
def breadth_first(indptr: Any, sources: Any, out_indptr: Any, targets: Any, level: Any, queue: Any) -> None:
    """Set the distance of each state from state 0, or from the first one of its part where parts are not joined."""
    one = np.uint64(1)
    for root in range(np.uint64(level.size)):
        if level[root] >= 0:
            continue
        level[root] = 0
        queue[0] = root
        begin, end = np.uint64(0), one
        while begin < end:
            j = queue[begin]
            begin += one
            for k in range(indptr[j], indptr[j + one]):
                i = np.uint64(sources[k])
                if level[i] < 0:
                    level[i] = level[j] + 1
                    queue[end] = i
                    end += one
            for k in range(out_indptr[j], out_indptr[j + one]):
                i = np.uint64(targets[k])
                if level[i] < 0:
                    level[i] = level[j] + 1
                    queue[end] = i
                    end += one


def count_distinct(values: np.ndarray) -> int:
    """Return how many different numbers a vector holds, by one pass over it where they are at most 65,536.

    Examples
    --------
    >>> count_distinct(np.array([0.5, 0.25, 0.5]))
    2
    """
    found = int(_distinct(np.ascontiguousarray(values).view(np.uint64), np.zeros(_SLOTS, dtype=np.uint64)))
    return len(np.unique(values)) if found > _MOST_CODES else found


@compiled
def _distinct(bits: Any, slots: Any) -> int:
    """Count the different patterns of bits, up to one more than 65,536; zeros, which mark a free slot, by themselves."""
    zero = 0
    found = 0
    last = np.uint64(slots.size - 1)
    for k in range(np.uint64(bits.size)):
        pattern = bits[k]
        if pattern == 0:
            zero = 1
            continue
        place = (pattern * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(46)
        while slots[place] != 0 and slots[place] != pattern:
            place = (place + np.uint64(1)) & last
        if slots[place] == 0:
            slots[place] = pattern
            found += 1
            if found > _MOST_CODES:
                break
    return found + zero
