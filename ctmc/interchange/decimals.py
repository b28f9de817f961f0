"""Decimal numbers to the nearest double, in compiled code.

The method of Eisel and Lemire (D. Lemire, Number parsing at a gigabyte per second, Software: Practice and Experience 51,
2021): up to 19 digits times a power of ten, whose 128 leading bits stand in a table.  The product either proves which double
is nearest or says that it does not, and then Python's `float` decides.  Up to 53 bits and 22 places, one exact product or quotient
of two doubles is enough (Clinger).
"""

from __future__ import annotations

import numba
import numpy as np

LEAST_POWER, LARGEST_POWER = -342, 308


def _powers() -> np.ndarray:
    """Return the leading 128 bits of 10^q, cut off, for each q; shape (powers, 2), the higher half first."""
    table = np.empty((LARGEST_POWER - LEAST_POWER + 1, 2), dtype=np.uint64)
    for q in range(LEAST_POWER, LARGEST_POWER + 1):
        above, below = (10**q, 1) if q >= 0 else (1, 10**-q)
        shift = 128 - above.bit_length() + below.bit_length()
        bits = (above << shift) // below if shift >= 0 else above // (below << -shift)
        bits >>= bits.bit_length() - 128
        table[q - LEAST_POWER] = bits >> 64, bits & (2**64 - 1)
    return table


POWERS = _powers()
_EXACT = np.array([10.0**q for q in range(23)])
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)
_NINE_BITS = np.uint64(0x1FF)
_FRACTION = np.uint64((1 << 52) - 1)
_SIGN = np.uint64(1 << 63)
_LARGEST = np.uint64((1 << 64) - 1)
_ZERO = np.uint64(0)


@numba.njit(cache=True, nogil=True)
def _product(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the higher and the lower half of a b."""
    a1, a0, b1, b0 = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    low = a0 * b0
    middle = a1 * b0 + (low >> _HALF)
    other = a0 * b1 + (middle & _LOW)
    return a1 * b1 + (middle >> _HALF) + (other >> _HALF), (other << _HALF) | (low & _LOW)


@numba.njit(cache=True, nogil=True)
def nearest(digits: np.uint64, power: int, powers: np.ndarray) -> tuple[np.uint64, bool]:
    """Return the bits of the double nearest to digits 10^power, and whether they are proved.

    Examples
    --------
    >>> bits, proved = nearest(np.uint64(15), -1, POWERS)
    >>> np.array([bits]).view(np.float64).tolist(), proved
    ([1.5], True)
    """
    if digits == _ZERO:
        return _ZERO, True
    if digits >> np.uint64(53) == _ZERO and -22 <= power <= 22:
        number = np.float64(digits)  # exact, as the power of ten is, so that one rounding is the right one
        number = number * _EXACT[power] if power >= 0 else number / _EXACT[-power]
        return np.float64(number).view(np.uint64), True
    if power < LEAST_POWER or power > LARGEST_POWER:
        return _ZERO, False
    zeros = 0
    while not digits & _SIGN:
        digits <<= _ONE
        zeros += 1
    exponent = ((217706 * power) >> 16) + 64 + 1023 - zeros
    high, low = _product(digits, powers[power - LEAST_POWER, 0])
    if high & _NINE_BITS == _NINE_BITS and low > _LARGEST - digits:
        further, rest = _product(digits, powers[power - LEAST_POWER, 1])
        if further > _LARGEST - low:  # carried without an overflow, which only compiled code takes in silence
            high += _ONE
            low -= _LARGEST - further + _ONE
        else:
            low += further
        if high & _NINE_BITS == _NINE_BITS and low == _LARGEST and rest > _LARGEST - digits:
            return _ZERO, False  # the table is cut off: a third part would tell, as at halves of odd numbers
    top = high >> np.uint64(63)
    fraction = high >> (top + np.uint64(9))
    exponent -= 0 if top else 1
    if low == _ZERO and high & _NINE_BITS == _ZERO and fraction & np.uint64(3) == _ONE:
        return _ZERO, False  # halfway between two doubles
    fraction = (fraction + (fraction & _ONE)) >> _ONE
    if fraction >> np.uint64(53):
        fraction >>= _ONE
        exponent += 1
    if exponent <= 0 or exponent >= 2047:
        return _ZERO, False  # subnormal, or too large
    return (np.uint64(exponent) << np.uint64(52)) | (fraction & _FRACTION), True
