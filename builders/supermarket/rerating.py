"""The supermarket at other rates: which of its small tables hold rates, and what must not move with them.

Rates enter the structure through the order in which jobs prefer servers, and through which servers are exchangeable.  Both are
compared as they are used, whole numbers by whole numbers, so no rounding needs to be argued about: service rates may change
by a common factor, or one by one, wherever no decision changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from builders.supermarket.lattice import lattice_rates
from builders.supermarket.rate_table import different_products, table_values
from builders.supermarket.transitions import coded_values
from ctmc.errors import ModelError
from ctmc.model.streamed import StreamedTransitions
from ctmc.model.transitions import LatticeTransitions


def rates_that_may_change(**parameters: Any) -> dict[str, str | None]:
    """Return the rates of the model; whether new service rates leave every decision as it is, tells their comparison.

    Examples
    --------
    >>> rates_that_may_change(selection="tandem")
    {'arrival_rate': None, 'service_rates': None}
    """
    return {"arrival_rate": None, "service_rates": None}


def check_alike(new: Mapping[str, Any], alike: bool, keys: Sequence[np.ndarray]) -> None:
    """Raise `ModelError` where new rates change states, classes of exchangeable servers, or decisions.

    Parameters
    ----------
    new : mapping
        Parameters with the new rates.
    alike : bool
        Whether states and classes are the same.
    keys : sequence of two ndarray of int64, shape (M, largest limit + 1)
        Preference keys at the old and at the new rates; read only where `alike`.
    """
    shown = f"service_rates {new['service_rates']} need a rebuild:"
    if not alike:
        raise ModelError(f"{shown} the servers, or which of them are exchangeable, are others.")
    if not np.array_equal(*keys):
        server, length = (int(place) for place in np.argwhere(keys[0] != keys[1])[0])
        selection = new["selection"] if isinstance(new["selection"], str) else "a function"
        raise ModelError(
            f"{shown} jobs would prefer other servers (selection {selection}, ties {new['ties']}), first where the queue "
            f"of coordinate {server} has length {length}."
        )


def rerated_rows(rows: Any, before: Any, after: Any) -> Any:
    """Return the same transitions at other rates, or None where their form has no table of rates by event.

    Parameters
    ----------
    rows : LatticeTransitions, CodedTransitions, FloatTransitions or StreamedTransitions
        Of the design `before`, in the form that the builder makes.
    before, after
        Designs with the same decisions.
    """
    streamed = isinstance(rows, StreamedTransitions)
    if isinstance(rows, LatticeTransitions) or (streamed and rows.lattice is not None):
        unit, departures = lattice_rates(after.space, after.probabilities, after.arrival_rate, after.rates)
        return rows.rerated(unit, departures) if streamed else rows._replace(unit=unit, departures=departures)
    given = rows.values() if streamed else getattr(rows, "values", None)
    values = None if given is None else _values(given, before, after)
    if values is None:
        return None
    return rows.rerated(values) if streamed else rows._replace(values=values)


def _values(given: np.ndarray, before: Any, after: Any) -> np.ndarray | None:
    """Return a table of rates at other rates, or None where it does not tell the events."""
    if after.classes is None:
        values = coded_values(after.shares, after.rates)
        return values if len(values) == len(given) else None
    lengths = after.space.classes
    products = different_products(given, before.portions, before.arrival_rate, lengths)
    return None if products is None else table_values(products, after.arrival_rate, after.rates, lengths)
