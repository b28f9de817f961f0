"""What HDF5's filters do to a chunk, in parallel: byte shuffle, deflate and Fletcher32.

HDF5 runs its filters in one thread and under a global lock.  Here `pack` and `unpack` do the same outside of it: zlib
and the kernels release Python's lock, so that a pool of threads works on several chunks at once.
"""

from __future__ import annotations

import zlib
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

try:  # the same streams, inflated in 40 % and deflated in 25 % of the time: extra `fast`
    from isal import isal_zlib as _zlib

    _probe = _zlib.decompressobj(-zlib.MAX_WBITS)
    _probe.decompress(b"\x03\x00rest")
    if _probe.unused_data != b"rest":  # before 1.9 it swallows what follows a stream, so `unpack` would find no end
        raise ImportError
except ImportError:
    import zlib as _zlib  # type: ignore[no-redef]  # has the same names

# of deflate: 2 and 3 of zlib are as fast as 1 and save 3 % at most, 6 saves half but takes twice as long
LEVEL = 1 if _zlib is zlib else 2
_MEMORY = (
    7 if _zlib is zlib else 9
)  # of deflate, 1 to 9: a smaller hash table than the usual 8 stays in the cache, 20 % faster
_DAMAGED: Any = _zlib.error
_PROBE_BYTES = 64 * 1024
_STEP = np.uint64(2048)  # elements per round of a shuffle: they stay in the first-level cache for all planes
_BLOCK = np.uint64(2**14)  # words per round of Fletcher32: their weighted sum is below 2^44
_ONE, _BYTE, _MODULUS = np.uint64(1), np.uint64(8), np.uint64(65535)


def pack(values: NDArray[Any], length: int) -> bytes:
    """Return a chunk as HDF5 stores it after shuffle, deflate and Fletcher32.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Contiguous and little-endian, n <= length.
    length : int
        Number of elements of a full chunk; the rest is filled with zeros.
    """
    planes = np.empty(length * values.dtype.itemsize, dtype=np.uint8)
    if values.size < length:
        planes[:] = 0
    shuffle(_words(values), planes, length)
    # One deflate stream, put together from independent pieces that end on whole bytes; an empty last block ends it.
    pieces = [b"\x78\x01"]
    for plane in planes.reshape(values.dtype.itemsize, length):
        pieces += _deflated(plane.data)
    pieces += [b"\x03\x00", zlib.adler32(planes.data).to_bytes(4, "big")]
    body = b"".join(pieces)
    return body + int(fletcher32(np.frombuffer(body, dtype=np.uint8))).to_bytes(4, "little")


def unpack(stored: bytes, values: NDArray[Any], length: int) -> None:
    """Fill `values` from a chunk as HDF5 stores it; the inverse of `pack`.

    Never inflates to more than a full chunk.  The Adler-32 checksum at the end of the deflate stream is not looked at:
    it would take twice as long as all the rest, and protects nothing that Fletcher32 and the content hash do not.

    Raises
    ------
    ValueError
        The checksum does not match, or it is not a deflate stream of a full chunk.
    """
    size = length * values.dtype.itemsize
    body = memoryview(stored)[:-4]
    if len(body) < 8 or fletcher32(np.frombuffer(body, dtype=np.uint8)) != int.from_bytes(stored[-4:], "little"):
        raise ValueError("its checksum does not match")
    if body[0] & 15 != zlib.DEFLATED or body[1] & 32 or (body[0] << 8 | body[1]) % 31:
        raise ValueError("it is not a deflate stream")
    try:
        inflater = _zlib.decompressobj(-zlib.MAX_WBITS)
        planes = inflater.decompress(body[2:], size + 1)
    except _DAMAGED as error:
        raise ValueError(f"it does not inflate: {error}") from error
    if len(planes) != size or not inflater.eof or len(inflater.unused_data) != 4:
        raise ValueError("it does not inflate to the size of a chunk")
    unshuffle(np.frombuffer(planes, dtype=np.uint8), _words(values, writeable=True), length)


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
    for start in range(np.uint64(0), np.uint64(words.size), _STEP):
        stop = min(np.uint64(words.size), start + _STEP)
        for byte in range(np.uint64(planes.size) // plane):
            for index in range(start, stop):
                planes[byte * plane + index] = np.uint8(np.uint64(words[index]) >> _BYTE * byte)


@numba.njit(cache=True, nogil=True)
def unshuffle(planes: NDArray[np.uint8], words: NDArray[Any], length: int) -> None:
    """Fill the elements from their planes, the inverse of `shuffle`; moves 2 bytes per byte."""
    plane = np.uint64(length)
    for start in range(np.uint64(0), np.uint64(words.size), _STEP):
        stop = min(np.uint64(words.size), start + _STEP)
        for index in range(start, stop):
            words[index] = planes[index]
        for byte in range(_ONE, np.uint64(planes.size) // plane):
            for index in range(start, stop):
                words[index] |= np.uint64(planes[byte * plane + index]) << _BYTE * byte


@numba.njit(cache=True, nogil=True)
def fletcher32(data: NDArray[np.uint8]) -> np.uint64:
    """Return HDF5's Fletcher32 checksum: over 16-bit big-endian words, sums modulo 65535 but never 0 unless all are.

    Examples
    --------
    >>> hex(fletcher32(np.frombuffer(b"abcde", dtype=np.uint8)))
    '0x4ff029c7'
    """
    count = np.uint64(data.size) // np.uint64(2)
    first = second = np.uint64(0)
    for start in range(np.uint64(0), count, _BLOCK):
        stop = min(count, start + _BLOCK)
        plain = weighted = np.uint64(0)
        for index in range(start, stop):
            word = np.uint64(data[index + index]) << _BYTE | np.uint64(data[index + index + _ONE])
            plain += word
            weighted += (stop - index) * word
        second = _folded(second + (stop - start) * first + weighted)
        first = _folded(first + plain)
    if data.size % 2:
        first = _folded(first + (np.uint64(data[-1]) << _BYTE))
        second = _folded(second + first)
    return second << np.uint64(16) | first


@numba.njit(cache=True, nogil=True, inline="always")
def _folded(total: np.uint64) -> np.uint64:
    return np.uint64(0) if total == 0 else (total - _ONE) % _MODULUS + _ONE


def _deflated(plane: memoryview) -> list[bytes]:
    """Return pieces of a raw deflate stream; what the beginning of the plane shows not to shrink is only stored.

    The low bytes of distinct numbers are noise, on which zlib spends ten times as long as on anything else.
    """
    deflater: Any = _zlib.compressobj(LEVEL, wbits=-zlib.MAX_WBITS, memLevel=_MEMORY)
    pieces: list[bytes] = [deflater.compress(plane[:_PROBE_BYTES])]
    flush = _zlib.Z_SYNC_FLUSH
    if len(plane) > _PROBE_BYTES:
        pieces.append(deflater.flush(flush))
        if sum(map(len, pieces)) > 0.9 * _PROBE_BYTES:
            deflater, flush = zlib.compressobj(0, wbits=-zlib.MAX_WBITS), zlib.Z_SYNC_FLUSH
        pieces.append(deflater.compress(plane[_PROBE_BYTES:]))
    return [*pieces, deflater.flush(flush)]


def _words(values: NDArray[Any], writeable: bool = False) -> NDArray[Any]:
    """Return the same bytes as unsigned integers, always read-only or always not, so that kernels compile once."""
    words = values.view(f"<u{values.dtype.itemsize}")
    words.flags.writeable = writeable
    return words
