"""States as bit-packed records: whole numbers of 1 to 64 bits, side by side, the first in the lowest bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BitField:
    """Where a number stands in a record.

    Parameters
    ----------
    name : str
    begin, bits : int
        First bit, and their number, 1 to 64.
    signed : bool
        Two's complement.
    offset : int
        Added to what is stored.
    """

    name: str
    begin: int
    bits: int
    signed: bool = False
    offset: int = 0


def unpack(records: np.ndarray, field: BitField) -> np.ndarray:
    """Return one number of each record.

    Parameters
    ----------
    records : ndarray of uint8, shape (n, bytes)
    field : BitField

    Returns
    -------
    ndarray of int64, shape (n,)

    Raises
    ------
    ValueError
        If a number does not fit 64 bits with its sign.

    Examples
    --------
    >>> unpack(np.array([[0b1011_0110]], dtype=np.uint8), BitField("x", 1, 3)).tolist()
    [3]
    """
    first, shift = divmod(field.begin, 8)
    last = (field.begin + field.bits - 1) // 8
    value = np.zeros(len(records), dtype=np.uint64)
    for place in range(first, last + 1):
        byte = records[:, place].astype(np.uint64)
        left = 8 * (place - first) - shift
        value |= byte << np.uint64(left) if left >= 0 else byte >> np.uint64(-left)
    if field.bits < 64:
        value &= np.uint64((1 << field.bits) - 1)
    if field.signed:
        unused = np.uint64(64 - field.bits)
        numbers = (value << unused).view(np.int64) >> np.int64(64 - field.bits)
    else:
        if field.bits == 64 and value.size and value.max() >= 2**63:
            raise ValueError(f"variable {field.name!r} has the value {int(value.max())}, which needs more than 63 bits")
        numbers = value.view(np.int64)
    if field.offset:
        ends = (int(numbers.min()) + field.offset, int(numbers.max()) + field.offset)
        if ends[0] < -(2**63) or ends[1] >= 2**63:
            raise ValueError(
                f"variable {field.name!r} has values of {ends[0]} to {ends[1]}, which need more than 64 bits"
            )
        numbers = numbers + np.int64(field.offset)
    return numbers


def packed(columns: Sequence[tuple[str, np.ndarray]]) -> tuple[np.ndarray, list[BitField]]:
    """Return records with whole bytes for each column, and where the columns stand in them.

    Parameters
    ----------
    columns : sequence of (str, ndarray of int64, shape (n,))

    Returns
    -------
    ndarray of uint8, shape (n, bytes), and list of BitField

    Examples
    --------
    >>> packed([("x", np.array([1, 300])), ("y", np.array([-1, 2]))])[0].tolist()
    [[1, 0, 255], [44, 1, 2]]
    """
    fields, parts, begin = [], [], 0
    for name, values in columns:
        signed = bool(values.min() < 0)
        kinds = (np.int8, np.int16, np.int32, np.int64) if signed else (np.uint8, np.uint16, np.uint32, np.uint64)
        kind = next(k for k in kinds if np.iinfo(k).min <= values.min() and values.max() <= np.iinfo(k).max)
        width = np.dtype(kind).itemsize
        parts.append(values.astype(np.dtype(kind).newbyteorder("<"))[:, None].view(np.uint8).reshape(-1, width))
        fields.append(BitField(name, begin, 8 * width, signed))
        begin += 8 * width
    return np.concatenate(parts, axis=1), fields
