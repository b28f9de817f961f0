"""What building, storing and solving a model will take, from a sample of its rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.errors import CTMCError
from ctmc.model.generator import Generator
from ctmc.model.parameters import check_chain
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import NO_CODES
from ctmc.problem import Stationary
from ctmc.storage.checksum import pack
from ctmc.storage.coding import coded
from ctmc.storage.hash_tree import checked_arrays, pieces
from ctmc.storage.streams import stream_of

_SAMPLES = 6
_EXIT_RATES = 2
"""Bytes that the coded exit rates of ten states take in the file, as measured on queues; they are not in the sample."""


@dataclass(frozen=True)
class Forecast:
    """What a model takes.

    Attributes
    ----------
    states, entries : int
        Numbers of states and transitions.
    exact : bool
        Whether all transitions were counted; else it is an estimate from a sample.
    file_bytes : int
        Of the file, estimated.
    raw_bytes : int
        Of plain compressed rows: 12 bytes an entry (16 from 2^31 states on), 16 a state.
    model_bytes : int
        Of the model in memory, loaded whole.
    build_bytes : int
        In memory while the file is written slab by slab.
    seconds : float
        Of building and writing on this machine, as it is busy now.
    solvers : dict of str to (int, int)
        For each method that says it: bytes with the model in memory and its copy by color, and streamed from the file.
    """

    states: int
    entries: int
    exact: bool
    file_bytes: int
    raw_bytes: int
    model_bytes: int
    build_bytes: int
    seconds: float
    solvers: dict[str, tuple[int, int]]


def forecast(model: Generator) -> Forecast:
    """Return what a model takes: one that was built inside `ctmc.model.streamed.streaming`, so that its rows do not exist yet, or any.

    Parameters
    ----------
    model : Generator
        Of streamed rows a few slabs are made and packed; others are packed as a whole.

    Returns
    -------
    Forecast

    Raises
    ------
    ModelError
        If a slab of the sample breaks a law of generators.

    Examples
    --------
    >>> from ctmc.model.streamed import streaming
    >>> with streaming():
    ...     network = registry.build("tandem_network", service_rates=[3, 2, 1], arrival_rate=0.8, total_capacity=60)
    >>> found = forecast(network)
    >>> found.states, found.entries, found.raw_bytes
    (39711, 151280, 2450736)
    """
    check_chain(model)
    states, rows = model.size, model.transitions
    wide = 4 if states <= np.iinfo(np.int32).max else 8
    model_bytes = model.nbytes
    if not isinstance(rows, StreamedTransitions):  # small enough to be made at once, and to be packed as a whole
        entries, exact = model.entries, True
        begin = time.perf_counter()
        small, stream = stream_of(model)
        few = coded(model.exit_rates)
        small["exit_rates"] = model.exit_rates if few is None else few[0]
        file_bytes = sum(len(pack(piece.values, len(piece.values))) for piece in pieces(checked_arrays(small), stream))
        seconds = time.perf_counter() - begin
    else:
        slabs = len(rows.begins) - 1
        sample = sorted({round(k * (slabs - 1) / (_SAMPLES - 1)) for k in range(_SAMPLES)})
        sampled = int(np.diff(rows.begins)[sample].sum())
        exact = slabs == len(sample)
        _touch(rows, sample[0])
        begin = time.perf_counter()
        _, stream = stream_of(model, sample)
        size, found = 0, 0
        for name, _, values in stream.parts():
            size += len(pack(np.ascontiguousarray(values), len(values)))
            found += len(values) if name in ("rates/codes", "rates/data", "rates/data.codes") else 0
        seconds = (time.perf_counter() - begin) * states / sampled
        file_bytes = round(size * states / sampled) + _EXIT_RATES * states // 10
        if rows.lattice is not None:
            arrivals = sum(int(np.count_nonzero(weights)) for _, weights in rows.lattice.windows(sample))
            departures = sum(states // side * (side - 1) for side in rows.lattice.sides.tolist())
            entries = round(arrivals * states / sampled) + departures
            model_bytes = len(rows.lattice.sides) * rows.lattice.dtype.itemsize * states + 8 * states
        else:
            entries = round(found * states / sampled)
            slab = next(rows.stream(sample[:1]))
            per_entry = wide + (8 if slab.codes is NO_CODES else slab.codes.itemsize)
            model_bytes = per_entry * entries + 16 * states
    raw = (8 + wide) * entries + 16 * states
    streamed = 16 * states
    solvers = {name: (2 * model_bytes + taken, streamed + taken) for name, taken in _solvers(states, entries)}
    return Forecast(states, entries, exact, file_bytes, raw, model_bytes, 8 * states + (64 << 20), seconds, solvers)


def _touch(rows: StreamedTransitions, number: int) -> None:
    """Make one slab, so that compiling is not counted."""
    for _ in rows.stream([number]):
        pass


def _solvers(states: int, entries: int) -> list[tuple[str, int]]:
    found = []
    for name in registry.solver_names():
        try:
            kind: Any = registry.solver_class(name)
            if Stationary in kind.solves and kind.needs is Generator and hasattr(kind, "memory"):
                found.append((name, int(kind().memory(states, entries))))
        except CTMCError:
            continue
    return sorted(found, key=lambda pair: pair[1])
