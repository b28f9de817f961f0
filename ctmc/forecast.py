"""What building, storing and solving a model will take, from a sample of its rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc import registry
from ctmc.errors import CTMCError
from ctmc.model.generator import Generator
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import NO_CODES
from ctmc.problem import Stationary
from ctmc.storage.checksum import pack
from ctmc.storage.streams import stream_of

_SAMPLES = 6


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
    """Return what a model takes that was built inside `ctmc.model.streamed.streaming`, so that its rows do not exist yet.

    Examples
    --------
    >>> from ctmc.model.streamed import streaming
    >>> with streaming():
    ...     network = registry.build("tandem_network", service_rates=[3, 2, 1], arrival_rate=0.8, total_capacity=60)
    >>> found = forecast(network)
    >>> found.states, found.entries, found.raw_bytes
    (39711, 151280, 2450736)
    """
    states, rows = model.size, model.transitions
    wide = 4 if states <= np.iinfo(np.int32).max else 8
    if not isinstance(rows, StreamedTransitions):  # small enough to be made at once
        entries, exact, seconds, sampled = model.entries, True, 0.0, 0
        file_bytes = model.nbytes
        model_bytes = model.nbytes
    else:
        slabs = len(rows.begins) - 1
        sample = sorted({round(k * (slabs - 1) / (_SAMPLES - 1)) for k in range(_SAMPLES)})
        sizes = np.diff(rows.begins)[sample]
        _touch(rows, sample[0])
        begin = time.perf_counter()
        _, stream = stream_of(model, sample)
        packed, sampled = 0, 0
        for name, _, values in stream.parts():
            packed += len(pack(np.ascontiguousarray(values), len(values)))
            sampled += len(values) if name in ("rates/codes", "rates/data", "rates/data.codes") else 0
        seconds = (time.perf_counter() - begin) * states / float(sizes.sum())
        file_bytes = round(packed * states / float(sizes.sum())) + 2 * states // 10
        exact = slabs == len(sample)
        if rows.lattice is not None:
            share = float(sizes.sum()) / states
            arrivals = sum(int(np.count_nonzero(weights)) for _, weights in rows.lattice.windows(sample)) / share
            entries = round(arrivals) + sum(states // side * (side - 1) for side in rows.lattice.sides.tolist())
            model_bytes = len(rows.lattice.sides) * rows.lattice.dtype.itemsize * states + 8 * states
        else:
            entries = round(sampled * states / float(sizes.sum()))
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
