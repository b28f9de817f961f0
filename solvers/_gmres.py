"""One cycle of restarted GMRES on a map."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse.linalg import LinearOperator, gmres
from threadpoolctl import threadpool_limits


def cycle(
    operator: Callable[[np.ndarray], np.ndarray], residual: np.ndarray, target: float, steps: int
) -> tuple[np.ndarray, int]:
    """Return the correction whose image is near the residual, and the number of steps made, at least 1.

    Parameters
    ----------
    operator : callable
        Maps a vector of shape (n,) to one.
    residual : ndarray, shape (n,)
    target : float
        The Euclidean norm of what may be left.
    steps : int
        The most that are made; needs as many vectors.

    Examples
    --------
    >>> correction, steps = cycle(lambda x: np.array([2.0, 4.0]) * x, np.array([2.0, 2.0]), 1e-12, 30)
    >>> correction.round(12).tolist(), steps
    ([1.0, 0.5], 2)
    """
    made = 0

    def count(norm: float) -> None:
        nonlocal made
        made += 1

    n = len(residual)
    with threadpool_limits(limits=1, user_api="blas"):  # vector work: more threads only wait for each other
        correction, _ = gmres(
            LinearOperator((n, n), matvec=lambda x: operator(x.ravel())), residual, rtol=0, atol=target,
            restart=min(steps, n), maxiter=1, callback=count, callback_type="pr_norm",
        )  # fmt: skip
    return correction, max(made, 1)
