"""The states of each color numbered by themselves without a table: a bit for each state, and a count for every 64.

A table of numbers would take four bytes a state; this takes a quarter of one, and stays in the cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from ctmc.model.products import compiled, compiled_parallel
from ctmc.model.transitions import rate_at

_CHUNK = 1 << 12


class Colors(NamedTuple):
    """Two colors of the states.

    Attributes
    ----------
    words : ndarray of uint64, shape (ceil(n / 64),)
        Bit i & 63 of word i >> 6 is the color of state i.
    before : ndarray of uint64, shape (ceil(n / 64),)
        States of color 1 before each word.
    """

    words: Any
    before: Any


def numbered(colors: np.ndarray) -> Colors:
    """Return the numbering of the states of each color.

    Parameters
    ----------
    colors : ndarray of uint8, shape (n,)

    Examples
    --------
    >>> found = numbered(np.array([0, 1, 1, 0, 1], dtype=np.uint8))
    >>> [int(number_of(*found, np.uint64(i), np.uint64(color))) for i, color in enumerate([0, 1, 1, 0, 1])]
    [0, 0, 1, 1, 2]
    """
    packed = np.packbits(colors, bitorder="little")
    words = np.concatenate([packed, np.zeros(-len(packed) % 8, dtype=np.uint8)]).view("<u8").astype(np.uint64)
    ones = np.bitwise_count(words).astype(np.uint64)
    return Colors(words, np.concatenate([np.zeros(1, np.uint64), np.cumsum(ones)[:-1].astype(np.uint64)]))


@compiled
def number_of(words: Any, before: Any, i: Any, color: Any) -> Any:
    """Return the number of state i, of this color, among the states of its color."""
    place = i >> np.uint64(6)
    rest = words[place] & ((np.uint64(1) << (i & np.uint64(63))) - np.uint64(1))
    # ones in a word: sums of 2, 4 and 8 neighbouring bits, and all of them at once
    rest -= (rest >> np.uint64(1)) & np.uint64(0x5555555555555555)
    rest = (rest & np.uint64(0x3333333333333333)) + ((rest >> np.uint64(2)) & np.uint64(0x3333333333333333))
    rest = (rest + (rest >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    ones = before[place] + ((rest * np.uint64(0x0101010101010101)) >> np.uint64(56))
    return ones if color == np.uint64(1) else i - ones


@compiled_parallel
def gather_color(
    begin: Any, indptr: Any, sources: Any, codes: Any, rates: Any, words: Any, before: Any, color: Any, exit_rates: Any,
    x: Any, out: Any,
) -> None:  # fmt: skip
    """Set out_j = sum_i x_i rate(i, j) / q_j for the states j of a slab that have this color; x and out by number in it.

    Every transition changes the color.  Moves 12 bytes for each entry of half the rows.
    """
    other = np.uint64(1) - np.uint64(color)
    for row in numba.prange(indptr.size - 1):
        j = np.uint64(begin) + np.uint64(row)
        if (words[j >> np.uint64(6)] >> (j & np.uint64(63))) & np.uint64(1) == np.uint64(color):
            total = 0.0
            for k in range(indptr[row], indptr[row + 1]):
                total += x[number_of(words, before, np.uint64(sources[k]), other)] * rate_at(codes, rates, k)
            out[number_of(words, before, j, np.uint64(color))] = total / exit_rates[j]


@compiled_parallel
def take_color(words: Any, before: Any, color: Any, x: Any, half: Any) -> None:
    """Copy the elements of one color from the order of the states."""
    for chunk in numba.prange((x.size + _CHUNK - 1) // _CHUNK):
        for i in range(np.uint64(chunk * _CHUNK), np.uint64(min((chunk + 1) * _CHUNK, x.size))):
            if (words[i >> np.uint64(6)] >> (i & np.uint64(63))) & np.uint64(1) == np.uint64(color):
                half[number_of(words, before, i, np.uint64(color))] = x[i]


@compiled_parallel
def put_color(words: Any, before: Any, color: Any, half: Any, x: Any) -> None:
    """Copy the elements of one color back into the order of the states."""
    for chunk in numba.prange((x.size + _CHUNK - 1) // _CHUNK):
        for i in range(np.uint64(chunk * _CHUNK), np.uint64(min((chunk + 1) * _CHUNK, x.size))):
            if (words[i >> np.uint64(6)] >> (i & np.uint64(63))) & np.uint64(1) == np.uint64(color):
                x[i] = half[number_of(words, before, i, np.uint64(color))]
