"""The decay rate of a stable QBD (caudal characteristic), found from the blocks alone."""

from __future__ import annotations

import numpy as np

from ctmc.model.qbd import QBD


def decay_rate(queue: QBD) -> float:
    """Return the decay rate: the root z < 1 of chi(z) = 0, the Perron eigenvalue of up / z + local + z down.

    chi is convex in log z, zero at z = 1 and rising there when the QBD is stable; Newton's method from a point to the
    left of the root rises to it.  Dense eigenvalues, some ten times 25 m^3 multiplications.

    Source: M. F. Neuts, *The caudal characteristic curve of queues*, Advances in Applied Probability 18 (1986) 221-254,
    doi:10.2307/1427244.

    Returns
    -------
    float
        Between 0 and 1; 0 where the level cannot rise, 1 (up to rounding) where the QBD is not stable.

    Examples
    --------
    >>> round(decay_rate(QBD.from_blocks([[0.3]], [[-1.3]], [[1.0]])), 12)
    0.3
    """
    up, local, down = (block.toarray() for block in (queue.up, queue.local, queue.down))
    if not up.any():
        return 0.0

    def perron(z: float) -> tuple[float, float]:
        matrix = up / z + local + z * down
        values, vectors = np.linalg.eig(matrix)
        chosen = int(np.argmax(values.real))
        right = np.abs(vectors[:, chosen])
        values_left, vectors_left = np.linalg.eig(matrix.T)
        left = np.abs(vectors_left[:, int(np.argmax(values_left.real))])
        return float(values[chosen].real), float(left @ (z * down - up / z) @ right / (left @ right))

    z = 0.5
    while perron(z)[0] <= 0:
        z /= 2
        if z < 1e-300:
            return 0.0
    while True:
        value, slope = perron(z)
        if not (value > 0 and slope < 0):
            return min(z, 1.0)
        step = float(np.exp(min(-value / slope, 50.0)))
        if z * step >= 1:
            return 1.0
        if step <= 1 + 4e-16:
            return z
        z *= step
