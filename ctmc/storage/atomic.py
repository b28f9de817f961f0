"""The one way in which files are put where the user wants them: whole, or not at all.

A new file is written under a fresh name in the same folder, flushed to the disk and then given its own name, so that a
full disk, a crash or an interrupt leaves the old file as it was.  Every writer of the project goes through
`replace_file`; none opens a user's path for writing in place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ctmc.errors import ModelError, StorageError, printable, shown
from ctmc.model.parameters import check_truth

_NAME_BYTES = 255  # the longest file name that common file systems take
_NO_SUPPORT = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM}


def replace_file(path: str | os.PathLike[str], write: Callable[[Path], None], *, overwrite: bool) -> None:
    """Write a file under a fresh name, flush it to the disk and give it its name in one step.

    Parameters
    ----------
    path : path-like
        Where the file shall stand.
    write : callable
        Gets the path of an empty temporary file in the same folder and fills it.  An exception from it (an interrupt as
        well) removes the temporary file and leaves what stands at `path` as it is.
    overwrite : bool
        Whether an existing file may be replaced.  A symbolic link is replaced itself, never what it points at;
        directories and devices are never replaced.

    Raises
    ------
    StorageError
        The folder is missing, the disk is full, the file exists; names the path and the reason.  When the last step,
        flushing the folder, fails, the new file already stands at `path`, whole.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> replace_file(folder / "answer.txt", lambda path: path.write_text("42") and None, overwrite=False)
    >>> [file.name for file in folder.iterdir()]
    ['answer.txt']
    """
    path = checked_path(path)
    check_truth("overwrite", overwrite)
    try:
        _replace_file(path, write, overwrite)
    except StorageError:
        raise
    except FileExistsError as error:
        raise StorageError(
            f"Cannot write {printable(path)}: it exists already; overwrite=True or --overwrite replaces it."
        ) from error
    except OSError as error:
        raise StorageError(f"Cannot write {printable(path)}: {failure_reason(error)}.") from error


def checked_path(given: Any) -> Path:
    """Return the path of a file; raise `ModelError` for anything but text and path-like objects of text."""
    if not isinstance(given, str | os.PathLike) or not isinstance(os.fspath(given), str) or not os.fspath(given):
        raise ModelError(f"path is {shown(given)}; allowed is the path of a file, as text or pathlib.Path.")
    return Path(given)


def failure_reason(error: BaseException) -> str:
    """Return why something failed as one clause without the final full stop, fit for any terminal."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, OSError) and error.strerror:
        return printable(error.strerror)
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    first_line = (text.splitlines() or [""])[0][:400].rstrip(".")
    return printable(first_line) or type(error).__name__


def _replace_file(path: Path, write: Callable[[Path], None], overwrite: bool) -> None:
    if "\0" in str(path):
        raise StorageError(f"Cannot write {printable(path)}: a path has no NUL characters.")
    if not path.parent.is_dir():
        raise StorageError(f"Cannot write {printable(path)}: there is no folder {printable(path.parent)}.")
    if not path.name or path.name == "..":
        raise StorageError(f"Cannot write {printable(path)}: it names a folder, not a file.")
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise StorageError(f"Cannot write {printable(path)}: it is not a regular file, and is never replaced.")
        if not overwrite:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    with _temporary_file(path) as (temporary, descriptor):
        write(temporary)
        os.fsync(descriptor)
        if overwrite:
            os.replace(temporary, path)
        else:
            _name_new(temporary, path)
        _flush_folder(path.parent)


@contextlib.contextmanager
def _temporary_file(path: Path) -> Iterator[tuple[Path, int]]:
    """Make an empty file `.NAME.<random>.part` beside `path`, and see that it is gone afterwards.

    The file is locked as long as its writer lives, so that what a killed writer left behind can be told from the work
    of one that is still at it, and is removed by the next writer of the same path.
    """
    name = path.name
    while len(os.fsencode(name)) > _NAME_BYTES - len("..12345678.part"):
        name = name[:-1]
    dead_leftovers(path.parent, name, remove=True)

    def fresh() -> Path:
        return path.with_name(f".{name}.{secrets.token_hex(4)}.part")

    temporary, descriptor = fresh(), -1
    try:
        while descriptor < 0:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            if not (_lock(descriptor) and os.path.exists(temporary)):
                # Another writer took the file for a leftover, in the moment before it was locked.
                os.close(descriptor)
                temporary, descriptor = fresh(), -1
        yield temporary, descriptor
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if descriptor >= 0:
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Return whether nobody else holds the file; true where the file system knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def dead_leftovers(folder: Path, name: str | None = None, *, remove: bool) -> list[Path]:
    """Return the temporary files in a folder whose writers are dead, removed if asked for.

    Parameters
    ----------
    folder : Path
    name : str, optional
        Those of one file only.
    remove : bool
    """
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.[0-9a-f]{{8}}\.part", flags=re.DOTALL)
    found = []
    for entry in sorted(os.listdir(folder)):
        if pattern.fullmatch(entry):
            # Where locks do not work nothing is removed: the leftover may be another machine's work.
            with contextlib.suppress(OSError):
                descriptor = os.open(folder / entry, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if remove:
                        os.unlink(folder / entry)
                    found.append(folder / entry)
                finally:
                    os.close(descriptor)
    return found


def _name_new(temporary: Path, path: Path) -> None:
    """Give the file its name unless something stands there, in one step where the file system can."""
    try:
        os.link(temporary, path)
        os.unlink(temporary)
    except OSError as error:
        if error.errno not in _NO_SUPPORT:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
        os.replace(temporary, path)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SUPPORT:  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)
