"""One run at a time for each result file; the lock dies with its process and leaves nothing beside the user's files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ctmc.errors import StudyError, printable
from ctmc.storage.locks import BusyError, cache_folder, held, lock_name


@contextlib.contextmanager
def only_run(output: Path) -> Iterator[None]:
    """Hold the lock of a result file inside a ``with`` block.

    Raises
    ------
    StudyError
        If another run holds it; names its process and host.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held(cache_folder(), lock_name(output)))
        except BusyError as who:
            raise StudyError(
                f"another run ({who}) is writing {printable(output)}; wait for it, or choose another file with --output."
            ) from None
        yield
