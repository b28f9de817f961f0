"""The variables of MATLAB files: up to version 7.2 through SciPy, of version 7.3 through the gate of HDF5 files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat, whosmat
from scipy.sparse import csc_array, issparse

from ctmc.errors import ModelError, StorageError
from ctmc.interchange.parts import shown
from ctmc.model.memory import require_memory
from ctmc.storage.atomic import failure_reason
from ctmc.storage.foreign import ForeignFile, foreign, write_foreign
from ctmc.storage.gate import open_regular, read_at

SPARSE_LIMIT = 2**31
"""Bytes of one variable from which version 7 cannot hold it."""
_HEAD = b"MATLAB 7.3 MAT-file"
_USER_BLOCK = 512
_HDF5 = b"\x89HDF\r\n\x1a\n"


def is_v73(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of version 7.3."""
    return head.startswith(_HDF5, _USER_BLOCK) or head.startswith(_HDF5)


def variables_of_file(path: str | os.PathLike[str], wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return the variables of a MATLAB file that are wanted, in the order of the file: arrays and sparse matrices.

    Raises
    ------
    StorageError
        The file cannot be read, or is no MATLAB file.
    """
    try:
        descriptor = open_regular(Path(path))
        try:
            head = read_at(descriptor, 0, _USER_BLOCK + 8)
        finally:
            os.close(descriptor)
        if is_v73(head):
            with foreign(Path(path), 0 if head.startswith(_HDF5) else _USER_BLOCK) as file:
                return {name: _variable(file, name) for name in file.names() if wanted(name)}
    except OSError as error:
        raise StorageError(f"{shown(path)} cannot be read: {failure_reason(error)}.") from None
    try:
        names = []
        for name, shape, _ in whosmat(path):
            if wanted(name):
                if min(shape, default=0) < 0:
                    raise ValueError(f"variable {name} has the shape {shape}")
                names.append(name)
        # MATLAB's objects and cells become object arrays, which are refused by who reads them; nothing in the file is run
        found = loadmat(path, variable_names=names, spmatrix=False) if names else {}
        for name in names:
            if name in found and issparse(found[name]):
                _check_sparse(found[name])
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes the reader fail in many ways
        raise StorageError(f"{shown(path)} is no MATLAB file ({type(error).__name__}).") from None
    return {name: found[name] for name in names if name in found}


def write_v73(path: Path, variables: Mapping[str, Any]) -> None:
    """Write variables, matrices of numbers, as a file of version 7.3 over an existing, empty, temporary one."""
    arrays: dict[str, np.ndarray] = {}
    attributes: dict[str, dict[str, Any]] = {}
    for name, value in variables.items():
        attributes[name] = {"MATLAB_class": "double"}
        if issparse(value):
            columns = csc_array(value)
            columns.sort_indices()
            attributes[name]["MATLAB_sparse"] = columns.shape[0]
            arrays[f"{name}/jc"] = columns.indptr.astype(np.uint64)
            if columns.nnz:  # MATLAB leaves both out of a matrix of zeros
                arrays[f"{name}/ir"] = columns.indices.astype(np.uint64)
                arrays[f"{name}/data"] = columns.data.astype(np.float64)
        else:
            arrays[name] = np.ascontiguousarray(np.asarray(value, dtype=np.float64).T)  # dimensions in reverse
    text = (_HEAD + b", Platform: GLNXA64, Created by: ctmc HDF5 schema 1.00 .").ljust(116)
    # eight bytes without a subsystem, the version 2.0, and the order of bytes
    head = (text + bytes(8) + b"\x00\x02IM").ljust(_USER_BLOCK, b"\0")
    write_foreign(path, head, arrays, attributes)


def _variable(file: ForeignFile, name: str) -> Any:
    members = file.members(name)
    if members is None:
        kind = file.attribute(name, "MATLAB_class")
        if kind in (b"cell", b"char", b"struct") or file.attribute(name, "MATLAB_empty") == 1:
            raise ModelError(
                f"variable {name} is empty, or of the class {shown(str(kind))}; allowed are matrices of real numbers."
            )
        return file.array(name).T
    rows = file.attribute(name, "MATLAB_sparse")
    if not isinstance(rows, int) or "jc" not in members:
        raise ModelError(
            f"variable {name} is neither a matrix nor a sparse matrix; allowed are matrices of real numbers."
        )
    pointers = file.array(f"{name}/jc", members["jc"])
    numbers = [
        file.array(f"{name}/{part}", members[part]) if part in members else np.zeros(0) for part in ("ir", "data")
    ]
    places, data = numbers
    if places.dtype.kind not in "iu" and places.size:
        raise StorageError(f"variable {name} has row numbers of the type {places.dtype}")
    count, columns = len(data), len(pointers) - 1
    ascending = pointers.ndim == data.ndim == places.ndim == 1 and len(pointers) > 0 and pointers.dtype.kind in "iu"
    if not ascending or len(places) != count or not _pointers_fit(pointers, count):
        raise StorageError(f"variable {name} is no sparse matrix: its arrays do not fit each other")
    if count and (places.max() >= rows or places.min() < 0):
        raise StorageError(f"variable {name} has an entry in row {int(places.max())}; it has {rows} rows")
    require_memory(f"the variable {name}", 40 * count + 16 * columns, states=columns, entries=count)
    return csc_array((data, places.astype(np.int64), pointers.astype(np.int64)), shape=(rows, columns))


def _pointers_fit(pointers: np.ndarray, count: int) -> bool:
    return bool(pointers[0] == 0 and pointers[-1] == count and (pointers[1:] >= pointers[:-1]).all())


def _check_sparse(matrix: Any) -> None:
    """Refuse row numbers that lead out of the matrix: compiled loops would follow them."""
    csc_array(matrix).check_format(full_check=True)
