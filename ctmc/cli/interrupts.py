"""Ctrl-C and its relatives: at once where there is nothing to lose, at the next step where there is.

Inside `Interrupts.gentle` the first signal only sets a flag, which the solver's monitor returns, so that the partial
answer can be stored; the second one leaves at once, even while a compiled loop runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SNAPSHOT = getattr(signal, "SIGUSR1", None)
"""Asks for a checkpoint; the solve goes on."""
_SHOW_CURSOR = b"\x1b[?25h"


class Interrupted(BaseException):  # like KeyboardInterrupt: not an error, and not to be caught as one
    """A signal came; `exit_code` is 128 plus its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Interrupts:
    """Handlers of the signals, for a ``with`` block; the old ones come back at its end.

    Attributes
    ----------
    received : int or None
        Number of the first signal.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._gentle = False
        self._snapshot = False
        self._announce: Callable[[], None] = lambda: None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # what `nohup` has told us to ignore stays ignored
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stopped(self) -> bool:
        """Return whether a signal has come."""
        return self.received is not None

    def wants_checkpoint(self) -> bool:
        """Return whether a checkpoint was asked for since the last call."""
        wanted, self._snapshot = self._snapshot, False
        return wanted

    def _ask(self, number: int, _: FrameType | None) -> None:
        self._snapshot = True

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal, 0 without one."""
        return 0 if self.received is None else 128 + self.received

    def _handle(self, number: int, _: FrameType | None) -> None:
        if not self._gentle:
            self.received = number
            raise Interrupted(number)
        if self.received is None:
            self.received = number
            self._announce()

    @contextlib.contextmanager
    def gentle(self, announce: Callable[[], None]) -> Iterator[None]:
        """Let the first signal set a flag only, inside a ``with`` block; `announce` is called then."""
        if not self._before:
            yield
            return
        # Python's own handlers wait for compiled code to return; the byte that the interpreter writes for each signal
        # does not, so a thread that reads it can leave in the middle of a long product.
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        watcher = threading.Thread(target=self._watch, args=(reader,), daemon=True, name="ctmc-interrupts")
        watcher.start()
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._gentle, self._announce = True, announce
        asked_before = None if SNAPSHOT is None else signal.signal(SNAPSHOT, self._ask)
        try:
            yield
        finally:
            self._gentle = False
            if SNAPSHOT is not None:
                signal.signal(SNAPSHOT, asked_before)
            signal.set_wakeup_fd(before)
            writer.close()
            watcher.join()
            reader.close()

    def _watch(self, reader: socket.socket) -> None:
        seen = 0
        while received := reader.recv(64):
            for number in received:
                seen += number in self._before
                if seen >= 2:
                    with contextlib.suppress(OSError, ValueError):
                        if sys.stderr.isatty():
                            os.write(sys.stderr.fileno(), _SHOW_CURSOR + b"\r\n")
                    os._exit(128 + number)
