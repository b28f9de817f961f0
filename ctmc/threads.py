"""One switch for all thread pools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ctmc.errors import ModelError, shown


def usable_threads() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def limited_threads(number: int | None) -> Iterator[None]:
    """Use this many threads in compiled loops and in BLAS inside a ``with`` block; None leaves all as it is.

    Raises
    ------
    ModelError
        If the number is not between 1 and what Numba was started with.
    """
    if number is None:
        yield
        return
    import numba
    import threadpoolctl

    most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]  # set when numba starts
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise ModelError(f"threads is {shown(number)}; allowed is 1 to {most}.")
    before = numba.get_num_threads()
    numba.set_num_threads(number)
    try:
        with threadpoolctl.threadpool_limits(limits=number):
            yield
    finally:
        numba.set_num_threads(before)
