"""The value of a policy in the decision process of the fork-join queue, and relative values of all its states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import splu

from builders.fork_join.decisions import KEEP, Decisions


@dataclass(frozen=True, kw_only=True)
class PolicyValue:
    """What a policy costs.

    Attributes
    ----------
    jobs : float
        Mean number of jobs in the system.
    response_time : float
        Mean, by Little's law.
    last_level : int
        Number of waiting jobs at which the queue is cut.
    last_level_mass : float
        Probability of that level.
    """

    jobs: float
    response_time: float
    last_level: int
    last_level_mass: float


def _after(process: Decisions, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the decisions in each state end, one task after the other, and what is charged on the way."""
    here = np.arange(process.size)
    sends = actions != KEEP
    step, charge = here.copy(), np.zeros(process.size)
    step[sends] = process.sent[actions[sends], here[sends]]
    charge[sends] = process.charges[actions[sends], here[sends]]
    end, charged = here, np.zeros(process.size)
    for _ in range(process.rules.servers):
        charged, end = charged + charge[end], step[end]
    return end, charged


def evaluate(process: Decisions, actions: np.ndarray) -> tuple[PolicyValue, np.ndarray, np.ndarray]:
    """Return the value of a policy, relative values of all states, and their stationary probabilities.

    Parameters
    ----------
    process : Decisions
    actions : ndarray of int, shape (n,)
        Server to which the front task goes in each state, or `KEEP`.

    Returns
    -------
    PolicyValue
    h : ndarray, shape (n,)
        What a start in a state costs more than a start in the empty system; before the next event no task is sent.
    weights : ndarray, shape (n,)

    Examples
    --------
    >>> from builders.fork_join.rules import Rules
    >>> process = Decisions(Rules(np.array([2.0]), 1.0, 1, [1]), 60)
    >>> value, h, weights = evaluate(process, process.threshold_policy([1]))
    >>> print(f"{value.jobs:.6f} {weights[0]:.6f}")
    1.000000 0.500000
    """
    rules = process.rules
    end, charged = _after(process, actions)
    kept = np.unique(end)  # the first is the empty system, in which nothing can be sent
    place = np.full(process.size, -1)
    place[kept] = np.arange(len(kept))
    rates = process.event_rates
    costs = process.costs + (rates * charged[process.events]).sum(axis=0)
    target, weight = place[end[process.events[:, kept]]], rates[:, kept]
    source = np.broadcast_to(np.arange(len(kept)), target.shape)
    moves = csr_array((weight.ravel(), (source.ravel(), target.ravel())), shape=(len(kept), len(kept)))
    # diagonal dominance by rows: no pivots are needed but those on the diagonal
    factors = splu((diags_array(weight.sum(axis=0)) - moves)[1:, 1:].tocsc(), diag_pivot_thresh=0.0)
    cost, time = factors.solve(np.column_stack([costs[kept][1:], np.ones(len(kept) - 1)])).T
    out = np.bincount(target[:, 0], weights=weight[:, 0], minlength=len(kept))[1:]
    mean = float((costs[kept[0]] + out @ cost) / (1.0 + out @ time))
    found = np.zeros(process.size)
    found[kept[1:]] = cost - mean * time
    h = (costs - mean + (rates * found[end[process.events]]).sum(axis=0)) / rates.sum(axis=0)
    h[kept] = found[kept]
    weights = np.zeros(process.size)
    weights[kept] = np.concatenate([[1.0], np.maximum(factors.solve(out, trans="T"), 0.0)])
    weights /= weights.sum()
    last = float(weights[process.lengths // rules.tasks == process.last_level].sum())
    value = PolicyValue(
        jobs=mean, response_time=mean / rules.arrival_rate, last_level=process.last_level, last_level_mass=last
    )
    return value, h, weights
