"""MatrixMarket: the generator with its diagonal, or the rates alone, as coordinates that start at 1; also ``.mtx.gz``."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_array

from ctmc.errors import ModelError, StorageError, printable
from ctmc.interchange.archive import Inflated
from ctmc.interchange.listing import listing
from ctmc.interchange.parts import left_out, shown
from ctmc.interchange.rows import numbers_of
from ctmc.interchange.storm import states_lost
from ctmc.interchange.text import Layout, TextFile, decoded
from ctmc.model.generator import Generator
from ctmc.model.memory import memory_limit, require_memory
from ctmc.storage.atomic import replace_file

HOLDS = ("auto", "generator", "rates")
_FIELDS, _SYMMETRIES = (b"real", b"double", b"integer"), (b"general", b"symmetric")
_SHORTEST = len("1 1 1\n")
_MOST_COMMENTS = 10_000


def read(path: str | os.PathLike[str], *, holds: str = "auto") -> Generator:
    """Read a chain from a MatrixMarket file.

    Parameters
    ----------
    path : path-like
        Ending in ``.mtx`` or ``.mtx.gz`` by custom; the first bytes tell whether it is compressed.
    holds : str
        ``"generator"``: Q, whose rows sum to zero; ``"rates"``: the rates, a diagonal being left out; ``"auto"``: the generator
        if there is anything on the diagonal.  A note tells which it was.

    Raises
    ------
    StorageError
        The file cannot be read or is damaged.
    ModelError
        The matrix is not real and square, is no generator, or does not fit the memory limit.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write(f"{folder}/queue.mtx", Generator.from_matrix([[-1, 1], [2, -2]]))
    ...     read(f"{folder}/queue.mtx").uniformization_rate
    2.0
    """
    if holds not in HOLDS:
        raise StorageError(f"holds is {printable(holds)!r}; allowed are {', '.join(HOLDS)}.")
    with TextFile(path, partial(Inflated, allowed=2 * memory_limit())) as file:
        size, entries, symmetric = _header(file)
        rows, columns, values = _entries(file, size, entries)
    if symmetric:
        mirrored = rows != columns
        rows, columns, values = (
            np.concatenate([rows, columns[mirrored]]),
            np.concatenate([columns, rows[mirrored]]),
            np.concatenate([values, values[mirrored]]),
        )
    _refuse_doubled(path, rows, columns)
    on_diagonal = rows == columns
    is_generator = holds == "generator" or (holds == "auto" and bool(on_diagonal.any()))
    if is_generator and not on_diagonal.any() and len(values):
        raise ModelError(f"{shown(path)} has no diagonal; allowed is a generator, or holds='rates'.")
    if not is_generator:
        rows, columns, values = rows[~on_diagonal], columns[~on_diagonal], values[~on_diagonal]
    note = "the generator with its diagonal" if is_generator else "rates without a diagonal"
    return Generator.from_matrix(
        coo_array((values, (rows, columns)), shape=(size, size)), notes=(f"Read from MatrixMarket: {note}.",)
    )


def write(path: str | os.PathLike[str], model: Any, *, overwrite: bool = False, holds: str = "generator") -> list[str]:
    """Write a chain as a MatrixMarket file, compressed where the name ends in ``.gz``: otherwise as `ctmc.write`.

    Parameters
    ----------
    holds : str
        ``"generator"``, with the diagonal, or ``"rates"``; a comment in the file says which.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/queue.mtx", Generator.from_matrix([[-1, 1], [2, -2]]).with_reward("busy", [0.0, 1.0]))
    ['Rewards are not carried: busy.']
    """
    if holds not in HOLDS[1:]:
        raise StorageError(f"holds is {printable(holds)!r}; allowed are {', '.join(HOLDS[1:])}.")
    rows = listing(model, "MatrixMarket")
    chain = rows.chain
    exits = chain.exit_rates
    diagonal = np.flatnonzero(exits) if holds == "generator" else np.zeros(0, dtype=np.int64)

    def text() -> Iterator[str]:
        yield "%%MatrixMarket matrix coordinate real general\n"
        if holds == "generator":
            yield "% generator of a Markov chain: entry (i, j) is the rate from i to j, rows sum to zero\n"
        else:
            yield "% rates of a Markov chain: entry (i, j) is the rate from i to j, without a diagonal\n"
        yield f"{chain.size} {chain.size} {len(rows.rates) + len(diagonal)}\n"
        yield from rows.lines(rows.rates, 1)
        for begin in range(0, len(diagonal), 1 << 14):
            part = diagonal[begin : begin + (1 << 14)]
            places = (part + 1).tolist()
            yield "".join(map("%d %d %r\n".__mod__, zip(places, places, (-exits[part]).tolist(), strict=True)))

    opened: Callable[..., Any] = open
    if os.fspath(path).lower().endswith(".gz"):
        opened = gzip.open

    def write_text(temporary: Path) -> None:
        with opened(temporary, "wb") as file:
            for piece in text():
                file.write(piece.encode("ascii"))

    replace_file(path, write_text, overwrite=overwrite)
    lost = states_lost(chain.space)
    if chain.initial is not None:
        lost.append("The initial distribution is not carried.")
    for what, names in (("Labels", chain.labels), ("Rewards", chain.rewards)):
        if names:
            lost.append(f"{what} are not carried: {', '.join(map(printable, names))}.")
    return lost + left_out(chain)


def _entries(file: TextFile, size: int, entries: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, columns and values of all further lines; each shape (entries,)."""
    places, values = np.empty((2, entries), dtype=np.int64), np.empty(entries)
    done = 0
    for block in file.blocks(Layout(2, "value", first=1, size=size)):
        end = done + len(block.values)
        if end > entries:
            raise file.fault(f"an entry beyond the {entries:,} that are announced", int(block.lines[entries - done]))
        places[:, done:end], values[done:end] = block.indices, block.values
        done = end
    if done < entries:
        raise file.fault(f"the file ends after {done:,} entries, but {entries:,} are announced")
    return places[0], places[1], values


def _header(file: TextFile) -> tuple[int, int, bool]:
    """Return the number of states, of entries, and whether half of the entries stand there, after looking at the claims."""
    banner = (file.next_line() or b"").lower().split()
    if len(banner) != 5 or banner[:2] != [b"%%matrixmarket", b"matrix"]:
        raise file.fault(
            "the banner of MatrixMarket is missing; allowed is '%%MatrixMarket matrix coordinate real general'", 1
        )
    for word, allowed in zip(banner[2:], ((b"coordinate",), _FIELDS, _SYMMETRIES), strict=True):
        if word not in allowed:
            known = ", ".join(map(decoded, allowed))
            raise ModelError(
                f"{shown(file.path)} holds a matrix that is {printable(decoded(word[:40]))}; allowed is {known}."
            )
    comments = 0
    while (line := file.next_line()) is not None and (not line.strip() or line.lstrip().startswith(b"%")):
        comments += 1
        if comments > _MOST_COMMENTS:
            raise file.fault("too many comments before the size")
    found = numbers_of(line, 3)
    if found is None:
        raise file.fault(f"the size is {printable(decoded((line or b'')[:40]))!r}; allowed are 'rows columns entries'")
    rows, columns, entries = found
    if rows != columns or not rows:
        raise ModelError(
            f"{shown(file.path)} holds a matrix of {rows:,} x {columns:,}; allowed is a square, non-empty one."
        )
    compressed = isinstance(file.stream, Inflated) and file.stream.compressed
    if not compressed and entries > file.size // _SHORTEST + 1:
        raise file.fault(f"{entries:,} entries are announced, but the file has only {file.size:,} bytes")
    symmetric = banner[4] == b"symmetric"
    require_memory(
        f"the model in {shown(file.path)}",
        (120 if symmetric else 60) * entries + 48 * rows,
        states=rows,
        entries=entries,
    )
    return rows, entries, symmetric


def _refuse_doubled(path: Any, rows: np.ndarray, columns: np.ndarray) -> None:
    order = np.lexsort((columns, rows))
    doubled = np.flatnonzero((np.diff(rows[order]) == 0) & (np.diff(columns[order]) == 0))
    if doubled.size:
        k = order[doubled[0]]
        raise StorageError(f"{shown(path)} has the entry {rows[k] + 1} {columns[k] + 1} twice; allowed is once.")
