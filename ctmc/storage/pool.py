"""A pool of threads that keeps the order and little in memory."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ctmc.threads import usable_threads

MAX_THREADS = 8

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def worker_count() -> int:
    """Return the number of threads: what `ctmc.threads.limited_threads` allows, at most 8."""
    numba = sys.modules.get("numba")  # a limit cannot have been set before Numba was imported
    allowed = usable_threads() if numba is None else min(usable_threads(), numba.get_num_threads())
    return min(allowed, MAX_THREADS)


def in_order(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Generator[_Result, None, None]:
    """Apply a function in several threads and yield the results in order, with at most two per thread in flight.

    Close the generator when leaving early; what has not begun is then cancelled.

    Examples
    --------
    >>> list(in_order(abs, [-3, 2, -1]))
    [3, 2, 1]
    """
    workers = worker_count()
    pending: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="ctmc-storage") as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
