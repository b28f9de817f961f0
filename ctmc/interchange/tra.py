"""Files ``.tra``: of PRISM, Storm or MRMC, which the first line tells."""

from __future__ import annotations

import os
from typing import Any

from ctmc.errors import StorageError, printable
from ctmc.interchange import mrmc, prism, storm
from ctmc.interchange.rows import numbers_of
from ctmc.interchange.text import TextFile, decoded
from ctmc.model.generator import Generator


def read(path: str | os.PathLike[str]) -> Generator:
    r"""Read a chain from a ``.tra`` and the files beside it.

    Two numbers in the first line are PRISM's, ``STATES`` is MRMC's, ``ctmc`` or three numbers are Storm's.

    Parameters
    ----------
    path : path-like
        The ``.tra``.

    Raises
    ------
    StorageError
        It is none of them, cannot be read or is damaged; names the line.
    ModelError
        It holds no chain, or does not fit the memory limit.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "queue.tra").write_text("STATES 2\nTRANSITIONS 1\n1 2 3\n")
    ...     read(f"{folder}/queue.tra").exit_rates.tolist()
    [3.0, 0.0]
    """
    with TextFile(path) as file:
        line = file.next_line()
        while line is not None and (not line or line.startswith(b"#")):
            line = file.next_line()
        words = (line or b"").split()
        if numbers_of(line, 2) is not None:
            return prism.read(path)
        if words[:1] == [b"STATES"]:
            return mrmc.read(path)
        if words and (words[0].isalpha() or (len(words) == 3 and words[0].isdigit())):
            return storm.read(path)
        raise StorageError(
            f"{printable(os.fspath(path))}, line {max(file.line, 1)}: it is {printable(decoded((line or b'')[:60]))!r}; allowed are "
            "two numbers (PRISM), 'ctmc' (Storm) or 'STATES' and a number (MRMC)."
        )


def write(path: str | os.PathLike[str], model: Any, *, overwrite: bool = False) -> list[str]:
    """Write a chain as PRISM's explicit files, the form of the three that carries most.

    Parameters
    ----------
    path : path-like
        The ``.tra``, or the path without an ending, on which the names of the files beside it are built.
    model : Generator
    overwrite : bool
        Whether existing files may be replaced; rewards of an older model with this path are then removed.

    Returns
    -------
    list of str
        A sentence for each thing that is not carried.

    Raises
    ------
    ModelError
        The model is not a finite chain, or does not fit the memory limit.
    StorageError
        A file exists, or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/queue.tra", Generator.from_matrix([[-1, 1], [2, -2]], initial=0))
    []
    """
    return prism.write(path, model, overwrite=overwrite)
