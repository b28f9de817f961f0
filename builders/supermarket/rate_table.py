"""The different rates of a lumped supermarket, event by event, in an order that no rate decides.

Arrivals come first: the arrival rate times a share times a number of servers, ascending by the product of the two, which no
rate enters.  Then, class by class, the completions of one and more servers.  So equal rates of an arrival and a completion
keep codes of their own, and the same codes serve at every arrival rate and every service rate of a class.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rate_table(
    used: np.ndarray, shares: np.ndarray, arrival_rate: float, service_rates: np.ndarray, classes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the codes of arrivals and of completions, and the rate of each code.

    Parameters
    ----------
    used : ndarray of uint8, shape (M + 1, M + 1, most + 1)
        Whether an arrival occurs, by the number of better and of tied servers and of servers that make the same step.
    shares : ndarray, shape (M + 1, M + 1)
        Share of the arrivals that a server gets, by the number of better and of tied servers.
    arrival_rate : float
    service_rates : ndarray, shape (M,)
        By coordinate.
    classes : sequence of int
        Lengths of the classes.

    Returns
    -------
    of_arrivals : ndarray of uint8, uint16 or uint32, shape as `used`
    of_services : ndarray of the same type, shape (M, most + 1)
    values : ndarray of float64

    Examples
    --------
    >>> rate_table(np.ones((2, 2, 2)), np.array([[0.0, 1.0], [0.0, 0.0]]), 3.0, np.array([2.0]), [1])[2].tolist()
    [3.0, 2.0]
    """
    most = used.shape[2] - 1
    products = _products(shares, most)
    occur = (used > 0) & (products > 0)
    different, places = np.unique(products[occur], return_inverse=True)
    values = table_values(different, arrival_rate, service_rates, classes)
    narrow = np.min_scalar_type(len(values) - 1)
    of_arrivals = np.zeros(used.shape, dtype=narrow)
    of_arrivals[occur] = places
    of_services = np.zeros((len(service_rates), most + 1), dtype=narrow)
    first, server = len(different), 0
    for length in classes:
        of_services[server : server + length, 1 : length + 1] = first + np.arange(length)
        first, server = first + length, server + length
    return of_arrivals, of_services, values


def table_values(
    different: np.ndarray, arrival_rate: float, service_rates: np.ndarray, classes: Sequence[int]
) -> np.ndarray:
    """Return the rate of each code: those of arrivals, by their different products, then those of completions."""
    firsts = np.cumsum([0, *classes[:-1]])
    services = [service_rates[i] * np.arange(1, length + 1) for i, length in zip(firsts, classes, strict=True)]
    return np.concatenate([arrival_rate * different, *services])


def different_products(
    values: np.ndarray, shares: np.ndarray, arrival_rate: float, classes: Sequence[int]
) -> np.ndarray | None:
    """Return which products a table of rates was made of, or None where rounding makes several equal."""
    arrivals = values[: len(values) - sum(classes)]
    products = _products(shares, max(classes))
    candidates = np.unique(products[products > 0])
    found = candidates[np.isin(arrival_rate * candidates, arrivals)]
    return found if np.array_equal(arrival_rate * found, arrivals) else None


def _products(shares: np.ndarray, most: int) -> np.ndarray:
    return np.asarray(shares[:, :, None] * np.arange(most + 1))
