"""Parts of the arrays of a file, for ranks that have a part of the states each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ctmc.errors import StorageError
from ctmc.storage.container import OpenContainer


@dataclass(frozen=True, eq=False)
class StoredVector:
    """A vector that stays in its file, of which each rank reads its own part.

    Attributes
    ----------
    file : OpenContainer
    name : str
    """

    file: OpenContainer
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        return self.file.stored[self.name].shape

    def part(self, begin: int, end: int) -> np.ndarray:
        """Return the elements begin .. end - 1."""
        return stored_range(self.file, self.name, begin, end)


def stored_range(file: OpenContainer, name: str, begin: int, end: int) -> np.ndarray:
    """Return the elements, or rows, begin .. end - 1 of an array of a file, coded or not, each slab verified.

    Raises
    ------
    StorageError
        Damage, or no such array.
    """
    if name not in file.stored and f"{name}.codes" in file.stored:
        values = file.read([f"{name}.values"])[f"{name}.values"]
        codes = stored_range(file, f"{name}.codes", begin, end)
        if codes.size and int(codes.max()) >= len(values):
            raise StorageError(f"a code of {name} is {int(codes.max())}, but there are {len(values)} values")
        return np.asarray(values[codes])
    if name not in file.stored:
        raise StorageError(f"it has no array {name!r}")
    array = file.stored[name]
    if end > array.shape[0]:
        raise StorageError(f"its array {name} has {array.shape[0]:,} elements; needed are {end:,}")
    found = np.empty((end - begin, *array.shape[1:]), dtype=array.dtype)
    chunks = file.chunks(name)
    for number, offset in enumerate(array.offsets()):
        slices: Any = array.slab(offset)
        first, last = slices[0].start, min(slices[0].stop, array.shape[0])
        if first < end and last > begin:
            low, high = max(first, begin), min(last, end)
            shape = tuple(min(one.stop, length) - one.start for one, length in zip(slices, array.shape, strict=True))
            values = file.slab(name, number, chunks[number])[0].reshape(shape)
            found[(slice(low - begin, high - begin), *slices[1:])] = values[low - first : high - first]
    return found
