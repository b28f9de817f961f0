"""What HDF5's filters do to a chunk, in parallel: byte shuffle, deflate and Fletcher32.

HDF5 runs its filters in one thread and under a global lock.  Here `pack` and `unpack` do the same outside of it: zlib,
NumPy and the kernels release Python's lock, so that a pool of threads works on several chunks at once.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 1  # of deflate: 2 and 3 are as fast and save 3 % at most, 6 saves half but takes twice as long
_BLOCK = 4096  # words that Fletcher32 sums at once: 4096^2 / 2 * 65535 is far below 2^63
_WEIGHTS = np.arange(_BLOCK, 0, -1, dtype=np.int64)


def pack(values: NDArray[Any], length: int) -> bytes:
    """Return a chunk as HDF5 stores it after shuffle, deflate and Fletcher32.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Contiguous and little-endian, n <= length.
    length : int
        Number of elements of a full chunk; the rest is filled with zeros.
    """
    width = values.dtype.itemsize
    planes = np.zeros(length * width, dtype=np.uint8)
    if width == 1:
        planes[: values.size] = values.view(np.uint8)
    else:
        from ctmc.storage.shuffle import shuffle

        shuffle(_words(values), planes, length)
    body = zlib.compress(planes, LEVEL)
    return body + fletcher32(body).to_bytes(4, "little")


def unpack(stored: bytes, values: NDArray[Any], length: int) -> None:
    """Fill `values` from a chunk as HDF5 stores it; the inverse of `pack`.

    Never inflates to more than a full chunk.  The Adler-32 checksum at the end of the deflate stream is not looked at:
    it would take twice as long as all the rest, and protects nothing that Fletcher32 and the content hash do not.

    Raises
    ------
    ValueError, zlib.error
        The checksum does not match, or it is not a deflate stream of a full chunk.
    """
    width = values.dtype.itemsize
    body = memoryview(stored)[:-4]
    if len(stored) < 10 or fletcher32(body) != int.from_bytes(stored[-4:], "little"):
        raise ValueError("its checksum does not match")
    if body[0] & 15 != zlib.DEFLATED or body[1] & 32 or (body[0] << 8 | body[1]) % 31:
        raise ValueError("it is not a deflate stream")
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    planes = inflater.decompress(body[2:], length * width + 1)
    if len(planes) != length * width or not inflater.eof or len(inflater.unused_data) != 4:
        raise ValueError("it does not inflate to the size of a chunk")
    if width == 1:
        values.view(np.uint8)[:] = np.frombuffer(planes, dtype=np.uint8, count=values.size)
    else:
        from ctmc.storage.shuffle import unshuffle

        unshuffle(np.frombuffer(planes, dtype=np.uint8), _words(values, writeable=True), length)


def fletcher32(data: bytes | memoryview) -> int:
    """Return the Fletcher32 checksum of HDF5: 16-bit big-endian words, sums modulo 65535 in 1..65535 unless zero.

    Examples
    --------
    >>> hex(fletcher32(b"abcde"))
    '0x29290c6c8'
    """
    words = np.zeros(-(-len(data) // 2), dtype=">u2")
    words.view(np.uint8)[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    # Leading zeros change neither sum, so the words are filled up at the front to whole blocks.
    blocks = np.zeros((-(-words.size // _BLOCK), _BLOCK), dtype=np.int64)
    blocks.reshape(-1)[blocks.size - words.size :] = words
    first = second = 0
    for plain, weighted in zip(blocks.sum(axis=1).tolist(), (blocks @ _WEIGHTS).tolist(), strict=True):
        second += _BLOCK * first + weighted
        first += plain
    return _folded(second) << 16 | _folded(first)


def _folded(total: int) -> int:
    return (total - 1) % 65535 + 1 if total else 0


def _words(values: NDArray[Any], writeable: bool = False) -> NDArray[Any]:
    """Return the same bytes as unsigned integers, always read-only or always not, so that kernels compile once."""
    words = values.view(f"<u{values.dtype.itemsize}")
    words.flags.writeable = writeable
    return words
