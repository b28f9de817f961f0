"""What a comparison is asked for: models, solvers, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctmc.errors import StudyError, printable

TIME_LIMIT = 60.0
"""Seconds of one solve, unless told otherwise."""


@dataclass(frozen=True)
class Entry:
    """A model that is to be compared on.

    Attributes
    ----------
    name : str
    path : Path or None
        A file of our own format; None where there is none, and `message` says why.
    family, recipe, point
        As in `ComparedModel`.
    message : str
    kind : str
        ``Generator`` or ``QBD`` where it is known without a file.
    unbuilt : bool
        There will be a file, once it has been built.
    """

    name: str
    path: Path | None
    family: str = ""
    recipe: str = ""
    point: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    kind: str = ""
    unbuilt: bool = False


@dataclass(frozen=True)
class Settings:
    """How a comparison is run.

    Attributes
    ----------
    solvers : tuple of str
        As `solvers_of` returns them.
    every : bool
        Whether they are simply all that there are: then those that take no model of a kind are left out there.
    tolerances : tuple of float or None
        None: the problem's default.
    problem : str
    question : mapping
        What else the problem asks: initial, times, reward, ..
    levels : tuple of int
        Each QBD is also cut at these numbers of levels.
    warm : bool
        Also begin from the answer of the model before, where that has as many states.
    repeats : int
    time_limit : float
        Seconds of one solve.
    memory_limit : int or None
        Bytes that one attempt may take beside the interpreter; None: 80 % of what is free, divided by `jobs`.
    threads : int or None
    jobs : int
        Attempts at once; more than one disturbs the times.
    allow_code : bool
    """

    solvers: tuple[str, ...]
    every: bool = False
    tolerances: tuple[float | None, ...] = (None,)
    problem: str = "stationary"
    question: Mapping[str, Any] = field(default_factory=dict)
    levels: tuple[int, ...] = ()
    warm: bool = False
    repeats: int = 1
    time_limit: float = TIME_LIMIT
    memory_limit: int | None = None
    threads: int | None = None
    jobs: int = 1
    allow_code: bool = False

    def __post_init__(self) -> None:
        for name in ("repeats", "jobs", *(() if self.threads is None else ("threads",))):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000:
                raise StudyError(f"{name} is {printable(value)}; allowed is a whole number from 1 to 1000.")
        if not 0 < self.time_limit < 1e9:
            raise StudyError(f"time_limit is {self.time_limit:g}; allowed is a number of seconds above 0.")
        for tolerance in self.tolerances:
            if tolerance is not None and not 0 < tolerance < 1:
                raise StudyError(f"tolerance is {tolerance!r}; allowed is a number between 0 and 1.")
        if self.warm and self.problem != "stationary":
            raise StudyError(f"warm starts belong to stationary problems; the problem is {self.problem}.")
        for level in self.levels:
            if isinstance(level, bool) or not isinstance(level, int) or level < 1:
                raise StudyError(f"levels has {printable(level)}; allowed are whole numbers above 0.")
