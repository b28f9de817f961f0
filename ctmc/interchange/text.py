"""Lines of numbers, such as ``i j rate``, read fast in blocks of bytes; other lines one by one."""

from __future__ import annotations

import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numba
import numpy as np

from ctmc.errors import StorageError, printable
from ctmc.interchange.decimals import POWERS, nearest
from ctmc.interchange.parts import shown
from ctmc.model.memory import format_size
from ctmc.storage.atomic import failure_reason, replace_file
from ctmc.storage.gate import open_regular

LINE_BYTES = 1 << 20
"""Bytes that a line may have, and of a block."""
_LARGEST_INDEX = 1 << 53
_LEAST_LINE = len("0 1\n")
# one way only to match a row of digits, or a long one that is no number would be tried in all ways
NUMBER = rb"[+-]?(?i:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf|infinity)"
_NUMBER = re.compile(NUMBER)
_SYNTAX, _RANGE, _ORDER, _DOUBLED, _SIGN = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Layout:
    """What lines of numbers have.

    Parameters
    ----------
    indices : int
        Whole numbers before the number that may have a fraction: 2 for ``i j rate``, 1 for ``i reward``.
    value : str
        What the last number is, for sentences; a ``rate`` is positive.
    first : int
        The first index, 0 or 1.
    size : int, optional
        Number of indices, where it is known.
    order : int
        0 none, 1 the first index never decreases, 2 and equal lines stand in ascending order of the second.
    action : bool
        Whether a word may follow.
    comments : bool
        Whether lines that begin with ``#`` are skipped.
    """

    indices: int = 2
    value: str = "rate"
    first: int = 0
    size: int | None = None
    order: int = 0
    action: bool = False
    comments: bool = False

    @property
    def example(self) -> str:
        """Return a line as it must be."""
        return ("i j " if self.indices == 2 else "i ") + self.value


@dataclass(frozen=True, eq=False)
class Block:
    """Some of the lines.

    Attributes
    ----------
    indices : ndarray of int64, shape (2, m)
        Starting at 0.
    values : ndarray of float64, shape (m,)
    lines : ndarray of int64, shape (m,)
        Numbers of the lines, from 1.
    """

    indices: np.ndarray
    values: np.ndarray
    lines: np.ndarray


class TextFile:
    r"""A regular file, open for reading, whose faults are sentences with its name and a line.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "rates.txt").write_text("0 1 2.5\n1 0 1e-3\n")
    >>> with TextFile(folder / "rates.txt") as file:
    ...     [block.values.tolist() for block in file.blocks(Layout())]
    [[2.5, 0.001]]
    """

    def __init__(self, path: str | os.PathLike[str], wrap: Callable[[IO[bytes]], Any] | None = None) -> None:
        self.path = path
        try:
            self._file: IO[bytes] = os.fdopen(open_regular(Path(path)), "rb", buffering=0)
        except StorageError as error:
            raise StorageError(f"{shown(path)} cannot be read: {error}.") from None
        except (OSError, ValueError) as error:
            raise StorageError(f"{shown(path)} cannot be read: {failure_reason(error)}.") from None
        self.size = os.fstat(self._file.fileno()).st_size
        self.stream = self._file if wrap is None else wrap(self._file)
        self._rest, self._at = b"", 0  # what has been read ahead, and where its next line begins
        self.line = 0

    def __enter__(self) -> TextFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fault(self, what: str, line: int | None = None) -> StorageError:
        """Return the error for what is wrong in a line, by default the last that was read."""
        return StorageError(f"{shown(self.path)}, line {self.line if line is None else line}: {what}.")

    def mark(self) -> tuple[int, int]:
        """Return the place after the lines that were read, for `go_back`."""
        return self._file.tell() - len(self._rest[self._at :]), self.line

    def go_back(self, mark: tuple[int, int]) -> None:
        """Read again from a mark, in a file that is not wrapped."""
        self._file.seek(mark[0])
        self._rest, self._at, self.line = b"", 0, mark[1]

    def more(self) -> bytes:
        """Return the next bytes, up to a block; none at the end."""
        try:
            data: bytes = self.stream.read(LINE_BYTES)
        except StorageError as error:
            raise StorageError(f"{shown(self.path)} cannot be read: {error}.") from None
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise StorageError(f"{shown(self.path)} cannot be read: {failure_reason(error)}.") from None
        return data

    def next_line(self) -> bytes | None:
        """Return the next line without its end, CR or blanks after it; None after the last."""
        while True:
            end = self._rest.find(b"\n", self._at)
            if end < 0:
                data = self._rest[self._at :]
                if len(data) > LINE_BYTES:
                    raise self.fault(f"it is longer than {format_size(LINE_BYTES)}", self.line + 1)
                more = self.more()
                self._rest, self._at = data + more, 0
                if more:
                    continue
                if not data:
                    return None
                end = len(data)
            line = self._rest[self._at : end]
            self._at = end + 1
            self.line += 1
            return line.rstrip()

    def lines(self) -> Iterator[bytes]:
        """Yield all further lines."""
        while (line := self.next_line()) is not None:
            yield line

    def blocks(self, layout: Layout) -> Iterator[Block]:
        """Yield the numbers of all further lines; blank ones are skipped.

        Raises
        ------
        StorageError
            A line is not of this layout; names the first.
        """
        last = np.full(2, -1, dtype=np.int64)
        data, size = self._rest[self._at :], _LARGEST_INDEX if layout.size is None else layout.size
        self._rest, self._at = b"", 0
        while True:
            more = self.more()
            end = more.rfind(b"\n") + 1
            if more and not end:
                if len(data) + len(more) > LINE_BYTES:
                    raise self.fault(f"it is longer than {format_size(LINE_BYTES)}", self.line + 1)
                data += more
                continue
            if more:
                text, data = data + more[:end], more[end:]
            elif data:  # the last line may have no end
                text, data = data if data.endswith(b"\n") else data + b"\n", b""
            else:
                return
            block = self._parsed(text, layout, size, last)
            if len(block.values):
                yield block

    def _parsed(self, text: bytes, layout: Layout, size: int, last: np.ndarray) -> Block:
        room = len(text) // _LEAST_LINE + 1
        indices, bits = np.empty((2, room), dtype=np.int64), np.empty(room, dtype=np.uint64)
        lines, late = np.empty(room, dtype=np.int64), np.empty((room, 3), dtype=np.int64)
        rows, seen, kind, begin, postponed = _parse(
            np.frombuffer(text, dtype=np.uint8), (layout.indices, layout.first, size, layout.order), layout.action,
            layout.comments, layout.value == "rate", POWERS, self.line, last, indices, bits, lines, late,
        )  # fmt: skip
        values = bits.view(np.float64)
        for row, start, stop in late[:postponed].tolist():
            word = text[start:stop]
            if not _NUMBER.fullmatch(word):
                raise self._syntax(layout, text[text.rfind(b"\n", 0, start) + 1 :], int(lines[row]))
            values[row] = number = float(word)
            if not np.isfinite(number) or (layout.value == "rate" and number <= 0):
                raise self._value(layout, word, int(lines[row]))
        if kind:
            self._refuse(kind, text[begin:], layout, size, seen)
        self.line = seen
        return Block(indices[:, :rows], values[:rows], lines[:rows])

    def _refuse(self, kind: int, rest: bytes, layout: Layout, size: int, line: int) -> None:
        words = rest[: rest.find(b"\n")].split()
        if kind == _RANGE:
            first = layout.first
            allowed = f"{first} to {size - 1 + first}" if size < _LARGEST_INDEX else f"whole numbers below {size}"
            index = next(w for w in words[: layout.indices] if len(w) > 18 or not first <= int(w) < size + first)
            raise self.fault(f"the state is {_word(index)}; allowed is {allowed}", line)
        if kind == _SIGN:
            raise self._value(layout, words[layout.indices], line)
        if kind == _SYNTAX:
            raise self._syntax(layout, rest, line)
        pair = " ".join(_word(word) for word in words[: layout.indices])
        if kind == _ORDER:
            demand = "ascending states" if layout.order == 1 else "ascending order"
            raise self.fault(f"{pair!r} stands after a later one; lines must be in {demand}", line)
        raise self.fault(f"{pair!r} stands there twice", line)

    def _syntax(self, layout: Layout, rest: bytes, line: int) -> StorageError:
        found = _word(rest.partition(b"\n")[0])
        return self.fault(f"it is {found!r}; allowed is {layout.example!r}", line)

    def _value(self, layout: Layout, word: bytes, line: int) -> StorageError:
        allowed = "positive, finite numbers" if layout.value == "rate" else "finite numbers"
        return self.fault(f"the {layout.value} is {_word(word)}; allowed are {allowed}", line)


def replace_files(
    files: Sequence[tuple[Path, Callable[[Path], None]]], *, overwrite: bool, old: Iterable[Path] = ()
) -> None:
    """Write several files that belong together: none gets its name before all are written.

    Parameters
    ----------
    files : sequence of (path, function that writes it)
        The last gets its name first.
    overwrite : bool
        Whether existing ones may be replaced.
    old : iterable of Path
        Files that would be taken for parts of the new model; those that are not replaced are removed if `overwrite`, and
        refused otherwise.
    """
    left = [path for path in set(old) - {path for path, _ in files} if os.path.lexists(path)]
    if not overwrite:
        for path in [path for path, _ in files if os.path.lexists(path)] + left:
            raise StorageError(
                f"Cannot write {shown(path)}: it exists already; overwrite=True or --overwrite replaces it."
            )
    (path, write), others = files[0], files[1:]

    def write_all(temporary: Path) -> None:
        write(temporary)
        if others:
            replace_files(others, overwrite=overwrite)

    replace_file(path, write_all, overwrite=overwrite)
    for path in left:
        path.unlink(missing_ok=True)


def decoded(word: bytes) -> str:
    """Return a name from a file; bytes that are not UTF-8 are shown as such."""
    return word.decode("utf-8", "backslashreplace")


def _word(word: bytes) -> str:
    text = printable(decoded(word.strip()[:200]))
    return text if len(text) <= 60 else text[:57] + "..."


@numba.njit(cache=True, nogil=True)
def _parse(  # type: ignore[no-untyped-def]  # compiled for what it is given
    text, shape, action, comments, positive, powers, line, last, indices, bits, lines, late
):
    """Parse complete lines; return (rows, last line, kind of fault, where its line begins, numbers left for Python)."""
    count, first, size, order = shape
    at, end, row, postponed = 0, len(text), 0, 0
    ten = np.uint64(10)
    while at < end:
        line += 1
        begin = at
        while text[at] == 32 or text[at] == 9 or text[at] == 13:
            at += 1
        if text[at] == 10 or (comments and text[at] == 35):
            while text[at] != 10:
                at += 1
            at += 1
            continue
        ranged = True
        for k in range(count):
            index, digits = 0, 0
            while 48 <= text[at] <= 57:
                index = index * 10 + (int(text[at]) - 48) if digits < 18 else size + first
                digits += 1
                at += 1
            if digits == 0 or not (text[at] == 32 or text[at] == 9):
                return row, line, 1, begin, postponed
            index -= first
            if index < 0 or index >= size:
                ranged = False
            indices[k, row] = index
            while text[at] == 32 or text[at] == 9:
                at += 1
        # the number, up to 19 digits and a power of ten
        start = at
        negative = text[at] == 45
        if negative or text[at] == 43:
            at += 1
        number, digits, any_digit, power, point, plain = np.uint64(0), 0, False, 0, False, True
        while 48 <= text[at] <= 57 or text[at] == 46:
            if text[at] == 46:
                if point:
                    plain = False
                point = True
            else:
                any_digit = True
                if digits or text[at] != 48:
                    digits += 1
                    if digits <= 19:  # of more, Python makes the number
                        number = number * ten + np.uint64(text[at] - 48)
                if point:
                    power -= 1
            at += 1
        if any_digit and (text[at] == 101 or text[at] == 69):
            at += 1
            down = text[at] == 45
            if down or text[at] == 43:
                at += 1
            exponent, any_digit = 0, False
            while 48 <= text[at] <= 57:
                any_digit = True
                exponent = min(exponent * 10 + (int(text[at]) - 48), 100000)
                at += 1
            power += -exponent if down else exponent
        ended = text[at] == 32 or text[at] == 9 or text[at] == 13 or text[at] == 10
        while not (text[at] == 32 or text[at] == 9 or text[at] == 13 or text[at] == 10):
            at += 1
        stop = at
        if start == stop:
            return row, line, 1, begin, postponed
        # what follows
        words = 0
        while text[at] != 10:
            if text[at] == 32 or text[at] == 9 or text[at] == 13:
                at += 1
                continue
            words += 1
            while not (text[at] == 32 or text[at] == 9 or text[at] == 13 or text[at] == 10):
                at += 1
        at += 1
        if words > (1 if action else 0):
            return row, line, 1, begin, postponed
        if not ranged:
            return row, line, 2, begin, postponed
        i = indices[0, row]
        j = indices[1, row] if count == 2 else 0
        if order >= 1 and (i < last[0] or (order == 2 and i == last[0] and j < last[1])):
            return row, line, 3, begin, postponed
        if order == 2 and i == last[0] and j == last[1]:
            return row, line, 4, begin, postponed
        last[0], last[1] = i, j
        proved = False
        if ended and any_digit and plain and digits <= 19:
            found, proved = nearest(number, power, powers)
            if proved:
                if positive and (negative or found == np.uint64(0)):
                    return row, line, 5, begin, postponed
                bits[row] = found | (np.uint64(1 << 63) if negative else np.uint64(0))
        if not proved:
            late[postponed] = row, start, stop
            postponed += 1
        lines[row] = line
        row += 1
    return row, line, 0, 0, postponed
