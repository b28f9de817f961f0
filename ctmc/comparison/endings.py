"""What the ending of an attempt means: its answer, or status, reason and one sentence where it has left none."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctmc.comparison.isolation import Ending
from ctmc.errors import printable
from ctmc.model.memory import format_size


def answer_in(path: Path) -> dict[str, Any] | None:
    """Return what an attempt has left, None where it has left nothing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    with contextlib.suppress(OSError):
        path.unlink()
    return content if isinstance(content, dict) else None


def meaning(ending: Ending, request: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return status, reason and sentence of an attempt that has left no answer."""
    places = {
        "start": "while it loaded the model",
        "loading": "while it loaded the model",
        "compiling": "while loops were compiled",
    }
    where = places.get(ending.phase, "in the solver")
    if ending.reason == "walltime":
        return (
            "TIME_LIMIT",
            "walltime",
            f"it was ended {where}, which did not look at its limit of {request['time_limit']:g} s.",
        )
    if ending.reason == "memory":
        return "MEMORY_LIMIT", "memory", f"it was ended {where} at the limit of {format_size(request['memory_limit'])}."
    last = printable(ending.tail.strip().splitlines()[-1][-300:]) if ending.tail.strip() else ""
    wrote = f"; it wrote: {last.rstrip('.')}." if last else "."
    if ending.code < 0:
        name = _signal_name(-ending.code)
        return "CRASHED", f"signal {-ending.code}", f"its process was ended {where} by signal {name}{wrote}"
    return "CRASHED", f"exit code {ending.code}", f"its process ended {where} with exit code {ending.code}{wrote}"


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
