"""Tar archives read as a stream: sizes are looked at before bytes are, and nothing is ever extracted to the disk."""

from __future__ import annotations

import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from ctmc.errors import ModelError, StorageError
from ctmc.interchange.parts import shown
from ctmc.model.memory import format_size
from ctmc.storage.atomic import failure_reason

_PIECE = 1 << 16
_PART = re.compile(r"(?!\.\.?$)[A-Za-z0-9_.-]{1,255}")
_MAX_MEMBERS = 100_000
_XZ_MEMORY = 512 * 1024**2  # a header can ask for a dictionary of 4 GiB
_KINDS = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link", tarfile.FIFOTYPE: "a pipe"}
_KINDS |= {tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device"}


class Inflated:
    """A file, decompressed if it is of gzip or xz, that refuses to give more bytes than `allowed`."""

    def __init__(self, file: IO[bytes], allowed: int) -> None:
        self.file = file
        self.allowed = allowed
        self.given = 0
        start = file.read(6)
        file.seek(0)
        self._fresh: Callable[[], Any] | None = None
        if start.startswith(b"\x1f\x8b\x08"):
            self._fresh = lambda: zlib.decompressobj(31)
        elif start == b"\xfd7zXZ\0":
            self._fresh = lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        self._state: Any = self._fresh() if self._fresh else None
        self._left = b""

    @property
    def compressed(self) -> bool:
        """Whether the file is of gzip or xz."""
        return self._fresh is not None

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end."""
        pieces, wanted = [], size
        while wanted and (piece := self._some(wanted)):
            pieces.append(piece)
            wanted -= len(piece)
        data = b"".join(pieces)
        self.given += len(data)
        if self.given > self.allowed:
            raise StorageError(f"it holds more than {format_size(self.allowed)} once it is decompressed")
        return data

    def _some(self, wanted: int) -> bytes:
        """Return some of the next bytes, none only at the end."""
        if self._fresh is None:
            return self.file.read(wanted)
        while True:
            if self._state.eof:  # several compressed files in a row are one; zeros may stand after each
                more = self._left or self.file.read(_PIECE)
                if not more:
                    return b""
                self._left = more.lstrip(b"\0")
                if self._left:
                    self._state = self._fresh()
            elif data := self._decompressed(wanted):
                return data

    def _decompressed(self, wanted: int) -> bytes:
        """Return what the next piece gives, which may be nothing: headers and ends take room, too."""
        fed = b""
        if getattr(self._state, "needs_input", True):
            fed, self._left = self._left or self.file.read(_PIECE), b""
            if not fed:
                raise EOFError("the compressed data end too early")
        data: bytes = self._state.decompress(fed, wanted)
        self._left = self._state.unused_data if self._state.eof else getattr(self._state, "unconsumed_tail", self._left)
        return data


def read_members(
    path: str | os.PathLike[str],
    first: str,
    first_size: int,
    expected: Callable[[bytes], tuple[dict[str, int], int]],
) -> tuple[bytes, dict[str, bytes]]:
    """Return the first member of an archive, and those others that it makes known, after checking all names and sizes.

    Parameters
    ----------
    path : path-like
    first : str
        Name that the first member must have.
    first_size : int
        Most bytes that it may have.
    expected : callable
        Maps the bytes of the first member to the exact size of each member that is wanted, and the most bytes that the
        whole archive may have.

    Raises
    ------
    StorageError
        Names that lead elsewhere, links, devices, doubled names, sizes that are not the expected ones, archives that hold
        more than allowed; one sentence.
    """
    found: dict[str, bytes] = {}
    index, sizes = b"", {first: first_size}
    try:
        with open(path, "rb") as file:
            stream: Any = Inflated(file, 2 * first_size)
            seen: set[str] = set()
            with tarfile.open(fileobj=stream, mode="r|", errorlevel=2) as archive:
                for member in archive:
                    name = _checked_name(member, seen)
                    if member.isdir():
                        continue
                    if not index:
                        index = _first(archive, member, name, first, first_size)
                        sizes, stream.allowed = expected(index)
                        continue
                    if name not in sizes:
                        continue  # what is optional in the format and not ours; skipped as it streams by
                    if member.size != sizes[name]:
                        raise StorageError(
                            f"its member {shown(name)} has {member.size:,} bytes, but its index asks for {sizes[name]:,}"
                        )
                    found[name] = _bytes(archive, member)
        if not index:
            raise StorageError(f"it has no member {first}")
    except ModelError:
        raise
    except OSError as error:
        if isinstance(error, StorageError) and str(error).startswith(shown(path)):
            raise
        raise StorageError(f"{shown(path)} cannot be read: {failure_reason(error)}.") from None
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, ValueError, OverflowError) as error:
        raise StorageError(f"{shown(path)} is a damaged archive, or none: {failure_reason(error)}.") from None
    return index, found


def write_members(path: Path, members: Iterable[tuple[str, bytes | memoryview]], compression: str | None) -> None:
    """Write an archive over an existing, empty, temporary file: regular members, no owner, no dates."""
    mode = "w" if compression is None else f"w:{compression}"
    with open(path, "wb") as file, tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]  # mode is put together
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = memoryview(data).nbytes
            archive.addfile(member, io.BytesIO(data))


def _checked_name(member: tarfile.TarInfo, seen: set[str]) -> str:
    name = member.name.removeprefix("./").rstrip("/")
    if member.isdir() and name in ("", "."):
        return name
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        raise StorageError(f"its member {shown(member.name[:200])} has a name that is not allowed in the format")
    if not member.isdir():
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            kind = _KINDS.get(member.type, "no regular file")
            raise StorageError(f"its member {shown(name)} is {kind}; allowed are regular files")
        if name in seen:
            raise StorageError(f"its member {shown(name)} stands in it twice")
        seen.add(name)
    if len(seen) > _MAX_MEMBERS:
        raise StorageError(f"it has more than {_MAX_MEMBERS:,} members")
    return name


def _first(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, first: str, most: int) -> bytes:
    if name != first:
        raise StorageError(f"its first member is {shown(name)}; allowed is {first}")
    if member.size > most or not member.size:
        raise StorageError(f"its member {first} has {member.size:,} bytes; allowed are 1 to {most:,}")
    return _bytes(archive, member)


def _bytes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    return archive.extractfile(member).read()  # type: ignore[union-attr]  # regular; raises where the archive ends in it
