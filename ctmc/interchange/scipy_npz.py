"""Sparse matrices as SciPy stores them: `scipy.sparse.save_npz` and `load_npz`.

The file holds the generator with its diagonal, and nothing else.
"""

from __future__ import annotations

import ast
import os
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy.sparse import csr_array, load_npz, save_npz

from ctmc.errors import CTMCError, ModelError, StorageError
from ctmc.interchange.parts import finite_chain, left_out, numbered, shown
from ctmc.model.generator import Generator
from ctmc.model.memory import require_memory
from ctmc.storage.atomic import failure_reason, replace_file

_HEADER_BYTES = 1 << 16
_MEMBERS = 32


def read(path: str | os.PathLike[str]) -> Generator:
    """Read a generator, or a matrix of rates with an empty diagonal, from a file of `scipy.sparse.save_npz`.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    Generator
        With the states 0 .. n - 1.

    Raises
    ------
    StorageError
        If the file cannot be read, or holds anything but arrays of numbers; nothing is unpickled.
    ModelError
        If the matrix is no generator, or does not fit the memory limit.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(f"{folder}/queue.npz", Generator.from_matrix([[-1, 1], [2, -2]]))
    ...     read(f"{folder}/queue.npz").uniformization_rate
    2.0
    """
    try:
        size = _checked_size(path)
    except CTMCError:
        raise
    except Exception as error:  # damaged archives and headers fail in many ways
        raise StorageError(f"{shown(path)} cannot be read as a file of save_npz: {failure_reason(error)}.") from None
    require_memory(f"the matrix in {shown(path)}", 4 * size)  # converted, sorted and checked
    try:
        matrix = load_npz(path)
        _check(matrix)
        return Generator.from_matrix(matrix)
    except (CTMCError, MemoryError):
        raise
    except Exception as error:  # the reader trusts its input and fails in many ways
        raise StorageError(f"{shown(path)} cannot be read as a file of save_npz: {failure_reason(error)}.") from None


def write(path: str | os.PathLike[str], model: Any, *, overwrite: bool = False) -> list[str]:
    """Write the generator Q, diagonal included, as `scipy.sparse.save_npz` does.

    Parameters
    ----------
    path : path-like
    model : Generator
    overwrite : bool
        Whether an existing file may be replaced.

    Returns
    -------
    list of str
        A sentence for each thing that is not carried.

    Examples
    --------
    >>> import tempfile
    >>> from scipy.sparse import load_npz
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(f"{folder}/queue.npz", Generator.from_matrix([[-1, 1], [2, -2]]))
    ...     float(load_npz(f"{folder}/queue.npz")[1, 0])
    2.0
    """
    chain = finite_chain(model, "a SciPy matrix")
    require_memory("the matrix", 40 * (chain.entries + chain.size), states=chain.size, entries=chain.entries)
    matrix = csr_array(chain.to_scipy())

    def put(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # save_npz adds an ending to a name that has none
            save_npz(file, matrix)

    replace_file(path, put, overwrite=overwrite)
    return matrix_only(chain)


def matrix_only(chain: Generator) -> list[str]:
    """Return a sentence for each part of a chain that a bare matrix does not carry."""
    lost = []
    if chain.space != numbered(chain.size):
        lost.append(f"The states ({chain.space.describe()}) are not carried: they become 0 to {chain.size - 1}.")
    if chain.initial is not None:
        lost.append("The initial distribution is not carried.")
    for kind, names in (("Labels", chain.labels), ("Rewards", chain.rewards)):
        if names:
            lost.append(f"{kind} are not carried: {', '.join(map(shown, names))}.")
    return lost + left_out(chain)


def _check(matrix: Any) -> None:
    """Refuse index arrays that lead out of the matrix: SciPy's compiled loops would follow them.

    Those of the form coo SciPy looks at as it makes the matrix, and the others have none.
    """
    if matrix.format in ("csr", "csc", "bsr"):
        matrix.check_format(full_check=True)


def _checked_size(path: str | os.PathLike[str]) -> int:
    """Return the bytes that the arrays take in memory, after looking at the header of each without reading one."""
    total, shape = 0, None
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MEMBERS or len({member.filename for member in members}) < len(members):
            raise StorageError(f"{shown(path)} has {len(members)} members, or one twice; save_npz writes up to 6.")
        for member in members:
            with archive.open(member) as file:
                found, dtype, size = _header(file)
                if dtype.hasobject:
                    raise StorageError(
                        f"{shown(path)} holds Python objects ({shown(member.filename)}); allowed are arrays of numbers, as "
                        "nothing is unpickled."
                    )
                if size > member.file_size:
                    raise StorageError(
                        f"{shown(path)} claims {size:,} bytes for {shown(member.filename)}, which has {member.file_size:,}."
                    )
                if member.filename == "shape.npy" and found == (2,) and dtype.kind in "iu" and dtype.itemsize == 8:
                    shape = np.frombuffer(file.read(16), dtype=dtype).tolist()
            total += size
    if shape is None or not {"data.npy", "format.npy"} <= {member.filename for member in members}:
        raise StorageError(f"{shown(path)} is not a sparse matrix that scipy.sparse.save_npz wrote.")
    if min(shape) < 1 or shape[0] != shape[1]:
        raise ModelError(f"the matrix in {shown(path)} has shape {tuple(shape)}; allowed is a square, non-empty one.")
    return int(total + 24 * shape[0])


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape, type and bytes of an array; the shape is bounded before NumPy believes it."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of the version {version}")
    length = struct.unpack("<H" if version == (1, 0) else "<I", file.read(2 if version == (1, 0) else 4))[0]
    if length > _HEADER_BYTES:
        raise ValueError(f"an array with a header of {length:,} bytes")
    head = ast.literal_eval(file.read(length).decode("latin-1"))
    shape = head["shape"]
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError("an array whose shape is no tuple of whole numbers")
    dtype = np.dtype(head["descr"])
    count = 1
    for side in shape:
        count *= side
    return shape, dtype, count * dtype.itemsize
