"""Random hard chains: no wrong answer is certified, and no bound is below the true error.

CTMC_CHAINS gives another number of chains, for a release; with -s, what was tried is told by kind.
"""

import os
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest

import ctmc
import exact_chains as exact
from ctmc.certificate import certify
from ctmc.problem import Stationary
from ctmc.solution import Outcome, Status
from hard_chains import hard_chain, wrong_answers

CHAINS = int(os.environ.get("CTMC_CHAINS", "200"))


def truth(hard):
    """The exact long-run distribution as decimals, its recurrent classes and transient states."""
    recurrent, transient = hard.classes()
    pi = [Decimal(0)] * hard.size
    weights = None
    if len(recurrent) > 1:
        entered = exact.ends(hard.begin, hard.end, hard.rates, hard.initial, transient)
        weights = [sum(entered[i] for i in members.tolist()) for members in recurrent]
    with exact.precise():
        for k, members in enumerate(recurrent):
            part = hard.matrix[members][:, members].tocoo()
            inside = exact.stationary(part.row, part.col, part.data, len(members))
            for i, p in zip(members.tolist(), inside, strict=True):
                pi[i] = p if weights is None else p * weights[k] / sum(weights)
    return pi, recurrent, transient


def error(answer, pi):
    with exact.precise():
        return float(sum(abs(Decimal(a) - p) for a, p in zip(answer.tolist(), pi, strict=True)))
