"""The laws of a generator, and the sentence for the first one that is broken: rows in order, positive rates, exit rates that are sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ctmc.errors import ModelError
from ctmc.model import products
from ctmc.model.transitions import CodedTransitions, FloatTransitions, Slab

if TYPE_CHECKING:
    from ctmc.model.generator import Generator


def check_rows(chain: Generator, rows: FloatTransitions | CodedTransitions) -> None:
    """Raise `ModelError` unless compressed rows in memory are those of a generator on the states of the chain."""
    n = chain.space.size
    indptr, sources = rows.indptr, rows.sources
    if indptr.shape != (n + 1,) or indptr.dtype != np.int64:
        raise ModelError(f"indptr has shape {indptr.shape} and type {indptr.dtype}; allowed is ({n + 1},) int64.")
    rates = rows.rates if isinstance(rows, FloatTransitions) else rows.codes
    entries = rates.shape[0] if rates.ndim == 1 else -1
    if sources.shape != (entries,) or sources.dtype not in (np.int32, np.int64):
        raise ModelError("sources (int32 or int64) and rates must be vectors of the same length.")
    if isinstance(rows, FloatTransitions):
        if rates.dtype != np.float64:
            raise ModelError(f"rates have the type {rates.dtype}; allowed is float64.")
    else:
        values = rows.values
        if rates.dtype not in (np.uint8, np.uint16) or values.dtype != np.float64 or values.ndim != 1:
            raise ModelError("codes (uint8 or uint16) and values (float64) must be vectors.")
        if entries and int(rates.max()) >= len(values):
            raise ModelError(f"a code is {int(rates.max())}; allowed is 0 to {len(values) - 1}.")
        bad = ~((values > 0) & np.isfinite(values))
        if bad.any() and bad[rates].any():  # a value that no entry has does no harm
            value = float(values[rates[np.argmax(bad[rates])]])
            raise ModelError(f"a rate is {value!r}; allowed are positive, finite rates.")
    if indptr[0] != 0 or indptr[-1] != entries:
        raise ModelError(f"indptr runs from {indptr[0]} to {indptr[-1]}; allowed is 0 to {entries}.")
    if isinstance(rows, FloatTransitions):
        kind, where = products.first_fault(indptr, sources, rates)
    else:
        kind, where = products.first_fault(indptr, sources, np.broadcast_to(1.0, entries))
    if kind:
        refuse_slab(chain, next(rows.slabs()), kind, where)


def refuse_slab(chain: Generator, slab: Slab, kind: int, where: int) -> None:
    """Raise `ModelError` for what `products.first_fault` found in a slab."""
    if kind == 1:
        raise ModelError(f"indptr decreases after state {chain.name_of(slab.begin + where)}.")
    target = slab.begin + int(np.searchsorted(slab.indptr, np.uint64(where), side="right")) - 1
    source = int(slab.sources[where : where + 1].view(f"i{slab.sources.itemsize}")[0])
    into = f"of the transition into state {chain.name_of(target)} (entry {where})"
    if kind == 2:
        raise ModelError(f"the source {into} is {source}; allowed is 0 to {chain.size - 1}.")
    if kind == 3:
        raise ModelError(
            f"the source {into} is {source}, not larger than the one before; each source stands once, ascending."
        )
    if kind == 4:
        raise ModelError(
            f"state {chain.name_of(target)} has a transition to itself (entry {where}); it has no effect, leave it out."
        )
    rate = float(slab.rates[where])
    raise ModelError(
        f"the rate from state {chain.name_of(source)} to state {chain.name_of(target)} is {rate!r}; "
        "allowed are positive, finite rates."
    )


def check_exit_rates(chain: Generator, sums: np.ndarray) -> None:
    """Raise `ModelError` unless the exit rates of a chain are these sums of the rates out of each state, to rounding."""
    given = chain.exit_rates
    bad = ~((np.abs(given - sums) <= 1e-12 * sums) & np.isfinite(sums))  # infinity is within any share of itself
    if bad.any():
        i = int(np.argmax(bad))
        raise ModelError(
            f"the exit rate of state {chain.name_of(i)} is {float(given[i])!r}; allowed is {float(sums[i])!r}, the sum of its rates."
        )
