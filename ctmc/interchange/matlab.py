"""Chains and QBDs from and to MATLAB files, up to version 7.2 and of version 7.3 (HDF5).

A chain is the variable ``Q``, the generator with its diagonal, or ``R``, the rates with the diagonal left out; beside it may
stand ``initial`` (a vector of probabilities), ``state_NAME`` (the variables of the states), ``label_NAME`` and ``reward_NAME``.
A QBD follows SMCSolver: **A0 leads one level down, A1 stays, A2 leads up** (many books have it the other way round).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat
from scipy.sparse import csc_array, csr_array, dia_array, issparse

from ctmc.errors import ModelError, StorageError
from ctmc.interchange.mat_files import SPARSE_LIMIT, variables_of_file, write_v73
from ctmc.interchange.parts import (
    coordinate_names,
    earned,
    finite_chain,
    identifiers,
    left_out,
    no_descriptions,
    shown,
    space_of,
)
from ctmc.model.generator import Generator
from ctmc.model.memory import format_size, require_memory
from ctmc.model.qbd import QBD
from ctmc.model.reward import Reward
from ctmc.storage.atomic import replace_file

_REPEATING = ("A0", "A1", "A2")
_BOUNDARY = ("B0", "B1", "B2")
_CHAIN = ("Q", "R")
_LONGEST = 63  # characters of a name in MATLAB
_VERSIONS = ("7", "7.3")


def read(path: str | os.PathLike[str], *, discrete_time: bool = False) -> Generator | QBD:
    """Read a chain from the variable Q or R of a MATLAB file, or a QBD from A0, A1, A2.

    Parameters
    ----------
    path : path-like
        Up to version 7.2, or of version 7.3.
    discrete_time : bool
        True if the blocks of a QBD are transition probabilities per step.

    Raises
    ------
    StorageError
        If the file cannot be read as a MATLAB file.
    ModelError
        If there is no such variable, it is no matrix of real numbers, or no generator.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(f"{folder}/queue.mat", Generator.from_matrix([[-1, 1], [2, -2]]), version="7.3")
    ...     read(f"{folder}/queue.mat").uniformization_rate
    2.0
    """
    found = variables_of_file(
        path, lambda name: name in (*_CHAIN, *_REPEATING, *_BOUNDARY, "initial") or _prefix(name) is not None
    )
    given = [name for name in _CHAIN if name in found]
    blocks = [name for name in _REPEATING if name in found]
    if given and blocks:
        raise ModelError(
            f"{shown(path)} has {given[0]} and {blocks[0]}; allowed is a chain (Q or R) or a QBD (A0, A1, A2)."
        )
    if not given:
        if not blocks:
            raise ModelError(
                f"{shown(path)} has none of the variables Q (generator), R (rates), or A0, A1, A2 (blocks of a QBD: down, local, up)."
            )
        return _qbd(path, found, discrete_time)
    if len(given) > 1:
        raise ModelError(f"{shown(path)} has both Q and R; allowed is one of them.")
    return _chain(path, given[0], found)


def read_qbd(path: str | os.PathLike[str], *, discrete_time: bool = False) -> QBD:
    """Read a QBD from the variables A0, A1, A2 and, optionally, B0, B1, B2 of a MATLAB file.

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
    return _qbd(path, variables_of_file(path, lambda name: name in (*_REPEATING, *_BOUNDARY)), discrete_time)


def write(path: str | os.PathLike[str], model: Any, *, overwrite: bool = False, version: str = "7") -> list[str]:
    """Write a chain or a QBD as a MATLAB file.

    Parameters
    ----------
    path : path-like
        Ending in ``.mat`` by custom.
    model : Generator or QBD
        A QBD has one or two boundary levels, the second with the repeating local block.
    overwrite : bool
        Whether an existing file may be replaced.
    version : str
        ``"7"`` (compressed; each variable up to 2 GiB) or ``"7.3"`` (HDF5, of any size).

    Returns
    -------
    list of str
        A sentence for each thing that is not carried.

    Raises
    ------
    ModelError
        The model is no chain or QBD of this form, or too large for version 7.
    StorageError
        The file exists, or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/queue.mat", Generator.from_matrix([[-1, 1], [2, -2]]))
    []
    """
    if version not in _VERSIONS:
        raise StorageError(f"version is {version!r}; allowed are '7' and '7.3'.")
    if isinstance(model, QBD):
        variables, lost = _blocks(model)
    else:
        chain = finite_chain(model, "a MATLAB file")
        require_memory("writing", 64 * (chain.entries + chain.size), states=chain.size, entries=chain.entries)
        variables, lost = _variables(chain)
    put: Callable[[Path], None]
    if version == "7":
        for name, value in variables.items():
            size = value.data.nbytes + value.indices.nbytes + value.indptr.nbytes if issparse(value) else value.nbytes
            if size >= SPARSE_LIMIT:
                raise ModelError(
                    f"the variable {name} takes {format_size(size)}; a MATLAB file of version 7 holds up to "
                    f"{format_size(SPARSE_LIMIT)} in one: use version='7.3'."
                )

        def put(temporary: Path) -> None:
            with open(temporary, "wb") as file:
                savemat(file, variables, do_compression=True, oned_as="column")
    else:

        def put(temporary: Path) -> None:
            write_v73(temporary, variables)

    replace_file(path, put, overwrite=overwrite)
    return lost


def _prefix(name: str) -> str | None:
    return next(
        (prefix for prefix in ("state_", "label_", "reward_") if name.startswith(prefix) and name != prefix), None
    )


def _variables(chain: Generator) -> tuple[dict[str, Any], list[str]]:
    """Return the variables of a chain, and what they do not carry."""
    rewards, lost = earned(chain, components=False)
    variables: dict[str, Any] = {"Q": csc_array(chain.to_scipy())}
    if chain.initial is not None:
        variables["initial"] = chain.initial.dense(chain.size)[:, None]
    table = chain.space.states(np.arange(chain.size))
    columns = dict(zip(coordinate_names(chain.space), table.T, strict=True))
    groups: dict[str, dict[str, np.ndarray]] = {
        "state_": {variable: values.astype(np.float64) for variable, values in chain.space.columns(table).items()},
        "label_": {name: member.astype(np.float64) for name, member in chain.labels.items()},
        "reward_": {reward.name: reward.rate for reward in rewards if reward.rate is not None},
    }
    for prefix, group in groups.items():
        names = identifiers(list(group), "A-Za-z0-9_", _LONGEST - len(prefix))
        for name, plain in zip(group, names, strict=True):
            values = group[name]
            variables[prefix + plain] = values[:, None] if values.ndim == 1 else values
            if plain != name:
                lost.append(f"The name {shown(name)} becomes {prefix}{plain}.")
    lost += [
        f"Reward {shown(reward.name)}: what transitions earn is not carried."
        for reward in rewards
        if reward.impulse is not None
    ]
    lost += no_descriptions(rewards)
    if columns and np.abs(table).max() > 2**53:
        raise ModelError("the states have numbers above 2^53, which MATLAB's doubles do not hold.")
    return variables, lost + left_out(chain)


def _blocks(model: QBD) -> tuple[dict[str, Any], list[str]]:
    """Return the blocks of a QBD in SMCSolver's names, and what they do not carry."""
    variables: dict[str, Any] = {"A0": model.down, "A1": model.local, "A2": model.up}
    first = model.boundary[0]
    if model.boundary_levels == 1:
        variables |= {"B0": model.down, "B1": first.local, "B2": first.up}
    elif model.boundary_levels == 2 and _same(model.boundary[1].local, model.local):
        variables |= {"B0": model.boundary[1].down, "B1": first.local, "B2": first.up}
    else:
        raise ModelError(
            f"the QBD has {model.boundary_levels} boundary levels with blocks of their own; a file of SMCSolver's form holds one."
        )
    lost = ["The names and values of the phases are not carried."]
    if model.rewards:
        lost.append(f"Rewards are not carried: {', '.join(map(shown, model.rewards))}.")
    parts = {"measures": model.measures, "notes": model.notes, "the builder with its parameters": model.recipe}
    names = [name for name, value in parts.items() if value]
    if names:
        lost.append(f"Not carried: {', '.join(names)}.")
    return {name: csc_array(block) for name, block in variables.items()}, lost


def _same(one: csr_array, other: csr_array) -> bool:
    return bool(one.shape == other.shape and abs(one - other).max() == 0)


def _chain(path: str | os.PathLike[str], name: str, found: Mapping[str, Any]) -> Generator:
    matrix = _matrix(path, name, found[name])
    n = matrix.shape[0]
    if matrix.shape[1] != n:
        raise ModelError(f"variable {name} of {shown(path)} has shape {matrix.shape}; allowed is a square matrix.")
    if name == "R":
        matrix = csr_array(matrix).astype(np.float64)
        matrix = matrix - dia_array((matrix.diagonal()[None], [0]), shape=matrix.shape)
    columns = {other: _column(path, other, found[other], n) for other in found if other == "initial" or _prefix(other)}
    states = {other: values for other, values in columns.items() if other.startswith("state_")}
    space = None
    if states:
        names: list[str] = []
        for other, values in states.items():
            plain = other.removeprefix("state_")
            names += [plain] if values.shape[1] == 1 else [f"{plain}[{k}]" for k in range(values.shape[1])]
        table = np.concatenate(list(states.values()), axis=1)
        if not (table == np.floor(table)).all() or np.abs(table).max() > 2**53:
            raise ModelError(
                f"{shown(path)} has states that are not whole numbers; allowed are whole numbers up to 2^53."
            )
        space = space_of(table.astype(np.int64), names)
    labels, rewards = {}, {}
    for other, values in columns.items():
        if other.startswith("label_"):
            if values.shape[1] != 1 or not np.isin(values, (0, 1)).all():
                raise ModelError(f"variable {other} of {shown(path)} is no column of zeros and ones.")
            labels[other.removeprefix("label_")] = values[:, 0] == 1
        elif other.startswith("reward_"):
            rewards[other.removeprefix("reward_")] = Reward(values[:, 0] if values.shape[1] == 1 else values)
    initial = columns["initial"][:, 0] if "initial" in columns else None
    return Generator.from_matrix(matrix, space, labels=labels, rewards=rewards, initial=initial)


def _column(path: str | os.PathLike[str], name: str, value: Any, size: int) -> np.ndarray:
    """Return a variable with one row for each state."""
    matrix = _matrix(path, name, value)
    values = np.asarray(matrix.toarray() if issparse(matrix) else matrix, dtype=np.float64)
    if values.shape[0] == 1 and values.shape[1] == size:
        values = values.T
    if values.shape[0] != size or not np.isfinite(values).all():
        raise ModelError(
            f"variable {name} of {shown(path)} has shape {values.shape}; allowed are {size} rows of finite numbers."
        )
    return values


def _qbd(path: str | os.PathLike[str], found: Mapping[str, Any], discrete_time: bool) -> QBD:
    blocks = {name: _matrix(path, name, found[name]) for name in (*_REPEATING, *_BOUNDARY) if name in found}
    for name in _REPEATING:
        if name not in blocks:
            raise ModelError(
                f"{shown(path)} has no variable {name}; allowed are files with A0 (down), A1 (local), A2 (up)."
            )
    given = [name for name in _BOUNDARY if name in blocks]
    if given and len(given) < len(_BOUNDARY):
        raise ModelError(f"{shown(path)} has {', '.join(given)} only; allowed are all of B0, B1, B2, or none.")
    boundary = None
    if given:
        boundary = [(None, blocks["B1"], blocks["B2"]), (blocks["B0"], blocks["A1"], None)]
    make = QBD.from_discrete_time if discrete_time else QBD.from_blocks
    return make(blocks["A2"], blocks["A1"], blocks["A0"], boundary)


def _matrix(path: str | os.PathLike[str], name: str, value: Any) -> Any:
    if issparse(value):
        kind, dimensions = value.dtype.kind, 2
    else:
        value = np.asarray(value)
        kind, dimensions = value.dtype.kind, value.ndim
    if kind not in "biuf" or dimensions != 2 or not min(value.shape):
        raise ModelError(
            f"variable {name} of {shown(path)} has the type {value.dtype} and {dimensions} dimensions; allowed are matrices of "
            "real numbers."
        )
    return value
