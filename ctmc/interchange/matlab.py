"""QBDs from MATLAB files, in the convention of SMCSolver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat
from scipy.sparse import issparse

from ctmc.errors import ModelError, StorageError
from ctmc.model.qbd import QBD

_REPEATING = ("A0", "A1", "A2")
_BOUNDARY = ("B0", "B1", "B2")


def read_qbd(path: str | Path, *, discrete_time: bool = False) -> QBD:
    """Read a QBD from the variables A0, A1, A2 and, optionally, B0, B1, B2 of a MATLAB file (up to version 7.2).

    Convention of SMCSolver: **A0 leads one level down, A1 stays, A2 leads up** (many books have it the other way round).  B1 is the
    local block of level 0, B2 leads from level 0 to level 1, and B0 from level 1 to level 0; without any of them level 0 has
    the local block A1 + A0.  If level 0 has as many phases as the others and B2 = A2, B0 may be A0.

    Parameters
    ----------
    path : str or Path
    discrete_time : bool
        True if the blocks are transition probabilities per step (rows sum to 1); by default they are rates.

    Raises
    ------
    StorageError
        If the file cannot be read as a MATLAB file.
    ModelError
        If a variable is missing, not a matrix of real numbers, or does not fit; nothing is guessed.

    References
    ----------
    D. A. Bini, B. Meini, S. Steffe, B. Van Houdt, *Structured Markov chains solver: software tools*, SMCtools 2006,
    doi:10.1145/1190366.1190379.
    """
    names = (*_REPEATING, *_BOUNDARY)
    try:
        # MATLAB's objects and cells become object arrays, which are refused below; nothing in the file is run
        found = loadmat(path, variable_names=names, spmatrix=False)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.") from None
    except NotImplementedError:
        raise StorageError(f"{path} is of MATLAB's version 7.3; allowed are files up to 7.2: save with -v7.") from None
    except Exception as error:  # a damaged file makes the reader fail in many ways
        raise StorageError(f"{path} is no MATLAB file ({type(error).__name__}).") from None
    blocks = {name: _matrix(path, name, found[name]) for name in names if name in found}
    for name in _REPEATING:
        if name not in blocks:
            raise ModelError(f"{path} has no variable {name}; allowed are files with A0 (down), A1 (local), A2 (up).")
    given = [name for name in _BOUNDARY if name in blocks]
    if given and len(given) < len(_BOUNDARY):
        raise ModelError(f"{path} has {', '.join(given)} only; allowed are all of B0, B1, B2, or none.")
    boundary = None
    if given:
        boundary = [(None, blocks["B1"], blocks["B2"]), (blocks["B0"], blocks["A1"], None)]
    make = QBD.from_discrete_time if discrete_time else QBD.from_blocks
    return make(blocks["A2"], blocks["A1"], blocks["A0"], boundary)


def _matrix(path: str | Path, name: str, value: Any) -> Any:
    if issparse(value):
        kind, dimensions = value.dtype.kind, 2
    else:
        value = np.asarray(value)
        kind, dimensions = value.dtype.kind, value.ndim
    if kind not in "biuf" or dimensions != 2 or not min(value.shape):
        raise ModelError(
            f"variable {name} of {path} has the type {value.dtype} and {dimensions} dimensions; allowed are matrices of "
            "real numbers."
        )
    return value
