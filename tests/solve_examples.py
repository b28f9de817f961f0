"""A small queue and its distribution."""

from __future__ import annotations

import numpy as np

from ctmc.model.generator import Generator
from ctmc.problem import Stationary


def queue(capacity=8, load=0.5):
    return Generator.from_matrix(np.diag(np.full(capacity, load), 1) + np.diag(np.ones(capacity), -1))


def known(capacity=8, load=0.5):
    weights = load ** np.arange(capacity + 1)
    return weights / weights.sum()


def two_queues():
    """Two queues of six states behind a state that chooses one of them."""
    rates = np.zeros((13, 13))
    rates[0, [1, 7]] = 1.0, 3.0
    for begin in (1, 7):
        part = slice(begin, begin + 6)
        rates[part, part] = np.diag(np.full(5, 0.7), 1) + np.diag(np.ones(5), -1)
    return Stationary(Generator.from_matrix(rates), initial=(0,))
