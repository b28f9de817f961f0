"""The formats by name, which one a file is of, and reading and writing in any of them."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ctmc.errors import StorageError, printable, unknown_name
from ctmc.storage.atomic import checked_path, failure_reason
from ctmc.storage.gate import open_regular, read_at

if TYPE_CHECKING:
    from ctmc.model.generator import Generator
    from ctmc.model.qbd import QBD

OWN = "ctmc"
_HEAD_BYTES = 1024
_TRA = re.compile(rb"(ctmc|STATES[ \t]+[0-9]+)[ \t\r]*\n|[0-9]+ [0-9]+\r?\n[0-9]+ ([0-9]+ [0-9.]|[0-9.eE+-]+:[0-9])")
_HDF5 = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Format:
    """A format of model files.

    Parameters
    ----------
    name : str
    extensions : tuple of str
        Endings of file names, the first the usual one; none where the format must be named.
    carries : str
        What of a model a file holds.
    module : str
        Has ``read(path)``, which runs in a child process, and ``write(path, model, overwrite=..)``; imported when used.
    begins : callable
        Whether the first bytes of a file are those of the format.
    options : mapping of str to object
        What ``write`` is called with besides.
    """

    name: str
    extensions: tuple[str, ...]
    carries: str
    module: str
    begins: Callable[[bytes], bool]
    options: Mapping[str, Any] = field(default_factory=dict)


FORMATS = {
    entry.name: entry
    for entry in (
        Format(
            OWN,
            (".h5", ".hdf5"),
            "everything, of chains and QBDs",
            "ctmc.storage",
            lambda head: head.startswith(_HDF5),
        ),
        Format(
            "umb",
            (".umb",),
            "chains with states, labels, initial states, rewards of states and transitions",
            "ctmc.interchange.umb",
            lambda head: head[257:262] == b"ustar" or head.startswith((b"\x1f\x8b\x08", b"\xfd7zXZ\0")),
        ),
        Format(
            "matlab",
            (".mat",),
            "chains with states, labels, initial distribution, rewards of states; QBDs as SMCSolver has them",
            "ctmc.interchange.matlab",
            lambda head: head.startswith(b"MATLAB ") or head.startswith(_HDF5, 512),
        ),
        Format(
            "scipy-npz",
            (".npz",),
            "the generator alone",
            "ctmc.interchange.scipy_npz",
            lambda head: head.startswith(b"PK\x03\x04"),
        ),
        Format(
            "graphml",
            (".graphml",),
            "chains up to 50,000 states with states, labels, initial distribution, rewards of states and transitions",
            "ctmc.interchange.graphml",
            lambda head: b"<graphml" in head,
        ),
        Format(
            "drn",
            (".drn", ".drn.gz", ".drn.xz"),
            "chains with labels, initial states, rewards of states and actions",
            "ctmc.interchange.drn",
            lambda head: b"@type:" in head or b"@nr_states" in head,
        ),
        Format(
            "tra",
            (".tra",),
            "chains as text: reads prism, storm and mrmc, which the first line tells, and writes prism",
            "ctmc.interchange.tra",
            lambda head: _TRA.match(head) is not None,
        ),
        Format(
            "prism",
            (),
            "chains with states, labels, initial states, rewards of states and transitions",
            "ctmc.interchange.prism",
            lambda head: False,  # the ending of the three is that of tra
        ),
        Format(
            "storm",
            (),
            "chains with labels, initial states, rewards of states and transitions",
            "ctmc.interchange.storm",
            lambda head: False,  # the ending of the three is that of tra
        ),
        Format(
            "mrmc",
            (),
            "chains with labels, initial states, one reward of states and transitions",
            "ctmc.interchange.mrmc",
            lambda head: False,  # the ending of the three is that of tra
        ),
        Format(
            "matrix-market",
            (".mtx", ".mtx.gz"),
            "the generator alone",
            "ctmc.interchange.matrix_market",
            lambda head: head[:14].lower() == b"%%matrixmarket",
        ),
        Format(
            "petsc",
            (".petsc",),
            "the generator alone, as MatLoad of PETSc reads it; reads indices of 32 and 64 bits and writes 32",
            "ctmc.interchange.petsc",
            lambda head: head.startswith((b"\x00\x12\x7b\x50", b"\0\0\0\0\x00\x12\x7b\x50")),
        ),
        Format(
            "petsc-64",
            (),
            "the same with indices of 64 bits, for a PETSc that is configured with them",
            "ctmc.interchange.petsc",
            lambda head: False,  # petsc reads both
            {"indices": 64},
        ),
    )
}


_LANGUAGES = (".prism", ".sm", ".pm", ".nm", ".jani")
"""Endings of models that must be built by their own program first."""


def read(path: str | os.PathLike[str], format: str | None = None) -> Generator | QBD:
    """Read a model from a file of any known format.

    Formats of other programs are parsed in a child process, as their files may be damaged or hostile.  A file of our own that
    does not fit the memory limit is opened, and its transitions stay on the disk.

    Parameters
    ----------
    path : path-like
    format : str, optional
        A name from ``ctmc list formats``; by default the one that the ending of the name, or the first bytes, tell.

    Raises
    ------
    StorageError
        The file cannot be read, or is of no known format.
    ModelError
        It holds no chain, or does not fit the memory limit.
    UnknownNameError
        There is no format of this name.

    Examples
    --------
    >>> import tempfile
    >>> from ctmc.model.generator import Generator
    >>> queue = Generator.from_matrix([[-1, 1], [2, -2]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(f"{folder}/queue.umb", queue)
    ...     read(f"{folder}/queue.umb").uniformization_rate
    2.0
    """
    chosen = format_of(path) if format is None else named(format)
    if chosen.name == OWN:
        from ctmc.storage import load_fitting

        return load_fitting(path)
    first_bytes(path)  # what is no regular file is told apart here, before a child is started
    from ctmc.interchange import isolated

    return isolated.read(chosen.module, path)


def write(
    path: str | os.PathLike[str], model: Generator | QBD, format: str | None = None, overwrite: bool = False
) -> list[str]:
    """Write a model to a file, in the format that the ending of its name tells.

    Parameters
    ----------
    path : path-like
    model : Generator or QBD
    format : str, optional
        A name from ``ctmc list formats``.
    overwrite : bool
        Whether an existing file may be replaced.

    Returns
    -------
    list of str
        A sentence for each thing that the format does not carry.

    Raises
    ------
    StorageError
        The file exists or cannot be written, or the ending is of no known format.
    ModelError
        The format does not hold such a model.

    Examples
    --------
    >>> import tempfile
    >>> from ctmc.model.generator import Generator
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/queue.npz", Generator.from_matrix([[-1, 1], [2, -2]]).with_reward("busy", [0.0, 1.0]))
    ['Rewards are not carried: busy.']
    """
    chosen = check_target(path, format)
    if chosen.name == OWN:
        from ctmc.storage import save

        save(path, model, overwrite=overwrite)
        return _not_stored(model)
    module = importlib.import_module(chosen.module)
    lost: list[str] = module.write(path, model, overwrite=overwrite, **chosen.options)
    return lost


def check_target(path: str | os.PathLike[str], format: str | None = None) -> Format:
    """Return the format in which a file is to be written, or say that its ending tells none."""
    chosen = by_extension(path) if format is None else named(format)
    if chosen is None:
        raise StorageError(f"Cannot write {printable(os.fspath(path))}: {_endings()}")
    return chosen


def named(name: str) -> Format:
    """Return the format of this name."""
    if not isinstance(name, str) or name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return FORMATS[name]


def by_extension(path: str | os.PathLike[str]) -> Format | None:
    """Return the format that the ending of a name tells, None where it tells none.

    Examples
    --------
    >>> by_extension("queue.UMB").name, by_extension("queue.txt")
    ('umb', None)
    """
    name = str(checked_path(path)).lower()
    return next((entry for entry in FORMATS.values() if name.endswith(entry.extensions)), None)


def format_of(path: str | os.PathLike[str]) -> Format:
    """Return the format of a file: what the ending of its name tells, and where it tells nothing, the first bytes."""
    chosen = by_extension(path)
    if chosen is None:
        head = first_bytes(path)
        _refuse_language(path)
        chosen = next((entry for entry in FORMATS.values() if entry.begins(head)), None)
    if chosen is None:
        matrix = os.fsdecode(path).lower().endswith((".csv", ".npy", ".txt"))
        more = " A matrix in Python is a model by ctmc.Generator.from_matrix(matrix)." if matrix else ""
        raise StorageError(f"{printable(os.fspath(path))} is of no known format: {_endings()}{more}")
    return chosen


def _refuse_language(path: str | os.PathLike[str]) -> None:
    """Say what to do with a model in a language that nothing here reads; its first word may be that of a list of rates."""
    if os.fsdecode(path).lower().endswith(_LANGUAGES):
        raise StorageError(
            f"{printable(os.fspath(path))} is a model in the language of PRISM or JANI; allowed are lists of states: "
            "'storm --prism FILE --buildfull --exportbuild model.drn' or 'prism FILE -exportmodel model.tra,sta,lab,srew' "
            "writes one."
        )


def first_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the first bytes of a regular file that is not empty; anything else is one sentence."""
    try:
        descriptor = open_regular(checked_path(path))
        try:
            head = read_at(descriptor, 0, _HEAD_BYTES)
        finally:
            os.close(descriptor)
        if not head:
            raise StorageError("it is empty")
    except (OSError, ValueError) as error:
        raise StorageError(f"{printable(os.fspath(path))} cannot be read: {failure_reason(error)}.") from None
    return head


def _endings() -> str:
    known = ", ".join(f"{'/'.join(entry.extensions)} ({entry.name})" for entry in FORMATS.values() if entry.extensions)
    return f"allowed are the endings {known}, or a format named as such."


def _not_stored(model: Any) -> list[str]:
    """Return what a file of our own does not hold because no builder gives it back."""
    if model.recipe is not None:
        return []
    parts = {"Measures": model.measures is not None, "Distributions": bool(model.distributions)}
    return [f"{name} are functions and not stored." for name, there in parts.items() if there]
