"""Courtois's chain of eight states in three blocks, the published example of near decomposability."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctmc
from ctmc.model.generator import Generator
from ctmc.model.parameters import positive_rate
from ctmc.model.reward import Reward
from ctmc.model.state_space import Listed, Variable

_BLOCKS = (3, 2, 3)
_STEPS = (
    (0.85, 0.0, 0.149, 0.0009, 0.0, 0.00005, 0.0, 0.00005),
    (0.1, 0.65, 0.249, 0.0, 0.0009, 0.00005, 0.0, 0.00005),
    (0.1, 0.8, 0.0996, 0.0003, 0.0, 0.0, 0.0001, 0.0),
    (0.0, 0.0004, 0.0, 0.7, 0.2995, 0.0, 0.0001, 0.0),
    (0.0005, 0.0, 0.0004, 0.399, 0.6, 0.0001, 0.0, 0.0),
    (0.0, 0.00005, 0.0, 0.0, 0.00005, 0.6, 0.2499, 0.15),
    (0.00003, 0.0, 0.00003, 0.00004, 0.0, 0.1, 0.8, 0.0999),
    (0.0, 0.00005, 0.0, 0.0, 0.00005, 0.1999, 0.25, 0.55),
)
"""Probabilities of a step."""


def _dress(model: Generator, coupling: float = 1.0) -> Generator:
    def here(states: np.ndarray) -> np.ndarray:
        return np.asarray(states[:, :1] == np.arange(len(_BLOCKS)))

    def measures(solution: ctmc.Solution) -> dict[str, Any]:
        return {"block_probability": solution.expected("block_state")}

    return model.replace(rewards={"block_state": Reward(here, "per block, 1 while it is there")}, measures=measures)


@ctmc.builder(version=1, dress=_dress)
def courtois(coupling: float = 1.0) -> Generator:
    """Courtois's chain: eight states in blocks of three, two and three, which a step leaves with probability 0.001 at most.

    Parameters
    ----------
    coupling : float
        Factor of the rates between blocks, positive; 1 as published.

    Returns
    -------
    Generator
        States (``block``, ``place``); the unit of time is a step, so the published rates are probabilities.  Reward:
        block_state.  Measure: block_probability, shape (3,).

    Raises
    ------
    ModelError
        If the coupling is not positive and finite.

    Notes
    -----
    Source: P. J. Courtois, *Decomposability*, Academic Press 1977; with the stationary vector in W. J. Stewart, *Introduction to
    the Numerical Solution of Markov Chains*, Princeton 1994.  `nearly_decomposable` makes larger chains.

    Examples
    --------
    >>> ctmc.solve(ctmc.Stationary(courtois()), "gth").value.round(5).tolist()
    [0.08928, 0.09276, 0.04049, 0.15853, 0.11894, 0.12039, 0.2778, 0.10182]

    On the command line: ``ctmc build courtois -o courtois.h5``
    """
    factor = positive_rate("coupling", coupling)
    block = np.repeat(np.arange(len(_BLOCKS)), _BLOCKS)
    rates = np.array(_STEPS) * np.where(block[:, None] == block, 1.0, factor)
    np.fill_diagonal(rates, 0.0)
    states = np.array([(block, place) for block, size in enumerate(_BLOCKS) for place in range(size)])
    return Generator.from_matrix(rates, Listed(states, (Variable("block"), Variable("place"))), initial=[0, 0])
