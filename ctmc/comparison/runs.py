"""What a comparison has found: one `Run` for each model, solver, tolerance and start; nothing is rounded here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctmc.errors import shown
from ctmc.model.summary import Rows, Summarised
from ctmc.solution import HISTORY, Status

OUTCOMES = {
    "CONVERGED": "certified within the tolerance",
    **{status.name: status.value for status in Status if status is not Status.CONVERGED},
    "MEMORY_LIMIT": "It needed more memory than the limit.",
    "CRASHED": "Its process was ended by a signal or by an exit code.",
    "ERROR": "It raised an error.",
    "REFUSED": "The solver does not take this model.",
    "NOT_INSTALLED": "A library that the solver needs is not installed.",
    "NO_MODEL": "The model could not be built or read.",
    "NOT_RUN": "The comparison was ended before it.",
}
"""How a run may end: the names of `Status`, and what happens outside of a solver."""
NOT_ATTEMPTED = ("NOT_RUN",)
NOT_APPLICABLE = ("REFUSED", "NOT_INSTALLED")
"""These say nothing against a method where it applies."""


@dataclass(frozen=True, eq=False)
class Run:
    """One attempt to solve one model.

    Attributes
    ----------
    model, solver : str
        The solver with its options.
    tolerance : float
    start : str
        ``cold``, or ``warm``: from the answer of the model before it.
    status : str
        A key of `OUTCOMES`.
    reason : str
        Why it was ended: ``walltime``, ``memory``, ``signal 11``, ``exit code 3``; '' where it ended by itself.
    message : str
        One sentence where there is no certified answer.
    defect : float or None
        Certified, whatever the status.
    distance : float or None
        From the reference: the L1 distance of distributions; of other answers the largest difference relative to the largest
        number.
    measure_difference : float or None
        Largest difference of a measure from that of the reference, relative where the measure is above 1; for truncated QBDs
        from that of the QBD.
    truncated_mass : float or None
        Of a truncated QBD: the probability of the levels that are cut off, by the answer for the QBD.
    iterations, products : int or None
    seconds : tuple of float
        Of the solver and its certificate, each repeat.
    first_seconds : float or None
        Of the first solve in its process, which loads compiled loops; not in `seconds` where it was repeated.
    wall_seconds, cpu_seconds : float or None
        Of the whole process, loading included.
    allocated_bytes, peak_bytes : int or None
        What was allocated at most beside the interpreter and its libraries, the model included, looked at 50 times a second; and
        the largest resident memory of the process.
    isolation : str
        How its limits were kept: ``watched``, also with ``cgroup v1`` or ``cgroup v2``, where the kernel keeps the one on memory, too.
    session : int
        Position in `Comparison.sessions`.
    ran : str
        The solver as it ran, with options that it chose by itself.
    measures : mapping of str to float
    history : ndarray of `HISTORY`
    key : str
        Identity of what was asked.
    command : str
        What to type to do it again.
    """

    model: str
    solver: str
    tolerance: float
    start: str = "cold"
    status: str = "NOT_RUN"
    reason: str = ""
    message: str = ""
    defect: float | None = None
    distance: float | None = None
    measure_difference: float | None = None
    truncated_mass: float | None = None
    iterations: int | None = None
    products: int | None = None
    seconds: tuple[float, ...] = ()
    first_seconds: float | None = None
    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    isolation: str = ""
    session: int = 0
    ran: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)
    history: np.ndarray = field(default_factory=lambda: np.empty(0, HISTORY))
    key: str = ""
    command: str = ""

    @property
    def method(self) -> str:
        """The solver without its options."""
        return self.solver.partition("(")[0]

    @property
    def label(self) -> str:
        """The solver as tables and figures name it: warm starts are a method of their own."""
        return self.solver if self.start == "cold" else f"{self.solver} (warm)"

    @property
    def converged(self) -> bool:
        """Whether there is a certified answer."""
        return self.status == Status.CONVERGED.name

    @property
    def median_seconds(self) -> float | None:
        """The median of the repeats."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float | None:
        """Largest less smallest time of the repeats, relative to the median; None of a single one."""
        if len(self.seconds) < 2:
            return None
        return (max(self.seconds) - min(self.seconds)) / statistics.median(self.seconds)

    @property
    def disagrees(self) -> bool:
        """Whether a certified answer is farther from the reference than the square root of its tolerance."""
        differences = [self.distance]
        if self.truncated_mass is None:  # else the truncation itself makes a difference
            differences.append(self.measure_difference)
        return self.converged and any(far is not None and far > self.tolerance**0.5 for far in differences)


@dataclass(frozen=True)
class ComparedModel:
    """A model of a comparison.

    Attributes
    ----------
    name : str
    path : str
        Of its file; '' where there is none.
    content_hash : str
    family : str
        Of truncations: the name of the QBD; of points of a sweep: the name in the study; else `name`.
    levels : int or None
        Of truncations.
    recipe : str
        How it was built, as a command; '' where it was read.
    kind : str
        ``Generator`` or ``QBD``.
    states, entries : int or None
        Of a QBD no states, and the entries of its repeating blocks.
    reference : str
        The solver of the reference; '' where there is none.
    reference_defect : float or None
    message : str
        Why there is no model.
    point : mapping
        What a sweep has chosen.
    """

    name: str
    path: str = ""
    content_hash: str = ""
    family: str = ""
    levels: int | None = None
    recipe: str = ""
    kind: str = ""
    states: int | None = None
    entries: int | None = None
    reference: str = ""
    reference_defect: float | None = None
    message: str = ""
    point: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Summarised):
    """Runs of several solvers on several models.

    Attributes
    ----------
    title : str
    problem : str
    models : mapping of str to ComparedModel
    runs : tuple of Run
        Model by model, in the order that was asked for.
    sessions : tuple of mapping
        Versions, machine, threads and limits of each time the comparison was run.
    stopped : bool
    unsaved : str
        Why the output could not be written, '' where it was, or where there is none.
    question : mapping
        What the problem asks beside the tolerance: initial, times, reward, ..
    """

    title: str
    problem: str
    models: Mapping[str, ComparedModel]
    runs: tuple[Run, ...]
    sessions: tuple[Mapping[str, Any], ...] = ()
    stopped: bool = False
    unsaved: str = ""
    question: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> str:
        """The problem and what it asks, in words."""
        return ", ".join([self.problem, *(f"{name} {shown(value)}" for name, value in self.question.items())])

    @property
    def complete(self) -> bool:
        """Whether every run was attempted."""
        return not any(run.status in NOT_ATTEMPTED for run in self.runs)

    @property
    def labels(self) -> tuple[str, ...]:
        """The solvers, warm starts apart, in order."""
        return tuple(dict.fromkeys(run.label for run in self.runs))

    @property
    def disagreements(self) -> tuple[Run, ...]:
        """Runs whose certified answers are far from the reference."""
        return tuple(run for run in self.runs if run.disagrees)

    @property
    def failures(self) -> tuple[Run, ...]:
        """Runs without a certified answer, where the solver takes the model."""
        return tuple(run for run in self.runs if not run.converged and run.status not in NOT_APPLICABLE)

    def _summary(self) -> tuple[str, Rows]:
        done = sum(run.converged for run in self.runs)
        return f"Comparison {self.title!r}", (
            ("models", f"{len(self.models):,}"),
            ("solvers", f"{len(self.labels):,}"),
            ("runs", f"{len(self.runs):,}"),
            ("certified", f"{done:,}"),
            ("disagreements", f"{len(self.disagreements):,}"),
        )
