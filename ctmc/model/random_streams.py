"""Streams of random numbers for compiled loops: xoshiro256++, 32 bytes of state a stream, about a nanosecond a word.

Source: D. Blackman, S. Vigna, *Scrambled linear pseudorandom number generators*, ACM Transactions on Mathematical Software 47
(2021).  The states of different streams come from NumPy's `SeedSequence`, which spreads a seed over all bits.

Whole numbers below a bound are exactly uniform (D. Lemire, *Fast random integer generation in an interval*, ACM Transactions on
Modeling and Computer Simulation 29 (2019)); random numbers are unsigned throughout, since Numba makes a float of a sum of
signed and unsigned ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ctmc.model.products import compiled

_U11, _U17, _U23, _U32 = np.uint64(11), np.uint64(17), np.uint64(23), np.uint64(32)
_U41, _U45, _U19 = np.uint64(41), np.uint64(45), np.uint64(19)
_LAYER = np.uint64(255)
REFUSED = np.uint64(0xFFFFFFFFFFFFFFFF)
_U1, _LOW = np.uint64(1), np.uint64(0xFFFFFFFF)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_U30, _U27, _U31 = np.uint64(30), np.uint64(27), np.uint64(31)


def spawn_streams(seed: int, first: int, replications: int, streams: int) -> np.ndarray:
    """Return the states of independent streams; those of a replication depend on the seed and its number only.

    Parameters
    ----------
    seed : int
        Not negative.
    first : int
        Number of the first replication.
    replications, streams : int
        How many, and how many streams for each.

    Returns
    -------
    ndarray of uint64, shape (replications, streams, 4)

    Examples
    --------
    >>> streams = spawn_streams(2025, 0, 3, 2)
    >>> bool((streams[2] == spawn_streams(2025, 2, 1, 2)[0]).all()), len(np.unique(streams))
    (True, 24)
    """
    states = [
        np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(4 * streams, np.uint64)
        for number in range(first, first + replications)
    ]
    return np.array(states).reshape(replications, streams, 4)


@compiled
def next_word(streams: Any, k: int) -> Any:
    """Return the next 64 random bits of stream k; `streams` has the shape (streams, 4)."""
    a, b, c, d = streams[k, 0], streams[k, 1], streams[k, 2], streams[k, 3]
    mixed = a + d
    word = ((mixed << _U23) | (mixed >> _U41)) + a
    shifted = b << _U17
    c ^= a
    d ^= b
    b ^= c
    a ^= d
    c ^= shifted
    d = (d << _U45) | (d >> _U19)
    streams[k, 0], streams[k, 1], streams[k, 2], streams[k, 3] = a, b, c, d
    return word


@compiled
def uniform(streams: Any, k: int) -> Any:
    """Return a number in (0, 1], a multiple of 2^-53."""
    return np.float64((next_word(streams, k) >> _U11) + _U1) * 2.0**-53


def _ziggurat() -> tuple[np.ndarray, np.ndarray]:
    """Return widths and heights of 256 layers of equal area under exp(-x), the lowest one with the tail first."""
    edge, area = 7.69711747013104972, 0.0039496598225815571993
    widths = np.empty(257)
    widths[0], widths[1], widths[256] = area * math.exp(edge), edge, 0.0
    for k in range(2, 256):
        widths[k] = -math.log(math.exp(-widths[k - 1]) + area / widths[k - 1])
    return widths, np.exp(-widths)


_WIDTHS, _HEIGHTS = _ziggurat()


@compiled
def exponential(streams: Any, k: int) -> Any:
    """Return an exponential number with mean 1, by the ziggurat: 4 ns in place of the 7 of a logarithm.

    Source: G. Marsaglia, W. W. Tsang, *The ziggurat method for generating random variables*, Journal of Statistical Software 5
    (2000).
    """
    beyond = 0.0
    while True:
        word = next_word(streams, k)
        layer = word & _LAYER
        number = np.float64(word >> _U11) * 2.0**-53 * _WIDTHS[layer]
        if number < _WIDTHS[layer + _U1]:
            return beyond + number
        if layer == 0:
            beyond += _WIDTHS[1]  # the tail is an exponential number again
        else:
            low, high = _HEIGHTS[layer], _HEIGHTS[layer + _U1]
            if low + uniform(streams, k) * (high - low) < math.exp(-number):
                return beyond + number


@compiled
def refused_below(size: Any) -> Any:
    """Return the threshold that `index_of_half` wants for numbers below `size`: 2^32 mod size."""
    return (_U1 << _U32) % np.uint64(size)


@compiled
def index_of_half(half: Any, size: Any, threshold: Any) -> Any:
    """Return a number from 0 to size - 1 made of 32 random bits, or `REFUSED` where these must be thrown away to be fair."""
    product = half * size
    if (product & _LOW) < threshold:
        return REFUSED
    return product >> _U32


@compiled
def word_after(key: Any, number: Any) -> Any:
    """Return word `number` of the sequence that a random key begins: the key itself, then SplitMix64 from there.

    Two simulations that draw the same key, and need different numbers of words, agree as far as both go.
    """
    if number == 0:
        return key
    word = key + np.uint64(number) * _GOLDEN
    word = (word ^ (word >> _U30)) * _FIRST
    word = (word ^ (word >> _U27)) * _SECOND
    return word ^ (word >> _U31)


@compiled
def half_of(key: Any, number: Any) -> Any:
    """Return half word `number`, 32 bits, of the sequence that a key begins."""
    word = word_after(key, number >> 1)
    return word >> _U32 if number & 1 else word & _LOW
