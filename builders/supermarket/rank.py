"""Rank probabilities: how often the i-th best server gets a job that samples d of M servers.

Source: the same paper as `selection`, equation (3), after A. J. E. M. Janssen's lemma; the form for sampling with
replacement is an extension.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import comb

import numpy as np

SAMPLINGS = ("without_replacement", "with_replacement")


def best_within(servers: int, choices: int, sampling: str) -> list[Fraction]:
    """Return for m = 0 .. M the probability that the best sampled server is one of the m best of all.

    Examples
    --------
    >>> [str(p) for p in best_within(3, 2, "without_replacement")]
    ['0', '2/3', '1', '1']
    """
    if sampling == "without_replacement":
        return [1 - Fraction(comb(servers - m, choices), comb(servers, choices)) for m in range(servers + 1)]
    return [1 - Fraction(servers - m, servers) ** choices for m in range(servers + 1)]


def rank_probabilities(servers: int, choices: int, sampling: str) -> list[Fraction]:
    """Return k(M, i, d) for i = 1 .. M, exactly.

    Without replacement C(M - i, d - 1) / C(M, d); with replacement ((M - i + 1)^d - (M - i)^d) / M^d.

    Parameters
    ----------
    servers, choices : int
        M and d.
    sampling : str
        'without_replacement' or 'with_replacement'.

    Examples
    --------
    >>> [str(p) for p in rank_probabilities(3, 2, "with_replacement")]
    ['5/9', '1/3', '1/9']
    """
    within = best_within(servers, choices, sampling)
    return [within[m + 1] - within[m] for m in range(servers)]


@lru_cache(maxsize=16)  # a search asks for the same one for every candidate
def shared_probabilities(servers: int, choices: int, sampling: str) -> tuple[tuple[Fraction, ...], ...]:
    """Return the table whose entry [better][tied] is the share of a server that `better` ones beat and `tied` ones,
    itself included, tie with: the average of k over the ranks that the tied group occupies.

    Examples
    --------
    >>> str(shared_probabilities(3, 2, "without_replacement")[1][2])
    '1/6'
    """
    within = best_within(servers, choices, sampling)
    return tuple(
        tuple(
            (within[better + tied] - within[better]) / tied if tied and better + tied <= servers else Fraction(0)
            for tied in range(servers + 1)
        )
        for better in range(servers + 1)
    )


def stability_notes(
    arrival_rate: float, service_rates: np.ndarray, choices: int, sampling: str, fixed_arrivals: np.ndarray | None
) -> list[str]:
    """Return why the untruncated model is not stable; empty where no necessary condition fails.

    Parameters
    ----------
    arrival_rate : float
    service_rates : ndarray, shape (M,)
    choices : int
    sampling : str
    fixed_arrivals : ndarray, shape (M,), optional
        Arrival rate at each server where the rule does not look at the queue lengths.
    """
    servers = len(service_rates)
    within = best_within(servers, choices, sampling)
    slowest = np.sort(service_rates)
    for count in range(1, servers + 1):
        inside = 1 - within[servers - count]  # all sampled servers are among the `count` worst ranks
        load, service = arrival_rate * float(inside), slowest[:count].sum()
        if load >= service:
            return [
                f"Unstable without truncation: jobs that sample only the {count} slowest servers arrive at rate {load:.6g}, "
                f"not below their service rate {service:.6g}; the truncated model is no approximation of the untruncated one."
            ]
    for i, load in enumerate([] if fixed_arrivals is None else fixed_arrivals):
        if load >= service_rates[i]:
            return [
                f"Unstable without truncation: server {i} gets jobs at the fixed rate {load:.6g}, not below its service rate "
                f"{service_rates[i]:.6g}; the truncated model is no approximation of the untruncated one."
            ]
    return []
