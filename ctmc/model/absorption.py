"""Where a chain with several recurrent classes ends up."""

from __future__ import annotations

import math

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import splu

from ctmc.model.class_factors import class_factors, class_order
from ctmc.model.elimination import gth
from ctmc.model.generator import Generator

SMALL = 1000
"""Up to this many transient states and classes elimination is used, which cannot be inaccurate."""

_EPSILON = float(np.finfo(np.float64).eps)


def class_weights(chain: Generator, begin: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the probability to end in each recurrent class, and bounds on the L1 error of these: what is seen, and rounding.

    Up to 1000 transient states and classes: elimination on the chain that starts again from `begin` whenever it reaches a
    class; the classes are then visited in proportion to the weights.  No number is subtracted, so the weights are right to
    rounding however slowly some transient states are left, and the bounds are 0.

    Above: with y >= 0 the expected times in the transient states T, y Q_TT = -p_T, and the weights are p_C + y Q_TC.  Where that takes
    few multiplications the transient states are eliminated class by class, which does not subtract either; else by SuperLU.  The
    residual of the first equation, in L1, bounds the error of the weights, since the missing mass ends somewhere; the
    rounding in the residual itself, (terms + 2) eps |y| |Q_TT|, is the other bound.  Where states are left at 1e-14 of their exit
    rates y is so large that it says nothing; without subtraction there is another bound beforehand (`ClassFactors.error`).

    Parameters
    ----------
    chain : Generator
    begin : ndarray, shape (n,)
        Initial distribution.

    Returns
    -------
    weights : ndarray, shape (recurrent classes,)
        In the order of `chain.classes.recurrent`.
    residual, rounding : float
        The error is at most their sum.

    Examples
    --------
    >>> chain = Generator.from_matrix([[0, 1e-14, 2e-14, 5.0], [0] * 4, [0] * 4, [3.0, 0, 0, 0]])   # slowly to 1 or 2
    >>> weights, *bounds = class_weights(chain, np.array([1.0, 0, 0, 0]))
    >>> weights.round(12).tolist(), bounds
    ([0.333333333333, 0.666666666667], [0.0, 0.0])
    """
    found = chain.classes
    count = len(found.recurrent)
    number = np.full(found.count, -1)
    number[found.recurrent] = np.arange(count)
    ends_in = number[found.class_of]
    transient = np.flatnonzero(ends_in < 0)
    weights = np.bincount(ends_in[ends_in >= 0], weights=begin[ends_in >= 0], minlength=count)
    if count == 1:
        return np.ones(1), 0.0, 0.0
    if not begin[transient].any():
        return weights / weights.sum(), 0.0, 0.0
    rates = chain.to_scipy()[transient]
    inside, outside = rates[:, transient], rates[:, ends_in >= 0]
    outside = outside.tocoo()
    if len(transient) + count <= SMALL:
        # state 0 starts anew, then the classes, then the transient states
        again = np.zeros((1 + count + len(transient),) * 2)
        again[0, 1 : 1 + count], again[0, 1 + count :] = weights, begin[transient]
        again[1 : 1 + count, 0] = 1.0
        again[1 + count :, 1 + count :] = inside.toarray()
        into = ends_in[ends_in >= 0][outside.coords[1]]
        np.add.at(again, (1 + count + outside.coords[0], 1 + into), outside.data)
        visits = gth(again)[1 : 1 + count]
        return visits / visits.sum(), 0.0, 0.0
    between = csr_array(inside, copy=True)
    between.setdiag(0)
    between.eliminate_zeros()
    order = class_order(between)
    if order.is_cheap:
        factors = class_factors(between, np.asarray(outside.sum(axis=1)).ravel(), order)
        times, beforehand = factors.solve_left(begin[transient]), factors.error
    else:
        beforehand = math.inf
        times = np.maximum(splu(inside.T.tocsc()).solve(-begin[transient]), 0)
    residual = float(np.abs(times @ inside + begin[transient]).sum())
    terms = np.diff(inside.tocsc().indptr)
    rounding = _EPSILON * float(((times @ abs(inside)) * (terms + 2)).sum())
    weights += np.bincount(
        ends_in[ends_in >= 0][outside.coords[1]],
        weights=outside.data * times[outside.coords[0]],
        minlength=count,
    )
    residual += abs(float(weights.sum()) - 1)
    if beforehand < residual + rounding:
        residual, rounding = 0.0, beforehand
    return weights / weights.sum(), residual, rounding
