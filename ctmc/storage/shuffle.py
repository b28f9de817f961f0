"""HDF5's byte shuffle: all first bytes of the elements, then all second bytes, and so on.  Memory-bound kernels."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

_STEP = np.uint64(2048)  # elements per round, so that they stay in the first-level cache for all planes


@numba.njit(cache=True, nogil=True)
def shuffle(words: NDArray[Any], planes: NDArray[np.uint8], length: int) -> None:
    """Write byte j of element i to planes[j * length + i]; moves 2 bytes per byte.

    Parameters
    ----------
    words : ndarray of unsigned integers, shape (n,)
        n <= length.
    planes : ndarray of uint8, shape (length * itemsize,)
        Left as it is beyond element n of each plane.
    length : int
        Number of elements of a full chunk.
    """
    plane = np.uint64(length)
    width = np.uint64(planes.size) // plane
    for start in range(np.uint64(0), np.uint64(words.size), _STEP):
        stop = min(np.uint64(words.size), start + _STEP)
        for byte in range(width):
            shift = np.uint64(8) * byte
            for index in range(start, stop):
                planes[byte * plane + index] = np.uint8(np.uint64(words[index]) >> shift)


@numba.njit(cache=True, nogil=True)
def unshuffle(planes: NDArray[np.uint8], words: NDArray[Any], length: int) -> None:
    """Fill the elements from their planes, the inverse of `shuffle`; moves 2 bytes per byte."""
    plane = np.uint64(length)
    width = np.uint64(planes.size) // plane
    for start in range(np.uint64(0), np.uint64(words.size), _STEP):
        stop = min(np.uint64(words.size), start + _STEP)
        for index in range(start, stop):
            words[index] = planes[index]
        for byte in range(np.uint64(1), width):
            shift = np.uint64(8) * byte
            for index in range(start, stop):
                words[index] |= np.uint64(planes[byte * plane + index]) << shift
