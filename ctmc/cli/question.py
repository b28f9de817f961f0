"""What ``ctmc solve`` is asked: its options, turned into the arguments of a problem."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ctmc.cli.output import Output
from ctmc.errors import ModelError, printable, unknown_name

_MOST_TIMES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Question:
    """What the command line asks, apart from limits."""

    file: str
    solver: str | None
    options: dict[str, Any]
    tolerance: float | None
    problem: str
    initial: str | None
    times: str | None
    start: str | None
    time_limit: float | None
    conditions: tuple[str, ...]
    rewards: tuple[str, ...]
    save: bool
    certify: str = "defect"


def settings_of(question: Question) -> dict[str, Any]:
    """Return the arguments of the problem's class, apart from the model."""
    settings: dict[str, Any] = {}
    if question.tolerance is not None:
        settings["tolerance"] = question.tolerance
    if question.initial is not None:
        settings["initial"] = parse_state(question.initial)
    if question.times is not None:
        if question.problem != "transient":
            raise ModelError(f"--times is given for a {question.problem} problem; only --problem transient has times.")
        settings["times"] = parse_times(question.times)
    elif question.problem == "transient":
        raise ModelError("a transient problem needs --times, such as --times 0.5,2 or --times 0:50:1.")
    return settings


def parse_state(text: str) -> tuple[int, ...]:
    """Return the state of ``--initial``.

    Examples
    --------
    >>> parse_state("0,2,1")
    (0, 2, 1)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ModelError(f"--initial is {printable(text)!r}; allowed are whole numbers such as 0,0,0.") from None


def parse_times(text: str) -> list[float]:
    """Return the times of ``0.5,2`` or of ``begin:end:step``, the end included.

    Examples
    --------
    >>> parse_times("0.5,2"), parse_times("0:1:0.25")
    ([0.5, 2.0], [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    problem = f"--times is {printable(text)!r}; allowed are numbers such as 0.5,2 or begin:end:step such as 0:50:1."
    try:
        if ":" not in text:
            return [float(part) for part in text.split(",")]
        begin, end, step = (float(part) for part in text.split(":"))
    except ValueError:
        raise ModelError(problem) from None
    if not (step > 0 and begin <= end and all(map(math.isfinite, (begin, end, step)))):
        raise ModelError(problem)
    count = (end - begin) / step
    if not count < _MOST_TIMES:
        raise ModelError(f"--times {printable(text)} are {count:.3g} times; allowed are {_MOST_TIMES:,}.")
    return [begin + k * step for k in range(math.floor(count + 1e-9) + 1)]


def check_rewards(model: Any, names: tuple[str, ...]) -> None:
    """Complain before the solve, not after it; measures of a stationary answer are only known then."""
    for name in names:
        if name not in model.all_rewards and model.measures is None:
            raise unknown_name("reward", name, model.all_rewards)


def check_certificate(name: str, problem: Any, rewards: tuple[str, ...]) -> None:
    """Complain before the solve about intervals that cannot be proven after it."""
    from ctmc import strict
    from ctmc.solve import CERTIFICATES

    if name not in CERTIFICATES:
        raise unknown_name("certificate", name, CERTIFICATES)
    if name == "strict":
        strict.check(problem, rewards or None)


def start_vector(path: str, model: Any, output: Output) -> Any:
    """Return the vector of a stored solution; that of another model may serve as well, and is pointed out."""
    from ctmc.storage import load_solution

    stored = load_solution(path)
    if getattr(stored, "model_hash", None) not in (None, model.content_hash):
        output.news("Note: the start is a solution of another model.")
    return stored.value
